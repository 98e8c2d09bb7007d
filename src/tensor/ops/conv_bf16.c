/* conv_bf16.c -- two-dimensional convolution of bf16 values, NHWC, as products with windows.
 *
 *      forward    y  (pixel, cout)       = windows of x (pixel, kh kw cin)   times  weights
 *      input      dx (pixel, cin)        = windows of dy (pixel, taps cout)  times  weights
 *      weights    dw (cout, kh kw cin)   = transposed dy (cout, pixel)       times  windows of x
 *
 * lki_gemm() computes the first two and copies the windows that it needs, a panel at a time; with
 * one tap it needs none (conv_product.c).  The third uses the same kernels.  So sums have the order
 * of all products of bf16 values, and every instruction set has its kernels.
 *
 * With stride s an input pixel uses only the taps of its own residue modulo s.  So the input's
 * gradient is computed separately for each of the s * s residues, whose pixels are then not
 * neighbours.
 *
 * Cost:    2 cin cout operations per point and tap, also for taps in the padding.
 * Memory:  the rounded weights, reordered; or dw in the order of windows, once for each slot
 *          (part_counter.h).
 */
#include <string.h>

#include "tensor/ops/conv.h"
#include "tensor/isa/kernels.h"
#include "tensor/part_counter.h"

enum {
    PART = 256, /* taps and channels that are reordered at a time: 256 KiB of floats */
    WORDS_MAX = LKI_CHUNK / 2, /* the largest unit of packed words */
};
_Static_assert((size_t)PART * PART <= LKI_EXEC_PRIVATE, "a thread's buffer has room");

/* ---- Weights in the order of windows ----------------------------------------------------- */

/* The taps of a residue, in ascending or descending order. */
typedef struct { size_t ry, rx, step, ty, tx; bool descending; } tap_set;

static tap_set all_taps(const lki_conv_shape *s)
{
    return (tap_set){ .step = 1, .ty = s->kh, .tx = s->kw };
}

/* Returns the place of tap `tap` among those of the residue, or their number if it is not one. */
static size_t place_of(const lki_conv_shape *s, const tap_set *t, size_t tap)
{
    size_t ky = tap / s->kw, kx = tap % s->kw, count = t->ty * t->tx;
    if (ky % t->step != t->ry || kx % t->step != t->rx)
        return count;
    size_t place = ky / t->step * t->tx + kx / t->step;
    return t->descending ? count - 1 - place : place;
}

/* Weights w (cout, cin, kh, kw) to be rounded.  Channel ci of tap t of output channel co becomes
 * element co * row + t * tap + ci. */
typedef struct {
    lk_exec              *exec;
    const lki_kernels    *kernels;
    const lki_conv_shape *shape;
    tap_set               taps;
    const float          *w;
    uint16_t             *to;
    size_t                row, tap;
} rounding;

/* Rounds some channels of some taps of output channel `co`.  `turned` has them by taps. */
static void round_part(const rounding *r, size_t co, size_t ci, size_t channels, size_t first,
                       size_t count, float *turned)
{
    const lki_conv_shape *s = r->shape;
    size_t                all = s->kh * s->kw;
    r->kernels->gemm_ends->turn(channels, count, r->w + (co * s->cin + ci) * all + first, all,
                                turned, channels);
    for (size_t i = 0; i < count; i++) {
        size_t place = place_of(s, &r->taps, first + i);
        if (place < r->taps.ty * r->taps.tx)
            r->kernels->elementwise->convert(channels, LK_F32, turned + i * channels, LK_BF16,
                                             r->to + co * r->row + place * r->tap + ci);
    }
}

static void rounding_task(void *context, size_t co, uint32_t thread)
{
    const rounding *r   = context;
    size_t          all = r->shape->kh * r->shape->kw, cin = r->shape->cin;
    for (size_t ci = 0; ci < cin; ci += PART)
        for (size_t first = 0; first < all; first += PART)
            round_part(r, co, ci, lki_min(PART, cin - ci), first, lki_min(PART, all - first),
                       lki_exec_private(r->exec, thread));
}

