/* norm_test.c -- LayerNorm and BatchNorm have the reference's bits on every exec, and correct
 * gradients. */
#include "tensor/ops/nn_testing.h"

typedef struct { size_t rows, c; } shape;

static const shape shapes[] = {
    { 1, 1 }, { 3, 5 }, { 7, 16 }, { 37, 33 }, { 70, 130 }, { 257, 48 },
};

enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* The inputs of a norm, and one set of its results. */
typedef struct { float *x, *gamma, *beta, *dy; } inputs;
typedef struct { float *y, *mean, *rstd, *var, *dx, *dgamma, *dbeta; } outputs;

static inputs inputs_new(shape s)
{
    return (inputs){ nn_values(s.rows * s.c, 1), nn_values(s.c, 2), nn_values(s.c, 3),
                     nn_values(s.rows * s.c, 4) };
}

static void inputs_free(inputs *in)
{
    free(in->x);
    free(in->gamma);
    free(in->beta);
    free(in->dy);
}

static outputs outputs_new(shape s, size_t statistics)
{
    return (outputs){ .y      = nn_bytes(s.rows * s.c * sizeof(float)),
                      .mean   = nn_bytes(statistics * sizeof(float)),
                      .rstd   = nn_bytes(statistics * sizeof(float)),
                      .var    = nn_bytes(statistics * sizeof(float)),
                      .dx     = nn_values(s.rows * s.c, 5),
                      .dgamma = nn_values(s.c, 6),
                      .dbeta  = nn_values(s.c, 7) };
}

static void outputs_free(outputs *out)
{
    free(out->y);
    free(out->mean);
    free(out->rstd);
    free(out->var);
    free(out->dx);
    free(out->dgamma);
    free(out->dbeta);
}

static void outputs_same(const lk_exec *exec, shape s, size_t statistics, const outputs *got,
                         const outputs *want)
{
    nn_same(exec, "y", s.rows * s.c, got->y, want->y);
    nn_same(exec, "mean", statistics, got->mean, want->mean);
    nn_same(exec, "rstd", statistics, got->rstd, want->rstd);
    nn_same(exec, "var", statistics, got->var, want->var);
    nn_same(exec, "dx", s.rows * s.c, got->dx, want->dx);
    nn_same(exec, "dgamma", s.c, got->dgamma, want->dgamma);
    nn_same(exec, "dbeta", s.c, got->dbeta, want->dbeta);
}

static void one_layernorm(const nn_machines *m, shape s, bool add, const inputs *in)
{
    outputs want = outputs_new(s, s.rows);
    lki_reference_layernorm(s.rows, s.c, in->x, in->gamma, in->beta, want.y, want.mean, want.rstd);
    lki_reference_layernorm_backward(s.rows, s.c, in->x, in->gamma, want.mean, want.rstd, in->dy,
                                     want.dx, add, want.dgamma, want.dbeta);
    for (size_t k = 0; k < m->count; k++) {
        outputs got = outputs_new(s, s.rows);
        lki_layernorm(m->exec[k], LK_F32, s.rows, s.c, in->x, in->gamma, in->beta, got.y, got.mean,
                      got.rstd);
        lki_layernorm_backward(m->exec[k], LK_F32, s.rows, s.c, in->x, in->gamma, got.mean,
                               got.rstd, in->dy, got.dx, add, got.dgamma, got.dbeta);
        outputs_same(m->exec[k], s, s.rows, &got, &want);
        outputs_free(&got);
    }
    outputs_free(&want);
}

static void layernorm_bits(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < 2 * SHAPES; i++) {
        inputs in = inputs_new(shapes[i / 2]);
        one_layernorm(&m, shapes[i / 2], i % 2 != 0, &in);
        inputs_free(&in);
    }
    nn_machines_free(&m);
}

/* The values of a row are equal, and their mean times rstd is infinite.  Gradients are finite. */
static void layernorm_bits_of_large_values(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        shape  s  = shapes[i];
        inputs in = inputs_new(s);
        for (size_t j = 0; j < s.rows * s.c; j++)
            in.x[j] = 0x1p120f;
        one_layernorm(&m, s, false, &in);
        inputs_free(&in);
    }
    nn_machines_free(&m);
}

