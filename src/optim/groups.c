/* groups.c -- parameter groups, selected by patterns for names. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "lockstep/optim.h"

/* Returns true if the name matches the pattern.  After a mismatch, tries again with one more
 * character for the last `*`. */
static bool fits(const char *pattern, const char *name)
{
    const char *star = NULL, *taken = NULL;
    while (*name != '\0') {
        if (*pattern == '*') {
            star  = pattern++;
            taken = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star != NULL) {
            pattern = star + 1;
            name    = ++taken;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}

/* Returns LK_EINVAL with a message that lists as many existing names as fit in the message. */
static lk_status no_such_parameter(const char *pattern, const lk_param *params, uint32_t count)
{
    char     names[320];
    size_t   used = 0;
    uint32_t p    = 0;
    for (; p < count && used + strlen(params[p].name) + 2 < sizeof names; p++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", p == 0 ? "" : ", ",
                                 params[p].name);
    return lk_fail(LK_EINVAL, "no parameter is named like '%s'; there are %s%s", pattern,
                   p == 0 ? "others" : names, p > 0 && p < count ? ", ..." : "");
}

static lk_status check_group(const lk_param_group *group)
{
    const char *name = group->pattern;
    if (memchr(name, '\0', sizeof group->pattern) == NULL || *name == '\0')
        return lk_fail(LK_EINVAL, "a group needs a pattern of less than %d characters",
                       LK_PATTERN_MAX);
    if (!group->has_lr && !group->has_decay)
        return lk_fail(LK_EINVAL, "the group '%s' says nothing; give lr, decay or both", name);
    if (group->has_lr && !(group->lr >= 0 && group->lr < HUGE_VAL))
        return lk_fail(LK_EINVAL, "the group '%s': lr = %g is no factor of a learning rate", name,
                       group->lr);
    if (group->has_decay && !(group->weight_decay >= 0 && group->weight_decay < HUGE_VAL))
        return lk_fail(LK_EINVAL, "the group '%s': decay = %g is no weight decay", name,
                       group->weight_decay);
    return LK_OK;
}

static void apply(lk_param_rule *rule, const lk_param_group *group)
{
    if (group->has_lr)
        rule->lr = group->lr;
    if (!group->has_decay)
        return;
    rule->own_decay    = 1;
    rule->weight_decay = group->weight_decay;
}

lk_status lk_param_rules(lk_param_rule *out, const lk_param *params, uint32_t param_count,
                         const lk_param_group *groups, uint32_t group_count)
{
    for (uint32_t p = 0; p < param_count; p++)
        out[p] = (lk_param_rule){ .lr = 1 };
    for (uint32_t g = 0; g < group_count; g++) {
        bool any = false;
        LK_TRY(check_group(&groups[g]));
        for (uint32_t p = 0; p < param_count; p++)
            if (fits(groups[g].pattern, params[p].name)) {
                apply(&out[p], &groups[g]);
                any = true;
            }
        if (!any)
            return no_such_parameter(groups[g].pattern, params, param_count);
    }
    return LK_OK;
}
