/* module.c -- matrix products and convolutions by oneDNN's primitives.
 *
 * A primitive is for one shape.  PLANS primitives of each kind are cached, and a new one replaces
 * the oldest.  For convolutions oneDNN chooses the layout of the weights.  Lockstep's weights are
 * converted to this layout and back.
 */
#include "tensor/onednn/module.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLANS = 256 };

/* Declared here because the header of OpenMP, which oneDNN uses, is specific to a compiler. */
extern void omp_set_num_threads(int threads);

typedef struct {
    lki_onednn_shape shape;
    dnnl_primitive_t primitive;
    dnnl_memory_t    a, b, c;
} plan;

/* Memory in the primitive's format, or separate memory for a result that is then added to a result
 * of Lockstep. */
typedef struct {
    dnnl_primitive_t move; /* NULL: no conversion is needed */
    dnnl_memory_t    memory;
} inner;

typedef struct {
    lki_onednn_conv  conv;
    dnnl_primitive_t primitive;
    dnnl_memory_t    x, w, y; /* memories in Lockstep's format */
    inner            weights, dx;
} conv_plan;

struct lki_onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    uint32_t      threads;
    plan          plans[PLANS];
    size_t        used, next; /* number of plans; index of the next plan */
    conv_plan     convs[PLANS];
    size_t        convs_used, convs_next;
    char          identity[96], text[160];
};

static const char *fail(lki_onednn *library, const char *call, dnnl_status_t status)
{
    (void)snprintf(library->text, sizeof library->text, "%s: oneDNN says %d", call, (int)status);
    return library->text;
}

/* ---- Life -------------------------------------------------------------------------------- */

