/* log_check.c -- compares the log of a run with that of a replay, line by line.
 *
 * A table of the log (run_log.h) would merge lines of one step and prefer the bits of a value to
 * its text, so a false line could hide behind a true one.  Here each line is compared as it is.
 * Only the replay's log is merged, which has each key of a step once.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "report/diff.h"
#include "report/log_lines.h"

/* A first line of the run, or of its continuation. */
typedef struct {
    uint64_t line, step; /* its number, and the step after which it stands */
    uint64_t before;     /* the last step in the lines before it */
    json_t  *value;
} header;

struct lk_log_check {
    char     *path;
    uint64_t  step;      /* the last one that is replayed */
    bool      has_step;  /* the log has its loss */
    uint64_t  last;      /* the last step of the log */
    uint64_t  last_line; /* and the last one with a line of its own, in the order of the file */
    uint64_t *evaluated; /* steps with an evaluation, in the order of the log */
    size_t    count, capacity;
    header   *headers;   /* in the order of the log */
    size_t    header_count, header_capacity;
};

static bool has(const json_t *line, const char *key)
{
    char bits[64];
    (void)snprintf(bits, sizeof bits, "%s_bits", key);
    return json_object_get(line, key) != NULL || json_object_get(line, bits) != NULL;
}

/* ---- What the log has ---------------------------------------------------------------------- */

/* Keeps a first line. */
static lk_status keep_header(lk_log_check *check, uint64_t number, json_t *line, uint64_t step)
{
    if (step < check->last_line)
        return lk_fail(LK_EFORMAT, "line %" PRIu64 " of '%s': a first line of step %" PRIu64
                       " stands after step %" PRIu64, number, check->path, step, check->last_line);
    LK_TRY(lki_reserve((void **)&check->headers, &check->header_capacity, check->header_count,
                       sizeof *check->headers, "first lines of a log"));
    check->headers[check->header_count++] = (header){ number, step, check->last_line,
                                                       json_incref(line) };
    return LK_OK;
}

/* Fails unless each step comes once, after the one before it. */
static lk_status check_order(lk_log_check *check, uint64_t number, uint64_t step)
{
    if (step == check->last_line)
        return lk_fail(LK_EFORMAT, "line %" PRIu64 " of '%s': step %" PRIu64 " stands twice",
                       number, check->path, step);
    if (step < check->last_line)
        return lk_fail(LK_EFORMAT, "line %" PRIu64 " of '%s': step %" PRIu64 " stands after step "
                       "%" PRIu64, number, check->path, step, check->last_line);
    check->last_line = step;
    return LK_OK;
}

static lk_status look_at_line(void *context, uint64_t number, json_t *line)
{
    lk_log_check  *check = context;
    const uint64_t step  = lki_line_step(line);
    if (json_object_get(line, "step") != NULL && step == UINT64_MAX)
        return lk_fail(LK_EFORMAT, "line %" PRIu64 " of '%s': its step is no integer of at least 0",
                       number, check->path);
    if (lki_line_is_first(line))
        return keep_header(check, number, line, step != UINT64_MAX ? step : 0);
    if (step == UINT64_MAX)
        return LK_OK;
    if (lki_line_is_of_step(line))
        LK_TRY(check_order(check, number, step));
    check->last     = step > check->last ? step : check->last;
    check->has_step = check->has_step || (step == check->step && has(line, "loss"));
    if (!lki_line_is_evaluation(line))
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
    LK_TRY(lki_check_given("lk_log_check_open", "log", log, 1));
    LK_TRY(LKI_NEW(&check, 1, "a log"));
    check->step      = step;
    check->path      = strdup(log);
    lk_status status = check->path == NULL ? lk_fail(LK_ENOMEM, "the path of a log")
                                           : lki_log_lines(log, look_at_line, check);
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
    for (size_t i = 0; i < check->header_count; i++)
        json_decref(check->headers[i].value);
    free(check->path);
    lki_free(check->evaluated);
    lki_free(check->headers);
    lki_free(check);
}

bool lk_log_check_has_step(const lk_log_check *check)
{
    return check->has_step;
}

bool lk_log_check_reaches(const lk_log_check *check)
{
    return check->last >= check->step;
}

/* Returns the content hash of the data in a first line; NULL: it has none. */
static const char *data_of(const header *h)
{
    return json_string_value(json_object_get(h->value, "data"));
}

