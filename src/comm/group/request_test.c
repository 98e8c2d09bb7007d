/* request_test.c -- operations that are open at the same time, and waits with a timeout.
 *
 * Goal:   requests of several communicators, staged and direct, complete in any order with the
 *         right results.  A wait that times out does not change its request.  A rank does not read
 *         a small payload before it is available.
 * Method: every rank finishes its requests in a different order.  Ranks are on one host or on
 * several.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "comm/hosted_testing.h"
#include "comm/group/slot.h"

enum { OPEN = 12, EACH = 20000 };

/* Starts staged and direct requests in two groups.  Every rank finishes them in a different
 * order. */
static bool interleaves(lk_comm *comm, void *context)
{
    uint32_t    me = lk_comm_rank(comm), size = lk_comm_size(comm), twin = 0;
    float      *heap = calloc((size_t)OPEN * EACH, sizeof *heap), message = (float)me, got = -1;
    lk_request *requests[OPEN], *last;
    lk_arena   *arena;
    lk_comm    *half;

    (void)context;
    CHECK(heap != NULL);
    CHECK(lk_comm_arena(&arena, comm, "open", sizeof *heap * OPEN * EACH * size) == LK_OK);
    CHECK(lk_comm_split(&half, comm, me % 2, 0) == LK_OK);
    float *shared = (float *)lk_arena_data(arena) + (size_t)OPEN * EACH * me;
    for (uint32_t k = 0; k < OPEN; k++) {
        float *at = (k % 3 == 0 ? shared : heap) + (size_t)k * EACH;
        for (size_t i = 0; i < EACH; i++)
            at[i] = (float)(me + k);
        CHECK(lk_all_reduce_start(&requests[k], k % 4 == 1 ? half : comm, at, at, EACH, LK_F32,
                                  LK_MAX) == LK_OK);
    }
    CHECK(lk_send_start(&last, comm, &message, sizeof message, (me + 1) % size) == LK_OK);
    CHECK(lk_recv(comm, &got, sizeof got, (me + size - 1) % size) == LK_OK);
    CHECK(got == (float)((me + size - 1) % size));
    for (uint32_t k = 0; k < OPEN; k++, twin += 5 + 2 * (me % 2)) {
        float *at      = (twin % OPEN % 3 == 0 ? shared : heap) + (size_t)(twin % OPEN) * EACH;
        bool   of_half = twin % OPEN % 4 == 1;
        CHECK(lk_request_wait(requests[twin % OPEN]) == LK_OK);
        uint32_t most = of_half ? size - 1 - ((size - 1) % 2 != me % 2) : size - 1;
        for (size_t i = 0; i < EACH; i++)
            CHECK(at[i] == (float)(most + twin % OPEN));
    }
    for (uint32_t k = 0; k < OPEN; k++)
        lk_request_free(requests[k]);
    CHECK(lk_request_wait(last) == LK_OK && lk_barrier(comm) == LK_OK);
    lk_request_free(last);
    lk_comm_free(half);
    free(heap);
    return true;
}

/* Starts more operations than may be open on one host.  The calls past the limit wait for the
 * oldest operations, which other ranks start later, and no result is lost. */
static bool opens_many(lk_comm *comm, void *context)
{
    enum { MANY = 3 * LKI_IN_FLIGHT + 5 };
    uint32_t    me = lk_comm_rank(comm), size = lk_comm_size(comm), values[MANY];
    lk_request *requests[MANY];

    (void)context;
    for (uint32_t k = 0; k < MANY; k++) {
        values[k] = me + k;
        CHECK(lk_all_reduce_start(&requests[k], comm, &values[k], &values[k], 1, LK_U32, LK_MAX)
              == LK_OK);
    }
    for (uint32_t k = 0; k < MANY; k++) {
        const uint32_t at = me % 2 == 0 ? k : MANY - 1 - k;
        CHECK(lk_request_wait(requests[at]) == LK_OK);
        CHECK(values[at] == size - 1 + at);
        lk_request_free(requests[at]);
    }
    return lk_barrier(comm) == LK_OK;
}

static void more_operations_than_may_be_open_wait(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= 4; size++) {
        assert_true(world_all(size, true, opens_many, NULL));
        assert_true(world_all(size, false, opens_many, NULL));
    }
    assert_true(hosted_all((hosted){ .hosts = 3, .each = 1 }, opens_many, NULL));
    assert_true(hosted_all((hosted){ .hosts = 2, .each = 2, .seed = 4 }, opens_many, NULL));
}

