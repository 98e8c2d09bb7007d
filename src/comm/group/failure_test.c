/* failure_test.c -- reports of a rank that dies, stops, gives up or leaves. span/mismatch_test.c
 * tests a rank that calls a different operation.
 *
 * Goal:   if a rank fails in any collective, no other rank hangs.  Every rank reports which rank
 *         failed, how it failed, and where.  Every later call reports the same failure.
 * Method: ranks are forked processes.  One rank kills itself before an operation, or the parent
 *         kills the rank during a later operation.  Each case runs with a launcher that reports
 *         deaths and with one that does not.  In the second case the peers must detect the death.
 *         If the launcher reports deaths, the linker redirects a rank's check for dead peers to a
 *         function that waits for the report.  Deadlines are so long that a survivor that waits for
 *         a deadline fails the test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "comm/world_testing.h"

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

/* Sends a message from rank 1 to ranks 0 and 2, and an answer from each of them.  Other ranks do
 * nothing. */
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
/* The last two operations allocate memory on each call, so they must not be repeated without an
 * end. */
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
    lk_status   expect;
    const char *words[3]; /* words that the message must contain */
    bool        reported; /* the launcher reports how the rank died */
    uint32_t    rounds;   /* number of rounds that the victim completes before the parent kills
                           * it */
    uint32_t    stopped_ms; /* time after which a stopped rank is reported; 0: the deadline of all
                             * ranks */
} story;

static _Atomic bool *strike; /* shared with the children */
static bool          reported;

lk_status __wrap_lki_peers_check(lk_comm *comm, lki_goal goal);
lk_status __real_lki_peers_check(lk_comm *comm, lki_goal goal);

/* Waits for the launcher's report, for as long as it takes.  Then checks for dead peers. */
lk_status __wrap_lki_peers_check(lk_comm *comm, lki_goal goal)
{
    const int *pidfds = comm->self->pidfds;

    for (uint32_t rank = 0; reported && pidfds != NULL && rank < comm->self->seated; rank++) {
        struct pollfd ended = { .fd = pidfds[rank], .events = POLLIN };
        while (poll(&ended, 1, 0) == 1 && !lki_failed(comm)
               && atomic_load(&comm->board->ranks[rank].state) == LKI_RANK_RUNNING)
            (void)poll(NULL, 0, 1);
    }
    return __real_lki_peers_check(comm, goal);
}

/* Checks that the operation has failed as `s` describes, and that the next operation returns the
 * same text. */
static bool fails_as_told(lk_comm *comm, const story *s, lk_status st)
{
    char first[480];

    CHECK(st == s->expect);
    CHECK(lk_error_last()->status == st);
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
    reported = s->reported;
    for (int i = 0; i < 3; i++)
        CHECK(s->op(&r) == LK_OK);
    if (lk_comm_rank(comm) == VICTIM)
        (void)raise(SIGKILL);
    bool good = fails_as_told(comm, s, s->op(&r));
    free(r.heap);
    return good;
}

/* Repeats the operation until it fails. */
static bool goes_on(lk_comm *comm, void *context)
{
    const story *s = context;
    room         r;

    if (!room_open(&r, comm))
        return false;
    lk_comm_note(comm, 12, "backward");
    reported = s->reported;
    if (s->stopped_ms != 0) /* the long deadline applies only to ranks that are not stopped */
        comm->opened_timeout_ms = s->stopped_ms;
    lk_status st = s->op(&r);
    for (uint32_t i = 0; st == LK_OK; i++) {
        if (lk_comm_rank(comm) == VICTIM && i == s->rounds)
            atomic_store(strike, true);
        st = s->op(&r);
    }
    bool good = fails_as_told(comm, s, st);
    free(r.heap);
    return good;
}

static const uint32_t survivors = (1u << SIZE) - 1 - (1u << VICTIM);

static void a_killed_rank_is_reported(void **state)
{
    (void)state;
    for (size_t i = 0; i < OPERATIONS; i++)
        for (int deaf = 0; deaf < 2; deaf++) {
            story s = { .op = operations[i], .expect = LK_EPEER, .reported = deaf == 0,
                        .words = { "rank 1 (pid", deaf ? "is gone" : "was killed by SIGKILL",
                                   "at step 12 in backward" } };
            world w = { .size = SIZE, .timeout_ms = WORLD_PATIENCE_MS, .deaf = deaf == 1,
                        .victim = NOBODY };
            assert_int_equal(world_run(w, dies_instead, &s), survivors);
        }
}

static void a_rank_killed_at_any_moment_is_reported(void **state)
{
    (void)state;
    for (size_t i = 0; i < ENDLESS; i++) {
        story s = { .op = operations[i], .expect = LK_EPEER, .reported = i % 2 != 0,
                    .rounds = 3 + (uint32_t)i,
                    .words  = { "rank 1 (pid", i % 2 == 0 ? "is gone" : "SIGKILL", NULL } };
        world w = { .size = SIZE, .timeout_ms = WORLD_PATIENCE_MS, .deaf = i % 2 == 0,
                    .victim = VICTIM, .signal = SIGKILL, .strike = strike };
        atomic_store(strike, false);
        assert_int_equal(world_run(w, goes_on, &s), survivors);
    }
}

/* ---- Silence ----------------------------------------------------------------------------- */

static void a_stopped_rank_is_reported(void **state)
{
    (void)state;
    for (size_t i = 0; i < ENDLESS; i += 4) {
        story s = { .op = operations[i], .expect = LK_ETIMEOUT, .rounds = 5, .stopped_ms = 300,
                    .words = { "rank 1 (pid", "stopped, last in", "at step 12 in backward" } };
        world w = { .size = SIZE, .timeout_ms = WORLD_PATIENCE_MS, .victim = VICTIM,
                    .signal = SIGSTOP, .strike = strike };
        atomic_store(strike, false);
        assert_int_equal(world_run(w, goes_on, &s), survivors);
    }
}

