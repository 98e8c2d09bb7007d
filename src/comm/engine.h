/* comm/engine.h -- what started a job and stays in it: MPI, and its own collectives.
 *
 * MPI serves the communicator that lk_comm_open_mpi() gives, not those made of it.  An operation
 * that is asked for as "native" is compared on all ranks as any other is, and then MPI's: its order
 * of sums, its treatment of NaN, its algorithms.  It goes on while a rank asks about it. */
#ifndef LKI_COMM_ENGINE_H
#define LKI_COMM_ENGINE_H

#include "comm/request.h"

typedef struct lki_engine lki_engine;
typedef struct lki_native lki_native;

/* Whether MPI serves this communicator; NULL: no. */
bool lki_engine_serves(const lki_engine *engine, const lk_comm *comm);

/* The last communicator of a rank goes; `first` is its first one, on this host.  Where no link
 * does it, waits for the other ranks to leave, too, and lets go of MPI; after a failure for 5 s at
 * most, and then MPI is left as it is.  NULL is allowed. */
void lki_engine_leave(lki_engine *engine, lk_comm *first);

/* Without leaving: MPI stays.  NULL is allowed. */
void lki_engine_free(lki_engine *engine);

/* ---- Requests ---------------------------------------------------------------------------- */

/* Whether MPI can do it. */
bool lki_native_can(const lk_request *request);

/* Makes it MPI's, where all ranks are on one host and that was asked for. */
void lki_native_claim(lk_request *request);

/* Over several hosts: as lki_task_new() and lki_task_move(). */
LK_NODISCARD lk_status lki_native_new(lki_native **out, const lk_request *request);
LK_NODISCARD lk_status lki_native_move(lki_native *native, bool *moved, bool *done);

/* Whether MPI may touch its buffers; NULL: no. */
bool lki_native_open(const lki_native *native);

/* What MPI may still use stays.  NULL is allowed. */
void lki_native_free(lki_native *native);

/* MPI moves while it is asked, and cannot wake who sleeps: yields, or naps after some ms. */
void lki_native_rest(int64_t waited_ms);

#endif
