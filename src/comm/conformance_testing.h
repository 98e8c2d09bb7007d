/* comm/conformance_testing.h -- for tests: every operation, type, reduction, size and buffer
 * location, compared with plain loops, on any communicator.
 *
 * Method: the data of every rank is a function of (rank, call), so each rank computes the expected
 *         result by itself, with plain_testing.h for reductions.  Each parameter varies with
 *         the number of the call at its own rate, so that all pairs of values occur.  Counts are
 *         near those at which the method changes.  Bytes next to the results must not change.
 */
#ifndef LKI_COMM_CONFORMANCE_TESTING_H
#define LKI_COMM_CONFORMANCE_TESTING_H

#include "comm/world_testing.h"
#include "device/plain_testing.h"

static const size_t counts[] = { 0, 1, 2, 7, 64, 1000, 4097, 30011, 100003 };
enum { COUNTS = sizeof counts / sizeof counts[0], MOST = 100003 + 64, ROOM = MOST * 8, GUARD = 64 };

static const lk_reduce_op reductions[] = {
    { LK_REDUCE_SUM, 1 }, { LK_REDUCE_PRODUCT, 1 }, { LK_REDUCE_MIN, 1 },
    { LK_REDUCE_MAX, 1 }, { LK_REDUCE_AVG, 1 },     { LK_REDUCE_PREMUL_SUM, -3 },
};

/* A rank's buffers, on the heap and in an arena, and the expected data of all ranks.  Each buffer
 * has ROOM bytes, followed by guard bytes that must not change. */
typedef struct {
    lk_comm       *comm;
    plain_tables  *tables;
    unsigned char *heap[2], *shared[2], *all[WORLD_MAX], *want;
    uint32_t       call;
} desk;

typedef struct {
    lk_dtype       dtype;
    lk_reduce_op   op;
    size_t         count, width;
    bool           in_place, started;
    uint32_t       root;
    unsigned char *send, *recv;
} job;

static bool desk_open(desk *d, lk_comm *comm)
{
    size_t    each = ROOM + GUARD;
    lk_arena *arena;

    *d = (desk){ .comm = comm, .tables = malloc(sizeof *d->tables), .want = malloc(each) };
    CHECK(lk_comm_arena(&arena, comm, "desk", 2 * each * lk_comm_size(comm)) == LK_OK);
    CHECK(d->tables != NULL && d->want != NULL);
    plain_init(d->tables);
    for (int k = 0; k < 2; k++) {
        d->heap[k]   = malloc(each);
        d->shared[k] = (unsigned char *)lk_arena_data(arena) +
                       (2 * lk_comm_rank(comm) + (unsigned)k) * each;
        CHECK(d->heap[k] != NULL);
    }
    for (uint32_t rank = 0; rank < lk_comm_size(comm); rank++) {
        d->all[rank] = malloc(each);
        CHECK(d->all[rank] != NULL);
    }
    return true;
}

static void desk_close(desk *d)
{
    for (uint32_t rank = 0; rank < lk_comm_size(d->comm); rank++)
        free(d->all[rank]);
    free(d->heap[0]);
    free(d->heap[1]);
    free(d->want);
    free(d->tables);
}

/* Chooses the parameters of call c.  Each varies with c at its own rate. */
static job choose(const desk *d, uint32_t c)
{
    uint32_t size = lk_comm_size(d->comm), rank = lk_comm_rank(d->comm), place = c / 5 % 4;
    job      j    = { .dtype    = plain_dtypes[c % PLAIN_DTYPES],
                      .op       = reductions[c / 2 % 6],
                      .count    = counts[c % 7 == 6 ? c / 7 % COUNTS : c % (COUNTS - 2)],
                      .in_place = c / 3 % 2 == 1,
                      .started  = c / 4 % 2 == 1,
                      .root     = c % size };
    bool     heap = place == 0 || (place == 1 && rank == 0); /* for `place` 2 and 3 all buffers are
                                                              * in the arena */
    if (j.op.kind == LK_REDUCE_AVG && !plain_is_float(j.dtype))
        j.op.kind = LK_REDUCE_SUM;
    j.width = lk_dtype_bytes(j.dtype);
    j.send  = heap ? d->heap[0] : d->shared[0];
    j.recv  = heap ? d->heap[1] : d->shared[1];
    return j;
}

