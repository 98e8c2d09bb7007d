/* packs_test.c -- engines that store packed weights.
 *
 * Goal:   steps of two workers that share packs have the bits of steps without packs, although
 *         parameters change between steps.  The same holds after a process has died while filling
 *         packs.  A walk without a version reads no pack.  Workers whose packs have different
 *         places, because their numbers of threads differ, do not share them.
 * Control: damaged packs, a version that is not changed, or packs at other places give other bits.
 */
#include "nn/engine_packs.h"
#include "nn/nets_testing.h"

#include "base/memory.h"

enum { STEPS = 3 };

typedef struct {
    void      *memory;
    size_t     bytes;
} packs;

static packs packs_open(const net *n, lk_dtype dtype)
{
    packs p = { .memory = NULL };
    MUST(lki_engine_pack_bytes(&p.bytes, n->model, n->exec, dtype, SAMPLES));
    assert_true(p.bytes > 0);
    p.memory = aligned_alloc(64, p.bytes);
    assert_non_null(p.memory);
    memset(p.memory, 0, p.bytes);
    return p;
}

/* Overwrites the contents of all packs, but not their states. */
static void damage(const net *n, const packs *p)
{
    const lki_packs *layout = &n->engine->packs;
    for (size_t i = 0; i < 2 * n->model->block_count; i++)
        if (layout->at[i] != SIZE_MAX)
            memset((char *)p->memory + layout->at[i] + 64, 0x3f, 64);
}

static void begin_all(const net *n, const packs *p, uint64_t version)
{
    for (size_t i = 0; i < 2 * n->model->block_count; i++)
        if (n->engine->packs.at[i] != SIZE_MAX)
            *(lki_pack_state *)(void *)((char *)p->memory + n->engine->packs.at[i]) = version << 4;
}

/* Sets the parameters to those of step `step`. */
static void set_params(const net *n, uint32_t step)
{
    uint32_t        count;
    const lk_param *params = lk_model_params(n->model, &count);
    for (uint32_t i = 0; i < count; i++)
        for (size_t k = 0; k < lk_shape_count(params[i].shape); k++)
            net_param(n, i)[k] = 0.5F * noise(1000 + 100 * step + i, (uint32_t)k) +
                                 (params[i].init == LK_INIT_ONE ? 1.0F : 0);
}

/* Runs two turns of a step, the second with fewer samples. */
static size_t turns(const net *n, uint64_t version, unsigned char *out)
{
    float  *images = noise_floats(2, (size_t)2 * SAMPLES * 216);
    lk_walk walk   = net_walk(n, true);
    size_t  bytes  = 0;

    walk.version = version;
    for (uint32_t i = 0; i < 2; i++) {
        lk_pass pass = pass_of(n, 0, i, i == 0 ? SAMPLES : 2, images);
        net_clear((net *)(uintptr_t)n);
        lk_engine_forward(n->engine, &walk, &pass, 1);
        lk_engine_backward(n->engine, &walk, &pass, 1);
        bytes = collect(n, 0, &pass, out, bytes);
    }
    lki_free(images);
    return bytes;
}

static const build    nets[]   = { plain_decoder, checkpointed_decoder, convnet };
static const lk_dtype dtypes[] = { LK_F32, LK_BF16, LK_F16 };

static void test_steps_with_packs_have_the_bits_of_those_without(void **state)
{
    static unsigned char want[RESULT_BYTES], got[RESULT_BYTES];
    (void)state;
    for (size_t i = 0; i < 9; i++) {
        lk_dtype dtype = dtypes[i % 3];
        net      left  = net_open_as(dtype, nets[i / 3](), 1, NULL, SAMPLES, 1);
        net      right = net_open_as(dtype, nets[i / 3](), 2, NULL, SAMPLES, 1);
        packs    p     = packs_open(&left, dtype);
        for (uint32_t step = 0; step < STEPS; step++) {
            set_params(&left, step);
            set_params(&right, step);
            lki_engine_keep_packs(left.engine, NULL, 0);
            size_t bytes = turns(&left, step + 1, want);
            lki_engine_keep_packs(left.engine, p.memory, p.bytes);
            lki_engine_keep_packs(right.engine, p.memory, p.bytes);
            if (step == 1)
                begin_all(&left, &p, step + 1);
            assert_same_results(want, bytes, got, turns(&right, step + 1, got));
            assert_same_results(want, bytes, got, turns(&left, step + 1, got));
        }
        net_close(&left);
        net_close(&right);
        free(p.memory);
    }
}

