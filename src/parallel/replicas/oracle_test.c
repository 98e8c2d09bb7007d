/* oracle_test.c -- the arithmetic of outer steps.
 *
 * Goal:    outer steps are those of the publications, whole and in fragments.  The mean of replicas
 *          after each step of sgd is ddp.
 * Method:  the oracle has an object for each replica, and averages them in a plain loop.  It takes
 *          the fragments of the parameters from the run, and the steps from the paper: fragment f
 *          is averaged after steps (f + 1) H / F, H + (f + 1) H / F ...
 * Control: without one of the rules, values differ by more than the tolerance.
 */
#include "parallel/replicas/replicas_testing.h"

typedef struct {
    const lk_replicas *rules;
    lk_comm           *comm;
    lk_parallel       *of[LEAVES];
    uint32_t           fragment[LKT_PARAMS]; /* of each parameter */
    float outer[LKT_PARAMS][LKT_ELEMENTS_MAX], momentum[LKT_PARAMS][LKT_ELEMENTS_MAX];
    double delta[LKT_PARAMS][LKT_ELEMENTS_MAX]; /* mean outer gradient, taken but not yet applied */
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

static void oracle_send(oracle *o, uint32_t p)
{
    for (size_t i = 0; i < lk_shape_count(model[p].shape); i++) {
        o->delta[p][i] = 0;
        for (uint32_t g = 0; g < o->rules->count; g++)
            o->delta[p][i] += (double)o->outer[p][i] - (double)lk_parallel_value(o->of[g], p, 0)[i];
        o->delta[p][i] /= o->rules->count;
    }
}

/* An outer step with sgd and its momentum as PyTorch has them. */
static void oracle_receive(oracle *o, uint32_t p, bool first)
{
    static _Thread_local float mixed[LKT_ELEMENTS_MAX];
    const lk_replicas         *r     = o->rules;
    const double               mu    = r->optimizer.momentum;
    const size_t               count = lk_shape_count(model[p].shape);
    for (size_t i = 0; i < count; i++) {
        const double delta = o->delta[p][i];
        const double moved = first ? delta : mu * (double)o->momentum[p][i] + delta;
        o->momentum[p][i]  = (float)moved;
        o->outer[p][i] -= (float)(r->lr * (r->optimizer.nesterov ? delta + mu * moved : moved));
    }
    for (uint32_t g = 0; g < r->count; g++) {
        const float *mine = lk_parallel_value(o->of[g], p, 0);
        for (size_t i = 0; i < count; i++)
            mixed[i] = (float)((1 - r->alpha) * (double)o->outer[p][i] +
                               r->alpha * (double)mine[i]);
        assert_int_equal(lk_parallel_load(o->of[g], p, 0, mixed), LK_OK);
    }
}

/* Sends and receives what is due after `done` steps. */
static void oracle_outer(oracle *o, uint32_t done)
{
    const lk_replicas *r = o->rules;
    const uint32_t     F = r->fragments > 0 ? r->fragments : 1, H = (uint32_t)r->local_steps;
    for (uint32_t p = 0; p < LKT_PARAMS; p++) {
        const uint32_t at = (o->fragment[p] + 1) * H / F; /* its first step */
        if (r->delay > 0 && done >= at + r->delay && (done - at - r->delay) % H == 0)
            oracle_receive(o, p, done == at + r->delay);
        if (done >= at && (done - at) % H == 0)
            oracle_send(o, p);
        if (r->delay == 0 && done >= at && (done - at) % H == 0)
            oracle_receive(o, p, done == at);
    }
}

static void oracle_run(oracle *o, bool states)
{
    const lk_replicas *r     = o->rules;
    lkt_crew           crew  = lkt_make_crew(model, "single", LEAVES / r->count, 1);
    const uint32_t     width = LEAVES / r->count;
    if (!states)
        crew.options.state_count = 0;
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
        oracle_outer(o, step + 1);
    }
    for (uint32_t g = 0; g < r->count; g++)
        lk_parallel_free(o->of[g]);
    lk_comm_free(o->comm);
}

/* Stores the outer weights, and which parameters are a fragment. */
static void save_outer(lkt_crew *w, lk_parallel *p, uint32_t step, const lk_step_result *result)
{
    run *r = (run *)(void *)w;
    (void)result;
    if (step + 1 < w->steps || p->rank > 0)
        return;
    for (uint32_t i = 0; i < LKT_PARAMS; i++) {
        float *at = r->saved + (size_t)i * (LKT_ELEMENTS_MAX + 1);
        memcpy(at, lk_parallel_param(p, i), lk_shape_count(model[i].shape) * sizeof *at);
        at[LKT_ELEMENTS_MAX] = (float)(lki_fragment_of(p->replicas, i) - p->replicas->fragments);
    }
}

