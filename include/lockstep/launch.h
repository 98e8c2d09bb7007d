/* lockstep/launch.h -- start workers on one host or several, watch them, join them from inside.
 *
 * lk_launch() starts `workers` copies of a program as direct children, hands each the control
 * memory, a socket and the usual environment (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
 * NODE_RANK, MASTER_ADDR, MASTER_PORT and LOCKSTEP_...), forwards output and signals, holds the
 * descriptors of their arenas, and reports the first failure with its rank and cause.  It
 * computes nothing.  lk_join() is the other side.
 *
 * A job on several hosts has a launcher on each, the nodes.  They meet at the rendezvous, where
 * node 0 listens; ranks are numbered in the order of nodes.  What happens on one node (a failure,
 * a request to stop, the end) happens on all, and every launcher returns the same result.
 */
#ifndef LK_LAUNCH_H
#define LK_LAUNCH_H

#include "lockstep/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LK_JOB_KEY_BYTES = 32 };

/* What becomes of a job when a worker fails that had joined, as all others had. */
typedef enum {
    LK_ON_FAILURE_STOP,     /* it ends */
    LK_ON_FAILURE_CONTINUE, /* the others may go on: lk_comm_rebuild(); the same on all nodes */
} lk_on_failure;

/* Where the workers of a host run. */
typedef enum {
    LK_BIND_CORES,   /* each on an equal share of the cores; anywhere, if there are too few */
    LK_BIND_NUMA,    /* each on all cores of the NUMA nodes where that share is */
    LK_BIND_NONE,    /* anywhere */
    LK_BIND_THREADS, /* as LK_BIND_CORES; a worker that can binds its threads inside its share */
} lk_bind;

/* Trouble on purpose, to see what a job makes of it. */
typedef enum { LK_CHAOS_KILL = 1, LK_CHAOS_STOP = 2, LK_CHAOS_SLOW = 4 } lk_chaos_kind;

typedef struct {
    uint64_t seed;  /* of the plan: when, whom, what and for how long */
    double   rate;  /* blows a second on each host, on average; 0: there is no plan */
    uint32_t kinds; /* lk_chaos_kind, a bit for each; 0 = all */

    /* Is told of every blow, and at the end how many there were.  NULL = nobody. */
    void (*note)(void *context, const char *text);
    void  *note_context;
} lk_chaos;

typedef struct {
    uint32_t     workers;       /* on this host */
    char *const *argv;          /* argv[0] is looked up in PATH unless it has a slash */
    bool         prefix_output; /* "[rank] " before each line; else inherited as it is */
    uint32_t     timeout_ms;    /* of every wait of the workers, and for their exec; 0 = 30 s */
    uint32_t     grace_ms;      /* between SIGTERM and SIGKILL after a failure; 0 = 1 s */
    const char  *flight;        /* a directory for what every worker did last: see
                                 * lockstep/flight.h; made if it is not there; NULL = none */
    lk_bind       bind;
    lk_on_failure on_failure;

    /* With LK_ON_FAILURE_CONTINUE: for a worker that was lost a new one is started, as long as
     * another of its host is left; it waits in lk_join() until the others, on all hosts, let it
     * enter (train does: lk_train_config.enter).
     * So many in a row may be lost again before they have made two steps.  0: none is started. */
    uint32_t replacements;
    bool     host_leaves; /* SIGTERM to the launcher of a host other than node 0's, where the others
                           * go on: its workers leave when it suits them (train does), and the
                           * launcher with them, with 75; false: it asks all hosts to stop */
    bool     host_returns; /* node 0: another host may come in place of one that was lost: its
                            * workers wait in lk_join() as those do that replace others.  Emulated
                            * hosts that were lost are started again where workers are replaced. */
    const char *const *settings; /* what must be the same there: texts, 64 at most, then NULL;
                                  * NULL = nothing */
    bool     ranks_tell; /* who was lost, and who goes on; `note` is told the rest */

    /* Who ends with 0 has seen that the whole job is done and what it puts out is written.  From
     * then on nothing can be lost: who is killed, or a host that is gone, is no failure, and who is
     * stopped for `timeout_ms` is killed, and noted. */
    bool     leave_together;

    /* Is told what happened without ending the job, in one line: a worker that was lost, a group
     * that goes on, strangers whom a door between hosts has turned away.  NULL = nobody. */
    void (*note)(void *context, const char *text);
    void  *note_context;

    /* From the moment at which all workers have joined: SIGKILL to one, SIGSTOP for a while (1 ms
     * to 1 s) or SIGSTOP half of the time (for as long).  With LK_ON_FAILURE_CONTINUE the last
     * worker of a host is not killed. */
    lk_chaos chaos;

    /* More than 1: emulates so many hosts on this one, each with its share of the workers and a
     * launcher of its own, a copy of this process: it must have one thread. */
    uint32_t     hosts;

    /* Of `hosts`, or on node 0 of `nodes`, so many are enough to begin with, where others may come
     * (host_returns); 0 = all.  The rest take their places later, as if they had been lost before
     * the beginning: each with as many workers as node 0 has.  Real ones are waited for until
     * `join_ms` or 5 s are over; emulated ones are started when those have met. */
    uint32_t     hosts_least;

    /* A job on several hosts; all nodes need the same `nodes`, `rendezvous` and key. */
    uint32_t             nodes;      /* 0 and 1: this host alone, and the rest has no effect */
    int32_t              node;       /* the number of this one; -1 = any that is free, save 0 */
    const char          *rendezvous; /* "tcp://HOST:PORT", an address of node 0 */
    uint32_t             join_ms;    /* how long to wait for the other nodes; 0 = 5 min */
    const unsigned char *job_key;    /* LK_JOB_KEY_BYTES */
    bool                 insecure;   /* instead of a key: no TLS, for networks that are trusted */
} lk_launch_options;

