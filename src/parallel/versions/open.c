/* open.c -- opens asynchronous training: the model of each rank, and shared memory. */
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/versions/internal.h"

/* Returns what excludes asynchronous training; NULL if nothing does. */
static const char *why_not(const lk_parallel_options *o)
{
    const char *strategy = o->strategy != NULL ? lk_strategy_name(o->strategy) : "ddp";
    return strcmp(strategy, "ddp") != 0 ? "needs `strategy` ddp"
           : o->exchange != NULL ? "sends whole gradients: leave out `exchange`"
           : o->replicas != NULL ? "has one model: leave out `replicas`"
           : o->hook != NULL     ? "has gradients that no hook sees: leave out `hook`"
           : o->lock_step        ? "does not compute virtual workers in lock step"
           : o->audit > 0        ? "is not audited: leave out `audit`"
           : o->noise_decay > 0  ? "has no noise scale: leave out `noise_decay`"
           : o->rebalance        ? "gives tasks to ranks that are free: leave out `rebalance`"
           : o->duplicate && o->async->record != NULL
               ? "waits for no late task if gradients are applied as they arrive: leave out "
                 "`duplicate`"
           : o->backups > 0      ? "drops no gradient: leave out `backups`"
           : o->scaling.rule > LK_SCALE_NONE ? "does not support a loss scale"
           : o->gather_dtype > LK_F32 ? "reads FP32 parameters: leave out `gather_dtype`"
           : o->comm_dtype > LK_F32   ? "sends FP32 gradients: leave out `comm_dtype`"
           : o->offload != NULL       ? "is in memory: leave out `offload`"
           : o->optimizer.kind == LK_OPTIMIZER_NONE || o->optimizer.kind == LK_ONEBIT_ADAM ||
                   o->optimizer.kind == LK_ONEBIT_LAMB
               ? "needs an optimizer that updates whole gradients"
           : o->unused != LK_UNUSED_ZERO ? "needs `unused` LK_UNUSED_ZERO"
                                         : NULL;
}

static lk_status check(const lk_parallel *parallel, const lk_parallel_options *options)
{
    const uint32_t groups = parallel->versions->options.groups;
    const char    *why    = why_not(options);
    if (why != NULL)
        return lk_fail(LK_EUNSUPPORTED, "asynchronous training (`async`) %s", why);
    if (parallel->versions->options.consistency != LK_CONSISTENCY_MODEL && options->duplicate)
        return lk_fail(LK_EUNSUPPORTED, "asynchronous training (`async`) with shards or spans "
                                        "computes no task twice: leave out `duplicate`");
    if (parallel->world.hosts > 1 && options->duplicate)
        return lk_fail(LK_EUNSUPPORTED, "asynchronous training (`async`) over several hosts "
                                        "computes no task twice: leave out `duplicate`");
    if (parallel->world.hosts > 1 && options->async->record != NULL &&
        parallel->versions->options.compensation > 0 &&
        parallel->versions->options.consistency != LK_CONSISTENCY_MODEL)
        return lk_fail(LK_EUNSUPPORTED, "a live run with shards or spans over several hosts has "
                                        "what a task has read on one of them only: leave out "
                                        "`async.compensation`, or `async.consistency`");
    if (parallel->world.hosts > 1 && options->async->record != NULL &&
        parallel->versions->options.drops_late)
        return lk_fail(LK_EUNSUPPORTED, "a live run over several hosts applies all gradients: "
                                        "leave out `async.drops_late`");
    if (options->survives && parallel->world.hosts > 1)
        return lk_fail(LK_EUNSUPPORTED, "asynchronous training (`async`) over several hosts cannot "
                                        "go on after a loss: leave out `survives`, and start again "
                                        "from a checkpoint");
    if (parallel->ranks > groups)
        return lk_fail(LK_EINVAL, "%u workers are more than the %u groups, of which each has one "
                                  "task at a time; raise `async.groups` or lower `workers`",
                       parallel->ranks, groups);
    return LK_OK;
}

/* Fills in the fields of `parallel` that describe it as a whole. */
static void describe(lk_parallel *parallel, const lk_parallel_options *options)
{
    parallel->ranks       = parallel->world.ranks;
    parallel->local       = parallel->world.local_of[parallel->rank];
    parallel->leaves      = options->virtual_workers;
    parallel->micro_count = options->micro_count ? options->micro_count : 1;
    parallel->optimizer   = options->optimizer;
    parallel->dealing     = (lki_dealing){ .leaves = parallel->leaves, .ranks = parallel->ranks };
    parallel->share       = lki_share_of(&parallel->dealing, parallel->rank);
}

lk_parallel_options lki_versions_inner(const lk_parallel_options *options, uint32_t width)
{
    lk_parallel_options group = *options;
    group.strategy        = NULL;
    group.virtual_workers = width;
    group.async           = NULL;
    group.duplicate       = false;
    group.survives        = false;
    return group;
}

