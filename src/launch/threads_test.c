/* threads_test.c -- tests that lk_launch_threads() runs every rank, and returns the failure that
 * caused the other failures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "lockstep/launch.h"

static const lk_comm_options patient = {.struct_size = sizeof(lk_comm_options),
                                        .timeout_ms  = 20000};

static lk_status add_up(lk_comm *comm, void *context)
{
    _Atomic uint32_t *ranks = context;
    float             mine = 1.0f, sum = 0.0f;

    atomic_fetch_or(ranks, UINT32_C(1) << lk_comm_rank(comm));
    LK_TRY(lk_all_reduce(comm, &mine, &sum, 1, LK_F32, LK_SUM));
    if (sum == (float)lk_comm_size(comm))
        return LK_OK;
    return lk_fail(LK_ECORRUPT, "the sum is %f", (double)sum);
}

static void runs_every_rank(void **state)
{
    (void)state;
    for (uint32_t workers = 1; workers <= 5; workers += 2) {
        _Atomic uint32_t ranks = 0;
        assert_int_equal(lk_launch_threads(workers, &patient, add_up, &ranks), LK_OK);
        assert_int_equal(atomic_load(&ranks), (1U << workers) - 1);
    }
}

typedef struct {
    uint32_t         who;
    _Atomic uint32_t told; /* number of ranks that received the cause */
} failing;

/* Fails at once in one rank.  The other ranks would wait for ever if they were not informed. */
static lk_status one_fails(lk_comm *comm, void *context)
{
    failing *f = context;
    if (lk_comm_rank(comm) == f->who)
        return lk_fail(LK_EFORMAT, "rank %u cannot read its file", f->who);
    lk_status st = LK_OK;
    while (st == LK_OK)
        st = lk_barrier(comm);
    if (strstr(lk_error_last()->message, "cannot read its file") != NULL)
        atomic_fetch_add(&f->told, 1);
    return st;
}

static void the_first_failure_wakes_the_others_and_is_reported(void **state)
{
    (void)state;
    for (uint32_t who = 0; who < 4; who++) {
        char    text[64];
        failing f = {.who = who};
        (void)snprintf(text, sizeof text, "rank %u cannot read its file", who);
        assert_int_equal(lk_launch_threads(4, &patient, one_fails, &f), LK_EFORMAT);
        assert_int_equal(atomic_load(&f.told), 3);
        assert_string_equal(lk_error_last()->message, text);
        assert_non_null(lk_error_last()->where);
    }
}

static lk_status fails_without_a_word(lk_comm *comm, void *context)
{
    (void)context;
    return lk_comm_rank(comm) == 1 ? LK_ENONFINITE : lk_barrier(comm);
}

static void a_status_without_a_message_gets_one(void **state)
{
    (void)state;
    assert_int_equal(lk_launch_threads(2, &patient, fails_without_a_word, NULL), LK_ENONFINITE);
    assert_non_null(strstr(lk_error_last()->message, "rank 1 returned ENONFINITE"));
}

/* Returns early without an error in one rank, which is a mistake while the other ranks continue. */
static lk_status one_returns(lk_comm *comm, void *context)
{
    (void)context;
    return lk_comm_rank(comm) == 0 ? LK_OK : lk_barrier(comm);
}

static void an_early_return_is_detected_at_once(void **state)
{
    (void)state;
    assert_int_equal(lk_launch_threads(3, &patient, one_returns, NULL), LK_EPEER);
    assert_non_null(strstr(lk_error_last()->message, "rank 0"));
}

static lk_status stops(lk_comm *comm, void *context)
{
    (void)context;
    LK_TRY(lk_barrier(comm));
    return lk_fail(LK_ESTOPPED, "stopped");
}

static void a_stop_on_request_is_returned(void **state)
{
    (void)state;
    assert_int_equal(lk_launch_threads(3, &patient, stops, NULL), LK_ESTOPPED);
}

static void zero_workers_are_refused(void **state)
{
    (void)state;
    assert_int_equal(lk_launch_threads(0, &patient, stops, NULL), LK_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_every_rank),
        cmocka_unit_test(the_first_failure_wakes_the_others_and_is_reported),
        cmocka_unit_test(a_status_without_a_message_gets_one),
        cmocka_unit_test(an_early_return_is_detected_at_once),
        cmocka_unit_test(a_stop_on_request_is_returned),
        cmocka_unit_test(zero_workers_are_refused),
    };
    return cmocka_run_group_tests_name("launch.threads", tests, NULL, NULL);
}
