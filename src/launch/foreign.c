/* foreign.c -- detects workers that another launcher has started, from the environment.
 *
 * A launcher is detected if its row in the table (launchers.def) is complete.  If several rows are
 * complete, the first decides.  The environment is refused if the first describes one process and
 * another describes several.  Some variables may be set without their launcher: srun sets PMI_RANK
 * for MPICH, a batch script has SLURM_PROCID=0 without being a task, and MPI may set PMIX_RANK=0 in
 * a process that no launcher started.
 *
 * If no complete row describes a job of several processes, an incomplete set of variables is
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
#include "comm/roster.h"
#include "launch/rendezvous/rendezvous.h"
#include "launch/slurm.h"
#include "launch/variables.h"

/* ---- The table --------------------------------------------------------------------------- */

enum { RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, NAMES, ADDRESS = NAMES, ALL_NAMES = NAMES + 2 };
enum { JOB_NAMES = 5 };

/* The sets of incomplete variables that a row refuses. */
typedef enum { HALF_ANY, HALF_WITH_RANK, HALF_NONE } half;

typedef struct {
    const char *name, *value;
} setting;

/* A row of the table; launchers.def describes the fields. */
typedef struct {
    const char *by;
    const char *names[ALL_NAMES]; /* indexed by the enum above; NULL = UNKNOWN */
    setting     store, alone;     /* name NULL = none */
    const char *node, *nodes, *ranks, *consecutive; /* the arguments of NODES; NULL = none */
    bool        one_a_host, outer;
    half        half;
    const char *processes;        /* the argument of ONE_A_HOST */
    const char *needs, *without[2];
    const char *job[JOB_NAMES];
    const char *mpi, *hint;
} launcher;

/* clang-format off */
#define UNKNOWN NULL
#define LAUNCHER(by_, rank_, size_, local_rank_, local_size_, more_)                             \
    { .by = by_, .names[RANK] = rank_, .names[SIZE] = size_, .names[LOCAL_RANK] = local_rank_,   \
      .names[LOCAL_SIZE] = local_size_, more_ },
#define ADDRESS(host_, port_) .names[NAMES] = host_, .names[NAMES + 1] = port_,
#define STORE(name_, value_) .store = { name_, value_ },
#define NODES(number_, list_, ranks_, option_)                                                   \
    .node = number_, .nodes = list_, .ranks = ranks_, .consecutive = option_,
#define ONE_A_HOST(name_) .one_a_host = true, .processes = name_,
#define NEEDS(name_) .needs = name_,
#define WITHOUT(...) .without = { __VA_ARGS__ },
#define ALONE(name_, value_) .alone = { name_, value_ },
#define BY_RANK .half = HALF_WITH_RANK,
#define VARIANT .half = HALF_NONE,
#define OUTER .outer = true,
#define JOB(...) .job = { __VA_ARGS__ },
#define MPI(name_) .mpi = name_,
#define HINT(text_) .hint = text_,

static const launcher launchers[] = {
#include "launch/launchers.def"
};
/* clang-format on */

enum { LAUNCHERS = sizeof launchers / sizeof launchers[0] };

static bool is_set(const char *name)
{
    return name != NULL && getenv(name) != NULL;
}

/* Returns the value of a variable; "" if it is not set, or the name is NULL. */
static const char *value_of(const char *name)
{
    const char *text = name == NULL ? NULL : getenv(name);
    return text != NULL ? text : "";
}

static bool is_unset_or(const char *name, const char *value)
{
    return !is_set(name) || strcmp(value_of(name), value) == 0;
}

/* Returns true if the conditions of a row hold that are not about its own variables. */
static bool applies(const launcher *l)
{
    if (l->needs != NULL && !is_set(l->needs))
        return false;
    if (is_set(l->without[0]) || is_set(l->without[1]))
        return false;
    return strtol(value_of(l->processes), NULL, 10) <= 1;
}

static bool is_complete(const launcher *l)
{
    for (size_t i = 0; i < NAMES; i++)
        if (!is_set(l->names[i]) && !(l->one_a_host && i >= LOCAL_RANK))
            return false;
    return applies(l);
}

