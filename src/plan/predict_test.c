/* predict_test.c -- checks the predicted time of a step against a simulation, against the bytes
 * that the strategies estimate, and against published measurements. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "plan/predict.h"

#define NEAR(a, b, part)                                                                           \
    do {                                                                                           \
        double a_ = (a), b_ = (b);                                                                 \
        if (!(fabs(a_ - b_) <= (part)*fabs(b_)))                                                   \
            fail_msg("%s is %.12g, not %.12g", #a, a_, b_);                                        \
    } while (0)

static lk_step_prediction predict(lk_step_model model)
{
    lk_step_prediction out;
    if (lk_step_predict(&out, &model) != LK_OK)
        fail_msg("%s", lk_error_last()->message);
    return out;
}

/* Checks that a worker with one more virtual worker makes the other workers wait. */
static void one_more_virtual_worker_delays_all_workers(void **state)
{
    lk_step_prediction p = predict((lk_step_model){
        .workers = 3, .hosts = 1, .virtual_workers = 8, .forward = 1, .backward = 2, .update = 1 });
    (void)state;
    assert_int_equal(p.rounds, 3);
    NEAR(p.balance, 8. / 9, 1e-12);
    NEAR(p.compute, 9, 1e-12);
    NEAR(p.seconds, 10, 1e-12);
    NEAR(p.efficiency, (8. / 3 * 3 + 1) / 10, 1e-12);
    assert_true(p.sent == 0 && p.exposed == 0);
}

/* Simulates buckets one by one.  A bucket is sent when it is ready and the link is free. */
static double simulate(const lk_step_model *m, double parts)
{
    double buckets = fmax(1, ceil(m->gradient_bytes / m->bucket_bytes)), h = m->hosts, free_at = 0;
    double each = ceil(log2(h)) * m->latency * ceil(parts) +
                  parts * (h - 1) / h * m->gradient_bytes / buckets / m->bandwidth;
    for (double b = 1; b <= buckets; b++)
        free_at = fmax(free_at, m->backward * b / buckets) + each;
    return free_at - m->backward;
}

/* Simulates units one by one.  A unit is gathered while the previous unit is computed. */
static double simulate_gathers(const lk_step_model *m)
{
    double buckets = fmax(1, ceil(m->gradient_bytes / m->bucket_bytes)), h = m->hosts;
    double each = ceil(log2(h)) * m->latency + (h - 1) / h * m->gradient_bytes / buckets /
                                                   m->bandwidth;
    double there = each, computed = 0;
    for (double b = 1; b <= buckets; b++) {
        double begun = fmax(there, computed);
        computed     = begun + m->forward / buckets;
        there        = begun + each;
    }
    return computed - m->forward;
}

static void exposed_time_equals_a_simulation(void **state)
{
    (void)state;
    for (uint32_t hosts = 2; hosts <= 64; hosts *= 2)
        for (double bandwidth = 1e6; bandwidth < 1e11; bandwidth *= 7) {
            lk_step_model m = { .workers         = hosts,
                                .hosts           = hosts,
                                .virtual_workers = hosts,
                                .forward         = 0.05,
                                .backward        = 0.1,
                                .gradient_bytes  = 1e8,
                                .bucket_bytes    = 7e6,
                                .bandwidth       = bandwidth,
                                .latency         = 3e-5 };
            NEAR(predict(m).exposed, simulate(&m, 2), 1e-9);
            NEAR(predict(m).seconds, 0.15 + simulate(&m, 2), 1e-9);
            m.stage       = 1;
            double gather = 15 * ceil(log2(hosts)) * 3e-5 +
                            (hosts - 1.) / hosts * m.gradient_bytes / bandwidth;
            NEAR(predict(m).exposed, simulate(&m, 1) + gather, 1e-9);
            m.stage = 3; /* in backward, gathers use the link for as long as sums do */
            NEAR(predict(m).exposed, simulate(&m, 2) + simulate_gathers(&m), 1e-9);
        }
}

