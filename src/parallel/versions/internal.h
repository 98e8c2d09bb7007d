/* parallel/versions/internal.h -- the state of asynchronous training, for the files of this folder.
 *
 * All ranks of a host share one arena:
 *
 *   claims    for each gradient, by its place in the order of application: which rank computes it,
 *             or that it is there.  One word, changed by compare and exchange
 *   messages  gradients that wait to be applied
 *   buffers   versions of the parameters that are still read.  A version never changes
 *   states    the optimizer's state and running state, twice: an update reads one and writes the
 *             other
 *   outcomes  the results of the last steps
 *   arrivals  of a live run: the tasks of groups, and the order in which gradients have arrived
 *   hosts     of a run over several hosts: what is sent with gradients
 *
 * One rank at a time applies gradients (`applier`).  It writes a new version and new states beside
 * the old ones, and then publishes both with one store (`applied`).  So an update that is broken
 * off has changed no version, and after the death of a rank it is made again (survive.c).
 */
#ifndef LKI_PARALLEL_VERSIONS_INTERNAL_H
#define LKI_PARALLEL_VERSIONS_INTERNAL_H

#include <stdatomic.h>

#include "parallel/state.h"
#include "parallel/versions.h"
#include "parallel/task_schedule.h"
#include "parallel/versions/hosts.h"

enum {
    LKI_OUTCOMES = 64,  /* steps by which ranks can be apart */
    LKI_WINDOW   = 256, /* smallest number of gradients that are claimed ahead */
    LKI_PACED    = 8,   /* steps whose times are averaged */
    LKI_NAP_MS   = 50   /* longest sleep of a rank that waits, before it looks for failures */
};

#define LKI_NO_BUFFER UINT32_MAX

/* The state of a gradient, in the low bits of its claim; higher values are 1 + LKI_CLAIMED + rank.
 * The other bits are its number. */
enum { LKI_CLAIM_FREE = 0, LKI_CLAIM_DONE = 1, LKI_CLAIMED = 2, LKI_CLAIM_BITS = 16 };

/* The state of lki_common.failure, which is written once. */
enum { LKI_FAILURE_NONE, LKI_FAILURE_BEGUN, LKI_FAILURE_KNOWN };

/* A version of the parameters that is in memory. */
typedef struct {
    _Atomic uint64_t tag; /* 1 + the version; 0: the buffer is free */
} lki_live;

/* The result of a step. */
typedef struct {
    lk_step_result result;
    lk_async_step  async;
    uint32_t       heard;
} lki_outcome;

/* The gradients of a step. */
typedef struct {
    double   squares; /* sum of the squares of the norms of the versions' gradients */
    uint64_t staleness;
    uint32_t staleness_max;
    uint32_t staleness_bins[LK_STALENESS_BINS];
    uint64_t dropped;
} lki_step_sums;

/* The memory that ranks share. */
typedef struct {
    _Atomic uint64_t applied; /* number of gradients that have been applied */
    _Atomic uint32_t changes; /* ranks that wait for a change sleep on this word */
    _Atomic uint32_t applier; /* 1 + the rank that applies gradients; 0: none */
    _Atomic uint32_t failed;  /* LKI_FAILURE_KNOWN: `failure` is valid */
    lk_error         failure;
    /* 1 + the first gradient of the last version whose messages an update changes, and which are
     * therefore no gradients any more */
    _Atomic uint64_t spent;
    uint64_t         first;   /* number of steps before those of this run */
    _Atomic uint64_t waited; /* microseconds for which ranks had no task, since the last step */
    _Atomic uint32_t copied; /* number of gradients of the step that a copy was faster with */
    _Atomic uint32_t dropped; /* late gradients of a live run since the last one that has arrived */
    /* The times at which the last steps have ended, by number modulo LKI_PACED + 1. */
    double           ended[LKI_PACED + 1];
} lki_common;

/* The states of a group of a live run. */
typedef enum {
    LKI_GROUP_FREE = 0,
    LKI_GROUP_COMPUTES,
    LKI_GROUP_WAITS,
    LKI_GROUP_DIFFERS /* with shards: its gradient is not the recorded one, and is not applied */
} lki_group_state;

