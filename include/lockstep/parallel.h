/* lockstep/parallel.h -- strategies, which keep one model equal on many workers.
 *
 * A strategy only needs parameters and gradients, so a program with a hand-written model can use it
 * like the built-in models ("bring your own gradients"):
 *
 *     lk_parallel_open(&p, comm, params, count, &options);
 *     for each step:
 *         lk_parallel_begin(p, step);
 *         while (lk_parallel_next(p, &turn)) {      // my virtual workers and micro-batches
 *             ... read lk_parallel_param(p, i), add to lk_parallel_grad(p, 0, term) ...
 *             lk_parallel_report(p, 0, loss_sum, samples, count, hits);
 *         }
 *         lk_parallel_finish(p, lr, &result);       // reduce, clip, update
 *
 * The result of a run depends only on the options, the initial values and the gradients of the V
 * virtual workers.  The number of workers in `comm` does not change it.
 *
 * Placement: "ddp" stores one copy of the parameters and of the optimizer's state per host, in an
 * arena.  Each worker reduces and updates the slices that it owns.  With "zero1" each host stores
 * only the optimizer state that its workers update.  "zero2" also shards the gradients.  Virtual
 * workers are assigned in rounds, and a bucket consists of whole blocks.  When a bucket of a round
 * is complete, its sum is sent to the owners.  "zero3" is zero2 with sharded parameters: a block's
 * parameters are available from lk_parallel_read() until their buffer is reused.  On one host zero3
 * equals zero2.  "single" is the plain reference: one worker, V whole gradients, one recursive sum.
 *
 * Threads: one at a time per lk_parallel.  All calls but those that only read are collective.
 * Errors:  a call without a status that is made outside of a turn, or for something that does not
 *          exist, fails the step: lk_parallel_finish() or lk_parallel_begin() returns LK_EINVAL.
 */
#ifndef LK_PARALLEL_H
#define LK_PARALLEL_H

#include "lockstep/async.h"
#include "lockstep/comm.h"
#include "lockstep/exchange.h"
#include "lockstep/replicas.h"
#include "lockstep/shared_vector.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The gradient term of use `use` of parameter `param`. */
typedef struct {
    uint32_t param, use;
    uint32_t same_block; /* not 0: computed together with the previous term */
} lk_parallel_term;

/* Running state (BatchNorm): see lk_plan_state() in lockstep/nn.h. */
typedef struct {
    const char *name;
    size_t      count;
    float       initial, momentum;
} lk_parallel_state;

/* The treatment of a parameter that no virtual worker uses in a step.  A virtual worker uses a
 * parameter when it calls lk_parallel_grad() for a term of the parameter.  If only some virtual
 * workers use the parameter, all other virtual workers add nothing to its gradient, and the mean is
 * over all samples that were reported. */
typedef enum {
    LK_UNUSED_SKIP = 0, /* neither the parameter nor its optimizer state changes */
    LK_UNUSED_ZERO,     /* the gradient is 0; momentum and weight decay apply */
    LK_UNUSED_STATIC,   /* as SKIP, but every step must use the same parameters as the first:
                         * LK_EINVAL names violations.  ddp and zero1 do not send unused buckets */
    LK_UNUSED_REFUSE    /* LK_EINVAL names the parameters, and no parameter is updated */
} lk_unused;

/* A complete bucket of one virtual worker's gradient, before other gradients are added.  It holds
 * the terms of some blocks in order, with zeros between terms.  Buckets depend on bucket_bytes, the
 * strategy and the order in which terms are computed, but not on workers. */
typedef struct {
    uint64_t step;
    uint32_t virtual_worker;
    uint32_t index, count; /* the bucket's number, and the number of buckets */
    size_t   elements;
    lk_dtype dtype;        /* of the values: LK_F32 */
    float   *values;       /* may be read and changed until the hook returns */
} lk_bucket;

/* A communication hook.  The rank that computes a virtual worker calls it once for each bucket of
 * each step, before comm_dtype rounds the bucket.  The values that the hook leaves are summed, so
 * they must depend only on the old values and the virtual worker, not on ranks or time.  A status
 * other than LK_OK ends the run: lk_parallel_finish() returns the status on this rank and LK_EPEER
 * with the reason on the other ranks. */
