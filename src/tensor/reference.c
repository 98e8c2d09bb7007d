/* reference.c -- see reference.h. */
#include "tensor/reference.h"

#include <math.h>

#include "base/rng.h"
#include "device/half.h"

float lki_reference_activate(lki_activation act, float x)
{
    switch (act) {
    case LKI_ACT_RELU: return 0.0f > x ? 0.0f : x;
    case LKI_ACT_GELU_TANH: {
        float c = x > 16.0f ? 16.0f : x < -16.0f ? -16.0f : x;
        float u = c * fmaf(c * c, 0.044715f, 1.0f);
        return x / (lki_expf(u * -1.5957691216f) + 1.0f);
    }
    case LKI_ACT_GELU_ERF: return x * fmaf(lki_erff(x * 0.70710678118f), 0.5f, 0.5f);
    case LKI_ACT_NONE: break;
    }
    return x;
}

float lki_reference_activate_slope(lki_activation act, float x)
{
    switch (act) {
    case LKI_ACT_RELU: return x > 0.0f ? 1.0f : 0.0f;
    case LKI_ACT_GELU_TANH: {
        float c = x > 16.0f ? 16.0f : x < -16.0f ? -16.0f : x;
        float u = c * fmaf(c * c, 0.044715f, 1.0f);
        float s = 1.0f / (lki_expf(u * -1.5957691216f) + 1.0f);
        float d = fmaf(c * c, 3.0f * 0.044715f, 1.0f) * 1.5957691216f;
        return fmaf(c * (s * (1.0f - s)), d, s);
    }
    case LKI_ACT_GELU_ERF: {
        float half = fmaf(lki_erff(x * 0.70710678118f), 0.5f, 0.5f);
        return fmaf(x * lki_expf(x * x * -0.5f), 0.39894228040f, half);
    }
    case LKI_ACT_NONE: break;
    }
    return 1.0f;
}

static float flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

/* Rounds once: a double holds the exact product and has more than twice a float's digits. 2^-126 -
 * 2^-151 is the smallest value that rounds to a normal number. */
float lki_reference_fma_flushed(float a, float b, float sum)
{
    double exact = (double)flushed(a) * (double)flushed(b) + (double)flushed(sum);
    return fabs(exact) < 0x1.ffffffp-127 ? (float)copysign(0.0, exact) : (float)exact;
}

static float add_flushed(float a, float b)
{
    return lki_reference_fma_flushed(a, 1.0f, b);
}

float lki_reference_chunk(const float a[32], const float b[32], float sum)
{
    float chains[2] = { 0.0f, 0.0f };
    for (size_t i = 0; i < 32; i++)
        chains[i % 2] = lki_reference_fma_flushed(a[i], b[i], chains[i % 2]);
    return add_flushed(sum, add_flushed(chains[0], chains[1]));
}

static float gemm_element(const lki_gemm_args *g, size_t i, size_t j, float sum)
{
    size_t          lda = g->lda != 0 ? g->lda : g->transpose_a ? g->m : g->k;
    size_t          ldb = g->ldb != 0 ? g->ldb : g->transpose_b ? g->k : g->n;
    size_t          step_a = g->transpose_a ? lda : 1, step_b = g->transpose_b ? 1 : ldb;
    size_t          at_a = g->transpose_a ? i : i * lda, at_b = g->transpose_b ? j * ldb : j;
    const uint16_t *x = g->a, *y = g->b;
    const float    *wide = g->b;
    if (g->operands != LK_BF16) {
        for (size_t p = 0; p < g->k; p++)
            sum = fmaf(((const float *)g->a)[at_a + p * step_a],
                       ((const float *)g->b)[at_b + p * step_b], sum);
        return sum;
    }
    for (size_t p = 0; p < g->k; p += 32) {
        float left[32] = { 0 }, right[32] = { 0 };
        for (size_t q = 0; q < 32 && p + q < g->k; q++) {
            size_t at = at_b + (p + q) * step_b;
            left[q]   = lki_bf16_widen(x[at_a + (p + q) * step_a]);
            right[q]  = lki_bf16_widen(g->wide_b ? lki_bf16_narrow(wide[at]) : y[at]);
        }
        sum = lki_reference_chunk(left, right, sum);
    }
    return sum;
}

