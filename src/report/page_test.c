/* page_test.c -- the page of a report: its data, its levels, its policy, and texts that would leave
 * their place.  tests/cli/report_test.c runs the command. */
#include "report/report_testing.h"

#include <sys/stat.h>

#include <jansson.h>
#include <math.h>
#include <nettle/base64.h>

#include "checkpoint/checkpoint_testing.h"
#include "report/page.h"

enum { LONG_ROWS = 20000 };

static lk_report *open_report(const char *a, const char *b)
{
    const char       *runs[]  = { a, b };
    lk_report_options options = LK_REPORT_OPTIONS_INIT;
    lk_report        *report;
    options.runs      = runs;
    options.run_count = b != NULL ? 2 : 1;
    if (lk_report_open(&report, &options) != LK_OK)
        fail_msg("%s", lk_error_last()->message);
    return report;
}

static const char *page_of(lk_report *report)
{
    const char *text;
    size_t      bytes;
    assert_int_equal(lk_report_page(report, &text, &bytes), LK_OK);
    assert_int_equal(strlen(text), bytes);
    return text;
}

/* Returns the data of a page, read as a browser reads them: up to the next "</script". */
static json_t *data_of(lk_report *report)
{
    static const char opening[] = "id=\"data\">";
    const char       *begin     = strstr(page_of(report), opening);
    assert_non_null(begin);
    begin += strlen(opening);
    const char *end = strstr(begin, "</script");
    assert_non_null(end);
    assert_null(memchr(begin, '<', (size_t)(end - begin)));
    json_t *data = json_loadb(begin, (size_t)(end - begin), 0, NULL);
    assert_non_null(data);
    return data;
}

static const json_t *run_at(const json_t *data, size_t i)
{
    return json_array_get(json_object_get(data, "runs"), i);
}

static const json_t *series_of(const json_t *run, const char *name)
{
    const json_t *all = json_object_get(run, "series"), *one;
    size_t        i;
    json_array_foreach(all, i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "name")), name) == 0)
            return one;
    }
    return NULL;
}

/* Decodes the floats of a member of a level; returns their number. */
static size_t floats_of(const json_t *series, size_t level, const char *member, float *out)
{
    const json_t            *of   = json_array_get(json_object_get(series, "levels"), level);
    const char              *text = json_string_value(json_object_get(of, member));
    struct base64_decode_ctx context;
    size_t                   bytes = 4 * 32768;
    if (text == NULL)
        return 0;
    base64_decode_init(&context);
    assert_int_equal(base64_decode_update(&context, &bytes, (uint8_t *)out, strlen(text), text), 1);
    return bytes / sizeof *out;
}

static void values(void **state)
{
    (void)state;
    static float  y[32768];
    lk_report    *report = open_report(lkt_write("a.jsonl", "w", LKT_LOG), NULL);
    json_t       *data   = data_of(report);
    const json_t *run    = run_at(data, 0);
    assert_int_equal(json_integer_value(json_object_get(run, "rows")), 3);
    assert_string_equal(json_string_value(json_object_get(run, "label")), "exact");
    assert_int_equal(floats_of(series_of(run, "loss"), 0, "mean", y), 3);
    assert_true(y[0] > 1.9F && y[2] < 0.6F);
    assert_int_equal(floats_of(series_of(run, "val_loss"), 0, "mean", y), 1);
    assert_int_equal(floats_of(series_of(run, "val_loss"), 0, "max", y), 0);
    json_decref(data);
    lk_report_free(report);
}

/* Both levels of a long run have every extreme value, and no more points than a screen needs. */
static void levels(void **state)
{
    (void)state;
    static float y[32768];
    FILE        *file = fopen(lkt_path("long.jsonl"), "w");
    assert_non_null(file);
    for (int i = 1; i <= LONG_ROWS; i++)
        fprintf(file, "{\"step\": %d, \"loss\": %d}\n", i, i == 12345 ? 99 : i == 777 ? -7 : 1);
    assert_int_equal(fclose(file), 0);
    lk_report    *report = open_report(lkt_path("long.jsonl"), NULL);
    json_t       *data   = data_of(report);
    const json_t *loss   = series_of(run_at(data, 0), "loss");
    for (size_t level = 0; level < 2; level++) {
        size_t count = floats_of(loss, level, "max", y), found = 0;
        assert_true(count > 1500 && count <= (level == 0 ? 2048U : 16384U));
        for (size_t i = 0; i < count; i++)
            found += y[i] > 98;
        assert_int_equal(found, 1);
        assert_int_equal(floats_of(loss, level, "min", y), count);
        for (size_t i = found = 0; i < count; i++)
            found += y[i] < -6;
        assert_int_equal(found, 1);
    }
    assert_int_equal(floats_of(loss, 2, "mean", y), 0);
    json_decref(data);
    lk_report_free(report);
}

