/* features.c -- calls the features in the order of their table; see feature.h. */
#include "parallel/feature.h"

#include "base/hash.h"
#include "parallel/state.h"
#include "tensor/exec.h"

/* Visits the rows of all enabled features that implement `entry`. */
#define FOR_EACH(parallel, row, entry)                                                             \
    for (uint32_t row = 0; row < lki_feature_count; row++)                                         \
        if ((parallel)->features[row] != NULL && lki_feature_table[row]->entry != NULL)

uint32_t lki_feature_row(const lki_feature *feature)
{
    uint32_t row = 0;
    while (lki_feature_table[row] != feature) {
        row++;
        LK_ASSERT(row < lki_feature_count);
    }
    return row;
}

void *lki_feature_state(const lk_parallel *parallel, const lki_feature *feature)
{
    return parallel->features[lki_feature_row(feature)];
}

/* ---- Their lives ------------------------------------------------------------------------- */

lk_status lki_features_open(lk_parallel *parallel, const lk_parallel_options *options)
{
    for (uint32_t row = 0; row < lki_feature_count; row++)
        LK_TRY(lki_feature_table[row]->open(parallel, options, &parallel->features[row]));
    return LK_OK;
}

void lki_features_close(lk_parallel *parallel)
{
    FOR_EACH (parallel, row, close) {
        lki_feature_table[row]->close(parallel->features[row]);
        parallel->features[row] = NULL;
    }
}

uint64_t lki_features_hash(const lk_parallel_options *options)
{
    uint64_t words[LKI_FEATURES_MAX] = { 0 };
    for (uint32_t row = 0; row < lki_feature_count; row++)
        if (lki_feature_table[row]->hash_options != NULL)
            words[row] = lki_feature_table[row]->hash_options(options);
    return lki_xxh3(words, sizeof words);
}

size_t lki_features_lay_out(lk_parallel *parallel, char *base, size_t at)
{
    FOR_EACH (parallel, row, lay_out)
        at = lki_feature_table[row]->lay_out(parallel, parallel->features[row], base, at);
    return at;
}

lk_status lki_features_attach(lk_parallel *parallel)
{
    FOR_EACH (parallel, row, attach)
        LK_TRY(lki_feature_table[row]->attach(parallel, parallel->features[row]));
    return LK_OK;
}

void lki_features_take_over(lk_parallel *parallel, const lk_parallel *before)
{
    FOR_EACH (parallel, row, take_over)
        lki_feature_table[row]->take_over(parallel, parallel->features[row],
                                          before == NULL ? NULL : before->features[row]);
}

/* ---- Turns ------------------------------------------------------------------------------- */

void lki_features_begin_step(lk_parallel *parallel)
{
    FOR_EACH (parallel, row, begin_step)
        lki_feature_table[row]->begin_step(parallel, parallel->features[row]);
}

lk_status lki_features_begin_leaves(lk_parallel *parallel)
{
    FOR_EACH (parallel, row, begin_leaves)
        LK_TRY(lki_feature_table[row]->begin_leaves(parallel, parallel->features[row]));
    return LK_OK;
}

void lki_features_term_asked(lk_parallel *parallel, uint32_t index, uint32_t term)
{
    FOR_EACH (parallel, row, term_asked)
        lki_feature_table[row]->term_asked(parallel, parallel->features[row], index, term);
}

lk_status lki_features_term_ready(lk_parallel *parallel, uint32_t index, uint32_t term)
{
    FOR_EACH (parallel, row, term_ready)
        LK_TRY(lki_feature_table[row]->term_ready(parallel, parallel->features[row], index, term));
    return LK_OK;
}

void lki_features_end_leaf(lk_parallel *parallel, uint32_t index)
{
    FOR_EACH (parallel, row, end_leaf)
        lki_feature_table[row]->end_leaf(parallel, parallel->features[row], index);
}

bool lki_features_are_moot(lk_parallel *parallel, bool over)
{
    FOR_EACH (parallel, row, is_moot)
        if (lki_feature_table[row]->is_moot(parallel, parallel->features[row], over))
            return true;
    return false;
}

lk_status lki_features_drop(lk_parallel *parallel)
{
    FOR_EACH (parallel, row, drop)
        LK_TRY(lki_feature_table[row]->drop(parallel, parallel->features[row]));
    return LK_OK;
}

bool lki_features_next_turn(lk_parallel *parallel)
{
    FOR_EACH (parallel, row, next_turn)
        if (lki_feature_table[row]->next_turn(parallel, parallel->features[row]))
            return true;
    return false;
}

/* ---- The end of a step ------------------------------------------------------------------- */

uint64_t lki_features_sent(const lk_parallel *parallel, uint32_t host)
{
    uint64_t bytes = 0;
    FOR_EACH (parallel, row, sent)
        bytes += lki_feature_table[row]->sent(parallel, parallel->features[row], host);
    return bytes;
}

lk_status lki_features_combine(lk_parallel *parallel, lki_gradients *sums)
{
    lki_track *track = lki_exec_track(parallel->exec);
    FOR_EACH (parallel, row, combine) {
        uint64_t  begun  = lki_trace_begin(track);
        lk_status status = lki_feature_table[row]->combine(parallel, parallel->features[row], sums);
        lki_trace_end(track, LKI_SPAN_REDUCE, 0, begun);
        LK_TRY(status);
    }
    return LK_OK;
}

lk_status lki_features_reports(lk_parallel *parallel, lk_step_result *result)
{
    FOR_EACH (parallel, row, reports)
        LK_TRY(lki_feature_table[row]->reports(parallel, parallel->features[row], result));
    return LK_OK;
}

void lki_features_before_update(lk_parallel *parallel, lki_tally *tally)
{
    FOR_EACH (parallel, row, before_update)
        lki_feature_table[row]->before_update(parallel, parallel->features[row], tally);
}

void lki_features_ratios(lk_parallel *parallel, const lk_update *update)
{
    FOR_EACH (parallel, row, ratios)
        lki_feature_table[row]->ratios(parallel, parallel->features[row], update);
}

void lki_features_restore(lk_parallel *parallel, const lki_tally *tally,
                          lk_parallel_standing *standing)
{
    FOR_EACH (parallel, row, restore)
        lki_feature_table[row]->restore(parallel, parallel->features[row], tally, standing);
}

void lki_features_after_update(lk_parallel *parallel)
{
    FOR_EACH (parallel, row, after_update)
        lki_feature_table[row]->after_update(parallel, parallel->features[row]);
}

lk_status lki_features_end_step(lk_parallel *parallel, lk_step_result *result)
{
    FOR_EACH (parallel, row, end_step)
        LK_TRY(lki_feature_table[row]->end_step(parallel, parallel->features[row], result));
    return LK_OK;
}
