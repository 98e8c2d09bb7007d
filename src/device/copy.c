/* copy.c -- copies that bypass the cache, if the processor has such stores. */
#include "device/copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

enum { LINE = 64 };

/* Copies whole cache lines; `to` must be aligned to a line. */
static void copy_lines(unsigned char *to, const unsigned char *from, size_t lines)
{
    for (size_t i = 0; i < lines; i++, to += LINE, from += LINE) {
        const __m128i *in  = (const __m128i *)(const void *)from;
        __m128i       *out = (__m128i *)(void *)to;
        __m128i        a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
        __m128i        c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
        _mm_stream_si128(out, a);
        _mm_stream_si128(out + 1, b);
        _mm_stream_si128(out + 2, c);
        _mm_stream_si128(out + 3, d);
    }
}

void lki_copy_far(void *to, const void *from, size_t bytes)
{
    size_t head = (LINE - (uintptr_t)to % LINE) % LINE;

    if (bytes < head + LINE) {
        memcpy(to, from, bytes);
        return;
    }
    size_t lines = (bytes - head) / LINE, done = head + lines * LINE;
    memcpy(to, from, head);
    copy_lines((unsigned char *)to + head, (const unsigned char *)from + head, lines);
    memcpy((unsigned char *)to + done, (const unsigned char *)from + done, bytes - done);
    _mm_sfence(); /* without this fence, the later store of a flag could overtake these non-temporal
                   * stores */
}
#else
void lki_copy_far(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif
