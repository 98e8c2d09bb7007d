/* decode_test.c -- generation with a cache of keys and values.
 *
 * Goal:   passes of some positions each, with a cache, give the logits of one pass over all
 *         positions, bit for bit: gpt and llama, grouped queries, every precision, instruction set
 *         and number of threads, and parts that begin and end anywhere.  A cache can be filled
 *         again from position 0.  A model that needs all positions at once is refused by name.
 * Method: logits as bytes.  A second sequence, of other tokens, follows in the same cache.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "lockstep/models.h"

enum { TIME = 75, VOCABULARY = 19, PARTS = 40 };

#define MUST(call)                                                                               \
    do {                                                                                         \
        if ((call) != LK_OK)                                                                     \
            fail_msg("%s: %s", #call, lk_error_last()->message);                                 \
    } while (0)

static int32_t tokens[TIME];

typedef struct {
    lk_model     *model;
    const float **params;
    float        *values;
} net;

static float noise(uint32_t i)
{
    uint32_t z = i * 2654435761U + 12345;
    z ^= z >> 15;
    z *= 2246822519U;
    z ^= z >> 13;
    return (float)(z >> 8) / (float)(1 << 23) - 1.0F;
}

static net open_net(const char *name)
{
    lk_model_options options = { .struct_size = sizeof options, .input = { 1, { TIME } },
                                 .tokens = true, .classes = VOCABULARY, .logits = true,
                                 .layers = 2, .heads = 4, .width = 64 };
    uint32_t         count;
    net              n;
    if (strcmp(name, "llama") == 0) {
        options.kv_heads  = 2;
        options.head_size = 24;
        options.qkv_bias = options.qk_norm = true;
    }
    MUST(lk_model_build(&n.model, name, &options));
    const lk_param *params = lk_model_params(n.model, &count);
    MUST(LKI_NEW(&n.params, count, "parameters"));
    MUST(LKI_NEW(&n.values, lk_model_param_elements(n.model), "parameters"));
    float *at = n.values;
    for (uint32_t p = 0; p < count; p++) {
        size_t elements = lk_shape_count(params[p].shape);
        for (size_t i = 0; i < elements; i++)
            at[i] = params[p].init == LK_INIT_ONE ? 1.0F + 0.2F * noise((uint32_t)i + 7 * p)
                                                  : 0.3F * noise((uint32_t)i * 3 + 1000 * p);
        n.params[p] = at;
        at += elements;
    }
    return n;
}

static void close_net(net *n)
{
    lk_model_free(n->model);
    lki_free(n->params);
    lki_free(n->values);
}

/* Computes the logits of all positions in parts of `each` positions. */
static void decode(lk_engine *engine, const net *n, const int32_t *sequence, uint32_t each,
                   float *logits)
{
    lk_walk walk = { .params = n->params };
    for (uint32_t at = 0, count; at < TIME; at += count) {
        count        = TIME - at < each ? TIME - at : each;
        lk_pass pass = { .samples = 1, .first = at, .length = count, .x = sequence + at };
        lk_engine_forward(engine, &walk, &pass, 1);
        memcpy(logits + (size_t)at * VOCABULARY, lk_engine_output(engine, 0),
               (size_t)count * VOCABULARY * sizeof *logits);
    }
}

static void compare(const net *n, lk_exec *exec, lk_dtype dtype, uint32_t each)
{
    static float  whole[2][TIME * VOCABULARY], parts[TIME * VOCABULARY];
    const int32_t other[TIME] = { 5, 4, 3, 2, 1 };
    lk_engine    *all, *cached;

    MUST(lk_engine_open(&all, n->model, exec, dtype, 1, 1));
    MUST(lk_engine_open_cached(&cached, n->model, exec, dtype, 1, PARTS));
    decode(all, n, tokens, TIME, whole[0]);
    decode(all, n, other, TIME, whole[1]);
    decode(cached, n, tokens, each, parts);
    assert_memory_equal(whole[0], parts, sizeof parts);
    decode(cached, n, other, PARTS, parts);
    assert_memory_equal(whole[1], parts, sizeof parts);
    lk_engine_free(cached);
    lk_engine_free(all);
}

static void parts_have_the_bits_of_the_whole(void **state)
{
    static const lk_dtype    dtypes[] = { LK_F32, LK_BF16, LK_F16 };
    static const char *const names[]  = { "gpt", "llama" };
    static const uint32_t    each[]   = { 1, 7, 33, PARTS };
    uint32_t                 runs     = 0;
    (void)state;
    for (uint32_t i = 0; i < TIME; i++)
        tokens[i] = (int32_t)(i * i % VOCABULARY);
    for (uint32_t m = 0; m < 2; m++) {
        net n = open_net(names[m]);
        for (uint32_t isa = 0; lk_isa_name(isa) != NULL; isa++) {
            lk_exec *exec;
            if (lk_exec_open(&exec, 1 + (isa + m) % 2 * 2, lk_isa_name(isa)) != LK_OK)
                continue; /* this processor lacks it */
            for (uint32_t d = 0; d < 3; d++, runs++)
                compare(&n, exec, dtypes[d], each[runs % 4]);
            lk_exec_free(exec);
        }
        close_net(&n);
    }
    assert_true(runs >= 6);
}

static void a_model_without_positions_is_refused(void **state)
{
    lk_model_options options = { .struct_size = sizeof options, .input = { 3, { 8, 8, 3 } },
                                 .classes = 10 };
    lk_model        *model;
    lk_exec         *exec;
    lk_engine       *engine;
    (void)state;
    MUST(lk_exec_open(&exec, 1, NULL));
    MUST(lk_model_build(&model, "resnet", &options));
    assert_int_equal(lk_engine_open_cached(&engine, model, exec, LK_F32, 1, 1), LK_EINVAL);
    assert_null(engine);
    lk_model_free(model);
    lk_exec_free(exec);
}

/* A block that keeps the positions, but may mix them, is named. */
static void a_block_without_positions_is_refused(void **state)
{
    const lk_embedding_options embedding = { .vocabulary = VOCABULARY, .width = 16, .scale = 1 };
    const lk_linear_options    linear    = { .out = VOCABULARY, .scale = 1 };
    lk_block_type              mixing    = lk_block_relu;
    lk_model                  *model;
    lk_exec                   *exec;
    lk_engine                 *engine;
    lk_value                   x;
    (void)state;
    mixing.name        = "mixing";
    mixing.by_position = false;
    MUST(lk_exec_open(&exec, 1, NULL));
    MUST(lk_model_new(&model, "own", (lk_shape){ 1, { TIME } }, true));
    MUST(lk_model_add(&x, model, &lk_block_embedding, "e", &embedding, sizeof embedding,
                      (lk_value[]){ 0 }, 1));
    MUST(lk_model_add(&x, model, &mixing, "m", NULL, 0, &x, 1));
    MUST(lk_model_add(&x, model, &lk_block_linear, "l", &linear, sizeof linear, &x, 1));
    MUST(lk_model_add(&x, model, &lk_block_cross_entropy, "", NULL, 0, &x, 1));
    assert_int_equal(lk_engine_open_cached(&engine, model, exec, LK_F32, 1, 1), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "needs all positions at once"));
    assert_null(engine);
    lk_model_free(model);
    lk_exec_free(exec);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(parts_have_the_bits_of_the_whole),
        cmocka_unit_test(a_model_without_positions_is_refused),
        cmocka_unit_test(a_block_without_positions_is_refused),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
