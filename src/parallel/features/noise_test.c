/* noise_test.c -- the gradient noise scale is unbiased, and has equal bits on all ranks.
 *
 * Method: samples' gradients are a known G plus noise of known variance.  Virtual workers have
 *         different numbers of samples, one has none, and a parameter is used twice.  The averages
 *         are compared with the formula in plain sums, and with G and the variance themselves.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "parallel/state.h"
#include "parallel/parallel_testing.h"

enum { RANKS_MAX = 6, LEAVES = 6, STEPS = 30, MICRO = 2, TERMS = 4 };

static const lk_param model[] = {
    { .name = "tied", .shape = { 2, { 30, 300 } }, .uses = 2, .init = LK_INIT_UNIFORM, .scale = 1 },
    { .name = "w", .shape = { 1, { 700 } } },
    { .name = "b", .shape = { 1, { 33 } } },
};
/* the default order: from the last parameter to the first, and from the last use to the first */
static const uint32_t param_of[TERMS]           = { 2, 1, 0, 0 };
static const size_t   count_of[TERMS]           = { 33, 700, 9000, 9000 };
static const uint32_t samples_of[LEAVES][MICRO] = { { 2, 1 }, { 3, 3 }, { 0, 0 },
                                                    { 1, 0 }, { 4, 4 }, { 2, 2 } };

#define DECAY 0.9

/* Returns the true gradient of element i of a term. */
static float true_gradient(uint32_t term, size_t i)
{
    return 0.02f * (float)(1 + (i + term) % 3);
}

static float sample_gradient(uint32_t step, uint32_t sample, uint32_t term, size_t i)
{
    lki_random r = lki_philox(81, LKI_RNG_DATA, (uint32_t)i, step, sample, term);
    return true_gradient(term, i) + (lki_random_unit(r.word[0]) - 0.5f); /* variance 1/12 */
}

typedef struct {
    uint32_t    ranks;
    const char *strategy;
    bool        lock_step, early; /* announces terms as they are computed */
    double      decay;
    bool        reversed; /* computes terms in an order other than the layout's */
} crew;

typedef struct {
    const crew *crew;
    lk_comm    *comm;
    lk_status   status;
    lk_error    error;
    lk_noise    noise;
} member;

static void add_samples(float *grad, uint32_t step, uint32_t v, uint32_t micro, uint32_t term)
{
    for (uint32_t s = 0; s < samples_of[v][micro]; s++)
        for (size_t i = 0; i < count_of[term]; i++)
            grad[i] += sample_gradient(step, v * 100 + micro * 10 + s, term, i);
}

static void run_turn(lk_parallel *p, const crew *w, uint32_t step, const lk_parallel_turn *turn)
{
    uint32_t first, count, stride;
    lk_parallel_share(p, &first, &count, &stride);
    count = w->lock_step ? count : 1;
    for (uint32_t k = 0; k < TERMS; k++)
        for (uint32_t c = 0; c < count; c++) {
            uint32_t t = w->reversed ? TERMS - 1 - k : k;
            add_samples(lk_parallel_grad(p, c, t), step, turn->virtual_worker + c * stride,
                        turn->micro_index, t);
            if (w->early)
                lk_parallel_grad_ready(p, c, t);
        }
    for (uint32_t c = 0; c < count; c++) {
        uint32_t n = samples_of[turn->virtual_worker + c * stride][turn->micro_index];
        lk_parallel_report(p, c, n, n, 5 * (uint64_t)n, 0); /* a sample is five tokens */
    }
}

static lk_status run_steps(lk_parallel *p, const crew *w, uint32_t steps)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    for (uint32_t step = 0; step < steps; step++) {
        LK_TRY(lk_parallel_begin(p, step));
        while (lk_parallel_next(p, &turn))
            run_turn(p, w, step, &turn);
        LK_TRY(lk_parallel_finish(p, 1e-3, &result));
    }
    return LK_OK;
}

static lk_parallel_options options_of(const crew *w)
{
    return (lk_parallel_options){ .struct_size     = sizeof(lk_parallel_options),
                                  .strategy        = w->strategy,
                                  .virtual_workers = LEAVES,
                                  .micro_count     = MICRO,
                                  .lock_step       = w->lock_step,
                                  .bucket_bytes    = 4096,
                                  .noise_decay     = w->decay };
}

static void *run_rank(void *argument)
{
    member             *m       = argument;
    lk_parallel        *p       = NULL;
    lk_parallel_options options = options_of(m->crew);

    m->status = lk_parallel_open(&p, m->comm, model, 3, &options);
    if (m->status == LK_OK)
        m->status = run_steps(p, m->crew, m->crew->ranks == 1 ? STEPS : 3);
    m->error = *lk_error_last();
    if (m->status == LK_OK)
        m->noise = lk_parallel_noise(p);
    lk_parallel_free(p);
    return NULL;
}

static void run_crew(const crew *w, member *members)
{
    lk_comm *comms[RANKS_MAX];
    assert_int_equal(lk_comm_open_threads(comms, w->ranks, NULL), LK_OK);
    for (uint32_t r = 0; r < w->ranks; r++)
        members[r] = (member){ .crew = w, .comm = comms[r] };
    lkt_run_ranks(run_rank, members, sizeof *members, w->ranks);
    for (uint32_t r = 0; r < w->ranks; r++) {
        lk_comm_free(comms[r]);
        if (members[r].status != LK_OK)
            fail_msg("N %u, %s: %s", w->ranks, w->strategy, members[r].error.message);
    }
}

