/* workers.c -- starts copies of this program. */
#include "cli/workers.h"

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/settings.h"
#include "cli/values.h"
#include "cli/words.h"
#include "lockstep/checkpoint.h"

/* Returns the path of this program's file.  After an upgrade the file's name may refer to a
 * different file.  The path is then /proc/self/exe. */
static char *own_file(char name[PATH_MAX])
{
    static char always[] = "/proc/self/exe";
    struct stat mine, named;
    ssize_t     length            = readlink(always, name, PATH_MAX - 1);
    name[length > 0 ? length : 0] = '\0';
    bool same                     = stat(always, &mine) == 0 && stat(name, &named) == 0 &&
                mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
    return same ? name : always;
}

void lki_name_worker(uint32_t rank)
{
    char name[16]; /* the kernel's limit: 15 characters and NUL */
    (void)snprintf(name, sizeof name, "lockstep:%u", rank);
    (void)prctl(PR_SET_NAME, name);
}

bool lki_parse_restart(const char *text, uint32_t *most, lki_message *error)
{
    uint64_t value = 3;

    if (*text != '\0' && (!lki_parse_u64(text, strlen(text), &value) || value > 1000000))
        return lki_refuse(error, "must be an integer up to 1000000, or nothing");
    *most = (uint32_t)value;
    return true;
}

int lki_find_launcher(const lki_command *command, const lki_nodes *nodes, bool *out)
{
    *out = false;
    if (nodes != NULL && nodes->count > 0 && getenv("LOCKSTEP_CONTROL_FD") == NULL)
        return -1;
    if (lk_launched(out) == LK_OK)
        return -1;
    lki_print_error(command->name);
    return LKI_EXIT_USAGE;
}

int lki_refuse_half_job(const lki_command *command, const lki_nodes *nodes)
{
    bool unused;
    return lki_find_launcher(command, nodes, &unused);
}

int lki_exit_unjoined(lk_status status)
{
    return status == LK_EINVAL ? LKI_EXIT_USAGE : LKI_EXIT_FAILURE;
}

/* Returns the set of signals that a launcher treats as requests to stop. */
static sigset_t requests(void)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGHUP);
    return set;
}

/* Joins.  Drops a pending request to stop if the other ranks already know of the request, since a
 * launcher also signals workers that have not joined. */
lk_status lki_join_workers(lk_comm **out, const lk_join_options *options)
{
    const struct timespec none   = { 0, 0 };
    sigset_t              set    = requests();
    lk_status             status = lk_join_with(out, options);

    while (status == LK_OK && lk_stop_requested(*out) && sigtimedwait(&set, NULL, &none) > 0)
        continue;
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    return status;
}

/* Launches the job; returns false if no job was started.  Prints the reason, unless `patient` is
 * set and the job has begun without this host (LK_EPEER). */
static bool launch(const char *command, char **argv, lk_launch_options how, bool patient,
                   lk_launch_result *result)
{
    /* argv does not include the program's name. */
    char   self[PATH_MAX];
    size_t count = 0;
    while (argv[count] != NULL)
        count++;
    char **worker = calloc(count + 2, sizeof *worker);
    *result       = (lk_launch_result){ .exit_code = LKI_EXIT_FAILURE };
    if (worker == NULL) {
        fprintf(stderr, "lockstep %s: out of memory\n", command);
        return false;
    }
    worker[0] = own_file(self);
    memcpy(worker + 1, argv, count * sizeof *argv);

    const sigset_t set = requests(); /* workers block these signals, too: see lki_join_workers() */
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    how.argv     = worker;
    bool started = lk_launch(&how, result) == LK_OK;
    free(worker);
    if (!started && !(patient && lk_error_last()->status == LK_EPEER))
        lki_print_error(command);
    return started;
}

/* Returns the step of the newest checkpoint; -1 if there is none. */
static int64_t newest_step(const char *dir)
{
    lk_checkpoint *newest;
    if (lk_checkpoint_open_manifest(&newest, dir, NULL, 0) != LK_OK)
        return -1;
    int64_t step = (int64_t)lk_checkpoint_describe(newest)->step;
    lk_checkpoint_free(newest);
    return step;
}

/* Describes the directory of a step.  Returns false if there is none. */
static bool find_step(const char *dir, int64_t step, struct stat *info)
{
    char path[4096];
    const int bytes = snprintf(path, sizeof path, "%s/step-%08lld", dir, (long long)step);
    return bytes < (int)sizeof path && stat(path, info) == 0;
}

/* The checkpoints of a run, and what it does with them at first. */
typedef struct {
    const char *dir;    /* NULL: another host has them, or there are none */
    int64_t     from;   /* the step that the run goes back to; -1: to none */
    int64_t     newest; /* the newest step when the command began */
    struct stat left;   /* its directory */
    bool        leaves; /* the run has to set it aside */
} saves;

static saves saves_of(const char *dir, int64_t from)
{
    saves s  = { .dir = dir, .from = from };
    s.newest = dir != NULL && from >= 0 ? newest_step(dir) : -1;
    s.leaves = s.newest > from && find_step(dir, s.newest, &s.left);
    return s;
}

/* Returns true if a run in the directory goes back to *step, and has not recorded its command. */
static bool is_under_way(const saves *s, int64_t *step)
{
    char       aside[32];
    uint64_t   last = 0;
    const bool yes  = s->dir != NULL && lk_checkpoint_goes_back(s->dir, &last, aside);
    *step           = (int64_t)last;
    return yes;
}

/* Returns true if the run has to go back again: it has not begun, or it has not set all checkpoints
 * aside, and the newest of them, which moves last, is in its place.  The run may make the same step
 * again, in another directory. */
