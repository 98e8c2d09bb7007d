/* all_reduce.c -- how long lk_all_reduce() takes beside a plain copy of as many bytes.
 *
 *     all_reduce [RANKS]      default: 2
 *
 * Ranks are threads.  A copy by every rank moves what the direct way must move at least: each
 * payload byte read once and written once.  `arena` is the direct way, `heap` the staged one.
 * The smallest and the median of all rounds: on a busy machine only the smallest means much.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lockstep/comm.h"

enum { RANKS_MAX = 64, ROUNDS = 15, WAYS = 3 };

static const size_t bytes_max = (size_t)64 << 20;

typedef struct {
    uint32_t ranks;
    lk_comm *comms[RANKS_MAX];
} bench;

typedef struct {
    bench   *all;
    uint32_t rank;
} argument;

static double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void must(lk_status st)
{
    if (st == LK_OK)
        return;
    fprintf(stderr, "all_reduce: %s\n", lk_error_last()->message);
    exit(1);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef enum { COPY, ARENA, HEAP } way;

static void once(lk_comm *comm, way w, unsigned char *arena, unsigned char *heap, size_t bytes)
{
    if (w == COPY)
        memcpy(heap, arena, bytes);
    else
        must(lk_all_reduce(comm, w == ARENA ? arena : heap, w == ARENA ? arena : heap,
                           bytes / sizeof(float), LK_F32, LK_SUM));
}

/* Microseconds of one call: the times of all rounds in ascending order. */
static void measure(lk_comm *comm, way w, unsigned char *arena, unsigned char *heap, size_t bytes,
                    double times[ROUNDS])
{
    size_t repeat = bytes >= (1u << 20) ? 1 : (1u << 20) / (bytes + 1024);

    for (int round = -2; round < ROUNDS; round++) {
        must(lk_barrier(comm));
        double began = now_us();
        for (size_t i = 0; i < repeat; i++)
            once(comm, w, arena, heap, bytes);
        times[round < 0 ? 0 : round] = (now_us() - began) / (double)repeat;
    }
    qsort(times, ROUNDS, sizeof *times, ascending);
}

static void *rank_main(void *data)
{
    const argument *a    = data;
    lk_comm        *comm = a->all->comms[a->rank];
    unsigned char  *heap = calloc(1, bytes_max);
    lk_arena       *arena;

    must(lk_comm_arena(&arena, comm, "bench", bytes_max * a->all->ranks));
    unsigned char *mine = (unsigned char *)lk_arena_data(arena) + bytes_max * a->rank;
    if (a->rank == 0)
        printf("%10s %12s %12s %12s %10s %10s   (us, smallest; in brackets the median)\n", "bytes",
               "copy", "arena", "heap", "arena/copy", "heap/copy");
    for (size_t bytes = 4; bytes <= bytes_max && heap != NULL; bytes *= 4) {
        double t[WAYS][ROUNDS];
        for (way w = COPY; w <= HEAP; w++)
            measure(comm, w, mine, heap, bytes, t[w]);
        if (a->rank == 0)
            printf("%10zu %12.2f %12.2f %12.2f %10.2f %10.2f   [%.2f %.2f %.2f]\n", bytes,
                   t[COPY][0], t[ARENA][0], t[HEAP][0], t[ARENA][0] / t[COPY][0],
                   t[HEAP][0] / t[COPY][0], t[COPY][ROUNDS / 2], t[ARENA][ROUNDS / 2],
                   t[HEAP][ROUNDS / 2]);
    }
    free(heap);
    lk_comm_free(comm);
    return NULL;
}

int main(int argc, char **argv)
{
    bench     all = { .ranks = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2 };
    argument  arguments[RANKS_MAX];
    pthread_t threads[RANKS_MAX];

    if (all.ranks < 1 || all.ranks > RANKS_MAX) {
        fprintf(stderr, "all_reduce: from 1 to %d ranks\n", RANKS_MAX);
        return 2;
    }
    must(lk_comm_open_threads(all.comms, all.ranks, NULL));
    for (uint32_t rank = 0; rank < all.ranks; rank++) {
        arguments[rank] = (argument){ &all, rank };
        if (pthread_create(&threads[rank], NULL, rank_main, &arguments[rank]) != 0)
            return 1;
    }
    for (uint32_t rank = 0; rank < all.ranks; rank++)
        (void)pthread_join(threads[rank], NULL);
    return 0;
}
