/* tensor/ops/conv_testing.h -- shapes, and the definition of convolution, for its tests. */
#ifndef LKI_TENSOR_OPS_CONV_TESTING_H
#define LKI_TENSOR_OPS_CONV_TESTING_H

#include "tensor/ops/conv.h"
#include "tensor/ops/nn_testing.h"

/* n, h, w, cin, cout, kh, kw, stride, pad.  The first shapes are odd sizes and shapes of real
 * networks.  Then follow kernels larger than the image, strides larger than the kernel, shapes that
 * exceed a task's buffers, and matrix products: the third has sums that dx must not hold, and of
 * the last two dw is a product, too.  The last four have multiples of 16 channels and of 4 columns,
 * with padding in a part of four windows or in all of them. */
static const lki_conv_shape shapes[] = {
    { 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0 },    { 2, 5, 6, 3, 16, 3, 3, 1, 1, 0, 0 },
    { 1, 9, 7, 16, 33, 3, 3, 1, 1, 0, 0 },  { 3, 8, 8, 20, 17, 3, 3, 2, 1, 0, 0 },
    { 2, 7, 9, 5, 40, 1, 1, 2, 0, 0, 0 },   { 2, 4, 4, 32, 16, 1, 1, 1, 0, 0, 0 },
    { 1, 13, 14, 3, 18, 7, 7, 2, 3, 0, 0 }, { 2, 6, 5, 2, 70, 2, 3, 3, 1, 0, 0 },
    { 1, 11, 12, 4, 5, 5, 5, 1, 0, 0, 0 },  { 3, 2, 2, 48, 64, 3, 3, 1, 1, 0, 0 },
    { 2, 2, 3, 5, 6, 5, 5, 1, 2, 0, 0 },    { 1, 10, 9, 3, 4, 2, 2, 4, 1, 0, 0 },
    { 9, 4, 4, 29, 80, 3, 3, 1, 1, 0, 0 },  { 2, 1, 700, 4, 18, 1, 3, 2, 0, 0, 0 },
    { 3, 64, 64, 30, 34, 1, 1, 1, 0, 0, 0 }, { 1, 2, 2500, 14, 16, 3, 3, 1, 1, 0, 0 },
    { 1, 20, 3, 2, 5, 17, 2, 1, 1, 0, 0 },   { 1, 3, 3000, 32, 4, 3, 3, 24, 1, 0, 0 },
    { 2, 11, 10, 3, 2, 7, 7, 2, 3, 0, 0 },   { 3, 20, 20, 32, 96, 1, 1, 1, 0, 0, 0 },
    { 3, 9, 8, 64, 33, 1, 1, 2, 0, 0, 0 },   { 2, 3, 7, 36, 500, 1, 1, 1, 0, 0, 0 },
    { 1, 2, 3, 520, 512, 1, 1, 1, 0, 0, 0 }, { 2, 3, 4, 530, 500, 1, 1, 2, 0, 0, 0 },
    { 3, 16, 16, 16, 4, 3, 3, 1, 1, 0, 0 },  { 2, 9, 16, 48, 5, 3, 3, 2, 1, 0, 0 },
    { 1, 6, 12, 32, 7, 5, 5, 1, 2, 0, 0 },   { 3, 4, 4, 16, 3, 9, 11, 1, 5, 0, 0 },
};

enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct { size_t x, w, y; } counts;

static inline lki_conv_shape shape_at(size_t i)
{
    lki_conv_shape s = shapes[i];
    s.oh = (s.h + 2 * s.pad - s.kh) / s.stride + 1;
    s.ow = (s.w + 2 * s.pad - s.kw) / s.stride + 1;
    return s;
}

static inline counts counts_of(const lki_conv_shape *s)
{
    return (counts){ s->n * s->h * s->w * s->cin, s->cout * s->cin * s->kh * s->kw,
                     s->n * s->oh * s->ow * s->cout };
}

/* A pack for one of four ways of testing.  In way 0 the product has no pack, and this struct is
 * reset.  In way 1 the product fills the pack, in way 2 the pack is full, and in way 3 another
 * thread is filling it. */
typedef struct {
    lk_pack        pack;
    lki_pack_state state;
} conv_pack;

/* Returns the number of ways to test: all four on one exec of each instruction set, and only way 0
 * on all other execs. */
static inline int pack_ways(const lk_exec *exec)
{
    return lk_exec_threads(exec) == 3 ? 4 : 1;
}

/* The product that a pack is for. */
typedef enum { FORWARD, BACKWARD, BACKWARD_ADDED } pass;

/* Returns the layout of a pack. */
static inline uint32_t layout_of(const lk_exec *exec, const lki_conv_shape *s, lk_dtype dtype,
                                 pass which)
{
    bool product = which == FORWARD
                       ? lki_conv_is_product(s)
                       : lki_conv_input_is_product(s, dtype, which == BACKWARD_ADDED);
    return dtype == LK_BF16 || product
               ? lki_gemm_pack_layout(exec, &(lki_gemm_args){ .operands = dtype }) : 0;
}

static inline const lk_pack *pack_of(conv_pack *p, const lk_exec *exec, const lki_conv_shape *s,
                                     lk_dtype dtype, pass which, int way)
{
    size_t   bytes  = lki_conv_pack_bytes(exec, s, dtype, which != FORWARD);
    uint32_t layout = layout_of(exec, s, dtype, which);
    if (way == 0)
        *p = (conv_pack){ .pack = { .version = 3 } };
    if (way == 0 || bytes == 0)
        return NULL;
    if (way == 1)
        p->pack.data = nn_bytes(bytes);
    if (way == 2)
        assert_int_equal(p->state, lki_pack_filling(&p->pack, layout) + 1);
    else
        p->state = way == 1 ? 1 : lki_pack_filling(&p->pack, layout);
    if (way != 2)
        memset(p->pack.data, 0xff, bytes);
    p->pack.state = &p->state;
    return &p->pack;
}

typedef struct { const lki_conv_shape *s; double *x, *w, *dy; } exact;

/* Computes the loss by scattering instead of gathering: every input value is added, through every
 * tap, to its outputs. */
static inline double exact_loss(const void *context)
{
    const exact          *e = context;
    const lki_conv_shape *s = e->s;
    double loss = 0;
    for (size_t i = 0; i < s->n * s->h * s->w * s->cin; i++) {
        size_t ci = i % s->cin, ix = i / s->cin % s->w, iy = i / s->cin / s->w % s->h;
        for (size_t k = 0; k < s->cout * s->kh * s->kw; k++) {
            size_t kx = k % s->kw, ky = k / s->kw % s->kh, co = k / s->kw / s->kh;
            size_t y = iy + s->pad - ky, x = ix + s->pad - kx;
            if (iy + s->pad < ky || ix + s->pad < kx || y % s->stride != 0 || x % s->stride != 0)
                continue;
            if (y / s->stride >= s->oh || x / s->stride >= s->ow)
                continue;
            size_t sample = i / s->cin / s->w / s->h;
            size_t out = (sample * s->oh + y / s->stride) * s->ow + x / s->stride;
            loss += e->x[i] * e->w[((co * s->cin + ci) * s->kh + ky) * s->kw + kx] *
                    e->dy[out * s->cout + co];
        }
    }
    return loss;
}

#endif
