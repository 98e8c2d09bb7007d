/* faults/job.h -- for tests: a training job that is disturbed while it runs.
 *
 * A job can write its log into a pipe of 4 KiB that the test owns.  Rank 0 then cannot be more than
 * some 20 steps ahead of the last line that the test has read, whatever the speed of the machine.
 * So a test hits a run at the intended step without sleeping, and the run has a fixed number of
 * steps whose weights are known.  Every wait has a generous limit; its actual time is printed.
 */
#ifndef LKT_JOB_H
#define LKT_JOB_H

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>

#include "cli/command.h"

#define MLP                                                                                        \
    "train mlp --data synthetic:images=64,h=4,w=4,c=1,classes=3 --virtual-workers 4 "              \
    "--hidden 8 --global-batch 8 --micro-batch 2 --momentum 0.9 --lr 0.05 "
enum { STEPS = 60, HIT_AT = 12, AHEAD_MAX = 30, JOB_WORKERS_MAX = 4, LIMIT_SECONDS = 300 };

typedef struct {
    const char    *folder;
    const char    *terminal; /* path of the controlling terminal; NULL: a group without one */
    pid_t          pid; /* pid of the command, the launcher and leader of its process group */
    uint32_t       workers;
    pid_t          worker[JOB_WORKERS_MAX];
    int            log; /* read end of the log's pipe */
    char           line[1024];
    size_t         used;
    double         hit_at;
    double         timeout_s; /* silence after which a rank counts as lost */
    bool           ended;     /* a wait has found that the job has ended */
    command_result result;
} job;

static inline double seconds_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline void nap(void)
{
    const struct timespec moment = { 0, 1000000 };
    (void)nanosleep(&moment, NULL);
}

/* Returns the kernel's letter for the state of a process; 0 if the process does not exist. */
static inline char process_state(pid_t pid)
{
    char path[64], text[512];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    const char *name_end = strrchr(text, ')');
    return name_end != NULL && name_end[1] != '\0' ? name_end[2] : (char)0;
}

/* Returns true if a process is dead, even if its parent, which is not this test, has not reaped it
 * yet. */
static inline bool is_gone(pid_t pid)
{
    char state = process_state(pid);
    return state == 0 || state == 'Z' || state == 'X';
}

static inline void job_kill_all(const job *j)
{
    for (uint32_t i = 0; i < j->workers; i++)
        if (j->worker[i] > 0)
            (void)kill(j->worker[i], SIGKILL);
    (void)kill(-j->pid, SIGKILL);
}

