/* identity_test.c -- checks the hash of a run: every value changes it, and all NaNs are equal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "train/core/identity.h"

enum { VALUES = 3 };

static const uint32_t one = 0x3f800000u, infinity = 0x7f800000u, quiet_nan = 0x7fc00000u,
                      nans[] = { 0x7f800001u, 0xff800001u, 0xffc00000u, 0x7fffffffu };

/* A session of one rank with one parameter, its momentum and one running state. */
typedef struct {
    lk_train_config config;
    lk_param        param;
    lk_state        state;
    lki_session     session;
} run;

static void run_open(run *r)
{
    lk_comm_options   how     = { .struct_size = sizeof(lk_comm_options), .timeout_ms = 20000 };
    lk_parallel_state running = { "mean", VALUES, 0, 0.1f };
    r->config                 = (lk_train_config){ .struct_size = sizeof(lk_train_config),
                                                   .optimizer   = { .momentum = 0.9 } };
    r->param                  = (lk_param){ .name = "w", .shape = { 1, { VALUES } } };
    r->state                  = (lk_state){ .name = "mean", .count = VALUES };
    r->session                = (lki_session){ .config      = &r->config,
                                               .ranks       = 1,
                                               .params      = &r->param,
                                               .states      = &r->state,
                                               .param_count = 1,
                                               .state_count = 1,
                                               .kept        = &r->state,
                                               .kept_count  = 1 };
    assert_int_equal(lk_comm_open_threads(&r->session.comm, 1, &how), LK_OK);
    lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                    .strategy        = "single",
                                    .virtual_workers = 1,
                                    .optimizer       = r->config.optimizer,
                                    .states          = &running,
                                    .state_count     = 1 };
    assert_int_equal(
        lk_parallel_open(&r->session.parallel, r->session.comm, &r->param, 1, &options), LK_OK);
}

static void run_close(run *r)
{
    lk_parallel_free(r->session.parallel);
    lk_comm_free(r->session.comm);
}

/* Computes the hash of a run after setting the middle value of the parameter (0), the momentum (1)
 * or the running state (2) to these bits. */
static void hash_with(run *r, int where, uint32_t bits, char hex[65])
{
    float values[VALUES] = { 0.5f, 0, -0.5f }, plain[VALUES] = { 0 };
    char  weights[65];
    memcpy(&values[1], &bits, sizeof bits);
    for (uint32_t which = 0; which < 2; which++)
        assert_int_equal(
            lk_parallel_load(r->session.parallel, 0, which, (int)which == where ? values : plain),
            LK_OK);
    assert_int_equal(lk_parallel_load_state(r->session.parallel, 0, where == 2 ? values : plain),
                     LK_OK);
    assert_int_equal(lki_weights_hash(&r->session, weights), LK_OK);
    assert_int_equal(lki_run_hash(&r->session, weights, hex), LK_OK);
}

static void every_value_changes_the_hash_and_nans_are_equal(void **state)
{
    run r;
    (void)state;
    run_open(&r);
    for (int where = 0; where < 3; where++) {
        char with_one[65], with_infinity[65], with_nan[65], hex[65];
        hash_with(&r, where, one, with_one);
        hash_with(&r, where, infinity, with_infinity);
        hash_with(&r, where, quiet_nan, with_nan);
        assert_string_not_equal(with_one, with_infinity);
        assert_string_not_equal(with_infinity, with_nan);
        for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
            hash_with(&r, where, nans[i], hex);
            assert_string_equal(hex, with_nan);
        }
    }
    run_close(&r);
}

/* Checks the labels of exactness ids, also of those that earlier versions wrote. */
static void an_exactness_id_ends_in_its_label(void **state)
{
    lk_train_config config = { .struct_size = sizeof(lk_train_config), .comm_dtype = LK_I8 };
    lk_dataset_info data   = { .classes = 3 };
    char            id[33], other[33];
    (void)state;
    assert_int_equal(lki_id_label("4a1a257ca98ac033"), LK_LABEL_EXACT);
    assert_int_equal(lki_id_label("4a1a257ca98ac033 (invariant)"), LK_LABEL_INVARIANT);
    assert_int_equal(lki_id_label("4a1a257ca98ac033 (recorded)"), LK_LABEL_RECORDED);
    assert_int_equal(lki_id_label("4a1a257ca98ac033 (timed)"), LK_LABEL_TIMED);
    assert_int_equal(lki_id_label("4a1a257ca98ac033 (not exact)"), LK_LABEL_TIMED);
    assert_false(lki_ids_differ("4a1a257ca98ac033 (not exact)", "4a1a257ca98ac033 (timed)"));
    assert_false(lki_ids_differ("4a1a257ca98ac033", "4a1a257ca98ac033 (timed)"));
    assert_true(lki_ids_differ("4a1a257ca98ac033 (timed)", "4a1a257ca98ac034 (timed)"));
    lki_exactness_id(&config, &data, id);
    assert_string_equal(id + 16, " (invariant)");
    config.elastic.backup_workers = 1;
    lki_exactness_id(&config, &data, other);
    assert_string_equal(other + 16, " (timed)");
    assert_true(lki_ids_differ(id, other));
}

