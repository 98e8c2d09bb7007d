/* stopped_test.c -- tests that the launcher kills a process that is stopped (SIGSTOP) when all work
 * is done.
 *
 * Goal:   if ranks leave together, a stopped rank or launcher delays the end of the job by at most
 *         the timeout.  The delay counts from the moment when the other ranks have seen the end.
 *         The stopped process is killed with a note.  The job then counts as a success, even if
 *         other ranks were lost before.
 * Method: the workers are this program; they stop themselves, or their launcher, after the last
 *         barrier.
 */
#include <signal.h>

#include "comm/worker.h"
#include "launch/job/rebuild_jobs_testing.h"
#include "launch/job/side_by_side_testing.h"

/* Kills `rank`, and rebuilds the group without that rank. */
static bool go_on_without(lk_comm **comm, uint32_t rank)
{
    lk_comm *before = *comm;

    while (lk_barrier(before) == LK_OK)
        if (lk_comm_rank(before) == rank)
            (void)raise(SIGKILL);
    if (lk_comm_rebuild(comm, before, NULL) != LK_OK)
        return false;
    lk_comm_free(before);
    return lk_barrier(*comm) == LK_OK;
}

/* Runs as a worker, with arguments "worker MODE PLACE RANK".  After the barrier the rank RANK stops
 * itself or its parent process.  Some modes kill another rank before the barrier. */
static int work(char **argv)
{
    lk_comm *comm;

    (void)setenv("LOCKSTEP_TIMEOUT_MS", "20000", 1); /* limit for connecting on a busy machine */
    if (lk_join(&comm) != LK_OK)
        return 90;
    if (strcmp(argv[3], "lost") == 0 ? !go_on_without(&comm, 1) : lk_barrier(comm) != LK_OK)
        return 91;
    bool chosen = lk_comm_rank(comm) == (uint32_t)atoi(argv[4]);
    if (chosen && strcmp(argv[2], "rank") == 0) {
        if (strcmp(argv[3], "left") == 0)
            lki_comm_leave(comm);
        (void)raise(SIGSTOP);
    }
    if (chosen && strcmp(argv[2], "launcher") == 0)
        (void)kill(getppid(), SIGSTOP);
    lk_comm_free(comm);
    return 0;
}

enum { TIMEOUT_S = 6 };

static lk_launch_options over(uint32_t hosts, lk_on_failure on_failure)
{
    return (lk_launch_options){ .struct_size    = sizeof(lk_launch_options),
                                .workers        = 2,
                                .hosts          = hosts,
                                .timeout_ms     = 1000 * TIMEOUT_S,
                                .on_failure     = on_failure,
                                .leave_together = true,
                                .note           = take_note };
}

/* Stops rank 0 after the barrier or, if `place` is "left", after rank 0 has left its group.  In
 * continue mode with several hosts, only a rank that has left is known to be done. */
static void kill_a_rank(uint32_t hosts, lk_on_failure on_failure, const char *place)
{
    char words[128];

    assert_good(launch(over(hosts, on_failure), "rank", place, 0), "rank", place, hosts);
    (void)snprintf(words, sizeof words, ") has been stopped (by SIGSTOP or a debugger) for %d s "
                   "when all was done, and is killed\n", TIMEOUT_S);
    assert_noted("rank 0 (");
    assert_noted(words);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void a_stopped_rank_is_killed_at_the_end(void **state)
{
    (void)state;
    kill_a_rank(1, LK_ON_FAILURE_STOP, "");
}

static void a_stopped_rank_of_two_hosts_is_killed_at_the_end(void **state)
{
    (void)state;
    kill_a_rank(2, LK_ON_FAILURE_STOP, "");
}

static void a_stopped_rank_that_has_left_is_killed_at_the_end(void **state)
{
    (void)state;
    kill_a_rank(2, LK_ON_FAILURE_CONTINUE, "left");
}

/* Stops the launcher of `host`, one of `hosts` hosts with one worker each. */
static void kill_a_launcher(uint32_t hosts, lk_on_failure on_failure, const char *place,
                            uint32_t host)
{
    lk_launch_options options = over(hosts, on_failure);
    char              words[64];

    options.workers = hosts;
    assert_good(launch(options, "launcher", place, host), "launcher", place, host);
    (void)snprintf(words, sizeof words, "the launcher of host%u (node %u, pid ", host, host);
    assert_noted(words);
    assert_noted(") has not ended with the others, and is killed\n");
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void a_stopped_launcher_of_node_0_is_killed(void **state)
{
    (void)state;
    kill_a_launcher(2, LK_ON_FAILURE_STOP, "", 0);
}

static void a_stopped_launcher_of_node_1_is_killed(void **state)
{
    (void)state;
    kill_a_launcher(2, LK_ON_FAILURE_CONTINUE, "", 1);
}

/* Stops the launcher of one of two hosts, after the other host has lost its only rank. */
static void a_stopped_launcher_is_killed_after_the_other_host_is_lost(void **state)
{
    (void)state;
    kill_a_launcher(2, LK_ON_FAILURE_CONTINUE, "lost", 0);
}

/* Stops the launcher of one of three hosts.  The second host has lost its rank, and the third has
 * seen the end of the job. */
static void a_stopped_launcher_is_killed_after_one_of_two_is_lost(void **state)
{
    (void)state;
    kill_a_launcher(3, LK_ON_FAILURE_CONTINUE, "lost", 0);
}

/* clang-format off */
#define ALL(X)                                                                                   \
    X(a_stopped_rank_is_killed_at_the_end), X(a_stopped_rank_of_two_hosts_is_killed_at_the_end), \
    X(a_stopped_rank_that_has_left_is_killed_at_the_end),                                        \
    X(a_stopped_launcher_of_node_0_is_killed), X(a_stopped_launcher_of_node_1_is_killed),        \
    X(a_stopped_launcher_is_killed_after_the_other_host_is_lost),                                \
    X(a_stopped_launcher_is_killed_after_one_of_two_is_lost)
#define NAME(test) (char[]){ #test }
/* clang-format on */

static void stopped_processes_are_killed_at_the_end(void **state)
{
    char *const names[] = { ALL(NAME) };

    (void)state;
    run_side_by_side(self, names, sizeof names / sizeof names[0]);
}

int main(int argc, char **argv)
{
    if (argc >= 5 && strcmp(argv[1], "worker") == 0)
        return work(argv);
    find_self();
    const struct CMUnitTest each[] = { ALL(cmocka_unit_test) };
    const struct CMUnitTest all[]  = { cmocka_unit_test(stopped_processes_are_killed_at_the_end) };
    const char             *name   = "launch.job.stopped";

    return only_one(argc, argv) ? cmocka_run_group_tests_name(name, each, NULL, NULL)
                                : cmocka_run_group_tests_name(name, all, NULL, NULL);
}
