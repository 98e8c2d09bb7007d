/* parallel_test.c -- any number of ranks gives the results of `single`, bit for bit.
 * Method: a gradient is a pure function of step, virtual worker, micro-batch, element and value,
 * with a wide spread of exponents so that order matters.  Ranks are threads, on one or more hosts.
 * Negative controls: other trees and swapped virtual workers must give another hash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/float.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/sanitized_testing.h"
#include "base/thorough_testing.h"
#include "comm/hosted_testing.h"
#include "parallel/parallel_testing.h"
#include "parallel/state.h"

enum { RANKS_MAX = 12, STEPS = 4, ELEMENTS_MAX = 9000 };

#if defined(__x86_64__)
#define TOWARDS_ZERO UINT64_C(0x6000)
#else
#define TOWARDS_ZERO UINT64_C(0xc00000)
#endif

static const lk_param model[] = {
    { .name = "wte", .shape = { 2, { 75, 60 } }, .uses = 2, .init = LK_INIT_NORMAL,
      .scale = 0.02f },
    { .name = LKT_LONG_NAME, .shape = { LK_RANK_MAX, { 3, 3, 10, 2, 5, 1, 5, 2 } },
      .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .no_decay = true },
    { .name = "s", .shape = { 1, { 1 } }, .init = LK_INIT_ONE },
};
enum { PARAMS = 4, TERMS = 5 };

static const lk_parallel_state running[] = { { "mean", 7, 0, 0.1f }, { "var", 20, 1, 0.1f } };

typedef enum {
    NOTHING, SWAP_TWO_LEAVES,
    SWAP_HOSTS, /* exchanges host 0's last virtual worker and host 1's first */
    CORRUPT,
    DRIFT, /* a host changes a value and the value's hash */
    NOT_FINITE,
    OTHER_SHAPE, OTHER_VALUES, OTHER_TERMS, OTHER_ROUNDING, OUT_OF_TURN
} mischief;

/* A run, and the results of one of its ranks. */
typedef struct {
    lk_parallel_options options;
    uint32_t            ranks;
    hosted              hosts; /* zero: a single host */
    mischief            mischief;
    bool                announce; /* calls grad_ready and progress as an engine would */
} crew;

typedef struct {
    const crew *crew;
    lk_comm    *comm;
    lk_status   status;
    lk_error    error;
    char        hash[65];
    uint32_t    ran[64], ran_count; /* virtual workers, in order; their number */
} rank_run;

static float noise(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    lki_random r     = lki_philox(77, LKI_RNG_DATA, a, b, c, d);
    float      value = lki_random_unit(r.word[0]) - 0.5f;
    for (uint32_t shift = r.word[1] % 20; shift > 0; shift--)
        value *= 0.5f;
    return value;
}

static uint32_t swapped(uint32_t v, uint32_t a, uint32_t b)
{
    return v == a ? b : v == b ? a : v;
}

static void add_gradients(lk_parallel *p, const crew *w, uint32_t step, lk_parallel_turn turn)
{
    uint32_t v = turn.virtual_worker, half = w->options.virtual_workers / 2;
    if (w->mischief == SWAP_TWO_LEAVES || w->mischief == SWAP_HOSTS)
        v = w->mischief == SWAP_HOSTS ? swapped(v, half - 1, half) : swapped(v, 1, 2);
    /* the default order: last parameter first, and last use first */
    static const uint32_t param_of[TERMS] = { 3, 2, 1, 0, 0 };
    for (uint32_t t = TERMS; t-- > 0;)
        lk_parallel_read(p, t); /* forward */
    for (uint32_t t = 0; t < TERMS; t++) {
        lk_parallel_read(p, t);
        size_t       count = lk_shape_count(model[param_of[t]].shape);
        const float *value = lk_parallel_param(p, param_of[t]);
        bool         empty = false; /* some terms overwrite their memory, others add to zeros */
        float *grad = t % 2 ? lk_parallel_grad_new(p, 0, t, &empty) : lk_parallel_grad(p, 0, t);
        for (size_t i = 0; i < count; i++)
            /* CORRUPT: values are not read, because a read would race with the rank that corrupts
             * them */
            grad[i] = (empty ? 0 : grad[i]) +
                      noise((uint32_t)i, step * 100 + t, v, turn.micro_index) +
                      (w->mischief == CORRUPT || w->mischief == DRIFT ? 0 : 0.01f * value[i]);
        if (w->mischief == NOT_FINITE && step == 2 && v == 0 && t == 2)
            grad[5] = (float)strtod("nan", NULL);
        if (w->announce)
            lk_parallel_grad_ready(p, 0, t);
    }
    for (uint32_t s = 0; s < w->options.state_count; s++)
        for (size_t i = 0; i < running[s].count; i++)
            lk_parallel_state_sum(p, 0, s)[i] += 3 * noise((uint32_t)i, step, v, turn.micro_index);
}

