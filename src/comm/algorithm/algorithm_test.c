/* algorithm_test.c -- every algorithm over messages: equal bits, and the predicted bytes.
 *
 * Goal:    with every exact algorithm, number of ranks and division of the vector, a reduction has
 *          the same bits; inputs include NaN, infinities and zeros of both signs.  The bytes that
 *          the wire counts as sent are those of the formulas.  Ranks that select different
 *          algorithms get an error.
 * Method:  hosted_testing.h with one rank per host; results are compared as hashes of all bytes.
 * Control: the ring differs for sums of floats from 3 ranks on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/sanitized_testing.h"
#include "base/thorough_testing.h"
#include "comm/hosted_testing.h"
#include "device/combine.h"
#include "device/plain_testing.h"

static const uint32_t sizes[] = { 1, 2, 3, 5, 8, 4, 6, 7, 9, 13, 16, 24, 32 };
enum { LARGE_SIZE = 8 }; /* from this number of ranks on, most algorithms are tested only with
                          * LK_THOROUGH=1 */
enum { SIZES = LKI_SANITIZED ? 5 : sizeof sizes / sizeof sizes[0] };
enum { MOST = 5003 };

typedef struct {
    lk_dtype     dtype;
    lk_reduce_op op;
    size_t       count;
} sum_kind;

static const sum_kind sums[] = {
    { LK_F32, { LK_REDUCE_SUM, 1 }, MOST },    { LK_BF16, { LK_REDUCE_AVG, 1 }, MOST },
    { LK_F64, { LK_REDUCE_PRODUCT, 1 }, 601 }, { LK_F16, { LK_REDUCE_PREMUL_SUM, -3 }, 1000 },
    { LK_F32, { LK_REDUCE_MIN, 1 }, 100 },     { LK_I8, { LK_REDUCE_SUM, 1 }, 7 },
    { LK_BF16, { LK_REDUCE_SUM, 1 }, 1 },      { LK_U64, { LK_REDUCE_MAX, 1 }, 33 },
};
enum { SUMS = sizeof sums / sizeof sums[0] };

/* The hashes of an all_reduce, of a reduce to a rank in the middle, and of each part of a
 * reduce_scatter. */
typedef struct {
    uint64_t all[HOSTED_MAX][3]; /* [rank]: hashes of the all_reduce, the reduce and the
                                  * reduce_scatter */
} hashes;

static bool sums_once(lk_comm *comm, const sum_kind *k, hashes *h, unsigned char *send,
                      unsigned char *recv)
{
    uint32_t me = lk_comm_rank(comm), size = lk_comm_size(comm), root = size / 2;
    size_t   width = lk_dtype_bytes(k->dtype), each = k->count / size;

    plain_fill(k->dtype, send, k->count, me + 100 * size);
    CHECK(lk_all_reduce(comm, send, recv, k->count, k->dtype, k->op) == LK_OK);
    h->all[me][0] ^= lki_xxh3(recv, k->count * width);
    CHECK(lk_reduce(comm, send, recv, k->count, k->dtype, k->op, root) == LK_OK);
    h->all[me][1] ^= me == root ? lki_xxh3(recv, k->count * width) : 0;
    CHECK(lk_reduce_scatter(comm, send, recv, each, k->dtype, k->op) == LK_OK);
    h->all[me][2] ^= lki_xxh3(recv, each * width);
    return true;
}

static bool sums_all(lk_comm *comm, void *context)
{
    unsigned char *send = malloc(MOST * 8), *recv = malloc(MOST * 8);
    bool           good = send != NULL && recv != NULL;

    for (size_t k = 0; k < SUMS && good; k++)
        good = sums_once(comm, &sums[k], context, send, recv);
    free(send);
    free(recv);
    return good;
}

