/* run_log.c -- reads the log of a run line by line into columns.  See run_log.h. */
#include "report/run_log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "base/memory.h"

#define LOSSES "virtual_losses"

/* A NaN that no computation gives: its payload is a word of our own. */
static const uint64_t ABSENT = UINT64_C(0x7ff86c6b6162736e);

uint64_t lki_bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

double lki_double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

double lki_absent(void)
{
    return lki_double_of(ABSENT);
}

bool lki_is_absent(double value)
{
    return lki_bits_of(value) == ABSENT;
}

bool lki_value_of_bits(const char *hex, double *value)
{
    char *end;
    if (hex == NULL || strlen(hex) != 16 || strspn(hex, "0123456789abcdef") != 16)
        return false;
    *value = lki_double_of(strtoull(hex, &end, 16));
    return true;
}

/* ---- Columns ------------------------------------------------------------------------------- */

static lk_status grow_rows(lki_run_log *log)
{
    size_t capacity = lki_max(1024, 2 * log->row_capacity);
    if (log->rows < log->row_capacity)
        return LK_OK;
    uint64_t *steps = realloc(log->steps, capacity * sizeof *steps);
    if (steps == NULL)
        return lk_fail(LK_ENOMEM, "%zu rows of the log '%s'", capacity, log->path);
    log->steps             = steps;
    lki_losses_line *lines = realloc(log->lines, capacity * sizeof *lines);
    if (lines == NULL)
        return lk_fail(LK_ENOMEM, "%zu rows of the log '%s'", capacity, log->path);
    log->lines = lines;
    for (size_t c = 0; c < log->column_count; c++) {
        double *values = realloc(log->columns[c].values, capacity * sizeof *values);
        if (values == NULL)
            return lk_fail(LK_ENOMEM, "%zu rows of the log '%s'", capacity, log->path);
        log->columns[c].values = values;
    }
    log->row_capacity = capacity;
    return LK_OK;
}

/* Returns the slot of the column `name`, or the free slot that it would have. */
static size_t slot_of(const lki_run_log *log, const char *name)
{
    size_t at = lki_xxh3(name, strlen(name)) % LKI_COLUMN_SLOTS;
    while (log->slots[at] != 0 && strcmp(log->columns[log->slots[at] - 1].name, name) != 0)
        at = (at + 1) % LKI_COLUMN_SLOTS;
    return at;
}

/* Sets *out to the column `name`, which is added if it does not exist, or to NULL if there are too
 * many. */
static lk_status column_of(lki_run_log *log, const char *name, lki_column **out)
{
    const size_t at = slot_of(log, name);
    *out            = NULL;
    if (log->slots[at] != 0) {
        *out = &log->columns[log->slots[at] - 1];
        return LK_OK;
    }
    if (log->column_count == LKI_COLUMNS_MAX) {
        log->results_lost += lki_is_result(name);
        return LK_OK;
    }
    LK_TRY(lki_reserve((void **)&log->columns, &log->column_capacity, log->column_count,
                       sizeof *log->columns, "columns of a log"));
    lki_column *column = &log->columns[log->column_count];
    *column = (lki_column){ strdup(name), malloc(log->row_capacity * sizeof *column->values) };
    if (column->name == NULL || column->values == NULL) {
        free(column->name);
        free(column->values);
        return lk_fail(LK_ENOMEM, "a column of the log '%s'", log->path);
    }
    for (size_t r = 0; r < log->rows; r++)
        column->values[r] = lki_absent();
    log->slots[at] = (uint16_t)++log->column_count;
    *out           = column;
    return LK_OK;
}

const lki_column *lki_run_log_column(const lki_run_log *log, const char *name)
{
    const size_t number = log != NULL ? log->slots[slot_of(log, name)] : 0;
    return number > 0 ? &log->columns[number - 1] : NULL;
}

static lk_status set_value(lki_run_log *log, const char *name, double value)
{
    lki_column *column;
    LK_TRY(column_of(log, name, &column));
    if (column != NULL)
        column->values[log->rows - 1] = value;
    return LK_OK;
}

/* ---- Losses of virtual workers -------------------------------------------------------------- */

/* Reads the line of a log at an offset. */
static json_t *line_at(const char *path, uint64_t offset)
{
    char   *text = NULL;
    size_t  room = 0;
    json_t *line = NULL;
    FILE   *file = fopen(path, "re");
    if (file == NULL)
        return NULL;
    if (fseeko(file, (off_t)offset, SEEK_SET) == 0 && getline(&text, &room, file) > 0)
        line = json_loads(text, 0, NULL);
    free(text);
    (void)fclose(file);
    return line;
}

