/* lockstep/parallel.h -- strategies: keeping one model in step on many workers.
 *
 * A strategy works on parameters alone, so a program with its own hand-written model uses it as
 * the built-in models do ("bring your own gradients"):
 *
 *     lk_parallel_open(&p, comm, params, count, &options);
 *     for each step:
 *         lk_parallel_begin(p, step);
 *         while (lk_parallel_next(p, &turn)) {      // my virtual workers and micro-batches
 *             ... read lk_parallel_param(p, i), add to lk_parallel_grad(p, term) ...
 *             lk_parallel_report(p, loss_sum, sample_count, hits);
 *         }
 *         lk_parallel_finish(p, lr, &result);       // reduce, clip, update
 *
 * The result of a run is a function of the options, the initial values and the gradients of the
 * V virtual workers: never of how many workers `comm` has.
 *
 * Placement: "ddp" keeps one copy of the parameters and of the optimizer's state per host, in an
 * arena; each worker reduces and updates the slices that it owns.  With "zero1" each host has only
 * the part of that state that its workers update.  "zero2" keeps no whole gradients either: virtual
 * workers are dealt in rounds, and when a bucket (whole blocks) of a round is complete its sum goes
 * to who updates that part.  "zero3" is zero2 whose hosts keep parameters in parts, too: a block's
 * are there from lk_parallel_read() on, until others need the room; on one host it is zero2.
 * "single" is the plain reference: one worker, V whole gradients, one recursive sum.
 *
 * Threads: one at a time per lk_parallel.  All calls but the readers are collective.
 */
#ifndef LK_PARALLEL_H
#define LK_PARALLEL_H

#include "lockstep/comm.h"
#include "lockstep/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lk_parallel lk_parallel;

/* Where a gradient term lives in the layout: use `use` of parameter `param`. */
typedef struct {
    uint32_t param, use;
    uint32_t same_block; /* not 0: is made together with the term before it */
} lk_parallel_term;

/* Running state (BatchNorm): see lk_plan_state() in lockstep/nn.h. */
typedef struct {
    const char *name;
    size_t      count;
    float       initial, momentum;
} lk_parallel_state;

/* What becomes of a parameter that no virtual worker uses in a step: one is used by asking for the
 * gradient of a term of it, lk_parallel_grad().  Where some virtual workers use it and others do
 * not, those add nothing, and the mean is over what all have reported. */
typedef enum {
    LK_UNUSED_SKIP = 0, /* it and its optimizer's state stay as they are, without this step */
    LK_UNUSED_ZERO,     /* its gradient is 0, and momentum and weight decay go on; nobody looks */
    LK_UNUSED_STATIC,   /* as SKIP, but what the first step uses every other must, and nothing
                         * else: LK_EINVAL names what does not.  Buckets without any do not travel
                         * with ddp and zero1. */
    LK_UNUSED_REFUSE    /* LK_EINVAL names them, and nothing is updated */
} lk_unused;

/* A bucket of one virtual worker's gradient, complete and not yet added to that of others: the
 * terms of some blocks, one behind the other, zeros between them.  How many buckets there are, and
 * where each begins, depends on bucket_bytes, the strategy and the order in which terms are made;
 * never on workers. */
typedef struct {
    uint64_t step;
    uint32_t virtual_worker;
    uint32_t index, count; /* of the buckets of a gradient, which become complete in any order */
    size_t   elements;
    lk_dtype dtype;        /* of the values: LK_F32 */
    float   *values;       /* to be read and changed until the hook returns */
} lk_bucket;

/* A communication hook: called once for each virtual worker's buckets in a step, by the rank that
 * runs it, before comm_dtype rounds.  What it leaves is summed, so a function of the values and of
 * the virtual worker (not of ranks or time) keeps the bits the same for any workers.  Other than
 * LK_OK ends the run: lk_parallel_finish() returns it, the others' LK_EPEER with the reason. */
typedef lk_status (*lk_bucket_hook)(const lk_bucket *bucket, void *context);