/* Makes calls at the wrong time.  Expects that each call is refused and changes nothing. */
static lk_status call_out_of_turn(lk_parallel *p, bool under_way)
{
    lk_step_result   result;
    lk_parallel_turn turn;
    bool             refused = under_way ? lk_parallel_begin(p, 0) == LK_EINVAL
                                         : !lk_parallel_next(p, &turn) &&
                                               lk_parallel_finish(p, 0.01, &result) == LK_EINVAL;
    return refused ? LK_OK : lk_fail(LK_EFORMAT, "a call out of turn was let through");
}

static lk_status one_step(lk_parallel *p, rank_run *run, uint32_t step, lki_sha256 *hash)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    bool             out_of_turn = run->crew->mischief == OUT_OF_TURN;
    if (out_of_turn)
        LK_TRY(call_out_of_turn(p, false));
    LK_TRY(lk_parallel_begin(p, step));
    while (lk_parallel_next(p, &turn)) {
        if (step == 0 && turn.micro_index == 0)
            run->ran[run->ran_count++] = turn.virtual_worker;
        add_gradients(p, run->crew, step, turn);
        lk_parallel_report(p, 0, (double)noise(turn.virtual_worker, step, 9, turn.micro_index), 3,
                           3, 1);
        if (out_of_turn)
            LK_TRY(call_out_of_turn(p, true));
    }
    if (run->crew->mischief == CORRUPT && step == 2 && lk_comm_rank(run->comm) == 0)
        ((float *)(uintptr_t)lk_parallel_param(p, 1))[4096 + 7] += 1.0f;
    LK_TRY(lk_parallel_finish(p, 0.01, &result));
    if (run->crew->mischief == DRIFT && step == 1 && p->local == p->locals - 1 &&
        lk_comm_host(p->comm, p->rank) == 1) {
        p->params[p->layout->spans[p->owned.spans[0]].at] += 1.0f;
        lki_attest_written(p, p->layout->spans[p->owned.spans[0]].param);
    }
    lki_sha256_add(hash, &result.loss, sizeof result.loss);
    lki_sha256_add(hash, &result.grad_norm, sizeof result.grad_norm);
    return LK_OK;
}

/* Fetches a value in two parts; the first ends inside a span. */
static lk_status hash_value(lk_parallel *p, uint32_t param, uint32_t which, lki_sha256 *hash)
{
    static _Thread_local float values[ELEMENTS_MAX];
    size_t count = lk_shape_count(model[param].shape), first = count * 2 / 3;
    LK_TRY(lk_parallel_fetch(p, param, which, 0, first, values));
    LK_TRY(lk_parallel_fetch(p, param, which, first, count - first, values + first));
    lki_sha256_add(hash, values, count * sizeof(float));
    return LK_OK;
}

static lk_status hash_values(lk_parallel *p, const crew *w, lki_sha256 *hash)
{
    for (uint32_t i = 0; i < PARAMS; i++)
        for (uint32_t which = 0; which <= lk_optimizer_state_count(&w->options.optimizer); which++)
            LK_TRY(hash_value(p, i, which, hash));
    for (uint32_t s = 0; s < w->options.state_count; s++)
        lki_sha256_add(hash, lk_parallel_state_data(p, s), running[s].count * sizeof(float));
    return LK_OK;
}

