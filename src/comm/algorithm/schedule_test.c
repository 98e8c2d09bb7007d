/* schedule_test.c -- every algorithm, carried out without a network.
 *
 * Goal:    each algorithm moves and sums correctly for any number of ranks, size, type, reduction,
 *          root and segment, in place or not.  The exact algorithms have the bits of the canonical
 *          tree.  The bytes sent are exactly those of the formulas.
 * Method:  see paper_testing.h.  All choices are sampled, each kind of choice at its own rate.
 * Control: the ring must differ from the tree for sums of floats, from 3 ranks on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/thorough_testing.h"
#include "comm/algorithm/paper_testing.h"
#include "device/combine.h"
#include "device/plain_testing.h"

static const uint32_t sizes[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 24, 32 };
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static const lk_reduce_op ops[] = {
    { LK_REDUCE_SUM, 1 }, { LK_REDUCE_PRODUCT, 1 }, { LK_REDUCE_MIN, 1 },
    { LK_REDUCE_MAX, 1 }, { LK_REDUCE_AVG, 1 },     { LK_REDUCE_PREMUL_SUM, -3 },
};

/* ---- Reductions -------------------------------------------------------------------------- */

typedef struct {
    lki_op_kind  kind;
    uint32_t     size, root;
    lk_dtype     dtype;
    lk_reduce_op op;
    size_t       count; /* elements of the vector or of each part; see part_count() */
    bool         in_place;
    size_t       segment; /* number of elements per segment */
} job;

static size_t part_count(const job *j, uint32_t rank)
{
    if (j->kind == LKI_OP_REDUCE_SCATTER_V || j->kind == LKI_OP_ALL_GATHER_V)
        return rank % 3 == 1 ? 0 : j->count * (rank % 2 + 1) / 2;
    return j->count;
}

static bool divided(lki_op_kind kind)
{
    return kind == LKI_OP_REDUCE_SCATTER || kind == LKI_OP_REDUCE_SCATTER_V;
}

static size_t total_count(const job *j)
{
    size_t total = 0;
    for (uint32_t r = 0; r < j->size && divided(j->kind); r++)
        total += part_count(j, r);
    return divided(j->kind) ? total : j->count;
}

static void set_up(office *o, const job *j, size_t offsets[RANKS_MAX + 1])
{
    size_t width = j->dtype == 0 ? 1 : lk_dtype_bytes(j->dtype);
    bool   even  = j->kind != LKI_OP_REDUCE_SCATTER_V && j->kind != LKI_OP_ALL_GATHER_V;

    o->size    = j->size;
    offsets[0] = 0;
    for (uint32_t r = 0; r < j->size; r++)
        offsets[r + 1] = offsets[r] + part_count(j, r) * width;
    for (uint32_t r = 0; r < j->size; r++)
        o->desks[r].problem = (lki_problem){ .kind  = j->kind,
                                             .rank  = r,
                                             .size  = j->size,
                                             .root  = j->root,
                                             .dtype = j->dtype,
                                             .op    = j->op,
                                             .width = width,
                                             .bytes = j->count * width,
                                             .parts = even ? NULL : offsets };
}

/* Runs the job and hashes all results.  Returns true if the results equal those of the canonical
 * tree. */
