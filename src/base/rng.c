/* rng.c -- Philox 4x32-10. */
#include "base/rng.h"

lki_random lki_philox(uint64_t seed, lki_rng_purpose purpose, uint32_t a, uint32_t b, uint32_t c,
                      uint32_t d)
{
    uint32_t x0 = a, x1 = b, x2 = c, x3 = (uint32_t)purpose << 24 | (d & 0xffffffu);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * x0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * x2;
        uint32_t y0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0;
        uint32_t y2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x1 = (uint32_t)p1;
        x3 = (uint32_t)p0;
        x0 = y0;
        x2 = y2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (lki_random){ { x0, x1, x2, x3 } };
}
