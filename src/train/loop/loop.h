/* train/loop/loop.h -- the parts of the training loop. */
#ifndef LKI_TRAIN_LOOP_H
#define LKI_TRAIN_LOOP_H

#include "train/core/session.h"

/* ---- A session (run.c) ------------------------------------------------------------------- */

LK_NODISCARD lk_status lki_session_open(lki_session *session);
lk_status              lki_session_close(lki_session *session);

/* ---- Files that are written (outputs.c) -------------------------------------------------- */

/* Refuses a log, a trace, metrics or event files that cannot be written, and those that would
 * overwrite a file that the run reads, a file of another kind, or each other. */
LK_NODISCARD lk_status lki_outputs_check(const lk_train_config *config);

/* Fails if the run would replace or cut the log of another run, or add to its event files.  Those
 * of a run that made no step may be replaced.  Also fails while another process writes the log. */
LK_NODISCARD lk_status lki_outputs_check_unused(const lki_log_run *run);

/* ---- Memory (memory.c) ------------------------------------------------------------------- */

/* Chooses session->joint: the largest size of joint turns with which the run takes at most
 * config->host_memory, on all hosts.  Collective. */
LK_NODISCARD lk_status lki_session_joint(lki_session *session);

/* ---- The turn of a client (client.c) ------------------------------------------------------- */

/* Trains the client of session->clients->turn, and gives the change of its weights. */
LK_NODISCARD lk_status lki_client_turn(lki_session *session, uint64_t round);

/* ---- A step (step.c) --------------------------------------------------------------------- */

/* Begins step `step`, from 0. */
LK_NODISCARD lk_status lki_session_begin(lki_session *session, uint64_t step);

/* Runs forward and backward on the micro-batches in session->turn.batches. */
void                   lki_session_turn(lki_session *session);

/* Runs a whole step with its update, and fills in its record. */
LK_NODISCARD lk_status lki_session_step(lki_session *session, uint64_t step,
                                        lki_step_record *record);

/* The before_read hook of lk_hooks; `user` is the session. */
void lki_read_block(void *user, uint32_t block);

/* ---- Evaluation (evaluate.c) ------------------------------------------------------------- */

/* Computes the mean loss of the validation part after `done` steps, each sample once, and its
 * accuracy, or errors if the targets are numbers to be approximated.  Uses the weights or,
 * depending on the options, their moving means.  Collective. */
LK_NODISCARD lk_status lki_evaluate(lki_session *session, uint64_t done,
                                    lk_train_result *result);

/* Sums over the errors of outputs: of their absolute values, and of their squares. */
typedef struct {
    double absolute, squares;
} lki_error_sums;

/* Adds the errors of the `count` samples that the engine has just evaluated, in the order of their
 * targets, which are FP32 numbers. */
void lki_error_sums_add(lki_error_sums *sums, const lk_engine *engine, const lk_model *model,
                        uint32_t count, const int32_t *targets);

/* ---- Between two steps (between_steps.c) ------------------------------------------------- */

/* Evaluates after step `step`, and prints and logs the result.  Collective. */
LK_NODISCARD lk_status lki_evaluate_and_say(lki_session *session, uint64_t step,
                                            lk_train_result *result);

/* Evaluates and saves if due.  Decides whether the run ends (session->ended) or was asked to stop
 * (session->stopped).  Collective, after each step. */
LK_NODISCARD lk_status lki_between_steps(lki_session *session, uint64_t done,
                                         lk_train_result *result);

/* ---- Groups (groups.c) ------------------------------------------------------------------- */

/* Prints the groups and the sizes of their messages. */
void                   lki_tell_groups(lki_session *session);

/* Logs the outer step that the last step included, if it did. */
LK_NODISCARD lk_status lki_log_outer_step(lki_session *session, uint64_t done);

/* Computes the weights to evaluate and to save, where replicas are averaged with their neighbours
 * only, and logs their drift.  Collective. */
LK_NODISCARD lk_status lki_average_replicas(lki_session *session, uint64_t done);

/* Prints and logs that the second moment is frozen, once in a run. */
LK_NODISCARD lk_status lki_log_freeze(lki_session *session, uint64_t done);

/* Logs the sizes of messages, and the norms of what groups keep.  Collective. */
LK_NODISCARD lk_status lki_log_groups(lki_session *session, uint64_t done);

/* ---- A model of Hugging Face's (pretrained.c) -------------------------------------------- */

/* If `init` is a folder, completes the model and its options from config.json.  Fails if they are
 * given and differ, or if the tokenizer is another model's. */
LK_NODISCARD lk_status lki_pretrained_complete(lk_train_config *config);

/* Fails if a run that has begun with such a folder, in the directory `run`, is to go on or to be
 * repeated with a folder that has another model.  Without that the messages would be about options
 * that nobody has given. */
LK_NODISCARD lk_status lki_pretrained_compare(const lk_train_config *config, const char *run);

/* Checks that the data have the tokens of such a model. */
LK_NODISCARD lk_status lki_pretrained_check(const lk_train_config *config,
                                            const lk_dataset *data);

/* ---- The end of a run (finish.c) --------------------------------------------------------- */

/* Returns what else to do about a loss that is not finite, to be appended to a message: "", unless
 * the loss is the mean square of errors, which large targets make too large. */
const char *lki_target_advice(const lki_session *session);

/* Fails with LK_ENONFINITE if the final weights or the last evaluation are not finite.
 * Collective. */
LK_NODISCARD lk_status lki_check_end(const lki_session *session, uint64_t done,
                                     const lk_train_result *result);

/* Computes the hashes, compares them between hosts, and prints the summary.  Collective. */
LK_NODISCARD lk_status lki_finish(lki_session *session, uint64_t done, lk_train_result *result);

/* Fails with LK_ESTOPPED on a rank that leaves while the other ranks continue. */
LK_NODISCARD lk_status lki_leave(const lki_session *session, uint64_t done,
                                 lk_train_result *result);

/* Fails with the reason why the run ends incomplete on all ranks. */
LK_NODISCARD lk_status lki_incomplete(const lki_session *session, uint64_t done);

#endif
