/* train/core/journal.h -- the log of a run, and messages on stderr.  See journal.c. */
#ifndef LKI_TRAIN_JOURNAL_H
#define LKI_TRAIN_JOURNAL_H

#include <jansson.h>

#include "base/status.h"
#include "train/core/log_owner.h"
#include "train/core/step_record.h"

enum { LKI_LOG_DIGITS = 9 }; /* of numbers in lines other than those of steps */

/* The results of an evaluation; NaN: not computed. */
typedef struct {
    double loss, accuracy, rmse, mae;
} lki_evaluated;

typedef struct lki_report_file lki_journal;

/* Opens the journal.  All functions below do nothing if the journal is NULL, as on ranks other than
 * 0. */
LK_NODISCARD lk_status lki_journal_open(lki_journal **out, const lk_train_config *config);

/* Sets who is waited for, as the display says it; "" for nobody. */
void lki_journal_waits(lki_journal *journal, const char *who);

/* Sets for how long the lines of a step, from now on, may wait for room if the log is a pipe.  Then
 * they fail; 0 = they wait for ever.  `alone`: no other rank can take over the log, so a request to
 * leave is one to stop. */
void lki_journal_limit(lki_journal *journal, double seconds, bool alone);

/* Sets the label of all following log lines. */
void lki_journal_label(lki_journal *journal, lk_label label);

/* Opens the log, unless it is open.  Fails if another run is writing it, or if it is not that of
 * the run (lki_log_check_steps()).  May wait for the reader of a pipe (run->waits). */
LK_NODISCARD lk_status lki_journal_open_log(lki_journal *journal, const lki_log_run *run);

/* Begins a run's steps up to `end`, after lki_journal_open_log().  Opens the other files, unless
 * they are open, and truncates an existing log after step run->start.  Fails if another run is
 * writing one of the files. */
LK_NODISCARD lk_status lki_journal_begin(lki_journal *journal, const lki_log_run *run,
                                         uint64_t end);

/* Opens the log on a new rank 0, after `done` steps.  Truncates it to its first `bytes` bytes. */
LK_NODISCARD lk_status lki_journal_take_over(lki_journal *journal, uint64_t done, uint64_t end,
                                             uint64_t bytes);
/* Shows on a terminal that the step after `done` steps is being computed, until something else is
 * shown. */
void lki_journal_wait(lki_journal *journal, uint64_t done);

/* Computes the bytes of the log up to step `step`; 0 if there is no file. */
LK_NODISCARD lk_status lki_journal_find(const lki_journal *journal, uint64_t step,
                                        uint64_t *bytes);
uint64_t               lki_journal_bytes(const lki_journal *journal); /* 0: no file */
void                   lki_journal_free(lki_journal *journal);
LK_NODISCARD lk_status lki_journal_step(lki_journal *journal, const lki_step_record *record);
LK_NODISCARD lk_status lki_journal_evaluation(lki_journal *journal, uint64_t step,
                                              const lki_evaluated *found);

/* Returns the bytes of `log` before the first line of a later step or of the end of the run. */
size_t lki_log_prefix(const uint8_t *log, size_t bytes, uint64_t step);

/* Reports after step `step` that the checkpoint of step `saved` was written, or that `error`
 * occurred. */
LK_NODISCARD lk_status lki_journal_saved(lki_journal *journal, uint64_t step, uint64_t saved,
                                         double stall, double seconds, const char *error);

/* Logs the finding of an audit. */
LK_NODISCARD lk_status lki_journal_finding(lki_journal *journal, const lk_audit_finding *finding);

/* Logs the first line of a run, or of a resumed run: `line` has its configuration, hosts and
 * workers.  Takes over the reference. */
LK_NODISCARD lk_status lki_journal_header(lki_journal *journal, json_t *line,
                                          const char *exactness_id);

/* Logs another event of a step.  Takes over the reference; fails if `line` is NULL (out of
 * memory). */
LK_NODISCARD lk_status lki_journal_event(lki_journal *journal, json_t *line);

/* Waits until the log is on disk.  Does nothing if it is not a regular file. */
LK_NODISCARD lk_status lki_journal_sync(lki_journal *journal);
LK_NODISCARD lk_status lki_journal_end(lki_journal *journal, const lk_train_result *result);

/* Prints a message on stderr, formatted as by printf.  Clears the progress bar before the
 * message. */
void lki_journal_note(lki_journal *journal, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Prints a message like lki_journal_note(), but nothing with config->quiet. */
void lki_journal_say(lki_journal *journal, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
