/* lockstep/train.h -- the training loop: data, model, strategy, optimizer, checkpoints, log. */
#ifndef LK_TRAIN_H
#define LK_TRAIN_H

#include "lockstep/comm.h"
#include "lockstep/data.h"
#include "lockstep/models.h"
#include "lockstep/optim.h"
#include "lockstep/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Where the time of a step goes ------------------------------------------------------- */

/* X(NAME, text): the parts of a step.  Each moment of the thread that runs the steps is in one. */
#define LK_STEP_PARTS(X)                                                                         \
    X(DATA, "waiting for data")                                                                  \
    X(FORWARD, "forward")                                                                        \
    X(BACKWARD, "backward")                                                                      \
    X(BETWEEN, "between blocks")          /* walking them, starting reductions */                \
    X(MERGE, "clearing and merging")      /* the gradients of virtual workers */                 \
    X(REDUCE, "communication")            /* this rank's part of collectives */                  \
    X(WAIT, "waiting for workers")        /* and, over several hosts, for the network */         \
    X(NORM, "norm")                                                                              \
    X(UPDATE, "optimizer")                /* with the hashes before and after */                 \
    X(CONTROL, "control")                 /* tables, losses, requests to stop */                 \
    X(LOG, "log and trace")                                                                      \
    X(EVALUATE, "evaluation")                                                                    \
    X(CHECKPOINT, "checkpoint")                                                                  \
    X(UNACCOUNTED, "unaccounted")

typedef enum {
#define LK_STEP_ENUM(name, text) LK_STEP_##name,
    LK_STEP_PARTS(LK_STEP_ENUM)
#undef LK_STEP_ENUM
        LK_STEP_PART_COUNT
} lk_step_part;

#define LK_STEP_TYPES_MAX 16

typedef struct lk_train_result lk_train_result;

/* Blocks of one type.  Seconds a step, means over the ranks; operations a step of all ranks. */
typedef struct {
    char     name[32];
    uint32_t blocks;
    double   forward, backward, flops;
} lk_step_blocks;

/* What the measured steps took.  Of steps below a millisecond every other one is taken apart, and
 * only the others count: clocks that are read around each part would be a part of them. */
typedef struct {
    uint64_t       steps, samples, tokens; /* tokens: those with a target; 0 without any */
    double         seconds;                /* rank 0's clock, all that are counted */
    double         median, fastest, slowest; /* seconds of a step */
    double         parts[LK_STEP_PART_COUNT]; /* seconds of one taken apart, means over the ranks */
    double         loading; /* seconds a step of a rank's loader threads, beside it; a mean */
    uint32_t       type_count;
    lk_step_blocks types[LK_STEP_TYPES_MAX];
    double         flops;     /* a step needs them: products, without padding; see lk_block_flops */
    double         peak;      /* operations a second that all threads reach together, of bf16
                               * pairs where values are bf16, else in FP32 */
    uint64_t       pss_bytes; /* of all ranks' processes, after the last step */
    uint64_t       lost;      /* spans that found no room: above 0 the parts are short of them */
} lk_step_report;

/* ---- Training ---------------------------------------------------------------------------- */

/* Which weights are evaluated, or write: by default their moving means, where there are some
 * (lk_optimizer.ema). */
typedef enum { LK_WEIGHTS_DEFAULT = 0, LK_WEIGHTS_MODEL, LK_WEIGHTS_EMA } lk_weights;

/* What says which of two evaluations is better. */
typedef enum { LK_BEST_BY_LOSS = 0, LK_BEST_BY_ACCURACY } lk_best_by;

enum { LK_BEST_MAX = 64 };

/* Whether virtual workers move from slow workers to fast ones: lk_parallel_options.rebalance. */
typedef enum { LK_REBALANCE_DEFAULT = 0, LK_REBALANCE_ON, LK_REBALANCE_OFF } lk_rebalance;
/* Whether idle workers make virtual workers of late ones: lk_parallel_options.duplicate. */
typedef enum { LK_DUPLICATE_OFF = 0, LK_DUPLICATE_AUTO, LK_DUPLICATE_ON } lk_duplicate;

