/* comm/coll/adasum.h -- adaptive summation of all ranks' vectors. */
#ifndef LKI_COMM_ADASUM_H
#define LKI_COMM_ADASUM_H

#include "comm/coll/reduction.h"

/* The whole of lk_all_reduce() (root LKI_ALL_RANKS) or lk_reduce() with LK_ADASUM; the arguments
 * have been checked.  Collective. */
LK_NODISCARD lk_status lki_adasum_reduce(lk_comm *comm, const void *send, void *recv, size_t count,
                                         lk_dtype dtype, uint32_t root);

/* What calls that cannot do it say: LK_OK for any other kind. */
LK_NODISCARD lk_status lki_refuse_adasum(const char *name, lk_reduce_op op);

#endif