/* Opens the model of this rank, and compares it with those of other ranks. */
static lk_status open_model(lk_parallel *parallel, const lk_param *params, uint32_t param_count,
                            const lk_parallel_options *options, uint32_t joint)
{
    lki_versions       *v     = parallel->versions;
    const lki_part            part  = { .joint = joint, .bare = true };
    const lk_parallel_options group = lki_versions_inner(options, v->width);
    LK_TRY(lk_comm_split(&v->alone, parallel->comm, parallel->rank, 0));
    LK_TRY(lki_parallel_open_part(&v->model, v->alone, params, param_count, &group, &part));
    v->model->effects.idles = true;
    return lki_verify_same_part(parallel, v->model, &group);
}

/* Returns the sum of the times of the first tasks, which lk_async.time() may give. */
static double first_times(const lki_task_schedule *schedule)
{
    double sum = 0;
    for (uint32_t g = 0; g < schedule->options.groups; g++)
        sum += (g + 1) * lki_task_schedule_time(schedule, g, 0, g);
    return sum;
}

/* Returns what tells different recorded schedules apart. */
static double last_hash(const lki_versions *v)
{
    return lki_is_live(&v->options) && v->recorded.count > 0
               ? (double)(v->recorded.tasks[v->recorded.count - 1].hash >> 11)
               : 0;
}

/* Fails with LK_EMISMATCH if ranks were given different options of asynchronous training. */
static lk_status verify_same_options(lk_parallel *parallel)
{
    enum { OPTIONS = 18 };
    const lk_async *o = &parallel->versions->options;
    double values[OPTIONS + 2 * LK_SLOW_GROUPS_MAX] = {
        o->groups, o->aggregate, o->bounded, o->in_versions, o->staleness, o->delays, o->spread,
        first_times(&parallel->versions->ahead), o->slow_count, o->rate_by_staleness,
        o->compensation, (double)o->steps, o->record != NULL, o->replay != NULL,
        o->consistency, o->shards, last_hash(parallel->versions), o->drops_late
    };
    float  words[2 * sizeof values / sizeof values[0]];
    for (uint32_t i = 0; i < o->slow_count; i++) {
        values[OPTIONS + 2 * i]     = o->slow_group[i];
        values[OPTIONS + 2 * i + 1] = o->slow_factor[i];
    }
    memcpy(words, values, sizeof values);
    return lki_verify_same_values(parallel, "options of asynchronous training", words,
                                  sizeof words / sizeof words[0]);
}

/* Reads the recorded schedule.  Host 0 writes it, and the other hosts get what it has. */
static lk_status read_recorded(lk_parallel *parallel, const lki_recorded_run *run)
{
    lki_versions   *v      = parallel->versions;
    const lk_async *o      = &v->options;
    uint64_t        bytes  = 0;
    char           *text   = NULL;
    lki_map         map    = { 0 };
    lk_status       status = LK_OK;
    if (o->record == NULL || !lki_has_hosts(v))
        return lki_recorded_open(&v->recorded, o, run);
    if (v->hosts.here == 0)
        LK_TRY(lki_recorded_open(&v->recorded, o, run));
    if (parallel->rank == 0) {
        LK_TRY(lki_map_open(&map, v->recorded.path));
        bytes = map.bytes;
    }
    status = lk_broadcast(parallel->comm, &bytes, sizeof bytes, 0);
    if (status == LK_OK)
        status = lki_alloc((void **)&text, bytes + 1, "a schedule");
    if (status == LK_OK && parallel->rank == 0)
        memcpy(text, map.data, bytes);
    if (status == LK_OK)
        status = lk_broadcast(parallel->comm, text, bytes, 0);
    if (status == LK_OK && v->hosts.here != 0)
        status = lki_recorded_take(&v->recorded, o, run, text, bytes);
    if (parallel->rank == 0)
        lki_map_close(&map);
    lki_free(text);
    return status;
}

/* Creates the file of a live run, unless it goes on, or trims it.  If this rank has locked the file
 * in the group before, it keeps the lock. */
static lk_status prepare_recorded(lki_versions *v, const lki_recorded_run *run,
                                  const lki_versions *before)
{
    if (before != NULL && before->recorded.lock >= 0)
        LK_TRY(lki_recorded_inherit(&v->recorded, &before->recorded));
    return lki_recorded_prepare(&v->recorded, &v->options, run);
}

/* Notes what a new run does.  One that goes on has its own note, with its step. */
static void note(const lk_parallel *parallel, const lki_before *before, const char *what)
{
    if (!before->goes_on)
        lk_comm_note(parallel->comm, 0, what);
}

/* Says of a file that a run can no longer read when the file was changed. */
static lk_status blame_change(lk_status status, const lki_before *before)
{
    const lk_error why = *lk_error_last();
    return before->goes_on && (status == LK_EFORMAT || status == LK_EMISMATCH)
               ? lk_fail(status, "the schedule was changed during the run: %.400s", why.message)
               : status;
}

