/* conv.c -- two-dimensional convolution, NHWC, forward and both gradients.
 *
 * All three are matrix products whose left side is read where it lies: an image is copied once
 * into a frame of zeros (not at all without padding), and then a row of a window, kw * cin
 * values, is contiguous.  No im2col matrix exists.
 *
 *      forward    y  (pixel, cout) = window (pixel, kh kw cin)  times  weights
 *      input      dx (pixel, cin)  = window of dy               times  weights, taps reversed
 *      weights    dw (kh kw cin, cout) += transposed windows    times  dy
 *
 * With stride s an input pixel meets only the taps of its own residue modulo s, so the input's
 * gradient runs once for each of the s * s residues, over just their taps.
 *
 * Order:   every output is one chain of fma.  Forward: over (ky, kx, ci).  Input: over (oy, ox,
 *          co) ascending.  Weights: over (sample, oy, ox), from what dw holds.  Padding takes
 *          part as zeros.
 * Cost:    2 n oh ow kh kw cin cout operations each; one pass over the image for the frame.
 * Memory:  weights reordered, and the frames: lki_conv_scratch_bytes().
 */
#include <string.h>

#include "base/memory.h"
#include "tensor/exec.h"
#include "tensor/ops.h"

enum {
    LANES           = 16,
    PIXELS_PER_TASK = 64,
    PANELS_PER_TASK = 4,  /* of 16 output channels */
    TAPS_PER_TASK   = 24, /* of the kw * cin values of a window's row */
    WEIGHT_COLUMNS  = 32,
    PIXELS_PER_RUN  = 64, /* of dw's chain before the next tile: their values stay in L1 */
};

/* ---- An image in a frame of zeros -------------------------------------------------------- */

/* n images of (from_h, from_w, from_c) at (top, left) of (h, w, c). */
typedef struct {
    size_t n, h, w, c, top, left, from_h, from_w, from_c;
} frame;

typedef struct { const frame *f; const float *from; float *to; } frame_copy;

static bool frame_is_plain(const frame *f)
{
    return f->h == f->from_h && f->w == f->from_w && f->c == f->from_c;
}

static size_t frame_bytes(const frame *f)
{
    return frame_is_plain(f) ? 0 : lki_round_up(f->n * f->h * f->w * f->c * sizeof(float), 64);
}

/* One row of the frame. */
static void frame_task(void *context, size_t index, uint32_t thread)
{
    const frame_copy *copy = context;
    const frame      *f    = copy->f;
    float            *to   = copy->to + index * f->w * f->c;
    size_t y = index % f->h - f->top; /* wraps above the image: then it is >= from_h */
    (void)thread;

    memset(to, 0, f->w * f->c * sizeof *to);
    if (y >= f->from_h)
        return;
    const float *from = copy->from + (index / f->h * f->from_h + y) * f->from_w * f->from_c;
    to += f->left * f->c;
    if (f->c == f->from_c) {
        memcpy(to, from, f->from_w * f->c * sizeof *to);
        return;
    }
    for (size_t x = 0; x < f->from_w; x++)
        memcpy(to + x * f->c, from + x * f->from_c, f->from_c * sizeof *to);
}

/* The framed image: `from` itself, or a copy at `scratch`. */
static const float *frame_make(lk_exec *exec, const frame *f, const float *from, void *scratch)
{
    if (frame_is_plain(f))
        return from;
    frame_copy copy = { .f = f, .from = from, .to = scratch };
    lki_pool_run(lki_exec_pool(exec), f->n * f->h, frame_task, &copy);
    return scratch;
}

static frame frame_of_input(const lki_conv_shape *s)
{
    return (frame){ .n = s->n, .h = s->h + 2 * s->pad, .w = s->w + 2 * s->pad, .c = s->cin,
                    .top = s->pad, .left = s->pad, .from_h = s->h, .from_w = s->w,
                    .from_c = s->cin };
}

/* dy with room for every window of the input's gradient. */
static frame frame_of_output(const lki_conv_shape *s)
{
    size_t top  = (s->kh + s->stride - 1) / s->stride - 1;
    size_t left = (s->kw + s->stride - 1) / s->stride - 1;
    return (frame){ .n = s->n, .c = s->cout, .top = top, .left = left,
                    .h = top + lki_max(s->oh, (s->h - 1 + s->pad) / s->stride + 1),
                    .w = left + lki_max(s->ow, (s->w - 1 + s->pad) / s->stride + 1),
                    .from_h = s->oh, .from_w = s->ow, .from_c = s->cout };
}