/* Predicts a step of four micro-batches, with ddp and with zero2.  Expects that only the last one
 * hides communication. */
static void only_the_last_micro_batch_hides_communication(void **state)
{
    lk_step_model m = { .workers = 4, .hosts = 4, .virtual_workers = 4, .stage = 1,
                        .micro_count = 4, .forward = 2, .backward = 4, .gradient_bytes = 8e6,
                        .bucket_bytes = 1e6, .bandwidth = 1e6 };
    double        parameters = 0.75 * 8, last = 1. / 8 + parameters - 1;
    (void)state;
    NEAR(predict(m).exposed, last + parameters, 1e-12);
    m.stage = 2;
    NEAR(predict(m).exposed, last + parameters, 1e-12);
}

/* Predicts rounds of zero2.  Expects that the next round's forward pass of 2 s hides sums that are
 * unsent when backward ends: at first all (0.5 s), with a slower network 2 s of 12.5 s.  Nothing
 * hides the unsent sums of the last round. */
static void a_round_hides_unsent_sums_of_the_previous_round(void **state)
{
    lk_step_model m = { .workers = 2, .hosts = 2, .virtual_workers = 6, .stage = 2, .forward = 2,
                        .backward = 4, .gradient_bytes = 8e6, .bucket_bytes = 1e6,
                        .bandwidth = 1e6 };
    (void)state;
    NEAR(predict(m).exposed, 0.5 + 4, 1e-12);
    m.bandwidth = 2.5e5;
    NEAR(predict(m).exposed, 2 * 10.5 + 12.5 + 16, 1e-12);
}

/* Checks that zero3 gathers 8 units, for which the link needs 6 s, in each pass of four
 * micro-batches.  A forward pass of half a second and a backward pass of 1 s each hide 7/8 of their
 * own duration.  In the last backward pass, sums take another 6 s. */
static void every_micro_batch_of_zero3_gathers(void **state)
{
    lk_step_model m = { .workers = 4, .hosts = 4, .virtual_workers = 4, .stage = 3,
                        .micro_count = 4, .forward = 2, .backward = 4, .gradient_bytes = 8e6,
                        .bucket_bytes = 1e6, .bandwidth = 1e6 };
    const double  forward = 6 - 0.5 * 7 / 8, backward = 6 - 1. * 7 / 8, last = 12 - 1. * 7 / 8;
    (void)state;
    NEAR(predict(m).exposed, 4 * forward + 3 * backward + last, 1e-12);
    NEAR(predict(m).communication, 6 + 8 * 6, 1e-12);
    NEAR(predict(m).sent, 54e6, 1e-12);
    m.virtual_workers = 8; /* two rounds */
    NEAR(predict(m).exposed, 2 * (4 * forward + 3 * backward + last), 1e-12);
    m.shard_hosts = 1; /* nothing to gather; sums go to owners and, completed, to other hosts */
    NEAR(predict(m).exposed, 2 * (12 - 7. / 8), 1e-12);
}

/* Checks times for two hosts, 1 MB/s and layers of unequal sizes.  Computed by hand:
 *
 *      ddp     The link is busy for 8 s, and backward takes 10 s.  A tenth of the gradients (0.8 s)
 *              is ready after 6 s, the rest (7.2 s) only at the end, as with a large embedding:
 *              7.2 s are exposed.  With 8 equal buckets it would be 1 s.
 *      zero2   Sums take 2, 1 and 1 s.  The first two are ready after 1 and 2 s.  Memory for two
 *              delays the third (2 s) until the first is sent, at 3 s.  So sums are sent by 3, 4
 *              and 6 s, with 4 s of backward.  Then parameters take 4 s.
 *      zero3   With the gathers of backward, the link needs 4, 2 and 2 s.  The sums are ready after
 *              1, 2 and 5 + 2 s and are sent by 5, 7 and 9 s, with 4 s of backward.  A forward
 *              pass of 1/2, 1 and 1/2 s waits 1, 1/2 and 1 s for its units.
 */
