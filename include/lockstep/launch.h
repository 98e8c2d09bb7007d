/* lockstep/launch.h -- starts workers on one host or several, watches them, and lets them join.
 *
 * lk_launch() starts `workers` copies of a program as direct children.  It passes the control
 * memory, a socket and the usual environment to each worker (RANK, WORLD_SIZE, LOCAL_RANK,
 * LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR, MASTER_PORT and LOCKSTEP_...).  It forwards output and
 * signals, holds the descriptors of the workers' arenas, and reports the first failure with its
 * rank and cause.  It computes nothing.  A worker calls lk_join().
 *
 * A job on several hosts has one launcher per host; such a host is called a node here.  All
 * launchers connect to the rendezvous, where node 0 listens.  Ranks are numbered in the order of
 * nodes.  An event on one node (a failure, a request to stop, the end of the job) takes effect on
 * all nodes, and every launcher returns the same result.
 */
#ifndef LK_LAUNCH_H
#define LK_LAUNCH_H

#include "lockstep/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LK_JOB_KEY_BYTES = 32 };

/* The reaction to the failure of a worker after all workers have joined. */
typedef enum {
    LK_ON_FAILURE_STOP,     /* the job ends */
    LK_ON_FAILURE_CONTINUE, /* the survivors may call lk_comm_rebuild(); equal on all nodes */
} lk_on_failure;

/* The placement of the workers of a host. */
typedef enum {
    LK_BIND_CORES,   /* each worker gets an equal share of the cores; workers are not bound if there
                      * are fewer cores than workers */
    LK_BIND_NUMA,    /* each worker may run on all cores of the NUMA nodes that contain its share */
    LK_BIND_NONE,    /* workers are not bound */
    LK_BIND_THREADS, /* like LK_BIND_CORES; in addition a worker may bind its threads within its
                      * share */
} lk_bind;

/* Faults that are injected on purpose, for tests. */
typedef enum { LK_CHAOS_KILL = 1, LK_CHAOS_STOP = 2, LK_CHAOS_SLOW = 4 } lk_chaos_kind;

typedef struct {
    uint64_t seed;  /* seed of times, targets, kinds and durations */
    double   rate;  /* faults per second and host, on average; 0: none */
    uint32_t kinds; /* bits of lk_chaos_kind; 0 = all */

    /* (optional) Receives a line for every fault, and finally a line with the number of faults. */
    void (*note)(void *context, const char *text);
    void  *note_context;
} lk_chaos;

typedef struct {
    size_t       struct_size; /* see LK_LAUNCH_OPTIONS_INIT */
    uint32_t     workers;       /* number of workers on this host */
    char *const *argv;          /* argv[0] is looked up in PATH unless it has a slash */
    bool         prefix_output; /* "[rank] " before each line; false: unchanged output */
    uint32_t     timeout_ms;    /* limit of each wait of a worker, and of its exec; 0 = 30 s */
    uint32_t     grace_ms;      /* time between SIGTERM and SIGKILL after a failure; 0 = 1 s */
    const char  *flight;        /* directory of flight records (lockstep/flight.h), created if
                                 * missing; NULL = none */
    lk_bind       bind;
    lk_on_failure on_failure;

    /* With LK_ON_FAILURE_CONTINUE: starts a new worker in place of each lost worker, as long as at
     * least one worker of the host is alive.  The new worker waits in lk_join() until the survivors
     * on all hosts admit it (lk_comm_admit(); train does).  The launcher stops replacing workers
     * after `replacements` failed replacements in a row.  A replacement has failed if it was not
     * admitted, or was lost before it had completed two steps.  With 0, lost workers are not
     * replaced. */
    uint32_t replacements;
    bool     host_leaves; /* With LK_ON_FAILURE_CONTINUE: a SIGTERM to the launcher of any host
                           * except node 0 asks the workers of that host to leave the job at a
                           * convenient time, as train does.  The launcher then exits with 75.  If
                           * false, the signal asks all hosts to stop. */
    bool     host_returns; /* on node 0: a new host may replace a lost host; its workers wait in
                            * lk_join() like replacements.  With `replacements`, lost emulated hosts
                            * are restarted. */
    const char *const *settings; /* settings that a new host must share to replace a lost host: at
                                  * most 64 texts, then NULL; NULL = none */
    bool     ranks_tell; /* the workers report losses and new groups themselves, so `note` does not
                          * receive these events */

    /* Declares that a worker exits with 0 only after the whole job has finished and its output is
     * written.  After the first such exit, deaths of workers or hosts are not failures.  A worker
     * that is then stopped (SIGSTOP) for `timeout_ms` is killed, with a note. */
    bool     leave_together;

    /* (optional) Receives one line for each event that does not end the job: a lost worker, a new
     * group of survivors, a connection between hosts that was refused as unauthorised. */
    void (*note)(void *context, const char *text);
    void  *note_context;

    /* Faults to inject once all workers have joined.  A fault is SIGKILL, SIGSTOP for 1 ms to 1 s,
     * or a slowdown of 1 ms to 1 s (the worker is stopped half of the time).  With
     * LK_ON_FAILURE_CONTINUE the last worker of a host is not killed. */
    lk_chaos chaos;

    /* More than 1: emulates this many hosts on this machine.  Each host has its share of the
     * workers and its own launcher, a fork of this process.  This process must have one thread. */
    uint32_t     hosts;

    /* The number of hosts with which the job may begin if more hosts may join later (host_returns);
     * 0 = all.  Applies to `hosts` or, on node 0, to `nodes`.  Late hosts join like replacements of
     * lost hosts, each with as many workers as node 0.  Once enough real hosts have joined, node 0
     * waits for the rest for `join_ms`, at most 5 s.  Late emulated hosts start after the first
     * hosts have connected. */
    uint32_t     hosts_least;

    /* A job on several hosts; all nodes must be given the same `nodes`, `rendezvous` and key. */
    uint32_t             nodes;      /* 0 and 1: this host only; the fields below are ignored */
    int32_t              node;       /* the number of this node; -1 = any free number except 0 */
    const char          *rendezvous; /* "tcp://HOST:PORT", an address of node 0 */
    uint32_t             join_ms;    /* limit of the wait for the other nodes; 0 = 5 min */
    const unsigned char *job_key;    /* LK_JOB_KEY_BYTES */
    bool                 insecure;   /* uses neither key nor TLS; for trusted networks */
} lk_launch_options;

