/* parallel/crew_testing.h -- a crew of ranks that trains a small model, for tests that control
 * which rank computes which virtual worker.
 *
 * The crew runs on one host or several, and the result is a hash of all values.
 *
 * Gradients are pure functions of step, virtual worker and element, with a wide spread of
 * exponents, so that sums in different orders differ.  A test adds its own actions in the hooks.
 */
#ifndef LKI_PARALLEL_CREW_TESTING_H
#define LKI_PARALLEL_CREW_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/rng.h"
#include "comm/hosted_testing.h"
#include "parallel/state.h"
#include "parallel/parallel_testing.h"

enum { LKT_PARAMS = 3, LKT_LEAVES_MAX = 64, LKT_ELEMENTS_MAX = 50 * 90 };

typedef struct lkt_crew lkt_crew;

struct lkt_crew {
    const lk_param     *model; /* [LKT_PARAMS] */
    lk_parallel_options options;
    uint32_t            ranks, steps;
    uint32_t            first;       /* the first step */
    bool                values_only; /* the hash has no results of steps */
    hosted              hosts;    /* zero: a single host */
    bool                swapped;  /* exchanges virtual workers 1 and 2: a negative control */
    bool                stubborn; /* computes dropped turns to their end */

    /* (optional) Called on every rank before a step. */
    void (*at_step)(lkt_crew *w, lk_parallel *p, uint32_t step);
    /* (optional) Computes a turn in place of lkt_make_turn(). */
    void (*make)(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn);
    /* (optional) Called before a turn computes term number `term`. */
    void (*at_term)(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn,
                    uint32_t term);
    /* (optional) Called when the rank has finished its turns. */
    void (*at_turns)(lkt_crew *w, lk_parallel *p, uint32_t step);
    /* (optional) Called when the step is finished. */
    void (*at_result)(lkt_crew *w, lk_parallel *p, uint32_t step, const lk_step_result *result);
};

typedef struct {
    lkt_crew *crew;
    lk_comm  *comm;
    lk_status status;
    lk_error  failure;
    char      hash[65];
} lkt_member;

static const lk_parallel_state lkt_running[] = { { "mean", 7, 0, 0.1f } };

static inline float lkt_noise(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    lki_random r     = lki_philox(77, LKI_RNG_DATA, a, b, c, d);
    float      value = lki_random_unit(r.word[0]) - 0.5f;
    for (uint32_t shift = r.word[1] % 20; shift > 0; shift--)
        value *= 0.5f;
    return value;
}

/* Drives the ranks apart: sleeps before some terms, up to 2 ms, by step, rank and term.  A loop of
 * sched_yield() would take minutes on a machine with other work.  For `at_term`. */
static inline void lkt_dawdle(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn,
                              uint32_t term)
{
    lki_random lot = lki_philox(9, LKI_RNG_DATA, step, p->rank, turn.virtual_worker, term);
    const struct timespec pause = { .tv_nsec = lot.word[1] % 2000000 };
    (void)w;
    if (lot.word[0] % 8 == 0)
        (void)nanosleep(&pause, NULL);
}

/* Computes a turn.  Returns false if the rest of the turn was skipped. */
static inline bool lkt_make_turn(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn)
{
    uint32_t v = turn.virtual_worker;
    if (w->swapped)
        v = v == 1 ? 2 : v == 2 ? 1 : v;
    for (uint32_t t = LKT_PARAMS; t-- > 0;) /* the forward pass */
        (void)lk_parallel_read(p, t);
    /* terms are computed from the last to the first by default */
    for (uint32_t t = 0; t < LKT_PARAMS; t++) {
        uint32_t     param = LKT_PARAMS - 1 - t;
        (void)lk_parallel_read(p, t);
        const float *value = lk_parallel_param(p, param);
        if (w->at_term != NULL)
            w->at_term(w, p, step, turn, t);
        if (!w->stubborn && lk_parallel_dropped(p))
            return false;
        float *grad = lk_parallel_grad(p, 0, t);
        for (size_t i = 0; i < lk_shape_count(w->model[param].shape); i++)
            grad[i] += lkt_noise((uint32_t)i, step * 100 + t, v, turn.micro_index) +
                       0.01f * value[i];
        lk_parallel_grad_ready(p, 0, t);
    }
    for (size_t i = 0; i < lkt_running[0].count && lk_parallel_state_count(p) > 0; i++)
        lk_parallel_state_sum(p, 0, 0)[i] += 3 * lkt_noise((uint32_t)i, step, v, 9);
    lk_parallel_report(p, 0, (double)lkt_noise(v, step, 9, turn.micro_index), 3, 3, 1);
    return true;
}

