/* exec.c -- the threads and the instruction set on which operators run.
 *
 * The kernels of all instruction sets compute the same bits, so the choice never changes a result.
 * Buffers are allocated here, once, so that no operator can run out of memory.
 */
#include "tensor/exec.h"
#include "tensor/isa/kernels.h"

#include <stdatomic.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "tensor/onednn/onednn.h"

struct lk_exec {
    const char *isa;
    lki_kernels kernels;
    lki_pool   *pool;
    uint32_t    threads;
    float      *shared;
    float      *private_; /* LKI_EXEC_PRIVATE floats for each thread */
    lki_track  *track;    /* the track of the calling thread; NULL: no trace */
    lki_other   other;
};

typedef struct {
    const char             *name;
    const lki_kernels      *kernels;
    const lki_bf16_kernels *bf16; /* NULL: those of `kernels` */
} table;

/* The tables of kernels, with the widest instruction set first. */
static const table tables[] = {
#if defined(__x86_64__)
    { "avx512_bf16", &lki_kernels_avx512, &lki_bf16_avx512 },
    { "avx512", &lki_kernels_avx512, NULL },
    { "avx2", &lki_kernels_avx2, NULL },
#elif defined(__aarch64__)
    { "neon", &lki_kernels_neon, NULL },
#endif
    { "portable", &lki_kernels_portable, NULL },
};
enum { TABLES = sizeof tables / sizeof tables[0] };

#if defined(__x86_64__)
/* Returns true if the processor's bf16 instruction computes the specified result of v16_dot2().
 * The sums detect three deviations: the second product of a pair is not added first, products are
 * not rounded separately, or subnormal results and operands do not become zero. */
static bool multiplies_as_said(void)
{
    static const struct {
        float    sum, want;
        uint16_t a[2], b[2];
    } cases[] = {
        /* 1 + 2^-24 is 1, so minus 1 gives 0 */
        { 1.0f, 0.0f, { 0x3f80, 0x3380 }, { 0xbf80, 0x3f80 } },
        { 0x1p-126f, 0.0f, { 0, 0x0d80 }, { 0, 0xb200 } },         /* 2^-126 - 2^-127 */
        { 1.0f, 1.0f, { 0, 0x0040 }, { 0, 0x7f00 } },              /* 1 + 2^-127 2^127 */
    };
    const lki_gemm_kernels *kernels = lki_bf16_avx512.gemm;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float a[LKI_GEMM_ROWS_MAX + 1], b[64], sum = cases[i].sum;
        kernels->pack_a(false, 1, 2, cases[i].a, 2, a);
        kernels->pack_b(true, 1, 2, cases[i].b, 2, b);
        kernels->block(&(lki_gemm_block){ .m = 1, .n = 1, .k = 1, .a = a, .packed = true, .b = b,
                                          .b_row = kernels->columns, .c = &sum, .ldc = 1 });
        if (sum != cases[i].want)
            return false;
    }
    return true;
}
#endif

static bool processor_has(const char *isa)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2   = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (strcmp(isa, "avx512_bf16") == 0)
        return avx512 && __builtin_cpu_supports("avx512bf16") && multiplies_as_said();
    if (strcmp(isa, "avx512") == 0)
        return avx512;
    if (strcmp(isa, "avx2") == 0)
        return avx2;
#elif defined(__aarch64__)
    if (strcmp(isa, "neon") == 0) /* every 64-bit ARM processor has neon */
        return true;
#endif
    return strcmp(isa, "portable") == 0;
}

const char *lk_isa_name(uint32_t index)
{
    static const char *const names[] = { "avx512_bf16", "avx512", "avx2", "neon", "portable" };
    return index < sizeof names / sizeof names[0] ? names[index] : NULL;
}

static bool is_isa(const char *name)
{
    uint32_t index = 0;
    while (lk_isa_name(index) != NULL && strcmp(lk_isa_name(index), name) != 0)
        index++;
    return lk_isa_name(index) != NULL;
}

/* Returns the shortest time that a block of a product of bf16 values took, in seconds per
 * operation.  The shortest of several times is hardly longer on a busy machine than on an idle
 * one. */
static double bf16_seconds(const table *t)
{
    enum { STEPS = 64, COLUMNS = 32, TRIES = 16 };
    const lki_gemm_kernels *kernels = (t->bf16 != NULL ? t->bf16 : t->kernels->bf16)->gemm;
    float  a[LKI_GEMM_ROWS_MAX * STEPS] = { 0 }, b[COLUMNS * STEPS] = { 0 };
    float  c[LKI_GEMM_ROWS_MAX * COLUMNS] = { 0 };
    double best = 1;
    for (int i = 0; i < TRIES; i++) {
        double begun = lki_seconds();
        kernels->block(&(lki_gemm_block){ .m = kernels->rows, .n = kernels->columns, .k = STEPS,
                                          .a = a, .packed = true, .b = b,
                                          .b_row = kernels->columns, .c = c, .ldc = COLUMNS });
        double took = lki_seconds() - begun;
        best        = took < best ? took : best;
    }
    return best / (double)(kernels->rows * kernels->columns);
}

/* Returns the faster of the widest table and the next one.  Some processors take longer for their
 * bf16 instruction than for its emulation; the margin keeps noise from deciding.  A table without
 * this instruction is never slower than a narrower table. */
static const table *faster(const table *widest, const table *next)
{
    const double margin = 1.1;
    bool         decide = widest->bf16 != NULL && widest->kernels == next->kernels;
    return decide && margin * bf16_seconds(next) < bf16_seconds(widest) ? next : widest;
}

