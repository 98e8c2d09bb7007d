/* ranks.c -- tests of the communicator over MPI; tests/mpi/run starts this program with mpirun.
 *
 *    ranks conform FIRST    every operation, from call FIRST on, also in groups
 *    ranks bits             the same bits as in threads, by every exact algorithm
 *    ranks abort            rank 1 gives up, and the others are informed
 *    ranks cut              rank 1 gives up while large vectors are being sent
 *    ranks die              rank 1 dies silently: MPI ends the job
 *    ranks late             a timeout, and the missing rank leaves much later
 *    ranks early            rank 1 leaves, the others continue without it
 *    ranks hosts COUNT      emulates COUNT hosts; ranks of a host share memory
 *    ranks closed           rank 0 forbids opening its memory, except to privileged users
 *    ranks native BYTES     MPI's own collectives, in calls of BYTES (0: the default)
 *    ranks differ           ranks disagree about a native operation
 *    ranks absent           rank 1 does not take part in a native operation
 *    ranks guest LIBRARY    the program itself uses MPI (in LIBRARY) before and after
 */
#include <dlfcn.h>
#include <sys/prctl.h>

#include "base/hash.h"
#include "comm/conformance_testing.h"
#include "lockstep/launch.h"

static bool leaves(lk_comm *comm, bool good)
{
    lk_comm_free(comm);
    return good;
}

/* ---- The same bits ----------------------------------------------------------------------- */

enum { MOST_ELEMENTS = 70001 };

typedef struct {
    const char *algorithm; /* NULL: chosen by the library */
    uint64_t    hash;      /* computed by rank 0 */
} sums;

/* Hashes sums of many sizes. */
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
                   list[i].exact ? "" : " (timed)");
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

/* Starts to exchange large vectors.  Rank 1 gives up when the others have begun.  Expects that no
 * rank's buffer changes after the call has failed there.  Frees the communicator. */
static bool is_cut_off(lk_comm *comm)
{
    enum { BYTES = 12 << 20, RANKS_MAX = 4 };
    static unsigned char mine[BYTES], all[RANKS_MAX * BYTES], copy[RANKS_MAX * BYTES];
    size_t               bytes = (size_t)lk_comm_size(comm) * BYTES;
    uint32_t             rank  = lk_comm_rank(comm);
    lk_request          *request;
    unsigned char        begun = 0;

    memset(mine, 1 + (int)rank, BYTES);
    CHECK(bytes <= sizeof all);
    CHECK(lk_all_gather_start(&request, comm, mine, all, BYTES) == LK_OK);
    lk_status sent = rank == 1 ? LK_OK : lk_send(comm, &begun, 1, 1);
    CHECK(sent == LK_OK || sent == LK_EPEER);
    for (uint32_t r = 0; r < lk_comm_size(comm) && rank == 1; r++)
        CHECK(r == 1 || lk_recv(comm, &begun, 1, r) == LK_OK);
    if (rank == 1)
        lk_comm_abort(comm);
    CHECK(lk_request_wait(request) == LK_EPEER);
    lk_request_free(request);
    memcpy(copy, all, bytes);
    memset(mine, 0, BYTES);
    lk_comm_free(comm);
    CHECK(memcmp(copy, all, bytes) == 0);
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

/* Leaves a mark with the process number, to show that this rank has reached the test's end. */
static bool mark(const lk_comm *comm)
{
    char path[200];
    (void)snprintf(path, sizeof path, "%s/mark-%u", getenv("LKT_MARKS"), lk_comm_rank(comm));
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fprintf(file, "%d\n", (int)getpid()) > 0 && fclose(file) == 0);
    return true;
}

/* Waits until all other ranks have left their marks. */
static void wait_for_marks(const lk_comm *comm)
{
    char path[200];
    for (uint32_t rank = 0; rank < lk_comm_size(comm); rank++) {
        (void)snprintf(path, sizeof path, "%s/mark-%u", getenv("LKT_MARKS"), rank);
        while (rank != lk_comm_rank(comm) && access(path, F_OK) != 0)
            (void)usleep(10000);
    }
}

/* Delays rank 1 until the other ranks have timed out and want to leave. */
static bool is_late(lk_comm *comm)
{
    CHECK(lk_barrier(comm) == LK_OK);
    lk_comm_set_timeout(comm, 500);
    if (lk_comm_rank(comm) == 1) {
        wait_for_marks(comm);
        CHECK(lk_barrier(comm) != LK_OK);
        return true;
    }
    lk_status st = lk_barrier(comm);
    CHECK(st == LK_ETIMEOUT || st == LK_EPEER);
    return mark(comm);
}

/* Rank 1 sends messages and leaves.  Checks that the messages still arrive. */
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

/* Checks that ranks of the same host, and no others, see each other's arena. */
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

/* ---- Native ------------------------------------------------------------------------------ */

