/* unused_test.c -- training loops that deviate from the declared terms.
 *
 * Such loops do not use every parameter, finish gradients in another order, or accumulate any
 * number of micro-batches.
 *
 * Goal:   any such loop, on any number of workers and hosts, has the bits of the plain reference.
 *         Parameters that are never used are unchanged and named.  The gradient of a parameter that
 *         some virtual workers use is the mean over all.  Reordering buckets, adding micro-batches,
 *         and going on in another object change no bit.
 * Method: as in parallel_test.c: gradients are pure functions of the position, and ranks are
 *         threads, on one host or on several simulated hosts.
 * Negative controls: if usage is ignored, an unused parameter decays; with another number of
 *         micro-batches, or if LK_UNUSED_STATIC is violated, the step is refused; weights differ if
 *         the missed steps are not loaded.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "comm/hosted_testing.h"
#include "parallel/state.h"

enum { PARAMS = 4, TERMS = 5, ELEMENTS = 50, RANKS_MAX = 8, LEAVES = 5, STEPS = 4 };
/* SOME: used by virtual worker 1 only; LATE: used from step `late` */
enum { SHARED, SOME, LATE, NEVER };

static const lk_param model[PARAMS] = {
    [SHARED] = { .name = "shared", .shape = { 1, { 50 } }, .uses = 2, .init = LK_INIT_ONE },
    [SOME]   = { .name = "some", .shape = { 1, { 20 } }, .init = LK_INIT_ONE },
    [LATE]   = { .name = "late", .shape = { 1, { 33 } }, .init = LK_INIT_ONE },
    [NEVER]  = { .name = "never", .shape = { 1, { 40 } }, .init = LK_INIT_ONE },
};
static const uint32_t param_of[TERMS] = { NEVER, LATE, SOME, SHARED, SHARED };

typedef struct crew {
    lk_parallel_options options;
    uint32_t            ranks;
    uint32_t            first, end; /* the steps; `end` 0: STEPS */
    const struct crew  *start;      /* NULL, or the crew whose values this one has at first */
    bool                forgets;    /* does not load the missed steps of `start` */
    hosted              hosts;     /* zero: a single host */
    uint32_t            late;      /* the first step in which LATE is used */
    uint32_t            micros;    /* 0: as in the options */
    bool                odd;       /* rank 1 has one micro-batch more than other ranks */
    bool                shuffles;  /* finishes terms in another order than declared */
    bool                reordered; /* whether rank 0 has reordered buckets */
    uint32_t            unused[STEPS];
    char                names[64];
    uint64_t            missed[PARAMS];
    bool                used[PARAMS];
    /* [][0]: values; the others: the optimizer's state */
    float values[PARAMS][3][ELEMENTS];
    /* the error of the first rank whose failure was not caused by another rank */
    lk_error error;
} crew;

static lk_error errors[RANKS_MAX]; /* [rank] */

static bool uses(const crew *c, uint32_t step, uint32_t leaf, uint32_t term)
{
    uint32_t param = param_of[term];
    return param == SHARED || (param == SOME && leaf == 1) || (param == LATE && step >= c->late);
}

/* Returns a gradient.  That of parameter LATE depends on how often it was used before. */
static float slope(const crew *c, uint32_t step, uint32_t term, uint32_t leaf, uint32_t micro,
                   uint32_t i)
{
    uint32_t at = param_of[term] == LATE ? step - c->late : step;
    return lki_random_unit(lki_philox(5, LKI_RNG_DATA, at * TERMS + term, leaf, micro, i).word[0]) -
           0.3f;
}

