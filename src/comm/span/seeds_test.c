/* seeds_test.c -- a thousand jobs, each with its own seed and fault.
 *
 * Goal:   with any fault between hosts, every rank receives the right data, or an error that names
 *         a rank, within its deadline.  No rank receives wrong data, and no resource leaks.
 * Method: a seed determines the number of ranks, the collectives and their algorithms, and the
 *         fault with its time and place.  Nine of ten jobs run over the simulation, in simulated
 *         time.  Its streams delay their data and overtake each other.  One of ten jobs runs over
 *         TCP, with connections from outside the job.  The test prints the number of jobs of each
 *         kind, and the seed of a job that fails.
 */
#include <dirent.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/thorough_testing.h"
#include "comm/hosted_testing.h"
#include "link/tcp.h"
#include "link/chaos.h"
#include "link/hello.h"
#include "link/wire/frame.h"

enum { RANKS_MOST = 4, OPS = 6, MOST = 40000, TIMEOUT_MS = 5000, SLACK_MS = 4000 };

typedef enum {
    NOTHING,      /* only delays, and streams that overtake each other */
    PARTIAL,      /* reads and writes that move one byte, or no byte */
    PAUSES,       /* streams that pause */
    BROKEN,       /* a connection is lost */
    CUT,          /* a connection is lost within a frame */
    HALF_OPEN,    /* a stream discards all writes and delivers nothing */
    DAMAGED,      /* a bit of a byte is flipped */
    GARBAGE,      /* bytes arrive that no rank has sent */
    OVERSIZED,    /* a frame that is too long, with an otherwise valid header */
    HOST_LOST,    /* a rank dies, with all data in flight */
    RANK_LEAVES,  /* a rank leaves before the other ranks have received its data */
    RANK_GIVES_UP,
    AT_THE_DOOR,  /* this fault and all below use TCP */
    DOOR_GARBAGE = AT_THE_DOOR,
    DOOR_OVERSIZED, /* a hello without an end */
    DOOR_CUT,       /* a hello that is cut off in the middle */
    DOOR_HALF_OPEN, /* an incomplete hello on a connection that stays open */
    DOOR_OLD_EPOCH, /* a hello from a worker of an older epoch */
    DOOR_KEY,       /* a hello from a worker with another key */
    FAULTS
} fault;

static const char *const fault_names[FAULTS] = {
    "delays and reordering", "partial reads and writes", "pauses", "a connection lost",
    "a frame cut", "half-open streams", "damaged bytes", "garbage", "oversized frames",
    "a host lost", "a rank leaves", "a rank gives up", "garbage at the door",
    "an oversized hello", "a hello cut", "a half-open connection", "an old epoch's worker",
    "a wrong key",
};

static bool is_harmless(fault f)
{
    return f <= PAUSES || f >= AT_THE_DOOR;
}

typedef struct {
    uint64_t        seed;
    fault           what;
    uint32_t        ranks, victim, at; /* `at`: number of the operation before which the fault
                                        * happens */
    lki_sim        *sim;
    _Atomic uint32_t failed;
} job;

static uint64_t dice(uint64_t seed, uint64_t what, uint64_t below)
{
    const uint64_t words[2] = { seed, what };
    return lki_xxh3(words, sizeof words) % below;
}

/* ---- Collectives, with data that tell right from wrong ------------------------------------ */

static uint32_t value(uint64_t seed, uint32_t op, uint32_t rank, size_t i)
{
    return (uint32_t)(seed * 31 + op * 7 + rank * 1000003 + i * 2654435761u);
}

static size_t count_of(const job *j, uint32_t op)
{
    static const size_t some[] = { 0, 1, 70, 3000, 17000, MOST };
    return some[dice(j->seed, 100 + op, 6)] / (j->ranks + 1);
}

static lk_status reduce_all(lk_comm *comm, const job *j, uint32_t op, uint32_t *data, bool *right)
{
    size_t   count = count_of(j, op);
    uint32_t want;

    for (size_t i = 0; i < count; i++)
        data[i] = value(j->seed, op, lk_comm_rank(comm), i);
    LK_TRY(lk_all_reduce(comm, data, data, count, LK_U32, LK_SUM));
    for (size_t i = 0; i < count; i++) {
        want = 0;
        for (uint32_t r = 0; r < j->ranks; r++)
            want += value(j->seed, op, r, i);
        *right = *right && data[i] == want;
    }
    return LK_OK;
}

static lk_status gather_all(lk_comm *comm, const job *j, uint32_t op, uint32_t *data, bool *right)
{
    size_t   count = count_of(j, op);
    uint32_t me = lk_comm_rank(comm);

    for (size_t i = 0; i < count; i++)
        data[me * count + i] = value(j->seed, op, me, i);
    LK_TRY(lk_all_gather(comm, data + me * count, data, count * sizeof *data));
    for (uint32_t r = 0; r < j->ranks; r++)
        for (size_t i = 0; i < count; i++)
            *right = *right && data[r * count + i] == value(j->seed, op, r, i);
    return LK_OK;
}

