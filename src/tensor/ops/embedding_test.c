/* embedding_test.c -- embeddings are exact in forward, and have the reference's bits in
 * backward. */
#include "tensor/ops/nn_testing.h"

enum { B = 3, T = 7, VOCABULARY = 5 };

static const size_t widths[] = { 1, 16, 63, 200 };

static void tokens_fill(int32_t tokens[B * T])
{
    for (int32_t i = 0; i < B * T; i++)
        tokens[i] = (i * i + 1) % VOCABULARY;
}

static void one_width(lk_exec *exec, size_t c, const int32_t *tokens, bool positions)
{
    float *wte = nn_values(VOCABULARY * c, 1), *wpe = nn_values(T * c, 2);
    float *dy = nn_values(B * T * c, 3);
    float *y = nn_values(B * T * c, 4), *want_y = nn_values(B * T * c, 5);
    float *dwte = nn_values(VOCABULARY * c, 6), *want_dwte = nn_copy(dwte, VOCABULARY * c);
    float *dwpe = nn_values(T * c, 7), *want_dwpe = nn_copy(dwpe, T * c);

    for (size_t i = 0; i < B * T * c; i++) {
        float token = wte[(size_t)tokens[i / c] * c + i % c];
        want_y[i]   = positions ? token + wpe[i / c % T * c + i % c] : token;
    }
    lki_embedding(exec, LK_F32, B, T, c, tokens, (lki_table){ .values = wte },
                  (lki_table){ .values = positions ? wpe : NULL }, y);
    nn_same(exec, "y", B * T * c, y, want_y);
    lki_embedding_backward(exec, LK_F32, B, T, c, tokens, dy, dwte, positions ? dwpe : NULL);
    lki_reference_embedding_backward(B, T, c, tokens, dy, want_dwte, positions ? want_dwpe : NULL);
    nn_same(exec, "dwte", VOCABULARY * c, dwte, want_dwte);
    nn_same(exec, "dwpe", T * c, dwpe, want_dwpe);
    float *lists[] = { wte, wpe, dy, y, want_y, dwte, want_dwte, dwpe, want_dwpe };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        free(lists[i]);
}

/* Forward rounds each row that is stored as FP32, and then the sum of the two rows.  Backward adds
 * the gradients exactly in FP32. */
static void one_width_in_bf16(lk_exec *exec, size_t c, const int32_t *tokens)
{
    float    *wte = nn_values(VOCABULARY * c, 1), *wpe = nn_values(T * c, 2);
    float    *dy = nn_values(B * T * c, 3), *want_y = nn_values(B * T * c, 5);
    float    *dwte = nn_values(VOCABULARY * c, 6), *want_dwte = nn_copy(dwte, VOCABULARY * c);
    float    *dwpe = nn_values(T * c, 7), *want_dwpe = nn_copy(dwpe, T * c);
    float    *wide_wte = nn_copy(wte, VOCABULARY * c), *wide_wpe = nn_copy(wpe, T * c);
    uint16_t *narrow = nn_bf16(dy, B * T * c), *y = nn_bytes(B * T * c * sizeof *y);
    uint16_t *bf16_wte = nn_bf16(wte, VOCABULARY * c), *bf16_wpe = nn_bf16(wpe, T * c);

    for (int way = 0; way < 8; way++) {
        bool      positions = way & 1;
        lki_table tokens_of = { wide_wte, LK_F32 }, places = { wide_wpe, LK_F32 };
        if (way & 2)
            tokens_of = (lki_table){ bf16_wte, LK_BF16 };
        if (way & 4)
            places = (lki_table){ bf16_wpe, LK_BF16 };
        if (!positions)
            places.values = NULL;
        lki_embedding(exec, LK_BF16, B, T, c, tokens, tokens_of, places, y);
        lki_embedding(exec, LK_F32, B, T, c, tokens, (lki_table){ .values = wte },
                      (lki_table){ .values = positions ? wpe : NULL }, want_y);
        nn_same_rounded(exec, "y", B * T * c, y, want_y);
    }
    lki_embedding_backward(exec, LK_BF16, B, T, c, tokens, narrow, dwte, dwpe);
    lki_reference_embedding_backward(B, T, c, tokens, dy, want_dwte, want_dwpe);
    nn_same(exec, "dwte", VOCABULARY * c, dwte, want_dwte);
    nn_same(exec, "dwpe", T * c, dwpe, want_dwpe);
    void *lists[] = { wte, wpe, wide_wte, wide_wpe, dy, want_y, dwte, want_dwte, dwpe, want_dwpe,
                      narrow, bf16_wte, bf16_wpe, y };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        free(lists[i]);
}

static void embedding_bits(void **state)
{
    nn_machines m = nn_machines_open();
    int32_t     tokens[B * T];
    (void)state;
    tokens_fill(tokens);
    for (size_t k = 0; k < m.count; k++)
        for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
            for (int positions = 0; positions < 2; positions++) {
                one_width(m.exec[k], widths[i], tokens, positions != 0);
                one_width_in_bf16(m.exec[k], widths[i], tokens);
            }
    nn_machines_free(&m);
}

/* The loss is linear in the tables, so differences are exact except for rounding. */
typedef struct { const int32_t *tokens; double *wte, *wpe, *dy; size_t c; } exact;

static double exact_loss(const void *context)
{
    const exact *e = context;
    double loss = 0;
    for (size_t i = 0; i < B * T * e->c; i++)
        loss += e->dy[i] * (e->wte[(size_t)e->tokens[i / e->c] * e->c + i % e->c] +
                            e->wpe[i / e->c % T * e->c + i % e->c]);
    return loss;
}

static void embedding_gradients(void **state)
{
    enum { C = 6 };
    int32_t  tokens[B * T];
    lk_exec *exec = NULL;
    float   *dy = nn_values(B * T * C, 3), *dwte = nn_values(VOCABULARY * C, 6);
    float   *dwpe = nn_values(T * C, 7), *old_dwte = nn_copy(dwte, VOCABULARY * C);
    float   *old_dwpe = nn_copy(dwpe, T * C);
    (void)state;
    tokens_fill(tokens);
    assert_int_equal(lk_exec_open(&exec, 2, NULL), LK_OK);
    lki_embedding_backward(exec, LK_F32, B, T, C, tokens, dy, dwte, dwpe);
    exact e = { tokens, nn_doubles(dwte, VOCABULARY * C), nn_doubles(dwpe, T * C),
                nn_doubles(dy, B * T * C), C };
    nn_gradient("dwte", exact_loss, &e, e.wte, VOCABULARY * C, dwte, old_dwte);
    nn_gradient("dwpe", exact_loss, &e, e.wpe, T * C, dwpe, old_dwpe);
    free(e.wte);
    free(e.wpe);
    free(e.dy);
    float *lists[] = { dy, dwte, dwpe, old_dwte, old_dwpe };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        free(lists[i]);
    lk_exec_free(exec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_bits),
        cmocka_unit_test(embedding_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
