/* groups_rules_test.c -- what groups keep from step to step.
 *
 * Goal:    the vectors that groups keep, and the parameters, are those of plain loops over groups
 *          with unequal numbers of samples.  Rules that do not go with a compressor are refused.
 * Control: a group that uses another group's vectors has others.
 */
#include <math.h>

#include "compress/rules.h"
#include "compress/table.h"
#include "parallel/crew_testing.h"

enum { ROWS = 20, COLS = 30, COUNT = ROWS * COLS, LEAVES = 6, GROUPS = 3, STEPS = 7 };

static const lk_param model = { .name  = "a",
                                .shape = { 2, { ROWS, COLS } },
                                .init  = LK_INIT_UNIFORM,
                                .scale = 0.1f };

/* ---- A compressor that sends a third of the elements, others for each group ------------------ */

static bool is_sent(size_t i, uint64_t step, uint32_t group)
{
    return (i + step + group) % 3 == 0;
}

static size_t thirds_bytes(const lk_compression *options, const lk_compress_key *key,
                           uint32_t round)
{
    (void)options, (void)round;
    return key->rows * key->cols * sizeof(float);
}

static void thirds_encode(const lk_compression *options, const lk_compress_key *key,
                          uint32_t round, const lk_compress_part *part,
                          const void *before, float *values, void *message)
{
    float *sent = message;
    (void)options, (void)round, (void)before;
    for (size_t k = 0; k < part->rows * part->count; k++) {
        const size_t i   = part->first + k / part->count * part->stride + k % part->count;
        const bool   now = is_sent(i, key->step, key->group);
        sent[i]          = now ? values[i] : 0;
        values[i]        = now ? 0 : values[i];
    }
}

/* The parts are some columns of a matrix. */
static bool thirds_part(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                        uint32_t index, lk_compress_part *out)
{
    const size_t first = 5 * (size_t)index;
    (void)options, (void)round;
    *out = (lk_compress_part){ .first = first, .rows = key->rows, .stride = key->cols };
    if (first < key->cols)
        out->count = key->cols - first < 5 ? key->cols - first : 5;
    return first < key->cols;
}

static void thirds_decode(const lk_compression *options, const lk_compress_key *key,
                          const void *const *messages, size_t first, size_t count, float *out)
{
    (void)options, (void)key;
    memcpy(out, (const float *)messages[0] + first, count * sizeof *out);
}

static const lk_compressor thirds = { .name    = "thirds",
                                      .combine = LK_COMBINE_GATHER,
                                      .rounds  = 1,
                                      .selects = true,
                                      .bytes   = thirds_bytes,
                                      .part    = thirds_part,
                                      .encode  = thirds_encode,
                                      .decode  = thirds_decode };

/* ---- Plain loops ----------------------------------------------------------------------------- */

/* The samples of a virtual worker.  In step 3, group 1 has none. */
static uint64_t samples_of(uint32_t step, uint32_t leaf)
{
    return step == 3 && leaf / 2 == 1 ? 0 : 1 + (step + leaf) % 4;
}

static float gradient_of(size_t i, uint32_t step, uint32_t leaf)
{
    return samples_of(step, leaf) == 0 ? 0 : lkt_noise((uint32_t)i, step, leaf, 3);
}

/* The vectors of all groups, and the parameter. */
typedef struct {
    lk_feedback rule;
    double      m;
    bool        nesterov;
    double      clip;
    bool        of_steps; /* errors are times the learning rate */
    bool        whole; /* every element is sent */
    double      kept[2][GROUPS][COUNT], mean[COUNT], values[COUNT];
} plain;

