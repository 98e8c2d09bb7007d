/* train/session.h -- everything one rank holds while it trains. */
#ifndef LKI_TRAIN_SESSION_H
#define LKI_TRAIN_SESSION_H

#include <jansson.h>

#include "base/hash.h"
#include "base/status.h"
#include "lockstep/checkpoint.h"
#include "lockstep/data.h"
#include "lockstep/parallel.h"
#include "lockstep/train.h"
#include "train/watch.h"

#define LKI_MODEL_FILE "model.safetensors"
#define LKI_OPTIMIZER_FILE "optimizer.safetensors"
#define LKI_STATE_FILE "state.safetensors"
#define LKI_LOCK_NAME ".lock" /* in the directory of checkpoints */

enum { LKI_OPTIMIZER_NAME_MAX = LK_NAME_MAX + 32 };

/* Whether any of it, of lk_offloaded, is in files. */
static inline bool lki_in_files(const lk_train_config *config, unsigned what)
{
    unsigned all = config->offloaded == 0 ? LK_OFFLOADED_STATES : config->offloaded;
    return config->offload != NULL && (all & what) != 0;
}

typedef struct lki_report_file lki_journal;
typedef struct lki_observer    lki_observer;
typedef struct lki_background  lki_background;
typedef struct lki_survival    lki_survival;
typedef struct lki_feed        lki_feed;
typedef struct lki_pace        lki_pace;
typedef struct lki_step_record lki_step_record;

typedef struct {
    const lk_train_config *config;
    lk_comm               *comm; /* `given`, or that of those who are left of it */
    lk_comm               *given;
    uint32_t               rank, ranks;

    lk_dataset  *dataset;
    lk_model    *model;
    lk_exec     *exec;
    lk_engine   *engine;
    lk_parallel *parallel;
    lk_loader   *loader; /* or NULL, and a stream feeds all */
    lk_loader   *again;  /* of a virtual worker that is made again, if there was one */
    lki_feed    *feed;
    lki_journal  *journal;  /* log and progress: rank 0 only, else NULL */
    lki_observer *observer; /* what a trace or a report needs, else NULL */

    const lk_param *params;
    uint32_t        param_count, state_count, term_count, micro_count;
    const lk_state *states;
    lk_state       *kept; /* what checkpoints have: these, and with a moving mean theirs */
    uint32_t        kept_count;
    uint32_t        first, count, stride; /* my virtual workers */

    const float **param_data, **state_data; /* fetched each step */
    const uint16_t **param_bf16;            /* what is read so, in place of param_data */
    float        *means;                    /* of all weights, where this host has only parts */
    uint32_t      together;   /* virtual workers of a turn: 1, or in lock step all of mine */
    lk_batch     *batches;    /* [together] */
    uint64_t      turns;      /* of the step under way, so far */
    uint64_t      version;    /* of the parameters that the turn reads; 0: packs are not for it */
    lk_pass      *passes;     /* [together]: micro-batches of a virtual worker continue them */
    float       **grads, **state_sums; /* [together] tables, fetched each turn; gradients block by
                                        * block */
    bool         *empty;      /* [together] tables: gradients that hold nothing yet */
    uint32_t     *first_terms; /* [block_count + 1]: of each block, counted from the last block */
    float         loss_scale;               /* of this step's gradients */
    char          exactness_id[33];
    bool          inexact; /* it goes on from steps that were not exact */
    char          loss_chain[65]; /* hash over the loss_bits of all steps so far */
    lk_loss_scaler scaler;        /* the checkpoint's, if it says */
    lk_noise       noise;         /* likewise */
    lki_watch     watch;          /* what evaluations have said so far */
    uint64_t      start;          /* the step to begin with: 0, or the checkpoint's */
    uint64_t      end;            /* the step to end with, if nothing ends the run before */
    const char   *ended;          /* the option that ends it; NULL: it goes on */
    bool          outside;        /* this rank has yet to enter */
    bool          stopped;        /* by a request, before its end */
    bool          depleted;       /* too few workers are left */
    bool          left;           /* this rank alone, likewise: the others go on */
    double        began;          /* by the clock of max_time_ms */
    int           lock;           /* of the checkpoint directory: rank 0 only, else -1 */
    lki_background     *background; /* a writer's, with checkpoint_async */
    bool          by_owners;      /* each host writes what it keeps of a checkpoint: see parts.c */
    bool          drafting;       /* and is at it, or another one is, while the run goes on */
    bool          drafted;        /* but no longer: all hosts have written */
    lk_checkpoint_times checkpoints;
    double        stalled;        /* seconds of waiting for the offload file, so far */
    lki_pace     *pace;           /* what ranks take for their virtual workers */
    lki_survival *survival;       /* what is needed to go on without ranks, else NULL */
    uint32_t      lost_early;     /* ranks, before the first step ... */
    double        lost_seconds;   /* ... and what that took */
    bool          patient;        /* rank 0 works, and the others wait */
    bool          replays;        /* leaves the checkpoints' directory alone: replay.c ... */
    bool          alone;          /* ... and runs a turn whose gradients nobody sums */
    bool          dropped;        /* another worker has made what the turn makes */
    bool          mends;          /* it makes what is missing of a step that was broken off */
    double        begun;          /* the step under way */
    uint64_t      chained;        /* steps whose loss is in loss_chain */
    uint64_t      audited;        /* virtual workers that were made again, and came out alike */
    uint64_t      judged;         /* the step of the last evaluation in `watch` ... */
    bool          judged_best;    /* ... and what came of it */
} lki_session;

