/* reference_nn.c -- plain versions of the operators that a model's blocks use, without vectors,
 * tiles or threads. */
#include "tensor/reference_nn.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

enum { LANES = 16, CHUNKS = 8, KEYS = 64 };

static const float epsilon = 1e-5f;

static float lane_tree(const float lane[LANES])
{
    float sum[LANES];
    memcpy(sum, lane, sizeof sum);
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            sum[i] = sum[i] + sum[i + half];
    return sum[0];
}

float lki_reference_lane_sum(size_t n, const float *x)
{
    float lane[LANES] = { 0 };
    for (size_t i = 0; i < n; i++)
        lane[i % LANES] = lane[i % LANES] + x[i];
    return lane_tree(lane);
}

static float lane_dot(size_t n, const float *a, const float *b)
{
    float lane[LANES] = { 0 };
    for (size_t i = 0; i < n; i++)
        lane[i % LANES] = fmaf(a[i], b[i], lane[i % LANES]);
    return lane_tree(lane);
}

/* ---- Norms ------------------------------------------------------------------------------- */

void lki_reference_layernorm(size_t rows, size_t c, const float *x, const float *gamma,
                             const float *beta, float *y, float *mean, float *rstd)
{
    for (size_t r = 0; r < rows; r++, x += c, y += c) {
        float lane[LANES] = { 0 };
        mean[r]           = lki_reference_lane_sum(c, x) / (float)c;
        for (size_t i = 0; i < c; i++) {
            float d         = x[i] - mean[r];
            lane[i % LANES] = fmaf(d, d, lane[i % LANES]);
        }
        rstd[r] = 1.0f / sqrtf(lane_tree(lane) / (float)c + epsilon);
        for (size_t i = 0; i < c; i++)
            y[i] = fmaf((x[i] - mean[r]) * rstd[r], gamma[i], beta[i]);
    }
}

void lki_reference_layernorm_backward(size_t rows, size_t c, const float *x, const float *gamma,
                                      const float *mean, const float *rstd, const float *dy,
                                      float *dx, bool add, float *dgamma, float *dbeta)
{
    for (size_t r = 0; r < rows; r++, x += c, dy += c, dx += c) {
        float sum[LANES] = { 0 }, product[LANES] = { 0 };
        for (size_t i = 0; i < c; i++) {
            float xhat = (x[i] - mean[r]) * rstd[r], g = dy[i] * gamma[i];
            sum[i % LANES]     = sum[i % LANES] + g;
            product[i % LANES] = fmaf(g, xhat, product[i % LANES]);
            dgamma[i]          = fmaf(dy[i], xhat, dgamma[i]);
            dbeta[i]           = dbeta[i] + dy[i];
        }
        float mean_g = lane_tree(sum) / (float)c, mean_g_xhat = lane_tree(product) / (float)c;
        for (size_t i = 0; i < c; i++) {
            float xhat = (x[i] - mean[r]) * rstd[r], g = dy[i] * gamma[i];
            float d    = rstd[r] * fmaf(-xhat, mean_g_xhat, g - mean_g);
            dx[i]      = add ? dx[i] + d : d;
        }
    }
}

typedef enum { SUM_X, SUM_SQUARES, SUM_DY, SUM_PRODUCTS } column_kind;

static float column_step(column_kind kind, float sum, float x, float dy, float mean, float rstd)
{
    float d = x - mean;
    switch (kind) {
    case SUM_X: return sum + x;
    case SUM_SQUARES: return fmaf(d, d, sum);
    case SUM_DY: return sum + dy;
    case SUM_PRODUCTS: return fmaf(dy, d * rstd, sum);
    }
    return sum;
}

/* Sums a column in eight chunks of rows.  The rows of a chunk are added to four sums in turn, a
 * tree adds these, and another tree adds the chunks. */
static float column_sum(column_kind kind, size_t rows, size_t c, const float *x, const float *dy,
                        float mean, float rstd)
{
    float chunk[CHUNKS];
    for (size_t k = 0; k < CHUNKS; k++) {
        float  chain[4] = { 0 };
        size_t first    = k * rows / CHUNKS;
        for (size_t r = first; r < (k + 1) * rows / CHUNKS; r++) {
            float *sum = &chain[(r - first) % 4];
            *sum       = column_step(kind, *sum, x[r * c], dy[r * c], mean, rstd);
        }
        chunk[k] = (chain[0] + chain[1]) + (chain[2] + chain[3]);
    }
    return ((chunk[0] + chunk[1]) + (chunk[2] + chunk[3])) +
           ((chunk[4] + chunk[5]) + (chunk[6] + chunk[7]));
}

