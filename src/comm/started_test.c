/* started_test.c -- many operations open at once, with ranks idle at different times.
 *
 * Goal:   asynchronous operations deliver the right bytes even if one rank is far ahead of the
 *         other ranks.  This rank starts many operations and polls none for a long time, while the
 *         other ranks finish them one by one.  More operations are open than there are slots.
 *         Ranks are on one host or on several, with and without levels.
 * Method: a seed determines a list of operations, which all ranks start in the same order.  Between
 *         two starts each rank tests or waits for open operations that it chooses at random.  Every
 *         word depends on the operation, the rank and its position in the vector.  A send buffer is
 *         overwritten when its operation is complete.  No clock is read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <sched.h>

#include "base/thorough_testing.h"
#include "comm/hosted_testing.h"

enum { OPERATIONS = 80, WORDS = 24000, RANKS_MOST = HOSTED_MAX };

typedef enum { BROADCAST, SCATTER, GATHER_V, ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, KINDS } kind;

/* The description of an operation, without the parts that differ between ranks. */
typedef struct {
    kind     kind;
    size_t   words; /* number of words per part */
    uint32_t root;
} plan;

typedef struct {
    lk_comm    *comm;
    uint64_t    seed, state;
    uint32_t    me, size, count;
    plan        plans[OPERATIONS];
    uint32_t   *send[OPERATIONS], *recv[OPERATIONS];
    lk_request *requests[OPERATIONS];
} program;

/* The parameters of a run.  The run has `count` operations, with at most `most` words per part. */
typedef struct {
    uint64_t seed;
    uint32_t count;
    size_t   most;
    bool     one_is_late;   /* the last rank starts all operations before the other ranks start any,
                             * and polls none before the others have tried to finish all of them */
    uint32_t         ring;  /* slots of the groups used by levels; 0: the default */
    int              kind;  /* kind of all operations; -1: mixed */
    _Atomic uint32_t ready; /* number of ranks that have finished the list, if all are threads */
} setting;

static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mix(*state) % below);
}

/* Returns word number `at` of the data that `rank` sends in operation `op`. */
static uint32_t word(const program *p, uint32_t op, uint32_t rank, size_t at)
{
    return (uint32_t)mix(p->seed ^ (uint64_t)op << 40 ^ (uint64_t)rank << 24 ^ at);
}

/* Returns the number of words that a rank contributes to an all_gather_v.  The numbers differ
 * between ranks, and some are 0. */
static size_t uneven(const program *p, uint32_t op, uint32_t rank)
{
    uint64_t choice = mix(p->seed + op * 131 + rank) % 3;
    return choice == 0 ? 0 : p->plans[op].words / choice;
}

/* Draws a size near the sizes at which the method changes: the data fits in a slot, in one chunk,
 * or in several chunks. */
static size_t draw_words(uint64_t *state, size_t most)
{
    static const size_t sizes[] = { 5, 520, 2048, 2049, 16384, 16500 };
    size_t              words   = sizes[draw(state, sizeof sizes / sizeof sizes[0])];
    return words < most ? words : most - draw(state, 7);
}

static void make_plans(program *p, const setting *s)
{
    uint64_t state = mix(s->seed);

    p->count = s->count;
    for (uint32_t op = 0; op < p->count; op++) {
        if (op > 0 && draw(&state, 8) != 0) { /* repeats the previous operation */
            p->plans[op] = p->plans[op - 1];
            continue;
        }
        p->plans[op].kind  = s->kind < 0 ? (kind)draw(&state, KINDS) : (kind)s->kind;
        p->plans[op].words = draw_words(&state, s->most);
        p->plans[op].root  = draw(&state, p->size);
    }
}

/* ---- One operation ----------------------------------------------------------------------- */

static size_t send_words(const program *p, uint32_t op)
{
    const plan *o = &p->plans[op];

    switch ((int)o->kind) {
    case BROADCAST: return p->me == o->root ? o->words : 0;
    case SCATTER: return p->me == o->root ? o->words * p->size : 0;
    case GATHER_V: return uneven(p, op, p->me);
    case REDUCE_SCATTER: return o->words * p->size;
    default: return o->words;
    }
}

static size_t recv_words(const program *p, uint32_t op)
{
    const plan *o     = &p->plans[op];
    size_t      total = 0;

    switch ((int)o->kind) {
    case GATHER_V:
        for (uint32_t rank = 0; rank < p->size; rank++)
            total += uneven(p, op, rank);
        return total;
    case ALL_GATHER: return o->words * p->size;
    default: return o->words;
    }
}

