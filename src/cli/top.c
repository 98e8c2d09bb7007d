/* top.c -- reads a log and draws the state of the run; see top.h.  docs/log.md has the keys. */
#include "cli/top.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/values.h"

/* ---- Reading ------------------------------------------------------------------------------- */

static double real_of(const json_t *object, const char *key, double otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

/* No number of a log is negative. */
static uint64_t integer_of(const json_t *object, const char *key, uint64_t otherwise)
{
    const json_t    *value  = json_object_get(object, key);
    const json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
    return number >= 0 ? (uint64_t)number : otherwise;
}

static void text_of(const json_t *object, const char *key, char *out, size_t bytes)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (text != NULL)
        (void)snprintf(out, bytes, "%s", text);
}

static void add_point(lki_top *t, double loss)
{
    t->stride = t->stride > 0 ? t->stride : 1;
    t->sum += loss;
    if (++t->added < t->stride)
        return;
    t->points[t->point_count++] = t->sum / (double)t->added;
    t->sum                      = 0;
    t->added                    = 0;
    if (t->point_count < LKI_TOP_POINTS)
        return;
    for (uint32_t i = 0; i < LKI_TOP_POINTS / 2; i++)
        t->points[i] = (t->points[2 * i] + t->points[2 * i + 1]) / 2;
    t->point_count = LKI_TOP_POINTS / 2;
    t->stride *= 2;
}

__attribute__((format(printf, 2, 3))) static void add_event(lki_top *t, const char *format, ...)
{
    va_list args;
    if (t->event_count == LKI_TOP_EVENTS) {
        memmove(t->events[0], t->events[1], sizeof t->events - sizeof t->events[0]);
        t->event_count--;
    }
    va_start(args, format);
    (void)vsnprintf(t->events[t->event_count++], sizeof t->events[0], format, args);
    va_end(args);
}

/* Replaces the ranks by those of a list, which keep what the list does not say of them. */
static void add_ranks(lki_top *t, const json_t *list)
{
    const lki_top_rank nobody = { .rank = UINT32_MAX };
    lki_top_rank      *old       = t->old;
    const uint32_t     old_count = t->rank_count;
    size_t             index;
    json_t            *one;
    memcpy(old, t->ranks, old_count * sizeof *old);
    t->rank_count = 0;
    json_array_foreach((json_t *)(uintptr_t)list, index, one)
    {
        if (t->rank_count == LKI_TOP_RANKS)
            break;
        uint32_t      rank  = (uint32_t)integer_of(one, "rank", 0), known = 0;
        lki_top_rank *place = &t->ranks[t->rank_count++];
        while (known < old_count && old[known].rank != rank)
            known++;
        *place       = known < old_count ? old[known] : nobody;
        place->rank  = rank;
        place->host  = (uint32_t)integer_of(one, "host", place->host);
        place->pid   = integer_of(one, "pid", place->pid);
        place->first = integer_of(one, "first", 0);
        place->count = integer_of(one, "virtual_workers", 0);
        place->ms    = real_of(one, "ms", place->ms);
        text_of(one, "hostname", place->name, sizeof place->name);
    }
}

/* Removes the ranks of a list of numbers. */
static void drop_ranks(lki_top *t, const json_t *lost)
{
    uint32_t kept = 0;
    for (uint32_t r = 0; r < t->rank_count; r++) {
        bool gone = false;
        for (size_t i = 0; i < json_array_size(lost); i++)
            gone = gone || json_integer_value(json_array_get(lost, i)) == t->ranks[r].rank;
        if (!gone)
            t->ranks[kept++] = t->ranks[r];
    }
    t->rank_count = kept;
}

/* Takes the ranks after a loss, a departure or an entry.  Their times are of other shares. */
static void add_membership(lki_top *t, const json_t *change)
{
    const json_t *lost = json_object_get(change, "lost"), *left = json_object_get(change, "left");
    const json_t *entered = json_object_get(change, "entered");
    add_event(t, "step %llu: workers lost: %zu, left: %zu, entered: %zu; now %llu",
              (unsigned long long)t->step, json_array_size(lost), json_array_size(left),
              json_array_size(entered), (unsigned long long)integer_of(change, "workers", 0));
    for (uint32_t r = 0; r < t->rank_count; r++)
        t->ranks[r].ms = 0;
    if (json_object_get(change, "shares") != NULL)
        add_ranks(t, json_object_get(change, "shares"));
    else
        drop_ranks(t, lost);
}