static inline void job_fail(const job *j, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static inline void job_fail(const job *j, const char *format, ...)
{
    char    text[4096];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    job_kill_all(j);
    fail_msg("%s", text);
}

/* Creates the files of a job that has not started yet. */
static inline void job_prepare(job *j, const char *folder, uint32_t workers)
{
    char path[64];
    assert_true(workers <= JOB_WORKERS_MAX);
    (void)memset(j, 0, sizeof *j);
    j->folder  = folder;
    j->workers = workers;
    (void)snprintf(path, sizeof path, "%s/err", folder); /* remains of the previous job */
    (void)unlink(path);
    (void)close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    (void)snprintf(path, sizeof path, "%s/pipe", folder);
    (void)unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    j->log = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    assert_true(j->log >= 0);
    assert_int_equal(fcntl(j->log, F_SETPIPE_SZ, 4096), 4096);
}

/* Starts "lockstep ARGUMENTS" in a separate process group.  Adds --workers unless `arguments` has
 * it. */
static inline void job_run(job *j, const char *arguments)
{
    static char line[3000];
    char        many[32] = "";
    if (strstr(arguments, "--workers") == NULL)
        (void)snprintf(many, sizeof many, "--workers %u", j->workers);
    (void)snprintf(line, sizeof line, "cd %s && exec %s %s %s >out 2>err </dev/null", j->folder,
                   LK_TEST_COMMAND, arguments, many);
    const char *timeout = strstr(arguments, "--timeout ");
    j->timeout_s        = timeout != NULL ? atof(timeout + strlen("--timeout ")) : 30;
    (void)fflush(NULL);
    j->pid = fork();
    assert_true(j->pid >= 0);
    if (j->pid == 0) {
        if (j->terminal == NULL)
            (void)setpgid(0, 0);
        else if (setsid() < 0 || open(j->terminal, O_RDWR) < 0) /* becomes the controlling one */
            _exit(126);
        (void)execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    if (j->terminal == NULL)
        (void)setpgid(j->pid, j->pid);
}

static inline void job_start(job *j, const char *folder, uint32_t workers, const char *arguments)
{
    job_prepare(j, folder, workers);
    job_run(j, arguments);
}

/* Starts a job whose rank 0 cannot write its first line before the log is read. */
static inline void job_start_held(job *j, const char *folder, uint32_t workers,
                                  const char *arguments)
{
    static const char filling[4096];
    job_prepare(j, folder, workers);
    assert_int_equal(write(j->log, filling, sizeof filling), sizeof filling);
    job_run(j, arguments);
}

/* ---- Waiting for something to hit --------------------------------------------------------- */

static inline bool has_ended(const job *j)
{
    siginfo_t info = { 0 };
    return waitid(P_PID, (id_t)j->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

static inline uint32_t count_of(const char *text, const char *word)
{
    uint32_t count = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        count++;
    return count;
}

/* Sleeps briefly.  Fails if the limit has passed, or if the job had already ended before the call.
 * So the caller checks once more after the end of the job. */
static inline void check_waiting(job *j, double since, const char *what)
{
    read_stream(j->folder, "err", j->result.err, sizeof j->result.err);
    if (seconds_now() - since > LIMIT_SECONDS)
        job_fail(j, "waited %d s in vain for %s: %s", LIMIT_SECONDS, what, j->result.err);
    if (j->ended)
        job_fail(j, "the job ended before %s: %s", what, j->result.err);
    j->ended = has_ended(j);
    nap();
}

/* Waits until stderr contains `word`, without reading the log. */
static inline void await_word(job *j, const char *word)
{
    for (double since = seconds_now();; check_waiting(j, since, word)) {
        read_stream(j->folder, "err", j->result.err, sizeof j->result.err);
        if (strstr(j->result.err, word) != NULL)
            return;
    }
}

/* Waits until stderr contains `word`, and reads the workers' pids from rank 0's introduction. */
static inline void job_await_word(job *j, const char *word)
{
    await_word(j, word);
    for (uint32_t i = 0; i < j->workers; i++) {
        char wanted[32];
        (void)snprintf(wanted, sizeof wanted, "\nrank %u (pid ", i);
        const char *found = strstr(j->result.err, wanted);
        assert_non_null(found);
        j->worker[i] = (pid_t)atoi(found + strlen(wanted));
    }
}

/* Reads the log's pipe up to the line of `step`.  Returns true if that line has been read. */
static inline bool read_log(job *j, unsigned long step)
{
    char byte;
    while (read(j->log, &byte, 1) == 1) {
        unsigned long seen = 0;
        if (j->used + 1 < sizeof j->line)
            j->line[j->used++] = byte;
        if (byte != '\n')
            continue;
        j->line[j->used] = '\0';
        j->used          = 0;
        if (sscanf(j->line, "{\"step\": %lu, \"epoch\"", &seen) == 1 && seen >= step)
            return true;
    }
    return false;
}

/* Waits until stderr contains `word`, and reads the log meanwhile, a step at a time: a new rank 0
 * may have to write lines that the lost one has not written, before it prints what has happened. */
static inline void await_word_reading(job *j, const char *word)
{
    for (double since = seconds_now();; check_waiting(j, since, word)) {
        read_stream(j->folder, "err", j->result.err, sizeof j->result.err);
        if (strstr(j->result.err, word) != NULL)
            return;
        (void)read_log(j, 0);
    }
}

static inline void job_await_step(job *j, unsigned long step)
{
    job_await_word(j, "step 1/");
    double since = seconds_now();
    while (!read_log(j, step))
        check_waiting(j, since, "a step in the log");
}

/* Waits until all workers have started, before they have printed a line. */
static inline void job_await_children(job *j)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)j->pid, (int)j->pid);
    for (double since = seconds_now();;) {
        FILE    *file  = fopen(path, "r");
        uint32_t count = 0;
        while (file != NULL && count < j->workers && fscanf(file, "%d", &j->worker[count]) == 1)
            count++;
        if (file != NULL)
            (void)fclose(file);
        if (count == j->workers)
            return;
        check_waiting(j, since, "its workers");
    }
}

/* ---- The fault and the end ---------------------------------------------------------------- */

static inline void job_hit(job *j, pid_t pid, int number)
{
    j->hit_at = seconds_now();
    assert_int_not_equal(pid, 0); /* pid 0 would be this test and its whole group */
    assert_int_equal(kill(pid, number), 0);
}

/* Returns true if a process has handled all signals sent to it, which launchers do between two
 * sleeps.  A stopped or dead process handles no more signals. */
static inline bool has_handled_signals(pid_t pid)
{
    char path[64], text[4096];
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return true;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    const char *pending = strstr(text, "ShdPnd:"), *state = strstr(text, "State:");
    assert_true(pending != NULL && state != NULL);
    if (strchr("TtZX", state[strlen("State:\t")]) != NULL)
        return true;
    return strtoull(pending + strlen("ShdPnd:"), NULL, 16) == 0 && state[strlen("State:\t")] == 'S';
}

/* Returns true if the process is a coordinator. */
static inline bool is_coordinator(pid_t pid)
{
    char path[64], comm[32] = "";
    (void)snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *file = fopen(path, "r");
    bool  is   = file != NULL && fgets(comm, sizeof comm, file) != NULL
              && strcmp(comm, "lockstep-coord\n") == 0;
    if (file != NULL)
        (void)fclose(file);
    return is;
}

/* Reads the pid of a keeper's next child; 0 at the end. */
static inline pid_t next_child(FILE *children)
{
    int pid = 0;
    return children != NULL && fscanf(children, "%d", &pid) == 1 ? (pid_t)pid : 0;
}

static inline FILE *children_of(pid_t parent)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    return fopen(path, "re");
}

