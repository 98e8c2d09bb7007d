/* staging_test.c -- all orders in which three ranks can perform the steps of four open operations.
 *
 * Goal:    slots, staging buffers and messages deliver the right bytes for every order of starts
 *          and waits, and no order deadlocks.
 * Method:  one thread plays all ranks.  A state is the memory that the ranks share and the memory
 *          of each rank.  In each state every rank may start its next operation or take one step of
 *          any open operation (lki_request_step()).  Every such move is tried, depth first, once
 *          for every distinct state.  A step is atomic here.  This covers overlapping steps: two
 *          steps that could overlap are not ordered by any counter, so both their orders are tried.
 *          Staging buffers are reduced to 192 bytes and the ring to two slots, so that small
 *          operations use the whole protocol.
 * Control: ranks that falsely claim to have taken chunks must be detected.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/thorough_testing.h"
#include "comm/coll/staging_testing.h"
#include "comm/group/request.h"
#include "comm/world_testing.h"

enum {
    OPS          = 4,
    STAGE_BYTES  = 192, /* three shares of one cache line */
    POOL_BYTES   = 4096,
    SHARED_BYTES = 2 * RANKS * OPS * BYTES,
    REGIONS      = 400,
    DEPTH        = 400,
    MOVES        = OPS * 2 + 1, /* possible moves of a rank: a start, or a step of a request */
};

/* ---- The state --------------------------------------------------------------------------- */

/* A rank's memory besides its communicator.  Its requests are in the pool. */
typedef struct {
    unsigned char pool[POOL_BYTES];
    size_t        used;
    uint32_t      started, complete;
    lk_request   *requests[OPS][2];
    alignas(64) unsigned char recv[OPS][BYTES], send[OPS][BYTES];
} player;

typedef struct {
    void  *at;
    size_t bytes;
    bool   hashed; /* if false, the memory is not hashed, because other fields determine it or
                    * because a reader checks it */
} region;

static struct {
    lk_comm       *comms[RANKS];
    unsigned char *shared; /* an arena: [recv, send][rank][operation][BYTES] */
    player         players[RANKS];
    uint32_t       kinds[OPS];
    region         regions[REGIONS];
    size_t         region_count, bytes;
    unsigned char *saved[DEPTH];
    uint64_t      *seen; /* hashes of states; 0 = free */
    size_t         seen_mask, states;
    player        *acting; /* rank whose pool is used for allocations */
    bool           lies;   /* control: all ranks claim to have received all chunks */
    bool           failed;
    char           why[200];
    jmp_buf        caught;
} x;

static void report(const char *why, uint32_t rank, uint32_t op)
{
    if (!x.failed)
        snprintf(x.why, sizeof x.why, "%s (rank %u, operation %u of kinds %u %u %u %u)", why, rank,
                 op, x.kinds[0], x.kinds[1], x.kinds[2], x.kinds[3]);
    x.failed = true;
}

/* ---- Wrapped functions ------------------------------------------------------------------- */

lk_status      __real_lki_request_start(lk_request **out, const lk_request *request);
lk_status      __wrap_lki_request_start(lk_request **out, const lk_request *request);
bool           __real_lki_request_first(const lk_request *request);
bool           __wrap_lki_request_first(const lk_request *request);
lk_status      __real_lki_alloc_array(void **out, size_t count, size_t size, const char *what);
lk_status      __wrap_lki_alloc_array(void **out, size_t count, size_t size, const char *what);
void           __real_lki_free(void *memory);
void           __wrap_lki_free(void *memory);
_Noreturn void __wrap_lki_assert_failed(const char *condition, const char *file, int line);

/* Makes small operations use the staging buffers, as large ones do. */
lk_status __wrap_lki_request_start(lk_request **out, const lk_request *request)
{
    lk_request copy = *request;
    if (x.acting != NULL && copy.lane == LKI_LANE_NONE && copy.how->publish != NULL &&
        copy.tree.leaves == 0 && copy.longest + copy.bytes + copy.send_bytes > LKI_WORD_BYTES)
        copy.lane = LKI_LANE_STAGES;
    return __real_lki_request_start(out, &copy);
}

bool __wrap_lki_request_first(const lk_request *request)
{
    return x.lies || __real_lki_request_first(request);
}

/* Allocates from the rank's pool.  The pool is part of the state, so an allocation has the same
 * address in every order. */
