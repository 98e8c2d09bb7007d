/* pool_test.c -- tests the threads of a pool.
 *
 * Each thread begins with its own share of the tasks, and takes over what others have not begun.
 * Threads use the standard floating-point mode, whatever the mode of their creator.  Threads can be
 * bound to separate cores.  Memory is first touched by the thread that will use it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>

#include "base/cpus.h"
#include "base/float.h"
#include "base/memory.h"
#include "base/pool.h"

#if defined(__x86_64__)
#define FLUSH_TO_ZERO UINT64_C(0x8040)
#else
#define FLUSH_TO_ZERO UINT64_C(0x1000000)
#endif

typedef struct {
    _Atomic uint32_t arrived;
    float            half[2]; /* half of the smallest normal number, computed by each thread */
} meeting;

/* Waits until both tasks have started, so that they run on two threads. */
static void halve(void *context, size_t index, uint32_t thread)
{
    meeting       *m    = context;
    volatile float tiny = 0x1p-126f;
    (void)index;
    atomic_fetch_add(&m->arrived, 1);
    while (atomic_load(&m->arrived) < 2)
        continue;
    m->half[thread] = tiny * 0.5f;
}

static void helpers_keep_subnormal_numbers(void **state)
{
    lki_pool *pool = NULL;
    meeting   m    = { .half = { 1.0f, 1.0f } };
    uint64_t  mode = lki_float_mode();
    (void)state;
    assert_true(lki_float_is_standard());
    lki_float_mode_set(mode | FLUSH_TO_ZERO);
    if (lki_float_is_standard()) /* an emulator may not implement the other mode */
        skip();
    assert_int_equal(lki_pool_open(&pool, 2), LK_OK);
    lki_pool_run(pool, 2, halve, &m);
    lki_pool_free(pool);
    lki_float_mode_set(mode);
    assert_true(m.half[0] == 0.0f); /* control: the caller's thread does flush */
    assert_true(m.half[1] == 0x1p-127f);
}

enum { THREADS = 5 };

typedef struct {
    uint32_t  runs[THREADS];
    pthread_t who[THREADS];
    cpu_set_t where[THREADS];
} roll;

static void call_roll(void *context, size_t index, uint32_t thread)
{
    roll *r = context;
    assert_int_equal(index, thread);
    r->runs[thread]++;
    r->who[thread] = pthread_self();
    (void)sched_getaffinity(0, sizeof r->where[thread], &r->where[thread]);
}

static void each_task_runs_on_its_own_thread(void **state)
{
    lki_pool *pool = NULL;
    roll      r    = { .runs = { 0 } };
    (void)state;
    assert_int_equal(lki_pool_open(&pool, THREADS), LK_OK);
    for (int round = 0; round < 100; round++)
        lki_pool_each(pool, call_roll, &r);
    lki_pool_free(pool);
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(r.runs[i], 100);
        for (uint32_t j = 0; j < i; j++)
            assert_false(pthread_equal(r.who[i], r.who[j]));
    }
    r = (roll){ .runs = { 0 } };
    lki_pool_each(NULL, call_roll, &r);
    assert_int_equal(r.runs[0], 1);
}

enum { TASKS = 4 * THREADS };

typedef struct {
    _Atomic uint32_t begun, done;
    uint32_t         who[TASKS];
} shares;

static bool is_first(size_t index)
{
    return index % (TASKS / THREADS) == 0;
}

/* Waits in the first task of each share until all threads have begun one. */
static void begin_share(void *context, size_t index, uint32_t thread)
{
    shares *s     = context;
    s->who[index] = thread;
    if (!is_first(index))
        return;
    atomic_fetch_add(&s->begun, 1);
    while (atomic_load(&s->begun) < THREADS)
        (void)sched_yield();
}

static void threads_begin_with_their_own_tasks(void **state)
{
    lki_pool *pool = NULL;
    (void)state;
    assert_int_equal(lki_pool_open(&pool, THREADS), LK_OK);
    for (int round = 0; round < 20; round++) {
        shares s = { .begun = 0 };
        lki_pool_run(pool, TASKS, begin_share, &s);
        for (size_t i = 0; i < TASKS; i++)
            assert_true(!is_first(i) || s.who[i] == i / (TASKS / THREADS));
    }
    lki_pool_free(pool);
}

static void shares_divide_all_tasks(void **state)
{
    (void)state;
    for (size_t threads = 1; threads <= 9; threads++)
        for (size_t count = 1; count <= 30; count++)
            for (size_t i = 0; i < count; i++) {
                const size_t t = lki_pool_thread_of(count, threads, i);
                assert_true(t < threads && lki_pool_first(count, threads, t) <= i &&
                            i < lki_pool_first(count, threads, t + 1));
            }
}

/* Waits in the first task until all others are done, three of which are of the same share.  So none
 * of these runs on its thread, which need not be the one that begins with the share. */
static void wait_for_others(void *context, size_t index, uint32_t thread)
{
    shares *s     = context;
    s->who[index] = thread;
    while (index == 0 && atomic_load(&s->done) < TASKS - 1)
        (void)sched_yield();
    atomic_fetch_add(&s->done, 1);
}

