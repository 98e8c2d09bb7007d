/* progress_test.c -- a step that is repeated after a loss has the time since it first began. */
#include "train/core/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void a_repeated_step_keeps_its_beginning(void **state)
{
    lki_session *s = calloc(1, sizeof *s);
    (void)state;
    assert_non_null(s);
    lki_session_clock(s, 7, 100);
    lki_session_clock(s, 7, 130); /* survivors repeat it */
    assert_true(s->begun <= 100 && s->attempted >= 130);
    lki_session_clock(s, 8, 140);
    assert_true(s->begun >= 140 && s->attempted <= s->begun);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_repeated_step_keeps_its_beginning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