/* Returns the mean that a group says of an element, and changes what it keeps. */
static double say(plain *p, uint32_t group, size_t i, double g, double lr, bool sent)
{
    const double rate = p->of_steps ? lr : 1;
    double *a = &p->kept[0][group][i], *b = &p->kept[1][group][i], said = g;
    if (p->rule == LK_FEEDBACK_EF14) {
        said = rate == 0 ? g : g + *a / rate;
        *a   = rate == 0 ? *a : sent ? 0 : rate * said;
    } else if (p->rule == LK_FEEDBACK_SIGNUM) {
        said = *a = p->m * *a + (1 - p->m) * g;
    } else if (p->rule == LK_FEEDBACK_DGC) {
        *a   = p->nesterov ? p->m * (*a + g) : p->m * *a + g;
        *b   = *b + *a + (p->nesterov ? g : 0);
        said = *b;
        if (sent)
            *a = *b = 0;
    } else if (p->rule == LK_FEEDBACK_EF21) {
        said = g - *a;
        *a   = sent ? g : *a;
    } else if (p->rule == LK_FEEDBACK_EF21_SGDM) {
        *b   = p->m * *b + (1 - p->m) * g;
        said = *b - *a;
        *a   = sent ? *b : *a;
    }
    return sent ? said : 0;
}

/* Returns the factor that clips the mean gradient of a group. */
static double factor_of(const plain *p, uint32_t step, uint32_t g)
{
    double squares = 0, samples = (double)(samples_of(step, 2 * g) + samples_of(step, 2 * g + 1));
    for (size_t i = 0; i < COUNT; i++)
        squares += pow(((double)gradient_of(i, step, 2 * g) +
                        (double)gradient_of(i, step, 2 * g + 1)) / samples, 2);
    return p->clip == 0 ? 1 : fmin(1, p->clip / sqrt(GROUPS) / sqrt(squares));
}

static void plain_step(plain *p, uint32_t step, double lr)
{
    uint64_t count = 0;
    double   factors[GROUPS];
    for (uint32_t g = 0; g < GROUPS; g++)
        factors[g] = factor_of(p, step, g);
    for (uint32_t v = 0; v < LEAVES; v++)
        count += samples_of(step, v);
    for (size_t i = 0; i < COUNT; i++) {
        double sum = 0;
        for (uint32_t g = 0; g < GROUPS; g++) {
            uint64_t samples = samples_of(step, 2 * g) + samples_of(step, 2 * g + 1);
            double   mine    = (double)gradient_of(i, step, 2 * g) +
                          (double)gradient_of(i, step, 2 * g + 1);
            if (samples > 0)
                sum += (double)samples * say(p, g, i, factors[g] * mine / (double)samples,
                                             lr, p->whole || is_sent(i, step, g));
        }
        for (uint32_t g = 0; g < GROUPS; g++)
            p->mean[i] = (g > 0 ? p->mean[i] : 0) + p->kept[0][g][i] / GROUPS;
        p->values[i] -= lr * (lki_rule_of(p->rule)->estimates ? p->mean[i] : sum / (double)count);
    }
}

static void check(lk_parallel *parallel, const plain *p)
{
    static float    got[COUNT];
    size_t          bytes;
    const lki_rule *rule = lki_rule_of(p->rule);
    for (uint32_t which = 0; which < lki_rule_kept(rule); which++) {
        assert_string_equal(lk_parallel_kept_name(parallel, 0, which), rule->kept[which]);
        for (uint32_t g = 0; g < GROUPS; g++) {
            assert_int_equal(lk_parallel_fetch_kept(parallel, 0, which, g, 0, COUNT, got), LK_OK);
            for (size_t i = 0; i < COUNT; i++)
                assert_true(fabs((double)got[i] - p->kept[which][g][i]) < 1e-6);
        }
    }
    assert_null(lk_parallel_kept_name(parallel, 0, lki_rule_kept(rule)));
    const float *shared = lk_parallel_shared(parallel, 0, &bytes);
    assert_int_equal(bytes, rule->estimates ? sizeof got : 0);
    for (size_t i = 0; i < COUNT && shared != NULL; i++)
        assert_true(fabs((double)shared[i] - p->mean[i]) < 1e-6);
    for (size_t i = 0; i < COUNT; i++)
        assert_true(fabs((double)lk_parallel_param(parallel, 0)[i] - p->values[i]) < 1e-6);
}

