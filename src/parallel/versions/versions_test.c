/* versions_test.c -- asynchronous training.
 *
 * Goal:    the result depends on the groups and on their schedule, and not on ranks.  A run goes on
 *          between any two steps with other ranks.  Without staleness it is ddp.
 * Method:  the crew of other strategies, whose ranks dawdle.  The oracle applies the gradients of
 *          groups that take turns, in a plain loop with numbers in double precision.
 * Control: another schedule gives other bits.
 */
#include <math.h>

#include "base/thorough_testing.h"
#include "parallel/crew_testing.h"
#include "parallel/versions/internal.h"

enum { LEAVES = 8, STEPS = 5 };

static const lk_param model[LKT_PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .init = LK_INIT_ONE },
    { .name = "c", .shape = { 3, { 6, 5, 7 } }, .init = LK_INIT_UNIFORM, .scale = 0.2f },
};

static const lk_async slow_one = { .delays     = LK_DELAYS_LOGNORMAL,
                                   .spread     = 0.5,
                                   .slow_count = 1,
                                   .slow_group = { 1 },
                                   .slow_factor = { 7 } };

static double given_time(void *context, uint32_t group, uint64_t clock, uint64_t task)
{
    return *(const double *)context + (double)((3 * group + 5 * clock + task) % 4);
}

static double given_least = 0.5;

static const lk_async schedules[] = {
    { .struct_size = sizeof(lk_async) },
    { .delays = LK_DELAYS_EXPONENTIAL, .groups = 4, .rate_by_staleness = true },
    { .delays = LK_DELAYS_EXPONENTIAL, .aggregate = 4 },
    { .delays = LK_DELAYS_LOGNORMAL, .spread = 1, .bounded = true, .staleness = 1 },
    { .delays = LK_DELAYS_LOGNORMAL, .spread = 0.3, .groups = 4, .aggregate = 2, .bounded = true },
    { .slow_count = 1, .slow_group = { 0 }, .slow_factor = { 4.5 }, .compensation = 0.04 },
    { .delays = LK_DELAYS_LOGNORMAL, .spread = 1, .compensation = 2 },
    { .delays = LK_DELAYS_EXPONENTIAL, .bounded = true, .in_versions = true, .staleness = 8 },
    { .delays = LK_DELAYS_LOGNORMAL, .spread = 1, .groups = 4, .aggregate = 2, .bounded = true,
      .in_versions = true, .staleness = 1 },
    { .delays = LK_DELAYS_GIVEN, .time = given_time, .time_context = &given_least },
    { .delays = LK_DELAYS_EXPONENTIAL, .aggregate = 4, .bounded = true, .in_versions = true,
      .drops_late = true },
};

/* Returns lk_optimizer.mean_square of a schedule: a compensation of 2 is adaptive. */
static double squares_of(const lk_async *async)
{
    return async->compensation >= 2 ? 0.95 : 0;
}

/* Runs `ranks` ranks with a schedule, or synchronously without one. */
static void hash_with(const lk_async *async, uint32_t ranks, bool values_only, char hash[65])
{
    lkt_crew w     = lkt_make_crew(model, "ddp", LEAVES, ranks);
    lk_async mine  = async != NULL ? *async : (lk_async){ 0 };
    mine.struct_size = sizeof mine;
    mine.steps       = STEPS;
    w.steps          = STEPS;
    w.values_only    = values_only;
    w.at_term        = lkt_dawdle;
    w.options.unused = LK_UNUSED_ZERO;
    w.options.optimizer.mean_square = squares_of(&mine);
    w.options.async  = async != NULL ? &mine : NULL;
    lkt_run_crew(&w, hash);
}

/* ---- Ranks ------------------------------------------------------------------------------- */

static void ranks_change_no_bit(void **state)
{
    char want[65], got[65];
    (void)state;
    for (size_t i = 0; i < sizeof schedules / sizeof schedules[0]; i++) {
        const uint32_t most = schedules[i].groups > 0 ? schedules[i].groups : LEAVES;
        hash_with(&schedules[i], 1, false, want);
        for (uint32_t ranks = 2; ranks <= most; ranks += lki_brief() ? 3 : 1) {
            hash_with(&schedules[i], ranks, false, got);
            assert_string_equal(got, want);
        }
    }
}

