/* adasum.c -- the factors of adaptive summation, and the selection of loops for this processor.
 *
 * Cost: the dot products read both vectors once.  The sum reads both once and overwrites one of
 * them.
 */
#include "device/adasum.h"

#include <math.h>

#include "base/status.h"
#include "device/adasum_loops.h"

static const lki_adasum_loops *loops_of(size_t width)
{
    const lki_adasum_loops *table = lki_adasum_portable;

    LK_ASSERT(width == sizeof(float) || width == sizeof(double));
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        table = lki_adasum_avx512;
    else if (__builtin_cpu_supports("avx2"))
        table = lki_adasum_avx2;
#endif
    return &table[width == sizeof(double)];
}

lki_dots lki_dots_block(size_t width, size_t n, const void *a, const void *b)
{
    LK_ASSERT(n <= LKI_DOT_BLOCK);
    return loops_of(width)->dots(n, a, b);
}

/* Returns 1 - dot / (2 norm).  Divides by 2 last, because twice the norm may exceed the range of
 * double. */
static double factor(double dot, double norm)
{
    return norm > 0 ? 1 - 0.5 * (dot / norm) : 1;
}

void lki_adasum(size_t width, size_t n, const lki_dots *dots, void *left, const void *right)
{
    bool   finite = isfinite(dots->ab) && isfinite(dots->aa) && isfinite(dots->bb);
    double a      = finite ? factor(dots->ab, dots->aa) : (double)NAN;
    double b      = finite ? factor(dots->ab, dots->bb) : (double)NAN;

    loops_of(width)->mix(n, a, b, left, right);
}