/* Everything that defines a run, and where its files go.  Zero (or NULL) means the default. */
typedef struct {
    const char      *model;         /* "gpt", "resnet", "mlp" */
    lk_model_options model_options; /* the fields that come from data are filled in */

    const char *data;
    double      validation;
    uint64_t    split_seed, seed;
    uint32_t    fold; /* of the validation parts, from 1; 0 = 1 */
    uint32_t    context;      /* tokens: 64 */
    uint32_t    global_batch; /* required */
    uint32_t    micro_batch, virtual_workers;
    bool        drop_last;
    lk_augment  augment;      /* of images */
    lk_order    order;
    const char *weights;      /* a file of them; the order is LK_ORDER_WEIGHTED then */
    const char *loss_weights; /* likewise, of what samples count for in the loss */
    bool        ignores;      /* a target that is `ignored` counts for nothing */
    int64_t     ignored;
    uint32_t    loader_threads; /* of each worker, preparing its micro-batches; 0 = 1 */

    uint32_t    workers, threads; /* on all hosts; of each.  0: min(cores, V); 1 */
    uint32_t    workers_here;     /* 0 = all of them */
    const char *offload; /* lk_parallel_options.offload */
    unsigned    offloaded; /* bits of lk_offloaded; 0 = LK_OFFLOADED_STATES */
    size_t      host_memory; /* bytes that the workers of a host may have between them; 0 = all */
    bool        pin; /* threads stay on cores of their own, if a worker has so many to itself */
    const char *isa, *strategy;
    const char *onednn; /* path of its module: oneDNN multiplies, and nothing is exact; or NULL */
    lk_dtype    precision; /* of values and their gradients: LK_F32 (or 0), LK_BF16, LK_F16 */
    size_t      bucket_bytes, first_bucket_bytes;
    uint32_t    unit_buffers; /* zero3: units in memory; 0 = as in lk_parallel_options */
    uint32_t    shard_hosts;  /* hybrid: neighbouring hosts that share a model; 0 = 1 */
    bool        buddies;      /* as lk_parallel_options.buddies */

    uint64_t     steps; /* steps or epochs, not both */
    double       epochs;
    lk_optimizer optimizer;
    lk_schedule  schedule;      /* .steps is filled in */
    double       warmup_epochs; /* in place of schedule.warmup */
    lk_lr_rule   scale_lr;      /* schedule.lr fits `base_batch` (0 = 256); warmup begins there */
    uint32_t     base_batch;
    double       clip_norm, clip_value; /* 0 = none */
    double       noise_decay;           /* of the gradient noise scale's averages; 0 = none */
    double       audit; /* share of virtual workers that are made twice; see lk_parallel_options */
    lk_rebalance rebalance; /* by default ON with ddp and zero1, not with LK_BATCHNORM_SYNC */
    uint64_t     rebalance_seed; /* see lk_parallel_options */
    lk_duplicate duplicate; /* AUTO: ON where it can be and takes no memory */
    uint32_t     backup_workers; /* lk_parallel_options.backups: nothing is exact then; 0 = none */
    lk_param_group groups[LK_GROUPS_MAX];
    uint32_t       group_count;
    lk_dtype        comm_dtype; /* what gradients travel as; see lk_parallel_options */
    lk_dtype        gather_dtype; /* what parameters are read as: LK_F32 (or 0; in bf16 runs
                                   * what may be is LK_BF16 then), LK_I8; see there */
    bool            keep_gathered;
    lk_bucket_hook  hook; /* (optional) on gradients, see there; on resuming the same again */
    void           *hook_context;
    lk_loss_scaling scaling; /* where either is LK_F16; the default is LK_SCALE_PYTORCH */

    /* Files that rank 0 reads and writes, on its host.  (Data every host reads for itself.) */
    bool        files_elsewhere; /* they are another host's: not to be looked for on this one */
    const char *init;            /* a safetensors file to start from */
    const char *checkpoint;
    uint64_t    checkpoint_every;    /* 0 = only at the end */
    bool        checkpoint_async;    /* all but the last are written while the run goes on */
    uint32_t    keep;                /* 0 = 3 */
    bool    resume, resume_required; /* --resume=auto: resume if there is one; --resume: must be */
    int64_t resume_step;             /* -1 = newest */
    const char *log;
    uint64_t    eval_every; /* 0 = at the end, if there is a validation part */
    lk_weights  eval_weights;

    /* Ends that may come before `steps`, each with an evaluation and a checkpoint as that has; 0 =
     * no such end.  Learning rates go by `steps`. */
    double   max_epochs;
    uint64_t max_samples, max_tokens; /* the step with the last of them is the last */
    uint32_t max_time_ms;           /* since the run was started or resumed, by any rank's clock */
    double (*clock)(void *context); /* (optional) seconds, in place of this machine's clock */
    void    *clock_context;
    uint32_t patience;  /* evaluations in a row without a loss that is below the lowest before */
    double   min_delta; /* them by more than this */

    /* Checkpoints of the best evaluations, which stay beside the newest `keep`. */
    uint32_t   keep_best; /* how many; at most LK_BEST_MAX */
    lk_best_by best_by;

    /* What is written down of its time; see docs/tracing.md. */
    const char     *trace;   /* every rank leaves a part of it, for lk_trace_merge() */
    lk_step_report *report;  /* rank 0's is filled in, of the steps after the first `warm_up` */
    uint64_t        warm_up;

    uint32_t timeout_ms;
    bool     quiet; /* no progress on stderr */

    /* When a rank is lost, the others make the step that it was in, and go on without it, where
     * lk_comm_rebuild() can.  Requests to stop are then the launcher's alone. */
    bool survives;
    uint32_t workers_least; /* with fewer the run saves and ends, as if the others were lost as
                             * well (LK_EPEER); 0: one is enough */

    /* (optional) Is told the result of a run that has come to its end, by one rank, before any of
     * them may leave: if that one is lost, and the others go on, by another, possibly once more.
     * If it cannot take the result, which it says with another status than LK_OK, the run fails. */
    lk_status (*done)(void *context, const lk_train_result *result);
    void     *done_context;

    /* (optional) This process takes the place of one that was lost: lk_train_run() is given no
     * communicator, opens data and model, and then calls this, which waits until the others let
     * it in (lk_join(), lk_enters()). */
    lk_status (*enter)(void *context, lk_comm **out);
    void *enter_context;

    /* (optional) With `survives` each rank asks once a step: true = it leaves when the step is over
     * and the others go on without it; on all of them = as a request to stop. */
    bool (*leave)(void *context);
    void *leave_context;

    /* (optional) Every rank asks once a step: true on any = save and leave (LK_ESTOPPED). */
    bool (*stop)(void *context);
    void *stop_context;
} lk_train_config;