char *lki_run_log_losses(const lki_run_log *log, size_t row)
{
    if (row >= log->rows || log->lines[row].at == UINT64_MAX)
        return NULL;
    json_t     *line   = line_at(log->path, log->lines[row].at);
    const char *losses = json_string_value(json_object_get(line, LOSSES));
    const json_int_t step = json_integer_value(json_object_get(line, "step"));
    char *copy = NULL;
    if (losses != NULL && step == (json_int_t)log->steps[row] && losses[0] != '\0' &&
        strlen(losses) % LKI_LOSS_DIGITS == 0 &&
        strspn(losses, "0123456789abcdef") == strlen(losses))
        copy = strdup(losses);
    json_decref(line);
    return copy;
}

size_t lki_first_of_losses(const char *a, const char *b)
{
    size_t at = 0;
    if (a == NULL || b == NULL || strlen(a) != strlen(b))
        return SIZE_MAX;
    while (a[at] != '\0' && a[at] == b[at])
        at++;
    return a[at] != '\0' ? at / LKI_LOSS_DIGITS : SIZE_MAX;
}

double lki_loss_of_worker(const char *losses, size_t worker)
{
    char   bits[LKI_LOSS_DIGITS + 1];
    double value = lki_absent();
    (void)snprintf(bits, sizeof bits, "%.*s", LKI_LOSS_DIGITS, losses + worker * LKI_LOSS_DIGITS);
    (void)lki_value_of_bits(bits, &value);
    return value;
}

/* ---- Lines --------------------------------------------------------------------------------- */

/* Removes rows and events after step `step`. */
static void forget_after(lki_run_log *log, uint64_t step)
{
    while (log->rows > 0 && log->steps[log->rows - 1] > step)
        log->rows--;
    while (log->event_count > 0 && log->events[log->event_count - 1].step > step)
        json_decref(log->events[--log->event_count].line);
    json_decref(log->last); /* of a run that was continued */
    log->last = NULL;
}

static lk_status begin_row(lki_run_log *log, uint64_t step)
{
    if (log->begun && step < log->step)
        forget_after(log, step);
    log->begun = true;
    log->step  = step;
    if (log->rows > 0 && log->steps[log->rows - 1] == step)
        return LK_OK;
    LK_TRY(grow_rows(log));
    log->lines[log->rows]   = (lki_losses_line){ .at = UINT64_MAX };
    log->steps[log->rows++] = step;
    for (size_t c = 0; c < log->column_count; c++)
        log->columns[c].values[log->rows - 1] = lki_absent();
    return LK_OK;
}

/* Returns true if a line with this member is kept whole. */
static bool is_event(const char *key, const json_t *value)
{
    return json_is_object(value) || strcmp(key, "checkpoint") == 0 ||
           strcmp(key, "freeze_step") == 0;
}

static lk_status add_list(lki_run_log *log, const char *key, const json_t *list)
{
    const size_t room   = strlen(key) + 32;
    char        *name   = NULL;
    lk_status    status = LKI_NEW(&name, room, "the name of a column");
    for (size_t i = 0; i < json_array_size(list) && status == LK_OK; i++) {
        const json_t *value = json_array_get(list, i);
        (void)snprintf(name, room, "%s[%zu]", key, i);
        if (json_is_number(value))
            status = set_value(log, name, json_number_value(value));
    }
    lki_free(name);
    return status;
}

/* Stores the times of ranks, from a list of {"rank": 1, "ms": 2.5}, as columns rank_ms[1]. */
static lk_status add_ranks(lki_run_log *log, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        char          name[32];
        const json_t *rank = json_object_get(json_array_get(list, i), "rank");
        const json_t *ms   = json_object_get(json_array_get(list, i), "ms");
        if (!json_is_integer(rank) || !json_is_number(ms))
            continue;
        (void)snprintf(name, sizeof name, "rank_ms[%lld]", (long long)json_integer_value(rank));
        LK_TRY(set_value(log, name, json_number_value(ms)));
    }
    return LK_OK;
}

/* Refuses the bits of a loss that are none. */
static lk_status check_bits(const lki_run_log *log, const char *key, const json_t *value)
{
    double unused;
    bool   bits = strcmp(key, "loss_bits") == 0 || strcmp(key, "val_loss_bits") == 0;
    if (!bits || lki_value_of_bits(json_string_value(value), &unused))
        return LK_OK;
    char     *text   = json_dumps(value, JSON_ENCODE_ANY);
    lk_status status = lk_fail(LK_EFORMAT, "line %zu of the log '%s': %s is %.60s, and not a text "
                               "of 16 hexadecimal digits", log->line_count, log->path, key,
                               text != NULL ? text : "");
    free(text);
    return status;
}