void lki_reference_batchnorm(size_t rows, size_t c, const float *x, const float *gamma,
                             const float *beta, float *y, float *mean, float *rstd, float *var)
{
    for (size_t i = 0; i < c; i++) {
        mean[i]       = column_sum(SUM_X, rows, c, x + i, x + i, 0.0f, 0.0f) / (float)rows;
        float squares = column_sum(SUM_SQUARES, rows, c, x + i, x + i, mean[i], 0.0f);
        rstd[i]       = 1.0f / sqrtf(squares / (float)rows + epsilon);
        var[i]        = squares / (float)(rows > 1 ? rows - 1 : 1);
        for (size_t r = 0; r < rows; r++)
            y[r * c + i] = fmaf((x[r * c + i] - mean[i]) * rstd[i], gamma[i], beta[i]);
    }
}

void lki_reference_batchnorm_backward(size_t rows, size_t c, const float *x, const float *gamma,
                                      const float *mean, const float *rstd, const float *dy,
                                      float *dx, bool add, float *dgamma, float *dbeta)
{
    for (size_t i = 0; i < c; i++) {
        float sum     = column_sum(SUM_DY, rows, c, x + i, dy + i, mean[i], rstd[i]);
        float product = column_sum(SUM_PRODUCTS, rows, c, x + i, dy + i, mean[i], rstd[i]);
        dbeta[i]      = dbeta[i] + sum;
        dgamma[i]     = dgamma[i] + product;
        for (size_t at = i; at < rows * c; at += c) {
            float xhat = (x[at] - mean[i]) * rstd[i];
            float d    = fmaf(-xhat, product / (float)rows, dy[at] - sum / (float)rows);
            d          = (gamma[i] * rstd[i]) * d;
            dx[at]     = add ? dx[at] + d : d;
        }
    }
}

/* ---- Convolution and pooling -------------------------------------------------------------- */

/* Returns the address of pixel (y, x), channel 0, of `sample` of an (n, h, w, c) image; NULL in the
 * padding. */
static const float *pixel(const float *image, size_t sample, size_t h, size_t w, size_t c, size_t y,
                          size_t x)
{
    return y < h && x < w ? image + ((sample * h + y) * w + x) * c : NULL;
}

static float conv_one(const lki_conv_shape *s, const float *x, const float *w, size_t sample,
                      size_t oy, size_t ox, size_t co)
{
    float sum = 0.0f;
    for (size_t ky = 0; ky < s->kh; ky++) {
        for (size_t kx = 0; kx < s->kw; kx++) {
            const float *at = pixel(x, sample, s->h, s->w, s->cin, oy * s->stride + ky - s->pad,
                                    ox * s->stride + kx - s->pad);
            for (size_t ci = 0; at != NULL && ci < s->cin; ci++)
                sum = fmaf(at[ci], w[((co * s->cin + ci) * s->kh + ky) * s->kw + kx], sum);
        }
    }
    return sum;
}

void lki_reference_conv(const lki_conv_shape *s, const float *x, const float *w, float *y)
{
    for (size_t i = 0; i < s->n * s->oh * s->ow; i++)
        for (size_t co = 0; co < s->cout; co++)
            y[i * s->cout + co] = conv_one(s, x, w, i / s->ow / s->oh, i / s->ow % s->oh,
                                           i % s->ow, co);
}

static float conv_input_one(const lki_conv_shape *s, const float *dy, const float *w, size_t sample,
                            size_t iy, size_t ix, size_t ci)
{
    float sum = 0.0f;
    for (size_t ky = s->kh; ky-- > 0;) {
        if ((iy + s->pad + s->stride * s->kh - ky) % s->stride != 0)
            continue;
        for (size_t kx = s->kw; kx-- > 0;) {
            if ((ix + s->pad + s->stride * s->kw - kx) % s->stride != 0)
                continue;
            bool         inside = iy + s->pad >= ky && ix + s->pad >= kx;
            const float *at = !inside ? NULL
                                      : pixel(dy, sample, s->oh, s->ow, s->cout,
                                              (iy + s->pad - ky) / s->stride,
                                              (ix + s->pad - kx) / s->stride);
            for (size_t co = 0; at != NULL && co < s->cout; co++)
                sum = fmaf(at[co], w[((co * s->cin + ci) * s->kh + ky) * s->kw + kx], sum);
        }
    }
    return sum;
}

