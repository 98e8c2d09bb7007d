/* ddp.c -- distributed data parallelism, with whole gradients and one copy of the model per host.
 *
 * The backward pass writes every gradient into its bucket in the arena, where it will be reduced.
 * A rank runs its virtual workers in order and merges finished neighbours (virtual.h).  During the
 * backward pass of its last virtual worker it merges each bucket as soon as it is complete, and
 * passes it to lk_tree_reduce_start(), always in the order of the buckets.  With each further term,
 * and between blocks, it reduces its slices of the buckets that have arrived from all ranks.  There
 * is no progress thread, because no core is free if there are as many workers as cores.
 *
 * With a ledger the results of a rank outlive it (remains.h).  Neighbours merge into the buffer of
 * the newer one, so a rank that dies in a merge does not destroy older results.  Sums overwrite no
 * buffer that is still needed.  A rank that detects a lost peer still finishes its virtual workers.
 * The interrupted step is then completed from all remaining results, in any buffers.
 *
 * Memory: peak buffers (lki_virtual_plan) x gradient bytes for each rank.  If shares move and turns
 *         are joined: see lki_ddp_all_buffers().  With a ledger: the maximum over all smaller
 *         numbers of ranks, and one more buffer for the sums.
 * Order:  the canonical tree; see lk_tree_reduce_start().
 */
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "comm/worker.h"
#include "device/reduce.h"
#include "parallel/strategies/ddp.h"
#include "tensor/exec.h"

enum { IN_FLIGHT_MAX = 32 }; /* maximum number of requests that a rank has open */

/* ---- Attaching --------------------------------------------------------------------------- */

static lk_status reduce_states(lk_parallel *parallel, lki_ddp *self)
{
    size_t count;
    LK_TRY(lki_state_slices(parallel, &self->state_slices, &count));
    self->reductions[self->reduction_count++] =
        (lki_reduction){ .op    = { .elements    = parallel->micro_count * parallel->state_width,
                                .slices      = self->state_slices,
                                .slice_count = count },
                     .first = parallel->layout->grad_elements };
    return LK_OK;
}

/* Lists the nodes that this rank adds to the sums, with buffer numbers of the host. */
static uint32_t list_nodes(const lk_parallel *parallel, const lki_ddp *self,
                           lki_node nodes[LK_TREE_NODES_MAX])
{
    const lki_remains *remains = &parallel->remains;
    lki_merge_counter  counter = { .depth = 0 };
    uint32_t           count   = 0, held = 0;

    if (remains->there) {
        uint32_t left, right;
        bool good = lki_counter_walk(&counter, parallel->leaves, remains->leaves, remains->count);
        LK_ASSERT(good);
        while (lki_counter_merge(&counter, &left, &right))
            continue;
    } else {
        counter.depth = self->plan.node_count;
        memcpy(counter.stack, self->plan.nodes, sizeof self->plan.nodes);
    }
    for (uint32_t i = 0; i < counter.depth; i++) {
        while (held < remains->held_count && remains->held[held].first < counter.stack[i].first)
            nodes[count++] = remains->held[held++];
        nodes[count]          = counter.stack[i];
        nodes[count++].buffer = lki_ddp_place(parallel, counter.stack[i].buffer);
    }
    while (held < remains->held_count)
        nodes[count++] = remains->held[held++];
    return count;
}

void lki_ddp_hold(lk_parallel *parallel, lki_ddp *self, const lki_node *nodes, uint32_t count)
{
    LK_ASSERT(count <= LK_TREE_NODES_MAX);
    for (uint32_t b = 0; b < self->reduction_count; b++) {
        lki_reduction *r = &self->reductions[b];
        r->op.nodes      = r->nodes;
        r->op.node_count = count;
        for (uint32_t i = 0; i < count; i++)
            r->nodes[i] = (lk_tree_node){ nodes[i].first, nodes[i].count,
                                          lki_ddp_data(parallel, nodes[i].buffer) + r->first };
    }
}

