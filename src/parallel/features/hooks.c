/* hooks.c -- calls the user's function on buckets; see lk_bucket_hook.
 *
 * The hook is called when a virtual worker's bucket is complete and nothing has been added to it.
 * It is called before the strategy is notified, because a strategy may add, round and send a bucket
 * as soon as its last term is announced.
 */
#include "base/memory.h"
#include "parallel/features/table.h"
#include "parallel/state.h"

typedef struct {
    lk_bucket_hook hook;
    void          *context;
    uint32_t      *pending; /* [together][buckets]: terms that are not computed yet */
    uint32_t       buckets; /* number of buckets of the layout, which may change once */
} hooks;

static lk_status hooks_open(lk_parallel *parallel, const lk_parallel_options *options, void **out)
{
    hooks *self = NULL;

    if (options->hook == NULL)
        return LK_OK;
    LK_TRY(LKI_NEW(&self, 1, "hook"));
    *out                      = self;
    self->hook                = options->hook;
    self->context             = options->hook_context;
    parallel->effects.watches = true;
    parallel->effects.single  = true;
    return LK_OK;
}

static void hooks_close(void *context)
{
    hooks *self = context;
    lki_free(self->pending);
    lki_free(self);
}

static uint64_t hooks_hash(const lk_parallel_options *options)
{
    return options->hook != NULL;
}

static lk_status hooks_begin_leaves(lk_parallel *parallel, void *context)
{
    const lki_layout *layout = parallel->layout;
    const uint32_t    rows   = parallel->turn.together;
    hooks            *self   = context;

    if (self->buckets != layout->bucket_count) {
        lki_free(self->pending);
        self->pending = NULL;
        self->buckets = 0;
        LK_TRY(
            LKI_NEW(&self->pending, (size_t)rows * layout->bucket_count, "buckets for the hook"));
        self->buckets = layout->bucket_count;
    }
    for (uint32_t i = 0; i < rows * self->buckets; i++)
        self->pending[i] = layout->buckets[i % self->buckets].terms;
    return LK_OK;
}

/* Returns the address of the bucket that contains `term` in a virtual worker's gradient. */
static float *values_of(lk_parallel *parallel, uint32_t index, uint32_t bucket, uint32_t term)
{
    const lki_layout *layout = parallel->layout;
    return lki_gradient_now(parallel, index, term) -
           ((ptrdiff_t)layout->term_at[term] - (ptrdiff_t)layout->buckets[bucket].first);
}

static lk_status call(lk_parallel *parallel, const hooks *self, uint32_t index, uint32_t number,
                      uint32_t term)
{
    const lki_bucket *bucket = &parallel->layout->buckets[number];
    const lk_bucket   view   = { .step           = parallel->step,
                                 .virtual_worker = lki_leaf_now(parallel, index),
                                 .index          = number,
                                 .count          = parallel->layout->bucket_count,
                                 .elements       = bucket->count,
                                 .dtype          = LK_F32,
                                 .values         = values_of(parallel, index, number, term) };
    lk_status         status = self->hook(&view, self->context);
    if (status == LK_OK)
        return LK_OK;
    status = lk_fail(status,
                     "rank %u, step %llu: the communication hook failed (%s) at bucket %u "
                     "of virtual worker %u; nothing was updated",
                     parallel->rank, (unsigned long long)parallel->step + 1, lk_status_text(status),
                     number, view.virtual_worker);
    /* other ranks would wait for gradients that this rank will not send */
    lk_comm_abort(parallel->comm);
    return status;
}

static lk_status hooks_term_ready(lk_parallel *parallel, void *context, uint32_t index,
                                  uint32_t term)
{
    const hooks      *self    = context;
    const lki_layout *layout  = parallel->layout;
    uint32_t         *pending = self->pending + (size_t)index * layout->bucket_count;
    if (parallel->turn.kind != LKI_TURN_OWN)
        return LK_OK;
    for (uint32_t b = layout->first_bucket[term]; b <= layout->last_bucket[term]; b++) {
        LK_ASSERT(pending[b] > 0);
        if (--pending[b] == 0 && !lki_is_idle(parallel, b))
            LK_TRY(call(parallel, self, index, b, term));
    }
    return LK_OK;
}

const lki_feature lki_feature_hooks = {
    .name         = "communication hook",
    .open         = hooks_open,
    .close        = hooks_close,
    .hash_options = hooks_hash,
    .begin_leaves = hooks_begin_leaves,
    .term_ready   = hooks_term_ready,
};