/* Stores the value of a member KEY_bits as that of KEY.  Returns false in *is if it is none. */
static lk_status add_exact(lki_run_log *log, const char *key, const json_t *value, bool *is)
{
    double       exact;
    const size_t length = strlen(key);
    *is = length > 5 && strcmp(key + length - 5, "_bits") == 0 &&
          lki_value_of_bits(json_string_value(value), &exact);
    if (!*is)
        return LK_OK;
    char *name = strndup(key, length - 5);
    if (name == NULL)
        return lk_fail(LK_ENOMEM, "a line of the log '%s'", log->path);
    const lk_status status = set_value(log, name, exact);
    log->has_bits          = true;
    free(name);
    return status;
}

/* Stores the numbers of a line.  The member KEY_bits has the exact value of KEY, which is null if
 * it is not finite. */
static lk_status add_numbers(lki_run_log *log, json_t *line)
{
    const char *key;
    json_t     *value;
    if (json_object_get(line, "loss") != NULL) /* also if it repeats the step */
        log->lines[log->rows - 1] = (lki_losses_line){ .at = UINT64_MAX };
    json_object_foreach(line, key, value)
    {
        bool is_exact;
        if (strcmp(key, "step") == 0)
            continue;
        LK_TRY(check_bits(log, key, value));
        LK_TRY(add_exact(log, key, value, &is_exact));
        if (is_exact) {
            continue;
        } else if (strcmp(key, LOSSES) == 0 && json_is_string(value)) {
            log->lines[log->rows - 1] = (lki_losses_line){
                log->offset, lki_xxh3(json_string_value(value), json_string_length(value)) };
        } else if (strcmp(key, "label") == 0 && json_is_string(value)) {
            (void)snprintf(log->label, sizeof log->label, "%s", json_string_value(value));
        } else if (json_is_number(value) || json_is_null(value)) {
            LK_TRY(set_value(log, key,
                             json_is_null(value) ? lki_double_of(UINT64_C(0x7ff8) << 48)
                                                 : json_number_value(value)));
        } else if (strcmp(key, "workers") == 0 && json_is_array(value)) {
            LK_TRY(add_ranks(log, value));
        } else if (json_is_array(value)) {
            LK_TRY(add_list(log, key, value));
        }
    }
    return LK_OK;
}

static lk_status add_event(lki_run_log *log, json_t *line)
{
    if (log->event_count == LKI_EVENTS_MAX) {
        log->events_lost++;
        return LK_OK;
    }
    LK_TRY(lki_reserve((void **)&log->events, &log->event_capacity, log->event_count,
                       sizeof *log->events, "events of a log"));
    log->events[log->event_count++] = (lki_run_log_event){ log->step, json_incref(line) };
    return LK_OK;
}

/* Takes the configuration and the hash of the data from the line that describes the run:
 * {"run": {"config": {...}}} or {"config": {...}}. */
static bool take_config(lki_run_log *log, json_t *line)
{
    json_t *run    = json_object_get(line, "run");
    json_t *config = json_object_get(json_is_object(run) ? run : line, "config");
    if (!json_is_object(run) && !json_is_object(config))
        return false;
    json_decref(log->config);
    log->config = json_incref(json_is_object(config) ? config : run);

    const char      *data  = json_string_value(json_object_get(line, "data"));
    const json_int_t steps = json_integer_value(json_object_get(line, "steps"));
    log->planned           = steps > 0 ? (uint64_t)steps : 0;
    (void)snprintf(log->data, sizeof log->data, "%s", data != NULL ? data : "");
    return true;
}

static lk_status add_line(lki_run_log *log, json_t *line)
{
    const char   *key;
    json_t       *value;
    bool          kept   = false;
    const json_t *number = json_object_get(line, "step");
    bool          header = take_config(log, line);

    if (json_is_integer(number) && json_integer_value(number) >= 0 && !header)
        LK_TRY(begin_row(log, (uint64_t)json_integer_value(number)));
    else if (!header && log->rows == 0 && log->config == NULL)
        return lk_fail(LK_EFORMAT, "line %zu of '%s' has no step, so this is no log",
                       log->line_count, log->path);
    else if (!header && log->rows == 0)
        LK_TRY(begin_row(log, 0));
    if (!header && json_object_get(line, "loss") != NULL)
        log->end = log->planned;
    json_object_foreach(line, key, value) kept = kept || is_event(key, value);
    if (kept)
        LK_TRY(add_event(log, line));
    value = json_object_get(line, "weights"); /* null: nobody has asked for the hash */
    if (json_is_string(value) || json_is_null(value)) {
        json_decref(log->last);
        log->last = json_incref(line);
    }
    return header ? LK_OK : add_numbers(log, line);
}

static lk_status parse_line(lki_run_log *log, const char *text, size_t bytes)
{
    json_error_t error;
    log->line_count++;
    if (bytes == 0)
        return LK_OK;
    json_t *line = json_loadb(text, bytes, JSON_ALLOW_NUL, &error);
    if (!json_is_object(line)) {
        json_decref(line);
        return lk_fail(LK_EFORMAT, "line %zu of '%s' is no JSON object, so this is no log%s%s",
                       log->line_count, log->path, line == NULL ? ": " : "",
                       line == NULL ? error.text : "");
    }
    lk_status status = add_line(log, line);
    json_decref(line);
    return status;
}