/* Statistics and the parameters' gradients are those of FP32, and y and dx are rounded once. */
static void layernorm_bits_in_bf16(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < 2 * SHAPES; i++) {
        shape     s    = shapes[i / 2];
        size_t    n    = s.rows * s.c;
        bool      add  = i % 2 != 0;
        inputs    in   = inputs_new(s);
        outputs   want = outputs_new(s, s.rows);
        uint16_t *x = nn_bf16(in.x, n), *dy = nn_bf16(in.dy, n), *start = nn_bf16(want.dx, n);
        uint16_t *y = nn_bytes(n * sizeof *y), *dx = nn_bytes(n * sizeof *dx);
        lki_reference_layernorm(s.rows, s.c, in.x, in.gamma, in.beta, want.y, want.mean, want.rstd);
        lki_reference_layernorm_backward(s.rows, s.c, in.x, in.gamma, want.mean, want.rstd, in.dy,
                                         want.dx, add, want.dgamma, want.dbeta);
        for (size_t k = 0; k < m.count; k++) {
            outputs got = outputs_new(s, s.rows);
            memcpy(dx, start, n * sizeof *dx);
            lki_layernorm(m.exec[k], LK_BF16, s.rows, s.c, x, in.gamma, in.beta, y, got.mean,
                          got.rstd);
            lki_layernorm_backward(m.exec[k], LK_BF16, s.rows, s.c, x, in.gamma, got.mean,
                                   got.rstd, dy, dx, add, got.dgamma, got.dbeta);
            nn_same_rounded(m.exec[k], "y", n, y, want.y);
            nn_same_rounded(m.exec[k], "dx", n, dx, want.dx);
            nn_same(m.exec[k], "mean", s.rows, got.mean, want.mean);
            nn_same(m.exec[k], "dgamma", s.c, got.dgamma, want.dgamma);
            nn_same(m.exec[k], "dbeta", s.c, got.dbeta, want.dbeta);
            outputs_free(&got);
        }
        uint16_t *lists[] = { x, dy, start, y, dx };
        for (size_t j = 0; j < sizeof lists / sizeof lists[0]; j++)
            free(lists[j]);
        outputs_free(&want);
        inputs_free(&in);
    }
    nn_machines_free(&m);
}

static lki_batchnorm_args batchnorm_of(shape s, const inputs *in, const outputs *out)
{
    return (lki_batchnorm_args){ .rows = s.rows, .c = s.c, .x = in->x, .gamma = in->gamma,
                                 .beta = in->beta, .y = out->y, .mean = out->mean,
                                 .rstd = out->rstd, .var = out->var, .dy = in->dy, .dx = out->dx,
                                 .dgamma = out->dgamma, .dbeta = out->dbeta };
}

static void batchnorm_bits(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < 2 * SHAPES; i++) {
        shape   s    = shapes[i / 2];
        bool    add  = i % 2 != 0;
        inputs  in   = inputs_new(s);
        outputs want = outputs_new(s, s.c);
        lki_reference_batchnorm(s.rows, s.c, in.x, in.gamma, in.beta, want.y, want.mean, want.rstd,
                                want.var);
        lki_reference_batchnorm_backward(s.rows, s.c, in.x, in.gamma, want.mean, want.rstd, in.dy,
                                         want.dx, add, want.dgamma, want.dbeta);
        for (size_t k = 0; k < m.count; k++) {
            outputs            got  = outputs_new(s, s.c);
            lki_batchnorm_args args = batchnorm_of(s, &in, &got);
            args.add                = add;
            lki_batchnorm(m.exec[k], &args);
            lki_batchnorm_backward(m.exec[k], &args);
            outputs_same(m.exec[k], s, s.c, &got, &want);
            outputs_free(&got);
        }
        outputs_free(&want);
        inputs_free(&in);
    }
    nn_machines_free(&m);
}

/* Computes the end of a residual block step by step: y = relu(y + plus), and in `dz` the gradient
 * before the ReLU. */
static void reference_ends(shape s, const float *plus, bool relu, const float *dy, float *y,
                           float *dz)
{
    for (size_t i = 0; i < s.rows * s.c; i++) {
        if (plus != NULL)
            y[i] = y[i] + plus[i];
        if (relu)
            y[i] = y[i] < 0.0f ? 0.0f : y[i];
        dz[i] = relu ? dy[i] * (y[i] > 0.0f ? 1.0f : 0.0f) : dy[i];
    }
}

