/* device/combine.h -- vectors of any type combined elementwise, in the order of the canonical
 * tree.  What the operations mean is written beside lk_reduce_op. */
#ifndef LKI_DEVICE_COMBINE_H
#define LKI_DEVICE_COMBINE_H

#include "lockstep/base.h"

/* LK_EINVAL where there is no such type or operation, or not for this type. */
LK_NODISCARD lk_status lki_combine_check(lk_dtype dtype, lk_reduce_op op);

/* out[i] = from[0][i] op ... op from[leaves - 1][i] for i < count; the lower index is always the
 * left operand.  `out` may be one of the inputs.  What lki_combine_check() refuses is asserted
 * against, and so is ADASUM (device/adasum.h). */
void lki_combine(lk_dtype dtype, lk_reduce_op op, uint32_t leaves, const void *const *from,
                 size_t count, void *out);

/* The same into `out_count` places, of which the first is mine and the others are other ranks'. */
void lki_combine_all(lk_dtype dtype, lk_reduce_op op, uint32_t leaves, const void *const *from,
                     size_t count, void *const *out, uint32_t out_count);

/* "sum"; "?" for a value that is no kind. */
const char *lki_reduce_name(uint64_t kind);

#endif
