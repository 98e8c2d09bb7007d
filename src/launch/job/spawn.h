/* launch/job/spawn.h -- starts a worker as a child that cannot outlive its launcher. */
#ifndef LKI_LAUNCH_JOB_SPAWN_H
#define LKI_LAUNCH_JOB_SPAWN_H

#include <sched.h>
#include <signal.h>
#include <sys/types.h>

#include "base/status.h"

/* The facts that a worker receives through its environment.  Everything else is inherited from the
 * launcher. */
typedef struct {
    uint32_t    rank, size, local_rank, local_size, node;
    const char *address;    /* MASTER_ADDR: address of node 0 */
    uint16_t    port;       /* MASTER_PORT: a TCP port that was free when the launcher looked */
    int         control_fd; /* open in the program under this number */
    int         socket_fd;  /* open in the program under this number */
    int         key_fd;     /* descriptor of the key, inherited by the program; -1: none */
    bool        enters;     /* replacement of a lost worker */
    bool        continues;  /* survivors of a failure may continue */
    uint32_t    timeout_ms; /* 0: the default */
    const char *flight;     /* absolute path; NULL: none */
} lki_worker_facts;

/* Builds a worker's environment (environment.c): the launcher's own, with RANK and the other names
 * of a job replaced, and OMP_NUM_THREADS=1 unless set.  The result is one block of memory, freed
 * with lki_free(). */
LK_NODISCARD lk_status lki_environment_new(char ***out, char *const *inherited,
                                           const lki_worker_facts *facts);

typedef struct {
    uint32_t     rank;
    char *const *argv;
    char *const *environment;
    int          keep[3];  /* descriptors that the program inherits; -1: none */
    int          standard[3]; /* descriptors that become 0, 1 and 2; -1: inherited from the
                               * launcher */
    pid_t       *record;   /* if not NULL, fork a sibling instead of a child, and store its pid
                            * here */
    int          report;   /* write end of a pipe for an lki_exec_failure; -1: none */
    sigset_t     mask;     /* the program's signal mask */
    bool         bound;    /* the program may run only on `cores` */
    cpu_set_t    cores;
} lki_spawn_plan;

/* The error of a child that could not execute the program. */
typedef struct {
    uint32_t rank;
    int      error; /* errno */
} lki_exec_failure;

/* Forks and executes.  LK_OK means that a child exists.  Its exec has succeeded or failed once
 * every copy of `report` is closed. */
LK_NODISCARD lk_status lki_spawn(pid_t *out, const lki_spawn_plan *plan);

/* Returns a free TCP port of 127.0.0.1; 29500 if the system reports none. */
uint16_t lki_port_free(void);

#endif
