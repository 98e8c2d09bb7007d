/* base/trace.h -- records how threads spend their time.
 *
 * A trace belongs to one rank and has a track for each of its threads.  A thread adds a span (a
 * named interval of time) to its track when the span ends:
 *
 *     uint64_t begun = lki_trace_begin(track);
 *     ...
 *     lki_trace_end(track, LKI_SPAN_REDUCE, 0, begun);
 *
 * Spans of a track nest; inner spans precede the outer span.  A track is a ring in preallocated
 * memory.  Adding never allocates, locks or waits, and a full ring drops new spans and counts them.
 * Only one thread adds to a track.  At any time only one thread drains the tracks.
 *
 * Without a trace the track is NULL, which costs one branch, and the clock is not read.
 */
#ifndef LKI_TRACE_H
#define LKI_TRACE_H

#include <time.h>

#include "base/status.h"

/* X(NAME, text): the purpose of a span.  The notes say what the span's `detail` contains, if
 * anything. */
#define LKI_SPAN_TABLE(X)                                                                        \
    X(STEP, "step")                     /* detail: its number, from 1 */                         \
    X(DATA, "waiting for data")                                                                  \
    X(FORWARD, "forward")               /* all blocks of a micro-batch */                        \
    X(BACKWARD, "backward")                                                                      \
    X(BLOCK_FORWARD, "forward of a block") /* detail: the block */                               \
    X(BLOCK_BACKWARD, "backward of a block")                                                     \
    X(MERGE, "clearing and merging gradients")                                                   \
    X(REDUCE, "reducing")               /* this rank's part of a collective */                   \
    X(WAIT, "waiting for workers")                                                               \
    X(NORM, "norm")                                                                              \
    X(UPDATE, "update")                 /* optimizer, and the hashes before and after */         \
    X(CONTROL, "control")               /* messages, polls and checks between steps */           \
    X(LOG, "log")                                                                                \
    X(EVALUATE, "evaluation")                                                                    \
    X(CHECKPOINT, "checkpoint")                                                                  \
    X(HASH, "hashing")                                                                           \
    X(LOAD, "loading a micro-batch")                                                             \
    X(WORK, "work")                     /* a helper's part of a parallel region */

typedef enum {
#define LKI_SPAN_ENUM(name, text) LKI_SPAN_##name,
    LKI_SPAN_TABLE(LKI_SPAN_ENUM)
#undef LKI_SPAN_ENUM
        LKI_SPAN_KINDS
} lki_span_kind;

typedef struct {
    uint64_t begun, ended; /* nanoseconds of the monotonic clock */
    uint32_t kind, detail;
} lki_trace_span;

typedef struct lki_trace lki_trace;
typedef struct lki_track  lki_track;

const char *lki_trace_text(lki_span_kind kind);

/* Creates a trace of `tracks` rings of at least `spans` spans each. */
LK_NODISCARD lk_status lki_trace_open(lki_trace **out, uint32_t tracks, size_t spans);
void lki_trace_free(lki_trace *trace);

/* Returns a track; NULL if `trace` is NULL or has no such track. */
lki_track *lki_trace_track(lki_trace *trace, uint32_t track);

/* Returns true if any track is more than half full and should be drained. */
bool lki_trace_presses(const lki_trace *trace);

/* Passes the contents of the rings to `sink`, track by track, in order, and empties the rings. */
typedef void (*lki_trace_sink)(void *context, uint32_t track, const lki_trace_span *spans,
                               size_t count);
void lki_trace_drain(lki_trace *trace, lki_trace_sink sink, void *context);

uint64_t lki_trace_lost(const lki_trace *trace); /* spans dropped so far */

void lki_track_add(lki_track *track, lki_trace_span span); /* used by lki_trace_end() */

static inline uint64_t lki_trace_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static inline uint64_t lki_trace_begin(const lki_track *track)
{
    return track == NULL ? 0 : lki_trace_now();
}

static inline void lki_trace_end(lki_track *track, lki_span_kind kind, uint32_t detail,
                                 uint64_t begun)
{
    if (track != NULL)
        lki_track_add(track, (lki_trace_span){ begun, lki_trace_now(), kind, detail });
}

#endif
