/* compressed_test.c -- workers of a program with compressed gradients are killed, and the other
 * workers finish with the weights of the undisturbed run.
 *
 * Goal:   with every compressor, two of four workers are killed, one after the other, and no bit
 *         changes.  In `lockstep train` others take their places, on one host or two.
 * Method: the example program, killed when it has printed a line; and the command, killed at
 *         random.  The step is not known; parallel/features/groups_survive_test.c covers each
 *         moment of a step.
 */
#include "base/thorough_testing.h"
#include "faults/survivors.h"

enum { LOST = 2, TRIES = 20, SEEDS = 60 };

static void program_of(char *out, size_t bytes)
{
    const char *end = strstr(LK_TEST_COMMAND, "/bin/lockstep"); /* BUILD/bin/lockstep */
    assert_non_null(end);
    (void)snprintf(out, bytes, "%.*s/examples/compressed_gradients", (int)(end - LK_TEST_COMMAND),
                   LK_TEST_COMMAND);
    if (access(out, X_OK) == 0)
        return;
    print_message("skipped: %s is not built\n", out);
    skip();
}

static void copy_weights(const command_result *r, char weights[65])
{
    const char *found = strstr(r->out, "weights ");
    if (r->status != 0 || found == NULL)
        fail_msg("status %d: %s%s", r->status, r->out, r->err);
    (void)snprintf(weights, 65, "%.64s", found + strlen("weights "));
}

/* Returns the nth living worker of the job; 0 if there is none. */
static pid_t worker_of(const job *j, uint32_t nth)
{
    FILE *children = children_of(j->pid);
    pid_t pid, found = 0;
    while (found == 0 && (pid = next_child(children)) != 0)
        if (!is_gone(pid) && !is_coordinator(pid) && nth-- == 0)
            found = pid;
    if (children != NULL)
        (void)fclose(children);
    return found;
}

/* Waits until the program has printed `word`.  Returns false if it has ended. */
static bool await_line(job *j, const char *word)
{
    for (double since = seconds_now(); !has_ended(j); nap()) {
        read_stream(j->folder, "out", j->result.out, sizeof j->result.out);
        if (strstr(j->result.out, word) != NULL)
            return true;
        if (seconds_now() - since > LIMIT_SECONDS)
            job_fail(j, "waited %d s in vain for %s", LIMIT_SECONDS, word);
    }
    return false;
}

/* Kills two workers.  Returns the number of those without which the others continued. */
static uint32_t kill_two(job *j, const char *folder, const char *line, uint32_t nth)
{
    static const char *const words[LOST] = { "step 100 ", "step 200 " };
    (void)run_shell(&j->result, folder, ":"); /* empties the output of the previous run */
    job_start(j, folder, 4, line);
    for (uint32_t i = 0; i < LOST && await_line(j, words[i]); i++) {
        pid_t pid = worker_of(j, (nth + i) % (4 - i));
        if (pid != 0)
            (void)kill(pid, SIGKILL);
    }
    j->hit_at = seconds_now();
    (void)job_wait(j);
    return count_of(j->result.err, "note: the group continues with ");
}

static void workers_may_be_killed(void **state)
{
    static const char *const names[] = { "powersgd", "topk", "randomk", "sign", "none" };
    static command_result    alone;
    static job               j;
    char                     program[512], line[1024], want[65], got[65];
    program_of(program, sizeof program);
    for (uint32_t i = 0; i < sizeof names / sizeof names[0]; i += lki_brief() ? 2 : 1) {
        uint32_t lost = 0;
        (void)snprintf(line, sizeof line, "run --workers 1 --no-prefix %s %s %u", program, names[i],
                       i % 2 == 0 ? 8 : 2);
        run_command(&alone, *state, line);
        copy_weights(&alone, want);
        (void)snprintf(line, sizeof line,
                       "run --workers 4 --on-failure continue --no-prefix %s %s %u", program,
                       names[i], i % 2 == 0 ? 8 : 2);
        for (uint32_t tries = 0; lost < LOST; tries++) { /* a kill may come too late */
            assert_true(tries < TRIES);
            lost = kill_two(&j, *state, line, i);
            if (j.result.status == 0 || lost == LOST)
                copy_weights(&j.result, got);
        }
        assert_string_equal(got, want);
    }
}

/* Under a launcher that cannot have the others continue, the program ends with the reason.  A kill
 * may come too late.  A program that does not end is killed after 20 seconds of work. */