static bool goes_back(const saves *s)
{
    struct stat now;
    int64_t     step;
    if (s->from >= 0 && is_under_way(s, &step))
        return true;
    return s->leaves && find_step(s->dir, s->newest, &now) && now.st_dev == s->left.st_dev &&
           now.st_ino == s->left.st_ino;
}

/* Writes how a run continues whose workers were lost; nothing if it has no checkpoint. */
static void say_how(char *text, size_t bytes, const saves *s)
{
    const int64_t newest = s->dir != NULL ? newest_step(s->dir) : -1;
    int64_t       step;
    text[0] = '\0';
    if (is_under_way(s, &step) || goes_back(s))
        (void)snprintf(text, bytes, "; the same command goes back to step %lld again",
                       (long long)(s->from >= 0 ? s->from : step));
    else if (newest >= 0)
        (void)snprintf(text, bytes, "; `checkpoint.resume` %s continues after step %lld", s->dir,
                       (long long)newest);
}

/* Prints the failure of a job.  If workers were lost or ended by a signal, also says how the run
 * continues, unless the failure does. */
static int say_end(const char *command, const lk_launch_result *result, const saves *s)
{
    /* Workers that reject the user's options have printed the reason. */
    bool said  = result->exit_code == LKI_EXIT_STOPPED || result->exit_code == LKI_EXIT_USAGE;
    bool adds  = (result->lost || result->exit_code > 128) &&
                 strstr(result->cause, "`checkpoint.resume`") == NULL;
    char text[sizeof result->cause + 4096], how[3840] = "";
    if (!result->failed || said)
        return result->exit_code;
    if (adds)
        say_how(how, sizeof how, s);
    const char *why = lki_why_killed(result->exit_code, result->cause);
    (void)snprintf(text, sizeof text, "%s%s%s%s", result->cause, why != NULL ? "; " : "",
                   why != NULL ? why : "", how);
    fputs(lki_line_start(command), stderr); /* a worker may have ended within its line */
    lki_print_message(command, text);
    return result->exit_code;
}

int lki_start_workers(const char *command, char **argv, lk_launch_options how,
                      const char *checkpoint, int64_t from)
{
    const saves      s = saves_of(checkpoint, from);
    lk_launch_result result;
    return launch(command, argv, how, false, &result) ? say_end(command, &result, &s)
                                                      : result.exit_code;
}

/* ---- Restarting -------------------------------------------------------------------------- */

static const char again[] = "LOCKSTEP_STARTED_AGAIN";

lki_again lki_started_again(void)
{
    const char *how = getenv(again);
    return how == NULL ? LKI_AGAIN_NO : strcmp(how, "step") == 0 ? LKI_AGAIN_FROM_STEP
                                                                 : LKI_AGAIN_NEWEST;
}

/* Prints that all workers are started again.  With `elsewhere`, the checkpoints may be on node 0's
 * disk only.  The text then omits the checkpoint's step and the number of restarts, which only node
 * 0 knows. */
static void say_again(const char *command, const char *cause, int64_t from, bool elsewhere,
                      uint32_t times, uint32_t most)
{
    char where[64] = "what node 0 has", count[64] = "", why[LKI_WORDS_BYTES];
    if (!elsewhere) {
        (void)snprintf(where, sizeof where,
                       from >= 0 ? "the checkpoint of step %lld" : "the beginning",
                       (long long)from);
        (void)snprintf(count, sizeof count, " (%u of %u without a newer one)", times, most);
    }
    lki_words(why, sizeof why, cause);
    fprintf(stderr, "%slockstep %s: %s; all workers are started again, from %s%s\n",
            lki_line_start(command), command, why, where, count);
}

enum { JOIN_MS = 300000 }; /* default of --join-timeout */

static int64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Launches the job.  A restarted host may be too early: a job that still runs without this host
 * rejects it.  The host then tries again until the next job begins or the time limit has passed. */
static bool launch_in_turn(const char *command, char **argv, lk_launch_options how,
                           lk_launch_result *result)
{
    const struct timespec pause = { 0, 250000000 };
    const sigset_t        set   = requests();
    int64_t               last  = now_ms() + (how.join_ms != 0 ? how.join_ms : JOIN_MS);

    while (!launch(command, argv, how, how.nodes > 1 && now_ms() < last, result)) {
        int number = -1;
        if (how.nodes < 2 || lk_error_last()->status != LK_EPEER || now_ms() >= last ||
            (number = sigtimedwait(&set, NULL, &pause)) > 0) {
            result->exit_code = number > 0 ? 128 + number : result->exit_code;
            return false;
        }
    }
    return true;
}

int lki_keep_workers(const char *command, char **argv, lk_launch_options how,
                     const char *checkpoint, int64_t from, uint32_t most)
{
    const saves      s = saves_of(checkpoint, from);
    lk_launch_result result;
    int64_t          last  = -1;
    uint32_t         times = 0;

    for (;;) {
        if (!launch_in_turn(command, argv, how, &result))
            return result.exit_code;
        const bool    back  = goes_back(&s);
        const int64_t start = back ? from : checkpoint != NULL ? newest_step(checkpoint) : -1;
        times               = start > last || checkpoint == NULL ? 1 : times + 1;
        last                = start;
        if (!result.lost || times > most)
            return say_end(command, &result, &s);
        say_again(command, result.cause, start, checkpoint == NULL, times, most);
        how.chaos.seed++; /* a restart must not repeat the same faults */
        (void)setenv(again, back ? "step" : "newest", 1);
    }
}
