/* hooks_test.c -- gradients that rounding or hooks change before they are summed.
 *
 * Goal:   with a comm_dtype, a hook or both, the bits are those of strategy single, for any
 *         strategy, workers and hosts.  A hook receives each bucket of each virtual worker once and
 *         whole.  A hook's failure ends the step on all ranks.  Overflow in 16 bits, or a
 *         non-finite value in a block, is detected by all ranks; with a loss scale the step is
 *         skipped.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "base/thorough_testing.h"
#include "comm/hosted_testing.h"
#include "parallel/state.h"

enum { LEAVES = 6, STEPS = 3, TERMS = 4, ELEMENTS = 4700, PARAMS = 3, RANKS_MAX = 6 };

static const lk_param model[PARAMS] = {
    { .name = "tied", .shape = { 2, { 40, 100 } }, .uses = 2, .init = LK_INIT_UNIFORM, .scale = 1 },
    { .name = "w", .shape = { 1, { 667 } }, .init = LK_INIT_UNIFORM, .scale = 1 },
    { .name = "b", .shape = { 1, { 33 } } },
};
/* the default order: from the last parameter to the first, and from the last use to the first */
static const size_t            count_of[TERMS] = { 33, 667, 4000, 4000 };
static const lk_parallel_state running[]       = { { "mean", 3, 0, 0.1f } };

typedef enum { NO_HOOK, CLIPS, COUNTS, FAILS } hook_kind;

typedef struct {
    hosted          hosts; /* .hosts 0: one host with `ranks` threads */
    uint32_t        ranks;
    const char     *strategy;
    lk_dtype        dtype;
    hook_kind       hook;
    bool            early; /* announces terms as they are computed */
    lk_loss_scaling scaling;
    float           large; /* value of one element of virtual worker 2's gradient in step 1 */
} job;

/* The record of one rank. */
typedef struct {
    uint32_t  rank;
    hook_kind kind;
    uint32_t  calls[STEPS][LEAVES], buckets;
    size_t    elements[STEPS][LEAVES];
} witness;

typedef struct {
    job       job;
    float     values[ELEMENTS]; /* final parameters of rank 0 */
    double    norms[STEPS];
    bool      skipped[STEPS];
    lk_status statuses[RANKS_MAX];
    lk_error  errors[RANKS_MAX];
    witness   seen[RANKS_MAX];
} outcome;

static float gradient(uint64_t step, uint32_t v, uint32_t term, uint32_t i)
{
    lki_random r = lki_philox(11, LKI_RNG_DATA, i, (uint32_t)step, v, term);
    return (lki_random_unit(r.word[0]) - 0.5f) * (i % 7 == 0 ? 40 : 1);
}

static void clip(const lk_bucket *bucket)
{
    for (size_t i = 0; i < bucket->elements; i++)
        bucket->values[i] = fminf(fmaxf(bucket->values[i], -3), 3 + (float)bucket->virtual_worker);
}

static lk_status on_bucket(const lk_bucket *bucket, void *context)
{
    witness *w = context;
    if (bucket->dtype != LK_F32 || bucket->index >= bucket->count || bucket->step >= STEPS)
        return LK_EINVAL;
    w->calls[bucket->step][bucket->virtual_worker]++;
    w->elements[bucket->step][bucket->virtual_worker] += bucket->elements;
    w->buckets = bucket->count;
    if (w->kind == CLIPS)
        clip(bucket);
    return w->kind == FAILS && w->rank == 1 && bucket->step == 1 ? LK_EFORMAT : LK_OK;
}

static void run_turn(const job *j, lk_parallel *p, uint64_t step, uint32_t v, float scale)
{
    for (uint32_t t = 0; t < TERMS; t++) {
        bool   empty = false;
        float *grad  = t % 2 == 0 ? lk_parallel_grad(p, 0, t)
                                  : lk_parallel_grad_new(p, 0, t, &empty);
        for (uint32_t i = 0; i < count_of[t]; i++)
            grad[i] = (empty ? 0 : grad[i]) + gradient(step, v, t, i) * scale;
        if (t == 1 && v == 2 && step == 1 && j->large != 0)
            grad[660] = j->large * scale;
        if (j->early)
            lk_parallel_grad_ready(p, 0, t);
    }
    lk_parallel_state_sum(p, 0, 0)[1] += 1.0f / 3;
    lk_parallel_report(p, 0, 1, 1, 1, 0);
}

