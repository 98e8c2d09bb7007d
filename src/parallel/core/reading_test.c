/* reading_test.c -- parameters that are read as blocks of 8 bits, or as bf16.
 *
 * Goal:   every read, on every rank, returns the owners' values, rounded.  The resulting bits are
 *         those of strategy single, for any strategy, workers and hosts, whether units stay in
 *         memory or not.  Loaded values are also rounded; a fetch returns the owners' values
 *         unrounded.  With bf16, hosts that store shards have FP32 values only of their own shard.
 * Method: gradients depend on the values read.  Without rounding the bits differ.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "comm/hosted_testing.h"
#include "device/half.h"
#include "device/quantise.h"
#include "parallel/state.h"

enum { LEAVES = 6, STEPS = 3, PARAMS = 4, TERMS = 5, LARGEST = 9000, RANKS_MAX = 6 };

static const lk_param model[PARAMS] = {
    { .name = "tied", .shape = { 2, { 40, 100 } }, .uses = 2, .init = LK_INIT_UNIFORM, .scale = 1,
      .bf16 = true },
    { .name = "w", .shape = { 2, { 90, 100 } }, .init = LK_INIT_UNIFORM, .scale = 1, .bf16 = true },
    { .name = "v", .shape = { 1, { 667 } }, .init = LK_INIT_UNIFORM, .scale = 1 },
    { .name = "b", .shape = { 1, { 33 } } },
};
/* the default order: from the last parameter to the first, and from the last use to the first */
static const uint32_t param_of[TERMS] = { 3, 2, 1, 0, 0 };

typedef struct {
    hosted      hosts; /* .hosts 0: one host with `ranks` threads */
    uint32_t    ranks, shards, buffers;
    const char *strategy;
    lk_dtype    reads;
    bool        keeps;
} job;

typedef struct {
    job      job;
    float    values[PARAMS][LARGEST]; /* final values of the owners */
    lk_error errors[RANKS_MAX];
} outcome;

static float *room_for(size_t count)
{
    return malloc(count * sizeof(float));
}

/* Fetches the owners' values.  Any rank may call this. */
static lk_status fetch(lk_parallel *p, uint32_t param, float *out)
{
    return lk_parallel_fetch(p, param, 0, 0, lk_shape_count(model[param].shape), out);
}

/* Reads a block.  Sets *good to true if the block has the owners' values at the beginning of the
 * step, rounded.  The reader rounds FP32 values of parameters that may be read as bf16. */
static const float *read_block(lk_parallel *p, lk_dtype reads, uint32_t term, const float *want,
                               bool *good)
{
    lk_parallel_read(p, term);
    uint32_t        param  = param_of[term];
    size_t          count  = lk_shape_count(model[param].shape);
    const float    *values = want + (size_t)param * LARGEST;
    const float    *read   = lk_parallel_param(p, param);
    const uint16_t *narrow = lk_parallel_param_bf16(p, param);
    bool            may    = reads == LK_BF16 && model[param].bf16;
    *good = *good && (read == NULL) == (narrow != NULL) &&
            (narrow != NULL) == (may && p->shards > 1);
    for (size_t i = 0; *good && i < count; i++) {
        uint16_t rounded = narrow != NULL ? narrow[i] : lki_bf16_narrow(read[i]);
        *good            = may ? lki_bf16_widen(rounded) == values[i] : read[i] == values[i];
    }
    return values;
}

static bool run_turn(lk_parallel *p, lk_dtype reads, uint64_t step, uint32_t v, const float *want)
{
    bool good = true;
    for (uint32_t t = TERMS; t-- > 0;)
        (void)read_block(p, reads, t, want, &good);
    for (uint32_t t = 0; t < TERMS && good; t++) {
        const float *read = read_block(p, reads, t, want, &good);
        float       *grad = lk_parallel_grad(p, 0, t);
        for (uint32_t i = 0; i < lk_shape_count(model[param_of[t]].shape); i++) {
            lki_random r = lki_philox(7, LKI_RNG_DATA, i, (uint32_t)step, v, t);
            grad[i] += read[i] + lki_random_unit(r.word[0]);
        }
        lk_parallel_grad_ready(p, 0, t);
    }
    lk_parallel_report(p, 0, 1, 1, 1, 0);
    return good;
}

