/* hooks.c -- the user's function on buckets, see lk_bucket_hook.
 *
 * It stands where a virtual worker's gradient is complete and nobody has added to it, above the
 * strategies: these may add, round and send a bucket as soon as its last term is announced.
 */
#include "base/memory.h"
#include "parallel/strategy.h"

struct lki_hooking {
    uint32_t *pending; /* [together][buckets]: terms that are not made yet */
    uint32_t  buckets; /* of the layout, which may change once (reorder.c) */
};

lk_status lki_hooks_open(lk_parallel *parallel)
{
    return LKI_NEW(&parallel->hooking, 1, "hook");
}

void lki_hooks_close(lk_parallel *parallel)
{
    if (parallel->hooking != NULL)
        lki_free(parallel->hooking->pending);
    lki_free(parallel->hooking);
    parallel->hooking = NULL;
}

lk_status lki_hooks_begin(lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
    lki_hooking      *self   = parallel->hooking;

    if (self->buckets != layout->bucket_count) {
        lki_free(self->pending);
        self->pending = NULL;
        self->buckets = 0;
        LK_TRY(LKI_NEW(&self->pending, (size_t)parallel->together * layout->bucket_count,
                       "buckets for the hook"));
        self->buckets = layout->bucket_count;
    }
    for (uint32_t i = 0; i < parallel->together * self->buckets; i++)
        self->pending[i] = layout->buckets[i % self->buckets].terms;
    return LK_OK;
}

/* Where the chosen virtual worker's bucket lies, of which `term` is a part. */
static float *values_of(lk_parallel *parallel, uint32_t bucket, uint32_t term)
{
    const lki_layout *layout = parallel->layout;
    return lki_gradient_now(parallel, term) -
           ((ptrdiff_t)layout->term_at[term] - (ptrdiff_t)layout->buckets[bucket].first);
}

static lk_status call(lk_parallel *parallel, uint32_t index, uint32_t term)
{
    const lki_bucket *bucket = &parallel->layout->buckets[index];
    const lk_bucket   view   = { .step           = parallel->step,
                                 .virtual_worker = lki_leaf_now(parallel),
                                 .index          = index,
                                 .count          = parallel->layout->bucket_count,
                                 .elements       = bucket->count,
                                 .dtype          = LK_F32,
                                 .values         = values_of(parallel, index, term) };
    lk_status         status = parallel->hook(&view, parallel->hook_context);
    if (status == LK_OK)
        return LK_OK;
    status = lk_fail(status, "rank %u, step %llu: the communication hook failed (%s) at bucket %u "
                     "of virtual worker %u; nothing was updated", parallel->rank,
                     (unsigned long long)parallel->step + 1, lk_status_text(status), index,
                     view.virtual_worker);
    lk_comm_abort(parallel->comm); /* others wait for what this rank does not give */
    return status;
}

lk_status lki_hooks_term(lk_parallel *parallel, uint32_t term)
{
    const lki_layout *layout  = parallel->layout;
    uint32_t         *pending = parallel->hooking->pending +
                        (size_t)parallel->chosen * layout->bucket_count;
    for (uint32_t b = layout->first_bucket[term]; b <= layout->last_bucket[term]; b++) {
        LK_ASSERT(pending[b] > 0);
        if (--pending[b] == 0 && !lki_is_idle(parallel, b))
            LK_TRY(call(parallel, b, term));
    }
    return LK_OK;
}