/* lk_train_check(); what does not run here may be larger than this machine, and needs no files but
 * its data. */
LK_NODISCARD lk_status lki_train_complete(lk_train_config *config, bool runs);

/* pin.c: binds the threads of s->exec, if that is wished and no other worker may run on their
 * cores.  All ranks meet there. */
LK_NODISCARD lk_status lki_pin(lki_session *s);

/* keep.c: has s->engine keep what it packs of weights, in memory that the workers of a host share;
 * collective, unless this rank enters.  And the bytes of that on each host, where it is worth it;
 * `gathers`: hosts have parts of the parameters only. */
LK_NODISCARD lk_status lki_keep_packs(lki_session *s);
LK_NODISCARD lk_status lki_pack_bytes(size_t *out, const lk_train_config *config,
                                      const lk_model *model, const lk_exec *exec, bool gathers);

/* estimate.c: completes `config` and builds its model for what needs no data: told, not run.
 * `evaluates`, if not NULL: whether there are samples for validation. */
LK_NODISCARD lk_status lki_model_alone(lk_model **out, lk_train_config *config, bool *evaluates);

/* The strategy's options, as config and model say; lki_parallel_options_free() frees what they
 * point to. */
LK_NODISCARD lk_status lki_parallel_options_of(const lk_train_config *config, const lk_model *model,
                                               lk_exec *exec, lk_parallel_options *out);
void                   lki_parallel_options_free(lk_parallel_options *options);

/* What it is told that parameters are read as. */
lk_dtype lki_gather_dtype(const lk_train_config *config);

/* ---- Introductions (introduce.c): collective ---------------------------------------------- */

/* A file that somebody edited while the workers started would give each its own data. */
LK_NODISCARD lk_status lki_verify_same_data(lki_session *s);

/* Rank 0 says who computes what, as each rank itself reports it. */
LK_NODISCARD lk_status lki_introduce(lki_session *s);

/* Whose products they are, if not ours, and, at the end, whether they all were; as what gradients
 * travel, if not as they are. */
void lki_tell_kernels(lki_session *session, bool end);
void lki_tell_bits(const lki_session *session);

/* ---- Identity (identity.c) --------------------------------------------------------------- */

/* Whether nothing is quantised, neither gradients nor the parameters that are read, and all workers
 * count. */
bool lki_is_exact(const lk_train_config *config);

/* Whether an exactness id says that what has it is not exact; and this run goes on from what has:
 * its id says so, too, and its log, whatever its own options. */
bool lki_is_labelled(const char *exactness_id);
void lki_go_on_inexact(lki_session *session);

/* Everything that defines the result, by option name; new reference, NULL without memory. */
json_t *lki_config_json(const lk_train_config *config, const lk_dataset_info *data);

/* LK_EINVAL names the first option whose value contradicts the checkpoint's. */
LK_NODISCARD lk_status lki_config_compare(const json_t *stored, const json_t *mine);

