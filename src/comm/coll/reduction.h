/* comm/coll/reduction.h -- what all_reduce, reduce and the call for many tensors share. */
#ifndef LKI_COMM_REDUCTION_H
#define LKI_COMM_REDUCTION_H

#include "comm/coll/move.h"

#define LKI_ALL_RANKS UINT32_MAX /* as `root`: the result goes everywhere */

/* Chooses the way for a request whose send, recv, reduce, root and op.print are set. */
void lki_all_reduce_init(lk_request *request);

/* LK_EINVAL for a reduction that does not exist, too many elements or a buffer that is not
 * aligned as its type; *bytes of `count` elements. */
LK_NODISCARD lk_status lki_check_reduction(size_t *bytes, const char *name, const void *send,
                                           const void *recv, size_t count, lk_dtype dtype,
                                           lk_reduce_op op);

#endif
