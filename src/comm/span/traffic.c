/* traffic.c -- traffic counters of the link; see traffic.h. */
#include "comm/traffic.h"

#include "comm/group/group.h"
#include "link/wire/wire.h"

void lki_comm_traffic(const lk_comm *comm, uint32_t rank, lki_traffic *out)
{
    const lki_wire *wire = comm->self->wire;
    const lki_link *link = wire == NULL ? NULL : lki_wire_link(wire);
    uint32_t        peer = lk_comm_world_rank(comm, rank);

    *out = (lki_traffic){ .bytes = 0 };
    if (link != NULL && link->ops->traffic != NULL && peer != link->rank)
        link->ops->traffic(link, peer, out);
}
