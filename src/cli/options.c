/* options.c -- parses a command line by the table of a command.
 *
 * The config file is applied before the command line, so the command line takes precedence for any
 * order of the arguments.  All options are checked before the command does anything, and all errors
 * are reported at once, those about names first.
 */
#include "cli/options.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli/config.h"
#include "cli/foreign.h"
#include "cli/values.h"

enum { GO_ON = -1, WRONG_MAX = 12 };

/* An option's value (NULL: not given) and its source. `key` and `line` say where the value is in
 * the config file; a NULL `key` means the command line. */
typedef struct {
    const char *text, *key;
    unsigned    line;
    bool        by_letter;
} origin;

typedef struct {
    const lki_command *command;
    void              *target;
    const char        *config; /* path of the config file */
    origin             origins[LKI_OPTIONS_MAX];
    bool               help; /* --help was given, so errors are ignored */
    const char        *topic, *first; /* TOPIC of --help=TOPIC; first positional argument */
    lki_message        error;
    bool               of_name;     /* `error` is about the name of an option or of a model */
    const lki_option  *without_value; /* an option whose value is missing or wrong */
    bool               swallowed;   /* an unknown option may have taken a positional argument */
    lki_message        wrong[WRONG_MAX]; /* all errors, those about names first */
    size_t             wrong_count, name_count;
} state;

/* Adds `error` to the list of errors. */
static void note_error(state *s)
{
    size_t at = s->of_name ? s->name_count : s->wrong_count;
    if (s->wrong_count < WRONG_MAX) {
        memmove(&s->wrong[at + 1], &s->wrong[at], (s->wrong_count - at) * sizeof s->wrong[0]);
        s->wrong[at] = s->error;
        s->wrong_count++;
        s->name_count += s->of_name;
    }
    s->of_name = false;
}

/* ---- Looking up options ------------------------------------------------------------------ */

bool lki_is_named(const lki_option *option)
{
    return option->type != LKI_OPTION_POSITIONAL && option->type != LKI_OPTION_REST;
}

static bool is_word(const char *word, const char *text, size_t length)
{
    return word != NULL && strlen(word) == length && memcmp(word, text, length) == 0;
}

const lki_option *lki_option_find(const lki_command *command, const char *name, size_t length)
{
    for (const lki_option *o = command->options; o->type != LKI_OPTION_END; o++)
        if (lki_is_named(o) && (is_word(o->name, name, length) || is_word(o->alias, name, length)))
            return o;
    return NULL;
}

static const lki_option *find_letter(const lki_command *command, char letter)
{
    for (const lki_option *o = command->options; o->type != LKI_OPTION_END; o++)
        if (o->letter != 0 && o->letter == letter)
            return o;
    return NULL;
}

/* Returns a hint for commands that start a program, whose options are not theirs. */
static const char *program_hint(const lki_command *command)
{
    for (const lki_option *o = command->options; o->type != LKI_OPTION_END; o++)
        if (o->type == LKI_OPTION_REST)
            return "; options of the program come after its name";
    return "";
}

static bool refuse_unknown(state *s, const char *name, size_t length)
{
    char word[40];
    (void)snprintf(word, sizeof word, "%.*s", (int)(length < 39 ? length : 39), name);
    lki_message hint;
    s->of_name = true;
    if (lki_foreign_hint(s->command, name, length, &hint))
        return lki_refuse(&s->error, "unknown option --%s: %.200s", word, hint.text);
    const char *meant = lki_suggest_long(s->command, word);
    if (meant != NULL)
        return lki_refuse(&s->error, "unknown option --%s; did you mean --%s?", word, meant);
    return lki_refuse(&s->error, "unknown option --%s%s", word, program_hint(s->command));
}

static origin *origin_of(state *s, const lki_option *option)
{
    return &s->origins[option - s->command->options];
}

