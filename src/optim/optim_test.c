/* optim_test.c -- optimizers, schedules and clipping against formulas in double precision.
 *
 * Goal:   the results that PyTorch users expect, the same bits for whole tensors and shards, and
 *         errors that name the field.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "lockstep/optim.h"

enum { N = 300, STEPS = 20 };

static float gradient(int t, int i)
{
    lki_random r = lki_philox(3, LKI_RNG_DATA, (uint32_t)i, (uint32_t)t, 0, 0);
    return lki_random_unit(r.word[0]) - 0.4f;
}

/* Runs STEPS updates, in two shards if `cut` is within the tensor. */
static void train(const lk_optimizer *o, const char *isa, size_t cut, float p[N])
{
    static float s0[N], s1[N];
    float        g[N];
    lk_exec     *exec = NULL;
    assert_int_equal(lk_exec_open(&exec, 1, isa), LK_OK);
    memset(s0, 0, sizeof s0);
    memset(s1, 0, sizeof s1);
    for (int i = 0; i < N; i++)
        p[i] = 0.01f * (float)i;
    for (int t = 0; t < STEPS; t++) {
        lk_update update = { .step = (uint64_t)t, .lr = 1e-2, .scale = 0.5f, .clip = 0.8f };
        float    *low[] = { s0, s1 }, *high[] = { s0 + cut, s1 + cut };
        for (int i = 0; i < N; i++)
            g[i] = gradient(t, i);
        lk_optimizer_update(o, exec, &update, cut, g, p, low);
        lk_optimizer_update(o, exec, &update, N - cut, g + cut, p + cut, high);
    }
    lk_exec_free(exec);
}

static double adamw_in_double(int i, double decay)
{
    double p = 0.01 * i, m = 0, v = 0;
    for (int t = 0; t < STEPS; t++) {
        double g = (double)gradient(t, i) * 0.5 * 0.8;
        p -= 1e-2 * decay * p;
        m         = 0.9 * m + 0.1 * g;
        v         = 0.999 * v + 0.001 * g * g;
        double c1 = 1 - pow(0.9, t + 1), c2 = 1 - pow(0.999, t + 1);
        p -= 1e-2 / c1 * m / (sqrt(v) / sqrt(c2) + 1e-8);
    }
    return p;
}

static double sgd_in_double(int i, double momentum, bool nesterov, double decay)
{
    double p = 0.01 * i, b = 0;
    for (int t = 0; t < STEPS; t++) {
        double d = (double)gradient(t, i) * 0.5 * 0.8 + decay * p;
        b        = t == 0 ? d : momentum * b + d;
        p -= 1e-2 * (nesterov ? d + momentum * b : b);
    }
    return p;
}

static void follows_adamw(void **state)
{
    (void)state;
    lk_optimizer o = { .kind = LK_ADAMW, .weight_decay = 0.1 };
    float        p[N];
    train(&o, NULL, N, p);
    for (int i = 0; i < N; i++)
        assert_true(fabs((double)p[i] - adamw_in_double(i, 0.1)) < 1e-5);
}

static void follows_sgd(void **state)
{
    (void)state;
    float p[N];
    for (int way = 0; way < 3; way++) {
        lk_optimizer o = { .kind         = LK_SGD,
                           .momentum     = way == 0 ? 0.0 : 0.9,
                           .nesterov     = way == 2,
                           .weight_decay = 0.05 };
        assert_int_equal(lk_optimizer_state_count(&o), way == 0 ? 0 : 1);
        train(&o, NULL, N, p);
        for (int i = 0; i < N; i++)
            assert_true(fabs((double)p[i] - sgd_in_double(i, o.momentum, o.nesterov, 0.05)) < 1e-5);
    }
}

static double lion_in_double(int i, double decay)
{
    double p = 0.01 * i, m = 0;
    for (int t = 0; t < STEPS; t++) {
        double g = (double)gradient(t, i) * 0.5 * 0.8, way = 0.9 * m + 0.1 * g;
        p -= 1e-2 * decay * p + 1e-2 * (way > 0 ? 1 : -1);
        m = 0.99 * m + 0.01 * g;
    }
    return p;
}

