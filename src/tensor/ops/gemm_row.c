/* gemm_row.c -- products of one row, such as those of a token that a model generates.
 *
 * What:   c (1, n) = a (1, k) b.  The product is as fast as b can be read, so b is read once and in
 *         place (isa/row.inc), and nothing is packed.
 * How:    The columns of c are divided among the threads.  Each sums its columns in its buffer and
 *         finishes them.
 * Order:  each element is the chain of lki_gemm().
 * Cost:   k n elements of b are read.
 */
#include "base/memory.h"
#include "tensor/exec.h"
#include "tensor/ops/gemm_turned.h"
#include "tensor/isa/row.h"

enum {
    COLUMNS     = 2048, /* most columns of a task: their sums stay in a first-level cache */
    FEW_COLUMNS = 64,   /* fewest columns of a task, so that rows of b are read in long runs */
};
_Static_assert((int)COLUMNS <= (int)LKI_EXEC_PRIVATE, "a thread's buffer is too small");

typedef struct {
    const lki_gemm_args   *args;
    const lki_row_kernels *kernels;
    const lki_gemm_ends   *ends;
    lk_exec               *exec;
    size_t                 ldb, each; /* columns of a task */
} row;

static const lki_row_kernels *kernels_of(const lk_exec *exec)
{
    const lki_kernels *all = lki_exec_kernels(exec);
#if defined(__x86_64__)
    if (all->nn == lki_kernels_avx512.nn)
        return &lki_row_avx512;
    if (all->nn == lki_kernels_avx2.nn)
        return &lki_row_avx2;
#endif
#if defined(__aarch64__)
    if (all->nn == lki_kernels_neon.nn)
        return &lki_row_neon;
#endif
    (void)all;
    return NULL; /* vectors in memory would be slower than packing */
}

static void task(void *context, size_t index, uint32_t thread)
{
    const row           *r      = context;
    const lki_gemm_args *g      = r->args;
    bool                 narrow = g->operands == LK_BF16;
    size_t               j      = index * r->each, bytes = narrow ? 2 : 4;
    lk_dtype             type   = g->result == LK_BF16 ? LK_BF16 : LK_F32;
    size_t               at     = j * lk_dtype_bytes(type);
    lki_row_product      p      = {
                  .n    = lki_min(r->each, g->n - j),
                  .k    = g->k,
                  .a    = g->a,
                  .b    = (const char *)g->b + (g->transpose_b ? j * r->ldb : j) * bytes,
                  .ldb  = r->ldb,
                  .sums = lki_exec_private(r->exec, thread),
    };
    if (g->transpose_b)
        (narrow ? r->kernels->bf16_transposed : r->kernels->f32_transposed)(&p);
    else
        (narrow ? r->kernels->bf16 : r->kernels->f32)(&p);
    lki_gemm_finish finish = {
        .sums       = p.sums,
        .ld_sums    = p.n,
        .bias       = g->bias == NULL ? NULL : g->bias + j,
        .activation = g->activation,
        .type       = type,
        .c          = (char *)g->c + at,
        .pre        = g->pre == NULL ? NULL : (char *)g->pre + at,
        .residual   = g->residual == NULL ? NULL : (const char *)g->residual + at,
        .ldc        = p.n,
    };
    r->ends->finish(&finish, 0, 0, 1, p.n);
}

bool lki_gemm_row(lk_exec *exec, const lki_gemm_args *g)
{
    bool   narrow = g->operands == LK_BF16;
    size_t ldb    = g->ldb != 0 ? g->ldb : g->transpose_b ? g->k : g->n;
    size_t threads = lk_exec_threads(exec);
    row    r      = { .args = g, .kernels = kernels_of(exec), .exec = exec, .ldb = ldb,
                      .ends = lki_exec_kernels(exec)->gemm_ends };

    if (g->m != 1 || g->n == 0 || g->k == 0 || g->transpose_a || g->accumulate || g->a == NULL ||
        g->wide_b || g->pack != NULL || r.kernels == NULL)
        return false;
    if (g->k % (narrow ? (size_t)LKI_CHUNK : 16) != 0 || (narrow && ldb % 2 != 0))
        return false;
    size_t share = (g->n + threads - 1) / threads, rounds = (share + COLUMNS - 1) / COLUMNS;
    r.each       = lki_min(COLUMNS, lki_round_up((share + rounds - 1) / rounds, FEW_COLUMNS));
    lki_exec_run(exec, (g->n + r.each - 1) / r.each, task, &r);
    return true;
}
