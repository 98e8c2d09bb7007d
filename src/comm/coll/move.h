/* comm/coll/move.h -- what all collectives that move bytes have in common. */
#ifndef LKI_COMM_MOVE_H
#define LKI_COMM_MOVE_H

#include "comm/request.h"

/* The algorithm of a request with a route.  The request's send, send_bytes, recv, longest (bytes
 * of the largest parcel) and in_place are set; lki_move_init() chooses the way. */
extern const lki_algorithm lki_move;
void                       lki_move_init(lk_request *request);

/* What a rank tells of its buffers, in the slot. */
typedef struct {
    lki_place send, recv;
    uint64_t  longest;
    uint32_t  direct; /* others may read (and, if need be, write) my buffers where they are */
    uint32_t  filled; /* my first chunk is staged */
} lki_reach;

void      lki_reach_tell(const lk_request *request, const lki_reach *mine);
lki_reach lki_reach_of(const lk_request *request, uint32_t rank);

/* Offsets of parts that follow each other: offsets[size] is the total.  LK_EINVAL if that is more
 * than memory can hold. */
LK_NODISCARD lk_status lki_offsets(size_t *offsets, const lk_comm *comm, const size_t *sizes,
                                   size_t width, const char *name);

/* *total = a * b, or LK_EINVAL. */
LK_NODISCARD lk_status lki_total(size_t *total, const char *name, size_t a, size_t b);

/* LK_EINVAL if a buffer is NULL, or if they overlap and `send` is not `in_place` (in recv, or recv
 * in it: what both pointers must be equal to then). */
LK_NODISCARD lk_status lki_check_buffers(const char *name, const void *send, size_t send_bytes,
                                         const void *recv, size_t recv_bytes, bool in_place);
LK_NODISCARD lk_status lki_check_root(const lk_comm *comm, const char *name, uint32_t root);

/* Where byte `offset` of a buffer is; the buffer may be NULL. */
static inline const void *lki_at(const void *data, size_t offset)
{
    return (const void *)((uintptr_t)data + offset);
}

/* Bytes that each receiver has of a staging buffer. */
size_t lki_share(const lk_request *request);

#endif