/* Computes the expected hashes.  Uses lki_combine() over the vectors of all ranks at once. */
static void expect(hashes *h, uint32_t size)
{
    unsigned char *all[HOSTED_MAX], *out = malloc(MOST * 8);
    const void    *from[HOSTED_MAX];

    for (uint32_t rank = 0; rank < size; rank++)
        from[rank] = all[rank] = malloc(MOST * 8);
    for (size_t k = 0; k < SUMS; k++) {
        size_t width = lk_dtype_bytes(sums[k].dtype), each = sums[k].count / size;
        for (uint32_t rank = 0; rank < size; rank++)
            plain_fill(sums[k].dtype, all[rank], sums[k].count, rank + 100 * size);
        lki_combine(sums[k].dtype, sums[k].op, size, from, sums[k].count, out);
        h->all[size / 2][1] ^= lki_xxh3(out, sums[k].count * width);
        for (uint32_t rank = 0; rank < size; rank++) {
            h->all[rank][0] ^= lki_xxh3(out, sums[k].count * width);
            h->all[rank][2] ^= lki_xxh3(out + rank * each * width, each * width);
        }
    }
    for (uint32_t rank = 0; rank < size; rank++)
        free(all[rank]);
    free(out);
}

static void every_exact_algorithm_has_the_same_bits(void **state)
{
    static const char *const algorithms[] = {
        NULL,
        "all_reduce:direct,reduce:direct,reduce_scatter:direct",
        "all_reduce:linear,reduce:linear",
        "all_reduce:tree,reduce:tree",
        "all_reduce:double_tree",
        "all_reduce:halving",
    };
    static const size_t segments[] = { 0, 4096, 1000 };
    const size_t        count      = lki_brief() && !LKI_SANITIZED ? SIZES - 2 : SIZES;
    uint32_t            turn       = 0;

    (void)state;
    for (size_t n = 0; n < count; n++) {
        hashes want = { 0 };
        expect(&want, sizes[n]);
        for (size_t a = 0; a < sizeof algorithms / sizeof algorithms[0]; a++, turn++) {
            bool some = sizes[n] > LARGE_SIZE || lki_brief();
            if (some && (a + n) % 3 != 0 && !lki_thorough())
                continue;
            hashes got = { 0 };
            hosted h   = { .hosts = sizes[n], .each = 1, .seed = turn,
                           .algorithms    = algorithms[a],
                           .segment_bytes = segments[sizes[n] > 9 ? 0 : turn % 3] };
            assert_true(hosted_all(h, sums_all, &got));
            assert_memory_equal(&got, &want, sizeof got);
        }
    }
}

/* Checks hosts with several ranks, where the algorithm `levels` first sums on each host. */
static void levels_have_the_same_bits(void **state)
{
    static const uint32_t shapes[][2] = { { 2, 2 }, { 3, 2 }, { 2, 4 }, { 3, 4 }, { 5, 2 } };

    (void)state;
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k += lki_brief() ? 2 : 1)
        for (int cut = 0; cut < 2; cut++) {
            hashes want = { 0 }, got = { 0 };
            hosted h = { .hosts = shapes[k][0], .each = shapes[k][1],
                         .algorithms    = "all_reduce:levels,reduce_scatter:levels",
                         .segment_bytes = cut == 0 ? 0 : 4096 };
            expect(&want, hosted_size(h));
            assert_true(hosted_all(h, sums_all, &got));
            assert_memory_equal(&got, &want, sizeof got);
        }
}

static void the_ring_has_other_bits_than_the_tree(void **state)
{
    (void)state;
    for (uint32_t size = 3; size <= (lki_brief() ? 3 : 9); size += 3) {
        hashes want = { 0 }, got = { 0 };
        hosted h = { .hosts = size, .each = 1, .algorithms = "all_reduce:ring" };
        expect(&want, size);
        assert_true(hosted_all(h, sums_all, &got));
        assert_int_not_equal(got.all[0][0], want.all[0][0]);
        for (uint32_t rank = 0; rank < size; rank++) { /* all ranks must have the same result, even
                                                        * if it is not exact */
            assert_int_equal(got.all[rank][0], got.all[0][0]);
            assert_int_equal(got.all[rank][2], want.all[rank][2]);
        }
    }
}