static bool reduces(office *o, const lki_method *method, const job *j, uint64_t *hash)
{
    size_t         width = lk_dtype_bytes(j->dtype), total = total_count(j), offsets[RANKS_MAX + 1];
    const void    *from[RANKS_MAX];
    unsigned char *copies[RANKS_MAX], *kept[RANKS_MAX], *want = malloc(total * width + 1);
    bool           same = true;

    set_up(o, j, offsets);
    for (uint32_t r = 0; r < j->size; r++) {
        desk *d   = &o->desks[r];
        copies[r] = malloc(total * width + 1);
        plain_fill(j->dtype, copies[r], total, r + 100 * j->size);
        memcpy(d->base[LKI_SEND_BUFFER], copies[r], total * width);
        memset(d->base[LKI_RECV_BUFFER], 0xcc, total * width + 64);
        kept[r] = d->base[LKI_RECV_BUFFER];
        if (j->in_place)
            d->base[LKI_RECV_BUFFER] = d->base[LKI_SEND_BUFFER] +
                                       (divided(j->kind) ? offsets[r] : 0);
        from[r] = copies[r];
    }
    lki_combine(j->dtype, j->op, j->size, from, total, want);
    perform(o, method, j->segment * width);
    *hash = 0;
    for (uint32_t r = 0; r < j->size; r++) {
        desk  *d     = &o->desks[r];
        size_t first = divided(j->kind) ? offsets[r] : 0;
        size_t bytes = divided(j->kind) ? offsets[r + 1] - offsets[r] : total * width;
        if (j->kind != LKI_OP_REDUCE || r == j->root) {
            same = same && memcmp(d->base[LKI_RECV_BUFFER], want + first, bytes) == 0;
            *hash ^= lki_xxh3(d->base[LKI_RECV_BUFFER], bytes) + r;
        }
        if (!j->in_place) /* without in_place, send must be unchanged */
            assert_memory_equal(d->base[LKI_SEND_BUFFER], copies[r], total * width);
        d->base[LKI_RECV_BUFFER] = kept[r];
        free(copies[r]);
    }
    free(want);
    return same;
}

static const lki_op_kind reductions[] = { LKI_OP_ALL_REDUCE, LKI_OP_REDUCE, LKI_OP_REDUCE_SCATTER,
                                          LKI_OP_REDUCE_SCATTER_V };

static void one_reduction(office *o, const lki_method *method, const job *j)
{
    uint64_t hash;
    bool     same = reduces(o, method, j, &hash);
    if (method->exact && !same)
        fail_msg("%s: kind %d of %u ranks, %s %d, %zu elements by %zu, root %u%s", method->name,
                 (int)j->kind, j->size, lk_dtype_name(j->dtype), (int)j->op.kind, j->count,
                 j->segment, j->root, j->in_place ? ", in place" : "");
}

static void every_reduction_schedule_is_correct(void **state)
{
    static const size_t counts[] = { 0, 1, 2, 7, 33, 500, 1021 }, segments[] = { 1024, 64, 11 };
    office             *o    = open_office();
    uint32_t            turn = 0;

    (void)state;
    for (size_t n = 0; n < SIZES; n++)
        for (size_t m = 0; lki_methods[m] != NULL; m++)
            for (size_t k = 0; k < 4; k++)
                for (size_t d = 0; d < PLAIN_DTYPES; d++)
                    for (size_t c = 0; c < 6; c++, turn++) {
                        job    j = { .kind     = reductions[k],
                                     .size     = sizes[n],
                                     .root     = turn % sizes[n],
                                     .dtype    = plain_dtypes[d],
                                     .op       = ops[c],
                                     .count    = counts[turn % 7],
                                     .segment  = segments[turn / 7 % 3],
                                     .in_place = turn % 2 == 1 };
                        size_t offsets[RANKS_MAX + 1];
                        if (lki_combine_check(j.dtype, j.op) != LK_OK)
                            continue;
                        if (divided(j.kind) || (j.segment == 11 && j.count > 200))
                            j.count /= 8;
                        set_up(o, &j, offsets);
                        if (lki_methods[m]->can(&o->desks[0].problem))
                            one_reduction(o, lki_methods[m], &j);
                    }
    close_office(o);
}

/* Checks that an algorithm marked as not exact differs from the tree, so that this test can detect
 * a difference. */
static void a_ring_is_not_exact(void **state)
{
    office  *o = open_office();
    uint64_t hash, other;

    (void)state;
    for (size_t n = 2; n < SIZES; n++) {
        job j = { .kind    = LKI_OP_ALL_REDUCE,
                  .size    = sizes[n],
                  .dtype   = LK_F32,
                  .op      = LK_SUM,
                  .count   = 1021,
                  .segment = 1021 };
        assert_false(lki_method_ring.exact);
        assert_false(reduces(o, &lki_method_ring, &j, &hash));
        j.dtype = LK_U32; /* integer sums do not depend on the order */
        assert_true(reduces(o, &lki_method_ring, &j, &hash));
        assert_true(reduces(o, &lki_method_direct, &j, &other));
        assert_int_equal(hash, other);
    }
    close_office(o);
}

/* ---- Moving bytes ------------------------------------------------------------------------ */

