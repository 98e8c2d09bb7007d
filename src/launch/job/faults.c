/* faults.c -- the plan of fault injection, and its execution; see faults.h.
 *
 * Fault k is a function of the seed, the host and k.  Its properties are the delay after fault k -
 * 1 (exponentially distributed), the kind, an order of all workers, and the duration (log uniform).
 * Its victim is the first of that order that has not ended.  So the speed of a run decides at which
 * point of the work a fault hits its victim, but not which worker that is: a fault waits while a
 * worker is between two groups.
 */
#include "launch/job/faults.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "launch/job/executor.h"

static const double SHORTEST_SECONDS = 1e-3, LONGEST_SECONDS = 1;
static const double PULSE_SECONDS    = 2e-3; /* seconds for which a slowed worker runs, and for
                                              * which it then pauses */
static const double WAIT_SECONDS     = 2e-3; /* interval in seconds of checks whether a worker is
                                              * still between two groups */
static const double LOOK_SECONDS     = 0.05; /* interval in seconds of checks whether faults may
                                              * begin */

enum { TEXT_BYTES = 512 };
enum { AT_DELAY, AT_KIND, AT_LENGTH, AT_WORKER }; /* indices of a fault's random numbers; worker i
                                                   * has the index AT_WORKER + i */

static const lk_chaos_kind kinds[] = { LK_CHAOS_KILL, LK_CHAOS_STOP, LK_CHAOS_SLOW };
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* The current fault of a worker. */
typedef struct {
    bool   killed, stopped;
    double until; /* time in seconds at which the fault ends; 0: no fault */
    double turns; /* time in seconds at which a slow worker is next stopped or continued; else 0 */
} ailment;

struct lki_faults {
    uint64_t count; /* number of faults planned so far */
    double   at;    /* time of the next fault in seconds; 0: the plan has not begun */
    ailment *of;    /* the current fault of each worker */
    uint32_t counts[KINDS];
};

lk_status lki_faults_open(lki_job *job)
{
    if (!(job->options->chaos.rate > 0))
        return LK_OK;
    LK_TRY(LKI_NEW(&job->faults, 1, "the plan of faults"));
    return LKI_NEW(&job->faults->of, job->count, "chaos");
}

void lki_faults_close(lki_job *job)
{
    if (job->faults != NULL)
        lki_free(job->faults->of);
    lki_free(job->faults);
    job->faults = NULL;
}

size_t lki_faults_bytes(const lki_job *job)
{
    return job->faults == NULL ? 0 : sizeof *job->faults + job->count * sizeof *job->faults->of;
}

void lki_faults_save(const lki_job *job, void *to)
{
    if (job->faults == NULL)
        return;
    memcpy(to, job->faults, sizeof *job->faults);
    memcpy((lki_faults *)to + 1, job->faults->of, job->count * sizeof *job->faults->of);
}

void lki_faults_restore(lki_job *job, const void *from)
{
    if (job->faults == NULL)
        return;
    memcpy(job->faults, from, sizeof *job->faults);
    memcpy(job->faults->of, (const lki_faults *)from + 1, job->count * sizeof *job->faults->of);
}

void lki_faults_forget(const lki_job *job, uint32_t i)
{
    if (job->faults != NULL)
        job->faults->of[i] = (ailment){ .killed = false };
}

/* ---- The plan ---------------------------------------------------------------------------- */

/* Returns a random number in [0, 1) for one property of fault `k`. */
static double draw(const lki_job *job, uint64_t k, uint64_t thing)
{
    uint64_t node       = job->rendezvous != NULL ? lki_rendezvous_self(job->rendezvous) : 0;
    const uint64_t of[] = { job->options->chaos.seed, node, k, thing };
    return (double)(lki_xxh3(of, sizeof of) >> 11) * 0x1p-53;
}

