/* groups.c -- tests lk_comm_open_mpi_comm() and lk_comm_open_mpi_fint() in a program that is linked
 * with MPI, as users' programs are.  tests/mpi/run starts it with 5 ranks.
 *
 * Ranks 0 and 2, and ranks 1 and 3, form two groups; rank 4 is in none.  The groups work at
 * different times, and beside a communicator of all ranks.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lockstep/launch.h"

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "groups.c:%d: %s: %s\n", __LINE__, #x, lk_error_last()->message);      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Sums the world ranks of a communicator, and expects `sum`. */
static void sums_to(lk_comm *comm, int world_rank, float sum)
{
    float x = (float)world_rank;

    CHECK(lk_all_reduce(comm, &x, &x, 1, LK_F32, LK_SUM) == LK_OK);
    CHECK(x == sum);
}

static void works_in_its_group(int rank)
{
    lk_comm *comm, *again;
    MPI_Comm group;

    MPI_Comm_split(MPI_COMM_WORLD, rank == 4 ? MPI_UNDEFINED : rank % 2, -rank, &group);
    if (rank == 4) {
        CHECK(lk_comm_open_mpi_comm(&comm, &group, sizeof group, NULL) == LK_EINVAL);
        CHECK(comm == NULL && strstr(lk_error_last()->message, "MPI_COMM_NULL") != NULL);
        return;
    }
    CHECK(lk_comm_open_mpi_comm(&comm, &group, sizeof group, NULL) == LK_OK);
    CHECK(lk_comm_open_mpi_fint(&again, (int)MPI_Comm_c2f(group), NULL) == LK_OK);
    MPI_Comm_free(&group);
    CHECK(lk_comm_size(comm) == 2 && lk_comm_rank(comm) == (rank < 2)); /* by the key, -rank */
    for (int k = 0; k < 3 + rank % 2; k++)
        sums_to(k == 2 ? again : comm, rank, rank % 2 == 0 ? 2 : 4);
    lk_comm_free(comm);
    sums_to(again, rank, rank % 2 == 0 ? 2 : 4);
    lk_comm_free(again);
}

static void refuses_other_handles(int rank)
{
    MPI_Comm half, inter, world = MPI_COMM_WORLD;
    lk_comm *comm;

    CHECK(lk_comm_open_mpi_comm(&comm, NULL, sizeof world, NULL) == LK_EINVAL && comm == NULL);
    CHECK(lk_comm_open_mpi_comm(&comm, &world, sizeof world / 2, NULL) == LK_EINVAL);
    CHECK(strstr(lk_error_last()->message, "another size") != NULL);
    MPI_Comm_split(MPI_COMM_WORLD, rank < 2, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank < 2 ? 2 : 0, 7, &inter);
    CHECK(lk_comm_open_mpi_comm(&comm, &inter, sizeof inter, NULL) == LK_EINVAL);
    CHECK(strstr(lk_error_last()->message, "intracommunicator") != NULL);
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
}

int main(int argc, char **argv)
{
    MPI_Comm world = MPI_COMM_WORLD;
    lk_comm *all;
    int      rank;

    CHECK(lk_comm_open_mpi_comm(&all, &world, sizeof world, NULL) == LK_EINVAL);
    CHECK(strstr(lk_error_last()->message, "MPI is not initialised") != NULL);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    CHECK(lk_comm_open_mpi_comm(&all, &world, sizeof world, NULL) == LK_OK);
    works_in_its_group(rank);
    refuses_other_handles(rank);
    sums_to(all, rank, 10);
    lk_comm_free(all);
    MPI_Finalize();
    return 0;
}