static lk_status train(rank_run *run, lk_parallel **out)
{
    const crew *w = run->crew;
    lki_sha256   hash;
    lk_param     mine[PARAMS];
    memcpy(mine, model, sizeof model);
    if (w->mischief == OTHER_SHAPE && lk_comm_rank(run->comm) == 1)
        mine[2].shape.dims[0] = 34;
    lk_parallel_options    options      = w->options;
    const lk_parallel_term terms[TERMS] = { { 2, 0, 0 }, { 3, 0, 0 }, { 1, 0, 0 },
                                                  { 0, 1, 0 }, { 0, 0, 0 } };
    if (w->mischief == OTHER_TERMS && lk_comm_rank(run->comm) == 1) {
        options.terms      = terms;
        options.term_count = TERMS;
    }
    LK_TRY(lk_parallel_open(out, run->comm, mine, PARAMS, &options));
    if (w->mischief == OTHER_ROUNDING && lk_comm_rank(run->comm) == 1)
        /* affects only this thread, which ends soon */
        lki_float_mode_set(lki_float_mode() ^ TOWARDS_ZERO);
    if (w->mischief == OTHER_VALUES) {
        float values[33] = { (float)lk_comm_rank(run->comm) };
        LK_TRY(lk_parallel_load(*out, 2, 0, values));
    }
    lki_sha256_begin(&hash);
    for (uint32_t step = 0; step < STEPS; step++)
        LK_TRY(one_step(*out, run, step, &hash));
    LK_TRY(hash_values(*out, w, &hash));
    lki_sha256_end(&hash, run->hash);
    return lk_barrier(run->comm);
}

static void *rank_main(void *argument)
{
    rank_run    *run = argument;
    lk_parallel *p   = NULL;
    run->status      = train(run, &p);
    if (run->status != LK_OK) {
        run->error = *lk_error_last();
        lk_comm_abort(run->comm);
    }
    lk_parallel_free(p);
    return NULL;
}

static bool rank_on_host(lk_comm *comm, void *context)
{
    rank_run *run = (rank_run *)context + lk_comm_rank(comm);
    run->comm     = comm;
    (void)rank_main(run);
    return true;
}

static void run_on_one_host(const crew *w, rank_run runs[RANKS_MAX])
{
    lk_comm        *comms[RANKS_MAX] = { NULL };
    lk_comm_options options = { .struct_size = sizeof options, .timeout_ms = WORLD_PATIENCE_MS };
    assert_int_equal(lk_comm_open_threads(comms, w->ranks, &options), LK_OK);
    for (uint32_t r = 0; r < w->ranks; r++)
        runs[r].comm = comms[r];
    lkt_run_ranks(rank_main, runs, sizeof *runs, w->ranks);
    for (uint32_t r = 0; r < w->ranks; r++)
        lk_comm_free(comms[r]);
}

static void run_crew(const crew *w, rank_run runs[RANKS_MAX])
{
    for (uint32_t r = 0; r < w->ranks; r++)
        runs[r] = (rank_run){ .crew = w };
    if (w->hosts.hosts == 0)
        run_on_one_host(w, runs);
    else
        assert_true(hosted_all(w->hosts, rank_on_host, runs));
}

static crew make_crew(const char *strategy, uint32_t leaves, uint32_t ranks)
{
    return (crew){ .ranks   = ranks,
                    .options = { .struct_size     = sizeof(lk_parallel_options),
                                 .strategy        = strategy,
                                 .virtual_workers = leaves,
                                 .micro_count     = 2,
                                 .optimizer       = { .kind = LK_ADAMW, .weight_decay = 0.1 },
                                 .clip_norm       = 1,
                                 .seed            = 5,
                                 .states          = running,
                                 .state_count     = 2 } };
}

static crew make_hosted(uint32_t leaves, hosted hosts)
{
    crew w  = make_crew("ddp", leaves, hosted_size(hosts));
    w.hosts = hosts;
    return w;
}

/* Runs a crew that must succeed, checks the virtual workers of each rank, and returns the hash. */
static void hash_of(const crew *w, char hash[65])
{
    static rank_run runs[RANKS_MAX];
    lki_dealing     dealing = { .leaves = w->options.virtual_workers,
                                .ranks  = w->ranks,
                                .rounds = strstr("zero2 zero3 hybrid", w->options.strategy) };
    run_crew(w, runs);
    for (uint32_t r = 0; r < w->ranks; r++) {
        if (runs[r].status != LK_OK)
            print_message("rank %u: %s\n", r, runs[r].error.message);
        assert_int_equal(runs[r].status, LK_OK);
        assert_string_equal(runs[r].hash, runs[0].hash);
        lki_share share = lki_share_of(&dealing, r);
        assert_int_equal(runs[r].ran_count, share.count);
        for (uint32_t i = 0; i < runs[r].ran_count; i++)
            assert_int_equal(runs[r].ran[i], share.first + i * share.stride);
    }
    memcpy(hash, runs[0].hash, 65);
}

