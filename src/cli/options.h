/* cli/options.h -- tables that define the options of commands.
 *
 * A command has one table with a row per option: its type, range, field in a plain struct, default
 * and help.  The same rows are used to parse the command line and the config file, for --help and
 * for the man page, so these always agree.
 *
 *   typedef struct { uint32_t workers; bool quiet; const char *path; } my_options;
 *   #define AT(field) offsetof(my_options, field)
 *   static const lki_option options[] = {
 *       LKI_POSITIONAL("PATH", AT(path), true, "what to look at"),
 *       LKI_U32("workers", "N", AT(workers), 1, 1024, "1", "worker processes"),
 *       LKI_FLAG("quiet", AT(quiet), "say nothing"),
 *       LKI_OPTIONS_END,
 *   };
 *   const lki_command lki_command_my = { "my", "does this", ..., options, main };
 *
 * Its main function begins with
 *
 *   my_options o = { 0 };
 *   int done = lki_options_parse(&lki_command_my, argc, argv, &o);
 *   if (done >= 0)
 *       return done;
 *
 * An unknown option is a usage error (exit status 2), as is a value of the wrong type or out of
 * range.  The message names the option, the value and the allowed values.  If an option is
 * repeated, the last one has effect, or the row forbids it (`once`).
 */
#ifndef LKI_CLI_OPTIONS_H
#define LKI_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "lockstep/base.h"

/* Exit statuses besides 0. */
enum { LKI_EXIT_FAILURE = 1, LKI_EXIT_USAGE = 2, LKI_EXIT_NONFINITE = 3, LKI_EXIT_STOPPED = 75 };

typedef struct {
    char text[512];
} lki_message;

enum { LKI_OPTIONS_MAX = 256 }; /* maximum number of rows of a table */

/* The sources of option values: the config file and the command line. */
typedef struct {
    char       *text; /* memory of string values; the caller frees it last */
    const char *path; /* NULL: no config file */
    unsigned    lines[LKI_OPTIONS_MAX]; /* by row: line of the option in the config file; 0: none */
    const char *given[LKI_OPTIONS_MAX]; /* by row: value as written in the file or on the command
                                         * line; NULL: not given */
} lki_config_file;

typedef enum {
    LKI_OPTION_END = 0,
    LKI_OPTION_FLAG,       /* bool; --name and --no-name */
    LKI_OPTION_STRING,     /* const char *, not empty; parsed by read() if there is one */
    LKI_OPTION_U32,        /* uint32_t in [low, high] */
    LKI_OPTION_U64,        /* uint64_t in [low, high] */
    LKI_OPTION_U32_SPAN,   /* uint32_t in [low, high], or MIN:MAX with MIN at count_offset */
    LKI_OPTION_REAL,       /* double in `range` */
    LKI_OPTION_FLOAT,      /* float in `range` */
    LKI_OPTION_REAL_PAIR,  /* double[2], written A,B, each in `range` */
    LKI_OPTION_MEBIBYTES,  /* size_t in bytes, written in MiB; `range` is in MiB */
    LKI_OPTION_SECONDS,    /* uint32_t in milliseconds, written in seconds; `range` is in seconds */
    LKI_OPTION_U32_LIST,   /* uint32_t[list_max] and a uint32_t count at count_offset */
    LKI_OPTION_U64_LIST,   /* uint64_t[list_max] and a uint32_t count at count_offset */
    LKI_OPTION_CHOICE,     /* int (an enum): `value` of the entry of `choices` with this name */
    LKI_OPTION_NAME,       /* const char *: one of the names in `choices` */
    LKI_OPTION_CUSTOM,     /* parsed by read() */
    LKI_OPTION_CONFIG,     /* lki_config_file; the option is --config */
    LKI_OPTION_LATER,      /* not supported in this version; `help` is the message */
    LKI_OPTION_POSITIONAL, /* const char *: the next argument that is not an option */
    LKI_OPTION_REST,       /* char **: all arguments from the first one that is not an option */
} lki_option_type;

/* A named value. `later` (or NULL): the message that refuses a name that is not implemented.
 * `label`: the label of a run with this value; the help says it unless it is exact. */
typedef struct {
    const char *name;
    int         value;
    const char *later;
    lk_label    label;
} lki_choice;

/* The hosts for which an option is set, and its influence on the result; see train/options.def. */
typedef enum {
    LKI_SCOPE_JOB = 0, /* equal on all hosts; no influence on the result */
    LKI_SCOPE_RESULT,  /* equal on all hosts; decides the result */
    LKI_SCOPE_RULE,    /* equal on all hosts; may give the run another label */
    LKI_SCOPE_HOST,    /* may differ between hosts */
    LKI_SCOPE_FILE,    /* the path of a file; may differ between hosts */
} lki_scope;

