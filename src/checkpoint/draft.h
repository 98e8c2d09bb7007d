/* checkpoint/draft.h -- a checkpoint that comes about: one process opens its directory and
 * publishes it, and any number of them write its files.  See draft.c. */
#ifndef LKI_DRAFT_H
#define LKI_DRAFT_H

#include <jansson.h>

#include "base/status.h"
#include "lockstep/checkpoint.h"

/* Elements [first, first + count) of a tensor; data: NULL where somebody else has them. */
typedef struct {
    size_t      tensor, first, count;
    const void *data;
} lki_stretch;

/* A file on the disk that has stretches of the tensors of file `of`, at most one of each. */
typedef struct {
    const char        *name;
    size_t             of;
    const lki_stretch *stretches;
    size_t             count;
} lki_part;

/* All that is in a checkpoint.  Files of which there are parts lie in these, without holes. */
typedef struct {
    const lk_checkpoint_info *info;
    const lk_checkpoint_file *files;
    size_t                    file_count;
    const lki_part           *parts;
    size_t                    part_count;
} lki_contents;

typedef struct lki_draft lki_draft;

/* LK_EINVAL says what no checkpoint can have. */
LK_NODISCARD lk_status lki_contents_check(const lki_contents *contents);

/* Whether a file lies in parts. */
bool lki_contents_has_parts(const lki_contents *contents, size_t file);

/* Makes DIR/.tmp-step-... for a step.  LK_EINVAL when the step is already there and whole. */
LK_NODISCARD lk_status lki_draft_open(lki_draft **out, const char *dir, uint64_t step);

/* Its name in DIR: who sees it there can write into it. */
const char *lki_draft_name(const lki_draft *draft);
const char *lki_draft_path(const lki_draft *draft);

/* Writes a file into the directory `path` of a draft, until it is on the disk, and adds what the
 * manifest says of it to `entries`. */
LK_NODISCARD lk_status lki_draft_write_file(const char *path, const lk_checkpoint_file *file,
                                            json_t *entries);
LK_NODISCARD lk_status lki_draft_write_part(const char *path, const lki_contents *contents,
                                            const lki_part *part, json_t *entries);

/* When all files are there, of which `entries` tell: writes the manifest and gives the directory
 * its final name; then removes older steps as lk_checkpoint_write() does. */
LK_NODISCARD lk_status lki_draft_publish(lki_draft *draft, const lki_contents *contents,
                                         const json_t *entries, uint32_t keep);

/* What is not published is removed. */
void lki_draft_free(lki_draft *draft);

#endif
