/* conv_weights.c -- the gradient of a convolution's weights.
 *
 *      dw (kh kw cin, cout) += transposed windows (kh kw cin, pixel)  times  dy (pixel, cout)
 *
 * A task has some output channels, some panels of input channels and all taps (or one row of taps,
 * if there would be too few tasks).  It processes a slab, some hundred pixels of dy, at a time.
 * The tile of dw of each tap continues its chains over the pixels of the slab that the tap uses.
 * So a task reads x and dy from memory once, and from the first-level cache for all taps.  If
 * pixels have many channels, those of a panel are packed first.
 *
 * Tasks run in rounds of a few samples, which stay in a near cache for the whole round.  If the
 * samples have parts, a task computes its tiles of dw for each part in another slot, and merges
 * slots that are complete.
 *
 * Order:   every element of dw is one chain of fma over the points (sample, oy, ox) that its tap
 *          uses, from the value in dw or from 0.  The chains of parts are added by the tree.
 * Cost:    2 cin cout operations per pixel and tap; dw is reordered before, unless it starts from
 *          0, and after.
 */
#include <string.h>

#include "tensor/onednn/onednn.h"
#include "tensor/ops/conv.h"
#include "tensor/isa/kernels.h"
#include "tensor/part_counter.h"

enum {
    LANES         = LKI_CONV_LANES,
    NEAR_CHANNELS = 32, /* maximum channels of x for which pixels stay undivided */
    NEAR_KERNEL   = 16, /* maximum rows of taps for which a task's buffer holds x */
    PIXELS        = 256, /* pixels of dy at a time: 32 channels of them are 32 KiB */
    COLUMNS       = 32,
    COLUMNS_WIDE  = 64,  /* columns of a task, for panels of few input channels */
    WIDE_ROWS     = 6,   /* maximum input channels of such a panel: 6 x 4 vectors of sums */
    FEW_ROWS      = 8,   /* minimum rows of a panel that is divided to get more tasks */
    ROUND_BYTES   = 1 << 21, /* maximum bytes of x and dy in a round */
    READ_OFTEN    = 3,   /* tasks of a thread from which on a round should stay in its cache */
};

/* A wave (a range of output channels) of dw (cout, cin, kh, kw), and its values in the order of the
 * tiles: matrices (kh kw cin, columns), one for each slot. */
typedef struct {
    const lki_conv_shape *shape;
    bool                  add;
    float                *dw, *matrix;
    size_t                first, columns; /* output channels; `columns` is a multiple of 16 */
    size_t                slot;           /* floats of a slot */
} wave_of_dw;

typedef struct {
    const lki_conv_kernels *kernels;
    lk_exec                *exec;
    const lki_conv_shape   *shape;
    const float            *x, *dy;
    const lki_parts        *parts;
    wave_of_dw              to;
    bool                    whole;       /* pixels of x are not divided into panels */
    size_t                  panels;      /* number of panels of channels, one per task */
    size_t                  wave;        /* columns that are computed together */
    /* columns of a task; number of groups of columns */
    size_t                  columns, groups;
    size_t                  taps;        /* rows of taps per task */
    size_t                  first, last; /* range of samples of this round of tasks */
} gradient;

static size_t blocks_of(size_t count, size_t size)
{
    return (count + size - 1) / size;
}

/* One of several parts of `count`, which are as equal as possible. */
typedef struct { size_t first, count; } part;

static part part_of(size_t count, size_t parts, size_t index)
{
    size_t each = count / parts, longer = count % parts;
    return (part){ index * each + lki_min(index, longer), each + (index < longer) };
}

/* ---- dw in the order of the tiles, and back ---------------------------------------------- */

typedef struct { const lki_conv_kernels *kernels; const wave_of_dw *dw; } ordering;

static lki_weight_panel panel_of(const wave_of_dw *g, size_t index)
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

static void order(lk_exec *exec, const wave_of_dw *dw, lki_task task)
{
    ordering o = { lki_exec_kernels(exec)->conv, dw };
    lki_exec_run(exec, blocks_of(lki_min(dw->columns, dw->shape->cout - dw->first), LANES), task,
                 &o);
}