static void send_sums(lki_ddp *self, float *home)
{
    self->home = home;
    for (uint32_t b = 0; b < self->reduction_count; b++)
        self->reductions[b].op.out = home + self->reductions[b].first;
}

static void aim(lk_parallel *parallel, lki_ddp *self)
{
    lki_node nodes[LK_TREE_NODES_MAX] = { 0 };

    if (self->cut > 0) { /* groups are summed one by one: ddp_groups.c */
        uint32_t place = lki_ddp_place(parallel, self->plan.nodes[0].buffer);
        self->home     = self->sums != NULL ? self->sums : lki_ddp_data(parallel, place);
        return;
    }
    uint32_t count = list_nodes(parallel, self, nodes);
    lki_ddp_hold(parallel, self, nodes, count);
    send_sums(self, self->sums != NULL ? self->sums : lki_ddp_data(parallel, nodes[0].buffer));
    for (uint32_t b = 0; b < self->reduction_count; b++)
        self->reductions[b].op.leaves = parallel->leaves;
}

/* Plans for lock step, in which every virtual worker needs its own buffer until all are done. */
static void plan_together(const lk_parallel *parallel, lki_ddp *self)
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

/* Prepares a reduction for each bucket, and another for running state. */
static lk_status prepare_reductions(lk_parallel *parallel, lki_ddp *self)
{
    const lki_layout *layout = parallel->layout;
    LK_TRY(LKI_NEW(&self->reductions, layout->bucket_count + 1, "bucket reductions"));
    self->reduction_count = layout->bucket_count;
    for (uint32_t b = 0; b < layout->bucket_count; b++) {
        const lki_bucket *bucket = &layout->buckets[b];
        const uint8_t    *wanted = lki_shard_map_wanted(parallel);
        lk_tree_algorithm by     = parallel->world.algorithm;
        self->reductions[b]      = (lki_reduction){ .op    = { .elements    = bucket->count,
                                                               .slices      = bucket->slices,
                                                               .slice_count = bucket->slice_count,
                                                               .shards      = layout->shards,
                                                               .wanted      = wanted,
                                                               .rounded     = parallel->rounded,
                                                               .algorithm   = by },
                                                    .first = bucket->first,
                                                    .terms = bucket->terms };
    }
    if (parallel->state_width > 0)
        LK_TRY(reduce_states(parallel, self));
    aim(parallel, self);
    return LK_OK;
}

/* Switches to the new order of terms.  Buffers are zeroed, because the padding between terms must
 * be zero and has moved. */
static lk_status ddp_relay(lk_parallel *parallel)
{
    lki_ddp *self    = lki_ddp_of(parallel);
    uint32_t buffers = lki_share_buffers(parallel, parallel->share, parallel->joint);
    for (uint32_t i = 0; i < buffers; i++)
        lki_clear(parallel, lki_ddp_buffer(parallel, i), parallel->width);
    lki_free(self->reductions);
    lki_free(self->state_slices);
    self->reductions   = NULL;
    self->state_slices = NULL;
    return prepare_reductions(parallel, self);
}

/* Plans the buffers of a step like the current one. */
static void plan_step(const lk_parallel *parallel, lki_ddp *self)
{
    self->cut = lki_cut(parallel);
    lki_ddp_plan(parallel, &parallel->dealing, parallel->rank, &self->plan);
}

static lk_status ddp_redeal(lk_parallel *parallel)
{
    uint32_t here = parallel->world.host_of[parallel->rank];
    lki_ddp *self = lki_ddp_of(parallel);
    self->first   = (uint32_t)lki_ddp_buffers(parallel, &parallel->dealing, here, parallel->rank);
    plan_step(parallel, self);
    aim(parallel, self);
    return LK_OK;
}

