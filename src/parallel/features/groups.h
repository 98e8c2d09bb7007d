/* parallel/features/groups.h -- the state of the exchange between groups, for the files of this
 * feature: groups.c and groups_*.c. */
#ifndef LKI_PARALLEL_FEATURES_GROUPS_H
#define LKI_PARALLEL_FEATURES_GROUPS_H

#include <stdalign.h>
#include <stdatomic.h>

#include "compress/rules.h"
#include "device/reduce.h"
#include "parallel/features/table.h"

/* Tasks of a step that are done by whichever rank of the host is free. */
typedef enum { LKI_MEASURE, LKI_ENCODE, LKI_COMBINE, LKI_TASK_KINDS } lki_task_kind;

/* The number of the next task. */
typedef struct {
    alignas(64) _Atomic uint64_t next;
} lki_ticket;
typedef struct lki_onebit lki_onebit; /* groups_onebit.c */
typedef struct lki_freeze lki_freeze; /* groups_freeze.c */
typedef struct lki_lamb   lki_lamb;   /* groups_lamb.c */

typedef struct {
    uint32_t             count; /* G */
    const lk_compressor *by;    /* NULL: all tensors are left whole */
    lk_compression       options;
    const lki_rule      *rule;
    uint32_t             kept; /* vectors of a group by the rule */
    float                momentum;
    bool                 nesterov;
    lk_error_scale       error_scale;
    double               clip;
    uint64_t             start;   /* the first step with groups, from 0; UINT64_MAX: not decided */
    uint64_t             span;    /* steps of each ratio of the warm-up */
    uint32_t             warmups; /* number of these ratios */
    uint32_t             stage;   /* the ratio of `options` */
    double               ratios[LK_WARMUP_RATIOS_MAX + 1]; /* the last is that after the warm-up */
    size_t               room[LK_ROUNDS_MAX]; /* the maximum of `bytes` in all stages */
    uint64_t             samples; /* the count of the step.  Reports cannot be read while spans are
                                   * decoded, because other ranks of the host may get them again */
    uint32_t             rounds;
    lk_compress_key     *keys;                  /* [param_count] */
    uint32_t            *order;                 /* [param_count]: tensors, the largest first */
    lki_ticket          *tickets;               /* [LKI_TASK_KINDS][LK_ROUNDS_MAX]; in the arena */
    size_t              *at[LK_ROUNDS_MAX];     /* [param_count + 1]: offsets in a message; the last
                                                 * one is that of running state */
    size_t               bytes[LK_ROUNDS_MAX];  /* of the message of a group */
    size_t               first[LK_ROUNDS_MAX];  /* offset of the messages in the model's arena */
    char                *messages[LK_ROUNDS_MAX]; /* [G][bytes]; in the arena, as the next four */
    char                *combined[LK_ROUNDS_MAX]; /* [bytes]; of all rounds but the last */
    char                *shared[2];  /* [copies][bytes]: combined messages of the last round */
    float               *vectors[2]; /* [copies][groups that the host keeps][kept][elements] */
    float               *estimates[2]; /* [copies][elements]: means over all groups, of the whole
                                        * host; NULL: the rule has none */
    uint32_t             copies;     /* 2 with options.survives, else 1: see groups_survive.c */
    uint32_t             now;        /* the copy that is valid between steps */
    size_t               tally_at;   /* offset in tallies */
    uint32_t            *bounds;                /* of parallel->dealing; NULL: equal ranges */
    uint32_t            *keepers;               /* [G]: ranks */
    uint32_t            *places;                /* [G]: number of a group among those of its host */
    float              **sums;                  /* [G]: gradient spaces of the groups that this host
                                                 * keeps, from the first step on; NULL: of others */
    uint32_t             joint;                 /* lk_parallel.joint when they were found */
    size_t              *sent;                  /* [ranks]: bytes of the messages that a rank has */
    lki_tree_input      *inputs;                /* [G] */
    double              *squares;               /* [groups that the host keeps][param_count]: of the
                                                 * sums, in the arena; only with `clip` */
    float               *factors;               /* [G]: by which sums are multiplied; NULL: by 1 */
    float               *leaves;                /* [G + 1][LKI_NORM_BLOCK] */
    lki_onebit          *onebit;                /* NULL: groups exchange gradients */
    lki_freeze          *freeze;                /* NULL: `start` is given */
    lki_lamb            *lamb;                  /* NULL: tensors have no ratios */
    float               *whole;                 /* what is shared of the whole model, as the last
                                                 * caller of lk_parallel_shared() got it */
} lki_groups;

/* Returns true if a parameter is sent whole. */
bool lki_groups_leave_whole(const lki_groups *self, uint32_t param);

/* Returns the bytes of a group's message of a parameter. */
size_t lki_groups_message_bytes(const lki_groups *self, const lki_layout *layout, uint32_t param,
                                uint32_t round);

/* Returns vector `which` that a group keeps of a parameter, on the host of its keeper: the copy
 * that is valid between steps. */
float *lki_groups_kept(const lk_parallel *parallel, const lki_groups *self, uint32_t which,
                       uint32_t group, uint32_t param);

