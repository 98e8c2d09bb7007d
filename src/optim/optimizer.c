/* optimizer.c -- update rules on any run of elements.
 *
 * Factors are computed in double precision without libm: powers by squaring, and square roots,
 * which IEEE 754 rounds correctly.  See tensor/ops.h for the formulas.
 */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "optim/lamb.h"
#include "tensor/ops.h"

/* ---- Options ----------------------------------------------------------------------------- */

static double or_default(double value, double otherwise)
{
    return value == 0.0 ? otherwise : value; /* zero selects the default */
}

static lk_status check_range(const char *field, double value, double low, double below)
{
    if (!(value >= low && value < below))
        return lk_fail(LK_EINVAL, "`optimizer.%s` %g is not in [%g, %g)", field, value, low, below);
    return LK_OK;
}

const char *lk_optimizer_name(lk_optimizer_kind kind)
{
    static const char *const names[] = {
#define NAME(name, text) text,
        LK_OPTIMIZERS(NAME)
#undef NAME
    };
    LK_ASSERT((size_t)kind < sizeof names / sizeof names[0]);
    return names[kind];
}

/* Returns true for rules with a momentum, like sgd.  All other rules but adagrad have moments. */
static bool has_momentum(const lk_optimizer *o)
{
    return o->kind == LK_SGD || o->kind == LK_LARS;
}

/* Returns true for rules whose steps are proportional to the norms of tensors, like lamb's. */
static bool is_lamb(const lk_optimizer *o)
{
    return o->kind == LK_LAMB || o->kind == LK_ONEBIT_LAMB;
}

static double default_eps(lk_optimizer_kind kind)
{
    return kind == LK_LION                              ? 0
           : kind == LK_LAMB || kind == LK_ONEBIT_LAMB ? 1e-6
           : kind == LK_ADAGRAD                        ? 1e-10
           : kind == LK_YOGI                           ? 1e-3
                                                       : 1e-8;
}

lk_optimizer lk_optimizer_resolve(const lk_optimizer *optimizer)
{
    lk_optimizer full = *optimizer;
    if (full.kind == LK_OPTIMIZER_NONE)
        return full;
    if (has_momentum(optimizer)) {
        if (full.momentum_of == LK_MOMENTUM_DEFAULT)
            full.momentum_of = full.kind == LK_LARS ? LK_MOMENTUM_OF_STEPS
                                                    : LK_MOMENTUM_OF_GRADIENTS;
        if (full.kind == LK_LARS) {
            full.momentum = or_default(full.momentum, 0.9);
            full.trust    = or_default(full.trust, 0.001);
        }
        return full;
    }
    full.eps = or_default(full.eps, default_eps(full.kind));
    if (full.kind == LK_ADAGRAD)
        return full;
    full.beta1 = or_default(full.beta1, 0.9);
    full.beta2 = or_default(full.beta2, full.kind == LK_LION ? 0.99 : 0.999);
    return full;
}

static lk_status check_momentum(const lk_optimizer *o)
{
    LK_TRY(check_range("momentum", o->momentum, 0.0, 1.0));
    if (o->nesterov && o->momentum == 0.0 && o->kind == LK_SGD)
        return lk_fail(LK_EINVAL, "`optimizer.nesterov` needs `optimizer.momentum` above 0");
    if (o->momentum_of != LK_MOMENTUM_DEFAULT && o->momentum_of != LK_MOMENTUM_OF_GRADIENTS &&
        o->momentum_of != LK_MOMENTUM_OF_STEPS)
        return lk_fail(LK_EINVAL, "`optimizer.momentum_of` %d is neither gradients nor steps",
                       (int)o->momentum_of);
    if (o->kind == LK_SGD)
        return LK_OK;
    LK_TRY(check_range("trust", o->trust, 0.0, HUGE_VAL));
    return check_range("eps", o->eps, 0.0, HUGE_VAL);
}

/* Refuses options that would change or average the parameters. */
static lk_status check_none(const lk_optimizer *o)
{
    if (o->weight_decay == 0.0 && o->ema == 0.0)
        return LK_OK;
    return lk_fail(LK_EINVAL,
                   "`optimizer.%s` cannot be used with `optimizer.kind` none, which changes no "
                   "parameter",
                   o->ema == 0.0 ? "weight_decay" : "ema");
}

