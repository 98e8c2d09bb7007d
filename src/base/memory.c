/* memory.c -- zeroed allocation, aligned to cache lines, whose failures name the purpose. */
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64 };

/* The size from which memory is requested in huge pages.  Matrices are also read by columns, and
 * with 4 KiB pages every element of a column needs its own address translation. */
#define HUGE_BYTES ((size_t)2 << 20)

lk_status lki_alloc_untouched(void **out, size_t bytes, const char *what)
{
    *out = NULL;
    if (bytes > SIZE_MAX - ALIGNMENT)
        return lk_fail(LK_ENOMEM, "%s: %zu bytes are more than any machine has", what, bytes);
    size_t alignment = bytes >= HUGE_BYTES ? HUGE_BYTES : ALIGNMENT;
    size_t padded    = lki_round_up(lki_max(bytes, 1), ALIGNMENT);
    void  *memory    = NULL;
    if (posix_memalign(&memory, alignment, padded) != 0)
        return lk_fail(LK_ENOMEM, "%s: no memory for %zu bytes", what, bytes);
#ifdef MADV_HUGEPAGE
    if (alignment == HUGE_BYTES)
        (void)madvise(memory, padded, MADV_HUGEPAGE); /* optional: works without them too */
#endif
    *out = memory;
    return LK_OK;
}

lk_status lki_alloc(void **out, size_t bytes, const char *what)
{
    LK_TRY(lki_alloc_untouched(out, bytes, what));
    memset(*out, 0, lki_round_up(lki_max(bytes, 1), ALIGNMENT));
    return LK_OK;
}

lk_status lki_alloc_array(void **out, size_t count, size_t size, const char *what)
{
    size_t bytes;
    *out = NULL;
    if (__builtin_mul_overflow(count, size, &bytes))
        return lk_fail(LK_ENOMEM, "%s: %zu elements of %zu bytes are more than any machine has",
                       what, count, size);
    return lki_alloc(out, bytes, what);
}

void lki_free(void *memory)
{
    free(memory);
}

lk_status lki_reserve(void **pointer, size_t *capacity, size_t count, size_t size, const char *what)
{
    if (count < *capacity)
        return LK_OK;
    size_t wider  = *capacity == 0 ? 16 : 2 * *capacity;
    void  *memory = NULL;
    LK_TRY(lki_alloc_array(&memory, wider, size, what));
    if (*pointer != NULL)
        memcpy(memory, *pointer, count * size);
    free(*pointer);
    *pointer  = memory;
    *capacity = wider;
    return LK_OK;
}
