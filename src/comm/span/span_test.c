/* span_test.c -- a communicator over several hosts: hosts and local ranks, and the basic
 * operations.
 *
 * Goal:   ranks know the ranks with which they share memory. barrier, broadcast, all_gather and
 *         all_reduce are right for every number of hosts and of ranks on them, with small data and
 *         in segments.
 * Method: hosted_testing.h.  With one rank per host the seed determines everything.
 */
#include <unistd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/thorough_testing.h"
#include "comm/hosted_testing.h"
#include "device/plain_testing.h"

static bool knows_places(lk_comm *comm, void *context)
{
    const hosted *h    = context;
    uint32_t      size = lk_comm_size(comm);

    CHECK(size == hosted_size(*h) && lk_comm_hosts(comm) == h->hosts);
    for (uint32_t rank = 0; rank < size; rank++) {
        CHECK(lk_comm_host(comm, rank) == rank / h->each);
        CHECK(lk_comm_local_rank(comm, rank) == rank % h->each);
    }
    CHECK(lk_comm_local_size(comm, 0) == h->each);
    CHECK(lk_comm_local_size(comm, h->hosts - 1) == h->each - h->fewer);
    return true;
}

static bool broadcasts(lk_comm *comm, uint32_t *data, size_t n, uint32_t root)
{
    for (size_t i = 0; i < n; i++)
        data[i] = lk_comm_rank(comm) == root ? (uint32_t)i * 7 + root : 0;
    CHECK(lk_broadcast(comm, data, n * sizeof *data, root) == LK_OK);
    for (size_t i = 0; i < n; i++)
        CHECK(data[i] == (uint32_t)i * 7 + root);
    return true;
}

static bool gathers(lk_comm *comm, uint32_t *data, size_t n)
{
    uint32_t me = lk_comm_rank(comm);

    for (size_t i = 0; i < n; i++)
        data[me * n + i] = (uint32_t)i * 5 + me;
    CHECK(lk_all_gather(comm, data + me * n, data, n * sizeof *data) == LK_OK);
    for (uint32_t rank = 0; rank < lk_comm_size(comm); rank++)
        for (size_t i = 0; i < n; i++)
            CHECK(data[rank * n + i] == (uint32_t)i * 5 + rank);
    return true;
}

static bool sums(lk_comm *comm, float *send, float *recv, size_t n, uint32_t call)
{
    for (size_t i = 0; i < n; i++)
        send[i] = world_value(lk_comm_rank(comm), i, call);
    CHECK(lk_all_reduce(comm, send, recv, n, LK_F32, LK_SUM) == LK_OK);
    for (size_t i = 0; i < n; i++) {
        float want = world_tree(comm, 0, lk_comm_size(comm), i, call);
        CHECK(memcmp(&recv[i], &want, sizeof want) == 0);
    }
    return true;
}

enum { MOST = 400001 };

static bool does_the_first_four(lk_comm *comm, void *context)
{
    static const size_t counts[] = { 0, 1, 100, 5000, MOST };
    uint32_t            size = lk_comm_size(comm);
    void               *a = malloc(sizeof(float) * MOST), *b = malloc(sizeof(float) * MOST);
    bool                good = a != NULL && b != NULL;

    (void)context;
    for (uint32_t k = 0; k < 5 && good; k++) {
        good = lk_barrier(comm) == LK_OK && broadcasts(comm, a, counts[k], k % size) &&
               gathers(comm, a, counts[k] / size) && sums(comm, a, b, counts[k], k) &&
               sums(comm, a, a, counts[k], k + 7);
    }
    free(a);
    free(b);
    return good;
}

enum { LARGE_PIECE = 200000 }; /* more than is sent without an announcement */

