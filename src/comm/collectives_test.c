/* collectives_test.c -- barrier, broadcast, all_gather and all_reduce, for every number of ranks.
 *
 * Goal:   every rank receives the right bytes, for all sizes, buffer locations and numbers of
 *         ranks.  Ranks are threads or processes, on one host or on several.  Some groups have more
 *         ranks than there are cores.
 * Method: sizes are near those at which the method changes.  Large vectors have enough chunks to
 *         reuse every staging buffer.  all_reduce is compared bit by bit with the tree evaluated
 *         here by plain recursion.  The test of the barrier uses counters in shared memory, whose
 *         accesses the barrier must order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/sanitized_testing.h"
#include "base/thorough_testing.h"
#include "comm/hosted_testing.h"

static const size_t counts[] = { 0, 1, 2, 7, 8, 9, 111, 112, 113, 1000, 16384, 16385, 40001 };
enum { WIDTH = 7, COUNTS = sizeof counts / sizeof counts[0], MANY = 40001 };

static double tree_f64(uint32_t first, uint32_t count, size_t i, uint32_t call)
{
    if (count == 1)
        return 1.0 / 3 * (double)world_value(first, i, call);
    uint32_t left = 1;
    while (2 * left < count)
        left *= 2;
    return tree_f64(first, left, i, call) + tree_f64(first + left, count - left, i, call);
}

/* ---- all_reduce -------------------------------------------------------------------------- */

static bool sum_f32(lk_comm *comm, float *send, float *recv, size_t n, uint32_t call)
{
    uint32_t rank = lk_comm_rank(comm), size = lk_comm_size(comm);

    for (size_t i = 0; i < n; i++)
        send[i] = world_value(rank, i, call);
    CHECK(lk_all_reduce(comm, send, recv, n, LK_F32, LK_SUM) == LK_OK);
    for (size_t i = 0; i < n; i++) {
        float want = world_tree(comm, 0, size, i, call);
        CHECK(memcmp(&recv[i], &want, sizeof want) == 0);
    }
    return true;
}

static bool sum_f64(lk_comm *comm, double *send, double *recv, size_t n, uint32_t call)
{
    uint32_t rank = lk_comm_rank(comm), size = lk_comm_size(comm);

    for (size_t i = 0; i < n; i++)
        send[i] = 1.0 / 3 * (double)world_value(rank, i, call);
    CHECK(lk_all_reduce(comm, send, recv, n, LK_F64, LK_SUM) == LK_OK);
    for (size_t i = 0; i < n; i++) {
        double want = tree_f64(0, size, i, call);
        CHECK(memcmp(&recv[i], &want, sizeof want) == 0);
    }
    return true;
}

/* Returns this rank's two buffers in an arena, of MANY doubles each. */
static double *my_part(const lk_arena *arena, const lk_comm *comm)
{
    return (double *)lk_arena_data(arena) + (size_t)lk_comm_rank(comm) * 2 * MANY;
}

static bool reduces_every_count(lk_comm *comm, void *context)
{
    lk_arena *arena;
    double   *heap = malloc(2 * MANY * sizeof *heap);
    uint32_t  call = 0;
    bool      good = heap != NULL;

    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "test", (size_t)lk_comm_size(comm) * 2 * MANY * 8) == LK_OK);
    double *mine = my_part(arena, comm);
    for (size_t k = 0; k < COUNTS && good; k++) {
        size_t n  = counts[k];
        bool   me = lk_comm_rank(comm) == lk_comm_size(comm) - 1;
        double *mixed = me ? heap : mine; /* rank 0 uses the heap and the other ranks use an
                                           * arena */
        good = sum_f32(comm, (float *)heap, (float *)(heap + MANY), n, call++)
               && sum_f32(comm, (float *)heap, (float *)heap, n, call++)
               && sum_f32(comm, (float *)mine, (float *)(mine + MANY), n, call++)
               && sum_f32(comm, (float *)mine, (float *)mine, n, call++)
               && sum_f32(comm, (float *)mixed, (float *)mixed, n, call++)
               && sum_f64(comm, heap, heap, n, call++) && sum_f64(comm, mine, mine, n, call++);
    }
    free(heap);
    return good;
}

