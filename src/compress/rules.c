/* rules.c -- the table of feedback rules.
 *
 *     ef14    values = g + error; error = residual (Seide et al., 1-Bit Stochastic Gradient
 *             Descent, 2014).  With a rate, error = rate residual, and values = g + error / rate
 *             (Karimireddy et al., Error Feedback Fixes SignSGD, 2019, algorithm 2)
 *     dgc     momentum correction (Lin et al., Deep Gradient Compression, 2018):
 *             velocity = m velocity + g; accumulated += velocity.  `accumulated` is encoded.  Where
 *             an element is sent, both become 0.  With Nesterov's momentum
 *             velocity = m (velocity + g); accumulated += velocity + g
 *     signum  momentum = m momentum + (1 - m) g is encoded, and residuals are dropped (Bernstein et
 *             al., signSGD: Compressed Optimisation for Non-Convex Problems, 2018)
 *
 *     ef21    values = g - estimate, in units of a mean; estimate += what was sent of it.  The mean
 *             gradient is the mean of all groups' estimates, each with the same weight (Richtarik
 *             et al., EF21: A New, Simpler, Theoretically Better, and Practically Faster Error
 *             Feedback, 2021)
 *
 *     ef21-sgdm  ef21 of momentum = m momentum + (1 - m) g instead of g (Fatkhullin et al.,
 *             Momentum Provably Improves Error Feedback!, 2023)
 *
 * g is the mean gradient of the group.  The residual of dgc is compared with what was encoded: an
 * element whose residual is another value was sent.
 */
#include <string.h>

#include "base/status.h"
#include "compress/rules.h"

static void ef14_before(const lki_kept *k, float *values)
{
    const float factor = (float)k->samples / k->rate;
    if (!k->scaled)
        lk_feedback_add(k->count, k->kept[0], k->samples, values);
    for (size_t i = 0; i < k->count && k->scaled && k->rate > 0; i++)
        values[i] += factor * k->kept[0][i];
}

static void ef14_after(const lki_kept *k, const float *residual)
{
    const float factor = k->rate / (float)k->samples;
    if (!k->scaled)
        lk_feedback_keep(k->count, residual, k->samples, k->kept[0]);
    for (size_t i = 0; i < k->count && k->scaled && k->rate > 0 && k->samples > 0; i++)
        k->kept[0][i] = factor * residual[i];
}

static void dgc_before(const lki_kept *k, float *values)
{
    const float m = k->momentum, samples = (float)k->samples;
    float      *velocity = k->kept[0], *accumulated = k->kept[1];
    for (size_t i = 0; i < k->count && k->samples > 0; i++) {
        const float g = values[i] / samples;
        velocity[i]   = k->nesterov ? m * (velocity[i] + g) : m * velocity[i] + g;
        accumulated[i] += k->nesterov ? velocity[i] + g : velocity[i];
        values[i] = samples * accumulated[i];
    }
}

static void dgc_after(const lki_kept *k, const float *residual)
{
    const float samples  = (float)k->samples;
    float      *velocity = k->kept[0], *accumulated = k->kept[1];
    for (size_t i = 0; i < k->count && k->samples > 0; i++)
        if (residual[i] != samples * accumulated[i])
            velocity[i] = accumulated[i] = 0;
}

static void signum_before(const lki_kept *k, float *values)
{
    const float m = k->momentum, rest = 1 - m, samples = (float)k->samples;
    float      *momentum = k->kept[0];
    for (size_t i = 0; i < k->count && k->samples > 0; i++) {
        momentum[i] = m * momentum[i] + rest * (values[i] / samples);
        values[i]   = samples * momentum[i];
    }
}

/* The estimate is g until the residual is known. */
static void ef21_before(const lki_kept *k, float *values)
{
    const float samples  = (float)k->samples;
    float      *estimate = k->kept[0];
    for (size_t i = 0; i < k->count && k->samples > 0; i++) {
        const float g = values[i] / samples;
        values[i]     = g - estimate[i];
        estimate[i]   = g;
    }
}

static void ef21_after(const lki_kept *k, const float *residual)
{
    float *estimate = k->kept[0];
    for (size_t i = 0; i < k->count && k->samples > 0; i++)
        estimate[i] -= residual[i];
}

/* The estimate is the momentum until the residual is known. */
static void ef21_sgdm_before(const lki_kept *k, float *values)
{
    const float m = k->momentum, rest = 1 - m, samples = (float)k->samples;
    float      *estimate = k->kept[0], *momentum = k->kept[1];
    for (size_t i = 0; i < k->count && k->samples > 0; i++) {
        momentum[i] = m * momentum[i] + rest * (values[i] / samples);
        values[i]   = momentum[i] - estimate[i];
        estimate[i] = momentum[i];
    }
}

static const lki_rule rules[] = {
    [LK_FEEDBACK_EF14]   = { .name           = "ef14",
                             .text           = "the residual is added to the next gradient",
                             .kept           = { "error" },
                             .needs_residual = true,
                             .before         = ef14_before,
                             .after          = ef14_after },
    [LK_FEEDBACK_OFF]    = { .name = "off", .text = "residuals are dropped" },
    [LK_FEEDBACK_DGC]    = { .name           = "dgc",
                             .text           = "momentum correction: sums of a velocity are sent",
                             .kept           = { "velocity", "accumulated" },
                             .has_momentum   = true,
                             .selects        = true,
                             .needs_residual = true,
                             .before         = dgc_before,
                             .after          = dgc_after },
    [LK_FEEDBACK_SIGNUM] = { .name         = "signum",
                             .text         = "a group's momentum is sent; residuals are dropped",
                             .kept         = { "momentum" },
                             .has_momentum = true,
                             .before       = signum_before },
    [LK_FEEDBACK_EF21]   = { .name           = "ef21",
                             .text           = "changes of an estimate of the gradient are sent",
                             .kept           = { "estimate" },
                             .needs_residual = true,
                             .estimates      = true,
                             .before         = ef21_before,
                             .after          = ef21_after },
    [LK_FEEDBACK_EF21_SGDM] = { .name           = "ef21-sgdm",
                                .text           = "changes of an estimate of the group's momentum "
                                                  "are sent",
                                .kept           = { "estimate", "momentum" },
                                .has_momentum   = true,
                                .needs_residual = true,
                                .estimates      = true,
                                .before         = ef21_sgdm_before,
                                .after          = ef21_after },
};
enum { RULES = sizeof rules / sizeof rules[0] };

const lki_rule *lki_rule_of(lk_feedback feedback)
{
    const uint32_t index = (uint32_t)feedback;
    return index < RULES && rules[index].name != NULL ? &rules[index] : NULL;
}

const char *lk_feedback_name(lk_feedback feedback)
{
    const lki_rule *rule = lki_rule_of(feedback);
    return rule == NULL ? NULL : rule->name;
}

lk_status lk_feedback_find(lk_feedback *out, const char *name)
{
    *out = LK_FEEDBACK_DEFAULT;
    LK_TRY(lki_check_given("lk_feedback_find", "name", name, 1));
    for (uint32_t i = 1; i < RULES; i++)
        if (strcmp(rules[i].name, name) == 0) {
            *out = (lk_feedback)i;
            return LK_OK;
        }
    return lk_fail(LK_EINVAL, "there is no feedback '%s'; there are ef14, off, dgc, signum, "
                              "ef21, ef21-sgdm", name);
}
