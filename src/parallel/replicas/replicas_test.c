/* replicas_test.c -- replicas: local SGD and DiLoCo.
 *
 * Goal:    the result depends on the number of replicas and of local steps, and not on ranks and
 *          hosts.  A run continues in the middle of a round with other ranks.  The arithmetic is
 *          that of the publications.
 * Method:  the crew of other strategies.  The oracle has an object for each replica and averages
 *          them in a plain loop.
 * Control: another number of replicas or of local steps gives other bits.
 */
#include <math.h>

#include "base/memory.h"
#include "base/thorough_testing.h"
#include "parallel/crew_testing.h"
#include "parallel/replicas/internal.h"

enum { LEAVES = 8, STEPS = 7 };

static const lk_param model[LKT_PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .init = LK_INIT_ONE },
    { .name = "c", .shape = { 3, { 6, 5, 7 } }, .init = LK_INIT_UNIFORM, .scale = 0.2f },
};

static const lk_replicas diloco = {
    .struct_size = sizeof(lk_replicas),
    .count       = 4,
    .local_steps = 3,
    .optimizer   = { .kind = LK_SGD, .momentum = 0.9, .nesterov = true },
    .lr          = 0.7,
};

/* ---- What replicas have ------------------------------------------------------------------ */

/* A run whose last step stores what replicas have, and whose first step may load it. */
typedef struct {
    lkt_crew crew; /* first, so that hooks find the run */
    float   *saved;  /* values of all replicas, after those of the outer weights; NULL: none */
    float   *begins; /* the same to begin with; NULL: a new run */
    char     hash[65];
} run;

typedef void visit_function(lk_parallel *p, bool load, uint32_t param, uint32_t which,
                            uint32_t group, float *at);

static void visit_outer(lk_parallel *p, bool load, uint32_t param, uint32_t which, uint32_t group,
                        float *at)
{
    const size_t count = lk_shape_count(model[param].shape);
    (void)group;
    assert_int_equal(load ? lk_parallel_load(p, param, which, at)
                          : lk_parallel_fetch(p, param, which, 0, count, at),
                     LK_OK);
}

static void visit_kept(lk_parallel *p, bool load, uint32_t param, uint32_t which, uint32_t group,
                       float *at)
{
    const size_t count = lk_shape_count(model[param].shape);
    assert_int_equal(load ? lk_parallel_load_kept(p, param, which, group, at)
                          : lk_parallel_fetch_kept(p, param, which, group, 0, count, at),
                     LK_OK);
}

/* Stores or loads the running state of the outer weights and of all replicas. */
static size_t visit_states(lk_parallel *p, bool load, float *values)
{
    const size_t count = lkt_running[0].count;
    if (load)
        assert_int_equal(lk_parallel_load_state(p, 0, values), LK_OK);
    else
        memcpy(values, lk_parallel_state_data(p, 0), count * sizeof *values);
    for (uint32_t g = 0; g < lk_parallel_groups(p); g++) {
        float *at = values + (1 + g) * count;
        assert_int_equal(load ? lk_parallel_load_replica_state(p, g, 0, at)
                              : lk_parallel_fetch_replica_state(p, g, 0, at),
                         LK_OK);
    }
    return (1 + lk_parallel_groups(p)) * count;
}

/* Stores or loads all values, in a fixed order.  Returns their number. */
static size_t visit_all(lk_parallel *p, bool load, float *values)
{
    const uint32_t states = lk_optimizer_state_count(&p->optimizer);
    size_t         at     = 0;
    for (uint32_t i = 0; i < LKT_PARAMS; i++) {
        const size_t count = lk_shape_count(model[i].shape);
        for (uint32_t w = 0; w <= states; w++, at += count)
            visit_outer(p, load, i, w, 0, values + at);
        for (uint32_t w = 0; lk_parallel_kept_name(p, i, w) != NULL; w++)
            for (uint32_t g = 0; g < lk_parallel_groups(p); g++, at += count)
                visit_kept(p, load, i, w, g, values + at);
    }
    return at + visit_states(p, load, values + at);
}

enum { VALUES_MAX = 400000 };

