/* weights_test.c -- tests that the weights hash never changes between versions, and that it depends
 * on everything that it covers.
 *
 * The frozen value was computed from the definition by a few lines of Python (hashlib, struct), not
 * by this code.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "lockstep/checkpoint.h"

#include <cmocka.h>

typedef struct {
    float     weight[6];
    uint32_t  bias[2];
    uint64_t  steps;
    lk_tensor tensors[3];
} model;

static void model_init(model *m)
{
    static const float    weight[6] = { 0.0f, 1.0f, -2.5f, 3.25f, -0.0f, 0x1p-149f };
    static const uint32_t bias[2]   = { 0x7f800000u, 0xffc00123u }; /* infinity, some NaN */
    memcpy(m->weight, weight, sizeof weight);
    memcpy(m->bias, bias, sizeof bias);
    m->steps      = 7;
    m->tensors[0] = (lk_tensor){ "wte.weight", LK_F32, { 2, { 2, 3 } }, m->weight };
    m->tensors[1] = (lk_tensor){ "ln.bias", LK_F32, { 1, { 2 } }, m->bias };
    m->tensors[2] = (lk_tensor){ "steps", LK_U64, { 0, { 0 } }, &m->steps };
}

static const char *hash_of(const model *m)
{
    static char hex[65];
    lk_weights_hash(m->tensors, 3, hex);
    return hex;
}

static const char frozen[] = "e20af0a1800e6a5f8eb777b960e1aba10f97a2af8c7033ecc0f13e2cdbb1594b";

static void the_hash_has_its_frozen_value(void **state)
{
    (void)state;
    model m;
    char  hex[65];
    model_init(&m);
    assert_string_equal(hash_of(&m), frozen);
    lk_weights_hash(NULL, 0, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

static void every_change_changes_the_hash(void **state)
{
    (void)state;
    model m;
    model_init(&m);
    m.tensors[0].name = "wte.weighs";
    assert_string_not_equal(hash_of(&m), frozen);
    model_init(&m);
    m.tensors[0].dtype = LK_I32; /* the same bytes */
    assert_string_not_equal(hash_of(&m), frozen);
    model_init(&m);
    m.tensors[0].shape = (lk_shape){ 2, { 3, 2 } };
    assert_string_not_equal(hash_of(&m), frozen);
    m.tensors[0].shape = (lk_shape){ 1, { 6 } };
    assert_string_not_equal(hash_of(&m), frozen);
    model_init(&m);
    m.weight[0] = -0.0f;
    assert_string_not_equal(hash_of(&m), frozen);
    model_init(&m);
    m.tensors[0] = m.tensors[1];
    m.tensors[1] = (lk_tensor){ "wte.weight", LK_F32, { 2, { 2, 3 } }, m.weight };
    assert_string_not_equal(hash_of(&m), frozen);
}

static void all_nans_have_one_hash(void **state)
{
    (void)state;
    static const uint32_t nans[] = { 0x7fc00000u, 0x7f800001u, 0xff800001u, 0xffffffffu };
    model                 m;
    model_init(&m);
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
        m.bias[1] = nans[i];
        assert_string_equal(hash_of(&m), frozen);
    }
    m.bias[1] = 0xff800000u; /* an infinity is not a NaN */
    assert_string_not_equal(hash_of(&m), frozen);
}

static void nans_of_other_types_have_one_hash(void **state)
{
    (void)state;
    static const uint64_t doubles[2] = { UINT64_C(0x7ff8000000000000),
                                         UINT64_C(0xfff0000000000001) };
    static const uint16_t halves[2] = { 0x7e00, 0xfc01 }, brains[2] = { 0x7fc0, 0xff81 };
    const struct { lk_dtype dtype; const void *canonical, *other; } cases[] = {
        { LK_F64, &doubles[0], &doubles[1] },
        { LK_F16, &halves[0], &halves[1] },
        { LK_BF16, &brains[0], &brains[1] },
    };
    for (size_t i = 0; i < 3; i++) {
        char      a[65], b[65];
        lk_tensor tensor = { "x", cases[i].dtype, { 1, { 1 } }, cases[i].canonical };
        lk_weights_hash(&tensor, 1, a);
        tensor.data = cases[i].other;
        lk_weights_hash(&tensor, 1, b);
        assert_string_equal(a, b);
        tensor.dtype = LK_I8; /* integers are hashed unchanged */
        lk_weights_hash(&tensor, 1, b);
        assert_string_not_equal(a, b);
    }
}

static void a_tied_tensor_is_hashed_once(void **state)
{
    (void)state;
    model m;
    model_init(&m);
    lk_tensor four[4] = { m.tensors[0], m.tensors[1], m.tensors[2], m.tensors[0] };
    char      hex[65];
    four[3].name = "lm_head.weight";
    lk_weights_hash(four, 4, hex);
    assert_string_equal(hex, frozen);

    float copy[6]; /* equal values in other memory are another tensor */
    memcpy(copy, m.weight, sizeof copy);
    four[3].data = copy;
    lk_weights_hash(four, 4, hex);
    assert_string_not_equal(hex, frozen);
}

static void the_hash_covers_more_than_one_chunk(void **state)
{
    (void)state;
    enum { COUNT = 3001 };
    float    *data   = calloc(COUNT, sizeof *data);
    lk_tensor tensor = { "x", LK_F32, { 1, { COUNT } }, data };
    char      a[65], b[65];
    assert_non_null(data);
    lk_weights_hash(&tensor, 1, a);
    data[COUNT - 1] = 1.0f;
    lk_weights_hash(&tensor, 1, b);
    assert_string_not_equal(a, b);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hash_has_its_frozen_value),
        cmocka_unit_test(every_change_changes_the_hash),
        cmocka_unit_test(all_nans_have_one_hash),
        cmocka_unit_test(nans_of_other_types_have_one_hash),
        cmocka_unit_test(a_tied_tensor_is_hashed_once),
        cmocka_unit_test(the_hash_covers_more_than_one_chunk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
