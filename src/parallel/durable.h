/* parallel/durable.h -- the calls with which a step records its progress, so that other ranks can
 * complete it.
 *
 * There are two implementations. recover/ledger.c records the progress; lki_durable_none records
 * nothing and costs one call per span (block of elements).  So the step and the update need not
 * check whether there is a ledger.
 *
 * Threads: has() to end_span() are called by several threads, each for different spans.
 */
#ifndef LKI_PARALLEL_DURABLE_H
#define LKI_PARALLEL_DURABLE_H

#include "parallel/ledger.h"

/* Elements [first, end) of an owner's running state during its update.  Arrays begin at element
 * 0. */
typedef struct {
    const float *sums;
    float       *values, *mean; /* mean: NULL without averages */
    bool         complete;      /* the new values have been written already */
} lki_running_update;

struct lki_durable {
    /* Places tables at offset `at` of the model's arena, like lki_feature.lay_out(). */
    size_t (*lay_out)(lk_parallel *parallel, char *base, size_t at);
    /* Sets parallel->owned.hashes, once the arena exists. */
    lk_status (*open)(lk_parallel *parallel);
    void (*close)(lk_parallel *parallel);

    /* Records the address of a span's sum, and of the sums of running state. */
    void (*note_sum)(lk_parallel *parallel, size_t span, const float *sum);
    void (*note_states)(lk_parallel *parallel, const float *sums);
    /* Returns the recorded sum of a span.  Called only to complete an interrupted step. */
    float *(*find_sum)(const lk_parallel *parallel, size_t span);

    /* Marks the step as decided. */
    void (*mark)(lk_parallel *parallel, const lki_tally *tally);

    /* Returns true if `stage` of the current step is complete for a span. */
    bool (*has)(const lk_parallel *parallel, size_t span, lki_update_stage stage);
    /* Returns true if a dead rank finished a part of the span. */
    bool (*is_begun)(const lk_parallel *parallel, size_t span);
    /* Begins a change of a span.  The result, possibly NULL, must be passed to next_piece() and
     * end_span(). */
    lki_entry *(*begin_span)(lk_parallel *parallel, size_t span, lki_update_stage stage);
    /* Finds the next piece of the span to be changed; the first call passes { 0, 0 }.  Returns
     * false at the end of the span. */
    bool (*next_piece)(const lk_parallel *parallel, size_t span, lki_entry *entry,
                       lki_piece *piece);
    void (*end_span)(lk_parallel *parallel, size_t span, lki_entry *entry);

    /* Returns the memory in which to compute running state [first, end) of an owner, from `sums` if
     * they are known. */
    lki_running_update (*begin_running)(lk_parallel *parallel, uint32_t owner, size_t first,
                                        size_t end, const float *sums);
    void (*end_running)(lk_parallel *parallel, uint32_t owner, size_t first, size_t end);
};

extern const lki_durable lki_durable_none, lki_durable_ledger;

#endif
