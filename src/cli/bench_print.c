/* bench_print.c -- prints the results of `lockstep bench OP`, one line per size, as text or
 * JSON. */
#include "cli/bench_ops.h"

static double median_of(const bench_timing *t)
{
    return t->times[t->rounds / 2];
}

static double p99_of(const bench_timing *t)
{
    return t->times[(t->rounds * 99 + 99) / 100 - 1];
}

/* Returns the number of bytes that were moved.  This number may be less than the requested size,
 * because a part has whole elements. */
static uint64_t bytes_of(const bench *b)
{
    return (uint64_t)b->count * b->width;
}

/* Prints the fields with which every JSON line begins. */
static void print_json(const bench_timing *t, const lk_algorithm *a)
{
    const bench *b     = &t->bench;
    uint64_t     bytes = bytes_of(b);
    double       alg   = bench_factor(b) > 0 ? (double)bytes / median_of(t) / 1e9 : 0;

    printf("{\"op\": \"%s\", \"workers\": %u, \"hosts\": %u, \"dtype\": \"%s\", "
           "\"bytes\": %llu, \"algorithm\": \"%s\", \"exact\": %s, \"median_us\": %.3f, "
           "\"p99_us\": %.3f, \"algbw_gb_s\": %.6g, \"busbw_gb_s\": %.6g",
           b->kind->name, b->ranks, lk_comm_hosts(b->comm), t->options->dtype,
           (unsigned long long)bytes, a->name, a->exact ? "true" : "false", 1e6 * median_of(t),
           1e6 * p99_of(t), alg, alg * bench_factor(b));
}

void bench_print_size(const bench_timing *t, const lk_algorithm *a, bool right)
{
    uint64_t bytes = bytes_of(&t->bench);
    double   alg   = bench_factor(&t->bench) > 0 ? (double)bytes / median_of(t) / 1e9 : 0;

    if (t->options->json) {
        print_json(t, a);
        printf(", \"verified\": %s}\n", right ? "true" : "false");
    } else {
        printf("%12llu  %-13s %12.2f %12.2f %10.2f %10.2f  %s%s\n", (unsigned long long)bytes,
               a->name, 1e6 * median_of(t), 1e6 * p99_of(t), alg, alg * bench_factor(&t->bench),
               right ? "yes" : "NO", a->exact ? "" : "    timed");
    }
    (void)fflush(stdout);
}

/* Prints a size with its predicted time, if the model covers the algorithm. */
void bench_print_prediction(const bench_timing *t, const lk_algorithm *a, bool right)
{
    bool known = a->seconds > 0;
    char predicted[32];

    (void)snprintf(predicted, sizeof predicted, "%.*f", t->options->json ? 3 : 2,
                   1e6 * a->seconds);
    if (t->options->json) {
        print_json(t, a);
        printf(", \"predicted_us\": %s, \"chosen\": %s, \"verified\": %s}\n",
               known ? predicted : "null", a->chosen ? "true" : "false", right ? "true" : "false");
    } else {
        printf("%12llu  %-13s %5s %12s %12.2f  %s%s\n", (unsigned long long)bytes_of(&t->bench),
               a->name, a->exact ? "yes" : "no", known ? predicted : "-", 1e6 * median_of(t),
               right ? "yes" : "NO", a->chosen ? "    chosen" : "");
    }
    (void)fflush(stdout);
}

/* Prints the constants that select an algorithm, or why there is no choice. */
static void print_grounds(const bench_timing *t)
{
    const bench *b = &t->bench;

    if (lk_comm_hosts(b->comm) == 1 && t->options->mpi)
        printf("no predictions: on one host ranks share memory; native is MPI's own\n");
    else if (lk_comm_hosts(b->comm) == 1)
        printf("no choice: on one host ranks share memory; sizes and places decide its use\n");
    else if (b->kind->way != NULL)
        printf("no choice: %s has one algorithm\n", b->kind->name);
    else
        printf("constants: %s\n", lk_comm_tuning(b->comm));
}

void bench_print_heading(const bench_timing *t)
{
    const bench *b = &t->bench;

    if (b->rank != 0 || t->options->json)
        return;
    printf("%s, %u workers on %u host%s, %s\n", b->kind->name, b->ranks, lk_comm_hosts(b->comm),
           lk_comm_hosts(b->comm) == 1 ? "" : "s", t->options->dtype);
    if (t->options->explain) {
        print_grounds(t);
        printf("%12s  %-13s %5s %12s %12s  %s\n", "bytes", "algorithm", "exact", "predicted us",
               "median us", "right");
    } else
        printf("%12s  %-13s %12s %12s %10s %10s  %s\n", "bytes", "algorithm", "median us",
               "p99 us", "alg GB/s", "bus GB/s", "right");
}