/* ---- Bytes ------------------------------------------------------------------------------- */

typedef enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER } what;

typedef struct {
    const char *algorithm;
    what        what;
    lk_dtype    dtype;
    size_t      each, bytes; /* elements per slice; bytes that each rank must send */
} budget;

static bool sends(lk_comm *comm, void *context)
{
    const budget *b     = context;
    size_t        total = b->each * lk_comm_size(comm), width = lk_dtype_bytes(b->dtype);
    void         *send = calloc(total, width), *recv = calloc(total, width);
    uint64_t      before = lki_wire_count(comm->self->wire).bytes_sent;
    lk_status     st;

    CHECK(send != NULL && recv != NULL);
    if (b->what == ALL_REDUCE)
        st = lk_all_reduce(comm, send, recv, total, b->dtype, LK_SUM);
    else if (b->what == REDUCE_SCATTER)
        st = lk_reduce_scatter(comm, send, recv, b->each, b->dtype, LK_SUM);
    else
        st = lk_all_gather(comm, send, recv, b->each * width);
    uint64_t sent = lki_wire_count(comm->self->wire).bytes_sent - before;
    free(send);
    free(recv);
    CHECK(st == LK_OK);
    if (sent != b->bytes)
        fprintf(stderr, "%s: %llu bytes, not %zu\n", b->algorithm, (unsigned long long)sent,
                b->bytes);
    CHECK(sent == b->bytes);
    return true;
}

static void check_budget(uint32_t size, budget b)
{
    hosted h = { .hosts = size, .each = 1, .algorithms = b.algorithm,
                 .segment_bytes = (size_t)size << 16 }; /* a multiple of `size`, so that all ranks
                                                         * have equal parts */
    assert_true(hosted_all(h, sends, &b));
}

/* Sends small and large messages, in one segment and in several. */
static void bytes_sent_are_those_of_the_formulas(void **state)
{
    static const uint32_t some[] = { 1, 2, 3, 4, 7, 8 };
    (void)state;
    for (size_t k = 0; k < (LKI_SANITIZED ? 4 : sizeof some / sizeof some[0]); k++) {
        uint32_t N = some[k];
        for (size_t each = 64; each <= 32768 * 2; each *= 1024) {
            size_t half = (N - 1) * each;
            check_budget(N, (budget){ "all_reduce:direct", ALL_REDUCE, LK_F32, each, 8 * half });
            check_budget(N, (budget){ "all_reduce:direct", ALL_REDUCE, LK_BF16, each, 4 * half });
            check_budget(N, (budget){ "all_reduce:ring", ALL_REDUCE, LK_F32, each, 8 * half });
            if (N > 1) /* partial sums are sent as FP32 after the first hop */
                check_budget(N, (budget){ "all_reduce:ring", ALL_REDUCE, LK_F16, each,
                                          2 * each + 4 * (N - 2) * each + 2 * half });
            check_budget(N, (budget){ "reduce_scatter:direct", REDUCE_SCATTER, LK_BF16, each,
                                      2 * half });
            check_budget(N, (budget){ "all_gather:direct", ALL_GATHER, LK_U8, each, half });
            check_budget(N, (budget){ "all_gather:ring", ALL_GATHER, LK_U8, each, half });
            if ((N & (N - 1)) == 0 && N > 1) /* partial sums are sent as FP32 after the first round
                                              * of halving */
                check_budget(N, (budget){ "all_reduce:halving", ALL_REDUCE, LK_BF16, each,
                                          N * each + 4 * (N / 2 * each - each) + 2 * half });
        }
    }
}

/* ---- Bytes of all ranks ------------------------------------------------------------------ */

typedef enum { REDUCES, REDUCES_PARTS, GATHERS_PARTS, SPREADS } duty;

