/* mpi.c -- opening a communicator over an MPI module.
 *
 * Ranks exchange identity and status with MPI_Allgather, in a few rounds.  If one rank fails, all
 * ranks therefore fail.  Neighbouring ranks in one place (same machine, user and relevant
 * namespaces) form a host.  The lowest rank of a host creates the control memory, and the other
 * ranks open it through /proc.  If a rank is not permitted to open this memory, each rank of the
 * host becomes a separate host.  This division is slower but gives the same bits.
 */
#include "comm/mpi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/memory.h"
#include "comm/flight.h"
#include "comm/span/span.h"
#include "comm/span/tuning.h"
#include "comm/mpi/engine.h"
#include "link/mpi/link.h"

/* The data that every rank sends to all others. */
typedef struct {
    uint64_t  place;   /* equal on ranks that can share memory, as far as a rank can determine */
    int32_t   pid;
    int32_t   control; /* descriptor of this rank's control memory; -1 = none */
    uint32_t  apart;   /* the rank cannot share memory with its neighbours */
    lk_status status;  /* result of the rank's own preparations */
    char      why[200];
    char      host[LKI_HOST_BYTES];
} card;

/* The state of one rank while it opens a communicator. */
typedef struct {
    const lki_mpi_module  *module;
    lki_mpi_world         *world;
    lk_comm_options        options;
    uint32_t               rank, ranks;
    card                   mine, *cards; /* `mine`: data of this rank; `cards`: data of all ranks in
                                          * the last round */
    uint32_t              *host_of;
    lki_roster             here;
    lki_board             *board; /* board of this host; set on the host's lowest rank while the
                                   * other ranks open the memory */
    int                    fd;    /* descriptor of the control memory; -1: none */
    lk_comm               *local;
    lki_link              *link;
    lki_mpi_engine        *engine;
} opening;

/* Loads a module.  The module stays loaded, because MPI does not survive unloading.  Its symbols
 * are global, because MPI looks up parts of itself by name. */
static lk_status load(const lki_mpi_module **out, const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);

    *out = NULL;
    if (handle == NULL)
        return lk_fail(LK_EUNSUPPORTED, "cannot load the module for MPI: %s", dlerror());
    const lki_mpi_module *module = dlsym(handle, LKI_MPI_SYMBOL);
    if (module == NULL || module->revision != LKI_MPI_REVISION)
        return lk_fail(LK_EUNSUPPORTED, "%s is not of this version of lockstep: it and the program "
                       "must come from the same build", path);
    *out = module;
    return LK_OK;
}

/* ---- Rounds ------------------------------------------------------------------------------ */

static lk_status told(const card *cards, uint32_t ranks)
{
    for (uint32_t rank = 0; rank < ranks; rank++)
        if (cards[rank].status != LK_OK)
            return lk_fail(cards[rank].status, "rank %u (host %s, pid %d): %s", rank,
                           cards[rank].host, cards[rank].pid, cards[rank].why);
    return LK_OK;
}

/* Sends `status` to all ranks.  Returns an error on all ranks if any rank has failed. */
static lk_status meet(opening *o, lk_status status)
{
    o->mine.status = status;
    if (status != LK_OK)
        (void)snprintf(o->mine.why, sizeof o->mine.why, "%.199s", lk_error_last()->message);
    const char *error = o->module->gather(o->world, &o->mine, o->cards, sizeof o->mine);
    return error != NULL ? lk_fail(LK_EPEER, "MPI: %s", error) : told(o->cards, o->ranks);
}

/* ---- Hosts ------------------------------------------------------------------------------- */

static void add_inode(uint64_t *hash, const char *path)
{
    struct stat about;
    uint64_t    words[3] = { *hash };

    if (stat(path, &about) == 0) {
        words[1] = about.st_dev;
        words[2] = about.st_ino;
    }
    *hash = lki_xxh3(words, sizeof words);
}

/* Returns a hash of the running kernel, the user and the namespaces.  With `hosts`, the hash
 * includes the number of this rank's emulated host. */
