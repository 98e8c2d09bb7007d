/* all_reduce.c -- collectives without a model or training.
 *
 * Every rank has a vector, and all ranks receive the sum.  The same program runs on one rank, on
 * many ranks of this machine, and on several hosts.  Run it directly, or
 *
 *     lockstep run -n 4 ./all_reduce
 *     lockstep run -n 4 ./all_reduce 1000000
 *
 * The sum is computed along one tree over the ranks, ((r0 + r1) + (r2 + r3)) + ..., for every size
 * and any location of the buffers.  So all ranks print the same bits, in every run.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>
#include <lockstep/launch.h>

/* All vectors are in one arena, whose size must not overflow.  This is enough for 4096 ranks, and
 * more than any machine has. */
#define ELEMENTS_MAX (SIZE_MAX / sizeof(float) / 4096)

/* Fills in values whose sum is inexact, so that another order of additions would give other
 * bits. */
static void fill(float *values, size_t count, uint32_t rank)
{
    for (size_t i = 0; i < count; i++)
        values[i] = 1.0f / (float)(i + 1 + 17 * (size_t)rank);
}

/* Returns a short hash with which bits can be compared. */
static uint64_t digest(const float *values, size_t count)
{
    uint64_t sum = 1469598103934665603u;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        sum = (sum ^ bits) * 1099511628211u;
    }
    return sum;
}

/* Sums the ranks' vectors.  The buffer is in an arena, so other ranks can read it without a copy.
 * Any other memory also works, and costs two copies. */
static lk_status add_up(lk_comm *comm, size_t count)
{
    uint32_t  rank = lk_comm_rank(comm), ranks = lk_comm_size(comm);
    lk_arena *arena = NULL;
    lk_status st    = lk_comm_arena(&arena, comm, "vectors", ranks * count * sizeof(float));
    if (st != LK_OK)
        return st;
    float *mine = (float *)lk_arena_data(arena) + rank * count;
    fill(mine, count, rank);

    /* The reduction is started here and completed below, so other work can be done in between. */
    lk_request *request = NULL;
    st = lk_all_reduce_start(&request, comm, mine, mine, count, LK_F32, LK_SUM);
    if (st == LK_OK)
        st = lk_request_wait(request);
    lk_request_free(request);

    if (st == LK_OK)
        printf("rank %" PRIu32 " of %" PRIu32 ": the first of %zu sums is %.9g, all hash to "
               "%016" PRIx64 "\n", rank, ranks, count, (double)mine[0], digest(mine, count));
    return st == LK_OK ? lk_barrier(comm) : st; /* no rank leaves while others read its vector */
}

int main(int argc, char **argv)
{
    lk_comm  *comm  = NULL;
    size_t    count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;

    /* checked before lk_join(), so that all ranks exit in the same way */
    if (count == 0 || count > ELEMENTS_MAX) {
        fprintf(stderr, "usage: all_reduce [ELEMENTS], from 1 to %zu\n", ELEMENTS_MAX);
        return 2;
    }
    /* joins the launcher's group or, without a launcher, a group of one rank */
    lk_status st = lk_join(&comm);
    if (st == LK_OK)
        st = add_up(comm, count);
    if (st != LK_OK) { /* every error names the failure, the rank and a remedy */
        fprintf(stderr, "all_reduce: %s\n", lk_error_last()->message);
        lk_comm_abort(comm);
    }
    lk_comm_free(comm);
    return st != LK_OK;
}
