/* conv.c -- two-dimensional convolution, NHWC: the forward pass and the input's gradient.
 *
 * Both are matrix products whose left side is read in place, because a row of a window, kw * cin
 * values, is contiguous.  There is no im2col matrix and no frame of zeros.  Instead, output points
 * that use the same taps (kernel positions inside the image) are computed together, for all
 * samples, and with only those taps (with a 3 x 3 kernel on a 4 x 4 image this saves 31 % of the
 * products).
 *
 *      forward    y  (pixel, cout) = window (pixel, kh kw cin)  times  weights
 *      input      dx (pixel, cin)  = window of dy               times  weights, taps reversed
 *
 * With stride s an input pixel uses only the taps of its own residue modulo s.  So the input's
 * gradient is computed separately for each of the s * s residues, with only its taps.  The weights'
 * gradient is in conv_weights.c, and convolutions of one tap are products (conv_product.c).
 *
 * Order:   every output is one chain of fma: in the forward pass over (ky, kx, ci), for the input's
 *          gradient over ascending (oy, ox, co).  Padding is left out.
 * Cost:    2 cin cout operations per point and tap.  A block of DEPTH rows of the weights stays in
 *          the first-level cache while a task processes its points, and the sums are stored in the
 *          result.
 * Memory:  the reordered weights of a wave of columns at a time; see lki_conv_scratch_bytes().
 *
 * Following windows by pointer ("implicit GEMM"): Chetlur et al., "cuDNN: efficient primitives for
 * deep learning", 2014, section 3.
 */
#include "tensor/ops/conv.h"

#include <string.h>

#include "tensor/onednn/onednn.h"
#include "tensor/isa/kernels.h"

enum {
    LANES        = LKI_CONV_LANES,
    LAYOUT       = 0,        /* of packed weights, the same for all instruction sets */
    POINTS       = 64,       /* points of a task */
    POINTS_MAX   = 128,      /* points of a task that has few columns, and so little work */
    COLUMNS_FEW  = 16,
    TASKS_EACH   = 4,        /* minimum tasks for each thread if they have POINTS_MAX points */
    COLUMNS_MAX  = 64,
    /* columns of a task, if 64 columns of weights would not stay in the second-level cache */
    COLUMNS_DEEP = 32,
    DEEP         = 2048,     /* minimum number of values of a window for COLUMNS_DEEP */
    DEPTH        = 256,      /* rows of weights at a time: 256 x 32 columns x 4 bytes are 32 KiB */
};

/* ---- Weights in the order of the chains -------------------------------------------------- */

/* The reordered weights.  Row (ky, kx, ci) and column co are at index co / 16 * panel + row * 16 +
 * co % 16. */
typedef struct {
    const lki_conv_kernels *kernels;
    const lki_conv_shape   *shape;
    const float            *w;
    float                  *matrix;
    /* floats per panel; number of the first panel of this wave */
    size_t                  panel, first;
    lki_pack_turn           turn;
    /* the whole matrix in the pack; NULL: there is no pack */
    float                  *kept;
    /* for dx: first tap and number of taps of the residue */
    size_t                  ry, rx, ty, tx;
} weights;

/* Copies panel `index` of this wave to the pack if this call fills the pack. */
static void weights_keep(const weights *m, size_t index)
{
    if (m->turn == LKI_PACK_MINE)
        memcpy(m->kept + (m->first + index) * m->panel, m->matrix + index * m->panel,
               m->panel * sizeof *m->kept);
}

/* Reorders the weights of sixteen output channels. */
static void weights_forward_task(void *context, size_t index, uint32_t thread)
{
    const weights        *m = context;
    const lki_conv_shape *s = m->shape;
    size_t taps = s->kh * s->kw, first = (m->first + index) * LANES;
    (void)thread;
    m->kernels->pack_weights(&(lki_weight_panel){
        .columns = lki_min(LANES, s->cout - first),
        .cin     = s->cin,
        .taps    = taps,
        .step    = LANES,
        .w       = m->w + first * s->cin * taps,
        .matrix  = m->matrix + index * m->panel,
    });
    weights_keep(m, index);
}

