/* cli/bench_sweep.h -- `lockstep bench step --sweep bucket`: the time of a step for several sizes
 * of buckets. */
#ifndef LKI_CLI_BENCH_SWEEP_H
#define LKI_CLI_BENCH_SWEEP_H

#include "lockstep/train.h"

enum { LKI_SWEEP_SIZES = 7, LKI_SWEEP_PASSES = 2 };

/* Sizes and measured times.  Zeroed, it is empty. */
typedef struct {
    size_t   bytes[LKI_SWEEP_SIZES];
    uint32_t count;
    double   medians[LKI_SWEEP_SIZES][LKI_SWEEP_PASSES]; /* seconds; on rank 0 only */
} lki_sweep;

/* Runs config->steps steps with each size, LKI_SWEEP_PASSES times.  Collective.  Calls
 * config->calls.done in the last run only, before the time of that run is known. */
LK_NODISCARD lk_status lki_sweep_run(lki_sweep *sweep, lk_comm *comm,
                                     const lk_train_config *config, lk_train_result *result);

/* Returns the index of the fastest size that takes at most 0.98 of the default's time in every
 * pass, or else of the default. */
uint32_t lki_sweep_best(const lki_sweep *sweep);

/* Prints the times, the best size and the option that sets it.  `last` is the median of the last
 * run. */
void lki_sweep_print(lki_sweep *sweep, const lk_train_config *config, double last, bool json);

#endif
