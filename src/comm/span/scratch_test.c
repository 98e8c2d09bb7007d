/* scratch_test.c -- a bound for the memory of elements received from other ranks.
 *
 * Goal:   many trees over hosts at once, in two communicators, complete with the right sums.  A
 *         rank's memory for parts from other ranks never exceeds the rank's scratch rooms
 *         (lki_rooms) and one segment per communicator.
 * Method: counts allocations and releases of that memory.  Every rank begins with the communicator
 *         in which its slices are in the second half of the vectors.  The scratch rooms of this
 *         rank thus fill with parts that other ranks send only after they have acquired rooms
 *         themselves.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/sanitized_testing.h"
#include "base/thorough_testing.h"
#include "comm/hosted_testing.h"
#include "comm/scratch.h"

enum { HOSTS = 4, OPEN = 10, SLICE = 300000, ELEMENTS = HOSTS * SLICE, HELD_MAX = 64 };

/* Sanitizers check each element separately, so the last of many trees may take a long
 * time. */
#define LONG_WAITS .timeout_ms = 300000

/* ---- Allocations ------------------------------------------------------------------------- */

typedef struct {
    void  *memory[HELD_MAX];
    size_t bytes[HELD_MAX], now, most;
} held;

static _Thread_local held mine;

lk_status __real_lki_alloc_untouched(void **out, size_t bytes, const char *what);
void      __real_lki_free(void *memory);
lk_status __wrap_lki_alloc_untouched(void **out, size_t bytes, const char *what);
void      __wrap_lki_free(void *memory);

lk_status __wrap_lki_alloc_untouched(void **out, size_t bytes, const char *what)
{
    lk_status status = __real_lki_alloc_untouched(out, bytes, what);
    size_t    k      = 0;
    if (status != LK_OK || strcmp(what, "what other ranks send of a segment") != 0)
        return status;
    while (k < HELD_MAX && mine.memory[k] != NULL)
        k++;
    if (k == HELD_MAX)
        abort();
    mine.memory[k] = *out;
    mine.bytes[k]  = bytes;
    mine.now += bytes;
    mine.most = lki_max(mine.most, mine.now);
    return LK_OK;
}

void __wrap_lki_free(void *memory)
{
    for (size_t k = 0; k < HELD_MAX && memory != NULL; k++)
        if (mine.memory[k] == memory) {
            mine.now -= mine.bytes[k];
            mine.memory[k] = NULL;
        }
    __real_lki_free(memory);
}

/* ---- Trees ------------------------------------------------------------------------------- */

/* The number of ranks per host and the number of leaves.  Each of the first `leaves` ranks has one
 * leaf. */
typedef struct {
    uint32_t each, leaves;
} shape;

typedef struct {
    lk_comm     *comms[2];
    uint32_t     leaves, host;
    lk_tree_node node;
    lk_slice     slices[2][HOSTS]; /* in the second list, the last host wants the first slice */
    float       *out; /* SLICE elements for each operation */
    lk_request  *requests[2][OPEN];
} trees;

static bool start(lk_comm *comm, trees *t, uint32_t which)
{
    for (size_t k = 0; k < OPEN; k++) {
        const lk_tree_op op = { .leaves      = t->leaves,
                                .elements    = ELEMENTS,
                                .nodes       = &t->node,
                                .node_count  = lk_comm_rank(comm) < t->leaves,
                                .slices      = t->slices[which],
                                .slice_count = HOSTS,
                                .shards      = HOSTS,
                                .out         = t->out + (which * OPEN + k) * SLICE,
                                .packed      = true };
        CHECK(lk_tree_reduce_start(&t->requests[which][k], t->comms[which], &op) == LK_OK);
    }
    return true;
}

static float sum_of(uint32_t first, uint32_t count, size_t at)
{
    return count == 1 ? world_value(first, at, 0)
                      : sum_of(first, count / 2, at) + sum_of(first + count / 2, count / 2, at);
}

