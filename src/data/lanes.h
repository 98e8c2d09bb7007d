/* data/lanes.h -- what the loader does to many values alike, in the widest registers there are.
 *
 * A loader is to cost little beside a small model's step, which has the cores for itself else.  The
 * loops of lanes.inc are compiled once for each instruction set; they are integer and single IEEE
 * operations, so that all give the bits of the plain ones.
 */
#ifndef LKI_DATA_LANES_H
#define LKI_DATA_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rng.h"

enum { LKI_LANES = 32 };

/* The network of order.c: see there. */
typedef struct {
    uint64_t        seed, epoch;
    lki_rng_purpose purpose;
    uint32_t        half;   /* bits */
    uint32_t        rounds;
} lki_network;

typedef struct {
    const char *name;

    /* LKI_LANES values pass through the network. */
    void (*pass)(const lki_network *of, uint32_t left[LKI_LANES], uint32_t right[LKI_LANES]);

    /* Pixels in [-1, 1]: to[i] = (from[i] / 255 - 0.5) / 0.5. */
    void (*pixels)(size_t count, const uint8_t *from, float *to);
} lki_lanes;

/* The widest that the processor has. */
const lki_lanes *lki_lanes_best(void);

/* For tests: table `index`, the widest first and the plain one last; NULL behind it, and where the
 * processor lacks it *lacks is true. */
const lki_lanes *lki_lanes_at(size_t index, bool *lacks);

static inline uint32_t lki_network_mask(const lki_network *of)
{
    return (uint32_t)((UINT64_C(1) << of->half) - 1);
}

#if defined(__x86_64__)
extern const lki_lanes lki_lanes_avx512, lki_lanes_avx2;
#endif

#endif