/* dy with its channels padded to whole lanes. */
static frame frame_of_channels(const lki_conv_shape *s)
{
    return (frame){ .n = s->n, .h = s->oh, .w = s->ow, .c = lki_round_up(s->cout, LANES),
                    .from_h = s->oh, .from_w = s->ow, .from_c = s->cout };
}

/* ---- Weights in the order of the chains -------------------------------------------------- */

/* Row (ky, kx, ci) and column co of the reordered matrix stand at
 * co / 16 * panel + row * step + co % 16. */
typedef struct {
    const lki_nn_kernels *kernels;
    const lki_conv_shape *shape;
    const float          *w;
    float                *dw, *matrix;
    size_t                panel, step;
    size_t                ry, rx, ty, tx; /* dx: first tap and number of taps of a residue */
} weights;

static size_t weights_bytes(const lki_conv_shape *s)
{
    size_t forward = s->cin * lki_round_up(s->cout, LANES);
    size_t input   = s->cout * lki_round_up(s->cin, LANES);
    return lki_round_up(s->kh * s->kw * lki_max(forward, input) * sizeof(float), 64);
}

static lki_weight_panel weights_panel(const weights *m, size_t index)
{
    const lki_conv_shape *s = m->shape;
    size_t taps = s->kh * s->kw, first = index * LANES;
    return (lki_weight_panel){ .columns = lki_min(LANES, s->cout - first),
                               .cin     = s->cin,
                               .taps    = taps,
                               .step    = m->step,
                               .w       = m->w + first * s->cin * taps,
                               .dw      = m->dw == NULL ? NULL : m->dw + first * s->cin * taps,
                               .matrix  = m->matrix + index * m->panel };
}

/* Sixteen output channels into the matrix, or (dw) back from it. */
static void weights_forward_task(void *context, size_t index, uint32_t thread)
{
    const weights   *m     = context;
    lki_weight_panel panel = weights_panel(m, index);
    (void)thread;
    m->kernels->pack_weights(&panel);
}

static void weights_back_task(void *context, size_t index, uint32_t thread)
{
    const weights   *m     = context;
    lki_weight_panel panel = weights_panel(m, index);
    (void)thread;
    m->kernels->unpack_weights(&panel);
}

/* Sixteen input channels of the taps of one residue, last tap first. */
static void weights_input_task(void *context, size_t index, uint32_t thread)
{
    const weights        *m = context;
    const lki_conv_shape *s = m->shape;
    size_t taps = s->kh * s->kw, first = index * LANES, n = lki_min(LANES, s->cin - first);
    float *row = m->matrix + index * m->panel;
    (void)thread;

    for (size_t tap = 0; tap < m->ty * m->tx; tap++) {
        size_t       ky = m->ry + s->stride * (m->ty - 1 - tap / m->tx);
        size_t       kx = m->rx + s->stride * (m->tx - 1 - tap % m->tx);
        const float *w  = m->w + first * taps + ky * s->kw + kx;
        for (size_t co = 0; co < s->cout; co++, row += LANES) {
            for (size_t ci = 0; ci < n; ci++)
                row[ci] = w[(co * s->cin + ci) * taps];
            for (size_t ci = n; ci < LANES; ci++)
                row[ci] = 0.0f;
        }
    }
}

static size_t panels_of(size_t channels)
{
    return (channels + LANES - 1) / LANES;
}

/* ---- Windows times weights --------------------------------------------------------------- */

/* Output point (sample, gy, gx) of a grid reads the window whose first value is pixel
 * (y0 + gy * step, x0 + gx * step) of the image, and is pixel (to_y0 + gy * to_step, ...) of
 * the result. */
typedef struct {
    const lki_nn_kernels *kernels;
    const float          *image;
    size_t                h, w, c, y0, x0, step;
    size_t                n, grid_h, grid_w;
    size_t                window_h, window_w;
    const float          *matrix;
    float                *to;
    size_t                to_h, to_w, to_c, to_y0, to_x0, to_step;
    bool                  add;
} windows;