static bool take_step(lk_comm *comm, lk_parallel *p, lk_dtype reads, uint64_t step, float *want)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    bool             good = true;

    for (uint32_t i = 0; i < PARAMS; i++) {
        float *values = want + (size_t)i * LARGEST;
        CHECK(fetch(p, i, values) == LK_OK);
        if (reads == LK_I8)
            lki_rounding_loops(LK_I8)->rounded(lk_shape_count(model[i].shape), values, 1, values);
        for (size_t k = 0; reads == LK_BF16 && model[i].bf16 && k < LARGEST; k++)
            values[k] = lki_bf16_widen(lki_bf16_narrow(values[k]));
    }
    CHECK(lk_parallel_begin(p, step) == LK_OK);
    while (lk_parallel_next(p, &turn))
        good = run_turn(p, reads, step, turn.virtual_worker, want) && good;
    CHECK(lk_parallel_finish(p, 0.01, &result) == LK_OK);
    CHECK(good);
    return true;
}

/* Loads different values of parameter "v" on all ranks. */
static bool load(lk_comm *comm, lk_parallel *p, float *values)
{
    for (size_t i = 0; i < 667; i++)
        values[i] = (float)(i % 100) * 0.013f;
    CHECK(lk_parallel_load(p, 2, 0, values) == LK_OK);
    return true;
}

static bool run_steps(outcome *o, lk_comm *comm, lk_parallel *p, float *want)
{
    uint32_t rank = lk_comm_rank(comm);
    for (uint64_t step = 0; step < STEPS; step++) {
        if (step == 2 && !load(comm, p, want))
            return false;
        if (!take_step(comm, p, o->job.reads, step, want))
            return false;
    }
    for (uint32_t i = 0; i < PARAMS; i++) {
        CHECK(fetch(p, i, want) == LK_OK);
        if (rank == 0)
            memcpy(o->values[i], want, lk_shape_count(model[i].shape) * sizeof *want);
    }
    return true;
}

static bool run_rank(lk_comm *comm, void *context)
{
    outcome            *o       = context;
    uint32_t            rank    = lk_comm_rank(comm);
    float              *want    = room_for((size_t)PARAMS * LARGEST);
    lk_parallel        *p       = NULL;
    lk_parallel_options options = { .struct_size        = sizeof(lk_parallel_options),
                                    .strategy           = o->job.strategy,
                                    .virtual_workers    = LEAVES,
                                    .bucket_bytes       = 9000,
                                    .first_bucket_bytes = 100,
                                    .optimizer          = { .kind = LK_ADAMW },
                                    .shard_hosts        = o->job.shards,
                                    .unit_buffers       = o->job.buffers,
                                    .gather_dtype       = o->job.reads,
                                    .keep_gathered      = o->job.keeps };
    bool good = want != NULL && lk_parallel_open(&p, comm, model, PARAMS, &options) == LK_OK &&
                run_steps(o, comm, p, want);
    o->errors[rank] = *lk_error_last();
    lk_parallel_free(p);
    free(want);
    return good;
}

static void run(outcome *o, const job *j)
{
    memset(o, 0, sizeof *o);
    o->job    = *j;
    bool good = j->hosts.hosts > 0 ? hosted_all(j->hosts, run_rank, o)
                                   : world_all(j->ranks, true, run_rank, o);
    if (!good)
        fail_msg("%s on %u ranks or %u hosts: %s", j->strategy, j->ranks, j->hosts.hosts,
                 o->errors[0].message);
}

