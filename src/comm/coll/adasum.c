/* adasum.c -- adaptive summation.  Two parallel gradients are averaged; two orthogonal gradients
 * are added.
 *
 * A node of the canonical tree over ranks, for whole vectors a (left) and b (right), is
 *
 *      a (1 - a.b / (2 a.a)) + b (1 - a.b / (2 b.b))
 *
 * A node's elements depend on dot products of whole vectors, so Adasum, unlike other reductions,
 * proceeds level by level:
 *
 *      scatter   rank r receives blocks [r B/N, (r+1) B/N) of all N vectors (all_to_all_v)
 *      level     each rank computes dot products over its blocks, for every pair of the level, as
 *      x log2 N  nodes of the canonical tree over all B blocks; all ranks receive these nodes
 *                (all_gather_v), complete the trees, and combine their part of each pair
 *      gather    the parts of the result are gathered (all_gather_v, or all_to_all_v to a root)
 *
 * If all vectors together are small, every rank gathers all of them and does the whole computation
 * itself.  The operation begins with an exchange of one word, which compares fingerprints and shows
 * whether all ranks could allocate memory.  Adasum consists of other collectives, so it supports
 * the same hosts and links as they do.
 *
 * Cost:    2 (N-1)/N n bytes sent by each rank, as in a direct all_reduce; log2 N small exchanges.
 * Order:   fixed by the tree over ranks, the tree over blocks and the vector lanes of a block.  All
 *          ranks have the same bits, which depend neither on buffer locations nor on timing.  The
 *          result depends on the number of ranks.  It is not elementwise, so a tensor must not be
 *          cut.
 * Memory:  n bytes on each rank, and 2 n more for 16-bit types.
 * Source:  Maleki et al., "Scaling Distributed Training with Adaptive Summation" (2020), sections 3
 *          and 4.  Distances double as in the paper; dot products are exchanged as nodes of a tree.
 */
#include "comm/coll/adasum.h"

#include <string.h>

#include "base/memory.h"
#include "device/adasum.h"
#include "device/combine_loops.h"
#include "device/combine.h"

enum { GATHERED_BYTES = 262144 }; /* if all vectors together have fewer bytes, they are not divided
                                   * among ranks */

typedef struct {
    uint32_t left, right;
} pair;

typedef struct {
    lk_comm              *comm;
    const lki_type_loops *type;
    size_t                count, accumulator;
    uint32_t              owners; /* number of ranks that share the blocks; 1: every rank has all
                                   * blocks */
    uint32_t              me;     /* this rank's number among the owners */
    uint64_t              blocks;
    size_t                mine;   /* number of elements of each vector that this rank owns */
    unsigned char        *elements, *values; /* all vectors: as received, and as accumulators */
    pair                 *pairs;
    uint32_t              pair_count;
    lki_dots             *told, *all;
    lki_dots            **cursors; /* [owner]: the next node of the owner in `all` */
    size_t               *sizes, *others; /* [rank]: sizes in bytes */
} work;

/* ---- Blocks ------------------------------------------------------------------------------ */

static uint64_t first_block(const work *w, uint32_t owner)
{
    return w->blocks * owner / w->owners;
}

static size_t elements_before(const work *w, uint64_t block)
{
    return lki_min((size_t)block * LKI_DOT_BLOCK, w->count);
}

static size_t part_count(const work *w, uint32_t owner)
{
    size_t end = elements_before(w, first_block(w, owner + 1));
    return end - elements_before(w, first_block(w, owner));
}

static uint64_t left_of(uint64_t count)
{
    return UINT64_C(1) << (63 - __builtin_clzll(count - 1));
}

static lki_dots add_dots(lki_dots x, lki_dots y)
{
    return (lki_dots){ x.ab + y.ab, x.aa + y.aa, x.bb + y.bb };
}

/* Counts the nodes that an owner publishes from the tree over blocks [first, first + count).  These
 * are the maximal nodes whose blocks all belong to the owner. */
static size_t count_nodes(const work *w, uint32_t owner, uint64_t first, uint64_t count)
{
    uint64_t begin = first_block(w, owner), end = first_block(w, owner + 1);

    if (count == 0 || first + count <= begin || first >= end)
        return 0;
    if (first >= begin && first + count <= end)
        return 1;
    uint64_t half = left_of(count);
    return count_nodes(w, owner, first, half) + count_nodes(w, owner, first + half, count - half);
}

static void *value_of(const work *w, uint32_t rank)
{
    return w->values + rank * w->mine * w->accumulator;
}