static void any_number_of_workers_gives_the_bits_of_single(void **state)
{
    (void)state;
    static const uint32_t leaves[] = { 1, 2, 3, 5, 8, 12 };
    for (size_t i = 0; i < sizeof leaves / sizeof leaves[0] - LKI_SANITIZED; i++) {
        char  want[65], got[65];
        crew single = make_crew("single", leaves[i], 1);
        hash_of(&single, want);
        for (uint32_t ranks = 1; ranks <= leaves[i]; ranks += lki_brief() ? 2 : 1) {
            crew w     = make_crew("ddp", leaves[i], ranks);
            w.announce = ranks % 2 == 0;
            hash_of(&w, got);
            assert_string_equal(got, want);
            w.options.strategy     = "zero2";
            w.options.bucket_bytes = ranks % 3 == 0 ? 1 : 0;
            if (ranks % 2 == 1)
                hash_of(&w, got);
            assert_string_equal(got, want);
        }
    }
}

static const hosted shapes[] = {
    { .hosts = 2, .each = 1, .seed = 1 },
    { .hosts = 2, .each = 2, .seed = 2 },
    { .hosts = 2, .each = 3, .seed = 3 },
    { .hosts = 4, .each = 1, .seed = 4 },
    { .hosts = 2, .each = 2, .fewer_first = 1, .seed = 5 },
    { .hosts = 3, .each = 3, .fewer = 2, .seed = 6 },
};
enum { SHAPES = LKI_SANITIZED ? 4 : sizeof shapes / sizeof shapes[0] };

static void several_hosts_give_the_bits_of_single(void **state)
{
    /* 1: every strategy; 2: every second strategy */
    const size_t step = lki_thorough() ? 1 : 2;
    (void)state;
    for (uint32_t leaves = 8; leaves <= 12; leaves += lki_brief() ? 8 : 4) {
        char want[65], got[65];
        crew single = make_crew("single", leaves, 1);
        hash_of(&single, want);
        for (size_t i = 0; i < SHAPES; i++) {
            crew w                       = make_hosted(leaves, shapes[i]);
            w.announce                   = i % 2 == 0;
            w.options.bucket_bytes       = i % 3 == 0 ? 0 : i % 3 == 1 ? 17000 : 1;
            w.options.first_bucket_bytes = w.options.bucket_bytes / 2;
            w.options.shard_hosts        = shapes[i].hosts / 2;
            for (size_t k = (i + leaves / 4) % step; k < 5; k += step) {
                w.options.strategy = (const char *[]){ "ddp", "zero1", "zero2", "zero3",
                                                       "hybrid" }[k];
                hash_of(&w, got);
                assert_string_equal(got, want);
            }
        }
    }
}

/* Tests virtual workers of one micro-batch, whose gradients are never whole on any rank. */
static void run_in_rounds(uint32_t leaves, uint32_t ranks, hosted hosts, const char *want)
{
    static const size_t caps[] = { 1, 17000, 1 << 20 };
    char got[65];
    for (uint32_t k = 0; k < (hosts.hosts > 0 ? 2 : 1); k++) {
        crew w                       = make_crew(k == 0 ? "zero2" : "zero3", leaves, ranks);
        w.hosts                      = hosts;
        w.announce                   = true;
        w.options.micro_count        = 1;
        w.options.bucket_bytes       = caps[(leaves + ranks) % 3];
        w.options.first_bucket_bytes = w.options.bucket_bytes;
        w.options.unit_buffers       = leaves % 3;
        hash_of(&w, got);
        assert_string_equal(got, want);
    }
}

static void rounds_give_the_bits_of_single(void **state)
{
    const uint32_t most = LKI_SANITIZED ? 5 : 12;
    (void)state;
    for (uint32_t leaves = 1; leaves <= 12; leaves = leaves * 3 / 2 + 1) {
        char want[65];
        crew single                = make_crew("single", leaves, 1);
        single.options.micro_count = 1;
        hash_of(&single, want);
        for (uint32_t ranks = 1; ranks <= leaves && ranks <= most; ranks += 1 + leaves / 3) {
            run_in_rounds(leaves, ranks, (hosted){ 0 }, want);
            if (ranks > 1)
                run_in_rounds(leaves, ranks, (hosted){ .hosts = ranks, .each = 1, .seed = ranks },
                              want);
        }
        for (size_t i = 0; leaves >= 8 && i < SHAPES; i += lki_brief() ? 2 : 1)
            run_in_rounds(leaves, hosted_size(shapes[i]), shapes[i], want);
    }
}

