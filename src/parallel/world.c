/* world.c -- ranks and hosts; see world.h. */
#include "parallel/world.h"

#include <string.h>

#include "base/memory.h"
#include "comm/worker.h"

static lk_status make_room(lki_world *world, uint32_t hosts, uint32_t ranks)
{
    *world = (lki_world){ .hosts = hosts, .ranks = ranks };
    LK_TRY(LKI_NEW(&world->sizes, hosts, "hosts"));
    LK_TRY(LKI_NEW(&world->host_of, ranks, "hosts of ranks"));
    LK_TRY(LKI_NEW(&world->numbers, ranks, "numbers of ranks"));
    return LKI_NEW(&world->local_of, ranks, "hosts of ranks");
}

lk_status lki_world_init(lki_world *world, const uint32_t *sizes, uint32_t hosts)
{
    uint32_t ranks = 0, rank = 0;
    for (uint32_t h = 0; h < hosts; h++)
        ranks += sizes[h];
    LK_TRY(make_room(world, hosts, ranks));
    memcpy(world->sizes, sizes, hosts * sizeof *sizes);
    for (uint32_t h = 0; h < hosts; h++)
        for (uint32_t local = 0; local < sizes[h]; local++, rank++) {
            world->host_of[rank]  = h;
            world->numbers[rank]  = rank;
            world->local_of[rank] = local;
        }
    for (uint32_t h = 0; h < hosts; h++)
        world->widest = sizes[h] > world->widest ? sizes[h] : world->widest;
    return LK_OK;
}

lk_status lki_world_of(lki_world *world, const lk_comm *comm)
{
    uint32_t  hosts = lk_comm_hosts(comm), *sizes = NULL;
    lk_status status = LKI_NEW(&sizes, hosts, "hosts");
    for (uint32_t h = 0; status == LK_OK && h < hosts; h++)
        sizes[h] = lk_comm_local_size(comm, h);
    if (status == LK_OK)
        status = lki_world_init(world, sizes, hosts);
    lki_free(sizes);
    for (uint32_t r = 0; status == LK_OK && r < world->ranks; r++) {
        world->host_of[r]  = lk_comm_host(comm, r);
        world->numbers[r]  = lk_comm_world_rank(comm, r);
        world->local_of[r] = lk_comm_local_rank(comm, r);
    }
    return status;
}

/* Assumes that the ranks of a host are numbered consecutively. */
lk_status lki_world_first(lki_world *world, const lk_comm *comm)
{
    uint32_t ranks = lki_comm_world(comm), hosts = 0, *sizes = NULL;

    *world           = (lki_world){ 0 };
    lk_status status = LKI_NEW(&sizes, ranks, "hosts");
    for (uint32_t r = 0; status == LK_OK && r < ranks; r++) {
        hosts += r == 0 || lki_comm_node(comm, r) != lki_comm_node(comm, r - 1);
        sizes[hosts - 1]++;
    }
    if (status == LK_OK)
        status = lki_world_init(world, sizes, hosts);
    lki_free(sizes);
    return status;
}

void lki_world_deinit(lki_world *world)
{
    lki_free(world->sizes);
    lki_free(world->host_of);
    lki_free(world->local_of);
    lki_free(world->numbers);
    *world = (lki_world){ 0 };
}
