/* hosts_test.c -- hosts whose launchers do not come, or are silent.
 *
 * Goal:   nobody waits for one that is killed before all have met: the job ends at once, the host
 *         is named, and the job may be started again, whether or not it would go on after a
 *         failure.  Nor is anybody waited for who has heard a request to stop before.
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
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "comm/rendezvous.h"
#include "launch/nodes.h"
#include "lockstep/launch.h"

enum { HOSTS = 3, WORKERS = 6 };
typedef enum { NEVER, OPENING, LISTENING } moment;

static int32_t doomed; /* this node ... */
static moment  last;   /* ... dies here, ... */
static int     of;     /* ... of this signal */
static int32_t node;   /* of this process */

static void may_be_the_last(moment now)
{
    if (node == doomed && now == last)
        (void)kill(getpid(), of);
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

static void launch(lk_on_failure on_failure, lk_status expected, lk_launch_result *result)
{
    char             *argv[]  = { (char[]){ "true" }, NULL };
    lk_launch_options options = { .workers    = WORKERS,
                                  .hosts      = HOSTS,
                                  .argv       = argv,
                                  .join_ms    = 20000,
                                  .on_failure = on_failure };
    assert_int_equal(lk_launch(&options, result), expected);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nobody is left */
}

static void who_does_not_come_to_the_meeting_is_named(void **state)
{
    static const lk_on_failure on_failure[] = { LK_ON_FAILURE_STOP, LK_ON_FAILURE_CONTINUE };
    lk_launch_result           result;
    char                       wanted[160];

    (void)state;
    of = SIGKILL;
    for (last = OPENING; last <= LISTENING; last++)
        for (doomed = 0; doomed < HOSTS; doomed++)
            for (size_t i = 0; i < 2; i++) {
                launch(on_failure[i], LK_OK, &result);
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
    launch(LK_ON_FAILURE_CONTINUE, LK_OK, &result);
    assert_false(result.failed);
}

/* No launcher stays for as long as it may after another's end, which is 5 s. */
static void who_is_asked_to_stop_before_ends_all(void **state)
{
    lk_launch_result result;
    double           begun = lki_seconds();

    (void)state;
    of = SIGTERM;
    for (last = OPENING; last <= LISTENING; last++)
        for (doomed = 0; doomed < HOSTS; doomed++) {
            launch(LK_ON_FAILURE_CONTINUE, LK_ESTOPPED, &result);
            assert_string_equal(lk_error_last()->message,
                                "SIGTERM came while waiting for the other nodes");
            assert_int_equal(result.exit_code, 128 + SIGTERM);
        }
    last = NEVER;
    assert_true(lki_seconds() - begun < 5 * 2 * HOSTS);
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
        cmocka_unit_test(who_is_asked_to_stop_before_ends_all),
        cmocka_unit_test(silence_is_as_long_as_other_waits),
    };
    return cmocka_run_group_tests_name("launch.hosts", tests, NULL, NULL);
}
