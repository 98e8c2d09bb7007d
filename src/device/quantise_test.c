/* quantise_test.c -- tests vectors whose blocks of elements share a factor.
 *
 * Goal:   every set of loops gives the bits of a naive reference, in memory and as sent; rounding
 *         is idempotent; errors remain within their bound; non-finite values are not hidden.
 * Method: lengths with and without a partial block; values of any size, including subnormal ones
 *         and the largest; the reference computes in doubles, one element at a time.
 */
#include "device/quantise.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "device/half.h"
#include "device/partial.h"
#include "device/reduce.h"

enum { N = 5 * LKI_QUANTISED + 77, BYTES = 6 * (LKI_QUANTISED + 4), TRIALS = 24 };

static const lk_dtype types[] = { LK_I8, LK_I4 };

/* ---- The reference ----------------------------------------------------------------------- */

/* Rounds up to 16 significant bits.  The result is at least 2^-100, and small enough that `levels`
 * times the result is finite. */
static float plain_factor(const float *x, size_t count, double levels)
{
    double most = 0;
    int    exponent;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(x[i]))
            return NAN;
        most = fmax(most, fabs((double)x[i]));
    }
    double quotient = (double)(float)(most / levels);
    (void)frexp(quotient, &exponent);
    double factor = ldexp(ceil(ldexp(quotient, 16 - exponent)), exponent - 16);
    double limit  = (double)0x1.fffffep127f / levels;
    (void)frexp(limit, &exponent);
    limit = ldexp(floor(ldexp(limit, 16 - exponent)), exponent - 16);
    return (float)fmax(fmin(factor, limit), 0x1p-100);
}

static void plain_integers(const float *x, size_t count, double levels, float *factor, int *out)
{
    *factor = plain_factor(x, count, levels);
    for (size_t i = 0; i < count; i++)
        out[i] = isnan(*factor) ? 0 : (int)nearbyint((double)(x[i] * (1.0f / *factor)));
}

static void plain_rounded(lk_dtype type, const float *x, size_t n, float *out)
{
    int   integers[LKI_QUANTISED];
    float factor;
    for (size_t at = 0; at < n; at += LKI_QUANTISED) {
        size_t count = lki_min(LKI_QUANTISED, n - at);
        plain_integers(x + at, count, type == LK_I8 ? 127 : 7, &factor, integers);
        for (size_t i = 0; i < count; i++)
            out[at + i] = isnan(factor) ? lki_f32_from_bits(0x7fc00000)
                                        : (float)((double)integers[i] * (double)factor);
    }
}

static void plain_packed(lk_dtype type, const float *x, size_t n, unsigned char *out)
{
    int   integers[LKI_QUANTISED];
    float factor;
    for (size_t at = 0; at < n; at += LKI_QUANTISED) {
        size_t count = lki_min(LKI_QUANTISED, n - at);
        memset(integers, 0, sizeof integers);
        plain_integers(x + at, count, type == LK_I8 ? 127 : 7, &factor, integers);
        uint32_t bits = isnan(factor) ? 0x7fc00000 : lki_f32_bits(factor);
        memcpy(out, &bits, sizeof bits);
        out += sizeof bits;
        for (int i = 0; i < (type == LK_I8 ? 256 : 128); i++)
            *out++ = (unsigned char)(type == LK_I8
                                         ? integers[i] & 255
                                         : (integers[i] & 15) | (integers[i + 128] & 15) << 4);
    }
}

/* ---- The loops --------------------------------------------------------------------------- */

static void fill(float *x, size_t n, uint64_t trial)
{
    for (size_t i = 0; i < n; i++) {
        lki_random r     = lki_philox(5, LKI_RNG_DATA, (uint32_t)i, (uint32_t)trial, 0, 0);
        int        scale = (int)(r.word[1] % 12) + (int)(trial * 11) - 149; /* from the smallest */
        x[i]             = ldexpf(lki_random_unit(r.word[0]) - 0.5f, scale > 128 ? 128 : scale);
        if (r.word[2] % 50 == 0)
            x[i] = r.word[2] % 100 == 0 ? 0.0f : -0.0f;
        if (trial == TRIALS - 1 && i % 300 == 7)
            x[i] = r.word[3] % 2 == 0 ? 0x1.fffffep127f : -0x1.fffffep127f;
    }
    if (trial % 4 == 3) /* in two of the blocks */
        x[300] = trial % 8 == 3 ? INFINITY : NAN;
}

