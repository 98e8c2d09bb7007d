/* bench_sweep_test.c -- the size of buckets that `bench step --sweep bucket` recommends. */
#include "cli/bench_sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { MIB = 1 << 20 };

static void assert_best(double small_first, double small_second, double large_first,
                        double large_second, uint32_t wanted)
{
    const lki_sweep sweep = { .bytes   = { MIB, 25 * MIB, 100 * MIB },
                              .count   = 3,
                              .medians = { { small_first, small_second },
                                           { 1, 2 },
                                           { large_first, large_second } } };
    assert_int_equal(lki_sweep_best(&sweep), wanted);
}

static void only_a_size_that_is_faster_in_every_pass_is_recommended(void **state)
{
    (void)state;
    assert_best(0.9, 1.8, 1.2, 2.2, 0);
    assert_best(0.9, 1.8, 0.8, 1.9, 2);   /* the faster of two good sizes */
    assert_best(0.5, 2.0, 1.2, 2.2, 1);   /* fast in one pass only */
    assert_best(0.5, 2.0, 0.9, 1.9, 2);
    assert_best(0.99, 1.97, 1.0, 2.0, 1); /* not clearly faster */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_size_that_is_faster_in_every_pass_is_recommended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
