/* options_test.c -- checks that every row of the table has its effect on checkpoint records and
 * their comparison, on the agreement of ranks, on the log and on labels.
 *
 * For each row, the tests compare two configurations that differ in its field only.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "train/options.h"
#include "train/core/identity.h"

static const lk_dataset_info data = { .tokens = true, .classes = 3 };

/* Changes the value of a field. */
static void change(const lki_field *field, lk_train_config *config)
{
    unsigned char *at     = (unsigned char *)config + field->offset, *count;
    const char    *text   = "other";
    double         real   = 0.5;
    float          single = 0.5f;
    uint32_t       one    = 1;
    count                 = (unsigned char *)config + field->count_offset;
    if (strcmp(field->name, "ignore-label") == 0)
        config->data.ignores = true;
    else if (strcmp(field->name, "param-group") == 0)
        config->group_count = 1;
    else if (strcmp(field->name, "ratio-warmup") == 0)
        config->exchange.warmup_count = 1;
    else if (strcmp(field->name, "slow") == 0)
        config->exchange.async.slow_count = 1;
    else
        switch (field->type) {
        case LKI_FIELD_STRING:
        case LKI_FIELD_POSITIONAL:
        case LKI_FIELD_NAME: memcpy(at, &text, sizeof text); break;
        case LKI_FIELD_REAL:
        case LKI_FIELD_REAL_PAIR: memcpy(at, &real, sizeof real); break;
        case LKI_FIELD_FLOAT: memcpy(at, &single, sizeof single); break;
        case LKI_FIELD_U32_LIST:
        case LKI_FIELD_U64_LIST:
            *at = 7;
            memcpy(count, &one, sizeof one);
            break;
        case LKI_FIELD_CHOICE: memcpy(at, &field->choices[1].value, sizeof(int)); break;
        case LKI_FIELD_CUSTOM:
            if (strcmp(field->name, "offload") == 0) {
                memcpy(at, &text, sizeof text);
                break;
            }
            *at = strcmp(field->name, "shard-replicas") == 0 || /* these two are bool */
                          strcmp(field->name, "resume") == 0 ? 1 : 3;
            break;
        case LKI_FIELD_FLAG: *at = 1; break;
        case LKI_FIELD_U32:
        case LKI_FIELD_U32_SPAN:
        case LKI_FIELD_SECONDS:
        case LKI_FIELD_U64:
        case LKI_FIELD_MEBIBYTES: *at = (unsigned char)(*at + 97); break; /* no default */
        default: fail();
        }
}

/* Sets a field to a value that satisfies `need`. */
static void satisfy(const lki_field_need *need, lk_train_config *config)
{
    if (need == NULL || need->name == NULL)
        return;
    const lki_field *other = lki_field_find(need->name);
    assert_non_null(other);
    if (need->values[0] == NULL)
        change(other, config);
    else if (other->type == LKI_FIELD_POSITIONAL)
        config->model = need->values[0];
    else if (other->type == LKI_FIELD_NAME)
        memcpy((unsigned char *)config + other->offset, &need->values[0], sizeof need->values[0]);
    else if (other->type == LKI_FIELD_CUSTOM)
        config->scaling.rule = strcmp(need->values[0], "fixed") == 0       ? LK_SCALE_FIXED
                               : strcmp(need->values[0], "deepspeed") == 0 ? LK_SCALE_DEEPSPEED
                                                                           : LK_SCALE_PYTORCH;
    else
        for (const lki_field_choice *c = other->choices; c->name != NULL; c++)
            if (strcmp(c->name, need->values[0]) == 0)
                memcpy((unsigned char *)config + other->offset, &c->value, sizeof c->value);
}

/* Makes two configurations that differ in the row's field only. */
static void two_configs(const lki_field *field, lk_train_config two[2])
{
    const lki_field_need *need = field->recorded != NULL ? field->recorded : field->needs;
    two[0]                     = (lk_train_config){ .struct_size = sizeof(lk_train_config),
                                                    .model       = "gpt" };
    if (need == NULL || need->name == NULL || strcmp(need->name, field->name) != 0)
        satisfy(need, &two[0]);
    two[1] = two[0];
    change(field, &two[1]);
}

