/* goyal_test.c -- tests of the remarks of Goyal et al., "Accurate, Large Minibatch SGD" (2017).
 *
 * Goal:   a step makes none of the mistakes they describe.  With weight decay, scaling the loss
 *         differs from scaling the learning rate (remark 1).  A loss is normalised by the samples
 *         of all workers, not of each worker (remark 3).  The paper's linear rule holds: k steps of
 *         n samples equal one step of kn samples at k times the rate, if gradients do not change in
 *         between.
 * Tests are named after the remarks.  Remark 2, momentum correction, and the warmup are in
 * optim_test.c; remark 4, one order per epoch for all workers, is in sampler_test.c.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lockstep/parallel.h"

enum { LEAVES = 4 };

static const lk_param model[] = { { .name = "w", .shape = { 1, { 1 } }, .init = LK_INIT_ONE } };

/* A run in which virtual worker v has samples[v] samples, each with the gradient g[v]. */
typedef struct {
    double       loss_scale, lr, weight_decay;
    uint32_t     steps;
    uint64_t     samples[LEAVES];
    double       g[LEAVES];
} recipe;

/* Returns the weight after the steps.  Its initial value is 1. */
static double train(const recipe *r)
{
    lk_comm            *comm    = NULL;
    lk_parallel        *p       = NULL;
    lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                    .virtual_workers = LEAVES,
                                    .optimizer       = { .weight_decay = r->weight_decay } };
    lk_parallel_turn    turn;
    lk_step_result      result;
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm, model, 1, &options), LK_OK);
    for (uint32_t step = 0; step < r->steps; step++) {
        assert_int_equal(lk_parallel_begin(p, step), LK_OK);
        while (lk_parallel_next(p, &turn)) {
            uint64_t n = r->samples[turn.virtual_worker];
            *lk_parallel_grad(p, 0, 0) +=
                (float)(r->loss_scale * (double)n * r->g[turn.virtual_worker]);
            lk_parallel_report(p, 0, (double)n, n, n, 0);
        }
        assert_int_equal(lk_parallel_finish(p, r->lr, &result), LK_OK);
    }
    double w = (double)*lk_parallel_param(p, 0);
    lk_parallel_free(p);
    lk_comm_free(comm);
    return w;
}

static bool near_(double a, double b)
{
    return fabs(a - b) < 1e-6;
}

static void remark_1_a_scaled_loss_is_no_scaled_rate(void **state)
{
    recipe loss = { 8, 0.01, 0, 3, { 2, 2, 2, 2 }, { 0.5, -1, 2, 0.25 } }, rate = loss;
    (void)state;
    rate.loss_scale = 1;
    rate.lr         = 0.08;
    assert_true(near_(train(&loss), train(&rate)));
    loss.weight_decay = rate.weight_decay = 0.5;
    assert_false(near_(train(&loss), train(&rate)));
}

static void remark_3_a_loss_is_normalised_by_all_samples(void **state)
{
    recipe uneven = { 1, 0.1, 0, 1, { 5, 1, 2, 0 }, { 0.5, -1, 2, 77 } };
    double mean   = (5 * 0.5 - 1 * 1 + 2 * 2) / 8, mean_of_means = (0.5 - 1 + 2) / 3;
    (void)state;
    assert_true(near_(train(&uneven), 1 - 0.1 * mean));
    assert_false(near_(mean, mean_of_means));
}

static void a_large_step_equals_several_small_steps(void **state)
{
    recipe small = { 1, 0.1, 0, 4, { 2, 0, 0, 0 }, { 0.5, 0.5, 0.5, 0.5 } };
    recipe large = { 1, lk_scale_lr(LK_SCALE_LR_LINEAR, 0.1, 8, 2), 0, 1, { 2, 2, 2, 2 },
                     { 0.5, 0.5, 0.5, 0.5 } };
    (void)state;
    assert_true(near_(train(&small), train(&large)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(remark_1_a_scaled_loss_is_no_scaled_rate),
        cmocka_unit_test(remark_3_a_loss_is_normalised_by_all_samples),
        cmocka_unit_test(a_large_step_equals_several_small_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
