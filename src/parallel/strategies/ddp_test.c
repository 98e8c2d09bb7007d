/* ddp_test.c -- tests when ddp sums buckets.
 *
 * Goal: a rank that only reports its terms sums a bucket as soon as all ranks have sent the bucket,
 *       and not only at the end of the step.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "parallel/strategies/ddp.h"

enum { LEAVES = 2, PARAMS = 2, COUNT = 64 };

static const lk_param model[PARAMS] = {
    { .name = "a", .shape = { 1, { COUNT } }, .init = LK_INIT_ONE },
    { .name = "b", .shape = { 1, { COUNT } }, .init = LK_INIT_ONE },
};

/* Computes a turn.  `sums`: the rank computes its last virtual worker, so each term completes the
 * sum of a bucket. */
static void compute(lk_parallel *p, bool sums)
{
    for (uint32_t t = 0; t < PARAMS; t++) {
        float *grad = lk_parallel_grad(p, 0, t);
        for (size_t i = 0; i < COUNT; i++)
            grad[i] += 0.5f;
        lk_parallel_grad_ready(p, 0, t);
        assert_int_equal(lki_ddp_of(p)->completed, sums ? t + 1 : 0);
    }
    lk_parallel_report(p, 0, 1, 1, 1, 0);
}

static void a_ready_term_advances_the_sums(void **state)
{
    lk_comm            *comm    = NULL;
    lk_parallel        *p       = NULL;
    lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                    .virtual_workers = LEAVES,
                                    .bucket_bytes    = COUNT * sizeof(float) };
    lk_parallel_turn    turn;
    lk_step_result      result;
    (void)state;
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm, model, PARAMS, &options), LK_OK);
    assert_int_equal(p->layout->bucket_count, PARAMS);
    assert_int_equal(lk_parallel_begin(p, 0), LK_OK);
    while (lk_parallel_next(p, &turn))
        compute(p, turn.virtual_worker + 1 == LEAVES);
    assert_int_equal(lk_parallel_finish(p, 1, &result), LK_OK);
    assert_true(*lk_parallel_param(p, 0) == 0.5f && *lk_parallel_param(p, 1) == 0.5f);
    lk_parallel_free(p);
    lk_comm_free(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ready_term_advances_the_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
