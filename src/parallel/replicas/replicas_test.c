/* replicas_test.c -- replicas: local SGD and DiLoCo.
 *
 * Goal:    the result depends on the number of replicas and of local steps, and not on ranks and
 *          hosts.  A run continues in the middle of a round with other ranks.  The arithmetic is
 *          that of the publications.
 * Method:  the crew of other strategies.  The oracle has an object for each replica and averages
 *          them in a plain loop.
 * Control: another number of replicas or of local steps gives other bits.
 */
#include "parallel/replicas/replicas_testing.h"

/* ---- Ranks and hosts --------------------------------------------------------------------- */

/* Compares runs on several ranks and hosts with that on one. */
static void compare_shapes(const lk_replicas *replicas)
{
    static const uint32_t    shapes[][2]  = { { 2, 1 }, { 3, 1 }, { 5, 1 }, { 8, 1 },
                                              { 2, 2 }, { 4, 2 }, { 6, 3 } };
    static const char *const strategies[] = { "ddp", "zero3", "zero2", "zero1", "zero3" };
    char                     want[129], got[129];
    hash_with(replicas, "ddp", 1, 1, want);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i += lki_brief() ? 5 : 1) {
        hash_with(replicas, strategies[i % 5], shapes[i][0], shapes[i][1], got);
        assert_string_equal(got, want);
    }
}

static void ranks_and_hosts_change_no_bit(void **state)
{
    (void)state;
    for (uint32_t count = 1; count <= LEAVES; count *= 2) {
        lk_replicas replicas = diloco;
        replicas.count       = count;
        compare_shapes(&replicas);
    }
    for (size_t i = 0; i < sizeof streaming / sizeof streaming[0]; i++)
        compare_shapes(&streaming[i]);
}

static void other_replicas_are_other_bits(void **state)
{
    char        base[129], got[129];
    lk_replicas replicas = diloco;
    (void)state;
    hash_with(&diloco, "ddp", 2, 1, base);
    replicas.count = 2;
    hash_with(&replicas, "ddp", 2, 1, got);
    assert_string_not_equal(got, base);
    replicas             = diloco;
    replicas.local_steps = 2;
    hash_with(&replicas, "ddp", 2, 1, got);
    assert_string_not_equal(got, base);
    replicas    = diloco;
    replicas.lr = 0.6;
    hash_with(&replicas, "ddp", 2, 1, got);
    assert_string_not_equal(got, base);
    hash_with(&streaming[0], "ddp", 2, 1, got);
    assert_string_not_equal(got, base);
}

/* ---- Continuing -------------------------------------------------------------------------- */

/* Runs to step `cut`, continues with other ranks, and compares with the whole run. */
static void continue_at(const lk_replicas *replicas, uint32_t cut, uint32_t count)
{
    static const uint32_t ranks[][2] = { { 1, 3 }, { 4, 2 }, { 8, 1 } };
    char                  want[129], got[129];
    run                   whole = make_run(replicas, "ddp", 2, 1);
    whole.crew.values_only = true;
    hash_run(&whole, want);
    for (size_t i = 0; i < (lki_brief() ? 1 : count); i++) {
        run first = make_run(replicas, "ddp", ranks[i][0], 1),
            next  = make_run(replicas, "zero1", ranks[i][1], 1);
        assert_int_equal(LKI_NEW(&first.saved, VALUES_MAX, "values"), LK_OK);
        first.crew.steps      = cut;
        next.crew.first       = cut;
        next.crew.values_only = true;
        next.begins           = first.saved;
        hash_run(&first, got);
        hash_run(&next, got);
        lki_free(first.saved);
        assert_string_equal(got, want);
    }
}

/* Steps 4 and 5 are the first and the second of a round. */
static void a_run_continues_in_the_middle_of_a_round(void **state)
{
    (void)state;
    for (uint32_t cut = lki_brief() ? 5 : 3; cut <= 5; cut++) {
        continue_at(&diloco, cut, 3);
        for (size_t i = 0; i < sizeof streaming / sizeof streaming[0]; i++)
            continue_at(&streaming[i], cut, 2);
    }
}

/* ---- The start of replicas ----------------------------------------------------------------- */