static lk_status call(program *p, uint32_t op)
{
    const plan        *o    = &p->plans[op];
    const lk_reduce_op plus = { LK_REDUCE_SUM, 1 };
    lk_request       **out  = &p->requests[op];
    uint32_t          *send = p->send[op], *recv = p->recv[op];
    size_t             bytes[RANKS_MOST];

    switch ((int)o->kind) {
    case BROADCAST:
        return lk_broadcast_start(out, p->comm, p->me == o->root ? send : recv, o->words * 4,
                                  o->root);
    case SCATTER: return lk_scatter_start(out, p->comm, send, recv, o->words * 4, o->root);
    case GATHER_V:
        for (uint32_t rank = 0; rank < p->size; rank++)
            bytes[rank] = uneven(p, op, rank) * 4;
        return lk_all_gather_v_start(out, p->comm, send, recv, bytes);
    case ALL_GATHER: return lk_all_gather_start(out, p->comm, send, recv, o->words * 4);
    case ALL_REDUCE: return lk_all_reduce_start(out, p->comm, send, recv, o->words, LK_U32, plus);
    default: return lk_reduce_scatter_start(out, p->comm, send, recv, o->words, LK_U32, plus);
    }
}

static bool start(program *p, uint32_t op)
{
    lk_comm *comm = p->comm;
    size_t   send = send_words(p, op), recv = recv_words(p, op);

    p->send[op] = malloc(send * 4 + 4);
    p->recv[op] = malloc(recv * 4 + 4);
    CHECK(p->send[op] != NULL && p->recv[op] != NULL);
    for (size_t i = 0; i < send; i++)
        p->send[op][i] = word(p, op, p->me, i);
    CHECK(call(p, op) == LK_OK);
    return true;
}

static uint32_t sum_at(const program *p, uint32_t op, size_t at)
{
    uint32_t sum = 0;
    for (uint32_t rank = 0; rank < p->size; rank++)
        sum += word(p, op, rank, at);
    return sum;
}

/* Returns the expected word `i` of recv. */
static uint32_t expected(const program *p, uint32_t op, size_t i)
{
    const plan *o    = &p->plans[op];
    uint32_t    rank = 0;

    switch ((int)o->kind) {
    case BROADCAST: return word(p, op, o->root, i);
    case SCATTER: return word(p, op, o->root, o->words * p->me + i);
    case GATHER_V:
        for (; i >= uneven(p, op, rank); rank++)
            i -= uneven(p, op, rank);
        return word(p, op, rank, i);
    case ALL_GATHER: return word(p, op, (uint32_t)(i / o->words), i % o->words);
    case ALL_REDUCE: return sum_at(p, op, i);
    default: return sum_at(p, op, o->words * p->me + i);
    }
}

/* Checks the results of a complete operation: every 61st word and the last word.  Then frees the
 * operation. */
static bool check(program *p, uint32_t op)
{
    lk_comm *comm  = p->comm;
    size_t   words = recv_words(p, op);

    if (p->plans[op].kind == BROADCAST && p->me == p->plans[op].root)
        words = 0;
    for (size_t i = 0; i < words; i = i + 61 < words || i + 1 == words ? i + 61 : words - 1)
        CHECK(p->recv[op][i] == expected(p, op, i));
    memset(p->send[op], 0xee, send_words(p, op) * 4);
    lk_request_free(p->requests[op]);
    free(p->send[op]);
    free(p->recv[op]);
    p->requests[op] = NULL;
    return true;
}

/* ---- A rank's walk through the list ------------------------------------------------------ */

/* Returns the open operation that follows `skip` other open operations; `count` if there is
 * none. */
static uint32_t open_one(const program *p, uint32_t begun, uint32_t skip)
{
    for (uint32_t op = 0; op < begun; op++)
        if (p->requests[op] != NULL && skip-- == 0)
            return op;
    return p->count;
}

/* Tests or waits for randomly chosen open operations, a random number of times.  The last rank does
 * nothing here, so it has as many open operations as possible. */
static bool idle(program *p, uint32_t begun)
{
    lk_comm *comm = p->comm;
    uint32_t busy = p->me + 1 == p->size ? 1 : draw(&p->state, 12) == 0 ? 9 : 3;

    for (uint32_t i = draw(&p->state, busy); i > 0; i--) {
        uint32_t op   = open_one(p, begun, draw(&p->state, 8));
        bool     done = false;
        if (op == p->count)
            return true;
        if (draw(&p->state, 3) == 0) {
            CHECK(lk_request_wait(p->requests[op]) == LK_OK);
            done = true;
        } else {
            CHECK(lk_request_test(p->requests[op], &done) == LK_OK);
        }
        if (done && !check(p, op))
            return false;
    }
    return true;
}

