/* decoder_test.c -- RMSNorm, rotary embeddings and SwiGLU have the reference's bits on every exec,
 * correct gradients, and in bf16 the results of FP32, rounded once. */
#include "tensor/ops/nn_testing.h"

/* ---- RMSNorm ----------------------------------------------------------------------------- */

typedef struct { size_t rows, c; } shape;

static const shape shapes[] = { { 1, 1 }, { 3, 5 }, { 70, 16 }, { 37, 33 }, { 33, 130 } };

enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Memory for one call, with values that do not depend on the call. */
static lki_rmsnorm_args rms_new(shape s, bool add)
{
    size_t n = s.rows * s.c;
    return (lki_rmsnorm_args){ .type = LK_F32, .rows = s.rows, .c = s.c, .eps = 1e-3f,
                               .x = nn_values(n, 1), .gamma = nn_values(s.c, 2),
                               .y = nn_values(n, 3), .rstd = nn_values(s.rows, 4),
                               .dy = nn_values(n, 5), .dx = nn_values(n, 6), .add = add,
                               .dgamma = nn_values(s.c, 7) };
}

static void rms_free(lki_rmsnorm_args *a)
{
    void *const all[] = { (void *)(uintptr_t)a->x, (void *)(uintptr_t)a->gamma, a->y, a->rstd,
                          (void *)(uintptr_t)a->dy, a->dx, a->dgamma };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void rmsnorm_bits(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < 2 * SHAPES; i++) {
        shape            s    = shapes[i / 2];
        lki_rmsnorm_args want = rms_new(s, i % 2 != 0);
        lki_reference_rmsnorm(&want);
        lki_reference_rmsnorm_backward(&want);
        for (size_t k = 0; k < m.count; k++) {
            lki_rmsnorm_args got = rms_new(s, i % 2 != 0);
            lki_rmsnorm(m.exec[k], &got);
            lki_rmsnorm_backward(m.exec[k], &got);
            nn_same(m.exec[k], "y", s.rows * s.c, got.y, want.y);
            nn_same(m.exec[k], "rstd", s.rows, got.rstd, want.rstd);
            nn_same(m.exec[k], "dx", s.rows * s.c, got.dx, want.dx);
            nn_same(m.exec[k], "dgamma", s.c, got.dgamma, want.dgamma);
            rms_free(&got);
        }
        rms_free(&want);
    }
    nn_machines_free(&m);
}

static void rmsnorm_bits_in_bf16(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < 2 * SHAPES; i++) {
        shape            s = shapes[i / 2];
        size_t           n = s.rows * s.c;
        lki_rmsnorm_args want = rms_new(s, i % 2 != 0);
        uint16_t        *x = nn_bf16((float *)(uintptr_t)want.x, n), *start = nn_bf16(want.dx, n);
        uint16_t        *dy = nn_bf16((float *)(uintptr_t)want.dy, n);
        uint16_t        *y = nn_bytes(n * sizeof *y), *dx = nn_bytes(n * sizeof *dx);
        lki_reference_rmsnorm(&want);
        lki_reference_rmsnorm_backward(&want);
        for (size_t k = 0; k < m.count; k = lki_test_next_isa(m.exec, m.count, k)) {
            lki_rmsnorm_args own = rms_new(s, i % 2 != 0), got = own;
            memcpy(dx, start, n * sizeof *dx);
            got.type = LK_BF16;
            got.x    = x;
            got.y    = y;
            got.dy   = dy;
            got.dx   = dx;
            lki_rmsnorm(m.exec[k], &got);
            lki_rmsnorm_backward(m.exec[k], &got);
            nn_same_rounded(m.exec[k], "y", n, y, want.y);
            nn_same_rounded(m.exec[k], "dx", n, dx, want.dx);
            nn_same(m.exec[k], "dgamma", s.c, got.dgamma, want.dgamma);
            rms_free(&own);
        }
        void *const all[] = { x, start, dy, y, dx };
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
            free(all[k]);
        rms_free(&want);
    }
    nn_machines_free(&m);
}

typedef struct { shape s; double eps, *x, *gamma, *dy; } exact;

static double exact_rmsnorm(const void *context)
{
    const exact *e = context;
    double       loss = 0;
    for (size_t r = 0; r < e->s.rows; r++) {
        const double *x = e->x + r * e->s.c, *dy = e->dy + r * e->s.c;
        double        squares = 0, sum = 0;
        for (size_t i = 0; i < e->s.c; i++) {
            squares += x[i] * x[i];
            sum += dy[i] * x[i] * e->gamma[i];
        }
        loss += sum / sqrt(squares / (double)e->s.c + e->eps);
    }
    return loss;
}

