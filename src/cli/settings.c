/* settings.c -- lists the options that must be equal on all hosts; see settings.h. */
#include "cli/settings.h"

static bool is_of_the_job(const lki_option *option)
{
    return option->scope != LKI_SCOPE_HOST && option->scope != LKI_SCOPE_FILE;
}

void lki_settings_of(lki_settings *out, const lki_command *command, const lki_config_file *given)
{
    size_t count = 0;

    for (const lki_option *o = command->options;
         o->type != LKI_OPTION_END && count < LKI_SETTINGS_MOST; o++) {
        const char *value = given->given[o - command->options];
        bool        named = o->type != LKI_OPTION_POSITIONAL;
        if (value == NULL || !is_of_the_job(o))
            continue;
        (void)snprintf(out->texts[count], LKI_SETTING_BYTES, "%s%s %s", named ? "--" : "", o->name,
                       value);
        out->list[count] = out->texts[count];
        count++;
    }
    out->list[count] = NULL;
}