static void windows_task(void *context, size_t index, uint32_t thread)
{
    const windows *g = context;
    size_t groups = (panels_of(g->to_c) + PANELS_PER_TASK - 1) / PANELS_PER_TASK;
    size_t column = index % groups * PANELS_PER_TASK * LANES;
    size_t first  = index / groups * PIXELS_PER_TASK;
    size_t count  = lki_min(PIXELS_PER_TASK, g->n * g->grid_h * g->grid_w - first);
    const float *from[PIXELS_PER_TASK];
    float       *to[PIXELS_PER_TASK];
    (void)thread;

    size_t gx = first % g->grid_w, gy = first / g->grid_w % g->grid_h;
    size_t sample = first / g->grid_w / g->grid_h;
    for (size_t i = 0; i < count; i++) {
        size_t y = sample * g->h + g->y0 + gy * g->step, x = g->x0 + gx * g->step;
        size_t to_y = sample * g->to_h + g->to_y0 + gy * g->to_step;
        size_t to_x = g->to_x0 + gx * g->to_step;
        from[i]     = g->image + (y * g->w + x) * g->c;
        to[i]       = g->to + (to_y * g->to_w + to_x) * g->to_c + column;
        if (++gx == g->grid_w) {
            gx = 0;
            if (++gy == g->grid_h) {
                gy = 0;
                sample++;
            }
        }
    }
    size_t depth = g->window_h * g->window_w * g->c;
    g->kernels->tile_rows(&(lki_tile_rows){
        .rows     = count,
        .columns  = lki_min(PANELS_PER_TASK * LANES, g->to_c - column),
        .a        = from,
        .segments = g->window_h,
        .length   = g->window_w * g->c,
        .pitch    = g->w * g->c,
        .b        = g->matrix + column * depth,
        .panel    = depth * LANES,
        .step     = LANES,
        .c        = to,
        .mode     = g->add ? LKI_TILE_ADD : LKI_TILE_START,
    });
}

static void windows_run(lk_exec *exec, windows *g)
{
    size_t pixels = g->n * g->grid_h * g->grid_w;
    size_t groups = (panels_of(g->to_c) + PANELS_PER_TASK - 1) / PANELS_PER_TASK;
    g->kernels    = lki_exec_kernels(exec)->nn;
    lki_pool_run(lki_exec_pool(exec), (pixels + PIXELS_PER_TASK - 1) / PIXELS_PER_TASK * groups,
                 windows_task, g);
}

void lki_conv(lk_exec *exec, const lki_conv_shape *shape, const float *x, const float *w, float *y,
              void *scratch)
{
    const lki_conv_shape *s = shape;
    frame   f = frame_of_input(s);
    size_t  depth = s->kh * s->kw * s->cin;
    weights m = { .kernels = lki_exec_kernels(exec)->nn, .shape = s, .w = w, .matrix = scratch,
                  .panel = depth * LANES, .step = LANES };
    windows g = {
        .image    = frame_make(exec, &f, x, (char *)scratch + weights_bytes(s)),
        .h        = f.h, .w = f.w, .c = f.c, .step = s->stride,
        .n        = s->n, .grid_h = s->oh, .grid_w = s->ow,
        .window_h = s->kh, .window_w = s->kw,
        .matrix   = scratch,
        .to       = y, .to_h = s->oh, .to_w = s->ow, .to_c = s->cout, .to_step = 1,
    };
    lki_pool_run(lki_exec_pool(exec), panels_of(s->cout), weights_forward_task, &m);
    windows_run(exec, &g);
}

/* Along one axis: the input positions of residue r, and the taps they meet. */
typedef struct { size_t first, count, taps, from; } residue;

static residue residue_of(size_t r, size_t in, size_t kernel, size_t stride, size_t pad,
                          size_t border)
{
    residue a = { .first = (r + stride - pad % stride) % stride };
    a.count = a.first < in ? (in - a.first + stride - 1) / stride : 0;
    a.taps  = r < kernel ? (kernel - r + stride - 1) / stride : 0;
    a.from  = border + (a.first + pad - r) / stride + 1 - a.taps;
    return a;
}

void lki_conv_backward_input(lk_exec *exec, const lki_conv_shape *shape, const float *dy,
                             const float *w, float *dx, bool add, void *scratch)
{
    const lki_conv_shape *s = shape;
    frame        f     = frame_of_output(s);
    const float *image = frame_make(exec, &f, dy, (char *)scratch + weights_bytes(s));

    for (size_t r = 0; r < s->stride * s->stride; r++) {
        size_t  ry = r / s->stride, rx = r % s->stride;
        residue v = residue_of(ry, s->h, s->kh, s->stride, s->pad, f.top);
        residue u = residue_of(rx, s->w, s->kw, s->stride, s->pad, f.left);
        if (v.taps == 0 || u.taps == 0)
            v.taps = u.taps = v.from = u.from = 0; /* no tap meets these pixels: zeros */
        weights m = { .shape = s, .w = w, .matrix = scratch, .step = LANES,
                      .panel = v.taps * u.taps * s->cout * LANES,
                      .ry = ry, .rx = rx, .ty = v.taps, .tx = u.taps };
        windows g = {
            .image    = image,
            .h        = f.h, .w = f.w, .c = f.c, .y0 = v.from, .x0 = u.from, .step = 1,
            .n        = s->n, .grid_h = v.count, .grid_w = u.count,
            .window_h = v.taps, .window_w = u.taps,
            .matrix   = scratch,
            .to       = dx, .to_h = s->h, .to_w = s->w, .to_c = s->cin,
            .to_y0    = v.first, .to_x0 = u.first, .to_step = s->stride,
            .add      = add,
        };
        lki_pool_run(lki_exec_pool(exec), panels_of(s->cin), weights_input_task, &m);
        if (v.count > 0 && u.count > 0)
            windows_run(exec, &g);
    }
}

