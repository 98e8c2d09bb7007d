/* device/combine.h -- elementwise combination of vectors of any type, in the order of the canonical
 * tree.  lk_reduce_op defines the operations. */
#ifndef LKI_DEVICE_COMBINE_H
#define LKI_DEVICE_COMBINE_H

#include "lockstep/base.h"

/* Returns LK_EINVAL for an unknown type or operation, or an operation that the type does not
 * support. */
LK_NODISCARD lk_status lki_combine_check(lk_dtype dtype, lk_reduce_op op);

/* Computes out[i] = from[0][i] op ... op from[leaves - 1][i] for i < count.  The lower index is
 * always the left operand.  `out` may be one of the inputs.  Asserts that lki_combine_check()
 * accepts the arguments and that the operation is not ADASUM (device/adasum.h). */
void lki_combine(lk_dtype dtype, lk_reduce_op op, uint32_t leaves, const void *const *from,
                 size_t count, void *out);

/* Combines vectors as lki_combine() does, into `out_count` destinations.  The first destination
 * belongs to this rank; all others belong to other ranks. */
void lki_combine_all(lk_dtype dtype, lk_reduce_op op, uint32_t leaves, const void *const *from,
                     size_t count, void *const *out, uint32_t out_count);

/* Returns the name of a kind of reduction, e.g. "sum"; "?" for an unknown value. */
const char *lki_reduce_name(uint64_t kind);

#endif
