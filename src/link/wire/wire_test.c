/* wire_test.c -- messages over simulated streams: matching, bounds, many operations and groups.
 *
 * Goal:   messages of all sizes arrive completely, for every order of posting.  Memory stays
 *         bounded, and nothing leaks.
 * Method: all ranks are threads of a simulation.  A failing test prints the seed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/thorough_testing.h"
#include "link/simulated_testing.h"
#include "link/wire/inside.h"

static lki_wire_op op_of(uint64_t group, uint64_t seq, lki_op_kind kind, uint64_t count)
{
    return (lki_wire_op){ .group = group, .seq = seq,
                          .print = lki_print_make(kind, LK_F32, 0, count) };
}

static lki_message message_of(lki_wire_op op, uint32_t peer, uint32_t step, void *data,
                              size_t bytes)
{
    return (lki_message){ .peer = peer, .step = step, .op = op, .data = data, .bytes = bytes };
}

/* ---- Messages arrive --------------------------------------------------------------------- */

enum { STEPS = 24 };

static size_t size_of(uint32_t step)
{
    static const size_t sizes[] = { 0,     1,     95,     96,     97,    400,
                                    65536, 65537, 262144, 262145, 700000 };
    return sizes[step % (sizeof sizes / sizeof sizes[0])];
}

static unsigned char byte_of(uint32_t from, uint32_t to, uint32_t step, size_t at)
{
    return (unsigned char)(from * 31 + to * 17 + step * 7 + at % 251);
}

/* Posts message `i` of a rank.  Messages with even numbers are sent, messages with odd numbers are
 * received. */
static void post(simulated *s, lki_message *m, const lki_wire_op *op, uint32_t i)
{
    uint32_t peer = i / 2 / STEPS, step = i / 2 % STEPS;

    *m      = message_of(*op, peer, step, NULL, size_of(step));
    m->data = malloc(m->bytes + 1);
    if (m->data == NULL)
        abort();
    for (size_t b = 0; b <= m->bytes; b++)
        m->data[b] = i % 2 == 0 ? byte_of(s->rank, peer, step, b) : 0xee;
    if (i % 2 == 0)
        lki_wire_send(s->wire, m);
    else
        lki_wire_receive(s->wire, m);
}

static bool arrived(simulated *s, lki_message *m, bool received)
{
    CHECK(sim_await(s, m) == LK_OK && m->moved == m->bytes);
    for (size_t b = 0; b < m->bytes && received; b++)
        CHECK(m->data[b] == byte_of(m->peer, s->rank, m->step, b));
    CHECK(!received || m->data[m->bytes] == 0xee);
    free(m->data);
    return true;
}

/* Sends messages of all sizes between all pairs of ranks.  Each rank posts its messages in a
 * different order. */
static bool exchanges(simulated *s, void *context)
{
    static const uint32_t strides[] = { 7, 11, 13, 5 }; /* coprime to the numbers of messages */
    uint32_t     count = 2 * STEPS * s->ranks, stride = strides[s->rank];
    lki_message *all = calloc(count, sizeof *all);
    lki_wire_op  op = op_of(7, 0, LKI_OP_ALL_TO_ALL, 1);
    uint64_t     bytes = 0;

    (void)context;
    CHECK(all != NULL && lki_wire_begin(s->wire, &op) == LK_OK);
    for (uint32_t n = 0, i = s->rank; n < count; n++, i = (i + stride) % count) {
        if (i / 2 / STEPS == s->rank)
            continue;
        post(s, &all[i], &op, i);
        CHECK(n % 5 != 0 || sim_progress(s, 0) == LK_OK);
    }
    for (uint32_t i = 0; i < count; i++)
        if (i / 2 / STEPS != s->rank) {
            CHECK(arrived(s, &all[i], i % 2 == 1));
            bytes += i % 2 == 1 ? all[i].bytes : 0;
        }
    CHECK(lki_wire_end(s->wire, &op) == LK_OK);
    CHECK(lki_wire_count(s->wire).bytes_sent == bytes);
    CHECK(lki_wire_count(s->wire).bytes_received == bytes);
    free(all);
    return true;
}

