/* open.c -- from a module to a communicator. */
#include "comm/mpi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/span/span.h"
#include "comm/transport/mpi/link.h"

/* What every rank tells all before the first message. */
typedef struct {
    int32_t   pid;
    char      host[LKI_HOST_BYTES];
    lk_status status; /* of what it did on its own */
    char      why[200];
} card;

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

/* What this rank needs and nobody else has a part in. */
static lk_status prepare(lk_comm **local, lki_link **link, const lki_mpi_module *module,
                         lki_mpi_world *world, lki_roster roster, const lk_comm_options *options)
{
    if (!lki_roster_valid(roster))
        return lk_fail(LK_EINVAL, "%u ranks of MPI: up to %d are possible", roster.world,
                       LKI_RANKS_MAX);
    LK_TRY(lki_mpi_link_new(link, module, world, roster.first, roster.world));
    lk_status st = lki_comm_open_roster(local, roster, options);
    if (st != LK_OK) {
        lki_mpi_link_free(*link);
        *link = NULL;
    }
    return st;
}

static card my_card(lk_status status)
{
    card mine = { .pid = (int32_t)getpid(), .status = status };

    if (gethostname(mine.host, sizeof mine.host - 1) != 0)
        (void)snprintf(mine.host, sizeof mine.host, "?");
    if (status != LK_OK)
        (void)snprintf(mine.why, sizeof mine.why, "%.199s", lk_error_last()->message);
    return mine;
}

static lk_status check(const card *cards, uint32_t ranks)
{
    for (uint32_t rank = 0; rank < ranks; rank++)
        if (cards[rank].status != LK_OK)
            return lk_fail(cards[rank].status, "rank %u (host %s, pid %d): %s", rank,
                           cards[rank].host, cards[rank].pid, cards[rank].why);
    return LK_OK;
}

/* Tells the records who the others are; whether all ranks of this host have a core each. */
static bool introduce(lk_comm *local, const card *cards)
{
    LK_ASSERT(local != NULL);
    lki_board *board = local->board;
    uint32_t   here  = 0, me = local->self->rank;

    for (uint32_t rank = 0; rank < board->size; rank++) {
        lki_rank *record = &board->ranks[rank];
        (void)snprintf(record->host, sizeof record->host, "%s", cards[rank].host);
        if (rank != me)
            atomic_store(&record->pid, cards[rank].pid);
        here += strcmp(cards[rank].host, cards[me].host) == 0;
    }
    return here <= sysconf(_SC_NPROCESSORS_ONLN);
}

static lk_status join(lk_comm **out, lk_comm *local, lki_link *link, const card *cards,
                      uint32_t *host_of)
{
    uint32_t spins = introduce(local, cards) ? local->spins : 0;

    for (uint32_t rank = 0; rank < link->ranks; rank++)
        host_of[rank] = rank;
    lki_mpi_link_start(link);
    LK_TRY(lki_span_open(out, local, link, host_of));
    (*out)->spins = spins;
    return LK_OK;
}

static lk_status open_world(lk_comm **out, const lki_mpi_module *module, lki_mpi_world *world,
                            lki_roster roster, const lk_comm_options *options)
{
    lk_comm  *local   = NULL;
    lki_link *link    = NULL;
    card     *cards   = NULL;
    uint32_t *host_of = NULL;
    lk_status st      = LKI_NEW(&cards, roster.world, "what ranks tell of themselves");

    if (st == LK_OK)
        st = LKI_NEW(&host_of, roster.world, "hosts of ranks");
    if (st == LK_OK) {
        card        mine  = my_card(prepare(&local, &link, module, world, roster, options));
        const char *error = module->gather(world, &mine, cards, sizeof mine);
        st = error != NULL ? lk_fail(LK_EPEER, "MPI: %s", error) : check(cards, roster.world);
        if (st == LK_OK) {
            st = join(out, local, link, cards, host_of);
        } else {
            lk_comm_free(local);
            if (link != NULL)
                lki_mpi_link_free(link);
            module->close(world);
        }
    }
    lki_free(host_of);
    lki_free(cards);
    return st;
}

lk_status lki_mpi_open(lk_comm **out, const char *path, const lk_comm_options *options)
{
    const lki_mpi_module *module;
    lki_mpi_world        *world;
    uint32_t              rank, ranks;

    *out = NULL;
    LK_TRY(load(&module, path));
    const char *error = module->open(&world, &rank, &ranks);
    if (error != NULL)
        return lk_fail(LK_EPEER, "cannot begin with MPI: %s", error);
    lki_roster roster = { .world = ranks, .first = rank, .count = 1 };
    return open_world(out, module, world, roster, options);
}
