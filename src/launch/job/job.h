/* launch/job/job.h -- the launcher's state of a job, and the functions that watch a job and
 * determine its result. */
#ifndef LKI_LAUNCH_JOB_JOB_H
#define LKI_LAUNCH_JOB_JOB_H

#include <poll.h>
#include <sys/types.h>

#include "launch/control/control.h"
#include "launch/rendezvous/rendezvous.h"
#include "launch/job/output.h"
#include "launch/job/signals.h"
#include "lockstep/launch.h"

enum { LKI_TIMEOUT_MS = 30000 }; /* default timeout of a wait */

typedef struct {
    pid_t      pid;        /* 0: not started */
    int        pidfd;      /* pidfd, readable when the worker has ended; -1: none */
    int        socket;     /* launcher's end, owned by `control`; -1: closed by the worker */
    lki_stream streams[2]; /* standard output and error, if the lines get prefixes */
    uint32_t   order;      /* position in the order in which workers ended, from 1; 0: running */
    int        status;     /* exit status if `signal` is 0 */
    int        signal;     /* the signal that ended the worker; 0: none */
    bool       by_us;      /* the launcher has sent the worker a signal to end it */
    bool       told;       /* the group had already failed when the worker exited */
    bool       was_stopped; /* the worker was stopped (SIGSTOP) while peers timed out */
    bool       asked;      /* the worker has forwarded a request to stop */
    bool       enters;     /* the worker is a replacement of a lost worker */
    bool       waits;      /* the worker is ready to enter the group */
    bool       entered;    /* the worker has entered the group */
    uint64_t   since;      /* step of the group at which the worker entered */
    bool       given_up;   /* no further replacement is started */
} lki_worker;

/* Additional options of a launcher that serves an emulated host, or workers of another launcher. */
typedef struct {
    const char *name;     /* host name; NULL: the system's host name */
    int         listener; /* node 0: a socket that already listens; -1: none */
    int         orders;   /* socket from which the launcher of an emulated host reads lki_order
                           * records; the launcher's parent sends these records instead of signals;
                           * -1: none */
    void      (*met)(int reports); /* called when all hosts have connected; NULL: none */
    void      (*left)(int reports); /* called when this host has left the job; NULL: none */
    int         reports;
    uint32_t    world, first; /* world size and this host's first rank, if another launcher assigned
                               * the ranks; `world` 0: no other launcher assigned them */
} lki_host;

/* An order from the parent process of emulated hosts: the arguments of lki_job_stop(). */
typedef struct {
    int  number;
    bool force, deaf;
} lki_order;

typedef struct lki_faults lki_faults; /* faults.h */
typedef struct lki_executor lki_executor; /* executor.h */

