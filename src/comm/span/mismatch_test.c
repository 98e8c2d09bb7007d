/* span/mismatch_test.c -- a rank that makes a different call than the other ranks: every operation,
 * every argument, every method.
 *
 * Goal:   every rank receives LK_EMISMATCH, with a text that names exactly two ranks and the
 *         operation of each.  A rank receives the error in that call or, if its own part of the
 *         call was complete, in its next call.  No rank waits for a deadline.
 * Method: a call is a value, from which the test makes both the call and its text in errors.  Ranks
 *         are on one host (threads or processes), or on three hosts (the simulation's clock
 *         measures the time), or on two hosts with two ranks each, with and without levels.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/thorough_testing.h"
#include "comm/hosted_testing.h"

enum { RANKS_MOST = 4, ROOM = 3 << 17, SOON_MS = 100, OTHER_PARTS = 1000000 };

/* ---- Calls ------------------------------------------------------------------------------- */

typedef struct {
    lki_op_kind    kind;
    size_t         count; /* the count in the call's text; + OTHER_PARTS: an equal total in
                           * other parts */
    lk_dtype       dtype;
    lk_reduce_kind op;
    uint32_t       root;
} call;

typedef struct {
    const char *name;
    call        call;
    bool        has_count, has_type, has_root, has_list;
} operation;

static const operation operations[] = {
    { "barrier", { LKI_OP_BARRIER, 0, 0, 0, 0 }, false, false, false, false },
    { "broadcast", { LKI_OP_BROADCAST, 96, 0, 0, 2 }, true, false, true, false },
    { "all_gather", { LKI_OP_ALL_GATHER, 96, 0, 0, 0 }, true, false, false, false },
    { "all_gather_v", { LKI_OP_ALL_GATHER_V, 96, 0, 0, 0 }, true, false, false, true },
    { "gather", { LKI_OP_GATHER, 96, 0, 0, 2 }, true, false, true, false },
    { "scatter", { LKI_OP_SCATTER, 96, 0, 0, 2 }, true, false, true, false },
    { "all_to_all", { LKI_OP_ALL_TO_ALL, 96, 0, 0, 0 }, true, false, false, false },
    { "all_to_all_v", { LKI_OP_ALL_TO_ALL_V, 0, 0, 0, 0 }, false, false, false, false },
    { "all_reduce", { LKI_OP_ALL_REDUCE, 96, LK_F32, LK_REDUCE_SUM, 0 }, true, true, false, false },
    { "reduce", { LKI_OP_REDUCE, 96, LK_F32, LK_REDUCE_SUM, 2 }, true, true, true, false },
    { "reduce_scatter", { LKI_OP_REDUCE_SCATTER, 96, LK_F32, LK_REDUCE_SUM, 0 }, true, true, false,
      false },
    { "reduce_scatter_v", { LKI_OP_REDUCE_SCATTER_V, 96, LK_F32, LK_REDUCE_SUM, 0 }, true, true,
      false, true },
    { "tree_reduce", { LKI_OP_TREE_REDUCE, 96, LK_F32, 0, 0 }, true, false, false, true },
    { "arena", { LKI_OP_ARENA, 4096, 0, 0, 0 }, true, false, false, true },
    { "split", { LKI_OP_SPLIT, 0, 0, 0, 0 }, false, false, false, true },
};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

/* Writes the text by which errors name the call. */
static void text_of(char *out, size_t bytes, const call *c, uint64_t seq)
{
    lki_print print = lki_print_reduce(c->kind, c->dtype, (lk_reduce_op){ c->op, 1 }, c->root,
                                       c->count % OTHER_PARTS);
    lki_print_text(out, bytes, print, seq, 0);
}

/* Divides the call's total into parts: equal parts, or nearly everything for the first rank. */
static void divide(const call *c, uint32_t size, size_t *parts)
{
    size_t total = c->count % OTHER_PARTS;

    for (uint32_t rank = 0; rank < size; rank++)
        parts[rank] = total / size + (rank == 0 ? total % size : 0);
    if (c->count >= OTHER_PARTS && total > 0) {
        parts[0] += parts[size - 1] - 1;
        parts[size - 1] = 1;
    }
}

static lk_status run_tree(lk_comm *comm, const call *c, float *a, float *b)
{
    uint32_t     rank = lk_comm_rank(comm), size = lk_comm_size(comm);
    size_t       n     = c->count % OTHER_PARTS;
    lk_tree_node node  = { .first = rank, .count = 1, .data = a };
    lk_slice     slice = { .first = 0, .count = n, .owner = c->count >= OTHER_PARTS };
    lk_tree_op   op    = { .leaves = size, .elements = n, .nodes = &node, .node_count = 1,
                           .slices = &slice, .slice_count = 1, .out = b };
    return lk_tree_reduce(comm, &op);
}

