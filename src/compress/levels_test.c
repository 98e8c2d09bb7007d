/* levels_test.c -- tests of terngrad and qsgd against plain versions.
 *
 * Goal:    messages and residuals are those of plain loops, for all kinds of values.  The mean over
 *          many seeds is the value.  No message depends on anything but its key and its options.
 * Control: rounding that is not random, or that has the same numbers in every step, is biased.
 */
#include <float.h>
#include <math.h>

#include "base/rng.h"
#include "base/thorough_testing.h"
#include "compress/levels.h"
#include "compress/values_testing.h"

static const size_t sizes[] = { 1, 2, 31, 32, 33, 100, 511, 513, 1000, 4097, 70001 };
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static const struct {
    uint32_t levels, bits, bucket;
} cases[] = { { 1, 2, 32 },  { 2, 3, 96 },     { 3, 3, 512 },  { 4, 4, 512 },
              { 7, 4, 512 }, { 15, 5, 1u << 20 }, { 100, 8, 64 }, { 127, 8, 512 } };
enum { CASES = sizeof cases / sizeof cases[0] };

/* ---- Plain versions ---------------------------------------------------------------------- */

static double unit_of(const one *o, size_t i)
{
    lki_random r = lki_philox(o->options.seed, LKI_RNG_ROUND, (uint32_t)(i / 32 * 8 + i % 8),
                              (uint32_t)o->key.step, o->key.tensor, o->key.group);
    return (r.word[i % 32 / 8] >> 1) * 0x1p-31;
}

/* Sums like 16 lanes and a tree over them. */
static double plain_squares(const float *values, size_t count)
{
    double lanes[16] = { 0 };
    for (size_t i = 0; i < count; i++)
        lanes[i % 16] += (double)values[i] * (double)values[i];
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return lanes[0];
}

static float plain_scale(const one *o, size_t first, size_t count, bool ternary)
{
    double squares = plain_squares(o->original + first, count), scale = sqrt(squares), most = 0;
    if (!isfinite(squares))
        return NAN;
    for (size_t i = first; i < first + count; i++)
        most = fmax(most, fabs((double)o->original[i]));
    if (ternary)
        scale = fmin(most, o->options.clip * sqrt(squares / (double)count));
    return (float)fmin(scale, (double)FLT_MAX);
}

static bool bit_of(const uint32_t *bits, uint32_t width, size_t i, uint32_t plane)
{
    return bits[i / 32 * width + plane] >> i % 32 & 1;
}

/* Checks the bits of elements with one scale, and their residuals. */
static void check_elements(const one *o, uint32_t levels, uint32_t width, float scale,
                           const uint32_t *bits, size_t first, size_t count)
{
    for (size_t i = first; i < first + count; i++) {
        float  value = o->original[i];
        double exact = scale > 0 ? fabs((double)value) * (levels / (double)scale) : 0;
        double level = fmin(floor(exact + unit_of(o, i)), levels);
        float  said  = (float)((double)scale / levels * level);
        assert_int_equal(bit_of(bits, width, i, 0), value < 0);
        for (uint32_t b = 1; b < width && !isnan(scale); b++)
            assert_int_equal(bit_of(bits, width, i, b), (uint32_t)level >> (b - 1) & 1);
        float left = value - (value < 0 ? -said : said);
        if (isnan(scale))
            assert_true(isnan(o->values[i]));
        else
            assert_memory_equal(&o->values[i], &left, sizeof left);
    }
}

static void check_scale(float got, float want)
{
    const uint32_t nan = 0x7fc00000;
    if (isnan(want))
        assert_memory_equal(&got, &nan, sizeof nan);
    else
        assert_memory_equal(&got, &want, sizeof want);
}

static void qsgd_rounds_at_random_to_levels_of_a_buckets_norm(void **state)
{
    (void)state;
    for (size_t c = 0; c < CASES; c++)
        for (size_t s = 0; s < SIZES; s++)
            for (int k = 0; k < KINDS; k++) {
                one    o = one_open("qsgd", 0, sizes[s]);
                size_t size = cases[c].bucket, buckets = (o.count + size - 1) / size;
                o.options.levels = cases[c].levels;
                o.options.bucket = cases[c].bucket;
                o.key.group      = 3;
                o.bytes          = o.by->bytes(&o.options, &o.key, 0);
                o.message        = realloc(o.message, o.bytes);
                assert_int_equal(o.bytes,
                                 4 * (buckets + (o.count + 31) / 32 * cases[c].bits));
                fill(o.original, o.count, (kind)k, s);
                one_encode(&o);
                for (size_t b = 0; b < buckets; b++) {
                    size_t first = b * size, n = o.count - first < size ? o.count - first : size;
                    float  norm = plain_scale(&o, first, n, false);
                    check_scale(((float *)o.message)[b], norm);
                    check_elements(&o, cases[c].levels, cases[c].bits, norm,
                                   (uint32_t *)o.message + buckets, first, n);
                }
                one_close(&o);
            }
}