/* Returns the pid of this keeper's coordinator; 0 if the keeper has no coordinator at present.  For
 * a moment, a worker started by a coordinator has the coordinator's name. */
static inline pid_t coordinator_of(pid_t keeper)
{
    FILE *children = children_of(keeper);
    pid_t pid, found = 0;
    while (found == 0 && (pid = next_child(children)) != 0)
        found = !is_gone(pid) && is_coordinator(pid) ? pid : 0;
    if (children != NULL)
        (void)fclose(children);
    return found;
}

/* Returns true if a launcher and its coordinator have handled all signals sent to them. */
static inline bool has_heard(pid_t launcher)
{
    pid_t coordinator = coordinator_of(launcher);
    return has_handled_signals(launcher) &&
           (coordinator == 0 || has_handled_signals(coordinator));
}

/* Waits until a launcher has handled its signals.  Does not read the log during that time, so the
 * run cannot continue beyond the pipe. */
static inline void await_heard(const job *j, pid_t launcher)
{
    while (!has_heard(launcher)) {
        if (seconds_now() - j->hit_at > LIMIT_SECONDS)
            job_fail(j, "the launcher %d does not handle a signal", (int)launcher);
        nap();
    }
}

/* Waits until the command and all workers are gone.  Returns the seconds since job_hit(). */
static inline double job_wait(job *j)
{
    int    status = 0;
    double taken  = 0;
    await_heard(j, j->pid);
    while (waitpid(j->pid, &status, WNOHANG) == 0) {
        while (read_log(j, (unsigned long)-1))
            continue;
        if (seconds_now() - j->hit_at > LIMIT_SECONDS)
            job_fail(j, "the job continues %d s after the blow", LIMIT_SECONDS);
        nap();
    }
    taken = seconds_now() - j->hit_at;
    for (uint32_t i = 0; i < j->workers; i++)
        while (j->worker[i] > 0 && !is_gone(j->worker[i])) {
            if (seconds_now() - j->hit_at > LIMIT_SECONDS)
                job_fail(j, "rank %u is still there, state %c", i, process_state(j->worker[i]));
            taken = seconds_now() - j->hit_at;
            nap();
        }
    (void)close(j->log);
    j->result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    read_stream(j->folder, "out", j->result.out, sizeof j->result.out);
    read_stream(j->folder, "err", j->result.err, sizeof j->result.err);
    return taken;
}

