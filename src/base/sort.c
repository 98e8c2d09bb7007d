/* sort.c -- orders for qsort() and bsearch(). */
#include "base/sort.h"

#include <string.h>

int lki_by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int lki_by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
