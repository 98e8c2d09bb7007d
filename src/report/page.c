/* page.c -- writes the page of a report and its data.  See page.h.
 *
 * All that comes from logs is in one JSON object.  It is the text of a script element with a type
 * that no browser executes.  In it < is written as an escape, so no text can end the element; the
 * page's script makes text nodes of texts.  The policy of the page permits one script and one
 * style, by their hashes.
 */
#include "report/page.h"

#include <inttypes.h>
#include <nettle/base64.h>
#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lockstep/flight.h"
#include "report/diff.h"

enum { EVENTS_MAX = 5000, BINS_MAX = 64 };

/* ---- JSON ---------------------------------------------------------------------------------- */

void lki_json_string(FILE *out, const char *text)
{
    json_t *value = json_string(text); /* NULL if it is not UTF-8 */
    if (value == NULL)
        value = json_string("?");
    lki_json_value(out, value);
    json_decref(value);
}

void lki_json_value(FILE *out, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    if (text == NULL)
        fputs("null", out);
    for (const char *c = text; c != NULL && *c != '\0'; c++)
        if (*c == '<')
            fputs("\\u003c", out);
        else
            fputc(*c, out);
    free(text);
}

static void write_member(FILE *out, const char *name, const json_t *value)
{
    fprintf(out, ",\"%s\":", name);
    lki_json_value(out, value); /* NULL becomes null */
}

/* ---- Runs ---------------------------------------------------------------------------------- */

static void write_events(FILE *out, const lki_run_log *log)
{
    size_t from = log->event_count > EVENTS_MAX ? log->event_count - EVENTS_MAX : 0;
    fprintf(out, ",\"events_lost\":%zu,\"events\":[", log->events_lost + from);
    for (size_t i = from; i < log->event_count; i++) {
        fputs(i > from ? "," : "", out);
        lki_json_value(out, log->events[i].line);
    }
    fputc(']', out);
}

/* Writes how many gradients had each staleness, in the whole run. */
static void write_staleness(FILE *out, const lki_run_log *log)
{
    fputs(",\"staleness\":[", out);
    for (unsigned bin = 0; bin < BINS_MAX; bin++) {
        char name[32];
        (void)snprintf(name, sizeof name, "staleness_bins[%u]", bin);
        const lki_column *column = lki_run_log_column(log, name);
        double            sum    = 0;
        if (column == NULL)
            break;
        for (size_t r = 0; r < log->rows; r++)
            sum += lki_is_absent(column->values[r]) ? 0 : column->values[r];
        fprintf(out, "%s%.0f", bin > 0 ? "," : "", sum);
    }
    fputc(']', out);
}

static void write_saved(FILE *out, const lki_report_run *run)
{
    fputs(",\"checkpoints\":[", out);
    for (size_t i = 0; i < run->saved_count; i++) {
        fprintf(out, "%s{\"step\":%" PRIu64 ",\"weights\":", i > 0 ? "," : "", run->saved[i].step);
        lki_json_string(out, run->saved[i].weights);
        fputc('}', out);
    }
    fputc(']', out);
}

static lk_status write_run(FILE *out, const lki_report_run *run)
{
    const lki_run_log *log = run->log;
    fputs("{\"path\":", out);
    lki_json_string(out, run->path);
    fprintf(out, ",\"rows\":%zu,\"first_step\":%" PRIu64 ",\"last_step\":%" PRIu64, log->rows,
            log->rows > 0 ? log->steps[0] : 0, log->rows > 0 ? log->steps[log->rows - 1] : 0);
    write_member(out, "last", log->last);
    fputs(",\"label\":", out); /* exact runs of the command have none in their logs */
    lki_json_string(out, log->label[0] != '\0' ? log->label : log->has_bits ? "exact" : "");
    write_member(out, "config", log->config != NULL ? log->config : run->config);
    write_saved(out, run);
    write_events(out, log);
    write_staleness(out, log);
    fputc(',', out);
    LK_TRY(lki_json_series(out, log));
    fputc('}', out);
    return LK_OK;
}

/* ---- Where runs part ----------------------------------------------------------------------- */

typedef struct {
    FILE *out;
    bool  written;
} part_writer;

/* Writes the first difference of two logs. */
static void write_difference(void *context, const lk_difference *d)
{
    part_writer *w = context;
    if (w->written)
        return;
    w->written = true;
    fprintf(w->out, ",\"equal\":false,\"ends\":%s,\"step\":%" PRIu64 ",\"name\":",
            d->kind == LK_DIFFERENCE_END ? "true" : "false", d->step);
    lki_json_string(w->out, d->name);
    fputs(",\"x\":", w->out);
    lki_json_string(w->out, d->a);
    fputs(",\"y\":", w->out);
    lki_json_string(w->out, d->b);
}

static void write_parts(FILE *out, const lk_report *report)
{
    fputs(",\"parts\":[", out);
    for (size_t b = 1; b < report->run_count; b++) {
        part_writer w    = { .out = out };
        lki_diff    diff = { .report = write_difference, .context = &w };
        fprintf(out, "%s{\"a\":0,\"b\":%zu", b > 1 ? "," : "", b);
        const lki_run_log *x = report->runs[0].log, *y = report->runs[b].log;
        const size_t       lost   = x->results_lost + y->results_lost;
        const bool         common = lki_diff_logs(&diff, x, y);
        if (!common || (!w.written && lost > 0))
            fprintf(out, ",\"equal\":false,\"ends\":false,\"step\":null,\"lost\":%zu",
                    common ? lost : 0);
        else if (!w.written)
            fputs(",\"equal\":true", out);
        fputc('}', out);
    }
    fputc(']', out);
}

