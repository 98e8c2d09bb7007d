/* base/rng.h -- counter-based random numbers: a value is a function of what it is for.
 *
 * Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
 * SC 2011, section 3.3).  No state, so nothing to save, migrate or depend on a rank.  The
 * counter's last word names the purpose; two purposes can never share numbers.
 */
#ifndef LKI_RNG_H
#define LKI_RNG_H

#include <stdint.h>

typedef enum {
    LKI_RNG_INIT    = 1, /* initial values: element, parameter index */
    LKI_RNG_DROPOUT = 2, /* element / 4 within the sample, slot in the global batch, step, layer:
                          * lki_dropout_place() */
    LKI_RNG_ORDER   = 3, /* the order of an epoch */
    LKI_RNG_OFFSET  = 4, /* the offset of text windows in an epoch */
    LKI_RNG_SPLIT   = 5, /* train and validation parts */
    LKI_RNG_AUGMENT = 6, /* epoch, sample */
    LKI_RNG_DATA    = 7, /* synthetic data sets */
    LKI_RNG_SAMPLE  = 8, /* tokens drawn from a trained model */
    LKI_RNG_AUDIT   = 9, /* step */
} lki_rng_purpose;

typedef struct { uint32_t word[4]; } lki_random;

/* Four words for (seed, purpose, a, b, c, d).  `d` has 24 bits. */
lki_random lki_philox(uint64_t seed, lki_rng_purpose purpose, uint32_t a, uint32_t b, uint32_t c,
                      uint32_t d);

/* The limits of what dropout tells apart: no two of its elements have the same counter and word. */
#define LKI_DROPOUT_ELEMENTS ((uint64_t)1 << 42) /* of a sample, in one layer */
#define LKI_DROPOUT_LAYERS ((uint32_t)1 << 16)

/* `d` of a dropped element; `a` is the lower half of element / 4.  Its upper half, 8 bits, stands
 * above the layer. */
static inline uint32_t lki_dropout_place(uint32_t layer, uint64_t element)
{
    return layer | (uint32_t)(element >> 34) << 16;
}

/* The top 24 bits as a float in [0, 1): exact. */
static inline float lki_random_unit(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

#endif