/* Continues runs from checkpoints with each label.  Expects the weaker label in the id. */
static void a_run_takes_a_weaker_label(void **state)
{
    static const char *const ends[] = { "", " (invariant)", " (recorded)", " (timed)" };
    const lk_dtype           rules[] = { LK_F32, LK_I4, LK_I4, LK_I4 };
    lk_dataset_info          data    = { .classes = 3 };
    (void)state;
    for (int own = 0; own < 4; own++)
        for (int other = 0; other < 4; other++) {
            lk_train_config config  = { .struct_size = sizeof(lk_train_config),
                                        .comm_dtype  = rules[own],
                                        .exchange.async.mode = own == 2 ? LK_ASYNC_LIVE
                                                                        : LK_ASYNC_OFF,
                                        .onednn      = own == 3 ? "module" : NULL };
            lki_session     session = { .config = &config };
            lki_exactness_id(&config, &data, session.exactness_id);
            assert_string_equal(session.exactness_id + 16, ends[own]);
            lki_inherit_label(&session, (lk_label)other);
            assert_string_equal(session.exactness_id + 16, ends[own > other ? own : other]);
            assert_int_equal(lki_run_label(&session), own > other ? own : other);
        }
}

/* Returns the configuration that a checkpoint records for `model` with one option set. */
static json_t *config_of(const char *model, const char *option, const char *value)
{
    lk_train_config config = { .struct_size = sizeof(lk_train_config), .model = model };
    lk_dataset_info data   = { .tokens = strcmp(model, "gpt") == 0, .classes = 3 };
    json_t         *json   = lki_config_json(&config, &data);
    assert_non_null(json);
    if (option != NULL)
        assert_int_equal(
            json_object_set_new(json, option, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    return json;
}

static void a_model_records_its_own_options(void **state)
{
    static const struct {
        const char *model, *has[5], *lacks[5];
    } cases[] = {
        { "mlp", { "hidden" }, { "layers", "heads", "context", "depth", "dropout" } },
        { "resnet",
          { "depth", "zero-gamma", "batchnorm" },
          { "layers", "heads", "context", "hidden" } },
        { "gpt", { "layers", "heads", "width", "dropout", "context" }, { "hidden", "depth" } },
    };
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        json_t *json = config_of(cases[i].model, NULL, NULL);
        for (size_t k = 0; k < 5; k++) {
            if (cases[i].has[k] != NULL)
                assert_non_null(json_object_get(json, cases[i].has[k]));
            if (cases[i].lacks[k] != NULL)
                assert_null(json_object_get(json, cases[i].lacks[k]));
        }
        json_decref(json);
    }
}

/* Compares a run without options with a checkpoint that records `value`. */
static lk_status compare(const char *model, const char *option, const char *value)
{
    json_t   *mine = config_of(model, NULL, NULL), *stored = config_of(model, option, value);
    lk_status status = lki_config_compare(stored, mine, LKI_COMPARE_RESUMED);
    json_decref(mine);
    json_decref(stored);
    return status;
}

static void a_default_is_its_value(void **state)
{
    (void)state;
    assert_int_equal(compare("mlp", "hidden", "[512, 512]"), LK_OK);
    assert_int_equal(compare("mlp", "hidden", "[]"), LK_OK); /* version 0.1.0 recorded it as [] */
    assert_int_equal(compare("mlp", "hidden", "[512, 511]"), LK_EINVAL);
    assert_int_equal(compare("gpt", "heads", "4"), LK_OK);
    assert_int_equal(compare("gpt", "heads", "0"), LK_OK);
    assert_int_equal(compare("gpt", "heads", "2"), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message,
                           "`model_options.heads` is 4, but the checkpoint was made"));
    assert_int_equal(compare("resnet", "depth", "20"), LK_OK);
    assert_int_equal(compare("resnet", "depth", "0"), LK_OK);
    assert_int_equal(compare("resnet", "seed", "1"), LK_EINVAL);
    assert_int_equal(compare("resnet", "seed", "0"), LK_OK);
}

/* Checks that checkpoints know their data, except those of earlier versions and of streams. */
static void a_checkpoint_knows_its_data(void **state)
{
    lk_train_config config = { .data.source = "text:a" }, stream = { .data.source = "stream:-" };
    lk_dataset_info mine   = { .train_count = 3, .content_hash = "aa" };
    lk_dataset_info other  = { .train_count = 4, .content_hash = "bb" };
    json_t         *stored = json_object();
    (void)state;
    assert_int_equal(lki_data_compare(stored, &config, &other), LK_OK);
    lki_data_write(stored, &stream, &mine, "aa");
    assert_int_equal(json_object_size(stored), 0);
    lki_data_write(stored, &config, &mine, "aa");
    assert_int_equal(lki_data_compare(stored, &config, &mine), LK_OK);
    assert_int_equal(lki_data_compare(stored, &stream, &other), LK_OK);
    assert_int_equal(lki_data_compare(stored, &config, &other), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "4 samples and hash bb, but the checkpoint "
                                                     "was made with 3 and aa"));
    config.checkpoint.changed_data = true;
    assert_int_equal(lki_data_compare(stored, &config, &other), LK_OK);
    json_decref(stored);
}

