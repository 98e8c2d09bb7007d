/* rules_test.c -- tests of the rules by which groups keep values.
 *
 * Goal:    every rule is the arithmetic of its paper, with plain loops as the oracle.  The sum of
 *          what was sent and what is still kept is that of all gradients.
 * Control: dgc with everything sent is not SGD with momentum, and a rule without its second half
 *          loses gradients.
 */
#include <math.h>

#include "compress/chosen.h"
#include "compress/values_testing.h"

enum { COUNT = 777, GROUPS = 3, STEPS = 40, SAMPLES = 4 };

static float values[GROUPS][COUNT], out[COUNT];

static lkt_compressed groups_of(const char *name, double ratio, lk_feedback feedback)
{
    lkt_compressed c = { .by = find(name), .options = LK_COMPRESSION_INIT, .groups = GROUPS,
                         .samples = SAMPLES, .feedback = feedback, .momentum = 0.875f,
                         .key = { .rows = COUNT, .cols = 1, .tensor = 2 } };
    c.options.ratio  = ratio;
    c.options.levels = 127;
    lkt_compressed_open(&c);
    return c;
}

static void draw(uint64_t step)
{
    for (uint32_t g = 0; g < GROUPS; g++)
        fill(values[g], COUNT, step % 5 == 4 ? MOSTLY_ZERO : NORMAL, step * GROUPS + g);
}

static void play(lkt_compressed *c)
{
    float *all[GROUPS] = { values[0], values[1], values[2] };
    lkt_compressed_step(c, all, out);
}

/* ---- dgc --------------------------------------------------------------------------------- */

/* The vectors of the reference code, and everything that was ever added to `accumulated`. */
typedef struct {
    float  velocity[GROUPS][COUNT], accumulated[GROUPS][COUNT];
    double added[COUNT], sent[COUNT];
} reference;

/* Adds the gradients of a step, which are in `values`. */
static void reference_add(reference *r, float m, bool nesterov)
{
    for (uint32_t g = 0; g < GROUPS; g++)
        for (size_t i = 0; i < COUNT; i++) {
            float  gradient = values[g][i] / SAMPLES;
            float *u = &r->velocity[g][i], *v = &r->accumulated[g][i];
            if (nesterov) {
                *u = m * (*u + gradient);
                *v = *v + (*u + gradient);
                r->added[i] += (double)(*u + gradient) * SAMPLES;
            } else {
                *u = m * *u + gradient;
                *v = *v + *u;
                r->added[i] += (double)*u * SAMPLES;
            }
        }
}

/* Zeroes what the groups' messages of topk have sent, and adds it to `sent`. */
static void reference_send(reference *r, const lkt_compressed *c)
{
    const size_t k = lki_chosen(&c->options, &c->key);
    for (uint32_t g = 0; g < GROUPS; g++) {
        const uint32_t *indices = c->messages[g];
        for (size_t j = 0; j < k; j++) {
            r->sent[indices[j]] += (double)r->accumulated[g][indices[j]] * SAMPLES;
            r->velocity[g][indices[j]] = r->accumulated[g][indices[j]] = 0;
        }
    }
}

static void dgc_is_the_reference_code(void **state)
{
    static const double ratios[] = { 0.02, 0.3, 1 };
    (void)state;
    for (size_t n = 0; n < 6; n++) {
        static reference r;
        lkt_compressed   c = groups_of("topk", ratios[n / 2], LK_FEEDBACK_DGC);
        double           got[COUNT] = { 0 };
        memset(&r, 0, sizeof r);
        c.nesterov = n % 2 == 1;
        for (uint64_t step = 0; step < STEPS; step++) {
            draw(step);
            reference_add(&r, c.momentum, c.nesterov);
            play(&c);
            reference_send(&r, &c);
            for (uint32_t g = 0; g < GROUPS; g++)
                for (size_t i = 0; i < COUNT; i++) {
                    assert_true(fabsf(c.errors[g][i] - r.velocity[g][i]) < 1e-6f);
                    assert_true(fabsf(c.others[g][i] - r.accumulated[g][i]) < 1e-6f);
                }
            for (size_t i = 0; i < COUNT; i++)
                got[i] += (double)out[i];
        }
        for (size_t i = 0; i < COUNT; i++) {
            assert_true(fabs(got[i] - r.sent[i]) < 1e-3);
            for (uint32_t g = 0; g < GROUPS; g++)
                got[i] += (double)c.others[g][i] * SAMPLES;
            assert_true(fabs(got[i] - r.added[i]) < 1e-3);
        }
        lkt_compressed_close(&c);
    }
}

