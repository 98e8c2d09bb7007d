/* display.c -- the progress of a run on stderr.
 *
 * On a terminal the bar is one line, which is redrawn in place: steps, a bar, the loss and its
 * curve over all steps, the last validation loss, the rate, the time left, and who is waited for.
 * The line fits the terminal; in a wrapped line the carriage return would not return to the
 * beginning.  Narrow terminals lose the curve first, then the bar, and then the last fields.
 */
#include "train/core/display.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

enum { PLAIN_LINES = 20, BAR_LEAST = 6, BAR_MOST = 30, CURVE_LEAST = 6, CURVE_MOST = 40 };
#define REDRAW_SECONDS 0.05
#define LINE_SECONDS 10.0

/* ---- The curve ----------------------------------------------------------------------------- */

void lki_curve_add(lki_curve *curve, double value)
{
    if (!isfinite(value))
        return;
    if (curve->stride == 0)
        curve->stride = 1;
    curve->sum += value;
    if (++curve->added < curve->stride)
        return;
    curve->values[curve->count++] = curve->sum / (double)curve->added;
    curve->sum                    = 0;
    curve->added                  = 0;
    if (curve->count < LKI_CURVE)
        return;
    for (uint32_t i = 0; i < LKI_CURVE / 2; i++)
        curve->values[i] = (curve->values[2 * i] + curve->values[2 * i + 1]) / 2;
    curve->count = LKI_CURVE / 2;
    curve->stride *= 2;
}

/* Returns the mean of the parts that fall into a column. */
static double column_of(const lki_curve *curve, size_t column, size_t columns)
{
    size_t first = column * curve->count / columns, end = (column + 1) * curve->count / columns;
    double sum   = 0;
    end          = lki_max(end, first + 1);
    for (size_t i = first; i < end; i++)
        sum += curve->values[i];
    return sum / (double)(end - first);
}

size_t lki_curve_draw(const lki_curve *curve, size_t columns, char *out, size_t bytes)
{
    double low = (double)INFINITY, high = (double)-INFINITY;
    out[0]     = '\0';
    columns    = lki_min(columns, curve->count);
    for (size_t c = 0; c < columns; c++) {
        low  = fmin(low, column_of(curve, c, columns));
        high = fmax(high, column_of(curve, c, columns));
    }
    size_t used = 0;
    for (size_t c = 0; c < columns && used + 4 <= bytes; c++) {
        double share = high > low ? (column_of(curve, c, columns) - low) / (high - low) : 0;
        used += (size_t)snprintf(out + used, bytes - used, "\xe2\x96%c",
                                 0x81 + (int)lki_min((uint64_t)(share * 8), 7));
    }
    return columns;
}

/* ---- The line ------------------------------------------------------------------------------ */

/* Text with its width: colours have none, and all characters have one. */
typedef struct {
    char  *out;
    size_t bytes, used, columns;
    bool   color;
} line;

__attribute__((format(printf, 3, 4))) static void put(line *l, const char *color,
                                                      const char *format, ...)
{
    char    text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    bool colored = l->color && color != NULL;
    if (l->used + strlen(text) + 16 > l->bytes)
        return;
    l->used += (size_t)snprintf(l->out + l->used, l->bytes - l->used, "%s%s%s",
                                colored ? color : "", text, colored ? "\033[0m" : "");
    for (const char *at = text; *at != '\0'; at++)
        l->columns += ((unsigned char)*at & 0xc0) != 0x80;
}

static const char bold[] = "\033[1m", dim[] = "\033[2m", green[] = "\033[32m",
                  yellow[] = "\033[33m", cyan[] = "\033[36m";

