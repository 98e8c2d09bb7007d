/* stop_test.c -- tests that Ctrl-C and similar signals make the job save and exit with 75, and that
 * a resumed run ends with the undisturbed run's bits.
 *
 * Goal:   one request saves and stops the job, from any sender and to any process.  A second
 *         request ends a job that cannot save.  The saved state equals the state of the run, bit
 *         for bit.
 * Method: job.h; the log's pipe blocks rank 0, and thus the run, at a known step while the log is
 *         not read.
 */
#include <sys/ioctl.h>

#include "faults/job.h"

#define RUN MLP "--checkpoint ck --steps 60 --log pipe "

static void stops_and_goes_on(const char *folder, uint32_t workers, const char *options, int number,
                              bool whole_group, const char *wanted)
{
    static job j;
    job_start(&j, folder, workers, options);
    job_await_step(&j, HIT_AT);
    job_hit(&j, whole_group ? -j.pid : j.pid, number);
    double taken = job_wait(&j);
    print_message("%s to %s of %u: left after %.0f ms\n", strsignal(number),
                  whole_group ? "the group" : "the launcher", workers, 1e3 * taken);
    if (j.result.status != 75)
        fail_msg("status %d: %s", j.result.status, j.result.err);
    assert_string_equal(j.result.out, "");
    assert_says_not(j.result.err, "lockstep train: rank");
    goes_on(folder, MLP, workers % JOB_WORKERS_MAX + 1, STEPS, wanted);
    forget(folder);
}

static void a_signal_to_the_launcher_saves(void **state)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1 };
    char             wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    for (uint32_t i = 0; i < 4; i++)
        stops_and_goes_on(*state, 2 + i % 3, RUN, signals[i], false, wanted);
}

static void a_signal_to_all_processes_counts_once(void **state)
{
    char wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    stops_and_goes_on(*state, 3, RUN, SIGINT, true, wanted);
    stops_and_goes_on(*state, 3, RUN, SIGTERM, true, wanted);
}

/* Sends signals like timeout(1): to the process, then to its group.  The launcher is stopped during
 * that time, so that both signals are pending at its next wake-up.  Two signals of one kind would
 * be merged. */
static void two_simultaneous_signals_count_once(void **state)
{
    static const char *const modes[] = { "processes", "threads" };
    static job               j;
    for (int round = 0; round < 4; round++) {
        char line[512];
        (void)snprintf(line, sizeof line, RUN "--worker-mode %s", modes[round % 2]);
        job_start(&j, *state, 3, line);
        job_await_word(&j, "step 1/");
        (void)memset(j.worker, 0, sizeof j.worker);
        for (double since = seconds_now(); !read_log(&j, HIT_AT);)
            check_waiting(&j, since, "a step in the log");
        job_hit(&j, j.pid, SIGSTOP);
        while (process_state(j.pid) != 'T')
            nap();
        job_hit(&j, j.pid, SIGTERM);
        job_hit(&j, -j.pid, round / 2 == 0 ? SIGINT : SIGTERM);
        job_hit(&j, j.pid, SIGCONT);
        (void)job_wait(&j);
        if (j.result.status != 75)
            fail_msg("%s: status %d: %s", modes[round % 2], j.result.status, j.result.err);
        forget(*state);
    }
}

/* Returns a child of the process; 0 = it has none. */
static pid_t child_of(pid_t pid)
{
    pid_t          child = 0;
    DIR           *all   = opendir("/proc");
    struct dirent *entry;
    assert_non_null(all);
    while (child == 0 && (entry = readdir(all)) != NULL) {
        char path[300], text[512];
        int  parent = 0;
        (void)snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        FILE *file = isdigit((unsigned char)entry->d_name[0]) ? fopen(path, "r") : NULL;
        if (file == NULL)
            continue;
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        (void)fclose(file);
        const char *name_end = strrchr(text, ')');
        if (name_end != NULL && sscanf(name_end, ") %*c %d", &parent) == 1 && parent == pid)
            child = atoi(entry->d_name);
    }
    (void)closedir(all);
    return child;
}

