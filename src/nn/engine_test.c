/* engine_test.c -- tests of the engine: values, order of calls, and equal bits for any contexts and
 * threads. */
#include "nn/nets_testing.h"

#include <math.h>

#include "tensor/ops.h"

static void test_bits_do_not_depend_on_threads_isa_or_contexts(void **state)
{
    static unsigned char reference[RESULT_BYTES], out[RESULT_BYTES];
    const char *const    isas[]  = { "portable", "avx2", "avx512", "neon", NULL };
    const build          nets[]  = { plain_decoder, convnet };
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        size_t bytes = run(nets[k](), 1, "portable", 1, NULL, reference);
        for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
            lk_exec  *probe;
            lk_status st = lk_exec_open(&probe, 1, isas[i]);
            lk_exec_free(probe);
            if (st == LK_EUNSUPPORTED)
                continue;
            assert_same_results(reference, bytes, out,
                                run(nets[k](), 3, isas[i], PASSES, NULL, out));
            assert_same_results(reference, bytes, out, run(nets[k](), 2, isas[i], 2, NULL, out));
        }
    }
}

static void test_a_sample_does_not_depend_on_its_neighbours(void **state)
{
    net     n    = net_open(plain_decoder(), 1, NULL, SAMPLES, 1);
    lk_walk walk = net_walk(&n, true);
    lk_pass pass = pass_of(&n, 0, 0, SAMPLES, NULL);
    float   among[TIME], elsewhere[TIME];
    (void)state;
    lk_engine_forward(n.engine, &walk, &pass, 1);
    memcpy(among, n.engine->loss + (size_t)2 * TIME, sizeof among);
    pass            = net_pass(&n, 0, 1, tokens + 2 * TIME, tokens + 2 * TIME + 1);
    pass.first_slot = 2;
    lk_engine_forward(n.engine, &walk, &pass, 1);
    assert_memory_equal(among, n.engine->loss, sizeof among);
    pass.first_slot = 1;
    lk_engine_forward(n.engine, &walk, &pass, 1);
    memcpy(elsewhere, n.engine->loss, sizeof elsewhere);
    assert_memory_not_equal(among, elsewhere, sizeof among);
    net_close(&n);
}

/* Runs a micro-batch of `samples` samples, then one of SAMPLES samples.  Gradients are added to
 * zeroed memory or, with `empty`, overwrite the memory. */
static size_t two_micro_batches(build model, lk_dtype dtype, uint32_t samples, bool empty,
                                unsigned char *out)
{
    net     n      = net_open_as(dtype, model(), 2, NULL, SAMPLES, 1);
    float  *images = noise_floats(2, (size_t)PASSES * SAMPLES * 216);
    lk_walk walk   = net_walk(&n, true);
    bool    flags[64];
    lk_pass pass;

    net_clear(&n);
    for (uint32_t t = 0; t < n.term_count; t++) {
        flags[t] = true;
        if (empty)
            memset(n.grads[0][t], 0xff, net_term_count(&n, t) * sizeof(float)); /* NaN */
    }
    for (uint32_t i = 0; i < 2; i++) {
        pass       = pass_of(&n, 0, i, i == 0 ? samples : SAMPLES, images);
        pass.empty = empty ? flags : NULL;
        lk_engine_forward(n.engine, &walk, &pass, 1);
        lk_engine_backward(n.engine, &walk, &pass, 1);
        for (uint32_t t = 0; empty && t < n.term_count; t++)
            assert_false(flags[t]);
    }
    size_t bytes = collect(&n, 0, &pass, out, 0);
    net_close(&n);
    lki_free(images);
    return bytes;
}

static void test_written_gradients_have_the_bits_of_added_ones(void **state)
{
    static unsigned char added[RESULT_BYTES], written[RESULT_BYTES];
    const build          nets[]   = { plain_decoder, chunked_decoder, convnet };
    const lk_dtype       dtypes[] = { LK_F32, LK_BF16, LK_F16 };
    (void)state;
    for (size_t k = 0; k < 9; k++)
        for (uint32_t samples = 0; samples <= SAMPLES; samples += SAMPLES) {
            build    model = nets[k / 3];
            lk_dtype dtype = dtypes[k % 3];
            size_t   bytes = two_micro_batches(model, dtype, samples, false, added);
            assert_same_results(added, bytes, written,
                                two_micro_batches(model, dtype, samples, true, written));
        }
}

/* ---- Order -------------------------------------------------------------------------------- */

typedef struct {
    char     text[4096];
    size_t   used;
} journal;

