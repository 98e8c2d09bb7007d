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

FILE *lki_open_draft(lki_draft *names, const char *path)
{
    char *real = realpath(path, NULL);
    int   used = snprintf(names->file, sizeof names->file, "%s", real != NULL ? real : path);
    free(real);
    names->draft[0] = '\0';
    if (used >= (int)sizeof names->file) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    (void)snprintf(names->draft, sizeof names->draft, "%s.%ld.new", names->file, (long)getpid());
    return fopen(names->draft, "wxe");
}

bool lki_replace_file(const char *path, const char *text, size_t bytes)
{
    lki_draft names;
    FILE     *file = lki_open_draft(&names, path);
    bool good = file != NULL && fwrite(text, 1, bytes, file) == bytes && fflush(file) == 0 &&
                fsync(fileno(file)) == 0;
    int  why  = errno;
    if (file != NULL && fclose(file) != 0 && good) {
        why  = errno;
        good = false;
    }
    if (good && rename(names.draft, names.file) != 0) {
        why  = errno;
        good = false;
    }
    if (file != NULL && !good)
        (void)unlink(names.draft);
    errno = why;
    return good;
}
