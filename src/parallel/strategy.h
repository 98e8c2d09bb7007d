/* parallel/strategy.h -- the strategy waist: one way of turning V gradients into one sum.
 *
 * A strategy places the gradients of the virtual workers that its rank runs, and leaves, for
 * every span that the rank owns, the canonical sum over all V.  What is common to all (who owns
 * what, norms, clipping, the update, attestation) lies above it in step.c.  A strategy never
 * sees a model, and a model never sees a strategy.
 *
 * Ownership: `parallel` belongs to parallel.c; a strategy owns parallel->private alone, and
 * frees it in detach(), which must accept a half-made one.
 */
#ifndef LKI_PARALLEL_STRATEGY_H
#define LKI_PARALLEL_STRATEGY_H

#include "base/status.h"
#include "device/reduce.h"
#include "parallel/backups.h"
#include "parallel/layout.h"
#include "parallel/recover/ledger.h"
#include "parallel/recover/remains.h"
#include "parallel/strategies/keepers.h"
#include "parallel/strategies/rounds.h"
#include "parallel/strategies/shelf.h"
#include "parallel/world.h"

/* What a host sends of gradients: so many subtrees of virtual workers, which come from it, and so
 * many sums, of which it makes a part for all others. */
typedef struct {
    uint64_t branches, sums;
} lki_passes;

/* Where the gradients of a virtual worker, or the sums over all, lie. */
typedef struct {
    float        *gradients; /* a whole gradient space; or, where there are places, what I own */
    const size_t *places;    /* of the pieces that I own (lki_layout_piece()), or NULL */
    float        *states;    /* micro_count rows of state_width */
} lki_gradients;

typedef struct {
    const char *name;
    bool        sharded;      /* each host keeps the optimizer's state of its own part */
    bool        replicates;   /* hosts that share a model are a group, of which there are several */
    bool        rounds;       /* virtual workers are dealt in rounds, not in ranges */
    bool        whole_blocks; /* buckets are */
    bool        gathers;      /* each host keeps the parameters of its own part only, too */
    bool        survives;     /* what a rank leaves is in arenas: see ledger.h */
    bool        raw;          /* terms' memory holds anything when a virtual worker begins */
    /* Bytes of gradients that a host holds, which may be more than any machine has (0: too many to
     * count).  Asks nothing but the model, the world and the virtual workers. */
    size_t (*bytes)(const lk_parallel *parallel, uint32_t host);
    lk_status (*attach)(lk_parallel *parallel);
    void (*detach)(lk_parallel *parallel);

    /* Starts the rank's next virtual worker, whose gradients, zeroed unless they are raw, and
     * zeroed running state lie at *out; in lock step all of them, one after the other, before any
     * is computed. */
    lk_status (*begin_leaf)(lk_parallel *parallel, uint32_t leaf, lki_gradients *out);

    /* (optional) Where the current virtual worker adds a term, which may be elsewhere in every turn
     * and waits until there is room.  *out is memory for the term even if it fails. */
    lk_status (*find_term)(lk_parallel *parallel, uint32_t term, float **out);

    /* The current virtual worker has finished a term / all of them; in lock step all of the rank's
     * have.  Every term is announced before end_leaf(). */
    lk_status (*term_ready)(lk_parallel *parallel, uint32_t term);
    lk_status (*end_leaf)(lk_parallel *parallel);

    /* (optional) Moves communication forward without waiting. */
    lk_status (*progress)(lk_parallel *parallel);

    /* (where parameters are gathered) Leaves nothing behind for which another rank might wait while
     * this one waits to gather. */
    lk_status (*settle)(lk_parallel *parallel);

    /* Where my spans' sums over all virtual workers are; waits. */
    lk_status (*reduce)(lk_parallel *parallel, lki_gradients *sums);

    /* (optional) Between two steps: takes up another layout of as many elements. */
    lk_status (*relay)(lk_parallel *parallel);

    /* (optional, both or neither) Whether it has room for ranges dealt so; and, between two steps,
     * takes up those of parallel->dealing. */
    bool (*fits)(const lk_parallel *parallel, const lki_dealing *dealing);
    lk_status (*redeal)(lk_parallel *parallel);

    /* (optional, all or none) Where virtual workers are made by whoever comes first (claims.h).
     * Begins one in a buffer that is free, at `place` among all of the host's: false if there is
     * none; `out` as of begin_leaf().  Ends it: `taken`, it counts, and stays there for this step.
     * The next of my share, or the current one (`begun`), is at `place`, complete.  And, once mine
     * are handed in, waits until others have handed in theirs (`over`), or for so long. */
    bool (*begin_other)(lk_parallel *parallel, lki_gradients *out, uint32_t *place);
    void (*end_other)(lk_parallel *parallel, uint32_t leaf, uint32_t place, bool taken);
    lk_status (*elsewhere)(lk_parallel *parallel, uint32_t leaf, uint32_t place, bool begun);
    lk_status (*watch)(lk_parallel *parallel, double seconds, bool *over);

    /* (optional) Zeros take the place of all that my virtual workers have made in this step, and
     * travel; my last one is over (backups.h). */
    lk_status (*leave_out)(lk_parallel *parallel);

    /* (optional) After a failure, when `steps` steps are complete: leaves in parallel->remains what
     * there is of the next one.  Collective. */
    lk_status (*salvage)(lk_parallel *parallel, uint64_t steps);

    /* What a host sends of every element.  Asks nothing but what bytes() does. */
    lki_passes (*passes)(const lk_parallel *parallel, uint32_t host);
} lki_strategy_ops;