static void buckets_do_not_change_bits(void **state)
{
    (void)state;
    static const size_t caps[] = { 1, 17000, 40000, 1 << 20 };
    char                want[65], got[65];
    crew single = make_crew("single", 8, 1);
    hash_of(&single, want);
    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; i++) {
        crew ddp = make_crew("ddp", 8, 3);
        ddp.announce                   = true;
        ddp.options.bucket_bytes       = caps[i];
        ddp.options.first_bucket_bytes = caps[i] / 2 + 1;
        hash_of(&ddp, got);
        assert_string_equal(got, want);
    }
}

static void sgd_without_clipping_gives_the_bits_of_single(void **state)
{
    (void)state;
    char  want[65], got[65];
    crew single = make_crew("single", 5, 1);
    single.options.optimizer = (lk_optimizer){ .kind = LK_SGD, .momentum = 0.9, .nesterov = true };
    single.options.clip_norm = 0;
    crew ddp = single;
    ddp.options.strategy     = "ddp";
    ddp.ranks                = 4;
    hash_of(&single, want);
    hash_of(&ddp, got);
    assert_string_equal(got, want);
}

/* Trust ratios must be those of whole tensors, even if hosts store only parts of a tensor. */
static void every_optimizer_gives_the_bits_of_single(void **state)
{
    static const lk_optimizer optimizers[] = {
        { .kind = LK_LARS, .weight_decay = 0.01, .trust = 0.1 },
        { .kind = LK_LARS, .momentum_of = LK_MOMENTUM_OF_GRADIENTS, .nesterov = true },
        { .kind = LK_LAMB, .weight_decay = 0.1 },
        { .kind = LK_LAMB, .uncorrected = true, .decay_all = true },
        { .kind = LK_LION, .weight_decay = 0.1 },
        { .kind = LK_OPTIMIZER_NONE },
    };
    (void)state;
    for (size_t i = 0; i < sizeof optimizers / sizeof optimizers[0]; i += lki_brief() ? 3 : 1) {
        char want[65], got[65];
        crew single              = make_crew("single", 8, 1);
        single.options.optimizer = optimizers[i];
        hash_of(&single, want);
        crew ddp             = single;
        ddp.options.strategy = "ddp";
        ddp.ranks            = 3 + (uint32_t)i;
        hash_of(&ddp, got);
        assert_string_equal(got, want);
        for (size_t h = i % 2; h < SHAPES; h += 2) {
            crew w              = make_hosted(8, shapes[h]);
            w.options.optimizer = optimizers[i];
            w.options.strategy  = (const char *[]){ "zero1", "zero3", "zero2" }[(h + i) % 3];
            hash_of(&w, got);
            assert_string_equal(got, want);
        }
    }
}

/* Sums in wrong orders.  Expects results other than those of `single`. */
static void other_orders_give_other_bits(void **state)
{
    (void)state;
    char  want[65], got[65];
    crew right = make_crew("ddp", 8, 2);
    hash_of(&right, want);
    crew swapped = right;
    swapped.mischief = SWAP_TWO_LEAVES;
    hash_of(&swapped, got);
    assert_string_not_equal(got, want);
    crew between     = make_hosted(8, shapes[1]);
    between.mischief = SWAP_HOSTS;
    hash_of(&between, got);
    assert_string_not_equal(got, want);
    crew folded = make_crew("ddp", 4, 2); /* another tree over the same samples */
    folded.options.micro_count = 4;
    hash_of(&folded, got);
    assert_string_not_equal(got, want);
}

static const rank_run *first_cause(const rank_run *runs, uint32_t ranks, lk_status status)
{
    for (uint32_t r = 0; r < ranks; r++)
        if (runs[r].status == status)
            return &runs[r];
    fail_msg("no rank failed with %s; rank 0: %s", lk_status_name(status), runs[0].error.message);
    return runs;
}

static void crew_fails_with(const crew *w, lk_status status, const char *text)
{
    static rank_run runs[RANKS_MAX];
    run_crew(w, runs);
    const rank_run *cause = first_cause(runs, w->ranks, status);
    if (strstr(cause->error.message, text) == NULL)
        fail_msg("'%s' does not say '%s'", cause->error.message, text);
    for (uint32_t r = 0; r < w->ranks; r++)
        assert_int_not_equal(runs[r].status, LK_OK);
}

/* Runs `what` on one host, on hosts with one rank each, and on two hosts with rank 0 alone on the
 * first. */
