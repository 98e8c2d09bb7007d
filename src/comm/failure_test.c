/* failure_test.c -- what the others learn when a rank dies, stops, gives up or leaves; when it does
 * something else than they: span/mismatch_test.c.
 *
 * Goal:   in every collective: nobody hangs, everybody is told which rank, how and where, and
 *         the same again on every later call.
 * Method: ranks are forked processes; one kills itself in the place of an operation, or is struck
 *         by the parent at a moment of its choosing.  Once with a launcher that reports deaths,
 *         once with one that keeps silent, so that the peers must find out.  The deadline is
 *         20 s, and a survivor that needed 5 s has waited for the wrong thing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "comm/world.h"

enum { LARGE = 200000, SIZE = 3, VICTIM = 1 };

typedef struct {
    lk_comm  *comm;
    lk_arena *arena;
    float    *shared, *heap; /* LARGE elements each; `shared` is this rank's part of the arena */
} room;

static lk_status do_barrier(room *r)
{
    return lk_barrier(r->comm);
}

static lk_status do_broadcast_small(room *r)
{
    return lk_broadcast(r->comm, r->heap, 16, 0);
}

static lk_status do_broadcast(room *r)
{
    return lk_broadcast(r->comm, r->heap, LARGE, 0);
}

static lk_status do_all_gather(room *r)
{
    return lk_all_gather(r->comm, r->shared, r->heap, LARGE);
}

static lk_status do_all_reduce_small(room *r)
{
    return lk_all_reduce(r->comm, r->heap, r->heap, 3, LK_F32, LK_SUM);
}

static lk_status do_all_reduce_staged(room *r)
{
    return lk_all_reduce(r->comm, r->heap, r->heap, LARGE, LK_F32, LK_SUM);
}

static lk_status do_all_reduce_direct(room *r)
{
    return lk_all_reduce(r->comm, r->shared, r->shared, LARGE, LK_F32, LK_SUM);
}

static lk_status do_tree_reduce(room *r)
{
    uint32_t     rank  = lk_comm_rank(r->comm), size = lk_comm_size(r->comm);
    lk_tree_node node  = { .first = rank, .count = 1, .data = r->shared };
    lk_slice     slice = { .first = 0, .count = LARGE, .owner = 0 };
    lk_tree_op   op    = { .leaves = size, .elements = LARGE, .nodes = &node, .node_count = 1,
                           .slices = &slice, .slice_count = 1, .out = r->heap };
    return lk_tree_reduce(r->comm, &op);
}

static lk_status do_reduce(room *r)
{
    return lk_reduce(r->comm, r->heap, r->heap, LARGE, LK_BF16, LK_MAX, 0);
}

static lk_status do_reduce_scatter(room *r)
{
    return lk_reduce_scatter(r->comm, r->shared, r->heap, LARGE / SIZE, LK_F32, LK_AVG);
}

static lk_status do_reduce_scatter_v(room *r)
{
    const size_t counts[SIZE] = { LARGE / 2, 0, LARGE / 4 };
    return lk_reduce_scatter_v(r->comm, r->heap, r->heap + LARGE, counts, LK_F32, LK_SUM);
}

static lk_status do_all_gather_v(room *r)
{
    const size_t bytes[SIZE] = { LARGE, 7, LARGE / 2 };
    return lk_all_gather_v(r->comm, r->shared, r->heap, bytes);
}

static lk_status do_gather(room *r)
{
    return lk_gather(r->comm, r->heap, r->heap + LARGE, LARGE, 0);
}

static lk_status do_scatter(room *r)
{
    return lk_scatter(r->comm, r->heap, r->heap + LARGE, LARGE, 0);
}

static lk_status do_all_to_all(room *r)
{
    return lk_all_to_all(r->comm, r->heap, r->heap, LARGE);
}

static lk_status do_all_to_all_v(room *r)
{
    const size_t bytes[SIZE] = { LARGE, LARGE, LARGE };
    return lk_all_to_all_v(r->comm, r->heap, bytes, r->heap + LARGE, bytes);
}

static lk_status do_split(room *r)
{
    lk_comm  *half;
    lk_status st = lk_comm_split(&half, r->comm, lk_comm_rank(r->comm) == 0, 0);
    lk_comm_free(half);
    return st;
}

