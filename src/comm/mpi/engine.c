/* engine.c -- closing MPI if all ranks share memory.  There is then no link that would close MPI.
 *
 * MPI_Finalize waits for all ranks, without a deadline and without detecting lost ranks.  A rank
 * therefore calls it only when all ranks have freed their first communicator.
 */
#include "comm/mpi/engine.h"

#include <time.h>

#include "base/memory.h"

enum { LINGER_MS = 5000, ENDING_MS = 500, NAP_NS = 1000000 };

void lki_mpi_engine_free(lki_mpi_engine *engine)
{
    lki_free(engine);
}

/* ---- Leaving ----------------------------------------------------------------------------- */

static bool all_have_left(const lk_comm *first)
{
    for (uint32_t rank = 0; rank < first->size; rank++)
        if (atomic_load(&lki_seat_of(first, rank)->left) == 0)
            return false;
    return true;
}

static bool wait_for_all(lk_comm *first)
{
    const struct timespec nap   = { .tv_nsec = NAP_NS };
    int64_t               began = lki_now_ms();

    while (!all_have_left(first)) {
        bool failed = lki_failed(first) || lki_peers_check(first, (lki_goal){ 0 }) != LK_OK;
        int  limit  = lki_is_asked_to_stop(first->self) ? ENDING_MS : LINGER_MS;
        if (failed && lki_now_ms() - began >= limit)
            return false;
        (void)nanosleep(&nap, NULL);
    }
    return true;
}

static void leave(lki_engine *head, lk_comm *first)
{
    lki_mpi_engine *engine = (lki_mpi_engine *)head;

    if (engine->closes && wait_for_all(first))
        engine->module->close(engine->world, lki_is_asked_to_stop(first->self));
    lki_mpi_engine_free(engine);
}

static const lki_engine_ops ops = { .claim = lki_native_claim, .leave = leave };

lk_status lki_mpi_engine_new(lki_mpi_engine **out, const lki_mpi_module *module,
                             lki_mpi_world *world, bool closes)
{
    LK_TRY(LKI_NEW(out, 1, "what is known of MPI"));
    **out =
        (lki_mpi_engine){ .head.ops = &ops, .module = module, .world = world, .closes = closes };
    return LK_OK;
}
