/* log_owner.c -- recognises the log of a run by its contents.
 *
 * A new run writes to no log that has steps.  A resumed run cuts its log back to the step of its
 * checkpoint, so the log must be its own.  Paths do not tell, because a run may be moved together
 * with its log.  The contents do: a checkpoint has a hash over the losses of all steps, and the log
 * has the losses.  If the log lacks some of these steps, as one that was named when the run was
 * resumed, or if there is no checkpoint yet, its first line tells, which has the configuration.
 * Two runs with the same configuration and data have the same losses, and are the same run here.
 */
#include "train/core/log_owner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/core/identity.h"

/* ---- Lines ------------------------------------------------------------------------------- */

/* A line of a log, without its end. */
typedef struct {
    const char *text;
    size_t      length;
} line;

/* Reads the next whole line.  Returns false at the end. */
static bool next_line(const lki_map *map, size_t *at, line *out)
{
    const char *text = (const char *)map->data + *at;
    const char *end  = *at < map->bytes ? memchr(text, '\n', map->bytes - *at) : NULL;
    if (end == NULL)
        return false;
    *out = (line){ text, (size_t)(end - text) };
    *at += out->length + 1;
    return true;
}

/* Finds what follows a key in a line: its value, without spaces before it.  Other programs may have
 * written the line with other spaces.  Returns NULL if the line does not have the key. */
static const char *value_of(const line *l, const char *key)
{
    const char *end = l->text + l->length;
    const char *at  = memmem(l->text, l->length, key, strlen(key));
    if (at == NULL)
        return NULL;
    for (at += strlen(key); at < end && (*at == ' ' || *at == ':'); at++)
        continue;
    return at;
}

/* Reads the number of a step and the bits of its loss.  Returns false if the line is no step. */
static bool read_step(const line *l, uint64_t *step, char bits[17])
{
    const char *hex = value_of(l, "\"loss_bits\""), *number = value_of(l, "\"step\"");
    char        text[24], *end;
    if (hex == NULL || number == NULL || hex + 17 > l->text + l->length)
        return false;
    (void)snprintf(bits, 17, "%.16s", hex + 1);
    (void)snprintf(text, sizeof text, "%.20s", number);
    *step = strtoull(text, &end, 10);
    return end != text && strspn(bits, "0123456789abcdef") == 16;
}

/* Finds the first or the last line with a configuration.  Returns it as a new object; NULL if there
 * is none. */
static json_t *find_header(const lki_map *map, bool last)
{
    json_t *found = NULL;
    line    l;
    for (size_t at = 0; next_line(map, &at, &l) && (last || found == NULL);) {
        if (memmem(l.text, l.length, "\"config\"", 8) == NULL)
            continue;
        json_t *object = json_loadb(l.text, l.length, 0, NULL);
        if (json_is_object(json_object_get(object, "config"))) {
            json_decref(found);
            found = json_incref(object);
        }
        json_decref(object);
    }
    return found;
}

/* Returns true if any line is a step. */
static bool has_steps(const lki_map *map)
{
    static const char mark[] = "\"loss_bits\"";
    return map->bytes > 0 && memmem(map->data, map->bytes, mark, strlen(mark)) != NULL;
}

/* Appends the steps from `first` to `last`, if there are any.  Of many gaps only the first ones are
 * listed. */
static void add_gap(char out[LKI_GAPS_BYTES], uint64_t first, uint64_t last)
{
    const size_t used = strlen(out);
    char         text[64];
    if (first > last || (used > 3 && strcmp(out + used - 3, "...") == 0))
        return;
    int length = snprintf(text, sizeof text, "%s%llu", used > 0 ? ", " : "",
                          (unsigned long long)first);
    if (first < last)
        (void)snprintf(text + length, sizeof text - (size_t)length, " to %llu",
                       (unsigned long long)last);
    const bool dots = used + strlen(text) + sizeof ", ..." > LKI_GAPS_BYTES;
    (void)snprintf(out + used, LKI_GAPS_BYTES - used, "%s", dots ? ", ..." : text);
}