/* `count` elements in total, divided in any way, and the bytes that all ranks together must
 * send. */
typedef struct {
    const char      *algorithm;
    duty             what;
    lk_dtype         dtype;
    size_t           count;
    _Atomic uint64_t sent;
} sum;

static lk_status do_duty(lk_comm *comm, const sum *b, void *send, void *recv)
{
    size_t   shares[HOSTED_MAX], width = lk_dtype_bytes(b->dtype);
    uint32_t size = lk_comm_size(comm);

    for (uint32_t r = 0; r < size; r++) /* parts of very different sizes */
        shares[r] = b->count * (r + 1) * (r + 1) / size / size - b->count * r * r / size / size;
    if (b->what == REDUCES)
        return lk_all_reduce(comm, send, recv, b->count, b->dtype, LK_SUM);
    if (b->what == SPREADS)
        return lk_broadcast(comm, recv, b->count * width, size - 1);
    if (b->what == REDUCES_PARTS)
        return b->count % size == 0
                   ? lk_reduce_scatter(comm, send, recv, b->count / size, b->dtype, LK_SUM)
                   : lk_reduce_scatter_v(comm, send, recv, shares, b->dtype, LK_SUM);
    for (uint32_t r = 0; r < size; r++)
        shares[r] *= width;
    return b->count % size == 0 ? lk_all_gather(comm, send, recv, b->count / size * width)
                                : lk_all_gather_v(comm, send, recv, shares);
}

static bool sends_its_part(lk_comm *comm, void *context)
{
    sum      *b    = context;
    void     *send = calloc(b->count + 1, 8), *recv = calloc(b->count + 1, 8);
    uint64_t  before = lki_wire_count(comm->self->wire).bytes_sent;

    CHECK(send != NULL && recv != NULL);
    lk_status st = do_duty(comm, b, send, recv);
    (void)atomic_fetch_add(&b->sent, lki_wire_count(comm->self->wire).bytes_sent - before);
    free(send);
    free(recv);
    CHECK(st == LK_OK);
    return true;
}

static void check_sum(hosted h, const char *algorithm, duty asked, lk_dtype dtype, size_t count,
                      uint64_t bytes)
{
    sum b        = { .algorithm = algorithm, .what = asked, .dtype = dtype, .count = count };
    h.algorithms = algorithm;
    assert_true(hosted_all(h, sends_its_part, &b));
    if (atomic_load(&b.sent) != bytes)
        fail_msg("%s of %zu elements, %u hosts of %u: %llu bytes, not %llu", algorithm, count,
                 h.hosts, h.each, (unsigned long long)atomic_load(&b.sent),
                 (unsigned long long)bytes);
}

static const size_t uneven[] = { 0, 1, 5, 1000, 70001 };

/* Divides the vector unevenly.  Expects that each rank sends exactly (N-1)/N, or exactly 2 (N-1)/N,
 * of the vector. */
static void uneven_vectors_send_no_more(void **state)
{
    (void)state;
    for (uint32_t N = 2; N <= 7; N += N < 3 ? 1 : 4)
        for (size_t k = 0; k < sizeof uneven / sizeof uneven[0]; k++) {
            hosted   h = { .hosts = N, .each = 1 };
            size_t   n = uneven[k], even = n - n % N, odd = n + (n % N == 0);
            uint64_t all = (uint64_t)(N - 1) * n, others = N - 1;
            check_sum(h, "all_reduce:direct", REDUCES, LK_F32, n, 2 * all * 4);
            check_sum(h, "all_reduce:direct", REDUCES, LK_BF16, n, 2 * all * 2);
            check_sum(h, "all_reduce:ring", REDUCES, LK_F32, n, 2 * all * 4);
            check_sum(h, "reduce_scatter_v:direct", REDUCES_PARTS, LK_F32, odd, others * odd * 4);
            check_sum(h, "reduce_scatter:ring", REDUCES_PARTS, LK_F64, even, others * even * 8);
            check_sum(h, "all_gather_v:direct", GATHERS_PARTS, LK_U8, odd, others * odd);
            check_sum(h, "all_gather:ring", GATHERS_PARTS, LK_U8, even, others * even);
        }
}

