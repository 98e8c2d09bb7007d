/* lockstep/optim.h -- optimizers and schedules, without libm.
 *
 * An optimizer updates any run of elements of a parameter given the same run of its gradient
 * and state, so it works on whole tensors and on shards alike, with the same bits.  LARS and LAMB
 * also want norms of whole tensors, which whoever holds the tensor's parts brings together:
 *
 *     lars    norms of the values and of the gradient             lk_optimizer_update()
 *     lamb    lk_optimizer_direct(), norms of the values and of   lk_optimizer_update()
 *             what it leaves
 */
#ifndef LK_OPTIM_H
#define LK_OPTIM_H

#include "lockstep/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, "name"): in the order of lk_optimizer_kind. */
#define LK_OPTIMIZERS(X)                                                                         \
    X(SGD, "sgd")     /* as PyTorch's */                                                         \
    X(ADAMW, "adamw") /* as PyTorch's */                                                         \
    X(LARS, "lars")   /* You et al. 2017: sgd, each tensor's step in proportion to its norm */   \
    X(LAMB, "lamb")   /* You et al. 2020: adamw, likewise */                                     \
    X(LION, "lion")   /* Chen et al. 2023: the sign of a moving mean */

typedef enum {
#define LK_OPTIMIZER_ENUM(name, text) LK_##name,
    LK_OPTIMIZERS(LK_OPTIMIZER_ENUM)
#undef LK_OPTIMIZER_ENUM
} lk_optimizer_kind;

/* What a momentum buffer holds.  Of gradients: b = momentum b + d, p -= lr b, so that a change of
 * the learning rate reaches all that is in the buffer: the momentum correction of Goyal et al.
 * (2017).  Of steps: b = momentum b + lr d, p -= b, as LARS was published. */
typedef enum { LK_MOMENTUM_DEFAULT = 0, LK_MOMENTUM_OF_GRADIENTS,
               LK_MOMENTUM_OF_STEPS } lk_momentum;

/* Zero means the default written behind each field. */
typedef struct {
    lk_optimizer_kind kind;
    double            momentum;     /* sgd: 0; lars: 0.9 */
    bool              nesterov;     /* sgd, lars */
    lk_momentum       momentum_of;  /* sgd: gradients; lars: steps */
    double            beta1, beta2; /* adamw, lamb: 0.9, 0.999; lion: 0.9, 0.99 */
    double            eps;          /* adamw: 1e-8; lamb: 1e-6; lars: 0 */
    double            weight_decay; /* 0; not of parameters with no_decay: norms and biases */
    double            trust;        /* lars: 0.001, the trust coefficient */
    bool              uncorrected;  /* adamw, lamb: moments' bias stays */
    bool              decay_all;    /* no_decay is not looked at */
    double            ema;          /* decay of a moving mean of the values; 0 = there is none */
} lk_optimizer;

/* What of a training's memory may be in files instead: the optimizer's state, with any strategy;
 * parameters, with "zero3" and "hybrid", on one host, too, which then has room for units; what
 * activation checkpointing keeps, of which strategies know nothing. */
typedef enum {
    LK_OFFLOADED_STATES      = 1,
    LK_OFFLOADED_PARAMETERS  = 2,
    LK_OFFLOADED_ACTIVATIONS = 4
} lk_offloaded;

LK_API const char *lk_optimizer_name(lk_optimizer_kind kind);

/* The same with every default written out. */
LK_API lk_optimizer lk_optimizer_resolve(const lk_optimizer *optimizer);

/* LK_EINVAL, with the field's name, for values that make no sense. */
LK_API LK_NODISCARD lk_status lk_optimizer_check(const lk_optimizer *optimizer);

enum { LK_OPTIMIZER_STATES_MAX = 3 };

/* State tensors per parameter (sgd 0 or 1, lars and lion 1, adamw and lamb 2; one more, the last,
 * for a moving mean) and their names ("exp_avg"; "ema"). */
LK_API uint32_t    lk_optimizer_state_count(const lk_optimizer *optimizer);
LK_API const char *lk_optimizer_state_name(const lk_optimizer *optimizer, uint32_t index);

