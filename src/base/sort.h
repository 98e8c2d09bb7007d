/* base/sort.h -- orders for qsort() and bsearch(). */
#ifndef LKI_SORT_H
#define LKI_SORT_H

/* Orders two texts, or two structs that begin with a pointer to a text, by their bytes. */
int lki_by_bytes(const void *a, const void *b);

/* Orders two doubles by value.  Neither may be a NaN. */
int lki_by_value(const void *a, const void *b);

#endif
