/* death_test.c -- tests runs in which a worker or launcher dies or is stopped.
 *
 * Goal:   for each process and moment: no process is left, the exit status is 128 + the signal, the
 *         verdict names rank, pid, signal and step, and --resume on another number of workers
 *         prints the undisturbed run's weights.
 * Method: the command itself, hit while it runs (job.h).  If the moment cannot be chosen exactly
 *         (checkpoint, evaluation), the test repeats until the verdict names the intended phase.
 */
#include "base/thorough_testing.h"
#include "faults/job.h"

#define SAVES "--checkpoint ck --checkpoint-every 5 --keep 2 "
#define ENDLESS "--steps 100000000 "

enum { TRIES = 50 };

static uint32_t another(uint32_t workers)
{
    return workers % JOB_WORKERS_MAX + 1;
}

static void say_taken(const char *what, uint32_t workers, uint32_t rank, double seconds)
{
    print_message("%s, rank %u of %u: all gone after %.0f ms\n", what, rank, workers,
                  1e3 * seconds);
}

static void a_worker_killed_at_the_start_is_named(void **state)
{
    static job j;
    if (access("/proc/thread-self/children", F_OK) != 0) {
        print_message("skipped: this kernel does not list a process's children\n");
        skip();
    }
    for (uint32_t workers = 2; workers <= JOB_WORKERS_MAX; workers += lki_brief() ? 2 : 1)
        for (uint32_t rank = 0; rank < workers; rank += lki_thorough() ? 1 : workers - 1) {
            job_start(&j, *state, workers, MLP ENDLESS);
            job_await_children(&j);
            job_hit(&j, j.worker[rank], SIGKILL);
            say_taken("killed at the start", workers, rank, job_wait(&j));
            assert_int_equal(j.result.status, 128 + SIGKILL);
            (void)job_blames(&j, rank, "was killed by SIGKILL", NULL);
        }
}

static void a_worker_killed_in_a_step_is_named(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    for (uint32_t workers = 2; workers <= JOB_WORKERS_MAX; workers += lki_brief() ? 2 : 1)
        for (uint32_t rank = 0; rank < workers; rank += lki_thorough() ? 1 : workers - 1) {
            job_start(&j, *state, workers, MLP SAVES "--steps 60 --log pipe");
            job_await_step(&j, HIT_AT);
            job_hit(&j, j.worker[rank], SIGKILL);
            say_taken("killed in a step", workers, rank, job_wait(&j));
            assert_int_equal(j.result.status, 128 + SIGKILL);
            assert_string_equal(j.result.out, "");
            unsigned long step = job_blames(&j, rank, "was killed by SIGKILL", NULL);
            assert_in_range(step, HIT_AT, HIT_AT + AHEAD_MAX);
            goes_on(*state, MLP, another(workers), STEPS, wanted);
            forget(*state);
        }
}

/* Ends a worker by other signals, which must be reported in the same way. */
static void workers_ended_by_other_signals_are_named(void **state)
{
    static const int signals[] = { SIGSEGV, SIGABRT, SIGBUS };
    static job       j;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        char what[64];
        job_start(&j, *state, 2, MLP "--steps 60 --log pipe");
        job_await_step(&j, HIT_AT);
        (void)snprintf(what, sizeof what, "was killed by SIG%s", sigabbrev_np(signals[i]));
        job_hit(&j, j.worker[1], signals[i]);
        (void)job_wait(&j);
        assert_int_not_equal(j.result.status, 0);
        if (strstr(j.result.err, "Sanitizer") != NULL)
            continue; /* the command catches these signals, and exits with a status of its own */
        assert_int_equal(j.result.status, 128 + signals[i]);
        (void)job_blames(&j, 1, what, NULL);
        assert_int_equal(strstr(j.result.err, "; usually a file was truncated") != NULL,
                         signals[i] == SIGBUS);
    }
}

/* ---- Moments that must be hit ------------------------------------------------------------- */

