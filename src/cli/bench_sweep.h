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
    double   medians[LKI_SWEEP_SIZES][LKI_SWEEP_PASSES]; /* seconds */
} lki_sweep;

/* Chooses the sizes for a model: the default and those that differ from one bucket, or `all`.
 * Completes *config as lk_train_check() does, if it is valid. */
void lki_sweep_choose(lki_sweep *sweep, lk_train_config *config, uint32_t hosts, bool all);

/* Times the steps with buckets of `bytes`.  Returns 0 or an error. */
typedef int (*lki_sweep_measure_fn)(void *context, size_t bytes, double *seconds);

/* Measures each size LKI_SWEEP_PASSES times.  Returns the first error of `measure`, or 0. */
int lki_sweep_measure(lki_sweep *sweep, lki_sweep_measure_fn measure, void *context);

/* Returns the index of the fastest size that takes at most 0.98 of the default's time in every
 * pass, or else of the default. */
uint32_t lki_sweep_best(const lki_sweep *sweep);

/* Prints the times, the best size and the option that sets it. */
void lki_sweep_print(const lki_sweep *sweep, const lk_train_config *config, bool json);

#endif
