/* tree_reduce_test.c -- tree_reduce: the same bits for every assignment of virtual workers.
 *
 * Goal:   lk_tree_reduce() equals the canonical tree bit by bit, for every number of ranks,
 *         assignment of virtual workers to ranks, and slicing.  This holds with sums at their
 *         offsets or packed, with or without rounding of every node to 16 bits or in blocks, and
 *         with many operations open at once, completed in any order. tree_reduce fails if the nodes
 *         do not cover the tree.  Between hosts it sends exactly the bytes that the formula gives.
 * Method: leaves are a function of (virtual worker, element, call).  The reference is the tree by
 *         plain recursion, without ranks and slices.  All numbers of ranks are compared with one
 *         reference.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/thorough_testing.h"
#include "comm/coll/tree_testing.h"

typedef struct { uint32_t leaves, shards; map_kind kind; } setting;

enum { PARTS_MAX = 64 };

/* Chooses at random which hosts want which shards.  Only used if there are more shards than
 * hosts. */
static bool choose_parts(uint8_t *wanted, uint32_t hosts, setting *set, uint32_t *seed)
{
    set->shards = hosts + draw(seed, 3);
    if (hosts * set->shards > PARTS_MAX)
        return false;
    for (uint32_t i = 0; i < hosts * set->shards; i++)
        wanted[i] = (uint8_t)(hosts == 1 || draw(seed, 2) == 1);
    return true;
}

static bool reduce_once(lk_comm *comm, float *memory, setting set, uint32_t call, bool in_place)
{
    uint32_t seed = call * 977 + set.leaves, size = lk_comm_size(comm);
    map      m    = { .leaves = set.leaves };
    lk_slice slices[SLICES];
    size_t   elements = call % 5 == 0 ? call % 3 : ELEMENTS; /* includes 0, 1 and 2 elements */
    lk_dtype rounded  = call % 3 == 0 ? 0 : call % 3 == 1 ? LK_BF16 : LK_F16;
    uint8_t  wanted[PARTS_MAX];
    bool     anyhow = call % 7 > 3 && choose_parts(wanted, lk_comm_hosts(comm), &set, &seed);

    choose_owners(&m, set.kind, size, &seed);
    choose_slices(slices, size, set.shards, elements, &seed);
    CHECK(gather_nodes(&m, lk_comm_rank(comm), 0, m.leaves));
    fill_nodes(&m, memory, elements, rounded, call);
    float     *apart = memory + LK_TREE_NODES_MAX * ELEMENTS;
    lk_tree_op op    = { .leaves = m.leaves, .elements = elements, .nodes = m.nodes,
                         .node_count = m.node_count, .slices = slices, .slice_count = SLICES,
                         .shards = set.shards, .wanted = anyhow ? wanted : NULL,
                         .packed = !in_place && call % 4 < 2,
                         .rounded = rounded, .algorithm = (lk_tree_algorithm)(call % 11 % 3),
                         .out = in_place && m.node_count > 0
                                    ? memory + (m.node_count - 1) * elements : apart };
    CHECK(lk_tree_reduce(comm, &op) == LK_OK);
    if (!slices_are_right(comm, &op, call))
        return false;
    CHECK(lk_barrier(comm) == LK_OK); /* other ranks may still read this rank's nodes */
    return true;
}

static bool reduces_every_map(lk_comm *comm, void *context)
{
    static const uint32_t leaves[] = { 1, 2, 3, 5, 8, 12, 32 };
    size_t    part = (LK_TREE_NODES_MAX + 1) * ELEMENTS;
    uint32_t  call = 0;
    lk_arena *arena;

    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "tree", part * 4 * lk_comm_size(comm)) == LK_OK);
    float *mine = (float *)lk_arena_data(arena) + part * lk_comm_rank(comm);
    for (size_t v = 0; v < sizeof leaves / sizeof leaves[0]; v++)
        for (map_kind kind = 0; kind < MAPS; kind++) {
            bool too_many = leaves[v] > LK_TREE_NODES_MAX && kind != CONTIGUOUS && kind != ONE;
            if (too_many && lk_comm_size(comm) < 4)
                continue; /* a rank could hold more than LK_TREE_NODES_MAX separate nodes */
            setting set = { leaves[v], 1 + call / 2 % lk_comm_hosts(comm), kind };
            for (int in_place = 0; in_place < 2; in_place++)
                if (!reduce_once(comm, mine, set, call++, in_place == 1))
                    return false;
        }
    return true;
}