static bool refuses_nonsense(lk_comm *comm, void *context)
{
    float  buffer[8] = { 0 };
    double value     = 1;

    (void)context;
    CHECK(lk_all_reduce(comm, buffer, buffer + 1, 4, LK_F32, LK_SUM) == LK_EINVAL);
    CHECK(strstr(lk_error_last()->message, "overlap") != NULL);
    CHECK(lk_all_reduce(comm, buffer, buffer, 4, (lk_dtype)99, LK_SUM) == LK_EINVAL);
    CHECK(lk_broadcast(comm, buffer, 4, lk_comm_size(comm)) == LK_EINVAL);
    CHECK(lk_broadcast(comm, buffer, SIZE_MAX, 0) == LK_EINVAL);
    CHECK(strstr(lk_error_last()->message, "more than memory can hold") != NULL);
    CHECK(lk_send(comm, buffer, SIZE_MAX - 7, 0) == LK_EINVAL);
    CHECK(lk_recv(comm, buffer, (size_t)1 << 63, 0) == LK_EINVAL);
    CHECK(lk_all_reduce(comm, &value, &value, 1, LK_F64, LK_SUM) == LK_OK); /* succeeds only if the
                                                                             * group has not
                                                                             * failed */
    return true;
}

/* Returns true if a call was refused with a message that names an argument. */
static bool names(lk_status status, const char *argument)
{
    char text[64];
    snprintf(text, sizeof text, "`%s` is NULL", argument);
    if (status == LK_EINVAL && strstr(lk_error_last()->message, text) != NULL)
        return true;
    print_message("%d, %s\n", (int)status, lk_error_last()->message);
    return false;
}

static bool refuses_missing_lists(lk_comm *comm, void *context)
{
    const size_t     none[WORLD_MAX] = { 0 };
    const lk_tree_op slices = { .leaves = 1, .slice_count = 1 };
    const lk_tree_op nodes  = { .leaves = 1, .node_count = 1 };
    float            buffer[8] = { 0 };
    double           seconds;
    uint32_t         count;
    lk_request      *request;
    lk_comm         *group;
    lk_arena        *arena;
    (void)context;
    CHECK(names(lk_all_gather_v(comm, NULL, NULL, NULL), "bytes"));
    CHECK(names(lk_all_gather_v_start(&request, comm, NULL, NULL, NULL), "bytes"));
    CHECK(names(lk_all_to_all_v(comm, NULL, NULL, NULL, none), "send_bytes"));
    CHECK(names(lk_all_to_all_v_start(&request, comm, NULL, none, NULL, NULL), "recv_bytes"));
    CHECK(names(lk_reduce_scatter_v(comm, NULL, NULL, NULL, LK_F32, LK_SUM), "counts"));
    CHECK(names(lk_reduce_scatter_v_start(&request, comm, buffer, NULL, NULL, LK_F32, LK_SUM),
                "counts"));
    CHECK(names(lk_all_reduce_many(comm, NULL, 2, LK_SUM), "parts"));
    CHECK(names(lk_tree_reduce(comm, &slices), "slices"));
    CHECK(names(lk_tree_reduce(comm, &nodes), "nodes"));
    CHECK(names(lk_comm_subset(&group, comm, NULL, 1), "ranks") && group == NULL);
    CHECK(names(lk_comm_arena(&arena, comm, NULL, 64), "name") && arena == NULL);
    CHECK(names(lk_arena_mirror(comm, NULL, 0, none), "arena"));
    CHECK(names(lk_comm_explain(comm, NULL, 4, NULL, 0, &count), "operation"));
    CHECK(names(lk_comm_explain(comm, "all_reduce", 4, NULL, 3, &count), "out"));
    CHECK(names(lk_comm_read_tuning(NULL, &seconds, &seconds), "path"));
    CHECK(lk_comm_arena(&arena, comm, "mirrored", 64) == LK_OK);
    CHECK(names(lk_arena_mirror(comm, arena, 0, NULL), "bytes"));
    return lk_barrier(comm) == LK_OK; /* the refused calls have changed nothing */
}

