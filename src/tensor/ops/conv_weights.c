/* conv_weights.c -- the gradient of a convolution's weights.
 *
 *      dw (kh kw cin, cout) += transposed windows (kh kw cin, pixel)  times  dy (pixel, cout)
 *
 * A task has a panel of input channels, a few output channels and all taps (or one row of them,
 * where there would be too few tasks), and takes some hundred pixels of dy at a time: it packs its
 * channels of the pixels that they meet, once for all taps, and each tap's tile of dw moves on by
 * the pixels that its taps meet.  So x and dy come from memory once a task and from the first
 * cache for the taps.
 *
 * Tasks go by rounds of a few samples, which stay in a near cache for the whole round.
 *
 * Order:   every element of dw is one chain of fma over (sample, oy, ox), from what dw holds.
 *          Padding takes no part.
 * Cost:    2 cin cout operations a pixel and tap; dw is reordered before and after.
 */
#include <string.h>

#include "tensor/onednn/onednn.h"
#include "tensor/ops/conv.h"

enum {
    LANES        = LKI_CONV_LANES,
    NEAR_CHANNELS = 32, /* of x: then what a panel skips does not matter */
    PIXELS       = 256, /* of dy at a time: 32 KiB of 32 channels */
    COLUMNS      = 32,
    COLUMNS_WIDE = 64,  /* for panels of few input channels */
    WIDE_ROWS    = 6,   /* that are few: 6 x 4 vectors of sums */
    TASKS_MIN    = 8,   /* else rows of taps are tasks of their own */
    BATCH_BYTES  = 1 << 21, /* of x and dy: near enough for every task to read them again */
};

typedef struct {
    const lki_conv_kernels *kernels;
    lk_exec                *exec;
    const lki_conv_shape   *shape;
    const float            *x, *dy;
    lki_conv_dw             to;
    size_t                  width;           /* of a pixel of dy */
    size_t                  panels, columns; /* panels of input channels; columns of a task */
    size_t                  groups, taps;    /* groups of columns; rows of taps of a task */
    size_t                  first, last;     /* samples of this round of tasks */
    bool                    pack;
} gradient;

static size_t blocks_of(size_t count, size_t size)
{
    return (count + size - 1) / size;
}

/* ---- dw in the order of the tiles, and back ---------------------------------------------- */

typedef struct { const lki_conv_kernels *kernels; const lki_conv_dw *dw; } ordering;

static lki_weight_panel panel_of(const lki_conv_dw *g, size_t index)
{
    const lki_conv_shape *s = g->shape;
    size_t taps = s->kh * s->kw, column = index * LANES, first = g->first + column;
    return (lki_weight_panel){ .columns = lki_min(LANES, s->cout - first),
                               .cin     = s->cin,
                               .taps    = taps,
                               .step    = g->columns,
                               .w       = g->dw + first * s->cin * taps,
                               .dw      = g->dw + first * s->cin * taps,
                               .matrix  = g->matrix + column };
}

static void reorder_task(void *context, size_t index, uint32_t thread)
{
    const ordering  *o     = context;
    lki_weight_panel panel = panel_of(o->dw, index);
    (void)thread;
    o->kernels->pack_weights(&panel);
}

static void restore_task(void *context, size_t index, uint32_t thread)
{
    const ordering  *o     = context;
    lki_weight_panel panel = panel_of(o->dw, index);
    (void)thread;
    o->kernels->unpack_weights(&panel);
}

static void order(lk_exec *exec, const lki_conv_dw *dw, lki_task task)
{
    ordering o = { lki_exec_kernels(exec)->conv, dw };
    lki_exec_run(exec, blocks_of(lki_min(dw->columns, dw->shape->cout - dw->first), LANES), task,
                 &o);
}

void lki_conv_reorder(lk_exec *exec, const lki_conv_dw *dw)
{
    order(exec, dw, reorder_task);
}

void lki_conv_restore(lk_exec *exec, const lki_conv_dw *dw)
{
    order(exec, dw, restore_task);
}

/* ---- dy in whole lanes ------------------------------------------------------------------- */

typedef struct { const lki_conv_shape *shape; const float *from; float *to; size_t width; } padding;