#define LK_LAUNCH_OPTIONS_INIT LK_OPTIONS_INIT(lk_launch_options)

/* The outcome of a job: the first failure, if any. */
typedef struct {
    int      exit_code; /* 0, or the status with which the caller should exit */
    bool     failed;
    bool     lost; /* true if the failure was a loss and no stop was requested: a worker was killed,
                    * did not run or never arrived, or a host disappeared.  No program reported an
                    * error. */
    uint32_t rank; /* rank of the first failure */
    int32_t  pid;
    int      signal;     /* the signal that ended the process, or 0 */
    char     cause[512]; /* one line: rank, pid, signal or status, step and phase, the worker's
                          * error */
} lk_launch_result;

/* Runs the job to its end.  Returns LK_OK if the job could be started, whatever its outcome.
 * Returns LK_EINVAL if the program cannot be run; exit_code is then 127 (not found) or 126, and no
 * process remains.  Returns LK_EINVAL also if the options are invalid, with exit_code 2.  Returns
 * LK_EIO, with exit_code 1, if output of workers was lost, because it could not be written.
 *
 * Environment:  everything is inherited, except that RANK and the other names above are replaced,
 *               and OMP_NUM_THREADS is 1 unless set.  Rank 0 has the caller's standard input, all
 *               other ranks have none.
 * Cores:        workers are bound as options.bind says, to cores that the caller may run on.
 *               Neighbouring ranks get neighbouring cores.  The caller's binding does not change.
 * Result:       exit_code is the failing worker's status, 128 + signal, or 75 when workers left
 *               with 75 after a request to stop.  A worker that failed because a peer had failed is
 *               never the cause.
 * Signals:      during the call, the first SIGINT, SIGTERM or SIGHUP asks the job to stop.  Workers
 *               that have not joined receive the signal itself.  A second signal ends the job,
 *               unless it arrives within a tenth of a second of the first.  SIGUSR1 and SIGUSR2 are
 *               forwarded to all workers.  If the caller has other threads, these must block all
 *               five signals.
 * Losses:       with LK_ON_FAILURE_CONTINUE the result describes only the ranks of the last group.
 *               `note` reports the ranks that were lost earlier.
 * Lifetime:     workers are killed when the calling thread dies, however it dies.
 * Coordinator:  with LK_ON_FAILURE_CONTINUE a forked child of the caller watches the workers and
 *               makes all decisions.  If this child dies, the caller forks another.  The caller's
 *               thread calls `note`. */
LK_API LK_NODISCARD lk_status lk_launch(const lk_launch_options *options, lk_launch_result *result);

/* The processors available to the caller. */
typedef struct {
    uint32_t packages, nodes, cores, cpus; /* nodes: NUMA nodes; cpus: hardware threads; 0 =
                                            * unknown */
    char     by[48];                       /* the source: "hwloc, API 2.8", "/sys" */
} lk_topology;

/* Detects the topology. */
LK_API void lk_topology_find(lk_topology *out);