/* Texts of a log cannot end the element that they are in, and the page requests nothing. */
static void hostile(void **state)
{
    (void)state;
    const char *path   = lkt_write("<script>alert(1).jsonl", "w",
                                   "{\"step\": 1, \"</script><script>alert(1)</script>\": 2, "
                                     "\"straggler\": {\"cause\": \"</script><!--\"}}\n");
    lk_report  *report = open_report(path, NULL);
    json_decref(data_of(report));
    const char *page = page_of(report);
    assert_null(strstr(page, "<script>alert(1)"));
    assert_non_null(strstr(page, "default-src 'none'; script-src 'sha256-"));
    assert_non_null(strstr(page, "connect-src 'none'"));
    assert_null(strstr(page, "src=\"http"));
    assert_null(strstr(page, "href=\"http"));
    assert_null(strstr(lki_page_script, "</"));
    assert_null(strstr(lki_page_style, "</"));
    lk_report_free(report);
}

static void two_runs(void **state)
{
    (void)state;
    const char   *a      = lkt_write("a.jsonl", "w", LKT_LOG);
    const char   *b      = lkt_write("b.jsonl", "w", LKT_ONE LKT_STEP(2, "1", "3ff0000000000001"));
    lk_report    *report = open_report(a, b);
    json_t       *data   = data_of(report);
    const json_t *part   = json_array_get(json_object_get(data, "parts"), 0);
    assert_int_equal(json_integer_value(json_object_get(part, "step")), 2);
    assert_string_equal(json_string_value(json_object_get(part, "name")), "loss");
    json_decref(data);
    lk_report_free(report);
}

/* Runs are not called equal if they have values that were not compared. */
static void runs_with_too_many_values(void **state)
{
    (void)state;
    const char *path = lkt_write("many.jsonl", "w", "");
    FILE       *file = fopen(path, "we");
    assert_non_null(file);
    (void)fprintf(file, "{\"step\": 1, \"loss\": 1");
    for (int i = 0; i < 4100; i++)
        (void)fprintf(file, ", \"k%d\": 1", i);
    (void)fprintf(file, "}\n");
    assert_int_equal(fclose(file), 0);
    lk_report    *report = open_report(path, path);
    json_t       *data   = data_of(report);
    const json_t *part   = json_array_get(json_object_get(data, "parts"), 0);
    assert_true(json_is_false(json_object_get(part, "equal")));
    assert_int_equal(json_integer_value(json_object_get(part, "lost")), 10);
    json_decref(data);
    lk_report_free(report);
}

static void beside_checkpoints(void **state)
{
    (void)state;
    bool changed;
    assert_int_equal(small_write(lkt_path("run"), 3, 0), LK_OK);
    lk_report *report;
    {
        lk_report_options options = LK_REPORT_OPTIONS_INIT;
        const char       *run     = lkt_path("run");
        options.runs              = &run;
        options.run_count         = 1;
        assert_int_equal(lk_report_open(&report, &options), LK_EINVAL); /* it has no log */
    }
    (void)lkt_write("run/log.jsonl", "w", LKT_ONE);
    report = open_report(lkt_path("run"), NULL);
    (void)lkt_write("run/log.jsonl", "a", LKT_TWO);
    assert_int_equal(lk_report_update(report, &changed), LK_OK);
    assert_true(changed);
    json_t       *data  = data_of(report);
    const json_t *saved = json_object_get(run_at(data, 0), "checkpoints");
    assert_string_equal(json_string_value(json_object_get(json_array_get(saved, 0), "weights")),
                        WEIGHTS);
    assert_int_equal(json_integer_value(json_object_get(run_at(data, 0), "rows")), 2);
    json_decref(data);
    lk_report_free(report);
}