/* Tests a residual sum, a ReLU or both, with gradients that are written or added. */
static void batchnorm_ends_bits(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < 8 * SHAPES; i++) {
        shape   s    = shapes[i / 8];
        bool    sum  = i % 2 != 0, relu = i / 2 % 2 != 0, add = i / 4 % 2 != 0;
        size_t  n    = s.rows * s.c;
        inputs  in   = inputs_new(s);
        outputs want = outputs_new(s, s.c);
        float  *plus = nn_values(n, 8), *dz = nn_values(n, 9), *dplus = nn_values(n, 10);
        lki_reference_batchnorm(s.rows, s.c, in.x, in.gamma, in.beta, want.y, want.mean, want.rstd,
                                want.var);
        reference_ends(s, sum ? plus : NULL, relu, in.dy, want.y, dz);
        lki_reference_batchnorm_backward(s.rows, s.c, in.x, in.gamma, want.mean, want.rstd, dz,
                                         want.dx, false, want.dgamma, want.dbeta);
        for (size_t j = 0; j < n; j++)
            dplus[j] = add ? dplus[j] + dz[j] : dz[j];
        for (size_t k = 0; k < m.count; k++) {
            outputs            got  = outputs_new(s, s.c);
            float             *gotp = nn_values(n, 10);
            lki_batchnorm_args args = batchnorm_of(s, &in, &got);
            args.plus     = sum ? plus : NULL;
            args.relu     = relu;
            args.dplus    = sum ? gotp : NULL;
            args.add_plus = add;
            lki_batchnorm(m.exec[k], &args);
            lki_batchnorm_backward(m.exec[k], &args);
            outputs_same(m.exec[k], s, s.c, &got, &want);
            if (sum)
                nn_same(m.exec[k], "dplus", n, gotp, dplus);
            free(gotp);
            outputs_free(&got);
        }
        free(plus);
        free(dz);
        free(dplus);
        outputs_free(&want);
        inputs_free(&in);
    }
    nn_machines_free(&m);
}

/* Statistics and the parameters' gradients are those of FP32, and all other results are rounded
 * once. */
static void one_batchnorm_in_bf16(const nn_machines *m, shape s, unsigned way)
{
    size_t    n    = s.rows * s.c;
    inputs    in   = inputs_new(s);
    outputs   want = outputs_new(s, s.c);
    float    *plus = nn_values(n, 8), *dplus = nn_values(n, 10);
    uint16_t *x = nn_bf16(in.x, n), *dy = nn_bf16(in.dy, n), *plus16 = nn_bf16(plus, n);
    uint16_t *dx_start = nn_bf16(want.dx, n), *dplus_start = nn_bf16(dplus, n);
    uint16_t *y = nn_bytes(n * sizeof *y), *dx = nn_bytes(n * sizeof *dx);
    uint16_t *dplus16 = nn_bytes(n * sizeof *dplus16);

    lki_batchnorm_args wide = batchnorm_of(s, &in, &want);
    wide.relu               = way & 1;
    wide.add = wide.add_plus = way & 2;
    wide.plus                = way & 4 ? plus : NULL;
    wide.dplus               = way & 4 ? dplus : NULL;
    lki_batchnorm(m->exec[0], &wide);
    lki_batchnorm_backward(m->exec[0], &wide);
    for (size_t k = 0; k < m->count; k++) {
        outputs            got  = outputs_new(s, s.c);
        lki_batchnorm_args args = batchnorm_of(s, &in, &got);
        memcpy(dx, dx_start, n * sizeof *dx);
        memcpy(dplus16, dplus_start, n * sizeof *dplus16);
        args.type  = LK_BF16;
        args.relu  = wide.relu;
        args.add   = args.add_plus = wide.add;
        args.x     = x;
        args.y     = y;
        args.dy    = dy;
        args.dx    = dx;
        args.plus  = way & 4 ? plus16 : NULL;
        args.dplus = way & 4 ? dplus16 : NULL;
        lki_batchnorm(m->exec[k], &args);
        lki_batchnorm_backward(m->exec[k], &args);
        nn_same_rounded(m->exec[k], "y", n, y, want.y);
        nn_same_rounded(m->exec[k], "dx", n, dx, want.dx);
        nn_same_rounded(m->exec[k], "dplus", n, dplus16, dplus);
        nn_same(m->exec[k], "mean", s.c, got.mean, want.mean);
        nn_same(m->exec[k], "var", s.c, got.var, want.var);
        nn_same(m->exec[k], "dgamma", s.c, got.dgamma, want.dgamma);
        nn_same(m->exec[k], "dbeta", s.c, got.dbeta, want.dbeta);
        outputs_free(&got);
    }
    void *lists[] = { plus, dplus, x, dy, plus16, dx_start, dplus_start, y, dx, dplus16 };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        free(lists[i]);
    outputs_free(&want);
    inputs_free(&in);
}

static void batchnorm_bits_in_bf16(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < SHAPES; i++)
        for (unsigned way = 0; way < 8; way++)
            one_batchnorm_in_bf16(&m, shapes[i], way);
    nn_machines_free(&m);
}

