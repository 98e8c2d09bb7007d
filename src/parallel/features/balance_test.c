/* balance_test.c -- moving shares does not change the bits, and shares move when they should.
 *
 * Goal:   a run whose shares are drawn at random after every step has the bits of `single`, on one
 *         host and on several, with and without a ledger.  Every virtual worker is computed once
 *         per step.  The rule moves shares only for lasting and sufficient gains, and to the best
 *         position.
 * Method: gradients are pure functions of step, virtual worker and element, with a wide spread of
 *         exponents.  The times of ranks are not measured but written into their reports.
 * Negative control: exchanging two virtual workers gives other bits.
 */
#include <math.h>
#include <stdatomic.h>

#include "base/sanitized_testing.h"
#include "base/thorough_testing.h"
#include "parallel/balance.h"
#include "parallel/crew_testing.h"

enum { STEPS = 6, STEPS_MAX = 40 };

static const lk_param model[LKT_PARAMS] = {
    { .name = "w", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } } },
    { .name = "v", .shape = { 2, { 20, 60 } }, .init = LK_INIT_NORMAL, .scale = 0.02f },
};

/* Returns the seconds that a rank takes for one virtual worker in a step.  NULL: measured times. */
typedef double (*pace_of)(uint32_t rank, uint32_t step);

static pace_of pace_told;

/* The record of the last crew. */
static struct {
    _Atomic uint32_t made[STEPS_MAX][LKT_LEAVES_MAX];
    uint32_t         shares[STEPS_MAX][LKT_RANKS_MAX]; /* after each step */
    _Atomic uint32_t moved;
} done;

static void count_turn(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn)
{
    if (!turn.again && turn.micro_index == 0)
        atomic_fetch_add(&done.made[step][turn.virtual_worker], 1);
    (void)lkt_make_turn(w, p, step, turn);
}

/* Replaces the measured times by those of the test, after this rank's last turn. */
static void put_times(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    (void)w;
    for (uint32_t i = 0; pace_told != NULL && i < p->share.count; i++)
        lki_report_of(p, p->share.first + i)->seconds = pace_told(p->rank, step);
}

static void note_shares(lkt_crew *w, lk_parallel *p, uint32_t step, const lk_step_result *result)
{
    (void)w;
    done.shares[step][p->rank] = p->share.count;
    if (p->rank == 0)
        atomic_fetch_add(&done.moved, result->moved);
}

/* Runs a crew, which must compute every virtual worker once per step, and returns its hash. */
static void hash_of(lkt_crew *w, char hash[65])
{
    memset(&done, 0, sizeof done);
    lkt_run_crew(w, hash);
    for (uint32_t step = 0; step < w->steps; step++)
        for (uint32_t v = 0; v < w->options.virtual_workers; v++)
            assert_int_equal(atomic_load(&done.made[step][v]), 1);
}

static lkt_crew make_crew(const char *strategy, uint32_t leaves, uint32_t ranks)
{
    lkt_crew w                   = lkt_make_crew(model, strategy, leaves, ranks);
    w.steps                      = STEPS;
    w.options.bucket_bytes       = 9000;
    w.options.first_bucket_bytes = 4000;
    w.make                       = count_turn;
    w.at_turns                   = put_times;
    w.at_result                  = note_shares;
    pace_told                    = NULL;
    return w;
}

static lkt_crew make_drawn(const char *strategy, uint32_t leaves, uint32_t ranks, uint64_t seed)
{
    lkt_crew w               = make_crew(strategy, leaves, ranks);
    w.options.rebalance      = true;
    w.options.rebalance_seed = seed;
    return w;
}

/* ---- Bits -------------------------------------------------------------------------------- */

static void random_shares_give_the_bits_of_single(void **state)
{
    static const uint32_t leaves[] = { 5, 12, 16, 31 };
    (void)state;
    for (size_t i = 0; i < sizeof leaves / sizeof leaves[0] - LKI_SANITIZED; i++) {
        char     want[65], got[65];
        lkt_crew single = make_crew("single", leaves[i], 1);
        hash_of(&single, want);
        for (uint32_t ranks = 1; ranks <= 5; ranks += lki_brief() ? 4 : 1 + 2 * LKI_SANITIZED) {
            lkt_crew w         = make_drawn("ddp", leaves[i], ranks, 3 + ranks);
            w.options.survives = ranks % 2 == 0;
            w.options.unused   = ranks % 2 == 0 ? LK_UNUSED_ZERO : LK_UNUSED_SKIP;
            w.options.audit    = ranks % 3 == 0 ? 0.3 : 0;
            hash_of(&w, got);
            assert_string_equal(got, want);
            assert_true(ranks == 1 || leaves[i] == ranks || atomic_load(&done.moved) > 0);
        }
    }
}

static void random_shares_on_several_hosts_give_the_bits_of_single(void **state)
{
    static const hosted shapes[] = {
        { .hosts = 2, .each = 1, .seed = 1 },
        { .hosts = 2, .each = 2, .seed = 2 },
        { .hosts = 3, .each = 1, .seed = 3 },
        { .hosts = 2, .each = 3, .fewer_first = 2, .seed = 4 },
    };
    char     want[65], got[65];
    lkt_crew single = make_crew("single", 16, 1);
    (void)state;
    hash_of(&single, want);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] - LKI_SANITIZED; i++)
        for (uint32_t k = 0; k < 2; k++) {
            lkt_crew w = make_drawn(k == 0 ? "ddp" : "zero1", 16, hosted_size(shapes[i]), 11 + i);
            w.hosts    = shapes[i];
            hash_of(&w, got);
            assert_string_equal(got, want);
            assert_true(atomic_load(&done.moved) > 0);
        }
}

