/* comm/fill.h -- memory that the ranks of several hosts fill together, while they do something
 * else.  See span/fill.c. */
#ifndef LKI_COMM_FILL_H
#define LKI_COMM_FILL_H

#include "base/status.h"
#include "lockstep/comm.h"

typedef struct {
    const void *from;
    size_t      bytes;
} lki_piece;

/* As lk_arena_mirror(), but returns at once, and what this rank has to give lies in pieces, one
 * behind the other, outside of what is filled or where it is to be.  No rank of a host sees a
 * change there before all of them have called; when the request is complete all that the host gets
 * is there.  The ranks of `comm` are on several hosts.  `pieces` and what they are of stay as they
 * are until then. */
LK_NODISCARD lk_status lki_arena_fill_start(lk_request **out, lk_comm *comm, lk_arena *arena,
                                            size_t offset, const size_t *bytes,
                                            const lki_piece *pieces, size_t piece_count);

#endif
