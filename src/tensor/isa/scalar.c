/* scalar.c -- the elementary functions on one value, with the bits of the vector kernels.
 *
 * The float functions are isa/math.inc compiled for one lane.  The functions of doubles are for
 * schedules and bias corrections, for which accuracy is cheap.  They are Taylor series whose error
 * is below the last place; arguments are reduced by quarters of a turn, with pi / 2 in three parts.
 */
#include <stdint.h>
#include <string.h>

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

/* Returns the sum of (-s)^i / ((from + 1)(from + 2) ... (from + 2i)): cos if from is 0, sin x / x
 * if 1. */
static double series(double s, int from)
{
    double sum = 1.0;
    for (int i = from + 16; i > from; i -= 2)
        sum = 1.0 - s * sum / (double)((i - 1) * i);
    return sum;
}

/* Returns the cosine of x - `turned` quarters of a turn. */
static double cos_turned(double x, int64_t turned)
{
    double  quarters = x * 0x1.45f306dc9c883p-1; /* 2 / pi */
    int64_t q        = (int64_t)(quarters < 0 ? quarters - 0.5 : quarters + 0.5);
    double  n        = (double)q;
    /* The first two parts have 33 bits, so their products with n < 2^20 are exact. */
    double r = ((x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
    double s = r * r;
    q -= turned;
    double y = (q & 1) != 0 ? r * series(s, 1) : series(s, 0);
    return ((q + 1) & 2) != 0 ? -y : y;
}

double lki_cos(double x)
{
    return cos_turned(x, 0);
}

double lki_sin(double x)
{
    return cos_turned(x, 1);
}

double lki_powi(double base, uint64_t exponent)
{
    double result = 1.0;
    for (double square = base; exponent != 0; exponent >>= 1, square *= square)
        if ((exponent & 1) != 0)
            result *= square;
    return result;
}

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Returns log x without e log 2, for a normal x = m 2^e with m in [2/3, 4/3): log x = e log 2 + 2
 * atanh(s), s = (m - 1) / (m + 1). */
static double log_parts(double x, int *exponent)
{
    uint64_t bits = bits_of(x);
    int      e    = (int)(bits >> 52) - 1023;
    double   m    = from_bits((bits & UINT64_C(0xfffffffffffff)) | UINT64_C(0x3ff) << 52);
    if (m >= 4.0 / 3.0) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1.0) / (m + 1.0), square = s * s, sum = 0.0;
    for (int i = 27; i >= 1; i -= 2)
        sum = sum * square + 1.0 / (double)i;
    *exponent = e;
    return 2.0 * s * sum;
}

double lki_pow(double x, double y)
{
    static const double log2_e = 0x1.71547652b82fep+0, ln2 = 0x1.62e42fefa39efp-1;
    int                 e;
    if (y == (double)(uint64_t)y)
        return lki_powi(x, (uint64_t)y);
    if (x < 0x1p-1000)
        return 0.0;
    double  rest = log_parts(x, &e), power = y * ((double)e + rest * log2_e);
    int64_t k = (int64_t)(power - 0.5); /* `power` is not above 0 */
    double  r = (power - (double)k) * ln2, sum = 1.0;
    if (k < -1000)
        return 0.0;
    for (int i = 18; i >= 1; i--)
        sum = 1.0 + r * sum / (double)i;
    return sum * from_bits((uint64_t)(1023 + k) << 52);
}
