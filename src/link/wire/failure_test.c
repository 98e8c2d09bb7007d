/* failure_test.c -- ranks that disagree, leave, give up or die.
 *
 * Goal:   every rank soon receives the same status.  Its text names the culprit and the operations
 *         of both ranks.  A rank that is only late causes no failure.
 * Method: simulated ranks.  One or two of them misbehave, and the others wait for them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/status.h"
#include "base/thorough_testing.h"
#include "link/simulated_testing.h"
#include "link/wire/inside.h"

enum { RANKS = 5, SOON_MS = 100, LARGE = 3000000 };

static lki_wire_op op_of(uint64_t seq, lki_op_kind kind, uint64_t count)
{
    return (lki_wire_op){ .group = 3, .seq = seq,
                          .print = lki_print_make(kind, LK_F32, 0, count) };
}

static lki_message message_of(lki_wire_op op, uint32_t peer, uint32_t step, void *data,
                              size_t bytes)
{
    return (lki_message){ .peer = peer, .step = step, .op = op, .data = data, .bytes = bytes };
}

/* Waits for the wire to fail, as a rank that waits for a message does. */
static lk_status await_failure(simulated *s)
{
    int64_t   until = lki_wire_now_ms(s->wire) + s->timeout_ms;
    lk_status st    = LK_OK;

    while (st == LK_OK && lki_wire_now_ms(s->wire) < until) {
        st = sim_progress(s, 10);
        lki_wire_probe(s->wire);
    }
    return st;
}

static bool says(const simulated *s, const char *text)
{
    return strstr(lki_wire_failure(s->wire)->message, text) != NULL;
}

/* ---- Disagreement ------------------------------------------------------------------------ */

/* A disagreement of ranks 0 and 1.  The other ranks wait for rank 0. */
typedef struct {
    const char *name;
    lk_status (*does)(simulated *s, lki_message *m);
    const char *text;
    int64_t     late_ms; /* delay of rank 1 */
} quarrel;

static lk_status begin(simulated *s, uint64_t seq, lki_op_kind kind, uint64_t count,
                       lki_message *m, size_t bytes)
{
    lki_wire_op op = op_of(seq, kind, count);

    *m = message_of(op, 1 - s->rank, 0, m->data, bytes);
    return lki_wire_begin(s->wire, &op);
}

/* Sends on rank 0 and receives on rank 1 in the same operation, with a different count on each
 * rank. */
static lk_status other_count(simulated *s, lki_message *m)
{
    LK_TRY(begin(s, 0, LKI_OP_BROADCAST, 100 + 100 * s->rank, m, 100));
    if (s->rank == 0)
        lki_wire_send(s->wire, m);
    else
        lki_wire_receive(s->wire, m);
    return await_failure(s);
}

static lk_status other_count_announced(simulated *s, lki_message *m)
{
    LK_TRY(begin(s, 0, LKI_OP_BROADCAST, 100 + 100 * s->rank, m, LARGE));
    if (s->rank == 0)
        lki_wire_send(s->wire, m);
    else
        lki_wire_receive(s->wire, m);
    return await_failure(s);
}

/* Receives on both ranks, in different operations.  No rank ever sends a frame of a message, so
 * only probes can reveal the mismatch. */
static lk_status other_operation(simulated *s, lki_message *m)
{
    LK_TRY(begin(s, 0, s->rank == 0 ? LKI_OP_ALL_GATHER : LKI_OP_BROADCAST, 8, m, 8));
    lki_wire_receive(s->wire, m);
    return await_failure(s);
}

/* Sends on both ranks, in different operations.  Each rank waits for a grant that is never sent. */
static lk_status both_send(simulated *s, lki_message *m)
{
    LK_TRY(begin(s, 0, s->rank == 0 ? LKI_OP_ALL_GATHER : LKI_OP_BROADCAST, 8, m, LARGE));
    lki_wire_send(s->wire, m);
    return await_failure(s);
}

/* Runs the same two operations on both ranks, in opposite order.  The first frame that arrives must
 * reveal the mismatch. */
static lk_status other_order(simulated *s, lki_message *m)
{
    lki_op_kind first = s->rank == 0 ? LKI_OP_REDUCE : LKI_OP_GATHER;

    LK_TRY(begin(s, 4, first, 16, m, 16));
    lki_wire_receive(s->wire, m);
    return await_failure(s);
}

