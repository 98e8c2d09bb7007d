/* run_log_test.c -- reading logs: rows, exact values, repeated steps, files that grow or are
 * replaced, and files that are no logs. */
#include "report/report_testing.h"

#include <math.h>

#include "report/run_log.h"

static double value_at(const lki_run_log *log, const char *column, size_t row)
{
    const lki_column *found = lki_run_log_column(log, column);
    assert_non_null(found);
    return found->values[row];
}

static lki_run_log *open_log(const char *path)
{
    lki_run_log *log;
    if (lki_run_log_open(&log, path) != LK_OK)
        fail_msg("%s", lk_error_last()->message);
    return log;
}

static void rows(void **state)
{
    (void)state;
    lki_run_log *log = open_log(lkt_write("a", "w", LKT_LOG));
    assert_int_equal(log->rows, 3);
    assert_true(value_at(log, "loss", 2) > 0.49 && value_at(log, "loss", 2) < 0.51);
    assert_true(value_at(log, "val_loss", 1) > 2.9);
    assert_true(lki_is_absent(value_at(log, "val_loss", 0)));
    assert_int_equal(log->event_count, 1);
    assert_string_equal(json_string_value(json_object_get(log->last, "weights")), "aa");
    lki_run_log_free(log);
}

/* The bits of a value count, not its text; a null is a value that is not finite. */
static void exact_values(void **state)
{
    (void)state;
    lki_run_log *log = open_log(lkt_write("a", "w",
                                          "{\"step\": 1, \"loss\": null, \"loss_bits\": "
                                          "\"7ff0000000000000\", \"x\": null, "
                                          "\"error_norms\": [0.5, 2]}\n"));
    assert_true(isinf(value_at(log, "loss", 0)));
    assert_true(isnan(value_at(log, "x", 0)) && !lki_is_absent(value_at(log, "x", 0)));
    assert_true(value_at(log, "error_norms[1]", 0) > 1.9);
    lki_run_log_free(log);
}

/* A program with lockstep.torch appends to its log, so a resumed run repeats steps. */
static void repeated_steps(void **state)
{
    (void)state;
    lki_run_log *log = open_log(lkt_write("a", "w", LKT_LOG LKT_STEP(2, "5", "4014000000000000")));
    assert_int_equal(log->rows, 2);
    assert_true(value_at(log, "loss", 1) > 4.9);
    assert_null(log->last);
    lki_run_log_free(log);
}

static void growing(void **state)
{
    (void)state;
    bool         changed;
    lki_run_log *log = open_log(lkt_write("a", "w", LKT_ONE "{\"step\": 2, \"lo"));
    assert_true(log->unfinished);
    assert_int_equal(lki_run_log_update(log, &changed), LK_OK);
    assert_false(changed);
    (void)lkt_write("a", "a", "ss\": 4}\n");
    assert_int_equal(lki_run_log_update(log, &changed), LK_OK);
    assert_true(changed && log->rows == 2 && !log->unfinished);
    (void)lkt_write("a", "w", LKT_ONE LKT_TWO LKT_THREE); /* another run, longer than before */
    assert_int_equal(lki_run_log_update(log, &changed), LK_OK);
    assert_true(changed && log->rows == 3);
    assert_true(value_at(log, "loss", 1) < 1.1);
    (void)lkt_write("a", "w", "");
    assert_int_equal(lki_run_log_update(log, &changed), LK_OK);
    assert_true(changed && log->rows == 0);
    lki_run_log_free(log);
}

static void no_logs(void **state)
{
    (void)state;
    lki_run_log *log;
    assert_int_equal(lki_run_log_open(&log, lkt_path("none")), LK_EIO);
    assert_int_equal(lki_run_log_open(&log, lkt_write("a", "w", LKT_ONE "[1]\n")), LK_EFORMAT);
    assert_non_null(strstr(lk_error_last()->message, "line 2 of"));
    assert_int_equal(lki_run_log_open(&log, lkt_write("a", "w", "text\n")), LK_EFORMAT);
    assert_int_equal(lki_run_log_open(&log, lkt_write("a", "w", "{\"text\": \"a\"}\n" LKT_ONE)),
                     LK_EFORMAT);
    assert_non_null(strstr(lk_error_last()->message, "/a' has no step, so this is no log"));
}

/* The bits of a loss are not replaced by its text. */
static void bits_that_are_none(void **state)
{
    (void)state;
    lki_run_log *log;
    assert_int_equal(lki_run_log_open(&log, lkt_write("a", "w", LKT_ONE LKT_STEP(2, "1", "3ff"))),
                     LK_EFORMAT);
    assert_non_null(strstr(lk_error_last()->message, "line 2 of the log '"));
    assert_non_null(strstr(lk_error_last()->message, "loss_bits is \"3ff\", and not"));
    assert_int_equal(lki_run_log_open(&log, lkt_write("a", "w", "{\"step\": 1, \"val_loss\": 3, "
                                                                "\"val_loss_bits\": 3}\n")),
                     LK_EFORMAT);
}

