/* lockstep/recovery.h -- groups after a loss, and workers that take the place of lost ones.
 *
 * Part of lockstep/comm.h, which includes it.  A communicator that has lost a rank fails.  The
 * survivors create a new one with lk_comm_rebuild().  Processes that replace lost workers
 * (lk_enters()) enter when all ranks call lk_comm_admit(), between two steps.
 */
#ifndef LK_RECOVERY_H
#define LK_RECOVERY_H

#include "lockstep/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Creates a new first communicator of the surviving ranks, in their old order, numbered from 0.
 * Collective over the survivors.  `failed` must be a failed communicator from lk_join() or
 * lk_comm_rebuild().  The caller still owns `failed`, can move its arenas (lk_comm_take_arenas()),
 * and then frees it.  Requests of `failed`, and of communicators created from it, are abandoned.
 *
 * The launcher decides which ranks survive (`lockstep run --on-failure continue`, or on_failure of
 * lk_launch()).  It waits until every rank of `failed` has called lk_comm_rebuild(), has left, or
 * has ended.  A rank that does none of these within the shortest timeout of the callers is killed.
 * If a rank dies during the call, the new group excludes it or fails.  On several hosts node 0's
 * launcher decides from the reports of all launchers; a whole host may be lost.
 *
 * Ranks that are threads of one process decide together.  A rank that has freed its first
 * communicator has left.  A late rank is not killed, but the new group refuses it.
 *
 * options->timeout_ms limits the waits of this call and, until lk_comm_set_timeout(), of the new
 * communicator.  NULL or 0 means the deadline given at opening.  Operations are counted from 0
 * again.  The new communicator has no arenas.  The flight record continues.
 *
 * Returns LK_EINVAL if `failed` is any other communicator, and LK_EUNSUPPORTED if no launcher
 * decides (a foreign launcher, --on-failure stop).  Returns LK_EPEER or LK_ETIMEOUT if a launcher
 * or another rank failed or did not arrive during the call. */
LK_API LK_NODISCARD lk_status lk_comm_rebuild(lk_comm **out, lk_comm *failed,
                                              const lk_comm_options *options);

/* Returns true if processes that replace lost workers wait in lk_join() (lk_enters()).  Ranks may
 * learn it at different times. */
LK_API bool lk_comm_awaited(const lk_comm *comm);

/* Ends `comm`, which has not failed, and creates a new first communicator of its ranks and of the
 * processes that wait to enter, which have the last ranks of their host.  Collective.  If the group
 * fails, or a process that enters is lost during the call, this is lk_comm_rebuild(): the new
 * communicator has the ranks that are left.  Otherwise as lk_comm_rebuild(), also for `comm`. */
LK_API LK_NODISCARD lk_status lk_comm_admit(lk_comm **out, lk_comm *comm,
                                            const lk_comm_options *options);

/* Returns the number of ranks that entered when this communicator was created. */
LK_API uint32_t lk_comm_entered(const lk_comm *comm);

/* Moves the arenas of `failed` to `comm`, which lk_comm_rebuild() or lk_comm_admit() created from
 * `failed`.  Collective over `comm`, which must have no arenas yet (else LK_EINVAL).  Nothing is
 * copied: contents and addresses stay the same.  A rank that has entered gives NULL, and maps the
 * arenas of its host.  On several hosts, arenas of different hosts may be at different points of
 * the step. */
LK_API LK_NODISCARD lk_status lk_comm_take_arenas(lk_comm *comm, lk_comm *failed);

/* Returns true if the group ended because a rank was lost (died, left, or missed a deadline).
 * Returns false if a rank reported an error that the other ranks would encounter as well. */
LK_API bool lk_comm_has_lost(const lk_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