static void other_schedules_are_other_bits(void **state)
{
    char     base[65], got[65];
    lk_async other = slow_one;
    (void)state;
    hash_with(&slow_one, 2, true, base);
    other.slow_factor[0] = 6;
    hash_with(&other, 2, true, got);
    assert_string_not_equal(got, base);
    for (size_t i = 0; i < sizeof schedules / sizeof schedules[0]; i++) {
        hash_with(&schedules[i], 2, true, got);
        assert_string_not_equal(got, base);
    }
}

/* ---- Without staleness ------------------------------------------------------------------- */

static void without_staleness_it_is_ddp(void **state)
{
    char           want[65], got[65];
    const lk_async all = { .aggregate = LEAVES, .bounded = true },
                   half = { .groups = 4, .aggregate = 4, .bounded = true, .delays = 2,
                            .rate_by_staleness = true },
                   one = { .groups = 1, .delays = LK_DELAYS_EXPONENTIAL };
    lk_async       none = { .aggregate = LEAVES, .bounded = true, .in_versions = true,
                            .delays = LK_DELAYS_EXPONENTIAL };
    (void)state;
    hash_with(NULL, 2, false, want);
    for (uint32_t ranks = 1; ranks <= 4; ranks++) {
        hash_with(&all, ranks, false, got);
        assert_string_equal(got, want);
        hash_with(&half, ranks, false, got);
        assert_string_equal(got, want);
        none.drops_late = ranks > 2; /* no gradient is late */
        hash_with(&none, ranks, false, got);
        assert_string_equal(got, want);
    }
    hash_with(&one, 1, false, got);
    assert_string_equal(got, want);
}

/* ---- Continuing -------------------------------------------------------------------------- */

enum { CUT = 3, STATES = 3, FLOATS = (50 * 90 + 33 + 6 * 5 * 7) * (1 + STATES + LEAVES) + 7 };

/* A run that ends after some steps, or goes on from the values of another one. */
typedef struct {
    lkt_crew crew; /* first, so that hooks find the run */
    float    values[FLOATS];
    float   *begins; /* NULL: a new run */
} run;

/* Visits all values of a checkpoint. */
static void visit(lk_parallel *p, bool load, float *at)
{
    const uint32_t states = lk_optimizer_state_count(&p->optimizer);
    for (uint32_t i = 0; i < LKT_PARAMS; i++)
        for (uint32_t which = 0; which <= states + lk_parallel_groups(p); which++) {
            const size_t   count = lk_shape_count(model[i].shape);
            const uint32_t group = which - states - 1;
            lk_status      status;
            if (which <= states)
                status = load ? lk_parallel_load(p, i, which, at)
                              : lk_parallel_fetch(p, i, which, 0, count, at);
            else
                status = load ? lk_parallel_load_kept(p, i, 0, group, at)
                              : lk_parallel_fetch_kept(p, i, 0, group, 0, count, at);
            assert_int_equal(status, LK_OK);
            at += count;
        }
    if (load)
        assert_int_equal(lk_parallel_load_state(p, 0, at), LK_OK);
    else
        memcpy(at, lk_parallel_state_data(p, 0), lkt_running[0].count * sizeof *at);
}

static void save(lkt_crew *w, lk_parallel *p, uint32_t step, const lk_step_result *result)
{
    (void)result;
    if (step + 1 == w->steps && p->rank == 0)
        visit(p, false, ((run *)w)->values);
}

static void begin(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    float *values = ((run *)w)->begins;
    if (values == NULL || step != w->first)
        return;
    assert_int_equal(lk_parallel_resume(p, step), LK_OK);
    visit(p, true, values);
}

static void hash_part(run *r, const lk_async *schedule, uint32_t ranks, uint32_t first,
                      uint32_t end, char hash[65])
{
    lk_async async       = *schedule;
    async.struct_size    = sizeof async;
    r->crew              = lkt_make_crew(model, "ddp", LEAVES, ranks);
    r->crew.first        = first;
    r->crew.steps        = end;
    r->crew.values_only  = true;
    r->crew.at_step      = begin;
    r->crew.at_result    = save;
    r->crew.options.unused = LK_UNUSED_ZERO;
    r->crew.options.async  = &async;
    r->crew.options.optimizer.mean_square = squares_of(&async);
    lkt_run_crew(&r->crew, hash);
}

