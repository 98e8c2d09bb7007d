/* pool.c -- maximum and mean over windows of an NHWC image.
 *
 * Maximum: each output keeps the first largest value of its window, in order of rows and then
 * columns, and remembers where it stood, so that backward is a scatter without looking at
 * values.  Windows may overlap: backward gives a thread one sample and a block of channels, and
 * walks the outputs in order.  A window over nothing but padding is the shape's fault.
 *
 * Mean: one chain of additions per channel over the positions in order, then one division.
 *
 * Cost: bytes only.  Nothing here rounds differently on another instruction set.
 */
#include <string.h>

#include "base/memory.h"
#include "device/half.h"
#include "tensor/ops.h"

enum { CHANNELS_PER_TASK = 32 };

typedef struct {
    const lki_conv_shape *shape;
    const float          *x, *dy;
    float                *y, *dx;
    uint32_t             *argmax;
    const uint32_t       *from;
    bool                  add;
} maxpool;

/* Lets input position `at` compete for the maximum of `c` channels.  The first
 * NaN beats all numbers. */
static void compete(const float *restrict x, uint32_t at, size_t c, float *restrict best,
                    uint32_t *restrict where)
{
    for (size_t i = 0; i < c; i++) {
        bool wins = !(x[i] <= best[i]) && best[i] == best[i];
        best[i]   = wins ? x[i] : best[i];
        where[i]  = wins ? at : where[i];
    }
}

static void maxpool_window(const lki_conv_shape *s, const float *image, size_t oy, size_t ox,
                           float *best, uint32_t *where)
{
    bool first = true;
    for (size_t ky = 0; ky < s->kh; ky++) {
        size_t iy = oy * s->stride + ky - s->pad; /* wraps above the image: then it is >= h */
        if (iy >= s->h)
            continue;
        for (size_t kx = 0; kx < s->kw; kx++) {
            size_t ix = ox * s->stride + kx - s->pad;
            if (ix >= s->w)
                continue;
            uint32_t     at = (uint32_t)(iy * s->w + ix);
            const float *x  = image + (size_t)at * s->cin;
            if (first) {
                memcpy(best, x, s->cin * sizeof *x);
                for (size_t i = 0; i < s->cin; i++)
                    where[i] = at;
                first = false;
            } else {
                compete(x, at, s->cin, best, where);
            }
        }
    }
    LK_ASSERT(!first);
}

static void maxpool_task(void *context, size_t index, uint32_t thread)
{
    const maxpool        *m = context;
    const lki_conv_shape *s = m->shape;
    const float          *image = m->x + index / s->oh * s->h * s->w * s->cin;
    (void)thread;

    for (size_t ox = 0; ox < s->ow; ox++) {
        size_t out = (index * s->ow + ox) * s->cin;
        maxpool_window(s, image, index % s->oh, ox, m->y + out, m->argmax + out);
    }
}

void lki_maxpool(lk_exec *exec, const lki_conv_shape *shape, const float *x, float *y,
                 uint32_t *argmax)
{
    maxpool m = { .shape = shape, .x = x, .y = y, .argmax = argmax };
    LK_ASSERT(shape->cin == shape->cout);
    lki_pool_run(lki_exec_pool(exec), shape->n * shape->oh, maxpool_task, &m);
}

static void maxpool_backward_task(void *context, size_t index, uint32_t thread)
{
    const maxpool        *m = context;
    const lki_conv_shape *s = m->shape;
    size_t c = s->cin, blocks = (c + CHANNELS_PER_TASK - 1) / CHANNELS_PER_TASK;
    size_t sample = index / blocks, first = index % blocks * CHANNELS_PER_TASK;
    size_t count = lki_min(CHANNELS_PER_TASK, c - first);
    float *dx    = m->dx + sample * s->h * s->w * c + first;
    (void)thread;

    for (size_t at = 0; at < s->h * s->w && !m->add; at++)
        memset(dx + at * c, 0, count * sizeof *dx);
    for (size_t o = 0; o < s->oh * s->ow; o++) {
        size_t          out  = (sample * s->oh * s->ow + o) * c + first;
        const float    *dy   = m->dy + out;
        const uint32_t *from = m->from + out;
        for (size_t i = 0; i < count; i++)
            dx[from[i] * c + i] += dy[i];
    }
}

void lki_maxpool_backward(lk_exec *exec, const lki_conv_shape *shape, const uint32_t *argmax,
                          const float *dy, float *dx, bool add)
{
    maxpool m = { .shape = shape, .from = argmax, .dy = dy, .dx = dx, .add = add };
    size_t  blocks = (shape->cin + CHANNELS_PER_TASK - 1) / CHANNELS_PER_TASK;
    lki_pool_run(lki_exec_pool(exec), shape->n * blocks, maxpool_backward_task, &m);
}

typedef struct {
    lk_dtype    type;
    size_t      positions, c;
    const void *x, *dy;
    void       *y, *dx;
    bool        add;
} avgpool;

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

/* By blocks of channels, whose sums are FP32 whatever they are stored as. */
static void avgpool_task(void *context, size_t index, uint32_t thread)
{
    const avgpool *a = context;
    float          sum[CHANNELS_PER_TASK];
    (void)thread;

    for (size_t first = 0; first < a->c; first += CHANNELS_PER_TASK) {
        size_t count = lki_min(CHANNELS_PER_TASK, a->c - first);
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
