/* restart_test.c -- `train --restart`: after any kills, the same command ends with the weights of
 * the undisturbed run.  A failure that a restart cannot repair ends the command.
 *
 * Goal:   workers, several at once, or the launcher of a host are killed repeatedly, and the
 *         command restarts by itself from its newest checkpoint.  A request to stop, an error of
 *         the program itself, or too many losses without a newer checkpoint end the command with a
 *         message.  A run that goes back to a checkpoint does not restart from a later one.
 * Method: the command itself.  Before each kill the test finds the command's children, and waits
 *         for a newer checkpoint than before the last kill.  The log's pipe blocks the run until
 *         then.
 */
#include "faults/job.h"

#define SAVES "--checkpoint ck --checkpoint-every 5 --keep 2 --restart "
#define EVALUATED                                                                                  \
    "mlp --data synthetic:images=320,h=4,w=4,c=1,classes=3 --validation 0.2 "                      \
    "--eval-every 1 --virtual-workers 4 --hidden 32 --global-batch 8 --lr 0.05 "
#define EVALUATES "train " EVALUATED
#define REPLICAS "--momentum 0.9 --groups 4 --diloco --local-steps 7 "
#define CLIENTS "--clients 32 --client-fraction 0.125 --client-batch 4 --micro-batch 2 "
enum { BLOWS = 3, LONG = 600, LAST = 100 };

/* Returns the newest step in "ck"; 0 = none. */
static unsigned long newest(const char *folder)
{
    unsigned long  step, found = 0;
    char           path[64];
    struct dirent *entry;
    (void)snprintf(path, sizeof path, "%s/ck", folder);
    DIR *dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL)
        if (sscanf(entry->d_name, "step-%lu", &step) == 1 && step > found)
            found = step;
    if (dir != NULL)
        (void)closedir(dir);
    return found;
}

/* Lists the command's children, at most `count`.  Returns their number. */
static uint32_t find_children(const job *j, pid_t *child, uint32_t count)
{
    char     path[64];
    uint32_t found = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)j->pid, (int)j->pid);
    FILE *file = fopen(path, "r");
    while (file != NULL && found < count && fscanf(file, "%d", &child[found]) == 1)
        found++;
    if (file != NULL)
        (void)fclose(file);
    return found;
}

/* Waits for `count` new children, which have resumed the run for the `times`th time, and for a
 * checkpoint after *step.  Workers that have lost one may still have made it.  Returns false if the
 * run is in its LAST steps before all have appeared: it could end before a worker is killed. */
static bool await_progress(job *j, uint32_t count, uint32_t times, unsigned long *step)
{
    pid_t before = j->worker[0];
    for (double since = seconds_now(); !has_ended(j); nap()) {
        if (seconds_now() - since > LIMIT_SECONDS)
            job_fail(j, "waited %d s for a checkpoint after step %lu", LIMIT_SECONDS, *step);
        read_stream(j->folder, "err", j->result.err, sizeof j->result.err);
        if (find_children(j, j->worker, count) < count || j->worker[0] == before ||
            count_of(j->result.err, "resuming from ck/step-") < times ||
            newest(j->folder) <= *step) {
            (void)read_log(j, (unsigned long)-1);
            continue;
        }
        *step = newest(j->folder);
        return *step <= LONG - LAST;
    }
    return false;
}

/* Waits for progress, then kills child processes of the command.  Alternately kills the last of the
 * `children` child processes and all of them. */
static void hit_again_and_again(const char *folder, uint32_t workers, const char *options,
                                uint32_t children, const char *wanted)
{
    static job    j;
    unsigned long step  = 0;
    uint32_t      blows = 0;
    char          line[1024], digits[65];

    (void)snprintf(line, sizeof line, EVALUATES SAVES "--steps %d --log pipe %s", LONG, options);
    job_start(&j, folder, workers, line);
    for (; blows < BLOWS && await_progress(&j, children, blows, &step); blows++)
        for (uint32_t i = blows % 2 == 0 ? children - 1 : 0; i < children; i++)
            (void)kill(j.worker[i], SIGKILL); /* an error is ignored, because this worker may
                                               * already have died with the previous one */
    j.hit_at = seconds_now();
    (void)job_wait(&j);
    if (j.result.status != 0)
        fail_msg("%s: status %d: %s", line, j.result.status, j.result.err);
    assert_in_range(blows, 1, BLOWS);
    assert_int_equal(count_of(j.result.err, "all workers are started again"), blows);
    assert_int_equal(count_of(j.result.err, "resuming from ck/step-"), blows);
    read_weights(&j.result, digits);
    if (strcmp(digits, wanted) != 0)
        fail_msg("%s: %s, undisturbed: %s", line, digits, wanted);
}