/* Signals workers that have not joined their group yet, which must remember the signal.  One worker
 * is stopped some milliseconds after it appears, in most rounds before it has joined. */
static void a_signal_at_the_start_is_not_lost(void **state)
{
    static job j;
    for (int round = 0; round < 8; round++) {
        pid_t worker;
        job_start(&j, *state, 4, RUN);
        for (double since = seconds_now(); (worker = child_of(j.pid)) == 0;)
            check_waiting(&j, since, "a worker");
        for (int naps = 0; naps < round; naps++)
            nap();
        job_hit(&j, worker, SIGSTOP);
        job_hit(&j, j.pid, SIGTERM);
        for (double since = seconds_now(); !has_handled_signals(j.pid);)
            if (seconds_now() - since > 0.3) /* the launcher waits for the worker's exec */
                break;
        job_hit(&j, worker, SIGCONT);
        (void)job_wait(&j);
        if (j.result.status != 75)
            fail_msg("status %d: %s", j.result.status, j.result.err);
        forget(*state);
    }
}

static void thread_workers_save_on_request(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    for (int number = SIGINT; number != 0; number = number == SIGINT ? SIGTERM : 0) {
        job_start(&j, *state, 3, RUN "--worker-mode threads");
        job_await_word(&j, "step 1/");
        (void)memset(j.worker, 0, sizeof j.worker); /* the workers are threads of one process */
        for (double since = seconds_now(); !read_log(&j, HIT_AT);)
            check_waiting(&j, since, "a step in the log");
        job_hit(&j, j.pid, number);
        (void)job_wait(&j);
        assert_int_equal(j.result.status, 75);
        goes_on(*state, MLP, 2, STEPS, wanted);
        forget(*state);
    }
}

