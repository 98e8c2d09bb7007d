/* report_test.c -- `lockstep diff`, `report` and `watch`: exit statuses, and what is printed. */
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

/* Equal files have no output, which a person at a terminal would take for a failure. */
static void diff_on_a_terminal(void **state)
{
    (void)state;
    static command_result r;
    write_file("a", "{\"step\": 1, \"loss\": 2}\n");
    run_shell(&r, folder, "python3 -c \"import pty; pty.spawn(['" LK_TEST_COMMAND "', 'diff', 'a', "
                          "'a'])\"");
    assert_string_equal(r.out, "equal\r\n");
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

/* A page replaces a page, and nothing else: no run, by whatever path, and no other file. */
static void out(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "report --out a a", "report --out a b", "report --out ./link a", "report --out hard a",
        "report --out empty a",
    };
    static command_result r;
    char                  text[64];
    write_file("a", "{\"step\": 1, \"loss\": 2}\n");
    write_file("b", "{\"step\": 1, \"loss\": 2}\n");
    write_file("empty", "");
    run_shell(&r, folder, "ln -s a link && ln a hard");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        run_command(&r, folder, lines[i]);
        assert_int_equal(r.status, 2);
        assert_non_null(strstr(r.err, "would replace a file that is no HTML page"));
    }
    read_stream(folder, "a", text, sizeof text);
    assert_string_equal(text, "{\"step\": 1, \"loss\": 2}\n");
    for (int i = 0; i < 2; i++) { /* a new file, then one that is replaced */
        run_command(&r, folder, "report --out page.html a");
        assert_int_equal(r.status, 0);
    }
    write_file("page.html", "<!DOCTYPE HTML><p>");
    run_command(&r, folder, "report --out page.html a");
    read_stream(folder, "page.html", text, sizeof text);
    assert_int_equal(strncmp(text, "<!doctype html>", 15), 0);
    run_command(&r, folder, "report --out - a");
    assert_non_null(strstr(r.out, "</html>"));
    run_shell(&r, folder, "ls -- *.new - ; rm page.html link hard");
    assert_string_equal(r.out, "");
}

/* Starts the server, requests nothing, and ends it as Ctrl-C does. */
static void watch(void **state)
{
    (void)state;
    static command_result r;
    write_file("a", "{\"step\": 1, \"loss\": 2}\n");
    run_command(&r, folder, "watch --address 0.0.0.0 a");
    if (r.status == 1 && strstr(r.err, "libmicrohttpd") != NULL)
        skip();
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "--address is '0.0.0.0'"));
    run_command(&r, folder, "watch not-yet.jsonl");
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "once the run has begun"));
    run_shell(&r, folder, "mkfifo url; " LK_TEST_COMMAND " watch a >url & "
                          "read -r line <url; kill -INT $!; wait $!; echo $? $line");
    assert_non_null(strstr(r.out, "0 http://127.0.0.1:"));
    run_shell(&r, folder, LK_TEST_COMMAND " watch --address ::1 a >url & "
                          "read -r line <url; kill -INT $!; wait $!; echo $? $line");
    assert_null(strstr(r.err, "over the network"));
    assert_true(strstr(r.out, "0 http://[::1]:") != NULL || strstr(r.err, "cannot listen") != NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(diff),
        cmocka_unit_test(diff_on_a_terminal),
        cmocka_unit_test(report),
        cmocka_unit_test(out),
        cmocka_unit_test(watch),
    };
    return cmocka_run_group_tests(tests, make, remove_folder);
}
