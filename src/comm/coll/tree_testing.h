/* coll/tree_testing.h -- for tests of tree_reduce: assignments of nodes to ranks and of slices to
 * owners, and the expected sums by plain recursion. */
#ifndef LKI_COMM_TREE_TESTING_H
#define LKI_COMM_TREE_TESTING_H

#include "comm/hosted_testing.h"
#include "device/half.h"
#include "device/quantise.h"
#include "device/reduce.h"

enum { ELEMENTS = 1237, LEAVES_MAX = 32, SLICES = 9 };

static inline uint32_t left_of(uint32_t count)
{
    uint32_t left = 1;
    while (2 * left < count)
        left *= 2;
    return left;
}

static inline float round_to(lk_dtype rounded, float x)
{
    return rounded == LK_BF16  ? lki_bf16_widen(lki_bf16_narrow(x))
           : rounded == LK_F16 ? lki_f16_widen(lki_f16_narrow(x))
                               : x;
}

/* Returns the value of a node before the node itself is rounded. */
static inline float tree(lk_dtype rounded, uint32_t first, uint32_t count, size_t i, uint32_t call)
{
    if (count == 1)
        return world_value(first, i, call);
    uint32_t left = left_of(count);
    return round_to(rounded, tree(rounded, first, left, i, call)) +
           round_to(rounded, tree(rounded, first + left, count - left, i, call));
}

/* Computes all elements of a node with rounding in blocks.  The result is rounded unless it is a
 * leaf. */
static inline bool block_tree(lk_dtype rounded, uint32_t first, uint32_t count, size_t n,
                              uint32_t call, float *out)
{
    if (count == 1) {
        for (size_t i = 0; i < n; i++)
            out[i] = world_value(first, i, call);
        return true;
    }
    uint32_t left  = left_of(count);
    float   *right = malloc(n * sizeof *right);
    bool     good  = right != NULL && block_tree(rounded, first, left, n, call, out) &&
                block_tree(rounded, first + left, count - left, n, call, right);
    if (good)
        lki_merge_f32(rounded, n, out, right);
    free(right);
    return good;
}

/* Returns a random number below `below`.  Ranks with the same state draw the same sequence. */
static inline uint32_t draw(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(*state >> 8) * below >> 24);
}

/* ---- Maps -------------------------------------------------------------------------------- */

typedef struct {
    uint32_t     leaves;
    uint32_t     owner[LEAVES_MAX];
    lk_tree_node nodes[LK_TREE_NODES_MAX];
    uint32_t     node_count;
} map;

typedef enum { CONTIGUOUS, DEALT, RANDOM, ONE, MAPS } map_kind;

static inline void choose_owners(map *m, map_kind kind, uint32_t size, uint32_t *seed)
{
    uint32_t one = draw(seed, size);
    for (uint32_t v = 0; v < m->leaves; v++)
        m->owner[v] = kind == CONTIGUOUS ? v * size / m->leaves : kind == DEALT ? v % size
                      : kind == RANDOM ? draw(seed, size) : one;
}

/* Collects the maximal subtrees that contain only leaves of this rank.  Returns false if there are
 * too many. */
static inline bool gather_nodes(map *m, uint32_t rank, uint32_t first, uint32_t count)
{
    bool all = true;
    for (uint32_t v = first; v < first + count; v++)
        all = all && m->owner[v] == rank;
    if (all) {
        if (m->node_count == LK_TREE_NODES_MAX)
            return false;
        m->nodes[m->node_count++] = (lk_tree_node){ .first = first, .count = count };
        return true;
    }
    return count == 1 || (gather_nodes(m, rank, first, left_of(count))
                          && gather_nodes(m, rank, first + left_of(count), count - left_of(count)));
}

/* ---- One operation ----------------------------------------------------------------------- */

/* Chooses slices of any length, some empty, with gaps between them.  Owners and shards are
 * random. */
static inline void choose_slices(lk_slice *slices, uint32_t size, uint32_t shards,
                                 size_t elements, uint32_t *seed)
{
    size_t at = 0;
    for (size_t i = 0; i < SLICES; i++) {
        size_t left = elements - at, gap = left == 0 ? 0 : draw(seed, 2) * draw(seed, 3) % left;
        size_t want = i == SLICES - 1 ? left - gap : draw(seed, (uint32_t)elements / SLICES * 2);
        size_t n    = want < left - gap ? want : left - gap;
        slices[i]   = (lk_slice){ .first = at + gap, .count = n, .owner = draw(seed, size),
                                  .shard = draw(seed, shards) };
        at += gap + n;
    }
}

/* Computes a rank's tree nodes, and stores them one after another in its part of the arena. */
static inline void fill_nodes(map *m, float *memory, size_t elements, lk_dtype rounded,
                              uint32_t call)
{
    for (uint32_t k = 0; k < m->node_count; k++) {
        float       *data = memory + k * elements;
        lk_tree_node node = m->nodes[k];
        if (lki_quantises(rounded))
            LK_ASSERT(block_tree(rounded, node.first, node.count, elements, call, data));
        for (size_t i = 0; i < elements && !lki_quantises(rounded); i++)
            data[i] = tree(rounded, node.first, node.count, i, call);
        m->nodes[k].data = data;
    }
}

static inline bool wants(const lk_tree_op *op, const lk_slice *slice, uint32_t host)
{
    if (op->shards >= 2 && op->wanted != NULL)
        return op->wanted[host * op->shards + slice->shard];
    return op->shards < 2 || host % op->shards == slice->shard;
}

/* Returns true if this host wants the slice and this rank owns the slice there. */
static inline bool owns(lk_comm *comm, const lk_tree_op *op, const lk_slice *slice)
{
    uint32_t me = lk_comm_rank(comm);
    return wants(op, slice, lk_comm_host(comm, me)) &&
           slice->owner % lk_comm_local_size(comm, lk_comm_host(comm, me)) ==
           lk_comm_local_rank(comm, me);
}

static inline bool blocks_are_right(lk_comm *comm, const lk_tree_op *op, uint32_t call)
{
    float *want   = malloc(op->elements * sizeof *want);
    size_t packed = 0;
    bool   good   = want != NULL &&
                block_tree(op->rounded, 0, op->leaves, op->elements, call, want);
    if (good && op->leaves == 1)
        lki_rounding_loops(op->rounded)->rounded(op->elements, want, 1, want);
    for (size_t s = 0; good && s < op->slice_count; s++) {
        const lk_slice *slice = &op->slices[s];
        if (!owns(comm, op, slice))
            continue;
        good = memcmp(&op->out[op->packed ? packed : slice->first], &want[slice->first],
                      slice->count * sizeof *want) == 0;
        packed += slice->count;
    }
    free(want);
    CHECK(good);
    return true;
}

static inline bool slices_are_right(lk_comm *comm, const lk_tree_op *op, uint32_t call)
{
    size_t packed = 0;
    if (lki_quantises(op->rounded))
        return blocks_are_right(comm, op, call);
    for (size_t s = 0; s < op->slice_count; s++) {
        const lk_slice *slice = &op->slices[s];
        size_t          end   = owns(comm, op, slice) ? slice->first + slice->count : 0;
        for (size_t i = slice->first; i < end; i++, packed++) {
            float want = round_to(op->rounded, tree(op->rounded, 0, op->leaves, i, call));
            CHECK(memcmp(&op->out[op->packed ? packed : i], &want, sizeof want) == 0);
        }
    }
    return true;
}

#endif
