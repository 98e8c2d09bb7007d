/* lockstep/optim.h -- optimizers and schedules, elementwise and without libm.
 *
 * An optimizer updates any run of elements of a parameter given the same run of its gradient
 * and state, so it works on whole tensors and on shards alike, with the same bits.
 */
#ifndef LK_OPTIM_H
#define LK_OPTIM_H

#include "lockstep/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { LK_SGD = 0, LK_ADAMW } lk_optimizer_kind;

/* Zero means the default written behind each field. */
typedef struct {
    lk_optimizer_kind kind;
    double            momentum;     /* sgd: 0 */
    bool              nesterov;     /* sgd */
    double            beta1, beta2; /* adamw: 0.9, 0.999 */
    double            eps;          /* adamw: 1e-8 */
    double            weight_decay; /* 0 */
} lk_optimizer;

/* The same with every default written out. */
LK_API lk_optimizer lk_optimizer_resolve(const lk_optimizer *optimizer);

/* LK_EINVAL, with the field's name, for values that make no sense. */
LK_API LK_NODISCARD lk_status lk_optimizer_check(const lk_optimizer *optimizer);

/* State tensors per parameter (sgd 0 or 1, adamw 2) and their names ("exp_avg"). */
LK_API uint32_t    lk_optimizer_state_count(const lk_optimizer *optimizer);
LK_API const char *lk_optimizer_state_name(const lk_optimizer *optimizer, uint32_t index);

/* One update of n elements.  g: the summed gradient; it is multiplied by `scale` (1/count) and
 * then by `clip`.  state[i]: n elements each.  `step` counts updates from 0. */
typedef struct {
    uint64_t step;
    double   lr;
    float    scale, clip; /* clip 1 = none: multiplying by 1 changes no bit */
    bool     no_decay;
} lk_update;
LK_API void lk_optimizer_update(const lk_optimizer *optimizer, const lk_exec *exec,
                                const lk_update *update, size_t n, const float *g, float *p,
                                float *const *state);

typedef enum { LK_CONSTANT = 0, LK_LINEAR, LK_COSINE, LK_STEP } lk_schedule_kind;

/* The learning rate as a function of the step.  With warmup w: step s < w gives
 * lr * (s + 1) / w.  After it, over the remaining steps up to `steps`: constant; linear or
 * cosine from lr to min_lr, reached at step `steps`; step: times `gamma` at each milestone. */
typedef struct {
    lk_schedule_kind kind;
    double           lr, min_lr;
    uint64_t         warmup, steps;
    double           gamma; /* step: 0.1 */
    uint32_t         milestone_count;
    uint64_t         milestones[8];
} lk_schedule;

LK_API LK_NODISCARD lk_status lk_schedule_check(const lk_schedule *schedule);
LK_API double                 lk_schedule_at(const lk_schedule *schedule, uint64_t step);

/* The factor that brings a gradient of this norm to at most max_norm (<= 0: no clipping), as
 * PyTorch does: min(1, max_norm / (norm + 1e-6)), in FP64, rounded to float once. */
LK_API float lk_clip_factor(double norm, double max_norm);

#ifdef __cplusplus
}
#endif
#endif /* LK_OPTIM_H */
