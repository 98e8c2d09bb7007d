/* lockstep/train.h -- the training loop: data, model, strategy, optimizer, checkpoints, log. */
#ifndef LK_TRAIN_H
#define LK_TRAIN_H

#include "lockstep/comm.h"
#include "lockstep/data.h"
#include "lockstep/models.h"
#include "lockstep/optim.h"
#include "lockstep/parallel.h"
#include "lockstep/train_exchange.h"
#include "lockstep/trained.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Timing of a step -------------------------------------------------------------------- */

/* X(NAME, text): the parts of a step.  At any time the thread that runs the steps is in exactly one
 * part. */
#define LK_STEP_PARTS(X)                                                                         \
    X(DATA, "waiting for data")                                                                  \
    X(FORWARD, "forward")                                                                        \
    X(BACKWARD, "backward")                                                                      \
    X(BETWEEN, "between blocks")          /* loop overhead, starting reductions */               \
    X(MERGE, "clearing and merging")      /* gradients of virtual workers */                     \
    X(REDUCE, "communication")            /* this rank's work in collectives */                  \
    X(WAIT, "waiting for workers")        /* with several hosts: also the network */              \
    X(NORM, "norm")                                                                              \
    X(UPDATE, "optimizer")                /* with parameter hashes */                            \
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

/* The blocks of one type.  Seconds are per step and the mean of ranks.  Flops are per step and the
 * sum over ranks. */
typedef struct {
    char     name[32];
    uint32_t blocks;
    double   forward, backward, flops;
} lk_step_blocks;

/* Measurements of the steps of a run.  If steps take less than a millisecond, only every second
 * step is timed in parts.  The clock calls slow such a step down, so `seconds` counts only the
 * other steps. */
typedef struct {
    uint64_t       steps, samples, tokens; /* tokens: those with a target; 0: no text data */
    double         seconds;                /* sum over the counted steps, by rank 0's clock */
    double         median, fastest, slowest; /* seconds per step */
    double         parts[LK_STEP_PART_COUNT]; /* seconds of a step timed in parts, mean of ranks */
    double         loading; /* seconds per step and rank in loader threads; mean */
    uint32_t       type_count;
    lk_step_blocks types[LK_STEP_TYPES_MAX];
    double         flops;     /* per step, in matrix products, without padding (lk_block_flops) */
    double         peak;      /* operations per second of all threads together, of bf16 pairs if
                               * values are bf16, else of FP32 */
    uint64_t       pss_bytes; /* memory (PSS) of all ranks' processes after the last step */
    uint64_t       lost;      /* trace intervals dropped for lack of space; 0: complete */
} lk_step_report;

/* ---- Training ---------------------------------------------------------------------------- */

/* The criterion that ranks evaluations (keep_best). */
typedef enum { LK_BEST_BY_LOSS = 0, LK_BEST_BY_ACCURACY } lk_best_by;

enum { LK_BEST_MAX = 64 };

/* Moving virtual workers from slow to fast workers; see lk_parallel_options.rebalance. */
typedef enum { LK_REBALANCE_DEFAULT = 0, LK_REBALANCE_ON, LK_REBALANCE_OFF } lk_rebalance;
/* Speculative execution by idle workers; see lk_parallel_options.duplicate. */
typedef enum { LK_DUPLICATE_OFF = 0, LK_DUPLICATE_AUTO, LK_DUPLICATE_ON } lk_duplicate;

/* The data of a run, and how samples are drawn from them. */
typedef struct {
    const char *source;     /* such as "text:FILE"; see docs/data.md */
    double      validation; /* fraction kept for validation */
    uint64_t    split_seed;
    uint32_t    fold;    /* number of the validation part, from 1; 0 = 1 */
    lk_augment  augment; /* augmentation of images */
    lk_order    order;
    const char *weights;      /* a file of sampling weights; sets LK_ORDER_WEIGHTED */
    const char *loss_weights; /* a file of weights of samples in the loss */
    const char *normalize;    /* lk_dataset_options.normalize; NULL: "auto" */
    bool        ignores;      /* targets equal to `ignored` do not count in the loss */
    int64_t     ignored;
    uint32_t    loader_threads; /* per worker, to prepare micro-batches; 0 = 1 */
    const char *tokenizer;      /* a tokenizer.json, for text; NULL: text is bytes */
    const char *target;         /* columns of a table; see lk_dataset_options */
} lk_train_data;

