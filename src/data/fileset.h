/* data/fileset.h -- the files of a data set, and the samples of a tar archive. */
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

/* Maps the files of a data set and watches them for changes.  `path` is a file, a folder or a
 * range.  From a folder, takes the files that end in one of `endings` (terminated by NULL), in byte
 * order of their relative paths.  A range is "HEAD{000..127}TAIL".  All its numbers have as many
 * digits as the first.  After a failure the caller must still close the set. */
LK_NODISCARD lk_status lki_fileset_open(lki_fileset *set, lk_dataset *dataset, const char *path,
                                       const char *const *endings);
void                   lki_fileset_close(lki_fileset *set);

/* Computes the hash of all files, in order, and of a further hash `more`. */
LK_NODISCARD lk_status lki_fileset_hash(const lki_fileset *set, const char more[33],
                                       char hex[33]);

bool lki_ends_with(const char *path, const char *end);

/* ---- Samples as WebDataset packs them ------------------------------------------------------- */

/* A walk through an archive.  Consecutive members with the same key form one sample.  The key is
 * the name up to the first dot after the last slash.  A walk begins with lki_tar_begin() of its
 * `tar`. */
typedef struct {
    lki_tar        tar;
    lki_tar_member member;
    const char    *extension; /* extension of the member, without the dot */
    char           key[LKI_TAR_NAME_MAX + 1]; /* key of the current sample; "": none yet */
    size_t         begun;                     /* byte at which the current sample begins */
    bool           more, held;                /* held: `member` was read but not returned yet */
} lki_tar_walk;

typedef enum {
    LKI_TAR_MEMBER, /* `member` belongs to the current sample */
    LKI_TAR_SAMPLE, /* the current sample is complete, or the archive has no sample yet */
    LKI_TAR_END,    /* the archive has ended */
} lki_tar_event;

LK_NODISCARD lk_status lki_tar_walk_next(lki_tar_walk *walk, lki_tar_event *event);

/* Callbacks for all archives in a file. */
typedef struct {
    void *context;
    lk_status (*member)(void *context, const lki_tar *tar, const lki_tar_member *member,
                        const char *extension);
    lk_status (*end)(void *context, const lki_tar *tar, const char *key, size_t start);
} lki_tar_visitor;

/* Walks through all archives in a file. */
LK_NODISCARD lk_status lki_tar_visit(const lki_mapped *shard, const lki_tar_visitor *visitor);

#endif