typedef struct {
    const char  *strategy;        /* NULL = "ddp" */
    uint32_t     virtual_workers; /* V, at least the number of workers */
    uint32_t     micro_count;     /* micro-batches per virtual worker and step; 0 = 1 */
    bool         lock_step;       /* a turn is a micro-batch of all virtual workers of a rank */
    size_t       bucket_bytes, first_bucket_bytes; /* 0 = 25 MiB, 1 MiB (at most bucket_bytes) */
    lk_optimizer optimizer;
    double       clip_norm;        /* 0 = none */
    double       clip_value;       /* of each element; 0 = none; not with clip_norm or lars */
    double       noise_decay;      /* of lk_parallel_noise()'s averages; 0 = not wanted */
    lk_loss_scaling scaling;       /* see lk_parallel_loss_scale() */
    lk_unused    unused;
    uint64_t     seed;             /* of the initial values */
    lk_exec     *exec;             /* borrowed; NULL = one thread */
    const lk_parallel_term *terms; /* in backward's order; NULL = params from last to first */
    uint32_t                 term_count;
    const lk_parallel_state *states;
    uint32_t                 state_count;
    const lk_param_group    *groups; /* see lk_param_rules() */
    uint32_t                 group_count;
    /* "zero3": the blocks whose parameters a turn reads, in its order, each by the first of its
     * terms: all once, forward, then as it comes.  NULL = all forward, then all backward. */
    const uint32_t *reads;
    uint32_t        read_count;
    uint32_t        unit_buffers; /* units in memory; 0: one more than a block reads at a time */
    uint32_t        shard_hosts;  /* "hybrid": neighbouring hosts that share a model; 0: 1 */
    lk_dtype gather_dtype;  /* what parameters are read, and gathered, as: LK_F32 (or 0), LK_I8, or
                             * LK_BF16: what may be (lk_param.bf16), where hosts keep shards */
    bool     keep_gathered; /* LK_I8: what came of a unit stays until an update, for other reads */
    bool survives; /* others go on where one dies: lk_parallel_go_on(); needs LK_UNUSED_ZERO */
    bool buddies;  /* with it: pairs of hosts keep each other's part, and either may be lost */
    /* What gradients travel as between hosts, and each virtual worker's and each sum of the tree is
     * rounded to, on one host, too: LK_F32 (or 0), LK_BF16, LK_F16 (give it a loss scale), LK_I8 or
     * LK_I4 (lk_tree_op).  Other bits than without, but the same for any workers and hosts. */
    lk_dtype       comm_dtype;
    /* A directory, where each rank lays what it owns of what `offloaded` says aside in a file that
     * goes with it, compared by hash (LK_ECORRUPT); NULL = in memory.  Not with `survives`. */
    const char    *offload;
    unsigned       offloaded; /* bits of lk_offloaded; 0 = LK_OFFLOADED_STATES */
    lk_bucket_hook hook; /* NULL = none; not with noise_decay, which compares what it changes */
    void          *hook_context;
    /* Audits: the turns of this share of virtual workers, drawn by the seed, are made again by
     * another rank, which lk_parallel_next() asks for after its own, and compared by hash before
     * the update.  If they differ a third rank decides, and LK_ECORRUPT names the odd one on all
     * ranks; with `survives` on that one alone, which is to leave; the others make the step again.
     * 0 = none; takes a gradient of each rank.  Not in lock step, nor with "zero3" over hosts. */
    double audit;
    /* Virtual workers move from slow ranks to fast ones between steps, by what ranks took for
     * theirs: lk_step_result.moved.  With ddp and zero1, not in lock step; else LK_EUNSUPPORTED.
     * With a seed shares are drawn by it, after each step but the first: a test. */
    bool     rebalance;
    uint64_t rebalance_seed;
    /* A rank without work makes virtual workers of late ones of its host, also such as are begun;
     * the first result counts.  With ddp and zero1; not in lock step, with audit or hook.  Takes a
     * gradient of each rank where V is below 2 N, and with survives. */
    bool duplicate;
    /* Backup workers (Chen et al., Revisiting Distributed Synchronous SGD, 2016): of a step only
     * the ranks - backups that are done first count, and the mean is over what they have; the rest
     * is dropped.  Not exact: who is first is a matter of time.  With ddp and zero1 on one host. */
    uint32_t backups;
} lk_parallel_options;