/* Ends the operation on rank 1, although rank 0 still waits in it.  Rank 1 then waits in the next
 * operation. */
static lk_status ended_without(simulated *s, lki_message *m)
{
    LK_TRY(begin(s, 0, LKI_OP_REDUCE, 16, m, 16));
    if (s->rank == 1) {
        LK_TRY(lki_wire_end(s->wire, &m->op));
        LK_TRY(begin(s, 1, LKI_OP_BARRIER, 0, m, 16));
    }
    lki_wire_receive(s->wire, m);
    return await_failure(s);
}

/* Ends the operation on rank 1, although rank 0 still waits in it.  Rank 1 then ends more
 * operations than the wire remembers. */
static lk_status ended_long_ago(simulated *s, lki_message *m)
{
    LK_TRY(begin(s, 0, LKI_OP_REDUCE, 16, m, 16));
    for (uint64_t seq = 1; seq < 40 && s->rank == 1; seq++) {
        LK_TRY(lki_wire_end(s->wire, &m->op));
        LK_TRY(begin(s, seq, LKI_OP_BARRIER, 0, m, 16));
    }
    lki_wire_receive(s->wire, m);
    return await_failure(s);
}

/* Sends a message from rank 1 that rank 0 does not expect in the operation. */
static lk_status unasked(simulated *s, lki_message *m)
{
    LK_TRY(begin(s, 0, LKI_OP_GATHER, 16, m, 16));
    if (s->rank == 1)
        lki_wire_send(s->wire, m);
    for (int i = 0; i < 20; i++)
        LK_TRY(sim_progress(s, 1));
    LK_TRY(lki_wire_end(s->wire, &m->op));
    return await_failure(s);
}

/* Sends a message from rank 1 that rank 0 did not expect, after rank 0 has ended the operation. */
static lk_status unasked_late(simulated *s, lki_message *m)
{
    LK_TRY(begin(s, 0, LKI_OP_GATHER, 16, m, 16));
    if (s->rank == 0) {
        LK_TRY(lki_wire_end(s->wire, &m->op));
    } else {
        for (int i = 0; i < 20; i++)
            LK_TRY(sim_progress(s, 1));
        lki_wire_send(s->wire, m);
    }
    return await_failure(s);
}

/* Sends and receives a message with equal fingerprints but different lengths. */
static lk_status other_length(simulated *s, lki_message *m)
{
    LK_TRY(begin(s, 0, LKI_OP_SCATTER, 16, m, 16 + s->rank));
    if (s->rank == 0)
        lki_wire_send(s->wire, m);
    else
        lki_wire_receive(s->wire, m);
    return await_failure(s);
}

static lk_status other_length_longer(simulated *s, lki_message *m)
{
    LK_TRY(begin(s, 0, LKI_OP_SCATTER, 16, m, 17 - s->rank));
    if (s->rank == 0)
        lki_wire_send(s->wire, m);
    else
        lki_wire_receive(s->wire, m);
    return await_failure(s);
}

/* Begins an operation late on rank 1 and ends it at once, without a message.  Rank 1 must then
 * answer the earlier probe of rank 0. */
static lk_status ends_alone(simulated *s, lki_message *m)
{
    LK_TRY(begin(s, 0, LKI_OP_REDUCE, 16, m, 16));
    if (s->rank == 0)
        lki_wire_receive(s->wire, m);
    else
        LK_TRY(lki_wire_end(s->wire, &m->op));
    return await_failure(s);
}

