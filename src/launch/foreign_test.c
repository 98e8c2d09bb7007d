/* foreign_test.c -- tests which jobs are detected in the environments that other launchers set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "launch/foreign.h"
#include "launch/slurm.h"
#include "lockstep/launch.h"

/* Removes all variables, and makes sure that no module for MPI is found. */
static int forget_all(void **state)
{
    (void)state;
    return clearenv() != 0 ? -1 : setenv("LOCKSTEP_MODULES", "/nowhere", 1);
}

/* Sets the variables in a text such as "NAME=VALUE NAME=VALUE". */
static void set_names(const char *text)
{
    char copy[1024], *rest = copy;
    (void)forget_all(NULL);
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        char *value = strchr(word, '=');
        *value      = '\0';
        (void)setenv(word, value + 1, 1);
    }
}

/* The environment of an interactive shell in a Slurm allocation. */
#define SHELL_OF_SRUN                                                                            \
    "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0 "                      \
    "SLURM_STEP_TASKS_PER_NODE=1 SLURM_NODEID=0 SLURM_JOB_ID=7 "

/* Environments and the jobs that they describe.  The first `needed` variables are the row of the
 * table that decides; the others are set by the launcher, too, as recorded from real jobs. */
static const struct {
    const char *names, *by;
    uint32_t    rank, size, local_rank, local_size;
    const char *rendezvous;
    uint32_t    needed;
} good[] = {
    { "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=29500",
      "torchrun", 5, 8, 1, 4, "tcp://h:29500", 4 },
    { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=fd00::1 MASTER_PORT=1",
      "torchrun", 0, 2, 0, 1, "tcp://[fd00::1]:1", 0 },
    { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=h MASTER_PORT=1 "
      "LOCKSTEP_RENDEZVOUS=tcp://g:2", "torchrun", 0, 2, 0, 1, "tcp://g:2", 0 },
    { "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 "
      "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=2 PMIX_NAMESPACE=prterun-h-7@1",
      "mpirun of Open MPI", 2, 4, 0, 2, "", 4 },
    { "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_FD=9", "mpiexec", 1, 2, 1, 2,
      "", 4 },
    { "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=6 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=1,3,2 "
      "PMI_RANK=5 PMI_SIZE=6 SLURM_NTASKS=6 SLURM_NODEID=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0",
      "srun", 5, 6, 1, 2, "", 4 },
    { "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=2(x2) "
      "SLURM_NODEID=1 SLURM_JOB_ID=4242 SLURM_STEP_ID=1 SLURM_STEP_NODELIST=n[01,07]",
      "srun", 3, 4, 1, 2, "tcp://n01:29695", 4 },
    { "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1(x2) "
      "SLURM_NODEID=0 SLURM_STEP_NODELIST=a,b MASTER_ADDR=h MASTER_PORT=5", "srun", 0, 2, 0, 1,
      "tcp://h:5", 0 },
    /* srun of Slurm 22.05, -N2 -n4: without MPI, with --mpi=pmi2 and with --mpi=pmix */
    { "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=3,1 "
      "SLURM_NODEID=1 SLURM_JOB_ID=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[0-1] SLURM_GTIDS=3 "
      "SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=3,1 SLURM_CPUS_ON_NODE=1",
      "srun", 3, 4, 0, 1, "tcp://n0:20014", 4 },
    { "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=3,1 "
      "SLURM_NODEID=0 SLURM_JOB_ID=27 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[0-1] "
      "SLURM_GTIDS=0,1,2 PMI_FD=11 PMI_JOBID=27.0 PMI_RANK=1 PMI_SIZE=4",
      "srun", 1, 4, 1, 3, "tcp://n0:20189", 4 },
    { "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=3,1 "
      "SLURM_NODEID=1 SLURM_JOB_ID=26 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[0-1] SLURM_GTIDS=3 "
      "PMIX_RANK=3 PMIX_NAMESPACE=slurm.pmix.26.0 PMIX_HOSTNAME=n1 "
      "PMIX_SECURITY_MODE=munge,native", "srun", 3, 4, 0, 1, "tcp://n0:20182", 4 },
    { "PALS_RANKID=13 PMI_SIZE=24 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=12 PALS_NODEID=1 "
      "PALS_DEPTH=1 PALS_APID=2e5 "
      "PMI_RANK=13 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=12 PBS_NODENUM=0 "
      "PBS_TASKNUM=1 MASTER_ADDR=x1 MASTER_PORT=7", "mpiexec of PALS", 13, 24, 1, 12, "tcp://x1:7",
      4 },
    { "PALS_RANKID=1 WORLD_SIZE=2 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=2 PMIX_RANK=1 PALS_PMI=pmix",
      "mpiexec of PALS", 1, 2, 1, 2, "", 4 },
    { "PMI_RANK=3 PMI_SIZE=4 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=2", "a launcher by Cray's PMI", 3, 4,
      1, 2, "", 4 },
    { "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_SIZE=2 CROSS_RANK=1 CROSS_SIZE=2 MASTER_ADDR=h "
      "MASTER_PORT=1", "deepspeed", 3, 4, 1, 2, "tcp://h:1", 4 },
    { "RANK=1 WORLD_SIZE=3 MASTER_ADDR=j-master-0 MASTER_PORT=23456 PET_NPROC_PER_NODE=auto "
      "PET_NODE_RANK=1 PET_NNODES=3", "a PyTorchJob", 1, 3, 0, 1, "tcp://j-master-0:23456", 2 },
    { "JOB_COMPLETION_INDEX=2 WORLD_SIZE=4 MASTER_ADDR=j-0.j MASTER_PORT=1",
      "an Indexed Job of Kubernetes", 2, 4, 0, 1, "tcp://j-0.j:1", 2 },
    { "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 JOB_COMPLETION_INDEX=1 MASTER_ADDR=h "
      "MASTER_PORT=1", "torchrun", 5, 8, 1, 4, "tcp://h:1", 0 }, /* torchrun in a Pod */
    { "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", NULL, 0, 1, 0, 1, "", 0 },
    { "SLURM_PROCID=0 SLURM_NTASKS=6 SLURM_LOCALID=0 SLURM_JOB_ID=7", NULL, 0, 0, 0, 0, "", 0 },
    { "WORLD_SIZE=1", NULL, 0, 0, 0, 0, "", 0 },
    { "RANK=0 WORLD_SIZE=1", NULL, 0, 0, 0, 0, "", 0 },
    { "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0", NULL, 0, 0, 0, 0, "", 0 },
    { "PMI_RANK=0 PMI_SIZE=1", NULL, 0, 0, 0, 0, "", 0 },
    { "PMIX_RANK=0", NULL, 0, 0, 0, 0, "", 0 }, /* a process that uses MPI without a launcher */
    { "MASTER_ADDR=h MASTER_PORT=1 LOCKSTEP_RENDEZVOUS=tcp://g:2", NULL, 0, 0, 0, 0, "", 0 },
    { "SLURM_NTASKS=6 SLURM_JOB_ID=7", NULL, 0, 0, 0, 0, "", 0 }, /* salloc */
    { SHELL_OF_SRUN "PMI_RANK=0 RANK=0", NULL, 0, 0, 0, 0, "", 0 },
    { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 PMI_RANK=2 PMI_SIZE=4", "torchrun", 0, 2,
      0, 2, "", 0 }, /* the first complete set of several processes decides */
    { "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 PMI_RANK=0 PMI_SIZE=1", NULL, 0, 0, 0, 0,
      "", 0 },
    { "RANK=2 PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", "mpiexec", 1, 2, 1, 2,
      "", 0 },
    { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=h", "torchrun", 0, 2, 0, 2,
      "", 0 }, /* one host needs no address */
    { "PBS_NODENUM=0 PBS_TASKNUM=1", NULL, 0, 0, 0, 0, "", 0 }, /* a batch script of PBS */
    { "PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 PBS_NODENUM=1 "
      "PBS_TASKNUM=00000002", NULL, 0, 0, 0, 0, "", 0 }, /* started by Hydra on the second host */
    { "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 JOB_COMPLETION_INDEX=3", NULL, 0, 0,
      0, 0, "", 0 },
    { "JOB_COMPLETION_INDEX=0 WORLD_SIZE=1", NULL, 0, 0, 0, 0, "", 0 },
    { "LOCAL_SIZE=4 PET_NPROC_PER_NODE=1 PET_NNODES=2", NULL, 0, 0, 0, 0, "", 0 },
};

