/* mpi.c -- which MPI this process belongs to. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/control.h"
#include "comm/mpi.h"
#include "lockstep/launch.h"

typedef struct {
    const char *name;    /* in the file's name */
    const char *version; /* how MPI_Get_library_version() begins */
    const char *package; /* with which a build makes the module */
    const char *set[3];  /* what mpirun leaves in the environment */
} implementation;

static const implementation implementations[] = {
    { "openmpi", "Open MPI", "libopenmpi-dev", { "OMPI_COMM_WORLD_RANK", "PMIX_RANK" } },
    { "mpich", "MPICH", "libmpich-dev", { "PMI_RANK", "PMI_ID" } },
};

enum { KINDS = sizeof implementations / sizeof implementations[0] };

/* A program that uses MPI itself has one already. */
static const implementation *loaded(void)
{
    void *symbol = dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
    int (*version)(char *text, int *length);
    char text[8192] = ""; /* MPICH writes that much, Open MPI 256 bytes */
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
    for (int i = 0; i < KINDS; i++)
        for (int k = 0; k < 3 && implementations[i].set[k] != NULL; k++)
            if (getenv(implementations[i].set[k]) != NULL)
                return &implementations[i];
    return NULL;
}

/* LOCKSTEP_MPI_HOSTS: as if the ranks were on so many hosts; 0 = where they are. */
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

lk_status lk_comm_open_mpi(lk_comm **out, const lk_comm_options *options)
{
    const implementation *which = loaded();
    char                  path[LK_MODULE_PATH], name[32];
    uint32_t              hosts;

    *out = NULL;
    LK_TRY(read_hosts(&hosts));
    if (which == NULL)
        which = started_by();
    if (which == NULL)
        return lk_fail(LK_EUNSUPPORTED, "this process was not started by MPI, neither Open MPI "
                       "(OMPI_COMM_WORLD_RANK is not set) nor MPICH (PMI_RANK): start it with "
                       "mpirun -n N");
    (void)snprintf(name, sizeof name, "mpi-%s", which->name);
    LK_TRY(lk_module_find(path, name, which->package));
    return lki_mpi_open(out, path, options, hosts);
}