extern const lki_strategy_ops lki_strategy_ddp, lki_strategy_zero1, lki_strategy_zero2,
    lki_strategy_zero3, lki_strategy_hybrid, lki_strategy_single;

/* names.c: NULL is the default. */
LK_NODISCARD lk_status lki_strategy_find(const lki_strategy_ops **out, const char *name);

typedef struct lki_piece_list lki_piece_list; /* shards.c */
typedef struct lki_row_merger lki_row_merger; /* rows.c */
typedef struct lki_units      lki_units;      /* units.c */
typedef struct lki_noise lki_noise;           /* noise.c */
typedef struct lki_order      lki_order;      /* reorder.c */
typedef struct lki_aside      lki_aside;      /* offload/aside.c */
typedef struct lki_hooking    lki_hooking;    /* hooks.c */
typedef struct lki_audit      lki_audit;      /* audit.c */
typedef struct lki_balance    lki_balance;    /* balance.c */
typedef struct lki_claims     lki_claims;     /* claims.c */

/* Per virtual worker and step, visible to all ranks. */
typedef struct {
    double   loss;
    double   squares;   /* of its gradient, if the noise scale is wanted */
    double   seconds;   /* of its rank for its turns */
    double   data;      /* of these, those that the rank has waited for data */
    uint64_t count, hits;
    uint64_t written;   /* of the rank's first: what it has written of the parameters, hashed */
    uint32_t micros;    /* micro-batches of this step */
    uint32_t maker;     /* the rank that has made it */
    uint32_t reorders;  /* of rank 0's first: its terms were not finished in the layout's order */
    lki_counting counting; /* whether it does */
    uint64_t samples[]; /* of each micro-batch; then a bit for each parameter that is used */
} lki_report;

/* What a rank took for its turns in a step, by its own clock, without waiting for others; 0 where
 * ranks that are lost have made part of the step. */
typedef struct {
    uint32_t virtual_workers, dropped; /* dropped: of its share, those that did not count */
    double   seconds, data; /* data: of these, those that it waited for data */
    uint64_t samples;       /* that count */
    double   pace; /* seconds of a virtual worker, by which shares have moved last; 0: none have */
} lki_rank_time;

