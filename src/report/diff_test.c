/* diff_test.c -- finding differences between logs, checkpoints and runs.  Each test first sees that
 * equal ones are equal, and then changes one thing. */
#include <sys/stat.h>

#include "report/report_testing.h"

#include <jansson.h>
#include <math.h>

#include "checkpoint/checkpoint_testing.h"
#include "lockstep/report.h"

/* The first difference, and how many there are of each kind. */
typedef struct {
    lk_difference first;
    char          name[256], a[256], b[256], index[64];
    unsigned      kinds[8];
    char          kind_order[16]; /* digits of the kinds, each once */
    bool          equal;
} outcome;

static void remember(void *context, const lk_difference *d)
{
    outcome *o     = context;
    bool     first = true;
    for (size_t k = 0; k < 8; k++)
        first = first && o->kinds[k] == 0;
    if (o->kinds[d->kind]++ == 0) {
        const char digit[] = { (char)('0' + d->kind), '\0' };
        strcat(o->kind_order, digit);
    }
    if (!first)
        return;
    o->first = *d;
    (void)snprintf(o->name, sizeof o->name, "%s", d->name);
    (void)snprintf(o->index, sizeof o->index, "%s", d->index);
    (void)snprintf(o->a, sizeof o->a, "%s", d->a);
    (void)snprintf(o->b, sizeof o->b, "%s", d->b);
}

static outcome compare(const char *a, const char *b)
{
    outcome o = { .equal = false };
    if (lk_diff(a, b, remember, &o, &o.equal) != LK_OK)
        fail_msg("%s", lk_error_last()->message);
    return o;
}

/* ---- Logs ---------------------------------------------------------------------------------- */

/* Writes two logs and compares them. */
static outcome compare_logs(const char *a, const char *b)
{
    const char *path = lkt_write("a.jsonl", "w", a);
    return compare(path, lkt_write("b.jsonl", "w", b));
}

static void logs(void **state)
{
    (void)state;
    assert_true(compare_logs(LKT_LOG, LKT_LOG).equal);
    outcome o = compare_logs(LKT_LOG, LKT_ONE LKT_STEP(2, "1", "3ff0000000000001") LKT_THREE);
    assert_false(o.equal);
    assert_int_equal(o.first.kind, LK_DIFFERENCE_LOG);
    assert_int_equal(o.first.step, 2);
    assert_string_equal(o.name, "loss");
    assert_string_equal(o.a, "1 (0x3ff0000000000000)");
    assert_string_equal(o.b, "1.0000000000000002 (0x3ff0000000000001)");
}

/* The first virtual worker with another loss is named, in the first step that differs. */
static void virtual_workers(void **state)
{
    (void)state;
    outcome o = compare_logs("{\"step\": 1, \"grad_norm\": 1}\n" LKT_WORKERS("3ff0000000000000"),
                             "{\"step\": 1, \"grad_norm\": 2}\n" LKT_WORKERS("3ff0000000000001"));
    assert_int_equal(o.first.step, 1);
    assert_int_equal(o.first.worker_count, 1);
    assert_int_equal(o.first.first_worker, 1);
    assert_string_equal(o.name, "loss");
    assert_string_equal(o.a, "1 (0x3ff0000000000000)");
    assert_string_equal(o.b, "1.0000000000000002 (0x3ff0000000000001)");
    o = compare_logs("{\"step\": 1, \"grad_norm\": 1}\n" LKT_WORKERS("3ff0000000000000"),
                     "{\"step\": 1, \"grad_norm\": 2}\n");
    assert_string_equal(o.name, "grad_norm");
    o = compare_logs(LKT_ONE LKT_WORKERS("3ff0000000000000") LKT_TWO,
                     LKT_ONE LKT_WORKERS("3ff0000000000001") LKT_TWO); /* nothing else differs */
    assert_int_equal(o.first.step, 1);
    assert_int_equal(o.first.worker_count, 1);
    assert_int_equal(o.first.first_worker, 1);
    assert_true(compare_logs(LKT_ONE LKT_WORKERS("3ff0000000000000"), LKT_ONE).equal);
}