static void rmsnorm_gradients(void **state)
{
    lk_exec *exec = NULL;
    (void)state;
    assert_int_equal(lk_exec_open(&exec, 2, NULL), LK_OK);
    for (size_t i = 1; i < SHAPES; i++) {
        shape            s = shapes[i];
        lki_rmsnorm_args a = rms_new(s, false);
        float           *before = nn_copy(a.dgamma, s.c);
        exact            e = { s, (double)a.eps, nn_doubles(a.x, s.rows * s.c),
                               nn_doubles(a.gamma, s.c), nn_doubles(a.dy, s.rows * s.c) };
        lki_rmsnorm(exec, &a);
        lki_rmsnorm_backward(exec, &a);
        nn_gradient("dx", exact_rmsnorm, &e, e.x, s.rows * s.c, a.dx, NULL);
        nn_gradient("dgamma", exact_rmsnorm, &e, e.gamma, s.c, a.dgamma, before);
        free(before);
        free(e.x);
        free(e.gamma);
        free(e.dy);
        rms_free(&a);
    }
    lk_exec_free(exec);
}

/* ---- Rotary embeddings ------------------------------------------------------------------- */

static const lki_rope_scale plain = { .theta = 10000 };
static const lki_rope_scale longer = { .theta = 500000, .factor = 8, .low = 1, .high = 4,
                                       .original = 8192 };

/* Computes the frequency of pair i by the definition, in doubles. */
static double exact_frequency(const lki_rope_scale *s, size_t size, size_t i)
{
    double f = pow(s->theta, -(double)(2 * i) / (double)size), length = 2 * M_PI / f;
    double old = (double)s->original;
    if (!(s->factor > 0) || length < old / s->high)
        return f;
    if (length > old / s->low)
        return f / s->factor;
    double smooth = (old / length - s->low) / (s->high - s->low);
    return (1 - smooth) * f / s->factor + smooth * f;
}

/* Cosines and sines are correctly rounded, and are those of the frequencies. */
static void rope_tables_are_correct(void **state)
{
    enum { T = 3000, SIZE = 64 };
    const lki_rope_scale *const scales[] = { &plain, &longer };
    float *table = nn_bytes(T * SIZE * sizeof *table);
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        lki_rope_table(scales[k], T, SIZE, table);
        for (size_t i = 0; i < SIZE / 2; i++) {
            double want = exact_frequency(scales[k], SIZE, i);
            /* position 1 has the frequency itself */
            double f = atan2((double)table[SIZE + SIZE / 2 + i], (double)table[SIZE + i]);
            assert_true(fabs(f - want) < 1e-6 * want);
            float base = (float)want;
            for (size_t p = 0; k == 0 && i == 0 && p < T; p++) { /* f(0) is 1 */
                double angle = (double)((float)p * base);
                assert_true(table[p * SIZE] == (float)cos(angle));
                assert_true(table[p * SIZE + SIZE / 2] == (float)sin(angle));
            }
        }
    }
    free(table);
}

typedef struct { size_t b, t, heads, size; } heads;

static const heads rotated[] = {
    { 1, 1, 1, 2 }, { 2, 5, 3, 6 }, { 2, 7, 2, 32 }, { 1, 40, 3, 50 }
};

enum { ROTATED = sizeof rotated / sizeof rotated[0] };

static void rope_bits(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < 4 * ROTATED; i++) {
        heads         h = rotated[i / 4];
        size_t        n = h.b * h.t * h.heads * h.size;
        lki_rope_args a = { .b = h.b, .t = h.t, .heads = h.heads, .size = h.size,
                            .back = i % 2 != 0, .add = i / 2 % 2 != 0 };
        float    *table = nn_bytes(h.t * h.size * sizeof *table), *x = nn_values(n, 1);
        float    *want = nn_values(n, 2), *start = nn_values(n, 2), *got = nn_values(n, 2);
        uint16_t *narrow = nn_bf16(x, n), *narrow_start = nn_bf16(start, n);
        uint16_t *y = nn_bytes(n * sizeof *y);
        memcpy(want, start, n * sizeof *want);
        lki_rope_table(&longer, h.t, h.size, table);
        a.table = table;
        a.x     = x;
        a.y     = want;
        lki_reference_rope(&a);
        for (size_t k = 0; k < m.count; k++) {
            memcpy(got, start, n * sizeof *got);
            a.type = LK_F32;
            a.x    = x;
            a.y    = got;
            lki_rope(m.exec[k], &a);
            nn_same(m.exec[k], "y", n, got, want);
            memcpy(y, narrow_start, n * sizeof *y);
            a.type = LK_BF16;
            a.x    = narrow;
            a.y    = y;
            lki_rope(m.exec[k], &a);
            nn_same_rounded(m.exec[k], "y in bf16", n, y, want);
        }
        void *const all[] = { table, x, want, start, got, narrow, narrow_start, y };
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
            free(all[k]);
    }
    nn_machines_free(&m);
}

