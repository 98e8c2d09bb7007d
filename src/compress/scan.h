/* compress/scan.h -- the loops over all elements of a tensor, for several instruction sets.
 *
 * All of them give the same bits: they compare, move bits, compute one rounding for an element, or
 * sum in 16 lanes or in ascending order.
 */
#ifndef LKI_COMPRESS_SCAN_H
#define LKI_COMPRESS_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The key of random rounding. */
typedef struct {
    uint64_t seed;
    uint32_t step, tensor, group;
} lki_lot;

enum { LKI_LEVEL_BLOCK = 32 };

typedef struct {
    const char *name;

    /* Appends the places in [first, end) whose magnitudes are above `bar` to places[*found ...].
     * Returns the first place that has not been looked at, which is below `end` only if there are
     * `room` places. */
    size_t (*above)(const float *values, size_t first, size_t end, int32_t bar, uint32_t *places,
                    size_t *found, size_t room);

    /* Returns the sum of |x| in FP64, and sets the bits of the elements that are below 0. */
    double (*signs)(size_t count, const float *values, uint32_t *bits);

    /* Subtracts the scale, with each element's own sign. */
    void (*subtract)(size_t count, float scale, float *values);

    /* Writes +scale or -scale for bits [first, first + count). */
    void (*spread)(const uint32_t *bits, size_t first, size_t count, float scale, float *out);

    /* Returns the sum of the squares in FP64, and the largest magnitude.  NaN is the largest. */
    double (*squares)(size_t count, const float *values, float *largest);

    /* Rounds the 32 elements of block `block` at random to multiples of 1 / inverse, of which there
     * are `levels` above 0.  Writes `width` words: the signs, then the bits of the multiples. */
    void (*put)(const lki_lot *lot, uint32_t block, const float *values, double inverse,
                uint32_t levels, uint32_t width, uint32_t *words);

    /* Writes what the 32 elements of a block stand for: multiples of `unit`. */
    void (*get)(const uint32_t *words, uint32_t width, double unit, float *out);

    /* Computes rows [first, first + count) of p = m q.  In this and the next three, m is a
     * rows x cols matrix, and p and q, of rows x rank and cols x rank elements, are stored by
     * columns. */
    void (*multiply)(size_t rows, size_t cols, uint32_t rank, size_t first, size_t count,
                     const float *m, const float *q, float *p);

    /* Computes q = mt p. */
    void (*multiply_turned)(size_t rows, size_t cols, uint32_t rank, const float *m,
                            const float *p, float *q);

    /* Computes m = m - p qt. */
    void (*subtract_product)(size_t rows, size_t cols, uint32_t rank, const float *p,
                             const float *q, float *m);

    /* Writes elements [first, first + count) of p qt. */
    void (*expand)(size_t rows, size_t cols, uint32_t rank, const float *p, const float *q,
                   size_t first, size_t count, float *out);

    /* Computes values += factor x error. */
    void (*add_error)(size_t count, const float *error, float factor, float *values);

    /* Computes to = from / divisor. */
    void (*divide)(size_t count, const float *from, float divisor, float *to);
} lki_scan;

/* Returns the table for the widest registers of this processor. */
const lki_scan *lki_scan_best(void);

/* For tests: returns table `index`, the widest first and the portable one last; NULL past the end.
 * *lacks becomes true if this processor does not support the table. */
const lki_scan *lki_scan_at(size_t index, bool *lacks);

extern const lki_scan lki_scan_portable;
#if defined(__x86_64__)
extern const lki_scan lki_scan_avx2, lki_scan_avx512;
#endif

/* Returns the bits of |x| as an integer, which is ordered like |x|.  NaN is above infinity. */
static inline int32_t lki_magnitude(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & INT32_MAX;
}

#endif
