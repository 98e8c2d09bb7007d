/* prepare.c -- cores and constants for the cost model, determined by rank 0 before the first
 * choice.
 *
 * When a communicator over hosts opens, every rank is present and idle.  The ranks send rank 0
 * their places.  Rank 0 counts the cores that the ranks share, and determines the constants of the
 * cost model.  It reads the constants from the given file, or from its cache if these hosts have
 * been measured before.  Otherwise it measures them (tune.c: some 70 messages, a few milliseconds)
 * and caches them.  All ranks receive rank 0's decision once; nothing later depends on a clock.  A
 * job that begins on one host determines them when the first other hosts have joined.
 *
 * The cache is a directory with a file for each kind of link and set of hosts.  Files are replaced
 * atomically.  If a file is unreadable, the constants are measured and the file is replaced.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/memory.h"
#include "comm/span/span.h"
#include "comm/span/tuning.h"

/* The place at which a rank runs: machine and cores. */
typedef struct {
    char      host[LKI_HOST_BYTES], boot[64];
    cpu_set_t cores;
    double    granted; /* as in lki_rank_cores */
} place;

/* The decision that rank 0 sends to all ranks. */
typedef struct {
    lki_model model;
    double    cores;
    uint32_t  measure;
} decision;

static place find_place(void)
{
    place p    = { .host = "" };
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (gethostname(p.host, sizeof p.host - 1) != 0)
        p.host[0] = '\0';
    if (file != NULL) {
        (void)!fgets(p.boot, sizeof p.boot, file);
        (void)fclose(file);
    }
    if (sched_getaffinity(0, sizeof p.cores, &p.cores) != 0)
        CPU_ZERO(&p.cores);
    p.granted = lk_allowance_read().granted_cores;
    return p;
}

/* ---- Cores ------------------------------------------------------------------------------- */

/* Returns the part of a core that each rank on the machine and in the container of `mine` has. */
static double cores_of_each(uint32_t ranks, const lki_rank_cores *of, const lki_rank_cores *mine)
{
    cpu_set_t all   = mine->bound;
    uint32_t  there = 0, inside = 0;

    for (uint32_t rank = 0; rank < ranks; rank++)
        if (of[rank].machine == mine->machine) {
            CPU_OR(&all, &all, &of[rank].bound);
            there++;
            inside += of[rank].container == mine->container;
        }
    const double each = (double)CPU_COUNT(&all) / there, granted = mine->granted / inside;
    return granted > 0 && granted < each ? granted : each;
}

/* Returns the number of cores that all ranks would share if every machine had as many ranks per
 * core as the most crowded one; 0 if each rank has a core.  Emulated hosts count as one machine. */
double lki_tuning_cores(uint32_t ranks, const lki_rank_cores *of)
{
    double least = 1;

    for (uint32_t rank = 0; rank < ranks; rank++) {
        const double each = cores_of_each(ranks, of, &of[rank]);
        least             = each > 0 && each < least ? each : least;
    }
    return least < 1 ? least * ranks : 0;
}

static lk_status count_cores(double *out, const place *places, uint32_t ranks)
{
    lki_rank_cores *of;

    LK_TRY(LKI_NEW(&of, ranks, "cores of ranks"));
    for (uint32_t rank = 0; rank < ranks; rank++)
        of[rank] = (lki_rank_cores){ /* containers have host names of their own */
                                     .machine = lki_xxh3(places[rank].boot, sizeof places->boot),
                                     .container = lki_xxh3(places[rank].host, sizeof places->host),
                                     .granted   = places[rank].granted,
                                     .bound     = places[rank].cores };
    *out = lki_tuning_cores(ranks, of);
    lki_free(of);
    return LK_OK;
}

/* ---- The cache --------------------------------------------------------------------------- */

/* Writes the path of the cache file for these hosts and this kind of link. */
static void name_file(char *out, size_t room, const lk_comm *comm, const place *places)
{
    const lki_link *link = lki_wire_link(comm->self->wire);
    uint64_t        hash = lki_xxh3(link->ops->name, strlen(link->ops->name)) + link->sealed;

    for (uint32_t rank = 0; rank < comm->size; rank++) {
        const uint64_t words[3] = { hash, comm->span->map.host_of[rank],
                                    lki_xxh3(places[rank].host, sizeof places[rank].host) };
        hash = lki_xxh3(words, sizeof words);
    }
    (void)snprintf(out, room, "%.400s/tuning-%s%s-%016llx", comm->self->tuning.cache,
                   link->ops->name, link->sealed ? "-sealed" : "", (unsigned long long)hash);
}