/* Starts all operations on the last rank.  This rank polls none of them before all other ranks have
 * gone through the list.  The other ranks try for a while to finish each operation before they
 * start the next one. */
static bool tries_first(program *p, _Atomic uint32_t *ready)
{
    lk_comm *comm = p->comm;
    bool     late = p->me + 1 == p->size;

    while (!late && atomic_load(ready) == 0)
        (void)sched_yield();
    for (uint32_t op = 0; op < p->count; op++) {
        bool done = late;
        if (!start(p, op))
            return false;
        for (uint32_t i = 0; i < OPERATIONS && !done; i++) {
            CHECK(lk_request_test(p->requests[op], &done) == LK_OK);
            if (i % 8 == 7) /* on a busy machine a yield takes milliseconds */
                (void)sched_yield();
        }
        if (done && !late && !check(p, op))
            return false;
    }
    atomic_fetch_add(ready, 1);
    while (late && atomic_load(ready) < p->size)
        (void)sched_yield();
    return true;
}

/* Returns a counter that all ranks share.  It is in an arena, or in `s` if all ranks are
 * threads. */
static _Atomic uint32_t *shared_word(lk_comm *comm, setting *s)
{
    lk_arena *arena;

    if (comm->span != NULL)
        return &s->ready;
    if (lk_comm_arena(&arena, comm, "word", sizeof s->ready) != LK_OK)
        abort();
    return lk_arena_data(arena);
}

static bool finishes(program *p)
{
    lk_comm *comm = p->comm;

    for (uint32_t left = p->count; left > 0; left--) {
        uint32_t op = open_one(p, p->count, draw(&p->state, left));
        op          = op == p->count ? open_one(p, p->count, 0) : op;
        if (op == p->count)
            return true;
        CHECK(lk_request_wait(p->requests[op]) == LK_OK);
        if (!check(p, op))
            return false;
    }
    return true;
}

static void shrink_rings(lk_comm *comm, uint32_t ring)
{
    for (int leg = 0; ring != 0 && leg < LKI_LEGS; leg++)
        comm->span->levels->groups[leg]->ring = ring;
}

static bool runs(lk_comm *comm, void *context)
{
    setting          *s     = context;
    _Atomic uint32_t *ready = shared_word(comm, s);
    program          *p     = calloc(1, sizeof *p);
    bool              good  = p != NULL;

    CHECK(good);
    *p = (program){
        .comm = comm, .seed = s->seed, .me = lk_comm_rank(comm), .size = lk_comm_size(comm)
    };
    p->state = mix(s->seed * 977 + p->me);
    shrink_rings(comm, s->ring);
    make_plans(p, s);
    for (uint32_t op = 0; op < p->count && good && !s->one_is_late; op++)
        good = start(p, op) && idle(p, op + 1);
    good = good && (!s->one_is_late || tries_first(p, ready)) && finishes(p);
    if (!good)
        fprintf(stderr, "seed %llu\n", (unsigned long long)s->seed);
    good = good && lk_barrier(comm) == LK_OK;
    free(p);
    return good;
}

/* ---- A late rank ------------------------------------------------------------------------- */

enum { LATE = 4, TRIES = 64 };

/* Advances an open operation.  If the operation is then complete, checks its results. */
static void try_one(program *p, uint32_t op)
{
    bool done = false;

    if (p->requests[op] == NULL)
        return;
    assert_int_equal(lk_request_test(p->requests[op], &done), LK_OK);
    if (done)
        assert_true(check(p, op));
}

/* Starts all operations on rank `late`, which then does nothing.  The other ranks start the
 * operations one by one, and try to finish each before they start the next. */
static void start_late(program *late, program *others, uint32_t count)
{
    for (uint32_t op = 0; op < late->count; op++)
        assert_true(start(late, op));
    for (uint32_t op = 0; op < late->count; op++) {
        for (uint32_t k = 0; k < count; k++)
            assert_true(start(&others[k], op));
        for (uint32_t i = 0; i < TRIES * count; i++)
            try_one(&others[i % count], op);
    }
}

/* Runs one rank that reads late, and all other ranks, in one thread, so that the result does not
 * depend on timing. */
