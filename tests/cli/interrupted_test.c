/* interrupted_test.c -- signals to `lockstep verify FILE`, which runs replays in other processes,
 * and to `lockstep export`, `lockstep tokenize` and `lockstep attest`.
 *
 * Method: the test stops a worker of a replay by SIGSTOP, so the replay cannot end by itself, and
 *         then sends a signal to the command.  A replay that ends before it is stopped is started
 *         again, so nothing depends on who is faster.
 */
#include "cli/command.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <time.h>

#define LOCKSTEP LK_TEST_COMMAND " "

enum { TRIES = 200 };

static int make(void **state)
{
    static command_result r;
    int                   failed = make_folder(state);
    run_shell(&r, *state, "seq 300 >book.txt && mkdir temporary && " LOCKSTEP
              "train gpt --layers 1 --heads 1 --width 8 --context 8 --global-batch 8 "
              "--virtual-workers 2 --lr 0.01 --workers 2 --quiet --data book.txt --steps 40 "
              "--checkpoint run --log run.jsonl && " LOCKSTEP "attest run");
    return failed != 0 || r.status != 0;
}

/* Starts a command of lockstep as a shell on a terminal would. */
static pid_t start(const char *folder, const char *const arguments[])
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    (void)signal(SIGINT, SIG_DFL);
    if (chdir(folder) == 0 && setenv("TMPDIR", "temporary", 1) == 0 &&
        freopen("out", "w", stdout) != NULL && freopen("err", "w", stderr) != NULL)
        (void)execv(LK_TEST_COMMAND, (char *const *)(uintptr_t)arguments);
    _exit(99);
}

/* Returns a child of a process, or 0. */
static pid_t child_of(pid_t pid)
{
    char  path[64];
    int   child = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%d", &child) != 1)
        child = 0;
    (void)fclose(file);
    return child;
}

/* Returns the state of a process as ps shows it, or 0 if there is none. */
static char state_of(pid_t pid)
{
    char  path[64], state = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 0;
    (void)fclose(file);
    return state;
}

/* Returns true if a process is a worker that has joined its job, which gives it another name. */
static bool is_worker(pid_t pid)
{
    char  path[64], name[32] = "";
    (void)snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *file = pid > 0 ? fopen(path, "re") : NULL;
    if (file == NULL)
        return false;
    const bool read = fgets(name, sizeof name, file) != NULL;
    (void)fclose(file);
    return read && strncmp(name, "lockstep:", 9) == 0;
}

static bool is_over(pid_t pid)
{
    const char state = state_of(pid);
    return state == 0 || state == 'Z' || state == 'X';
}

/* A command with the processes of its replay, of which the worker is stopped. */
typedef struct {
    pid_t verify, train, worker;
} job;

/* Stops a worker of the replay.  Returns false if the command has ended before. */
static bool stop_worker(job *j)
{
    while (waitpid(j->verify, NULL, WNOHANG) == 0) {
        j->train  = child_of(j->verify);
        j->worker = j->train > 0 ? child_of(j->train) : 0;
        if (!is_worker(j->worker) || kill(j->worker, SIGSTOP) != 0)
            continue;
        while (!is_over(j->worker) && state_of(j->worker) != 'T')
            continue;
        if (state_of(j->worker) == 'T')
            return true;
    }
    return false;
}

static job begin(const char *folder)
{
    static const char *const verify[] = { "lockstep", "verify", "run.attest.json", NULL };
    for (int i = 0; i < TRIES; i++) {
        job j = { .verify = start(folder, verify) };
        if (stop_worker(&j))
            return j;
    }
    fail_msg("no worker of a replay was found in %d tries", TRIES);
    return (job){ 0 };
}

/* Waits until a process is over, which the kernel may end later than its parent. */
static void wait_for_end(pid_t pid)
{
    const struct timespec moment = { .tv_nsec = 10000000 };
    for (int i = 0; i < 6000 && !is_over(pid); i++)
        (void)nanosleep(&moment, NULL);
    const bool over = is_over(pid);
    if (!over)
        (void)kill(pid, SIGKILL);
    assert_true(over);
}

static size_t count_temporary(const char *folder)
{
    char           path[64];
    size_t         count = 0;
    struct dirent *entry;
    (void)snprintf(path, sizeof path, "%s/temporary", folder);
    DIR *directory = opendir(path);
    assert_non_null(directory);
    while ((entry = readdir(directory)) != NULL)
        count += entry->d_name[0] != '.';
    (void)closedir(directory);
    return count;
}

/* Sends a signal, of which the command must end, and with it all its processes. */
static void end_by(const char *folder, int number)
{
    int status;
    job j = begin(folder);
    assert_int_equal(kill(j.verify, number), 0);
    assert_int_equal(waitpid(j.verify, &status, 0), j.verify);
    wait_for_end(j.train);
    wait_for_end(j.worker);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != number)
        fail_msg("signal %d: status %x", number, (unsigned)status);
}

static void signals_end_the_replay_and_remove_its_folder(void **state)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        end_by(*state, numbers[i]);
        assert_int_equal(count_temporary(*state), 0);
    }
}

/* Nobody can remove the folder then. */
static void replays_do_not_outlive_a_killed_command(void **state)
{
    end_by(*state, SIGKILL);
    assert_int_equal(count_temporary(*state), 1);
}

