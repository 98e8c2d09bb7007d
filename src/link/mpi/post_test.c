/* post_test.c -- large messages of a wire over MPI's link, which does not copy them.
 *
 * Goal:   messages arrive, damage is detected, and after a failure callers own their memory.
 * Method: two ranks in one thread, over a fake module.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "link/mpi/fake_testing.h"
#include "link/wire/inside.h"

enum { LARGE = 5000001, COUNT = 3, POISON = 0x5a };

typedef struct {
    fake          all;
    lki_wire     *wires[2];
    lki_wire_op   op;
    lki_message   messages[2][2 * COUNT]; /* [rank]: sends, then receives */
    unsigned char out[2][COUNT][LARGE], in[2][COUNT][LARGE];
} pair;

static pair p;

static void open_pair(void)
{
    memset(&p, 0, sizeof p);
    memset(p.in, POISON, sizeof p.in);
    for (size_t i = 0; i < sizeof p.out; i++)
        (&p.out[0][0][0])[i] = (unsigned char)(i * 7 + i / 251);
    begin(&p.all);
    p.op = (lki_wire_op){ .group = 3, .print = lki_print_make(LKI_OP_BROADCAST, LK_F32, 0, 1) };
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(lki_wire_open(&p.wires[rank], p.all.links[rank]), LK_OK);
        assert_int_equal(lki_wire_begin(p.wires[rank], &p.op), LK_OK);
    }
}

static void *close_wire(void *wire)
{
    lki_wire_close(wire, false);
    return NULL;
}

/* Closes both wires.  Expects that both ranks close MPI. */
static void close_pair(void)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, close_wire, p.wires[0]), 0);
    (void)close_wire(p.wires[1]);
    (void)pthread_join(thread, NULL);
    assert_true(p.all.ranks[0].closed && p.all.ranks[1].closed);
}

static void post_message(uint32_t rank, uint32_t number, size_t bytes, bool receives)
{
    lki_message   *m  = &p.messages[rank][receives ? COUNT + number : number];
    unsigned char *at = receives ? p.in[rank][number] : p.out[rank][number];

    *m = (lki_message){ .peer = !rank, .step = number, .op = p.op, .data = at, .bytes = bytes };
    if (receives)
        lki_wire_receive(p.wires[rank], m);
    else
        lki_wire_send(p.wires[rank], m);
}

static lk_status progress(uint32_t rank, int turns)
{
    lk_status st = LK_OK;
    bool      moved;

    for (int i = 0; i < turns; i++)
        st = lki_wire_progress(p.wires[rank], 0, &moved);
    return st;
}

static bool is_poisoned(const unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != POISON)
            return false;
    return true;
}

static void forget(uint32_t rank, uint32_t number, bool receives)
{
    lki_wire_forget(p.wires[rank], &p.messages[rank][receives ? COUNT + number : number]);
}

/* Sends three messages in each direction at once.  Expects that they arrive, and that no bytes of
 * large messages take the way over streams. */
static void large_messages_are_posted(void **state)
{
    static const size_t sizes[] = { LKI_FRAME_EAGER_BYTES + 1, LKI_WIRE_POST_BYTES,
                                    LKI_WIRE_POST_BYTES + 1, LARGE };

    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        open_pair();
        for (uint32_t i = 0; i < 2 * COUNT; i++) {
            post_message(i % 2, i / 2, sizes[k], false);
            post_message(i % 2, i / 2, sizes[k], true);
        }
        for (int i = 0; i < 500; i++)
            assert_int_equal(progress((uint32_t)i % 2, 1), LK_OK);
        for (uint32_t rank = 0; rank < 2; rank++) {
            for (uint32_t i = 0; i < COUNT; i++) {
                assert_true(p.messages[rank][i].done && p.messages[rank][COUNT + i].done);
                assert_memory_equal(p.in[rank][i], p.out[!rank][i], sizes[k]);
            }
            assert_int_equal(lki_wire_count(p.wires[rank]).bytes_received, COUNT * sizes[k]);
            assert_int_equal(lki_wire_count(p.wires[rank]).bytes_sent, COUNT * sizes[k]);
            assert_int_equal(lki_wire_end(p.wires[rank], &p.op), LK_OK);
        }
        assert_int_equal(p.all.posted, 2 * COUNT * sizes[k]);
        close_pair();
    }
}