static void plan_next(lki_job *job, double after)
{
    lki_faults *self = job->faults;
    self->at        = after - log1p(-draw(job, self->count, AT_DELAY)) / job->options->chaos.rate;
}

static size_t kind_of(const lki_job *job, uint64_t k)
{
    size_t   wanted[KINDS], count = 0;
    uint32_t mask = job->options->chaos.kinds;
    for (size_t i = 0; i < KINDS; i++)
        if (mask == 0 || (mask & (uint32_t)kinds[i]) != 0)
            wanted[count++] = i;
    return count == 0 ? 0 : wanted[(size_t)(draw(job, k, AT_KIND) * (double)count)];
}

static double length_of(const lki_job *job, uint64_t k)
{
    return SHORTEST_SECONDS * pow(LONGEST_SECONDS / SHORTEST_SECONDS, draw(job, k, AT_LENGTH));
}

typedef enum { ELSEWHERE, BETWEEN_GROUPS, IN_GROUP } presence;

/* Returns BETWEEN_GROUPS for a worker that has left or aborted its group, but still runs: it either
 * rebuilds the group or ends soon. */
static presence presence_of(const lki_job *job, uint32_t i)
{
    const lki_worker *worker = &job->workers[i];
    lki_rank_view     view;

    if (job->faults->of[i].killed || worker->pid <= 0 || worker->order != 0)
        return ELSEWHERE;
    lki_control_view(job->control, lki_rank_of_worker(job, i), &view);
    switch (view.state) {
    case LKI_RANK_RUNNING:
        return IN_GROUP;
    case LKI_RANK_LEFT:
    case LKI_RANK_FAILED:
        return BETWEEN_GROUPS;
    case LKI_RANK_ABSENT:
    case LKI_RANK_DEAD: /* a replacement that has not yet entered */
        break;
    }
    return ELSEWHERE;
}

/* Sets *left to the number of workers in the group, and *victim to the worker that fault `k` hits,
 * or to job->count if there is none.  Returns false if a worker is between two groups. */
static bool find_victim(const lki_job *job, uint64_t k, uint32_t *left, uint32_t *victim)
{
    double least = 1;

    *left   = 0;
    *victim = job->count;
    for (uint32_t i = 0; i < job->count; i++) {
        presence its = presence_of(job, i);
        double   at  = draw(job, k, AT_WORKER + (uint64_t)i);
        if (its == BETWEEN_GROUPS)
            return false;
        *left += its == IN_GROUP;
        if (its == IN_GROUP && at < least) {
            least   = at;
            *victim = i;
        }
    }
    return true;
}

/* ---- Faults ------------------------------------------------------------------------------ */

