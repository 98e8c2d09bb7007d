/* window_test.c -- how far ahead of the first task a replay of a shared vector begins others.
 *
 * Goal:    no task begins that is as many places after the first one as the window has.
 * Method:  the rank of the first task holds it until the other rank can begin none, or has begun
 *          one too many.
 * Control: without the window the other rank begins one too many.
 */
#include "parallel/crew_testing.h"
#include "parallel/shared/replay.h"

#include <sched.h>
#include <unistd.h>

enum { TASKS = 60 };

typedef struct {
    const char *record, *replay;
    lk_comm    *comm;
    lk_status   status;
    lk_error    failure;
} member;

static char path[] = "/tmp/lockstep-window-XXXXXX";

/* Waits in the first task of a replay until the other rank has no more tasks within the window, or
 * has begun one after it.  Returns false in the latter case. */
static bool hold_first(const lk_shared_vector *v)
{
    const lki_shared_replay *r = v->replay;
    while (atomic_load(&v->common->begun) < r->window ||
           atomic_load(&r->doing[1 - v->rank]) != LKI_NO_TASK) {
        if (atomic_load(&v->common->begun) > r->window)
            return false;
        (void)sched_yield();
    }
    return atomic_load(&v->common->begun) == r->window;
}

/* Each task pushes to a span of its own, so no task waits for another one. */
static lk_status push_apart(member *m)
{
    const float                    one     = 1;
    const lk_shared_vector_options options = { .struct_size = sizeof options,
                                               .span        = 16,
                                               .record      = m->record,
                                               .replay      = m->replay };
    lk_shared_vector *v      = NULL;
    lk_status         status = lk_shared_vector_open(&v, m->comm, 16 * TASKS, &options);
    uint64_t          task;
    bool              more = true;
    if (status == LK_OK)
        status = lk_shared_vector_begin(v, TASKS);
    while (status == LK_OK && more) {
        status = lk_shared_vector_next(v, &more, &task);
        if (status != LK_OK || !more)
            break;
        if (v->replay != NULL && v->ranks > 1 && atomic_load(&v->replay->doing[v->rank]) == 0 &&
            !hold_first(v))
            status = lk_fail(LK_EINVAL, "a task after the window has begun");
        if (status == LK_OK)
            status = lk_shared_vector_push(v, 16 * task, 1, &one, 1);
    }
    if (status == LK_OK)
        status = lk_shared_vector_finish(v);
    lk_shared_vector_free(v);
    return status;
}

static void *push_apart_main(void *argument)
{
    member *m = argument;
    m->status = push_apart(m);
    if (m->status != LK_OK) {
        m->failure = *lk_error_last();
        lk_comm_abort(m->comm);
    }
    return NULL;
}

/* A task that others would be too far ahead of holds them up.  Else they would need more memory for
 * old versions than there is. */
static void tasks_begin_within_the_window(void **state)
{
    (void)state;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        lk_comm        *comms[2] = { NULL };
        lk_comm_options options  = { .struct_size = sizeof(lk_comm_options),
                                     .timeout_ms  = WORLD_PATIENCE_MS };
        member          members[2];
        assert_int_equal(lk_comm_open_threads(comms, ranks, &options), LK_OK);
        for (uint32_t i = 0; i < ranks; i++)
            members[i] = (member){ .record = ranks == 1 ? path : NULL,
                                     .replay = ranks == 1 ? NULL : path,
                                     .comm   = comms[i] };
        lkt_run_ranks(push_apart_main, members, sizeof *members, ranks);
        for (uint32_t i = 0; i < ranks; i++) {
            if (members[i].status != LK_OK)
                print_message("%s\n", members[i].failure.message);
            lk_comm_free(comms[i]);
        }
        for (uint32_t i = 0; i < ranks; i++)
            assert_int_equal(members[i].status, LK_OK);
    }
}

static int make_file(void **state)
{
    const int fd = mkstemp(path);
    (void)state;
    return fd < 0 || close(fd) != 0 ? -1 : 0;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(tasks_begin_within_the_window) };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
