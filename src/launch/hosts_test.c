/* hosts_test.c -- tests hosts whose launchers are killed before the job starts, or stop sending.
 *
 * Goal:   no launcher waits for a launcher that is killed before all have connected.  The job ends
 *         at once, the message names the host, and the result says that the job may be started
 *         again, with or without continue mode.  No launcher waits for a launcher that received a
 *         request to stop before all had connected.  A silent launcher counts as lost after the
 *         job's timeout.
 * Method: the linker replaces functions of the rendezvous by the functions below (hosts_test.wrap).
 *         In the launcher of one host these functions kill the launcher before it connects to the
 *         other launchers, or before it has received their messages.
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
#include "launch/rendezvous/rendezvous.h"
#include "launch/job/nodes.h"
#include "lockstep/launch.h"

enum { HOSTS = 3, WORKERS = 6 };
typedef enum { NEVER, OPENING, LISTENING } moment;

static int32_t doomed; /* node whose launcher is to be killed or stopped */
static moment  last;   /* moment at which the launcher is killed or stopped */
static int     of;     /* signal that kills or stops the launcher */
static int32_t node;   /* number of this process's node */

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
    lk_launch_options options = { .struct_size = sizeof(lk_launch_options),
                                  .workers     = WORKERS,
                                  .hosts       = HOSTS,
                                  .argv        = argv,
                                  .join_ms     = 20000,
                                  .on_failure  = on_failure };
    assert_int_equal(lk_launch(&options, result), expected);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no process is left */
}

static void a_launcher_killed_before_the_rendezvous_is_named(void **state)
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

/* Stops one launcher; returns the number of seconds until the job ended. */
static double stop_one(void)
{
    lk_launch_result result;
    double           begun = lki_seconds();

    launch(LK_ON_FAILURE_CONTINUE, LK_ESTOPPED, &result);
    assert_string_equal(lk_error_last()->message, "SIGTERM came while waiting for the other nodes");
    assert_int_equal(result.exit_code, 128 + SIGTERM);
    return lki_seconds() - begun;
}

/* Stops one launcher before all have connected.  Expects that the job ends without the wait of 5 s
 * for launchers that have not ended.  A wait of 5 s by mistake would occur in every try, but a busy
 * machine delays only some tries. */
static void a_stop_request_before_the_rendezvous_ends_the_job(void **state)
{
    (void)state;
    of = SIGTERM;
    for (last = OPENING; last <= LISTENING; last++)
        for (doomed = 0; doomed < HOSTS; doomed++)
            for (uint32_t tries = 0; stop_one() >= 5; tries++)
                assert_true(tries < 20);
    last = NEVER;
}

/* Checks that the silence after which a node counts as lost is the job's timeout, limited to 1 s to
 * 10 s. */
static void the_silence_limit_follows_the_timeout(void **state)
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
        cmocka_unit_test(a_launcher_killed_before_the_rendezvous_is_named),
        cmocka_unit_test(a_stop_request_before_the_rendezvous_ends_the_job),
        cmocka_unit_test(the_silence_limit_follows_the_timeout),
    };
    return cmocka_run_group_tests_name("launch.hosts", tests, NULL, NULL);
}