static void round_weights(rounding *r, lk_exec *exec)
{
    r->exec    = exec;
    r->kernels = lki_exec_kernels(exec);
    lki_exec_run(exec, r->shape->cout, rounding_task, r);
}

static size_t weights_of(const lki_conv_shape *s)
{
    return s->cout * s->cin * s->kh * s->kw;
}

static size_t rounded_bytes(const lki_conv_shape *s)
{
    return lki_round_up(weights_of(s) * sizeof(uint16_t), 64);
}

/* ---- Packs ------------------------------------------------------------------------------- */

/* The bytes of the packed weights for products with k values and n columns. */
static size_t packed_bytes(size_t k, size_t n)
{
    return lki_round_up((k + 1) / 2, WORDS_MAX) * lki_round_up(n, LKI_GEMM_COLUMNS_MAX) *
           sizeof(float);
}

size_t lki_conv_bf16_pack_bytes(const lki_conv_shape *s, bool backward)
{
    size_t bytes = 0, first;
    if (!backward)
        return packed_bytes(s->kh * s->kw * s->cin, s->cout);
    for (size_t r = 0; r < s->stride * s->stride; r++) {
        size_t ty = lki_conv_residue(&first, r / s->stride, s->h, s->oh, s->kh, s->stride,
                                     s->pad).taps;
        size_t tx = lki_conv_residue(&first, r % s->stride, s->w, s->ow, s->kw, s->stride,
                                     s->pad).taps;
        bytes += packed_bytes(ty * tx * s->cout, s->cin);
    }
    return bytes;
}

/* A part of a pack, for one of its products. */
typedef struct { lk_pack pack; lki_pack_state state; } part_of_pack;

/* Runs a product of windows with weights.  The caller has begun the pack, with the result `turn`.
 * Advances *at, the place in the pack. */
static void multiply(lk_exec *exec, const lki_gemm_args *product, const lk_pack *pack,
                     lki_pack_turn turn, size_t *at)
{
    lki_gemm_args gemm = *product;
    part_of_pack  part;
    if (turn != LKI_PACK_NONE) {
        part.pack = (lk_pack){ &part.state, pack->version, pack->data + *at / sizeof(float) };
        part.state = turn == LKI_PACK_MINE
                         ? 0 : lki_pack_filling(pack, lki_gemm_pack_layout(exec, &gemm)) + 1;
        gemm.pack = &part.pack;
        *at += packed_bytes(gemm.k, gemm.n);
    }
    lki_gemm(exec, &gemm);
}

/* ---- Forward ----------------------------------------------------------------------------- */

static lki_windows windows_of(const lki_conv_shape *s, const uint16_t *x)
{
    return (lki_windows){ .image = x, .n = s->n, .h = s->h, .w = s->w, .c = s->cin,
                          .channels = s->cin, .y = -(ptrdiff_t)s->pad, .x = -(ptrdiff_t)s->pad,
                          .step = s->stride,
                          .down = s->oh, .across = s->ow, .taps_y = s->kh, .taps_x = s->kw };
}

static void forward(lk_exec *exec, const lki_conv_shape *s, const uint16_t *x, const float *w,
                    uint16_t *y, void *scratch, const lk_pack *pack)
{
    size_t                depth = s->kh * s->kw * s->cin, at = 0;
    lki_windows           windows = windows_of(s, x);
    rounding              r = { .shape = s, .taps = all_taps(s), .w = w, .to = scratch,
                                .row = depth, .tap = s->cin };
    lki_gemm_args gemm = { .operands = LK_BF16, .result = LK_BF16, .transpose_b = true,
                           .m = s->n * s->oh * s->ow, .n = s->cout, .k = depth,
                           .windows = &windows, .b = scratch, .c = y };
    uint32_t      layout = lki_gemm_pack_layout(exec, &gemm);
    lki_pack_turn turn   = lki_pack_begin(pack, layout);
    if (turn != LKI_PACK_THERE)
        round_weights(&r, exec);
    multiply(exec, &gemm, pack, turn, &at);
    if (turn == LKI_PACK_MINE)
        lki_pack_end(pack, layout);
}

