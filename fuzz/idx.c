/* idx.c -- any bytes as an IDX file, plain or gzip, with images or labels. */
#include "fuzz.h"

#include "data/files.h"

static void parse(const uint8_t *data, size_t bytes, uint32_t rank)
{
    lki_idx  idx;
    uint64_t product = 1;
    unsigned sum     = 0;
    if (lki_idx_parse(&idx, data, bytes, rank, "input") != LK_OK) {
        LK_ASSERT(idx.memory == NULL);
        return;
    }
    for (uint32_t i = 0; i < rank; i++)
        product *= idx.dims[i];
    LK_ASSERT(product == idx.count && idx.plain + idx.plain_bytes == idx.values + idx.count);
    for (size_t i = 0; i < idx.count; i++)
        sum += idx.values[i];
    LK_ASSERT(sum <= 255 * idx.count);
    lki_idx_close(&idx);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    parse(data, bytes, 1);
    parse(data, bytes, 3);
    return 0;
}
