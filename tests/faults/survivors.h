/* faults/survivors.h -- for tests of runs that continue without lost workers. */
#ifndef LKT_SURVIVORS_H
#define LKT_SURVIVORS_H

#include "faults/job.h"

#define GOES_ON "--on-failure continue "

enum { LONGER = 300 }; /* number of steps of runs in which workers are replaced */

/* Options of a run that takes a long time to start. */
#define SLOW "--hidden 2000,2000 --flight-recorder fl --timeout 300 "

/* Options of a run that evaluates and checkpoints between many of its short steps. */
#define BUSY                                                                                       \
    "train mlp --data synthetic:images=320,h=4,w=4,c=1,classes=3 --validation 0.2 --eval-every 2 " \
    "--virtual-workers 4 --hidden 32 --global-batch 8 --micro-batch 2 --optimizer adamw --lr 0.01 "

static inline uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Sleeps up to 4 ms. */
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

/* Starts a job whose log is the pipe, and waits for the step at which the job is hit. */
static inline void job_begin(job *j, const char *folder, uint32_t workers, const char *arguments)
{
    job_start(j, folder, workers, arguments);
    job_await_step(j, HIT_AT);
}

/* Reads the contents of a log without times. */
static inline void read_bits(const char *folder, const char *log, command_result *r)
{
    char line[320];
    (void)snprintf(line, sizeof line,
                   "sed -E '/\"(checkpoint|rebalance|straggler|config|workers|membership)\"/d; "
                   "s/, \"time\": [0-9.]*//; s/\"samples_per_s.*_ms\": [0-9.]*//; "
                   "s/\"run.*//' %s | sha256sum",
                   log);
    (void)run_shell(r, folder, line);
}

/* Waits for `word` in a run that is not blocked.  Returns false if the run ended without that
 * word. */
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

/* Waits for the nth `word`.  Reads the log during the wait, because other ranks may wait for the
 * rank that writes the log. */
static inline void await_nth(job *j, const char *word, uint32_t nth)
{
    for (double since = seconds_now();; check_waiting(j, since, word)) {
        read_stream(j->folder, "err", j->result.err, sizeof j->result.err);
        if (count_of(j->result.err, word) >= nth)
            return;
        (void)read_log(j, (unsigned long)-1);
    }
}

/* A rank's progress, from its flight record. */
typedef enum {
    IS_STARTING,
    IS_EARLY, /* all ranks have joined, and cannot continue without this rank */
    IS_LATE,
} earliness;

/* Determines from the records in "fl" the progress of rank `last`, and the pids of all ranks. */
static inline earliness look_at_last(job *j, uint32_t last)
{
    char      line[256], state[16];
    earliness where = IS_STARTING;
    uint32_t  rank, joined = 0;
    int       pid;
    (void)snprintf(line, sizeof line, "%s inspect --flight %s/fl 2>/dev/null", LK_TEST_COMMAND,
                   j->folder);
    FILE *said = popen(line, "r");
    while (fgets(line, sizeof line, said) != NULL) {
        if (sscanf(line, " %u %15s %d", &rank, state, &pid) != 3 || rank > last ||
            (strcmp(state, "running") != 0 && strcmp(state, "stopped") != 0))
            continue;
        j->worker[rank] = (pid_t)pid;
        joined += strstr(line, "  0  ") != NULL;
        if (rank != last)
            continue;
        bool waited_for = strstr(line, "  0  opening data") != NULL ||
                          strstr(line, "  0  making room for the model") != NULL;
        bool has_joined = strstr(line, "  -  ") == NULL;
        where           = waited_for ? IS_EARLY : has_joined ? IS_LATE : IS_STARTING;
    }
    (void)pclose(said);
    return where == IS_EARLY && joined <= last ? IS_STARTING : where;
}

/* Lets the stopped rank `last` run for a moment at a time, until all ranks have joined and no other
 * rank can begin without this one.  Returns false if the rank has run too far. */
