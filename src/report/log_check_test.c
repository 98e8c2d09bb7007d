/* log_check_test.c -- comparing the log of a run with that of a replay: each line counts, also one
 * of several for the same step; values that are missing, and what the run has changed since. */
#include "report/report_testing.h"

#include "lockstep/report.h"

#define WHOLE(step, id, data, more, lr)                                                            \
    "{\"step\": " step ", \"lockstep\": \"1\", \"exactness_id\": \"" id "\", "                     \
    "\"data\": \"" data "\", \"parameters\": 3, " more                                             \
    "\"hosts\": 7, \"config\": {\"lr\": " lr "}}\n"
#define HEADER(step, id, lr) WHOLE(step, id, "d", "", lr)
#define SCALED(step, noise) WHOLE(step, "e", "d", "\"noise_scale\": " noise ", ", "0.5")
#define MEASURED(step, which) WHOLE(step, "e", "d", "\"eval_weights\": \"" which "\", ", "0.5")
#define NOISE(step, value) "{\"step\": " step ", \"lr\": 1, \"critical_batch\": " value "}\n"
#define EVALUATION(step, value) "{\"step\": " step ", \"val_loss\": " value "}\n"
#define REPLAY HEADER("0", "e", "0.5") LKT_ONE LKT_TWO LKT_EVALUATION

/* The differences, each as "LINE KEY LOGGED REPLAYED;". */
static char            found[512];
static lk_log_compared compared;

static lk_log_finding remember(void *context, const lk_log_difference *d)
{
    const size_t used = strlen(found);
    (void)context;
    (void)snprintf(found + used, sizeof found - used, "%d %s%s %.20s %.20s;", (int)d->line,
                   d->governs ? "governing " : "", d->key, d->logged != NULL ? d->logged : "none",
                   d->replayed);
    return d->resumed ? LK_LOG_OTHER_BITS : LK_LOG_DIFFERS;
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
    assert_string_equal(compare(HEADER("1", "e", "0.5") LKT_TWO "{\"step\": 3, \"lo", REPLAY, 0, 2),
                        ""); /* begins later, and is unfinished */
    assert_int_equal(compared.first, 2);
    assert_int_equal(compared.losses, 1);
    assert_int_equal(compared.headers, 1);
    /* step 2 was made without this log, and another one says that it was not */
    assert_string_equal(compare(HEADER("0", "e", "0.5") LKT_ONE HEADER("2", "e", "0.5") LKT_THREE,
                                REPLAY LKT_THREE, 0, 3), "");
    assert_string_equal(compare(HEADER("0", "e", "0.5") LKT_ONE HEADER("1", "e", "0.5") LKT_THREE,
                                REPLAY LKT_THREE, 0, 3), "0 loss none ;");
}

#define FIRST HEADER("0", "e", "0.5")
static void each_line_counts(void **state)
{
    (void)state;
    assert_string_equal(compare(FIRST LKT_ONE LKT_STEP(2, "9", "4022000000000000"), REPLAY, 0, 2),
                        "3 loss 9 1;3 loss_bits 4022000000000000 3ff0000000000000;");
    assert_string_equal(compare(FIRST LKT_ONE LKT_STEP(2, "null", "no"), REPLAY, 1, 2),
                        "3 loss null 1;3 loss_bits no 3ff0000000000000;");
    assert_string_equal(compare(FIRST LKT_STEP(1, "9", "no") LKT_TWO, REPLAY, 1, 2), "");
    assert_string_equal(compare(FIRST LKT_ONE LKT_EVALUATION LKT_TWO
                                "{\"step\": 2, \"val_loss\": 9, \"val_loss_bits\": \"9\"}\n",
                                REPLAY, 1, 2),
                        "5 val_loss 9 3;5 val_loss_bits 9 4008000000000000;");
    assert_string_equal(compare(LKT_WORKERS("3ff0000000000000"),
                                LKT_WORKERS("4000000000000000"), 0, 1), "1 loss 1 2;");
    assert_string_equal(compare("{\"step\": 2, \"val_perplexity\": 20.0855369231876}\n"
                                "{\"step\": 2, \"val_perplexity\": 20.1}\n",
                                "{\"step\": 2, \"val_perplexity\": 20.085536923187668}\n", 1, 2),
                        "2 val_perplexity 20.1 20.085536923187668;0 loss none ;");
}

