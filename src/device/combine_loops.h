/* device/combine_loops.h -- the loops from which combine.c composes the reductions of each type. */
#ifndef LKI_DEVICE_COMBINE_LOOPS_H
#define LKI_DEVICE_COMBINE_LOOPS_H

#include "lockstep/base.h"

typedef void (*lki_combine_loop)(size_t n, const void *left, const void *right, void *out);

/* Converts elements to accumulators or back, multiplying by `factor`. */
typedef void (*lki_convert_loop)(size_t n, const void *from, double factor, void *to);

/* Sums two vectors into two destinations, which may be equal.  `fetch`: the lines of `copy` are in
 * another core's cache. */
typedef void (*lki_twice_loop)(size_t n, const void *left, const void *right, void *out,
                               void *copy, bool fetch);

typedef struct {
    size_t           width, accumulator; /* bytes */
    bool             integer;
    lki_combine_loop combine[4];         /* sum, product, min, max */
    lki_convert_loop load, load_scaled;  /* NULL if elements are accumulators */
    lki_convert_loop store, store_scaled; /* NULL if accumulators need no conversion */
    lki_twice_loop   sum_twice;          /* NULL if there is none */
    lki_convert_loop rounded;            /* rounds FP32 to the nearest value of the element type,
                                          * stored as FP32; NULL except for 16-bit floats */
    lki_combine_loop rounded_sum;        /* the rounded sum of two rounded operands */
    size_t           block;              /* bytes of LKI_QUANTISED elements that share a factor
                                          * (quantise.h); 0: elements have a width */
    lki_combine_loop sum_far;            /* combine[0] bypassing the cache; out must not overlap the
                                          * operands; FP32 only, else NULL */
} lki_type_loops;

/* The table for any processor, indexed by lk_dtype. */
extern const lki_type_loops lki_combine_portable[LK_U64 + 1];
#if defined(__x86_64__)
extern const lki_type_loops lki_combine_avx2[LK_U64 + 1], lki_combine_avx512[LK_U64 + 1];
#endif

/* Returns the fastest table that this processor supports. */
const lki_type_loops *lki_combine_best(void);

/* Returns the factor with which the root is multiplied when it is stored: 1, or 1 / leaves for an
 * average. */
double lki_combine_share(const lki_type_loops *type, lk_reduce_op op, uint32_t leaves);

/* Acts as lki_combine_all(), with a given table. */
void lki_combine_all_by(const lki_type_loops *table, lk_dtype dtype, lk_reduce_op op,
                        uint32_t leaves, const void *const *from, size_t count, void *const *out,
                        uint32_t out_count);
/* Acts as lki_combine(), with a given table. */
void lki_combine_by(const lki_type_loops *table, lk_dtype dtype, lk_reduce_op op, uint32_t leaves,
                    const void *const *from, size_t count, void *out);

#endif
