/* schedule.c -- simulates groups whose tasks take random times.
 *
 * All groups begin their first task at tick 0, in the order of their numbers.  The task that ends
 * first is applied next; of tasks that end at the same tick that of the lowest group.  Then groups
 * without a task begin one, in the order of their numbers.  If `bounded`, a group waits while it
 * has finished over `staleness` tasks more than the slowest (SSP, Ho et al. 2013).
 *
 * Times are integers, computed by Lockstep's own logarithm and exponential, so they are the same on
 * every machine.  REVISION is part of the key of the random numbers: change it with whatever
 * changes a schedule.
 */
#include "parallel/task_schedule.h"

#include <math.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/rng.h"
#include "tensor/ops.h"

enum { REVISION = 1, GROUPS_MOST = 4096 };

static const double TICKS = 1 << 20; /* of the mean time of a task */

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
    if (out->delays > LK_DELAYS_EXPONENTIAL)
        return lk_fail(LK_EINVAL, "`async.delays` %d is no lk_delays", (int)out->delays);
    if (!(out->spread >= 0 && out->spread <= 4))
        return lk_fail(LK_EINVAL, "`async.spread` %g is not from 0 to 4", out->spread);
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

/* Returns the time, in ticks, of a group's task number `clock`. */
static uint64_t time_of(const lki_task_schedule *s, uint32_t group, uint64_t clock)
{
    const lk_async  *o = &s->options;
    const lki_random r = lki_philox(s->seed, LKI_RNG_DELAY, (uint32_t)clock,
                                    (uint32_t)(clock >> 32), group, REVISION);
    double time = 1;
    if (o->delays == LK_DELAYS_LOGNORMAL)
        time = (double)lki_expf((float)(o->spread * normal(r) - o->spread * o->spread / 2));
    else if (o->delays == LK_DELAYS_EXPONENTIAL)
        time = -(double)lki_logf((float)unit(r.word[0]));
    const double ticks = floor(TICKS * time * factor_of(o, group) + 0.5);
    return ticks < 1 ? 1 : (uint64_t)ticks;
}

/* ---- The simulation ---------------------------------------------------------------------- */

/* Begins tasks of all groups that have none, unless they would be too far ahead. */
static void begin_tasks(lki_task_schedule *s)
{
    uint64_t slowest = UINT64_MAX;
    for (uint32_t g = 0; g < s->options.groups; g++)
        slowest = lki_min(slowest, s->groups[g].done);
    for (uint32_t g = 0; g < s->options.groups; g++) {
        lki_task_schedule_group *group = &s->groups[g];
        if (!group->waits ||
            (s->options.bounded && group->done > slowest + s->options.staleness))
            continue;
        group->waits  = false;
        group->task   = s->begun++;
        group->reads  = lki_task_schedule_version(s);
        group->finish = s->now + time_of(s, g, group->done);
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
    LK_TRY(LKI_NEW(&s->groups, options->groups, "a schedule"));
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
    s->groups = NULL;
}

static lki_group_task next_recorded(lki_task_schedule *s)
{
    LK_ASSERT(s->applied < s->recorded->count);
    const lki_recorded_task *task = &s->recorded->tasks[s->applied++];
    s->groups[task->group].done++;
    show_recorded(s, task->group, task->next);
    return (lki_group_task){ task->task, task->reads, task->group };
}

lki_group_task lki_task_schedule_next(lki_task_schedule *s)
{
    if (s->recorded != NULL)
        return next_recorded(s);
    uint32_t first = 0;
    while (s->groups[first].waits) /* the slowest group never waits */
        first++;
    for (uint32_t g = first + 1; g < s->options.groups; g++)
        if (!s->groups[g].waits && s->groups[g].finish < s->groups[first].finish)
            first = g;
    lki_task_schedule_group *group = &s->groups[first];
    const lki_group_task      task  = { group->task, group->reads, first };
    s->now       = group->finish;
    group->waits = true;
    group->done++;
    s->applied++;
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
