/* number_test.c -- numbers as text read back to the same bits, and are short. */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lockstep/base.h"

static void numbers_are_as_short_as_people_write_them(void **state)
{
    static const struct {
        double      value;
        const char *text;
    } rows[] = { { 0.9, "0.9" },       { 0.1 + 0.2, "0.30000000000000004" },
                 { 1e-8, "1e-08" },    { 5e-324, "5e-324" },
                 { 0, "0" },           { -2.5, "-2.5" },
                 { 1e300, "1e+300" },  { 3.1766017335467041, "3.176601733546704" } };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[LK_NUMBER_BYTES];
        lk_number_text(text, rows[i].value);
        assert_string_equal(text, rows[i].text);
    }
}

static void all_numbers_read_back(void **state)
{
    uint64_t random = 1;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        char     text[LK_NUMBER_BYTES];
        double   value, back;
        uint64_t bits;
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(&value, &random, sizeof value);
        lk_number_text(text, value);
        back = strtod(text, NULL);
        memcpy(&bits, &back, sizeof bits);
        assert_true(bits == random || isnan(value));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_as_short_as_people_write_them),
        cmocka_unit_test(all_numbers_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