/* ---- Ranks --------------------------------------------------------------------------------- */

static void write_rank(FILE *out, const lk_flight_rank *rank)
{
    fprintf(out, "{\"rank\":%u,\"pid\":%d,\"state\":\"%s\",\"host\":", rank->rank, rank->pid,
            lk_flight_state_name(rank->state));
    lki_json_string(out, rank->host);
    if (rank->noted)
        fprintf(out, ",\"step\":%" PRIu64, rank->step);
    else
        fputs(",\"step\":null", out);
    fputs(",\"phase\":", out);
    lki_json_string(out, rank->noted ? rank->phase : "");
    fputs(",\"problem\":", out);
    lki_json_string(out, rank->problem);
    fputs(",\"failure\":", out);
    lki_json_string(out, rank->failure);
    fprintf(out, ",\"met\":%" PRIu64 ",\"last\":%" PRIu64 ",\"late_ms\":%.3f}", rank->met,
            rank->last, 1e-6 * (double)rank->late_ns);
}

static lk_status write_ranks(FILE *out, const lk_report *report)
{
    lk_flight            *flight = NULL;
    const lk_flight_rank *rank;
    fputs(",\"ranks\":[", out);
    if (report->flight != NULL) {
        LK_TRY(lk_flight_open(&flight, report->flight));
        for (size_t i = 0; (rank = lk_flight_rank_at(flight, i)) != NULL; i++) {
            fputs(i > 0 ? "," : "", out);
            write_rank(out, rank);
        }
        lk_flight_free(flight);
    }
    fputc(']', out);
    return LK_OK;
}

lk_status lki_page_data(const lk_report *report, bool live, FILE *out)
{
    fprintf(out, "{\"version\":\"%s\",\"made\":%lld,\"live\":%s,\"number\":%" PRIu64 ",\"runs\":[",
            LK_VERSION, (long long)time(NULL), live ? "true" : "false", report->number);
    for (size_t i = 0; i < report->run_count; i++) {
        fputs(i > 0 ? "," : "", out);
        LK_TRY(write_run(out, &report->runs[i]));
    }
    fputc(']', out);
    write_parts(out, report);
    LK_TRY(write_ranks(out, report));
    fputc('}', out);
    return LK_OK;
}

/* ---- HTML ---------------------------------------------------------------------------------- */

static void hash_of(const char *text, char base64[48])
{
    uint8_t           digest[SHA256_DIGEST_SIZE];
    struct sha256_ctx hash;
    sha256_init(&hash);
    sha256_update(&hash, strlen(text), (const uint8_t *)text);
    sha256_digest(&hash, sizeof digest, digest);
    base64_encode_raw(base64, sizeof digest, digest);
    base64[BASE64_ENCODE_RAW_LENGTH(sizeof digest)] = '\0';
}

void lki_page_policy(bool live, char policy[512])
{
    char script[48], style[48];
    hash_of(lki_page_script, script);
    hash_of(lki_page_style, style);
    (void)snprintf(policy, 512,
                   "default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; img-src "
                   "data:; connect-src %s; base-uri 'none'; form-action 'none'",
                   script, style, live ? "'self'" : "'none'");
}

static lk_status write_page(const lk_report *report, bool live, FILE *out)
{
    char policy[512];
    lki_page_policy(live, policy);
    fprintf(out,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
            "<meta http-equiv=\"Content-Security-Policy\" content=\"%s\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
            "<meta name=\"referrer\" content=\"no-referrer\">\n"
            "<link rel=\"icon\" href=\"data:,\">\n<title>Lockstep runs</title>\n<style>",
            policy);
    fputs(lki_page_style, out);
    fputs("</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#page\">Skip to the runs</a>\n"
          "<header class=\"head\"><h1>Lockstep runs</h1>"
          "<span class=\"soft small\" id=\"made\"></span>"
          "<span class=\"small\" id=\"status\" role=\"status\"></span></header>\n"
          "<main id=\"page\"><noscript>This page draws its curves with a script of its own, which "
          "this browser does not run.</noscript></main>\n"
          "<script type=\"application/json\" id=\"data\">",
          out);
    LK_TRY(lki_page_data(report, live, out));
    fputs("</script>\n<script>", out);
    fputs(lki_page_script, out);
    fputs("</script>\n</body>\n</html>\n", out);
    return LK_OK;
}

/* Collects in memory what a function writes. */
static lk_status collect(const lk_report *report, bool live, bool page, char **text, size_t *bytes)
{
    *text     = NULL;
    FILE *out = open_memstream(text, bytes);
    if (out == NULL)
        return lk_fail(LK_ENOMEM, "a page");
    lk_status status = page ? write_page(report, live, out) : lki_page_data(report, live, out);
    if (fclose(out) != 0 && status == LK_OK)
        status = lk_fail(LK_ENOMEM, "a page");
    if (status != LK_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}

lk_status lki_page_make(const lk_report *report, bool live, char **text, size_t *bytes)
{
    return collect(report, live, true, text, bytes);
}

lk_status lki_page_make_data(const lk_report *report, char **text, size_t *bytes)
{
    return collect(report, true, false, text, bytes);
}