/* Evaluation with given statistics uses the same formula with another mean and variance. */
static void batchnorm_apply_bits(void **state)
{
    nn_machines m = nn_machines_open();
    shape  s = { 37, 131 };
    inputs in = inputs_new(s);
    float *mean = nn_values(s.c, 8), *var = nn_values(s.c, 9);
    float *y = nn_bytes(s.rows * s.c * sizeof *y), *want = nn_bytes(s.rows * s.c * sizeof *want);
    (void)state;
    for (size_t i = 0; i < s.c; i++)
        var[i] = fabsf(var[i]) + 0.1f;
    for (size_t i = 0; i < s.rows * s.c; i++) {
        float rstd = 1.0f / sqrtf(var[i % s.c] + 1e-5f);
        want[i]    = fmaf((in.x[i] - mean[i % s.c]) * rstd, in.gamma[i % s.c], in.beta[i % s.c]);
    }
    for (size_t k = 0; k < m.count; k++) {
        lki_batchnorm_apply(m.exec[k],
                            &(lki_batchnorm_args){ .rows = s.rows, .c = s.c, .x = in.x,
                                                   .gamma = in.gamma, .beta = in.beta, .y = y },
                            mean, var);
        nn_same(m.exec[k], "y", s.rows * s.c, y, want);
    }
    free(mean);
    free(var);
    free(y);
    free(want);
    inputs_free(&in);
    nn_machines_free(&m);
}

/* Inputs in doubles for the sum of dy * y.  Member j of set i is at x[i * outer + j * inner]. */
typedef struct {
    size_t  sets, members, outer, inner;
    bool    per_set; /* gamma and beta are per set (BatchNorm) or per member (LayerNorm) */
    double *x, *gamma, *beta, *dy;
} exact;

static double exact_loss(const void *context)
{
    const exact *e = context;
    double loss = 0;
    for (size_t i = 0; i < e->sets; i++) {
        double mean = 0, var = 0;
        for (size_t j = 0; j < e->members; j++)
            mean += e->x[i * e->outer + j * e->inner] / (double)e->members;
        for (size_t j = 0; j < e->members; j++) {
            double d = e->x[i * e->outer + j * e->inner] - mean;
            var += d * d / (double)e->members;
        }
        for (size_t j = 0; j < e->members; j++) {
            size_t at = i * e->outer + j * e->inner, p = e->per_set ? i : j;
            loss += e->dy[at] * ((e->x[at] - mean) / sqrt(var + 1e-5) * e->gamma[p] + e->beta[p]);
        }
    }
    return loss;
}

static void gradients(shape s, bool batch)
{
    inputs   in = inputs_new(s);
    outputs  out = outputs_new(s, s.rows + s.c), old = outputs_new(s, 1);
    lk_exec *exec = NULL;
    assert_int_equal(lk_exec_open(&exec, 2, NULL), LK_OK);
    if (batch) {
        lki_batchnorm_args args = batchnorm_of(s, &in, &out);
        lki_batchnorm(exec, &args);
        lki_batchnorm_backward(exec, &args);
    } else {
        lki_layernorm(exec, LK_F32, s.rows, s.c, in.x, in.gamma, in.beta, out.y, out.mean,
                      out.rstd);
        lki_layernorm_backward(exec, LK_F32, s.rows, s.c, in.x, in.gamma, out.mean, out.rstd,
                               in.dy, out.dx,
                               false, out.dgamma, out.dbeta);
    }
    exact e = { .sets = batch ? s.c : s.rows, .members = batch ? s.rows : s.c,
                .outer = batch ? 1 : s.c, .inner = batch ? s.c : 1, .per_set = batch,
                .x = nn_doubles(in.x, s.rows * s.c), .gamma = nn_doubles(in.gamma, s.c),
                .beta = nn_doubles(in.beta, s.c), .dy = nn_doubles(in.dy, s.rows * s.c) };
    nn_gradient("dx", exact_loss, &e, e.x, s.rows * s.c, out.dx, NULL);
    nn_gradient("dgamma", exact_loss, &e, e.gamma, s.c, out.dgamma, old.dgamma);
    nn_gradient("dbeta", exact_loss, &e, e.beta, s.c, out.dbeta, old.dbeta);
    free(e.x);
    free(e.gamma);
    free(e.beta);
    free(e.dy);
    outputs_free(&out);
    outputs_free(&old);
    inputs_free(&in);
    lk_exec_free(exec);
}

static void norm_gradients(void **state)
{
    (void)state;
    gradients((shape){ 5, 37 }, false);
    gradients((shape){ 3, 64 }, false);
    gradients((shape){ 37, 5 }, true);
    gradients((shape){ 67, 20 }, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layernorm_bits),
        cmocka_unit_test(layernorm_bits_of_large_values),
        cmocka_unit_test(layernorm_bits_in_bf16),
        cmocka_unit_test(batchnorm_bits),
        cmocka_unit_test(batchnorm_ends_bits),
        cmocka_unit_test(batchnorm_bits_in_bf16),
        cmocka_unit_test(batchnorm_apply_bits),
        cmocka_unit_test(norm_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
