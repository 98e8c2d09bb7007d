/* conv_weights.c -- the gradient of a convolution's weights.
 *
 *      dw (kh kw cin, cout) += transposed windows (kh kw cin, pixel)  times  dy (pixel, cout)
 *
 * A task has some output channels, some panels of input channels and all taps (or one row of them,
 * where there would be too few tasks), and takes some hundred pixels of dy at a time, a slab: each
 * tap's tile of dw moves on by the pixels of the slab that its taps meet.  So x and dy come from
 * memory once a task and from the first cache for the taps.  Where pixels have many channels, a
 * panel's are packed first.
 *
 * In bf16 a step is two pixels, and a slab begins with words of them: of dy the pairs of
 * neighbours that begin at even places; of x every pixel with the one a stride further, zeros
 * beside the image.  So a tap's pairs are words from its own column on.  Where pixels stay whole,
 * the words of the taps in a row of the kernel follow each other: if these taps meet the same
 * pairs, they are channels of one tap.  A task makes its words itself, although others make the
 * same: what another core has written is far away.
 *
 * Tasks go by rounds of a few samples, which stay in a near cache for the whole round.  In bf16
 * kernels of 1 x 1 are a plain product of transposed dy and x.
 *
 * Order:   every element of dw is one chain from what dw holds: of fma over (sample, oy, ox), or of
 *          v16_dot2() over (sample, oy, pair), of what the tap meets.
 * Cost:    2 cin cout operations a pixel and tap; dw is reordered before and after.
 */
#include <string.h>

#include "tensor/onednn/onednn.h"
#include "tensor/ops/conv.h"

enum {
    LANES         = LKI_CONV_LANES,
    NEAR_CHANNELS = 32, /* of x: then what a panel skips does not matter */
    NEAR_KERNEL   = 16, /* rows of taps whose x fits into a task's buffer in any case */
    PIXELS        = 256, /* of dy at a time: 32 KiB of 32 channels */
    COLUMNS       = 32,
    COLUMNS_WIDE  = 64,  /* for panels of few input channels */
    WIDE_ROWS     = 6,   /* that are few: 6 x 4 vectors of sums */
    FEW_ROWS      = 8,   /* panels are not made smaller for more tasks */
    BATCH_BYTES   = 1 << 21, /* of x and dy: near enough for every task to read them again */
};

typedef struct {
    const lki_conv_kernels      *kernels;
    const lki_conv_bf16_kernels *bf16; /* NULL: FP32 */
    lk_exec                     *exec;
    const lki_conv_shape        *shape;
    const void                  *x, *dy;
    lki_conv_dw                  to;
    size_t                       unit;            /* pixels of a step */
    bool                         whole;           /* pixels of x have all channels */
    size_t                       channels, kw;    /* of a tap; taps of a row of the kernel */
    size_t                       panels, runs;    /* of channels; of panels, a task each */
    size_t                       wave;            /* columns that are done together */
    size_t                       columns, groups; /* of a task; of columns */
    size_t                       taps;            /* rows of taps of a task */
    size_t                       first, last;     /* samples of this round of tasks */
} gradient;

static size_t blocks_of(size_t count, size_t size)
{
    return (count + size - 1) / size;
}

/* Parts of `count`, as equal as can be. */
typedef struct { size_t first, count; } part;