/* Writes an option as the user wrote it, such as "--lr" or "run.toml:3: lr". */
static const char *spell(const state *s, const lki_option *option, const origin *from,
                         lki_message *out)
{
    if (from->key != NULL)
        (void)lki_refuse(out, "%.150s:%u: %.60s", s->config, from->line, from->key);
    else if (from->by_letter)
        (void)lki_refuse(out, "-%c", option->letter);
    else
        (void)lki_refuse(out, "%s%s", lki_is_named(option) ? "--" : "", option->name);
    return out->text;
}

/* Sets one option.  The message of an error names the option. */
static bool set(state *s, const lki_option *option, origin from)
{
    lki_message name, why;
    if (option->type == LKI_OPTION_LATER)
        return lki_refuse(&s->error, "%s: %s", spell(s, option, &from, &name), option->help);
    *origin_of(s, option) = from;
    if (!lki_value_read(option, from.text, s->target, &why)) {
        s->of_name = option->type == LKI_OPTION_POSITIONAL && option->read != NULL;
        return lki_refuse(&s->error, "%.220s %.120s: %.160s", spell(s, option, &from, &name),
                          *from.text != '\0' ? from.text : "\"\"", why.text);
    }
    return true;
}

static bool set_from_line(state *s, const lki_option *option, const char *text)
{
    const origin *before = origin_of(s, option);
    if (option->once && before->text != NULL && before->key == NULL)
        return lki_refuse(&s->error, "--%s stands twice: %s, --%s %s", option->name,
                          strcmp(option->name, "data") == 0 ? "give one file, or a folder with all"
                          : option->read != NULL ? "write all in one" : "give one",
                          option->name, option->value);
    return set(s, option, (origin){ .text = text });
}

/* ---- The config file --------------------------------------------------------------------- */

static bool fits(const lki_option *option, const lki_config_item *item, const char **wants)
{
    lki_config_type is = item->type;
    switch ((int)option->type) {
    case LKI_OPTION_FLAG: *wants = "true or false"; return is == LKI_CONFIG_BOOLEAN;
    case LKI_OPTION_U32:
    case LKI_OPTION_U64: *wants = "an integer"; return is == LKI_CONFIG_INTEGER;
    case LKI_OPTION_REAL:
    case LKI_OPTION_FLOAT:
    case LKI_OPTION_MEBIBYTES:
    case LKI_OPTION_SECONDS:
        *wants = "a number";
        return is == LKI_CONFIG_INTEGER || is == LKI_CONFIG_REAL;
    case LKI_OPTION_REAL_PAIR:
        *wants = "an array of two numbers";
        return is == LKI_CONFIG_REALS || is == LKI_CONFIG_INTEGERS;
    case LKI_OPTION_U32_LIST:
    case LKI_OPTION_U64_LIST: *wants = "an array of integers"; return is == LKI_CONFIG_INTEGERS;
    case LKI_OPTION_CUSTOM:
    case LKI_OPTION_U32_SPAN:
        *wants = "a string or an integer";
        return is == LKI_CONFIG_STRING || is == LKI_CONFIG_INTEGER;
    default: *wants = "a string in quotes"; return is == LKI_CONFIG_STRING;
    }
}

static const lki_option *find_key(const lki_command *command, const char *key)
{
    for (const lki_option *o = command->options; o->type != LKI_OPTION_END; o++)
        if (o->type == LKI_OPTION_POSITIONAL && strcasecmp(o->name, key) == 0)
            return o;
    return lki_option_find(command, key, strlen(key));
}

/* Returns true if a key is the earlier name of an option that was a flag, and its value is true or
 * false. */
static bool is_former_flag(const lki_option *option, const lki_config_item *item)
{
    return option->alias_value != NULL && strcmp(option->alias, item->key) == 0 &&
           item->type == LKI_CONFIG_BOOLEAN;
}

static bool refuse_key(state *s, const char *path, const lki_config_item *item)
{
    lki_message hint  = { "keys are the names of options" };
    const char *meant = lki_suggest_option(s->command, item->key);
    if (!lki_foreign_hint(s->command, item->key, strlen(item->key), &hint) && meant != NULL)
        (void)lki_refuse(&hint, "did you mean %s?", meant);
    return lki_refuse(&s->error, "%.150s:%u: unknown key %.60s; %.200s", path, item->line,
                      item->key, hint.text);
}

