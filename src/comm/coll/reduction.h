/* comm/coll/reduction.h -- declarations shared by all_reduce, reduce and all_reduce_many. */
#ifndef LKI_COMM_REDUCTION_H
#define LKI_COMM_REDUCTION_H

#include "comm/coll/move.h"

#define LKI_ALL_RANKS UINT32_MAX /* as `root`: all ranks receive the result */

/* Chooses how a request is carried out.  Its send, recv, reduce, root and op.print must be set. */
void lki_all_reduce_init(lk_request *request);

/* Checks a reduction and computes the *bytes of `count` elements.  LK_EINVAL if the reduction does
 * not exist, there are too many elements, or a buffer is not aligned to its type. */
LK_NODISCARD lk_status lki_check_reduction(size_t *bytes, const char *name, const void *send,
                                           const void *recv, size_t count, lk_dtype dtype,
                                           lk_reduce_op op);

#endif
