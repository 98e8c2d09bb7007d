/* parallel/state.h -- the object that core, strategies and features share.
 *
 * Also declares the functions of the core that strategies and features call.
 *
 * Ownership: `parallel` belongs to the core.  A strategy owns parallel->private alone, a feature
 *            the state that its open() allocates (feature.h).
 */
#ifndef LKI_PARALLEL_STATE_H
#define LKI_PARALLEL_STATE_H

#include "base/status.h"
#include "device/reduce.h"
#include "parallel/feature.h"
#include "parallel/layout.h"
#include "parallel/ledger.h"
#include "parallel/remains.h"
#include "parallel/replicas.h"
#include "parallel/shard_map.h"
#include "parallel/rounds.h"
#include "parallel/unit_buffers.h"
#include "parallel/turn.h"
#include "parallel/versions.h"
#include "parallel/world.h"

typedef struct lki_piece_list  lki_piece_list;  /* shards.c */
typedef struct lki_row_merger  lki_row_merger;  /* rows.c */
typedef struct lki_units       lki_units;       /* units.c */
typedef struct lki_vector_file lki_vector_file; /* offload/vector_file.c */

/* The parameters that the last step has used. */
typedef struct {
    uint8_t  *now;    /* [param_count]: used by any virtual worker in the last step */
    uint64_t *missed; /* [param_count]: steps in which the parameter was not updated */
    bool      fixed;  /* use cannot change any more, so sums of unused buckets are not sent */
} lki_uses;

/* The ranks with which this rank exchanges the parts of the model that hosts store (shards.c). */
typedef struct {
    uint32_t       *carriers; /* [owner_count]: see lki_shards_carrier() */
    lk_comm        *group;    /* the ranks whose hosts exchange the parts that they store */
    lki_piece_list *pieces;
} lki_peers;

/* Running state and its moving average: the values of each state, padded. */
typedef struct {
    uint32_t           count;
    lk_parallel_state *of;     /* [count] */
    size_t            *at;     /* [count]: offset of each state */
    float             *values; /* in the arena, like `mean` */
    float             *mean;   /* NULL unless the optimizer keeps averages (ema) */
} lki_running;

/* Values that are not in the object's own arena: in files (see offload/), or in other memory. */
typedef struct {
    unsigned         kinds;     /* bits of lk_offloaded: the values that are in files */
    bool             elsewhere; /* all values and running state are in memory of another object */
    const char      *folder;
    lki_vector_file *states; /* file of the states that this rank owns; NULL: none, or in memory */
    lki_vector_file *params;
} lki_offload;

/* Sums of squares, the norms computed from them, and losses. */
typedef struct {
    uint32_t measures;     /* number of sums for each span */
    double   root_squares; /* sum of squares of the summed gradient */
    uint32_t last;         /* the last lki_measure that the optimizer needs */
    uint32_t second;       /* if not 0: the measure that is the sum of the second moment, as the
                            * step finds it, until it is frozen */
    double   second_sum;   /* of all parameters */
    /* [span_count][measures]: rows in the order of lki_param_span.turn, that is, by owner; in the
     * arena; see lki_block_sum() */
    double *blocks;
    double *of;      /* [measures][param_count] */
    const double *trusts; /* [param_count]: trust ratios that a feature has computed; NULL: those of
                           * lk_optimizer_trust() */
    double *scratch; /* [max(spans, virtual workers)] */
    lki_losses losses;
} lki_norms;

/* The spans that this rank owns. */
typedef struct {
    size_t   *spans; /* [count]: their numbers in the layout */
    size_t    count;
    uint64_t *hashes; /* [span_count]: hash of the values that this rank wrote last */
} lki_owned;

/* The rules of parameters. */
typedef struct {
    lk_param_rule *of;      /* [param_count] */
    bool           changed; /* they are for the next step, not for the step that began last */
} lki_rules;

/* Limits of the gradient, and the compensation of its delay (lk_async.compensation); 0: none. */
typedef struct {
    double       norm, value;
    double       compensation;
    const float *read; /* with compensation: the parameters that the gradient was computed with */
} lki_clip;

/* Zeroed memory that a turn uses after a failure; see lki_scrap(). */
typedef struct {
    float *gradient; /* replaces gradients; NULL: not allocated yet */
    float *params;   /* replaces gathered parameters; NULL: not allocated yet */
} lki_scraps;