lk_status lk_optimizer_check(const lk_optimizer *optimizer)
{
    const lk_optimizer *o = optimizer;
    if ((int)o->kind < LK_SGD || (int)o->kind > LK_ONEBIT_LAMB)
        return lk_fail(LK_EINVAL,
                       "`optimizer.kind` %d is not one of sgd (%d), adamw, lars, lamb, lion, "
                       "none, onebit-adam, adagrad, yogi and onebit-lamb (%d)",
                       (int)o->kind, (int)LK_SGD, (int)LK_ONEBIT_LAMB);
    if (o->kind == LK_OPTIMIZER_NONE)
        return check_none(o);
    LK_TRY(check_range("weight_decay", o->weight_decay, 0.0, HUGE_VAL));
    LK_TRY(check_range("ema", o->ema, 0.0, 1.0));
    LK_TRY(check_range("mean_square", o->mean_square, 0.0, 1.0));
    if (has_momentum(o))
        return check_momentum(o);
    LK_TRY(check_range("beta1", o->beta1, 0.0, 1.0));
    LK_TRY(check_range("beta2", o->beta2, 0.0, 1.0));
    return check_range("eps", o->eps, 0.0, HUGE_VAL);
}

/* Returns the number of states of the rule, without the moving means. */
static uint32_t rule_states(const lk_optimizer *o)
{
    if (o->kind == LK_SGD)
        return o->momentum > 0.0 ? 1 : 0;
    if (o->kind == LK_ONEBIT_LAMB)
        return 3;
    return o->kind == LK_LARS || o->kind == LK_LION || o->kind == LK_ADAGRAD ||
                   o->kind == LK_OPTIMIZER_NONE
               ? 1
               : 2;
}

uint32_t lk_optimizer_state_count(const lk_optimizer *optimizer)
{
    return rule_states(optimizer) + (optimizer->mean_square > 0.0) + (optimizer->ema > 0.0);
}

const char *lk_optimizer_state_name(const lk_optimizer *optimizer, uint32_t index)
{
    LK_ASSERT(index < lk_optimizer_state_count(optimizer));
    if (index >= rule_states(optimizer))
        return optimizer->mean_square > 0.0 && index == rule_states(optimizer) ? "mean_square"
                                                                               : "ema";
    if (has_momentum(optimizer))
        return "momentum_buffer";
    if (optimizer->kind == LK_OPTIMIZER_NONE)
        return "mean_grad";
    if (optimizer->kind == LK_ADAGRAD)
        return "sum";
    return index == 0 ? "exp_avg" : index == 1 ? "exp_avg_sq" : "exp_avg_sq_fresh";
}

/* ---- Updates ----------------------------------------------------------------------------- */

static bool is_excluded(const lk_optimizer *o, const lk_update *u)
{
    return u->no_decay && !o->decay_all;
}

static double decay_of(const lk_optimizer *o, const lk_update *u)
{
    if (u->own_decay)
        return u->weight_decay;
    return is_excluded(o, u) ? 0.0 : o->weight_decay;
}

double lk_optimizer_trust(const lk_optimizer *optimizer, const lk_update *update, double values,
                          double moves)
{
    const lk_optimizer full = lk_optimizer_resolve(optimizer);
    if (is_excluded(&full, update) || values == 0.0 || moves == 0.0)
        return 1.0;
    if (full.kind == LK_LARS)
        return full.trust * values / (moves + decay_of(&full, update) * values + full.eps);
    return is_lamb(&full) ? values / moves : 1.0;
}

static void update_sgd(const lk_optimizer *o, const lk_exec *exec, const lk_update *u, size_t n,
                       const float *g, float *p, float *const *state)
{
    bool         steps = o->momentum_of == LK_MOMENTUM_OF_STEPS;
    double       trust = or_default(u->trust, 1.0);
    lki_sgd_step step  = {
        .inner        = (float)(steps ? u->lr * trust : trust),
        .outer        = steps ? 1.0f : (float)u->lr,
        .momentum     = (float)o->momentum,
        .weight_decay = (float)decay_of(o, u),
        .nesterov     = o->nesterov,
        .first        = u->step == 0,
        .scale        = u->scale,
        .clip         = u->clip,
    };
    lki_sgd(exec, &step, n, g, p, o->momentum > 0.0 ? state[0] : NULL);
}

static void update_adagrad(const lk_optimizer *o, const lk_exec *exec, const lk_update *u, size_t n,
                           const float *g, float *p, float *sum)
{
    lki_adagrad_step step = {
        .lr           = (float)u->lr,
        .eps          = (float)o->eps,
        .weight_decay = (float)decay_of(o, u),
        .scale        = u->scale,
        .clip         = u->clip,
    };
    lki_adagrad(exec, &step, n, g, p, sum);
}

