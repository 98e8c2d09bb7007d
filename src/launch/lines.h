/* launch/lines.h -- the workers' output, and the places of what a launcher waits for. */
#ifndef LKI_LAUNCH_LINES_H
#define LKI_LAUNCH_LINES_H

#include "launch/job.h"

/* Places in job->polled: the signals, two sinks, the other nodes, orders, the other of keeper and
 * coordinator, then four for each worker. */
enum { LKI_AT_SIGNALS, LKI_AT_SINKS, LKI_AT_NODES = 3, LKI_AT_ORDERS, LKI_AT_OTHER, LKI_AT_WORKERS,
       LKI_PER_WORKER = 4 };
_Static_assert(LKI_AT_WORKERS + LKI_PER_WORKER == LKI_POLLED(1), "job.h says how many");
enum { LKI_OF_PIDFD, LKI_OF_SOCKET, LKI_OF_STREAMS };

static inline struct pollfd *lki_place(const lki_job *job, uint32_t i, uint32_t of)
{
    return &job->polled[LKI_AT_WORKERS + i * LKI_PER_WORKER + of];
}

/* Puts the sinks that have something and the streams that are wanted into their places; moves what
 * poll() says of them; and, when everybody has ended, whatever is left. */
void lki_lines_prepare(lki_job *job);
void lki_lines_move(lki_job *job);
void lki_lines_finish(lki_job *job);

#endif