static void rows_are_consistent(void **state)
{
    (void)state;
    for (const lki_field *f = lki_fields; f->name != NULL; f++) {
        assert_ptr_equal(lki_field_find(f->name), f);
        assert_ptr_equal(lki_field_find(lki_field_key(f)), f);
        if (f->needs != NULL)
            assert_true(strcmp(f->needs->name, "MODEL") == 0 || lki_field_find(f->needs->name));
        if (f->into != NULL)
            assert_true(lki_field_find(f->into) != NULL && f->scope == LKI_FIELD_RESULT);
        assert_true(f->type != LKI_FIELD_CHOICE || f->choices != NULL);
        if (f->scope == LKI_FIELD_HOST || f->scope == LKI_FIELD_FILE)
            continue;
        const lk_train_config none  = { .struct_size = sizeof(lk_train_config), .model = "gpt" };
        json_t               *value = lki_field_json(f, &none); /* a value that ranks compare */
        assert_non_null(value);
        json_decref(value);
    }
}

/* Checks that a resumed run must repeat every option that decides the result, and that the message
 * names the option. */
static void checkpoints_record_options_that_decide_the_result(void **state)
{
    unsigned refused = 0;
    (void)state;
    for (const lki_field *f = lki_fields; f->name != NULL; f++) {
        lk_train_config two[2];
        char            option[80];
        two_configs(f, two);
        bool decides = (f->scope == LKI_FIELD_RESULT && f->into == NULL) ||
                       f->scope == LKI_FIELD_RULE || f->recorded != NULL;
        json_t *stored = lki_config_json(&two[0], &data), *mine = lki_config_json(&two[1], &data);
        if ((json_object_get(mine, lki_field_key(f)) != NULL) != decides)
            fail_msg("%s is %srecorded", f->name, decides ? "not " : "");
        lk_status status = lki_config_compare(stored, mine, LKI_COMPARE_RESUMED);
        bool equal = !decides || lki_field_is_free(f, json_object_get(stored, lki_field_key(f))) ||
                     strcmp(f->name, "groups") == 0; /* change no bit without a compressor */
        if ((status == LK_OK) != equal)
            fail_msg("%s: %d", f->name, (int)status);
        (void)snprintf(option, sizeof option,
                       f->type == LKI_FIELD_POSITIONAL ? "the %s is " : "`%s` is ", f->path);
        if (status != LK_OK && strstr(lk_error_last()->message, option) == NULL)
            fail_msg("%s: %s", f->name, lk_error_last()->message);
        refused += status != LK_OK;
        json_decref(stored);
        json_decref(mine);
    }
    assert_true(refused > 40);
}

static void ranks_agree_on_all_but_hosts_and_files(void **state)
{
    (void)state;
    for (const lki_field *f = lki_fields; f->name != NULL; f++) {
        lk_train_config two[2];
        uint64_t        one[LKI_FIELDS_MAX], other[LKI_FIELDS_MAX];
        two_configs(f, two);
        lki_fields_hash(&two[0], one);
        lki_fields_hash(&two[1], other);
        bool of_job = (f->scope != LKI_FIELD_HOST && f->scope != LKI_FIELD_FILE) || f->all_ranks;
        if ((one[f - lki_fields] != other[f - lki_fields]) != of_job)
            fail_msg("%s", f->name);
    }
}

/* Checks whether ranks with these configurations have the same options. */
static void assert_alike(const lk_train_config *one, const lk_train_config *other, bool alike)
{
    uint64_t hashes[2][LKI_FIELDS_MAX];
    lki_fields_hash(one, hashes[0]);
    lki_fields_hash(other, hashes[1]);
    assert_int_equal(memcmp(hashes[0], hashes[1], sizeof hashes[0]) == 0, alike);
}

/* A default may be given or not. */
static void ranks_may_give_a_default(void **state)
{
    const lk_train_config none  = { .model = "mlp" };
    lk_train_config       given = none;
    (void)state;
    given.checkpoint.keep            = 3;
    given.bucket_bytes               = 25 << 20;
    given.first_bucket_bytes         = 1 << 20;
    given.strategy                   = "ddp";
    given.model_options.hidden[0]    = 512;
    given.model_options.hidden[1]    = 512;
    given.model_options.hidden_count = 2;
    given.model_options.norm_eps     = 1e-5f;
    given.exchange.clients.fraction  = 0.1;
    assert_alike(&none, &given, true);
    given.bucket_bytes = 26 << 20;
    assert_alike(&none, &given, false);
    given                 = none;
    given.checkpoint.keep = 4;
    assert_alike(&none, &given, false);
    given          = none;
    given.strategy = "zero1";
    assert_alike(&none, &given, false);
}