lk_status __wrap_lki_alloc_array(void **out, size_t count, size_t size, const char *what)
{
    player *p = x.acting;

    if (p == NULL)
        return __real_lki_alloc_array(out, count, size, what);
    *out = p->pool + p->used;
    p->used += (count * size + 63) / 64 * 64;
    assert_true(p->used <= POOL_BYTES);
    memset(*out, 0, count * size);
    return LK_OK;
}

void __wrap_lki_free(void *memory)
{
    if (x.acting == NULL)
        __real_lki_free(memory);
}

_Noreturn void __wrap_lki_assert_failed(const char *condition, const char *file, int line)
{
    char text[160];

    (void)line;
    snprintf(text, sizeof text, "%.60s is false in %.60s", condition, file);
    report(text, 0, 0);
    longjmp(x.caught, 1);
}

/* ---- Saving and restoring ---------------------------------------------------------------- */

static void add(void *at, size_t bytes, bool hashed)
{
    assert_true(x.region_count < REGIONS);
    x.regions[x.region_count++] = (region){ at, bytes, hashed };
    x.bytes += bytes;
}

static void save(unsigned char *to)
{
    for (size_t i = 0; i < x.region_count; to += x.regions[i++].bytes)
        memcpy(to, x.regions[i].at, x.regions[i].bytes);
}

static void restore(const unsigned char *from)
{
    for (size_t i = 0; i < x.region_count; from += x.regions[i++].bytes)
        memcpy(x.regions[i].at, from, x.regions[i].bytes);
}

/* Adds to the state a rank's message headers for its peers, and the used bytes of the message
 * pieces. */
static void add_mail(lki_seat *seat, uint32_t peers)
{
    size_t         piece = lki_piece_bytes(RANKS), each = sizeof(lki_mail) + 2 * piece;
    unsigned char *mail = (unsigned char *)(seat + 1);

    for (uint32_t peer = 0; peer < peers; peer++) {
        add(mail + peer * each, sizeof(lki_mail) + 64, true);
        add(mail + peer * each + sizeof(lki_mail) + piece, 64, true);
    }
}

/* Adds a rank's memory to the state.  Send buffers and staging buffers are not hashed: a send
 * buffer is overwritten when its operation is complete, and a staging buffer is checked when it is
 * read. */
static void add_rank(lk_comm *comm, player *p, uint32_t ring)
{
    lki_seat *seat = comm->seat;

    add(comm, sizeof *comm, true);
    add(comm->self, sizeof *comm->self, true);
    add(comm->flows, RANKS * sizeof *comm->flows, true);
    add(p, offsetof(player, send), true);
    add(p->send, sizeof p->send, false);
    add(seat, offsetof(lki_seat, slots), true); /* the counters of the seat */
    for (uint32_t i = 0; i < ring; i++) {
        add(&seat->slots[i], sizeof seat->slots[i], true);
        add(&seat->bodies[i], sizeof seat->bodies[i], true);
    }
    for (uint32_t i = 0; i < LKI_STAGES; i++)
        add(seat->stages[i], STAGE_BYTES, false);
    add_mail(seat, RANKS);
}

/* ---- Moves ------------------------------------------------------------------------------- */

static uint32_t all_started(void)
{
    uint32_t least = OPS;
    for (uint32_t rank = 0; rank < RANKS; rank++)
        least = x.players[rank].started < least ? x.players[rank].started : least;
    return least;
}

static turn turn_of(uint32_t rank, uint32_t op)
{
    bool           shared = (kinds[x.kinds[op]].shared >> rank & 1) != 0;
    unsigned char *at     = x.shared + ((size_t)rank * OPS + op) * BYTES;
    player        *p      = &x.players[rank];

    return (turn){ .comm        = x.comms[rank],
                   .me          = rank,
                   .op          = op,
                   .send        = shared ? at + SHARED_BYTES / 2 : p->send[op],
                   .recv        = shared ? at : p->recv[op],
                   .out         = p->requests[op],
                   .all_started = all_started() };
}

/* Returns true if a rank can start an operation without waiting for a slot. */
static bool has_room(lk_comm *comm)
{
    return comm->seq < comm->ring ||
           lki_arrived(comm,
                       lki_goal_all(comm, offsetof(lki_seat, retired), comm->seq - comm->ring + 1));
}

static bool starts(uint32_t rank)
{
    player *p = &x.players[rank];

    if (p->started == OPS || !has_room(x.comms[rank]))
        return false;
    turn t = turn_of(rank, p->started++);
    if (kinds[x.kinds[t.op]].start(&t) != LK_OK)
        report("a start fails", rank, t.op);
    return true;
}

/* Checks the results of a complete operation.  Then overwrites its send buffer, which no other rank
 * may still need. */
