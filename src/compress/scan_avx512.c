/* scan_avx512.c -- the loops over tensors for processors with AVX-512. */
#if defined(__x86_64__)
#include <immintrin.h> /* before the pragma, because functions in headers must run on any
                        * processor */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))),       \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif
#define LKI_SCAN_BITS 512
#define LKI_SCAN_NAME "avx512"
#define LKI_SCAN_TABLE lki_scan_avx512
#include "compress/scan.inc"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int lki_no_avx512_here; /* C forbids an empty file */
#endif