static void damage_is_detected(void **state)
{
    lk_status st = LK_OK;

    (void)state;
    open_pair();
    p.all.damaging = true;
    post_message(0, 0, LARGE, false);
    post_message(1, 0, LARGE, true);
    for (int i = 0; i < 200 && st == LK_OK; i++) {
        (void)progress(0, 1);
        st = progress(1, 1);
    }
    assert_int_equal(st, LK_EPEER);
    assert_non_null(strstr(lki_wire_failure(p.wires[1])->message,
                           "5000001 bytes from rank 0 were damaged on their way"));
    assert_int_equal(progress(0, 20), LK_EPEER);
    forget(1, 0, true);
    forget(0, 0, false);
    close_pair();
}

/* Opens a pair and sends a message.  Ends when rank 1 has granted it and rank 0 does not know. */
static void grant(void)
{
    open_pair();
    post_message(0, 0, LARGE, false);
    (void)progress(0, 1);
    post_message(1, 0, LARGE, true);
    (void)progress(1, 5);
    assert_true(p.messages[1][COUNT].granted);
    assert_int_equal(p.messages[1][COUNT].assigned, LKI_LINK_POSTS * LKI_WIRE_POST_BYTES);
}

/* Fails on the receiver, after it has granted a message.  Expects that the receiver owns its memory
 * at once.  The sender sends the message later, or fails before it does.  In both cases its sends
 * must end, and both ranks must close MPI. */
static void a_failure_returns_memory(void **state)
{
    (void)state;
    for (int sends = 0; sends < 2; sends++) {
        grant();
        lki_wire_abort(p.wires[1], 1, LK_ETIMEOUT, "rank 1 has waited too long");
        forget(1, 0, true);
        assert_false(lki_wire_stuck(p.wires[1]));
        if (sends == 0)
            lki_wire_abort(p.wires[0], 0, LK_ETIMEOUT, "rank 0 has waited too long");
        assert_int_equal(progress(0, 20), LK_ETIMEOUT);
        assert_int_equal(p.all.posted > 0, sends);
        forget(0, 0, false);
        assert_false(lki_wire_stuck(p.wires[0]));
        close_pair();
        assert_true(is_poisoned(p.in[1][0], LARGE));
    }
}

/* Lets transfers begin that never end.  Expects that the wire reports it, and calls MPI no more. */
static void transfers_without_end_are_reported(void **state)
{
    (void)state;
    grant();
    p.all.holding = true;
    (void)progress(0, 5);
    assert_true(p.all.posted > 0);
    lki_wire_abort(p.wires[1], 1, LK_ETIMEOUT, "rank 1 has waited too long");
    forget(1, 0, true);
    assert_true(lki_wire_stuck(p.wires[1]));
    uint64_t  calls = p.all.calls;
    lki_link *link  = p.all.links[1];
    lki_ready ready;
    uint32_t  count;
    size_t    moved;
    assert_int_equal(link->ops->wait(link, 0, &ready, 1, &count), LK_EIO);
    assert_int_equal(link->ops->write(link, 0, 0, &(struct iovec){ p.out, 1 }, 1, &moved),
                     LK_EPEER);
    lki_wire_close(p.wires[1], false);
    assert_int_equal(p.all.calls, calls);
    assert_false(p.all.ranks[1].closed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_messages_are_posted),
        cmocka_unit_test(damage_is_detected),
        cmocka_unit_test(a_failure_returns_memory),
        cmocka_unit_test(transfers_without_end_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
