/* schedule.c -- simulates groups whose tasks take random times.
 *
 * All groups begin their first task at tick 0, in the order of their numbers.  The task that ends
 * first is applied next; of tasks that end at the same tick that of the lowest group.  Then groups
 * without a task begin one, in the order of their numbers.  If `bounded`, a group waits while it
 * has finished over `staleness` tasks more than the slowest (SSP, Ho et al. 2013).
 *
 * If `in_versions`, the task that reads version r must be among the first (r + T + 1) K gradients.
 * That number is its deadline, where T is `staleness`.  All deadlines can be met if, for each, as
 * many places are left before it as there are tasks that have it or an earlier one.  A task is
 * applied, or begins, only if that remains true.  The task with the earliest deadline can always be
 * applied, so the simulation goes on.  At the beginning of a version all groups may begin a task if
 * G <= (T + 1) K, so no group waits for ever.
 *
 * With `drops_late` no task waits.  One that ends after its deadline is discarded, and its group
 * begins the next one, so workers need not compute it.  A group whose gradient counts begins the
 * next one when the version with it is made, so a version has one gradient of a group at most.
 *
 * Times are integers, computed by Lockstep's own logarithm and exponential, so they are the same on
 * every machine.  REVISION is part of the key of the random numbers: change it with whatever
 * changes a schedule.
 */
#include "parallel/task_schedule.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/rng.h"
#include "tensor/ops.h"

enum { REVISION = 1, GROUPS_MOST = 4096 };

static const double TICKS = 1 << 20; /* of a time of 1 */
static const double TICKS_MOST = 0x1p50; /* of a task */

/* ---- Options ----------------------------------------------------------------------------- */

static lk_status check_slow(const lk_async *o)
{
    if (o->slow_count > LK_SLOW_GROUPS_MAX)
        return lk_fail(LK_EINVAL, "`async.slow_count` is %u; at most %d groups can be slow",
                       o->slow_count, LK_SLOW_GROUPS_MAX);
    for (uint32_t i = 0; i < o->slow_count; i++) {
        if (o->slow_group[i] >= o->groups)
            return lk_fail(LK_EINVAL, "`async.slow_group`: there is no group %u; the %u groups are "
                                      "numbered from 0", o->slow_group[i], o->groups);
        if (!(o->slow_factor[i] >= 1e-3 && o->slow_factor[i] <= 1e6))
            return lk_fail(LK_EINVAL, "`async.slow_factor` %g of group %u is not from 0.001 to "
                                      "1000000", o->slow_factor[i], o->slow_group[i]);
    }
    return LK_OK;
}

static lk_status check_groups(const lk_async *o, uint32_t leaves)
{
    const uint32_t each = o->groups > 0 ? leaves / o->groups : 0;
    if (each == 0 || leaves % o->groups != 0 || (each & (each - 1)) != 0)
        return lk_fail(LK_EINVAL, "`async.groups` %u: %u virtual workers cannot be divided into so "
                                  "many groups of 1, 2, 4, 8 ... each", o->groups, leaves);
    if (o->groups > GROUPS_MOST)
        return lk_fail(LK_EINVAL, "`async.groups` %u are more than %d; give fewer", o->groups,
                       GROUPS_MOST);
    return o->groups % o->aggregate == 0
               ? LK_OK
               : lk_fail(LK_EINVAL, "`async.aggregate` %u does not divide the %u groups, whose "
                                    "gradients make a step", o->aggregate, o->groups);
}

/* Refuses a bound that even groups which take turns exceed. */
static lk_status check_bound(const lk_async *o)
{
    const uint32_t least = o->groups / o->aggregate - 1;
    if (o->drops_late && !o->in_versions)
        return lk_fail(LK_EINVAL, "`async.drops_late` needs `async.in_versions`");
    if (!o->in_versions || (o->bounded && (o->staleness >= least || o->drops_late)))
        return LK_OK;
    if (!o->bounded)
        return lk_fail(LK_EINVAL, "`async.in_versions` needs `async.bounded`");
    return lk_fail(LK_EINVAL, "`async.staleness` of %u versions: %u groups, of which each has a "
                              "task, have a staleness of %u at least; raise it to that, or "
                              "`async.aggregate`, or lower `async.groups`",
                   o->staleness, o->groups, least);
}