static void goes_on(const lk_async *schedule)
{
    static run first, next;
    char       want[65], got[65];
    hash_part(&first, schedule, 2, 0, STEPS, want);
    hash_part(&first, schedule, 3, 0, CUT, got);
    next.begins = first.values;
    for (uint32_t ranks = 1; ranks <= 4; ranks += 3) {
        hash_part(&next, schedule, ranks, CUT, STEPS, got);
        assert_string_equal(got, want);
    }
    const size_t states = squares_of(schedule) > 0 ? 3 : 2, a = 50 * 90;
    for (size_t g = 0; g < LEAVES; g++) /* the control: a value that tasks have read */
        first.values[a * (1 + states + g)] += 1;
    hash_part(&next, schedule, 2, CUT, STEPS, got);
    assert_string_not_equal(got, want);
}

static void it_goes_on_with_other_ranks(void **state)
{
    (void)state;
    goes_on(&schedules[3]);
    goes_on(&schedules[6]);
    goes_on(&schedules[7]);
}

/* ---- Late tasks -------------------------------------------------------------------------- */

/* Stops a rank in its first task of step 1 until its gradient has been applied, which must be that
 * of another rank's copy.  `turn` is that of the task's step, which may be another one. */
static void stop_until_copied(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn,
                              uint32_t term)
{
    const struct timespec pause = { .tv_nsec = 200000 };
    const lki_versions   *v     = p->versions;
    (void)w;
    (void)turn;
    (void)term;
    while (p->rank == 1 && step == 1 && lki_applied(v) <= v->at && !lki_comm_has_failed(p->comm))
        (void)nanosleep(&pause, NULL);
}

static uint32_t copied[3]; /* by rank */

static void count_copied(lkt_crew *w, lk_parallel *p, uint32_t step, const lk_step_result *result)
{
    (void)w;
    (void)step;
    copied[p->rank] += result->duplicated;
}

/* Rank 1 may find no task of its own in step 1.  Then the run is repeated. */
static void late_tasks_are_computed_twice(void **state)
{
    char want[65], got[65];
    (void)state;
    for (int i = 0; i < 3; i++) {
        lk_async       async  = schedules[i];
        const uint32_t before = copied[1];
        hash_with(&async, 1, false, want);
        async.struct_size = sizeof async;
        async.steps       = STEPS;
        for (int round = 0; round < 50 && copied[1] == before; round++) {
            lkt_crew w          = lkt_make_crew(model, "ddp", LEAVES, 3);
            w.steps             = STEPS;
            w.at_term           = stop_until_copied;
            w.at_result         = count_copied;
            w.options.unused    = LK_UNUSED_ZERO;
            w.options.async     = &async;
            w.options.duplicate = true;
            lkt_run_crew(&w, got);
            assert_string_equal(got, want);
        }
        assert_true(copied[1] > before);
    }
    assert_true(copied[0] == copied[1] && copied[2] == copied[1]);
}

/* ---- The arithmetic ---------------------------------------------------------------------- */

enum { COUNT = 40, ROUNDS = 4 };

static const lk_param vector[] = { { .name  = "w", .shape = { 1, { COUNT } },
                                     .init = LK_INIT_UNIFORM, .scale = 0.3f } };

static double gradient(uint64_t step, uint32_t v, uint32_t i, double value)
{
    return (double)lkt_noise(i, (uint32_t)step, v, 3) + 0.2 * value;
}

