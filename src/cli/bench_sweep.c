/* bench_sweep.c -- times training steps with several sizes of buckets.
 *
 * All sizes are measured by the same workers, one after another, in ascending and then in
 * descending order.  So a machine that becomes slower or faster does not favour a size.  The faster
 * of the two runs of a size counts.
 */
#include "cli/bench_sweep.h"

#include <stdio.h>
#include <string.h>

#include "lockstep/plan.h"

enum { DEFAULT_BYTES = 25 << 20 };

/* A size is recommended only if it takes at most this part of the default's time in every pass. */
static const double clearly = 0.98;

/* In ascending order. */
static const size_t sizes[LKI_SWEEP_SIZES] = { 256 << 10, 1 << 20,  4 << 20,  10 << 20,
                                               25 << 20,  50 << 20, 100 << 20 };

/* Returns the number of bytes from which on all sizes make one bucket, even if every parameter has
 * two gradients.  On failure, returns SIZE_MAX. */
static size_t bytes_of_all(const lk_comm *comm, const lk_train_config *config)
{
    lk_train_config copy = *config;
    lk_train_cost   cost;

    if (lk_train_estimate(&copy, lk_comm_hosts(comm), &cost) != LK_OK)
        return SIZE_MAX;
    return 2 * sizeof(float) * cost.parameters;
}

/* Rank 0 chooses the sizes for all ranks: the default, and those that differ from one bucket. */
static lk_status choose_sizes(lki_sweep *sweep, lk_comm *comm, const lk_train_config *config)
{
    const size_t most = lk_comm_rank(comm) == 0 ? bytes_of_all(comm, config) : 0;

    for (uint32_t i = 0; i < LKI_SWEEP_SIZES; i++)
        if (sizes[i] < most || sizes[i] == DEFAULT_BYTES)
            sweep->bytes[sweep->count++] = sizes[i];
    lk_status status = lk_broadcast(comm, sweep->bytes, sizeof sweep->bytes, 0);
    return status == LK_OK ? lk_broadcast(comm, &sweep->count, sizeof sweep->count, 0) : status;
}

lk_status lki_sweep_run(lki_sweep *sweep, lk_comm *comm, const lk_train_config *config,
                        lk_train_result *result)
{
    lki_sweep mine   = { .count = 0 }; /* ranks that are threads share `sweep` */
    lk_status status = choose_sizes(&mine, comm, config);

    if (status == LK_OK && lk_comm_rank(comm) == 0)
        *sweep = mine;
    const uint32_t runs = LKI_SWEEP_PASSES * mine.count;
    for (uint32_t k = 0; k < runs && status == LK_OK; k++) {
        const uint32_t  pass = k / mine.count, at = k % mine.count;
        const uint32_t  i    = pass % 2 == 0 ? at : mine.count - 1 - at;
        lk_train_config run  = *config;
        run.bucket_bytes     = mine.bytes[i];
        run.calls.done       = k + 1 == runs ? config->calls.done : NULL;
        memset(result, 0, sizeof *result);
        status = lk_train_run(comm, &run, result);
        if (status == LK_OK && lk_comm_rank(comm) == 0)
            sweep->medians[i][pass] = config->report->median;
    }
    return status;
}

/* ---- Output ------------------------------------------------------------------------------ */

static double mebibytes(const lki_sweep *sweep, uint32_t i)
{
    return (double)sweep->bytes[i] / (1 << 20);
}

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

void lki_sweep_print(lki_sweep *sweep, const lk_train_config *config, double last, bool json)
{
    sweep->medians[LKI_SWEEP_PASSES % 2 == 0 ? 0 : sweep->count - 1][LKI_SWEEP_PASSES - 1] = last;
    const uint32_t usual = default_of(sweep), best = lki_sweep_best(sweep);
    if (!json) {
        printf("%s, batch %u as V %u x %u: %u x %u threads, %llu steps after %llu, twice\n",
               config->model, config->global_batch, config->virtual_workers,
               config->global_batch / config->virtual_workers, config->workers,
               config->threads > 0 ? config->threads : 1,
               (unsigned long long)(config->steps - config->warm_up),
               (unsigned long long)config->warm_up);
        printf("%12s %10s   %21s %12s\n", "bucket, MiB", "step, ms", "median of each run",
               "of default's");
    }
    for (uint32_t i = 0; i < sweep->count; i++)
        print_row(sweep, i, faster(sweep, i) / faster(sweep, usual), i == best, json);
    if (!json && best == usual)
        printf("best: --bucket-mb 25, the default: no other size takes at most %.2f of its time in "
               "both runs\n", clearly);
    else if (!json)
        printf("best: --bucket-mb %g\n", mebibytes(sweep, best));
}