static const quarrel quarrels[] = {
    { "count", other_count, "rank 0 is in broadcast #0 (100 bytes from rank 0); rank 1 is in "
                            "broadcast #0 (200 bytes from rank 0)", 0 },
    { "count, receiver late", other_count, "rank 0 is in broadcast #0 (100 bytes from rank 0); "
                              "rank 1 is in broadcast #0 (200 bytes from rank 0)", 5000 },
    { "count, announced", other_count_announced, "rank 0 is in broadcast #0 (100 bytes", 0 },
    { "operation", other_operation, "rank 0 is in all_gather #0 (8 bytes); rank 1 is in "
                                    "broadcast #0 (8 bytes from rank 0)", 0 },
    { "operation, one late", other_operation, "rank 0 is in all_gather #0 (8 bytes); rank 1 is "
                                              "in broadcast #0", 7000 },
    { "both send", both_send, "rank 0 is in all_gather #0 (8 bytes); rank 1 is in broadcast #0 "
                              "(8 bytes from rank 0)", 0 },
    { "order", other_order, "rank 0 is in reduce #4 (F32 sum, 16 elements to rank 0); rank 1 is in "
                            "gather #4 (16 bytes to rank 0)", 0 },
    { "ended", ended_without, "rank 0 is in reduce #0 (F32 sum, 16 elements to rank 0); rank 1 is "
                              "in reduce #0 (F32 sum, 16 elements to rank 0), but their", 0 },
    { "ended long ago", ended_long_ago, "rank 0 is in reduce #0 (F32 sum, 16 elements to rank 0); "
                                        "rank 1 is in barrier #39", 0 },
    { "unasked", unasked, "rank 0 is in gather #0 (16 bytes to rank 0); rank 1 is in gather #0 (16 "
                          "bytes to rank 0), but their", 0 },
    { "unasked late", unasked_late, "rank 0 is in gather #0 (16 bytes to rank 0); rank 1 is in "
                                    "gather #0 (16 bytes to rank 0), but their", 0 },
    { "length", other_length, "rank 0 is in scatter #0 (16 bytes from rank 0); rank 1 is in "
                              "scatter #0 (16 bytes from rank 0), but their", 0 },
    { "length, parked", other_length_longer, "rank 0 is in scatter #0 (16 bytes from rank 0); rank "
                                             "1 is in scatter #0 (16 bytes", 3000 },
    { "ends alone, late", ends_alone, "rank 0 is in reduce #0 (F32 sum, 16 elements to rank 0); "
                                      "rank 1 is in reduce #0", 7000 },
};

static bool quarrel_main(simulated *s, void *context)
{
    const quarrel *q       = context;
    unsigned char *data    = calloc(LARGE, 1);
    lki_message    m       = { .data = data };
    int64_t        late_ms = 0, limit = q->late_ms + SOON_MS;
    lk_status      st      = LK_OK;

    CHECK(data != NULL);
    if (s->rank == 1 && q->late_ms > 0) /* calls the wire now and then, as a rank that computes
                                         * does */
        for (; st == LK_OK && late_ms < q->late_ms; late_ms = lki_wire_now_ms(s->wire))
            st = sim_progress(s, q->late_ms - late_ms);
    if (s->rank < 2 && st == LK_OK) {
        st = q->does(s, &m);
    } else if (st == LK_OK) {
        lki_wire_op op = op_of(0, LKI_OP_BARRIER, 0);
        m              = message_of((lki_wire_op){ .group = 9, .print = op.print }, 0, 0, data, 1);
        CHECK(lki_wire_begin(s->wire, &m.op) == LK_OK);
        lki_wire_receive(s->wire, &m);
        st = await_failure(s);
    }
    CHECK(st == LK_EMISMATCH && lki_wire_now_ms(s->wire) <= limit);
    CHECK(says(s, q->text));
    CHECK(lki_wire_culprit(s->wire) < 2);
    free(data);
    return true;
}

static void both_sides_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof quarrels / sizeof quarrels[0]; i++)
        for (uint64_t seed = 1; seed <= (lki_brief() ? 2 : 10); seed++) {
            quarrel         q       = quarrels[i];
            lki_sim_options options = { .ranks = RANKS, .streams = 1 + (uint32_t)seed % 3,
                                        .seed = seed };
            if (!simulate(&options, quarrel_main, &q))
                fail_msg("%s, seed %llu", q.name, (unsigned long long)seed);
        }
}

/* ---- Late ranks -------------------------------------------------------------------------- */

/* Delays rank 1 by 25 s.  Expects that the operation then succeeds on all ranks.  Rank 2 is in
 * another group during the delay. */