/* Expects that H hosts with several ranks exchange as many bytes as H hosts with one rank each. */
static void levels_cross_hosts_once(void **state)
{
    static const hosted shapes[] = { { .hosts = 2, .each = 2 },
                                     { .hosts = 2, .each = 4 },
                                     { .hosts = 3, .each = 2 },
                                     { .hosts = 4, .each = 2 } };
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (size_t k = 0; k < sizeof uneven / sizeof uneven[0]; k++) {
            hosted   h = shapes[s];
            size_t   n = uneven[k], even = n - n % (h.hosts * h.each);
            uint64_t others = h.hosts - 1, all = others * n;
            if (h.hosts == 2 || n > 1000) { /* otherwise a tree is used between hosts, with fewer
                                             * rounds and more bytes */
                check_sum(h, "all_reduce:levels", REDUCES, LK_F32, n, 2 * all * 4);
                check_sum(h, "all_reduce:levels", REDUCES, LK_BF16, n, 2 * all * 4); /* sent as
                                                                                      * FP32 */
            }
            check_sum(h, "reduce_scatter:levels", REDUCES_PARTS, LK_F32, even, others * even * 4);
            check_sum(h, "all_gather:levels", GATHERS_PARTS, LK_U8, even, others * even);
            check_sum(h, "broadcast:levels", SPREADS, LK_U8, n, all);
        }
}

/* ---- Groups ------------------------------------------------------------------------------ */

static bool explains_levels(const lk_comm *comm)
{
    lk_algorithm list[16];
    uint32_t     count;

    if (lk_comm_explain(comm, "all_reduce", 1 << 20, list, 16, &count) != LK_OK)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(list[i].name, "levels") == 0)
            return true;
    return false;
}

/* Sums whole numbers, in a group that contains this rank. */
static bool sums_in_group(lk_comm *comm, size_t count, sum *b)
{
    float   *data = malloc(count * sizeof *data);
    uint32_t size = lk_comm_size(comm);
    float    ranks = 0;

    CHECK(data != NULL);
    for (uint32_t r = 0; r < size; r++)
        ranks += (float)lk_comm_world_rank(comm, r);
    for (size_t i = 0; i < count; i++)
        data[i] = (float)(lk_comm_world_rank(comm, lk_comm_rank(comm)) + i % 100);
    uint64_t  before = lki_wire_count(comm->self->wire).bytes_sent;
    lk_status st     = lk_all_reduce(comm, data, data, count, LK_F32, LK_SUM);
    (void)atomic_fetch_add(&b->sent, lki_wire_count(comm->self->wire).bytes_sent - before);
    CHECK(st == LK_OK);
    for (size_t i = 0; i < count; i++)
        CHECK(data[i] == ranks + (float)(size * (i % 100)));
    free(data);
    return true;
}

/* Creates two groups on two hosts: every second rank, and then most ranks, unevenly.  Checks the
 * sums in both groups. */
static bool groups_have_levels(lk_comm *comm, void *context)
{
    static const uint32_t list[] = { 0, 1, 2, 4 };
    sum                  *b      = context;
    uint32_t              me     = lk_comm_rank(comm), each = lk_comm_local_size(comm, 0);
    lk_comm              *part, *uneven_part;

    CHECK(lk_comm_split(&part, comm, me % 2, 0) == LK_OK);
    CHECK(lk_comm_hosts(part) == lk_comm_hosts(comm) && lk_comm_local_size(part, 0) == each / 2);
    CHECK(explains_levels(part));
    CHECK(lk_comm_set_algorithms(part, "all_reduce:levels") == LK_OK);
    if (!sums_in_group(part, b->count, b))
        return false;
    CHECK(lk_comm_subset(&uneven_part, comm, list, 4) == LK_OK);
    if (uneven_part != NULL) {
        CHECK(!explains_levels(uneven_part));
        CHECK(lk_comm_set_algorithms(uneven_part, "all_reduce:levels") == LK_EINVAL);
        CHECK(strstr(lk_error_last()->message, "where hosts do not have equally many") != NULL);
    }
    lk_comm_free(uneven_part);
    lk_comm_free(part);
    return true;
}

