/* scalar.c -- the elementary functions on one value, with the bits of the vector kernels.
 *
 * The float functions are isa/math.inc compiled for one lane.  The doubles serve schedules and
 * bias corrections, where accuracy is cheap: Taylor series past the last place, reduced by
 * quarters of a turn with pi / 2 in three parts.
 */
#include <stdint.h>

#include "tensor/ops.h"

#define LKI_SIMD_SCALAR
#include "tensor/isa/simd.h"

#include "tensor/isa/math.inc"

float lki_expf(float x)
{
    return v16_exp(x);
}

float lki_exp2f(float x)
{
    return v16_exp2(x);
}

float lki_logf(float x)
{
    return v16_log(x);
}

float lki_tanhf(float x)
{
    return v16_tanh(x);
}

float lki_erff(float x)
{
    return v16_erf(x);
}

float lki_cosf(float x)
{
    return (float)lki_cos((double)x);
}

/* sum of (-s)^i / ((from + 1)(from + 2) ... (from + 2i)): cos for from 0, sin x / x for 1. */
static double series(double s, int from)
{
    double sum = 1.0;
    for (int i = from + 16; i > from; i -= 2)
        sum = 1.0 - s * sum / (double)((i - 1) * i);
    return sum;
}

double lki_cos(double x)
{
    double  quarters = x * 0x1.45f306dc9c883p-1; /* 2 / pi */
    int64_t q        = (int64_t)(quarters < 0 ? quarters - 0.5 : quarters + 0.5);
    double  n        = (double)q;
    /* The first two parts have 33 bits, so their products with n < 2^20 are exact. */
    double r = ((x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
    double s = r * r;
    double y = (q & 1) != 0 ? r * series(s, 1) : series(s, 0);
    return ((q + 1) & 2) != 0 ? -y : y;
}

double lki_powi(double base, uint64_t exponent)
{
    double result = 1.0;
    for (double square = base; exponent != 0; exponent >>= 1, square *= square)
        if ((exponent & 1) != 0)
            result *= square;
    return result;
}
