/* elementwise_test.c -- elementwise operators, initial values, norms and updates, to the bit.
 *
 * Goal:   every instruction set and thread count gives the bits of the plain reference.  Counts
 *         need not be multiples of 16, and may exceed LKI_GRAIN.
 * Method: results are compared by memcmp.  Dropout and initial values must also not depend on the
 *         start of a range.
 */
#include <math.h>

#include "base/hash.h"
#include "device/half.h"
#include "tensor/reference.h"
#include "tensor/tensor_testing.h"
#include "tensor/isa/kernels.h"

enum { ROOM = 40000 };
static float        x[ROOM], dy[ROOM], start[ROOM], want[ROOM], got[ROOM];
static const size_t counts[] = { 0, 1, 15, 16, 17, 64, 100, 1000, 16384, 33001 };
enum { COUNTS = sizeof counts / sizeof counts[0] };

static lk_exec *execs[LKI_EXECS_MAX];
static size_t   exec_count;

static int open_execs(void **state)
{
    (void)state;
    exec_count = lki_test_execs(execs);
    lki_test_fill(x, ROOM, 1, 8.0f);
    lki_test_fill(dy, ROOM, 2, 1.0f);
    lki_test_fill(start, ROOM, 3, 1.0f);
    static const float edges[] = { 0.0f,    -0.0f,  20.0f, -20.0f, 100.0f,
                                   -100.0f, 1e-30f, 0.9f,  -0.625f };
    memcpy(x, edges, sizeof edges);
    return 0;
}

static int free_execs(void **state)
{
    (void)state;
    lki_test_execs_free(execs, exec_count);
    return 0;
}

static void adds_and_fills(void **state)
{
    (void)state;
    for (size_t e = 0; e < exec_count; e++)
        for (size_t c = 0; c < COUNTS; c++) {
            memcpy(want, start, sizeof want);
            memcpy(got, start, sizeof got);
            for (size_t i = 0; i < counts[c]; i++)
                want[i] += x[i];
            lki_accumulate(execs[e], LK_F32, counts[c], x, got);
            assert_memory_equal(got, want, sizeof got);
            for (size_t i = 0; i < counts[c]; i++)
                want[i] = -1.5f;
            lki_fill(execs[e], counts[c], -1.5f, got);
            assert_memory_equal(got, want, sizeof got);
        }
}

static void activates(void **state)
{
    (void)state;
    for (int act = LKI_ACT_NONE; act <= LKI_ACT_GELU_ERF; act++)
        for (size_t c = 0; c < COUNTS; c++) {
            memcpy(want, start, sizeof want);
            for (size_t i = 0; i < counts[c]; i++)
                want[i] = lki_reference_activate((lki_activation)act, x[i]);
            for (size_t e = 0; e < exec_count; e++) {
                memcpy(got, start, sizeof got);
                lki_activate(execs[e], LK_F32, (lki_activation)act, counts[c], x, got);
                assert_memory_equal(got, want, sizeof got);
            }
        }
}

static void activates_backward(void **state)
{
    (void)state;
    for (int act = LKI_ACT_NONE; act <= LKI_ACT_GELU_ERF; act++)
        for (int add = 0; add < 2; add++) {
            memcpy(want, start, sizeof want);
            for (size_t i = 0; i < 33001; i++) {
                float d = dy[i] * lki_reference_activate_slope((lki_activation)act, x[i]);
                want[i] = add ? want[i] + d : d;
            }
            for (size_t e = 0; e < exec_count; e++) {
                memcpy(got, start, sizeof got);
                lki_activate_backward(execs[e], LK_F32, (lki_activation)act, 33001, x, dy, got,
                                      add);
                assert_memory_equal(got, want, sizeof got);
            }
        }
}

