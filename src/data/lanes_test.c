/* lanes_test.c -- tests that the loader's wide loops give exactly the results of the portable
 * loops. */
#include "data/data_testing.h"

#include "data/lanes.h"
#include "data/source.h"

static void wide_loops_permute_like_portable_loops(void **state)
{
    static const uint32_t halves[] = { 1, 7, 16, 31, 32 };
    bool                  lacks;
    (void)state;
    size_t count = 0;
    while (lki_lanes_at(count, &lacks) != NULL)
        count++;
    const lki_lanes *plain = lki_lanes_at(count - 1, &lacks);
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < sizeof halves / sizeof halves[0]; k++) {
            const lki_lanes  *table = lki_lanes_at(i, &lacks);
            const lki_network of    = { .seed = 0x123456789abcdef0u + k, .epoch = k << 31 | 3,
                                        .purpose = LKI_RNG_ORDER, .half = halves[k], .rounds = 8 };
            uint32_t mask = lki_network_mask(&of), left[2][LKI_LANES], right[2][LKI_LANES];
            for (uint32_t l = 0; l < LKI_LANES; l++) {
                left[0][l] = left[1][l] = l * 2654435761u & mask;
                right[0][l] = right[1][l] = (l * 40503u + 0x80000000u) & mask;
            }
            plain->pass(&of, left[0], right[0]);
            if (!lacks)
                table->pass(&of, left[1], right[1]);
            assert_true(lacks || memcmp(left[0], left[1], sizeof left[0]) == 0);
            assert_true(lacks || memcmp(right[0], right[1], sizeof right[0]) == 0);
        }
}

static void pixels_are_those_of_the_table(void **state)
{
    enum { COUNT = 300 };
    const lki_lanes *table;
    float            want[256], got[COUNT + 1];
    uint8_t          bytes[COUNT];
    bool             lacks;
    (void)state;
    for (int v = 0; v < 256; v++)
        want[v] = ((float)v / 255.0f - 0.1307f) / 0.3081f;
    for (size_t i = 0; i < COUNT; i++)
        bytes[i] = (uint8_t)i;
    for (size_t i = 0; (table = lki_lanes_at(i, &lacks)) != NULL; i++)
        for (size_t count = 0; !lacks && count <= COUNT; count += count < 40 ? 1 : count) {
            got[count] = 7;
            table->pixels(count, 0.1307f, 0.3081f, bytes, got);
            for (size_t k = 0; k < count; k++)
                assert_memory_equal(&got[k], &want[bytes[k]], sizeof got[k]);
            assert_true(got[count] == 7);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wide_loops_permute_like_portable_loops),
        cmocka_unit_test(pixels_are_those_of_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
