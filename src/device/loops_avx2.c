/* loops_avx2.c -- the loops of reductions and adaptive summation for processors with AVX2. */
#if defined(__x86_64__)
#include <emmintrin.h> /* before the pragma, because functions in headers must run on any
                        * processor */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#define LKI_COMBINE_TABLE lki_combine_avx2
#include "device/combine.inc"
#define LKI_ADASUM_TABLE lki_adasum_avx2
#include "device/adasum.inc"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int lki_no_avx2_here; /* C forbids an empty file */
#endif