static lk_status choose(const table **out, const char *isa)
{
    bool any = isa == NULL || strcmp(isa, "auto") == 0;
    for (size_t i = 0; i < TABLES; i++)
        if ((any || strcmp(isa, tables[i].name) == 0) && processor_has(tables[i].name)) {
            *out = any ? faster(&tables[i], &tables[i + 1 < TABLES ? i + 1 : i]) : &tables[i];
            return LK_OK;
        }
    if (is_isa(isa))
        return lk_fail(LK_EUNSUPPORTED, "isa %s: this processor lacks it; leave it out to take the "
                                        "fastest there is (no bit of a result depends on it)", isa);
    return lk_fail(LK_EINVAL, "isa %s: not one of avx512_bf16, avx512, avx2, neon, portable, auto",
                   isa);
}

/* Allocates one buffer for each thread.  Each thread is the first to touch its buffer. */
static lk_status allocate_private(lk_exec *exec)
{
    return lki_pool_alloc((void **)&exec->private_, exec->pool,
                          (size_t)exec->threads * LKI_EXEC_PRIVATE * sizeof(float),
                          "exec: threads' buffers");
}

lk_status lk_exec_open(lk_exec **out, uint32_t threads, const char *isa)
{
    *out                = NULL;
    const table *chosen = NULL;
    LK_TRY(choose(&chosen, isa));

    lk_exec *exec = NULL;
    LK_TRY(LKI_NEW(&exec, 1, "exec"));
    exec->isa        = chosen->name;
    exec->kernels    = *chosen->kernels;
    if (chosen->bf16 != NULL)
        exec->kernels.bf16 = chosen->bf16;
    exec->threads    = threads == 0 ? 1 : threads;
    lk_status status = lki_pool_open(&exec->pool, exec->threads);
    if (status == LK_OK)
        status = LKI_NEW(&exec->shared, LKI_EXEC_SHARED, "exec: packed panels");
    if (status == LK_OK)
        status = allocate_private(exec);
    if (status != LK_OK) {
        lk_exec_free(exec);
        return status;
    }
    *out = exec;
    return LK_OK;
}

void lk_exec_free(lk_exec *exec)
{
    if (exec == NULL)
        return;
    lki_other_free(&exec->other);
    lki_pool_free(exec->pool);
    lki_free(exec->shared);
    lki_free(exec->private_);
    lki_free(exec);
}

lk_status lki_exec_pin(lk_exec *exec)
{
    if (!lki_pool_pin(exec->pool))
        return LK_OK;
    lki_free(exec->private_);
    return allocate_private(exec);
}

void lki_exec_pin_caller(lk_exec *exec, bool pinned)
{
    lki_pool_pin_caller(exec->pool, pinned);
}

const char *lk_exec_isa(const lk_exec *exec)
{
    return exec->isa;
}

uint32_t lk_exec_threads(const lk_exec *exec)
{
    return exec->threads;
}

lki_other *lki_exec_other(lk_exec *exec)
{
    return &exec->other;
}

lki_pool *lki_exec_pool(const lk_exec *exec)
{
    return exec->pool;
}

const lki_kernels *lki_exec_kernels(const lk_exec *exec)
{
    return &exec->kernels;
}

float *lki_exec_shared(lk_exec *exec)
{
    return exec->shared;
}

float *lki_exec_private(lk_exec *exec, uint32_t thread)
{
    LK_ASSERT(thread < exec->threads);
    return exec->private_ + (size_t)thread * LKI_EXEC_PRIVATE;
}

void lki_exec_trace(lk_exec *exec, lki_trace *trace, uint32_t helpers)
{
    exec->track = lki_trace_track(trace, 0);
    lki_pool_trace(exec->pool, trace, helpers);
}

lki_track *lki_exec_track(const lk_exec *exec)
{
    return exec == NULL ? NULL : exec->track;
}

typedef struct {
    const lki_gemm_kernels *kernels;
    double                  until;
    _Atomic uint64_t        operations;
} peak_loop;

static void peak_task(void *context, size_t index, uint32_t thread)
{
    peak_loop *loop = context;
    uint64_t   mine = 0;
    float      sink = 0;
    (void)thread;
    while (lki_seconds() < loop->until)
        mine += loop->kernels->multiply_adds(0.5f + (float)index * 0x1p-20f, &sink);
    LK_ASSERT(sink >= 0); /* prevents the compiler from removing the loop */
    atomic_fetch_add(&loop->operations, mine);
}

double lk_exec_peak(lk_exec *exec, lk_dtype operands, double seconds)
{
    double    begun = lki_seconds();
    peak_loop loop  = { .kernels = operands == LK_BF16 ? exec->kernels.bf16->gemm
                                                       : exec->kernels.gemm,
                        .until   = begun + seconds };
    lki_pool_run(exec->pool, exec->threads, peak_task, &loop);
    return (double)loop.operations / (lki_seconds() - begun);
}

void lki_exec_run(lk_exec *exec, size_t count, lki_task task, void *context)
{
    lki_pool_run(exec->pool, count, task, context);
}

typedef struct {
    void (*task)(void *context, size_t i);
    void *context;
} plain_task;

static void run_plain(void *context, size_t index, uint32_t thread)
{
    (void)thread;
    const plain_task *plain = context;
    plain->task(plain->context, index);
}

void lk_parallel_for(lk_exec *exec, size_t count, void (*task)(void *context, size_t i),
                     void *context)
{
    plain_task plain = { task, context };
    lki_pool_run(exec->pool, count, run_plain, &plain);
}
