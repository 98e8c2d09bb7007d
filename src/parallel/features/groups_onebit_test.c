/* groups_onebit_test.c -- onebit-adam: momenta in one bit, from groups and from servers.
 *
 * Goal:    before the freeze every bit is that of adamw without groups.  After it the values are
 *          those of 1-bit Adam in double precision, as DeepSpeed computes it, up to rounding, with
 *          the servers' scales for blocks of 4096 elements.  The result depends on the number of
 *          groups, and not on ranks and hosts.  A run can be resumed by other ranks.  An automatic
 *          freeze is at the step at which the reference's second moment is stable.
 * Control: a reference whose servers forget their error, and one whose servers have a scale for a
 *          rank's slice, give other values.
 */
#include <math.h>

#include "base/thorough_testing.h"
#include "parallel/crew_testing.h"

static const lk_param model[LKT_PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .init = LK_INIT_ONE },
    { .name = "c", .shape = { 3, { 6, 5, 7 } }, .init = LK_INIT_UNIFORM, .scale = 0.2f },
};

enum { LEAVES = 8, GROUPS = 4, FREEZE = 3, STEPS = 8, BLOCK = 4096, SILENT = 40 };

/* An optimizer, and the one whose steps are those before the freeze. */
typedef struct {
    lk_optimizer optimizer, plain;
    double       beta2;
    uint64_t     start, after; /* of lk_exchange */
    uint32_t     freeze;       /* steps before the freeze */
    uint32_t     resumed_at[2];
} method;

static const method methods[] = {
    { { .kind = LK_ONEBIT_ADAM, .weight_decay = 0.01 }, { .kind = LK_ADAMW, .weight_decay = 0.01 },
      0.999, FREEZE + 1, 0, FREEZE, { 5, 1 } },
    { { .kind = LK_ONEBIT_ADAM, .weight_decay = 0.01, .beta2 = 0.5 },
      { .kind = LK_ADAMW, .weight_decay = 0.01, .beta2 = 0.5 },
      0.5, LK_START_AUTO, 3, 5, { 6, 3 } },
};
enum { METHODS = sizeof methods / sizeof methods[0] };

static const method *now; /* the method of the current run */

static lk_exchange exchange_of(uint32_t groups)
{
    lk_exchange x = LK_EXCHANGE_INIT;
    x.groups      = groups;
    x.start       = now->start;
    x.auto_after  = now->after;
    return x;
}

/* Returns the factor of the gradients of a step.  Later ones are smaller, so that the second moment
 * is not stable at once. */
static float scale_of(uint32_t step)
{
    return now->start == LK_START_AUTO && step > 0 ? 0.97f : 1;
}

/* Makes a turn in which some elements have no gradient before the freeze. */
static void make_silent(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn)
{
    for (uint32_t t = 0; t < LKT_PARAMS; t++) {
        const uint32_t param = LKT_PARAMS - 1 - t;
        const float   *value = lk_parallel_param(p, param);
        float         *grad  = lk_parallel_grad(p, 0, t);
        const size_t   from  = param == 0 && step < FREEZE ? SILENT : 0;
        for (size_t i = from; i < lk_shape_count(w->model[param].shape); i++)
            grad[i] += scale_of(step) * (lkt_noise((uint32_t)i, step * 100 + t,
                                                   turn.virtual_worker, 0) + 0.01f * value[i]);
        lk_parallel_grad_ready(p, 0, t);
    }
    lk_parallel_report(p, 0, (double)lkt_noise(turn.virtual_worker, step, 9, 0), 3, 3, 1);
}

static lkt_crew crew_of(const lk_exchange *x, uint32_t steps, uint32_t ranks, uint32_t hosts)
{
    lkt_crew w          = lkt_make_crew(model, ranks % 2 == 0 ? "zero1" : "ddp", LEAVES, ranks);
    w.steps             = steps;
    w.make              = make_silent;
    w.options.unused    = LK_UNUSED_ZERO;
    w.options.exchange  = x;
    w.options.optimizer = now->optimizer;
    w.options.clip_norm = 0;
    w.options.micro_count = 1;
    if (hosts > 1)
        w.hosts = (hosted){ .hosts = hosts, .each = ranks / hosts };
    return w;
}

