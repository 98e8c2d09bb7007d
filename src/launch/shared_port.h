/* launch/shared_port.h -- tells the hosts of a torchrun job where the rendezvous listens.
 *
 * torchrun's own store listens at MASTER_ADDR:MASTER_PORT, so the rendezvous needs another port.
 * The agent of rank 0 listens at the same address on a free port that the kernel chooses, and
 * writes the port into the store.  The agents of the other hosts read the port there, and connect
 * to the address at which they reached the store.  So nobody has to choose a second port, and
 * MASTER_ADDR is the only name that is resolved.
 *
 * The entry is deleted when the hosts have met, or when their agent gives up.  A job that torchrun
 * starts again with the same store therefore finds no port of the earlier one.
 */
#ifndef LKI_LAUNCH_SHARED_PORT_H
#define LKI_LAUNCH_SHARED_PORT_H

#include "launch/foreign.h"
#include "launch/rendezvous/torch_store.h"

typedef struct {
    int             listener;                       /* on rank 0's host, else -1 */
    char            endpoint[LKI_RENDEZVOUS_BYTES]; /* the rendezvous, "tcp://HOST:PORT" */
    char            key[200];
    lki_torch_store store;
} lki_shared_port;

/* Finds the endpoint of a job with f->store, or opens it if this is rank 0's host.  Waits at most
 * `limit_ms` for rank 0.  Calls `check` from time to time, and fails if it fails. */
LK_NODISCARD lk_status lki_shared_port_open(lki_shared_port *out, const lki_foreign *f,
                                            uint32_t limit_ms, lk_status (*check)(void *context),
                                            void *context);

/* Deletes the entry, if this is rank 0's host, and disconnects from the store.  The listener stays
 * open. */
void lki_shared_port_withdraw(lki_shared_port *port);

#endif
