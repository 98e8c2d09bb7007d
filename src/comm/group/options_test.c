/* options_test.c -- programs of other versions open a group: with options that are shorter or
 * longer than the library's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "comm/group/group.h"

/* The options struct of a program that is newer than the library. */
typedef struct {
    lk_comm_options known;
    uint64_t        unknown[3];
} longer_options;

/* Opens a group of one rank and returns the status.  On success the timeout of the group must be
 * `timeout_ms`. */
static lk_status opens(const lk_comm_options *options, uint32_t timeout_ms)
{
    lk_comm  *comm   = NULL;
    lk_status status = lk_comm_open_threads(&comm, 1, options);
    if (status == LK_OK)
        assert_int_equal(comm->timeout_ms, timeout_ms);
    else
        assert_null(comm);
    lk_comm_free(comm);
    return status;
}

/* Passes the struct of an older program, which ends before `flight`.  Expects that the bytes behind
 * the struct are not read. */
static void shorter_options_open_a_group(void **state)
{
    lk_comm_options options = { .struct_size = offsetof(lk_comm_options, flight),
                                .timeout_ms  = 4321,
                                .flight      = "/dev/null/flight" };
    (void)state;
    assert_int_equal(opens(&options, 4321), LK_OK);
    options.struct_size = sizeof options;
    assert_int_equal(opens(&options, 4321), LK_EIO);
}

static void longer_options_open_a_group_while_the_rest_is_zero(void **state)
{
    longer_options longer = { .known = { .struct_size = sizeof longer, .timeout_ms = 4321 } };
    (void)state;
    assert_int_equal(opens(&longer.known, 4321), LK_OK);
    longer.unknown[2] = 1;
    assert_int_equal(opens(&longer.known, 4321), LK_EUNSUPPORTED);
    assert_non_null(strstr(lk_error_last()->message, "lk_comm_options has 24 bytes"));
}

static void options_without_a_size_are_refused(void **state)
{
    const lk_comm_options options = { .timeout_ms = 4321 }, init = LK_COMM_OPTIONS_INIT;
    (void)state;
    assert_int_equal(opens(&options, 4321), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "begin with LK_COMM_OPTIONS_INIT"));
    assert_int_equal(opens(&init, 30000), LK_OK);
    assert_int_equal(opens(NULL, 30000), LK_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shorter_options_open_a_group),
        cmocka_unit_test(longer_options_open_a_group_while_the_rest_is_zero),
        cmocka_unit_test(options_without_a_size_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