static void follows_lion(void **state)
{
    (void)state;
    lk_optimizer o = { .kind = LK_LION, .weight_decay = 0.1 };
    float        p[N];
    train(&o, NULL, N, p);
    for (int i = 0; i < N; i++)
        assert_true(fabs((double)p[i] - lion_in_double(i, 0.1)) < 1e-5);
}

/* Computes what torch.optim.Adagrad computes. */
static double adagrad_in_double(int i, double decay)
{
    double p = 0.01 * i, sum = 0;
    for (int t = 0; t < STEPS; t++) {
        double g = (double)gradient(t, i) * 0.5 * 0.8 + decay * p;
        sum += g * g;
        p -= 1e-2 * g / (sqrt(sum) + 1e-10);
    }
    return p;
}

static void follows_adagrad(void **state)
{
    (void)state;
    lk_optimizer o = { .kind = LK_ADAGRAD, .weight_decay = 0.1 };
    float        p[N];
    train(&o, NULL, N, p);
    for (int i = 0; i < N; i++)
        assert_true(fabs((double)p[i] - adagrad_in_double(i, 0.1)) < 1e-5);
}

static double yogi_in_double(int i, double decay, bool corrects)
{
    double p = 0.01 * i, m = 0, v = 0;
    for (int t = 0; t < STEPS; t++) {
        double g = (double)gradient(t, i) * 0.5 * 0.8, over = v - g * g;
        p -= 1e-2 * decay * p;
        m         = 0.9 * m + 0.1 * g;
        v        -= 0.05 * (over > 0 ? 1 : over < 0 ? -1 : 0) * g * g;
        double c1 = corrects ? 1 - pow(0.9, t + 1) : 1, c2 = corrects ? 1 - pow(0.95, t + 1) : 1;
        p -= 1e-2 / c1 * m / (sqrt(v) / sqrt(c2) + 1e-3);
    }
    return p;
}

static void follows_yogi(void **state)
{
    (void)state;
    for (int corrects = 0; corrects < 2; corrects++) {
        lk_optimizer o = { .kind = LK_YOGI, .beta2 = 0.95, .weight_decay = 0.1,
                           .uncorrected = corrects == 0 };
        float        p[N];
        train(&o, NULL, N, p);
        for (int i = 0; i < N; i++)
            assert_true(fabs((double)p[i] - yogi_in_double(i, 0.1, corrects == 1)) < 1e-5);
    }
}

static void none_keeps_the_mean_gradient(void **state)
{
    (void)state;
    lk_optimizer o = { .kind = LK_OPTIMIZER_NONE };
    lk_update    u = { .lr = 0.1, .scale = 0.1f, .clip = 0.7f, .own_decay = true,
                       .weight_decay = 0.5 };
    float        p[N] = { 0 }, g[N], mean[N];
    float       *s[] = { mean };
    for (int i = 0; i < N; i++)
        g[i] = gradient(3, i);
    lk_optimizer_update(&o, NULL, &u, N, g, p, s);
    for (int i = 0; i < N; i++)
        assert_true(p[i] == 0 && mean[i] == g[i] * 0.1f * 0.7f);
    assert_string_equal(lk_optimizer_state_name(&o, 0), "mean_grad");
    assert_true(lk_optimizer_trust(&o, &u, 4, 2) == 1.0);
}

/* Checks Goyal et al. (2017), remark 2.  A momentum of steps that is multiplied by the ratio of the
 * rates, at each change of the rate, equals a momentum of gradients.  Without that factor the
 * results differ. */
