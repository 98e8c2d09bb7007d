/* train/observe/observe.h -- what a rank writes down of its steps, and makes of it.
 *
 * Where --trace or a report is asked for, a rank has a trace: a track for the thread of the loop,
 * one for each of the loader's and one for each helper of the pool.  It is drained between steps,
 * into the rank's part of the trace (trace_part.c) and the sums of the report (anatomy.c).  Nothing
 * of it reaches a parameter.
 */
#ifndef LKI_TRAIN_OBSERVE_H
#define LKI_TRAIN_OBSERVE_H

#include "base/trace.h"
#include "lockstep/nn.h"
#include "lockstep/train.h"

enum { LKI_TRACK_LOOP, LKI_TRACK_LOADERS }; /* the helpers' are behind the loader's */

/* ---- A rank's part of a trace (trace_part.c) --------------------------------------------- */

typedef struct lki_trace_part lki_trace_part;

/* Creates the file in which rank `rank` leaves its spans for lk_trace_merge(). */
LK_NODISCARD lk_status lki_trace_part_open(lki_trace_part **out, const char *path, uint32_t rank,
                                           uint32_t host, uint32_t loaders,
                                           const lk_model *model);
void lki_trace_part_add(lki_trace_part *part, uint32_t track, const lki_trace_span *spans,
                        size_t count);
/* Everything is with the system, or why it is not.  NULL is allowed; frees it in any case. */
LK_NODISCARD lk_status lki_trace_part_close(lki_trace_part *part, uint64_t lost);

/* What begins a part's file; then come batches, each a head and its spans, to the end. */
#define LKI_TRACE_MAGIC "LKTRACE1"
typedef struct {
    char     magic[8];
    uint32_t rank, host, pid, parent, blocks;
    uint32_t loaders; /* threads of the loader */
    int64_t  epoch_ns; /* what to add to the monotonic clock for the time of day */
} lki_trace_head; /* then `blocks` names of LKI_TRACE_NAME bytes */

typedef struct {
    uint32_t track; /* LKI_TRACK_LOST: `count` spans were dropped, none follow */
    uint32_t count;
} lki_trace_batch;

enum { LKI_TRACE_NAME = 96 };
#define LKI_TRACK_LOST UINT32_MAX

/* "PATH.rank-3.part"; LK_EINVAL if that is too long. */
LK_NODISCARD lk_status lki_trace_part_path(char out[4096], const char *path, uint32_t rank);

/* ---- The sums of a report (anatomy.c) ---------------------------------------------------- */

typedef struct lki_anatomy lki_anatomy;

/* Of the steps after the first `warm_up`, at most `steps` of them. */
LK_NODISCARD lk_status lki_anatomy_open(lki_anatomy **out, const lk_model *model, uint64_t first,
                                        uint64_t steps);
void lki_anatomy_free(lki_anatomy *anatomy);
/* A step after the warm-up of which there are no spans took so long. */
void lki_anatomy_time(lki_anatomy *anatomy, double seconds);
/* Spans of the loop's track. */
void lki_anatomy_add(lki_anatomy *anatomy, const lki_trace_span *spans, size_t count);

/* Those of a track of the loader's. */
void lki_anatomy_add_loads(lki_anatomy *anatomy, const lki_trace_span *spans, size_t count);

/* Collective: rank 0's report.  Its steps and their times are those of lki_anatomy_time() if there
 * are any; `samples` and `tokens` must be theirs. */
LK_NODISCARD lk_status lki_anatomy_report(lki_anatomy *anatomy, lk_comm *comm, lk_exec *exec,
                                          const lk_engine *engine, lk_dtype precision,
                                          lk_step_report *report);

#endif
