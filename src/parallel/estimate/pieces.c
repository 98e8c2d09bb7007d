/* pieces.c -- lists the pieces of a layout: the buckets that backward completes together. */
#include "parallel/pieces.h"

#include "base/memory.h"
#include "parallel/strategies/units.h"

/* Returns the last term that overlaps a bucket.  Terms are in the order of buckets. */
static uint32_t last_term(const lki_layout *layout, uint32_t bucket, uint32_t from)
{
    while (from + 1 < layout->term_count && layout->first_bucket[from + 1] <= bucket)
        from++;
    return from;
}

/* Returns true if both terms belong to one block, so that their gradients are completed
 * together. */
static bool are_together(const lki_layout *layout, uint32_t before, uint32_t term)
{
    while (term > before && layout->terms[term].same_block)
        term--;
    return term == before;
}

/* Adds a bucket's gathers to the piece's weighted means.  The weight is the number of elements that
 * belong to a parameter's first use. */
static void add_gathers(lki_grad_piece *piece, const lki_gathers *gathers, uint64_t turns,
                        size_t dealt)
{
    double part = (double)dealt / (double)(piece->dealt > 0 ? piece->dealt : 1);
    for (int pass = 0; pass < 2; pass++) {
        const double each[] = { (double)gathers->first[pass],
                                (double)gathers->others[pass] / (double)(turns - 1) };
        for (int turn = 0; turn < 2; turn++)
            piece->gathers[turn][pass] += part * (each[turn] - piece->gathers[turn][pass]);
    }
}

/* Returns the number of turns to count.  With fewer workers there may be more turns, so at least
 * one turn besides the first is counted. */
static uint64_t turns_of(const lk_parallel *parallel)
{
    return lki_max(2, lki_units_turns(parallel));
}

static void list_pieces(const lk_parallel *parallel, const lki_gathers *gathers,
                        lki_grad_piece *pieces, uint32_t *count)
{
    const lki_layout *layout = parallel->layout;
    uint32_t          term   = 0;
    for (uint32_t b = 0; b < layout->bucket_count; b++) {
        const lki_bucket *bucket = &layout->buckets[b];
        term                     = last_term(layout, b, term);
        if (*count == 0 || !are_together(layout, pieces[*count - 1].term, term))
            pieces[(*count)++] = (lki_grad_piece){ 0 };
        lki_grad_piece *piece = &pieces[*count - 1];
        piece->term      = term;
        piece->buckets += bucket->alike;
        piece->elements += bucket->alike * bucket->count;
        piece->dealt += bucket->alike * bucket->dealt;
        add_gathers(piece, &gathers[b], turns_of(parallel), bucket->alike * bucket->dealt);
    }
}

lk_status lki_pieces_make(lki_grad_piece **out, uint32_t *count, const lk_param *params,
                          uint32_t param_count, const lk_parallel_options *options,
                          const uint32_t *host_sizes, uint32_t hosts)
{
    lk_parallel *parallel = NULL;
    lki_gathers *gathers  = NULL;

    *out   = NULL;
    *count = 0;
    LK_TRY(LKI_NEW(&parallel, 1, "strategy"));
    lk_status status = lki_world_init(&parallel->world, host_sizes, hosts);
    if (status == LK_OK)
        status = lki_parallel_describe(parallel, params, param_count, options);
    if (status == LK_OK)
        status = LKI_NEW(out, parallel->layout->bucket_count, "pieces of gradients");
    if (status == LK_OK)
        status = LKI_NEW(&gathers, parallel->layout->bucket_count, "times units are gathered");
    /* with more hosts the parameters would be gathered */
    if (status == LK_OK && parallel->ops->gathers && !parallel->gathers)
        status = lki_unit_buffers_init(&parallel->slots, parallel->layout, options);
    if (status == LK_OK && parallel->ops->gathers)
        status = lki_units_count(parallel, turns_of(parallel), gathers);
    if (status == LK_OK)
        list_pieces(parallel, gathers, *out, count);
    lki_free(gathers);
    lk_parallel_free(parallel);
    return status;
}
