/* cli/beginning.h -- the first bytes of a file, which show its kind, so that a command replaces no
 * file of another kind. */
#ifndef LKI_CLI_BEGINNING_H
#define LKI_CLI_BEGINNING_H

#include <stddef.h>

/* Reads the first bytes of a regular file.  Returns how many there are, up to `bytes`; 0 if it is
 * empty or cannot be read, or if the path is that of something else. */
size_t lki_read_beginning(const char *path, void *out, size_t bytes);

#endif
