/* diff_log.c -- finds the first step in which two logs differ.
 *
 * Only columns that are a function of configuration, seed and data are compared, and of these only
 * columns that both logs have, because a log of another version may have more of them.  The losses
 * of virtual workers are compared, too, where both logs have them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "report/diff.h"

enum { TEXT = 512 };

bool lki_is_result(const char *column)
{
    static const char *const endings[] = { "_ms", "_s", "_seconds", "_time" };
    static const char *const names[]   = { "time",  "seconds",      "checkpoint", "audited",
                                           "moved", "duplicated",   "hits_per_s", "workers",
                                           "hosts", "message_bytes", "late",
                                           "grad_algorithm" };
    const size_t             length    = strcspn(column, "["); /* without an index */
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        const size_t tail = strlen(endings[i]);
        if (length > tail && strncmp(column + length - tail, endings[i], tail) == 0)
            return false;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (length == strlen(names[i]) && strncmp(column, names[i], length) == 0)
            return false;
    return true;
}

/* A column that both logs have. */
typedef struct {
    const lki_column *a, *b;
} column_pair;

static column_pair *pair_columns(const lki_run_log *a, const lki_run_log *b, size_t *count)
{
    column_pair *pairs = calloc(a->column_count + 1, sizeof *pairs);
    *count             = 0;
    for (size_t c = 0; pairs != NULL && c < a->column_count; c++) {
        const lki_column *other = lki_run_log_column(b, a->columns[c].name);
        if (other != NULL && lki_is_result(a->columns[c].name))
            pairs[(*count)++] = (column_pair){ &a->columns[c], other };
    }
    return pairs;
}

/* Compares two values, bit for bit.  How often a run evaluates is not part of its result, so an
 * evaluation that only one run has made is no difference. */
static bool values_differ(const lki_column *column, double a, double b)
{
    bool optional = strncmp(column->name, "val_", 4) == 0 ||
                    strstr(column->name, "_norms[") != NULL;
    if (optional && (lki_is_absent(a) || lki_is_absent(b)))
        return false;
    return lki_bits_of(a) != lki_bits_of(b);
}

/* Returns true if the row has a value of a shared column. */
static bool has_result(const column_pair *pairs, size_t count, size_t row, bool of_a)
{
    for (size_t p = 0; p < count; p++)
        if (!lki_is_absent((of_a ? pairs[p].a : pairs[p].b)->values[row]))
            return true;
    return false;
}

/* Returns true if both logs have the losses of virtual workers in these rows, of as many workers,
 * and they differ. */
static bool workers_differ(const lki_run_log *a, const lki_run_log *b, size_t row_a, size_t row_b)
{
    if (a->lines[row_a].hash == b->lines[row_b].hash)
        return false;
    char      *of_a   = lki_run_log_losses(a, row_a), *of_b = lki_run_log_losses(b, row_b);
    const bool differ = lki_first_of_losses(of_a, of_b) != SIZE_MAX;
    free(of_a);
    free(of_b);
    return differ;
}

/* Moves *row to the next row, from *row on, that has a value of a shared column. */
static void skip(const lki_run_log *log, const column_pair *pairs, size_t count, bool of_a,
                 size_t *row)
{
    while (*row < log->rows && !has_result(pairs, count, *row, of_a))
        ++*row;
}

static lki_run_log_parting walk(const lki_run_log *a, const lki_run_log *b,
                                const column_pair *pairs, size_t count)
{
    lki_run_log_parting p = { .row_a = 0, .row_b = 0 };
    for (;; p.row_a++, p.row_b++) {
        skip(a, pairs, count, true, &p.row_a);
        skip(b, pairs, count, false, &p.row_b);
        bool has_a = p.row_a < a->rows, has_b = p.row_b < b->rows;
        if (!has_a && !has_b)
            return p;
        if (!has_a || !has_b) {
            p.parts = p.ends = true;
            return p;
        }
        p.step = lki_min(a->steps[p.row_a], b->steps[p.row_b]);
        if (a->steps[p.row_a] != b->steps[p.row_b]) {
            p.parts                                             = true;
            *(a->steps[p.row_a] > p.step ? &p.row_a : &p.row_b) = SIZE_MAX;
            return p;
        }
        p.compared = true;
        p.parts    = workers_differ(a, b, p.row_a, p.row_b);
        for (size_t c = 0; c < count && !p.parts; c++)
            p.parts = values_differ(pairs[c].a, pairs[c].a->values[p.row_a],
                                    pairs[c].b->values[p.row_b]);
        if (p.parts)
            return p;
    }
}