static void add_header(lki_top *t, const json_t *line)
{
    text_of(json_object_get(line, "config"), "model", t->model, sizeof t->model);
    text_of(line, "exactness_id", t->exactness_id, sizeof t->exactness_id);
    t->parameters = integer_of(line, "parameters", 0);
    t->steps      = integer_of(line, "steps", 0);
    t->done       = false;
    t->rank_count = 0;
    if (t->step > 0)
        add_event(t, "step %llu: the run was resumed", (unsigned long long)t->step);
    add_ranks(t, json_object_get(line, "ranks"));
}

static void add_step(lki_top *t, const json_t *line)
{
    t->loss       = real_of(line, "loss", (double)NAN);
    t->has_loss   = true;
    t->epoch      = integer_of(line, "epoch", 0);
    t->has_epoch  = json_object_get(line, "epoch") != NULL;
    t->has_parts  = json_object_get(line, "compute_ms") != NULL;
    t->lr         = real_of(line, "lr", (double)NAN);
    t->norm       = real_of(line, "grad_norm", (double)NAN);
    t->samples    = real_of(line, "samples_per_s", 0);
    t->tokens     = real_of(line, "tokens_per_s", 0);
    t->step_ms    = real_of(line, "step_ms", 0);
    t->data_ms    = real_of(line, "data_ms", 0);
    t->compute_ms = real_of(line, "compute_ms", 0);
    t->finish_ms  = real_of(line, "finish_ms", 0);
    t->recent[t->recent_count++ % LKI_TOP_RECENT] = t->step_ms;
    if (isfinite(t->loss))
        add_point(t, t->loss);
}

static void add_evaluation(lki_top *t, const json_t *line)
{
    t->validation     = real_of(line, "val_loss", (double)NAN);
    t->accuracy       = real_of(line, "val_accuracy", (double)NAN);
    t->has_validation = true;
}

/* Adds a line about something that happened. */
static void add_other(lki_top *t, const json_t *line)
{
    unsigned long long step      = t->step;
    const json_t      *straggler = json_object_get(line, "straggler");
    const json_t      *moved     = json_object_get(line, "rebalance");
    const json_t      *saved     = json_object_get(line, "checkpoint");
    const json_t      *change    = json_object_get(line, "membership");
    const char        *error     = json_string_value(json_object_get(line, "error"));
    if (change != NULL)
        add_membership(t, change);
    else if (straggler != NULL && json_object_get(straggler, "rank") != NULL)
        add_event(t, "step %llu: rank %llu is slow, %.2f times the median (%s)", step,
                  (unsigned long long)integer_of(straggler, "rank", 0),
                  real_of(straggler, "times_median", 0),
                  json_string_value(json_object_get(straggler, "cause")));
    else if (straggler != NULL)
        add_event(t, "step %llu: a host's network is slow", step);
    else if (moved != NULL)
        add_event(t, "step %llu: virtual workers moved: %llu", step,
                  (unsigned long long)integer_of(moved, "moved", 0));
    else if (saved != NULL && error != NULL)
        add_event(t, "step %llu: the checkpoint was not written: %.60s", step, error);
    else if (saved != NULL)
        add_event(t, "step %llu: checkpoint", step);
    else if (json_object_get(line, "audit") != NULL)
        add_event(t, "step %llu: an audit found different results", step);
    if (moved != NULL)
        add_ranks(t, json_object_get(moved, "shares"));
}

