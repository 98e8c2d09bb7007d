/* words_test.c -- checks that fields in messages of the library become options. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "cli/words.h"

static void becomes(const char *message, const char *wanted)
{
    char got[LKI_WORDS_BYTES];
    lki_words(got, sizeof got, message);
    assert_string_equal(got, wanted);
}

static void fields_become_options(void **state)
{
    (void)state;
    becomes("", "");
    becomes("no field", "no field");
    becomes("`global_batch` 10", "--global-batch 10");
    becomes("give `schedule.warmup` or `warmup_epochs`", "give --warmup or --warmup-epochs");
    becomes("`heads` and `model_options.heads`", "--heads and --heads");
    becomes("`model` is", "MODEL is");
    becomes("`limits.epochs` or `epochs`", "--max-epochs or --epochs");
    becomes("`order` or `data.order`", "--order or --order");
    becomes("by `checkpoint.resume` run, or `resume`=auto", "by lockstep resume run, or "
                                                            "--resume=auto");
    becomes("`lk_train_replay` with `replay.step` 3", "`lockstep verify` with --step 3");
    becomes("`bucket` or `exchange.compression.bucket`", "--bucket or --bucket");
    becomes("`buddies` 2, `node` 0, `insecure`", "--shard-replicas 2, --node-rank 0, --insecure");
}

static void other_text_stays(void **state)
{
    (void)state;
    becomes("`lockstep verify` names it", "`lockstep verify` names it");
    becomes("a ` alone, then `lr", "a ` alone, then `lr");
    becomes("`` `no_such_field` `seed`", "`` `no_such_field` --seed");
    becomes("a ` before `seed`", "a ` before --seed");
}

static void a_long_message_is_cut(void **state)
{
    char text[2 * LKI_WORDS_BYTES], got[LKI_WORDS_BYTES];
    (void)state;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    lki_words(got, sizeof got, text);
    assert_int_equal(strlen(got), LKI_WORDS_BYTES - 1);
    memcpy(text + LKI_WORDS_BYTES - 4, "`seed`", 6);
    lki_words(got, sizeof got, text);
    assert_string_equal(got + LKI_WORDS_BYTES - 4, "--s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_become_options),
        cmocka_unit_test(other_text_stays),
        cmocka_unit_test(a_long_message_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
