/* config_test.c -- tests the config file's grammar: valid input, and the message for each
 * mistake. */
#include "cli/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool parse(lki_config *out, const char *text, lki_message *error)
{
    return lki_config_parse(out, text, strlen(text), "c.toml", error);
}

static void reads_every_type(void **state)
{
    static const struct {
        const char     *key, *text;
        lki_config_type type;
        unsigned        line;
    } want[] = {
        { "model", "gpt", LKI_CONFIG_STRING, 2 },
        { "steps", "1200", LKI_CONFIG_INTEGER, 3 },
        { "lr", "1e-3", LKI_CONFIG_REAL, 4 },
        { "drop-last", "true", LKI_CONFIG_BOOLEAN, 6 },
        { "hidden", "512,256", LKI_CONFIG_INTEGERS, 7 },
        { "betas", "0.9,0.95", LKI_CONFIG_REALS, 8 },
        { "path", "a\\b", LKI_CONFIG_STRING, 9 },
        { "prompt", "tab\t\"quote\" \xC3\xA9", LKI_CONFIG_STRING, 10 },
        { "quiet", "false", LKI_CONFIG_BOOLEAN, 11 },
        { "keep it", "255", LKI_CONFIG_INTEGER, 12 },
        { "seed", "18446744073709551615", LKI_CONFIG_INTEGER, 13 },
        { "octal", "8", LKI_CONFIG_INTEGER, 14 },
        { "bits", "5,10,-3", LKI_CONFIG_INTEGERS, 15 },
        { "plus", "1e-3", LKI_CONFIG_REAL, 16 },
    };
    static const char text[] = "# a run\n"
                               "model = \"gpt\" # which\r\n"
                               "  steps=1_200\n"
                               "lr\t= 1e-3\n"
                               "\n"
                               "drop-last = true\n"
                               "hidden = [ 512, 256, ]\n"
                               "betas = [0.9,0.95]\n"
                               "path = 'a\\b'\n"
                               "prompt = \"tab\\t\\\"quote\\\" \\u00e9\"\n"
                               "quiet = false\n"
                               "\"keep it\" = 0xFF\n"
                               "'seed' = 0xffff_ffff_ffff_ffff\n"
                               "octal = 0o10\n"
                               "bits = [0b101, +10, -3]\n"
                               "plus = +1e-3";
    lki_config        config;
    lki_message       error;
    (void)state;
    assert_true(parse(&config, text, &error));
    assert_int_equal(config.count, sizeof want / sizeof want[0]);
    for (size_t i = 0; i < config.count; i++) {
        assert_string_equal(config.items[i].key, want[i].key);
        assert_string_equal(config.items[i].text, want[i].text);
        assert_int_equal(config.items[i].type, want[i].type);
        assert_int_equal(config.items[i].line, want[i].line);
    }
    lki_config_free(&config);
}

static void refuses_with_the_line(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        { "a = 1\na = 2\n", "c.toml:2: a stands twice, first on line 1" },
        { "a = 1\n\n[table]\n",
          "c.toml:3: tables are not used here: write every option as key = value" },
        { "a = {b = 1}", "c.toml:1: tables are not used here: one key = value a line" },
        { "a", "c.toml:1: expected key = value, with a key of letters, digits and -" },
        { "lr: 1", "c.toml:1: a config file is no YAML: write lr = VALUE" },
        { "\"lr\" : 1", "c.toml:1: a config file is no YAML: write lr = VALUE" },
        { "# no\n{\"lr\": 1}", "c.toml:2: a config file is no JSON: it has lines such as lr = "
                              "1e-3, with the names of options" },
        { "= 1", "c.toml:1: expected key = value, with a key of letters, digits and -" },
        { "a.b = 1", "c.toml:1: expected key = value, with a key of letters, digits and -" },
        { "\"\" = 1", "c.toml:1: expected key = value, with a key of letters, digits and -" },
        { "\"a = 1", "c.toml:1: the string has no closing quote on its line" },
        { "\"a\" = 1\na = 2", "c.toml:2: a stands twice, first on line 1" },
        { "a =", "c.toml:1: there is no value after =" },
        { "a = # none", "c.toml:1: there is no value after =" },
        { "a = gpt", "c.toml:1: this is neither number nor true or false; strings need quotes" },
        { "a = nan", "c.toml:1: this is neither number nor true or false; strings need quotes" },
        { "a = 0x1g", "c.toml:1: this is no integer of up to 64 bits" },
        { "a = 0b12", "c.toml:1: this is no integer of up to 64 bits" },
        { "a = 0x10000000000000000", "c.toml:1: this is no integer of up to 64 bits" },
        { "a = +0x10", "c.toml:1: this is neither number nor true or false; strings need quotes" },
        { "a = ++1", "c.toml:1: this is neither number nor true or false; strings need quotes" },
        { "a = 1e999", "c.toml:1: this is neither number nor true or false; strings need quotes" },
        { "a = 1__0", "c.toml:1: an underscore stands between two digits" },
        { "a = 1_", "c.toml:1: an underscore stands between two digits" },
        { "a = 1 2", "c.toml:1: more after the value; one key = value a line" },
        { "a = \"x\" y", "c.toml:1: more after the value; one key = value a line" },
        { "a = \"x\ny\"", "c.toml:1: the string has no closing quote on its line" },
        { "a = \"x\\", "c.toml:1: the string has no closing quote on its line" },
        { "a = \"\"\"x\"\"\"", "c.toml:1: strings of several lines are not used here" },
        { "a = \"\\q\"", "c.toml:1: unknown escape in a string; write \\\\ for a backslash" },
        { "a = \"\\u12g4\"", "c.toml:1: \\u needs four hexadecimal digits" },
        { "a = \"\\ud800\"", "c.toml:1: \\uD800 is no character that a value may have" },
        { "a = \"\\u0000\"", "c.toml:1: \\u0000 is no character that a value may have" },
        { "a = \"\x01\"", "c.toml:1: control character 1 in a string" },
        { "a = [1, 2",
          "c.toml:1: an array is numbers with commas between them in [ ], on one line" },
        { "a = [1 2]",
          "c.toml:1: an array is numbers with commas between them in [ ], on one line" },
        { "a = [", "c.toml:1: the array has no closing ]" },
        { "a = [[1]]", "c.toml:1: there is no value; strings need quotes" },
        { "a = [\"x\"]", "c.toml:1: there is no value; strings need quotes" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lki_config  config;
        lki_message error = { "" };
        assert_false(parse(&config, cases[i].text, &error));
        assert_string_equal(error.text, cases[i].message);
        assert_null(config.items);
        assert_null(config.text);
    }
}

static void needs_no_terminator(void **state)
{
    char       *text = malloc(5); /* exact size: sanitizers then detect a read beyond the end */
    lki_config  config;
    lki_message error;
    (void)state;
    assert_non_null(text);
    memcpy(text, "a = 1", 5);
    assert_true(lki_config_parse(&config, text, 5, "c.toml", &error));
    assert_string_equal(config.items[0].text, "1");
    lki_config_free(&config);
    for (size_t bytes = 0; bytes < 5; bytes++) /* every prefix is handled, too */
        if (lki_config_parse(&config, text, bytes, "c.toml", &error))
            lki_config_free(&config);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_type),
        cmocka_unit_test(refuses_with_the_line),
        cmocka_unit_test(needs_no_terminator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
