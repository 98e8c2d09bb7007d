/* start.c -- the start of replicas in the middle of a run (post-local SGD).
 *
 * Until then one object trains with all ranks.  Its virtual workers have the ranks that they will
 * have in replicas, so that data need not be dealt anew.
 */
#include "parallel/replicas/internal.h"

/* Copies a value of a parameter to all replicas of this rank, and the weights to `outer`, too. */
static lk_status give(lki_replicas *replicas, uint32_t param, uint32_t which)
{
    lk_parallel *whole = replicas->whole;
    LK_TRY(lk_parallel_fetch(whole, param, which, 0, whole->layout->sizes[param],
                             replicas->scratch));
    if (which == 0) {
        const lki_fragment *f = lki_fragment_of(replicas, param);
        LK_TRY(lk_parallel_load(f->outer, param - f->first, 0, replicas->scratch));
    }
    for (uint32_t i = 0; i < replicas->served; i++)
        LK_TRY(lk_parallel_load(replicas->of[i].model, param, which, replicas->scratch));
    return LK_OK;
}

static lk_status end_whole(lk_parallel *parallel)
{
    lki_replicas *replicas = parallel->replicas;
    LK_TRY(lk_barrier(parallel->comm));
    lk_parallel_free(replicas->whole);
    replicas->whole     = NULL;
    parallel->optimizer = replicas->options.optimizer;
    return LK_OK;
}

lk_status lki_replicas_start(lk_parallel *parallel)
{
    lki_replicas  *replicas = parallel->replicas;
    lk_parallel   *whole    = replicas->whole;
    const uint32_t states   = lk_optimizer_state_count(&whole->optimizer);
    for (uint32_t p = 0; p < whole->layout->param_count; p++)
        for (uint32_t which = 0; which <= states; which++)
            LK_TRY(give(replicas, p, which));
    for (uint32_t s = 0; s < whole->running.count; s++) {
        const float *values = lk_parallel_state_data(whole, s);
        LK_TRY(lk_parallel_load_state(lki_fragment_of_states(replicas), s, values));
        for (uint32_t i = 0; i < replicas->served; i++)
            LK_TRY(lk_parallel_load_state(replicas->of[i].model, s, values));
    }
    return end_whole(parallel);
}

lk_status lk_parallel_resume(lk_parallel *parallel, uint64_t steps)
{
    lki_replicas *replicas = parallel->replicas;
    LK_TRY(lki_check_idle(parallel, "lk_parallel_resume"));
    if (parallel->versions != NULL)
        return lki_versions_resume(parallel, steps);
    if (replicas == NULL || steps <= replicas->options.start)
        return LK_OK;
    if (replicas->whole != NULL)
        LK_TRY(end_whole(parallel));
    replicas->pending = lki_fragment_pending(&replicas->options, steps - replicas->options.start);
    return LK_OK;
}

const lk_optimizer *lki_optimizer_of(const lk_parallel *parallel)
{
    return &lki_in_use(parallel)->optimizer;
}
