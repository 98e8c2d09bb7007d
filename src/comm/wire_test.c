/* wire_test.c -- messages over simulated streams: matched, bounded, and honest about failures.
 *
 * Goal:   messages arrive whole whatever their sizes and the order in which they are posted; ranks
 *         that disagree, leave, die or send garbage are named on every rank; nothing leaks.
 * Method: all ranks are threads of a simulation; a failing line prints the seed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/simulated.h"

/* ---- Messages ---------------------------------------------------------------------------- */

enum { MESSAGES = 24, LARGEST = 700000 };

static const size_t sizes[] = { 0, 1, 95, 96, 97, 4000, 65536, 65537, 262144, 262145, LARGEST };

static size_t size_of(uint32_t i)
{
    return sizes[i % (sizeof sizes / sizeof sizes[0])];
}

/* What byte `at` of a message is. */
static unsigned char byte_of(uint32_t from, uint32_t to, uint32_t step, size_t at)
{
    return (unsigned char)(from * 31 + to * 17 + step * 7 + at % 251);
}

static lki_wire_op op_of(uint64_t seq)
{
    return (lki_wire_op){ .group = 7, .seq = seq, .label = 0,
                          .print = lki_print_make(LKI_OP_BROADCAST, LK_U8, 0, 100) };
}

/* Everybody sends everybody MESSAGES messages of all sizes, posted in an order of its own. */
static bool exchanges(simulated *s, void *context)
{
    uint32_t     count = 2 * MESSAGES * s->ranks;
    lki_message *all = calloc(count, sizeof *all);
    lki_wire_op  op  = op_of(0);

    (void)context;
    CHECK(all != NULL && lki_wire_begin(s->wire, &op) == LK_OK);
    for (uint32_t n = 0, i = s->rank * 5; n < count; n++, i = (i + 7) % count) {
        uint32_t peer = i / 2 / MESSAGES, step = i / 2 % MESSAGES;
        if (count % 7 == 0 && n % (count / 7) == 0)
            i = (i + 1) % count;
        if (peer == s->rank)
            continue;
        lki_message *m = &all[i];
        CHECK(m->data == NULL);
        *m = (lki_message){ .peer = peer, .step = step, .op = op, .bytes = size_of(step) };
        m->data = malloc(m->bytes + 1);
        for (size_t b = 0; b < m->bytes; b++)
            m->data[b] = i % 2 == 0 ? byte_of(s->rank, peer, step, b) : 0xee;
        if (i % 2 == 0)
            lki_wire_send(s->wire, m);
        else
            lki_wire_receive(s->wire, m);
        CHECK(n % 5 != 0 || sim_progress(s, 0) == LK_OK);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (all[i].data == NULL)
            continue;
        CHECK(sim_await(s, &all[i]) == LK_OK);
        for (size_t b = 0; b < all[i].bytes && i % 2 == 1; b++)
            CHECK(all[i].data[b] == byte_of(all[i].peer, s->rank, all[i].step, b));
        free(all[i].data);
    }
    CHECK(lki_wire_end(s->wire, &op) == LK_OK);
    free(all);
    return true;
}

static void messages_arrive(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++)
        for (uint32_t streams = 1; streams <= 3; streams += 2) {
            lki_sim_options options = { .ranks = 3, .streams = streams, .seed = seed };
            assert_true(simulate(&options, exchanges, NULL));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
