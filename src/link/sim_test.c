/* sim_test.c -- the simulated link: bounded pipes, simulated time, one run per seed.
 *
 * Goal:   the simulated link keeps the promises of link.h: bytes arrive in order and once, space is
 *         bounded, and ends are detected.  The same seed gives the same run, and waiting takes no
 *         real time.
 * Method: the tests of pipes use one thread that holds both ends.  The tests of whole runs use
 * threads in baton mode.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "link/simulated_testing.h"

enum { PIPE_BYTES = 1000 };

typedef struct {
    lki_sim  *sim;
    lki_link *ends[2];
} pair;

static pair pair_open(uint64_t seed)
{
    lki_sim_options options = { .mode = LKI_SIM_ALONE, .ranks = 2, .streams = 2, .seed = seed,
                                .pipe_bytes = PIPE_BYTES };
    pair            p;

    assert_int_equal(lki_sim_new(&p.sim, &options), LK_OK);
    p.ends[0] = lki_sim_link(p.sim, 0);
    p.ends[1] = lki_sim_link(p.sim, 1);
    return p;
}

static lk_status put(pair *p, uint32_t from, uint32_t stream, const void *data, size_t bytes,
                     size_t *moved)
{
    struct iovec parts[2] = { { (void *)(uintptr_t)data, bytes / 3 },
                              { (unsigned char *)(uintptr_t)data + bytes / 3, bytes - bytes / 3 } };
    return p->ends[from]->ops->write(p->ends[from], 1 - from, stream, parts, 2, moved);
}

static lk_status take(pair *p, uint32_t to, uint32_t stream, void *data, size_t bytes,
                      size_t *moved)
{
    return p->ends[to]->ops->read(p->ends[to], 1 - to, stream, data, bytes, moved);
}

/* Waits up to `ms`, and returns the only stream that is ready at end `at`. */
static lki_ready wait_one(pair *p, uint32_t at, int64_t ms)
{
    lki_ready ready[4] = { 0 };
    uint32_t  count;

    assert_int_equal(p->ends[at]->ops->wait(p->ends[at], ms, ready, 4, &count), LK_OK);
    assert_true(count <= 1);
    return ready[0];
}

static void close_both(pair *p)
{
    p->ends[0]->ops->close(p->ends[0]);
    p->ends[1]->ops->close(p->ends[1]);
    lki_sim_free(p->sim);
}

/* ---- Pipes ------------------------------------------------------------------------------- */

/* Writes until the pipe is full.  Expects that the pipe accepts nothing more until the reader
 * reads, and that bytes keep their order. */
static void bytes_arrive_in_order(void **state)
{
    unsigned char data[6000], got[6000];

    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 7 + i / 256);
    for (uint64_t seed = 1; seed <= 50; seed++) {
        pair   p = pair_open(seed);
        size_t sent = 0, received = 0, moved;
        while (received < sizeof data) {
            do {
                assert_int_equal(put(&p, 0, 1, data + sent, sizeof data - sent, &moved), LK_OK);
                sent += moved;
                assert_true(sent - received <= PIPE_BYTES);
            } while (moved > 0 && sent < sizeof data);
            lki_ready ready = wait_one(&p, 1, 1000);
            assert_true(ready.readable && !ready.writable && ready.stream == 1);
            assert_int_equal(take(&p, 1, 1, got + received, sizeof got - received, &moved), LK_OK);
            assert_true(moved > 0);
            received += moved;
        }
        assert_memory_equal(data, got, sizeof data);
        close_both(&p);
    }
}

/* Expects that wait() reports only streams that are watched and can be read or written. */
static void wait_reports_watched_streams_only(void **state)
{
    unsigned char byte = 5, many[PIPE_BYTES + 1] = { 0 };
    pair          p    = pair_open(3);
    size_t        moved, filled = 0;

    (void)state;
    assert_false(wait_one(&p, 0, 7).writable);
    assert_int_equal(lki_sim_now_us(p.sim), 7000);
    p.ends[0]->ops->watch(p.ends[0], 1, 0, true, true);
    assert_true(wait_one(&p, 0, 7).writable);
    while (put(&p, 0, 0, many, sizeof many - filled, &moved) == LK_OK && moved > 0)
        filled += moved;
    assert_int_equal(filled, PIPE_BYTES);
    assert_false(wait_one(&p, 0, 7).writable);
    p.ends[1]->ops->watch(p.ends[1], 0, 0, false, false);
    assert_false(wait_one(&p, 1, 7).readable);
    p.ends[1]->ops->watch(p.ends[1], 0, 0, true, false);
    assert_true(wait_one(&p, 1, 7).readable);
    assert_int_equal(take(&p, 1, 0, &byte, 1, &moved), LK_OK);
    assert_true(moved == 1 && byte == 0);
    assert_true(wait_one(&p, 0, 7).writable);
    close_both(&p);
}

/* Closes a writer.  Expects that the bytes written before arrive, and that the stream then ends for
 * both ranks. */