struct lk_parallel {
    const lki_strategy_ops *ops;
    void *private;
    lk_comm         *comm;          /* NULL: what it would take is told, and nothing runs */
    lki_world        world;
    uint32_t         rank, ranks;
    uint32_t         local, locals; /* my rank among those of this host, and how many they are */
    uint32_t         shards, shard; /* parts of the model that hosts keep, and which is mine */
    bool             buddies;       /* neighbours keep each other's shard, too */
    lki_keepers      keepers;
    uint32_t        *carriers;      /* of owners: lki_shards_carrier() */
    lk_comm         *group;         /* ranks whose hosts give each other what they keep */
    bool             gathers;       /* the parameters of a shard are on its host alone */
    bool             parted;        /* so are their FP32 values, whether they are gathered or not */
    lki_shelf         shelf;          /* if so */
    lki_units       *units;
    lki_piece_list  *pieces;
    bool             quantised; /* what is read of parameters are blocks of 8 bits */
    bool             keeps;     /* what a unit came as, until the values change */
    lk_exec         *exec, *own_exec;
    lk_optimizer     optimizer;
    lk_loss_scaling  scaling;
    lk_loss_scaler   scaler;
    double           seed; /* of this step's gradients: the factor by which they are too large */
    uint32_t         measures; /* sums of squares that each span has */
    double           root_squares; /* of the summed gradient */
    double           noise_decay;  /* 0: no noise scale, and `noise` is NULL */
    lki_noise       *noise;
    lk_noise         noise_sums;
    double           clip_norm, clip_value;
    lk_dtype         rounded; /* to which every node of gradients' tree is rounded, or LK_F32 */
    lk_bucket_hook   hook;    /* or NULL, and so is `hooking` */
    void            *hook_context;
    lki_hooking     *hooking;
    lki_audit       *audit;   /* or NULL */
    lk_param_rule   *rules; /* of each parameter */
    uint32_t         leaves, micro_count;
    uint32_t         micros; /* of this step */
    size_t           bucket_bytes, first_bucket_bytes; /* as in the options */
    bool             lock_step;
    lki_row_merger  *rows; /* in lock step */
    lki_layout      *layout;
    lki_dealing      dealing;
    lki_share        share;  /* my virtual workers ... */
    uint32_t        *queue;  /* ... in the order in which I make them; NULL: ascending */
    bool             largest; /* the largest subtrees of a share are made first */
    lki_balance     *balance; /* or NULL: shares stay as they are */
    bool             duplicates; /* idle ranks make others' virtual workers ... */
    uint32_t         spares;  /* ... in so many gradients more of each rank */
    lki_claims      *claims;  /* if so */
    lki_backups      backups; /* ranks that are late are dropped from a step */
    lki_round_plan   rounds; /* if they are dealt so */

    /* Running state: state_width elements, padded per state; its sums follow the gradients. */
    uint32_t           state_count;
    lk_parallel_state *states;
    size_t            *state_at;
    size_t             state_width;
    size_t             width; /* of a gradient space: gradients, then micro_count x state_width */

    /* In the arena: one copy for all ranks of a host. */
    lk_arena *arena;
    float    *params, *running; /* params: of my host's shard where they are parted */
    float    *running_mean;     /* with a moving mean only */
    float    *optimizer_state[LK_OPTIMIZER_STATES_MAX]; /* of my host's shard */
    unsigned char *slots; /* in which units of parameters are gathered, slot_bytes each */
    size_t    slot_bytes;
    unsigned char *parcels; /* as which they come, if quantised: one for each slot, parcel_bytes
                             * each, or of all units */
    size_t    parcel_bytes;
    unsigned char *read; /* where they are not gathered, and read otherwise than they are: what is
                          * read of all of them (lki_param_span.read_at) */
    const char  *offload_dir;
    unsigned     in_files;      /* of lk_offloaded: what is there and not above */
    lki_aside   *states_aside;  /* of what I own; NULL: in memory, or I own nothing */
    lki_aside   *params_aside;
    double   *block_sums; /* [span_count][measures], in order of turn: lki_block_sum() */
    char     *reports;    /* [leaves], report_bytes each, in order of the rank that runs them */
    size_t    report_bytes;
    struct lki_claim *claim_words; /* [leaves], if idle ranks make others' */
    lki_ledger ledger;
    lki_remains remains; /* of the step that was broken off, until it is reduced */

    /* Mine. */
    size_t   *mine; /* indices of the spans that I own */
    size_t    mine_count;
    uint64_t *hashes;  /* of what I wrote last, by span */
    size_t   *reported; /* bytes of every rank's reports */
    lki_rank_time *times; /* [ranks]: of the last step */
    uint8_t  *ready;   /* [together][term_count]: announced by the current virtual workers */
    uint8_t  *begun;   /* the same: their memory is cleared, or somebody is to write it */
    uint32_t *announced; /* [term_count]: by how many of them */
    double   *scratch; /* as many as parameters, virtual workers or spans */
    double   *norms;   /* [measures][param_count] */
    lk_unused unused;
    uint8_t  *used;    /* [param_count]: by anybody, in the last step */
    uint64_t *missed;  /* [param_count]: steps that did not count */
    bool      settled; /* the first step has said what is used */
    lki_order *order;  /* in which terms are finished; NULL: nobody looks */