static bool comes_late(simulated *s, void *context)
{
    lki_wire_op op = op_of(5, LKI_OP_BROADCAST, 4), other = op;
    uint32_t    value = s->rank == 1 ? 77 : 0;
    lki_message m;

    (void)context;
    other.group = 8;
    if (s->rank == 2) {
        CHECK(lki_wire_begin(s->wire, &other) == LK_OK);
        m = message_of(other, 1, 0, &value, sizeof value);
        lki_wire_receive(s->wire, &m);
        CHECK(sim_await(s, &m) == LK_OK && value == 77);
        return lki_wire_end(s->wire, &other) == LK_OK;
    }
    while (s->rank == 1 && lki_wire_now_ms(s->wire) < 25000)
        CHECK(sim_progress(s, 25000) == LK_OK);
    CHECK(lki_wire_begin(s->wire, &op) == LK_OK);
    m = message_of(op, 1 - s->rank, 0, &value, sizeof value);
    if (s->rank == 0)
        lki_wire_receive(s->wire, &m);
    else
        lki_wire_send(s->wire, &m);
    CHECK(sim_await(s, &m) == LK_OK && value == 77);
    CHECK(lki_wire_end(s->wire, &op) == LK_OK);
    if (s->rank == 1) {
        CHECK(lki_wire_begin(s->wire, &other) == LK_OK);
        m = message_of(other, 2, 0, &value, sizeof value);
        lki_wire_send(s->wire, &m);
        CHECK(sim_await(s, &m) == LK_OK && lki_wire_end(s->wire, &other) == LK_OK);
        CHECK(lki_wire_heard(s->wire, 2).group == 8 && lki_wire_heard(s->wire, 0).seq == 5);
    }
    CHECK(s->rank != 0 || s->wire->counts.frames_sent < 100); /* the intervals between probes
                                                               * grow */
    return true;
}

static void a_late_rank_is_no_failure(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= (lki_brief() ? 4 : 20); seed++) {
        lki_sim_options options = { .ranks = 3, .streams = 1, .seed = seed };
        assert_true(simulate(&options, comes_late, NULL));
    }
}

/* ---- One rank fails ---------------------------------------------------------------------- */

/* A failure of rank 1 while all ranks send LARGE bytes to all others. */
typedef struct {
    const char *name;
    void (*does)(simulated *s);
    lk_status   own, verdict; /* `own`: status on rank 1; `verdict`: status on the other ranks */
    const char *text;
    int64_t     within_ms;
} mishap;

static void gives_up(simulated *s)
{
    lki_wire_abort(s->wire, 1, LK_ENOMEM, "out of memory: 7 bytes");
}

static void waited_long(simulated *s)
{
    lki_wire_abort(s->wire, 0, LK_ETIMEOUT, "rank 1 waited 5 ms for rank 0");
}

static void dies(simulated *s)
{
    lki_sim_kill(s->sim, 1);
}

static void leaves(simulated *s)
{
    (void)s;
}

static const mishap mishaps[] = {
    { "gives up", gives_up, LK_ENOMEM, LK_EPEER, "rank 1 gave up: out of memory: 7 bytes", 100 },
    { "waited long", waited_long, LK_ETIMEOUT, LK_ETIMEOUT, "rank 1 waited 5 ms for rank 0", 100 },
    { "dies", dies, LK_EIO, LK_EPEER, "rank 1 is gone, last heard of in all_to_all #0 (4 bytes)",
      1000 },
    { "leaves", leaves, LK_OK, LK_EPEER, "rank 1 has left, but rank ", 100 },
};