static void fill_bytes(unsigned char *data, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        data[i] = (unsigned char)(i * 7 + i / 251 + seed * 31);
}

static void gathers(office *o, const lki_method *method, const job *j)
{
    size_t offsets[RANKS_MAX + 1];
    bool   all = j->kind != LKI_OP_GATHER;

    set_up(o, j, offsets);
    unsigned char *want = malloc(offsets[j->size] + 1), *kept[RANKS_MAX];
    for (uint32_t r = 0; r < j->size; r++) {
        desk *d = &o->desks[r];
        fill_bytes(want + offsets[r], part_count(j, r), r);
        fill_bytes(d->base[LKI_SEND_BUFFER], part_count(j, r), r);
        kept[r] = d->base[LKI_SEND_BUFFER];
        memset(d->base[LKI_RECV_BUFFER], 0xcc, offsets[j->size]);
        if (j->in_place && (all || r == j->root)) {
            memcpy(d->base[LKI_RECV_BUFFER] + offsets[r], kept[r], part_count(j, r));
            d->base[LKI_SEND_BUFFER] = d->base[LKI_RECV_BUFFER] + offsets[r];
        }
    }
    perform(o, method, j->segment);
    for (uint32_t r = 0; r < j->size; r++) {
        if (all || r == j->root)
            assert_memory_equal(o->desks[r].base[LKI_RECV_BUFFER], want, offsets[j->size]);
        o->desks[r].base[LKI_SEND_BUFFER] = kept[r];
    }
    free(want);
}

static void broadcasts(office *o, const lki_method *method, const job *j)
{
    size_t         offsets[RANKS_MAX + 1];
    unsigned char *want = malloc(j->count + 1);

    set_up(o, j, offsets);
    fill_bytes(want, j->count, 3);
    for (uint32_t r = 0; r < j->size; r++)
        memcpy(o->desks[r].base[LKI_RECV_BUFFER], want, r == j->root ? j->count : 0);
    perform(o, method, j->segment);
    for (uint32_t r = 0; r < j->size; r++) {
        assert_memory_equal(o->desks[r].base[LKI_RECV_BUFFER], want, j->count);
        memset(o->desks[r].base[LKI_RECV_BUFFER], 0xcc, j->count);
    }
    free(want);
}

static void scatters(office *o, const lki_method *method, const job *j)
{
    size_t         offsets[RANKS_MAX + 1];
    unsigned char *kept = o->desks[j->root].base[LKI_RECV_BUFFER], *want;

    set_up(o, j, offsets);
    desk *root = &o->desks[j->root];
    want       = malloc(offsets[j->size] + 1);
    fill_bytes(want, offsets[j->size], 5);
    memcpy(root->base[LKI_SEND_BUFFER], want, offsets[j->size]);
    if (j->in_place)
        root->base[LKI_RECV_BUFFER] = root->base[LKI_SEND_BUFFER] + offsets[j->root];
    perform(o, method, j->segment);
    for (uint32_t r = 0; r < j->size; r++)
        assert_memory_equal(o->desks[r].base[LKI_RECV_BUFFER], want + offsets[r], j->count);
    root->base[LKI_RECV_BUFFER] = kept;
    free(want);
}

/* Returns the number of elements that `from` sends to `to`.  In place, `to` sends the same number
 * to `from`. */
static size_t flow(const job *j, uint32_t from, uint32_t to)
{
    if (j->kind == LKI_OP_ALL_TO_ALL)
        return j->count;
    return j->in_place ? j->count * ((from + to) % 3) / 2 : j->count * ((from * 3 + to) % 4) / 3;
}

