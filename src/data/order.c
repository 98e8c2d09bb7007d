/* order.c -- the sample at each position: permutations, steps and micro-batches.
 *
 * The order of an epoch is a permutation of [0, n) that is computed, not stored: a Feistel network
 * (base/feistel.h) with F = Philox keyed by the seed, counter (right, epoch, width, round).
 *
 * Cost:    a pass is 8 Philox blocks, well under a microsecond.  No memory and no state are needed.
 *          Any position of any epoch is computed directly, which makes a resumed run exact.  A run
 *          of positions is computed in parallel lanes (lanes.h).
 */
#include "data/source.h"

#include "base/feistel.h"
#include "data/lanes.h"

typedef struct {
    uint64_t        seed, epoch;
    lki_rng_purpose purpose;
    uint32_t        half;
} network;

static uint32_t round_of(const void *context, uint32_t half, uint32_t round)
{
    const network *of = context;
    return lki_philox(of->seed, of->purpose, half, (uint32_t)of->epoch, (uint32_t)(of->epoch >> 32),
                      of->half << 8 | round)
        .word[0];
}

uint64_t lki_permute(uint64_t seed, lki_rng_purpose purpose, uint64_t epoch, uint64_t n,
                     uint64_t position)
{
    const network of = { .seed = seed, .epoch = epoch, .purpose = purpose,
                         .half = lki_feistel_half(n) };
    LK_ASSERT(position < n);
    return lki_feistel_place(n, of.half, round_of, &of, position);
}

/* Permutes a run of positions.  A lane that has reached a value below n continues with the next
 * position.  Lanes without a position compute values that are ignored. */
void lki_permute_run(uint64_t seed, lki_rng_purpose purpose, uint64_t epoch, uint64_t n,
                     uint64_t first, size_t count, uint64_t *out)
{
    const lki_lanes  *lanes = lki_lanes_best();
    const lki_network of    = { .seed = seed, .epoch = epoch, .purpose = purpose,
                                .half = lki_feistel_half(n),
                                .rounds = LKI_FEISTEL_ROUNDS };
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
