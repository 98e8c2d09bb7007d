/* launch/output.h -- the workers' lines, whole, each with its rank in front.
 *
 * A worker writes into a pipe (a stream here); its lines go to the launcher's own standard output
 * or error (a sink).  The launcher must never block on a slow reader, or it would miss a death:
 * sinks are written when poll() says so, and a stream is read only while its sink has room, so a
 * slow reader slows the workers and nothing else.
 */
#ifndef LKI_LAUNCH_OUTPUT_H
#define LKI_LAUNCH_OUTPUT_H

#include "base/status.h"

enum {
    LKI_LINE_BYTES = 8192,   /* a longer line is cut into lines of this size */
    LKI_READ_BYTES = 4096,   /* at most this much of a stream at a time */
    LKI_SINK_BYTES = 262144, /* what may wait for a slow reader */
};

typedef struct {
    int    to;   /* not ours to close; -1 once nobody reads it any more */
    char  *text; /* LKI_SINK_BYTES */
    size_t used;
} lki_sink;

typedef struct {
    int    from;       /* the pipe's read end, non-blocking; -1 at its end */
    char   prefix[16]; /* "[3] " */
    char  *line;       /* LKI_LINE_BYTES: the start of a line whose end has not come */
    size_t used;
} lki_stream;

LK_NODISCARD lk_status lki_sink_init(lki_sink *sink, int to);
void lki_sink_deinit(lki_sink *sink);

/* Owns `from` from now on, and has closed it when it fails. */
LK_NODISCARD lk_status lki_stream_init(lki_stream *stream, int from, const char *prefix);
void lki_stream_deinit(lki_stream *stream); /* a zeroed stream is allowed */

/* Whether the sink can take whatever one lki_stream_read() may produce. */
bool lki_sink_has_room(const lki_sink *sink);

/* Nobody reads it any more: forgets what waits and whatever comes. */
void lki_sink_close(lki_sink *sink);

/* Writes some of what waits; call it when the descriptor is writable.  Closes the sink when
 * nobody reads it any more. */
void lki_sink_write(lki_sink *sink);

/* Writes until the sink has room, with `all` until nothing waits.  It is closed when `stop` becomes
 * readable: whoever interrupts us does not want to see the rest. */
void lki_sink_drain(lki_sink *sink, bool all, int stop);

/* Reads once and moves whole lines to the sink, which must have room.  At the end of the stream
 * (or when the sink is closed) flushes the last, unfinished line and closes it.  Returns false
 * when there is nothing more to read now. */
bool lki_stream_read(lki_stream *stream, lki_sink *sink);

/* Moves an unfinished last line to the sink, and closes the stream. */
void lki_stream_finish(lki_stream *stream, lki_sink *sink);

#endif
