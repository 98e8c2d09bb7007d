/* log_pipe.c -- a log that is a pipe; see log_pipe.h.
 *
 * A write to a full pipe would block until the reader reads, and then neither a request to stop nor
 * a deadline could end it.  So the pipe is not blocking, and rank 0 waits for room in short steps.
 * Other ranks meanwhile wait for rank 0, up to their timeout, so rank 0 fails before.  After a
 * request to stop it does not wait for long: it leaves out the rest of the log, and the run saves
 * and ends as it would otherwise.
 *
 * The kernel writes up to PIPE_BUF bytes, thus a usual line, as a whole or not at all.
 */
#include "train/core/log_pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"

enum { MOMENT_MS = 20, NOTE_S = 1, GRACE_S = 2 };

/* Returns true if the run is to end. */
static bool is_stopped(const lki_log_pipe *self)
{
    const lk_train_config *c     = self->config;
    const bool             leave = self->alone && c->elastic.survives && c->calls.leave != NULL &&
                       c->calls.leave(c->calls.leave_context);
    return leave || (c->calls.stop != NULL && c->calls.stop(c->calls.stop_context));
}

/* Waits for a moment, or until the pipe has room.  Returns true if it has.  Does not count a time
 * in which the process did not run. */
static bool has_room(lki_log_pipe *self)
{
    struct pollfd room  = { .fd = self->fd, .events = POLLOUT };
    double        begun = lki_seconds();
    if (poll(&room, 1, MOMENT_MS) > 0)
        return true;
    double waited = fmin(lki_seconds() - begun, 10e-3 * MOMENT_MS);
    self->waited += waited;
    self->asked   = is_stopped(self) ? self->asked + waited : 0;
    return false;
}

static void leave_out(lki_log_pipe *self)
{
    self->left_out = true;
    lki_journal_note(self->journal, "note: nobody reads the log '%s', and the run is to stop: the "
                     "log lacks its last lines", self->config->log);
}

/* Waits until the pipe has room, or further lines are left out.  Fails with ETIMEDOUT at the
 * limit. */
static bool await_room(lki_log_pipe *self)
{
    while (!has_room(self)) {
        bool is_late = self->limit > 0 && self->waited >= self->limit;
        if (self->asked >= GRACE_S || (is_late && self->asked > 0)) {
            leave_out(self);
            return true;
        }
        if (is_late) {
            errno = ETIMEDOUT;
            return false;
        }
        if (self->waited >= NOTE_S && !self->said) {
            self->said = true;
            lki_journal_note(self->journal, "note: the log '%s' is a full pipe, whose reader does "
                             "not read; waiting for the reader", self->config->log);
        }
    }
    return true;
}

/* Writes all bytes.  Returns 0 on failure. */
static ssize_t write_all(void *context, const char *bytes, size_t count)
{
    lki_log_pipe *self = context;
    size_t        done = 0;
    self->asked        = 0;
    while (done < count && !self->left_out) {
        ssize_t written = write(self->fd, bytes + done, count - done);
        if (written > 0)
            done += (size_t)written;
        else if (errno == EAGAIN ? !await_room(self) : errno != EINTR)
            return 0;
    }
    return (ssize_t)count;
}

static int close_pipe(void *context)
{
    const lki_log_pipe *self = context;
    return close(self->fd);
}

static int open_pipe(const lki_log_pipe *self, const char *path, bool waits)
{
    const struct timespec moment = { .tv_nsec = MOMENT_MS * 1000000L };
    for (int i = 0;; i++) {
        int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0 || errno != ENXIO || !waits)
            return fd;
        if (is_stopped(self)) {
            errno = ECANCELED;
            return -1;
        }
        if (i == NOTE_S * 1000 / MOMENT_MS)
            lki_journal_note(self->journal, "note: the log '%s' is a pipe that nobody reads; "
                             "waiting for a reader", path);
        (void)nanosleep(&moment, NULL);
    }
}

FILE *lki_log_pipe_open(lki_log_pipe *self, const char *path, bool waits)
{
    const cookie_io_functions_t calls = { .write = write_all, .close = close_pipe };
    self->fd   = open_pipe(self, path, waits);
    FILE *file = self->fd >= 0 ? fopencookie(self, "a", calls) : NULL;
    if (file == NULL && self->fd >= 0) {
        (void)close(self->fd);
        errno = ENOMEM;
    }
    return file;
}
