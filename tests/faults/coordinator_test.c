/* coordinator_test.c -- the launcher's coordinator is stopped and killed, and training goes on.
 *
 * Goal:   while it is stopped, steps are made; when it is killed, at any moment, workers that die
 *         before or after it are named, taken over from and replaced; the weights are those of the
 *         run that nobody disturbed, and no process is left.
 * Method: the command itself, hit at seeded moments.  What happens between any two calls of a
 *         coordinator is for launch/keeper/keeper_test.c.
 */
#include "base/sanitized.h"
#include "faults/survivors.h"

#define TOLD MLP GOES_ON "--log pipe "
#define AGAIN TOLD "--restart --checkpoint ck --strategy zero1 "
enum { ROUNDS = LKI_SANITIZED ? 2 : 5 };

/* The process of that name among the children of `parent`; 0: there is none now. */
static pid_t child_named(pid_t parent, const char *name)
{
    char  path[64], comm[32] = "";
    pid_t child = 0, found = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *children = fopen(path, "r");
    while (children != NULL && found == 0 && fscanf(children, "%d", &child) == 1) {
        (void)snprintf(path, sizeof path, "/proc/%d/comm", (int)child);
        FILE *file = fopen(path, "r");
        if (file != NULL && fgets(comm, sizeof comm, file) != NULL && !is_gone(child) &&
            strncmp(comm, name, strlen(name)) == 0)
            found = child;
        if (file != NULL)
            (void)fclose(file);
    }
    if (children != NULL)
        (void)fclose(children);
    return found;
}

/* Another one than `last`, as soon as there is one. */
static pid_t next_coordinator(job *j, pid_t last)
{
    double since = seconds_now();
    pid_t  found;
    while ((found = child_named(j->pid, "lockstep-coord")) == 0 || found == last)
        check_waiting(j, since, "a coordinator");
    return found;
}

/* The bits, the notes of `killed` coordinators, and nobody left. */
static void assert_went_on(job *j, const char *wanted, pid_t last, uint32_t killed)
{
    static const char note[] = "lockstep train: note: the coordinator (pid ";
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
    pid_t first = next_coordinator(&j, 0);
    assert_int_equal(kill(first, SIGSTOP), 0);
    job_await_step(&j, HIT_AT);
    job_hit(&j, j.worker[1], SIGKILL);
    job_hit(&j, first, SIGKILL);
    pid_t second = next_coordinator(&j, first);
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
            last = next_coordinator(&j, last);
            if (k == kills / 2)
                job_hit(&j, j.worker[victim], SIGKILL);
            job_hit(&j, last, SIGKILL);
        }
        last = next_coordinator(&j, last);
        (void)job_wait(&j);
        assert_went_on(&j, wanted, last, kills);
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
    pid_t coordinator = next_coordinator(&j, 0);
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
        cmocka_unit_test_setup(the_keeper_takes_all_with_it, begin_afresh),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
