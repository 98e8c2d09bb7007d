/* sync_test.c -- SyncBatchNorm computes the statistics of all contexts as those of one batch.
 *
 * Method: a net is walked over contexts of different sizes, and over one context with all samples.
 *         If sums are exact (small integers), the values have equal bits; otherwise they differ by
 *         rounding.  Ghost BatchNorm, whose contexts are independent, differs much more.
 */
#include "nn/nets_testing.h"

#include <math.h>

enum { TOGETHER = 4, ALL = 7, IMAGE = 216 };

static const uint32_t uneven[TOGETHER] = { 3, 0, 2, 2 };

/* Walks `contexts` contexts once, and adds their gradients and state sums in context 0. */
static double walk_once(net *n, uint32_t contexts, const uint32_t *samples, const float *images,
                        const lk_hooks *hooks)
{
    lk_pass  passes[TOGETHER];
    lk_walk  walk = net_walk(n, true);
    uint32_t at   = 0;
    double   loss = 0;

    walk.hooks = hooks;
    for (uint32_t c = 0; c < contexts; c++) {
        passes[c] = net_pass(n, c, samples[c], images + (size_t)at * IMAGE, tokens + at);
        at += samples[c];
    }
    lk_engine_forward(n->engine, &walk, passes, contexts);
    lk_engine_backward(n->engine, &walk, passes, contexts);
    for (uint32_t c = 0; c < contexts; c++)
        loss += passes[c].loss_sum;
    for (uint32_t c = 1; c < contexts; c++)
        for (uint32_t t = 0; t < n->term_count; t++)
            for (size_t i = 0; i < net_term_count(n, t); i++)
                n->grads[0][t][i] += n->grads[c][t][i];
    for (uint32_t c = 1; c < contexts; c++)
        for (uint32_t s = 0; s < n->state_count; s++)
            for (size_t i = 0; i < lk_model_states(n->model, &at)[s].count; i++)
                n->sums[0][s][i] += n->sums[c][s][i];
    return loss;
}

static double relative(const float *a, const float *b, size_t count)
{
    double apart = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        apart += pow((double)a[i] - (double)b[i], 2);
        norm += pow((double)b[i], 2);
    }
    return sqrt(apart / norm);
}

/* Returns the largest difference between a split and a whole batch, in gradients and running
 * statistics. */
static double furthest(const lk_block_type *norm, lk_dtype dtype, bool segments)
{
    static const uint32_t whole[] = { ALL };
    net             split = net_open_as(dtype, convnet_with(norm, segments), 1, NULL, 3, TOGETHER);
    net             one = net_open_as(dtype, convnet_with(&lk_block_batchnorm, false), 1, NULL,
                                      ALL, 1);
    float          *images = noise_floats(2, (size_t)ALL * IMAGE);
    uint32_t        count;
    const lk_state *states = lk_model_states(one.model, &count);
    double          loss   = walk_once(&split, TOGETHER, uneven, images, NULL);
    double          apart  = fabs(loss / walk_once(&one, 1, whole, images, NULL) - 1);

    for (uint32_t t = 0; t < one.term_count; t++)
        apart = fmax(apart, relative(split.grads[0][t], one.grads[0][t], net_term_count(&one, t)));
    for (uint32_t s = 0; s < count; s++)
        apart = fmax(apart, relative(split.sums[0][s], one.sums[0][s], states[s].count));
    lki_free(images);
    net_close(&split);
    net_close(&one);
    return apart;
}

static void a_split_batch_is_the_whole_batch(void **state)
{
    (void)state;
    assert_true(furthest(&lk_block_sync_batchnorm, LK_F32, false) < 1e-5);
    assert_true(furthest(&lk_block_sync_batchnorm, LK_F32, true) < 1e-5);
    assert_true(furthest(&lk_block_sync_batchnorm, LK_BF16, false) < 0.02);
    assert_true(furthest(&lk_block_sync_batchnorm, LK_F16, false) < 0.005);
    assert_true(furthest(&lk_block_batchnorm, LK_F32, false) > 0.1);
}

/* ---- Exact sums --------------------------------------------------------------------------- */

/* Opens a net whose norm reads the model's input directly, so that its result can be checked. */
static net open_bare(const lk_block_type *norm, uint32_t micro_batch, uint32_t contexts)
{
    lk_batchnorm_options options = { 0 };
    lk_model            *model;
    MUST(lk_model_new(&model, "bare", (lk_shape){ 3, { 9, 8, 3 } }, false));
    lk_value x = add1(model, norm, "bn", &options, sizeof options, 0);
    x          = linear(model, "fc", VOCABULARY, NULL,
                        add1(model, &lk_block_flatten, "", NULL, 0, x));
    add1(model, &lk_block_cross_entropy, "", NULL, 0, x);
    return net_open(model, 1, NULL, micro_batch, contexts);
}