static void note(journal *j, char what, uint32_t number)
{
    j->used += (size_t)snprintf(j->text + j->used, sizeof j->text - j->used, "%c%u ", what, number);
}

static void note_before_forward(void *user, uint32_t b) { note(user, 'f', b); }
static void note_after_forward(void *user, uint32_t b) { note(user, 'F', b); }
static void note_before_backward(void *user, uint32_t b) { note(user, 'b', b); }
static void note_after_backward(void *user, uint32_t b) { note(user, 'B', b); }
static void note_ready(void *user, uint32_t context, uint32_t term)
{
    note(user, (char)('x' + context), term);
}

/* The model has two blocks: fc0, whose two parameters are terms 0 and 1, and the loss. */
static void test_hooks_fire_in_order_even_for_empty_passes(void **state)
{
    journal   full = { { 0 }, 0 }, empty = { { 0 }, 0 };
    lk_model *model;
    float    *x = noise_floats(3, 2 * 4);
    (void)state;
    MUST(lk_model_new(&model, "small", (lk_shape){ 1, { 4 } }, false));
    lk_value v = linear(model, "fc0", 3, NULL, 0);
    add1(model, &lk_block_cross_entropy, "", NULL, 0, v);
    net     n         = net_open(model, 1, NULL, 2, 2);
    lk_pass passes[2] = { net_pass(&n, 0, 2, x, tokens), net_pass(&n, 1, 0, NULL, NULL) };
    for (uint32_t run_empty = 0; run_empty < 2; run_empty++) {
        lk_hooks hooks = { .user            = run_empty ? &empty : &full,
                           .before_forward  = note_before_forward,
                           .after_forward   = note_after_forward,
                           .before_backward = note_before_backward,
                           .grad_ready      = note_ready,
                           .after_backward  = note_after_backward };
        lk_walk  walk  = net_walk(&n, true);
        walk.hooks     = &hooks;
        if (run_empty)
            passes[0] = net_pass(&n, 0, 0, NULL, NULL);
        lk_engine_forward(n.engine, &walk, passes, 2);
        lk_engine_backward(n.engine, &walk, passes, 2);
    }
    assert_string_equal(full.text, "f0 F0 f1 F1 b1 B1 b0 x0 x1 y0 y1 B0 ");
    assert_string_equal(empty.text, full.text);
    assert_true(passes[1].count == 0 && passes[1].loss_sum == 0.0);
    net_close(&n);
    lki_free(x);
}

/* ---- Parameters ----------------------------------------------------------------------------- */

/* A walk in which only the block that requests parameters has them. */
typedef struct {
    net         *n;
    const float *table[64];
    uint32_t     blocks[128], count;
} lender;

static void lend(void *user, uint32_t block)
{
    lender                *l     = user;
    const lki_block_entry *entry = &l->n->model->blocks[block];

    memset(l->table, 0, sizeof l->table);
    for (uint32_t i = 0; i < entry->block.param_count; i++)
        l->table[entry->params[i]] = l->n->params[entry->params[i]];
    l->blocks[l->count++] = block;
}

static void test_parameters_are_read_only_after_their_hook(void **state)
{
    const build nets[] = { plain_decoder, chunked_decoder, checkpointed_decoder,
                           checkpointed_convnet };
    float      *images = noise_floats(2, (size_t)PASSES * SAMPLES * 216);
    (void)state;
    for (size_t k = 0; k < sizeof nets / sizeof nets[0]; k++) {
        net      n     = net_open(nets[k](), 1, NULL, SAMPLES, 1);
        lender   l     = { .n = &n };
        lk_hooks hooks = { .user = &l, .before_read = lend };
        lk_walk  walk  = net_walk(&n, true);
        lk_pass  pass  = pass_of(&n, 0, 0, SAMPLES, images);
        uint32_t told[128];
        assert_true(n.param_count <= 64 && lk_model_block_count(n.model) * 3 <= 128);
        walk.params = l.table;
        walk.hooks  = &hooks;
        lk_engine_forward(n.engine, &walk, &pass, 1);
        lk_engine_backward(n.engine, &walk, &pass, 1);
        assert_int_equal(lk_model_reads(n.model, NULL), l.count);
        assert_int_equal(lk_model_reads(n.model, told), l.count);
        assert_memory_equal(told, l.blocks, l.count * sizeof *told);
        net_close(&n);
    }
    lki_free(images);
}

/* ---- Unneeded gradients ------------------------------------------------------------------- */

typedef struct { bool *saw_dx; } spy_options;

