/* rules_test.c -- groups and rules of parameters, clipping by value, the average of the weights.
 *
 * Goal:   each parameter has the learning rate and the weight decay of its groups.  Elements of the
 *         mean gradient are clipped at the limit.  The average e of the weights p is p after the
 *         first update, and continues by e += (1 - decay) (p - e).  The bits are equal with any
 *         strategy and any number of ranks and hosts.
 * Method: sgd and adamw against the formulas in double precision; then runs on several hosts
 *         against `single`, with a hash of all values and states.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/rng.h"
#include "comm/hosted_testing.h"
#include "parallel/state.h"

enum { LONG = 9001, SHORT = 5, LATE = 100, ELEMENTS = LONG + SHORT + LATE, STEPS = 5 };
enum { PARAMS = 3, LEAVES = 8, COUNT = 3 * LEAVES };
#define RATE 0.01
#define DECAY 0.1
#define LIMIT 0.05
#define MEAN 0.9

static const lk_param model[PARAMS] = {
    { .name = "w", .shape = { 1, { LONG } }, .init = LK_INIT_NORMAL, .scale = 0.1f },
    { .name = "b", .shape = { 1, { SHORT } }, .init = LK_INIT_ONE, .no_decay = true },
    { .name = "late.w", .shape = { 1, { LATE } }, .init = LK_INIT_NORMAL, .scale = 0.1f },
};
static const size_t first_of[PARAMS + 1] = { 0, LONG, LONG + SHORT, ELEMENTS };

/* The last group that sets a value takes precedence: late.w has a separate rate and no decay. */
static const lk_param_group groups[] = {
    { .pattern = "late*", .has_lr = true, .lr = 7, .has_decay = true },
    { .pattern = "?", .has_decay = true, .weight_decay = 0.2 },
    { .pattern = "*w", .has_lr = true, .lr = 0.5 },
    { .pattern = "w", .has_decay = true, .weight_decay = DECAY },
    { .pattern = "l*.*w*", .has_lr = true, .lr = 0.25 },
};
static const double rate_of[PARAMS] = { 0.5, 1, 0.25 }, decay_of[PARAMS] = { DECAY, 0.2, 0 };

static double gradient(uint32_t step, uint32_t v, uint32_t i)
{
    lki_random r = lki_philox(7, LKI_RNG_DATA, i, step, v, 0);
    return (double)lki_random_unit(r.word[0]) - 0.45;
}

static lk_parallel_options options_of(lk_optimizer_kind kind, const char *strategy)
{
    return (lk_parallel_options){ .struct_size     = sizeof(lk_parallel_options),
                                  .strategy        = strategy,
                                  .virtual_workers = LEAVES,
                                  .bucket_bytes    = 9000,
                                  .optimizer = { .kind         = kind,
                                                 .momentum     = kind == LK_SGD ? 0.9 : 0,
                                                 .weight_decay = DECAY,
                                                 .ema          = MEAN },
                                  .clip_value  = LIMIT,
                                  .seed        = 4,
                                  .groups      = groups,
                                  .group_count = sizeof groups / sizeof groups[0] };
}

static bool take_step(lk_comm *comm, lk_parallel *p, uint32_t step)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    CHECK(lk_parallel_begin(p, step) == LK_OK);
    while (lk_parallel_next(p, &turn)) {
        for (uint32_t term = 0; term < PARAMS; term++) { /* the last parameter first */
            uint32_t param = PARAMS - 1 - term;
            float   *to    = lk_parallel_grad(p, 0, term);
            CHECK(to != NULL);
            for (size_t i = first_of[param]; i < first_of[param + 1]; i++)
                to[i - first_of[param]] += (float)gradient(step, turn.virtual_worker, (uint32_t)i);
            lk_parallel_grad_ready(p, 0, term);
        }
        lk_parallel_report(p, 0, 1, COUNT / LEAVES, COUNT / LEAVES, 0);
    }
    CHECK(lk_parallel_finish(p, RATE, &result) == LK_OK);
    return true;
}

/* ---- Against formulas -------------------------------------------------------------------- */

typedef struct {
    double p[ELEMENTS], m[ELEMENTS], v[ELEMENTS], e[ELEMENTS];
} plain;

static double cut_gradient(uint32_t step, size_t i)
{
    double sum = 0;
    for (uint32_t v = 0; v < LEAVES; v++)
        sum += gradient(step, v, (uint32_t)i);
    return fmax(-LIMIT, fmin(LIMIT, sum / COUNT));
}

