/* train/saves/save.h -- the contents of a checkpoint for its writer, and the background writer. */
#ifndef LKI_TRAIN_SAVE_H
#define LKI_TRAIN_SAVE_H

#include "checkpoint/directory.h"
#include "checkpoint/draft.h"
#include "checkpoint/folder.h"
#include "train/core/group_values.h"

#define LKI_MODEL_FILE "model.safetensors"
#define LKI_OPTIMIZER_FILE "optimizer.safetensors"
#define LKI_STATE_FILE "state.safetensors"
#define LKI_GROUPS_FILE "groups.safetensors"

enum { LKI_OPTIMIZER_NAME_MAX = LKI_GROUP_VALUE_NAME_MAX };

typedef struct lki_background lki_background;

/* The session's state for checkpoints. */
struct lki_saves {
    int                 lock; /* descriptor of the directory's lock; -1 on ranks other than 0 */
    bool                made; /* this rank has made the directory */
    lki_background     *background; /* background writer; NULL without checkpoint_async */
    bool                by_owners;  /* each host writes its own part (parts.c) */
    bool                drafting;   /* some host is still writing a background checkpoint */
    bool                drafted;    /* all hosts have finished writing it */
    lk_checkpoint_times times;
};

LK_NODISCARD lk_status lki_saves_open(lki_session *session);

/* Waits for the checkpoint that is being written, and ends its writer.  This function and
 * lki_saves_close() accept a session without lki_saves_open(). */
void lki_saves_stop(lki_session *session);

/* Releases the directory's lock.  Removes the directory if this run has made it and left nothing in
 * it, because it was refused. */
void lki_saves_close(lki_session *session);

/* ---- Starting (start.c), and checkpoints (save.c, parts.c) --------------------------------- */

/* Fails if the directory already has checkpoints, unless the run is resumed. */
LK_NODISCARD lk_status lki_checkpoint_check(const lk_train_config *config);

/* Creates the directory on rank 0 if it is not there, locks it, and repeats lki_checkpoint_check()
 * while it is locked.  Fails with LK_EIO if the directory cannot be written. */
LK_NODISCARD lk_status lki_own_directory(lki_session *session);

/* Copies the tokenizer into the directory on rank 0, once the run has all its files for itself. */
LK_NODISCARD lk_status lki_keep_tokenizer(const lki_session *session);

/* Fails with LK_EINVAL if options contradict the checkpoint to resume from.  The message names the
 * first such option.  Sets run->start and run->chain if there is a checkpoint. */
LK_NODISCARD lk_status lki_resume_check(lki_log_run *run);

/* Loads the file of --init or the checkpoint to resume from, and sets session->start.  Rank 0 reads
 * the files.  Collective. */
LK_NODISCARD lk_status lki_start_values(lki_session *session);

/* Checkpoints that a run has moved out of its way. */
typedef struct {
    char   name[LKI_STEP_NAME_BYTES];
    size_t count;
    bool   completes; /* what a run has begun that was killed, and may have cut the log */
} lki_set_aside;

/* Moves the checkpoints after the step that the run goes back to out of its way, with a note.  They
 * belong to the branch that it leaves, and a resume after a failure would take them as the newest.
 * Copies the lines of the log after that step there, which the log loses.  Also completes what a
 * run that was killed has begun. */
LK_NODISCARD lk_status lki_set_aside_later(lki_session *session, lki_set_aside *later);

/* Ends it when the run has its files for itself, and its command is recorded.  If the run is killed
 * before, the next one completes it. */
LK_NODISCARD lk_status lki_end_set_aside(const lki_session *session, const lki_set_aside *later);

/* Moves them back, with a note, since the run cannot begin.  Leaves those that a killed run has
 * begun to move. */
void lki_undo_set_aside(lki_session *session, const lki_set_aside *later);

/* Decides whether each host writes its own part of checkpoints.  Collective.  The parameters and
 * the checkpoint directory must be open. */
LK_NODISCARD lk_status lki_parts_agree(lki_session *session);

/* Returns true if this rank writes any file of a checkpoint. */
bool lki_parts_writes(const lki_session *session);

/* Saves a checkpoint, and returns the outcome on every rank.  `later`: with checkpoint_async, ranks
 * wait only until the copy is complete.  Collective. */
LK_NODISCARD lk_status lki_save(lki_session *session, uint64_t step, bool later);

/* Checks that a safetensors file, or a folder of them, has the parameters of the model and no
 * others.  With adapters, it must have the frozen parameters only.  Defined in saves/init.c, as the
 * next ones. */
LK_NODISCARD lk_status lki_init_check(const char *path, const lk_model *model);
/* Returns the name of a tensor in a file without the prefixes of other programs: that of the
 * parameter. */
const char *lki_init_bare(const char *name);
/* Returns true if the shape of a tensor in a file fits the parameter `name`.  Position embeddings
 * in the file may be longer; then their first rows are used. */
