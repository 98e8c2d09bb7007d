/* words.c -- translates messages of the library into terms of the command.
 *
 * The library writes the name of a public struct's field in backquotes: `global_batch`.  A user of
 * the command knows the option that sets the field.  options.def has both names.  Text in
 * backquotes that names neither a field nor lk_train_replay() is not changed.  `checkpoint.resume`
 * with a directory becomes `lockstep resume` with it, and `resume` alone the option.
 */
#include "cli/words.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/paths.h"
#include "lockstep/base.h"

typedef struct {
    const char *field, *type, *name;
} word;

static const word words[] = {
    { "checkpoint.resume", "COMMAND", "lockstep resume" }, /* the short name is the option */
#define OPTION(name_, type_, value_, field_, ...) { #field_, #type_, name_ },
#define COMMAND_OPTION(name_, type_, value_, field_, ...) { #field_, #type_, name_ },
#include "train/options.def"
    { "insecure", "FLAG", "insecure" }, /* options of lki_nodes, which several commands have */
    { "node", "U32", "node-rank" },
    { "address", "STRING", "address" }, /* of watch */
    { "dtype", "CHOICE", "dtype" },     /* of export */
    { "hosts", "U32", "hosts" },
    { "lk_train_replay", "COMMAND", "`lockstep verify`" },
    { "replay.step", "U64", "step" },
    { "onednn", "NAME", "kernels" },
};

static bool equal(const char *field, const char *name, size_t length)
{
    return strlen(field) == length && strncmp(field, name, length) == 0;
}

/* Finds the row of a field by its whole name, such as `data.order`, or else that of an option by
 * the part after the last dot.  Rooms that know only the inner struct use the shorter name. */
static const word *find(const char *name, size_t length)
{
    const word *found = NULL;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const char *dot = strrchr(words[i].field, '.');
        if (strcmp(words[i].type, "COMMAND") == 0)
            dot = NULL;
        if (equal(words[i].field, name, length))
            return &words[i];
        if (found == NULL && dot != NULL && equal(dot + 1, name, length))
            found = &words[i];
    }
    return found;
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
        bool is_option = strcmp(w->type, "POSITIONAL") != 0 && strcmp(w->type, "COMMAND") != 0;
        append(out, bytes, "--", is_option ? 2 : 0);
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

const char *lki_why_killed(int status, const char *cause)
{
    if (strstr(cause, "is stopped (by SIGSTOP") != NULL)
        return NULL;
    switch (status - 128) {
    case SIGKILL:
        return "if nobody sent SIGKILL, the kernel did for lack of memory, and dmesg says so";
    case SIGBUS:
        return "usually a file was truncated while it was read, such as the data: restore it";
    default:
        return NULL;
    }
}

/* Returns true if the path is that of weights, by its name or by what is there. */
static bool is_checkpoint(const char *path)
{
    static const char end[] = ".safetensors";
    size_t            length = strlen(path), tail = strlen(end);
    return (length > tail && strcmp(path + length - tail, end) == 0) ||
           lki_has_file(path, "manifest.json") || lki_has_file(path, "config.json") ||
           lki_has_file(path, "adapter_config.json") || lki_is_run(path);
}

void lki_print_error_about(const char *command, const char *path, const char *others)
{
    char hint[LKI_WORDS_BYTES];
    lki_print_error(command);
    if (!is_checkpoint(path))
        fprintf(stderr, "(give the --checkpoint directory of a run, %s)\n", others);
    if (lki_hub_hint(hint, path))
        fprintf(stderr, "(%s)\n", hint);
}

bool lki_is_url(const char *path)
{
    return strstr(path, "://") != NULL;
}

bool lki_hub_hint(char out[LKI_WORDS_BYTES], const char *path)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "._-/";
    const char       *slash = strchr(path, '/'), *end = strrchr(path, '.');
    if (path[0] == '.' || path[0] == '/' || path[strspn(path, letters)] != '\0' ||
        (slash != NULL && (slash[1] == '\0' || strchr(slash + 1, '/') != NULL)) ||
        (end != NULL && strcmp(end, ".safetensors") == 0) || access(path, F_OK) == 0)
        return false;
    (void)snprintf(out, LKI_WORDS_BYTES, "if this is a name on the Hugging Face hub, download its "
                                         "folder first: hf download %.100s --local-dir %.100s",
                   path, path);
    return true;
}
