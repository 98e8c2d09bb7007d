/* ddp.c -- distributed data parallelism on one host: whole gradients, one copy of the model.
 *
 * Backward writes every gradient where it will be reduced: into the bucket, in the arena.  A
 * rank runs its virtual workers in order and merges finished neighbours (virtual.h).  During the
 * backward pass of its last one, each bucket that is complete is merged at once and handed to
 * lk_tree_reduce_start(), always in the order of the buckets; between blocks progress() reduces
 * this rank's slices of whatever has arrived from everybody.  There is no progress thread: with
 * as many workers as cores there is nobody to spare.
 *
 * Memory: peak buffers (lki_virtual_plan) x gradient bytes for each rank.
 * Order:  the canonical tree; see lk_tree_reduce_start().
 */
#include <string.h>

#include "base/memory.h"
#include "device/reduce.h"
#include "parallel/strategy.h"
#include "tensor/exec.h"

enum { IN_FLIGHT_MAX = 32 }; /* requests that a rank keeps open */

/* One bucket's reduction, prepared once. */
typedef struct {
    lk_tree_op   op;
    lk_tree_node nodes[LK_TREE_NODES_MAX];
    lk_request  *request;
    size_t       first;   /* in the gradient space */
    uint32_t     pending; /* terms that are not ready yet */
    uint32_t     terms;
} reduction;

typedef struct {
    float            *buffers; /* mine: plan.buffers gradient spaces */
    lki_virtual_plan  plan;
    lki_merge_counter counter;
    reduction        *reductions;
    uint32_t          reduction_count; /* the buckets, and one for running state if there is any */
    uint32_t          started, completed;
    lk_slice         *state_slices;
    bool              last_leaf;
    uint32_t          merge_count;
    lki_merging      *merges; /* after the last virtual worker, or, in lock step, after all */
} ddp;

static ddp *ddp_of(const lk_parallel *parallel)
{
    LK_ASSERT(parallel->ops == &lki_strategy_ddp || parallel->ops == &lki_strategy_zero1);
    return parallel->private;
}

static float *buffer_at(const lk_parallel *parallel, uint32_t buffer)
{
    return ddp_of(parallel)->buffers + parallel->width * buffer;
}

/* ---- Attaching --------------------------------------------------------------------------- */

/* Buffers of the ranks before `end` on a host. */
static size_t buffers_of(const lk_parallel *parallel, uint32_t host, uint32_t end)
{
    size_t total = 0;
    for (uint32_t r = 0; r < end; r++) {
        lki_virtual_plan plan;
        if (parallel->world.host_of[r] != host)
            continue;
        lki_virtual_plan_make(&plan, parallel->leaves, parallel->ranks, r);
        total += parallel->lock_step ? plan.count : plan.buffers;
    }
    return total;
}

/* Of `ranks` ranks, which are all on one host. */
static size_t buffers_of_fewer(const lk_parallel *parallel, uint32_t ranks)
{
    size_t total = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        lki_virtual_plan plan;
        lki_virtual_plan_make(&plan, parallel->leaves, ranks, r);
        total += plan.buffers;
    }
    return total;
}

static size_t ddp_bytes(const lk_parallel *parallel, uint32_t host)
{
    size_t bytes, count = buffers_of(parallel, host, parallel->ranks);
    for (uint32_t r = 1; parallel->ledger.kept && r < parallel->ledger.seats; r++)
        count = lki_max(count, buffers_of_fewer(parallel, r));
    return __builtin_mul_overflow(count, parallel->width * sizeof(float), &bytes) ? 0 : bytes;
}