static void put_bar(line *l, bool unicode, uint64_t step, uint64_t end, size_t width)
{
    static const char *const eighths[] = { "",             "\xe2\x96\x8f", "\xe2\x96\x8e",
                                           "\xe2\x96\x8d", "\xe2\x96\x8c", "\xe2\x96\x8b",
                                           "\xe2\x96\x8a", "\xe2\x96\x89" };
    char   text[4 * BAR_MOST + 1] = "";
    size_t eight = end > 0 ? (size_t)(lki_min(step, end) * width * 8 / end) : 0, used = 0;
    for (size_t i = 0; i < width; i++) {
        const char *mark = unicode ? " " : ".";
        if (i < eight / 8)
            mark = unicode ? "\xe2\x96\x88" : "#";
        else if (unicode && i == eight / 8 && eight % 8 > 0)
            mark = eighths[eight % 8];
        used += (size_t)snprintf(text + used, sizeof text - used, "%s", mark);
    }
    put(l, NULL, "%s", unicode ? " \xe2\x96\x95" : " [");
    put(l, green, "%s", text);
    put(l, NULL, "%s", unicode ? "\xe2\x96\x8f" : "]");
}

/* Writes a number in a few characters, such as 12.3k. */
static const char *short_number(double value, char text[24])
{
    if (value >= 1e6)
        (void)snprintf(text, 24, "%.2fM", value / 1e6);
    else if (value >= 1e4)
        (void)snprintf(text, 24, "%.1fk", value / 1e3);
    else
        (void)snprintf(text, 24, "%.0f", value);
    return text;
}

static const char *time_text(double seconds, char text[32])
{
    uint64_t s = seconds >= 0 && seconds < 1e9 ? (uint64_t)(seconds + 0.5) : 0;
    if (s >= 3600)
        (void)snprintf(text, 32, "%llu:%02llu:%02llu", (unsigned long long)s / 3600,
                       (unsigned long long)s / 60 % 60, (unsigned long long)s % 60);
    else
        (void)snprintf(text, 32, "%02llu:%02llu", (unsigned long long)s / 60,
                       (unsigned long long)s % 60);
    return text;
}

/* Writes the first `count` of what stands right of the curve: time left, validation loss, rate, who
 * is waited for. */
static void put_rest(line *l, const lki_display *d, const lki_step_record *r, double left,
                     unsigned count)
{
    char number[24], time[32];
    if (count >= 1)
        put(l, NULL, "  %s left", time_text(left, time));
    if (count >= 2 && isfinite(d->validation))
        put(l, cyan, "  val %.4f", d->validation);
    if (count >= 3)
        put(l, NULL, "  %s %s/s", short_number(d->rate, number),
            r->tokens > 0 ? "tokens" : "samples");
    if (count >= 4 && d->waits[0] != '\0')
        put(l, yellow, "  waits for %s", d->waits);
}

void lki_display_line(const lki_display *d, const lki_step_record *r, size_t columns, double left,
                      char *out, size_t bytes)
{
    bool unicode = (d->config->outputs.terminal & LK_TERMINAL_UNICODE) != 0;
    bool color   = (d->config->outputs.terminal & LK_TERMINAL_COLOR) != 0;
    char rest[768] = "", curve[4 * CURVE_MOST + 4];
    line l = { out, bytes, 0, 0, color }, tail = { rest, sizeof rest, 0, 0, color };
    out[0] = '\0';
    put(&l, bold, "%llu/%llu", (unsigned long long)r->step, (unsigned long long)d->end);
    size_t fixed = l.columns + (size_t)snprintf(NULL, 0, "  loss %.4f", r->loss);
    for (unsigned count = 4; count > 0; count--) { /* as many fields as fit */
        tail = (line){ rest, sizeof rest, 0, 0, color };
        put_rest(&tail, d, r, left, count);
        if (fixed + tail.columns <= columns)
            break;
        rest[0]      = '\0';
        tail.columns = 0;
    }
    fixed += tail.columns;
    size_t room  = columns > fixed ? columns - fixed : 0;
    size_t bar   = room >= BAR_LEAST + 3 ? room - 3 : 0;
    bar          = lki_min(BAR_MOST, unicode ? (bar + 1) / 2 : bar); /* the other half: a curve */
    if (bar > 0)
        put_bar(&l, unicode, r->step, d->end, bar);
    put(&l, NULL, "  loss ");
    put(&l, bold, "%.4f", r->loss);
    room -= bar > 0 ? bar + 3 : 0;
    if (unicode && room >= CURVE_LEAST + 1 && d->curve.count >= 2) {
        (void)lki_curve_draw(&d->curve, lki_min(CURVE_MOST, room - 1), curve, sizeof curve);
        put(&l, dim, " %s", curve);
    }
    put(&l, NULL, "%s", rest);
    if (fixed > columns) /* the terminal is narrower than the loss */
        out[0] = '\0';
}

