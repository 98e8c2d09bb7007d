/* data/fileset.h -- the files that make up a data set, and the samples of a tar archive. */
#ifndef LKI_DATA_FILESET_H
#define LKI_DATA_FILESET_H

#include "base/file.h"
#include "data/files.h"
#include "lockstep/data.h"

typedef struct {
    lki_map map;
    char   *path;
} lki_mapped;

typedef struct {
    lki_mapped *at;
    size_t     count, capacity;
} lki_fileset;

/* Maps a file; or the files below a folder whose names end with one of `endings` (which end with
 * NULL), in byte order of their relative paths; or those of a range, "HEAD{000..127}TAIL", the
 * numbers as wide as the first is written; and has them watched.  What is open at a failure is the
 * list's to close. */
LK_NODISCARD lk_status lki_fileset_open(lki_fileset *set, lk_dataset *dataset, const char *path,
                                       const char *const *endings);
void                   lki_fileset_close(lki_fileset *set);

/* The hash of all of them, in order, and of one `more`. */
LK_NODISCARD lk_status lki_fileset_hash(const lki_fileset *set, const char more[33],
                                       char hex[33]);

bool lki_ends_with(const char *path, const char *end);

/* ---- Samples as WebDataset packs them ------------------------------------------------------- */

/* Members that follow each other and have the same key are one sample: the key is the name up to
 * the first dot after the last slash.  A walk begins with lki_tar_begin() of its `tar`. */
typedef struct {
    lki_tar        tar;
    lki_tar_member member;
    const char    *extension; /* of it: what stands behind that dot */
    char           key[LKI_TAR_NAME_MAX + 1]; /* of the sample at hand; "": none so far */
    size_t         begun;                     /* the byte where it did */
    bool           more, held;                /* the member at hand is still to be told */
} lki_tar_walk;

typedef enum {
    LKI_TAR_MEMBER, /* `member` belongs to the sample at hand */
    LKI_TAR_SAMPLE, /* that one is complete, or there was none */
    LKI_TAR_END,    /* so is the archive */
} lki_tar_event;

LK_NODISCARD lk_status lki_tar_walk_next(lki_tar_walk *walk, lki_tar_event *event);

/* All of a file: an archive, and those that follow it. */
typedef struct {
    void *context;
    lk_status (*member)(void *context, const lki_tar *tar, const lki_tar_member *member,
                        const char *extension);
    lk_status (*end)(void *context, const lki_tar *tar, const char *key, size_t start);
} lki_tar_visitor;

LK_NODISCARD lk_status lki_tar_visit(const lki_mapped *shard, const lki_tar_visitor *visitor);

#endif