void lki_conv_bf16(lk_exec *exec, const lki_conv_shape *shape, const uint16_t *x, const float *w,
                   uint16_t *y, void *scratch, const lk_pack *pack)
{
    if (lki_conv_is_product(shape))
        lki_conv_product(exec, shape, LK_BF16, x, w, y, pack);
    else
        forward(exec, shape, x, w, y, scratch, pack);
}

/* ---- The input's gradient ---------------------------------------------------------------- */

typedef struct {
    const lki_conv_shape *shape;
    const uint16_t       *dy;
    const float          *w;
    uint16_t             *dx;
    bool                  add;
    uint16_t             *rounded;
    const lk_pack        *pack;
    lki_pack_turn         turn;
    size_t                at;
} input;

static void input_residue(lk_exec *exec, input *in, size_t ry, size_t rx)
{
    const lki_conv_shape *s  = in->shape;
    lki_pixel_rows        to = { .h = s->h, .w = s->w, .step = s->stride };
    lki_conv_axis y = lki_conv_residue(&to.y, ry, s->h, s->oh, s->kh, s->stride, s->pad);
    lki_conv_axis x = lki_conv_residue(&to.x, rx, s->w, s->ow, s->kw, s->stride, s->pad);
    lki_windows   windows = { .image = in->dy, .n = s->n, .h = s->oh, .w = s->ow, .c = s->cout,
                              .channels = s->cout, .y = y.start, .x = x.start, .step = 1,
                              .down = y.count, .across = x.count,
                              .taps_y = y.taps, .taps_x = x.taps };
    rounding      r = { .shape = s, .w = in->w, .to = in->rounded, .row = s->cin,
                        .tap = s->cout * s->cin,
                        .taps = { ry, rx, s->stride, y.taps, x.taps, true } };
    to.down   = y.count;
    to.across = x.count;
    lki_gemm_args gemm = { .operands = LK_BF16, .result = LK_BF16, .m = s->n * y.count * x.count,
                           .n = s->cin, .k = y.taps * x.taps * s->cout, .windows = &windows,
                           .b = in->rounded, .c = in->dx, .residual = in->add ? in->dx : NULL,
                           .pixels = s->stride > 1 ? &to : NULL };
    if (in->turn != LKI_PACK_THERE)
        round_weights(&r, exec);
    multiply(exec, &gemm, in->pack, in->turn, &in->at);
}

static void backward_input(lk_exec *exec, const lki_conv_shape *s, const uint16_t *dy,
                           const float *w, uint16_t *dx, bool add, void *scratch,
                           const lk_pack *pack)
{
    uint32_t layout = lki_gemm_pack_layout(exec, &(lki_gemm_args){ .operands = LK_BF16 });
    input    in = { .shape = s, .dy = dy, .w = w, .dx = dx, .add = add, .rounded = scratch,
                    .pack = pack, .turn = lki_pack_begin(pack, layout) };
    for (size_t ry = 0; ry < s->stride; ry++)
        for (size_t rx = 0; rx < s->stride; rx++)
            input_residue(exec, &in, ry, rx);
    if (in.turn == LKI_PACK_MINE)
        lki_pack_end(pack, layout);
}

void lki_conv_bf16_backward_input(lk_exec *exec, const lki_conv_shape *shape, const uint16_t *dy,
                                  const float *w, uint16_t *dx, bool add, void *scratch,
                                  const lk_pack *pack)
{
    if (lki_conv_input_is_product(shape, LK_BF16, add))
        lki_conv_product_input(exec, shape, LK_BF16, dy, w, dx, add, pack);
    else
        backward_input(exec, shape, dy, w, dx, add, scratch, pack);
}

/* ---- The gradient of the weights --------------------------------------------------------- */

enum {
    DEPTH   = 256,                  /* words of pixels at a time: 512 pixels */
    COLUMNS = LKI_GEMM_COLUMNS_MAX, /* columns of windows at a time */
    ROWS    = 384,                  /* the maximum output channels of a task */
    FEW     = 16,                   /* the minimum output channels of a part of several */
    BATCH   = 16,                   /* the maximum parts whose sums are added in a near cache */
    SLOTS   = 5,                    /* log2(BATCH) + 1 */

