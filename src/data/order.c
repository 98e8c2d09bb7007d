/* order.c -- the sample at each position: permutations, steps and micro-batches.
 *
 * The order of an epoch is a permutation of [0, n) that is computed, not stored.  It is a balanced
 * Feistel network on the smallest even number of bits that holds n.  Results of n and above are
 * passed through the network again until the result is below n (cycle walking; Black and Rogaway,
 * "Ciphers with arbitrary finite domains", CT-RSA 2002, section 3).  A Feistel network is a
 * bijection for any round function, and remains one with cycle walking.
 *
 *      left  right            each of 8 rounds:  (left, right) -> (right, left ^ F(right))
 *        \   /  |             F = Philox keyed by the seed, counter (right, epoch, width, round)
 *
 * Rounds:  4 suffice against an adversary for wide halves (Luby and Rackoff, 1988), but data sets
 *          are small: at 10,000 samples a half has 7 bits.  Patarin's bounds ("Security of random
 *          Feistel schemes with 5 or more rounds", CRYPTO 2004) require 6.  We use 8, like FF3 of
 *          NIST SP 800-38G.
 * Cost:    the number of bits is even, so the domain is below 4n, and a position needs under 4
 *          passes, 2 on average.  A pass is 8 Philox blocks, well under a microsecond.  No memory
 *          and no state are needed.  Any position of any epoch is computed directly, which makes
 *          a resumed run exact.  A run of positions is computed in parallel lanes (lanes.h).
 */
#include "data/source.h"

#include "data/lanes.h"

enum { ROUNDS = 8 };

/* Returns half of the smallest even number of bits that can hold every value below n. */
static uint32_t half_bits(uint64_t n)
{
    uint32_t bits = n <= 1 ? 0 : 64 - (uint32_t)__builtin_clzll(n - 1);
    return bits <= 2 ? 1 : (bits + 1) / 2;
}

uint64_t lki_permute(uint64_t seed, lki_rng_purpose purpose, uint64_t epoch, uint64_t n,
                     uint64_t position)
{
    LK_ASSERT(position < n);
    const uint32_t half = half_bits(n);
    const uint32_t mask = (uint32_t)((UINT64_C(1) << half) - 1);
    uint64_t       at   = position;

    do {
        uint32_t left = (uint32_t)(at >> half), right = (uint32_t)at & mask;
        for (uint32_t round = 0; round < ROUNDS; round++) {
            lki_random random = lki_philox(seed, purpose, right, (uint32_t)epoch,
                                           (uint32_t)(epoch >> 32), half << 8 | round);
            uint32_t next = (left ^ random.word[0]) & mask;
            left  = right;
            right = next;
        }
        at = (uint64_t)left << half | right;
    } while (at >= n);
    return at;
}

/* Permutes a run of positions.  A lane that has reached a value below n continues with the next
 * position.  Lanes without a position compute values that are ignored. */
void lki_permute_run(uint64_t seed, lki_rng_purpose purpose, uint64_t epoch, uint64_t n,
                     uint64_t first, size_t count, uint64_t *out)
{
    const lki_lanes  *lanes = lki_lanes_best();
    const lki_network of    = { .seed = seed, .epoch = epoch, .purpose = purpose,
                                .half = half_bits(n), .rounds = ROUNDS };
    uint32_t          left[LKI_LANES] = { 0 }, right[LKI_LANES] = { 0 };
    size_t            place[LKI_LANES], begun = 0, done = 0;

    LK_ASSERT(count == 0 || (first < n && count <= n - first));
    for (int l = 0; l < LKI_LANES; l++)
        place[l] = SIZE_MAX; /* the lane is free */
    while (done < count) {
        for (int l = 0; l < LKI_LANES && begun < count; l++)
            if (place[l] == SIZE_MAX) {
                uint64_t at = first + begun;
                place[l]    = begun++;
                left[l]     = (uint32_t)(at >> of.half);
                right[l]    = (uint32_t)at & lki_network_mask(&of);
            }
        lanes->pass(&of, left, right);
        for (int l = 0; l < LKI_LANES; l++) {
            uint64_t at = (uint64_t)left[l] << of.half | right[l];
            if (place[l] == SIZE_MAX || at >= n)
                continue;
            out[place[l]] = at;
            place[l]      = SIZE_MAX;
            done++;
        }
    }
}

uint32_t lki_window_offset(uint64_t seed, uint64_t epoch, uint32_t context)
{
    lki_random random = lki_philox(seed, LKI_RNG_OFFSET, (uint32_t)epoch,
                                   (uint32_t)(epoch >> 32), 0, 0);
    uint64_t wide = (uint64_t)random.word[1] << 32 | random.word[0];
    return (uint32_t)(wide % context);
}

uint64_t lk_sample_at(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t position)
{
    return lki_permute(seed, LKI_RNG_ORDER, epoch, n, position);
}

uint64_t lk_steps_per_epoch(uint64_t n, uint64_t global_batch, bool drop_last)
{
    LK_ASSERT(global_batch > 0);
    return n / global_batch + (!drop_last && n % global_batch != 0 ? 1 : 0);
}

lk_step_span lk_step_at(uint64_t n, uint64_t global_batch, bool drop_last, uint64_t step)
{
    uint64_t steps = lk_steps_per_epoch(n, global_batch, drop_last);
    LK_ASSERT(steps > 0);
    uint64_t first = step % steps * global_batch;
    uint64_t left  = n - first;
    return (lk_step_span){ .epoch   = step / steps,
                           .first   = first,
                           .samples = left < global_batch ? left : global_batch };
}

uint32_t lk_micro_samples(uint64_t samples, uint32_t micro_batch, uint32_t micro_count,
                          uint32_t v, uint32_t micro_index)
{
    LK_ASSERT(micro_index < micro_count);
    uint64_t first = ((uint64_t)v * micro_count + micro_index) * micro_batch;
    if (samples <= first)
        return 0;
    return samples - first < micro_batch ? (uint32_t)(samples - first) : micro_batch;
}
