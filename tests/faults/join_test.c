/* join_test.c -- tests runs that begin with fewer hosts than they have later.
 *
 * Goal:   hosts that come after the run has begun, for the first time or again, enter between two
 *         steps.  Whatever happens to them before or after they enter, the weights are those of the
 *         undisturbed run.
 * Method: the command itself on emulated hosts, some of which it starts only when the first hosts
 *         have connected.  The log is a pipe, from which a line is read now and then.
 */
#include "base/thorough_testing.h"
#include "faults/survivors.h"

#define JOINED GOES_ON "--steps 300 --log pipe --checkpoint ck "

/* Begins with `here` workers. */
static void begin(job *j, const char *folder, uint32_t here, const char *arguments)
{
    job_start(j, folder, here, arguments);
    job_await_step(j, HIT_AT);
}

static void finish(job *j, const char *wanted)
{
    j->hit_at = seconds_now();
    (void)job_wait(j);
    assert_undisturbed(j, wanted);
    goes_on(j->folder, BUSY, 2, LONGER, wanted);
    forget(j->folder);
}

/* Lets a late host enter, which copies the model, then kills the first hosts.  Expects that the
 * late host finishes the run. */
static void a_late_host_finishes_the_run_of_lost_hosts(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, BUSY, LONGER, wanted);
    begin(&j, *state, 2, BUSY JOINED "--workers 4 --hosts 1:2");
    drip_before_next(&j, "ranks 2-3 enter after step ", 1);
    await_step_of_all(&j);
    job_hit(&j, j.worker[0], SIGKILL);
    job_hit(&j, j.worker[1], SIGKILL);
    finish(&j, wanted);
    assert_says(j.result.err, "note: the job begins with 1 of 2 hosts; others may join it until");
    assert_says(j.result.err, "note: the run has lost 2 ranks and went on with 2; 2 entered;");
}

/* Joins groups of two hosts that share a model: a whole group, or the rest of a group, which then
 * has parts that only the first hosts had. */
static void late_hosts_join_hybrid_groups(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, BUSY, LONGER, wanted);
    for (uint32_t here = 2; here <= (lki_brief() ? 2 : 3); here++) {
        static char line[1024];
        (void)snprintf(line, sizeof line, BUSY JOINED "--strategy hybrid --shard-size 2 "
                       "--workers 4 --hosts %u:4", here);
        begin(&j, *state, here, line);
        for (uint32_t late = here; late < 4; late++) {
            (void)snprintf(line, sizeof line, "(node %u, rank %u) is ready to enter", late, late);
            drip_until_nth(&j, line, 1);
        }
        drip_before_next(&j, " after step ", 1);
        if (here == 2 && strstr(j.result.err, "ranks 2-3 enter after step ") == NULL)
            drip_before_next(&j, " after step ", 2);
        await_step_of_all(&j);
        hit_launcher(&j, 1);
        finish(&j, wanted);
        assert_says(j.result.err, "host host1 (node 1, rank 1) is lost: ");
    }
}

/* Loses a host before the first step while another host has its part, too.  Rank 0 is blocked by
 * its log while a replacement is starting. */
static void a_host_lost_before_the_first_step_returns(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP SLOW, 6, wanted);
    job_start_early(&j, *state, 4, MLP GOES_ON SLOW "--steps 6 --restart --checkpoint ck --hosts 4 "
                    "--strategy zero3 --shard-replicas 2 --log pipe");
    hit_launcher(&j, 3);
    await_word(&j, "; the run begins with 3 of 4 workers; ");
    await_word(&j, "(node 3, rank 3) is ready to enter");
    j.hit_at = seconds_now();
    (void)job_wait(&j);
    assert_undisturbed(&j, wanted);
    assert_says(j.result.err, "note: the run has lost 1 rank and went on with 4; 1 entered;");
}

/* Kills a late host in a job that replaces workers.  Expects that the host is restarted like any
 * other host. */
static void a_lost_late_host_is_restarted(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, BUSY, LONGER, wanted);
    begin(&j, *state, 2, BUSY JOINED "--restart --workers 3 --hosts 2:3");
    for (uint32_t nth = 1; nth <= 2; nth++) {
        drip_until_nth(&j, "(node 2, rank 2) is ready to enter", nth);
        drip_before_next(&j, " enters after step ", nth);
        if (nth == 1)
            job_hit(&j, newest_child(j.pid), SIGKILL);
    }
    finish(&j, wanted);
}

/* Kills a late host's launcher as soon as the launcher has a seat, or its worker when the worker is
 * ready.  The other late host enters. */
static void a_late_host_may_be_killed_while_joining(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, BUSY, LONGER, wanted);
    for (uint32_t round = 0; round < (lki_brief() ? 1 : 2); round++) {
        begin(&j, *state, 1, BUSY JOINED "--workers 3 --hosts 1:3 --chaos 1,0.0001,slow");
        drip_until_nth(&j, round == 0 ? "note: the job is under way" : "is ready to enter", 2);
        pid_t launcher = newest_child(j.pid);
        job_hit(&j, round == 0 ? launcher : newest_child(launcher), SIGKILL);
        drip_until_nth(&j, "(node 1, rank 1) is ready to enter", 1);
        drip_before_next(&j, " after step ", 1);
        finish(&j, wanted);
        if (round == 0)
            assert_says(j.result.err, "host host2 (node 2, rank 2) is lost: its launcher was "
                        "killed by SIGKILL");
        assert_says_not(j.result.err, "internal error");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_late_host_finishes_the_run_of_lost_hosts, begin_afresh),
        cmocka_unit_test_setup(late_hosts_join_hybrid_groups, begin_afresh),
        cmocka_unit_test_setup(a_host_lost_before_the_first_step_returns, begin_afresh),
        cmocka_unit_test_setup(a_lost_late_host_is_restarted, begin_afresh),
        cmocka_unit_test_setup(a_late_host_may_be_killed_while_joining, begin_afresh),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