static void terngrad_sends_the_scale_with_its_share_as_probability(void **state)
{
    (void)state;
    for (size_t s = 0; s < SIZES; s++)
        for (int k = 0; k < KINDS; k++) {
            one o       = one_open("terngrad", 0, sizes[s]);
            o.key.group = 1;
            assert_int_equal(o.bytes, 4 + (o.count + 31) / 32 * 8);
            fill(o.original, o.count, (kind)k, s);
            one_encode(&o);
            float scale = plain_scale(&o, 0, o.count, true);
            check_scale(*(float *)o.message, scale);
            check_elements(&o, 1, 2, scale, (uint32_t *)o.message + 1, 0, o.count);
            one_close(&o);
        }
}

/* ---- Means ------------------------------------------------------------------------------- */

enum { MEAN_OF = 300, SEEDS = 4000 };

/* Returns the largest error of the means over seeds, in the largest standard deviation that a mean
 * may have. */
static double bias_of(const char *name, kind k, bool draws)
{
    one    o = one_open(name, 0, MEAN_OF);
    double means[MEAN_OF] = { 0 }, worst = 0;
    float  out[MEAN_OF];
    fill(o.original, MEAN_OF, k, 4);
    const bool   ternary = strcmp(name, "terngrad") == 0;
    const double scale   = (double)plain_scale(&o, 0, MEAN_OF, ternary);
    const double step    = ternary ? scale : scale / o.options.levels;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        o.options.seed = draws ? seed : 0;
        one_encode(&o);
        one_decode(&o, 0, MEAN_OF, out);
        for (size_t i = 0; i < MEAN_OF; i++)
            means[i] += (double)out[i] / SEEDS;
    }
    for (size_t i = 0; i < MEAN_OF; i++) {
        double want = fmax(-scale, fmin(scale, (double)o.original[i]));
        worst       = fmax(worst, fabs(means[i] - want) / (step / 2 / sqrt(SEEDS)));
    }
    one_close(&o);
    return worst;
}

static void the_mean_over_seeds_is_the_value(void **state)
{
    static const char *const names[] = { "terngrad", "qsgd" };
    (void)state;
    for (size_t n = 0; n < 2; n++)
        for (int k = NORMAL; k <= TIES; k++) {
            assert_true(bias_of(names[n], (kind)k, true) < 5);
            assert_true(bias_of(names[n], (kind)k, false) > 20); /* the test can fail */
        }
}

static void every_key_draws_other_numbers(void **state)
{
    static const char *const names[] = { "terngrad", "qsgd" };
    (void)state;
    for (size_t n = 0; n < 2; n++) {
        one o = one_open(names[n], 0, 1000), other = one_open(names[n], 0, 1000);
        fill(o.original, o.count, NORMAL, 2);
        fill(other.original, o.count, NORMAL, 2);
        one_encode(&o);
        for (int what = 0; what < 6; what++) {
            other.options.seed = o.options.seed + (what == 1);
            other.key.step     = o.key.step + (what == 2);
            other.key.tensor   = o.key.tensor + (what == 3);
            other.key.group    = o.key.group + (what == 4 ? 1 : what == 5 ? 77 : 0);
            one_encode(&other);
            assert_int_equal(memcmp(o.message, other.message, o.bytes) == 0, what == 0);
        }
        one_close(&o);
        one_close(&other);
    }
}

/* ---- Special values ---------------------------------------------------------------------- */

static void zeros_are_sent_as_zeros(void **state)
{
    static const char *const names[] = { "terngrad", "qsgd" };
    (void)state;
    for (size_t n = 0; n < 2; n++) {
        float out[600];
        one   o = one_open(names[n], 0, 600);
        one_encode(&o); /* all zeros */
        one_decode(&o, 0, 600, out);
        for (size_t i = 0; i < 600; i++)
            assert_true(out[i] == 0 && o.values[i] == 0);
        one_close(&o);
    }
}

static void one_element_is_sent_exactly(void **state)
{
    static const char *const names[]  = { "terngrad", "qsgd" };
    static const float       values[] = { 0.3f, -7e20f, FLT_MAX, -FLT_MAX, FLT_TRUE_MIN, -FLT_MIN };
    (void)state;
    for (size_t n = 0; n < 2; n++)
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            float out;
            one   o       = one_open(names[n], 0, 1);
            o.original[0] = values[v];
            one_encode(&o);
            one_decode(&o, 0, 1, &out);
            assert_true(out == values[v] && o.values[0] == 0);
            one_close(&o);
        }
}