static float load_as(lk_dtype type, const void *from, size_t i)
{
    return type == LK_BF16 ? lki_bf16_widen(((const uint16_t *)from)[i]) : ((const float *)from)[i];
}

static void store_as(lk_dtype type, void *to, size_t i, float x)
{
    if (type == LK_BF16)
        ((uint16_t *)to)[i] = lki_bf16_narrow(x);
    else
        ((float *)to)[i] = x;
}

void lki_reference_gemm(const lki_gemm_args *args)
{
    size_t   ldc  = args->ldc != 0 ? args->ldc : args->n;
    lk_dtype type = args->result;
    for (size_t i = 0; i < args->m; i++)
        for (size_t j = 0; j < args->n; j++) {
            size_t at  = i * ldc + j;
            float  sum = args->accumulate ? load_as(type, args->c, at) : 0.0f;
            sum        = gemm_element(args, i, j, sum);
            if (args->bias != NULL)
                sum += args->bias[j];
            if (args->activation != LKI_ACT_NONE && args->pre != NULL)
                store_as(type, args->pre, at, sum);
            sum = lki_reference_activate(args->activation, sum);
            if (args->residual != NULL)
                sum += load_as(type, args->residual, at);
            store_as(type, args->c, at, sum);
        }
}

void lki_reference_bias_backward(size_t m, size_t n, const float *dy, float *db)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            db[j] += dy[i * n + j];
}

void lki_reference_dropout(lki_dropout_key key, size_t samples, size_t per_sample, const float *x,
                           float *y, bool add)
{
    for (size_t s = 0; s < samples; s++)
        for (size_t e = 0; e < per_sample; e++) {
            lki_random r    = lki_philox(key.seed, LKI_RNG_DROPOUT, (uint32_t)(e / 4),
                                         key.first_slot + (uint32_t)s, key.step,
                                         lki_dropout_place(key.layer, e));
            size_t     i    = s * per_sample + e;
            bool       drop = lki_random_unit(r.word[e % 4]) < key.p;
            float      kept = drop ? 0.0f : x[i] * (1.0f / (1.0f - key.p));
            y[i]            = add ? y[i] + kept : kept;
        }
}

/* Returns the cosine of u turns or, with shift 3, the sine.  Subtracts the nearest multiple of a
 * quarter, like the vector version. */
static float turn(float u, int shift)
{
    float quarter = rintf(u * 4.0f), t = fmaf(-quarter, 0.25f, u), s = t * t;
    int   j = (int)quarter + shift; /* sin is cos three quarters later */
    float c = fmaf(0x1.d9f7bcp+5f, s, -0x1.55c664p+6f), d = fmaf(42.05869394f, s, -76.70585975f);
    c = fmaf(fmaf(fmaf(c, s, 0x1.03c1dep+6f), s, -0x1.3bd3ccp+4f), s, 1.0f);
    d = t * fmaf(fmaf(fmaf(d, s, 81.60524928f), s, -41.34170224f), s, 6.283185307f);
    switch (j % 4) {
    case 0: return c;
    case 1: return -d;
    case 2: return -c;
    default: return d;
    }
}

float lki_reference_init(uint64_t seed, uint32_t index, const lk_param *param, size_t element)
{
    uint64_t   counter = element / 4;
    lki_random r    = lki_philox(seed, LKI_RNG_INIT, (uint32_t)counter, (uint32_t)(counter >> 32),
                                 index, 0);
    size_t     pair = element % 4 / 2 * 2;
    switch (param->init) {
    case LK_INIT_ZERO: return 0.0f;
    case LK_INIT_ONE: return 1.0f;
    case LK_INIT_UNIFORM:
        return (2.0f * lki_random_unit(r.word[element % 4]) - 1.0f) * param->scale;
    case LK_INIT_NORMAL: break;
    }
    float radius = sqrtf(lki_logf(1.0f - lki_random_unit(r.word[pair])) * -2.0f);
    return turn(lki_random_unit(r.word[pair + 1]), element % 2 == 0 ? 0 : 3) * radius *
           param->scale;
}

double lki_reference_sum_squares(size_t n, const float *x)
{
    double lane[16] = { 0 };
    for (size_t i = 0; i < n; i++)
        lane[i % 16] += (double)x[i] * (double)x[i];
    for (size_t step = 8; step > 0; step /= 2)
        for (size_t i = 0; i < step; i++)
            lane[i] += lane[i + step];
    return lane[0];
}