/* ---- Several open operations ------------------------------------------------------------- */

enum { OPEN = 150, SMALL = 60, WORKERS = 5 }; /* OPEN is more than the number of slots */

typedef struct {
    map         m;
    lk_slice    slices[SLICES];
    lk_tree_op  op;
    lk_request *request;
} piece;

static bool start_piece(lk_comm *comm, piece *p, float *memory, uint32_t call)
{
    uint32_t seed = call + 5;

    *p = (piece){ .m = { .leaves = WORKERS } };
    choose_owners(&p->m, RANDOM, lk_comm_size(comm), &seed);
    choose_slices(p->slices, lk_comm_size(comm), 1, SMALL, &seed);
    CHECK(gather_nodes(&p->m, lk_comm_rank(comm), 0, WORKERS));
    fill_nodes(&p->m, memory, SMALL, LK_F32, call);
    p->op = (lk_tree_op){ .leaves = WORKERS, .elements = SMALL, .nodes = p->m.nodes,
                          .node_count = p->m.node_count, .slices = p->slices,
                          .slice_count = SLICES, .out = memory + WORKERS * SMALL };
    CHECK(lk_tree_reduce_start(&p->request, comm, &p->op) == LK_OK);
    return true;
}

static bool finish_pieces(lk_comm *comm, piece *pieces)
{
    uint32_t step = 1 + 2 * (lk_comm_rank(comm) % 3 + 3); /* 7, 9 and 11, so that orders differ
                                                           * between ranks */

    step = step == 9 ? 13 : step; /* must be coprime to OPEN */
    for (uint32_t k = 0; k < OPEN; k++) {
        piece *p    = &pieces[k * step % OPEN];
        bool   done = false;
        CHECK(lk_request_test(p->request, &done) == LK_OK);
        if (!done)
            CHECK(lk_request_wait(p->request) == LK_OK);
        CHECK(lk_request_test(p->request, &done) == LK_OK && done);
        if (!slices_are_right(comm, &p->op, k * step % OPEN))
            return false;
    }
    return true;
}

static bool keeps_many_open(lk_comm *comm, void *context)
{
    size_t    part   = (size_t)OPEN * (WORKERS + 1) * SMALL;
    piece    *pieces = calloc(OPEN, sizeof *pieces);
    bool      good   = pieces != NULL;
    lk_arena *arena;

    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "many", part * 4 * lk_comm_size(comm)) == LK_OK);
    float *mine = (float *)lk_arena_data(arena) + part * lk_comm_rank(comm);
    for (uint32_t k = 0; k < OPEN && good; k++) {
        double one = 1;
        good = start_piece(comm, &pieces[k], mine + (size_t)k * (WORKERS + 1) * SMALL, k);
        if (k % 40 == 17) /* runs another collective between two of the operations */
            good = good && lk_all_reduce(comm, &one, &one, 1, LK_F64, LK_SUM) == LK_OK;
    }
    good = good && finish_pieces(comm, pieces);
    for (uint32_t k = 0; k < OPEN && good; k++)
        lk_request_free(pieces[k].request);
    free(pieces);
    CHECK(good && lk_barrier(comm) == LK_OK);
    return true;
}

/* ---- Refusals ---------------------------------------------------------------------------- */