#define EVALUATES                                                                                  \
    "train mlp --data synthetic:images=20000,h=4,w=4,c=1,classes=3 "                               \
    "--validation 0.95 --eval-every 1 --virtual-workers 4 --hidden 256 "                           \
    "--global-batch 8 --lr 0.05 "

static void a_worker_killed_while_evaluating_is_named(void **state)
{
    static job j;
    for (uint32_t workers = 2; workers <= JOB_WORKERS_MAX; workers += lki_thorough() ? 1 : 2)
        for (uint32_t rank = 0; rank < workers; rank += workers - 1) {
            const char *phase = "";
            int         tries = 0;
            while (strncmp(phase, "evaluating", 10) != 0) {
                assert_true(tries++ < TRIES);
                job_start(&j, *state, workers, EVALUATES ENDLESS);
                job_await_word(&j, "validation loss");
                (void)usleep((useconds_t)(tries % 25) * 4000); /* each try hits a later moment */
                job_hit(&j, j.worker[rank], SIGKILL);
                double taken = job_wait(&j);
                assert_int_equal(j.result.status, 128 + SIGKILL);
                assert_true(job_blames(&j, rank, "was killed by SIGKILL", &phase) >= 1);
                say_taken("killed while evaluating", workers, rank, taken);
            }
        }
}

/* Returns true if "ck" has an entry whose name begins with `prefix`. */
static bool has_entry(const char *folder, const char *prefix)
{
    char           path[64];
    struct dirent *entry;
    bool           found = false;
    (void)snprintf(path, sizeof path, "%s/ck", folder);
    DIR *dir = opendir(path);
    while (dir != NULL && !found && (entry = readdir(dir)) != NULL)
        found = strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    if (dir != NULL)
        (void)closedir(dir);
    return found;
}

/* Returns true if a checkpoint is being written, and another one is complete. */
static bool is_saving(const char *folder)
{
    return has_entry(folder, ".tmp-step-") && has_entry(folder, "step-");
}

/* Stops rank 0 while it writes a checkpoint. */
static void stop_while_saving(job *j)
{
    for (double since = seconds_now();;) {
        if (is_saving(j->folder)) {
            (void)kill(j->worker[0], SIGSTOP);
            while (process_state(j->worker[0]) != 'T')
                check_waiting(j, since, "rank 0 to stop");
            if (is_saving(j->folder))
                return;
            (void)kill(j->worker[0], SIGCONT);
        }
        if (seconds_now() - since > LIMIT_SECONDS)
            job_fail(j, "no checkpoint seen in the making");
    }
}

/* Returns the newest step of "ck", complete or not. */
static unsigned long newest_step(const char *folder)
{
    static command_result r;
    (void)run_shell(&r, folder, "ls ck | sort | tail -n 1");
    unsigned long step = 0;
    assert_int_equal(sscanf(r.out, "step-%lu", &step), 1);
    return step;
}

#define WIDE                                                                                       \
    "train mlp --data synthetic:images=64,h=4,w=4,c=1,classes=3 --virtual-workers 4 "              \
    "--hidden 128,128 --global-batch 8 --micro-batch 2 --momentum 0.9 --lr 0.01 "

static void hit_while_saving(const char *folder, uint32_t workers, uint32_t rank)
{
    static job  j;
    const char *phase = "";
    for (int tries = 0; strncmp(phase, "writing a checkpoint", 20) != 0; tries++) {
        assert_true(tries < TRIES);
        forget(folder);
        job_start(&j, folder, workers,
                  WIDE ENDLESS "--checkpoint ck --checkpoint-every 1 --keep 2");
        job_await_word(&j, "step 1/");
        stop_while_saving(&j);
        job_hit(&j, j.worker[rank], SIGKILL);
        (void)kill(j.worker[0], SIGCONT);
        double taken = job_wait(&j);
        assert_int_equal(j.result.status, 128 + SIGKILL);
        (void)job_blames(&j, rank, "was killed by SIGKILL", &phase);
        say_taken("killed while saving", workers, rank, taken);
    }
}