void lki_reference_adamw(const lki_adamw_step *step, size_t n, const float *g, float *p, float *m,
                         float *v)
{
    float keep = (float)(1.0 - step->lr * step->weight_decay), mix1 = (float)(1.0 - step->beta1);
    float beta2 = (float)step->beta2, mix2 = (float)(1.0 - step->beta2);
    float rate = (float)(step->lr / step->correction1), root2 = (float)step->correction2_sqrt;
    for (size_t i = 0; i < n; i++) {
        float grad = g[i] * step->scale * step->clip;
        m[i]       = fmaf(grad - m[i], mix1, m[i]);
        v[i]       = fmaf(grad * grad, mix2, v[i] * beta2);
        p[i]       = fmaf(-rate, m[i] / (sqrtf(v[i]) / root2 + (float)step->eps), p[i] * keep);
    }
}

void lki_reference_sgd(const lki_sgd_step *step, size_t n, const float *g, float *p, float *b)
{
    for (size_t i = 0; i < n; i++) {
        float d = fmaf(step->weight_decay, p[i], g[i] * step->scale * step->clip) * step->inner;
        if (b != NULL) {
            b[i] = step->first ? d : fmaf(step->momentum, b[i], d);
            d    = step->nesterov ? fmaf(step->momentum, b[i], d) : b[i];
        }
        p[i] = fmaf(-step->outer, d, p[i]);
    }
}

void lki_reference_lamb_direction(const lki_adamw_step *step, size_t n, float *g, const float *p,
                                  float *m, float *v)
{
    float mix1 = (float)(1.0 - step->beta1), beta2 = (float)step->beta2;
    float mix2 = (float)(1.0 - step->beta2), root2 = (float)step->correction2_sqrt;
    float lift1 = (float)(1.0 / step->correction1), decay = (float)step->weight_decay;
    for (size_t i = 0; i < n; i++) {
        float grad = g[i] * step->scale * step->clip;
        m[i]       = fmaf(grad - m[i], mix1, m[i]);
        v[i]       = fmaf(grad * grad, mix2, v[i] * beta2);
        g[i]       = fmaf(decay, p[i], m[i] * lift1 / (sqrtf(v[i]) / root2 + (float)step->eps));
    }
}

void lki_reference_lion(const lki_adamw_step *step, size_t n, const float *g, float *p, float *m)
{
    float keep = (float)(1.0 - step->lr * step->weight_decay), rate = (float)step->lr;
    float mix1 = (float)(1.0 - step->beta1), mix2 = (float)(1.0 - step->beta2);
    for (size_t i = 0; i < n; i++) {
        float grad = g[i] * step->scale * step->clip, way = fmaf(grad - m[i], mix1, m[i]);
        p[i]       = p[i] * keep - (way > 0 ? rate : way < 0 ? -rate : 0);
        m[i]       = fmaf(grad - m[i], mix2, m[i]);
    }
}

void lki_reference_adagrad(const lki_adagrad_step *step, size_t n, const float *g, float *p,
                           float *sum)
{
    for (size_t i = 0; i < n; i++) {
        float d = fmaf(step->weight_decay, p[i], g[i] * step->scale * step->clip);
        sum[i]  = fmaf(d, d, sum[i]);
        p[i]    = fmaf(-step->lr, d / (sqrtf(sum[i]) + step->eps), p[i]);
    }
}

void lki_reference_yogi(const lki_adamw_step *step, size_t n, const float *g, float *p, float *m,
                        float *v)
{
    float keep = (float)(1.0 - step->lr * step->weight_decay), mix1 = (float)(1.0 - step->beta1);
    float mix2 = (float)(1.0 - step->beta2), rate = (float)(step->lr / step->correction1);
    float root2 = (float)step->correction2_sqrt;
    for (size_t i = 0; i < n; i++) {
        float grad = g[i] * step->scale * step->clip, square = grad * grad;
        m[i]       = fmaf(grad - m[i], mix1, m[i]);
        v[i]       = fmaf(v[i] < square ? mix2 : v[i] > square ? -mix2 : 0, square, v[i]);
        p[i]       = fmaf(-rate, m[i] / (sqrtf(v[i]) / root2 + (float)step->eps), p[i] * keep);
    }
}