static void bits_are_those_of_single(void **state)
{
    static const job crews[] = {
        { .ranks = 3, .strategy = "ddp" },
        { .ranks = 4, .strategy = "zero2" },
        { .hosts = { .hosts = 3, .each = 1 }, .strategy = "ddp" },
        { .hosts = { .hosts = 2, .each = 2, .fewer = 1 }, .strategy = "zero1" },
        { .hosts = { .hosts = 3, .each = 1 }, .strategy = "zero2" },
        { .hosts = { .hosts = 2, .each = 1 }, .strategy = "zero3" },
        { .hosts = { .hosts = 3, .each = 2 }, .strategy = "zero3", .buffers = 1 },
        { .hosts = { .hosts = 2, .each = 2, .fewer = 1 }, .strategy = "zero3", .keeps = true },
        { .hosts = { .hosts = 3, .each = 1 }, .strategy = "zero3", .keeps = true, .buffers = 1 },
        { .hosts = { .hosts = 4, .each = 1 }, .strategy = "hybrid", .shards = 2, .keeps = true },
        { .hosts = { .hosts = 2, .each = 3 }, .strategy = "hybrid", .shards = 1 },
    };
    static const lk_dtype types[] = { LK_I8, LK_BF16 };
    static outcome        want, got, plain;
    (void)state;
    run(&plain, &(job){ .ranks = 1, .strategy = "single" });
    for (size_t k = 0; k < 2 * sizeof crews / sizeof crews[0]; k++) {
        job j   = crews[k / 2];
        j.reads = types[k % 2];
        j.keeps &= j.reads == LK_I8;
        run(&want, &(job){ .ranks = 1, .strategy = "single", .reads = j.reads });
        assert_memory_not_equal(plain.values, want.values, sizeof want.values);
        run(&got, &j);
        if (memcmp(got.values, want.values, sizeof want.values) != 0)
            fail_msg("crew %zu, %s, %s: other bits", k / 2, j.strategy, lk_dtype_name(j.reads));
    }
    run(&got, &(job){ .hosts = { .hosts = 2, .each = 2 }, .strategy = "zero3" });
    assert_memory_equal(got.values, plain.values, sizeof plain.values);
}

/* Counts the bytes sent for values of 8 bits: a quarter of the FP32 bytes, plus the 4 bytes of
 * scale in every block of 260 bytes.  Units that stay in memory must be gathered only once. */
static void values_of_8_bits_are_sent_in_a_quarter(void **state)
{
    static const uint32_t sizes[4] = { 1, 1, 1, 1 };
    enum { LAYERS = 16, WIDTH = 512 };
    lk_param            layers[LAYERS];
    lk_parallel_options options = { .struct_size        = sizeof(lk_parallel_options),
                                    .strategy           = "zero3",
                                    .virtual_workers    = 8,
                                    .optimizer          = { .kind = LK_ADAMW },
                                    .bucket_bytes       = 1,
                                    .first_bucket_bytes = 1 };
    const size_t        layer   = WIDTH * WIDTH * sizeof(float), packed = layer / 1024 * 260;
    lk_parallel_cost    whole, less, kept;
    (void)state;
    for (size_t i = 0; i < LAYERS; i++)
        layers[i] = (lk_param){ .name = "w", .shape = { 2, { WIDTH, WIDTH } } };
    assert_int_equal(lk_parallel_estimate(&whole, layers, LAYERS, &options, sizes, 4), LK_OK);
    options.gather_dtype = LK_I8;
    assert_int_equal(lk_parallel_estimate(&less, layers, LAYERS, &options, sizes, 4), LK_OK);
    options.keep_gathered = true;
    assert_int_equal(lk_parallel_estimate(&kept, layers, LAYERS, &options, sizes, 4), LK_OK);
    assert_int_equal(less.sent_params, whole.sent_params / 1024 * 260);
    assert_int_equal(less.params, whole.params + 2 * packed);
    assert_int_equal(kept.sent_params, LAYERS * packed / 4 * 3);
    assert_int_equal(kept.params, whole.params + LAYERS * packed);
    assert_int_equal(less.sent_gradients, whole.sent_gradients);
}

