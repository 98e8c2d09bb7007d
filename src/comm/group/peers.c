/* peers.c -- detecting that a peer's process has ended, even without a launcher.
 *
 * Every rank holds a pidfd of every peer.  A pidfd becomes readable when the process ends, and
 * never refers to a later process with the same pid.  The launcher also knows the signal, and
 * reports the death as soon as it has reaped the process.  If there is a launcher, a rank that
 * detects a death therefore first waits briefly for that report.
 */
#include "comm/group/group.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/pidfd.h"

enum { LAUNCHER_REAPS_MS = 2000, LAUNCHER_SPEAKS_MS = 200 };

lk_status lki_peers_open(lk_comm *comm)
{
    lki_self *self = comm->self;

    LK_TRY(LKI_NEW(&self->pidfds, self->seated, "descriptors of the peers"));
    for (uint32_t i = 0; i < self->seated; i++)
        self->pidfds[i] = -1;
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        if (rank == comm->rank)
            continue;
        int32_t pid   = atomic_load(&lki_rank_of(comm, rank)->pid);
        int    *pidfd = &self->pidfds[comm->world[rank] - comm->board->first];
        *pidfd        = lki_pidfd_open(pid);
        if (*pidfd >= 0)
            continue;
        if (errno == ESRCH && atomic_load(&lki_rank_of(comm, rank)->state) == LKI_RANK_LEFT)
            continue; /* the other rank has joined and left in order before this check */
        if (errno == ESRCH) { /* all ranks have joined, so the next operation returns the failure */
            (void)(lki_fail_peer_gone(comm, comm->world[rank]) == LK_OK);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE)
            return lk_fail(LK_ENOMEM, "no file descriptor left to watch rank %u (pid %d): raise "
                           "the limit (ulimit -n)", comm->world[rank], pid);
        return LK_OK; /* the kernel has no pidfds; the launcher still detects deaths */
    }
    return LK_OK;
}

void lki_peers_close(lki_self *self)
{
    if (self->pidfds == NULL)
        return;
    for (uint32_t i = 0; i < self->seated; i++)
        if (self->pidfds[i] >= 0)
            (void)close(self->pidfds[i]);
    lki_free(self->pidfds);
    self->pidfds = NULL;
}

/* Waits briefly for the launcher's report about the peer's death. */
static void let_the_launcher_speak(const lk_comm *comm, int32_t pid)
{
    const struct timespec a_moment = { .tv_nsec = 2000000 };
    bool                  reaped   = false;
    int64_t               now = lki_now_ms(), end = now + LAUNCHER_REAPS_MS;

    for (; now < end && !lki_failed(comm); now = lki_now_ms()) {
        if (!reaped && kill(pid, 0) != 0 && errno == ESRCH) {
            reaped = true;
            end    = now + LAUNCHER_SPEAKS_MS;
        }
        (void)nanosleep(&a_moment, NULL);
    }
}

/* Returns true if the rank has left this group, or the job, in order. */
static bool has_left(const lk_comm *comm, uint32_t rank)
{
    return atomic_load(&lki_seat_of(comm, rank)->left) != 0
           || atomic_load(&lki_rank_of(comm, rank)->state) == LKI_RANK_LEFT;
}

static lk_status check_process(lk_comm *comm, uint32_t rank, lki_goal goal)
{
    const lki_self *self  = comm->self;
    uint32_t        world = comm->world[rank];

    if (self->pidfds == NULL || self->pidfds[world - comm->board->first] < 0)
        return LK_OK;
    struct pollfd ended = { .fd = self->pidfds[world - comm->board->first], .events = POLLIN };
    if (poll(&ended, 1, 0) <= 0)
        return LK_OK;
    if (self->socket >= 0)
        let_the_launcher_speak(comm, atomic_load(&lki_rank_of(comm, rank)->pid));
    if (!has_left(comm, rank))
        return lki_fail_peer_gone(comm, world);
    bool missing = rank >= goal.first && rank < goal.end
                   && lki_counter(comm, rank, goal.offset) < goal.target;
    return missing ? lki_fail_peer_left(comm, world) : LK_OK;
}

lk_status lki_peers_check(lk_comm *comm, lki_goal goal)
{
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        if (rank == comm->rank)
            continue;
        /* A rank may publish and leave between two checks, so its state is read before its
         * counter. */
        uint32_t state   = atomic_load(&lki_rank_of(comm, rank)->state);
        bool     left    = has_left(comm, rank);
        bool     missing = rank >= goal.first && rank < goal.end
                       && lki_counter(comm, rank, goal.offset) < goal.target;
        if (left && missing)
            return lki_fail_peer_left(comm, comm->world[rank]);
        if (!left && (state == LKI_RANK_RUNNING || state == LKI_RANK_FAILED))
            LK_TRY(check_process(comm, rank, goal));
    }
    return LK_OK;
}
