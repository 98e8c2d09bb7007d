/* reorder.c -- orders buckets by the order in which gradients are finished in the first step.
 *
 * A bucket is sent when all its terms and all earlier buckets are ready.  If a program finishes
 * terms in another order than it has declared, little can be sent before the end of the backward
 * pass.  So all ranks adopt the order of rank 0's first virtual worker in the first step.  This
 * changes only buckets and owners, and neither the places of parameters nor any sum (layout.h).
 */
#include <string.h>

#include "base/memory.h"
#include "parallel/features/table.h"
#include "parallel/strategies/shards.h"

typedef struct {
    uint32_t *terms; /* [term_count]: the layout's terms in the order in which they were finished */
    uint32_t  count; /* number of terms finished so far */
    bool      over;  /* the first step is complete */
    bool      differs;                          /* equal on all ranks */
    /* offset in a report: not 0 in rank 0's first one if terms were finished in another order than
     * the layout's */
    size_t    differs_at;
    size_t    bucket_bytes, first_bucket_bytes; /* as given in the options */
} order;

/* Returns true if buckets may be reordered.  Shards exclude it, because stored shards would have to
 * move.  A ledger excludes it, because it refers to places that would change. */
static bool can_reorder(const lk_parallel *parallel)
{
    return parallel->ops->relay != NULL && parallel->shards == 1 && !parallel->lock_step &&
           !parallel->ledger.kept && parallel->offload.kinds == 0;
}

static lk_status order_open(lk_parallel *parallel, const lk_parallel_options *options, void **out)
{
    order *self = NULL;

    LK_TRY(LKI_NEW(&self, 1, "order of gradient terms"));
    *out                     = self;
    self->differs_at         = lki_report_reserve(parallel, sizeof(uint64_t));
    self->bucket_bytes       = options->bucket_bytes;
    self->first_bucket_bytes = options->first_bucket_bytes;
    return LK_OK;
}

static lk_status order_attach(lk_parallel *parallel, void *context)
{
    order *self = context;
    self->over  = !can_reorder(parallel);
    return LKI_NEW(&self->terms, parallel->layout->term_count, "order of gradient terms");
}

static void order_close(void *context)
{
    order *self = context;
    lki_free(self->terms);
    lki_free(self);
}

/* Copies the first virtual worker's order of terms, and stores in its report whether the order
 * differs from the layout's. */
static void order_end_leaf(lk_parallel *parallel, void *context, uint32_t index)
{
    order                *self = context;
    const lki_turn_state *turn = &parallel->turn;
    if (self->over || parallel->rank != 0 || turn->leaf != 0)
        return;
    uint64_t *differs = lki_report_at(lki_report_now(parallel, index), self->differs_at);
    self->count       = turn->finished_count;
    memcpy(self->terms, turn->finished, self->count * sizeof *self->terms);
    for (uint32_t i = 1; i < self->count; i++)
        *differs |= self->terms[i] < self->terms[i - 1];
}

static lk_status order_reports(lk_parallel *parallel, void *context, lk_step_result *result)
{
    order          *self  = context;
    const uint64_t *first = lki_report_at(lki_report_of(parallel, 0), self->differs_at);
    (void)result;
    self->differs = !self->over && *first != 0;
    return LK_OK;
}

/* Appends the terms that were finished only by the end of the turn, in the layout's order. */
static void complete(const lki_layout *layout, order *self)
{
    for (uint32_t t = 0; t < layout->term_count; t++) {
        bool there = false;
        for (uint32_t i = 0; i < self->count && !there; i++)
            there = self->terms[i] == t;
        if (!there)
            self->terms[self->count++] = t;
    }
}

static lk_status lay_out_again(lk_parallel *parallel, const order *self,
                               const lk_parallel_term *terms, const uint32_t *to)
{
    const lki_layout   *old     = parallel->layout;
    lk_parallel_options options = { .struct_size        = sizeof(lk_parallel_options),
                                    .terms              = terms,
                                    .term_count         = old->term_count,
                                    .bucket_bytes       = self->bucket_bytes,
                                    .first_bucket_bytes = self->first_bucket_bytes };
    lki_layout         *layout  = NULL;
    lki_deal            deal;

    lk_status status = lki_shards_deal(parallel, &deal);
    deal.param_at    = old->param_at;
    if (status == LK_OK)
        status = lki_layout_open(&layout, old->params, old->param_count, &options, &deal);
    lki_free(deal.owners);
    LK_TRY(status);
    for (uint32_t t = 0; t < old->term_count; t++)
        layout->named[t] = to[old->named[t]];
    lki_layout_free(parallel->layout);
    parallel->layout = layout;
    return LK_OK;
}

static lk_status reorder(lk_parallel *parallel, const order *self)
{
    uint32_t          count = parallel->layout->term_count;
    lk_parallel_term *terms = NULL;
    uint32_t         *to    = NULL;

    LK_TRY(LKI_NEW(&terms, count, "order of gradient terms"));
    lk_status status = LKI_NEW(&to, count, "order of gradient terms");
    for (uint32_t t = 0; status == LK_OK && t < count; t++) {
        terms[t]           = parallel->layout->terms[self->terms[t]];
        to[self->terms[t]] = t;
    }
    if (status == LK_OK)
        status = lay_out_again(parallel, self, terms, to);
    lki_free(terms);
    lki_free(to);
    LK_TRY(status);
    lki_own_spans(parallel);
    for (uint32_t p = 0; p < parallel->layout->param_count; p++)
        lki_attest_written(parallel, p);
    return parallel->ops->relay(parallel);
}

static lk_status order_end_step(lk_parallel *parallel, void *context, lk_step_result *result)
{
    order *self = context;
    (void)result;
    self->over = true;
    if (!self->differs)
        return LK_OK;
    self->differs = false;
    if (parallel->rank == 0)
        complete(parallel->layout, self);
    LK_TRY(lk_broadcast(parallel->comm, self->terms,
                        parallel->layout->term_count * sizeof *self->terms, 0));
    return reorder(parallel, self);
}

const lki_feature lki_feature_reorder = {
    .name     = "order of buckets",
    .open     = order_open,
    .close    = order_close,
    .attach   = order_attach,
    .end_leaf = order_end_leaf,
    .reports  = order_reports,
    .end_step = order_end_step,
};