static void remark_2_a_momentum_of_gradients_needs_no_correction(void **state)
{
    static const double rates[] = { 0.1, 0.1, 0.5, 1.0, 1.0, 0.1, 0.01, 0.01 };
    enum { T = sizeof rates / sizeof rates[0] };
    lk_optimizer o[2] = { { .momentum = 0.9 },
                          { .momentum = 0.9, .momentum_of = LK_MOMENTUM_OF_STEPS } };
    float        p[2] = { 1, 1 }, b[2] = { 0, 0 };
    double       corrected = 1, plain = 1, vc = 0, v = 0;
    lk_exec     *exec = NULL;
    (void)state;
    assert_int_equal(lk_exec_open(&exec, 1, NULL), LK_OK);
    for (int t = 0; t < T; t++) {
        float     g      = gradient(t, 5);
        lk_update update = { .step = (uint64_t)t, .lr = rates[t], .scale = 1, .clip = 1 };
        vc = 0.9 * (t > 0 ? rates[t] / rates[t - 1] : 1) * vc + rates[t] * (double)g;
        v  = 0.9 * v + rates[t] * (double)g;
        corrected -= vc;
        plain -= v;
        for (int i = 0; i < 2; i++) {
            float *buffer = &b[i];
            lk_optimizer_update(&o[i], exec, &update, 1, &g, &p[i], &buffer);
        }
    }
    assert_true(fabs((double)p[0] - corrected) < 1e-6);
    assert_true(fabs((double)p[1] - plain) < 1e-6);
    assert_true(fabs(corrected - plain) > 1e-2);
    lk_exec_free(exec);
}

/* Checks values computed by hand: the ratios 0.001 x 4 / (2 + 0.5 x 4) of lars and 4 / 2 of
 * lamb. */
static void trust_ratios_are_those_of_the_papers(void **state)
{
    lk_optimizer lars = { .kind = LK_LARS, .weight_decay = 0.5 }, lamb = { .kind = LK_LAMB },
                 sgd  = { .kind = LK_SGD };
    lk_update u = { .lr = 1 }, excluded = { .no_decay = true };
    (void)state;
    assert_true(fabs(lk_optimizer_trust(&lars, &u, 4, 2) - 0.001) < 1e-18);
    assert_true(lk_optimizer_trust(&lamb, &u, 4, 2) == 2.0);
    assert_true(lk_optimizer_trust(&sgd, &u, 4, 2) == 1.0);
    assert_true(lk_optimizer_trust(&lars, &u, 0, 2) == 1.0);
    assert_true(lk_optimizer_trust(&lamb, &u, 4, 0) == 1.0);
    assert_true(lk_optimizer_trust(&lamb, &excluded, 4, 2) == 1.0);
    lamb.decay_all = true;
    assert_true(lk_optimizer_trust(&lamb, &excluded, 4, 2) == 2.0);
}

static void has_the_same_bits_in_shards_and_on_any_isa(void **state)
{
    (void)state;
    static const lk_optimizer kinds[] = {
        { .kind = LK_ADAMW, .weight_decay = 0.1 },
        { .kind = LK_SGD, .momentum = 0.9 },
        { .kind = LK_SGD, .momentum = 0.9, .momentum_of = LK_MOMENTUM_OF_STEPS },
        { .kind = LK_LION, .weight_decay = 0.1 },
        { .kind = LK_ADAGRAD, .weight_decay = 0.1 },
        { .kind = LK_YOGI, .weight_decay = 0.1 },
    };
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        float whole[N], cut[N];
        train(&kinds[k], NULL, N, whole);
        for (size_t border = 1; border < N; border += 41) {
            train(&kinds[k], border % 2 != 0 ? "portable" : NULL, border, cut);
            assert_memory_equal(cut, whole, sizeof whole);
        }
    }
}

static void direct_and_update(const lk_optimizer *o, const lk_exec *exec, const lk_update *update,
                              const float g[3], float p[3], float *const *state)
{
    float moves[3] = { g[0], g[1], g[2] };
    if (o->kind == LK_LAMB)
        lk_optimizer_direct(o, exec, update, 3, moves, p, state);
    lk_optimizer_update(o, exec, update, 3, moves, p, state);
}