static void communication_of_a_large_layer_is_exposed(void **state)
{
    lk_step_piece last[]   = { { .buckets = 1, .gradients = 0.1, .backward = 0.6 },
                               { .buckets = 7, .gradients = 0.9, .backward = 0.4 } };
    lk_step_piece unlike[] = {
        { 1, 0.5, 0.5, .forward = 0.25, .backward = 0.25, .gathers = { { 1, 1 }, { 1, 1 } } },
        { 1, 0.25, 0.25, .forward = 0.5, .backward = 0.25, .gathers = { { 1, 1 }, { 1, 1 } } },
        { 1, 0.25, 0.25, .forward = 0.25, .backward = 0.5, .gathers = { { 1, 1 }, { 1, 1 } } },
    };
    lk_step_model m = { .workers         = 2,
                        .hosts           = 2,
                        .virtual_workers = 2,
                        .forward         = 2,
                        .backward        = 10,
                        .gradient_bytes  = 8e6,
                        .bucket_bytes    = 1e6,
                        .bandwidth       = 1e6 };
    (void)state;
    NEAR(predict(m).exposed, 1, 1e-12);
    m.pieces      = last;
    m.piece_count = 2;
    NEAR(predict(m).exposed, 7.2, 1e-12);
    NEAR(predict(m).communication, 8, 1e-12);
    m.latency = 0.1; /* 7 of 8 buckets are sent after backward, with messages in both directions */
    NEAR(predict(m).exposed, 7.2 + 1.4, 1e-12);
    NEAR(predict(m).communication, 8 + 1.6, 1e-12);
    m = (lk_step_model){ .workers         = 2,
                         .hosts           = 2,
                         .virtual_workers = 2,
                         .stage           = 2,
                         .forward         = 2,
                         .backward        = 4,
                         .gradient_bytes  = 8e6,
                         .pieces          = unlike,
                         .piece_count     = 3,
                         .bandwidth       = 1e6 };
    NEAR(predict(m).exposed, 2 + 4, 1e-12);
    m.stage = 3;
    NEAR(predict(m).exposed, 5 + 2.5, 1e-12);
    NEAR(predict(m).sent, 12e6, 1e-12);
    /* The first unit is still in memory when backward begins.  The link needs 2, 2 and 2 s; sums
     * are sent by 3, 5 and 7 s. */
    unlike[0].gathers[0][1] = 0;
    NEAR(predict(m).exposed, 3 + 2.5, 1e-12);
    NEAR(predict(m).communication, 10, 1e-12);
    NEAR(predict(m).sent, 10e6, 1e-12);
    /* In a second round the last unit is also in memory when the forward pass begins.  Its half
     * second hides half a second of the next gather, and the next second hides a second of the
     * first unit's. */
    unlike[0].gathers[1][1] = unlike[2].gathers[1][0] = 0;
    m.virtual_workers                                 = 4;
    NEAR(predict(m).exposed, 2 * 3 + 2.5 + 1.5, 1e-12);
    NEAR(predict(m).sent, 10e6 + 9e6, 1e-12);
}

/* Expects that with V = N, stages 0 to 3 send 2, 2, 2 and 3 times (H-1)/H of the model. */
static void zero_stages_send_the_published_bytes(void **state)
{
    static const double parts[] = { 2, 2, 2, 3 };
    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++) {
        lk_step_model m = { .workers         = 8,
                            .hosts           = 8,
                            .virtual_workers = 8,
                            .stage           = stage,
                            .forward         = 1,
                            .backward        = 2,
                            .gradient_bytes  = 8e6,
                            .bandwidth       = 1e6 };
        NEAR(predict(m).sent, parts[stage] * 7e6, 1e-12);
        m.shard_hosts = 2; /* in 4 groups: 1/2 + 2 * 3/4 * 1/2 of the gradients; parameters */
        NEAR(predict(m).sent, stage < 3 ? 14e6 : 8e6 * (0.5 + 2 * 0.75 / 2 + 2 * 0.5), 1e-12);
    }
}