enum { GOOD = sizeof good / sizeof good[0] };

static void environments_of_foreign_launchers_are_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < GOOD; i++) {
        lki_foreign f;
        bool        launched = good[i].by == NULL;
        set_names(good[i].names);
        if (lki_foreign_find(&f) != LK_OK)
            fail_msg("%s: %s", good[i].names, lk_error_last()->message);
        assert_int_equal(lk_launched(&launched), LK_OK);
        assert_int_equal(launched, good[i].by != NULL);
        if (good[i].by == NULL) {
            assert_null(f.by);
            continue;
        }
        assert_string_equal(f.by, good[i].by);
        assert_int_equal(f.rank, good[i].rank);
        assert_int_equal(f.size, good[i].size);
        assert_int_equal(f.local_rank, good[i].local_rank);
        assert_int_equal(f.local_size, good[i].local_size);
        assert_string_equal(f.rendezvous, good[i].rendezvous);
    }
}

/* Rows of: variables; the part of the message that names them or describes the mistake; the end of
 * the message. */
static const char *const refused[][3] = {
    { "WORLD_SIZE=4",
      "WORLD_SIZE=4 is set, but not RANK, LOCAL_RANK and LOCAL_WORLD_SIZE: set them for every",
      "; unset WORLD_SIZE to run alone" },
    { "RANK=0 WORLD_SIZE=4",
      "RANK=0 and WORLD_SIZE=4 are set, but not LOCAL_RANK and LOCAL_WORLD_SIZE",
      "unset RANK and WORLD_SIZE to run alone" },
    { "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0",
      "RANK=0, WORLD_SIZE=4 and LOCAL_RANK=0 are set, but not LOCAL_WORLD_SIZE",
      "unset RANK, WORLD_SIZE and LOCAL_RANK to run alone" },
    { "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 PMI_RANK=2 PMI_SIZE=4",
      "PMI_RANK=2 and PMI_SIZE=4 are set, but not MPI_LOCALRANKID and MPI_LOCALNRANKS",
      "unset PMI_RANK and PMI_SIZE to run alone" },
    { "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 "
      "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2",
      "LOCAL_WORLD_SIZE=1 are set, a job of one process, but also OMPI_COMM_WORLD_RANK=0, ",
      "or RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE to join" },
    { "RANK=0", "RANK=0 is set, but not WORLD_SIZE", "unset RANK to run alone" },
    { "RANK=x", "RANK=x is set, but not WORLD_SIZE", "unset RANK to run alone" },
    { "LOCAL_RANK=0", "LOCAL_RANK=0 is set, but not RANK, WORLD_SIZE", "unset LOCAL_RANK to" },
    { "RANK=3 WORLD_SIZE=1", "RANK=3 and WORLD_SIZE=1 are set", "unset RANK and WORLD_SIZE to" },
    { "RANK= WORLD_SIZE=", "RANK= and WORLD_SIZE= are set", "unset RANK and WORLD_SIZE to" },
    { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1",
      "LOCAL_WORLD_SIZE=1 are set, but not MASTER_ADDR and MASTER_PORT: set them",
      "unset RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE to run alone" },
    { "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=h",
      "MASTER_ADDR=h are set, but not MASTER_PORT: set", "LOCAL_WORLD_SIZE to run alone" },
    { "PMI_RANK=0 PMI_SIZE=4",
      "PMI_RANK=0 and PMI_SIZE=4 are set, but not MPI_LOCALRANKID and MPI_LOCALNRANKS",
      "unset PMI_RANK and PMI_SIZE to run alone" },
    { "PMI_RANK=0", "PMI_RANK=0 is set, but not PMI_SIZE", "unset PMI_RANK to run alone" },
    { "PMIX_RANK=2", "PMIX_RANK=2 is set, but not the number of processes", "unset PMIX_RANK to" },
    { "PMI_ID=1", "PMI_ID=1 is set, but not the number of processes", "unset PMI_ID to" },
    { "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_RANK=1 is set, but not OMPI_COMM_WORLD_SIZE, ",
      "unset OMPI_COMM_WORLD_RANK to run alone" },
    { "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2",
      "are set, but not OMPI_COMM_WORLD_LOCAL_RANK: ", "OMPI_COMM_WORLD_LOCAL_SIZE to run alone" },
    { "SLURM_PROCID=2 SLURM_NTASKS=4", "SLURM_PROCID=2 is set, but not SLURM_STEP_NUM_TASKS",
      "unset SLURM_PROCID to run alone" },
    { "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID=0 and SLURM_STEP_NUM_TASKS=4 are set",
      "unset SLURM_PROCID and SLURM_STEP_NUM_TASKS to run alone" },
    { SHELL_OF_SRUN "RANK=0 WORLD_SIZE=4", "RANK=0 and WORLD_SIZE=4 are set, but not LOCAL_RANK",
      "unset RANK and WORLD_SIZE to run alone" },
    { SHELL_OF_SRUN "RANK=2", "RANK=2 is set, but not WORLD_SIZE", "unset RANK to run alone" },
    { "RANK=4 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4",
      "RANK=4, WORLD_SIZE=4, LOCAL_RANK=0 and LOCAL_WORLD_SIZE=4: rank 4 of 4, and rank 0 of 4 on "
      "its host, cannot be",
      "unset RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE to run alone" },
    { "RANK=0 WORLD_SIZE=0 LOCAL_RANK=0 LOCAL_WORLD_SIZE=0", "rank 0 of 0", "to run alone" },
    { "RANK=0 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", "cannot be", "to run alone" },
    { "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=1", "cannot be", "to run alone" },
    { "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=5", "cannot be", "to run alone" },
    { "RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4", "cannot be", "to run alone" },
    { "RANK=x WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", "RANK=x in the environment",
      "unset RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE to run alone" },
    { "RANK=1 WORLD_SIZE=9999 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", "WORLD_SIZE=9999", "alone" },
    { "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=6 SLURM_LOCALID=1 SLURM_NODEID=3 "
      "SLURM_STEP_TASKS_PER_NODE=3(x2)", "does not say how many tasks node 3 has",
      "unset SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID and SLURM_STEP_TASKS_PER_NODE to" },
    { "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=3 SLURM_LOCALID=0 SLURM_NODEID=1 "
      "SLURM_STEP_TASKS_PER_NODE=1(x2)", "1(x2) has 2 tasks, but SLURM_STEP_NUM_TASKS=3; unset",
      "SLURM_STEP_TASKS_PER_NODE to run alone" },
    { "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 MASTER_PORT=1",
      "MASTER_PORT=1 is set, but not MASTER_ADDR: set both for every process", "free port there" },
    { "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 MASTER_ADDR=h MASTER_PORT=x",
      "\"tcp://h:x\" is no rendezvous", "a port from 1 to 65535" },
    { "PALS_RANKID=0 PALS_LOCAL_RANKID=0 PALS_LOCAL_SIZE=12 PMIX_RANK=0",
      "PALS_LOCAL_SIZE=12 are set, but not PMI_SIZE: give mpiexec --env PMI_SIZE=N",
      "to run alone" },
    { "RANK=1 WORLD_SIZE=8 PET_NPROC_PER_NODE=4 PET_NNODES=2 MASTER_ADDR=h MASTER_PORT=1",
      "RANK=1 and WORLD_SIZE=8 are set, but not LOCAL_RANK and LOCAL_WORLD_SIZE", "to run alone" },
    { "JOB_COMPLETION_INDEX=0",
      "JOB_COMPLETION_INDEX=0 is set, but not WORLD_SIZE: set WORLD_SIZE to the number of Pods, or "
      "give --nnodes N", "unset JOB_COMPLETION_INDEX to run alone" },
    { "JOB_COMPLETION_INDEX=4 WORLD_SIZE=4", "rank 4 of 4, and rank 0 of 1", "WORLD_SIZE to run" },
    { "JOB_COMPLETION_INDEX=1 WORLD_SIZE=1 RANK=0", "are set, but also RANK", "to run alone" },
    { "PBS_NODENUM=1 PBS_TASKNUM=00000002", "PBS_NODENUM=1 is set, but not the number of processes",
      "--node-rank $PBS_NODENUM; unset PBS_NODENUM to run alone" },
    { "PBS_NODENUM=0 PBS_TASKNUM=00000002", "PBS_NODENUM=0 is set, but not the number", "to run" },
    { "TF_CONFIG=[]", "TF_CONFIG=[] in the environment: it must be an object", "unset TF_CONFIG" },
    { "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "
      "TF_CONFIG={\"cluster\":{\"worker\":[\"a:1\",\"b:1\"]},"
      "\"task\":{\"type\":\"worker\",\"index\":1}}",
      "a job of one process, but TF_CONFIG describes 2", "LOCAL_WORLD_SIZE to join" },
    { "TF_CONFIG=", "TF_CONFIG= in the environment: it is not JSON", "unset TF_CONFIG to run" },
    { "TF_CONFIG={\"cluster\":[]}", "TF_CONFIG={\"cluster\":[]} in", "unset TF_CONFIG to run" },
    { "TF_CONFIG={\"task\":{\"type\":\"worker\",\"index\":1}}", "but no cluster", "TF_CONFIG to" },
};

