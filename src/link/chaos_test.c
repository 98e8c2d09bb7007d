/* chaos_test.c -- messages over links with the faults of real networks.
 *
 * Goal:   single bytes, refusals and pauses have no effect.  If a stream breaks, becomes silent or
 *         damages a byte, every rank fails before its deadline.  The error names the culprit.  No
 *         rank receives wrong data.
 * Method: every rank passes messages around a ring in a simulation, over its own chaos link.  A
 *         failing test prints the seed.  A run without checksums must not detect damaged bytes,
 *         which shows that the checksums detect them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/status.h"
#include "base/thorough_testing.h"
#include "link/simulated_testing.h"
#include "link/wire/inside.h"

enum { ROUNDS = 4 };

typedef struct {
    size_t   largest;
    bool     sealed;       /* disables the wire's checksums */
    uint32_t failed, late; /* bit sets of the ranks that failed, and of those that failed at their
                            * deadline */
    uint32_t wrong;        /* number of bytes that arrived damaged */
} trial;

static size_t size_of(const trial *t, uint32_t round)
{
    const size_t sizes[ROUNDS] = { t->largest, 0, 300, t->largest / 3 };
    return sizes[round];
}

/* Sends one message to the next rank, and receives one from the previous rank. */
static lk_status pass_round(simulated *s, trial *t, uint32_t round, unsigned char *data)
{
    size_t      bytes = size_of(t, round);
    uint32_t    next = (s->rank + 1) % s->ranks, last = (s->rank + s->ranks - 1) % s->ranks;
    lki_wire_op op = { .group = 1, .seq = round,
                       .print = lki_print_make(LKI_OP_ALL_GATHER, LK_U8, 0, bytes) };
    lki_message out = { .peer = next, .op = op, .data = data, .bytes = bytes };
    lki_message in  = { .peer = last, .op = op, .data = data + bytes, .bytes = bytes };

    LK_TRY(lki_wire_begin(s->wire, &op));
    memset(in.data, 0xee, bytes);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(s->rank * 50 + round * 9 + i % 247);
    lki_wire_send(s->wire, &out);
    lki_wire_receive(s->wire, &in);
    LK_TRY(sim_await(s, &in));
    for (size_t i = 0; i < bytes; i++)
        t->wrong += in.data[i] != (unsigned char)(last * 50 + round * 9 + i % 247);
    LK_TRY(sim_await(s, &out));
    return lki_wire_end(s->wire, &op);
}

/* Passes messages around the ring until the last round or a failure.  All ranks must detect a
 * failure. */
static bool passes(simulated *s, void *context)
{
    trial         *t    = context;
    unsigned char *data = malloc(2 * t->largest + 1000);
    lk_status      st   = LK_OK;

    CHECK(data != NULL);
    s->wire->link->sealed = t->sealed;
    for (uint32_t round = 0; round < ROUNDS && st == LK_OK; round++)
        st = pass_round(s, t, round, data);
    if (st != LK_OK)
        lki_wire_abort(s->wire, s->rank, st, "waited too long");
    free(data);
    CHECK(st == LK_OK || st == LK_EPEER || st == LK_ETIMEOUT);
    t->failed |= (uint32_t)(st != LK_OK) << s->rank;
    t->late |= (uint32_t)(st == LK_ETIMEOUT) << s->rank;
    return true;
}

static void run(trial *t, uint64_t seed, const lki_chaos *chaos, uint64_t *trace)
{
    lki_sim_options options = { .ranks = 2 + seed % 2, .streams = 1 + (uint32_t)(seed / 2 % 3),
                                .seed = seed };

    t->failed = t->late = t->wrong = 0;
    if (!simulate_with(&options, chaos, passes, t, trace))
        fail_msg("seed %llu", (unsigned long long)seed);
}

/* ---- Harmless faults --------------------------------------------------------------------- */

static void split_and_paused_streams_deliver_all_bytes(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < (lki_brief() ? 200 : 1000); seed++) {
        bool      bytes = seed % 4 == 0; /* nearly all calls move one byte */
        trial     t     = { .largest = bytes ? 700 : seed % 4 == 1 ? 90000 : 3000 };
        lki_chaos chaos[SIMULATED_MAX];
        for (uint32_t rank = 0; rank < 3; rank++)
            chaos[rank] = (lki_chaos){ .seed = seed * 3 + rank, .split = bytes ? 250 : 20,
                                       .refuse = (uint32_t)(seed % 100),
                                       .pause = (uint32_t)(seed % 7), .pause_ms = 50 };
        run(&t, seed, chaos, NULL);
        if (t.failed != 0 || t.wrong != 0)
            fail_msg("seed %llu: ranks %x failed, %u bytes are wrong", (unsigned long long)seed,
                     t.failed, t.wrong);
    }
}

static void the_same_seed_gives_the_same_run(void **state)
{
    uint64_t traces[3];

    (void)state;
    for (uint64_t i = 0; i < 3; i++) {
        trial     t     = { .largest = 90000 };
        lki_chaos chaos = { .seed = 5 + i / 2, .split = 100, .refuse = 20, .pause = 9,
                            .pause_ms = 20 };
        lki_chaos all[3] = { chaos, chaos, chaos };
        run(&t, 4, all, &traces[i]);
    }
    assert_true(traces[0] == traces[1] && traces[0] != traces[2]);
}

/* ---- Fatal faults ------------------------------------------------------------------------ */

/* Breaks one stream of rank 0 at its nth call.  Every unfinished rank must fail. */
static void broken_streams_are_reported(void **state)
{
    uint32_t failures = 0;

    (void)state;
    for (uint64_t n = 1; n <= 150; n += lki_brief() ? 3 : 1) {
        trial     t        = { .largest = 90000 };
        lki_chaos chaos[3] = { { .break_nth = n } };
        run(&t, n, chaos, NULL);
        assert_int_equal(t.wrong, 0);
        assert_int_equal(t.late, 0);
        failures += t.failed != 0;
    }
    assert_true(failures > 0);
}

/* Makes a stream discard everything that is written to it.  Only the deadline of 30 s of simulated
 * time usually detects this fault. */
static void silent_streams_time_out(void **state)
{
    uint32_t late = 0;

    (void)state;
    for (uint64_t n = 1; n <= 60; n += lki_brief() ? 3 : 1) {
        trial     t        = { .largest = 90000 };
        lki_chaos chaos[3] = { { .silence_nth = n } };
        run(&t, n, chaos, NULL);
        assert_int_equal(t.wrong, 0);
        late += t.late != 0;
    }
    assert_true(late > 0);
}

/* Flips a bit of any received byte.  Only the checksums can detect this fault, and they must. */
static void damaged_bytes_are_detected_by_checksums(void **state)
{
    uint32_t unseen = 0;

    (void)state;
    for (uint64_t n = 1; n <= 90000; n += n < 200 ? 7 : lki_brief() ? 3989 : 997) {
        for (int sealed = 0; sealed < 2; sealed++) {
            trial     t        = { .largest = 90000, .sealed = sealed == 1 };
            lki_chaos chaos[3] = { { .seed = n, .damage_nth = n } };
            run(&t, n, chaos, NULL);
            assert_true(sealed == 1 || (t.wrong == 0 && (t.failed & 1) == 1));
            unseen += t.wrong;
        }
    }
    assert_true(unseen > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_and_paused_streams_deliver_all_bytes),
        cmocka_unit_test(the_same_seed_gives_the_same_run),
        cmocka_unit_test(broken_streams_are_reported),
        cmocka_unit_test(silent_streams_time_out),
        cmocka_unit_test(damaged_bytes_are_detected_by_checksums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
