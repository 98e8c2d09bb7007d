/* journal.c -- the log: one JSON object per line, for steps and for what happens between them.
 *
 * The log is line-buffered, so a killed run leaves whole lines.  A resumed run truncates the log
 * after the checkpoint's step, so every step is logged once.  A checkpoint is published only after
 * the log up to its step is on disk, so no step is missing.  docs/log.md has all keys.  The
 * display, the event files and the metrics get the same values.
 */
#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/directory.h"
#include "train/core/display.h"
#include "train/core/events.h"
#include "train/core/identity.h"
#include "train/core/log_pipe.h"
#include "train/core/metrics.h"
#include "train/options.h"

struct lki_report_file {
    const lk_train_config *config;
    FILE                  *log; /* NULL: no --log */
    lki_log_pipe           pipe;          /* if the log is one */
    lk_label               label;         /* of the run */
    char                   repeated[160]; /* options that every line repeats */
    lki_display            display;
    lki_events            *events;  /* NULL: no --tensorboard */
    lki_metrics            metrics;
    lki_step_record        last;    /* of the last step, for the metrics */
};

size_t lki_log_prefix(const uint8_t *log, size_t bytes, uint64_t step)
{
    size_t at = 0;
    while (at < bytes) {
        const uint8_t *end = memchr(log + at, '\n', bytes - at);
        if (end == NULL)
            break;
        size_t  length = (size_t)(end - (log + at));
        json_t *line   = json_loadb((const char *)log + at, length, 0, NULL);
        json_t *number = json_object_get(line, "step");
        bool    keep   = json_is_integer(number) && (uint64_t)json_integer_value(number) <= step &&
                    json_object_get(line, "weights") == NULL;
        json_decref(line);
        if (!keep)
            break;
        at += length + 1;
    }
    return at;
}

static lk_status cut(const char *path, size_t bytes)
{
    if (truncate(path, (off_t)bytes) != 0)
        return lk_fail(LK_EIO, "cannot cut the log '%s' back to %zu bytes: %s", path, bytes,
                       strerror(errno));
    return LK_OK;
}

/* Computes the bytes of the log up to step `start`. */
static lk_status find_prefix(const char *path, uint64_t start, size_t *bytes)
{
    lki_map map;
    LK_TRY(lki_map_open(&map, path));
    *bytes = lki_log_prefix(map.data, map.bytes, start);
    lki_map_close(&map);
    return LK_OK;
}

/* Opens the log, and locks it if it is a regular file.  Sets `is_free` to false if another process
 * has locked it.  If the log is a pipe without a reader, the run `waits` for one or goes on without
 * the log. */
static lk_status log_open(lki_journal *journal, const char *path, bool waits, bool *is_free)
{
    struct stat info;
    *is_free     = true;
    if (stat(path, &info) == 0 && S_ISFIFO(info.st_mode))
        journal->log = lki_log_pipe_open(&journal->pipe, path, waits);
    else
        journal->log = fopen(path, "ae");
    if (journal->log == NULL && !waits && errno == ENXIO) {
        lki_journal_note(journal, "note: nobody reads the log '%s' any more; the run goes on "
                         "without it", path);
        return LK_OK;
    }
    if (journal->log == NULL && errno == ECANCELED)
        return lk_fail(LK_EIO, "stopped on request, before anybody read the log '%s'", path);
    if (journal->log == NULL)
        return lk_fail(LK_EIO, "cannot write the log '%s': %s", path, strerror(errno));
    (void)setvbuf(journal->log, NULL, _IOLBF, 1 << 14);
    if (lki_is_file(path))
        *is_free = lki_file_lock(fileno(journal->log)) != EWOULDBLOCK;
    if (lstat(path, &info) != 0 || !S_ISREG(info.st_mode)) /* a pipe, a device or a symbolic link */
        return LK_OK;
    char parent[LKI_PATH_BYTES];
    if (snprintf(parent, sizeof parent, "%s", path) >= (int)sizeof parent)
        return lk_fail(LK_EINVAL, "`log` has a path of %zu bytes", strlen(path));
    return lki_directory_sync(dirname(parent)); /* its directory entry */
}