static bool refuses_bad_nodes(lk_comm *comm, void *context)
{
    float        outside[8] = { 0 };
    lk_arena    *arena;
    lk_request  *request;
    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "bad", 4096) == LK_OK);
    lk_tree_node node  = { .first = 1, .count = 2, .data = lk_arena_data(arena) };
    lk_slice     slice = { .first = 0, .count = 8, .owner = 0 };
    lk_tree_op   op    = { .leaves = 4, .elements = 8, .nodes = &node, .node_count = 1,
                           .slices = &slice, .slice_count = 1, .out = outside };
    CHECK(lk_tree_reduce_start(&request, comm, &op) == LK_EINVAL);
    CHECK(strstr(lk_error_last()->message, "is no node of the tree") != NULL);
    node = (lk_tree_node){ .first = 0, .count = 2, .data = outside };
    CHECK(lk_tree_reduce_start(&request, comm, &op) == LK_EINVAL);
    CHECK(strstr(lk_error_last()->message, "arena") != NULL);
    slice.owner = lk_comm_size(comm);
    CHECK(lk_tree_reduce_start(&request, comm, &op) == LK_EINVAL && request == NULL);
    return true;
}

static bool refuses_cut_blocks(lk_comm *comm, void *context)
{
    lk_arena   *arena;
    lk_request *request;
    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "cut", 4096) == LK_OK);
    lk_tree_node node  = { .first = 0, .count = 1, .data = lk_arena_data(arena) };
    lk_slice     slice = { .first = 256, .count = 300, .owner = 0 };
    lk_tree_op   op    = { .leaves = 1, .elements = 600, .nodes = &node, .node_count = 1,
                           .slices = &slice, .slice_count = 1, .rounded = LK_I8,
                           .out = lk_arena_data(arena) };
    CHECK(lk_tree_reduce_start(&request, comm, &op) == LK_EINVAL);
    CHECK(strstr(lk_error_last()->message, "cuts a block of 256 elements that are rounded to I8"));
    slice = (lk_slice){ .first = 100, .count = 500, .owner = 0 };
    CHECK(lk_tree_reduce_start(&request, comm, &op) == LK_EINVAL);
    return true;
}

/* Waits until all ranks have arrived.  Over hosts a failure may reach a rank in this barrier. */
static bool all_have_come(lk_comm *comm)
{
    lk_status st = lk_barrier(comm);
    return st == LK_OK || st == LK_EMISMATCH;
}

/* Omits virtual worker 3.  Expects that all ranks receive the error, including a rank that owns no
 * slice. */
static bool notices_a_gap(lk_comm *comm, void *context)
{
    lk_arena *arena;
    float     out[8];
    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "gap", 4096) == LK_OK);
    CHECK(all_have_come(comm));
    lk_tree_node nodes[] = { { 0, 2, lk_arena_data(arena) }, { 2, 1, lk_arena_data(arena) } };
    lk_slice     slice   = { .first = 0, .count = 8, .owner = 0 };
    lk_tree_op   op      = { .leaves = 4, .elements = 8, .nodes = nodes,
                             .node_count = lk_comm_rank(comm) == 0 ? 2 : 0, .slices = &slice,
                             .slice_count = 1, .out = out };
    CHECK(lk_tree_reduce(comm, &op) == LK_EMISMATCH);
    CHECK(strstr(lk_error_last()->message, "up to 3 once and 3 in all, but there are 4") != NULL);
    CHECK(lk_barrier(comm) == LK_EMISMATCH);
    return true;
}

static bool notices_other_slices(lk_comm *comm, void *context)
{
    lk_arena *arena;
    float     out[8];
    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "slices", 4096) == LK_OK);
    CHECK(all_have_come(comm));
    lk_tree_node node  = { 0, 1, lk_arena_data(arena) };
    lk_slice     slice = { .first = 0, .count = 8 - lk_comm_rank(comm) % 2, .owner = 0 };
    lk_tree_op   op    = { .leaves = 1, .elements = 8, .nodes = &node,
                           .node_count = lk_comm_rank(comm) == 0, .slices = &slice,
                           .slice_count = 1, .out = out };
    CHECK(lk_tree_reduce(comm, &op) == LK_EMISMATCH);
    CHECK(strstr(lk_error_last()->message, "their slices") != NULL);
    return true;
}

