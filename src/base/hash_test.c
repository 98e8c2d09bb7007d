/* hash_test.c -- tests that XXH3 gives the same hash on registers of any width. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"

enum { LONGEST = 16384 + 65 };

static uint8_t data[LONGEST];

static void check(size_t bytes)
{
    const uint8_t *at   = data + bytes % 3; /* aligned and not */
    uint64_t       want = lki_xxh3_plain(at, bytes);
    assert_true(lki_xxh3(at, bytes) == want);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        assert_true(lki_xxh3_avx2(at, bytes) == want);
    if (__builtin_cpu_supports("avx512f"))
        assert_true(lki_xxh3_avx512(at, bytes) == want);
#endif
}

static void the_hash_does_not_depend_on_the_vector_width(void **state)
{
    (void)state;
    for (size_t i = 0; i < LONGEST; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    for (size_t bytes = 0; bytes < 2100; bytes++)
        check(bytes);
    for (size_t bytes = LONGEST - 70; bytes < LONGEST - 2; bytes++)
        check(bytes);
    check(4096 * sizeof(float));
}

/* Checks a fixed value, because checkpoint files contain this hash. */
static void the_hash_is_that_of_the_standard(void **state)
{
    (void)state;
    assert_true(lki_xxh3("", 0) == UINT64_C(0x2d06800538d394c2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hash_does_not_depend_on_the_vector_width),
        cmocka_unit_test(the_hash_is_that_of_the_standard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