/* Times, evaluations and saves depend on the machine or on what was asked for. */
static void what_does_not_count(void **state)
{
    (void)state;
    assert_true(compare_logs(LKT_LOG, LKT_ONE LKT_TWO LKT_THREE LKT_END).equal);
    assert_true(compare_logs(LKT_ONE, "{\"step\": 1, \"loss\": 2, \"lr\": 0.5, \"step_ms\": 9, "
                                      "\"samples_per_s\": 8, \"time\": 5}\n")
                    .equal);
    assert_true(compare_logs("{\"step\": 1, \"loss\": 2, \"wait_ms\": [1, 2], \"late\": [0]}\n",
                             "{\"step\": 1, \"loss\": 2, \"wait_ms\": [1, 3], \"late\": [1]}\n")
                    .equal);
    assert_false(compare_logs("{\"step\": 1, \"loss\": 2, \"ms\": [1, 2]}\n",
                              "{\"step\": 1, \"loss\": 2, \"ms\": [1, 3]}\n")
                     .equal);
}

static void other_logs(void **state)
{
    (void)state;
    outcome o = compare_logs(LKT_LOG, LKT_ONE LKT_TWO "{\"step\": 3, \"lo");
    assert_int_equal(o.first.kind, LK_DIFFERENCE_END);
    assert_int_equal(o.first.step, 2);
    assert_non_null(strstr(o.b, "part of a line"));
    o = compare_logs(LKT_LOG, LKT_ONE LKT_THREE);
    assert_int_equal(o.first.step, 2);
    assert_string_equal(o.b, "");
    assert_int_equal(compare_logs(LKT_LOG, "").first.kind, LK_DIFFERENCE_END);
    o = compare_logs(LKT_LOG, LKT_ONE LKT_TWO LKT_THREE "{\"step\": 3, \"weights\": \"ab\"}\n");
    assert_string_equal(o.name, "weights");
    o = compare_logs(LKT_LOG, LKT_ONE "{\"step\": 1, \"audit\": {\"virtual_worker\": 5, "
                                      "\"what\": \"loss\"}}\n" LKT_TWO LKT_THREE);
    assert_string_equal(o.name, "audit");
    assert_int_equal(o.first.first_worker, 5);
    assert_int_equal(o.first.worker_count, 1);
}

/* A log without its last or its first line differs from the whole one. */
static void without_ends(void **state)
{
    (void)state;
    outcome o = compare_logs(LKT_LOG, LKT_ONE LKT_TWO LKT_THREE);
    assert_int_equal(o.first.kind, LK_DIFFERENCE_END);
    assert_string_equal(o.a, "step 3");
    assert_string_equal(o.b, "step 3, without the last line, which has the hashes");
    o = compare_logs(LKT_LOG, LKT_ONE LKT_TWO LKT_THREE "{\"step\": 3, \"weights\": \"aa\", "
                                                        "\"run\": \"cc\"}\n");
    assert_string_equal(o.name, "run");
    o = compare_logs(LKT_LOG, LKT_ONE LKT_TWO LKT_THREE "{\"step\": 3, \"weights\": \"aa\"}\n");
    assert_string_equal(o.name, "run");
    assert_string_equal(o.b, "");
    assert_true(compare_logs(LKT_LOG, LKT_ONE LKT_TWO LKT_THREE "{\"step\": 3, "
                                                                "\"weights\": null}\n")
                    .equal);
    o = compare_logs(LKT_LOG, LKT_ONE "{\"step\": 3, \"weights\": \"aa\", \"run\": \"bb\"}\n");
    assert_int_equal(o.first.kind, LK_DIFFERENCE_END);
    assert_string_equal(o.a, "step 3");
    assert_string_equal(o.b, "step 1");
    o = compare_logs("{\"step\": 0, \"config\": {\"lr\": 1}}\n" LKT_LOG, LKT_LOG);
    assert_int_equal(o.first.kind, LK_DIFFERENCE_CONFIG);
    assert_string_equal(o.name, "first line of the log");
    assert_string_equal(o.b, "");
}

