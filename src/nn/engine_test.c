/* engine_test.c -- the engine: values, memory, order, and the same bits however it is run. */
#include "nn/testing.h"

#include <math.h>

#include "tensor/ops.h"

enum { SAMPLES = 3, TIME = 6, VOCABULARY = 11, WIDTH = 8 };

/* ---- Two nets that use every kind of block ------------------------------------------------ */

static lk_value add1(lk_model *model, const lk_block_type *type, const char *name,
                     const void *options, size_t bytes, lk_value x)
{
    lk_value out;
    MUST(lk_model_add(&out, model, type, name, options, bytes, &x, 1));
    return out;
}

static lk_value add2(lk_model *model, const lk_block_type *type, const char *name,
                     const void *options, size_t bytes, lk_value x0, lk_value x1)
{
    const lk_value inputs[] = { x0, x1 };
    lk_value       out;
    MUST(lk_model_add(&out, model, type, name, options, bytes, inputs, 2));
    return out;
}

static lk_value linear(lk_model *model, const char *name, uint64_t out, const char *activation,
                       lk_value x)
{
    lk_linear_options options = { .out = out, .transposed = true, .activation = activation };
    return add1(model, &lk_block_linear, name, &options, sizeof options, x);
}

/* A decoder of one layer with a tied head.  The block types that can work in place, and the one
 * that ends a residual branch, are given, so that a test can forbid what they do. */
static lk_model *decoder(const lk_block_type *dropout, const lk_block_type *add,
                         const lk_block_type *end)
{
    lk_embedding_options embedding = { .vocabulary = VOCABULARY, .width = WIDTH };
    lk_attention_options attention = { .heads = 2, .dropout = 0.2F };
    lk_dropout_options   p         = { .p = 0.3F };
    lk_linear_options    down = { .out = WIDTH, .transposed = true };
    lk_linear_options    head = { .out = VOCABULARY, .no_bias = true, .shared = "wte.weight" };
    lk_model            *model;

    MUST(lk_model_new(&model, "decoder", (lk_shape){ 1, { TIME } }, true));
    lk_value x = add1(model, &lk_block_embedding, "", &embedding, sizeof embedding, 0);
    x          = add1(model, dropout, "", &p, sizeof p, x);
    lk_value h = add1(model, &lk_block_layernorm, "ln_1", NULL, 0, x);
    h          = linear(model, "attn.c_attn", (uint64_t)3 * WIDTH, NULL, h);
    h          = add1(model, &lk_block_attention, "attn", &attention, sizeof attention, h);
    h          = linear(model, "attn.c_proj", WIDTH, NULL, h);
    h          = add1(model, dropout, "", &p, sizeof p, h);
    x          = add2(model, add, "", NULL, 0, h, x);
    h          = add1(model, &lk_block_layernorm, "ln_2", NULL, 0, x);
    h          = linear(model, "mlp.c_fc", (uint64_t)4 * WIDTH, "gelu_tanh", h);
    x          = add2(model, end, "mlp.c_proj", &down, sizeof down, h, x);
    h          = add1(model, &lk_block_layernorm, "ln_f", NULL, 0, x);
    x          = add2(model, end, "square", &down, sizeof down, h, x);
    x          = add1(model, &lk_block_linear, "head", &head, sizeof head, x);
    add1(model, &lk_block_cross_entropy, "", NULL, 0, x);
    return model;
}

static lk_value conv(lk_model *model, const char *name, uint64_t out, uint64_t stride, lk_value x)
{
    lk_conv_options options = { .out = out, .kernel = 3, .stride = stride, .pad = 1 };
    return add1(model, &lk_block_conv, name, &options, sizeof options, x);
}

