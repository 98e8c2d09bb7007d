/* report/target.h -- what a path names: a log, a checkpoint, a run, or a safetensors file. */
#ifndef LKI_REPORT_TARGET_H
#define LKI_REPORT_TARGET_H

#include "checkpoint/directory.h"

typedef struct {
    const char *path;                /* borrowed */
    char        log[LKI_PATH_BYTES]; /* "" = none */
    bool        is_tensors;          /* a safetensors file */
    bool        is_checkpoint;       /* the directory of one step */
    uint64_t   *steps;               /* of a run, newest first */
    size_t      step_count;
} lki_target;

/* Finds out what a path names.  The log of a directory is that of lk_run_log().  Returns LK_EIO if
 * there is nothing, LK_EINVAL if it is none of these. */
LK_NODISCARD lk_status lki_target_find(lki_target *out, const char *path);
/* Returns LK_EINVAL: what `path` names has no log. */
LK_NODISCARD lk_status lki_no_log(const char *path);
void                   lki_target_free(lki_target *target);

/* Finds a file of a run that may have been moved: `path`, relative to `directory`, was there when
 * the run's directory was `was` (or NULL: not known); it is now `run`.  The files of a moved run
 * are at the same place relative to it, beside it or in it, or still where they were.  Returns
 * LK_EIO if the file is at none of these; `out` then has the place where it was. */
lk_status lki_file_of_run(char *out, size_t bytes, const char *was, const char *run,
                          const char *directory, const char *path);

#endif
