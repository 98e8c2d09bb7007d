/* settings.c -- what must be the same on all hosts of a job; see settings.h. */
#include "cli/settings.h"

#include <string.h>

/* Where data are is a host's affair; what they are is compared by those who read them. */
static const char *const own[] = {
    "config",       "data",         "weights",      "loss-weights",     "init",
    "workers",      "threads",      "worker-mode",  "loader-threads",   "bind",
    "hosts",        "nnodes",       "node-rank",    "rendezvous",       "job-key",
    "insecure",     "join-timeout", "timeout",      "restart",          "chaos",
    "host-memory",  "checkpoint",   "checkpoint-every", "checkpoint-async", "keep",
    "keep-best",    "resume",       "log",          "trace",            "flight",
    "quiet",        "isa",          "on-failure",
};

static bool is_own(const lki_option *option)
{
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strcmp(own[i], option->name) == 0)
            return true;
    return false;
}

void lki_settings_of(lki_settings *out, const lki_command *command, const lki_config_file *given)
{
    size_t count = 0;

    for (const lki_option *o = command->options;
         o->type != LKI_OPTION_END && count < LKI_SETTINGS_MOST; o++) {
        const char *value = given->given[o - command->options];
        bool        named = o->type != LKI_OPTION_POSITIONAL;
        if (value == NULL || is_own(o))
            continue;
        (void)snprintf(out->texts[count], LKI_SETTING_BYTES, "%s%s %s", named ? "--" : "", o->name,
                       value);
        out->list[count] = out->texts[count];
        count++;
    }
    out->list[count] = NULL;
}
