/* comm/group/thread_rebuild.h -- rebuilds among ranks that are threads of one process.
 *
 * For processes the launcher decides a rebuild (comm/join/rebuild.c).  For threads, a rank counts
 * as lost if it has freed its first communicator or has not asked for the next group before the
 * deadline.  A lost thread cannot be killed.  It is still in the failed group, and the next group
 * refuses it.
 *
 * Ownership: the object is reference-counted.  lki_thread_rebuild_new() returns the first
 * reference, and every group holds one.
 * Threads:   all threads may call these functions.
 */
#ifndef LKI_COMM_GROUP_THREAD_REBUILD_H
#define LKI_COMM_GROUP_THREAD_REBUILD_H

#include "comm/group/group.h"
#include "link/link.h"

typedef struct lki_thread_rebuild lki_thread_rebuild;

/* Returns the link of a rank in a group epoch.  Needed only if the ranks are on several (simulated)
 * hosts. */
typedef lki_link *lki_thread_rebuild_link(void *context, uint32_t rank, uint64_t epoch);

LK_NODISCARD lk_status lki_thread_rebuild_new(lki_thread_rebuild **out, uint32_t world,
                                              lki_thread_rebuild_link *link, void *context);
void lki_thread_rebuild_free(lki_thread_rebuild *self); /* drops a reference; NULL is allowed */

/* Registers the ranks of one host.  Must be called before these ranks call
 * lki_thread_rebuild_ask(). */
void lki_thread_rebuild_seat(lki_thread_rebuild *self, lki_roster roster);

/* Waits for the group that follows epoch *epoch.  *out becomes the group, of which the caller is
 * then a user. */
LK_NODISCARD lk_status lki_thread_rebuild_ask(lki_group **out, lki_thread_rebuild *self,
                                              uint32_t rank, uint64_t *epoch, uint32_t timeout_ms);

/* Records that a rank has left the group of `epoch`.  NULL is allowed. */
void lki_thread_rebuild_gone(lki_thread_rebuild *self, uint32_t rank, uint64_t epoch);

/* Returns the link of a rank in a group epoch, or NULL if there is none. */
lki_link *lki_thread_rebuild_link_of(lki_thread_rebuild *self, uint32_t rank, uint64_t epoch);

/* ---- Groups (comm.c) --------------------------------------------------------------------- */

/* Creates the group of a host's ranks in a group epoch.  Each rank with a seat is a user of the
 * group. */
LK_NODISCARD lk_status lki_group_next(lki_group **out, lki_thread_rebuild *self, lki_roster roster,
                                      uint64_t epoch, const lki_members *members);

/* Opens the communicator of a rank, like lki_comm_open_shm().  The rank must be a user of
 * `group`. */
LK_NODISCARD lk_status lki_comm_open_next(lk_comm **out, lki_group *group, uint32_t rank,
                                          const lk_comm_options *options);

void lki_group_release(lki_group *group);

#endif