/* A rotation back undoes a rotation, in place. */
static void rope_turns_back(void **state)
{
    enum { T = 50, SIZE = 16 };
    lk_exec      *exec  = NULL;
    float        *table = nn_bytes(T * SIZE * sizeof *table), *x = nn_values(T * SIZE, 1);
    float        *y     = nn_copy(x, T * SIZE);
    lki_rope_args a = { .type = LK_F32, .b = 1, .t = T, .heads = 1, .size = SIZE, .table = table,
                        .x = y, .y = y };
    (void)state;
    assert_int_equal(lk_exec_open(&exec, 2, NULL), LK_OK);
    lki_rope_table(&plain, T, SIZE, table);
    lki_rope(exec, &a);
    assert_true(fabs((double)y[T * SIZE - SIZE] - (double)x[T * SIZE - SIZE]) > 1e-3);
    a.back = true;
    lki_rope(exec, &a);
    for (size_t i = 0; i < T * SIZE; i++)
        assert_true(fabs((double)y[i] - (double)x[i]) < 1e-6);
    lk_exec_free(exec);
    free(table);
    free(x);
    free(y);
}

/* ---- SwiGLU ------------------------------------------------------------------------------ */

enum { MOST = 20000 };

static const size_t lengths[] = { 1, 16, 35, MOST };

static float *gates_new(void)
{
    static const float edges[] = { 0.0f, -0.0f, 100.0f, -100.0f, 20.0f, -20.0f, 1e-30f };
    float *gate = nn_values(MOST, 1);
    for (size_t i = 0; i < MOST; i++)
        gate[i] *= 6.0f;
    memcpy(gate + 9, edges, sizeof edges);
    return gate;
}

static void swiglu_bits(void **state)
{
    nn_machines m    = nn_machines_open();
    float      *gate = gates_new(), *up = nn_values(MOST, 2), *dy = nn_values(MOST, 3);
    float      *y = nn_bytes(MOST * sizeof *y), *want_y = nn_bytes(MOST * sizeof *y);
    (void)state;
    for (size_t i = 0; i < 8; i++) {
        bool   add = i % 2 != 0;
        size_t n   = lengths[i / 2];
        float *dgate = nn_values(n, 4), *dup = nn_values(n, 5);
        lki_swiglu_args a = { .type = LK_F32, .n = n, .gate = gate, .up = up, .y = want_y, .dy = dy,
                              .dgate = dgate, .dup = dup, .add_gate = add, .add_up = add };
        lki_reference_swiglu(&a);
        lki_reference_swiglu_backward(&a);
        for (size_t k = 0; k < m.count; k++) {
            lki_swiglu_args b = a;
            b.y               = y;
            b.dgate           = nn_values(n, 4);
            b.dup             = nn_values(n, 5);
            lki_swiglu(m.exec[k], &b);
            lki_swiglu_backward(m.exec[k], &b);
            nn_same(m.exec[k], "y", n, y, want_y);
            nn_same(m.exec[k], "dgate", n, b.dgate, dgate);
            nn_same(m.exec[k], "dup", n, b.dup, dup);
            free(b.dgate);
            free(b.dup);
        }
        free(dgate);
        free(dup);
    }
    void *const all[] = { gate, up, dy, y, want_y };
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
        free(all[k]);
    nn_machines_free(&m);
}

typedef struct { size_t n; double *gate, *up, *dy; } exact_glu;

static double exact_swiglu(const void *context)
{
    const exact_glu *e    = context;
    double           loss = 0;
    for (size_t i = 0; i < e->n; i++)
        loss += e->dy[i] * e->gate[i] / (1 + exp(-e->gate[i])) * e->up[i];
    return loss;
}

static void swiglu_gradients(void **state)
{
    enum { N = 150 };
    lk_exec  *exec = NULL;
    float    *gate = gates_new(), *up = nn_values(N, 2), *dy = nn_values(N, 3);
    float    *dgate = nn_values(N, 4), *dup = nn_values(N, 5);
    exact_glu e = { N, nn_doubles(gate, N), nn_doubles(up, N), nn_doubles(dy, N) };
    (void)state;
    assert_int_equal(lk_exec_open(&exec, 1, NULL), LK_OK);
    lki_swiglu_backward(exec, &(lki_swiglu_args){ .type = LK_F32, .n = N, .gate = gate, .up = up,
                                                  .dy = dy, .dgate = dgate, .dup = dup });
    nn_gradient("dgate", exact_swiglu, &e, e.gate, N, dgate, NULL);
    nn_gradient("dup", exact_swiglu, &e, e.up, N, dup, NULL);
    void *const all[] = { gate, up, dy, dgate, dup, e.gate, e.up, e.dy };
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
        free(all[k]);
    lk_exec_free(exec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_bits),     cmocka_unit_test(rmsnorm_bits_in_bf16),
        cmocka_unit_test(rmsnorm_gradients), cmocka_unit_test(rope_tables_are_correct),
        cmocka_unit_test(rope_bits),        cmocka_unit_test(rope_turns_back),
        cmocka_unit_test(swiglu_bits),      cmocka_unit_test(swiglu_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