static void load_first(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    run *r = (run *)(void *)w;
    if (step == w->first && r->begins != NULL) {
        assert_int_equal(lk_parallel_resume(p, step), LK_OK);
        (void)visit_all(p, true, r->begins);
    }
}

static void save_last(lkt_crew *w, lk_parallel *p, uint32_t step, const lk_step_result *result)
{
    run   *r      = (run *)(void *)w;
    float *values = NULL;
    (void)result;
    if (step + 1 < w->steps)
        return;
    assert_int_equal(LKI_NEW(&values, VALUES_MAX, "values"), LK_OK);
    const size_t count = visit_all(p, false, values);
    assert_true(count <= VALUES_MAX);
    if (p->rank == 0) {
        lki_sha256 hash;
        lki_sha256_begin(&hash);
        lki_sha256_add(&hash, values, count * sizeof *values);
        lki_sha256_end(&hash, r->hash);
        if (r->saved != NULL)
            memcpy(r->saved, values, count * sizeof *values);
    }
    lki_free(values);
}

static run make_run(const lk_replicas *replicas, const char *strategy, uint32_t ranks,
                    uint32_t hosts)
{
    run r = { .crew = lkt_make_crew(model, strategy, LEAVES, ranks) };
    r.crew.steps            = STEPS;
    r.crew.options.unused   = LK_UNUSED_ZERO;
    r.crew.options.replicas = replicas;
    r.crew.at_step          = load_first;
    r.crew.at_result        = save_last;
    if (hosts > 1)
        r.crew.hosts = (hosted){ .hosts = hosts, .each = ranks / hosts };
    return r;
}

/* Returns the hash of the run's results followed by that of all values. */
static void hash_run(run *r, char hash[129])
{
    lkt_run_crew(&r->crew, hash);
    memcpy(hash + 64, r->hash, 65);
}

static void hash_with(const lk_replicas *replicas, const char *strategy, uint32_t ranks,
                      uint32_t hosts, char hash[129])
{
    run r = make_run(replicas, strategy, ranks, hosts);
    hash_run(&r, hash);
}

/* ---- Ranks and hosts --------------------------------------------------------------------- */

static void ranks_and_hosts_change_no_bit(void **state)
{
    static const uint32_t shapes[][2] = { { 2, 1 }, { 3, 1 }, { 5, 1 }, { 8, 1 },
                                          { 2, 2 }, { 4, 2 }, { 6, 3 } };
    (void)state;
    for (uint32_t count = 1; count <= LEAVES; count *= 2) {
        lk_replicas replicas = diloco;
        char        want[129], got[129];
        replicas.count = count;
        hash_with(&replicas, "ddp", 1, 1, want);
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i += lki_brief() ? 3 : 1) {
            hash_with(&replicas, i % 2 == 0 ? "ddp" : "zero1", shapes[i][0], shapes[i][1], got);
            assert_string_equal(got, want);
        }
    }
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
    for (uint32_t cut = lki_brief() ? 5 : 3; cut <= 5; cut++)
        continue_at(&diloco, cut, 3);
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

/* ---- The arithmetic ---------------------------------------------------------------------- */

typedef struct {
    lk_comm     *comm;
    lk_parallel *of[LEAVES];
    float        outer[LKT_PARAMS][LKT_ELEMENTS_MAX], momentum[LKT_PARAMS][LKT_ELEMENTS_MAX];
} oracle;

/* Runs a step of a replica, whose virtual workers are a part of the run's. */
static void oracle_step(lk_parallel *p, uint32_t replica, uint32_t width, uint32_t step)
{
    lkt_crew         crew = { .model = model };
    lk_parallel_turn turn;
    lk_step_result   result;
    assert_int_equal(lk_parallel_begin(p, step), LK_OK);
    while (lk_parallel_next(p, &turn)) {
        turn.virtual_worker += replica * width;
        (void)lkt_make_turn(&crew, p, step, turn);
    }
    assert_int_equal(lk_parallel_finish(p, 0.01, &result), LK_OK);
}

