/* schedule.c -- the learning rate as a function of the step, in FP64 and without libm. */
#include <inttypes.h>
#include <math.h>

#include "base/status.h"
#include "lockstep/optim.h"
#include "tensor/ops.h"

enum { MILESTONES_MAX = sizeof((lk_schedule *)0)->milestones / sizeof(uint64_t) };

/* ---- Options ----------------------------------------------------------------------------- */

const char *lk_schedule_name(lk_schedule_kind kind)
{
    static const char *const names[] = {
#define NAME(name, text) text,
        LK_SCHEDULES(NAME)
#undef NAME
    };
    LK_ASSERT((size_t)kind < sizeof names / sizeof names[0]);
    return names[kind];
}

lk_schedule lk_schedule_resolve(const lk_schedule *schedule)
{
    lk_schedule full = *schedule;
    if (full.kind == LK_STEP && full.gamma == 0.0)
        full.gamma = 0.1;
    if (full.kind == LK_POLY && full.power == 0.0)
        full.power = 2.0;
    if (full.kind == LK_WSD && full.decay == 0)
        full.decay = full.steps < 10 ? 1 : full.steps / 10;
    if (full.kind != LK_ONE_CYCLE)
        return full;
    if (full.warmup == 0)
        full.warmup = full.steps * 3 / 10 > 0 ? full.steps * 3 / 10 : 1;
    if (full.warmup_from == 0.0)
        full.warmup_from = full.lr / 25.0;
    if (full.min_lr == 0.0)
        full.min_lr = full.warmup_from / 1e4;
    return full;
}

static lk_status check_milestones(const lk_schedule *s)
{
    if (s->milestone_count > MILESTONES_MAX)
        return lk_fail(LK_EINVAL, "`schedule.milestones` has %u steps; at most %d",
                       s->milestone_count, (int)MILESTONES_MAX);
    for (uint32_t i = 1; i < s->milestone_count; i++)
        if (s->milestones[i] <= s->milestones[i - 1])
            return lk_fail(LK_EINVAL,
                           "`schedule.milestones`: %" PRIu64 " does not come after %" PRIu64,
                           s->milestones[i], s->milestones[i - 1]);
    if (!(s->gamma >= 0.0 && s->gamma <= 1.0))
        return lk_fail(LK_EINVAL, "`schedule.gamma` %g is not in [0, 1]", s->gamma);
    if (s->milestone_count == 0)
        return lk_fail(LK_EINVAL, "`schedule.kind` step needs `schedule.milestones`, the steps at "
                                  "which the rate falls; without them it is constant");
    return LK_OK;
}

static lk_status check_rates(const lk_schedule *s)
{
    if (!(s->lr > 0.0 && s->lr < HUGE_VAL))
        return lk_fail(LK_EINVAL, "`schedule.lr` %g; a positive number is needed", s->lr);
    if (!(s->min_lr >= 0.0 && s->min_lr <= s->lr))
        return lk_fail(LK_EINVAL, "`schedule.min_lr` %g is not between 0 and `schedule.lr` %g",
                       s->min_lr, s->lr);
    if (!(s->warmup_from >= 0.0 && s->warmup_from <= s->lr))
        return lk_fail(LK_EINVAL, "`schedule.warmup_from` %g is not between 0 and `schedule.lr` %g",
                       s->warmup_from, s->lr);
    if (!(s->power >= 0.0 && s->power <= 100.0))
        return lk_fail(LK_EINVAL, "`schedule.power` %g is not in [0, 100]", s->power);
    return LK_OK;
}

lk_status lk_schedule_check(const lk_schedule *schedule)
{
    if ((int)schedule->kind < LK_CONSTANT || (int)schedule->kind > LK_ONE_CYCLE)
        return lk_fail(LK_EINVAL,
                       "`schedule.kind` %d is none of constant (0), linear, cosine, step, poly, "
                       "wsd, one-cycle (6)",
                       (int)schedule->kind);
    const lk_schedule full = lk_schedule_resolve(schedule), *s = &full;
    LK_TRY(check_rates(s));
    if (s->kind == LK_STEP)
        return check_milestones(s);
    if (s->kind == LK_CONSTANT)
        return LK_OK;
    if (s->kind == LK_WSD && (s->decay >= s->steps || s->steps - s->decay < s->warmup))
        return lk_fail(LK_EINVAL,
                       "a warmup of %" PRIu64 " steps and a decay of %" PRIu64
                       " do not fit into %" PRIu64 " steps; shorten one of them",
                       s->warmup, s->decay, s->steps);
    if (s->steps <= s->warmup)
        return lk_fail(LK_EINVAL,
                       "`steps` %" PRIu64 " leaves nothing after `schedule.warmup` %" PRIu64
                       "; say how long the run is",
                       s->steps, s->warmup);
    return LK_OK;
}

/* ---- Rates ------------------------------------------------------------------------------- */

static double after_milestones(const lk_schedule *s, uint64_t step)
{
    double lr = s->lr;
    for (uint32_t i = 0; i < s->milestone_count && step >= s->milestones[i]; i++)
        lr *= s->gamma;
    return lr;
}

/* Returns half a cosine wave, which falls from 1 at 0 to 0 at 1. */
static double half_cosine(double done)
{
    static const double pi = 0x1.921fb54442d18p+1;
    return 0.5 * (1.0 + lki_cos(pi * done));
}

static double part_of(uint64_t step, uint64_t first, uint64_t last)
{
    return (double)(step - first) / (double)(last - first);
}

/* Returns (rate - min_lr) / (lr - min_lr) for a step after warmup. */
static double left_of(const lk_schedule *s, uint64_t step)
{
    double done = part_of(step, s->warmup, s->steps);
    if (s->kind == LK_LINEAR)
        return 1.0 - done;
    if (s->kind == LK_POLY)
        return lki_pow(1.0 - done, s->power);
    if (s->kind == LK_COSINE)
        return half_cosine(done);
    return step < s->steps - s->decay ? 1.0 : 1.0 - part_of(step, s->steps - s->decay, s->steps);
}

static double one_cycle(const lk_schedule *s, uint64_t step)
{
    uint64_t top = s->warmup - 1, last = s->steps - 1;
    if (step < top)
        return s->lr + (s->warmup_from - s->lr) * half_cosine(part_of(step, 0, top));
    if (step >= last)
        return s->min_lr;
    return s->min_lr + (s->lr - s->min_lr) * half_cosine(part_of(step, top, last));
}

double lk_schedule_at(const lk_schedule *schedule, uint64_t step)
{
    const lk_schedule full = lk_schedule_resolve(schedule), *s = &full;
    if (s->kind == LK_ONE_CYCLE)
        return one_cycle(s, step);
    if (step < s->warmup)
        return s->warmup_from +
               (s->lr - s->warmup_from) * (double)(step + 1) / (double)s->warmup;
    if (s->kind == LK_CONSTANT)
        return s->lr;
    if (s->kind == LK_STEP)
        return after_milestones(s, step);
    if (step >= s->steps)
        return s->min_lr;
    return s->min_lr + (s->lr - s->min_lr) * left_of(s, step);
}

double lk_scale_lr(lk_lr_rule rule, double lr, uint64_t batch, uint64_t base)
{
    double ratio = (double)batch / (double)base;
    if (rule == LK_SCALE_LR_NONE)
        return lr;
    return lr * (rule == LK_SCALE_LR_LINEAR ? ratio : sqrt(ratio));
}