/* ---- Transposed windows times dy --------------------------------------------------------- */

typedef struct {
    const lki_nn_kernels *kernels;
    const lki_conv_shape *shape;
    const frame          *f;
    const float          *image, *dy;
    size_t                columns; /* cout in whole lanes */
    float                *matrix;
} weight_gradient;

static size_t blocks_of(size_t count, size_t size)
{
    return (count + size - 1) / size;
}

/* A block of (kx, ci) and of output channels, for one ky. */
static void weight_gradient_task(void *context, size_t index, uint32_t thread)
{
    const weight_gradient *g = context;
    const lki_conv_shape  *s = g->shape;
    size_t width  = s->kw * s->cin;
    size_t across = blocks_of(g->columns, WEIGHT_COLUMNS), down = blocks_of(width, TAPS_PER_TASK);
    size_t column = index % across * WEIGHT_COLUMNS, row = index / across % down * TAPS_PER_TASK;
    size_t ky = index / across / down, runs = lki_max(1, PIXELS_PER_RUN / s->ow);
    (void)thread;

    lki_tile_outer t = {
        .m       = lki_min(TAPS_PER_TASK, width - row),
        .columns = lki_min(WEIGHT_COLUMNS, g->columns - column),
        .run     = s->ow,
        .a_pitch = s->stride * g->f->w * s->cin,
        .a_step  = s->stride * s->cin,
        .b_step  = g->columns,
        .c       = g->matrix + (ky * width + row) * g->columns + column,
        .ldc     = g->columns,
    };
    for (size_t sample = 0; sample < s->n; sample++) {
        for (size_t oy = 0; oy < s->oh; oy += runs) {
            t.runs = lki_min(runs, s->oh - oy);
            t.a    = g->image + (sample * g->f->h + oy * s->stride + ky) * g->f->w * s->cin + row;
            t.b    = g->dy + (sample * s->oh + oy) * s->ow * g->columns + column;
            g->kernels->tile_outer(&t);
        }
    }
}

void lki_conv_backward_weights(lk_exec *exec, const lki_conv_shape *shape, const float *x,
                               const float *dy, float *dw, void *scratch)
{
    const lki_conv_shape *s = shape;
    frame    f = frame_of_input(s), channels = frame_of_channels(s);
    char    *next    = (char *)scratch + weights_bytes(s);
    size_t   columns = lki_round_up(s->cout, LANES);
    weights  m = { .kernels = lki_exec_kernels(exec)->nn, .shape = s, .w = dw, .dw = dw,
                   .matrix = scratch, .panel = LANES, .step = columns };
    lki_pool *pool = lki_exec_pool(exec);

    weight_gradient g = {
        .kernels = lki_exec_kernels(exec)->nn,
        .shape   = s,
        .f       = &f,
        .image   = frame_make(exec, &f, x, next),
        .dy      = frame_make(exec, &channels, dy, next + frame_bytes(&f)),
        .columns = columns,
        .matrix  = scratch,
    };
    size_t tasks = s->kh * blocks_of(s->kw * s->cin, TAPS_PER_TASK) *
                   blocks_of(columns, WEIGHT_COLUMNS);
    lki_pool_run(pool, panels_of(s->cout), weights_forward_task, &m);
    lki_pool_run(pool, tasks, weight_gradient_task, &g);
    lki_pool_run(pool, panels_of(s->cout), weights_back_task, &m);
}

size_t lki_conv_scratch_bytes(const lk_exec *exec, const lki_conv_shape *shape)
{
    frame input = frame_of_input(shape), output = frame_of_output(shape);
    frame channels = frame_of_channels(shape);
    (void)exec;
    return weights_bytes(shape) +
           lki_max(frame_bytes(&input) + frame_bytes(&channels), frame_bytes(&output));
}