static bool apply_item(state *s, const char *path, const lki_config_item *item)
{
    const lki_option *option = find_key(s->command, item->key);
    const char       *wants  = NULL, *text = item->text;
    if (option != NULL && option->type == LKI_OPTION_CONFIG)
        return lki_refuse(&s->error, "%.150s:%u: a config file cannot name another", path,
                          item->line);
    if (option == NULL)
        return refuse_key(s, path, item);
    const origin *before = origin_of(s, option);
    if (before->key != NULL)
        return lki_refuse(&s->error, "%.150s:%u: %.60s is the same option as %.60s on line %u",
                          path, item->line, item->key, before->key, before->line);
    if (is_former_flag(option, item)) {
        if (strcmp(text, "false") == 0)
            return true;
        text = option->alias_value;
    } else if (option->type != LKI_OPTION_LATER && !fits(option, item, &wants)) {
        return lki_refuse(&s->error, "%.150s:%u: %s must be %s", path, item->line, item->key,
                          wants);
    }
    return set(s, option, (origin){ text, item->key, item->line, false });
}

static bool apply_config(state *s, const lki_option *option, const char *path)
{
    lki_config       config;
    lki_config_file *file = (void *)((unsigned char *)s->target + option->offset);
    bool good = file->text == NULL || lki_refuse(&s->error, "--%s stands twice", option->name);
    if (!good || !lki_config_open(&config, path, &s->error)) {
        note_error(s);
        return true;
    }
    file->text = config.text;
    file->path = path;
    s->config  = path;
    for (size_t i = 0; i < config.count; i++)
        if (!apply_item(s, path, &config.items[i]))
            note_error(s);
    free(config.items);
    return true;
}

/* ---- The command line -------------------------------------------------------------------- */

typedef enum { PASS_CONFIG, PASS_ALL } pass;

/* Refuses an option that was given without its value. */
static bool refuse_without_value(state *s, const lki_option *option)
{
    s->without_value = option;
    return lki_refuse(&s->error, "--%s needs a value: --%s %s%s%s", option->name, option->name,
                      option->value, option->required ? ", " : "",
                      option->required ? option->help : "");
}

/* Reads the long option at argv[*i] and, if it takes one, its value. */
static bool read_long(state *s, pass which, int argc, char **argv, int *i)
{
    const char *name   = argv[*i] + 2;
    size_t      length = strcspn(name, "=");
    const char *value  = name[length] == '=' ? name + length + 1 : NULL;

    if (is_word("help", name, length)) {
        s->help  = true;
        s->topic = value;
        if (s->first == NULL && *i + 1 < argc && argv[*i + 1][0] != '-')
            s->first = argv[*i + 1];
        return false;
    }
    const lki_option *option = lki_option_find(s->command, name, length);
    if (option == NULL && length > 3 && strncmp(name, "no-", 3) == 0) {
        option = lki_option_find(s->command, name + 3, length - 3);
        if (option != NULL && option->type == LKI_OPTION_FLAG && value == NULL) {
            return set_from_line(s, option, "false");
        }
        option = NULL;
    }
    if (option == NULL) { /* the next argument is taken to be its value */
        bool next    = value == NULL && *i + 1 < argc && argv[*i + 1][0] != '-';
        s->swallowed = s->swallowed || next;
        *i += next;
        return refuse_unknown(s, name, length);
    }
    if (option->type == LKI_OPTION_LATER)
        return set_from_line(s, option, "");
    if (option->type == LKI_OPTION_FLAG) {
        if (value != NULL)
            return lki_refuse(&s->error, "--%s takes no value; write --%s or --no-%s", option->name,
                              option->name, option->name);
        return set_from_line(s, option, "true");
    }
    if (value == NULL && is_word(option->alias, name, length))
        value = option->alias_value;
    if (value == NULL && option->value_optional)
        value = "";
    if (value == NULL && (*i + 1 >= argc || strncmp(argv[*i + 1], "--", 2) == 0))
        return refuse_without_value(s, option);
    if (value == NULL)
        value = argv[++*i];
    if (which == PASS_CONFIG)
        return option->type != LKI_OPTION_CONFIG || apply_config(s, option, value);
    return option->type == LKI_OPTION_CONFIG || set_from_line(s, option, value);
}

