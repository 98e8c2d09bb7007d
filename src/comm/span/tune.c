/* tune.c -- measuring the constants of cost.c, and explaining its choices.
 *
 * Two ranks take part: rank 0 and the first rank on another host.  They send one small message at a
 * time, which takes a round trip (a send is complete when the receiver has received the message).
 * Then they send several small messages at once, and large ones in both directions at once, as most
 * algorithms do.  The fastest of a few tries counts, because slower ones were disturbed.  Half a
 * round trip is alpha.  The additional time for each of several messages is omega.  The additional
 * time of a large message over a smaller one, per byte, is beta.
 *
 * Cost: some 70 messages, and 2 MiB each way, between two ranks; the other ranks wait.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/memory.h"
#include "comm/group/engine.h"
#include "comm/span/span.h"
#include "comm/span/tuning.h"
#include "device/combine.h"

enum {
    SMALL       = 8,
    TRIES       = 12,
    BURST       = 16,
    BURST_TRIES = 3,
    LARGE       = 512 << 10,
    LESS        = 128 << 10,
    LARGE_TRIES = 3,
    SUMMED      = LARGE
};

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The two ranks that measure: rank 0 and `peer`. */
typedef struct {
    lk_comm       *comm;
    uint32_t       peer;
    unsigned char *data; /* 2 * LARGE bytes */
} pair;

/* Sends `count` messages at once from rank 0 and, with `both`, in the other direction. *seconds
 * becomes the time until all messages are complete. */
static lk_status exchange(const pair *p, size_t bytes, uint32_t count, bool both, double *seconds)
{
    lk_request *requests[2 * BURST] = { NULL };
    uint32_t    other = p->comm->rank == 0 ? p->peer : 0, open = both ? 2 * count : count;
    double      began = now();
    lk_status   st    = LK_OK;

    for (uint32_t i = 0; i < open && st == LK_OK; i++) {
        bool sends = (p->comm->rank == 0) == (i < count);
        st = sends ? lk_send_start(&requests[i], p->comm, p->data, bytes, other)
                   : lk_recv_start(&requests[i], p->comm, p->data + LARGE, bytes, other);
    }
    for (uint32_t i = 0; i < open && st == LK_OK; i++)
        st = lk_request_wait(requests[i]);
    for (uint32_t i = 0; i < open; i++)
        lk_request_free(requests[i]);
    *seconds = now() - began;
    return st;
}

static lk_status fastest(const pair *p, size_t bytes, uint32_t count, bool both, uint32_t tries,
                         double *out)
{
    *out = HUGE_VAL;
    for (uint32_t i = 0; i < tries; i++) {
        double seconds;
        LK_TRY(exchange(p, bytes, count, both, &seconds));
        *out = fmin(*out, seconds);
    }
    return LK_OK;
}

static double summing(unsigned char *data)
{
    const void *from[2] = { data, data + SUMMED };
    double      least   = HUGE_VAL;

    memset(data, 0, 2 * SUMMED);
    for (int i = 0; i < TRIES; i++) {
        double began = now();
        lki_combine(LK_F32, LK_SUM, 2, from, SUMMED / sizeof(float), data);
        least = fmin(least, now() - began);
    }
    return least / (2 * SUMMED);
}

static lk_status measure(const pair *p, lki_model *out)
{
    double one, several, less, large;

    LK_TRY(fastest(p, SMALL, 1, false, TRIES, &one));
    LK_TRY(fastest(p, SMALL, BURST, false, BURST_TRIES, &several));
    LK_TRY(fastest(p, LESS, 1, true, LARGE_TRIES, &less));
    LK_TRY(fastest(p, LARGE, 1, true, LARGE_TRIES, &large));
    out->omega = fmax((several - one) / (BURST - 1), 1e-8);
    out->alpha = fmax(one / 2, 1e-7);
    out->beta  = fmax((large - less) / (LARGE - LESS), 1e-12);
    out->gamma = fmax(summing(p->data), out->gamma); /* received data is not in a near cache, so the
                                                      * slower rate is used */
    return LK_OK;
}

/* Refuses to replace a file that is no table of constants, before anything is measured. */
static lk_status check_output(const char *path)
{
    lki_model   unused;
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0 ||
        lki_model_read_whole(&unused, path) == LK_OK)
        return LK_OK;
    return lk_fail(LK_EINVAL, "'%s' is a file of another kind, and would be overwritten: give "
                              "another one, or remove it", path);
}

