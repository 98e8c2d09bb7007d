/* doorbook_test.c -- reports of refused connections: in time, rate-limited, and complete. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "link/doorbook.h"

static void a_flood_is_reported_in_two_lines(void **state)
{
    static lki_doorbook book;
    char                text[LKI_DOORBOOK_TEXT_BYTES];
    lki_refusal         why;
    int                 told = 0;

    (void)state;
    for (int i = 0; i < 1000; i++)
        told += lki_doorbook_enter(&book, LKI_REFUSED_KEY, "10.0.0.9:4711", "bad", 100 + i, text);
    assert_int_equal(told, 1);
    assert_string_equal(text, "refused a connection from 10.0.0.9: it does not have the key of "
                              "this job: bad");
    assert_false(lki_doorbook_next(&book, 10099, &why, text));
    assert_true(lki_doorbook_next(&book, 10100, &why, text));
    assert_int_equal(why, LKI_REFUSED_KEY);
    assert_string_equal(text, "refused 999 connections from 10.0.0.9: it does not have the key of "
                              "this job: bad");
    assert_false(lki_doorbook_next(&book, INT64_MAX, &why, text));
}

static void reasons_and_hosts_are_reported_separately(void **state)
{
    static lki_doorbook book;
    char                text[LKI_DOORBOOK_TEXT_BYTES];
    lki_refusal         why;

    (void)state;
    assert_true(lki_doorbook_enter(&book, LKI_REFUSED_KEY, "[fd00::1]:1", "", 0, text));
    assert_string_equal(text, "refused a connection from [fd00::1]: it does not have the key of "
                              "this job");
    assert_true(lki_doorbook_enter(&book, LKI_REFUSED_EPOCH, "[fd00::1]:2", "", 0, text));
    assert_true(lki_doorbook_enter(&book, LKI_REFUSED_KEY, "[fd00::2]:1", "", 0, text));
    assert_false(lki_doorbook_enter(&book, LKI_REFUSED_KEY, "[fd00::2]:9", "", 0, text));
    assert_true(lki_doorbook_next(&book, INT64_MAX, &why, text));
    assert_string_equal(text, "refused a connection from [fd00::2]: it does not have the key of "
                              "this job");
    assert_false(lki_doorbook_next(&book, INT64_MAX, &why, text));
}

/* Enters refusals from more hosts than the book has entries.  Expects a bounded number of reports
 * whose counts include every refusal. */
static void many_hosts_share_a_line(void **state)
{
    static lki_doorbook book;
    char                text[LKI_DOORBOOK_TEXT_BYTES], address[32];
    lki_refusal         why;
    int                 told = 0;

    (void)state;
    for (int i = 0; i < 500; i++) {
        (void)snprintf(address, sizeof address, "10.0.%d.%d:80", i / 250, i % 250);
        told += lki_doorbook_enter(&book, LKI_REFUSED_GARBAGE, address, "", 5, text);
    }
    assert_int_equal(told, LKI_DOORBOOK_PLACES);
    assert_true(lki_doorbook_next(&book, INT64_MAX, &why, text));
    char words[64];
    (void)snprintf(words, sizeof words, "refused %d connections from many hosts",
                   500 - LKI_DOORBOOK_PLACES);
    assert_non_null(strstr(text, words));
    assert_false(lki_doorbook_next(&book, INT64_MAX, &why, text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flood_is_reported_in_two_lines),
        cmocka_unit_test(reasons_and_hosts_are_reported_separately),
        cmocka_unit_test(many_hosts_share_a_line),
    };
    return cmocka_run_group_tests_name("link.doorbook", tests, NULL, NULL);
}