/* Compares the subtrees that the prediction counts with those of the strategies' estimate, for many
 * values of V, N and H. */
static void sent_bytes_are_those_of_the_estimate(void **state)
{
    static const struct {
        const char *name;
        uint32_t    stage, part; /* part: all hosts share one model copy (1), or half of them (2) */
    } strategies[] = { { "ddp", 0, 1 }, { "zero1", 1, 1 }, { "zero2", 2, 1 }, { "hybrid", 3, 2 } };
    const lk_param param = { .name = "w", .shape = { 1, { 1 << 24 } } };
    uint32_t       sizes[8];
    (void)state;
    for (uint32_t v = 2; v <= 33; v++)
        for (uint32_t n = 2; n <= v && n <= 12; n++)
            for (uint32_t i = 0; i < 4 * 8; i++) {
                uint32_t            hosts   = 1 + i / 4, group = hosts / strategies[i % 4].part;
                lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                                .strategy        = strategies[i % 4].name,
                                                .virtual_workers = v,
                                                .grad_algorithm  = (lk_tree_algorithm)(v % 3),
                                                .shard_hosts     = group };
                lk_parallel_cost    cost;
                if (hosts < 2 || hosts > n || group * strategies[i % 4].part != hosts ||
                    (i % 4 > 0 && n % hosts != 0)) /* hosts must have equally many workers */
                    continue;
                for (uint32_t h = 0; h < hosts; h++)
                    sizes[h] = (h + 1) * n / hosts - h * n / hosts;
                assert_int_equal(lk_parallel_estimate(&cost, &param, 1, &options, sizes, hosts),
                                 LK_OK);
                lk_step_piece      one = { 1, 1, 1, 1, 1, { { 1, 0 }, { 0, 0 } } };
                lk_step_prediction p   = predict((lk_step_model){ .workers = n, .hosts = hosts,
                                                                  .virtual_workers = v,
                                                                  .stage = strategies[i % 4].stage,
                                                                  .linear         = v % 3 == 2,
                                                                  .shard_hosts    = group,
                                                                  .forward = 1, .backward = 1,
                                                                  .gradient_bytes = 4 << 24,
                                                                  .pieces         = &one,
                                                                  .piece_count    = 1,
                                                                  .bandwidth      = 1e9 });
                NEAR(p.sent, (double)(cost.sent_gradients + cost.sent_params), 0.01);
                NEAR(p.communication, p.sent / 1e9, 1e-12);
            }
}

/* Checks the measurements of Goyal et al. (2017): ResNet-50 on 32 servers of 8 GPUs with 50
 * Gbit/s.  29 h on one server mean 232 ms per step of 256 images, of which backward takes 120 ms.
 * One hour on all servers is 0.906 of the ideal.  Their step lies between a step that hides all it
 * can and a step that hides nothing. */
static void predictions_agree_with_goyal_et_al(void **state)
{
    const double  measured = 29. / 32, images = 1281167. * 90, step = 29 * 3600 / (images / 256);
    lk_step_model m      = { .workers         = 256,
                             .hosts           = 32,
                             .virtual_workers = 256,
                             .forward         = step - 0.120,
                             .backward        = 0.120,
                             .gradient_bytes  = 4 * 25557032.,
                             .bandwidth       = 50e9 / 8 };
    double        hidden = predict(m).efficiency;
    (void)state;
    NEAR(step, 0.2318, 1e-3);
    NEAR(hidden, 0.967, 1e-3);
    NEAR(hidden / measured, 1.067, 1e-3);
    m.bucket_bytes = m.gradient_bytes; /* one bucket: nothing is sent before the end */
    double open    = predict(m).efficiency;
    NEAR(open, 0.880, 1e-3);
    assert_true(open < measured && measured < hidden);
}