static inline lk_status lkt_step(lk_parallel *p, lkt_crew *w, uint32_t step, lki_sha256 *hash)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    if (w->at_step != NULL)
        w->at_step(w, p, step);
    LK_TRY(lk_parallel_begin(p, step));
    LK_TRY(lk_parallel_set_rate(p, 0.01));
    while (lk_parallel_next(p, &turn))
        if (w->make != NULL)
            w->make(w, p, (uint32_t)turn.step, turn);
        else
            (void)lkt_make_turn(w, p, (uint32_t)turn.step, turn);
    if (w->at_turns != NULL)
        w->at_turns(w, p, step);
    LK_TRY(lk_parallel_finish(p, 0.01, &result));
    if (w->at_result != NULL)
        w->at_result(w, p, step, &result);
    lki_sha256_add(hash, &result.loss, sizeof result.loss);
    lki_sha256_add(hash, &result.grad_norm, sizeof result.grad_norm);
    lki_sha256_add(hash, &result.count, sizeof result.count);
    return LK_OK;
}

/* Hashes all values of a checkpoint, and a sum over virtual workers like that of an evaluation. */
static inline lk_status lkt_hash_values(lk_parallel *p, const lkt_crew *w, lki_sha256 *hash)
{
    static _Thread_local float values[LKT_ELEMENTS_MAX];
    double   mine[LKT_LEAVES_MAX * 2], sums[2];
    uint32_t states = lk_optimizer_state_count(&p->optimizer);

    for (uint32_t i = 0; i < LKT_PARAMS; i++)
        for (uint32_t which = 0; which <= states; which++) {
            size_t count = lk_shape_count(w->model[i].shape);
            LK_TRY(lk_parallel_fetch(p, i, which, 0, count, values));
            lki_sha256_add(hash, values, count * sizeof *values);
        }
    if (lk_parallel_state_count(p) > 0)
        lki_sha256_add(hash, lk_parallel_state_data(p, 0), lkt_running[0].count * sizeof(float));
    for (uint32_t i = 0; i < p->share.count; i++)
        for (uint32_t k = 0; k < 2; k++)
            mine[2 * i + k] = (double)lkt_noise(p->share.first + i * p->share.stride, k, 7, 7);
    LK_TRY(lk_parallel_sum(p, mine, 2, sums));
    lki_sha256_add(hash, sums, sizeof sums);
    return LK_OK;
}

static inline lk_status lkt_train(lkt_member *m, lk_parallel **out)
{
    lki_sha256 hash;
    LK_TRY(lk_parallel_open(out, m->comm, m->crew->model, LKT_PARAMS, &m->crew->options));
    lki_sha256_begin(&hash);
    for (uint32_t step = m->crew->first; step < m->crew->steps; step++)
        LK_TRY(lkt_step(*out, m->crew, step, &hash));
    if (m->crew->values_only)
        lki_sha256_begin(&hash);
    LK_TRY(lkt_hash_values(*out, m->crew, &hash));
    lki_sha256_end(&hash, m->hash);
    return lk_barrier(m->comm);
}

