/* cli/bench_ops.h -- options and measurements of `lockstep bench OP`, and their printing. */
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
    bool        launched; /* a launcher has started this process as a worker */
    const char *algorithm, *tune;
    lki_nodes   nodes;
} bench_options;

typedef struct {
    const bench_options *options;
    bench                bench;
    uint32_t             rounds;
    double              *times; /* seconds per round: first those of this rank, then those of all
                                 * ranks */
} bench_timing;

/* Prints the heading of the table on rank 0.  Prints nothing with --json. */
void bench_print_heading(const bench_timing *t);

/* Prints a line for the measured size and algorithm. */
void bench_print_size(const bench_timing *t, const lk_algorithm *a, bool right);

/* Prints a line like bench_print_size(), with the predicted time. */
void bench_print_prediction(const bench_timing *t, const lk_algorithm *a, bool right);

#endif
