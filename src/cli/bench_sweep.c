/* bench_sweep.c -- times training steps with several sizes of buckets.
 *
 * The sizes are measured in ascending and then in descending order.  So a machine that becomes
 * slower or faster does not favour a size.  The faster of the two runs of a size counts.
 */
#include "cli/bench_sweep.h"

#include <stdio.h>

#include "lockstep/plan.h"

enum { DEFAULT_BYTES = 25 << 20 };

/* A size is recommended only if it takes at most this part of the default's time in every pass. */
static const double clearly = 0.98;

/* In ascending order. */
static const size_t sizes[LKI_SWEEP_SIZES] = { 256 << 10, 1 << 20,  4 << 20,  10 << 20,
                                               25 << 20,  50 << 20, 100 << 20 };

static double mebibytes(const lki_sweep *sweep, uint32_t i)
{
    return (double)sweep->bytes[i] / (1 << 20);
}

void lki_sweep_choose(lki_sweep *sweep, lk_train_config *config, uint32_t hosts, bool all)
{
    lk_train_cost cost;
    size_t        most = SIZE_MAX;

    if (lk_train_estimate(config, hosts, &cost) == LK_OK && !all)
        most = 2 * sizeof(float) * cost.parameters; /* one bucket, even if all are used twice */
    for (uint32_t i = 0; i < LKI_SWEEP_SIZES; i++)
        if (sizes[i] < most || sizes[i] == DEFAULT_BYTES)
            sweep->bytes[sweep->count++] = sizes[i];
}

int lki_sweep_measure(lki_sweep *sweep, lki_sweep_measure_fn measure, void *context)
{
    int result = 0;

    for (uint32_t k = 0; result == 0 && k < LKI_SWEEP_PASSES * sweep->count; k++) {
        const uint32_t pass = k / sweep->count, at = k % sweep->count;
        const uint32_t i    = pass % 2 == 0 ? at : sweep->count - 1 - at;
        result = measure(context, sweep->bytes[i], &sweep->medians[i][pass]);
    }
    return result;
}

/* ---- Output ------------------------------------------------------------------------------ */

static double faster(const lki_sweep *sweep, uint32_t i)
{
    const double *m = sweep->medians[i];
    return m[0] < m[1] ? m[0] : m[1];
}

static uint32_t default_of(const lki_sweep *sweep)
{
    uint32_t i = 0;
    while (sweep->bytes[i] != DEFAULT_BYTES)
        i++;
    return i;
}

uint32_t lki_sweep_best(const lki_sweep *sweep)
{
    const uint32_t usual = default_of(sweep);
    uint32_t       best  = usual;

    for (uint32_t i = 0; i < sweep->count; i++) {
        bool better = faster(sweep, i) < faster(sweep, best);
        for (uint32_t pass = 0; pass < LKI_SWEEP_PASSES; pass++)
            better = better && sweep->medians[i][pass] <= clearly * sweep->medians[usual][pass];
        best = better ? i : best;
    }
    return best;
}

static void print_row(const lki_sweep *sweep, uint32_t i, double ratio, bool best, bool json)
{
    const double *m = sweep->medians[i];

    if (json)
        printf("{\"bucket_mb\": %g, \"median_ms\": %.6f, \"medians_ms\": [%.6f, %.6f], "
               "\"of_default\": %.4f, \"best\": %s}\n", mebibytes(sweep, i),
               1e3 * faster(sweep, i), 1e3 * m[0], 1e3 * m[1], ratio, best ? "true" : "false");
    else
        printf("%12g %10.3f   %10.3f %10.3f %12.2f\n", mebibytes(sweep, i),
               1e3 * faster(sweep, i), 1e3 * m[0], 1e3 * m[1], ratio);
}

void lki_sweep_print(const lki_sweep *sweep, const lk_train_config *config, bool json)
{
    const uint32_t usual = default_of(sweep), best = lki_sweep_best(sweep);
    if (!json && config->virtual_workers > 0)
        printf("%s, batch %u as V %u x %u: %u x %u threads, %llu steps after %llu, twice\n",
               config->model, config->global_batch, config->virtual_workers,
               config->global_batch / config->virtual_workers, config->workers,
               config->threads > 0 ? config->threads : 1,
               (unsigned long long)(config->steps - config->warm_up),
               (unsigned long long)config->warm_up);
    if (!json)
        printf("%12s %10s   %21s %12s\n", "bucket, MiB", "step, ms", "median of each run",
               "of default's");
    for (uint32_t i = 0; i < sweep->count; i++)
        print_row(sweep, i, faster(sweep, i) / faster(sweep, usual), i == best, json);
    if (!json && best == usual)
        printf("best: --bucket-mb 25, the default: no other size takes at most %.2f of its time in "
               "both runs\n", clearly);
    else if (!json)
        printf("best: --bucket-mb %g\n", mebibytes(sweep, best));
}