/* Refuses an option with one hyphen, such as -x, -np, -n4 or -lr.  `option`: of the first
 * letter. */
static bool refuse_letters(state *s, const lki_option *option, int argc, char **argv, int *i)
{
    const char *text  = argv[*i];
    size_t      named = strcspn(text + 1, "=");
    bool        next  = option == NULL && *i + 1 < argc && argv[*i + 1][0] != '-';
    lki_message hint  = { "" };
    bool        known = lki_foreign_hint(s->command, text + 1, named, &hint);
    bool        is_long = named > 1 && lki_option_find(s->command, text + 1, named) != NULL;
    s->of_name        = true;
    s->swallowed      = s->swallowed || next;
    *i += next;
    if (is_long)
        return lki_refuse(&s->error, "unknown option %.40s; did you mean -%.40s?", text, text);
    if (option != NULL && option->type != LKI_OPTION_FLAG && !known)
        return lki_refuse(&s->error, "unknown option %.40s; did you mean -%c %.40s?", text,
                          option->letter, text + 2);
    return lki_refuse(&s->error, "unknown option %.40s%s%.200s", text, known ? ": " : "",
                      known ? hint.text : program_hint(s->command));
}

static bool read_short(state *s, pass which, int argc, char **argv, int *i)
{
    const lki_option *option = find_letter(s->command, argv[*i][1]);
    s->help                  = strcmp(argv[*i], "-h") == 0;
    if (option == NULL || argv[*i][2] != '\0')
        return refuse_letters(s, option, argc, argv, i);
    if (option->type == LKI_OPTION_FLAG)
        return set_from_line(s, option, "true");
    if (*i + 1 >= argc)
        return lki_refuse(&s->error, "-%c needs a value: -%c %s", option->letter, option->letter,
                          option->value);
    ++*i;
    return which == PASS_CONFIG ||
           set(s, option, (origin){ .text = argv[*i], .by_letter = true });
}

static const lki_option *next_positional(const lki_command *command, size_t index)
{
    for (const lki_option *o = command->options; o->type != LKI_OPTION_END; o++)
        if (!lki_is_named(o) && index-- == 0)
            return o;
    return NULL;
}

/* Returns how many arguments from argv[i] on are the paths of files or folders. */
static int count_paths(int argc, char **argv, int i)
{
    int count = 0;
    while (i + count < argc && argv[i + count][0] != '-' && access(argv[i + count], F_OK) == 0)
        count++;
    return count;
}

/* Refuses paths of several data files, to which the shell expands a pattern.  Names the folder of
 * the first one. */
static void refuse_files(state *s, const lki_option *data, const char *first)
{
    s->without_value = data;
    const char *end    = strrchr(first, '/');
    int         length = end != NULL ? (int)(end - first) : 1;
    (void)lki_refuse(&s->error, "several files are given, as by a pattern that the shell expands, "
                                "and --data takes one file or one folder: give the folder, such as "
                                "--data %.*s, or join the files, as in cat FILE FILE >all.txt",
                     length < 200 ? length : 200, end != NULL ? first : ".");
}

/* Refuses argv[*i], which is no option, such as the 3 of `--restart 3`.  If it is one of several
 * paths, advances *i to the last one. */
static void refuse_plain(state *s, int argc, char **argv, int *i)
{
    const char       *before = argv[*i - 1], *text = argv[*i];
    const char       *name   = strncmp(before, "--", 2) == 0 ? before + 2 : "";
    const lki_option *option = lki_option_find(s->command, name, strlen(name));
    const lki_option *data   = lki_option_find(s->command, "data", 4);
    const int         paths  = data != NULL ? count_paths(argc, argv, *i) : 0;
    if (option != NULL && option->value_optional) {
        (void)lki_refuse(&s->error, "unexpected argument %.120s; did you mean %s=%.120s?", text,
                         before, text);
    } else if (paths > 1 || (paths == 1 && origin_of(s, data)->text != NULL)) {
        refuse_files(s, data, text);
        *i += paths - 1;
    } else if (paths == 1) {
        (void)lki_refuse(&s->error, "unexpected argument %.120s; did you mean --data %.120s?", text,
                         text);
    } else {
        (void)lki_refuse(&s->error, "unexpected argument %.120s", text);
    }
}

