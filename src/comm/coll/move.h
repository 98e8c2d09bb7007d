/* comm/coll/move.h -- the engine of all collectives that only move bytes. */
#ifndef LKI_COMM_MOVE_H
#define LKI_COMM_MOVE_H

#include "comm/group/request.h"

/* The algorithm of a request with a route. */
extern const lki_algorithm lki_move;
/* Chooses how a request is carried out.  The caller must have set its route, send, send_bytes,
 * recv, longest (bytes of the largest parcel) and in_place. */
void                       lki_move_init(lk_request *request);

/* A rank's description of its buffers, published in its slot. */
typedef struct {
    lki_place send, recv;
    uint64_t  longest;
    uint32_t  direct; /* other ranks may access this rank's buffers directly */
    uint32_t  filled; /* this rank's first chunk, if any, is staged, and this rank has read all
                       * chunks of earlier operations */
} lki_reach;

/* Publishes this rank's description. */
void      lki_reach_tell(const lk_request *request, const lki_reach *mine);
/* Returns the description that `rank` has published. */
lki_reach lki_reach_of(const lk_request *request, uint32_t rank);

/* Computes the offsets of consecutive parts; offsets[size] is the total.  LK_EINVAL if `sizes`,
 * which is called `list` in messages, is NULL, or if the total exceeds the address space. */
LK_NODISCARD lk_status lki_offsets(size_t *offsets, const lk_comm *comm, const size_t *sizes,
                                   size_t width, const char *name, const char *list);

/* Computes *total = a * b.  LK_EINVAL if the product exceeds the address space. */
LK_NODISCARD lk_status lki_total(size_t *total, const char *name, size_t a, size_t b);

/* Returns LK_EINVAL if a buffer of more than 0 bytes is NULL, or if both buffers overlap and
 * `in_place` is not set.  Callers set `in_place` if send and recv are placed as the operation's
 * in-place form requires. */
LK_NODISCARD lk_status lki_check_buffers(const char *name, const void *send, size_t send_bytes,
                                         const void *recv, size_t recv_bytes, bool in_place);
/* Returns LK_EINVAL unless `root` is a rank of the communicator. */
LK_NODISCARD lk_status lki_check_root(const lk_comm *comm, const char *name, uint32_t root);

/* Returns the address of byte `offset` of the buffer `data`, which may be NULL. */
static inline const void *lki_at(const void *data, size_t offset)
{
    return (const void *)((uintptr_t)data + offset);
}

/* Returns the number of bytes that each receiver has in a staging buffer. */
size_t lki_share(const lk_request *request);

#endif