/* Presses Ctrl-C in the terminal of a job.  The launcher says what it does. */
static void ctrl_c_is_acknowledged(void **state)
{
    static const char *const modes[] = { "processes", "threads" };
    static job               j;
    for (size_t i = 0; i < 2; i++) {
        char line[512], path[64];
        int  terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        assert_true(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
        assert_int_equal(ptsname_r(terminal, path, sizeof path), 0);
        (void)snprintf(line, sizeof line, RUN "--worker-mode %s", modes[i]);
        job_prepare(&j, *state, 2);
        j.terminal = path;
        job_run(&j, line);
        job_await_word(&j, "step 1/");
        (void)memset(j.worker, 0, sizeof j.worker);
        for (double since = seconds_now(); !read_log(&j, HIT_AT);)
            check_waiting(&j, since, "a step in the log");
        j.hit_at = seconds_now();
        assert_int_equal(write(terminal, "\003", 1), 1);
        (void)job_wait(&j);
        assert_int_equal(j.result.status, 75);
        assert_says(j.result.err, "note: the workers are asked to save and end; Ctrl-C again ends "
                                  "them at once\n");
        (void)close(terminal);
        forget(*state);
    }
}

static void let_pass(double seconds)
{
    for (double since = seconds_now(); seconds_now() - since < seconds;)
        nap();
}

/* Waits until rank 0 seems to be blocked by the full pipe, so that the other ranks wait for rank 0.
 * Rank 0 is taken to be blocked when no byte has arrived for a while. */
static void await_full_pipe(job *j)
{
    int last = -1, bytes = 0;
    for (double since = seconds_now(); bytes != last; check_waiting(j, since, "a full pipe")) {
        last = bytes;
        let_pass(0.2);
        assert_int_equal(ioctl(j->log, FIONREAD, &bytes), 0);
    }
}

static void a_pause_by_ctrl_z_is_no_failure(void **state)
{
    static job j;
    char       wanted[65], digits[65];
    undisturbed(*state, MLP, STEPS, wanted);
    job_start(&j, *state, 3, RUN "--timeout 4");
    job_await_step(&j, HIT_AT);
    await_full_pipe(&j);
    job_hit(&j, -j.pid, SIGSTOP);
    let_pass(4.5); /* longer than any deadline */
    job_hit(&j, -j.pid, SIGCONT);
    let_pass(0.2);
    (void)job_wait(&j);
    if (j.result.status != 0)
        fail_msg("status %d: %s", j.result.status, j.result.err);
    read_weights(&j.result, digits);
    assert_string_equal(digits, wanted);
}

/* Signals one worker, which forwards the request to the launcher.  The request is for the job, and
 * the job has so many steps that it does not end before. */
static void a_signal_to_one_worker_stops_the_job(void **state)
{
    static job j;
    job_start(&j, *state, 3, MLP "--checkpoint ck --steps 100000000 --log pipe");
    job_await_step(&j, HIT_AT);
    job_hit(&j, j.worker[1], SIGTERM);
    (void)job_wait(&j);
    assert_int_equal(j.result.status, 75);
    forget(*state);
}

/* Sends the signal until the job has ended, as impatient people do.  Returns the job's status. */
static int ask_until_it_ends(job *j, int number)
{
    int status;
    job_hit(j, j->pid, number); /* the log is not read, so rank 0 is blocked */
    await_heard(j, j->pid);
    for (let_pass(0.2); waitpid(j->pid, &status, WNOHANG) == 0; let_pass(0.2)) {
        if (seconds_now() - j->hit_at > LIMIT_SECONDS)
            job_fail(j, "the second %s did not end the job", strsignal(number));
        (void)kill(j->pid, number);
    }
    print_message("a second %s: ended after %.0f ms\n", strsignal(number),
                  1e3 * (seconds_now() - j->hit_at));
    for (uint32_t r = 0; r < j->workers; r++)
        assert_true(is_gone(j->worker[r]));
    assert_true(WIFEXITED(status));
    read_stream(j->folder, "err", j->result.err, sizeof j->result.err);
    (void)close(j->log);
    return WEXITSTATUS(status);
}

/* Sends two signals.  If rank 0 had just checked for requests, and has saved, the test repeats. */
static void a_second_signal_ends_a_job_that_cannot_save(void **state)
{
    static const int         signals[] = { SIGINT, SIGTERM };
    static const char *const modes[]   = { "", "--worker-mode threads" };
    static job               j;
    for (size_t n = 0, tries = 0; n < 4; tries++) {
        int  number = signals[n % 2];
        char wanted[64], line[512];
        assert_true(tries < 40);
        (void)snprintf(line, sizeof line, RUN "--checkpoint-every 5 %s", modes[n / 2]);
        job_start(&j, *state, 3, line);
        job_await_step(&j, HIT_AT);
        await_full_pipe(&j);
        int status = ask_until_it_ends(&j, number);
        if (status != 75) {
            assert_int_equal(status, 128 + number);
            (void)snprintf(wanted, sizeof wanted, "a second SIG%s ended", sigabbrev_np(number));
            assert_int_equal(strncmp(job_verdict(&j), wanted, strlen(wanted)), 0);
            run_command(&j.result, *state, "inspect ck"); /* the checkpoint of step 10 */
            assert_int_equal(j.result.status, 0);
            n++;
        }
        forget(*state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_signal_to_the_launcher_saves, begin_afresh),
        cmocka_unit_test_setup(a_signal_to_all_processes_counts_once, begin_afresh),
        cmocka_unit_test_setup(two_simultaneous_signals_count_once, begin_afresh),
        cmocka_unit_test_setup(a_signal_at_the_start_is_not_lost, begin_afresh),
        cmocka_unit_test_setup(thread_workers_save_on_request, begin_afresh),
        cmocka_unit_test_setup(ctrl_c_is_acknowledged, begin_afresh),
        cmocka_unit_test_setup(a_pause_by_ctrl_z_is_no_failure, begin_afresh),
        cmocka_unit_test_setup(a_signal_to_one_worker_stops_the_job, begin_afresh),
        cmocka_unit_test_setup(a_second_signal_ends_a_job_that_cannot_save, begin_afresh),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
