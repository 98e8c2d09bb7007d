/* cli/paths.h -- what is at a path, as far as the first bytes of a file and the names in a folder
 * show. */
#ifndef LKI_CLI_PATHS_H
#define LKI_CLI_PATHS_H

#include <stdbool.h>
#include <stddef.h>

/* Reads the first bytes of a regular file.  Returns how many there are, up to `bytes`; 0 if it is
 * empty or cannot be read, or if the path is that of something else. */
size_t lki_read_beginning(const char *path, void *out, size_t bytes);

/* Returns NULL if a path is that of a file that can be read, more than once if need be.  Otherwise
 * returns the reason: a pipe, for example, may have no writer, and the workers read it, too. */
const char *lki_why_unreadable(const char *path);

/* Returns true if a folder has a file. */
bool lki_has_file(const char *folder, const char *name);

/* Returns true if a path is that of the directory of a run: it has a record or checkpoints. */
bool lki_is_run(const char *path);

#endif