static void missing_values_are_named(void **state)
{
    (void)state;
    assert_string_equal(compare(FIRST LKT_ONE "{\"step\": 2, \"epoch\": 0, \"lr\": 0.5}\n",
                                REPLAY, 0, 2),
                        "3 loss none ;3 loss_bits none ;3 grad_norm none ;");
    assert_string_equal(compare(FIRST LKT_ONE LKT_TWO "{\"step\": 2, \"val_loss\": 3}\n", REPLAY,
                                0, 2), "4 val_loss_bits none ;");
    assert_string_equal(compare(FIRST LKT_TWO, REPLAY, 0, 2), "0 loss none ;");
    assert_string_equal(compare(FIRST LKT_ONE LKT_SAVED, REPLAY, 0, 2), "0 loss none ;");
    assert_string_equal(compare(FIRST LKT_ONE, REPLAY, 0, 2), ""); /* it ends there */
    assert_int_equal(compared.last, 1);
    assert_string_equal(compare("", REPLAY, 0, 2), "");
    assert_int_equal(compared.losses, 0);
    assert_string_equal(compare(LKT_ONE LKT_TWO, REPLAY, 1, 2), "0 config none ;");
    assert_string_equal(compare("{\"step\": 0, \"lockstep\": \"1\", \"exactness_id\": \"e\", "
                                "\"parameters\": 3}\n" LKT_ONE LKT_TWO, REPLAY, 1, 2),
                        "1 data none ;1 config none ;");
    assert_string_equal(compare(FIRST LKT_ONE LKT_TWO "{\"step\": 2, \"weights\": \"w\"}\n",
                                REPLAY "{\"step\": 2, \"weights\": \"w\", \"run\": \"r\"}\n", 0,
                                2), "4 run none ;");
    assert_string_equal(compare(FIRST LKT_ONE LKT_TWO "{\"step\": 2, \"time\": 7}\n",
                                REPLAY "{\"step\": 2, \"weights\": \"w\", \"run\": \"r\"}\n", 0,
                                2), "4 weights none ;4 run none ;");
}

/* The newest first line before a replayed step governs it. */
static void first_lines(void **state)
{
    (void)state;
    assert_string_equal(compare(HEADER("0", "x", "0.5") LKT_ONE HEADER("1", "e", "0.5") LKT_TWO,
                                REPLAY, 1, 2), "");
    assert_string_equal(compare(HEADER("0", "e", "0.75") LKT_ONE HEADER("1", "x", "0.5") LKT_TWO,
                                REPLAY, 1, 2),
                        "1 config {\"lr\":0.75} {\"lr\":0.5};3 exactness_id x e;");
    assert_string_equal(compare(HEADER("0", "e", "0.75") LKT_ONE LKT_TWO HEADER("2", "x", "0.75"),
                                REPLAY, 0, 2),
                        "1 governing config {\"lr\":0.75} {\"lr\":0.5};"
                        "4 config {\"lr\":0.75} {\"lr\":0.5};");
}

/* Steps that a run has made with other data or options, before it was resumed. */
static void what_has_changed_since_is_left_out(void **state)
{
    (void)state;
    assert_string_equal(compare(WHOLE("0", "x", "y", "", "0.5") LKT_STEP(1, "9", "9")
                                HEADER("1", "e", "0.5") LKT_TWO, REPLAY, 0, 2),
                        "1 governing data y d;");
    assert_int_equal(compared.other_from, 1);
    assert_int_equal(compared.differences + compared.losses, 0);
    assert_string_equal(compare(WHOLE("0", "e", "y", "", "0.5") LKT_ONE HEADER("1", "e", "0.5")
                                LKT_TWO, REPLAY, 0, 2), "1 governing data y d;");
    assert_int_equal(compared.other_from, 0); /* the exactness id would have changed */
    assert_int_equal(compared.differences, 1);
    assert_string_equal(compare(SCALED("0", "0.5") NOISE("1", "3") SCALED("1", "0.9")
                                NOISE("2", "3"), SCALED("0", "0.9") NOISE("1", "4") NOISE("2", "4"),
                                0, 2), "");
    assert_int_equal(compared.left_out, 2); /* it is a mean over the steps before, too */
    assert_string_equal(compare(SCALED("0", "0.9") NOISE("1", "3") SCALED("1", "0.5"),
                                SCALED("0", "0.9") NOISE("1", "4"), 0, 1),
                        "2 critical_batch 3 4;");
    assert_string_equal(compare(MEASURED("0", "ema") LKT_ONE EVALUATION("1", "3")
                                MEASURED("1", "model") LKT_TWO EVALUATION("2", "3"),
                                MEASURED("0", "model") LKT_ONE EVALUATION("1", "4") LKT_TWO
                                EVALUATION("2", "4"), 0, 2), "6 val_loss 3 4;");
    assert_int_equal(compared.left_out, 1);
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
    assert_int_equal(lk_log_check_open(&check, lkt_write("log", "w", LKT_ONE LKT_ONE), 4),
                     LK_EFORMAT);
    assert_non_null(strstr(lk_error_last()->message, "line 2 of '"));
    assert_non_null(strstr(lk_error_last()->message, "step 1 stands twice"));
    assert_int_equal(lk_log_check_open(&check, lkt_write("log", "w", LKT_TWO LKT_ONE), 4),
                     LK_EFORMAT);
    assert_non_null(strstr(lk_error_last()->message, "step 1 stands after step 2"));
    assert_int_equal(lk_log_check_open(&check, lkt_write("log", "w", LKT_ONE FIRST), 4),
                     LK_EFORMAT);
    assert_non_null(strstr(lk_error_last()->message, "a first line of step 0 stands after step 1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_logs),
        cmocka_unit_test(each_line_counts),
        cmocka_unit_test(missing_values_are_named),
        cmocka_unit_test(first_lines),
        cmocka_unit_test(what_has_changed_since_is_left_out),
        cmocka_unit_test(what_a_log_has),
    };
    return cmocka_run_group_tests(tests, lkt_make_folder, lkt_remove_folder);
}
