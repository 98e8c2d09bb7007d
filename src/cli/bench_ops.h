/* cli/bench_ops.h -- what `lockstep bench OP` was asked and has measured, and printing it. */
#ifndef LKI_CLI_BENCH_OPS_H
#define LKI_CLI_BENCH_OPS_H

#include "cli/bench.h"
#include "cli/nodes.h"

enum { BENCH_SIZES_MAX = 64 };

typedef struct {
    const char *op_name;
    uint32_t    workers, timeout_ms, iterations;
    const char *dtype, *flight;
    uint64_t    sizes[BENCH_SIZES_MAX];
    uint32_t    size_count;
    bool        json, foreign, explain, mpi;
    const char *algorithm, *tune;
    lki_nodes   nodes;
} bench_options;

typedef struct {
    const bench_options *options;
    bench                bench;
    uint32_t             rounds;
    double              *times; /* mine, then all ranks' */
} bench_timing;

/* On rank 0, unless JSON is wanted. */
void bench_print_heading(const bench_timing *t);

/* A line of the size that was measured, by `a`; the second beside its prediction. */
void bench_print_size(const bench_timing *t, const lk_algorithm *a, bool right);
void bench_print_prediction(const bench_timing *t, const lk_algorithm *a, bool right);

#endif