/* Computes the reference in two passes: the whole dz, then its column sums. */
static void one_bias_backward(lki_activation act, size_t m, size_t n)
{
    static float want_dz[ROOM], got_dz[ROOM];
    memcpy(want, start, sizeof want);
    memcpy(want_dz, act == LKI_ACT_NONE ? dy : start, sizeof want_dz);
    for (size_t i = 0; i < m * n && act != LKI_ACT_NONE; i++)
        want_dz[i] = dy[i] * lki_reference_activate_slope(act, x[i]);
    lki_reference_bias_backward(m, n, want_dz, want);
    for (size_t e = 0; e < exec_count; e++) {
        memcpy(got, start, sizeof got);
        memcpy(got_dz, act == LKI_ACT_NONE ? dy : start, sizeof got_dz);
        lki_bias_backward(execs[e], LK_F32, act, m, n, x, dy, got_dz, got);
        assert_memory_equal(got, want, sizeof got);
        assert_memory_equal(got_dz, want_dz, sizeof got_dz);
    }
}

static void sums_biases(void **state)
{
    static const size_t widths[] = { 1, 16, 63, 128, 200, 1025 };
    (void)state;
    for (int act = LKI_ACT_NONE; act <= LKI_ACT_GELU_ERF; act++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
            one_bias_backward((lki_activation)act, 33, widths[w]);
}

/* ---- In bf16 ----------------------------------------------------------------------------- */

static uint16_t x16[ROOM], dy16[ROOM], start16[ROOM], got16[ROOM];

static void narrow(const float *from, uint16_t *to)
{
    for (size_t i = 0; i < ROOM; i++)
        to[i] = lki_bf16_narrow(from[i]);
}

/* Asserts that the first n values of got16 are `want` rounded, and that all other values of got16
 * still equal start16. */
static void assert_rounded(size_t n)
{
    for (size_t i = 0; i < ROOM; i++)
        assert_int_equal(got16[i], i < n ? lki_bf16_narrow(want[i]) : start16[i]);
}

/* Compares with the results of FP32 for the same values, rounded once. */
static void rounds_once_in_bf16(void **state)
{
    static float    wide_x[ROOM], wide_dy[ROOM], wide_start[ROOM];
    lki_dropout_key key = { .seed = 9, .step = 4, .first_slot = 6, .layer = 3, .p = 0.1f };
    lk_exec        *one = execs[0];
    (void)state;
    narrow(x, x16);
    narrow(dy, dy16);
    narrow(start, start16);
    lki_convert(one, ROOM, LK_BF16, x16, LK_F32, wide_x);
    lki_convert(one, ROOM, LK_BF16, dy16, LK_F32, wide_dy);
    lki_convert(one, ROOM, LK_BF16, start16, LK_F32, wide_start);
    for (size_t e = 0; e < exec_count; e++)
        for (size_t c = 0; c < COUNTS; c++) {
            size_t         n   = counts[c];
            lki_activation act = (lki_activation)(c % 4);
            memcpy(got16, start16, sizeof got16);
            lki_accumulate(execs[e], LK_BF16, n, x16, got16);
            lki_add(one, LK_F32, n, wide_start, wide_x, want);
            assert_rounded(n);
            memcpy(got16, start16, sizeof got16);
            lki_activate(execs[e], LK_BF16, act, n, x16, got16);
            lki_activate(one, LK_F32, act, n, wide_x, want);
            assert_rounded(n);
            memcpy(got16, start16, sizeof got16);
            memcpy(want, wide_start, sizeof want);
            lki_activate_backward(execs[e], LK_BF16, act, n, x16, dy16, got16, c & 1);
            lki_activate_backward(one, LK_F32, act, n, wide_x, wide_dy, want, c & 1);
            assert_rounded(n);
            memcpy(got16, start16, sizeof got16);
            memcpy(want, wide_start, sizeof want);
            lki_dropout(execs[e], LK_BF16, key, 1, n, dy16, got16, c & 1);
            lki_dropout(one, LK_F32, key, 1, n, wide_dy, want, c & 1);
            assert_rounded(n);
        }
}

/* Values are not rounded before they are summed, so the sums are those of FP32. */
static void sums_biases_in_bf16(void **state)
{
    static float wide_x[ROOM], wide_dy[ROOM], want_sums[ROOM], dz[ROOM];
    enum { M = 33, N = 333 };
    (void)state;
    lki_convert(execs[0], ROOM, LK_BF16, x16, LK_F32, wide_x);
    lki_convert(execs[0], ROOM, LK_BF16, dy16, LK_F32, wide_dy);
    for (int act = LKI_ACT_NONE; act <= LKI_ACT_GELU_ERF; act++)
        for (size_t e = 0; e < exec_count; e++) {
            size_t made = act == LKI_ACT_NONE ? 0 : M * N;
            memcpy(want_sums, start, sizeof want_sums);
            memcpy(got, start, sizeof got);
            memcpy(got16, start16, sizeof got16);
            lki_bias_backward(execs[0], LK_F32, (lki_activation)act, M, N, wide_x, wide_dy, dz,
                              want_sums);
            lki_bias_backward(execs[e], LK_BF16, (lki_activation)act, M, N, x16, dy16, got16, got);
            assert_memory_equal(got, want_sums, sizeof got);
            memcpy(want, dz, sizeof want);
            assert_rounded(made);
        }
}

static void slopes_are_derivatives(void **state)
{
    (void)state;
    for (int act = LKI_ACT_GELU_TANH; act <= LKI_ACT_GELU_ERF; act++)
        for (float at = -6.0f; at < 6.0f; at += 0.37f) {
            float h = 1e-2f, slope = lki_reference_activate_slope((lki_activation)act, at);
            float up   = lki_reference_activate((lki_activation)act, at + h);
            float down = lki_reference_activate((lki_activation)act, at - h);
            assert_true(fabsf((up - down) / (2 * h) - slope) < 1e-3f);
        }
}

static void drops_by_slot_and_element(void **state)
{
    (void)state;
    static const size_t widths[] = { 1, 5, 64, 777, 16390 };
    lki_dropout_key     key      = { .seed = 9, .step = 4, .first_slot = 6, .layer = 3, .p = 0.1f };
    for (size_t w = 0; w < 5; w++)
        for (int add = 0; add < 2; add++) {
            memcpy(want, start, sizeof want);
            lki_reference_dropout(key, 2, widths[w], dy, want, add);
            for (size_t e = 0; e < exec_count; e++) {
                memcpy(got, start, sizeof got);
                lki_dropout(execs[e], LK_F32, key, 2, widths[w], dy, got, add);
                assert_memory_equal(got, want, sizeof got);
                lki_dropout_key second = key; /* only sample 1, as on another worker */
                second.first_slot++;
                memcpy(got, start, sizeof got);
                lki_dropout(execs[e], LK_F32, second, 1, widths[w], dy + widths[w],
                            got + widths[w], add);
                assert_memory_equal(got + widths[w], want + widths[w], widths[w] * sizeof *got);
            }
        }
}

static void dropout_keeps_the_requested_share(void **state)
{
    (void)state;
    lki_dropout_key key = { .seed = 1, .p = 0.25f };
    for (size_t i = 0; i < ROOM; i++)
        want[i] = 1.0f;
    lki_dropout(execs[0], LK_F32, key, 1, ROOM, want, got, false);
    size_t kept = 0;
    for (size_t i = 0; i < ROOM; i++)
        kept += got[i] != 0.0f;
    assert_true(kept > 29600 && kept < 30400);
}

static void starts_parameters(void **state)
{
    (void)state;
    lk_param            params[] = { { .init = LK_INIT_ZERO },
                                     { .init = LK_INIT_ONE },
                                     { .init = LK_INIT_NORMAL, .scale = 0.02f },
                                     { .init = LK_INIT_UNIFORM, .scale = 0.3f } };
    static const size_t begins[] = { 0, 3, 64, 16381, (size_t)1 << 36 };
    for (size_t k = 0; k < 4; k++)
        for (size_t b = 0; b < 5; b++) {
            size_t n = 17000;
            for (size_t i = 0; i < n; i++)
                want[i] = lki_reference_init(7, 5, &params[k], begins[b] + i);
            for (size_t e = 0; e < exec_count; e++) {
                lki_init_param(execs[e], 7, 5, &params[k], begins[b], n, got);
                assert_memory_equal(got, want, n * sizeof *got);
            }
        }
}

static void normal_values_are_normal(void **state)
{
    (void)state;
    lk_param param = { .init = LK_INIT_NORMAL, .scale = 1.0f };
    double   sum = 0, squares = 0, fourth = 0;
    lki_init_param(execs[0], 1, 0, &param, 0, ROOM, got);
    for (size_t i = 0; i < ROOM; i++) {
        double z = (double)got[i];
        sum += z;
        squares += z * z;
        fourth += z * z * z * z;
    }
    assert_true(fabs(sum / ROOM) < 0.02);
    assert_true(fabs(squares / ROOM - 1.0) < 0.03);
    assert_true(fabs(fourth / ROOM - 3.0) < 0.25);
}

static void sums_squares_on_sixteen_lanes(void **state)
{
    (void)state;
    for (size_t c = 0; c < COUNTS && counts[c] <= LKI_NORM_BLOCK; c++) {
        double plain = lki_reference_sum_squares(counts[c], x + 9), chain = 0.0;
        for (size_t i = 0; i < counts[c]; i++)
            chain += (double)x[9 + i] * (double)x[9 + i];
        for (size_t e = 0; e < exec_count; e++) {
            double sum = lki_block_sum_squares(execs[e], counts[c], x + 9);
            assert_memory_equal(&sum, &plain, sizeof sum);
        }
        if (counts[c] == 1000)
            assert_true(chain != plain); /* so a plain chain would be detected */
    }
}

static void sums_squares_of_many_blocks_as_of_each(void **state)
{
    enum { BLOCKS = 11 };
    const size_t n[BLOCKS] = { 4096, 4096, 4000, 4096, 1, 0, 33, 16, 4096, 17, 4095 };
    const float *from[BLOCKS];
    double       sums[BLOCKS];
    (void)state;
    for (size_t i = 0; i < BLOCKS; i++)
        from[i] = x + 5 * i;
    for (size_t e = 0; e < exec_count; e++)
        for (size_t count = 0; count <= BLOCKS; count++) {
            lki_block_sums_squares(execs[e], count, n, from, sums);
            for (size_t i = 0; i < count; i++) {
                double plain = lki_reference_sum_squares(n[i], from[i]);
                assert_memory_equal(&sums[i], &plain, sizeof plain);
            }
        }
}

static void sums_doubles_by_the_tree(void **state)
{
    (void)state;
    double d[7] = { 1e16, 1.0, -1e16, 1.0, 3.0, 1e-3, 7.0 };
    double tree = ((d[0] + d[1]) + (d[2] + d[3])) + ((d[4] + d[5]) + d[6]);
    double got7 = lki_tree_sum_f64(d, 7);
    assert_memory_equal(&got7, &tree, sizeof tree);
    assert_true(lki_tree_sum_f64(d, 0) == 0.0 && lki_tree_sum_f64(d, 1) == 1e16);
}

/* Parameters and the state of an optimizer with moments.  [0] is the reference's, [1] the
 * kernel's. */
typedef struct {
    float p[2][1000], m[2][1000], v[2][1000];
} moments;

static void moments_start(moments *a)
{
    memset(a, 0, sizeof *a);
    for (int i = 0; i < 2; i++)
        memcpy(a->p[i], start, sizeof a->p[i]);
}

static void assert_same_moments(const moments *a)
{
    assert_memory_equal(a->p[1], a->p[0], sizeof a->p[0]);
    assert_memory_equal(a->m[1], a->m[0], sizeof a->m[0]);
    assert_memory_equal(a->v[1], a->v[0], sizeof a->v[0]);
}

static lki_adamw_step step_with_moments(uint64_t t, double eps)
{
    return (lki_adamw_step){ 1e-2,
                             0.9,
                             0.999,
                             eps,
                             0.1,
                             1.0 - lki_powi(0.9, t),
                             sqrt(1.0 - lki_powi(0.999, t)),
                             0.125f,
                             0.7f };
}

static void updates_by_adamw(void **state)
{
    (void)state;
    static moments a;
    for (size_t e = 0; e < exec_count; e++) {
        moments_start(&a);
        for (uint64_t t = 1; t <= 3; t++) {
            lki_adamw_step step = step_with_moments(t, 1e-8);
            lki_reference_adamw(&step, 1000, dy + t, a.p[0], a.m[0], a.v[0]);
            lki_adamw(execs[e], &step, 333, dy + t, a.p[1], a.m[1], a.v[1]); /* in two parts */
            lki_adamw(execs[e], &step, 667, dy + t + 333, a.p[1] + 333, a.m[1] + 333,
                      a.v[1] + 333);
        }
        assert_same_moments(&a);
    }
}

static void updates_by_sgd(void **state)
{
    (void)state;
    static float p[2][1000], b[2][1000];
    for (size_t e = 0; e < exec_count; e++)
        for (int way = 0; way < 4; way++) {
            for (int i = 0; i < 2; i++)
                memcpy(p[i], start, sizeof p[i]);
            for (int t = 0; t < 3; t++) {
                lki_sgd_step step = { .inner        = way == 3 ? 0.3f : 1.0f,
                                      .outer        = 0.1f,
                                      .momentum     = way == 0 ? 0.0f : 0.9f,
                                      .weight_decay = 1e-3f,
                                      .nesterov     = way == 2,
                                      .first        = t == 0,
                                      .scale        = 0.5f,
                                      .clip         = 0.9f };
                lki_reference_sgd(&step, 1000, dy + t, p[0], way == 0 ? NULL : b[0]);
                lki_sgd(execs[e], &step, 1000, dy + t, p[1], way == 0 ? NULL : b[1]);
            }
            assert_memory_equal(p[1], p[0], sizeof p[0]);
        }
}

static void updates_by_lamb(void **state)
{
    (void)state;
    static moments a;
    static float   g[2][1000];
    for (size_t e = 0; e < exec_count; e++) {
        moments_start(&a);
        for (uint64_t t = 1; t <= 3; t++) {
            lki_adamw_step step = step_with_moments(t, 1e-6);
            for (int i = 0; i < 2; i++)
                memcpy(g[i], dy + t, sizeof g[i]);
            lki_reference_lamb_direction(&step, 1000, g[0], a.p[0], a.m[0], a.v[0]);
            lki_lamb_direction(execs[e], &step, 333, g[1], a.p[1], a.m[1], a.v[1]);
            lki_lamb_direction(execs[e], &step, 667, g[1] + 333, a.p[1] + 333, a.m[1] + 333,
                               a.v[1] + 333);
            for (int i = 0; i < 1000; i++)
                a.p[0][i] = fmaf(-0.03f, g[0][i], a.p[0][i]);
            lki_descend(execs[e], 0.03f, 1000, g[1], a.p[1]);
        }
        assert_same_moments(&a);
    }
}

static void updates_by_lion(void **state)
{
    (void)state;
    static float p[2][1000], m[2][1000], g[1000];
    lki_adamw_step step = { .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1,
                            .scale = 0.5f, .clip = 0.9f };
    for (size_t e = 0; e < exec_count; e++) {
        for (int i = 0; i < 2; i++) {
            memcpy(p[i], start, sizeof p[i]);
            memset(m[i], 0, sizeof m[i]);
        }
        for (int t = 0; t < 3; t++) {
            memcpy(g, dy + t, sizeof g);
            /* a zero gradient has no sign, so the first step does not change these parameters */
            g[7] = g[500] = 0;
            lki_reference_lion(&step, 1000, g, p[0], m[0]);
            lki_lion(execs[e], &step, 333, g, p[1], m[1]);
            lki_lion(execs[e], &step, 667, g + 333, p[1] + 333, m[1] + 333);
        }
        assert_memory_equal(p[1], p[0], sizeof p[0]);
        assert_memory_equal(m[1], m[0], sizeof m[0]);
    }
}

static void updates_by_adagrad(void **state)
{
    (void)state;
    static moments   a;
    lki_adagrad_step step = { .lr = 0.01f, .eps = 1e-10f, .weight_decay = 0.1f, .scale = 0.5f,
                              .clip = 0.9f };
    for (size_t e = 0; e < exec_count; e++) {
        moments_start(&a);
        for (int t = 0; t < 3; t++) {
            lki_reference_adagrad(&step, 1000, dy + t, a.p[0], a.m[0]);
            lki_adagrad(execs[e], &step, 333, dy + t, a.p[1], a.m[1]);
            lki_adagrad(execs[e], &step, 667, dy + t + 333, a.p[1] + 333, a.m[1] + 333);
        }
        assert_same_moments(&a);
    }
}

/* The gradient of the third step is smaller than the first two, so that squares become smaller. */
static void updates_by_yogi(void **state)
{
    (void)state;
    static moments a;
    uint32_t       smaller = 0;
    for (size_t e = 0; e < exec_count; e++) {
        moments_start(&a);
        for (uint64_t t = 1; t <= 3; t++) {
            lki_adamw_step step  = step_with_moments(t, 1e-3);
            float          above = a.v[0][7];
            step.scale           = t == 3 ? 1e-3f : step.scale;
            lki_reference_yogi(&step, 1000, dy + t, a.p[0], a.m[0], a.v[0]);
            lki_yogi(execs[e], &step, 333, dy + t, a.p[1], a.m[1], a.v[1]);
            lki_yogi(execs[e], &step, 667, dy + t + 333, a.p[1] + 333, a.m[1] + 333, a.v[1] + 333);
            smaller += a.v[0][7] < above;
        }
        assert_same_moments(&a);
    }
    assert_int_equal(smaller, exec_count);
}

/* Compares one hash of all results, so that builds by different compilers can be compared. */
static void has_the_known_bits(void **state)
{
    (void)state;
    lki_sha256 hash;
    char       hex[65];
    lk_param   param = { .init = LK_INIT_NORMAL, .scale = 0.02f };
    lki_sha256_begin(&hash);
    for (int act = LKI_ACT_RELU; act <= LKI_ACT_GELU_ERF; act++) {
        lki_activate(execs[0], LK_F32, (lki_activation)act, ROOM, x, got);
        lki_sha256_add(&hash, got, sizeof got);
        lki_activate_backward(execs[0], LK_F32, (lki_activation)act, ROOM, x, dy, got, false);
        lki_sha256_add(&hash, got, sizeof got);
    }
    lki_init_param(execs[0], 1, 2, &param, 0, ROOM, got);
    lki_sha256_add(&hash, got, sizeof got);
    lk_gemm(execs[0], false, true, 50, 60, 400, x, dy, got, false);
    lki_sha256_add(&hash, got, sizeof *got * 50 * 60);
    lki_sha256_end(&hash, hex);
    assert_string_equal(hex, "e380dbedd0493567bdf4c1b9a4ae0bc00d191b1e9e4fa2c2b6cd4013d6e4c082");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adds_and_fills),
        cmocka_unit_test(activates),
        cmocka_unit_test(activates_backward),
        cmocka_unit_test(sums_biases),
        cmocka_unit_test(rounds_once_in_bf16),
        cmocka_unit_test(sums_biases_in_bf16),
        cmocka_unit_test(slopes_are_derivatives),
        cmocka_unit_test(drops_by_slot_and_element),
        cmocka_unit_test(dropout_keeps_the_requested_share),
        cmocka_unit_test(starts_parameters),
        cmocka_unit_test(normal_values_are_normal),
        cmocka_unit_test(sums_squares_on_sixteen_lanes),
        cmocka_unit_test(sums_squares_of_many_blocks_as_of_each),
        cmocka_unit_test(sums_doubles_by_the_tree),
        cmocka_unit_test(updates_by_adamw),
        cmocka_unit_test(updates_by_sgd),
        cmocka_unit_test(updates_by_lamb),
        cmocka_unit_test(updates_by_lion),
        cmocka_unit_test(updates_by_adagrad),
        cmocka_unit_test(updates_by_yogi),
        cmocka_unit_test(has_the_known_bits),
    };
    return cmocka_run_group_tests(tests, open_execs, free_execs);
}
