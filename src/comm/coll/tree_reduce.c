/* tree_reduce.c -- the canonical tree over virtual workers, summed by the owners of slices.
 *
 * Every rank publishes its nodes in the slot of the operation, each as (first, count, place).  When
 * all ranks have published, each owner reads every node of its slices once, sums in the order of
 * the tree and writes the result once.  The assignment of nodes to ranks does not change the sum:
 * the tree fixes the order of all additions, and inner nodes only shorten it.
 *
 *      V = 8 on three ranks:   r0: [0,2) [2,1)   r1: [3,1) [4,2)   r2: [6,2)
 *      ((g0+g1) + (g2 + g3)) + ((g4+g5) + (g6+g7))    sums written without blanks are held by ranks
 *
 * On several hosts the ranks of each host publish their nodes to each other in this way; then
 * span/forest.c continues.
 *
 * Cost:    one synchronisation.  Each rank reads `elements` * nodes / size elements and writes
 *          elements / size; nothing else is transferred.
 * Order:   the canonical tree, for every number of ranks, assignment and slicing.  Rounded nodes
 *          are stored as FP32, so that one host gives the same bits as several hosts, between which
 *          rounding saves traffic.  For nodes rounded in blocks, slices begin and end between
 *          blocks.
 * Memory:  nothing besides the request; up to LKI_IN_FLIGHT operations are open at once.
 */
#include <string.h>

#include "base/hash.h"
#include "comm/coll/tree_reduce.h"
#include "comm/group/span.h"
#include "device/quantise.h"

/* A tree node as a rank publishes it. */
typedef struct {
    uint32_t first, count;
    uint32_t arena, level;
    uint64_t offset;
} told_node;

typedef struct { told_node nodes[LK_TREE_NODES_MAX]; } told;

_Static_assert(sizeof(told) + 8 <= LKI_BODY_BYTES, "the nodes of a rank travel in a slot");

/* size of a rank's payload, which is its list of nodes, padded to the maximal length, and their
 * number */
static const size_t told_bytes = LKI_BODY_BYTES;

/* ---- Starting ---------------------------------------------------------------------------- */

static lk_status check_nodes(const lk_comm *comm, const lk_tree_op *op)
{
    uint32_t end = 0;

    if (op->node_count > LK_TREE_NODES_MAX)
        return lk_fail(LK_EINVAL, "tree_reduce: %u nodes on rank %u, at most %d are possible: "
                       "merge neighbours, or give each rank a contiguous range", op->node_count,
                       comm->rank, LK_TREE_NODES_MAX);
    for (uint32_t i = 0; i < op->node_count; i++) {
        const lk_tree_node *node = &op->nodes[i];
        if (!lki_tree_is_node(op->leaves, node->first, node->count))
            return lk_fail(LK_EINVAL, "tree_reduce: [%u, +%u) is no node of the tree over %u "
                           "leaves", node->first, node->count, op->leaves);
        if (node->first < end)
            return lk_fail(LK_EINVAL, "tree_reduce: node [%u, +%u) comes after one that ends at %u",
                           node->first, node->count, end);
        end = node->first + node->count;
        if (op->elements > 0
            && lki_place_of(comm, node->data, op->elements * sizeof(float)).arena == 0)
            return lk_fail(LK_EINVAL, "tree_reduce: the %zu elements of node [%u, +%u) do not "
                           "lie in an arena", op->elements, node->first, node->count);
    }
    return LK_OK;
}

