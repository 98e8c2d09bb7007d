/* hash.c -- thin wrappers of nettle and xxHash. */
#include "base/hash.h"


#define XXH_INLINE_ALL
#include <xxhash.h>

static void to_hex(const uint8_t *bytes, size_t count, char *hex)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++) {
        hex[2 * i]     = digits[bytes[i] >> 4];
        hex[2 * i + 1] = digits[bytes[i] & 15];
    }
    hex[2 * count] = '\0';
}

void lki_sha256_begin(lki_sha256 *hash)
{
    sha256_init(hash);
}

void lki_sha256_add(lki_sha256 *hash, const void *data, size_t bytes)
{
    sha256_update(hash, bytes, data);
}

void lki_sha256_end(lki_sha256 *hash, char hex[65])
{
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_digest(hash, sizeof digest, digest);
    to_hex(digest, sizeof digest, hex);
}

uint64_t lki_xxh3_plain(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

/* Selects the version for the widest registers.  For short inputs all versions run the same
 * code. */
uint64_t lki_xxh3(const void *data, size_t bytes)
{
#if defined(__x86_64__)
    if (bytes > XXH3_MIDSIZE_MAX && __builtin_cpu_supports("avx512f"))
        return lki_xxh3_avx512(data, bytes);
    if (bytes > XXH3_MIDSIZE_MAX && __builtin_cpu_supports("avx2"))
        return lki_xxh3_avx2(data, bytes);
#endif
    return lki_xxh3_plain(data, bytes);
}

void lki_xxh3_128(const void *data, size_t bytes, char hex[33])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, bytes));
    to_hex(canonical.digest, sizeof canonical.digest, hex);
}