static bool mishap_main(simulated *s, void *context)
{
    const mishap  *what = context;
    unsigned char *data = calloc(RANKS, LARGE);
    lki_message    out[RANKS], in[RANKS], last;
    lki_wire_op    op = op_of(0, LKI_OP_ALL_TO_ALL, 4);
    lk_status      st = LK_OK;

    CHECK(data != NULL && lki_wire_begin(s->wire, &op) == LK_OK);
    for (uint32_t peer = 0; peer < s->ranks; peer++) {
        if (peer == s->rank)
            continue;
        out[peer] = message_of(op, peer, 0, data + (size_t)peer * LARGE, LARGE);
        in[peer]  = message_of(op, peer, 0, data + (size_t)s->rank * LARGE, LARGE);
        lki_wire_send(s->wire, &out[peer]);
        lki_wire_receive(s->wire, &in[peer]);
    }
    last = message_of(op, s->rank == 1 ? 0 : 1, 1, data, 1); /* this message is never sent */
    if (what->does != leaves || s->rank != 1)
        lki_wire_receive(s->wire, &last);
    while (s->rank == 1 && what->does != leaves && out[0].moved == 0)
        CHECK(sim_progress(s, 1) == LK_OK);
    for (uint32_t i = 0; s->rank == 1 && what->does == leaves && i < s->ranks; i++)
        CHECK(i == 1 || (sim_await(s, &out[i]) == LK_OK && sim_await(s, &in[i]) == LK_OK));
    int64_t now = lki_wire_now_ms(s->wire);
    CHECK(what->does == leaves || s->rank != 1 || !out[0].done);
    if (s->rank == 1)
        what->does(s);
    if (s->rank != 1 || what->does != leaves)
        st = await_failure(s);
    CHECK(st == (s->rank == 1 ? what->own : what->verdict));
    CHECK(s->rank == 1 || says(s, what->text));
    CHECK(s->rank == 1 || lki_wire_culprit(s->wire) == (what->does == waited_long ? 0 : 1));
    CHECK(lki_wire_now_ms(s->wire) - now <= what->within_ms + 100);
    for (uint32_t peer = 0; st != LK_OK && peer < s->ranks; peer++)
        if (peer != s->rank) {
            lki_wire_forget(s->wire, &out[peer]);
            lki_wire_forget(s->wire, &in[peer]);
        }
    memset(data, 0xff, (size_t)RANKS * LARGE); /* the wire must no longer access the data */
    free(data);
    return true;
}

static void all_ranks_learn_of_a_failure(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mishaps / sizeof mishaps[0]; i++)
        for (uint64_t seed = 1; seed <= (lki_brief() ? 2 : 6); seed++) {
            mishap          what    = mishaps[i];
            lki_sim_options options = { .ranks = seed % 2 == 0 ? RANKS : 2,
                                        .streams = 1 + (uint32_t)seed % 3, .seed = seed };
            if (!simulate(&options, mishap_main, &what))
                fail_msg("%s, seed %llu", what.name, (unsigned long long)seed);
        }
}

/* Lets the wire fail.  Expects that all later calls return the failure, and that the wire never
 * accesses a message that is posted afterwards. */
static bool stays_failed(simulated *s, void *context)
{
    lki_wire_op op = op_of(0, LKI_OP_BARRIER, 0), next = op_of(1, LKI_OP_BARRIER, 0);
    uint32_t    value = 0;
    lki_message m = message_of(op, 1 - s->rank, 0, &value, sizeof value);

    (void)context;
    CHECK(lki_wire_begin(s->wire, &op) == LK_OK);
    lki_wire_receive(s->wire, &m);
    if (s->rank == 0) {
        lki_wire_abort(s->wire, 0, LK_ENOMEM, "first");
        lki_wire_abort(s->wire, 1, LK_EIO, "second");
    }
    lk_status st = await_failure(s);
    CHECK(st == (s->rank == 0 ? LK_ENOMEM : LK_EPEER));
    CHECK(says(s, "first") && lki_wire_culprit(s->wire) == 0);
    CHECK(lki_wire_begin(s->wire, &next) == st && lki_wire_end(s->wire, &op) == st);
    lki_wire_forget(s->wire, &m);
    lki_wire_receive(s->wire, &m);
    lki_wire_send(s->wire, &m);
    lki_wire_probe(s->wire);
    CHECK(sim_progress(s, 1) == st && says(s, "first"));
    return !m.done;
}

static void a_failure_stays(void **state)
{
    lki_sim_options options = { .ranks = 2, .streams = 1, .seed = 3 };

    (void)state;
    assert_true(simulate(&options, stays_failed, NULL));
}

/* Lets a rank send its goodbye early.  Expects no failure on the ranks that no longer need it. */
static bool goes_early(simulated *s, void *context)
{
    lki_wire_op op    = op_of(0, LKI_OP_SCATTER, 4);
    uint32_t    value = s->rank == 0 ? 5 : 0;
    lki_message m;

    (void)context;
    CHECK(lki_wire_begin(s->wire, &op) == LK_OK);
    for (uint32_t peer = 1; s->rank == 0 && peer < s->ranks; peer++) {
        m = message_of(op, peer, 0, &value, sizeof value);
        lki_wire_send(s->wire, &m);
        CHECK(sim_await(s, &m) == LK_OK);
    }
    for (int64_t until = lki_wire_now_ms(s->wire) + (s->rank == 0 ? 0 : 5000);
         lki_wire_now_ms(s->wire) < until;)
        CHECK(sim_progress(s, 100) == LK_OK); /* rank 0 left long ago */
    if (s->rank != 0) {
        m = message_of(op, 0, 0, &value, sizeof value);
        lki_wire_receive(s->wire, &m);
        CHECK(sim_await(s, &m) == LK_OK && value == 5);
    }
    return lki_wire_end(s->wire, &op) == LK_OK;
}