/* All ranks' buffers in one arena; mine start after those of the ranks before me. */
static lk_status open_arena(lk_parallel *parallel, ddp *self)
{
    size_t most = 0, before = buffers_of(parallel, parallel->world.host_of[parallel->rank],
                                         parallel->rank);
    for (uint32_t host = 0; host < parallel->world.hosts; host++) {
        size_t bytes = ddp_bytes(parallel, host);
        if (bytes == 0)
            return lk_fail(LK_ENOMEM, "gradients: %zu buffers of %zu elements are too large",
                           buffers_of(parallel, host, parallel->ranks), parallel->width);
        most = lki_max(most, bytes);
    }
    if (parallel->ledger.before == NULL) {
        lk_arena *arena;
        LK_TRY(lk_comm_arena(&arena, parallel->comm, "gradients", most));
        parallel->ledger.gradients = lk_arena_data(arena);
    } else {
        parallel->ledger.gradients = parallel->ledger.before->ledger.gradients;
    }
    self->buffers = parallel->ledger.gradients + before * parallel->width;
    return LK_OK;
}

static lk_status reduce_states(lk_parallel *parallel, ddp *self)
{
    size_t count;
    LK_TRY(lki_state_slices(parallel, &self->state_slices, &count));
    self->reductions[self->reduction_count++] =
        (reduction){ .op    = { .elements    = parallel->micro_count * parallel->state_width,
                                .slices      = self->state_slices,
                                .slice_count = count },
                     .first = parallel->layout->grad_elements };
    return LK_OK;
}

static void aim(lk_parallel *parallel, ddp *self)
{
    for (uint32_t b = 0; b < self->reduction_count; b++) {
        reduction *r     = &self->reductions[b];
        r->op.leaves     = parallel->leaves;
        r->op.nodes      = r->nodes;
        r->op.node_count = self->plan.node_count;
        for (uint32_t i = 0; i < self->plan.node_count; i++) {
            lki_node node = self->plan.nodes[i];
            r->nodes[i]   = (lk_tree_node){ node.first, node.count,
                                            buffer_at(parallel, node.buffer) + r->first };
        }
        r->op.out = buffer_at(parallel, self->plan.nodes[0].buffer) + r->first;
    }
}

/* In lock step every virtual worker has a buffer of its own until all are done. */
static void plan_together(const lk_parallel *parallel, ddp *self)
{
    lki_virtual_plan *plan = &self->plan;
    lki_merging       merging;

    lki_counter_begin(&self->counter, parallel->leaves);
    for (uint32_t i = 0; i < plan->count; i++) {
        lki_counter_push_into(&self->counter, plan->first + i, i);
        while (lki_counter_merge(&self->counter, &merging.left, &merging.right))
            self->merges[self->merge_count++] = merging;
    }
    plan->buffers = plan->count;
    memcpy(plan->nodes, self->counter.stack, plan->node_count * sizeof plan->nodes[0]);
}

/* A reduction for each bucket, and one for running state. */
static lk_status prepare_reductions(lk_parallel *parallel, ddp *self)
{
    const lki_layout *layout = parallel->layout;
    LK_TRY(LKI_NEW(&self->reductions, layout->bucket_count + 1, "bucket reductions"));
    self->reduction_count = layout->bucket_count;
    for (uint32_t b = 0; b < layout->bucket_count; b++) {
        const lki_bucket *bucket = &layout->buckets[b];
        self->reductions[b]      = (reduction){ .op    = { .elements    = bucket->count,
                                                           .slices      = bucket->slices,
                                                           .slice_count = bucket->slice_count,
                                                           .shards      = layout->shards,
                                                           .rounded     = parallel->rounded },
                                                .first = bucket->first,
                                                .terms = bucket->terms };
    }
    if (parallel->state_width > 0)
        LK_TRY(reduce_states(parallel, self));
    aim(parallel, self);
    return LK_OK;
}

static lk_status ddp_relay(lk_parallel *parallel)
{
    ddp *self = ddp_of(parallel);
    lki_free(self->reductions);
    lki_free(self->state_slices);
    self->reductions   = NULL;
    self->state_slices = NULL;
    return prepare_reductions(parallel, self);
}