static lk_status run_steps(outcome *o, lk_parallel *p, uint32_t rank)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    for (uint64_t step = 0; step < STEPS; step++) {
        LK_TRY(lk_parallel_begin(p, step));
        float scale = lk_parallel_loss_scale(p, LEAVES);
        while (lk_parallel_next(p, &turn))
            run_turn(&o->job, p, step, turn.virtual_worker, scale);
        LK_TRY(lk_parallel_finish(p, 0.01, &result));
        if (rank == 0) {
            o->norms[step]   = result.grad_norm;
            o->skipped[step] = result.skipped;
        }
    }
    return LK_OK;
}

static lk_status keep_values(outcome *o, lk_parallel *p, uint32_t rank)
{
    static _Thread_local float piece[4000];
    size_t                     at = 0;
    for (uint32_t i = 0; i < PARAMS; i++) {
        size_t       count = lk_shape_count(model[i].shape);
        const float *whole = lk_parallel_value(p, i, 0);
        if (whole == NULL)
            LK_TRY(lk_parallel_fetch(p, i, 0, 0, count, piece));
        if (rank == 0)
            memcpy(o->values + at, whole == NULL ? piece : whole, count * sizeof *piece);
        at += count;
    }
    return LK_OK;
}

static bool run_rank(lk_comm *comm, void *context)
{
    outcome            *o       = context;
    uint32_t            rank    = lk_comm_rank(comm);
    lk_parallel        *p       = NULL;
    lk_parallel_options options = { .struct_size        = sizeof(lk_parallel_options),
                                    .strategy           = o->job.strategy,
                                    .virtual_workers    = LEAVES,
                                    .bucket_bytes       = 9000,
                                    .first_bucket_bytes = 100,
                                    .optimizer          = { .kind = LK_ADAMW },
                                    .scaling            = o->job.scaling,
                                    .states             = running,
                                    .state_count        = 1,
                                    .comm_dtype         = o->job.dtype,
                                    .hook               = o->job.hook ? on_bucket : NULL,
                                    .hook_context       = &o->seen[rank] };
    o->seen[rank]               = (witness){ .rank = rank, .kind = o->job.hook };
    lk_status status            = lk_parallel_open(&p, comm, model, PARAMS, &options);
    if (status == LK_OK)
        status = run_steps(o, p, rank);
    if (status == LK_OK)
        status = keep_values(o, p, rank);
    o->errors[rank]   = *lk_error_last();
    o->statuses[rank] = status;
    /* all ranks detect the failure, and no rank leaves before all have detected it */
    if (status == LK_ENONFINITE)
        CHECK(lk_barrier(comm) == LK_OK);
    else if (status != LK_OK)
        lk_comm_abort(comm);
    lk_parallel_free(p);
    return true;
}

static void run(outcome *o, const job *j)
{
    memset(o, 0, sizeof *o);
    o->job = *j;
    assert_true(j->hosts.hosts > 0 ? hosted_all(j->hosts, run_rank, o)
                                   : world_all(j->ranks, true, run_rank, o));
}

/* All strategies, on one host and on several. */
static const job crews[] = {
    { .ranks = 1, .strategy = "ddp" },
    { .ranks = 3, .strategy = "ddp", .early = true },
    { .ranks = 4, .strategy = "zero2", .early = true },
    { .hosts = { .hosts = 2, .each = 1 }, .strategy = "ddp" },
    { .hosts = { .hosts = 3, .each = 2 }, .strategy = "ddp", .early = true },
    { .hosts = { .hosts = 2, .each = 2, .fewer = 1 }, .strategy = "zero1", .early = true },
    { .hosts = { .hosts = 2, .each = 2 }, .strategy = "zero2", .early = true },
    { .hosts = { .hosts = 6, .each = 1 }, .strategy = "zero2", .early = true },
};
enum { CREWS = sizeof crews / sizeof crews[0] };

static void equals(const outcome *got, const outcome *want)
{
    const job *j = &got->job;
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        if (got->statuses[r] != LK_OK)
            fail_msg("%s: %s", j->strategy, got->errors[r].message);
    if (memcmp(got->values, want->values, sizeof want->values) != 0 ||
        memcmp(got->norms, want->norms, sizeof want->norms) != 0)
        fail_msg("%s on %u ranks or %u hosts, %s, hook %d: other bits", j->strategy, j->ranks,
                 j->hosts.hosts, lk_dtype_name(j->dtype), (int)j->hook);
}