static void invalid_models_are_refused(void **state)
{
    const lk_step_model good   = { .workers         = 4,
                                   .hosts           = 2,
                                   .virtual_workers = 4,
                                   .forward         = 1,
                                   .backward        = 1,
                                   .gradient_bytes  = 4,
                                   .bandwidth       = 1 };
    lk_step_model       bad[6] = { good, good, good, good, good, good };
    lk_step_prediction  out;
    (void)state;
    bad[0].virtual_workers = 3;
    bad[1].hosts           = 5;
    bad[2].bandwidth       = 0;
    bad[3].stage           = 4;
    bad[4].forward         = (double)NAN;
    bad[5].workers         = 0;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(lk_step_predict(&out, &bad[i]), LK_EINVAL);
}

/* ---- From a configuration ---------------------------------------------------------------- */

static lk_train_config mlp(void)
{
    return (lk_train_config){ .struct_size     = sizeof(lk_train_config),
                              .model           = "mlp",
                              .model_options   = { .hidden = { 32 }, .hidden_count = 1 },
                              .data.source     = "synthetic:images=64,h=28,w=28,c=1,classes=10",
                              .global_batch    = 32,
                              .micro_batch     = 2,
                              .virtual_workers = 4,
                              .workers         = 2,
                              .steps           = 1,
                              .schedule        = { .lr = 0.1 },
                              .checkpoint.resume_step = -1 };
}

/* Frees `m` and fills in the model of the configuration's step. */
static void model_of(lk_step_model *m, double *flops, lk_train_config *config, uint32_t hosts,
                     const lk_rates *rates, const lk_calibration *measured)
{
    lk_step_model_deinit(m);
    if (lk_train_model_step(m, flops, config, hosts, rates, measured) != LK_OK)
        fail_msg("%s", lk_error_last()->message);
}

/* Predicts a step from a given rate.  Expects time for forward and parameter gradients of both
 * layers, and for the input gradient of one layer. */
static void compute_time_is_operations_divided_by_the_rate(void **state)
{
    lk_train_config config = mlp();
    lk_rates        rates  = { .flops = 1e9, .memory_bandwidth = 1e9 };
    lk_step_model   m = { 0 };
    double sample = 2 * (2 * 784 * 32 + 3 * 32 * 10), flops, elements = 784 * 32 + 32 * 11 + 10;
    (void)state;
    model_of(&m, &flops, &config, 1, &rates, NULL);
    NEAR(flops, 32 * sample, 1e-12);
    NEAR(m.forward + m.backward, 8 * sample / 1e9, 1e-12);
    NEAR(m.backward, 2 * m.forward, 1e-12);
    assert_int_equal(m.micro_count, 4);
    NEAR(m.gradient_bytes, 4 * elements, 1e-12);
    NEAR(m.parameter_bytes, 4 * elements, 1e-12);
    NEAR(m.update, 4 * elements * (2 + 3 + (2 + 5) / 2.) / 1e9, 1e-12);
    assert_int_equal(predict(m).rounds, 2);
    lk_step_model_deinit(&m);
}

/* Checks the pieces.  The 25120 elements of the first layer are in seven buckets of 4096 elements,
 * of which the last is smaller; all complete when backward ends.  The other layer (320 elements
 * and, padded, 16) completes earlier, in one bucket. */
static void pieces_follow_the_layers_of_backward(void **state)
{
    lk_train_config config = mlp();
    lk_rates        rates  = { .flops = 1e9, .bandwidth = 1e6 };
    lk_step_model   m      = { 0 };
    const double    first = 784 * 32 * 2 * 2, other = 32 * 10 * 3 * 2; /* operations of a sample */
    (void)state;
    config.bucket_bytes       = 4 * 4096;
    config.first_bucket_bytes = 4 * 330;
    model_of(&m, NULL, &config, 2, &rates, NULL);
    assert_int_equal(m.piece_count, 2);
    assert_true(m.pieces[0].buckets == 1 && m.pieces[1].buckets == 7);
    NEAR(m.pieces[0].gradients, 336. / (336 + 25120), 1e-12);
    NEAR(m.pieces[1].parameters, 25120. / (336 + 25120), 1e-12);
    NEAR(m.pieces[0].backward, other / (first + other), 1e-12);
    NEAR(m.pieces[1].forward, first / (first + other), 1e-12);
    config.first_bucket_bytes = 0; /* then the first bucket has elements of both layers */
    model_of(&m, NULL, &config, 2, &rates, NULL);
    assert_int_equal(m.piece_count, 1);
    lk_step_model_deinit(&m);
}