static void plain_element(plain *s, lk_optimizer_kind kind, uint32_t step, size_t i, int param)
{
    double g = cut_gradient(step, i), lr = RATE * rate_of[param], decay = decay_of[param];
    if (kind == LK_SGD) {
        g += decay * s->p[i];
        s->m[i] = step == 0 ? g : 0.9 * s->m[i] + g;
        s->p[i] -= lr * s->m[i];
    } else {
        s->m[i] = 0.9 * s->m[i] + 0.1 * g;
        s->v[i] = 0.999 * s->v[i] + 0.001 * g * g;
        s->p[i] -= lr * decay * s->p[i];
        s->p[i] -= lr * s->m[i] / (1 - pow(0.9, step + 1)) /
                   (sqrt(s->v[i] / (1 - pow(0.999, step + 1))) + 1e-8);
    }
    s->e[i] = step == 0 ? s->p[i] : MEAN * s->e[i] + (1 - MEAN) * s->p[i];
}

static void compare(const lk_parallel *p, uint32_t which, const double *want)
{
    for (uint32_t param = 0; param < PARAMS; param++)
        for (size_t i = first_of[param]; i < first_of[param + 1]; i++) {
            double got = (double)lk_parallel_value(p, param, which)[i - first_of[param]];
            if (!(fabs(got - want[i]) < 1e-6))
                fail_msg("value %u of '%s', element %zu: %.9g, not %.9g", which, model[param].name,
                         i - first_of[param], got, want[i]);
        }
}

static void follows(lk_optimizer_kind kind)
{
    static plain        s;
    lk_comm            *comm    = NULL;
    lk_parallel        *p       = NULL;
    lk_parallel_options options = options_of(kind, "single");
    uint32_t            cut     = 0;
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm, model, PARAMS, &options), LK_OK);
    s = (plain){ .p = { 0 } };
    for (int param = 0; param < PARAMS; param++)
        for (size_t i = first_of[param]; i < first_of[param + 1]; i++)
            s.p[i] = (double)lk_parallel_param(p, (uint32_t)param)[i - first_of[param]];
    for (uint32_t step = 0; step < STEPS; step++) {
        assert_true(take_step(comm, p, step));
        for (int param = 0; param < PARAMS; param++)
            for (size_t i = first_of[param]; i < first_of[param + 1]; i++) {
                cut += fabs(cut_gradient(step, i)) >= LIMIT;
                plain_element(&s, kind, step, i, param);
            }
    }
    /* some elements are clipped, but most are not */
    assert_in_range(cut, ELEMENTS / 100, ELEMENTS * STEPS / 2);
    compare(p, 0, s.p);
    compare(p, lk_optimizer_state_count(&options.optimizer), s.e);
    lk_parallel_free(p);
    lk_comm_free(comm);
}

static void rules_follow_the_formulas(void **state)
{
    (void)state;
    follows(LK_SGD);
    follows(LK_ADAMW);
}

/* ---- Equal bits everywhere ---------------------------------------------------------------- */

typedef struct {
    lk_parallel_options options;
    bool                changes; /* sets other rules before each step */
    uint32_t            late;    /* the rules are those of this many steps later */
    uint64_t            hashes[HOSTED_MAX];
} job;

/* Writes the rules of a step: "w" has another rate in every step, "b" has a decay of its own from
 * step 2 on, and "late.w" does not learn before step 3. */
static void rules_at(lk_param_rule rules[PARAMS], uint32_t step)
{
    rules[0] = (lk_param_rule){ .lr = 1.0 / (1 + step) };
    rules[1] = (lk_param_rule){ .lr = 1, .own_decay = step >= 2, .weight_decay = 0.3 };
    rules[2] = (lk_param_rule){ .lr = step < 3 ? 0 : 2 };
}

static bool run_steps(lk_comm *comm, void *context)
{
    job          *j = context;
    lk_param_rule rules[PARAMS];
    lk_parallel *p;
    uint64_t    *hash = &j->hashes[lk_comm_rank(comm)];
    float       *values = malloc(LONG * sizeof *values);
    CHECK(values != NULL);
    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &j->options) == LK_OK);
    for (uint32_t step = 0; step < STEPS; step++) {
        rules_at(rules, step + j->late);
        CHECK(!j->changes || lk_parallel_set_rules(p, rules) == LK_OK);
        memset(rules, 0, sizeof rules); /* the library has a copy */
        if (!take_step(comm, p, step))
            return false;
    }
    *hash = 0;
    for (uint32_t which = 0; which <= lk_optimizer_state_count(&j->options.optimizer); which++)
        for (uint32_t param = 0; param < PARAMS; param++) {
            size_t count = first_of[param + 1] - first_of[param];
            CHECK(lk_parallel_fetch(p, param, which, 0, count, values) == LK_OK);
            *hash = *hash * 31 + lki_xxh3(values, count * sizeof *values);
        }
    free(values);
    lk_parallel_free(p);
    return true;
}

