/* verdict.c -- compares a replay with the log and the checkpoint of its run.  See verdict.h. */
#include "cli/verdict.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/text.h"
#include "cli/words.h"
#include "lockstep/checkpoint.h"

enum { PRINTED_MOST = 6, TEXT_MOST = 120 };

/* ---- What the run has left ----------------------------------------------------------------- */

/* Returns the number of files in a directory that may be the log. */
static unsigned count_logs(const char *run)
{
    const struct dirent *entry;
    unsigned             count     = 0;
    DIR                 *directory = opendir(run);
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        const char *ending = strrchr(entry->d_name, '.');
        count += ending != NULL && strcmp(ending, ".jsonl") == 0;
    }
    if (directory != NULL)
        (void)closedir(directory);
    return count;
}

/* Opens the log, if it is a file: a pipe has no lines that were written before.  A run that has not
 * begun has none.  Not inlined, because the path is large. */
__attribute__((noinline)) static void open_log(lki_verdict *v, const char *run, const char *log,
                                               bool is_named, uint64_t step)
{
    struct stat info;
    char        path[4096];
    if (!is_named && run != NULL && lk_run_log(path, sizeof path, run) == LK_OK)
        log = path;
    const unsigned candidates = log == NULL && run != NULL ? count_logs(run) : 0;
    if (candidates > 1)
        (void)snprintf(v->no_log, sizeof v->no_log, "'%.300s' has %u files *.jsonl, and its "
                       "command.json names none of them; --log says which", run, candidates);
    if (log == NULL)
        return;
    if (stat(log, &info) != 0)
        (void)snprintf(v->no_log, sizeof v->no_log, "cannot find '%.300s': %s; --log says where "
                       "it is", log, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        (void)snprintf(v->no_log, sizeof v->no_log, "'%.300s' is no file", log);
    else if (lk_log_check_open(&v->log, log, step) != LK_OK)
        (void)snprintf(v->damage, sizeof v->damage, "%s", lk_error_last()->message);
}

/* Not inlined, because the path is large. */
__attribute__((noinline)) static void find_weights(lki_verdict *v, const char *run, uint64_t step)
{
    lk_checkpoint *checkpoint;
    char           path[4096];
    (void)snprintf(path, sizeof path, "%s/step-%08" PRIu64, run, step);
    if (access(path, F_OK) != 0)
        return;
    if (lk_checkpoint_open_step(&checkpoint, run, step) != LK_OK) {
        (void)snprintf(v->unread, sizeof v->unread, "%s", lk_error_last()->message);
        return;
    }
    (void)snprintf(v->weights, sizeof v->weights, "%s",
                   lk_checkpoint_describe(checkpoint)->weights);
    lk_checkpoint_free(checkpoint);
}

void lki_verdict_open(lki_verdict *v, const char *run, const char *log, bool is_named,
                      lk_replay *replay)
{
    *v = (lki_verdict){ .replayed = -1, .alone = run == NULL && log == NULL };
    open_log(v, run, log, is_named, replay->step);
    if (run != NULL)
        find_weights(v, run, replay->step);
    replay->whole = v->weights[0] != '\0' || (v->log != NULL && lk_log_check_reaches(v->log));
    if (v->log == NULL)
        return;
    replay->data = lk_log_check_data(v->log);
    v->replayed = memfd_create("lockstep-replay", MFD_CLOEXEC);
    (void)snprintf(v->path, sizeof v->path, "/proc/self/fd/%d", v->replayed);
    replay->log = v->path;
}

bool lki_verdict_evaluates(const lki_verdict *v, uint64_t step)
{
    return v->log != NULL && lk_log_check_evaluates(v->log, step);
}

void lki_verdict_close(lki_verdict *v)
{
    lk_log_check_free(v->log);
    v->log = NULL;
    if (v->replayed >= 0)
        (void)close(v->replayed);
    v->replayed = -1;
}

/* ---- The log ------------------------------------------------------------------------------- */

/* Prints a text of a log, up to a length. */
static void print_text(const char *text)
{
    char part[TEXT_MOST + 8];
    (void)snprintf(part, sizeof part, "%.*s%s", TEXT_MOST, text,
                   strlen(text) > TEXT_MOST ? "..." : "");
    lki_print_safely(part);
}

static void print_value(const lk_log_difference *d)
{
    if (d->virtual_worker != LK_NO_WORKER)
        printf("not equal: virtual worker %" PRIu32 " of step %" PRIu64, d->virtual_worker,
               d->step);
    else
        printf("not equal: step %" PRIu64, d->step);
    printf(": the log has the %s ", d->key);
    print_text(d->logged);
    printf(", the replay ");
    print_text(d->replayed);
    printf(" (line %" PRIu64 " of the log)\n", d->line);
}

/* Prints what the log lacks. */
static void print_missing(const lk_log_difference *d)
{
    if (d->line > 0)
        printf("not equal: line %" PRIu64 " of the log, of step %" PRIu64 ", has no %s\n", d->line,
               d->step, d->key);
    else if (strcmp(d->key, "config") == 0)
        printf("not equal: the log has no first line, with the configuration, before step %" PRIu64
               "\n", d->step);
    else
        printf("not equal: the log has no line with the loss of step %" PRIu64 "\n", d->step);
}

/* Says which option of the run was another one, and has changed since. */
static void print_changed(const lk_log_difference *d)
{
    char words[LKI_WORDS_BYTES];
    printf("not compared: steps after line %" PRIu64 " of the log: ", d->line);
    if (strcmp(d->key, "data") == 0) {
        printf("the run was continued with other data, with which the replay was made; give --data "
               "as it was, with the hash ");
        print_text(d->logged);
        printf("\n");
        return;
    }
    lki_words(words, sizeof words, lk_error_last()->message);
    lki_print_safely(words);
    printf(", with which the run was continued and the replay was made; give the first one\n");
}

/* Finds out what a difference of configurations means.  They differ only if a run of one could not
 * continue one of the other, or if replayed steps have other bits. */
static lk_log_finding compare_config(const lk_log_difference *d)
{
    if (lk_train_compare(d->logged, d->replayed, false) != LK_OK)
        return LK_LOG_DIFFERS;
    if (!d->governs || lk_train_compare(d->logged, d->replayed, true) == LK_OK)
        return LK_LOG_SAME;
    return d->resumed ? LK_LOG_OTHER_BITS : LK_LOG_DIFFERS;
}

/* Prints a difference, of many only the first ones. */
static lk_log_finding print_difference(void *context, const lk_log_difference *d)
{
    lki_verdict   *v = context;
    char           words[LKI_WORDS_BYTES];
    const bool     has_value = d->logged != NULL;
    const bool     is_config = has_value && strcmp(d->key, "config") == 0;
    lk_log_finding finding   = is_config ? compare_config(d) : LK_LOG_DIFFERS;
    if (has_value && d->resumed && strcmp(d->key, "data") == 0)
        finding = LK_LOG_OTHER_BITS;
    if (finding == LK_LOG_OTHER_BITS && !v->changed)
        print_changed(d);
    v->changed = v->changed || finding == LK_LOG_OTHER_BITS;
    if (finding != LK_LOG_DIFFERS || ++v->printed > PRINTED_MOST)
        return finding;
    if (!has_value) {
        print_missing(d);
    } else if (!is_config) {
        print_value(d);
    } else {
        lki_words(words, sizeof words, lk_error_last()->message);
        printf("not equal: the configuration in line %" PRIu64 " of the log: ", d->line);
        lki_print_safely(words);
        printf(", which the replay has\n");
    }
    return finding;
}

static void print_equal(const lk_log_compared *c)
{
    if (c->headers > 0)
        printf("log: equal configuration and data\n");
    if (c->losses > 0 && c->last - c->first + 1 == c->losses)
        printf("log: equal losses of steps %" PRIu64 "-%" PRIu64 "\n", c->first, c->last);
    else if (c->losses > 0)
        printf("log: equal losses of %" PRIu64 " of the steps %" PRIu64 "-%" PRIu64 "; it has no "
               "others\n", c->losses, c->first, c->last);
    if (c->evaluations > 0)
        printf("log: %" PRIu64 " equal evaluation%s\n", c->evaluations,
               c->evaluations == 1 ? "" : "s");
    if (c->virtual_losses)
        printf("log: equal loss of this virtual worker\n");
    if (c->hashes)
        printf("log: equal hashes at its end\n");
    if (c->left_out > 0)
        printf("log: not compared: %" PRIu64 " value%s of evaluations or of the noise scale, whose "
               "--eval-weights or --noise-scale the run has changed since\n", c->left_out,
               c->left_out == 1 ? "" : "s");
}

/* Compares the log.  Returns false if it differs or cannot be compared; *any becomes true if the
 * step itself was compared. */
static bool print_log(lki_verdict *v, const lk_replay *r, bool *any)
{
    lk_log_compared compared;
    if (v->no_log[0] != '\0')
        printf("log: none: %s\n", v->no_log);
    if (v->damage[0] != '\0')
        printf("not equal: the log cannot be read: %s\n", v->damage);
    if (v->log == NULL)
        return v->damage[0] == '\0';
    if (lk_log_check_compare(v->log, v->path, r->from, print_difference, v, &compared) != LK_OK) {
        lki_print_error("verify");
        return false;
    }
    *any = compared.last == r->step || compared.hashes;
    if (compared.differences > PRINTED_MOST)
        printf("not equal: %" PRIu64 " more values of the log\n",
               compared.differences - PRINTED_MOST);
    if (compared.differences == 0)
        print_equal(&compared);
    return compared.differences == 0;
}

/* ---- The checkpoint ------------------------------------------------------------------------ */

/* Compares the weights after the step. */
static bool print_weights(const lki_verdict *v, const lk_replay *r, bool *any)
{
    *any = *any || v->unread[0] != '\0';
    if (v->unread[0] != '\0')
        printf("not equal: the checkpoint of step %" PRIu64 " cannot be read: %s\n", r->step,
               v->unread);
    if (v->weights[0] == '\0' || r->weights[0] == '\0' || v->changed)
        return v->unread[0] == '\0';
    *any = *any || v->log == NULL;
    if (strcmp(v->weights, r->weights) == 0) {
        printf("checkpoint of step %" PRIu64 ": equal weights\n", r->step);
        return true;
    }
    printf("not equal: weights after step %" PRIu64 ": the checkpoint has the hash %s, the replay "
           "%s\n", r->step, v->weights, r->weights);
    return false;
}

bool lki_verdict_print(lki_verdict *v, const lk_replay *r)
{
    bool any = false, good = print_log(v, r, &any);
    good = print_weights(v, r, &any) && good;
    if (!good)
        printf("not equal\n");
    else if (v->changed)
        printf("not compared: the run has changed since in what decides its bits\n");
    else if (any)
        printf("equal\n");
    else if (v->log != NULL)
        printf("not compared: the log of the run has no loss of step %" PRIu64 "\n", r->step);
    else
        printf("not compared: the run has no log with a loss of step %" PRIu64 ", and no "
               "checkpoint of it\n", r->step);
    return good && (any || v->alone) && !v->changed;
}