/* One row of pixels. */
static void padding_task(void *context, size_t index, uint32_t thread)
{
    const padding *p     = context;
    size_t         count = p->shape->ow, c = p->shape->cout;
    const float   *from  = p->from + index * count * c;
    float         *to    = p->to + index * count * p->width;
    (void)thread;
    memset(to, 0, count * p->width * sizeof *to);
    for (size_t i = 0; i < count; i++)
        memcpy(to + i * p->width, from + i * c, c * sizeof *to);
}

size_t lki_conv_weights_bytes(const lki_conv_shape *s)
{
    size_t width = lki_round_up(s->cout, LANES), bytes = width * sizeof(float);
    return lki_conv_wave_bytes(s->kh * s->kw * s->cin, width) +
           (s->cout == width ? 0 : s->n * s->oh * s->ow * bytes);
}

static const float *padded(lk_exec *exec, const lki_conv_shape *s, const float *dy, float *to)
{
    padding p = { s, dy, to, lki_round_up(s->cout, LANES) };
    if (p.width == s->cout)
        return dy;
    lki_exec_run(exec, s->n * s->oh, padding_task, &p);
    return to;
}

/* ---- Tiles ------------------------------------------------------------------------------- */

/* Samples and rows of dy that are taken together, and the rows of x that they meet. */
typedef struct {
    size_t       sample, samples, oy, rows;
    size_t       iy, height;
    const float *x;              /* of the first of these rows, at the task's first channel */
    size_t       pixel, sample_pitch; /* distances in it */
} slab;

/* Positions low .. high - 1 of `count` that meet a pixel of 0 .. size - 1 through tap `tap`. */
typedef struct { size_t low, high; } span;

static span span_of(size_t tap, size_t count, size_t stride, size_t pad, size_t size)
{
    span a = { .low = tap < pad ? blocks_of(pad - tap, stride) : 0 };
    a.high = size + pad > tap ? lki_min(count, (size + pad - tap - 1) / stride + 1) : 0;
    return a;
}

/* One tap's tile, over the pixels of the slab that it meets. */
static void tap_run(const gradient *g, const slab *b, size_t ky, size_t kx, lki_conv_outer *t,
                    size_t column, size_t channel)
{
    const lki_conv_shape *s = g->shape;
    span   y = span_of(ky, s->oh, s->stride, s->pad, s->h);
    span   x = span_of(kx, s->ow, s->stride, s->pad, s->w);
    size_t first = lki_max(y.low, b->oy), last = lki_min(y.high, b->oy + b->rows);
    if (first >= last || x.low >= x.high)
        return;
    size_t iy = first * s->stride + ky - s->pad - b->iy;
    size_t ix = x.low * s->stride + kx - s->pad;

    t->sets   = b->samples;
    t->runs   = last - first;
    t->run    = x.high - x.low;
    t->a      = b->x + (iy * s->w + ix) * b->pixel;
    t->a_set  = b->sample_pitch;
    t->a_run  = s->stride * s->w * b->pixel;
    t->a_step = s->stride * b->pixel;
    t->b      = g->dy + ((b->sample * s->oh + first) * s->ow + x.low) * g->width +
           g->to.first + column;
    t->b_set  = s->oh * s->ow * g->width;
    t->b_run  = s->ow * g->width;
    t->b_step = g->width;
    t->c      = g->to.matrix + ((ky * s->kw + kx) * s->cin + channel) * g->to.columns + column;
    g->kernels->outer(t);
}

/* The rows of x that the slab's rows meet through taps from .. to - 1, packed if that pays. */
static void slab_open(const gradient *g, slab *b, size_t from, size_t to, size_t channel,
                      size_t channels, float *packed)
{
    const lki_conv_shape *s = g->shape;
    size_t top = b->oy * s->stride + from, bottom = (b->oy + b->rows - 1) * s->stride + to;
    b->iy      = top > s->pad ? lki_min(s->h, top - s->pad) : 0;
    b->height  = bottom > s->pad ? lki_min(s->h, bottom - s->pad) - b->iy : 0;
    b->x       = g->x + (b->sample * s->h + b->iy) * s->w * s->cin + channel;
    b->pixel   = s->cin;
    b->sample_pitch = s->h * s->w * s->cin;
    size_t pixels = b->height * s->w, floats = pixels * channels;
    if (!g->pack || b->samples * floats + LKI_CONV_SLACK > LKI_EXEC_PRIVATE / 2)
        return;
    for (size_t i = 0; i < b->samples; i++)
        g->kernels->pack_pixels(pixels, channels, b->x + i * b->sample_pitch, s->cin,
                                packed + i * floats);
    b->x            = packed;
    b->pixel        = channels;
    b->sample_pitch = floats;
}

