/* onednn.c -- passes products and convolutions to lockstep-onednn.so, and completes products.
 *
 * The module is never unloaded, because its threads do not end.  If oneDNN cannot compute a shape,
 * Lockstep's own kernels compute it, so that a step never fails halfway.  The first such failure is
 * stored, so that benchmarks can report it.
 */
#include "tensor/onednn/onednn.h"
#include "tensor/isa/kernels.h"

#include <dlfcn.h>
#include <stdio.h>

#include "base/memory.h"

lk_status lk_exec_use_onednn(lk_exec *exec, const char *path)
{
    LK_TRY(lki_check_given("lk_exec_use_onednn", "path", path, 1));
    lki_other *other  = lki_exec_other(exec);
    void      *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (handle == NULL)
        return lk_fail(LK_EUNSUPPORTED, "cannot load the module for oneDNN: %s", dlerror());
    const lki_onednn_module *module = dlsym(handle, LKI_ONEDNN_SYMBOL);
    if (module == NULL || module->revision != LKI_ONEDNN_REVISION)
        return lk_fail(LK_EUNSUPPORTED, "%s is not of this version of lockstep: it and the program "
                       "must come from the same build", path);
    lki_onednn *library = NULL;
    const char *error   = module->open(&library, lk_exec_threads(exec));
    if (error != NULL)
        return lk_fail(LK_EUNSUPPORTED, "oneDNN: %s", error);
    lki_other_free(other);
    *other = (lki_other){ .module = module, .library = library };
    return LK_OK;
}

const char *lk_exec_onednn(lk_exec *exec, const char **failure)
{
    lki_other *other = lki_exec_other(exec);
    *failure         = other->failure[0] != '\0' ? other->failure : NULL;
    return other->module != NULL ? other->module->identity(other->library) : NULL;
}

void lki_other_free(lki_other *other)
{
    if (other->module != NULL)
        other->module->close(other->library);
    *other = (lki_other){ .module = NULL };
}

static bool done(lki_other *other, const char *error)
{
    if (error != NULL && other->failure[0] == '\0')
        (void)snprintf(other->failure, sizeof other->failure, "%s", error);
    return error == NULL;
}

/* ---- The end of a product ---------------------------------------------------------------- */

typedef struct {
    const lki_gemm_ends *ends;
    lki_gemm_finish      finish;
    size_t               m, n, rows; /* rows: the rows of one task */
} ending;

static void end_task(void *context, size_t index, uint32_t thread)
{
    const ending *e   = context;
    size_t        row = index * e->rows;
    (void)thread;
    e->ends->finish(&e->finish, row, 0, lki_min(e->rows, e->m - row), e->n);
}

static void finish(lk_exec *exec, const lki_gemm_args *g, size_t ldc)
{
    ending e = { .ends   = lki_exec_kernels(exec)->gemm_ends,
                 .finish = { .sums       = g->c,
                             .ld_sums    = ldc,
                             .bias       = g->bias,
                             .activation = g->activation,
                             .type       = LK_F32,
                             .c          = g->c,
                             .pre        = g->pre,
                             .residual   = g->residual,
                             .ldc        = ldc },
                 .m      = g->m,
                 .n      = g->n,
                 .rows   = lki_max(1, LKI_GRAIN / g->n) };
    if (g->bias != NULL || g->activation != LKI_ACT_NONE || g->residual != NULL)
        lki_exec_run(exec, (g->m + e.rows - 1) / e.rows, end_task, &e);
}

bool lki_other_gemm(lk_exec *exec, const lki_gemm_args *args)
{
    const lki_gemm_args *g     = args;
    lki_other           *other = lki_exec_other(exec);
    if (other->module == NULL || g->operands == LK_BF16 || g->result == LK_BF16 || g->m == 0 ||
        g->n == 0 || g->k == 0)
        return false;
    lki_onednn_shape shape = {
        .transpose_a = g->transpose_a,
        .transpose_b = g->transpose_b,
        .accumulate  = g->accumulate,
        .m           = g->m,
        .n           = g->n,
        .k           = g->k,
        .lda         = g->lda != 0 ? g->lda : g->transpose_a ? g->m : g->k,
        .ldb         = g->ldb != 0 ? g->ldb : g->transpose_b ? g->k : g->n,
        .ldc         = g->ldc != 0 ? g->ldc : g->n,
    };
    if (!done(other, other->module->gemm(other->library, &shape, g->a, g->b, g->c)))
        return false;
    finish(exec, g, shape.ldc);
    return true;
}

/* ---- Convolution ------------------------------------------------------------------------- */

bool lki_other_conv(lk_exec *exec, const lki_conv_shape *shape, lki_onednn_pass pass, bool add,
                    const float *x, const float *w, const float *y)
{
    const lki_conv_shape *s     = shape;
    lki_other            *other = lki_exec_other(exec);
    if (other->module == NULL || s->n == 0)
        return false;
    lki_onednn_conv conv = { .pass   = pass,
                             .accumulate = add,
                             .n      = s->n,
                             .h      = s->h,
                             .w      = s->w,
                             .cin    = s->cin,
                             .cout   = s->cout,
                             .kh     = s->kh,
                             .kw     = s->kw,
                             .stride = s->stride,
                             .pad    = s->pad,
                             .oh     = s->oh,
                             .ow     = s->ow };
    return done(other, other->module->conv(other->library, &conv, x, w, y));
}