static bool lists_children(void)
{
    bool lists = access("/proc/thread-self/children", F_OK) == 0;
    if (!lists)
        print_message("skipped: this kernel does not list a process's children\n");
    return lists;
}

/* Returns the bytes of gradients that a plan counts. */
static double planned_gradients(const char *folder, const char *line)
{
    static command_result r;
    run_command(&r, folder, line);
    const char *at = strstr(r.out, "\"gradients\": ");
    assert_non_null(at);
    return strtod(at + strlen("\"gradients\": "), NULL);
}

/* One worker computes its four virtual workers in a joint turn, in one buffer. */
static void a_run_restarts_after_any_kill(void **state)
{
    char wanted[65];
    if (!lists_children())
        skip();
    double each = planned_gradients(*state, "plan " EVALUATED "--workers 4 --strategy ddp --json");
    assert_true(4 * planned_gradients(*state, "plan " EVALUATED "--workers 1 --strategy ddp --json")
                == each);
    undisturbed(*state, EVALUATES, LONG, wanted);
    hit_again_and_again(*state, 1, "", 1, wanted);
    forget(*state);
    hit_again_and_again(*state, 3, "", 3, wanted);
    forget(*state);
    hit_again_and_again(*state, 4, "--hosts 2 --strategy zero1", 2, wanted);
}

/* Most checkpoints are between two outer steps. */
static void replicas_restart_after_any_kill(void **state)
{
    static command_result alone;
    char                  wanted[65], line[1024];
    if (!lists_children())
        skip();
    (void)snprintf(line, sizeof line, EVALUATES REPLICAS "--steps %d --workers 1 --quiet", LONG);
    run_command(&alone, *state, line);
    read_weights(&alone, wanted);
    hit_again_and_again(*state, 3, REPLICAS, 3, wanted);
    forget(*state);
    hit_again_and_again(*state, 4, REPLICAS "--hosts 2", 2, wanted);
}

static void clients_restart_after_any_kill(void **state)
{
    char wanted[65];
    if (!lists_children())
        skip();
    undisturbed(*state, EVALUATES CLIENTS, LONG, wanted);
    hit_again_and_again(*state, 3, CLIENTS, 3, wanted);
}

static void a_request_to_stop_is_obeyed(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    job_start(&j, *state, 2, MLP SAVES "--steps 60 --log pipe");
    job_await_step(&j, HIT_AT);
    job_hit(&j, j.pid, SIGTERM);
    (void)job_wait(&j);
    assert_int_equal(j.result.status, 75);
    assert_says_not(j.result.err, "started again");
    goes_on(*state, MLP, 3, STEPS, wanted);
}

/* Saves no intermediate checkpoint.  A restart then gains nothing, and the command must give up. */
static void a_run_without_newer_checkpoints_gives_up(void **state)
{
    static job j;
    if (!lists_children())
        skip();
    job_start(&j, *state, 2, MLP "--checkpoint ck --restart=2 --steps 100000000");
    for (int blow = 0; blow < 3; blow++) {
        pid_t  before = j.worker[0];
        double since  = seconds_now();
        while (find_children(&j, j.worker, 2) < 2 || j.worker[0] == before)
            check_waiting(&j, since, "other workers");
        job_hit(&j, j.worker[1], SIGKILL);
    }
    (void)job_wait(&j);
    assert_int_equal(j.result.status, 128 + SIGKILL);
    assert_int_equal(count_of(j.result.err, "started again, from the beginning"), 2);
    assert_non_null(strstr(j.result.err, "(2 of 2 without a newer one)"));
}

/* With --chaos, injects faults into the only worker of a job. */
static void chaos_also_kills_an_only_worker(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--checkpoint ck --workers 1 --steps 100000000 --restart=1 "
                                "--chaos 3,20,kill");
    assert_int_equal(r.status, 128 + SIGKILL);
    assert_says(r.err, "chaos: rank 0 (pid ");
    assert_says(r.err, "all workers are started again, from the beginning (1 of 1 ");
}

#define GOES_BACK(folder)                                                                          \
    MLP "--checkpoint-every 10 --keep 20 --workers 2 --checkpoint " folder " "
#define BACK_TO_10 "--resume=10 --grad-comm-dtype bf16 "