/* Trains with sgd, a rate of 0.5 and momentum 0.5. */
static void train_vector(const lk_async *async, double *values)
{
    lk_parallel         *p    = NULL;
    lk_comm             *comm = NULL;
    lk_parallel_turn     turn;
    lk_step_result       result;
    lk_parallel_options  o = { .struct_size     = sizeof o,
                               .virtual_workers = LEAVES,
                               .optimizer       = { .kind = LK_SGD, .momentum = 0.5,
                                                    .mean_square = squares_of(async) },
                               .clip_norm       = 0.4,
                               .unused          = LK_UNUSED_ZERO,
                               .async           = async };
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm, vector, 1, &o), LK_OK);
    for (uint64_t step = 0; step < ROUNDS; step++) {
        assert_int_equal(lk_parallel_begin(p, step), LK_OK);
        assert_int_equal(lk_parallel_set_rate(p, 0.5), LK_OK);
        while (lk_parallel_next(p, &turn)) {
            const float *w = lk_parallel_param(p, 0);
            float       *g = lk_parallel_grad(p, 0, 0);
            for (uint32_t i = 0; i < COUNT; i++)
                g[i] += 2 * (float)gradient(turn.step, turn.virtual_worker, i, (double)w[i]);
            lk_parallel_report(p, 0, 1, 2, 2, 0);
        }
        assert_int_equal(lk_parallel_finish(p, 0.5, &result), LK_OK);
        assert_int_equal(result.count, 2 * LEAVES);
    }
    assert_int_equal(lk_parallel_async_step(p).version, ROUNDS * LEAVES);
    assert_true(lk_parallel_async_step(p).staleness_mean == LEAVES - 1);
    for (uint32_t i = 0; i < COUNT; i++)
        values[i] = (double)lk_parallel_value(p, 0, 0)[i];
    lk_parallel_free(p);
    lk_comm_free(comm);
}

/* Does the same in a plain loop.  Tasks of equal length end in turn: gradient t is that of task t,
 * which has read version t + 1 - LEAVES, or 0. */
static void train_plainly(bool by_staleness, double compensation, bool adaptive, double *final)
{
    static double values[ROUNDS * LEAVES + 1][COUNT];
    double        momentum[COUNT] = { 0 }, squares[COUNT] = { 0 }, g[COUNT];
    lk_parallel *p    = NULL;
    lk_comm     *comm = NULL;
    lk_parallel_options o = { .struct_size = sizeof o, .virtual_workers = 1 };
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm, vector, 1, &o), LK_OK);
    for (uint32_t i = 0; i < COUNT; i++)
        values[0][i] = (double)lk_parallel_value(p, 0, 0)[i];
    lk_parallel_free(p);
    lk_comm_free(comm);
    for (uint32_t t = 0; t < ROUNDS * LEAVES; t++) {
        const uint32_t reads = t < LEAVES ? 0 : t + 1 - LEAVES;
        const double   delay = t > reads ? t - reads : 1;
        double         square = 0;
        for (uint32_t i = 0; i < COUNT; i++) {
            g[i] = gradient(t / LEAVES, t % LEAVES, i, values[reads][i]);
            square += g[i] * g[i];
        }
        const double clip = sqrt(square) > 0.4 ? 0.4 / sqrt(square) : 1;
        for (uint32_t i = 0; i < COUNT; i++) {
            double d = clip * g[i];
            squares[i] = 0.95 * squares[i] + 0.05 * d * d;
            d += (adaptive ? compensation / sqrt(squares[i] + 1e-7) : compensation) * d * d *
                 (values[t][i] - values[reads][i]);
            momentum[i]      = 0.5 * momentum[i] + d;
            values[t + 1][i] = values[t][i] - 0.5 / (by_staleness ? delay : 1) * momentum[i];
        }
    }
    memcpy(final, values[ROUNDS * LEAVES], sizeof values[0]);
}

static double distance(const double *a, const double *b)
{
    double most = 0;
    for (uint32_t i = 0; i < COUNT; i++)
        most = fmax(most, fabs(a[i] - b[i]));
    return most;
}

static void arithmetic_is_that_of_the_papers(void **state)
{
    const lk_async rules[] = {
        { .struct_size = sizeof(lk_async) },
        { .struct_size = sizeof(lk_async), .rate_by_staleness = true },
        { .struct_size = sizeof(lk_async), .compensation = 1.5 },
        { .struct_size = sizeof(lk_async), .compensation = 2 },
    };
    double got[COUNT], want[COUNT], other[COUNT];
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        train_vector(&rules[i], got);
        const double factor   = rules[i].compensation;
        const bool   adaptive = squares_of(&rules[i]) > 0, late = rules[i].rate_by_staleness;
        train_plainly(late, factor, adaptive, want);
        assert_true(distance(got, want) < 2e-6);
        train_plainly(!late, factor, adaptive, other);
        assert_true(distance(got, other) > 1e-3);
        train_plainly(late, factor + 1, adaptive, other);
        assert_true(distance(got, other) > 1e-4);
        train_plainly(late, factor, !adaptive, other);
        assert_true(factor <= 0 || distance(got, other) > 1e-4);
    }
}

