/* comm/traffic.h -- the traffic between two ranks of a communicator. */
#ifndef LKI_COMM_TRAFFIC_H
#define LKI_COMM_TRAFFIC_H

#include "link/traffic.h"
#include "lockstep/comm.h"

/* Returns the traffic from this rank to `rank` since the two connected.  All fields are zero on
 * one host and over MPI, where traffic is not measured. */
void lki_comm_traffic(const lk_comm *comm, uint32_t rank, lki_traffic *out);

#endif
