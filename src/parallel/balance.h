/* parallel/balance.h -- shares of virtual workers by the speed of ranks.
 *
 * What a virtual worker computes does not depend on who runs it, so shares may change between two
 * steps and no bit does.  Each rank's time for its turns, by its own clock, without waiting for
 * others, travels with the losses; so all ranks know the same times, and come to the same shares by
 * arithmetic: nobody decides, and nothing is sent for it.
 *
 *      pace      of a rank: seconds of a virtual worker, the median over a window of five steps, or
 *                of five tenths of a second, where steps are shorter
 *      wanted    the shares with the least time of the slowest: one after the other, each virtual
 *                worker goes to the rank that would be done with it first
 *      taken     if that saves enough of the time as it is, and the gradients fit into the memory
 *                that there is; where they do not, the best of the neighbouring ones that do
 *
 * One slow step, or two, change no median.  The window begins anew with every change, after the
 * first step, for which no data were there yet.
 */
#ifndef LKI_PARALLEL_BALANCE_H
#define LKI_PARALLEL_BALANCE_H

#include "parallel/strategy.h"

/* How many of `leaves` each rank gets, at least one, that takes `pace[r]` seconds for each. */
void lki_balance_counts(uint32_t *counts, uint32_t leaves, uint32_t ranks, const double *pace);

/* Says that so many seconds of the current turn went by in waiting for data. */
void lki_balance_waited(lk_parallel *parallel, double seconds);

/* What a rank took for its turns in the last step; the same on all ranks. */
lki_rank_time lki_balance_time(const lk_parallel *parallel, uint32_t rank);

/* Seconds of the rank that takes longest with these shares. */
double lki_balance_seconds(const uint32_t *bounds, uint32_t ranks, const double *pace);

/* As options say; LK_EUNSUPPORTED says why shares cannot move.  Before the strategy is attached;
 * closing accepts what was not opened. */
LK_NODISCARD lk_status lki_balance_open(lk_parallel *parallel, const lk_parallel_options *options);
void                   lki_balance_close(lk_parallel *parallel);

/* All reports of the step are there: what each rank has taken. */
void lki_balance_hear(lk_parallel *parallel);

/* The step is over for all: out: how many virtual workers have another rank from here on. */
LK_NODISCARD lk_status lki_balance_settle(lk_parallel *parallel, uint32_t *moved);

#endif
