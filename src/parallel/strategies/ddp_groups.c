/* ddp_groups.c -- sums over the virtual workers of a group, for the exchange between groups.
 *
 * A rank merges only virtual workers of one group, so it holds some nodes of each group that it has
 * a part of.  The rank that runs the first virtual worker of a group keeps the group.  If other
 * ranks have parts of it, all ranks sum the parts to the first node of the keeper, on its host.
 */
#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/strategies/ddp.h"

uint32_t lki_ddp_keeper(const lk_parallel *parallel, uint32_t group)
{
    return lki_share_rank(&parallel->dealing, group * parallel->effects.cut);
}

float *lki_ddp_group(const lk_parallel *parallel, uint32_t group)
{
    uint32_t         keeper = lki_ddp_keeper(parallel, group), i = 0;
    uint32_t         host   = parallel->world.host_of[keeper];
    lki_virtual_plan plan;

    lki_ddp_plan(parallel, &parallel->dealing, keeper, &plan);
    while (plan.nodes[i].first != group * parallel->effects.cut)
        i++;
    size_t first = lki_ddp_buffers(parallel, &parallel->dealing, host, keeper);
    return lki_ddp_data(parallel, (uint32_t)first + plan.nodes[i].buffer);
}

uint64_t lki_ddp_groups_sent(const lk_parallel *parallel, uint32_t host)
{
    const uint32_t cut   = parallel->effects.cut;
    uint64_t       nodes = 0;
    for (uint32_t g = 0; g < parallel->leaves / cut; g++)
        if (parallel->world.host_of[lki_ddp_keeper(parallel, g)] != host)
            nodes += lki_count_branches(parallel, g * cut, cut, host);
    return nodes * parallel->width * sizeof(float);
}

/* Lists this rank's nodes of a group, numbered within the group. */
static uint32_t list_nodes(const lk_parallel *parallel, uint32_t group,
                           lk_tree_node nodes[LK_TREE_NODES_MAX])
{
    const lki_virtual_plan *plan  = &lki_ddp_of(parallel)->plan;
    const uint32_t          first = group * parallel->effects.cut;
    uint32_t                count = 0;
    for (uint32_t i = 0; i < plan->node_count; i++)
        if (plan->nodes[i].first - first < parallel->effects.cut) {
            LK_ASSERT(count < LK_TREE_NODES_MAX);
            nodes[count++] = (lk_tree_node){ plan->nodes[i].first - first, plan->nodes[i].count,
                                             lki_ddp_buffer(parallel, plan->nodes[i].buffer) };
        }
    return count;
}

/* Divides a gradient space equally among the ranks of the widest host. */
static lk_status divide(const lk_parallel *parallel, lki_ddp *self)
{
    const uint32_t owners = parallel->world.widest;
    if (self->group_slices == NULL)
        LK_TRY(LKI_NEW(&self->group_slices, owners, "slices of a group"));
    if (self->group_hosts == NULL)
        LK_TRY(LKI_NEW(&self->group_hosts, 2 * parallel->world.hosts, "hosts of a group"));
    for (uint32_t o = 0; o < owners; o++) {
        size_t begin = parallel->width * o / owners, end = parallel->width * (o + 1) / owners;
        self->group_slices[o] = (lk_slice){ .first = begin, .count = end - begin, .owner = o };
    }
    return LK_OK;
}

static lk_status sum_group(lk_parallel *parallel, const lki_ddp *self, uint32_t group)
{
    uint32_t     host   = parallel->world.host_of[lki_ddp_keeper(parallel, group)];
    uint8_t     *wanted = self->group_hosts;
    lk_tree_node nodes[LK_TREE_NODES_MAX];
    lk_tree_op   op = { .leaves      = parallel->effects.cut,
                        .elements    = parallel->width,
                        .nodes       = nodes,
                        .node_count  = list_nodes(parallel, group, nodes),
                        .slices      = self->group_slices,
                        .slice_count = parallel->world.widest,
                        .shards      = 2, /* the second has no slices */
                        .wanted      = wanted };
    for (uint32_t h = 0; h < parallel->world.hosts; h++) {
        wanted[2 * h]     = h == host;
        wanted[2 * h + 1] = true;
    }
    op.out = host == parallel->world.host_of[parallel->rank] ? lki_ddp_group(parallel, group)
                                                             : self->home;
    return lk_tree_reduce(parallel->comm, &op);
}

lk_status lki_ddp_sum_groups(lk_parallel *parallel)
{
    const uint32_t cut  = parallel->effects.cut;
    lki_ddp       *self = lki_ddp_of(parallel);
    LK_TRY(divide(parallel, self));
    for (uint32_t g = 0; g < parallel->leaves / cut; g++)
        if (lki_share_rank(&parallel->dealing, (g + 1) * cut - 1) != lki_ddp_keeper(parallel, g))
            LK_TRY(sum_group(parallel, self, g));
    return LK_OK;
}