/* Computes `count` elements for every rank.  Copies the elements of this rank to `send`. */
static void fill(desk *d, const job *j, unsigned char *send, size_t count)
{
    for (uint32_t rank = 0; rank < lk_comm_size(d->comm); rank++)
        plain_fill(j->dtype, d->all[rank], count, d->call * 64 + rank);
    memcpy(send, d->all[lk_comm_rank(d->comm)], count * j->width);
}

/* Waits for a request and frees it.  Returns `st` if starting the request has failed. */
static lk_status done(lk_request *request, lk_status st)
{
    bool complete = false;
    if (st != LK_OK || request == NULL)
        return st;
    st = lk_request_test(request, &complete);
    if (st == LK_OK && !complete)
        st = lk_request_wait(request);
    lk_request_free(request);
    return st;
}

#define RUN(j, name, ...)                                                                          \
    ((j)->started ? (st = name##_start(&request, __VA_ARGS__)) : (st = name(__VA_ARGS__)),         \
     done(request, st))

/* ---- Reductions -------------------------------------------------------------------------- */

static void expect_reduced(desk *d, const job *j, size_t first, size_t count)
{
    const void *from[WORLD_MAX];
    for (uint32_t rank = 0; rank < lk_comm_size(d->comm); rank++)
        from[rank] = d->all[rank];
    for (size_t i = 0; i < count; i++)
        plain_reduce(d->tables, j->dtype, j->op, lk_comm_size(d->comm), from, first + i,
                     d->want + i * j->width);
}

static bool matches(desk *d, const job *j, const unsigned char *got, size_t bytes)
{
    lk_comm *comm = d->comm;
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != d->want[i]) {
            fprintf(stderr, "call %u: %s, %zu elements, byte %zu of %zu\n", d->call,
                    lk_dtype_name(j->dtype), j->count, i, bytes);
            CHECK(got[i] == d->want[i]);
        }
    for (size_t i = 0; i < GUARD; i++)
        CHECK(got[bytes + i] == 0xa5);
    return true;
}

static bool all_reduces(desk *d, job *j)
{
    lk_comm       *comm    = d->comm;
    unsigned char *recv    = j->in_place ? j->send : j->recv;
    lk_request    *request = NULL;
    lk_status      st;

    fill(d, j, j->send, j->count);
    memset(recv + j->count * j->width, 0xa5, GUARD);
    CHECK(RUN(j, lk_all_reduce, comm, j->send, recv, j->count, j->dtype, j->op) == LK_OK);
    expect_reduced(d, j, 0, j->count);
    return matches(d, j, recv, j->count * j->width);
}

static bool reduces(desk *d, job *j)
{
    lk_comm       *comm    = d->comm;
    bool           mine    = lk_comm_rank(comm) == j->root;
    unsigned char *recv    = !mine ? NULL : j->in_place ? j->send : j->recv;
    lk_request    *request = NULL;
    lk_status      st;

    fill(d, j, j->send, j->count);
    if (mine)
        memset(recv + j->count * j->width, 0xa5, GUARD);
    CHECK(RUN(j, lk_reduce, comm, j->send, recv, j->count, j->dtype, j->op, j->root) == LK_OK);
    expect_reduced(d, j, 0, j->count);
    return !mine || matches(d, j, recv, j->count * j->width);
}

/* Returns the size of a rank's part.  Sizes differ between ranks, and some are 0.  All ranks
 * compute the same sizes. */
static size_t part(uint32_t rank, size_t count)
{
    return rank % 3 == 1 ? 0 : count * (rank % 2 + 1) / 2;
}

