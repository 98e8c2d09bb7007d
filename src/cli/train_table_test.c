/* train_table_test.c -- checks that every row of train's table has its effect on the command line
 * and the config file (with each of its names), on help, on its group and on the man page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/commands.h"
#include "cli/train.h"

static const lki_command *const train = &lki_command_train;

/* Returns the help of a command, or its man page if `topic` is "man".  The caller frees the
 * text. */
static char *help_by(const lki_command *command, const char *topic, const char *model)
{
    char  *text  = NULL;
    size_t bytes = 0;
    FILE  *out   = open_memstream(&text, &bytes);
    assert_non_null(out);
    if (topic != NULL && strcmp(topic, "man") == 0)
        lki_options_man(command, out);
    else
        assert_true(lki_options_help(command, topic, model, out));
    assert_int_equal(fclose(out), 0);
    return text;
}

static char *help_of(const char *topic, const char *model)
{
    return help_by(train, topic, model);
}

/* Returns true if a help text has a line for this option. */
static bool lists(const char *text, const lki_option *option)
{
    char line[64], lettered[64];
    bool plain = option->type == LKI_OPTION_POSITIONAL;
    (void)snprintf(line, sizeof line, "\n  %s%s", plain ? "" : "--", option->name);
    (void)snprintf(lettered, sizeof lettered, "\n  -%c, --%s", option->letter, option->name);
    for (const char *at = text; (at = strstr(at, line)) != NULL; at++)
        if (strchr(" [\n", at[strlen(line)]) != NULL)
            return true;
    return option->letter != 0 && strstr(text, lettered) != NULL;
}

static bool is_named(const lki_option *option, const char *name)
{
    return strcmp(option->name, name) == 0 ||
           (option->alias != NULL && strcmp(option->alias, name) == 0);
}

static void names_are_unique_and_groups_are_whole(void **state)
{
    const lki_option *table = train->options;
    (void)state;
    for (const lki_option *o = table; o->type != LKI_OPTION_END; o++) {
        bool found = o->needs == NULL;
        bool apart = false;
        assert_true(o->help != NULL && o->help[0] != '\0');
        for (const lki_option *p = table; p->type != LKI_OPTION_END; p++) {
            found = found || strcmp(o->needs->name, p->name) == 0;
            if (p != o && (is_named(p, o->name) || (o->alias != NULL && is_named(p, o->alias))))
                fail_msg("%s and %s", o->name, p->name);
            if (p > o && o->group != NULL && p->group != NULL) {
                apart = apart || strcmp(p->group, o->group) != 0;
                if (apart && strcmp(p->group, o->group) == 0)
                    fail_msg("%s is not beside %s", p->name, o->name);
            }
        }
        if (!found)
            fail_msg("%s needs %s", o->name, o->needs->name);
    }
}

static void help_and_man_have_every_row(void **state)
{
    char             *all = help_of("all", NULL), *man = help_of("man", NULL), roff[96];
    const char       *group = NULL;
    const lki_option *table = train->options;
    (void)state;
    for (const lki_option *o = table; o->type != LKI_OPTION_END; o++) {
        size_t used = 0;
        group       = o->group != NULL ? o->group : group;
        if (!lists(all, o))
            fail_msg("--help=all has no %s", o->name);
        char  topic[32];
        char *some = NULL;
        (void)snprintf(topic, sizeof topic, "%.*s", (int)strcspn(group, "("), group);
        for (char *c = topic; *c != '\0'; c++)
            *c = (char)(*c == ' ' ? '-' : *c);
        some = help_of(topic, NULL);
        if (!lists(some, o))
            fail_msg("--help=%s has no %s", topic, o->name);
        free(some);
        for (const char *c = o->name; *c != '\0'; c++)
            used += (size_t)snprintf(roff + used, sizeof roff - used, *c == '-' ? "\\-" : "%c", *c);
        if (strstr(man, roff) == NULL)
            fail_msg("the man page has no %s", o->name);
    }
    free(all);
    free(man);
}

/* Options that give a run another label say so, as choices do. */
static void help_has_the_labels_of_options(void **state)
{
    char    *text = help_of("all", NULL), name[64];
    unsigned count = 0;
    (void)state;
    for (const lki_option *o = train->options; o->type != LKI_OPTION_END; o++) {
        if (o->label == LK_LABEL_EXACT)
            continue;
        (void)snprintf(name, sizeof name, "\n  --%s ", o->name);
        const char *at = strstr(text, name), *end = at != NULL ? strstr(at + 1, "\n  -") : NULL;
        const char *label = at != NULL ? strstr(at, lk_label_name(o->label)) : NULL;
        if (label == NULL || end == NULL || label > end)
            fail_msg("the help of --%s lacks its label", o->name);
        count++;
    }
    assert_in_range(count, 4, 40);
    free(text);
}

