/* speculation_test.c -- virtual workers that other ranks compute: equal bits, whichever rank is
 * first.
 *
 * Goal:   ranks are held up before a step, in the middle of any turn or at a border of blocks, and
 *         other ranks compute their virtual workers.  The bits are those of `single`: on one host
 *         and on several, with a ledger and without.  Each virtual worker is summed once, and
 *         dropped results are never used.
 * Method: gradients are pure functions of step, virtual worker and element.  A held rank waits for
 *         the others: until a number of its virtual workers are computed, or until its own result
 *         is not needed any more.  A second crew has no such waits; work of many sizes drives its
 *         ranks apart.
 * Negative control: exchanging two virtual workers gives other bits.
 */
#include <sched.h>
#include <stdatomic.h>

#include "base/sanitized_testing.h"
#include "parallel/features/speculation.h"
#include "parallel/crew_testing.h"

enum { STEPS = 3, STEPS_MAX = 12 };

static const lk_param model[LKT_PARAMS] = {
    { .name = "w", .shape = { 2, { 20, 40 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } } },
    { .name = "v", .shape = { 2, { 10, 30 } }, .init = LK_INIT_NORMAL, .scale = 0.02f },
};

/* The record of the last crew. */
static struct {
    _Atomic uint64_t helped[STEPS_MAX]; /* bit v: another rank has finished virtual worker v */
    _Atomic uint32_t begun[STEPS_MAX];  /* turns of other ranks' virtual workers that have begun */
    _Atomic uint32_t held[STEPS_MAX];
    _Atomic uint32_t dropped;
    uint32_t         duplicated[STEPS_MAX][LKT_RANKS_MAX];
} done;

static _Thread_local uint64_t in_hand; /* bit v: the virtual worker that this rank helps with */

/* Records the virtual worker that this rank helped with.  Called when lk_parallel_next() has
 * returned, because the result counts only then. */
static void note_helped(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    (void)w;
    (void)p;
    atomic_fetch_or(&done.helped[step], in_hand);
    in_hand = 0;
}

static void count_turn(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn)
{
    bool helps = turn.again && lki_share_rank(&p->dealing, turn.virtual_worker) != p->rank;
    if (turn.micro_index == 0)
        note_helped(w, p, step);
    in_hand = helps ? UINT64_C(1) << turn.virtual_worker : 0;
    atomic_fetch_add(&done.begun[step], turn.again);
    if (!lkt_make_turn(w, p, step, turn))
        atomic_fetch_add(&done.dropped, 1);
}

static void note_duplicated(lkt_crew *w, lk_parallel *p, uint32_t step,
                            const lk_step_result *result)
{
    (void)w;
    done.duplicated[step][p->rank] = result->duplicated;
}

static lkt_crew make_crew(const char *strategy, uint32_t leaves, uint32_t ranks)
{
    lkt_crew w          = lkt_make_crew(model, strategy, leaves, ranks);
    w.steps             = STEPS;
    w.options.duplicate = ranks > 1;
    w.make              = count_turn;
    w.at_turns          = note_helped;
    w.at_result         = note_duplicated;
    return w;
}

static void must_be_single(lkt_crew *w)
{
    memset(&done, 0, sizeof done);
    lkt_must_be_single(w);
    for (uint32_t step = 0; step < w->steps; step++)
        for (uint32_t r = 1; r < w->ranks; r++)
            assert_int_equal(done.duplicated[step][r], done.duplicated[step][0]);
}

static void until(const _Atomic uint32_t *counter, uint32_t least)
{
    while (atomic_load(counter) < least)
        (void)sched_yield();
}

/* ---- One rank is late -------------------------------------------------------------------- */

/* Returns the number of virtual workers of rank 1 that other ranks finish in any case while rank 1
 * is held.  On a host with more ranks, the other ranks may help each other first, and a rank that
 * was helped does not help. */
static int least_helped(const lkt_crew *w)
{
    return w->hosts.hosts == 0 ? 2 : 1;
}

/* Holds rank 1 before it begins the step, until other ranks have finished some of its virtual
 * workers. */
static void hold_before_step(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    const uint64_t mine = ((UINT64_C(1) << p->share.count) - 1) << p->share.first;
    while (step > 0 && p->rank == 1 &&
           __builtin_popcountll(atomic_load(&done.helped[step]) & mine) < least_helped(w))
        (void)sched_yield();
}