const char *lk_log_check_data(const lk_log_check *check)
{
    const char *then = NULL;
    bool        other = false;
    for (size_t i = 0; i < check->header_count; i++)
        if (check->headers[i].step < check->step)
            then = data_of(&check->headers[i]);
    for (size_t i = 0; then != NULL && i < check->header_count; i++)
        other = other || (data_of(&check->headers[i]) != NULL &&
                          strcmp(data_of(&check->headers[i]), then) != 0);
    return other ? then : NULL;
}

bool lk_log_check_evaluates(const lk_log_check *check, uint64_t step)
{
    for (size_t i = 0; i < check->count; i++)
        if (check->evaluated[i] == step)
            return true;
    return false;
}

/* ---- The replay ---------------------------------------------------------------------------- */

/* A step of the replay. */
typedef struct {
    json_t *all;  /* all keys of its lines; NULL: the replay lacks the step */
    json_t *line; /* those of its first one; NULL: it has none */
    bool    found; /* the log has a line of the step */
} replayed_step;

/* The log of a replay, and the comparison with it. */
typedef struct {
    uint64_t               from, to;
    const lk_log_check    *log;
    json_t                *header;
    replayed_step         *steps; /* those after `from` */
    size_t                 at;    /* number of first lines that were read */
    uint64_t               noise_from; /* the noise scale is compared before this step */
    lk_log_difference_hook report;
    void                  *context;
    lk_log_compared       *compared;
} comparison;

static bool is_replayed(const comparison *c, uint64_t step)
{
    return step > c->from && step <= c->to;
}

