/* comm/fill.h -- memory that the ranks of several hosts fill together, while they do something
 * else.  See span/fill.c. */
#ifndef LKI_COMM_FILL_H
#define LKI_COMM_FILL_H

#include "base/status.h"
#include "lockstep/comm.h"

/* What a rank does to fill it.  Neither entry waits for anything. */
typedef struct {
    /* All ranks of this host have called: leaves at `to` what this rank gives. */
    void (*put)(void *context, void *to);

    /* (optional) What `rank` gives is there, and the other ranks of this host leave it to this one:
     * once for each rank of the group, in one of the host's. */
    void (*take)(void *context, uint32_t rank);
    void *context;
} lki_filler;

/* As lk_arena_mirror(), but returns at once, and what this rank has to give is put there on the
 * way.  No rank of a host sees a change there before all of them have called; when the request is
 * complete all that the host gets is there, and has been taken.  The ranks of `comm` are on several
 * hosts.  `filler` and its context stay as they are until then. */
LK_NODISCARD lk_status lki_arena_fill_start(lk_request **out, lk_comm *comm, lk_arena *arena,
                                            size_t offset, const size_t *bytes,
                                            const lki_filler *filler);

#endif
