/* metrics.c -- writes the state of a run as OpenMetrics text; see metrics.h.
 *
 * All values are gauges: so the text is valid for parsers of OpenMetrics and of the older text
 * format, which node_exporter reads.
 */
#include "train/core/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "train/core/log_owner.h"

#define EVERY_SECONDS 1

void lki_metrics_open(lki_metrics *metrics, const char *path)
{
    *metrics = (lki_metrics){ .path = path, .lock = -1 };
}

/* The holder of the lock replaces the file every second.  The file under this path is always
 * locked, because a draft is locked before it is renamed. */
lk_status lki_metrics_begin(lki_metrics *m)
{
    if (m->path == NULL || m->lock >= 0)
        return LK_OK;
    int why = lki_file_open_locked(&m->lock, m->path, &m->made);
    if (why == EWOULDBLOCK)
        return lki_output_in_use("metrics", m->path);
    return why == 0 ? LK_OK
                    : lk_fail(LK_EIO, "cannot write the metrics '%s': %s", m->path, strerror(why));
}

/* Keeps the lock of the newest file, or none. */
static void keep_lock(lki_metrics *m, int fd)
{
    if (m->lock >= 0)
        (void)close(m->lock);
    m->lock = fd;
}

/* Writes a gauge.  The formats have their own spelling of values that are not finite. */
static void put(FILE *file, const char *name, const char *help, double value)
{
    char text[LK_NUMBER_BYTES];
    lk_number_text(text, value);
    if (!isfinite(value))
        (void)snprintf(text, sizeof text, "%s", isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
    fprintf(file, "# HELP lockstep_%s %s\n# TYPE lockstep_%s gauge\nlockstep_%s %s\n", name, help,
            name, name, text);
}

static void write_all(FILE *file, const lki_metrics *m, const lki_metrics_values *v)
{
    const lki_step_record *r = v->step;
    fprintf(file,
            "# HELP lockstep_build The version of Lockstep, and what the run is.\n"
            "# TYPE lockstep_build gauge\n"
            "lockstep_build{version=\"%s\",model=\"%s\",exactness_id=\"%s\"} 1\n",
            LK_VERSION, v->model, m->exactness_id);
    put(file, "step", "Completed steps.", (double)r->step);
    put(file, "steps_planned", "The last step of the run.", (double)v->steps);
    put(file, "epoch", "The epoch of the last step, from 0.", (double)r->epoch);
    put(file, "loss", "The loss of the last step.", r->loss);
    put(file, "learning_rate", "The learning rate of the last step.", r->lr);
    put(file, "gradient_norm", "The norm of the gradient of the last step.", r->grad_norm);
    put(file, "samples_per_second", "Samples per second in the last step.",
        lki_per_second(r, r->samples));
    if (r->tokens > 0)
        put(file, "tokens_per_second", "Tokens per second in the last step.",
            lki_per_second(r, r->tokens));
    put(file, "step_seconds", "The time of the last step.", r->seconds);
    put(file, "step_data_seconds", "Waiting for data in the last step.", r->data_seconds);
    put(file, "step_compute_seconds", "Forward and backward of the last step.",
        r->compute_seconds);
    put(file, "step_finish_seconds", "Waiting for others, and the update, in the last step.",
        r->finish_seconds);
    if (m->has_validation) {
        put(file, "validation_loss", "The loss of the last evaluation.", m->validation);
        if (!isnan(m->accuracy))
            put(file, "validation_accuracy_ratio", "The accuracy of the last evaluation.",
                m->accuracy);
        if (!isnan(m->rmse)) {
            put(file, "validation_rmse", "The RMSE of the last evaluation.", m->rmse);
            put(file, "validation_mae", "The mean absolute error of the last evaluation.", m->mae);
        }
    }
    put(file, "workers", "Worker processes at the start.", v->workers);
    put(file, "last_step_timestamp_seconds", "When this was written.", lki_wall_seconds());
    put(file, "done", "1 when the run has ended.", v->done);
    fprintf(file, "# EOF\n");
}

void lki_metrics_close(lki_metrics *m)
{
    if (m->made && m->lock >= 0 && m->written == 0 && lki_file_is_current(m->lock, m->path))
        (void)unlink(m->path);
    keep_lock(m, -1);
}

/* Locks the draft, which is to replace the file.  Returns a descriptor that keeps the lock. */
static int lock_draft(FILE *draft)
{
    int fd = fcntl(fileno(draft), F_DUPFD_CLOEXEC, 0);
    if (fd >= 0)
        (void)flock(fd, LOCK_EX | LOCK_NB);
    return fd;
}

lk_status lki_metrics_write(lki_metrics *m, lki_metrics_values values)
{
    lki_draft_names names;
    double          now = lki_seconds();
    if (m->path == NULL || values.step->step == 0 ||
        (!values.done && m->written > 0 && now - m->written < EVERY_SECONDS))
        return LK_OK;
    m->written = now;
    FILE *file = lki_file_draft(&names, m->path);
    if (file == NULL)
        return lk_fail(LK_EIO, "cannot write the metrics '%s' as '%s': %s", m->path, names.draft,
                       strerror(errno));
    int lock = lock_draft(file);
    write_all(file, m, &values);
    bool good = ferror(file) == 0;
    good      = fclose(file) == 0 && good;
    if (good && rename(names.draft, names.file) == 0) {
        keep_lock(m, lock);
        return LK_OK;
    }
    lk_status status = lk_fail(LK_EIO, "cannot write the metrics '%s': %s", m->path,
                               strerror(errno));
    (void)unlink(names.draft);
    if (lock >= 0)
        (void)close(lock);
    return status;
}