/* The effects of features on strategies and on a step. */
typedef struct {
    bool     largest;    /* a rank computes the largest subtrees of its share first; shares move */
    bool     lends;      /* ranks compute each other's virtual workers */
    uint32_t spares;     /* with `lends`: extra gradient buffers per rank */
    bool     restarts;   /* an interrupted step is computed again from its beginning */
    bool     holds_back; /* a rank sends its gradients only after its last turn */
    bool     watches;    /* features read or change terms as soon as they are computed */
    bool     single;     /* features need the gradients of every virtual worker, not only sums */
    bool     idles;      /* a step without samples changes nothing; else it fails */
    uint32_t first;      /* number of virtual worker 0 in messages */
    uint32_t replicas;   /* of outer weights: number of replicas; 0: these are no outer weights */
    uint32_t each;       /* of outer weights: virtual workers of a replica */
    bool     audits;     /* as `single`, until the last step that is audited */
    uint32_t cut;        /* virtual workers of a group, beyond which sums are not merged; 0: V */
    uint64_t cut_from;   /* the first step with groups; earlier steps sum all virtual workers */
    bool     momenta;    /* groups exchange momenta: sums are the mean momentum, times the count */
    bool     replaces;   /* an update begins with parameters of 0, whatever they were */
} lki_effects;

/* The state of the current step, apart from its turns. */
typedef struct {
    bool          under_way;
    uint64_t      named;   /* number of the step in messages; 0: lk_parallel.step + 1 */
    uint32_t      micros;  /* number of micro-batches of this step */
    double        lr;      /* of lk_parallel_finish() */
    double        seed;    /* the factor by which the gradients are too large */
    bool          mended;  /* a part of the step was computed before a rank was lost */
    bool          reduced; /* `sums` is valid */
    lki_gradients sums;
    lk_error      failure; /* kept until lk_parallel_finish() */
} lki_step_state;

struct lk_parallel {
    lki_replicas *replicas; /* NULL: none.  Else of the fields below only those are set that
                             * describe the ranks, their virtual workers and the outer optimizer */
    lki_versions *versions; /* NULL: training is synchronous.  Else as with replicas */
    const lki_strategy_ops *ops;
    void *private;
    lk_comm  *comm; /* NULL: only sizes are computed, and nothing runs */
    lki_world world;
    uint32_t  rank, ranks;
    uint32_t  local, locals; /* this rank's number on its host; the number of ranks on this host */
    /* the number of shards of the model; this host's shard */
    uint32_t         shards, shard;
    lki_shard_map    shard_map;
    lki_peers        peers;
    bool             gathers; /* the parameters of a shard are stored on its own host only */
    bool             parted;  /* the FP32 values are sharded, even if they are not gathered */
    lki_unit_buffers slots;   /* used if `gathers` */
    lki_units       *units;
    bool             quantised; /* parameters are read as blocks of 8 bits */
    bool             keeps;     /* gathered units stay in memory until the values change */
    lk_exec         *exec, *own_exec;
    lk_optimizer     optimizer;
    lki_norms        norms;
    lki_clip         clip;
    /* type to which every tree node of the gradients is rounded; LK_F32: not rounded */
    lk_dtype        rounded;
    lki_rules       rules;
    uint32_t        leaves, micro_count;
    bool            lock_step;
    uint32_t        joint; /* limit of virtual workers of a turn (joint.h); 0 or 1: one */
    lki_row_merger *rows;  /* only in lock step */
    lki_layout     *layout;
    lki_dealing     dealing;
    lki_share       share; /* this rank's virtual workers */
    /* this rank's virtual workers in the order of computation; NULL: ascending */
    uint32_t      *queue;
    lki_effects    effects;
    lki_round_plan rounds; /* used if virtual workers are assigned in rounds */

    lki_running running;
    size_t      state_width; /* elements of running state, whose sums follow the gradients */
    /* elements of a gradient space: gradients, then micro_count x state_width */
    size_t width;