static lk_status check_consistency(lk_async *o)
{
    if (o->consistency > LK_CONSISTENCY_SPAN)
        return lk_fail(LK_EINVAL, "`async.consistency` %d is no lk_consistency",
                       (int)o->consistency);
    if (o->consistency != LK_CONSISTENCY_SHARD && o->shards > 0)
        return lk_fail(LK_EINVAL, "`async.shards` needs `async.consistency` LK_CONSISTENCY_SHARD");
    if (o->consistency == LK_CONSISTENCY_SHARD && o->shards == 0)
        o->shards = LK_SHARDS_DEFAULT;
    if (o->consistency == LK_CONSISTENCY_MODEL)
        return LK_OK;
    const char *why = !lki_is_live(o)      ? "is of live runs: give `async.record` or "
                                             "`async.replay`"
                      : o->aggregate > 1   ? "applies single gradients: leave out "
                                             "`async.aggregate`"
                      : o->in_versions     ? "has versions of shards: leave out "
                                             "`async.in_versions`"
                                           : NULL;
    return why == NULL ? LK_OK : lk_fail(LK_EINVAL, "`async.consistency` shard or span %s", why);
}

static lk_status check_delays(const lk_async *o)
{
    if (o->delays > LK_DELAYS_GIVEN)
        return lk_fail(LK_EINVAL, "`async.delays` %d is no lk_delays", (int)o->delays);
    if (!(o->spread >= 0 && o->spread <= 4))
        return lk_fail(LK_EINVAL, "`async.spread` %g is not from 0 to 4", o->spread);
    return LK_OK;
}

lk_status lki_async_read(lk_async *out, const lk_async *options, uint32_t leaves)
{
    LK_TRY(lki_options_copy(out, sizeof *out, options, "lk_async"));
    out->groups    = out->groups > 0 ? out->groups : leaves;
    out->aggregate = out->aggregate > 0 ? out->aggregate : 1;
    LK_TRY(check_groups(out, leaves));
    if (out->record != NULL && out->replay != NULL)
        return lk_fail(LK_EINVAL, "`async.record` and `async.replay` contradict each other: give "
                                  "one");
    if (lki_is_live(out) && (out->delays != LK_DELAYS_CONSTANT || out->slow_count > 0))
        return lk_fail(LK_EINVAL, "`async.delays` and `async.slow_group` are of simulated "
                                  "schedules: leave them out, or `async.record` and "
                                  "`async.replay`");
    LK_TRY(check_consistency(out));
    LK_TRY(check_bound(out));
    LK_TRY(check_delays(out));
    if (!(out->compensation >= 0) || isinf(out->compensation))
        return lk_fail(LK_EINVAL, "`async.compensation` %g is not a factor; give one such as 0.04, "
                                  "or 0 for none", out->compensation);
    if (out->compensation > 0 && out->aggregate > 1)
        return lk_fail(LK_EINVAL, "`async.compensation` corrects single gradients: leave out "
                                  "`async.aggregate`");
    return check_slow(out);
}

/* ---- Times ------------------------------------------------------------------------------- */

static double unit(uint32_t word)
{
    return ((double)(word >> 8) + 0.5) * 0x1p-24;
}

static double normal(lki_random r)
{
    const double angle = 6.283185307179586 * unit(r.word[1]);
    return sqrt(-2 * (double)lki_logf((float)unit(r.word[0]))) * (double)lki_cosf((float)angle);
}

static double factor_of(const lk_async *o, uint32_t group)
{
    double factor = 1;
    for (uint32_t i = 0; i < o->slow_count; i++)
        if (o->slow_group[i] == group)
            factor *= o->slow_factor[i];
    return factor;
}

static double random_time(const lki_task_schedule *s, uint32_t group, uint64_t clock)
{
    const lk_async  *o = &s->options;
    const lki_random r = lki_philox(s->seed, LKI_RNG_DELAY, (uint32_t)clock,
                                    (uint32_t)(clock >> 32), group, REVISION);
    return o->delays == LK_DELAYS_LOGNORMAL
               ? (double)lki_expf((float)(o->spread * normal(r) - o->spread * o->spread / 2))
               : -(double)lki_logf((float)unit(r.word[0]));
}

double lki_task_schedule_time(const lki_task_schedule *s, uint32_t group, uint64_t clock,
                              uint64_t task)
{
    const lk_async *o = &s->options;
    if (o->delays == LK_DELAYS_CONSTANT)
        return 1;
    return o->delays == LK_DELAYS_GIVEN ? o->time(o->time_context, group, clock, task)
                                        : random_time(s, group, clock);
}

/* Returns the time, in ticks, of a group's task number `clock`, which is number `task` of all. */
static uint64_t ticks_of(const lki_task_schedule *s, uint32_t group, uint64_t clock, uint64_t task)
{
    const double time  = lki_task_schedule_time(s, group, clock, task);
    const double ticks = floor(TICKS * time * factor_of(&s->options, group) + 0.5);
    return !(ticks >= 1) ? 1 : (uint64_t)(ticks < TICKS_MOST ? ticks : TICKS_MOST);
}