/* Checkpoints of a run, on the host of rank 0.  Those of the best evaluations are kept, too. */
typedef struct {
    const char *folder;
    uint64_t    every;     /* steps between checkpoints; 0 = only at the end */
    bool        async;     /* writes checkpoints in the background, except the last */
    uint32_t    keep;      /* number of newest checkpoints kept; 0 = 3 */
    uint32_t    keep_best; /* number of best checkpoints kept, at most LK_BEST_MAX */
    lk_best_by  best_by;
    bool        resume, resume_required; /* --resume=auto sets resume only, --resume sets both */
    int64_t     resume_step;             /* step of the checkpoint; -1 = newest */
    bool        changed_data; /* resumes with other data than the checkpoint's */
    bool        same_bits;    /* resumes only with the rules and the precision of the checkpoint,
                               * though a run may change them */
} lk_train_checkpoint;

/* Limits that may end a run before its last step.  The run then does its final evaluation and
 * checkpoint.  0 = no limit.  The learning rate schedule still follows all steps. */
typedef struct {
    double   epochs;
    uint64_t samples, tokens;       /* the step that reaches a limit is the last one */
    uint32_t time_ms;               /* since the start or resume, by the clock of any rank */
    double (*clock)(void *context); /* (optional) returns seconds; replaces this machine's clock */
    void    *clock_context;
    uint32_t patience;  /* ends after this many evaluations in a row without improvement */
    double   min_delta; /* an improvement lowers the best loss by more than this */
} lk_train_limits;

/* Reactions to slow and lost workers. */
typedef struct {
    lk_rebalance rebalance;      /* default: ON with ddp and zero1, except with LK_BATCHNORM_SYNC */
    uint64_t     rebalance_seed; /* see lk_parallel_options */
    lk_duplicate duplicate;      /* AUTO: ON where supported and without extra memory */
    uint32_t     backup_workers; /* lk_parallel_options.backups (timed); 0 = none */

    /* After the loss of a rank, the other ranks repeat its step and continue without it, if
     * lk_comm_rebuild() supports that.  Requests to stop then go only to the launcher. */
    bool     survives;
    uint32_t workers_least; /* a run with fewer workers saves and ends (LK_EPEER); 0 = 1 */
} lk_train_elastic;

/* Properties of the terminal of stderr, for the progress of a run. */
typedef enum {
    LK_TERMINAL_COLOR   = 1, /* it has colours, and they are wanted */
    LK_TERMINAL_UNICODE = 2, /* it shows UTF-8 */
    LK_TERMINAL_DUMB    = 4, /* it cannot redraw a line: progress is in plain lines */
} lk_terminal;

/* Files that rank 0 writes besides the log, and its terminal. */
typedef struct {
    const char *tensorboard; /* a directory for event files, which TensorBoard reads */
    const char *metrics;     /* a file for OpenMetrics text, replaced every second */
    unsigned    terminal;    /* bits of lk_terminal: what the terminal of stderr can show */
    bool        log_has_reader; /* the log, if it is a pipe, had a reader: the run waits for none,
                                 * and goes on without the log if that reader has ended */
} lk_train_outputs;

