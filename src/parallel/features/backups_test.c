/* backups_test.c -- a step drops the requested number of ranks, the last to finish.
 *
 * Goal:   a rank that is delayed anywhere is dropped from the step and skips the rest of its turns.
 *         The result has the bits of a single worker that omits the rank's samples and averages
 *         over the other samples.  The number of dropped ranks is the requested one.  A rank
 *         without samples takes no other rank's place.
 * Method: a held rank waits until all places of the step are taken.  A second crew has no such
 *         waits; its ranks are desynchronised by work of many sizes.  The reference omits the ranks
 *         that the crew reported as dropped.
 * Negative control: a reference that omits another rank's samples, or none, has other bits.
 */
#include <sched.h>
#include <stdatomic.h>

#include "base/sanitized_testing.h"
#include "parallel/balance.h"
#include "parallel/crew_testing.h"
#include "parallel/features/backups.h"

enum { STEPS = 3, STEPS_MAX = 12, HELD = 1 };

static const lk_param model[LKT_PARAMS] = {
    { .name = "w", .shape = { 2, { 20, 40 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } } },
    { .name = "v", .shape = { 2, { 10, 30 } }, .init = LK_INIT_NORMAL, .scale = 0.02f },
};

/* The record of the last crew, by step.  turns: turns that the held rank has begun.  held: whether
 * that rank has been held.  over: ranks that have finished their turns.  dropped: each rank's
 * dropped virtual workers, as reported to that rank. */
static struct {
    _Atomic uint32_t turns[STEPS_MAX], held[STEPS_MAX], over[STEPS_MAX];
    uint32_t         dropped[STEPS_MAX][LKT_RANKS_MAX][LKT_RANKS_MAX];
    /* virtual workers that were dropped, as reported to rank 0 */
    bool     out[STEPS_MAX][LKT_LEAVES_MAX];
    uint32_t empty; /* virtual workers from this number on have no samples; 0: all have some */
} done;

static void compute_turn(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn)
{
    if (p->rank == HELD)
        atomic_fetch_add(&done.turns[step], 1);
    if (done.empty == 0 || turn.virtual_worker < done.empty)
        (void)lkt_make_turn(w, p, step, turn);
}

static void note_over(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    (void)w;
    (void)p;
    atomic_fetch_add(&done.over[step], 1);
}

static void note_dropped(lkt_crew *w, lk_parallel *p, uint32_t step, const lk_step_result *result)
{
    uint32_t all = 0;
    for (uint32_t r = 0; r < w->ranks; r++) {
        lki_share share = lki_share_of(&p->dealing, r);
        uint32_t  count = lki_balance_time(p, r).dropped;
        assert_true(count == 0 || count == share.count); /* all of a rank or nothing */
        done.dropped[step][p->rank][r] = count;
        all += count;
        for (uint32_t i = 0; p->rank == 0 && count > 0 && i < share.count; i++)
            done.out[step][share.first + i] = true;
    }
    assert_int_equal(result->dropped, all);
}

static lkt_crew make_crew(const char *strategy, uint32_t leaves, uint32_t ranks, uint32_t backups)
{
    lkt_crew w        = lkt_make_crew(model, strategy, leaves, ranks);
    w.steps           = STEPS;
    w.options.backups = backups;
    w.make            = compute_turn;
    w.at_turns        = note_over;
    w.at_result       = note_dropped;
    return w;
}

/* The reference: skips dropped virtual workers. */
static void make_the_rest(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn)
{
    bool empty = done.empty > 0 && turn.virtual_worker >= done.empty;
    if (!empty && !done.out[step][turn.virtual_worker])
        (void)lkt_make_turn(w, p, step, turn);
}

static void hash_of_the_rest(const lkt_crew *w, char hash[65])
{
    lkt_crew single = lkt_single_of(w);
    single.make     = make_the_rest;
    lkt_run_crew(&single, hash);
}

