/* cli/options.h -- one table of options a command drives everything that is said about them.
 *
 * A command describes itself once: its options with type, range, place in a plain struct,
 * default and a sentence of help.  The same rows parse the command line and the config file,
 * print --help and make the man page, so they cannot disagree.
 *
 *     typedef struct { uint32_t workers; bool quiet; const char *path; } my_options;
 *     #define AT(field) offsetof(my_options, field)
 *     static const lki_option options[] = {
 *         LKI_POSITIONAL("PATH", AT(path), true, "what to look at"),
 *         LKI_U32("workers", "N", AT(workers), 1, 1024, "1", "worker processes"),
 *         LKI_FLAG("quiet", AT(quiet), "say nothing"),
 *         LKI_OPTIONS_END,
 *     };
 *     const lki_command lki_command_my = { "my", "does this", ..., options, main };
 *
 * and its main begins with
 *
 *     my_options o = { 0 };
 *     int done = lki_options_parse(&lki_command_my, argc, argv, &o);
 *     if (done >= 0)
 *         return done;
 *
 * Strictness: an unknown option, a value of the wrong type or out of range is a usage error (exit
 * 2) that names the option, the value and what is allowed.  The last of a repeated option wins.
 */
#ifndef LKI_CLI_OPTIONS_H
#define LKI_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* What commands exit with, besides 0 (design: the command line). */
enum { LKI_EXIT_FAILURE = 1, LKI_EXIT_USAGE = 2, LKI_EXIT_NONFINITE = 3, LKI_EXIT_STOPPED = 75 };

typedef struct {
    char text[512];
} lki_message;

enum { LKI_OPTIONS_MAX = 160 }; /* rows of a table */

/* What a config file has given, and a command line. */
typedef struct {
    char       *text; /* what strings point into: the caller's to free() after them */
    const char *path; /* NULL: there was none */
    unsigned    lines[LKI_OPTIONS_MAX]; /* where the file gives an option, by its row; 0: somebody
                                         * else does, or nobody */
    const char *given[LKI_OPTIONS_MAX]; /* the value of an option as somebody has written it, by its
                                         * row, whether there is a file or not; NULL: nobody has */
} lki_config_file;

typedef enum {
    LKI_OPTION_END = 0,
    LKI_OPTION_FLAG,       /* bool; --name and --no-name */
    LKI_OPTION_STRING,     /* const char *, not empty */
    LKI_OPTION_U32,        /* uint32_t in [low, high] */
    LKI_OPTION_U64,        /* uint64_t in [low, high] */
    LKI_OPTION_U32_SPAN,   /* uint32_t in [low, high], or MIN:MAX: MIN goes to count_offset */
    LKI_OPTION_REAL,       /* double in `range` */
    LKI_OPTION_FLOAT,      /* float in `range` */
    LKI_OPTION_REAL_PAIR,  /* double[2], written A,B, each in `range` */
    LKI_OPTION_MEBIBYTES,  /* size_t in bytes, written in MiB; `range` is of what is written */
    LKI_OPTION_SECONDS,    /* uint32_t in milliseconds, written in seconds; likewise */
    LKI_OPTION_U32_LIST,   /* uint32_t[list_max] and a uint32_t count at count_offset */
    LKI_OPTION_U64_LIST,   /* uint64_t[list_max], likewise */
    LKI_OPTION_CHOICE,     /* int (an enum): the value of the row of `choices` that is named */
    LKI_OPTION_NAME,       /* const char *: one of the names in `choices` */
    LKI_OPTION_CUSTOM,     /* read() decides */
    LKI_OPTION_CONFIG,     /* lki_config_file */
    LKI_OPTION_LATER,      /* known, but not in this version: refused with `help` */
    LKI_OPTION_POSITIONAL, /* const char *: the next argument that is no option */
    LKI_OPTION_REST,       /* char **: all arguments from the first that is no option */
} lki_option_type;

/* `later` (or NULL): the sentence that refuses a name which is known but not there yet. */
typedef struct {
    const char *name;
    int         value;
    const char *later;
} lki_choice;

typedef struct {
    double      low, high;
    bool        low_open, high_open, whole;
    const char *text; /* "a number above 0" */
} lki_range;

extern const lki_range lki_range_positive, lki_range_not_negative, lki_range_fraction,
    lki_range_unit_open, lki_range_share;

enum { LKI_NEED_MAX = 5 };

/* What an option is without effect without: another option, given (no values) or with one of these
 * values.  An option that would do nothing is a misunderstanding, not something to ignore. */
typedef struct {
    const char *name;                     /* of an option or positional of the same table */
    const char *values[LKI_NEED_MAX + 1]; /* the last is NULL */
} lki_need;

typedef struct {
    const char       *name;
    lki_option_type   type;
    const char       *value;  /* what stands for the value in help: "N", "FILE" */
    size_t            offset; /* of the field in the command's struct */
    const char       *preset; /* the default as help says it; NULL: none */
    const char       *help;
    const char       *group;  /* heading above this row; NULL: none */
    char              letter; /* -n as well as --name; 0: none */
    bool              required;
    bool              value_optional; /* custom: --name alone reads "" */
    bool              once;           /* stands once on a command line: the last does not win */
    uint64_t          low, high;
    const lki_range  *range;
    size_t            count_offset;
    uint32_t          list_max;
    const lki_choice *choices; /* ends with a row whose name is NULL */
    bool (*read)(const char *text, void *options, lki_message *error);
    const lki_need *needs; /* refused without this; NULL: nothing */
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
/* clang-format on */

/* A subcommand.  `argv[0]` of its main is its name; what main returns is the exit status. */
typedef struct {
    const char       *name;
    const char       *summary;  /* a few words, lower case */
    const char       *usage;    /* after "lockstep NAME" */
    const char       *about;    /* a paragraph or two of prose, lines under 90 columns */
    const char       *examples; /* whole command lines, one a line */
    const lki_option *options;
    int (*main)(int argc, char **argv);
} lki_command;

/* Reads argv[1..] into `target`, a zeroed struct of the command.  A negative result says: go on.
 * Otherwise it is the exit status: 0 after --help, LKI_EXIT_USAGE after the error was printed.
 * Strings point into argv, or into the config file's text, which is to be freed whatever was
 * returned. */
int lki_options_parse(const lki_command *command, int argc, char **argv, void *target);

/* Prints "lockstep NAME: ..." and where to read on to stderr; returns LKI_EXIT_USAGE. */
int lki_usage_error(const lki_command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same, about options that may have come from a file (NULL: from none). */
int lki_usage_error_of(const lki_command *command, const lki_config_file *file, const char *format,
                       ...) __attribute__((format(printf, 3, 4)));

/* A message with "run.toml:3: lr" for each "--lr" that the file has given. */
void lki_name_lines(lki_message *out, const lki_command *command, const lki_config_file *file,
                    const char *text);

/* The help and the man page (roff) of a command. */
void lki_options_help(const lki_command *command, FILE *out);
void lki_options_man(const lki_command *command, FILE *out);

/* The name among `names` that `word` was probably meant to be, or NULL.  names[count]. */
const char *lki_suggest(const char *word, const char *const *names, size_t count);

#endif