/* Stops an export while its draft has a file of weights.  Returns false if it has ended before. */
static bool stop_export(const char *folder, pid_t pid)
{
    char path[96];
    (void)snprintf(path, sizeof path, "%s/out2.tmp-%d/model.safetensors", folder, (int)pid);
    while (access(path, F_OK) != 0)
        if (waitpid(pid, NULL, WNOHANG) != 0)
            return false;
    (void)kill(pid, SIGSTOP);
    while (!is_over(pid) && state_of(pid) != 'T')
        continue;
    return access(path, F_OK) == 0;
}

/* Exports until a signal comes while weights are being written.  An export that was faster is
 * repeated. */
static void end_export(void **state, int number)
{
    static const char *const arguments[] = { "lockstep", "export", "big", "--out", "out2", NULL };
    static command_result    r;
    int                      status = 0;
    for (int i = 0; i < TRIES && !WIFSIGNALED(status); i++) {
        shell(&r, state, "rm -rf out2", 0);
        pid_t pid = start(*state, arguments);
        if (!stop_export(*state, pid)) {
            (void)kill(pid, SIGCONT);
            (void)waitpid(pid, NULL, 0);
            continue;
        }
        assert_int_equal(kill(pid, number), 0);
        assert_int_equal(kill(pid, SIGCONT), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        shell(&r, state, "ls -d out2.*", 2);
    }
    if (!WIFSIGNALED(status) || WTERMSIG(status) != number)
        fail_msg("signal %d: status %x", number, (unsigned)status);
}

static void signals_end_an_export_and_remove_its_draft(void **state)
{
    static command_result r;
    shell(&r, state, LOCKSTEP "train gpt --layers 2 --heads 1 --width 256 --context 8 "
          "--global-batch 2 --workers 1 --worker-mode threads --quiet --data book.txt --steps 1 "
          "--checkpoint big", 0);
    end_export(state, SIGINT);
    end_export(state, SIGTERM);
}

/* Sends a signal to `tokenize` once its draft is there.  A command that was faster is repeated. */
static void end_tokenize(void **state, int number)
{
    static const char *const arguments[] = { "lockstep", "tokenize", "--tokenizer",
                                             LK_TEST_SOURCE "/tests/tokenizers/gpt2.json", "--out",
                                             "t.bin", "long.txt", NULL };
    static command_result    r;
    char                     draft[64];
    int                      status = 0;
    for (int i = 0; i < TRIES && !WIFSIGNALED(status); i++) {
        pid_t pid = start(*state, arguments);
        (void)snprintf(draft, sizeof draft, "%s/t.bin.%d.new", (const char *)*state, (int)pid);
        while (access(draft, F_OK) != 0 && !is_over(pid))
            continue;
        (void)kill(pid, number);
        assert_int_equal(waitpid(pid, &status, 0), pid);
    }
    if (!WIFSIGNALED(status) || WTERMSIG(status) != number)
        fail_msg("signal %d: status %x", number, (unsigned)status);
    shell(&r, state, "ls t.bin.*", 2);
}

static void signals_end_tokenize_and_remove_its_draft(void **state)
{
    static command_result r;
    shell(&r, state, "seq 2000000 >long.txt", 0);
    end_tokenize(state, SIGINT);
    end_tokenize(state, SIGTERM);
    end_tokenize(state, SIGHUP);
}

/* Sends a signal to `attest` alone while an ssh-keygen that takes its time signs. */
static void end_attest(void **state, int number)
{
    static const char *const arguments[] = { "lockstep", "attest", "run", "--key", "key", "--out",
                                             "signed.json", NULL };
    static command_result    r;
    int                      status, signer = 0;
    char                     path[64];
    (void)snprintf(path, sizeof path, "%s/signer", (const char *)*state);
    pid_t pid = start(*state, arguments);
    while (signer == 0 && waitpid(pid, &status, WNOHANG) == 0) {
        FILE *file = fopen(path, "re");
        if (file != NULL && fscanf(file, "%d\n", &signer) != 1)
            signer = 0;
        if (file != NULL)
            (void)fclose(file);
    }
    assert_true(signer > 0);
    assert_int_equal(kill(pid, number), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != number)
        fail_msg("signal %d: status %x", number, (unsigned)status);
    wait_for_end(signer);
    shell(&r, state, "rm signer; ls signed.json*", 2);
}

static void signals_end_attest_and_remove_its_drafts(void **state)
{
    static command_result r;
    char                  paths[4096];
    const char           *before = getenv("PATH");
    shell(&r, state, "mkdir slow; echo mine >key; printf '#!/bin/sh\necho $$ >signer\nexec sleep "
          "60\n' >slow/ssh-keygen; chmod +x slow/ssh-keygen", 0);
    (void)snprintf(paths, sizeof paths, "slow:%s", before);
    assert_int_equal(setenv("PATH", paths, 1), 0);
    end_attest(state, SIGINT);
    end_attest(state, SIGTERM);
    end_attest(state, SIGHUP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signals_end_the_replay_and_remove_its_folder),
        cmocka_unit_test(replays_do_not_outlive_a_killed_command),
        cmocka_unit_test(signals_end_an_export_and_remove_its_draft),
        cmocka_unit_test(signals_end_tokenize_and_remove_its_draft),
        cmocka_unit_test(signals_end_attest_and_remove_its_drafts),
    };
    return cmocka_run_group_tests(tests, make, remove_folder);
}