static bool reduce_scatters(desk *d, job *j, bool uneven)
{
    lk_comm    *comm = d->comm;
    uint32_t    size = lk_comm_size(comm), me = lk_comm_rank(comm);
    size_t      sizes[WORLD_MAX], each = j->count / size, first = 0, total = 0;
    lk_request *request = NULL;
    lk_status   st;

    for (uint32_t rank = 0; rank < size; rank++) {
        sizes[rank] = uneven ? part(rank, each) : each;
        first += rank < me ? sizes[rank] : 0;
        total += sizes[rank];
    }
    unsigned char *recv = j->in_place ? j->send + first * j->width : j->recv;
    fill(d, j, j->send, total);
    if (!j->in_place)
        memset(recv + sizes[me] * j->width, 0xa5, GUARD);
    if (uneven)
        CHECK(RUN(j, lk_reduce_scatter_v, comm, j->send, recv, sizes, j->dtype, j->op) == LK_OK);
    else
        CHECK(RUN(j, lk_reduce_scatter, comm, j->send, recv, each, j->dtype, j->op) == LK_OK);
    expect_reduced(d, j, first, sizes[me]);
    if (j->in_place)
        memset(recv + sizes[me] * j->width, 0xa5, GUARD);
    return matches(d, j, recv, sizes[me] * j->width);
}

static bool reduces_many(desk *d, job *j)
{
    lk_comm       *comm = d->comm;
    lk_reduce_part parts[40];
    size_t         at = 0, count = 0;

    for (; count < 40 && at + 8 * j->count < ROOM / j->width; count++) {
        size_t n     = count % 11 == 3 ? j->count : (count * 37 + d->call) % 500;
        parts[count] = (lk_reduce_part){ j->send + at * j->width,
                                         (j->in_place ? j->send : j->recv) + at * j->width, n,
                                         j->dtype };
        at += n;
    }
    fill(d, j, j->send, at);
    unsigned char *recv = j->in_place ? j->send : j->recv;
    memset(recv + at * j->width, 0xa5, GUARD);
    CHECK(lk_all_reduce_many(comm, parts, count, j->op) == LK_OK);
    expect_reduced(d, j, 0, at);
    return matches(d, j, recv, at * j->width);
}

/* ---- Bytes ------------------------------------------------------------------------------- */

static bool gathers(desk *d, job *j, bool all)
{
    lk_comm    *comm = d->comm;
    uint32_t    size = lk_comm_size(comm), me = lk_comm_rank(comm);
    size_t      n       = j->count * j->width / size;
    bool        mine    = all || me == j->root;
    lk_request *request = NULL;
    lk_status   st;
    job         bytes = *j;

    bytes.dtype         = LK_U8;
    bytes.width         = 1;
    unsigned char *send = j->in_place && mine ? j->recv + me * n : j->send;
    fill(d, &bytes, send, n);
    if (mine)
        memset(j->recv + size * n, 0xa5, GUARD);
    if (all)
        CHECK(RUN(j, lk_all_gather, comm, send, j->recv, n) == LK_OK);
    else
        CHECK(RUN(j, lk_gather, comm, send, mine ? j->recv : NULL, n, j->root) == LK_OK);
    for (uint32_t rank = 0; rank < size; rank++)
        memcpy(d->want + rank * n, d->all[rank], n);
    return !mine || matches(d, j, j->recv, size * n);
}

static bool all_gathers_uneven(desk *d, job *j)
{
    lk_comm    *comm = d->comm;
    uint32_t    size = lk_comm_size(comm), me = lk_comm_rank(comm);
    size_t      n = j->count * j->width / size, sizes[WORLD_MAX], at = 0, first = 0;
    lk_request *request = NULL;
    lk_status   st;
    job         bytes = *j;

    bytes.dtype = LK_U8;
    bytes.width = 1;
    for (uint32_t rank = 0; rank < size; rank++) {
        sizes[rank] = part(rank, n);
        first += rank < me ? sizes[rank] : 0;
    }
    unsigned char *send = j->in_place ? j->recv + first : j->send;
    fill(d, &bytes, send, sizes[me]);
    for (uint32_t rank = 0; rank < size; rank++) {
        plain_fill(LK_U8, d->want + at, sizes[rank], d->call * 64 + rank);
        at += sizes[rank];
    }
    memset(j->recv + at, 0xa5, GUARD);
    CHECK(RUN(j, lk_all_gather_v, comm, send, j->recv, sizes) == LK_OK);
    return matches(d, j, j->recv, at);
}

