/* identity_test.c -- the hash of a run: every value counts, and every NaN is one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "train/session.h"

enum { VALUES = 3 };

static const uint32_t one = 0x3f800000u, infinity = 0x7f800000u, quiet_nan = 0x7fc00000u,
                      nans[] = { 0x7f800001u, 0xff800001u, 0xffc00000u, 0x7fffffffu };

/* A session of one rank with a parameter, its momentum, and one running state. */
typedef struct {
    lk_train_config config;
    lk_param        param;
    lk_state        state;
    lki_session     session;
} run;

static void run_open(run *r)
{
    lk_comm_options   how     = { .timeout_ms = 20000 };
    lk_parallel_state running = { "mean", VALUES, 0, 0.1f };
    r->config                 = (lk_train_config){ .optimizer = { .momentum = 0.9 } };
    r->param                  = (lk_param){ .name = "w", .shape = { 1, { VALUES } } };
    r->state                  = (lk_state){ .name = "mean", .count = VALUES };
    r->session                = (lki_session){ .config      = &r->config,
                                               .ranks       = 1,
                                               .params      = &r->param,
                                               .states      = &r->state,
                                               .param_count = 1,
                                               .state_count = 1 };
    assert_int_equal(lk_comm_open_threads(&r->session.comm, 1, &how), LK_OK);
    lk_parallel_options options = { .strategy        = "single",
                                    .virtual_workers = 1,
                                    .optimizer       = r->config.optimizer,
                                    .states          = &running,
                                    .state_count     = 1 };
    assert_int_equal(
        lk_parallel_open(&r->session.parallel, r->session.comm, &r->param, 1, &options), LK_OK);
}

static void run_close(run *r)
{
    lk_parallel_free(r->session.parallel);
    lk_comm_free(r->session.comm);
}

/* The hash of a run whose parameter (0), momentum (1) or running state (2) has these bits in its
 * middle. */
static void hash_with(run *r, int where, uint32_t bits, char hex[65])
{
    float values[VALUES] = { 0.5f, 0, -0.5f }, plain[VALUES] = { 0 };
    char  weights[65];
    memcpy(&values[1], &bits, sizeof bits);
    for (uint32_t which = 0; which < 2; which++)
        assert_int_equal(
            lk_parallel_load(r->session.parallel, 0, which, (int)which == where ? values : plain),
            LK_OK);
    assert_int_equal(lk_parallel_load_state(r->session.parallel, 0, where == 2 ? values : plain),
                     LK_OK);
    assert_int_equal(lki_weights_hash(&r->session, weights), LK_OK);
    assert_int_equal(lki_run_hash(&r->session, weights, hex), LK_OK);
}

static void every_value_counts_and_every_nan_is_one(void **state)
{
    run r;
    (void)state;
    run_open(&r);
    for (int where = 0; where < 3; where++) {
        char with_one[65], with_infinity[65], with_nan[65], hex[65];
        hash_with(&r, where, one, with_one);
        hash_with(&r, where, infinity, with_infinity);
        hash_with(&r, where, quiet_nan, with_nan);
        assert_string_not_equal(with_one, with_infinity);
        assert_string_not_equal(with_infinity, with_nan);
        for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
            hash_with(&r, where, nans[i], hex);
            assert_string_equal(hex, with_nan);
        }
    }
    run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_counts_and_every_nan_is_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
