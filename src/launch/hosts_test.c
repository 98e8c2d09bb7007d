/* hosts_test.c -- hosts whose launchers do not come, or are silent.
 *
 * Goal:   nobody waits for one that is killed before all have met: the job ends at once, the host
 *         is named, and the job may be started again, whether or not it would go on after a
 *         failure.
 *         Silence is missed after the job's timeout.
 * Method: the linker puts the calls below before the rendezvous's (hosts_test.wrap).  The launcher
 *         of one host does not come to one of them: it is killed before it has looked for the
 *         others, or before it has heard of them.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "comm/rendezvous.h"
#include "launch/nodes.h"
#include "lockstep/launch.h"

enum { HOSTS = 3, WORKERS = 6 };
typedef enum { NEVER, OPENING, LISTENING } moment;

static int32_t doomed; /* this node ... */
static moment  last;   /* ... dies here */
static int32_t node;   /* of this process */

static void may_be_the_last(moment now)
{
    if (node == doomed && now == last)
        (void)raise(SIGKILL);
}

/* clang-format off */
lk_status __real_lki_rendezvous_open(lki_rendezvous **out, const lki_rendezvous_options *options);
lk_status __wrap_lki_rendezvous_open(lki_rendezvous **out, const lki_rendezvous_options *options);
lk_status __real_lki_rendezvous_next(lki_rendezvous *rendezvous, lki_event *out);
lk_status __wrap_lki_rendezvous_next(lki_rendezvous *rendezvous, lki_event *out);
/* clang-format on */

lk_status __wrap_lki_rendezvous_open(lki_rendezvous **out, const lki_rendezvous_options *options)
{
    node = options->node;
    may_be_the_last(OPENING);
    return __real_lki_rendezvous_open(out, options);
}

lk_status __wrap_lki_rendezvous_next(lki_rendezvous *rendezvous, lki_event *out)
{
    may_be_the_last(LISTENING);
    return __real_lki_rendezvous_next(rendezvous, out);
}

static void launch(lk_on_failure on_failure, lk_launch_result *result)
{
    char             *argv[]  = { (char[]){ "true" }, NULL };
    lk_launch_options options = { .workers    = WORKERS,
                                  .hosts      = HOSTS,
                                  .argv       = argv,
                                  .join_ms    = 20000,
                                  .on_failure = on_failure };
    assert_int_equal(lk_launch(&options, result), LK_OK);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nobody is left */
}

static void who_does_not_come_to_the_meeting_is_named(void **state)
{
    static const lk_on_failure on_failure[] = { LK_ON_FAILURE_STOP, LK_ON_FAILURE_CONTINUE };
    lk_launch_result           result;
    char                       wanted[160];

    (void)state;
    for (last = OPENING; last <= LISTENING; last++)
        for (doomed = 0; doomed < HOSTS; doomed++)
            for (size_t i = 0; i < 2; i++) {
                launch(on_failure[i], &result);
                (void)snprintf(wanted, sizeof wanted,
                               "host host%d (node %d, ranks %d to %d) is lost: its launcher was "
                               "killed by SIGKILL before all hosts had met", doomed, doomed,
                               2 * doomed, 2 * doomed + 1);
                assert_string_equal(result.cause, wanted);
                assert_true(result.failed && result.lost);
                assert_int_equal(result.exit_code, 1);
                assert_int_equal(result.rank, 2 * doomed);
            }
    last = NEVER;
    launch(LK_ON_FAILURE_CONTINUE, &result);
    assert_false(result.failed);
}

/* From 1 s to 10 s. */
static void silence_is_as_long_as_other_waits(void **state)
{
    (void)state;
    assert_int_equal(lki_nodes_silence_ms(1), 1000);
    assert_int_equal(lki_nodes_silence_ms(1000), 1000);
    assert_int_equal(lki_nodes_silence_ms(2500), 2500);
    assert_int_equal(lki_nodes_silence_ms(30000), 10000);
    assert_int_equal(lki_nodes_silence_ms(0), 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_does_not_come_to_the_meeting_is_named),
        cmocka_unit_test(silence_is_as_long_as_other_waits),
    };
    return cmocka_run_group_tests_name("launch.hosts", tests, NULL, NULL);
}