typedef struct {
    uint64_t        task, reads;
    uint64_t        done; /* number of gradients that have arrived */
    uint32_t        rank; /* which computes the task */
    _Atomic lki_group_state state; /* WAITS: its gradient has arrived, and has not been applied */
    /* The rest is of runs with shards (sharded.c). */
    _Atomic uint64_t line;   /* of the gradient in the order of arrival */
    uint64_t         hash;   /* of the line */
    uint64_t         next;   /* 1 + the next line of a recorded schedule; 0: none */
    _Atomic uint32_t copied; /* number of shards of which the versions that it reads are there */
    _Atomic uint32_t placed; /* number of shards that have applied the gradient */
    lk_update        update;
    bool             skipped; /* the gradient has no samples */
    uint32_t         message; /* over several hosts: which has the gradient */
} lki_live_group;

/* A shard: spans with an order of their own. */
typedef struct {
    _Atomic uint32_t holder;   /* 1 + the rank that reads or changes the shard; 0: none */
    _Atomic uint32_t waiting;  /* number of ranks that wait for the holder */
    _Atomic uint32_t releases; /* on which they sleep */
    _Atomic uint64_t applied;  /* number of gradients, and the current version */
    uint64_t         hash;     /* of the order so far */
    /* of the step in progress */
    uint64_t         staleness;
    uint32_t         staleness_max;
    uint32_t         staleness_bins[LK_STALENESS_BINS];
} lki_shard;

/* The shards of a run (sharded.c).  The arrays are in the arena. */
typedef struct {
    uint32_t          count;    /* 0: versions are of the model */
    bool              saves;    /* ranks save what updates change, because one may be lost */
    size_t            saved_floats;
    struct lki_saved_shard *saved; /* [seats]: this and the next are there if `saves` */
    float            *values;   /* [seats][saved_floats] */
    lki_shard        *of;       /* [count] */
    uint64_t         *reads;    /* [groups][count]: versions that the task of a group reads */
    /* [groups][count]: 1 + the recorded line whose version of a shard is copied next, or has been;
     * 0: none */
    uint64_t         *coming;
    _Atomic uint64_t *placed;   /* [groups][count]: 1 + the last line that a shard has applied */
    double           *norms;    /* [window]: of gradients */
    _Atomic uint32_t *complete; /* number of shards that have ended the step */
    uint64_t         *orders;   /* [count]: over several hosts: hashes up to the last line */
} lki_sharded;

/* The order of a live run.  It is changed by the rank that holds it. */
typedef struct {
    _Atomic uint32_t holder;   /* 1 + the rank; 0: none */
    _Atomic uint32_t releases; /* ranks that wait for the holder sleep on this word */
    _Atomic uint64_t arrived;  /* number of gradients that have a place in the order */
    uint64_t         replayed; /* of these, those that the file had at the beginning */
    _Atomic uint64_t begun;    /* tasks 0 to begun - 1 have begun */
    uint32_t         missing;  /* number of tasks below `begun` that must begin again */
} lki_arrivals;

/* A gradient that has arrived, or that a replay has computed. */
typedef struct {
    lki_group_task task;
    uint64_t       hash; /* of its line, which a replay compares with the recorded one */
} lki_arrival;

/* A task of a live run that has no place in the order yet. */
#define LKI_NO_PLACE UINT64_MAX

struct lki_versions {
    lk_async      options;
    lki_sharded   sharded;
    lki_hosts     hosts;
    lki_recorded_schedule recorded; /* of a live run or a replay */
    lk_parallel  *model; /* one group, on this rank alone */
    lk_comm      *alone; /* the communicator of `model` */
    uint64_t     *hashes; /* of `model` itself, which it frees */
    uint32_t      width;  /* virtual workers of a group */
    lki_task_schedule  ahead;  /* where this rank looks for tasks */
    lki_task_schedule  now;    /* after the gradients that this rank knows to be applied */
    uint32_t      window; /* number of gradients of the next three arrays */
    lki_group_task     *tasks;  /* [window]: of this rank, by number modulo `window` */
    uint32_t      seats;  /* number of ranks for which the arena has room */
    uint64_t       *sorted; /* [groups]: numbers of gradients.  This and the next two are scratch */
    lki_tree_input *inputs; /* [aggregate] */
    double         *losses; /* [virtual workers] */

