/* cli/replace.h -- replaces whole files. */
#ifndef LKI_CLI_REPLACE_H
#define LKI_CLI_REPLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Writes text to a file, and closes it.  Returns false with errno set. */
bool lki_fill_file(FILE *file, const char *text, size_t bytes);

/* The names of a draft and of the file that it is to replace. */
typedef struct { char draft[4160], file[4128]; } lki_draft;

/* Opens a new file beside the one at `path`, or beside the one that a symbolic link names, which it
 * is to replace by rename().  Its name has the id of this process.  Returns NULL with errno set,
 * which is EEXIST if a file has that name. */
FILE *lki_open_draft(lki_draft *names, const char *path);

/* Replaces a file, or the one that a symbolic link names, by a draft beside it that is on disk.  So
 * a failure leaves what was there.  Returns false with errno set. */
bool lki_replace_file(const char *path, const char *text, size_t bytes);

#endif
