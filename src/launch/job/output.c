/* output.c -- forwards the workers' output line by line, prefixed with the rank. */
#include "launch/job/output.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"

/* The number of bytes that a pipe accepts without blocking after poll() (PIPE_BUF in POSIX). */
enum { WRITE_BYTES = 4096 };

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
        lki_sink_close(sink);
    }
}

void lki_sink_drain(lki_sink *sink, bool all, int stop)
{
    while (sink->used > 0 && (all || !lki_sink_has_room(sink))) {
        struct pollfd polled[2] = {{.fd = sink->to, .events = POLLOUT},
                                   {.fd = stop, .events = POLLIN}};
        if (poll(polled, 2, -1) < 0 && errno != EINTR)
            return;
        if (polled[1].revents != 0)
            lki_sink_close(sink);
        lki_sink_write(sink);
    }
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