/* The outcome of a job: the first failure, if any. */
typedef struct {
    int      exit_code; /* 0, or what the caller should exit with */
    bool     failed;
    bool     lost; /* failed without a word from the program, and nobody had asked it to stop: a
                    * worker was killed, did not run or was waited for in vain, a host is gone */
    uint32_t rank; /* who failed first */
    int32_t  pid;
    int      signal;     /* that ended it, or 0 */
    char     cause[512]; /* one line: rank, pid, signal or status, step and phase, its error */
} lk_launch_result;

/* Runs the job to its end.  LK_OK when it could be started, whatever became of it; a program that
 * cannot be run is LK_EINVAL, with exit_code 127 (not found) or 126, and nobody left running;
 * options that cannot be are, with exit_code 2.
 *
 * Environment:  everything is inherited; RANK and its kin are replaced, and OMP_NUM_THREADS is 1
 *               unless it is set.  Rank 0 has the caller's standard input, the others none.
 * Cores:        workers are bound, as options.bind says, to cores that the caller may run on,
 *               neighbours to neighbours; the caller's own are left alone.
 * Result:       exit_code is the failing worker's status, 128 + signal, or 75 when workers left
 *               with 75 after a request to stop.  A worker that failed because a peer had is
 *               never the cause.
 * Signals:      while it runs, SIGINT, SIGTERM and SIGHUP ask the job to stop (workers that have
 *               not joined get the signal itself), a second one ends it, unless it comes within
 *               a tenth of a second; SIGUSR1 and SIGUSR2 are passed on.  They must be blocked in
 *               other threads of the caller, if it has any.
 * Losses:       with LK_ON_FAILURE_CONTINUE the result is that of the ranks of the last group:
 *               what became of those who were lost before is told to `note`.
 * Life:         workers are killed when the calling thread dies, however it dies.
 * Coordinator:  with LK_ON_FAILURE_CONTINUE a fork of each caller watches and decides,
 *               and another takes over when it dies; `note` is called by the caller's thread. */
LK_API LK_NODISCARD lk_status lk_launch(const lk_launch_options *options, lk_launch_result *result);

/* What the caller may run on. */
typedef struct {
    uint32_t packages, nodes, cores, cpus; /* nodes: of memory; cpus: threads of cores; 0 = not
                                            * known */
    char     by[48];                       /* who says so: "hwloc, API 2.8", "/sys" */
} lk_topology;

LK_API void lk_topology_find(lk_topology *out);

/* Where lk_launch() would have a worker run: "0-3,8-11".  False: anywhere, or there is no room. */
LK_API bool lk_topology_place(char *out, size_t bytes, uint32_t rank, uint32_t workers,
                              lk_bind bind);

/* A job's key, for TLS between its hosts.  Whoever has it can take part in the job. */

/* Makes a new key and writes it to a file that only its owner may read; LK_EIO if there is one. */
LK_API LK_NODISCARD lk_status lk_job_key_new(const char *path);

/* Reads a key from a file, or from a descriptor ("fd:3"), which is closed.  LK_EINVAL where it is
 * no key, or where others than its owner may read or write the file. */
