/* help.c -- what a command's table says for people: --help and the man page. */
#include "cli/options.h"

#include <ctype.h>
#include <string.h>

enum { NAME_COLUMNS = 28, LINE_COLUMNS = 88 };

/* "--lr X", "-n, --workers N", "--[no-]quiet", "MODEL" */
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

/* Words, wrapped at LINE_COLUMNS, the following lines indented by NAME_COLUMNS. */
static void write_wrapped(const char *text, size_t *column, FILE *out)
{
    while (*text != '\0') {
        size_t length = strcspn(text, " ");
        if (*column > NAME_COLUMNS && *column + length >= LINE_COLUMNS) {
            fprintf(out, "\n%*s", NAME_COLUMNS, "");
            *column = NAME_COLUMNS;
        }
        bool first = *column == NAME_COLUMNS;
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
        int wrote = snprintf(out + used, bytes - used, "%s%s", used > 0 ? ", " : ": ", c->name);
        if (wrote > 0 && (size_t)wrote < bytes - used)
            used += (size_t)wrote;
    }
}

/* The sentence, the choices and the default, as one line. */
static void write_sentence(const lki_option *option, char *out, size_t bytes)
{
    char choices[256];
    write_choices(option, choices, sizeof choices);
    (void)snprintf(out, bytes, "%s%s%s%s%s%s", option->help, choices,
                   option->required ? " (required)" : "",
                   option->preset != NULL ? " (default " : "",
                   option->preset != NULL ? option->preset : "", option->preset != NULL ? ")" : "");
}

void lki_options_help(const lki_command *command, FILE *out)
{
    fprintf(out, "usage: lockstep %s %s\n\n%s\n", command->name, command->usage, command->about);
    if (command->examples != NULL && command->examples[0] != '\0')
        fprintf(out, "\nexamples:\n%s\n", command->examples);
    if (command->options[0].type != LKI_OPTION_END && command->options[0].group == NULL)
        fprintf(out, "\n");
    for (const lki_option *o = command->options; o->type != LKI_OPTION_END; o++) {
        char name[96], sentence[640];
        if (o->type == LKI_OPTION_LATER)
            continue;
        if (o->group != NULL)
            fprintf(out, "\n%s:\n", o->group);
        write_name(o, name, sizeof name);
        write_sentence(o, sentence, sizeof sentence);
        int    wrote  = fprintf(out, "  %s", name);
        size_t column = wrote > 0 ? (size_t)wrote : 0;
        if (column >= NAME_COLUMNS) {
            fprintf(out, "\n");
            column = 0;
        }
        fprintf(out, "%*s", (int)(NAME_COLUMNS - column), "");
        column = NAME_COLUMNS;
        write_wrapped(sentence, &column, out);
        fprintf(out, "\n");
    }
}

/* Text in roff: a hyphen is \-, a backslash \e, a dot or quote never begins a line. */
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
        char name[96], sentence[640];
        if (o->type == LKI_OPTION_LATER)
            continue;
        if (o->group != NULL)
            fprintf(out, ".SS %s\n", o->group);
        write_name(o, name, sizeof name);
        write_sentence(o, sentence, sizeof sentence);
        fprintf(out, ".TP\n.B ");
        write_roff(name, out);
        fprintf(out, "\n");
        write_roff(sentence, out);
        fprintf(out, "\n");
    }
}

void lki_options_man(const lki_command *command, FILE *out)
{
    fprintf(out, ".TH LOCKSTEP\\-");
    for (const char *c = command->name; *c != '\0'; c++)
        fputc(toupper((unsigned char)*c), out);
    fprintf(out, " 1 \"\" \"Lockstep\" \"User Commands\"\n.SH NAME\nlockstep\\-%s \\- %s\n",
            command->name, command->summary);
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
            "number of a signal that ended a worker,\n1 for every other failure.  What lockstep "
            "run starts has statuses of its own: see\n.BR lockstep\\-run (1).\n"
            ".SH SEE ALSO\n.BR lockstep (1)\n");
}
