/* stragglers_test.c -- checks that exactly the stragglers are named, with their cause. Method: the
 * times of ranks are made up, and no clock is read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "train/observe/stragglers.h"

enum { RANKS = 4 };

/* Returns times with `seconds` per virtual worker, including `data` seconds of waiting for data. */
static lki_rank_time time_of(uint32_t virtual_workers, double seconds, double data)
{
    return (lki_rank_time){ .virtual_workers = virtual_workers,
                           .seconds         = virtual_workers * seconds,
                           .data            = virtual_workers * data };
}

/* Adds steps until a window is full; returns their number. */
static uint32_t fill(lki_stragglers *all, const lki_rank_time *times)
{
    uint32_t steps = 1;
    while (!lki_stragglers_add(all, times))
        assert_true(++steps < 100000);
    return steps;
}

static void slow_ranks_are_named_with_their_cause(void **state)
{
    lki_stragglers all;
    lki_rank_time   times[RANKS] = { time_of(4, 0.10, 0.01), time_of(4, 0.20, 0.01),
                                    time_of(2, 0.10, 0.01), time_of(3, 0.16, 0.06) };
    (void)state;
    assert_int_equal(lki_stragglers_open(&all, RANKS), LK_OK);
    assert_int_equal(fill(&all, times), LKI_WINDOW_STEPS);
    assert_false(all.of[0].slow || all.of[2].slow);
    assert_true(all.of[1].slow && all.of[1].cause == LKI_CAUSE_COMPUTE);
    assert_true(all.of[1].times > 1.99 && all.of[1].times < 2.01);
    assert_true(all.of[3].slow && all.of[3].cause == LKI_CAUSE_DATA);
    assert_false(all.of[1].was_slow);
    times[1] = time_of(4, 0.12, 0.01); /* nearly as fast as the others again */
    assert_int_equal(fill(&all, times), LKI_WINDOW_STEPS);
    assert_true(all.of[1].was_slow && !all.of[1].slow);
    assert_true(all.of[3].was_slow && all.of[3].slow);
    assert_int_equal(all.windows, 2);
    assert_int_equal(all.of[1].windows, 1);
    assert_int_equal(all.of[3].windows, 2);
    assert_int_equal(lki_straggler_cause(&all.of[3]), LKI_CAUSE_DATA);
    assert_string_equal(lki_cause_name(LKI_CAUSE_DATA), "data");
    lki_stragglers_close(&all);
}

/* Compares two ranks with different numbers of virtual workers.  Expects that the slower rank is a
 * straggler. */
static void the_slower_of_two_ranks_is_a_straggler(void **state)
{
    lki_stragglers     all;
    const lki_rank_time times[2] = { time_of(5, 0.04, 0), time_of(11, 0.02, 0) };
    (void)state;
    assert_int_equal(lki_stragglers_open(&all, 2), LK_OK);
    (void)fill(&all, times);
    assert_true(all.of[0].slow && !all.of[1].slow);
    lki_stragglers_close(&all);
}

/* Adds short steps.  Expects a window of the same duration as with long steps, and that one pause
 * does not fill the window. */
static void short_steps_count_together(void **state)
{
    lki_stragglers     all;
    const lki_rank_time times[2] = { time_of(8, 0.0005, 0), time_of(8, 0.0005, 0) };
    const lki_rank_time pause[2] = { time_of(8, 0.0005, 0), time_of(8, 0.05, 0) };
    (void)state;
    assert_int_equal(lki_stragglers_open(&all, 2), LK_OK);
    assert_false(lki_stragglers_add(&all, pause));
    assert_in_range(fill(&all, times), 390, 410);
    assert_false(all.of[1].slow);
    lki_stragglers_close(&all);
}

static void short_times_keep_their_digits(void **state)
{
    static const struct {
        double      seconds;
        const char *text;
    } cases[] = { { 1.5, "1500.0 ms" }, { 0.0101, "10.1 ms" }, { 0.001, "1.0 ms" },
                  { 0.00042, "0.42 ms" }, { 0.0000371, "0.037 ms" }, { 0, "0.000000 ms" } };
    char text[LKI_PACE_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lki_pace_text(text, cases[i].seconds);
        assert_string_equal(text, cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_ranks_are_named_with_their_cause),
        cmocka_unit_test(the_slower_of_two_ranks_is_a_straggler),
        cmocka_unit_test(short_steps_count_together),
        cmocka_unit_test(short_times_keep_their_digits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