static lk_status check_slices(const lk_comm *comm, const lk_tree_op *op)
{
    size_t end = 0;

    if (op->leaves == 0)
        return lk_fail(LK_EINVAL, "tree_reduce over 0 leaves");
    if (op->elements > SIZE_MAX / sizeof(float))
        return lk_fail(LK_EINVAL, "tree_reduce of %zu elements: more than memory can hold",
                       op->elements);
    if (op->rounded != 0 && op->rounded != LK_F32 && !lki_rounds(op->rounded))
        return lk_fail(LK_EINVAL, "tree_reduce: nodes are rounded to " LKI_ENCODER_NAMES "or not "
                       "at all, not to %s", lk_dtype_name(op->rounded));
    if (op->wanted == NULL && op->shards > lk_comm_hosts(comm))
        return lk_fail(LK_EINVAL, "tree_reduce: %u shards are more than the hosts, %u", op->shards,
                       lk_comm_hosts(comm));
    for (size_t i = 0; i < op->slice_count; i++) {
        const lk_slice *slice = &op->slices[i];
        if (slice->shard > 0 && slice->shard >= op->shards)
            return lk_fail(LK_EINVAL, "tree_reduce: slice %zu belongs to shard %u of %u", i,
                           slice->shard, op->shards);
        if (slice->owner >= comm->size)
            return lk_fail(LK_EINVAL, "tree_reduce: slice %zu belongs to rank %u of %u", i,
                           slice->owner, comm->size);
        if (slice->first < end || slice->first > op->elements
            || slice->count > op->elements - slice->first)
            return lk_fail(LK_EINVAL, "tree_reduce: slice %zu, [%zu, +%zu), overlaps the one "
                           "before it or leaves the %zu elements", i, slice->first, slice->count,
                           op->elements);
        end = slice->first + slice->count;
        if (lki_quantises(op->rounded) &&
            (slice->first % LKI_QUANTISED != 0 ||
             (slice->count % LKI_QUANTISED != 0 && end != op->elements)))
            return lk_fail(LK_EINVAL, "tree_reduce: slice %zu, [%zu, +%zu), cuts a block of %d "
                           "elements that are rounded to %s together", i, slice->first,
                           slice->count, LKI_QUANTISED, lk_dtype_name(op->rounded));
    }
    return LK_OK;
}

/* Returns a hash of the operation.  Hashes the fields of a slice one by one, because its padding is
 * undefined. */
static uint64_t hash_of(const lk_comm *comm, const lk_tree_op *op)
{
    const uint64_t whole[2] = { op->leaves, op->shards };
    uint64_t       hash     = lki_xxh3(whole, sizeof whole);
    if (op->wanted != NULL)
        hash ^= lki_xxh3(op->wanted, (size_t)lk_comm_hosts(comm) * op->shards);
    for (size_t i = 0; i < op->slice_count; i++) {
        const lk_slice *s        = &op->slices[i];
        const uint64_t  words[5] = { hash, s->first, s->count, s->owner, s->shard };
        hash                     = lki_xxh3(words, sizeof words);
    }
    return hash;
}

static void tell_nodes(lk_request *request)
{
    const lk_comm    *comm    = request->comm;
    const lk_tree_op *tree    = &request->tree;
    unsigned char    *payload = lki_op_payload(comm, &request->op, comm->rank, told_bytes);
    told              mine;

    memset(&mine, 0, sizeof mine);
    for (uint32_t i = 0; i < tree->node_count; i++) {
        const lk_tree_node *node  = &tree->nodes[i];
        lki_place           place = lki_place_of(comm, node->data, tree->elements * sizeof(float));
        mine.nodes[i] = (told_node){ .first = node->first, .count = node->count,
                                     .arena = place.arena, .level = place.level,
                                     .offset = place.offset };
    }
    memcpy(payload, &mine, sizeof mine);
    memcpy(payload + sizeof mine, &tree->node_count, sizeof tree->node_count);
}

/* ---- Finishing --------------------------------------------------------------------------- */

/* Inserts a node into the list, which is sorted by `first`.  Ranks usually hold ascending ranges,
 * so entries are rarely moved. */
static void insert(lki_tree_input *inputs, uint32_t count, lki_tree_input input)
{
    uint32_t at = count;
    while (at > 0 && inputs[at - 1].first > input.first) {
        inputs[at] = inputs[at - 1];
        at--;
    }
    inputs[at] = input;
}

/* Collects all ranks' nodes in ascending order.  Returns their number. */
static uint32_t collect(lk_comm *comm, const lki_op *op, lki_tree_input *inputs)
{
    uint32_t count = 0;

    for (uint32_t rank = 0; rank < comm->size; rank++) {
        const unsigned char *payload = lki_op_payload(comm, op, rank, told_bytes);
        uint32_t             nodes;
        told                 theirs;
        memcpy(&theirs, payload, sizeof theirs);
        memcpy(&nodes, payload + sizeof theirs, sizeof nodes);
        LK_ASSERT(nodes <= LK_TREE_NODES_MAX);
        for (uint32_t i = 0; i < nodes; i++) {
            const told_node *node = &theirs.nodes[i];
            lki_place        at   = { .arena = node->arena, .level = node->level,
                                      .offset = node->offset };
            insert(inputs, count++, (lki_tree_input){
                .first = node->first, .count = node->count,
                .data  = node->arena == 0 ? NULL : lki_place_data(comm, at) });
        }
    }
    return count;
}

