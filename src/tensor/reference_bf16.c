/* reference_bf16.c -- the operators on bf16 values without lanes, panels or threads. */
#include "tensor/reference_bf16.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "device/half.h"
#include "tensor/reference.h"
#include "tensor/reference_nn.h"

enum { LANES = 16, QUERIES = 32, KEYS = 64 };

/* A row or a column of an operand: values `step` elements apart. */
typedef struct { const uint16_t *at; size_t step; } line;

/* Adds n products to `sum`, chunk by chunk. */
static float chunks(size_t n, line a, line b, float sum)
{
    for (size_t p = 0; p < n; p += 32) {
        float left[32] = { 0 }, right[32] = { 0 };
        for (size_t i = 0; i < 32 && p + i < n; i++) {
            left[i]  = lki_bf16_widen(a.at[(p + i) * a.step]);
            right[i] = lki_bf16_widen(b.at[(p + i) * b.step]);
        }
        sum = lki_reference_chunk(left, right, sum);
    }
    return sum;
}

static uint16_t operand(float x)
{
    return lki_bf16_narrow(fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x);
}

/* ---- Attention ---------------------------------------------------------------------------- */

/* One head of one sample. */
typedef struct {
    const lki_attention_shape *s;
    size_t          sample, head, size, row;
    /* addresses of token 0's rows; rows of q, k and v are `row` apart, rows of dy and y s->c
     * apart */
    const uint16_t *q, *k, *v, *dy, *y;
    float           scale;
} head_of;

static head_of head_at(const lki_attention_shape *s, const uint16_t *qkv, size_t index)
{
    size_t size = s->c / s->heads, sample = index / s->heads, head = index % s->heads;
    lki_reference_row row   = lki_reference_row_of(s, head);
    const uint16_t   *first = qkv + sample * s->t * row.width;
    return (head_of){ .s = s, .sample = sample, .head = head, .size = size, .row = row.width,
                      .q = first + row.q, .k = first + row.k, .v = first + row.v,
                      .scale = 1.0f / sqrtf((float)size) };
}

static float keep_of(const head_of *h, size_t i, size_t j)
{
    const lki_attention_shape *s = h->s;
    if (!(s->dropout.p > 0.0f))
        return 1.0f;
    uint64_t   element = (uint64_t)(h->head * s->t + i) * s->t + j;
    lki_random r = lki_philox(s->dropout.seed, LKI_RNG_DROPOUT, (uint32_t)(element / 4),
                              s->dropout.first_slot + (uint32_t)h->sample, s->dropout.step,
                              lki_dropout_place(s->dropout.layer, element));
    float unit = lki_random_unit(r.word[element % 4]);
    return unit >= s->dropout.p ? 1.0f / (1.0f - s->dropout.p) : 0.0f;
}

/* Returns the end of the keys for query i, the end of i's block of queries.  Keys after i count as
 * zeros. */
static size_t keys_of(size_t i)
{
    return (i / QUERIES + 1) * QUERIES;
}

static float score(const head_of *h, size_t i, size_t j)
{
    return chunks(h->size, (line){ h->q + i * h->row, 1 }, (line){ h->k + j * h->row, 1 }, 0.0f);
}

/* Continues `sum` over keys first .. end - 1: adds the products of their weights, in `p`, and their
 * values in one column.  `from` is the address of that column in the row of token 0. */
static float over_keys(const head_of *h, const uint16_t p[KEYS], size_t first, size_t end,
                       const uint16_t *from, float sum)
{
    uint16_t row[KEYS] = { 0 };
    for (size_t j = first; j < end && j < h->s->t; j++)
        row[j - first] = from[j * h->row];
    return chunks(end - first, (line){ p, 1 }, (line){ row, 1 }, sum);
}

static void attention_query(const head_of *h, size_t i, uint16_t *y, float *lse)
{
    float  factor = h->scale * 0x1.715476p+0f, max = -INFINITY, lanes[LANES] = { 0 };
    float *out  = calloc(h->size, sizeof *out);
    size_t last = keys_of(i);
    for (size_t first = 0; first < last; first += KEYS) {
        size_t   end = first + KEYS < last ? first + KEYS : last, past = end < i + 1 ? end : i + 1;
        float    s[KEYS], old = max, added[LANES] = { 0 };
        uint16_t p[KEYS] = { 0 };
        for (size_t j = first; j < past; j++)
            s[j - first] = score(h, i, j);
        for (size_t j = first; j < past; j++)
            max = s[j - first] * factor > max ? s[j - first] * factor : max;
        float rescale = lki_exp2f(old - max);
        for (size_t j = first; j < past; j++) {
            float e = lki_exp2f(fmaf(s[j - first], factor, -max));
            added[j % LANES] += e;
            p[j - first] = operand(e * keep_of(h, i, j));
        }
        for (size_t l = 0; l < LANES; l++)
            lanes[l] = lanes[l] * rescale + added[l];
        for (size_t d = 0; d < h->size; d++)
            out[d] = over_keys(h, p, first, end, h->v + d, out[d] * rescale);
    }
    float sum = lki_reference_lane_sum(LANES, lanes), inverse = 1.0f / sum;
    for (size_t d = 0; d < h->size; d++)
        y[d] = lki_bf16_narrow(out[d] * inverse);
    *lse = max + lki_logf(sum) * 0x1.715476p+0f;
    free(out);
}