/* The log of a run is found through the command that its directory keeps. */
static void recorded_log(void **state)
{
    (void)state;
    char record[512], found[256], path[160];
    (void)snprintf(path, sizeof path, "%s", lkt_write("elsewhere.jsonl", "w", LKT_ONE));
    assert_int_equal(small_write(lkt_path("recorded"), 1, 0), LK_OK);
    (void)snprintf(record, sizeof record,
                   "{\"directory\": \"%s\", \"options\": {\"log\": \"elsewhere.jsonl\"}}",
                   lkt_folder);
    (void)lkt_write("recorded/command.json", "w", record);
    assert_int_equal(lk_run_log(found, sizeof found, lkt_path("recorded")), LK_OK);
    assert_string_equal(found, path);
    lk_report *report = open_report(lkt_path("recorded"), NULL);
    lk_report_free(report);
    (void)snprintf(record, sizeof record, "{\"directory\": \"/\", \"options\": {\"log\": \"%s\"}}",
                   path);
    (void)lkt_write("recorded/command.json", "w", record);
    assert_int_equal(lk_run_log(found, sizeof found, lkt_path("recorded")), LK_OK);
    assert_string_equal(found, path);
    assert_int_equal(lk_run_log(found, 8, lkt_path("recorded")), LK_EINVAL);
    assert_int_equal(remove(path), 0);
    assert_int_equal(lk_run_log(found, sizeof found, lkt_path("recorded")), LK_EINVAL);
}

/* Expects the log of a run that was moved from `was` in a folder that is gone. */
static void find_moved(const char *was, const char *log, const char *place)
{
    char record[512], got[256], want[256];
    (void)snprintf(record, sizeof record,
                   "{\"directory\": \"/gone/x\", \"checkpoint\": \"%s\", \"options\": {\"log\": "
                   "\"%s\"}}", was, log);
    (void)lkt_write("moved/run/command.json", "w", record);
    (void)snprintf(want, sizeof want, "%s", lkt_write(place, "w", LKT_ONE));
    assert_int_equal(lk_run_log(got, sizeof got, lkt_path("moved/run")), LK_OK);
    char *a = realpath(got, NULL), *b = realpath(want, NULL);
    assert_string_equal(a, b);
    free(a);
    free(b);
    assert_int_equal(remove(want), 0);
}

/* The log of a run that was moved is at the same place relative to it, or beside it. */
static void moved_log(void **state)
{
    (void)state;
    char path[256];
    assert_int_equal(mkdir(lkt_path("moved"), 0777), 0);
    assert_int_equal(mkdir(lkt_path("moved/run"), 0777), 0);
    assert_int_equal(mkdir(lkt_path("moved/logs"), 0777), 0);
    find_moved("/gone/x/run", "a.jsonl", "moved/a.jsonl");
    find_moved("/gone/x/other", "a.jsonl", "moved/a.jsonl");
    find_moved("/gone/x/run", "logs/a.jsonl", "moved/logs/a.jsonl");
    assert_int_equal(mkdir(lkt_path("logs"), 0777), 0);
    find_moved("/gone/x/run", "../logs/a.jsonl", "logs/a.jsonl");
    find_moved("/gone/x/run", "/gone/logs/a.jsonl", "logs/a.jsonl");
    find_moved("/gone/x/runs/1", "logs/a.jsonl", "logs/a.jsonl");
    find_moved("/gone/x/run", "/elsewhere/a.jsonl", "moved/a.jsonl");
    assert_int_equal(lk_run_file(path, sizeof path, lkt_path("moved/run"), "b.jsonl"), LK_EIO);
    assert_string_equal(path, "/gone/x/b.jsonl");
    assert_int_equal(lk_run_log(path, sizeof path, lkt_path("moved/run")), LK_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(levels),
        cmocka_unit_test(hostile),
        cmocka_unit_test(two_runs),
        cmocka_unit_test(runs_with_too_many_values),
        cmocka_unit_test(beside_checkpoints),
        cmocka_unit_test(recorded_log),
        cmocka_unit_test(moved_log),
    };
    return cmocka_run_group_tests(tests, lkt_make_folder, lkt_remove_folder);
}
