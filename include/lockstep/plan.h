/* lockstep/plan.h -- predicts the memory, the traffic and the time of a training run.
 *
 * A plan completes a configuration (lockstep/train.h) as a run would and builds the model without
 * memory for its values.  The strategies then report the memory that they would use
 * (lk_parallel_estimate()).  So the bytes are those of a run, for any size of model and machine.
 *
 * Times come from a model of a step, lk_step_model.  Its inputs are rates of a machine, which are
 * either given or measured on this machine.  docs/plan.md describes how accurate these predictions
 * are.
 *
 * lk_train_plan_make() does this for every strategy and chooses one.  The functions before it are
 * its parts, for programs that need only some of them.
 */
#ifndef LK_PLAN_H
#define LK_PLAN_H

#include "lockstep/train.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Memory ------------------------------------------------------------------------------ */

/* Completes a configuration as lk_train_check() does.  Computes the memory of a run whose workers
 * are divided evenly among `hosts` hosts.  The model may be too large for this machine.  Only the
 * data and config->init must exist. */
LK_API LK_NODISCARD lk_status lk_train_estimate(lk_train_config *config, uint32_t hosts,
                                                lk_train_cost *out);

/* Returns LK_EINVAL if a host needs more than config->host_memory.  The message names the bytes and
 * a strategy that would fit.  A run enforces this limit while its workers run. */
LK_API LK_NODISCARD lk_status lk_train_fits(const lk_train_config *config, uint32_t hosts);

/* ---- Predicting a step ------------------------------------------------------------------- */

/* A group of buckets that complete together.  `buckets` is their number; the other fields are their
 * fractions of the totals.  With stage 3, gathers[t][p] is the number of times that a pass gathers
 * them: t is 0 in the first turn of a step, else 1; p is 0 in forward and 1 in backward. */
typedef struct {
    double buckets, gradients, parameters, forward, backward, gathers[2][2];
} lk_step_piece;

/* The inputs of a prediction.  All hosts have equally many workers. */
typedef struct {
    uint32_t       workers, hosts, virtual_workers, piece_count;
    uint32_t       micro_count;       /* number of micro-batches per virtual worker; 0 = 1 */
    uint32_t       stage;             /* 0: ddp; 1 to 3: the ZeRO stage */
    uint32_t       shard_hosts;       /* with stage 3: hosts that share a model copy; 0 = all */
    bool           buddies;           /* neighbouring hosts hold replicas of each other's shard */
    bool           linear;            /* gradients are sent by LK_TREE_LINEAR, else by direct */
    double         forward, backward; /* seconds per virtual worker */
    double         update;          /* seconds after backward: sums within a host, and optimizer */
    double         gradient_bytes;  /* bytes of all gradients; tied parameters count twice */
    double         parameter_bytes; /* of all parameters; 0 = gradient_bytes */
    double         bucket_bytes;    /* bytes of gradients per bucket; 0 = 25 MiB */
    lk_step_piece *pieces;          /* [piece_count], in backward's order; NULL: equal pieces */
    double         bandwidth, latency;  /* bytes per second and host; seconds per message */
    /* file bytes of all hosts that share a model copy: per update; per pass */
    double file_bytes, pass_file_bytes;
    double file_bandwidth;              /* bytes per second and host; 0: unknown */
} lk_step_model;

typedef struct {
    uint32_t rounds;                 /* largest number of virtual workers of a worker */
    double   balance;                /* V / N divided by rounds */
    double   sent;                   /* bytes sent by the host that sends the most */
    double   compute;                /* seconds: forward and backward of all rounds */
    double   communication, exposed; /* seconds of network use; the part not hidden */
    double   files, stalled;         /* seconds of file use; the part not hidden */
    double   seconds;                /* compute + exposed + update + stalled */
    double   efficiency;             /* ideal time (balanced, no communication) / `seconds` */
} lk_step_prediction;

