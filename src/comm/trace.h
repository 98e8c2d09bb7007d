/* comm/trace.h -- trace intervals of a rank's work and waits in its communicators; see
 * base/trace.h. */
#ifndef LKI_COMM_TRACE_H
#define LKI_COMM_TRACE_H

#include "base/trace.h"
#include "lockstep/comm.h"

/* Adds this rank's waits (LKI_SPAN_WAIT) and its own part of collectives (LKI_SPAN_REDUCE) to
 * `track` from now on.  Applies to this communicator and all communicators that share its links.
 * `track` must belong to the thread that uses these communicators.  If `track` is NULL, the trace
 * stops. */
void lki_comm_trace(lk_comm *comm, lki_track *track);

#endif