static void messages_arrive(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= (lki_brief() ? 1 : 4); seed++)
        for (uint32_t streams = 1; streams <= 3; streams += 2)
            for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
                lki_sim_options options = { .ranks = ranks, .streams = streams, .seed = seed };
                assert_true(simulate(&options, exchanges, NULL));
            }
}

/* Exchanges messages in real time, on freely scheduled threads. */
static void messages_arrive_freely(void **state)
{
    lki_sim_options options = { .mode = LKI_SIM_FREE, .ranks = 4, .streams = 3, .seed = 1 };

    (void)state;
    assert_true(simulate(&options, exchanges, NULL));
}

/* ---- Many operations --------------------------------------------------------------------- */

enum { OPEN = 70, GROUPS = 3, ALL = OPEN * GROUPS };

typedef struct {
    lki_wire_op op;
    lki_message out, in;
    uint32_t    told, heard;
} ring_part;

static bool ends_rings(simulated *s, ring_part *parts, uint32_t stride)
{
    for (uint32_t n = 0, i = 0; n < ALL; n++, i = (i + stride) % ALL) {
        lki_wire_receive(s->wire, &parts[i].in);
        CHECK(sim_await(s, &parts[i].in) == LK_OK && parts[i].heard == i * 3);
        CHECK(sim_await(s, &parts[i].out) == LK_OK);
        CHECK(lki_wire_end(s->wire, &parts[i].op) == LK_OK);
    }
    return true;
}

/* Opens OPEN operations in each group at once.  Each operation passes one message around a ring.
 * Each rank ends the operations in a different order. */
static bool opens_many(simulated *s, void *context)
{
    static const uint32_t strides[] = { 11, 13, 17 };
    ring_part *parts = calloc(ALL, sizeof *parts);
    uint32_t   next  = (s->rank + 1) % s->ranks, last = (s->rank + s->ranks - 1) % s->ranks;

    (void)context;
    CHECK(parts != NULL);
    for (uint32_t n = 0; n < ALL; n++) {
        ring_part *p = &parts[n];
        p->op        = op_of(n % GROUPS, n / GROUPS * 2, LKI_OP_ALL_GATHER, n);
        p->told      = n * 3;
        p->out       = message_of(p->op, next, 0, &p->told, sizeof p->told);
        p->in        = message_of(p->op, last, 0, &p->heard, sizeof p->heard);
        CHECK(lki_wire_begin(s->wire, &p->op) == LK_OK);
    }
    for (uint32_t n = 0, i = s->rank; n < ALL; n++, i = (i + strides[s->rank]) % ALL)
        lki_wire_send(s->wire, &parts[i].out);
    bool good = ends_rings(s, parts, strides[2 - s->rank]);
    free(parts);
    return good;
}

static void many_operations(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= (lki_brief() ? 4 : 20); seed++) {
        lki_sim_options options = { .ranks = 3, .streams = 1, .seed = seed };
        assert_true(simulate(&options, opens_many, NULL));
    }
}

/* ---- Bounds ------------------------------------------------------------------------------ */

enum { FLOOD = 40, FLOOD_BYTES = 60000 };

/* Sends more bytes than the receiver may park.  The receiver requests the messages late, in reverse
 * order. */
