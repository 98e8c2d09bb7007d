/* train/core/log_owner.h -- decides whether a run may write to a log, or to a directory of event
 * files, that is there already.  See log_owner.c. */
#ifndef LKI_TRAIN_LOG_OWNER_H
#define LKI_TRAIN_LOG_OWNER_H

#include "base/file.h"
#include "lockstep/data.h"
#include "lockstep/train.h"

/* A run, as far as it can be recognised by what it has written. */
typedef struct {
    const lk_train_config *config;
    const lk_dataset_info *data;
    uint64_t               start;     /* step of the checkpoint that it continues from; 0: none */
    char                   chain[65]; /* hash over the losses up to that step; "" = not known */
    bool                   replays;   /* it is no run, but a replay of one */
    bool                   waits;     /* for the reader of a log that is a pipe; else it does
                                       * without the log */
} lki_log_run;

/* Fails with LK_EIO if another process is writing the log.  The message names that process, and
 * says whether it computes the same run. */
LK_NODISCARD lk_status lki_log_check_unlocked(const lki_log_run *run);

/* Makes the error of a run whose file or directory of this option another run is writing. */
LK_NODISCARD lk_status lki_output_in_use(const char *option, const char *path);

/* Makes the error of lki_log_check_unlocked(), for a log whose lock another process holds. */
LK_NODISCARD lk_status lki_log_in_use(const lki_log_run *run);

/* Returns true if a path is that of a regular file with contents that are no log of ours.  The
 * first line of a log has the version of Lockstep and the configuration; other programs write lines
 * with steps and losses, too. */
bool lki_log_is_other(const char *path);

/* Fails with LK_EINVAL if the log has steps, unless the run is resumed and they are its own. */
LK_NODISCARD lk_status lki_log_check_steps(const lki_log_run *run);

/* Lists the steps up to `start` whose loss the log lacks, such as "1 to 5, 14"; "" = none. */
enum { LKI_GAPS_BYTES = 128 };
void lki_log_gaps(const char *path, uint64_t start, char out[LKI_GAPS_BYTES]);

/* Returns true if an event file has steps of another run: of any if the run is not resumed. */
bool lki_events_are_others(const lki_log_run *run, const char *path);

#endif
