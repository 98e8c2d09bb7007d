/* traffic.c -- what carries the bytes between hosts, and how many; see traffic.h. */
#include "comm/traffic.h"

#include "comm/group/group.h"
#include "link/wire/wire.h"

const char *lk_comm_carrier(const lk_comm *comm)
{
    const lki_wire *wire = comm->self->wire;

    return wire == NULL || lk_comm_hosts(comm) == 1 ? "" : lki_wire_link(wire)->carrier;
}

void lki_comm_traffic(const lk_comm *comm, uint32_t rank, lki_traffic *out)
{
    const lki_wire *wire = comm->self->wire;
    const lki_link *link = wire == NULL ? NULL : lki_wire_link(wire);
    uint32_t        peer = lk_comm_world_rank(comm, rank);

    *out = (lki_traffic){ .bytes = 0 };
    if (link != NULL && link->ops->traffic != NULL && peer != link->rank)
        link->ops->traffic(link, peer, out);
}