/* Returns the largest difference between the outer weights of a run and of the oracle.  `told` are
 * the rules of the oracle. */
static double compare(const lk_replicas *rules, const lk_replicas *told)
{
    run     r    = make_run(rules, "ddp", 2, 1);
    oracle *o    = NULL;
    double  most = 0;
    char    hash[65];
    assert_int_equal(LKI_NEW(&o, 1, "oracle"), LK_OK);
    assert_int_equal(LKI_NEW(&r.saved, VALUES_MAX, "values"), LK_OK);
    r.crew.at_result = save_outer;
    lkt_run_crew(&r.crew, hash);
    for (uint32_t p = 0; p < LKT_PARAMS; p++)
        o->fragment[p] = (uint32_t)r.saved[(size_t)(p + 1) * (LKT_ELEMENTS_MAX + 1) - 1];
    o->rules = told;
    oracle_run(o, rules->delay == 0);
    for (uint32_t p = 0; p < LKT_PARAMS; p++)
        for (size_t i = 0; i < lk_shape_count(model[p].shape); i++)
            most = fmax(most, fabs((double)r.saved[p * (size_t)(LKT_ELEMENTS_MAX + 1) + i] -
                                   (double)o->outer[p][i]));
    lki_free(r.saved);
    lki_free(o);
    return most;
}

static void outer_steps_are_those_of_the_oracle(void **state)
{
    const lk_replicas mean = { sizeof mean, .count = 2, .local_steps = 2, .lr = 1 };
    lk_replicas       lookahead = diloco;
    (void)state;
    lookahead.count = 1;
    assert_true(compare(&diloco, &diloco) < 2e-6);
    assert_true(compare(&mean, &mean) < 2e-6);
    assert_true(compare(&lookahead, &lookahead) < 2e-6);
    for (size_t i = 0; i < sizeof streaming / sizeof streaming[0]; i++) {
        lk_replicas told = streaming[i];
        told.lr          = told.lr > 0 ? told.lr : 1;
        assert_true(compare(&streaming[i], &told) < 2e-6);
    }
}

static void the_oracle_sees_other_rules(void **state)
{
    lk_replicas other = streaming[1];
    (void)state;
    other.alpha = 0.5;
    assert_true(compare(&streaming[1], &other) > 1e-4);
    other       = streaming[1];
    other.delay = 0;
    assert_true(compare(&streaming[1], &other) > 1e-4);
    other    = diloco;
    other.lr = -0.7; /* uphill */
    assert_true(compare(&diloco, &other) > 1e-2);
}

/* Runs with sgd and without clipping, which would be by replica.  The first of `values` are the
 * weights of parameter 0. */
static void run_with_sgd(run *r, float *values)
{
    char hash[129];
    r->crew.options.optimizer = (lk_optimizer){ .kind = LK_SGD };
    r->crew.options.clip_norm = 0;
    r->saved                  = values;
    hash_run(r, hash);
}

/* Returns the largest difference between the weights of replicas that are averaged every so many
 * steps and those of ddp. */
static double distance_from_ddp(uint64_t local_steps)
{
    const lk_replicas mean  = { sizeof mean, .count = 4, .local_steps = local_steps, .lr = 1 };
    run               local = make_run(&mean, "ddp", 2, 1), whole = local;
    float            *a = NULL, *b = NULL;
    double            most = 0;
    whole.crew.options.replicas = NULL;
    assert_int_equal(LKI_NEW(&a, VALUES_MAX, "values"), LK_OK);
    assert_int_equal(LKI_NEW(&b, VALUES_MAX, "values"), LK_OK);
    run_with_sgd(&local, a);
    run_with_sgd(&whole, b);
    for (size_t i = 0; i < lk_shape_count(model[0].shape); i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    lki_free(a);
    lki_free(b);
    return most;
}

static void the_mean_after_each_step_is_a_step_of_ddp(void **state)
{
    (void)state;
    assert_true(distance_from_ddp(1) < 2e-6);
    assert_true(distance_from_ddp(2) > 1e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outer_steps_are_those_of_the_oracle),
        cmocka_unit_test(the_oracle_sees_other_rules),
        cmocka_unit_test(the_mean_after_each_step_is_a_step_of_ddp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