/* Adds the error of an argument.  The second pass finds the same errors as the first. */
static void refused(state *s, pass which)
{
    if (which == PASS_ALL)
        note_error(s);
    s->of_name = false;
}

/* Processes the arguments.  The first pass only finds and applies --config.  Returns false if the
 * help was requested. */
static bool walk(state *s, pass which, int argc, char **argv)
{
    size_t positionals = 0;
    bool   only_plain  = false;
    for (int i = 1; i < argc; i++) {
        bool plain = only_plain || argv[i][0] != '-' || argv[i][1] == '\0';
        if (!plain && strcmp(argv[i], "--") == 0) {
            only_plain = true;
            continue;
        }
        if (!plain) {
            bool is_long = argv[i][1] == '-';
            if (!(is_long ? read_long(s, which, argc, argv, &i)
                          : read_short(s, which, argc, argv, &i))) {
                if (s->help)
                    return false;
                refused(s, which);
            }
            continue;
        }
        const lki_option *option = next_positional(s->command, positionals++);
        s->first                 = s->first != NULL ? s->first : argv[i];
        if (option == NULL) {
            refuse_plain(s, argc, argv, &i);
            refused(s, which);
            continue;
        }
        if (option->type == LKI_OPTION_REST) {
            char **rest = argv + i;
            memcpy((unsigned char *)s->target + option->offset, &rest, sizeof rest);
            origin_of(s, option)->text = argv[i];
            return true;
        }
        if (which == PASS_ALL && !set_from_line(s, option, argv[i]))
            refused(s, which);
    }
    return true;
}

/* Returns true if an option is given that replaces a required one. */
static bool is_replaced(state *s, const lki_option *option)
{
    const char       *name  = option->unless != NULL ? option->unless : "";
    const lki_option *other = lki_option_find(s->command, name, strlen(name));
    return other != NULL && origin_of(s, other)->text != NULL;
}

/* Adds an error for each required option that is missing. */
static void check_required(state *s)
{
    for (const lki_option *o = s->command->options; o->type != LKI_OPTION_END; o++) {
        if (!o->required || origin_of(s, o)->text != NULL || o == s->without_value ||
            (s->swallowed && !lki_is_named(o)) || is_replaced(s, o))
            continue;
        if (o->letter != 0) /* names the option as the usage line does */
            (void)lki_refuse(&s->error, "-%c %s is missing: %s", o->letter, o->value, o->help);
        else
            (void)lki_refuse(&s->error, "%s%s is missing: %s", lki_is_named(o) ? "--" : "", o->name,
                             o->help);
        note_error(s);
    }
}

/* ---- Dependencies between options ---------------------------------------------------------- */

/* Returns the record of what is given, which the target of a command with --config has, or NULL. */
static lki_config_file *file_of(const state *s)
{
    for (const lki_option *o = s->command->options; o->type != LKI_OPTION_END; o++)
        if (o->type == LKI_OPTION_CONFIG)
            return (void *)((unsigned char *)s->target + o->offset);
    return NULL;
}

/* Returns an option's value as given or chosen, or its default; NULL if it has none. */
static const char *value_of(state *s, const lki_option *option)
{
    const lki_config_file *file   = file_of(s);
    const char            *given  = origin_of(s, option)->text;
    const char            *chosen = file != NULL ? file->given[option - s->command->options] : NULL;
    return given != NULL ? given : chosen != NULL ? chosen : option->preset;
}

static bool is_met(state *s, const lki_need *need, const lki_option *other)
{
    const char *value = value_of(s, other);
    if (need->values[0] == NULL)
        return origin_of(s, other)->text != NULL;
    for (size_t i = 0; value != NULL && need->values[i] != NULL; i++)
        if (strcmp(need->values[i], value) == 0)
            return true;
    return false;
}

