/* faults/survivors.h -- for tests of runs that go on without workers that they have lost. */
#ifndef LKT_SURVIVORS_H
#define LKT_SURVIVORS_H

#include "faults/job.h"

#define GOES_ON "--on-failure continue "

enum { LONGER = 300 }; /* steps of runs in which workers are replaced */

/* Takes long to open. */
#define SLOW "--hidden 2000,2000 --flight fl "

/* Evaluates and checkpoints between many of its short steps. */
#define BUSY                                                                                       \
    "train mlp --data synthetic:images=320,h=4,w=4,c=1,classes=3 --validation 0.2 --eval-every 2 " \
    "--virtual-workers 4 --hidden 32 --global-batch 8 --micro-batch 2 --optimizer adamw --lr 0.01 "

static inline uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* A moment of up to 4 ms. */
static inline void rest(uint64_t *seed)
{
    const struct timespec moment = { 0, (long)(next_random(seed) % 4000000) };
    (void)nanosleep(&moment, NULL);
}

static inline void assert_undisturbed(job *j, const char *wanted)
{
    char digits[65];
    if (j->result.status != 0)
        fail_msg("status %d: %s", j->result.status, j->result.err);
    read_weights(&j->result, digits);
    if (strcmp(digits, wanted) != 0)
        fail_msg("%s, undisturbed %s: %s", digits, wanted, j->result.err);
}

/* Starts a job whose log is the pipe, and waits until it is where it is hit. */
static inline void job_begin(job *j, const char *folder, uint32_t workers, const char *arguments)
{
    job_start(j, folder, workers, arguments);
    job_await_step(j, HIT_AT);
}

/* What stands in a log, without times. */
static inline void read_bits(const char *folder, const char *log, command_result *r)
{
    char line[256];
    (void)snprintf(line, sizeof line,
                   "sed -E '/\"(checkpoint|rebalance|straggler)\"/d; "
                   "s/\"samples_per_s.*_ms\": [0-9.]*//; s/\"run.*//' %s | sha256sum",
                   log);
    (void)run_shell(r, folder, line);
}

static inline bool has_ended(const job *j)
{
    siginfo_t info = { 0 };
    return waitid(P_PID, (id_t)j->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

/* Where nothing holds a run up it may get away: whether it says the word before it ends. */
static inline bool await_or_end(job *j, const char *word)
{
    for (double since = seconds_now(); !has_ended(j); nap()) {
        read_stream(j->folder, "err", j->result.err, sizeof j->result.err);
        if (strstr(j->result.err, word) != NULL)
            return true;
        if (seconds_now() - since > LIMIT_SECONDS)
            job_fail(j, "waited %d s in vain for %s", LIMIT_SECONDS, word);
    }
    return false;
}

/* Waits for the nth `word`, and reads the log meanwhile: who writes it may be waited for. */
static inline void await_nth(job *j, const char *word, uint32_t nth)
{
    for (double since = seconds_now();; check_waiting(j, since, word)) {
        uint32_t count = 0;
        read_stream(j->folder, "err", j->result.err, sizeof j->result.err);
        for (const char *at = j->result.err; (at = strstr(at, word)) != NULL; at++)
            count++;
        if (count >= nth)
            return;
        (void)read_log(j, (unsigned long)-1);
    }
}

/* Whether all have joined, and rank `last` has yet to open data or to make room for the model, as
 * flight records in "fl" say; learns who they are. */
static inline bool is_early(job *j, uint32_t last)
{
    char     line[256];
    bool     early = false;
    uint32_t rank, joined = 0;
    int      pid;
    (void)snprintf(line, sizeof line, "%s inspect --flight %s/fl 2>/dev/null", LK_TEST_COMMAND,
                   j->folder);
    FILE *said = popen(line, "r");
    while (fgets(line, sizeof line, said) != NULL)
        if (sscanf(line, " %u running %d", &rank, &pid) == 2 && rank <= last) {
            j->worker[rank] = (pid_t)pid;
            joined += strstr(line, "  0  ") != NULL;
            early = rank == last && (strstr(line, "  0  opening data") != NULL ||
                                     strstr(line, "  0  making room for the model") != NULL);
        }
    (void)pclose(said);
    return early && joined > last;
}

/* Stops the last rank before its first step: nobody begins without it. */
static inline void hold_early(job *j)
{
    uint32_t last = j->workers - 1;
    for (double since = seconds_now(); !is_early(j, last);)
        check_waiting(j, since, "a rank before its first step");
    assert_int_equal(kill(j->worker[last], SIGSTOP), 0);
}

/* Waits until the one that is started in its place can enter; the run is held up by its log.
 * `host`: "" or, where there are several, "host host1, ". */
static inline void await_replacement(job *j, uint32_t rank, uint32_t nth, const char *host)
{
    char wanted[64];
    (void)snprintf(wanted, sizeof wanted, "note: rank %u (%spid ", rank, host);
    for (double since = seconds_now();; check_waiting(j, since, "a worker in its place")) {
        const char *found = j->result.err;
        uint32_t    count = 0;
        read_stream(j->folder, "err", j->result.err, sizeof j->result.err);
        for (; count < nth && (found = strstr(found, wanted)) != NULL; count++)
            j->worker[rank] = (pid_t)atoi(found += strlen(wanted));
        if (count == nth && strstr(found, " is ready to enter\n") != NULL)
            return;
    }
}

/* ---- Hosts --------------------------------------------------------------------------------- */

/* The launcher of a host is who started its workers. */
static inline pid_t launcher_of(const job *j, uint32_t rank)
{
    char path[64], text[4096];
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)j->worker[rank]);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        job_fail(j, "rank %u is not there", rank);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    const char *parent = strstr(text, "PPid:");
    assert_non_null(parent);
    return (pid_t)atoi(parent + strlen("PPid:"));
}