typedef lk_status (*lk_bucket_hook)(const lk_bucket *bucket, void *context);

typedef struct {
    size_t       struct_size;      /* LK_PARALLEL_OPTIONS_INIT */
    const char  *strategy;        /* NULL = "ddp" */
    uint32_t     virtual_workers; /* V, at least the number of workers */
    uint32_t     micro_count;     /* number of micro-batches per virtual worker and step; 0 = 1 */
    bool         lock_step;       /* a turn is one micro-batch of all virtual workers of a rank */
    size_t       bucket_bytes, first_bucket_bytes; /* 0 = 25 MiB, 1 MiB (at most bucket_bytes) */
    lk_optimizer optimizer;
    double       clip_norm;        /* 0 = none */
    double       clip_value;       /* limit of each element; 0 = none; not with clip_norm or lars */
    double       noise_decay;      /* decay of lk_parallel_noise()'s averages; 0 = not computed */
    lk_loss_scaling scaling;       /* see lk_parallel_loss_scale() */
    lk_unused    unused;
    uint64_t     seed;             /* of the initial values */
    lk_exec     *exec;             /* borrowed; NULL = one thread */
    const lk_parallel_term  *terms;   /* order of backward; NULL = params from last to first */
    uint32_t                 term_count;
    const lk_parallel_state *states;
    uint32_t                 state_count;
    const lk_param_group    *groups; /* see lk_param_rules() */
    uint32_t                 group_count;
    /* For "zero3": the blocks whose parameters a turn reads, in order.  A block is given by its
     * first term.  The forward pass reads each block once; later reads may be in any order.  NULL =
     * all blocks forward, then all backward. */
    const uint32_t *reads;
    uint32_t        read_count;
    uint32_t        unit_buffers; /* units in memory; 0 = one more than a block reads at once */
    uint32_t        shard_hosts;  /* "hybrid": neighbouring hosts that store a model copy; 0 = 1 */
    lk_dtype gather_dtype;  /* type in which parameters are gathered and read: LK_F32 (or 0), LK_I8,
                             * or LK_BF16 (for parameters with lk_param.bf16, if hosts store
                             * shards) */
    bool     keep_gathered; /* with LK_I8, gathered units stay in memory until the update */
    bool survives; /* survivors of a failure can call lk_parallel_go_on(); needs LK_UNUSED_ZERO */
    bool buddies;  /* with survives: hosts of a pair store each other's shard; one may be lost */
    /* The type in which gradients are sent between hosts: LK_F32 (or 0), LK_BF16, LK_F16 (needs a
     * scaling.rule other than LK_SCALE_AUTO), LK_I8 or LK_I4 (lk_tree_op).  Every virtual worker's
     * gradient and every sum of the tree is rounded to this type, even on one host.  So results are
     * equal, bit for bit, for any number of workers and hosts. */
    lk_dtype       comm_dtype;
    /* The directory for the `offloaded` memory; NULL = memory is not offloaded.  Each rank stores
     * its part in an unnamed file, verified by hash (LK_ECORRUPT).  Not with `survives`. */
    const char    *offload;
    unsigned       offloaded; /* bits of lk_offloaded; 0 = LK_OFFLOADED_STATES */
    lk_bucket_hook hook; /* NULL = none; cannot be combined with noise_decay */
    void          *hook_context;
    /* The fraction of virtual workers to audit, drawn by seed; 0 = none.  Another rank repeats the
     * turns of an audited virtual worker; lk_parallel_next() returns them after that rank's own
     * turns.  Hashes of the gradients are compared before the update.  If they differ, a third rank
     * decides, and LK_ECORRUPT names the rank at fault on all ranks.  With `survives` only that
     * rank fails and must leave; the other ranks repeat the step.  An audit needs memory for one
     * gradient per rank.  Not in lock step, nor with "zero3" over several hosts. */
    double   audit;
    uint64_t audit_steps; /* audits only this many steps after opening; 0 = all */
    /* Moves virtual workers from slow ranks to fast ranks between steps, by measured times.
     * lk_step_result.moved counts them.  LK_EUNSUPPORTED in lock step or with strategies other than
     * ddp and zero1.  For tests, rebalance_seed draws random shares after each step but step 0. */
    bool     rebalance;
    uint64_t rebalance_seed;
    /* Speculative execution: an idle rank repeats virtual workers of slow ranks of its host, even
     * those in progress, and the first result counts.  Only with ddp and zero1; not in lock step,
     * with audit or with a hook.  If V < 2 N or with `survives`, it stores a gradient per rank. */
    bool   duplicate;
    double duplicate_seconds; /* virtual workers that take less time are not repeated */
    /* Backup workers (Chen et al. 2016): each step counts only the first (ranks - backups) ranks to
     * finish, averages over their samples and drops other results.  So the result depends on time.
     * Only with ddp and zero1, on one host. */
    uint32_t backups;
    const lk_param_rule *rules; /* of each parameter; NULL = as `groups` say.  Copied */
    /* In a turn the caller adds to each term and state sum at most once: a complete, rounded value.
     * Then the second of two virtual workers can add to the memory of the first. */
    bool adds_once;
    const lk_exchange *exchange; /* groups that exchange compressed gradients; NULL = none */
    const lk_replicas *replicas; /* groups with weights of their own; NULL = none */
    const lk_async    *async;    /* groups that do not wait for each other; NULL = synchronous */
    lk_tree_algorithm  grad_algorithm; /* of gradients between hosts; the bits are the same */
} lk_parallel_options;