static void run_step(lk_parallel *parallel, uint32_t uses, uint32_t step, double lr)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    assert_int_equal(lk_parallel_begin(parallel, step), LK_OK);
    while (lk_parallel_next(parallel, &turn)) {
        const uint64_t samples = samples_of(step, turn.virtual_worker);
        float         *grad    = lk_parallel_grad(parallel, 0, 0);
        for (size_t i = 0; i < COUNT; i++)
            grad[i] += gradient_of(i, step, turn.virtual_worker) / (float)uses;
        for (size_t i = 0; i < COUNT && uses == 2; i++)
            lk_parallel_grad(parallel, 0, 1)[i] +=
                gradient_of(i, step, turn.virtual_worker) / (float)uses;
        lk_parallel_report(parallel, 0, 1, samples, samples, 0);
    }
    assert_int_equal(lk_parallel_finish(parallel, lr, &result), LK_OK);
}

static void vectors_are_those_of_plain_loops(void **state)
{
    static const struct {
        lk_feedback rule;
        bool        nesterov;
        double      clip;
        bool        of_steps;
    } cases[] = { { LK_FEEDBACK_EF14, false, 0, false },
                  { LK_FEEDBACK_EF14, false, 0.7, false },
                  { LK_FEEDBACK_EF14, false, 0, true },
                  { LK_FEEDBACK_OFF, false, 0, false },
                  { LK_FEEDBACK_DGC, false, 0, false },
                  { LK_FEEDBACK_DGC, true, 0, false },
                  { LK_FEEDBACK_DGC, true, 0.7, false },
                  { LK_FEEDBACK_SIGNUM, false, 0, false },
                  { LK_FEEDBACK_EF21, false, 0, false },
                  { LK_FEEDBACK_EF21_SGDM, false, 0, false } };
    static plain p;
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        lk_comm            *comm;
        lk_parallel        *parallel;
        lk_exchange         exchange = LK_EXCHANGE_INIT;
        lk_parallel_options options  = { .struct_size     = sizeof(lk_parallel_options),
                                         .virtual_workers = LEAVES,
                                         .unused          = LK_UNUSED_ZERO,
                                         .exchange        = &exchange };
        memset(&p, 0, sizeof p);
        p.rule     = cases[c].rule;
        p.nesterov = exchange.nesterov = cases[c].nesterov;
        p.clip = exchange.clip = cases[c].clip;
        p.of_steps           = cases[c].of_steps;
        exchange.error_scale = p.of_steps ? LK_ERROR_SCALE_LR : LK_ERROR_SCALE_NONE;
        p.m                 = 0.75;
        exchange.groups     = GROUPS;
        exchange.compressor = &thirds;
        exchange.feedback   = p.rule;
        exchange.momentum   = lki_rule_of(p.rule)->has_momentum ? p.m : 0;
        assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
        assert_int_equal(lk_parallel_open(&parallel, comm, &model, 1, &options), LK_OK);
        for (size_t i = 0; i < COUNT; i++)
            p.values[i] = (double)lk_parallel_param(parallel, 0)[i];
        for (uint32_t step = 0; step < STEPS; step++) {
            const double lr = step == 4 ? 0 : 0.5 / (1 + step % 3);
            run_step(parallel, 1, step, lr);
            plain_step(&p, step, lr);
            check(parallel, &p);
        }
        lk_parallel_free(parallel);
        lk_comm_free(comm);
    }
}