static lk_model *convnet(void)
{
    lk_batchnorm_options relu     = { .relu = true };
    lk_maxpool_options   pool     = { .kernel = 2, .stride = 2 };
    lk_shortcut_options  shortcut = { .channels = 6, .stride = 2 };
    lk_model            *model;

    MUST(lk_model_new(&model, "convnet", (lk_shape){ 3, { 9, 8, 3 } }, false));
    lk_value x = conv(model, "conv1", 4, 1, 0);
    x          = add1(model, &lk_block_batchnorm, "bn1", &relu, sizeof relu, x);
    lk_value h = conv(model, "conv2", 6, 2, x);
    x          = add1(model, &lk_block_shortcut, "", &shortcut, sizeof shortcut, x);
    x          = add2(model, &lk_block_batchnorm, "bn2", &relu, sizeof relu, h, x);
    x          = add1(model, &lk_block_maxpool, "", &pool, sizeof pool, x);
    x          = add1(model, &lk_block_relu, "", NULL, 0, x);
    x          = add1(model, &lk_block_avgpool, "", NULL, 0, x);
    x          = linear(model, "fc", VOCABULARY, NULL, x);
    add1(model, &lk_block_cross_entropy, "", NULL, 0, x);
    return model;
}

static const int32_t tokens[CONTEXTS_MAX * SAMPLES * TIME + 1] = {
    0, 3, 5, 9, 10, 2, 4, 4, 1, 7, 6, 8, 5, 0, 2, 10, 9, 3, 1, 1, 8, 4, 6, 2,
    7, 7, 0, 5, 3, 9, 2, 6, 10, 8, 1, 4, 9, 5, 3, 0, 6, 7, 2, 8, 4, 10, 1, 5,
};

/* ---- A step of one net, and all that comes out of it -------------------------------------- */

static lk_pass pass_of(const net *n, uint32_t context, uint32_t index, uint32_t samples,
                       const float *images)
{
    size_t  of_tokens = (size_t)index * SAMPLES * TIME;
    bool    decodes   = n->model->tokens;
    lk_pass pass = net_pass(n, context, samples,
                            decodes ? (const void *)(tokens + of_tokens)
                                    : (const void *)(images + index * SAMPLES * 216),
                            decodes ? tokens + of_tokens + 1 : tokens + of_tokens);
    pass.first_slot = index * SAMPLES;
    return pass;
}

/* Appends everything that a pass left to `out`; returns the bytes so far. */
static size_t collect(const net *n, uint32_t context, const lk_pass *pass, unsigned char *out,
                      size_t at)
{
    uint32_t        count;
    const lk_state *states = lk_model_states(n->model, &count);
    for (uint32_t t = 0; t < n->term_count; at += net_term_count(n, t) * sizeof(float), t++)
        memcpy(out + at, n->grads[context][t], net_term_count(n, t) * sizeof(float));
    for (uint32_t i = 0; i < n->state_count; at += states[i].count * sizeof(float), i++)
        memcpy(out + at, n->sums[context][i], states[i].count * sizeof(float));
    memcpy(out + at, &pass->loss_sum, sizeof pass->loss_sum);
    memcpy(out + at + 8, &pass->count, sizeof pass->count);
    return at + 16;
}

enum { RESULT_BYTES = 1 << 16, PASSES = 3 };
static const uint32_t samples_of[PASSES] = { SAMPLES, 0, 2 };

/* Three passes, one of them empty, `together` at a time. */
static size_t run(lk_model *model, uint32_t threads, const char *isa, uint32_t together,
                  const lk_hooks *hooks, unsigned char *out)
{
    net     n      = net_open(model, threads, isa, SAMPLES, together);
    float  *images = noise_floats(2, (size_t)PASSES * SAMPLES * 216);
    lk_walk walk   = net_walk(&n, true);
    size_t  bytes  = 0;

    walk.hooks = hooks;
    for (uint32_t first = 0; first < PASSES; first += together) {
        lk_pass  passes[PASSES];
        uint32_t count = (uint32_t)lki_min(together, PASSES - first);
        net_clear(&n);
        for (uint32_t c = 0; c < count; c++)
            passes[c] = pass_of(&n, c, first + c, samples_of[first + c], images);
        lk_engine_forward(n.engine, &walk, passes, count);
        lk_engine_backward(n.engine, &walk, passes, count);
        for (uint32_t c = 0; c < count; c++)
            bytes = collect(&n, c, &passes[c], out, bytes);
        assert_true(bytes < RESULT_BYTES);
    }
    net_close(&n);
    lki_free(images);
    return bytes;
}

