/* copy_test.c -- lki_copy_far() copies the requested bytes and no others, at any alignment of
 * source and destination. */
#include "device/copy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIZE = 1024, SPAN = 130 };

static void copies_exactly_its_bytes(void **state)
{
    static unsigned char from[SIZE], to[SIZE], want[SIZE];
    (void)state;
    for (size_t i = 0; i < SIZE; i++)
        from[i] = (unsigned char)(i * 7 + 1);
    for (size_t a = 0; a < SPAN; a += 3)
        for (size_t b = 0; b < SPAN; b++)
            for (size_t bytes = 0; bytes < 400; bytes += 1 + bytes / 9) {
                memset(to, 0xEE, SIZE);
                memset(want, 0xEE, SIZE);
                memcpy(want + b, from + a, bytes);
                lki_copy_far(to + b, from + a, bytes);
                assert_memory_equal(to, want, SIZE);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(copies_exactly_its_bytes) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
