/* comm/traffic.h -- what has gone to another rank over the network, and how long that took. */
#ifndef LKI_COMM_TRAFFIC_H
#define LKI_COMM_TRAFFIC_H

#include "lockstep/comm.h"

typedef struct {
    uint64_t bytes; /* that have arrived */
    double   busy;  /* seconds in which some were on their way for which the reader had room; of the
                     * stream where these were most */
    double   rate;  /* of that stream: bytes a second, when enough were on their way; the latest */
} lki_traffic;

/* From this rank to `rank` of the group, since they are connected; nothing where that is not known,
 * as on one host, or over MPI. */
void lki_comm_traffic(const lk_comm *comm, uint32_t rank, lki_traffic *out);

#endif