/* Logs of which nothing can be compared are not equal. */
static void nothing_in_common(void **state)
{
    static const char *const pairs[][2] = {
        { "", "" },
        { "{\"step\": 1, \"a\": \"x\"}\n", "{\"step\": 1, \"b\": \"x\"}\n" },
        { "{\"step\": 1, \"time\": 1}\n", "{\"step\": 1, \"time\": 1}\n" },
    };
    outcome o = { .equal = false };
    bool    equal;
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        const char *a = lkt_write("a.jsonl", "w", pairs[i][0]);
        const char *b = lkt_write("b.jsonl", "w", pairs[i][1]);
        assert_int_equal(lk_diff(a, b, remember, &o, &equal), LK_EINVAL);
    }
}

#define HEADER(lr)                                                                                 \
    "{\"step\": 0, \"run\": {\"config\": {\"lr\": " lr ", \"groups\": 2, "                         \
    "\"virtual-workers\": 8}}}\n"

static void configurations(void **state)
{
    (void)state;
    assert_true(compare_logs(HEADER("0.1") LKT_LOG, HEADER("0.1") LKT_LOG).equal);
    outcome o = compare_logs(HEADER("0.1") LKT_LOG, HEADER("0.2") LKT_LOG);
    assert_int_equal(o.first.kind, LK_DIFFERENCE_CONFIG);
    assert_string_equal(o.name, "lr");
    assert_string_equal(o.a, "0.1");
    o = compare_logs("{\"step\": 0, \"data\": \"ab\", \"config\": {\"lr\": 1}}\n" LKT_LOG,
                     "{\"step\": 0, \"data\": \"cd\", \"config\": {\"lr\": 2}}\n" LKT_LOG);
    assert_string_equal(o.name, "data");
    assert_string_equal(o.b, "cd");
    assert_int_equal(o.kinds[LK_DIFFERENCE_CONFIG], 2);
    o = compare_logs("{\"step\": 0, \"data\": \"ab\", \"config\": {\"lr\": 1}}\n" LKT_LOG,
                     "{\"step\": 0, \"config\": {\"lr\": 1}}\n" LKT_LOG);
    assert_string_equal(o.name, "data");
    assert_string_equal(o.b, "");
    o = compare_logs(HEADER("0.1") "{\"step\": 1, \"groups\": 2, \"error_norms\": [1, 2]}\n",
                     HEADER("0.1") "{\"step\": 1, \"groups\": 2, \"error_norms\": [1, 3]}\n");
    assert_string_equal(o.name, "error_norms[1]");
    assert_int_equal(o.first.first_worker, 4);
    assert_int_equal(o.first.worker_count, 4);
}

/* ---- Checkpoints --------------------------------------------------------------------------- */

static void put(const char *run, small *s, size_t files)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", lkt_folder, run);
    if (lk_checkpoint_write(path, &s->info, s->files, files, 0) != LK_OK)
        fail_msg("%s", lk_error_last()->message);
}

static void checkpoints(void **state)
{
    (void)state;
    small s;
    for (uint64_t step = 1; step <= 3; step++) {
        small_init(&s, step);
        put("whole", &s, 3);
        assert_int_equal(small_write_parts(lkt_path("parts"), step, 0), LK_OK);
        uint32_t bits;
        memcpy(&bits, &s.weight[4], sizeof bits);
        bits ^= step >= 2; /* one bit, from step 2 on */
        memcpy(&s.weight[4], &bits, sizeof bits);
        put("flipped", &s, 3);
    }
    assert_true(compare(lkt_path("whole"), lkt_path("parts")).equal);
    assert_true(compare(lkt_path("whole/step-00000001"), lkt_path("flipped")).equal);
    assert_true(compare(lkt_path("whole/step-00000002"), lkt_path("parts")).equal);
    outcome o = compare(lkt_path("parts/step-00000002"), lkt_path("flipped"));
    assert_int_equal(o.first.kind, LK_DIFFERENCE_TENSOR);
    assert_string_equal(o.name, "wte.weight");
    assert_int_equal(o.first.element, 4);
    assert_int_equal(o.first.count, 1);
    assert_string_equal(o.index, "[1, 1]");
    assert_string_equal(o.a, "204 (0x434c0000)");
    assert_string_equal(o.b, "204.000015 (0x434c0001)");
    assert_false(compare(lkt_path("whole"), lkt_path("flipped")).equal);
    o = compare(lkt_path("flipped/step-00000003/model.safetensors"), lkt_path("whole"));
    assert_string_equal(o.name, "wte.weight");
}

