/* scaler.c -- loss scaling: changes of the scale after overflows and good steps.
 *
 * A scale and its factors are powers of two, so dividing a gradient by the scale is exact.  Both
 * rules count good steps since the last overflow.  PyTorch restarts the count when the scale is
 * doubled.  DeepSpeed continues it, and waits for one more step before the first doubling.
 */
#include <math.h>

#include "base/status.h"
#include "lockstep/optim.h"

lk_loss_scaling lk_loss_scaling_resolve(const lk_loss_scaling *scaling)
{
    lk_loss_scaling full = *scaling;
    if (full.rule == LK_SCALE_AUTO)
        full.rule = LK_SCALE_NONE;
    if (full.initial == 0)
        full.initial = 65536;
    if (full.window == 0)
        full.window = full.rule == LK_SCALE_DEEPSPEED ? 1000 : 2000;
    if (full.hysteresis == 0)
        full.hysteresis = 2;
    return full;
}

lk_status lk_loss_scaling_check(const lk_loss_scaling *scaling)
{
    int exponent;
    if ((int)scaling->rule < LK_SCALE_AUTO || (int)scaling->rule > LK_SCALE_FIXED)
        return lk_fail(LK_EINVAL,
                       "`scaling.rule` %d is none of none, pytorch, deepspeed, "
                       "fixed",
                       (int)scaling->rule);
    if (scaling->initial == 0)
        return LK_OK;
    if (!(scaling->initial >= 0x1p-24 && scaling->initial <= 0x1p32) ||
        frexp(scaling->initial, &exponent) != 0.5)
        return lk_fail(LK_EINVAL,
                       "`scaling.initial` %g; give a power of two from 2^-24 to 2^32, such "
                       "as 65536",
                       scaling->initial);
    return LK_OK;
}

lk_loss_scaler lk_loss_scaler_begin(const lk_loss_scaling *scaling)
{
    lk_loss_scaling full = lk_loss_scaling_resolve(scaling);
    return (lk_loss_scaler){ .scale      = full.rule == LK_SCALE_NONE ? 1.0 : full.initial,
                             .hysteresis = full.hysteresis };
}

bool lk_loss_scaling_skips(const lk_loss_scaling *scaling)
{
    return scaling->rule == LK_SCALE_PYTORCH || scaling->rule == LK_SCALE_DEEPSPEED;
}

/* Halves the scale.  DeepSpeed's minimum is 1.  PyTorch has none; here it is the smallest number of
 * fp16. */
static lk_status shrink(const lk_loss_scaling *full, lk_loss_scaler *s)
{
    double least = full->rule == LK_SCALE_DEEPSPEED ? 1.0 : 0x1p-24;
    if (full->rule == LK_SCALE_DEEPSPEED && s->hysteresis > 1) {
        s->hysteresis--;
        return LK_OK;
    }
    if (s->scale <= least)
        return lk_fail(LK_ENONFINITE,
                       "the gradient is not finite at the smallest loss scale, %g; lower the "
                       "learning rate, or use `precision` bf16",
                       s->scale);
    s->scale *= 0.5;
    return LK_OK;
}

static void grow(const lk_loss_scaling *full, lk_loss_scaler *s)
{
    bool pytorch = full->rule == LK_SCALE_PYTORCH;
    if (pytorch)
        s->good++;
    if (s->good > 0 && s->good % full->window == 0) {
        if (s->scale < 0x1p32) /* a larger scale is not needed */
            s->scale *= 2;
        s->hysteresis = full->hysteresis;
        if (pytorch)
            s->good = 0;
    }
    if (!pytorch)
        s->good++;
}

lk_status lk_loss_scaler_update(const lk_loss_scaling *scaling, lk_loss_scaler *s, bool overflow)
{
    lk_loss_scaling full = lk_loss_scaling_resolve(scaling);
    if (!lk_loss_scaling_skips(&full))
        return LK_OK;
    if (!overflow) {
        grow(&full, s);
        return LK_OK;
    }
    s->skipped++;
    s->good = 0;
    return shrink(&full, s);
}
