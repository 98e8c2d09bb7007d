/* mpi.c -- determines which MPI implementation this process belongs to. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "base/status.h"
#include "comm/worker.h"
#include "comm/mpi.h"
#include "launch/foreign.h"
#include "lockstep/launch.h"

typedef struct {
    const char *name;    /* the part of the module's file name for this MPI */
    const char *version; /* the beginning of MPI_Get_library_version() */
    const char *package; /* the package needed to build the module */
} implementation;

static const implementation implementations[] = {
    { "openmpi", "Open MPI", "libopenmpi-dev" },
    { "mpich", "MPICH", "libmpich-dev" },
};

enum { KINDS = sizeof implementations / sizeof implementations[0] };

/* Returns the implementation already loaded by a program that uses MPI itself; NULL if no MPI is
 * loaded. */
static const implementation *loaded(void)
{
    void *symbol = dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
    int (*version)(char *text, int *length);
    char text[8192] = ""; /* MPICH writes up to 8192 bytes, Open MPI 256 */
    int  length;

    if (symbol == NULL)
        return NULL;
    memcpy(&version, &symbol, sizeof version);
    if (version(text, &length) != 0)
        return NULL;
    for (int i = 0; i < KINDS; i++)
        if (strncmp(text, implementations[i].version, strlen(implementations[i].version)) == 0)
            return &implementations[i];
    return NULL;
}

static const implementation *started_by(void)
{
    const char *name = lki_foreign_mpi();

    for (int i = 0; i < KINDS && name != NULL; i++)
        if (strcmp(implementations[i].name, name) == 0)
            return &implementations[i];
    return NULL;
}

/* Reads LOCKSTEP_MPI_HOSTS. *out becomes the number of hosts to emulate, or 0 if the variable is
 * not set. */
static lk_status read_hosts(uint32_t *out)
{
    const char *text = getenv("LOCKSTEP_MPI_HOSTS");
    char       *end  = NULL;

    *out = 0;
    if (text == NULL)
        return LK_OK;
    unsigned long hosts = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || hosts > LKI_RANKS_MAX)
        return lk_fail(LK_EINVAL, "LOCKSTEP_MPI_HOSTS=%.40s must be a number of hosts, up to %d",
                       text, LKI_RANKS_MAX);
    *out = (uint32_t)hosts;
    return LK_OK;
}

/* Fails if MPI reports one process and the environment reports several.  MPI without mpirun reports
 * one process even if another launcher has started several. */
static lk_status check_alone(void)
{
    lki_foreign job;

    LK_TRY(lki_foreign_find(&job));
    if (job.by == NULL)
        return LK_OK;
    return lk_fail(LK_EINVAL, "to MPI this process is alone, but %s says that it is rank %u of %u: "
                   "start it with the mpirun of the MPI that it uses", job.by, job.rank, job.size);
}

lk_status lk_comm_open_mpi(lk_comm **out, const lk_comm_options *options)
{
    const implementation *which = loaded();
    char                  path[LK_MODULE_PATH], name[32];
    uint32_t              hosts;
    lki_foreign           job;
    lk_comm_options       mine;

    *out = NULL;
    LK_TRY(lki_options_copy(&mine, sizeof mine, options, "lk_comm_options"));
    LK_TRY(read_hosts(&hosts));
    if (which == NULL)
        which = started_by();
    if (which == NULL)
        LK_TRY(lki_foreign_find(&job));
    if (which == NULL)
        return lk_fail(LK_EUNSUPPORTED, "this process was not started by MPI, neither Open MPI "
                       "(OMPI_COMM_WORLD_RANK is not set) nor MPICH (PMI_RANK): start it with "
                       "mpirun -n N");
    (void)snprintf(name, sizeof name, "mpi-%s", which->name);
    LK_TRY(lk_module_find(path, name, which->package));
    LK_TRY(lki_mpi_open(out, path, &mine, hosts));
    lk_status status = lk_comm_size(*out) == 1 ? check_alone() : LK_OK;
    if (status != LK_OK) {
        lk_comm_free(*out);
        *out = NULL;
    }
    return status;
}
