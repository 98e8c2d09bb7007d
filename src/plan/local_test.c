/* local_test.c -- checks the predicted steps of replicas against sums by hand.
 *
 * Goal:    an inner step is that of a run of one replica, and an outer step takes as long as its
 *          bytes and its update, divided by the inner steps of a round.
 * Control: the prediction of ddp beside it, which sends gradients in each step, takes longer.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "plan/predict.h"

#define NEAR(a, b)                                                                                 \
    do {                                                                                           \
        double a_ = (a), b_ = (b);                                                                 \
        if (!(fabs(a_ - b_) <= 1e-12 * fabs(b_)))                                                  \
            fail_msg("%s is %.12g, not %.12g", #a, a_, b_);                                        \
    } while (0)

enum { ELEMENTS = 784 * 32 + 32 + 10 * 32 + 10 };

/* Eight virtual workers of one micro-batch each; with adamw and DiLoCo, every 5 steps. */
static lk_train_config mlp(uint32_t workers, uint32_t replicas)
{
    return (lk_train_config){ .struct_size     = sizeof(lk_train_config),
                              .model           = "mlp",
                              .model_options   = { .hidden = { 32 }, .hidden_count = 1 },
                              .data.source     = "synthetic:images=64,h=28,w=28,c=1,classes=10",
                              .global_batch    = 32,
                              .micro_batch     = 4,
                              .virtual_workers = 8,
                              .workers         = workers,
                              .strategy        = "ddp",
                              .optimizer       = { .kind = LK_ADAMW },
                              .steps           = 10,
                              .schedule        = { .lr = 0.1 },
                              .exchange        = { .groups = replicas,
                                                   .local  = { .steps     = 5,
                                                               .optimizer = LK_OUTER_NESTEROV } },
                              .checkpoint.resume_step = -1 };
}

static const lk_rates rates = { .flops = 1e9, .memory_bandwidth = 1e8, .bandwidth = 1e6,
                                .latency = 1e-3 };
static const double   turn  = 4. * 2 * (2 * 784 * 32 + 3 * 32 * 10) / 1e9; /* of a virtual worker */

static lk_local_prediction predict(lk_local_model *model, double *flops, lk_train_config config,
                                   uint32_t hosts)
{
    lk_local_prediction out = { 0 };
    if (lk_train_model_local(model, flops, &config, hosts, &rates, NULL) != LK_OK ||
        lk_local_predict(&out, model) != LK_OK)
        fail_msg("%s", lk_error_last()->message);
    return out;
}

/* Two hosts have a worker and a replica each.  Inner steps send nothing but a message, and outer
 * steps send the gradients of ddp, in one bucket. */
static void a_round_has_inner_steps_and_an_outer_step(void **state)
{
    lk_local_model            model;
    double                    flops;
    const lk_local_prediction p    = predict(&model, &flops, mlp(2, 2), 2);
    const double              sent = 4. * (ELEMENTS + 6); /* the last bias is padded */
    (void)state;
    NEAR(flops, 8 * turn * 1e9);
    NEAR(p.inner.compute, 4 * turn);
    const double update = 4. * ELEMENTS * (4 + 3 * 3 + 1 + 5 + 4) / 1e8;
    NEAR(p.inner.seconds, 4 * turn + update + 1e-3);
    NEAR(p.outer.sent, sent);
    NEAR(p.outer.exposed, sent / 1e6 + 2e-3);
    NEAR(p.outer.seconds, p.outer.exposed + 4. * ELEMENTS * (7 + 1 + 1 + 5 + 2) / 1e8);
    NEAR(p.mean.seconds, p.inner.seconds + p.outer.seconds / 5);
    NEAR(p.mean.sent, sent / 5);
    NEAR(p.mean.efficiency, 1 - (1e-3 + p.outer.exposed / 5) / p.mean.seconds);
    lk_step_model_deinit(&model.inner);
}

/* Divides the parameters into two fragments.  Expects that inner steps of a delay hide their
 * travel, of half of 101 KB in 53 ms. */