/* Predicts zero3 with more and more unit buffers.  Expects fewer gathers in the predicted time and
 * in the estimated bytes. */
static void more_unit_buffers_save_gathers(void **state)
{
    lk_train_config config = mlp();
    lk_rates        rates  = { .flops = 1e9, .bandwidth = 1e6 };
    lk_step_model   m      = { 0 };
    double          before = HUGE_VAL;
    (void)state;
    config.strategy                   = "zero3";
    config.bucket_bytes               = 4096; /* one unit per layer */
    config.model_options.hidden_count = 4;
    for (int i = 0; i < 4; i++)
        config.model_options.hidden[i] = 512;
    for (uint32_t micros = 1; micros <= 4; micros *= 4, before = HUGE_VAL)
        for (uint32_t buffers = 2; buffers <= 6; buffers++) {
            lk_train_cost cost;
            config.micro_batch   = 8 / micros;
            config.unit_buffers  = buffers == 6 ? 0 : buffers;
            config.gather_dtype  = buffers == 6 ? LK_I8 : LK_F32;
            config.keep_gathered = buffers == 6;
            assert_int_equal(lk_train_estimate(&config, 2, &cost), LK_OK);
            model_of(&m, NULL, &config, 2, &rates, NULL);
            double sent = (double)(cost.shared.sent_gradients + cost.shared.sent_params);
            NEAR(predict(m).sent, sent, 0.01);
            assert_true(predict(m).exposed < before && predict(m).communication > 0);
            before = predict(m).exposed;
            config.global_batch    = 16; /* two virtual workers, so there is a second round */
            config.virtual_workers = 2;
            model_of(&m, NULL, &config, 2, &rates, NULL);
            m.virtual_workers = config.virtual_workers = 4;
            config.global_batch                        = 32;
            NEAR(predict(m).sent, sent, 0.01);
        }
    lk_step_model_deinit(&m);
}

/* Makes a plan for some hosts, and compares its prediction for another number of hosts with the
 * plan for that number. */
static void a_prediction_for_other_hosts_equals_their_own_plan(void **state)
{
    static const char *const strategies[] = { "ddp", "zero1", "zero2", "zero3" };
    lk_rates                 rates        = { .flops = 1e9, .bandwidth = 1e6 };
    lk_step_model            m            = { 0 };
    (void)state;
    for (size_t s = 0; s < 4; s++)
        for (uint32_t hosts = 1; hosts <= 4; hosts *= 2) {
            lk_train_config config = mlp();
            config.strategy        = strategies[s];
            config.bucket_bytes    = 4096;
            config.workers         = 4;
            config.model_options   = (lk_model_options){ .hidden       = { 64, 64, 64, 64 },
                                                         .hidden_count = 4 };
            model_of(&m, NULL, &config, 4, &rates, NULL);
            lk_step_prediction own = predict(m);
            model_of(&m, NULL, &config, hosts, &rates, NULL);
            m.hosts = 4;
            NEAR(predict(m).sent, own.sent, 1e-12);
            NEAR(predict(m).seconds, own.seconds, 1e-12);
        }
    lk_step_model_deinit(&m);
}

/* Checks offloaded moments, which are read and written by hosts that store all or a part of them.
 * lamb processes them twice.  The update hides file times up to its own duration. */
