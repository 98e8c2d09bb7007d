/* display_test.c -- the line of the bar fits every terminal, and the curve has every loss. */
#include "train/core/display.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cmocka.h>

static const char block[] = "\xe2\x96"; /* the first bytes of U+2580 to U+259F */

/* Counts the columns of a text: colours have none. */
static size_t width_of(const char *text)
{
    size_t columns = 0;
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '\033')
            at += strcspn(at, "m");
        else
            columns += ((unsigned char)*at & 0xc0) != 0x80;
    }
    return columns;
}

static void the_line_fits_every_terminal(void **state)
{
    char            line[1536];
    lki_step_record r = { .step = 412, .samples = 32, .tokens = 2048, .loss = 1.83421,
                          .seconds = 1 };
    (void)state;
    for (unsigned terminal = 0; terminal < 4; terminal++)
        for (size_t columns = 1; columns <= 250; columns++) {
            lk_train_config config  = { .outputs.terminal = terminal };
            lki_display     display = { .config = &config, .end = 1000, .rate = 12345,
                                        .validation = 1.9, .waits = "rank 1 (host 0)" };
            for (int i = 0; i < 100; i++)
                lki_curve_add(&display.curve, 5.0 / (i + 1));
            lki_display_line(&display, &r, columns, 83, line, sizeof line);
            assert_true(width_of(line) <= columns);
            assert_int_equal(strchr(line, '\033') != NULL,
                             (terminal & LK_TERMINAL_COLOR) != 0 && line[0] != '\0');
            if ((terminal & LK_TERMINAL_UNICODE) == 0)
                assert_null(strstr(line, block));
            if (columns >= 25)
                assert_non_null(strstr(line, "1.8342"));
            if (columns == 80 && terminal == LK_TERMINAL_UNICODE)
                assert_string_equal(line, "412/1000 \u2595\u2588\u2588\u2588\u258e    \u258f  loss "
                                          "1.8342 \u2588\u2582\u2581\u2581\u2581\u2581\u2581  "
                                          "01:23 left  val 1.9000  12.3k tokens/s");
            if (columns == 80 && terminal == 0) /* the bar takes the place of the curve, too */
                assert_string_equal(line, "412/1000 [######..........]  loss 1.8342  01:23 left  "
                                          "val 1.9000  12.3k tokens/s");
            if (columns == 120)
                assert_non_null(strstr(line, "waits for rank 1 (host 0)"));
        }
}

/* Opens a terminal of 80 columns, which leaves bytes as they are. */
static void open_terminal(int *ours, int *theirs)
{
    const struct winsize size = { .ws_row = 24, .ws_col = 80 };
    struct termios       how;
    *ours = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(*ours >= 0 && grantpt(*ours) == 0 && unlockpt(*ours) == 0);
    *theirs = open(ptsname(*ours), O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(*theirs >= 0 && ioctl(*theirs, TIOCSWINSZ, &size) == 0);
    assert_int_equal(tcgetattr(*theirs, &how), 0);
    how.c_oflag &= ~(tcflag_t)OPOST;
    assert_int_equal(tcsetattr(*theirs, TCSANOW, &how), 0);
}

/* Runs a function with stderr on a terminal, and reads what it has written. */
static void read_written(void (*draw)(lki_display *), lki_display *display, char out[512])
{
    const int before = dup(STDERR_FILENO);
    size_t    used   = 0;
    int       ours, theirs;
    open_terminal(&ours, &theirs);
    assert_true(dup2(theirs, STDERR_FILENO) >= 0);
    draw(display);
    fputc('$', stderr); /* the end */
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    while (used == 0 || out[used - 1] != '$') {
        ssize_t got = read(ours, out + used, 511 - used);
        assert_true(got > 0);
        used += (size_t)got;
    }
    out[used - 1] = '\0';
    (void)close(before);
    (void)close(theirs);
    (void)close(ours);
}

static void wait_for_step(lki_display *display)
{
    lki_display_wait(display, 4);
}

static void draw_step(lki_display *display)
{
    const lki_step_record r = { .step = 5, .loss = 1.5, .samples = 8, .seconds = 1 };
    lki_display_step(display, &r);
}

/* Something is drawn before the first step, and the terminal's ^C fits behind the bar. */
static void the_bar_begins_and_has_room(void **state)
{
    (void)state;
    char            text[512];
    lk_train_config config  = { .quiet = true };
    lki_display     display = { .config = &config, .terminal = true, .end = 9, .start = 4,
                                .validation = 2 };
    read_written(wait_for_step, &display, text);
    assert_string_equal(text, "");
    config.quiet = false;
    read_written(wait_for_step, &display, text);
    assert_string_equal(text, "\r\033[K4/9  computing step 5");
    read_written(draw_step, &display, text);
    assert_memory_equal(text, "\r\033[K5/9 [", 9);
    assert_int_equal(width_of(text + 4), 80 - 3);
    display.terminal = false;
    read_written(wait_for_step, &display, text);
    assert_string_equal(text, "");
}

static void end_run(lki_display *display)
{
    const lki_step_record last = { .step = 9, .loss = 1.5 };
    lki_display_end(display, &last, NULL);
}

/* A summary without a curve has no space in its place. */
static void the_summary_has_no_gap(void **state)
{
    (void)state;
    char            text[512];
    lk_train_config config  = { .quiet = false };
    lki_display     display = { .config = &config, .terminal = true, .start = 4, .validation = 2 };
    read_written(end_run, &display, text);
    assert_non_null(strstr(text, ": loss 1.5000, validation 2.0000\n"));
}

static void the_curve_has_every_loss(void **state)
{
    lki_curve curve = { .count = 0 };
    char      text[512];
    double    sum = 0, parts = 0;
    (void)state;
    for (int i = 0; i < 1024; i++) {
        lki_curve_add(&curve, i);
        sum += i;
    }
    lki_curve_add(&curve, (double)NAN); /* leaves no trace */
    for (uint32_t i = 0; i < curve.count; i++)
        parts += curve.values[i] * (double)curve.stride;
    assert_true(parts == sum);
    assert_int_equal(lki_curve_draw(&curve, 8, text, sizeof text), 8);
    assert_string_equal(text, "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588");
}

/* A slow run has lines, too, at first every ten seconds. */
static void lines_are_due_by_step_and_time(void **state)
{
    (void)state;
    lki_display d = { .end = 1000, .shown = 5 };
    assert_true(lki_display_is_due(&d, 1, 5));
    assert_true(lki_display_is_due(&d, 50, 5));
    assert_false(lki_display_is_due(&d, 51, 14.9));
    assert_true(lki_display_is_due(&d, 51, 15));
    d.shown = 3600;
    assert_false(lki_display_is_due(&d, 51, 3610));
    assert_true(lki_display_is_due(&d, 51, 3790)); /* a twentieth of an hour later */
    assert_true(lki_display_is_due(&d, 1000, 3610));
    d.start = 51;
    assert_true(lki_display_is_due(&d, 52, 3610));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_line_fits_every_terminal),
        cmocka_unit_test(the_bar_begins_and_has_room),
        cmocka_unit_test(the_summary_has_no_gap),
        cmocka_unit_test(the_curve_has_every_loss),
        cmocka_unit_test(lines_are_due_by_step_and_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