/* The outer weights at the end of the last round, after step 5 or 7. */
static void must_have_weights_of(run *r, lkt_crew *crew)
{
    run plain       = { .crew = *crew };
    plain.crew.at_result = save_last;
    r->crew.at_result    = save_last;
    char hash[129];
    assert_int_equal(LKI_NEW(&plain.saved, VALUES_MAX, "values"), LK_OK);
    assert_int_equal(LKI_NEW(&r->saved, VALUES_MAX, "values"), LK_OK);
    hash_run(&plain, hash);
    hash_run(r, hash);
    /* the first values of both are the weights of parameter 0 */
    const size_t count = lk_shape_count(model[0].shape);
    assert_int_equal(memcmp(plain.saved, r->saved, count * sizeof(float)) == 0,
                     (crew->steps - 3) % 2 == 0);
    lki_free(plain.saved);
    lki_free(r->saved);
}

/* Until the start a run has the bits of ddp, and one with a single replica has them to its end. */
static void replicas_start_from_ddp(void **state)
{
    lk_replicas late = diloco, one = { sizeof one, .count = 1, .local_steps = 2, .start = 3 };
    char        ddp[65], got[129], first[129];
    (void)state;
    late.start = 3;
    for (uint32_t steps = 3; steps <= STEPS; steps++) {
        lkt_crew crew    = lkt_make_crew(model, "ddp", LEAVES, 2);
        run      r       = make_run(steps == 3 ? &late : &one, "ddp", 3, 1);
        crew.steps       = r.crew.steps = steps;
        crew.values_only = r.crew.values_only = true;
        crew.options.unused = LK_UNUSED_ZERO;
        r.crew.at_result = NULL;
        if (steps == 3) {
            lkt_run_crew(&crew, ddp);
            lkt_run_crew(&r.crew, got);
            assert_string_equal(got, ddp);
        } else {
            must_have_weights_of(&r, &crew);
        }
    }
    hash_with(&late, "ddp", 1, 1, first);
    for (uint32_t ranks = 2; ranks <= 5; ranks += 3) {
        hash_with(&late, "zero1", ranks, 1, got);
        assert_string_equal(got, first);
    }
    hash_with(&late, "ddp", 4, 2, got);
    assert_string_equal(got, first);
    for (uint32_t cut = lki_brief() ? 4 : 2; cut <= 4; cut++)
        continue_at(&late, cut, 2);
}

/* ---- Short batches ------------------------------------------------------------------------- */

/* In step 4 only the first three virtual workers have samples. */
static void make_short(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn)
{
    if (step == 4 && turn.virtual_worker >= 3)
        lk_parallel_report(p, 0, 0, 0, 0, 0);
    else
        (void)lkt_make_turn(w, p, step, turn);
}

/* Step 4 must change no value of the last replica, which has no samples. */
static void compare_idle(lkt_crew *w, lk_parallel *p, uint32_t step, const lk_step_result *result)
{
    static _Thread_local float values[2][3][LKT_ELEMENTS_MAX];
    const uint32_t             last = diloco.count - 1;
    for (uint32_t which = 0; (step == 3 || step == 4) && which < 3; which++)
        visit_kept(p, false, 0, which, last, values[step - 3][which]);
    if (step == 4)
        assert_memory_equal(values[0], values[1], sizeof values[0]);
    save_last(w, p, step, result);
}

static void replicas_without_samples_skip_a_step(void **state)
{
    char want[129] = "", got[129], full[129];
    (void)state;
    hash_with(&diloco, "ddp", 1, 1, full);
    for (uint32_t ranks = 1; ranks <= 5; ranks += 2) {
        run r       = make_run(&diloco, "zero1", ranks, 1);
        r.crew.make = make_short;
        r.crew.at_result = compare_idle;
        hash_run(&r, got);
        if (ranks == 1)
            memcpy(want, got, sizeof want);
        assert_string_equal(got, want);
    }
    assert_string_not_equal(want, full);
}

/* ---- Failures ------------------------------------------------------------------------------ */

/* On one rank, something else writes into a parameter before step 1. */
static void damage(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    load_first(w, p, step);
    if (step != 1)
        return;
    assert_int_equal(lk_barrier(p->comm), LK_OK);
    if (p->rank == 1) {
        lk_parallel *mine = p->replicas->of[0].model;
        lki_values_of(mine, &mine->layout->spans[mine->owned.spans[0]])[0] += 1;
    }
    assert_int_equal(lk_barrier(p->comm), LK_OK);
}

