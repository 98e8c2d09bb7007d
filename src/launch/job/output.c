/* output.c -- forwards the workers' output line by line, prefixed with the rank. */
#include "launch/job/output.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

/* The number of bytes that a pipe accepts without blocking after poll() (PIPE_BUF in POSIX). */
enum { WRITE_BYTES = 4096, LOOK_MS = 250 };

static const double SAY_SECONDS = 1, GIVE_UP_SECONDS = 2;

lk_status lki_sink_init(lki_sink *sink, int to)
{
    *sink = (lki_sink){.to = to};
    return LKI_NEW(&sink->text, LKI_SINK_BYTES, "the workers' output");
}

void lki_sink_deinit(lki_sink *sink)
{
    lki_free(sink->text);
    *sink = (lki_sink){.to = -1};
}

lk_status lki_stream_init(lki_stream *stream, int from, const char *prefix)
{
    *stream      = (lki_stream){.from = from};
    lk_status st = LKI_NEW(&stream->line, LKI_LINE_BYTES, "a line of a worker's output");

    if (st != LK_OK) {
        (void)close(from);
        stream->from = -1;
    }
    (void)snprintf(stream->prefix, sizeof stream->prefix, "%s", prefix);
    return st;
}

void lki_stream_deinit(lki_stream *stream)
{
    if (stream->line != NULL && stream->from >= 0)
        (void)close(stream->from);
    lki_free(stream->line);
    *stream = (lki_stream){.from = -1};
}

/* Returns true if the output of one read fits into the sink, even if every byte read ends a line
 * and so adds a prefix. */
bool lki_sink_has_room(const lki_sink *sink)
{
    size_t worst = LKI_READ_BYTES * (sizeof((lki_stream *)0)->prefix + 2) + 2 * LKI_LINE_BYTES;
    return LKI_SINK_BYTES - sink->used >= worst;
}

void lki_sink_close(lki_sink *sink)
{
    sink->to   = -1;
    sink->used = 0;
}

void lki_sink_write(lki_sink *sink)
{
    if (sink->to < 0 || sink->used == 0)
        return;
    ssize_t wrote = write(sink->to, sink->text, lki_min(sink->used, WRITE_BYTES));
    if (wrote > 0) {
        sink->used -= (size_t)wrote;
        memmove(sink->text, sink->text + wrote, sink->used);
    } else if (wrote < 0 && errno != EINTR && errno != EAGAIN) {
        sink->error = errno != EPIPE ? errno : 0; /* who closes a pipe has read enough */
        lki_sink_close(sink);
    }
}

lk_status lki_sinks_check(const lki_sink sinks[2])
{
    for (int s = 0; s < 2; s++)
        if (sinks[s].error != 0)
            return lk_fail(LK_EIO, "the workers' output was lost, because standard %s could not be "
                           "written: %s", s == 0 ? "output" : "error", strerror(sinks[s].error));
    return LK_OK;
}

/* Prints a note, unless standard error would block, too. */
static void say_rest(lki_rest *rest, const lki_sink *sink, const char *what)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    char          text[160];

    rest->said = true;
    if (rest->options == NULL || rest->options->note == NULL || poll(&out, 1, 0) != 1)
        return;
    (void)snprintf(text, sizeof text, "nobody reads %zu bytes that the workers have printed: %s",
                   sink->used, what);
    rest->options->note(rest->options->note_context, text);
}

/* Writes once, or waits for a moment until the reader reads. */
static void drain_once(lki_sink *sink, lki_rest *rest)
{
    struct pollfd polled[2] = {{.fd = sink->to, .events = POLLOUT},
                               {.fd = rest->signals, .events = POLLIN}};
    double        now       = lki_seconds();

    if (rest->since <= 0)
        rest->since = now;
    if (poll(polled, 2, LOOK_MS) < 0)
        return;
    if (polled[1].revents != 0) {
        lki_sink_close(sink);
    } else if (polled[0].revents != 0) {
        lki_sink_write(sink);
        rest->since = lki_seconds();
    } else if (rest->asked && now - rest->since > GIVE_UP_SECONDS) {
        say_rest(rest, sink, "they are left out, because the job was asked to stop");
        lki_sink_close(sink);
    } else if (!rest->said && now - rest->since > SAY_SECONDS) {
        say_rest(rest, sink, "the job is over, and waits for the reader; Ctrl-C leaves them out");
    }
}

void lki_sink_drain(lki_sink *sink, bool all, lki_rest *rest)
{
    while (sink->used > 0 && (all || !lki_sink_has_room(sink)))
        drain_once(sink, rest);
}

static void sink_add(lki_sink *sink, const char *text, size_t bytes)
{
    LK_ASSERT(bytes <= LKI_SINK_BYTES - sink->used);
    memcpy(sink->text + sink->used, text, bytes);
    sink->used += bytes;
}

static void emit_line(lki_stream *stream, lki_sink *sink)
{
    if (sink->to >= 0) {
        sink_add(sink, stream->prefix, strlen(stream->prefix));
        sink_add(sink, stream->line, stream->used);
        sink_add(sink, "\n", 1);
    }
    stream->used = 0;
}

static void take_bytes(lki_stream *stream, lki_sink *sink, const char *text, size_t bytes)
{
    while (bytes > 0) {
        const char *newline = memchr(text, '\n', bytes);
        size_t      part    = newline != NULL ? (size_t)(newline - text) : bytes;
        size_t      fits    = lki_min(part, LKI_LINE_BYTES - stream->used);

        memcpy(stream->line + stream->used, text, fits);
        stream->used += fits;
        text += fits;
        bytes -= fits;
        if (bytes == 0)
            break;
        emit_line(stream, sink); /* the line is complete, or too long */
        if (*text == '\n') {
            text++;
            bytes--;
        }
    }
}

bool lki_stream_read(lki_stream *stream, lki_sink *sink)
{
    char text[LKI_READ_BYTES];

    if (stream->from < 0)
        return false;
    ssize_t got = sink->to >= 0 ? read(stream->from, text, sizeof text) : 0;
    if (got > 0) {
        take_bytes(stream, sink, text, (size_t)got);
        return true;
    }
    if (got < 0 && errno == EINTR)
        return true;
    if (got < 0 && errno == EAGAIN)
        return false;
    lki_stream_finish(stream, sink);
    return false;
}

void lki_stream_finish(lki_stream *stream, lki_sink *sink)
{
    if (stream->from < 0)
        return;
    if (stream->used > 0)
        emit_line(stream, sink);
    (void)close(stream->from);
    stream->from = -1;
}