static void excluded_parameters_do_not_decay(void **state)
{
    (void)state;
    lk_exec *exec = NULL;
    assert_int_equal(lk_exec_open(&exec, 1, NULL), LK_OK);
    for (int kind = LK_SGD; kind <= LK_YOGI; kind++) {
        if (kind == LK_OPTIMIZER_NONE)
            continue;
        lk_optimizer o    = { .kind = (lk_optimizer_kind)kind, .weight_decay = 0.5 };
        lk_update    keep = { .lr = 0.1, .scale = 1.0f, .clip = 1.0f, .no_decay = true };
        float        g[3] = { 0 }, p[3] = { 1.0f, -2.0f, 3.0f }, m[3] = { 0 }, v[3] = { 0 };
        float       *s[] = { m, v };
        direct_and_update(&o, exec, &keep, g, p, s);
        assert_true(p[0] == 1.0f && p[1] == -2.0f && p[2] == 3.0f);
        keep.no_decay = o.decay_all = true;
        direct_and_update(&o, exec, &keep, g, p, s);
        assert_true(p[0] < 1.0f);
        p[0]          = 1.0f;
        keep.no_decay = o.decay_all = false;
        memset(m, 0, sizeof m);
        memset(v, 0, sizeof v);
        direct_and_update(&o, exec, &keep, g, p, s);
        assert_true(p[0] < 1.0f);
    }
    lk_exec_free(exec);
}

static void refuses(const lk_optimizer *o, const char *field)
{
    assert_int_equal(lk_optimizer_check(o), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, field));
}

static void names_the_field_it_refuses(void **state)
{
    (void)state;
    assert_int_equal(lk_optimizer_check(&(lk_optimizer){ .kind = LK_ADAMW }), LK_OK);
    assert_int_equal(lk_optimizer_check(&(lk_optimizer){ .kind = LK_SGD, .momentum = 0.9 }), LK_OK);
    refuses(&(lk_optimizer){ .kind = (lk_optimizer_kind)10 }, "kind");
    refuses(&(lk_optimizer){ .kind = LK_SGD, .momentum = 1.0 }, "momentum");
    refuses(&(lk_optimizer){ .kind = LK_SGD, .nesterov = true }, "nesterov");
    refuses(&(lk_optimizer){ .kind = LK_SGD, .weight_decay = -0.1 }, "weight_decay");
    refuses(&(lk_optimizer){ .kind = LK_ADAMW, .beta1 = 1.5 }, "beta1");
    refuses(&(lk_optimizer){ .kind = LK_ADAMW, .beta2 = -1 }, "beta2");
    refuses(&(lk_optimizer){ .kind = LK_ADAMW, .eps = (double)NAN }, "eps");
    refuses(&(lk_optimizer){ .kind = LK_LARS, .trust = -1 }, "trust");
    refuses(&(lk_optimizer){ .kind = LK_SGD, .momentum_of = (lk_momentum)7 }, "momentum_of");
    refuses(&(lk_optimizer){ .kind = LK_OPTIMIZER_NONE, .weight_decay = 0.1 }, "weight_decay");
    refuses(&(lk_optimizer){ .kind = LK_OPTIMIZER_NONE, .ema = 0.9 }, "ema");
    lk_optimizer adamw = { .kind = LK_ADAMW };
    assert_string_equal(lk_optimizer_state_name(&adamw, 0), "exp_avg");
    assert_string_equal(lk_optimizer_state_name(&adamw, 1), "exp_avg_sq");
    lk_optimizer adagrad = { .kind = LK_ADAGRAD };
    assert_string_equal(lk_optimizer_state_name(&adagrad, 0), "sum");
    for (int kind = LK_SGD; kind <= LK_ONEBIT_LAMB; kind++) {
        static const char *const names[]  = { "sgd", "adamw", "lars", "lamb", "lion", "none",
                                              "onebit-adam", "adagrad", "yogi", "onebit-lamb" };
        static const uint32_t    counts[] = { 0, 2, 1, 2, 1, 1, 2, 1, 2, 3 };
        lk_optimizer             o        = { .kind = (lk_optimizer_kind)kind };
        assert_string_equal(lk_optimizer_name(o.kind), names[kind]);
        assert_int_equal(lk_optimizer_state_count(&o), counts[kind]);
    }
}

static void near_(double got, double want)
{
    assert_true(fabs(got - want) < 1e-15);
}