typedef struct {
    lk_train_config config;
    lk_comm        *comm;
    const char     *says; /* a part of the message */
} differing_rank;

/* Runs a rank; returns NULL if the run fails with the message. */
static void *run_differing(void *argument)
{
    differing_rank *rank = argument;
    lk_train_result result;
    lk_status       status  = lk_train_run(rank->comm, &rank->config, &result);
    const char     *message = lk_error_last()->message;
    if (status == LK_EMISMATCH && strstr(message, rank->says) != NULL)
        return NULL;
    print_message("%d, %s\n", (int)status, message);
    return argument;
}

/* Runs two ranks that differ, and expects that both fail with `says`. */
static void assert_named(const lk_train_config *one, const lk_train_config *other, const char *says)
{
    const lk_comm_options how = { .struct_size = sizeof(lk_comm_options), .timeout_ms = 20000 };
    static differing_rank ranks[2];
    lk_comm              *comms[2];
    pthread_t             thread;
    void                 *failed;
    assert_int_equal(lk_comm_open_threads(comms, 2, &how), LK_OK);
    for (uint32_t r = 0; r < 2; r++)
        ranks[r] = (differing_rank){ .config = r == 0 ? *one : *other, .comm = comms[r],
                                     .says   = says };
    assert_int_equal(pthread_create(&thread, NULL, run_differing, &ranks[1]), 0);
    assert_null(run_differing(&ranks[0]));
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    lk_comm_free(comms[0]);
    lk_comm_free(comms[1]);
}

static void differing_options_of_ranks_are_named(void **state)
{
    lk_train_config config = { .struct_size     = sizeof(lk_train_config),
                               .model           = "mlp",
                               .data.source     = "synthetic:images=60,h=6,w=6,c=1,classes=5",
                               .global_batch    = 8,
                               .virtual_workers = 2,
                               .steps           = 1,
                               .schedule        = { .lr = 0.1 },
                               .checkpoint.resume_step = -1,
                               .quiet                  = true };
    (void)state;
    config.workers = config.workers_here = 2;
    assert_int_equal(lk_train_check(&config), LK_OK);
    lk_train_config other = config;
    other.threads         = 2; /* may differ */
    other.schedule.lr     = 0.2;
    assert_named(&config, &other, "rank 0 and rank 1 have different values of `schedule.lr`:");
    other                   = config;
    other.checkpoint.folder = "none";
    assert_named(&config, &other, "of rank 0 and rank 1 only one has `checkpoint.folder`: give it");
    config                  = other;
    other.checkpoint.resume = true;
    assert_named(&config, &other, "of rank 0 and rank 1 only one has `resume`: give it");
}

/* Labels that are not exact. */
static const struct {
    const char *field, *choice; /* choice: NULL for any value but the default */
    lk_label    label;
} labels[] = {
    { "grad-comm-dtype", "int8", LK_LABEL_INVARIANT },
    { "grad-comm-dtype", "int4", LK_LABEL_INVARIANT },
    { "param-comm-dtype", "int8", LK_LABEL_INVARIANT },
    { "compress", NULL, LK_LABEL_INVARIANT },
    { "optimizer", "onebit-adam", LK_LABEL_INVARIANT },
    { "optimizer", "onebit-lamb", LK_LABEL_INVARIANT },
    { "local-steps", NULL, LK_LABEL_INVARIANT },
    { "topology", "ring", LK_LABEL_INVARIANT },
    { "topology", "exponential", LK_LABEL_INVARIANT },
    { "topology", "pairs", LK_LABEL_INVARIANT },
    { "clients", NULL, LK_LABEL_INVARIANT },
    { "async", "virtual", LK_LABEL_INVARIANT },
    { "async", "live", LK_LABEL_RECORDED },
    { "backup-workers", NULL, LK_LABEL_TIMED },
};
enum { LABELS = sizeof labels / sizeof labels[0] };

/* Returns the label in the list above; exact if the list has none. */
static lk_label listed(const char *field, const char *choice)
{
    for (size_t i = 0; i < LABELS; i++)
        if (strcmp(labels[i].field, field) == 0 &&
            (choice == NULL || labels[i].choice == NULL
                 ? choice == labels[i].choice
                 : strcmp(choice, labels[i].choice) == 0))
            return labels[i].label;
    return LK_LABEL_EXACT;
}