static lk_status ddp_attach(lk_parallel *parallel)
{
    lki_ddp *self = NULL;

    LK_TRY(LKI_NEW(&self, 1, "ddp"));
    parallel->private = self;
    plan_step(parallel, self);
    if (self->plan.node_count > LK_TREE_NODES_MAX && self->cut == 0)
        return lk_fail(LK_EINVAL,
                       "%u virtual workers on %u workers: rank %u would hold %u partial "
                       "sums, %d is the limit; use fewer virtual workers",
                       parallel->leaves, parallel->ranks, parallel->rank, self->plan.node_count,
                       LK_TREE_NODES_MAX);
    LK_TRY(LKI_NEW(&self->merges, lki_max(self->plan.count, LKI_NODES_MAX), "merges"));
    if (parallel->lock_step)
        plan_together(parallel, self);
    LK_TRY(lki_ddp_arena(parallel, self));
    return prepare_reductions(parallel, self);
}

static void ddp_detach(lk_parallel *parallel)
{
    lki_ddp *self = parallel->private;
    if (self == NULL)
        return;
    for (uint32_t b = 0; b < self->reduction_count && self->reductions != NULL; b++)
        lk_request_free(self->reductions[b].request);
    lki_free(self->reductions);
    lki_free(self->state_slices);
    lki_free(self->group_slices);
    lki_free(self->group_hosts);
    lki_free(self->merges);
    lki_free(self);
    parallel->private = NULL;
}

/* ---- A step ------------------------------------------------------------------------------ */

void lki_ddp_begin_step(lk_parallel *parallel, lki_ddp *self)
{
    const bool changed = self->cut != lki_cut(parallel);
    if (changed)
        plan_step(parallel, self);
    if (self->astray || changed)
        aim(parallel, self);
    else if (self->sums != NULL)
        send_sums(self, self->sums);
    self->begun  = true;
    self->astray = self->lost = false;
    self->lent   = 0;
    lki_counter_begin(&self->counter, parallel->leaves);
    self->counter.cut = self->cut;
    self->merged = self->started = self->completed = 0;
    for (uint32_t b = 0; b < self->reduction_count; b++)
        self->reductions[b].pending = self->reductions[b].terms;
}

static lk_status ddp_begin_leaf(lk_parallel *parallel, uint32_t n, lki_gradients *out)
{
    lki_ddp *self = lki_ddp_of(parallel);
    if (!self->begun)
        lki_ddp_begin_step(parallel, self);
    uint32_t count  = parallel->lock_step ? 1 : parallel->turn.together;
    uint32_t buffer = parallel->lock_step
                          ? n
                          : lki_counter_push_node(&self->counter, lki_leaf_of_turn(parallel, n),
                                                  count);
    lki_ddp_change(parallel, self, buffer);
    *out = lki_ddp_gradients(parallel, lki_ddp_buffer(parallel, buffer));
    lki_clear(parallel, out->states, parallel->width - parallel->layout->grad_elements);
    if (parallel->lock_step) {
        self->last_leaf = true;
        return LK_OK;
    }
    self->last_leaf   = n + count == lki_turns(parallel);
    self->last        = buffer;
    self->merge_count = 0;
    if (self->last_leaf)
        while (lki_counter_merge(&self->counter, &self->merges[self->merge_count].left,
                                 &self->merges[self->merge_count].right))
            self->merge_count++;
    if (self->last_leaf && self->astray)
        lki_ddp_hold_counted(parallel, self);
    return LK_OK;
}

