/* checkpoint/directory.h -- the directory of steps: names, listing, creating, syncing, removing. */
#ifndef LKI_DIRECTORY_H
#define LKI_DIRECTORY_H

#include "base/status.h"

enum { LKI_PATH_BYTES = 4096, LKI_STEP_NAME_BYTES = 32 };

#define LKI_MANIFEST_NAME "manifest.json"
#define LKI_ASIDE_PREFIX "set-aside-" /* of directories of steps that are set aside */
#define LKI_ASIDE_LOG "log.jsonl" /* the log of steps that are set aside */
#define LKI_GOING_BACK ".going-back" /* the last step that stays, while others are set aside */
#define LKI_TEMPORARY_PREFIX ".tmp-step-" /* the step and the writer's process id follow */

LK_NODISCARD lk_status lki_directory_join(char out[LKI_PATH_BYTES], const char *folder,
                                          const char *name);

/* Writes the directory that has a file or a directory, also if `path` is a link to it or ends in
 * dots.  `out` may be `path`.  Returns LK_EIO if nothing is there. */
LK_NODISCARD lk_status lki_directory_above(char out[LKI_PATH_BYTES], const char *path);

/* Writes the name of a step, "step-00000100". */
void lki_step_name(char out[LKI_STEP_NAME_BYTES], uint64_t step);
/* Parses the name of a step.  Returns false for any other spelling. */
bool lki_step_parse(uint64_t *step, const char *name);

/* Lists the steps of `dir`, newest first, complete or not, but not those that are being set aside.
 * The caller frees *out with lki_free().  Returns LK_EIO if the directory cannot be read. */
LK_NODISCARD lk_status lki_steps_list(uint64_t **out, size_t *count, const char *dir);

/* Moves the steps of `dir` after `step` into a new directory there, set-aside-1 or the next that is
 * free, and writes its name.  Sets *count to the number of steps there; 0: there are none.  If a
 * process died while it set steps aside, completes that, also with UINT64_MAX as `step`.  Removes
 * drafts that killed processes have left.  The caller holds the lock of `dir`.  After a failure all
 * are where they were, as far as possible, but what another process has begun stays begun. */
LK_NODISCARD lk_status lki_steps_set_aside(char name[LKI_STEP_NAME_BYTES], size_t *count,
                                           const char *dir, uint64_t step);

/* Ends it, when the run has recorded its command.  Until then lki_steps_list() leaves out all later
 * steps, and lk_checkpoint_goes_back() is true. */
LK_NODISCARD lk_status lki_steps_are_aside(const char *dir);

/* Moves all steps back instead, and removes the directory with its log.  Returns false if it is
 * still there. */
bool lki_steps_put_back(const char *dir, const char *name);

/* Creates `path` and its missing parents, and makes each durable. */
LK_NODISCARD lk_status lki_directory_make(const char *path);
/* Makes the entries of a directory durable. */
LK_NODISCARD lk_status lki_directory_sync(const char *path);

/* Removes a directory of plain files as far as possible.  Reports no errors. */
void lki_directory_remove(const char *path);

/* Removes the temporary directories of `dir` whose writers are gone (their locks are free). */
void lki_directory_sweep(const char *dir);

#endif