/* The name that a strategy goes by here: "ddp", "zero2" and "zero3" are FSDP's "NO_SHARD",
 * "SHARD_GRAD_OP" and "FULL_SHARD", which options take as well; any other name is as it was. */
LK_API const char *lk_strategy_name(const char *name);

/* Collective.  Verifies that every rank describes the same model and options (LK_EMISMATCH names
 * the first tensor that differs), and gives every parameter its initial values. */
LK_API LK_NODISCARD lk_status lk_parallel_open(lk_parallel **out, lk_comm *comm,
                                               const lk_param *params, uint32_t param_count,
                                               const lk_parallel_options *options);
LK_API void                   lk_parallel_free(lk_parallel *parallel);

/* How this rank's file (options.offload) is accessed: "io_uring, past the page cache"; "": none. */
LK_API const char *lk_parallel_offload_how(const lk_parallel *parallel);

/* ---- What it takes ----------------------------------------------------------------------- */

typedef struct {
    /* Bytes of memory that the workers of a host share, on the host that has the most.  Parameters
     * of "zero3" are what a host keeps of them, and the room for units. */
    size_t params, optimizer, gradients, tables, messages; /* which others sent: at most */
    size_t files, shard; /* in files of a host; FP32 parameters of its own shard, no buddy's */
    /* Bytes that a host sends to others in a step, for the host that sends the most; not counting
     * what ranks send to agree: losses, norms, who has what. */
    uint64_t sent_gradients, sent_params;
} lk_parallel_cost;

/* What lk_parallel_open() and a step would take on hosts of so many workers each; exact.  Allocates
 * no memory for values and asks nobody.  Fails as lk_parallel_open() would; a model may be larger
 * than the machine. */
LK_API LK_NODISCARD lk_status lk_parallel_estimate(lk_parallel_cost *out, const lk_param *params,
                                                   uint32_t param_count,
                                                   const lk_parallel_options *options,
                                                   const uint32_t *host_sizes, uint32_t hosts);

/* Bytes of model states of each of `workers` workers by the ZeRO paper (Rajbhandari et al. 2020,
 * section 5): parameters and gradients of 2 bytes, `state_bytes` bytes a parameter of state (Adam
 * 12, SGD with momentum 8, SGD 4).  Stage 1 shares out that, 2 gradients, too, 3 everything. */
LK_API double lk_zero_paper_bytes(uint32_t stage, double parameters, uint32_t workers,
                                  double state_bytes);

/* What DeepSpeed's estimators of ZeRO-2 and ZeRO-3 say (bytes; they print GiB and write GB).  For
 * stage 3: the largest layer; `created_whole`: without zero.Init every process builds all. */
typedef enum { LK_OFFLOAD_NONE = 0, LK_OFFLOAD_OPTIMIZER, LK_OFFLOAD_ALL } lk_offload;
typedef struct { double cpu, gpu; } lk_deepspeed_bytes; /* of a node, of a GPU */
LK_API lk_deepspeed_bytes lk_deepspeed_estimate(uint32_t stage, lk_offload offload,
                                                bool created_whole, double parameters,
                                                double largest_layer, uint32_t nodes,
                                                uint32_t gpus_of_node);

/* Bytes that a worker sends in a step of FSDP for a model of so many bytes (Zhao et al. 2023,
 * section 3.2.2): fully replicated, fully sharded, and sharded inside hosts of `local` workers, of
 * which only what crosses hosts. */
typedef struct { double replicated, sharded, hybrid; } lk_fsdp_traffic;
LK_API lk_fsdp_traffic lk_fsdp_paper_traffic(double bytes, uint32_t workers, uint32_t local);

/* ---- Values ------------------------------------------------------------------------------ */

/* This step's values, to be fetched each step; with "zero3" over several hosts only while a block
 * that has the parameter is read, else perhaps NULL.  What is read as bf16 (gather_dtype) has the
 * second; where it is NULL the first has it in FP32, and its reader rounds it. */