/* Trains without a rate for a step in which the first gradient to be applied, that of group 1, has
 * no samples.  So the moving means must be the parameters. */
static void means_begin_without_samples(void **state)
{
    const lk_async       async = { .struct_size = sizeof async, .slow_count = 1,
                                   .slow_group = { 0 }, .slow_factor = { 2 } };
    lk_parallel         *p     = NULL;
    lk_comm             *comm  = NULL;
    lk_parallel_turn     turn;
    lk_step_result       result;
    lk_parallel_options  o = { .struct_size     = sizeof o,
                               .virtual_workers = LEAVES,
                               .optimizer       = { .kind = LK_SGD, .ema = 0.5 },
                               .unused          = LK_UNUSED_ZERO,
                               .async           = &async };
    const uint32_t       mean = lk_optimizer_state_count(&o.optimizer);
    (void)state;
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm, vector, 1, &o), LK_OK);
    assert_int_equal(lk_parallel_begin(p, 0), LK_OK);
    assert_int_equal(lk_parallel_set_rate(p, 0), LK_OK);
    while (lk_parallel_next(p, &turn)) {
        const uint32_t samples = turn.step == 0 && turn.virtual_worker == 1 ? 0 : 1;
        lk_parallel_grad(p, 0, 0)[0] += (float)samples;
        lk_parallel_report(p, 0, samples, samples, samples, 0);
    }
    assert_int_equal(lk_parallel_finish(p, 0, &result), LK_OK);
    assert_memory_equal(lk_parallel_value(p, 0, mean), lk_parallel_value(p, 0, 0),
                        COUNT * sizeof(float));
    lk_parallel_free(p);
    lk_comm_free(comm);
}

/* ---- Memory ------------------------------------------------------------------------------ */

static void the_estimate_is_the_memory(void **state)
{
    const lk_async      async = { .struct_size = sizeof async, .groups = 4, .aggregate = 2 };
    lkt_crew            w     = lkt_make_crew(model, "ddp", LEAVES, 1);
    lk_parallel_options o     = w.options;
    const uint32_t      one   = 1;
    lk_parallel_cost    cost;
    lk_parallel        *p    = NULL;
    lk_comm            *comm = NULL;
    (void)state;
    o.unused = LK_UNUSED_ZERO;
    o.async  = &async;
    o.optimizer.mean_square = 0.95;
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm, model, LKT_PARAMS, &o), LK_OK);
    assert_int_equal(lk_parallel_estimate(&cost, model, LKT_PARAMS, &o, &one, 1), LK_OK);
    const lk_parallel *group = p->versions->model;
    assert_int_equal(cost.params + cost.optimizer + cost.gradients + cost.tables,
                     lk_arena_bytes(p->versions->arena) + lk_arena_bytes(group->arena) +
                         group->ops->bytes(group, 0));
    assert_int_equal(cost.sent_gradients + cost.sent_params, 0);
    o.optimizer.mean_square = 0;
    const size_t optimizer  = cost.optimizer;
    assert_int_equal(lk_parallel_estimate(&cost, model, LKT_PARAMS, &o, &one, 1), LK_OK);
    assert_int_equal(cost.optimizer * 3, optimizer * 2); /* adamw has two other states */
    lk_parallel_free(p);
    lk_comm_free(comm);
}

/* ---- Failures ---------------------------------------------------------------------------- */

static void make_infinite(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn)
{
    (void)lkt_make_turn(w, p, step, turn);
    if (step == 1 && turn.virtual_worker == 5)
        lk_parallel_grad(p, 0, 0)[3] = HUGE_VALF;
}

static void a_gradient_that_is_not_finite_is_named(void **state)
{
    lk_async   async = { .struct_size = sizeof async, .groups = 4 };
    lkt_crew   w     = lkt_make_crew(model, "ddp", LEAVES, 3);
    lkt_member members[3];
    (void)state;
    w.options.unused = LK_UNUSED_ZERO;
    w.options.async  = &async;
    w.steps          = STEPS;
    w.make           = make_infinite;
    for (uint32_t r = 0; r < 3; r++)
        members[r] = (lkt_member){ .crew = &w };
    lkt_run_on_one_host(&w, members);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(members[r].status, LK_ENONFINITE);
    assert_non_null(strstr(members[0].failure.message, "virtual workers 4 to 5: step 2: "));
    assert_non_null(strstr(members[0].failure.message, "gradient of 'c'"));
}

