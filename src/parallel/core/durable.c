/* durable.c -- the implementation of durable.h that records nothing. */
#include "parallel/durable.h"

#include "base/memory.h"
#include "parallel/state.h"

static size_t lay_out(lk_parallel *parallel, char *base, size_t at)
{
    (void)parallel;
    (void)base;
    return at;
}

static lk_status open_hashes(lk_parallel *parallel)
{
    return LKI_NEW(&parallel->owned.hashes, parallel->layout->span_count, "parameter hashes");
}

static void close_hashes(lk_parallel *parallel)
{
    lki_free(parallel->owned.hashes);
    parallel->owned.hashes = NULL;
}

static void note_sum(lk_parallel *parallel, size_t span, const float *sum)
{
    (void)parallel;
    (void)span;
    (void)sum;
}

static void note_states(lk_parallel *parallel, const float *sums)
{
    (void)parallel;
    (void)sums;
}

static float *find_sum(const lk_parallel *parallel, size_t span)
{
    (void)span;
    /* never called, because no step can be completed without a ledger */
    LK_ASSERT(parallel->ledger.kept);
    return NULL;
}

static void mark(lk_parallel *parallel, const lki_tally *tally)
{
    (void)parallel;
    (void)tally;
}

static bool has(const lk_parallel *parallel, size_t span, lki_update_stage stage)
{
    (void)parallel;
    (void)span;
    (void)stage;
    return false;
}

static bool is_begun(const lk_parallel *parallel, size_t span)
{
    (void)parallel;
    (void)span;
    return false;
}

static lki_entry *begin_span(lk_parallel *parallel, size_t span, lki_update_stage stage)
{
    (void)parallel;
    (void)span;
    (void)stage;
    return NULL;
}

/* Returns the whole span as one piece in the first call, and false afterwards. */
static bool next_piece(const lk_parallel *parallel, size_t span, lki_entry *entry, lki_piece *piece)
{
    (void)entry;
    *piece = (lki_piece){ piece->count, parallel->layout->spans[span].count - piece->count };
    return piece->count > 0;
}

static void end_span(lk_parallel *parallel, size_t span, lki_entry *entry)
{
    (void)parallel;
    (void)span;
    (void)entry;
}

static lki_running_update begin_running(lk_parallel *parallel, uint32_t owner, size_t first,
                                        size_t end, const float *sums)
{
    (void)owner;
    (void)first;
    (void)end;
    return (lki_running_update){ sums, parallel->running.values, parallel->running.mean, false };
}

static void end_running(lk_parallel *parallel, uint32_t owner, size_t first, size_t end)
{
    (void)parallel;
    (void)owner;
    (void)first;
    (void)end;
}

const lki_durable lki_durable_none = {
    .lay_out       = lay_out,
    .open          = open_hashes,
    .close         = close_hashes,
    .note_sum      = note_sum,
    .note_states   = note_states,
    .find_sum      = find_sum,
    .mark          = mark,
    .has           = has,
    .is_begun      = is_begun,
    .begin_span    = begin_span,
    .next_piece    = next_piece,
    .end_span      = end_span,
    .begin_running = begin_running,
    .end_running   = end_running,
};
