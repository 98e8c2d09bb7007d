/* mpi_library.c -- loads the MPI library that this process's launcher belongs to.
 *
 * Modules are not linked with an MPI, because the same binary interface has several file names, and
 * a machine may have several MPIs.  The library is loaded with global symbols, which the module and
 * MPI's own plugins need.  It stays loaded, because MPI does not survive unloading.
 */
#include "launch/mpi_library.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ANCESTORS = 16, TRIED_BYTES = 600 };

/* Programs of MPIs that start ranks, in the folder bin beside the folder of the library. */
static const char *const starters[] = { "mpirun",        "mpiexec",         "mpiexec.hydra",
                                        "orterun",       "orted",           "prte",
                                        "prterun",       "prted",           "hydra_pmi_proxy",
                                        "hydra_bstrap_proxy" };

enum { STARTERS = sizeof starters / sizeof starters[0] };

static bool load(const char *path)
{
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL) != NULL;
}

bool lki_mpi_library_is_loaded(const char *const *names)
{
    for (; *names != NULL; names++)
        if (dlopen(*names, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) != NULL)
            return true;
    return false;
}

/* Returns the parent of a process; 0 if it has none, or it cannot be read. */
static pid_t parent_of(pid_t pid)
{
    char  path[64], text[512] = "";
    int   parent = 0;
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[bytes]     = '\0';
    const char *end = strrchr(text, ')'); /* the name before it may have blanks */
    return end != NULL && sscanf(end + 1, " %*c %d", &parent) == 1 ? (pid_t)parent : 0;
}

/* Writes the folder above the one of the program that started the ranks of this host: "/opt/mpi" of
 * "/opt/mpi/bin/prted".  Returns false if no such program is among the ancestors. */
static bool find_prefix(char out[PATH_MAX])
{
    pid_t pid = getppid();

    for (int i = 0; i < ANCESTORS && pid > 1; i++, pid = parent_of(pid)) {
        char link[64];
        (void)snprintf(link, sizeof link, "/proc/%d/exe", (int)pid);
        ssize_t length = readlink(link, out, PATH_MAX - 1);
        if (length <= 0)
            continue;
        out[length] = '\0';
        for (int k = 0; k < STARTERS; k++)
            if (strcmp(strrchr(out, '/') + 1, starters[k]) == 0) {
                (void)dirname(dirname(out));
                return true;
            }
    }
    return false;
}

/* Loads one of the libraries from a folder of the launcher's installation.  `tried` becomes the
 * folder in which they were not found. */
static bool load_beside_launcher(const char *const *names, char tried[TRIED_BYTES])
{
    static const char *const folders[] = { "lib", "lib64" };
    char                     prefix[PATH_MAX], path[PATH_MAX + 64];

    tried[0] = '\0';
    if (!find_prefix(prefix))
        return false;
    (void)snprintf(tried, TRIED_BYTES, "in %.500s/lib, ", prefix);
    for (; *names != NULL; names++)
        for (int i = 0; i < 2; i++) {
            (void)snprintf(path, sizeof path, "%s/%s/%s", prefix, folders[i], *names);
            if (access(path, R_OK) == 0 && load(path))
                return true;
        }
    return false;
}

static lk_status not_found(const char *mpi, const char *const *names, const char *tried)
{
    return lk_fail(LK_EUNSUPPORTED, "the library of %s, %s%s%s, was not found (looked %sand where "
                   "the system's loader looks): set LD_LIBRARY_PATH to its folder, or "
                   "LOCKSTEP_MPI_LIBRARY to its path; LOCKSTEP_MPI=off uses TCP", mpi, names[0],
                   names[1] != NULL ? " or " : "", names[1] != NULL ? names[1] : "", tried);
}

/* Not inlined, because sanitizers would put wide margins around paths in the caller's frame. */
__attribute__((noinline)) lk_status lki_mpi_library_load(const char *mpi, const char *const *names)
{
    const char *given = getenv("LOCKSTEP_MPI_LIBRARY");
    char        tried[TRIED_BYTES];

    if (dlsym(RTLD_DEFAULT, "MPI_Init_thread") != NULL || lki_mpi_library_is_loaded(names))
        return LK_OK;
    if (given != NULL)
        return load(given) ? LK_OK
                           : lk_fail(LK_EUNSUPPORTED, "LOCKSTEP_MPI_LIBRARY=%.300s cannot be "
                                     "loaded: %s", given, dlerror());
    if (load_beside_launcher(names, tried))
        return LK_OK;
    for (int i = 0; names[i] != NULL; i++)
        if (load(names[i]))
            return LK_OK;
    return not_found(mpi, names, tried);
}