    /* The step in progress. */
    double        lr;
    bool          rated;
    bool          speculates; /* lk_parallel_options.duplicate */
    bool          survives;   /* lk_parallel_options.survives */
    double        seconds;    /* that the last task has taken; 0: there was none */
    double        begun;      /* the time at which the current one began */
    bool          computes; /* `model` computes gradient number `at`, of task `task` */
    uint64_t      at;
    lki_group_task      task;
    lk_async_step last;
    uint32_t      heard;

    /* The fields below point into the arena. */
    lk_arena         *arena;
    lki_common       *common;
    _Atomic uint64_t *claims;   /* [window] */
    uint32_t         *place_of; /* [window]: the message of a gradient */
    char             *reports;  /* [window][width][model->report_bytes] */
    _Atomic uint64_t *passed;   /* [seats]: number of steps that a rank has finished */
    _Atomic uint32_t *said;     /* [seats] */
    double           *norms;    /* [window]: of versions, by number modulo `window` */
    lki_outcome      *outcomes; /* [LKI_OUTCOMES] */
    /* This and the next two: of live runs, and of replays with shards; else NULL. */
    lki_arrivals     *arrivals;
    lki_live_group   *doing;    /* [groups] */
    uint64_t         *again;    /* [groups]: arrivals->missing tasks, the first one last */
    lki_arrival      *order;    /* [window]: of live runs and replays: gradients that are there */
    _Atomic uint64_t *late;     /* [window]: this and the next are of late.c */
    _Atomic uint64_t *reading;  /* [seats]: 1 + the version that the rank's task reads */
    uint32_t          live_count, message_count;
    lki_live         *live;     /* [live_count] */
    _Atomic uint32_t *taken;    /* [message_count]: 1: the message is in use */
    char             *buffers;  /* [live_count][buffer_bytes]: parameters, then hashes of spans */
    size_t            buffer_bytes;
    char             *states[2];
    float            *messages; /* [message_count][model->width] */
};

/* The state with which a run goes on. */
typedef struct {
    bool                goes_on;  /* false: a new run */
    const lki_versions *versions; /* of this rank in the group before; NULL: it was not in it */
} lki_before;

/* Does what lki_versions_open() does, or takes over the arena of the group before. */
LK_NODISCARD lk_status lki_versions_open_over(lk_parallel *parallel, const lk_param *params,
                                              uint32_t param_count,
                                              const lk_parallel_options *options, uint32_t joint,
                                              const lki_before *before);

/* Returns the options of the model of a group of `width` virtual workers (open.c). */
lk_parallel_options lki_versions_inner(const lk_parallel_options *options, uint32_t width);

/* ---- Memory (memory.c) ------------------------------------------------------------------- */

/* Opens the arena or, if `goes_on`, takes over that of the group before.  Finds the parts.  `model`
 * is open. */
LK_NODISCARD lk_status lki_versions_arena(lk_parallel *parallel, bool goes_on);

/* Returns the bytes of the arena for `seats` ranks.  Of `versions` the model, the width and the
 * options are needed. */
size_t lki_versions_bytes(lk_parallel *parallel);

/* Returns the buffer of a version; LKI_NO_BUFFER if there is none. */
uint32_t lki_versions_look_up(const lki_versions *versions, uint64_t version);

/* Returns the buffer of a version, which is there. */
uint32_t lki_versions_find(const lki_versions *versions, uint64_t version);

/* Returns a free buffer for a version. */
uint32_t lki_versions_free_buffer(const lki_versions *versions);

/* Returns the parameters in a buffer. */
float *lki_versions_params(const lki_versions *versions, uint32_t buffer);

