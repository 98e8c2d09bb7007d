/* symbols.c -- looks functions up in a library that is loaded at run time. */
#include "base/symbols.h"

#include <dlfcn.h>
#include <string.h>

const char *lki_symbols_find(void *out, void *library, const lki_symbol *symbols, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (found == NULL)
            return symbols[i].name;
        memcpy((char *)out + symbols[i].offset, &found, sizeof found);
    }
    return NULL;
}
