/* units_test.c -- the assignment of units to unit buffers (slots), and reads out of order.
 *
 * Method: the number of gathers is compared with the minimum over all choices of slots.  Over
 *         simulated hosts a block is read out of order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "comm/hosted_testing.h"
#include "parallel/state.h"

enum { UNITS = 5, PARAMS = UNITS + 1 };

/* The last block also reads the first parameter.  Every other parameter is one block and one
 * unit. */
static const lk_param model[PARAMS] = {
    { .name = "shared", .shape = { 1, { 32 } }, .uses = 2 },
    { .name = "a", .shape = { 1, { 16 } } },
    { .name = "b", .shape = { 1, { 48 } } },
    { .name = "c", .shape = { 1, { 16 } } },
    { .name = "d", .shape = { 1, { 16 } } },
    { .name = "bias", .shape = { 1, { 1 } } },
};

/* Terms in the order of the backward pass: the last block has two parameters, in two units. */
static const lk_parallel_term terms[] = { { 5, 0, 0 }, { 0, 1, 1 }, { 4, 0, 0 }, { 3, 0, 0 },
                                          { 2, 0, 0 }, { 1, 0, 0 }, { 0, 0, 0 } };
enum { TERMS = sizeof terms / sizeof terms[0] };

static lk_parallel_options options_of(uint32_t buffers)
{
    return (lk_parallel_options){ .struct_size        = sizeof(lk_parallel_options),
                                  .strategy           = "zero3",
                                  .virtual_workers    = 2,
                                  .bucket_bytes       = 1,
                                  .first_bucket_bytes = 1,
                                  .optimizer          = { .kind = LK_SGD },
                                  .terms              = terms,
                                  .term_count         = TERMS,
                                  .unit_buffers       = buffers };
}

static lki_layout *layout_of(const lk_parallel_options *options)
{
    lki_owner   owners[2] = { { 0, 0 }, { 1, 0 } };
    lki_deal    deal      = { .owners = owners, .count = 2, .shards = 2, .whole_blocks = true };
    lki_layout *layout;
    assert_int_equal(lki_layout_open(&layout, model, PARAMS, options, &deal), LK_OK);
    return layout;
}

static void reads_are_assigned_to_units(void **state)
{
    lk_parallel_options options = options_of(0);
    lki_layout         *layout  = layout_of(&options);
    lki_unit_buffers    slots;
    (void)state;
    assert_int_equal(lki_unit_buffers_init(&slots, layout, &options), LK_OK);
    assert_int_equal(slots.unit_count, 6);
    assert_int_equal(slots.forward, 6);
    assert_int_equal(slots.read_count, 12);
    /* the units that the last block reads, and the next unit */
    assert_int_equal(slots.slot_count, 3);
    const uint32_t units[] = { 5, 4, 3, 2, 1, 0, 0, 1, 2, 3, 4, 5 };
    for (uint32_t i = 0; i < 12; i++) {
        assert_int_equal(slots.reads[i].units[0], units[i]);
        assert_int_equal(slots.reads[i].count, units[i] == 0 ? 2 : 1);
    }
    /* the shared parameter is in the unit of its use 0 */
    assert_int_equal(slots.reads[5].units[1], 5);
    lki_unit_buffers_deinit(&slots);
    lki_layout_free(layout);
}

/* Counts the units that a walk over all reads puts into unit buffers, and checks that every unit
 * that is read has a unit buffer. */
static uint32_t count_puts(lki_unit_buffers *slots)
{
    uint32_t puts = 0, unit;
    lki_unit_buffers_clear(slots);
    for (uint32_t at = 0; at < slots->read_count; at++) {
        while (lki_unit_buffers_put(slots, at, slots->read_count, &unit))
            puts++;
        for (uint32_t i = 0; i < slots->reads[at].count; i++) {
            uint32_t slot = slots->slot_of[slots->reads[at].units[i]];
            assert_true(slot < slots->slot_count);
            assert_int_equal(slots->unit_in[slot], slots->reads[at].units[i]);
        }
    }
    return puts;
}

/* Returns the minimum number of puts over all choices, from read `at` on and with these units in
 * the unit buffers. */
static uint32_t fewest_puts(const lki_unit_buffers *slots, uint32_t at, uint32_t next,
                            const uint32_t *in)
{
    uint32_t best = UINT32_MAX, count = slots->slot_count, now[UNITS + 1];
    while (at < slots->read_count && next == slots->reads[at].count) {
        at++;
        next = 0;
    }
    if (at == slots->read_count)
        return 0;
    uint32_t unit = slots->reads[at].units[next];
    for (uint32_t s = 0; s < count; s++)
        if (in[s] == unit)
            return fewest_puts(slots, at, next + 1, in);
    for (uint32_t s = 0; s < count; s++) {
        bool wanted = false;
        for (uint32_t i = 0; i < slots->reads[at].count; i++)
            wanted = wanted || slots->reads[at].units[i] == in[s];
        if (wanted)
            continue;
        memcpy(now, in, count * sizeof *now);
        now[s]        = unit;
        uint32_t puts = 1 + fewest_puts(slots, at, next + 1, now);
        best          = puts < best ? puts : best;
    }
    return best;
}

