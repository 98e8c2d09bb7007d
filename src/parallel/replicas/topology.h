/* parallel/replicas/topology.h -- the neighbours of replicas, and the replicas that hosts send.
 *
 * A mixing replaces the weights of each replica by the mean of those of its neighbours, of which it
 * is one.  Neighbours are a function of the topology, the number of replicas, the seed, and the
 * number of the mixing.  Ranks and hosts have no influence.
 */
#ifndef LKI_PARALLEL_REPLICAS_TOPOLOGY_H
#define LKI_PARALLEL_REPLICAS_TOPOLOGY_H

#include "parallel/world.h"
#include "parallel/replicas/internal.h"

enum { LKI_NEIGHBOURS_MAX = 3 };

/* The neighbours of a replica, in ascending order.  A single one is the replica itself, which keeps
 * its weights. */
typedef struct {
    uint32_t count, of[LKI_NEIGHBOURS_MAX];
} lki_neighbours;

/* Finds the neighbours of all `count` replicas in mixing `number`, from 1.  `order` is scratch for
 * as many elements. */
void lki_topology_neighbours(lki_neighbours *out, uint32_t *order, lk_replica_topology topology,
                             uint32_t count, uint64_t seed, uint64_t number);

/* Finds neighbours in a graph in which each replica has the one at a distance above it. */
void lki_topology_shift(lki_neighbours *out, uint32_t count, uint32_t distance);

/* Returns the number of different distances of LK_TOPOLOGY_EXPONENTIAL: log2 of `count`, rounded
 * up. */
uint32_t lki_topology_distances(uint32_t count);

/* The replicas that hosts have, and those that they need in a mixing. */
typedef struct {
    uint32_t        count, hosts;
    lki_neighbours *neighbours; /* [count] */
    uint32_t       *order;      /* [count]: scratch */
    uint32_t       *home;       /* [count]: the host that sends a replica */
    bool           *has;        /* [hosts][count]: whether a rank of the host has the replica */
    bool           *needs;      /* [hosts][count]: whether it is a neighbour of one that the host
                                 * has and that changes */
    uint32_t        most;       /* largest number of replicas of a host */
} lki_mixing;

LK_NODISCARD lk_status lki_mixing_init(lki_mixing *mixing, const lki_replicas *replicas,
                                       const lki_world *world);
void                   lki_mixing_deinit(lki_mixing *mixing);

/* Fills in `needs` from `neighbours`. */
void lki_mixing_find_needs(lki_mixing *mixing);

/* Returns the number of copies of whole replicas that a host sends. */
uint64_t lki_mixing_sends(const lki_mixing *mixing, uint32_t host);

/* Adds to copies[host] what each host sends in several mixings, and returns their number.  These
 * are a round of a topology's mixings; with LK_TOPOLOGY_PAIRS as many as have each pair once, on
 * average.  Changes `neighbours` and `needs`. */
uint32_t lki_mixing_count_sends(lki_mixing *mixing, lk_replica_topology topology,
                                uint64_t *copies);

#endif