static uint64_t place_of(const opening *o, uint32_t hosts)
{
    char     boot[64] = "";
    FILE    *file     = fopen("/proc/sys/kernel/random/boot_id", "re");
    uint64_t share    = hosts == 0 ? 0 : (uint64_t)o->rank * hosts / o->ranks, where = getuid();

    if (file != NULL) {
        (void)!fgets(boot, sizeof boot, file);
        (void)fclose(file);
    }
    const uint64_t words[3] = { lki_xxh3(boot, sizeof boot), share, where };
    where                   = lki_xxh3(words, sizeof words);
    add_inode(&where, "/proc/self/ns/pid");
    add_inode(&where, "/proc/self/ns/user");
    return where;
}

static void fill_card(opening *o, uint32_t hosts)
{
    card *mine = &o->mine;

    *mine = (card){ .pid = (int32_t)getpid(), .control = -1, .place = place_of(o, hosts) };
    if (gethostname(mine->host, sizeof mine->host - 1) != 0)
        (void)snprintf(mine->host, sizeof mine->host, "?");
}

static bool shares(const opening *o, uint32_t rank)
{
    const card *a = &o->cards[rank - 1], *b = &o->cards[rank];
    return a->place == b->place && a->apart == 0 && b->apart == 0;
}

/* Divides the ranks into hosts.  A host is a run of consecutive ranks with equal `place`, as a
 * board requires. */
static void find_hosts(opening *o)
{
    uint32_t first = o->rank, end = o->rank + 1;

    o->host_of[0] = 0;
    for (uint32_t rank = 1; rank < o->ranks; rank++)
        o->host_of[rank] = o->host_of[rank - 1] + !shares(o, rank);
    while (first > 0 && o->host_of[first - 1] == o->host_of[o->rank])
        first--;
    while (end < o->ranks && o->host_of[end] == o->host_of[o->rank])
        end++;
    o->here = (lki_roster){ .world = o->ranks, .first = first, .count = end - first };
}

/* ---- The control memory of a host -------------------------------------------------------- */

static lk_status make_control(opening *o)
{
    if (!lki_roster_valid(o->here))
        return lk_fail(LK_EINVAL, "%u ranks of MPI: up to %d are possible", o->ranks,
                       LKI_RANKS_MAX);
    if (o->here.count == 1 || o->rank != o->here.first)
        return LK_OK;
    if (o->options.flight != NULL)
        LK_TRY(lki_flight_prepare(o->options.flight, o->here));
    LK_TRY(lki_board_create(&o->board, &o->fd, o->here, NULL, o->here.count));
    o->mine.control = o->fd;
    return LK_OK;
}

/* Opens the control memory of this rank's host.  Lack of permission is no failure here; the next
 * round reports it to all ranks of the host. */
static void open_control(opening *o)
{
    const card *first = &o->cards[o->here.first];

    if (o->here.count > 1 && o->rank != o->here.first)
        o->mine.apart = lki_descriptor_open(&o->fd, first->pid, first->control) != LK_OK;
}

/* Makes each rank of a host a separate host if one of them could not open the control memory. */
static void fall_apart(opening *o)
{
    bool all = true;

    for (uint32_t i = 0; i < o->here.count; i++)
        all = all && o->cards[o->here.first + i].apart == 0;
    o->mine.apart = !all;
}

/* Fills in the records of all ranks.  Returns true if this machine has, and its control group
 * grants, a core for each rank on it. */
static bool introduce(opening *o)
{
    lki_board *board = o->local->board;
    uint32_t   there = 0;

    for (uint32_t rank = 0; rank < o->ranks; rank++) {
        there += strcmp(o->cards[rank].host, o->mine.host) == 0;
        if (o->rank != o->here.first)
            continue;
        lki_rank *record = &board->ranks[rank];
        (void)snprintf(record->host, sizeof record->host, "%s", o->cards[rank].host);
        record->node = o->host_of[rank];
        if (o->host_of[rank] != o->host_of[o->rank])
            atomic_store(&record->pid, o->cards[rank].pid);
    }
    const double granted = lk_allowance_read().granted_cores;
    return there <= sysconf(_SC_NPROCESSORS_ONLN) && (granted == 0 || there <= granted);
}