/* Ranks 0 and 2 hear from 1 and answer: nobody else is in it. */
static lk_status do_message(room *r)
{
    uint32_t rank = lk_comm_rank(r->comm);
    for (uint32_t peer = 0; peer < SIZE; peer += 2) {
        if (rank == VICTIM)
            LK_TRY(lk_send(r->comm, r->heap, LARGE, peer));
        if (rank == peer)
            LK_TRY(lk_recv(r->comm, r->heap, LARGE, VICTIM));
    }
    return LK_OK;
}

static lk_status do_arena(room *r)
{
    lk_arena *arena;
    return lk_comm_arena(&arena, r->comm, "one more", 10000);
}

typedef lk_status operation(room *r);

static operation *const operations[] = {
    do_barrier,
    do_broadcast_small,
    do_broadcast,
    do_all_gather,
    do_all_reduce_small,
    do_all_reduce_staged,
    do_all_reduce_direct,
    do_tree_reduce,
    do_reduce,
    do_reduce_scatter,
    do_reduce_scatter_v,
    do_all_gather_v,
    do_gather,
    do_scatter,
    do_all_to_all,
    do_all_to_all_v,
    do_message,
    do_split,
    do_arena,
};
/* The last two take memory each time, so they are not run without end. */
enum { OPERATIONS = sizeof operations / sizeof operations[0], ENDLESS = OPERATIONS - 2 };

static bool room_open(room *r, lk_comm *comm)
{
    size_t bytes = LARGE * sizeof *r->shared;

    *r = (room){ .comm = comm, .heap = calloc(SIZE, bytes) };
    CHECK(r->heap != NULL);
    CHECK(lk_comm_arena(&r->arena, comm, "room", bytes * lk_comm_size(comm)) == LK_OK);
    r->shared = (float *)lk_arena_data(r->arena) + (size_t)LARGE * lk_comm_rank(comm);
    return true;
}

typedef struct {
    operation  *op;
    lk_status        expect;
    const char      *words[3]; /* that the message must have */
} story;

/* The operation fails as told, at once, and the next one fails in the same words. */
static bool fails_as_told(lk_comm *comm, const story *s, lk_status st, int64_t began)
{
    char first[480];

    CHECK(st == s->expect);
    CHECK(lk_error_last()->status == st);
    CHECK(lki_now_ms() - began < 5000);
    for (size_t i = 0; i < 3; i++)
        CHECK(s->words[i] == NULL || strstr(lk_error_last()->message, s->words[i]) != NULL);
    snprintf(first, sizeof first, "%s", lk_error_last()->message);
    CHECK(lk_barrier(comm) == st && strcmp(first, lk_error_last()->message) == 0);
    return true;
}

/* ---- Death ------------------------------------------------------------------------------- */

static bool dies_instead(lk_comm *comm, void *context)
{
    const story *s = context;
    room         r;

    if (!room_open(&r, comm))
        return false;
    lk_comm_note(comm, 12, "backward");
    for (int i = 0; i < 3; i++)
        CHECK(s->op(&r) == LK_OK);
    if (lk_comm_rank(comm) == VICTIM)
        (void)raise(SIGKILL);
    int64_t began = lki_now_ms();
    bool    good  = fails_as_told(comm, s, s->op(&r), began);
    free(r.heap);
    return good;
}

/* Runs until it fails. */
static bool goes_on(lk_comm *comm, void *context)
{
    const story *s = context;
    lk_status    st;
    room         r;

    if (!room_open(&r, comm))
        return false;
    lk_comm_note(comm, 12, "backward");
    int64_t began;
    do {
        began = lki_now_ms();
        st    = s->op(&r);
    } while (st == LK_OK);
    bool good = fails_as_told(comm, s, st, began);
    free(r.heap);
    return good;
}

static const uint32_t survivors = (1u << SIZE) - 1 - (1u << VICTIM);

static void death_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < OPERATIONS; i++)
        for (int deaf = 0; deaf < 2; deaf++) {
            story s = { .op = operations[i], .expect = LK_EPEER,
                        .words = { "rank 1 (pid", deaf ? "is gone" : "was killed by SIGKILL",
                                   "at step 12 in backward" } };
            world w = { .size = SIZE, .timeout_ms = 20000, .deaf = deaf == 1, .victim = NOBODY };
            assert_int_equal(world_run(w, dies_instead, &s), survivors);
        }
}