static lk_status run_split(lk_comm *comm, const call *c)
{
    static const uint32_t ranks[2] = { 0, 2 }, others[2] = { 2, 0 };
    lk_comm              *child;
    bool                  differs = c->count >= OTHER_PARTS;
    lk_status             st      = lk_comm_subset(&child, comm, differs ? others : ranks, 2);
    lk_comm_free(child);
    return st;
}

static lk_status run(lk_comm *comm, const call *c, void *a, void *b)
{
    lk_reduce_op op = { c->op, 1 };
    size_t       parts[RANKS_MOST], even[RANKS_MOST] = { 8, 8, 8, 8 };
    lk_arena    *arena;

    divide(c, lk_comm_size(comm), parts);
    switch ((int)c->kind) {
    case LKI_OP_BARRIER: return lk_barrier(comm);
    case LKI_OP_BROADCAST: return lk_broadcast(comm, a, c->count, c->root);
    case LKI_OP_ALL_GATHER: return lk_all_gather(comm, a, b, c->count);
    case LKI_OP_ALL_GATHER_V: return lk_all_gather_v(comm, a, b, parts);
    case LKI_OP_GATHER: return lk_gather(comm, a, b, c->count, c->root);
    case LKI_OP_SCATTER: return lk_scatter(comm, a, b, c->count, c->root);
    case LKI_OP_ALL_TO_ALL: return lk_all_to_all(comm, a, b, c->count);
    case LKI_OP_ALL_TO_ALL_V: return lk_all_to_all_v(comm, a, even, b, even);
    case LKI_OP_ALL_REDUCE: return lk_all_reduce(comm, a, b, c->count, c->dtype, op);
    case LKI_OP_REDUCE: return lk_reduce(comm, a, b, c->count, c->dtype, op, c->root);
    case LKI_OP_REDUCE_SCATTER: return lk_reduce_scatter(comm, a, b, c->count, c->dtype, op);
    case LKI_OP_REDUCE_SCATTER_V: return lk_reduce_scatter_v(comm, a, b, parts, c->dtype, op);
    case LKI_OP_TREE_REDUCE: return run_tree(comm, c, a, b);
    case LKI_OP_ARENA:
        return lk_comm_arena(&arena, comm, c->count < OTHER_PARTS ? "a" : "b",
                             c->count % OTHER_PARTS);
    default: return run_split(comm, c);
    }
}

/* ---- A disagreement ---------------------------------------------------------------------- */

typedef struct {
    const char *what;
    call        call, other; /* `other`: the victim's call */
    uint32_t    victim;
    bool        leaves; /* the victim leaves after its own part of the call is complete */
    bool        virtual_time;
    _Atomic int64_t slowest_ms;
} quarrel;

static int64_t now_ms(const lk_comm *comm, const quarrel *q)
{
    return q->virtual_time ? lki_wire_now_ms(comm->self->wire) : lki_now_ms();
}

/* Checks that the error names the victim, one other rank, and the operation of each of the two. */
static bool names_both(lk_comm *comm, const quarrel *q, uint64_t seq)
{
    const char *text = lk_error_last()->message;
    char        sides[2][LKI_OPERATION_BYTES], victim[16];

    text_of(sides[0], sizeof sides[0], &q->call, seq);
    text_of(sides[1], sizeof sides[1], &q->other, seq);
    snprintf(victim, sizeof victim, "rank %u ", q->victim);
    CHECK(strstr(text, victim) != NULL);
    CHECK(strstr(text, sides[0]) != NULL && strstr(text, sides[1]) != NULL);
    CHECK(strcmp(sides[0], sides[1]) != 0 || strstr(text, "differ") != NULL);
    CHECK(strlen(text) + 1 < sizeof lk_error_last()->message);
    return true;
}