static uint64_t hash_of_job(hosted h, job j)
{
    assert_true(hosted_all(h, run_steps, &j));
    for (uint32_t r = 1; r < hosted_size(h); r++)
        assert_int_equal(j.hashes[r], j.hashes[0]);
    return j.hashes[0];
}

static uint64_t hash_on(hosted h, lk_parallel_options options)
{
    return hash_of_job(h, (job){ .options = options });
}

static void rules_have_the_same_bits_on_any_ranks(void **state)
{
    static const hosted alone    = { .hosts = 1, .each = 1 };
    static const hosted places[] = { { .hosts = 1, .each = 3 },
                                     { .hosts = 2, .each = 2, .seed = 2 },
                                     { .hosts = 3, .each = 1, .seed = 3 } };
    static const lk_optimizer_kind kinds[] = { LK_SGD,  LK_ADAMW,   LK_LAMB,
                                               LK_LION, LK_ADAGRAD, LK_YOGI };
    static const char *const strategies[]  = { "ddp", "zero1", "zero2" };
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        uint64_t want = hash_on(alone, options_of(kinds[k], "single"));
        for (size_t i = 0; i < 3; i++)
            assert_int_equal(hash_on(places[i], options_of(kinds[k], strategies[(k + i) % 3])),
                             want);
        lk_parallel_options other = options_of(kinds[k], "single");
        other.group_count--;
        assert_int_not_equal(hash_on(alone, other), want);
        other            = options_of(kinds[k], "single");
        other.clip_value = 0.04;
        assert_int_not_equal(hash_on(alone, other), want);
        other               = options_of(kinds[k], "single");
        other.optimizer.ema = 0.8;
        assert_int_not_equal(hash_on(alone, other), want);
    }
}

static void rules_replace_groups(void **state)
{
    static const hosted alone = { .hosts = 1, .each = 1 }, pairs = { .hosts = 2, .each = 2 };
    lk_parallel_options options = options_of(LK_ADAMW, "single");
    lk_param_rule       rules[PARAMS];
    uint64_t            want = hash_on(alone, options);
    (void)state;
    assert_int_equal(lk_param_rules(rules, model, PARAMS, groups, options.group_count), LK_OK);
    options.group_count = 0;
    options.rules       = rules;
    assert_int_equal(hash_on(alone, options), want);
    options.strategy = "zero1";
    assert_int_equal(hash_on(pairs, options), want);
    rules[2].lr *= 1.5;
    assert_int_not_equal(hash_on(alone, options), want);
}

static void rules_may_change_between_steps(void **state)
{
    static const hosted alone = { .hosts = 1, .each = 1 }, trio = { .hosts = 1, .each = 3 },
                        pairs = { .hosts = 2, .each = 2, .seed = 4 };
    static const char *const strategies[] = { "ddp", "zero1", "zero2" };
    job                      j    = { .options = options_of(LK_SGD, "single"), .changes = true };
    uint64_t                 want = hash_of_job(alone, j);
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        j.options.strategy = strategies[i];
        assert_int_equal(hash_of_job(trio, j), want);
        assert_int_equal(hash_of_job(pairs, j), want);
    }
    j.options.strategy    = "single";
    j.options.group_count = 0; /* groups are replaced before the first step */
    assert_int_equal(hash_of_job(alone, j), want);
    j.late = 1;
    assert_int_not_equal(hash_of_job(alone, j), want);
    j.changes = false;
    assert_int_not_equal(hash_of_job(alone, j), want);
}

/* After step 0, rank 0 sets the rules of step 1, rank 1 begins step 1, rank 2 still is in step 0,
 * and rank 3 has joined.  All must find the rules of step 0. */
static bool recall_rules(lk_comm *comm, void *context)
{
    lk_parallel_options options = options_of(LK_SGD, "ddp");
    const uint32_t      rank    = lk_comm_rank(comm);
    lk_param_rule       first[PARAMS], second[PARAMS], *found = NULL;
    lk_parallel        *p;
    (void)context;
    rules_at(first, 0);
    rules_at(second, 1);
    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &options) == LK_OK);
    CHECK(lk_parallel_set_rules(p, first) == LK_OK);
    CHECK(take_step(comm, p, 0));
    CHECK(rank == 2 || lk_parallel_set_rules(p, second) == LK_OK);
    CHECK(rank != 1 || lk_parallel_begin(p, 1) == LK_OK);
    CHECK(lki_rules_recall(&found, p, rank == 3 ? NULL : p, 0) == LK_OK);
    CHECK(memcmp(found, first, sizeof first) == 0);
    lki_free(found);
    lk_parallel_free(p);
    return true;
}

