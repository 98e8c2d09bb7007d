/* parallel/balance.h -- shares of virtual workers that match the speed of ranks.
 *
 * The result of a virtual worker does not depend on the rank that runs it, so shares may change
 * between two steps without changing a bit.  Each rank measures the time of its turns by its own
 * clock, excluding waits for other ranks, and sends the time with the losses.  So all ranks have
 * the same times and compute the same shares without another message.
 *
 *      pace      of a rank: seconds for one virtual worker, the median over a window of five
 *                intervals.  An interval is one step, or as many short steps as take a tenth of a
 *                second
 *      wanted    the shares with the shortest time of the slowest rank.  Each virtual worker in
 *                turn is assigned to the rank that would finish it first
 *      taken     the wanted shares, if they save enough time and the gradients fit into the
 *                allocated memory; otherwise the best neighbouring shares for which they fit
 *
 * One or two slow steps do not change a median.  The window is emptied by every change of shares,
 * and after the first step, for which no data were prefetched.
 */
#ifndef LKI_PARALLEL_BALANCE_H
#define LKI_PARALLEL_BALANCE_H

#include "lockstep/parallel.h"
#include "parallel/virtual.h"

/* The time that a rank spent on its turns in a step, by its own clock, excluding waits for other
 * ranks.  Zero if lost ranks computed a part of the step. */
typedef struct {
    /* dropped: number of virtual workers of the rank's share that did not count */
    uint32_t virtual_workers, dropped;
    double   seconds, data;            /* data: the part of `seconds` spent waiting for data */
    uint64_t samples;                  /* number of samples that count */
    /* seconds for one virtual worker when shares last moved; 0: they have never moved */
    double   pace;
} lki_rank_time;

/* Returns the assignment of virtual workers to ranks.  It is valid until a step moves virtual
 * workers. */
const lki_dealing *lki_parallel_dealing(const lk_parallel *parallel);

/* Computes how many of `leaves` virtual workers each rank gets, at least one.  pace[r] is the time
 * that rank r takes for one virtual worker, in seconds. */
void lki_balance_counts(uint32_t *counts, uint32_t leaves, uint32_t ranks, const double *pace);

/* Returns the time that a rank spent on its turns in the last step; equal on all ranks. */
lki_rank_time lki_balance_time(const lk_parallel *parallel, uint32_t rank);

/* Returns the seconds that the slowest rank takes with these shares. */
double lki_balance_seconds(const uint32_t *bounds, uint32_t ranks, const double *pace);

#endif
