/* microhttpd.c -- loads GNU libmicrohttpd when a page is first served. */
#include "report/microhttpd.h"

#ifdef LKI_MICROHTTPD

#include <dlfcn.h>
#include <stddef.h>
#include <sys/auxv.h>

#include "base/symbols.h"

static const char LIBRARY[] = "libmicrohttpd.so.12";

static const lki_symbol FUNCTIONS[] = {
#define LKI_MICROHTTPD_ROW(name) { #name, offsetof(lki_microhttpd, name) },
    LKI_MICROHTTPD_TABLE(LKI_MICROHTTPD_ROW)
#undef LKI_MICROHTTPD_ROW
};

lk_status lki_microhttpd_load(lki_microhttpd *out)
{
    *out = (lki_microhttpd){ 0 };
    if (getauxval(AT_BASE) == 0) /* a second libc would come with the library, and crash */
        return lk_fail(LK_EUNSUPPORTED,
                       "a command that is linked statically cannot serve a page, "
                       "because it cannot load %s: use one that is not, or write "
                       "the page to a file",
                       LIBRARY);
    out->handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (out->handle == NULL)
        return lk_fail(LK_EUNSUPPORTED,
                       "serving a page needs GNU libmicrohttpd (%s): install the package "
                       "libmicrohttpd12, or write the page to a file; the system says: %s",
                       LIBRARY, dlerror());
    const char *missing = lki_symbols_find(out, out->handle, FUNCTIONS,
                                           sizeof FUNCTIONS / sizeof FUNCTIONS[0]);
    if (missing == NULL)
        return LK_OK;
    lki_microhttpd_unload(out);
    return lk_fail(LK_EUNSUPPORTED, "%s has no %s: install the package libmicrohttpd12", LIBRARY,
                   missing);
}

void lki_microhttpd_unload(lki_microhttpd *library)
{
    if (library->handle != NULL)
        (void)dlclose(library->handle);
    *library = (lki_microhttpd){ 0 };
}

#endif