static void follows_schedules(void **state)
{
    (void)state;
    lk_schedule s = { .kind = LK_CONSTANT, .lr = 0.3 };
    assert_string_equal(lk_schedule_name(s.kind), "constant");
    assert_string_equal(lk_schedule_name(LK_ONE_CYCLE), "one-cycle");
    near_(lk_schedule_at(&s, 0), 0.3);
    near_(lk_schedule_at(&s, 1000000), 0.3);
    s.warmup = 10;
    near_(lk_schedule_at(&s, 0), 0.03);
    near_(lk_schedule_at(&s, 9), 0.3);

    lk_schedule c = { .kind = LK_COSINE, .lr = 1.0, .min_lr = 0.1, .warmup = 5, .steps = 105 };
    for (uint64_t t = 5; t <= 105; t++)
        near_(lk_schedule_at(&c, t), 0.1 + 0.45 * (1 + cos(acos(-1.0) * (double)(t - 5) / 100)));
    near_(lk_schedule_at(&c, 105), 0.1);
    near_(lk_schedule_at(&c, 4000), 0.1);
    c.kind = LK_LINEAR;
    near_(lk_schedule_at(&c, 5), 1.0);
    near_(lk_schedule_at(&c, 55), 0.55);
    near_(lk_schedule_at(&c, 105), 0.1);

    lk_schedule m = { .kind = LK_STEP, .lr = 1.0, .milestone_count = 2, .milestones = { 10, 20 } };
    near_(lk_schedule_at(&m, 9), 1.0);
    near_(lk_schedule_at(&m, 10), 0.1);
    near_(lk_schedule_at(&m, 20), 0.01);
}

/* Checks Goyal et al. (2017): minibatches of 8192 have 32 times the rate 0.1 of minibatches of 256.
 * The rate rises from 0.1 step by step in five epochs of 156 steps. */
static void scales_and_warms_up_as_goyal_et_al(void **state)
{
    double      lr = lk_scale_lr(LK_SCALE_LR_LINEAR, 0.1, 8192, 256);
    lk_schedule s  = { .kind = LK_STEP, .lr = lr, .warmup = 5 * 156, .warmup_from = 0.1,
                       .milestone_count = 3,
                       .milestones      = { 30 * 156, 60 * 156, 80 * 156 } };
    (void)state;
    near_(lr, 3.2);
    near_(lk_scale_lr(LK_SCALE_LR_SQRT, 0.1, 1024, 256), 0.2);
    near_(lk_scale_lr(LK_SCALE_LR_NONE, 0.1, 8192, 256), 0.1);
    for (uint64_t t = 0; t < 780; t++)
        assert_true(fabs(lk_schedule_at(&s, t) - (0.1 + 3.1 * (double)(t + 1) / 780)) < 1e-12);
    near_(lk_schedule_at(&s, 779), 3.2);
    assert_true(fabs(lk_schedule_at(&s, 30 * 156) - 0.32) < 1e-12);
    assert_true(fabs(lk_schedule_at(&s, 60 * 156) - 0.032) < 1e-12);
    assert_true(fabs(lk_schedule_at(&s, 80 * 156) - 0.0032) < 1e-12);
}

static void follows_more_schedules(void **state)
{
    lk_schedule poly = { .kind = LK_POLY, .lr = 1.0, .min_lr = 0.1, .warmup = 10, .steps = 110 },
                wsd  = { .kind = LK_WSD, .lr = 1.0, .min_lr = 0.2, .warmup = 5, .steps = 200 };
    (void)state;
    near_(lk_schedule_at(&poly, 10), 1.0);
    near_(lk_schedule_at(&poly, 60), 0.1 + 0.9 * 0.25);
    near_(lk_schedule_at(&poly, 110), 0.1);
    poly.power = 0.9;
    assert_true(fabs(lk_schedule_at(&poly, 35) - (0.1 + 0.9 * pow(0.75, 0.9))) < 1e-14);
    near_(lk_schedule_at(&wsd, 4), 1.0);
    near_(lk_schedule_at(&wsd, 180), 1.0);
    near_(lk_schedule_at(&wsd, 190), 0.6);
    near_(lk_schedule_at(&wsd, 200), 0.2);
    wsd.decay = 100;
    near_(lk_schedule_at(&wsd, 100), 1.0);
    near_(lk_schedule_at(&wsd, 125), 0.8);
}