/* An outer step of DiLoCo, with sgd and Nesterov's momentum as PyTorch has them. */
static void oracle_average(oracle *o, const lk_replicas *r, uint32_t number)
{
    for (uint32_t p = 0; p < LKT_PARAMS; p++) {
        for (size_t i = 0; i < lk_shape_count(model[p].shape); i++) {
            double delta = 0, mu = r->optimizer.momentum;
            float *outer = &o->outer[p][i], *momentum = &o->momentum[p][i];
            for (uint32_t g = 0; g < r->count; g++)
                delta += (double)*outer - (double)lk_parallel_value(o->of[g], p, 0)[i];
            delta /= r->count;
            double moved = number == 0 ? delta : mu * (double)*momentum + delta;
            *momentum    = (float)moved;
            *outer -= (float)(r->lr * (r->optimizer.nesterov ? delta + mu * moved : moved));
        }
        for (uint32_t g = 0; g < r->count; g++)
            assert_int_equal(lk_parallel_load(o->of[g], p, 0, o->outer[p]), LK_OK);
    }
}

static void oracle_run(oracle *o, const lk_replicas *r)
{
    lkt_crew       crew  = lkt_make_crew(model, "single", LEAVES / r->count, 1);
    const uint32_t width = LEAVES / r->count;
    assert_int_equal(lk_comm_open_threads(&o->comm, 1, NULL), LK_OK);
    for (uint32_t g = 0; g < r->count; g++)
        assert_int_equal(
            lk_parallel_open(&o->of[g], o->comm, model, LKT_PARAMS, &crew.options), LK_OK);
    for (uint32_t p = 0; p < LKT_PARAMS; p++)
        memcpy(o->outer[p], lk_parallel_value(o->of[0], p, 0),
               lk_shape_count(model[p].shape) * sizeof(float));
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t g = 0; g < r->count; g++)
            oracle_step(o->of[g], g, width, step);
        if ((step + 1) % r->local_steps == 0)
            oracle_average(o, r, (uint32_t)(step / r->local_steps));
    }
    for (uint32_t g = 0; g < r->count; g++)
        lk_parallel_free(o->of[g]);
    lk_comm_free(o->comm);
}

/* Compares the outer weights, which are the first values that a run saves. */
static void must_be_close(const run *r, const oracle *o, uint32_t states)
{
    size_t at = 0;
    for (uint32_t p = 0; p < LKT_PARAMS; p++) {
        const size_t count = lk_shape_count(model[p].shape);
        for (size_t i = 0; i < count; i++)
            assert_true(fabs((double)r->saved[at + i] - (double)o->outer[p][i]) < 2e-6);
        at += count * (1 + states + 3 * (size_t)r->crew.options.replicas->count);
    }
}

static void outer_steps_are_those_of_the_oracle(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 3; kind++) {
        lk_replicas replicas = diloco;
        oracle     *o        = NULL;
        char        hash[129];
        if (kind == 1) /* local SGD: the mean */
            replicas = (lk_replicas){ sizeof replicas, .count = 2, .local_steps = 2, .lr = 1 };
        if (kind == 2) /* a Lookahead: one replica */
            replicas.count = 1;
        run r = make_run(&replicas, "ddp", 2, 1);
        assert_int_equal(LKI_NEW(&o, 1, "oracle"), LK_OK);
        assert_int_equal(LKI_NEW(&r.saved, VALUES_MAX, "values"), LK_OK);
        hash_run(&r, hash);
        oracle_run(o, &replicas);
        must_be_close(&r, o, kind == 1 ? 0 : 1);
        lki_free(r.saved);
        lki_free(o);
    }
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
    lk_parallel *p    = NULL;
    lk_comm     *comm = NULL;
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm, model, LKT_PARAMS, options), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, text));
    lk_comm_free(comm);
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
    options          = with;
    options.strategy = "zero3";
    refuse(&options, "`strategy` ddp or zero1");
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
        cmocka_unit_test(outer_steps_are_those_of_the_oracle),
        cmocka_unit_test(replicas_without_samples_skip_a_step),
        cmocka_unit_test(a_failure_of_one_rank_is_not_waited_for),
        cmocka_unit_test(all_ranks_fail_with_a_replica),
        cmocka_unit_test(outer_steps_fail_by_their_name),
        cmocka_unit_test(what_replicas_cannot_do_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
