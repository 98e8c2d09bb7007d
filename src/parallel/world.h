/* parallel/world.h -- the ranks of a job and the hosts that they are on, with or without a
 * communicator: a strategy places things by this alone, so that what it will take can be told
 * before anything runs. */
#ifndef LKI_PARALLEL_WORLD_H
#define LKI_PARALLEL_WORLD_H

#include "base/status.h"
#include "lockstep/comm.h"

typedef struct {
    uint32_t  ranks, hosts;
    uint32_t  widest;   /* the most ranks that a host has */
    uint32_t *sizes;    /* ranks of each host */
    uint32_t *host_of;  /* of each rank */
    uint32_t *local_of; /* of each rank: its number among those of its host */
    uint32_t *numbers;  /* of each rank: in the job, of which others may be lost */
} lki_world;

/* Ranks follow each other host by host.  lki_world_deinit() accepts a half-made one. */
LK_NODISCARD lk_status lki_world_init(lki_world *world, const uint32_t *sizes, uint32_t hosts);
LK_NODISCARD lk_status lki_world_of(lki_world *world, const lk_comm *comm);

/* All ranks of the job, in the group or not: what it was when the job began. */
LK_NODISCARD lk_status lki_world_first(lki_world *world, const lk_comm *comm);
void                   lki_world_deinit(lki_world *world);

#endif
