/* pool.c -- threads that claim numbered tasks.
 *
 * Each thread first claims the tasks of its own share, a run of successive numbers, and then those
 * that are left in the shares of others.  So from job to job a thread mostly computes the same
 * rows or columns, which are in the cache of its core.
 *
 * A pool runs one job at a time.  The owner publishes the job, increments `generation` and takes
 * part.  Helpers spin briefly for the next generation and then sleep on it with a futex.  The owner
 * returns when every helper has left the job, so the job's memory may be on the owner's stack.
 */
#include "base/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cpus.h"
#include "base/float.h"
#include "base/memory.h"

enum { SPINS = 2000 };

/* The tasks of a job that a thread claims first: `next` .. `end` - 1.  Each share has its own cache
 * line. */
typedef struct {
    _Alignas(LKI_LINE) _Atomic size_t next;
    size_t                            end;
} task_share;

struct lki_pool {
    uint32_t         threads;
    uint32_t         started; /* number of running helpers: threads - 1, or fewer if a thread could
                               * not be started */
    pthread_t       *handles;
    lki_trace       *trace; /* trace of the helpers' parts of jobs; NULL: none */
    uint32_t         first_track;
    lki_task         task;
    void            *context;
    task_share      *shares; /* one for each thread */
    bool             each; /* task i runs on thread i */
    bool             pinned;
    cpu_set_t        before, mine; /* the caller's affinity before pinning, and while pinned */
    _Atomic uint32_t generation; /* futex: helpers wait until it changes */
    _Atomic uint32_t busy;       /* futex: number of helpers in the job; the owner waits for zero */
    _Atomic uint32_t asleep;     /* threads that sleep in the kernel, or are about to */
    _Atomic uint32_t stop;
    _Atomic uint32_t names; /* assigns a thread number to each helper */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

/* Wakes the threads that sleep on `word`, which must have changed before.  A sleeper increments
 * `asleep` before it checks the word for the last time.  So either the sleeper sees the changed
 * word, or this thread sees `asleep` above 0. */
static void wake(lki_pool *pool, _Atomic uint32_t *word)
{
    if (atomic_load(&pool->asleep) > 0)
        (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static uint32_t wait_change(lki_pool *pool, _Atomic uint32_t *word, uint32_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        uint32_t now = atomic_load_explicit(word, memory_order_acquire);
        if (now != seen)
            return now;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    uint32_t now;
    atomic_fetch_add(&pool->asleep, 1);
    while ((now = atomic_load(word)) == seen)
        futex_wait(word, seen);
    atomic_fetch_sub(&pool->asleep, 1);
    return now;
}

/* Divides the tasks into equal shares. */
static void divide(lki_pool *pool, size_t count)
{
    for (uint32_t i = 0; i < pool->threads; i++) {
        pool->shares[i].end = lki_pool_first(count, pool->threads, i + 1);
        atomic_store_explicit(&pool->shares[i].next, lki_pool_first(count, pool->threads, i),
                              memory_order_relaxed);
    }
}

/* Claims a task.  The counter is read first, because an addition to a share in which nothing is
 * left would only take its cache line from the other threads. */
static bool claim(task_share *from, size_t *index)
{
    if (atomic_load_explicit(&from->next, memory_order_relaxed) >= from->end)
        return false;
    *index = atomic_fetch_add_explicit(&from->next, 1, memory_order_relaxed);
    return *index < from->end;
}

static void work(lki_pool *pool, uint32_t thread)
{
    if (pool->each) {
        pool->task(pool->context, thread, thread);
        return;
    }
    for (uint32_t i = 0; i < pool->threads; i++) {
        task_share *from = &pool->shares[(thread + i) % pool->threads];
        size_t      index;
        while (claim(from, &index))
            pool->task(pool->context, index, thread);
    }
}

static void *helper(void *argument)
{
    lki_pool *pool   = argument;
    uint32_t  thread = atomic_fetch_add(&pool->names, 1) + 1;
    uint32_t  seen   = 0;

    /* whatever the mode of the thread that opened the pool */
    lki_float_mode_set(LKI_FLOAT_STANDARD);
    for (;;) {
        seen = wait_change(pool, &pool->generation, seen);
        if (atomic_load(&pool->stop))
            return NULL;
        lki_track *track  = lki_trace_track(pool->trace, pool->first_track + thread - 1);
        uint64_t  begun = lki_trace_begin(track);
        work(pool, thread);
        lki_trace_end(track, LKI_SPAN_WORK, 0, begun);
        if (atomic_fetch_sub(&pool->busy, 1) == 1)
            wake(pool, &pool->busy);
    }
}

lk_status lki_pool_open(lki_pool **out, uint32_t threads)
{
    *out = NULL;
    if (threads == 0 || threads > 4096)
        return lk_fail(LK_EINVAL, "threads: %u is not between 1 and 4096", threads);
    lki_pool *pool = NULL;
    LK_TRY(LKI_NEW(&pool, 1, "thread pool"));
    pool->threads = threads;
    lk_status status = LKI_NEW(&pool->handles, threads, "thread pool");
    if (status == LK_OK)
        status = LKI_NEW(&pool->shares, threads, "thread pool");
    while (status == LK_OK && pool->started + 1 < threads)
        if (pthread_create(&pool->handles[pool->started], NULL, helper, pool) == 0)
            pool->started++;
        else
            status = lk_fail(LK_ENOMEM, "threads: could not start thread %u of %u",
                             pool->started + 2, threads);
    if (status != LK_OK) {
        lki_pool_free(pool);
        return status;
    }
    *out = pool;
    return LK_OK;
}

void lki_pool_free(lki_pool *pool)
{
    if (pool == NULL)
        return;
    atomic_store(&pool->stop, 1);
    atomic_fetch_add(&pool->generation, 1);
    wake(pool, &pool->generation);
    for (uint32_t i = 0; i < pool->started; i++)
        (void)pthread_join(pool->handles[i], NULL);
    lki_pool_pin_caller(pool, false);
    lki_free(pool->shares);
    lki_free(pool->handles);
    lki_free(pool);
}

uint32_t lki_pool_threads(const lki_pool *pool)
{
    return pool == NULL ? 1 : pool->threads;
}

void lki_pool_trace(lki_pool *pool, lki_trace *trace, uint32_t first)
{
    pool->trace      = trace; /* helpers see the change with the next job */
    pool->first_track = first;
}

/* Runs a job on all threads.  Every helper takes part, even if no task is left for it. */
static void run_job(lki_pool *pool, size_t count, bool each, lki_task task, void *context)
{
    pool->task    = task;
    pool->context = context;
    pool->each    = each;
    divide(pool, count);
    atomic_store_explicit(&pool->busy, pool->started, memory_order_relaxed);
    atomic_fetch_add(&pool->generation, 1);
    wake(pool, &pool->generation);
    work(pool, 0);
    uint32_t busy;
    while ((busy = atomic_load_explicit(&pool->busy, memory_order_acquire)) != 0)
        (void)wait_change(pool, &pool->busy, busy);
}

void lki_pool_run(lki_pool *pool, size_t count, lki_task task, void *context)
{
    if (pool == NULL || pool->started == 0 || count <= 1)
        for (size_t i = 0; i < count; i++)
            task(context, i, 0);
    else
        run_job(pool, count, false, task, context);
}

void lki_pool_each(lki_pool *pool, lki_task task, void *context)
{
    if (pool == NULL || pool->started == 0)
        task(context, 0, 0);
    else
        run_job(pool, pool->threads, true, task, context);
}

/* ---- Placement of threads and memory ----------------------------------------------------- */

typedef struct {
    char    *memory;
    size_t   bytes;
    uint32_t parts;
} fresh;

static void touch(void *context, size_t index, uint32_t thread)
{
    const fresh *f     = context;
    size_t       first = f->bytes / f->parts * index;
    (void)thread;
    memset(f->memory + first, 0,
           index + 1 < f->parts ? f->bytes / f->parts : f->bytes - first);
}

lk_status lki_pool_alloc(void **out, lki_pool *pool, size_t bytes, const char *what)
{
    LK_TRY(lki_alloc_untouched(out, bytes, what));
    fresh f = { .memory = *out, .bytes = lki_round_up(bytes, 64), .parts = lki_pool_threads(pool) };
    lki_pool_each(pool, touch, &f);
    return LK_OK;
}

bool lki_pool_pin(lki_pool *pool)
{
    lki_cpus cpus;
    LK_ASSERT(!pool->pinned);
    if (sched_getaffinity(0, sizeof pool->before, &pool->before) != 0)
        return false;
    lki_cpus_sort(&cpus, &pool->before);
    if (cpus.count < pool->threads)
        return false;
    for (uint32_t i = 1; i < pool->threads; i++) {
        cpu_set_t share;
        lki_cpus_share(&share, &cpus, i, pool->threads);
        (void)pthread_setaffinity_np(pool->handles[i - 1], sizeof share, &share);
    }
    lki_cpus_share(&pool->mine, &cpus, 0, pool->threads);
    pool->pinned = true;
    lki_pool_pin_caller(pool, true);
    return true;
}

void lki_pool_pin_caller(lki_pool *pool, bool pinned)
{
    if (pool->pinned) /* if some of these cores are no longer available, the kernel uses the
                       * remaining ones */
        (void)sched_setaffinity(0, sizeof pool->mine, pinned ? &pool->mine : &pool->before);
}
