/* lanes_avx2.c -- the loader's loops on 256-bit registers. */
#include "data/lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <stdint.h>

typedef __m256i words;
typedef __m256  values;
enum { LKI_WIDTH = 8 };
#define REGISTERS(operation) _mm256_##operation

static inline words load(const uint32_t *from)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}
static inline void store(uint32_t *to, words x)
{
    _mm256_storeu_si256((__m256i *)(void *)to, x);
}
static inline words xor_of(words a, words b) { return _mm256_xor_si256(a, b); }
static inline words and_of(words a, words b) { return _mm256_and_si256(a, b); }
static inline words odd_from(words even, words odd) { return _mm256_blend_epi32(even, odd, 0xaa); }
static inline words widen(const uint8_t *from)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
}

#include "data/lanes.inc"

const lki_lanes lki_lanes_avx2 = { .name = "avx2", .pass = pass, .pixels = pixels };
#endif