static void run_turn(lk_parallel *p, const crew *c, uint32_t step, lk_parallel_turn turn)
{
    static const uint32_t shuffled[TERMS] = { 4, 1, 3, 0, 2 };
    /* zero2 has memory for only two buckets */
    bool zero2 = strcmp(c->options.strategy, "zero2") == 0;
    for (uint32_t k = 0; k < TERMS; k++) {
        uint32_t term = c->shuffles ? shuffled[k] : k;
        if (!uses(c, step, turn.virtual_worker, term)) {
            if (zero2)
                lk_parallel_grad_ready(p, 0, term);
            continue;
        }
        float *grad = lk_parallel_grad(p, 0, term);
        for (uint32_t i = 0; i < lk_shape_count(model[param_of[term]].shape); i++)
            grad[i] += slope(c, step, term, turn.virtual_worker, turn.micro_index, i);
        lk_parallel_grad_ready(p, 0, term);
    }
    lk_parallel_report(p, 0, 1, 2, 2, 0);
}

static lk_status one_step(lk_parallel *p, crew *c, uint32_t step)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    uint32_t         micros = c->micros + (c->odd && p->rank == 1);
    if (c->micros == 0)
        LK_TRY(lk_parallel_begin(p, step));
    else
        LK_TRY(lk_parallel_begin_micros(p, step, micros));
    while (lk_parallel_next(p, &turn))
        run_turn(p, c, step, turn);
    LK_TRY(lk_parallel_finish(p, 0.01, &result));
    if (p->rank == 0)
        c->unused[step] = result.unused;
    return LK_OK;
}

static lk_status take_values(lk_parallel *p, crew *c)
{
    float ignored[ELEMENTS];
    for (uint32_t i = 0; i < PARAMS; i++)
        for (uint32_t which = 0; which < 3; which++)
            LK_TRY(lk_parallel_fetch(p, i, which, 0, lk_shape_count(model[i].shape),
                                     p->rank == 0 ? c->values[i][which] : ignored));
    if (p->rank == 0) {
        lk_parallel_unused_names(p, c->names, sizeof c->names);
        for (uint32_t i = 0; i < PARAMS; i++) {
            c->missed[i] = lk_parallel_missed(p, i);
            c->used[i]   = lk_parallel_is_used(p, i);
        }
        c->reordered = p->layout->terms[0].param != NEVER;
    }
    return lk_barrier(p->comm);
}

static lk_status load_values(lk_parallel *p, const crew *start, bool forgets)
{
    for (uint32_t i = 0; i < PARAMS; i++) {
        for (uint32_t which = 0; which < 3; which++)
            LK_TRY(lk_parallel_load(p, i, which, start->values[i][which]));
        if (!forgets)
            lk_parallel_load_missed(p, i, start->missed[i]);
    }
    return LK_OK;
}

static bool rank_main(lk_comm *comm, void *context)
{
    crew        *c      = context;
    lk_parallel *p      = NULL;
    lk_status    status = lk_parallel_open(&p, comm, model, PARAMS, &c->options);
    if (status == LK_OK && c->start != NULL)
        status = load_values(p, c->start, c->forgets);
    for (uint32_t s = c->first; status == LK_OK && s < (c->end > 0 ? c->end : STEPS); s++)
        status = one_step(p, c, s);
    if (status == LK_OK)
        status = take_values(p, c);
    if (status != LK_OK) {
        errors[lk_comm_rank(comm)] = *lk_error_last();
        lk_comm_abort(comm);
    }
    lk_parallel_free(p);
    return true;
}

static lk_status run(crew *c)
{
    memset(errors, 0, sizeof errors);
    assert_true(c->hosts.hosts > 0 ? hosted_all(c->hosts, rank_main, c)
                                   : world_all(c->ranks, true, rank_main, c));
    c->error = errors[0];
    for (uint32_t r = 1; r < RANKS_MAX; r++)
        if (errors[r].status != LK_OK && (c->error.status == LK_OK || c->error.status == LK_EPEER))
            c->error = errors[r];
    return c->error.status;
}

static crew make_crew(const char *strategy, uint32_t ranks, lk_unused unused)
{
    return (crew){ .ranks   = ranks,
                   .late    = 2,
                   .options = { .struct_size     = sizeof(lk_parallel_options),
                                .strategy        = strategy,
                                .virtual_workers = LEAVES,
                                .unused          = unused,
                                .bucket_bytes    = 64,
                                .optimizer       = { .kind = LK_ADAMW, .weight_decay = 0.1 } } };
}

