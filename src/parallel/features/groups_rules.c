/* groups_rules.c -- reads the rule of what groups keep, and checks it with the compressor. */
#include <string.h>

#include "base/hash.h"
#include "base/status.h"
#include "parallel/features/groups.h"

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
                       "those of feedback dgc and signum; the optimizer has its own",
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
    self->rule     = rule;
    self->kept     = self->by == NULL ? 0 : lki_rule_kept(rule);
    self->momentum = (float)(exchange->momentum == 0 ? default_momentum : exchange->momentum);
    self->nesterov = exchange->nesterov;
    return LK_OK;
}

uint64_t lki_groups_hash_rule(const lk_exchange *exchange)
{
    const lki_rule *rule     = lki_rule_of(lk_exchange_feedback(exchange));
    const double    momentum = rule == NULL || !rule->has_momentum ? 0
                               : exchange->momentum == 0           ? default_momentum
                                                                   : exchange->momentum;
    const struct {
        uint64_t rule, nesterov;
        double   momentum;
    } all = { (uint64_t)lk_exchange_feedback(exchange), exchange->nesterov, momentum };
    return lki_xxh3(&all, sizeof all);
}
