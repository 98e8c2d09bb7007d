/* lockstep/optim.h -- optimizers, schedules and loss scaling, without libm.
 *
 * An optimizer updates any contiguous elements of a parameter, given the same elements of its
 * gradient and state.  So whole tensors and shards give the same bits.  LARS and LAMB also need
 * norms of whole tensors, which the caller computes from the tensor's parts:
 *
 *     lars    norms of the values and of the gradient             lk_optimizer_update()
 *     lamb    lk_optimizer_direct(), norms of the values and of   lk_optimizer_update()
 *             its output
 */
#ifndef LK_OPTIM_H
#define LK_OPTIM_H

#include "lockstep/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The optimizers as X(NAME, "name"), in the order of lk_optimizer_kind. */
#define LK_OPTIMIZERS(X)                                                                         \
    X(SGD, "sgd")     /* as in PyTorch */                                                        \
    X(ADAMW, "adamw") /* as in PyTorch */                                                        \
    X(LARS, "lars")   /* You et al. 2017: sgd with a step proportional to the tensor's norm */   \
    X(LAMB, "lamb")   /* You et al. 2020: adamw with the same scaling */                         \
    X(LION, "lion")   /* Chen et al. 2023: the sign of a moving mean */                          \
    X(OPTIMIZER_NONE, "none") /* does not change parameters: see below */                        \
    X(ONEBIT_ADAM, "onebit-adam") /* Tang et al. 2021: adamw, then momenta of one bit */         \
    X(ADAGRAD, "adagrad") /* Duchi et al. 2011, as in PyTorch */                                 \
    X(YOGI, "yogi")   /* Zaheer et al. 2018: adamw whose second moment adapts by addition */     \
    X(ONEBIT_LAMB, "onebit-lamb") /* Li et al. 2021: lamb, then momenta of one bit */

typedef enum {
#define LK_OPTIMIZER_ENUM(name, text) LK_##name,
    LK_OPTIMIZERS(LK_OPTIMIZER_ENUM)
#undef LK_OPTIMIZER_ENUM
} lk_optimizer_kind;

/* LK_OPTIMIZER_NONE is for programs that have their own optimizer.  Its state "mean_grad" is the
 * mean gradient of the last update: the summed gradient, scaled and clipped.  The program reads it
 * and sets the parameters.  Learning rates and rules of parameters have no effect; weight decay and
 * a moving average of the parameters are refused. */

/* LK_ONEBIT_ADAM is adamw in its first steps.  Then the second moment is frozen, and groups
 * exchange their momenta in one bit for an element (lockstep/exchange.h).  Only lk_parallel does
 * that, which needs an exchange; lk_optimizer_update() does what lk_update.frozen says.
 * LK_ONEBIT_LAMB is lamb in its first steps, and then the same with the mean of the trust ratios of
 * these steps, changed by a factor that follows a fresh second moment (docs/compression.md). */

/* The contents of a momentum buffer.  OF_GRADIENTS computes b = momentum b + d, p -= lr b.  A
 * change of the learning rate then applies at once to the whole buffer, which is the momentum
 * correction of Goyal et al. (2017).  OF_STEPS computes b = momentum b + lr d, p -= b, as in the
 * publication of LARS. */
typedef enum { LK_MOMENTUM_DEFAULT = 0, LK_MOMENTUM_OF_GRADIENTS,
               LK_MOMENTUM_OF_STEPS } lk_momentum;

/* Options of an optimizer.  Zero means the default, which the comment after each field gives. */
typedef struct {
    lk_optimizer_kind kind;
    double            momentum;     /* sgd: 0; lars: 0.9 */
    bool              nesterov;     /* sgd, lars */
    lk_momentum       momentum_of;  /* sgd: gradients; lars: steps */
    double            beta1, beta2; /* 0.9, 0.999; lion: 0.9, 0.99.  Not sgd, lars and adagrad */
    double            eps;          /* 1e-8; lamb, onebit-lamb: 1e-6; lars: 0; adagrad: 1e-10; yogi:
                                     * 1e-3 */
    double            weight_decay; /* 0; not applied to parameters with no_decay (norms and
                                     * biases) */
    double            trust;        /* lars: 0.001, the trust coefficient */
    bool              uncorrected;  /* no bias correction of the moments; not lion */
    bool              decay_all;    /* ignores lk_param.no_decay */
    double            ema;          /* decay of a moving average of the parameters; 0 = none */
    /* With lk_async.compensation: decay of the moving mean of squared gradients, which makes the
     * compensation adaptive; 0 = none.  lk_optimizer_update() leaves this state as it is. */
    double            mean_square;
} lk_optimizer;

/* The parts of a training run's memory that can be stored in files.  States of the optimizer: with
 * any strategy.  Parameters: only with "zero3" and "hybrid", which then need unit buffers even on
 * one host.  Checkpointed activations: with any strategy, by the engine. */
typedef enum {
    LK_OFFLOADED_STATES      = 1,
    LK_OFFLOADED_PARAMETERS  = 2,
    LK_OFFLOADED_ACTIVATIONS = 4
} lk_offloaded;

