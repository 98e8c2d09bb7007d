/* series.c -- writes columns of a log for a page, at levels that suit a screen.
 *
 * A column of up to FINEST points is written whole.  A longer one is divided into buckets of
 * equally many neighbouring points, of which the smallest, the largest and the mean value are
 * written: once in at most COARSEST buckets, for a view of the whole run, and once in at most
 * FINEST, for a part of it.  Numbers are written as base64 of little-endian floats, positions as
 * doubles.  Columns with values in the same rows share their positions.
 */
#include <math.h>
#include <nettle/base64.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "report/page.h"

enum { COARSEST = 2048, FINEST = 16384, LIST_COLUMNS = 16, SERIES_MAX = 256 };

/* The points of a column, without rows in which it has no value. */
typedef struct {
    double  *x, *y;
    size_t   count;
    uint64_t rows; /* hash of the rows that have a value */
} points;

/* A list of positions that was written, and the hash of its rows. */
typedef struct {
    uint64_t rows[SERIES_MAX];
    size_t   count;
} positions;

static lk_status points_open(points *p, const lki_run_log *log)
{
    *p = (points){ .count = 0 };
    LK_TRY(LKI_NEW(&p->x, log->rows + 1, "points of a curve"));
    return LKI_NEW(&p->y, log->rows + 1, "points of a curve");
}

static void points_close(points *p)
{
    lki_free(p->x);
    lki_free(p->y);
}

static void collect(points *p, const lki_run_log *log, const lki_column *column)
{
    p->count = 0;
    for (size_t r = 0; r < log->rows; r++)
        if (!lki_is_absent(column->values[r])) {
            p->x[p->count]   = (double)log->steps[r];
            p->y[p->count++] = column->values[r];
        }
    p->rows = lki_xxh3(p->x, p->count * sizeof *p->x);
}

/* ---- Levels -------------------------------------------------------------------------------- */

/* Returns the points per bucket of a level; 0 if there is no such level. */
static size_t width_of(size_t count, unsigned level)
{
    size_t coarse = (count + COARSEST - 1) / COARSEST, fine = (count + FINEST - 1) / FINEST;
    if (count <= 2 * (size_t)COARSEST)
        return level == 0 ? 1 : 0;
    return level == 0 ? coarse : level == 1 ? lki_max(fine, 1) : 0;
}

static void write_base64(FILE *out, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    fputc('"', out);
    while (bytes > 0) {
        char   text[BASE64_ENCODE_RAW_LENGTH(3072)];
        size_t part = lki_min(bytes, 3072);
        base64_encode_raw(text, part, at);
        (void)fwrite(text, 1, BASE64_ENCODE_RAW_LENGTH(part), out);
        at += part;
        bytes -= part;
    }
    fputc('"', out);
}

typedef enum { MEAN, LEAST, MOST } summary;

/* Summarises finite values; NaN if there is none. */
static float summarise(const double *y, size_t count, summary what)
{
    double sum = 0, low = (double)INFINITY, high = -(double)INFINITY;
    size_t finite = 0;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(y[i]))
            continue;
        finite++;
        sum += y[i];
        low  = fmin(low, y[i]);
        high = fmax(high, y[i]);
    }
    if (finite == 0)
        return NAN;
    return (float)(what == MEAN ? sum / (double)finite : what == LEAST ? low : high);
}

static void write_summary(FILE *out, const points *p, size_t width, summary what, float *buffer)
{
    size_t count = 0;
    for (size_t i = 0; i < p->count; i += width)
        buffer[count++] = summarise(p->y + i, lki_min(width, p->count - i), what);
    write_base64(out, buffer, count * sizeof *buffer);
}

