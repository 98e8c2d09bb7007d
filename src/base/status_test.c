/* status_test.c -- failures that a program records. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/status.h"

static void programs_record_their_failures(void **state)
{
    (void)state;
    assert_int_equal(lk_error_set(LK_EIO, "no\nfile"), LK_EIO);
    assert_int_equal(lk_error_last()->status, LK_EIO);
    assert_string_equal(lk_error_last()->message, "no file");
    assert_int_equal(lk_error_set(LK_OK, "failed"), LK_EINVAL);
    assert_string_equal(lk_error_last()->message, "failed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_record_their_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