/* Mirrors an arena.  Some ranks' parts are empty.  Bytes around the parts must not change. */
static bool mirrors(lk_comm *comm, void *context)
{
    uint32_t  size = lk_comm_size(comm), me = lk_comm_rank(comm);
    size_t    bytes[HOSTED_MAX], at = 64, total = 64;
    lk_arena *arena;

    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "mirror", 64 + size * LARGE_PIECE + 64) == LK_OK);
    unsigned char *data = lk_arena_data(arena);
    for (uint32_t rank = 0; rank < size; rank++) {
        bytes[rank] = rank % 3 == 1 ? 0 : rank % 4 == 3 ? LARGE_PIECE : 30 + rank;
        at += rank < me ? bytes[rank] : 0;
        total += bytes[rank];
    }
    memset(data + at, (int)me + 1, bytes[me]);
    uint64_t before = lki_wire_count(comm->self->wire).bytes_sent;
    CHECK(lk_arena_mirror(comm, arena, 64, bytes) == LK_OK);
    CHECK(lki_wire_count(comm->self->wire).bytes_sent - before ==
          (lk_comm_hosts(comm) - 1) * bytes[me]);
    for (size_t i = 0; i < 64; i++)
        CHECK(data[i] == 0 && data[total + i] == 0);
    for (uint32_t rank = 0, i = 64; rank < size; rank++)
        for (size_t k = 0; k < bytes[rank]; k++, i++)
            CHECK(data[i] == rank + 1);
    bytes[size - 1] = (size_t)LARGE_PIECE * HOSTED_MAX;
    CHECK(lk_arena_mirror(comm, arena, 64, bytes) == LK_EINVAL);
    return true;
}

enum { FILLS = 9, PLACES = 2 };

/* Returns the value of all bytes that `rank` contributes to fill `number`. */
static unsigned char filled(uint32_t number, uint32_t rank)
{
    return (unsigned char)(1 + number * HOSTED_MAX + rank);
}

static bool holds(const unsigned char *data, const size_t *bytes, uint32_t size, uint32_t number)
{
    for (uint32_t rank = 0; rank < size; rank++)
        for (size_t k = 0; k < bytes[rank]; k++)
            if (*data++ != filled(number, rank))
                return false;
    return true;
}

/* A fill in progress: this rank's part (`from`, `bytes`), and the numbers of calls of put() and
 * take(). */
typedef struct {
    const unsigned char *from;
    size_t               bytes, *sizes;
    const unsigned char *place;
    uint32_t             number;
    uint32_t             puts, taken;
    bool                 good;
} gift;

static void put_gift(void *context, void *to)
{
    gift *g = context;
    memcpy(to, g->from, g->bytes);
    g->puts++;
}

static void take_gift(void *context, uint32_t rank)
{
    gift                *g  = context;
    const unsigned char *at = g->place;
    for (uint32_t r = 0; r < rank; r++)
        at += g->sizes[r];
    for (size_t k = 0; k < g->sizes[rank]; k++)
        g->good = g->good && at[k] == filled(g->number, rank);
    g->taken++;
}

/* Checks that this host has taken the part of each rank once. */
static bool all_are_taken(lk_comm *comm, uint64_t taken)
{
    uint64_t all[HOSTED_MAX], sum = 0;
    CHECK(lk_all_gather(comm, &taken, all, sizeof taken) == LK_OK);
    for (uint32_t rank = 0; rank < lk_comm_size(comm); rank++)
        sum += lk_comm_host(comm, rank) == lk_comm_host(comm, lk_comm_rank(comm)) ? all[rank] : 0;
    CHECK(sum == FILLS * (uint64_t)lk_comm_size(comm));
    return true;
}

/* Fills an arena, with as many fills in progress as the arena has places.  Every second fill is
 * small, so it completes before the previous one.  A place keeps its contents until this rank fills
 * it again, however far ahead other ranks are. */