static void groups_over_hosts_have_levels(void **state)
{
    (void)state;
    for (uint32_t hosts = 2; hosts <= (LKI_SANITIZED ? 2 : 4); hosts += 2)
        for (size_t count = 70001; count <= 2500000; count *= 20) { /* the larger count is sent in
                                                                     * several parts */
            sum    b = { .count = count };
            hosted h = { .hosts = hosts, .each = 4 };
            assert_true(hosted_all(h, groups_have_levels, &b));
            assert_int_equal(atomic_load(&b.sent), 2 * 2 * (hosts - 1) * count * sizeof(float));
        }
}

/* ---- Options ----------------------------------------------------------------------------- */

static void wrong_names_are_refused(void **state)
{
    static const char *const wrong[][2] = {
        { "all_reduce", "OPERATION:ALGORITHM" },      { "all_reduce:fast", "has no \"fast\"" },
        { "broadcast:halving", "linear, tree" },      { "reduce:direct,x:y", "\"x:y\"" },
        { "all_reduce:ring,,", "OPERATION:ALGORITHM" },
    };
    lk_comm *comm;

    (void)state;
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        lk_comm_options options = { .struct_size = sizeof(lk_comm_options),
                                    .algorithms  = wrong[k][0] };
        assert_int_equal(lk_comm_open_threads(&comm, 1, &options), LK_EINVAL);
        assert_non_null(strstr(lk_error_last()->message, wrong[k][1]));
        assert_null(comm);
    }
}

/* Checks that MPI's algorithms are refused without MPI, at opening and later. */
static void native_algorithms_need_mpi(void **state)
{
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options),
                                .algorithms  = "all_reduce:native" };
    lk_comm        *comm;

    (void)state;
    assert_int_equal(lk_comm_open_threads(&comm, 1, &options), LK_EUNSUPPORTED);
    assert_non_null(strstr(lk_error_last()->message, "lk_comm_open_mpi"));
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_comm_set_algorithms(comm, "broadcast:native"), LK_EUNSUPPORTED);
    assert_int_equal(lk_comm_set_algorithms(comm, "barrier:native"), LK_EINVAL);
    lk_comm_free(comm);
}

static bool asks_for_another(lk_comm *comm, void *context)
{
    float a = 1;
    (void)context;
    if (lk_comm_rank(comm) == 1)
        comm->self->tuning.forced[LKI_OP_ALL_REDUCE] = &lki_method_tree;
    lk_status st = lk_all_reduce(comm, &a, &a, 1, LK_F32, LK_SUM);
    st           = st == LK_OK ? lk_barrier(comm) : st;
    CHECK(st == LK_EMISMATCH);
    CHECK(strstr(lk_error_last()->message, "rank 1 is in all_reduce #0 (F32 sum, 1 elements) by "
                                           "tree") != NULL);
    return true;
}

static void ranks_must_select_the_same_algorithm(void **state)
{
    (void)state;
    assert_true(hosted_all((hosted){ .hosts = 3, .each = 1 }, asks_for_another, NULL));
}