static lk_status complete_oldest(lki_ddp *self, bool wait, bool *done)
{
    lki_reduction *r = &self->reductions[self->completed];
    *done            = true;
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

/* Completes the reductions to which all ranks have contributed, in order. */
static lk_status complete_arrived(lki_ddp *self)
{
    lk_status status = LK_OK;
    bool      done   = true;
    while (done && status == LK_OK && self->completed < self->started)
        status = complete_oldest(self, false, &done);
    return status;
}

static lk_status wait_for_oldest(lk_parallel *parallel, lki_ddp *self)
{
    double    begun = lki_seconds();
    bool      done;
    lk_status status = complete_oldest(self, true, &done);
    parallel->turn.waited += lki_seconds() - begun;
    return status;
}

static bool is_idle(const lk_parallel *parallel, uint32_t reduction)
{
    return reduction < parallel->layout->bucket_count && lki_is_idle(parallel, reduction);
}

/* Does the remaining merges of the next bucket, even if its reduction cannot start yet. */
static void merge_next(const lk_parallel *parallel, lki_ddp *self)
{
    const lki_reduction *r = &self->reductions[self->merged];
    for (uint32_t m = 0; m < self->merge_count && !is_idle(parallel, self->merged); m++)
        lki_merge(parallel, r->op.rounded,
                  lki_ddp_buffer(parallel, self->merges[m].right) + r->first,
                  lki_ddp_buffer(parallel, self->merges[m].left) + r->first, r->op.elements);
    self->merged++;
}

lk_status lki_ddp_start(lk_parallel *parallel, lki_ddp *self)
{
    while (self->started < self->reduction_count && self->reductions[self->started].pending == 0) {
        lki_reduction *r = &self->reductions[self->started];
        if (self->merged == self->started)
            merge_next(parallel, self);
        if (is_idle(parallel, self->started)) {
            self->started++;
            continue;
        }
        if (self->started - self->completed == IN_FLIGHT_MAX)
            LK_TRY(wait_for_oldest(parallel, self));
        LK_TRY(lk_tree_reduce_start(&r->request, parallel->comm, &r->op));
        self->started++;
    }
    return LK_OK;
}

lk_status lki_ddp_start_all(lk_parallel *parallel, lki_ddp *self)
{
    for (uint32_t b = 0; b < self->reduction_count; b++)
        self->reductions[b].pending = 0;
    return lki_ddp_start(parallel, self);
}

lk_status lki_ddp_remember(const lk_parallel *parallel, lki_ddp *self, lk_status status)
{
    if (!parallel->ledger.kept || (status != LK_EPEER && status != LK_ETIMEOUT))
        return status;
    self->lost = true;
    return LK_OK;
}

/* Returns true if sums overwrite the buffer that was the first to be merged with the last virtual
 * worker (see remains.h).  Returns false if other ranks' results may be in this rank's buffers. */
static bool replaces(const lk_parallel *parallel, const lki_ddp *self)
{
    return self->tags != NULL && parallel->world.hosts == 1 && self->merge_count > 0 &&
           !parallel->remains.there && !parallel->effects.lends &&
           self->cut == 0;
}

static lk_status ddp_term_ready(lk_parallel *parallel, uint32_t term)
{
    lki_ddp *self = lki_ddp_of(parallel);
    if (!self->last_leaf || self->lost || parallel->effects.holds_back)
        return LK_OK;
    const lki_layout *layout = parallel->layout;
    for (uint32_t b = layout->first_bucket[term]; b <= layout->last_bucket[term]; b++) {
        LK_ASSERT(self->reductions[b].pending > 0);
        self->reductions[b].pending--;
    }
    if (replaces(parallel, self)) {
        while (self->merged < layout->bucket_count && self->reductions[self->merged].pending == 0)
            merge_next(parallel, self);
        return LK_OK;
    }
    /* Running state comes last, because its sums are complete only after the whole virtual
     * worker. */
    uint32_t count        = self->reduction_count;
    self->reduction_count = layout->bucket_count;
    lk_status status      = lki_ddp_start(parallel, self);
    self->reduction_count = count;
    if (status == LK_OK)
        status = complete_arrived(self);
    return lki_ddp_remember(parallel, self, status);
}

void lki_ddp_merge(lk_parallel *parallel, lki_ddp *self)
{
    uint32_t left, right;
    while (lki_counter_merge(&self->counter, &left, &right)) {
        lki_ddp_change(parallel, self, right);
        lki_merge_spaces(parallel, lki_ddp_buffer(parallel, right), lki_ddp_buffer(parallel, left));
        lki_ddp_changed(parallel, self, self->counter.stack[self->counter.depth - 1]);
    }
}

lk_status lki_ddp_end_last(lk_parallel *parallel, lki_ddp *self)
{
    while (self->merged < self->reduction_count)
        merge_next(parallel, self);
    if (!parallel->lock_step)
        lki_ddp_changed(parallel, self, self->counter.stack[self->counter.depth - 1]);
    if (replaces(parallel, self)) {
        lki_ddp_change(parallel, self, self->merges[0].left);
        send_sums(self, lki_ddp_buffer(parallel, self->merges[0].left));
    }
    if (self->lost || self->cut > 0)
        return LK_OK;
    return lki_ddp_remember(parallel, self, lki_ddp_start_all(parallel, self));
}

static lk_status ddp_end_leaf(lk_parallel *parallel)
{
    lki_ddp *self = lki_ddp_of(parallel);
    if (self->last_leaf)
        return lki_ddp_end_last(parallel, self);
    lki_ddp_changed(parallel, self, self->counter.stack[self->counter.depth - 1]);
    lki_ddp_merge(parallel, self);
    return LK_OK;
}

static lk_status ddp_progress(lk_parallel *parallel)
{
    lki_ddp *self = lki_ddp_of(parallel);
    return self->lost ? LK_OK : lki_ddp_remember(parallel, self, complete_arrived(self));
}

/* Starts the reductions of a rank that has no more virtual workers to compute in this step. */
static lk_status start_without_leaves(lk_parallel *parallel, lki_ddp *self)
{
    lki_ddp_begin_step(parallel, self);
    self->merge_count = 0;
    return lki_ddp_start_all(parallel, self);
}

static lk_status ddp_reduce(lk_parallel *parallel, lki_gradients *sums)
{
    lki_ddp *self = lki_ddp_of(parallel);
    bool done;
    if (self->cut > 0) {
        self->begun = false;
        *sums       = lki_ddp_gradients(parallel, self->home);
        return lki_ddp_sum_groups(parallel);
    }
    if (lki_turns(parallel) == 0)
        LK_TRY(start_without_leaves(parallel, self));
    if (self->lost)
        return lki_group_failure(parallel->comm);
    LK_ASSERT(self->started == self->reduction_count);
    while (self->completed < self->started)
        LK_TRY(complete_oldest(self, true, &done));
    self->begun = false;
    *sums       = lki_ddp_gradients(parallel, self->home);
    if (!parallel->remains.there)
        return LK_OK;
    lki_remains_deinit(&parallel->remains);
    aim(parallel, self);
    return LK_OK;
}

/* ---- After a failure --------------------------------------------------------------------- */

static lk_status ddp_salvage(lk_parallel *parallel, uint64_t complete)
{
    lki_ddp *self  = lki_ddp_of(parallel);
    uint32_t host  = parallel->world.host_of[parallel->rank];
    uint32_t count = (uint32_t)lki_ddp_all_buffers(parallel, host);
    LK_TRY(lki_remains_take(parallel, self->buffers, self->tags, count, complete));
    aim(parallel, self);
    return LK_OK;
}

static lki_passes ddp_passes(const lk_parallel *parallel, uint32_t host)
{
    return (lki_passes){ lki_count_branches(parallel, 0, parallel->leaves, host), 1 };
}

#define ALIKE                                                                                    \
    .survives = true, .raw = true, .bytes = lki_ddp_bytes, .attach = ddp_attach,                 \
    .detach = ddp_detach, .begin_leaf = ddp_begin_leaf, .term_ready = ddp_term_ready,            \
    .end_leaf = ddp_end_leaf, .progress = ddp_progress, .reduce = ddp_reduce,                    \
    .exchange = &lki_ddp_exchange, .leave_out = lki_ddp_leave_out,                               \
    .relay = ddp_relay, .fits = lki_ddp_fits, .redeal = ddp_redeal, .salvage = ddp_salvage,      \
    .passes = ddp_passes

const lki_strategy_ops lki_strategy_ddp = { .name = "ddp", ALIKE };

/* ZeRO-1 (Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models,
 * 5.1): a host receives only the sums that it updates. */
const lki_strategy_ops lki_strategy_zero1 = { .name = "zero1", .sharded = true, ALIKE };
