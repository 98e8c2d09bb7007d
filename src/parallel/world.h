/* parallel/world.h -- the ranks of a job and their hosts, with or without a communicator.
 *
 * Strategies place everything by this struct only, so the memory of a run can be computed before it
 * starts. */
#ifndef LKI_PARALLEL_WORLD_H
#define LKI_PARALLEL_WORLD_H

#include "base/status.h"
#include "lockstep/comm.h"

typedef struct {
    uint32_t  ranks, hosts;
    uint32_t  widest;   /* maximum number of ranks on a host */
    uint32_t *sizes;    /* [hosts]: ranks on each host */
    uint32_t *host_of;  /* [ranks] */
    uint32_t *local_of; /* [ranks]: number of the rank on its host */
    uint32_t *numbers; /* [ranks]: number of the rank in the job, which counts lost ranks too */
    lk_tree_algorithm algorithm; /* of gradients between hosts */
} lki_world;

/* Fills `world` for hosts of the given sizes; ranks are numbered host by host.  On failure call
 * lki_world_deinit() as well. */
LK_NODISCARD lk_status lki_world_init(lki_world *world, const uint32_t *sizes, uint32_t hosts);

/* Fills `world` from the ranks of a communicator. */
LK_NODISCARD lk_status lki_world_of(lki_world *world, const lk_comm *comm);

/* Fills `world` with all ranks that the job had at its start, even those that have left the
 * group. */
LK_NODISCARD lk_status lki_world_first(lki_world *world, const lk_comm *comm);
void                   lki_world_deinit(lki_world *world);

#endif
