/* conv_weights_bf16.c -- the gradient of a convolution's weights, from bf16 values.
 *
 * As conv_weights.c, on words of two pixels.  A round of samples begins with making them: of dy the
 * pairs of neighbours that begin at even places; of x every pixel with the one a stride further,
 * zeros beside the image, in panels of the channels that a task has.  So a tap's pairs are words
 * from its own column on, and every task reads whole lines.
 *
 * Kernels of 1 x 1 are a plain product of transposed dy and x.
 *
 * Order:   every element of dw is one chain from what dw holds over (sample, oy, pair), of the
 *          pairs of which the tap meets a pixel.
 * Cost:    2 cin cout operations a pixel and tap, and words of x and dy made once: 4 bytes a value.
 */
#include <string.h>

#include "tensor/ops/conv.h"

enum {
    LANES        = LKI_CONV_LANES,
    PAIRS        = 128, /* of dy at a time: 16 KiB of 32 channels, and as much of x */
    COLUMNS      = 32,
    COLUMNS_WIDE = 64,  /* for panels of few input channels */
    WIDE_ROWS    = 6,   /* that are few: 6 x 4 vectors of sums */
    TASKS_MIN    = 8,   /* else rows of taps are tasks of their own */
    ROUND_WORDS  = 1 << 19, /* of x and dy: near enough for every task to read them again */
};

typedef struct {
    const lki_conv_bf16_kernels *kernels;
    const lki_conv_shape        *shape;
    const uint16_t              *x, *dy;
    lki_conv_dw                  to;
    size_t                       width, pairs;    /* words of a pair of dy; pairs of a row */
    size_t                       entries;         /* words of a row and channel of x */
    size_t                       panels, columns; /* panels of x; columns of a task */
    size_t                       groups, taps;    /* groups of columns; rows of taps of a task */
    size_t                       first, last;     /* samples of this round */
    float                       *x_words, *dy_words;
} gradient;

static size_t blocks_of(size_t count, size_t size)
{
    return (count + size - 1) / size;
}

/* ---- Sizes ------------------------------------------------------------------------------- */

static size_t entries_of(const lki_conv_shape *s)
{
    return (blocks_of(s->ow, 2) - 1) * 2 * s->stride + s->kw;
}

static size_t sample_words(const lki_conv_shape *s)
{
    size_t width = lki_round_up(s->cout, LANES);
    return s->h * entries_of(s) * s->cin + s->oh * blocks_of(s->ow, 2) * width;
}

static size_t round_samples(const lki_conv_shape *s)
{
    return lki_min(s->n, lki_max(1, ROUND_WORDS / sample_words(s)));
}

static bool is_plain(const lki_conv_shape *s)
{
    return s->kh == 1 && s->kw == 1 && s->pad == 0;
}

size_t lki_conv_weights_bf16_bytes(const lki_conv_shape *s)
{
    if (is_plain(s))
        return s->stride == 1 ? 0 : s->n * s->oh * s->ow * s->cin * sizeof(uint16_t);
    return lki_conv_wave_bytes(s->kh * s->kw * s->cin, lki_round_up(s->cout, LANES)) +
           (round_samples(s) * sample_words(s) + LANES) * sizeof(float);
}

/* ---- 1 x 1 ------------------------------------------------------------------------------- */

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

/* ---- Words ------------------------------------------------------------------------------- */

/* Input channels of a panel: as equal in number as can be. */
typedef struct { size_t first, count; } channels;

static channels channels_of(const gradient *g, size_t panel)
{
    size_t each = g->shape->cin / g->panels, longer = g->shape->cin % g->panels;
    return (channels){ panel * each + lki_min(panel, longer), each + (panel < longer) };
}

/* Where a panel's words begin: (samples, h, entries, channels). */
static float *panel_words(const gradient *g, channels c)
{
    return g->x_words + c.first * (g->last - g->first) * g->shape->h * g->entries;
}

static void zip_x(const gradient *g, size_t row)
{
    const lki_conv_shape *s = g->shape;
    for (size_t panel = 0; panel < g->panels; panel++) {
        channels c = channels_of(g, panel);
        g->kernels->zip_pixels(&(lki_pixel_zip){
            .entries = g->entries, .step = 1, .pad = s->pad, .apart = s->stride,
            .pixels = s->w, .channels = c.count, .stride = s->cin,
            .from = g->x + (g->first * s->h + row) * s->w * s->cin + c.first,
            .pitch = c.count, .lanes = c.count,
            .to = panel_words(g, c) + row * g->entries * c.count,
        });
    }
}

static void zip_dy(const gradient *g, size_t row)
{
    const lki_conv_shape *s = g->shape;
    for (size_t c = 0; c < s->cout; c += LANES)
        g->kernels->zip_pixels(&(lki_pixel_zip){
            .entries = g->pairs, .step = 2, .apart = 1,
            .pixels = s->ow, .channels = lki_min(LANES, s->cout - c), .stride = s->cout,
            .from = g->dy + (g->first * s->oh + row) * s->ow * s->cout + c,
            .pitch = g->width, .lanes = LANES,
            .to = g->dy_words + row * g->pairs * g->width + c,
        });
}

/* Rows of x, then rows of dy. */
static void zip_task(void *context, size_t index, uint32_t thread)
{
    const gradient *g    = context;
    size_t          rows = (g->last - g->first) * g->shape->h;
    (void)thread;
    if (index < rows)
        zip_x(g, index);
    else
        zip_dy(g, index - rows);
}

/* ---- Tiles ------------------------------------------------------------------------------- */