static void run(const lk_exchange *x, uint32_t steps, uint32_t ranks, uint32_t hosts, char hash[65])
{
    lkt_crew w = crew_of(x, steps, ranks, hosts);
    if (x == NULL)
        w.options.optimizer = now->plain;
    lkt_run_crew(&w, hash);
}

static void steps_before_the_freeze_are_plain(void **state)
{
    char want[65], got[65];
    (void)state;
    for (now = methods; now < methods + METHODS; now++) {
        const lk_exchange x = exchange_of(GROUPS);
        run(NULL, now->freeze, 1, 1, want);
        for (uint32_t ranks = 1; ranks <= 5; ranks += 2) {
            run(&x, now->freeze, ranks, 1, got);
            assert_string_equal(got, want);
        }
        run(NULL, now->freeze + 1, 1, 1, want);
        run(&x, now->freeze + 1, 1, 1, got);
        assert_string_not_equal(got, want);
    }
}

static void results_depend_on_groups_alone(void)
{
    char last[65] = "", want[65], got[65];
    for (uint32_t groups = 2; groups <= 8; groups *= now == methods ? 2 : 4) {
        const lk_exchange x = exchange_of(groups);
        run(&x, STEPS, 1, 1, want);
        assert_string_not_equal(want, last);
        memcpy(last, want, sizeof last);
        for (uint32_t ranks = 2; ranks <= 8; ranks += 3) {
            run(&x, STEPS, ranks, 1, got);
            assert_string_equal(got, want);
        }
        for (uint32_t hosts = 2; hosts <= 4; hosts++) {
            run(&x, STEPS, hosts, hosts, got);
            assert_string_equal(got, want);
        }
        run(&x, STEPS, 6, 2, got);
        assert_string_equal(got, want);
    }
}

static void results_of_all_depend_on_groups_alone(void **state)
{
    (void)state;
    for (now = methods; now < methods + METHODS; now++)
        results_depend_on_groups_alone();
}

/* ---- Bytes ------------------------------------------------------------------------------- */

static uint64_t sent_in_step[STEPS + 1];

static void count_bytes(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    (void)w;
    if (p->rank == 0)
        sent_in_step[step] = lki_wire_count(p->comm->self->wire).bytes_sent;
}

/* Returns the payload that a host sends by the formula. */
static uint64_t formula(uint32_t host, uint32_t hosts, uint32_t groups)
{
    const uint32_t sizes[] = { 4096, 404, 33, 210 }, params[] = { 0, 0, 1, 2 };
    uint64_t       bytes = 0, served = 0;
    for (uint32_t h = 0; h < hosts; h++) {
        const uint32_t first = 4 * h / hosts, end = 4 * (h + 1) / hosts;
        for (uint32_t s = first; s < end; s++) {
            const uint32_t bits  = (sizes[s] + 31) / 32 * 4;
            const bool     scale = s == first || params[s] != params[s - 1];
            if (h == host)
                served += 4 + bits;
            else
                bytes += bits + (scale ? 4 : 0);
        }
        bytes += h == host ? 0 : 16 * 4; /* running state of a micro-batch, padded */
    }
    return bytes * groups / hosts + (hosts - 1) * served;
}

static uint64_t most_by_formula(uint32_t hosts, uint32_t groups)
{
    uint64_t most = 0;
    for (uint32_t h = 0; h < hosts; h++)
        most = formula(h, hosts, groups) > most ? formula(h, hosts, groups) : most;
    return most;
}