/* ---- broadcast and all_gather ------------------------------------------------------------ */

static unsigned char byte_of(uint32_t rank, size_t i, uint32_t call)
{
    return (unsigned char)(i * 7 + i / 251 + rank * 31 + call * 13);
}

static bool broadcast_once(lk_comm *comm, unsigned char *data, size_t n, uint32_t root,
                           uint32_t call)
{
    for (size_t i = 0; i < n; i++)
        data[i] = lk_comm_rank(comm) == root ? byte_of(root, i, call) : 0;
    CHECK(lk_broadcast(comm, data, n, root) == LK_OK);
    for (size_t i = 0; i < n; i++)
        CHECK(data[i] == byte_of(root, i, call));
    return true;
}

static bool gather_once(lk_comm *comm, const unsigned char *send, unsigned char *recv, size_t n,
                        uint32_t call)
{
    CHECK(lk_all_gather(comm, send, recv, n) == LK_OK);
    for (uint32_t rank = 0; rank < lk_comm_size(comm); rank++)
        for (size_t i = 0; i < n; i++)
            CHECK(recv[rank * n + i] == byte_of(rank, i, call));
    return true;
}

static bool moves_every_size(lk_comm *comm, void *context)
{
    uint32_t       rank = lk_comm_rank(comm), size = lk_comm_size(comm), call = 0;
    unsigned char *heap = malloc((size_t)(size + 1) * WIDTH * MANY);
    lk_arena      *arena;
    bool           good = heap != NULL;

    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "bytes", (size_t)size * WIDTH * MANY) == LK_OK);
    unsigned char *mine = (unsigned char *)lk_arena_data(arena) + (size_t)rank * WIDTH * MANY;
    for (size_t k = 0; k < COUNTS && good; k++) {
        size_t         n  = WIDTH * counts[k];
        unsigned char *in = k % 2 == 0 ? mine : heap + (size_t)size * WIDTH * MANY;
        good = broadcast_once(comm, heap, n, (uint32_t)k % size, call)
               && broadcast_once(comm, mine, n, (uint32_t)(k + 1) % size, call + 1);
        for (size_t i = 0; i < n; i++)
            in[i] = byte_of(rank, i, call);
        good = good && gather_once(comm, in, heap, n, call);
        memset(heap, 0, size * n);
        for (size_t i = 0; i < n; i++)
            heap[rank * n + i] = byte_of(rank, i, call + 1);
        good = good && gather_once(comm, heap + rank * n, heap, n, call + 1);
        call += 2;
    }
    free(heap);
    return good;
}

/* Moves so much data that copies bypass the cache: each rank receives a little more than 16 MiB.
 * Expects that the other ranks see all of it after a barrier. */
static bool moves_much(lk_comm *comm, void *context)
{
    uint32_t  rank = lk_comm_rank(comm), size = lk_comm_size(comm), next = (rank + 1) % size;
    size_t    n = ((size_t)16 << 20) / size + 1001, all = n * size;
    lk_arena *arena;

    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "much", size * (all + n)) == LK_OK);
    unsigned char *base = lk_arena_data(arena), *recv = base + rank * all;
    unsigned char *send = base + size * all + rank * n, *heap = malloc(n);
    CHECK(heap != NULL);
    for (uint32_t call = 0; call < 2; call++) {
        for (size_t i = 0; i < n; i++)
            heap[i] = send[i] = byte_of(rank, i, call);
        if (!gather_once(comm, call == 0 ? send : heap, recv, n, call))
            return false;
        CHECK(lk_barrier(comm) == LK_OK);
        for (size_t i = 0; i < all; i += 61)
            CHECK(base[next * all + i] == byte_of((uint32_t)(i / n), i % n, call));
        CHECK(lk_barrier(comm) == LK_OK);
    }
    free(heap);
    return true;
}

/* ---- Order ------------------------------------------------------------------------------- */

/* Writes the number of the round to this rank's counter in an arena, then calls a barrier.  Expects
 * that every rank then reads this number in all counters. */