static void a_worker_killed_while_saving_is_named(void **state)
{
    for (uint32_t workers = lki_thorough() ? 2 : 3; workers <= 3; workers++)
        for (uint32_t rank = 0; rank < workers; rank++) {
            char wanted[65];
            hit_while_saving(*state, workers, rank);
            unsigned long steps = newest_step(*state) + 3;
            undisturbed(*state, WIDE, steps, wanted);
            goes_on(*state, WIDE, another(workers), steps, wanted);
            forget(*state);
        }
}

/* ---- Stopped workers, dead launchers ------------------------------------------------------ */

static void a_stopped_worker_is_named_after_the_deadline(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    for (uint32_t rank = 0; rank < 3; rank += lki_thorough() ? 1 : 2) {
        job_start(&j, *state, 3, MLP SAVES "--steps 60 --log pipe --timeout 6");
        job_await_step(&j, HIT_AT);
        job_hit(&j, j.worker[rank], SIGSTOP);
        double taken = job_wait(&j);
        say_taken("stopped, --timeout 6", 3, rank, taken);
        assert_true(taken > 0.5); /* less than the timeout, because the full log may have blocked
                                   * rank 0 earlier */
        assert_int_equal(j.result.status, 128 + SIGKILL);
        unsigned long step = job_blames(&j, rank, "is stopped (by SIGSTOP or a debugger)", NULL);
        assert_in_range(step, HIT_AT, HIT_AT + AHEAD_MAX);
        assert_null(strstr(job_verdict(&j), "lack of memory")); /* the launcher killed it */
        goes_on(*state, MLP, 2, STEPS, wanted);
        forget(*state);
    }
}

/* Stops a rank that writes a checkpoint.  Other ranks wait longer than usual for a writing rank,
 * but not if that rank is stopped. */
static void a_worker_stopped_while_saving_is_named(void **state)
{
    static job  j;
    const char *phase = "";
    job_start(&j, *state, 3,
              WIDE ENDLESS "--checkpoint ck --checkpoint-every 1 --keep 2 --timeout 6");
    job_await_word(&j, "step 1/");
    stop_while_saving(&j);
    j.hit_at = seconds_now();
    say_taken("stopped while saving, --timeout 6", 3, 0, job_wait(&j));
    assert_int_equal(j.result.status, 128 + SIGKILL);
    (void)job_blames(&j, 0, "is stopped (by SIGSTOP or a debugger)", &phase);
    assert_int_equal(strncmp(phase, "writing a checkpoint; ", 22), 0);
}

static void workers_do_not_outlive_the_launcher(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    for (uint32_t workers = 2; workers <= JOB_WORKERS_MAX; workers++) {
        job_start(&j, *state, workers, MLP SAVES "--steps 60 --log pipe");
        job_await_step(&j, HIT_AT);
        job_hit(&j, j.pid, SIGKILL);
        double taken = job_wait(&j); /* fails if a process is left */
        print_message("launcher of %u killed: all gone after %.0f ms\n", workers, 1e3 * taken);
        assert_int_equal(j.result.status, 128 + SIGKILL);
        goes_on(*state, MLP, another(workers), STEPS, wanted);
        forget(*state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_worker_killed_at_the_start_is_named, begin_afresh),
        cmocka_unit_test_setup(a_worker_killed_in_a_step_is_named, begin_afresh),
        cmocka_unit_test_setup(workers_ended_by_other_signals_are_named, begin_afresh),
        cmocka_unit_test_setup(a_worker_killed_while_evaluating_is_named, begin_afresh),
        cmocka_unit_test_setup(a_worker_killed_while_saving_is_named, begin_afresh),
        cmocka_unit_test_setup(a_stopped_worker_is_named_after_the_deadline, begin_afresh),
        cmocka_unit_test_setup(a_worker_stopped_while_saving_is_named, begin_afresh),
        cmocka_unit_test_setup(workers_do_not_outlive_the_launcher, begin_afresh),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