void lki_reference_conv_backward_input(const lki_conv_shape *s, const float *dy, const float *w,
                                       float *dx, bool add)
{
    for (size_t i = 0; i < s->n * s->h * s->w; i++) {
        for (size_t ci = 0; ci < s->cin; ci++) {
            float d = conv_input_one(s, dy, w, i / s->w / s->h, i / s->w % s->h, i % s->w, ci);
            dx[i * s->cin + ci] = add ? dx[i * s->cin + ci] + d : d;
        }
    }
}

void lki_reference_conv_backward_weights(const lki_conv_shape *s, const float *x, const float *dy,
                                         float *dw)
{
    for (size_t i = 0; i < s->cout * s->cin * s->kh * s->kw; i++) {
        size_t kx = i % s->kw, ky = i / s->kw % s->kh;
        size_t ci = i / s->kw / s->kh % s->cin, co = i / s->kw / s->kh / s->cin;
        for (size_t o = 0; o < s->n * s->oh * s->ow; o++) {
            const float *at = pixel(x, o / s->ow / s->oh, s->h, s->w, s->cin,
                                    o / s->ow % s->oh * s->stride + ky - s->pad,
                                    o % s->ow * s->stride + kx - s->pad);
            if (at != NULL)
                dw[i] = fmaf(at[ci], dy[o * s->cout + co], dw[i]);
        }
    }
}

void lki_reference_maxpool(const lki_conv_shape *s, const float *x, float *y, uint32_t *argmax)
{
    for (size_t i = 0; i < s->n * s->oh * s->ow * s->cin; i++) {
        size_t c = i % s->cin, ox = i / s->cin % s->ow, oy = i / s->cin / s->ow % s->oh;
        bool   found = false;
        for (size_t k = 0; k < s->kh * s->kw; k++) {
            size_t iy = oy * s->stride + k / s->kw - s->pad;
            size_t ix = ox * s->stride + k % s->kw - s->pad;
            const float *at = pixel(x, i / s->cin / s->ow / s->oh, s->h, s->w, s->cin, iy, ix);
            if (at != NULL && (!found || (!(at[c] <= y[i]) && y[i] == y[i]))) {
                found     = true;
                y[i]      = at[c];
                argmax[i] = (uint32_t)(iy * s->w + ix);
            }
        }
    }
}

void lki_reference_avgpool(size_t n, size_t positions, size_t c, const float *x, float *y)
{
    for (size_t i = 0; i < n * c; i++) {
        y[i] = 0.0f;
        for (size_t p = 0; p < positions; p++)
            y[i] = y[i] + x[(i / c * positions + p) * c + i % c];
        y[i] = y[i] / (float)positions;
    }
}

/* ---- Attention ---------------------------------------------------------------------------- */

lki_reference_row lki_reference_row_of(const lki_attention_shape *s, size_t head)
{
    size_t size = s->c / s->heads, kv_heads = s->kv_heads > 0 ? s->kv_heads : s->heads;
    size_t k = s->c + head / (s->heads / kv_heads) * size;
    return (lki_reference_row){ s->c + 2 * kv_heads * size, head * size, k, k + kv_heads * size };
}

static float keep_one(const lki_attention_shape *s, size_t sample, size_t head, size_t i, size_t j)
{
    if (!(s->dropout.p > 0.0f))
        return 1.0f;
    uint64_t   element = (uint64_t)(head * s->t + i) * s->t + j;
    lki_random r = lki_philox(s->dropout.seed, LKI_RNG_DROPOUT, (uint32_t)(element / 4),
                              s->dropout.first_slot + (uint32_t)sample, s->dropout.step,
                              lki_dropout_place(s->dropout.layer, element));
    float unit = lki_random_unit(r.word[element % 4]);
    return unit >= s->dropout.p ? 1.0f / (1.0f - s->dropout.p) : 0.0f;
}

static float chain_dot(size_t n, const float *a, const float *b)
{
    float sum = 0.0f;
    for (size_t i = 0; i < n; i++)
        sum = fmaf(a[i], b[i], sum);
    return sum;
}