static bool floods(simulated *s, void *context)
{
    unsigned char *data = calloc(FLOOD, FLOOD_BYTES);
    lki_message    all[FLOOD];
    lki_wire_op    op = op_of(0, 0, LKI_OP_SCATTER, 1), later = op_of(0, 1, LKI_OP_BARRIER, 0);
    uint32_t       done = 0;

    (void)context;
    CHECK(data != NULL && lki_wire_begin(s->wire, &op) == LK_OK);
    for (uint32_t i = 0; i < FLOOD; i++) {
        all[i] = message_of(op, 1 - s->rank, i, data + (size_t)FLOOD_BYTES * i, FLOOD_BYTES);
        all[i].data[i] = (unsigned char)(s->rank == 0 ? i + 1 : 0);
        if (s->rank == 0)
            lki_wire_send(s->wire, &all[i]);
    }
    for (int64_t until = lki_wire_now_ms(s->wire) + 100; lki_wire_now_ms(s->wire) < until;)
        CHECK(sim_progress(s, 1) == LK_OK);
    for (uint32_t i = 0; i < FLOOD; i++)
        done += s->rank == 0 && all[i].done;
    CHECK(s->rank == 1 || done == LKI_WIRE_WINDOW / (FLOOD_BYTES + LKI_FRAME_EAGER_COST));
    CHECK(s->wire->peers[1 - s->rank].charged <= LKI_WIRE_WINDOW);
    for (uint32_t i = FLOOD; i-- > 0 && s->rank == 1;) {
        lki_wire_receive(s->wire, &all[i]);
        CHECK(sim_await(s, &all[i]) == LK_OK && all[i].data[i] == i + 1);
    }
    for (uint32_t i = 0; i < FLOOD; i++)
        CHECK(sim_await(s, &all[i]) == LK_OK);
    CHECK(lki_wire_end(s->wire, &op) == LK_OK && lki_wire_begin(s->wire, &later) == LK_OK);
    free(data);
    return lki_wire_end(s->wire, &later) == LK_OK;
}

static void early_messages_are_bounded(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= (lki_brief() ? 2 : 4); seed++) {
        lki_sim_options options = { .ranks = 2, .streams = 2, .seed = seed };
        assert_true(simulate(&options, floods, NULL));
    }
}

/* Sends far more small messages than the eager window holds, one after the other.  Succeeds only if
 * the receiver returns the credit. */
static bool streams_small(simulated *s, void *context)
{
    uint64_t    value = 0;
    lki_wire_op op = op_of(0, 0, LKI_OP_SCATTER, 1);

    (void)context;
    CHECK(lki_wire_begin(s->wire, &op) == LK_OK);
    for (uint32_t i = 0; i < 5000; i++) {
        lki_message m = message_of(op, 1 - s->rank, i, &value, sizeof value);
        value = s->rank == 0 ? i : 0;
        if (s->rank == 0)
            lki_wire_send(s->wire, &m);
        else
            lki_wire_receive(s->wire, &m);
        CHECK(sim_await(s, &m) == LK_OK && value == i);
    }
    CHECK(lki_wire_end(s->wire, &op) == LK_OK);
    CHECK(s->rank == 1 || s->wire->counts.frames_sent == 5000); /* no message was announced */
    return true;
}

static void credit_is_returned(void **state)
{
    lki_sim_options options = { .ranks = 2, .streams = 1, .seed = 9 };

    (void)state;
    assert_true(simulate(&options, streams_small, NULL));
}

/* ---- Groups that come and go ------------------------------------------------------------- */

/* Uses far more groups than a wire remembers, one after the other, while one group stays in use. */
static bool passes_groups(simulated *s, void *context)
{
    lki_wire_op stays = op_of(1, 5, LKI_OP_BARRIER, 0);

    (void)context;
    CHECK(lki_wire_begin(s->wire, &stays) == LK_OK);
    for (uint64_t key = 2; key < 3 * LKI_WIRE_GROUPS; key++) {
        lki_wire_op op    = op_of(key << 20, 0, LKI_OP_SPLIT, key);
        uint64_t    value = s->rank == 0 ? key : 0;
        lki_message m     = message_of(op, 1 - s->rank, 0, &value, sizeof value);
        CHECK(lki_wire_begin(s->wire, &op) == LK_OK);
        if (s->rank == 0)
            lki_wire_send(s->wire, &m);
        else
            lki_wire_receive(s->wire, &m);
        CHECK(sim_await(s, &m) == LK_OK && value == key && lki_wire_end(s->wire, &op) == LK_OK);
        CHECK(s->wire->group_count <= LKI_WIRE_GROUPS);
    }
    return lki_wire_end(s->wire, &stays) == LK_OK;
}

static void groups_are_forgotten(void **state)
{
    lki_sim_options options = { .ranks = 2, .streams = 1, .seed = 2 };

    (void)state;
    assert_true(simulate(&options, passes_groups, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive),   cmocka_unit_test(messages_arrive_freely),
        cmocka_unit_test(many_operations),   cmocka_unit_test(early_messages_are_bounded),
        cmocka_unit_test(credit_is_returned), cmocka_unit_test(groups_are_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
