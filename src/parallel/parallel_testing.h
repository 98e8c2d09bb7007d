/* parallel/parallel_testing.h -- ranks as threads, for tests in src/parallel. */
#ifndef LKI_PARALLEL_PARALLEL_TESTING_H
#define LKI_PARALLEL_PARALLEL_TESTING_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { LKT_RANKS_MAX = 12 };

/* A name of LK_NAME_MAX - 1 characters. */
#define LKT_FIFTY "features.of.a.block.of.a.branch.of.an.autoencoder."
#define LKT_LONG_NAME LKT_FIFTY LKT_FIFTY LKT_FIFTY LKT_FIFTY LKT_FIFTY "weigh"

/* Runs every rank in a separate thread, and waits for all threads.  Rank r gets the address of the
 * r-th of `members`, each of `bytes` bytes. */
static inline void lkt_run_ranks(void *(*run)(void *member), void *members, size_t bytes,
                                 uint32_t ranks)
{
    pthread_t threads[LKT_RANKS_MAX];
    assert_true(ranks <= LKT_RANKS_MAX);
    for (uint32_t r = 0; r < ranks; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, run, (char *)members + r * bytes), 0);
    for (uint32_t r = 0; r < ranks; r++)
        (void)pthread_join(threads[r], NULL);
}

#endif
