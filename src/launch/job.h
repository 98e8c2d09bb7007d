/* launch/job.h -- what the launcher knows about a job, and the parts that watch and judge it. */
#ifndef LKI_LAUNCH_JOB_H
#define LKI_LAUNCH_JOB_H

#include <poll.h>
#include <sys/types.h>

#include "comm/rendezvous.h"
#include "launch/output.h"
#include "launch/signals.h"
#include "lockstep/launch.h"

enum { LKI_TIMEOUT_MS = 30000 }; /* where no other is asked for */

typedef struct {
    pid_t      pid;        /* 0 = not started */
    int        pidfd;      /* readable when it has ended; -1 = none */
    int        socket;     /* our end, which the control owns; -1 = the worker closed its own */
    lki_stream streams[2]; /* its standard output and error, when prefixed */
    uint32_t   order;      /* n-th to end, from 1; 0 = running */
    int        status;     /* its exit status, when `signal` is 0 */
    int        signal;     /* that ended it */
    bool       by_us;      /* the launcher had told it to end */
    bool       told;       /* its group had failed already when it exited */
    bool       was_stopped; /* found stopped while others timed out */
    bool       asked;      /* has passed a request to stop on to us */
    bool       enters;     /* it was started in place of another ... */
    bool       waits;      /* ... is ready to enter ... */
    bool       entered;    /* ... and let in, ... */
    uint64_t   since;      /* ... when the others were at this step */
    bool       given_up;   /* nobody is started in its place */
} lki_worker;

/* What a launcher is told that is one of several on this machine, each for an emulated host. */
typedef struct {
    const char *name;     /* of its host; NULL = as the system calls this one */
    int         listener; /* for node 0: listens already; -1 = none */
    int         orders;   /* lki_orders come from here, and no signal counts twice; -1 = none */
    void      (*met)(int reports); /* is told when all have met; NULL = nobody is */
    void      (*left)(int reports); /* the same when this host has left the others */
    int         reports;
    uint32_t    world, first; /* where another launcher has numbered the ranks; world 0 = none */
} lki_host;

/* What the launcher above those wants of all: a signal, as lki_job_stop() has it. */
typedef struct {
    int  number;
    bool force, deaf;
} lki_order;

typedef struct lki_blows lki_blows; /* blows.h */
typedef struct lki_keeper lki_keeper; /* keeper/keeper.h */

typedef struct {
    const lk_launch_options *options;
    const lki_host          *host;
    uint32_t                 count, started, ended;
    lki_roster               roster;     /* worker i is rank roster.first + i */
    lki_rendezvous          *rendezvous; /* with the other nodes; NULL = there are none */
    bool                     introduced; /* they know our workers' addresses, of this epoch */
    bool                     begun;      /* and once we knew those of all */
    bool                     told;       /* they know that the group of this epoch has failed */
    uint64_t                 epoch;      /* of the job; the control's may be older: we are out */
    uint32_t                 refused;    /* connections at the rendezvous, as far as noted ... */
    double                   refused_at; /* ... when; seconds, 0 = never */
    bool                     outside;    /* this host has come late, and is in no group yet ... */
    bool                     dropped;    /* the group has gone on without this host */
    bool                     ready;      /* ... but its workers could be, and node 0 knows it */
    uint64_t                 heard;      /* events of other nodes, by coordinators */
    lki_standing             standing;   /* outside: who is in it; the rendezvous has the memory */
    bool                     over;       /* on all nodes, with this outcome: */
    lki_outcome              outcome;
    int                      key_fd;     /* the job's key for the workers; -1 = none */
    char                     master[256]; /* MASTER_ADDR */
    lki_control             *control;
    char                    *flight; /* the absolute path of options->flight */
    lki_blows               *blows;  /* NULL: nobody wants any */
    lki_keeper              *keeper; /* NULL: this is the only launcher */
    lki_worker              *workers;
    lki_sink                 sinks[2];
    struct pollfd           *polled;    /* see watch.c for the places */
    lki_signals              signals;
    bool                     leaving;      /* this host leaves the others, which go on */
    double                   asked_at;     /* seconds; when such a signal first came here, or 0 */
    int                      stop_signal;  /* the first request to stop, on any node, or 0 */
    int                      force_signal; /* the second, or 0 */
    double                   heed_at;      /* seconds; who looks for requests has by then; or 0 */
    bool                     unheeded;     /* nobody had */
    double                   terminate_at; /* seconds; 0 = not planned */
    double                   kill_at;      /* the same */
    double                   rebuild_left; /* seconds until who does not come is killed; 0 = */
    double                   rebuild_seen; /* nobody asks; and when that was last looked at */
    bool                     rebuild_killed; /* who does not come has been */
    bool                     rebuild_told;   /* the other nodes know that we ask ... */
    bool                     rebuild_said;   /* ... and who of us goes on */
    uint32_t                 replaced;   /* workers in a row that did not last */
    bool                     alone;         /* one worker runs, ... */
    double                   alone_seconds; /* ... has been stopped for so long, ... */
    double                   alone_seen;    /* ... and was looked at then */
    uint32_t                 rebuild_ms; /* what ranks of other nodes who ask wait for; 0 = none */
} lki_job;

/* lk_launch() for one host (launch.c), and for several that are emulated (hosts.c). */
LK_NODISCARD lk_status lki_launch_host(const lk_launch_options *options, const lki_host *host,
                                       lk_launch_result *result);