#define LK_PARALLEL_OPTIONS_INIT LK_OPTIONS_INIT(lk_parallel_options)

/* Translates FSDP's names "NO_SHARD", "SHARD_GRAD_OP" and "FULL_SHARD" to "ddp", "zero2" and
 * "zero3".  Returns any other name unchanged.  Options also accept FSDP's names. */
LK_API const char *lk_strategy_name(const char *name);

/* Opens a strategy and initializes every parameter.  Collective.  Verifies that all ranks describe
 * the same model and options (LK_EMISMATCH names the first tensor that differs). */
LK_API LK_NODISCARD lk_status lk_parallel_open(lk_parallel **out, lk_comm *comm,
                                               const lk_param *params, uint32_t param_count,
                                               const lk_parallel_options *options);
LK_API void                   lk_parallel_free(lk_parallel *parallel);
/* Returns how offload files are accessed ("io_uring, past the page cache"); "" without one. */
LK_API const char *lk_parallel_offload_how(const lk_parallel *parallel);

/* Replaces the rules of all parameters, from the next step on.  Not collective, between steps.  All
 * ranks must set equal rules before the same step.  Copies `rules`. */
LK_API LK_NODISCARD lk_status lk_parallel_set_rules(lk_parallel *parallel,
                                                    const lk_param_rule *rules);

/* ---- Estimates --------------------------------------------------------------------------- */

typedef struct {
    /* Bytes of memory that the workers of a host share: the maximum over all hosts.  With "zero3"
     * `params` counts the host's shard and the unit buffers. */
    size_t params, optimizer, gradients, tables, messages; /* messages: maximum received */
    size_t files, shard; /* bytes in files; bytes of the host's own FP32 parameter shard */
    /* bytes that the busiest host sends in a step, except tables; _before: lk_exchange.start */
    uint64_t sent_gradients, sent_params, sent_before;
    uint64_t sent_outer; /* in H steps of replicas for outer steps; 1 / H is counted above, too */
} lk_parallel_cost;

/* Computes the exact cost of lk_parallel_open() and of a step on `hosts` hosts with host_sizes[]
 * workers, without communicating.  Fails like lk_parallel_open(), except for lack of memory. */
LK_API LK_NODISCARD lk_status lk_parallel_estimate(lk_parallel_cost *out, const lk_param *params,
                                                   uint32_t param_count,
                                                   const lk_parallel_options *options,
                                                   const uint32_t *host_sizes, uint32_t hosts);

/* ---- Values ------------------------------------------------------------------------------ */

/* Returns a parameter's values.  The address is valid for one step.  With "zero3" over several
 * hosts it is valid only while a block with the parameter is read, and may otherwise be NULL. */
