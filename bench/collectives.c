/* collectives.c -- Lockstep's driver for bench/collectives, with the floor (a lower bound).
 *
 *     lockstep run -n RANKS -- collectives PIPES BYTES_MAX
 *
 *     arena      the public call on buffers in an arena
 *     heap       the public call on ordinary memory
 *     flag       sends a word to the other rank and back, which shows the distance of the two cores
 *     floor      the same memory accesses, in plain loops of two ranks that never wait
 *     fused      all_reduce as in a training step: every owner of a slice sums it, and updates
 *                the host's one copy of the parameters
 *     separate   the same step with a copy of the parameters on every rank: after lk_all_reduce()
 *                every rank updates all parameters
 */
#include <stdatomic.h>

#include "lockstep/launch.h"
#include "lockstep/optim.h"
#include "collectives.h"
#include "usage.h"

enum { WAYS = 6, BUCKET = 1 << 16, BUCKETS_MAX = 32 }; /* elements; buckets open at once */

#if defined(__x86_64__)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST
#endif

typedef enum { ARENA, HEAP, FLAG, FLOOR, FUSED, SEPARATE } way;

typedef struct {
    lk_comm       *comm;
    lk_exec       *exec;
    way            way;
    unsigned char *arena;    /* input and output of every rank, followed by the shared parameters */
    unsigned char *heap;     /* this rank's input and output */
    size_t         each;     /* bytes per buffer */
    float         *params;   /* shared or this rank's */
    uint64_t       flags;    /* sent so far */
} state;

static void must(lk_status st)
{
    if (st == LK_OK)
        return;
    fprintf(stderr, "collectives: %s\n", lk_error_last()->message);
    exit(1);
}

static unsigned char *send_of(const state *s, uint32_t rank)
{
    return s->arena + 2 * s->each * rank;
}

static const char *begin(driver *d, const task *t)
{
    static const char *const names[WAYS] = { "arena", "heap",  "flag",
                                             "floor", "fused", "separate" };
    state                   *s           = d->own;
    int                      w           = 0;

    while (w < WAYS && strcmp(names[w], t->way) != 0)
        w++;
    if (w == WAYS || ((w == FLOOR || w == FLAG) && (d->size != 2 || t->bf16)) ||
        (w >= FUSED && (t->op != OP_ALL_REDUCE || t->bf16)))
        return "no such way";
    s->way    = (way)w;
    d->send   = w == HEAP ? s->heap : send_of(s, d->rank);
    d->recv   = t->op == OP_ALL_REDUCE ? d->send : d->send + s->each;
    s->params = (float *)(void *)(w == SEPARATE ? s->heap : send_of(s, d->size));
    if (w == SEPARATE || (w == FUSED && d->rank == 0))
        memset(s->params, 0, t->bytes);
    return NULL;
}

static void barrier(driver *d)
{
    must(lk_barrier(((state *)d->own)->comm));
}

/* Exchanges flags, which are stored after the parameters, a page apart. */
static void flag_call(driver *d)
{
    state            *s    = d->own;
    unsigned char    *base = send_of(s, d->size) + s->each;
    _Atomic uint64_t *mine = (_Atomic uint64_t *)(void *)(base + 4096 * d->rank);
    _Atomic uint64_t *yours = (_Atomic uint64_t *)(void *)(base + 4096 * (1 - d->rank));
    uint64_t          next = ++s->flags;

    if (d->rank == 0)
        atomic_store_explicit(mine, next, memory_order_release);
    while (atomic_load_explicit(yours, memory_order_acquire) < next)
        continue;
    if (d->rank == 1)
        atomic_store_explicit(mine, next, memory_order_release);
}

/* ---- The floor --------------------------------------------------------------------------- */

WIDEST static void sum_into_both(size_t n, float *a, float *b)
{
    for (size_t i = 0; i < n; i++)
        a[i] = b[i] = a[i] + b[i];
}