/* Manifests have the hash of the data, except those of earlier versions. */
static void data(void **state)
{
    static const char *const configs[] = { "{\"data\": {\"content\": \"ab\", \"samples\": 3}}",
                                           "{\"data\": {\"content\": \"cd\", \"samples\": 3}}",
                                           "{}" };
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        small s;
        char  name[32];
        small_init(&s, 1);
        s.info.config = configs[i];
        (void)snprintf(name, sizeof name, "data%zu", i);
        put(name, &s, 3);
    }
    assert_true(compare(lkt_path("data0"), lkt_path("data2")).equal);
    outcome o = compare(lkt_path("data0"), lkt_path("data1"));
    assert_string_equal(o.name, "data");
    assert_string_equal(o.b, "cd");
}

/* The first step with other hashes is compared, not the newest. */
static void first_step(void **state)
{
    (void)state;
    small s;
    for (uint64_t step = 1; step <= 3; step++) {
        char weights[] = WEIGHTS;
        small_init(&s, step);
        put("early", &s, 3);
        weights[0]     = step == 2 ? '1' : '0';
        s.info.weights = weights;
        s.counter += step == 2;
        put("late", &s, 3);
    }
    outcome o = compare(lkt_path("early"), lkt_path("late"));
    assert_int_equal(o.first.kind, LK_DIFFERENCE_RUN);
    assert_int_equal(o.first.step, 2);
    assert_int_equal(o.kinds[LK_DIFFERENCE_TENSOR], 1);
}

static void flip_last_byte(const char *path)
{
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    assert_int_equal(fputc(0x55, file), 0x55);
    assert_int_equal(fclose(file), 0);
}

/* The tensors of all common steps are compared, also of those before the newest, and if the hashes
 * of the weights are equal. */
static void older_steps(void **state)
{
    (void)state;
    small   s;
    outcome o;
    bool    equal;
    for (uint64_t step = 1; step <= 3; step++) {
        small_init(&s, step);
        put("old1", &s, 3);
        s.counter += step == 2;
        put("old2", &s, 3);
    }
    o = compare(lkt_path("old1"), lkt_path("old2"));
    assert_int_equal(o.first.kind, LK_DIFFERENCE_TENSOR);
    assert_int_equal(o.first.step, 2);
    assert_string_equal(o.name, "counter");
    flip_last_byte(lkt_path("old2/step-00000001/model.safetensors"));
    assert_int_equal(lk_diff(lkt_path("old1"), lkt_path("old2"), remember, &o, &equal),
                     LK_ECORRUPT);
}

/* Runs without a checkpoint of the same step have at most logs that can be compared. */
static void no_common_step(void **state)
{
    (void)state;
    small   s;
    outcome o = { .equal = false };
    bool    equal;
    for (uint64_t step = 1; step <= 4; step++) {
        small_init(&s, step);
        put(step % 2 == 0 ? "even" : "odd", &s, 3);
    }
    assert_int_equal(lk_diff(lkt_path("odd"), lkt_path("even"), remember, &o, &equal), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "the first has steps 1, 3, and the second "
                                                     "steps 2, 4; give two checkpoints, or runs"));
    (void)lkt_write("odd/log.jsonl", "w", LKT_ONE LKT_TWO);
    (void)lkt_write("even/log.jsonl", "w", LKT_ONE LKT_TWO);
    assert_int_equal(lk_diff(lkt_path("odd"), lkt_path("even"), remember, &o, &equal), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "the logs are equal, but '"));
    (void)lkt_write("even/log.jsonl", "w", LKT_ONE LKT_STEP(2, "5", "4014000000000000"));
    o = compare(lkt_path("odd"), lkt_path("even"));
    assert_int_equal(o.first.kind, LK_DIFFERENCE_LOG);
    assert_int_equal(o.first.step, 2);
}

