/* rounds.c -- computes the subtrees of every round, and the buffers of partial sums; see
 * rounds.h. */
#include "parallel/rounds.h"

#include "base/memory.h"

typedef struct {
    lki_round_plan   *plan;
    lki_merge_counter counter;
    size_t            subtrees, subtree_room, merges, merge_room;
} making;

static lk_status keep_subtree(making *m, lki_node node)
{
    lki_round_plan *plan = m->plan;
    lki_merging     merging;

    LK_TRY(lki_reserve((void **)&plan->subtrees, &m->subtree_room, m->subtrees,
                       sizeof *plan->subtrees, "subtrees of rounds"));
    uint32_t     buffer  = lki_counter_push_node(&m->counter, node.first, node.count);
    lki_subtree *subtree = &plan->subtrees[m->subtrees++];
    *subtree             = (lki_subtree){ node.first, node.count, buffer, (uint32_t)m->merges, 0 };
    while (lki_counter_merge(&m->counter, &merging.left, &merging.right)) {
        LK_TRY(lki_reserve((void **)&plan->merges, &m->merge_room, m->merges, sizeof *plan->merges,
                           "merges of rounds"));
        plan->merges[m->merges++] = merging;
        subtree->merges++;
        LK_ASSERT(merging.left < 64);
        m->counter.reserved |= UINT64_C(1) << merging.left;
    }
    return LK_OK;
}

static lk_status make_round(making *m, uint32_t leaves, uint32_t first, uint32_t end)
{
    lki_node nodes[LKI_NODES_MAX];
    uint32_t count = lki_virtual_nodes(nodes, leaves, first, end - first);

    m->counter.reserved = 0;
    for (uint32_t i = 0; i < count; i++)
        LK_TRY(keep_subtree(m, nodes[i]));
    m->plan->widest = (uint32_t)lki_max(m->plan->widest, count);
    return LK_OK;
}

lk_status lki_round_plan_init(lki_round_plan *plan, uint32_t leaves, uint32_t ranks)
{
    making m = { .plan = plan };

    *plan = (lki_round_plan){ .rounds = (leaves + ranks - 1) / ranks };
    lki_counter_begin(&m.counter, leaves);
    LK_TRY(LKI_NEW(&plan->first, (size_t)plan->rounds + 1, "rounds"));
    for (uint32_t j = 0; j < plan->rounds; j++) {
        LK_TRY(
            make_round(&m, leaves, j * ranks, (uint32_t)lki_min((j + 1) * (size_t)ranks, leaves)));
        plan->first[j + 1] = (uint32_t)m.subtrees;
    }
    LK_ASSERT(m.counter.depth == 1);
    plan->buffers = m.counter.used;
    plan->last    = m.counter.stack[0].buffer;
    return LK_OK;
}

void lki_round_plan_deinit(lki_round_plan *plan)
{
    lki_free(plan->first);
    lki_free(plan->subtrees);
    lki_free(plan->merges);
    *plan = (lki_round_plan){ 0 };
}