LK_API const float *lk_parallel_param(const lk_parallel *parallel, uint32_t param);
LK_API const uint16_t *lk_parallel_param_bf16(const lk_parallel *parallel, uint32_t param);
LK_API const float *lk_parallel_state_data(const lk_parallel *parallel, uint32_t state);
/* Running states, and with a moving mean (lk_optimizer.ema) as many again: the mean of each. */
LK_API uint32_t lk_parallel_state_count(const lk_parallel *parallel);

/* Collective: every rank gives the same values, between steps: initial values of your own, or
 * those of a checkpoint.  The ranks' values are compared (LK_EMISMATCH names the tensor).
 * `which`: 0 the parameter, 1 + i the optimizer's state i. */
LK_API LK_NODISCARD lk_status lk_parallel_load(lk_parallel *parallel, uint32_t param,
                                               uint32_t which, const float *values);
LK_API LK_NODISCARD lk_status lk_parallel_load_state(lk_parallel *parallel, uint32_t state,
                                                     const float *values);
/* Reads what lk_parallel_load() writes; valid until the next collective call.  NULL: see fetch. */
LK_API const float *lk_parallel_value(const lk_parallel *parallel, uint32_t param, uint32_t which);
/* Elements [first, first + count) of the same, wherever they are kept, to everybody's `out`.
 * Collective, between steps, where lk_parallel_value() is NULL. */
LK_API LK_NODISCARD lk_status lk_parallel_fetch(lk_parallel *parallel, uint32_t param,
                                                uint32_t which, size_t first, size_t count,
                                                float *out);

/* The virtual workers that this rank runs: first, first + stride, ..., `count` of them. */
LK_API void lk_parallel_share(const lk_parallel *parallel, uint32_t *first, uint32_t *count,
                              uint32_t *stride);
/* With rebalance: the same in the order of their turns, until a step has moved some; else NULL. */
LK_API const uint32_t *lk_parallel_queue(const lk_parallel *parallel);
/* ---- A step ------------------------------------------------------------------------------ */

/* In lock step the turn is that of all virtual workers of my share, of which this is the first. */
typedef struct {
    uint32_t virtual_worker, micro_index;
    bool     again; /* of another rank (audit, duplicate): to be made like any other */
} lk_parallel_turn;

/* Every step is begun once and finished once: anything else is LK_EINVAL and changes nothing. */
LK_API LK_NODISCARD lk_status lk_parallel_begin(lk_parallel *parallel, uint64_t step);
/* The same for a step of so many micro-batches for each virtual worker, on all ranks alike: their
 * gradients add up where they are made and travel once, with the last.  At most the options'
 * micro_count if there is running state, or if that is 1 and the strategy zero2. */
LK_API LK_NODISCARD lk_status lk_parallel_begin_micros(lk_parallel *parallel, uint64_t step,
                                                       uint32_t micro_count);

/* The next micro-batch to compute; false when this rank's part is done (or something failed, or no
 * step was begun: lk_parallel_finish() says so). */
LK_API bool lk_parallel_next(lk_parallel *parallel, lk_parallel_turn *turn);
/* Whether the rest of the turn may be left out: another rank has made it all (duplicate), or the
 * step has all that counts (backups). */
LK_API bool lk_parallel_dropped(lk_parallel *parallel);

/* In lock step: which virtual worker of my share, counted from 0, the calls below are about; the
 * first until it is said. */
LK_API void lk_parallel_choose(lk_parallel *parallel, uint32_t index);

/* Collective, in a turn of lock step: merges `rows` of `width` numbers each, one for each virtual
 * worker of my share, with all others' along the canonical tree.  `rows` is used up; `total` is the
 * same on all ranks.  A failure is kept for lk_parallel_finish(). */
LK_API void lk_parallel_merge_rows(lk_parallel *parallel, uint32_t width,
                                   void (*merge)(uint32_t width, double *left,
                                                 const double *right),
                                   double *rows, double *total);
/* Says that the block whose first term this is reads its parameters from now on, until the next
 * such call.  Only "zero3" over several hosts needs it, and there it is collective: in the order of
 * options.reads in a turn, and of its forward part outside of a step (for an evaluation), where all
 * ranks make as many calls.  A failure is kept for lk_parallel_finish() or lk_parallel_sum(). */