/* ---- Drawing ------------------------------------------------------------------------------- */

static size_t terminal_columns(void)
{
    struct winsize size;
    bool           known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return known ? size.ws_col : 80;
}

/* Returns the columns of the line.  The terminal may write ^C behind it. */
static size_t line_columns(void)
{
    const size_t columns = terminal_columns();
    return columns > 3 ? columns - 3 : 0;
}

void lki_display_open(lki_display *display, const lk_train_config *config)
{
    *display = (lki_display){ .config = config, .validation = (double)NAN };
    display->terminal =
        isatty(STDERR_FILENO) == 1 && (config->outputs.terminal & LK_TERMINAL_DUMB) == 0;
}

void lki_display_begin(lki_display *display, uint64_t start, uint64_t end)
{
    display->begun = lki_seconds();
    display->start = start;
    display->end   = end;
}

void lki_display_wait(lki_display *d, uint64_t done)
{
    char text[80];
    int  columns = snprintf(text, sizeof text, "%llu/%llu  computing step %llu",
                            (unsigned long long)done, (unsigned long long)d->end,
                            (unsigned long long)done + 1);
    if (!d->terminal || d->config->quiet || done >= d->end || (size_t)columns > line_columns())
        return;
    fprintf(stderr, "\r\033[K%s", text);
    d->bar_shown = true;
}

void lki_display_clear(lki_display *display)
{
    if (display->bar_shown)
        fputs("\r\033[K", stderr);
    display->bar_shown = false;
}

void lki_display_end(lki_display *d, const lki_step_record *last, const char *hashes)
{
    char time[32], validation[32] = "", curve[4 * CURVE_MOST + 4] = "";
    if (!d->terminal || d->config->quiet || last->step <= d->start)
        return;
    lki_display_clear(d);
    if (isfinite(d->validation))
        (void)snprintf(validation, sizeof validation, ", validation %.4f", d->validation);
    if ((d->config->outputs.terminal & LK_TERMINAL_UNICODE) != 0)
        (void)lki_curve_draw(&d->curve, CURVE_MOST / 2, curve, sizeof curve);
    fprintf(stderr, "%llu steps in %s: loss %.4f%s%s%s\n",
            (unsigned long long)(last->step - d->start), time_text(lki_seconds() - d->begun, time),
            last->loss, curve[0] != '\0' ? " " : "", curve, validation);
    if (hashes != NULL)
        fprintf(stderr, "%s the same for any workers:\n", hashes);
}

bool lki_display_is_due(const lki_display *d, uint64_t step, double now)
{
    const uint64_t every = lki_max(1, d->end / PLAIN_LINES);
    const double   gap   = fmax(LINE_SECONDS, (now - d->begun) / PLAIN_LINES);
    return step == d->start + 1 || step == d->end || step % every == 0 || now - d->shown >= gap;
}

void lki_display_step(lki_display *d, const lki_step_record *r)
{
    char     text[1536];
    uint64_t steps = d->end, done = r->step - d->start;
    double   now   = lki_seconds();
    double   left  = (now - d->begun) / (double)done * (double)(steps - r->step);
    double   units = lki_per_second(r, r->tokens > 0 ? r->tokens : r->samples);

    lki_curve_add(&d->curve, r->loss);
    d->rate = d->rate > 0 && isfinite(units) ? 0.9 * d->rate + 0.1 * units : units;
    if (d->config->quiet)
        return;
    if (d->terminal && (r->step == steps || now - d->shown > REDRAW_SECONDS)) {
        lki_display_line(d, r, line_columns(), left, text, sizeof text);
        fprintf(stderr, "\r\033[K%s", text);
        d->bar_shown = true;
        d->shown     = now;
    } else if (!d->terminal && lki_display_is_due(d, r->step, now)) {
        d->shown = now;
        fprintf(stderr, "step %llu/%llu  loss %.4f  lr %.3g  %.0f %s/s  %.0f s left\n",
                (unsigned long long)r->step, (unsigned long long)steps, r->loss, r->lr, units,
                r->tokens > 0 ? "tokens" : "samples", left);
    }
}