/* Lets a wait time out.  Expects that the request still completes. */
static bool waits_briefly(lk_comm *comm, void *context)
{
    uint32_t    me = lk_comm_rank(comm), value = me;
    lk_request *request;

    (void)context;
    if (me == 0) {
        CHECK(lk_recv_start(&request, comm, &value, sizeof value, 1) == LK_OK);
        CHECK(lk_request_wait_for(request, 5) == LK_ETIMEOUT);
        CHECK(strstr(lk_error_last()->message, "recv #0 (4 bytes from rank 1)") != NULL);
    }
    CHECK(lk_barrier(comm) == LK_OK);
    if (me == 1)
        CHECK(lk_send(comm, &value, sizeof value, 0) == LK_OK);
    if (me == 0) {
        CHECK(lk_request_wait_for(request, WORLD_PATIENCE_MS) == LK_OK && value == 1);
        lk_request_free(request);
    }
    return true;
}

enum { SMALL = 500, REST_MS = 20 };

/* Takes part in a sum of SMALL values of 1, but pauses after writing its slot and before writing
 * its cells.  The pause lasts until rank 0 sends a message (with `until_told`), or for a while. */
static bool sums_slowly(lk_comm *comm, bool until_told)
{
    float  ones[SMALL], told;
    lki_op op;

    for (size_t i = 0; i < SMALL; i++)
        ones[i] = 1;
    CHECK(lki_op_open(&op, comm, lki_print_reduce(LKI_OP_ALL_REDUCE, LK_F32, LK_SUM, 0, SMALL))
          == LK_OK);
    lki_op_write_word(comm, &op, ones, sizeof ones);
    lki_op_publish(comm, &op);
    lki_ring(comm);
    if (until_told)
        CHECK(lk_recv(comm, &told, sizeof told, 0) == LK_OK);
    else
        usleep(REST_MS * 1000);
    lki_op_write_cells(comm, &op, ones, sizeof ones, sizeof ones);
    CHECK(lki_op_meet(comm, &op) == LK_OK);
    lki_op_finish(comm, &op, sizeof ones);
    return true;
}

/* Lets a rank write its cells late.  Expects that no rank reads the payload too early. */
static bool payload_comes_late(lk_comm *comm, void *context)
{
    float       sum[2][SMALL] = { { 0 } };
    bool        done;
    lk_request *request;

    (void)context;
    for (size_t i = 0; i < SMALL; i++)
        sum[0][i] = sum[1][i] = 2;
    if (lk_comm_rank(comm) == 1) {
        CHECK(sums_slowly(comm, true) && sums_slowly(comm, false));
        return lk_barrier(comm) == LK_OK;
    }
    CHECK(lk_all_reduce_start(&request, comm, sum[0], sum[0], SMALL, LK_F32, LK_SUM) == LK_OK);
    for (int i = 0; i < REST_MS; i++, usleep(1000))
        CHECK(lk_request_test(request, &done) == LK_OK && !done);
    CHECK(lk_send(comm, sum[0], sizeof(float), 1) == LK_OK);
    CHECK(lk_request_wait(request) == LK_OK);
    lk_request_free(request);
    CHECK(lk_all_reduce(comm, sum[1], sum[1], SMALL, LK_F32, LK_SUM) == LK_OK);
    for (size_t i = 0; i < SMALL; i++)
        CHECK(sum[0][i] == 3 && sum[1][i] == 3);
    return lk_barrier(comm) == LK_OK;
}

static void a_late_payload_is_awaited(void **state)
{
    (void)state;
    for (int threads = 0; threads < 2; threads++)
        assert_true(world_all(2, threads == 1, payload_comes_late, NULL));
}

static void open_requests_complete_in_any_order(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 6; size += 2)
        for (int threads = 0; threads < 2; threads++) {
            assert_true(world_all(size, threads == 1, interleaves, NULL));
            assert_true(world_all(size, threads == 1, waits_briefly, NULL));
        }
}

static void open_requests_over_hosts_complete_in_any_order(void **state)
{
    static const hosted shapes[] = { { .hosts = 2, .each = 1 },
                                     { .hosts = 4, .each = 1 },
                                     { .hosts = 2, .each = 2 },
                                     { .hosts = 2, .each = 3 } };
    (void)state;
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        assert_true(hosted_all(shapes[k], interleaves, NULL));
        assert_true(hosted_all(shapes[k], waits_briefly, NULL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_operations_than_may_be_open_wait),
        cmocka_unit_test(open_requests_complete_in_any_order),
        cmocka_unit_test(a_late_payload_is_awaited),
        cmocka_unit_test(open_requests_over_hosts_complete_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