static bool notices_other_algorithms(lk_comm *comm, void *context)
{
    lk_arena *arena;
    float     out[8];
    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "manners", 4096) == LK_OK);
    CHECK(all_have_come(comm));
    lk_tree_node node  = { 0, 1, lk_arena_data(arena) };
    lk_slice     slice = { .first = 0, .count = 8, .owner = 0 };
    lk_tree_op   op    = { .leaves = 1, .elements = 8, .nodes = &node,
                           .node_count = lk_comm_rank(comm) == 0, .slices = &slice,
                           .slice_count = 1, .out = out,
                           .algorithm = lk_comm_host(comm, lk_comm_rank(comm)) == 0
                                            ? LK_TREE_LINEAR : LK_TREE_DIRECT };
    CHECK(lk_tree_reduce(comm, &op) == LK_EMISMATCH);
    return true;
}

/* Holds a leaf on two ranks, which are on one host or on two.  Expects an error. */
static bool notices_twice(lk_comm *comm, void *context)
{
    lk_arena *arena;
    float     out[8];
    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "twice", 4096) == LK_OK);
    CHECK(all_have_come(comm));
    lk_tree_node node  = { 2, 1, lk_arena_data(arena) };
    lk_slice     slice = { .first = 0, .count = 8, .owner = 0 };
    lk_tree_op   op    = { .leaves = 4, .elements = 8, .nodes = &node, .node_count = 1,
                           .slices = &slice, .slice_count = 1, .out = out };
    CHECK(lk_tree_reduce(comm, &op) == LK_EMISMATCH);
    CHECK(strstr(lk_error_last()->message, "up to 0 once") != NULL ||
          strstr(lk_error_last()->message, "virtual worker 2 is held twice") != NULL);
    CHECK(lk_barrier(comm) == LK_EMISMATCH);
    return true;
}

static const hosted shapes[] = { { .hosts = 2, .each = 1 },
                                 { .hosts = 5, .each = 1, .seed = 1 },
                                 { .hosts = 2, .each = 2 },
                                 { .hosts = 3, .each = 3, .fewer = 2 } };
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct {
    lk_dtype          rounded;
    lk_tree_algorithm algorithm;
} manner;

/* Sums vectors with slices of several pieces.  Some elements are in no slice. */
static bool cuts_large_slices(lk_comm *comm, void *context)
{
    enum { LARGE = 700001 };
    const manner *how = context;
    uint32_t      me = lk_comm_rank(comm), size = lk_comm_size(comm);
    lk_arena     *arena;

    CHECK(lk_comm_arena(&arena, comm, "large", (size_t)LARGE * sizeof(float) * size) == LK_OK);
    float         *mine     = (float *)lk_arena_data(arena) + (size_t)LARGE * me;
    const lk_slice slices[] = { { 3, 600000, 0, 0 }, { 600003, 0, 1, 0 },
                                { 600010, 99000, size - 1, 0 } };
    lk_tree_node   node     = { me, 1, mine };
    lk_tree_op     op = { .leaves = size, .elements = LARGE, .nodes = &node, .node_count = 1,
                          .slices = slices, .slice_count = 3, .out = mine,
                          .rounded = how->rounded, .algorithm = how->algorithm };
    for (size_t i = 0; i < LARGE; i++)
        mine[i] = world_value(me, i, 77);
    CHECK(lk_tree_reduce(comm, &op) == LK_OK);
    if (!slices_are_right(comm, &op, 77))
        return false;
    CHECK(lk_barrier(comm) == LK_OK);
    return true;
}

static void large_slices_have_the_bits_of_the_tree(void **state)
{
    manner how = { LK_F32, LK_TREE_LINEAR };
    (void)state;
    assert_true(world_all(3, true, cuts_large_slices, &how));
    for (size_t k = 0; k < 2 * SHAPES; k++) {
        how.algorithm = k % 2 == 0 ? LK_TREE_DIRECT : LK_TREE_LINEAR;
        how.rounded   = k / 2 % 2 == 0 ? LK_F32 : LK_BF16;
        assert_true(hosted_all(shapes[k / 2], cuts_large_slices, &how));
    }
}

