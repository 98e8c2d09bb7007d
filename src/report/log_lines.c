/* log_lines.c -- the lines of a log, one by one, and what each is.  See log_lines.h. */
#include "report/log_lines.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

static lk_status give_line(const char *path, uint64_t number, const char *text, size_t bytes,
                           lki_line_hook hook, void *context)
{
    json_error_t error;
    if (bytes == 0)
        return LK_OK;
    json_t *line = json_loadb(text, bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(line)) {
        json_decref(line);
        return lk_fail(LK_EFORMAT, "line %" PRIu64 " of '%s' is no JSON object, so this is no "
                       "log%s%s", number, path, line == NULL ? ": " : "",
                       line == NULL ? error.text : "");
    }
    lk_status status = hook(context, number, line);
    json_decref(line);
    return status;
}

lk_status lki_log_lines(const char *path, lki_line_hook hook, void *context)
{
    char     *text   = NULL;
    size_t    room   = 0;
    uint64_t  number = 0;
    lk_status status = LK_OK;
    FILE     *file   = fopen(path, "re");
    if (file == NULL)
        return lk_fail(LK_EIO, "cannot read the log '%s': %s", path, strerror(errno));
    for (ssize_t bytes; status == LK_OK && (bytes = getline(&text, &room, file)) > 0;)
        if (text[bytes - 1] == '\n')
            status = give_line(path, ++number, text, (size_t)bytes - 1, hook, context);
    if (status == LK_OK && ferror(file))
        status = lk_fail(LK_EIO, "cannot read the log '%s': %s", path, strerror(errno));
    free(text);
    (void)fclose(file);
    return status;
}

/* Returns true if a line has one of some keys. */
static bool has_any(const json_t *line, const char *const *keys)
{
    for (; *keys != NULL; keys++)
        if (json_object_get(line, *keys) != NULL)
            return true;
    return false;
}

bool lki_line_is_first(const json_t *line)
{
    static const char *const keys[] = { "config", "exactness_id", "lockstep", "ranks", NULL };
    return has_any(line, keys) || json_is_object(json_object_get(line, "run"));
}

bool lki_line_is_of_step(const json_t *line)
{
    static const char *const keys[] = { "loss", "loss_bits", "lr", "grad_norm", "virtual_losses",
                                        NULL };
    return has_any(line, keys);
}

bool lki_is_evaluation(const char *key)
{
    return strncmp(key, "val_", 4) == 0;
}

bool lki_line_is_evaluation(json_t *line)
{
    const char *key;
    json_t     *value;
    json_object_foreach(line, key, value)
    {
        if (lki_is_evaluation(key))
            return true;
    }
    return false;
}

bool lki_line_is_end(const json_t *line)
{
    static const char *const keys[]   = { "weights", "ended", NULL };
    static const char *const others[] = { "step", "time", "label", "audited", NULL };
    size_t                   known    = 0;
    for (size_t i = 0; others[i] != NULL; i++)
        known += json_object_get(line, others[i]) != NULL;
    return has_any(line, keys) || json_is_string(json_object_get(line, "run")) ||
           known == json_object_size(line);
}

uint64_t lki_line_step(const json_t *line)
{
    const json_t    *step  = json_object_get(line, "step");
    const json_int_t value = json_integer_value(step);
    return json_is_integer(step) && value >= 0 ? (uint64_t)value : UINT64_MAX;
}