/* Returns true if a log has steps with values that can be compared. */
static bool has_results(const lki_run_log *log)
{
    for (size_t c = 0; log->rows > 0 && c < log->column_count; c++)
        if (lki_is_result(log->columns[c].name))
            return true;
    return false;
}

lki_run_log_parting lki_run_log_part(const lki_run_log *a, const lki_run_log *b)
{
    size_t              count;
    lki_run_log_parting p = { .parts = true, .ends = true };
    if (has_results(a) != has_results(b))
        return p;
    column_pair *pairs = pair_columns(a, b, &count);
    p                  = walk(a, b, pairs, count);
    free(pairs);
    return p;
}

static void value_text(char text[TEXT], double value)
{
    char number[LK_NUMBER_BYTES];
    lk_number_text(number, value);
    (void)snprintf(text, TEXT, "%s (0x%016" PRIx64 ")", number, lki_bits_of(value));
    if (lki_is_absent(value))
        text[0] = '\0';
}

/* Finds the virtual workers of an element of a list by group, such as error_norms[3]. */
static void find_workers(const lki_diff *diff, lk_difference *d)
{
    unsigned    group;
    const char *at = strstr(d->name, "_norms[");
    if (at == NULL || sscanf(at, "_norms[%u]", &group) != 1 || diff->groups == 0 ||
        group >= diff->groups)
        return;
    d->worker_count = diff->virtual_workers / diff->groups;
    d->first_worker = group * d->worker_count;
}

static void report_value(lki_diff *diff, lk_difference d, double a, double b)
{
    char text_a[TEXT], text_b[TEXT];
    d.kind = LK_DIFFERENCE_LOG;
    d.a    = text_a;
    d.b    = text_b;
    value_text(text_a, a);
    value_text(text_b, b);
    find_workers(diff, &d);
    lki_diff_report(diff, &d);
}

/* Reports the first virtual worker whose losses differ, if both logs have them. */
static void report_worker(lki_diff *diff, const lki_run_log *a, const lki_run_log *b,
                          const lki_run_log_parting *p)
{
    char        *of_a = lki_run_log_losses(a, p->row_a), *of_b = lki_run_log_losses(b, p->row_b);
    const size_t worker = lki_first_of_losses(of_a, of_b);
    if (worker != SIZE_MAX)
        report_value(diff,
                     (lk_difference){ .step = p->step, .name = "loss", .worker_count = 1,
                                      .first_worker = (uint32_t)worker },
                     lki_loss_of_worker(of_a, worker), lki_loss_of_worker(of_b, worker));
    free(of_a);
    free(of_b);
}

/* Reports the values of one step: first the loss, then that of a virtual worker, then the others in
 * the order of the log. */
static void report_step(lki_diff *diff, const lki_run_log *a, const lki_run_log *b,
                        const lki_run_log_parting *p)
{
    size_t       count;
    column_pair *pairs = pair_columns(a, b, &count);
    for (size_t turn = 0; turn < 2; turn++) {
        if (turn == 1)
            report_worker(diff, a, b, p);
        for (size_t c = 0; c < count; c++) {
            bool   first = strcmp(pairs[c].a->name, "loss") == 0;
            double x     = p->row_a == SIZE_MAX ? lki_absent() : pairs[c].a->values[p->row_a];
            double y     = p->row_b == SIZE_MAX ? lki_absent() : pairs[c].b->values[p->row_b];
            if (first == (turn == 0) && values_differ(pairs[c].a, x, y))
                report_value(diff,
                             (lk_difference){ .step = p->step, .name = pairs[c].a->name }, x, y);
        }
    }
    free(pairs);
}

/* Returns the last row with a value that can be compared; SIZE_MAX if there is none.  The last line
 * of a log has a step, too, which may be later. */
static size_t last_result(const lki_run_log *log)
{
    for (size_t row = log->rows; row-- > 0;)
        for (size_t c = 0; c < log->column_count; c++)
            if (lki_is_result(log->columns[c].name) && !lki_is_absent(log->columns[c].values[row]))
                return row;
    return SIZE_MAX;
}