/* ---- Bytes sent between hosts ------------------------------------------------------------ */

/* The selection of linear, in the call or for the communicator. */
typedef enum { NOT_LINEAR, LINEAR, LINEAR_BY_NAME } selection;

typedef struct {
    uint32_t leaves;
    size_t   elements; /* size of two slices; a multiple of all numbers of hosts used here */
    uint64_t slack;    /* bytes by which slices in pieces may exceed the formula */
    bool     sharded;  /* only one host wants each slice */
    lk_dtype rounded;
    selection linear;
} traffic;

/* Counts the maximal subtrees whose leaves are all on this host, if ranks hold contiguous
 * ranges. */
static uint32_t subtrees_here(const lk_comm *comm, uint32_t leaves)
{
    uint32_t size = lk_comm_size(comm), host = lk_comm_host(comm, lk_comm_rank(comm));
    map      m    = { .leaves = leaves };

    for (uint32_t v = 0; v < leaves; v++)
        m.owner[v] = lk_comm_host(comm, v * size / leaves) == host;
    return gather_nodes(&m, 1, 0, leaves) ? m.node_count : 0;
}

/* Counts the bytes of sets of leaves that this rank sends: one set to each rank of another host
 * that owns the slices that this rank owns here. */
static uint64_t bytes_of_sets(const lk_comm *comm, uint32_t leaves)
{
    uint32_t mine    = lk_comm_local_size(comm, lk_comm_host(comm, lk_comm_rank(comm)));
    uint64_t largest = 0, sets = 0;

    for (uint32_t h = 0; h < lk_comm_hosts(comm); h++)
        largest = lk_comm_local_size(comm, h) > largest ? lk_comm_local_size(comm, h) : largest;
    for (uint32_t h = 0; h < lk_comm_hosts(comm); h++) {
        uint32_t theirs = lk_comm_local_size(comm, h);
        for (uint32_t pair = 0; pair < mine * theirs; pair++) {
            bool share = false;
            for (uint32_t owner = 0; owner < largest; owner++)
                share = share || (owner % mine == pair / theirs && owner % theirs == pair % theirs);
            sets += share && h != lk_comm_host(comm, lk_comm_rank(comm));
        }
    }
    return sets * ((leaves + 63) / 64) * sizeof(uint64_t);
}

static bool sum_of_host(lk_comm *comm, uint64_t mine, uint64_t *sum)
{
    uint64_t all[HOSTED_MAX];

    CHECK(lk_all_gather(comm, &mine, all, sizeof mine) == LK_OK);
    *sum = 0;
    for (uint32_t rank = 0; rank < lk_comm_size(comm); rank++)
        if (lk_comm_host(comm, rank) == lk_comm_host(comm, lk_comm_rank(comm)))
            *sum += all[rank];
    return true;
}

/* Counts the bytes of partial sums and sums.  Every element is summed on one host.  The other hosts
 * send that host their subtrees, and receive the sum if they want it.  By linear, every host that
 * wants an element receives all subtrees. */
static uint64_t bytes_of_sums(const lk_comm *comm, const lk_tree_op *op, bool linear)
{
    uint32_t hosts = lk_comm_hosts(comm), host = lk_comm_host(comm, lk_comm_rank(comm));
    uint64_t bytes = 0;

    for (size_t i = 0; i < op->slice_count; i++) {
        uint64_t wanted = 0;
        uint64_t all    = lk_rounded_bytes(op->rounded, op->slices[i].count);
        for (uint32_t h = 0; h < hosts; h++)
            wanted += wants(op, &op->slices[i], h);
        if (linear) {
            wanted -= wants(op, &op->slices[i], host);
            bytes += wanted * all * subtrees_here(comm, op->leaves);
            continue;
        }
        uint64_t not_mine = wants(op, &op->slices[i], host) ? all - all / wanted : all;
        bytes += not_mine * subtrees_here(comm, op->leaves) + (all - not_mine) * (wanted - 1);
    }
    return bytes;
}