    /* The fields below point into the arena: one copy for all ranks of a host. */
    lk_arena *arena;
    /* the parameters of this host's shard if `parted`, else all */
    float    *params;
    float    *optimizer_state[LK_OPTIMIZER_STATES_MAX]; /* of this host's shard */
    /* The rounded or quantised copy that ranks read if parameters are not gathered
     * (lki_param_span.read_at). */
    unsigned char *read;
    lki_offload    offload;
    /* [leaves]: reports of report_bytes each, ordered by the rank that runs the virtual worker */
    char    *reports;
    size_t   report_bytes;
    size_t   tally_bytes; /* bytes that features have reserved in each tally */
    const lki_durable *durable;
    lki_ledger         ledger;
    /* results that remain from an interrupted step, until they are reduced */
    lki_remains        remains;

    /* The fields below are private to this rank. */
    lki_owned owned;
    size_t   *reported; /* [ranks]: bytes of each rank's reports */
    lki_uses  uses;
    /* [row of lki_feature_table]: the feature's state; NULL: off */
    void     *features[LKI_FEATURES_MAX];

    /* The step in progress, if there is one. */
    uint64_t       step;
    lki_turn_state turn;
    lki_step_state now;
    lki_scraps     scraps;
};

static inline bool lki_step_failed(const lk_parallel *parallel)
{
    return parallel->now.failure.status != LK_OK;
}

/* Returns the object that a call concerns: `parallel` or, if that consists of several objects, the
 * one in use. */
static inline lk_parallel *lki_in_use(const lk_parallel *parallel)
{
    return parallel->replicas != NULL   ? lki_replicas_in_use(parallel->replicas)
           : parallel->versions != NULL ? lki_versions_model(parallel->versions)
                                        : (lk_parallel *)(uintptr_t)parallel;
}

/* Returns the object that a call for one parameter concerns, as lki_in_use().  *param becomes the
 * number of the parameter in that object. */
static inline lk_parallel *lki_in_use_for(const lk_parallel *parallel, uint32_t *param)
{
    return parallel->replicas != NULL ? lki_replicas_in_use_for(parallel->replicas, param)
                                      : lki_in_use(parallel);
}

/* How an object is a part of a larger one. */
typedef struct {
    uint32_t        joint;       /* as in lki_parallel_open_joint() */
    uint32_t        first_param; /* number of its parameter 0, by which values begin */
    const uint32_t *bounds;      /* first virtual worker of each rank, then V; NULL: equal shares.
                                  * Borrowed */
    bool bare; /* has no memory for values and running state, and does not initialise them */
} lki_part;

/* Opens a strategy like lki_parallel_open_joint(), for options without replicas.  Defined in
 * parallel.c. */
LK_NODISCARD lk_status lki_parallel_open_part(lk_parallel **out, lk_comm *comm,
                                              const lk_param *params, uint32_t param_count,
                                              const lk_parallel_options *options,
                                              const lki_part            *part);

/* Computes all initial values.  Collective.  Defined in parallel.c. */
LK_NODISCARD lk_status lki_parallel_initialise(lk_parallel *parallel, uint64_t seed,
                                               uint32_t first_param);

/* Stores a failure for lk_parallel_finish(), because hooks cannot return it. */
static inline void lki_step_keep(lk_parallel *parallel, lk_status status)
{
    if (status != LK_OK && !lki_step_failed(parallel))
        parallel->now.failure = *lk_error_last();
}

/* Returns zeroed memory for the largest parameter or its gradient, allocated once and stored in
 * *at.  Returns NULL if memory is exhausted.  After a failure the current turn runs to its end and
 * its results are discarded.  Other ranks may not have failed yet.  So the turn must not write to
 * the memory of their gradients, nor read buffers into which they still receive. */
float *lki_scrap(const lk_parallel *parallel, float **at);

/* Returns true if there is such a parameter.  Otherwise sets the thread's last error. */
bool lki_has_param(const lk_parallel *parallel, uint32_t param);

/* Returns LK_EINVAL while a step of `parallel`, which may consist of several objects, is under
 * way. */
LK_NODISCARD lk_status lki_check_idle(const lk_parallel *parallel, const char *call);

/* Returns lki_effects.cut in the current step. */
static inline uint32_t lki_cut(const lk_parallel *parallel)
{
    return parallel->step < parallel->effects.cut_from ? 0 : parallel->effects.cut;
}

/* Returns true if the sums of the current step are momenta. */
static inline bool lki_sums_momenta(const lk_parallel *parallel)
{
    return parallel->effects.momenta && lki_cut(parallel) > 0;
}

/* Returns true if this rank updates the host's copy of the span.  On every host one rank does so:
 * the rank with the local number of the span's owner. */