static const launcher *find_complete(void)
{
    for (size_t i = 0; i < LAUNCHERS; i++)
        if (is_complete(&launchers[i]))
            return &launchers[i];
    return NULL;
}

const char *lki_foreign_mpi(void)
{
    for (size_t i = 0; i < LAUNCHERS; i++)
        if (launchers[i].mpi != NULL && is_set(launchers[i].names[RANK]))
            return launchers[i].mpi;
    return NULL;
}

static const char *set_names(const launcher *l, lki_names *names)
{
    *names = lki_names_list(l->names, NAMES, LKI_NAMES_SET);
    return names->text;
}

static const char *set_values(const launcher *l, lki_names *names)
{
    *names = lki_names_list(l->names, NAMES, LKI_NAMES_VALUES);
    return names->text;
}

void lki_foreign_variables(char *out, size_t bytes, const char *by)
{
    lki_names values;

    (void)snprintf(out, bytes, "TF_CONFIG");
    for (size_t i = 0; i < LAUNCHERS; i++)
        if (strcmp(launchers[i].by, by) == 0 && is_complete(&launchers[i]))
            (void)snprintf(out, bytes, "%s", set_values(&launchers[i], &values));
}

/* ---- Values ------------------------------------------------------------------------------ */

/* Refuses a variable of the row, or another one that it names, with two values. */
static lk_status check_once(const launcher *l)
{
    const char *const others[] = { l->processes, l->node, l->nodes, l->ranks };
    lki_names         names;

    LK_TRY(lki_names_check_once(l->names, NAMES, set_names(l, &names)));
    return lki_names_check_once(others, sizeof others / sizeof others[0], names.text);
}

/* Refuses variables with two values, of any launcher. */
static lk_status check_all_once(void)
{
    static const char *const tf_config[] = { "TF_CONFIG" };

    for (size_t i = 0; i < LAUNCHERS; i++)
        LK_TRY(check_once(&launchers[i]));
    return lki_names_check_once(tf_config, 1, tf_config[0]);
}

static lk_status read_number(uint32_t *out, const launcher *l, const char *name)
{
    const char *text  = value_of(name);
    uint32_t    value = 0;
    size_t      i     = 0;
    lki_names   names;

    for (; isdigit((unsigned char)text[i]) && value <= LKI_RANKS_MAX; i++)
        value = value * 10 + (uint32_t)(text[i] - '0');
    if (i == 0 || text[i] != '\0' || value > LKI_RANKS_MAX)
        return lk_fail(LK_EINVAL, "%s=%.40s in the environment must be a whole number up to %d; "
                       "unset %s to run alone", name, text, LKI_RANKS_MAX, set_names(l, &names));
    *out = value;
    return LK_OK;
}

/* Reads the number of tasks on this node from a list of all nodes' tasks, whose sum must be the
 * number of ranks. */
static lk_status read_tasks(lki_foreign *out, const launcher *l)
{
    const char *name = l->names[LOCAL_SIZE], *list = value_of(name);
    uint32_t    node = 0;
    lki_names   names;

    if (is_set(l->node))
        LK_TRY(read_number(&node, l, l->node));
    out->local_size = lki_slurm_tasks(list, node);
    if (out->local_size == 0)
        return lk_fail(LK_EINVAL, "%s=%.60s does not say how many tasks node %u has; unset %s to "
                       "run alone", name, list, node, set_names(l, &names));
    uint32_t first = lki_slurm_tasks_before(list, node);
    if (out->rank != first + out->local_rank || !lki_slurm_is_range(value_of(l->ranks), first))
        out->scattered = l->consecutive;
    if (lki_slurm_all_tasks(list) == out->size)
        return LK_OK;
    return lk_fail(LK_EINVAL, "%s=%.60s has %u tasks, but %s=%u; unset %s to run alone", name, list,
                   lki_slurm_all_tasks(list), l->names[SIZE], out->size, set_names(l, &names));
}