void lki_reference_attention_bf16(const lki_attention_shape *s, const uint16_t *qkv, uint16_t *y,
                                  float *lse)
{
    for (size_t at = 0; at < s->b * s->heads * s->t; at++) {
        head_of h = head_at(s, qkv, at / s->t);
        size_t  i = at % s->t;
        attention_query(&h, i, y + (h.sample * s->t + i) * s->c + h.head * h.size, lse + at);
    }
}

static float row_dot(size_t n, const uint16_t *a, const uint16_t *b)
{
    float lanes[LANES] = { 0 };
    for (size_t i = 0; i < n; i++)
        lanes[i % LANES] = fmaf(lki_bf16_widen(a[i]), lki_bf16_widen(b[i]), lanes[i % LANES]);
    return lki_reference_lane_sum(LANES, lanes);
}

/* Computes the probabilities and the gradients of the scores of a head, (t, t), with zeros above
 * the diagonal. */
static void attention_scores(const head_of *h, const float *lse, uint16_t *p, uint16_t *ds)
{
    size_t t = h->s->t, c = h->s->c;
    float  factor = h->scale * 0x1.715476p+0f;
    for (size_t i = 0; i < t; i++) {
        float delta = row_dot(h->size, h->dy + i * c, h->y + i * c);
        for (size_t j = 0; j <= i; j++) {
            float e  = lki_exp2f(fmaf(score(h, i, j), factor, -lse[i]));
            float dp = chunks(h->size, (line){ h->dy + i * c, 1 }, (line){ h->v + j * h->row, 1 },
                              0.0f);
            p[i * t + j]  = operand(e * keep_of(h, i, j));
            ds[i * t + j] = operand(e * fmaf(dp, keep_of(h, i, j), -delta));
        }
    }
}

/* Computes column d of the gradients of a head for token i: as a query, and as a key and value.
 * `out` is the sample's first row.  The sums for a key continue over the heads that read it, and
 * are scaled after the last of them. */
static void attention_token(const head_of *h, const uint16_t *p, const uint16_t *ds, size_t i,
                            size_t d, float *out)
{
    size_t t = h->s->t, c = h->s->c, last = keys_of(i), from = i / QUERIES * QUERIES;
    float  dq = 0.0f;
    for (size_t first = 0; first < last; first += KEYS) {
        uint16_t row[KEYS] = { 0 };
        size_t   end = first + KEYS < last ? first + KEYS : last;
        for (size_t j = first; j < end && j <= i; j++)
            row[j - first] = ds[i * t + j];
        dq = over_keys(h, row, first, end, h->k + d, dq);
    }
    lki_reference_row row = lki_reference_row_of(h->s, h->head);
    size_t at = from * t + i, group = h->s->kv_heads > 0 ? h->s->heads / h->s->kv_heads : 1;
    bool   later = h->head % group > 0, ends = (h->head + 1) % group == 0;
    float *dk = out + i * h->row + row.k + d, *dv = out + i * h->row + row.v + d;
    *dk = chunks(t - from, (line){ ds + at, t }, (line){ h->q + from * h->row + d, h->row },
                 later ? *dk : 0.0f);
    *dv = chunks(t - from, (line){ p + at, t }, (line){ h->dy + from * c + d, c },
                 later ? *dv : 0.0f);
    *dk = ends ? *dk * h->scale : *dk;
    out[i * h->row + row.q + d] = dq * h->scale;
}

void lki_reference_attention_bf16_backward(const lki_attention_shape *s, const uint16_t *qkv,
                                           const uint16_t *y, const float *lse, const uint16_t *dy,
                                           float *dqkv)
{
    for (size_t index = 0; s->t > 0 && index < s->b * s->heads; index++) {
        head_of   h = head_at(s, qkv, index);
        size_t    at = h.sample * s->t * s->c + h.head * h.size;
        uint16_t *p = calloc(s->t * s->t, sizeof *p), *ds = calloc(s->t * s->t, sizeof *ds);
        h.y  = y + at;
        h.dy = dy + at;
        attention_scores(&h, lse + index * s->t, p, ds);
        for (size_t i = 0; i < s->t; i++)
            for (size_t d = 0; d < h.size; d++)
                attention_token(&h, p, ds, i, d, dqkv + h.sample * s->t * h.row);
        free(p);
        free(ds);
    }
}

/* ---- Convolution -------------------------------------------------------------------------- */

static uint16_t *rounded(const float *x, size_t n)
{
    uint16_t *y = calloc(n, sizeof *y);
    for (size_t i = 0; i < n; i++)
        y[i] = lki_bf16_narrow(x[i]);
    return y;
}