static inline bool lki_tends(const lk_parallel *parallel, const lki_param_span *span)
{
    return parallel->layout->owners[span->owner].local % parallel->locals == parallel->local;
}

/* Returns true if this rank owns the span on its host: the host stores the span, and this rank
 * updates it. */
static inline bool lki_owns(const lk_parallel *parallel, const lki_param_span *span)
{
    return lki_shard_map_has(parallel, parallel->world.host_of[parallel->rank],
                             parallel->layout->owners[span->owner].shard) &&
           lki_tends(parallel, span);
}

/* Returns the offset of a span in the values that its owner's host stores. */
static inline size_t lki_stored_at(const lk_parallel *parallel, const lki_param_span *span)
{
    return span->shard_at + parallel->shard_map.before[parallel->layout->owners[span->owner].shard];
}

/* Returns the parameters of one of this rank's spans.  The span's chunk must be in memory.  Defined
 * in offload/offload.c. */
float *lki_offload_values(const lk_parallel *parallel, size_t span);

/* Returns the address of a span's parameters on its owner's host. */
static inline float *lki_values_of(const lk_parallel *parallel, const lki_param_span *span)
{
    if (parallel->offload.params != NULL)
        return lki_offload_values(parallel, (size_t)(span - parallel->layout->spans));
    return parallel->params + (parallel->parted ? lki_stored_at(parallel, span) : span->at);
}

/* Returns how many buffers a rank needs to compute a share that is a range, in turns of up to
 * `joint` virtual workers. */
uint32_t lki_share_buffers(const lk_parallel *parallel, lki_share share, uint32_t joint);

/* Returns the number of virtual workers that this rank runs in the current step. */
static inline uint32_t lki_turns(const lk_parallel *parallel)
{
    return parallel->remains.there ? parallel->remains.count : parallel->share.count;
}

/* Returns the n-th virtual worker that this rank runs in the current step. */
static inline uint32_t lki_leaf_of_turn(const lk_parallel *parallel, uint32_t n)
{
    if (parallel->remains.there)
        return parallel->remains.leaves[n];
    return parallel->queue != NULL ? parallel->queue[n]
                                   : parallel->share.first + n * parallel->share.stride;
}

/* The quantity whose squares are summed for a span.  LARS uses the first two, LAMB the first three.
 * After the freeze onebit-lamb also uses the last two: the part of a move that is the momentum's,
 * and a largest value, not a sum (optim/lamb.h). */
typedef enum {
    LKI_OF_GRADIENT = 0,
    LKI_OF_VALUES,
    LKI_OF_MOVES,
    LKI_OF_MOMENTUM,
    LKI_OF_LARGEST
} lki_measure;

/* Returns true if the optimizer needs a measure. */
static inline bool lki_measures(const lk_parallel *parallel, lki_measure measure)
{
    return measure <= parallel->norms.last;
}

static inline double *lki_block_sum(const lk_parallel *parallel, const lki_param_span *span,
                                    lki_measure measure)
{
    return &parallel->norms.blocks[span->turn * parallel->norms.measures + measure];
}

static inline lki_report *lki_report_of(const lk_parallel *parallel, uint32_t leaf)
{
    LK_ASSERT(leaf < parallel->leaves);
    size_t place = lki_share_place(&parallel->dealing, leaf);
    return (lki_report *)(void *)(parallel->reports + place * parallel->report_bytes);
}

/* Sets the rules from the options, or from the groups in the options.  Defined in rules.c. */
LK_NODISCARD lk_status lki_rules_open(lk_parallel *parallel, const lk_param *params,
                                      uint32_t param_count, const lk_parallel_options *options);

/* Finds the rules that step `step` of the lost group had, and writes them to *out, which the caller
 * frees.  `failed` is this rank's object of that group, or NULL.  Collective. */
LK_NODISCARD lk_status lki_rules_recall(lk_param_rule **out, const lk_parallel *parallel,
                                        const lk_parallel *failed, uint64_t step);

/* Copies the options.  LK_EINVAL if a list of them or of parameters is missing, or if LK_F16 is
 * used without a decision about the loss scale.  Defined in arguments.c, as the next function. */
LK_NODISCARD lk_status lki_parallel_take(lk_parallel_options *out, const lk_param *params,
                                         uint32_t param_count, const lk_parallel_options *options);