void lki_log_gaps(const char *path, uint64_t start, char out[LKI_GAPS_BYTES])
{
    lki_map  map;
    line     l;
    uint64_t step, done = 0;
    char     bits[17];
    out[0] = '\0';
    if (lki_is_file(path) && lki_map_open(&map, path) == LK_OK) {
        for (size_t at = 0; done < start && next_line(&map, &at, &l);) {
            if (!read_step(&l, &step, bits) || step <= done)
                continue;
            add_gap(out, done + 1, step - 1);
            done = step;
        }
        lki_map_close(&map);
    }
    add_gap(out, done + 1, start);
}

/* ---- Whose log it is --------------------------------------------------------------------- */

typedef enum { OTHER_LOSSES, SAME_LOSSES, UNKNOWN_LOSSES } losses;

/* Compares the losses up to the run's checkpoint. */
static losses compare_losses(const lki_log_run *run, const lki_map *map)
{
    char     chain[65] = "";
    uint64_t count     = 0, step;
    char     bits[17];
    line     l;
    if (run->start == 0 || run->chain[0] == '\0')
        return UNKNOWN_LOSSES;
    for (size_t at = 0; count < run->start && next_line(map, &at, &l);) {
        if (!read_step(&l, &step, bits))
            continue;
        if (step != count + 1)
            return UNKNOWN_LOSSES;
        lki_loss_chain_add(chain, bits);
        count++;
    }
    if (count < run->start)
        return UNKNOWN_LOSSES;
    return strcmp(chain, run->chain) == 0 ? SAME_LOSSES : OTHER_LOSSES;
}

/* Finds out whether a configuration is that of another run.  Writes the reason, or "". */
static void compare_config(const lki_log_run *run, const json_t *stored, char why[700])
{
    lki_config_odd odd;
    json_t        *mine = lki_config_json(run->config, run->data);
    why[0]              = '\0';
    if (lki_config_difference(stored, mine, LKI_COMPARE_ROUNDED, &odd))
        (void)snprintf(why, 700, "%s is %s there, and %s here", odd.name, odd.stored, odd.mine);
    json_decref(mine);
}

/* Finds out whether the first line is that of another run.  The data may have been changed since
 * (`changed_data`), but not before the first checkpoint. */
static void compare_header(const lki_log_run *run, const lki_map *map, char why[700])
{
    json_t     *head = find_header(map, false);
    const char *data = json_string_value(json_object_get(head, "data"));
    if (head == NULL)
        (void)snprintf(why, 700, "no line of it has a configuration");
    else
        compare_config(run, json_object_get(head, "config"), why);
    if (why[0] == '\0' && run->start == 0 && data != NULL &&
        strcmp(data, run->data->content_hash) != 0)
        (void)snprintf(why, 700, "it has other data");
    json_decref(head);
}

static lk_status check_own(const lki_log_run *run, const lki_map *map)
{
    const losses found    = compare_losses(run, map);
    char         why[700] = "";
    if (found == SAME_LOSSES)
        return LK_OK;
    compare_header(run, map, why);
    if (why[0] == '\0' && found == OTHER_LOSSES)
        (void)snprintf(why, sizeof why, "its losses up to step %llu are not those of the "
                       "checkpoint", (unsigned long long)run->start);
    return why[0] == '\0'
               ? LK_OK
               : lk_fail(LK_EINVAL, "`log` %s has the log of another run, and would be cut and "
                                    "continued: %s; give the log of this run, or a new one",
                         run->config->log, why);
}

bool lki_log_is_other(const char *path)
{
    static const char version[] = "\"lockstep\"", header[] = "\"config\"";
    lki_map           map;
    if (lki_file_is_other(path, "{\"step\":"))
        return true;
    if (!lki_is_file(path) || lki_map_open(&map, path) != LK_OK)
        return false;
    const void *end   = map.bytes > 0 ? memchr(map.data, '\n', map.bytes) : NULL;
    size_t      bytes = end != NULL ? (size_t)((const uint8_t *)end - map.data) : map.bytes;
    bool        other = bytes > 0 && (memmem(map.data, bytes, version, strlen(version)) == NULL ||
                               memmem(map.data, bytes, header, strlen(header)) == NULL);
    lki_map_close(&map);
    return other;
}