/* Predicts a step, with the communication of the cheapest exact algorithms.  For every subtree of
 * virtual workers that a host computes, the host sends (H-1)/H of the bytes of the gradients, and
 * as many bytes of sums or parameters.  A bucket takes ceil(log2 H) consecutive messages in each
 * direction.  Buckets are sent one at a time during the last micro-batch.  If there is only one
 * micro-batch, stages 2 and 3 have memory for only two buckets.  Stages 1 and 2 gather parameters
 * after the update, when no computation hides the gathering.  Stage 3 gathers parameters in all
 * passes, one bucket ahead.  With `linear` a host sends the gradients of a subtree whole to each
 * host that needs them, and no sums. */
LK_API LK_NODISCARD lk_status lk_step_predict(lk_step_prediction *out, const lk_step_model *model);

/* The rates of a machine, for lk_step_model.  0 = unknown. */
typedef struct {
    double flops;            /* operations per second and worker in matrix products */
    double memory_bandwidth; /* bytes per second and worker; 0: updates take no time */
    double bandwidth, latency, file_bandwidth; /* file_bandwidth: 0 = the measured rate, if any */
} lk_rates;

/* The times measured on a machine, for blocks of one kind of model and for updates. */
typedef struct lk_calibration lk_calibration;

/* Completes a configuration as lk_train_check() does, and measures this machine for some seconds:
 * blocks of small models of config->model's kind, updates of several sizes, and a file in
 * config->offload.  Runs the workers of one host as threads (at most one per core of this machine),
 * each with config->threads. */
LK_API LK_NODISCARD lk_status lk_calibrate(lk_calibration **out, lk_train_config *config,
                                           uint32_t hosts);
LK_API void                   lk_calibration_free(lk_calibration *calibration);

/* Completes a configuration as lk_train_check() does and fills in the model of its step, which
 * lk_step_model_deinit() frees.  Times come from `measured`, or from rates->flops if `measured` is
 * NULL.  *flops (may be NULL) receives the operations per step of all workers, as in
 * lk_step_report.  LK_EINVAL for a run with replicas. */
LK_API LK_NODISCARD lk_status lk_train_model_step(lk_step_model *out, double *flops,
                                                  lk_train_config *config, uint32_t hosts,
                                                  const lk_rates       *rates,
                                                  const lk_calibration *measured);
LK_API void                   lk_step_model_deinit(lk_step_model *model);

/* ---- Replicas ----------------------------------------------------------------------------- */

/* The inputs of a prediction for a run with replicas (lockstep/replicas.h), after its first
 * `start` steps.  A round has `local_steps` inner steps and an outer step of each fragment. */
typedef struct {
    uint32_t      workers, hosts, virtual_workers; /* of the run */
    lk_step_model inner;  /* an inner step of a replica, of those that take the longest */
    uint32_t      served; /* largest number of replicas of a worker, which it takes in order */
    uint64_t      local_steps;
    uint32_t      fragments, delay; /* as in lk_replicas; fragments: at least 1 */
    /* of all outer steps of a round: bytes that a host sends; number of consecutive messages;
     * seconds of differences, sums within a host, the optimizer and copies */
    double        outer_bytes, outer_messages, outer_update;
} lk_local_model;

typedef struct {
    lk_step_prediction inner, outer; /* an inner step; an outer step, which computes nothing */
    lk_step_prediction mean;         /* a step on average over a round */
} lk_local_prediction;

/* Predicts steps of replicas.  Only the inner steps of `delay` hide the communication of an outer
 * step.  At the end of each step the hosts exchange a short message. */
LK_API LK_NODISCARD lk_status lk_local_predict(lk_local_prediction  *out,
                                               const lk_local_model *model);

/* Completes a configuration with replicas as lk_train_check() does and fills in the model of its
 * steps, as lk_train_model_step() does for other runs.  lk_step_model_deinit(&out->inner) frees it.
 * The time to compress outer gradients is not included. */