/* The uses of a tensor are one gradient for the norm, whether it is compressed or left whole. */
static void uses_are_clipped_together(void **state)
{
    static plain p;
    (void)state;
    for (uint32_t c = 0; c < 4; c++) {
        lk_comm            *comm;
        lk_parallel        *parallel;
        lk_param            tied     = model;
        lk_exchange         exchange = LK_EXCHANGE_INIT;
        lk_parallel_options options  = { .struct_size     = sizeof(lk_parallel_options),
                                         .virtual_workers = LEAVES,
                                         .unused          = LK_UNUSED_ZERO,
                                         .exchange        = &exchange };
        memset(&p, 0, sizeof p);
        p.rule  = LK_FEEDBACK_OFF;
        p.whole = c < 2;
        p.clip = exchange.clip        = 0.7;
        tied.uses                     = 1 + c % 2;
        exchange.groups               = GROUPS;
        exchange.compressor           = p.whole ? &lki_compressor_powersgd : &thirds;
        exchange.compression.min_rate = 1000; /* so powersgd leaves the tensor whole */
        exchange.feedback             = p.rule;
        assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
        assert_int_equal(lk_parallel_open(&parallel, comm, &tied, 1, &options), LK_OK);
        for (size_t i = 0; i < COUNT; i++)
            p.values[i] = (double)lk_parallel_param(parallel, 0)[i];
        for (uint32_t step = 0; step < STEPS; step++) {
            run_step(parallel, tied.uses, step, 0.5);
            plain_step(&p, step, 0.5);
            for (size_t i = 0; i < COUNT; i++)
                assert_true(fabs((double)lk_parallel_param(parallel, 0)[i] - p.values[i]) < 1e-6);
        }
        lk_parallel_free(parallel);
        lk_comm_free(comm);
    }
}

/* ---- A vote ---------------------------------------------------------------------------------- */

/* Returns the update of an element, in units of the learning rate, by loops over groups. */
static float plain_vote(uint32_t step, size_t i, float m, float momentum[GROUPS][COUNT])
{
    int votes = 0, voters = 0;
    for (uint32_t g = 0; g < GROUPS; g++) {
        uint64_t samples = samples_of(step, 2 * g) + samples_of(step, 2 * g + 1);
        float    sum     = gradient_of(i, step, 2 * g) + gradient_of(i, step, 2 * g + 1);
        if (samples == 0)
            continue; /* a group without samples does not vote */
        momentum[g][i] = m * momentum[g][i] + (1 - m) * (sum / (float)samples);
        votes += momentum[g][i] < 0 ? -1 : 1;
        voters++;
    }
    return voters == 0 ? 0 : votes < 0 ? -1.0f : 1.0f;
}

static void the_majority_of_groups_has_its_sign(void **state)
{
    static float        momentum[GROUPS][COUNT], values[COUNT];
    lk_comm            *comm;
    lk_parallel        *parallel;
    lk_exchange         exchange = LK_EXCHANGE_INIT;
    lk_parallel_options options  = { .struct_size     = sizeof(lk_parallel_options),
                                     .virtual_workers = LEAVES,
                                     .unused          = LK_UNUSED_ZERO,
                                     .exchange        = &exchange };
    uint32_t            negative = 0;
    (void)state;
    exchange.groups     = GROUPS;
    exchange.compressor = &lki_compressor_vote;
    exchange.momentum   = 0.5;
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&parallel, comm, &model, 1, &options), LK_OK);
    for (uint32_t step = 0; step < STEPS; step++) {
        memcpy(values, lk_parallel_param(parallel, 0), sizeof values);
        run_step(parallel, 1, step, 0.25);
        for (size_t i = 0; i < COUNT; i++) {
            float sign = plain_vote(step, i, 0.5f, momentum);
            float move = values[i] - lk_parallel_param(parallel, 0)[i];
            assert_true(fabsf(move - 0.25f * sign) < 1e-6f);
            negative += sign < 0;
        }
    }
    assert_true(negative > COUNT * STEPS / 4 && negative < COUNT * STEPS * 3 / 4);
    lk_parallel_free(parallel);
    lk_comm_free(comm);
}

/* ---- Refusals -------------------------------------------------------------------------------- */

