/* denominators_test.c -- the mean over all counted samples is divided once, for any split.
 *
 * Goal:   1,000 random batches of samples of 1 to 6 tokens are divided at random between virtual
 *         workers and micro-batches.  Each split gives the loss, norm and values that one worker
 *         computes for the whole batch, bit for bit.  Many turns, and some workers, get no samples.
 * Method: every gradient is an integer, so no sum is rounded and order cannot matter.  Only the
 *         divisor of a step remains: samples, tokens or the sum of their weights.  Tokens with an
 *         ignored label contribute neither to the sum nor to the divisor.  The values after a step
 *         are also compared with integer sums computed here.
 * Negative controls: dividing in each turn and averaging the results, or counting ignored tokens,
 *         gives other values.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "comm/hosted_testing.h"
#include "parallel/state.h"

enum { SPLITS = 1000, STEPS = 25, CREWS = SPLITS / STEPS };
enum { PARAMS = 3, TERMS = 4, ELEMENTS = 96, SAMPLES_MAX = 40, TOKENS_MAX = 6, RANKS_MAX = 4 };
enum { MICROS_MAX = 3, LEAVES_MAX = 9 };

static const lk_param model[PARAMS] = {
    { .name = "shared", .shape = { 2, { 8, 5 } }, .uses = 2 },
    { .name = "weight", .shape = { 2, { 5, 11 } } },
    { .name = "bias", .shape = { 1, { 1 } } },
};
static const uint32_t param_of[TERMS] = { 2, 1, 0, 0 }; /* the default order */

typedef enum { SAMPLES, TOKENS, WEIGHTS, DENOMINATORS } denominator;
typedef enum { NOTHING, MEAN_OF_MEANS, COUNT_IGNORED } mischief;

typedef struct { double loss, norm; float values[PARAMS][ELEMENTS]; } outcome;

/* A crew.  Samples are assigned to the turns of `options`.  A crew that computes a whole batch has
 * only one turn. */
typedef struct {
    lk_parallel_options options;
    uint32_t            number, ranks;
    hosted              hosts; /* zero: a single host */
    denominator         by;
    mischief            mischief;
    outcome            *outcomes; /* [STEPS], those of rank 0 */
} crew;

/* Returns a number below `below` that depends on the crew's batch but not on the rank. */
static uint32_t draw(const crew *c, uint32_t step, uint32_t sample, uint32_t what, uint32_t below)
{
    return lki_philox(31, LKI_RNG_DATA, c->number, step, sample, what).word[0] % below;
}

static uint32_t samples_of(const crew *c, uint32_t step)
{
    return 1 + draw(c, step, 0, 1000, SAMPLES_MAX);
}

/* Returns the weight of a token; 0 if its label is ignored.  The first token of a batch is never
 * ignored. */
static uint32_t weight_of(const crew *c, uint32_t step, uint32_t sample, uint32_t token)
{
    if (token > draw(c, step, sample, 1001, TOKENS_MAX))
        return 0; /* the sample is shorter */
    if (draw(c, step, sample, 1100 + token, 4) == 0 && sample + token > 0)
        return 0;
    return c->by == WEIGHTS ? 1 + draw(c, step, sample, 1200 + token, 7) : 1;
}

/* Returns the gradient of a token with respect to an element of a term, from -8 to 8. */
static int32_t slope(const crew *c, uint32_t step, uint32_t sample, uint32_t token, uint32_t term,
                     uint32_t element)
{
    uint32_t x = draw(c, step, sample, 1300 + token, UINT32_MAX) ^ (term * 977 + element);
    x          = (x ^ x >> 15) * 0x2c1b3c6du;
    return (int32_t)((x ^ x >> 12) % 17) - 8;
}

/* Returns the count of a sample: its contribution to the divisor. */
static uint32_t count_of(const crew *c, uint32_t step, uint32_t sample)
{
    uint32_t total = 0, ignored = 0;
    for (uint32_t token = 0; token < TOKENS_MAX; token++) {
        uint32_t weight = weight_of(c, step, sample, token);
        total += weight;
        ignored += weight == 0;
    }
    if (c->mischief == COUNT_IGNORED)
        return total + ignored;
    return c->by == SAMPLES ? total > 0 : total;
}

