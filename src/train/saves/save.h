/* train/saves/save.h -- a checkpoint as its writer is told of it, and writing while the run goes
 * on. */
#ifndef LKI_TRAIN_SAVE_H
#define LKI_TRAIN_SAVE_H

#include "checkpoint/draft.h"
#include "train/session.h"

typedef struct {
    char         name[64];
    lki_stretch *stretches;
} lki_sheet_part;

/* Names and shapes are the session's; `info` points into it. */
typedef struct {
    lk_tensor *tensors; /* of all files, in order */
    char (*names)[LKI_OPTIMIZER_NAME_MAX];
    lk_checkpoint_file files[3];
    size_t             file_count;
    lki_part          *parts; /* [part_count], where hosts write what they keep; their memory: */
    lki_sheet_part    *own_parts;
    size_t             part_count;
    char              *config; /* JSON */
    char               weights[65];
    lk_checkpoint_info info;
    uint64_t           spared[LK_BEST_MAX];
} lki_sheet;

/* ---- save.c: writers ----------------------------------------------------------------------- */

/* The tensors, where they lie or as they are fetched, in a zeroed sheet. */
LK_NODISCARD lk_status lki_sheet_fill(lki_session *session, lki_sheet *sheet);
void                   lki_sheet_free(lki_sheet *sheet);

/* parts.c: divides what hosts keep in parts; the sheet says all that is in a checkpoint. */
LK_NODISCARD lk_status lki_sheet_divide(const lki_session *session, lki_sheet *sheet);
lki_contents           lki_sheet_contents(const lki_sheet *sheet);

/* Whether the directory has this very checkpoint, made before by the same run. */
bool lki_sheet_is_there(const lki_sheet *sheet, const char *dir);
LK_NODISCARD lk_status lki_sheet_write(const lki_sheet *sheet, const lk_train_config *config);

/* Counts a checkpoint and logs it. */
LK_NODISCARD lk_status lki_note_saved(lki_session *session, uint64_t step, uint64_t saved,
                                      double stall, double seconds);

/* ---- background.c: writers; NULL does nothing ---------------------------------------------- */

typedef struct lki_writing lki_writing; /* parts.h */

/* Every rank, under --host-memory: room for the copy of the one who has it on its host. */
LK_NODISCARD lk_status lki_background_make_room(lki_session *session);
LK_NODISCARD lk_status lki_background_open(lki_background **out, lki_session *session);

/* Waits for what is being written. */
void lki_background_close(lki_background *background);

/* Copies every tensor, fetching what is elsewhere, and takes the sheet over, fail or not.  With
 * `writing`, which is taken over, too, what is mine. */
LK_NODISCARD lk_status lki_background_copy(lki_background *background, lk_exec *exec,
                                           lki_sheet *sheet, lki_writing *writing);

/* Begins to write what was copied, for which the run stood still so long. */
LK_NODISCARD lk_status lki_background_start(lki_background *background, uint64_t step,
                                            double stall);

/* Takes notice, after `step` steps, of what has been written; `wait`: of what is being written,
 * too.  A disk that refused it is noted and no failure.  Collective where hosts write what they
 * keep. */
LK_NODISCARD lk_status lki_background_settle(lki_session *session, uint64_t step, bool wait);

/* Whether the writer is still at its files. */
bool lki_background_writes(const lki_background *background);

/* Bytes of the copy. */
size_t lki_background_bytes(const lk_tensor *tensors, size_t count);

/* What who writes checkpoints copies of all values and states that they have: of parameters and of
 * each state a part of so many bytes, or all of them if that is 0: plan/estimate.c. */
size_t lki_snapshot_bytes(const lk_train_config *config, const lk_model *model, size_t params_part,
                          size_t states_part);

#endif