/* ---- The bound in versions --------------------------------------------------------------- */

/* Returns the latest deadline that the task of the next gradient may have.  `flights` has the tasks
 * in the order of their deadlines.  If as many tasks have one of the first deadlines as there are
 * places before it, one of these tasks must be next. */
static uint64_t limit_of(const lki_task_schedule *s)
{
    for (uint32_t i = 0; lki_waits_in_versions(&s->options) && i < s->flight_count; i++) {
        const uint64_t deadline = lki_deadline_of(&s->options, s->groups[s->flights[i]].reads);
        if (s->applied + i + 1 >= deadline)
            return deadline;
    }
    return UINT64_MAX;
}

/* Returns true if a group may begin a task, which has the last of all deadlines. */
static bool has_place(const lki_task_schedule *s)
{
    return !lki_waits_in_versions(&s->options) ||
           s->applied + s->flight_count + 1 <=
               lki_deadline_of(&s->options, lki_task_schedule_version(s));
}

/* ---- The simulation ---------------------------------------------------------------------- */

static uint64_t count_slowest(const lki_task_schedule *s)
{
    uint64_t slowest = UINT64_MAX;
    for (uint32_t g = 0; g < s->options.groups; g++)
        slowest = lki_min(slowest, s->groups[g].done);
    return slowest;
}

/* Begins tasks of all groups that have none, unless they must wait. */
static void begin_tasks(lki_task_schedule *s)
{
    const lk_async *o     = &s->options;
    const bool      tasks = o->bounded && !o->in_versions;
    const uint64_t  most  = tasks ? count_slowest(s) + o->staleness : UINT64_MAX;
    for (uint32_t g = 0; g < o->groups; g++) {
        lki_task_schedule_group *group = &s->groups[g];
        if (!group->waits || group->done > most || !has_place(s) ||
            (o->drops_late && group->last > lki_task_schedule_version(s) * o->aggregate))
            continue;
        group->waits  = false;
        group->task   = s->begun++;
        group->reads  = lki_task_schedule_version(s);
        s->waited += s->now - group->finish;
        group->finish = s->now + ticks_of(s, g, group->done, group->task);
        s->flights[s->flight_count++] = g;
    }
}

/* Makes gradient number `at` of a recorded schedule the next one of its group. */
static void show_recorded(lki_task_schedule *s, uint32_t group, uint64_t at)
{
    lki_task_schedule_group *g = &s->groups[group];
    g->waits = at == UINT64_MAX;
    if (g->waits)
        return;
    g->task  = s->recorded->tasks[at].task;
    g->reads = s->recorded->tasks[at].reads;
}

lk_status lki_task_schedule_open(lki_task_schedule *s, const lk_async *options, uint64_t seed,
                                 const lki_recorded_schedule *recorded)
{
    *s = (lki_task_schedule){ .options = *options, .seed = seed, .recorded = recorded };
    if (options->delays == LK_DELAYS_GIVEN && options->time == NULL)
        return lk_fail(LK_EINVAL, "`async.delays` LK_DELAYS_GIVEN needs `async.time`");
    LK_TRY(LKI_NEW(&s->groups, options->groups, "a schedule"));
    LK_TRY(LKI_NEW(&s->flights, options->groups, "a schedule"));
    for (uint32_t g = 0; g < options->groups; g++)
        s->groups[g].waits = true;
    if (recorded == NULL)
        begin_tasks(s);
    else
        for (uint64_t at = recorded->count; at-- > 0;)
            show_recorded(s, recorded->tasks[at].group, at);
    return LK_OK;
}

void lki_task_schedule_close(lki_task_schedule *s)
{
    lki_free(s->groups);
    lki_free(s->flights);
    s->groups  = NULL;
    s->flights = NULL;
}

/* Returns the place among `flights` of the task whose gradient is next: the one that ends first, or
 * has ended first, of those that may be applied.  Sets the clock to the time at which it is. */
static uint32_t find_next(lki_task_schedule *s)
{
    const uint64_t limit = limit_of(s);
    uint32_t       first = 0; /* has the earliest deadline */
    for (uint32_t i = 1; i < s->flight_count; i++) {
        const uint32_t                 g = s->flights[i], f = s->flights[first];
        const lki_task_schedule_group *group = &s->groups[g];
        if (limit < UINT64_MAX && lki_deadline_of(&s->options, group->reads) > limit)
            break;
        if (group->finish < s->groups[f].finish || (group->finish == s->groups[f].finish && g < f))
            first = i;
    }
    s->now = lki_max(s->now, s->groups[s->flights[first]].finish);
    return first;
}