static void assert_refused(const char *names, lk_status status, const char *first,
                           const char *second)
{
    const char *said = lk_error_last()->message;
    if (status != LK_EINVAL)
        fail_msg("%s: not refused", names);
    if (strstr(said, first) == NULL || strstr(said, second) == NULL)
        fail_msg("%s: %s", names, said);
}

static void contradictory_environments_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        lki_foreign f;
        lk_comm    *comm;
        bool        launched = false;
        set_names(refused[i][0]);
        assert_refused(refused[i][0], lki_foreign_find(&f), refused[i][1], refused[i][2]);
        assert_refused(refused[i][0], lk_launched(&launched), refused[i][1], refused[i][2]);
        assert_true(launched); /* the process must not run as a job of its own */
        assert_refused(refused[i][0], lk_join(&comm), refused[i][1], refused[i][2]);
        assert_null(comm);
    }
}

/* Sets the variables of `names` except number `without`, or with another value of it.  With
 * `doubled`, the environment has both values.  Returns the variable's name. */
static const char *change_one(const char *names, uint32_t without, const char *value, bool doubled)
{
    static char  copy[1024], again[64];
    static char *entries[40];
    char        *rest = copy, *name = NULL;
    size_t       count = 0;
    uint32_t     i     = 0;

    (void)snprintf(copy, sizeof copy, "%s", names);
    for (char *word; (word = strsep(&rest, " ")) != NULL; i++) {
        if (i == without) {
            name = word;
            (void)snprintf(again, sizeof again, "%.*s=%s", (int)strcspn(word, "="), word, value);
        }
        if (i != without || doubled)
            entries[count++] = word;
    }
    if (value[0] != '\0')
        entries[count++] = again;
    entries[count] = NULL;
    environ        = entries;
    return name;
}