/* Runs a crew and checks that its bits are those of a reference without the dropped virtual
 * workers. */
static void check_without_dropped(lkt_crew *w)
{
    char     want[65], got[65];
    uint32_t empty = done.empty;
    memset(&done, 0, sizeof done);
    done.empty = empty;
    lkt_run_crew(w, got);
    for (uint32_t step = 0; step < w->steps; step++)
        for (uint32_t r = 1; r < w->ranks; r++)
            assert_memory_equal(done.dropped[step][r], done.dropped[step][0],
                                sizeof done.dropped[step][0]);
    hash_of_the_rest(w, want);
    assert_string_equal(got, want);
}

static uint32_t ranks_dropped(uint32_t step)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < LKT_RANKS_MAX; r++)
        count += done.dropped[step][0][r] > 0;
    return count;
}

/* ---- A delayed rank ---------------------------------------------------------------------- */

static void until_over(const lk_parallel *p)
{
    while (!lki_backups_over(p))
        (void)sched_yield();
}

/* The virtual worker (by its number in the rank's share), term and micro-batch at which a rank is
 * held, in every step except the second.  All other ranks wait until it is held. */
static uint32_t hold_at, hold_term, hold_micro;

static void hold_in_turn(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn,
                         uint32_t term)
{
    (void)w;
    while (p->rank != HELD && step != 1 && atomic_load(&done.held[step]) == 0)
        (void)sched_yield();
    if (p->rank != HELD || step == 1 || p->turn.leaf != hold_at || term != hold_term ||
        turn.micro_index != hold_micro)
        return;
    atomic_fetch_add(&done.held[step], 1);
    until_over(p);
}

static void a_delayed_rank_is_dropped_and_skips_its_turns(void **state)
{
    (void)state;
    for (hold_at = 0; hold_at < 4; hold_at++)
        for (hold_term = 0; hold_term < LKT_PARAMS; hold_term++)
            for (uint32_t k = 0; k < 2; k++) {
                lkt_crew w = make_crew(k == 0 ? "ddp" : "zero1", 12, 3, 1);
                hold_micro = (hold_term + hold_at + k) % 2;
                w.at_term  = hold_in_turn;
                w.stubborn = hold_term == 2;
                check_without_dropped(&w);
                for (uint32_t step = 0; step < STEPS; step += 2) {
                    uint32_t begun = 2 * hold_at + hold_micro + 1;
                    assert_int_equal(done.dropped[step][0][HELD], 4);
                    assert_int_equal(ranks_dropped(step), 1);
                    assert_int_equal(atomic_load(&done.turns[step]), begun);
                }
                assert_int_equal(ranks_dropped(1), 1); /* any rank may be the last */
            }
}

static void no_rank_is_dropped_without_backups(void **state)
{
    char want[65], got[65];
    (void)state;
    lkt_crew w = make_crew("ddp", 12, 3, 0), single = lkt_single_of(&w);
    memset(&done, 0, sizeof done);
    lkt_run_crew(&single, want);
    lkt_run_crew(&w, got);
    assert_string_equal(got, want);
    assert_int_equal(ranks_dropped(0) + ranks_dropped(1) + ranks_dropped(2), 0);
}

static void omitting_another_rank_gives_other_bits(void **state)
{
    char want[65], got[65];
    (void)state;
    lkt_crew w = make_crew("ddp", 12, 3, 1);
    hold_at = hold_term = hold_micro = 0;
    w.at_term                        = hold_in_turn;
    check_without_dropped(&w);
    hash_of_the_rest(&w, want);
    memset(done.out[2], 0, sizeof done.out[2]);
    hash_of_the_rest(&w, got); /* nothing is dropped in the last step */
    assert_string_not_equal(got, want);
    memset(done.out[2] + 8, 1, 4); /* drops the last rank's virtual workers instead */
    hash_of_the_rest(&w, got);
    assert_string_not_equal(got, want);
}

