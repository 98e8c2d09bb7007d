/* checkpoint/directory.h -- the directory of steps: names, listing, making, syncing, removing. */
#ifndef LKI_DIRECTORY_H
#define LKI_DIRECTORY_H

#include "base/status.h"

enum { LKI_PATH_BYTES = 4096, LKI_STEP_NAME_BYTES = 32 };

#define LKI_MANIFEST_NAME "manifest.json"
#define LKI_TEMPORARY_PREFIX ".tmp-step-" /* then the step and the writer's process id */

LK_NODISCARD lk_status lki_directory_join(char out[LKI_PATH_BYTES], const char *folder,
                                          const char *name);

/* "step-00000100", and back: false for any other spelling. */
void lki_step_name(char out[LKI_STEP_NAME_BYTES], uint64_t step);
bool lki_step_parse(uint64_t *step, const char *name);

/* The steps of `dir`, newest first, complete or not; *out from lki_free().  LK_EIO if the
 * directory cannot be read. */
LK_NODISCARD lk_status lki_steps_list(uint64_t **out, size_t *count, const char *dir);

/* Makes `path` and what is missing above it, each entry durable. */
LK_NODISCARD lk_status lki_directory_make(const char *path);
LK_NODISCARD lk_status lki_directory_sync(const char *path);

/* Removes a directory of plain files as far as that works; says nothing. */
void lki_directory_remove(const char *path);

/* Removes the temporary directories of `dir` whose writers are gone (nobody holds their lock). */
void lki_directory_sweep(const char *dir);

#endif
