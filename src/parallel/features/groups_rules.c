/* groups_rules.c -- the rule of what groups keep: options, and the mean of estimates. */
#include <string.h>

#include "base/hash.h"
#include "base/status.h"
#include "parallel/features/groups.h"
#include "parallel/state.h"

static const double default_momentum = 0.9;

lk_feedback lk_exchange_feedback(const lk_exchange *exchange)
{
    if (exchange->feedback != LK_FEEDBACK_DEFAULT)
        return exchange->feedback;
    if (exchange->compressor == NULL)
        return LK_FEEDBACK_OFF;
    return exchange->compressor->feedback == LK_FEEDBACK_DEFAULT ? LK_FEEDBACK_EF14
                                                                 : exchange->compressor->feedback;
}

static lk_status check_momentum(const lki_rule *rule, const lk_exchange *exchange)
{
    if (!rule->has_momentum && (exchange->momentum != 0 || exchange->nesterov))
        return lk_fail(LK_EINVAL,
                       "feedback %s has no momentum: `momentum` and `nesterov` of an exchange are "
                       "those of feedback dgc, signum and ef21-sgdm",
                       rule->name);
    if (exchange->nesterov && exchange->feedback != LK_FEEDBACK_DGC)
        return lk_fail(LK_EINVAL, "`nesterov` goes with feedback dgc, not with %s", rule->name);
    if (!(exchange->momentum >= 0 && exchange->momentum < 1))
        return lk_fail(LK_EINVAL, "the exchange's `momentum` is %g; give 0 to below 1",
                       exchange->momentum);
    return LK_OK;
}

lk_status lki_groups_read_rule(lki_groups *self, const lk_exchange *exchange)
{
    const lki_rule *rule = lki_rule_of(lk_exchange_feedback(exchange));
    if (rule == NULL)
        return lk_fail(LK_EINVAL, "there is no feedback with number %d", (int)exchange->feedback);
    LK_TRY(check_momentum(rule, exchange));
    if ((rule->has_momentum || rule->estimates) && self->by == NULL)
        return lk_fail(LK_EINVAL, "feedback %s goes with a compressor", rule->name);
    if (rule->selects && !self->by->selects)
        return lk_fail(LK_EINVAL,
                       "feedback %s goes with compressors that select elements, such as topk and "
                       "randomk, not with %s",
                       rule->name, self->by->name);
    if (rule->estimates && self->by->begin != NULL)
        return lk_fail(LK_EINVAL,
                       "feedback %s does not go together with %s, which shares values from step to "
                       "step",
                       rule->name, self->by->name);
    if (rule->needs_residual && self->by != NULL && self->by->conclude != NULL)
        return lk_fail(LK_EINVAL, "feedback %s needs residuals, which %s does not have", rule->name,
                       self->by->name);
    if (exchange->error_scale != LK_ERROR_SCALE_NONE &&
        lk_exchange_feedback(exchange) != LK_FEEDBACK_EF14)
        return lk_fail(LK_EINVAL, "the exchange's `error_scale` goes with feedback ef14, not "
                                  "with %s",
                       rule->name);
    if (!(exchange->clip >= 0) || (exchange->clip > 0 && self->by == NULL))
        return lk_fail(LK_EINVAL,
                       "the exchange's `clip` is %g; give a norm above 0 and a compressor, or 0",
                       exchange->clip);
    self->rule     = rule;
    self->kept     = self->by == NULL ? 0 : lki_rule_kept(rule);
    self->momentum = (float)(exchange->momentum == 0 ? default_momentum : exchange->momentum);
    self->nesterov = exchange->nesterov;
    self->error_scale = exchange->error_scale;
    self->clip     = exchange->clip;
    return LK_OK;
}

uint64_t lki_groups_hash_rule(const lk_exchange *exchange)
{
    const lki_rule *rule     = lki_rule_of(lk_exchange_feedback(exchange));
    const double    momentum = rule == NULL || !rule->has_momentum ? 0
                               : exchange->momentum == 0           ? default_momentum
                                                                   : exchange->momentum;
    const struct {
        uint64_t rule, nesterov, of_steps;
        double   momentum, clip;
    } all = { (uint64_t)lk_exchange_feedback(exchange), exchange->nesterov,
              (uint64_t)exchange->error_scale, momentum, exchange->clip };
    return lki_xxh3(&all, sizeof all);
}

/* ---- Estimates --------------------------------------------------------------------------- */

void lki_groups_move_estimates(const lk_parallel *parallel, const lki_groups *self)
{
    const lki_layout *layout = parallel->layout;
    float            *change = self->leaves + (size_t)self->count * LKI_NORM_BLOCK;
    for (size_t i = parallel->local; i < layout->span_count; i += parallel->locals) {
        const lki_param_span *span = &layout->spans[i];
        if (lki_groups_leave_whole(self, span->param))
            continue;
        const size_t at   = layout->param_at[span->param] + span->inside;
        const float *from = self->estimates[self->now] + at;
        float       *to   = self->estimates[lki_groups_next(self)] + at;
        lki_groups_decode(parallel, self, span, change);
        for (size_t k = 0; k < span->count; k++)
            to[k] = from[k] + change[k] / (float)self->count;
    }
}

void lki_groups_read_estimates(const lk_parallel *parallel, const lki_groups *self,
                               const lki_param_span *span, float *out)
{
    const float *from = self->estimates[lki_groups_next(self)] +
                        parallel->layout->param_at[span->param] + span->inside;
    for (size_t k = 0; k < span->count; k++)
        out[k] = (float)self->samples * from[k];
}