/* Returns the name of a kind, "adamw", as --optimizer has it. */
LK_API const char *lk_optimizer_name(lk_optimizer_kind kind);

/* Returns the options with every default filled in. */
LK_API lk_optimizer lk_optimizer_resolve(const lk_optimizer *optimizer);

/* Returns LK_EINVAL, with the field's name, for an invalid value. */
LK_API LK_NODISCARD lk_status lk_optimizer_check(const lk_optimizer *optimizer);

enum { LK_OPTIMIZER_STATES_MAX = 4 };

/* Returns the number of state tensors per parameter: sgd 0 or 1, lars, lion, adagrad and none 1,
 * adamw, onebit-adam, lamb and yogi 2, onebit-lamb 3.  A mean of squares adds one more, and then a
 * moving average another, which is the last. */
LK_API uint32_t    lk_optimizer_state_count(const lk_optimizer *optimizer);
/* Returns the name of a state tensor ("exp_avg"; "mean_square"; "ema" for the moving average). */
LK_API const char *lk_optimizer_state_name(const lk_optimizer *optimizer, uint32_t index);

/* The arguments of one update of n elements. g: the summed gradient, which is multiplied by `scale`
 * (1/count) and then by `clip`.  Each state[i] has n elements.  `step` counts updates from 0. */
typedef struct {
    uint64_t step;
    double   lr;
    float    scale, clip; /* clip 1: no clipping; multiplying by 1 changes no bit */
    bool     no_decay;
    double   trust;     /* lars, lamb: lk_optimizer_trust(); 0 = 1 */
    bool     own_decay; /* `weight_decay` replaces the optimizer's value, even with no_decay */
    double   weight_decay;
    /* onebit-adam, onebit-lamb: updates before the second moment was frozen.  g is then the new
     * first moment.  0: not frozen */
    uint64_t frozen;
} lk_update;

/* Returns the trust ratio of a tensor, given the norms of its values (`values`) and of its
 * direction (`moves`).  With lars the direction is the gradient times scale and clip.  With lamb it
 * is the output of lk_optimizer_direct().
 *
 *     lars    trust |values| / (|moves| + weight_decay |values| + eps)
 *     lamb    |values| / |moves|
 *
 * Returns 1 for any other optimizer, for a parameter with no_decay, and if a norm is 0. */
LK_API double lk_optimizer_trust(const lk_optimizer *optimizer, const lk_update *update,
                                 double values, double moves);

/* Updates the state and replaces the gradient by the direction, which must be passed to
 * lk_optimizer_update() instead of the gradient.  For lamb and onebit-lamb only. */
LK_API void lk_optimizer_direct(const lk_optimizer *optimizer, const lk_exec *exec,
                                const lk_update *update, size_t n, float *g, const float *p,
                                float *const *state);

/* Updates p and the state; with a moving average also calls lk_optimizer_average(). */
LK_API void lk_optimizer_update(const lk_optimizer *optimizer, const lk_exec *exec,
                                const lk_update *update, size_t n, const float *g, float *p,
                                float *const *state);

/* Updates the moving average e of values p: e = p in the first update, then e += (1 - ema) (p - e).
 */
LK_API void lk_optimizer_average(const lk_optimizer *optimizer, const lk_update *update, size_t n,
                                 const float *p, float *mean);

/* ---- Parameter groups ------------------------------------------------------------------- */

enum { LK_GROUPS_MAX = 16, LK_PATTERN_MAX = 96 };

/* Exceptions for the parameters whose names match `pattern`, in which `*` matches any text and `?`
 * any character. */
typedef struct {
    char   pattern[LK_PATTERN_MAX];
    bool   has_lr, has_decay;
    double lr;           /* if has_lr: factor of the learning rate */
    /* if has_decay: replaces the optimizer's weight decay, even for norms and biases */
    double weight_decay;
} lk_param_group;

/* The rule of one parameter. */
typedef struct {
    double   lr;           /* factor of the learning rate: 1 = no change, 0 = no learning */
    double   weight_decay; /* if own_decay: as lk_param_group.weight_decay */
    uint64_t own_decay;    /* 0: the optimizer's weight decay applies */
} lk_param_rule;

/* Computes the rule of each parameter.  The last matching group that sets a field takes precedence.
 * LK_EINVAL if a group is invalid, or matches no parameter; the message then lists some names. */
LK_API LK_NODISCARD lk_status lk_param_rules(lk_param_rule *out, const lk_param *params,
                                             uint32_t param_count, const lk_param_group *groups,
                                             uint32_t group_count);

/* The schedules as X(NAME, "name"), in the order of lk_schedule_kind. */
#define LK_SCHEDULES(X)                                                                          \
    X(CONSTANT, "constant")                                                                      \
    X(LINEAR, "linear")       /* straight to min_lr */                                           \
    X(COSINE, "cosine")       /* half a cosine to min_lr */                                      \
    X(STEP, "step")           /* times gamma at each milestone */                                \
    X(POLY, "poly")           /* min_lr + (lr - min_lr) (remaining fraction)^power */            \
    X(WSD, "wsd")             /* constant, then linear to min_lr in the last `decay` steps */    \
    X(ONE_CYCLE, "one-cycle") /* PyTorch's OneCycleLR: cosines up to lr, and down to min_lr */