void lki_top_add(lki_top *t, const char *text, size_t length)
{
    json_t *line = json_loadb(text, length, 0, NULL);
    if (!json_is_object(line)) {
        json_decref(line);
        return;
    }
    const double before = t->time;
    t->step  = integer_of(line, "step", t->step);
    t->time  = real_of(line, "time", t->time);
    t->begun = t->begun > 0 ? t->begun : t->time;
    if (json_object_get(line, "config") != NULL) {
        t->stopped += before > 0 ? t->time - before : 0;
        add_header(t, line);
    } else if (json_object_get(line, "loss_bits") != NULL)
        add_step(t, line);
    else if (json_object_get(line, "val_loss_bits") != NULL)
        add_evaluation(t, line);
    else if (json_object_get(line, "weights") != NULL) { /* null: nobody has asked for the hash */
        text_of(line, "weights", t->weights, sizeof t->weights);
        text_of(line, "ended", t->ended, sizeof t->ended);
        t->done = true;
    } else if (json_object_get(line, "workers") != NULL)
        add_ranks(t, json_object_get(line, "workers"));
    else
        add_other(t, line);
    json_decref(line);
}

bool lki_top_read(lki_top *t)
{
    char  *line = NULL;
    size_t room = 0;
    FILE  *file = fopen(t->path, "re");
    if (file == NULL)
        return false;
    (void)fseek(file, 0, SEEK_END);
    if (ftell(file) < t->at) /* a resumed run has cut it */
        *t = (lki_top){ .path = t->path };
    (void)fseek(file, t->at, SEEK_SET);
    for (ssize_t length; (length = getline(&line, &room, file)) > 0;) {
        if (line[length - 1] != '\n')
            break;
        lki_top_add(t, line, (size_t)length);
        t->at += length;
    }
    free(line);
    (void)fclose(file);
    return true;
}

/* ---- Drawing ------------------------------------------------------------------------------- */

typedef struct {
    const lki_top_screen *screen;
    FILE                 *out;
    size_t                row, column;
} painter;

static const char bold[] = "\033[1m", dim[] = "\033[2m", green[] = "\033[32m",
                  yellow[] = "\033[33m", red[] = "\033[31m", cyan[] = "\033[36m";

/* Returns the length of a control character in UTF-8, which could give orders to the terminal; 0:
 * `at` is none. */
static size_t control_bytes(const char *at)
{
    const unsigned char *c = (const unsigned char *)at;
    if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)
        return 2;
    return c[0] < ' ' || c[0] == 0x7f;
}

/* Writes text, cut at the right edge, and with ? for control characters, which names of files and
 * texts of logs may have. */
__attribute__((format(printf, 3, 4))) static void put(painter *p, const char *color,
                                                      const char *format, ...)
{
    char    text[2048];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (p->row >= p->screen->rows)
        return;
    bool colored = p->screen->color && color != NULL;
    fputs(colored ? color : "", p->out);
    for (const char *at = text; *at != '\0'; at++) {
        bool begins = ((unsigned char)*at & 0xc0) != 0x80;
        if (begins && p->column == p->screen->columns)
            break;
        p->column += begins;
        size_t control = control_bytes(at);
        fputc(control > 0 ? '?' : *at, p->out);
        at += control > 1;
    }
    fputs(colored ? "\033[0m" : "", p->out);
}

static void end_line(painter *p)
{
    if (p->row < p->screen->rows)
        fputc('\n', p->out);
    p->row++;
    p->column = 0;
}

static const char *time_text(double seconds, char text[32])
{
    unsigned long long s = seconds >= 0 && seconds < 1e9 ? (unsigned long long)(seconds + 0.5) : 0;
    if (s >= 3600)
        (void)snprintf(text, 32, "%llu:%02llu:%02llu", s / 3600, s / 60 % 60, s % 60);
    else
        (void)snprintf(text, 32, "%02llu:%02llu", s / 60, s % 60);
    return text;
}

static double column_of(const lki_top *t, size_t column, size_t columns)
{
    size_t first = column * t->point_count / columns;
    size_t end   = (column + 1) * t->point_count / columns;
    double sum   = 0;
    end          = end > first ? end : first + 1;
    for (size_t i = first; i < end; i++)
        sum += t->points[i];
    return sum / (double)(end - first);
}

