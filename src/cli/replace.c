/* replace.c -- replaces whole files; see replace.h. */
#include "cli/replace.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

bool lki_fill_file(FILE *file, const char *text, size_t bytes)
{
    bool good = fwrite(text, 1, bytes, file) == bytes && fflush(file) == 0;
    int  why  = errno;
    if (fclose(file) != 0)
        return false;
    errno = why;
    return good;
}

bool lki_replace_file(const char *path, const char *text, size_t bytes)
{
    char        draft[4160];
    char       *real = realpath(path, NULL);
    const char *name = real != NULL ? real : path;
    (void)snprintf(draft, sizeof draft, "%.4096s.%ld.new", name, (long)getpid());
    FILE *file = fopen(draft, "wxe");
    bool  good = file != NULL && fwrite(text, 1, bytes, file) == bytes && fflush(file) == 0 &&
                fsync(fileno(file)) == 0;
    int   why  = errno;
    if (file != NULL && fclose(file) != 0 && good) {
        why  = errno;
        good = false;
    }
    if (good && rename(draft, name) != 0) {
        why  = errno;
        good = false;
    }
    if (file != NULL && !good)
        (void)unlink(draft);
    free(real);
    errno = why;
    return good;
}