/* "fp32", "bf16" or "fp16": the option's value. */
LK_API const char *lk_precision_name(lk_dtype precision);

/* Fills in what follows from the rest (V, micro-batch, steps, workers), opens data and plans the
 * model once: what can be wrong is said here, before workers start.  Leaves nothing allocated. */
LK_API LK_NODISCARD lk_status lk_train_check(lk_train_config *config);

/* LK_EINVAL, and why, if on `hosts` hosts its strategy cannot do what buddies or audit ask for. */
LK_API LK_NODISCARD lk_status lk_train_check_hosts(const lk_train_config *config, uint32_t hosts);

/* What a run will take, of the host that has the most. */
typedef struct {
    size_t           parameters;  /* elements */
    uint32_t         workers;     /* on that host */
    lk_parallel_cost shared;      /* by the workers of a host; and what a host sends in a step */
    size_t           activations; /* of each worker, with the blocks' scratch memory */
    uint64_t         spilled;     /* bytes of them that each worker has in a file instead */
    size_t           packs;       /* of weights, packed, which workers of a host share */
    size_t           snapshot;    /* what checkpoint_async copies, on the host with the most */
    size_t           program;     /* of each worker: kernels' buffers, data ahead, what any takes */
} lk_train_cost;
LK_API size_t lk_train_cost_bytes(const lk_train_cost *cost); /* in all, without the data */

/* Completes a config as lk_train_check() does; what a run takes whose workers are dealt to `hosts`
 * hosts in equal parts.  The machine may be too small; only data and config->init need be there. */
LK_API LK_NODISCARD lk_status lk_train_estimate(lk_train_config *config, uint32_t hosts,
                                                lk_train_cost *out);

/* LK_EINVAL if that is more than config->host_memory: says what it is, and which strategy would
 * fit.  What workers then take is held to it while they run. */
LK_API LK_NODISCARD lk_status lk_train_fits(const lk_train_config *config, uint32_t hosts);

