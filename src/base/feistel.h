/* base/feistel.h -- permutations of [0, n) that are computed, not stored.
 *
 * A permutation is a balanced Feistel network on the smallest even number of bits that holds n.
 * Results of n and above are passed through the network again until the result is below n (cycle
 * walking; Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, section 3).  A
 * Feistel network is a bijection for any round function, and remains one with cycle walking.
 *
 *      left  right            each round:  (left, right) -> (right, left ^ F(right))
 *        \   /  |
 *
 * Rounds:  4 suffice against an adversary for wide halves (Luby and Rackoff, 1988), but the numbers
 *          here are small: for 10,000 elements a half has 7 bits.  Patarin's bounds ("Security of
 *          random Feistel schemes with 5 or more rounds", CRYPTO 2004) require 6.  We use 8, like
 *          FF3 of NIST SP 800-38G.
 * Cost:    the number of bits is even, so the domain is below 4n, and an element needs under 4
 *          passes, 2 on average.
 *
 * The round function is a constant of the caller, so that compilers inline it.
 */
#ifndef LKI_BASE_FEISTEL_H
#define LKI_BASE_FEISTEL_H

#include <stdint.h>

enum { LKI_FEISTEL_ROUNDS = 8 };

/* Returns F(half) of a round; only the low bits of the result are used. */
typedef uint32_t lki_feistel_round(const void *context, uint32_t half, uint32_t round);

/* Returns half of the smallest even number of bits that can hold every value below n. */
static inline uint32_t lki_feistel_half(uint64_t n)
{
    const uint32_t bits = n <= 1 ? 0 : 64 - (uint32_t)__builtin_clzll(n - 1);
    return bits <= 2 ? 1 : (bits + 1) / 2;
}

/* Returns the place of element `at` of [0, n); `half` is lki_feistel_half(n). */
static inline uint64_t lki_feistel_place(uint64_t n, uint32_t half, lki_feistel_round *f,
                                         const void *context, uint64_t at)
{
    const uint32_t mask = (uint32_t)((UINT64_C(1) << half) - 1);
    do {
        uint32_t left = (uint32_t)(at >> half), right = (uint32_t)at & mask;
        for (uint32_t i = 0; i < LKI_FEISTEL_ROUNDS; i++) {
            const uint32_t next = (left ^ f(context, right, i)) & mask;
            left                = right;
            right               = next;
        }
        at = (uint64_t)left << half | right;
    } while (at >= n);
    return at;
}

/* Returns the element of which `at` is the place. */
static inline uint64_t lki_feistel_element(uint64_t n, uint32_t half, lki_feistel_round *f,
                                           const void *context, uint64_t at)
{
    const uint32_t mask = (uint32_t)((UINT64_C(1) << half) - 1);
    do {
        uint32_t left = (uint32_t)(at >> half), right = (uint32_t)at & mask;
        for (uint32_t i = LKI_FEISTEL_ROUNDS; i-- > 0;) {
            const uint32_t previous = (right ^ f(context, left, i)) & mask;
            right                   = left;
            left                    = previous;
        }
        at = (uint64_t)left << half | right;
    } while (at >= n);
    return at;
}

#endif