static const void *normalised(const net *n, uint32_t context)
{
    return n->engine->memory + context * n->engine->layout.context_bytes +
           n->engine->layout.places[0].value;
}

/* Returns integers whose mean in each sample is also an integer. */
static float *integers(void)
{
    float *images = new_floats((size_t)ALL * IMAGE);
    for (size_t i = 0; i < (size_t)ALL * IMAGE; i++) {
        size_t sample = i / IMAGE, pixel = i % IMAGE / 3;
        images[i]     = (float)(sample * sample) + (pixel % 2 == 0 ? 1.0F : -1.0F) *
                                                       (float)(pixel / 2 % 5 + i % 3);
    }
    return images;
}

static void integers_give_the_same_bits(void **state)
{
    static const uint32_t whole[] = { ALL };
    net      split  = open_bare(&lk_block_sync_batchnorm, 3, TOGETHER);
    net      one    = open_bare(&lk_block_batchnorm, ALL, 1);
    float   *images = integers();
    uint32_t at     = 0;
    (void)state;

    (void)walk_once(&split, TOGETHER, uneven, images, NULL);
    (void)walk_once(&one, 1, whole, images, NULL);
    for (uint32_t c = 0; c < TOGETHER; at += uneven[c++])
        assert_memory_equal(normalised(&split, c),
                            (const float *)normalised(&one, 0) + (size_t)at * IMAGE,
                            uneven[c] * IMAGE * sizeof(float));
    lki_free(images);
    net_close(&split);
    net_close(&one);
}

static void one_context_is_ghost_batchnorm(void **state)
{
    static const lk_dtype dtypes[] = { LK_F32, LK_BF16, LK_F16 };
    static const uint32_t whole[]  = { ALL };
    float                *images   = noise_floats(2, (size_t)ALL * IMAGE);
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        net a = net_open_as(dtypes[i], convnet_with(&lk_block_sync_batchnorm, false), 1, NULL, ALL,
                            1);
        net b = net_open_as(dtypes[i], convnet(), 1, NULL, ALL, 1);
        uint32_t        count;
        const lk_state *states = lk_model_states(a.model, &count);
        (void)walk_once(&a, 1, whole, images, NULL);
        (void)walk_once(&b, 1, whole, images, NULL);
        for (uint32_t t = 0; t < a.term_count; t++)
            assert_memory_equal(a.grads[0][t], b.grads[0][t],
                                net_term_count(&a, t) * sizeof(float));
        for (uint32_t s = 0; s < count; s++)
            assert_memory_equal(a.sums[0][s], b.sums[0][s], states[s].count * sizeof(float));
        net_close(&a);
        net_close(&b);
    }
    lki_free(images);
}

/* ---- Threads and recomputation ----------------------------------------------------------- */

static lk_model *sync_convnet(void)
{
    return convnet_with(&lk_block_sync_batchnorm, false);
}

static lk_model *checkpointed_sync_convnet(void)
{
    return convnet_with(&lk_block_sync_batchnorm, true);
}

typedef struct {
    uint32_t calls, rows;
} counter;

/* Merges rows like the engine without a hook, because the contexts are all virtual workers. */
static void count_rows(void *user, uint32_t width, lk_row_merge merge, double *rows, double *total)
{
    counter *c = user;
    for (uint32_t i = 1; i < c->rows; i++) /* the canonical tree over three rows is a chain */
        merge(width, rows, rows + (size_t)i * width);
    memcpy(total, rows, width * sizeof *total);
    c->calls++;
}

/* A segment that runs again must use its stored statistics. */
static void bits_do_not_depend_on_threads_or_recomputation(void **state)
{
    static unsigned char reference[RESULT_BYTES], out[RESULT_BYTES];
    counter  plain = { .rows = PASSES }, again = { .rows = PASSES };
    lk_hooks count_plain = { .user = &plain, .statistics = count_rows };
    lk_hooks count_again = { .user = &again, .statistics = count_rows };
    (void)state;
    size_t bytes = run(sync_convnet(), 1, "portable", PASSES, NULL, reference);
    assert_same_results(reference, bytes, out, run(sync_convnet(), 3, NULL, PASSES, NULL, out));
    assert_same_results(reference, bytes, out,
                        run(sync_convnet(), 2, NULL, PASSES, &count_plain, out));
    assert_same_results(reference, bytes, out,
                        run(checkpointed_sync_convnet(), 2, NULL, PASSES, &count_again, out));
    assert_int_equal(plain.calls, 4); /* two norms, forward and backward */
    assert_int_equal(again.calls, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_batch_is_the_whole_batch),
        cmocka_unit_test(integers_give_the_same_bits),
        cmocka_unit_test(one_context_is_ghost_batchnorm),
        cmocka_unit_test(bits_do_not_depend_on_threads_or_recomputation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
