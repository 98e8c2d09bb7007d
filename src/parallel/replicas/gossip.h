/* parallel/replicas/gossip.h -- mixing: replicas that average with their neighbours only. */
#ifndef LKI_PARALLEL_REPLICAS_GOSSIP_H
#define LKI_PARALLEL_REPLICAS_GOSSIP_H

#include "parallel/replicas/topology.h"

/* Returns the number of elements of the weights and of the running state of a replica. */
uint64_t lki_gossip_elements(const lk_param *params, uint32_t param_count,
                             const lk_parallel_options *options);

/* The memory that the ranks of a host share for the weights of replicas, in pieces. */
typedef struct {
    size_t   elements; /* largest piece */
    uint32_t slots;    /* pieces of different replicas, for each of two halves */
    size_t   bytes;    /* of the arena */
} lki_gossip_room;

/* Computes the room for the mixings of replicas with `elements` elements of weights and running
 * state. */
lki_gossip_room lki_gossip_room_of(const lki_mixing *mixing, const lki_replicas *replicas,
                                   uint64_t elements, const lk_parallel_options *options);

/* Opens parallel->replicas->gossip, if there is a topology and more than one replica.
 * Collective. */
LK_NODISCARD lk_status lki_gossip_open(lk_parallel *parallel, const lk_param *params,
                                       uint32_t param_count, const lk_parallel_options *options);

/* Accepts NULL. */
void lki_gossip_free(lki_gossip *gossip);

/* After each lk_replicas.local_steps of `done` inner steps, replaces the weights and the running
 * state of each replica by the mean of those of its neighbours.  Collective. */
LK_NODISCARD lk_status lki_gossip_steps(lk_parallel *parallel, uint64_t done);

#endif
