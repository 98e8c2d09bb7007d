/* foreign.c -- names of options in other launchers and trainers; see foreign.h. */
#include "cli/foreign.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *hint;
} names[] = {
#define FOREIGN(name_, hint_) { name_, hint_ },
#include "cli/foreign.def"
#undef FOREIGN
};

/* Compares names; _ equals -. */
static bool same(const char *name, const char *text, size_t length)
{
    size_t i = 0;
    while (i < length && name[i] != '\0' && (text[i] == name[i] ||
                                             (text[i] == '_' && name[i] == '-')))
        i++;
    return i == length && name[i] == '\0';
}

/* Returns true if the command has each option that a hint names, so that its advice can be
 * followed. */
static bool is_about(const lki_command *command, const char *hint)
{
    for (const char *at = strstr(hint, "--"); at != NULL; at = strstr(at + 2, "--")) {
        size_t length = strspn(at + 2, "abcdefghijklmnopqrstuvwxyz0123456789-");
        bool   has    = false;
        for (const lki_option *o = command->options; o->type != LKI_OPTION_END; o++)
            has = has || same(o->name, at + 2, length);
        if (!has)
            return false;
    }
    return true;
}

bool lki_foreign_hint(const lki_command *command, const char *name, size_t length, lki_message *out)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!same(names[i].name, name, length) || !is_about(command, names[i].hint))
            continue;
        (void)snprintf(out->text, sizeof out->text, "%s", names[i].hint);
        return true;
    }
    return false;
}

/* ---- The spellings of torchrun and mpirun ------------------------------------------------- */

typedef enum { TAKES_VALUE, ADDRESS, IGNORED_VALUE, IGNORED_FLAG } kind;

static const struct {
    const char *name, *here;
    kind        kind;
} spellings[] = {
    { "--nproc-per-node", "--workers", TAKES_VALUE },
    { "--nproc", "--workers", TAKES_VALUE },
    { "--np", "--workers", TAKES_VALUE },
    { "-np", "--workers", TAKES_VALUE },
    { "--node-rank", "--node-rank", TAKES_VALUE },
    { "--nnodes", "--nnodes", TAKES_VALUE },
    { "--rdzv-endpoint", "--rendezvous", ADDRESS },
    { "--rdzv-backend", NULL, IGNORED_VALUE },
    { "--standalone", NULL, IGNORED_FLAG },
};

enum { SPELLING_COUNT = sizeof spellings / sizeof spellings[0] };

/* Writes NAME=VALUE as an argument; NULL if out of memory. */
static char *join(const char *name, const char *scheme, const char *value)
{
    size_t bytes = strlen(name) + strlen(scheme) + strlen(value) + 2;
    char  *text  = malloc(bytes);
    if (text != NULL)
        (void)snprintf(text, bytes, "%s=%s%s", name, scheme, value);
    return text;
}

/* Writes --workers=N.  torchrun's "auto", "cpu" and "gpu" mean one process per core here. */
static char *workers(const char *name, const char *value)
{
    char number[16];
    bool all = strcmp(value, "auto") == 0 || strcmp(value, "cpu") == 0 || strcmp(value, "gpu") == 0;
    if (!all)
        return join(name, "", value);
    (void)snprintf(number, sizeof number, "%u", lk_allowance_read().cores);
    return join(name, "", number);
}

/* Translates the option at argv[*i], and its value, to *out, which stays NULL if the option has no
 * counterpart.  Returns false if it is not in the table. */
static bool translate(int argc, char **argv, int *i, char **out, bool *good)
{
    const char *text  = argv[*i];
    size_t      length = strcspn(text, "=");
    for (size_t k = 0; k < SPELLING_COUNT; k++) {
        if (!same(spellings[k].name, text, length))
            continue;
        const char *value = text[length] == '=' ? text + length + 1 : NULL;
        if (value == NULL && spellings[k].kind != IGNORED_FLAG && *i + 1 < argc)
            value = argv[++*i];
        if (spellings[k].here == NULL)
            return true;
        if (value == NULL) /* the parser reports the missing value */
            *out = strdup(spellings[k].here);
        else if (strcmp(spellings[k].here, "--workers") == 0)
            *out = workers("--workers", value);
        else
            *out = join(spellings[k].here, spellings[k].kind == ADDRESS ? "tcp://" : "", value);
        *good = *good && *out != NULL;
        return true;
    }
    return false;
}

/* Returns true if the option at argv[i] of `lockstep run` takes the next argument as its value. */
static bool takes_next(const char *text)
{
    static const char *const flags[] = { "--prefix", "--no-prefix", "--insecure", "--help", "-h",
                                         "--no-insecure" };
    for (size_t k = 0; k < sizeof flags / sizeof flags[0]; k++)
        if (strcmp(flags[k], text) == 0)
            return false;
    return strchr(text, '=') == NULL && strcmp(text, "--restart") != 0;
}

char **lki_foreign_run(int argc, char **argv, int *out_argc)
{
    char **copy  = calloc((size_t)argc + 1, sizeof *copy);
    int    count = 0, i = 1;
    bool   good  = copy != NULL;
    if (good)
        good = (copy[count++] = strdup(argv[0])) != NULL;
    for (; good && i < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0; i++) {
        if (translate(argc, argv, &i, &copy[count], &good)) {
            count += copy[count] != NULL;
            continue;
        }
        bool next = takes_next(argv[i]) && i + 1 < argc;
        good      = (copy[count++] = strdup(argv[i])) != NULL;
        if (good && next)
            good = (copy[count++] = strdup(argv[++i])) != NULL;
    }
    for (; good && i < argc; i++)
        good = (copy[count++] = strdup(argv[i])) != NULL;
    *out_argc = count;
    if (good)
        return copy;
    lki_foreign_free(copy);
    return NULL;
}

void lki_foreign_free(char **argv)
{
    for (size_t i = 0; argv != NULL && argv[i] != NULL; i++)
        free(argv[i]);
    free(argv);
}
