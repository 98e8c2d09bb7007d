/* foreign.c -- workers that another launcher has started, by their environment.
 *
 * A launcher counts as found when all its names are there: srun sets PMI_RANK for MPICH's sake, and
 * a batch script has SLURM_PROCID without being a task.  The first that is found decides.
 */
#include "launch/foreign.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/memory.h"
#include "comm/control.h"

/* The names of one launcher.  `job`: what all workers of a job have, and other jobs have not. */
typedef struct {
    const char *by, *rank, *size, *local_rank, *local_size;
    const char *job[4];
} dialect;

static const dialect dialects[] = {
    { "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
      { "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT" } },
    { "mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
      "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
      { "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid" } },
    { "mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
      { "PMI_FD" } },
    { "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
      "SLURM_STEP_TASKS_PER_NODE", { "SLURM_JOB_ID", "SLURM_STEP_ID" } },
};

enum { DIALECTS = sizeof dialects / sizeof dialects[0] };

static bool is_complete(const dialect *d)
{
    return getenv(d->rank) != NULL && getenv(d->size) != NULL && getenv(d->local_rank) != NULL
           && getenv(d->local_size) != NULL;
}

/* ---- Values ------------------------------------------------------------------------------ */

static const char *value_of(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? text : "";
}

static lk_status read_number(uint32_t *out, const char *name)
{
    const char *text  = value_of(name);
    uint32_t    value = 0;
    size_t      i     = 0;

    for (; isdigit((unsigned char)text[i]) && value <= LKI_RANKS_MAX; i++)
        value = value * 10 + (uint32_t)(text[i] - '0');
    if (i == 0 || text[i] != '\0' || value > LKI_RANKS_MAX)
        return lk_fail(LK_EINVAL, "%s=%.40s in the environment must be a whole number up to %d",
                       name, text, LKI_RANKS_MAX);
    *out = value;
    return LK_OK;
}

/* Takes a number that ranks may have off the text; 0 where there is none. */
static uint32_t take_number(const char **text)
{
    uint32_t value = 0;

    for (; isdigit((unsigned char)**text); ++*text)
        value = (uint32_t)lki_min(value * 10 + (uint32_t)(**text - '0'), LKI_RANKS_MAX + 1);
    return value <= LKI_RANKS_MAX ? value : 0;
}

uint32_t lki_slurm_tasks(const char *text, uint32_t node)
{
    for (uint32_t before = 0; before <= node;) {
        uint32_t tasks = take_number(&text), times = 1;
        if (strncmp(text, "(x", 2) == 0) {
            text += 2;
            times = take_number(&text);
            text += *text == ')';
        }
        if (tasks == 0 || times == 0 || node < before + times)
            return times > 0 ? tasks : 0;
        before += times;
        if (*text++ != ',')
            break;
    }
    return 0;
}

static lk_status read_slurm(uint32_t *out, const char *name)
{
    uint32_t node = 0;

    if (getenv("SLURM_NODEID") != NULL)
        LK_TRY(read_number(&node, "SLURM_NODEID"));
    *out = lki_slurm_tasks(value_of(name), node);
    return *out > 0 ? LK_OK : lk_fail(LK_EINVAL, "%s=%.60s does not say how many tasks node %u has",
                                      name, value_of(name), node);
}

/* ---- Which job --------------------------------------------------------------------------- */