static void a_completed_step_has_its_own_rules(void **state)
{
    (void)state;
    assert_true(hosted_all((hosted){ .hosts = 1, .each = 4 }, recall_rules, NULL));
    assert_true(hosted_all((hosted){ .hosts = 2, .each = 2, .seed = 5 }, recall_rules, NULL));
}

/* Opens with other rules on rank 1. */
static bool open_differently(lk_comm *comm, void *context)
{
    lk_parallel_options options = options_of(LK_SGD, "ddp");
    lk_parallel        *p       = NULL;
    lk_param_rule       rules[PARAMS];
    (void)context;
    rules_at(rules, lk_comm_rank(comm));
    options.group_count = 0;
    options.rules       = rules;
    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &options) == LK_EMISMATCH);
    CHECK(strstr(lk_error_last()->message, "groups or rules") != NULL);
    return true;
}

/* ---- Refused options ---------------------------------------------------------------------- */

static void refuses(const lk_parallel_options *options, const char *why)
{
    static const uint32_t one = 1;
    lk_parallel_cost      cost;
    assert_int_equal(lk_parallel_estimate(&cost, model, PARAMS, options, &one, 1), LK_EINVAL);
    if (strstr(lk_error_last()->message, why) == NULL)
        fail_msg("no '%s' in: %s", why, lk_error_last()->message);
}

static void invalid_options_are_refused(void **state)
{
    lk_param_group      group   = { .pattern = "w?", .has_lr = true };
    lk_parallel_options options = options_of(LK_SGD, "ddp");
    (void)state;
    options.groups      = &group;
    options.group_count = 1;
    refuses(&options, "no parameter is named like 'w?'; there are w, b, late.w");
    group = (lk_param_group){ .pattern = "w" };
    refuses(&options, "the group 'w' says nothing");
    group = (lk_param_group){ .pattern = "w", .has_lr = true, .lr = -1 };
    refuses(&options, "lr = -1 is no factor");
    group = (lk_param_group){ .pattern = "w", .has_decay = true, .weight_decay = (double)NAN };
    refuses(&options, "is no weight decay");
    group = (lk_param_group){ .pattern = "", .has_lr = true };
    refuses(&options, "needs a pattern");
    options.group_count = 0;
    options.clip_norm   = 1;
    refuses(&options, "`clip_norm` or `clip_value`, not both");
    options.clip_norm = 0;
    options.optimizer = (lk_optimizer){ .kind = LK_LARS };
    refuses(&options, "use `clip_norm` instead of `clip_value`");
    options               = options_of(LK_SGD, "ddp");
    options.optimizer.ema = 1;
    refuses(&options, "`optimizer.ema` 1 is not in [0, 1)");
}

static void invalid_rules_are_refused(void **state)
{
    lk_param_rule       rules[PARAMS];
    lk_parallel_options options = options_of(LK_SGD, "single");
    lk_comm            *comm    = NULL;
    lk_parallel        *p       = NULL;
    (void)state;
    rules_at(rules, 0);
    options.rules = rules;
    refuses(&options, "`groups` or `rules`, not both");
    options.group_count = 0;
    rules[1].lr         = (double)NAN;
    refuses(&options, "the rule of 'b': lr = nan is no factor");
    rules_at(rules, 2);
    rules[1].weight_decay = -0.5;
    refuses(&options, "the rule of 'b': weight_decay = -0.5 is no weight decay");
    rules_at(rules, 0);
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm, model, PARAMS, &options), LK_OK);
    assert_int_equal(lk_parallel_begin(p, 0), LK_OK);
    assert_int_equal(lk_parallel_set_rules(p, rules), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "step 0 is under way"));
    lk_parallel_free(p);
    lk_comm_free(comm);
    assert_true(hosted_all((hosted){ .hosts = 1, .each = 2 }, open_differently, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_follow_the_formulas),
        cmocka_unit_test(rules_have_the_same_bits_on_any_ranks),
        cmocka_unit_test(rules_replace_groups),
        cmocka_unit_test(rules_may_change_between_steps),
        cmocka_unit_test(a_completed_step_has_its_own_rules),
        cmocka_unit_test(invalid_options_are_refused),
        cmocka_unit_test(invalid_rules_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
