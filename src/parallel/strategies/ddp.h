/* parallel/strategies/ddp.h -- declarations shared by the files of ddp and zero1.
 *
 * The files are ddp.c, ddp_room.c (memory) and ddp_others.c (virtual workers that other ranks
 * compute).  Threads: one at a time per lk_parallel, as in every strategy.
 */
#ifndef LKI_PARALLEL_STRATEGIES_DDP_H
#define LKI_PARALLEL_STRATEGIES_DDP_H

#include "parallel/state.h"

/* The reduction of one bucket.  It is prepared once and used in every step. */
typedef struct {
    lk_tree_op   op;
    lk_tree_node nodes[LK_TREE_NODES_MAX];
    lk_request  *request;
    size_t       first;   /* offset in the gradient space */
    uint32_t     pending; /* number of terms that are not ready yet */
    uint32_t     terms;
} lki_reduction;

typedef struct {
    float            *buffers; /* gradient spaces of all ranks of the host */
    /* number of the first of this rank's plan.buffers + spares buffers */
    uint32_t          first;
    float            *sums;    /* with a ledger: memory for the sums of all ranks; else NULL */
    float            *home;    /* the gradient space that receives this step's sums */
    lki_tag          *tags;    /* [buffers]; NULL without a ledger */
    size_t            room;    /* number of buffers on each host */
    bool              lost; /* with a ledger: the group has failed in this step */
    uint32_t          cut;  /* lki_cut() of the step that `plan` is for */
    lki_virtual_plan  plan;
    lki_merge_counter counter;
    lki_reduction    *reductions;
    /* number of buckets, plus 1 if there is running state */
    uint32_t          reduction_count;
    uint32_t          merged, started, completed;
    lk_slice         *state_slices;
    lk_slice         *group_slices; /* [widest]; this and the next are made for the first group
                                     * that is summed (ddp_groups.c) */
    uint8_t          *group_hosts;  /* [2][hosts] */
    bool              begun; /* the first virtual worker of the current step has begun */
    bool              last_leaf;
    uint32_t          merge_count;
    /* the merges that follow the last virtual worker or, in lock step, all virtual workers */
    lki_merging      *merges;
    uint32_t          last;   /* the buffer of the last virtual worker */
    /* one bit for each of this rank's buffers, set if the buffer holds another rank's virtual
     * worker */
    uint64_t          lent;
    /* some of this rank's virtual workers of this step are in other ranks' buffers */
    bool              astray;
} lki_ddp;

/* A flag in the buffer numbers of a merge counter: the number is that of a buffer of the host, not
 * of this rank. */
#define LKI_ELSEWHERE (UINT32_C(1) << 31)

static inline lki_ddp *lki_ddp_of(const lk_parallel *parallel)
{
    LK_ASSERT(parallel->ops == &lki_strategy_ddp || parallel->ops == &lki_strategy_zero1);
    return parallel->private;
}

/* Returns the number of the merge counter's `buffer` among all buffers of the host. */
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

/* Plans the buffers of a rank.  Defined in ddp_room.c, like the next five functions. */
void   lki_ddp_plan(const lk_parallel *parallel, const lki_dealing *dealing, uint32_t rank,
                    lki_virtual_plan *plan);

/* Returns the number of buffers of the ranks before `end` on a host. */
size_t lki_ddp_buffers(const lk_parallel *parallel, const lki_dealing *dealing, uint32_t host,
                       uint32_t end);

/* Returns the number of all buffers on a host. */
size_t lki_ddp_all_buffers(const lk_parallel *parallel, uint32_t host);

/* Returns the bytes of a host's arena; 0 if they overflow. */
size_t lki_ddp_bytes(const lk_parallel *parallel, uint32_t host);

/* Returns true if the arena has enough buffers for `dealing`. */
bool   lki_ddp_fits(const lk_parallel *parallel, const lki_dealing *dealing);

/* Opens the arena, and finds this rank's buffers in it. */
LK_NODISCARD lk_status lki_ddp_arena(lk_parallel *parallel, lki_ddp *self);

/* ---- Groups (lki_effects.cut): ddp_groups.c -------------------------------------------------- */

/* Returns the rank that keeps a group: the one that runs its first virtual worker. */
uint32_t               lki_ddp_keeper(const lk_parallel *parallel, uint32_t group);

/* Returns the gradient space with the sum over a group, after lki_ddp_sum_groups(), on the host of
 * its keeper. */
float                 *lki_ddp_group(const lk_parallel *parallel, uint32_t group);

/* Returns the bytes that a host sends to complete the sums of groups. */
uint64_t               lki_ddp_groups_sent(const lk_parallel *parallel, uint32_t host);

/* Completes the sums of the groups whose virtual workers run on several ranks.  Collective.  All
 * ranks must meet before they read the sums. */
LK_NODISCARD lk_status lki_ddp_sum_groups(lk_parallel *parallel);

/* Begins a step, with nothing computed.  Defined in ddp.c. */
void                   lki_ddp_begin_step(lk_parallel *parallel, lki_ddp *self);

/* Merges all nodes of the merge counter that can be merged. */
void                   lki_ddp_merge(lk_parallel *parallel, lki_ddp *self);

/* Starts reductions in order, until a reduction has a term that is not ready. */
LK_NODISCARD lk_status lki_ddp_start(lk_parallel *parallel, lki_ddp *self);

/* Ends the last virtual worker when all earlier ones are merged.  Starts the remaining
 * reductions. */
LK_NODISCARD lk_status lki_ddp_end_last(lk_parallel *parallel, lki_ddp *self);

/* Sets the nodes that this rank adds to every reduction, in ascending order of virtual workers and
 * with buffer numbers of the host. */
void                   lki_ddp_hold(lk_parallel *parallel, lki_ddp *self, const lki_node *nodes,
                                    uint32_t count);

/* Uses the nodes of the merge counter as the nodes that this rank adds to every reduction. */
void                   lki_ddp_hold_counted(lk_parallel *parallel, lki_ddp *self);

/* Starts all reductions when all gradients of this rank are complete. */
LK_NODISCARD lk_status lki_ddp_start_all(lk_parallel *parallel, lki_ddp *self);

/* With a ledger, postpones the failure of the group until all of this rank's virtual workers are
 * computed, and returns LK_OK.  Returns any other failure at once. */
LK_NODISCARD lk_status lki_ddp_remember(const lk_parallel *parallel, lki_ddp *self,
                                        lk_status status);

/* The functions of lki_strategy_ops that are defined in ddp_others.c. */
extern const lki_exchange lki_ddp_exchange;
LK_NODISCARD lk_status    lki_ddp_leave_out(lk_parallel *parallel);

static inline lki_gradients lki_ddp_gradients(const lk_parallel *parallel, float *whole)
{
    return (lki_gradients){ .gradients = whole, .states = whole + parallel->layout->grad_elements };
}

/* Removes the tag of a buffer before a change.  Without a ledger there are no tags. */
static inline void lki_ddp_change(const lk_parallel *parallel, const lki_ddp *self, uint32_t buffer)
{
    if (self->tags != NULL)
        lki_tag_take_off(&self->tags[lki_ddp_place(parallel, buffer)]);
}

/* Sets the tag of a buffer to `node`, whose sum it now holds. */
static inline void lki_ddp_changed(const lk_parallel *parallel, const lki_ddp *self, lki_node node)
{
    if (self->tags != NULL)
        lki_tag_put_on(&self->tags[lki_ddp_place(parallel, node.buffer)], parallel->step,
                       node.first, node.count);
}

#endif