static void threads_take_over_tasks(void **state)
{
    lki_pool *pool = NULL;
    shares    s    = { .begun = 0 };
    (void)state;
    assert_int_equal(lki_pool_open(&pool, THREADS), LK_OK);
    lki_pool_run(pool, TASKS, wait_for_others, &s);
    lki_pool_free(pool);
    assert_int_equal(s.done, TASKS);
    for (size_t i = 1; !is_first(i); i++)
        assert_int_not_equal(s.who[i], s.who[0]);
}

/* Checks that every processor of the caller belongs to exactly one thread. */
static void threads_are_bound_one_by_one(void **state)
{
    lki_pool *pool = NULL;
    roll      r    = { .runs = { 0 } };
    cpu_set_t mine, now, seen, both;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    uint32_t threads = (uint32_t)lki_min(THREADS, (size_t)CPU_COUNT(&mine));
    assert_int_equal(lki_pool_open(&pool, threads), LK_OK);
    assert_true(lki_pool_pin(pool));
    lki_pool_each(pool, call_roll, &r);
    CPU_ZERO(&seen);
    for (uint32_t i = 0; i < threads; i++) {
        CPU_AND(&both, &seen, &r.where[i]);
        assert_int_equal(CPU_COUNT(&both), 0);
        assert_true(CPU_COUNT(&r.where[i]) >= CPU_COUNT(&mine) / (int)threads);
        CPU_OR(&seen, &seen, &r.where[i]);
    }
    assert_true(CPU_EQUAL(&seen, &mine));
    lki_pool_pin_caller(pool, false);
    assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
    assert_true(CPU_EQUAL(&now, &mine));
    lki_pool_pin_caller(pool, true);
    lki_pool_free(pool);
    assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
    assert_true(CPU_EQUAL(&now, &mine));
}

static void more_threads_than_processors_are_not_bound(void **state)
{
    lki_pool *pool = NULL;
    roll      r    = { .runs = { 0 } };
    cpu_set_t mine, one;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    CPU_ZERO(&one);
    for (unsigned cpu = 0; CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &mine))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(lki_pool_open(&pool, 2), LK_OK);
    assert_false(lki_pool_pin(pool));
    lki_pool_each(pool, call_roll, &r);
    lki_pool_free(pool);
    assert_int_equal(sched_setaffinity(0, sizeof mine, &mine), 0);
    assert_true(CPU_EQUAL(&r.where[0], &one) && CPU_EQUAL(&r.where[1], &one));
}

/* Returns the number of pages that this thread was the first to touch. */
static long faults(void)
{
    struct rusage used;
    assert_int_equal(getrusage(RUSAGE_THREAD, &used), 0);
    return used.ru_minflt;
}

static void memory_is_touched_by_all_threads(void **state)
{
    enum { PAGES = 400, BYTES = PAGES * 4096 - 200 }; /* below the size of huge pages */
    lki_pool *pool = NULL;
    char     *memory;
    long      mine[2];
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(lki_pool_open(&pool, i == 0 ? 1 : 4), LK_OK);
        long before = faults();
        assert_int_equal(lki_pool_alloc((void **)&memory, pool, BYTES, "a test"), LK_OK);
        mine[i] = faults() - before;
        for (size_t k = 0; k < BYTES; k++)
            assert_true(memory[k] == 0);
        lki_free(memory);
        lki_pool_free(pool);
    }
    if (mine[0] < 16) /* with large pages too few faults occur for a comparison */
        skip();
    assert_true(mine[1] < mine[0] * 3 / 4);
}

/* Checks that each part consists of neighbouring processors, and that every processor is in exactly
 * one part. */
static void processors_are_shared_out(void **state)
{
    const lki_cpus cpus = { .count = 7, .order = { 0, 4, 1, 5, 2, 6, 3 } };
    lki_cpus       found;
    cpu_set_t      share, all;
    (void)state;
    lki_cpus_share(&share, &cpus, 1, 3);
    assert_true(CPU_COUNT(&share) == 2 && CPU_ISSET(1, &share) && CPU_ISSET(5, &share));
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    lki_cpus_sort(&found, &all);
    assert_int_equal(found.count, CPU_COUNT(&all));
    assert_true(found.cores >= 1 && found.cores <= found.count && found.packages <= found.cores);
    lki_cpus_share(&share, &found, 0, 1);
    assert_true(CPU_EQUAL(&share, &all));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(helpers_keep_subnormal_numbers),
        cmocka_unit_test(each_task_runs_on_its_own_thread),
        cmocka_unit_test(threads_begin_with_their_own_tasks),
        cmocka_unit_test(shares_divide_all_tasks),
        cmocka_unit_test(threads_take_over_tasks),
        cmocka_unit_test(threads_are_bound_one_by_one),
        cmocka_unit_test(more_threads_than_processors_are_not_bound),
        cmocka_unit_test(memory_is_touched_by_all_threads),
        cmocka_unit_test(processors_are_shared_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