static void test_damaged_and_old_packs_show_where_they_are_read(void **state)
{
    static unsigned char want[RESULT_BYTES], got[RESULT_BYTES];
    (void)state;
    for (size_t i = 0; i < 9; i++) {
        lk_dtype dtype = dtypes[i % 3];
        net      n     = net_open_as(dtype, nets[i / 3](), 1, NULL, SAMPLES, 1);
        packs    p     = packs_open(&n, dtype);
        lki_engine_keep_packs(n.engine, p.memory, p.bytes);
        size_t bytes = turns(&n, 1, want);
        damage(&n, &p);
        assert_same_results(want, bytes, got, turns(&n, 0, got));
        assert_int_equal(turns(&n, 1, got), bytes);
        assert_memory_not_equal(got, want, bytes);
        assert_same_results(want, bytes, got, turns(&n, 2, got));
        set_params(&n, 1);
        (void)turns(&n, 0, want);
        (void)turns(&n, 2, got);
        assert_memory_not_equal(got, want, bytes);
        assert_same_results(want, bytes, got, turns(&n, 3, got));
        net_close(&n);
        free(p.memory);
    }
}

enum { ROWS = 32, VALUES = 20000 };

/* Returns a model whose first weight has a pack with three threads, but not with one. */
static lk_model *wide(void)
{
    lk_linear_options first = { .out = 2 * ROWS }, second = { .out = VOCABULARY };
    lk_model         *model;
    MUST(lk_model_new(&model, "wide", (lk_shape){ 1, { VALUES } }, false));
    lk_value x = add1(model, &lk_block_linear, "first", &first, sizeof first, 0);
    x          = add1(model, &lk_block_linear, "second", &second, sizeof second, x);
    add1(model, &lk_block_cross_entropy, "", NULL, 0, x);
    return model;
}

/* Computes the loss of one batch. */
static double loss_of(const net *n, const float *x)
{
    static int32_t targets[ROWS];
    lk_walk        walk = net_walk(n, true);
    lk_pass        pass = net_pass(n, 0, ROWS, x, targets);
    walk.version        = 1;
    lk_engine_forward(n->engine, &walk, &pass, 1);
    return pass.loss_sum;
}

static void test_engines_with_packs_at_other_places_do_not_share_them(void **state)
{
    net    one   = net_open(wide(), 1, NULL, ROWS, 1), three = net_open(wide(), 3, NULL, ROWS, 1);
    float *x     = noise_floats(3, (size_t)ROWS * VALUES);
    size_t bytes[2];
    (void)state;
    assert_int_not_equal(one.engine->packs.layout, three.engine->packs.layout);
    MUST(lki_engine_pack_bytes(&bytes[0], one.model, one.exec, LK_F32, ROWS));
    MUST(lki_engine_pack_bytes(&bytes[1], three.model, three.exec, LK_F32, ROWS));
    for (uint32_t first = 0; first < 2; first++) {
        size_t most   = lki_round_up(lki_max(bytes[0], bytes[1]), 64);
        void  *memory = aligned_alloc(64, most);
        assert_non_null(memory);
        memset(memory, 0, most);
        const net *engines[] = { first == 0 ? &one : &three, first == 0 ? &three : &one };
        double     want   = loss_of(engines[0], x);
        for (uint32_t turn = 0; turn < 4; turn++) {
            lki_engine_keep_packs(engines[turn % 2]->engine, memory, most);
            assert_true(loss_of(engines[turn % 2], x) == want);
        }
        lki_engine_keep_packs(one.engine, NULL, 0);
        lki_engine_keep_packs(three.engine, NULL, 0);
        free(memory);
    }
    lki_free(x);
    net_close(&one);
    net_close(&three);
}

/* The memory is that of an engine with fewer packs, as an arena in which this engine's rank wants
 * none may be. */
static void test_memory_that_is_too_small_has_no_packs(void **state)
{
    net       one = net_open(wide(), 1, NULL, ROWS, 1), three = net_open(wide(), 3, NULL, ROWS, 1);
    float    *x   = noise_floats(3, (size_t)ROWS * VALUES);
    size_t    bytes[2];
    uint64_t *memory;
    (void)state;
    MUST(lki_engine_pack_bytes(&bytes[0], one.model, one.exec, LK_F32, ROWS));
    MUST(lki_engine_pack_bytes(&bytes[1], three.model, three.exec, LK_F32, ROWS));
    assert_true(bytes[0] < bytes[1]);
    memory = aligned_alloc(64, lki_round_up(bytes[1], 64));
    assert_non_null(memory);
    memset(memory, 0, bytes[1]);
    double want = loss_of(&three, x);
    for (size_t room = bytes[0]; room < bytes[1]; room = (room + bytes[1] + 1) / 2) {
        lki_engine_keep_packs(three.engine, memory, room);
        assert_true(loss_of(&three, x) == want);
        for (size_t i = 0; i < bytes[1] / sizeof *memory; i++)
            assert_true(memory[i] == 0);
    }
    lki_engine_keep_packs(three.engine, memory, bytes[1]);
    assert_true(loss_of(&three, x) == want && memory[0] != 0);
    lki_engine_keep_packs(three.engine, NULL, 0);
    free(memory);
    lki_free(x);
    net_close(&one);
    net_close(&three);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_with_packs_have_the_bits_of_those_without),
        cmocka_unit_test(test_damaged_and_old_packs_show_where_they_are_read),
        cmocka_unit_test(test_engines_with_packs_at_other_places_do_not_share_them),
        cmocka_unit_test(test_memory_that_is_too_small_has_no_packs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