lk_status lki_log_check_steps(const lki_log_run *run)
{
    const char *path = run->config->log;
    lki_map     map;
    if (path == NULL || !lki_is_file(path) || lki_map_open(&map, path) != LK_OK)
        return LK_OK;
    lk_status status = LK_OK;
    if (has_steps(&map) && run->config->checkpoint.resume)
        status = check_own(run, &map);
    else if (has_steps(&map))
        status = lk_fail(LK_EINVAL, "`log` %s has the log of another run, and would be "
                                    "overwritten: give another one, or remove it; `resume`=auto "
                                    "goes on with a run that was interrupted", path);
    lki_map_close(&map);
    return status;
}

/* ---- Who is writing it ------------------------------------------------------------------- */

/* Writes " (pid 4711 on node3)", the process of rank 0 by the newest line that lists the ranks. */
static void name_writer(const json_t *head, char out[128])
{
    const json_t *rank = json_array_get(json_object_get(head, "ranks"), 0);
    const char   *host = json_string_value(json_object_get(rank, "hostname"));
    json_int_t    pid  = json_integer_value(json_object_get(rank, "pid"));
    out[0]             = '\0';
    if (pid > 0)
        (void)snprintf(out, 128, " (pid %lld on %.80s)", (long long)pid, host != NULL ? host : "?");
}

lk_status lki_output_in_use(const char *option, const char *path)
{
    return lk_fail(LK_EIO, "another run is writing the `%s` '%s': give each run its own", option,
                   path);
}

lk_status lki_log_in_use(const lki_log_run *run)
{
    const char *path = run->config->log;
    char        who[128] = "", why[700] = "?";
    lki_map     map;
    if (lki_map_open(&map, path) == LK_OK) {
        json_t *head = find_header(&map, true);
        name_writer(head, who);
        if (head != NULL)
            compare_config(run, json_object_get(head, "config"), why);
        json_decref(head);
        lki_map_close(&map);
    }
    if (why[0] != '\0')
        return lk_fail(LK_EIO, "another run%s is writing the `log` '%s': give each run its own "
                               "file", who, path);
    return lk_fail(LK_EIO, "this run has been started already: a process%s with the same "
                           "configuration is writing the `log` '%s'; wait for its end, stop it, or "
                           "give this one another file", who, path);
}

lk_status lki_log_check_unlocked(const lki_log_run *run)
{
    const char *path = run->config->log;
    return path != NULL && lki_is_file(path) && lki_file_is_locked(path) ? lki_log_in_use(run)
                                                                         : LK_OK;
}

/* ---- Event files ------------------------------------------------------------------------- */

/* The configuration is a text of the file, and the first object in it. */
bool lki_events_are_others(const lki_log_run *run, const char *path)
{
    static const char step[] = "train/loss", opening[] = "```\n{";
    const bool        resumed = run->config->checkpoint.resume;
    lki_map           map;
    char              why[700] = "";
    if (lki_map_open(&map, path) != LK_OK)
        return false;
    const char *text  = (const char *)map.data;
    bool        steps = map.bytes > 0 && memmem(text, map.bytes, step, strlen(step)) != NULL;
    const char *at    = steps && resumed ? memmem(text, map.bytes, opening, strlen(opening)) : NULL;
    if (at != NULL) {
        at += strlen(opening) - 1;
        json_t *stored = json_loadb(at, map.bytes - (size_t)(at - text), JSON_DISABLE_EOF_CHECK,
                                    NULL);
        if (json_is_object(stored))
            compare_config(run, stored, why);
        json_decref(stored);
    }
    lki_map_close(&map);
    return steps && (!resumed || why[0] != '\0');
}