static bool fills(lk_comm *comm, void *context)
{
    uint32_t       size = lk_comm_size(comm), me = lk_comm_rank(comm);
    size_t         bytes[PLACES][HOSTED_MAX];
    lk_arena      *arena;
    lk_request    *requests[PLACES] = { NULL };
    unsigned char *mine[PLACES];
    gift           gifts[PLACES];
    lki_filler     fillers[PLACES];
    uint64_t       taken = 0;

    (void)context;
    for (uint32_t rank = 0; rank < size; rank++) {
        bytes[1][rank] = rank % 3 == 1 ? 0 : 30 + rank;
        bytes[0][rank] = rank % 4 == 3 ? LARGE_PIECE : bytes[1][rank];
    }
    CHECK(lk_comm_arena(&arena, comm, "filled", PLACES * HOSTED_MAX * LARGE_PIECE) == LK_OK);
    for (uint32_t k = 0; k < PLACES; k++)
        CHECK((mine[k] = malloc(LARGE_PIECE)) != NULL);
    for (uint32_t n = 0; n < FILLS + PLACES; n++) {
        uint32_t       k     = n % PLACES;
        size_t         place = k * (size_t)HOSTED_MAX * LARGE_PIECE, count = bytes[k][me];
        unsigned char *at    = (unsigned char *)lk_arena_data(arena) + place;
        if (n >= PLACES) {
            CHECK(lk_request_wait(requests[k]) == LK_OK);
            lk_request_free(requests[k]);
            CHECK(gifts[k].good && gifts[k].puts == (bytes[k][me] > 0));
            taken += gifts[k].taken;
            CHECK(holds(at, bytes[k], size, n - PLACES));
        }
        (void)usleep((n + me) % 3 * 50);
        CHECK(n < PLACES || holds(at, bytes[k], size, n - PLACES));
        memset(mine[k], filled(n, me), LARGE_PIECE);
        gifts[k]   = (gift){ mine[k], count, bytes[k], at, n, 0, 0, true };
        fillers[k] = (lki_filler){ put_gift, take_gift, &gifts[k] };
        if (n < FILLS)
            CHECK(lki_arena_fill_start(&requests[k], comm, arena, place, bytes[k], &fillers[k]) ==
                  LK_OK);
    }
    for (uint32_t k = 0; k < PLACES; k++)
        free(mine[k]);
    if (!all_are_taken(comm, taken))
        return false;
    return true;
}

static void arenas_are_filled(void **state)
{
    static const hosted shapes[] = { { .hosts = 3, .each = 1 },
                                     { .hosts = 2, .each = 2 },
                                     { .hosts = 2, .each = 3, .fewer = 1 } };
    (void)state;
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        assert_true(hosted_all(shapes[k], fills, NULL));
}

static void arenas_are_mirrored(void **state)
{
    static const hosted shapes[] = { { .hosts = 1, .each = 1 },
                                     { .hosts = 4, .each = 1 },
                                     { .hosts = 2, .each = 3, .fewer = 1 } };
    (void)state;
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        assert_true(hosted_all(shapes[k], mirrors, NULL));
}

static void operations_work_with_one_rank_per_host(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 9; n += lki_brief() ? 4 : 1) {
        hosted h = { .hosts = n, .each = 1, .seed = n };
        assert_true(hosted_all(h, knows_places, &h));
        assert_true(hosted_all(h, does_the_first_four, NULL));
    }
}

static void operations_work_with_several_ranks_per_host(void **state)
{
    (void)state;
    for (uint32_t each = 2; each <= 3; each++)
        for (uint32_t hosts = 2; hosts <= 3; hosts++) {
            hosted h = { .hosts = hosts, .each = each, .fewer = each - 2, .seed = each };
            assert_true(hosted_all(h, knows_places, &h));
            assert_true(hosted_all(h, does_the_first_four, NULL));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_work_with_one_rank_per_host),
        cmocka_unit_test(operations_work_with_several_ranks_per_host),
        cmocka_unit_test(arenas_are_mirrored),
        cmocka_unit_test(arenas_are_filled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