static inline void *lkt_member_main(void *argument)
{
    lkt_member  *m = argument;
    lk_parallel *p = NULL;
    m->status      = lkt_train(m, &p);
    if (m->status != LK_OK) {
        print_message("%s\n", lk_error_last()->message);
        m->failure = *lk_error_last();
        lk_comm_abort(m->comm);
    }
    lk_parallel_free(p);
    return NULL;
}

static inline bool lkt_member_on_host(lk_comm *comm, void *context)
{
    lkt_member *m = (lkt_member *)context + lk_comm_rank(comm);
    m->comm       = comm;
    (void)lkt_member_main(m);
    return true;
}

static inline void lkt_run_on_one_host(const lkt_crew *w, lkt_member *members)
{
    lk_comm        *comms[LKT_RANKS_MAX] = { NULL };
    lk_comm_options options              = { .struct_size = sizeof(lk_comm_options),
                                             .timeout_ms  = WORLD_PATIENCE_MS };
    assert_int_equal(lk_comm_open_threads(comms, w->ranks, &options), LK_OK);
    for (uint32_t r = 0; r < w->ranks; r++)
        members[r].comm = comms[r];
    lkt_run_ranks(lkt_member_main, members, sizeof *members, w->ranks);
    for (uint32_t r = 0; r < w->ranks; r++)
        lk_comm_free(comms[r]);
}

/* Runs a crew, which must succeed with equal hashes on all ranks.  Returns the hash. */
static inline void lkt_run_crew(lkt_crew *w, char hash[65])
{
    lkt_member members[LKT_RANKS_MAX];
    assert_true(w->options.virtual_workers <= LKT_LEAVES_MAX);
    for (uint32_t r = 0; r < w->ranks; r++)
        members[r] = (lkt_member){ .crew = w };
    if (w->hosts.hosts == 0)
        lkt_run_on_one_host(w, members);
    else
        assert_true(hosted_all(w->hosts, lkt_member_on_host, members));
    for (uint32_t r = 0; r < w->ranks; r++) {
        assert_int_equal(members[r].status, LK_OK);
        assert_string_equal(members[r].hash, members[0].hash);
    }
    memcpy(hash, members[0].hash, 65);
}

static inline lkt_crew lkt_make_crew(const lk_param *model, const char *strategy, uint32_t leaves,
                                     uint32_t ranks)
{
    return (lkt_crew){ .model   = model,
                       .ranks   = ranks,
                       .options = { .struct_size        = sizeof(lk_parallel_options),
                                    .strategy           = strategy,
                                    .virtual_workers    = leaves,
                                    .micro_count        = 2,
                                    .bucket_bytes       = 2000,
                                    .first_bucket_bytes = 1000,
                                    .optimizer    = { .kind = LK_ADAMW, .weight_decay = 0.1 },
                                    .clip_norm    = 1,
                                    .seed         = 5,
                                    .states       = lkt_running,
                                    .state_count  = 1 } };
}

/* Returns a crew of one worker that computes everything with strategy single. */
static inline lkt_crew lkt_single_of(const lkt_crew *w)
{
    lkt_crew single           = lkt_make_crew(w->model, "single", w->options.virtual_workers, 1);
    single.options.comm_dtype = w->options.comm_dtype;
    single.options.unused     = w->options.unused;
    single.steps              = w->steps;
    return single;
}

/* Asserts that the crew's hash equals that of strategy single. */
static inline void lkt_must_be_single(lkt_crew *w)
{
    char     want[65], got[65];
    lkt_crew single = lkt_single_of(w);
    lkt_run_crew(&single, want);
    lkt_run_crew(w, got);
    assert_string_equal(got, want);
}

/* Checks that options are refused, with a message that has `text`. */
static inline void lkt_refuse(const lk_param *model, const lk_parallel_options *options,
                              const char *text)
{
    lk_parallel *p    = NULL;
    lk_comm     *comm = NULL;
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm, model, LKT_PARAMS, options), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, text));
    lk_comm_free(comm);
}

#endif