static part part_of(size_t count, size_t parts, size_t index)
{
    size_t each = count / parts, longer = count % parts;
    return (part){ index * each + lki_min(index, longer), each + (index < longer) };
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

size_t lki_conv_weights_bytes(const lki_conv_shape *s)
{
    return lki_conv_wave_bytes(s->kh * s->kw * s->cin, lki_round_up(s->cout, LANES));
}

/* ---- Slabs ------------------------------------------------------------------------------- */

/* Samples, rows and steps of dy that are taken together, and what of x they meet: rows iy on, and
 * pixels ix on (in bf16 words, counted with the padding).  x begins there, dy at the task's first
 * column; distances are in floats. */
typedef struct {
    size_t       sample, samples, oy, rows, step, steps;
    size_t       iy, height, ix, width;
    const float *x, *dy;
    size_t       x_pixel, x_row, x_sample, dy_step, dy_row, dy_sample;
} slab;

static size_t steps_of(const gradient *g)
{
    return blocks_of(g->shape->ow, g->unit);
}

/* Floats of x and dy in a task's buffer, at most. */
static size_t slab_floats(const gradient *g, const slab *b)
{
    const lki_conv_shape *s = g->shape;
    size_t channels = !g->whole ? blocks_of(g->channels, g->panels) : g->bf16 != NULL ? s->cin : 0;
    size_t height   = (b->rows - 1) * s->stride + g->taps;
    size_t width    = (b->steps - 1) * g->unit * s->stride + s->kw;
    return b->samples * (height * width * channels + b->rows * b->steps * COLUMNS_WIDE) +
           LKI_CONV_SLACK;
}

/* The size of the slabs of a call. */
static slab slab_size(const gradient *g)
{
    const lki_conv_shape *s = g->shape;
    slab b = { .steps = lki_min(steps_of(g), PIXELS / g->unit) };
    b.rows    = b.steps < steps_of(g) ? 1 : lki_max(1, lki_min(s->oh, PIXELS / s->ow));
    b.samples = b.rows < s->oh ? 1 : lki_max(1, PIXELS / (s->oh * s->ow));
    while (slab_floats(g, &b) > LKI_EXEC_PRIVATE && b.samples * b.rows * b.steps > 1) {
        size_t *longest = b.samples > 1 ? &b.samples : b.rows > 1 ? &b.rows : &b.steps;
        *longest /= 2;
    }
    LK_ASSERT(slab_floats(g, &b) <= LKI_EXEC_PRIVATE);
    return b;
}

/* Rows and pixels of x that the taps of rows `from` to `to` - 1 meet. */
static void slab_extent(const gradient *g, slab *b, size_t from, size_t to)
{
    const lki_conv_shape *s = g->shape;
    size_t top = b->oy * s->stride + from, bottom = (b->oy + b->rows - 1) * s->stride + to;
    size_t left = b->step * g->unit * s->stride;
    size_t right = (b->step + b->steps - 1) * g->unit * s->stride + s->kw;
    b->iy     = top > s->pad ? lki_min(s->h, top - s->pad) : 0;
    b->height = bottom > s->pad ? lki_min(s->h, bottom - s->pad) : 0;
    b->height = b->height > b->iy ? b->height - b->iy : 0;
    b->ix     = left;
    b->width  = right - left;
    if (g->bf16 == NULL) {
        b->ix    = left > s->pad ? lki_min(s->w, left - s->pad) : 0;
        b->width = right > s->pad ? lki_min(s->w, right - s->pad) : 0;
        b->width = b->width > b->ix ? b->width - b->ix : 0;
    }
}

/* Copies `channels` of x from `first` on, in FP32 packed, in bf16 as words. */
static void slab_copy_x(const gradient *g, slab *b, part channels, float *to)
{
    const lki_conv_shape *s = g->shape;
    size_t lead = lki_min(b->ix, s->pad), skip = b->ix - lead; /* of the words */
    b->x_pixel  = channels.count;
    b->x_row    = b->width * channels.count;
    b->x_sample = b->height * b->x_row;
    b->x        = to;
    for (size_t i = 0; i < b->samples * b->height; i++, to += b->x_row) {
        size_t row = (b->sample + i / b->height) * s->h + b->iy + i % b->height;
        size_t at  = row * s->w * s->cin + channels.first;
        if (g->bf16 == NULL)
            g->kernels->pack_pixels(b->width, channels.count,
                                    (const float *)g->x + at + b->ix * s->cin, s->cin, to);
        else
            g->bf16->zip_pixels(&(lki_pixel_zip){
                .entries = b->width, .step = 1, .pad = s->pad - lead, .apart = s->stride,
                .pixels = s->w - lki_min(s->w, skip), .channels = channels.count,
                .stride = s->cin, .from = (const uint16_t *)g->x + at + skip * s->cin,
                .pitch = channels.count, .lanes = channels.count, .to = to,
            });
    }
}

static void slab_use_x(const gradient *g, slab *b)
{
    const lki_conv_shape *s = g->shape;
    b->x_pixel  = s->cin;
    b->x_row    = s->w * s->cin;
    b->x_sample = s->h * b->x_row;
    b->x = (const float *)g->x + b->sample * b->x_sample + b->iy * b->x_row + b->ix * s->cin;
}

/* A row of dy: its words, or its values in whole lanes. */
static void copy_dy_row(const gradient *g, const slab *b, size_t at, size_t count, size_t columns,
                        float *to)
{
    const lki_conv_shape *s = g->shape;
    if (g->bf16 != NULL) {
        g->bf16->zip_pixels(&(lki_pixel_zip){
            .entries = b->steps, .step = 2, .apart = 1, .pixels = s->ow - 2 * b->step,
            .channels = count, .stride = s->cout, .from = (const uint16_t *)g->dy + at,
            .pitch = columns, .lanes = columns, .to = to,
        });
        return;
    }
    memset(to, 0, b->steps * columns * sizeof *to);
    for (size_t i = 0; i < b->steps; i++)
        memcpy(to + i * columns, (const float *)g->dy + at + i * s->cout, count * sizeof *to);
}

/* dy from column `first` on; where it is copied, `to` moves behind it. */
static void slab_open_dy(const gradient *g, slab *b, size_t first, size_t columns, float **to)
{
    const lki_conv_shape *s = g->shape;
    size_t pixel = ((b->sample * s->oh + b->oy) * s->ow + b->step * g->unit) * s->cout + first;
    if (g->bf16 == NULL && s->cout % LANES == 0) {
        b->dy        = (const float *)g->dy + pixel;
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

/* Positions low .. high - 1 of `count` that meet a pixel of 0 .. size - 1 through tap `tap`. */
typedef struct { size_t low, high; } span;

static span span_of(size_t tap, size_t count, size_t stride, size_t pad, size_t size)
{
    span a = { .low = tap < pad ? blocks_of(pad - tap, stride) : 0 };
    a.high = size + pad > tap ? lki_min(count, (size + pad - tap - 1) / stride + 1) : 0;
    return a;
}

/* One tap's tile of dw, over the steps of the slab that it meets. */
static void tap_run(const gradient *g, const slab *b, size_t ky, size_t kx, part channels,
                    size_t column, lki_conv_outer *t)
{
    const lki_conv_shape *s = g->shape;
    span   y = span_of(ky, s->oh, s->stride, s->pad, s->h);
    span   x = span_of(kx, s->ow, s->stride, s->pad, s->w);
    size_t first = lki_max(y.low, b->oy), last = lki_min(y.high, b->oy + b->rows);
    size_t low  = lki_max(x.low / g->unit, b->step);
    size_t high = lki_min(blocks_of(x.high, g->unit), b->step + b->steps);
    if (first >= last || x.low >= x.high || low >= high)
        return;
    size_t iy = first * s->stride + ky - s->pad - b->iy;
    size_t ix = low * g->unit * s->stride + kx - (g->bf16 != NULL ? 0 : s->pad) - b->ix;

    t->rows   = channels.count;
    t->sets   = b->samples;
    t->runs   = last - first;
    t->run    = high - low;
    t->a      = b->x + iy * b->x_row + ix * b->x_pixel + (g->whole ? channels.first : 0);
    t->a_set  = b->x_sample;
    t->a_run  = s->stride * b->x_row;
    t->a_step = g->unit * s->stride * b->x_pixel;
    t->b      = b->dy + (first - b->oy) * b->dy_row + (low - b->step) * b->dy_step;
    t->b_set  = b->dy_sample;
    t->b_run  = b->dy_row;
    t->b_step = b->dy_step;
    t->c = g->to.matrix + ((ky * s->kw + kx) * s->cin + channels.first) * g->to.columns + column;
    (g->bf16 != NULL ? g->bf16->outer : g->kernels->outer)(t);
}

/* What a task has: panels, columns of the wave, and rows of taps. */
typedef struct { part panels; size_t column, columns, from, to; } share;

static void slab_run(const gradient *g, slab *b, const share *own, float *buffer)
{
    lki_conv_outer t = { .columns = own->columns, .ldc = g->to.columns };
    slab_extent(g, b, own->from, own->to);
    slab_open_dy(g, b, g->to.first + own->column, own->columns, &buffer);
    if (g->whole && g->bf16 != NULL)
        slab_copy_x(g, b, (part){ 0, g->shape->cin }, buffer);
    else if (g->whole)
        slab_use_x(g, b);
    for (size_t i = 0; i < own->panels.count; i++) {
        part channels = part_of(g->channels, g->panels, own->panels.first + i);
        if (!g->whole)
            slab_copy_x(g, b, channels, buffer);
        for (size_t ky = own->from; ky < own->to; ky++)
            for (size_t kx = 0; kx < g->kw; kx++)
                tap_run(g, b, ky, kx, channels, own->column, &t);
    }
}

static void gradient_task(void *context, size_t index, uint32_t thread)
{
    const gradient       *g = context;
    const lki_conv_shape *s = g->shape;
    slab   size = slab_size(g);
    size_t rest = index / g->runs;
    share  own  = { .panels = part_of(g->panels, g->runs, index % g->runs),
                    .column = rest % g->groups * g->columns,
                    .from   = rest / g->groups * g->taps };
    own.to      = own.from + g->taps;
    own.columns = lki_min(g->columns, g->to.columns - own.column);
    for (size_t sample = g->first; sample < g->last; sample += size.samples)
        for (size_t oy = 0; oy < s->oh; oy += size.rows)
            for (size_t step = 0; step < steps_of(g); step += size.steps) {
                slab b = { .sample = sample, .samples = lki_min(size.samples, g->last - sample),
                           .oy = oy, .rows = lki_min(size.rows, s->oh - oy),
                           .step = step, .steps = lki_min(size.steps, steps_of(g) - step) };
                slab_run(g, &b, &own, lki_exec_private(g->exec, thread));
            }
}

/* ---- Waves ------------------------------------------------------------------------------- */

/* Whether all taps of a row of the kernel meet the same pairs. */
static bool meet_alike(const lki_conv_shape *s)
{
    for (size_t kx = 0; kx < s->kw; kx++) {
        span x = span_of(kx, s->ow, s->stride, s->pad, s->w);
        if (x.low > 1 || blocks_of(x.high, 2) != blocks_of(s->ow, 2))
            return false;
    }
    return true;
}

/* Cuts the work into tasks.  In bf16 as few as keep all threads busy, so that few words are made
 * more than once; in FP32 a panel is a task, whose tiles of dw stay in the first cache. */
static void plan_tasks(gradient *g, size_t width)
{
    const lki_conv_shape *s    = g->shape;
    lki_outer_rows        rows = g->bf16 != NULL ? g->bf16->outer_rows : g->kernels->outer_rows;
    size_t threads = lk_exec_threads(g->exec), wanted = g->whole || threads == 1 ? threads
                                                                                 : 2 * threads;
    bool   joined = g->bf16 != NULL && g->whole && meet_alike(s);
    g->channels = joined ? s->kw * s->cin : s->cin;
    g->kw       = joined ? 1 : s->kw;
    g->panels   = blocks_of(g->channels, g->whole && s->cout <= LANES ? rows.narrow : rows.wide);
    g->columns  = blocks_of(g->channels, g->panels) <= WIDE_ROWS ? COLUMNS_WIDE : COLUMNS;
    g->wave     = lki_conv_wave(s->kh * s->kw * s->cin, width, g->columns);
    g->groups   = blocks_of(g->wave, g->columns);
    g->runs     = lki_max(1, lki_min(blocks_of(wanted, g->groups), g->channels / FEW_ROWS));
    g->panels   = lki_round_up(g->panels, g->runs);
    g->runs     = g->bf16 != NULL ? g->runs : g->panels;
    g->taps     = s->kh > NEAR_KERNEL || g->runs * g->groups < threads ? 1 : s->kh;
}

/* A wave of dw, by rounds of samples. */
static void wave_run(gradient *g)
{
    const lki_conv_shape *s = g->shape;
    size_t values = s->h * s->w * s->cin + s->oh * s->ow * s->cout;
    size_t bytes  = g->bf16 != NULL ? sizeof(uint16_t) : sizeof(float);
    size_t batch  = lki_max(1, BATCH_BYTES / bytes / values);

    g->groups = blocks_of(g->to.columns, g->columns);
    lki_conv_reorder(g->exec, &g->to);
    for (g->first = 0; g->first < s->n; g->first = g->last) {
        g->last = lki_min(s->n, g->first + batch);
        lki_exec_run(g->exec, g->runs * g->groups * (s->kh / g->taps), gradient_task, g);
    }
    lki_conv_restore(g->exec, &g->to);
}

/* `g` has x and dy. */
static void gradient_run(lk_exec *exec, gradient *g, const lki_conv_shape *s, float *dw,
                         void *scratch)
{
    size_t width = lki_round_up(s->cout, LANES);
    g->kernels = lki_exec_kernels(exec)->conv;
    g->exec    = exec;
    g->shape   = s;
    g->to      = (lki_conv_dw){ .shape = s, .dw = dw, .matrix = scratch };
    g->unit    = g->bf16 != NULL ? 2 : 1;
    g->whole   = s->cin <= NEAR_CHANNELS || (g->bf16 == NULL && s->kh * s->kw == 1);
    plan_tasks(g, width);
    for (; g->to.first < width; g->to.first += g->to.columns) {
        g->to.columns = lki_min(g->wave, width - g->to.first);
        wave_run(g);
    }
}

void lki_conv_backward_weights(lk_exec *exec, const lki_conv_shape *shape, const float *x,
                               const float *dy, float *dw, void *scratch)
{
    gradient g = { .x = x, .dy = dy };
    if (lki_other_conv(exec, shape, LKI_ONEDNN_WEIGHTS, true, x, dw, dy))
        return;
    gradient_run(exec, &g, shape, dw, scratch);
}

/* ---- 1 x 1 in bf16 ----------------------------------------------------------------------- */

static bool is_plain(const lki_conv_shape *s)
{
    return s->kh == 1 && s->kw == 1 && s->pad == 0;
}

typedef struct { const lki_conv_shape *shape; const uint16_t *x; uint16_t *to; } gathering;

/* The pixels of x that a row of dy meets. */
static void gathering_task(void *context, size_t index, uint32_t thread)
{
    const gathering      *g = context;
    const lki_conv_shape *s = g->shape;
    size_t          row  = index / s->oh * s->h + index % s->oh * s->stride;
    const uint16_t *from = g->x + row * s->w * s->cin;
    uint16_t       *to   = g->to + index * s->ow * s->cin;
    (void)thread;
    for (size_t i = 0; i < s->ow; i++)
        memcpy(to + i * s->cin, from + i * s->stride * s->cin, s->cin * sizeof *to);
}

static void plain_product(lk_exec *exec, const lki_conv_shape *s, const uint16_t *x,
                          const uint16_t *dy, float *dw, void *scratch)
{
    gathering     g    = { s, x, scratch };
    lki_gemm_args gemm = { .operands = LK_BF16, .transpose_a = true, .accumulate = true,
                           .m = s->cout, .n = s->cin, .k = s->n * s->oh * s->ow, .a = dy, .b = x,
                           .c = dw };
    if (s->stride > 1) {
        lki_exec_run(exec, s->n * s->oh, gathering_task, &g);
        gemm.b = g.to;
    }
    lki_gemm(exec, &gemm);
}

size_t lki_conv_weights_bf16_bytes(const lki_conv_shape *s)
{
    if (is_plain(s))
        return s->stride == 1 ? 0 : s->n * s->oh * s->ow * s->cin * sizeof(uint16_t);
    return lki_conv_weights_bytes(s);
}

void lki_conv_bf16_backward_weights(lk_exec *exec, const lki_conv_shape *shape, const uint16_t *x,
                                    const uint16_t *dy, float *dw, void *scratch)
{
    gradient g = { .bf16 = lki_exec_kernels(exec)->bf16->conv, .x = x, .dy = dy };
    if (is_plain(shape))
        plain_product(exec, shape, x, dy, dw, scratch);
    else
        gradient_run(exec, &g, shape, dw, scratch);
}
