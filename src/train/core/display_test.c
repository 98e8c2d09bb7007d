/* display_test.c -- the line of the bar fits every terminal, and the curve has every loss. */
#include "train/core/display.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
            if (columns == 120)
                assert_non_null(strstr(line, "waits for rank 1 (host 0)"));
        }
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
        cmocka_unit_test(the_curve_has_every_loss),
        cmocka_unit_test(lines_are_due_by_step_and_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
