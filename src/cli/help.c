/* help.c -- writes --help and the man page from the table of a command. */
#include "cli/options.h"

#include <ctype.h>
#include <string.h>

enum { NAME_COLUMNS = 28, LINE_COLUMNS = 88 };

/* Writes the name of an option, such as "--lr X", "-n, --workers N" or "MODEL". */
static void write_name(const lki_option *option, char *out, size_t bytes)
{
    if (option->type == LKI_OPTION_POSITIONAL || option->type == LKI_OPTION_REST) {
        (void)snprintf(out, bytes, "%s", option->name);
        return;
    }
    char letter[8] = "", value[64] = "";
    if (option->letter != 0)
        (void)snprintf(letter, sizeof letter, "-%c, ", option->letter);
    if (option->value != NULL)
        (void)snprintf(value, sizeof value, option->value_optional ? "[=%s]" : " %s",
                       option->value);
    (void)snprintf(out, bytes, "%s--%s%s", letter, option->name, value);
}

/* Writes words, wrapped at LINE_COLUMNS.  Indents all lines but the first by `indent` columns. */
static void write_wrapped(const char *text, size_t indent, size_t *column, FILE *out)
{
    while (*text != '\0') {
        size_t length = strcspn(text, " ");
        if (*column > indent && *column + length >= LINE_COLUMNS) {
            fprintf(out, "\n%*s", (int)indent, "");
            *column = indent;
        }
        bool first = *column == indent;
        fprintf(out, "%s%.*s", first ? "" : " ", (int)length, text);
        *column += length + !first;
        text += length + strspn(text + length, " ");
    }
}

static void write_choices(const lki_option *option, char *out, size_t bytes)
{
    size_t used = 0;
    out[0]      = '\0';
    for (const lki_choice *c = option->choices; c != NULL && c->name != NULL; c++) {
        if (c->later != NULL)
            continue;
        bool exact = c->label == LK_LABEL_EXACT;
        int  wrote = snprintf(out + used, bytes - used, "%s%s%s%s%s", used > 0 ? ", " : "", c->name,
                              exact ? "" : " (", exact ? "" : lk_label_name(c->label),
                              exact ? "" : ")");
        if (wrote > 0 && (size_t)wrote < bytes - used)
            used += (size_t)wrote;
    }
}

/* Joins the help text and, in parentheses, the choices, the default and the label to one line. */
static void write_sentence(const lki_option *option, char *out, size_t bytes)
{
    char        choices[320], label[40] = "";
    const char *preset = option->preset, *required = option->required ? "required" : "";
    write_choices(option, choices, sizeof choices);
    bool any = choices[0] != '\0', more = preset != NULL || option->required;
    if (option->label != LK_LABEL_EXACT)
        (void)snprintf(label, sizeof label, "%s%s if used", any || more ? "; " : "",
                       lk_label_name(option->label));
    bool all = any || more || label[0] != '\0';
    (void)snprintf(out, bytes, "%s%s%s%s%s%s%s%s%s", option->help, all ? " (" : "", choices,
                   any && more ? "; " : "", required, preset != NULL ? "default " : "",
                   preset != NULL ? preset : "", label, all ? ")" : "");
}

/* ---- Groups ------------------------------------------------------------------------------ */

/* Returns the heading of a row: its own, or that of the nearest earlier row that has one. */
static const char *heading_of(const lki_command *command, const lki_option *option)
{
    while (option->group == NULL && option != command->options)
        option--;
    return option->group;
}

static bool begins_group(const lki_command *command, const lki_option *option)
{
    const char *group  = option->group;
    const char *before = option == command->options ? NULL : heading_of(command, option - 1);
    return group != NULL && (before == NULL || strcmp(group, before) != 0);
}

/* Returns true if `topic` occurs in a heading at the beginning of a word.  A hyphen in `topic`
 * matches a space. */
static bool is_about(const char *topic, const char *heading)
{
    for (const char *at = heading; at != NULL && *at != '\0'; at++) {
        size_t same = 0;
        while (topic[same] != '\0' &&
               (topic[same] == at[same] || (topic[same] == '-' && at[same] == ' ')))
            same++;
        if (topic[same] == '\0' && (at == heading || !isalnum((unsigned char)at[-1])))
            return true;
    }
    return false;
}