static bool broadcasts(desk *d, job *j)
{
    lk_comm    *comm    = d->comm;
    size_t      n       = j->count * j->width;
    lk_request *request = NULL;
    lk_status   st;

    plain_fill(LK_U8, d->want, n, d->call);
    if (lk_comm_rank(comm) == j->root)
        memcpy(j->recv, d->want, n);
    else
        memset(j->recv, 0, n);
    memset(j->recv + n, 0xa5, GUARD);
    CHECK(RUN(j, lk_broadcast, comm, j->recv, n, j->root) == LK_OK);
    return matches(d, j, j->recv, n);
}

static bool scatters(desk *d, job *j)
{
    lk_comm       *comm = d->comm;
    uint32_t       size = lk_comm_size(comm), me = lk_comm_rank(comm);
    size_t         n       = j->count * j->width / size;
    bool           mine    = me == j->root;
    unsigned char *recv    = mine && j->in_place ? j->send + me * n : j->recv;
    lk_request    *request = NULL;
    lk_status      st;

    plain_fill(LK_U8, d->all[0], size * n, d->call);
    if (mine)
        memcpy(j->send, d->all[0], size * n);
    memcpy(d->want, d->all[0] + me * n, n);
    if (recv == j->recv)
        memset(recv + n, 0xa5, GUARD);
    CHECK(RUN(j, lk_scatter, comm, mine ? j->send : NULL, recv, n, j->root) == LK_OK);
    if (recv != j->recv)
        memset(recv + n, 0xa5, GUARD);
    return matches(d, j, recv, n);
}

/* Returns the number of elements that `from` sends to `to`.  If the call is in place, `to` sends
 * the same number to `from`. */
static size_t flow(const job *j, size_t n, uint32_t from, uint32_t to)
{
    if (j->in_place)
        return part(from + to, n);
    return part(from * 3 + to, n);
}

static bool all_to_alls(desk *d, job *j, bool uneven)
{
    lk_comm       *comm = d->comm;
    uint32_t       size = lk_comm_size(comm), me = lk_comm_rank(comm);
    size_t         in[WORLD_MAX], out[WORLD_MAX], at = 0, sum = 0;
    size_t         n       = j->count * j->width / size;
    unsigned char *recv    = j->in_place ? j->send : j->recv;
    lk_request    *request = NULL;
    lk_status      st;

    for (uint32_t rank = 0; rank < size; rank++) {
        out[rank] = uneven ? flow(j, n, me, rank) : n;
        in[rank]  = uneven ? flow(j, n, rank, me) : n;
        plain_fill(LK_U8, j->send + sum, out[rank], d->call * 4096 + me * 64 + rank);
        sum += out[rank];
        plain_fill(LK_U8, d->want + at, in[rank], d->call * 4096 + rank * 64 + me);
        at += in[rank];
    }
    memset(recv + at, 0xa5, GUARD);
    if (uneven)
        CHECK(RUN(j, lk_all_to_all_v, comm, j->send, out, recv, in) == LK_OK);
    else
        CHECK(RUN(j, lk_all_to_all, comm, j->send, recv, n) == LK_OK);
    return matches(d, j, recv, at);
}

/* Sends from every rank to the next one, in one of several ways that cannot deadlock. */
static bool passes_on(desk *d, job *j)
{
    lk_comm    *comm = d->comm;
    uint32_t    size = lk_comm_size(comm), me = lk_comm_rank(comm);
    uint32_t    next = (me + 1) % size, last = (me + size - 1) % size;
    size_t      n = j->count * j->width, half = n / 2;
    lk_request *first, *second;

    plain_fill(LK_U8, j->send, n, d->call * 64 + me);
    plain_fill(LK_U8, d->want, n, d->call * 64 + last);
    memset(j->recv + n, 0xa5, GUARD);
    CHECK(lk_send_start(&first, comm, j->send, half, next) == LK_OK);
    CHECK(lk_send_start(&second, comm, j->send + half, n - half, next) == LK_OK);
    CHECK(lk_recv(comm, j->recv, half, last) == LK_OK);
    CHECK(lk_recv(comm, j->recv + half, n - half, last) == LK_OK);
    CHECK(lk_request_wait(j->started ? second : first) == LK_OK);
    CHECK(lk_request_wait(j->started ? first : second) == LK_OK);
    lk_request_free(first);
    lk_request_free(second);
    return matches(d, j, j->recv, n);
}