/* Functions of the caller that a run calls.  All are optional. */
typedef struct {
    /* Receives the result of a completed run, on one rank, before any rank leaves.  If that rank is
     * lost and the other ranks continue, another rank calls the function again.  Any status but
     * LK_OK fails the run. */
    lk_status (*done)(void *context, const lk_train_result *result);
    void *done_context;

    /* Set in a process that replaces a lost one.  lk_train_run() then gets no communicator.  It
     * opens data and model and calls this function.  The function waits until the running job
     * admits the process (lk_join(), lk_enters()), and returns the communicator. */
    lk_status (*enter)(void *context, lk_comm **out);
    void *enter_context;

    /* Polled by each rank once per step if `elastic.survives` is set.  If it returns true, this
     * rank leaves after the step and the other ranks continue.  True on all ranks is a request to
     * stop. */
    bool (*leave)(void *context);
    void *leave_context;

    /* Polled by every rank once per step.  If it returns true on any rank, the run saves and ends
     * (LK_ESTOPPED). */
    bool (*stop)(void *context);
    void *stop_context;

    lk_bucket_hook hook; /* (optional) lk_parallel_options.hook; must not change on resume */
    void          *hook_context;

    /* Called on rank 0 before the first step, when no other run can use the files of this one: the
     * checkpoint directory, which is there, and the log.  A program may keep a record of the run
     * there.  If ranks are lost before the first step, the function may be called again.  Not
     * called if all steps have been made before.  lk_checkpoint_goes_back() is true until it
     * returns, if the run goes back to an earlier checkpoint. */
    void (*begun)(void *context);
    void *begun_context;
} lk_train_calls;

/* The configuration of a run, including the paths of its files.  Zero or NULL selects the
 * default. */
typedef struct {
    size_t           struct_size;   /* LK_TRAIN_CONFIG_INIT */
    const char      *model;         /* "gpt", "llama", "resnet", "mlp" */
    lk_model_options model_options; /* fields that describe the data are filled in; its
                                     * struct_size is ignored */

    lk_train_data data;
    uint64_t      seed;
    uint32_t      context;      /* number of tokens per sample; 0 = 64 */
    uint32_t      global_batch; /* required */
    uint32_t      micro_batch, virtual_workers;
    bool          drop_last;

    uint32_t    workers; /* on all hosts; 0 = min(lk_allowance.cores / threads, V) */
    uint32_t    threads; /* of a worker; 0 = 1 */
    uint32_t    workers_here;     /* workers on this host; 0 = `workers` */
    const char *offload; /* see lk_parallel_options.offload */
    unsigned    offloaded; /* bits of lk_offloaded; 0 = LK_OFFLOADED_STATES */
    size_t      host_memory; /* limit in bytes for all workers of a host; 0 = none */
    bool        pin; /* pins threads to cores if each worker has enough cores of its own */
    const char *isa, *strategy;
    const char *onednn; /* path of a oneDNN module for products (timed); or NULL */
    lk_dtype    precision; /* of activations and their gradients: LK_F32 (or 0), LK_BF16, LK_F16 */
    size_t      bucket_bytes, first_bucket_bytes;
    uint32_t    unit_buffers; /* zero3: number of unit buffers; 0 = lk_parallel_options' default */
    uint32_t    shard_hosts;  /* hybrid: hosts that share one copy of the model; 0 = 1 */
    bool        buddies;      /* see lk_parallel_options.buddies */

    uint64_t        steps; /* set either steps or epochs */
    double          epochs;
    lk_train_limits limits;
    lk_optimizer    optimizer;
    lk_schedule     schedule;      /* .steps is filled in */
    double          warmup_epochs; /* replaces schedule.warmup */
    lk_lr_rule      scale_lr;      /* scales schedule.lr; warmup then starts at the unscaled rate */
    uint32_t        base_batch;    /* the batch size that schedule.lr is given for; 0 = 256 */
    double          clip_norm, clip_value; /* 0 = none */
    double          noise_decay;           /* decay rate for the gradient noise scale; 0 = none */
    double          audit; /* fraction of virtual workers to audit; see lk_parallel_options */
    lk_param_group  groups[LK_GROUPS_MAX];
    uint32_t        group_count;
    lk_dtype        comm_dtype;   /* see lk_parallel_options.comm_dtype */
    lk_tree_algorithm grad_algorithm; /* see lk_parallel_options.grad_algorithm */
    lk_dtype        gather_dtype; /* see lk_parallel_options.gather_dtype; bf16 runs: LK_BF16 */
    bool            keep_gathered;
    lk_train_exchange exchange;
    lk_loss_scaling scaling; /* for LK_F16, where the default rule is LK_SCALE_PYTORCH */

    /* Files that rank 0 reads and writes on its host.  (Training data are read by every host.) */
    bool files_elsewhere;     /* rank 0 is on another host; this host does not check the
                               * files */
    const char         *init; /* initial weights: a safetensors file or a Hugging Face folder */
    lk_train_checkpoint checkpoint;
    const char         *log;
    lk_train_outputs    outputs;
    uint64_t            eval_every; /* 0 = at the end, if there are validation data */
    lk_weights          eval_weights;

    /* Traces and timing; see docs/tracing.md. */
    const char     *trace;  /* every rank writes a part; lk_trace_merge() merges them */
    lk_step_report *report; /* filled in by rank 0; leaves out the first `warm_up` steps */
    uint64_t        warm_up;
    bool            quiet; /* no progress on stderr */

    uint32_t         timeout_ms;
    lk_train_elastic elastic;
    lk_train_calls   calls;
} lk_train_config;

