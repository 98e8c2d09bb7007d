/* train/saves/parts.h -- a checkpoint that several hosts write, each what it keeps.  See
 * parts.c. */
#ifndef LKI_TRAIN_PARTS_H
#define LKI_TRAIN_PARTS_H

#include "checkpoint/directory.h"
#include "train/saves/save.h"

/* One that is being written: what a rank knows of it. */
struct lki_writing {
    lki_draft *draft; /* rank 0's */
    char       path[LKI_PATH_BYTES];
    json_t    *entries; /* of the files that are written here; rank 0's of all, once gathered */
};

/* Collective: rank 0 opens a draft for a step, where `wanted`, and all learn where; *begun: whether
 * it did.  lki_writing_end() accepts a half-made one, and removes what is not published. */
LK_NODISCARD lk_status lki_writing_begin(lki_writing *out, const lki_session *session,
                                         uint64_t step, bool wanted, bool *begun);
void                   lki_writing_end(lki_writing *writing);

/* Writes what is mine of a writer's sheet; `first`: rank 0, whose files are also those that are
 * whole.  Asks nobody. */
LK_NODISCARD lk_status lki_writing_files(lki_writing *writing, const lki_sheet *sheet, bool first);

/* Collective: `mine` is how that went.  If it went wrong anywhere all fail, and say which rank. */
LK_NODISCARD lk_status lki_writing_gather(lki_writing *writing, const lki_session *session,
                                          const lk_error *mine);

/* Rank 0. */
LK_NODISCARD lk_status lki_writing_publish(lki_writing *writing, const lki_sheet *sheet,
                                           const lk_train_config *config);

#endif
