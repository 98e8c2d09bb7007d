/* lockstep/train_exchange.h -- the part of a run's configuration that concerns groups of virtual
 * workers: compressed gradients, local steps and federated averaging. */
#ifndef LK_TRAIN_EXCHANGE_H
#define LK_TRAIN_EXCHANGE_H

#include "lockstep/async.h"
#include "lockstep/clients.h"
#include "lockstep/exchange.h"
#include "lockstep/replicas.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The optimizer of outer weights (lockstep/replicas.h): the mean of the replicas, sgd, sgd with
 * Nesterov's momentum, or one of the adaptive optimizers of Reddi et al. (2021): FedAdam,
 * FedAdagrad and FedYogi, without bias correction and with an eps of 1e-3. */
typedef enum { LK_OUTER_MEAN = 0, LK_OUTER_SGD, LK_OUTER_NESTEROV, LK_OUTER_ADAM,
               LK_OUTER_ADAGRAD, LK_OUTER_YOGI } lk_outer;

/* Groups with weights of their own; see lockstep/replicas.h. */
typedef struct {
    uint64_t steps;    /* between two outer steps; 0: 500 with an optimizer, 1 with a topology, else
                        * no replicas */
    uint64_t start;    /* steps before which there are no replicas */
    lk_outer optimizer;
    double   lr;       /* 0 = mean, sgd: 1; nesterov: 0.7; others: 0.01 */
    double   momentum; /* 0 = sgd: none; nesterov: 0.9 */
    lk_dtype dtype;    /* of outer gradients as they are sent */
    uint32_t fragments; /* this and the next two as in lk_replicas */
    uint32_t delay;
    double   alpha;
    lk_replica_topology topology; /* of replicas that are averaged with their neighbours only */
} lk_train_local;

/* Federated averaging (McMahan et al. 2017).  A step of the run is a round, and its virtual workers
 * are the clients of the round.  Each trains from the current weights on its own samples, and the
 * mean of the changes, weighted by samples, is the gradient of the optimizer in `local`. */
typedef struct {
    uint32_t count;    /* M; 0: no clients.  The other fields then have no effect */
    double   fraction; /* of the clients that take part in a round; 0 = 0.1 */
    uint32_t epochs;   /* local epochs; 0 = 1 */
    uint32_t batch;    /* samples of a local step; 0: all of the client */
    lk_split split;
    double   split_by; /* see lk_clients_options.by */
    double   prox_mu;  /* FedProx: weight of the distance from the weights of the round */
    double   dropout;  /* probability that a client stops before its last local step */
    uint64_t most;     /* samples of the largest client; filled in */
} lk_train_clients;

typedef enum {
    LK_ASYNC_OFF = 0,
    LK_ASYNC_VIRTUAL, /* by a simulated schedule */
    LK_ASYNC_LIVE     /* by arrival; needs `record` or `replay` */
} lk_async_mode;

/* Groups that do not wait for each other; see lockstep/async.h. */
typedef struct {
    lk_async_mode mode; /* LK_ASYNC_OFF: the other fields have no effect */
    uint32_t  aggregate; /* this and others as in lk_async */
    uint32_t  staleness; /* 1 + lk_async.staleness; 0: not bounded */
    bool      in_versions; /* this and the next as in lk_async */
    bool      drops_late;
    lk_delays delays;    /* LK_DELAYS_GIVEN: by `trace` or, without it, by the tokens of tasks */
    double    spread;
    const char *trace;   /* a file with times of tasks (docs/asynchronous.md); NULL: none */
    char      trace_hash[17]; /* of the file's content; filled in */
    uint32_t  slow_count;
    uint32_t  slow_group[LK_SLOW_GROUPS_MAX];
    double    slow_factor[LK_SLOW_GROUPS_MAX];
    bool      rate_by_staleness;
    double    compensation;
    const char *record, *replay;
    bool      adaptive; /* lk_async.compensation is adaptive, with a decay of 0.95 */
    lk_consistency consistency; /* this and the next as in lk_async */
    uint32_t  shards;
} lk_train_async;

/* Groups of virtual workers that exchange compressed gradients; see lockstep/exchange.h. */
typedef struct {
    uint32_t       groups;      /* 0: V with a compressor, else no groups */
    const char    *compressor;  /* its name; NULL: gradients are sent whole */
    lk_compression compression; /* struct_size and seed are ignored; the seed is that of the run */
    lk_feedback    feedback;    /* this and the next as in lk_exchange */
    double         momentum;
    bool           nesterov;
    lk_error_scale error_scale;
    double         clip;
    lk_train_local local; /* replicas: `groups` of them, which exchange outer gradients */
    lk_train_clients clients; /* steps are rounds of clients */
    lk_train_async async; /* `groups` of them, which push whole gradients */
    uint64_t       start; /* this and the next as in lk_exchange */
    uint32_t       warmup_count;
    double         warmup[LK_WARMUP_RATIOS_MAX];
    uint64_t       warmup_span; /* 0: the steps of an epoch */
    uint64_t       freeze_step; /* onebit-*: plain steps, after which groups send momenta;
                                 * LK_START_AUTO: until a test, after schedule.warmup */
} lk_train_exchange;

#ifdef __cplusplus
}
#endif
#endif