/* Lets the model read and write the version in a buffer, with the states of `version`. */
void lki_versions_show(lki_versions *versions, uint32_t buffer, uint64_t version);

/* Copies the version in buffer `from`, number `version`, with its states, to that after it in
 * buffer `to`. */
void lki_versions_copy(lki_versions *versions, uint32_t from, uint64_t version, uint32_t to);

/* Returns a gradient's report of virtual worker `leaf` of its group. */
lki_report *lki_versions_report(const lki_versions *versions, uint64_t at, uint32_t leaf);

static inline float *lki_versions_message(const lki_versions *versions, uint32_t place)
{
    return versions->messages + versions->model->width * place;
}

/* ---- The order of application (apply.c) -------------------------------------------------- */

static inline uint64_t lki_applied(const lki_versions *versions)
{
    return atomic_load(&versions->common->applied);
}

static inline bool lki_claim_is(const lki_versions *versions, uint64_t at, uint64_t state)
{
    return atomic_load(&versions->claims[at % versions->window]) ==
           (at << LKI_CLAIM_BITS | state);
}

/* Returns the task of a gradient in the window. */
static inline const lki_group_task *lki_task_at(const lki_versions *versions, uint64_t at)
{
    return &versions->tasks[at % versions->window];
}

/* Looks at the schedule ahead of the next gradient, number `applied`: fills in `tasks`.  Returns
 * the number of gradients whose tasks are known. */
uint64_t lki_look_ahead(lki_versions *versions, uint64_t applied);

/* Returns a hash of a gradient, made of XXH3 hashes. */
uint64_t lki_gradient_hash(const lki_versions *versions, const lki_gradients *sums);

/* Returns the hash of the line of gradient number `at`, which is that of v->task. */
uint64_t lki_line_hash(const lki_versions *versions, uint64_t at, uint64_t gradient);

/* Returns the hash of the line before that of gradient number `at`; 0 if that is the first one. */
uint64_t lki_hash_before(const lki_versions *versions, uint64_t at);

/* Returns the hash of the recorded schedule up to gradient number `end`; 0 if there is none. */
uint64_t lki_schedule_hash(const lki_versions *versions, uint64_t end);

/* Fails because the gradient of recorded line `at` is another one. */
LK_NODISCARD lk_status lki_fail_gradient(const lki_versions *versions, uint64_t at);

/* Hands over the gradient that the model has computed: applies it at once, if its time has come, or
 * keeps it. */
LK_NODISCARD lk_status lki_versions_push(lk_parallel *parallel, const lki_gradients *sums);

/* Applies all gradients of the current step that are there and whose time has come. */
LK_NODISCARD lk_status lki_versions_apply(lk_parallel *parallel);

/* Copies a gradient to memory that ranks share.  Returns its place. */
uint32_t lki_versions_store(lki_versions *versions, const lki_gradients *sums);

/* Makes this rank the applier.  Returns false if there is one. */
bool lki_become_applier(const lk_parallel *parallel);

/* Returns true if gradient number `at` is one of the current step, and no rank is so far behind
 * that its result would be overwritten. */
bool lki_may_apply(const lk_parallel *parallel, uint64_t at);

/* Records a failure for all ranks, with the virtual workers of a task.  They learn of the failure
 * of the group by themselves. */
void lki_fail_all(const lk_parallel *parallel, uint64_t task);

/* Writes the result of the step that ends before gradient number `end`. */
void lki_end_step(const lk_parallel *parallel, uint64_t end, const lki_step_sums *sums);

/* Begins the moving means of the spans [first, end) and, if `running`, of the running state. */
void lki_begin_means(lk_parallel *model, size_t first, size_t end, bool running);

/* Returns the number of the bits of a staleness, which is its bin. */
uint32_t lki_staleness_bin(uint64_t staleness);

/* Makes the next version, of the gradients from number `at` on, whose sum is in `sums`.  This rank
 * is the applier, and is not after it. */
LK_NODISCARD lk_status lki_apply_one(lk_parallel *parallel, uint64_t at,
                                     const lki_gradients *sums);

