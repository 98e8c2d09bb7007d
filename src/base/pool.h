/* base/pool.h -- one pool of threads a worker; work is cut by the problem, never by the pool.
 *
 * Tasks are numbered 0 .. count-1 and may run in any order on any thread; a task's result must
 * depend on its number alone.  So results cannot depend on how many threads there are.
 */
#ifndef LKI_POOL_H
#define LKI_POOL_H

#include <stdbool.h>

#include "base/trace.h"

typedef struct lki_pool lki_pool;

/* `threads` counts the caller: 1 starts none.  0 is LK_EINVAL. */
LK_NODISCARD lk_status lki_pool_open(lki_pool **out, uint32_t threads);
void lki_pool_free(lki_pool *pool);

uint32_t lki_pool_threads(const lki_pool *pool); /* NULL counts as 1 */

/* From the next job on, the helpers' parts of jobs (LKI_SPAN_WORK) are added to `trace`: those of
 * thread i to track `first` + i - 1.  NULL: no more. */
void lki_pool_trace(lki_pool *pool, lki_trace *trace, uint32_t first);

/* Runs task(context, i, thread) for every i < count, and returns when all are done.  `thread`
 * (0 .. threads-1) picks scratch memory, nothing else.  The caller takes part; a NULL pool or a
 * single task runs right here.  Must not be called from inside a task. */
typedef void (*lki_task)(void *context, size_t index, uint32_t thread);
void lki_pool_run(lki_pool *pool, size_t count, lki_task task, void *context);

/* The same for one task a thread: task i runs on thread i. */
void lki_pool_each(lki_pool *pool, lki_task task, void *context);

/* As lki_alloc(): each thread writes the zeros of an equal part, in their order, so that they share
 * the work, and pages are near to the cores that these run on. */
LK_NODISCARD lk_status lki_pool_alloc(void **out, lki_pool *pool, size_t bytes, const char *what);

/* Binds each thread, the caller among them, to a share of its own of what the caller may run on
 * (its affinity, inside which the kernel keeps to the cgroup's): equal, neighbours side by side, so
 * that no two threads meet on a core.  False, and nothing is bound, where there are more threads
 * than that.  lki_pool_free() lets the caller run where it could before. */
bool lki_pool_pin(lki_pool *pool);

/* While it is not `pinned`, the caller runs where it could before; so will threads it starts. */
void lki_pool_pin_caller(lki_pool *pool, bool pinned);

#endif