static void short_help_lists_the_options_of_one_model(void **state)
{
    static const char *const models[] = { "gpt", "resnet", "mlp" };
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        char    *text  = help_of(NULL, models[i]);
        unsigned count = 0;
        for (const lki_option *o = train->options; o->type != LKI_OPTION_END; o++)
            count += lists(text, o);
        assert_in_range(count, 18, 28);
        assert_int_equal(strstr(text, "--layers") != NULL, i == 0);
        assert_int_equal(strstr(text, "--depth") != NULL, i == 1);
        assert_int_equal(strstr(text, "--hidden") != NULL, i == 2);
        assert_null(strstr(text, "--chaos"));
        assert_non_null(strstr(text, "--help=all"));
        free(text);
    }
}

/* Checks that commands that accept the options of train list only their own, and refer to train. */
static void other_commands_do_not_repeat_train(void **state)
{
    static const lki_command *const commands[] = { &lki_command_plan, &lki_command_verify };
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char    *text = help_by(commands[i], "all", NULL);
        unsigned own  = 0;
        for (const lki_option *o = commands[i]->options; o->type != LKI_OPTION_END; o++) {
            own += !o->inherited && lists(text, o);
            if (o->inherited && lists(text, o))
                fail_msg("%s --help=all repeats %s", commands[i]->name, o->name);
        }
        assert_true(own > 1);
        assert_non_null(strstr(text, "see lockstep train"));
        free(text);
    }
}

/* ---- Values ------------------------------------------------------------------------------ */

/* Returns a value that an option accepts, as text and as TOML; NULL if it takes no value. */
static const char *value_for(const lki_option *o, char toml[64])
{
    static const struct {
        const char *name, *value;
    } special[] = {
        { "augment", "crop=4,flip" },
        { "ignore-label", "255" },
        { "param-group", "*.bias:lr=2" },
        { "loss-scale", "pytorch" },
        { "loss-scale-initial", "1024" },
        { "resume", "auto" },
        { "restart", "2" },
        { "mpi", "off" },
        { "offload", "optimizer:dir" },
        { "shard-replicas", "2" },
        { "sdc-check", "1" },
        { "rebalance", "on" },
        { "speculate", "on" },
        { "chaos", "1,1" },
        { "ratio-warmup", "0.5,0.1" },
        { "freeze-step", "auto" },
        { "split", "shards:2" },
        { "staleness", "3" },
        { "delays", "lognormal:0.5" },
        { "delay-compensation", "adaptive:2" },
        { "slow", "0:4,3:2" },
    };
    const char *value  = NULL;
    bool        quoted = false;
    switch ((int)o->type) {
    case LKI_OPTION_FLAG: value = "true"; break;
    case LKI_OPTION_U32:
    case LKI_OPTION_U64:
    case LKI_OPTION_U32_SPAN: value = "1"; break;
    case LKI_OPTION_REAL:
        value = o->range == &lki_range_not_below_1 ? "1.5" : "0.5";
        break;
    case LKI_OPTION_FLOAT:
    case LKI_OPTION_MEBIBYTES:
    case LKI_OPTION_SECONDS: value = "0.5"; break;
    case LKI_OPTION_REAL_PAIR: value = "0.5,0.5"; break;
    case LKI_OPTION_U32_LIST:
    case LKI_OPTION_U64_LIST: value = "1,2"; break;
    case LKI_OPTION_CHOICE:
    case LKI_OPTION_NAME:
        value  = o->choices[0].name;
        quoted = true;
        break;
    case LKI_OPTION_STRING:
        value  = strcmp(o->name, "data") == 0 ? "text:x" : "x";
        quoted = true;
        break;
    default: quoted = true;
    }
    for (size_t i = 0; value == NULL && i < sizeof special / sizeof special[0]; i++)
        if (strcmp(special[i].name, o->name) == 0)
            value = special[i].value;
    if (value != NULL)
        (void)snprintf(toml, 64,
                       strchr(value, ',') != NULL && !quoted ? "[%s]"
                       : quoted                              ? "\"%s\""
                                                             : "%s",
                       value);
    return value;
}

