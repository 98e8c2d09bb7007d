/* modules.c -- finds modules that are loaded on demand. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "lockstep/launch.h"

/* Returns the folder of this program, without a trailing slash. */
static void program_folder(char *out, size_t bytes)
{
    ssize_t length = readlink("/proc/self/exe", out, bytes - 1);

    out[length < 0 ? 0 : length] = '\0';
    char *slash = strrchr(out, '/');
    if (slash != NULL)
        *slash = '\0';
}

/* Returns the folder of the file that has this code: the shared library, or the program. */
static void library_folder(char *out, size_t bytes)
{
    static const char here;
    Dl_info           info;

    out[0] = '\0';
    if (dladdr(&here, &info) != 0 && info.dli_fname != NULL)
        (void)snprintf(out, bytes, "%s", info.dli_fname);
    char *slash = strrchr(out, '/');
    if (slash != NULL)
        *slash = '\0';
}

/* Returns the i-th folder to search.  If LOCKSTEP_MODULES is set, the only folder is its value.
 * Otherwise the program's folder comes first, then those of the library: its own, as in a Python
 * package, and that of the installation.  Returns false after the last folder. */
static bool folder(char out[LK_MODULE_PATH], int i)
{
    const char *said = getenv("LOCKSTEP_MODULES");
    char        program[LK_MODULE_PATH / 2];

    if (said != NULL) {
        (void)snprintf(out, LK_MODULE_PATH, "%s", said);
        return i < 1;
    }
    program_folder(program, sizeof program);
    switch (i) {
    case 0: (void)snprintf(out, LK_MODULE_PATH, "%s", program); break;
    case 1: (void)snprintf(out, LK_MODULE_PATH, "%s/../lib/lockstep", program); break;
    case 2: library_folder(out, LK_MODULE_PATH); break;
    default: (void)snprintf(out, LK_MODULE_PATH, "%s", LK_MODULE_FOLDER); break;
    }
    return i < 4;
}

/* Not inlined, because sanitizers would put wide margins around paths in the caller's frame. */
__attribute__((noinline)) lk_status lk_module_find(char path[LK_MODULE_PATH], const char *name,
                                                   const char *package)
{
    char   each[LK_MODULE_PATH], tried[360] = "";
    size_t used = 0;

    LK_TRY(lki_check_given("lk_module_find", "name", name, 1));
    LK_TRY(lki_check_given("lk_module_find", "package", package, 1));
    for (int i = 0; folder(each, i); i++) {
        int length = snprintf(path, LK_MODULE_PATH, "%.4000s/lockstep-%.32s.so", each, name);
        if (length < LK_MODULE_PATH && access(path, R_OK) == 0)
            return LK_OK;
        if (used < sizeof tried)
            used += (size_t)snprintf(tried + used, sizeof tried - used, "%s%s", i > 0 ? ", " : "",
                                     each);
    }
    return lk_fail(LK_EUNSUPPORTED, "there is no lockstep-%s.so (looked in %s): build lockstep "
                   "where the package %s is installed, or set LOCKSTEP_MODULES to the folder that "
                   "has it", name, tried, package);
}
