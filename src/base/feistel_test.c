/* feistel_test.c -- computed permutations.
 *
 * Goal:   places of [0, n) are distinct and below n, and lki_feistel_element() is the inverse, for
 *         all small n and for numbers of more than 32 bits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/feistel.h"

static uint32_t mix(const void *context, uint32_t half, uint32_t round)
{
    const uint32_t x = (half ^ *(const uint32_t *)context ^ round * 0x85EBCA77u) * 0x9E3779B1u;
    return x ^ x >> 15;
}

static void places_are_a_permutation(void **state)
{
    const uint32_t key = 7;
    (void)state;
    for (uint64_t n = 1; n < 300; n++) {
        uint8_t seen[300] = { 0 };
        for (uint64_t i = 0; i < n; i++) {
            const uint64_t place = lki_feistel_place(n, lki_feistel_half(n), mix, &key, i);
            assert_true(place < n);
            assert_int_equal(seen[place]++, 0);
            assert_true(lki_feistel_element(n, lki_feistel_half(n), mix, &key, place) == i);
        }
    }
}

static void large_numbers_have_an_inverse(void **state)
{
    const uint64_t n   = UINT64_C(5) << 40;
    const uint32_t key = 9;
    (void)state;
    for (uint64_t i = 0; i < n; i += n / 1000) {
        const uint64_t place = lki_feistel_place(n, lki_feistel_half(n), mix, &key, i);
        assert_true(place < n);
        assert_true(lki_feistel_element(n, lki_feistel_half(n), mix, &key, place) == i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_are_a_permutation),
        cmocka_unit_test(large_numbers_have_an_inverse),
    };
    return cmocka_run_group_tests_name("base.feistel", tests, NULL, NULL);
}