typedef struct {
    double      low, high;
    bool        low_open, high_open, whole;
    const char *text; /* description for messages: "a number above 0" */
} lki_range;

extern const lki_range lki_range_positive, lki_range_not_negative, lki_range_fraction,
    lki_range_unit_open, lki_range_share, lki_range_not_below_1;

enum { LKI_NEED_MAX = 8 };

/* A condition under which an option has an effect: another option is given or, if `values` has
 * entries, has one of these values.  An option without effect is an error. */
typedef struct {
    const char *name;                     /* name of an option or positional argument in the
                                           * table */
    const char *values[LKI_NEED_MAX + 1]; /* ends with NULL */
} lki_need;

typedef struct {
    const char       *name;
    lki_option_type   type;
    const char       *value;  /* placeholder for the value in help: "N", "FILE" */
    size_t            offset; /* offset of the field in the command's struct */
    const char       *preset; /* the default, as help shows it; NULL: none */
    const char       *help;
    const char       *group;  /* heading of this row and the rows below it; NULL: the heading of the
                               * row above */
    const char       *alias;  /* an earlier name, still accepted; or NULL */
    const char       *alias_value; /* value for the alias if the alias was a flag; or NULL */
    lki_scope         scope;
    char              letter; /* accepted as -n, too; 0: none */
    bool              required;
    const char       *unless;         /* `required` options: not if this other option is given */
    bool              value_optional; /* --name may have no value, which is read as "" */
    lk_label          label;          /* of a run with this option; choices have their own */
    bool              once;           /* may not be repeated on the command line */
    bool              common;         /* listed by a short --help */
    bool              inherited;      /* a row from lki_command.inherits */
    const char       *otherwise; /* `required` options: default in commands that do not require
                                  * them */
    uint64_t          low, high;
    const lki_range  *range;
    size_t            count_offset;
    uint32_t          list_max;
    const lki_choice *choices; /* ends with an entry whose name is NULL */
    bool (*read)(const char *text, void *options, lki_message *error);
    const lki_need *needs; /* condition under which the option has an effect; NULL: none */
} lki_option;

/* clang-format off */
#define LKI_OPTIONS_END { .type = LKI_OPTION_END }
#define LKI_FLAG(name_, at_, help_)                                                              \
    { .name = name_, .type = LKI_OPTION_FLAG, .offset = at_, .help = help_ }
#define LKI_STRING(name_, value_, at_, preset_, help_)                                           \
    { .name = name_, .type = LKI_OPTION_STRING, .value = value_, .offset = at_,                  \
      .preset = preset_, .help = help_ }
#define LKI_U32(name_, value_, at_, low_, high_, preset_, help_)                                 \
    { .name = name_, .type = LKI_OPTION_U32, .value = value_, .offset = at_, .low = low_,        \
      .high = high_, .preset = preset_, .help = help_ }
#define LKI_U64(name_, value_, at_, low_, high_, preset_, help_)                                 \
    { .name = name_, .type = LKI_OPTION_U64, .value = value_, .offset = at_, .low = low_,        \
      .high = high_, .preset = preset_, .help = help_ }
#define LKI_REAL(name_, value_, at_, range_, preset_, help_)                                     \
    { .name = name_, .type = LKI_OPTION_REAL, .value = value_, .offset = at_, .range = range_,   \
      .preset = preset_, .help = help_ }
#define LKI_CHOICE(type_, name_, value_, at_, choices_, preset_, help_)                          \
    { .name = name_, .type = type_, .value = value_, .offset = at_, .choices = choices_,         \
      .preset = preset_, .help = help_ }
#define LKI_LATER(name_, why_) { .name = name_, .type = LKI_OPTION_LATER, .help = why_ }
#define LKI_POSITIONAL(name_, at_, required_, help_)                                             \
    { .name = name_, .type = LKI_OPTION_POSITIONAL, .offset = at_, .required = required_,        \
      .help = help_ }
/* The rows for the source of a trained model: RUN, or --init DIR in its place. */
#define LKI_TRAINED(name_, path_, init_, adapter_)                                               \
    { .name = name_, .type = LKI_OPTION_POSITIONAL, .offset = path_, .required = true,           \
      .unless = "init",                                                                          \
      .help = "the directory of a run (uses the newest checkpoint), a checkpoint, a folder as "  \
              "transformers writes it, or a .safetensors file" },                                \
    { .name = "init", .type = LKI_OPTION_STRING, .value = "DIR", .offset = init_,                \
      .preset = "none", .once = true,                                                            \
      .help = "a folder as transformers writes it, in place of " name_ },                        \
    LKI_STRING("adapter", "DIR", adapter_, "none",                                               \
               "adapters for such a folder: a folder as PEFT writes it")
