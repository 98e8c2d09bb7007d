/* scan_avx2.c -- the loops over tensors for processors with AVX2. */
#if defined(__x86_64__)
#include <immintrin.h> /* before the pragma, because functions in headers must run on any
                        * processor */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#define LKI_SCAN_BITS 256
#define LKI_SCAN_NAME "avx2"
#define LKI_SCAN_TABLE lki_scan_avx2
#include "compress/scan.inc"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int lki_no_avx2_here; /* C forbids an empty file */
#endif
