/* checkpoint/output.h -- a file being written and hashed on the way. */
#ifndef LKI_OUTPUT_H
#define LKI_OUTPUT_H

#include <jansson.h>

#include "base/hash.h"
#include "base/status.h"

#define LKI_BLOCK_BYTES ((size_t)1 << 20) /* what one XXH3-128 of the manifest covers */

typedef struct {
    const char *path; /* borrowed, for messages */
    int         fd;
    uint8_t    *block; /* what is not written yet */
    size_t      filled;
    uint64_t    bytes;  /* handed over so far */
    json_t     *blocks; /* array: the hash of every full block; of all after finish */
    lki_sha256  hash;
    char        sha256[65]; /* set by finish */
} lki_output;

/* Creates `path`; with `fresh` it must not be there.  LK_EIO says why not.  free() in any case. */
LK_NODISCARD lk_status lki_output_open(lki_output *out, const char *path, bool fresh);
LK_NODISCARD lk_status lki_output_add(lki_output *output, const void *data, size_t bytes);

/* Writes the rest, with `sync` waits until it is on the disk, and closes.  After a failed fsync
 * the kernel may have dropped the pages, so it is never tried again: the file is lost. */
LK_NODISCARD lk_status lki_output_finish(lki_output *output, bool sync);
void lki_output_free(lki_output *output);

#endif