static void inner_steps_of_a_delay_hide_outer_gradients(void **state)
{
    lk_local_model      model;
    lk_local_prediction whole = predict(&model, NULL, mlp(2, 2), 2), part;
    (void)state;
    model.fragments = 2;
    assert_int_equal(lk_local_predict(&part, &model), LK_OK);
    NEAR(part.outer.seconds, whole.outer.seconds / 2);
    NEAR(part.mean.seconds, whole.mean.seconds);
    model.delay = 1;
    assert_int_equal(lk_local_predict(&part, &model), LK_OK);
    NEAR(part.outer.exposed, whole.outer.exposed / 2 - part.inner.seconds);
    model.delay = 2;
    assert_int_equal(lk_local_predict(&part, &model), LK_OK);
    NEAR(part.mean.exposed, part.inner.exposed);
    NEAR(part.mean.communication, whole.mean.communication);
    NEAR(part.mean.seconds, part.inner.seconds + model.outer_update / 5);
    lk_step_model_deinit(&model.inner);
}

/* Three workers serve eight replicas: three, three and two.  The first worker takes three turns
 * and three updates. */
static void a_worker_takes_its_replicas_one_after_another(void **state)
{
    lk_local_model            model;
    const lk_local_prediction p = predict(&model, NULL, mlp(3, 8), 3);
    (void)state;
    assert_int_equal(model.served, 3);
    assert_int_equal(p.mean.rounds, 3);
    NEAR(p.mean.balance, 8. / 9);
    NEAR(p.inner.compute, 3 * turn);
    NEAR(p.inner.seconds, 3 * (turn + 4. * ELEMENTS * (1 + 1 + 5 + 4) / 1e8) + 2e-3);
    lk_step_model_deinit(&model.inner);
}

/* Four hosts have a worker each, and two of them a replica.  An inner step is that of a run of four
 * virtual workers on two hosts. */
static void a_replica_of_two_hosts_sends_gradients(void **state)
{
    lk_local_model            model;
    lk_step_model             alone;
    lk_step_prediction        step;
    lk_train_config           part = mlp(2, 0);
    const lk_local_prediction p    = predict(&model, NULL, mlp(4, 2), 4);
    (void)state;
    part.exchange        = (lk_train_exchange){ 0 };
    part.virtual_workers = 4;
    part.global_batch    = 16;
    assert_int_equal(lk_train_model_step(&alone, NULL, &part, 2, &rates, NULL), LK_OK);
    assert_int_equal(lk_step_predict(&step, &alone), LK_OK);
    assert_true(step.sent > 0);
    NEAR(p.inner.sent, step.sent);
    NEAR(p.inner.seconds, step.seconds + 2e-3);
    lk_step_model_deinit(&alone);
    lk_step_model_deinit(&model.inner);
}

/* Measured updates are those of both workers of the host; a replica has one of them. */
static void measured_updates_are_shared_by_the_workers_of_a_replica(void **state)
{
    lk_calibration  c = { .workers = 2, .held = 1, .size_count = 2, .elements = { 1e3, 1e6 },
                          .update = { 1e-3, 1 } };
    lk_train_config config = mlp(2, 2);
    lk_local_model  model;
    (void)state;
    assert_int_equal(lk_train_model_local(&model, NULL, &config, 1, &rates, &c), LK_OK);
    NEAR(model.inner.update, 1e-6 * 2 * ELEMENTS);
    const double rate = 4. * (2 + 5 + 4) / 2 / 1e-6; /* of adamw, bytes per second of a worker */
    NEAR(model.outer_update, 4. * ELEMENTS * (7 + 1 + (2 + 5 + 2) / 2.) / rate);
    lk_step_model_deinit(&model.inner);
}

/* Plans DiLoCo with and without a compressor.  Expects ddp beside it: the bytes and the time of its
 * own plan. */
