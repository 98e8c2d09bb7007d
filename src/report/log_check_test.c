/* log_check_test.c -- comparing the log of a run with that of a replay: each line counts, also one
 * of several for the same step, and only values that both have. */
#include "report/report_testing.h"

#include "lockstep/report.h"

#define HEADER(step, id, lr)                                                                       \
    "{\"step\": " step ", \"exactness_id\": \"" id "\", \"data\": \"d\", \"parameters\": 3, "      \
    "\"hosts\": 7, \"config\": {\"lr\": " lr "}}\n"
#define REPLAY HEADER("0", "e", "0.5") LKT_ONE LKT_TWO LKT_EVALUATION

/* The differences, each as "LINE KEY LOGGED REPLAYED;". */
static char            found[512];
static lk_log_compared compared;

static bool remember(void *context, const lk_log_difference *d)
{
    const size_t used = strlen(found);
    (void)context;
    (void)snprintf(found + used, sizeof found - used, "%d %s%s %.20s %.20s;", (int)d->line,
                   d->governs ? "governing " : "", d->key, d->logged, d->replayed);
    return true;
}

/* Compares a log with the replay of steps `from` + 1 to `to`. */
static const char *compare(const char *log, const char *replay, uint64_t from, uint64_t to)
{
    lk_log_check *check;
    found[0] = '\0';
    if (lk_log_check_open(&check, lkt_write("log", "w", log), to) != LK_OK ||
        lk_log_check_compare(check, lkt_write("replay", "w", replay), from, remember, NULL,
                             &compared) != LK_OK)
        fail_msg("%s", lk_error_last()->message);
    lk_log_check_free(check);
    return found;
}

static void equal_logs(void **state)
{
    (void)state;
    assert_string_equal(compare(REPLAY LKT_SAVED LKT_THREE LKT_END, REPLAY, 0, 2), "");
    assert_int_equal(compared.losses, 2);
    assert_int_equal(compared.last, 2);
    assert_int_equal(compared.evaluations, 1);
    assert_int_equal(compared.headers, 1);
    assert_false(compared.hashes || compared.virtual_losses);
    assert_string_equal(compare(LKT_TWO "{\"step\": 3, \"lo", REPLAY, 0, 2), ""); /* unfinished */
    assert_int_equal(compared.first, 2);
    assert_int_equal(compared.losses, 1);
    assert_int_equal(compared.headers, 0);
}

static void each_line_counts(void **state)
{
    (void)state;
    assert_string_equal(compare(LKT_ONE LKT_STEP(2, "9", "4022000000000000") LKT_TWO, REPLAY, 0, 2),
                        "2 loss 9 1;2 loss_bits 4022000000000000 3ff0000000000000;");
    assert_string_equal(compare(LKT_ONE LKT_STEP(2, "1", "no") LKT_STEP(2, "null", "no"), REPLAY, 1,
                                2),
                        "2 loss_bits no 3ff0000000000000;3 loss null 1;"
                        "3 loss_bits no 3ff0000000000000;");
    assert_string_equal(compare(LKT_STEP(1, "9", "no") LKT_TWO, REPLAY, 1, 2), "");
    assert_string_equal(compare("{\"step\": 2, \"loss\": 9, \"config\": {}}\n", REPLAY, 1, 2),
                        "1 config {} {\"lr\":0.5};1 loss 9 1;"); /* as if it were a first line */
    assert_string_equal(compare(LKT_WORKERS("3ff0000000000000"),
                                LKT_ONE LKT_WORKERS("4000000000000000"), 0, 1), "1 loss 1 2;");
    assert_string_equal(compare("{\"step\": 2, \"val_perplexity\": 20.0855369231876}\n"
                                "{\"step\": 2, \"val_perplexity\": 20.1}\n",
                                "{\"step\": 2, \"val_perplexity\": 20.085536923187668}\n", 0, 2),
                        "2 val_perplexity 20.1 20.085536923187668;");
}

/* The newest first line before a replayed step governs it. */
static void first_lines(void **state)
{
    (void)state;
    assert_string_equal(compare(HEADER("0", "x", "0.5") HEADER("1", "e", "0.5"), REPLAY, 1, 2), "");
    assert_string_equal(compare(HEADER("0", "e", "0.75") HEADER("1", "x", "0.5"), REPLAY, 1, 2),
                        "1 config {\"lr\":0.75} {\"lr\":0.5};2 exactness_id x e;");
    assert_string_equal(compare(HEADER("0", "x", "0.75") HEADER("2", "x", "0.75"), REPLAY, 0, 2),
                        "2 config {\"lr\":0.75} {\"lr\":0.5};"
                        "1 governing config {\"lr\":0.75} {\"lr\":0.5};1 exactness_id x e;");
}

static void what_a_log_has(void **state)
{
    (void)state;
    lk_log_check *check;
    assert_int_equal(lk_log_check_open(&check, lkt_write("log", "w", LKT_LOG), 3), LK_OK);
    assert_true(lk_log_check_has_step(check));
    assert_true(lk_log_check_evaluates(check, 2));
    assert_false(lk_log_check_evaluates(check, 3));
    assert_int_equal(lk_log_check_compare(check, lkt_path("replay"), 3, remember, NULL, &compared),
                     LK_EINVAL);
    lk_log_check_free(check);
    assert_int_equal(lk_log_check_open(&check, lkt_path("log"), 4), LK_OK);
    assert_false(lk_log_check_has_step(check));
    lk_log_check_free(check);
    assert_int_equal(lk_log_check_open(&check, lkt_path("none"), 4), LK_EIO);
    assert_int_equal(lk_log_check_open(&check, lkt_write("log", "w", LKT_ONE "x\n"), 4),
                     LK_EFORMAT);
    assert_non_null(strstr(lk_error_last()->message, "line 2 of '"));
    assert_int_equal(lk_log_check_open(&check, lkt_write("log", "w", "{\"step\": 1, \"loss\": 9, "
                                                         "\"loss\": 1}\n"), 4), LK_EFORMAT);
    assert_non_null(strstr(lk_error_last()->message, "duplicate object key"));
    assert_int_equal(lk_log_check_open(&check, lkt_write("log", "w", "{\"step\": 1.5}\n"), 4),
                     LK_EFORMAT);
    assert_non_null(strstr(lk_error_last()->message, "line 1 of '"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_logs),
        cmocka_unit_test(each_line_counts),
        cmocka_unit_test(first_lines),
        cmocka_unit_test(what_a_log_has),
    };
    return cmocka_run_group_tests(tests, lkt_make_folder, lkt_remove_folder);
}
