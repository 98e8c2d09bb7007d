/* options_test.c -- tests tables of options: values of all types, ranges, config file and command
 * line, suggestions, and help that agrees with the parser.
 *
 * Errors are printed on stderr, so these tests check exit status and struct.  tests/cli checks the
 * texts through the command.
 */
#include "cli/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct {
    const char *what, *path;
    lki_config_file file;
    bool        loud;
    uint32_t    workers, widths[3], width_count;
    uint64_t    seed;
    double      rate, pair[2];
    float       drop;
    size_t      bucket;
    uint32_t    timeout_ms;
    int         kind;
    char      **rest;
} target;

#define AT(field) offsetof(target, field)

static const lki_choice kinds[] = { { .name = "plain", .value = 3 },
                                    { .name = "fancy", .value = 4 },
                                    { .name = "grand", .later = "is not there yet" },
                                    { .name = NULL } };

static const lki_need word_b = { "WHAT", { "b" } }, fancy = { "kind", { "fancy" } },
                      not_plain = { "kind", { "fancy", "dull" } }, a_path = { "path", { NULL } },
                      plain = { "kind", { "plain" } };

/* clang-format off */
static const lki_option table[] = {
    LKI_POSITIONAL("WHAT", AT(what), true, "what to do"),
    { .name = "config", .type = LKI_OPTION_CONFIG, .value = "FILE", .offset = AT(file),
      .help = "" },
    LKI_FLAG("loud", AT(loud), "say more"),
    LKI_STRING("path", "PATH", AT(path), NULL, "where"),
    { .name = "workers", .letter = 'n', .type = LKI_OPTION_U32, .value = "N", .offset = AT(workers),
      .low = 1, .high = 64, .preset = "1", .help = "how many" },
    LKI_U64("seed", "N", AT(seed), 0, UINT64_MAX, "0", "of it all"),
    LKI_REAL("rate", "X", AT(rate), &lki_range_positive, NULL, "how fast"),
    { .name = "drop", .type = LKI_OPTION_FLOAT, .value = "P", .offset = AT(drop),
      .range = &lki_range_fraction, .help = "" },
    { .name = "pair", .type = LKI_OPTION_REAL_PAIR, .value = "A,B", .offset = AT(pair),
      .range = &lki_range_unit_open, .help = "" },
    { .name = "bucket", .type = LKI_OPTION_MEBIBYTES, .value = "MIB", .offset = AT(bucket),
      .range = &lki_range_positive, .help = "" },
    { .name = "timeout", .type = LKI_OPTION_SECONDS, .value = "S", .offset = AT(timeout_ms),
      .range = &lki_range_positive, .help = "" },
    { .name = "widths", .type = LKI_OPTION_U32_LIST, .value = "N,N", .offset = AT(widths), .low = 1,
      .high = 1000, .list_max = 3, .count_offset = AT(width_count), .help = "" },
    LKI_CHOICE(LKI_OPTION_CHOICE, "kind", "NAME", AT(kind), kinds, "plain", "which"),
    { .name = "of-b", .needs = &word_b, .type = LKI_OPTION_FLAG, .offset = AT(loud), .help = "" },
    { .name = "of-fancy", .needs = &fancy, .type = LKI_OPTION_FLAG, .offset = AT(loud),
      .help = "" },
    { .name = "of-not-plain", .needs = &not_plain, .type = LKI_OPTION_FLAG, .offset = AT(loud),
      .help = "" },
    { .name = "of-plain", .needs = &plain, .type = LKI_OPTION_FLAG, .offset = AT(loud),
      .help = "" },
    { .name = "of-path", .needs = &a_path, .type = LKI_OPTION_FLAG, .offset = AT(loud),
      .help = "" },
    LKI_LATER("later", "is not there yet"),
    { .name = "REST", .type = LKI_OPTION_REST, .offset = AT(rest), .help = "" },
    LKI_OPTIONS_END,
};
/* clang-format on */

static const lki_command command = {
    .name = "test", .summary = "", .usage = "", .about = "", .options = table
};

/* Parses the words of `line`.  The words are static, so pointers into them stay valid. */
static int parse(target *out, const char *line)
{
    static char words[512], *argv[32];
    int         argc = 0;
    *out             = (target){ 0 };
    (void)snprintf(words, sizeof words, "test %s", line);
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    return lki_options_parse(&command, argc, argv, out);
}

