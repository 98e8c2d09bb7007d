/* lockstep/async.h -- repeatable asynchronous training: a parameter server, stale synchronous
 * parallel (SSP) and n-softsync.
 *
 * The virtual workers of a run are divided into G groups of neighbours.  A group reads the current
 * version of the parameters, computes the gradient of its virtual workers (a task), pushes it, and
 * begins the next task, without waiting for other groups.  Every `aggregate` gradients make the
 * next version.  The staleness of a gradient is the number of versions that were made after the one
 * that its task read.
 *
 * The schedule says which version each task reads, and in which order gradients are applied.
 *
 *  virtual  The schedule comes from a simulation of the G groups, whose tasks take random times
 *           drawn from the seed.  So it is a function of these options, and does not depend on
 *           clocks.
 *  live     Gradients are applied in the order in which ranks finish them.  Each is written to the
 *           schedule's file before it is applied.
 *  replay   The schedule is read from such a file.  The result has the bits of the live run.
 *
 * If the schedule is known in advance (virtual, replay), ranks compute tasks in the order in which
 * gradients are applied, or earlier if the version that a task reads is available.  So the result
 * depends on G and on the schedule, but not on the ranks.
 *
 * Tasks are numbered in the order in which they begin.  Task j computes V / G virtual workers of
 * the global batch j / G, from number (j mod G) V / G on.  So each sample is used once per epoch.
 * A step of a run is the application of G gradients.  With `aggregate` G and `staleness` 0 it is a
 * step of ddp.
 *
 * A rank that cannot apply a gradient yet keeps it in memory that all ranks of the host share, and
 * computes the next task.  There is no server: each rank applies gradients, one rank at a time.
 *
 * Over several hosts each host keeps all versions, and the first host keeps the order and the file
 * of `record`.  In a live run a group begins its next task with the version that has its last
 * gradient.  lk_parallel_progress() sends and receives gradients during turns, and all ranks must
 * call lk_parallel_free(), which meets the other hosts, unless something has failed.
 *
 * After a loss lk_parallel_go_on() drops the tasks in progress.  standing->steps is the number of
 * steps that all ranks had finished, so a rank may begin steps that it has finished before.  They
 * are over, and have the same results.
 *
 * With strategy "ddp" and LK_UNUSED_ZERO.  Not with exchange, replicas, audit, rebalance, backups,
 * hook, noise_decay, scaling, lock_step, offload, comm_dtype and gather_dtype.  With survives on
 * one host only.  With duplicate on one host only, with LK_CONSISTENCY_MODEL, and without `record`.
 */
#ifndef LK_ASYNC_H
#define LK_ASYNC_H

#include "lockstep/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lk_parallel lk_parallel;

/* The times of tasks.  The random ones have mean 1. */
typedef enum {
    LK_DELAYS_CONSTANT = 0,
    LK_DELAYS_LOGNORMAL, /* exp(s z - s^2 / 2), z normal, s = lk_async.spread */
    LK_DELAYS_EXPONENTIAL,
    LK_DELAYS_GIVEN /* by lk_async.time() */
} lk_delays;

/* Returns the time of a task of a group: number `task` of all groups, and number `clock` of its
 * own, both counted from 0.  A function of these alone, equal on all ranks, about 1. */
typedef double (*lk_task_time)(void *context, uint32_t group, uint64_t clock, uint64_t task);

/* The part of the parameters that a version is of, in live runs and replays. */
typedef enum {
    LK_CONSISTENCY_MODEL = 0, /* the model: a task reads one version of all parameters */
    LK_CONSISTENCY_SHARD,     /* a shard, of which there are lk_async.shards */
    LK_CONSISTENCY_SPAN       /* 4096 elements of a parameter at most: each span is a shard */
} lk_consistency;

enum { LK_SLOW_GROUPS_MAX = 8, LK_SHARDS_DEFAULT = 4 };