/* Compares the label of every field and choice with the list above. */
static void every_choice_has_its_label(void **state)
{
    size_t found = 0;
    (void)state;
    for (const lki_field *f = lki_fields; f->name != NULL; f++) {
        assert_int_equal(f->label, listed(f->name, NULL));
        assert_true(f->label == LK_LABEL_EXACT || f->scope == LKI_FIELD_RULE ||
                    f->scope == LKI_FIELD_RESULT);
        found += f->label != LK_LABEL_EXACT;
        for (const lki_field_choice *c = f->choices; c != NULL && c->name != NULL; c++) {
            if (c->label != listed(f->name, c->name))
                fail_msg("%s %s is labelled %s", f->name, c->name, lk_label_name(c->label));
            assert_true(c->label == LK_LABEL_EXACT || f->scope == LKI_FIELD_RULE ||
                        f->scope == LKI_FIELD_RESULT);
            found += c->label != LK_LABEL_EXACT;
        }
    }
    assert_int_equal(found, LABELS);
}

/* Compares the choices of `compress` with the compressors that there are. */
static void every_compressor_is_a_choice(void **state)
{
    const lki_field *field = lki_field_find("compress");
    uint32_t         count = 0;
    (void)state;
    assert_string_equal(field->choices[count].name, "none");
    for (; lk_compressors(count) != NULL; count++)
        assert_string_equal(field->choices[count + 1].name, lk_compressors(count)->name);
    assert_null(field->choices[count + 1].name);
}

/* Checks that the weakest label counts, and that the rules that cause it are named. */
static void the_weakest_label_counts(void **state)
{
    lk_train_config config = { .struct_size = sizeof(lk_train_config), .model = "mlp" };
    char            text[128];
    (void)state;
    assert_int_equal(lk_train_label(&config, text, sizeof text), LK_LABEL_EXACT);
    assert_string_equal(text, "exact");
    config.comm_dtype   = LK_BF16;
    config.gather_dtype = LK_I8;
    assert_int_equal(lk_train_label(&config, text, sizeof text), LK_LABEL_INVARIANT);
    assert_string_equal(text, "invariant (param-comm-dtype int8)");
    config.comm_dtype = LK_I4;
    assert_int_equal(lk_train_label(&config, text, sizeof text), LK_LABEL_INVARIANT);
    assert_string_equal(text, "invariant (grad-comm-dtype int4, param-comm-dtype int8)");
    config.elastic.backup_workers = 2;
    assert_int_equal(lk_train_label(&config, text, sizeof text), LK_LABEL_TIMED);
    assert_string_equal(text, "timed (backup-workers 2)");
    config.onednn = "module";
    assert_int_equal(lk_train_label(&config, text, sizeof text), LK_LABEL_TIMED);
    assert_string_equal(text, "timed (backup-workers 2, kernels onednn)");
    config.elastic.backup_workers = 0;
    assert_int_equal(lki_fields_label(&config), LK_LABEL_TIMED);
}

/* Checks which fields log lines repeat. */
static void rules_are_logged(void **state)
{
    lk_train_config config = { .struct_size = sizeof(lk_train_config), .model = "mlp" };
    char            text[160];
    (void)state;
    lki_fields_log(&config, text, sizeof text);
    assert_string_equal(text, "");
    config.comm_dtype = LK_BF16;
    assert_int_equal(lki_fields_label(&config), LK_LABEL_EXACT);
    lki_fields_log(&config, text, sizeof text);
    assert_string_equal(text, ", \"grad_algorithm\": \"auto\", \"comm_dtype\": \"bf16\", "
                              "\"gather_dtype\": \"fp32\"");
    config.exchange.compressor = "topk";
    lki_fields_log(&config, text, sizeof text);
    assert_string_equal(text, ", \"grad_algorithm\": \"auto\", \"comm_dtype\": \"bf16\", "
                              "\"gather_dtype\": \"fp32\", \"compress\": \"topk\"");
}