LK_API const float *lk_parallel_param(const lk_parallel *parallel, uint32_t param);
/* Returns a parameter's bf16 values (gather_dtype); NULL: the reader rounds the FP32 values. */
LK_API const uint16_t *lk_parallel_param_bf16(const lk_parallel *parallel, uint32_t param);
LK_API const float *lk_parallel_state_data(const lk_parallel *parallel, uint32_t state);
/* Returns the number of running states, counting moving averages (lk_optimizer.ema). */
LK_API uint32_t lk_parallel_state_count(const lk_parallel *parallel);

/* Sets a parameter (`which` 0) or its optimizer state i (`which` 1 + i) between steps.  Collective.
 * Values must be equal on all ranks; LK_EMISMATCH names a tensor that differs. */
LK_API LK_NODISCARD lk_status lk_parallel_load(lk_parallel *parallel, uint32_t param,
                                               uint32_t which, const float *values);
LK_API LK_NODISCARD lk_status lk_parallel_load_state(lk_parallel *parallel, uint32_t state,
                                                     const float *values);
/* Returns current values, valid until the next collective call; NULL: use lk_parallel_fetch(). */
LK_API const float *lk_parallel_value(const lk_parallel *parallel, uint32_t param, uint32_t which);
/* Copies elements [first, first + count) of a parameter or state to `out` on every rank, from any
 * host or file.  Collective, between steps.  Needed only if lk_parallel_value() returns NULL. */
LK_API LK_NODISCARD lk_status lk_parallel_fetch(lk_parallel *parallel, uint32_t param,
                                                uint32_t which, size_t first, size_t count,
                                                float *out);

/* Returns this rank's `count` virtual workers: `first`, `first + stride`, and so on. */
LK_API void lk_parallel_share(const lk_parallel *parallel, uint32_t *first, uint32_t *count,
                              uint32_t *stride);
/* Returns this rank's virtual workers in the order of their turns; NULL without `rebalance`. */
LK_API const uint32_t *lk_parallel_queue(const lk_parallel *parallel);

/* ---- A step ------------------------------------------------------------------------------ */

/* A turn.  In lock step it covers all virtual workers of this rank; virtual_worker is the first.
 * Below, `index` numbers the virtual workers of a turn from 0; it is 0 without lock step. */
typedef struct {
    uint32_t virtual_worker, micro_index;
    bool     again; /* the turn is another rank's (audit, duplicate); compute it like any other */
    uint64_t step;  /* whose samples the turn uses; with `async` maybe not that of this step */
} lk_parallel_turn;

/* Begins a step.  Beginning or finishing a step twice fails with LK_EINVAL. */
LK_API LK_NODISCARD lk_status lk_parallel_begin(lk_parallel *parallel, uint64_t step);
/* Begins a step of `micro_count` micro-batches per virtual worker, equal on all ranks.  Their
 * gradients are accumulated locally and sent once.  `micro_count` must not exceed
 * options.micro_count with running state, or if that is 1 with zero2 or adds_once. */
LK_API LK_NODISCARD lk_status lk_parallel_begin_micros(lk_parallel *parallel, uint64_t step,
                                                       uint32_t micro_count);

/* Fills `turn` with the next micro-batch to compute.  Returns false when this rank has none left,
 * after a failure, or if no step was begun.  lk_parallel_finish() then reports the reason. */
LK_API bool lk_parallel_next(lk_parallel *parallel, lk_parallel_turn *turn);
/* Returns true if the rest of the turn may be skipped: another rank has computed the same virtual
 * worker (duplicate), or the step is complete without this rank (backups). */
LK_API bool lk_parallel_dropped(lk_parallel *parallel);
/* Merges rows of `width` numbers from all virtual workers along the canonical tree.  `rows` has one
 * row for each virtual worker of this rank and is overwritten; `total` is equal on all ranks.
 * Collective, within a turn in lock step.  lk_parallel_finish() reports a failure. */
LK_API void lk_parallel_merge_rows(lk_parallel *parallel, uint32_t width,
                                   void (*merge)(uint32_t width, double *left,
                                                 const double *right),
                                   double *rows, double *total);
/* Announces that the block whose first term is `term` reads its parameters from now until the next
 * call.  Needed only with "zero3" over several hosts, where the call is collective.  A turn reads
 * blocks in the order of options.reads.  An evaluation outside a step reads them in the order of
 * the forward part of options.reads, equally often on all ranks.  Returns false after a failure,
 * when the values are undefined; lk_parallel_finish() or lk_parallel_sum() reports it. */