static lk_status spy_plan(lk_plan *plan)
{
    lk_plan_output(plan, lk_plan_block(plan)->x[0]);
    return lk_plan_param(plan, "p", (lk_shape){ 1, { 1 } }, LK_INIT_ZERO, 0.0F, false);
}

static void spy_forward(const lk_block_call *call)
{
    memcpy(call->y, call->x[0], call->samples * lk_shape_count(call->block->y) * sizeof(float));
}

static void spy_backward(const lk_block_call *call)
{
    const spy_options *options = call->block->options;
    *options->saw_dx           = call->dx[0] != NULL;
    if (call->dx[0] != NULL)
        memcpy(call->dx[0], call->dy,
               call->samples * lk_shape_count(call->block->y) * sizeof(float));
}

static const lk_block_type spy = {
    .name = "spy", .plan = spy_plan, .forward = spy_forward, .backward = spy_backward
};

static void test_the_input_has_no_gradient(void **state)
{
    bool        saw[2] = { true, false };
    spy_options options[2] = { { &saw[0] }, { &saw[1] } };
    float      *x = noise_floats(4, 8);
    lk_model   *model;
    (void)state;
    MUST(lk_model_new(&model, "spied", (lk_shape){ 2, { 2, 2 } }, false));
    lk_value v = add1(model, &lk_block_flatten, "", NULL, 0, 0);
    v          = add1(model, &spy, "first", &options[0], sizeof options[0], v);
    v          = add1(model, &spy, "second", &options[1], sizeof options[1], v);
    add1(model, &lk_block_cross_entropy, "", NULL, 0, v);
    net     n    = net_open(model, 1, NULL, 2, 1);
    lk_walk walk = net_walk(&n, true);
    lk_pass pass = net_pass(&n, 0, 2, x, tokens);
    lk_engine_forward(n.engine, &walk, &pass, 1);
    lk_engine_backward(n.engine, &walk, &pass, 1);
    assert_false(saw[0]);
    assert_true(saw[1]);
    net_close(&n);
    lki_free(x);
}

/* ---- Comparison with a plain reference ---------------------------------------------------- */

enum { IN = 5, HIDDEN = 4, OUT = 3, ROWS = 4 };

typedef struct { double w0[IN * HIDDEN], b0[HIDDEN], w1[HIDDEN * OUT], b1[OUT], loss; } two_layers;

/* Computes the gradients of the sum of losses in *g.  Weights are (in, out). */
static void reference_net(const net *n, const float *x, const int32_t *targets, two_layers *g)
{
    const float *w0 = n->params[0], *b0 = n->params[1], *w1 = n->params[2], *b1 = n->params[3];
    *g = (two_layers){ .loss = 0.0 };
    for (size_t r = 0; r < ROWS; r++) {
        double h[HIDDEN], y[OUT], dh[HIDDEN] = { 0 }, total = 0.0;
        for (size_t j = 0; j < HIDDEN; j++) {
            h[j] = (double)b0[j];
            for (size_t i = 0; i < IN; i++)
                h[j] += (double)x[r * IN + i] * (double)w0[i * HIDDEN + j];
            h[j] = h[j] > 0.0 ? h[j] : 0.0;
        }
        for (size_t k = 0; k < OUT; k++) {
            y[k] = (double)b1[k];
            for (size_t j = 0; j < HIDDEN; j++)
                y[k] += h[j] * (double)w1[j * OUT + k];
            total += exp(y[k]);
        }
        g->loss += log(total) - y[targets[r]];
        for (size_t k = 0; k < OUT; k++) {
            double dy = exp(y[k]) / total - (targets[r] == (int32_t)k ? 1.0 : 0.0);
            g->b1[k] += dy;
            for (size_t j = 0; j < HIDDEN; j++) {
                g->w1[j * OUT + k] += h[j] * dy;
                dh[j] += h[j] > 0.0 ? dy * (double)w1[j * OUT + k] : 0.0;
            }
        }
        for (size_t j = 0; j < HIDDEN; j++) {
            g->b0[j] += dh[j];
            for (size_t i = 0; i < IN; i++)
                g->w0[i * HIDDEN + j] += (double)x[r * IN + i] * dh[j];
        }
    }
}

static void assert_near(const float *got, const double *want, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_true(fabs((double)got[i] - want[i]) <= 1e-5 * (1.0 + fabs(want[i])));
}

