/* foreign.c -- detects workers that another launcher has started, from the environment.
 *
 * A launcher is detected if all its environment variables are set.  If several launchers are
 * detected, the first in the table is used.  The environment is refused if the first launcher
 * describes one process and another describes several.  Some variables may be set without their
 * launcher: srun sets PMI_RANK for MPICH, a batch script has SLURM_PROCID=0 without being a task,
 * and MPI may set PMIX_RANK=0 in a process that no launcher started.
 *
 * If no complete set describes a job of several processes, an incomplete set of variables is
 * refused, unless the set can only mean a job of one process.  Otherwise N processes could each run
 * as a separate job and write the same files.  An address (MASTER_ADDR) without other variables
 * does not imply a job of several processes.
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
#include "comm/roster.h"
#include "launch/variables.h"

enum { RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, NAMES, ADDRESS = NAMES, ALL_NAMES = NAMES + 2 };

/* The environment variables of one launcher.  The variables in `job` have values that are equal for
 * all workers of a job and differ between jobs. */
typedef struct {
    const char *by;
    const char *names[ALL_NAMES]; /* indexed by the enum above; ADDRESS and the next entry form an
                                   * address.  If one of the first four is NULL, the environment of
                                   * this launcher is never complete */
    bool        alone;            /* the variable of the rank may be set to 0 in a process that runs
                                   * by itself */
    const char *job[4];
} dialect;