static void goodbyes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= (lki_brief() ? 2 : 10); seed++) {
        lki_sim_options options = { .ranks = 4, .streams = 2, .seed = seed };
        assert_true(simulate(&options, goes_early, NULL));
    }
}

/* Closes rank 1 before it has sent anything.  Expects no failure on rank 0 until rank 0 needs rank
 * 1. */
static bool only_listens(simulated *s, void *context)
{
    lki_wire_op op    = op_of(0, LKI_OP_SEND, 4);
    uint32_t    value = 5;
    lki_message m     = message_of(op, 1 - s->rank, 0, &value, sizeof value);

    (void)context;
    CHECK(lki_wire_begin(s->wire, &op) == LK_OK);
    if (s->rank == 0)
        lki_wire_send(s->wire, &m);
    else
        lki_wire_receive(s->wire, &m);
    CHECK(sim_await(s, &m) == LK_OK && lki_wire_end(s->wire, &op) == LK_OK);
    CHECK(s->rank == 0 || s->wire->counts.frames_sent == 0);
    while (s->rank == 0 && lki_wire_now_ms(s->wire) < 5000)
        CHECK(sim_progress(s, 1000) == LK_OK);
    if (s->rank == 1)
        return true;
    m.op.seq = 1;
    CHECK(lki_wire_begin(s->wire, &m.op) == LK_OK);
    lki_wire_send(s->wire, &m);
    CHECK(await_failure(s) == LK_EPEER && lki_wire_culprit(s->wire) == 1);
    return says(s, "rank 1 is gone, last heard of in no operation: "
                   "stream 0 from rank 1 was closed");
}

static void receivers_leave_without_a_goodbye(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= (lki_brief() ? 2 : 10); seed++) {
        lki_sim_options options = { .ranks = 2, .streams = 1, .seed = seed };
        assert_true(simulate(&options, only_listens, NULL));
    }
}

/* Lets rank 0 fail while its writes are discarded, as if rank 1 were computing.  Rank 1 measures
 * how long rank 0 tries to report the failure, which is the time until the streams of rank 0
 * end. */
static bool nobody_listens(simulated *s, void *context)
{
    const bool *known = context;
    lki_wire_op op    = op_of(0, LKI_OP_BARRIER, 0);
    uint32_t    value = 0;
    lki_message m     = message_of(op, 1 - s->rank, 0, &value, sizeof value);

    CHECK(lki_wire_begin(s->wire, &op) == LK_OK);
    if (s->rank == 0) {
        lki_wire_abort(s->wire, 0, LK_ENOMEM, "out of memory");
        lki_wire_close(s->wire, *known);
        s->wire = NULL;
        return true;
    }
    lki_wire_receive(s->wire, &m);
    CHECK(await_failure(s) == LK_EPEER);
    int64_t silent_ms = lki_wire_now_ms(s->wire) - LKI_WIRE_GRACE_MS;
    CHECK(silent_ms >= (*known ? 0 : LKI_WIRE_GRACE_MS));
    return silent_ms <= (*known ? 0 : LKI_WIRE_GRACE_MS) + 50;
}

static void computing_peers_do_not_delay_the_end(void **state)
{
    const lki_chaos chaos[2] = { { .refuse = 256, .pause = 256, .pause_ms = 1000000000 } };
    lki_sim_options options  = { .ranks = 2, .streams = 1, .seed = 1 };

    (void)state;
    for (int known = 0; known < 2; known++)
        assert_true(simulate_with(&options, chaos, nobody_listens, &(bool){ known == 1 }, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_sides_are_named), cmocka_unit_test(a_late_rank_is_no_failure),
        cmocka_unit_test(all_ranks_learn_of_a_failure),       cmocka_unit_test(a_failure_stays),
        cmocka_unit_test(goodbyes),             cmocka_unit_test(receivers_leave_without_a_goodbye),
        cmocka_unit_test(computing_peers_do_not_delay_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
