/* npy.c -- a NumPy array. */
#include "fuzz.h"

#include "data/files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    lki_npy  npy;
    uint64_t product = 1;
    unsigned sum     = 0;
    if (lki_npy_parse(&npy, data, bytes, "input") != LK_OK)
        return 0;
    LK_ASSERT(npy.rank >= 1 && npy.rank <= LKI_NPY_RANK_MAX);
    for (uint32_t i = 0; i < npy.rank; i++)
        product *= npy.dims[i];
    size_t width = lk_dtype_bytes(npy.dtype);
    LK_ASSERT(width > 0 && product == npy.count && product > 0);
    LK_ASSERT(npy.values + npy.count * width == data + bytes);
    for (size_t i = 0; i < npy.count * width; i++)
        sum += npy.values[i];
    LK_ASSERT(sum <= 255 * npy.count * width);
    return 0;
}
