/* launch/spawn.h -- starting one worker as a direct child that cannot outlive its launcher. */
#ifndef LKI_LAUNCH_SPAWN_H
#define LKI_LAUNCH_SPAWN_H

#include <sched.h>
#include <signal.h>
#include <sys/types.h>

#include "base/status.h"

/* What a worker is told.  Everything else of the launcher's environment is inherited. */
typedef struct {
    uint32_t    rank, size, local_rank, local_size, node;
    const char *address;    /* MASTER_ADDR: of node 0 */
    uint16_t    port;       /* MASTER_PORT: free when it was looked for */
    int         control_fd; /* stays open in the program under this very number */
    int         socket_fd;  /* so does this */
    int         key_fd;     /* and this; -1 = none */
    bool        enters;     /* it takes the place of one that was lost */
    uint32_t    timeout_ms; /* 0 = the default */
    const char *flight;     /* an absolute path; NULL = none */
} lki_worker_facts;

/* The environment of a worker (environment.c): the launcher's own, with RANK and its kin replaced,
 * and OMP_NUM_THREADS=1 where it is not set.  One block of memory, from lki_free(). */
LK_NODISCARD lk_status lki_environment_new(char ***out, char *const *inherited,
                                           const lki_worker_facts *facts);

typedef struct {
    uint32_t     rank;
    char *const *argv;
    char *const *environment;
    int          keep[3];  /* descriptors that the program inherits; -1 = none */
    int          standard[3]; /* become its 0, 1 and 2; -1 = as the launcher's */
    pid_t       *record;   /* the child is our parent's, and its pid is written here; NULL: ours */
    int          report;   /* the write end of a pipe: an lki_exec_failure arrives there; or -1 */
    sigset_t     mask;     /* the program's signal mask */
    bool         bound;    /* it runs on these cores only */
    cpu_set_t    cores;
} lki_spawn_plan;

/* What a child could not do. */
typedef struct {
    uint32_t rank;
    int      error; /* errno */
} lki_exec_failure;

/* Forks and executes.  LK_OK means that there is a child; whether its exec succeeded is known
 * when every copy of `report` is closed. */
LK_NODISCARD lk_status lki_spawn(pid_t *out, const lki_spawn_plan *plan);

/* A TCP port of 127.0.0.1 that nobody uses now; 29500 if the system will not say. */
uint16_t lki_port_free(void);

#endif
