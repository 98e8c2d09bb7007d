/* comm/rebuild.h -- asking the launcher for the next epoch of a group. */
#ifndef LKI_COMM_REBUILD_H
#define LKI_COMM_REBUILD_H

#include "comm/group.h"

/* Asks, through the launcher's socket, for the group after *epoch, and waits for what it says: the
 * epoch that begins, and its control memory, whose descriptor is the caller's.  `admits`: with
 * those who wait to enter, if all say so. */
LK_NODISCARD lk_status lki_rebuild_ask(int *control_fd, uint64_t *epoch, int socket,
                                       uint32_t timeout_ms, bool admits);

/* As lki_comm_join_hosts(), in the group that follows that of `before`: with its key and tuning.
 * Where nobody is left on other hosts, *out is `local`. */
LK_NODISCARD lk_status lki_comm_rejoin_hosts(lk_comm **out, lk_comm *local,
                                             const lki_self *before);

/* The same for a rank that was in no group before, and so has the key alone, or NULL. */
LK_NODISCARD lk_status lki_comm_enter_hosts(lk_comm **out, lk_comm *local,
                                            const unsigned char *key);

#endif