static void tell(const lki_job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void tell(const lki_job *job, const char *format, ...)
{
    const lk_chaos *options = &job->options->chaos;
    char            text[TEXT_BYTES];
    va_list         args;

    if (options->note == NULL)
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    job->executor->note(job, true, text);
}

/* Sends a signal to a running worker.  The worker's pid cannot be reused before this process reaps
 * the worker. */
static void hit(const lki_job *job, uint32_t i, int number)
{
    if (job->workers[i].pid > 0 && job->workers[i].order == 0)
        (void)kill(job->workers[i].pid, number);
}

static void begin(lki_job *job, uint32_t i, lk_chaos_kind kind, double length)
{
    char          who[LKI_WHO_BYTES];
    lki_rank_view view;
    ailment      *its = &job->faults->of[i];
    uint32_t      rank = lki_rank_of_worker(job, i);

    hit(job, i, kind == LK_CHAOS_KILL ? SIGKILL : SIGSTOP);
    lki_control_who(job->control, rank, who);
    lki_control_view(job->control, rank, &view);
    if (kind == LK_CHAOS_KILL)
        tell(job, "chaos: %s gets SIGKILL %s", who, view.place);
    else
        tell(job, "chaos: %s is %s for %.0f ms %s", who,
             kind == LK_CHAOS_STOP ? "stopped" : "slowed to half", 1e3 * length, view.place);
    its->killed  = kind == LK_CHAOS_KILL;
    its->stopped = !its->killed;
    its->until   = lki_seconds() + length;
    its->turns   = kind == LK_CHAOS_SLOW ? lki_seconds() + PULSE_SECONDS : 0;
}

/* Injects fault `k`.  A stopped or slowed worker can be killed, but not be stopped or slowed again:
 * such a fault hits nobody. */
static void strike(lki_job *job, uint64_t k, uint32_t left, uint32_t victim)
{
    lki_faults *self  = job->faults;
    size_t      kind  = kind_of(job, k);
    bool        kill  = kinds[kind] == LK_CHAOS_KILL;
    bool        spare = job->options->on_failure == LK_ON_FAILURE_CONTINUE && left < 2;

    if (victim == job->count || (kill ? spare : self->of[victim].until > 0))
        return;
    self->counts[kind]++;
    begin(job, victim, kinds[kind], length_of(job, k));
}

/* Injects the next planned fault and plans another, or waits if a worker is between two groups. */
static void take_turn(lki_job *job, double now)
{
    lki_faults *self = job->faults;
    uint32_t    left, victim;

    if (!find_victim(job, self->count, &left, &victim)) {
        self->at = now + WAIT_SECONDS;
        return;
    }
    strike(job, self->count++, left, victim);
    plan_next(job, now);
}

/* Ends the fault of worker `i` if the fault is due to end at `now`.  Otherwise stops or continues
 * the worker if the worker is slowed and the next change is due. */
static void treat(lki_job *job, uint32_t i, double now)
{
    ailment *its = &job->faults->of[i];

    if (its->killed || its->until <= 0)
        return;
    if (now >= its->until) {
        if (its->stopped)
            hit(job, i, SIGCONT);
        *its = (ailment){ .killed = false };
    } else if (its->turns > 0 && now >= its->turns) {
        its->stopped = !its->stopped;
        its->turns   = now + PULSE_SECONDS;
        hit(job, i, its->stopped ? SIGSTOP : SIGCONT);
    }
}

/* Returns true if the job can survive a loss: all workers have joined and, with several hosts, the
 * first step has begun. */
static bool may_begin(const lki_job *job)
{
    bool          may = lki_control_all_joined(job->control);
    lki_rank_view view;

    for (uint32_t i = 0; may && job->rendezvous != NULL && i < job->count; i++) {
        lki_control_view(job->control, lki_rank_of_worker(job, i), &view);
        may = view.noted && view.step > 0;
    }
    return may;
}

void lki_faults_turn(lki_job *job)
{
    lki_faults *self = job->faults;
    double     now;

    if (self == NULL)
        return;
    now = lki_seconds();
    if (self->at <= 0 && may_begin(job))
        plan_next(job, now);
    for (uint32_t i = 0; i < job->count; i++)
        treat(job, i, now);
    if (self->at > 0 && now >= self->at)
        take_turn(job, now);
}

double lki_faults_next(const lki_job *job)
{
    const lki_faults *self = job->faults;
    double           next;

    if (self == NULL)
        return 0;
    next = self->at > 0 ? self->at : lki_seconds() + LOOK_SECONDS; /* no event says when faults may
                                                                    * begin */
    for (uint32_t i = 0; i < job->count; i++) {
        const ailment *its = &self->of[i];
        double         at  = its->turns > 0 && its->turns < its->until ? its->turns : its->until;
        if (!its->killed && its->until > 0 && at < next)
            next = at;
    }
    return next;
}

void lki_faults_report(const lki_job *job)
{
    const lki_faults *self = job->faults;
    if (self != NULL)
        tell(job, "chaos: seed %llu: %u killed, %u stopped, %u slowed",
             (unsigned long long)job->options->chaos.seed, self->counts[0], self->counts[1],
             self->counts[2]);
}