/* Makes a run with checkpoints of 30 steps in "ck". */
static void make_later_checkpoints(const char *folder)
{
    static command_result r;
    run_command(&r, folder, GOES_BACK("ck") "--steps 30");
    assert_int_equal(r.status, 0);
}

/* Kills a worker as soon as other ones than `before` are there.  Returns the first of them. */
static pid_t hit_early(job *j, pid_t before)
{
    pid_t  child[2] = { 0 };
    double since    = seconds_now();
    while (find_children(j, child, 2) < 2 || child[0] == before)
        check_waiting(j, since, "two workers");
    job_hit(j, child[1], SIGKILL);
    return child[0];
}

/* Kills a worker as soon as it is there, when the later checkpoints are mostly still in place.  The
 * full pipe of the log keeps the run from its first step until then.  Kills another one after a
 * checkpoint, which counts as progress although the checkpoints that were left had later steps. */
static void a_run_that_goes_back_restarts_from_there(void **state)
{
    static job            j;
    static command_result r;
    char                  wanted[65], digits[65];
    if (!lists_children())
        skip();
    make_later_checkpoints(*state);
    (void)run_shell(&r, *state, "cp -r ck whole");
    run_command(&r, *state, GOES_BACK("whole") BACK_TO_10 "--steps 100");
    assert_int_equal(r.status, 0);
    read_weights(&r, wanted);
    job_start_held(&j, *state, 2, GOES_BACK("ck") BACK_TO_10 "--steps 100 --restart=1 --log pipe");
    pid_t before = hit_early(&j, 0);
    await_word_reading(&j, "resuming from ck/step-00000010");
    await_word_reading(&j, "ck/set-aside-1', since the run goes on from step 10 ");
    for (double since = seconds_now(); newest(*state) < 20; (void)read_log(&j, 0))
        check_waiting(&j, since, "a checkpoint");
    (void)hit_early(&j, before);
    (void)job_wait(&j);
    if (j.result.status != 0)
        fail_msg("status %d: %s", j.result.status, j.result.err);
    assert_says(j.result.err, "all workers are started again, from the checkpoint of step 10 ");
    assert_int_equal(count_of(j.result.err, "(1 of 1 without a newer one)"), 2);
    read_weights(&j.result, digits);
    assert_string_equal(digits, wanted);
}

/* Ends such a run before it has set aside the later checkpoints.  Expects that they are not said to
 * continue it. */
static void a_run_that_cannot_go_back_says_how(void **state)
{
    static job            j;
    static command_result left;
    if (!lists_children())
        skip();
    make_later_checkpoints(*state);
    job_start_held(&j, *state, 2, GOES_BACK("ck") BACK_TO_10 "--steps 100 --log pipe");
    (void)hit_early(&j, 0);
    (void)job_wait(&j);
    assert_int_equal(j.result.status, 128 + SIGKILL);
    assert_says_not(j.result.err, "continues after step 30");
    (void)run_shell(&left, *state, "ls ck/.going-back");
    if (newest(*state) == 30 || left.status == 0)
        assert_says(j.result.err, "; the same command goes back to step 10 again\n");
}

static void failures_that_a_restart_cannot_repair_end_the_run(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP SAVES "--steps 60 --workers 2 --lr 1e38");
    assert_int_equal(r.status, 3);
    assert_says_not(r.err, "started again");
    forget(*state);
    run_command(&r, *state, MLP "--restart --steps 60 --workers 2");
    assert_int_equal(r.status, 2);
    run_command(&r, *state, MLP SAVES "--steps 60 --workers 2 --worker-mode threads");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--restart needs --worker-mode processes");
    run_command(&r, *state, MLP "--checkpoint ck --restart=often --steps 60");
    assert_int_equal(r.status, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_run_restarts_after_any_kill, begin_afresh),
        cmocka_unit_test_setup(replicas_restart_after_any_kill, begin_afresh),
        cmocka_unit_test_setup(clients_restart_after_any_kill, begin_afresh),
        cmocka_unit_test_setup(a_request_to_stop_is_obeyed, begin_afresh),
        cmocka_unit_test_setup(a_run_without_newer_checkpoints_gives_up, begin_afresh),
        cmocka_unit_test_setup(chaos_also_kills_an_only_worker, begin_afresh),
        cmocka_unit_test_setup(a_run_that_goes_back_restarts_from_there, begin_afresh),
        cmocka_unit_test_setup(a_run_that_cannot_go_back_says_how, begin_afresh),
        cmocka_unit_test_setup(failures_that_a_restart_cannot_repair_end_the_run, begin_afresh),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
