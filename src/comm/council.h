/* comm/council.h -- who goes on where ranks are threads of one process: they decide together.
 *
 * What the launcher is for processes (comm/rebuild.c).  A rank is gone when it has freed its first
 * communicator, or has not come when the time is up; it cannot be killed, but its group is dead,
 * and it is refused the next one.
 *
 * Ownership: counted; lki_council_new() gives the first reference, every group has one.
 * Threads:   all.
 */
#ifndef LKI_COMM_COUNCIL_H
#define LKI_COMM_COUNCIL_H

#include "comm/group.h"
#include "comm/link.h"

typedef struct lki_council lki_council;

/* The link of a rank in an epoch, where ranks are on several (simulated) hosts. */
typedef lki_link *lki_council_link(void *context, uint32_t rank, uint64_t epoch);

LK_NODISCARD lk_status lki_council_new(lki_council **out, uint32_t world, lki_council_link *link,
                                       void *context);
void lki_council_free(lki_council *council); /* a reference; NULL is allowed */

/* The ranks of this roster are on one host; before any of them asks. */
void lki_council_seat(lki_council *council, lki_roster roster);

/* Waits for the group after *epoch; one of its users is this rank then. */
LK_NODISCARD lk_status lki_council_ask(lki_group **out, lki_council *council, uint32_t rank,
                                       uint64_t *epoch, uint32_t timeout_ms);

/* This rank has left the group of `epoch`.  NULL is allowed. */
void lki_council_gone(lki_council *council, uint32_t rank, uint64_t epoch);

/* NULL where there is none. */
lki_link *lki_council_link_of(lki_council *council, uint32_t rank, uint64_t epoch);

/* ---- Groups (comm.c) --------------------------------------------------------------------- */

/* The ranks of a host in this epoch, with as many users as it has seats. */
LK_NODISCARD lk_status lki_group_next(lki_group **out, lki_council *council, lki_roster roster,
                                      uint64_t epoch, const lki_members *members);

/* As lki_comm_open_shm(), for one of its users. */
LK_NODISCARD lk_status lki_comm_open_next(lk_comm **out, lki_group *group, uint32_t rank,
                                          const lk_comm_options *options);

void lki_group_release(lki_group *group);

#endif
