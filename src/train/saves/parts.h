/* train/saves/parts.h -- a checkpoint to which each host writes the part that it stores.  See
 * parts.c. */
#ifndef LKI_TRAIN_PARTS_H
#define LKI_TRAIN_PARTS_H

#include "checkpoint/directory.h"
#include "train/saves/save.h"

/* The state of one rank while a checkpoint is written. */
struct lki_writing {
    lki_draft *draft; /* NULL on ranks other than 0 */
    char       path[LKI_PATH_BYTES];
    json_t    *entries; /* manifest entries of this rank's files; on rank 0 at the end: of all */
};

/* Opens a draft for a step on rank 0 if `wanted`, and sends its path to all ranks.  *begun becomes
 * true if a draft was opened.  lki_writing_end() removes an unpublished draft.  Collective. */
LK_NODISCARD lk_status lki_writing_begin(lki_writing *out, const lki_session *session,
                                         uint64_t step, bool wanted, bool *begun);
void                   lki_writing_end(lki_writing *writing);

/* Writes this rank's part of the sheet.  With `first` (on rank 0), also writes the files that are
 * not divided.  Does not communicate. */
LK_NODISCARD lk_status lki_writing_files(lki_writing *writing, const lki_sheet *sheet, bool first);

/* Gathers the manifest entries on rank 0.  `mine` is the result of lki_writing_files().  If it is
 * an error on any rank, all ranks fail, and the message names that rank.  Collective. */
LK_NODISCARD lk_status lki_writing_gather(lki_writing *writing, const lki_session *session,
                                          const lk_error *mine);

/* Publishes the checkpoint; rank 0 only. */
LK_NODISCARD lk_status lki_writing_publish(lki_writing *writing, const lki_sheet *sheet,
                                           const lk_train_config *config);

#endif
