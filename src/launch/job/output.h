/* launch/job/output.h -- forwards the workers' output line by line, prefixed with the rank.
 *
 * A worker writes into a pipe (a stream here), and its lines go to the launcher's own standard
 * output or error (a sink).  The launcher must never block on a slow reader, or it would detect
 * deaths late.  Sinks are therefore written only when poll() permits, and a stream is read only
 * while its sink has room.  So a slow reader slows down only the workers.  When the job is over,
 * the launcher waits for the reader, and says so.
 */
#ifndef LKI_LAUNCH_JOB_OUTPUT_H
#define LKI_LAUNCH_JOB_OUTPUT_H

#include "base/status.h"
#include "lockstep/launch.h"

enum {
    LKI_LINE_BYTES = 8192,   /* size at which longer lines are split */
    LKI_READ_BYTES = 4096,   /* bytes per read from a stream */
    LKI_SINK_BYTES = 262144, /* maximum number of bytes that wait for a slow reader */
};

typedef struct {
    int    to;    /* the descriptor to write to, borrowed; -1: closed */
    int    error; /* errno of the write that has failed, so that output was lost; 0: none */
    char  *text;  /* a buffer of LKI_SINK_BYTES */
    size_t used;
} lki_sink;

typedef struct {
    int    from;       /* read end of the pipe, non-blocking; -1: end of file */
    char   prefix[16]; /* "[3] " */
    char  *line;       /* a buffer of LKI_LINE_BYTES for the beginning of an unfinished line */
    size_t used;
} lki_stream;

/* How the rest of the output is written when the job is over. */
typedef struct {
    int                      signals; /* the launcher's signalfd */
    bool                     asked;   /* the job was asked to stop */
    const lk_launch_options *options; /* for notes; NULL: none */
    double                   since;   /* time in seconds of the last progress */
    bool                     said;    /* a note about the reader was printed */
} lki_rest;

LK_NODISCARD lk_status lki_sink_init(lki_sink *sink, int to);
void lki_sink_deinit(lki_sink *sink);

/* Opens a stream.  Takes ownership of `from`, and closes it on failure. */
LK_NODISCARD lk_status lki_stream_init(lki_stream *stream, int from, const char *prefix);
void lki_stream_deinit(lki_stream *stream); /* accepts a zeroed stream */

/* Returns true if the sink has room for the output of one lki_stream_read(). */
bool lki_sink_has_room(const lki_sink *sink);

/* Discards all output that is pending or that follows.  Called when the reader has closed its
 * end. */
void lki_sink_close(lki_sink *sink);

/* Writes some of the pending output.  Called when the descriptor is writable.  Closes the sink if
 * the reader has closed its end, or if the write fails. */
void lki_sink_write(lki_sink *sink);

/* Returns LK_EIO if output for standard output or standard error could not be written. */
LK_NODISCARD lk_status lki_sinks_check(const lki_sink sinks[2]);

/* Writes until the sink has room, or with `all` until nothing is pending.  Prints a note if the
 * reader does not read for a second.  Closes the sink at a signal, because a user who interrupts
 * the program does not want the pending output.  If the job was asked to stop, also closes the sink
 * if the reader does not read for two seconds. */
void lki_sink_drain(lki_sink *sink, bool all, lki_rest *rest);

/* Reads once, and moves whole lines to the sink, which must have room.  At the end of the stream,
 * or if the sink is closed, also moves the last, unfinished line and closes the stream.  Returns
 * false if nothing more can be read now. */
bool lki_stream_read(lki_stream *stream, lki_sink *sink);

/* Moves an unfinished last line to the sink, and closes the stream. */
void lki_stream_finish(lki_stream *stream, lki_sink *sink);

#endif
