/* comm/fill.h -- filling an arena on several hosts in the background.  Every rank contributes a
 * part.  See span/fill.c. */
#ifndef LKI_COMM_FILL_H
#define LKI_COMM_FILL_H

#include "base/status.h"
#include "lockstep/comm.h"

/* Callbacks that write a rank's part and process the parts of other ranks.  They must not wait. */
typedef struct {
    /* Writes this rank's part to `to`.  Called when all ranks of this host have started the
     * fill. */
    void (*put)(void *context, void *to);

    /* (optional) Called when the part of `rank` has arrived on this host.  For each rank of the
     * group, one rank of every host gets this call. */
    void (*take)(void *context, uint32_t rank);
    void *context;
} lki_filler;

/* Starts lk_arena_mirror() as a request that calls `put` for this rank's contribution.  The memory
 * of a host does not change before all ranks of the host have called this function.  On completion
 * all parts have arrived on this host, and `take` has been called for them.  The ranks of `comm`
 * must be on several hosts.  `filler` and its context must stay unchanged until completion. */
LK_NODISCARD lk_status lki_arena_fill_start(lk_request **out, lk_comm *comm, lk_arena *arena,
                                            size_t offset, const size_t *bytes,
                                            const lki_filler *filler);

#endif