static void headers(void **state)
{
    (void)state;
    lki_run_log *log =
        open_log(lkt_write("a", "w", "{\"step\": 0, \"hosts\": 1, \"config\": {\"lr\": 0.5}}\n"
                                     "{\"step\": 1, \"workers\": [{\"rank\": 3, \"ms\": 2}]}\n"));
    assert_int_equal(log->rows, 1);
    assert_true(json_is_real(json_object_get(log->config, "lr")));
    assert_true(value_at(log, "rank_ms[3]", 0) > 1.9);
    lki_run_log_free(log);
}

static void check_losses(const char *text, const char *losses)
{
    lki_run_log *log  = open_log(lkt_write("a", "w", text));
    char        *read = lki_run_log_losses(log, 0);
    if (losses != NULL)
        assert_string_equal(read, losses);
    else
        assert_null(read);
    assert_null(lki_run_log_losses(log, log->rows));
    free(read);
    lki_run_log_free(log);
}

/* Losses of virtual workers are read from the last line of a step that has them. */
static void losses_of_workers(void **state)
{
    (void)state;
    check_losses(LKT_LOG, NULL);
    check_losses(LKT_WORKERS("3ff0000000000000") LKT_TWO, "40000000000000003ff0000000000000");
    check_losses(LKT_WORKERS("3ff0000000000000") LKT_TWO LKT_WORKERS("4000000000000000"),
                 "40000000000000004000000000000000");
    check_losses(LKT_WORKERS("3ff0000000000000") LKT_TWO LKT_ONE, NULL);
    check_losses(LKT_WORKERS("3ff000000000000"), NULL);
    check_losses(LKT_WORKERS("3ff000000000000x"), NULL);
    assert_int_equal(lki_first_of_losses("4000000000000000", "4000000000000000"), SIZE_MAX);
    assert_int_equal(lki_first_of_losses("4000000000000000", NULL), SIZE_MAX);
}

static void negative_steps_are_not_known(void **state)
{
    (void)state;
    lki_run_log *log = open_log(lkt_write("a", "w", "{\"config\": {}, \"steps\": -5}\n" LKT_ONE));
    assert_int_equal(log->planned, 0);
    lki_run_log_free(log);
}

/* Writes a line with members k0, k1 ..., in the opposite order in odd steps.  The value of each is
 * its number, plus the step. */
static void write_members(FILE *file, int step, int count)
{
    (void)fprintf(file, "{\"step\": %d", step);
    for (int i = 0; i < count; i++) {
        const int number = step % 2 == 0 ? i : count - 1 - i;
        (void)fprintf(file, ", \"k%d\": %d", number, number + step);
    }
    (void)fprintf(file, "}\n");
}

/* Checks each of as many columns as a log can have, and that more are counted. */
static void many_columns(void **state)
{
    (void)state;
    enum { MORE = 100 };
    bool  changed;
    char  name[16];
    FILE *file = fopen(lkt_write("many", "w", ""), "we");
    assert_non_null(file);
    write_members(file, 0, LKI_COLUMNS_MAX);
    write_members(file, 1, LKI_COLUMNS_MAX);
    write_members(file, 2, LKI_COLUMNS_MAX + MORE);
    assert_int_equal(fclose(file), 0);
    lki_run_log *log = open_log(lkt_path("many"));
    assert_int_equal(log->column_count, LKI_COLUMNS_MAX);
    assert_int_equal(log->results_lost, MORE);
    for (int i = 0; i < LKI_COLUMNS_MAX; i++) {
        (void)snprintf(name, sizeof name, "k%d", i);
        for (int row = 0; row < 3; row++)
            assert_true(value_at(log, name, (size_t)row) == i + row);
    }
    assert_null(lki_run_log_column(log, "k4096"));
    (void)lkt_write("many", "w", LKT_ONE); /* another run, without these columns */
    assert_int_equal(lki_run_log_update(log, &changed), LK_OK);
    assert_null(lki_run_log_column(log, "k0"));
    assert_true(value_at(log, "loss", 0) > 1.9);
    lki_run_log_free(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows),           cmocka_unit_test(exact_values), cmocka_unit_test(growing),
        cmocka_unit_test(repeated_steps), cmocka_unit_test(no_logs),      cmocka_unit_test(headers),
        cmocka_unit_test(losses_of_workers), cmocka_unit_test(bits_that_are_none),
        cmocka_unit_test(many_columns),      cmocka_unit_test(negative_steps_are_not_known),
    };
    return cmocka_run_group_tests(tests, lkt_make_folder, lkt_remove_folder);
}
