/* schedule.c -- the learning rate as a function of the step, in FP64 and without libm. */
#include <inttypes.h>
#include <math.h>

#include "base/status.h"
#include "lockstep/optim.h"
#include "tensor/ops.h"

enum { MILESTONES_MAX = sizeof((lk_schedule *)0)->milestones / sizeof(uint64_t) };

static lk_status check_milestones(const lk_schedule *s)
{
    if (s->milestone_count > MILESTONES_MAX)
        return lk_fail(LK_EINVAL, "schedule: milestone_count = %u; at most %d", s->milestone_count,
                       (int)MILESTONES_MAX);
    for (uint32_t i = 1; i < s->milestone_count; i++)
        if (s->milestones[i] <= s->milestones[i - 1])
            return lk_fail(LK_EINVAL,
                           "schedule: milestones[%u] = %" PRIu64 " does not come after "
                           "%" PRIu64,
                           i, s->milestones[i], s->milestones[i - 1]);
    if (!(s->gamma >= 0.0 && s->gamma <= 1.0))
        return lk_fail(LK_EINVAL, "schedule: gamma = %g is not in [0, 1]", s->gamma);
    if (s->milestone_count == 0)
        return lk_fail(LK_EINVAL, "schedule: step needs milestones, the steps at which the rate "
                                  "falls; without them it is constant");
    return LK_OK;
}

lk_status lk_schedule_check(const lk_schedule *schedule)
{
    const lk_schedule *s = schedule;
    if (s->kind != LK_CONSTANT && s->kind != LK_LINEAR && s->kind != LK_COSINE &&
        s->kind != LK_STEP)
        return lk_fail(LK_EINVAL, "schedule: kind = %d is not constant, linear, cosine or step",
                       (int)s->kind);
    if (!(s->lr > 0.0 && s->lr < HUGE_VAL))
        return lk_fail(LK_EINVAL, "schedule: lr = %g; a positive number is needed", s->lr);
    if (!(s->min_lr >= 0.0 && s->min_lr <= s->lr))
        return lk_fail(LK_EINVAL, "schedule: min_lr = %g is not in [0, lr = %g]", s->min_lr, s->lr);
    if (s->kind == LK_STEP)
        return check_milestones(s);
    if (s->kind != LK_CONSTANT && s->steps <= s->warmup)
        return lk_fail(LK_EINVAL,
                       "schedule: steps = %" PRIu64 " leaves nothing after warmup = %" PRIu64
                       "; say how long the run is",
                       s->steps, s->warmup);
    return LK_OK;
}

static double after_milestones(const lk_schedule *s, uint64_t step)
{
    double lr = s->lr, gamma = s->gamma == 0.0 ? 0.1 : s->gamma;
    for (uint32_t i = 0; i < s->milestone_count && step >= s->milestones[i]; i++)
        lr *= gamma;
    return lr;
}

double lk_schedule_at(const lk_schedule *schedule, uint64_t step)
{
    static const double pi = 0x1.921fb54442d18p+1;
    const lk_schedule  *s  = schedule;
    if (step < s->warmup)
        return s->lr * (double)(step + 1) / (double)s->warmup;
    if (s->kind == LK_CONSTANT)
        return s->lr;
    if (s->kind == LK_STEP)
        return after_milestones(s, step);
    if (step >= s->steps)
        return s->min_lr;
    double done = (double)(step - s->warmup) / (double)(s->steps - s->warmup);
    double left = s->kind == LK_LINEAR ? 1.0 - done : 0.5 * (1.0 + lki_cos(pi * done));
    return s->min_lr + (s->lr - s->min_lr) * left;
}
