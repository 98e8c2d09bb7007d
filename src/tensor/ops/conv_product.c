/* conv_product.c -- convolutions with one tap, which are matrix products.
 *
 * With a 1 x 1 kernel, stride 1 and no padding, the pixels of all samples are the rows of a matrix
 * (pixel, channels), and the weights are a matrix (cout, cin):
 *
 *      forward    y  (pixel, cout) = x (pixel, cin)            times  transposed weights
 *      input      dx (pixel, cin)  = dy (pixel, cout)          times  weights
 *      weights    dw (cout, cin)   = transposed dy (cout, pixel)   times  x
 *
 * The sums of lki_gemm() have the order that convolutions have, so the bits are the same.  Products
 * pack what conv.c and conv_weights.c read in place, and copy no windows, so they are faster if the
 * operands do not stay in the caches; for y and dx always.  With a larger stride only dw is a
 * product, with the pixels of x that are used copied to scratch memory.
 */
#include <string.h>

#include "tensor/ops/conv.h"
#include "tensor/isa/kernels.h"

enum {
    CHANNELS_MIN = 32,       /* of both sides; fewer are rare, and were not compared */
    /* Minimums for dw: the channels of one side, and then either the weights, or the values of x
     * and dy, 8 MiB.  With fewer, dw takes up to 2.1 of the time of conv_weights.c. */
    CHANNELS_MANY = 256,
    WEIGHTS_MANY  = 1 << 18,
    VALUES_MANY   = 1 << 21,
    /* rows and columns of dw that lki_gemm() gives to a thread at least */
    TILE_ROWS    = 56,
    TILE_COLUMNS = 64,
};

static bool has_one_tap(const lki_conv_shape *s)
{
    return s->kh == 1 && s->kw == 1 && s->pad == 0 && lki_min(s->cin, s->cout) >= CHANNELS_MIN;
}

bool lki_conv_is_product(const lki_conv_shape *s)
{
    return has_one_tap(s) && s->stride == 1;
}

static size_t pixels_of(const lki_conv_shape *s)
{
    return s->n * s->oh * s->ow;
}

/* Returns the product that computes y, or dx if `backward` is true, without its operands. */
static lki_gemm_args product_of(const lki_conv_shape *s, lk_dtype dtype, bool backward)
{
    return (lki_gemm_args){ .operands    = dtype,
                            .result      = dtype,
                            .wide_b      = dtype == LK_BF16,
                            .transpose_b = !backward,
                            .m           = pixels_of(s),
                            .n           = backward ? s->cin : s->cout,
                            .k           = backward ? s->cout : s->cin };
}

size_t lki_conv_product_pack_bytes(const lk_exec *exec, const lki_conv_shape *s, bool backward)
{
    lki_gemm_args gemm = product_of(s, LK_F32, backward);
    return lki_gemm_pack_bytes(exec, &gemm);
}

void lki_conv_product(lk_exec *exec, const lki_conv_shape *s, lk_dtype dtype, const void *x,
                      const float *w, void *y, const lk_pack *pack)
{
    lki_gemm_args gemm = product_of(s, dtype, false);
    gemm.a    = x;
    gemm.b    = w;
    gemm.c    = y;
    gemm.pack = pack;
    lki_gemm(exec, &gemm);
}

/* A product adds dx at the end of its sums.  In FP32 it would store longer ones in dx before. */
bool lki_conv_input_is_product(const lki_conv_shape *s, lk_dtype dtype, bool add)
{
    return lki_conv_is_product(s) && (!add || dtype == LK_BF16 || s->cout <= LKI_GEMM_K);
}

void lki_conv_product_input(lk_exec *exec, const lki_conv_shape *s, lk_dtype dtype, const void *dy,
                            const float *w, void *dx, bool add, const lk_pack *pack)
{
    lki_gemm_args gemm = product_of(s, dtype, true);
    gemm.a        = dy;
    gemm.b        = w;
    gemm.c        = dx;
    gemm.residual = add ? dx : NULL;
    gemm.pack     = pack;
    lki_gemm(exec, &gemm);
}

/* ---- The gradient of the weights, in FP32 ------------------------------------------------ */

bool lki_conv_weights_are_product(const lk_exec *exec, const lki_conv_shape *s)
{
    size_t tiles = (s->cout / TILE_ROWS) * (s->cin / TILE_COLUMNS);
    return has_one_tap(s) && lki_max(s->cin, s->cout) >= CHANNELS_MANY &&
           tiles >= lk_exec_threads(exec) &&
           (s->cin * s->cout >= WEIGHTS_MANY || pixels_of(s) * (s->cin + s->cout) >= VALUES_MANY);
}

size_t lki_conv_product_weights_bytes(const lki_conv_shape *s)
{
    return has_one_tap(s) && s->stride != 1 ? pixels_of(s) * s->cin * sizeof(float) : 0;
}

/* The pixels of x that a larger stride uses. */
typedef struct {
    const lki_conv_shape *shape;
    const float          *from;
    float                *to;
} used_pixels;

/* Copies those of a row of outputs. */
static void copy_row_task(void *context, size_t row, uint32_t thread)
{
    const used_pixels    *u = context;
    const lki_conv_shape *s = u->shape;
    const float *from = u->from + (row / s->oh * s->h + row % s->oh * s->stride) * s->w * s->cin;
    float       *to   = u->to + row * s->ow * s->cin;
    (void)thread;
    for (size_t i = 0; i < s->ow; i++)
        memcpy(to + i * s->cin, from + i * s->stride * s->cin, s->cin * sizeof *to);
}

void lki_conv_product_weights(lk_exec *exec, const lki_conv_shape *s, const float *x,
                              const float *dy, float *dw, bool add, const lki_parts *parts,
                              void *scratch)
{
    lki_gemm_args gemm = { .transpose_a = true, .accumulate = add, .m = s->cout, .n = s->cin,
                           .k = pixels_of(s), .a = dy, .b = x, .c = dw };
    size_t        ends[LKI_PARTS_MAX];
    if (s->stride != 1) {
        lki_exec_run(exec, s->n * s->oh, copy_row_task, &(used_pixels){ s, x, scratch });
        gemm.b = scratch;
    }
    if (parts == NULL) {
        lki_gemm(exec, &gemm);
        return;
    }
    for (uint32_t i = 0; i < parts->count; i++)
        ends[i] = parts->ends[i] * s->oh * s->ow;
    lki_gemm_parts(exec, &gemm, &(lki_parts){ .count = parts->count, .ends = ends });
}