static void no_other_choice_of_buffers_gathers_less(void **state)
{
    const uint32_t empty[] = { LKI_NO_UNIT, LKI_NO_UNIT, LKI_NO_UNIT,
                               LKI_NO_UNIT, LKI_NO_UNIT, LKI_NO_UNIT };
    (void)state;
    for (uint32_t buffers = 1; buffers <= 7; buffers += buffers == 3 ? 3 : 1) {
        lk_parallel_options options = options_of(buffers);
        lki_layout         *layout  = layout_of(&options);
        lki_unit_buffers    slots;
        assert_int_equal(lki_unit_buffers_init(&slots, layout, &options), LK_OK);
        assert_int_equal(slots.slot_count, buffers < 2 ? 2 : buffers > 6 ? 6 : buffers);
        assert_int_equal(count_puts(&slots), fewest_puts(&slots, 0, 0, empty));
        if (buffers >= 6) /* no unit is replaced, so each is gathered once */
            assert_int_equal(count_puts(&slots), 6);
        lki_unit_buffers_deinit(&slots);
        lki_layout_free(layout);
    }
}

static uint64_t sum_of(const lki_gathers *g)
{
    return g->first[0] + g->first[1] + g->others[0] + g->others[1];
}

/* Compares the gathers that lki_unit_buffers_count() predicts with those of lki_unit_buffers_put(),
 * for several turns.  If the backward pass reads in the order of the forward pass, the first turns
 * gather different units than later ones. */
static void gathers_of_turns_are_counted(void **state)
{
    static const uint32_t same_way[] = { 6, 5, 4, 3, 2, 0, 6, 5, 4, 3, 2, 0 };
    (void)state;
    for (uint32_t buffers = 1; buffers <= 14; buffers++)
        for (uint32_t turns = 1; turns <= 9; turns++) {
            lk_parallel_options options         = options_of((buffers + 1) / 2);
            lki_layout         *layout          = layout_of(&options);
            lki_gathers         told[UNITS + 1] = { 0 };
            uint64_t            puts[UNITS + 1] = { 0 };
            lki_unit_buffers    slots;
            uint32_t            unit;
            options.reads      = buffers % 2 == 0 ? same_way : NULL;
            options.read_count = 12;
            assert_int_equal(lki_unit_buffers_init(&slots, layout, &options), LK_OK);
            assert_int_equal(lki_unit_buffers_count(&slots, turns, told), LK_OK);
            for (uint32_t at = 0; at < 12 * turns; at++)
                while (lki_unit_buffers_put(&slots, at % 12, 12, &unit))
                    puts[unit]++;
            for (uint32_t u = 0; u <= UNITS; u++) {
                assert_int_equal(sum_of(&told[u]), puts[u]);
                assert_int_equal(told[u].first[0], 1);
            }
            lki_unit_buffers_deinit(&slots);
            lki_layout_free(layout);
        }
}

/* Puts units into unit buffers ahead of their reads.  Expects that no unit that is read in between
 * is replaced, and that units arrive in the same order as without prefetching. */
static void prefetching_replaces_no_unit_still_needed(void **state)
{
    (void)state;
    for (uint32_t buffers = 1; buffers <= 6; buffers++) {
        lk_parallel_options options = options_of(buffers);
        lki_layout         *layout  = layout_of(&options);
        lki_unit_buffers    slots, plain;
        uint32_t            unit, early = 0, at_once = 0, order[4 * PARAMS], count = 0, next = 0;
        assert_int_equal(lki_unit_buffers_init(&slots, layout, &options), LK_OK);
        assert_int_equal(lki_unit_buffers_init(&plain, layout, &options), LK_OK);
        for (uint32_t at = 0; at < 12; at++)
            while (lki_unit_buffers_put(&plain, at, 12, &unit))
                order[count++] = unit;
        for (uint32_t at = 0; at < 12; at++) {
            for (; lki_unit_buffers_put(&slots, at, 12, &unit); at_once++)
                assert_int_equal(unit, order[next++]);
            for (; lki_unit_buffers_put_ahead(&slots, at, 12, &unit); early++)
                assert_int_equal(unit, order[next++]);
            for (uint32_t i = 0; i < slots.reads[at].count; i++)
                assert_true(slots.slot_of[slots.reads[at].units[i]] != LKI_NO_SLOT);
        }
        assert_int_equal(early + at_once, count);
        assert_int_equal(next, count);
        assert_int_equal(at_once, buffers <= 2 ? 9 : 1); /* the shared unit stays there */
        lki_unit_buffers_deinit(&slots);
        lki_unit_buffers_deinit(&plain);
        lki_layout_free(layout);
    }
}

