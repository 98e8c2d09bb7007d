/* comm/worker.h -- internal calls of a worker on its group: joining, failing, rebuilding, messages
 * to the launcher, and limits.
 *
 * Other folders of src/ include this header, so that they do not see slots, seats and bells.
 */
#ifndef LKI_COMM_WORKER_H
#define LKI_COMM_WORKER_H

#include <signal.h>
#include <stdatomic.h>

#include "comm/roster.h"
#include "lockstep/comm.h"

/* ---- Joining ----------------------------------------------------------------------------- */

/* Joins the group in the control memory `control_fd` as `rank`, and waits for the other ranks.  The
 * caller may close `control_fd` afterwards.  On success the communicator owns `launcher_socket`. */
LK_NODISCARD lk_status lki_comm_open_shm(lk_comm **out, int control_fd, uint32_t rank,
                                         int launcher_socket, const lk_comm_options *options);

/* Enters an existing group, on one host or several, when the ranks of the group admit new ranks.
 * `key` is the job's key, or NULL. */
LK_NODISCARD lk_status lki_comm_enter(lk_comm **out, uint32_t rank, int launcher_socket,
                                      const unsigned char *key, const lk_comm_options *options);

/* ---- Failing together -------------------------------------------------------------------- */

/* Returns true if the group has failed. */
bool lki_comm_has_failed(const lk_comm *comm);

/* The end of messages about timeouts. */
#define LKI_RAISE_TIMEOUT "; if they are only slow, raise `timeout_ms`"

/* Records the group's failure and wakes all ranks, unless the group has failed already.  Sets this
 * thread's error to the group's failure and returns its status. */
lk_status lki_fail_group(lk_comm *comm, uint32_t culprit, lk_status verdict, const char *format,
                         ...) __attribute__((format(printf, 4, 5)));

/* Sets this thread's error to the group's failure and returns its status. */
lk_status lki_group_failure(const lk_comm *comm);

/* Returns the world rank to blame for the failure of a group. */
uint32_t lki_comm_culprit(const lk_comm *failed);

/* Returns the deadline of this rank's waits. */
uint32_t lki_comm_timeout_ms(const lk_comm *comm);

/* ---- Waiting for memory that ranks share ------------------------------------------------- */

/* Waits until *word, which the ranks of this host share, differs from `seen`, or for `ms`
 * milliseconds.  Fails if the group fails or a process of this host has ended. */
LK_NODISCARD lk_status lki_comm_await_word(lk_comm *comm, _Atomic uint32_t *word, uint32_t seen,
                                           uint32_t ms);

/* Changes *word, and wakes the ranks that wait for it. */
void lki_comm_wake_word(_Atomic uint32_t *word);

/* ---- The group, its launcher and the groups before and after it -------------------------- */

/* Performs lk_comm_rebuild() and admits the waiting ranks.  If the new group fails and another one
 * is formed, *missed becomes the failure of the first new group.  Otherwise the status in *missed
 * is LK_OK. */
LK_NODISCARD lk_status lki_comm_admit(lk_comm **out, lk_comm *failed,
                                      const lk_comm_options *options, lk_error *missed);

/* Returns true if a rank is new: it entered when this group was formed. */
bool                   lki_comm_is_fresh(const lk_comm *comm, uint32_t rank);

/* Returns true if all ranks of a host are new: the host joined late, and has no arenas yet. */
bool lki_comm_host_is_fresh(const lk_comm *comm, uint32_t host);

/* Opens an arena like lk_comm_arena(), but only among the ranks of this host.  The ranks of other
 * hosts must have opened it before. */
LK_NODISCARD lk_status lki_comm_own_arena(lk_arena **out, lk_comm *comm, const char *name,
                                          size_t bytes);

/* Writes "rank 5 (host b, pid 4711)" for a rank of the communicator. */
void lki_comm_who(const lk_comm *comm, uint32_t rank, char out[LKI_WHO_BYTES]);

/* Writes the text of lki_comm_who() for a world rank, which may be outside the group. */
void lki_comm_world_who(const lk_comm *comm, uint32_t rank, char out[LKI_WHO_BYTES]);

/* Sends a line of text for the user to the launcher. */
void lki_comm_tell(const lk_comm *comm, const char *text);

/* Writes the launcher's text about the loss of a rank of `before`.  The group `before` has failed,
 * and the rank is not in the later group `now`.  Returns false if the launcher wrote no text. */
bool lki_comm_loss(const lk_comm *now, const lk_comm *before, uint32_t rank,
                   char out[LKI_LOSS_BYTES]);

/* Returns the arena with this name, or NULL.  Only the first 51 bytes of names are compared. */
lk_arena *lki_comm_arena_named(const lk_comm *comm, const char *name);

bool lki_comm_stop_requested(const lk_comm *comm);

/* Makes this rank count as asked to stop when *asked, which a signal handler sets, is not 0.  It
 * must live as long as the communicator. */
void lki_comm_obey(lk_comm *comm, const volatile sig_atomic_t *asked);

/* Returns true if the launcher has asked the ranks of this host to leave the group. */
bool lki_comm_leave_requested(const lk_comm *comm);

/* Leaves the group.  This rank issues no more operations and only frees its communicators. */
void lki_comm_leave(lk_comm *first);

/* Leaves the group while other ranks continue.  Also reports this to the launcher, which then
 * creates a group without this rank. */
void lki_comm_depart(lk_comm *first);

/* Ends a group on purpose, for a reason on which all callers agree.  All later calls in the group
 * return LK_EPEER. */
lk_status lki_comm_dissolve(lk_comm *first, uint32_t culprit, const char *why);

/* ---- Jobs on several hosts --------------------------------------------------------------- */

/* Returns the number of ranks of the job, on all hosts. */
uint32_t lki_comm_world(const lk_comm *comm);

/* Returns the number of the host of a world rank, which may be outside the group. */
uint32_t lki_comm_node(const lk_comm *comm, uint32_t rank);

/* Opens the communicator over all hosts from `local`, the communicator of this host: listens,
 * exchanges addresses, connects.  `key` is the job's key (LKI_KEY_BYTES bytes) or NULL.  Takes over
 * `local`, also on failure.  On failure the launcher socket of `local` belongs to the caller again.
 * If the other hosts have not joined yet, *out is `local`. */
LK_NODISCARD lk_status lki_comm_join_hosts(lk_comm **out, lk_comm *local,
                                           const unsigned char *key);

/* Publishes the address of this rank, and waits until all ranks have published their addresses. */
LK_NODISCARD lk_status lki_comm_introduce(lk_comm *comm, const char *address);

/* Returns the address of a world rank.  All ranks must have called lki_comm_introduce(). */
const char *lki_comm_address(const lk_comm *comm, uint32_t rank);

/* ---- Limits ------------------------------------------------------------------------------ */

/* Limits the memory of all ranks of this host to `bytes` in total.  All ranks of the host call it.
 * Returns LK_ENOMEM if the ranks already use more, and LK_EUNSUPPORTED if they are threads. */
LK_NODISCARD lk_status lki_comm_limit_memory(lk_comm *comm, uint64_t bytes);

/* Reserves `bytes` of the host's limit for one rank, in addition to the rank's equal share.  All
 * ranks of the host call it, with `mine` true on that rank only.  Later calls must name the same
 * rank.  Returns LK_ENOMEM if the ranks already use more. */
LK_NODISCARD lk_status lki_comm_limit_one(lk_comm *comm, uint64_t bytes, bool mine);

#endif
