/* fragments.c -- the fragments of the parameters, and the inner steps after which they have outer
 * steps. */
#include "base/memory.h"
#include "parallel/replicas/internal.h"

lk_status lki_fragments_divide(lki_replicas *replicas, const lk_param *params,
                               uint32_t param_count)
{
    const uint32_t count = replicas->options.fragments;
    size_t         all = 0, before = 0;
    uint32_t       p = 0;
    if (count > param_count)
        return lk_fail(LK_EINVAL, "%u fragments of %u parameters: give at most as many", count,
                       param_count);
    for (uint32_t i = 0; i < param_count; i++)
        all += lk_shape_count(params[i].shape);
    LK_TRY(LKI_NEW(&replicas->fragments, count, "fragments"));
    for (uint32_t f = 0; f < count; f++) { /* at least one parameter for each that follows */
        lki_fragment *to = &replicas->fragments[f];
        to->first        = p;
        do
            before += lk_shape_count(params[p++].shape);
        while (p + (count - f - 1) < param_count &&
               (f + 1 == count || before < all / count * (f + 1)));
        to->count = p - to->first;
    }
    replicas->pending     = count;
    replicas->param_count = param_count;
    return LK_OK;
}

uint32_t lki_replicas_params(const lki_replicas *replicas)
{
    return replicas->param_count;
}

lki_fragment *lki_fragment_of(const lki_replicas *replicas, uint32_t param)
{
    lki_fragment *f = replicas->fragments;
    LK_ASSERT(param < replicas->param_count);
    while (param >= f->first + f->count)
        f++;
    return f;
}

lk_parallel *lki_fragment_of_states(const lki_replicas *replicas)
{
    return replicas->fragments[replicas->options.fragments - 1].outer;
}

uint32_t lki_fragment_due(const lk_replicas *options, uint64_t done)
{
    const uint64_t each = options->local_steps / options->fragments;
    return done > 0 && done % each == 0 ? (uint32_t)((done / each - 1) % options->fragments)
                                        : options->fragments;
}

uint32_t lki_fragment_pending(const lk_replicas *options, uint64_t done)
{
    const uint64_t since = done % (options->local_steps / options->fragments);
    return since < options->delay ? lki_fragment_due(options, done - since) : options->fragments;
}