static lk_status ddp_attach(lk_parallel *parallel)
{
    ddp *self = NULL;

    LK_TRY(LKI_NEW(&self, 1, "ddp"));
    parallel->private = self;
    lki_virtual_plan_make(&self->plan, parallel->leaves, parallel->ranks, parallel->rank);
    if (self->plan.node_count > LK_TREE_NODES_MAX)
        return lk_fail(LK_EINVAL,
                       "%u virtual workers on %u workers: rank %u would hold %u partial "
                       "sums, %d is the limit; use fewer virtual workers",
                       parallel->leaves, parallel->ranks, parallel->rank, self->plan.node_count,
                       LK_TREE_NODES_MAX);
    LK_TRY(LKI_NEW(&self->merges, lki_max(self->plan.count, LKI_NODES_MAX), "merges"));
    if (parallel->lock_step)
        plan_together(parallel, self);
    LK_TRY(open_arena(parallel, self));
    return prepare_reductions(parallel, self);
}

static void ddp_detach(lk_parallel *parallel)
{
    ddp *self = parallel->private;
    if (self == NULL)
        return;
    for (uint32_t b = 0; b < self->reduction_count && self->reductions != NULL; b++)
        lk_request_free(self->reductions[b].request);
    lki_free(self->reductions);
    lki_free(self->state_slices);
    lki_free(self->merges);
    lki_free(self);
    parallel->private = NULL;
}

/* ---- A step ------------------------------------------------------------------------------ */

static void begin_step(lk_parallel *parallel, ddp *self)
{
    lki_counter_begin(&self->counter, parallel->leaves);
    self->started = self->completed = 0;
    for (uint32_t b = 0; b < self->reduction_count; b++)
        self->reductions[b].pending = self->reductions[b].terms;
}

static lki_gradients gradients_in(const lk_parallel *parallel, uint32_t buffer)
{
    float *whole = buffer_at(parallel, buffer);
    return (lki_gradients){ .gradients = whole, .states = whole + parallel->layout->grad_elements };
}

static lk_status ddp_begin_leaf(lk_parallel *parallel, uint32_t leaf, lki_gradients *out)
{
    ddp *self = ddp_of(parallel);
    if (leaf == self->plan.first)
        begin_step(parallel, self);
    *out = gradients_in(parallel, parallel->lock_step ? leaf - self->plan.first
                                                      : lki_counter_push(&self->counter, leaf));
    lki_clear(parallel, out->gradients, parallel->width);
    if (parallel->lock_step) {
        self->last_leaf = true;
        return LK_OK;
    }
    self->last_leaf   = leaf + 1 == self->plan.first + self->plan.count;
    self->merge_count = 0;
    if (self->last_leaf)
        while (lki_counter_merge(&self->counter, &self->merges[self->merge_count].left,
                                 &self->merges[self->merge_count].right))
            self->merge_count++;
    return LK_OK;
}

static lk_status complete_oldest(ddp *self, bool wait, bool *done)
{
    reduction *r = &self->reductions[self->completed];
    *done        = true;
    if (r->request == NULL) { /* an idle bucket */
        self->completed++;
        return LK_OK;
    }
    LK_TRY(wait ? lk_request_wait(r->request) : lk_request_test(r->request, done));
    if (*done) {
        lk_request_free(r->request);
        r->request = NULL;
        self->completed++;
    }
    return LK_OK;
}

/* Starts every reduction whose turn it is and whose terms are all there. */
static lk_status start_complete(lk_parallel *parallel, ddp *self)
{
    bool done;
    while (self->started < self->reduction_count && self->reductions[self->started].pending == 0) {
        reduction *r = &self->reductions[self->started];
        if (self->started < parallel->layout->bucket_count &&
            lki_is_idle(parallel, self->started)) {
            self->started++;
            continue;
        }
        for (uint32_t m = 0; m < self->merge_count; m++)
            lki_merge(parallel, r->op.rounded, buffer_at(parallel, self->merges[m].left) + r->first,
                      buffer_at(parallel, self->merges[m].right) + r->first, r->op.elements);
        if (self->started - self->completed == IN_FLIGHT_MAX)
            LK_TRY(complete_oldest(self, true, &done));
        LK_TRY(lk_tree_reduce_start(&r->request, parallel->comm, &r->op));
        self->started++;
    }
    return LK_OK;
}