static void assert_same(const crew *a, const crew *b)
{
    assert_memory_equal(a->values, b->values, sizeof a->values);
}

/* ---- Unused parameters ------------------------------------------------------------------- */

static void unused_parameters_stay_and_are_named(void **state)
{
    static crew single, zero, early;
    (void)state;
    single = make_crew("single", 1, LK_UNUSED_SKIP);
    assert_int_equal(single.options.unused, LK_UNUSED_SKIP); /* the default */
    zero = early = single;
    assert_int_equal(run(&single), LK_OK);
    assert_string_equal(single.names, "never");
    assert_int_equal(single.unused[0], 2);
    assert_int_equal(single.unused[3], 1);
    assert_int_equal(single.missed[LATE], 2);
    for (uint32_t i = 0; i < 40; i++) {
        assert_true(single.values[NEVER][0][i] == 1.0f);
        assert_true(single.values[NEVER][1][i] == 0.0f && single.values[NEVER][2][i] == 0.0f);
    }
    zero.options.unused = LK_UNUSED_ZERO;
    assert_int_equal(run(&zero), LK_OK);
    assert_true(zero.values[NEVER][0][0] < 1.0f);
    assert_string_equal(zero.names, "");

    early.late = 0;
    assert_int_equal(run(&early), LK_OK);
    assert_int_equal(early.missed[LATE], 0);
    assert_memory_not_equal(single.values[LATE], early.values[LATE], sizeof early.values[LATE]);
    assert_memory_equal(single.values[SHARED], early.values[SHARED], sizeof early.values[SHARED]);
}

static const hosted shapes[] = {
    { 0 }, { 0 }, { 0 }, { .hosts = 2, .each = 1, .seed = 1 }, { .hosts = 2, .each = 2, .seed = 2 }
};

static void a_resumed_run_loads_the_missed_steps(void **state)
{
    static crew whole, begun, resumed;
    (void)state;
    whole = begun = make_crew("single", 1, LK_UNUSED_SKIP);
    begun.end     = 2;
    assert_int_equal(run(&whole), LK_OK);
    assert_true(whole.used[SHARED] && whole.used[LATE] && !whole.used[NEVER]);
    assert_int_equal(run(&begun), LK_OK);
    assert_true(!begun.used[LATE]);
    resumed       = make_crew("ddp", 2, LK_UNUSED_SKIP);
    resumed.first = 2;
    resumed.start = &begun;
    assert_int_equal(run(&resumed), LK_OK);
    assert_same(&resumed, &whole);
    resumed.forgets = true;
    assert_int_equal(run(&resumed), LK_OK);
    assert_memory_not_equal(resumed.values, whole.values, sizeof whole.values);
}

static void all_ranks_agree_on_used_parameters(void **state)
{
    static const char *const strategies[] = { "ddp", "zero1", "zero2" };
    static crew              single;
    (void)state;
    single = make_crew("single", 1, LK_UNUSED_SKIP);
    assert_int_equal(run(&single), LK_OK);
    for (uint32_t k = 0; k < 3 * 5; k++) {
        crew c  = make_crew(strategies[k % 3], 1 + k / 3, LK_UNUSED_SKIP);
        c.hosts = shapes[k / 3];
        c.ranks = c.hosts.hosts > 0 ? hosted_size(c.hosts) : c.ranks;
        assert_int_equal(run(&c), LK_OK);
        assert_same(&c, &single);
        assert_string_equal(c.names, "never");
        assert_int_equal(c.missed[LATE], 2);
    }
}

