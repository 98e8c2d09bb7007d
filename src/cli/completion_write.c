/* completion_write.c -- writes the tables of the scripts for bash, zsh and fish. */
#include <string.h>

#include "cli/completion.h"

static bool is_nested(const lki_command *command)
{
    return strchr(command->name, ' ') != NULL;
}

/* Writes the names of the commands of two words, or all others. */
static void write_commands(const lki_completion *c, bool nested, FILE *out)
{
    uint32_t commands = 0;
    for (size_t k = 0; k < c->command_count; k++)
        if (is_nested(c->commands[k]) == nested)
            commands |= UINT32_C(1) << k;
    lki_completion_set(c, commands, out);
}

static void write_model_names(const lki_completion *c, FILE *out)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->rows[i].fill == LKI_FILL_MODEL) {
            lki_completion_words(c, &c->rows[i], out);
            return;
        }
}

/* Returns true if a row begins a section: other commands than those of the row before have it. */
static bool begins_section(const lki_completion *c, size_t i)
{
    return i == 0 || c->rows[i].commands != c->rows[i - 1].commands;
}

/* Returns true if a row has a contrary that is proposed: --no-NAME. */
static bool has_contrary(const lki_completion_row *row)
{
    return row->fill == LKI_FILL_FLAG && strncmp(row->option->name, "no-", 3) != 0;
}

/* ---- bash -------------------------------------------------------------------------------- */

static const char *const kinds[] = {
    [LKI_FILL_FLAG] = "flag",     [LKI_FILL_OPTIONAL] = "optional",
    [LKI_FILL_NOTHING] = "value", [LKI_FILL_WORDS] = "words",
    [LKI_FILL_MODEL] = "model",   [LKI_FILL_MODEL_OR_RUN] = "model-or-run",
    [LKI_FILL_FILES] = "files",   [LKI_FILL_FOLDERS] = "folders",
    [LKI_FILL_SOURCE] = "source", [LKI_FILL_PROGRAM] = "program",
};

void lki_completion_bash(const lki_completion *c, FILE *out)
{
    fputs("# Completes lockstep in bash; written by `lockstep completion bash`.\n\n"
          "_lockstep_commands='", out);
    write_commands(c, false, out);
    fputs("'\n_lockstep_nested='", out);
    write_commands(c, true, out);
    fputs("'\n_lockstep_models='", out);
    write_model_names(c, out);
    fputs("'\n_lockstep_table='", out);
    for (size_t i = 0; i < c->count; i++) {
        const lki_completion_row *row = &c->rows[i];
        if (begins_section(c, i)) {
            fputs("@", out);
            lki_completion_set(c, row->commands, out);
            fputs("\n", out);
        }
        lki_completion_models(row, out);
        if (row->option->letter != 0)
            fprintf(out, "|-%c --%s|%s|", row->option->letter, row->option->name, kinds[row->fill]);
        else
            fprintf(out, "|%s%s|%s|", row->place > 0 ? "" : "--", row->option->name,
                    kinds[row->fill]);
        if (has_contrary(row))
            fprintf(out, "--no-%s", row->option->name);
        lki_completion_words(c, row, out);
        fputs("\n", out);
    }
    fputs("'\n", out);
    fputs(lki_completion_program_bash, out);
}

/* ---- zsh --------------------------------------------------------------------------------- */

/* Writes how _arguments completes the value of a row. */
static void write_zsh_action(const lki_completion *c, const lki_completion_row *row, FILE *out)
{
    static const char *const actions[] = {
        [LKI_FILL_NOTHING] = " ",
        [LKI_FILL_MODEL_OR_RUN] = "_lockstep_model_or_run",
        [LKI_FILL_FILES] = "_files",
        [LKI_FILL_FOLDERS] = "_files -/",
        [LKI_FILL_SOURCE] = "_lockstep_source",
        [LKI_FILL_PROGRAM] = "_normal",
    };
    if (row->fill != LKI_FILL_WORDS && row->fill != LKI_FILL_MODEL) {
        fputs(actions[row->fill], out);
        return;
    }
    fputs("(", out);
    lki_completion_words(c, row, out);
    fputs(")", out);
}

/* Writes an argument of _arguments for an option, by its name or, if `letter`, by its letter. */
static void write_zsh_option(const lki_completion *c, const lki_completion_row *row, bool letter,
                             FILE *out)
{
    const lki_option *option = row->option;
    const bool        valued = row->fill != LKI_FILL_FLAG && row->fill != LKI_FILL_OPTIONAL;
    if (option->letter != 0)
        fprintf(out, "(-%c --%s)", option->letter, option->name);
    if (letter)
        fprintf(out, "-%c", option->letter);
    else
        fprintf(out, "--%s%s", option->name,
                valued ? "=" : row->fill == LKI_FILL_OPTIONAL ? "=-" : "");
    fputs("[", out);
    lki_completion_text(option->help, "[]\\:", "'\\''", out);
    fputs("]", out);
    if (row->fill == LKI_FILL_FLAG)
        return;
    fputs(valued ? ":" : "::", out);
    lki_completion_text(option->value, ":\\", "'\\''", out);
    fputs(":", out);
    if (valued)
        write_zsh_action(c, row, out);
    else
        fputs(" ", out);
}

static void write_zsh_argument(const lki_completion *c, const lki_completion_row *row, FILE *out)
{
    if (row->fill == LKI_FILL_PROGRAM)
        fputs("*::", out);
    else if (row->option->type == LKI_OPTION_REST)
        fputs("*:", out);
    else
        fprintf(out, "%u:", row->place);
    lki_completion_text(row->option->name, ":\\", "'\\''", out);
    fputs(":", out);
    write_zsh_action(c, row, out);
}