/* One update of n elements.  g: the summed gradient; it is multiplied by `scale` (1/count) and
 * then by `clip`.  state[i]: n elements each.  `step` counts updates from 0. */
typedef struct {
    uint64_t step;
    double   lr;
    float    scale, clip; /* clip 1 = none: multiplying by 1 changes no bit */
    bool     no_decay;
    double   trust;     /* lars, lamb: lk_optimizer_trust(); 0 = 1 */
    bool     own_decay; /* `weight_decay` in place of the optimizer's, also with no_decay */
    double   weight_decay;
} lk_update;

/* The trust ratio of a tensor by the norms of its values and of what it moves along: with lars the
 * gradient, times scale and clip; with lamb what lk_optimizer_direct() leaves.
 *
 *     lars    trust |values| / (|moves| + weight_decay |values| + eps)
 *     lamb    |values| / |moves|
 *
 * 1 with another optimizer, for a parameter with no_decay, and where a norm is 0. */
LK_API double lk_optimizer_trust(const lk_optimizer *optimizer, const lk_update *update,
                                 double values, double moves);

/* lamb alone: moves its state on and leaves in place of the gradient what update() takes for it. */
LK_API void lk_optimizer_direct(const lk_optimizer *optimizer, const lk_exec *exec,
                                const lk_update *update, size_t n, float *g, const float *p,
                                float *const *state);

/* With a moving mean also what lk_optimizer_average() does. */
LK_API void lk_optimizer_update(const lk_optimizer *optimizer, const lk_exec *exec,
                                const lk_update *update, size_t n, const float *g, float *p,
                                float *const *state);

/* Moves the mean e of any values p on: after the first update it is p, then e += (1 - ema) (p - e).
 */
LK_API void lk_optimizer_average(const lk_optimizer *optimizer, const lk_update *update, size_t n,
                                 const float *p, float *mean);

/* ---- Parameters that are treated otherwise ----------------------------------------------- */

enum { LK_GROUPS_MAX = 16 };

/* What is other for the parameters with such names: `*` in a pattern is anything, `?` any one. */
typedef struct {
    char   pattern[LK_NAME_MAX];
    bool   has_lr, has_decay;
    double lr;           /* if has_lr: times the learning rate */
    double weight_decay; /* if has_decay: in place of the optimizer's, of norms and biases, too */
} lk_param_group;

/* What holds for one parameter. */
typedef struct {
    double   lr, weight_decay;
    uint64_t own_decay; /* not 0: weight_decay holds */
} lk_param_rule;

/* The rule of each parameter: of several groups that say something the last that fits it.
 * LK_EINVAL: a group makes no sense, or fits no parameter (the message names some of them). */
LK_API LK_NODISCARD lk_status lk_param_rules(lk_param_rule *out, const lk_param *params,
                                             uint32_t param_count, const lk_param_group *groups,
                                             uint32_t group_count);

/* X(NAME, "name"): in the order of lk_schedule_kind. */
#define LK_SCHEDULES(X)                                                                          \
    X(CONSTANT, "constant")                                                                      \
    X(LINEAR, "linear")       /* straight to min_lr */                                           \
    X(COSINE, "cosine")       /* half a cosine to min_lr */                                      \
    X(STEP, "step")           /* times gamma at each milestone */                                \
    X(POLY, "poly")           /* min_lr + (lr - min_lr) (part that is left)^power */             \
    X(WSD, "wsd")             /* constant, and straight to min_lr in the last `decay` steps */   \
    X(ONE_CYCLE, "one-cycle") /* PyTorch's OneCycleLR: cosines up to lr, and down to min_lr */

typedef enum {
#define LK_SCHEDULE_ENUM(name, text) LK_##name,
    LK_SCHEDULES(LK_SCHEDULE_ENUM)
#undef LK_SCHEDULE_ENUM
} lk_schedule_kind;

/* The learning rate as a function of the step.  With warmup w: step s < w gives
 * from + (lr - from) (s + 1) / w, where from is `warmup_from`.  After it, over the remaining steps
 * up to `steps`, as the kind says; what falls reaches min_lr at step `steps`.
 *
 * one-cycle reaches lr at step w - 1 and min_lr at `steps` - 1; w is by default three tenths of the
 * steps, warmup_from lr / 25, and min_lr that / 10000. */