static void other_orders_give_other_bits(void **state)
{
    char     want[65], got[65];
    lkt_crew right = make_drawn("ddp", 12, 3, 7), swapped = make_drawn("ddp", 12, 3, 7);
    (void)state;
    swapped.swapped = true;
    hash_of(&right, want);
    hash_of(&swapped, got);
    assert_string_not_equal(got, want);
}

/* ---- When shares move ------------------------------------------------------------------- */

static double half_speed(uint32_t rank, uint32_t step)
{
    bool slow = step < 20 ? rank == 1 : rank == 0;
    return slow ? 0.04 : 0.02;
}

/* Returns ten times the usual time in some steps of rank 0. */
static double hiccups(uint32_t rank, uint32_t step)
{
    return rank == 0 && step % 5 < 2 ? 0.2 : 0.02;
}

static double nearly_equal(uint32_t rank, uint32_t step)
{
    (void)step;
    return rank == 0 ? 0.021 : 0.02;
}

static double no_clock(uint32_t rank, uint32_t step)
{
    (void)rank;
    (void)step;
    return 0;
}

static void shares_follow_speed(void **state)
{
    char     hash[65], want[65];
    lkt_crew single = make_crew("single", 16, 1), w = make_crew("zero1", 16, 2);
    (void)state;
    w.options.rebalance = true;
    pace_told           = half_speed;
    w.steps = single.steps = STEPS_MAX;
    hash_of(&single, want);
    hash_of(&w, hash);
    assert_string_equal(hash, want);
    assert_int_equal(done.shares[4][0], 8); /* the window is not full yet */
    assert_int_equal(done.shares[5][0], 11);
    assert_int_equal(done.shares[19][0], 11);
    assert_int_equal(done.shares[STEPS_MAX - 1][0], 5);
    assert_int_equal(done.shares[STEPS_MAX - 1][1], 11);
}

static void shares_stay_for_small_or_rare_delays(void **state)
{
    static const pace_of paces[] = { hiccups, nearly_equal, no_clock, half_speed };
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        char     hash[65];
        bool     alone      = i == 3;
        lkt_crew w          = make_crew("ddp", alone ? 4 : 16, alone ? 1 : 2);
        w.options.rebalance = true;
        w.steps             = STEPS_MAX;
        pace_told           = paces[i];
        hash_of(&w, hash);
        assert_int_equal(atomic_load(&done.moved), 0);
    }
}

/* ---- The rule ---------------------------------------------------------------------------- */

/* Returns the minimum time of the slowest rank over all possible shares. */
static double least_seconds(uint32_t leaves, uint32_t ranks, const double *pace)
{
    double least = HUGE_VAL;
    if (ranks == 1)
        return leaves * pace[0];
    for (uint32_t count = 1; count + ranks - 1 <= leaves; count++) {
        double rest = least_seconds(leaves - count, ranks - 1, pace + 1);
        least       = fmin(least, fmax(count * pace[0], rest));
    }
    return least;
}

static void computed_counts_take_the_least_time(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 200; n++) {
        uint32_t   counts[4], bounds[5] = { 0 };
        double     pace[4];
        lki_random lot   = lki_philox(5, LKI_RNG_DATA, n, 0, 0, 0);
        uint32_t   ranks = 1 + lot.word[0] % 4, leaves = ranks + lot.word[1] % 14;
        for (uint32_t r = 0; r < ranks; r++)
            pace[r] = 0.1 + lki_philox(6, LKI_RNG_DATA, n, r, 0, 0).word[0] * 0x1p-32;
        lki_balance_counts(counts, leaves, ranks, pace);
        for (uint32_t r = 0; r < ranks; r++) {
            assert_true(counts[r] > 0);
            bounds[r + 1] = bounds[r] + counts[r];
        }
        assert_int_equal(bounds[ranks], leaves);
        assert_true(lki_balance_seconds(bounds, ranks, pace) == least_seconds(leaves, ranks, pace));
    }
}

static void options_with_fixed_shares_are_refused(void **state)
{
    lk_parallel *p = NULL;
    lk_comm     *comm[1];
    (void)state;
    assert_int_equal(lk_comm_open_threads(comm, 1, NULL), LK_OK);
    for (uint32_t k = 0; k < 2; k++) {
        lkt_crew w          = make_crew(k == 0 ? "zero2" : "ddp", 4, 1);
        w.options.rebalance = true;
        w.options.lock_step = k == 1;
        assert_int_equal(lk_parallel_open(&p, comm[0], model, LKT_PARAMS, &w.options),
                         LK_EUNSUPPORTED);
        assert_non_null(strstr(lk_error_last()->message, k == 0 ? "ddp and zero1" : "lock step"));
    }
    lk_comm_free(comm[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_shares_give_the_bits_of_single),
        cmocka_unit_test(random_shares_on_several_hosts_give_the_bits_of_single),
        cmocka_unit_test(other_orders_give_other_bits),
        cmocka_unit_test(shares_follow_speed),
        cmocka_unit_test(shares_stay_for_small_or_rare_delays),
        cmocka_unit_test(computed_counts_take_the_least_time),
        cmocka_unit_test(options_with_fixed_shares_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