LK_API void lk_parallel_read(lk_parallel *parallel, uint32_t term);

/* Where the current turn adds the sum of its samples' gradients; terms are numbered as in the
 * options.  With "zero2" and one micro-batch to a virtual worker there is room for the terms of two
 * buckets: ask for them in order, just before they are made, and say when they are ready (which
 * lets go of the memory), also of those that you do not use; LK_EINVAL from lk_parallel_finish()
 * where that is not done. */
LK_API float *lk_parallel_grad(lk_parallel *parallel, uint32_t term);
/* The same for who can write a gradient as well as add to one, which saves a pass over memory:
 * where *empty is true the virtual worker has put nothing there yet, there may be anything, and all
 * of the term must be written before the turn's end. */
LK_API float *lk_parallel_grad_new(lk_parallel *parallel, uint32_t term, bool *empty);
LK_API float *lk_parallel_state_sum(lk_parallel *parallel, uint32_t state);

/* Says that the current turn is finished with a term: lets its bucket travel while backward goes
 * on.  Optional: lk_parallel_next() implies it.  If rank 0's first virtual worker says it in
 * another order than the options', buckets are laid out anew in that order, once, after the first
 * step (with ddp, and with zero1 on one host, without survives): no bit depends on that. */
LK_API void lk_parallel_grad_ready(lk_parallel *parallel, uint32_t term);

/* With loss scaling, and a step under way: what the step's gradients are to be multiplied by if the
 * loss is a mean over `count`, the same on all ranks: the scale over the power of two from `count`
 * upwards, for they are of a sum.  lk_parallel_finish() takes it off again.  1 without scaling. */
LK_API float lk_parallel_loss_scale(lk_parallel *parallel, uint64_t count);

/* Where the scale stands, and going on with a checkpoint's: the same on every rank.  How many steps
 * were skipped is to be loaded without scaling, too: optimizers count updates. */
LK_API lk_loss_scaler lk_parallel_scaler(const lk_parallel *parallel);
LK_API void           lk_parallel_load_scaler(lk_parallel *parallel, const lk_loss_scaler *scaler);

/* The gradient noise scale (McCandlish et al. 2018): moving averages over the steps that were made
 * of unbiased estimates of |G|^2, the square of the true gradient, and tr(S), the variance of a
 * sample's, in the unit of the mean gradient.  Each is divided by `weight` to be a mean.  They are
 * made from the gradients of virtual workers and their sum: the same bits for any workers, hosts
 * and strategy.  A step with samples in less than two virtual workers says nothing. */
typedef struct {
    double   square, trace, weight;
    uint64_t steps;
} lk_noise;

/* With noise_decay: so far; and going on with a checkpoint's, the same on every rank. */
LK_API lk_noise lk_parallel_noise(const lk_parallel *parallel);
LK_API void     lk_parallel_load_noise(lk_parallel *parallel, const lk_noise *noise);
/* tr(S) / |G|^2: the batch, in samples, up to which more data parallelism pays well, the critical
 * batch size.  NaN as long as the estimate of |G|^2 is not above 0. */
LK_API double lk_noise_scale(const lk_noise *noise);

/* Moves communication forward: call between blocks.  Optional. */
LK_API void lk_parallel_progress(lk_parallel *parallel);

/* Adds to the current virtual worker's sums: loss, samples, what it is averaged over, hits. */
LK_API void lk_parallel_report(lk_parallel *parallel, double loss_sum, uint64_t samples,
                               uint64_t count, uint64_t hits);

typedef struct {
    double   loss;      /* sum / count, by the canonical tree */
    double   grad_norm; /* of the mean gradient, before clipping */
    uint64_t count, hits;
    bool     skipped; /* by a dynamic loss scale: loss or norm is not finite, nothing was updated */
    uint32_t unused;  /* parameters that nobody used; 0 with LK_UNUSED_ZERO, which does not look */
    double   stalled; /* seconds that this rank has waited for its file: options.offload */
    uint32_t audited; /* virtual workers that were made again, and came out alike */
    uint32_t moved;   /* virtual workers that have another rank from the next step on */
    uint32_t duplicated; /* virtual workers that another rank than theirs has made: duplicate */
    uint32_t dropped; /* virtual workers that did not count: backups */
} lk_step_result;

