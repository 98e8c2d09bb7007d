/* base/memory.h -- allocation with a status. */
#ifndef LKI_MEMORY_H
#define LKI_MEMORY_H

#include "base/status.h"

enum { LKI_LINE = 64 }; /* bytes of a cache line */

/* Allocates zeroed memory, in multiples of 64 bytes and aligned to 64.  If memory is exhausted,
 * returns LK_ENOMEM, with `what` in the message. */
LK_NODISCARD lk_status lki_alloc(void **out, size_t bytes, const char *what);
void lki_free(void *memory);

/* Allocates as lki_alloc() does, but without zeroing.  The contents are undefined, and no page has
 * been touched. */
LK_NODISCARD lk_status lki_alloc_untouched(void **out, size_t bytes, const char *what);

/* Allocates a zeroed array of `count` elements of *pointer.  Returns LK_ENOMEM if the size
 * overflows. */
#define LKI_NEW(pointer, count, what)                                                            \
    lki_alloc_array((void **)(pointer), (count), sizeof **(pointer), (what))
LK_NODISCARD lk_status lki_alloc_array(void **out, size_t count, size_t size, const char *what);

/* Ensures that the array *pointer, which has `count` elements of `size` bytes, has room for one
 * more element. *capacity is the array's capacity in elements. */
LK_NODISCARD lk_status lki_reserve(void **pointer, size_t *capacity, size_t count, size_t size,
                                   const char *what);

static inline size_t lki_divide_up(size_t value, size_t unit)
{
    return (value + unit - 1) / unit;
}

static inline size_t lki_round_up(size_t value, size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static inline size_t lki_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t lki_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

#endif
