/* vote_test.c -- tests of vote against plain loops.
 *
 * Goal:    the sum is that of the signs' majority, + for a tie, for any number of groups.  Groups
 *          without any gradient do not vote.
 */
#include <math.h>

#include "compress/values_testing.h"

enum { COUNT = 9001, GROUPS = 7, SAMPLES = 5 };

static float values[GROUPS][COUNT], out[COUNT];

static lkt_compressed groups_of(uint32_t groups)
{
    lkt_compressed c = { .by = find("vote"), .options = LK_COMPRESSION_INIT, .groups = groups,
                         .samples = SAMPLES, .feedback = LK_FEEDBACK_OFF,
                         .key = { .rows = COUNT, .cols = 1, .tensor = 2 } };
    lkt_compressed_open(&c);
    return c;
}

static void play(lkt_compressed *c)
{
    float *all[GROUPS];
    for (uint32_t g = 0; g < c->groups; g++)
        all[g] = values[g];
    lkt_compressed_step(c, all, out);
}

/* Returns what plain loops say of an element.  `silent` groups do not vote. */
static float plain(size_t i, uint32_t groups, uint32_t silent, float *ties)
{
    int votes = 0;
    for (uint32_t g = silent; g < groups; g++)
        votes += values[g][i] < 0 ? -1 : 1;
    *ties += silent < groups && votes == 0;
    const float all = (float)(SAMPLES * groups);
    return silent == groups ? 0 : votes < 0 ? -all : all;
}

static void the_majority_has_its_sign(void **state)
{
    (void)state;
    for (int k = 0; k < ANY_BITS; k++) /* and not those, which have NaN */
        for (uint32_t groups = 1; groups <= GROUPS; groups++)
            for (uint32_t silent = 0; silent <= groups; silent++) {
                static float   want[COUNT];
                float          ties = 0;
                lkt_compressed c    = groups_of(groups);
                for (uint32_t g = 0; g < groups; g++) {
                    fill(values[g], COUNT, (kind)k, g);
                    for (size_t i = 0; i < COUNT && g < silent; i++)
                        values[g][i] = i % 2 == 0 ? 0.0f : -0.0f;
                }
                for (size_t i = 0; i < COUNT; i++)
                    want[i] = plain(i, groups, silent, &ties);
                play(&c);
                for (size_t i = 0; i < COUNT; i++)
                    assert_true(out[i] == want[i]);
                assert_true(ties > 0 || k == MOSTLY_ZERO || (groups - silent) % 2 == 1 ||
                            silent == groups);
                assert_int_equal(c.by->bytes(&c.options, &c.key, 0), 4 + (COUNT + 31) / 32 * 4);
                lkt_compressed_close(&c);
            }
}

static void a_group_that_is_not_finite_is_seen(void **state)
{
    static const float bad[] = { NAN, -NAN, INFINITY, -INFINITY };
    (void)state;
    for (size_t b = 0; b < 4; b++) {
        lkt_compressed c = groups_of(GROUPS);
        for (uint32_t g = 0; g < GROUPS; g++)
            fill(values[g], COUNT, NORMAL, g);
        values[b][COUNT - 1 - b] = bad[b];
        play(&c);
        for (size_t i = 0; i < COUNT; i++)
            assert_true(isnan(out[i]));
        lkt_compressed_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_majority_has_its_sign),
        cmocka_unit_test(a_group_that_is_not_finite_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