/* Whether it is one that takes decisions for a keeper. */
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

/* A keeper's children, one after the other; 0: no more. */
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

/* That of this keeper; 0: there is none now.  A worker that it has started has its name for a
 * moment. */
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

/* The newest child of a process that is there yet, and no coordinator. */
static inline pid_t newest_child(pid_t parent)
{
    FILE *children = children_of(parent);
    pid_t pid, newest = 0;
    while ((pid = next_child(children)) != 0)
        newest = is_gone(pid) || is_coordinator(pid) ? newest : pid;
    if (children != NULL)
        (void)fclose(children);
    return newest;
}

static inline void drip_each(job *j, long pause_ns, const char *word, uint32_t nth)
{
    const struct timespec moment = { 0, pause_ns };
    for (double since = seconds_now();; check_waiting(j, since, word)) {
        uint32_t count = 0;
        char     byte  = 0;
        read_stream(j->folder, "err", j->result.err, sizeof j->result.err);
        for (const char *at = j->result.err; (at = strstr(at, word)) != NULL; at++)
            count++;
        if (count >= nth)
            return;
        while (byte != '\n' && read(j->log, &byte, 1) == 1)
            continue;
        (void)nanosleep(&moment, NULL);
    }
}

/* As await_nth(), but of the log a line is read now and then: so rank 0, which stands before it,
 * goes on, and does not get away. */
static inline void drip_until_nth(job *j, const char *word, uint32_t nth)
{
    drip_each(j, 50000000, word, nth);
}

/* The same for what comes before the next step does: as soon as rank 0 has written its line. */
static inline void drip_before_next(job *j, const char *word, uint32_t nth)
{
    drip_each(j, 1, word, nth);
}

static inline void await_gone(job *j, pid_t launcher)
{
    while (!is_gone(launcher)) {
        if (seconds_now() - j->hit_at > LIMIT_SECONDS)
            job_fail(j, "the launcher %d is still there", (int)launcher);
        nap();
    }
}

/* Nobody waits for a launcher: until it has died nobody reads the log, so that the run does not get
 * away meanwhile. */
static inline void hit_launcher(job *j, uint32_t rank)
{
    pid_t launcher = launcher_of(j, rank);
    job_hit(j, launcher, SIGKILL);
    await_gone(j, launcher);
}

#endif