/* Samples (of the round) and rows of dy that are taken together. */
typedef struct { size_t sample, samples, oy, rows; } slab;

/* Positions low .. high - 1 of `count` that meet a pixel of 0 .. size - 1 through tap `tap`. */
typedef struct { size_t low, high; } span;

static span span_of(size_t tap, size_t count, size_t stride, size_t pad, size_t size)
{
    span a = { .low = tap < pad ? blocks_of(pad - tap, stride) : 0 };
    a.high = size + pad > tap ? lki_min(count, (size + pad - tap - 1) / stride + 1) : 0;
    return a;
}

/* One tap's tile, over the pairs of the slab that it meets. */
static void tap_run(const gradient *g, const slab *b, size_t ky, size_t kx, channels c,
                    size_t column, lki_conv_outer *t)
{
    const lki_conv_shape *s = g->shape;
    span   y = span_of(ky, s->oh, s->stride, s->pad, s->h);
    span   x = span_of(kx, s->ow, s->stride, s->pad, s->w);
    size_t first = lki_max(y.low, b->oy), last = lki_min(y.high, b->oy + b->rows);
    if (first >= last || x.low >= x.high)
        return;
    size_t iy = first * s->stride + ky - s->pad, pair = x.low / 2;
    size_t entry = pair * 2 * s->stride + kx, row = g->entries * c.count;

    t->sets   = b->samples;
    t->runs   = last - first;
    t->run    = blocks_of(x.high, 2) - pair;
    t->a      = panel_words(g, c) + (b->sample * s->h + iy) * row + entry * c.count;
    t->a_set  = s->h * row;
    t->a_run  = s->stride * row;
    t->a_step = 2 * s->stride * c.count;
    t->b      = g->dy_words + ((b->sample * s->oh + first) * g->pairs + pair) * g->width +
           g->to.first + column;
    t->b_set  = s->oh * g->pairs * g->width;
    t->b_run  = g->pairs * g->width;
    t->b_step = g->width;
    t->c      = g->to.matrix + ((ky * s->kw + kx) * s->cin + c.first) * g->to.columns + column;
    g->kernels->outer(t);
}

static void gradient_task(void *context, size_t index, uint32_t thread)
{
    const gradient       *g = context;
    const lki_conv_shape *s = g->shape;
    channels c      = channels_of(g, index % g->panels);
    size_t   column = index / g->panels % g->groups * g->columns;
    size_t   from = index / g->panels / g->groups * g->taps, to = from + g->taps;
    size_t   rows = lki_max(1, lki_min(s->oh, PAIRS / g->pairs)), count = g->last - g->first;
    size_t   samples = rows < s->oh ? 1 : lki_max(1, PAIRS / (s->oh * g->pairs));
    lki_conv_outer t = { .rows    = c.count,
                         .columns = lki_min(g->columns, g->to.columns - column),
                         .ldc     = g->to.columns };
    (void)thread;
    for (size_t sample = 0; sample < count; sample += samples)
        for (size_t oy = 0; oy < s->oh; oy += rows) {
            slab b = { sample, lki_min(samples, count - sample), oy, lki_min(rows, s->oh - oy) };
            for (size_t ky = from; ky < to; ky++)
                for (size_t kx = 0; kx < s->kw; kx++)
                    tap_run(g, &b, ky, kx, c, column, &t);
        }
}

/* A wave of dw, by rounds of samples. */
static void wave_run(lk_exec *exec, gradient *g)
{
    const lki_conv_shape *s     = g->shape;
    size_t                batch = round_samples(s);

    g->groups = blocks_of(g->to.columns, g->columns);
    g->taps   = g->panels * g->groups < TASKS_MIN ? 1 : s->kh;
    lki_conv_reorder(exec, &g->to);
    for (g->first = 0; g->first < s->n; g->first = g->last) {
        g->last     = lki_min(s->n, g->first + batch);
        g->dy_words = g->x_words + (g->last - g->first) * s->h * g->entries * s->cin;
        lki_exec_run(exec, (g->last - g->first) * (s->h + s->oh), zip_task, g);
        lki_exec_run(exec, g->panels * g->groups * (s->kh / g->taps), gradient_task, g);
    }
    lki_conv_restore(exec, &g->to);
}

void lki_conv_bf16_backward_weights(lk_exec *exec, const lki_conv_shape *shape, const uint16_t *x,
                                    const uint16_t *dy, float *dw, void *scratch)
{
    const lki_conv_shape *s     = shape;
    size_t                depth = s->kh * s->kw * s->cin, width = lki_round_up(s->cout, LANES);
    if (is_plain(s)) {
        plain_product(exec, s, x, dy, dw, scratch);
        return;
    }
    gradient g = {
        .kernels = lki_exec_kernels(exec)->bf16->conv,
        .shape   = s,
        .x       = x,
        .dy      = dy,
        .to      = { .shape = s, .dw = dw, .matrix = scratch },
        .width   = width,
        .pairs   = blocks_of(s->ow, 2),
        .entries = entries_of(s),
        .x_words = (float *)scratch + lki_conv_wave_bytes(depth, width) / sizeof(float),
    };
    g.panels    = blocks_of(s->cin, g.kernels->outer_rows);
    g.columns   = blocks_of(s->cin, g.panels) <= WIDE_ROWS ? COLUMNS_WIDE : COLUMNS;
    size_t wave = lki_conv_wave(depth, width, g.columns);
    for (; g.to.first < width; g.to.first += g.to.columns) {
        g.to.columns = lki_min(wave, width - g.to.first);
        wave_run(exec, &g);
    }
}