/* With everything sent the velocity never lasts: a step sends g, or g + m g with Nesterov's. */
static void dgc_of_everything_is_not_momentum(void **state)
{
    (void)state;
    for (int nesterov = 0; nesterov < 2; nesterov++) {
        lkt_compressed c = groups_of("randomk", 1, LK_FEEDBACK_DGC);
        double         momentum[COUNT] = { 0 }, differs = 0;
        c.nesterov       = nesterov;
        const double all = nesterov ? 1 + (double)c.momentum : 1;
        for (uint64_t step = 0; step < STEPS; step++) {
            double sum[COUNT] = { 0 };
            draw(step);
            for (size_t i = 0; i < COUNT; i++) {
                for (uint32_t g = 0; g < GROUPS; g++)
                    sum[i] += (double)values[g][i];
                momentum[i] = (double)c.momentum * momentum[i] + sum[i];
            }
            play(&c);
            for (size_t i = 0; i < COUNT; i++) {
                assert_true(fabs((double)out[i] - all * sum[i]) < 1e-5);
                differs = fmax(differs, fabs((double)out[i] - momentum[i]));
            }
        }
        assert_true(differs > 0.5);
        lkt_compressed_close(&c);
    }
}

/* An element that was not sent keeps its bits, whatever the number of samples. */
static void dgc_keeps_what_is_not_sent(void **state)
{
    (void)state;
    static float   zeros[GROUPS][COUNT], was[COUNT];
    lkt_compressed c = groups_of("topk", 0.1, LK_FEEDBACK_DGC);
    c.samples        = 3;
    draw(0);
    play(&c);
    memcpy(was, c.others[1], sizeof was);
    memset(c.errors[1], 0, sizeof was); /* the velocity, so that nothing is added */
    memcpy(values, zeros, sizeof values);
    play(&c);
    size_t kept = 0;
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(c.others[1][i] == was[i] || c.others[1][i] == 0);
        kept += c.others[1][i] != 0;
    }
    assert_true(kept > COUNT / 2);
    lkt_compressed_close(&c);
}

/* ---- signum ------------------------------------------------------------------------------ */

static void signum_sends_the_momentum_of_each_group(void **state)
{
    (void)state;
    static float   momentum[GROUPS][COUNT];
    lkt_compressed c    = groups_of("topk", 1, LK_FEEDBACK_SIGNUM);
    const float    rest = 1 - c.momentum;
    memset(momentum, 0, sizeof momentum);
    for (uint64_t step = 0; step < STEPS; step++) {
        double sum[COUNT] = { 0 };
        c.samples         = SAMPLES + step % 2;
        draw(step);
        for (uint32_t g = 0; g < GROUPS; g++)
            for (size_t i = 0; i < COUNT; i++) {
                float gradient = values[g][i] / (float)c.samples;
                momentum[g][i] = c.momentum * momentum[g][i] + rest * gradient;
                sum[i] += (double)(momentum[g][i] * (float)c.samples);
            }
        play(&c);
        for (uint32_t g = 0; g < GROUPS; g++)
            assert_memory_equal(c.errors[g], momentum[g], sizeof momentum[g]);
        for (size_t i = 0; i < COUNT; i++)
            assert_true(fabs((double)out[i] - sum[i]) < 1e-5);
    }
    lkt_compressed_close(&c);
}

/* ---- ef21 -------------------------------------------------------------------------------- */

/* Everything in units of a mean, as in the paper. */
static void ef21_sends_changes_of_estimates(void **state)
{
    static const double ratios[] = { 0.02, 0.3, 1 };
    (void)state;
    for (size_t n = 0; n < 3; n++) {
        static double  estimates[GROUPS][COUNT], mean[COUNT];
        lkt_compressed c = groups_of("topk", ratios[n], LK_FEEDBACK_EF21);
        memset(estimates, 0, sizeof estimates);
        memset(mean, 0, sizeof mean);
        for (uint64_t step = 0; step < STEPS; step++) {
            static double gradient[GROUPS][COUNT];
            double        all;
            draw(step);
            for (uint32_t g = 0; g < GROUPS; g++)
                for (size_t i = 0; i < COUNT; i++)
                    gradient[g][i] = (double)values[g][i] / SAMPLES;
            play(&c);
            for (uint32_t g = 0; g < GROUPS; g++) {
                const uint32_t *indices = c.messages[g];
                for (size_t j = 0; j < lki_chosen(&c.options, &c.key); j++)
                    estimates[g][indices[j]] = gradient[g][indices[j]];
                for (size_t i = 0; i < COUNT; i++)
                    assert_true(fabs((double)c.errors[g][i] - estimates[g][i]) < 1e-6);
            }
            for (size_t i = 0; i < COUNT; i++) {
                mean[i] += (double)out[i] / GROUPS;
                all = (estimates[0][i] + estimates[1][i] + estimates[2][i]) / GROUPS;
                assert_true(fabs(mean[i] - all) < 1e-5); /* all changes are the last estimate */
                all = (gradient[0][i] + gradient[1][i] + gradient[2][i]) / GROUPS;
                assert_true(ratios[n] < 1 || fabs(mean[i] - all) < 1e-5);
            }
        }
        lkt_compressed_close(&c);
    }
}