typedef struct {
    lk_schedule_kind kind;
    double           lr, min_lr;
    uint64_t         warmup, steps;
    double           gamma; /* step: 0.1 */
    uint32_t         milestone_count;
    uint64_t         milestones[8];
    double           warmup_from; /* 0 */
    double           power;       /* poly: 2 */
    uint64_t         decay;       /* wsd: a tenth of the steps */
} lk_schedule;

LK_API const char *lk_schedule_name(lk_schedule_kind kind);

/* The same with every default written out; `steps` is known. */
LK_API lk_schedule lk_schedule_resolve(const lk_schedule *schedule);

LK_API LK_NODISCARD lk_status lk_schedule_check(const lk_schedule *schedule);
LK_API double                 lk_schedule_at(const lk_schedule *schedule, uint64_t step);

/* How a learning rate that fits batches of `base` samples is made to fit those of `batch`: times
 * their ratio (Goyal et al. 2017, for sgd and its like) or its square root (for adaptive ones). */
typedef enum { LK_SCALE_LR_NONE = 0, LK_SCALE_LR_LINEAR, LK_SCALE_LR_SQRT } lk_lr_rule;
LK_API double lk_scale_lr(lk_lr_rule rule, double lr, uint64_t batch, uint64_t base);

/* The factor that brings a gradient of this norm to at most max_norm (<= 0: no clipping), as
 * PyTorch does: min(1, max_norm / (norm + 1e-6)), in FP64, rounded to float once. */
LK_API float lk_clip_factor(double norm, double max_norm);

/* Leaves the summed gradient times `scale`, each element at most `limit` from 0, as PyTorch's
 * clip_grad_value_ does it: an update of it then has a scale of 1. */
LK_API void lk_clip_values(size_t n, float *g, float scale, float limit);

/* ---- Loss scaling ------------------------------------------------------------------------ */

/* In fp16 small gradients become 0.  A loss times a scale has gradients as much larger, which are
 * divided by it again before the update.  A dynamic scale is halved by gradients that are not
 * finite, whose update is skipped, and doubled when there were none for a while.
 *
 *     pytorch      as torch.amp.GradScaler: every overflow halves the scale, `window` (2000) good
 *                  steps in a row double it
 *     deepspeed    as DynamicLossScaler: the last of `hysteresis` (2) overflows and every one after
 *                  it halves the scale, not below 1; each `window` (1000) good steps since the last
 *                  overflow, after one more, double it and restore the hysteresis
 *     fixed        `initial` always; what is not finite ends the run */
typedef enum {
    LK_SCALE_AUTO = 0, /* none; of a training run in fp16: pytorch */
    LK_SCALE_NONE,
    LK_SCALE_PYTORCH,
    LK_SCALE_DEEPSPEED,
    LK_SCALE_FIXED
} lk_scale_rule;

typedef struct {
    lk_scale_rule rule;
    double        initial; /* a power of two; 0 = 65536 */
    uint32_t      window, hysteresis;
} lk_loss_scaling;

/* How far a run has come: what a checkpoint keeps. */
typedef struct {
    double   scale;
    uint64_t good;       /* steps since the last overflow, or, with pytorch, doubling */
    uint64_t skipped;    /* steps without an update */
    uint32_t hysteresis; /* overflows that are left, and one */
} lk_loss_scaler;

LK_API lk_loss_scaling                lk_loss_scaling_resolve(const lk_loss_scaling *scaling);
LK_API LK_NODISCARD lk_status         lk_loss_scaling_check(const lk_loss_scaling *scaling);
LK_API bool lk_loss_scaling_skips(const lk_loss_scaling *scaling); /* pytorch, deepspeed */
LK_API lk_loss_scaler lk_loss_scaler_begin(const lk_loss_scaling *scaling);

/* After every step.  LK_ENONFINITE: an overflow, and the scale cannot be less (with pytorch
 * 2^-24). */
LK_API LK_NODISCARD lk_status lk_loss_scaler_update(const lk_loss_scaling *scaling,
                                                    lk_loss_scaler *scaler, bool overflow);

#ifdef __cplusplus
}
#endif
#endif /* LK_OPTIM_H */
