/* positions_test.c -- passes of fewer positions than the model has.
 *
 * Goal:   a pass of `length` positions gives the bits of a model with that many positions: losses,
 *         logits and every gradient.  The gradients of the remaining positions are zero.  This
 *         holds in every precision, with activation checkpointing and with chunks of logits.
 * Method: both models are run with equal parameters, as far as the shorter model has them.  Passes
 *         of full length before the short pass leave old values in memory that the short pass must
 *         not read.
 */
#include "nn/nets_testing.h"

static const uint32_t lengths[] = { 1, 4, 5, TIME };

typedef struct {
    net     net;
    lk_pass pass;
} side;

static side open_side(uint32_t time, lk_dtype dtype, bool segments, uint64_t rows)
{
    side s = { .net = net_open_as(dtype, decoder_of(time, &lk_block_dropout, &lk_block_add,
                                                    &lk_block_linear, segments, rows), 2, NULL,
                                  SAMPLES, 1) };
    return s;
}

/* Runs a step of SAMPLES samples with `length` positions, or with all positions if `length` is
 * 0. */
static void step(side *s, uint32_t length, uint32_t offset)
{
    lk_walk walk = net_walk(&s->net, true);
    net_clear(&s->net);
    s->pass        = net_pass(&s->net, 0, SAMPLES, tokens + offset, tokens + offset + 1);
    s->pass.length = length;
    lk_engine_forward(s->net.engine, &walk, &s->pass, 1);
    lk_engine_backward(s->net.engine, &walk, &s->pass, 1);
}

static void assert_same(const side *a, const side *b)
{
    assert_memory_equal(&a->pass.loss_sum, &b->pass.loss_sum, sizeof a->pass.loss_sum);
    assert_int_equal(a->pass.count, b->pass.count);
    assert_int_equal(a->pass.hits, b->pass.hits);
    for (uint32_t t = 0; t < a->net.term_count; t++) {
        size_t some = net_term_count(&b->net, t), all = net_term_count(&a->net, t);
        assert_memory_equal(a->net.grads[0][t], b->net.grads[0][t], some * sizeof(float));
        for (size_t i = some; i < all; i++)
            assert_true(a->net.grads[0][t][i] == 0);
    }
}

static void a_short_pass_is_that_of_a_shorter_model(void **state)
{
    static const lk_dtype dtypes[] = { LK_F32, LK_BF16, LK_F16 };
    (void)state;
    for (uint32_t way = 0; way < 9; way++) {
        bool     segments = way / 3 == 1;
        uint64_t rows     = way / 3 == 2 ? 4 : 0;
        side     whole    = open_side(TIME, dtypes[way % 3], segments, rows);
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            side other = open_side(lengths[i], dtypes[way % 3], segments, rows);
            step(&whole, 0, 20);
            step(&whole, lengths[i], 3);
            step(&other, 0, 3);
            assert_same(&whole, &other);
            assert_int_equal(whole.pass.count, SAMPLES * lengths[i]);
            net_close(&other.net);
        }
        net_close(&whole.net);
    }
}

static void evaluation_of_a_short_pass_is_that_of_a_shorter_model(void **state)
{
    (void)state;
    side    whole = open_side(TIME, LK_F32, false, 0), other = open_side(4, LK_F32, false, 0);
    lk_walk walk  = net_walk(&whole.net, false), walk_other = net_walk(&other.net, false);
    whole.pass    = net_pass(&whole.net, 0, 2, tokens, tokens + 1);
    other.pass    = net_pass(&other.net, 0, 2, tokens, tokens + 1);
    whole.pass.length = 4;
    lk_engine_forward(whole.net.engine, &walk, &whole.pass, 1);
    lk_engine_forward(other.net.engine, &walk_other, &other.pass, 1);
    assert_same(&whole, &other);
    assert_memory_equal(lk_engine_output(whole.net.engine, 0),
                        lk_engine_output(other.net.engine, 0),
                        sizeof(float) * 2 * 4 * VOCABULARY);
    net_close(&whole.net);
    net_close(&other.net);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(a_short_pass_is_that_of_a_shorter_model),
        cmocka_unit_test(evaluation_of_a_short_pass_is_that_of_a_shorter_model),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
