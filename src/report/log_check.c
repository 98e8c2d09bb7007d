/* log_check.c -- compares the log of a run with that of a replay, line by line.
 *
 * A table of the log (run_log.h) would merge lines of one step and prefer the bits of a value to
 * its text, so a false line could hide behind a true one.  Here each line is compared as it is.
 * Only the replay's log is merged, which has each key of a step once.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "report/diff.h"

struct lk_log_check {
    char     *path;
    uint64_t  step;      /* the last one that is replayed */
    bool      has_step;  /* the log has its loss */
    uint64_t *evaluated; /* steps with an evaluation, in the order of the log */
    size_t    count, capacity;
};

/* ---- Lines --------------------------------------------------------------------------------- */

typedef lk_status (*line_hook)(void *context, uint64_t number, json_t *line);

static lk_status give_line(const char *path, uint64_t number, const char *text, size_t bytes,
                           line_hook hook, void *context)
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

/* Calls a function with each line of a log that is complete. */
static lk_status read_lines(const char *path, line_hook hook, void *context)
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

/* Returns true if a line describes the run, and is not of a step. */
static bool is_header(const json_t *line)
{
    return json_is_object(json_object_get(line, "config")) ||
           json_is_object(json_object_get(line, "run"));
}

/* Returns the step of a line; UINT64_MAX: it has none. */
static uint64_t step_of(const json_t *line)
{
    const json_t    *step  = json_object_get(line, "step");
    const json_int_t value = json_integer_value(step);
    return json_is_integer(step) && value >= 0 ? (uint64_t)value : UINT64_MAX;
}

static bool has(const json_t *line, const char *key)
{
    char bits[64];
    (void)snprintf(bits, sizeof bits, "%s_bits", key);
    return json_object_get(line, key) != NULL || json_object_get(line, bits) != NULL;
}

/* ---- What the log has ---------------------------------------------------------------------- */

static lk_status look_at_line(void *context, uint64_t number, json_t *line)
{
    lk_log_check  *check = context;
    const uint64_t step  = step_of(line);
    if (json_object_get(line, "step") != NULL && step == UINT64_MAX)
        return lk_fail(LK_EFORMAT, "line %" PRIu64 " of '%s': its step is no integer of at least 0",
                       number, check->path);
    if (is_header(line) || step == UINT64_MAX)
        return LK_OK;
    check->has_step = check->has_step || (step == check->step && has(line, "loss"));
    if (!has(line, "val_loss"))
        return LK_OK;
    LK_TRY(lki_reserve((void **)&check->evaluated, &check->capacity, check->count,
                       sizeof *check->evaluated, "evaluations of a log"));
    check->evaluated[check->count++] = step;
    return LK_OK;
}

lk_status lk_log_check_open(lk_log_check **out, const char *log, uint64_t step)
{
    lk_log_check *check = NULL;
    *out                = NULL;
    LK_TRY(LKI_NEW(&check, 1, "a log"));
    check->step      = step;
    check->path      = strdup(log);
    lk_status status = check->path == NULL ? lk_fail(LK_ENOMEM, "the path of a log")
                                           : read_lines(log, look_at_line, check);
    if (status == LK_OK)
        *out = check;
    else
        lk_log_check_free(check);
    return status;
}

void lk_log_check_free(lk_log_check *check)
{
    if (check == NULL)
        return;
    free(check->path);
    lki_free(check->evaluated);
    lki_free(check);
}

bool lk_log_check_has_step(const lk_log_check *check)
{
    return check->has_step;
}

bool lk_log_check_evaluates(const lk_log_check *check, uint64_t step)
{
    for (size_t i = 0; i < check->count; i++)
        if (check->evaluated[i] == step)
            return true;
    return false;
}

/* ---- The replay ---------------------------------------------------------------------------- */

/* The log of a replay, and the comparison with it. */
typedef struct {
    uint64_t              from, to;
    json_t               *header;
    json_t              **steps; /* those after `from`, each with all keys of its lines */
    json_t               *governing; /* the newest first line up to `from`, and its number */
    uint64_t              governing_line;
    bool                  governs; /* the line that is compared governs replayed steps */
    lk_log_difference_hook report;
    void                 *context;
    lk_log_compared      *compared;
} comparison;

static bool is_replayed(const comparison *c, uint64_t step)
{
    return step > c->from && step <= c->to;
}

static lk_status keep_line(void *context, uint64_t number, json_t *line)
{
    comparison    *c    = context;
    const uint64_t step = step_of(line);
    (void)number;
    if (json_is_object(json_object_get(line, "config")))
        c->header = json_incref(line);
    else if (is_replayed(c, step) && c->steps[step - c->from - 1] == NULL)
        c->steps[step - c->from - 1] = json_incref(line);
    else if (is_replayed(c, step))
        (void)json_object_update(c->steps[step - c->from - 1], line);
    return LK_OK;
}

/* ---- Values -------------------------------------------------------------------------------- */

/* The exponential of the loss comes from libm, which is not the same everywhere. */
static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static bool are_equal(const char *key, const json_t *a, const json_t *b)
{
    if (!json_is_number(a) || !json_is_number(b))
        return json_equal(a, b) == 1;
    const double x = json_number_value(a), y = json_number_value(b);
    if (strcmp(key, "val_perplexity") == 0)
        return is_near(x, y);
    return lki_bits_of(x) == lki_bits_of(y);
}

static char *text_of(const json_t *value)
{
    char number[LK_NUMBER_BYTES];
    lk_number_text(number, json_real_value(value));
    if (json_is_real(value))
        return strdup(number);
    return json_is_string(value)
               ? strdup(json_string_value(value))
               : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);
}

