/* order_test.c -- tests that the order of an epoch is a keyed permutation that never changes, and
 * that the steps of an epoch cover it exactly.
 *
 * Goal:   every sample occurs once per epoch, for any n and global batch; different seeds and
 *         epochs have different orders; the order never changes between versions.
 * Method: count how often each sample occurs; compare whole orders; compare orders with values
 *         stored in this file.
 */
#include "data/data_testing.h"

#include "data/source.h"

static void assert_bijection(uint64_t seed, uint64_t epoch, uint64_t n)
{
    uint8_t *seen = calloc(n, 1);
    assert_non_null(seen);
    for (uint64_t p = 0; p < n; p++) {
        uint64_t at = lk_sample_at(seed, epoch, n, p);
        assert_true(at < n);
        if (seen[at]++ != 0)
            fail_msg("n %llu seed %llu epoch %llu: sample %llu comes twice",
                     (unsigned long long)n, (unsigned long long)seed, (unsigned long long)epoch,
                     (unsigned long long)at);
    }
    free(seen);
}

static void every_sample_occurs_once_per_epoch(void **state)
{
    (void)state;
    static const uint64_t wide[] = { 1000, 1023, 1024, 1025, 4095, 4096, 4097, 8000, 10007, 65537 };
    for (uint64_t n = 1; n <= 300; n++)
        for (uint64_t epoch = 0; epoch < 3; epoch++)
            assert_bijection(n * 7, epoch, n);
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
        assert_bijection(UINT64_MAX - i, i, wide[i]);
}

static void a_range_equals_its_single_positions(void **state)
{
    static const uint64_t sizes[]  = { 1, 2, 15, 32, 33, 300, 6400, 65537, UINT64_MAX };
    static const size_t   counts[] = { 0, 1, 31, 32, 33, 100, 300 };
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (size_t k = 0; k < sizeof counts / sizeof counts[0] && counts[k] <= sizes[i]; k++) {
            uint64_t got[300], n = sizes[i], first = (n - counts[k]) / 3;
            lki_permute_run(n + k, LKI_RNG_ORDER, k << 31, n, first, counts[k], got);
            for (size_t p = 0; p < counts[k]; p++)
                assert_true(got[p] == lki_permute(n + k, LKI_RNG_ORDER, k << 31, n, first + p));
        }
}

/* Tests 512 positions for values of n that are too large to enumerate (about 2^40, and 2^64 - 1).
 * Expects samples below n, no two of them equal. */
static void samples_stay_below_a_huge_n(void **state)
{
    (void)state;
    static const uint64_t sizes[] = { (UINT64_C(1) << 40) - 1, UINT64_C(1) << 40,
                                      (UINT64_C(1) << 40) + 1, UINT64_MAX };
    uint64_t got[512];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t stride = sizes[i] / 512;
        for (size_t k = 0; k < 512; k++) {
            got[k] = lk_sample_at(5, 6, sizes[i], k * stride);
            assert_true(got[k] < sizes[i]);
            for (size_t before = 0; before < k; before++)
                assert_true(got[before] != got[k]);
        }
    }
}

static size_t same_places(uint64_t seed_a, uint64_t epoch_a, uint64_t seed_b, uint64_t epoch_b)
{
    size_t same = 0;
    for (uint64_t p = 0; p < 1000; p++)
        same += lk_sample_at(seed_a, epoch_a, 1000, p) == lk_sample_at(seed_b, epoch_b, 1000, p);
    return same;
}

static void seed_and_epoch_change_it(void **state)
{
    (void)state;
    assert_int_equal(same_places(1, 2, 1, 2), 1000);
    assert_true(same_places(1, 2, 1, 3) < 20); /* one match is expected by chance */
    assert_true(same_places(1, 2, 2, 2) < 20);
    assert_true(same_places(1, 2, 2, 1) < 20); /* the key is not seed + epoch */
    assert_true(same_places(1, 2, 1, 2 + (UINT64_C(1) << 32)) < 20);
    assert_true(same_places(1, 2, 1 + (UINT64_C(1) << 32), 2) < 20);
}

/* Checks that all 24 orders of 4 samples and all 6 orders of 3 samples are about equally
 * frequent. */
