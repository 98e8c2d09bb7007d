/* coordinator_test.c -- coordinators are stopped and killed, and training continues.
 *
 * Goal:   the run continues while a coordinator is stopped.  A coordinator may be killed at any
 *         moment.  Workers that die before or after the coordinator are named, their work is taken
 *         over, and they are replaced.  The weights are those of the undisturbed run, and no
 *         process is left.  All of this holds on one host, and with several hosts for each host's
 *         coordinator, including node 0's.
 * Method: the command itself, hit at seeded moments. launch/keeper/keeper_test.c covers the moments
 *         between any two calls of a coordinator.
 */
#include "base/thorough_testing.h"
#include "faults/survivors.h"

#define TOLD MLP GOES_ON "--log pipe "
#define AGAIN TOLD "--restart --checkpoint ck --strategy zero1 "

static uint32_t rounds(uint32_t all, uint32_t some)
{
    return lki_thorough() ? all : some;
}

/* Waits for the keeper's next coordinator after `last`. */
static pid_t next_coordinator(job *j, pid_t keeper, pid_t last)
{
    double since = seconds_now();
    pid_t  found;
    while ((found = coordinator_of(keeper)) == 0 || found == last)
        check_waiting(j, since, "a coordinator");
    return found;
}

/* Checks that the weights are `wanted`, those of an undisturbed run.  Checks that stderr has
 * `killed` notes about coordinators, and that the last coordinator (pid `last`) is gone. */
static void assert_went_on(job *j, const char *wanted, pid_t last, uint32_t killed)
{
    static const char note[] = "lockstep train: note: the coordinator ";
    uint32_t          notes = 0;
    assert_undisturbed(j, wanted);
    for (const char *at = j->result.err; (at = strstr(at, note)) != NULL; at++)
        notes++;
    if (notes != killed)
        fail_msg("%u coordinators were killed: %s", killed, j->result.err);
    if (!is_gone(last))
        fail_msg("the coordinator (pid %d) is left", (int)last);
}

/* Stops the coordinator while the run makes steps, then kills the coordinator.  A worker that dies
 * during that time must be reported afterwards. */
static void steps_continue_without_a_coordinator(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    job_start(&j, *state, 3, TOLD "--steps 60 --timeout 300");
    job_await_step(&j, 3);
    pid_t first = next_coordinator(&j, j.pid, 0);
    assert_int_equal(kill(first, SIGSTOP), 0);
    job_await_step(&j, HIT_AT);
    job_hit(&j, j.worker[1], SIGKILL);
    job_hit(&j, first, SIGKILL);
    pid_t second = next_coordinator(&j, j.pid, first);
    (void)job_wait(&j);
    assert_went_on(&j, wanted, second, 1);
    char line[64];
    (void)snprintf(line, sizeof line, "rank 1 (pid %d) was killed by SIGKILL", (int)j.worker[1]);
    assert_says(j.result.err, line);
    assert_says(j.result.err, " took over virtual worker");
}

static void any_number_of_coordinators_may_be_killed(void **state)
{
    static job j;
    char       wanted[65];
    uint64_t   seed = 11;
    undisturbed(*state, MLP, STEPS, wanted);
    for (uint32_t round = 0; round < rounds(5, 2); round++) {
        job_start(&j, *state, 3, AGAIN "--steps 60");
        job_await_step(&j, 1 + next_random(&seed) % HIT_AT);
        uint32_t kills = 1 + (uint32_t)(next_random(&seed) % 4), victim = round % 3;
        pid_t    last  = 0;
        for (uint32_t k = 0; k < kills; k++) {
            last = next_coordinator(&j, j.pid, last);
            if (k == kills / 2)
                job_hit(&j, j.worker[victim], SIGKILL);
            job_hit(&j, last, SIGKILL);
        }
        last = next_coordinator(&j, j.pid, last);
        (void)job_wait(&j);
        assert_went_on(&j, wanted, last, kills);
        assert_says(j.result.err, "note: the run has lost 1 rank");
        forget(*state);
    }
}

/* Kills the coordinators of both hosts, one after the other and together, and a worker in
 * between. */
static void coordinators_of_several_hosts_may_be_killed(void **state)
{
    static const char *const lines[] = {
        TOLD "--hosts 2 --steps 60",
        TOLD "--hosts 2 --steps 60 --strategy zero3",
        AGAIN "--hosts 2 --steps 60",
        AGAIN "--hosts 2 --steps 60",
    };
    static job j;
    char       wanted[65];
    uint64_t   seed = 17;
    undisturbed(*state, MLP, STEPS, wanted);
    for (uint32_t round = 0; round < rounds(8, 4); round++) {
        job_start(&j, *state, 4, lines[round % 4]);
        job_await_step(&j, 1 + next_random(&seed) % HIT_AT);
        pid_t    keepers[2] = { launcher_of(&j, 0), launcher_of(&j, 2) }, last[2] = { 0, 0 };
        uint32_t kills      = 2 + (uint32_t)(next_random(&seed) % 4);
        for (uint32_t k = 0; k < kills; k++) {
            uint32_t host = round < 2 ? round : (uint32_t)(next_random(&seed) % 2);
            if (k == kills / 2)
                job_hit(&j, j.worker[round % 4], SIGKILL);
            last[host] = next_coordinator(&j, keepers[host], last[host]);
            rest(&seed);
            job_hit(&j, last[host], SIGKILL);
        }
        for (uint32_t host = 0; host < 2; host++)
            last[host] = next_coordinator(&j, keepers[host], last[host]);
        (void)job_wait(&j);
        assert_went_on(&j, wanted, last[0], kills);
        assert_went_on(&j, wanted, last[1], kills);
        assert_says(j.result.err, "note: the run has lost 1 rank");
        forget(*state);
    }
}

/* Control: kills the keeper.  Unlike the death of a coordinator, the death of a keeper ends all its
 * processes. */
static void the_death_of_the_keeper_ends_all_processes(void **state)
{
    static job j;
    job_start(&j, *state, 2, TOLD "--steps 60");
    job_await_step(&j, HIT_AT);
    pid_t coordinator = next_coordinator(&j, j.pid, 0);
    job_hit(&j, j.pid, SIGKILL);
    (void)job_wait(&j); /* waits also for the workers */
    for (double since = seconds_now(); !is_gone(coordinator); nap())
        assert_true(seconds_now() - since < LIMIT_SECONDS);
    assert_int_equal(j.result.status, 128 + SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(steps_continue_without_a_coordinator, begin_afresh),
        cmocka_unit_test_setup(any_number_of_coordinators_may_be_killed, begin_afresh),
        cmocka_unit_test_setup(coordinators_of_several_hosts_may_be_killed, begin_afresh),
        cmocka_unit_test_setup(the_death_of_the_keeper_ends_all_processes, begin_afresh),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
