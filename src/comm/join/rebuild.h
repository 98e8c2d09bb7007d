/* comm/join/rebuild.h -- requests to the launcher for the next epoch of a group. */
#ifndef LKI_COMM_JOIN_REBUILD_H
#define LKI_COMM_JOIN_REBUILD_H

#include "comm/group/group.h"

/* Asks the launcher, through `socket`, for the group after *epoch, and waits for the answer.  On
 * success *epoch becomes the new epoch and *control_fd a descriptor of its control memory, which
 * the caller owns.  If all ranks set `admits`, the group includes the ranks that wait to enter. */
LK_NODISCARD lk_status lki_rebuild_ask(int *control_fd, uint64_t *epoch, int socket,
                                       uint32_t timeout_ms, bool admits);

/* Joins the other hosts like lki_comm_join_hosts(), after a rebuild.  Uses the key and tuning of
 * `before`, which is the state of this rank in the previous group.  If all remaining ranks are on
 * this host, *out becomes `local`. */
LK_NODISCARD lk_status lki_comm_rejoin_hosts(lk_comm **out, lk_comm *local,
                                             const lki_self *before);

/* Joins the other hosts like lki_comm_join_hosts(), for a rank that was in no group before.  `key`
 * is the job's key, or NULL. */
LK_NODISCARD lk_status lki_comm_enter_hosts(lk_comm **out, lk_comm *local,
                                            const unsigned char *key);

#endif