typedef lk_model *(*build)(void);

static lk_model *plain_decoder(void)
{
    return decoder(&lk_block_dropout, &lk_block_add, &lk_block_linear);
}

static void assert_same_results(const unsigned char *a, size_t a_bytes, const unsigned char *b,
                                size_t b_bytes)
{
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(a, b, a_bytes);
}

static void test_bits_do_not_depend_on_threads_isa_or_contexts(void **state)
{
    static unsigned char reference[RESULT_BYTES], out[RESULT_BYTES];
    const char *const    isas[]  = { "portable", "avx2", "avx512", NULL };
    const build          nets[]  = { plain_decoder, convnet };
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        size_t bytes = run(nets[k](), 1, "portable", 1, NULL, reference);
        for (size_t i = 0; i < 4; i++) {
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

static void test_in_place_changes_nothing(void **state)
{
    static unsigned char reference[RESULT_BYTES], out[RESULT_BYTES];
    lk_block_type        dropout = lk_block_dropout, add = lk_block_add, end = lk_block_linear;
    (void)state;
    dropout.inplace = add.inplace = end.residual = false;
    size_t bytes = run(decoder(&dropout, &add, &end), 1, NULL, 1, NULL, reference);
    assert_same_results(reference, bytes, out, run(plain_decoder(), 1, NULL, 1, NULL, out));
}

/* Dropout goes by the slot in the global batch, and rows do not see each other: a sample's loss is
 * the same alone as among others. */
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

/* ---- Memory ------------------------------------------------------------------------------- */

/* Fills what is dead with NaN: all of it before forward, scratch before every block, and before
 * and after a block's backward the gradients that nobody has written or will read. */
typedef struct {
    net      n;
    uint32_t fills;
} poisoner;

static void poison(void *memory, size_t bytes)
{
    memset(memory, 0xFF, bytes);
}

static void poison_scratch(void *user, uint32_t block)
{
    poisoner  *p = user;
    lk_engine *e = p->n.engine;
    (void)block;
    poison(e->scratch, e->layout.scratch_bytes);
}

static void poison_but(poisoner *p, uint32_t done)
{
    const lki_layout *layout = &p->n.engine->layout;
    unsigned char    *live   = calloc(1, layout->grads_bytes);
    assert_non_null(live);
    for (uint32_t s = 0; s < layout->slot_count; s++) {
        const lki_grad_slot *slot = &layout->slots[s];
        if (slot->from >= done && slot->to < done)
            memset(live + (slot->offset - layout->grads), 1, slot->bytes);
    }
    for (size_t i = 0; i < layout->grads_bytes; i++) {
        if (live[i])
            continue;
        p->n.engine->memory[layout->grads + i] = 0xFF;
        p->fills++;
    }
    free(live);
}

/* Before block b's backward, b + 1 is done. */
static void poison_before_backward(void *user, uint32_t block)
{
    poison_scratch(user, block);
    poison_but(user, block + 1);
}

static void poison_after_backward(void *user, uint32_t block)
{
    poison_but(user, block);
}

static void check_poisoned(build build_net)
{
    static unsigned char reference[RESULT_BYTES], out[RESULT_BYTES];
    poisoner p     = { .n = net_open(build_net(), 1, NULL, SAMPLES, 1) };
    lk_hooks hooks = {
        &p, poison_scratch, NULL, poison_before_backward, NULL, poison_after_backward
    };
    float   *images = noise_floats(2, (size_t)SAMPLES * 216);

    for (uint32_t poisoned = 0; poisoned < 2; poisoned++) {
        lk_walk walk = net_walk(&p.n, true);
        lk_pass pass = pass_of(&p.n, 0, 0, SAMPLES, images);
        net_clear(&p.n);
        if (poisoned) {
            walk.hooks = &hooks;
            poison(p.n.engine->memory, p.n.engine->layout.context_bytes);
        }
        lk_engine_forward(p.n.engine, &walk, &pass, 1);
        lk_engine_backward(p.n.engine, &walk, &pass, 1);
        (void)collect(&p.n, 0, &pass, poisoned ? out : reference, 0);
    }
    assert_memory_equal(reference, out, RESULT_BYTES);
    assert_true(p.fills > 0);
    net_close(&p.n);
    lki_free(images);
}

static void test_dead_memory_is_dead(void **state)
{
    (void)state;
    check_poisoned(plain_decoder);
    check_poisoned(convnet);
}

static void test_slots_do_not_overlap(void **state)
{
    net               n      = net_open(plain_decoder(), 1, NULL, SAMPLES, 1);
    const lki_layout *layout = &n.engine->layout;
    size_t            sum    = 0;
    (void)state;
    for (uint32_t i = 0; i < layout->slot_count; i++) {
        const lki_grad_slot *a = &layout->slots[i];
        sum += a->bytes;
        assert_true(a->offset >= layout->grads);
        assert_true(a->offset + a->bytes <= layout->grads + layout->grads_bytes);
        for (uint32_t j = 0; j < i; j++) {
            const lki_grad_slot *b        = &layout->slots[j];
            bool                 together = a->from >= b->to && b->from >= a->to;
            assert_true(!together || a->offset + a->bytes <= b->offset ||
                        b->offset + b->bytes <= a->offset);
        }
    }
    assert_true(layout->grads_bytes <= sum / 2); /* memory is used again */
    net_close(&n);
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

/* fc0 (two parameters), loss: terms 0 and 1 belong to block 0. */
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
        lk_hooks hooks = { run_empty ? &empty : &full, note_before_forward, note_after_forward,
                           note_before_backward, note_ready, note_after_backward };
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

/* ---- Gradients that nobody wants ------------------------------------------------------------ */

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

/* ---- Against a plain reference -------------------------------------------------------------- */

enum { IN = 5, HIDDEN = 4, OUT = 3, ROWS = 4 };

typedef struct { double w0[IN * HIDDEN], b0[HIDDEN], w1[HIDDEN * OUT], b1[OUT], loss; } two_layers;

/* Weights are (in, out).  Fills *g with the gradients of the sum of losses. */
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
    assert_near(n.grads[0][0], want.w1, (size_t)HIDDEN * OUT); /* the last block is ready first */
    assert_near(n.grads[0][1], want.b1, OUT);
    assert_near(n.grads[0][2], want.w0, (size_t)IN * HIDDEN);
    assert_near(n.grads[0][3], want.b0, HIDDEN);
    assert_true(fabs(pass.loss_sum - want.loss) < 1e-5);
    assert_int_equal(pass.count, ROWS);
    net_close(&n);
    lki_free(x);
}

/* ---- Evaluation ----------------------------------------------------------------------------- */

static void test_evaluation_keeps_the_logits_and_counts_what_has_a_target(void **state)
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
    walk.training = false; /* the state is still mean 0, variance 1 */
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
        cmocka_unit_test(test_in_place_changes_nothing),
        cmocka_unit_test(test_a_sample_does_not_depend_on_its_neighbours),
        cmocka_unit_test(test_dead_memory_is_dead),
        cmocka_unit_test(test_slots_do_not_overlap),
        cmocka_unit_test(test_hooks_fire_in_order_even_for_empty_passes),
        cmocka_unit_test(test_the_input_has_no_gradient),
        cmocka_unit_test(test_two_layers_against_a_reference),
        cmocka_unit_test(test_evaluation_keeps_the_logits_and_counts_what_has_a_target),
        cmocka_unit_test(test_batchnorm_uses_its_state_in_evaluation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