/* Computes the output of one query, from past keys only, KEYS of them at a time. */
static void attention_query(const lki_attention_shape *s, const float *qkv, size_t sample,
                            size_t head, size_t i, float *y, float *lse)
{
    size_t            size = s->c / s->heads;
    lki_reference_row row  = lki_reference_row_of(s, head);
    const float      *base = qkv + sample * s->t * row.width;
    const float      *q    = base + i * row.width + row.q;
    float             scale = 1.0f / sqrtf((float)size), max = -INFINITY, sum = 0.0f;

    memset(y, 0, size * sizeof *y);
    for (size_t first = 0; first <= i; first += KEYS) {
        size_t count = i + 1 - first < KEYS ? i + 1 - first : KEYS;
        float  p[KEYS], old = max;
        for (size_t j = 0; j < count; j++) {
            p[j] = chain_dot(size, q, base + (first + j) * row.width + row.k) * scale;
            max  = p[j] > max ? p[j] : max;
        }
        for (size_t j = 0; j < count; j++)
            p[j] = lki_expf(p[j] - max);
        float rescale = first == 0 ? 0.0f : lki_expf(old - max);
        sum           = sum * rescale + lki_reference_lane_sum(count, p);
        for (size_t d = 0; d < size; d++) {
            y[d] = y[d] * rescale;
            for (size_t j = 0; j < count; j++)
                y[d] = fmaf(p[j] * keep_one(s, sample, head, i, first + j),
                            base[(first + j) * row.width + row.v + d], y[d]);
        }
    }
    for (size_t d = 0; d < size; d++)
        y[d] = y[d] * (1.0f / sum);
    *lse = max + lki_logf(sum);
}

void lki_reference_attention(const lki_attention_shape *s, const float *qkv, float *y, float *lse)
{
    size_t size = s->c / s->heads;
    for (size_t at = 0; at < s->b * s->heads * s->t; at++) {
        size_t i = at % s->t, head = at / s->t % s->heads, sample = at / s->t / s->heads;
        attention_query(s, qkv, sample, head, i, y + (sample * s->t + i) * s->c + head * size,
                        lse + at);
    }
}

/* Adds the contribution of the pair (query i, key j) of a head to the three gradients. */
static void attention_pair(size_t size, lki_reference_row row, const float *row_i,
                           const float *row_j, float lse, float delta, float keep, const float *dy,
                           float *d_i, float *d_j)
{
    float scale = 1.0f / sqrtf((float)size);
    float p     = lki_expf(chain_dot(size, row_i + row.q, row_j + row.k) * scale - lse);
    float dp    = chain_dot(size, dy, row_j + row.v);
    float ds    = p * (dp * keep - delta) * scale;
    for (size_t d = 0; d < size; d++) {
        d_i[row.q + d] = fmaf(ds, row_j[row.k + d], d_i[row.q + d]);
        d_j[row.k + d] = fmaf(ds, row_i[row.q + d], d_j[row.k + d]);
        d_j[row.v + d] = fmaf(p * keep, dy[d], d_j[row.v + d]);
    }
}

void lki_reference_attention_backward(const lki_attention_shape *s, const float *qkv,
                                      const float *y, const float *lse, const float *dy,
                                      float *dqkv)
{
    size_t size = s->c / s->heads, width = lki_reference_row_of(s, 0).width;
    memset(dqkv, 0, s->b * s->t * width * sizeof *dqkv);
    for (size_t at = 0; at < s->b * s->heads * s->t; at++) {
        size_t i = at % s->t, head = at / s->t % s->heads, sample = at / s->t / s->heads;
        size_t out   = (sample * s->t + i) * s->c + head * size;
        size_t row_i = (sample * s->t + i) * width;
        float  delta = lane_dot(size, dy + out, y + out);
        for (size_t j = 0; j <= i; j++) {
            size_t row_j = (sample * s->t + j) * width;
            attention_pair(size, lki_reference_row_of(s, head), qkv + row_i, qkv + row_j, lse[at],
                           delta, keep_one(s, sample, head, i, j), dy + out, dqkv + row_i,
                           dqkv + row_j);
        }
    }
}

/* ---- Llama's blocks ----------------------------------------------------------------------- */

void lki_reference_rmsnorm(const lki_rmsnorm_args *a)
{
    const float *x = a->x;
    float       *y = a->y;
    for (size_t r = 0; r < a->rows; r++, x += a->c, y += a->c) {
        a->rstd[r] = 1.0f / sqrtf(lane_dot(a->c, x, x) / (float)a->c + a->eps);
        for (size_t i = 0; i < a->c; i++)
            y[i] = x[i] * a->rstd[r] * a->gamma[i];
    }
}

