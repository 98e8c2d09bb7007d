/* exec.c -- the threads and the instruction set on which operators run.
 *
 * The kernels of all instruction sets compute the same bits, so the choice never changes a result.
 * Buffers are allocated here, once, so that no operator can run out of memory.
 */
#include "tensor/exec.h"
#include "tensor/isa/choose.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "tensor/onednn/onednn.h"

struct lk_exec {
    const char      *isa;
    lki_kernels      kernels;
    lki_bf16_kernels bf16; /* in `kernels` */
    lki_pool        *pool;
    uint32_t         threads;
    size_t           near_bytes; /* of a core's second-level cache */
    float           *shared;
    float           *private_; /* LKI_EXEC_PRIVATE floats for each thread */
    lki_track       *track;    /* the track of the calling thread; NULL: no trace */
    lki_other        other;
};

static size_t find_near_bytes(void)
{
    long bytes = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return bytes > 0 ? (size_t)bytes : 1 << 20;
}

/* Allocates one buffer for each thread.  Each thread is the first to touch its buffer. */
static lk_status allocate_private(lk_exec *exec)
{
    return lki_pool_alloc((void **)&exec->private_, exec->pool,
                          (size_t)exec->threads * LKI_EXEC_PRIVATE * sizeof(float),
                          "exec: threads' buffers");
}

/* Allocates the panels.  They are not zeroed: operators write a panel before they read it, and
 * small operators need few of the pages. */
static lk_status allocate_shared(lk_exec *exec)
{
    return lki_alloc_untouched((void **)&exec->shared, LKI_EXEC_SHARED * sizeof(float),
                               "exec: packed panels");
}

lk_status lk_exec_open(lk_exec **out, uint32_t threads, const char *isa)
{
    *out                = NULL;
    lki_choice chosen;
    LK_TRY(lki_choose_kernels(&chosen, isa));

    lk_exec *exec = NULL;
    LK_TRY(LKI_NEW(&exec, 1, "exec"));
    exec->isa          = chosen.name;
    exec->kernels      = *chosen.kernels;
    exec->bf16         = chosen.bf16;
    exec->kernels.bf16 = &exec->bf16;
    exec->threads      = threads == 0 ? 1 : threads;
    exec->near_bytes   = find_near_bytes();
    lk_status status   = lki_pool_open(&exec->pool, exec->threads);
    if (status == LK_OK)
        status = allocate_shared(exec);
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

size_t lki_exec_near_bytes(const lk_exec *exec)
{
    return exec->near_bytes;
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