LK_API bool lk_parallel_read(lk_parallel *parallel, uint32_t term);

/* Returns the memory to which a virtual worker must add the gradient of a term, numbered as in the
 * options.  With "zero2" and one micro-batch per virtual worker there is memory for the terms of
 * only two buckets.  So request each term just before computing it, in order, and report each term
 * as ready, even an unused one.  Otherwise lk_parallel_finish() returns LK_EINVAL. */
LK_API float *lk_parallel_grad(lk_parallel *parallel, uint32_t index, uint32_t term);
/* Acts as lk_parallel_grad() for a caller that can also overwrite the memory, which saves a pass.
 * If *empty is set to true, the contents are undefined and the turn must write the whole term. */
LK_API float *lk_parallel_grad_new(lk_parallel *parallel, uint32_t index, uint32_t term,
                                   bool *empty);
LK_API float *lk_parallel_state_sum(lk_parallel *parallel, uint32_t index, uint32_t state);

/* Reports that a virtual worker has finished a term, so that its bucket can be sent during the
 * backward pass.  Advances communication.  Optional: lk_parallel_next() implies it.  If rank 0
 * finishes terms at first in another order than the options', buckets are laid out in that order
 * after the first step (ddp, and zero1 on one host, without survives). */
LK_API void lk_parallel_grad_ready(lk_parallel *parallel, uint32_t index, uint32_t term);

/* Returns the factor for the gradients of a sum of losses: the loss scale divided by the smallest
 * power of two that is at least `count`, the divisor of the mean loss, which is equal on all ranks;
 * or 1 without scaling.  lk_parallel_finish() removes the factor. */
LK_API float lk_parallel_loss_scale(lk_parallel *parallel, uint64_t count);
/* Returns the state of the loss scale.  lk_parallel_load_scaler() restores it from a checkpoint on
 * every rank, even without scaling, because optimizers do not count skipped steps. */
LK_API lk_loss_scaler lk_parallel_scaler(const lk_parallel *parallel);
LK_API void           lk_parallel_load_scaler(lk_parallel *parallel, const lk_loss_scaler *scaler);

/* The gradient noise scale (McCandlish et al. 2018): moving averages over steps of two unbiased
 * estimates, in units of the mean gradient.  `square` estimates |G|^2, the square of the true
 * gradient, and `trace` tr(S), the variance of one sample's gradient.  Divide each by `weight` to
 * get the mean.  The bits are equal for any workers, hosts and strategy.  A step with samples in
 * fewer than two virtual workers is not counted. */
typedef struct {
    double   square, trace, weight;
    uint64_t steps;
} lk_noise;

/* Returns the averages so far (noise_decay), which a resumed run must load on every rank. */
LK_API lk_noise lk_parallel_noise(const lk_parallel *parallel);
LK_API void     lk_parallel_load_noise(lk_parallel *parallel, const lk_noise *noise);
/* Returns tr(S) / |G|^2, the critical batch size in samples: larger batches gain little.  Returns
 * NaN while the estimate of |G|^2 is not positive. */
LK_API double lk_noise_scale(const lk_noise *noise);

/* Advances communication, as lk_parallel_grad_ready() does.  Optional; call it between blocks. */
LK_API void lk_parallel_progress(lk_parallel *parallel);
/* Adds to the sums of a virtual worker of the turn.  `count` is the divisor of the mean loss. */
LK_API void lk_parallel_report(lk_parallel *parallel, uint32_t index, double loss_sum,
                               uint64_t samples, uint64_t count, uint64_t hits);

typedef struct {
    double   loss, square; /* sums / count, by the canonical tree; square: of clients' changes */
    double   grad_norm; /* norm of the mean gradient before clipping */
    uint64_t count, hits;
    bool     skipped; /* loss or norm was not finite: no update, and a smaller loss scale */
    uint32_t unused;  /* number of parameters that no rank used; 0 with LK_UNUSED_ZERO */
    double   stalled; /* seconds that this rank waited for its offload file */
    uint32_t audited; /* number of virtual workers that were repeated with equal results */
    uint32_t moved;   /* number of virtual workers that moved to other ranks (rebalance) */
    uint32_t duplicated; /* number of virtual workers that another rank computed (duplicate) */
    uint32_t dropped; /* number of virtual workers that were not counted (backups) */
} lk_step_result;