static void exchanges(office *o, const lki_method *method, const job *j)
{
    static size_t  out[RANKS_MAX][RANKS_MAX + 1], in[RANKS_MAX][RANKS_MAX + 1];
    size_t         unused[RANKS_MAX + 1];
    unsigned char *kept[RANKS_MAX];

    set_up(o, j, unused);
    for (uint32_t r = 0; r < j->size; r++) {
        desk *d = &o->desks[r];
        for (uint32_t k = 0; k < j->size; k++) {
            out[r][k + 1] = out[r][k] + flow(j, r, k);
            in[r][k + 1]  = in[r][k] + flow(j, k, r);
            fill_bytes(d->base[LKI_SEND_BUFFER] + out[r][k], flow(j, r, k), r * 64 + k);
        }
        kept[r]             = d->base[LKI_RECV_BUFFER];
        d->problem.in_place = j->in_place;
        if (j->in_place)
            d->base[LKI_RECV_BUFFER] = d->base[LKI_SEND_BUFFER];
        if (j->kind == LKI_OP_ALL_TO_ALL_V) {
            d->problem.parts      = out[r];
            d->problem.recv_parts = in[r];
        }
    }
    perform(o, method, j->segment);
    for (uint32_t r = 0; r < j->size; r++) {
        for (uint32_t k = 0; k < j->size; k++) {
            unsigned char *want = malloc(flow(j, k, r) + 1);
            fill_bytes(want, flow(j, k, r), k * 64 + r);
            assert_memory_equal(o->desks[r].base[LKI_RECV_BUFFER] + in[r][k], want, flow(j, k, r));
            free(want);
        }
        o->desks[r].base[LKI_RECV_BUFFER] = kept[r];
    }
}

static void one_move(office *o, const lki_method *method, const job *j)
{
    switch ((int)j->kind) {
    case LKI_OP_BROADCAST: broadcasts(o, method, j); return;
    case LKI_OP_SCATTER: scatters(o, method, j); return;
    case LKI_OP_ALL_TO_ALL:
    case LKI_OP_ALL_TO_ALL_V: exchanges(o, method, j); return;
    default: gathers(o, method, j); return;
    }
}

static void every_data_movement_schedule_is_correct(void **state)
{
    static const lki_op_kind kinds[] = { LKI_OP_BROADCAST,    LKI_OP_SCATTER,
                                         LKI_OP_GATHER,       LKI_OP_ALL_GATHER,
                                         LKI_OP_ALL_GATHER_V, LKI_OP_ALL_TO_ALL,
                                         LKI_OP_ALL_TO_ALL_V };
    static const size_t counts[]   = { 0, 1, 2, 7, 64, 500, 1021 };
    static const size_t segments[] = { 2048, 64, 100 };
    const uint32_t tries = lki_brief() ? 5 : 21;
    office  *o    = open_office();
    uint32_t turn = 0, tried[7] = { 0 };

    (void)state;
    for (size_t n = 0; n < SIZES; n++)
        for (size_t m = 0; lki_methods[m] != NULL; m++)
            for (size_t k = 0; k < 7; k++)
                for (uint32_t again = 0; again < tries; again++, turn++) {
                    job    j = { .kind     = kinds[k],
                                 .size     = sizes[n],
                                 .root     = turn % sizes[n],
                                 .count    = counts[turn % 7],
                                 .segment  = segments[turn / 7 % 3],
                                 .in_place = turn % 2 == 1 };
                    size_t offsets[RANKS_MAX + 1];
                    set_up(o, &j, offsets);
                    if (!lki_methods[m]->can(&o->desks[0].problem))
                        continue;
                    tried[k]++;
                    one_move(o, lki_methods[m], &j);
                }
    for (size_t k = 0; k < 7; k++)
        assert_true(tried[k] >= SIZES * tries);
    close_office(o);
}

/* Checks that after the barrier's schedule every rank knows that all others have arrived, in any
 * order of messages. */
static void the_barrier_schedule_waits_for_all_ranks(void **state)
{
    office *o = open_office();

    (void)state;
    for (size_t n = 0; n < SIZES; n++) {
        uint32_t heard[RANKS_MAX], size = sizes[n];
        job      j = { .kind = LKI_OP_BARRIER, .size = size };
        size_t   offsets[RANKS_MAX + 1], most = 0;
        set_up(o, &j, offsets);
        for (uint32_t r = 0; r < size; r++) {
            heard[r] = UINT32_C(1) << r;
            build_one(&o->desks[r], &lki_method_dissemination);
            most = lki_max(most, o->desks[r].schedule.count);
        }
        for (size_t k = 0; k + 1 < most; k += 2) { /* one signal and one await per round */
            uint32_t before[RANKS_MAX];
            memcpy(before, heard, sizeof before);
            for (uint32_t r = 0; r < size; r++)
                heard[r] |= before[o->desks[r].schedule.actions[k + 1].peer];
        }
        for (uint32_t r = 0; r < size; r++)
            assert_int_equal(heard[r], size == 32 ? UINT32_MAX : (UINT32_C(1) << size) - 1);
        carry_out(o);
        for (uint32_t r = 0; r < size; r++) {
            free(o->desks[r].base[LKI_SCRATCH]);
            free(o->desks[r].nodes);
            lki_schedule_free(&o->desks[r].schedule);
        }
    }
    close_office(o);
}

