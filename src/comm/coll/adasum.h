/* comm/coll/adasum.h -- Adasum: adaptive summation of all ranks' vectors. */
#ifndef LKI_COMM_ADASUM_H
#define LKI_COMM_ADASUM_H

#include "comm/coll/reduction.h"

/* Performs lk_all_reduce() (root LKI_ALL_RANKS) or lk_reduce() with LK_ADASUM.  The caller has
 * checked the arguments.  Collective. */
LK_NODISCARD lk_status lki_adasum_reduce(lk_comm *comm, const void *send, void *recv, size_t count,
                                         lk_dtype dtype, uint32_t root);

/* Returns an error if `op` is Adasum, for a call that does not support it; LK_OK for any other
 * reduction. */
LK_NODISCARD lk_status lki_refuse_adasum(const char *name, lk_reduce_op op);

#endif