/* Makes two calls.  The victim makes them in the opposite order.  Expects a mismatch. */
static bool strays(lk_comm *comm, void *context)
{
    quarrel    *q      = context;
    bool        victim = lk_comm_rank(comm) == q->victim;
    const call *calls[2] = { victim ? &q->other : &q->call, victim ? &q->call : &q->other };
    lk_arena   *arena;
    char        first[LKI_MESSAGE_BYTES];

    CHECK(lk_comm_arena(&arena, comm, "room", (size_t)2 * ROOM * RANKS_MOST) == LK_OK);
    unsigned char *room  = (unsigned char *)lk_arena_data(arena);
    unsigned char *a     = room + (size_t)2 * ROOM * lk_comm_rank(comm), *b = a + ROOM;
    uint64_t       seq   = comm->seq + 1;
    lk_status      st    = lk_barrier(comm); /* it may already fail with the other ranks' error */
    int64_t        began = now_ms(comm, q), took;
    for (int i = 0; i < 2 && st == LK_OK; i++) {
        st = run(comm, calls[i], a, b);
        if (victim && q->leaves && st == LK_OK)
            return true;
    }
    st   = st == LK_OK ? lk_barrier(comm) : st;
    took = now_ms(comm, q) - began;
    if (took > atomic_load(&q->slowest_ms))
        atomic_store(&q->slowest_ms, took);
    CHECK(st == LK_EMISMATCH && lk_error_last()->status == st);
    CHECK(!q->virtual_time || took < SOON_MS);
    snprintf(first, sizeof first, "%s", lk_error_last()->message);
    CHECK(lk_barrier(comm) == st && strcmp(first, lk_error_last()->message) == 0);
    return names_both(comm, q, seq);
}

/* ---- Numbers known to two ranks alone ---------------------------------------------------- */

/* Makes the victim of an all_to_all_v send the last rank other.count bytes, not the expected
 * call.count.  The receiver must detect this when the bytes arrive, before any later data, because
 * the fingerprint of an all_to_all_v does not include sizes. */
static bool sends_another_number(lk_comm *comm, void *context)
{
    const quarrel *q    = context;
    uint32_t       last = lk_comm_size(comm) - 1, me = lk_comm_rank(comm);
    const size_t   even[RANKS_MOST] = { 8, 8, 8, 8 };
    size_t         send[RANKS_MOST] = { 8, 8, 8, 8 }, recv[RANKS_MOST] = { 8, 8, 8, 8 };
    unsigned char *a = calloc(1, ROOM), *b = calloc(1, ROOM);
    char           want[160];

    snprintf(want, sizeof want, "all_to_all_v #%llu: rank %u sends %zu bytes to rank %u, which "
             "expects %zu", (unsigned long long)comm->seq, q->victim, q->other.count, last,
             q->call.count);
    CHECK(a != NULL && b != NULL);
    if (me == q->victim)
        send[last] = q->other.count;
    if (me == last)
        recv[q->victim] = q->call.count;
    lk_status st = lk_all_to_all_v(comm, a, send, b, recv);
    st           = st == LK_OK ? lk_all_to_all_v(comm, a, even, b, even) : st;
    st           = st == LK_OK ? lk_barrier(comm) : st;
    free(a);
    free(b);
    CHECK(st == LK_EMISMATCH && strstr(lk_error_last()->message, want) != NULL);
    return true;
}

/* Sends more bytes from rank 2 than rank 1 expects.  The other ranks are in a different call. */
static bool sends_too_much(lk_comm *comm, void *context)
{
    uint32_t  me       = lk_comm_rank(comm);
    char      text[16] = { 0 };
    lk_status st       = LK_OK;

    (void)context;
    if (me == 1)
        st = lk_recv(comm, text, 13, 2);
    else if (me == 2)
        st = lk_send(comm, text, 16, 1);
    st = st == LK_OK ? lk_barrier(comm) : st;
    CHECK(st == LK_EMISMATCH && strstr(lk_error_last()->message, " #0 (13 bytes ") != NULL);
    CHECK(strstr(lk_error_last()->message, " #0 (16 bytes to rank 1)") != NULL);
    return true;
}

static bool has_another_factor(lk_comm *comm, void *context)
{
    const quarrel *q      = context;
    double         factor = lk_comm_rank(comm) == q->victim ? 0.5 : 0.25;
    float          x      = 1;

    CHECK(lk_all_reduce(comm, &x, &x, 1, LK_F32, lk_premul_sum(factor)) == LK_EMISMATCH);
    CHECK(strstr(lk_error_last()->message, "(F32 premul_sum, 1 elements)") != NULL);
    CHECK(strstr(lk_error_last()->message, "factors differ") != NULL);
    return true;
}

/* ---- Shapes and algorithms --------------------------------------------------------------- */

static const char levels[] = "all_reduce:levels,reduce_scatter:levels,all_gather:levels,"
                             "broadcast:levels";

typedef struct {
    const char *name;
    hosted      hosted;
    bool        alone; /* all ranks are on one host */
} way;

static const way ways[] = {
    { "levels", { .hosts = 2, .each = 2, .algorithms = levels, .quarrels = true }, false },
    { "two by two", { .hosts = 2, .each = 2, .quarrels = true }, false },
    { "three hosts", { .hosts = 3, .each = 1 }, false },
    { "one host", { .hosts = 1, .each = 3 }, true },
};
enum { WAYS = sizeof ways / sizeof ways[0] };

