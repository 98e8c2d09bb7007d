/* ranks.c -- the communicator over MPI, from inside: a program that tests/mpi/run starts by mpirun.
 *
 *     ranks conform FIRST   every operation, from call FIRST on, also in groups
 *     ranks bits            the bits of threads, by every exact algorithm
 *     ranks abort           rank 1 gives up, and the others are told
 *     ranks die             rank 1 ends without a word: MPI ends the job
 *     ranks late            a timeout, and the rank that was missed leaves much later
 *     ranks early           rank 1 leaves, the others go on without it
 *     ranks hosts COUNT     they are on so many hosts, and those of a host share memory
 *     ranks closed          rank 0 lets nobody open its memory, unless they may open everything
 *     ranks guest LIBRARY   the program initialises MPI (in LIBRARY) itself, and goes on afterwards
 */
#include <dlfcn.h>
#include <sys/prctl.h>

#include "base/hash.h"
#include "comm/conformance.h"
#include "lockstep/launch.h"

static bool leaves(lk_comm *comm, bool good)
{
    lk_comm_free(comm);
    return good;
}

/* ---- The same bits ----------------------------------------------------------------------- */

enum { MOST_ELEMENTS = 70001 };

typedef struct {
    const char *algorithm; /* NULL: what the library chooses */
    uint64_t    hash;      /* what rank 0 finds */
} sums;

/* A hash over sums of many sizes. */
static bool sums_up(lk_comm *comm, void *context)
{
    static const size_t sizes[] = { 1, 3, 1000, 20011, MOST_ELEMENTS };
    sums               *s    = context;
    float              *data = malloc(sizeof(float) * MOST_ELEMENTS);
    uint64_t            hash = 0;

    CHECK(data != NULL);
    for (uint32_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        for (size_t i = 0; i < sizes[k]; i++)
            data[i] = world_value(lk_comm_rank(comm), i, k);
        CHECK(lk_all_reduce(comm, data, data, sizes[k], LK_F32, LK_SUM) == LK_OK);
        uint64_t words[2] = { hash, lki_xxh3(data, sizes[k] * sizeof *data) };
        hash              = lki_xxh3(words, sizeof words);
    }
    free(data);
    if (lk_comm_size(comm) == 1 || lk_comm_hosts(comm) > 1 || lk_comm_rank(comm) == 0)
        s->hash = hash;
    return true;
}

static bool has_the_bits_of_threads(lk_comm *comm)
{
    lk_algorithm list[32];
    uint32_t     count = 0, tried = 0;
    sums         threads = { 0 }, here = { 0 };

    CHECK(world_all(lk_comm_size(comm), true, sums_up, &threads));
    CHECK(sums_up(comm, &here) && here.hash == threads.hash);
    CHECK(lk_comm_explain(comm, "all_reduce", 1000, list, 32, &count) == LK_OK);
    for (uint32_t i = 0; i < count; i++) {
        char text[100];
        (void)snprintf(text, sizeof text, "all_reduce:%s", list[i].name);
        CHECK(lk_comm_set_algorithms(comm, text) == LK_OK);
        CHECK(sums_up(comm, &here));
        CHECK(!list[i].exact || here.hash == threads.hash);
        tried += list[i].exact;
        if (lk_comm_rank(comm) == 0)
            printf("all_reduce:%s %016llx%s\n", list[i].name, (unsigned long long)here.hash,
                   list[i].exact ? "" : " (not exact)");
    }
    CHECK(tried >= 3);
    return true;
}

/* ---- Ends -------------------------------------------------------------------------------- */

static bool gives_up(lk_comm *comm)
{
    float x = 1;

    if (lk_comm_rank(comm) == 1) {
        (void)usleep(50000);
        lk_comm_abort(comm);
        return true;
    }
    lk_status st = lk_all_reduce(comm, &x, &x, 1, LK_F32, LK_SUM);
    CHECK(st == LK_EPEER && strstr(lk_error_last()->message, "rank 1 (host ") != NULL);
    return true;
}

static bool dies(lk_comm *comm)
{
    CHECK(lk_barrier(comm) == LK_OK);
    if (lk_comm_rank(comm) == 1)
        _exit(3);
    CHECK(lk_barrier(comm) != LK_OK);
    return true;
}

/* Rank 1 stays away for so long that the others have had enough and want to leave. */
static bool is_late(lk_comm *comm)
{
    CHECK(lk_barrier(comm) == LK_OK);
    lk_comm_set_timeout(comm, 500);
    if (lk_comm_rank(comm) == 1) {
        (void)sleep(3);
        CHECK(lk_barrier(comm) != LK_OK);
        return true;
    }
    lk_status st = lk_barrier(comm);
    CHECK(st == LK_ETIMEOUT || st == LK_EPEER);
    return true;
}

/* What rank 1 has sent before it left arrives, though it is asked for much later. */
static bool leaves_early(lk_comm *comm)
{
    enum { BYTES = 50000 };
    static unsigned char data[BYTES];
    uint32_t             size = lk_comm_size(comm);
    lk_comm             *rest;

    CHECK(lk_comm_split(&rest, comm, lk_comm_rank(comm) == 1 ? LK_NO_COLOR : 0, 0) == LK_OK);
    if (lk_comm_rank(comm) == 1) {
        memset(data, 7, BYTES);
        return lk_broadcast(comm, data, BYTES, 1) == LK_OK;
    }
    (void)usleep(300000);
    CHECK(lk_broadcast(comm, data, BYTES, 1) == LK_OK);
    CHECK(data[0] == 7 && data[BYTES - 1] == 7);
    (void)usleep(300000);
    for (float k = 1; k < 20; k++) {
        float x = k;
        CHECK(lk_all_reduce(rest, &x, &x, 1, LK_F32, LK_SUM) == LK_OK);
        CHECK(x == k * (float)(size - 1));
    }
    lk_comm_free(rest);
    return true;
}