static bool stays_away(lk_comm *comm, void *context)
{
    const story *s = context;
    lk_comm_note(comm, 3, "data");
    CHECK(lk_barrier(comm) == LK_OK);
    if (lk_comm_rank(comm) != VICTIM) {
        lk_comm_set_timeout(comm, 300); /* shortened for this wait only */
        return fails_as_told(comm, s, lk_barrier(comm));
    }
    while (!lki_failed(comm))
        (void)usleep(1000);
    return fails_as_told(comm, s, lk_barrier(comm)); /* the stopped rank also receives the
                                                      * failure */
}

static void an_absent_rank_is_reported(void **state)
{
    (void)state;
    for (int threads = 0; threads < 2; threads++) {
        story s = { .expect = LK_ETIMEOUT,
                    .words = { "waited", threads ? "a thread of this process" : "alive",
                               "last in barrier #0, at step 3 in data" } };
        world w = { .size = SIZE, .threads = threads == 1, .timeout_ms = WORLD_PATIENCE_MS,
                    .victim = NOBODY };
        assert_int_equal(world_run(w, stays_away, &s), (1u << SIZE) - 1);
    }
}

static bool leaves_early(lk_comm *comm, void *context)
{
    CHECK(lk_barrier(comm) == LK_OK);
    if (lk_comm_rank(comm) == VICTIM)
        return true;
    return fails_as_told(comm, context, lk_barrier(comm));
}

static void a_leaving_rank_is_reported(void **state)
{
    (void)state;
    for (int threads = 0; threads < 2; threads++) {
        story s = { .expect = LK_EPEER,
                    .words = { "rank 1 (pid", "left the group", "barrier #0" } };
        world w = { .size = SIZE, .threads = threads == 1, .timeout_ms = WORLD_PATIENCE_MS,
                    .victim = NOBODY };
        assert_int_equal(world_run(w, leaves_early, &s), (1u << SIZE) - 1);
    }
}

/* ---- Requests, and groups ---------------------------------------------------------------- */

/* Frees an incomplete request for which the other ranks still need this rank.  Expects that the
 * group fails. */
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
    } else if (st == LK_OK) { /* not reached if another rank has already failed the group */
        st = lk_request_wait(request);
    }
    story s    = { .expect = LK_EPEER, .words = { "rank 1 freed its request of all_reduce #" } };
    bool  good = fails_as_told(comm, &s, st);
    lk_request_free(request);
    free(r.heap);
    return good;
}

static void a_freed_request_is_reported(void **state)
{
    (void)state;
    for (int threads = 0; threads < 2; threads++)
        assert_true(world_all(SIZE, threads == 1, drops_a_request, NULL));
}

/* Kills rank 1 while ranks 0 and 2 are in an operation of a smaller group.  Rank 1 may be a member
 * of that group or not. */
static bool dies_in_a_group(lk_comm *comm, void *context)
{
    const story *s = context;
    bool         with = s->words[2] != NULL;
    lk_comm     *group;

    reported = s->reported;
    CHECK(lk_comm_split(&group, comm, with ? 3 : lk_comm_rank(comm) == VICTIM, 0) == LK_OK);
    if (lk_comm_rank(comm) == VICTIM)
        (void)raise(SIGKILL);
    lk_status st = LK_OK;
    while (st == LK_OK)
        st = lk_barrier(group);
    bool good = fails_as_told(comm, s, st);
    lk_comm_free(group);
    return good;
}

static void a_rank_killed_in_a_split_communicator_is_reported(void **state)
{
    (void)state;
    for (int with = 0; with < 2; with++)
        for (int deaf = 0; deaf < 1 + with; deaf++) {
            story s = { .expect = LK_EPEER, .reported = deaf == 0,
                        .words = { "rank 1 (pid", deaf ? "is gone" : "was killed by SIGKILL",
                                   with ? "before its first step" : NULL } };
            world w = { .size = SIZE, .timeout_ms = WORLD_PATIENCE_MS, .deaf = deaf == 1,
                        .victim = NOBODY };
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
    return fails_as_told(comm, context, lk_barrier(comm));
}

static void a_rank_that_gives_up_is_reported(void **state)
{
    (void)state;
    for (int threads = 0; threads < 2; threads++) {
        story s = { .expect = LK_EPEER,
                    .words = { "rank 1 (pid", "gave up at step 7 in forward", "the loss is nan" } };
        world w = { .size = SIZE, .threads = threads == 1, .timeout_ms = WORLD_PATIENCE_MS,
                    .victim = NOBODY };
        assert_int_equal(world_run(w, gives_up, &s), (1u << SIZE) - 1);
    }
}

/* Lets a group fail while this rank has an open request.  Expects that waiting for the request and
 * testing it return the failure. */
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
        cmocka_unit_test(a_killed_rank_is_reported),
        cmocka_unit_test(a_rank_killed_at_any_moment_is_reported),
        cmocka_unit_test(a_stopped_rank_is_reported),
        cmocka_unit_test(an_absent_rank_is_reported),
        cmocka_unit_test(a_leaving_rank_is_reported),
        cmocka_unit_test(a_freed_request_is_reported),
        cmocka_unit_test(a_rank_killed_in_a_split_communicator_is_reported),
        cmocka_unit_test(a_rank_that_gives_up_is_reported),
        cmocka_unit_test(requests_fail_with_their_group),
    };
    strike = mmap(NULL, sizeof *strike, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (strike == MAP_FAILED)
        return 1;
    return cmocka_run_group_tests_name("comm.group.failure", tests, NULL, NULL);
}
