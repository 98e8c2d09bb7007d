/* launch/job/forward.h -- forwards the workers' output, and defines the layout of job->polled. */
#ifndef LKI_LAUNCH_JOB_FORWARD_H
#define LKI_LAUNCH_JOB_FORWARD_H

#include "launch/job/job.h"

/* Indices in job->polled: the signals, two sinks, the other nodes, the orders, an entry that the
 * executor may use, then four entries per worker. */
enum { LKI_AT_SIGNALS, LKI_AT_SINKS, LKI_AT_NODES = 3, LKI_AT_ORDERS, LKI_AT_OTHER, LKI_AT_WORKERS,
       LKI_PER_WORKER = 4 };
_Static_assert(LKI_AT_WORKERS + LKI_PER_WORKER == LKI_POLLED(1), "job.h says how many");
enum { LKI_OF_PIDFD, LKI_OF_SOCKET, LKI_OF_STREAMS };

static inline struct pollfd *lki_place(const lki_job *job, uint32_t i, uint32_t of)
{
    return &job->polled[LKI_AT_WORKERS + i * LKI_PER_WORKER + of];
}

/* Writes to job->polled the sinks that have pending output, and the streams whose sink has room. */
void lki_forward_prepare(lki_job *job);

/* Moves output after poll(). */
void lki_forward_move(lki_job *job);

/* Forwards the rest of the output.  Called when the job is over on all nodes, because a slow reader
 * may take any time, in which this node says nothing to the others.  Returns LK_EIO if output was
 * lost. */
LK_NODISCARD lk_status lki_forward_finish(lki_job *job);

#endif
