/* tensor/isa/simd_scalar.h -- a single lane with the names of simd.h, for scalar.c and
 * references. */
#ifndef LKI_TENSOR_ISA_SIMD_SCALAR_H
#define LKI_TENSOR_ISA_SIMD_SCALAR_H

#include <stdbool.h>
#include <string.h>

typedef float   v16;
typedef int32_t v16i;
typedef bool    m16;

LKI_SIMD v16i v16_bits(v16 x)
{
    v16i bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

LKI_SIMD v16 v16_from_bits(v16i bits)
{
    v16 x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

LKI_SIMD v16  v16_zero(void) { return 0.0f; }
LKI_SIMD v16  v16_set1(float x) { return x; }
LKI_SIMD v16  v16_add(v16 a, v16 b) { return a + b; }
LKI_SIMD v16  v16_sub(v16 a, v16 b) { return a - b; }
LKI_SIMD v16  v16_mul(v16 a, v16 b) { return a * b; }
LKI_SIMD v16  v16_div(v16 a, v16 b) { return a / b; }
LKI_SIMD v16  v16_fma(v16 a, v16 b, v16 c) { return __builtin_fmaf(a, b, c); }
LKI_SIMD v16  v16_sqrt(v16 a) { return __builtin_sqrtf(a); }
LKI_SIMD v16  v16_max(v16 a, v16 b) { return a > b ? a : b; }
LKI_SIMD v16  v16_min(v16 a, v16 b) { return a < b ? a : b; }
LKI_SIMD m16  v16_lt(v16 a, v16 b) { return a < b; }
LKI_SIMD m16  v16_le(v16 a, v16 b) { return a <= b; }
LKI_SIMD m16  v16_eq(v16 a, v16 b) { return a == b; }
LKI_SIMD m16  m16_or(m16 a, m16 b) { return a || b; }
LKI_SIMD v16  v16_select(m16 m, v16 yes, v16 no) { return m ? yes : no; }
LKI_SIMD v16i v16_to_int(v16 x) { return x >= -0x1p31f && x < 0x1p31f ? (v16i)x : INT32_MIN; }
LKI_SIMD v16  v16_from_int(v16i x) { return (v16)x; }
LKI_SIMD v16i v16i_set1(int32_t x) { return x; }
LKI_SIMD v16i v16i_add(v16i a, v16i b) { return (v16i)((uint32_t)a + (uint32_t)b); }
LKI_SIMD v16i v16i_sub(v16i a, v16i b) { return (v16i)((uint32_t)a - (uint32_t)b); }
LKI_SIMD v16i v16i_and(v16i a, v16i b) { return a & b; }
LKI_SIMD v16i v16i_or(v16i a, v16i b) { return a | b; }
LKI_SIMD v16i v16i_xor(v16i a, v16i b) { return a ^ b; }
LKI_SIMD v16i v16i_shl(v16i a, unsigned n) { return (v16i)((uint32_t)a << n); }
LKI_SIMD v16i v16i_shr(v16i a, unsigned n) { return (v16i)((uint32_t)a >> n); }
LKI_SIMD m16  v16i_eq(v16i a, v16i b) { return a == b; }

#endif
