/* mpi.c -- determines which MPI implementation this process belongs to, and whether MPI carries the
 * bytes between hosts. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "base/status.h"
#include "comm/worker.h"
#include "comm/mpi.h"
#include "launch/foreign.h"
#include "launch/mpi.h"
#include "launch/mpi_library.h"
#include "launch/watcher.h"
#include "lockstep/launch.h"

typedef struct {
    const char *name;        /* the part of the module's file name for this MPI */
    const char *versions[5]; /* beginnings of MPI_Get_library_version() of the MPIs with this binary
                              * interface */
    const char *package;     /* the package needed to build the module */
    const char *libraries[4]; /* file names of libraries with this binary interface */
} implementation;

static const implementation implementations[] = {
    { "openmpi", { "Open MPI" }, "libopenmpi-dev", { "libmpi.so.40" } },
    { "mpich", { "MPICH", "MVAPICH", "Intel(R) MPI", "CRAY MPICH" }, "libmpich-dev",
      { "libmpi.so.12", "libmpich.so.12", "libmpi_cray.so.12" } },
};

enum { KINDS = sizeof implementations / sizeof implementations[0] };

static bool is_of(const implementation *which, const char *text)
{
    bool found = false;

    for (int i = 0; which->versions[i] != NULL; i++)
        found = found || strncmp(text, which->versions[i], strlen(which->versions[i])) == 0;
    return found;
}

/* Returns the implementation already loaded by a program that uses MPI itself; NULL if no MPI is
 * loaded. */