static lk_status broadcast(lk_comm *comm, const job *j, uint32_t op, uint32_t *data, bool *right)
{
    size_t   count = count_of(j, op);
    uint32_t root  = (uint32_t)dice(j->seed, 200 + op, j->ranks);

    for (size_t i = 0; i < count; i++)
        data[i] = lk_comm_rank(comm) == root ? value(j->seed, op, root, i) : 0;
    LK_TRY(lk_broadcast(comm, data, count * sizeof *data, root));
    for (size_t i = 0; i < count; i++)
        *right = *right && data[i] == value(j->seed, op, root, i);
    return LK_OK;
}

static lk_status reduce_parts(lk_comm *comm, const job *j, uint32_t op, uint32_t *data,
                              bool *right)
{
    size_t   count = count_of(j, op);
    uint32_t me    = lk_comm_rank(comm);

    for (size_t i = 0; i < count * j->ranks; i++)
        data[i] = value(j->seed, op, me, i);
    LK_TRY(lk_reduce_scatter(comm, data, data + me * count, count, LK_U32, LK_SUM));
    for (size_t i = 0; i < count; i++) {
        uint32_t want = 0;
        for (uint32_t r = 0; r < j->ranks; r++)
            want += value(j->seed, op, r, me * count + i);
        *right = *right && data[me * count + i] == want;
    }
    return LK_OK;
}

static lk_status do_op(lk_comm *comm, const job *j, uint32_t op, uint32_t *data, bool *right)
{
    switch (dice(j->seed, 300 + op, 5)) {
    case 0: return lk_barrier(comm);
    case 1: return gather_all(comm, j, op, data, right);
    case 2: return broadcast(comm, j, op, data, right);
    case 3: return reduce_parts(comm, j, op, data, right);
    default: return reduce_all(comm, j, op, data, right);
    }
}

/* ---- A rank ------------------------------------------------------------------------------- */

/* Applies the fault if its time has come.  Returns false if this rank stops here. */
static bool meets_its_fate(lk_comm *comm, const job *j, uint32_t op)
{
    if (lk_comm_rank(comm) != j->victim || op != j->at)
        return true;
    if (j->what == HOST_LOST)
        lki_sim_kill(j->sim, j->victim);
    if (j->what == RANK_GIVES_UP)
        lk_comm_abort(comm);
    return j->what != RANK_LEAVES;
}

static bool is_named(const lk_error *error, fault what)
{
    bool status = error->status == LK_EPEER || error->status == LK_ETIMEOUT
                  || (error->status == LK_EMISMATCH && what >= DAMAGED)
                  || (error->status == LK_EIO && what == HOST_LOST); /* the lost rank's own error */
    return status && strstr(error->message, "rank ") != NULL;
}

static bool run_operations(lk_comm *comm, void *context)
{
    job      *j     = context;
    uint32_t *data  = malloc(MOST * sizeof *data);
    int64_t   began = lki_wire_now_ms(comm->self->wire);
    bool      right = true;
    lk_status st    = LK_OK;

    CHECK(data != NULL);
    for (uint32_t op = 0; op < OPS && st == LK_OK && meets_its_fate(comm, j, op); op++)
        st = do_op(comm, j, op, data, &right);
    if (st == LK_OK && j->what < AT_THE_DOOR) /* the rank leaves after its peers have received the
                                               * data that it sent */
        st = lk_comm_rank(comm) == j->victim && j->what == RANK_LEAVES ? LK_OK : lk_barrier(comm);
    free(data);
    CHECK(right);
    if (st == LK_OK)
        return true;
    (void)atomic_fetch_add(&j->failed, 1);
    CHECK(is_named(lk_error_last(), j->what));
    if (j->what < AT_THE_DOOR)
        CHECK(lki_wire_now_ms(comm->self->wire) - began <= OPS * TIMEOUT_MS + SLACK_MS);
    return !is_harmless(j->what);
}

/* ---- Over the simulation ------------------------------------------------------------------ */

static unsigned char too_long[LKI_FRAME_BYTES], noise[64];