/* ---- Bytes ------------------------------------------------------------------------------- */

static void sends(office *o, const lki_method *method, lki_op_kind kind, uint32_t size,
                  lk_dtype dtype, size_t count, size_t segment, size_t bytes)
{
    job j = {
        .kind = kind, .size = size, .dtype = dtype, .op = LK_SUM, .count = count, .segment = segment
    };
    uint64_t hash;
    if (dtype == 0)
        gathers(o, method, &j);
    else
        (void)reduces(o, method, &j, &hash);
    for (uint32_t r = 0; r < size; r++)
        if (o->desks[r].sent != bytes)
            fail_msg("%s: kind %d on %u ranks: rank %u sent %zu bytes, not %zu", method->name,
                     (int)kind, size, r, o->desks[r].sent, bytes);
}

/* Counts bytes; n is a multiple of N elements in every segment. */
static void bytes_are_those_of_the_formulas(void **state)
{
    office *o = open_office();

    (void)state;
    for (size_t k = 0; k < SIZES; k++) {
        uint32_t N    = sizes[k];
        size_t   each = 24, n = each * N, half = (N - 1) * each;
        sends(o, &lki_method_direct, LKI_OP_ALL_REDUCE, N, LK_F32, n, n / 2, 2 * half * 4);
        sends(o, &lki_method_direct, LKI_OP_ALL_REDUCE, N, LK_BF16, n, n, 2 * half * 2);
        sends(o, &lki_method_direct, LKI_OP_REDUCE_SCATTER, N, LK_F64, each, each, half * 8);
        sends(o, &lki_method_direct, LKI_OP_ALL_GATHER, N, 0, each, each, half);
        sends(o, &lki_method_ring, LKI_OP_ALL_REDUCE, N, LK_F32, n, n / 2, 2 * half * 4);
        sends(o, &lki_method_ring, LKI_OP_REDUCE_SCATTER, N, LK_F64, each, each, half * 8);
        sends(o, &lki_method_ring, LKI_OP_ALL_GATHER, N, 0, each, each, half);
        if (N > 1) /* elements are sent as FP32 after the first hop, and as 16 bits in the
                    * all_gather */
            sends(o, &lki_method_ring, LKI_OP_ALL_REDUCE, N, LK_BF16, n, n,
                  2 * each + 4 * (N - 2) * each + 2 * half);
        if ((N & (N - 1)) != 0 || N == 1)
            continue;
        n = 32 * 32;
        sends(o, &lki_method_halving, LKI_OP_ALL_REDUCE, N, LK_F32, n, n,
              2 * (n - n / N) * sizeof(float));
        sends(o, &lki_method_halving, LKI_OP_ALL_REDUCE, N, LK_F16, n, n,
              n / 2 * 2 + (n / 2 - n / N) * 4 + (n - n / N) * 2);
    }
    close_office(o);
}

enum { ROUNDS = 128 };

/* The work of one rank in one round, or the work of the busiest rank. */
typedef struct {
    double sends, receives, sent, received, combined;
} effort;

static double most(double a, double b)
{
    return a > b ? a : b;
}

