/* engine.c -- letting go of MPI where all ranks share memory, and no link ends with it.
 *
 * MPI_Finalize waits for everybody, without a deadline and without looking at who is still there.
 * So a rank goes into it only when all have freed their first communicator.
 */
#include "comm/transport/mpi/engine.h"

#include <time.h>

#include "base/memory.h"

enum { LINGER_MS = 5000, NAP_NS = 1000000 };

bool lki_engine_serves(const lki_engine *engine, const lk_comm *comm)
{
    return engine != NULL && engine->comm == comm;
}

void lki_engine_free(lki_engine *engine)
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
        if (failed && lki_now_ms() - began >= LINGER_MS)
            return false;
        (void)nanosleep(&nap, NULL);
    }
    return true;
}

void lki_engine_leave(lki_engine *engine, lk_comm *first)
{
    if (engine == NULL)
        return;
    if (engine->closes && wait_for_all(first))
        engine->module->close(engine->world);
    lki_engine_free(engine);
}