static void fails_with(mischief what, lk_status status, const char *text)
{
    crew w     = make_crew("ddp", 6, 3);
    w.mischief = what;
    crew_fails_with(&w, status, text);
    w.hosts = (hosted){ .hosts = 3, .each = 1, .seed = 7 };
    crew_fails_with(&w, status, text);
    w.hosts = (hosted){ .hosts = 2, .each = 2, .fewer_first = 1, .seed = 8 };
    crew_fails_with(&w, status, text);
}

static void changed_parameters_are_named(void **state)
{
    (void)state;
    fails_with(CORRUPT, LK_ECORRUPT, "parameter '" LKT_LONG_NAME "', elements 4096 to 8191");
}

static void names_hosts_that_drift_apart(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPES; i += lki_brief() ? 2 : 1) {
        crew w     = make_hosted(12, shapes[i]);
        w.mischief = DRIFT;
        crew_fails_with(&w, LK_ECORRUPT, "step 2: the hosts of ranks 0 and ");
    }
}

static void names_a_gradient_that_is_not_finite(void **state)
{
    (void)state;
    fails_with(NOT_FINITE, LK_ENONFINITE, "step 3: the gradient of '" LKT_LONG_NAME "'");
}

static void disagreements_of_ranks_are_named(void **state)
{
    (void)state;
    fails_with(OTHER_SHAPE, LK_EMISMATCH, "parameter 2, 'b'");
    fails_with(OTHER_VALUES, LK_EMISMATCH, "different values of 'b'");
    fails_with(OTHER_TERMS, LK_EMISMATCH, "order of gradient terms");
}

static void refuses_a_thread_that_rounds_otherwise(void **state)
{
    (void)state;
    fails_with(OTHER_ROUNDING, LK_EINVAL, "-ffast-math");
}

/* Begins a step twice, and finishes a step twice.  Expects that both are refused. */
static void refuses_calls_out_of_turn(void **state)
{
    char  want[65], got[65];
    crew single = make_crew("single", 8, 1), ddp = make_crew("ddp", 8, 3);
    (void)state;
    hash_of(&single, want);
    ddp.announce             = true;
    ddp.options.bucket_bytes = 17000;
    ddp.mischief             = OUT_OF_TURN;
    hash_of(&ddp, got);
    assert_string_equal(got, want);
}

/* Requests more terms than two buckets hold without reporting any as ready.  The step must fail. */
static void gradients_that_are_never_ready_are_refused(void **state)
{
    crew zero2 = make_crew("zero2", 6, 3);
    (void)state;
    zero2.options.micro_count        = 1;
    zero2.options.bucket_bytes       = 1;
    zero2.options.first_bucket_bytes = 1;
    for (uint32_t hosts = 0; hosts <= 3; hosts += 3) {
        zero2.hosts = (hosted){ .hosts = hosts, .each = 1, .seed = 9 };
        crew_fails_with(&zero2, LK_EINVAL, "'s' are not ready; call lk_parallel_grad_ready()");
    }
}

static void refuses_more_workers_than_virtual_workers(void **state)
{
    (void)state;
    static rank_run runs[RANKS_MAX];
    crew w = make_crew("ddp", 2, 3);
    run_crew(&w, runs);
    assert_int_equal(runs[0].status, LK_EINVAL);
    assert_non_null(strstr(runs[0].error.message, "raise `virtual_workers`"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_workers_gives_the_bits_of_single),
        cmocka_unit_test(several_hosts_give_the_bits_of_single),
        cmocka_unit_test(rounds_give_the_bits_of_single),
        cmocka_unit_test(buckets_do_not_change_bits),
        cmocka_unit_test(sgd_without_clipping_gives_the_bits_of_single),
        cmocka_unit_test(every_optimizer_gives_the_bits_of_single),
        cmocka_unit_test(other_orders_give_other_bits),
        cmocka_unit_test(changed_parameters_are_named),
        cmocka_unit_test(names_hosts_that_drift_apart),
        cmocka_unit_test(names_a_gradient_that_is_not_finite),
        cmocka_unit_test(disagreements_of_ranks_are_named),
        cmocka_unit_test(refuses_a_thread_that_rounds_otherwise),
        cmocka_unit_test(refuses_calls_out_of_turn),
        cmocka_unit_test(gradients_that_are_never_ready_are_refused),
        cmocka_unit_test(refuses_more_workers_than_virtual_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
