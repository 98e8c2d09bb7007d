/* parallel/strategies/ddp.h -- ddp's and zero1's own: ddp.c, what memory they take (ddp_room.c),
 * and virtual workers that others make (ddp_others.c).
 *
 * Threads: one at a time per lk_parallel, as everything of a strategy.
 */
#ifndef LKI_PARALLEL_STRATEGIES_DDP_H
#define LKI_PARALLEL_STRATEGIES_DDP_H

#include "parallel/strategy.h"

/* One bucket's reduction, prepared once. */
typedef struct {
    lk_tree_op   op;
    lk_tree_node nodes[LK_TREE_NODES_MAX];
    lk_request  *request;
    size_t       first;   /* in the gradient space */
    uint32_t     pending; /* terms that are not ready yet */
    uint32_t     terms;
} lki_reduction;

typedef struct {
    float            *buffers; /* of all ranks of the host: gradient spaces */
    uint32_t          first;   /* mine: plan.buffers of them, and spares, from here on */
    float            *sums;    /* with a ledger: room for those of all; else NULL */
    float            *home;    /* where this step's go: a gradient space */
    lki_tag          *tags;    /* of buffers; NULL without a ledger */
    size_t            room;    /* buffers that each host has */
    lk_error          lost;    /* a peer was, in this step; .status is LK_OK else */
    lki_virtual_plan  plan;
    lki_merge_counter counter;
    lki_reduction    *reductions;
    uint32_t          reduction_count; /* the buckets, and one for running state if there is any */
    uint32_t          merged, started, completed;
    lk_slice         *state_slices;
    bool              begun; /* the step under way, by its first virtual worker */
    bool              last_leaf;
    uint32_t          merge_count;
    lki_merging      *merges; /* after the last virtual worker, or, in lock step, after all */
    uint32_t          last;   /* the buffer of the last virtual worker */
    uint64_t          lent;   /* of my buffers, a bit each: what others had to make is there */
    bool              astray; /* in this step some of my virtual workers lie elsewhere */
} lki_ddp;

/* In a merge counter: a place among all buffers, not one of its own. */
#define LKI_ELSEWHERE (UINT32_C(1) << 31)

static inline lki_ddp *lki_ddp_of(const lk_parallel *parallel)
{
    LK_ASSERT(parallel->ops == &lki_strategy_ddp || parallel->ops == &lki_strategy_zero1);
    return parallel->private;
}

/* Which of all buffers is the merge counter's `buffer`. */
static inline uint32_t lki_ddp_place(const lk_parallel *parallel, uint32_t buffer)
{
    if (buffer & LKI_ELSEWHERE)
        return buffer & ~LKI_ELSEWHERE;
    return parallel->remains.there ? parallel->remains.places[buffer]
                                   : lki_ddp_of(parallel)->first + buffer;
}

static inline float *lki_ddp_data(const lk_parallel *parallel, uint32_t place)
{
    return lki_ddp_of(parallel)->buffers + parallel->width * place;
}

static inline float *lki_ddp_buffer(const lk_parallel *parallel, uint32_t buffer)
{
    return lki_ddp_data(parallel, lki_ddp_place(parallel, buffer));
}

/* ddp_room.c: what the buffers of a rank are; how many the ranks before `end` have on a host, and
 * all of them; the bytes; and the arena. */
void   lki_ddp_plan(const lk_parallel *parallel, const lki_dealing *dealing, uint32_t rank,
                    lki_virtual_plan *plan);
size_t lki_ddp_buffers(const lk_parallel *parallel, const lki_dealing *dealing, uint32_t host,
                       uint32_t end);
size_t lki_ddp_all_buffers(const lk_parallel *parallel, uint32_t host);
size_t lki_ddp_bytes(const lk_parallel *parallel, uint32_t host);
bool   lki_ddp_fits(const lk_parallel *parallel, const lki_dealing *dealing);
LK_NODISCARD lk_status lki_ddp_arena(lk_parallel *parallel, lki_ddp *self);

/* ddp.c: nothing of the step is there; all nodes of the merge counter that can merge do; and every
 * reduction whose turn it is and whose terms are all there starts. */
void                   lki_ddp_begin_step(lk_parallel *parallel, lki_ddp *self);
void                   lki_ddp_merge(lk_parallel *parallel, lki_ddp *self);
LK_NODISCARD lk_status lki_ddp_start(lk_parallel *parallel, lki_ddp *self);
/* The last virtual worker is there, and all are merged; and all that is left starts. */
LK_NODISCARD lk_status lki_ddp_end_last(lk_parallel *parallel, lki_ddp *self);
/* What every reduction has of this rank: nodes in places, ascending; and those of its counter. */
void                   lki_ddp_hold(lk_parallel *parallel, lki_ddp *self, const lki_node *nodes,
                                    uint32_t count);
void                   lki_ddp_hold_counted(lk_parallel *parallel, lki_ddp *self);
/* All start, as everything is there. */
LK_NODISCARD lk_status lki_ddp_start_all(lk_parallel *parallel, lki_ddp *self);
/* With a ledger the loss of a peer is told when this rank's virtual workers are all made. */
LK_NODISCARD lk_status lki_ddp_remember(const lk_parallel *parallel, lki_ddp *self,
                                        lk_status status);

/* ddp_others.c: see lki_strategy_ops. */
LK_NODISCARD lk_status lki_ddp_leave_out(lk_parallel *parallel);
bool                   lki_ddp_begin_other(lk_parallel *parallel, lki_gradients *out,
                                           uint32_t *place);
void                   lki_ddp_end_other(lk_parallel *parallel, uint32_t leaf, uint32_t place,
                                         bool taken);
LK_NODISCARD lk_status lki_ddp_elsewhere(lk_parallel *parallel, uint32_t leaf, uint32_t place,
                                         bool begun);
LK_NODISCARD lk_status lki_ddp_watch(lk_parallel *parallel, double seconds, bool *over);

static inline lki_gradients lki_ddp_gradients(const lk_parallel *parallel, float *whole)
{
    return (lki_gradients){ .gradients = whole, .states = whole + parallel->layout->grad_elements };
}

/* A tag says what a buffer holds as long as nobody changes it; without a ledger there are none. */
static inline void lki_ddp_change(const lk_parallel *parallel, const lki_ddp *self, uint32_t buffer)
{
    if (self->tags != NULL)
        lki_tag_take_off(&self->tags[lki_ddp_place(parallel, buffer)]);
}

static inline void lki_ddp_changed(const lk_parallel *parallel, const lki_ddp *self, lki_node node)
{
    if (self->tags != NULL)
        lki_tag_put_on(&self->tags[lki_ddp_place(parallel, node.buffer)], parallel->step,
                       node.first, node.count);
}

#endif