/* Decodes a span of the sum over all groups. */
void lki_groups_decode(const lk_parallel *parallel, const lki_groups *self,
                       const lki_param_span *span, float *out);

/* Returns a group's part of the count of the step. */
uint64_t lki_groups_samples(const lk_parallel *parallel, const lki_groups *self, uint32_t group);

/* Returns the place of a group's message of a parameter; of running state after the last one. */
static inline char *lki_groups_message(const lki_groups *self, uint32_t round, uint32_t group,
                                       uint32_t param)
{
    return self->messages[round] + group * self->bytes[round] + self->at[round][param];
}

/* Returns the place of a combined message in the current step. */
char *lki_groups_combined(const lki_groups *self, uint32_t round, uint32_t param);

/* ---- groups_encode.c ------------------------------------------------------------------------- */

/* Orders the tensors by size. */
LK_NODISCARD lk_status lki_groups_order(const lk_parallel *parallel, lki_groups *self);

/* Makes all tasks of a step available.  The ranks of the host must meet before the first is
 * taken. */
void lki_groups_reset(const lki_groups *self);

/* Takes the next task of this kind and round, and returns its number, which may be too large. */
uint64_t lki_groups_take(const lki_groups *self, lki_task_kind kind, uint32_t round);

/* Encodes a round: the parts that no other rank of the host has taken. */
void lki_groups_encode(const lk_parallel *parallel, const lki_groups *self, uint32_t round);

/* ---- groups_rules.c: options, and what is done by some rules only ---------------------------- */

/* Reads the rule of an exchange, and checks that it goes with the compressor. */
LK_NODISCARD lk_status lki_groups_read_rule(lki_groups *self, const lk_exchange *exchange);

/* Returns a hash of what an exchange says of the rule. */
uint64_t lki_groups_hash_rule(const lk_exchange *exchange);

/* Adds the changes of this step to the mean estimates: this rank's part of those of the host. */
void lki_groups_move_estimates(const lk_parallel *parallel, const lki_groups *self);

/* Writes a span of the sum of gradients: the mean estimate of all samples. */
void lki_groups_read_estimates(const lk_parallel *parallel, const lki_groups *self,
                               const lki_param_span *span, float *out);

/* ---- groups_stages.c: the warm-up of ratios -------------------------------------------------- */

/* Reads the stages of an exchange, and checks them. */
LK_NODISCARD lk_status lki_groups_read_stages(lki_groups *self, const lk_exchange *exchange);

/* Sets the ratio of a stage, and the places of messages with it. */
void lki_groups_set_stage(const lk_parallel *parallel, lki_groups *self, uint32_t stage);

/* Sets the stage of the current step. */
void lki_groups_find_stage(const lk_parallel *parallel, lki_groups *self);

/* Returns a hash of what an exchange says of the warm-up. */
uint64_t lki_groups_hash_stages(const lk_exchange *exchange);

/* ---- groups_onebit.c: momenta of onebit-adam ------------------------------------------------- */

/* Sets what onebit-adam has instead of a compressor and its options.  Checks the options. */
LK_NODISCARD lk_status lki_onebit_open(lk_parallel *parallel, lki_groups *self,
                                       const lk_parallel_options *options,
                                       const lk_exchange         *exchange);

/* Counts the spans and elements of all tensors, once there is a layout. */
LK_NODISCARD lk_status lki_onebit_measure(const lk_parallel *parallel, lki_groups *self);
void                   lki_onebit_close(lki_onebit *onebit);

/* Returns the end of what is at `at` in the arena: the absent elements, the messages of servers,
 * and their errors. */
size_t lki_onebit_lay_out(const lk_parallel *parallel, lki_groups *self, char *base, size_t at);

/* Finds the absent elements and, in the first step with groups, the momentum.  Does nothing in
 * later steps of this object.  Collective. */
LK_NODISCARD lk_status lki_onebit_prepare(lk_parallel *parallel, lki_groups *self);

/* Returns the bits of the absent elements of a parameter. */
const uint32_t *lki_onebit_absent(const lki_groups *self, uint32_t param);

/* Sends the messages of groups to their servers.  Collective. */
LK_NODISCARD lk_status lki_onebit_exchange(lk_parallel *parallel, const lki_groups *self);

/* Computes the new momentum of all elements on every host, from the messages of groups.
 * Collective. */
LK_NODISCARD lk_status lki_onebit_serve(lk_parallel *parallel, const lki_groups *self);

/* Returns the bytes that a host sends in a step. */
uint64_t lki_onebit_sent(const lk_parallel *parallel, const lki_groups *self, uint32_t host);

/* As lk_parallel_fetch_kept(), _kept_norms() and _load_kept(): the error of the servers. */
LK_NODISCARD lk_status lki_onebit_fetch(lk_parallel *parallel, const lki_groups *self,
                                        uint32_t param, size_t first, size_t count, float *out);
LK_NODISCARD lk_status lki_onebit_norm(lk_parallel *parallel, const lki_groups *self, double *norm);
void                   lki_onebit_load(const lk_parallel *parallel, const lki_groups *self,
                                       uint32_t param, const float *values);

