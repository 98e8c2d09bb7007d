/* lockstep/replicas.h -- groups of virtual workers with weights of their own: local SGD, DiLoCo,
 * gossip.
 *
 * The virtual workers of a run are divided into R groups of neighbours.  Each group, a replica,
 * has its own weights, optimizer state and running state, and trains them by itself for H steps,
 * the inner steps.  In an outer step the replicas are averaged: the difference between the outer
 * weights and a replica's weights is a gradient, and the outer optimizer applies the mean of these
 * gradients.  Then all replicas continue from the new outer weights, each with its own optimizer
 * state.  With the zero values of this struct the outer weights are the mean of the replicas (local
 * SGD, Stich 2019).  With H = 500 and Nesterov's momentum it is DiLoCo (Douillard et al. 2023,
 * algorithm 1).
 *
 * With a topology there are no outer steps.  Every H steps a mixing sets each replica's weights to
 * the mean of its own and those of its neighbours (D-PSGD, Lian et al. 2017), and mixes its running
 * state in the same way.  All replicas are mixed at once, with the weights after the inner steps.
 * lk_parallel_average() computes outer weights, the mean of all replicas, when they are needed.
 *
 * A replica without samples in a step, as in the short last batch of an epoch, skips the step;
 * its optimizer counts it.
 *
 * Steps before `start` are those of a run without replicas, and all replicas start from the result
 * of the last of them (post-local SGD, Lin et al. 2018).
 *
 * With `delay` outer gradients are those of the replicas `delay` steps before the outer step, and
 * are sent during the steps in between.  Such a step may wait for them at its end, because ranks
 * exchange reports on the same links.  Such replicas have no running state and no compressor.
 *
 * Everything outside a step sees the outer weights: lk_parallel_param(), evaluation, checkpoints.
 * Checkpoints store the values of each replica like those that groups keep
 * (lk_parallel_kept_name()): "weights", and the states of the optimizer by their names.  Running
 * state has functions of its own.  The result depends on R and H, but not on ranks and hosts.
 *
 * A rank has one replica or, with more replicas than ranks, several.  Zero2, zero3 and hybrid need
 * `start` 0.  Not with audit, rebalance, duplicate, backups, hook, noise_decay, scaling, lock_step,
 * survives, offload, gather_dtype LK_I8, LK_OPTIMIZER_NONE, LK_ONEBIT_* and a moving average
 * (lk_optimizer.ema), and LK_UNUSED_ZERO only.
 * comm_dtype is the type of gradients inside replicas.
 */
#ifndef LK_REPLICAS_H
#define LK_REPLICAS_H

#include "lockstep/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lk_parallel lk_parallel;

/* The neighbours of a replica, which are averaged with the same weight.  They are a function of R,
 * the seed of the run, and the number of the mixing. */
typedef enum {
    LK_TOPOLOGY_ALL = 0,     /* all replicas: outer steps */
    LK_TOPOLOGY_RING,        /* the replicas before and behind */
    LK_TOPOLOGY_EXPONENTIAL, /* one replica, which is 1, 2, 4 ... replicas above, from mixing to
                              * mixing, below R, and then 1 again (one-peer exponential graph) */
    LK_TOPOLOGY_PAIRS        /* the other one of a pair, drawn anew for each mixing; with an odd R
                              * one replica is alone */
} lk_replica_topology;

/* See lk_parallel_options.replicas.  Groups of lk_parallel_options.exchange exchange outer
 * gradients; there must be R of them, or 0 for R. */
typedef struct {
    size_t       struct_size; /* LK_REPLICAS_INIT */
    uint32_t     count;       /* R; V / R is a power of two.  0 = V */
    uint64_t     local_steps; /* H: number of inner steps between two outer steps; 0 = 1 */
    uint64_t     start;       /* steps before which there are no replicas (post-local SGD) */
    lk_optimizer optimizer;   /* the outer one; plain sgd with a rate of 1 is the mean */
    double       lr;          /* of the outer optimizer; 0 = 1 */
    lk_dtype     dtype;       /* in which outer gradients are sent, as comm_dtype; LK_F32 (or 0) */
    /* Streaming DiLoCo (Douillard et al. 2025, algorithm 2).  The parameters are divided into
     * fragments of neighbours, of about equal size.  Each has its own outer step every H inner
     * steps; those of fragment f (from 0) are at inner step (f + 1) H / fragments, and so on. */
    uint32_t fragments; /* 0 = 1; divides H */
    uint32_t delay;     /* inner steps from an outer gradient to its outer step, below
                         * H / fragments, in which the gradient is sent */
    double   alpha;     /* 0 <= alpha < 1: an outer step makes a replica's weights w
                         * outer + alpha (w - outer) */
    /* LK_TOPOLOGY_ALL or, with ddp or zero1, the mean, and without `dtype`, fragments and
     * lk_parallel_options.exchange, another one */
    lk_replica_topology topology;
} lk_replicas;

#define LK_REPLICAS_INIT LK_OPTIONS_INIT(lk_replicas)

/* An outer step or, with a topology, a mean of all replicas. */
typedef struct {
    uint64_t number;    /* from 1, of the fragment; 0: the last step of lk_parallel_finish() had no
                         * outer step.  With a topology: of mixings before lk_parallel_average(),
                         * which was called since the last step */
    uint32_t fragment;  /* whose parameters the other fields are about */
    double   grad_norm; /* norm of the mean outer gradient; 0 if the rule is the mean */
    double   drift;     /* root mean square, over replicas, of their distances from the outer
                         * weights when the outer gradients were taken; with a topology, from their
                         * mean */
    uint64_t message_bytes; /* bytes of a replica's outer gradient, in the type or the encoding in
                             * which hosts send it, with running state; 0 with a topology */
} lk_outer_step;

/* Copies the running state of a replica to `values` on every rank, and sets it.  Collective,
 * between steps; values to be set must be equal on all ranks. */
LK_API LK_NODISCARD lk_status lk_parallel_fetch_replica_state(lk_parallel *parallel,
                                                              uint32_t replica, uint32_t state,
                                                              float *values);
LK_API LK_NODISCARD lk_status lk_parallel_load_replica_state(lk_parallel *parallel,
                                                             uint32_t replica, uint32_t state,
                                                             const float *values);

/* Prepares for loading the values of a run that has done `steps` steps.  Needed before values are
 * loaded; collective.  Before the end of step `start` values are those of a run without
 * replicas. */
LK_API LK_NODISCARD lk_status lk_parallel_resume(lk_parallel *parallel, uint64_t steps);

/* Sets the outer weights and their running state to the mean of all replicas, if there is a
 * topology and a step since the last call.  Otherwise does nothing.  To be called before the outer
 * weights are read, as by evaluations and checkpoints.  Collective, between steps. */
LK_API LK_NODISCARD lk_status lk_parallel_average(lk_parallel *parallel);

/* Returns the outer step that the last lk_parallel_finish() included or, with a topology, the mean
 * that lk_parallel_average() has computed since. */
LK_API lk_outer_step lk_parallel_outer_step(const lk_parallel *parallel);

#ifdef __cplusplus
}
#endif
#endif
