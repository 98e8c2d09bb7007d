/* mersenne.c -- the permutation that torch.randperm(n) draws after manual_seed(seed).
 *
 * Uses the Mersenne Twister MT19937 (Matsumoto and Nishimura, ACM TOMACS 8, 1998), seeded with the
 * lower 32 bits, and the Fisher-Yates shuffle: element i is swapped with element i + z, z = draw
 * mod (n - i).  The permutation allows users of PyTorch to compare runs; Lockstep's own order has
 * neither state nor bias.  For n >= 2^32 / 20 PyTorch itself uses another method.
 */
#include "data/source.h"

enum { WORDS = 624, MIDDLE = 397 };

typedef struct {
    uint32_t word[WORDS];
    size_t   next;
} twister;

static void seed_twister(twister *t, uint32_t seed)
{
    t->word[0] = seed;
    for (uint32_t i = 1; i < WORDS; i++)
        t->word[i] = 1812433253u * (t->word[i - 1] ^ t->word[i - 1] >> 30) + i;
    t->next = WORDS;
}

static void twist(twister *t)
{
    for (size_t i = 0; i < WORDS; i++) {
        uint32_t pair = (t->word[i] & 0x80000000u) | (t->word[(i + 1) % WORDS] & 0x7fffffffu);
        t->word[i]    = t->word[(i + MIDDLE) % WORDS] ^ pair >> 1 ^ ((pair & 1) * 0x9908b0dfu);
    }
    t->next = 0;
}

static uint32_t draw(twister *t)
{
    if (t->next == WORDS)
        twist(t);
    uint32_t y = t->word[t->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

void lki_torch_randperm(uint64_t seed, uint32_t *out, size_t n)
{
    twister t;
    LK_ASSERT(n < LKI_TORCH_RANDPERM_END);
    seed_twister(&t, (uint32_t)seed);
    for (size_t i = 0; i < n; i++)
        out[i] = (uint32_t)i;
    for (size_t i = 0; i + 1 < n; i++) {
        size_t   other = i + draw(&t) % (n - i);
        uint32_t kept  = out[i];
        out[i]         = out[other];
        out[other]     = kept;
    }
}