LK_NODISCARD lk_status lki_launch_hosts(const lk_launch_options *options,
                                        lk_launch_result *result);

/* Close-on-exec; what to do about too few descriptors is said. */
LK_NODISCARD lk_status lki_pipe_open(int ends[2]);

/* Whether another launcher has started the workers: they are no children of ours, and how they end
 * is its affair, save that we have taken a request to stop for them. */
static inline bool lki_is_foreign(const lki_job *job)
{
    return job->host->world > 0;
}

static inline uint32_t lki_rank_of_worker(const lki_job *job, uint32_t i)
{
    return job->roster.first + i;
}

/* How many places lki_watch() needs in job->polled. */
#define LKI_POLLED(workers) (6 + 4 * (size_t)(workers))

/* Runs the job until every worker has ended and its output is written. */
LK_NODISCARD lk_status lki_watch(lki_job *job);

/* After that, again and again until the other nodes have come to their ends, too. */
LK_NODISCARD lk_status lki_watch_others(lki_job *job);

/* The same where this node leaves them: until they have been told. */
LK_NODISCARD lk_status lki_watch_farewell(lki_job *job);

/* The job has failed: those who cannot know are told to end, and all have the grace to. */
void lki_job_fail(lki_job *job);

/* The job shall save and leave; with `force` it shall just end.  `deaf`: workers that have not
 * joined have had the signal already. */
void lki_job_stop(lki_job *job, int number, bool force, bool deaf);

/* Does what signals and the launcher above want; before anything has begun it just notes it. */
void lki_job_listen(lki_job *job);

/* Says how the workers of this host ended: the first failure by cause.  Returns its weight beside
 * those of other nodes. */
uint32_t lki_judge(const lki_job *job, lk_launch_result *result);

/* Whether a job that ended by this weight and signal is lk_launch_result.lost. */
bool lki_was_lost(const lki_job *job, uint32_t weight, int signal);

/* "rank 1 (pid 9491) was killed by SIGKILL at step 12 in backward", of a worker that has ended. */
void lki_job_describe(const lki_job *job, uint32_t i, char *line, size_t bytes);

/* The same for those who go on to tell (lki_control_lose()), if a signal has ended it: also why it
 * was we who sent it. */
void lki_job_lose(const lki_job *job, uint32_t i);

/* Tells the caller what happened, where he wants to know. */
void lki_job_note(const lki_job *job, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same of losses, where the ranks do not tell. */
void lki_job_note_loss(const lki_job *job, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Whether the others may go on without a worker that has failed. */
bool lki_job_survives(const lki_job *job);

/* After every turn: gives those who ask for it the group without those who are lost, when it is
 * time to (rebuild.c). */
void lki_rebuild_turn(lki_job *job);

/* Ranks of other nodes ask for the group after `epoch`; the next one is decided on. */
void lki_rebuild_asked(lki_job *job, uint64_t epoch, uint32_t timeout_ms);
void lki_rebuild_begin(lki_job *job, uint64_t epoch, const lki_members *members);

/* Of a host that may have come late (outside.c): what it knows then; whether it stays outside of
 * the group of `epoch`, which begins; and after every turn. */
void lki_outside_open(lki_job *job);
bool lki_outside_stays(lki_job *job, uint64_t epoch, const lki_members *members);
void lki_outside_turn(lki_job *job);

/* The launcher before this one may have made a group, and not got further. */
void lki_rebuild_resume(lki_job *job);

/* Whether ranks of this node are in the group as it is now. */
bool lki_rebuild_concerns(const lki_job *job);

/* Whether that needs another look soon. */
static inline bool lki_rebuild_pending(const lki_job *job)
{
    return job->rebuild_left > 0;
}

/* After every turn: starts workers in place of those who were lost (replace.c); and, when a group
 * has come to be, notes who of them is in it. */
void lki_replace_turn(lki_job *job);
void lki_replace_begin(lki_job *job);

/* launch.c: worker i, which has ended, again: it is to enter. */
LK_NODISCARD lk_status lki_job_start_again(lki_job *job, uint32_t i);

/* What every wait of the workers is limited by; seconds. */
static inline double lki_timeout_seconds(const lki_job *job)
{
    return (job->options->timeout_ms != 0 ? job->options->timeout_ms : LKI_TIMEOUT_MS) * 1e-3;
}

/* After every turn, and each LKI_ALONE_SECONDS while there is one worker only: says if it has been
 * stopped for longer than anybody would wait (alone.c). */
#define LKI_ALONE_SECONDS 0.5
void lki_alone_turn(lki_job *job);

/* By SIGSTOP or a debugger. */
bool lki_is_stopped(pid_t pid);

/* Whether that is what worker i is.  One that has given up is not: sanitizers stop a process at its
 * end, to look at its memory. */
bool lki_job_is_stopped(const lki_job *job, uint32_t i);

/* Who is stopped while others wait for it is killed. */
void lki_job_kill_stopped(lki_job *job);

/* Whether somebody has left who does so only when all have finished (leave_together). */
bool lki_is_complete(const lki_job *job);

/* Whether a worker that has ended did what a request to stop had asked for. */
bool lki_left_on_request(const lki_job *job, const lki_worker *worker);

#endif
