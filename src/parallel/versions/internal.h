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
 *
 * One rank at a time applies gradients (`applier`).  It writes a new version and new states beside
 * the old ones, and then publishes both with one store (`applied`).  So an update that is broken
 * off has changed no version.
 */
#ifndef LKI_PARALLEL_VERSIONS_INTERNAL_H
#define LKI_PARALLEL_VERSIONS_INTERNAL_H

#include <stdatomic.h>

#include "parallel/state.h"
#include "parallel/versions.h"
#include "parallel/task_schedule.h"

enum {
    LKI_OUTCOMES = 64,  /* steps by which ranks can be apart */
    LKI_WINDOW   = 256 /* smallest number of gradients that are claimed ahead */
};

#define LKI_NO_BUFFER UINT32_MAX

/* The state of a gradient, in the low bits of its claim; higher values are 1 + LKI_CLAIMED + rank.
 * The other bits are its number. */
enum { LKI_CLAIM_FREE = 0, LKI_CLAIM_DONE = 1, LKI_CLAIMED = 2, LKI_CLAIM_BITS = 16 };

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

/* The memory that ranks share. */
typedef struct {
    _Atomic uint64_t applied; /* number of gradients that have been applied */
    _Atomic uint32_t changes; /* ranks that wait for a change sleep on this word */
    _Atomic uint32_t applier; /* 1 + the rank that applies gradients; 0: none */
    _Atomic uint32_t failed;  /* `failure` is valid */
    lk_error         failure;
    /* of the versions of the step in progress */
    double           squares; /* sum of the squares of their gradients' norms */
    uint64_t         staleness;
    uint32_t         staleness_max;
} lki_common;

struct lki_versions {
    lk_async      options;
    lk_parallel  *model; /* one group, on this rank alone */
    lk_comm      *alone; /* the communicator of `model` */
    uint64_t     *hashes; /* of `model` itself, which it frees */
    uint32_t      width;  /* virtual workers of a group */
    lki_task_schedule  ahead;  /* where this rank looks for tasks */
    lki_task_schedule  now;    /* after the gradients that this rank knows to be applied */
    uint32_t      window; /* number of gradients of the next three arrays */
    lki_group_task     *tasks;  /* [window]: of this rank, by number modulo `window` */
    uint64_t       *sorted; /* [groups]: numbers of gradients.  This and the next two are scratch */
    lki_tree_input *inputs; /* [aggregate] */
    double         *losses; /* [virtual workers] */

    /* The step in progress. */
    double        lr;
    bool          rated;
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
    _Atomic uint64_t *passed;   /* [ranks]: number of steps that a rank has finished */
    _Atomic uint32_t *said;     /* [ranks] */
    lki_outcome      *outcomes; /* [LKI_OUTCOMES] */
    uint32_t          live_count, message_count;
    lki_live         *live;     /* [live_count] */
    _Atomic uint32_t *taken;    /* [message_count]: 1: the message is in use */
    char             *buffers;  /* [live_count][buffer_bytes]: parameters, then hashes of spans */
    size_t            buffer_bytes;
    char             *states[2];
    float            *messages; /* [message_count][model->width] */
};

/* Returns the options of the model of a group of `width` virtual workers (open.c). */
lk_parallel_options lki_versions_inner(const lk_parallel_options *options, uint32_t width);

/* ---- Memory (memory.c) ------------------------------------------------------------------- */

/* Opens the arena and finds the parts.  `model` is open. */
LK_NODISCARD lk_status lki_versions_arena(lk_parallel *parallel);

/* Returns the bytes of the arena for parallel->ranks ranks.  Of `versions` the model, the width and
 * the options are needed. */
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

/* Looks at the schedule ahead of the next gradient, number `applied`: fills in `tasks`. */
void lki_look_ahead(lki_versions *versions, uint64_t applied);

/* Hands over the gradient that the model has computed: applies it at once, if its time has come, or
 * keeps it. */
LK_NODISCARD lk_status lki_versions_push(lk_parallel *parallel, const lki_gradients *sums);

/* Applies all gradients of the current step that are there and whose time has come. */
LK_NODISCARD lk_status lki_versions_apply(lk_parallel *parallel);

/* Tells the other ranks of this host that something has changed. */
void lki_versions_changed(const lki_versions *versions);

#endif