static void bytes_are_as_planned(void **state)
{
    static const uint32_t ones[4] = { 1, 1, 1, 1 };
    (void)state;
    now = methods;
    for (uint32_t hosts = 2; hosts <= 4; hosts += 2) {
        uint64_t planned[2], sent[2];
        for (int i = 0; i < 2; i++) {
            const lk_exchange x = exchange_of(hosts << i);
            lkt_crew          w = crew_of(&x, STEPS, hosts, hosts);
            lk_parallel_cost  cost;
            char              hash[65];
            w.options.strategy = "ddp";
            w.at_step          = count_bytes;
            lkt_run_crew(&w, hash);
            sent[i] = sent_in_step[STEPS - 1] - sent_in_step[STEPS - 2];
            assert_int_equal(lk_parallel_estimate(&cost, model, LKT_PARAMS, &w.options, ones,
                                                  hosts), LK_OK);
            planned[i] = cost.sent_gradients;
            assert_true(cost.sent_before > 8 * cost.sent_gradients);
        }
        assert_int_equal(planned[0], most_by_formula(hosts, hosts));
        assert_int_equal(planned[1], most_by_formula(hosts, 2 * hosts));
        assert_int_equal(sent[1] - sent[0],
                         formula(0, hosts, 2 * hosts) - formula(0, hosts, hosts));
    }
}

/* Groups clip their gradients after the freeze, and the sum of all is clipped before it. */
static void clipping_depends_on_groups_alone(void **state)
{
    (void)state;
    now = methods;
    const lk_exchange x = exchange_of(GROUPS);
    char              want[65], got[65];
    run(&x, STEPS, 1, 1, want);
    lkt_crew w          = crew_of(&x, STEPS, 1, 1);
    w.options.clip_norm = 0.3;
    lkt_run_crew(&w, got);
    assert_string_not_equal(got, want);
    memcpy(want, got, sizeof want);
    for (uint32_t hosts = 1; hosts <= 2; hosts++) {
        w                   = crew_of(&x, STEPS, 4, hosts);
        w.options.clip_norm = 0.3;
        lkt_run_crew(&w, got);
        assert_string_equal(got, want);
    }
}

/* ---- Resuming ---------------------------------------------------------------------------- */

enum { WHOLE_MAX = 16, NOTHING = 4 };

/* Everything that a checkpoint holds.  Rank 0 writes it. */
static struct {
    uint32_t step; /* at which it is written */
    float  whole[WHOLE_MAX];
    float  values[LKT_PARAMS][3][LKT_ELEMENTS_MAX], shared[LKT_PARAMS][LKT_ELEMENTS_MAX];
    float  kept[LKT_PARAMS][2][GROUPS][LKT_ELEMENTS_MAX], running[7];
    double norms[2][GROUPS];
    int    forgotten; /* the vector that is not loaded; 3: what is shared of the whole model */
} saved;

static void put(const lk_parallel *p, void *to, const void *from, size_t bytes)
{
    if (p->rank == 0)
        memcpy(to, from, bytes);
}

static void save(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    static _Thread_local float out[LKT_ELEMENTS_MAX];
    double                     norms[GROUPS];
    size_t                     bytes;
    if (step != saved.step)
        return;
    for (uint32_t i = 0; i < LKT_PARAMS; i++) {
        const size_t count = lk_shape_count(w->model[i].shape);
        for (uint32_t which = 0; which < 3; which++) {
            assert_int_equal(lk_parallel_fetch(p, i, which, 0, count, out), LK_OK);
            put(p, saved.values[i][which], out, count * sizeof *out);
        }
        assert_string_equal(lk_parallel_kept_name(p, i, 0), "error");
        assert_string_equal(lk_parallel_kept_name(p, i, 1), "server_error");
        assert_null(lk_parallel_kept_name(p, i, 2));
        for (uint32_t which = 0; which < 2; which++)
            for (uint32_t g = 0; g < lk_parallel_kept_groups(p, which); g++) {
                const size_t half = count / 2;
                assert_int_equal(lk_parallel_fetch_kept(p, i, which, g, 0, half, out), LK_OK);
                assert_int_equal(lk_parallel_fetch_kept(p, i, which, g, half, count - half,
                                                        out + half), LK_OK);
                put(p, saved.kept[i][which][g], out, count * sizeof *out);
            }
        put(p, saved.shared[i], lk_parallel_shared(p, i, &bytes), count * sizeof *out);
    }
    put(p, saved.running, lk_parallel_state_data(p, 0), sizeof saved.running);
    const float *whole = lk_parallel_shared(p, LKT_PARAMS, &bytes);
    assert_true(bytes <= sizeof saved.whole && (bytes > 0) == (now->start == LK_START_AUTO));
    if (whole != NULL)
        put(p, saved.whole, whole, bytes);
    for (uint32_t which = 0; which < 2; which++) {
        assert_int_equal(lk_parallel_kept_norms(p, which, norms), LK_OK);
        put(p, saved.norms[which], norms, lk_parallel_kept_groups(p, which) * sizeof *norms);
    }
}