typedef struct {
    const lk_launch_options *options;
    const lki_host          *host;
    uint32_t                 count, started, ended;
    lki_roster               roster;     /* worker i has rank roster.first + i */
    lki_rendezvous          *rendezvous; /* connections to the other nodes; NULL: one host */
    bool                     introduced; /* other nodes know the addresses of our workers */
    bool                     begun;      /* the addresses of all workers were known at least once */
    bool                     told; /* other nodes know that the group of this epoch has failed */
    uint64_t                 epoch;      /* the job's epoch; if this host is outside of the group,
                                          * `control` still has an older epoch */
    uint32_t                 refused;    /* number of refused connections that were noted */
    double                   refused_at; /* time of the last note about refused connections, in
                                          * seconds; 0: none */
    bool                     outside;    /* this late host is not in a group yet */
    bool                     dropped;    /* the group continues without this host */
    bool                     ready; /* if `outside` is true: node 0 knows that our workers are
                                     * ready */
    uint64_t                 heard;      /* number of other nodes' events that this or an earlier
                                          * loop has handled */
    lki_standing             standing;   /* if `outside` is true: the members of the group;
                                          * borrowed */
    bool                     over;       /* the job has ended on all nodes, with `outcome` */
    lki_outcome              outcome;
    int                      key_fd;     /* the job's key, for the workers; -1: none */
    char                     master[256]; /* MASTER_ADDR */
    lki_control             *control;
    char                    *flight; /* absolute path of options->flight */
    lki_faults               *faults; /* NULL: no fault injection */
    const lki_executor      *executor;
    void                    *executor_state; /* state of an executor other than the direct one */
    lki_worker              *workers;
    lki_sink                 sinks[2];
    struct pollfd           *polled;    /* entries for poll(); forward.h defines their order */
    lki_signals              signals;
    bool                     leaving;      /* this host is leaving; the other hosts continue */
    double                   asked_at; /* time in seconds of the first request to stop on this host;
                                        * 0: none */
    int                      stop_signal;  /* signal of the first request to stop on any node; 0:
                                            * none */
    int                      force_signal; /* signal of the second request; 0: none */
    double                   heed_at;      /* time in seconds by which a worker must check for a
                                            * stop request */
    bool                     unheeded;     /* no worker has checked for a stop request in time */
    double                   terminate_at; /* time in seconds of the next SIGTERM to the workers; 0:
                                            * none */
    double                   kill_at;      /* time in seconds of the next SIGKILL to the workers; 0:
                                            * none */
    double                   rebuild_left; /* seconds until missing workers are killed; 0: none */
    double                   rebuild_seen; /* time of the last update of rebuild_left */
    bool                     rebuild_killed; /* the missing workers were killed */
    bool                     rebuild_told; /* other nodes know that we request a new group */
    bool                     rebuild_said;   /* other nodes know which of our workers survive */
    uint32_t                 replaced;   /* number of failed replacements in a row */
    bool                     alone;         /* only one worker is left */
    double                   alone_seconds; /* seconds for which the last worker has been stopped */
    double                   alone_seen; /* time in seconds when lki_stopped_turn() last ran */
    uint32_t                 rebuild_ms; /* shortest timeout in other nodes' requests for a new
                                          * group; 0: none */
} lki_job;

/* Runs lk_launch() for one host (launch.c). */
LK_NODISCARD lk_status lki_launch_host(const lk_launch_options *options, const lki_host *host,
                                       lk_launch_result *result);

/* Runs lk_launch() for several emulated hosts (hosts.c). */
LK_NODISCARD lk_status lki_launch_hosts(const lk_launch_options *options,
                                        lk_launch_result *result);

/* Opens a pipe with close-on-exec.  If descriptors run out, the error says how to raise the
 * limit. */
LK_NODISCARD lk_status lki_pipe_open(int ends[2]);

/* Returns true if another launcher has started the workers.  They are not children of this process.
 * The other launcher handles their deaths, unless a request to stop was passed to us. */
static inline bool lki_is_foreign(const lki_job *job)
{
    return job->host->world > 0;
}

static inline uint32_t lki_rank_of_worker(const lki_job *job, uint32_t i)
{
    return job->roster.first + i;
}

/* The number of entries in job->polled that lki_watch() needs. */
#define LKI_POLLED(workers) (6 + 4 * (size_t)(workers))

/* Runs the job until every worker has ended. */
LK_NODISCARD lk_status lki_watch(lki_job *job);

/* Runs one wake-up (a turn) of the launcher's loop: sleeps until there are events, and handles
 * them.  Called after lki_watch(), repeatedly until job->over. */
LK_NODISCARD lk_status lki_watch_others(lki_job *job);

/* On a host that leaves the job, runs the loop until the other hosts have been informed. */
LK_NODISCARD lk_status lki_watch_farewell(lki_job *job);

/* Ends the job after a failure.  Sends SIGTERM at once to workers that cannot detect the failure,
 * and to all other workers after half of the grace period. */
void lki_job_fail(lki_job *job);

/* Asks the job to save and leave, or with `force` to end. `deaf` is true if the workers that have
 * not joined have already received the signal. */
void lki_job_stop(lki_job *job, int number, bool force, bool deaf);

/* Handles pending signals and orders.  Before the workers have started, only records the signals
 * and orders. */
void lki_job_listen(lki_job *job);

/* Sets *result to the failure that caused the other failures of this host's workers (report.c).
 * Returns the weight of that failure, for comparison with the results of other nodes. */
uint32_t lki_judge(const lki_job *job, lk_launch_result *result);