/* Draws the curve with `rows` rows of eighths, and its scale on the right. */
static void draw_curve(painter *p, const lki_top *t, size_t rows)
{
    size_t columns = p->screen->columns > 12 ? p->screen->columns - 12 : 0;
    double low = (double)INFINITY, high = (double)-INFINITY;
    columns    = columns < t->point_count ? columns : t->point_count;
    if (columns < 2 || rows == 0)
        return;
    for (size_t c = 0; c < columns; c++) {
        low  = fmin(low, column_of(t, c, columns));
        high = fmax(high, column_of(t, c, columns));
    }
    double span = high > low ? high - low : 1;
    for (size_t row = rows; row-- > 0;) {
        for (size_t c = 0; c < columns; c++) {
            double share = (column_of(t, c, columns) - low) / span * (double)rows * 8;
            int    eight = (int)fmin(8, fmax(0, share - (double)row * 8 + (row == 0 ? 1 : 0)));
            if (!p->screen->unicode)
                put(p, cyan, "%s", eight > 3 ? "#" : eight > 0 ? "." : " ");
            else if (eight == 0)
                put(p, NULL, " ");
            else
                put(p, cyan, "\xe2\x96%c", 0x80 + eight);
        }
        if (row == rows - 1 || row == 0)
            put(p, dim, " %.4g", row == 0 ? low : high);
        end_line(p);
    }
}

static void draw_bar(painter *p, double share, size_t width, const char *color)
{
    size_t eight = (size_t)(fmin(1, fmax(0, share)) * (double)width * 8);
    for (size_t i = 0; i < width; i++) {
        size_t part = eight > i * 8 ? eight - i * 8 : 0;
        if (!p->screen->unicode)
            put(p, color, "%s", part >= 4 ? "#" : ".");
        else if (part == 0)
            put(p, dim, "\xe2\x94\x80");
        else
            put(p, color, "\xe2\x96%c", part >= 8 ? 0x88 : 0x90 - (int)part);
    }
}

/* Returns the median of the last steps in milliseconds, which a pause does not change. */
static double usual_step(const lki_top *t)
{
    double   sorted[LKI_TOP_RECENT];
    uint32_t count = t->recent_count < LKI_TOP_RECENT ? t->recent_count : LKI_TOP_RECENT;
    memcpy(sorted, t->recent, sizeof sorted);
    qsort(sorted, count, sizeof *sorted, lki_compare_numbers);
    return count > 0 ? sorted[count / 2] : 0;
}

/* Draws whether the run is going on.  Returns true if it is. */
static bool draw_state(painter *p, const lki_top *t)
{
    char   time[32];
    double age     = p->screen->now - t->time;
    bool   running = false;
    if (t->done && t->step < t->steps && t->ended[0] == '\0')
        put(p, yellow, "  stopped");
    else if (t->done)
        put(p, green, "  done%s%s", t->ended[0] != '\0' ? " by --" : "", t->ended);
    else if (p->screen->gone)
        put(p, red, "  ended %s ago without a result", time_text(age, time));
    else if (age > 30 && age > 20 * usual_step(t) / 1e3)
        put(p, red, "  silent for %s: it has ended, or waits", time_text(age, time));
    else
        running = true;
    if (running)
        put(p, green, "  running");
    return running;
}

static void draw_head(painter *p, const lki_top *t)
{
    char   time[32];
    bool   known = t->steps > 0 && t->step <= t->steps; /* programs may have several loops */
    put(p, bold, "%s", t->path);
    put(p, NULL, "  %s", t->model);
    if (t->parameters > 0)
        put(p, dim, "  %.3gM parameters", (double)t->parameters / 1e6);
    bool running = draw_state(p, t);
    end_line(p);
    size_t width = p->screen->columns > 60 ? p->screen->columns - 50 : 10;
    put(p, bold, known ? "step %llu/%llu " : "step %llu ", (unsigned long long)t->step,
        (unsigned long long)t->steps);
    if (known)
        draw_bar(p, (double)t->step / (double)t->steps, width, green);
    put(p, NULL, "  %s", time_text(t->time - t->begun - t->stopped, time));
    if (running && t->step < t->steps && t->recent_count > 0)
        put(p, NULL, ", %s left",
            time_text((double)(t->steps - t->step) * usual_step(t) / 1e3, time));
    end_line(p);
}