/* Checks options that need no layout. */
LK_NODISCARD lk_status lki_parallel_check(const lk_parallel *parallel,
                                          const lk_parallel_options *options);

/* Computes all fields that need neither memory for values nor other ranks.  parallel->world,
 * parallel->rank and parallel->joint must be set.  Makes turns single if they cannot be joined.
 * Defined in parallel.c. */
LK_NODISCARD lk_status lki_parallel_describe(lk_parallel *parallel, const lk_param *params,
                                             uint32_t                   param_count,
                                             const lk_parallel_options *options);

/* Returns the bytes of the model's arena, after lki_parallel_describe(). */
size_t lki_parallel_arena(lk_parallel *parallel);

/* Returns running state `state`, numbered as in lk_parallel_state_count().  Defined in values.c. */
float *lki_state_data(const lk_parallel *parallel, uint32_t state);

/* Updates the parameters with given sums and the reports that are there.  Collective.  Defined in
 * step.c. */
LK_NODISCARD lk_status lki_step_apply(lk_parallel *parallel, const lki_gradients *sums, double lr,
                                      lk_step_result *result);

/* Does what lki_step_apply() does before it changes the first value.  *out becomes the update of a
 * learning rate of 0.  Defined in step.c. */
LK_NODISCARD lk_status lki_step_measure(lk_parallel *parallel, const lki_gradients *sums,
                                        lk_step_result *result, lk_update *out);

/* A part of an update: the spans [first, end) and, if `running`, the running state. */
typedef struct { size_t first, end; bool running; } lki_part_of_step;

/* Updates a part of the parameters of an object with one rank, with sums that lki_step_measure()
 * has seen.  Defined in step.c. */
LK_NODISCARD lk_status lki_step_update_part(lk_parallel *parallel, const lki_gradients *sums,
                                            const lk_update *how, const lki_part_of_step *part);

/* Completes a step whose sums are complete in the ledger.  Features set their fields of *standing.
 * Collective.  Defined in step.c. */
LK_NODISCARD lk_status lki_step_complete(lk_parallel *parallel, uint64_t step,
                                         const lki_tally *tally, lk_parallel_standing *standing);

/* Returns the address of use `use` of a span in sums or gradients. */
static inline float *lki_gradient_of(const lk_parallel *parallel, const lki_gradients *from,
                                     const lki_param_span *span, uint32_t use)
{
    const lki_layout *layout = parallel->layout;
    return from->gradients + (from->places == NULL
                                  ? lki_layout_grad_at(layout, span, use)
                                  : from->places[lki_layout_piece(layout, span, use)]);
}

static inline bool lki_is_used(const lk_parallel *parallel, uint32_t param)
{
    return parallel->uses.now[param];
}

/* Returns true if no term of a bucket can be used, so that the bucket need not be sent. */
static inline bool lki_is_idle(const lk_parallel *parallel, uint32_t bucket)
{
    const lki_layout *layout = parallel->layout;
    bool              idle   = parallel->uses.fixed;
    for (uint32_t t = 0; idle && t < layout->term_count; t++)
        idle = bucket < layout->first_bucket[t] || bucket > layout->last_bucket[t] ||
               !lki_is_used(parallel, layout->terms[t].param);
    return idle;
}

/* Reserves the next `bytes` of an arena during its layout.  If `base` is NULL, only advances *at.
 * Defined in parallel.c. */
void *lki_carve(char *base, size_t *at, size_t bytes);

/* Lists this rank's spans in parallel->owned.spans.  Defined in parallel.c. */
void lki_own_spans(lk_parallel *parallel);

/* Returns the slices of running state.  Each of the micro_count rows is divided equally between the
 * owners of a host.  The caller frees *out. */
LK_NODISCARD lk_status lki_state_slices(const lk_parallel *parallel, lk_slice **out, size_t *count);

/* Opens the merger of rows; lki_rows_merge() implements lk_parallel_merge_rows().  Defined in
 * rows.c. */
LK_NODISCARD lk_status lki_rows_open(lk_parallel *parallel);
LK_NODISCARD lk_status lki_rows_merge(lk_parallel *parallel, uint32_t width, lki_row_merge merge,
                                      double *rows, double *total);

/* Closes the merger.  Does nothing if the merger was never opened. */
void lki_rows_close(lk_parallel *parallel);