static void reads_every_type(void **state)
{
    target t;
    (void)state;
    assert_int_equal(parse(&t,
                           "a --path=x=y -n 3 --seed 18446744073709551615 --rate 1e-3 --drop .5 "
                           "--pair 0.9,0.95 --bucket 0.5 --timeout 2.5 --widths 1,2,3 --kind fancy "
                           "--loud"),
                     -1);
    assert_string_equal(t.what, "a");
    assert_string_equal(t.path, "x=y");
    assert_int_equal(t.workers, 3);
    assert_true(t.seed == UINT64_MAX);
    assert_true(t.rate > 0.99e-3 && t.rate < 1.01e-3 && t.drop > 0.49f && t.drop < 0.51f);
    assert_true(t.pair[0] > 0.89 && t.pair[0] < 0.91 && t.pair[1] > 0.94 && t.pair[1] < 0.96);
    assert_int_equal(t.bucket, 524288);
    assert_int_equal(t.timeout_ms, 2500);
    assert_int_equal(t.width_count, 3);
    assert_int_equal(t.widths[2], 3);
    assert_int_equal(t.kind, 4);
    assert_true(t.loud);
    assert_int_equal(parse(&t, "a --loud --no-loud --seed 1 --seed 2"), -1);
    assert_false(t.loud);
    assert_int_equal(t.seed, 2);
}

static void invalid_arguments_are_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "a --unknown 1",
        "a --no-path",
        "a --loud=yes",
        "a --workers",
        "a --workers --loud",
        "a --workers 0",
        "a --workers 65",
        "a --workers -1",
        "a --workers 1e1",
        "a --workers 3x",
        "a --workers 0x3",
        "a --seed 18446744073709551616",
        "a --seed -0",
        "a --rate 0",
        "a --rate -1",
        "a --rate nan",
        "a --rate inf",
        "a --rate 1e999",
        "a --rate 0x1",
        "a --rate 1,5",
        "a --rate=",
        "a --drop 1",
        "a --pair 0.9",
        "a --pair 0.9,1",
        "a --pair 0.9,0.9,0.9",
        "a --bucket 1e30",
        "a --timeout 1e9",
        "a --widths 1,,2",
        "a --widths 1,2,",
        "a --widths 1,2,3,4",
        "a --widths 0",
        "a --kind other",
        "a --kind grand",
        "a --later",
        "a --later=x",
        "a --path=",
        "a --of-b",
        "a --of-fancy",
        "a --of-not-plain",
        "a --of-plain --kind fancy",
        "a --of-path",
        "a -x",
        "a -n",
        "a -n3",
    };
    target t;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (parse(&t, bad[i]) != LKI_EXIT_USAGE)
            fail_msg("accepted: %s", bad[i]);
    assert_int_equal(parse(&t, "b --of-b --of-plain"), -1);
    assert_int_equal(parse(&t, "a --of-fancy --of-not-plain --kind fancy"), -1);
    assert_int_equal(parse(&t, "a --of-path --path x"), -1);
    assert_int_equal(parse(&t, "--rate nan --help"), 0);
    assert_int_equal(parse(&t, "--help --rate nan"), 0);
}

static void arguments_of_the_program_are_not_parsed(void **state)
{
    target t;
    (void)state;
    assert_int_equal(parse(&t, "a --loud prog --help --workers x"), -1);
    assert_string_equal(t.rest[0], "prog");
    assert_string_equal(t.rest[1], "--help");
    assert_string_equal(t.rest[3], "x");
    assert_null(t.rest[4]);
    assert_int_equal(parse(&t, "a -- --prog -n"), -1);
    assert_string_equal(t.rest[0], "--prog");
}

/* Parses `line` with --config FILE before or, with `behind`, after it.  The file contains
 * `text`. */
