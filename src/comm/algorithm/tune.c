/* tune.c -- measuring what cost.c multiplies with, and telling what it would choose.
 *
 * Rank 0 sends to the first rank on another host: one small message at a time, which takes there
 * and back (a send is complete when it is taken); several at once; and large ones.  The fastest of
 * a few counts: what is slower had something else in its way.  That is a round trip, or twice
 * alpha; what each of several adds is omega; what remains of a large one, by its bytes, is beta.
 *
 * Cost: some 50 messages, and 3 MiB, between two ranks; the others wait.
 */
#include <math.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "comm/engine.h"
#include "comm/span/span.h"
#include "device/combine.h"

enum { SMALL = 8, TRIES = 12, BURST = 16, LARGE = 1 << 20, LARGE_TRIES = 3, SUMMED = 1 << 19 };

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* `count` messages at once from rank 0, or taken by `peer`; the time that takes. */
static lk_status exchange(lk_comm *comm, uint32_t peer, unsigned char *data, size_t bytes,
                          uint32_t count, double *seconds)
{
    lk_request *requests[BURST] = { NULL };
    double      began           = now();
    lk_status   st              = LK_OK;

    for (uint32_t i = 0; i < count && st == LK_OK; i++)
        st = comm->rank == 0 ? lk_send_start(&requests[i], comm, data, bytes, peer)
                             : lk_recv_start(&requests[i], comm, data, bytes, 0);
    for (uint32_t i = 0; i < count && st == LK_OK; i++)
        st = lk_request_wait(requests[i]);
    for (uint32_t i = 0; i < count; i++)
        lk_request_free(requests[i]);
    *seconds = now() - began;
    return st;
}

static lk_status fastest(lk_comm *comm, uint32_t peer, unsigned char *data, size_t bytes,
                         uint32_t count, uint32_t tries, double *out)
{
    *out = HUGE_VAL;
    for (uint32_t i = 0; i < tries; i++) {
        double seconds;
        LK_TRY(exchange(comm, peer, data, bytes, count, &seconds));
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

static lk_status measure(lk_comm *comm, uint32_t peer, unsigned char *data, lki_model *out)
{
    double one, several, large;

    LK_TRY(fastest(comm, peer, data, SMALL, 1, TRIES, &one));
    LK_TRY(fastest(comm, peer, data, SMALL, BURST, LARGE_TRIES, &several));
    LK_TRY(fastest(comm, peer, data, LARGE, 1, LARGE_TRIES, &large));
    out->alpha = fmax(one / 2, 1e-7);
    out->omega = fmax((several - one) / (BURST - 1), 1e-8);
    out->beta  = fmax((large - one) / LARGE, 1e-12);
    out->gamma = fmax(summing(data), 1e-12);
    return LK_OK;
}

lk_status lk_comm_tune(lk_comm *comm, const char *path)
{
    lki_model      model = comm->self->tuning.model;
    unsigned char *data;
    lk_status      st = LK_OK;

    if (comm->span == NULL)
        return lk_fail(LK_EINVAL, "tune: all ranks are on one host, where sizes and places choose");
    uint32_t peer = comm->span->hosts == 1 ? 0 : comm->span->ranks[comm->span->first_of[1]];
    LK_TRY(lki_alloc((void **)&data, LARGE, "messages to measure"));
    if (peer != 0 && (comm->rank == 0 || comm->rank == peer))
        st = measure(comm, peer, data, &model);
    lki_free(data);
    LK_TRY(st);
    if (comm->rank == 0 && path != NULL)
        st = lki_model_write(&model, path);
    LK_TRY(lki_agree(comm, st));
    LK_TRY(lk_broadcast(comm, &model, sizeof model, 0));
    comm->self->tuning.model = model;
    return LK_OK;
}

lk_status lk_comm_set_algorithms(lk_comm *comm, const char *algorithms)
{
    return lki_tuning_force(&comm->self->tuning, algorithms);
}

/* ---- Telling ----------------------------------------------------------------------------- */

static lk_status problem_of(lki_problem *out, const lk_comm *comm, const char *operation,
                            size_t bytes)
{
    uint32_t kind;
    bool     divided;

    LK_TRY(lki_tuning_find(&kind, &divided, operation));
    *out = (lki_problem){ .kind   = (lki_op_kind)kind,
                          .rank   = comm->rank,
                          .size   = comm->size,
                          .each   = lki_span_each(comm),
                          .dtype  = LK_F32,
                          .op     = LK_SUM,
                          .width  = sizeof(float),
                          .bytes  = lki_round_up(divided ? bytes / comm->size : bytes,
                                                 sizeof(float)),
                          .window = SIZE_MAX,
                          .native = lki_engine_serves(comm->self->engine, comm) };
    return LK_OK;
}

/* Where all ranks share memory sizes and places choose, unless MPI is asked. */
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