    /* offsets in a thread's buffer: transposed dy, windows, packed windows, and slots */
    WINDOWS_AT = (ROWS + LKI_GEMM_ROWS_MAX) * DEPTH,
    PACKED_AT  = WINDOWS_AT + DEPTH * COLUMNS,
    SLOTS_AT   = PACKED_AT + DEPTH * COLUMNS,
};
_Static_assert(SLOTS_AT + SLOTS * ROWS * COLUMNS <= LKI_EXEC_PRIVATE,
               "a thread's buffer has room");

/* A task computes some output channels, some taps and some input channels of dw.  Tasks share no
 * packed operands, because reading from another core's cache is slow. */
typedef struct {
    lk_exec              *exec;
    const lki_kernels    *kernels;
    const lki_conv_shape *shape;
    const uint16_t       *x, *dy;
    const lki_parts      *parts;
    uint32_t              batch; /* parts that are computed together */
    float                *dw, *by_taps, *slots;
    bool                  add;
    size_t                down, taps, across; /* parts of output channels, taps, input channels */
} gradient;

typedef struct { size_t first, count; } part;

static part part_of(size_t count, size_t parts, size_t index)
{
    size_t first = count * index / parts;
    return (part){ first, count * (index + 1) / parts - first };
}

/* The part of a task, and its values of dw by taps: rows of `columns` floats, `row` floats apart,
 * which are the columns from `first_column` on of the windows of its input channels. `at` is the
 * offset of the values in a slot, the first of which is dw if there is a single tap. */
typedef struct {
    part        co, taps, ci;
    size_t      first_column, columns;
    float      *c;
    size_t      row, at;
    lki_windows windows;
} share;

static share share_of(const gradient *g, size_t index)
{
    const lki_conv_shape *s   = g->shape;
    size_t                all = s->kh * s->kw, rest = index / g->across;
    share own = { .ci = part_of(s->cin, g->across, index % g->across),
                  .taps = part_of(all, g->taps, rest % g->taps),
                  .co = part_of(s->cout, g->down, rest / g->taps) };
    own.first_column = own.taps.first * own.ci.count;
    own.columns      = own.taps.count * own.ci.count;
    own.row          = all == 1 ? s->cin : own.columns;
    own.at           = all == 1 ? own.co.first * s->cin + own.ci.first
                                : own.co.first * s->cin * all +
                          own.co.count * (own.ci.first * all + own.first_column);
    own.c            = (all == 1 ? g->dw : g->by_taps) + own.at;
    own.windows          = windows_of(s, g->x + own.ci.first);
    own.windows.channels = own.ci.count;
    return own;
}

/* Returns the task's values in slot `slot` of dw. */
static float *slot_of(const gradient *g, const share *own, uint32_t slot)
{
    return slot == 0 ? own->c : g->slots + (slot - 1) * weights_of(g->shape) + own->at;
}

static size_t first_pixel(const gradient *g, uint32_t index)
{
    size_t samples = index > 0 ? g->parts->ends[index - 1] : 0;
    return samples * g->shape->oh * g->shape->ow;
}

/* Packs dy of `pixels` pixels from `first` on.  Returns the words of a row. */
static size_t pack_dy(const gradient *g, const share *own, size_t first, size_t pixels, float *to)
{
    const lki_gemm_kernels *k    = g->kernels->bf16->gemm;
    size_t                  cout = g->shape->cout;
    k->pack_a(true, own->co.count, pixels, g->dy + first * cout + own->co.first, cout, to);
    return lki_gemm_words(k, 2, pixels);
}

/* Computes columns j .. j + n - 1 of the product of packed dy with the windows of `pixels` pixels
 * from `first` on. */