static void load(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    double norms[GROUPS];
    (void)w;
    if (step != saved.step)
        return;
    for (uint32_t i = 0; i < LKT_PARAMS; i++) {
        for (uint32_t which = 0; which < 3; which++)
            assert_int_equal(lk_parallel_load(p, i, which, saved.values[i][which]), LK_OK);
        for (uint32_t which = 0; which < 2; which++)
            for (uint32_t g = 0; g < lk_parallel_kept_groups(p, which); g++)
                if ((int)which != saved.forgotten)
                    assert_int_equal(lk_parallel_load_kept(p, i, which, g,
                                                           saved.kept[i][which][g]), LK_OK);
        if (saved.forgotten != 2)
            assert_int_equal(lk_parallel_load_shared(p, i, saved.shared[i]), LK_OK);
    }
    if (now->start == LK_START_AUTO && saved.forgotten != 3)
        assert_int_equal(lk_parallel_load_shared(p, LKT_PARAMS, saved.whole), LK_OK);
    assert_int_equal(lk_parallel_load_state(p, 0, saved.running), LK_OK);
    for (uint32_t which = 0; which < 2 && saved.forgotten == NOTHING; which++) {
        assert_int_equal(lk_parallel_kept_norms(p, which, norms), LK_OK);
        assert_memory_equal(norms, saved.norms[which],
                            lk_parallel_kept_groups(p, which) * sizeof *norms);
    }
}

/* Runs from step `first`, and writes the hash of the values. */
static void run_from(uint32_t first, uint32_t ranks, uint32_t hosts, char hash[65])
{
    const lk_exchange x = exchange_of(GROUPS);
    lkt_crew          w = crew_of(&x, STEPS, ranks, hosts);
    w.first             = first;
    w.values_only       = true;
    w.at_step           = first > 0 ? load : save;
    lkt_run_crew(&w, hash);
}

/* Resumes at a step, and without some of what a checkpoint has. */
static void resume(uint32_t step)
{
    const bool frozen = step > now->freeze;
    char       want[65], got[65];
    saved.step      = step;
    saved.forgotten = NOTHING;
    for (uint32_t hosts = 1; hosts <= 2; hosts++) {
        run_from(0, 3, hosts == 1 ? 1 : 3, want);
        run_from(step, 1, 1, got);
        assert_string_equal(got, want);
        run_from(step, 6, 2, got);
        assert_string_equal(got, want);
        run_from(step, 8, 1, got);
        assert_string_equal(got, want);
    }
    for (saved.forgotten = frozen ? 0 : 3; saved.forgotten < NOTHING; saved.forgotten++) {
        if (saved.forgotten == 3 && now->start != LK_START_AUTO)
            continue;
        run_from(step, 3, 1, got);
        assert_string_not_equal(got, want);
    }
}

static void any_ranks_and_hosts_resume(void **state)
{
    (void)state;
    for (now = methods; now < methods + METHODS; now++)
        for (uint32_t i = 0; i < 2; i++)
            resume(now->resumed_at[i]);
}

/* ---- The reference ----------------------------------------------------------------------- */

/* Names the mistakes that the reference makes on purpose. */
typedef enum { RIGHT, FORGETS_SERVER, SCALE_OF_SLICE, SHARES_ERROR } mistake;

typedef struct {
    double p[LKT_ELEMENTS_MAX], m[LKT_ELEMENTS_MAX], v[LKT_ELEMENTS_MAX];
    double worker[LEAVES][LKT_ELEMENTS_MAX], server[LKT_ELEMENTS_MAX], mean[LKT_ELEMENTS_MAX];
} tensor;