static void finish(uint32_t rank, uint32_t op)
{
    turn t = turn_of(rank, op);

    x.players[rank].complete |= UINT32_C(1) << op;
    if (!kinds[x.kinds[op]].good(&t))
        report("wrong data", rank, op);
    memset(t.send, 0xee, BYTES);
    memset(t.recv, 0, BYTES);
}

static bool steps(uint32_t rank, uint32_t op, uint32_t half)
{
    player     *p = &x.players[rank];
    lk_request *r = p->requests[op][half], *other = p->requests[op][1 - half];
    bool        moved = false;

    if (op >= p->started || r == NULL || r->complete)
        return false;
    if (lki_request_step(r, &moved) != LK_OK)
        report("a step fails", rank, op);
    if (r->complete && (other == NULL || other->complete))
        finish(rank, op);
    return moved;
}

static bool move(uint32_t rank, uint32_t which)
{
    bool moved;

    x.acting = &x.players[rank];
    moved    = which == 0 ? starts(rank) : steps(rank, (which - 1) / 2, (which - 1) % 2);
    x.comms[rank]->unrung = false;
    x.acting              = NULL;
    return moved;
}

/* ---- Searching --------------------------------------------------------------------------- */

/* Adds a state to the set of visited states.  Returns true if the state is new. */
static bool enters(const unsigned char *state)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < x.region_count; state += x.regions[i++].bytes)
        if (x.regions[i].hashed)
            hash = hash * UINT64_C(0x9e3779b97f4a7c15) ^ lki_xxh3(state, x.regions[i].bytes);
    hash |= 1;
    size_t at = (size_t)(hash >> 16) & x.seen_mask;

    for (; x.seen[at] != 0; at = (at + 1) & x.seen_mask)
        if (x.seen[at] == hash)
            return false;
    x.seen[at] = hash;
    assert_true(++x.states < x.seen_mask / 2);
    return true;
}

static bool all_complete(void)
{
    bool all = true;
    for (uint32_t rank = 0; rank < RANKS; rank++)
        all = all && x.players[rank].complete == (1U << OPS) - 1;
    return all;
}

static void search(uint32_t depth)
{
    bool any = false;

    assert_true(depth < DEPTH);
    if (x.saved[depth] == NULL)
        x.saved[depth] = malloc(x.bytes);
    assert_non_null(x.saved[depth]);
    save(x.saved[depth]);
    if (x.failed || !enters(x.saved[depth]))
        return;
    for (uint32_t i = 0; i < RANKS * MOVES && !x.failed; i++) {
        if (!move(i / MOVES, i % MOVES))
            continue;
        any = true;
        search(depth + 1);
        restore(x.saved[depth]);
    }
    if (!any && !x.failed && !all_complete())
        report("ranks wait for each other", 0, 0);
}

/* ---- The world --------------------------------------------------------------------------- */

static void *open_arena(void *comm)
{
    lk_arena *arena;
    if (lk_comm_arena(&arena, comm, "buffers", SHARED_BYTES) != LK_OK)
        abort();
    return lk_arena_data(arena);
}

static void open_world(size_t states, uint32_t ring)
{
    pthread_t threads[RANKS];

    memset(&x, 0, sizeof x);
    if (lk_comm_open_threads(x.comms, RANKS, NULL) != LK_OK)
        abort();
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if (pthread_create(&threads[rank], NULL, open_arena, x.comms[rank]) != 0)
            abort();
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        void *data;
        (void)pthread_join(threads[rank], &data);
        x.shared                   = data;
        x.comms[rank]->stage_bytes = STAGE_BYTES;
        x.comms[rank]->ring        = ring;
    }
    x.seen_mask = states - 1;
    x.seen      = calloc(states, sizeof *x.seen);
    assert_non_null(x.seen);
}

static void close_world(void)
{
    for (uint32_t rank = 0; rank < RANKS; rank++)
        lk_comm_free(x.comms[rank]);
    for (uint32_t i = 0; i < DEPTH; i++)
        free(x.saved[i]);
    free(x.seen);
}

/* Searches from the current state.  A failed assertion ends the search. */
__attribute__((noinline)) static void search_or_catch(void)
{
    if (setjmp(x.caught) == 0)
        search(0);
    x.acting = NULL;
}

/* Searches all orders of four operations.  In state `first` no operation has started. */
static void search_kinds(const unsigned char *first)
{
    memset(x.seen, 0, (x.seen_mask + 1) * sizeof *x.seen);
    x.states = 0;
    restore(first);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        for (uint32_t op = 0; op < OPS; op++)
            fill(turn_of(rank, op).send, op, rank);
    search_or_catch();
    restore(first);
}