static void test_two_layers_against_a_reference(void **state)
{
    const int32_t targets[ROWS] = { 2, 0, 1, 1 };
    float        *x             = noise_floats(5, (size_t)ROWS * IN);
    two_layers    want;
    lk_model     *model;
    (void)state;
    MUST(lk_model_new(&model, "two", (lk_shape){ 1, { IN } }, false));
    lk_value v = linear(model, "fc0", HIDDEN, "relu", 0);
    v          = linear(model, "fc1", OUT, NULL, v);
    add1(model, &lk_block_cross_entropy, "", NULL, 0, v);
    net     n    = net_open(model, 1, NULL, ROWS, 1);
    lk_walk walk = net_walk(&n, true);
    lk_pass pass = net_pass(&n, 0, ROWS, x, targets);
    lk_engine_forward(n.engine, &walk, &pass, 1);
    lk_engine_backward(n.engine, &walk, &pass, 1);
    reference_net(&n, x, targets, &want);
    /* the last block's terms come first */
    assert_near(n.grads[0][0], want.w1, (size_t)HIDDEN * OUT);
    assert_near(n.grads[0][1], want.b1, OUT);
    assert_near(n.grads[0][2], want.w0, (size_t)IN * HIDDEN);
    assert_near(n.grads[0][3], want.b0, HIDDEN);
    assert_true(fabs(pass.loss_sum - want.loss) < 1e-5);
    assert_int_equal(pass.count, ROWS);
    net_close(&n);
    lki_free(x);
}

/* ---- Evaluation ----------------------------------------------------------------------------- */

static void test_evaluation_keeps_the_logits_and_counts_targets(void **state)
{
    int32_t  targets[2 * TIME] = { 1, 2, -1, 3, 4, 5, 6, -1, 7, 8, 9, 10 };
    net      n                 = net_open(plain_decoder(), 1, NULL, 2, 1);
    lk_walk  walk              = net_walk(&n, false);
    lk_pass  pass              = net_pass(&n, 0, 2, tokens, targets);
    float    logits[2 * TIME * VOCABULARY];
    (void)state;
    pass.targets = NULL;
    lk_engine_forward(n.engine, &walk, &pass, 1);
    assert_int_equal(pass.count, 0);
    memcpy(logits, lk_engine_output(n.engine, 0), sizeof logits);
    pass.targets = targets;
    lk_engine_forward(n.engine, &walk, &pass, 1);
    assert_memory_equal(logits, lk_engine_output(n.engine, 0), sizeof logits);
    assert_int_equal(pass.count, 2 * TIME - 2);
    assert_true(pass.loss_sum > 0.0 && pass.hits <= pass.count);
    net_close(&n);
}

static void test_batchnorm_uses_its_state_in_evaluation(void **state)
{
    lk_batchnorm_options options = { 0 };
    const float          x[4] = { 1.0F, 10.0F, 3.0F, 30.0F };
    lk_model            *model;
    (void)state;
    MUST(lk_model_new(&model, "bn", (lk_shape){ 1, { 2 } }, false));
    lk_value v = add1(model, &lk_block_batchnorm, "bn", &options, sizeof options, 0);
    add1(model, &lk_block_cross_entropy, "", NULL, 0, v);
    net     n    = net_open(model, 1, NULL, 2, 1);
    lk_walk walk = net_walk(&n, true);
    lk_pass pass = net_pass(&n, 0, 2, x, tokens);
    lk_engine_forward(n.engine, &walk, &pass, 1);
    assert_true(n.sums[0][0][0] == 2.0F * 2.0F && n.sums[0][0][1] == 2.0F * 20.0F);
    assert_true(n.sums[0][1][0] == 2.0F * 2.0F && n.sums[0][1][1] == 2.0F * 200.0F);
    walk.training = false; /* the running state is still mean 0 and variance 1 */
    lk_engine_forward(n.engine, &walk, &pass, 1);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(fabsf(lk_engine_output(n.engine, 0)[i] - (x[i] * n.params[0][i % 2] +
                          n.params[1][i % 2])) < 1e-3F);
    net_close(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_do_not_depend_on_threads_isa_or_contexts),
        cmocka_unit_test(test_written_gradients_have_the_bits_of_added_ones),
        cmocka_unit_test(test_a_sample_does_not_depend_on_its_neighbours),
        cmocka_unit_test(test_hooks_fire_in_order_even_for_empty_passes),
        cmocka_unit_test(test_parameters_are_read_only_after_their_hook),
        cmocka_unit_test(test_the_input_has_no_gradient),
        cmocka_unit_test(test_two_layers_against_a_reference),
        cmocka_unit_test(test_evaluation_keeps_the_logits_and_counts_targets),
        cmocka_unit_test(test_batchnorm_uses_its_state_in_evaluation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