static void invalid_rules_are_refused(void **state)
{
    static const struct {
        const lk_compressor *compressor;
        lk_feedback          feedback;
        double               momentum;
        bool                 nesterov, good;
        double               clip;
    } cases[] = {
        { &thirds, LK_FEEDBACK_DGC, 0.5, true, true, 0 },
        { &thirds, LK_FEEDBACK_SIGNUM, 0.5, false, true, 0 },
        { NULL, LK_FEEDBACK_EF14, 0, false, true, 0 },
        { &lki_compressor_sign, LK_FEEDBACK_DGC, 0, false, false, 0 },     /* selects nothing */
        { &thirds, LK_FEEDBACK_DGC, 1, false, false, 0 },    /* too much momentum */
        { &thirds, LK_FEEDBACK_DGC, -0.1, false, false, 0 }, /* too little */
        { &thirds, LK_FEEDBACK_EF14, 0.9, false, false, 0 }, /* has no momentum */
        { &thirds, LK_FEEDBACK_SIGNUM, 0.9, true, false, 0 },
        { &thirds, (lk_feedback)77, 0, false, false, 0 },
        { &lki_compressor_vote, LK_FEEDBACK_OFF, 0, false, true, 0 },
        { &lki_compressor_vote, LK_FEEDBACK_DEFAULT, 0.5, false, true, 0 },
        { &lki_compressor_vote, LK_FEEDBACK_EF14, 0, false, false, 0 }, /* has no residual */
        { &thirds, LK_FEEDBACK_EF14, 0, false, true, 3 },
        { &thirds, LK_FEEDBACK_EF14, 0, false, false, -3 },
        { &thirds, LK_FEEDBACK_EF14, 0, false, false, (double)NAN },
        { NULL, LK_FEEDBACK_DEFAULT, 0, false, false, 3 }, /* gradients are sent whole */
        { NULL, LK_FEEDBACK_DGC, 0, false, false, 0 },
        { NULL, LK_FEEDBACK_EF21, 0, false, false, 0 },
        { &lki_compressor_vote, LK_FEEDBACK_EF21, 0, false, false, 0 },
        { &lki_compressor_powersgd, LK_FEEDBACK_EF21, 0, false, false, 0 },
        { NULL, LK_FEEDBACK_SIGNUM, 0, false, false, 0 },
    };
    const uint32_t alone = 1;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lk_exchange exchange         = LK_EXCHANGE_INIT;
        exchange.compressor          = cases[i].compressor;
        exchange.feedback            = cases[i].feedback;
        exchange.momentum            = cases[i].momentum;
        exchange.nesterov            = cases[i].nesterov;
        exchange.clip                = cases[i].clip;
        lk_parallel_options options  = { .struct_size     = sizeof(lk_parallel_options),
                                         .virtual_workers = 4,
                                         .unused          = LK_UNUSED_ZERO,
                                         .exchange        = &exchange };
        lk_parallel_cost    cost;
        assert_int_equal(lk_parallel_estimate(&cost, &model, 1, &options, &alone, 1),
                         cases[i].good ? LK_OK : LK_EINVAL);
    }
}

static void the_rule_by_default_is_the_compressors(void **state)
{
    lk_exchange exchange = LK_EXCHANGE_INIT;
    (void)state;
    assert_int_equal(lk_exchange_feedback(&exchange), LK_FEEDBACK_OFF);
    for (uint32_t i = 0; (exchange.compressor = lk_compressors(i)) != NULL; i++) {
        const char *name     = exchange.compressor->name;
        bool        unbiased = strcmp(name, "terngrad") == 0 || strcmp(name, "qsgd") == 0;
        assert_int_equal(lk_exchange_feedback(&exchange),
                         unbiased                   ? LK_FEEDBACK_OFF
                         : strcmp(name, "vote") == 0 ? LK_FEEDBACK_SIGNUM
                                                     : LK_FEEDBACK_EF14);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_are_those_of_plain_loops),
        cmocka_unit_test(uses_are_clipped_together),
        cmocka_unit_test(the_majority_of_groups_has_its_sign),
        cmocka_unit_test(invalid_rules_are_refused),
        cmocka_unit_test(the_rule_by_default_is_the_compressors),
    };
    return cmocka_run_group_tests_name("parallel.features.groups_rules", tests, NULL, NULL);
}