static int parse_with_file(target *out, const char *text, const char *line, bool behind)
{
    char  path[] = "/tmp/lockstep-options-XXXXXX", whole[256];
    int   fd     = mkstemp(path);
    FILE *file   = fdopen(fd, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
    if (behind)
        (void)snprintf(whole, sizeof whole, "%s --config %s", line, path);
    else
        (void)snprintf(whole, sizeof whole, "--config=%s %s", path, line);
    int status = parse(out, whole);
    (void)unlink(path);
    return status;
}

static void the_command_line_wins(void **state)
{
    static const char text[] = "what = \"a\"\nworkers = 4\nrate = 2\nwidths = [5, 6]\nloud = true\n"
                               "kind = \"fancy\"\npair = [0.5, 0.25]\n";
    target            t;
    (void)state;
    for (int behind = 0; behind < 2; behind++) {
        assert_int_equal(parse_with_file(&t, text, "--workers 7 --widths 9 --no-loud", behind), -1);
        assert_int_equal(t.workers, 7);
        assert_int_equal(t.width_count, 1);
        assert_int_equal(t.widths[0], 9);
        assert_false(t.loud);
        assert_int_equal(t.kind, 4);
        assert_true(t.rate > 1.99 && t.rate < 2.01 && t.pair[1] > 0.24 && t.pair[1] < 0.26);
        assert_string_equal(t.what, "a");
        free(t.file.text);
        assert_int_equal(parse_with_file(&t, text, "b", behind), -1);
        assert_string_equal(t.what, "b");
        assert_int_equal(t.workers, 4);
        assert_true(t.loud);
        free(t.file.text);
    }
}

static void invalid_config_files_are_refused(void **state)
{
    static const char *const bad[] = {
        "what = \"a\"\nwokers = 1\n",     "what = \"a\"\nworkers = \"1\"\n",
        "what = \"a\"\nworkers = 1.5\n",  "what = \"a\"\nworkers = 65\n",
        "what = \"a\"\nloud = 1\n",       "what = \"a\"\nkind = 3\n",
        "what = \"a\"\nwidths = 5\n",     "what = \"a\"\nwidths = [1.5]\n",
        "what = \"a\"\nrate = \"1\"\n",   "what = \"a\"\nlater = 1\n",
        "what = \"a\"\nconfig = \"x\"\n", "what = 1\n",
        "what = \"a\"\nworkers = -1\n",   "what = \"a\"\nof-b = true\n",
        "what = \"a\"\nof-path = true\n",
    };
    target t;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (parse_with_file(&t, bad[i], "", false) != LKI_EXIT_USAGE)
            fail_msg("accepted: %s", bad[i]);
        free(t.file.text);
    }
    assert_int_equal(parse(&t, "a --config /nonexistent/file"), LKI_EXIT_USAGE);
    assert_int_equal(parse(&t, "a --config /"), LKI_EXIT_USAGE);
}

static void the_nearest_option_is_suggested(void **state)
{
    static const char *const names[] = { "workers", "seed", "global-batch", "micro-batch" };
    (void)state;
    assert_string_equal(lki_suggest("worker", names, 4), "workers");
    assert_string_equal(lki_suggest("sede", names, 4), "seed");
    assert_string_equal(lki_suggest("global", names, 4), "global-batch");
    assert_string_equal(lki_suggest("globalbatch", names, 4), "global-batch");
    assert_null(lki_suggest("temperature", names, 4));
    assert_null(lki_suggest("x", names, 4));
    assert_null(lki_suggest("a-name-that-is-far-too-long-for-any-option-of-ours", names, 4));
}

static void help_and_man_name_every_option(void **state)
{
    (void)state;
    for (int man = 0; man < 2; man++) {
        char  *text  = NULL;
        size_t bytes = 0;
        FILE  *out   = open_memstream(&text, &bytes);
        assert_non_null(out);
        if (man)
            lki_options_man(&command, out);
        else
            assert_true(lki_options_help(&command, NULL, NULL, out));
        assert_int_equal(fclose(out), 0);
        for (const lki_option *o = table; o->type != LKI_OPTION_END; o++) {
            char name[64];
            (void)snprintf(name, sizeof name, "%s", o->name);
            if (man) { /* roff escapes hyphens */
                char *hyphen = strchr(name, '-');
                if (hyphen != NULL)
                    *hyphen = '\0';
            }
            bool named = strstr(text, name) != NULL;
            assert_int_equal(named, o->type != LKI_OPTION_LATER);
        }
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_type),
        cmocka_unit_test(invalid_arguments_are_refused),
        cmocka_unit_test(arguments_of_the_program_are_not_parsed),
        cmocka_unit_test(the_command_line_wins),
        cmocka_unit_test(invalid_config_files_are_refused),
        cmocka_unit_test(the_nearest_option_is_suggested),
        cmocka_unit_test(help_and_man_name_every_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