LK_API LK_NODISCARD lk_status lk_train_model_local(lk_local_model *out, double *flops,
                                                   lk_train_config *config, uint32_t hosts,
                                                   const lk_rates       *rates,
                                                   const lk_calibration *measured);

/* ---- Comparing strategies ----------------------------------------------------------------- */

enum { LK_PLAN_ROWS_MAX = 8, LK_PLAN_POINTS_MAX = 32 };

typedef struct {
    size_t   struct_size;  /* LK_TRAIN_PLAN_OPTIONS_INIT */
    uint32_t hosts;        /* 0 = 1; the workers are divided evenly among them */
    double   memory;       /* memory of a host in bytes; 0 = no limit */
    bool     measure;      /* take times from lk_calibrate() */
    lk_rates rates;        /* with rates.flops set, times come from `rates` */
    uint32_t most_workers; /* largest number of workers of the points; 0 = 4096 */
    const char *tuning;    /* a file as in lk_comm_options.tuning, which has the latency and the
                            * bandwidth where `rates` has none; or NULL */
} lk_train_plan_options;

#define LK_TRAIN_PLAN_OPTIONS_INIT LK_OPTIONS_INIT(lk_train_plan_options)

/* A strategy that supports the given options. */
typedef struct {
    const char        *strategy;
    lk_train_cost      cost;
    double             bytes; /* lk_train_cost_bytes(&cost) */
    bool               fits;  /* `bytes` is at most options.memory */
    lk_step_model      model; /* `model` and `step` are zero if the step is not timed */
    lk_step_prediction step;
    /* with replicas, if timed; then `model` is zero, and `step` is round.mean */
    lk_local_model      local;
    lk_local_prediction round;
} lk_train_plan_row;

/* A strategy that does not support the given options, although another strategy does. */
typedef struct {
    const char *strategy;
    char        why[512];
} lk_train_plan_refusal;

/* The chosen strategy with another number of workers, but equally many per host. */
typedef struct {
    uint32_t           workers, hosts;
    bool               dealt; /* V >= workers, so the fields of `same` are valid */
    lk_step_prediction each;  /* every worker computes as much as in the plan */
    lk_step_prediction same;  /* all workers together compute the plan's batch */
} lk_train_plan_point;

typedef struct {
    lk_train_plan_row     rows[LK_PLAN_ROWS_MAX];
    uint32_t              row_count, chosen; /* chosen: index of a row; row_count if none fits */
    char                  why[256];          /* the reason for that choice */
    lk_train_plan_refusal refused[LK_PLAN_ROWS_MAX];
    uint32_t              refused_count;
    lk_train_plan_row     whole; /* with replicas: ddp without them; else zero */
    lk_async_forecast     async; /* of asynchronous training; else zero */
    /* rates were given or measured, and nothing is compressed but outer gradients */
    bool                  timed;
    double                flops;                      /* operations per step; if timed */
    /* 1, 2, 4 ... workers; if timed, without replicas */
    lk_train_plan_point   points[LK_PLAN_POINTS_MAX];
    uint32_t              point_count;
    double                alone; /* seconds per step of the same batch on one worker */
} lk_train_plan;

/* Completes a configuration as lk_train_check() does.  Plans config->strategy or, if that is NULL,
 * all strategies that support the options.  Among the strategies that fit, chooses the one with the
 * shortest step, or without times the one that sends the fewest bytes.  The points use one host
 * unless rates.bandwidth is given.  Fails if no strategy is possible.  The caller frees the plan
 * with lk_train_plan_deinit(), also after a failure. */
LK_API LK_NODISCARD lk_status lk_train_plan_make(lk_train_plan *out, lk_train_config *config,
                                                 const lk_train_plan_options *options);
LK_API void                   lk_train_plan_deinit(lk_train_plan *plan);

#ifdef __cplusplus
}
#endif
#endif /* LK_PLAN_H */
