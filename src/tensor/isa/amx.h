/* tensor/isa/amx.h -- the instructions of AMX, or the same operations in C.
 *
 * There are eight tiles of up to 16 rows of 64 bytes.  A file that defines LKI_AMX_EMULATED gets
 * the operations in C, with the same bits, which run on any processor.  Other files must be
 * compiled for AMX, whose tiles are registers of the thread.  Numbers of tiles are constants.
 *
 * Source: Intel: "Intel Architecture Instruction Set Extensions Programming Reference", chapter 3.
 */
#ifndef LKI_TENSOR_ISA_AMX_H
#define LKI_TENSOR_ISA_AMX_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tensor/isa/simd.h"

enum { AMX_ROWS = 16, AMX_WORDS = 16, AMX_TILES = 8 };

/* The sizes of all tiles, in the layout of LDTILECFG.  Tiles with 0 rows are not used. */
typedef struct {
    uint8_t  palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t  rows[16];
} amx_sizes;
_Static_assert(sizeof(amx_sizes) == 64, "the layout of the instruction");

#if defined(LKI_AMX_EMULATED)

typedef struct {
    amx_sizes sizes;
    float     tile[AMX_TILES][AMX_ROWS][AMX_WORDS];
} amx_tiles;

static void amx_configure(amx_tiles *t, const amx_sizes *sizes)
{
    memset(t, 0, sizeof *t);
    t->sizes = *sizes;
}

static void amx_release(amx_tiles *t)
{
    memset(t, 0, sizeof *t);
}

static void amx_zero(amx_tiles *t, int tile)
{
    memset(t->tile[tile], 0, sizeof t->tile[tile]);
}

static void amx_load(amx_tiles *t, int tile, const float *from, size_t stride)
{
    amx_zero(t, tile);
    for (size_t i = 0; i < t->sizes.rows[tile]; i++)
        memcpy(t->tile[tile][i], from + i * stride, t->sizes.row_bytes[tile]);
}

static void amx_store(const amx_tiles *t, int tile, float *to, size_t stride)
{
    for (size_t i = 0; i < t->sizes.rows[tile]; i++)
        memcpy(to + i * stride, t->tile[tile][i], t->sizes.row_bytes[tile]);
}

/* Adds the products of tiles a and b to tile c, as TDPBF16PS does. */
static void amx_multiply(amx_tiles *t, int c, int a, int b)
{
    for (size_t i = 0; i < t->sizes.rows[c]; i++) {
        v16 even = v16_zero(), odd = v16_zero();
        for (size_t p = 0; p < t->sizes.row_bytes[a] / sizeof(float); p++) {
            v16 x = v16_set1(t->tile[a][i][p]), y = v16_load(t->tile[b][p]);
            even = v16_fma_flushed(v16_low_half(x), v16_low_half(y), even);
            odd  = v16_fma_flushed(v16_high_half(x), v16_high_half(y), odd);
        }
        v16 sum = v16_add_flushed(v16_load(t->tile[c][i]), v16_add_flushed(even, odd));
        v16_store(t->tile[c][i], sum);
    }
}

#else
#include <immintrin.h>

typedef struct {
    char unused;
} amx_tiles;

/* Does not use the intrinsic, with which gcc 12 removes stores to most of the sizes. */
LKI_SIMD void amx_configure(amx_tiles *t, const amx_sizes *sizes)
{
    (void)t;
    __asm__ volatile("ldtilecfg %0" : : "m"(*sizes));
}

LKI_SIMD void amx_release(amx_tiles *t)
{
    (void)t;
    _tile_release();
}

/* An instruction names its tiles, so there is a case for each. */
#define LKI_AMX_EACH(CASE) CASE(0) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7)

LKI_SIMD void amx_zero(amx_tiles *t, int tile)
{
    (void)t;
    switch (tile) {
#define LKI_AMX_ZERO(n) case n: _tile_zero(n); break;
        LKI_AMX_EACH(LKI_AMX_ZERO)
    default: break;
    }
}

LKI_SIMD void amx_load(amx_tiles *t, int tile, const float *from, size_t stride)
{
    (void)t;
    __asm__ volatile("" : : : "memory"); /* gcc's intrinsic does not say that it reads memory */
    switch (tile) {
#define LKI_AMX_LOAD(n) case n: _tile_loadd(n, from, stride * sizeof *from); break;
        LKI_AMX_EACH(LKI_AMX_LOAD)
    default: break;
    }
}

LKI_SIMD void amx_store(const amx_tiles *t, int tile, float *to, size_t stride)
{
    (void)t;
    switch (tile) {
#define LKI_AMX_STORE(n) case n: _tile_stored(n, to, stride * sizeof *to); break;
        LKI_AMX_EACH(LKI_AMX_STORE)
    default: break;
    }
}

/* Tile c = 2 i + j of the sums belongs to tiles a = 4 + i and b = 6 + j. */
LKI_SIMD void amx_multiply(amx_tiles *t, int c, int a, int b)
{
    (void)t, (void)a, (void)b;
    switch (c) {
    case 0: _tile_dpbf16ps(0, 4, 6); break;
    case 1: _tile_dpbf16ps(1, 4, 7); break;
    case 2: _tile_dpbf16ps(2, 5, 6); break;
    case 3: _tile_dpbf16ps(3, 5, 7); break;
    default: break;
    }
}
#endif

#endif