static void a_closed_stream_ends_after_its_bytes(void **state)
{
    char   data[3], text[] = "end";
    pair   p = pair_open(4);
    size_t moved, got = 0;

    (void)state;
    for (size_t sent = 0; sent < 3; sent += moved)
        assert_int_equal(put(&p, 0, 0, text + sent, 3 - sent, &moved), LK_OK);
    p.ends[0]->ops->close(p.ends[0]);
    for (; got < 3; got += moved) {
        assert_true(wait_one(&p, 1, 7).readable);
        assert_int_equal(take(&p, 1, 0, data + got, 3 - got, &moved), LK_OK);
    }
    assert_memory_equal(data, text, 3);
    assert_true(wait_one(&p, 1, 7).readable);
    assert_int_equal(take(&p, 1, 0, data, 3, &moved), LK_EPEER);
    assert_non_null(strstr(lk_error_last()->message, "stream 0 from rank 0 was closed"));
    assert_int_equal(put(&p, 1, 0, data, 3, &moved), LK_EPEER);
    assert_int_equal(take(&p, 1, 1, data, 3, &moved), LK_OK); /* stream 1 was never used */
    p.ends[1]->ops->close(p.ends[1]);
    lki_sim_free(p.sim);
}

/* Kills a rank with bytes in flight.  Expects that these bytes do not arrive. */
static void a_killed_rank_loses_its_bytes_in_flight(void **state)
{
    char     data[3] = "end";
    pair     p = pair_open(5);
    size_t   moved;
    uint32_t count;
    lki_ready ready;

    (void)state;
    assert_int_equal(put(&p, 0, 0, data, 3, &moved), LK_OK);
    lki_sim_kill(p.sim, 0);
    assert_true(wait_one(&p, 1, 7).readable);
    assert_int_equal(take(&p, 1, 0, data, 3, &moved), LK_EPEER);
    assert_non_null(strstr(lk_error_last()->message, "stream 0 from rank 0 broke"));
    assert_int_equal(put(&p, 1, 0, data, 3, &moved), LK_EPEER);
    assert_int_equal(put(&p, 0, 0, data, 3, &moved), LK_EPEER);
    assert_int_equal(p.ends[0]->ops->wait(p.ends[0], 7, &ready, 1, &count), LK_EIO);
    close_both(&p);
}

/* ---- Runs -------------------------------------------------------------------------------- */

enum { TURNS = 30 };

/* Sends numbers from every rank to every other rank, and records the order of arrival. */
static bool chatters(simulated *s, void *context)
{
    uint64_t *order = context;

    for (uint32_t turn = 0; turn < TURNS; turn++) {
        lki_wire_op op = { .group = 1, .seq = turn,
                           .print = lki_print_make(LKI_OP_BARRIER, LK_F32, 0, 0) };
        lki_message out[4], in[4];
        uint64_t    values[4];
        CHECK(lki_wire_begin(s->wire, &op) == LK_OK);
        for (uint32_t peer = 0; peer < s->ranks; peer++) {
            if (peer == s->rank)
                continue;
            out[peer] = (lki_message){ .peer = peer, .op = op, .data = (unsigned char *)&turn,
                                       .bytes = sizeof turn };
            in[peer]  = (lki_message){ .peer = peer, .op = op, .bytes = sizeof turn,
                                       .data = (unsigned char *)&values[peer] };
            lki_wire_send(s->wire, &out[peer]);
            lki_wire_receive(s->wire, &in[peer]);
        }
        for (uint32_t peer = 0; peer < s->ranks; peer++)
            if (peer != s->rank)
                CHECK(sim_await(s, &in[peer]) == LK_OK && sim_await(s, &out[peer]) == LK_OK);
        *order = *order * 31 + s->rank; /* only the holder of the baton runs here */
        CHECK(lki_wire_end(s->wire, &op) == LK_OK);
    }
    return true;
}

static void a_seed_determines_the_run(void **state)
{
    uint64_t traces[12], orders[12] = { 0 };

    (void)state;
    for (uint64_t i = 0; i < 12; i++) {
        lki_sim_options options = { .ranks = 4, .streams = 2, .seed = i / 2 };
        assert_true(simulate_with(&options, NULL, chatters, &orders[i], &traces[i]));
    }
    for (size_t i = 0; i < 12; i++)
        for (size_t k = 0; k < 12; k++) {
            assert_int_equal(traces[i] == traces[k], i / 2 == k / 2);
            assert_true(i / 2 != k / 2 || orders[i] == orders[k]);
        }
}

/* Waits with timeouts of several days of simulated time.  Expects that the timeouts end in the
 * order of their times. */
static bool dozes(simulated *s, void *context)
{
    const int64_t day = INT64_C(86400) * 1000;
    bool          moved;

    (void)context;
    for (int64_t nap = 1; nap <= 3; nap++) {
        CHECK(lki_wire_progress(s->wire, day * (s->rank + 1), &moved) == LK_OK && !moved);
        CHECK(lki_wire_now_ms(s->wire) == nap * day * (s->rank + 1));
    }
    return true;
}

static void waiting_takes_no_time(void **state)
{
    lki_sim_options options = { .ranks = 4, .streams = 1, .seed = 6 };

    (void)state;
    assert_true(simulate(&options, dozes, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_arrive_in_order),
        cmocka_unit_test(wait_reports_watched_streams_only),
        cmocka_unit_test(a_closed_stream_ends_after_its_bytes),
        cmocka_unit_test(a_killed_rank_loses_its_bytes_in_flight),
        cmocka_unit_test(a_seed_determines_the_run),
        cmocka_unit_test(waiting_takes_no_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