/* Frees all versions that `end` gradients and the tasks in flight do not need. */
void lki_free_versions(const lk_parallel *parallel, uint64_t end);

/* ---- Several hosts (hosts.c) --------------------------------------------------------------- */

static inline bool lki_has_hosts(const lki_versions *versions)
{
    return versions->hosts.count > 1;
}

static inline bool lki_keeps_order(const lki_versions *versions)
{
    return versions->hosts.here == LKI_ORDER_HOST;
}

/* Returns the description of the gradient in a message. */
static inline lki_envelope *lki_envelope_of(const lki_versions *versions, uint32_t message)
{
    return (lki_envelope *)(void *)(versions->hosts.envelopes +
                                    message * versions->hosts.envelope_bytes);
}

/* Fills in what the memory depends on. */
void lki_hosts_describe(lk_parallel *parallel);

/* Returns true if a gradient of several hosts has no place until it arrives at host 0. */
bool lki_arrives(const lki_versions *versions, uint64_t place);

/* Takes a free message.  Returns false if there is none. */
bool lki_hosts_take(const lki_versions *versions, uint32_t *message);

/* Takes a message for the next gradient of this rank, unless it has one. */
bool lki_hosts_reserve(lki_versions *versions);

/* Returns the host that computes a gradient, by its place or, in live runs, by its group. */
uint32_t lki_hosts_home(const lk_parallel *parallel, uint64_t number);

/* Returns true if this host computes gradient number `at`, whose task is known, and has room. */
bool lki_hosts_computes(const lk_parallel *parallel, uint64_t at);

/* Begins a task of a group of this host, as lki_arrivals_begin() does. */
LK_NODISCARD lk_status lki_hosts_begin(lk_parallel *parallel, bool *found);

/* Returns a group of this host that may begin a task, which v->ahead has; NULL if there is none.
 * Called by the holder of the order. */
lki_live_group *lki_hosts_find_group(lk_parallel *parallel);

/* Hands over the gradient of v->task, whose hash is `gradient` in live runs and replays, to the
 * ranks of all hosts.  `norm` is needed with shards. */
LK_NODISCARD lk_status lki_hosts_push(lk_parallel *parallel, const lki_gradients *sums,
                                      uint64_t gradient, double norm);

/* Enters the gradient in a message into the order, on host 0. */
LK_NODISCARD lk_status lki_hosts_enter(lk_parallel *parallel, uint32_t message);

/* Lets the ranks of this host apply the gradient in a message, number `at`. */
LK_NODISCARD lk_status lki_hosts_deliver(lk_parallel *parallel, uint32_t message, uint64_t at);

/* Goes on with a schedule until `end` gradients have been applied.  Gradients that arrive must have
 * arrived. */
void lki_hosts_advance(const lki_versions *versions, lki_task_schedule *schedule, uint64_t end);

/* Ends the current step on this rank: notes its order, and sends what other hosts need for it. */
LK_NODISCARD lk_status lki_hosts_end_step(lk_parallel *parallel);

/* Returns the largest number that ranks of any host had given when they computed the gradients of
 * the step that ends before gradient `end`. */
uint32_t lki_hosts_heard(const lki_versions *versions, uint64_t end);

/* ---- Carriers (carriers.c) ----------------------------------------------------------------- */

/* Connects the hosts.  All ranks call it when the schedule and the arena are there.  Does nothing
 * on one host. */
LK_NODISCARD lk_status lki_hosts_open(lk_parallel *parallel);

/* Goes on after `applied` gradients. */
void lki_hosts_resume(lk_parallel *parallel, uint64_t applied);

/* Sends and receives what can be, without waiting.  Does nothing but on a carrier. */
LK_NODISCARD lk_status lki_hosts_poll(lk_parallel *parallel);

/* Does the same after waiting a moment for other hosts.  Called by carriers. */
LK_NODISCARD lk_status lki_hosts_wait(lk_parallel *parallel);

/* Meets the other hosts, unless something has failed, and disconnects them. */
void lki_hosts_close(lk_parallel *parallel);

