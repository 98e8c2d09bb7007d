/* base/pool.h -- the thread pool of a worker.  The number and size of tasks depend on the problem,
 * never on the pool.
 *
 * Tasks are numbered 0 .. count-1 and may run in any order on any thread.  The result of a task
 * must depend only on its number.  Results therefore cannot depend on the number of threads.
 */
#ifndef LKI_POOL_H
#define LKI_POOL_H

#include <stdbool.h>

#include "base/trace.h"

typedef struct lki_pool lki_pool;

/* Creates a pool. `threads` includes the caller: with 1 no thread is started, and 0 is
 * LK_EINVAL. */
LK_NODISCARD lk_status lki_pool_open(lki_pool **out, uint32_t threads);
void lki_pool_free(lki_pool *pool);

uint32_t lki_pool_threads(const lki_pool *pool); /* NULL counts as 1 */

/* Records the helpers' parts of jobs (LKI_SPAN_WORK) in `trace` from the next job on.  Thread i
 * uses track `first` + i - 1.  NULL stops recording. */
void lki_pool_trace(lki_pool *pool, lki_trace *trace, uint32_t first);

/* Runs task(context, i, thread) for every i < count, and returns when all tasks are done.  A
 * task may use `thread` (0 .. threads-1) only to select scratch memory.  Successive tasks mostly
 * run on one thread, and those of the next job with the same count mostly on the same one.  The
 * caller takes part.  With a NULL pool or a single task all tasks run on the caller.  Must not be
 * called from inside a task. */
typedef void (*lki_task)(void *context, size_t index, uint32_t thread);
void lki_pool_run(lki_pool *pool, size_t count, lki_task task, void *context);

/* Returns the first of `count` tasks with which thread i of `threads` begins.  The next thread's
 * first one ends its share. */
static inline size_t lki_pool_first(size_t count, size_t threads, size_t i)
{
    return count * i / threads;
}

/* Returns the thread that begins with the share of a task. */
static inline size_t lki_pool_thread_of(size_t count, size_t threads, size_t index)
{
    return ((index + 1) * threads - 1) / count;
}

/* Runs one task per thread; task i runs on thread i. */
void lki_pool_each(lki_pool *pool, lki_task task, void *context);

/* Allocates zeroed memory as lki_alloc() does.  Thread i zeroes the i-th of equal parts, which
 * divides the work and places pages near the cores on which the threads run. */
LK_NODISCARD lk_status lki_pool_alloc(void **out, lki_pool *pool, size_t bytes, const char *what);

/* Binds each thread, including the caller, to an equal share of neighbouring processors, so that no
 * two threads share a core.  The processors are those of the caller's affinity, which the kernel
 * limits to the processors of the cgroup.  Returns false and binds nothing if there are more
 * threads than processors. lki_pool_free() restores the caller's affinity. */
bool lki_pool_pin(lki_pool *pool);

/* Binds the caller to its share if `pinned`, else to its original affinity.  New threads inherit
 * the caller's affinity. */
void lki_pool_pin_caller(lki_pool *pool, bool pinned);

#endif