size_t lki_conv_weights_bytes(const lki_conv_shape *s, uint32_t parts)
{
    size_t slots = lki_part_slots(parts) *
                   lki_conv_wave_bytes(s->kh * s->kw * s->cin, lki_round_up(s->cout, LANES));
    return lki_max(slots, lki_conv_product_weights_bytes(s));
}

/* ---- Slabs ------------------------------------------------------------------------------- */

/* A slab: the samples, rows and steps of dy that are processed together, and the part of x that
 * they use.  This part begins at row `iy` and pixel `ix`.  `x` points to its beginning, and `dy` to
 * the task's first column.  Distances are in floats. */
typedef struct {
    size_t       sample, samples, oy, rows, step, steps;
    size_t       iy, height, ix, width;
    const float *x, *dy;
    size_t       x_pixel, x_row, x_sample, dy_step, dy_row, dy_sample;
} slab;

/* Returns the maximum number of floats of x and dy in a task's buffer. */
static size_t slab_floats(const gradient *g, const slab *b)
{
    const lki_conv_shape *s = g->shape;
    size_t channels = g->whole ? 0 : blocks_of(s->cin, g->panels);
    size_t height   = (b->rows - 1) * s->stride + g->taps;
    size_t width    = (b->steps - 1) * s->stride + s->kw;
    return b->samples * (height * width * channels + b->rows * b->steps * COLUMNS_WIDE) +
           LKI_CONV_SLACK;
}

/* Chooses the size of the slabs of a call. */
static slab slab_size(const gradient *g)
{
    const lki_conv_shape *s = g->shape;
    slab b = { .steps = lki_min(s->ow, PIXELS) };
    b.rows    = b.steps < s->ow ? 1 : lki_max(1, lki_min(s->oh, PIXELS / s->ow));
    b.samples = b.rows < s->oh ? 1 : lki_max(1, PIXELS / (s->oh * s->ow));
    while (slab_floats(g, &b) > LKI_EXEC_PRIVATE && b.samples * b.rows * b.steps > 1) {
        size_t *longest = b.samples > 1 ? &b.samples : b.rows > 1 ? &b.rows : &b.steps;
        *longest /= 2;
    }
    LK_ASSERT(slab_floats(g, &b) <= LKI_EXEC_PRIVATE);
    return b;
}

/* Computes the rows and pixels of x that are used by the rows of taps `from` to `to` - 1. */
static void slab_extent(const gradient *g, slab *b, size_t from, size_t to)
{
    const lki_conv_shape *s = g->shape;
    size_t top = b->oy * s->stride + from, bottom = (b->oy + b->rows - 1) * s->stride + to;
    size_t left = b->step * s->stride, right = (b->step + b->steps - 1) * s->stride + s->kw;
    b->iy     = top > s->pad ? lki_min(s->h, top - s->pad) : 0;
    b->height = bottom > s->pad ? lki_min(s->h, bottom - s->pad) : 0;
    b->height = b->height > b->iy ? b->height - b->iy : 0;
    b->ix     = left > s->pad ? lki_min(s->w, left - s->pad) : 0;
    b->width  = right > s->pad ? lki_min(s->w, right - s->pad) : 0;
    b->width  = b->width > b->ix ? b->width - b->ix : 0;
}

/* Packs `channels` of x. */
static void slab_copy_x(const gradient *g, slab *b, part channels, float *to)
{
    const lki_conv_shape *s = g->shape;
    b->x_pixel  = channels.count;
    b->x_row    = b->width * channels.count;
    b->x_sample = b->height * b->x_row;
    b->x        = to;
    for (size_t i = 0; i < b->samples * b->height; i++, to += b->x_row) {
        size_t row = (b->sample + i / b->height) * s->h + b->iy + i % b->height;
        g->kernels->pack_pixels(b->width, channels.count,
                                g->x + (row * s->w + b->ix) * s->cin + channels.first, s->cin, to);
    }
}

static void slab_use_x(const gradient *g, slab *b)
{
    const lki_conv_shape *s = g->shape;
    b->x_pixel  = s->cin;
    b->x_row    = s->w * s->cin;
    b->x_sample = s->h * b->x_row;
    b->x = g->x + b->sample * b->x_sample + b->iy * b->x_row + b->ix * s->cin;
}

