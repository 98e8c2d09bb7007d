/* parallel/replicas/internal.h -- the state of replicas, for the files of this folder. */
#ifndef LKI_PARALLEL_REPLICAS_INTERNAL_H
#define LKI_PARALLEL_REPLICAS_INTERNAL_H

#include "parallel/replicas.h"
#include "parallel/state.h"

/* A replica of this rank. */
typedef struct {
    lk_parallel *model;
    lk_error     failure; /* of its last step */
    double       square;  /* of its distance from the outer weights when they were compared last */
    /* [elements of the largest fragment]: the weights that were compared last with the outer
     * weights.  NULL: they are still those of `model`, or another rank gives them. */
    float       *sent;
} lki_replica;

/* Neighbouring parameters, which have outer steps of their own. */
typedef struct {
    uint32_t     first, count; /* of its parameters */
    lk_parallel *outer;        /* the outer weights, whose virtual workers are the replicas */
} lki_fragment;

/* A range of `count` ranks, which have a replica. */
typedef struct {
    uint32_t first, count;
} lki_seats;

/* The state of replicas that average with their neighbours only. */
typedef struct lki_gossip lki_gossip; /* gossip.c */

/* A report of a rank on one of its replicas, after a step. */
typedef struct lki_replica_report lki_replica_report; /* step.c */

struct lki_replicas {
    lk_replicas   options;
    lk_exchange   exchange; /* of outer gradients, if there is one */
    uint32_t      width;  /* virtual workers of a replica */
    uint32_t      leaves; /* virtual workers of `outer` for each replica */
    uint32_t     *bounds, *outer_bounds; /* [N + 1]: of parallel->dealing and outer->dealing */
    lk_parallel  *whole;  /* trains until step `start`; then NULL */
    lki_fragment *fragments;     /* [options.fragments] */
    uint32_t      pending;       /* the fragment whose outer gradients are being sent;
                                  * options.fragments: none */
    bool          mean;   /* the outer weights become the mean of the replicas */
    uint64_t      seed;   /* of the run */
    lki_gossip   *gossip;   /* NULL: no topology, or a single replica */
    uint64_t      mixings;  /* of the run, before the last step's end; 0: no step yet */
    bool          averaged; /* with a topology: the outer weights are the mean of the replicas */
    uint32_t      first, served; /* the replicas of this rank */
    lk_comm      *comm;          /* of the ranks that have them */
    lki_replica  *of;            /* [served] */
    uint32_t      turn;          /* index of the replica that computes; `served`: none does */
    lki_replica_report *reports; /* [N + 1][most]: of all ranks in the last step, then own ones */
    uint32_t            most;    /* largest number of replicas of a rank */
    lki_rank_time      *times;   /* [N]: of the last step */
    lk_outer_step       last;
    size_t              largest; /* elements of the largest parameter */
    float              *scratch; /* [largest] */
    uint32_t            param_count;
};

/* Returns the ranks, of `ranks` in all, that have a replica. */
lki_seats lki_replica_seats(const lki_replicas *replicas, uint32_t replica, uint32_t ranks);

/* Reads and checks the options; fills in `options`, `width` and `leaves`. */
LK_NODISCARD lk_status lki_replicas_read(lki_replicas *replicas, const lk_parallel_options *options,
                                         uint32_t ranks);

/* Writes the first virtual worker of each rank, if a replica has `width` virtual workers, and then
 * the number of all: bounds[ranks + 1], zeroed. */
void lki_replicas_deal(const lki_replicas *replicas, uint32_t width, uint32_t ranks,
                       uint32_t *bounds);

/* Returns the options of the outer weights of a fragment, which borrow `states`, room for those of
 * `options`. */
lk_parallel_options lki_replicas_outer(const lki_replicas *replicas, uint32_t fragment,
                                       const lk_parallel_options *options,
                                       lk_parallel_state *states);

/* Returns the options of a replica. */
lk_parallel_options lki_replicas_inner(const lki_replicas        *replicas,
                                       const lk_parallel_options *options);

/* Returns this rank's object of a replica; NULL if the rank does not have it. */
lk_parallel *lki_replica_here(const lki_replicas *replicas, uint32_t replica);

/* ---- Fragments (fragments.c) ------------------------------------------------------------- */

/* Divides the parameters: fills in `first` and `count` of all fragments. */
LK_NODISCARD lk_status lki_fragments_divide(lki_replicas *replicas, const lk_param *params,
                                            uint32_t param_count);

/* Returns the fragment of a parameter. */
lki_fragment *lki_fragment_of(const lki_replicas *replicas, uint32_t param);

/* Returns the object that has the running state: that of the last fragment. */
lk_parallel *lki_fragment_of_states(const lki_replicas *replicas);

/* Returns the fragment whose outer gradients are those after `done` inner steps; `fragments` if
 * there is none. */
uint32_t lki_fragment_due(const lk_replicas *options, uint64_t done);

/* Returns the fragment whose outer gradients are being sent after `done` inner steps; `fragments`
 * if there is none. */
uint32_t lki_fragment_pending(const lk_replicas *options, uint64_t done);

/* ---- Outer steps (outer.c) --------------------------------------------------------------- */

/* Begins and completes the outer steps that are due after `done` inner steps. */
LK_NODISCARD lk_status lki_outer_steps(lk_parallel *parallel, uint64_t done);

/* Begins the outer step of fragment replicas->pending again, with lki_replica.sent. */
LK_NODISCARD lk_status lki_outer_resume(lk_parallel *parallel);

/* Sets the outer weights to the mean of the replicas, which keep theirs.  For replicas with a
 * topology. */
LK_NODISCARD lk_status lki_outer_mean(lk_parallel *parallel);

/* Gives the weights and the states of `whole` to all replicas, and frees it.  Defined in
 * start.c. */
LK_NODISCARD lk_status lki_replicas_start(lk_parallel *parallel);

/* Allocates lki_replicas.reports.  Defined in step.c. */
LK_NODISCARD lk_status lki_replicas_open_reports(lk_parallel *parallel);

#endif