/* Reorders the weights of sixteen input channels, for the taps of one residue, last tap first. */
static void weights_input_task(void *context, size_t index, uint32_t thread)
{
    const weights        *m = context;
    const lki_conv_shape *s = m->shape;
    size_t taps = s->kh * s->kw, first = (m->first + index) * LANES;
    size_t n    = lki_min(LANES, s->cin - first);
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
    weights_keep(m, index);
}

/* ---- Points that use the same taps ------------------------------------------------------- */

/* Consecutive positions that use the same taps low .. high - 1. */
typedef struct { size_t first, count, low, high; } stretch;

static stretch stretch_at(const lki_conv_axis *a, size_t first)
{
    ptrdiff_t from = a->start + (ptrdiff_t)(first * a->step), size = (ptrdiff_t)a->size;
    ptrdiff_t end  = from + (ptrdiff_t)a->taps;
    if (a->taps == 0)
        return (stretch){ first, a->count - first, 0, 0 };
    if (from >= 0 && end <= size) {
        size_t inside = (size_t)(size - end) / a->step + 1;
        return (stretch){ first, lki_min(inside, a->count - first), 0, a->taps };
    }
    ptrdiff_t low = from < 0 ? -from : 0, high = (end < size ? end : size) - from;
    if (low >= high)
        low = high = 0;
    return (stretch){ first, 1, (size_t)low, (size_t)high };
}

/* ---- Windows times weights --------------------------------------------------------------- */

/* A grid of points.  Point (sample, gy, gx) is pixel (to_y0 + gy * to_step, ...) of the result. */
typedef struct {
    const lki_conv_kernels *kernels;
    lk_exec                *exec;
    const float            *image;
    size_t                  n, c;
    lki_conv_axis           y, x;    /* axes of the image */
    const float            *matrix;
    size_t                  panel;
    size_t                  points;  /* points of a task */
    /* columns of a task; first and last column of this wave */
    size_t                  columns, first, last;
    float                  *to;
    size_t                  to_h, to_w, to_c, to_y0, to_x0, to_step;
    bool                    add;
} grid;

/* Some points of one class (those with the same taps), and the addresses of their windows and
 * results. */
typedef struct {
    stretch      y, x;
    size_t       count;
    const float *from[POINTS_MAX];
    void        *to[POINTS_MAX];
} points;

static size_t blocks_of(size_t count, size_t size)
{
    return (count + size - 1) / size;
}

/* Returns the number of columns of a task, for windows of `depth` values. */
static size_t columns_of(size_t depth)
{
    return depth > DEEP ? COLUMNS_DEEP : COLUMNS_MAX;
}

/* Returns the number of points of a task. */
static size_t points_of(const grid *g)
{
    size_t least = TASKS_EACH * POINTS_MAX * lk_exec_threads(g->exec);
    bool   few   = lki_min(g->columns, g->to_c) <= COLUMNS_FEW;
    return few && g->n * g->y.count * g->x.count >= least ? POINTS_MAX : POINTS;
}

/* Returns the number of tasks of a class of points. */
static size_t tasks_of(const grid *g, const stretch *y, const stretch *x)
{
    return blocks_of(g->n * y->count * x->count, g->points);
}

static size_t tasks_of_all(const grid *g)
{
    size_t tasks = 0;
    for (stretch y = { 0 }; y.first + y.count < g->y.count;) {
        y = stretch_at(&g->y, y.first + y.count);
        for (stretch x = { 0 }; x.first + x.count < g->x.count;) {
            x = stretch_at(&g->x, x.first + x.count);
            tasks += tasks_of(g, &y, &x);
        }
    }
    return tasks;
}