/* ---- Shared memory ----------------------------------------------------------------------- */

/* What a rank writes into an arena those on its host see, and nobody else. */
static bool are_on(lk_comm *comm, uint32_t hosts)
{
    enum { BYTES = 4096 };
    uint32_t  rank = lk_comm_rank(comm), size = lk_comm_size(comm);
    lk_arena *arena;

    CHECK(lk_comm_hosts(comm) == hosts);
    CHECK(lk_comm_arena(&arena, comm, "words", BYTES) == LK_OK);
    uint32_t *words = lk_arena_data(arena);
    words[rank]     = rank + 1;
    CHECK(lk_barrier(comm) == LK_OK);
    for (uint32_t r = 0; r < size; r++)
        CHECK(words[r] == (lk_comm_host(comm, r) == lk_comm_host(comm, rank) ? r + 1 : 0));
    return true;
}

/* ---- A program with an MPI of its own ---------------------------------------------------- */

typedef struct {
    int (*init)(int *count, char ***arguments);
    int (*finalised)(int *flag);
    int (*finalise)(void);
} mpi_calls;

static void find(void *handle, const char *name, void *into, size_t bytes)
{
    void *symbol = dlsym(handle, name);
    if (symbol == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    memcpy(into, &symbol, bytes);
}

/* The library leaves it running, and can be used several times. */
static bool is_a_guest(const char *library)
{
    void     *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    mpi_calls mpi;
    lk_comm  *comm;
    bool      good = true;
    int       flag = 1;

    if (handle == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return false;
    }
    find(handle, "MPI_Init", &mpi.init, sizeof mpi.init);
    find(handle, "MPI_Finalized", &mpi.finalised, sizeof mpi.finalised);
    find(handle, "MPI_Finalize", &mpi.finalise, sizeof mpi.finalise);
    (void)mpi.init(NULL, NULL);
    for (int k = 0; k < 3 && good; k++) {
        uint32_t first = (uint32_t)k * 150;
        good           = lk_comm_open_mpi(&comm, NULL) == LK_OK && conforms(comm, &first);
        lk_comm_free(comm);
        (void)mpi.finalised(&flag);
        good = good && flag == 0;
    }
    (void)mpi.finalise();
    return good && lk_comm_open_mpi(&comm, NULL) != LK_OK
           && strstr(lk_error_last()->message, "has been finalised") != NULL;
}

/* By the rules of the kernel, unless this user is above them. */
static bool is_closed(void)
{
    const char *mine = getenv("OMPI_COMM_WORLD_RANK");
    lk_comm    *comm;

    if (mine == NULL)
        mine = getenv("PMI_RANK");
    if (mine != NULL && strcmp(mine, "0") == 0)
        (void)prctl(PR_SET_DUMPABLE, 0);
    if (lk_comm_open_mpi(&comm, NULL) != LK_OK) {
        fprintf(stderr, "%s\n", lk_error_last()->message);
        return false;
    }
    if (lk_comm_rank(comm) == 0)
        printf("hosts %u\n", lk_comm_hosts(comm));
    uint32_t hosts = lk_comm_hosts(comm), first = 0;
    bool     good  = (hosts == 1 || hosts == lk_comm_size(comm)) && are_on(comm, hosts)
                && conforms(comm, &first);
    lk_comm_free(comm);
    return good;
}

static bool satisfied(const char *what, const char *more)
{
    lk_comm_options options = { .timeout_ms = 60000 };
    lk_comm        *comm;
    uint32_t        first = (uint32_t)atoi(more);

    if (strcmp(what, "guest") == 0)
        return is_a_guest(more);
    if (strcmp(what, "closed") == 0)
        return is_closed();
    if (lk_comm_open_mpi(&comm, &options) != LK_OK) {
        fprintf(stderr, "%s\n", lk_error_last()->message);
        return false;
    }
    if (strcmp(what, "conform") == 0)
        return leaves(comm, conforms(comm, &first) && (lk_comm_size(comm) < 6 ||
                                                       splits(comm, NULL)));
    if (strcmp(what, "hosts") == 0)
        return leaves(comm, are_on(comm, first));
    if (strcmp(what, "bits") == 0)
        return leaves(comm, has_the_bits_of_threads(comm));
    if (strcmp(what, "abort") == 0)
        return leaves(comm, gives_up(comm));
    if (strcmp(what, "die") == 0)
        return leaves(comm, dies(comm));
    if (strcmp(what, "late") == 0)
        return leaves(comm, is_late(comm));
    if (strcmp(what, "early") == 0)
        return leaves(comm, leaves_early(comm));
    fprintf(stderr, "unknown: %s\n", what);
    return leaves(comm, false);
}

int main(int count, char **arguments)
{
    return count > 1 && satisfied(arguments[1], count > 2 ? arguments[2] : "0") ? 0 : 1;
}