/* clang-format on */

typedef struct lki_command lki_command;

/* A subcommand.  argv[0] of its main function is the subcommand's name.  main returns the exit
 * status. */
struct lki_command {
    const char       *name;
    const char       *summary;  /* a few words, lower case */
    const char       *usage;    /* the arguments, as help prints them after "lockstep NAME" */
    const char       *about;    /* one or two paragraphs, lines under 90 columns */
    const char       *examples; /* complete command lines, one per line */
    const lki_option *options;
    const char       *inherits; /* a command whose options are also accepted; NULL: none */
    const char *const *left_out; /* headings of the groups that are not inherited, ending with NULL;
                                  * NULL: as in `inherits` */
    int (*main)(int argc, char **argv);
    const char       *other_name; /* also accepted; or NULL */
    /* Chooses values of options that are not given, which the needs of others are checked against.
     * May be NULL. */
    void (*choose)(const lki_command *command, void *target);
    /* Finds what is wrong with the options beyond their table, so that it is reported together with
     * all other errors.  Writes at most `most` messages, and returns their number.  May be NULL. */
    size_t (*check)(const lki_command *command, const void *target, lki_message *errors,
                    size_t most);
};

/* Reads argv[1..] into `target`, the zeroed struct of the command.  Returns a negative number to
 * continue, or an exit status: 0 after --help, LKI_EXIT_USAGE after errors, which are all printed.
 * Strings point into argv or into the config file's text, which the caller must free in all
 * cases. */
int lki_options_parse(const lki_command *command, int argc, char **argv, void *target);

/* Returns true if users write the option's name: it is neither a positional argument nor the rest
 * of the command line. */
bool lki_is_named(const lki_option *option);

/* Finds an option by its name or by an earlier name.  Returns NULL if there is none. */
const lki_option *lki_option_find(const lki_command *command, const char *name, size_t length);

/* Prints "lockstep NAME: ..." and a hint at --help on stderr.  Returns LKI_EXIT_USAGE. */
int lki_usage_error(const lki_command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Takes the value of --init, which may be NULL, in place of the positional `path` (LKI_TRAINED).
 * Returns a negative number or, if both are given, prints an error and returns the exit status. */
int lki_take_init(const lki_command *command, const char **path, const char *init);

/* Checks the path of a trained model: it must be no URL, and the configuration of a Hugging Face
 * folder must be that of a model that is supported.  Returns a negative number, or prints an error
 * and returns the exit status, which is the same for all commands. */
int lki_check_trained(const lki_command *command, const char *path);

/* Prints an error like lki_usage_error() about options that may be in the config file `file` (NULL:
 * no file). */
int lki_usage_error_of(const lki_command *command, const lki_config_file *file, const char *format,
                       ...) __attribute__((format(printf, 3, 4)));

/* Copies a message.  Replaces "--lr" by "run.toml:3: lr", for each option set in the config
 * file. */
void lki_name_lines(lki_message *out, const lki_command *command, const lki_config_file *file,
                    const char *text);

/* Prints the help of a command.  `topic` selects all options ("all") or those of a group: a word of
 * its heading, or the heading with hyphens.  A NULL `topic` selects the short list if the table has
 * one.  `model` (or NULL) excludes options of other models from the short list.  Prints nothing and
 * returns false if there is no such group. */
bool lki_options_help(const lki_command *command, const char *topic, const char *model, FILE *out);

/* Returns true if --help prints a short list, and --help=all prints all options. */
bool lki_options_are_many(const lki_command *command);

/* Writes the headings of a command's groups as "model, data, ...". */
void lki_options_groups(const lki_command *command, lki_message *out);

/* Writes the man page of a command in roff. */
void lki_options_man(const lki_command *command, FILE *out);

/* Writes the name of the man page of a command in roff. */
void lki_man_name(const char *command, FILE *out);

/* Returns the entry of names[count] that is most similar to `word`; NULL if none is similar. */
const char *lki_suggest(const char *word, const char *const *names, size_t count);

/* Returns the name of the command's option that is most similar to `name`; NULL if none is. */
const char *lki_suggest_option(const lki_command *command, const char *name);

/* Does the same for --WORD, which may also mean --help, an option of every command. */
const char *lki_suggest_long(const lki_command *command, const char *word);

#endif