bool lki_init_fits(const char *name, lk_shape shape, lk_shape file);
/* Reads a parameter from an open folder as floats, which must be finite.  `path` is named in
 * messages. */
LK_NODISCARD lk_status lki_init_read(lk_exec *exec, const lki_folder *file, const char *path,
                                     const lk_param *param, float *values);
/* Reads `count` elements from `first` on in the same way. */
LK_NODISCARD lk_status lki_init_read_part(lk_exec *exec, const lki_folder *file, const char *path,
                                          const lk_param *param, size_t first, size_t count,
                                          float *values);
/* Sets *out to true if the path is that of a folder with the configuration of a model or of
 * adapters and without checkpoints, or of one with weights that is no checkpoint.  The directory of
 * a run may have a configuration, too. */
LK_NODISCARD lk_status lki_is_pretrained(bool *out, const char *path);
/* Loads the weights of config.init or, with adapters, of config.adapter.  Collective. */
LK_NODISCARD lk_status lki_init_load(lki_session *session);
/* Completes rank and alpha of adapters from the folder config.adapter.  LK_EINVAL if they differ
 * from those that are given. */
LK_NODISCARD lk_status lki_adapter_complete(lk_train_config *config);
/* Checks that the folder of adapters has the tensors of the model and no others. */
LK_NODISCARD lk_status lki_adapter_check(const char *folder, const lk_model *model);

typedef struct {
    char         name[64];
    lki_stretch *stretches;
} lki_sheet_part;

/* The contents of a checkpoint.  The session owns names and shapes; `info` points into the
 * sheet. */
typedef struct {
    lk_tensor *tensors; /* of all files, in file order */
    char (*names)[LKI_OPTIMIZER_NAME_MAX];
    lki_group_list     groups;
    lk_checkpoint_file files[4];
    size_t             file_count;
    lki_part          *parts; /* [part_count]; with by_owners: this host's parts */
    lki_sheet_part    *own_parts; /* memory of `parts` */
    size_t             part_count;
    char              *config; /* JSON */
    char               weights[65];
    lk_checkpoint_info info;
    uint64_t           spared[LK_BEST_MAX];
} lki_sheet;

/* ---- save.c: writers ----------------------------------------------------------------------- */

/* Lists all tensors in a zeroed sheet, each with its address or with a function that fetches it. */
LK_NODISCARD lk_status lki_sheet_fill(lki_session *session, lki_sheet *sheet);
void                   lki_sheet_free(lki_sheet *sheet);

/* Divides the files to which each host writes its part.  Defined in parts.c. */
LK_NODISCARD lk_status lki_sheet_divide(const lki_session *session, lki_sheet *sheet);

/* Returns all contents of the sheet's checkpoint.  Defined in parts.c. */
lki_contents           lki_sheet_contents(const lki_sheet *sheet);

/* Returns true if the directory already has this checkpoint, written by the same run. */
bool lki_sheet_is_there(const lki_sheet *sheet, const char *dir);
LK_NODISCARD lk_status lki_sheet_write(const lki_sheet *sheet, const lk_train_config *config);

/* Counts and logs a written checkpoint. */
LK_NODISCARD lk_status lki_note_saved(lki_session *session, uint64_t step, uint64_t saved,
                                      double stall, double seconds);

/* ---- background.c: background writers; functions ignore a NULL background ------------------- */

typedef struct lki_writing lki_writing; /* parts.h */

/* Reserves memory for the copy, counted in --host-memory.  Called on every rank. */
LK_NODISCARD lk_status lki_background_make_room(lki_session *session);
LK_NODISCARD lk_status lki_background_open(lki_background **out, lki_session *session);

/* Waits for the checkpoint that is being written. */
void lki_background_close(lki_background *background);

/* Copies every tensor, and fetches tensors that this host does not store.  With `writing`, copies
 * only this rank's part.  Takes over `sheet` and `writing`, also on failure. */
LK_NODISCARD lk_status lki_background_copy(lki_background *background, lk_exec *exec,
                                           lki_sheet *sheet, lki_writing *writing);

/* Starts to write the copy.  `stall`: seconds for which the copy stopped the run. */
LK_NODISCARD lk_status lki_background_start(lki_background *background, uint64_t step,
                                            double stall);

/* Logs and counts the checkpoints written so far, after `step` steps.  With `wait`, first waits for
 * the checkpoint that is being written.  A disk error is logged, but the function succeeds.
 * Collective if hosts write their own parts. */
LK_NODISCARD lk_status lki_background_settle(lki_session *session, uint64_t step, bool wait);

/* Returns true while the writer is busy. */
bool lki_background_writes(const lki_background *background);

/* Returns the bytes of a copy of `count` tensors. */
size_t lki_background_bytes(const lk_tensor *tensors, size_t count);

#endif