static lki_adamw_step moments_of(const lk_optimizer *o, const lk_update *u)
{
    bool     corrects = o->kind != LK_LION && !o->uncorrected;
    uint64_t seconds  = u->frozen > 0 ? u->frozen : u->step + 1; /* updates of the second moment */
    return (lki_adamw_step){
        .lr               = u->lr,
        .beta1            = o->beta1,
        .beta2            = u->frozen > 0 ? 1.0 : o->beta2, /* keeps the second moment */
        .eps              = o->eps,
        .weight_decay     = decay_of(o, u),
        .correction1      = corrects ? 1.0 - lki_powi(o->beta1, u->step + 1) : 1.0,
        .correction2_sqrt = corrects ? sqrt(1.0 - lki_powi(o->beta2, seconds)) : 1.0,
        .scale            = u->scale,
        .clip             = u->clip,
    };
}

/* Stores the mean gradient, scaled and clipped as the other rules receive it. */
static void keep_gradient(const lk_update *u, size_t n, const float *g, float *mean)
{
    for (size_t i = 0; i < n; i++)
        mean[i] = g[i] * u->scale * u->clip;
}

void lk_optimizer_direct(const lk_optimizer *optimizer, const lk_exec *exec,
                         const lk_update *update, size_t n, float *g, const float *p,
                         float *const *state)
{
    const lk_optimizer full = lk_optimizer_resolve(optimizer);
    LK_ASSERT(is_lamb(&full));
    lki_adamw_step step = moments_of(&full, update);
    if (update->frozen > 0) { /* as in update_moments() */
        lki_lamb_refresh(&full, update, n, g, state);
        keep_gradient(update, n, g, state[0]);
    }
    lki_lamb_direction(exec, &step, n, g, p, state[0], state[1]);
    if (full.kind == LK_ONEBIT_LAMB && update->frozen == 0)
        memcpy(state[2], state[1], n * sizeof *state[1]);
}

static void update_moments(const lk_optimizer *o, const lk_exec *exec, const lk_update *u, size_t n,
                           const float *g, float *p, float *const *state)
{
    lki_adamw_step step = moments_of(o, u);
    if (is_lamb(o)) {
        lki_descend(exec, (float)(u->lr * or_default(u->trust, 1.0)), n, g, p);
        return;
    }
    if (u->frozen > 0) /* the kernel changes a first moment only if it differs from its gradient */
        keep_gradient(u, n, g, state[0]);
    if (o->kind == LK_LION)
        lki_lion(exec, &step, n, g, p, state[0]);
    else if (o->kind == LK_YOGI)
        lki_yogi(exec, &step, n, g, p, state[0], state[1]);
    else
        lki_adamw(exec, &step, n, g, p, state[0], state[1]);
}

void lk_optimizer_average(const lk_optimizer *optimizer, const lk_update *update, size_t n,
                          const float *p, float *mean)
{
    const float weight = (float)(1.0 - optimizer->ema);
    if (update->step == 0) {
        memcpy(mean, p, n * sizeof *mean);
        return;
    }
    for (size_t i = 0; i < n; i++)
        mean[i] += weight * (p[i] - mean[i]);
}

void lk_optimizer_update(const lk_optimizer *optimizer, const lk_exec *exec,
                         const lk_update *update, size_t n, const float *g, float *p,
                         float *const *state)
{
    const lk_optimizer full = lk_optimizer_resolve(optimizer);
    if (full.kind == LK_OPTIMIZER_NONE)
        keep_gradient(update, n, g, state[0]);
    else if (has_momentum(&full))
        update_sgd(&full, exec, update, n, g, p, state);
    else if (full.kind == LK_ADAGRAD)
        update_adagrad(&full, exec, update, n, g, p, state[0]);
    else
        update_moments(&full, exec, update, n, g, p, state);
    if (full.ema > 0.0)
        lk_optimizer_average(&full, update, n, p, state[lk_optimizer_state_count(&full) - 1]);
}

float lk_clip_factor(double norm, double max_norm)
{
    if (max_norm <= 0.0)
        return 1.0f;
    double factor = max_norm / (norm + 1e-6);
    return factor >= 1.0 ? 1.0f : (float)factor; /* a NaN norm gives a NaN factor, so that the NaN
                                                  * is not hidden */
}

void lk_clip_values(size_t n, float *g, float scale, float limit)
{
    for (size_t i = 0; i < n; i++) {
        float mean = g[i] * scale;
        g[i]       = mean > limit ? limit : mean < -limit ? -limit : mean;
    }
}