/* Finds the class of task `index`, and sets *index to the task's number within the class. */
static void points_class(const grid *g, points *p, size_t *index)
{
    for (p->y = (stretch){ 0 };;) {
        p->y = stretch_at(&g->y, p->y.first + p->y.count);
        for (p->x = (stretch){ 0 }; p->x.first + p->x.count < g->x.count;) {
            p->x = stretch_at(&g->x, p->x.first + p->x.count);
            size_t tasks = tasks_of(g, &p->y, &p->x);
            if (*index < tasks)
                return;
            *index -= tasks;
        }
    }
}

/* Adds `count` points in a row of the class to `p`, as its points i, i + 1, ...  The first one is
 * (sample, gy, gx).  Results begin at `column`. */
static void points_row(const grid *g, points *p, size_t i, size_t count, size_t sample, size_t gy,
                       size_t gx, size_t column)
{
    /* false: there are no taps, and nothing is read */
    bool   any  = p->y.high > 0 && p->x.high > 0;
    /* position of the first tap that exists */
    size_t y    = (size_t)g->y.start + gy * g->y.step + p->y.low;
    size_t x    = (size_t)g->x.start + gx * g->x.step + p->x.low;
    size_t to_y = g->to_y0 + gy * g->to_step, to_x = g->to_x0 + gx * g->to_step;
    size_t at   = any ? ((sample * g->y.size + y) * g->x.size + x) * g->c : 0;
    size_t step = any ? g->x.step * g->c : 0;
    size_t pixel = (sample * g->to_h + to_y) * g->to_w + to_x;

    const float *from = g->image + at;
    float       *to   = g->to + pixel * g->to_c + column;
    for (size_t k = 0; k < count; k++) {
        p->from[i + k] = from + k * step;
        p->to[i + k]   = to + k * g->to_step * g->to_c;
    }
}

static void points_find(const grid *g, points *p, size_t index, size_t column)
{
    points_class(g, p, &index);
    size_t each = p->y.count * p->x.count, first = index * g->points;
    size_t sample = first / each, y = first % each / p->x.count, x = first % p->x.count;

    p->count = lki_min(g->points, g->n * each - first);
    for (size_t i = 0, row; i < p->count; i += row) {
        row = lki_min(p->count - i, p->x.count - x);
        points_row(g, p, i, row, sample, p->y.first + y, p->x.first + x, column);
        x = 0;
        if (++y == p->y.count) {
            y = 0;
            sample++;
        }
    }
}

/* Computes the chains of `t`, DEPTH of their products at a time. */
static void windows_in_blocks(const grid *g, const lki_conv_windows *t)
{
    size_t pieces = blocks_of(t->length, DEPTH), length = blocks_of(t->length, lki_max(1, pieces));
    size_t rows   = lki_max(1, DEPTH / lki_max(1, t->length));
    lki_conv_windows block = *t;

    if (t->segments == 0 || t->length == 0) {
        block.segments = 0;
        g->kernels->windows(&block);
        return;
    }
    for (size_t s = 0; s < t->segments; s += rows) {
        for (size_t l = 0; l < t->length; l += length) {
            bool last = s + rows >= t->segments && l + length >= t->length;
            block.segments  = lki_min(rows, t->segments - s);
            block.length    = lki_min(length, t->length - l);
            block.a_offset  = s * t->a_pitch + l;
            block.b         = t->b + s * t->b_pitch + l * LANES;
            block.from_zero = s == 0 && l == 0;
            block.to        = last ? t->to : NULL;
            g->kernels->windows(&block);
        }
    }
}

