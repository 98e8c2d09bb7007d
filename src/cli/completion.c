/* completion.c -- collects the rows of all commands, and writes the script for one shell. */
#include "cli/completion.h"

#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/train.h"

static bool is_argument(const lki_option *option)
{
    return option->type == LKI_OPTION_POSITIONAL || option->type == LKI_OPTION_REST;
}

/* ---- Proposals --------------------------------------------------------------------------- */

static lki_fill fill_of_argument(const lki_option *option)
{
    if (strcmp(option->name, "MODEL") == 0)
        return option->inherited ? LKI_FILL_MODEL_OR_RUN : LKI_FILL_MODEL;
    if (strcmp(option->name, "COMMAND") == 0 || strcmp(option->name, "OP") == 0 ||
        option->choices != NULL)
        return LKI_FILL_WORDS;
    if (strcmp(option->name, "GROUP") == 0)
        return LKI_FILL_NOTHING;
    return strncmp(option->name, "PROGRAM", 7) == 0 ? LKI_FILL_PROGRAM : LKI_FILL_FILES;
}

static lki_fill fill_of(const lki_option *option)
{
    if (is_argument(option))
        return fill_of_argument(option);
    if (option->type == LKI_OPTION_FLAG)
        return LKI_FILL_FLAG;
    if (option->value_optional)
        return LKI_FILL_OPTIONAL;
    if (option->choices != NULL)
        return LKI_FILL_WORDS;
    if (strcmp(option->value, "SOURCE") == 0)
        return LKI_FILL_SOURCE;
    if (strcmp(option->value, "DIR") == 0)
        return LKI_FILL_FOLDERS;
    return strstr(option->value, "FILE") != NULL || strstr(option->value, "DIR") != NULL
               ? LKI_FILL_FILES
               : LKI_FILL_NOTHING;
}

static void write_word(const char *word, bool *any, FILE *out)
{
    fprintf(out, "%s%s", *any ? " " : "", word);
    *any = true;
}

void lki_completion_words(const lki_completion *c, const lki_completion_row *row, FILE *out)
{
    const lki_option *option = row->option;
    bool              any    = false;
    if (row->fill == LKI_FILL_MODEL || row->fill == LKI_FILL_MODEL_OR_RUN) {
        for (uint32_t i = 0; lk_model_builtin(i) != NULL; i++)
            write_word(lk_model_builtin(i), &any, out);
    } else if (option->choices != NULL) {
        for (const lki_choice *choice = option->choices; choice->name != NULL; choice++)
            if (choice->later == NULL)
                write_word(choice->name, &any, out);
    } else if (strcmp(option->name, "OP") == 0) {
        for (const bench_kind *kind = bench_kinds; kind->name != NULL; kind++)
            write_word(kind->name, &any, out);
        for (size_t i = 0; i < c->command_count; i++)
            if (strncmp(c->commands[i]->name, "bench ", 6) == 0)
                write_word(c->commands[i]->name + 6, &any, out);
    } else if (row->fill == LKI_FILL_WORDS) {
        for (size_t i = 0; i < c->command_count; i++)
            if (strchr(c->commands[i]->name, ' ') == NULL)
                write_word(c->commands[i]->name, &any, out);
    }
}

void lki_completion_models(const lki_completion_row *row, FILE *out)
{
    const lki_need *needs = row->option->needs;
    bool            any   = false;
    if (needs == NULL || strcmp(needs->name, "MODEL") != 0)
        return;
    for (const char *const *model = needs->values; *model != NULL; model++)
        write_word(*model, &any, out);
}

void lki_completion_set(const lki_completion *c, uint32_t commands, FILE *out)
{
    bool any = false;
    for (size_t i = 0; i < c->command_count; i++) {
        if ((commands >> i & 1) == 0)
            continue;
        if (any)
            fputc(' ', out);
        for (const char *name = c->commands[i]->name; *name != '\0'; name++)
            fputc(*name == ' ' ? '-' : *name, out);
        any = true;
    }
}

