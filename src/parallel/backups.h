/* parallel/backups.h -- backup workers: a step is made of the ranks that come first.
 *
 * Chen, Pan, Monga, Bengio and Jozefowicz, Revisiting Distributed Synchronous SGD, 2016: of N + b
 * workers' gradients the first N are averaged, and the b others dropped.  A worker is a rank here,
 * with all its virtual workers.  Who comes first is a matter of time, so nothing is exact.
 *
 *      arrive    a rank whose turns are over takes one of `ranks - backups` places, by compare and
 *                swap of a word in the host's arena.  One whose turns count for nothing needs none,
 *                so a short batch is never dropped whole.
 *      dropped   who finds no place, be it when it arrives or, before that, at a border of blocks,
 *                makes no more of its turns: zeros travel in place of its gradients, and its
 *                reports say nothing
 *      owners    it sums and updates its slices as ever; a rank that has stopped is waited for
 *
 * Nothing travels before a rank has arrived: a place is for all of its gradient.
 *
 * The word has the number of the step since this was opened, so nobody need clear it.
 */
#ifndef LKI_PARALLEL_BACKUPS_H
#define LKI_PARALLEL_BACKUPS_H

#include <stdatomic.h>

#include "base/status.h"
#include "lockstep/parallel.h"

typedef struct {
    uint32_t          count; /* ranks that are dropped; 0: none ever is */
    uint32_t          round; /* steps that were begun */
    bool              arrived;
    _Atomic uint64_t *word;  /* in the model's arena: the round, and places taken in it */
} lki_backups;

/* Of a virtual worker's report. */
typedef enum { LKI_COUNTS = 0, LKI_DROPPED, LKI_NOT_BEGUN } lki_counting;

/* From options; LK_EUNSUPPORTED says with what there are none. */
LK_NODISCARD lk_status lki_backups_describe(lk_parallel *parallel,
                                            const lk_parallel_options *options);

void lki_backups_begin(lk_parallel *parallel);

/* This rank's turns are over: whether they count. */
bool lki_backups_arrive(lk_parallel *parallel);

/* Whether it need not go on with them, as all places are taken. */
bool lki_backups_over(const lk_parallel *parallel);

/* They do not count, as many as it has made. */
LK_NODISCARD lk_status lki_backups_leave_out(lk_parallel *parallel);

/* When ranks' times are known (lki_balance_time()): virtual workers of all that do not count. */
uint32_t lki_backups_dropped(const lk_parallel *parallel);

#endif
