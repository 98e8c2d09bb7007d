/* top_test.c -- a log as a picture: fits every terminal, and survives lines that are no log. */
#include "cli/top.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char head[] =
    "{\"step\": 0, \"exactness_id\": \"ab\", \"parameters\": 834304, \"steps\": 100, \"ranks\": ["
    "{\"rank\": 0, \"host\": 0, \"hostname\": \"a-long-name-of-a-host\", \"pid\": 17, "
    "\"first\": 0, \"virtual_workers\": 8}, "
    "{\"rank\": 1, \"host\": 1, \"hostname\": \"b\", \"pid\": 18, \"first\": 8, "
    "\"virtual_workers\": 8}], \"config\": {\"model\": \"gpt\"}, \"time\": 1000.5}";

static void add(lki_top *top, const char *line)
{
    lki_top_add(top, line, strlen(line));
}

static void fill(lki_top *top, int steps)
{
    char line[512];
    *top = (lki_top){ .path = "run.jsonl" };
    add(top, head);
    for (int i = 1; i <= steps; i++) {
        (void)snprintf(line, sizeof line,
                       "{\"step\": %d, \"epoch\": 0, \"loss\": %.3f, \"loss_bits\": \"0\", \"lr\": "
                       "0.001, \"grad_norm\": 1.5, \"samples_per_s\": 100, \"time\": %d, "
                       "\"step_ms\": 250, \"data_ms\": 1, \"compute_ms\": 200, "
                       "\"finish_ms\": 49}", i, 5.0 / i, 1000 + i);
        add(top, line);
    }
    add(top, "{\"step\": 9, \"val_loss\": 1.25, \"val_loss_bits\": \"0\", \"val_accuracy\": 0.5}");
    add(top, "{\"step\": 9, \"workers\": [{\"rank\": 0, \"host\": 0, \"first\": 0, "
             "\"virtual_workers\": 6, \"ms\": 90.5}, {\"rank\": 1, \"host\": 1, \"first\": 6, "
             "\"virtual_workers\": 10, \"ms\": 250}]}");
    add(top, "{\"step\": 9, \"straggler\": {\"rank\": 1, \"cause\": \"compute\", "
             "\"times_median\": 1.7}}");
    add(top, "{\"step\": 9, \"checkpoint\": 9, \"stall_ms\": 1, \"write_ms\": 1}");
}

static char *draw(const lki_top *top, const lki_top_screen *screen)
{
    char  *text  = NULL;
    size_t bytes = 0;
    FILE  *out   = open_memstream(&text, &bytes);
    lki_top_draw(top, screen, out);
    (void)fclose(out);
    return text;
}

static void the_picture_fits_every_terminal(void **state)
{
    static lki_top top;
    (void)state;
    fill(&top, 60);
    for (size_t columns = 1; columns < 220; columns += 7)
        for (size_t rows = 1; rows < 60; rows += 3) {
            const lki_top_screen screen = { columns, rows, false, columns % 2 == 0, false, 1070 };
            char                *text   = draw(&top, &screen);
            size_t               lines  = 0;
            for (char *at = text; *at != '\0'; at += strcspn(at, "\n") + 1, lines++) {
                size_t width = 0;
                for (const char *c = at; *c != '\n'; c++)
                    width += ((unsigned char)*c & 0xc0) != 0x80;
                assert_true(width <= columns);
            }
            assert_true(lines <= rows);
            assert_null(strchr(text, '\033'));
            free(text);
        }
}

static void the_picture_has_the_state(void **state)
{
    static const char *const words[] = { "run.jsonl  gpt  0.834M parameters", "running",
                                         "step 9/100", "val 1.2500  accuracy 50.0 %",
                                         "compute 200.0", "0-5", "6-15", "250.00", "waited for",
                                         "rank 1 is slow, 1.70 times", "step 9: checkpoint" };
    static lki_top       top;
    const lki_top_screen screen = { 80, 24, false, true, false, 1010 };
    lki_top_screen       later  = screen, colored = screen;
    (void)state;
    fill(&top, 9);
    char *text = draw(&top, &screen);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strstr(text, words[i]) == NULL)
            fail_msg("no '%s' in:\n%s", words[i], text);
    free(text);
    later.now = 5000;
    text      = draw(&top, &later);
    assert_non_null(strstr(text, "silent for 1:06:31"));
    free(text);
    colored.color = true;
    text          = draw(&top, &colored);
    assert_non_null(strstr(text, "\033[32m"));
    free(text);
    add(&top, "{\"step\": 9, \"weights\": \"abcd\", \"run\": \"0\", \"ended\": \"max-time\"}");
    text = draw(&top, &later);
    assert_non_null(strstr(text, "done by --max-time"));
    assert_non_null(strstr(text, "weights abcd"));
    free(text);
}