/* The order is: configurations, logs, checkpoints. */
static void order(void **state)
{
    (void)state;
    static const char *const kept[] = { "kept1", "kept2" };
    for (size_t i = 0; i < 2; i++) {
        small s;
        char  name[32];
        small_init(&s, 1);
        s.info.config = i == 0 ? "{\"lr\": 1}" : "{\"lr\": 2}";
        s.counter += i;
        put(kept[i], &s, 3);
        (void)snprintf(name, sizeof name, "%s/log.jsonl", kept[i]);
        (void)lkt_write(name, "w", i == 0 ? LKT_ONE : LKT_STEP(1, "1", "3ff0000000000000"));
    }
    outcome o = compare(lkt_path("kept1"), lkt_path("kept2"));
    assert_string_equal(o.kind_order, "017"); /* CONFIG, LOG, TENSOR */
}

static void other_tensors(void **state)
{
    (void)state;
    small s;
    small_init(&s, 1);
    put("three", &s, 3);
    put("two", &s, 2);
    outcome o = compare(lkt_path("three"), lkt_path("two"));
    assert_int_equal(o.first.kind, LK_DIFFERENCE_MISSING);
    assert_string_equal(o.name, "counter");
    assert_string_equal(o.b, "");
    assert_int_equal(compare(lkt_path("two"), lkt_path("three")).kinds[LK_DIFFERENCE_MISSING], 1);
    s.model[0].shape = (lk_shape){ 2, { 3, 2 } };
    s.info.config    = "{\"lr\": 0.002, \"layers\": 2}";
    put("turned", &s, 3);
    o = compare(lkt_path("three"), lkt_path("turned"));
    assert_int_equal(o.first.kind, LK_DIFFERENCE_CONFIG);
    assert_int_equal(o.kinds[LK_DIFFERENCE_SHAPE], 1);
    assert_int_equal(o.kinds[LK_DIFFERENCE_TENSOR], 0);
}

static void group_values(void **state)
{
    (void)state;
    small s;
    small_init(&s, 1);
    s.info.config       = "{\"groups\": 4, \"virtual-workers\": 8}";
    s.optimizer[0].name = "wte.weight.error.3";
    s.files[1].name     = "groups.safetensors";
    put("groups", &s, 3);
    s.momentum[2] = 7;
    put("groups2", &s, 3);
    outcome o = compare(lkt_path("groups"), lkt_path("groups2"));
    assert_int_equal(o.first.first_worker, 6);
    assert_int_equal(o.first.worker_count, 2);
}

#define LONG "a_value_whose_name_has_more_than_sixty_three_letters_as_those_of_users_may_have"

/* Names are compared whole, so two that begin alike are two values. */
static void long_names(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        { "{\"step\": 1, \"loss\": 1, \"" LONG "\": 1}\n",
          "{\"step\": 1, \"loss\": 1, \"" LONG "\": 2}\n" },
        { "{\"step\": 1, \"loss\": 1, \"" LONG "\": [1], \"" LONG "_2\": [3]}\n",
          "{\"step\": 1, \"loss\": 1, \"" LONG "\": [2], \"" LONG "_2\": [3]}\n" },
        { "{\"step\": 1, \"loss\": 1, \"" LONG "_bits\": \"3ff0000000000000\"}\n",
          "{\"step\": 1, \"loss\": 1, \"" LONG "_bits\": \"4000000000000000\"}\n" },
    };
    for (size_t i = 0; i < 3; i++) {
        assert_true(compare_logs(pairs[i][0], pairs[i][0]).equal);
        outcome o = compare_logs(pairs[i][0], pairs[i][1]);
        assert_false(o.equal);
        assert_string_equal(o.name, i == 1 ? LONG "[0]" : LONG);
        assert_int_equal(strncmp(o.a, "1 (", 3), 0);
        assert_int_equal(strncmp(o.b, "2 (", 3), 0);
    }
}