/* Compares each crew with one rank.  With LK_BRIEF=1 compares every second crew, beginning with
 * `first`, which is 0 or 1. */
static void bits_are_those_of_single(lk_dtype dtype, hook_kind hook, size_t first, outcome *want)
{
    static outcome got;
    run(want, &(job){ .ranks = 1, .strategy = "single", .dtype = dtype, .hook = hook,
                      .scaling.rule = LK_SCALE_NONE });
    for (size_t c = lki_brief() ? first : 0; c < CREWS; c += lki_brief() ? 2 : 1) {
        job j   = crews[c];
        j.dtype = dtype;
        j.hook  = hook;
        j.scaling.rule = LK_SCALE_NONE; /* LK_F16 needs a decision */
        run(&got, &j);
        equals(&got, want);
    }
}

static void rounded_gradients_have_the_bits_of_single(void **state)
{
    static outcome plain, bf16, fp16, int8, int4;
    (void)state;
    run(&plain, &(job){ .ranks = 1, .strategy = "single" });
    bits_are_those_of_single(LK_BF16, NO_HOOK, 0, &bf16);
    bits_are_those_of_single(LK_F16, NO_HOOK, 1, &fp16);
    bits_are_those_of_single(LK_I8, NO_HOOK, 0, &int8);
    bits_are_those_of_single(LK_I4, NO_HOOK, 1, &int4);
    assert_memory_not_equal(plain.values, bf16.values, sizeof plain.values);
    assert_memory_not_equal(bf16.values, fp16.values, sizeof plain.values);
    assert_memory_not_equal(int8.values, int4.values, sizeof plain.values);
    for (uint32_t s = 0; s < STEPS; s++) { /* the results must be close to the unrounded values */
        assert_true(fabs(bf16.norms[s] / plain.norms[s] - 1) < 0x1p-8);
        assert_true(fabs(fp16.norms[s] / plain.norms[s] - 1) < 0x1p-11);
        assert_true(fabs(int8.norms[s] / plain.norms[s] - 1) < 0x1p-8);
        assert_true(fabs(int4.norms[s] / plain.norms[s] - 1) < 0x1p-4);
    }
}

static void hooks_compose_with_rounding(void **state)
{
    static outcome plain, clipped, both, counted;
    (void)state;
    run(&plain, &(job){ .ranks = 1, .strategy = "single" });
    run(&counted, &(job){ .ranks = 1, .strategy = "single", .hook = COUNTS });
    equals(&counted, &plain);
    bits_are_those_of_single(LK_F32, CLIPS, 0, &clipped);
    bits_are_those_of_single(LK_BF16, CLIPS, 1, &both);
    assert_true(clipped.norms[0] < plain.norms[0]);
    assert_memory_not_equal(clipped.values, both.values, sizeof both.values);
}

/* Checks that a hook receives the whole bucket with its padding on every rank. */
static void a_hook_receives_every_bucket_once(void **state)
{
    static outcome o;
    (void)state;
    for (size_t c = 1; c < CREWS; c += 2) {
        job j  = crews[c];
        j.hook = COUNTS;
        run(&o, &j);
        for (uint32_t s = 0; s < STEPS; s++)
            for (uint32_t v = 0; v < LEAVES; v++) {
                uint32_t calls    = 0;
                size_t   elements = 0;
                for (uint32_t r = 0; r < RANKS_MAX; r++) {
                    calls += o.seen[r].calls[s][v];
                    elements += o.seen[r].elements[s][v];
                }
                assert_true(o.seen[0].buckets >= 3);
                assert_int_equal(calls, o.seen[0].buckets);
                assert_true(elements == 48 + 672 + 4000 + 4000);
            }
    }
}

static void a_failing_hook_ends_the_step_on_all_ranks(void **state)
{
    static outcome o;
    (void)state;
    for (size_t c = 0; c < CREWS; c += lki_brief() ? 3 : 1) {
        job      j     = crews[c];
        uint32_t ranks = j.hosts.hosts > 0 ? hosted_size(j.hosts) : j.ranks;
        j.hook         = FAILS;
        run(&o, &j);
        for (uint32_t r = 0; r < ranks && ranks > 1; r++) {
            assert_int_equal(o.statuses[r], r == 1 ? LK_EFORMAT : LK_EPEER);
            assert_non_null(strstr(o.errors[r].message, "step 2"));
            assert_non_null(strstr(o.errors[r].message, "hook failed"));
        }
        assert_true(ranks == 1 || o.norms[1] == 0); /* no update */
    }
}

