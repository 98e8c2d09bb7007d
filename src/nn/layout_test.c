/* layout_test.c -- shared memory and recomputed values change no bit.
 *
 * Method: nets that share memory are compared with nets that do not, by all results of a step.
 *         Unused memory is filled with NaN, which must not appear in any result.
 */
#include "nn/nets_testing.h"

static void test_in_place_changes_nothing(void **state)
{
    static unsigned char reference[RESULT_BYTES], out[RESULT_BYTES];
    lk_block_type        dropout = lk_block_dropout, add = lk_block_add, end = lk_block_linear;
    (void)state;
    dropout.inplace = add.inplace = end.residual = false;
    size_t bytes = run(decoder(&dropout, &add, &end, false, 0), 1, NULL, 1, NULL, reference);
    assert_same_results(reference, bytes, out, run(plain_decoder(), 1, NULL, 1, NULL, out));
}

/* The 18 rows of logits are computed in two chunks, of 16 rows and of 2. */
static void test_logits_by_chunks_change_nothing(void **state)
{
    static unsigned char reference[RESULT_BYTES], out[RESULT_BYTES];
    size_t               bytes = run(plain_decoder(), 1, NULL, 1, NULL, reference);
    (void)state;
    assert_same_results(reference, bytes, out, run(chunked_decoder(), 1, NULL, 1, NULL, out));
    assert_same_results(reference, bytes, out, run(chunked_decoder(), 3, NULL, PASSES, NULL, out));
}

static void count_forward(void *user, uint32_t block)
{
    (void)block;
    ++*(uint32_t *)user;
}

static size_t context_bytes(lk_model *model)
{
    net    n     = net_open(model, 1, NULL, SAMPLES, 1);
    size_t bytes = n.engine->layout.context_bytes;
    net_close(&n);
    return bytes;
}

static void test_checkpointing_changes_nothing_but_memory(void **state)
{
    static unsigned char reference[RESULT_BYTES], out[RESULT_BYTES];
    const build          nets[][2] = { { plain_decoder, checkpointed_decoder },
                                       { convnet, checkpointed_convnet } };
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        uint32_t plain = 0, again = 0;
        lk_hooks count_plain = { .user = &plain, .before_forward = count_forward };
        lk_hooks count_again = { .user = &again, .before_forward = count_forward };
        size_t   bytes       = run(nets[k][0](), 1, NULL, 1, &count_plain, reference);
        assert_same_results(reference, bytes, out,
                            run(nets[k][1](), 1, NULL, 1, &count_again, out));
        assert_true(again > plain);
        assert_same_results(reference, bytes, out, run(nets[k][1](), 3, NULL, PASSES, NULL, out));
        assert_true(context_bytes(nets[k][1]()) < context_bytes(nets[k][0]()));
    }
}

/* ---- Unused memory ------------------------------------------------------------------------ */

/* Fills unused memory with NaN.  This is all memory before forward, scratch memory before every
 * block, and the segments' shared memory before the next segment uses it.  Before and after the
 * backward pass of a block it also includes the gradients that are neither written nor still to be
 * read. */
typedef struct {
    net      n;
    uint32_t fills, segment;
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

static void poison_before_forward(void *user, uint32_t block)
{
    poisoner         *p       = user;
    const lki_layout *layout  = &p->n.engine->layout;
    uint32_t          segment = p->n.model->blocks[block].segment;
    poison_scratch(user, block);
    if (segment != 0 && segment != p->segment)
        poison(p->n.engine->memory + layout->segment, layout->segment_bytes);
    p->segment = segment != 0 ? segment : p->segment;
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

/* Called before the backward pass of block b, when the backward pass of block b + 1 is complete. */
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
    lk_hooks hooks = { .user            = &p,
                       .before_forward  = poison_before_forward,
                       .before_backward = poison_before_backward,
                       .after_backward  = poison_after_backward };
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

static void test_unused_memory_is_never_read(void **state)
{
    (void)state;
    check_poisoned(plain_decoder);
    check_poisoned(convnet);
    check_poisoned(checkpointed_decoder);
    check_poisoned(chunked_decoder);
    check_poisoned(checkpointed_convnet);
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
    assert_true(layout->grads_bytes <= sum / 2); /* memory is reused */
    net_close(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_place_changes_nothing),
        cmocka_unit_test(test_logits_by_chunks_change_nothing),
        cmocka_unit_test(test_checkpointing_changes_nothing_but_memory),
        cmocka_unit_test(test_unused_memory_is_never_read),
        cmocka_unit_test(test_slots_do_not_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