/* Writes a log of one step with a list, of which the last value is `last`. */
static const char *write_list(const char *name, const char *key, int count, int last)
{
    const char *path = lkt_write(name, "w", "");
    FILE       *file = fopen(path, "we");
    assert_non_null(file);
    (void)fprintf(file, "{\"step\": 1, \"loss\": 1, \"%s\": [", key);
    for (int i = 1; i < count; i++)
        (void)fprintf(file, "%d, ", i);
    (void)fprintf(file, "%d]}\n", last);
    assert_int_equal(fclose(file), 0);
    return path;
}

/* A log has 4096 columns at most.  Logs whose other values may differ are not called equal. */
static void too_many_values(void **state)
{
    (void)state;
    outcome o = { .equal = false };
    for (int i = 0; i < 2; i++) {
        const char *a = write_list("a.jsonl", "norms", 5000, 1);
        const char *b = write_list("b.jsonl", "norms", 5000, i + 1);
        assert_int_equal(lk_diff(a, b, remember, &o, &o.equal), LK_EUNSUPPORTED);
        assert_non_null(strstr(lk_error_last()->message, "905 values of the log"));
        assert_false(o.equal);
    }
    const char *few = write_list("a.jsonl", "norms", 4000, 1);
    assert_false(compare(few, write_list("b.jsonl", "norms", 4000, 2)).equal);
}

/* A log is read twice, so a pipe would have a different one at the second time. */
static void pipes(void **state)
{
    (void)state;
    static const char *const names[] = { "pipe", "pipe.safetensors" };
    bool                     equal;
    outcome                  o;
    const char              *log = lkt_write("b.jsonl", "w", LKT_LOG);
    for (size_t i = 0; i < 2; i++) {
        const char *pipe = lkt_path(names[i]);
        assert_int_equal(mkfifo(pipe, 0600), 0);
        assert_int_equal(lk_diff(pipe, log, remember, &o, &equal), LK_EINVAL);
        assert_non_null(strstr(lk_error_last()->message, "is no regular file"));
        assert_int_equal(lk_diff(log, pipe, remember, &o, &equal), LK_EINVAL);
    }
}

static void trouble(void **state)
{
    (void)state;
    bool  equal;
    small s;
    small_init(&s, 1);
    put("one", &s, 3);
    small_init(&s, 2);
    put("another", &s, 3);
    outcome o;
    assert_int_equal(lk_diff(lkt_path("one"), lkt_path("nowhere"), remember, &o, &equal), LK_EIO);
    assert_int_equal(lk_diff(lkt_path("one"), lkt_path("another"), remember, &o, &equal),
                     LK_EINVAL);
    assert_int_equal(
        lk_diff(lkt_path("one"), lkt_write("a.jsonl", "w", LKT_LOG), remember, &o, &equal),
        LK_EINVAL);
    assert_int_equal(lk_diff(lkt_folder, lkt_folder, remember, &o, &equal), LK_EINVAL);
    flip_last_byte(lkt_path("one/step-00000001/model.safetensors"));
    assert_int_equal(lk_diff(lkt_path("one"), lkt_path("one"), remember, &o, &equal), LK_ECORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logs),
        cmocka_unit_test(virtual_workers),
        cmocka_unit_test(what_does_not_count),
        cmocka_unit_test(other_logs),
        cmocka_unit_test(configurations),
        cmocka_unit_test(checkpoints),
        cmocka_unit_test(data),
        cmocka_unit_test(first_step),
        cmocka_unit_test(other_tensors),
        cmocka_unit_test(group_values),
        cmocka_unit_test(long_names),
        cmocka_unit_test(too_many_values),
        cmocka_unit_test(trouble),
        cmocka_unit_test(pipes),
        cmocka_unit_test(without_ends),
        cmocka_unit_test(nothing_in_common),
        cmocka_unit_test(older_steps),
        cmocka_unit_test(no_common_step),
        cmocka_unit_test(order),
    };
    return cmocka_run_group_tests(tests, lkt_make_folder, lkt_remove_folder);
}