enum { NATIVE_MOST = 30011, NATIVE_OPS = 6, BURST = 12 };

static const char *const native_ops[NATIVE_OPS] = {
    "all_reduce", "reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast",
};

typedef struct {
    int            op;
    lk_dtype       dtype;
    lk_reduce_op   reduction;
    size_t         count; /* number of elements of a part */
    bool           in_place, started;
    uint32_t       root;
    unsigned char *send, *recv;
} native_job;

/* Returns the address of this rank's part of `all`, a vector with the parts of all ranks. */
static unsigned char *own_part(lk_comm *comm, const native_job *j, unsigned char *all)
{
    return all + lk_comm_rank(comm) * j->count * lk_dtype_bytes(j->dtype);
}

/* Returns the address of the result of a job. */
static unsigned char *results(lk_comm *comm, const native_job *j)
{
    if (j->op == 5)
        return j->recv;
    if (!j->in_place)
        return j->recv;
    return j->op == 2 ? own_part(comm, j, j->send) : j->op == 3 ? j->recv : j->send;
}

static lk_status run_native(lk_comm *comm, const native_job *j)
{
    size_t         bytes   = j->count * lk_dtype_bytes(j->dtype);
    lk_request    *request = NULL;
    lk_status      st;
    unsigned char *send = j->in_place && j->op == 3 ? own_part(comm, j, j->recv) : j->send;
    unsigned char *recv = results(comm, j);

    switch (j->op) {
    case 0: RUN(j, lk_all_reduce, comm, send, recv, j->count, j->dtype, j->reduction); break;
    case 1:
        RUN(j, lk_reduce, comm, send, recv, j->count, j->dtype, j->reduction, j->root);
        break;
    case 2: RUN(j, lk_reduce_scatter, comm, send, recv, j->count, j->dtype, j->reduction); break;
    case 3: RUN(j, lk_all_gather, comm, send, recv, bytes); break;
    case 4: RUN(j, lk_all_to_all, comm, send, recv, bytes); break;
    default: RUN(j, lk_broadcast, comm, recv, bytes, j->root); break;
    }
    return st;
}

/* Writes 1, or 2 if `two`, to element `i`.  Sums and products of these numbers are exact in every
 * order. */
static void write_number(lk_dtype dtype, size_t i, bool two, unsigned char *to)
{
    size_t   width = lk_dtype_bytes(dtype);
    uint16_t half  = two ? 0x4000 : dtype == LK_F16 ? 0x3c00 : 0x3f80;
    uint64_t whole = two ? 2 : 1;
    float    f32   = (float)whole;
    double   f64   = (double)whole;

    memcpy(to + i * width, dtype == LK_F32                       ? (void *)&f32
                           : dtype == LK_F64                     ? (void *)&f64
                           : dtype == LK_F16 || dtype == LK_BF16 ? (void *)&half
                                                                 : (void *)&whole, width);
}

static void write_numbers(lk_comm *comm, const native_job *j, unsigned char *to)
{
    for (size_t i = 0; i < j->count * lk_comm_size(comm); i++)
        write_number(j->dtype, i, (i + i / 7 + lk_comm_rank(comm)) % 2 == 1, to);
}

/* Runs a job with Lockstep's algorithm and with MPI's, and compares every byte of the results. */
static bool agrees(lk_comm *comm, native_job j)
{
    size_t         all = j.count * lk_comm_size(comm) * lk_dtype_bytes(j.dtype);
    unsigned char *memory = calloc(4, all + 64);
    char           name[64];

    CHECK(memory != NULL);
    for (int k = 0; k < 2; k++) {
        j.send = memory + (size_t)k * 2 * (all + 64);
        j.recv = j.send + all + 64;
        write_numbers(comm, &j, j.send);
        if (j.op == 3 || j.op == 5)
            write_numbers(comm, &j, j.recv);
        (void)snprintf(name, sizeof name, "%s:native", native_ops[j.op]);
        CHECK(lk_comm_set_algorithms(comm, k == 0 ? NULL : name) == LK_OK);
        CHECK(run_native(comm, &j) == LK_OK);
    }
    if (memcmp(memory, memory + 2 * (all + 64), 2 * (all + 64)) != 0) {
        fprintf(stderr, "%s of %zu %s, reduction %d, in place %d\n", native_ops[j.op], j.count,
                lk_dtype_name(j.dtype), (int)j.reduction.kind, j.in_place);
        return false;
    }
    free(memory);
    return true;
}

/* Checks that the communicator reports a native algorithm if and only if one was requested
 * (`asked`). */
static bool is_labelled(lk_comm *comm, bool asked)
{
    lk_algorithm list[32];
    uint32_t     count, seen = 0;

    CHECK(lk_comm_set_algorithms(comm, asked ? "all_reduce:native" : NULL) == LK_OK);
    CHECK(lk_comm_explain(comm, "all_reduce", 4096, list, 32, &count) == LK_OK);
    for (uint32_t i = 0; i < count; i++) {
        bool native = strcmp(list[i].name, "native") == 0;
        CHECK(list[i].chosen == (native ? asked : list[i].chosen && !asked));
        CHECK(!native || !list[i].exact);
        seen += native;
    }
    CHECK(seen == 1);
    return true;
}

