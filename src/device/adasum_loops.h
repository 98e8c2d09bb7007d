/* device/adasum_loops.h -- the loops of adasum.c, compiled for several instruction sets. */
#ifndef LKI_DEVICE_ADASUM_LOOPS_H
#define LKI_DEVICE_ADASUM_LOOPS_H

#include "device/adasum.h"

typedef struct {
    lki_dots (*dots)(size_t n, const void *a, const void *b);
    void (*mix)(size_t n, double left_factor, double right_factor, void *left, const void *right);
} lki_adasum_loops;

/* Indexed by type: floats, doubles. */
extern const lki_adasum_loops lki_adasum_portable[2];
#if defined(__x86_64__)
extern const lki_adasum_loops lki_adasum_avx2[2], lki_adasum_avx512[2];
#endif

#endif
