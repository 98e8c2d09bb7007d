/* onednn_test.c -- oneDNN's results equal Lockstep's up to rounding, in every mode of the
 * operators.
 *
 * The operators that oneDNN does not compute keep their bits. */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "tensor/ops/conv_testing.h"
#include "tensor/tensor_testing.h"

enum { SKIPPED = 77, ROOM = 40 * 48 };

static char path[4096];

typedef struct { lk_exec *own, *other; } pair;

static pair open_pair(void)
{
    pair p = { NULL, NULL };
    assert_int_equal(lk_exec_open(&p.own, 1, NULL), LK_OK);
    assert_int_equal(lk_exec_open(&p.other, 1, NULL), LK_OK);
    assert_int_equal(lk_exec_use_onednn(p.other, path), LK_OK);
    return p;
}

/* Closes a pair, and checks that oneDNN computed everything: Lockstep's own kernels replaced it for
 * no shape. */
static void close_pair(pair *p)
{
    const char *failure;
    assert_null(lk_exec_onednn(p->own, &failure));
    assert_non_null(lk_exec_onednn(p->other, &failure));
    assert_null(failure);
    lk_exec_free(p->own);
    lk_exec_free(p->other);
}

static void assert_near(const float *got, const float *want, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!(got[i] - want[i] < 1e-4f && want[i] - got[i] < 1e-4f))
            fail_msg("element %zu is %g, not %g", i, (double)got[i], (double)want[i]);
}

/* Multiplies in the modes that the bits of `modes` select: a transposed, b transposed, accumulate,
 * bias, GELU with pre, residual, rows with gaps. */
static void multiply(lk_exec *exec, unsigned modes, float *c, float *pre)
{
    static float a[ROOM], b[ROOM], bias[48], residual[ROOM];
    lki_test_fill(a, ROOM, 1, 1.0f);
    lki_test_fill(b, ROOM, 2, 1.0f);
    lki_test_fill(bias, 48, 3, 1.0f);
    lki_test_fill(residual, ROOM, 4, 1.0f);
    lki_test_fill(c, ROOM, 5, 1.0f);
    lki_gemm(exec, &(lki_gemm_args){ .transpose_a = modes & 1,
                                     .transpose_b = modes & 2,
                                     .accumulate  = modes & 4,
                                     .m           = 33,
                                     .n           = 31,
                                     .k           = 29,
                                     .a           = a,
                                     .b           = b,
                                     .c           = c,
                                     .lda         = modes & 64 ? 40 : 0,
                                     .ldb         = modes & 64 ? 41 : 0,
                                     .ldc         = modes & 64 ? 47 : 0,
                                     .bias        = modes & 8 ? bias : NULL,
                                     .activation  = modes & 16 ? LKI_ACT_GELU_TANH : LKI_ACT_NONE,
                                     .pre         = modes & 16 ? pre : NULL,
                                     .residual    = modes & 32 ? residual : NULL });
}

static void products_are_near_ours(void **state)
{
    static float c[2][ROOM], pre[2][ROOM];
    pair         p = open_pair();
    (void)state;
    for (unsigned modes = 0; modes < 128; modes++) {
        multiply(p.own, modes, c[0], pre[0]);
        multiply(p.other, modes, c[1], pre[1]);
        assert_near(c[1], c[0], ROOM);
        assert_near(pre[1], pre[0], ROOM);
    }
    close_pair(&p);
}

/* Lockstep's own kernels compute products of 16-bit values and empty products. */
static void other_operators_keep_their_bits(void **state)
{
    uint16_t a[9 * 7], b[7 * 5];
    float    c[2][9 * 5], none[2] = { 3, 3 };
    pair     p = open_pair();
    (void)state;
    for (size_t i = 0; i < 9 * 7; i++)
        a[i] = (uint16_t)(0x3f80 + i);
    for (size_t i = 0; i < 7 * 5; i++)
        b[i] = (uint16_t)(0x3f00 + 3 * i);
    for (size_t e = 0; e < 2; e++) {
        lk_exec *exec = e == 0 ? p.own : p.other;
        lki_gemm(exec, &(lki_gemm_args){ .operands = LK_BF16, .m = 9, .n = 5, .k = 7, .a = a,
                                         .b = b, .c = c[e] });
        lki_gemm(exec, &(lki_gemm_args){ .m = 1, .n = 1, .a = c[e], .b = c[e], .c = &none[e] });
    }
    assert_memory_equal(c[0], c[1], sizeof c[0]);
    assert_true(none[0] == 0 && none[1] == 0);
    close_pair(&p);
}

static void convolve(lk_exec *exec, const lki_conv_shape *s, bool add, float *of[3])
{
    counts c       = counts_of(s);
    float *x       = nn_values(c.x, 1), *w = nn_values(c.w, 2), *dy = nn_values(c.y, 3);
    void  *scratch = nn_bytes(lki_conv_scratch_bytes(exec, s, 1));
    lki_conv(exec, s, x, w, of[0], scratch, NULL);
    lki_conv_backward_input(exec, s, dy, w, of[1], add, scratch, NULL);
    lki_conv_backward_weights(exec, s, x, dy, of[2], add, NULL, scratch);
    free(x);
    free(w);
    free(dy);
    free(scratch);
}

static void convolutions_are_near_ours(void **state)
{
    pair p = open_pair();
    (void)state;
    for (size_t i = 0; i < 2 * SHAPES; i++) {
        lki_conv_shape s = shape_at(i / 2);
        counts         c = counts_of(&s);
        size_t         sizes[3] = { c.y, c.x, c.w };
        float         *own[3], *other[3];
        for (size_t k = 0; k < 3; k++) {
            own[k]   = nn_values(sizes[k], 4);
            other[k] = nn_values(sizes[k], 4);
        }
        convolve(p.own, &s, i % 2 != 0, own);
        convolve(p.other, &s, i % 2 != 0, other);
        for (size_t k = 0; k < 3; k++) {
            for (size_t e = 0; e < sizes[k]; e++)
                if (!(fabsf(other[k][e] - own[k][e]) < 1e-3f + 1e-4f * fabsf(own[k][e])))
                    fail_msg("shape %zu, result %zu: element %zu is %g, not %g", i / 2, k, e,
                             (double)other[k][e], (double)own[k][e]);
            free(own[k]);
            free(other[k]);
        }
    }
    close_pair(&p);
}

static void a_file_that_is_no_module_is_refused(void **state)
{
    lk_exec *exec = NULL;
    (void)state;
    assert_int_equal(lk_exec_open(&exec, 1, NULL), LK_OK);
    assert_int_equal(lk_exec_use_onednn(exec, "/nowhere/lockstep-onednn.so"), LK_EUNSUPPORTED);
    assert_non_null(strstr(lk_error_last()->message, "/nowhere/lockstep-onednn.so"));
    assert_int_equal(lk_exec_use_onednn(exec, "libc.so.6"), LK_EUNSUPPORTED);
    assert_non_null(strstr(lk_error_last()->message, "not of this version"));
    lk_exec_free(exec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_near_ours),
        cmocka_unit_test(other_operators_keep_their_bits),
        cmocka_unit_test(convolutions_are_near_ours),
        cmocka_unit_test(a_file_that_is_no_module_is_refused),
    };
    static const char command[] = LK_TEST_COMMAND; /* BUILD/bin/lockstep */
    (void)snprintf(path, sizeof path, "%.*s/../lib/lockstep/lockstep-onednn.so",
                   (int)(strrchr(command, '/') - command), command);
    if (access(path, R_OK) != 0) {
        printf("skipped: this build has no %s (package libdnnl-dev)\n", path);
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