/* Computes lk_launch_result.lost from the weight of the job's result and the signal that ended the
 * process. */
bool lki_was_lost(const lki_job *job, uint32_t weight, int signal);

/* Describes the end of a worker, e.g. "rank 1 (pid 9491) was killed by SIGKILL at step 12 in
 * backward". */
void lki_job_describe(const lki_job *job, uint32_t i, char *line, size_t bytes);

/* If a signal has ended worker i, passes the description of its end to the surviving workers
 * (lki_control_lose()).  If the launcher has sent the signal, the description includes the
 * reason. */
void lki_job_lose(const lki_job *job, uint32_t i);

/* Passes a note to the function options->note, if set. */
void lki_job_note(const lki_job *job, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Passes a note about a loss, unless the ranks report losses themselves. */
void lki_job_note_loss(const lki_job *job, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns true if the surviving workers may continue after a worker's failure. */
bool lki_job_survives(const lki_job *job);

/* Forms the new group once its members are known (rebuild.c).  Called in every wake-up. */
void lki_rebuild_turn(lki_job *job);

/* Records that ranks of other nodes request a group after `epoch`. */
void lki_rebuild_asked(lki_job *job, uint64_t epoch, uint32_t timeout_ms);

/* Forms the group after `epoch`, whose members node 0 has chosen. */
void lki_rebuild_begin(lki_job *job, uint64_t epoch, const lki_members *members);

/* Prepares the state of a host that may have connected after the job began (late_host.c). */
void lki_late_host_open(lki_job *job);

/* Returns true if this host has no rank in `members`, the group of `epoch`, which is about to
 * begin. */
bool lki_late_host_stays(lki_job *job, uint64_t epoch, const lki_members *members);

/* Reports to node 0 when all workers of a late host are ready to enter.  Called in every
 * wake-up. */
void lki_late_host_turn(lki_job *job);

/* Completes a group that an earlier loop may have started to form. */
void lki_rebuild_resume(lki_job *job);

/* Returns true if ranks of this node are in the current group. */
bool lki_rebuild_concerns(const lki_job *job);

/* Returns true while the launcher waits for missing members of a new group. */
static inline bool lki_rebuild_pending(const lki_job *job)
{
    return job->rebuild_left > 0;
}

/* Starts workers in place of lost ones (replace.c).  Called in every wake-up. */
void lki_replace_turn(lki_job *job);

/* Records which replacements of lost workers are in the new group. */
void lki_replace_begin(lki_job *job);

/* Starts all workers of this host, and waits until every child runs the program (start.c).  If an
 * exec fails, *result says which. */
LK_NODISCARD lk_status lki_job_start(lki_job *job, lk_launch_result *result);

/* Starts a replacement of worker i, which has ended. */
LK_NODISCARD lk_status lki_job_start_again(lki_job *job, uint32_t i);

/* Returns the timeout of each wait of a worker, in seconds. */
static inline double lki_timeout_seconds(const lki_job *job)
{
    return (job->options->timeout_ms != 0 ? job->options->timeout_ms : LKI_TIMEOUT_MS) * 1e-3;
}

/* Prints a note if the last running worker has been stopped (SIGSTOP) for longer than a timeout
 * (stopped.c).  Called in every wake-up, and every LKI_ALONE_SECONDS while one worker runs. */
#define LKI_ALONE_SECONDS 0.5
void lki_stopped_turn(lki_job *job);

/* Returns true if a process is stopped by SIGSTOP or a debugger. */
bool lki_is_stopped(pid_t pid);

/* Returns true if worker i is stopped.  Returns false for a worker that has given up, because
 * sanitizers stop a process at its end to examine its memory. */
bool lki_job_is_stopped(const lki_job *job, uint32_t i);

/* Kills stopped workers for which other workers wait. */
void lki_job_kill_stopped(lki_job *job);

/* Returns true if a worker has left although workers leave only when all have finished
 * (leave_together). */
bool lki_is_complete(const lki_job *job);

/* Returns true if a worker ended because of a request to stop. */
bool lki_left_on_request(const lki_job *job, const lki_worker *worker);

#endif