static bool is_sum(lk_comm *comm, const trees *t, uint32_t which)
{
    const size_t first = (which == 0 ? t->host : HOSTS - 1 - t->host) * SLICE;
    for (size_t i = 0; i < (size_t)OPEN * SLICE; i++)
        CHECK(t->out[which * OPEN * SLICE + i] == sum_of(0, t->leaves, first + i % SLICE));
    return true;
}

/* Reduces many trees.  The first rank of a host owns all slices there. */
static bool reduces_many(lk_comm *comm, void *context)
{
    const shape   *of   = context;
    const uint32_t rank = lk_comm_rank(comm), host = rank / of->each, first = host < HOSTS / 2;
    trees          t    = { .comms = { comm }, .leaves = of->leaves, .host = host };
    lk_arena      *arena;

    CHECK(lk_comm_split(&t.comms[1], comm, 0, rank) == LK_OK);
    CHECK(lk_comm_arena(&arena, comm, "leaves", of->each * ELEMENTS * sizeof(float)) == LK_OK);
    float *leaf = (float *)lk_arena_data(arena) + rank % of->each * ELEMENTS;
    t.out       = malloc(sizeof *t.out * 2 * OPEN * SLICE);
    CHECK(t.out != NULL);
    t.node = (lk_tree_node){ rank, 1, leaf };
    for (size_t i = 0; i < ELEMENTS; i++)
        leaf[i] = world_value(rank, i, 0);
    for (uint32_t k = 0; k < HOSTS; k++) {
        t.slices[0][k] = (lk_slice){ .first = k * SLICE, .count = SLICE, .shard = k };
        t.slices[1][k] = (lk_slice){ .first = k * SLICE, .count = SLICE, .shard = HOSTS - 1 - k };
    }
    CHECK(lk_barrier(comm) == LK_OK);
    CHECK(start(comm, &t, first) && start(comm, &t, 1 - first));
    for (uint32_t k = 2 * OPEN; k-- > 0;) { /* in the opposite order of their starts */
        lk_request **request = &t.requests[k < OPEN ? first : 1 - first][k % OPEN];
        CHECK(lk_request_wait(*request) == LK_OK);
        lk_request_free(*request);
    }
    CHECK(rank % of->each > 0 || (is_sum(comm, &t, 0) && is_sum(comm, &t, 1)));
    CHECK(rank % of->each > 0 || mine.most > LKI_TASK_ROOMS * LKI_TASK_SEGMENT_BYTES / 2);
    CHECK(mine.most <= (LKI_TASK_ROOMS + 2) * LKI_TASK_SEGMENT_BYTES + 4096);
    lk_comm_free(t.comms[1]);
    free(t.out);
    return true;
}

static void scratch_is_bounded(void **state)
{
    shape one_each = { .each = 1, .leaves = HOSTS };
    (void)state;
    if (lki_brief())
        skip(); /* uneven hosts have the same bound */
    for (uint64_t seed = 1; seed <= (LKI_SANITIZED ? 1 : 3); seed++)
        assert_true(hosted_all((hosted){ .hosts = HOSTS, .each = 1, .seed = seed, LONG_WAITS },
                               reduces_many, &one_each));
}

/* Runs the test on hosts that differ.  A rank without branches receives all branches.  A host with
 * several ranks computes its branches before it sends them. */
static void scratch_is_bounded_on_uneven_hosts(void **state)
{
    shape some_have_none = { .each = 1, .leaves = HOSTS / 2 };
    shape two_each       = { .each = 2, .leaves = 2 * HOSTS };
    (void)state;
    assert_true(hosted_all((hosted){ .hosts = HOSTS, .each = 1, .seed = 4, LONG_WAITS },
                           reduces_many, &some_have_none));
    assert_true(hosted_all((hosted){ .hosts = HOSTS, .each = 2, .seed = 5, LONG_WAITS },
                           reduces_many, &two_each));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scratch_is_bounded),
        cmocka_unit_test(scratch_is_bounded_on_uneven_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
