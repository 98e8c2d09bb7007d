/* open.c -- from a module to a communicator.
 *
 * Ranks tell each other who and where they are by MPI_Allgather, in a few rounds, so that what
 * fails on one fails on all.  Neighbours that are in one place (a machine, a user, the namespaces
 * that matter) are a host: the lowest of them makes the control memory, and the others open it by
 * /proc.  Where they are not allowed to, each is a host of its own: slower, with the same bits.
 */
#include "comm/mpi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/memory.h"
#include "comm/flight.h"
#include "comm/span/span.h"
#include "comm/transport/mpi/engine.h"
#include "comm/transport/mpi/link.h"

/* What every rank tells all. */
typedef struct {
    uint64_t  place;   /* the same where memory can be shared, as far as it can be known */
    int32_t   pid;
    int32_t   control; /* its descriptor of the control memory; -1 = none */
    uint32_t  apart;   /* it cannot share memory with its neighbours */
    lk_status status;  /* of what it did on its own */
    char      why[200];
    char      host[LKI_HOST_BYTES];
} card;

/* One rank on its way to a communicator. */
typedef struct {
    const lki_mpi_module  *module;
    lki_mpi_world         *world;
    lk_comm_options        options;
    uint32_t               rank, ranks;
    card                   mine, *cards; /* `cards`: of all ranks, from the last round */
    uint32_t              *host_of;
    lki_roster             here;
    lki_control           *control; /* the lowest rank of a host has it while they open */
    int                    fd;      /* of it; the others */
    lk_comm               *local;
    lki_link              *link;
    lki_engine            *engine;
} opening;

/* A module stays loaded: MPI does not bear being unloaded.  Its MPI finds parts of itself by name,
 * so its names must be global. */
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

/* Tells all how far this rank has come; fails where one has failed. */
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

/* The kernel that runs, the user, and in which containers; with `hosts`, also in which of as many
 * shares of the ranks. */
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

/* Hosts are runs of ranks in one place: the ranks of a board are consecutive. */
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
    LK_TRY(lki_control_create(&o->control, o->here));
    o->mine.control = lki_control_fd(o->control);
    return LK_OK;
}

/* What is not allowed is no failure: all ranks of the host learn of it in the next round. */
static void open_control(opening *o)
{
    const card *first = &o->cards[o->here.first];

    if (o->here.count > 1 && o->rank != o->here.first)
        o->mine.apart = lki_descriptor_open(&o->fd, first->pid, first->control) != LK_OK;
}

/* Whoever cannot open its host's memory takes the others of it along. */
static void fall_apart(opening *o)
{
    bool all = true;

    for (uint32_t i = 0; i < o->here.count; i++)
        all = all && o->cards[o->here.first + i].apart == 0;
    o->mine.apart = !all;
}

/* Tells the records who the others are; whether all ranks of this machine have a core each. */
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
    return there <= sysconf(_SC_NPROCESSORS_ONLN);
}

/* What this rank needs beside its neighbours. */
static lk_status prepare(opening *o)
{
    int fd = o->control != NULL ? lki_control_fd(o->control) : o->fd;

    if (o->here.count < o->ranks)
        LK_TRY(lki_mpi_link_new(&o->link, o->module, o->world, o->rank, o->ranks));
    LK_TRY(LKI_NEW(&o->engine, 1, "what is known of MPI"));
    *o->engine = (lki_engine){ .module = o->module, .world = o->world, .closes = o->link == NULL };
    if (o->here.count == 1)
        return lki_comm_open_roster(&o->local, o->here, &o->options);
    return lki_comm_open_shm(&o->local, fd, o->rank, -1, &o->options);
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

/* Nobody has begun: nothing of MPI is open, and all let go of it. */
static void forget(opening *o)
{
    lk_comm_free(o->local);
    lki_engine_free(o->engine);
    if (o->link != NULL)
        lki_mpi_link_free(o->link);
    o->module->close(o->world);
}

static lk_status begin(lk_comm **out, opening *o)
{
    uint32_t  spins = o->local->spins;
    lki_self *self  = o->local->self;

    self->engine        = o->engine;
    self->tuning.native = true;
    *out                = o->local;
    if (o->link != NULL) {
        lki_mpi_link_start(o->link);
        LK_TRY(lki_span_open(out, o->local, o->link, o->host_of));
        (*out)->spins = spins;
    }
    o->engine->comm = *out;
    return LK_OK;
}

lk_status lki_mpi_open(lk_comm **out, const char *path, const lk_comm_options *options,
                       uint32_t hosts)
{
    opening     o          = { .fd = -1 };
    const char *algorithms = options == NULL ? NULL : options->algorithms;

    if (options != NULL)
        o.options = *options;
    o.options.algorithms = NULL; /* some of them need what is made here */
    *out                 = NULL;
    LK_TRY(load(&o.module, path));
    const char *error = o.module->open(&o.world, &o.rank, &o.ranks);
    if (error != NULL)
        return lk_fail(LK_EPEER, "cannot begin with MPI: %s", error);
    fill_card(&o, hosts);
    lk_status st = find_neighbours(&o);
    if (st != LK_OK)
        forget(&o);
    lki_control_free(o.control);
    if (o.fd >= 0)
        (void)close(o.fd);
    if (st == LK_OK)
        st = begin(out, &o);
    lki_free(o.host_of);
    lki_free(o.cards);
    if (st == LK_OK)
        st = lk_comm_set_algorithms(*out, algorithms);
    if (st != LK_OK && *out != NULL) {
        lk_comm_abort(*out);
        lk_comm_free(*out);
        *out = NULL;
    }
    return st;
}