/* Checks the data of a run that is evaluated, which are opened without the weights of samples. */
static void an_evaluated_run_has_its_data(void **state)
{
    const lk_train_config config = { .data.source = "text:a" };
    const lk_dataset_info mine   = { .train_count = 3, .content_hash = "aa" };
    const lk_dataset_info other  = { .train_count = 4, .content_hash = "bb" };
    const lk_dataset_info both   = { .train_count = 3, .content_hash = "cc" }; /* with weights */
    json_t               *stored = json_object();
    (void)state;
    assert_int_equal(lki_data_compare_own(stored, "text:a", &other, "run"), LK_OK);
    lki_data_write(stored, &config, &mine, "aa");
    assert_int_equal(lki_data_compare_own(stored, "text:a", &mine, "run"), LK_OK);
    assert_int_equal(lki_data_compare_own(stored, "text:a", &other, "run"), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message,
                           "'text:a' is not the data of run any more: it has 4 samples to train "
                           "on and hash bb, but the checkpoint was made with 3 and aa; put"));
    lki_data_write(stored, &config, &both, "aa");
    assert_int_equal(lki_data_compare_own(stored, "text:a", &mine, "run"), LK_OK);
    assert_int_equal(lki_data_compare_own(stored, "text:a", &other, "run"), LK_EINVAL);
    lki_data_write(stored, &config, &both, "cc"); /* as if the hash of the data were not there */
    assert_int_equal(json_object_set_new(stored, "order", json_string("weighted")), 0);
    assert_int_equal(lki_data_compare_own(stored, "text:a", &other, "run"), LK_OK);
    json_decref(stored);
}

/* Checks options that checkpoints of earlier versions lack.  Expects their defaults. */
static void an_unrecorded_option_has_its_default(void **state)
{
    json_t *mine = config_of("mlp", "decay-all", "true"), *stored = config_of("mlp", NULL, NULL);
    (void)state;
    assert_int_equal(json_object_del(stored, "decay-all"), 0);
    assert_int_equal(json_object_del(stored, "momentum-of"), 0);
    assert_int_equal(lki_config_compare(stored, mine, LKI_COMPARE_RESUMED), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "`optimizer.decay_all` is true, but the "
                                                     "checkpoint"));
    assert_int_equal(json_object_set_new(mine, "decay-all", json_false()), 0);
    assert_int_equal(lki_config_compare(stored, mine, LKI_COMPARE_RESUMED), LK_OK);
    assert_int_equal(json_object_set_new(mine, LKI_TOKENIZER_KEY, json_string("aa")), 0);
    assert_int_equal(lki_config_compare(stored, mine, LKI_COMPARE_RESUMED), LK_OK);
    assert_int_equal(json_object_set_new(stored, LKI_TOKENIZER_KEY, json_string("bb")), 0);
    assert_int_equal(lki_config_compare(stored, mine, LKI_COMPARE_RESUMED), LK_EINVAL);
    json_decref(mine);
    json_decref(stored);
}

/* Options that a run may change when it continues differ only in an exact comparison, and only if
 * they change bits. */
static void recorded_configurations_are_compared(void **state)
{
    static const char a[] = "{\"model\": \"mlp\", \"lr\": 0.5, \"precision\": \"fp32\"}";
    static const char b[] = "{\"model\": \"mlp\", \"lr\": 0.5, \"precision\": \"bf16\"}";
    static const char c[] = "{\"model\": \"mlp\", \"lr\": 0.25, \"precision\": \"fp32\"}";
    (void)state;
    assert_int_equal(lk_train_compare(a, a, true), LK_OK);
    assert_int_equal(lk_train_compare(a, b, false), LK_OK);
    assert_int_equal(lk_train_compare(a, b, true), LK_EINVAL);
    assert_int_equal(lk_train_compare(a, c, false), LK_EINVAL);
    assert_string_equal(lk_error_last()->message, "`schedule.lr` is recorded as 0.5, and not as "
                                                  "0.25");
    assert_int_equal(lk_train_compare("[]", a, false), LK_EFORMAT);
    assert_int_equal(lk_train_compare(a, "x", false), LK_EFORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_changes_the_hash_and_nans_are_equal),
        cmocka_unit_test(an_exactness_id_ends_in_its_label),
        cmocka_unit_test(a_run_takes_a_weaker_label),
        cmocka_unit_test(a_model_records_its_own_options),
        cmocka_unit_test(a_default_is_its_value),
        cmocka_unit_test(a_checkpoint_knows_its_data),
        cmocka_unit_test(an_evaluated_run_has_its_data),
        cmocka_unit_test(an_unrecorded_option_has_its_default),
        cmocka_unit_test(recorded_configurations_are_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
