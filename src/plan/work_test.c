/* work_test.c -- tests the work that is counted for a block. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "lockstep/nn.h"
#include "nn/model.h"
#include "plan/predict.h"

enum { IN = 7, OUT = 5 };

#define MUST(expression)                                                                           \
    do {                                                                                           \
        if ((expression) != LK_OK)                                                                 \
            fail_msg("%s", lk_error_last()->message);                                              \
    } while (0)

/* A block has its own parameters, whether they are frozen or not, and whatever others are. */
static void frozen_parameters_count(void **state)
{
    const lk_linear_options wide = { .out = IN, .scale = 1 }, narrow = { .out = OUT, .scale = 1 };
    const lki_place         places[3] = { { .wanted = false } };
    (void)state;
    for (int frozen = 0; frozen < 2; frozen++) {
        lk_model *model;
        lk_value  x = 0;
        MUST(lk_model_new(&model, "own", (lk_shape){ 1, { IN } }, false));
        MUST(lk_model_add(&x, model, &lk_block_linear, "first", &wide, sizeof wide, &x, 1));
        lk_model_freeze(model, frozen > 0);
        MUST(lk_model_add(&x, model, &lk_block_linear, "second", &narrow, sizeof narrow, &x, 1));
        const double first  = lki_block_work(model, places, 0, 1).amount[LKI_WORK_PARAMETERS];
        const double second = lki_block_work(model, places, 1, 1).amount[LKI_WORK_PARAMETERS];
        assert_true(first > 0 && (size_t)first == IN * IN + IN);
        assert_true(second > 0 && (size_t)second == IN * OUT + OUT);
        lk_model_free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(frozen_parameters_count) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
