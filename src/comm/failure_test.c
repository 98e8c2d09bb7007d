/* failure_test.c -- what the others learn when a rank dies, stops, strays, gives up or leaves.
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

static lk_status do_arena(room *r)
{
    lk_arena *arena;
    return lk_comm_arena(&arena, r->comm, "one more", 10000);
}

typedef struct {
    const char *name; /* as errors call it */
    lk_status (*run)(room *r);
} operation;

static const operation operations[] = {
    { "barrier", do_barrier },
    { "broadcast", do_broadcast_small },
    { "broadcast", do_broadcast },
    { "all_gather", do_all_gather },
    { "all_reduce", do_all_reduce_small },
    { "all_reduce", do_all_reduce_staged },
    { "all_reduce", do_all_reduce_direct },
    { "tree_reduce", do_tree_reduce },
    { "creating an arena", do_arena },
};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

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
    const operation *op, *other;
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
        CHECK(s->op->run(&r) == LK_OK);
    if (lk_comm_rank(comm) == VICTIM)
        (void)raise(SIGKILL);
    int64_t began = lki_now_ms();
    bool    good  = fails_as_told(comm, s, s->op->run(&r), began);
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
        st    = s->op->run(&r);
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
            story s = { .op = &operations[i], .expect = LK_EPEER,
                        .words = { "rank 1 (pid", deaf ? "is gone" : "was killed by SIGKILL",
                                   "at step 12 in backward" } };
            world w = { .size = SIZE, .timeout_ms = 20000, .deaf = deaf == 1, .victim = NOBODY };
            assert_int_equal(world_run(w, dies_instead, &s), survivors);
        }
}

static void death_at_any_moment_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < OPERATIONS - 1; i++) { /* an endless row of arenas would fill memory */
        story s = { .op = &operations[i], .expect = LK_EPEER,
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
    for (size_t i = 0; i < OPERATIONS - 1; i += 4) {
        story s = { .op = &operations[i], .expect = LK_ETIMEOUT,
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
        world w = { .size = SIZE, .threads = threads == 1, .timeout_ms = 200, .victim = NOBODY };
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

/* ---- Disagreement ------------------------------------------------------------------------ */

static bool strays(lk_comm *comm, void *context)
{
    const story *s = context;
    bool         me = lk_comm_rank(comm) == VICTIM;
    room         r;

    if (!room_open(&r, comm))
        return false;
    int64_t began = lki_now_ms();
    bool    good  = fails_as_told(comm, s, (me ? s->other : s->op)->run(&r), began);
    free(r.heap);
    return good;
}

static void mismatched_operations_are_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < OPERATIONS; i++)
        for (size_t k = 0; k < OPERATIONS; k++) {
            char  theirs[64];
            story s = { .op = &operations[i], .other = &operations[k], .expect = LK_EMISMATCH,
                        .words = { theirs, operations[i].name, operations[k].name } };
            world w = { .size = SIZE, .threads = (i + k) % 2 == 0, .timeout_ms = 20000,
                        .victim = NOBODY };
            snprintf(theirs, sizeof theirs, "rank 1 is in %s #", operations[k].name);
            bool same = operations[i].run == do_all_reduce_staged
                        && operations[k].run == do_all_reduce_direct; /* agree on everything */
            same = same || (operations[k].run == do_all_reduce_staged
                            && operations[i].run == do_all_reduce_direct);
            if (i != k && !same)
                assert_int_equal(world_run(w, strays, &s), (1u << SIZE) - 1);
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
        cmocka_unit_test(mismatched_operations_are_told),
        cmocka_unit_test(giving_up_is_told),
        cmocka_unit_test(requests_fail_with_their_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