static tensor reference[LKT_PARAMS];

/* The mean gradient of a group, as make_silent() makes it; counts are 3. */
static double gradient_of(const tensor *t, uint32_t param, size_t i, uint32_t step, uint32_t group)
{
    const uint32_t width = LEAVES / GROUPS, term = LKT_PARAMS - 1 - param;
    double         sum   = 0;
    for (uint32_t v = group * width; v < (group + 1) * width; v++)
        sum += (double)lkt_noise((uint32_t)i, step * 100 + term, v, 0) + 0.01 * t->p[i];
    return param == 0 && i < SILENT && step < FREEZE ? 0
                                                     : (double)scale_of(step) * sum / (3 * width);
}

static double sign_of(double x)
{
    return x < 0 ? -1 : 1;
}

/* Compresses elements that are present to scale and sign, and writes the residual. */
static void compress_to(const tensor *t, size_t first, size_t count, const double *x, double *said,
                        double *error)
{
    double squares = 0, present = 0;
    for (size_t i = first; i < first + count; i++) {
        squares += t->v[i] == 0 ? 0 : x[i] * x[i];
        present += t->v[i] != 0;
    }
    const double scale = present == 0 ? 0 : sqrt(squares / present);
    for (size_t i = first; i < first + count; i++) {
        said[i]  = t->v[i] == 0 ? 0 : scale * sign_of(x[i]);
        error[i] = t->v[i] == 0 ? 0 : x[i] - said[i];
    }
}

/* Computes the new momentum of a tensor (DeepSpeed, compressed_allreduce()). */
static void reference_momentum(tensor *t, uint32_t param, size_t count, uint32_t step, mistake how)
{
    static double x[LKT_ELEMENTS_MAX], said[LKT_ELEMENTS_MAX];
    for (size_t i = 0; i < count; i++)
        t->mean[i] = how == FORGETS_SERVER ? 0 : t->server[i];
    for (uint32_t g = 0; g < GROUPS; g++) {
        double *error = t->worker[how == SHARES_ERROR ? 0 : g];
        for (size_t i = 0; i < count; i++)
            x[i] = 0.9 * t->m[i] + 0.1 * gradient_of(t, param, i, step, g) + error[i];
        compress_to(t, 0, count, x, said, error);
        for (size_t i = 0; i < count; i++)
            t->mean[i] += said[i] / GROUPS;
    }
    const size_t block = how == SCALE_OF_SLICE ? (count + 1) / 2 : BLOCK;
    for (size_t at = 0; at < count; at += block)
        compress_to(t, at, at + block < count ? block : count - at, t->mean, t->m, t->server);
}

static double sums_of_v[STEPS + 1]; /* [n]: after n updates, corrected */

static void reference_step(tensor *t, uint32_t param, size_t count, uint32_t step, double lr,
                           mistake how)
{
    const bool   frozen = step >= now->freeze;
    const double seconds = frozen ? now->freeze : step + 1;
    const double c1 = 1 - pow(0.9, step + 1), c2 = 1 - pow(now->beta2, seconds);
    const double decay = model[param].no_decay ? 0 : 0.01;
    if (frozen)
        reference_momentum(t, param, count, step, how);
    for (size_t i = 0; i < count && !frozen; i++) {
        double g = 0;
        for (uint32_t k = 0; k < GROUPS; k++)
            g += gradient_of(t, param, i, step, k) / GROUPS;
        t->m[i] = 0.9 * t->m[i] + 0.1 * g;
        t->v[i] = now->beta2 * t->v[i] + (1 - now->beta2) * g * g;
        sums_of_v[step + 1] += t->v[i] / c2;
    }
    for (size_t i = 0; i < count; i++)
        t->p[i] = t->p[i] * (1 - lr * decay) -
                  lr * t->m[i] / c1 / (sqrt(t->v[i]) / sqrt(c2) + 1e-8);
}

