/* report_test.c -- `lockstep diff` and `report`: exit statuses, and what is printed. */
#include "cli/command.h"

static const char *folder;

static int make(void **state)
{
    int failed = make_folder(state);
    folder     = *state;
    return failed;
}

static void write_file(const char *name, const char *text)
{
    char path[96];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void diff(void **state)
{
    (void)state;
    static command_result r;
    write_file("a", "{\"step\": 1, \"loss\": 2}\n");
    write_file("b", "{\"step\": 1, \"loss\": 2.5}\n");
    run_command(&r, folder, "diff a a");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.out, "");
    run_command(&r, folder, "diff a b");
    assert_int_equal(r.status, 1);
    assert_string_equal(r.out, "log, step 1: loss\n  A  2 (0x4000000000000000)\n"
                               "  B  2.5 (0x4004000000000000)\n");
    run_command(&r, folder, "diff a nowhere");
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "cannot find 'nowhere'"));
    run_command(&r, folder, "diff a");
    assert_int_equal(r.status, 2);
}

static void report(void **state)
{
    (void)state;
    static command_result r;
    write_file("a", "{\"step\": 1, \"loss\": 2}\n");
    run_command(&r, folder, "report a");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "<!doctype html>"));
    assert_non_null(strstr(r.out, "</html>"));
    run_command(&r, folder, "report a --out page.html");
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "options come before the runs"));
    run_command(&r, folder, "report --out no/page.html a");
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "cannot write no/page.html"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(diff),
        cmocka_unit_test(report),
    };
    return cmocka_run_group_tests(tests, make, remove_folder);
}
