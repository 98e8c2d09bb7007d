/* pool.c -- maximum and mean over windows of an NHWC image.
 *
 * Maximum: each output is the first largest value of its window, in order of rows and then columns,
 * and its position is stored.  So backward needs no values: each input adds, in order, the
 * gradients of the windows of which it was the maximum.  The shape must have no window that
 * contains only padding.
 *
 * Mean: one chain of additions per channel over the positions in order, then one division.
 *
 * Values are FP32 or bf16; sums are FP32 and rounded once.
 *
 * Cost: memory traffic only.  The results do not depend on the instruction set.
 */
#include <string.h>

#include "base/memory.h"
#include "device/half.h"
#include "tensor/ops.h"
#include "tensor/isa/kernels.h"

enum { CHANNELS = 32 }; /* channels that are processed together */

static float value_at(lk_dtype type, const void *values, size_t i)
{
    return type == LK_BF16 ? lki_bf16_widen(((const uint16_t *)values)[i])
                           : ((const float *)values)[i];
}

static void put(lk_dtype type, void *values, size_t i, float x)
{
    if (type == LK_BF16)
        ((uint16_t *)values)[i] = lki_bf16_narrow(x);
    else
        ((float *)values)[i] = x;
}

static void load(lk_dtype type, size_t count, const void *values, size_t at, float *restrict to)
{
    for (size_t i = 0; i < count; i++)
        to[i] = value_at(type, values, at + i);
}

static void store(lk_dtype type, size_t count, const float *restrict from, void *values, size_t at)
{
    for (size_t i = 0; i < count; i++)
        put(type, values, at + i, from[i]);
}

/* ---- Maximum ----------------------------------------------------------------------------- */

typedef struct {
    lk_dtype              type;
    const lki_conv_shape *shape;
    const void           *x, *dy;
    void                 *y, *dx;
    uint32_t             *argmax;
    const uint32_t       *from;
    bool                  add;
} maxpool;

/* Compares input position `at` with the current maximum of `c` channels.  The first NaN takes
 * precedence over all numbers. */
static void compete(const float *restrict x, uint32_t at, size_t c, float *restrict best,
                    uint32_t *restrict where)
{
    for (size_t i = 0; i < c; i++) {
        bool wins = !(x[i] <= best[i]) && best[i] == best[i];
        best[i]   = wins ? x[i] : best[i];
        where[i]  = wins ? at : where[i];
    }
}

/* Computes channels first .. first + count - 1 of output (oy, ox). */
static void maxpool_window(const maxpool *m, size_t sample, size_t oy, size_t ox, size_t first,
                           size_t count, float *best, uint32_t *where)
{
    const lki_conv_shape *s = m->shape;
    float                 x[CHANNELS];
    bool                  any = false;
    for (size_t ky = 0; ky < s->kh; ky++) {
        /* the index wraps around above the image, and is then >= h */
        size_t iy = oy * s->stride + ky - s->pad;
        if (iy >= s->h)
            continue;
        for (size_t kx = 0; kx < s->kw; kx++) {
            size_t ix = ox * s->stride + kx - s->pad;
            if (ix >= s->w)
                continue;
            uint32_t at = (uint32_t)(iy * s->w + ix);
            load(m->type, count, m->x, (sample * s->h * s->w + at) * s->cin + first, x);
            if (any)
                compete(x, at, count, best, where);
            else
                memcpy(best, x, count * sizeof *x);
            for (size_t i = 0; i < count && !any; i++)
                where[i] = at;
            any = true;
        }
    }
    LK_ASSERT(any);
}

/* Computes a row of outputs. */
static void maxpool_task(void *context, size_t index, uint32_t thread)
{
    const maxpool        *m = context;
    const lki_conv_shape *s = m->shape;
    float                 best[CHANNELS];
    (void)thread;

    for (size_t ox = 0; ox < s->ow; ox++)
        for (size_t first = 0; first < s->cin; first += CHANNELS) {
            size_t count = lki_min(CHANNELS, s->cin - first);
            size_t out   = (index * s->ow + ox) * s->cin + first;
            maxpool_window(m, index / s->oh, index % s->oh, ox, first, count, best,
                           m->argmax + out);
            store(m->type, count, best, m->y, out);
        }
}

void lki_maxpool(lk_exec *exec, lk_dtype type, const lki_conv_shape *shape, const void *x, void *y,
                 uint32_t *argmax)
{
    maxpool m = { .type = type, .shape = shape, .x = x, .y = y, .argmax = argmax };
    LK_ASSERT(shape->cin == shape->cout);
    lki_pool_run(lki_exec_pool(exec), shape->n * shape->oh, maxpool_task, &m);
}