lk_status lki_journal_sync(lki_journal *journal)
{
    struct stat info;
    if (journal == NULL || journal->log == NULL || fstat(fileno(journal->log), &info) != 0 ||
        !S_ISREG(info.st_mode))
        return LK_OK;
    if (fsync(fileno(journal->log)) != 0)
        return lk_fail(LK_EIO, "cannot bring the log '%s' to the disk: fsync: %s",
                       journal->config->log, strerror(errno));
    return LK_OK;
}

lk_status lki_journal_open(lki_journal **out, const lk_train_config *config)
{
    lki_journal *journal = NULL;
    *out                 = NULL;
    LK_TRY(LKI_NEW(&journal, 1, "log"));
    journal->config   = config;
    journal->pipe     = (lki_log_pipe){ .journal = journal, .config = config };
    lki_display_open(&journal->display, config);
    lki_metrics_open(&journal->metrics, config->outputs.metrics);
    journal->label    = lki_fields_label(config);
    lki_fields_log(config, journal->repeated, sizeof journal->repeated);
    *out              = journal;
    return LK_OK;
}

void lki_journal_waits(lki_journal *journal, const char *who)
{
    if (journal != NULL)
        (void)snprintf(journal->display.waits, sizeof journal->display.waits, "%s", who);
}

void lki_journal_limit(lki_journal *journal, double seconds, bool alone)
{
    if (journal == NULL)
        return;
    journal->pipe.limit  = seconds;
    journal->pipe.alone  = alone;
    journal->pipe.waited = 0;
}

