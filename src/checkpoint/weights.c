/* weights.c -- the hash by which runs are compared.  Equal weights have equal hashes, however they
 * are stored.
 *
 * SHA-256 over every tensor in the given order: name (u32 length, bytes), dtype code (u8), rank
 * (u32), dimensions (u64 each), then the elements.  All integers and elements are little-endian.
 * Every NaN is hashed as one quiet NaN, because the payload of a NaN depends on which operand a
 * processor copies.  A tensor in the same memory as an earlier tensor, with the same type and
 * shape, is counted once.  An example is a tied embedding listed under both names.
 */
#include "lockstep/checkpoint.h"

#include <string.h>

#include "base/hash.h"
#include "checkpoint/checkpoint.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "files and hashes are little-endian and are taken from memory as they are");

enum { CHUNK_BYTES = 4096 }; /* a multiple of every element size */

static void hash_u32(lki_sha256 *hash, uint32_t value)
{
    lki_sha256_add(hash, &value, sizeof value);
}

static void canonical_f32(void *chunk, size_t bytes)
{
    uint32_t *bits = chunk;
    for (size_t i = 0; i < bytes / sizeof *bits; i++)
        bits[i] = (bits[i] & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits[i];
}

static void canonical_f64(void *chunk, size_t bytes)
{
    uint64_t *bits = chunk;
    for (size_t i = 0; i < bytes / sizeof *bits; i++)
        if ((bits[i] & UINT64_C(0x7fffffffffffffff)) > UINT64_C(0x7ff0000000000000))
            bits[i] = UINT64_C(0x7ff8000000000000);
}

/* Replaces NaNs in 16-bit floats.  `infinity` is the format's positive infinity. */
static void canonical_16(void *chunk, size_t bytes, uint16_t infinity, uint16_t nan)
{
    uint16_t *bits = chunk;
    for (size_t i = 0; i < bytes / sizeof *bits; i++)
        if ((bits[i] & 0x7fffu) > infinity)
            bits[i] = nan;
}

static void canonical(void *chunk, size_t bytes, lk_dtype dtype)
{
    if (dtype == LK_F32)
        canonical_f32(chunk, bytes);
    else if (dtype == LK_F64)
        canonical_f64(chunk, bytes);
    else if (dtype == LK_F16)
        canonical_16(chunk, bytes, 0x7c00, 0x7e00);
    else if (dtype == LK_BF16)
        canonical_16(chunk, bytes, 0x7f80, 0x7fc0);
}

static uint64_t data_bytes(const lk_tensor *tensor)
{
    uint64_t bytes = lk_dtype_bytes(tensor->dtype);
    for (uint32_t i = 0; i < tensor->shape.rank; i++)
        bytes *= tensor->shape.dims[i];
    return bytes;
}

static bool same_memory(const lk_tensor *a, const lk_tensor *b)
{
    return a->data == b->data && a->dtype == b->dtype && a->shape.rank == b->shape.rank &&
           memcmp(a->shape.dims, b->shape.dims, a->shape.rank * sizeof a->shape.dims[0]) == 0 &&
           data_bytes(a) > 0;
}

static bool is_tied(const lk_tensor *tensors, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (same_memory(&tensors[i], &tensors[index]))
            return true;
    return false;
}

void lki_hash_elements(lki_sha256 *hash, lk_dtype dtype, const void *data, uint64_t bytes)
{
    _Alignas(8) uint8_t chunk[CHUNK_BYTES];
    const uint8_t *at = data;
    for (size_t length; bytes > 0; at += length, bytes -= length) {
        length = bytes < CHUNK_BYTES ? (size_t)bytes : CHUNK_BYTES;
        memcpy(chunk, at, length);
        canonical(chunk, length, dtype);
        lki_sha256_add(hash, chunk, length);
    }
}

void lki_hash_heading(lki_sha256 *hash, const lk_tensor *tensor)
{
    size_t  name_bytes = strlen(tensor->name);
    uint8_t code       = (uint8_t)tensor->dtype;

    hash_u32(hash, (uint32_t)name_bytes);
    lki_sha256_add(hash, tensor->name, name_bytes);
    lki_sha256_add(hash, &code, sizeof code);
    hash_u32(hash, tensor->shape.rank);
    lki_sha256_add(hash, tensor->shape.dims, tensor->shape.rank * sizeof tensor->shape.dims[0]);
}

static void hash_tensor(lki_sha256 *hash, const lk_tensor *tensor)
{
    lki_hash_heading(hash, tensor);
    lki_hash_elements(hash, tensor->dtype, tensor->data, data_bytes(tensor));
}

void lk_weights_hash(const lk_tensor *tensors, size_t count, char hex[65])
{
    lki_sha256 hash;
    lki_sha256_begin(&hash);
    for (size_t i = 0; i < count; i++)
        if (!is_tied(tensors, i))
            hash_tensor(&hash, &tensors[i]);
    lki_sha256_end(&hash, hex);
}