static const char *isa_name(void)
{
    static const struct {
        dnnl_cpu_isa_t isa;
        const char    *name;
    } names[] = {
        { dnnl_cpu_isa_avx2, "avx2" },
        { dnnl_cpu_isa_avx2_vnni, "avx2_vnni" },
        { dnnl_cpu_isa_avx512_core, "avx512_core" },
        { dnnl_cpu_isa_avx512_core_vnni, "avx512_core_vnni" },
        { dnnl_cpu_isa_avx512_core_bf16, "avx512_core_bf16" },
        { dnnl_cpu_isa_avx512_core_amx, "avx512_core_amx" },
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (dnnl_get_effective_cpu_isa() == names[i].isa)
            return names[i].name;
    return "another isa";
}

static void module_close(lki_onednn *library);

static const char *module_open(lki_onednn **out, uint32_t threads)
{
    lki_onednn *library = calloc(1, sizeof *library);

    *out = NULL;
    if (library == NULL)
        return "no memory";
    library->threads = threads;
    if (dnnl_engine_create(&library->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&library->stream, library->engine, dnnl_stream_default_flags) !=
            dnnl_success) {
        module_close(library);
        return "oneDNN has no engine for this processor";
    }
    const dnnl_version_t *version = dnnl_version();
    (void)snprintf(library->identity, sizeof library->identity, "%d.%d.%d, %s, %u threads",
                   version->major, version->minor, version->patch, isa_name(), threads);
    *out = library;
    return NULL;
}

static const char *module_identity(const lki_onednn *library)
{
    return library->identity;
}

static void drop(plan *p)
{
    (void)dnnl_primitive_destroy(p->primitive);
    (void)dnnl_memory_destroy(p->a);
    (void)dnnl_memory_destroy(p->b);
    (void)dnnl_memory_destroy(p->c);
    *p = (plan){ 0 };
}

static void drop_inner(inner *i)
{
    (void)dnnl_primitive_destroy(i->move);
    (void)dnnl_memory_destroy(i->memory);
}

static void drop_conv(conv_plan *p)
{
    (void)dnnl_primitive_destroy(p->primitive);
    (void)dnnl_memory_destroy(p->x);
    (void)dnnl_memory_destroy(p->w);
    (void)dnnl_memory_destroy(p->y);
    drop_inner(&p->weights);
    drop_inner(&p->dx);
    *p = (conv_plan){ .primitive = NULL };
}

static void module_close(lki_onednn *library)
{
    if (library == NULL)
        return;
    for (size_t i = 0; i < library->used; i++)
        drop(&library->plans[i]);
    for (size_t i = 0; i < library->convs_used; i++)
        drop_conv(&library->convs[i]);
    (void)dnnl_stream_destroy(library->stream);
    (void)dnnl_engine_destroy(library->engine);
    free(library);
}

/* ---- Products ---------------------------------------------------------------------------- */

/* Describes a (rows, columns) operand whose rows are `stride` apart, or that is stored
 * transposed. */
static dnnl_status_t describe(dnnl_memory_desc_t *out, size_t rows, size_t columns, size_t stride,
                              bool transposed, bool bf16)
{
    dnnl_dims_t dims    = { (dnnl_dim_t)rows, (dnnl_dim_t)columns };
    dnnl_dims_t strides = { transposed ? 1 : (dnnl_dim_t)stride,
                            transposed ? (dnnl_dim_t)stride : 1 };
    return dnnl_memory_desc_init_by_strides(out, 2, dims, bf16 ? dnnl_bf16 : dnnl_f32, strides);
}

static dnnl_status_t describe_all(dnnl_memory_desc_t desc[3], const lki_onednn_shape *s)
{
    dnnl_status_t status = describe(&desc[0], s->m, s->k, s->lda, s->transpose_a,
                                    s->bf16_operands);
    if (status == dnnl_success)
        status = describe(&desc[1], s->k, s->n, s->ldb, s->transpose_b, s->bf16_operands);
    if (status == dnnl_success)
        status = describe(&desc[2], s->m, s->n, s->ldc, false, s->bf16_result);
    return status;
}

static dnnl_status_t attributes(dnnl_primitive_attr_t *out, bool accumulate)
{
    dnnl_post_ops_t ops    = NULL;
    dnnl_status_t   status = dnnl_primitive_attr_create(out);
    if (status != dnnl_success || !accumulate)
        return status;
    status = dnnl_post_ops_create(&ops);
    if (status == dnnl_success)
        status = dnnl_post_ops_append_sum(ops, 1.0f);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(*out, ops);
    (void)dnnl_post_ops_destroy(ops);
    return status;
}

static dnnl_status_t make(const lki_onednn *library, plan *p)
{
    dnnl_memory_desc_t         desc[3];
    dnnl_matmul_desc_t         matmul;
    dnnl_primitive_attr_t      attr      = NULL;
    dnnl_primitive_desc_t      primitive = NULL;
    dnnl_memory_t *const       memory[3] = { &p->a, &p->b, &p->c };
    dnnl_status_t              status    = describe_all(desc, &p->shape);
    if (status == dnnl_success)
        status = dnnl_matmul_desc_init(&matmul, &desc[0], &desc[1], NULL, &desc[2]);
    if (status == dnnl_success)
        status = attributes(&attr, p->shape.accumulate);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_create(&primitive, &matmul, attr, library->engine, NULL);
    if (status == dnnl_success)
        status = dnnl_primitive_create(&p->primitive, primitive);
    for (int i = 0; i < 3 && status == dnnl_success; i++)
        status = dnnl_memory_create(memory[i], &desc[i], library->engine, DNNL_MEMORY_NONE);
    (void)dnnl_primitive_desc_destroy(primitive);
    (void)dnnl_primitive_attr_destroy(attr);
    return status;
}

static bool same(const lki_onednn_shape *a, const lki_onednn_shape *b)
{
    return a->transpose_a == b->transpose_a && a->transpose_b == b->transpose_b &&
           a->accumulate == b->accumulate && a->bf16_operands == b->bf16_operands &&
           a->bf16_result == b->bf16_result && a->m == b->m && a->n == b->n && a->k == b->k &&
           a->lda == b->lda && a->ldb == b->ldb && a->ldc == b->ldc;
}

static dnnl_status_t find(lki_onednn *library, const lki_onednn_shape *shape, plan **out)
{
    for (size_t i = 0; i < library->used; i++)
        if (same(&library->plans[i].shape, shape)) {
            *out = &library->plans[i];
            return dnnl_success;
        }
    plan made = { .shape = *shape };
    *out      = &library->plans[library->next];

    dnnl_status_t status = make(library, &made);
    if (status != dnnl_success) {
        drop(&made);
        return status;
    }
    drop(*out);
    **out         = made;
    library->next = (library->next + 1) % PLANS;
    if (library->used < PLANS)
        library->used++;
    return status;
}

/* Sets the address of a memory.  oneDNN's memories are never const, even if the primitive only
 * reads them. */
static bool point(dnnl_memory_t memory, const void *data)
{
    union {
        const void *in;
        void       *handle;
    } at = { data };
    return dnnl_memory_set_data_handle(memory, at.handle) == dnnl_success;
}

static const char *module_gemm(lki_onednn *library, const lki_onednn_shape *shape, const void *a,
                               const void *b, void *c)
{
    plan *p = NULL;
    /* oneDNN also compiles for this number of threads */
    omp_set_num_threads((int)library->threads);
    dnnl_status_t status = find(library, shape, &p);
    if (status != dnnl_success)
        return fail(library, "matmul", status);

    if (!point(p->a, a) || !point(p->b, b) || !point(p->c, c))
        return "dnnl_memory_set_data_handle has failed";
    dnnl_exec_arg_t arguments[] = { { DNNL_ARG_SRC, p->a },
                                    { DNNL_ARG_WEIGHTS, p->b },
                                    { DNNL_ARG_DST, p->c } };
    status = dnnl_primitive_execute(p->primitive, library->stream, 3, arguments);
    if (status == dnnl_success)
        status = dnnl_stream_wait(library->stream);
    return status == dnnl_success ? NULL : fail(library, "matmul", status);
}

/* ---- Convolutions ------------------------------------------------------------------------ */

/* Layouts of Lockstep's tensors: NHWC, and PyTorch's weights. */
typedef struct {
    dnnl_memory_desc_t x, w, y, any; /* any: weights in the layout that the primitive prefers */
} conv_layouts;

static dnnl_status_t pixels(dnnl_memory_desc_t *out, size_t n, size_t c, size_t h, size_t w)
{
    dnnl_dims_t dims    = { (dnnl_dim_t)n, (dnnl_dim_t)c, (dnnl_dim_t)h, (dnnl_dim_t)w };
    dnnl_dims_t strides = { (dnnl_dim_t)(h * w * c), 1, (dnnl_dim_t)(w * c), (dnnl_dim_t)c };
    return dnnl_memory_desc_init_by_strides(out, 4, dims, dnnl_f32, strides);
}

static dnnl_status_t lay_out(conv_layouts *l, const lki_onednn_conv *c)
{
    dnnl_dims_t dims = { (dnnl_dim_t)c->cout, (dnnl_dim_t)c->cin, (dnnl_dim_t)c->kh,
                         (dnnl_dim_t)c->kw };
    dnnl_status_t status = pixels(&l->x, c->n, c->cin, c->h, c->w);
    if (status == dnnl_success)
        status = pixels(&l->y, c->n, c->cout, c->oh, c->ow);
    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_tag(&l->w, 4, dims, dnnl_f32, dnnl_oihw);
    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_tag(&l->any, 4, dims, dnnl_f32, dnnl_format_tag_any);
    return status;
}

/* Describes the forward pass or a gradient.  A gradient needs the description of the forward
 * pass. */
static dnnl_status_t describe_conv(dnnl_primitive_desc_t *out, const lki_onednn *library,
                                   const conv_layouts *l, const lki_onednn_conv *c,
                                   lki_onednn_pass pass, const_dnnl_primitive_desc_t forward)
{
    const dnnl_alg_kind_t   how     = dnnl_convolution_direct;
    dnnl_dims_t             strides = { (dnnl_dim_t)c->stride, (dnnl_dim_t)c->stride };
    dnnl_dims_t             pad     = { (dnnl_dim_t)c->pad, (dnnl_dim_t)c->pad };
    dnnl_convolution_desc_t desc;
    dnnl_status_t           status;

    if (pass == LKI_ONEDNN_Y)
        status = dnnl_convolution_forward_desc_init(&desc, dnnl_forward_training, how, &l->x,
                                                    &l->any, NULL, &l->y, strides, pad, pad);
    else if (pass == LKI_ONEDNN_X)
        status = dnnl_convolution_backward_data_desc_init(&desc, how, &l->x, &l->any, &l->y,
                                                          strides, pad, pad);
    else
        status = dnnl_convolution_backward_weights_desc_init(&desc, how, &l->x, &l->any, NULL,
                                                             &l->y, strides, pad, pad);
    if (status != dnnl_success)
        return status;
    return dnnl_primitive_desc_create(out, &desc, NULL, library->engine, forward);
}

/* Allocates memory in the format `theirs`.  Prepares its conversion from `ours` or, with `back`, to
 * `ours`, where it is added to a result if `add` is set. */
static dnnl_status_t make_inner(inner *out, const lki_onednn *library,
                                const dnnl_memory_desc_t *ours, const dnnl_memory_desc_t *theirs,
                                bool back, bool add)
{
    dnnl_primitive_attr_t attr   = NULL;
    dnnl_primitive_desc_t desc   = NULL;
    dnnl_status_t         status = attributes(&attr, add);
    if (status == dnnl_success)
        status = dnnl_memory_create(&out->memory, theirs, library->engine, DNNL_MEMORY_ALLOCATE);
    if (status == dnnl_success)
        status = dnnl_reorder_primitive_desc_create(&desc, back ? theirs : ours, library->engine,
                                                    back ? ours : theirs, library->engine, attr);
    if (status == dnnl_success)
        status = dnnl_primitive_create(&out->move, desc);
    (void)dnnl_primitive_desc_destroy(desc);
    (void)dnnl_primitive_attr_destroy(attr);
    return status;
}

static dnnl_status_t make_conv(const lki_onednn *library, conv_plan *p)
{
    const lki_onednn_conv *c = &p->conv;
    conv_layouts           l;
    dnnl_primitive_desc_t  forward = NULL, other = NULL;
    bool                   dw      = c->pass == LKI_ONEDNN_WEIGHTS;
    dnnl_status_t          status  = lay_out(&l, c);
    if (status == dnnl_success)
        status = describe_conv(&forward, library, &l, c, LKI_ONEDNN_Y, NULL);
    if (status == dnnl_success && c->pass != LKI_ONEDNN_Y)
        status = describe_conv(&other, library, &l, c, c->pass, forward);
    dnnl_primitive_desc_t chosen = c->pass == LKI_ONEDNN_Y ? forward : other;
    if (status == dnnl_success)
        status = dnnl_primitive_create(&p->primitive, chosen);
    if (status == dnnl_success)
        status = make_inner(&p->weights, library, &l.w,
                            dnnl_primitive_desc_query_md(
                                chosen, dw ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0),
                            dw, dw && c->accumulate);
    if (status == dnnl_success && c->pass == LKI_ONEDNN_X && c->accumulate)
        status = make_inner(&p->dx, library, &l.x, &l.x, true, true);
    if (status == dnnl_success)
        status = dnnl_memory_create(&p->x, &l.x, library->engine, DNNL_MEMORY_NONE);
    if (status == dnnl_success)
        status = dnnl_memory_create(&p->w, &l.w, library->engine, DNNL_MEMORY_NONE);
    if (status == dnnl_success)
        status = dnnl_memory_create(&p->y, &l.y, library->engine, DNNL_MEMORY_NONE);
    (void)dnnl_primitive_desc_destroy(forward);
    (void)dnnl_primitive_desc_destroy(other);
    return status;
}

static bool same_conv(const lki_onednn_conv *a, const lki_onednn_conv *b)
{
    return a->pass == b->pass && a->accumulate == b->accumulate && a->n == b->n && a->h == b->h &&
           a->w == b->w && a->cin == b->cin && a->cout == b->cout && a->kh == b->kh &&
           a->kw == b->kw && a->stride == b->stride && a->pad == b->pad;
}

static dnnl_status_t find_conv(lki_onednn *library, const lki_onednn_conv *conv, conv_plan **out)
{
    for (size_t i = 0; i < library->convs_used; i++)
        if (same_conv(&library->convs[i].conv, conv)) {
            *out = &library->convs[i];
            return dnnl_success;
        }
    conv_plan made = { .conv = *conv };
    *out           = &library->convs[library->convs_next];

    dnnl_status_t status = make_conv(library, &made);
    if (status != dnnl_success) {
        drop_conv(&made);
        return status;
    }
    drop_conv(*out);
    **out               = made;
    library->convs_next = (library->convs_next + 1) % PLANS;
    if (library->convs_used < PLANS)
        library->convs_used++;
    return status;
}

static dnnl_status_t run_move(const lki_onednn *library, const inner *i, dnnl_memory_t from,
                              dnnl_memory_t to)
{
    dnnl_exec_arg_t arguments[] = { { DNNL_ARG_FROM, from }, { DNNL_ARG_TO, to } };
    return i->move == NULL ? dnnl_success
                           : dnnl_primitive_execute(i->move, library->stream, 2, arguments);
}

static dnnl_status_t run_conv(const lki_onednn *library, const conv_plan *p)
{
    bool            y = p->conv.pass == LKI_ONEDNN_Y, dx = p->conv.pass == LKI_ONEDNN_X;
    dnnl_exec_arg_t arguments[] = {
        { dx ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, p->dx.move != NULL ? p->dx.memory : p->x },
        { y || dx ? DNNL_ARG_WEIGHTS : DNNL_ARG_DIFF_WEIGHTS, p->weights.memory },
        { y ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, p->y },
    };
    dnnl_status_t status = dnnl_success;
    if (y || dx)
        status = run_move(library, &p->weights, p->w, p->weights.memory);
    if (status == dnnl_success)
        status = dnnl_primitive_execute(p->primitive, library->stream, 3, arguments);
    if (status == dnnl_success && !y && !dx)
        status = run_move(library, &p->weights, p->weights.memory, p->w);
    if (status == dnnl_success && dx)
        status = run_move(library, &p->dx, p->dx.memory, p->x);
    return status == dnnl_success ? dnnl_stream_wait(library->stream) : status;
}

static const char *module_conv(lki_onednn *library, const lki_onednn_conv *conv, const float *x,
                               const float *weights, const float *y)
{
    conv_plan *p = NULL;
    omp_set_num_threads((int)library->threads);
    dnnl_status_t status = find_conv(library, conv, &p);
    if (status != dnnl_success)
        return fail(library, "convolution", status);
    if (!point(p->x, x) || !point(p->w, weights) || !point(p->y, y))
        return "dnnl_memory_set_data_handle has failed";
    status = run_conv(library, p);
    return status == dnnl_success ? NULL : fail(library, "convolution", status);
}

extern const lki_onednn_module lk_onednn_module;

__attribute__((visibility("default"))) const lki_onednn_module lk_onednn_module = {
    .revision = LKI_ONEDNN_REVISION,
    .open     = module_open,
    .identity = module_identity,
    .gemm     = module_gemm,
    .conv     = module_conv,
    .close    = module_close,
};