static lk_status ddp_term_ready(lk_parallel *parallel, uint32_t term)
{
    ddp *self = ddp_of(parallel);
    if (!self->last_leaf)
        return LK_OK;
    const lki_layout *layout = parallel->layout;
    for (uint32_t b = layout->first_bucket[term]; b <= layout->last_bucket[term]; b++) {
        LK_ASSERT(self->reductions[b].pending > 0);
        self->reductions[b].pending--;
    }
    /* Running state comes last: its sums are complete only with the whole virtual worker. */
    uint32_t count        = self->reduction_count;
    self->reduction_count = layout->bucket_count;
    lk_status status      = start_complete(parallel, self);
    self->reduction_count = count;
    return status;
}

/* Running state is not rounded. */
static void merge_whole(const lk_parallel *parallel, uint32_t left, uint32_t right)
{
    size_t gradients = parallel->layout->grad_elements;
    lki_merge(parallel, parallel->rounded, buffer_at(parallel, left), buffer_at(parallel, right),
              gradients);
    if (parallel->width > gradients)
        lki_merge(parallel, LK_F32, buffer_at(parallel, left) + gradients,
                  buffer_at(parallel, right) + gradients, parallel->width - gradients);
}

static lk_status ddp_end_leaf(lk_parallel *parallel)
{
    ddp     *self = ddp_of(parallel);
    uint32_t left, right;
    if (self->last_leaf)
        return start_complete(parallel, self);
    while (lki_counter_merge(&self->counter, &left, &right))
        merge_whole(parallel, left, right);
    return LK_OK;
}

static lk_status ddp_progress(lk_parallel *parallel)
{
    ddp *self = ddp_of(parallel);
    bool done = true;
    while (done && self->completed < self->started)
        LK_TRY(complete_oldest(self, false, &done));
    return LK_OK;
}

static lk_status ddp_reduce(lk_parallel *parallel, lki_gradients *sums)
{
    ddp *self = ddp_of(parallel);
    bool done;
    LK_ASSERT(self->started == self->reduction_count);
    while (self->completed < self->started)
        LK_TRY(complete_oldest(self, true, &done));
    *sums = gradients_in(parallel, self->plan.nodes[0].buffer);
    return LK_OK;
}

static lki_passes ddp_passes(const lk_parallel *parallel, uint32_t host)
{
    return (lki_passes){ lki_count_branches(parallel, 0, parallel->leaves, host), 1 };
}

const lki_strategy_ops lki_strategy_ddp = {
    .name       = "ddp",
    .survives   = true,
    .bytes      = ddp_bytes,
    .attach     = ddp_attach,
    .detach     = ddp_detach,
    .begin_leaf = ddp_begin_leaf,
    .term_ready = ddp_term_ready,
    .end_leaf   = ddp_end_leaf,
    .progress   = ddp_progress,
    .reduce     = ddp_reduce,
    .relay      = ddp_relay,
    .passes     = ddp_passes,
};

/* ZeRO-1 (Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter
 * Models, 5.1): of each sum a host gets only what it updates. */
const lki_strategy_ops lki_strategy_zero1 = {
    .name       = "zero1",
    .sharded    = true,
    .survives   = true,
    .bytes      = ddp_bytes,
    .attach     = ddp_attach,
    .detach     = ddp_detach,
    .begin_leaf = ddp_begin_leaf,
    .term_ready = ddp_term_ready,
    .end_leaf   = ddp_end_leaf,
    .progress   = ddp_progress,
    .reduce     = ddp_reduce,
    .relay      = ddp_relay,
    .passes     = ddp_passes,
};
