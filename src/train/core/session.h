/* train/core/session.h -- the state of one rank while it trains, and how it is built.
 *
 * The other folders of the room own some objects that are pointed to here.  observe/ owns the
 * observer and the statistics of slow ranks, saves/ the state of checkpoints, and recover/ the
 * state for continuing after losses.
 */
#ifndef LKI_TRAIN_SESSION_H
#define LKI_TRAIN_SESSION_H

#include "base/status.h"
#include "lockstep/data.h"
#include "train/config.h"
#include "train/core/joint.h"
#include "train/core/journal.h"
#include "train/core/stopping.h"
#include "train/options.h"

typedef struct lki_observer lki_observer; /* observe/observe.c */
typedef struct lki_pace     lki_pace;     /* observe/pace.c */
typedef struct lki_base     lki_base;     /* saves/base.h */
typedef struct lki_saves    lki_saves;    /* saves/save.h */
typedef struct lki_survival lki_survival; /* recover/succession.h */
typedef struct lki_feed     lki_feed;     /* feed.c */
typedef struct lki_clients  lki_clients;  /* client_rounds.h */
typedef struct lki_delays   lki_delays;   /* delays.h */

/* The progress of the run, and its end.  See progress.h. */
typedef struct {
    uint64_t     start;          /* the first step: 0, or the step of the checkpoint */
    uint64_t     end;            /* the last step, if nothing ends the run earlier */
    const char  *ended;          /* name of the option that ends the run; NULL: none so far */
    double       began;          /* start time of the run, by the clock of max_time_ms */
    lki_stopping stopping;       /* results of the evaluations so far */
    uint64_t     judged;         /* step of the last evaluation that `stopping` contains */
    bool         judged_best;    /* the evaluation of step `judged` was among the best */
    uint64_t     chained;        /* number of steps whose loss is in loss_chain */
    char         loss_chain[65]; /* hash over the loss_bits of all steps so far */
    uint64_t     audited;        /* virtual workers computed twice, with identical results */
    uint64_t groups_said; /* step whose line about groups is in the log */
    uint64_t averages_said; /* step whose line about the mean of replicas is in the log */
    bool     freeze_said; /* the second moment is frozen, and the user knows it */
} lki_run_progress;

/* The tables of a turn for its virtual workers.  See build.c and loop/step.c. */
typedef struct {
    uint32_t  together;    /* virtual workers per turn: 1, or all of this rank with SyncBatchNorm */
    lk_batch *batches;     /* [together] */
    lk_pass  *passes;      /* [together]; persist over the micro-batches of a virtual worker */
    float   **grads;       /* [together] tables, filled in each turn, block by block */
    float   **state_sums;  /* [together] tables, filled in each turn */
    bool     *empty;       /* [together] tables; true: the gradient has not been written yet */
    uint32_t *first_terms; /* [block_count + 1]: first term of each block, last block first */
    float     loss_scale;  /* loss scale of the current step's gradients */
    uint64_t  seed;        /* of the turn's random numbers */
    uint64_t  count;       /* number of turns of the current step so far */
    uint64_t  version;     /* version of the parameters that the turn reads; 0: no packed weights */
    bool      dropped;     /* another rank has already computed this turn */
    lki_joint joint;       /* the virtual workers of the turn, if they are computed at once */
} lki_turn;

typedef struct {
    const lk_train_config *config;
    lk_comm               *comm; /* `given`, or the communicator that replaced it after a loss */
    lk_comm               *given;
    uint32_t               rank, ranks;

    lk_dataset   *dataset;
    lk_model     *model;
    lk_exec      *exec;
    lk_engine    *engine;
    lk_parallel  *parallel;
    lk_loader    *loader; /* NULL with stream data, which rank 0 reads for all ranks */
    lk_loader    *again;  /* loader for virtual workers computed again; NULL until needed */
    lki_feed     *feed;
    lki_clients  *clients; /* NULL without clients */
    lki_delays   *delays;  /* NULL without given times of tasks */
    lki_journal  *journal;  /* log and progress; NULL on ranks other than 0 */
    lki_observer *observer; /* trace or step report; NULL if none is requested */
    lki_pace     *pace;     /* step times of the ranks */
    lki_saves    *saves;
    lki_base     *base; /* frozen parameters; NULL if there are none */
    lki_survival *survival; /* state needed to continue after a loss; NULL without
                             * config->survives */

    const lk_param *params;
    uint32_t        param_count, state_count, term_count, micro_count;
    const lk_state *states;
    lk_state       *kept; /* states in checkpoints: `states` and, if used, their moving means */
    uint32_t        kept_count;
    uint32_t        joint; /* maximum number of virtual workers of a joint turn; 1 = none */
    uint32_t        first, count, stride; /* this rank's virtual workers */

    const float    **param_data, **state_data; /* looked up for each step */
    const uint16_t **param_bf16; /* parameters read as bf16; replaces param_data */
    float           *means; /* all moving means, gathered; NULL if this host stores all */
    lki_turn     turn;
    lki_run_progress progress;

    char     exactness_id[33];
    lk_label inherited;    /* label of the checkpoint that the run continues from */
    bool     outside;      /* this rank has not yet entered the running communicator */
    bool     stopped;      /* the run ends early because of a request to stop */
    bool     depleted;     /* fewer than workers_least ranks remain */
    bool     left;         /* this rank has left on request; other ranks continue */
    double   stalled;      /* seconds of waiting for the offload file */
    uint32_t lost_early;   /* number of ranks lost before the first step */
    double   lost_seconds; /* seconds spent on the rebuilds for lost_early */
    bool     patient;      /* timeouts are raised, because rank 0 reads or writes files */
    bool     replays;      /* replay: does not touch the checkpoint directory */
    bool     alone;        /* gradients are not announced before the end of their turn */
    bool     mends;        /* this rank computes missing parts of an interrupted step */
    uint64_t begun_step;   /* the current step, from 1 */
    double   begun;        /* when it began */
    double   attempted;    /* when it began again after a loss of ranks; otherwise as `begun` */
} lki_session;

