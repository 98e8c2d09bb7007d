/* train/observe/observe.h -- records the times of a rank's steps, and evaluates them.
 *
 * With --trace or a report a rank has a trace.  It has one track for the loop's thread, one for
 * each loader thread and one for each helper of the pool.  Between steps the trace is drained into
 * the rank's part of the trace file (trace_part.c) and into the sums of the report (breakdown.c).
 * No recorded value influences a parameter.
 */
#ifndef LKI_TRAIN_OBSERVE_H
#define LKI_TRAIN_OBSERVE_H

#include "base/trace.h"
#include "lockstep/nn.h"
#include "lockstep/train.h"
#include "train/core/session.h"

enum { LKI_TRACK_LOOP, LKI_TRACK_LOADERS }; /* tracks of helpers follow those of loaders */

/* ---- A rank's part of a trace (trace_part.c) --------------------------------------------- */

typedef struct lki_trace_part lki_trace_part;

/* Creates the file for the spans (trace intervals) of rank `rank`, which lk_trace_merge() reads. */
LK_NODISCARD lk_status lki_trace_part_open(lki_trace_part **out, const char *path, uint32_t rank,
                                           uint32_t host, uint32_t loaders,
                                           const lk_model *model);

/* Appends spans of a track to the part. */
void lki_trace_part_add(lki_trace_part *part, uint32_t track, const lki_trace_span *spans,
                        size_t count);
/* Flushes and frees the part.  Reports the first error, if any.  `lost`: number of dropped spans.
 * Accepts NULL. */
LK_NODISCARD lk_status lki_trace_part_close(lki_trace_part *part, uint64_t lost);

/* A merged trace begins with this text. */
#define LKI_TRACE_OPENING "{\"displayTimeUnit\": \"ms\", \"traceEvents\": ["

/* The header of a part's file.  Batches follow to the end of the file, each a header and spans. */
#define LKI_TRACE_MAGIC "LKTRACE1"
typedef struct {
    char     magic[8];
    uint32_t rank, host, pid, parent, blocks;
    uint32_t loaders; /* number of loader threads */
    int64_t  epoch_ns; /* nanoseconds to add to the monotonic clock for the time of day */
} lki_trace_head; /* followed by `blocks` names of LKI_TRACE_NAME bytes */

typedef struct {
    uint32_t track; /* LKI_TRACK_LOST: `count` spans were dropped, and no spans follow
                     * this header */
    uint32_t count;
} lki_trace_batch;

enum { LKI_TRACE_NAME = 96 };
#define LKI_TRACK_LOST UINT32_MAX

/* Writes "PATH.rank-3.part".  Fails with LK_EINVAL if it is too long. */
LK_NODISCARD lk_status lki_trace_part_path(char out[4096], const char *path, uint32_t rank);

/* ---- The sums of a report (breakdown.c) ---------------------------------------------------- */

typedef struct lki_breakdown lki_breakdown;

/* Opens sums for at most `steps` steps, beginning after step `first`. */
LK_NODISCARD lk_status lki_breakdown_open(lki_breakdown **out, const lk_model *model,
                                          uint64_t first, uint64_t steps);
void                   lki_breakdown_free(lki_breakdown *breakdown);
/* Adds a measured step that was timed without spans. */
void lki_breakdown_time(lki_breakdown *breakdown, double seconds);
/* Adds spans of the loop's track. */
void lki_breakdown_add(lki_breakdown *breakdown, const lki_trace_span *spans, size_t count);

/* Adds spans of a loader's track. */
void lki_breakdown_add_loads(lki_breakdown *breakdown, const lki_trace_span *spans, size_t count);

/* Fills in rank 0's report, from the steps of lki_breakdown_time() if there are any.
 * report->samples and report->tokens must already count the same steps.  Collective. */
LK_NODISCARD lk_status lki_breakdown_report(lki_breakdown *breakdown, lk_comm *comm, lk_exec *exec,
                                            const lk_engine *engine, lk_dtype precision,
                                            lk_step_report *report);

/* ---- A session's trace (observe.c): nothing without --trace or a report ------------------ */

LK_NODISCARD lk_status lki_observe_open(lki_session *session);

/* Traces the session's new loader. */
void lki_observe_loader(const lki_session *s);

/* Begins a step after `done` complete ones.  If only a report is wanted, every second short step is
 * timed without spans. */
void lki_observe_begin(lki_session *session, uint64_t done);

/* Drains the trace between two turns if it is nearly full. */
void lki_observe_turn(const lki_session *session);

/* Drains the trace between two steps. */
void lki_observe_drain(const lki_session *session);

/* Adds the samples and tokens of a step to the report. */
void lki_observe_step(const lki_session *session, const lki_step_record *record);

/* Fills in config->report after the last of `done` steps.  Collective. */
LK_NODISCARD lk_status lki_observe_report(lki_session *session, uint64_t done);

/* Closes the trace.  The loader must already be closed.  Fails with LK_EIO if the trace could not
 * be written. */
LK_NODISCARD lk_status lki_observe_close(lki_session *session);

#endif
