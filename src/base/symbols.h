/* base/symbols.h -- fills a table of functions from a library that is loaded at run time. */
#ifndef LKI_SYMBOLS_H
#define LKI_SYMBOLS_H

#include "base/status.h"

/* A function by its name, and the place of its pointer in a struct. */
typedef struct { const char *name; size_t offset; } lki_symbol;

/* Stores the functions of `library`, a handle of dlopen(), in the struct at `out`.  Returns the
 * name of the first function that the library does not have, or NULL. */
const char *lki_symbols_find(void *out, void *library, const lki_symbol *symbols, size_t count);

#endif