static lki_chaos chaos_of(const job *j, uint32_t rank)
{
    lki_chaos c   = { .seed = j->seed * 8 + rank };
    uint64_t  nth = 1 + dice(j->seed, 1, j->at == 0 ? 8 : 120);

    if (j->what == PARTIAL || j->what == CUT) {
        c.split  = j->seed % 4 == 0 ? 200 : 20;
        c.refuse = 10;
    }
    if (j->what == PAUSES) {
        c.pause    = 3;
        c.pause_ms = 40;
    }
    if (rank != j->victim)
        return c;
    c.break_nth    = j->what == BROKEN || j->what == CUT ? nth : 0;
    c.silence_nth  = j->what == HALF_OPEN ? nth : 0;
    c.damage_nth   = j->what == DAMAGED ? 1 + dice(j->seed, 2, 5000) : 0;
    c.insert_nth   = j->what == GARBAGE || j->what == OVERSIZED ? nth : 0;
    c.insert       = j->what == GARBAGE ? noise : too_long;
    c.insert_bytes = j->what == GARBAGE ? 1 + j->seed % sizeof noise : sizeof too_long;
    return c;
}

static const char *algorithms_of(uint64_t seed)
{
    static const char *const some[] = {
        NULL, "all_reduce:direct,broadcast:tree", "all_reduce:ring,all_gather:ring",
        "all_reduce:halving", "all_reduce:tree,broadcast:linear", "all_reduce:double_tree",
        "reduce_scatter:ring",
    };
    return some[dice(seed, 3, sizeof some / sizeof some[0])];
}

static uint32_t run_simulated(job *j)
{
    lki_link       *links[RANKS_MOST];
    lki_sim_options options = { .mode = LKI_SIM_BATON, .ranks = j->ranks,
                                .streams = 1 + (uint32_t)dice(j->seed, 4, 3), .seed = j->seed };
    hosted h = { .hosts = j->ranks, .each = 1, .timeout_ms = TIMEOUT_MS, .links = links,
                 .algorithms = algorithms_of(j->seed), .quarrels = !is_harmless(j->what) };

    assert_int_equal(lki_sim_new(&j->sim, &options), LK_OK);
    for (uint32_t rank = 0; rank < j->ranks; rank++) {
        lki_chaos chaos = chaos_of(j, rank);
        assert_int_equal(lki_chaos_open(&links[rank], lki_sim_link(j->sim, rank), &chaos), LK_OK);
    }
    uint32_t satisfied = hosted_run(h, run_operations, j);
    lki_sim_free(j->sim);
    return satisfied;
}

/* ---- Over TCP, with strangers at the door ------------------------------------------------- */

static const unsigned char key[LKI_KEY_BYTES] = "known to all ranks of a job";
static const unsigned char other[LKI_KEY_BYTES] = "guessed";

enum { EPOCH = 5 };

/* The addresses of all ranks.  They are copies, because a rank may try to connect to a rank that
 * has closed its link. */
typedef struct {
    lki_link *links[RANKS_MOST];
    char      addresses[RANKS_MOST][LKI_ADDRESS_BYTES];
} network;

static const char *address_of(void *context, uint32_t rank)
{
    return ((const network *)context)->addresses[rank];
}

static lki_link *open_door(network *net, const job *j, uint32_t rank, bool stranger)
{
    bool            secure = j->what == DOOR_KEY || j->seed % 4 == 1;
    lki_tcp_options o      = { .rank = rank, .ranks = j->ranks, .streams = 2, .job = { 1, 2, 3 },
                               .epoch = stranger && j->what == DOOR_OLD_EPOCH ? EPOCH - 1 : EPOCH,
                               .key  = !secure ? NULL : stranger && j->what == DOOR_KEY ? other
                                                                                        : key,
                               .host = "127.0.0.1", .address_of = address_of, .context = net };
    lki_link *link;
    assert_int_equal(lki_tcp_open(&link, &o), LK_OK);
    return link;
}

static int stranger_at(const char *where)
{
    lki_address address;
    assert_int_equal(lki_address_parse(&address, where), LK_OK);
    int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address.storage, address.bytes), 0);
    return fd;
}

/* Connects to rank 1 and sends bytes that are not a hello.  Keeps the connection open unless the
 * fault cuts it. */
static int come_with_words(const job *j, const char *where)
{
    int  fd = stranger_at(where);
    char words[400];

    memset(words, 'a', sizeof words);
    memcpy(words, "lockstep:", 9);
    if (j->what == DOOR_GARBAGE)
        memcpy(words, noise, sizeof noise);
    size_t bytes = j->what == DOOR_GARBAGE ? 1 + j->seed % sizeof noise
                   : j->what == DOOR_OVERSIZED ? sizeof words : 1 + j->seed % 30;
    assert_int_equal(send(fd, words, bytes, MSG_NOSIGNAL), bytes);
    if (j->what == DOOR_CUT)
        (void)shutdown(fd, SHUT_WR);
    return fd;
}

/* A worker without a job, or of another job, that tries to write to rank 1 until it is refused or
 * the job ends. */
typedef struct {
    lki_link    *link;
    _Atomic bool over;
    bool         was_let_in;
} intruder;