/* Computes the memory of parameters with lk_param.bf16 if hosts store shards.  Each element takes
 * two bytes.  In the host's own shard each element takes four bytes more, or twelve with AdamW. */
static void bf16_parameters_take_half_the_memory(void **state)
{
    static const char *const names[]  = { "ddp", "zero1", "zero2", "zero3" };
    static const uint32_t    sizes[4] = { 1, 1, 1, 1 };
    enum { LAYERS = 16, WIDTH = 512 };
    const size_t        layer   = WIDTH * WIDTH * sizeof(float), all = LAYERS * layer;
    lk_param            layers[LAYERS + 1];
    lk_parallel_options options = { .struct_size        = sizeof(lk_parallel_options),
                                    .virtual_workers    = 8,
                                    .optimizer          = { .kind = LK_ADAMW },
                                    .bucket_bytes       = layer,
                                    .first_bucket_bytes = layer };
    /* the bytes of parameter "gain", which is wholly in the last host's shard */
    const size_t        gain    = WIDTH * sizeof(float);
    lk_parallel_cost    whole, half;
    (void)state;
    for (size_t i = 0; i < LAYERS; i++)
        layers[i] = (lk_param){ .name = "w", .shape = { 2, { WIDTH, WIDTH } }, .bf16 = true };
    layers[LAYERS] = (lk_param){ .name = "g", .shape = { 1, { WIDTH } } };
    for (size_t s = 0; s < 4; s++) {
        options.strategy     = names[s];
        options.gather_dtype = LK_F32;
        assert_int_equal(lk_parallel_estimate(&whole, layers, LAYERS + 1, &options, sizes, 4),
                         LK_OK);
        options.gather_dtype = LK_BF16;
        assert_int_equal(lk_parallel_estimate(&half, layers, LAYERS + 1, &options, sizes, 4),
                         LK_OK);
        if (s == 0) {
            assert_memory_equal(&half, &whole, sizeof half);
            continue;
        }
        assert_int_equal(half.optimizer, whole.optimizer);
        assert_int_equal(half.gradients, whole.gradients);
        size_t sent = half.sent_params - whole.sent_params / 2;
        assert_true(sent <= 2 * 3 * gain);
        assert_in_range(half.params, all / 4 + (s < 3 ? all / 2 : layer),
                        all / 4 + (s < 3 ? all / 2 : layer) + 3 * gain);
    }
}

static bool refuses(lk_comm *comm, void *context)
{
    lk_parallel_options options = { .struct_size = sizeof(lk_parallel_options),
                                    .virtual_workers = 2, .gather_dtype = LK_F16 };
    lk_parallel        *p;
    (void)context;
    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &options) == LK_EINVAL);
    CHECK(strstr(lk_error_last()->message, "read as F32, BF16 or I8, not as F16") != NULL);
    options = (lk_parallel_options){ .struct_size = sizeof(lk_parallel_options),
                                     .virtual_workers = 2, .keep_gathered = true };
    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &options) == LK_EINVAL);
    options = (lk_parallel_options){ .struct_size     = sizeof(lk_parallel_options),
                                     .virtual_workers = 2,
                                     .gather_dtype    = lk_comm_rank(comm) == 0 ? LK_I8 : LK_F32 };
    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &options) == LK_EMISMATCH);
    return true;
}

static void useless_options_are_refused(void **state)
{
    (void)state;
    assert_true(world_all(2, true, refuses, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_single),
        cmocka_unit_test(values_of_8_bits_are_sent_in_a_quarter),
        cmocka_unit_test(bf16_parameters_take_half_the_memory),
        cmocka_unit_test(useless_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
