/* microhttpd.c -- loads GNU libmicrohttpd when a page is first served. */
#include "report/microhttpd.h"

#ifdef LKI_MICROHTTPD

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>

static const char LIBRARY[] = "libmicrohttpd.so.12";

static const struct {
    const char *name;
    size_t      offset;
} FUNCTIONS[] = {
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
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof FUNCTIONS[0]; i++) {
        void *found = dlsym(out->handle, FUNCTIONS[i].name);
        if (found == NULL) {
            lki_microhttpd_unload(out);
            return lk_fail(LK_EUNSUPPORTED, "%s has no %s: install the package libmicrohttpd12",
                           LIBRARY, FUNCTIONS[i].name);
        }
        memcpy((char *)out + FUNCTIONS[i].offset, &found, sizeof found);
    }
    return LK_OK;
}

void lki_microhttpd_unload(lki_microhttpd *library)
{
    if (library->handle != NULL)
        (void)dlclose(library->handle);
    *library = (lki_microhttpd){ 0 };
}

#endif