/* ---- After a death (survive.c) ------------------------------------------------------------- */

/* Lets nobody wait for the seats that have no rank.  One rank of a host calls it. */
void lki_versions_seat(const lk_parallel *parallel);

/* Repairs the arena of a group that has lost ranks, and goes on with it.  The schedules are open,
 * and at their beginning. */
LK_NODISCARD lk_status lki_versions_repair(lk_parallel *parallel);

/* Forgets that a gradient which is not there was handed over.  No rank has a task. */
void lki_late_forget(const lki_versions *versions, uint64_t at);

/* ---- Late tasks (late.c) ------------------------------------------------------------------- */

/* Finds a task that another rank is late with, to compute it as well: fills in v->task.  This rank
 * has had no task since the time `since`. */
bool lki_late_find(lk_parallel *parallel, double since);

/* Keeps the version that v->task reads in memory.  Returns false if another rank has handed over
 * the gradient. */
bool lki_late_reads(const lk_parallel *parallel);

/* Returns true if another rank has handed over the gradient of the current task. */
bool lki_late_is_over(const lki_versions *versions);

/* Decides which rank hands over the gradient of the current task: the first that calls. */
bool lki_late_hands_over(const lki_versions *versions);

/* Returns true if a rank's task reads a version, or one that it has dropped did. */
bool lki_late_needs(const lki_versions *versions, uint32_t ranks, uint64_t version);

/* ---- The order of arrival (arrivals.c): live runs only ------------------------------------- */

/* Fills in the order from the recorded schedule.  One rank of a host calls it. */
LK_NODISCARD lk_status lki_arrivals_open(lki_versions *versions);

/* Begins a task of a group that is free: fills in v->task.  *found becomes false if there is
 * none. */
LK_NODISCARD lk_status lki_arrivals_begin(lk_parallel *parallel, bool *found);

/* Gives the gradient of v->task the next place in the order, and hands it over as
 * lki_versions_push() does. */
LK_NODISCARD lk_status lki_arrivals_push(lk_parallel *parallel, const lki_gradients *sums);

/* Publishes the version that ends before gradient number `end`: its groups are free. */
LK_NODISCARD lk_status lki_arrivals_publish(lk_parallel *parallel, uint64_t end);

/* Finds the rank that computes the first task without a place, and the task; the number of ranks if
 * there is none. */
LK_NODISCARD lk_status lki_arrivals_slowest(lk_parallel *parallel, uint64_t *task,
                                            uint32_t *rank);

/* Waits for a release, as long as rank `by` may need for it. */
LK_NODISCARD lk_status lki_await_release(lk_parallel *parallel, _Atomic uint32_t *releases,
                                         uint32_t seen, uint32_t by, int64_t since);

/* Makes this rank the holder of the order, and ends that. */
LK_NODISCARD lk_status lki_arrivals_hold(lk_parallel *parallel);
void                   lki_arrivals_release(const lki_versions *versions);

/* Lists the tasks that have begun before one that is recorded, and are not recorded themselves. */
LK_NODISCARD lk_status lki_arrivals_list_missing(lki_versions *versions);

/* Returns a group that may begin a task; NULL if there is none.  Called by the holder. */
lki_live_group *lki_arrivals_find_group(const lki_versions *versions);

/* Returns the next task to begin.  Called by the holder. */
uint64_t lki_arrivals_next_task(const lki_versions *versions);

/* ---- Shards (sharded.c, shard_updates.c) ---------------------------------------------------- */

/* Returns the number of shards of a run; 0 if versions are of the model.  `model` is there. */
uint32_t lki_sharded_count(const lki_versions *versions);

/* Begins after `applied` gradients, with the current values.  One rank of a host calls it. */
void lki_sharded_begin(lki_versions *versions, uint64_t applied);

/* Prepares the order of arrival, and begins after 0 gradients.  One rank of a host calls it. */
LK_NODISCARD lk_status lki_sharded_open(lki_versions *versions);

/* Finds a task: fills in v->task and v->at.  *found becomes false if there is none. */
LK_NODISCARD lk_status lki_sharded_claim(lk_parallel *parallel, bool *found);