lki_session lki_session_of(const lk_train_config *config, lk_comm *given, lk_comm *comm);

/* Describes the run, as it begins, for the check of its log. */
lki_log_run lki_log_run_of(const lki_session *session);

/* Opens the journal, on rank 0. */
LK_NODISCARD lk_status lki_session_journal(lki_session *session);

/* Raises (`work`) or restores the timeout of all ranks except rank 0, while they wait for rank 0 to
 * read or write files.  The death of a rank is still detected at once. */
void lki_let_rank_0_work(lki_session *session, bool work);

/* Passes value `which` (see lk_parallel_load()) of a parameter to `visit`, in order.  If this host
 * stores only a part of the value, it is gathered in pieces of LK_CHECKPOINT_PIECE elements, and
 * the call is collective. */
LK_NODISCARD lk_status lki_visit_value(const lki_session *session, uint32_t param, uint32_t which,
                                       void (*visit)(void *context, const float *values,
                                                     size_t count),
                                       void *context);

/* ---- Building (build.c) ------------------------------------------------------------------ */

/* Builds the model and the tables of parameters and states. */
LK_NODISCARD lk_status lki_session_model(lki_session *s);

/* Opens the strategy.  Collective. */
LK_NODISCARD lk_status lki_session_parallel(lki_session *s);

/* Makes the options of the strategy, with the times of tasks that the session has.  The caller
 * frees them by lki_parallel_options_free(), even after an error. */
LK_NODISCARD lk_status lki_session_options(lki_session *s, lk_parallel_options *out);

/* Lets a step without samples change nothing, if all clients of a round may drop out. */
void lki_session_may_idle(const lk_train_config *config, lk_parallel *parallel);

/* Allocates the tables of a turn for each of its virtual workers. */
LK_NODISCARD lk_status lki_session_turns(lki_session *s);

/* Computes this rank's virtual workers from step `start` on, and opens their data. */
LK_NODISCARD lk_status lki_session_deal(lki_session *s, uint64_t start);

/* Frees everything that build.c has allocated. */
void lki_session_free(lki_session *s);

/* Looks up the current running state.  (Parameters are looked up when a block reads them.) */
void lki_fetch_states(lki_session *session);

/* Binds the threads of s->exec to cores, if config->pin is set and no other worker may run on these
 * cores.  Collective.  Defined in affinity.c. */
LK_NODISCARD lk_status lki_set_affinity(lki_session *s);

/* Gives s->engine shared memory of this host for packed weights.  Collective, except if this rank
 * enters a running communicator.  Defined in shared_packs.c. */
LK_NODISCARD lk_status lki_share_packs(lki_session *s);

/* ---- Introductions (introduce.c) --------------------------------------------------------- */

/* Values that must be equal on all ranks. */
typedef struct {
    char     data[40]; /* content hash */
    uint64_t fields[LKI_FIELDS_MAX];
} lki_common;

void                    lki_common_of(lki_common *out, const lki_session *session);

/* Returns the first field in which the options of two ranks differ, or NULL. */
const lki_field        *lki_common_field(const lki_common *one, const lki_common *other);

/* Fails if ranks have different data, for example because a file was edited while workers started,
 * or different values of an option that must be equal (train/options.def).  Collective. */
LK_NODISCARD lk_status lki_verify_same_start(lki_session *s);

/* Prints on rank 0 which ranks run where, and with which virtual workers.  Collective. */
LK_NODISCARD lk_status lki_introduce(lki_session *s);

/* Prints at the start that oneDNN computes the products, or with `end` whether oneDNN did so on all
 * ranks. */
void lki_tell_kernels(lki_session *session, bool end);

/* Prints the label of the run, unless it is exact, and the rules that change its bits. */
void lki_tell_bits(const lki_session *session);

/* Prints a note if the order repeats or leaves out samples. */
void         lki_order_tell(const lki_session *session);

#endif