static void draw_values(painter *p, const lki_top *t)
{
    put(p, NULL, "loss ");
    put(p, bold, "%.4f", t->loss);
    if (t->has_validation)
        put(p, cyan, "  val %.4f", t->validation);
    if (t->has_validation && isfinite(t->accuracy))
        put(p, cyan, "  accuracy %.1f %%", 100 * t->accuracy);
    if (isfinite(t->lr)) /* a program may not log it */
        put(p, NULL, "  lr %.3g", t->lr);
    put(p, NULL, "  gradient %.3g", t->norm);
    if (t->has_epoch)
        put(p, NULL, "  epoch %llu", (unsigned long long)t->epoch);
    end_line(p);
    put(p, NULL, "%.0f %s/s  step %.1f ms", t->tokens > 0 ? t->tokens : t->samples,
        t->tokens > 0 ? "tokens" : "samples", t->step_ms);
    if (t->has_parts)
        put(p, NULL, ": data %.1f, compute %.1f, others and update %.1f", t->data_ms, t->compute_ms,
            t->finish_ms);
    end_line(p);
}

/* Draws a row a worker: the bar is its time in the step; the slowest is the one waited for. */
static void draw_ranks(painter *p, const lki_top *t, size_t rows)
{
    double longest = 0, sum = 0;
    bool   names = p->screen->columns >= 100;
    for (uint32_t r = 0; r < t->rank_count; r++) {
        longest = fmax(longest, t->ranks[r].ms);
        sum += t->ranks[r].ms;
    }
    double mean  = t->rank_count > 0 ? sum / t->rank_count : 0;
    size_t taken = names ? 78 : 57; /* by the columns and "waited for" */
    size_t width = p->screen->columns > taken + 8 ? p->screen->columns - taken : 8;
    width        = width < 60 ? width : 60;
    put(p, dim, "%5s %4s %-*s%8s %-12s %9s", "rank", "host", names ? 20 : 0, names ? " name" : "",
        "pid", "  virtual", "ms");
    end_line(p);
    for (uint32_t r = 0; r < t->rank_count; r++) {
        const lki_top_rank *one = &t->ranks[r];
        if (r + 1 >= rows && t->rank_count > rows) {
            put(p, dim, "      and %u more", t->rank_count - r);
            end_line(p);
            break;
        }
        bool slow = one->ms > 0 && one->ms == longest && one->ms > 1.1 * mean;
        char share[32] = "";
        if (one->count > 0)
            (void)snprintf(share, sizeof share, "%llu-%llu", (unsigned long long)one->first,
                           (unsigned long long)(one->first + one->count - 1));
        put(p, NULL, "%5u %4u %-*.*s%8llu   %-10s", one->rank, one->host, names ? 20 : 0,
            names ? 19 : 0, one->name, (unsigned long long)one->pid, share);
        if (longest <= 0) { /* the log has no times of ranks */
            end_line(p);
            continue;
        }
        put(p, NULL, " %9.2f  ", one->ms);
        draw_bar(p, one->ms / longest, width, slow ? yellow : green);
        if (slow)
            put(p, yellow, " waited for");
        end_line(p);
    }
}

static void draw_events(painter *p, const lki_top *t, size_t most)
{
    uint32_t first = t->event_count > most ? t->event_count - (uint32_t)most : 0;
    for (uint32_t i = first; i < t->event_count; i++) {
        put(p, dim, "%s", t->events[i]);
        end_line(p);
    }
}

void lki_top_draw(const lki_top *t, const lki_top_screen *screen, FILE *out)
{
    painter p = { screen, out, 0, 0 };
    draw_head(&p, t);
    if (!t->has_loss) {
        put(&p, dim, "no step yet");
        end_line(&p);
        return;
    }
    draw_values(&p, t);
    size_t left   = screen->rows > 6 ? screen->rows - 6 : 0; /* 4 so far, and the table's */
    size_t events = left > 8 ? (t->event_count < 4 ? t->event_count : 4) : 0;
    left -= events;
    size_t ranks = t->rank_count < left / 2 ? t->rank_count : (left + 1) / 2;
    size_t curve = left > ranks ? left - ranks : 0;
    draw_curve(&p, t, curve < 16 ? curve : 16);
    draw_ranks(&p, t, ranks);
    draw_events(&p, t, events);
    if (t->done && t->weights[0] != '\0') {
        put(&p, NULL, "weights %s", t->weights);
        end_line(&p);
    }
}