/* Makes rank 1 the applier of step 1, and stops it until the others have given up. */
static void stop_as_applier(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    const struct timespec pause = { .tv_nsec = 5000000 };
    uint32_t              none  = 0;
    (void)w;
    if (p->rank != 1 || step != 1)
        return;
    while (!atomic_compare_exchange_strong(&p->versions->common->applier, &none, 2))
        none = 0;
    for (int i = 0; i < 2000 && !lki_comm_has_failed(p->comm); i++)
        (void)nanosleep(&pause, NULL);
}

static void an_applier_that_stops_is_named(void **state)
{
    const lk_comm_options options = { .struct_size = sizeof options, .timeout_ms = 200 };
    lk_async              async   = { .struct_size = sizeof async };
    lkt_crew              w       = lkt_make_crew(model, "ddp", LEAVES, 2);
    lkt_member            members[2];
    lk_comm              *comms[2];
    (void)state;
    w.options.unused = LK_UNUSED_ZERO;
    w.options.async  = &async;
    w.steps          = STEPS;
    w.at_step        = stop_as_applier;
    assert_int_equal(lk_comm_open_threads(comms, 2, &options), LK_OK);
    for (uint32_t r = 0; r < 2; r++)
        members[r] = (lkt_member){ .crew = &w, .comm = comms[r] };
    lkt_run_ranks(lkt_member_main, members, sizeof *members, 2);
    assert_int_equal(members[0].status, LK_ETIMEOUT);
    assert_non_null(strstr(members[0].failure.message, "rank 1 has not ended"));
    for (uint32_t r = 0; r < 2; r++)
        lk_comm_free(comms[r]);
}

static void no_step_is_after_the_last(void **state)
{
    lk_async            async = { .struct_size = sizeof async, .steps = 1 };
    lk_parallel_options o     = lkt_make_crew(model, "ddp", LEAVES, 1).options;
    lk_parallel        *p     = NULL;
    lk_comm            *comm  = NULL;
    (void)state;
    o.unused = LK_UNUSED_ZERO;
    o.async  = &async;
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm, model, LKT_PARAMS, &o), LK_OK);
    assert_int_equal(lk_parallel_resume(p, 1), LK_OK);
    assert_int_equal(lk_parallel_begin(p, 1), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "step 1 begins, but `async.steps` is 1"));
    lk_parallel_free(p);
    lk_comm_free(comm);
}

static void what_does_not_fit_is_refused(void **state)
{
    lk_async            async = { .struct_size = sizeof async, .groups = 3 };
    lkt_crew            w     = lkt_make_crew(model, "ddp", LEAVES, 1);
    lk_parallel_options o     = w.options;
    (void)state;
    o.async  = &async;
    o.unused = LK_UNUSED_ZERO;
    lkt_refuse(model, &o, "`async.groups` 3: 8 virtual workers cannot be divided");
    async.groups    = 4;
    async.aggregate = 3;
    lkt_refuse(model, &o, "`async.aggregate` 3 does not divide the 4 groups");
    async.aggregate    = 2;
    async.compensation = 0.1;
    lkt_refuse(model, &o, "leave out `async.aggregate`");
    async = (lk_async){ .struct_size = sizeof async, .slow_count = 1, .slow_group = { 8 },
                        .slow_factor = { 2 } };
    lkt_refuse(model, &o, "there is no group 8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_change_no_bit),
        cmocka_unit_test(other_schedules_are_other_bits),
        cmocka_unit_test(without_staleness_it_is_ddp),
        cmocka_unit_test(it_goes_on_with_other_ranks),
        cmocka_unit_test(late_tasks_are_computed_twice),
        cmocka_unit_test(arithmetic_is_that_of_the_papers),
        cmocka_unit_test(means_begin_without_samples),
        cmocka_unit_test(the_estimate_is_the_memory),
        cmocka_unit_test(a_gradient_that_is_not_finite_is_named),
        cmocka_unit_test(an_applier_that_stops_is_named),
        cmocka_unit_test(no_step_is_after_the_last),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
