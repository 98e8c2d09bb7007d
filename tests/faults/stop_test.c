/* stop_test.c -- Ctrl-C and its kin: the job saves, leaves with 75, and goes on to the same bits.
 *
 * Goal:   one request saves and leaves, from whoever it comes and whomever it reaches; a second
 *         ends a job that cannot save; what was saved is the run's state, bit for bit.
 * Method: job.h; the log's pipe holds a run at a known step, and rank 0 in it while nobody reads.
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
    assert_null(strstr(j.result.err, "lockstep train: rank"));
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

static void a_signal_to_everybody_counts_once(void **state)
{
    char wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    stops_and_goes_on(*state, 3, RUN, SIGINT, true, wanted);
    stops_and_goes_on(*state, 3, RUN, SIGTERM, true, wanted);
}

/* As `timeout` does it: the process, then its group, at once. */
static void a_signal_twice_at_once_is_one(void **state)
{
    static const char *const modes[] = { "processes", "threads" };
    static job               j;
    for (int round = 0; round < 10; round++) {
        char line[512];
        (void)snprintf(line, sizeof line, RUN "--worker-mode %s", modes[round % 2]);
        job_start(&j, *state, 3, line);
        job_await_word(&j, "step 1/");
        (void)memset(j.worker, 0, sizeof j.worker);
        while (!read_log(&j, HIT_AT))
            nap();
        double first = seconds_now();
        job_hit(&j, j.pid, SIGTERM);
        for (int naps = 0; naps < round / 2; naps++)
            nap(); /* the first has mostly been taken when the second comes */
        job_hit(&j, -j.pid, SIGTERM);
        bool at_once = seconds_now() - first < 0.05; /* else we were held up, and they were two */
        (void)job_wait(&j);
        if (at_once)
            assert_int_equal(j.result.status, 75);
        forget(*state);
    }
}

/* Whether the process has taken all signals that were sent to it. */
static bool has_taken_signals(pid_t pid)
{
    char path[64], line[256];
    bool taken = false;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "ShdPnd:", 7) == 0)
            taken = strtoull(line + 7, NULL, 16) == 0;
    (void)fclose(file);
    return taken;
}

/* A child of the process; 0 = it has none. */
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

/* Workers that have not joined their group yet keep it in mind.  One is held up, some milliseconds
 * after it appears: in most rounds before it has joined. */
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
        for (double since = seconds_now(); !has_taken_signals(j.pid);)
            if (seconds_now() - since > 0.3) /* it waits for the worker to become the program */
                break;
        job_hit(&j, worker, SIGCONT);
        (void)job_wait(&j);
        if (j.result.status != 75)
            fail_msg("status %d: %s", j.result.status, j.result.err);
        forget(*state);
    }
}

static void threads_save_as_well(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    for (int number = SIGINT; number != 0; number = number == SIGINT ? SIGTERM : 0) {
        job_start(&j, *state, 3, RUN "--worker-mode threads");
        job_await_word(&j, "step 1/");
        (void)memset(j.worker, 0, sizeof j.worker); /* they are one process */
        while (!read_log(&j, HIT_AT))
            nap();
        job_hit(&j, j.pid, number);
        (void)job_wait(&j);
        assert_int_equal(j.result.status, 75);
        goes_on(*state, MLP, 2, STEPS, wanted);
        forget(*state);
    }
}

static void let_pass(double seconds)
{
    for (double since = seconds_now(); seconds_now() - since < seconds;)
        nap();
}

/* Waits until rank 0 stands before the full pipe, so that the others wait for it. */
static void await_full_pipe(job *j)
{
    int last = -1, bytes = 0;
    for (double since = seconds_now(); bytes != last; check_waiting(j, since, "a full pipe")) {
        last = bytes;
        let_pass(0.2);
        assert_int_equal(ioctl(j->log, FIONREAD, &bytes), 0);
    }
}

static void ctrl_z_and_fg_are_no_fault(void **state)
{
    static job j;
    char       wanted[65], digits[65];
    undisturbed(*state, MLP, STEPS, wanted);
    job_start(&j, *state, 3, RUN "--timeout 4");
    job_await_step(&j, HIT_AT);
    await_full_pipe(&j);
    job_hit(&j, -j.pid, SIGSTOP);
    let_pass(4.5); /* longer than anybody would wait */
    job_hit(&j, -j.pid, SIGCONT);
    let_pass(0.2);
    (void)job_wait(&j);
    if (j.result.status != 0)
        fail_msg("status %d: %s", j.result.status, j.result.err);
    read_weights(&j.result, digits);
    assert_string_equal(digits, wanted);
}

/* A worker that is asked alone passes it on: it means the job. */
static void a_signal_to_one_worker_stops_the_job(void **state)
{
    static job j;
    job_start(&j, *state, 3, RUN);
    job_await_step(&j, HIT_AT);
    job_hit(&j, j.worker[1], SIGTERM);
    (void)job_wait(&j);
    assert_int_equal(j.result.status, 75);
    forget(*state);
}

static void a_second_signal_ends_what_cannot_save(void **state)
{
    static const int         signals[] = { SIGINT, SIGTERM };
    static const char *const modes[]   = { "", "--worker-mode threads" };
    static job               j;
    for (size_t n = 0; n < 4; n++) {
        size_t i = n % 2;
        char   wanted[64], line[512];
        (void)snprintf(line, sizeof line, RUN "--checkpoint-every 5 %s", modes[n / 2]);
        job_start(&j, *state, 3, line);
        job_await_step(&j, HIT_AT);
        await_full_pipe(&j);
        job_hit(&j, j.pid, signals[i]); /* nobody reads the log: rank 0 cannot go on */
        for (double since = seconds_now(); !has_taken_signals(j.pid);)
            check_waiting(&j, since, "the first signal to be taken");
        int status;
        for (let_pass(0.2); waitpid(j.pid, &status, WNOHANG) == 0; let_pass(0.2)) {
            if (seconds_now() - j.hit_at > LIMIT_SECONDS)
                job_fail(&j, "the second %s did not end the job", strsignal(signals[i]));
            (void)kill(j.pid, signals[i]); /* as people do who wait */
        }
        print_message("a second %s: ended after %.0f ms\n", strsignal(signals[i]),
                      1e3 * (seconds_now() - j.hit_at));
        for (uint32_t r = 0; r < 3; r++)
            assert_true(is_gone(j.worker[r]));
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 128 + signals[i]);
        read_stream(j.folder, "err", j.result.err, sizeof j.result.err);
        (void)snprintf(wanted, sizeof wanted, "a second SIG%s ended", sigabbrev_np(signals[i]));
        assert_int_equal(strncmp(job_verdict(&j), wanted, strlen(wanted)), 0);
        (void)close(j.log);
        run_command(&j.result, *state, "inspect ck"); /* the one of step 10 */
        assert_int_equal(j.result.status, 0);
        forget(*state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_signal_to_the_launcher_saves, begin_afresh),
        cmocka_unit_test_setup(a_signal_to_everybody_counts_once, begin_afresh),
        cmocka_unit_test_setup(a_signal_twice_at_once_is_one, begin_afresh),
        cmocka_unit_test_setup(a_signal_at_the_start_is_not_lost, begin_afresh),
        cmocka_unit_test_setup(threads_save_as_well, begin_afresh),
        cmocka_unit_test_setup(ctrl_z_and_fg_are_no_fault, begin_afresh),
        cmocka_unit_test_setup(a_signal_to_one_worker_stops_the_job, begin_afresh),
        cmocka_unit_test_setup(a_second_signal_ends_what_cannot_save, begin_afresh),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