#define LK_TRAIN_CONFIG_INIT LK_OPTIONS_INIT(lk_train_config)

/* Returns "fp32", "bf16" or "fp16", as in --precision. */
LK_API const char *lk_precision_name(lk_dtype precision);

/* Writes each rule that is not at its default: a comma, then the name of the rule's option and the
 * value, such as ", grad-comm-dtype bf16". */
LK_API void lk_train_rules(const lk_train_config *config, char *text, size_t bytes);

/* Returns the label of a run with this configuration, and writes it with the rules that cause it,
 * such as "exact", "invariant (grad-comm-dtype int8)" or "timed (backup-workers 1)". */
LK_API lk_label lk_train_label(const lk_train_config *config, char *text, size_t bytes);

/* Fills in derived fields (V, micro-batch, steps, workers).  Opens the data and plans the model
 * once, so that errors are reported before workers start.  Allocates nothing that outlives the
 * call. */
LK_API LK_NODISCARD lk_status lk_train_check(lk_train_config *config);

/* Returns LK_EINVAL, with the reason in the message, if `hosts` hosts do not support the configured
 * buddies, audit or asynchronous training. */
LK_API LK_NODISCARD lk_status lk_train_check_hosts(const lk_train_config *config, uint32_t hosts);

/* ---- Replaying one virtual worker -------------------------------------------------------- */

/* A gradient that contains values that are not finite. */
typedef struct {
    uint32_t    block;  /* index in the model; backward starts with the last */
    const char *param;  /* name of the gradient's parameter */
    size_t      element, count; /* index of the first such value; number of such values */
    float       value;
} lk_replay_odd;

typedef struct {
    uint64_t step;           /* counted from 1 */
    uint32_t virtual_worker; /* counted from 0 */

    /* (optional) Called for each gradient with a value that is not finite, in the order of
     * backward. */
    void (*odd)(void *context, const lk_replay_odd *odd);
    /* (optional) Returns true if the validation part is to be evaluated after a step, for the
     * log. */
    bool (*evaluates)(void *context, uint64_t step);
    void *context;
    bool  whole; /* all virtual workers compute the step, too, after which `weights` are hashed */

    /* (optional) An empty file for a log of what is replayed, in the form of lk_train_config.log:
     * the first line, the steps that all virtual workers have computed, evaluations and, if
     * `whole`, a last line with the hashes after the step. */
    const char *log;
    /* (optional) The content hash of the data with which the run has made the step, if it has made
     * others with other data.  It must be that of `data.source`; checkpoints may have others. */
    const char *data;

    /* Results. */
    uint64_t from;         /* step of the checkpoint where the replay started */
    uint64_t samples, count; /* count: the divisor of the mean loss */
    double   loss;
    char     gradient[65]; /* hash of the gradient before summing, clipping and rounding */
    char     weights[65];  /* of the model after the step; "" = not `whole`, or not finite */
} lk_replay;