/* Completes the reduction, checks that loss and norm are finite, clips, and updates.  On return the
 * parameters are final on every rank.  With LK_ENONFINITE nothing was updated.  LK_EMISMATCH if
 * ranks differ in step, lr, rules or counts of the loss scale, LK_EINVAL if lr is not finite. */
LK_API LK_NODISCARD lk_status lk_parallel_finish(lk_parallel *parallel, double lr,
                                                 lk_step_result *result);
/* Returns true if any rank used the parameter in the last finished step, or if LK_UNUSED_ZERO. */
LK_API bool lk_parallel_is_used(const lk_parallel *parallel, uint32_t param);
/* Writes the names of unused parameters, "a, b", as many as fit. */
LK_API void lk_parallel_unused_names(const lk_parallel *parallel, char *names, size_t bytes);

/* Returns the number of steps in which a parameter was not updated.  A resumed run must load it. */
LK_API uint64_t lk_parallel_missed(const lk_parallel *parallel, uint32_t param);
LK_API void     lk_parallel_load_missed(lk_parallel *parallel, uint32_t param, uint64_t missed);
/* The finding of an audit that ended the last step: a virtual worker with two different results.
 * Ranks are numbered as in the job. */
typedef struct {
    uint64_t step; /* counted from 1 */
    uint32_t virtual_worker;
    uint32_t ranks[3], count; /* its own rank, followed by the ranks that repeated it */
    uint32_t odd;             /* the rank whose result differs; UINT32_MAX: undecided */
    char     what[LK_NAME_MAX + 64]; /* "gradient of 'w'" */
} lk_audit_finding;
LK_API bool lk_parallel_finding(const lk_parallel *parallel, lk_audit_finding *out);

/* Sums `width` FP64 values per virtual worker along the canonical tree.  Collective, between steps.
 * `mine` has one row of `width` values for each virtual worker of this rank, in order. */
LK_API LK_NODISCARD lk_status lk_parallel_sum(lk_parallel *parallel, const double *mine,
                                              uint32_t width, double *out);

/* ---- After a failure --------------------------------------------------------------------- */

/* The position of a run that has lost ranks. */
typedef struct {
    uint64_t       steps; /* 1 + the last complete step; 0: none since the run began */
    lk_step_result last;  /* the result of that step, as lk_parallel_finish() returned it */
    double         loss_scale; /* the loss scale of that step, before its update */
    uint32_t       unfinished; /* virtual workers of the next step that must still be computed */
} lk_parallel_standing;

/* Continues from the arenas of `failed`, which was opened with options.survives and with equal
 * parameters and options.  `failed` is NULL if this rank was not in the previous group.  Collective
 * over the group of lk_comm_rebuild(), after lk_comm_take_arenas().
 *
 * If all sums of the failed step were complete, the survivors complete its update: every slice is
 * updated once.  Otherwise no value has changed, and step standing->steps is repeated.  ddp and
 * zero1 without groups then reuse all virtual workers that any rank, even a dead one, has finished,
 * and lk_parallel_next() returns only the others.  A completed update has the rules of its step.
 * The next step has the rules of `options` unless lk_parallel_set_rules() is called again.
 *
 * The caller still owns `failed` and must free it.  LK_EPEER means that one more rank was lost:
 * call this again with the next group.  Hosts may be at different positions of the step.  With
 * sharding, it also means that no host with a part of the model survived.  Not in lock step. */
LK_API LK_NODISCARD lk_status lk_parallel_go_on(lk_parallel **out, const lk_parallel *failed,
                                                lk_comm *comm, const lk_param *params,
                                                uint32_t param_count,
                                                const lk_parallel_options *options,
                                                lk_parallel_standing *standing);

/* Returns true if results of the next step were kept.  This rank then runs `count` virtual workers
 * of that step, from `first` to `last`.  lk_parallel_share() is valid again after that step. */
LK_API bool lk_parallel_remainder(const lk_parallel *parallel, uint32_t *first, uint32_t *last,
                                  uint32_t *count);

#ifdef __cplusplus
}
#endif
#endif