static void gradient_task(void *context, size_t index, uint32_t thread)
{
    const gradient       *g = context;
    const lki_conv_shape *s = g->shape;
    size_t panel = index % g->panels, column = index / g->panels % g->groups * g->columns;
    size_t from = index / g->panels / g->groups * g->taps, to = from + g->taps;
    size_t each = s->cin / g->panels, longer = s->cin % g->panels;
    size_t channel = panel * each + lki_min(panel, longer);
    size_t rows = lki_max(1, lki_min(s->oh, PIXELS / s->ow));
    size_t samples = rows < s->oh ? 1 : lki_max(1, PIXELS / (s->oh * s->ow));
    lki_conv_outer t = { .rows    = panel < longer ? each + 1 : each,
                         .columns = lki_min(g->columns, g->to.columns - column),
                         .ldc     = g->to.columns };
    for (size_t sample = g->first; sample < g->last; sample += samples) {
        for (size_t oy = 0; oy < s->oh; oy += rows) {
            slab b = { .sample = sample, .samples = lki_min(samples, g->last - sample), .oy = oy,
                       .rows = lki_min(rows, s->oh - oy) };
            slab_open(g, &b, from, to, channel, t.rows, lki_exec_private(g->exec, thread));
            for (size_t ky = from; ky < to; ky++)
                for (size_t kx = 0; kx < s->kw; kx++)
                    tap_run(g, &b, ky, kx, &t, column, channel);
        }
    }
}

/* A wave of dw, by rounds of samples. */
static void wave_run(lk_exec *exec, gradient *g)
{
    const lki_conv_shape *s = g->shape;
    size_t values = s->h * s->w * s->cin + s->oh * s->ow * g->width;
    size_t batch  = lki_max(1, BATCH_BYTES / sizeof(float) / values);

    g->groups = blocks_of(g->to.columns, g->columns);
    g->taps   = g->panels * g->groups < TASKS_MIN ? 1 : s->kh;
    lki_conv_reorder(exec, &g->to);
    for (g->first = 0; g->first < s->n; g->first = g->last) {
        g->last = lki_min(s->n, g->first + batch);
        lki_exec_run(exec, g->panels * g->groups * (s->kh / g->taps), gradient_task, g);
    }
    lki_conv_restore(exec, &g->to);
}

void lki_conv_backward_weights(lk_exec *exec, const lki_conv_shape *shape, const float *x,
                               const float *dy, float *dw, void *scratch)
{
    if (lki_other_conv(exec, shape, LKI_ONEDNN_WEIGHTS, true, x, dw, dy))
        return;
    const lki_conv_shape *s = shape;
    size_t   depth = s->kh * s->kw * s->cin, width = lki_round_up(s->cout, LANES);
    float   *next  = (float *)scratch + lki_conv_wave_bytes(depth, width) / sizeof(float);
    gradient g = {
        .kernels = lki_exec_kernels(exec)->conv,
        .exec    = exec,
        .shape   = s,
        .x       = x,
        .dy      = padded(exec, s, dy, next),
        .to      = { .shape = s, .dw = dw, .matrix = scratch },
        .width   = width,
        .pack    = s->kh * s->kw > 1 && s->cin > NEAR_CHANNELS,
    };
    g.panels    = blocks_of(s->cin, g.kernels->outer_rows);
    g.columns   = blocks_of(s->cin, g.panels) <= WIDE_ROWS ? COLUMNS_WIDE : COLUMNS;
    size_t wave = lki_conv_wave(depth, width, g.columns);
    for (; g.to.first < width; g.to.first += g.to.columns) {
        g.to.columns = lki_min(wave, width - g.to.first);
        wave_run(exec, &g);
    }
}