    /* The step under way, if there is one. */
    bool     under_way;
    uint64_t step;
    uint32_t leaf, micro; /* the current turn: leaf counts from 0 in my share */
    bool     mended;      /* some of it was made before a rank was lost */
    double   turned;      /* when the current turn began, by this rank's clock */
    double   waited;      /* seconds since then that were others', not mine */
    uint32_t together;    /* virtual workers of a turn */
    uint32_t chosen;      /* among them */
    bool     turning;
    bool     remaking; /* the turn is an audit's */
    bool     helping;  /* the turn is of a virtual worker that another rank has begun, or may */
    bool     dropped;  /* what the turn makes is there already: nobody wants it */
    bool     reduced;  /* `sums` are there */
    lki_gradients  sums;
    lki_gradients *current; /* [together] */
    lk_error      failure; /* kept until lk_parallel_finish() */
    float        *scrap;   /* for gradients that are made after it; NULL: none were */
    float        *blank;   /* read after it in place of what is gathered; NULL: nothing was */
};

/* After a failure a turn is gone through to its end, and thrown away.  What it makes should not lie
 * where others do, and what it reads not be what others of the host may still receive: who has not
 * failed yet goes on.  Room for the largest parameter or its gradient, all zero at first, kept in
 * *at; NULL: there is no memory. */
float *lki_scrap(const lk_parallel *parallel, float **at);

/* Whether this rank is the one of its host that does the work on a span where its owner's number
 * is this: on every host there is one. */
static inline bool lki_tends(const lk_parallel *parallel, const lki_param_span *span)
{
    return parallel->layout->owners[span->owner].local % parallel->locals == parallel->local;
}

/* Whether it owns the span on its host, which keeps it: then it updates it. */
static inline bool lki_owns(const lk_parallel *parallel, const lki_param_span *span)
{
    return lki_keeps(parallel, parallel->world.host_of[parallel->rank],
                     parallel->layout->owners[span->owner].shard) &&
           lki_tends(parallel, span);
}

/* Where a span lies in what its owner's host keeps. */
static inline size_t lki_kept_at(const lk_parallel *parallel, const lki_param_span *span)
{
    return span->kept + parallel->keepers.before[parallel->layout->owners[span->owner].shard];
}

/* offload/offload.c: the parameters of one of my spans whose chunk is there. */
float *lki_offload_values(const lk_parallel *parallel, size_t span);

/* Where the parameters of a span lie on its owner's host. */
static inline float *lki_values_of(const lk_parallel *parallel, const lki_param_span *span)
{
    if (parallel->params_aside != NULL)
        return lki_offload_values(parallel, (size_t)(span - parallel->layout->spans));
    return parallel->params + (parallel->parted ? lki_kept_at(parallel, span) : span->at);
}

/* Buffers that a rank needs while it makes a share that is a range. */
uint32_t lki_share_buffers(const lk_parallel *parallel, lki_share share);

/* Virtual workers that this rank runs in the step under way, and which its n-th is. */
static inline uint32_t lki_turns(const lk_parallel *parallel)
{
    return parallel->remains.there ? parallel->remains.count : parallel->share.count;
}

static inline uint32_t lki_leaf_of_turn(const lk_parallel *parallel, uint32_t n)
{
    if (parallel->remains.there)
        return parallel->remains.leaves[n];
    return parallel->queue != NULL ? parallel->queue[n]
                                   : parallel->share.first + n * parallel->share.stride;
}

/* What the sums of squares of a span are of: lars has the first two, lamb all three. */
typedef enum { LKI_OF_GRADIENT = 0, LKI_OF_VALUES, LKI_OF_MOVES } lki_measure;

static inline double *lki_block_sum(const lk_parallel *parallel, const lki_param_span *span,
                                    lki_measure measure)
{
    return &parallel->block_sums[span->turn * parallel->measures + measure];
}

static inline lki_report *lki_report_of(const lk_parallel *parallel, uint32_t leaf)
{
    LK_ASSERT(leaf < parallel->leaves);
    size_t place = lki_share_place(&parallel->dealing, leaf);
    return (lki_report *)(void *)(parallel->reports + place * parallel->report_bytes);
}

/* parallel.c: all that needs neither memory for values nor other ranks; parallel->world and rank
 * are there.  Then the bytes of the model's arena are known. */
LK_NODISCARD lk_status lki_parallel_describe(lk_parallel *parallel, const lk_param *params,
                                             uint32_t param_count,
                                             const lk_parallel_options *options);
