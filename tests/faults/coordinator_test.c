/* coordinator_test.c -- coordinators are stopped and killed, and training goes on.
 *
 * Goal:   while one is stopped, steps are made; when it is killed, at any moment, workers that die
 *         before or after it are named, taken over from and replaced; the weights are those of the
 *         run that nobody disturbed, and no process is left.  So it is on one host, and over hosts
 *         with that of each, of node 0 as well.
 * Method: the command itself, hit at seeded moments.  What happens between any two calls of a
 *         coordinator is for launch/keeper/keeper_test.c.
 */
#include "base/sanitized.h"
#include "faults/survivors.h"

#define TOLD MLP GOES_ON "--log pipe "
#define AGAIN TOLD "--restart --checkpoint ck --strategy zero1 "
enum { ROUNDS = LKI_SANITIZED ? 2 : 5 };

/* Another one of this keeper than `last`, as soon as there is one. */
static pid_t next_coordinator(job *j, pid_t keeper, pid_t last)
{
    double since = seconds_now();
    pid_t  found;
    while ((found = coordinator_of(keeper)) == 0 || found == last)
        check_waiting(j, since, "a coordinator");
    return found;
}

/* The bits, the notes of `killed` coordinators, and nobody left. */
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

/* Nothing of a step passes through it.  A worker that dies meanwhile is told of afterwards. */
static void steps_are_made_without_one(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    job_start(&j, *state, 3, TOLD "--steps 60");
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

static void any_number_may_be_killed(void **state)
{
    static job j;
    char       wanted[65];
    uint64_t   seed = 11;
    undisturbed(*state, MLP, STEPS, wanted);
    for (int round = 0; round < ROUNDS; round++) {
        job_start(&j, *state, 3, AGAIN "--steps 60");
        job_await_step(&j, 1 + next_random(&seed) % HIT_AT);
        uint32_t kills = 1 + (uint32_t)(next_random(&seed) % 4), victim = (uint32_t)round % 3;
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

/* Both hosts', in turn and at once; and a worker of the one or the other in between. */
static void those_of_hosts_may_be_killed(void **state)
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
    for (uint32_t round = 0; round < (LKI_SANITIZED ? 2 : 8); round++) {
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

/* The control: who decides nothing for others takes all with it. */
static void the_keeper_takes_all_with_it(void **state)
{
    static job j;
    job_start(&j, *state, 2, TOLD "--steps 60");
    job_await_step(&j, HIT_AT);
    pid_t coordinator = next_coordinator(&j, j.pid, 0);
    job_hit(&j, j.pid, SIGKILL);
    (void)job_wait(&j); /* and for the workers */
    for (double since = seconds_now(); !is_gone(coordinator); nap())
        assert_true(seconds_now() - since < LIMIT_SECONDS);
    assert_int_equal(j.result.status, 128 + SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(steps_are_made_without_one, begin_afresh),
        cmocka_unit_test_setup(any_number_may_be_killed, begin_afresh),
        cmocka_unit_test_setup(those_of_hosts_may_be_killed, begin_afresh),
        cmocka_unit_test_setup(the_keeper_takes_all_with_it, begin_afresh),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
