/* base/rng.h -- counter-based random numbers: a value is a function of its purpose.
 *
 * Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011, section 3.3).  The generator has no state, so nothing must be saved or migrated, and values
 * do not depend on a rank.  The counter's last word holds the purpose; two purposes never share
 * numbers.
 */
#ifndef LKI_RNG_H
#define LKI_RNG_H

#include <stdint.h>

typedef enum {
    LKI_RNG_INIT    = 1, /* initial values, by element and parameter index */
    LKI_RNG_DROPOUT = 2, /* dropout, by element / 4 within the sample, batch slot, step and
                          * layer: see lki_dropout_place() */
    LKI_RNG_ORDER   = 3, /* the order of an epoch */
    LKI_RNG_OFFSET  = 4, /* the offset of text windows in an epoch */
    LKI_RNG_SPLIT   = 5, /* train and validation parts */
    LKI_RNG_AUGMENT = 6, /* augmentation, by epoch and sample */
    LKI_RNG_DATA    = 7, /* synthetic data sets */
    LKI_RNG_SAMPLE  = 8, /* tokens drawn from a trained model */
    LKI_RNG_AUDIT   = 9, /* the audited virtual worker, by step */
    LKI_RNG_COMPRESS = 10, /* factors of compressed gradients, by element, step, tensor, column */
    LKI_RNG_CHOICE  = 11, /* the elements that are sent, by step and tensor */
    LKI_RNG_ROUND   = 12, /* rounding of compressed gradients, by element / 32 and lane, step,
                           * tensor, group */
    LKI_RNG_DIVIDE  = 13, /* samples to clients: permutations, and shares by client and class */
    LKI_RNG_PAIRS   = 14, /* pairs of replicas, by mixing and replica */
    LKI_RNG_CLIENT  = 15, /* a client's seed and the step at which it stops, by client and round */
    LKI_RNG_CLIENTS = 16, /* the clients of a round */
    LKI_RNG_DELAY   = 17, /* the time of a task of a schedule, by task and group */
} lki_rng_purpose;

typedef struct { uint32_t word[4]; } lki_random;

/* Returns four words for (seed, purpose, a, b, c, d).  `d` has 24 bits. */
lki_random lki_philox(uint64_t seed, lki_rng_purpose purpose, uint32_t a, uint32_t b, uint32_t c,
                      uint32_t d);

/* The limits within which no two elements of dropout use the same random word. */
#define LKI_DROPOUT_ELEMENTS ((uint64_t)1 << 42) /* per sample and layer */
#define LKI_DROPOUT_LAYERS ((uint32_t)1 << 16)

/* Returns the argument `d` of lki_philox() for an element of dropout.  Its low bits are the layer;
 * above them are the upper 8 bits of element / 4.  The lower 32 bits of element / 4 are `a`. */
static inline uint32_t lki_dropout_place(uint32_t layer, uint64_t element)
{
    return layer | (uint32_t)(element >> 34) << 16;
}

/* Converts the top 24 bits of `word` to a float in [0, 1), exactly. */
static inline float lki_random_unit(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

#endif
