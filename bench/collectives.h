/* collectives.h -- tasks, inputs, timing and verification for the drivers of bench/collectives.
 *
 * Every rank reads tasks from one pipe and answers through another.  So a driver sleeps between its
 * turns and leaves the machine to the other drivers.  A task is one line,
 *
 *     WAY OP DTYPE BYTES CALLS ROUNDS       arena all_reduce fp32 4096 100 20
 *
 * and its answer is one line: the nanoseconds per call in each round, or the reason why there are
 * none.  BYTES is the size of the whole vector: each buffer of all_reduce, the input of
 * reduce_scatter, and the output of all_gather.
 *
 * Before each call a rank writes its input.  Up to SMALL_BYTES the time of a call includes this
 * writing, because reading the clock would take longer.  Above SMALL_BYTES the time begins after
 * the writing, and the cost of the clock is subtracted.  Above MEDIUM_BYTES ranks also meet after
 * the writing, so that a rank's call does not wait for another rank's writing.
 */
#ifndef LK_BENCH_COLLECTIVES_H
#define LK_BENCH_COLLECTIVES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SMALL_BYTES = 512, MEDIUM_BYTES = 4096, ROUNDS_MAX = 1000, WARM_UP = 2 };

typedef enum { OP_ALL_REDUCE, OP_REDUCE_SCATTER, OP_ALL_GATHER } task_op;

typedef struct {
    char     way[16], op_name[16], dtype[16];
    task_op  op;
    bool     bf16;
    size_t   bytes, width;         /* bytes of the whole vector; bytes of an element */
    /* elements of a part, of a rank's input and of a rank's output */
    size_t   part, input, output;
    uint32_t calls, rounds;
} task;

typedef struct driver driver;
struct driver {
    uint32_t       rank, size;
    size_t         bytes_max;
    unsigned char *send, *recv; /* buffers of the task, set by begin() */
    /* Inputs of small tasks, for each type, that begin at element 0 to 7.  serve() fills them. */
    float    row[SMALL_BYTES / sizeof(float) + 8];
    uint16_t row16[SMALL_BYTES / sizeof(uint16_t) + 8];
    /* Prepares a task.  Returns NULL, or the reason why the task is impossible. */
    const char *(*begin)(driver *d, const task *t);
    void (*barrier)(driver *d);
    void (*call)(driver *d, const task *t);
    /* returns true if the results of the last call are correct */
    bool (*right)(const driver *d, const task *t);
    void *own;
};

/* ---- Tasks ------------------------------------------------------------------------------- */

static inline const char *task_read(task *t, const driver *d, const char *line)
{
    static const char *const ops[] = { "all_reduce", "reduce_scatter", "all_gather" };

    if (sscanf(line, "%15s %15s %15s %zu %u %u", t->way, t->op_name, t->dtype, &t->bytes, &t->calls,
               &t->rounds) != 6)
        return "not a task";
    size_t op = 0;
    while (op < 3 && strcmp(ops[op], t->op_name) != 0)
        op++;
    if (op == 3 || t->bytes > d->bytes_max || t->rounds > ROUNDS_MAX)
        return "no such operation, or too much of it";
    t->op    = (task_op)op;
    t->bf16  = strcmp(t->dtype, "bf16") == 0;
    t->width = t->bf16 ? 2 : 4;

    size_t whole = t->bytes / t->width;
    t->part      = whole / d->size;
    t->input     = t->op == OP_ALL_GATHER ? t->part : whole;
    t->output    = t->op == OP_REDUCE_SCATTER ? t->part : whole;
    return NULL;
}

/* ---- Inputs and results ------------------------------------------------------------------ */

/* Returns small whole numbers, whose sums are exact in any order, even in 16 bits. */
static inline uint32_t input_of(uint32_t rank, size_t element, uint32_t call)
{
    return ((uint32_t)element + 3 * rank + call) % 8;
}