static void files_stall_a_step(void **state)
{
    lk_train_config config = mlp();
    lk_rates rates = { .flops = 1e9, .memory_bandwidth = 1e9, .bandwidth = 1e9, .latency = 0 };
    lk_calibration c = { .workers = 1, .held = 1, .size_count = 2, .elements = { 1, 2 },
                         .files = 5e5 };
    lk_step_model  m = { 0 };
    double         bytes = 4. * (784 * 32 + 32 * 11 + 10);
    (void)state;
    config.optimizer = (lk_optimizer){ .kind = LK_ADAMW };
    model_of(&m, NULL, &config, 2, &rates, NULL);
    assert_true(m.file_bytes == 0 && predict(m).files == 0 && predict(m).stalled == 0);
    double without = predict(m).seconds;
    config.offload       = "/tmp";
    rates.file_bandwidth = 1e6;
    model_of(&m, NULL, &config, 2, &rates, NULL);
    NEAR(predict(m).files, 4 * bytes / 1e6, 1e-12);
    NEAR(predict(m).stalled, 4 * bytes / 1e6 - m.update, 1e-12);
    NEAR(predict(m).seconds, without + 4 * bytes / 1e6 - m.update, 1e-12);
    m.file_bandwidth = 1e12;
    assert_true(predict(m).stalled == 0);
    config.strategy       = "zero1";
    config.optimizer.kind = LK_LAMB;
    rates.file_bandwidth  = 0;
    model_of(&m, NULL, &config, 2, &rates, &c);
    NEAR(predict(m).files, 8 * bytes / 2 / 5e5, 1e-12);
    /* lamb reads parameters three times and writes them once.  With a single unit, forward and
     * backward hide no reads. */
    config.strategy  = "zero3";
    config.offloaded = LK_OFFLOADED_PARAMETERS;
    model_of(&m, NULL, &config, 2, &rates, &c);
    double turns = predict(m).rounds * m.micro_count;
    NEAR(predict(m).files, (4 + 2 * turns) * bytes / 2 / 5e5, 1e-12);
    NEAR(predict(m).stalled, predict(m).files - m.update, 1e-12);
    lk_step_model_deinit(&m);
    m.bucket_bytes = m.parameter_bytes / 4; /* of four units, a backward pass hides three */
    m.forward      = 0;
    m.backward     = 2 * turns;
    NEAR(predict(m).stalled, (4 + 1.25 * turns) * bytes / 2 / 5e5 - m.update, 1e-12);
    lk_step_model_deinit(&m);
}

/* Sets all measured rates except that of operations to zero.  Expects the times that follow from
 * this rate. */
static void measured_rates_are_used(void **state)
{
    lk_train_config config = mlp();
    lk_rates        rates  = { .bandwidth = 1 };
    lk_calibration  c      = { .workers    = 1,
                               .type_count = 1,
                               .size_count = 3,
                               .held       = 1.25,
                               .again      = 1e-3,
                               .elements   = { 1e3, 1e4, 1e5 },
                               .update     = { 1, 2, 4 } };
    lk_step_model   m = { 0 };
    double          sample = 2 * (2 * 784 * 32 + 3 * 32 * 10);
    (void)state;
    c.types[0] = (lki_type_rates){ "linear", { [LKI_WORK_FLOPS] = 1e-9 }, 0.25 };
    model_of(&m, NULL, &config, 1, &rates, &c);
    NEAR(m.forward, 1.25 * 0.25 * 8 * sample * 1e-9, 1e-12);
    NEAR(m.backward, 1.25 * 0.75 * 8 * sample * 1e-9, 1e-12);
    NEAR(m.update, 2 + 2 * (784 * 32 + 32 * 11 + 10 - 1e4) / 9e4, 1e-12);
    NEAR(lki_update_seconds(&c, 1e6, 1e6), 4 + 2 * 9e5 / 9e4, 1e-12);
    NEAR(lki_update_seconds(&c, 5500, 5500), 1.5, 1e-12);
    NEAR(lki_update_seconds(&c, 5500, 5600), 1.5 + 100 * c.again, 1e-12);
    assert_true(lki_update_seconds(&c, 10, 10) > 0);
    lk_step_model_deinit(&m);
}

