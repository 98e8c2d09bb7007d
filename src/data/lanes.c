/* lanes.c -- the portable loops, and the selection of the best table. */
#include "base/status.h"
#include "data/lanes.h"

static void plain_pass(const lki_network *of, uint32_t left[LKI_LANES], uint32_t right[LKI_LANES])
{
    const uint32_t mask = lki_network_mask(of);
    for (int l = 0; l < LKI_LANES; l++)
        for (uint32_t round = 0; round < of->rounds; round++) {
            lki_random random = lki_philox(of->seed, of->purpose, right[l], (uint32_t)of->epoch,
                                           (uint32_t)(of->epoch >> 32), of->half << 8 | round);
            uint32_t next = (left[l] ^ random.word[0]) & mask;
            left[l]  = right[l];
            right[l] = next;
        }
}

static void plain_pixels(size_t count, float mean, float deviation, const uint8_t *from,
                         float *to)
{
    for (size_t i = 0; i < count; i++)
        to[i] = ((float)from[i] / 255.0f - mean) / deviation;
}

static const lki_lanes plain = { .name = "plain", .pass = plain_pass, .pixels = plain_pixels };

const lki_lanes *lki_lanes_at(size_t index, bool *lacks)
{
    *lacks = false;
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2"), avx512 = __builtin_cpu_supports("avx512f");
    *lacks = (index == 0 && !avx512) || (index == 1 && !avx2);
    const lki_lanes *tables[] = { &lki_lanes_avx512, &lki_lanes_avx2, &plain };
#else
    const lki_lanes *tables[] = { &plain };
#endif
    return index < sizeof tables / sizeof tables[0] ? tables[index] : NULL;
}

const lki_lanes *lki_lanes_best(void)
{
    bool   lacks;
    size_t i = 0;
    while (lki_lanes_at(i, &lacks) != NULL && lacks)
        i++;
    return lki_lanes_at(i, &lacks);
}