static void small_orders_are_fair(void **state)
{
    (void)state;
    uint32_t seen[256] = { 0 }, thirds[27] = { 0 }, kinds = 0;
    for (uint64_t epoch = 0; epoch < 24000; epoch++) {
        uint64_t code = 0, third = 0;
        for (uint64_t p = 0; p < 4; p++)
            code = code * 4 + lk_sample_at(9, epoch, 4, p);
        for (uint64_t p = 0; p < 3; p++)
            third = third * 3 + lk_sample_at(9, epoch, 3, p);
        seen[code]++;
        thirds[third]++;
    }
    for (size_t i = 0; i < 256; i++)
        if (seen[i] > 0) {
            kinds++;
            assert_in_range(seen[i], 800, 1200);
        }
    assert_int_equal(kinds, 24);
    kinds = 0;
    for (size_t i = 0; i < 27; i++)
        if (thirds[i] > 0) {
            kinds++;
            assert_in_range(thirds[i], 3500, 4500);
        }
    assert_int_equal(kinds, 6);
}

static void order_is_frozen(void **state)
{
    (void)state;
    static const uint64_t ten[10] = { 4, 1, 6, 0, 8, 5, 7, 2, 3, 9 };
    for (uint64_t p = 0; p < 10; p++)
        assert_int_equal(lk_sample_at(1, 0, 10, p), ten[p]);
    assert_int_equal(lk_sample_at(1, 0, 60000, 0), 31092);
    assert_int_equal(lk_sample_at(1, 1, 60000, 59999), 7567);
    assert_int_equal(lk_sample_at(42, 3, UINT64_C(1) << 40, 123456789), 992902887836);
    assert_int_equal(lk_sample_at(1, 0, 1, 0), 0);
    assert_int_equal(lki_window_offset(1, 0, 64), 15);
    assert_int_equal(lki_window_offset(1, 1, 64), 1);
    assert_int_equal(lki_window_offset(7, 9, 1024), 80);
}

static void steps_cover_an_epoch(void **state)
{
    (void)state;
    static const uint64_t batches[] = { 1, 2, 7, 16, 99, 100, 101, 1000 };
    const uint64_t n = 100;
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
        uint64_t g = batches[i], steps = lk_steps_per_epoch(n, g, false);
        assert_int_equal(steps, (n + g - 1) / g);
        uint8_t seen[100] = { 0 };
        for (uint64_t step = 2 * steps; step < 3 * steps; step++) {
            lk_step_span span = lk_step_at(n, g, false, step);
            assert_int_equal(span.epoch, 2);
            assert_int_equal(span.first, (step - 2 * steps) * g);
            assert_true(span.samples > 0 && span.samples <= g);
            for (uint64_t k = 0; k < span.samples; k++)
                seen[lk_sample_at(3, span.epoch, n, span.first + k)]++;
        }
        for (size_t k = 0; k < n; k++)
            assert_int_equal(seen[k], 1);
    }
}

static void drop_last_leaves_the_short_step_out(void **state)
{
    (void)state;
    assert_int_equal(lk_steps_per_epoch(100, 16, true), 6);
    assert_int_equal(lk_steps_per_epoch(96, 16, true), 6);
    assert_int_equal(lk_steps_per_epoch(15, 16, true), 0);
    for (uint64_t step = 0; step < 20; step++) {
        lk_step_span span = lk_step_at(100, 16, true, step);
        assert_int_equal(span.samples, 16);
        assert_int_equal(span.epoch, step / 6);
        assert_int_equal(span.first, step % 6 * 16);
    }
}

static void short_batch_fills_slots_in_order(void **state)
{
    (void)state;
    for (uint64_t samples = 0; samples <= 24; samples++) { /* V = 4, M = 2, b = 3 */
        uint64_t before = 0;
        for (uint32_t v = 0; v < 4; v++)
            for (uint32_t m = 0; m < 2; m++) {
                uint32_t got  = lk_micro_samples(samples, 3, 2, v, m);
                uint64_t left = samples - before;
                assert_int_equal(got, left < 3 ? left : 3);
                before += got;
            }
        assert_int_equal(before, samples);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sample_occurs_once_per_epoch),
        cmocka_unit_test(a_range_equals_its_single_positions),
        cmocka_unit_test(samples_stay_below_a_huge_n),
        cmocka_unit_test(seed_and_epoch_change_it),
        cmocka_unit_test(small_orders_are_fair),
        cmocka_unit_test(order_is_frozen),
        cmocka_unit_test(steps_cover_an_epoch),
        cmocka_unit_test(drop_last_leaves_the_short_step_out),
        cmocka_unit_test(short_batch_fills_slots_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