static bool orders_memory(lk_comm *comm, void *context)
{
    uint32_t  rank = lk_comm_rank(comm), size = lk_comm_size(comm), rounds = *(uint32_t *)context;
    lk_arena *arena;

    CHECK(lk_comm_arena(&arena, comm, "order", (size_t)size * 64) == LK_OK);
    uint64_t *cells = lk_arena_data(arena);
    for (uint64_t round = 1; round <= rounds; round++) {
        cells[rank * 8] = round;
        CHECK(lk_barrier(comm) == LK_OK);
        for (uint32_t r = 0; r < size; r++)
            CHECK(cells[r * 8] == round);
        double one = 1;
        CHECK(lk_all_reduce(comm, &one, &one, 1, LK_F64, LK_SUM) == LK_OK && one == (double)size);
    }
    return true;
}

/* Runs small operations one after the other.  No operation waits until all ranks have read the data
 * of the previous one. */
static bool turns_the_ring(lk_comm *comm, void *context)
{
    uint32_t rank = lk_comm_rank(comm), size = lk_comm_size(comm), rounds = *(uint32_t *)context;

    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t root = round % size, value = rank == root ? round : 0, all[WORLD_MAX];
        CHECK(lk_broadcast(comm, &value, sizeof value, root) == LK_OK && value == round);
        value += rank;
        CHECK(lk_all_gather(comm, &value, all, sizeof value) == LK_OK);
        for (uint32_t r = 0; r < size; r++)
            CHECK(all[r] == round + r);
    }
    return true;
}

static void every_size(world_main main, void *context)
{
    for (uint32_t size = 1; size <= (LKI_SANITIZED ? 4 : 8);
         size += size >= 4 || lki_brief() ? 2 : 1) {
        assert_true(world_all(size, true, main, context));
        assert_true(world_all(size, false, main, context));
    }
    assert_true(world_all(5, true, main, context));
    if (!LKI_SANITIZED)
        assert_true(world_all(7, false, main, context));
}

/* Runs `main` on several hosts.  `main` must not need memory that all ranks share. */
static void on_hosts(world_main main, void *context)
{
    for (uint32_t hosts = 2; hosts <= (LKI_SANITIZED ? 4 : 6); hosts += 2) {
        hosted h = { .hosts = hosts, .each = 1, .seed = hosts };
        assert_true(hosted_all(h, main, context));
    }
    assert_true(hosted_all((hosted){ .hosts = 2, .each = 3, .fewer = 1 }, main, context));
}

static void all_reduce_is_the_tree(void **state)
{
    (void)state;
    every_size(reduces_every_count, NULL);
    on_hosts(reduces_every_count, NULL);
}

static void vectors_of_all_sizes_arrive(void **state)
{
    (void)state;
    every_size(moves_every_size, NULL);
    on_hosts(moves_every_size, NULL);
}

static void large_vectors_arrive(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 3; size++)
        assert_true(world_all(size, false, moves_much, NULL));
}

static void invalid_calls_are_refused(void **state)
{
    (void)state;
    every_size(refuses_nonsense, NULL);
    on_hosts(refuses_nonsense, NULL);
}

static void missing_lists_are_refused_by_name(void **state)
{
    (void)state;
    every_size(refuses_missing_lists, NULL);
    on_hosts(refuses_missing_lists, NULL);
}

static void barriers_order_memory(void **state)
{
    uint32_t rounds = 300;
    (void)state;
    every_size(orders_memory, &rounds);
}

static void many_small_operations_work_in_a_row(void **state)
{
    uint32_t rounds = 500;
    (void)state;
    every_size(turns_the_ring, &rounds);
    rounds = 100;
    on_hosts(turns_the_ring, &rounds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_calls_are_refused),
        cmocka_unit_test(missing_lists_are_refused_by_name),
        cmocka_unit_test(barriers_order_memory),
        cmocka_unit_test(many_small_operations_work_in_a_row),
        cmocka_unit_test(vectors_of_all_sizes_arrive),
        cmocka_unit_test(all_reduce_is_the_tree),
        cmocka_unit_test(large_vectors_arrive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