static bool is_mine(const crew *c, uint32_t step, uint32_t sample, lk_parallel_turn turn)
{
    return draw(c, step, sample, 1400, LEAVES_MAX * 7) % c->options.virtual_workers ==
               turn.virtual_worker &&
           draw(c, step, sample, 1401, MICROS_MAX * 8) % c->options.micro_count ==
               turn.micro_index;
}

/* Sums a term over a turn or, if `turn` is NULL, over the whole batch. */
static void add_term(const crew *c, uint32_t step, const lk_parallel_turn *turn, uint32_t term,
                     int64_t sums[ELEMENTS])
{
    uint32_t elements = (uint32_t)lk_shape_count(model[param_of[term]].shape);
    for (uint32_t sample = 0; sample < samples_of(c, step); sample++)
        for (uint32_t token = 0; token < TOKENS_MAX; token++) {
            uint32_t weight = weight_of(c, step, sample, token);
            if (weight == 0 || (turn != NULL && !is_mine(c, step, sample, *turn)))
                continue;
            for (uint32_t i = 0; i < elements; i++)
                sums[i] += (int64_t)weight * slope(c, step, sample, token, term, i);
        }
}

static void run_turn(lk_parallel *p, const crew *c, uint32_t step, lk_parallel_turn turn)
{
    uint32_t samples = 0, count = 0;
    for (uint32_t sample = 0; sample < samples_of(c, step); sample++)
        if (is_mine(c, step, sample, turn)) {
            samples++;
            count += count_of(c, step, sample);
        }
    bool  own   = c->mischief == MEAN_OF_MEANS && count > 0;
    float share = own ? 1.0f / (float)count : 1;
    for (uint32_t term = 0; term < TERMS; term++) {
        int64_t sums[ELEMENTS] = { 0 };
        float  *grad           = lk_parallel_grad(p, 0, term);
        add_term(c, step, &turn, term, sums);
        for (size_t i = 0; i < lk_shape_count(model[param_of[term]].shape); i++)
            grad[i] += (float)sums[i] * share;
        lk_parallel_grad_ready(p, 0, term);
    }
    lk_parallel_report(p, 0, own ? 5.0 : 5.0 * count, samples, own ? 1 : count, 0);
}

/* Returns true if the norm, and the values after the first step (initially 0), equal the integer
 * sums. */
static bool is_mean(const crew *c, uint32_t step, const outcome *out)
{
    uint64_t count   = 0;
    double   squares = 0;
    for (uint32_t sample = 0; sample < samples_of(c, step); sample++)
        count += count_of(c, step, sample);
    for (uint32_t p = 0, term = TERMS; p < PARAMS; p++) {
        int64_t sums[ELEMENTS] = { 0 };
        for (; term > 0 && param_of[term - 1] == p; term--)
            add_term(c, step, NULL, term - 1, sums);
        for (size_t i = 0; i < lk_shape_count(model[p].shape); i++) {
            double mean = (double)sums[i] / (double)count;
            squares += mean * mean;
            if (step == 0 && !(fabs((double)out->values[p][i] + mean) <= fabs(mean) * 0x1p-22))
                return false;
        }
    }
    return fabs(out->norm - sqrt(squares)) <= 1e-12 * out->norm;
}

static lk_status one_step(lk_parallel *p, const crew *c, uint32_t step, outcome *out)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    LK_TRY(lk_parallel_begin(p, step));
    while (lk_parallel_next(p, &turn))
        run_turn(p, c, step, turn);
    LK_TRY(lk_parallel_finish(p, 1, &result));
    if (lk_comm_rank(p->comm) != 0)
        return LK_OK;
    *out = (outcome){ .loss = result.loss, .norm = result.grad_norm };
    for (uint32_t i = 0; i < PARAMS; i++)
        memcpy(out->values[i], lk_parallel_param(p, i),
               lk_shape_count(model[i].shape) * sizeof(float));
    if (c->mischief == NOTHING && !is_mean(c, step, out))
        return lk_fail(LK_EFORMAT, "crew %u, step %u: not the mean", c->number, step);
    return LK_OK;
}