/* ---- The file ------------------------------------------------------------------------------ */

static void forget(lki_run_log *log)
{
    forget_after(log, 0);
    log->rows = 0;
    for (size_t i = 0; i < log->event_count; i++)
        json_decref(log->events[i].line);
    for (size_t c = 0; c < log->column_count; c++) {
        free(log->columns[c].name);
        free(log->columns[c].values);
    }
    memset(log->slots, 0, sizeof log->slots);
    json_decref(log->config);
    log->config      = NULL;
    log->event_count = log->column_count = log->events_lost = log->results_lost = 0;
    log->line_count = log->tail_bytes     = 0;
    log->offset = log->planned = log->end = 0;
    log->begun = log->has_bits = false;
    log->label[0] = log->data[0] = '\0';
}

static lk_status keep_tail(lki_run_log *log, const char *line, size_t bytes)
{
    char *tail = realloc(log->tail, bytes + 1);
    if (tail == NULL)
        return lk_fail(LK_ENOMEM, "a line of the log '%s'", log->path);
    memcpy(tail, line, bytes);
    log->tail       = tail;
    log->tail_bytes = bytes;
    return LK_OK;
}

/* Returns true if the file still has, at the same place, the last line that was read. */
static bool continues(const lki_run_log *log, FILE *file, const struct stat *info)
{
    bool  same = true;
    char *text = malloc(log->tail_bytes + 1);
    if (info->st_dev != (dev_t)log->device || info->st_ino != (ino_t)log->inode ||
        (uint64_t)info->st_size < log->offset || text == NULL)
        same = false;
    if (same && log->tail_bytes > 0)
        same = fseeko(file, (off_t)(log->offset - log->tail_bytes - 1), SEEK_SET) == 0 &&
               fread(text, 1, log->tail_bytes + 1, file) == log->tail_bytes + 1 &&
               memcmp(text, log->tail, log->tail_bytes) == 0 && text[log->tail_bytes] == '\n';
    free(text);
    return same;
}

static lk_status read_lines(lki_run_log *log, FILE *file, bool *changed)
{
    char     *line     = NULL;
    size_t    capacity = 0;
    ssize_t   bytes;
    lk_status status = LK_OK;
    log->unfinished  = false;
    while (status == LK_OK && (bytes = getline(&line, &capacity, file)) > 0) {
        if (line[bytes - 1] != '\n') {
            log->unfinished = true;
            break;
        }
        status = parse_line(log, line, (size_t)bytes - 1);
        log->offset += (uint64_t)bytes;
        *changed = true;
        if (status == LK_OK && log->offset > 0)
            status = keep_tail(log, line, (size_t)bytes - 1);
    }
    if (status == LK_OK && ferror(file))
        status = lk_fail(LK_EIO, "cannot read the log '%s': %s", log->path, strerror(errno));
    free(line);
    return status;
}

lk_status lki_run_log_update(lki_run_log *log, bool *changed)
{
    struct stat info;
    *changed   = false;
    FILE *file = fopen(log->path, "re");
    if (file == NULL || fstat(fileno(file), &info) != 0) {
        lk_status status = lk_fail(LK_EIO, "cannot read the log '%s': %s", log->path,
                                   strerror(errno));
        if (file != NULL)
            (void)fclose(file);
        return status;
    }
    if (!continues(log, file, &info)) {
        *changed = log->offset > 0;
        forget(log);
        log->device = (uint64_t)info.st_dev;
        log->inode  = (uint64_t)info.st_ino;
    }
    lk_status status = LK_OK;
    if (fseeko(file, (off_t)log->offset, SEEK_SET) == 0)
        status = read_lines(log, file, changed);
    (void)fclose(file);
    return status;
}

lk_status lki_run_log_open(lki_run_log **out, const char *path)
{
    lki_run_log *log = NULL;
    bool         changed;
    *out = NULL;
    LK_TRY(LKI_NEW(&log, 1, "a log"));
    log->path        = strdup(path);
    lk_status status = log->path == NULL ? lk_fail(LK_ENOMEM, "the path of a log") : LK_OK;
    if (status == LK_OK)
        status = lki_run_log_update(log, &changed);
    if (status != LK_OK) {
        lki_run_log_free(log);
        return status;
    }
    *out = log;
    return LK_OK;
}

void lki_run_log_free(lki_run_log *log)
{
    if (log == NULL)
        return;
    forget(log);
    lki_free(log->columns);
    lki_free(log->events);
    free(log->steps);
    free(log->lines);
    free(log->tail);
    free(log->path);
    lki_free(log);
}
