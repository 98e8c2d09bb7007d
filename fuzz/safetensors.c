/* safetensors.c -- any bytes as a safetensors file: an accepted file can be read to its end. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/safetensors.h"

static void read_through(const lk_safetensors *file)
{
    char hex[65];
    for (size_t i = 0; i < lk_safetensors_count(file); i++) {
        const lk_tensor *tensor = lk_safetensors_at(file, i);
        uint64_t         count, bytes;
        if (!lki_shape_size(tensor->shape, tensor->dtype, &count, &bytes) ||
            lk_safetensors_find(file, tensor->name) != tensor ||
            (uintptr_t)tensor->data % lk_dtype_bytes(tensor->dtype) != 0)
            abort();
    }
    if (lk_safetensors_count(file) > 0)
        lk_weights_hash(lk_safetensors_at(file, 0), lk_safetensors_count(file), hex);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lk_safetensors *file;
    if (lki_safetensors_view(&file, data, size, "input") == LK_OK)
        read_through(file);
    else if (lk_error_last()->message[0] == '\0')
        abort();
    lk_safetensors_free(file);
    return 0;
}
