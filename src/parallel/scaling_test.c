/* scaling_test.c -- loss scaling in a step.
 *
 * Scaled gradients change no bit, all ranks detect the overflow of one rank, and a skipped step has
 * no effect. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/status.h"
#include "lockstep/parallel.h"

enum { COUNT = 5000, LEAVES = 4, STEPS = 6, RANKS_MAX = 3, SAMPLES = 3 };

static const lk_param          model[]   = { { .name  = "w",
                                               .shape = { 1, { COUNT } },
                                               .init  = LK_INIT_NORMAL,
                                               .scale = 0.1f } };
static const lk_parallel_state running[] = { { "mean", 3, 0, 0.1f } };

typedef struct {
    uint32_t        ranks;
    lk_loss_scaling scaling;
    bool            overflows[STEPS]; /* [step]: virtual worker 2 overflows in this step */
    bool            loss;             /* the loss overflows instead of the gradient */
} run;

typedef struct {
    const run     *run;
    lk_comm       *comm;
    float          w[COUNT], mean[3];
    double         norms[STEPS];
    bool           skipped[STEPS];
    lk_loss_scaler scaler;
    uint64_t       step; /* step number of the gradients; skipped steps do not count */
} rank_run;

static float gradient(uint64_t step, uint32_t v, uint32_t i)
{
    lki_random r = lki_philox(9, LKI_RNG_DATA, i, (uint32_t)step, v, 0);
    return lki_random_unit(r.word[0]) - 0.5f;
}

static void turn_of(rank_run *r, lk_parallel *p, uint32_t v, float scale, bool overflow)
{
    const float infinity = (float)strtod("inf", NULL);
    float      *g        = lk_parallel_grad(p, 0, 0);
    for (uint32_t i = 0; i < COUNT; i++)
        g[i] += gradient(r->step, v, i) * scale;
    if (overflow && !r->run->loss)
        g[4500] = infinity;
    lk_parallel_state_sum(p, 0, 0)[1] += (float)v;
    lk_parallel_report(p, 0, overflow && r->run->loss ? (double)infinity : 1, SAMPLES, SAMPLES, 0);
}

static void step_of(rank_run *r, lk_parallel *p, uint64_t step)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    assert_int_equal(lk_parallel_begin(p, step), LK_OK);
    float scale = lk_parallel_loss_scale(p, LEAVES * SAMPLES);
    while (lk_parallel_next(p, &turn))
        turn_of(r, p, turn.virtual_worker, scale,
                r->run->overflows[step] && turn.virtual_worker == 2);
    assert_int_equal(lk_parallel_finish(p, 0.01, &result), LK_OK);
    r->norms[step]   = result.grad_norm;
    r->skipped[step] = result.skipped;
    r->step += !result.skipped;
}

static void *rank_main(void *argument)
{
    rank_run           *r       = argument;
    lk_parallel        *p       = NULL;
    lk_parallel_options options = { .struct_size = sizeof(lk_parallel_options),
                                    .virtual_workers = LEAVES, .optimizer = { .kind = LK_ADAMW },
                                    .scaling = r->run->scaling, .clip_norm = 1,
                                    .states = running, .state_count = 1 };
    assert_int_equal(lk_parallel_open(&p, r->comm, model, 1, &options), LK_OK);
    for (uint64_t step = 0; step < STEPS; step++)
        step_of(r, p, step);
    memcpy(r->w, lk_parallel_param(p, 0), sizeof r->w);
    memcpy(r->mean, lk_parallel_state_data(p, 0), sizeof r->mean);
    r->scaler = lk_parallel_scaler(p);
    assert_int_equal(lk_barrier(r->comm), LK_OK);
    lk_parallel_free(p);
    return NULL;
}

/* Returns the final state of rank 0.  Expects that all other ranks have the same state. */
static const rank_run *result_of(const run *what)
{
    static rank_run runs[RANKS_MAX];
    lk_comm        *comms[RANKS_MAX] = { NULL };
    pthread_t       threads[RANKS_MAX];
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options), .timeout_ms = 300000 };
    assert_int_equal(lk_comm_open_threads(comms, what->ranks, &options), LK_OK);
    for (uint32_t i = 0; i < what->ranks; i++) {
        runs[i] = (rank_run){ .run = what, .comm = comms[i] };
        assert_int_equal(pthread_create(&threads[i], NULL, rank_main, &runs[i]), 0);
    }
    for (uint32_t i = 0; i < what->ranks; i++)
        (void)pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < what->ranks; i++) {
        assert_memory_equal(runs[i].w, runs[0].w, sizeof runs[0].w);
        assert_memory_equal(runs[i].skipped, runs[0].skipped, sizeof runs[0].skipped);
        lk_comm_free(comms[i]);
    }
    return runs;
}

static void a_scale_changes_no_bit(void **state)
{
    static rank_run plain;
    (void)state;
    plain = *result_of(&(run){ .ranks = 1 });
    for (uint32_t ranks = 1; ranks <= RANKS_MAX; ranks++)
        for (int rule = LK_SCALE_PYTORCH; rule <= LK_SCALE_FIXED; rule++) {
            run             scaled = { .ranks   = ranks,
                                       .scaling = { .rule   = (lk_scale_rule)rule,
                                                    .window = 2 } };
            const rank_run *got    = result_of(&scaled);
            assert_memory_equal(got->w, plain.w, sizeof plain.w);
            assert_memory_equal(got->norms, plain.norms, sizeof plain.norms);
            assert_true((got->scaler.scale > 65536) == (rule != LK_SCALE_FIXED));
        }
}

/* Skips steps in which a value overflows.  Expects three updates: skipped steps neither count as
 * updates nor change running statistics. */
static void an_overflowing_step_is_skipped_by_all_ranks(void **state)
{
    static rank_run want;
    (void)state;
    for (uint32_t ranks = 1; ranks <= RANKS_MAX; ranks++)
        for (int loss = 0; loss < 2; loss++) {
            run first = { .ranks     = ranks,
                          .scaling   = { .rule = LK_SCALE_PYTORCH },
                          .overflows = { true, false, true, true, false, false },
                          .loss      = loss == 1 };
            run last = first;
            memcpy(last.overflows, (bool[STEPS]){ false, false, false, true, true, true },
                   sizeof last.overflows);
            want                = *result_of(&last);
            const rank_run *got = result_of(&first);
            assert_memory_equal(got->w, want.w, sizeof want.w);
            assert_memory_equal(got->mean, want.mean, sizeof want.mean);
            assert_memory_equal(got->skipped, first.overflows, sizeof got->skipped);
            assert_int_equal(got->scaler.skipped, 3);
            assert_true(got->scaler.scale == 8192);
            assert_false(loss == 0 && isfinite(got->norms[0]));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_scale_changes_no_bit),
        cmocka_unit_test(an_overflowing_step_is_skipped_by_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