/* The process at the other end of an inherited socket: MPICH names its jobs nowhere else. */
static pid_t peer_of(const char *fd)
{
    struct ucred peer  = { .pid = 0 };
    socklen_t    bytes = sizeof peer;
    (void)getsockopt(atoi(fd), SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
    return peer.pid;
}

/* The launcher's names for the job or, where it has none, the session that all are in. */
static uint64_t job_of(const dialect *d)
{
    char text[1024], *value;
    int  used  = snprintf(text, sizeof text, "%s:%u", d->by, (unsigned)getuid());
    bool named = false;

    for (size_t i = 0; i < 4 && d->job[i] != NULL; i++) {
        value = getenv(d->job[i]);
        if (value == NULL)
            continue;
        named = true;
        if (strcmp(d->job[i], "PMI_FD") == 0)
            used += snprintf(text + used, sizeof text - (size_t)used, ":%d", (int)peer_of(value));
        else
            used += snprintf(text + used, sizeof text - (size_t)used, ":%.120s", value);
    }
    if (!named)
        used += snprintf(text + used, sizeof text - (size_t)used, ":%d", (int)getsid(0));
    return lki_xxh3(text, (size_t)used);
}

/* ---- Where they meet --------------------------------------------------------------------- */

static lk_status find_rendezvous(lki_foreign *out)
{
    const char *given = getenv("LOCKSTEP_RENDEZVOUS"), *host = getenv("MASTER_ADDR");
    const char *port  = getenv("MASTER_PORT");
    int         bytes = 0;

    if (given != NULL)
        bytes = snprintf(out->rendezvous, sizeof out->rendezvous, "%s", given);
    else if (host != NULL && port != NULL)
        bytes = snprintf(out->rendezvous, sizeof out->rendezvous,
                         strchr(host, ':') != NULL ? "tcp://[%s]:%s" : "tcp://%s:%s", host, port);
    if (bytes < (int)sizeof out->rendezvous)
        return LK_OK;
    return lk_fail(LK_EINVAL, "the address of rank 0's host in the environment is too long");
}

/* ---- All together ------------------------------------------------------------------------ */

static lk_status check(const lki_foreign *f)
{
    if (f->size >= 1 && f->rank < f->size && f->local_size >= 1 && f->local_size <= f->size
        && f->local_rank < f->local_size && f->rank >= f->local_rank
        && f->rank - f->local_rank <= f->size - f->local_size)
        return LK_OK;
    return lk_fail(LK_EINVAL, "%s says that this is rank %u of %u and rank %u of %u on its host: "
                   "that cannot be", f->by, f->rank, f->size, f->local_rank, f->local_size);
}

static lk_status read_dialect(lki_foreign *out, const dialect *d)
{
    out->by = d->by;
    LK_TRY(read_number(&out->rank, d->rank));
    LK_TRY(read_number(&out->size, d->size));
    LK_TRY(read_number(&out->local_rank, d->local_rank));
    LK_TRY(strcmp(d->by, "srun") == 0 ? read_slurm(&out->local_size, d->local_size)
                                      : read_number(&out->local_size, d->local_size));
    out->job = job_of(d);
    return LK_OK;
}

/* A job of many that is half described: as many lone groups would be a lie. */
static lk_status refuse_half(void)
{
    for (size_t i = 0; i < DIALECTS; i++) {
        const dialect *d    = &dialects[i];
        const char    *size = getenv(d->size);
        if (size == NULL || strcmp(size, "1") == 0 || strcmp(d->by, "srun") == 0)
            continue;
        return lk_fail(LK_EINVAL, "%s=%.20s is set, but not all of %s, %s and %s: set them for "
                       "every process, or use lockstep run; unset %s to run alone", d->size, size,
                       d->rank, d->local_rank, d->local_size, d->size);
    }
    return LK_OK;
}

lk_status lki_foreign_find(lki_foreign *out)
{
    const char *tf_config = getenv("TF_CONFIG");

    *out = (lki_foreign){ .by = NULL };
    for (size_t i = 0; i < DIALECTS && out->by == NULL; i++)
        if (is_complete(&dialects[i]))
            LK_TRY(read_dialect(out, &dialects[i]));
    if (out->by == NULL && tf_config != NULL)
        LK_TRY(lki_tf_config_read(out, tf_config));
    if (out->by == NULL)
        return refuse_half();
    LK_TRY(check(out));
    if (out->rendezvous[0] == '\0' || getenv("LOCKSTEP_RENDEZVOUS") != NULL)
        LK_TRY(find_rendezvous(out));
    if (out->size == 1)
        out->by = NULL;
    return LK_OK;
}