static void multiply_windows(const gradient *g, const share *own, size_t first, size_t pixels,
                             size_t j, lki_gemm_block *block, float *buffer)
{
    const lki_gemm_kernels *k     = g->kernels->bf16->gemm;
    size_t                  words = lki_gemm_words(k, 2, pixels);
    void                   *rows  = buffer + WINDOWS_AT;
    k->pack_window_columns(&own->windows, first, pixels, own->first_column + j, block->n, rows,
                           buffer + PACKED_AT);
    block->m          = own->co.count;
    block->k          = words;
    block->row_stride = words;
    block->b          = buffer + PACKED_AT;
    block->b_row      = k->columns;
    block->b_panel    = words * k->columns;
    k->block(block);
}

/* Computes the sum of a single part. */
static void add_part(const gradient *g, const share *own, uint32_t index, float *c, float *buffer)
{
    const lki_gemm_kernels *k   = g->kernels->bf16->gemm;
    size_t                  end = first_pixel(g, index + 1), first = first_pixel(g, index), pixels;
    bool                    zero = !g->add;
    do { /* runs at least once, because the sum must be written even if the part is empty */
        pixels = lki_min(2 * DEPTH, end - first);
        (void)pack_dy(g, own, first, pixels, buffer);
        for (size_t j = 0; j < own->columns; j += k->columns) {
            lki_gemm_block block = { .n = lki_min(k->columns, own->columns - j), .a = buffer,
                                     .c = c + j, .ldc = own->row, .from_zero = zero };
            multiply_windows(g, own, first, pixels, j, &block, buffer);
        }
        zero = false;
        first += pixels;
    } while (first < end);
}

/* Adds `rows` rows of `columns` values. */
static void add_rows(const gradient *g, size_t rows, size_t columns, const float *left, size_t ldl,
                     const float *right, size_t ldr, float *to, size_t ldt)
{
    for (size_t i = 0; i < rows; i++)
        g->kernels->elementwise->add(LK_F32, columns, left + i * ldl, right + i * ldr,
                                     to + i * ldt);
}

/* Merges the sum of part `index` of a batch, in the last slot in use, with those of earlier parts.
 * The root of the tree is written to c. */
static void merge_panel(const gradient *g, const share *own, uint32_t index, size_t n,
                        float *slots, float *c)
{
    size_t   each = own->co.count * COLUMNS;
    uint32_t slot = lki_part_slot(index);
    for (uint32_t i = 0; i < lki_part_merges(index); i++) {
        float *left = slots + --slot * each;
        bool   root = index + 1 == g->batch && slot == 0;
        add_rows(g, own->co.count, n, left, COLUMNS, left + each, COLUMNS, root ? c : left,
                 root ? own->row : COLUMNS);
    }
}

/* Computes the sum of the batch of parts from `first` on, a panel of columns at a time. */
static void add_batch(const gradient *g, const share *own, uint32_t first, float *c, float *buffer)
{
    const lki_gemm_kernels *k     = g->kernels->bf16->gemm;
    float                  *slots = buffer + SLOTS_AT, *a[BATCH], *to = buffer;
    for (uint32_t i = 0; i < g->batch; i++) {
        size_t at = first_pixel(g, first + i);
        a[i] = to;
        to += own->co.count * pack_dy(g, own, at, first_pixel(g, first + i + 1) - at, to);
    }
    for (size_t j = 0; j < own->columns; j += k->columns)
        for (uint32_t i = 0; i < g->batch; i++) {
            size_t at = first_pixel(g, first + i);
            lki_gemm_block block = { .n = lki_min(k->columns, own->columns - j), .a = a[i],
                                     .c = slots + lki_part_slot(i) * own->co.count * COLUMNS,
                                     .ldc = COLUMNS, .from_zero = true };
            multiply_windows(g, own, at, first_pixel(g, first + i + 1) - at, j, &block, buffer);
            merge_panel(g, own, i, block.n, slots, c + j);
        }
}

/* Computes the task's sums of all parts, and merges them in slot 0. */
static void add_parts(const gradient *g, const share *own, float *buffer)
{
    for (uint32_t i = 0; i < g->parts->count / g->batch; i++) {
        uint32_t slot = lki_part_slot(i);
        if (g->batch == 1)
            add_part(g, own, i, slot_of(g, own, slot), buffer);
        else
            add_batch(g, own, i * g->batch, slot_of(g, own, slot), buffer);
        for (uint32_t k = 0; k < lki_part_merges(i); k++) {
            float *right = slot_of(g, own, slot), *left = slot_of(g, own, --slot);
            add_rows(g, own->co.count, own->columns, left, own->row, right, own->row, left,
                     own->row);
        }
    }
}