/* See lk_parallel_options.async. */
typedef struct {
    size_t    struct_size; /* LK_ASYNC_INIT */
    uint32_t  groups;    /* G; V / G is a power of two.  0 = V */
    uint32_t  aggregate; /* K: number of gradients of a version; divides G.  0 = 1 */
    /* SSP (Ho et al. 2013): if `bounded`, a group begins task c, counted from 0, only when all
     * groups have finished c - staleness tasks.  If `in_versions`, too, no gradient has more than
     * `staleness` instead, a bounded delay as in parameter servers (Li et al. 2014): a task that
     * has ended waits while its gradient would make another one too stale, and a group begins none
     * that could become so.  `staleness` is then at least G / K - 1, which G tasks at a time
     * force.  With `drops_late` any bound in versions is possible: a gradient that would have more
     * is discarded, as those of backup workers (Chen et al. 2016), and a group begins its next task
     * when the version with its last gradient is made. */
    bool      bounded;
    bool      in_versions;
    bool      drops_late;
    uint32_t  staleness;
    lk_delays delays;
    double    spread;      /* of LK_DELAYS_LOGNORMAL */
    lk_task_time time;     /* of LK_DELAYS_GIVEN; used as long as the lk_parallel */
    void     *time_context;
    /* The tasks of group slow_group[i] take slow_factor[i] times as long. */
    uint32_t  slow_count;
    uint32_t  slow_group[LK_SLOW_GROUPS_MAX];
    double    slow_factor[LK_SLOW_GROUPS_MAX];
    /* The learning rate of a version is multiplied by the mean of 1 / max(1, staleness) of its
     * gradients (Zhang et al., Staleness-aware Async-SGD, 2016). */
    bool      rate_by_staleness;
    /* DC-ASGD (Zheng et al. 2017): adds compensation g g (w - w') to the mean gradient g, after
     * clipping, where w' is the version that the task has read and w that to which g is applied.
     * 0 = none.  Needs `aggregate` 1.  With lk_optimizer.mean_square it is adaptive: divided by
     * sqrt(m + 1e-7), where m is the moving mean of the squares of an element's gradients, after
     * clipping, with that of g. */
    double    compensation;
    uint64_t  steps; /* of the run: tasks that no step applies are not computed.  0 = unknown */
    /* Path of the schedule of a live run; at most one of them.  Both NULL: virtual.  What the file
     * of `record` has already is replayed first, so that a run that was interrupted goes on.  In a
     * replay a gradient whose hash is not the recorded one fails with LK_EMISMATCH, which names the
     * task.  Borrowed until the object is open. */
    const char *record, *replay;
    /* The shards of a parameter server.  Each applies gradients in an order of its own, but those
     * of a step before those of the next one.  A task reads one shard after the other, while
     * gradients are applied, so the versions that it reads may differ.  Over several hosts all
     * orders are the same, and a live run has no `compensation`.  Only with `record` or `replay`;
     * not with `aggregate`, `in_versions`, and optimizers that need norms of parameters. */
    lk_consistency consistency;
    uint32_t       shards; /* of LK_CONSISTENCY_SHARD.  0 = 4 */
} lk_async;

#define LK_ASYNC_INIT LK_OPTIONS_INIT(lk_async)

/* Gradients are counted by staleness: 0, 1, 2 to 3, 4 to 7, ..., 64 to 127, and more. */
enum { LK_STALENESS_BINS = 9 };

/* The outcome of a schedule. */
typedef struct {
    double   staleness_mean;
    uint32_t staleness_max;
    double   staleness_bins[LK_STALENESS_BINS]; /* parts of all gradients */
    double   group_waiting; /* part of the simulated time in which groups wait for others */
    double   dropped;       /* number of late gradients for each that is applied */
    /* Throughput of workers that take the tasks in order, each as soon as the version is there that
     * it reads, divided by the sum of their speeds.  Updates take no time.  `slow`: one worker has
     * half the speed of the others. */
    double   equal, slow;
    double   equal_waiting, slow_waiting; /* parts of the workers' time without a task */
} lk_async_forecast;

/* Simulates the first gradients of a run, 4096 or 8 of each group, and 1 to `groups` workers that
 * compute them.  A worker takes equally long for all tasks, or with LK_DELAYS_GIVEN as long as the
 * schedule says. */
LK_API LK_NODISCARD lk_status lk_async_predict(lk_async_forecast *out, const lk_async *options,
                                               uint32_t virtual_workers, uint64_t seed,
                                               uint32_t workers);

/* The versions and gradients of the last step of lk_parallel_finish(). */
typedef struct {
    uint64_t version;        /* number of versions made so far */
    uint64_t schedule_hash;  /* of a recorded schedule up to the step; also after a resume */
    double   staleness_mean; /* over the gradients of the step */
    uint32_t staleness_max;
    uint32_t staleness_bins[LK_STALENESS_BINS]; /* numbers of gradients */
    uint64_t dropped; /* late gradients that were discarded since the last step */
    double   waited; /* seconds for which ranks had no task, all together, since the last step */
    /* Mean time of the last steps, 8 at most, by the times at which their last gradients were
     * applied: a rank that computes a long task finishes several steps at once.  0: not known, in
     * the first step of a run. */
    double   seconds;
} lk_async_step;

/* Returns these numbers, all 0 if the object has no `async`.  Local. */
LK_API lk_async_step lk_parallel_async_step(const lk_parallel *parallel);

/* Sets the learning rate of the step that has begun, before the first lk_parallel_next(), because
 * gradients are applied before lk_parallel_finish().  Needed in each step; equal on all ranks. */
LK_API LK_NODISCARD lk_status lk_parallel_set_rate(lk_parallel *parallel, double lr);

#ifdef __cplusplus
}
#endif
#endif