static void death_at_any_moment_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < ENDLESS; i++) {
        story s = { .op = operations[i], .expect = LK_EPEER,
                    .words = { "rank 1 (pid", i % 2 == 0 ? "is gone" : "SIGKILL", NULL } };
        world w = { .size = SIZE, .timeout_ms = 20000, .deaf = i % 2 == 0, .victim = VICTIM,
                    .signal = SIGKILL, .after_ms = 30 + 7 * (int64_t)i };
        assert_int_equal(world_run(w, goes_on, &s), survivors);
    }
}

/* ---- Silence ----------------------------------------------------------------------------- */

static void a_stopped_rank_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < ENDLESS; i += 4) {
        story s = { .op = operations[i], .expect = LK_ETIMEOUT,
                    .words = { "rank 1 (pid", "stopped, last in", "at step 12 in backward" } };
        world w = { .size = SIZE, .timeout_ms = 1500, .victim = VICTIM, .signal = SIGSTOP,
                    .after_ms = 100 };
        assert_int_equal(world_run(w, goes_on, &s), survivors);
    }
}

static bool stays_away(lk_comm *comm, void *context)
{
    const story *s = context;
    lk_comm_note(comm, 3, "data");
    CHECK(lk_barrier(comm) == LK_OK);
    if (lk_comm_rank(comm) != VICTIM)
        return fails_as_told(comm, s, lk_barrier(comm), lki_now_ms());
    while (!lki_failed(comm))
        (void)usleep(1000);
    return fails_as_told(comm, s, lk_barrier(comm), lki_now_ms()); /* it is told as well */
}

static void a_rank_that_does_not_come_is_told(void **state)
{
    (void)state;
    for (int threads = 0; threads < 2; threads++) {
        story s = { .expect = LK_ETIMEOUT,
                    .words = { "waited", threads ? "a thread of this process" : "alive",
                               "last in barrier #0, at step 3 in data" } };
        world w = { .size = SIZE, .threads = threads == 1, .timeout_ms = 800, .victim = NOBODY };
        assert_int_equal(world_run(w, stays_away, &s), (1u << SIZE) - 1);
    }
}

static bool leaves_early(lk_comm *comm, void *context)
{
    CHECK(lk_barrier(comm) == LK_OK);
    if (lk_comm_rank(comm) == VICTIM)
        return true;
    return fails_as_told(comm, context, lk_barrier(comm), lki_now_ms());
}

static void a_rank_that_leaves_is_told(void **state)
{
    (void)state;
    for (int threads = 0; threads < 2; threads++) {
        story s = { .expect = LK_EPEER,
                    .words = { "rank 1 (pid", "left the group", "barrier #0" } };
        world w = { .size = SIZE, .threads = threads == 1, .timeout_ms = 20000, .victim = NOBODY };
        assert_int_equal(world_run(w, leaves_early, &s), (1u << SIZE) - 1);
    }
}

/* ---- Requests, and groups ---------------------------------------------------------------- */

/* A request that the others need and that is dropped. */
static bool drops_a_request(lk_comm *comm, void *context)
{
    lk_request *request;
    room        r;
    (void)context;
    if (!room_open(&r, comm))
        return false;
    lk_status st = lk_all_reduce_start(&request, comm, r.heap, r.heap, LARGE, LK_F32, LK_SUM);
    if (lk_comm_rank(comm) == VICTIM) {
        lk_request_free(request);
        request = NULL;
        st      = lk_barrier(comm);
    } else if (st == LK_OK) { /* else the others were faster */
        st = lk_request_wait(request);
    }
    story s    = { .expect = LK_EPEER, .words = { "rank 1 freed its request of all_reduce #" } };
    bool  good = fails_as_told(comm, &s, st, lki_now_ms());
    lk_request_free(request);
    free(r.heap);
    return good;
}

static void a_dropped_request_is_told(void **state)
{
    (void)state;
    for (int threads = 0; threads < 2; threads++)
        assert_true(world_all(SIZE, threads == 1, drops_a_request, NULL));
}