/* The rank that finds damage says so at once.  The other rank of the replica does not find it. */
static void a_failure_of_one_rank_is_not_waited_for(void **state)
{
    lkt_member  members[2];
    lk_replicas one = diloco;
    run         r   = make_run(&one, "ddp", 2, 1);
    (void)state;
    one.count      = 1;
    r.crew.at_step = damage;
    for (uint32_t i = 0; i < 2; i++)
        members[i] = (lkt_member){ .crew = &r.crew };
    lkt_run_on_one_host(&r.crew, members);
    assert_int_equal(members[1].status, LK_ECORRUPT);
    assert_int_equal(members[0].status, LK_EPEER);
}

/* In step 2, the loss of the last replica is not finite. */
static void report_nan(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn)
{
    (void)lkt_make_turn(w, p, step, turn);
    if (step == 2 && turn.virtual_worker == LEAVES - 1)
        lk_parallel_report(p, 0, (double)NAN, 0, 0, 0);
}

static void all_ranks_fail_with_a_replica(void **state)
{
    (void)state;
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        lkt_member members[3];
        run        r = make_run(&diloco, "ddp", ranks, 1);
        r.crew.make  = report_nan;
        for (uint32_t i = 0; i < ranks; i++)
            members[i] = (lkt_member){ .crew = &r.crew };
        lkt_run_on_one_host(&r.crew, members);
        for (uint32_t i = 0; i < ranks; i++)
            assert_int_equal(members[i].status, LK_ENONFINITE);
    }
}

/* Between two steps something writes into the outer weights. */
static void outer_steps_fail_by_their_name(void **state)
{
    run          r    = make_run(&diloco, "ddp", 1, 1);
    lk_comm     *comm = NULL;
    lk_parallel *p    = NULL;
    lki_sha256   hash;
    (void)state;
    lki_sha256_begin(&hash);
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm, model, LKT_PARAMS, &r.crew.options), LK_OK);
    for (uint32_t step = 0; step < 5; step++)
        assert_int_equal(lkt_step(p, &r.crew, step, &hash), LK_OK);
    ((float *)(uintptr_t)lk_parallel_param(p, 0))[0] += 1;
    assert_int_equal(lkt_step(p, &r.crew, 5, &hash), LK_ECORRUPT);
    assert_non_null(strstr(lk_error_last()->message, "outer step 2: "));
    lk_parallel_free(p);
    lk_comm_free(comm);
}

/* ---- Refusals ---------------------------------------------------------------------------- */

static void refuse(const lk_parallel_options *options, const char *text)
{
    lkt_refuse(model, options, text);
}

static void what_replicas_cannot_do_is_refused_by_name(void **state)
{
    lk_replicas         three  = diloco;
    lkt_crew            crew   = lkt_make_crew(model, "ddp", LEAVES, 1);
    lk_parallel_options with   = crew.options;
    with.replicas = &diloco;
    with.unused   = LK_UNUSED_ZERO;
    (void)state;
    lk_parallel_options options = with;
    three.count                 = 3;
    options.replicas            = &three;
    refuse(&options, "3 replicas cannot divide 8 virtual workers");
    three            = diloco;
    three.start      = 2;
    options.strategy = "zero3";
    refuse(&options, "`strategy` ddp or zero1");
    options         = with;
    three           = diloco;
    three.fragments = 2;
    options.replicas = &three;
    refuse(&options, "2 fragments do not divide 3 local steps");
    three.fragments = 3;
    three.delay     = 1;
    refuse(&options, "`delay`");
    three.fragments = 1;
    refuse(&options, "running state");
    options          = with;
    options.survives = true;
    refuse(&options, "`survives`");
    options       = with;
    options.audit = 0.5;
    refuse(&options, "`audit`");
    options                = with;
    options.optimizer.kind = LK_OPTIMIZER_NONE;
    refuse(&options, "`optimizer.kind`");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_and_hosts_change_no_bit),
        cmocka_unit_test(other_replicas_are_other_bits),
        cmocka_unit_test(a_run_continues_in_the_middle_of_a_round),
        cmocka_unit_test(replicas_start_from_ddp),
        cmocka_unit_test(replicas_without_samples_skip_a_step),
        cmocka_unit_test(a_failure_of_one_rank_is_not_waited_for),
        cmocka_unit_test(all_ranks_fail_with_a_replica),
        cmocka_unit_test(outer_steps_fail_by_their_name),
        cmocka_unit_test(what_replicas_cannot_do_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