/* Opens the recorded schedule of a live run or of a replay. */
static lk_status open_recorded(lk_parallel *parallel, uint64_t seed, const lki_before *before)
{
    lki_versions          *v      = parallel->versions;
    lk_async              *o      = &v->options;
    const lki_recorded_run run    = { parallel->leaves, v->sharded.count, seed, before->goes_on };
    lk_status              status = LK_OK;
    if (!lki_is_live(o))
        return LK_OK;
    note(parallel, before, "opening the schedule");
    if (before->versions != NULL && o->record != NULL)
        LK_TRY(lki_recorded_stays(&before->versions->recorded));
    if (o->record != NULL && parallel->rank == 0)
        status = prepare_recorded(v, &run, before->versions);
    LK_TRY(blame_change(status, before));
    LK_TRY(lk_barrier(parallel->comm));
    LK_TRY(blame_change(read_recorded(parallel, &run), before));
    if (o->record != NULL && run.shards > 0 && lki_has_hosts(v))
        LK_TRY(lki_recorded_complete(&v->recorded, o->groups, parallel->rank == 0));
    note(parallel, before, "making room for the model");
    *(o->record != NULL ? &o->record : &o->replay) = v->recorded.path;
    return LK_OK;
}

/* Computes the initial values, which are version 0. */
static lk_status begin_values(lk_parallel *parallel, uint64_t seed)
{
    lki_versions *v = parallel->versions;
    lki_versions_show(v, v->sharded.count > 0 ? lki_sharded_current(v) : 0, 0);
    if (parallel->local == 0) {
        if (v->arrivals != NULL && v->sharded.count == 0)
            LK_TRY(lki_arrivals_open(v));
        LK_TRY(lki_parallel_initialise(v->model, seed, 0));
        if (v->sharded.count > 0)
            LK_TRY(lki_sharded_open(v));
        else
            atomic_store(&v->live[0].tag, 1);
        lki_versions_seat(parallel);
    }
    return lk_barrier(parallel->comm);
}

/* Returns the number of ranks that may take part in a run on this host, with those that enter
 * later. */
static uint32_t seats_of(const lk_parallel *parallel, const lk_parallel_options *options)
{
    const uint32_t world = lki_comm_world(parallel->comm);
    return options->survives ? (uint32_t)lki_min(world, parallel->versions->options.groups)
                             : parallel->ranks;
}

lk_status lki_versions_open_over(lk_parallel *parallel, const lk_param *params,
                                 uint32_t param_count, const lk_parallel_options *options,
                                 uint32_t joint, const lki_before *before)
{
    LK_TRY(LKI_NEW(&parallel->versions, 1, "asynchronous training"));
    lki_versions *v = parallel->versions;
    v->recorded     = LKI_RECORDED_CLOSED;
    LK_TRY(lki_world_of(&parallel->world, parallel->comm));
    LK_TRY(lki_async_read(&v->options, options->async, options->virtual_workers));
    describe(parallel, options);
    lki_hosts_describe(parallel);
    LK_TRY(check(parallel, options));
    v->seats      = seats_of(parallel, options);
    v->width      = options->virtual_workers / v->options.groups;
    v->speculates = options->duplicate;
    v->survives   = options->survives;
    LK_TRY(open_model(parallel, params, param_count, options, joint));
    v->hashes        = v->model->owned.hashes;
    v->sharded.count = lki_sharded_count(v);
    if (v->sharded.count > 0 && lki_measures(v->model, LKI_OF_VALUES))
        return lk_fail(LK_EUNSUPPORTED, "`async.consistency` shard or span does not compute norms "
                                        "of parameters: use another optimizer than lars and lamb");
    LK_TRY(open_recorded(parallel, options->seed, before));
    const lki_recorded_schedule *recorded = lki_is_live(&v->options) ? &v->recorded : NULL;
    LK_TRY(lki_task_schedule_open(&v->ahead, &v->options, options->seed, recorded));
    LK_TRY(lki_task_schedule_open(&v->now, &v->options, options->seed, recorded));
    LK_TRY(verify_same_options(parallel));
    LK_TRY(lki_versions_arena(parallel, before->goes_on));
    if (before->goes_on)
        return lki_versions_repair(parallel);
    LK_TRY(begin_values(parallel, options->seed));
    return lki_hosts_open(parallel);
}

lk_status lki_versions_open(lk_parallel *parallel, const lk_param *params, uint32_t param_count,
                            const lk_parallel_options *options, uint32_t joint)
{
    const lki_before none = { .goes_on = false };
    return lki_versions_open_over(parallel, params, param_count, options, joint, &none);
}

void lki_versions_free(lk_parallel *parallel)
{
    lki_versions *v = parallel->versions;
    if (v == NULL)
        return;
    lki_hosts_close(parallel);
    if (v->model != NULL && v->hashes != NULL)
        v->model->owned.hashes = v->hashes;
    lk_parallel_free(v->model);
    lk_comm_free(v->alone);
    lki_task_schedule_close(&v->ahead);
    lki_task_schedule_close(&v->now);
    lki_recorded_close(&v->recorded);
    lki_free(v->tasks);
    lki_free(v->sorted);
    lki_free(v->inputs);
    lki_free(v->losses);
    lki_free(v);
}

lk_parallel *lki_versions_model(const lki_versions *v)
{
    return v->model;
}