/* Creates the directory and its parent.  A failure is detected when a file is written. */
static void make_directory(const char *path)
{
    char parent[512];

    (void)snprintf(parent, sizeof parent, "%.500s", path);
    char *slash = strrchr(parent, '/');
    if (slash != NULL && slash != parent) {
        *slash = '\0';
        (void)mkdir(parent, 0700);
    }
    (void)mkdir(path, 0700);
}

static void keep(lki_tuning *tuning, const char *path)
{
    char source[sizeof tuning->source];

    if (tuning->cache[0] == '\0')
        return;
    make_directory(tuning->cache);
    if (lki_model_write(&tuning->model, path) == LK_OK)
        (void)snprintf(source, sizeof source, "%.500s, and kept in %.480s", tuning->source, path);
    else
        (void)snprintf(source, sizeof source, "%.500s; %.480s", tuning->source,
                       lk_error_last()->message);
    memcpy(tuning->source, source, sizeof source);
}

/* ---- Deciding ---------------------------------------------------------------------------- */

/* Finds the constants without measuring, on rank 0.  Returns true if they must be measured.  Until
 * all ranks have received the result, rank 0 chooses with the same constants as the other ranks. */
static bool find_constants(lki_tuning *tuning, const char *path, lki_model *out)
{
    lki_model kept;

    if (tuning->of_a_file)
        return false;
    (void)snprintf(tuning->source, sizeof tuning->source, "measured");
    if (tuning->cache[0] == '\0' || access(path, F_OK) != 0)
        return true;
    if (lki_model_read_whole(&kept, path) != LK_OK) {
        (void)snprintf(tuning->source, sizeof tuning->source, "measured (instead: %.480s)",
                       lk_error_last()->message);
        return true;
    }
    *out = kept;
    (void)snprintf(tuning->source, sizeof tuning->source, "of %.480s", path);
    return false;
}

static lk_status decide(lk_comm *comm, const place *places, char *path, size_t room, decision *out)
{
    lki_tuning *tuning = &comm->self->tuning;

    LK_TRY(count_cores(&out->cores, places, comm->size));
    name_file(path, room, comm, places);
    out->model   = tuning->model;
    out->measure = find_constants(tuning, path, &out->model);
    return LK_OK;
}

/* Disables spinning, because ranks that share cores would delay each other by polling. */
static void stop_spinning(lk_comm *comm)
{
    const lki_levels *levels = comm->span->levels;

    comm->self->crowded = true;
    comm->spins = comm->span->local->spins = 0;
    for (uint32_t i = 0; levels != NULL && i < LKI_LEGS; i++)
        levels->groups[i]->spins = 0;
}

static lk_status tell(lk_comm *comm, decision *what)
{
    lki_tuning *tuning = &comm->self->tuning;

    LK_TRY(lk_broadcast(comm, what, sizeof *what, 0));
    tuning->model    = what->model;
    tuning->cores    = what->cores;
    tuning->prepared = true;
    if (what->cores > 0)
        stop_spinning(comm);
    return LK_OK;
}

lk_status lki_tuning_tell(lk_comm *comm, const lki_tuning *known)
{
    decision what = { .model   = known->of_a_file ? known->given : known->model,
                      .cores   = known->cores,
                      .measure = !known->prepared };

    LK_TRY(tell(comm, &what));
    comm->self->tuning.of_a_file = known->of_a_file;
    return what.measure != 0 ? lki_tuning_prepare(comm) : LK_OK;
}

lk_status lki_tuning_prepare(lk_comm *comm)
{
    lki_tuning *tuning = &comm->self->tuning;
    place       mine   = find_place(), *places = NULL;
    decision    what   = { .cores = 0 };
    char        path[600];

    LK_TRY(LKI_NEW(&places, comm->rank == 0 ? comm->size : 1, "places of ranks"));
    lk_status st = lk_gather(comm, &mine, places, sizeof mine, 0);
    if (st == LK_OK && comm->rank == 0)
        st = decide(comm, places, path, sizeof path, &what);
    lki_free(places);
    LK_TRY(lki_agree(comm, st));
    LK_TRY(tell(comm, &what));
    if (what.measure == 0)
        return LK_OK;
    char source[sizeof tuning->source]; /* saved, because a measurement sets the source to
                                         * "measured" */
    memcpy(source, tuning->source, sizeof source);
    LK_TRY(lk_comm_tune(comm, NULL));
    memcpy(tuning->source, source, sizeof source);
    if (comm->rank == 0)
        keep(tuning, path);
    return LK_OK;
}

const char *lk_comm_tuning(const lk_comm *comm)
{
    return comm->self->tuning.source;
}