static float  trained[LKT_PARAMS][LKT_ELEMENTS_MAX], began[LKT_PARAMS][LKT_ELEMENTS_MAX];
static double rates[STEPS];

static void take(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    for (uint32_t i = 0; i < LKT_PARAMS && step == 0; i++)
        memcpy(began[i], lk_parallel_param(p, i),
               lk_shape_count(w->model[i].shape) * sizeof(float));
}

static void take_last(lkt_crew *w, lk_parallel *p, uint32_t step, const lk_step_result *result)
{
    (void)result;
    for (uint32_t i = 0; i < LKT_PARAMS && step + 1 == STEPS; i++)
        memcpy(trained[i], lk_parallel_param(p, i),
               lk_shape_count(w->model[i].shape) * sizeof(float));
}

/* Returns the largest difference of a value after all steps, over the largest change. */
static double difference(mistake how)
{
    double most = 0, change = 0;
    memset(sums_of_v, 0, sizeof sums_of_v);
    for (uint32_t p = 0; p < LKT_PARAMS; p++) {
        const size_t count = lk_shape_count(model[p].shape);
        memset(&reference[p], 0, sizeof reference[p]);
        for (size_t i = 0; i < count; i++)
            reference[p].p[i] = (double)began[p][i];
        for (uint32_t s = 0; s < STEPS; s++)
            reference_step(&reference[p], p, count, s, rates[s], how);
        for (size_t i = 0; i < count; i++) {
            most   = fmax(most, fabs(reference[p].p[i] - (double)trained[p][i]));
            change = fmax(change, fabs((double)began[p][i] - (double)trained[p][i]));
        }
    }
    return most / change;
}

/* Checks that the freeze is at the first step at which the second moment is stable. */
static void check_freeze(void)
{
    const uint32_t span = (uint32_t)lround(1 / (1 - now->beta2));
    uint32_t       step = span + 1; /* as many updates */
    if (now->start != LK_START_AUTO)
        return;
    while (sums_of_v[step] < 0.96 * sums_of_v[step - span] || step + 1 < now->after)
        step++;
    print_message("sums %.3g %.3g %.3g %.3g %.3g\n", sums_of_v[1], sums_of_v[2], sums_of_v[3],
                  sums_of_v[4], sums_of_v[5]);
    assert_int_equal(step + 1, now->freeze);
}

static void values_are_those_of(const method *m)
{
    now                 = m;
    const lk_exchange x = exchange_of(GROUPS);
    lkt_crew          w = crew_of(&x, STEPS, 1, 1);
    char              hash[65];
    w.at_step   = take;
    w.at_result = take_last;
    lkt_run_crew(&w, hash);
    for (uint32_t s = 0; s < STEPS; s++)
        rates[s] = 0.01; /* of lkt_step() */
    print_message("difference %.2g; servers that forget %.2g, scale of a slice %.2g, one error for "
                  "all %.2g\n", difference(RIGHT), difference(FORGETS_SERVER),
                  difference(SCALE_OF_SLICE), difference(SHARES_ERROR));
    assert_true(difference(RIGHT) < 1e-4);
    assert_true(difference(FORGETS_SERVER) > 1e-2);
    assert_true(difference(SCALE_OF_SLICE) > 1e-2);
    assert_true(difference(SHARES_ERROR) > 1e-2);
    for (size_t i = 0; i < SILENT && now->freeze == FREEZE; i++) /* absent elements decay only */
        assert_true(fabsf(trained[0][i]) <= fabsf(began[0][i]));
    (void)difference(RIGHT);
    check_freeze();
}

static void values_are_those_of_the_reference(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < METHODS; i++)
        values_are_those_of(&methods[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_before_the_freeze_are_plain),
        cmocka_unit_test(results_of_all_depend_on_groups_alone),
        cmocka_unit_test(clipping_depends_on_groups_alone),
        cmocka_unit_test(any_ranks_and_hosts_resume),
        cmocka_unit_test(values_are_those_of_the_reference),
        cmocka_unit_test(bytes_are_as_planned),
    };
    return cmocka_run_group_tests_name("parallel.features.groups_onebit", tests, NULL, NULL);
}