/* Makes a difference of the losses of virtual workers one of the first that differs. */
static void find_worker(lk_log_difference *d, char a[LK_NUMBER_BYTES], char b[LK_NUMBER_BYTES])
{
    const size_t length = strlen(d->replayed);
    if (strlen(d->logged) != length || strspn(d->logged, "0123456789abcdef") != length)
        return;
    const size_t worker = lki_first_of_losses(d->logged, d->replayed);
    lk_number_text(a, lki_loss_of_worker(d->logged, worker));
    lk_number_text(b, lki_loss_of_worker(d->replayed, worker));
    d->virtual_worker = (uint32_t)worker;
    d->key            = "loss";
    d->logged         = a;
    d->replayed       = b;
}

/* Reports a difference.  Returns false if it does not count. */
static bool report(comparison *c, uint64_t line, uint64_t step, const char *key,
                   const json_t *logged, const json_t *replayed)
{
    char a[LK_NUMBER_BYTES], b[LK_NUMBER_BYTES], *x = text_of(logged), *y = text_of(replayed);
    lk_log_difference d = { .line = line, .step = step, .key = key, .logged = x != NULL ? x : "",
                            .replayed = y != NULL ? y : "", .virtual_worker = LK_NO_WORKER,
                            .governs = c->governs };
    if (strcmp(key, "virtual_losses") == 0)
        find_worker(&d, a, b);
    const bool counts = c->report(c->context, &d);
    c->compared->differences += counts;
    free(x);
    free(y);
    return counts;
}

/* Compares the values of some keys, or of all that are a result, which both lines have. */
static void compare_values(comparison *c, uint64_t number, json_t *line, const json_t *replayed,
                           const char *const *keys)
{
    const char *key;
    json_t     *value;
    json_object_foreach(line, key, value)
    {
        const json_t *other = json_object_get(replayed, key);
        bool          wanted = keys == NULL && lki_is_result(key);
        for (size_t i = 0; keys != NULL && keys[i] != NULL; i++)
            wanted = wanted || strcmp(keys[i], key) == 0;
        if (wanted && other != NULL && !are_equal(key, value, other))
            (void)report(c, number, step_of(line), key, value, other);
    }
}

/* ---- The lines of the log ------------------------------------------------------------------ */

static void compare_config(comparison *c, uint64_t number, const json_t *line, bool governs)
{
    const json_t *config = json_object_get(line, "config");
    const json_t *other  = json_object_get(c->header, "config");
    c->governs           = governs;
    if (other != NULL && !json_equal(config, other))
        (void)report(c, number, step_of(line), "config", config, other);
    c->governs = false;
}

/* Compares what the first line of a run says of replayed steps. */
static void compare_governing(comparison *c, uint64_t number, json_t *line)
{
    static const char *const keys[] = { "exactness_id", "data", "parameters", NULL };
    if (c->header == NULL || line == NULL)
        return;
    compare_config(c, number, line, true);
    compare_values(c, number, line, c->header, keys);
    c->compared->headers++;
}

/* Compares the first line of a run or of its continuation.  Data and precision may have changed
 * between them, so only the configuration counts, unless the line is the newest before a replayed
 * step. */
static void compare_header(comparison *c, uint64_t number, json_t *line)
{
    const uint64_t step = step_of(line);
    if (!json_is_object(json_object_get(line, "config")))
        return;
    if (step > c->from && step < c->to) {
        compare_governing(c, number, line);
    } else if (step <= c->from) {
        if (c->governing != NULL)
            compare_config(c, c->governing_line, c->governing, false);
        json_decref(c->governing);
        c->governing      = json_incref(line);
        c->governing_line = number;
    } else {
        compare_config(c, number, line, false);
    }
}

static lk_status compare_line(void *context, uint64_t number, json_t *line)
{
    comparison      *c    = context;
    lk_log_compared *all  = c->compared;
    const uint64_t   step = step_of(line);
    if (is_header(line))
        compare_header(c, number, line);
    const json_t *replayed = is_replayed(c, step) ? c->steps[step - c->from - 1] : NULL;
    if (replayed == NULL)
        return LK_OK;
    compare_values(c, number, line, replayed, NULL);
    if (has(line, "loss") && has(replayed, "loss")) {
        all->first = all->losses++ == 0 ? step : all->first;
        all->last  = step;
    }
    all->evaluations += has(line, "val_loss") && has(replayed, "val_loss");
    all->virtual_losses = all->virtual_losses || (step == c->to &&
                                                  json_object_get(line, "virtual_losses") != NULL &&
                                                  json_object_get(replayed, "virtual_losses"));
    all->hashes = all->hashes || (json_object_get(line, "weights") != NULL &&
                                  json_object_get(replayed, "weights") != NULL);
    return LK_OK;
}

lk_status lk_log_check_compare(const lk_log_check *check, const char *replay, uint64_t from,
                               lk_log_difference_hook hook, void *context, lk_log_compared *out)
{
    comparison c = { .from = from, .to = check->step, .report = hook, .context = context,
                     .compared = out };
    *out         = (lk_log_compared){ .differences = 0 };
    if (from >= check->step)
        return lk_fail(LK_EINVAL, "a replay from step %" PRIu64 " has no step %" PRIu64, from,
                       check->step);
    LK_TRY(LKI_NEW(&c.steps, check->step - from, "steps of a replay"));
    lk_status status = read_lines(replay, keep_line, &c);
    if (status == LK_OK)
        status = read_lines(check->path, compare_line, &c);
    if (status == LK_OK)
        compare_governing(&c, c.governing_line, c.governing);
    for (uint64_t i = 0; i < check->step - from; i++)
        json_decref(c.steps[i]);
    json_decref(c.header);
    json_decref(c.governing);
    lki_free(c.steps);
    return status;
}