/* Copies a row of dy, with values padded to whole vectors. */
static void copy_dy_row(const gradient *g, const slab *b, size_t at, size_t count, size_t columns,
                        float *to)
{
    memset(to, 0, b->steps * columns * sizeof *to);
    for (size_t i = 0; i < b->steps; i++)
        memcpy(to + i * columns, g->dy + at + i * g->shape->cout, count * sizeof *to);
}

/* Sets the address and the distances of dy in the slab, from column `first` on.  If dy is copied,
 * `to` is advanced past the copy. */
static void slab_open_dy(const gradient *g, slab *b, size_t first, size_t columns, float **to)
{
    const lki_conv_shape *s = g->shape;
    size_t pixel = ((b->sample * s->oh + b->oy) * s->ow + b->step) * s->cout + first;
    if (s->cout % LANES == 0) {
        b->dy        = g->dy + pixel;
        b->dy_step   = s->cout;
        b->dy_row    = s->ow * s->cout;
        b->dy_sample = s->oh * b->dy_row;
        return;
    }
    b->dy        = *to;
    b->dy_step   = columns;
    b->dy_row    = b->steps * columns;
    b->dy_sample = b->rows * b->dy_row;
    for (size_t i = 0; i < b->samples * b->rows; i++, *to += b->dy_row) {
        size_t row = i / b->rows * s->oh + i % b->rows;
        copy_dy_row(g, b, pixel + row * s->ow * s->cout, lki_min(columns, s->cout - first),
                    columns, *to);
    }
}

/* ---- Tiles ------------------------------------------------------------------------------- */

/* Positions low .. high - 1 of `count`: those that use a pixel of 0 .. size - 1 through tap
 * `tap`. */
typedef struct { size_t low, high; } span;

static span span_of(size_t tap, size_t count, size_t stride, size_t pad, size_t size)
{
    span a = { .low = tap < pad ? blocks_of(pad - tap, stride) : 0 };
    a.high = size + pad > tap ? lki_min(count, (size + pad - tap - 1) / stride + 1) : 0;
    return a;
}

/* A task's part of dw: channels of x, columns of the wave, and rows of taps. */
typedef struct { part channels; size_t column, columns, from, to; } share;

/* Returns the address of a task's values of a tap in a slot: rows of `columns` values, one for each
 * channel. */
static float *place_of(const gradient *g, const share *own, uint32_t slot, size_t ky, size_t kx)
{
    return g->to.matrix + slot * g->to.slot +
           ((ky * g->shape->kw + kx) * g->shape->cin + own->channels.first) * g->to.columns +
           own->column;
}

static void clear_slot(const gradient *g, const share *own, uint32_t slot)
{
    for (size_t ky = own->from; ky < own->to; ky++)
        for (size_t kx = 0; kx < g->shape->kw; kx++) {
            float *to = place_of(g, own, slot, ky, kx);
            for (size_t c = 0; c < own->channels.count; c++, to += g->to.columns)
                memset(to, 0, own->columns * sizeof *to);
        }
}

/* Adds the values of slot `left` + 1 to those of slot `left`. */
static void merge_slots(const gradient *g, const share *own, uint32_t left)
{
    const lki_elementwise_kernels *k = lki_exec_kernels(g->exec)->elementwise;
    for (size_t ky = own->from; ky < own->to; ky++)
        for (size_t kx = 0; kx < g->shape->kw; kx++) {
            float *to = place_of(g, own, left, ky, kx);
            for (size_t c = 0; c < own->channels.count; c++, to += g->to.columns)
                k->add(LK_F32, own->columns, to, to + g->to.slot, to);
        }
}