/* ---- One virtual worker again ------------------------------------------------------------ */

/* Something that is not finite. */
typedef struct {
    uint32_t    block;  /* of the model; backward goes from the last to the first */
    const char *param;  /* whose gradient it is */
    size_t      element, count; /* the first, and how many elements there are */
    float       value;
} lk_replay_odd;

typedef struct {
    uint64_t step;           /* from 1 */
    uint32_t virtual_worker; /* from 0 */

    /* (optional) Told of each gradient in which something is not finite, in backward's order. */
    void (*odd)(void *context, const lk_replay_odd *odd);
    void *context;

    /* What comes out. */
    uint64_t from;         /* steps that were there to begin with: a checkpoint's */
    uint64_t samples, count; /* count: what the loss is a mean over */
    double   loss;
    char     gradient[65]; /* hash, before it is summed, clipped or rounded */
} lk_replay;

/* Makes the turns of one virtual worker of one step again, alone and in this process, with what the
 * newest checkpoint before that step leads to, or, where there is none, the beginning: whoever ran
 * them, on however many workers, has made the same bits.  Nothing is written.  Neither of streams
 * nor of virtual workers in lock step. */
LK_API LK_NODISCARD lk_status lk_train_replay(const lk_train_config *config, lk_replay *replay);

/* ---- Predicting a step ------------------------------------------------------------------- */

/* Buckets complete at the same time: how many, and their part of everything; with stage 3 how often
 * they are gathered in [the first turn of a step, another][forward, backward]. */
typedef struct {
    double buckets, gradients, parameters, forward, backward, gathers[2][2];
} lk_step_piece;

/* All that the time of a step is told from.  Hosts have equal parts of the workers. */
typedef struct {
    uint32_t workers, hosts, virtual_workers, piece_count;
    uint32_t micro_count;       /* micro-batches of a virtual worker; 0 = 1 */
    uint32_t stage;             /* 0: ddp; 1 .. 3: of ZeRO */
    uint32_t shard_hosts;       /* with stage 3: hosts that share a model; 0 = all */
    bool     buddies;           /* neighbouring hosts keep each other's part, too */
    double   forward, backward; /* seconds of a virtual worker */
    double   update;            /* seconds after it: sums inside a host, and the optimizer */
    double   gradient_bytes;    /* of all gradients; a parameter used twice has two */
    double   parameter_bytes;   /* of all parameters; 0 = as many */
    double   bucket_bytes;      /* of gradients that travel at once; 0 = 25 MiB */
    lk_step_piece *pieces;      /* [piece_count] in backward's order; NULL: alike, gathered once */
    double   bandwidth, latency; /* of a host: bytes a second that it sends; a message's seconds */
    double   file_bytes, pass_file_bytes; /* of all who share a model: of an update; of a pass */
    double   file_bandwidth; /* bytes a second, read or written, of a host's files; 0: not known */
} lk_step_model;

typedef struct {
    uint32_t rounds;        /* virtual workers of the worker that has the most */
    double   balance;       /* V / N over that */
    double   sent;          /* bytes of the host that sends the most */
    double   compute;       /* seconds: forward and backward of all rounds */
    double   communication, exposed; /* seconds that the link is in use; and no computing hides */
    double   files, stalled;         /* that a host's files are in use; and the update hides not */
    double   seconds;       /* compute + exposed + update + stalled */
    double   efficiency;    /* what an even share takes where nothing is sent, over `seconds` */
} lk_step_prediction;

/* Communication is counted as the cheapest exact algorithms have it: a host sends (H-1)/H of what
 * is summed, for every subtree of virtual workers that it holds, and as much of sums or parameters;
 * a bucket takes ceil(log2 H) messages one after another each way.  Buckets travel one at a time in
 * the last micro-batch; with stages 2 and 3, if there is but one, two have room.  Stages 1 and 2
 * gather after the update, exposed; 3 in all passes, a bucket during the one before. */
LK_API LK_NODISCARD lk_status lk_step_predict(lk_step_prediction *out, const lk_step_model *model);

/* Reckoning with what a machine does: see lk_step_model.  0: not known. */
typedef struct {
    double flops;            /* operations a second that a worker reaches in a model's products */
    double memory_bandwidth; /* bytes a second of a worker; 0: the update is not counted */
    double bandwidth, latency, file_bandwidth; /* files': 0: what was measured, if it was */
} lk_rates;