void lki_reference_rmsnorm_backward(const lki_rmsnorm_args *a)
{
    const float *x = a->x, *dy = a->dy;
    float       *dx = a->dx;
    for (size_t r = 0; r < a->rows; r++, x += a->c, dy += a->c, dx += a->c) {
        float lane[LANES] = { 0 };
        for (size_t i = 0; i < a->c; i++) {
            float xhat      = x[i] * a->rstd[r];
            lane[i % LANES] = fmaf(dy[i] * a->gamma[i], xhat, lane[i % LANES]);
            a->dgamma[i]    = fmaf(dy[i], xhat, a->dgamma[i]);
        }
        float mean = lane_tree(lane) / (float)a->c;
        for (size_t i = 0; i < a->c; i++) {
            float d = a->rstd[r] * fmaf(-(x[i] * a->rstd[r]), mean, dy[i] * a->gamma[i]);
            dx[i]   = a->add ? dx[i] + d : d;
        }
    }
}

void lki_reference_rope(const lki_rope_args *a)
{
    size_t half = a->size / 2;
    for (size_t at = 0; at < a->b * a->t * a->heads * half; at++) {
        size_t       i = at % half, row = at / half, p = row / a->heads % a->t;
        const float *x = (const float *)a->x + row * a->size + i, *table = a->table + p * a->size;
        float       *y = (float *)a->y + row * a->size + i;
        float        c = table[i], s = a->back ? -table[half + i] : table[half + i];
        float        first = fmaf(-x[half], s, x[0] * c), second = fmaf(x[0], s, x[half] * c);
        y[0]    = a->add ? y[0] + first : first;
        y[half] = a->add ? y[half] + second : second;
    }
}

static float sigmoid(float x)
{
    return 1.0f / (lki_expf(-x) + 1.0f);
}

void lki_reference_swiglu(const lki_swiglu_args *a)
{
    const float *gate = a->gate, *up = a->up;
    for (size_t i = 0; i < a->n; i++)
        ((float *)a->y)[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

void lki_reference_swiglu_backward(const lki_swiglu_args *a)
{
    const float *gate = a->gate, *up = a->up, *dy = a->dy;
    float       *dgate = a->dgate, *dup = a->dup;
    for (size_t i = 0; i < a->n; i++) {
        float s = sigmoid(gate[i]), silu = gate[i] * s;
        float d = dy[i] * up[i] * fmaf(silu, 1.0f - s, s);
        dgate[i] = a->add_gate ? dgate[i] + d : d;
        dup[i]   = a->add_up ? dup[i] + dy[i] * silu : dy[i] * silu;
    }
}

/* ---- Embedding and loss ------------------------------------------------------------------- */

void lki_reference_embedding_backward(size_t b, size_t t, size_t c, const int32_t *tokens,
                                      const float *dy, float *dwte, float *dwpe)
{
    for (size_t row = 0; row < b * t; row++) {
        for (size_t i = 0; i < c; i++) {
            float *token = dwte + (size_t)tokens[row] * c + i;
            *token       = *token + dy[row * c + i];
            if (dwpe != NULL)
                dwpe[row % t * c + i] = dwpe[row % t * c + i] + dy[row * c + i];
        }
    }
}

static void softmax_xent_row(size_t classes, float *logits, int32_t target, float *loss,
                             uint8_t *hit, bool gradient)
{
    size_t best = 0;
    float  lane[LANES] = { 0 };
    for (size_t i = 1; i < classes; i++)
        best = logits[i] > logits[best] ? i : best;
    float max = logits[best], wanted = logits[target];
    for (size_t i = 0; i < classes; i++)
        lane[i % LANES] = lane[i % LANES] + lki_expf(logits[i] - max);
    float total = lane_tree(lane);
    *loss       = (max - wanted) + lki_logf(total);
    *hit        = best == (size_t)target;
    for (size_t i = 0; gradient && i < classes; i++) {
        float p   = lki_expf(logits[i] - max) * (1.0f / total);
        logits[i] = i == (size_t)target ? p - 1.0f : p;
    }
}

void lki_reference_softmax_xent(size_t rows, size_t classes, float *logits, const int32_t *targets,
                                float *loss, uint8_t *hit, bool gradient)
{
    for (size_t r = 0; r < rows; r++, logits += classes) {
        if (targets[r] >= 0) {
            softmax_xent_row(classes, logits, targets[r], loss + r, hit + r, gradient);
            continue;
        }
        loss[r] = 0.0f;
        hit[r]  = 0;
        for (size_t i = 0; gradient && i < classes; i++)
            logits[i] = 0.0f;
    }
}
