/* exec_test.c -- opening an lk_exec, names and errors, and running tasks. */
#include <stdatomic.h>

#include "tensor/tensor_testing.h"

static void an_exec_has_the_requested_threads_and_isa(void **state)
{
    (void)state;
    lk_exec *exec = NULL;
    assert_int_equal(lk_exec_open(&exec, 0, NULL), LK_OK);
    assert_int_equal(lk_exec_threads(exec), 1);
    lk_exec_free(exec);
    assert_int_equal(lk_exec_open(&exec, 3, "portable"), LK_OK);
    assert_int_equal(lk_exec_threads(exec), 3);
    assert_string_equal(lk_exec_isa(exec), "portable");
    lk_exec_free(exec);
    assert_int_equal(lk_exec_open(&exec, 1, "auto"), LK_OK);
    lk_exec_free(exec);
    lk_exec_free(NULL);
}

static void refuses_with_a_reason(void **state)
{
    (void)state;
    lk_exec *exec = NULL;
    assert_int_equal(lk_exec_open(&exec, 1, "sse9"), LK_EINVAL);
    assert_null(exec);
    assert_non_null(strstr(lk_error_last()->message, "sse9"));
    assert_int_equal(lk_exec_open(&exec, 5000, "portable"), LK_EINVAL);
    assert_null(exec);
}

typedef struct { _Atomic int seen[1000]; } visits;

static void visit(void *context, size_t i)
{
    visits *v = context;
    atomic_fetch_add(&v->seen[i], 1);
}

static void runs_every_task_once(void **state)
{
    (void)state;
    lk_exec *execs[LKI_EXECS_MAX];
    size_t   count = lki_test_execs(execs);
    for (size_t e = 0; e < count; e++) {
        visits v = { { 0 } };
        lk_parallel_for(execs[e], 1000, visit, &v);
        for (size_t i = 0; i < 1000; i++)
            assert_int_equal(v.seen[i], 1);
    }
    lki_test_execs_free(execs, count);
}

static void counts_elements(void **state)
{
    (void)state;
    assert_int_equal(lk_shape_count((lk_shape){ 0, { 0 } }), 1);
    assert_int_equal(lk_shape_count((lk_shape){ 3, { 2, 3, 4 } }), 24);
    assert_int_equal(lk_shape_count((lk_shape){ 2, { 5, 0 } }), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_exec_has_the_requested_threads_and_isa),
        cmocka_unit_test(refuses_with_a_reason),
        cmocka_unit_test(runs_every_task_once),
        cmocka_unit_test(counts_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
