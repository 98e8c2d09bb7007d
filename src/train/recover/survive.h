/* train/recover/survive.h -- a run that goes on without the ranks that it loses.
 *
 * What the strategy keeps in arenas tells how far the run has come (lk_parallel_go_on()); what rank
 * 0 has said and done after a step stands in an arena as well.  So whoever is left makes what was
 * not finished again, one of them as rank 0, and nothing is written twice.
 */
#ifndef LKI_TRAIN_SURVIVE_H
#define LKI_TRAIN_SURVIVE_H

#include "train/session.h"

/* Collective; nothing unless config->survives. */
LK_NODISCARD lk_status lki_survival_open(lki_session *s);
void                   lki_survival_close(lki_session *s);

/* Whether `status` is that ranks were lost, and the others can go on. */
bool lki_survives(const lki_session *s, lk_status status);

/* Before the first step, after lki_survives(): says who was lost.  The session is a new one, of
 * those who are left, to be opened again. */
LK_NODISCARD lk_status lki_regroup(lki_session *s);

/* Opening that again failed; where it is the loss that does not suit, that is the reason. */
lk_status lki_cannot_begin(const lki_session *s, lk_status status);

/* What is left to do of the last complete step, once a run has gone on. */
typedef struct {
    uint64_t        done;   /* steps that are complete */
    bool            behind; /* the last of them has yet to be told and left: `record` */
    lki_step_record record; /* but for times */
} lki_position;

/* The same in the middle of a run, after lki_survives(): says who was lost. */
LK_NODISCARD lk_status lki_go_on(lki_session *s, lki_position *at, lk_train_result *result);

/* Rank 0 tells the log, once; the others nothing. */
LK_NODISCARD lk_status lki_say_step(lki_session *s, const lki_step_record *record);
LK_NODISCARD lk_status lki_say_evaluation(lki_session *s, uint64_t step, double loss,
                                          double accuracy);
LK_NODISCARD lk_status lki_say_finding(lki_session *s, const lk_audit_finding *finding);
LK_NODISCARD lk_status lki_say_end(lki_session *s, const lk_train_result *result);

/* Rank 0 tells the caller, who was not told yet, unless there is no result.  Collective: then
 * nobody reads the model any more, and what becomes of a rank does not matter. */
LK_NODISCARD lk_status lki_say_done(lki_session *s, const lk_train_result *result);

/* ---- In place of one that was lost (enter.c) ---------------------------------------------- */

/* In place of lki_session_open(): opens data and model, and goes into the group where
 * s->config->enter leads. */
LK_NODISCARD lk_status lki_session_enter(lki_session *s, lki_position *at, lk_train_result *result);

/* run.c: parts of lki_session_open(). */
LK_NODISCARD lk_status lki_session_model(lki_session *s);
LK_NODISCARD lk_status lki_session_turns(lki_session *s);

/* finish.c: why a run that is not complete ends, for the rank that has left, and for all. */
LK_NODISCARD lk_status lki_leave(const lki_session *s, uint64_t done, lk_train_result *result);
LK_NODISCARD lk_status lki_incomplete(const lki_session *s, uint64_t done);

/* ---- Between two steps (change.c) --------------------------------------------------------- */

/* Whether this rank wants the group to change. */
bool lki_change_wished(lki_session *s);

/* Collective, where one does: who leaves when step `done` is over; s->stopped if all would. */
LK_NODISCARD lk_status lki_change_agree(lki_session *s, uint64_t done);

/* Collective, when all that follows the step has been done: where that was agreed, who leaves does
 * (s->left), and for the others the group ends as lki_survives() has it. */
LK_NODISCARD lk_status lki_change_make(lki_session *s, uint64_t done);

/* All that follows a step has been done, and the run goes on: else it is done again by those who
 * are left, as not everybody may know why it ends. */
void lki_settle(lki_session *s, uint64_t done);

/* run.c: the session's share of the work, from step `start` on; a step is complete that is the
 * `done`-th; a record of step record->step. */
LK_NODISCARD lk_status lki_session_deal(lki_session *s, uint64_t start);
void lki_session_chain(lki_session *s, uint64_t done, const lk_step_result *result);
void lki_session_record(const lki_session *s, const lk_step_result *result, double loss_scale,
                        lki_step_record *record);

#endif
