/* module.c -- oneDNN for the library: matrix products as its matmul primitive computes them.
 *
 * A primitive belongs to one shape; the last PLANS of them are kept, the oldest makes room.
 */
#include "tensor/onednn/module.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLANS = 256 };

/* OpenMP's, which oneDNN runs on; its header belongs to one compiler. */
extern void omp_set_num_threads(int threads);

typedef struct {
    lki_onednn_shape shape;
    dnnl_primitive_t primitive;
    dnnl_memory_t    a, b, c;
} plan;

struct lki_onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    uint32_t      threads;
    plan          plans[PLANS];
    size_t        used, next; /* plans made; the place of the next */
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

static void module_close(lki_onednn *library)
{
    if (library == NULL)
        return;
    for (size_t i = 0; i < library->used; i++)
        drop(&library->plans[i]);
    (void)dnnl_stream_destroy(library->stream);
    (void)dnnl_engine_destroy(library->engine);
    free(library);
}

/* ---- Products ---------------------------------------------------------------------------- */

/* A (rows, columns) operand whose rows are `stride` apart, or stored transposed. */
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

static const char *module_gemm(lki_onednn *library, const lki_onednn_shape *shape, const void *a,
                               const void *b, void *c)
{
    plan *p = NULL;
    omp_set_num_threads((int)library->threads); /* it compiles for as many, too */
    dnnl_status_t status = find(library, shape, &p);
    if (status != dnnl_success)
        return fail(library, "matmul", status);

    union {
        const void *in;
        void       *handle;
    } left = { a }, right = { b };
    if (dnnl_memory_set_data_handle(p->a, left.handle) != dnnl_success ||
        dnnl_memory_set_data_handle(p->b, right.handle) != dnnl_success ||
        dnnl_memory_set_data_handle(p->c, c) != dnnl_success)
        return "dnnl_memory_set_data_handle has failed";
    dnnl_exec_arg_t arguments[] = { { DNNL_ARG_SRC, p->a },
                                    { DNNL_ARG_WEIGHTS, p->b },
                                    { DNNL_ARG_DST, p->c } };
    status = dnnl_primitive_execute(p->primitive, library->stream, 3, arguments);
    if (status == dnnl_success)
        status = dnnl_stream_wait(library->stream);
    return status == dnnl_success ? NULL : fail(library, "matmul", status);
}

extern const lki_onednn_module lk_onednn_module;

__attribute__((visibility("default"))) const lki_onednn_module lk_onednn_module = {
    .revision = LKI_ONEDNN_REVISION,
    .open     = module_open,
    .identity = module_identity,
    .gemm     = module_gemm,
    .close    = module_close,
};