/* ---- All operations ---------------------------------------------------------------------- */

static bool perform(desk *d, uint32_t what, job *j)
{
    switch (what) {
    case 0: return all_reduces(d, j);
    case 1: return reduces(d, j);
    case 2: return reduce_scatters(d, j, false);
    case 3: return reduce_scatters(d, j, true);
    case 4: return reduces_many(d, j);
    case 5: return gathers(d, j, true);
    case 6: return gathers(d, j, false);
    case 7: return all_gathers_uneven(d, j);
    case 8: return broadcasts(d, j);
    case 9: return scatters(d, j);
    case 10: return all_to_alls(d, j, false);
    case 11: return all_to_alls(d, j, true);
    default: return passes_on(d, j);
    }
}

enum { KINDS = 13 };

/* Runs `calls` calls without a barrier between them.  A buffer is filled again as soon as its
 * operation is complete. */
static bool performs(desk *d, uint32_t first, uint32_t calls)
{
    for (d->call = first; d->call < first + calls; d->call++) {
        job j = choose(d, d->call);
        if (!perform(d, d->call % KINDS, &j)) {
            fprintf(stderr, "operation %u, call %u\n", d->call % KINDS, d->call);
            return false;
        }
    }
    return true;
}

static bool conforms(lk_comm *comm, void *context)
{
    desk d;
    bool good = desk_open(&d, comm) && performs(&d, *(uint32_t *)context, 150);
    desk_close(&d);
    return good;
}

/* ---- Groups ------------------------------------------------------------------------------ */

static bool in_group(lk_comm *comm, uint32_t first)
{
    desk d;
    if (comm == NULL)
        return true;
    bool good = desk_open(&d, comm) && performs(&d, first, 40);
    desk_close(&d);
    return good;
}

/* Creates groups and runs all operations in them: the overlapping axes of a mesh, a group of a
 * group, and a subset in a different order. */
static bool splits(lk_comm *comm, void *context)
{
    uint32_t size = lk_comm_size(comm), me = lk_comm_rank(comm);
    lk_comm *inner, *odd;
    lk_mesh *mesh;

    (void)context;
    CHECK(lk_mesh_open(&mesh, comm, (const lk_mesh_axis[]){ { "data", 0 }, { "tensor", 2 } }, 2)
          == LK_OK);
    lk_comm *data = lk_mesh_axis_comm(mesh, "data"), *tensor = lk_mesh_axis_comm(mesh, "tensor");
    CHECK(lk_comm_size(tensor) == 2 && lk_comm_rank(tensor) == me % 2);
    CHECK(lk_comm_size(data) == size / 2 && lk_comm_rank(data) == me / 2);
    CHECK(in_group(tensor, 100) && in_group(data, 200));
    CHECK(lk_comm_split(&inner, data, me / 2 == 0 ? LK_NO_COLOR : 7, size - me) == LK_OK);
    CHECK((inner == NULL) == (me < 2));
    CHECK(inner == NULL || lk_comm_rank(inner) == (size - 1 - me) / 2);
    const uint32_t list[] = { size - 1, 0, 1 };
    CHECK(lk_comm_subset(&odd, comm, list, 3) == LK_OK);
    CHECK((odd != NULL) == (me < 2 || me == size - 1));
    CHECK(odd == NULL || lk_comm_rank(odd) == (me == size - 1 ? 0 : me + 1));
    CHECK(in_group(inner, 300) && in_group(odd, 400));
    lk_mesh_free(mesh); /* `inner` keeps references to everything that it needs */
    CHECK(in_group(inner, 500) && in_group(comm, 600));
    lk_comm_free(odd);
    lk_comm_free(inner);
    return true;
}

#endif