static void play_late(uint32_t size, kind what, size_t words)
{
    lk_comm *comms[4];
    program  ranks[4];
    setting  s = { .seed = 7, .count = LATE, .most = words, .kind = (int)what };

    assert_int_equal(lk_comm_open_threads(comms, size, NULL), LK_OK);
    for (uint32_t rank = 0; rank < size; rank++) {
        ranks[rank] = (program){ .comm = comms[rank], .seed = 7, .me = rank, .size = size };
        make_plans(&ranks[rank], &s);
        for (uint32_t op = 0; op < LATE; op++)
            ranks[rank].plans[op] = (plan){ what, words, 0 };
    }
    start_late(&ranks[size - 1], ranks, size - 1);
    for (uint32_t i = 0; i < TRIES * LATE * size; i++)
        for (uint32_t op = 0; op < LATE; op++)
            try_one(&ranks[(size - 1 + i) % size], op);
    for (uint32_t rank = 0; rank < size; rank++) {
        assert_int_equal(open_one(&ranks[rank], LATE, 0), LATE);
        lk_comm_free(comms[rank]);
    }
}

static void a_late_rank_receives_the_right_bytes(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 4; size++)
        for (int what = 0; what < KINDS; what++) {
            play_late(size, (kind)what, 2048);
            play_late(size, (kind)what, 17000);
        }
}

/* ---- All tests --------------------------------------------------------------------------- */

/* Returns the number of seeds to try: the value of LK_SEEDS if it is set, else `many` in a thorough
 * run, and `few` in any other run, or a third of them if time is short. */
static uint32_t seeds(uint32_t few, uint32_t many)
{
    const char *asked = getenv("LK_SEEDS");
    if (asked != NULL)
        return (uint32_t)strtoul(asked, NULL, 10);
    return lki_thorough() ? many : lki_brief() ? (few + 2) / 3 : few;
}

static void open_operations_work_on_one_host(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < seeds(60, 1000); i++) {
        setting s = { .seed        = i,
                      .count       = i % 4 == 0 ? OPERATIONS : 30,
                      .most        = WORDS,
                      .kind        = -1,
                      .one_is_late = i % 4 != 0 };
        assert_true(world_all(2 + i % 4, i % 2 == 0, runs, &s));
    }
}

static void open_operations_work_over_hosts(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < seeds(8, 200); i++) {
        setting s = {
            .seed = i, .count = 24, .most = 4000, .kind = -1, .one_is_late = i % 3 == 2
        }; /* one_is_late is never combined with baton mode */
        hosted h     = { .hosts         = 2 + i % 3,
                         .each          = 1 + i % 3,
                         .seed          = i,
                         .timeout_ms    = 300000,
                         .segment_bytes = 4096 };
        h.algorithms = h.each == 1 ? NULL
                                   : "all_gather:levels,broadcast:levels,all_reduce:levels,"
                                     "reduce_scatter:levels";
        assert_true(hosted_all(h, runs, &s));
    }
}

/* Runs levels whose groups have two slots but more than two operations.  Starting an operation then
 * waits for a slot.  This wait advances other operations, which may need slots of the same
 * group. */
static void levels_wait_for_slots_without_deadlock(void **state)
{
    static const kind by_levels[] = { ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_REDUCE };

    (void)state;
    for (uint32_t i = 0; i < (lki_brief() ? 4 : 8); i++) {
        setting s = {
            .seed = i, .count = 6, .most = 700, .kind = (int)by_levels[i % 4], .ring = 2
        };
        hosted h = { .hosts         = 4,
                     .each          = 2,
                     .seed          = i,
                     .timeout_ms    = 300000,
                     .segment_bytes = 512,
                     .algorithms    = "all_gather:levels,broadcast:levels,all_reduce:levels,"
                                      "reduce_scatter:levels" };
        assert_true(hosted_all(h, runs, &s));
    }
}

static void open_operations_work_over_forty_hosts(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < seeds(1, 20); i++) {
        setting s = {
            .seed = i, .count = 8, .most = 64, .kind = i % 2 == 0 ? (int)ALL_GATHER : -1
        };
        hosted h = { .hosts      = 40,
                     .each       = 2,
                     .seed       = i,
                     .timeout_ms = 300000,
                     .algorithms = "all_gather:levels,broadcast:levels,all_reduce:levels,"
                                   "reduce_scatter:levels" };
        assert_true(hosted_all(h, runs, &s));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_rank_receives_the_right_bytes),
        cmocka_unit_test(open_operations_work_on_one_host),
        cmocka_unit_test(open_operations_work_over_hosts),
        cmocka_unit_test(levels_wait_for_slots_without_deadlock),
        cmocka_unit_test(open_operations_work_over_forty_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
