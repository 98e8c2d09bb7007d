/* base/memory.h -- allocation with a status. */
#ifndef LKI_MEMORY_H
#define LKI_MEMORY_H

#include "base/status.h"

/* Zeroed memory, in whole units of 64 bytes and aligned to them; LK_ENOMEM names `what`. */
LK_NODISCARD lk_status lki_alloc(void **out, size_t bytes, const char *what);
void lki_free(void *memory);

/* The same, but what it holds is not known: nobody has written to its pages yet. */
LK_NODISCARD lk_status lki_alloc_untouched(void **out, size_t bytes, const char *what);

/* lki_alloc() of `count` elements of *pointer; overflow is LK_ENOMEM. */
#define LKI_NEW(pointer, count, what)                                                            \
    lki_alloc_array((void **)(pointer), (count), sizeof **(pointer), (what))
LK_NODISCARD lk_status lki_alloc_array(void **out, size_t count, size_t size, const char *what);

/* Grows *pointer (count elements of `size` bytes, capacity in *capacity) to hold one more. */
LK_NODISCARD lk_status lki_reserve(void **pointer, size_t *capacity, size_t count, size_t size,
                                   const char *what);

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