/* Creates the link (if there are several hosts), the engine and the local communicator. */
static lk_status prepare(opening *o)
{
    if (o->here.count < o->ranks)
        LK_TRY(lki_mpi_link_new(&o->link, o->module, o->world, o->rank, o->ranks));
    LK_TRY(lki_mpi_engine_new(&o->engine, o->module, o->world, o->link == NULL));
    if (o->here.count == 1)
        return lki_comm_open_roster(&o->local, o->here, &o->options);
    return lki_comm_open_shm(&o->local, o->fd, o->rank, -1, &o->options);
}

/* ---- Together ---------------------------------------------------------------------------- */

static lk_status find_neighbours(opening *o)
{
    LK_TRY(LKI_NEW(&o->cards, o->ranks, "what ranks tell of themselves"));
    LK_TRY(LKI_NEW(&o->host_of, o->ranks, "hosts of ranks"));
    LK_TRY(meet(o, LK_OK));
    find_hosts(o);
    LK_TRY(meet(o, make_control(o)));
    open_control(o);
    LK_TRY(meet(o, LK_OK));
    fall_apart(o);
    LK_TRY(meet(o, LK_OK));
    find_hosts(o);
    lk_status st     = prepare(o);
    bool      roomy  = st == LK_OK && introduce(o);
    if (st == LK_OK && !roomy)
        o->local->spins = 0;
    return meet(o, st);
}

/* Releases the objects of a failed opening.  All ranks call it.  No operation has started, so MPI
 * has no open requests. */
static void forget(opening *o)
{
    lk_comm_free(o->local);
    lki_mpi_engine_free(o->engine);
    if (o->link != NULL)
        lki_mpi_link_free(o->link);
    o->module->close(o->world, false);
}

static lk_status begin(lk_comm **out, opening *o)
{
    uint32_t  spins = o->local->spins;
    lki_self *self  = o->local->self;

    self->engine        = &o->engine->head;
    self->tuning.native = true;
    *out                = o->local;
    if (o->link != NULL) {
        lki_mpi_link_start(o->link);
        LK_TRY(lki_span_open(out, o->local, o->link, o->host_of));
        (*out)->spins = spins;
    }
    o->engine->head.comm = *out;
    return LK_OK;
}

lk_status lki_mpi_open(lk_comm **out, const lki_mpi_how *how, const lk_comm_options *options)
{
    opening     o          = { .fd = -1 };
    const char *algorithms = options == NULL ? NULL : options->algorithms;
    const lki_mpi_ranks of = { how->of, how->of_bytes, how->fortran };

    if (options != NULL)
        o.options = *options;
    o.options.algorithms = NULL; /* set later, because some algorithms need objects that are created
                                  * below */
    *out                 = NULL;
    LK_TRY(load(&o.module, how->path));
    const char *error = o.module->open(&o.world, &o.rank, &o.ranks, &of);
    if (error != NULL)
        return lk_fail(how->of != NULL ? LK_EINVAL : LK_EPEER, "cannot begin with MPI: %s",
                       error);
    fill_card(&o, how->hosts);
    lk_status st = find_neighbours(&o);
    if (st != LK_OK)
        forget(&o);
    if (o.board != NULL)
        (void)munmap(o.board, o.board->bytes);
    if (o.fd >= 0)
        (void)close(o.fd);
    if (st == LK_OK)
        st = begin(out, &o);
    lki_free(o.host_of);
    lki_free(o.cards);
    if (st == LK_OK && how->tunes && lk_comm_hosts(*out) > 1)
        st = lki_tuning_prepare(*out);
    if (st == LK_OK)
        st = lk_comm_set_algorithms(*out, algorithms);
    if (st != LK_OK && *out != NULL) {
        lk_comm_abort(*out);
        lk_comm_free(*out);
        *out = NULL;
    }
    return st;
}
