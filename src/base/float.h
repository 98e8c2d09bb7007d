/* base/float.h -- reads and sets the floating-point mode of this thread (rounding, subnormal
 * numbers), and finds values that are not finite.
 *
 * A program linked with -ffast-math flushes subnormal numbers to zero in all its threads, and a
 * program may select another rounding direction.  Both change the results silently.  A new thread
 * inherits the mode of its creator.  The standard mode is that of a new process: round to nearest
 * even, subnormal numbers preserved.
 */
#ifndef LKI_FLOAT_H
#define LKI_FLOAT_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#define LKI_FLOAT_STANDARD UINT64_C(0x1f80) /* all exceptions masked, all other bits 0 */
#else
#define LKI_FLOAT_STANDARD UINT64_C(0)
#endif

/* The bits of the mode which, if set, make the processor replace subnormal operands and results by
 * zero. */
#if defined(__x86_64__)
#define LKI_FLOAT_FLUSH UINT64_C(0x8040)
#endif

static inline uint64_t lki_float_mode(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr() & ~UINT64_C(0x3f); /* without the sticky exception flags */
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

/* Returns the index of the first value that is infinite or NaN; `count` if there is none. */
static inline size_t lki_finite_count(const float *values, size_t count)
{
    size_t i = 0;
    while (i < count && isfinite(values[i]))
        i++;
    return i;
}

#endif