lk_status lk_comm_tune(lk_comm *comm, const char *path)
{
    lki_tuning *tuning = &comm->self->tuning;
    lki_model   model  = tuning->model;
    pair        p      = { .comm = comm };
    lk_status   st     = LK_OK;

    if (comm->span == NULL)
        return lk_fail(LK_EINVAL, "tune: all ranks are on one host, where sizes and places choose");
    if (comm->rank == 0 && path != NULL)
        st = check_output(path);
    LK_TRY(lki_agree(comm, st));
    p.peer = comm->span->map.hosts == 1 ? 0 : comm->span->map.ranks[comm->span->map.first_of[1]];
    LK_TRY(LKI_NEW(&p.data, (size_t)2 * LARGE, "messages to measure"));
    if (p.peer != 0 && (comm->rank == 0 || comm->rank == p.peer))
        st = measure(&p, &model);
    lki_free(p.data);
    LK_TRY(st);
    if (comm->rank == 0 && path != NULL)
        st = lki_model_write(&model, path);
    LK_TRY(lki_agree(comm, st));
    LK_TRY(lk_broadcast(comm, &model, sizeof model, 0));
    tuning->model = model;
    (void)snprintf(tuning->source, sizeof tuning->source, "measured");
    return LK_OK;
}

/* ---- Explaining choices ------------------------------------------------------------------ */

static lki_problem any_problem(const lk_comm *comm)
{
    return (lki_problem){ .rank   = comm->rank,
                          .size   = comm->size,
                          .each   = lki_span_each(comm),
                          .dtype  = LK_F32,
                          .op     = LK_SUM,
                          .width  = sizeof(float),
                          .bytes  = sizeof(float),
                          .window = SIZE_MAX,
                          .hosts  = lk_comm_hosts(comm),
                          .branches = lk_comm_hosts(comm),
                          .native = lki_engine_serves(comm->self->engine, comm) };
}

lk_status lk_comm_set_algorithms(lk_comm *comm, const char *algorithms)
{
    const lki_problem here = any_problem(comm);

    return lki_tuning_force(&comm->self->tuning, algorithms, comm->span != NULL ? &here : NULL);
}

static lk_status problem_of(lki_problem *out, const lk_comm *comm, const char *operation,
                            size_t bytes)
{
    uint32_t kind;
    bool     divided;

    LK_TRY(lki_tuning_find(&kind, &divided, operation));
    *out       = any_problem(comm);
    out->kind  = (lki_op_kind)kind;
    out->bytes = lki_round_up(divided ? bytes / comm->size : bytes, sizeof(float));
    return LK_OK;
}

/* Lists the algorithms if all ranks share memory.  The sizes and locations of buffers then
 * determine the algorithm, unless the user has selected MPI's algorithm by name. */
static void explain_here(const lk_comm *comm, const lki_problem *problem, lk_algorithm *out,
                         uint32_t capacity, uint32_t *count)
{
    const lki_method *forced = comm->self->tuning.forced[problem->kind];
    bool              native = forced == &lki_method_native, sums = lki_tuning_sums(problem->kind);

    *count = lki_method_native.can(problem) ? 2 : 0;
    if (*count > 0 && capacity > 0)
        out[0] = (lk_algorithm){ lki_method_direct.name, true, !native, 0 };
    if (*count > 0 && capacity > 1)
        out[1] = (lk_algorithm){ lki_method_native.name, !sums, native, 0 };
}

lk_status lk_comm_explain(const lk_comm *comm, const char *operation, size_t bytes,
                          lk_algorithm *out, uint32_t capacity, uint32_t *count)
{
    lki_problem problem;

    *count = 0;
    LK_TRY(lki_check_given("explain", "operation", operation, 1));
    LK_TRY(lki_check_given("explain", "out", out, capacity));
    LK_TRY(problem_of(&problem, comm, operation, bytes));
    if (comm->span == NULL) {
        explain_here(comm, &problem, out, capacity, count);
        return LK_OK;
    }
    const lki_tuning *tuning = &comm->self->tuning;
    const lki_method *chosen = lki_tuning_choose(tuning, &problem);
    bool              sums   = lki_tuning_sums(problem.kind);
    for (size_t i = 0; lki_methods[i] != NULL; i++) {
        const lki_method *method = lki_methods[i];
        if (!method->can(&problem))
            continue;
        if (*count < capacity)
            out[*count] = (lk_algorithm){ .name    = method->name,
                                          .exact   = method->exact || !sums,
                                          .chosen  = method == chosen,
                                          .seconds = lki_tuning_seconds(tuning, method,
                                                                        &problem) };
        ++*count;
    }
    return LK_OK;
}