/* Hands over the gradient of v->task. */
LK_NODISCARD lk_status lki_sharded_push(lk_parallel *parallel, const lki_gradients *sums);

/* Applies all gradients of the current step whose time has come.  If `waits`, waits for shards that
 * other ranks hold. */
LK_NODISCARD lk_status lki_sharded_apply(lk_parallel *parallel, bool waits);

/* Applies the gradient of a group to a shard, which this rank holds. */
LK_NODISCARD lk_status lki_sharded_update(lk_parallel *parallel, uint32_t shard, uint32_t group);

/* Adds the staleness of a gradient to what the step in progress has of a shard. */
void lki_shard_note(lki_shard *shard, uint64_t staleness);

/* Writes the result of the step that ends before gradient number `end`, when all shards have. */
void lki_shards_complete(const lk_parallel *parallel, uint64_t end);

/* Returns the hash of the recorded orders of all shards up to gradient number `end`, which ends a
 * step. */
uint64_t lki_sharded_hash(const lki_versions *versions, uint64_t end);

/* Copies values of a parameter that the task of a group has read. */
void lki_sharded_fetch(const lki_versions *versions, uint32_t param, uint32_t group, size_t first,
                       size_t count, float *out);

/* Copies a shard from one buffer to another. */
void lki_sharded_copy(const lki_versions *versions, uint32_t shard, uint32_t from, uint32_t to);

/* Goes on to the next recorded line of a group: fills in its task and what this reads.  Called by
 * the holder of the order. */
void lki_sharded_take(lki_versions *versions, lki_live_group *group);

/* Fails if the gradient of the first recorded line that is not published is there, and is another
 * one: *task becomes its task.  Called by the holder of the order. */
LK_NODISCARD lk_status lki_sharded_check(const lki_versions *versions, uint64_t *task);

/* ---- Shards over several hosts (sharded_hosts.c) -------------------------------------------- */

/* Returns the bytes of an envelope that are for shards. */
size_t lki_sharded_envelope_bytes(const lki_versions *versions);

/* Writes what updates need of the gradient of a group to the envelope in its message. */
void lki_sharded_describe(const lki_versions *versions, uint32_t message, double norm);

/* Returns the hash of the line of the gradient in a message, number `at`. */
uint64_t lki_sharded_line_hash(const lki_versions *versions, uint32_t message, uint64_t at);

/* Writes the line of the gradient in a message, on host 0, with its places in all shards. */
LK_NODISCARD lk_status lki_sharded_write(const lki_versions *versions, uint32_t message,
                                         uint64_t at, uint64_t hash);

/* Lets shards apply the gradient in a message, number `at`.  Called by the holder of the order. */
void lki_sharded_deliver(lki_versions *versions, uint32_t message, uint64_t at);

/* Returns the values of a group's gradient. */
static inline float *lki_sharded_message(const lki_versions *v, uint32_t group)
{
    return lki_versions_message(v, v->hosts.count > 1 ? v->doing[group].message : group);
}

/* Returns a copy of the part of a gradient that is of some spans, if the update changes it and it
 * may be on its way to another host; else itself. */
lki_gradients lki_sharded_own(const lk_parallel *parallel, uint32_t message, lki_gradients sums,
                              const lki_part_of_step *part);

/* Returns the first span of a shard; `count` is an end. */
static inline size_t lki_shard_first(const lki_versions *v, uint32_t shard)
{
    return v->model->layout->span_count * shard / v->sharded.count;
}

/* Returns the buffer of the current values.  Those before it are of the groups. */
static inline uint32_t lki_sharded_current(const lki_versions *v)
{
    return v->options.groups;
}

/* Returns the version of a shard that recorded line `at` reads. */
static inline uint64_t lki_recorded_reads(const lki_versions *v, uint64_t at, uint32_t shard)
{
    return at - v->recorded.cells[at * v->sharded.count + shard].age;
}

/* Tells the other ranks of this host that something has changed. */
void lki_versions_changed(const lki_versions *versions);

#endif
