/* data/lanes.h -- the loader's loops over many values, in the widest registers.
 *
 * A loader must be cheap compared with a step of a small model, with which it shares the cores.
 * The loops of lanes.inc are compiled once per instruction set.  They consist of integer and single
 * IEEE operations, so all versions give bit-identical results.
 */
#ifndef LKI_DATA_LANES_H
#define LKI_DATA_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rng.h"

enum { LKI_LANES = 32 };

/* The Feistel network of order.c. */
typedef struct {
    uint64_t        seed, epoch;
    lki_rng_purpose purpose;
    uint32_t        half;   /* width of a half, in bits */
    uint32_t        rounds;
} lki_network;

typedef struct {
    const char *name;

    /* Applies the network to LKI_LANES values, in place. left[] and right[] hold the halves of each
     * value. */
    void (*pass)(const lki_network *of, uint32_t left[LKI_LANES], uint32_t right[LKI_LANES]);

    /* Converts bytes: to[i] = (from[i] / 255 - mean) / deviation. */
    void (*pixels)(size_t count, float mean, float deviation, const uint8_t *from, float *to);
} lki_lanes;

/* Returns the table for the widest registers of this processor. */
const lki_lanes *lki_lanes_best(void);

/* For tests: returns table `index`, the widest first and the portable one last; NULL past the end.
 * *lacks becomes true if this processor does not support the table. */
const lki_lanes *lki_lanes_at(size_t index, bool *lacks);

static inline uint32_t lki_network_mask(const lki_network *of)
{
    return (uint32_t)((UINT64_C(1) << of->half) - 1);
}

#if defined(__x86_64__)
extern const lki_lanes lki_lanes_avx512, lki_lanes_avx2;
#endif

#endif
