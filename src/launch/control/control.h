/* launch/control/control.h -- the launcher's side of a group.
 *
 * The control memory is one memfd with a record for each rank: the rank's step and phase, the
 * object that the rank waits for, its first error, and the word on which it sleeps.  The launcher
 * creates the control memory and passes it to the workers by descriptor.  It also passes one end of
 * a Unix socket to each worker.  Through that socket rank 0 sends the descriptor of every arena it
 * creates.  The launcher stores the descriptor and passes it on to the other ranks.  So a worker's
 * memory outlives the worker, and nothing has a name in a file system.
 *
 * Ownership: a control owns its descriptors, its ends of the sockets, and the arenas that it has
 *            received.
 * Threads:   one at a time.  No function blocks.
 */
#ifndef LKI_LAUNCH_CONTROL_CONTROL_H
#define LKI_LAUNCH_CONTROL_CONTROL_H

#include "comm/roster.h"

typedef struct lki_control lki_control;

/* ---- For the launcher -------------------------------------------------------------------- */

/* Creates the control memory.  Returns LK_EINVAL for an impossible roster.  In all functions below
 * `rank` is the world rank. */
LK_NODISCARD lk_status lki_control_create(lki_control **out, lki_roster roster);
void lki_control_free(lki_control *control);

/* Returns the descriptor for the workers.  The descriptor is close-on-exec; the child clears that
 * flag. */
int lki_control_fd(const lki_control *control);

/* Returns the end of a message about a call that failed with this number of errno: what to do; ""
 * for most numbers. */
const char *lki_remedy(int number);

/* Creates a socket pair for a rank; both ends are close-on-exec.  The caller owns *worker_end, for
 * the child.  *launcher_end is borrowed, for poll() and lki_control_serve(). */
LK_NODISCARD lk_status lki_control_socket(lki_control *control, uint32_t rank, int *worker_end,
                                          int *launcher_end);

/* Takes ownership of the socket of a worker that has connected by itself or that another process
 * has started.  Closes an earlier socket of the rank. */
void lki_control_adopt(lki_control *control, uint32_t rank, int launcher_end);

/* Records the pid of a rank before the rank can do so itself. */
void lki_control_started(lki_control *control, uint32_t rank, int32_t pid);

/* Sets the function that receives lines from ranks for the user: "rank 5 (pid 4711) refused
 * ...". */
void lki_control_notes_to(lki_control *control, void (*tell)(void *context, const char *text),
                          void *context);

/* Handles the packets that have arrived on a rank's socket.  *open becomes false when the socket is
 * closed and must no longer be polled. */
LK_NODISCARD lk_status lki_control_serve(lki_control *control, uint32_t rank, bool *open);

/* Records that the process of a rank has ended.  Unless the rank has left its group and exited with
 * status 0, every other rank's wait ends with LK_EPEER and a text that says how and where the rank
 * died.  Returns true if the end is a failure.  The end of a rank outside the group is not a
 * failure. */
bool lki_control_ended(lki_control *control, uint32_t rank, int exit_code, int signal);

/* Records that the process of a rank has ended with an unknown exit status.  Returns true if the
 * end is a failure. */
bool lki_control_vanished(lki_control *control, uint32_t rank);

/* Sets the text with which survivors describe the loss of `rank`: "rank 5 (pid 4711) was killed by
 * SIGKILL at step 12 in backward".  The text comes from the launcher with the most detail; the
 * first text of an epoch is final. */
void lki_control_lose(lki_control *control, uint32_t rank, const char *how);

/* `out` becomes the text that lki_control_lose() has set for `rank` in this epoch; "" = none. */
void lki_control_loss(const lki_control *control, uint32_t rank, char out[LKI_LOSS_BYTES]);

/* Asks every rank to save and leave when convenient. */
void lki_control_request_stop(lki_control *control);

/* Asks the ranks of this host to leave the job when convenient. */
void lki_control_request_leave(lki_control *control);

/* Returns true if any rank has checked for a stop request. */
bool lki_control_stop_heeded(const lki_control *control);

/* `out` becomes the name of a rank for messages: "rank 5 (pid 4711)", or "rank 5 (host b, pid
 * 4711)" if hosts have names. */
void lki_control_who(const lki_control *control, uint32_t rank, char out[LKI_WHO_BYTES]);

/* ---- Rebuilding a group after a failure (comm/join/rebuild.c) ----------------------------------
 * */

/* Returns the number of ranks that request a rebuild.  Sets *timeout_ms to the shortest of their
 * timeouts. */
uint32_t lki_control_asked(const lki_control *control, uint32_t *timeout_ms);

/* Returns true if the rebuild waits for this rank: the rank is in the group, and has not made a
 * request, left or ended. */
bool lki_control_is_missing(const lki_control *control, uint32_t rank);