static inline bool stop_early(job *j, uint32_t last)
{
    earliness where = IS_STARTING;
    for (double since = seconds_now(); where != IS_EARLY; check_waiting(j, since, "a rank")) {
        pid_t pid = j->worker[last];
        if (pid > 0)
            (void)kill(pid, SIGSTOP);
        while (pid > 0 && process_state(pid) != 'T' && !is_gone(pid))
            nap();
        where = look_at_last(j, last);
        if (where == IS_LATE)
            return false;
        if (where == IS_STARTING && pid > 0)
            (void)kill(pid, SIGCONT);
        where = pid > 0 ? where : IS_STARTING;
    }
    return true;
}

/* Starts a job with SLOW whose last rank is stopped before its first step, and reads all pids.  If
 * the log is the pipe, rank 0 cannot write its first line before the log is read. */
static inline void job_start_early(job *j, const char *folder, uint32_t workers,
                                   const char *arguments)
{
    static command_result r;
    for (uint32_t tries = 0; tries < 50; tries++) {
        (void)run_shell(&r, folder, "rm -rf ck fl");
        job_start_held(j, folder, workers, arguments);
        if (stop_early(j, workers - 1))
            return;
        job_kill_all(j);
        j->hit_at = seconds_now();
        (void)job_wait(j);
    }
    fail_msg("the last rank could not be stopped before its first step");
}

/* Kills a worker, and waits until its launcher has reported the death to the host's other
 * workers. */
static inline void kill_and_await_told(job *j, pid_t pid)
{
    job_hit(j, pid, SIGKILL);
    while (process_state(pid) != 0) {
        if (seconds_now() - j->hit_at > LIMIT_SECONDS)
            job_fail(j, "the worker %d has not been reaped", (int)pid);
        nap();
    }
}

/* Waits until a replacement can enter, while the log blocks the run.  `host`: "" or, with several
 * hosts, "host host1, ". */
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

/* Returns the launcher of a rank's host, which is the parent of its process. */
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

/* Returns the newest living child of a process, except a coordinator. */
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

/* Waits for the nth `word`.  Reads a line of the log now and then, long before rank 0, which is
 * blocked by the log, would count as lost.  So the run advances, but only slowly. */
static inline void drip_until_nth(job *j, const char *word, uint32_t nth)
{
    double since = seconds_now(), read_at = 0;
    for (;; check_waiting(j, since, word)) {
        read_stream(j->folder, "err", j->result.err, sizeof j->result.err);
        if (count_of(j->result.err, word) >= nth)
            return;
        if (seconds_now() - read_at < j->timeout_s / 4)
            continue;
        (void)read_log(j, (unsigned long)-1);
        read_at = seconds_now();
    }
}

/* Waits for a line that is printed before the next step, once rank 0 has written its own line.
 * Reads one line of the log at a time. */
static inline void drip_before_next(job *j, const char *word, uint32_t nth)
{
    for (double since = seconds_now();; check_waiting(j, since, word)) {
        char byte = 0;
        read_stream(j->folder, "err", j->result.err, sizeof j->result.err);
        if (count_of(j->result.err, word) >= nth)
            return;
        while (byte != '\n' && read(j->log, &byte, 1) == 1)
            continue;
    }
}

/* Waits for the first step after all replacements have entered, when all have the model. */
static inline void await_step_of_all(job *j)
{
    unsigned long step = 0;
    for (const char *at = j->result.err; (at = strstr(at, " after step ")) != NULL; at++)
        step = strtoul(at + strlen(" after step "), NULL, 10);
    job_await_step(j, step + 1);
}

static inline void await_gone(job *j, pid_t launcher)
{
    while (!is_gone(launcher)) {
        if (seconds_now() - j->hit_at > LIMIT_SECONDS)
            job_fail(j, "the launcher %d is still there", (int)launcher);
        nap();
    }
}

/* Kills a launcher.  No worker waits for a launcher, so the log is not read until the launcher is
 * dead: otherwise the run could end first. */
static inline void hit_launcher(job *j, uint32_t rank)
{
    pid_t launcher = launcher_of(j, rank);
    job_hit(j, launcher, SIGKILL);
    await_gone(j, launcher);
}

#endif
