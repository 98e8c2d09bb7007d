/* peers.c -- knowing that a peer's process is gone, whoever else knows it.
 *
 * Every rank holds a pidfd of every peer: it becomes readable when the process ends and cannot
 * be mistaken for a later process with the same number.  The launcher knows more (which signal)
 * and says so within microseconds; so where there is one, a rank that sees a death first gives
 * it a moment to speak.
 */
#include "comm/group.h"

#include <errno.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"

enum { LAUNCHER_SPEAKS_MS = 200 };

lk_status lki_peers_open(lk_comm *comm)
{
    LK_TRY(LKI_NEW(&comm->pidfds, comm->size, "descriptors of the peers"));
    for (uint32_t rank = 0; rank < comm->size; rank++)
        comm->pidfds[rank] = -1;
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        if (rank == comm->rank)
            continue;
        int32_t pid        = atomic_load(&lki_rank_of(comm, rank)->pid);
        comm->pidfds[rank] = (int)syscall(SYS_pidfd_open, pid, 0);
        if (comm->pidfds[rank] >= 0)
            continue;
        if (errno == ESRCH && atomic_load(&lki_rank_of(comm, rank)->state) == LKI_RANK_LEFT)
            continue; /* it joined, had nothing to do, and went in order before we looked */
        if (errno == ESRCH)
            return lki_fail_peer_gone(comm, rank);
        if (errno == EMFILE || errno == ENFILE)
            return lk_fail(LK_ENOMEM, "no file descriptor left to watch rank %u (pid %d): raise "
                           "the limit (ulimit -n)", rank, pid);
        return LK_OK; /* the kernel has no pidfds: the launcher still watches */
    }
    return LK_OK;
}

void lki_peers_close(lk_comm *comm)
{
    if (comm->pidfds == NULL)
        return;
    for (uint32_t rank = 0; rank < comm->size; rank++)
        if (comm->pidfds[rank] >= 0)
            (void)close(comm->pidfds[rank]);
    lki_free(comm->pidfds);
    comm->pidfds = NULL;
}

/* The launcher is about to say how the peer died; wait for that, but not for long. */
static void let_the_launcher_speak(const lk_comm *comm)
{
    const struct timespec a_moment = { .tv_nsec = 2000000 };
    for (int64_t end = lki_now_ms() + LAUNCHER_SPEAKS_MS; lki_now_ms() < end;) {
        if (lki_failed(comm))
            return;
        (void)nanosleep(&a_moment, NULL);
    }
}

static lk_status check_one(lk_comm *comm, uint32_t rank, bool missing)
{
    const lki_rank *peer  = lki_rank_of(comm, rank);
    uint32_t        state = atomic_load(&peer->state);

    if (state == LKI_RANK_LEFT)
        return missing ? lki_fail_peer_left(comm, rank) : LK_OK;
    if (comm->pidfds == NULL || comm->pidfds[rank] < 0)
        return LK_OK;
    struct pollfd ended = { .fd = comm->pidfds[rank], .events = POLLIN };
    if (poll(&ended, 1, 0) <= 0)
        return LK_OK;
    if (comm->socket >= 0)
        let_the_launcher_speak(comm);
    if (atomic_load(&peer->state) == LKI_RANK_LEFT)
        return missing ? lki_fail_peer_left(comm, rank) : LK_OK;
    return lki_fail_peer_gone(comm, rank);
}

lk_status lki_peers_check(lk_comm *comm, size_t offset, uint64_t target)
{
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        if (rank == comm->rank)
            continue;
        /* It may publish and leave between two looks: the state first, then the counter. */
        uint32_t state   = atomic_load(&lki_rank_of(comm, rank)->state);
        bool     missing = lki_counter(comm, rank, offset) < target;
        if (state == LKI_RANK_RUNNING || state == LKI_RANK_LEFT || state == LKI_RANK_FAILED)
            LK_TRY(check_one(comm, rank, missing && state == LKI_RANK_LEFT));
    }
    return LK_OK;
}