/* What a machine takes for the blocks of a model's kind and for its update, measured. */
typedef struct lk_calibration lk_calibration;

/* Completes a config as lk_train_check() does, and measures, some seconds long, with the workers of
 * a host as threads (but no more than this one has cores) of config->threads each: blocks of small
 * models of config->model's kind, updates of several sizes, and a file in config->offload. */
LK_API LK_NODISCARD lk_status lk_calibrate(lk_calibration **out, lk_train_config *config,
                                           uint32_t hosts);
LK_API void                   lk_calibration_free(lk_calibration *calibration);

/* Completes a config as lk_train_check() does, and fills in the model of its step, for
 * lk_step_model_deinit(): with times by `measured`, or, where that is NULL, with rates->flops.
 * *flops (or NULL) becomes what all workers compute in a step, as lk_step_report has it. */
LK_API LK_NODISCARD lk_status lk_train_model_step(lk_step_model *out, double *flops,
                                                  lk_train_config *config, uint32_t hosts,
                                                  const lk_rates *rates,
                                                  const lk_calibration *measured);
LK_API void lk_step_model_deinit(lk_step_model *model);

/* The checkpoints of a run, and in seconds how long it stood still for all, for the one that took
 * longest, and how long the slowest took to be written. */
typedef struct {
    uint64_t written, failed; /* failed: with checkpoint_async, where the run went on */
    double   stalled, longest_stall, longest_write;
} lk_checkpoint_times;

/* What a run leaves. */
struct lk_train_result {
    char     weights[65]; /* the weights hash */
    char     run[65];     /* hash of a run: weights, state, optimizer state, loss_bits */
    uint64_t steps;
    double   loss, validation_loss, validation_accuracy; /* NaN where there is none */
    const char *ended; /* "max-time", "patience" ...: what ended it before its last step; or NULL */
    lk_checkpoint_times checkpoints; /* rank 0's alone */
    uint64_t    audited; /* virtual workers that were made again, and came out alike */
    bool        speaks; /* this rank has the log and the checkpoints: rank 0 of those left */
    bool        left;   /* LK_ESTOPPED: this rank has left, and the others go on */
};

/* Trains, as one rank of `comm` (or NULL, see config->enter), a config that lk_train_check() has
 * completed. */
LK_API LK_NODISCARD lk_status lk_train_run(lk_comm *comm, const lk_train_config *config,
                                           lk_train_result *result);

/* Makes one file of the parts that ranks first .. first + count - 1 of a run with config.trace ==
 * `path` have left beside it, and removes them: Chrome's trace format, which ui.perfetto.dev opens.
 * Parts of ranks that failed or were killed count as far as they go; without any nothing is done.
 * `launcher`: only parts of that process's children; 0 = all.  The file is PATH; where that leaves
 * ranks out, by `first` or `launcher`, it is PATH.host-K for a host K after the first. */
LK_API LK_NODISCARD lk_status lk_trace_merge(const char *path, uint32_t first, uint32_t count,
                                             uint32_t launcher);

/* ---- Sampling ---------------------------------------------------------------------------- */

/* How to continue a text with a trained byte-level gpt. */
typedef struct {
    const char *path;        /* checkpoints' directory, a checkpoint, or a safetensors file */
    const char *prompt;      /* NULL = a line end */
    uint32_t    tokens;      /* how many to generate */
    double      temperature; /* 0 = always the likeliest token */
    uint32_t    top_k;       /* 0 = all tokens */
    uint64_t    seed;
    lk_weights  weights;
    uint32_t    heads;   /* 0 = what the checkpoint says; a safetensors file does not say */
    uint32_t    threads; /* 0 = 1 */
    const char *isa;     /* as in lk_exec_open() */

    /* Receives the prompt and then each new byte. */
    void (*emit)(void *context, const char *bytes, size_t count);
    void *context;
} lk_sample_options;

/* Generates.  Token i is drawn with a number of its own (seed, i), so the text is a function of
 * the weights and the options: not of threads or instruction sets. */
LK_API LK_NODISCARD lk_status lk_sample(const lk_sample_options *options);

#ifdef __cplusplus
}
#endif
#endif /* LK_TRAIN_H */