static int64_t slowest[WAYS];

static bool carry_out(size_t w, world_main main, quarrel *q)
{
    world one = {
        .size = 3, .threads = q->victim != 1, .timeout_ms = WORLD_PATIENCE_MS, .victim = NOBODY
    };
    return ways[w].alone ? world_run(one, main, q) == 7 : hosted_all(ways[w].hosted, main, q);
}

static void quarrel_by(size_t w, quarrel q)
{
    q.virtual_time = ways[w].hosted.each == 1;
    bool good      = carry_out(w, strays, &q);
    int64_t took = atomic_load(&q.slowest_ms);
    slowest[w]   = took > slowest[w] ? took : slowest[w];
    if (!good)
        fail_msg("%s: %s", ways[w].name, q.what);
}

static bool has_levels(const operation *op)
{
    char name[40];
    snprintf(name, sizeof name, "%s:levels", op->name);
    return strstr(levels, name) != NULL;
}

/* Tries all pairs of operations in one of the two orders.  With LK_THOROUGH=1 tries both orders,
 * and pairs with levels in one more way. */
static void differing_operations_are_reported(void **state)
{
    char what[80];
    (void)state;
    for (size_t i = 0; i < OPERATIONS; i++)
        for (size_t k = 0; k < OPERATIONS; k++) {
            if (!lki_thorough() && (i < k) != ((i + k) % 2 == 0))
                continue;
            if (lki_brief() && (i + k) % 3 != 0)
                continue;
            quarrel q   = { .what = what, .call = operations[i].call,
                            .other = operations[k].call, .victim = (uint32_t)(i + k) % 3,
                            .leaves = operations[k].has_root };
            bool    all = has_levels(&operations[i]) || has_levels(&operations[k]);
            snprintf(what, sizeof what, "%s, but rank %u in %s", operations[i].name, q.victim,
                     operations[k].name);
            for (size_t w = 0; w < WAYS && i != k; w++)
                if ((all && w == 0) || (i * 3 + k) % (WAYS - 1) == w - 1)
                    quarrel_by(w, q);
        }
}

static void quarrel_about(const operation *op, const char *about, call other)
{
    char what[80];

    snprintf(what, sizeof what, "%s, %s", op->name, about);
    for (size_t w = 0; w < WAYS; w++)
        quarrel_by(w, (quarrel){ .what = what, .call = op->call, .other = other,
                                 .victim = (uint32_t)(w + other.count + other.root) % 3,
                                 .leaves = op->has_root });
}

static void differing_arguments_are_reported(void **state)
{
    (void)state;
    for (size_t i = 0; i < OPERATIONS; i++) {
        const operation *op = &operations[i];
        call             c  = op->call;
        if (op->has_count) {
            c.count += 8;
            quarrel_about(op, "count", c);
            c.count = 20000;
            quarrel_about(op, "a large count", c);
        }
        c = op->call;
        if (op->has_list) {
            c.count += OTHER_PARTS;
            quarrel_about(op, "parts", c);
        }
        c = op->call;
        if (op->has_root) {
            c.root = 1;
            quarrel_about(op, "root", c);
            c.root = 0;
            quarrel_about(op, "another root", c);
        }
        c = op->call;
        if (op->has_type) {
            c.dtype = LK_I32;
            quarrel_about(op, "dtype", c);
            c    = op->call;
            c.op = LK_REDUCE_MAX;
            quarrel_about(op, "reduction", c);
        }
    }
}

static void differing_send_and_receive_counts_are_reported(void **state)
{
    static const size_t numbers[][2] = { { 16, 8 }, { 3, 8 }, { 0, 8 }, { 8, 0 }, { 200000, 8 },
                                         { 200000, 300000 } }; /* number of bytes sent, number
                                                                * expected */
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        for (size_t w = 0; w < WAYS; w++) {
            quarrel q = { .victim = (uint32_t)(i + w) % 2, .other.count = numbers[i][0],
                          .call.count = numbers[i][1] };
            assert_true(carry_out(w, sends_another_number, &q));
        }
    for (size_t w = 0; w < WAYS; w++) {
        quarrel q = { .victim = (uint32_t)w % 3 };
        assert_true(carry_out(w, sends_too_much, &q));
        assert_true(carry_out(w, has_another_factor, &q));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(differing_send_and_receive_counts_are_reported),
        cmocka_unit_test(differing_arguments_are_reported),
        cmocka_unit_test(differing_operations_are_reported),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t w = 0; w < WAYS; w++)
        printf("%s: at most %lld ms\n", ways[w].name, (long long)slowest[w]);
    return failed;
}