/* Reduces, and counts the bytes that this rank sends and the bytes that its host should send. */
static bool reduce_and_count(lk_comm *comm, const traffic *t, uint64_t *sent, uint64_t *want)
{
    map       m    = { .leaves = t->leaves };
    uint32_t  size = lk_comm_size(comm), hosts = lk_comm_hosts(comm), seed = 0;
    size_t    part = 5 * t->elements;
    size_t    half = lki_quantises(t->rounded) ? t->elements / 512 * 256 : t->elements / 2;
    lk_slice  slices[2] = { { 0, half, 0, 0 }, { half, t->elements - half, 1, t->sharded } };
    lk_arena *arena;

    CHECK(lk_comm_arena(&arena, comm, "traffic", part * sizeof(float) * size) == LK_OK);
    float *memory = (float *)lk_arena_data(arena) + part * lk_comm_rank(comm);
    choose_owners(&m, CONTIGUOUS, size, &seed);
    CHECK(gather_nodes(&m, lk_comm_rank(comm), 0, m.leaves) && m.node_count <= 5);
    fill_nodes(&m, memory, t->elements, t->rounded, 1);
    lk_tree_op op = { .leaves = m.leaves, .elements = t->elements, .nodes = m.nodes,
                      .node_count = m.node_count, .slices = slices, .slice_count = 2,
                      .shards = t->sharded ? hosts : 1, .out = memory, .rounded = t->rounded,
                      .algorithm = t->linear == LINEAR ? LK_TREE_LINEAR : LK_TREE_AUTO };
    CHECK(t->linear != LINEAR_BY_NAME
          || lk_comm_set_algorithms(comm, "tree_reduce:linear") == LK_OK);
    uint64_t before = lki_wire_count(comm->self->wire).bytes_sent;
    CHECK(lk_tree_reduce(comm, &op) == LK_OK);
    *sent = lki_wire_count(comm->self->wire).bytes_sent - before;
    *want = bytes_of_sets(comm, m.leaves) + bytes_of_sums(comm, &op, t->linear != NOT_LINEAR);
    return slices_are_right(comm, &op, 1);
}

static bool sends_what_it_should(lk_comm *comm, void *context)
{
    const traffic *t = context;
    uint64_t       sent, want;

    if (!reduce_and_count(comm, t, &sent, &want) || !sum_of_host(comm, sent, &sent))
        return false;
    CHECK(sent + t->slack >= want && sent <= want + t->slack);
    return true;
}

/* Checks the number of bytes that all hosts send in total, if each host holds one subtree.  The
 * number is H-1 times the size of the subtrees and H-1 times the size of their sum.  It does not
 * depend on how many elements each host sums. */
static bool all_send_what_they_should(lk_comm *comm, void *context)
{
    const traffic *t     = context;
    uint64_t       hosts = lk_comm_hosts(comm), sent, want, all[HOSTED_MAX], sum = 0, sets;

    if (!reduce_and_count(comm, t, &sent, &want))
        return false;
    CHECK(lk_all_gather(comm, &sent, all, sizeof sent) == LK_OK);
    for (uint32_t rank = 0; rank < lk_comm_size(comm); rank++)
        sum += all[rank];
    sets = hosts * bytes_of_sets(comm, t->leaves); /* all hosts send equally many bytes of sets */
    CHECK(sum == sets + 2 * (hosts - 1) * lk_rounded_bytes(t->rounded, t->elements));
    return true;
}

static void uneven_slices_send_no_more(void **state)
{
    static const hosted alike[]    = { { .hosts = 2, .each = 1 },
                                       { .hosts = 4, .each = 1 },
                                       { .hosts = 2, .each = 2 },
                                       { .hosts = 4, .each = 2 } };
    static const size_t elements[] = { 7, 61, 9601, 300007 };
    (void)state;
    for (size_t i = 0; i < 4; i++)
        for (size_t k = lki_brief() ? i : 0; k < 4; k += lki_brief() ? 4 : 1) {
            traffic t = { .leaves = 8, .elements = elements[k], .rounded = k % 2 ? LK_F16 : 0 };
            assert_true(hosted_all(alike[i], all_send_what_they_should, &t));
        }
    for (size_t i = 0; i < 4; i++) { /* 1199 blocks; the last block is short */
        traffic t = { .leaves = 8, .elements = 599 * 512 + 500, .rounded = i % 2 ? LK_I8 : LK_I4 };
        assert_true(hosted_all(alike[i], all_send_what_they_should, &t));
    }
}

