/* predict.c -- predicts the staleness of a schedule, the time for which its bound lets groups wait,
 * and the use that it makes of unequal workers.
 *
 * The workers do what ranks do (run.c): one that is free computes the first task, in the order of
 * application, that nobody computes and whose version is there.  They differ from ranks in that
 * updates take no time.
 */
#include <math.h>

#include "base/memory.h"
#include "parallel/versions/internal.h"

enum { GRADIENTS_LEAST = 4096, OF_EACH_GROUP = 8, WARM = 8 /* 1 / WARM of them are not timed */ };

/* A gradient that has not been applied. */
typedef struct {
    lki_group_task task;
    double         time;   /* that a worker of speed 1 takes */
    double         finish; /* if claimed */
    bool           claimed;
} gradient;

/* The workers at work. */
typedef struct {
    lki_task_schedule schedule;
    uint32_t  window;    /* number of gradients that are looked at */
    gradient *gradients; /* [window]: by number modulo `window` */
    uint64_t  applied;
    double    when;      /* the last gradient was applied */
    double    done;      /* sum of the times of the gradients that have been applied */
    uint32_t  workers;
    double   *free;      /* [workers]: the time at which a worker is free */
    double    waited;    /* sum of the times for which workers had no task */
    bool      slow;      /* worker 0 has half the speed of the others */
} crew;

static gradient *gradient_at(const crew *c, uint64_t at)
{
    return &c->gradients[at % c->window];
}

static lk_status open_crew(crew *c, const lk_async *options, uint64_t seed, uint32_t workers,
                           bool slow)
{
    *c = (crew){ .workers = workers, .slow = slow,
                 .window  = (uint32_t)lki_max(LKI_WINDOW, 4 * (size_t)options->groups) };
    LK_TRY(lki_task_schedule_open(&c->schedule, options, seed, NULL));
    LK_TRY(LKI_NEW(&c->gradients, c->window, "gradients"));
    return LKI_NEW(&c->free, workers, "workers");
}

static void close_crew(crew *c)
{
    lki_task_schedule_close(&c->schedule);
    lki_free(c->gradients);
    lki_free(c->free);
}

static void look_ahead(crew *c)
{
    while (c->schedule.applied < c->applied + c->window) {
        gradient *one = gradient_at(c, c->schedule.applied);
        *one          = (gradient){ .task = lki_task_schedule_next(&c->schedule) };
        one->time     = lki_task_schedule_time(&c->schedule, one->task.group,
                                               c->schedule.groups[one->task.group].done - 1,
                                               one->task.task);
    }
}

/* Applies the gradients that are there at a time. */
static void apply(crew *c, double now)
{
    const gradient *next = gradient_at(c, c->applied);
    while (next->claimed && next->finish <= now) {
        c->when = next->finish > c->when ? next->finish : c->when;
        c->done += next->time;
        c->applied++;
        look_ahead(c);
        next = gradient_at(c, c->applied);
    }
}

/* Returns the number of the gradient that a worker computes next; UINT64_MAX if there is none. */
static uint64_t find_task(const crew *c)
{
    const uint64_t version = c->applied / c->schedule.options.aggregate;
    for (uint64_t at = c->applied; at < c->applied + c->window; at++)
        if (!gradient_at(c, at)->claimed && gradient_at(c, at)->task.reads <= version)
            return at;
    return UINT64_MAX;
}

/* Returns the time after `now` at which the next worker ends its task. */
static double next_end(const crew *c, double now)
{
    double next = HUGE_VAL;
    for (uint32_t w = 0; w < c->workers; w++)
        next = c->free[w] > now && c->free[w] < next ? c->free[w] : next;
    return next;
}

/* Lets the worker that is free first begin a task, or wait. */
static void turn(crew *c)
{
    uint32_t first = 0;
    for (uint32_t w = 1; w < c->workers; w++)
        first = c->free[w] < c->free[first] ? w : first;
    const double now = c->free[first];
    apply(c, now);
    const uint64_t at = find_task(c);
    if (at == UINT64_MAX) { /* then some worker computes the next gradient */
        c->free[first] = next_end(c, now);
        c->waited += c->free[first] - now;
        return;
    }
    gradient *one  = gradient_at(c, at);
    one->claimed   = true;
    one->finish    = now + one->time * (c->slow && first == 0 ? 2 : 1);
    c->free[first] = one->finish;
}

static lk_status predict_throughput(double *out, double *waiting, const lk_async *options,
                                    uint64_t seed, uint32_t workers, bool slow, uint64_t count)
{
    crew      c;
    lk_status status = open_crew(&c, options, seed, workers, slow);
    double    when = 0, done = 0, waited = 0;
    if (status == LK_OK)
        look_ahead(&c);
    while (status == LK_OK && c.applied < count) {
        turn(&c);
        if (c.applied <= count / WARM) {
            when   = c.when;
            done   = c.done;
            waited = c.waited;
        }
    }
    if (status == LK_OK) {
        *out     = (c.done - done) / ((c.when - when) * (workers - (slow ? 0.5 : 0)));
        *waiting = (c.waited - waited) / ((c.when - when) * workers);
    }
    close_crew(&c);
    return status;
}

static lk_status predict_staleness(lk_async_forecast *out, const lk_async *options, uint64_t seed,
                                   uint64_t count)
{
    lki_task_schedule schedule;
    double            sum = 0;
    lk_status         status = lki_task_schedule_open(&schedule, options, seed, NULL);
    for (uint64_t at = 0; status == LK_OK && at < count; at++) {
        const lki_group_task task      = lki_task_schedule_next(&schedule);
        const uint64_t       staleness = at / options->aggregate - task.reads;
        sum += (double)staleness;
        out->staleness_max = (uint32_t)lki_max(out->staleness_max, staleness);
        out->staleness_bins[lki_staleness_bin(staleness)] += 1 / (double)count;
    }
    out->staleness_mean = sum / (double)count;
    out->dropped        = (double)schedule.dropped / (double)count;
    out->group_waiting  = (double)schedule.waited / ((double)schedule.now * options->groups);
    lki_task_schedule_close(&schedule);
    return status;
}

lk_status lk_async_predict(lk_async_forecast *out, const lk_async *options,
                           uint32_t virtual_workers, uint64_t seed, uint32_t workers)
{
    lk_async o;
    *out = (lk_async_forecast){ 0 };
    LK_TRY(lki_async_read(&o, options, virtual_workers));
    if (workers == 0 || workers > o.groups)
        return lk_fail(LK_EINVAL, "%u workers are not from 1 to the %u groups", workers, o.groups);
    const uint64_t count = lki_max(GRADIENTS_LEAST, OF_EACH_GROUP * (uint64_t)o.groups);
    LK_TRY(predict_staleness(out, &o, seed, count));
    LK_TRY(predict_throughput(&out->equal, &out->equal_waiting, &o, seed, workers, false, count));
    return predict_throughput(&out->slow, &out->slow_waiting, &o, seed, workers, true, count);
}