/* Returns true if another row of the table describes the same job, as PMI_RANK does for PALS. */
static bool is_told_twice(size_t row, lk_status status, const lki_foreign *f)
{
    return status == LK_OK && f->rank == good[row].rank && f->size == good[row].size
           && f->local_rank == good[row].local_rank && f->local_size == good[row].local_size;
}

/* Takes each variable of each row away, sets it to impossible values, and sets it twice. */
static void a_wrong_variable_of_any_launcher_is_refused(void **state)
{
    static const char *const values[] = { "", "x", "-1", "4000000", "7" };
    char                   **kept     = environ;
    (void)state;
    for (size_t i = 0; i < GOOD; i++)
        for (uint32_t k = 0; k < good[i].needed; k++)
            for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
                bool        doubled = strcmp(values[v], "7") == 0;
                const char *name    = change_one(good[i].names, k, values[v], doubled);
                lki_foreign f;
                lk_status   st = lki_foreign_find(&f);
                environ        = kept;
                if (values[v][0] == '\0' && is_told_twice(i, st, &f))
                    continue;
                if (st != LK_EINVAL || strstr(lk_error_last()->message, " to run alone") == NULL)
                    fail_msg("%s with %s \"%s\": %s", good[i].names, name, values[v],
                             st == LK_OK ? "accepted" : lk_error_last()->message);
                if (doubled && strstr(lk_error_last()->message, " twice, as ") == NULL)
                    fail_msg("%s twice: %s", name, lk_error_last()->message);
            }
}

