/* comm/trace.h -- spans of what a rank does and waits for in its communicators: base/trace.h. */
#ifndef LKI_COMM_TRACE_H
#define LKI_COMM_TRACE_H

#include "base/trace.h"
#include "lockstep/comm.h"

/* From here on this rank's waits (LKI_SPAN_WAIT) and its own part of collectives
 * (LKI_SPAN_REDUCE), in this communicator and all that share its links, are added to `track`, which
 * must be that of the thread that uses them.  NULL: no more. */
void lki_comm_trace(lk_comm *comm, lki_track *track);

#endif