static void write_levels(FILE *out, const points *p, float *buffer)
{
    size_t width;
    fputs("\"levels\":[", out);
    for (unsigned level = 0; (width = width_of(p->count, level)) > 0; level++) {
        fprintf(out, "%s{\"width\":%zu,\"mean\":", level > 0 ? "," : "", width);
        write_summary(out, p, width, MEAN, buffer);
        if (width > 1) {
            fputs(",\"min\":", out);
            write_summary(out, p, width, LEAST, buffer);
            fputs(",\"max\":", out);
            write_summary(out, p, width, MOST, buffer);
        }
        fputc('}', out);
    }
    fputc(']', out);
}

static void write_positions(FILE *out, const points *p, double *buffer)
{
    size_t width;
    fputc('[', out);
    for (unsigned level = 0; (width = width_of(p->count, level)) > 0; level++) {
        size_t count = 0;
        for (size_t i = 0; i < p->count; i += width)
            buffer[count++] = p->x[i];
        fputs(level > 0 ? "," : "", out);
        write_base64(out, buffer, count * sizeof *buffer);
    }
    fputc(']', out);
}

/* ---- All columns --------------------------------------------------------------------------- */

/* Returns true if a column becomes a curve.  Of a list, its first elements do. */
static bool is_curve(const lki_column *column)
{
    unsigned    index;
    const char *bracket = strchr(column->name, '[');
    if (strncmp(column->name, "staleness_bins[", 15) == 0)
        return false; /* the page has their sums */
    return bracket == NULL || (sscanf(bracket, "[%u]", &index) == 1 && index < LIST_COLUMNS);
}

static size_t find_positions(const positions *known, uint64_t rows)
{
    size_t i = 0;
    while (i < known->count && known->rows[i] != rows)
        i++;
    return i;
}

/* Writes the positions of all columns, each list once. */
static void write_xs(FILE *out, const lki_run_log *log, points *p, double *buffer, positions *known)
{
    fputs("\"xs\":[", out);
    for (size_t c = 0; c < log->column_count && known->count < SERIES_MAX; c++) {
        if (!is_curve(&log->columns[c]))
            continue;
        collect(p, log, &log->columns[c]);
        if (p->count == 0 || find_positions(known, p->rows) < known->count)
            continue;
        fputs(known->count > 0 ? "," : "", out);
        write_positions(out, p, buffer);
        known->rows[known->count++] = p->rows;
    }
    fputc(']', out);
}

/* Makes times relative to the first one, because a float cannot hold seconds since 1970. */
static double make_relative(points *p)
{
    double begin = p->y[0];
    for (size_t i = 0; i < p->count; i++)
        p->y[i] -= begin;
    return begin;
}

static void write_series(FILE *out, const lki_run_log *log, points *p, float *buffer,
                         const positions *known)
{
    size_t written = 0;
    fputs(",\"series\":[", out);
    for (size_t c = 0; c < log->column_count && written < SERIES_MAX; c++) {
        if (!is_curve(&log->columns[c]))
            continue;
        collect(p, log, &log->columns[c]);
        size_t x = find_positions(known, p->rows);
        if (p->count == 0 || x == known->count)
            continue;
        fprintf(out, "%s{\"name\":", written++ > 0 ? "," : "");
        lki_json_string(out, log->columns[c].name);
        if (strcmp(log->columns[c].name, "time") == 0)
            fprintf(out, ",\"t0\":%.17g", make_relative(p));
        fprintf(out, ",\"x\":%zu,", x);
        write_levels(out, p, buffer);
        fputc('}', out);
    }
    fputc(']', out);
}

lk_status lki_json_series(FILE *out, const lki_run_log *log)
{
    points    p;
    positions known  = { .count = 0 };
    double   *buffer = NULL;
    lk_status status = points_open(&p, log);
    if (status == LK_OK)
        status = LKI_NEW(&buffer, log->rows + FINEST, "points of a curve");
    if (status == LK_OK) {
        write_xs(out, log, &p, buffer, &known);
        write_series(out, log, &p, (float *)buffer, &known);
    }
    lki_free(buffer);
    points_close(&p);
    return status;
}