void lki_options_groups(const lki_command *command, lki_message *out)
{
    size_t used  = 0;
    out->text[0] = '\0';
    for (const lki_option *o = command->options; o->type != LKI_OPTION_END; o++) {
        if (!begins_group(command, o) || used >= sizeof out->text)
            continue;
        size_t length = strcspn(o->group, "(");
        length -= length > 0 && o->group[length] == '(';
        int wrote = snprintf(out->text + used, sizeof out->text - used, "%s%.*s",
                             used > 0 ? ", " : "", (int)length, o->group);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

/* ---- Selecting rows ---------------------------------------------------------------------- */

bool lki_options_are_many(const lki_command *command)
{
    for (const lki_option *o = command->options; o->type != LKI_OPTION_END; o++)
        if (o->common || command->inherits != NULL)
            return true;
    return false;
}

/* Returns false if an option has no effect on this model. */
static bool fits_model(const lki_option *option, const char *model)
{
    if (model == NULL || option->needs == NULL || strcmp(option->needs->name, "MODEL") != 0)
        return true;
    for (const char *const *value = option->needs->values; *value != NULL; value++)
        if (strcmp(*value, model) == 0)
            return true;
    return false;
}

static bool is_listed(const lki_command *command, const lki_option *option, const char *topic,
                      const char *model)
{
    if (option->type == LKI_OPTION_LATER)
        return false;
    bool all = topic != NULL && strcmp(topic, "all") == 0;
    if (topic != NULL && !all)
        return is_about(topic, heading_of(command, option));
    if (command->inherits != NULL)
        return !option->inherited && (all || option->needs == NULL);
    if (all)
        return true;
    return !lki_options_are_many(command) || (option->common && fits_model(option, model));
}

/* ---- Help -------------------------------------------------------------------------------- */

static void write_help_row(const lki_option *option, FILE *out)
{
    char name[96], sentence[800];
    write_name(option, name, sizeof name);
    write_sentence(option, sentence, sizeof sentence);
    int    wrote  = fprintf(out, "  %s", name);
    size_t column = wrote > 0 ? (size_t)wrote : 0;
    if (column >= NAME_COLUMNS) {
        fprintf(out, "\n");
        column = 0;
    }
    fprintf(out, "%*s", (int)(NAME_COLUMNS - column), "");
    column = NAME_COLUMNS;
    write_wrapped(sentence, NAME_COLUMNS, &column, out);
    fprintf(out, "\n");
}

/* Prints the selected rows with their headings.  Returns the number of rows. */
static unsigned write_rows(const lki_command *command, const char *topic, const char *model,
                           FILE *out)
{
    const char *last  = NULL;
    unsigned    count = 0;
    for (const lki_option *o = command->options; o->type != LKI_OPTION_END; o++) {
        const char *heading = heading_of(command, o);
        if (!is_listed(command, o, topic, model))
            continue;
        if (count == 0 && heading == NULL)
            fprintf(out, "\n");
        if (heading != NULL && (last == NULL || strcmp(last, heading) != 0))
            fprintf(out, "\n%s:\n", heading);
        write_help_row(o, out);
        last = heading;
        count++;
    }
    return count;
}

/* Prints how many options are not listed, and how to list them. */
static void write_rest(const lki_command *command, unsigned listed, FILE *out)
{
    lki_message groups, text;
    unsigned    all    = 0;
    size_t      column = 0;
    for (const lki_option *o = command->options; o->type != LKI_OPTION_END; o++)
        all += o->type != LKI_OPTION_LATER;
    lki_options_groups(command, &groups);
    if (command->inherits != NULL)
        (void)snprintf(text.text, sizeof text.text,
                       "All options of %s that can matter here are accepted, too: see lockstep %s "
                       "--help=all.",
                       command->inherits, command->inherits);
    else
        (void)snprintf(text.text, sizeof text.text,
                       "These are %u of %u options.  --help=all lists all of them, --help=GROUP "
                       "those of a group: %.320s.",
                       listed, all, groups.text);
    fprintf(out, "\n");
    write_wrapped(text.text, 0, &column, out);
    fprintf(out, "\n");
}

bool lki_options_help(const lki_command *command, const char *topic, const char *model, FILE *out)
{
    bool found = topic == NULL || strcmp(topic, "all") == 0;
    for (const lki_option *o = command->options; o->type != LKI_OPTION_END; o++)
        found = found || is_listed(command, o, topic, model);
    if (!found)
        return false;
    fprintf(out, "usage: lockstep %s %s\n", command->name, command->usage);
    bool all = topic != NULL && strcmp(topic, "all") == 0;
    if (topic == NULL || all) {
        fprintf(out, "\n%s\n", command->about);
        if (command->examples != NULL && command->examples[0] != '\0')
            fprintf(out, "\nexamples:\n%s\n", command->examples);
    }
    unsigned listed = write_rows(command, topic, model, out);
    if ((topic == NULL || (all && command->inherits != NULL)) && lki_options_are_many(command))
        write_rest(command, listed, out);
    return true;
}

/* ---- Man pages --------------------------------------------------------------------------- */

/* Writes text as roff.  Escapes hyphens and backslashes, and dots and quotes at the beginning of a
 * line. */
static void write_roff(const char *text, FILE *out)
{
    bool line_start = true;
    for (const char *c = text; *c != '\0'; c++) {
        if (line_start && (*c == '.' || *c == '\''))
            fprintf(out, "\\&");
        if (*c == '-')
            fprintf(out, "\\-");
        else if (*c == '\\')
            fprintf(out, "\\e");
        else
            fputc(*c, out);
        line_start = *c == '\n';
    }
}

static void write_roff_options(const lki_command *command, FILE *out)
{
    for (const lki_option *o = command->options; o->type != LKI_OPTION_END; o++) {
        char name[96], sentence[800];
        if (o->type == LKI_OPTION_LATER)
            continue;
        if (begins_group(command, o))
            fprintf(out, ".SS %s\n", o->group);
        write_name(o, name, sizeof name);
        write_sentence(o, sentence, sizeof sentence);
        fprintf(out, ".TP\n.B ");
        write_roff(name, out);
        fprintf(out, "\n");
        write_roff(sentence, out);
        fprintf(out, "\n");
        if (o->alias != NULL) {
            (void)snprintf(sentence, sizeof sentence,
                           "Also accepted under its earlier name, --%s%s%s%s.", o->alias,
                           o->alias_value != NULL ? " (a flag, for " : "",
                           o->alias_value != NULL ? o->alias_value : "",
                           o->alias_value != NULL ? ")" : "");
            write_roff(sentence, out);
            fprintf(out, "\n");
        }
    }
    if (command->inherits != NULL) {
        fprintf(out, ".PP\nAll options of\n.BR ");
        lki_man_name(command->inherits, out);
        fprintf(out, " (1)\nthat can matter here are accepted, too.\n");
    }
}

void lki_man_name(const char *command, FILE *out)
{
    fprintf(out, "lockstep\\-");
    for (; *command != '\0'; command++) {
        if (*command == ' ')
            fprintf(out, "\\-");
        else
            fputc(*command, out);
    }
}

void lki_options_man(const lki_command *command, FILE *out)
{
    fprintf(out, ".TH LOCKSTEP\\-");
    for (const char *c = command->name; *c != '\0'; c++)
        fputc(*c == ' ' ? '-' : toupper((unsigned char)*c), out);
    fprintf(out, " 1 \"\" \"Lockstep " LK_VERSION "\" \"User Commands\"\n.SH NAME\n");
    lki_man_name(command->name, out);
    fprintf(out, " \\- %s\n", command->summary);
    fprintf(out, ".SH SYNOPSIS\n.B lockstep %s\n", command->name);
    write_roff(command->usage, out);
    fprintf(out, "\n.SH DESCRIPTION\n");
    write_roff(command->about, out);
    if (command->options[0].type != LKI_OPTION_END) {
        fprintf(out, "\n.SH OPTIONS\n");
        write_roff_options(command, out);
    }
    if (command->examples != NULL && command->examples[0] != '\0') {
        fprintf(out, ".SH EXAMPLES\n.nf\n");
        write_roff(command->examples, out);
        fprintf(out, "\n.fi\n");
    }
    fprintf(out,
            "\n.SH EXIT STATUS\n0 when the command did what was asked, 2 for a usage error, 3 when "
            "the loss stopped being finite,\n75 when it was stopped on request, 128 plus the "
            "number of a signal that ended a worker,\n1 for every other failure.  Programs that "
            "lockstep run starts have their own statuses: see\n.BR lockstep\\-run (1).\n"
            ".SH SEE ALSO\n.BR lockstep (1)\n");
}