static void a_fit_finds_the_rates(void **state)
{
    const double rates[LKI_WORK_KINDS] = { 1e-6, 2e-11, 3e-10, 0, 5e-10 };
    lki_work     works[12];
    double       measured[12], found[LKI_WORK_KINDS];
    (void)state;
    for (int i = 0; i < 12; i++) {
        works[i]    = (lki_work){ { 1, 1e6 * (1 + i * i), 1e4 * (1 + i % 5), 1e3 * (1 + i % 3),
                                    2e4 * (1 + i % 4) } };
        measured[i] = 0;
        for (int k = 0; k < LKI_WORK_KINDS; k++)
            measured[i] += rates[k] * works[i].amount[k];
    }
    lki_fit(found, works, measured, 12);
    for (int k = 0; k < LKI_WORK_KINDS; k++)
        if (fabs(found[k] - rates[k]) > 1e-3 * rates[k] + 1e-13)
            fail_msg("rate %d is %g, not %g", k, found[k], rates[k]);
    measured[0] *= 0.5; /* work that the model does not do makes no rate negative */
    measured[5] *= 3;
    lki_fit(found, works, measured, 12);
    for (int k = 0; k < LKI_WORK_KINDS; k++)
        assert_true(found[k] >= 0);
}

/* Measures this machine.  Expects rates for every block type of the model, and that larger updates
 * take longer. */
static void a_machine_is_measured(void **state)
{
    lk_train_config config = mlp();
    lk_rates        none   = { 0 };
    lk_calibration *c;
    lk_step_model   m = { 0 };
    (void)state;
    assert_int_equal(lk_calibrate(&c, &config, 1), LK_OK);
    assert_true(c->type_count >= 2 && c->workers >= 1 && c->workers <= 2 && c->held >= 1);
    for (uint32_t t = 0; t < c->type_count; t++) {
        double all = 0;
        for (int k = 0; k < LKI_WORK_KINDS; k++)
            all += c->types[t].seconds[k];
        assert_true(all > 0 && c->types[t].forward >= 0 && c->types[t].forward <= 1);
    }
    for (int i = 0; i < (int)c->size_count; i++)
        assert_true(c->update[i] > 0);
    model_of(&m, NULL, &config, 1, &none, c);
    assert_true(m.forward > 0 && m.backward > 0 && m.update > 0);
    lk_calibration_free(c);
    config.workers = 2;
    assert_int_equal(lk_calibrate(&c, &config, 3), LK_EINVAL);
    assert_null(c);
    lk_step_model_deinit(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_more_virtual_worker_delays_all_workers),
        cmocka_unit_test(exposed_time_equals_a_simulation),
        cmocka_unit_test(only_the_last_micro_batch_hides_communication),
        cmocka_unit_test(a_round_hides_unsent_sums_of_the_previous_round),
        cmocka_unit_test(every_micro_batch_of_zero3_gathers),
        cmocka_unit_test(communication_of_a_large_layer_is_exposed),
        cmocka_unit_test(pieces_follow_the_layers_of_backward),
        cmocka_unit_test(zero_stages_send_the_published_bytes),
        cmocka_unit_test(sent_bytes_are_those_of_the_estimate),
        cmocka_unit_test(predictions_agree_with_goyal_et_al),
        cmocka_unit_test(invalid_models_are_refused),
        cmocka_unit_test(compute_time_is_operations_divided_by_the_rate),
        cmocka_unit_test(more_unit_buffers_save_gathers),
        cmocka_unit_test(a_prediction_for_other_hosts_equals_their_own_plan),
        cmocka_unit_test(files_stall_a_step),
        cmocka_unit_test(measured_rates_are_used),
        cmocka_unit_test(a_fit_finds_the_rates),
        cmocka_unit_test(a_machine_is_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