/* ---- All ranks at work ------------------------------------------------------------------- */

static void the_requested_number_of_ranks_is_dropped(void **state)
{
    static const lk_dtype travels[] = { LK_F32, LK_BF16, LK_I8 };
    (void)state;
    for (uint32_t ranks = 2; ranks <= 5; ranks++)
        for (uint32_t backups = 1; backups < ranks; backups += 1 + LKI_SANITIZED) {
            lkt_crew w = make_crew(backups % 2 == 0 ? "zero1" : "ddp", 5 * ranks - 4, ranks,
                                   backups);
            w.options.comm_dtype = travels[(ranks + backups) % 3];
            w.at_term            = lkt_dawdle;
            w.steps              = LKI_SANITIZED ? 6 : STEPS_MAX;
            check_without_dropped(&w);
            for (uint32_t step = 0; step < w.steps; step++)
                assert_int_equal(ranks_dropped(step), backups);
        }
}

/* ---- A short batch ----------------------------------------------------------------------- */

/* Makes rank 0 the last to finish.  Only rank 0 has samples. */
static void come_last(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    while (p->rank == 0 && atomic_load(&done.over[step]) < w->ranks - 1)
        (void)sched_yield();
}

static void ranks_without_samples_drop_no_other_rank(void **state)
{
    (void)state;
    lkt_crew w = make_crew("ddp", 6, 3, 2);
    done.empty = 2;
    w.at_step  = come_last;
    check_without_dropped(&w);
    for (uint32_t step = 0; step < STEPS; step++)
        assert_int_equal(ranks_dropped(step), 0);
    done.empty = 0;
}

/* ---- Unsupported options ------------------------------------------------------------------ */

static void unsupported_options_are_refused(void **state)
{
    static const struct {
        const char         *what;
        lk_parallel_options options;
    } cases[] = {
        { "ddp and zero1", { .strategy = "zero2", .backups = 1 } },
        { "lock step", { .lock_step = true, .backups = 1 } },
        { "survives", { .survives = true, .unused = LK_UNUSED_ZERO, .backups = 1 } },
        { "rebalance", { .rebalance = true, .backups = 1 } },
        { "duplicate", { .duplicate = true, .backups = 1 } },
        { "audit", { .audit = 0.5, .backups = 1 } },
        { "noise_decay", { .noise_decay = 0.5, .backups = 1 } },
        { "LK_UNUSED_STATIC", { .unused = LK_UNUSED_STATIC, .backups = 1 } },
        { "leave one", { .backups = 2 } },
    };
    static const uint32_t one_host[] = { 2 }, two[] = { 1, 1 };
    lk_parallel_cost      cost;
    (void)state;
    for (size_t k = 0; k <= sizeof cases / sizeof cases[0]; k++) {
        bool                last = k == sizeof cases / sizeof cases[0];
        lk_parallel_options o    = cases[last ? 0 : k].options;
        o.struct_size            = sizeof o;
        o.strategy               = last || o.strategy == NULL ? "ddp" : o.strategy;
        o.virtual_workers        = 4;
        lk_status status = lk_parallel_estimate(&cost, model, LKT_PARAMS, &o, last ? two : one_host,
                                                last ? 2 : 1);
        assert_true(status == LK_EUNSUPPORTED || (o.backups == 2 && status == LK_EINVAL));
        assert_non_null(strstr(lk_error_last()->message, last ? "several hosts" : cases[k].what));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_delayed_rank_is_dropped_and_skips_its_turns),
        cmocka_unit_test(no_rank_is_dropped_without_backups),
        cmocka_unit_test(omitting_another_rank_gives_other_bits),
        cmocka_unit_test(the_requested_number_of_ranks_is_dropped),
        cmocka_unit_test(ranks_without_samples_drop_no_other_rank),
        cmocka_unit_test(unsupported_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