/* After a death nobody waits for the dead worker, and a worker that enters has no other's name. */
static void workers_come_and_go(void **state)
{
    static lki_top       top;
    const lki_top_screen screen = { 120, 24, false, true, false, 1010 };
    (void)state;
    fill(&top, 9);
    add(&top, "{\"step\": 9, \"membership\": {\"lost\": [1], \"entered\": [], \"workers\": 1, "
              "\"shares\": [{\"rank\": 0, \"first\": 0, \"virtual_workers\": 16}]}}");
    char *text = draw(&top, &screen);
    assert_non_null(strstr(text, "step 9: workers lost: 1, left: 0, entered: 0; now 1"));
    assert_null(strstr(text, "waited for"));
    assert_null(strstr(text, "6-15"));
    free(text);
    fill(&top, 9);
    add(&top, "{\"step\": 9, \"membership\": {\"left\": [0], \"entered\": [2], \"workers\": 2, "
              "\"shares\": [{\"rank\": 2, \"first\": 0, \"virtual_workers\": 8}, {\"rank\": 1, "
              "\"first\": 8, \"virtual_workers\": 8}]}}");
    assert_int_equal(top.ranks[0].pid, 0);
    assert_string_equal(top.ranks[1].name, "b");
    assert_int_equal(top.ranks[1].host, 1);
}

/* Neither the time without a run, nor a step with a pause, counts.  A dead run has no time left. */
static void pauses_are_not_time_of_the_run(void **state)
{
    static lki_top       top;
    const lki_top_screen screen = { 80, 24, false, true, false, 1070 };
    lki_top_screen       dead   = screen;
    char                 line[512];
    (void)state;
    fill(&top, 9);
    (void)snprintf(line, sizeof line, "%.*s1050}", (int)(strlen(head) - 7), head);
    add(&top, line); /* resumed 41 s after the last line */
    for (int i = 10; i <= 12; i++) {
        (void)snprintf(line, sizeof line, "{\"step\": %d, \"loss\": 1, \"loss_bits\": \"0\", "
                       "\"time\": %d, \"step_ms\": %d}", i, 1041 + i, i == 12 ? 60000 : 250);
        add(&top, line);
    }
    char *text = draw(&top, &screen);
    assert_non_null(strstr(text, "  00:12, 00:22 left\n"));
    free(text);
    dead.gone = true;
    text      = draw(&top, &dead);
    assert_non_null(strstr(text, "ended 00:17 ago without a result"));
    assert_null(strstr(text, " left\n"));
    free(text);
    add(&top, "{\"step\": 12, \"weights\": \"abcd\", \"run\": \"0\", \"time\": 1053}");
    text = draw(&top, &dead);
    assert_non_null(strstr(text, "  stopped\n"));
    free(text);
}

/* A program with lockstep.torch has no times of parts, and need not log a learning rate. */
static void logs_of_programs_are_shown(void **state)
{
    static lki_top       top = { .path = "run.jsonl" };
    const lki_top_screen screen = { 80, 24, false, true, false, 1010 };
    (void)state;
    add(&top, "{\"step\": 0, \"lockstep\": \"0\", \"ranks\": [{\"rank\": 0, \"host\": 0, "
              "\"pid\": 5}], \"config\": {}, \"time\": 1000}");
    add(&top, "{\"step\": 3, \"loss\": 2.5, \"loss_bits\": \"0\", \"grad_norm\": 1, "
              "\"step_ms\": 20, \"samples_per_s\": 400, \"time\": 1001}");
    add(&top, "{\"step\": 3, \"val_loss\": 2.25, \"val_loss_bits\": \"0\", \"time\": 1002}");
    add(&top, "{\"step\": 3, \"weights\": null, \"time\": 1003}");
    char *text = draw(&top, &screen);
    assert_non_null(strstr(text, "step 3 "));
    assert_non_null(strstr(text, "val 2.2500"));
    assert_non_null(strstr(text, "400 samples/s  step 20.0 ms\n"));
    assert_non_null(strstr(text, "done"));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "weights"));
    free(text);
}

