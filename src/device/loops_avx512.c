/* loops_avx512.c -- the loops of reductions and adaptive summation for processors with AVX-512. */
#if defined(__x86_64__)
#include <emmintrin.h> /* before the pragma, because functions in headers must run on any
                        * processor */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))),       \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif
#define LKI_COMBINE_TABLE lki_combine_avx512
#include "device/combine.inc"
#define LKI_ADASUM_TABLE lki_adasum_avx512
#include "device/adasum.inc"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int lki_no_avx512_here; /* C forbids an empty file */
#endif
