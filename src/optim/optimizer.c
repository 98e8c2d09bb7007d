/* optimizer.c -- SGD and AdamW on any run of elements.
 *
 * Host-side factors are doubles made without libm: powers by squaring, and the square root that
 * IEEE rounds correctly.  See tensor/ops.h for the formulas.
 */
#include <math.h>

#include "base/status.h"
#include "lockstep/optim.h"
#include "tensor/ops.h"

static double or_default(double value, double otherwise)
{
    return value == 0.0 ? otherwise : value; /* zero asks for the default */
}

static lk_status check_range(const char *field, double value, double low, double below)
{
    if (!(value >= low && value < below))
        return lk_fail(LK_EINVAL, "optimizer: %s = %g is not in [%g, %g)", field, value, low,
                       below);
    return LK_OK;
}

lk_optimizer lk_optimizer_resolve(const lk_optimizer *optimizer)
{
    lk_optimizer full = *optimizer;
    if (full.kind == LK_ADAMW) {
        full.beta1 = or_default(full.beta1, 0.9);
        full.beta2 = or_default(full.beta2, 0.999);
        full.eps   = or_default(full.eps, 1e-8);
    }
    return full;
}

lk_status lk_optimizer_check(const lk_optimizer *optimizer)
{
    const lk_optimizer *o = optimizer;
    if (o->kind != LK_SGD && o->kind != LK_ADAMW)
        return lk_fail(LK_EINVAL, "optimizer: kind = %d is neither sgd (%d) nor adamw (%d)",
                       (int)o->kind, (int)LK_SGD, (int)LK_ADAMW);
    LK_TRY(check_range("weight_decay", o->weight_decay, 0.0, HUGE_VAL));
    if (o->kind == LK_SGD) {
        LK_TRY(check_range("momentum", o->momentum, 0.0, 1.0));
        if (o->nesterov && o->momentum == 0.0)
            return lk_fail(LK_EINVAL, "optimizer: nesterov needs a momentum above 0");
        return LK_OK;
    }
    LK_TRY(check_range("beta1", o->beta1, 0.0, 1.0));
    LK_TRY(check_range("beta2", o->beta2, 0.0, 1.0));
    return check_range("eps", o->eps, 0.0, HUGE_VAL);
}

uint32_t lk_optimizer_state_count(const lk_optimizer *optimizer)
{
    if (optimizer->kind == LK_ADAMW)
        return 2;
    return optimizer->momentum > 0.0 ? 1 : 0;
}

const char *lk_optimizer_state_name(const lk_optimizer *optimizer, uint32_t index)
{
    LK_ASSERT(index < lk_optimizer_state_count(optimizer));
    if (optimizer->kind == LK_SGD)
        return "momentum_buffer";
    return index == 0 ? "exp_avg" : "exp_avg_sq";
}

static void update_sgd(const lk_optimizer *o, const lk_exec *exec, const lk_update *u, size_t n,
                       const float *g, float *p, float *const *state)
{
    lki_sgd_step step = {
        .lr           = (float)u->lr,
        .momentum     = (float)o->momentum,
        .weight_decay = u->no_decay ? 0.0f : (float)o->weight_decay,
        .nesterov     = o->nesterov,
        .first        = u->step == 0,
        .scale        = u->scale,
        .clip         = u->clip,
    };
    lki_sgd(exec, &step, n, g, p, o->momentum > 0.0 ? state[0] : NULL);
}

static void update_adamw(const lk_optimizer *o, const lk_exec *exec, const lk_update *u, size_t n,
                         const float *g, float *p, float *const *state)
{
    lk_optimizer   full  = lk_optimizer_resolve(o);
    double         beta1 = full.beta1, beta2 = full.beta2;
    lki_adamw_step step = {
        .lr               = u->lr,
        .beta1            = beta1,
        .beta2            = beta2,
        .eps              = full.eps,
        .weight_decay     = u->no_decay ? 0.0 : o->weight_decay,
        .correction1      = 1.0 - lki_powi(beta1, u->step + 1),
        .correction2_sqrt = sqrt(1.0 - lki_powi(beta2, u->step + 1)),
        .scale            = u->scale,
        .clip             = u->clip,
    };
    lki_adamw(exec, &step, n, g, p, state[0], state[1]);
}

void lk_optimizer_update(const lk_optimizer *optimizer, const lk_exec *exec,
                         const lk_update *update, size_t n, const float *g, float *p,
                         float *const *state)
{
    if (optimizer->kind == LK_ADAMW)
        update_adamw(optimizer, exec, update, n, g, p, state);
    else
        update_sgd(optimizer, exec, update, n, g, p, state);
}

float lk_clip_factor(double norm, double max_norm)
{
    if (max_norm <= 0.0)
        return 1.0f;
    double factor = max_norm / (norm + 1e-6);
    return factor >= 1.0 ? 1.0f : (float)factor; /* a NaN norm gives NaN: nothing is hidden */
}