static inline uint16_t bf16_of(uint32_t value)
{
    float    x = (float)(int32_t)value;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static inline void write_input(const driver *d, const task *t, uint32_t call)
{
    uint32_t first = 3 * d->rank + call;

    if (t->bytes <= SMALL_BYTES) {
        const void *row = t->bf16 ? (const void *)(d->row16 + first % 8) : d->row + first % 8;
        memcpy(d->send, row, t->input * t->width);
    } else if (t->bf16) {
        uint16_t *x = (uint16_t *)(void *)d->send;
        for (uint32_t i = 0; i < t->input; i++)
            x[i] = bf16_of((i + first) % 8);
    } else {
        float *x = (float *)(void *)d->send;
        for (uint32_t i = 0; i < t->input; i++)
            x[i] = (float)(int32_t)((i + first) % 8); /* one instruction, unlike for uint32_t */
    }
}

static inline uint32_t expected(const driver *d, const task *t, size_t i, uint32_t call)
{
    uint32_t sum = 0;

    if (t->op == OP_ALL_GATHER)
        return input_of((uint32_t)(i / t->part), i % t->part, call);
    for (uint32_t rank = 0; rank < d->size; rank++)
        sum += input_of(rank, t->op == OP_REDUCE_SCATTER ? i + d->rank * t->part : i, call);
    return sum;
}

static inline bool is_right(const driver *d, const task *t, uint32_t call)
{
    const unsigned char *result = d->recv;

    for (size_t i = 0; i < t->output; i++) {
        uint32_t value = expected(d, t, i, call);
        float    x     = (float)value;
        uint16_t h     = bf16_of(value);
        if (memcmp(result + i * t->width, t->bf16 ? (void *)&h : (void *)&x, t->width) != 0)
            return false;
    }
    return true;
}

/* ---- Timing ------------------------------------------------------------------------------ */

static inline double now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Returns the cost of two readings of the clock, in nanoseconds. */
static inline double clock_cost_ns(void)
{
    enum { READINGS = 10000 };
    double began = now_ns(), last = began;

    for (int i = 0; i < READINGS; i++)
        last = now_ns();
    return (last - began) / READINGS;
}

/* Returns the nanoseconds per call in one round.  A round begins with a barrier. */
static inline double round_ns(driver *d, const task *t, double clock_cost)
{
    double inside = 0;

    d->barrier(d);
    double began = now_ns();
    for (uint32_t call = 0; call < t->calls; call++) {
        write_input(d, t, call);
        if (t->bytes <= SMALL_BYTES) {
            d->call(d, t);
            continue;
        }
        if (t->bytes > MEDIUM_BYTES)
            d->barrier(d);
        double from = now_ns();
        d->call(d, t);
        inside += now_ns() - from - clock_cost;
    }
    return (t->bytes <= SMALL_BYTES ? now_ns() - began : inside) / t->calls;
}

static inline void answer(driver *d, const task *t, FILE *out)
{
    static double times[ROUNDS_MAX];
    double        clock_cost = clock_cost_ns();

    for (int i = -WARM_UP; i < (int)t->rounds; i++) {
        double ns            = round_ns(d, t, clock_cost);
        times[i < 0 ? 0 : i] = ns;
    }
    if (!d->right(d, t)) {
        fprintf(out, "a result was wrong\n");
        return;
    }
    for (uint32_t i = 0; i < t->rounds; i++)
        fprintf(out, "%.1f ", times[i]);
    fprintf(out, "\n");
}

/* Serves tasks until the pipe ends.  `pipes` is the path of both pipes without ".RANK.in" and
 * ".RANK.out". */
static inline int serve(driver *d, const char *pipes)
{
    char path[2][512], line[256];

    snprintf(path[0], sizeof path[0], "%s.%u.in", pipes, d->rank);
    snprintf(path[1], sizeof path[1], "%s.%u.out", pipes, d->rank);
    FILE *in = fopen(path[0], "re"), *out = fopen(path[1], "we");
    for (uint32_t i = 0; i < sizeof d->row / sizeof d->row[0]; i++)
        d->row[i] = (float)(i % 8);
    for (uint32_t i = 0; i < sizeof d->row16 / sizeof d->row16[0]; i++)
        d->row16[i] = bf16_of(i % 8);
    if (in == NULL || out == NULL) {
        fprintf(stderr, "cannot open %s and .out\n", path[0]);
        return 1;
    }
    fprintf(out, "ready\n");
    (void)fflush(out);
    while (fgets(line, sizeof line, in) != NULL && strcmp(line, "end\n") != 0) {
        task        t   = { .width = 4 };
        const char *why = task_read(&t, d, line);
        if (why == NULL)
            why = d->begin(d, &t);
        if (why == NULL)
            answer(d, &t, out);
        else
            fprintf(out, "%s\n", why);
        (void)fflush(out);
    }
    (void)fclose(in);
    return fclose(out) == 0 ? 0 : 1;
}

#endif
