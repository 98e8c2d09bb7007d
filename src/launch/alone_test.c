/* alone_test.c -- who is stopped when all is done is killed, and the job is done.
 *
 * Goal:   where ranks leave together a rank, or the launcher of a host, that is stopped after the
 *         others have seen the end holds up nobody for longer than the timeout: it is killed and
 *         noted, and the job has not failed; nor has it where other ranks were lost before.
 * Method: the workers are this very program; they stop themselves, or their launcher, behind the
 *         last barrier.
 */
#include <signal.h>

#include "base/sanitized.h"
#include "comm/control.h"
#include "launch/rebuild_jobs.h"

/* The rank is killed, and the others meet again. */
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

/* "worker MODE PLACE RANK": behind the barrier this rank stops itself, or the process that has
 * started it; before, another may be lost. */
static int work(char **argv)
{
    lk_comm *comm;

    (void)setenv("LOCKSTEP_TIMEOUT_MS", "20000", 1); /* for coming together on a busy machine */
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

enum { TIMEOUT_S = LKI_SANITIZED ? 5 : 2 };

static lk_launch_options over(uint32_t hosts, lk_on_failure on_failure)
{
    return (lk_launch_options){ .workers        = 2,
                                .hosts          = hosts,
                                .timeout_ms     = 1000 * TIMEOUT_S,
                                .on_failure     = on_failure,
                                .leave_together = true,
                                .note           = take_note };
}

static void a_rank_is_killed(void **state)
{
    static const struct {
        uint32_t      hosts;
        lk_on_failure on_failure;
        const char   *place; /* in continue mode over hosts only who has left is known to be done */
    } jobs[] = { { 1, LK_ON_FAILURE_STOP, "" },
                 { 2, LK_ON_FAILURE_STOP, "" },
                 { 2, LK_ON_FAILURE_CONTINUE, "left" } };
    char words[128];

    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        assert_good(launch(over(jobs[i].hosts, jobs[i].on_failure), "rank", jobs[i].place, 0),
                    "rank", jobs[i].place, (uint32_t)i);
        (void)snprintf(words, sizeof words, ") has been stopped (by SIGSTOP or a debugger) for %d "
                       "s when all was done, and is killed\n", TIMEOUT_S);
        assert_noted("rank 0 (");
        assert_noted(words);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    }
}

static void a_launcher_is_killed(void **state)
{
    static const lk_on_failure ways[] = { LK_ON_FAILURE_STOP, LK_ON_FAILURE_CONTINUE };
    char                       words[64];

    (void)state;
    for (uint32_t host = 0; host < 2; host++) {
        assert_good(launch(over(2, ways[host]), "launcher", "", host), "launcher", "", host);
        (void)snprintf(words, sizeof words, "the launcher of host%u (node %u, pid ", host, host);
        assert_noted(words);
        assert_noted(") has not ended with the others, and is killed\n");
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    }
}

/* Of two hosts the other has lost its only rank; of three there is one that has seen the end. */
static void a_launcher_is_killed_where_others_were_lost(void **state)
{
    (void)state;
    for (uint32_t hosts = 2; hosts <= 3; hosts++) {
        lk_launch_options options = over(hosts, LK_ON_FAILURE_CONTINUE);
        options.workers           = hosts;
        assert_good(launch(options, "launcher", "lost", 0), "launcher", "lost", hosts);
        assert_noted("the launcher of host0 (node 0, pid ");
        assert_noted(") has not ended with the others, and is killed\n");
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    }
}

int main(int argc, char **argv)
{
    if (argc >= 5 && strcmp(argv[1], "worker") == 0)
        return work(argv);
    find_self();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_is_killed),
        cmocka_unit_test(a_launcher_is_killed),
        cmocka_unit_test(a_launcher_is_killed_where_others_were_lost),
    };
    return cmocka_run_group_tests_name("launch.alone", tests, NULL, NULL);
}