static void write_zsh_row(const lki_completion *c, const lki_completion_row *row, FILE *out)
{
    fputs("    '", out);
    lki_completion_models(row, out);
    fputs("' '", out);
    if (row->place > 0)
        write_zsh_argument(c, row, out);
    else
        write_zsh_option(c, row, false, out);
    fputs("'\n", out);
    if (row->place == 0 && row->option->letter != 0) {
        fputs("    '' '", out);
        write_zsh_option(c, row, true, out);
        fputs("'\n", out);
    }
    if (has_contrary(row)) {
        fprintf(out, "    --no- '--no-%s[not\\: ", row->option->name);
        lki_completion_text(row->option->help, "[]\\:", "'\\''", out);
        fputs("]'\n", out);
    }
}

void lki_completion_zsh(const lki_completion *c, FILE *out)
{
    fputs("#compdef lockstep\n"
          "# Completes lockstep in zsh; written by `lockstep completion zsh`.\n\n"
          "_lockstep_commands=(\n", out);
    for (size_t k = 0; k < c->command_count; k++) {
        if (is_nested(c->commands[k]))
            continue;
        fprintf(out, "    '%s:", c->commands[k]->name);
        lki_completion_text(c->commands[k]->summary, "\\", "'\\''", out);
        fputs("'\n", out);
    }
    fputs(")\n_lockstep_nested=(", out);
    write_commands(c, true, out);
    fputs(")\n_lockstep_models='", out);
    write_model_names(c, out);
    fputs("'\n_lockstep_table=(\n", out);
    for (size_t i = 0; i < c->count; i++) {
        if (begins_section(c, i)) {
            fputs("    @ '", out);
            lki_completion_set(c, c->rows[i].commands, out);
            fputs("'\n", out);
        }
        write_zsh_row(c, &c->rows[i], out);
    }
    fputs(")\n", out);
    fputs(lki_completion_program_zsh, out);
}

/* ---- fish -------------------------------------------------------------------------------- */

static void write_fish_value(const lki_completion *c, const lki_completion_row *row, FILE *out)
{
    switch (row->fill) {
    case LKI_FILL_FLAG:
    case LKI_FILL_OPTIONAL: return;
    case LKI_FILL_MODEL_OR_RUN:
    case LKI_FILL_FILES:
    case LKI_FILL_SOURCE: fputs(row->place > 0 ? " -F" : " -r -F", out); break;
    case LKI_FILL_FOLDERS: fputs(" -x -a '(__fish_complete_directories)'", out); return;
    case LKI_FILL_PROGRAM: fputs(" -F -a '(__fish_complete_command)'", out); return;
    case LKI_FILL_NOTHING:
    case LKI_FILL_WORDS:
    case LKI_FILL_MODEL: fputs(row->place > 0 ? "" : " -x", out);
    }
    if (row->fill == LKI_FILL_WORDS || row->fill == LKI_FILL_MODEL ||
        row->fill == LKI_FILL_MODEL_OR_RUN) {
        fputs(" -a '", out);
        lki_completion_words(c, row, out);
        fputs("'", out);
    }
}

static void write_fish_row(const lki_completion *c, const lki_completion_row *row, FILE *out)
{
    const lki_option *option = row->option;
    const bool        model  = option->needs != NULL && strcmp(option->needs->name, "MODEL") == 0;
    fputs("complete -c lockstep -n \"$is", out);
    if (row->fill == LKI_FILL_MODEL || row->fill == LKI_FILL_MODEL_OR_RUN || model)
        fputs("; and __lockstep_fits ", out);
    lki_completion_models(row, out);
    if (row->place > 1)
        fprintf(out, "; and __lockstep_at %u", row->place);
    fputs("\"", out);
    if (row->place == 0)
        fprintf(out, " -l %s", option->name);
    if (option->letter != 0)
        fprintf(out, " -s %c", option->letter);
    write_fish_value(c, row, out);
    fputs(" -d '", out);
    lki_completion_text(option->help, "\\", "\\'", out);
    fputs("'\n", out);
    if (has_contrary(row)) {
        fprintf(out, "complete -c lockstep -n \"$is; and __lockstep_negates\" -l no-%s -d 'not: ",
                option->name);
        lki_completion_text(option->help, "\\", "\\'", out);
        fputs("'\n", out);
    }
}

void lki_completion_fish(const lki_completion *c, FILE *out)
{
    fputs("# Completes lockstep in fish; written by `lockstep completion fish`.\n\n"
          "set -g __lockstep_nested ", out);
    write_commands(c, true, out);
    fputs("\nset -g __lockstep_models ", out);
    write_model_names(c, out);
    fputs("\n", out);
    fputs(lki_completion_program_fish, out);
    fputs("\ncomplete -c lockstep -f\n", out);
    for (size_t k = 0; k < c->command_count; k++) {
        if (is_nested(c->commands[k]))
            continue;
        fprintf(out, "complete -c lockstep -n 'not __lockstep_at 1' -a %s -d '",
                c->commands[k]->name);
        lki_completion_text(c->commands[k]->summary, "\\", "\\'", out);
        fputs("'\n", out);
    }
    fputs("complete -c lockstep -l help -d 'explain the command, or list the commands'\n", out);
    for (size_t i = 0; i < c->count; i++) {
        if (begins_section(c, i)) {
            fputs("set -l is '__lockstep_is ", out);
            lki_completion_set(c, c->rows[i].commands, out);
            fputs("'\n", out);
        }
        write_fish_row(c, &c->rows[i], out);
    }
}
