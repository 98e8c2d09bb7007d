/* split_test.c -- groups of the same ranks in different orders do not receive each other's data.
 *
 * Method: half of the ranks start the operations of one group first, and half those of the other,
 *         so that the messages of both are under way at the same time.  The names in messages of
 *         errors are equal; `key`, by which messages are told apart, is not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "comm/group/group.h"
#include "comm/hosted_testing.h"

enum { COUNT = 3000, ROUNDS = 4, ODD = 100 };

/* A group, with the buffers of this rank. */
typedef struct {
    lk_comm    *comm;
    uint32_t    number; /* 0 or 1 */
    float      *send, *all, *mail;
    lk_request *gathers, *sends, *receives;
} band;

static float value_of(uint32_t group, uint32_t rank, uint32_t round, size_t i)
{
    return (float)(group * ODD + rank + round * 7 + i % 5);
}

static bool band_open(band *b, lk_comm *comm, uint32_t number)
{
    const uint32_t size = lk_comm_size(comm), rank = lk_comm_rank(comm);
    *b = (band){ .number = number,
                 .send   = malloc(COUNT * sizeof(float)),
                 .all    = malloc(size * COUNT * sizeof(float)),
                 .mail   = malloc(COUNT * sizeof(float)) };
    CHECK(b->send != NULL && b->all != NULL && b->mail != NULL);
    CHECK(lk_comm_split(&b->comm, comm, 0, number == 0 ? rank : size - rank) == LK_OK);
    return true;
}

static void band_close(band *b)
{
    lk_comm_free(b->comm);
    free(b->send);
    free(b->all);
    free(b->mail);
}

/* Starts an all-gather, and a message to the next rank. */
static bool start(band *b, uint32_t round)
{
    lk_comm       *comm  = b->comm;
    const uint32_t size  = lk_comm_size(comm), rank = lk_comm_rank(comm);
    const size_t   bytes = COUNT * sizeof(float);
    for (size_t i = 0; i < COUNT; i++)
        b->send[i] = value_of(b->number, rank, round, i);
    CHECK(lk_all_gather_start(&b->gathers, comm, b->send, b->all, bytes) == LK_OK);
    CHECK(lk_send_start(&b->sends, comm, b->send, bytes, (rank + 1) % size) == LK_OK);
    CHECK(lk_recv_start(&b->receives, comm, b->mail, bytes, (rank + size - 1) % size) == LK_OK);
    return true;
}

static bool end(band *b, uint32_t round)
{
    lk_comm       *comm = b->comm;
    const uint32_t size = lk_comm_size(comm), before = (lk_comm_rank(comm) + size - 1) % size;
    lk_request    *requests[] = { b->gathers, b->sends, b->receives };
    for (size_t i = 0; i < 3; i++) {
        CHECK(lk_request_wait(requests[i]) == LK_OK);
        lk_request_free(requests[i]);
    }
    for (size_t i = 0; i < COUNT; i++) {
        for (uint32_t r = 0; r < size; r++)
            CHECK(b->all[r * COUNT + i] == value_of(b->number, r, round, i));
        CHECK(b->mail[i] == value_of(b->number, before, round, i));
    }
    return true;
}

static bool uses_both(lk_comm *comm, void *context)
{
    const uint32_t first = lk_comm_rank(comm) % 2;
    band           bands[2];
    (void)context;
    CHECK(band_open(&bands[0], comm, 0) && band_open(&bands[1], comm, 1));
    CHECK(bands[0].comm->group == bands[1].comm->group);
    CHECK(bands[0].comm->key != bands[1].comm->key && bands[0].comm->key != comm->key);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        CHECK(start(&bands[first], round) && start(&bands[1 - first], round));
        CHECK(end(&bands[1 - first], round) && end(&bands[first], round));
    }
    band_close(&bands[0]);
    band_close(&bands[1]);
    return true;
}

static void groups_in_other_orders_do_not_mix(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 4; size++) {
        assert_true(world_all(size, true, uses_both, NULL));
        assert_true(world_all(size, false, uses_both, NULL));
    }
    for (uint64_t seed = 0; seed < 6; seed++) {
        assert_true(hosted_all((hosted){ .hosts = 3, .each = 1, .seed = seed }, uses_both, NULL));
        assert_true(hosted_all((hosted){ .hosts = 2, .each = 2, .seed = seed }, uses_both, NULL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(groups_in_other_orders_do_not_mix) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
