/* settings.c -- the options that must be equal on all hosts, and the properties of the terminal. */
#include "cli/settings.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lockstep/train.h"

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
        const bool  preset = value != NULL && o->preset != NULL && strcmp(value, o->preset) == 0;
        if (value == NULL || preset || !is_of_the_job(o))
            continue;
        (void)snprintf(out->texts[count], LKI_SETTING_BYTES, "%s%s %s", named ? "--" : "", o->name,
                       value);
        out->list[count] = out->texts[count];
        count++;
    }
    out->list[count] = NULL;
}

unsigned lki_terminal_of(void)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM"), *locale = getenv("LC_ALL");
    if (locale == NULL || *locale == '\0')
        locale = getenv("LC_CTYPE");
    if (locale == NULL || *locale == '\0')
        locale = getenv("LANG");
    bool dumb  = term == NULL || *term == '\0' || strcmp(term, "dumb") == 0;
    bool utf_8 = locale != NULL && (strcasestr(locale, "UTF-8") != NULL ||
                                    strcasestr(locale, "utf8") != NULL);
    bool color = !dumb && (no_color == NULL || *no_color == '\0');
    return (dumb ? LK_TERMINAL_DUMB : 0u) | (color ? LK_TERMINAL_COLOR : 0u) |
           (utf_8 ? LK_TERMINAL_UNICODE : 0u);
}

bool lki_shows_progress(void)
{
    return isatty(STDERR_FILENO) == 1 && (lki_terminal_of() & LK_TERMINAL_DUMB) == 0;
}

const char *lki_line_start(const char *command)
{
    return strcmp(command, "run") != 0 && lki_shows_progress() ? "\r\033[K" : "";
}