/* The norm of large values is more than FLT_MAX, and that of subnormal ones is subnormal. */
static void large_and_subnormal_values_stay_finite(void **state)
{
    static const char *const names[]  = { "terngrad", "qsgd" };
    static const float       values[] = { FLT_MAX, FLT_TRUE_MIN };
    (void)state;
    for (size_t n = 0; n < 2; n++)
        for (size_t v = 0; v < 2; v++) {
            float out[700];
            bool  any = false;
            one   o   = one_open(names[n], 0, 700);
            for (size_t i = 0; i < 700; i++)
                o.original[i] = i % 3 == 0 ? values[v] : -values[v];
            one_encode(&o);
            one_decode(&o, 0, 700, out);
            for (size_t i = 0; i < 700; i++) {
                assert_true(isfinite(out[i]) && out[i] * o.original[i] >= 0);
                any = any || out[i] != 0;
            }
            assert_true(any);
            one_close(&o);
        }
}

static void a_bucket_that_is_not_finite_leaves_the_others(void **state)
{
    static const float bad[] = { NAN, -NAN, INFINITY, -INFINITY };
    (void)state;
    for (size_t b = 0; b < 4; b++) {
        float out[1500];
        one   o = one_open("qsgd", 0, 1500);
        fill(o.original, o.count, NORMAL, 6);
        o.original[512 + 99 * b] = bad[b];
        one_encode(&o);
        one_decode(&o, 0, o.count, out);
        for (size_t i = 0; i < o.count; i++) {
            assert_int_equal(isnan(out[i]) != 0, i / 512 == 1);
            assert_int_equal(isnan(o.values[i]) != 0, i / 512 == 1);
        }
        one_close(&o);
    }
}

static void terngrad_is_cut_off_at_standard_deviations(void **state)
{
    (void)state;
    one   o = one_open("terngrad", 0, 10000);
    static float out[10000];
    fill(o.original, o.count, NORMAL, 6);
    o.original[5] = 100;
    one_encode(&o);
    float limit = (float)(2.5 * sqrt(plain_squares(o.original, o.count) / 10000));
    one_decode(&o, 0, o.count, out);
    assert_true(out[5] == limit && limit < 3);
    o.options.clip = (double)INFINITY;
    one_encode(&o);
    one_decode(&o, 0, o.count, out);
    assert_true(out[5] == 100);
    one_close(&o);
}

static void every_instruction_set_gives_the_same_levels(void **state)
{
    enum { COUNT = 4096 };
    static float  values[COUNT];
    const lki_lot lot = { 77, 3, 9, 5 };
    bool          lacks;
    (void)state;
    for (size_t t = 0; lki_scan_at(t, &lacks) != NULL; t++)
        for (int k = 0; k < KINDS && !lacks; k++) {
            const lki_scan *scan = lki_scan_at(t, &lacks);
            fill(values, COUNT, (kind)k, t);
            for (size_t count = 0; count <= COUNT; count += count < 70 ? 1 : 503) {
                float  most[2];
                double sums[2] = { scan->squares(count, values, &most[0]),
                                   lki_scan_portable.squares(count, values, &most[1]) };
                double plain   = plain_squares(values, count);
                assert_memory_equal(&most[0], &most[1], sizeof most[0]);
                if (isnan(plain))
                    assert_true(isnan(sums[0]) && isnan(sums[1]));
                else
                    assert_true(sums[0] == plain && sums[1] == plain);
            }
            for (uint32_t b = 0; b < COUNT / LKI_LEVEL_BLOCK; b++) {
                const uint32_t levels = 1 + b % LKI_LEVELS_MAX, width = lki_level_bits(levels);
                uint32_t       words[2][8];
                float          out[2][LKI_LEVEL_BLOCK];
                scan->put(&lot, b, values + 32 * b, 10.0 + b, levels, width, words[0]);
                lki_scan_portable.put(&lot, b, values + 32 * b, 10.0 + b, levels, width, words[1]);
                assert_memory_equal(words[0], words[1], width * sizeof words[0][0]);
                scan->get(words[0], width, 0.7 / b, out[0]);
                lki_scan_portable.get(words[0], width, 0.7 / b, out[1]);
                assert_memory_equal(out[0], out[1], sizeof out[0]);
            }
        }
}

static void invalid_options_are_named(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        lk_compression given = LK_COMPRESSION_INIT, out;
        given.levels = i == 0 ? 128 : 127;
        given.bucket = i == 1 ? 500 : 64;
        given.clip   = i == 2 ? -1 : 3;
        assert_int_equal(lk_compression_resolve(&out, &given), i < 3 ? LK_EINVAL : LK_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qsgd_rounds_at_random_to_levels_of_a_buckets_norm),
        cmocka_unit_test(terngrad_sends_the_scale_with_its_share_as_probability),
        cmocka_unit_test(the_mean_over_seeds_is_the_value),
        cmocka_unit_test(every_key_draws_other_numbers),
        cmocka_unit_test(zeros_are_sent_as_zeros),
        cmocka_unit_test(one_element_is_sent_exactly),
        cmocka_unit_test(large_and_subnormal_values_stay_finite),
        cmocka_unit_test(a_bucket_that_is_not_finite_leaves_the_others),
        cmocka_unit_test(terngrad_is_cut_off_at_standard_deviations),
        cmocka_unit_test(every_instruction_set_gives_the_same_levels),
        cmocka_unit_test(invalid_options_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