/* Returns channel 0 of pixel (y, x) of `sample` of an (n, h, w, c) image, or zeros outside it. */
static const uint16_t *pixel(const uint16_t *image, size_t sample, size_t h, size_t w, size_t c,
                             size_t y, size_t x, const uint16_t *zeros)
{
    return y < h && x < w ? image + ((sample * h + y) * w + x) * c : zeros;
}

void lki_reference_conv_bf16(const lki_conv_shape *s, const uint16_t *x, const float *w,
                             uint16_t *y)
{
    size_t    taps = s->kh * s->kw, depth = taps * s->cin;
    uint16_t *narrow = rounded(w, s->cout * depth), *zeros = calloc(s->cin, sizeof *zeros);
    uint16_t *window = calloc(depth, sizeof *window), *weights = calloc(depth, sizeof *weights);
    for (size_t i = 0; i < s->n * s->oh * s->ow * s->cout; i++) {
        size_t co = i % s->cout, o = i / s->cout, ox = o % s->ow, oy = o / s->ow % s->oh;
        for (size_t k = 0; k < depth; k++) {
            size_t tap = k / s->cin, ci = k % s->cin;
            window[k]  = pixel(x, o / s->ow / s->oh, s->h, s->w, s->cin,
                               oy * s->stride + tap / s->kw - s->pad,
                               ox * s->stride + tap % s->kw - s->pad, zeros)[ci];
            weights[k] = narrow[(co * s->cin + ci) * taps + tap];
        }
        y[i] = lki_bf16_narrow(chunks(depth, (line){ window, 1 }, (line){ weights, 1 }, 0.0f));
    }
    free(narrow);
    free(zeros);
    free(window);
    free(weights);
}

/* Returns the gradient of an input value.  `window`, `weights` and `zeros` have room for cout
 * values of all taps. */
static float conv_input_one(const lki_conv_shape *s, const uint16_t *dy, const uint16_t *w,
                            size_t pixel_index, size_t ci, uint16_t *window, uint16_t *weights,
                            const uint16_t *zeros)
{
    size_t taps = s->kh * s->kw, depth = 0;
    size_t sample = pixel_index / s->w / s->h, ix = pixel_index % s->w;
    size_t iy = pixel_index / s->w % s->h;
    for (size_t tap = taps; tap-- > 0;) {
        ptrdiff_t y = (ptrdiff_t)(iy + s->pad) - (ptrdiff_t)(tap / s->kw);
        ptrdiff_t x = (ptrdiff_t)(ix + s->pad) - (ptrdiff_t)(tap % s->kw);
        ptrdiff_t stride = (ptrdiff_t)s->stride;
        if (y % stride != 0 || x % stride != 0)
            continue;
        const uint16_t *at = pixel(dy, sample, s->oh, s->ow, s->cout, (size_t)(y / stride),
                                   (size_t)(x / stride), zeros);
        for (size_t co = 0; co < s->cout; co++, depth++) {
            window[depth]  = at[co];
            weights[depth] = w[(co * s->cin + ci) * taps + tap];
        }
    }
    return chunks(depth, (line){ window, 1 }, (line){ weights, 1 }, 0.0f);
}

void lki_reference_conv_bf16_backward_input(const lki_conv_shape *s, const uint16_t *dy,
                                            const float *w, uint16_t *dx, bool add)
{
    size_t    depth = s->kh * s->kw * s->cout;
    uint16_t *narrow = rounded(w, s->cin * depth), *zeros = calloc(s->cout, sizeof *zeros);
    uint16_t *window = calloc(depth, sizeof *window), *weights = calloc(depth, sizeof *weights);
    for (size_t i = 0; i < s->n * s->h * s->w * s->cin; i++) {
        float d = conv_input_one(s, dy, narrow, i / s->cin, i % s->cin, window, weights, zeros);
        dx[i] = lki_bf16_narrow(add ? lki_bf16_widen(dx[i]) + d : d);
    }
    free(narrow);
    free(zeros);
    free(window);
    free(weights);
}

void lki_reference_conv_bf16_backward_weights(const lki_conv_shape *s, const uint16_t *x,
                                              const uint16_t *dy, float *dw)
{
    size_t    pixels = s->n * s->oh * s->ow;
    uint16_t *window = calloc(pixels, sizeof *window), *zeros = calloc(s->cin, sizeof *zeros);
    for (size_t k = 0; k < s->cin * s->kh * s->kw; k++) {
        size_t kx = k % s->kw, ky = k / s->kw % s->kh, ci = k / s->kw / s->kh;
        for (size_t o = 0; o < pixels; o++)
            window[o] = pixel(x, o / s->ow / s->oh, s->h, s->w, s->cin,
                              o / s->ow % s->oh * s->stride + ky - s->pad,
                              o % s->ow * s->stride + kx - s->pad, zeros)[ci];
        for (size_t co = 0; co < s->cout; co++) {
            float *to = dw + co * s->cin * s->kh * s->kw + k;
            *to       = chunks(pixels, (line){ dy + co, s->cout }, (line){ window, 1 }, *to);
        }
    }
    free(window);
    free(zeros);
}