/* Computes the dot products of a node.  This rank must have all blocks of the node. */
static lki_dots dots_of(const work *w, pair p, uint64_t first, uint64_t count)
{
    if (count > 1) {
        uint64_t half = left_of(count);
        lki_dots left = dots_of(w, p, first, half);
        return add_dots(left, dots_of(w, p, first + half, count - half));
    }
    size_t at = elements_before(w, first), n = elements_before(w, first + 1) - at;
    size_t offset = (at - elements_before(w, first_block(w, w->me))) * w->accumulator;
    return lki_dots_block(w->accumulator, n, lki_at(value_of(w, p.left), offset),
                          lki_at(value_of(w, p.right), offset));
}

/* Writes this rank's nodes in the order in which count_nodes() visits them. */
static void tell_nodes(const work *w, pair p, uint64_t first, uint64_t count, lki_dots **out)
{
    uint64_t begin = first_block(w, w->me), end = first_block(w, w->me + 1);

    if (first + count <= begin || first >= end)
        return;
    if (first >= begin && first + count <= end) {
        *(*out)++ = dots_of(w, p, first, count);
        return;
    }
    uint64_t half = left_of(count);
    tell_nodes(w, p, first, half, out);
    tell_nodes(w, p, first + half, count - half, out);
}

/* Computes a node from the nodes that the owners have published. */
static lki_dots read_node(work *w, uint64_t first, uint64_t count)
{
    uint32_t owner = (uint32_t)(first * w->owners / w->blocks);

    while (first_block(w, owner + 1) <= first)
        owner++;
    if (first + count <= first_block(w, owner + 1))
        return *w->cursors[owner]++;
    uint64_t half = left_of(count);
    lki_dots left = read_node(w, first, half);
    return add_dots(left, read_node(w, first + half, count - half));
}

/* ---- Levels ------------------------------------------------------------------------------ */

static uint32_t height_of(uint32_t leaves)
{
    return leaves == 1 ? 0 : 32 - (uint32_t)__builtin_clz(leaves - 1);
}

/* Lists the pairs combined at this height of the tree over ranks [first, first + count). */
static void list_pairs(work *w, uint32_t height, uint32_t first, uint32_t count)
{
    if (height_of(count) < height)
        return;
    uint32_t half = (uint32_t)left_of(count);
    if (height_of(count) == height) {
        w->pairs[w->pair_count++] = (pair){ first, first + half };
        return;
    }
    list_pairs(w, height, first, half);
    list_pairs(w, height, first + half, count - half);
}

static lk_status exchange_nodes(work *w, size_t told)
{
    lki_dots *at = w->all;

    for (uint32_t owner = 0; owner < w->owners; owner++) {
        w->sizes[owner]   = w->pair_count * count_nodes(w, owner, 0, w->blocks) * sizeof *w->all;
        w->cursors[owner] = at;
        at += w->sizes[owner] / sizeof *w->all;
    }
    if (w->owners > 1)
        return lk_all_gather_v(w->comm, w->told, w->all, w->sizes);
    memcpy(w->all, w->told, told * sizeof *w->all);
    return LK_OK;
}

static lk_status mix_level(work *w, uint32_t height)
{
    lki_dots *end = w->told;

    w->pair_count = 0;
    list_pairs(w, height, 0, w->comm->size);
    for (uint32_t i = 0; i < w->pair_count; i++)
        tell_nodes(w, w->pairs[i], 0, w->blocks, &end);
    LK_TRY(exchange_nodes(w, (size_t)(end - w->told)));
    for (uint32_t i = 0; i < w->pair_count; i++) {
        lki_dots dots = read_node(w, 0, w->blocks);
        lki_adasum(w->accumulator, w->mine, &dots, value_of(w, w->pairs[i].left),
                   value_of(w, w->pairs[i].right));
    }
    return LK_OK;
}

/* ---- Memory, and the first exchange ------------------------------------------------------ */

static lk_status allocate(work *w)
{
    uint32_t size  = w->comm->size;
    size_t   nodes = 0, all = size * w->mine;

    for (uint32_t owner = 0; owner < w->owners; owner++)
        nodes += count_nodes(w, owner, 0, w->blocks);
    LK_TRY(LKI_NEW(&w->elements, all * w->type->width + 1, "vectors of all ranks"));
    w->values = w->elements;
    if (w->type->load != NULL)
        LK_TRY(LKI_NEW(&w->values, all * w->accumulator + 1, "vectors of all ranks"));
    LK_TRY(LKI_NEW(&w->pairs, size, "pairs of ranks"));
    LK_TRY(LKI_NEW(&w->told, count_nodes(w, w->me, 0, w->blocks) * size + 1, "dot products"));
    LK_TRY(LKI_NEW(&w->all, nodes * size + 1, "dot products"));
    LK_TRY(LKI_NEW(&w->cursors, size, "dot products"));
    LK_TRY(LKI_NEW(&w->sizes, size, "sizes of parts"));
    return LKI_NEW(&w->others, size, "sizes of parts");
}