static void check_loops(const lki_type_loops *loops, lk_dtype type, size_t n, uint64_t trial)
{
    static float         x[N], y[N], want[N], got[N + 1], sum[N];
    static unsigned char bytes[BYTES], want_bytes[BYTES];
    size_t               length = lki_rounded_bytes(type, n);

    fill(x, n, trial);
    fill(y, n, trial + 1);
    plain_rounded(type, x, n, want);
    plain_packed(type, x, n, want_bytes);
    got[n] = 3;
    loops->rounded(n, x, 1, got);
    assert_memory_equal(got, want, n * sizeof *got);
    memset(bytes, 0xee, sizeof bytes);
    loops->store(n, x, 1, bytes);
    assert_memory_equal(bytes, want_bytes, length);
    assert_true(length == sizeof bytes || bytes[length] == 0xee);
    memset(got, 0, n * sizeof *got);
    loops->load(n, bytes, 1, got);
    assert_memory_equal(got, want, n * sizeof *got);
    loops->rounded(n, got, 1, got); /* in place; must not change any value */
    assert_memory_equal(got, want, n * sizeof *got);

    plain_rounded(type, y, n, sum);
    for (size_t i = 0; i < n; i++)
        sum[i] = want[i] + sum[i];
    plain_rounded(type, sum, n, want);
    memcpy(got, x, n * sizeof *got);
    loops->rounded_sum(n, got, y, got);
    assert_memory_equal(got, want, n * sizeof *got);
    assert_true(got[n] == 3);
}

static void loops_have_the_bits_of_the_reference(void **state)
{
    static const size_t lengths[] = { 1, 255, 256, 257, 512, N };
    (void)state;
    for (size_t k = 0; k < 2; k++)
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
            for (uint64_t trial = 0; trial < TRIALS; trial++) {
                const lki_encoder *encoder = lki_encoder_of(types[k]);
                check_loops(encoder->loops[LKI_PORTABLE], types[k], lengths[l], trial);
                check_loops(lki_rounding_loops(types[k]), types[k], lengths[l], trial);
#if defined(__x86_64__)
                if (__builtin_cpu_supports("avx2"))
                    check_loops(encoder->loops[LKI_AVX2], types[k], lengths[l], trial);
#endif
            }
}

static void check_encoder(const lki_type_loops *loops, lk_dtype type, uint64_t trial)
{
    static float         x[N], want[N], got[N];
    static unsigned char bytes[N * sizeof(float)];
    fill(x, N, trial);
    lki_encoder_of(type)->loops[LKI_PORTABLE]->rounded(N, x, 1, want);
    loops->rounded(N, x, 1, got);
    assert_memory_equal(got, want, sizeof want);
    loops->rounded(N, want, 1, got); /* must not change any value */
    assert_memory_equal(got, want, sizeof want);
    loops->store(N, x, 1, bytes);
    loops->load(N, bytes, 1, got);
    assert_memory_equal(got, want, sizeof want);
    assert_true(lki_rounded_bytes(type, N) < N * sizeof(float));
}

/* Checks every row of the table of encoders: rounding is idempotent, the bytes to send have the
 * rounded values, and all instruction sets give the same bits. */
static void every_encoder_keeps_the_rules(void **state)
{
    static const lk_dtype all[] = {
#define TYPE_ROW(name, text, label) LK_##name,
#define WIRE_ROW(name, code, text, label) LK_##name,
        LK_ENCODING_TABLE(TYPE_ROW, WIRE_ROW)
    };
    (void)state;
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
        for (uint64_t trial = 0; trial < TRIALS; trial++) {
            check_encoder(lki_encoder_of(all[k])->loops[LKI_PORTABLE], all[k], trial);
            check_encoder(lki_rounding_loops(all[k]), all[k], trial);
#if defined(__x86_64__)
            if (__builtin_cpu_supports("avx2"))
                check_encoder(lki_encoder_of(all[k])->loops[LKI_AVX2], all[k], trial);
#endif
        }
    assert_null(lki_encoder_of(LK_F32));
    assert_null(lki_encoder_of(0));
    assert_null(lki_encoder_of((lk_dtype)99));
}

static void errors_keep_to_their_bound(void **state)
{
    static float x[N], got[N];
    (void)state;
    for (size_t k = 0; k < 2; k++)
        for (uint64_t trial = 2; trial < TRIALS; trial += trial % 4 == 2 ? 2 : 1) {
            fill(x, N, trial);
            lki_rounding_loops(types[k])->rounded(N, x, 1, got);
            for (size_t at = 0; at < N; at += LKI_QUANTISED) {
                double most = 0x1p-100 * (k == 0 ? 127 : 7);
                for (size_t i = at; i < lki_min(at + LKI_QUANTISED, N); i++)
                    most = fmax(most, fabs((double)x[i]));
                for (size_t i = at; i < lki_min(at + LKI_QUANTISED, N); i++)
                    assert_true(fabs((double)got[i] - (double)x[i]) <=
                                most / (k == 0 ? 254 : 14) * (1 + 0x1p-14));
            }
        }
}