static void grid_task(void *context, size_t index, uint32_t thread)
{
    const grid *g      = context;
    size_t      groups = blocks_of(g->last - g->first, g->columns);
    size_t      column = index % groups * g->columns; /* first column within the wave */
    size_t      row    = g->x.taps * g->c;
    points      p;

    points_find(g, &p, index / groups, g->first + column);
    windows_in_blocks(g, &(lki_conv_windows){
        .rows      = p.count,
        .columns   = lki_min(g->columns, g->last - g->first - column),
        .a         = p.from,
        .segments  = p.y.high - p.y.low,
        .length    = (p.x.high - p.x.low) * g->c,
        .a_pitch   = g->x.size * g->c,
        .b         = g->matrix + column / LANES * g->panel +
                     (p.y.low * row + p.x.low * g->c) * LANES,
        .panel     = g->panel,
        .b_pitch   = row * LANES,
        .sums      = lki_exec_private(g->exec, thread),
        .from_zero = true,
        .add       = g->add,
        .to        = p.to,
    });
}

/* Computes the reordered weights of a wave, or uses those in the pack. */
static void grid_weights(grid *g, lki_task pack, weights *m)
{
    m->first  = g->first / LANES;
    g->matrix = m->matrix;
    g->panel  = m->panel;
    if (m->turn == LKI_PACK_THERE) {
        g->matrix = m->kept + m->first * m->panel;
        g->panel  = m->panel;
        return;
    }
    lki_exec_run(g->exec, blocks_of(g->last - g->first, LANES), pack, m);
}

/* Computes a grid.  The task `pack` computes a panel of the reordered weights `m`. */
static void grid_run(lk_exec *exec, grid *g, lki_task pack, weights *m)
{
    g->exec       = exec;
    m->panel = g->y.taps * g->x.taps * g->c * LANES;
    g->columns    = columns_of(g->y.taps * g->x.taps * g->c);
    g->points     = points_of(g);
    size_t tasks  = tasks_of_all(g);
    g->kernels    = lki_exec_kernels(exec)->conv;
    m->kernels    = g->kernels;
    size_t wave  = lki_conv_wave(m->panel / LANES, g->to_c, g->columns);
    for (; g->first < g->to_c; g->first = g->last) {
        g->last = lki_min(g->to_c, g->first + wave);
        grid_weights(g, pack, m);
        lki_exec_run(exec, tasks * blocks_of(g->last - g->first, g->columns), grid_task, g);
    }
}

/* ---- Forward ----------------------------------------------------------------------------- */

/* Computes the forward pass; `g` has the images. */
static void forward(lk_exec *exec, const lki_conv_shape *s, grid *g, const float *w, float *matrix,
                    const lk_pack *pack)
{
    weights m = { .shape = s, .w = w, .matrix = matrix,
                  .panel = s->kh * s->kw * s->cin * LANES, .turn = lki_pack_begin(pack, LAYOUT) };
    m.kept     = pack != NULL ? pack->data : NULL;
    g->n       = s->n;
    g->y       = (lki_conv_axis){ -(ptrdiff_t)s->pad, s->stride, s->oh, s->kh, s->h };
    g->x       = (lki_conv_axis){ -(ptrdiff_t)s->pad, s->stride, s->ow, s->kw, s->w };
    g->to_h    = s->oh;
    g->to_w    = s->ow;
    g->to_c    = s->cout;
    g->to_step = 1;
    grid_run(exec, g, weights_forward_task, &m);
    if (m.turn == LKI_PACK_MINE)
        lki_pack_end(pack, LAYOUT);
}

void lki_conv(lk_exec *exec, const lki_conv_shape *shape, const float *x, const float *w, float *y,
              void *scratch, const lk_pack *pack)
{
    grid g = { .image = x, .c = shape->cin, .to = y };
    if (lki_other_conv(exec, shape, LKI_ONEDNN_Y, false, x, w, y))
        return;
    if (lki_conv_is_product(shape))
        lki_conv_product(exec, shape, LK_F32, x, w, y, pack);
    else
        forward(exec, shape, &g, w, scratch, pack);
}

/* ---- The input's gradient ---------------------------------------------------------------- */