/* Parses a single option from the command line or from a config file. */
static int parse_one(const lki_option *option, const char *name, const char *value,
                     const char *toml)
{
    lki_option    rows[]  = { *option, train->options[1], LKI_OPTIONS_END };
    lki_command   command = { .name = "test", .usage = "", .about = "", .options = rows };
    train_options target  = LKI_TRAIN_OPTIONS_INIT;
    char          first[160], path[] = "/tmp/lockstep-table-XXXXXX";
    char         *argv[] = { (char[]){ "test" }, first, NULL };
    int           fd     = mkstemp(path);
    rows[0].needs        = NULL;
    assert_true(fd >= 0);
    (void)snprintf(first, sizeof first, "%s = %s\n", name, toml);
    assert_int_equal(write(fd, first, strlen(first)), (ssize_t)strlen(first));
    assert_int_equal(close(fd), 0);
    if (value == NULL)
        (void)snprintf(first, sizeof first, "--config=%s", path);
    else if (option->type == LKI_OPTION_FLAG)
        (void)snprintf(first, sizeof first, "--%s", name);
    else
        (void)snprintf(first, sizeof first, "--%s=%s", name, value);
    int status = lki_options_parse(&command, 2, argv, &target);
    free(target.file.text);
    (void)unlink(path);
    return status;
}

/* Checks that a row is read with its name and with its earlier name, from both sources. */
static void every_row_is_read_under_every_name(void **state)
{
    unsigned read = 0;
    (void)state;
    for (const lki_option *o = train->options + 2; o->type != LKI_OPTION_END; o++) {
        char        toml[64] = "";
        const char *value = value_for(o, toml), *names[] = { o->name, o->alias };
        if (value == NULL)
            fail_msg("no value for %s", o->name);
        for (int i = 0; i < 2 && names[i] != NULL; i++, read++) {
            if (parse_one(o, names[i], value, toml) != -1)
                fail_msg("--%s %s", names[i], value);
            if (parse_one(o, names[i], NULL, toml) != -1)
                fail_msg("%s = %s", names[i], toml);
        }
    }
    assert_true(read > 100);
}

static void a_flag_alias_sets_its_value(void **state)
{
    const lki_option *replicas = train->options;
    (void)state;
    while (strcmp(replicas->name, "shard-replicas") != 0)
        replicas++;
    char         *argv[] = { (char[]){ "train" },
                             (char[]){ "mlp" },
                             (char[]){ "--buddies" },
                             (char[]){ "--data=text:x" },
                             (char[]){ "--lr=1" },
                             (char[]){ "--global-batch=8" },
                             NULL };
    train_options target = LKI_TRAIN_OPTIONS_INIT;
    assert_int_equal(lki_options_parse(train, 6, argv, &target), -1);
    assert_true(target.config.buddies);
    assert_string_equal(target.config.data.source, "text:x");
    assert_int_equal(parse_one(replicas, "buddies", NULL, "true"), -1);
    assert_int_equal(parse_one(replicas, "buddies", NULL, "false"), -1);
    assert_int_equal(parse_one(replicas, "shard-replicas", NULL, "true"), LKI_EXIT_USAGE);
    assert_int_equal(parse_one(replicas, "shard-replicas", "3", ""), LKI_EXIT_USAGE);
}

/* Checks that the options which another command leaves out exist, and that the command has all
 * other options. */
static void other_commands_have_the_rows(void **state)
{
    static const char *const left_out[] = { "checkpoints", NULL };
    static const lki_option  own[]      = { LKI_FLAG("quiet", 0, "own"), LKI_OPTIONS_END };
    lki_option              *rows       = lki_train_rows(left_out, own, true);
    bool                     lr = false, quiet = false;
    (void)state;
    assert_non_null(rows);
    for (const lki_option *o = rows; o->type != LKI_OPTION_END; o++) {
        assert_true(strcmp(o->name, "keep") != 0 && strcmp(o->name, "restart") != 0);
        lr    = lr || (strcmp(o->name, "lr") == 0 && !o->required && o->inherited);
        quiet = quiet || (strcmp(o->name, "quiet") == 0 && !o->inherited);
    }
    assert_true(lr && quiet);
    free(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_unique_and_groups_are_whole),
        cmocka_unit_test(help_and_man_have_every_row),
        cmocka_unit_test(help_has_the_labels_of_options),
        cmocka_unit_test(short_help_lists_the_options_of_one_model),
        cmocka_unit_test(other_commands_do_not_repeat_train),
        cmocka_unit_test(every_row_is_read_under_every_name),
        cmocka_unit_test(a_flag_alias_sets_its_value),
        cmocka_unit_test(other_commands_have_the_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