/* Checks the rates of torch.optim.lr_scheduler.OneCycleLR(max_lr = 1, total_steps = 10), whose rise
 * ends at step 0.3 x 10 - 1. */
static void follows_one_cycle(void **state)
{
    static const double pytorch[] = { 0.04, 0.52, 1.0, 0.9504846320134739, 0.8117456539497631,
                                      0.6112620219362893, 0.38874197806371076,
                                      0.18825834605023692, 0.04951936798652603, 4e-06 };
    lk_schedule s = { .kind = LK_ONE_CYCLE, .lr = 1.0, .steps = 10 };
    (void)state;
    for (uint64_t t = 0; t < 10; t++)
        assert_true(fabs(lk_schedule_at(&s, t) - pytorch[t]) < 1e-12);
    near_(lk_schedule_at(&s, 99), 4e-6);
}

static void refuses_schedule(const lk_schedule *s, const char *field)
{
    assert_int_equal(lk_schedule_check(s), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, field));
}

static void names_the_schedule_field_it_refuses(void **state)
{
    (void)state;
    assert_int_equal(lk_schedule_check(&(lk_schedule){ .lr = 0.1, .warmup = 5 }), LK_OK);
    refuses_schedule(&(lk_schedule){ .lr = 0.0 }, "lr");
    refuses_schedule(&(lk_schedule){ .lr = 0.1, .min_lr = 0.2 }, "min_lr");
    refuses_schedule(&(lk_schedule){ .kind = LK_COSINE, .lr = 0.1, .warmup = 5, .steps = 5 },
                     "steps");
    refuses_schedule(&(lk_schedule){ .kind = LK_STEP, .lr = 0.1, .gamma = 2 }, "gamma");
    refuses_schedule(&(lk_schedule){ .kind = LK_STEP, .lr = 0.1 }, "needs `schedule.milestones`");
    refuses_schedule(&(lk_schedule){ .kind = LK_STEP, .lr = 0.1, .milestone_count = 9 },
                     "`schedule.milestones` has 9");
    refuses_schedule(
        &(lk_schedule){ .kind = LK_STEP, .lr = 0.1, .milestone_count = 2, .milestones = { 4, 4 } },
        "4 does not come after 4");
    refuses_schedule(&(lk_schedule){ .kind = (lk_schedule_kind)7, .lr = 0.1 }, "kind");
    refuses_schedule(&(lk_schedule){ .lr = 0.1, .warmup_from = 0.2 }, "warmup_from");
    refuses_schedule(&(lk_schedule){ .kind = LK_POLY, .lr = 1, .steps = 9, .power = -1 }, "power");
    refuses_schedule(&(lk_schedule){ .kind = LK_WSD, .lr = 1, .steps = 9, .decay = 9 }, "decay");
}

static void clips_as_pytorch_does(void **state)
{
    (void)state;
    assert_true(lk_clip_factor(0.5, 1.0) == 1.0f);
    assert_true(lk_clip_factor(1e9, 0.0) == 1.0f);
    assert_true(lk_clip_factor(4.0, 1.0) == (float)(1.0 / (4.0 + 1e-6)));
    assert_true(isnan(lk_clip_factor((double)NAN, 1.0)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_adamw),
        cmocka_unit_test(follows_sgd),
        cmocka_unit_test(follows_lion),
        cmocka_unit_test(follows_adagrad),
        cmocka_unit_test(follows_yogi),
        cmocka_unit_test(none_keeps_the_mean_gradient),
        cmocka_unit_test(remark_2_a_momentum_of_gradients_needs_no_correction),
        cmocka_unit_test(trust_ratios_are_those_of_the_papers),
        cmocka_unit_test(has_the_same_bits_in_shards_and_on_any_isa),
        cmocka_unit_test(excluded_parameters_do_not_decay),
        cmocka_unit_test(names_the_field_it_refuses),
        cmocka_unit_test(follows_schedules),
        cmocka_unit_test(scales_and_warms_up_as_goyal_et_al),
        cmocka_unit_test(follows_more_schedules),
        cmocka_unit_test(follows_one_cycle),
        cmocka_unit_test(names_the_schedule_field_it_refuses),
        cmocka_unit_test(clips_as_pytorch_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