void lki_exactness_id(const lk_train_config *config, const lk_dataset_info *data, char out[33]);

/* A loss scaler as a checkpoint keeps it; what it does not say stays as it was. */
json_t *lki_scaler_json(const lk_loss_scaler *scaler);
void    lki_scaler_read(const json_t *object, lk_loss_scaler *scaler);

/* The noise scale's averages likewise; none where it says nothing. */
json_t *lki_noise_json(const lk_noise *noise);
void    lki_noise_read(const json_t *object, lk_noise *noise);

/* Model options as config and data set say. */
lk_model_options lki_model_options(const lk_train_config *config, const lk_dataset_info *data);

/* Writes the defaults into what was left 0, so that checkpoints record what was used. */
void               lki_resolve_optimizer(lk_optimizer *optimizer);
lk_dataset_options lki_dataset_options(const lk_train_config *config);

/* The order of samples, see samples.c: its option's value; whether options agree about it, and
 * filling in what follows; positions of an epoch; what step `step` consists of; telling on the
 * journal what an order repeats or leaves out. */
const char *lki_order_name(lk_order order);
LK_NODISCARD lk_status lki_order_check(lk_train_config *config);
uint64_t     lki_positions(const lk_train_config *config, const lk_dataset_info *data);
lk_step_span lki_step_span(const lki_session *session, uint64_t step);
void         lki_order_tell(const lki_session *session);

/* Micro-batches, see feed.c: whether options suit a stream, if the data are one; how many samples
 * there are, in words; opening from a step on; before a step, on all ranks, what it consists of;
 * and micro-batch `micro` of virtual worker `v` in it, in order. */
LK_NODISCARD lk_status lki_feed_check(const lk_train_config *config, const lk_dataset *dataset);
const char            *lki_feed_text(const lki_session *session, char text[40]);
LK_NODISCARD lk_status lki_feed_open(lki_session *session, uint64_t start);
/* Of step `step` alone, for some of the virtual workers from `first` to `last`. */
LK_NODISCARD lk_status lki_feed_open_some(lki_session *session, uint64_t step, uint32_t first,
                                          uint32_t last);
/* From `start` on for the virtual workers that are this rank's now. */
LK_NODISCARD lk_status lki_feed_deal(lki_session *session, uint64_t start);
void                   lki_feed_close(lki_session *session);
/* The step's part of a stream.  Not *there: there is no such step, because the stream is over, as a
 * resumed run finds out here (session->ended), or a request to stop came first (->stopped). */
LK_NODISCARD lk_status lki_feed_step(lki_session *session, uint64_t step, bool *there);
LK_NODISCARD lk_status lki_feed_next(lki_session *session, uint64_t step, uint32_t v,
                                     uint32_t micro, lk_batch *out);
/* The same of any virtual worker, whoever runs it. */
LK_NODISCARD lk_status lki_feed_again(lki_session *session, uint64_t step, uint32_t v,
                                      uint32_t micro, lk_batch *out);

/* Appends a step's loss to the chain. */
void lki_loss_chain_add(char chain[65], double loss);
void lki_loss_bits(double loss, char hex[17]);

/* Hashes of what the run has made so far: collective. */
LK_NODISCARD lk_status lki_weights_hash(const lki_session *session, char hex[65]);
LK_NODISCARD lk_status lki_run_hash(const lki_session *session, const char *weights, char hex[65]);

/* ---- Checkpoints (save.c) and starting values (start.c)
 * -------------------------------------------- */

/* Refuses a directory that already has checkpoints unless resuming. */
LK_NODISCARD lk_status lki_checkpoint_check(const lk_train_config *config);
LK_NODISCARD lk_status lki_own_directory(lki_session *session);

/* LK_EINVAL names the first option that contradicts the checkpoint to resume from. */
LK_NODISCARD lk_status lki_resume_check(const lk_train_config *config, const lk_dataset_info *data);

/* Collective: loads --init, or the checkpoint to resume from, which rank 0 reads, and sets
 * session->start. */
LK_NODISCARD lk_status lki_start_values(lki_session *session);

/* Shows all of a parameter's value `which` (see lk_parallel_load()) to `visit`, in order: in pieces
 * of LK_CHECKPOINT_PIECE elements, collectively, where it is not whole on this host. */
