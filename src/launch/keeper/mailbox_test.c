/* mailbox_test.c -- tests that messages of other hosts reach the coordinator, whenever the keeper
 * posts them.
 *
 * Goal:   every event is handled once and in order, even if it is posted just after the coordinator
 *         has found none.
 * Method: one process plays both sides.  The linker replaces the C library's read() by the function
 *         below (mailbox_test.wrap), which posts an event as soon as a read() has found that the
 *         bell (an eventfd) is not readable.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "launch/keeper/keeper.h"

static lki_job     job;
static lki_keeper *keeper;
static lki_event   late; /* event to post when the bell is not readable; LKI_EVENT_NONE: none */

/* Posts an event as the keeper does. */
static void post(const lki_event *event)
{
    uint64_t    posted = atomic_load(&keeper->shared->posted), one = 1;

    keeper->events[posted % keeper->event_places] = *event;
    atomic_store(&keeper->shared->posted, posted + 1);
    assert_int_equal(write(keeper->bell, &one, sizeof one), sizeof one);
}

ssize_t __real_read(int fd, void *to, size_t bytes);
ssize_t __wrap_read(int fd, void *to, size_t bytes);
ssize_t __wrap_read(int fd, void *to, size_t bytes)
{
    ssize_t got = __real_read(fd, to, bytes);

    if (keeper != NULL && fd == keeper->bell && got < 0 && late.kind != LKI_EVENT_NONE) {
        lki_event event = late;
        late.kind       = LKI_EVENT_NONE;
        post(&event);
    }
    return got;
}

static int open_job(void **state)
{
    static lki_host host = { .orders = -1 };
    lki_roster      all  = { .world = 2, .first = 0, .count = 1 };

    job    = (lki_job){ .host     = &host,
                        .executor = &lki_coordinator_executor,
                        .count    = 1,
                        .roster   = all };
    *state = job.workers = calloc(1, sizeof *job.workers);
    job.rendezvous       = (void *)&host; /* not NULL, which means that there are other nodes; never
                                           * dereferenced */
    if (lki_control_create(&job.control, all) != LK_OK ||
        lki_keeper_open(&keeper, &job) != LK_OK)
        return 1;
    job.executor_state = keeper;
    keeper->inside     = true;
    keeper->bell       = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return keeper->bell < 0;
}

static int close_job(void **state)
{
    (void)close(keeper->bell);
    lki_keeper_free(keeper);
    keeper = NULL;
    lki_control_free(job.control);
    free(*state);
    memset(&job, 0, sizeof job);
    return 0;
}

static void events_are_handled_in_order(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        post(&(lki_event){ .kind = LKI_EVENT_ASKED, .timeout_ms = 700 - 100 * i });
    assert_int_equal(lki_nodes_serve(&job), LK_OK);
    assert_int_equal(job.heard, 3);
    assert_int_equal(job.rebuild_ms, 500);
    assert_int_equal(lki_nodes_serve(&job), LK_OK);
    assert_int_equal(job.heard, 3);
}

static void an_event_posted_after_an_empty_read_is_handled(void **state)
{
    (void)state;
    post(&(lki_event){ .kind = LKI_EVENT_ASKED, .timeout_ms = 700 });
    late = (lki_event){ .kind = LKI_EVENT_ASKED, .timeout_ms = 300 };
    for (int turn = 0; turn < 2; turn++) /* the event arrives at once or in the next wake-up */
        assert_int_equal(lki_nodes_serve(&job), LK_OK);
    assert_int_equal(late.kind, LKI_EVENT_NONE);
    assert_int_equal(job.rebuild_ms, 300);
    assert_int_equal(job.heard, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(events_are_handled_in_order, open_job, close_job),
        cmocka_unit_test_setup_teardown(an_event_posted_after_an_empty_read_is_handled, open_job,
                                        close_job),
    };
    return cmocka_run_group_tests_name("launch.keeper.mailbox", tests, NULL, NULL);
}