/* Describes the end of a log, and what it lacks of the end of the other one. */
static void end_text(char text[TEXT], const lki_run_log *log, const lki_run_log *other)
{
    char         step[32] = "no step";
    const size_t row      = last_result(log);
    if (row != SIZE_MAX)
        (void)snprintf(step, sizeof step, "step %" PRIu64, log->steps[row]);
    (void)snprintf(text, TEXT, "%s%s%s", step, log->unfinished ? ", then part of a line" : "",
                   log->last == NULL && other->last != NULL
                       ? ", without the last line, which has the hashes"
                       : "");
}

static void report_end(lki_diff *diff, const lki_run_log *a, const lki_run_log *b, uint64_t step)
{
    char          text_a[TEXT], text_b[TEXT];
    lk_difference d = {
        .kind = LK_DIFFERENCE_END, .step = step, .name = "", .a = text_a, .b = text_b
    };
    end_text(text_a, a, b);
    end_text(text_b, b, a);
    lki_diff_report(diff, &d);
}

/* Compares a text of the last lines, such as the hash of the weights.  A line that lacks it differs
 * from one that has it, unless the run has made no hashes, which is null. */
static void compare_text(lki_diff *diff, const lki_run_log *a, const lki_run_log *b,
                         const char *key)
{
    const char   *x = json_string_value(json_object_get(a->last, key));
    const char   *y = json_string_value(json_object_get(b->last, key));
    lk_difference d = { .kind = LK_DIFFERENCE_LOG, .step = a->step, .name = key, .a = x, .b = y };
    const bool hashed = !json_is_null(json_object_get(a->last, "weights")) &&
                        !json_is_null(json_object_get(b->last, "weights"));
    if (hashed && (x != NULL || y != NULL) && (x == NULL || y == NULL || strcmp(x, y) != 0))
        lki_diff_report(diff, &d);
}

/* Returns the first finding of an audit up to step `step`, or NULL. */
static const lki_run_log_event *finding_of(const lki_run_log *log, uint64_t step)
{
    for (size_t i = 0; i < log->event_count && log->events[i].step <= step; i++)
        if (json_is_object(json_object_get(log->events[i].line, "audit")))
            return &log->events[i];
    return NULL;
}

/* Reports an audit's finding of one log, because it names the virtual worker that was computed
 * differently. */
static void compare_audits(lki_diff *diff, const lki_run_log *a, const lki_run_log *b,
                           uint64_t step)
{
    const lki_run_log_event *x = finding_of(a, step), *y = finding_of(b, step);
    if ((x == NULL) == (y == NULL))
        return;
    const lki_run_log_event *found = x != NULL ? x : y;
    const json_t            *audit = json_object_get(found->line, "audit");
    const char              *what  = json_string_value(json_object_get(audit, "what"));
    lk_difference            d     = { .kind = LK_DIFFERENCE_LOG, .step = found->step };
    d.name                         = "audit";
    d.worker_count                 = 1;
    d.first_worker = (uint32_t)json_integer_value(json_object_get(audit, "virtual_worker"));
    *(x != NULL ? &d.a : &d.b) = what;
    lki_diff_report(diff, &d);
}

/* Returns true if the logs have values, final hashes or configurations that were compared. */
static bool has_common(const lki_run_log *a, const lki_run_log *b, const lki_run_log_parting *p)
{
    bool steps = has_results(a) || has_results(b);
    return p->parts || p->compared || (a->last != NULL && b->last != NULL) ||
           (!steps && a->config != NULL && b->config != NULL);
}

bool lki_diff_logs(lki_diff *diff, const lki_run_log *a, const lki_run_log *b)
{
    lki_run_log_parting p      = lki_run_log_part(a, b);
    bool                common = has_common(a, b, &p);
    bool uneven = a->unfinished != b->unfinished || (a->last == NULL) != (b->last == NULL);
    compare_audits(diff, a, b, p.parts && !p.ends ? p.step : UINT64_MAX);
    if (p.ends || (!p.parts && common && uneven))
        report_end(diff, a, b, p.step);
    else if (p.parts)
        report_step(diff, a, b, &p);
    else {
        compare_text(diff, a, b, "weights");
        compare_text(diff, a, b, "run");
    }
    return common;
}
