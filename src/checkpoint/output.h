/* checkpoint/output.h -- a file that is hashed while it is written. */
#ifndef LKI_OUTPUT_H
#define LKI_OUTPUT_H

#include <jansson.h>

#include "base/hash.h"
#include "base/status.h"

#define LKI_BLOCK_BYTES ((size_t)1 << 20) /* bytes that one XXH3-128 in the manifest covers */

typedef struct {
    const char *path; /* borrowed, for messages */
    int         fd;
    uint8_t    *block; /* bytes that are not yet written */
    size_t      filled;
    uint64_t    bytes;  /* number of bytes added so far */
    json_t     *blocks; /* JSON array with the hashes of the full blocks written so far; after
                         * lki_output_finish(), of all blocks */
    lki_sha256  hash;
    char        sha256[65]; /* set by finish */
} lki_output;

/* Creates the file `path`.  With `fresh`, `path` must not exist.  Returns LK_EIO with the reason.
 * Call lki_output_free() also after a failure. */
LK_NODISCARD lk_status lki_output_open(lki_output *out, const char *path, bool fresh);
/* Appends bytes. */
LK_NODISCARD lk_status lki_output_add(lki_output *output, const void *data, size_t bytes);

/* Writes the remaining bytes, syncs the file to disk if `sync`, and closes it.  A failed fsync is
 * never repeated, because the kernel may have dropped the unwritten pages, and a second fsync could
 * report false success. */
LK_NODISCARD lk_status lki_output_finish(lki_output *output, bool sync);
void lki_output_free(lki_output *output);

/* Writes a whole file and syncs it to disk.  With `fresh`, `path` must not exist. */
LK_NODISCARD lk_status lki_output_write(const char *path, bool fresh, const void *data,
                                        size_t bytes);

/* Writes a new file with an object as indented JSON, with sorted keys and a line end.  Numbers have
 * as many digits as they need. */
LK_NODISCARD lk_status lki_output_write_json(const char *path, const json_t *object);

#endif