/* ---- groups_freeze.c: an automatic start ----------------------------------------------------- */

LK_NODISCARD lk_status lki_freeze_open(lk_parallel *parallel, lki_groups *self,
                                       const lk_exchange *exchange, double beta2);

/* Returns the end of what is at `at` in the arena: the start, and the sums of the test.  This and
 * the functions below do nothing if the start is given. */
size_t lki_freeze_lay_out(lki_groups *self, char *base, size_t at);

/* Sets the start to that in the arena. */
void lki_freeze_attach(lk_parallel *parallel, lki_groups *self);

/* Decides whether the next step is the first with groups. */
void lki_freeze_decide(lk_parallel *parallel, lki_groups *self, lki_tally *tally);
void lki_freeze_restore(lk_parallel *parallel, lki_groups *self, const lki_tally *tally);

/* The floats that checkpoints have of it. */
size_t lki_freeze_count(const lki_groups *self);
void   lki_freeze_store(const lki_groups *self, float *out);
void   lki_freeze_load(lk_parallel *parallel, lki_groups *self, const float *from);

/* ---- groups_lamb.c: the ratios of tensors ---------------------------------------------------- */

/* Returns true if an optimizer exchanges momenta. */
static inline bool lki_is_onebit(lk_optimizer_kind kind)
{
    return kind == LK_ONEBIT_ADAM || kind == LK_ONEBIT_LAMB;
}

LK_NODISCARD lk_status lki_lamb_open(const lk_parallel *parallel, lki_groups *self);
void                   lki_lamb_close(lki_lamb *lamb);

/* Returns the end of what is at `at` in the arena.  This and the functions below do nothing without
 * ratios. */
size_t lki_lamb_lay_out(const lk_parallel *parallel, lki_groups *self, char *base, size_t at);

/* Reads the ratios from the arena. */
void lki_lamb_attach(const lk_parallel *parallel, lki_groups *self);

/* Computes the trust ratios of a step; an entry of the feature. */
void lki_groups_ratios(lk_parallel *parallel, void *context, const lk_update *update);

/* The floats that checkpoints have of them. */
size_t lki_lamb_count(const lk_parallel *parallel, const lki_groups *self);
void   lki_lamb_store(const lk_parallel *parallel, const lki_groups *self, float *out);
void   lki_lamb_load(const lk_parallel *parallel, const lki_groups *self, const float *from);

/* ---- groups_finite.c ------------------------------------------------------------------------- */

/* Fails if the gradient of a group is not finite, and names the group; an entry of the feature. */
lk_status lki_groups_reports(lk_parallel *parallel, void *context, lk_step_result *result);

/* ---- groups_clip.c --------------------------------------------------------------------------- */

/* Returns the end of what is at `at` in the arena: the squares of sums. */
size_t lki_groups_lay_out_squares(const lk_parallel *parallel, lki_groups *self, uint32_t groups,
                                  char *base, size_t at);

/* Computes the factors of all groups that this host keeps.  Collective on the host. */
LK_NODISCARD lk_status lki_groups_measure(lk_parallel *parallel, lki_groups *self);

/* Multiplies values of a group by its factor. */
void lki_groups_clip(const lki_groups *self, uint32_t group, size_t count, float *values);

/* ---- Losses: groups_survive.c ---------------------------------------------------------------- */

/* Returns the copy that a step writes. */
static inline uint32_t lki_groups_next(const lki_groups *self)
{
    return self->copies - 1 - self->now;
}

/* Gives each of several hosts a fixed range of virtual workers, if ranks may be lost and groups
 * keep vectors.  Defined in groups_homes.c. */
LK_NODISCARD lk_status lki_groups_deal(lk_parallel *parallel, lki_groups *self);

/* Sets `copies`.  After a loss, fails if the vectors of a group are lost. */
LK_NODISCARD lk_status lki_groups_open_copies(lk_parallel *parallel, lki_groups *self);

/* Places `shared`, or `vectors` of `bytes` each, at offset `at` of the model's arena, and returns
 * the offset of the end. */
size_t lki_groups_lay_out_shared(lki_groups *self, char *base, size_t at);
size_t lki_groups_lay_out_vectors(lki_groups *self, size_t bytes, char *base, size_t at);

/* Returns vector `which` in the copy that a step writes. */
float *lki_groups_kept_next(const lk_parallel *parallel, const lki_groups *self, uint32_t which,
                            uint32_t group, uint32_t param);

/* Copies what a group keeps of `count` elements of a parameter, or what all share, to the copy that
 * a step writes. */
void   lki_groups_carry_kept(const lk_parallel *parallel, const lki_groups *self, uint32_t group,
                             uint32_t param, size_t at, size_t count);
void   lki_groups_carry_shared(const lk_parallel *parallel, const lki_groups *self,
                               uint32_t param);

/* Entries of the feature. */
void   lki_groups_before_update(lk_parallel *parallel, void *context, lki_tally *tally);
void   lki_groups_restore(lk_parallel *parallel, void *context, const lki_tally *tally,
                          lk_parallel_standing *standing);

#endif