static void others_compute_unstarted_virtual_workers(void **state)
{
    static const char *const strategies[] = { "ddp", "zero1" };
    (void)state;
    for (uint32_t k = 0; k < 4; k++) {
        lkt_crew w          = make_crew(strategies[k % 2], 16, 2);
        w.options.rebalance = k >= 2; /* this changes the order of queues */
        w.at_step           = hold_before_step;
        must_be_single(&w);
        for (uint32_t step = 1; step < w.steps; step++)
            assert_true(done.duplicated[step][0] >= (uint32_t)least_helped(&w));
        assert_int_equal(done.duplicated[0][0], 0); /* in the first step no rank helps */
    }
}

/* The virtual worker (by its number in the rank's share), term and micro-batch at which rank 1 is
 * held until its result is no longer needed. */
static uint32_t hold_at, hold_term, hold_micro;

static void hold_in_turn(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn,
                         uint32_t term)
{
    (void)w;
    if (step > 0 && p->rank != 1 && !turn.again && term == 0)
        until(&done.held[step], 1); /* other ranks compute the virtual workers that rank 1 has not
                                     * begun */
    if (step == 0 || p->rank != 1 || turn.again || p->turn.leaf != hold_at || term != hold_term ||
        turn.micro_index != hold_micro)
        return;
    atomic_fetch_add(&done.held[step], 1);
    while (!lki_speculation_lost(p))
        (void)sched_yield();
}

static void another_rank_computes_a_started_virtual_worker(void **state)
{
    (void)state;
    /* other ranks have buffers for the virtual workers that rank 1 has not begun */
    for (hold_at = 6; hold_at < 8; hold_at++)
        for (hold_term = 0; hold_term < LKT_PARAMS; hold_term++)
            for (uint32_t k = 0; k < 2; k++) {
                lkt_crew w = make_crew(k == 0 ? "ddp" : "zero1", 16, 2);
                hold_micro = (hold_term + k) % 2;
                w.at_term  = hold_in_turn;
                w.stubborn = k == 1;
                must_be_single(&w);
                assert_true(done.duplicated[1][0] >= 1 && done.duplicated[2][0] >= 1);
                assert_true(w.stubborn || atomic_load(&done.dropped) >= 2);
            }
}

static void ranks_with_one_virtual_worker_are_helped(void **state)
{
    (void)state;
    hold_at = hold_micro = 0;
    for (hold_term = 0; hold_term < LKT_PARAMS; hold_term++)
        for (uint32_t k = hold_term % 2; k < 4; k += 2 - (LKI_SANITIZED == 0)) {
            lkt_crew w           = make_crew(k % 2 == 0 ? "ddp" : "zero1", 2, 2);
            w.at_term            = hold_in_turn;
            w.options.comm_dtype = k < 2 ? LK_F32 : LK_I8;
            must_be_single(&w);
            assert_true(done.duplicated[1][0] >= 1 && atomic_load(&done.dropped) >= STEPS - 1);
        }
}

static void speculation_works_with_a_ledger(void **state)
{
    (void)state;
    hold_micro = 1;
    for (hold_term = 0; hold_term < LKT_PARAMS; hold_term++)
        for (uint32_t leaves = 2; leaves <= 8; leaves *= 4) {
            lkt_crew w         = make_crew("ddp", leaves, 2);
            w.at_term          = hold_in_turn;
            w.options.survives = true;
            w.options.unused   = LK_UNUSED_ZERO;
            /* its last virtual worker, for which another rank has a buffer */
            hold_at = leaves / 2 - 1;
            must_be_single(&w);
            assert_true(done.duplicated[1][0] >= 1);
        }
}

/* ---- The helping rank is late ------------------------------------------------------------- */

/* Lets rank 1 begin late.  Rank 0 takes one of its virtual workers and is held up in it. */
static void begin_late(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    (void)w;
    if (step > 0 && p->rank == 1)
        until(&done.begun[step], 1);
}

static void hold_who_helps(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn,
                           uint32_t term)
{
    (void)w;
    if (step == 0 || p->rank != 0 || !turn.again || term != 1)
        return;
    while (!lki_speculation_lost(p))
        (void)sched_yield();
}

