/* shape.c -- the arithmetic of shapes. */
#include "base/status.h"
#include "lockstep/tensor.h"

size_t lk_shape_count(lk_shape shape)
{
    LK_ASSERT(shape.rank <= LK_RANK_MAX);
    size_t count = 1;
    for (uint32_t i = 0; i < shape.rank; i++)
        count *= (size_t)shape.dims[i];
    return count;
}
