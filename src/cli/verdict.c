/* verdict.c -- compares a replay with the log and the checkpoint of its run.  See verdict.h. */
#include "cli/verdict.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/values.h"
#include "lockstep/checkpoint.h"

/* Returns true if two losses have the same bits. */
static bool same(double a, double b)
{
    uint64_t first, second;
    memcpy(&first, &a, sizeof a);
    memcpy(&second, &b, sizeof b);
    return first == second;
}

/* Opens the log of a run, or else `log`, if it is a file: a pipe has no lines that were written
 * before.  A run that has not begun has none.  Not inlined, because the path is large. */
__attribute__((noinline)) static lk_log_losses *open_log(const char *run, const char *log)
{
    lk_log_losses *losses;
    struct stat    info;
    char           path[4096];
    if (run != NULL && lk_run_log(path, sizeof path, run) == LK_OK)
        log = path;
    if (log == NULL || stat(log, &info) != 0 || !S_ISREG(info.st_mode))
        return NULL;
    return lk_log_losses_open(&losses, log) == LK_OK ? losses : NULL;
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
        (void)snprintf(v->damage, sizeof v->damage, "%s", lk_error_last()->message);
        return;
    }
    (void)snprintf(v->weights, sizeof v->weights, "%s",
                   lk_checkpoint_describe(checkpoint)->weights);
    lk_checkpoint_free(checkpoint);
}

void lki_verdict_open(lki_verdict *v, const char *run, const char *log, lk_replay *replay)
{
    double unused;
    *v = (lki_verdict){ .losses = open_log(run, log) };
    if (run != NULL)
        find_weights(v, run, replay->step);
    replay->whole = v->weights[0] != '\0' ||
                    (v->losses != NULL &&
                     lk_log_loss(v->losses, replay->step, LK_NO_WORKER, &unused));
}

void lki_verdict_close(lki_verdict *v)
{
    lk_log_losses_free(v->losses);
    v->losses = NULL;
}

void lki_verdict_step(lki_verdict *v, uint64_t step, double loss)
{
    double logged;
    if (v->step != 0 || v->losses == NULL ||
        !lk_log_loss(v->losses, step, LK_NO_WORKER, &logged))
        return;
    if (v->first == 0)
        v->first = step;
    v->last = step;
    v->count++;
    if (same(logged, loss))
        return;
    v->step     = step;
    v->logged   = logged;
    v->replayed = loss;
}

static void print_losses(const char *what, double logged, double replayed)
{
    char a[LK_NUMBER_BYTES], b[LK_NUMBER_BYTES];
    lk_number_text(a, logged);
    lk_number_text(b, replayed);
    printf("%s: the log has the loss %s, the replay %s\n", what, a, b);
}

/* Compares the losses.  Returns false if one differs; *any becomes true if that of the step itself
 * was compared. */
static bool print_log(const lki_verdict *v, const lk_replay *r, bool *any)
{
    char   what[80];
    double logged;
    bool   worker = v->losses != NULL && isfinite(r->loss) &&
                  lk_log_loss(v->losses, r->step, r->virtual_worker, &logged);
    bool   good = v->step == 0 && (!worker || same(logged, r->loss));
    *any        = *any || worker || v->last == r->step;
    (void)snprintf(what, sizeof what, "not equal: step %" PRIu64, v->step);
    if (v->step != 0)
        print_losses(what, v->logged, v->replayed);
    else if (v->last - v->first + 1 == v->count)
        printf("log: equal losses of steps %" PRIu64 "-%" PRIu64 "\n", v->first, v->last);
    else if (v->count > 0)
        printf("log: equal losses of %" PRIu64 " of the steps %" PRIu64 "-%" PRIu64 "; it has no "
               "others\n", v->count, v->first, v->last);
    (void)snprintf(what, sizeof what, "not equal: virtual worker %u of step %" PRIu64,
                   r->virtual_worker, r->step);
    if (worker && !same(logged, r->loss))
        print_losses(what, logged, r->loss);
    else if (worker)
        printf("log: equal loss of this virtual worker\n");
    return good;
}

/* Compares the weights after the step. */
static bool print_weights(const lki_verdict *v, const lk_replay *r, bool *any)
{
    *any = *any || v->damage[0] != '\0';
    if (v->damage[0] != '\0')
        printf("not equal: the checkpoint of step %" PRIu64 " cannot be read: %s\n", r->step,
               v->damage);
    if (v->weights[0] == '\0' || r->weights[0] == '\0')
        return v->damage[0] == '\0';
    *any = true;
    if (strcmp(v->weights, r->weights) == 0) {
        printf("checkpoint of step %" PRIu64 ": equal weights\n", r->step);
        return true;
    }
    printf("not equal: weights after step %" PRIu64 ": the checkpoint has the hash %s, the replay "
           "%s\n", r->step, v->weights, r->weights);
    return false;
}

bool lki_verdict_print(const lki_verdict *v, const lk_replay *r)
{
    bool any = false, good = print_log(v, r, &any);
    good = print_weights(v, r, &any) && good;
    if (!good)
        printf("not equal\n");
    else if (any)
        printf("equal\n");
    else
        printf("not compared: the run has no log with a loss of step %" PRIu64 ", and no "
               "checkpoint of it\n", r->step);
    return good;
}