/* Checks that the values of choices are checked, and that rows write exactness ids and notes. */
static void choices_are_checked_and_noted(void **state)
{
    lk_train_config  config = { .struct_size = sizeof(lk_train_config), .model = "mlp" };
    const lki_field *field  = lki_field_find("comm-dtype");
    char             text[256];
    (void)state;
    assert_int_equal(lki_fields_check(&config), LK_OK); /* 0 is the default */
    lki_fields_identity(&config, text, sizeof text);
    assert_string_equal(text, "");
    assert_false(lki_field_note(field, &config, text, sizeof text));
    lk_train_rules(&config, text, sizeof text);
    assert_string_equal(text, "");
    config.comm_dtype   = LK_BF16;
    config.gather_dtype = LK_BF16; /* set by a program; the command refuses it */
    assert_int_equal(lki_fields_check(&config), LK_OK);
    lki_fields_identity(&config, text, sizeof text);
    assert_string_equal(text, " travels as bf16");
    assert_true(lki_field_note(field, &config, text, sizeof text));
    assert_non_null(strstr(text, "rounded to bf16, alike for any workers; bits are not those of "
                                 "--grad-comm-dtype fp32"));
    config.comm_dtype   = LK_I4;
    config.gather_dtype = LK_I8;
    lki_fields_identity(&config, text, sizeof text);
    assert_string_equal(text, " travels as int4 read as int8");
    assert_true(lki_field_note(field, &config, text, sizeof text));
    assert_non_null(strstr(text, "rounded to int4, alike for any workers"));
    lk_train_rules(&config, text, sizeof text);
    assert_string_equal(text, ", grad-comm-dtype int4, param-comm-dtype int8");
    config.comm_dtype = LK_F64;
    assert_int_equal(lki_fields_check(&config), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message,
                           "`comm_dtype` 4: is none of: fp32, bf16, fp16, int8, int4"));
}

/* Checks that checkpoints use the first names of renamed options. */
static void keys_of_checkpoints_do_not_change(void **state)
{
    static const char *const keys[] = { "comm-dtype",   "gather-dtype", "trust",
                                        "group",        "decay-all",    "initial-scale",
                                        "scale-window", "hysteresis",   "model" };
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const lki_field *field = lki_field_find(keys[i]);
        assert_non_null(field);
        assert_string_equal(lki_field_key(field), keys[i]);
    }
}

/* Completes a configuration with two unknown fields, as of a newer program.  Expects that it is
 * completed in place, and that an unknown field other than 0 is refused. */
static void a_longer_configuration_is_completed_in_place(void **state)
{
    struct {
        lk_train_config known;
        uint64_t        unknown[2];
    } longer                = { .known = { .struct_size  = sizeof longer,
                                           .model        = "mlp",
                                           .data.source  = "synthetic:images=60,h=6,w=6,c=1,"
                                                           "classes=5",
                                           .global_batch = 8,
                                           .steps        = 1,
                                           .schedule     = { .lr = 0.1 },
                                           .quiet        = true } };
    lk_train_config *config = &longer.known;
    (void)state;
    assert_int_equal(lk_train_check(config), LK_OK);
    assert_int_equal(config->context, 64);
    assert_int_equal(config->struct_size, sizeof longer);
    assert_true(longer.unknown[0] == 0 && longer.unknown[1] == 0);
    longer.unknown[1] = 5;
    assert_int_equal(lk_train_check(config), LK_EUNSUPPORTED);
    assert_non_null(strstr(lk_error_last()->message, "lk_train_config has 16 bytes"));
    config->struct_size = sizeof *config; /* bytes after the known struct are not read */
    config->context     = 0;
    assert_int_equal(lk_train_check(config), LK_OK);
    assert_int_equal(config->context, 64);
    assert_int_equal(longer.unknown[1], 5);
    config->struct_size = offsetof(lk_train_config, calls.stop); /* as in an older program */
    config->calls.stop  = (bool (*)(void *))(uintptr_t)1;
    config->context     = 0;
    assert_int_equal(lk_train_check(config), LK_OK);
    assert_int_equal(config->context, 64);
    assert_int_equal((uintptr_t)config->calls.stop, 1);
    config->struct_size = 0;
    assert_int_equal(lk_train_check(config), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "begin with LK_TRAIN_CONFIG_INIT"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_longer_configuration_is_completed_in_place),
        cmocka_unit_test(rows_are_consistent),
        cmocka_unit_test(checkpoints_record_options_that_decide_the_result),
        cmocka_unit_test(ranks_agree_on_all_but_hosts_and_files),
        cmocka_unit_test(ranks_may_give_a_default),
        cmocka_unit_test(differing_options_of_ranks_are_named),
        cmocka_unit_test(every_choice_has_its_label),
        cmocka_unit_test(every_compressor_is_a_choice),
        cmocka_unit_test(the_weakest_label_counts),
        cmocka_unit_test(rules_are_logged),
        cmocka_unit_test(choices_are_checked_and_noted),
        cmocka_unit_test(keys_of_checkpoints_do_not_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