static const implementation *loaded(void)
{
    void *symbol = dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
    int (*version)(char *text, int *length);
    char text[8192] = ""; /* MPICH writes up to 8192 bytes, Open MPI 256 */
    int  length;

    if (symbol == NULL) { /* or its symbols are not global, as in Python */
        for (int i = 0; i < KINDS; i++)
            if (lki_mpi_library_is_loaded(implementations[i].libraries))
                return &implementations[i];
        return NULL;
    }
    memcpy(&version, &symbol, sizeof version);
    if (version(text, &length) != 0)
        return NULL;
    for (int i = 0; i < KINDS; i++)
        if (is_of(&implementations[i], text))
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

/* The job that the environment describes, or the error why it describes none. */
typedef struct {
    lki_foreign job;
    lk_status   status;
    lk_error    error;
} description;

static void describe(description *out)
{
    out->status = lki_foreign_find(&out->job);
    out->error  = *lk_error_last();
}

/* Fails if MPI reports one process and the environment reports several, or a part of a job.  MPI
 * without mpirun reports one process even if another launcher has started several.  It then changes
 * the environment, which was therefore read before. */
static lk_status check_alone(const description *before)
{
    if (before->status != LK_OK)
        return lk_fail(before->status, "%s", before->error.message);
    if (before->job.by == NULL)
        return LK_OK;
    return lk_fail(LK_EINVAL, "to MPI this process is alone, but %s says that it is rank %u of %u: "
                   "start it with the mpirun of the MPI that it uses, or set LOCKSTEP_MPI=off",
                   before->job.by, before->job.rank, before->job.size);
}

/* Returns the MPI that this process belongs to; NULL if there is none. */
static const implementation *find_mpi(void)
{
    const implementation *which = loaded();

    return which != NULL ? which : started_by();
}

static lk_status find_module(char path[LK_MODULE_PATH], const implementation *which)
{
    char name[32];

    (void)snprintf(name, sizeof name, "mpi-%s", which->name);
    return lk_module_find(path, name, which->package);
}

static lk_status not_started(lk_status status)
{
    return lk_fail(status, "this process was not started by MPI, neither Open MPI "
                   "(OMPI_COMM_WORLD_RANK is not set) nor MPICH (PMI_RANK): start it with %s",
                   getenv("SLURM_PROCID") == NULL
                       ? "mpirun -n N"
                       : "mpirun -n N, or let srun serve pmix (Open MPI) or pmi2 (MPICH)");
}

/* ---- Opening ----------------------------------------------------------------------------- */

/* Opens a communicator of the ranks that `how` describes. */
static lk_status open_ranks(lk_comm **out, lki_mpi_how how, const lk_comm_options *options)
{
    const implementation *which = find_mpi();
    char                  path[LK_MODULE_PATH];
    lki_foreign           job;
    lk_comm_options       mine;

    *out = NULL;
    LK_TRY(lki_options_copy(&mine, sizeof mine, options, "lk_comm_options"));
    LK_TRY(read_hosts(&how.hosts));
    if (which == NULL) {
        LK_TRY(lki_foreign_find(&job));
        return not_started(LK_EUNSUPPORTED);
    }
    LK_TRY(find_module(path, which));
    LK_TRY(lki_mpi_library_load(which->versions[0], which->libraries));
    how.path = path;
    return lki_mpi_open(out, &how, &mine);
}

/* Opens the communicator of all ranks of the job. */
static lk_status open_all(lk_comm **out, bool tunes, const lk_comm_options *options)
{
    description before;

    describe(&before);
    LK_TRY(open_ranks(out, (lki_mpi_how){ .tunes = tunes }, options));
    lk_status status = lk_comm_size(*out) == 1 ? check_alone(&before) : LK_OK;
    if (status != LK_OK) {
        lk_comm_free(*out);
        *out = NULL;
    }
    return status;
}

lk_status lk_comm_open_mpi(lk_comm **out, const lk_comm_options *options)
{
    return open_all(out, false, options);
}

lk_status lki_mpi_join(lk_comm **out, const lk_comm_options *options)
{
    lki_foreign job;
    bool        watched = loaded() == NULL && lki_foreign_find(&job) == LK_OK && job.by != NULL;

    if (watched)
        lki_watcher_start(&job);
    LK_TRY(open_all(out, true, options));
    if (watched)
        lki_watcher_tell(&job, lk_comm_rank(*out));
    return LK_OK;
}

lk_status lk_comm_open_mpi_comm(lk_comm **out, const void *mpi_comm, size_t bytes,
                                const lk_comm_options *options)
{
    *out = NULL;
    if (mpi_comm == NULL)
        return lk_fail(LK_EINVAL, "there is no MPI_Comm at NULL: pass the address of a variable");
    return open_ranks(out, (lki_mpi_how){ .of = mpi_comm, .of_bytes = bytes }, options);
}

lk_status lk_comm_open_mpi_fint(lk_comm **out, int mpi_comm, const lk_comm_options *options)
{
    const lki_mpi_how how = { .of = &mpi_comm, .of_bytes = sizeof mpi_comm, .fortran = true };

    return open_ranks(out, how, options);
}

/* ---- Choosing ---------------------------------------------------------------------------- */

/* Replaces LK_MPI_AUTO by the mode that LOCKSTEP_MPI names, if it is set. */
static lk_status read_mode(lk_mpi_mode *mode)
{
    const char *text = getenv("LOCKSTEP_MPI");

    if (*mode != LK_MPI_AUTO || text == NULL || strcmp(text, "auto") == 0)
        return LK_OK;
    bool on = strcmp(text, "on") == 0;
    if (!on && strcmp(text, "off") != 0)
        return lk_fail(LK_EINVAL, "LOCKSTEP_MPI=%.40s must be on, off or auto", text);
    *mode = on ? LK_MPI_ON : LK_MPI_OFF;
    return LK_OK;
}

/* Returns true if the environment prepares connections of the library's own between hosts. */
static bool is_set_for_tcp(void)
{
    return getenv("LOCKSTEP_RENDEZVOUS") != NULL || getenv("LOCKSTEP_JOB_KEY_FILE") != NULL
           || getenv("LOCKSTEP_INSECURE") != NULL;
}

/* Refuses MPI if no MPI has started this process. */
static lk_status check_on(void)
{
    if (getenv("LOCKSTEP_CONTROL_FD") != NULL)
        return lk_fail(LK_EINVAL, "MPI is wanted between hosts, but lockstep run has started this "
                       "process: start it with mpirun -n N");
    return find_mpi() != NULL ? LK_OK : not_started(LK_EINVAL);
}

lk_status lk_mpi_chosen(bool *out, lk_mpi_mode mode)
{
    const implementation *which;
    char                  path[LK_MODULE_PATH];
    uint32_t              hosts;
    lki_foreign           job;

    *out = false;
    LK_TRY(read_mode(&mode));
    LK_TRY(read_hosts(&hosts));
    if (mode == LK_MPI_ON) {
        *out = true;
        return check_on();
    }
    if (mode == LK_MPI_OFF || getenv("LOCKSTEP_CONTROL_FD") != NULL || is_set_for_tcp())
        return LK_OK;
    LK_TRY(lki_foreign_find(&job));
    bool several = job.by != NULL && (job.local_size < job.size || hosts > 1);
    which        = several && job.by_mpi ? find_mpi() : NULL;
    *out         = which != NULL && find_module(path, which) == LK_OK;
    return LK_OK;
}