/* Checks that the nodes of all ranks cover each leaf once.  All ranks see the same nodes. */
static lk_status check_cover(lk_comm *comm, const lk_request *request,
                             const lki_tree_input *inputs, uint32_t count)
{
    uint32_t leaves = request->tree.leaves, end = 0;

    for (uint32_t i = 0; i < count && inputs[i].first == end; i++)
        end += inputs[i].count;
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += inputs[i].count;
    if (end == leaves && total == leaves)
        return LK_OK;
    return lki_fail_group(comm, comm->rank, LK_EMISMATCH,
                          "tree_reduce #%llu: the nodes of all ranks cover virtual workers up to "
                          "%u once and %llu in all, but there are %u: each must be held by one "
                          "rank",
                          (unsigned long long)request->op.seq, end, (unsigned long long)total,
                          leaves);
}

static void plan(lk_request *request)
{
    request->rounds = 1;
}

static lk_status act(lk_request *request)
{
    lk_comm          *comm   = request->comm;
    const lk_tree_op *tree   = &request->tree;
    lki_tree_input   *inputs = comm->inputs;
    lki_tree_input   *parts  = inputs + (size_t)comm->size * LK_TREE_NODES_MAX;
    uint32_t          count  = collect(comm, &request->op, inputs);
    size_t            packed = 0;

    LK_TRY(check_cover(comm, request, inputs, count));
    for (size_t i = 0; i < tree->slice_count; i++) {
        const lk_slice *slice = &tree->slices[i];
        if (slice->owner != comm->rank || slice->count == 0)
            continue;
        for (uint32_t k = 0; k < count; k++) {
            parts[k] = inputs[k];
            parts[k].data += slice->first;
        }
        lki_tree_sum_f32(tree->rounded, tree->leaves, parts, count, slice->count,
                         tree->out + (tree->packed ? packed : slice->first));
        packed += slice->count;
    }
    return LK_OK;
}

static const lki_algorithm algorithm = { .publish = tell_nodes, .plan = plan, .act = act };

static lk_status prepare(lk_request *r, lk_comm *comm, const lk_tree_op *tree)
{
    LK_TRY(lki_check_given("tree_reduce", "slices", tree->slices, tree->slice_count));
    LK_TRY(lki_check_given("tree_reduce", "nodes", tree->nodes, tree->node_count));
    LK_TRY(check_slices(comm, tree));
    LK_TRY(check_nodes(comm, tree));
    *r = (lk_request){ .comm = comm, .how = &algorithm, .tree = *tree };
    r->op.print      = lki_print_make(LKI_OP_TREE_REDUCE,
                                      lki_rounds(tree->rounded) ? tree->rounded : LK_F32, 0,
                                      tree->elements);
    r->op.print.hash = hash_of(r->comm, tree);
    return LK_OK;
}

/* ---- Over several hosts ------------------------------------------------------------------ */

static lk_status keep_nodes(lk_request *request)
{
    lk_comm *comm = request->comm;
    return request->take(request->forest, comm->inputs, collect(comm, &request->op, comm->inputs));
}

static const lki_algorithm gathering = { .publish = tell_nodes, .plan = plan, .act = keep_nodes };

lk_status lki_tree_gather_start(lk_request **out, lk_request *request, struct lki_forest *forest,
                                lki_tree_take *take)
{
    const lk_request r = { .comm   = request->comm->span->local,
                           .caller = request,
                           .how    = &gathering,
                           .tree   = request->tree,
                           .forest = forest,
                           .take   = take };
    return lki_request_start(out, &r);
}

/* ---- The calls --------------------------------------------------------------------------- */

size_t lk_rounded_bytes(lk_dtype rounded, size_t elements)
{
    return lki_rounded_bytes(rounded, elements);
}

lk_status lk_tree_reduce_start(lk_request **out, lk_comm *comm, const lk_tree_op *tree)
{
    lk_request r;
    *out = NULL;
    LK_TRY(prepare(&r, comm, tree));
    return lki_request_start(out, &r);
}

lk_status lk_tree_reduce(lk_comm *comm, const lk_tree_op *tree)
{
    lk_request r;
    LK_TRY(prepare(&r, comm, tree));
    return lki_request_run(&r);
}
