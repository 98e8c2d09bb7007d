/* checkpoint/draft.h -- a checkpoint being written.
 *
 * One process opens the draft's directory and publishes it.  Any number of processes write its
 * files.  See draft.c.
 */
#ifndef LKI_DRAFT_H
#define LKI_DRAFT_H

#include <jansson.h>

#include "base/status.h"
#include "lockstep/checkpoint.h"

/* Elements [first, first + count) of a tensor. `data` is NULL if these elements are in another
 * process. */
typedef struct {
    size_t      tensor, first, count;
    const void *data;
} lki_stretch;

/* A file on disk that holds stretches of the tensors of the logical file `of`, at most one stretch
 * per tensor. */
typedef struct {
    const char        *name;
    size_t             of;
    const lki_stretch *stretches;
    size_t             count;
} lki_part;

/* The complete contents of a checkpoint.  A file that has parts is stored only in its parts,
 * without gaps. */
typedef struct {
    const lk_checkpoint_info *info;
    const lk_checkpoint_file *files;
    size_t                    file_count;
    const lki_part           *parts;
    size_t                    part_count;
} lki_contents;

typedef struct lki_draft lki_draft;

/* Returns LK_EINVAL, with the reason, if the contents cannot be stored. */
LK_NODISCARD lk_status lki_contents_check(const lki_contents *contents);

/* Returns true if a file is stored in parts. */
bool lki_contents_has_parts(const lki_contents *contents, size_t file);

/* Creates DIR/.tmp-step-... for a step.  Returns LK_EINVAL if the step exists and is complete. */
LK_NODISCARD lk_status lki_draft_open(lki_draft **out, const char *dir, uint64_t step);

/* Returns the draft's name in DIR, with which other processes can write into it. */
const char *lki_draft_name(const lki_draft *draft);
/* Returns the path of the draft's directory. */
const char *lki_draft_path(const lki_draft *draft);

/* Writes a file durably into the directory `path` of a draft, and adds its manifest entry to
 * `entries`. */
LK_NODISCARD lk_status lki_draft_write_file(const char *path, const lk_checkpoint_file *file,
                                            json_t *entries);
/* Writes a part durably into the directory `path` of a draft, and adds its manifest entry to
 * `entries`. */
LK_NODISCARD lk_status lki_draft_write_part(const char *path, const lki_contents *contents,
                                            const lki_part *part, json_t *entries);

/* Publishes the draft.  Called when all its files exist; `entries` has their manifest entries.
 * Writes the manifest, gives the directory its final name, and removes older steps as
 * lk_checkpoint_write() does. */
LK_NODISCARD lk_status lki_draft_publish(lki_draft *draft, const lki_contents *contents,
                                         const json_t *entries, uint32_t keep);

/* Frees the draft.  Removes an unpublished draft from disk. */
void lki_draft_free(lki_draft *draft);

#endif
