/* mpi.c -- MPI's driver for bench/collectives.
 *
 *     mpirun -np RANKS mpi PIPES BYTES_MAX
 *
 * bench/collectives builds it with the mpicc of each implementation.  MPI has no bf16, so bf16 is
 * summed by a user-defined operation, which is optimised like Lockstep's.
 */
#include <mpi.h>

#include "../collectives.h"

#if defined(__x86_64__)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST
#endif

typedef struct {
    MPI_Op         bf16_sum;
    unsigned char *memory;
    size_t         each;
} state;

static inline float widen(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float    x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Rounds to nearest even; the input has no NaNs. */
static inline uint16_t narrow(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

WIDEST static void add_bf16(const uint16_t *in, uint16_t *inout, size_t n)
{
    for (size_t i = 0; i < n; i++)
        inout[i] = narrow(widen(in[i]) + widen(inout[i]));
}

static void bf16_sum(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    add_bf16(in, inout, (size_t)*n);
}

static const char *begin(driver *d, const task *t)
{
    const state *s = d->own;
    d->send        = s->memory;
    d->recv        = t->op == OP_ALL_REDUCE ? d->send : d->send + s->each;
    return NULL;
}

static void barrier(driver *d)
{
    (void)d;
    MPI_Barrier(MPI_COMM_WORLD);
}

static void call(driver *d, const task *t)
{
    const state *s    = d->own;
    MPI_Datatype type = t->bf16 ? MPI_UINT16_T : MPI_FLOAT;
    MPI_Op       op   = t->bf16 ? s->bf16_sum : MPI_SUM;

    switch (t->op) {
    case OP_ALL_REDUCE:
        MPI_Allreduce(MPI_IN_PLACE, d->recv, (int)t->input, type, op, MPI_COMM_WORLD);
        break;
    case OP_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(d->send, d->recv, (int)t->part, type, op, MPI_COMM_WORLD);
        break;
    case OP_ALL_GATHER:
        MPI_Allgather(d->send, (int)t->part, type, d->recv, (int)t->part, type, MPI_COMM_WORLD);
        break;
    }
}

static bool right(const driver *d, const task *t)
{
    return is_right(d, t, t->calls - 1);
}

int main(int argc, char **argv)
{
    state s = { .memory = NULL };
    int   rank, size;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 3)
        MPI_Abort(MPI_COMM_WORLD, 2);
    s.each   = ((size_t)strtoull(argv[2], NULL, 10) + 4095) / 4096 * 4096;
    driver d = { .rank      = (uint32_t)rank,
                 .size      = (uint32_t)size,
                 .bytes_max = s.each,
                 .begin     = begin,
                 .barrier   = barrier,
                 .call      = call,
                 .right     = right,
                 .own       = &s };
    MPI_Op_create(bf16_sum, 1, &s.bf16_sum);
    s.memory = aligned_alloc(4096, 2 * s.each);
    if (s.memory == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(s.memory, 0, 2 * s.each);
    int code = serve(&d, argv[1]);
    free(s.memory);
    MPI_Op_free(&s.bf16_sum);
    MPI_Finalize();
    return code;
}