/* Continues one tap's tile of dw, in a slot, over the steps of the slab that the tap uses. */
static void tap_run(const gradient *g, const slab *b, size_t ky, size_t kx, const share *own,
                    uint32_t slot, lki_conv_outer *t)
{
    const lki_conv_shape *s = g->shape;
    span   y = span_of(ky, s->oh, s->stride, s->pad, s->h);
    span   x = span_of(kx, s->ow, s->stride, s->pad, s->w);
    size_t first = lki_max(y.low, b->oy), last = lki_min(y.high, b->oy + b->rows);
    size_t low = lki_max(x.low, b->step), high = lki_min(x.high, b->step + b->steps);
    if (first >= last || low >= high)
        return;
    size_t iy = first * s->stride + ky - s->pad - b->iy;
    size_t ix = low * s->stride + kx - s->pad - b->ix;

    t->rows   = own->channels.count;
    t->sets   = b->samples;
    t->runs   = last - first;
    t->run    = high - low;
    t->a      = b->x + iy * b->x_row + ix * b->x_pixel + (g->whole ? own->channels.first : 0);
    t->a_set  = b->x_sample;
    t->a_run  = s->stride * b->x_row;
    t->a_step = s->stride * b->x_pixel;
    t->b      = b->dy + (first - b->oy) * b->dy_row + (low - b->step) * b->dy_step;
    t->b_set  = b->dy_sample;
    t->b_run  = b->dy_row;
    t->b_step = b->dy_step;
    t->c      = place_of(g, own, slot, ky, kx);
    g->kernels->outer(t);
}

static void slab_run(const gradient *g, slab *b, const share *own, uint32_t slot, float *buffer)
{
    lki_conv_outer t = { .columns = own->columns, .ldc = g->to.columns };
    slab_extent(g, b, own->from, own->to);
    slab_open_dy(g, b, g->to.first + own->column, own->columns, &buffer);
    if (g->whole)
        slab_use_x(g, b);
    else
        slab_copy_x(g, b, own->channels, buffer);
    for (size_t ky = own->from; ky < own->to; ky++)
        for (size_t kx = 0; kx < g->shape->kw; kx++)
            tap_run(g, b, ky, kx, own, slot, &t);
}

/* Continues a task's tiles, in a slot, over samples [first, last). */
static void samples_run(const gradient *g, const share *own, uint32_t slot, size_t first,
                        size_t last, float *buffer)
{
    const lki_conv_shape *s    = g->shape;
    slab                  size = slab_size(g);
    for (size_t sample = first; sample < last; sample += size.samples)
        for (size_t oy = 0; oy < s->oh; oy += size.rows)
            for (size_t step = 0; step < s->ow; step += size.steps) {
                slab b = { .sample = sample, .samples = lki_min(size.samples, last - sample),
                           .oy = oy, .rows = lki_min(size.rows, s->oh - oy),
                           .step = step, .steps = lki_min(size.steps, s->ow - step) };
                slab_run(g, &b, own, slot, buffer);
            }
}

/* Computes what a part, with samples [begin, end), has in the round.  A part begins and ends in one
 * round each, also if it has no samples. */
static void part_run(const gradient *g, const share *own, uint32_t index, size_t begin, size_t end,
                     float *buffer)
{
    uint32_t slot   = lki_part_slot(index);
    bool     begins = begin >= g->first && (begin < g->last || g->last == g->shape->n);
    bool     ends   = begin == end ? begins : end > g->first && end <= g->last;
    if (begins && !g->to.add)
        clear_slot(g, own, slot);
    samples_run(g, own, slot, lki_max(begin, g->first), lki_min(end, g->last), buffer);
    for (uint32_t i = 0; ends && i < lki_part_merges(index); i++)
        merge_slots(g, own, --slot);
}

static void gradient_task(void *context, size_t index, uint32_t thread)
{
    const gradient       *g = context;
    const lki_conv_shape *s = g->shape;
    size_t rest = index / g->panels;
    share  own  = { .channels = part_of(s->cin, g->panels, index % g->panels),
                    .column   = rest % g->groups * g->columns,
                    .from     = rest / g->groups * g->taps };
    own.to      = own.from + g->taps;
    own.columns = lki_min(g->columns, g->to.columns - own.column);
    for (uint32_t i = 0; i < g->parts->count; i++)
        part_run(g, &own, i, i > 0 ? g->parts->ends[i - 1] : 0, g->parts->ends[i],
                 lki_exec_private(g->exec, thread));
}

/* ---- Waves ------------------------------------------------------------------------------- */