/* Windows first .. last - 1 of `count`: those that contain position `at`. */
typedef struct { size_t first, last; } covering;

static covering covering_of(size_t at, size_t count, size_t kernel, size_t stride, size_t pad)
{
    size_t low = at + pad < kernel ? 0 : (at + pad - kernel) / stride + 1;
    return (covering){ low, lki_min(count, (at + pad) / stride + 1) };
}

static void gather(const float *restrict dy, const uint32_t *restrict from, uint32_t at, size_t c,
                   float *restrict sum)
{
    for (size_t i = 0; i < c; i++)
        sum[i] = from[i] == at ? sum[i] + dy[i] : sum[i];
}

/* Computes a row of inputs. */
static void maxpool_backward_task(void *context, size_t index, uint32_t thread)
{
    const maxpool        *m = context;
    const lki_conv_shape *s = m->shape;
    size_t   sample = index / s->h, iy = index % s->h;
    covering y = covering_of(iy, s->oh, s->kh, s->stride, s->pad);
    float    sum[CHANNELS], dy[CHANNELS];
    (void)thread;

    LK_ASSERT(s->cin > 0);
    for (size_t i = 0, count; i < s->w * s->cin; i += count) {
        size_t   ix = i / s->cin, first = i % s->cin;
        covering x  = covering_of(ix, s->ow, s->kw, s->stride, s->pad);
        count       = lki_min(CHANNELS, s->cin - first);
        memset(sum, 0, sizeof sum);
        if (m->add)
            load(m->type, count, m->dx, index * s->w * s->cin + i, sum);
        for (size_t oy = y.first; oy < y.last; oy++)
            for (size_t ox = x.first; ox < x.last; ox++) {
                size_t out = ((sample * s->oh + oy) * s->ow + ox) * s->cin + first;
                load(m->type, count, m->dy, out, dy);
                gather(dy, m->from + out, (uint32_t)(iy * s->w + ix), count, sum);
            }
        store(m->type, count, sum, m->dx, index * s->w * s->cin + i);
    }
}

void lki_maxpool_backward(lk_exec *exec, lk_dtype type, const lki_conv_shape *shape,
                          const uint32_t *argmax, const void *dy, void *dx, bool add)
{
    maxpool m = { .type = type, .shape = shape, .from = argmax, .dy = dy, .dx = dx, .add = add };
    lki_pool_run(lki_exec_pool(exec), shape->n * shape->h, maxpool_backward_task, &m);
}

/* ---- Mean -------------------------------------------------------------------------------- */

typedef struct {
    lk_dtype    type;
    size_t      positions, c;
    const void *x, *dy;
    void       *y, *dx;
    bool        add;
} avgpool;

/* Computes means by blocks of channels.  The sums are FP32 for either type. */
static void avgpool_task(void *context, size_t index, uint32_t thread)
{
    const avgpool *a = context;
    float          sum[CHANNELS];
    (void)thread;

    for (size_t first = 0; first < a->c; first += CHANNELS) {
        size_t count = lki_min(CHANNELS, a->c - first);
        memset(sum, 0, sizeof sum);
        for (size_t p = 0; p < a->positions; p++)
            for (size_t i = 0; i < count; i++)
                sum[i] += value_at(a->type, a->x, (index * a->positions + p) * a->c + first + i);
        for (size_t i = 0; i < count; i++)
            put(a->type, a->y, index * a->c + first + i, sum[i] / (float)a->positions);
    }
}

void lki_avgpool(lk_exec *exec, lk_dtype type, size_t n, size_t positions, size_t c, const void *x,
                 void *y)
{
    avgpool a = { .type = type, .positions = positions, .c = c, .x = x, .y = y };
    lki_pool_run(lki_exec_pool(exec), n, avgpool_task, &a);
}

static void avgpool_backward_task(void *context, size_t index, uint32_t thread)
{
    const avgpool *a = context;
    (void)thread;

    for (size_t p = 0; p < a->positions; p++)
        for (size_t i = 0; i < a->c; i++) {
            size_t at   = (index * a->positions + p) * a->c + i;
            float  each = value_at(a->type, a->dy, index * a->c + i) / (float)a->positions;
            put(a->type, a->dx, at, a->add ? value_at(a->type, a->dx, at) + each : each);
        }
}

void lki_avgpool_backward(lk_exec *exec, lk_dtype type, size_t n, size_t positions, size_t c,
                          const void *dy, void *dx, bool add)
{
    avgpool a = { .type = type, .positions = positions, .c = c, .dy = dy, .dx = dx, .add = add };
    lki_pool_run(lki_exec_pool(exec), n, avgpool_backward_task, &a);
}