/* Sends the value 70000, which exceeds the range of FP16.  Expects that all ranks fail or, with a
 * loss scale, skip the step. */
static void an_overflow_is_detected_by_all_ranks(void **state)
{
    static outcome o;
    (void)state;
    for (size_t c = 0; c < CREWS; c += lki_brief() ? 4 : 2) {
        job j   = crews[c];
        j.dtype = LK_F16;
        j.large = 70000;
        j.scaling.rule = LK_SCALE_NONE;
        run(&o, &j);
        for (uint32_t r = 0; r < (j.hosts.hosts > 0 ? hosted_size(j.hosts) : j.ranks); r++) {
            assert_int_equal(o.statuses[r], LK_ENONFINITE);
            assert_non_null(strstr(o.errors[r].message, "the gradient of 'w' is not finite"));
        }
        j.scaling = (lk_loss_scaling){ .rule = LK_SCALE_PYTORCH, .initial = 8 };
        run(&o, &j);
        for (uint32_t r = 0; r < RANKS_MAX; r++)
            assert_int_equal(o.statuses[r], LK_OK);
        assert_true(!o.skipped[0] && o.skipped[1] && !o.skipped[2]);
        /* gradients are scaled by an eighth of the loss scale, so they fit */
        j.scaling.initial = 1;
        run(&o, &j);
        assert_true(!o.skipped[0] && !o.skipped[1] && !o.skipped[2] && o.norms[1] > 70000.0 / 7);
    }
}

/* Sends a non-finite value in a quantised block.  Expects that the whole block becomes NaN, in this
 * step only. */
static void a_non_finite_value_makes_its_block_nan(void **state)
{
    static outcome o, plain;
    (void)state;
    for (size_t c = 0; c < CREWS; c += lki_brief() ? 5 : 1) {
        job j   = crews[c];
        j.dtype = c % 2 == 0 ? LK_I4 : LK_I8;
        j.large = c % 3 == 0 ? NAN : INFINITY;
        run(&o, &j);
        for (uint32_t r = 0; r < (j.hosts.hosts > 0 ? hosted_size(j.hosts) : j.ranks); r++) {
            assert_int_equal(o.statuses[r], LK_ENONFINITE);
            assert_non_null(strstr(o.errors[r].message, "the gradient of 'w' is not finite"));
        }
        j.scaling = (lk_loss_scaling){ .rule = LK_SCALE_PYTORCH, .initial = 8 };
        run(&o, &j);
        j = (job){ .ranks    = 1,
                   .strategy = "single",
                   .dtype    = j.dtype,
                   .large    = j.large,
                   .scaling  = j.scaling };
        run(&plain, &j);
        equals(&o, &plain);
        assert_true(!o.skipped[0] && o.skipped[1] && !o.skipped[2]);
    }
}

static bool refuses(lk_comm *comm, void *context)
{
    lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                    .virtual_workers = 2,
                                    .comm_dtype      = LK_F64 };
    lk_parallel        *p;
    (void)context;
    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &options) == LK_EINVAL);
    CHECK(strstr(lk_error_last()->message, "or F32, not as F64") != NULL);
    options = (lk_parallel_options){ .struct_size     = sizeof(lk_parallel_options),
                                     .virtual_workers = 2,
                                     .hook            = on_bucket,
                                     .noise_decay     = 0.9 };
    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &options) == LK_EINVAL);
    CHECK(strstr(lk_error_last()->message, "`noise_decay` or `hook`") != NULL);
    options = (lk_parallel_options){ .struct_size     = sizeof(lk_parallel_options),
                                     .virtual_workers = 2,
                                     .comm_dtype = lk_comm_rank(comm) == 0 ? LK_BF16 : LK_F32 };
    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &options) == LK_EMISMATCH);
    return true;
}

static void invalid_options_are_refused(void **state)
{
    (void)state;
    assert_true(world_all(2, true, refuses, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounded_gradients_have_the_bits_of_single),
        cmocka_unit_test(hooks_compose_with_rounding),
        cmocka_unit_test(a_hook_receives_every_bucket_once),
        cmocka_unit_test(a_failing_hook_ends_the_step_on_all_ranks),
        cmocka_unit_test(an_overflow_is_detected_by_all_ranks),
        cmocka_unit_test(a_non_finite_value_makes_its_block_nan),
        cmocka_unit_test(invalid_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