/* Takes the task at a place among `flights` out.  Returns its group. */
static uint32_t end_task(lki_task_schedule *s, uint32_t place)
{
    const uint32_t g = s->flights[place];
    s->flight_count--;
    memmove(s->flights + place, s->flights + place + 1,
            (s->flight_count - place) * sizeof *s->flights);
    s->groups[g].waits = true;
    s->groups[g].done++;
    return g;
}

/* Takes the task at a place among `flights` out, and counts its gradient. */
static lki_group_task take(lki_task_schedule *s, uint32_t place)
{
    const uint32_t           g     = end_task(s, place);
    lki_task_schedule_group *group = &s->groups[g];
    group->last = ++s->applied;
    return (lki_group_task){ group->task, group->reads, g, 0 };
}

/* Discards late gradients.  Returns the place of the next one that is not late. */
static uint32_t drop_late(lki_task_schedule *s)
{
    uint32_t next = find_next(s);
    while (lki_is_late(&s->options, s->applied, s->groups[s->flights[next]].reads)) {
        (void)end_task(s, next);
        s->dropped++;
        begin_tasks(s);
        next = find_next(s);
    }
    return next;
}

/* ---- Gradients that arrive --------------------------------------------------------------- */

/* Begins tasks of all groups that have none and whose last gradient is in the current version,
 * unless they must wait, or the gradients of all tasks are enough for the run. */
static void begin_arriving(lki_task_schedule *s)
{
    const lk_async *o       = &s->options;
    const bool      tasks   = o->bounded && !o->in_versions;
    const uint64_t  most    = tasks ? count_slowest(s) + o->staleness : UINT64_MAX;
    const uint64_t  version = lki_task_schedule_version(s);
    for (uint32_t g = 0; g < o->groups; g++) {
        lki_task_schedule_group *group = &s->groups[g];
        if (!group->waits || group->done > most || !has_place(s) ||
            group->last > version * o->aggregate ||
            (o->steps > 0 && s->applied + s->flight_count >= o->steps * o->groups))
            continue;
        group->waits = false;
        group->task  = s->missing > 0 ? s->again[--s->missing] : s->begun++;
        group->reads = version;
        s->flights[s->flight_count++] = g;
    }
}

void lki_task_schedule_continue(lki_task_schedule *s, const uint64_t *again, uint32_t missing,
                                uint64_t begun)
{
    s->arrives = true;
    s->again   = again;
    s->missing = missing;
    s->begun   = begun;
    if (s->applied == s->recorded->count)
        begin_arriving(s);
}

bool lki_task_schedule_may_arrive(const lki_task_schedule *s, uint32_t group)
{
    const uint64_t limit = limit_of(s);
    return limit == UINT64_MAX || lki_deadline_of(&s->options, s->groups[group].reads) <= limit;
}

lki_group_task lki_task_schedule_arrive(lki_task_schedule *s, uint32_t group)
{
    uint32_t place = 0;
    while (s->flights[place] != group) {
        place++;
        LK_ASSERT(place < s->flight_count);
    }
    const lki_group_task task = take(s, place);
    begin_arriving(s);
    return task;
}

/* ---- The next gradient ------------------------------------------------------------------- */

static lki_group_task next_recorded(lki_task_schedule *s)
{
    LK_ASSERT(s->applied < s->recorded->count);
    const lki_recorded_task *task = &s->recorded->tasks[s->applied++];
    s->groups[task->group].done++;
    s->groups[task->group].last = s->applied;
    show_recorded(s, task->group, task->next);
    if (s->arrives && s->applied == s->recorded->count)
        begin_arriving(s);
    return (lki_group_task){ task->task, task->reads, task->group, task->dropped };
}

lki_group_task lki_task_schedule_next(lki_task_schedule *s)
{
    if (s->recorded != NULL)
        return next_recorded(s);
    const uint64_t dropped = s->dropped;
    lki_group_task task    = take(s, drop_late(s));
    task.dropped           = (uint32_t)(s->dropped - dropped);
    begin_tasks(s);
    return task;
}

void lki_task_schedule_advance(lki_task_schedule *s, uint64_t applied)
{
    while (s->applied < applied)
        (void)lki_task_schedule_next(s);
}

bool lki_task_schedule_needs(const lki_task_schedule *s, uint64_t version)
{
    if (version == lki_task_schedule_version(s))
        return true;
    for (uint32_t g = 0; g < s->options.groups; g++)
        if (!s->groups[g].waits && s->groups[g].reads == version)
            return true;
    return false;
}
