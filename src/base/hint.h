/* base/hint.h -- hints to the processor, which change no result. */
#ifndef LKI_HINT_H
#define LKI_HINT_H

/* Lets the other thread of the core run, in a loop that waits for another thread. */
static inline void lki_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Requests a cache line for writing.  Without PRFCHW, __builtin_prefetch() would request it for
 * reading, and the first write would transfer the line a second time. */
static inline void lki_prefetch_to_write(const void *line)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

#endif