/* Returns the verdict, which is the last line of stderr.  Checks that the command itself has
 * printed no other line. */
static inline const char *job_verdict(const job *j)
{
    static const char mark[] = "lockstep train: ";
    const char       *line   = strstr(j->result.err, mark);
    if (line == NULL || strstr(line + 1, mark) != NULL || strchr(line, '\n') == NULL ||
        strchr(line, '\n')[1] != '\0')
        fail_msg("not one last line of the command's own in: %s", j->result.err);
    return line + strlen(mark);
}

/* Checks that the verdict names rank, pid, `what` and the step.  Returns the step, and its
 * phase. */
static inline unsigned long job_blames(const job *j, uint32_t rank, const char *what,
                                       const char **phase)
{
    char        wanted[128];
    const char *line = job_verdict(j);
    int         in   = 0;
    (void)snprintf(wanted, sizeof wanted, "rank %u (pid %d) %s", rank, (int)j->worker[rank], what);
    if (strncmp(line, wanted, strlen(wanted)) != 0)
        fail_msg("not '%s': %s", wanted, line);
    unsigned long step = 0;
    (void)sscanf(line + strlen(wanted), " at step %lu in %n", &step, &in);
    if (phase != NULL)
        *phase = in == 0 ? "" : line + strlen(wanted) + in;
    return step;
}

/* ---- Checks afterwards -------------------------------------------------------------------- */

/* Computes the weights of the undisturbed run of `steps` steps. */
static inline void undisturbed(const char *folder, const char *options, unsigned long steps,
                               char digits[65])
{
    static command_result r;
    char                  line[1024];
    (void)snprintf(line, sizeof line, "%s --steps %lu --workers 1 --strategy single --quiet",
                   options, steps);
    run_command(&r, folder, line);
    if (r.status != 0)
        fail_msg("%s: status %d: %s", line, r.status, r.err);
    read_weights(&r, digits);
}

/* Checks the directory "ck".  All files in it must verify, and no partial file may be left.  A run
 * resumed from the newest checkpoint on another number of workers must have the undisturbed run's
 * bits. */
static inline void goes_on(const char *folder, const char *options, uint32_t workers,
                           unsigned long steps, const char *wanted)
{
    static command_result r;
    char                  line[1024], digits[65];
    run_command(&r, folder, "inspect ck");
    if (r.status != 0)
        fail_msg("inspect: status %d: %s%s", r.status, r.out, r.err);
    (void)snprintf(line, sizeof line, "%s --checkpoint ck --resume --steps %lu --workers %u",
                   options, steps, workers);
    run_command(&r, folder, line);
    if (r.status != 0)
        fail_msg("%s: status %d: %s", line, r.status, r.err);
    assert_says(r.err, "resuming from ck/step-");
    read_weights(&r, digits);
    if (strcmp(digits, wanted) != 0)
        fail_msg("resumed: %s, undisturbed: %s\n%s", digits, wanted, r.err);
    (void)run_shell(&r, folder, "ls -A ck | grep -v -e '^step-[0-9]*$' -e '^command.json$'");
    assert_string_equal(r.out, "");
}

static inline void forget(const char *folder)
{
    static command_result r;
    (void)run_shell(&r, folder, "rm -rf ck log");
}

/* Removes the files that a failed test has left.  Runs before each test. */
static inline int begin_afresh(void **state)
{
    forget(*state);
    return 0;
}

#endif