/* Returns true if this rank is in the current group, on any host. */
bool lki_control_is_member(const lki_control *control, uint32_t rank);

/* Returns true if all ranks of this host have joined the first group. */
bool lki_control_all_joined(const lki_control *control);

/* Returns the ranks of this host that have requested a rebuild and are alive. */
lki_members lki_control_askers(const lki_control *control);

/* Returns the number of the current epoch. */
uint64_t lki_control_epoch(const lki_control *control);

/* Creates the control memory of the next epoch, for the group of `members` (at least one of them on
 * this host).  Sends the memory to the ranks of this host that have requested the group.  Ranks
 * that are not in `members` are no longer in the group.  If a member has died since its request,
 * the new group fails.  If this function fails, the ranks receive the reason. */
LK_NODISCARD lk_status lki_control_rebuild(lki_control *control, const lki_members *members);

/* Sets the epoch of a host that is in no group yet. `epoch` is the job's current epoch, in whose
 * group this host has no ranks. since[rank] is 0 for a rank that is not in that group, else 1 + the
 * epoch in which the rank entered. */
void lki_control_follow(lki_control *control, uint64_t epoch, const uint64_t *since);

/* Records whether the ranks of another host wait to enter the group. */
void lki_control_await(lki_control *control, bool waits);

/* Clears the record of a rank whose process has ended and that is not in the group, so that another
 * process can replace it. */
void lki_control_revive(lki_control *control, uint32_t rank);

/* Returns true if all ranks that request a rebuild accept entrants. */
bool        lki_control_admits(const lki_control *control);

/* Returns the ranks that wait to enter, or no ranks if the group does not admit entrants.  The
 * entrants become the last members of their host in the next group. */
lki_members lki_control_entrants(const lki_control *control);

/* ---- Replacing a coordinator (launch/keeper/keeper.h) ------------------------------------ */

/* The functions by which a control writes its journal.  The next coordinator repeats all actions
 * since the last commit, which is harmless. */
typedef struct {
    void (*board)(void *context, int fd); /* stores the next epoch's control memory */
    void (*commit)(void *context);
    void *context;
} lki_control_journal;

void lki_control_journal_to(lki_control *control, const lki_control_journal *journal);

/* Returns the number of bytes that lki_control_save() writes. */
size_t lki_control_saved_bytes(const lki_control *control);
void   lki_control_save(const lki_control *control, void *to);

/* Restores saved state in a copy of the process that created the control.  The copy must already
 * have moved to the saved epoch's control memory and adopted all sockets created since the fork.
 * Answers the ranks that may not have received an answer. */
void lki_control_restore(lki_control *control, const void *from);

/* Returns the epoch of saved state. */
uint64_t lki_control_saved_epoch(const void *from);

/* Switches to the control memory of another epoch.  Takes ownership of `fd`, also on failure. */
LK_NODISCARD lk_status lki_control_move(lki_control *control, int fd);

/* Sends a refusal with `status` and the reason `why` to all ranks that have requested a group. */
void lki_control_refuse(lki_control *control, lk_status status, const char *why);

/* ---- One launcher of several ------------------------------------------------------------- */

/* Writes the facts of the job into the control memory, before any worker starts. */
void lki_control_set_job(lki_control *control, const lki_job_facts *facts);

/* Sets the host name of node `node`, which has `count` ranks from `first` on.  Called before any
 * worker starts. */
void lki_control_name_host(lki_control *control, uint32_t node, uint32_t first, uint32_t count,
                           const char *host);

/* Excludes the ranks of a late host from the first group. */
void lki_control_leave_out(lki_control *control, uint32_t first, uint32_t count);

/* `out` becomes the address that a worker of this host listens on.  Returns false if the worker has
 * not published an address yet. */
bool lki_control_address(const lki_control *control, uint32_t rank, char out[LKI_ADDRESS_BYTES]);

/* Publishes the address and pid of a worker on another host. */
void lki_control_introduce(lki_control *control, uint32_t rank, int32_t pid, const char *address);

/* Wakes the ranks that wait until all ranks have been introduced. */
void lki_control_introduced(lki_control *control);

/* Records that the process of a rank on another host has ended. lki_control_condemn() reports a
 * failure separately. */
void lki_control_ended_there(lki_control *control, uint32_t rank, int exit_code, int signal);

/* Fails all ranks of this host because the job has failed on another host. */
void lki_control_condemn(lki_control *control, uint32_t culprit, lk_status status,
                         const char *message);

/* Takes a snapshot of a rank's record.  The snapshot's message is borrowed until the next epoch. */
void lki_control_view(const lki_control *control, uint32_t rank, lki_rank_view *out);

/* Returns the failure of the group, or NULL.  The failure is borrowed until the next epoch. */
const lki_failure *lki_control_failure(const lki_control *control);

#endif
