/* rules.c -- the learning rate and weight decay of each parameter, which may change between steps.
 *
 * Every rank has a copy.  Nothing is sent when a program sets new rules: it sets equal rules on all
 * ranks.  After a loss, some ranks may already have set the rules of the next step, but a step that
 * is then completed needs its own rules.  A rank whose host has not completed the step still has
 * them, because it has not left lk_parallel_finish().  It sends them to all ranks: ranks that have
 * joined need them, too.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "parallel/state.h"

static lk_status check_rule(const lk_param_rule *rule, const char *name)
{
    if (!(rule->lr >= 0 && rule->lr < HUGE_VAL))
        return lk_fail(LK_EINVAL, "the rule of '%s': lr = %g is no factor of a learning rate", name,
                       rule->lr);
    if (rule->own_decay != 0 && !(rule->weight_decay >= 0 && rule->weight_decay < HUGE_VAL))
        return lk_fail(LK_EINVAL, "the rule of '%s': weight_decay = %g is no weight decay", name,
                       rule->weight_decay);
    return LK_OK;
}

static lk_status check_rules(const lk_param_rule *rules, const lk_param *params, uint32_t count)
{
    for (uint32_t p = 0; p < count; p++)
        LK_TRY(check_rule(&rules[p], params[p].name));
    return LK_OK;
}

lk_status lki_rules_open(lk_parallel *parallel, const lk_param *params, uint32_t param_count,
                         const lk_parallel_options *options)
{
    parallel->rules.changed = true;
    LK_TRY(LKI_NEW(&parallel->rules.of, (size_t)param_count + 1, "rules of parameters"));
    if (options->rules == NULL)
        return lk_param_rules(parallel->rules.of, params, param_count, options->groups,
                              options->group_count);
    if (options->group_count > 0)
        return lk_fail(LK_EINVAL, "choose `groups` or `rules`, not both");
    memcpy(parallel->rules.of, options->rules, param_count * sizeof *options->rules);
    return check_rules(parallel->rules.of, params, param_count);
}

lk_status lk_parallel_set_rules(lk_parallel *parallel, const lk_param_rule *rules)
{
    LK_TRY(lki_check_given("lk_parallel_set_rules", "rules", rules, 1));
    LK_TRY(lki_check_idle(parallel, "lk_parallel_set_rules"));
    if (parallel->replicas != NULL)
        return lki_replicas_set_rules(parallel->replicas, rules);
    parallel                 = lki_in_use(parallel);
    const lki_layout *layout = parallel->layout;
    if (lki_step_failed(parallel))
        return lki_fail_again(&parallel->now.failure);
    LK_TRY(check_rules(rules, layout->params, layout->param_count));
    memcpy(parallel->rules.of, rules, layout->param_count * sizeof *rules);
    parallel->rules.changed = true;
    return LK_OK;
}

lk_status lki_rules_recall(lk_param_rule **out, const lk_parallel *parallel,
                           const lk_parallel *failed, uint64_t step)
{
    const bool knows = failed != NULL && failed->step == step && !failed->rules.changed;
    const lk_parallel *from  = knows ? failed : parallel;
    const size_t       bytes = parallel->layout->param_count * sizeof **out;
    const uint8_t      mine  = knows;
    lk_param_rule     *rules = NULL;
    uint8_t           *known = NULL;
    uint32_t           root  = 0;

    LK_TRY(LKI_NEW(&rules, parallel->layout->param_count, "rules of parameters"));
    lk_status status = LKI_NEW(&known, parallel->ranks, "ranks with rules");
    if (status == LK_OK)
        status = lk_all_gather(parallel->comm, &mine, known, sizeof mine);
    while (status == LK_OK && root < parallel->ranks && known[root] == 0)
        root++;
    /* if no rank knows them, the step is complete on every host, and rules are not used */
    memcpy(rules, from->rules.of, bytes);
    if (status == LK_OK && root < parallel->ranks)
        status = lk_broadcast(parallel->comm, rules, bytes, root);
    lki_free(known);
    if (status == LK_OK)
        *out = rules;
    else
        lki_free(rules);
    return status;
}