static bool rank_main(lk_comm *comm, void *context)
{
    const crew  *c = context;
    lk_parallel *p = NULL;
    lk_status    status = lk_parallel_open(&p, comm, model, PARAMS, &c->options);
    for (uint32_t step = 0; status == LK_OK && step < STEPS; step++)
        status = one_step(p, c, step, &c->outcomes[step]);
    if (status == LK_OK)
        status = lk_barrier(comm); /* rank 0 has finished reading the last values */
    if (status != LK_OK) {
        fprintf(stderr, "rank %u: %s\n", lk_comm_rank(comm), lk_error_last()->message);
        lk_comm_abort(comm);
    }
    lk_parallel_free(p);
    return status == LK_OK;
}

static void run(crew *c)
{
    assert_true(c->hosts.hosts > 0 ? hosted_all(c->hosts, rank_main, c)
                                   : world_all(c->ranks, true, rank_main, c));
}

/* ---- Crews ------------------------------------------------------------------------------- */

static crew whole_batch(uint32_t number, outcome *outcomes)
{
    return (crew){ .options  = { .struct_size = sizeof(lk_parallel_options), .strategy = "single",
                                .virtual_workers = 1, .micro_count = 1 },
                   .number   = number,
                   .ranks    = 1,
                   .by       = number % DENOMINATORS,
                   .outcomes = outcomes };
}

/* Returns a crew that splits the same batches between turns. */
static crew split_batch(uint32_t number, outcome *outcomes)
{
    static const char *const strategies[] = { "ddp", "zero1", "zero2", "single" };
    static const hosted shapes[] = { { .hosts = 2, .each = 1 }, { .hosts = 2, .each = 2 },
                                     { .hosts = 3, .each = 1 } };
    crew c             = whole_batch(number, outcomes);
    c.options.strategy = strategies[number % 4];
    c.options.virtual_workers = 4 + number % (LEAVES_MAX - 3);
    c.options.micro_count     = 1 + number / 2 % MICROS_MAX;
    c.options.bucket_bytes    = number % 5 == 0 ? 64 : 0;
    if (number % 4 != 3)
        c.ranks = 1 + number / 3 % RANKS_MAX;
    if (number % 4 != 3 && number % 5 == 2) {
        c.hosts      = shapes[number % 3];
        c.hosts.seed = number;
        c.ranks      = hosted_size(c.hosts);
    }
    return c;
}

/* Returns the number of steps in which the two outcomes differ. */
static uint32_t differing(const outcome *a, const outcome *b)
{
    uint32_t count = 0;
    for (uint32_t step = 0; step < STEPS; step++)
        count += memcmp(&a[step], &b[step], sizeof *a) != 0;
    return count;
}

static void any_split_gives_the_step_of_the_whole_batch(void **state)
{
    static outcome want[STEPS], got[STEPS];
    (void)state;
    for (uint32_t number = 0; number < CREWS; number++) {
        crew whole = whole_batch(number, want), split = split_batch(number, got);
        run(&whole);
        run(&split);
        if (differing(want, got) > 0)
            print_message("crew %u (%s, V %u, %u workers) differs\n", number,
                          split.options.strategy, split.options.virtual_workers, split.ranks);
        assert_int_equal(differing(want, got), 0);
    }
}

static void a_mean_of_means_and_ignored_tokens_differ(void **state)
{
    static outcome want[STEPS], got[STEPS];
    (void)state;
    for (uint32_t number = 0; number < 2 * DENOMINATORS; number++) {
        crew whole = whole_batch(number, want), split = split_batch(number, got);
        split.mischief = number < DENOMINATORS ? MEAN_OF_MEANS : COUNT_IGNORED;
        run(&whole);
        run(&split);
        assert_in_range(differing(want, got), STEPS * 3 / 4, STEPS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_split_gives_the_step_of_the_whole_batch),
        cmocka_unit_test(a_mean_of_means_and_ignored_tokens_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
