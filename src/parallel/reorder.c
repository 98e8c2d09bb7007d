/* reorder.c -- buckets in the order in which gradients are finished, seen once.
 *
 * A bucket travels when all its terms are there, and none before those in front of it; so where a
 * program finishes terms in another order than it has said, nothing travels until late.  What rank
 * 0's first virtual worker does in the first step is what all take up after it.  Where parameters
 * lie does not change, nor any sum: buckets and owners only cut them (layout.h).
 */
#include <string.h>

#include "base/memory.h"
#include "parallel/strategies/shards.h"

struct lki_order {
    uint32_t *terms; /* [term_count]: the layout's, as they were finished */
    uint32_t  count; /* so far */
    uint32_t *of;    /* [term_count]: the layout's number of a term of the options */
    bool      over;  /* the first step is made */
    bool      differs; /* as all know */
};

/* Parts that hosts keep would have to move, and what a ledger says is where it was. */
static bool can_reorder(const lk_parallel *parallel)
{
    return parallel->ops->relay != NULL && parallel->shards == 1 && !parallel->lock_step &&
           !parallel->ledger.kept && parallel->in_files == 0;
}

lk_status lki_order_open(lk_parallel *parallel)
{
    uint32_t count = parallel->layout->term_count;
    LK_TRY(LKI_NEW(&parallel->order, 1, "order of gradient terms"));
    LK_TRY(LKI_NEW(&parallel->order->terms, count, "order of gradient terms"));
    LK_TRY(LKI_NEW(&parallel->order->of, count, "order of gradient terms"));
    for (uint32_t t = 0; t < count; t++)
        parallel->order->of[t] = t;
    parallel->order->over = !can_reorder(parallel);
    return LK_OK;
}

void lki_order_close(lk_parallel *parallel)
{
    if (parallel->order == NULL)
        return;
    lki_free(parallel->order->terms);
    lki_free(parallel->order->of);
    lki_free(parallel->order);
}

uint32_t lki_order_term(const lk_parallel *parallel, uint32_t term)
{
    return parallel->order->of[term];
}

void lki_order_note(lk_parallel *parallel, uint32_t term)
{
    lki_order *order = parallel->order;
    if (!order->over && parallel->rank == 0 && parallel->leaf == 0)
        order->terms[order->count++] = term;
}

void lki_order_report(const lk_parallel *parallel, lki_report *report)
{
    const lki_order *order = parallel->order;
    if (order->over || parallel->rank != 0 || parallel->leaf != 0)
        return;
    for (uint32_t i = 1; i < order->count; i++)
        report->reorders |= order->terms[i] < order->terms[i - 1];
}

void lki_order_hear(lk_parallel *parallel)
{
    parallel->order->differs = !parallel->order->over && lki_report_of(parallel, 0)->reorders;
}

/* What was not finished by itself comes last, as it was. */
static void complete(const lki_layout *layout, lki_order *order)
{
    for (uint32_t t = 0; t < layout->term_count; t++) {
        bool there = false;
        for (uint32_t i = 0; i < order->count && !there; i++)
            there = order->terms[i] == t;
        if (!there)
            order->terms[order->count++] = t;
    }
}

static lk_status lay_out_again(lk_parallel *parallel, const lk_parallel_term *terms)
{
    const lki_layout   *old     = parallel->layout;
    lk_parallel_options options = { .terms              = terms,
                                    .term_count         = old->term_count,
                                    .bucket_bytes       = parallel->bucket_bytes,
                                    .comm_dtype         = parallel->rounded,
                                    .first_bucket_bytes = parallel->first_bucket_bytes };
    lki_layout         *layout  = NULL;
    lki_deal            deal;

    lk_status status = lki_shards_deal(parallel, &deal);
    deal.param_at    = old->param_at;
    if (status == LK_OK)
        status = lki_layout_open(&layout, old->params, old->param_count, &options, &deal);
    lki_free(deal.owners);
    LK_TRY(status);
    lki_layout_free(parallel->layout);
    parallel->layout = layout;
    return LK_OK;
}

static lk_status reorder(lk_parallel *parallel)
{
    lki_order        *order = parallel->order;
    uint32_t          count = parallel->layout->term_count;
    lk_parallel_term *terms = NULL;
    uint32_t         *to    = NULL;

    LK_TRY(LKI_NEW(&terms, count, "order of gradient terms"));
    lk_status status = LKI_NEW(&to, count, "order of gradient terms");
    for (uint32_t t = 0; status == LK_OK && t < count; t++) {
        terms[t]            = parallel->layout->terms[order->terms[t]];
        to[order->terms[t]] = t;
    }
    if (status == LK_OK)
        status = lay_out_again(parallel, terms);
    for (uint32_t t = 0; status == LK_OK && t < count; t++)
        order->of[t] = to[order->of[t]];
    lki_free(terms);
    lki_free(to);
    LK_TRY(status);
    lki_own_spans(parallel);
    for (uint32_t p = 0; p < parallel->layout->param_count; p++)
        lki_attest_written(parallel, p);
    return parallel->ops->relay(parallel);
}

lk_status lki_order_settle(lk_parallel *parallel)
{
    lki_order *order = parallel->order;
    order->over      = true;
    if (!order->differs)
        return LK_OK;
    order->differs = false;
    if (parallel->rank == 0)
        complete(parallel->layout, order);
    LK_TRY(lk_broadcast(parallel->comm, order->terms,
                        parallel->layout->term_count * sizeof *order->terms, 0));
    return reorder(parallel);
}