size_t                 lki_parallel_arena(lk_parallel *parallel);

/* values.c: running state `state`, counted as lk_parallel_state_count() does. */
float *lki_state_data(const lk_parallel *parallel, uint32_t state);

/* step.c: everything after the reduction. */
lk_status lki_step_finish(lk_parallel *parallel, const lki_gradients *sums, double lr,
                          lk_step_result *result);

/* Of a step whose sums are complete in the ledger: the rest.  Collective. */
LK_NODISCARD lk_status lki_step_complete(lk_parallel *parallel, uint64_t step,
                                         const lki_tally *tally);

/* Where a span's use `use` lies in sums or gradients. */
static inline float *lki_gradient_of(const lk_parallel *parallel, const lki_gradients *from,
                                     const lki_param_span *span, uint32_t use)
{
    const lki_layout *layout = parallel->layout;
    return from->gradients + (from->places == NULL ? lki_layout_grad_at(layout, span, use)
                                                   : from->places[lki_layout_piece(layout, span,
                                                                                   use)]);
}

/* usage.c: which parameters are used. */
LK_NODISCARD lk_status lki_usage_open(lk_parallel *parallel);
void                   lki_usage_close(lk_parallel *parallel);
/* The current turn uses a term; parallel->unused says whether anybody wants to know. */
void lki_usage_note(lk_parallel *parallel, lki_report *report, uint32_t term);
/* From everybody's reports, the same on all ranks. */
LK_NODISCARD lk_status lki_usage_collect(lk_parallel *parallel, uint32_t *unused);
/* The update is made. */
void lki_usage_count(lk_parallel *parallel);
static inline bool lki_is_used(const lk_parallel *parallel, uint32_t param)
{
    return parallel->unused == LK_UNUSED_ZERO || parallel->used[param];
}
/* Whether no term of a bucket can be used: it has nothing to say. */
bool lki_is_idle(const lk_parallel *parallel, uint32_t bucket);

/* reorder.c: buckets in the order in which the first step finishes terms.  Terms have the options'
 * numbers outside, and the layout's inside. */
LK_NODISCARD lk_status lki_order_open(lk_parallel *parallel);
void                   lki_order_close(lk_parallel *parallel);
uint32_t               lki_order_term(const lk_parallel *parallel, uint32_t term);
/* The first virtual worker has finished the layout's `term` without being made to. */
void lki_order_note(lk_parallel *parallel, uint32_t term);
/* After the first virtual worker: leaves in its report whether the order differs. */
void lki_order_report(const lk_parallel *parallel, lki_report *report);
/* When all reports are there; and, collective, when the step is over. */
void                   lki_order_hear(lk_parallel *parallel);
LK_NODISCARD lk_status lki_order_settle(lk_parallel *parallel);

/* parallel.c: who runs which virtual workers, until a step has moved some. */
const lki_dealing *lki_parallel_dealing(const lk_parallel *parallel);

/* parallel.c: the spans that this rank owns by the layout. */
void lki_own_spans(lk_parallel *parallel);

/* The slices of running state: each of micro_count rows dealt to the owners of a host in equal
 * parts.  The caller frees *out. */
LK_NODISCARD lk_status lki_state_slices(const lk_parallel *parallel, lk_slice **out, size_t *count);

/* turns.c: where the chosen virtual worker adds a term of the layout, without being taken for a use
 * of it; and the virtual worker, counted over all. */
float      *lki_gradient_now(lk_parallel *parallel, uint32_t term);
uint32_t    lki_leaf_now(const lk_parallel *parallel);
lki_report *lki_report_now(const lk_parallel *parallel); /* of it: others may not see it yet */

/* hooks.c, where there is a hook: the virtual workers of a turn begin; the chosen one has made a
 * term, which may complete buckets. */
LK_NODISCARD lk_status lki_hooks_open(lk_parallel *parallel);
void                   lki_hooks_close(lk_parallel *parallel);
LK_NODISCARD lk_status lki_hooks_begin(lk_parallel *parallel);
LK_NODISCARD lk_status lki_hooks_term(lk_parallel *parallel, uint32_t term);

/* audit.c: a step begins; whether the current virtual worker is the one that is audited (made for
 * the first time, or again); it has made a term, or all; its turn was left out; which one it is,
 * and its report, while it is made again.  Then the turns to be made again, once all sums are
 * there; collective; and how many virtual workers came out alike. */