lk_status lki_journal_header(lki_journal *journal, json_t *line, const char *exactness_id)
{
    if (journal == NULL) {
        json_decref(line);
        return LK_OK;
    }
    (void)snprintf(journal->metrics.exactness_id, sizeof journal->metrics.exactness_id, "%s",
                   exactness_id);
    char *config = json_dumps(json_object_get(line, "config"),
                              JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    lk_status status = config == NULL ? LK_OK : lki_events_text(journal->events, "config", config);
    free(config);
    if (status == LK_OK)
        return lki_journal_event(journal, line);
    json_decref(line);
    return status;
}

void lki_journal_label(lki_journal *journal, lk_label label)
{
    if (journal != NULL)
        journal->label = label;
}

/* Returns the label as the last field of a line, or "" if the run is exact. */
static const char *label_field(const lki_journal *journal)
{
    switch (journal->label) {
    case LK_LABEL_INVARIANT: return ", \"label\": \"invariant\"";
    case LK_LABEL_RECORDED: return ", \"label\": \"recorded\"";
    case LK_LABEL_TIMED: return ", \"label\": \"timed\"";
    case LK_LABEL_EXACT:
    default: return "";
    }
}

/* Opens the other files that get the values of steps, unless they are open.  `alone`: fails if
 * another run has them. */
static lk_status open_others(lki_journal *journal, bool alone)
{
    const char *events = journal->config->outputs.tensorboard;
    if (events != NULL && journal->events == NULL)
        LK_TRY(lki_events_open(&journal->events, events, alone));
    return alone ? lki_metrics_begin(&journal->metrics) : LK_OK;
}

/* Says that a resumed run continues a log without some of the steps before. */
static void tell_gaps(lki_journal *journal, const char *path, uint64_t start)
{
    char gaps[LKI_GAPS_BYTES];
    lki_log_gaps(path, start, gaps);
    if (gaps[0] != '\0')
        lki_journal_note(journal, "note: the log '%s' lacks step%s %s of this run, and "
                         "`lockstep verify` and `lockstep attest` read one log: for those steps "
                         "keep the log that the run had", path,
                         strchr(gaps, ' ') != NULL ? "s" : "", gaps);
}

lk_status lki_journal_open_log(lki_journal *journal, const lki_log_run *run)
{
    bool is_free = true;
    if (journal == NULL || run->config->log == NULL)
        return LK_OK;
    if (journal->log == NULL)
        LK_TRY(log_open(journal, run->config->log, run->waits, &is_free));
    if (!is_free)
        return lki_log_in_use(run);
    return lki_log_check_steps(run); /* another run may have begun at the same moment */
}

/* The log is cut last, so a run that is refused leaves it as it is. */
lk_status lki_journal_begin(lki_journal *journal, const lki_log_run *run, uint64_t end)
{
    size_t bytes = 0;
    if (journal == NULL)
        return LK_OK;
    const char *path    = journal->config->log;
    const bool  is_file = path != NULL && lki_is_file(path);
    lki_display_begin(&journal->display, run->start, end);
    if (is_file && run->start > 0)
        LK_TRY(find_prefix(path, run->start, &bytes));
    LK_TRY(open_others(journal, true));
    if (!is_file)
        return LK_OK;
    LK_TRY(cut(path, bytes));
    if (!run->replays)
        tell_gaps(journal, path, run->start);
    return LK_OK;
}

lk_status lki_journal_find(const lki_journal *journal, uint64_t step, uint64_t *bytes)
{
    const char *path  = journal->config->log;
    size_t      found = 0;
    lk_status   status = LK_OK;
    if (path != NULL && lki_is_file(path))
        status = find_prefix(path, step, &found);
    *bytes = found;
    return status;
}

lk_status lki_journal_take_over(lki_journal *journal, uint64_t done, uint64_t end, uint64_t bytes)
{
    const char *path = journal->config->log;
    bool        is_free;
    /* the last step may still have to be logged */
    lki_display_begin(&journal->display, done > 0 ? done - 1 : 0, end);
    LK_TRY(open_others(journal, false));
    if (path == NULL)
        return LK_OK;
    /* a disconnected host may still hold the lock, until its rank 0 ends */
    LK_TRY(log_open(journal, path, false, &is_free));
    return lki_is_file(path) ? cut(path, (size_t)bytes) : LK_OK;
}

uint64_t lki_journal_bytes(const lki_journal *journal)
{
    struct stat info;
    if (journal == NULL || journal->log == NULL || fstat(fileno(journal->log), &info) != 0 ||
        !S_ISREG(info.st_mode))
        return 0;
    return (uint64_t)info.st_size;
}

void lki_journal_free(lki_journal *journal)
{
    if (journal == NULL)
        return;
    lki_display_clear(&journal->display);
    if (journal->log != NULL)
        (void)fclose(journal->log);
    lki_events_free(journal->events);
    lki_metrics_close(&journal->metrics);
    lki_free(journal);
}

__attribute__((format(printf, 2, 0))) static void say(lki_journal *journal, const char *format,
                                                      va_list args)
{
    lki_display_clear(&journal->display);
    (void)vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

void lki_journal_wait(lki_journal *journal, uint64_t done)
{
    if (journal != NULL)
        lki_display_wait(&journal->display, done);
}

void lki_journal_note(lki_journal *journal, const char *format, ...)
{
    va_list args;
    if (journal == NULL)
        return;
    va_start(args, format);
    say(journal, format, args);
    va_end(args);
}

void lki_journal_say(lki_journal *journal, const char *format, ...)
{
    va_list args;
    if (journal == NULL || journal->config->quiet)
        return;
    va_start(args, format);
    say(journal, format, args);
    va_end(args);
}

static lk_status log_checked(const lki_journal *journal, int written)
{
    const bool failed = written < 0 || ferror(journal->log);
    if (failed && errno == ETIMEDOUT && journal->pipe.waited > 0)
        return lk_fail(LK_EIO, "cannot write the log '%s': the pipe is full, and rank 0 has waited "
                       "%.1f s for its reader, while other ranks wait for rank 0: let the reader "
                       "read on, raise `timeout_ms`, or log to a file", journal->config->log,
                       journal->pipe.waited);
    if (failed)
        return lk_fail(LK_EIO, "cannot write the log '%s': %s", journal->config->log,
                       strerror(errno));
    return LK_OK;
}

/* Formats a number for JSON, which cannot represent values that are not finite. */
static const char *number_text(char out[LK_NUMBER_BYTES], double value)
{
    lk_number_text(out, value);
    return isfinite(value) ? out : "null";
}

/* Writes the loss scale and the number of skipped steps, if the run scales its loss. */
static void write_scale(const lki_step_record *r, char text[96])
{
    char scale[32];
    text[0] = '\0';
    if (r->loss_scale > 0)
        (void)snprintf(text, 96, ", \"loss_scale\": %s, \"skipped_steps\": %llu",
                       number_text(scale, r->loss_scale), (unsigned long long)r->skipped);
}

/* Writes the gradient noise scale after this step. */
static void write_noise(const lki_journal *journal, const lk_noise *n, char text[160])
{
    char   critical[32], square[32], trace[32];
    double mean = n->weight > 0 ? 1 / n->weight : (double)NAN;
    text[0]     = '\0';
    if (journal->config->noise_decay > 0)
        (void)snprintf(text, 160,
                       ", \"critical_batch\": %s, \"noise_trace\": %s, \"noise_square\": %s",
                       number_text(critical, lk_noise_scale(n)),
                       number_text(trace, n->trace * mean), number_text(square, n->square * mean));
}

/* Writes the number of virtual workers that an audit has verified. */
static void write_audited(const lki_journal *journal, uint32_t audited, char text[32])
{
    text[0] = '\0';
    if (journal->config->audit > 0)
        (void)snprintf(text, 32, ", \"audited\": %u", audited);
}

/* Returns the values for --metrics. */
static lki_metrics_values metrics_of(const lki_journal *journal, bool done)
{
    return (lki_metrics_values){ .model  = journal->config->model,
                                 .step   = &journal->last,
                                 .steps  = journal->display.end,
                                 .workers = journal->config->workers,
                                 .done   = done };
}

/* Writes the values that, like times, depend on the load of the machine. */
static void write_rates(const lki_step_record *r, char text[96])
{
    int used = 0;
    text[0]  = '\0';
    if (r->tokens > 0)
        used = snprintf(text, 96, ", \"tokens_per_s\": %.1f", lki_per_second(r, r->tokens));
    if (r->duplicated > 0)
        used += snprintf(text + used, 96 - (size_t)used, ", \"duplicated\": %u", r->duplicated);
    if (r->dropped > 0)
        (void)snprintf(text + used, 96 - (size_t)used, ", \"dropped\": %u", r->dropped);
}

enum { VIRTUAL_BYTES = 32 + 16 * LKI_LOSSES_MAX };

/* Writes the bits of the losses of single virtual workers. */
static void write_losses(const lki_losses *losses, char text[VIRTUAL_BYTES])
{
    size_t used = 0;
    text[0]     = '\0';
    if (losses->count > 0)
        used = (size_t)snprintf(text, VIRTUAL_BYTES, ", \"virtual_losses\": \"");
    for (uint32_t v = 0; v < losses->count; v++, used += 16)
        lki_loss_bits(losses->of[v], text + used);
    if (losses->count > 0)
        (void)snprintf(text + used, VIRTUAL_BYTES - used, "\"");
}

lk_status lki_journal_step(lki_journal *journal, const lki_step_record *r)
{
    char bits[17], tokens[96], loss[32], norm[32], lr[32], scale[96], noise[160];
    char stall[48] = "", audited[32], losses[VIRTUAL_BYTES];
    if (journal == NULL)
        return LK_OK;
    lki_display_step(&journal->display, r);
    journal->last        = *r;
    journal->pipe.waited = 0; /* other ranks have waited for the previous step only */
    LK_TRY(lki_events_step(journal->events, r));
    LK_TRY(lki_metrics_write(&journal->metrics, metrics_of(journal, false)));
    if (r->skips)
        lki_journal_say(journal,
                        "step %llu was skipped: its gradient overflows at a loss scale of %.10g",
                        (unsigned long long)r->step, r->loss_scale);
    if (journal->log == NULL)
        return LK_OK;
    lki_loss_bits(r->loss, bits);
    write_losses(&r->losses, losses);
    write_scale(r, scale);
    write_noise(journal, &r->noise, noise);
    write_audited(journal, r->audited, audited);
    write_rates(r, tokens);
    if (journal->config->offload != NULL)
        (void)snprintf(stall, sizeof stall, ", \"offload_stall_ms\": %.3f", 1e3 * r->stalled);
    int written = fprintf(
        journal->log,
        "{\"step\": %llu, \"epoch\": %llu, \"loss\": %s, \"loss_bits\": \"%s\", "
        "\"lr\": %s, \"grad_norm\": %s, \"samples_per_s\": %.1f%s, "
        "\"time\": %.3f, \"step_ms\": %.3f, \"data_ms\": %.3f, \"compute_ms\": %.3f, "
        "\"finish_ms\": %.3f%s%s%s%s%s%s%s}\n",
        (unsigned long long)r->step, (unsigned long long)r->epoch, number_text(loss, r->loss), bits,
        number_text(lr, r->lr), number_text(norm, r->grad_norm), lki_per_second(r, r->samples),
        tokens,
        lki_wall_seconds(), 1e3 * r->seconds, 1e3 * r->data_seconds, 1e3 * r->compute_seconds,
        1e3 * r->finish_seconds, scale, noise, journal->repeated, stall, audited, losses,
        label_field(journal));
    return log_checked(journal, written);
}

/* Writes the metric of an evaluation, for people and for the log. */
static void write_metric(const lki_evaluated *found, char text[64], char log[160])
{
    char first[LK_NUMBER_BYTES], second[LK_NUMBER_BYTES];
    if (!isnan(found->rmse)) {
        (void)snprintf(text, 64, "RMSE %.6g  MAE %.6g", found->rmse, found->mae);
        (void)snprintf(log, 160, "\"val_rmse\": %s, \"val_mae\": %s",
                       number_text(first, found->rmse), number_text(second, found->mae));
        return;
    }
    (void)snprintf(text, 64, "accuracy %.2f %%", 100 * found->accuracy);
    (void)snprintf(log, 160, "\"val_accuracy\": %s", number_text(first, found->accuracy));
}

lk_status lki_journal_evaluation(lki_journal *journal, uint64_t step, const lki_evaluated *found)
{
    char       metric[64], logged[160];
    const double loss = found->loss;
    const bool tokens = journal != NULL && journal->last.tokens > 0;
    if (journal == NULL)
        return LK_OK;
    write_metric(found, metric, logged);
    lki_journal_say(journal, "step %llu  validation loss %.4f  %s", (unsigned long long)step, loss,
                    metric);
    journal->display.validation     = loss;
    journal->metrics.validation     = loss;
    journal->metrics.accuracy       = found->accuracy;
    journal->metrics.rmse           = found->rmse;
    journal->metrics.mae            = found->mae;
    journal->metrics.has_validation = true;
    LK_TRY(lki_events_evaluation(journal->events, step, loss, found->accuracy, found->rmse,
                                 tokens));
    if (journal->log == NULL)
        return LK_OK;
    char bits[17], text[32], perplexity[64] = "", number[32];
    lki_loss_bits(loss, bits);
    if (tokens)
        (void)snprintf(perplexity, sizeof perplexity, ", \"val_perplexity\": %s",
                       number_text(number, exp(loss)));
    return log_checked(journal,
                       fprintf(journal->log,
                               "{\"step\": %llu, \"val_loss\": %s, \"val_loss_bits\": \"%s\", "
                               "%s%s, \"time\": %.3f%s}\n",
                               (unsigned long long)step, number_text(text, loss), bits, logged,
                               perplexity, lki_wall_seconds(), label_field(journal)));
}

lk_status lki_journal_event(lki_journal *journal, json_t *line)
{
    char *text = json_dumps(line, JSON_REAL_PRECISION(LKI_LOG_DIGITS));
    json_decref(line);
    if (text == NULL)
        return lk_fail(LK_ENOMEM, "a line of the log");
    lk_status status = LK_OK;
    int       length = (int)strlen(text) - 1; /* without the brace at the end */
    if (journal != NULL && journal->log != NULL)
        status = log_checked(journal, fprintf(journal->log, "%.*s, \"time\": %.3f%s}\n", length,
                                              text, lki_wall_seconds(), label_field(journal)));
    free(text);
    return status;
}

lk_status lki_journal_saved(lki_journal *journal, uint64_t step, uint64_t saved, double stall,
                            double seconds, const char *error)
{
    if (journal == NULL || journal->log == NULL)
        return LK_OK;
    json_t *line = json_pack("{s:I, s:I, s:f, s:f, s:s*}", "step", (json_int_t)step, "checkpoint",
                             (json_int_t)saved, "stall_ms", 1e3 * stall, "write_ms", 1e3 * seconds,
                             "error", error);
    return lki_journal_event(journal, line);
}

/* Logs the finding of an audit.  "odd" is the only rank whose result differs from the results of
 * all other ranks; null if no single rank does. */
lk_status lki_journal_finding(lki_journal *journal, const lk_audit_finding *f)
{
    char ranks[64], odd[16] = "null";
    if (journal == NULL || journal->log == NULL)
        return LK_OK;
    for (uint32_t i = 0, used = 0; i < f->count; i++)
        used += (uint32_t)snprintf(ranks + used, sizeof ranks - used, i > 0 ? ", %u" : "%u",
                                   f->ranks[i]);
    if (f->odd < f->count)
        (void)snprintf(odd, sizeof odd, "%u", f->ranks[f->odd]);
    return log_checked(journal,
                       fprintf(journal->log,
                               "{\"step\": %llu, \"audit\": {\"virtual_worker\": %u, "
                               "\"ranks\": [%s], \"odd\": %s, \"what\": \"%s\"}, \"time\": %.3f}\n",
                               (unsigned long long)f->step, f->virtual_worker, ranks, odd,
                               f->what, lki_wall_seconds()));
}

/* Returns a text about the hashes that are printed at the end; NULL if they depend on the workers.
 * The hash of the weights is the result of a whole run, so one that was interrupted has none. */
static const char *hashes_of(const lki_journal *journal, const lk_train_result *result)
{
    bool whole = result->ended != NULL || journal->last.step >= journal->display.end;
    if (journal->label > LK_LABEL_INVARIANT)
        return NULL;
    return whole ? "the hashes, of the whole state and of the weights, are"
                 : "the hash of the whole state after these steps is";
}

lk_status lki_journal_end(lki_journal *journal, const lk_train_result *result)
{
    if (journal == NULL)
        return LK_OK;
    lki_display_end(&journal->display, &journal->last, hashes_of(journal, result));
    LK_TRY(lki_metrics_write(&journal->metrics, metrics_of(journal, true)));
    if (journal->log == NULL)
        return LK_OK;
    char ended[64] = "", audited[48] = "";
    if (journal->config->audit > 0)
        (void)snprintf(audited, sizeof audited, ", \"audited\": %llu",
                       (unsigned long long)result->audited);
    if (result->ended != NULL)
        (void)snprintf(ended, sizeof ended, ", \"ended\": \"%s\"", result->ended);
    return log_checked(journal,
                       fprintf(journal->log,
                               "{\"step\": %llu, \"weights\": \"%s\", "
                               "\"run\": \"%s\", \"time\": %.3f%s%s%s}\n",
                               (unsigned long long)result->steps, result->weights, result->run,
                               lki_wall_seconds(), ended, audited, label_field(journal)));
}