/* Checks that an infinity makes its whole block NaN, also when sent, but not the neighbouring
 * blocks. */
static void a_non_finite_value_makes_its_block_nan(void **state)
{
    static const float   bad[] = { INFINITY, -INFINITY, NAN };
    static unsigned char bytes[BYTES];
    static float         x[N], got[N];
    (void)state;
    for (size_t k = 0; k < 2; k++)
        for (size_t b = 0; b < 3; b++) {
            for (size_t i = 0; i < N; i++)
                x[i] = (float)i;
            x[511] = bad[b];
            lki_quantise(types[k], N, x, bytes);
            lki_dequantise(types[k], N, bytes, got);
            for (size_t i = 0; i < N; i++)
                assert_true(isnan(got[i]) == (i / LKI_QUANTISED == 1));
            x[511] = 511;
            lki_merge_f32(types[k], N, x, got);
            for (size_t i = 0; i < N; i++)
                assert_true(isnan(x[i]) == (i / LKI_QUANTISED == 1));
        }
    for (size_t i = 0; i < N; i++) /* a sum that overflows also becomes NaN */
        x[i] = got[i] = 0x1.fffffep127f;
    lki_merge_f32(LK_I4, N, x, got);
    assert_true(isnan(x[0]) && isnan(x[N - 1]));
}

/* Checks that nodes in the form in which they are sent, divided between blocks, sum to the same
 * bits as nodes in memory.  A division within a block gives other bits. */
static void packed_nodes_sum_to_the_same_bits(void **state)
{
    enum { V = 5, LENGTH = 9 * LKI_QUANTISED };
    static float         leaf[V][LENGTH], want[LENGTH], got[LENGTH];
    static unsigned char packed[V][9 * (LKI_QUANTISED + 4)], root[9 * (LKI_QUANTISED + 4)];
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        lki_tree_input   inputs[V];
        lki_partial_node nodes[V];
        for (uint32_t v = 0; v < V; v++) {
            fill(leaf[v], LENGTH, 12);
            for (size_t i = 0; i < LENGTH; i++)
                leaf[v][i] *= (float)(1 + (i * v) % 13);
            lki_quantise(types[k], LENGTH, leaf[v], packed[v]);
            inputs[v] = (lki_tree_input){ v, 1, leaf[v] };
        }
        lki_tree_sum_f32(types[k], V, inputs, V, LENGTH, want);
        for (uint32_t v = 0; v < V; v++)
            nodes[v] = (lki_partial_node){ v, 1, v % 2 == 0,
                                           v % 2 == 0 ? (void *)packed[v] : (void *)leaf[v] };
        lki_partial sum = { .dtype = types[k], .op = LK_SUM, .leaves = V, .count = V,
                            .rounded = true, .nodes = nodes, .node_count = V };
        lki_partial_combine(&sum, LENGTH, got);
        assert_memory_equal(got, want, sizeof want);
        sum.root = true;
        lki_partial_combine(&sum, LENGTH, root);
        lki_dequantise(types[k], LENGTH, root, got);
        assert_memory_equal(got, want, sizeof want);
        for (uint32_t v = 0; v < V; v++)
            inputs[v].data += 100;
        lki_tree_sum_f32(types[k], V, inputs, V, LENGTH - 100, got + 100);
        assert_memory_not_equal(got, want, sizeof want);
    }
}

static void bytes_are_counted(void **state)
{
    (void)state;
    assert_int_equal(lki_rounded_bytes(LK_I8, 0), 0);
    assert_int_equal(lki_rounded_bytes(LK_I8, 1), 260);
    assert_int_equal(lki_rounded_bytes(LK_I8, 512), 520);
    assert_int_equal(lki_rounded_bytes(LK_I4, 256), 132);
    assert_int_equal(lki_rounded_bytes(LK_I4, 257), 264);
    assert_int_equal(lki_rounded_bytes(LK_BF16, 3), 6);
    assert_int_equal(lki_rounded_bytes(0, 3), 12);
    assert_int_equal(lk_dtype_bytes(LK_I4), 0);
    assert_string_equal(lk_dtype_name(LK_I4), "I4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops_have_the_bits_of_the_reference),
        cmocka_unit_test(every_encoder_keeps_the_rules),
        cmocka_unit_test(errors_keep_to_their_bound),
        cmocka_unit_test(a_non_finite_value_makes_its_block_nan),
        cmocka_unit_test(packed_nodes_sum_to_the_same_bits),
        cmocka_unit_test(bytes_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
