/* train/recover/survive.h -- continues a run after the loss of ranks.
 *
 * The strategy's arenas record the progress of the run (lk_parallel_go_on()).  Another arena
 * records how much rank 0 has logged after each step.  So the remaining ranks, one of them as the
 * new rank 0, repeat all unfinished work, and no log line is written twice.
 */
#ifndef LKI_TRAIN_SURVIVE_H
#define LKI_TRAIN_SURVIVE_H

#include "train/core/session.h"

/* Opens the arena for rank 0's notes.  Does nothing unless config->survives is set.  Collective. */
LK_NODISCARD lk_status lki_survival_open(lki_session *s);
void                   lki_survival_close(lki_session *s);

/* Returns true if `status` means that ranks were lost and the surviving ranks can continue. */
bool lki_survives(const lki_session *s, lk_status status);

/* Replaces the communicator before the first step, after the error `why`, and reports the loss.
 * The caller has closed the session at time `begun` and opens it again with the remaining ranks. */
LK_NODISCARD lk_status lki_regroup(lki_session *s, const lk_error *why, double begun);

/* Returns `status` or, if the session could not be reopened because of the loss, LK_EPEER with an
 * explanation; see lki_regroup(). */
lk_status lki_cannot_begin(const lki_session *s, lk_status status);

/* The remaining work for the last complete step when a run continues. */
typedef struct {
    uint64_t        done;   /* number of complete steps */
    bool            behind; /* the log and the work after the last step are missing (`record`) */
    lki_step_record record; /* has no times */
} lki_position;

/* Replaces the communicator during a run, and reports the loss. */
LK_NODISCARD lk_status lki_go_on(lki_session *s, lki_position *at, lk_train_result *result);

/* Logs a step on rank 0, unless an earlier rank 0 has logged it. */
LK_NODISCARD lk_status lki_say_step(lki_session *s, const lki_step_record *record);

/* Logs the versions that a step has made on rank 0, unless an earlier rank 0 has logged them.
 * Takes `line`. */
LK_NODISCARD lk_status lki_say_versions(lki_session *s, uint64_t step, json_t *line);

/* Logs an evaluation on rank 0, unless an earlier rank 0 has logged it. */
LK_NODISCARD lk_status lki_say_evaluation(lki_session *s, uint64_t step,
                                          const lk_train_result *result);

/* Logs the finding of an audit on rank 0. */
LK_NODISCARD lk_status lki_say_finding(lki_session *s, const lk_audit_finding *finding);

/* Logs the end of the run on rank 0, unless an earlier rank 0 has logged it. */
LK_NODISCARD lk_status lki_say_end(lki_session *s, const lk_train_result *result);

/* Records on rank 0 that all bytes of the log so far are final.  Does nothing unless
 * config->survives is set. */
void lki_note_all_said(lki_session *s);

/* Passes the result, unless it is NULL, to config->calls.done once, on rank 0.  Collective.  After
 * this call no rank reads the model of another rank, so the death of a rank is harmless. */
LK_NODISCARD lk_status lki_say_done(lki_session *s, const lk_train_result *result);

/* ---- Replacing a lost rank (replacement.c) ----------------------------------------------- */

/* Opens data and model, then enters a running communicator through s->config->calls.enter.
 * Replaces lki_session_open(). */
LK_NODISCARD lk_status lki_session_enter(lki_session *s, lki_position *at, lk_train_result *result);

/* ---- Between two steps (membership.c) ---------------------------------------------------- */

/* Returns true if this rank wants a change of the communicator. */
bool lki_membership_wished(lki_session *s);

/* Agrees on the ranks that leave after step `done`.  Sets s->stopped if too few would remain.
 * Collective, if any rank wants a change. */
LK_NODISCARD lk_status lki_membership_agree(lki_session *s, uint64_t done);

/* Makes the agreed change, after all work that follows the step.  Leavers leave (s->left); for the
 * other ranks the communicator ends as if the leavers were lost.  Collective. */
LK_NODISCARD lk_status lki_membership_make(lki_session *s, uint64_t done);

/* Returns true if ranks may be in different steps, and may have to repeat the work after a step.
 * Then all meet after work that needs the parameters, before any of them changes them. */
bool lki_must_meet(const lki_session *s);

/* Records that all work after step `done` is complete.  Does nothing if the run ends after this
 * step.  Survivors of a later loss then repeat that work, because not all of them may know why the
 * run ends. */
void lki_settle(lki_session *s, uint64_t done);

#endif