/* ---- All of them ------------------------------------------------------------------------- */

static const lk_feedback all_rules[] = { LK_FEEDBACK_EF14, LK_FEEDBACK_OFF, LK_FEEDBACK_DGC,
                                         LK_FEEDBACK_SIGNUM, LK_FEEDBACK_EF21,
                                         LK_FEEDBACK_EF21_SGDM };
enum { RULES = sizeof all_rules / sizeof all_rules[0] };

/* A group without samples keeps its vectors, and sends zeros. */
static void a_group_without_samples_waits(void **state)
{
    (void)state;
    for (size_t r = 0; r < RULES; r++) {
        static float   was[2][COUNT];
        lkt_compressed c = groups_of("topk", 0.1, all_rules[r]);
        draw(1);
        play(&c);
        memcpy(was[0], c.errors[2], sizeof was[0]);
        memcpy(was[1], c.others[2], sizeof was[1]);
        c.samples = 0;
        memset(values, 0, sizeof values);
        play(&c);
        assert_memory_equal(was[0], c.errors[2], sizeof was[0]);
        assert_memory_equal(was[1], c.others[2], sizeof was[1]);
        for (size_t i = 0; i < COUNT; i++)
            assert_true(out[i] == 0);
        lkt_compressed_close(&c);
    }
}

/* Every compressor of the library with ef14. */
static void what_is_sent_and_the_errors_are_all_gradients(void **state)
{
    (void)state;
    for (uint32_t n = 0; lk_compressors(n) != NULL; n++)
        for (int feedback = 0; feedback < 2; feedback++) {
            const char       *name = lk_compressors(n)->name;
            const lk_feedback rule = feedback ? LK_FEEDBACK_EF14 : LK_FEEDBACK_OFF;
            lkt_compressed    c    = groups_of(name, 0.1, rule);
            double            total[COUNT] = { 0 }, largest = 0, worst = 0;
            if (c.by->bytes(&c.options, &c.key, 0) == 0 || c.by->conclude != NULL ||
                strcmp(name, "terngrad") == 0) {
                lkt_compressed_close(&c); /* a column is left whole; terngrad's errors grow */
                continue;
            }
            for (uint64_t step = 0; step < STEPS; step++) {
                draw(step);
                for (size_t i = 0; i < COUNT; i++)
                    for (uint32_t g = 0; g < GROUPS; g++)
                        total[i] += (double)values[g][i];
                play(&c);
                for (size_t i = 0; i < COUNT; i++) {
                    total[i] -= (double)out[i];
                    largest = fmax(largest, fabs((double)out[i]));
                }
            }
            for (size_t i = 0; i < COUNT; i++) {
                for (uint32_t g = 0; g < GROUPS; g++)
                    total[i] -= (double)c.errors[g][i] * SAMPLES;
                worst = fmax(worst, fabs(total[i]));
            }
            assert_int_equal(worst < 1e-5 * STEPS * largest, feedback);
            lkt_compressed_close(&c);
        }
}

static void rules_have_names(void **state)
{
    (void)state;
    lk_feedback found;
    for (size_t r = 0; r < RULES; r++) {
        assert_int_equal(lk_feedback_find(&found, lk_feedback_name(all_rules[r])), LK_OK);
        assert_int_equal(found, all_rules[r]);
        for (size_t other = 0; other < r; other++) /* the message of an error lists them */
            assert_string_not_equal(lk_feedback_name(all_rules[r]),
                                    lk_feedback_name(all_rules[other]));
    }
    assert_null(lk_feedback_name(LK_FEEDBACK_DEFAULT));
    assert_null(lk_feedback_name((lk_feedback)99));
    assert_int_equal(lk_feedback_find(&found, "ef15"), LK_EINVAL);
    for (size_t r = 0; r < RULES; r++)
        assert_non_null(strstr(lk_error_last()->message, lk_feedback_name(all_rules[r])));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dgc_is_the_reference_code),
        cmocka_unit_test(dgc_of_everything_is_not_momentum),
        cmocka_unit_test(dgc_keeps_what_is_not_sent),
        cmocka_unit_test(signum_sends_the_momentum_of_each_group),
        cmocka_unit_test(ef21_sends_changes_of_estimates),
        cmocka_unit_test(a_group_without_samples_waits),
        cmocka_unit_test(what_is_sent_and_the_errors_are_all_gradients),
        cmocka_unit_test(rules_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