LK_NODISCARD lk_status lki_visit_value(const lki_session *session, uint32_t param, uint32_t which,
                                       void (*visit)(void *context, const float *values,
                                                     size_t count),
                                       void *context);

/* Collective, once parameters and directory are there: whether hosts write what they keep. */
LK_NODISCARD lk_status lki_parts_agree(lki_session *session);

/* Whether this rank writes anything of a checkpoint. */
bool lki_parts_writes(const lki_session *session);

/* Collective: the writers write; every rank learns whether it worked.  `later`: with
 * checkpoint_async all wait for a copy only. */
LK_NODISCARD lk_status lki_save(lki_session *session, uint64_t step, bool later);

/* While rank 0 is busy with files the others, who wait for it, have patience.  A death still wakes
 * them, and rank 0 itself waits for nobody slow. */
void lki_let_rank_0_work(lki_session *session, bool work);

/* Checks that a safetensors file holds every parameter of the model. */
LK_NODISCARD lk_status lki_init_check(const char *path, const lk_model *model);

/* ---- One run in a directory (lock.c) ----------------------------------------------------- */

/* LK_EIO if a run is using `dir`, and says which. */
LK_NODISCARD lk_status lki_lock_check(const char *dir);

/* The same, and from here on `dir` is this process's until it drops what comes out, or ends.  A
 * file system without locks is noted, and the run goes on. */
LK_NODISCARD lk_status lki_lock_take(int *out, const char *dir, lki_journal *journal);
void                   lki_lock_drop(int fd, const char *dir); /* -1: nothing to do */

/* Whether nobody else has come to have it; -1: as far as this rank is concerned. */
LK_NODISCARD lk_status lki_lock_hold(int fd, const char *dir);

/* ---- The loop's parts (run.c) ------------------------------------------------------------ */

lki_session lki_session_of(const lk_train_config *config, lk_comm *given, lk_comm *comm);
LK_NODISCARD lk_status lki_session_open(lki_session *session);
lk_status              lki_session_close(lki_session *session);

/* Begins a step; runs the turn whose micro-batches are there, `again` if it is an audit's; and a
 * whole step, to its update. */
LK_NODISCARD lk_status lki_session_begin(lki_session *session, uint64_t step);
void                   lki_session_turn(lki_session *session);
LK_NODISCARD lk_status lki_session_step(lki_session *session, uint64_t step,
                                        lki_step_record *record);

/* ---- Parameters that are read (run.c) ---------------------------------------------------- */

/* The hook before_read of lk_hooks; `user` is the session. */
void lki_read_block(void *user, uint32_t block);

/* ---- Evaluation (evaluate.c) ------------------------------------------------------------- */

/* Collective: mean loss and accuracy over the validation part after `done` steps, each sample once,
 * with the weights or, as the options say, their moving means. */
LK_NODISCARD lk_status lki_evaluate(lki_session *session, uint64_t done, double *loss,
                                    double *accuracy);

/* ---- Between two steps (after.c) --------------------------------------------------------- */

/* Where the run is to end; once s->start is known, and its watch. */
void lki_find_end(lki_session *session);

/* Running state as it is now; parameters are looked up when a block reads them. */
void lki_fetch_states(lki_session *session);

/* Collective, after each step: evaluation and a checkpoint if they are due, and whether the run
 * ends (s->ended) or is asked to (s->stopped). */
LK_NODISCARD lk_status lki_after_step(lki_session *session, uint64_t done, lk_train_result *result);

/* Takes notice, once, of an evaluation, which may be the last; true: it is one of those to be kept.
 * One that is only made because the run is interrupted here does not count: where it is not, there
 * is none. */
bool lki_heed_evaluation(lki_session *session, uint64_t done, double loss, double accuracy);

/* ---- The end of a run (finish.c) --------------------------------------------------------- */

/* Collective: weights and the last evaluation of a run that has come to its end are finite, or
 * LK_ENONFINITE. */
LK_NODISCARD lk_status lki_check_end(const lki_session *session, uint64_t done,
                                     const lk_train_result *result);

/* Collective: the hashes, which all hosts agree about, and the last words. */
LK_NODISCARD lk_status lki_finish(lki_session *session, uint64_t done, lk_train_result *result);