void lki_completion_text(const char *text, const char *special, const char *quote, FILE *out)
{
    for (; *text != '\0' && *text != ';'; text++) {
        if (*text == '\'')
            fputs(quote, out);
        else
            fprintf(out, "%s%c", strchr(special, *text) != NULL ? "\\" : "", *text);
    }
}

/* ---- Rows -------------------------------------------------------------------------------- */

static const lki_command *find(const lki_completion *c, const char *name)
{
    for (size_t i = 0; i < c->command_count; i++)
        if (strcmp(c->commands[i]->name, name) == 0)
            return c->commands[i];
    return NULL;
}

/* Returns true if two rows propose the same.  Copies of a row share its strings. */
static bool is_same(const lki_completion_row *a, const lki_completion_row *b)
{
    const lki_option *x = a->option, *y = b->option;
    return a->fill == b->fill && a->place == b->place && strcmp(x->name, y->name) == 0 &&
           strcmp(x->help, y->help) == 0 && x->letter == y->letter && x->choices == y->choices &&
           x->needs == y->needs;
}

/* Adds a row of one command, or the command to an equal row. */
static void add_row(lki_completion *c, lki_completion_row row)
{
    for (size_t i = 0; i < c->count; i++)
        if (is_same(&c->rows[i], &row)) {
            c->rows[i].commands |= row.commands;
            return;
        }
    c->rows[c->count++] = row;
}

/* Returns the rows of command k, also those that it inherits; NULL if out of memory. */
static const lki_option *rows_of(lki_completion *c, size_t k)
{
    const lki_command *command = c->commands[k], *base;
    if (command->inherits == NULL)
        return command->options;
    base         = find(c, command->inherits);
    c->copies[k] = lki_train_rows(command->left_out != NULL ? command->left_out : base->left_out,
                                  command->options, true);
    return c->copies[k];
}

/* Adds the rows of command k.  Its own positional arguments replace the inherited one. */
static bool collect(lki_completion *c, size_t k)
{
    const lki_option *rows = rows_of(c, k);
    unsigned          place = 0;
    bool              own   = false;
    for (const lki_option *o = rows; o != NULL && o->type != LKI_OPTION_END; o++)
        own = own || (is_argument(o) && !o->inherited);
    for (const lki_option *o = rows; o != NULL && o->type != LKI_OPTION_END; o++) {
        if (o->type == LKI_OPTION_LATER || (is_argument(o) && o->inherited && own))
            continue;
        place += is_argument(o);
        add_row(c, (lki_completion_row){ .option = o, .fill = fill_of(o),
                                         .place = is_argument(o) ? place : 0,
                                         .commands = UINT32_C(1) << k });
    }
    return rows != NULL;
}

/* ---- Scripts ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*write)(const lki_completion *c, FILE *out);
} shells[] = {
    { "bash", lki_completion_bash },
    { "zsh", lki_completion_zsh },
    { "fish", lki_completion_fish },
};

/* Writes the script, once all rows have been collected. */
static lk_status write_script(const lki_completion *c, const char *shell, FILE *out)
{
    for (size_t i = 0; i < sizeof shells / sizeof shells[0]; i++)
        if (strcmp(shells[i].name, shell) == 0) {
            shells[i].write(c, out);
            return LK_OK;
        }
    return LK_EINVAL;
}

lk_status lki_completion_write(const char *shell, const lki_command *const *commands, size_t count,
                               FILE *out)
{
    lki_completion c    = { .commands = commands, .command_count = count };
    c.rows              = calloc(count * LKI_OPTIONS_MAX, sizeof *c.rows);
    bool      good      = c.rows != NULL;
    for (size_t k = 0; good && k < count; k++)
        good = collect(&c, k);
    lk_status status = good ? write_script(&c, shell, out) : LK_ENOMEM;
    for (size_t k = 0; k < count; k++)
        free(c.copies[k]);
    free(c.rows);
    return status;
}