/* Divides the work into tasks.  Each panel is a task, whose tiles of dw stay in the first-level
 * cache.  There are enough panels to keep all threads busy. */
static void plan_tasks(gradient *g, size_t width)
{
    const lki_conv_shape *s    = g->shape;
    lki_outer_rows        rows = g->kernels->outer_rows;
    size_t threads = lk_exec_threads(g->exec);
    size_t wanted  = g->whole || threads == 1 ? threads : 2 * threads;
    g->panels  = blocks_of(s->cin, g->whole && s->cout <= LANES ? rows.narrow : rows.wide);
    g->columns = blocks_of(s->cin, g->panels) <= WIDE_ROWS ? COLUMNS_WIDE : COLUMNS;
    g->wave    = lki_conv_wave(s->kh * s->kw * s->cin, width, g->columns);
    g->groups  = blocks_of(g->wave, g->columns);
    size_t unit = lki_max(1, lki_min(blocks_of(wanted, g->groups), s->cin / FEW_ROWS));
    g->panels   = lki_round_up(g->panels, unit);
    g->taps     = s->kh > NEAR_KERNEL || g->panels * g->groups < threads ? 1 : s->kh;
}

/* Returns the number of samples of a round.  If a thread has several tasks, all of which read x and
 * dy, a round stays in its second-level cache, unless it would then be smaller than dw. */
static size_t samples_of_round(const gradient *g, size_t tasks)
{
    const lki_conv_shape *s = g->shape;
    size_t values = s->h * s->w * s->cin + s->oh * s->ow * s->cout, bytes = ROUND_BYTES;
    if (tasks >= READ_OFTEN * lk_exec_threads(g->exec))
        bytes = lki_min(bytes, lki_max(g->to.slot * sizeof(float), lki_exec_near_bytes(g->exec)));
    return lki_max(1, bytes / sizeof(float) / values);
}

/* Computes a wave of dw, by rounds of samples. */
static void wave_run(gradient *g)
{
    const lki_conv_shape *s = g->shape;
    g->groups    = blocks_of(g->to.columns, g->columns);
    g->to.slot   = s->kh * s->kw * s->cin * g->to.columns;
    size_t tasks = g->panels * g->groups * (s->kh / g->taps), round = samples_of_round(g, tasks);
    if (g->to.add)
        order(g->exec, &g->to, reorder_task);
    for (g->first = 0; g->first < s->n; g->first = g->last) {
        g->last = lki_min(s->n, g->first + round);
        lki_exec_run(g->exec, tasks, gradient_task, g);
    }
    order(g->exec, &g->to, restore_task);
}

/* Computes dw.  `g` has x and dy. */
static void gradient_run(lk_exec *exec, gradient *g, const lki_conv_shape *s, float *dw,
                         bool add, void *scratch)
{
    size_t width = lki_round_up(s->cout, LANES);
    g->kernels = lki_exec_kernels(exec)->conv;
    g->exec    = exec;
    g->shape   = s;
    g->to      = (wave_of_dw){ .shape = s, .add = add, .dw = dw, .matrix = scratch };
    g->whole   = s->cin <= NEAR_CHANNELS || s->kh * s->kw == 1;
    plan_tasks(g, width);
    for (; g->to.first < width; g->to.first += g->to.columns) {
        g->to.columns = lki_min(g->wave, width - g->to.first);
        wave_run(g);
    }
}

void lki_conv_backward_weights(lk_exec *exec, const lki_conv_shape *shape, const float *x,
                               const float *dy, float *dw, bool add, const lki_parts *parts,
                               void *scratch)
{
    lki_parts one = { 1, &shape->n };
    gradient  g   = { .x = x, .dy = dy, .parts = parts != NULL ? parts : &one };
    LK_ASSERT(parts == NULL || (!add && parts->ends[parts->count - 1] == shape->n));
    if (parts == NULL && lki_other_conv(exec, shape, LKI_ONEDNN_WEIGHTS, add, x, dw, dy))
        return;
    if (lki_conv_weights_are_product(exec, shape))
        lki_conv_product_weights(exec, shape, x, dy, dw, add, parts, scratch);
    else
        gradient_run(exec, &g, shape, dw, add, scratch);
}
