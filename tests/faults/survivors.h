/* faults/survivors.h -- for tests of runs that go on without workers that they have lost. */
#ifndef LKT_SURVIVORS_H
#define LKT_SURVIVORS_H

#include "faults/job.h"

#define GOES_ON "--on-failure continue "

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

#endif
