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
#include "tensor/exec.h"
#include "tensor/isa/kernels.h"

enum { CHANNELS = 32 }; /* channels of a mean that are processed together */

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

/* ---- Maximum ----------------------------------------------------------------------------- */

typedef struct {
    const lki_pool_kernels *kernels;
    lk_dtype                type;
    size_t                  bytes; /* of a value */
    const lki_conv_shape   *shape;
    const void             *x, *dy;
    void                   *y, *dx;
    uint32_t               *argmax;
    const uint32_t         *from;
    bool                    add;
} maxpool;

/* Positions first .. last - 1. */
typedef struct { size_t first, last; } range;

/* Returns the inputs, of `size`, that are in window `at`. */
static range inputs_of(size_t at, size_t size, size_t kernel, size_t stride, size_t pad)
{
    size_t low = at * stride, high = low + kernel;
    return (range){ low > pad ? low - pad : 0, high > pad ? lki_min(size, high - pad) : 0 };
}

/* Returns the windows, of `count`, that contain input `at`. */
static range windows_of(size_t at, size_t count, size_t kernel, size_t stride, size_t pad)
{
    size_t low = at + pad < kernel ? 0 : (at + pad - kernel) / stride + 1;
    return (range){ low, lki_min(count, (at + pad) / stride + 1) };
}

static const void *element(const void *values, size_t index, size_t bytes)
{
    return (const char *)values + index * bytes;
}

/* Computes a row of outputs. */
static void maxpool_task(void *context, size_t index, uint32_t thread)
{
    const maxpool        *m = context;
    const lki_conv_shape *s = m->shape;
    range                 y = inputs_of(index % s->oh, s->h, s->kh, s->stride, s->pad);
    (void)thread;

    for (size_t ox = 0; ox < s->ow; ox++) {
        range  x   = inputs_of(ox, s->w, s->kw, s->stride, s->pad);
        size_t out = (index * s->ow + ox) * s->cin, at = y.first * s->w + x.first;
        LK_ASSERT(y.first < y.last && x.first < x.last);
        m->kernels->max(&(lki_max_window){
            .type     = m->type,
            .channels = s->cin,
            .rows     = y.last - y.first,
            .columns  = x.last - x.first,
            .row      = s->w * s->cin,
            .x        = element(m->x, (index / s->oh * s->h * s->w + at) * s->cin, m->bytes),
            .at       = (uint32_t)at,
            .at_row   = (uint32_t)s->w,
            .y        = (char *)m->y + out * m->bytes,
            .argmax   = m->argmax + out,
        });
    }
}

void lki_maxpool(lk_exec *exec, lk_dtype type, const lki_conv_shape *shape, const void *x, void *y,
                 uint32_t *argmax)
{
    maxpool m = { .kernels = lki_exec_kernels(exec)->pool, .type = type,
                  .bytes = lk_dtype_bytes(type), .shape = shape, .x = x, .y = y,
                  .argmax = argmax };
    LK_ASSERT(shape->cin == shape->cout);
    lki_exec_run(exec, shape->n * shape->oh, maxpool_task, &m);
}

/* Computes a row of inputs. */
static void maxpool_backward_task(void *context, size_t index, uint32_t thread)
{
    const maxpool        *m = context;
    const lki_conv_shape *s = m->shape;
    size_t                sample = index / s->h, iy = index % s->h;
    range                 y = windows_of(iy, s->oh, s->kh, s->stride, s->pad);
    (void)thread;

    for (size_t ix = 0; ix < s->w; ix++) {
        range  x   = windows_of(ix, s->ow, s->kw, s->stride, s->pad);
        size_t out = ((sample * s->oh + y.first) * s->ow + x.first) * s->cin;
        m->kernels->max_backward(&(lki_max_outputs){
            .type     = m->type,
            .channels = s->cin,
            .rows     = y.first < y.last ? y.last - y.first : 0,
            .columns  = x.first < x.last ? x.last - x.first : 0,
            .row      = s->ow * s->cin,
            .dy       = element(m->dy, out, m->bytes),
            .argmax   = m->from + out,
            .at       = (uint32_t)(iy * s->w + ix),
            .dx       = (char *)m->dx + (index * s->w + ix) * s->cin * m->bytes,
            .add      = m->add,
        });
    }
}

void lki_maxpool_backward(lk_exec *exec, lk_dtype type, const lki_conv_shape *shape,
                          const uint32_t *argmax, const void *dy, void *dx, bool add)
{
    maxpool m = { .kernels = lki_exec_kernels(exec)->pool, .type = type,
                  .bytes = lk_dtype_bytes(type), .shape = shape, .from = argmax, .dy = dy,
                  .dx = dx, .add = add };
    lki_exec_run(exec, shape->n * shape->h, maxpool_backward_task, &m);
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