/* Completes the reduction, checks that loss and norm are finite (LK_ENONFINITE: nothing was
 * updated), clips, updates.  On return the parameters are final on every rank. */
LK_API LK_NODISCARD lk_status lk_parallel_finish(lk_parallel *parallel, double lr,
                                                 lk_step_result *result);
/* Whether somebody used a parameter in the step that was finished last; true with LK_UNUSED_ZERO.
 * The names of all that nobody used, "a, b", or as many as there is room for. */
LK_API bool lk_parallel_is_used(const lk_parallel *parallel, uint32_t param);
LK_API void lk_parallel_unused_names(const lk_parallel *parallel, char *names, size_t bytes);

/* The steps that were not counted for a parameter, and going on with a checkpoint's. */
LK_API uint64_t lk_parallel_missed(const lk_parallel *parallel, uint32_t param);
LK_API void     lk_parallel_load_missed(lk_parallel *parallel, uint32_t param, uint64_t missed);

/* With audits: two results of a virtual worker that were not alike, and so ended the last step.
 * Ranks are named as in the job. */
typedef struct {
    uint64_t step; /* from 1 */
    uint32_t virtual_worker;
    uint32_t ranks[3], count; /* whose it is, and who made it again: `count` of them */
    uint32_t odd;             /* among these; UINT32_MAX: nobody can tell */
    char     what[LK_NAME_MAX + 64]; /* "gradient of 'w'" */
} lk_audit_finding;
LK_API bool lk_parallel_finding(const lk_parallel *parallel, lk_audit_finding *out);

/* Collective: the canonical tree over virtual workers of `width` FP64 sums each.  `mine` has
 * (my share's count, width) rows in order of virtual worker. */
LK_API LK_NODISCARD lk_status lk_parallel_sum(lk_parallel *parallel, const double *mine,
                                              uint32_t width, double *out);

/* ---- After a failure --------------------------------------------------------------------- */

/* Where a run stands that has lost ranks. */
typedef struct {
    uint64_t       steps; /* 1 + the last step that is complete; 0: none has been since it began */
    lk_step_result last;  /* of that step, as lk_parallel_finish() told those who came so far */
    double         loss_scale; /* of that step: lk_parallel_scaler() before it */
    uint32_t       unfinished; /* virtual workers of the next step that have yet to be run */
} lk_parallel_standing;

/* Collective over those whom lk_comm_rebuild() has left, after lk_comm_take_arenas(): goes on with
 * what `failed` has in these arenas, where it was opened with options.survives, by the same
 * parameters and options.  A step whose sums were complete is completed, by whoever is left: every
 * slice is updated once.  One that was not so far has changed nothing, and is made again: *standing
 * tells which is the next.  Of that one ddp and zero1 keep what any rank, also a dead one, has
 * finished of virtual workers, so that lk_parallel_next() gives the ranks only the others.
 * `failed` stays the caller's, to be freed; if this fails with LK_EPEER, as one more was lost, it
 * can be called again with the next group.  NULL: this rank was not in the one before.
 *
 * On several hosts, which may be at different places of the step, where these keep parts of the
 * model as long as each part is on one that has a rank left: else LK_EPEER.  Not in lock step. */
LK_API LK_NODISCARD lk_status lk_parallel_go_on(lk_parallel **out, const lk_parallel *failed,
                                                lk_comm *comm, const lk_param *params,
                                                uint32_t param_count,
                                                const lk_parallel_options *options,
                                                lk_parallel_standing *standing);

/* Whether something is kept of the next step; then which virtual workers this rank runs in it:
 * `count` of those from `first` to `last`.  In the steps after it lk_parallel_share() counts. */
LK_API bool lk_parallel_remainder(const lk_parallel *parallel, uint32_t *first, uint32_t *last,
                                  uint32_t *count);
#ifdef __cplusplus
}
#endif
#endif /* LK_PARALLEL_H */
