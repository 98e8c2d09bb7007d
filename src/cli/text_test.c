/* text_test.c -- bytes of a model are UTF-8 on a terminal, for every cut into pieces. */
#include "cli/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define X "\xef\xbf\xbd"

static const struct {
    const char *bytes, *text;
} cases[] = {
    { "plain\n\ttext", "plain\n\ttext" },
    { "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80" },
    { "a\xff" "b", "a" X "b" },
    { "cut \xe2\x82", "cut " X },
    { "\xe2\x82 x", X " x" },
    { "\xc3\xc3\xa9", X "\xc3\xa9" },
    { "\xed\xa0\x80", X X X },     /* a surrogate */
    { "\xc0\xaf", X X },           /* overlong */
    { "\xf4\x90\x80\x80", X X X X }, /* above U+10FFFF */
    { "\x1b[31m", X "[31m" },
    { "\xc2\x9b" "2J", X "2J" },   /* a control sequence of C1 */
};

static void bytes_are_shown_as_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t piece = 1; piece <= 4; piece++) {
            char    *out   = NULL;
            size_t   bytes = 0, length = strlen(cases[i].bytes);
            FILE    *file  = open_memstream(&out, &bytes);
            lki_text text  = { .count = 0 };
            for (size_t at = 0; at < length; at += piece)
                lki_text_write(&text, cases[i].bytes + at,
                               length - at < piece ? length - at : piece, file);
            lki_text_end(&text, file);
            (void)fclose(file);
            assert_string_equal(out, cases[i].text);
            free(out);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(bytes_are_shown_as_text) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