/* Rank 1 dies; ranks 0 and 2 are in a group with it, or in one without. */
static bool dies_in_a_group(lk_comm *comm, void *context)
{
    const story *s = context;
    bool         with = s->words[2] != NULL;
    lk_comm     *group;

    CHECK(lk_comm_split(&group, comm, with ? 3 : lk_comm_rank(comm) == VICTIM, 0) == LK_OK);
    if (lk_comm_rank(comm) == VICTIM)
        (void)raise(SIGKILL);
    int64_t   began = lki_now_ms();
    lk_status st    = LK_OK;
    while (st == LK_OK && lki_now_ms() - began < 15000)
        st = lk_barrier(group);
    bool good = fails_as_told(comm, s, st, began);
    lk_comm_free(group);
    return good;
}

static void death_in_a_group_is_told(void **state)
{
    (void)state;
    for (int with = 0; with < 2; with++)
        for (int deaf = 0; deaf < 1 + with; deaf++) {
            story s = { .expect = LK_EPEER,
                        .words = { "rank 1 (pid", deaf ? "is gone" : "was killed by SIGKILL",
                                   with ? "before its first step" : NULL } };
            world w = { .size = SIZE, .timeout_ms = 20000, .deaf = deaf == 1, .victim = NOBODY };
            assert_int_equal(world_run(w, dies_in_a_group, &s), survivors);
        }
}

/* ---- Giving up --------------------------------------------------------------------------- */

static bool gives_up(lk_comm *comm, void *context)
{
    lk_comm_note(comm, 7, "forward");
    CHECK(lk_barrier(comm) == LK_OK);
    if (lk_comm_rank(comm) == VICTIM) {
        (void)(lk_fail(LK_ENONFINITE, "the loss is nan") == LK_OK);
        lk_comm_abort(comm);
    }
    return fails_as_told(comm, context, lk_barrier(comm), lki_now_ms());
}

static void giving_up_is_told(void **state)
{
    (void)state;
    for (int threads = 0; threads < 2; threads++) {
        story s = { .expect = LK_EPEER,
                    .words = { "rank 1 (pid", "gave up at step 7 in forward", "the loss is nan" } };
        world w = { .size = SIZE, .threads = threads == 1, .timeout_ms = 20000, .victim = NOBODY };
        assert_int_equal(world_run(w, gives_up, &s), (1u << SIZE) - 1);
    }
}

/* Requests outlive nothing: those of a dead group fail, those of a freed one say so. */
static bool keeps_a_request(lk_comm *comm, void *context)
{
    lk_request *request;
    bool        done;
    room        r;
    (void)context;
    if (!room_open(&r, comm))
        return false;
    lk_tree_node node  = { .first = lk_comm_rank(comm), .count = 1, .data = r.shared };
    lk_slice     slice = { .first = 0, .count = LARGE, .owner = 0 };
    lk_tree_op   op    = { .leaves = SIZE, .elements = LARGE, .nodes = &node, .node_count = 1,
                           .slices = &slice, .slice_count = 1, .out = r.heap };
    if (lk_comm_rank(comm) == VICTIM) {
        lk_comm_abort(comm);
    } else if (lk_tree_reduce_start(&request, comm, &op) == LK_OK) {
        CHECK(lk_request_wait(request) == LK_EPEER);
        CHECK(lk_request_test(request, &done) == LK_EPEER && !done);
        lk_request_free(request);
    }
    free(r.heap);
    return true;
}

static void requests_fail_with_their_group(void **state)
{
    (void)state;
    for (int threads = 0; threads < 2; threads++)
        assert_true(world_all(SIZE, threads == 1, keeps_a_request, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(death_is_told),
        cmocka_unit_test(death_at_any_moment_is_told),
        cmocka_unit_test(a_stopped_rank_is_told),
        cmocka_unit_test(a_rank_that_does_not_come_is_told),
        cmocka_unit_test(a_rank_that_leaves_is_told),
        cmocka_unit_test(a_dropped_request_is_told),
        cmocka_unit_test(death_in_a_group_is_told),
        cmocka_unit_test(giving_up_is_told),
        cmocka_unit_test(requests_fail_with_their_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
