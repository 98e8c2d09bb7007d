/* cli/replace.h -- replaces whole files. */
#ifndef LKI_CLI_REPLACE_H
#define LKI_CLI_REPLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Writes text to a file, and closes it.  Returns false with errno set. */
bool lki_fill_file(FILE *file, const char *text, size_t bytes);

/* Replaces a file, or the one that a symbolic link names, by a draft beside it that is on disk.  So
 * a failure leaves what was there.  Returns false with errno set. */
bool lki_replace_file(const char *path, const char *text, size_t bytes);

#endif
