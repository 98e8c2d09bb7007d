/* parallel/task_schedule.h -- the order in which the gradients of groups are applied
 * (lockstep/async.h).  Defined in versions/schedule.c.
 *
 * It comes from a simulation of the groups, or from a recorded schedule.  The simulation has a
 * clock of its own, in ticks.  It sees no values, so it can run ahead of the training, and every
 * rank computes the same schedule by itself.
 *
 * In a live run over several hosts gradients arrive after the recorded ones.  Then the order of
 * groups decides everything else: a group begins its next task when the version with its gradient
 * is made, and reads it.
 */
#ifndef LKI_PARALLEL_TASK_SCHEDULE_H
#define LKI_PARALLEL_TASK_SCHEDULE_H

#include "base/status.h"
#include "lockstep/parallel.h"
#include "parallel/recorded_schedule.h"

/* A group in the simulation or, in a recorded schedule, its next task. */
typedef struct {
    uint64_t task;   /* number of its task, among the tasks of all groups by their beginning */
    uint64_t reads;  /* the version that the task reads */
    uint64_t done;   /* number of tasks that the group has finished */
    uint64_t finish; /* the tick at which the task ends */
    bool     waits;  /* it has no task, and waits for others; recorded: has no more tasks */
    uint64_t last;   /* 1 + the number of its last gradient; 0: none */
} lki_task_schedule_group;

/* A simulation. */
typedef struct {
    lk_async            options;
    uint64_t            seed;
    uint64_t            begun;   /* number of tasks that have begun */
    uint64_t            applied; /* number of gradients that have been applied */
    uint64_t            now;     /* in ticks */
    uint64_t            waited;  /* ticks for which groups had waited when they began their tasks */
    uint64_t            dropped; /* number of late gradients */
    lki_task_schedule_group *groups;  /* [options.groups] */
    uint32_t           *flights; /* [options.groups]: groups that have a task, by its beginning */
    uint32_t            flight_count;
    const lki_recorded_schedule *recorded; /* borrowed; NULL: simulated */
    bool                arrives; /* more gradients arrive after those */
    const uint64_t     *again;   /* [missing]: tasks to begin first, the last one first */
    uint32_t            missing;
} lki_task_schedule;

/* A task whose gradient is the next to be applied. */
typedef struct {
    uint64_t task;
    uint64_t reads;
    uint32_t group;
    uint32_t dropped; /* number of late gradients that were discarded since the one before */
} lki_group_task;

/* Completes the options of a run with V virtual workers, and checks them. */
LK_NODISCARD lk_status lki_async_read(lk_async *out, const lk_async *options, uint32_t leaves);

/* Opens the schedule at its beginning.  `options` come from lki_async_read().  `recorded` is
 * borrowed until the schedule is closed; NULL: the schedule is simulated. */
LK_NODISCARD lk_status lki_task_schedule_open(lki_task_schedule *schedule, const lk_async *options,
                                              uint64_t seed,
                                              const lki_recorded_schedule *recorded);
void                   lki_task_schedule_close(lki_task_schedule *schedule);

/* Returns the task whose gradient is applied next, and goes on to the one after it.  A recorded
 * schedule must have it. */
lki_group_task lki_task_schedule_next(lki_task_schedule *schedule);

/* Lets more gradients arrive after those of a recorded schedule.  Before new tasks, from number
 * `begun` on, groups begin the `missing` tasks of `again`, which is borrowed. */
void lki_task_schedule_continue(lki_task_schedule *schedule, const uint64_t *again,
                                uint32_t missing, uint64_t begun);

/* Returns true if the gradient of a group's task may be next, by a bound in versions. */
bool lki_task_schedule_may_arrive(const lki_task_schedule *schedule, uint32_t group);

/* Applies the gradient of a group's task, which has arrived after the recorded ones, next.  Returns
 * the task. */
lki_group_task lki_task_schedule_arrive(lki_task_schedule *schedule, uint32_t group);

/* Returns the time of a group's task number `clock`, which is number `task` of all groups, without
 * lk_async.slow_factor. */
double lki_task_schedule_time(const lki_task_schedule *schedule, uint32_t group, uint64_t clock,
                              uint64_t task);

/* Goes on until `applied` gradients have been applied. */
void lki_task_schedule_advance(lki_task_schedule *schedule, uint64_t applied);

/* Returns the current version. */
static inline uint64_t lki_task_schedule_version(const lki_task_schedule *schedule)
{
    return schedule->applied / schedule->options.aggregate;
}

/* Returns true if a bound in versions lets tasks wait. */
static inline bool lki_waits_in_versions(const lk_async *o)
{
    return o->in_versions && !o->drops_late;
}

/* Returns true if gradient number `at` is discarded, because its task has read `reads`. */
static inline bool lki_is_late(const lk_async *o, uint64_t at, uint64_t reads)
{
    return o->drops_late && at / o->aggregate > reads + o->staleness;
}

/* Returns the number of gradients that come before the first one that `reads` would make too
 * stale. */
static inline uint64_t lki_deadline_of(const lk_async *o, uint64_t reads)
{
    return (reads + o->staleness + 1) * o->aggregate;
}

/* Returns true if a task that has begun and is not applied reads `version`, or if it is current. */
bool lki_task_schedule_needs(const lki_task_schedule *schedule, uint64_t version);

#endif