/* Writes the processors on which lk_launch() would place a worker, e.g. "0-3,8-11".  Returns false
 * if the worker would not be bound, or if `out` is too small. */
LK_API bool lk_topology_place(char *out, size_t bytes, uint32_t rank, uint32_t workers,
                              lk_bind bind);

/* A job's key, for TLS between its hosts.  Any process with the key may take part in the job. */

/* Creates a new key and writes it to a file that only its owner may read.  Returns LK_EIO if the
 * file exists. */
LK_API LK_NODISCARD lk_status lk_job_key_new(const char *path);

/* Reads a key from a file or from a descriptor ("fd:3"), which is then closed.  Returns LK_EINVAL
 * if the content is not a key, or if users other than the owner may read or write the file. */
LK_API LK_NODISCARD lk_status lk_job_key_read(unsigned char key[LK_JOB_KEY_BYTES],
                                              const char *from);

/* Sets *out to true if a launcher that lk_join() supports started this process as one of several.
 * Reads only names in the environment, so it can be called at any time.  Returns LK_EINVAL if the
 * environment describes half of a job: a rank without a world size, a rank outside of the world
 * size, or a task that is not in TF_CONFIG.  The error message names the variables and says what to
 * do.  *out is then true, because the process must not run as a job of its own. */
LK_API LK_NODISCARD lk_status lk_launched(bool *out);

/* Writes a line about the launcher that started this process: its name, the rank and the sizes that
 * it has set, and the variables, e.g. "srun: rank 1 of 2, 1 of 2 on this host (...)".  Writes
 * "none" if this process is not one of several.  Returns LK_EINVAL if lk_launched() does, or if the
 * hosts of the job lack an address or a key. */
LK_API LK_NODISCARD lk_status lk_launcher_describe(char *out, size_t bytes);

/* The use of MPI between the hosts of a job. */
typedef enum {
    LK_MPI_AUTO, /* what LOCKSTEP_MPI (on, off) says.  If it is not set: on if mpirun, mpiexec or
                  * srun has started an MPI job on several hosts, the module for its MPI is found,
                  * and the environment does not prepare connections of Lockstep's own
                  * (LOCKSTEP_RENDEZVOUS, LOCKSTEP_JOB_KEY_FILE, LOCKSTEP_INSECURE) */
    LK_MPI_ON,
    LK_MPI_OFF,
} lk_mpi_mode;

/* Sets *out to true if lk_join_with() with this options.mpi will use MPI.  Only reads the
 * environment and looks for the module.  LK_EINVAL if MPI is on, but has not started this
 * process. */
LK_API LK_NODISCARD lk_status lk_mpi_chosen(bool *out, lk_mpi_mode mode);

/* Launcher options for workers that another launcher has started.  Under Lockstep's launcher,
 * lk_launch_options apply instead, and all fields except `timeout_ms`, `leaves` and `tuning` are
 * ignored. */
typedef struct {
    size_t      struct_size; /* see LK_JOIN_OPTIONS_INIT */
    uint32_t    timeout_ms; /* limit of each wait, as in lk_launch_options, and of connecting. 0 =
                             * LOCKSTEP_TIMEOUT_MS; if that is not set, 30 s, but 5 min for the
                             * hosts to connect.  Under Lockstep's launcher 0 = its timeout_ms */
    const char *flight;     /* as lk_launch_options.flight; NULL = LOCKSTEP_FLIGHT if set, else
                             * none */

    /* (optional) Called once per host when all of its workers have ended, in whatever way.  The
     * host's workers are ranks `first` to `first` + `count` - 1.  Runs in the agent, which is a
     * copy of the first worker as of its lk_join(), without its standard streams. */
    void (*ended)(void *context, uint32_t first, uint32_t count);
    void  *ended_context;

    /* Under Lockstep's launcher: a SIGTERM sent to this process, and not to the launcher, asks it
     * to leave the job (lk_leave_requested()) instead of stopping the job. */
    bool leaves;
    const char *tuning; /* lk_comm_options.tuning; NULL = LOCKSTEP_TUNING if set, else none */
    /* With MPI there is no agent: `ended` is not called, and MPI's launcher ends the job after a
     * loss. */
    lk_mpi_mode mpi;
} lk_join_options;

#define LK_JOIN_OPTIONS_INIT LK_OPTIONS_INIT(lk_join_options)