LK_NODISCARD lk_status lki_audit_open(lk_parallel *parallel, double rate, uint64_t seed);
void                   lki_audit_close(lk_parallel *parallel);
void                   lki_audit_begin(lk_parallel *parallel);
bool                   lki_audit_watches(const lk_parallel *parallel);
void                   lki_audit_term(lk_parallel *parallel, uint32_t term);
void                   lki_audit_finish(lk_parallel *parallel);
void                   lki_audit_leave_out(lk_parallel *parallel);
uint32_t               lki_audit_leaf(const lk_parallel *parallel);
lki_report            *lki_audit_report(const lk_parallel *parallel);
LK_NODISCARD lk_status lki_audit_next(lk_parallel *parallel, bool *more);
uint32_t               lki_audit_alike(const lk_parallel *parallel);

/* noise.c: all virtual workers of a turn begin; the chosen one has made a term, or all of them
 * (out: the square of its gradient); and a step will be made, of which all reports are there. */
LK_NODISCARD lk_status lki_noise_open(lk_parallel *parallel);
void                   lki_noise_close(lk_parallel *parallel);
void                   lki_noise_begin(lk_parallel *parallel);
void                   lki_noise_term(lk_parallel *parallel, uint32_t term);
double                 lki_noise_leaf(const lk_parallel *parallel);
void                   lki_noise_step(lk_parallel *parallel, const lk_step_result *result);

/* rows.c: for lk_parallel_merge_rows().  Closing accepts what was not opened. */
LK_NODISCARD lk_status lki_rows_open(lk_parallel *parallel);
LK_NODISCARD lk_status lki_rows_merge(lk_parallel *parallel, uint32_t width, lki_row_merge merge,
                                      double *rows, double *total);
void                   lki_rows_close(lk_parallel *parallel);

/* reading.c, where parameters are read as bf16 or as blocks of 8 bits: the bytes of parallel->read;
 * what is read of a span is that of `values` from now on; and whether it is. */
size_t lki_reading_bytes(const lk_parallel *parallel);
void   lki_reading_put(const lk_parallel *parallel, const lki_param_span *span,
                       const float *values);
bool   lki_reading_holds(const lk_parallel *parallel, const lki_param_span *span,
                         const float *values);
/* After an update, collective: all ranks may read the new values, where they are not gathered. */
LK_NODISCARD lk_status lki_reading_publish(lk_parallel *parallel);

/* merge.c: right = left + right, nodes of a tree that are rounded to `rounded` or not (LK_F32), by
 * all threads; at = 0; and a sum of whole gradient spaces, where running state is not rounded. */
void lki_merge(const lk_parallel *parallel, lk_dtype rounded, float *right, const float *left,
               size_t count);
void lki_clear(const lk_parallel *parallel, float *at, size_t count);

static inline void lki_merge_spaces(const lk_parallel *parallel, float *right, const float *left)
{
    size_t gradients = parallel->layout->grad_elements;
    lki_merge(parallel, parallel->rounded, right, left, gradients);
    if (parallel->width > gradients)
        lki_merge(parallel, LK_F32, right + gradients, left + gradients,
                  parallel->width - gradients);
}

/* The largest subtrees of [first, first + count) of which a host runs all virtual workers. */
uint32_t lki_count_branches(const lk_parallel *parallel, uint32_t first, uint32_t count,
                            uint32_t host);

/* agree.c: LK_EMISMATCH names the first tensor, or the options, in which a rank differs. */
lk_status lki_verify_same_model(lk_parallel *parallel, const lk_parallel_options *options);
lk_status lki_verify_same_values(lk_parallel *parallel, const char *name, const float *values,
                                 size_t count);

/* update.c: a span by its sum; false: its values are not those that were written.  And, with lamb,
 * before: leaves in place of the sum what the values are to move along. */
bool lki_span_update(lk_parallel *parallel, const lk_update *all, size_t index, float *sum);
void lki_span_direct(lk_parallel *parallel, const lk_update *all, size_t index, float *sum);

/* Hashes what this rank owns of parameter `param`, as the baseline of attestation. */
void lki_attest_written(lk_parallel *parallel, uint32_t param);

/* The same of a span, by its number in the layout. */
void lki_attest_span(lk_parallel *parallel, size_t span);

#endif