static lk_status keep_line(void *context, uint64_t number, json_t *line)
{
    comparison    *c    = context;
    const uint64_t step = lki_line_step(line);
    (void)number;
    if (json_is_object(json_object_get(line, "config")))
        c->header = json_incref(line);
    if (lki_line_is_first(line) || !is_replayed(c, step))
        return LK_OK;
    replayed_step *s = &c->steps[step - c->from - 1];
    if (lki_line_is_of_step(line) && s->line == NULL)
        s->line = json_copy(line);
    if (s->all == NULL)
        s->all = json_incref(line);
    else
        (void)json_object_update(s->all, line);
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

/* Passes a difference on.  Returns false if the steps after it cannot be compared. */
static bool give(comparison *c, const lk_log_difference *d)
{
    const lk_log_finding finding = c->report(c->context, d);
    c->compared->differences += finding == LK_LOG_DIFFERS;
    return finding != LK_LOG_OTHER_BITS;
}

/* Reports that a line has another value than the replay. */
static void report(comparison *c, uint64_t line, uint64_t step, const char *key,
                   const json_t *logged, const json_t *replayed)
{
    char a[LK_NUMBER_BYTES], b[LK_NUMBER_BYTES], *x = text_of(logged), *y = text_of(replayed);
    lk_log_difference d = { .line = line, .step = step, .key = key, .logged = x != NULL ? x : "",
                            .replayed = y != NULL ? y : "", .virtual_worker = LK_NO_WORKER };
    if (strcmp(key, "virtual_losses") == 0)
        find_worker(&d, a, b);
    (void)give(c, &d);
    free(x);
    free(y);
}

/* Reports that a line has no value.  Line 0: the log has no such line. */
static void report_missing(comparison *c, uint64_t line, uint64_t step, const char *key)
{
    const lk_log_difference d = { .line = line, .step = step, .key = key, .replayed = "",
                                  .virtual_worker = LK_NO_WORKER };
    (void)give(c, &d);
}

/* Compares the values of some keys which both lines have. */
static void compare_keys(comparison *c, const header *h, const char *const *keys)
{
    for (; *keys != NULL; keys++) {
        const json_t *logged = json_object_get(h->value, *keys);
        const json_t *other  = json_object_get(c->header, *keys);
        if (logged != NULL && other != NULL && !are_equal(*keys, logged, other))
            report(c, h->line, h->step, *keys, logged, other);
    }
}

/* ---- First lines --------------------------------------------------------------------------- */

static const header *header_after(const comparison *c, const header *h)
{
    const size_t next = (size_t)(h - c->log->headers) + 1;
    return next < c->log->header_count ? &c->log->headers[next] : NULL;
}

/* Returns true if replayed steps stand between a first line and the next. */
static bool governs_replayed(const comparison *c, const header *h)
{
    const header  *next = header_after(c, h);
    const uint64_t end  = next != NULL && next->step < c->to ? next->step : c->to;
    return h->step < end && end > c->from;
}

/* Returns true if a value of two first lines differs, or one has none. */
static bool differs(const comparison *c, const header *h, const char *key)
{
    const json_t *a = json_object_get(h->value, key), *b = json_object_get(c->header, key);
    return a != b && !(a != NULL && b != NULL && are_equal(key, a, b));
}

/* Compares a configuration or a hash of data.  Returns false if the steps after the line have other
 * bits than the replay. */
static bool compare_origin(comparison *c, const header *h, const char *key, bool governs)
{
    const json_t *logged = json_object_get(h->value, key), *other = json_object_get(c->header, key);
    if (logged == NULL || other == NULL || json_equal(logged, other))
        return true;
    char             *x = text_of(logged), *y = text_of(other);
    lk_log_difference d = { .line = h->line, .step = h->step, .key = key,
                            .logged = x != NULL ? x : "", .replayed = y != NULL ? y : "",
                            .virtual_worker = LK_NO_WORKER, .governs = governs,
                            .resumed = header_after(c, h) != NULL && differs(c, h, "exactness_id")
    };
    const bool same = give(c, &d);
    free(x);
    free(y);
    return same;
}

/* Compares what a first line says of replayed steps. */
static void compare_governing(comparison *c, const header *h)
{
    static const char *const keys[] = { "exactness_id", "parameters", NULL };
    const uint64_t           first  = (h->step > c->from ? h->step : c->from) + 1;
    const bool same = compare_origin(c, h, "config", true) && compare_origin(c, h, "data", true);
    if (same)
        compare_keys(c, h, keys);
    else if (c->compared->other_from == 0)
        c->compared->other_from = first;
    if (header_after(c, h) != NULL && differs(c, h, "noise_scale") && first < c->noise_from)
        c->noise_from = first;
    c->compared->headers += same;
}

/* Compares the first lines of a run and of its continuations.  Data and precision may have changed
 * between them, so of lines that govern no replayed step only the configuration counts. */
static void compare_headers(comparison *c)
{
    static const char *const keys[] = { "lockstep", "exactness_id", "data", "parameters", "config",
                                        NULL };
    for (size_t i = 0; i < c->log->header_count; i++) {
        const header *h = &c->log->headers[i];
        for (size_t k = 0; keys[k] != NULL; k++)
            if (json_object_get(h->value, keys[k]) == NULL &&
                json_object_get(c->header, keys[k]) != NULL)
                report_missing(c, h->line, h->step, keys[k]);
        if (governs_replayed(c, h))
            compare_governing(c, h);
        else
            (void)compare_origin(c, h, "config", false);
    }
}

/* ---- The lines of the log ------------------------------------------------------------------ */

/* Returns the first line that governs the line being read; NULL: none. */
static const header *governing(const comparison *c)
{
    return c->at > 0 ? &c->log->headers[c->at - 1] : NULL;
}

/* Returns true if a value depends on an option that the run has changed since. */
static bool is_left_out(const comparison *c, uint64_t step, const char *key)
{
    const header *h = governing(c);
    if (strcmp(key, "critical_batch") == 0 || strncmp(key, "noise_", 6) == 0)
        return step >= c->noise_from;
    return lki_is_evaluation(key) && h != NULL && c->header != NULL && header_after(c, h) != NULL &&
           differs(c, h, "eval_weights");
}

/* Returns true if the log of a run always has a value that the replay has.  Logs by other versions
 * have less, and options that every line repeats stand there only if one is not at its default. */
static bool is_required(const comparison *c, const char *key)
{
    static const char *const basic[]    = { "loss", "loss_bits", "lr", "grad_norm", NULL };
    static const char *const repeated[] = { "comm_dtype", "gather_dtype", "label", NULL };
    const header            *h          = governing(c);
    for (size_t i = 0; basic[i] != NULL; i++)
        if (strcmp(key, basic[i]) == 0)
            return true;
    for (size_t i = 0; repeated[i] != NULL; i++)
        if (strcmp(key, repeated[i]) == 0)
            return false;
    return lki_is_result(key) &&
           (h == NULL || c->header == NULL || !differs(c, h, "lockstep"));
}

/* Reports each value of the replay that a line lacks. */
static void compare_presence(comparison *c, uint64_t number, const json_t *line,
                             const replayed_step *s)
{
    const bool  of_step = lki_line_is_of_step(line), end = lki_line_is_end(line);
    const bool  evaluates = lki_line_is_evaluation((json_t *)(uintptr_t)line);
    const char *key;
    json_t     *value;
    json_object_foreach(s->all, key, value)
    {
        const bool hash   = strcmp(key, "weights") == 0 || strcmp(key, "run") == 0;
        const bool wanted = hash                 ? end
                            : lki_is_evaluation(key) ? evaluates
                                                 : of_step && json_object_get(s->line, key) != NULL;
        if (wanted && json_object_get(line, key) == NULL && is_required(c, key) &&
            !is_left_out(c, lki_line_step(line), key))
            report_missing(c, number, lki_line_step(line), key);
    }
}

/* Compares the values that are a result and that both lines have. */
static void compare_values(comparison *c, uint64_t number, json_t *line, const json_t *replayed)
{
    const char *key;
    json_t     *value;
    json_object_foreach(line, key, value)
    {
        const json_t *other = json_object_get(replayed, key);
        if (!lki_is_result(key) || other == NULL)
            continue;
        if (is_left_out(c, lki_line_step(line), key))
            c->compared->left_out++;
        else if (!are_equal(key, value, other))
            report(c, number, lki_line_step(line), key, value, other);
    }
}

/* Counts what was compared. */
static void count(comparison *c, json_t *line, const json_t *replayed)
{
    lk_log_compared *all  = c->compared;
    const uint64_t   step = lki_line_step(line);
    if (has(line, "loss") && has(replayed, "loss")) {
        all->first = all->losses++ == 0 ? step : all->first;
        all->last  = step;
    }
    all->evaluations += has(line, "val_loss") && has(replayed, "val_loss") &&
                        !is_left_out(c, step, "val_loss");
    all->virtual_losses = all->virtual_losses || (step == c->to &&
                                                  json_object_get(line, "virtual_losses") != NULL &&
                                                  json_object_get(replayed, "virtual_losses"));
    all->hashes = all->hashes || (json_object_get(line, "weights") != NULL &&
                                  json_object_get(replayed, "weights") != NULL);
}

static lk_status compare_line(void *context, uint64_t number, json_t *line)
{
    comparison    *c    = context;
    const uint64_t step = lki_line_step(line), other = c->compared->other_from;
    c->at += c->at < c->log->header_count && c->log->headers[c->at].line == number;
    if (!is_replayed(c, step) || (other > 0 && step >= other))
        return LK_OK;
    replayed_step *s = &c->steps[step - c->from - 1];
    if (lki_line_is_of_step(line) && governing(c) == NULL && c->header != NULL)
        report_missing(c, 0, step, "config");
    s->found = s->found || lki_line_is_of_step(line);
    if (s->all == NULL)
        return LK_OK;
    compare_values(c, number, line, s->all);
    compare_presence(c, number, line, s);
    count(c, line, s->all);
    return LK_OK;
}

/* Returns true if the run had no log when it made a step: a first line says that the run continued
 * from that step or a later one, and the lines before it end earlier. */
static bool is_unlogged(const lk_log_check *log, uint64_t step)
{
    for (size_t i = 0; i < log->header_count; i++)
        if (log->headers[i].before < step && step <= log->headers[i].step)
            return true;
    return false;
}

/* Reports the steps of the replay that are not in the log, though later ones are. */
static void find_gaps(comparison *c)
{
    const lk_log_check *log   = c->log;
    const uint64_t      other = c->compared->other_from;
    const uint64_t      end   = log->last < c->to ? log->last : c->to;
    for (uint64_t step = c->from + 1; step <= end; step++)
        if (!c->steps[step - c->from - 1].found && (other == 0 || step < other) &&
            !is_unlogged(log, step))
            report_missing(c, 0, step, "loss");
}

lk_status lk_log_check_compare(const lk_log_check *check, const char *replay, uint64_t from,
                               lk_log_difference_hook hook, void *context, lk_log_compared *out)
{
    LK_TRY(lki_check_given("lk_log_check_compare", "replay", replay, 1));
    comparison c = { .from = from, .to = check->step, .log = check, .noise_from = UINT64_MAX,
                     .report = hook, .context = context, .compared = out };
    *out         = (lk_log_compared){ .differences = 0 };
    if (from >= check->step)
        return lk_fail(LK_EINVAL, "a replay from step %" PRIu64 " has no step %" PRIu64, from,
                       check->step);
    LK_TRY(LKI_NEW(&c.steps, check->step - from, "steps of a replay"));
    lk_status status = lki_log_lines(replay, keep_line, &c);
    if (status == LK_OK && c.header != NULL)
        compare_headers(&c);
    if (status == LK_OK)
        status = lki_log_lines(check->path, compare_line, &c);
    if (status == LK_OK)
        find_gaps(&c);
    for (uint64_t i = 0; i < check->step - from; i++) {
        json_decref(c.steps[i].all);
        json_decref(c.steps[i].line);
    }
    json_decref(c.header);
    lki_free(c.steps);
    return status;
}
