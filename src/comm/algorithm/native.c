/* native.c -- MPI's own collective, in a job that MPI has started: see comm/mpi/native.c.
 *
 * Cost:    the cost of MPI's algorithm, which the cost model does not know.
 * Order:   MPI's, which depends on the library, its version, sizes and the number of ranks: not
 *          exact.  The algorithm is therefore used only if selected by name.
 * Memory:  16-bit types: the vector in FP32.  MPI's own buffers are not counted.
 */
#include "comm/algorithm/schedule.h"

static bool can(const lki_problem *p)
{
    switch ((int)p->kind) {
    case LKI_OP_BROADCAST:
    case LKI_OP_ALL_GATHER:
    case LKI_OP_ALL_TO_ALL:
    case LKI_OP_ALL_REDUCE:
    case LKI_OP_REDUCE:
    case LKI_OP_REDUCE_SCATTER: return p->native;
    default: return false;
    }
}

static lki_work work(const lki_problem *p)
{
    (void)p;
    return lki_work_alike(p->size, 0, 0, 0, 0);
}

const lki_method lki_method_native = { .name = "native", .asked = true, .can = can, .work = work };