typedef struct {
    uint32_t searches, found;
    size_t   states;
} account;

/* Searches the orders of four operations of these kinds. */
static void try_kinds(account *sum, const unsigned char *first, const uint32_t four[OPS])
{
    memcpy(x.kinds, four, sizeof x.kinds);
    x.failed = false;
    search_kinds(first);
    sum->searches++;
    sum->states += x.states;
    if (!x.failed)
        return;
    if (sum->found++ == 0)
        printf("%s, %s, %s, %s: %s\n", kinds[four[0]].name, kinds[four[1]].name,
               kinds[four[2]].name, kinds[four[3]].name, x.why);
}

/* Opens the group and lists the memory that forms a state.  Returns the first state; the caller
 * frees it. */
static unsigned char *begin(uint32_t ring)
{
    open_world((size_t)1 << 22, ring);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        add_rank(x.comms[rank], &x.players[rank], ring);
    add(x.shared, SHARED_BYTES / 2, true);
    add(x.shared + SHARED_BYTES / 2, SHARED_BYTES / 2, false);
    unsigned char *first = malloc(x.bytes);
    assert_non_null(first);
    save(first);
    return first;
}

/* Searches four operations of each kind whose bit is set in `alike`, and every `every`-th of the
 * KINDS^4 mixtures. */
static account search_some(uint32_t ring, uint32_t alike, uint32_t every, bool lies)
{
    unsigned char *first = begin(ring);
    account        sum   = { 0 };

    x.lies = lies;
    for (uint32_t k = 0; k < KINDS * KINDS * KINDS * KINDS; k++) {
        uint32_t four[OPS] = { k % KINDS, k / KINDS % KINDS, k / KINDS / KINDS % KINDS,
                               k / KINDS / KINDS / KINDS };
        bool     same      = four[0] == four[1] && four[1] == four[2] && four[2] == four[3];
        if ((same && (alike >> four[0] & 1) != 0) || k % every == every / 2)
            try_kinds(&sum, first, four);
    }
    free(first);
    close_world();
    printf("%u of %u combinations fail; %zu states\n", sum.found, sum.searches, sum.states);
    return sum;
}

/* Sets of kinds: bit k is kind k.  All of them take a minute, and a million states. */
enum {
    ALL     = (1 << KINDS) - 1,
    SENDERS = 1 << 0 | 1 << 2 | 1 << 3, /* some ranks send nothing */
    OTHERS  = 1 << 11 | 1 << 14,        /* operations with a header, or partly in an arena */
    SMALL   = 1 << 0 | 1 << 13 | 1 << 16 | 1 << 17,
};

/* Intervals of the selection of mixtures: every n-th mixture is searched. */
enum {
    NONE = INT32_MAX,
    MORE = 4001,
};

/* Searches with four slots: all operations may be open at once.  With LK_BRIEF=1 it searches one
 * kind, since the model has one thread, and the states of two slots reach the same code. */
static void every_order_works_with_four_slots(void **state)
{
    (void)state;
    uint32_t alike = lki_thorough() ? ALL : lki_brief() ? 1 << 0 : SENDERS | OTHERS;
    account  sum   = search_some(4, alike, lki_thorough() ? MORE : NONE, false);
    assert_true(sum.searches >= (uint32_t)__builtin_popcount(alike));
    assert_int_equal(sum.found, 0);
}

/* Searches with two slots.  Each slot is reused while other ranks may still be in the previous
 * operation. */
static void every_order_works_with_two_reused_slots(void **state)
{
    (void)state;
    uint32_t alike = lki_thorough() ? ALL : SMALL;
    account  sum   = search_some(2, alike, lki_thorough() ? MORE : NONE, false);
    assert_true(sum.searches >= (uint32_t)__builtin_popcount(alike));
    assert_int_equal(sum.found, 0);
}

/* Lets ranks that send nothing claim falsely that they have received all chunks.  Expects that the
 * search detects this. */
static void false_acknowledgements_are_detected(void **state)
{
    (void)state;
    for (uint32_t ring = 2; ring <= 4; ring += 2) {
        account sum = search_some(ring, SENDERS, NONE, true);
        assert_int_equal(sum.found, sum.searches);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_works_with_four_slots),
        cmocka_unit_test(every_order_works_with_two_reused_slots),
        cmocka_unit_test(false_acknowledgements_are_detected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