/* Measures the constants, lists the algorithms, and reads the file that was written. */
static bool tunes(lk_comm *comm, void *context)
{
    const char  *path = context;
    lk_algorithm list[8];
    uint32_t     count, chosen = 0;
    lki_model    read;

    CHECK(lk_comm_tune(comm, path) == LK_OK);
    CHECK(lki_model_read(&read, path) == LK_OK);
    CHECK(read.alpha > 0 && read.beta > 0);
    CHECK(lk_comm_explain(comm, "all_reduce", 1 << 20, list, 8, &count) == LK_OK);
    CHECK(count == 6 + (lk_comm_local_size(comm, 0) > 1)); /* includes levels if hosts have several
                                                            * ranks */
    for (uint32_t i = 0; i < count; i++) {
        chosen += list[i].chosen;
        CHECK(list[i].seconds > 0);
        CHECK(list[i].exact == (strcmp(list[i].name, "ring") != 0));
        CHECK(list[i].exact || !list[i].chosen);
    }
    CHECK(chosen == 1);
    CHECK(lk_comm_explain(comm, "fly", 1, list, 8, &count) == LK_EINVAL && count == 0);
    CHECK(lk_barrier(comm) == LK_OK);
    return true;
}

static void constants_are_measured(void **state)
{
    char path[] = "/tmp/lockstep-tuning-XXXXXX";
    int  fd     = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    assert_true(hosted_all((hosted){ .hosts = 3, .each = 1 }, tunes, path));
    assert_true(hosted_all((hosted){ .hosts = 2, .each = 2 }, tunes, path));
    (void)close(fd);
    (void)unlink(path);
}

static void wrong_files_are_refused(void **state)
{
    static const char *const wrong[] = { "alpha x\n", "delta 1\n", "beta -1\n", "alpha 1e-5 2\n" };
    char                     path[] = "/tmp/lockstep-tuning-XXXXXX";
    int                      fd     = mkstemp(path);
    lki_model                model;

    (void)state;
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        assert_int_equal(pwrite(fd, wrong[k], strlen(wrong[k]), 0), strlen(wrong[k]));
        assert_int_equal(ftruncate(fd, (off_t)strlen(wrong[k])), 0);
        assert_int_equal(lki_model_read(&model, path), LK_EFORMAT);
        assert_non_null(strstr(lk_error_last()->message, ":1: "));
    }
    (void)close(fd);
    (void)unlink(path);
    assert_int_equal(lki_model_read(&model, path), LK_EIO);
}

/* Passes a pipe as the file of constants.  Expects an error, because rank 0 would block on the pipe
 * forever and every other rank would wait for rank 0. */
static void a_pipe_is_refused_as_tuning_file(void **state)
{
    char      path[] = "/tmp/lockstep-tuning-XXXXXX", line[101];
    int       fd     = mkstemp(path);
    lki_model model  = { 1, 1, 1, 1 };

    (void)state;
    memset(line, '#', sizeof line);
    line[100] = '\n';
    for (int i = 0; i < 700; i++)
        assert_int_equal(write(fd, line, sizeof line), sizeof line);
    (void)close(fd);
    assert_int_equal(lki_model_read(&model, path), LK_EFORMAT);
    assert_non_null(strstr(lk_error_last()->message, "is no tuning file: it has 70700 bytes"));
    (void)unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(lki_model_read(&model, path), LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, "is not a regular file"));
    assert_int_equal(lki_model_write(&model, path), LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, "no regular file"));
    (void)unlink(path);
    assert_int_equal(lki_model_read(&model, "/dev/zero"), LK_EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_names_are_refused),
        cmocka_unit_test(wrong_files_are_refused),
        cmocka_unit_test(a_pipe_is_refused_as_tuning_file),
        cmocka_unit_test(native_algorithms_need_mpi),
        cmocka_unit_test(ranks_must_select_the_same_algorithm),
        cmocka_unit_test(constants_are_measured),
        cmocka_unit_test(the_ring_has_other_bits_than_the_tree),
        cmocka_unit_test(levels_have_the_same_bits),
        cmocka_unit_test(bytes_sent_are_those_of_the_formulas),
        cmocka_unit_test(uneven_vectors_send_no_more),
        cmocka_unit_test(levels_cross_hosts_once),
        cmocka_unit_test(groups_over_hosts_have_levels),
        cmocka_unit_test(every_exact_algorithm_has_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