static void *intrude(void *context)
{
    intruder    *in   = context;
    struct iovec word = { (char[]){ "let me in" }, 9 };
    size_t       moved = 0, read;
    char         got;

    while (!atomic_load(&in->over)
           && in->link->ops->write(in->link, 1, 0, &word, 1, &moved) == LK_OK) {
        lki_ready ready[8];
        uint32_t  count;
        if (in->link->ops->wait(in->link, 5, ready, 8, &count) != LK_OK
            || in->link->ops->read(in->link, 1, 0, &got, 1, &read) != LK_OK)
            break;
    }
    in->was_let_in = moved > 0;
    return NULL;
}

static uint32_t run_with_strangers(job *j)
{
    network   net = { .links = { NULL } };
    hosted    h   = { .hosts = j->ranks, .each = 1, .timeout_ms = 60000, .links = net.links,
                      .algorithms = algorithms_of(j->seed) };
    intruder  in  = { .link = NULL };
    pthread_t thread;
    int       fd = -1;
    char      answer = 1;

    for (uint32_t rank = 0; rank < j->ranks; rank++) {
        net.links[rank] = open_door(&net, j, rank, false);
        (void)snprintf(net.addresses[rank], LKI_ADDRESS_BYTES, "%s",
                       lki_tcp_address(net.links[rank]));
    }
    if (j->what >= DOOR_OLD_EPOCH) {
        in.link = open_door(&net, j, 0, true);
        assert_int_equal(pthread_create(&thread, NULL, intrude, &in), 0);
    } else {
        fd = come_with_words(j, net.addresses[1]);
    }
    uint32_t satisfied = hosted_run(h, run_operations, j);
    atomic_store(&in.over, true);
    if (fd >= 0) {
        (void)!recv(fd, &answer, 1, MSG_DONTWAIT);
        (void)close(fd);
    } else {
        (void)pthread_join(thread, NULL);
        in.link->ops->close(in.link);
    }
    assert_true(answer != LKI_WELCOME && !in.was_let_in);
    return satisfied;
}

/* ---- All jobs ----------------------------------------------------------------------------- */

static job job_of(uint64_t seed)
{
    bool door = seed % 10 == 9;
    job  j    = { .seed = seed, .ranks = 2 + (uint32_t)dice(seed, 5, RANKS_MOST - 1) };

    j.what   = door ? AT_THE_DOOR + (fault)(seed / 10 % (FAULTS - AT_THE_DOOR))
                    : (fault)((seed - seed / 10) % AT_THE_DOOR);
    j.victim = (uint32_t)dice(seed, 6, j.ranks);
    j.at     = (uint32_t)dice(seed, 7, OPS);
    return j;
}

static uint32_t descriptors(void)
{
    uint32_t count  = 0;
    DIR     *folder = opendir("/proc/self/fd");

    while (readdir(folder) != NULL)
        count++;
    (void)closedir(folder);
    return count;
}

static void random_faults_give_correct_data_or_an_error(void **state)
{
    uint32_t  runs[FAULTS] = { 0 }, failed[FAULTS] = { 0 }, before = 0, all = 0;
    size_t    bytes = 0;
    lki_frame huge  = { .kind = LKI_FRAME_EAGER, .bytes = UINT32_MAX, .total = UINT32_MAX };
    const uint64_t wanted = lki_brief() ? 400 : 1000;

    (void)state;
    lki_frame_encode(too_long, &huge);
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (unsigned char)(1 + dice(i, 8, 255));
    for (uint64_t seed = 0; seed < wanted; seed++) {
        job      j         = job_of(seed);
        uint32_t satisfied = j.what < AT_THE_DOOR ? run_simulated(&j) : run_with_strangers(&j);
        if (satisfied != j.ranks)
            fail_msg("seed %llu, %s: %u of %u ranks end as they should", (unsigned long long)seed,
                     fault_names[j.what], satisfied, j.ranks);
        runs[j.what]++;
        failed[j.what] += atomic_load(&j.failed) > 0;
        all++;
        if (seed == 99) { /* by now all objects that exist once per process have been created */
            before = descriptors();
            bytes  = mallinfo2().uordblks;
        }
    }
    for (uint32_t f = 0; f < FAULTS; f++) {
        print_message("%4u runs with %-26s %4u of them failed\n", runs[f], fault_names[f],
                      failed[f]);
        assert_true(runs[f] > 5 && (is_harmless((fault)f) ? failed[f] == 0 : failed[f] > 0));
    }
    print_message("%4u runs in all\n", all);
    assert_int_equal(all, wanted);
    assert_int_equal(descriptors(), before);
    assert_in_range(mallinfo2().uordblks, 0, bytes + 256 * wanted); /* malloc keeps some memory */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_faults_give_correct_data_or_an_error),
    };
    return cmocka_run_group_tests_name("comm.span.seeds", tests, NULL, NULL);
}
