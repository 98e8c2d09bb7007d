/* beginning.c -- reads the first bytes of a file; see beginning.h. */
#include "cli/beginning.h"

#include <stdio.h>
#include <sys/stat.h>

size_t lki_read_beginning(const char *path, void *out, size_t bytes)
{
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return 0;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    size_t got = fread(out, 1, bytes, file);
    (void)fclose(file);
    return got;
}