static lk_status read_local(lki_foreign *out, const launcher *l)
{
    out->local_rank = 0;
    out->local_size = 1;
    if (l->one_a_host)
        return LK_OK;
    LK_TRY(read_number(&out->local_rank, l, l->names[LOCAL_RANK]));
    return l->nodes != NULL ? read_tasks(out, l)
                            : read_number(&out->local_size, l, l->names[LOCAL_SIZE]);
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

/* Hashes the values of the launcher's `job` variables.  If none of them is set, hashes the session,
 * which all workers of the job share. */
static uint64_t job_of(const launcher *l)
{
    char text[1024], *value;
    int  used  = snprintf(text, sizeof text, "%s:%u", l->by, (unsigned)getuid());
    bool named = false;

    for (size_t i = 0; i < JOB_NAMES && l->job[i] != NULL; i++) {
        value = getenv(l->job[i]);
        if (value == NULL)
            continue;
        named = true;
        if (strcmp(l->job[i], "PMI_FD") == 0)
            used += snprintf(text + used, sizeof text - (size_t)used, ":%d", (int)peer_of(value));
        else
            used += snprintf(text + used, sizeof text - (size_t)used, ":%.120s", value);
    }
    if (!named)
        used += snprintf(text + used, sizeof text - (size_t)used, ":%d", (int)getsid(0));
    return lki_xxh3(text, (size_t)used);
}

/* ---- The rendezvous ---------------------------------------------------------------------- */

/* Derives an address from the node list of a launcher that sets one. */
static int derive_address(lki_foreign *out, const launcher *l)
{
    char host[256];

    if (l == NULL || !is_set(l->nodes) || out->local_size == out->size
        || !lki_slurm_first_node(host, sizeof host, value_of(l->nodes)))
        return 0;
    return snprintf(out->rendezvous, sizeof out->rendezvous, "tcp://%s:%u", host,
                    lki_slurm_port(value_of(l->job[0]), value_of(l->job[1])));
}

static lk_status find_rendezvous(lki_foreign *out, const launcher *l)
{
    const char *given = getenv("LOCKSTEP_RENDEZVOUS"), *host = getenv("MASTER_ADDR");
    const char *port  = getenv("MASTER_PORT");
    int         bytes = 0;

    if (given != NULL) {
        bytes = snprintf(out->rendezvous, sizeof out->rendezvous, "%s", given);
    } else if (out->rendezvous[0] == '\0' && host != NULL && port != NULL) {
        bytes = snprintf(out->rendezvous, sizeof out->rendezvous,
                         strchr(host, ':') != NULL ? "tcp://[%s]:%s" : "tcp://%s:%s", host, port);
        if (l != NULL && l->store.name != NULL
            && strcmp(value_of(l->store.name), l->store.value) == 0)
            out->store = value_of("TORCHELASTIC_RUN_ID");
    } else if (out->rendezvous[0] == '\0' && host == NULL && port == NULL) {
        bytes = derive_address(out, l);
    }
    if (bytes < (int)sizeof out->rendezvous)
        return LK_OK;
    return lk_fail(LK_EINVAL, "the address of rank 0's host in the environment is too long");
}

lk_status lki_foreign_check_hosts(const lki_foreign *f)
{
    if (f->local_size == f->size)
        return LK_OK;
    if (f->scattered != NULL)
        return lk_fail(LK_EINVAL, "%s has put the ranks on the hosts in turn, but the ranks of a "
                                  "host must be consecutive (%s)%s", f->by, f->scattered,
                       f->by_mpi ? "; or let MPI carry the bytes: LOCKSTEP_MPI=on" : "");
    if (f->rendezvous[0] == '\0')
        return lk_fail(LK_EINVAL, "%s has put this job on several hosts: set LOCKSTEP_RENDEZVOUS "
                                  "to tcp://HOST:PORT with an address of rank 0's host, or "
                                  "MASTER_ADDR and MASTER_PORT%s", f->by,
                       f->by_mpi ? "; or let MPI carry the bytes: LOCKSTEP_MPI=on" : "");
    if (f->insecure || f->key_file != NULL)
        return LK_OK;
    return lk_fail(LK_EINVAL, "%s has put this job on several hosts: set LOCKSTEP_JOB_KEY_FILE "
                              "to a file with the job's key, which lockstep key FILE makes, or "
                              "LOCKSTEP_INSECURE=1 to go without", f->by);
}

static lk_status find_meeting(lki_foreign *out, const launcher *l)
{
    static const char *const settings[] = { "MASTER_ADDR", "MASTER_PORT", "LOCKSTEP_RENDEZVOUS",
                                            "LOCKSTEP_JOB_KEY_FILE", "LOCKSTEP_INSECURE" };
    const char              *insecure   = getenv("LOCKSTEP_INSECURE");
    lki_names                names;

    LK_TRY(lki_names_check_once(settings, sizeof settings / sizeof settings[0],
                                l != NULL ? set_names(l, &names) : "TF_CONFIG"));
    out->insecure = insecure != NULL && strcmp(insecure, "1") == 0;
    out->key_file = getenv("LOCKSTEP_JOB_KEY_FILE");
    return find_rendezvous(out, l);
}

/* ---- Half of a job ----------------------------------------------------------------------- */

/* Refuses a job of a launcher that is in the table but not supported.  The message lists
 * `values`. */
static lk_status refuse_stranger(const launcher *l, const lki_names *values)
{
    lki_names names;

    return lk_fail(LK_EINVAL, "%s %s set by %s, whose jobs lockstep cannot join: start the program "
                   "with lockstep run, torchrun, mpirun or srun; unset %s to run alone",
                   values->text, values->count == 1 ? "is" : "are", l->by, set_names(l, &names));
}

static lk_status refuse_half(const launcher *l, size_t count)
{
    lki_names values  = lki_names_list(l->names, count, LKI_NAMES_VALUES);
    lki_names missing = lki_names_list(l->names, count, LKI_NAMES_MISSING), names;
    lki_names beside  = lki_names_list(l->without, 2, LKI_NAMES_SET);

    if (missing.count == 0 && l->names[SIZE] != NULL && beside.count == 0)
        return refuse_stranger(l, &values);
    return lk_fail(LK_EINVAL, "%s %s set, but %s %s: %s; unset %s to run alone", values.text,
                   values.count == 1 ? "is" : "are", beside.count > 0 ? "also" : "not",
                   beside.count > 0    ? beside.text
                   : missing.count > 0 ? missing.text
                                       : "the number of processes under a name that is known here",
                   l->hint != NULL ? l->hint : "set them for every process, or start the program "
                                               "with lockstep run",
                   set_names(l, &names));
}

/* Refuses a job on several hosts without an address if the job's launcher should have set an
 * address, as torchrun does.  Other launchers leave the address to the user, who must set both of
 * its parts. */
static lk_status check_address(const lki_foreign *f, const launcher *l)
{
    static const char *const parts[] = { "MASTER_ADDR", "MASTER_PORT" };
    lki_names                values  = lki_names_list(parts, 2, LKI_NAMES_VALUES);
    lki_names                missing = lki_names_list(parts, 2, LKI_NAMES_MISSING);

    if (f->local_size == f->size)
        return LK_OK;
    if (f->rendezvous[0] != '\0')
        return lki_rendezvous_check(f->rendezvous);
    if (l->names[ADDRESS] != NULL)
        return refuse_half(l, ALL_NAMES);
    if (values.count != 1)
        return LK_OK;
    return lk_fail(LK_EINVAL, "%s is set, but not %s: set both for every process, to an address of "
                   "rank 0's host and a free port there", values.text, missing.text);
}

/* Returns true if an incomplete set of a launcher's variables can only mean a job of one process.
 * `one` is true if the variables of another launcher describe a job of one process. */
static bool means_one(const launcher *l, bool one)
{
    bool says_one = is_set(l->names[SIZE]);
    bool alone    = l->alone.name != NULL && is_unset_or(l->alone.name, l->alone.value);

    if (lki_names_list(l->names, NAMES, LKI_NAMES_SET).count == 0)
        return true;
    return (says_one || one || alone) && is_unset_or(l->names[SIZE], "1")
           && is_unset_or(l->names[RANK], "0") && is_unset_or(l->names[LOCAL_RANK], "0")
           && is_unset_or(l->names[LOCAL_SIZE], "1");
}

/* Returns true if the row `l` need not be judged beside the complete row `found` (NULL: none). */
static bool is_no_judge(const launcher *l, const launcher *found)
{
    return l == found || l->half == HALF_NONE || (l->outer && found != NULL)
           || (l->half == HALF_WITH_RANK && !is_set(l->names[RANK]));
}

/* Refuses two complete sets of variables that contradict each other: `one` describes a job of one
 * process, and `several` describes a job of several processes. */
static lk_status refuse_both(const launcher *one, const launcher *several)
{
    lki_names values, others, names, other_names;

    return lk_fail(LK_EINVAL, "%s are set, a job of one process, but also %s, a job of several: "
                   "unset %s to run alone, or %s to join", set_values(one, &values),
                   set_values(several, &others), set_names(several, &other_names),
                   set_names(one, &names));
}

/* Refuses variables that may belong to a job of several processes. `found`, if not NULL, is the
 * launcher whose complete set describes a job of one process. */
static lk_status check_others(const launcher *found)
{
    for (const launcher *l = launchers; l < launchers + LAUNCHERS; l++)
        if (!is_no_judge(l, found) && !means_one(l, found != NULL))
            return is_complete(l) && found != NULL ? refuse_both(found, l) : refuse_half(l, NAMES);
    return LK_OK;
}

/* ---- Finding the job --------------------------------------------------------------------- */

static bool can_be(const lki_foreign *f)
{
    return f->size >= 1 && f->rank < f->size && f->local_size >= 1 && f->local_size <= f->size
           && f->local_rank < f->local_size && f->rank >= f->local_rank
           && f->rank - f->local_rank <= f->size - f->local_size;
}

static lk_status read_launcher(lki_foreign *out, const launcher *l)
{
    lki_names values, names;

    out->by     = l->by;
    out->by_mpi = l->mpi != NULL || (l->nodes != NULL && lki_foreign_mpi() != NULL);
    LK_TRY(read_number(&out->rank, l, l->names[RANK]));
    LK_TRY(read_number(&out->size, l, l->names[SIZE]));
    LK_TRY(read_local(out, l));
    out->job = job_of(l);
    if (can_be(out))
        return LK_OK;
    return lk_fail(LK_EINVAL, "%s: rank %u of %u, and rank %u of %u on its host, cannot be; unset "
                   "%s to run alone", set_values(l, &values), out->rank, out->size,
                   out->local_rank, out->local_size, set_names(l, &names));
}

/* Refuses a TF_CONFIG that describes a job of several processes, although `found` describes one. */
static lk_status check_tf_config(const launcher *found, const char *tf_config)
{
    lki_foreign other = { .by = NULL };
    lki_names   values, names;

    LK_TRY(lki_tf_config_read(&other, tf_config));
    if (other.size <= 1)
        return LK_OK;
    return lk_fail(LK_EINVAL, "%s are set, a job of one process, but TF_CONFIG describes %u: unset "
                   "TF_CONFIG to run alone, or %s to join", set_values(found, &values), other.size,
                   set_names(found, &names));
}

lk_status lki_foreign_find(lki_foreign *out)
{
    const char     *tf_config = getenv("TF_CONFIG");
    const launcher *found     = find_complete();

    *out = (lki_foreign){ .by = NULL };
    LK_TRY(check_all_once());
    if (found != NULL)
        LK_TRY(read_launcher(out, found));
    else if (tf_config != NULL)
        LK_TRY(lki_tf_config_read(out, tf_config));
    if (out->by == NULL || out->size == 1) {
        out->by = NULL;
        if (found != NULL && tf_config != NULL)
            LK_TRY(check_tf_config(found, tf_config));
        return check_others(found);
    }
    LK_TRY(find_meeting(out, found));
    return found != NULL ? check_address(out, found) : LK_OK;
}
