/* launch/agent.h -- joins a job that another launcher (mpirun, srun, torchrun) has started.
 *
 * Lockstep's launcher holds the control memory and the arenas, passes on descriptors, detects
 * deaths and connects to the other hosts.  Under another launcher an extra process on each host,
 * the agent, does this work.  The worker with local rank 0 forks the agent when it joins.  The
 * host's other workers find the agent through an abstract Unix socket whose name is derived from
 * the job.  The agent serves only workers of its own user.  The agent ends when these workers have
 * ended, or when a worker ends before all have joined.  A worker that receives SIGTERM forwards the
 * signal to the agent, which asks the whole job to save and leave.
 */
#ifndef LKI_LAUNCH_AGENT_H
#define LKI_LAUNCH_AGENT_H

#include "launch/foreign.h"
#include "lockstep/launch.h"

/* The agent's answer to a worker.  The caller owns the descriptors. */
typedef struct {
    int  control, socket;
    int  process; /* a pidfd of the agent */
    int32_t pid;  /* the agent's process id */
    bool secure;
    unsigned char key[LK_JOB_KEY_BYTES]; /* key of the job, if `secure` */
} lki_agent_gift;

/* Starts the agent if this process is local rank 0, and requests the descriptors from the agent.
 * Waits for all workers of this host and for all hosts. lki_foreign_check_hosts() must have
 * succeeded. */
LK_NODISCARD lk_status lki_agent_join(lki_agent_gift *out, const lki_foreign *job,
                                      const lk_join_options *options);

#endif