/* Starts many operations, and waits for them in a different order on every rank. */
static bool bursts(lk_comm *comm)
{
    lk_request *requests[BURST];
    uint32_t    rank = lk_comm_rank(comm), size = lk_comm_size(comm);
    float       data[BURST][100];

    CHECK(lk_comm_set_algorithms(comm, "all_reduce:native") == LK_OK);
    for (int k = 0; k < BURST; k++) {
        for (int i = 0; i < 100; i++)
            data[k][i] = (float)(k + 1);
        CHECK(lk_all_reduce_start(&requests[k], comm, data[k], data[k], 100, LK_F32, LK_SUM)
              == LK_OK);
    }
    for (uint32_t k = 0; k < BURST; k++) {
        uint32_t which = (k * (2 * rank + 5) + rank) % BURST; /* waits for some requests twice, for
                                                               * some never */
        CHECK(lk_request_wait(requests[which]) == LK_OK);
    }
    for (int k = 0; k < BURST; k++) {
        CHECK(lk_request_wait(requests[k]) == LK_OK);
        lk_request_free(requests[k]);
        CHECK(data[k][0] == (float)size * (float)(k + 1) && data[k][99] == data[k][0]);
    }
    return true;
}

static bool is_native(lk_comm *comm, uint32_t call_bytes)
{
    static const size_t sizes[] = { 0, 1, 129, NATIVE_MOST };
    uint32_t            turn    = 0;

    CHECK(is_labelled(comm, false) && is_labelled(comm, true));
    comm->self->tuning.segment_bytes = call_bytes;
    for (int op = 0; op < NATIVE_OPS; op++)
        for (int dtype = 0; dtype < (op < 3 ? PLAIN_DTYPES : 1); dtype++)
            for (int reduction = 0; reduction < (op < 3 ? 6 : 1); reduction++) {
                native_job j = { .op        = op,
                                 .dtype     = plain_dtypes[dtype],
                                 .reduction = reductions[reduction],
                                 .count     = sizes[turn % 4],
                                 .in_place  = turn / 4 % 2 == 1,
                                 .started   = turn / 3 % 2 == 1,
                                 .root      = turn % lk_comm_size(comm) };
                turn++;
                if (j.reduction.kind == LK_REDUCE_AVG && !plain_is_float(j.dtype))
                    continue;
                CHECK(agrees(comm, j));
                j.count    = NATIVE_MOST;
                j.in_place = !j.in_place;
                CHECK(agrees(comm, j));
            }
    return bursts(comm);
}

static bool differs(lk_comm *comm)
{
    float x[20] = { 0 };

    CHECK(lk_comm_set_algorithms(comm, "all_reduce:native") == LK_OK);
    lk_status st = lk_all_reduce(comm, x, x, 10 + (lk_comm_rank(comm) == 1), LK_F32, LK_SUM);
    CHECK(st == LK_EMISMATCH);
    CHECK(strstr(lk_error_last()->message, "all_reduce #") != NULL);
    CHECK(strstr(lk_error_last()->message, "10 elements") != NULL);
    CHECK(strstr(lk_error_last()->message, "11 elements") != NULL);
    return true;
}

static bool is_missed(lk_comm *comm)
{
    float x = 1;

    CHECK(lk_comm_set_algorithms(comm, "all_reduce:native") == LK_OK);
    CHECK(lk_barrier(comm) == LK_OK);
    lk_comm_set_timeout(comm, 500);
    if (lk_comm_rank(comm) == 1) {
        wait_for_marks(comm);
        return mark(comm);
    }
    lk_status st = lk_all_reduce(comm, &x, &x, 1, LK_F32, LK_SUM);
    CHECK(st == LK_ETIMEOUT || st == LK_EPEER);
    return mark(comm);
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

/* Checks that the library leaves MPI running, and can be used several times. */
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

/* Forbids opening rank 0's memory.  The user's privileges determine whether ranks then share
 * memory; in both cases all operations must work. */
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
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options), .timeout_ms = 250000 };
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
    if (strcmp(what, "native") == 0)
        return leaves(comm, is_native(comm, first));
    if (strcmp(what, "differ") == 0)
        return leaves(comm, differs(comm));
    if (strcmp(what, "absent") == 0)
        return leaves(comm, is_missed(comm));
    if (strcmp(what, "bits") == 0)
        return leaves(comm, has_the_bits_of_threads(comm));
    if (strcmp(what, "abort") == 0)
        return leaves(comm, gives_up(comm));
    if (strcmp(what, "cut") == 0)
        return is_cut_off(comm);
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
