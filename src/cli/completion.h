/* cli/completion.h -- scripts that complete command lines in bash, zsh and fish.
 *
 * A script is a fixed program and a table.  The table has a row for each option and each positional
 * argument of each command.  A row that several commands have, such as those of train and plan, is
 * written once, with the commands that have it.
 */
#ifndef LKI_CLI_COMPLETION_H
#define LKI_CLI_COMPLETION_H

#include "cli/options.h"

enum { LKI_COMPLETION_COMMANDS = 32 }; /* bits of a set of commands */

/* The proposals for a value or a positional argument. */
typedef enum {
    LKI_FILL_FLAG,     /* the option has no value */
    LKI_FILL_OPTIONAL, /* the option has a value only if it is written --name=VALUE */
    LKI_FILL_NOTHING,
    LKI_FILL_WORDS,
    LKI_FILL_MODEL, /* names of models */
    LKI_FILL_MODEL_OR_RUN,
    LKI_FILL_FILES,
    LKI_FILL_FOLDERS,
    LKI_FILL_SOURCE,  /* files, also behind KIND: */
    LKI_FILL_PROGRAM, /* a program and its arguments */
} lki_fill;

typedef struct {
    const lki_option *option;
    lki_fill          fill;
    unsigned          place;    /* of a positional argument, from 1; 0: an option */
    uint32_t          commands; /* bit k: command k has this row */
} lki_completion_row;

typedef struct {
    const lki_command *const *commands;
    size_t                    command_count;
    lki_option               *copies[LKI_COMPLETION_COMMANDS]; /* rows of commands that inherit */
    lki_completion_row       *rows;
    size_t                    count;
} lki_completion;

/* Writes the script for `shell`.  A command whose name has two words belongs to the command that
 * its first word names.  There are at most LKI_COMPLETION_COMMANDS.  Returns LK_OK, LK_EINVAL if
 * there is no such shell, or LK_ENOMEM. */
LK_NODISCARD lk_status lki_completion_write(const char *shell, const lki_command *const *commands,
                                            size_t count, FILE *out);

/* The scripts of the three shells. */
void lki_completion_bash(const lki_completion *c, FILE *out);
void lki_completion_zsh(const lki_completion *c, FILE *out);
void lki_completion_fish(const lki_completion *c, FILE *out);

/* The programs, from src/cli/completion. */
extern const char lki_completion_program_bash[], lki_completion_program_zsh[],
    lki_completion_program_fish[];

/* ---- For the functions above ------------------------------------------------------------- */

/* Writes the names of the commands in a set, with hyphens in place of spaces in a name. */
void lki_completion_set(const lki_completion *c, uint32_t commands, FILE *out);

/* Writes the words that are proposed for a row. */
void lki_completion_words(const lki_completion *c, const lki_completion_row *row, FILE *out);

/* Writes the models for which a row has an effect; nothing if it has an effect for all. */
void lki_completion_models(const lki_completion_row *row, FILE *out);

/* Writes a text up to its first semicolon, with a backslash before each character of `special`.
 * `quote` is written in place of each single quote. */
void lki_completion_text(const char *text, const char *special, const char *quote, FILE *out);

#endif
