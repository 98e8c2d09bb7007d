/* manifest.c -- any bytes as a manifest: an accepted manifest is consistent. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

static void check_tensor(const lki_manifest *manifest, const lki_manifest_tensor *tensor)
{
    uint64_t count, bytes, at = 0;
    if (!lki_shape_size(tensor->shape, tensor->dtype, &count, &bytes) ||
        !lki_manifest_name_ok(tensor->file) ||
        tensor->first_piece + tensor->piece_count > manifest->piece_count)
        abort();
    for (size_t i = 0; i < tensor->piece_count; i++) {
        const lki_manifest_piece *piece = &manifest->pieces[tensor->first_piece + i];
        if (piece->file >= manifest->file_count || piece->first != at)
            abort();
        at += piece->count;
    }
    if (at != count)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lki_manifest manifest;
    const char  *text = (const char *)data;
    lk_status    seal = lki_manifest_verify(text, size, "input");
    if (seal != LK_OK && seal != LK_EFORMAT && seal != LK_ECORRUPT)
        abort();
    if (lki_manifest_parse(&manifest, text, size, "input") != LK_OK)
        return 0;
    for (size_t i = 0; i < manifest.file_count; i++)
        if (!lki_manifest_name_ok(manifest.files[i].name) ||
            strchr(manifest.files[i].name, '/') != NULL)
            abort();
    for (size_t i = 0; i < manifest.tensor_count; i++)
        check_tensor(&manifest, &manifest.tensors[i]);
    lki_manifest_free(&manifest);
    return 0;
}