/* Recomputes the turns of one virtual worker in one step, in this process and without other
 * workers.  Starts from the newest checkpoint before that step, or else from the beginning.  The
 * bits are those of the run, whichever worker computed the virtual worker there.  Writes no files
 * besides `log`.  Does not support streams or virtual workers in lock step. */
LK_API LK_NODISCARD lk_status lk_train_replay(const lk_train_config *config, lk_replay *replay);

/* Compares two recorded configurations, each the JSON text of "config" in the first line of a log.
 * Returns LK_EINVAL, with the first option that differs in the message, if a run of the second
 * could not continue one of the first or, with `exact`, if their steps have other bits; LK_EFORMAT
 * if a text is no JSON object. */
LK_API LK_NODISCARD lk_status lk_train_compare(const char *stored, const char *mine, bool exact);

/* ---- Running ------------------------------------------------------------------------------ */

/* The checkpoints of a run; times in seconds.  `stalled` is the total time for which checkpoints
 * stopped the run, longest_stall the longest such stop, and longest_write the longest write. */
typedef struct {
    uint64_t written, failed; /* failed: with checkpoint_async; the run continued */
    double   stalled, longest_stall, longest_write;
} lk_checkpoint_times;

/* The result of a run. */
struct lk_train_result {
    char     weights[65]; /* the weights hash */
    char     run[65];     /* hash of weights, running state, optimizer state and losses */
    uint64_t steps;
    /* NaN: not computed */
    double loss, validation_loss, validation_accuracy, validation_rmse, validation_mae;
    const char *ended; /* the limit that ended the run early, such as "max-time"; or NULL */
    lk_checkpoint_times checkpoints; /* filled in on rank 0 only */
    uint64_t    audited; /* number of virtual workers computed twice, with equal results */
    bool        speaks; /* this is the lowest remaining rank, which writes log and checkpoints */
    bool        left;   /* with LK_ESTOPPED: this rank has left and other ranks continue */
};

/* Trains as one rank of `comm`, which is NULL if config->calls.enter is set.  lk_train_check() must
 * have completed the configuration; otherwise the run is refused with LK_EINVAL.  A rank that fails
 * calls lk_comm_abort(), so the caller need not. */
LK_API LK_NODISCARD lk_status lk_train_run(lk_comm *comm, const lk_train_config *config,
                                           lk_train_result *result);

/* Merges the trace parts that ranks first .. first + count - 1 have written in a run with
 * config.trace == `path`, and removes the parts.  The result is one file in Chrome's trace format,
 * for ui.perfetto.dev.  Parts of failed or killed ranks are used up to where they end.  Leaves out
 * parts that another run is writing.  Does nothing if there are no parts.  `launcher`: the pid of a
 * launcher, to use only the parts of its children and threads; 0 = all parts.  The file is `path`,
 * with one exception.  If `first` or `launcher` is not 0 and the first part is from a host K > 0,
 * the file is PATH.host-K. */
LK_API LK_NODISCARD lk_status lk_trace_merge(const char *path, uint32_t first, uint32_t count,
                                             uint32_t launcher);

/* ---- Memory ------------------------------------------------------------------------------ */

/* The memory that a run needs on the host that needs the most; sizes in bytes. */
typedef struct {
    size_t           parameters;  /* number of elements */
    uint32_t         workers;     /* number of workers on that host */
    lk_parallel_cost shared;      /* memory shared by a host's workers, and bytes sent per step */
    size_t           activations; /* bytes per worker, including scratch memory of the blocks */
    uint64_t         spilled;     /* bytes of activations that each worker stores in a file */
    size_t           packs;       /* packed weights, shared by the workers of a host */
    size_t           frozen;      /* frozen parameters, shared by the workers of a host */
    size_t           snapshot;    /* copy that checkpoint_async takes; of the largest host */
    size_t           program;     /* per worker: buffers and fixed overhead */
} lk_train_cost;
LK_API size_t lk_train_cost_bytes(const lk_train_cost *cost); /* the total, without the data */

#ifdef __cplusplus
}
#endif
#include "lockstep/export.h"
#endif /* LK_TRAIN_H */
