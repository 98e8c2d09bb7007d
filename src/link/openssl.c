/* openssl.c -- loads OpenSSL 3 when TLS is first used. */
#include "link/openssl.h"

#include <dlfcn.h>
#include <string.h>

#include "base/symbols.h"

static const char LIBRARY[] = "libssl.so.3"; /* dlsym() also finds symbols of libcrypto, which this
                                              * library loads */

static const lki_symbol FUNCTIONS[] = {
#define LKI_OPENSSL_ROW(name) { #name, offsetof(lki_openssl, name) },
    LKI_OPENSSL_TABLE(LKI_OPENSSL_ROW)
#undef LKI_OPENSSL_ROW
};

lk_status lki_openssl_load(lki_openssl *out)
{
    *out        = (lki_openssl){ 0 };
    out->handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (out->handle == NULL)
        return lk_fail(LK_EUNSUPPORTED,
                       "TLS between hosts needs OpenSSL 3 (%s): install the package "
                       "libssl3, or run with `insecure` on a network that you "
                       "trust; the system says: %s",
                       LIBRARY, dlerror());
    const char *missing = lki_symbols_find(out, out->handle, FUNCTIONS,
                                           sizeof FUNCTIONS / sizeof FUNCTIONS[0]);
    if (missing == NULL)
        return LK_OK;
    lki_openssl_unload(out);
    return lk_fail(LK_EUNSUPPORTED,
                   "%s has no %s: install the package libssl3 (OpenSSL 3.0 or later), or run "
                   "with `insecure` on a network that you trust",
                   LIBRARY, missing);
}

void lki_openssl_unload(lki_openssl *openssl)
{
    if (openssl->handle != NULL)
        (void)dlclose(openssl->handle);
    *openssl = (lki_openssl){ 0 };
}

void *lki_openssl_data_of(const SSL *ssl)
{
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    LK_ASSERT(handle != NULL);
    void *found = dlsym(handle, "SSL_get_ex_data");
    LK_ASSERT(found != NULL);
    __typeof__(&SSL_get_ex_data) get;
    memcpy(&get, &found, sizeof get);
    void *data = get(ssl, 0);
    (void)dlclose(handle);
    return data;
}
