/* device/combine_loops.h -- the loops that reductions of each type are made of: see combine.c. */
#ifndef LKI_DEVICE_COMBINE_LOOPS_H
#define LKI_DEVICE_COMBINE_LOOPS_H

#include "lockstep/base.h"

typedef void (*lki_combine_loop)(size_t n, const void *left, const void *right, void *out);

/* Elements to accumulators, and back; `factor` is multiplied with. */
typedef void (*lki_convert_loop)(size_t n, const void *from, double factor, void *to);

/* Sums two vectors into two places, which may be the same; `fetch`: the lines of `copy` are in
 * another core's cache. */
typedef void (*lki_twice_loop)(size_t n, const void *left, const void *right, void *out,
                               void *copy, bool fetch);

typedef struct {
    size_t           width, accumulator; /* bytes */
    bool             integer;
    lki_combine_loop combine[4];         /* sum, product, min, max */
    lki_convert_loop load, load_scaled;  /* load is NULL where elements are accumulators ... */
    lki_convert_loop store, store_scaled; /* ... and store, where they need no change */
    lki_twice_loop   sum_twice;          /* NULL where there is none */
    lki_convert_loop rounded;            /* FP32 to the nearest that is an element, as FP32; NULL
                                          * but for 16-bit floats */
    lki_combine_loop rounded_sum;        /* the same of a sum of two, which are rounded before */
    size_t           block;              /* bytes of LKI_QUANTISED elements where these share a
                                          * factor (quantise.h), in place of a width; else 0 */
    lki_combine_loop sum_far;            /* combine[0] past the cache, into a place that is apart
                                          * from both; FP32 only, else NULL */
} lki_type_loops;

/* By lk_dtype. */
extern const lki_type_loops lki_combine_portable[LK_U64 + 1];
#if defined(__x86_64__)
extern const lki_type_loops lki_combine_avx2[LK_U64 + 1], lki_combine_avx512[LK_U64 + 1];
#endif

/* The fastest that this processor has. */
const lki_type_loops *lki_combine_best(void);

/* What the root is multiplied with when it is stored: 1, or an average's 1 / leaves. */
double lki_combine_share(const lki_type_loops *type, lk_reduce_op op, uint32_t leaves);

/* lki_combine() and lki_combine_all() by given loops. */
void lki_combine_all_by(const lki_type_loops *table, lk_dtype dtype, lk_reduce_op op,
                        uint32_t leaves, const void *const *from, size_t count, void *const *out,
                        uint32_t out_count);
void lki_combine_by(const lki_type_loops *table, lk_dtype dtype, lk_reduce_op op, uint32_t leaves,
                    const void *const *from, size_t count, void *out);

#endif