/* ---- Comparison with plain sums ----------------------------------------------------------- */

enum { ELEMENTS = 9000 + 700 + 33 };

static uint32_t leaf_samples(uint32_t v)
{
    return samples_of[v][0] + samples_of[v][1];
}

/* Computes a virtual worker's gradient of all parameters.  The two terms of the tied parameter are
 * added. */
static void gradient_of(uint32_t step, uint32_t v, double *out)
{
    static const size_t at[] = { 0, 9000, 9700 };
    memset(out, 0, ELEMENTS * sizeof *out);
    for (uint32_t t = 0; t < TERMS; t++)
        for (uint32_t micro = 0; micro < MICRO; micro++)
            for (uint32_t s = 0; s < samples_of[v][micro]; s++)
                for (size_t i = 0; i < count_of[t]; i++)
                    out[at[param_of[t]] + i] += (double)sample_gradient(
                        step, v * 100 + micro * 10 + s, t, i);
}

static double squares(const double *x)
{
    double sum = 0;
    for (size_t i = 0; i < ELEMENTS; i++)
        sum += x[i] * x[i];
    return sum;
}

static void estimate(uint32_t step, double *square, double *trace)
{
    static double whole[ELEMENTS], leaf[ELEMENTS];
    double        a = 0, n = 0, with = 0;
    memset(whole, 0, sizeof whole);
    for (uint32_t v = 0; v < LEAVES; v++) {
        gradient_of(step, v, leaf);
        for (size_t i = 0; i < ELEMENTS; i++)
            whole[i] += leaf[i];
        if (leaf_samples(v) == 0)
            continue;
        a += squares(leaf) / leaf_samples(v);
        n += leaf_samples(v);
        with++;
    }
    *trace  = (a - squares(whole) / n) / (with - 1);
    *square = (squares(whole) / n - *trace) / n;
}

static void the_noise_scale_equals_the_formula(void **state)
{
    member     one;
    const crew plain = { .ranks = 1, .strategy = "single", .decay = DECAY };
    double     square, trace, squares_sum = 0, traces_sum = 0;
    (void)state;
    run_crew(&plain, &one);
    for (uint32_t step = 0; step < STEPS; step++) {
        estimate(step, &square, &trace);
        squares_sum = DECAY * squares_sum + (1 - DECAY) * square / 25; /* means are over tokens */
        traces_sum  = DECAY * traces_sum + (1 - DECAY) * trace / 25;
    }
    assert_int_equal(one.noise.steps, STEPS);
    assert_true(fabs(one.noise.weight - (1 - pow(DECAY, STEPS))) < 1e-12);
    /* the library sums FP32 values here */
    assert_true(fabs(one.noise.square / squares_sum - 1) < 1e-5);
    assert_true(fabs(one.noise.trace / traces_sum - 1) < 1e-5);
    assert_true(lk_noise_scale(&one.noise) == one.noise.trace / one.noise.square);
}

/* Checks an average over many steps.  Its standard deviation is less than a tenth of the
 * tolerance. */
static void estimates_are_unbiased(void **state)
{
    member     one;
    const crew plain  = { .ranks = 1, .strategy = "single", .decay = 0.999 };
    double     square = 0, trace = (33 + 700 + 2 * 9000) / 12.0;
    (void)state;
    for (size_t i = 0; i < 9000; i++) {
        double both = (double)true_gradient(2, i) + (double)true_gradient(3, i);
        square += both * both;
        if (i < 700)
            square += pow((double)true_gradient(1, i), 2);
        if (i < 33)
            square += pow((double)true_gradient(0, i), 2);
    }
    run_crew(&plain, &one);
    double mean = 25 / one.noise.weight;
    if (!(fabs(one.noise.trace * mean / trace - 1) < 0.01 &&
          fabs(one.noise.square * mean / square - 1) < 0.05))
        fail_msg("tr(S) is %g, estimated as %g; |G|^2 is %g, estimated as %g", trace,
                 one.noise.trace * mean, square, one.noise.square * mean);
}

static void all_ranks_have_the_same_bits(void **state)
{
    static const crew ways[] = {
        { 2, "ddp", false, false, DECAY, false },  { 3, "ddp", true, true, DECAY, false },
        { 4, "zero1", false, true, DECAY, false }, { 5, "ddp", false, true, DECAY, false },
        { 2, "ddp", false, true, DECAY, true },    { 3, "zero2", false, true, DECAY, false },
        { 6, "zero2", true, false, DECAY, false }, { 4, "zero2", false, false, DECAY, false }
    };
    static member members[RANKS_MAX];
    lk_noise      want = { 0 };
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        run_crew(&ways[i], members);
        if (i == 0)
            want = members[0].noise;
        for (uint32_t r = 0; r < ways[i].ranks; r++)
            assert_memory_equal(&members[r].noise, &want, sizeof want);
    }
    assert_int_equal(want.steps, 3);
}

/* Computes the noise scale with fewer than two virtual workers.  Expects that there is no
 * estimate. */
static void too_few_virtual_workers_give_no_estimate(void **state)
{
    lk_noise none = { 0 };
    (void)state;
    assert_true(isnan(lk_noise_scale(&none)));
    none = (lk_noise){ .square = -1, .trace = 3, .weight = 0.1, .steps = 1 };
    assert_true(isnan(lk_noise_scale(&none)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_noise_scale_equals_the_formula),
        cmocka_unit_test(estimates_are_unbiased),
        cmocka_unit_test(all_ranks_have_the_same_bits),
        cmocka_unit_test(too_few_virtual_workers_give_no_estimate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
