/* hash_avx512.c -- XXH3 on 512-bit registers, with the result of lki_xxh3_plain(). */
#include "base/hash.h"

#if defined(__x86_64__)
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t lki_xxh3_avx512(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}
#endif