static const dialect dialects[] = {
    { "torchrun", { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                    "MASTER_PORT" }, false,
      { "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT" } },
    { "mpirun of Open MPI", { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                              "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE" }, false,
      { "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid" } },
    { "mpiexec", { "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS" }, false,
      { "PMI_FD" } },
    { "a launcher by PMIx", { "PMIX_RANK" }, true, { NULL } },
    { "a launcher by PMI", { "PMI_ID" }, true, { NULL } },
    { "srun", { "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                "SLURM_STEP_TASKS_PER_NODE" }, true, { "SLURM_JOB_ID", "SLURM_STEP_ID" } },
    { "horovodrun", { "HOROVOD_RANK", "HOROVOD_SIZE" }, false, { NULL } },
    { "mpirun of MVAPICH2", { "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE" }, false, { NULL } },
    { "jsrun", { "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE" }, false, { NULL } },
    { "flux run", { "FLUX_TASK_RANK", "FLUX_JOB_SIZE" }, false, { NULL } },
    { "a launcher by PALS", { "PALS_RANKID" }, false, { NULL } },
};

enum { DIALECTS = sizeof dialects / sizeof dialects[0] };

static bool is_complete(const dialect *d)
{
    for (size_t i = 0; i < NAMES; i++)
        if (d->names[i] == NULL || getenv(d->names[i]) == NULL)
            return false;
    return true;
}

static const dialect *find_complete(void)
{
    for (size_t i = 0; i < DIALECTS; i++)
        if (is_complete(&dialects[i]))
            return &dialects[i];
    return NULL;
}

/* ---- Values ------------------------------------------------------------------------------ */

static const char *value_of(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? text : "";
}

static lk_status read_number(uint32_t *out, const dialect *d, const char *name)
{
    const char *text  = value_of(name);
    uint32_t    value = 0;
    size_t      i     = 0;

    for (; isdigit((unsigned char)text[i]) && value <= LKI_RANKS_MAX; i++)
        value = value * 10 + (uint32_t)(text[i] - '0');
    if (i == 0 || text[i] != '\0' || value > LKI_RANKS_MAX)
        return lk_fail(LK_EINVAL, "%s=%.40s in the environment must be a whole number up to %d; "
                       "unset %s to run alone", name, text, LKI_RANKS_MAX,
                       lki_names_list(d->names, NAMES, LKI_NAMES_SET).text);
    *out = value;
    return LK_OK;
}

/* Parses a number of at most LKI_RANKS_MAX and advances *text past it; returns 0 if *text does not
 * begin with such a number. */
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

static lk_status read_slurm(uint32_t *out, const dialect *d, const char *name)
{
    uint32_t node = 0;

    if (getenv("SLURM_NODEID") != NULL)
        LK_TRY(read_number(&node, d, "SLURM_NODEID"));
    *out = lki_slurm_tasks(value_of(name), node);
    return *out > 0 ? LK_OK
                    : lk_fail(LK_EINVAL, "%s=%.60s does not say how many tasks node %u has; unset "
                              "%s to run alone", name, value_of(name), node,
                              lki_names_list(d->names, NAMES, LKI_NAMES_SET).text);
}

/* ---- The job ----------------------------------------------------------------------------- */

/* Returns the peer process of an inherited socket.  Nothing else identifies an MPICH job. */
static pid_t peer_of(const char *fd)
{
    struct ucred peer  = { .pid = 0 };
    socklen_t    bytes = sizeof peer;
    (void)getsockopt(atoi(fd), SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
    return peer.pid;
}

/* Hashes the values of the launcher's `job` variables.  If d->job is empty, hashes the session,
 * which all workers of the job share. */
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

/* ---- The rendezvous ---------------------------------------------------------------------- */

static lk_status find_rendezvous(lki_foreign *out)
{
    const char *given = getenv("LOCKSTEP_RENDEZVOUS"), *host = getenv("MASTER_ADDR");
    const char *port  = getenv("MASTER_PORT");
    int         bytes = 0;

    if (given != NULL)
        bytes = snprintf(out->rendezvous, sizeof out->rendezvous, "%s", given);
    else if (out->rendezvous[0] == '\0' && host != NULL && port != NULL)
        bytes = snprintf(out->rendezvous, sizeof out->rendezvous,
                         strchr(host, ':') != NULL ? "tcp://[%s]:%s" : "tcp://%s:%s", host, port);
    if (bytes < (int)sizeof out->rendezvous)
        return LK_OK;
    return lk_fail(LK_EINVAL, "the address of rank 0's host in the environment is too long");
}

lk_status lki_foreign_check_hosts(const lki_foreign *f)
{
    if (f->local_size == f->size)
        return LK_OK;
    if (f->rendezvous[0] == '\0')
        return lk_fail(LK_EINVAL, "%s has put this job on several hosts: set LOCKSTEP_RENDEZVOUS "
                                  "to tcp://HOST:PORT with an address of rank 0's host, or "
                                  "MASTER_ADDR and MASTER_PORT", f->by);
    if (f->insecure || f->key_file != NULL)
        return LK_OK;
    return lk_fail(LK_EINVAL, "%s has put this job on several hosts: set LOCKSTEP_JOB_KEY_FILE "
                              "to a file with the job's key, which lockstep key FILE makes, or "
                              "LOCKSTEP_INSECURE=1 to go without", f->by);
}

static lk_status find_meeting(lki_foreign *out)
{
    const char *insecure = getenv("LOCKSTEP_INSECURE");

    out->insecure = insecure != NULL && strcmp(insecure, "1") == 0;
    out->key_file = getenv("LOCKSTEP_JOB_KEY_FILE");
    return find_rendezvous(out);
}

/* ---- Half of a job ----------------------------------------------------------------------- */

/* Refuses a job of a launcher that is in the table but not supported.  The message lists
 * `values`. */
static lk_status refuse_stranger(const dialect *d, const lki_names *values)
{
    return lk_fail(LK_EINVAL, "%s %s set by %s, whose jobs lockstep cannot join: start the program "
                   "with lockstep run, torchrun, mpirun or srun; unset %s to run alone",
                   values->text, values->count == 1 ? "is" : "are", d->by,
                   lki_names_list(d->names, NAMES, LKI_NAMES_SET).text);
}

static lk_status refuse_half(const dialect *d, size_t names)
{
    lki_names values  = lki_names_list(d->names, names, LKI_NAMES_VALUES);
    lki_names missing = lki_names_list(d->names, names, LKI_NAMES_MISSING);

    if (missing.count == 0 && d->names[SIZE] != NULL)
        return refuse_stranger(d, &values);
    return lk_fail(LK_EINVAL, "%s %s set, but not %s: set them for every process, or start the "
                   "program with lockstep run; unset %s to run alone", values.text,
                   values.count == 1 ? "is" : "are",
                   missing.count > 0 ? missing.text : "the number of processes under a name that "
                                                      "is known here",
                   lki_names_list(d->names, NAMES, LKI_NAMES_SET).text);
}

/* Refuses a job on several hosts without an address if the job's launcher should have set an
 * address, as torchrun does.  Other launchers leave the address to the user. */
static lk_status check_address(const lki_foreign *f, const dialect *d)
{
    if (d->names[ADDRESS] == NULL || f->local_size == f->size || f->rendezvous[0] != '\0')
        return LK_OK;
    return refuse_half(d, ALL_NAMES);
}

static bool is_unset_or(const char *name, const char *value)
{
    const char *set = name == NULL ? NULL : getenv(name);
    return set == NULL || strcmp(set, value) == 0;
}

/* Returns true if an incomplete set of a launcher's variables can only mean a job of one process.
 * `one` is true if the variables of another launcher describe a job of one process. */
static bool means_one(const dialect *d, bool one)
{
    bool says_one = d->names[SIZE] != NULL && getenv(d->names[SIZE]) != NULL;

    if (lki_names_list(d->names, NAMES, LKI_NAMES_SET).count == 0)
        return true;
    return (says_one || one || d->alone) && is_unset_or(d->names[SIZE], "1")
           && is_unset_or(d->names[RANK], "0") && is_unset_or(d->names[LOCAL_RANK], "0")
           && is_unset_or(d->names[LOCAL_SIZE], "1");
}

/* Refuses two complete sets of variables that contradict each other: `one` describes a job of one
 * process, and `several` describes a job of several processes. */
static lk_status refuse_both(const dialect *one, const dialect *several)
{
    return lk_fail(LK_EINVAL, "%s are set, a job of one process, but also %s, a job of several: "
                   "unset %s to run alone, or %s to join",
                   lki_names_list(one->names, NAMES, LKI_NAMES_VALUES).text,
                   lki_names_list(several->names, NAMES, LKI_NAMES_VALUES).text,
                   lki_names_list(several->names, NAMES, LKI_NAMES_SET).text,
                   lki_names_list(one->names, NAMES, LKI_NAMES_SET).text);
}

/* Refuses variables that may belong to a job of several processes. `found`, if not NULL, is the
 * launcher whose complete set describes a job of one process. */
static lk_status check_others(const dialect *found)
{
    for (const dialect *d = dialects; d < dialects + DIALECTS; d++)
        if (d != found && !means_one(d, found != NULL))
            return is_complete(d) ? refuse_both(found, d) : refuse_half(d, NAMES);
    return LK_OK;
}

/* ---- Finding the job --------------------------------------------------------------------- */

static bool can_be(const lki_foreign *f)
{
    return f->size >= 1 && f->rank < f->size && f->local_size >= 1 && f->local_size <= f->size
           && f->local_rank < f->local_size && f->rank >= f->local_rank
           && f->rank - f->local_rank <= f->size - f->local_size;
}

static lk_status read_dialect(lki_foreign *out, const dialect *d)
{
    out->by = d->by;
    LK_TRY(read_number(&out->rank, d, d->names[RANK]));
    LK_TRY(read_number(&out->size, d, d->names[SIZE]));
    LK_TRY(read_number(&out->local_rank, d, d->names[LOCAL_RANK]));
    LK_TRY(strcmp(d->by, "srun") == 0 ? read_slurm(&out->local_size, d, d->names[LOCAL_SIZE])
                                      : read_number(&out->local_size, d, d->names[LOCAL_SIZE]));
    out->job = job_of(d);
    if (can_be(out))
        return LK_OK;
    return lk_fail(LK_EINVAL, "%s: rank %u of %u, and rank %u of %u on its host, cannot be; unset "
                   "%s to run alone", lki_names_list(d->names, NAMES, LKI_NAMES_VALUES).text,
                   out->rank, out->size, out->local_rank, out->local_size,
                   lki_names_list(d->names, NAMES, LKI_NAMES_SET).text);
}

/* Refuses a TF_CONFIG that describes a job of several processes, although `found` describes one. */
static lk_status check_tf_config(const dialect *found, const char *tf_config)
{
    lki_foreign other = { .by = NULL };

    LK_TRY(lki_tf_config_read(&other, tf_config));
    if (other.size <= 1)
        return LK_OK;
    return lk_fail(LK_EINVAL, "%s are set, a job of one process, but TF_CONFIG describes %u: unset "
                   "TF_CONFIG to run alone, or %s to join",
                   lki_names_list(found->names, NAMES, LKI_NAMES_VALUES).text, other.size,
                   lki_names_list(found->names, NAMES, LKI_NAMES_SET).text);
}

lk_status lki_foreign_find(lki_foreign *out)
{
    const char    *tf_config = getenv("TF_CONFIG");
    const dialect *found     = find_complete();

    *out = (lki_foreign){ .by = NULL };
    if (found != NULL)
        LK_TRY(read_dialect(out, found));
    else if (tf_config != NULL)
        LK_TRY(lki_tf_config_read(out, tf_config));
    if (out->by == NULL || out->size == 1) {
        out->by = NULL;
        if (found != NULL && tf_config != NULL)
            LK_TRY(check_tf_config(found, tf_config));
        return check_others(found);
    }
    LK_TRY(find_meeting(out));
    return found != NULL ? check_address(out, found) : LK_OK;
}