/* Copies the task's values from dw, or to it. */
static void reorder(const gradient *g, const share *own, bool restores)
{
    size_t all = g->shape->kh * g->shape->kw, row = g->shape->cin * all;
    float *dw  = g->dw + own->co.first * row + own->ci.first * all + own->taps.first, *c = own->c;
    void (*turn)(size_t, size_t, const float *, size_t, float *, size_t) =
        g->kernels->gemm_ends->turn;
    for (size_t i = 0; i < own->co.count; i++, dw += row, c += own->row)
        if (restores)
            turn(own->taps.count, own->ci.count, c, own->ci.count, dw, all);
        else
            turn(own->ci.count, own->taps.count, dw, all, c, own->ci.count);
}

static void gradient_task(void *context, size_t index, uint32_t thread)
{
    const gradient *g       = context;
    share           own     = share_of(g, index);
    bool            by_taps = g->shape->kh * g->shape->kw > 1;
    if (by_taps && g->add)
        reorder(g, &own, false);
    add_parts(g, &own, lki_exec_private(g->exec, thread));
    if (by_taps)
        reorder(g, &own, true);
}

/* Divides dw into parts: the input channels as long as panels are full, then taps, and then output
 * channels, for which windows are packed more than once. */
static void divide(gradient *g)
{
    const lki_conv_shape *s       = g->shape;
    size_t                threads = lk_exec_threads(g->exec), all = s->kh * s->kw;
    g->across = lki_max(1, lki_min(threads, s->cin / COLUMNS));
    g->taps   = lki_min(all, (threads + g->across - 1) / g->across);
    g->down   = (s->cout + ROWS - 1) / ROWS;
    while (g->across * g->taps * g->down < threads && s->cout / (g->down + 1) >= FEW)
        g->down++;
}

/* Returns the number of parts whose dy, packed, fits into a thread's buffer: a power of two. */
static uint32_t batch_of(const gradient *g)
{
    const lki_gemm_kernels *k     = g->kernels->bf16->gemm;
    size_t                  words = 0;
    for (uint32_t i = 0; i < g->parts->count; i++)
        words = lki_max(words, lki_gemm_words(k, 2, first_pixel(g, i + 1) - first_pixel(g, i)));
    uint32_t batch = 1;
    while (2 * batch <= lki_min(BATCH, g->parts->count) && 2 * batch * words <= DEPTH)
        batch *= 2;
    return batch;
}

void lki_conv_bf16_backward_weights(lk_exec *exec, const lki_conv_shape *shape, const uint16_t *x,
                                    const uint16_t *dy, float *dw, bool add,
                                    const lki_parts *parts, void *scratch)
{
    lki_parts one = { 1, &shape->n };
    gradient  g   = { .exec = exec, .kernels = lki_exec_kernels(exec), .shape = shape, .x = x,
                      .dy = dy, .parts = parts != NULL ? parts : &one, .dw = dw,
                      .by_taps = scratch, .add = add };
    LK_ASSERT(parts == NULL || (!add && parts->ends[parts->count - 1] == shape->n));
    g.slots = shape->kh * shape->kw == 1 ? g.by_taps : g.by_taps + weights_of(shape);
    g.batch = batch_of(&g);
    divide(&g);
    lki_exec_run(exec, g.across * g.taps * g.down, gradient_task, &g);
}

/* ---- Memory ------------------------------------------------------------------------------ */

size_t lki_conv_bf16_scratch_bytes(const lk_exec *exec, const lki_conv_shape *shape,
                                   uint32_t parts)
{
    const lki_conv_shape *s     = shape;
    uint32_t              slots = lki_part_slots(parts);
    (void)exec;
    return lki_max(lki_conv_is_product(s) ? 0 : rounded_bytes(s),
                   (s->kh * s->kw == 1 ? slots - 1 : slots) * weights_of(s) * sizeof(float));
}