/* Joins the group that the launcher prepared; in a process without launcher, a group of one rank.
 * Call it once, before other threads run.  LK_EINVAL if lk_launched() fails, or the second time.
 *
 * Other launchers (mpirun, mpiexec, srun, torchrun, TF_CONFIG; docs/launch.md lists the names)
 * prepare nothing.  The worker with local rank 0 then forks an agent for this host.  The agent runs
 * until the host's workers have ended.  Returns LK_EINVAL if the hosts of a job lack an address or
 * a key; the message says which.
 *
 * If MPI carries the bytes between hosts (lk_mpi_chosen()), this call is lk_comm_open_mpi(), which
 * needs neither agent nor address nor key.
 *
 * If SIGINT, SIGTERM and SIGHUP have their default actions, this process ignores them from now on.
 * The launcher or the agent then decides: see lk_stop_requested().  With MPI this process decides:
 * the first signal is a request to stop, which lk_stop_requested() returns on this rank only; a
 * second one, a tenth of a second later or more, ends the process. */
LK_API LK_NODISCARD lk_status lk_join(lk_comm **out);
/* Joins as lk_join() does, with options. */
LK_API LK_NODISCARD lk_status lk_join_with(lk_comm **out, const lk_join_options *options);

/* Returns true if the launcher, or a signal to the launcher, asked this job to save and leave.  If
 * no rank calls this function within the grace period after such a request, the launcher (or the
 * agent) ends the job.  A program that may not call this function for a long time should call it
 * once at its start. */
LK_API bool lk_stop_requested(const lk_comm *comm);

/* Returns true if this process replaces a lost worker. lk_join() then waits until the other ranks
 * admit it. */
LK_API bool lk_enters(void);

/* Returns true if the launcher that started this process lets the survivors of a failure continue
 * (LK_ON_FAILURE_CONTINUE), so that lk_comm_rebuild() can succeed. */
LK_API bool lk_continues(void);

/* Returns true if this process was asked to leave the job and has joined with options.leaves. */
LK_API bool lk_leave_requested(void);

/* Creates a communicator of the ranks of an MPI job (mpirun, srun), with Open MPI or MPICH,
 * whichever started this process or is loaded in it.  This call is collective over MPI_COMM_WORLD
 * and duplicates that communicator.  MPI carries messages between hosts.  The collectives are the
 * library's own, with the same bits as without MPI.  Consecutive ranks on one machine share memory,
 * as one host.  MPI's own collectives, whose sums depend on the number of ranks, are used only if
 * options.algorithms requests "native" (docs/mpi.md).
 *
 * If the program has not initialised MPI, this function initialises it, and freeing the last
 * communicator finalises it.  Finalising waits for all ranks (at most 5 s after a failure) and is
 * possible once per process.  A program that initialises MPI itself must free its communicators
 * before it finalises MPI.  Returns LK_EUNSUPPORTED if MPI did not start the process, or if its
 * module (lockstep-mpi-openmpi.so, lockstep-mpi-mpich.so) is missing; the message says which.
 * Returns LK_EINVAL if MPI reports one process and the environment reports several
 * (lk_launched()). */
LK_API LK_NODISCARD lk_status lk_comm_open_mpi(lk_comm **out, const lk_comm_options *options);

/* Creates a communicator of the ranks of the program's own MPI communicator, with their numbers.
 * Collective over those ranks only.  MPI must be initialised.  `mpi_comm` is the address of an
 * MPI_Comm, and `bytes` is sizeof(MPI_Comm), which differs between MPIs.  The library duplicates
 * the communicator, so the caller may free its own at once.  LK_EINVAL if it is MPI_COMM_NULL or an
 * intercommunicator. */
LK_API LK_NODISCARD lk_status lk_comm_open_mpi_comm(lk_comm **out, const void *mpi_comm,
                                                    size_t bytes, const lk_comm_options *options);
/* As lk_comm_open_mpi_comm(), with the handle of Fortran and MPI_Comm_c2f() (MPI_Fint). */
LK_API LK_NODISCARD lk_status lk_comm_open_mpi_fint(lk_comm **out, int mpi_comm,
                                                    const lk_comm_options *options);

/* Finds lockstep-`name`.so in the folder that LOCKSTEP_MODULES names, or else beside the program or
 * the library, or in the folder of the installed library.  The message of LK_EUNSUPPORTED lists the
 * folders searched and says that `package` is needed to build the module. */
enum { LK_MODULE_PATH = 4096 };
LK_API LK_NODISCARD lk_status lk_module_find(char path[LK_MODULE_PATH], const char *name,
                                             const char *package);

/* Runs main(comm, context) on `workers` threads of this process, each with its own rank.  Returns
 * LK_OK, or the failure that caused the other failures.  The library owns the communicators: a rank
 * leaves the group when its `main` returns. */
LK_API LK_NODISCARD lk_status lk_launch_threads(uint32_t workers, const lk_comm_options *options,
                                                lk_status (*main)(lk_comm *comm, void *context),
                                                void *context);

#ifdef __cplusplus
}
#endif
#endif /* LK_LAUNCH_H */
