/* base/float.h -- how this thread's processor rounds and treats tiny numbers; which are finite.
 *
 * A program linked with -ffast-math flushes subnormal numbers to zero in all its threads, and one
 * may round in another direction: both change bits without any sign.  A new thread inherits the
 * mode of the one that starts it.  Standard is what a process is born with: to nearest even,
 * subnormal numbers kept.
 */
#ifndef LKI_FLOAT_H
#define LKI_FLOAT_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#define LKI_FLOAT_STANDARD UINT64_C(0x1f80) /* every exception masked, all else 0 */
#else
#define LKI_FLOAT_STANDARD UINT64_C(0)
#endif

/* The bits of a mode in which subnormal operands and results are zeros. */
#if defined(__x86_64__)
#define LKI_FLOAT_FLUSH UINT64_C(0x8040)
#endif

static inline uint64_t lki_float_mode(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr() & ~UINT64_C(0x3f); /* what has happened is no mode */
#elif defined(__aarch64__)
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
#else
    return LKI_FLOAT_STANDARD;
#endif
}

static inline void lki_float_mode_set(uint64_t mode)
{
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr((uint32_t)mode);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#else
    (void)mode;
#endif
}

static inline bool lki_float_is_standard(void)
{
    return lki_float_mode() == LKI_FLOAT_STANDARD;
}

/* How many values stand before the first that is infinite or no number; `count`: there is none. */
static inline size_t lki_finite_count(const float *values, size_t count)
{
    size_t i = 0;
    while (i < count && isfinite(values[i]))
        i++;
    return i;
}

#endif