static void a_rank_takes_back_a_slow_virtual_worker(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 4; k++) {
        lkt_crew w         = make_crew(k % 2 == 0 ? "ddp" : "zero1", 8, 2);
        w.options.survives = k >= 2;
        w.options.unused   = k >= 2 ? LK_UNUSED_ZERO : LK_UNUSED_SKIP;
        w.at_step          = begin_late;
        w.at_term          = hold_who_helps;
        must_be_single(&w);
        assert_true(atomic_load(&done.dropped) >= STEPS - 1);
    }
}

/* ---- All at once ------------------------------------------------------------------------- */

static void ranks_driven_apart_have_the_bits_of_single(void **state)
{
    static const uint32_t leaves[] = { 5, 12, 31 };
    (void)state;
    for (size_t i = LKI_SANITIZED; i < sizeof leaves / sizeof leaves[0]; i++)
        for (uint32_t ranks = 2; ranks <= 5; ranks += 1 + LKI_SANITIZED) {
            lkt_crew w          = make_crew(ranks % 2 == 0 ? "ddp" : "zero1", leaves[i], ranks);
            w.options.survives  = ranks == 3;
            w.options.unused    = ranks == 3 ? LK_UNUSED_ZERO : LK_UNUSED_SKIP;
            w.options.rebalance = ranks == 4;
            w.options.rebalance_seed = 3;
            w.options.noise_decay    = ranks == 5 ? 0.9 : 0;
            w.at_term                = lkt_dawdle;
            w.steps                  = LKI_SANITIZED ? 6 : STEPS_MAX;
            must_be_single(&w);
        }
}

static void speculation_works_on_several_hosts(void **state)
{
    static const hosted shapes[] = {
        { .hosts = 2, .each = 2, .seed = 2 },
        { .hosts = 2, .each = 3, .fewer_first = 2, .seed = 4 },
    };
    (void)state;
    for (size_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 2; k++) {
            lkt_crew w = make_crew(k == 0 ? "ddp" : "zero1", 16, hosted_size(shapes[i]));
            w.hosts    = shapes[i];
            w.at_step  = hold_before_step; /* rank 1 is on the first host, like rank 0 */
            must_be_single(&w);
            assert_true(done.duplicated[1][0] >= (uint32_t)least_helped(&w));
        }
}

static void other_orders_give_other_bits(void **state)
{
    char     want[65], got[65];
    lkt_crew right = make_crew("ddp", 12, 3), swapped = make_crew("ddp", 12, 3);
    (void)state;
    swapped.swapped = true;
    lkt_run_crew(&right, want);
    lkt_run_crew(&swapped, got);
    assert_string_not_equal(got, want);
}

/* ---- Unsupported options ------------------------------------------------------------------ */

static void unsupported_options_are_refused(void **state)
{
    static const struct {
        const char *strategy, *what;
        bool        lock_step, audit;
    } cases[] = {
        { "zero2", "ddp and zero1", false, false },
        { "ddp", "lock step", true, false },
        { "ddp", "`audit` or `duplicate`", false, true },
    };
    lk_parallel *p = NULL;
    lk_comm     *comm[1];
    (void)state;
    assert_int_equal(lk_comm_open_threads(comm, 1, NULL), LK_OK);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        lkt_crew w          = make_crew(cases[k].strategy, 4, 1);
        w.options.duplicate = true;
        w.options.lock_step = cases[k].lock_step;
        w.options.audit     = cases[k].audit ? 0.5 : 0;
        assert_int_equal(lk_parallel_open(&p, comm[0], model, LKT_PARAMS, &w.options),
                         LK_EUNSUPPORTED);
        assert_non_null(strstr(lk_error_last()->message, cases[k].what));
    }
    lk_comm_free(comm[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_compute_unstarted_virtual_workers),
        cmocka_unit_test(another_rank_computes_a_started_virtual_worker),
        cmocka_unit_test(ranks_with_one_virtual_worker_are_helped),
        cmocka_unit_test(speculation_works_with_a_ledger),
        cmocka_unit_test(a_rank_takes_back_a_slow_virtual_worker),
        cmocka_unit_test(ranks_driven_apart_have_the_bits_of_single),
        cmocka_unit_test(speculation_works_on_several_hosts),
        cmocka_unit_test(other_orders_give_other_bits),
        cmocka_unit_test(unsupported_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