static void a_plan_has_ddp_beside_replicas(void **state)
{
    static const char *const compressors[] = { NULL, "topk" };
    lk_train_plan_options    options       = LK_TRAIN_PLAN_OPTIONS_INIT;
    static lk_train_plan     plan, ddp;
    (void)state;
    options.hosts = 2;
    options.rates = rates;
    for (size_t i = 0; i < 2; i++) {
        lk_train_config local = mlp(2, 2), whole = mlp(2, 0);
        local.exchange.compressor  = compressors[i];
        local.exchange.local.steps = 0; /* 500 with an optimizer */
        whole.exchange             = (lk_train_exchange){ 0 };
        assert_int_equal(lk_train_plan_make(&plan, &local, &options), LK_OK);
        assert_int_equal(lk_train_plan_make(&ddp, &whole, &options), LK_OK);
        assert_true(plan.timed && plan.point_count == 0 && ddp.whole.strategy == NULL);
        const lk_parallel_cost *cost = &plan.rows[0].cost.shared;
        assert_int_equal(cost->sent_outer / 500, cost->sent_gradients);
        assert_string_equal(plan.whole.strategy, "ddp");
        NEAR(plan.whole.step.seconds, ddp.rows[0].step.seconds);
        NEAR(plan.whole.bytes, ddp.rows[0].bytes);
        NEAR(plan.rows[0].step.seconds, plan.rows[0].round.mean.seconds);
        assert_true(plan.whole.step.seconds > 1.2 * plan.rows[0].step.seconds);
        lk_train_plan_deinit(&plan);
        lk_train_plan_deinit(&ddp);
    }
}

/* A run under a limit of memory counts replicas as a plan does. */
static void a_limit_counts_replicas(void **state)
{
    lk_train_config config = mlp(2, 8);
    lk_train_cost   cost;
    (void)state;
    config.host_memory = 1; /* the least that the run takes */
    assert_int_equal(lk_train_estimate(&config, 2, &cost), LK_OK);
    assert_true(cost.shared.params > 5 * sizeof(float) * ELEMENTS); /* outer weights, 4 replicas */
    config.host_memory = lk_train_cost_bytes(&cost);
    assert_int_equal(lk_train_fits(&config, 2), LK_OK);
    config.host_memory--;
    assert_int_equal(lk_train_fits(&config, 2), LK_EINVAL);
}

static void other_runs_are_refused(void **state)
{
    lk_train_config local = mlp(2, 2), whole = mlp(2, 0);
    lk_local_model  model;
    lk_step_model   step;
    (void)state;
    whole.exchange = (lk_train_exchange){ 0 };
    assert_int_equal(lk_train_model_local(&model, NULL, &whole, 2, &rates, NULL), LK_EINVAL);
    assert_int_equal(lk_train_model_step(&step, NULL, &local, 2, &rates, NULL), LK_EINVAL);
    assert_int_equal(lk_train_model_local(&model, NULL, &local, 2, &rates, NULL), LK_OK);
    lk_local_prediction out = { 0 };
    model.inner.bandwidth = 0;
    assert_int_equal(lk_local_predict(&out, &model), LK_EINVAL);
    model.inner.bandwidth = 1;
    model.outer_update    = -1;
    assert_int_equal(lk_local_predict(&out, &model), LK_EINVAL);
    model.outer_update = 0;
    model.served       = 0;
    assert_int_equal(lk_local_predict(&out, &model), LK_EINVAL);
    lk_step_model_deinit(&model.inner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_round_has_inner_steps_and_an_outer_step),
        cmocka_unit_test(inner_steps_of_a_delay_hide_outer_gradients),
        cmocka_unit_test(a_worker_takes_its_replicas_one_after_another),
        cmocka_unit_test(a_replica_of_two_hosts_sends_gradients),
        cmocka_unit_test(measured_updates_are_shared_by_the_workers_of_a_replica),
        cmocka_unit_test(a_plan_has_ddp_beside_replicas),
        cmocka_unit_test(a_limit_counts_replicas),
        cmocka_unit_test(other_runs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
