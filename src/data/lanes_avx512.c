/* lanes_avx512.c -- the loader's loops on 512-bit registers. */
#include "data/lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <stdint.h>

typedef __m512i words;
typedef __m512  values;
enum { LKI_WIDTH = 16 };
#define REGISTERS(operation) _mm512_##operation

static inline words load(const uint32_t *from) { return _mm512_loadu_si512(from); }
static inline void  store(uint32_t *to, words x) { _mm512_storeu_si512(to, x); }
static inline words xor_of(words a, words b) { return _mm512_xor_si512(a, b); }
static inline words and_of(words a, words b) { return _mm512_and_si512(a, b); }
static inline words odd_from(words even, words odd)
{
    return _mm512_mask_blend_epi32(0xaaaa, even, odd);
}
static inline words widen(const uint8_t *from)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
}

#include "data/lanes.inc"

const lki_lanes lki_lanes_avx512 = { .name = "avx512", .pass = pass, .pixels = pixels };
#endif