LK_API LK_NODISCARD lk_status lk_job_key_read(unsigned char key[LK_JOB_KEY_BYTES],
                                              const char *from);

/* Whether this process was started by a launcher, ours or another that lk_join() knows, as one of
 * several (lk_join() will find its group). */
LK_API bool lk_launched(void);

/* What our own launcher would have been told, for workers that another one has started; under our
 * own its word counts, and this has no effect. */
typedef struct {
    uint32_t    timeout_ms; /* lk_launch_options.timeout_ms, and for meeting; 0 = as
                             * LOCKSTEP_TIMEOUT_MS says, else 30 s, and 5 min for the hosts */
    const char *flight;     /* lk_launch_options.flight; NULL = LOCKSTEP_FLIGHT, else none */

    /* Is called once on each host when all of its workers have ended, however they did: those with
     * the ranks first .. first + count - 1.  It runs in the agent, a copy of the first of them as
     * it was when it joined, without its standard streams.  NULL = nothing is. */
    void (*ended)(void *context, uint32_t first, uint32_t count);
    void  *ended_context;

    /* Under our own launcher: SIGTERM to this process alone is a wish that it leaves the others,
     * lk_leave_requested(), and not that the job stops. */
    bool leaves;
} lk_join_options;

/* Joins the group that the launcher prepared.  In a process without one, a group of one rank.
 * Call it once, before other threads run.
 *
 * Another launcher (mpirun, mpiexec, srun, torchrun, TF_CONFIG; docs/launch.md has the names) has
 * prepared nothing: the worker with local rank 0 forks an agent of this host, which stays until
 * its workers have ended; LK_EINVAL says what a job on several hosts lacks.
 *
 * Where SIGINT, SIGTERM and SIGHUP have their default actions, this process survives them from now
 * on and leaves it to the launcher, or the agent, to decide: look at lk_stop_requested(). */
LK_API LK_NODISCARD lk_status lk_join(lk_comm **out);
LK_API LK_NODISCARD lk_status lk_join_with(lk_comm **out, const lk_join_options *options);

/* Whether the launcher (or a signal to the launcher) asked this job to save and leave.  Where no
 * rank calls this within the grace after such a request, the launcher (the agent, where there is
 * one) ends the job; a program that
 * may be long about its next look calls it once at its start. */
LK_API bool lk_stop_requested(const lk_comm *comm);

/* Whether this process was started in place of one that was lost: lk_join() waits until the others
 * let it enter. */
LK_API bool lk_enters(void);

/* Whether this process was asked to leave the others, where it has joined with options.leaves. */
LK_API bool lk_leave_requested(void);

/* The ranks of an MPI job (mpirun, srun) as a communicator, by Open MPI or MPICH, whichever has
 * started this process or is loaded in it.  Collective over MPI_COMM_WORLD, of which it takes a
 * duplicate.  MPI carries messages between hosts; the collectives are the library's own, with the
 * same bits as everywhere.  Ranks that follow each other on one machine share memory, as one host.
 * MPI's own collectives, whose sums depend on the number of ranks, are taken where
 * options.algorithms asks for them by the name "native" (docs/mpi.md).
 *
 * MPI is initialised here unless the program has done so, and then finalised when the last
 * communicator is freed; so that waits for all ranks (5 s at most after a failure), and can be done
 * once in a process.  A program that initialises MPI itself frees its communicators before it
 * finalises.  LK_EUNSUPPORTED where MPI has not started the process, or where the module for it
 * (lockstep-mpi-openmpi.so, lockstep-mpi-mpich.so) is missing; the text says which. */
LK_API LK_NODISCARD lk_status lk_comm_open_mpi(lk_comm **out, const lk_comm_options *options);

/* Where lockstep-`name`.so is: in the folder that LOCKSTEP_MODULES names, or else with the program
 * or where the library was installed.  LK_EUNSUPPORTED says where it was looked for, and that
 * `package` has what a build makes it of. */
enum { LK_MODULE_PATH = 4096 };
LK_API LK_NODISCARD lk_status lk_module_find(char path[LK_MODULE_PATH], const char *name,
                                             const char *package);

/* The threads mode: runs main(comm, context) on `workers` threads of this process, each with its
 * own rank; returns the first failure by cause.  The communicators are the library's: a rank has
 * left when its main returns. */
LK_API LK_NODISCARD lk_status lk_launch_threads(uint32_t workers, const lk_comm_options *options,
                                                lk_status (*main)(lk_comm *comm, void *context),
                                                void *context);

#ifdef __cplusplus
}
#endif
#endif /* LK_LAUNCH_H */