static void deallocate(work *w)
{
    if (w->values != w->elements)
        lki_free(w->values);
    lki_free(w->elements);
    lki_free(w->pairs);
    lki_free(w->told);
    lki_free(w->all);
    lki_free(w->cursors);
    lki_free(w->sizes);
    lki_free(w->others);
}

static lki_parcel parcel(const lk_request *r, uint32_t from, uint32_t to)
{
    (void)r, (void)to;
    return (lki_parcel){ 0, from * sizeof(int32_t), sizeof(int32_t) };
}

static const lki_route route = { .parcel = parcel };

/* Compares the fingerprints of all ranks.  Fails on all ranks if `mine` is an error on any rank. */
static lk_status meet(lk_comm *comm, lki_print print, lk_status mine)
{
    int32_t    word  = (int32_t)mine, all[LKI_RANKS_MAX]; /* on the stack, because an allocation
                                                           * could fail */
    lk_error   error = *lk_error_last();
    lk_request r = { .comm       = comm,
                     .op.print   = print,
                     .send       = (const unsigned char *)&word,
                     .recv       = (unsigned char *)all,
                     .send_bytes = sizeof word,
                     .longest    = sizeof word,
                     .route      = &route };
    lki_move_init(&r);
    lk_status st = lki_request_run(&r);
    for (uint32_t rank = 0; rank < comm->size && st == LK_OK; rank++)
        if (all[rank] != LK_OK)
            st = rank == comm->rank ? lki_fail_again(&error)
                                    : lk_fail((lk_status)all[rank], "adasum: rank %u has no memory "
                                              "for its part", comm->world[rank]);
    return st;
}

/* ---- From vectors to the result ---------------------------------------------------------- */

static lk_status scatter(work *w, const void *send)
{
    size_t width = w->type->width;

    if (w->owners == 1)
        return lk_all_gather(w->comm, send, w->elements, w->count * width);
    for (uint32_t rank = 0; rank < w->comm->size; rank++) {
        w->sizes[rank]  = part_count(w, rank) * width;
        w->others[rank] = w->mine * width;
    }
    return lk_all_to_all_v(w->comm, send, w->sizes, w->elements, w->others);
}

static lk_status gather(work *w, void *recv, uint32_t root)
{
    uint32_t me    = w->comm->rank;
    size_t   width = w->type->width;

    if (w->owners == 1) {
        if (w->count > 0 && (root == LKI_ALL_RANKS || root == me))
            memcpy(recv, w->elements, w->count * width);
        return LK_OK;
    }
    for (uint32_t rank = 0; rank < w->comm->size; rank++) {
        w->sizes[rank]  = root == LKI_ALL_RANKS || root == me ? part_count(w, rank) * width : 0;
        w->others[rank] = rank == root ? w->mine * width : 0;
    }
    if (root == LKI_ALL_RANKS)
        return lk_all_gather_v(w->comm, w->elements, recv, w->sizes);
    return lk_all_to_all_v(w->comm, w->elements, w->others, recv, w->sizes);
}

static lk_status reduce(work *w, const void *send, void *recv, uint32_t root)
{
    LK_TRY(scatter(w, send));
    if (w->type->load != NULL)
        w->type->load(w->comm->size * w->mine, w->elements, 1, w->values);
    for (uint32_t height = 1; height <= height_of(w->comm->size) && w->blocks > 0; height++)
        LK_TRY(mix_level(w, height));
    if (w->type->store != NULL)
        w->type->store(w->mine, w->values, 1, w->elements);
    return gather(w, recv, root);
}

lk_status lki_adasum_reduce(lk_comm *comm, const void *send, void *recv, size_t count,
                            lk_dtype dtype, uint32_t root)
{
    const lki_type_loops *type  = &lki_combine_best()[dtype];
    bool                  small = count * type->width <= (size_t)GATHERED_BYTES / comm->size;
    lki_print             print = lki_print_make(LKI_OP_ADASUM, dtype, root, count);

    work w = { .comm        = comm,
               .type        = type,
               .count       = count,
               .accumulator = type->accumulator,
               .owners      = small ? 1 : comm->size,
               .me          = small ? 0 : comm->rank,
               .blocks      = count / LKI_DOT_BLOCK + (count % LKI_DOT_BLOCK != 0) };
    w.mine       = part_count(&w, w.me);
    lk_status st = meet(comm, print, allocate(&w));
    if (st == LK_OK)
        st = reduce(&w, send, recv, root);
    deallocate(&w);
    return st;
}

lk_status lki_refuse_adasum(const char *name, lk_reduce_op op)
{
    if (op.kind != LK_REDUCE_ADASUM)
        return LK_OK;
    return lk_fail(LK_EUNSUPPORTED, "%s: adasum needs whole tensors, level by level; use "
                   "all_reduce, reduce or all_reduce_many, which wait for it", name);
}
