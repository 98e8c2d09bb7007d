/* words.c -- translates messages of the library into terms of the command.
 *
 * The library writes the name of a public struct's field in backquotes: `global_batch`.  A user of
 * the command knows the option that sets the field.  options.def has both names.  Text in
 * backquotes that is not the name of a field is not changed.
 */
#include "cli/words.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "lockstep/base.h"

typedef struct {
    const char *field, *type, *name;
} word;

static const word words[] = {
#define OPTION(name_, type_, value_, field_, ...) { #field_, #type_, name_ },
#define COMMAND_OPTION(name_, type_, value_, field_, ...) { #field_, #type_, name_ },
#include "train/options.def"
    { "insecure", "FLAG", "insecure" }, /* options of lki_nodes, which several commands have */
    { "node", "U32", "node-rank" },
    { "hosts", "U32", "hosts" },
};

/* Returns true if a row's field has this name, with or without the struct that contains the
 * field. */
static bool is_field(const word *w, const char *name, size_t length)
{
    static const char model[] = "model_options.";
    const char       *field   = w->field;
    bool              whole   = strlen(field) == length && strncmp(field, name, length) == 0;
    if (whole || strncmp(field, model, sizeof model - 1) != 0)
        return whole;
    field += sizeof model - 1;
    return strlen(field) == length && strncmp(field, name, length) == 0;
}

static const word *find(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (is_field(&words[i], name, length))
            return &words[i];
    return NULL;
}

/* Appends text, truncated at the end of the buffer. */
static void append(char *out, size_t bytes, const char *text, size_t length)
{
    size_t at = strlen(out), room = bytes - 1 - at;
    memcpy(out + at, text, length < room ? length : room);
    out[at + (length < room ? length : room)] = '\0';
}

void lki_words(char *out, size_t bytes, const char *message)
{
    out[0] = '\0';
    for (const char *at = message; *at != '\0';) {
        const char *end = *at == '`' ? strchr(at + 1, '`') : NULL;
        const word *w   = end != NULL ? find(at + 1, (size_t)(end - at - 1)) : NULL;
        if (w == NULL) {
            append(out, bytes, at++, 1);
            continue;
        }
        append(out, bytes, "--", strcmp(w->type, "POSITIONAL") == 0 ? 0 : 2);
        append(out, bytes, w->name, strlen(w->name));
        at = end + 1;
    }
}

void lki_print_message(const char *command, const char *message)
{
    char text[LKI_WORDS_BYTES];
    lki_words(text, sizeof text, message);
    fprintf(stderr, "lockstep %s: %s\n", command, text);
}

void lki_print_error(const char *command)
{
    lki_print_message(command, lk_error_last()->message);
}