static void skipped_steps_leave_no_optimizer_state(void **state)
{
    static crew two, late;
    (void)state;
    two                 = make_crew("ddp", 2, LK_UNUSED_SKIP);
    late                = two;
    two.late            = 3; /* trained once, as if in the optimizer's first step */
    late.late           = 3;
    late.options.unused = LK_UNUSED_ZERO;
    assert_int_equal(run(&two), LK_OK);
    assert_int_equal(run(&late), LK_OK);
    /* the first step of Adam has length lr, after weight decay */
    for (uint32_t i = 0; i < 33; i++) {
        double moved = 1 - 0.01 * 0.1 - (double)two.values[LATE][0][i];
        assert_true(moved > 0.0099 || moved < -0.0099);
        assert_true(two.values[LATE][0][i] != late.values[LATE][0][i]);
    }
}

static void a_step_that_breaks_its_promise_is_refused(void **state)
{
    static crew fixed, skip;
    (void)state;
    fixed = make_crew("ddp", 2, LK_UNUSED_STATIC);
    skip  = make_crew("ddp", 2, LK_UNUSED_SKIP);
    for (uint32_t k = 0; k < 3; k++) {
        fixed.hosts = skip.hosts = k == 2 ? shapes[4] : shapes[0];
        fixed.late = skip.late = 0;
        fixed.options.strategy = k == 1 ? "zero2" : "ddp";
        assert_int_equal(run(&skip), LK_OK);
        assert_int_equal(run(&fixed), LK_OK);
        assert_same(&fixed, &skip);
        fixed.late = 2;
        assert_int_equal(run(&fixed), LK_EINVAL);
        assert_non_null(strstr(fixed.error.message, "step 3: parameter 'late' is used"));
    }
    fixed.options.unused = LK_UNUSED_REFUSE;
    assert_int_equal(run(&fixed), LK_EINVAL);
    assert_non_null(strstr(fixed.error.message, "2 parameters: late, never"));
}

/* ---- Order, and accumulation ------------------------------------------------------------- */

static void buckets_follow_the_observed_order(void **state)
{
    static crew plain;
    (void)state;
    plain = make_crew("ddp", 1, LK_UNUSED_SKIP);
    assert_int_equal(run(&plain), LK_OK);
    assert_false(plain.reordered);
    for (uint32_t k = 0; k < 5; k++) {
        crew c     = make_crew(k == 1 ? "zero1" : "ddp", 1 + k, LK_UNUSED_SKIP);
        c.hosts    = shapes[k];
        c.ranks    = c.hosts.hosts > 0 ? hosted_size(c.hosts) : c.ranks;
        c.shuffles = true;
        assert_int_equal(run(&c), LK_OK);
        assert_true(c.reordered);
        assert_same(&c, &plain);
    }
}

static void a_step_may_have_any_number_of_micro_batches(void **state)
{
    static crew three, c;
    (void)state;
    three                     = make_crew("single", 1, LK_UNUSED_SKIP);
    c                         = make_crew("ddp", 2, LK_UNUSED_SKIP);
    three.options.micro_count = 3;
    assert_int_equal(run(&three), LK_OK);
    c.micros = 3;
    assert_int_equal(run(&c), LK_OK);
    assert_same(&c, &three);
    c.odd = true;
    assert_int_equal(run(&c), LK_EMISMATCH);
    assert_non_null(strstr(c.error.message, " micro-batches, rank "));
    c.odd              = false;
    c.options.strategy = "zero2";
    assert_int_equal(run(&c), LK_EINVAL);
    c.options.micro_count = 2;
    assert_int_equal(run(&c), LK_OK);
    assert_same(&c, &three);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unused_parameters_stay_and_are_named),
        cmocka_unit_test(a_resumed_run_loads_the_missed_steps),
        cmocka_unit_test(all_ranks_agree_on_used_parameters),
        cmocka_unit_test(skipped_steps_leave_no_optimizer_state),
        cmocka_unit_test(a_step_that_breaks_its_promise_is_refused),
        cmocka_unit_test(buckets_follow_the_observed_order),
        cmocka_unit_test(a_step_may_have_any_number_of_micro_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