/* ---- Where the time goes (observe.c): nothing without --trace or a report ---------------- */

LK_NODISCARD lk_status lki_observe_open(lki_session *session);

/* The session has another loader. */
void lki_observe_loader(const lki_session *s);

/* A step begins, after `done` others.  Where only a report is wanted, of short steps every other
 * one is traced. */
void lki_observe_begin(lki_session *session, uint64_t done);

/* Between two turns, and two steps: hands what is in the trace over. */
void lki_observe_turn(const lki_session *session);
void lki_observe_drain(const lki_session *session);
void lki_observe_step(const lki_session *session, const lki_step_record *record);

/* Collective, after the last of `done` steps: fills in config->report. */
LK_NODISCARD lk_status lki_observe_report(lki_session *session, uint64_t done);

/* The loader is gone, the rest not yet.  LK_EIO: the trace could not be written. */
LK_NODISCARD lk_status lki_observe_close(lki_session *session);

/* ---- Log and progress (journal.c) -------------------------------------------------------- */

struct lki_step_record {
    uint64_t step, epoch, samples, tokens;
    double   loss, lr, grad_norm;
    double   loss_scale; /* 0: there is none */
    uint64_t skipped;    /* steps so far, with this one */
    bool     skips;      /* this one */
    uint32_t audited;    /* virtual workers that came out alike, where there are audits */
    uint32_t moved;      /* virtual workers that have another rank after it */
    uint32_t duplicated; /* virtual workers that another rank has made than theirs */
    uint32_t dropped;    /* virtual workers that did not count */
    lk_noise noise;      /* so far, if it is wanted */
    double   stalled;    /* seconds of rank 0's waiting for its offload file */
    double   seconds, data_seconds, compute_seconds, finish_seconds;
};

/* Everything below takes a NULL journal (other ranks) and does nothing. */
LK_NODISCARD lk_status lki_journal_open(lki_journal **out, const lk_train_config *config);

/* From here on lines say that the run is not exact. */
void lki_journal_label(lki_journal *journal);

/* Opens the log for a run that goes on after `start` steps up to `end`: cut back to there, or new.
 */
LK_NODISCARD lk_status lki_journal_begin(lki_journal *journal, uint64_t start, uint64_t end);

/* The same for a run whose rank 0 is gone: `done` steps are complete, and `bytes` bytes of the log
 * count. */
LK_NODISCARD lk_status lki_journal_take_over(lki_journal *journal, uint64_t done, uint64_t end,
                                             uint64_t bytes);
/* Bytes of the log in which the steps up to `step` stand; 0: there is no such file. */
LK_NODISCARD lk_status lki_journal_find(const lki_journal *journal, uint64_t step,
                                        uint64_t *bytes);
uint64_t               lki_journal_bytes(const lki_journal *journal); /* 0: there is no such file */
void                   lki_journal_free(lki_journal *journal);
LK_NODISCARD lk_status lki_journal_step(lki_journal *journal, const lki_step_record *record);
LK_NODISCARD lk_status lki_journal_evaluation(lki_journal *journal, uint64_t step, double loss,
                                              double accuracy);

/* Bytes of a log up to and with the last line before one of a later step, or of the run's end. */
size_t lki_log_prefix(const uint8_t *log, size_t bytes, uint64_t step);

/* After `step` steps: the checkpoint of an earlier step is written, or `error` says why not. */
LK_NODISCARD lk_status lki_journal_saved(lki_journal *journal, uint64_t step, uint64_t saved,
                                         double stall, double seconds, const char *error);

/* What an audit has found. */
LK_NODISCARD lk_status lki_journal_finding(lki_journal *journal, const lk_audit_finding *finding);

/* Something else that belongs to a step; takes the reference (NULL: there was no memory). */
LK_NODISCARD lk_status lki_journal_event(lki_journal *journal, json_t *line);

/* Waits until the log is on the disk, where it is a file. */
LK_NODISCARD lk_status lki_journal_sync(lki_journal *journal);
LK_NODISCARD lk_status lki_journal_end(lki_journal *journal, const lk_train_result *result);

/* A line on stderr between progress lines, printf-like: notes always, the rest unless quiet. */
void lki_journal_note(lki_journal *journal, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void lki_journal_say(lki_journal *journal, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