/* Writes values as text, such as "linear, poly or cosine". */
static void write_values(const char *const *values, lki_message *out)
{
    size_t used  = 0;
    *out->text = '\0';
    for (size_t i = 0; values[i] != NULL; i++) {
        const char *before = i == 0 ? "" : values[i + 1] == NULL ? " or " : ", ";
        int wrote = snprintf(out->text + used, sizeof out->text - used, "%s%s", before, values[i]);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

/* Fails with text such as "--min-lr needs --schedule linear or cosine; this is constant". */
static bool refuse_useless(state *s, const lki_option *option, const lki_option *other)
{
    const char *const *values = option->needs->values;
    const origin      *from   = origin_of(s, option);
    bool               any    = values[0] == NULL, flag = any && other->value == NULL;
    const char        *is     = any ? NULL : value_of(s, other);
    lki_message        name, wanted;
    write_values(values, &wanted);
    return lki_refuse(&s->error, "%.220s needs %s%s%s%.80s%s%.60s", spell(s, option, from, &name),
                      lki_is_named(other) && from->key == NULL ? "--" : "", other->name,
                      flag ? "" : " ", flag ? "" : any ? other->value : wanted.text,
                      is == NULL ? "" : "; this is ", is == NULL ? "" : is);
}

static void check_needs(state *s)
{
    for (const lki_option *o = s->command->options; o->type != LKI_OPTION_END; o++) {
        if (o->needs == NULL || origin_of(s, o)->text == NULL)
            continue;
        const lki_option *other = s->command->options;
        while (other->type != LKI_OPTION_END && strcmp(other->name, o->needs->name) != 0)
            other++;
        if (is_met(s, o->needs, other))
            continue;
        if (value_of(s, other) == NULL && is_replaced(s, other))
            continue; /* the check of the command says why the value is not known */
        (void)refuse_useless(s, o, other);
        note_error(s);
    }
}

/* Adds the errors that the command finds itself.  Not inlined, because the list is large. */
__attribute__((noinline)) static void check_further(state *s)
{
    lki_message errors[WRONG_MAX];
    size_t      count = 0;
    if (s->command->check != NULL)
        count = s->command->check(s->command, s->target, errors, WRONG_MAX);
    for (size_t i = 0; i < count; i++) {
        s->error = errors[i];
        note_error(s);
    }
}

/* Stores the sources of all options, for later messages and for lki_settings_of(). */
static void keep_origins(const state *s)
{
    lki_config_file *file = file_of(s);
    for (size_t i = 0; file != NULL && i < LKI_OPTIONS_MAX; i++) {
        file->lines[i] = s->origins[i].line;
        file->given[i] = s->origins[i].text;
    }
}

/* Prints all errors, one per line. */
static int print_errors(const state *s)
{
    for (size_t i = 0; i + 1 < s->wrong_count; i++)
        fprintf(stderr, "lockstep %s: %s\n", s->command->name, s->wrong[i].text);
    return lki_usage_error(s->command, "%s", s->wrong[s->wrong_count - 1].text);
}

int lki_options_parse(const lki_command *command, int argc, char **argv, void *target)
{
    state s    = { .command = command, .target = target };
    bool  asks = !walk(&s, PASS_CONFIG, argc, argv) || !walk(&s, PASS_ALL, argc, argv);
    if (!asks)
        check_required(&s);
    keep_origins(&s);
    if (s.wrong_count == 0 && !asks && command->choose != NULL)
        command->choose(command, target);
    if (s.wrong_count == 0 && !asks)
        check_needs(&s);
    if (!asks)
        check_further(&s);
    if (!asks)
        return s.wrong_count == 0 ? GO_ON : print_errors(&s);
    if (lki_options_help(command, s.topic, s.first, stdout))
        return 0;
    lki_options_groups(command, &s.error);
    return lki_usage_error(command, "--help=%.40s: there is no such group; there are all, %.300s",
                           s.topic, s.error.text);
}