/* Sets variables twice that no row needs, or that another row needs. */
static void two_values_of_any_variable_are_refused(void **state)
{
    static const struct {
        const char *names;
        uint32_t    twice;
    } cases[] = {
        { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_PORT=1 MASTER_ADDR=h", 5 },
        { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_PORT=1 MASTER_ADDR=h", 4 },
        { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 LOCKSTEP_RENDEZVOUS=tcp://h:1", 4 },
        { "RANK=1 WORLD_SIZE=3 PET_NPROC_PER_NODE=1 MASTER_ADDR=h MASTER_PORT=1", 2 },
        { "RANK=0 WORLD_SIZE=1", 1 },
        { "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1(x2) "
          "SLURM_NODEID=0 SLURM_STEP_NODELIST=a,b", 5 },
        { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 PMI_RANK=2 PMI_SIZE=4", 4 },
        { "TF_CONFIG={}", 0 },
        { "LOCKSTEP_CONTROL_FD=5 LOCKSTEP_SOCKET_FD=6 LOCKSTEP_TIMEOUT_MS=1 RANK=1 WORLD_SIZE=2",
          3 },
    };
    char **kept = environ;
    bool   launched;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *name = change_one(cases[i].names, cases[i].twice, "7", true);
        lk_status   st   = lk_launched(&launched);
        environ          = kept;
        if (st != LK_EINVAL || strstr(lk_error_last()->message, " twice, as ") == NULL
            || strstr(lk_error_last()->message, " to run alone") == NULL)
            fail_msg("%s twice: %s", name, st == LK_OK ? "accepted" : lk_error_last()->message);
    }
}

static void the_launcher_is_described(void **state)
{
    static const struct {
        const char *names;
        lk_status   status;
        const char *text;
    } cases[] = {
        { "HOME=/", LK_OK, "none" },
        { "RANK=0 WORLD_SIZE=4", LK_EINVAL, "none" },
        { "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", LK_OK,
          "mpiexec: rank 1 of 2, 1 of 2 on this host (PMI_RANK=1, PMI_SIZE=2, MPI_LOCALRANKID=1 "
          "and MPI_LOCALNRANKS=2)" },
        { "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=h MASTER_PORT=1 "
          "TORCHELASTIC_USE_AGENT_STORE=True", LK_EINVAL,
          "torchrun: rank 1 of 2, 0 of 1 on this host (RANK=1, WORLD_SIZE=2, LOCAL_RANK=0 and "
          "LOCAL_WORLD_SIZE=1), rank 0 at tcp://h:1 by torchrun's store" },
        { "LOCKSTEP_CONTROL_FD=5 LOCKSTEP_SOCKET_FD=6 LOCKSTEP_TIMEOUT_MS=1 RANK=1 WORLD_SIZE=2",
          LK_OK, "lockstep run: rank 1 of 2" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        set_names(cases[i].names);
        assert_int_equal(lk_launcher_describe(text, sizeof text), cases[i].status);
        assert_string_equal(text, cases[i].text);
    }
}

/* Describes a job on several hosts without an address or a key.  Expects that lk_launched() accepts
 * the description, because such a process may start Lockstep's launcher.  Expects that joining is
 * refused. */
static void joining_needs_an_address_and_a_key(void **state)
{
    static const char two_hosts[] =
        "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1";
    lk_comm *comm;
    bool     launched = false;
    (void)state;
    set_names(two_hosts);
    assert_int_equal(lk_launched(&launched), LK_OK);
    assert_true(launched);
    assert_refused(two_hosts, lk_join(&comm), "set LOCKSTEP_RENDEZVOUS", "MASTER_PORT");
    (void)setenv("LOCKSTEP_RENDEZVOUS", "tcp://127.0.0.1:1", 1);
    assert_refused(two_hosts, lk_join(&comm), "set LOCKSTEP_JOB_KEY_FILE", "LOCKSTEP_INSECURE=1");
}

static void different_jobs_have_different_ids(void **state)
{
    lki_foreign a, b;
    (void)state;
    set_names("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1");
    assert_int_equal(lki_foreign_find(&a), LK_OK);
    (void)setenv("RANK", "1", 1);
    (void)setenv("LOCAL_RANK", "1", 1);
    assert_int_equal(lki_foreign_find(&b), LK_OK);
    assert_true(a.job == b.job);
    (void)setenv("MASTER_PORT", "2", 1);
    assert_int_equal(lki_foreign_find(&b), LK_OK);
    assert_true(a.job != b.job);
}

static void slurms_lists_are_read(void **state)
{
    static const struct {
        const char *text;
        uint32_t    node, tasks;
    } cases[] = {
        { "4", 0, 4 },         { "4", 1, 0 },       { "2(x3),1", 0, 2 }, { "2(x3),1", 2, 2 },
        { "2(x3),1", 3, 1 },   { "2(x3),1", 4, 0 }, { "1,2,3", 1, 2 },   { "", 0, 0 },
        { "x", 0, 0 },         { "2(x", 1, 0 },     { "2,", 1, 0 },      { "2(x2)(x2)", 2, 0 },
        { "2(x4294967295)", 1, 0 }, { "4294967298", 0, 0 }, { "-1", 0, 0 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(lki_slurm_tasks(cases[i].text, cases[i].node), cases[i].tasks);
}

/* Ranks that srun --distribution=cyclic has put on two nodes, as seen by each of three tasks. */
static void ranks_in_turn_are_refused_without_mpi(void **state)
{
    static const char *const tasks[] = {
        "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0,2",
        "SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_GTIDS=1",
        "SLURM_PROCID=2 SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_GTIDS=0,2",
    };
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        char        text[400];
        lki_foreign f;
        (void)snprintf(text, sizeof text, "%s SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=2,1 "
                       "SLURM_STEP_NODELIST=a,b SLURM_JOB_ID=1 SLURM_STEP_ID=0 PMI_RANK=%zu "
                       "LOCKSTEP_INSECURE=1", tasks[i], i);
        set_names(text);
        assert_int_equal(lki_foreign_find(&f), LK_OK); /* MPI can carry the bytes */
        assert_refused(text, lki_foreign_check_hosts(&f), "srun --distribution=block",
                       "LOCKSTEP_MPI=on");
    }
}

static void slurms_first_node_is_found(void **state)
{
    static const char *const cases[][2] = {
        { "n1", "n1" }, { "n1,n2", "n1" }, { "n[01-03,7],gpu1", "n01" }, { "r[2,4]n[3-5]", "r2n3" },
        { "n[1-2]-ib", "n1-ib" }, { "n[1-2]-ib,x", "n1-ib" }, { "n[1", NULL }, { "", NULL },
        { ",a", NULL },
    };
    char host[8];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(lki_slurm_first_node(host, sizeof host, cases[i][0]), cases[i][1] != NULL);
        if (cases[i][1] != NULL)
            assert_string_equal(host, cases[i][1]);
    }
    assert_false(lki_slurm_first_node(host, sizeof host, "a-name-that-is-too-long"));
}

static void write_config(char *out, size_t bytes, const char *cluster, const char *type, int index)
{
    (void)snprintf(out, bytes, "{\"cluster\": %s, \"task\": {\"type\": \"%s\", \"index\": %d}}",
                   cluster, type, index);
}

static void tf_config_is_read(void **state)
{
#define TWO_HOSTS "{\"chief\": [\"a:1\"], \"worker\": [\"a:2\", \"b:1\", \"b:2\", \"b:3\"], " \
                  "\"ps\": [\"c:1\"]}"
    static const struct {
        const char *cluster, *type;
        int         index;
        uint32_t    rank, local_rank, local_size;
    } cases[] = {
        { TWO_HOSTS, "chief", 0, 0, 0, 2 },
        { TWO_HOSTS, "worker", 0, 1, 1, 2 },
        { TWO_HOSTS, "worker", 3, 4, 2, 3 },
    };
    static const struct {
        const char *cluster, *type;
        int         index;
        const char *words;
    } bad[] = {
        { TWO_HOSTS, "ps", 0, "only the chief and the workers, with the options in" },
        { TWO_HOSTS, "evaluator", 0, "the workers evaluate (`eval_every`)" },
        { TWO_HOSTS, "master", 0, "only tasks of the types chief and worker" },
        { TWO_HOSTS, "worker", 4, "not in the cluster" },
        { TWO_HOSTS, "chief", 1, "not in the cluster" },
        { TWO_HOSTS, "worker", -1, "a type and an index" },
        { "{\"worker\": [\"a:1\", \"b:1\", \"a:2\"]}", "worker", 0, "side by side" },
        { "{\"worker\": [\"a\"]}", "worker", 0, "HOST:PORT" },
        { "{\"worker\": \"a:1\"}", "worker", 0, "HOST:PORT" },
        { "{\"worker\": [\"a:1\"]", "worker", 0, "is not JSON" },
        { "[\"a:1\"]", "worker", 0, "cluster must be an object" },
    };
    char        text[512];
    lki_foreign f;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_config(text, sizeof text, cases[i].cluster, cases[i].type, cases[i].index);
        (void)setenv("TF_CONFIG", text, 1);
        assert_int_equal(lki_foreign_find(&f), LK_OK);
        assert_string_equal(f.by, "TF_CONFIG");
        assert_int_equal(f.size, 5);
        assert_int_equal(f.rank, cases[i].rank);
        assert_int_equal(f.local_rank, cases[i].local_rank);
        assert_int_equal(f.local_size, cases[i].local_size);
        assert_string_equal(f.rendezvous, "tcp://a:1");
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_config(text, sizeof text, bad[i].cluster, bad[i].type, bad[i].index);
        (void)setenv("TF_CONFIG", text, 1);
        assert_int_equal(lki_foreign_find(&f), LK_EINVAL);
        if (strstr(lk_error_last()->message, bad[i].words) == NULL)
            fail_msg("%s: %s", text, lk_error_last()->message);
    }
    static const char *const alone[] = { "{}", "{\"task\": {\"type\": \"worker\", \"index\": 0}}" };
    for (size_t i = 0; i < 2; i++) {
        (void)setenv("TF_CONFIG", alone[i], 1);
        assert_int_equal(lki_foreign_find(&f), LK_OK);
        assert_null(f.by);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(environments_of_foreign_launchers_are_read, forget_all),
        cmocka_unit_test_setup(contradictory_environments_are_refused, forget_all),
        cmocka_unit_test_setup(a_wrong_variable_of_any_launcher_is_refused, forget_all),
        cmocka_unit_test_setup(two_values_of_any_variable_are_refused, forget_all),
        cmocka_unit_test_setup(the_launcher_is_described, forget_all),
        cmocka_unit_test_setup(joining_needs_an_address_and_a_key, forget_all),
        cmocka_unit_test_setup(different_jobs_have_different_ids, forget_all),
        cmocka_unit_test_setup(slurms_lists_are_read, forget_all),
        cmocka_unit_test_setup(slurms_first_node_is_found, forget_all),
        cmocka_unit_test_setup(ranks_in_turn_are_refused_without_mpi, forget_all),
        cmocka_unit_test_setup(tf_config_is_read, forget_all),
    };
    return cmocka_run_group_tests_name("launch.foreign", tests, NULL, forget_all);
}
