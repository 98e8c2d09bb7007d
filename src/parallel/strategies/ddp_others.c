/* ddp_others.c -- virtual workers that another rank computes, or that are dropped.
 *
 * See features/speculation.c and features/backups.c.
 *
 * A rank computes a virtual worker of another rank in one of its own free buffers.  It also uses a
 * free buffer for a virtual worker of its own that another rank may compute as well.  All buffers
 * of a host are in one arena, so the result stays in that buffer.  The rank to which the virtual
 * worker belongs uses the buffer as a tree node of its own, and merges and reduces this node as
 * always.  So each tree node belongs to the same rank as in any other step, and is summed once.
 */
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "parallel/strategies/ddp.h"

/* Returns true if a buffer is free.  The nodes of the plan occupy buffers once all reductions have
 * started; before that the nodes of the counter do. */
static bool is_free(const lki_ddp *self, uint32_t buffer)
{
    bool            handed = self->started == self->reduction_count;
    const lki_node *nodes  = handed ? self->plan.nodes : self->counter.stack;
    uint32_t        count  = handed ? self->plan.node_count : self->counter.depth;
    bool            taken  = (self->lent >> buffer & 1) != 0;
    for (uint32_t i = 0; i < count; i++)
        taken |= nodes[i].buffer == buffer;
    return !taken;
}

static bool begin_other(lk_parallel *parallel, lki_gradients *out, uint32_t *place)
{
    lki_ddp *self   = lki_ddp_of(parallel);
    uint32_t buffer = 0, end = (uint32_t)lki_min(self->plan.buffers + parallel->effects.spares, 64);

    if (!self->begun)
        lki_ddp_begin_step(parallel, self);
    while (buffer < end && !is_free(self, buffer))
        buffer++;
    bool handed = self->started == self->reduction_count;
    if (buffer == end || self->lost || (handed && self->astray))
        return false;
    self->lent |= UINT64_C(1) << buffer;
    lki_ddp_change(parallel, self, buffer);
    *place = lki_ddp_place(parallel, buffer);
    *out   = lki_ddp_gradients(parallel, lki_ddp_data(parallel, *place));
    lki_clear(parallel, out->states, parallel->width - parallel->layout->grad_elements);
    return true;
}

static void end_other(lk_parallel *parallel, uint32_t leaf, uint32_t place, bool taken)
{
    lki_ddp *self   = lki_ddp_of(parallel);
    uint32_t buffer = place - self->first;
    if (taken)
        lki_ddp_changed(parallel, self, (lki_node){ leaf, 1, buffer });
    else
        self->lent &= ~(UINT64_C(1) << buffer);
}

void lki_ddp_hold_counted(lk_parallel *parallel, lki_ddp *self)
{
    lki_merge_counter counter = self->counter;

    lki_nodes_sort(counter.stack, counter.depth);
    for (uint32_t i = 0; i < counter.depth; i++)
        counter.stack[i].buffer = lki_ddp_place(parallel, counter.stack[i].buffer);
    lki_ddp_hold(parallel, self, counter.stack, counter.depth);
}

/* Starts all reductions with the nodes of the counter.  This rank computes nothing more in this
 * step. */
static lk_status hand_in(lk_parallel *parallel, lki_ddp *self)
{
    self->merge_count = 0;
    lki_ddp_hold_counted(parallel, self);
    return lki_ddp_start_all(parallel, self);
}

/* Copies those buckets of the last virtual worker that are not merged yet.  Merged buckets are
 * complete and have the same bits. */
static lk_status replace_last(lk_parallel *parallel, lki_ddp *self, uint32_t place)
{
    for (uint32_t b = self->merged; b < self->reduction_count; b++) {
        const lki_reduction *r = &self->reductions[b];
        memcpy(lki_ddp_buffer(parallel, self->last) + r->first,
               lki_ddp_data(parallel, place) + r->first, r->op.elements * sizeof(float));
    }
    return lki_ddp_end_last(parallel, self);
}

static lk_status use_other(lk_parallel *parallel, uint32_t leaf, uint32_t place, bool begun)
{
    lki_ddp           *self    = lki_ddp_of(parallel);
    lki_merge_counter *counter = &self->counter;

    if (!self->begun)
        lki_ddp_begin_step(parallel, self);
    if (self->lost)
        return LK_OK;
    self->astray = true;
    if (begun && self->last_leaf)
        return replace_last(parallel, self, place);
    if (!begun)
        lki_counter_push_into(counter, leaf, 0);
    counter->stack[counter->depth - 1].buffer = LKI_ELSEWHERE | place;
    lki_ddp_merge(parallel, self);
    if (parallel->turn.leaf + 1 < lki_turns(parallel))
        return LK_OK;
    return lki_ddp_remember(parallel, self, hand_in(parallel, self));
}

/* Waits up to `seconds` for this rank's own reductions, which must have been started. */
static lk_status wait_for(lki_ddp *self, double seconds, bool *over)
{
    double end = lki_seconds() + seconds;

    while (self->completed < self->started && !self->lost) {
        lki_reduction *r    = &self->reductions[self->completed];
        double         left = 1e3 * (end - lki_seconds());
        lk_status status = r->request == NULL
                               ? LK_OK
                               : lk_request_wait_for(r->request, left > 1 ? (uint32_t)left : 1);
        *over = false;
        if (status != LK_OK)
            return status == LK_ETIMEOUT ? LK_OK : status;
        lk_request_free(r->request);
        r->request = NULL;
        self->completed++;
    }
    *over = true;
    return LK_OK;
}

static lk_status watch(lk_parallel *parallel, double seconds, bool *over)
{
    lki_ddp *self = lki_ddp_of(parallel);
    return lki_ddp_remember(parallel, self, wait_for(self, seconds, over));
}

const lki_exchange lki_ddp_exchange = {
    .begin = begin_other,
    .end   = end_other,
    .use   = use_other,
    .watch = watch,
};

/* ---- Dropping a rank's gradients --------------------------------------------------------- */

/* Reduces zeros in place of this rank's gradients: every node reads one zeroed buffer.  A sum may
 * be written to the first node's buffer, so the zeros are in the second node's buffer if there is
 * one. */
lk_status lki_ddp_leave_out(lk_parallel *parallel)
{
    lki_ddp *self = lki_ddp_of(parallel);

    if (!self->begun)
        lki_ddp_begin_step(parallel, self);
    self->astray      = true;
    self->merge_count = 0;
    float *zeros = lki_ddp_buffer(parallel, self->plan.nodes[self->plan.node_count > 1].buffer);
    lki_clear(parallel, zeros, parallel->width);
    for (uint32_t b = 0; b < self->reduction_count; b++) {
        lki_reduction *r = &self->reductions[b];
        for (uint32_t i = 0; i < r->op.node_count; i++)
            r->nodes[i].data = zeros + r->first;
    }
    return lki_ddp_start_all(parallel, self);
}
