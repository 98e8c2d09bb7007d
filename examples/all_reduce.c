/* all_reduce.c -- the collectives alone: no model, no training.
 *
 * Every rank has a vector, and all get the sum; the same program runs on one rank, on many of this
 * machine, and on several hosts.  Run it as it is, or
 *
 *     lockstep run -n 4 ./all_reduce
 *     lockstep run -n 4 ./all_reduce 1000000
 *
 * The sum is taken along one tree over the ranks, ((r0 + r1) + (r2 + r3)) + ..., whatever the size
 * is and wherever the buffers lie; so all ranks print the same bits, in every run.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>
#include <lockstep/launch.h>

/* All vectors lie in one arena, whose size must be a number: of 4096 ranks, and more than anybody
 * has memory for. */
#define ELEMENTS_MAX (SIZE_MAX / sizeof(float) / 4096)

/* Values that do not add up exactly: in another order their sum would have other bits. */
static void fill(float *values, size_t count, uint32_t rank)
{
    for (size_t i = 0; i < count; i++)
        values[i] = 1.0f / (float)(i + 1 + 17 * (size_t)rank);
}

/* Something short to compare bits by. */
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

/* The buffer lies in an arena, so that the others may read it where it is: nothing is copied.
 * Any other memory will do, and costs two copies. */
static lk_status add_up(lk_comm *comm, size_t count)
{
    uint32_t  rank = lk_comm_rank(comm), ranks = lk_comm_size(comm);
    lk_arena *arena = NULL;
    lk_status st    = lk_comm_arena(&arena, comm, "vectors", ranks * count * sizeof(float));
    if (st != LK_OK)
        return st;
    float *mine = (float *)lk_arena_data(arena) + rank * count;
    fill(mine, count, rank);

    /* Started here and waited for below: work of your own goes in between. */
    lk_request *request = NULL;
    st = lk_all_reduce_start(&request, comm, mine, mine, count, LK_F32, LK_SUM);
    if (st == LK_OK)
        st = lk_request_wait(request);
    lk_request_free(request);

    if (st == LK_OK)
        printf("rank %" PRIu32 " of %" PRIu32 ": the first of %zu sums is %.9g, all hash to "
               "%016" PRIx64 "\n", rank, ranks, count, (double)mine[0], digest(mine, count));
    return st == LK_OK ? lk_barrier(comm) : st; /* nobody leaves while others read its vector */
}

int main(int argc, char **argv)
{
    lk_comm  *comm  = NULL;
    size_t    count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;

    if (count == 0 || count > ELEMENTS_MAX) { /* before lk_join(): all ranks leave alike */
        fprintf(stderr, "usage: all_reduce [ELEMENTS], from 1 to %zu\n", ELEMENTS_MAX);
        return 2;
    }
    lk_status st = lk_join(&comm); /* the group that the launcher made; alone, a group of one */
    if (st == LK_OK)
        st = add_up(comm, count);
    if (st != LK_OK) { /* every call says what went wrong, on which rank, and what to do */
        fprintf(stderr, "all_reduce: %s\n", lk_error_last()->message);
        lk_comm_abort(comm);
    }
    lk_comm_free(comm);
    return st != LK_OK;
}