WIDEST static void sum_into(size_t n, const float *a, const float *b, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

static float *floats(unsigned char *at, size_t element)
{
    return (float *)(void *)at + element;
}

static void floor_call(driver *d, const task *t)
{
    const state *s = d->own;
    size_t       n = t->part, mine = n * d->rank;

    if (t->op == OP_ALL_REDUCE)
        sum_into_both(n, floats(send_of(s, 0), mine), floats(send_of(s, 1), mine));
    else if (t->op == OP_REDUCE_SCATTER)
        sum_into(n, floats(send_of(s, 0), mine), floats(send_of(s, 1), mine), floats(d->recv, 0));
    else
        for (uint32_t rank = 0; rank < 2; rank++)
            memcpy(floats(d->recv, n * rank), send_of(s, rank), n * sizeof(float));
}

/* ---- Steps ------------------------------------------------------------------------------- */

static void update(const state *s, size_t first, size_t n, const float *gradient)
{
    const lk_optimizer sgd  = { .kind = LK_SGD };
    const lk_update    step = { .lr = 0x1p-20, .scale = 0.5F, .clip = 1 };

    lk_optimizer_update(&sgd, s->exec, &step, n, gradient, s->params + first, NULL);
}

/* A bucket in reduction, with its nodes and slices. */
typedef struct {
    lk_tree_op   op;
    lk_tree_node node;
    lk_slice     slices[64];
    lk_request  *request;
    size_t       first, mine, count; /* mine: this rank's slice */
} bucket;

static void bucket_start(driver *d, bucket *b, size_t first, size_t elements)
{
    const state *s    = d->own;
    float       *mine = floats(d->send, first);

    b->first = first;
    b->node  = (lk_tree_node){ d->rank, 1, mine };
    b->op    = (lk_tree_op){ .leaves      = d->size,
                             .elements    = elements,
                             .nodes       = &b->node,
                             .node_count  = 1,
                             .slices      = b->slices,
                             .slice_count = d->size,
                             .out         = mine };
    for (uint32_t rank = 0; rank < d->size; rank++) {
        size_t from = elements * rank / d->size, end = elements * (rank + 1) / d->size;
        b->slices[rank] = (lk_slice){ .first = from, .count = end - from, .owner = rank };
    }
    b->mine  = b->slices[d->rank].first;
    b->count = b->slices[d->rank].count;
    must(lk_tree_reduce_start(&b->request, s->comm, &b->op));
}

static void bucket_finish(const driver *d, bucket *b)
{
    must(lk_request_wait(b->request));
    lk_request_free(b->request);
    update(d->own, b->first + b->mine, b->count, b->op.out + b->mine);
}

/* Reduces buckets as in a backward pass, but all at once. */
static void fused_call(driver *d, const task *t)
{
    static bucket buckets[BUCKETS_MAX];
    size_t        elements = t->input, count = (elements + BUCKET - 1) / BUCKET, done = 0;

    for (size_t i = 0; i < count; i++) {
        size_t first = i * BUCKET, rest = elements - first;
        if (i - done == BUCKETS_MAX)
            bucket_finish(d, &buckets[done++ % BUCKETS_MAX]);
        bucket_start(d, &buckets[i % BUCKETS_MAX], first, rest < BUCKET ? rest : BUCKET);
    }
    while (done < count)
        bucket_finish(d, &buckets[done++ % BUCKETS_MAX]);
    barrier(d);
}

/* Checks the parameters.  The sums of inputs are whole numbers and the factors are powers of two,
 * so all updates are exact. */
static bool params_right(const driver *d, const task *t)
{
    const state *s = d->own;
    uint32_t     sums[8];

    for (uint32_t k = 0; k < 8; k++) {
        sums[k] = 0;
        for (uint32_t call = 0; call < t->calls; call++)
            sums[k] += expected(d, t, k, call);
    }
    for (size_t i = 0; i < t->input; i++)
        if (s->params[i] != -0x1p-21F * (float)(sums[i % 8] * (t->rounds + WARM_UP)))
            return false;
    return true;
}

static bool right(const driver *d, const task *t)
{
    way w = ((const state *)d->own)->way;
    if (w == FLOOR || w == FLAG) /* flag and floor have no result to check */
        return true;
    return w >= FUSED ? params_right(d, t) : is_right(d, t, t->calls - 1);
}

/* ---- Calls ------------------------------------------------------------------------------- */

static void public_call(driver *d, const task *t)
{
    lk_comm *comm  = ((state *)d->own)->comm;
    lk_dtype dtype = t->bf16 ? LK_BF16 : LK_F32;

    switch (t->op) {
    case OP_ALL_REDUCE: must(lk_all_reduce(comm, d->send, d->recv, t->input, dtype, LK_SUM)); break;
    case OP_REDUCE_SCATTER:
        must(lk_reduce_scatter(comm, d->send, d->recv, t->part, dtype, LK_SUM));
        break;
    case OP_ALL_GATHER: must(lk_all_gather(comm, d->send, d->recv, t->part * t->width)); break;
    }
}

static void call(driver *d, const task *t)
{
    const state *s = d->own;

    switch (s->way) {
    case ARENA:
    case HEAP: public_call(d, t); break;
    case FLAG: flag_call(d); break;
    case FLOOR: floor_call(d, t); break;
    case FUSED: fused_call(d, t); break;
    case SEPARATE:
        public_call(d, t);
        update(s, 0, t->input, floats(d->recv, 0));
        break;
    }
}

int main(int argc, char **argv)
{
    state     s = { .way = ARENA };
    lk_arena *arena;

    check_arguments(argc, argv, 2, 2);
    s.each = ((size_t)strtoull(argv[2], NULL, 10) + 4095) / 4096 * 4096;
    must(lk_join(&s.comm));
    must(lk_exec_open(&s.exec, 1, NULL));
    driver d = { .rank      = lk_comm_rank(s.comm),
                 .size      = lk_comm_size(s.comm),
                 .bytes_max = s.each,
                 .begin     = begin,
                 .barrier   = barrier,
                 .call      = call,
                 .right     = right,
                 .own       = &s };
    must(lk_comm_arena(&arena, s.comm, "bench", s.each * (2 * d.size + 1) + 8192));
    s.arena = lk_arena_data(arena);
    s.heap  = aligned_alloc(4096, 2 * s.each);
    if (s.heap == NULL)
        return 1;
    memset(s.heap, 0, 2 * s.each);
    int code = serve(&d, argv[1]);
    free(s.heap);
    lk_exec_free(s.exec);
    lk_comm_free(s.comm);
    return code;
}