/* Changes bytes of good lines at random. */
static void bad_lines_do_no_harm(void **state)
{
    static lki_top       top;
    uint32_t             random = 1;
    const lki_top_screen screen = { 80, 24, true, true, false, 1010 };
    (void)state;
    for (int round = 0; round < (getenv("LK_BRIEF") != NULL ? 300 : 3000); round++) {
        char line[sizeof head];
        memcpy(line, head, sizeof line);
        fill(&top, 2);
        for (int i = 0; i < 3; i++) {
            random                            = random * 1664525u + 1013904223u;
            line[(random >> 8) % (sizeof head - 1)] = (char)(random >> 24);
        }
        add(&top, line);
        free(draw(&top, &screen));
    }
    add(&top, "{\"step\": \"x\", \"config\": 3, \"ranks\": [1, null], \"time\": []}");
    add(&top, "[]");
    const uint64_t step = top.step;
    add(&top, "{\"step\": -5, \"epoch\": -1, \"loss\": 1, \"loss_bits\": \"0\"}");
    assert_int_equal(top.step, step);
    assert_int_equal(top.epoch, 0);
    free(draw(&top, &screen));
}

/* A name of a file and texts of a log may not clear the screen, or change the terminal's title. */
static void control_characters_are_not_drawn(void **state)
{
    static lki_top       top;
    const lki_top_screen screen = { .columns = 120, .rows = 40, .now = 1060 };
    (void)state;
    fill(&top, 60);
    top.path = "a\033[2Jb\177c\xc2\x9b" "2Jd\xc3\xa9";
    add(&top, "{\"step\": 9, \"workers\": [{\"rank\": 0, \"hostname\": \"x\\u001b]0;y\\u0007\"}]}");
    add(&top, "{\"step\": 9, \"checkpoint\": 9, \"error\": \"no\\u009b2J\\nspace\"}");
    char *text = draw(&top, &screen);
    assert_non_null(strstr(text, "a?[2Jb?c?2Jd\xc3\xa9"));
    assert_non_null(strstr(text, "x?]0;y?"));
    assert_non_null(strstr(text, "no?2J?space"));
    assert_null(strpbrk(text, "\033\007\177"));
    assert_null(strstr(text, "\xc2\x9b"));
    free(text);
}

static void a_log_is_read_as_it_grows(void **state)
{
    static lki_top top;
    char           path[] = "/tmp/lockstep-top-XXXXXX";
    int            fd     = mkstemp(path);
    FILE          *file   = fdopen(fd, "w");
    (void)state;
    assert_non_null(file);
    top = (lki_top){ .path = path };
    fprintf(file, "%s\n{\"step\": 1, \"loss\": 2.5, \"loss_bits\": ", head);
    assert_int_equal(fflush(file), 0);
    assert_true(lki_top_read(&top));
    assert_true(!top.has_loss && top.steps == 100);
    fprintf(file, "\"0\"}\n");
    assert_int_equal(fflush(file), 0);
    assert_true(lki_top_read(&top));
    assert_true(top.has_loss && top.loss == 2.5);
    assert_int_equal(ftruncate(fd, (off_t)strlen(head) + 1), 0); /* a resumed run cuts it */
    assert_true(lki_top_read(&top));
    assert_true(!top.has_loss && top.steps == 100);
    (void)fclose(file);
    (void)unlink(path);
    assert_false(lki_top_read(&top));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_picture_fits_every_terminal),
        cmocka_unit_test(the_picture_has_the_state),
        cmocka_unit_test(workers_come_and_go),
        cmocka_unit_test(pauses_are_not_time_of_the_run),
        cmocka_unit_test(logs_of_programs_are_shown),
        cmocka_unit_test(bad_lines_do_no_harm),
        cmocka_unit_test(a_log_is_read_as_it_grows),
        cmocka_unit_test(control_characters_are_not_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