static void no_launcher_decides_who_continues(void **state)
{
    static command_result r;
    char                  program[512], line[1400];
    program_of(program, sizeof program);
    (void)snprintf(line, sizeof line,
                   "ulimit -t 20; rm -f steps0; for r in 0 1 2; do RANK=$r WORLD_SIZE=3 "
                   "LOCAL_RANK=$r LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=%u "
                   "%s powersgd 4 >steps$r & done; "
                   "until grep -qs 'step ' steps0; do sleep 0.01; done; kill -9 $!; wait",
                   free_port(), program);
    for (uint32_t tries = 0; tries == 0 || r.err[0] == '\0'; tries++) {
        assert_true(tries < TRIES);
        (void)run_shell(&r, *state, line);
    }
    assert_says(r.err, "ends it when a rank fails");
}

/* Kills are so many a second, and so a longer run of a slow program starts more workers.  A run
 * that is too short for one to enter is tried again. */
static void workers_may_be_replaced(void **state)
{
    static const char onebit[] = "--optimizer onebit-adam --freeze-step auto --betas 0.9,0.9";
    static const char *const methods[] = { "--compress powersgd",
                                           "--compress topk --error-feedback dgc",
                                           "--compress sign", onebit };
    static command_result    r;
    char                     line[1024], want[65], got[65];
    for (uint32_t i = 0; i < 4; i += lki_brief() ? 2 : 1) {
        /* a host that loses all its workers ends the run, which restarts from a checkpoint */
        const char *hosts = i == 2 ? "--workers 4 --hosts 2 --checkpoint-every 10 "
                                   : "--workers 3 ";
        uint32_t    entered = 0;
        (void)snprintf(line, sizeof line, BUSY "%s --groups 4 --steps %d --quiet ",
                       methods[i], lki_brief() ? 400 : 1000);
        size_t used = strlen(line);
        (void)snprintf(line + used, sizeof line - used, "--workers 1");
        run_command(&r, *state, line);
        copy_weights(&r, want);
        for (uint32_t seed = 1; entered == 0; seed++) {
            assert_true(seed < SEEDS);
            (void)run_shell(&r, *state, "rm -rf ck");
            (void)snprintf(line + used, sizeof line - used,
                           "%s" GOES_ON "--restart=50 --checkpoint ck --chaos %u,%u,kill", hosts,
                           seed, i == 2 ? 1 : 6);
            run_command(&r, *state, line);
            copy_weights(&r, got);
            assert_string_equal(got, want);
            entered = count_of(r.err, " enters after step ");
        }
    }
}

/* The survivors of two hosts give up at different times, but all say the same. */
static void the_loss_of_a_host_is_named(void **state)
{
    static job j;
    for (uint32_t tries = 0; tries < 6; tries++) {
        job_start(&j, *state, 4, "train mlp --data synthetic:images=320,h=4,w=4,c=1,classes=3 "
                  "--hidden 32 --global-batch 8 --virtual-workers 4 --lr 0.01 --compress topk "
                  "--steps 1000000 --hosts 3 " GOES_ON);
        job_await_word(&j, "step 1/");
        hit_launcher(&j, 3);
        (void)job_wait(&j);
        assert_says(j.result.err, "2 of 3 hosts are left, and what group 2 keeps was on a lost "
                    "one: there is no checkpoint to start again from");
    }
}

/* A host without groups is lost, and is not started again, because no host can enter. */
static void a_lost_host_does_not_return(void **state)
{
#define ONE_GROUP BUSY "--compress powersgd --groups 1 --steps 60 "
    static command_result r;
    static job            j;
    char                  wanted[65];
    run_command(&r, *state, ONE_GROUP "--workers 1 --quiet");
    copy_weights(&r, wanted);
    job_start(&j, *state, 4, ONE_GROUP "--hosts 3 --log pipe --restart=5 --checkpoint lost "
              GOES_ON);
    job_await_step(&j, HIT_AT);
    hit_launcher(&j, 3);
    j.hit_at = seconds_now();
    (void)job_wait(&j);
    assert_undisturbed(&j, wanted);
    assert_says(j.result.err, "the run has lost 2 ranks and went on with 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_may_be_killed),
        cmocka_unit_test(no_launcher_decides_who_continues),
        cmocka_unit_test(workers_may_be_replaced),
        cmocka_unit_test(the_loss_of_a_host_is_named),
        cmocka_unit_test(a_lost_host_does_not_return),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
