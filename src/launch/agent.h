/* launch/agent.h -- joining a job that another launcher has started.
 *
 * Somebody must hold the control memory and the arenas, pass descriptors on, see workers die, and
 * meet the other hosts: what our launcher does for its children.  Here it is the host's agent, a
 * process that the worker with local rank 0 leaves to itself when it joins.  The host's workers
 * find it by an abstract Unix socket whose name follows from the job; it talks to those of its own
 * user only.  It ends when they have, or when one of them has before all had met.  A request to
 * stop that a worker gets (SIGTERM) goes to it, and it asks the whole job to save and leave.
 */
#ifndef LKI_LAUNCH_AGENT_H
#define LKI_LAUNCH_AGENT_H

#include "launch/foreign.h"
#include "lockstep/launch.h"

/* What a worker gets from the agent; the descriptors are the caller's. */
typedef struct {
    int  control, socket;
    int  process; /* a pidfd of the agent, */
    int32_t pid;  /* and its number */
    bool secure;
    unsigned char key[LK_JOB_KEY_BYTES]; /* of the job, if it is secure */
} lki_agent_gift;

/* Starts the agent where this is local rank 0, and asks it.  Waits for all workers of this host and
 * for all hosts. */
LK_NODISCARD lk_status lki_agent_join(lki_agent_gift *out, const lki_foreign *job,
                                      const lk_join_options *options);

#endif