/* Computes the gradient of the input.  `images` has dy and the memory of the result. */
static void backward_input(lk_exec *exec, const lki_conv_shape *s, const grid *images,
                           const float *w, float *matrix, const lk_pack *pack)
{
    lki_pack_turn turn = lki_pack_begin(pack, LAYOUT);
    float        *kept = pack != NULL ? pack->data : NULL;
    for (size_t r = 0; r < s->stride * s->stride; r++) {
        grid   g  = *images;
        size_t ry = r / s->stride, rx = r % s->stride;
        g.n       = s->n;
        g.to_h    = s->h;
        g.to_w    = s->w;
        g.to_c    = s->cin;
        g.to_step = s->stride;
        g.y = lki_conv_residue(&g.to_y0, ry, s->h, s->oh, s->kh, s->stride, s->pad);
        g.x = lki_conv_residue(&g.to_x0, rx, s->w, s->ow, s->kw, s->stride, s->pad);
        weights m = { .shape = s, .w = w, .matrix = matrix,
                      .panel = g.y.taps * g.x.taps * s->cout * LANES,
                      .turn = turn, .kept = kept,
                      .ry = ry, .rx = rx, .ty = g.y.taps, .tx = g.x.taps };
        if (g.y.count == 0 || g.x.count == 0)
            continue;
        grid_run(exec, &g, weights_input_task, &m);
        if (turn != LKI_PACK_NONE)
            kept += blocks_of(s->cin, LANES) * m.panel;
    }
    if (turn == LKI_PACK_MINE)
        lki_pack_end(pack, LAYOUT);
}

void lki_conv_backward_input(lk_exec *exec, const lki_conv_shape *shape, const float *dy,
                             const float *w, float *dx, bool add, void *scratch,
                             const lk_pack *pack)
{
    grid g = { .image = dy, .c = shape->cout, .to = dx, .add = add };
    if (lki_other_conv(exec, shape, LKI_ONEDNN_X, add, dx, w, dy))
        return;
    if (lki_conv_input_is_product(shape, LK_F32, add))
        lki_conv_product_input(exec, shape, LK_F32, dy, w, dx, add, pack);
    else
        backward_input(exec, shape, &g, w, scratch, pack);
}

static size_t matrix_bytes(const lki_conv_shape *s)
{
    size_t taps = s->kh * s->kw;
    if (lki_conv_input_is_product(s, LK_F32, true))
        return 0; /* neither y nor dx needs it */
    return lki_max(lki_conv_wave_bytes(taps * s->cin, s->cout),
                   lki_conv_wave_bytes(taps * s->cout, s->cin));
}

size_t lki_conv_scratch_bytes(const lk_exec *exec, const lki_conv_shape *shape, uint32_t parts)
{
    (void)exec;
    return lki_max(lki_conv_weights_bytes(shape, parts), matrix_bytes(shape));
}

/* Counts each tap once.  In the backward pass, too, each tap is reordered once, because it belongs
 * to one residue.  If dx is a product unless it is added, a pack has room for both layouts. */
size_t lki_conv_pack_bytes(const lk_exec *exec, const lki_conv_shape *s, lk_dtype dtype,
                           bool backward)
{
    size_t deep   = backward ? s->cout : s->cin, wide = backward ? s->cin : s->cout;
    size_t places = s->n * (backward ? s->h * s->w : s->oh * s->ow);
    bool   is_product = dtype == LK_F32 && lki_conv_is_product(s);
    size_t product    = is_product ? lki_conv_product_pack_bytes(exec, s, backward) : 0;
    if (is_product && (!backward || lki_conv_input_is_product(s, LK_F32, true)))
        return product;
    if (places > (size_t)(dtype == LK_BF16 ? LKI_PACKED_PIXELS : LKI_PACKED_ROWS))
        return 0;
    if (dtype == LK_BF16)
        return lki_conv_bf16_pack_bytes(s, backward);
    return lki_max(product, s->kh * s->kw * deep * lki_round_up(wide, LANES) * sizeof(float));
}