/* Returns the bytes of parallel->read, a copy of the parameters if they are read as bf16 or as
 * blocks of 8 bits.  Defined in reading.c. */
size_t lki_reading_bytes(const lk_parallel *parallel);

/* Converts `values` to the type in which ranks read parameters, and writes them to the span's part
 * of parallel->read, which must not be NULL. */
void lki_reading_put(const lk_parallel *parallel, const lki_param_span *span, const float *values);

/* Returns true if the span's part of parallel->read equals `values`, converted to the type in which
 * ranks read parameters.  parallel->read must not be NULL. */
bool lki_reading_holds(const lk_parallel *parallel, const lki_param_span *span,
                       const float *values);

/* Publishes the new values to all ranks after an update, if parameters are not gathered.
 * Collective. */
LK_NODISCARD lk_status lki_reading_publish(lk_parallel *parallel);

/* Computes right = left + right with all threads, rounded to `rounded` (LK_F32: not rounded).
 * Defined in merge.c. */
void lki_merge(const lk_parallel *parallel, lk_dtype rounded, float *right, const float *left,
               size_t count);

/* Sets `count` elements to zero with all threads. */
void lki_clear(const lk_parallel *parallel, float *at, size_t count);

/* Adds one whole gradient space to another.  Running state is never rounded. */
static inline void lki_merge_spaces(const lk_parallel *parallel, float *right, const float *left)
{
    size_t gradients = parallel->layout->grad_elements;
    lki_merge(parallel, parallel->rounded, right, left, gradients);
    if (parallel->width > gradients)
        lki_merge(parallel, LK_F32, right + gradients, left + gradients,
                  parallel->width - gradients);
}

/* Counts the largest subtrees of [first, first + count) whose virtual workers all run on one
 * host. */
uint32_t lki_count_branches(const lk_parallel *parallel, uint32_t first, uint32_t count,
                            uint32_t host);

/* Compares the model and the options between ranks.  LK_EMISMATCH names the first tensor, or the
 * options, that differ.  Defined in agree.c. */
lk_status lki_verify_same_model(lk_parallel *parallel, const lk_parallel_options *options);

/* Compares over the ranks of `parallel` the models and options of `part`, which each rank has on
 * its own. */
LK_NODISCARD lk_status lki_verify_same_part(const lk_parallel *parallel, const lk_parallel *part,
                                            const lk_parallel_options *options);

/* Compares the values of tensor `name` between ranks; LK_EMISMATCH names the rank that differs. */
lk_status lki_verify_same_values(lk_parallel *parallel, const char *name, const float *values,
                                 size_t count);

/* Writes to this rank's first report what other ranks must have in common with it in this step.
 * Defined in agree.c. */
void lki_step_tell(lk_parallel *parallel);

/* Compares what `rank` told with what rank 0 told.  LK_EMISMATCH says what differs.  Learning rates
 * and rules may differ if the optimizer is the program's own.  Defined in agree.c. */
LK_NODISCARD lk_status lki_step_compare(const lk_parallel *parallel, lki_asked first,
                                        lki_asked other, uint32_t rank);

/* Compares what all ranks have told.  LK_EMISMATCH names two ranks whose calls differ, LK_ECORRUPT
 * two hosts whose parameters do.  Defined in agree.c. */
LK_NODISCARD lk_status lki_step_agree(const lk_parallel *parallel);

/* Returns the step's update with the settings of one parameter.  Defined in update.c. */
lk_update lki_update_of(const lk_parallel *parallel, const lk_update *all, uint32_t param);

/* Updates a span with its sum.  Returns false if attestation finds that the span's values have
 * changed since they were written.  Defined in update.c. */
bool lki_span_update(lk_parallel *parallel, const lk_update *all, size_t index, float *sum);

/* Replaces the sum of a span by the direction in which LAMB moves the values.  Called before
 * lki_span_update(). */
void lki_span_direct(lk_parallel *parallel, const lk_update *all, size_t index, float *sum);

/* Sums the elements of a span's second moment. */
void lki_span_measure_second(lk_parallel *parallel, size_t index);

/* Hashes this rank's spans of parameter `param`, as the baseline of attestation. */
void lki_attest_written(lk_parallel *parallel, uint32_t param);

/* Hashes one span, given by its number in the layout, as the baseline of attestation. */
void lki_attest_span(lk_parallel *parallel, size_t index);

#endif