typedef enum {
#define LK_SCHEDULE_ENUM(name, text) LK_##name,
    LK_SCHEDULES(LK_SCHEDULE_ENUM)
#undef LK_SCHEDULE_ENUM
} lk_schedule_kind;

/* The learning rate as a function of the step.  With warmup w, the rate of step s < w is from + (lr
 * - from) (s + 1) / w, with from = `warmup_from`.  After warmup, `kind` defines the rate up to step
 * `steps`, at which decreasing kinds reach min_lr.
 *
 * one-cycle reaches lr at step w - 1 and min_lr at `steps` - 1.  Its defaults: w is 3/10 of the
 * steps, warmup_from lr / 25, and min_lr warmup_from / 10000. */
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

/* Returns the name of a kind, "one-cycle", as --schedule has it. */
LK_API const char *lk_schedule_name(lk_schedule_kind kind);

/* Returns the schedule with every default filled in; `steps` must be set. */
LK_API lk_schedule lk_schedule_resolve(const lk_schedule *schedule);

/* Returns LK_EINVAL, with the field's name, for an invalid value. */
LK_API LK_NODISCARD lk_status lk_schedule_check(const lk_schedule *schedule);
/* Returns the learning rate of a step. */
LK_API double                 lk_schedule_at(const lk_schedule *schedule, uint64_t step);

/* The rule that adapts a learning rate for batches of `base` samples to batches of `batch` samples.
 * LINEAR multiplies by the ratio (Goyal et al. 2017, for sgd and similar optimizers), SQRT by its
 * square root (for adaptive optimizers). */
typedef enum { LK_SCALE_LR_NONE = 0, LK_SCALE_LR_LINEAR, LK_SCALE_LR_SQRT } lk_lr_rule;
/* Returns the adapted learning rate. */
LK_API double lk_scale_lr(lk_lr_rule rule, double lr, uint64_t batch, uint64_t base);

/* Returns the factor that reduces a gradient of this norm to at most max_norm, as PyTorch does:
 * min(1, max_norm / (norm + 1e-6)), computed in FP64 and rounded to float once.  No clipping if
 * max_norm <= 0. */
LK_API float lk_clip_factor(double norm, double max_norm);

/* Multiplies the summed gradient by `scale` and limits each element to [-limit, limit], as
 * PyTorch's clip_grad_value_ does.  The update that follows must then use a scale of 1. */
LK_API void lk_clip_values(size_t n, float *g, float scale, float limit);

/* ---- Loss scaling ------------------------------------------------------------------------ */

/* The rule of loss scaling.  In fp16 small gradients underflow to 0.  Multiplying the loss by a
 * scale enlarges all gradients by this factor, which is removed before the update.  If a gradient
 * is not finite, a dynamic scale is halved and the update is skipped.  After a number of good steps
 * the scale is doubled.
 *
 *     pytorch      as torch.amp.GradScaler: every overflow halves the scale, and `window` (2000)
 *                  good steps in a row double it
 *     deepspeed    as DynamicLossScaler: the first `hysteresis` (2) - 1 overflows have no effect,
 *                  and each later one halves the scale, not below 1.  Good step k `window` + 1
 *                  since the last overflow (k = 1, 2, ...; `window` 1000) doubles the scale and
 *                  restores the hysteresis
 *     fixed        always `initial`; a value that is not finite ends the run */
typedef enum {
    LK_SCALE_AUTO = 0, /* none, except in training in fp16: pytorch */
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

/* The state of a loss scale.  Checkpoints store it. */
typedef struct {
    double   scale;
    /* good steps since the last overflow (pytorch: or since the last doubling) */
    uint64_t good;
    uint64_t skipped;    /* steps without an update */
    uint32_t hysteresis; /* overflows until the scale is halved, including the last one */
} lk_loss_scaler;

/* Returns the settings with every default filled in. */
LK_API lk_loss_scaling                lk_loss_scaling_resolve(const lk_loss_scaling *scaling);
/* Returns LK_EINVAL for an unknown rule or a scale that is not a power of two in range. */
LK_API LK_NODISCARD lk_status         lk_loss_scaling_check(const lk_loss_scaling *scaling);
/* Returns true if the rule skips overflowing steps: pytorch and deepspeed. */
LK_API bool lk_loss_scaling_skips(const lk_loss_scaling *scaling);
/* Returns the state at the beginning of a run. */
LK_API lk_loss_scaler lk_loss_scaler_begin(const lk_loss_scaling *scaling);

/* Updates the scale after a step.  LK_ENONFINITE if the step overflowed and the scale cannot be
 * reduced further (pytorch: 2^-24). */
LK_API LK_NODISCARD lk_status lk_loss_scaler_update(const lk_loss_scaling *scaling,
                                                    lk_loss_scaler *scaler, bool overflow);

#ifdef __cplusplus
}
#endif
#endif /* LK_OPTIM_H */