static void refuses_reads_that_leave_blocks_out(void **state)
{
    static const uint32_t twice[]  = { 6, 6, 5, 4, 3, 2, 0 };
    /* term 1 is inside the block of term 0 */
    static const uint32_t inside[] = { 6, 5, 4, 3, 2, 1 };
    lk_parallel_options   options  = options_of(0);
    lki_layout           *layout   = layout_of(&options);
    lki_unit_buffers      slots;
    (void)state;
    options.reads      = twice;
    options.read_count = 7;
    assert_int_equal(lki_unit_buffers_init(&slots, layout, &options), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "each of the 6 blocks once: number 1"));
    lki_unit_buffers_deinit(&slots);
    options.reads      = inside;
    options.read_count = 6;
    assert_int_equal(lki_unit_buffers_init(&slots, layout, &options), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "term is 1"));
    lki_unit_buffers_deinit(&slots);
    lki_layout_free(layout);
}

/* ---- Over hosts -------------------------------------------------------------------------- */

/* Reads a block out of order.  Its parameters must still be in memory. */
static bool reads_out_of_order(lk_comm *comm, void *context)
{
    lk_parallel_options options = options_of(0);
    lk_parallel        *p;
    lk_parallel_turn    turn;
    lk_step_result      result;
    (void)context;
    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &options) == LK_OK);
    CHECK(lk_parallel_param(p, 1) == NULL && lk_parallel_value(p, 1, 0) == NULL);
    CHECK(lk_parallel_begin(p, 0) == LK_OK && lk_parallel_next(p, &turn));
    lk_parallel_read(p, 6);
    CHECK(lk_parallel_param(p, 0) != NULL);
    lk_parallel_read(p, 4);
    CHECK(lk_parallel_param(p, 2) != NULL);
    CHECK(lk_parallel_finish(p, 0.1, &result) == LK_EINVAL);
    CHECK(strstr(lk_error_last()->message, "the block of 'a' is next, not that of 'b'") != NULL);
    lk_parallel_free(p);
    return true;
}

static void names_a_block_that_is_read_out_of_order(void **state)
{
    (void)state;
    assert_true(hosted_all((hosted){ .hosts = 2, .each = 1 }, reads_out_of_order, NULL));
}

/* Hosts 1 and 3 store the same shard.  One of them changes it, and updates its own hashes to
 * match. */
static bool drifts_apart(lk_comm *comm, void *context)
{
    lk_parallel_options options = options_of(0);
    lk_parallel        *p;
    lk_parallel_turn    turn;
    lk_step_result      result;
    lk_status           status = LK_OK;
    (void)context;
    options.strategy        = "hybrid";
    options.shard_hosts     = 2;
    options.virtual_workers = 4;
    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &options) == LK_OK);
    for (uint64_t step = 0; step < 2 && status == LK_OK; step++) {
        CHECK(lk_parallel_begin(p, step) == LK_OK);
        while (lk_parallel_next(p, &turn))
            lk_parallel_report(p, 0, 1, 1, 1, 0);
        status = lk_parallel_finish(p, 0.1, &result);
        if (step == 0 && lk_comm_rank(comm) == 3) {
            const lki_param_span *span = &p->layout->spans[p->owned.spans[0]];
            lki_values_of(p, span)[0] += 1;
            lki_attest_written(p, span->param);
        }
    }
    CHECK(status == LK_ECORRUPT);
    CHECK(strstr(lk_error_last()->message, "step 1: the hosts of ranks 1 and 3 have computed") !=
          NULL);
    lk_parallel_free(p);
    return true;
}

static void names_hosts_of_two_groups_that_drift_apart(void **state)
{
    (void)state;
    assert_true(hosted_all((hosted){ .hosts = 4, .each = 1 }, drifts_apart, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_are_assigned_to_units),
        cmocka_unit_test(no_other_choice_of_buffers_gathers_less),
        cmocka_unit_test(gathers_of_turns_are_counted),
        cmocka_unit_test(prefetching_replaces_no_unit_still_needed),
        cmocka_unit_test(refuses_reads_that_leave_blocks_out),
        cmocka_unit_test(names_a_block_that_is_read_out_of_order),
        cmocka_unit_test(names_hosts_of_two_groups_that_drift_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
