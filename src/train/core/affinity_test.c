/* affinity_test.c -- checks that a run binds its threads to cores only if no other worker may use
 * these cores. */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train/core/session.h"

enum { THREADS = 2 };

/* The measurements of a rank at its first step. */
typedef struct {
    lk_train_config config;
    cpu_set_t       all;
    lk_comm        *comm;
    int             own, narrow, wide; /* cores of the caller; threads with fewer cores; threads
                                        * with all cores */
} view;

static bool count_bound_threads(void *context)
{
    view          *v     = context;
    DIR           *tasks = opendir("/proc/self/task");
    struct dirent *entry;
    cpu_set_t      cpus;

    assert_non_null(tasks);
    v->narrow = v->wide = 0;
    while ((entry = readdir(tasks)) != NULL) {
        int id = atoi(entry->d_name);
        if (id == 0 || sched_getaffinity(id, sizeof cpus, &cpus) != 0)
            continue;
        v->narrow += !CPU_EQUAL(&cpus, &v->all);
        v->wide += CPU_EQUAL(&cpus, &v->all);
    }
    (void)closedir(tasks);
    assert_int_equal(sched_getaffinity(0, sizeof cpus, &cpus), 0);
    v->own = CPU_COUNT(&cpus);
    return true;
}

static void train(view *v, lk_comm *comm, uint32_t workers, bool pin)
{
    lk_train_result result;
    cpu_set_t       after;
    v->config = (lk_train_config){ .struct_size     = sizeof(lk_train_config),
                                   .model           = "mlp",
                                   .data.source     = "synthetic:images=60,h=6,w=6,c=1,classes=5",
                                   .global_batch    = 12,
                                   .virtual_workers = 2,
                                   .workers         = workers,
                                   .threads         = THREADS,
                                   .pin             = pin,
                                   .steps           = 1000, /* the loader is still running */
                                   .schedule        = { .lr = 0.1 },
                                   .quiet           = true,
                                   .calls.stop      = count_bound_threads,
                                   .calls.stop_context = v };
    assert_int_equal(lk_train_check(&v->config), LK_OK);
    lk_status status = lk_train_run(comm, &v->config, &result);
    if (status != LK_ESTOPPED)
        fail_msg("%s", lk_error_last()->message);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&after, &v->all));
}

static void open_view(view *v)
{
    assert_int_equal(sched_getaffinity(0, sizeof v->all, &v->all), 0);
    if (CPU_COUNT(&v->all) < THREADS)
        skip();
}

static lk_comm *open_alone(void)
{
    lk_comm_options how  = { .struct_size = sizeof(lk_comm_options), .timeout_ms = 60000 };
    lk_comm        *comm = NULL;
    assert_int_equal(lk_comm_open_threads(&comm, 1, &how), LK_OK);
    return comm;
}

static void threads_have_cores_of_their_own(void **state)
{
    view v;
    (void)state;
    open_view(&v);
    lk_comm *comm = open_alone();
    train(&v, comm, 1, true);
    assert_int_equal(v.own, CPU_COUNT(&v.all) / THREADS);
    assert_int_equal(v.narrow, THREADS);
    assert_true(v.wide >= 1); /* the loader's thread */
    lk_comm_free(comm);
}

static void threads_are_not_bound_unless_requested(void **state)
{
    view v;
    (void)state;
    open_view(&v);
    lk_comm *comm = open_alone();
    train(&v, comm, 1, false);
    assert_int_equal(v.narrow, 0);
    lk_comm_free(comm);
}

static void *train_beside(void *context)
{
    view *v = context;
    train(v, v->comm, 2, true);
    return NULL;
}

/* Checks that two ranks that may use the same cores do not bind their threads. */
static void workers_that_share_cores_bind_nothing(void **state)
{
    const lk_comm_options how = { .struct_size = sizeof(lk_comm_options), .timeout_ms = 60000 };
    lk_comm              *comms[2];
    view                  v[2];
    pthread_t             thread;
    (void)state;
    open_view(&v[0]);
    open_view(&v[1]);
    assert_int_equal(lk_comm_open_threads(comms, 2, &how), LK_OK);
    v[0].comm = comms[0];
    v[1].comm = comms[1];
    assert_int_equal(pthread_create(&thread, NULL, train_beside, &v[1]), 0);
    (void)train_beside(&v[0]);
    assert_int_equal(pthread_join(thread, NULL), 0);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(v[rank].narrow, 0);
        lk_comm_free(comms[rank]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_have_cores_of_their_own),
        cmocka_unit_test(threads_are_not_bound_unless_requested),
        cmocka_unit_test(workers_that_share_cores_bind_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