static void hosts_send_the_bytes_of_the_formula(void **state)
{
    static const traffic jobs[] = {
        { 8, 60, 0, false, 0, NOT_LINEAR },      { 12, 9600, 0, false, LK_BF16, NOT_LINEAR },
        { 8, 960000, 64, false, 0, NOT_LINEAR }, { 9, 960000, 64, false, LK_F16, NOT_LINEAR },
        { 8, 60, 0, true, LK_BF16, NOT_LINEAR }, { 9, 960000, 0, true, 0, NOT_LINEAR },
        { 9, 30720, 0, false, LK_I4, NOT_LINEAR }, { 8, 30720, 0, true, LK_I8, NOT_LINEAR },
        { 9, 960000, 0, false, 0, LINEAR },      { 12, 9600, 0, false, LK_BF16, LINEAR_BY_NAME },
        { 9, 30720, 0, false, LK_I4, LINEAR_BY_NAME }, { 8, 960000, 0, true, 0, LINEAR }
    };
    (void)state;
    for (size_t i = 0; i < SHAPES; i++)
        for (size_t k = 0; k < sizeof jobs / sizeof jobs[0]; k++) {
            if (lki_brief() && (i + k) % 4 != 0)
                continue;
            traffic t = jobs[k];
            assert_true(hosted_all(shapes[i], sends_what_it_should, &t));
        }
}

static void every_assignment_has_the_same_bits(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= 8; size += lki_brief() ? 3 : 1)
        assert_true(world_all(size, size % 2 == 0, reduces_every_map, NULL));
    assert_true(world_all(3, true, reduces_every_map, NULL));
    assert_true(world_all(4, false, reduces_every_map, NULL));
    for (size_t k = 0; k < SHAPES; k += lki_brief() ? 3 : 1)
        assert_true(hosted_all(shapes[k], reduces_every_map, NULL));
}

static void open_reductions_complete_in_any_order(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= 8; size = size * 3 / 2 + 1)
        for (int threads = 0; threads < 2; threads++)
            assert_true(world_all(size, threads == 1, keeps_many_open, NULL));
    for (size_t k = 0; k < SHAPES; k += lki_brief() ? 3 : 1)
        assert_true(hosted_all(shapes[k], keeps_many_open, NULL));
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 4; size += 2)
        for (int threads = 0; threads < 2; threads++) {
            assert_true(world_all(size, threads == 1, refuses_bad_nodes, NULL));
            assert_true(world_all(size, threads == 1, refuses_cut_blocks, NULL));
            assert_true(world_all(size, threads == 1, notices_a_gap, NULL));
            assert_true(world_all(size, threads == 1, notices_other_slices, NULL));
        }
    for (size_t k = 0; k < SHAPES; k++) {
        assert_true(hosted_all(shapes[k], refuses_bad_nodes, NULL));
        assert_true(hosted_all(shapes[k], notices_a_gap, NULL));
        assert_true(hosted_all(shapes[k], notices_twice, NULL));
        assert_true(hosted_all(shapes[k], notices_other_slices, NULL));
        assert_true(hosted_all(shapes[k], notices_other_algorithms, NULL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_calls_are_refused),
        cmocka_unit_test(every_assignment_has_the_same_bits),
        cmocka_unit_test(open_reductions_complete_in_any_order),
        cmocka_unit_test(large_slices_have_the_bits_of_the_tree),
        cmocka_unit_test(hosts_send_the_bytes_of_the_formula),
        cmocka_unit_test(uneven_slices_send_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