static void add_rank(const desk *d, effort busiest[ROUNDS], lki_work *all)
{
    effort rounds[ROUNDS] = { 0 };

    for (size_t k = 0; k < d->schedule.count; k++) {
        const lki_action *a = &d->schedule.actions[k];
        effort           *e = &rounds[a->round];
        e->sends += a->kind == LKI_ACT_SEND;
        e->receives += a->kind == LKI_ACT_RECEIVE;
        e->sent += a->kind == LKI_ACT_SEND ? (double)a->bytes : 0;
        e->received += a->kind == LKI_ACT_RECEIVE ? (double)a->bytes : 0;
        if (a->kind == LKI_ACT_COMBINE)
            e->combined += (double)(a->count * d->problem.width * a->term_count);
    }
    for (uint32_t i = 0; i < ROUNDS; i++) {
        all->all_messages += rounds[i].sends;
        all->all_bytes += rounds[i].sent;
        busiest[i].sends    = most(busiest[i].sends, most(rounds[i].sends, rounds[i].receives));
        busiest[i].sent     = most(busiest[i].sent, most(rounds[i].sent, rounds[i].received));
        busiest[i].combined = most(busiest[i].combined, rounds[i].combined);
    }
}

static bool differs(double said, double is, bool even)
{
    return is > said * 1.0001 || (even && is < said * 0.9999);
}

/* Compares the work that an algorithm claims with the work of its schedules: of the busiest rank,
 * summed over rounds, and of all ranks.  The claim must never be less, and must be exact if N is a
 * power of two. */
static void check_work(office *o, const lki_method *method, const job *j)
{
    effort   busiest[ROUNDS] = { 0 };
    lki_work is              = { 0 };
    size_t   offsets[RANKS_MAX + 1];
    bool     even = (j->size & (j->size - 1)) == 0;

    set_up(o, j, offsets);
    if (!method->can(&o->desks[0].problem))
        return;
    lki_work said = method->work(&o->desks[0].problem);
    for (uint32_t r = 0; r < j->size; r++) {
        desk *d           = &o->desks[r];
        d->problem.window = SIZE_MAX;
        build_one(d, method);
        add_rank(d, busiest, &is);
        free(d->base[LKI_SCRATCH]);
        free(d->nodes);
        lki_schedule_free(&d->schedule);
    }
    for (uint32_t i = 0; i < ROUNDS; i++) {
        is.rounds += busiest[i].sends > 0;
        is.messages += busiest[i].sends;
        is.bytes += busiest[i].sent;
        is.combined += busiest[i].combined;
    }
    if (differs(said.rounds, is.rounds, even) || differs(said.messages, is.messages, even) ||
        differs(said.bytes, is.bytes, even) || differs(said.combined, is.combined, even) ||
        differs(said.all_messages, is.all_messages, even) ||
        differs(said.all_bytes, is.all_bytes, even))
        fail_msg("%s: kind %d on %u ranks, %s: %g rounds, %g messages (%g), %g bytes (%g), "
                 "%g combined; says %g, %g (%g), %g (%g), %g", method->name, (int)j->kind, j->size,
                 lk_dtype_name(j->dtype), is.rounds, is.messages, is.all_messages, is.bytes,
                 is.all_bytes, is.combined, said.rounds, said.messages, said.all_messages,
                 said.bytes, said.all_bytes, said.combined);
}

static void predicted_costs_equal_those_of_the_schedules(void **state)
{
    static const lki_op_kind kinds[] = { LKI_OP_ALL_REDUCE, LKI_OP_REDUCE,  LKI_OP_REDUCE_SCATTER,
                                         LKI_OP_ALL_GATHER, LKI_OP_GATHER,  LKI_OP_SCATTER,
                                         LKI_OP_ALL_TO_ALL, LKI_OP_BROADCAST, LKI_OP_BARRIER };
    office *o = open_office();

    (void)state;
    for (size_t n = 1; n < SIZES; n++)
        for (size_t m = 0; lki_methods[m] != NULL; m++)
            for (size_t k = 0; k < 9; k++)
                for (int wide = 0; wide < 2; wide++) {
                    job j = { .kind = kinds[k], .size = sizes[n], .op = LK_SUM,
                              .dtype = wide == 0 ? LK_F32 : LK_BF16,
                              .count = 288 * (k < 2 ? sizes[n] : 1) };
                    check_work(o, lki_methods[m], &j);
                }
    close_office(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_those_of_the_formulas),
        cmocka_unit_test(predicted_costs_equal_those_of_the_schedules),
        cmocka_unit_test(the_barrier_schedule_waits_for_all_ranks),
        cmocka_unit_test(every_data_movement_schedule_is_correct),
        cmocka_unit_test(a_ring_is_not_exact),
        cmocka_unit_test(every_reduction_schedule_is_correct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
