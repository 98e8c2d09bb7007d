/* wait.c -- waiting for peers: spin, yield, then sleep, with a deadline.
 *
 * Spinning is cheap only while the peer runs on another core.  If ranks outnumber cores, ranks do
 * not spin, and a few yields are often enough.  If each rank has a core, it spins after the yields
 * for about as long as it takes to sleep and be woken.  If the peer arrives within this time,
 * spinning adds no delay.  If the peer arrives later, the wait takes at most twice as long.  Then
 * the rank sleeps on the bell in its record.  A rank that publishes checks for sleepers, and rings
 * their bells.
 *
 * No wake-up can be lost.  The sleeper reads its bell, sets its flag, executes a fence, checks once
 * more, and sleeps unless the bell has changed.  The ringer publishes, executes a fence, and reads
 * the flags.  Because of the two fences at least one of the two ranks sees the write of the other
 * rank.  The ringer executes its fence at the end of the operation, or before it sleeps, so that
 * the fence does not delay spinning ranks.
 *
 * Sleep is divided into short intervals ("slices").  After each slice the rank checks for dead
 * peers, so that it detects a death even without a launcher, and checks its deadline.  Time in
 * which the rank itself did not run is not counted, so no rank is late after Ctrl-Z and fg.  A
 * deadline longer than the one given at opening (lk_comm_set_timeout()) applies to running peers,
 * not to a stopped one.
 */
#include "base/hint.h"
#include "comm/group/span.h"

#include <linux/futex.h>
#include <limits.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    YIELDS      = 4,
    PATIENCE_NS = 50000, /* approximate time that it takes to sleep and be woken */
    SLICE_MS    = 50,
    LATE_MS     = 10 * SLICE_MS,
    NAP_MS      = 2
};

/* Disables a warning: ThreadSanitizer does not model fences.  This fence only orders atomics and
 * publishes no data.  Without it a wake-up could be lost, but there would be no data race. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wtsan"
#endif
static void full_fence(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

static int64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Sleeps on a shared (not private) futex, because the word may be in another process. */
static void sleep_on(_Atomic uint32_t *word, uint32_t seen, int64_t ms)
{
    struct timespec timeout = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
    (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

void lki_sleep(lk_comm *comm, uint32_t seen, int64_t ms)
{
    sleep_on(&comm->me->bell, seen, ms);
}

static void wake(lki_rank *rank)
{
    atomic_fetch_add(&rank->bell, 1);
    (void)syscall(SYS_futex, &rank->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void lki_comm_wake_word(_Atomic uint32_t *word)
{
    atomic_fetch_add(word, 1);
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void lki_wake_all(lki_board *board)
{
    for (uint32_t i = 0; i < board->seated; i++)
        wake(&board->ranks[board->first + i]);
}

void lki_ring(lk_comm *comm)
{
    if (!comm->unrung)
        return;
    comm->unrung = false;
    full_fence();
    if (atomic_load_explicit(&comm->board->sleepers, memory_order_relaxed) == 0)
        return;
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        lki_rank *peer = lki_rank_of(comm, rank);
        if (peer != comm->me && atomic_load_explicit(&peer->sleeping, memory_order_relaxed) != 0)
            wake(peer);
    }
}

bool lki_arrived(const lk_comm *comm, lki_goal goal)
{
    for (uint32_t rank = goal.first; rank < goal.end; rank++)
        if (lki_counter(comm, rank, goal.offset) < goal.target)
            return false;
    return true;
}

static bool nothing_to_do(lk_comm *comm, lki_goal goal)
{
    if (comm->self->wire != NULL)
        comm->self->span_ops->poll(comm->self);
    return !lki_arrived(comm, goal) && !lki_failed(comm) && !lki_progress(comm);
}

/* Sleeps for one slice, unless there is work to do.  A rank with peers on other hosts cannot wait
 * for its bell and its link at once, so it sleeps briefly and polls. */
static void sleep_a_slice(lk_comm *comm, lki_goal goal, int64_t ms)
{
    lki_rank *me   = comm->me;
    uint32_t  bell = atomic_load(&me->bell);

    atomic_fetch_add(&comm->board->sleepers, 1);
    atomic_store(&me->sleeping, 1);
    full_fence();
    for (int64_t slept = 0, nap = comm->self->wire == NULL ? ms : NAP_MS;
         slept < ms && atomic_load(&me->bell) == bell && nothing_to_do(comm, goal); slept += nap) {
        lki_ring(comm);
        sleep_on(&me->bell, bell, nap);
    }
    atomic_store(&me->sleeping, 0);
    atomic_fetch_sub(&comm->board->sleepers, 1);
}

/* Spins and yields for a while.  Returns true if the goal is reached. */
static bool arrives_soon(lk_comm *comm, lki_goal goal)
{
    for (int i = 0; i < YIELDS; i++) {
        (void)lki_progress(comm);
        if (lki_arrived(comm, goal))
            return true;
        (void)sched_yield();
    }
    if (comm->spins == 0)
        return false;
    for (int64_t began = now_ns(); now_ns() - began < PATIENCE_NS;) {
        (void)lki_progress(comm);
        for (uint32_t i = 0; i < comm->spins; i++) {
            if (lki_arrived(comm, goal))
                return true;
            lki_relax();
        }
    }
    return false;
}

/* Checks for a failure of the group.  A peer may publish the awaited data and then die, so the
 * caller checks the goal once more after a failure.  If the goal is reached the operation succeeds,
 * and the next operation returns the failure. */
static lk_status look_for_failure(lk_comm *comm, lki_goal goal)
{
    return lki_failed(comm) ? lki_group_failure(comm) : lki_peers_check(comm, goal);
}

static lk_status await_slowly(lk_comm *comm, lki_goal goal, int64_t ms, int64_t *late)
{
    lki_ring(comm);
    if (arrives_soon(comm, goal))
        return LK_OK;
    int64_t began = lki_now_ms(), left = ms;
    int     stopped = 0; /* number of consecutive slices with a stopped peer; more than one is
                          * required, because fg does not wake all ranks at once */
    for (;;) {
        int64_t before = lki_now_ms();
        lki_ring(comm);
        sleep_a_slice(comm, goal, left < SLICE_MS ? left : SLICE_MS);
        if (lki_arrived(comm, goal))
            return LK_OK;
        lk_status st = look_for_failure(comm, goal);
        if (st != LK_OK)
            return lki_arrived(comm, goal) ? LK_OK : st;
        int64_t now    = lki_now_ms();
        began         += now - before > LATE_MS ? now - before : 0;
        int64_t waited = now - began;
        left           = ms - waited;
        bool overdue   = waited >= comm->opened_timeout_ms;
        stopped        = overdue && lki_waits_for_stopped(comm, goal) ? stopped + 1 : 0;
        if (left <= 0 || stopped > 1) {
            *late = waited > 0 ? waited : 1;
            return LK_OK;
        }
    }
}

static lk_status await_for(lk_comm *comm, lki_goal goal, int64_t ms, int64_t *late)
{
    for (uint32_t i = 0; i <= comm->spins; i++) {
        while (goal.first < goal.end && lki_counter(comm, goal.first, goal.offset) >= goal.target)
            goal.first++; /* need not be checked again: counters never decrease */
        if (goal.first == goal.end)
            return LK_OK;
        lki_relax();
    }
    return await_slowly(comm, goal, ms, late);
}

lk_status lki_await_for(lk_comm *comm, lki_goal goal, int64_t ms, int64_t *late)
{
    *late = 0;
    if (lki_arrived(comm, goal)) /* nothing to wait for, so no trace interval */
        return LK_OK;
    uint64_t  begun  = lki_trace_begin(comm->self->track);
    lk_status status = await_for(comm, goal, ms, late);
    lki_trace_end(comm->self->track, LKI_SPAN_WAIT, 0, begun);
    return status;
}

lk_status lki_await(lk_comm *comm, lki_goal goal)
{
    int64_t late;

    LK_TRY(lki_await_for(comm, goal, comm->timeout_ms, &late));
    return late == 0 ? LK_OK : lki_fail_timeout(comm, goal, late);
}

/* Naps are short, because the failure of the group wakes nobody who waits here. */
lk_status lki_comm_await_word(lk_comm *comm, _Atomic uint32_t *word, uint32_t seen, uint32_t ms)
{
    const lki_goal nobody = { 0 };
    const uint64_t begun  = lki_trace_begin(comm->self->track);
    comm                  = lki_comm_local(comm); /* the word is of this host */
    const int64_t  since  = lki_now_ms();
    lk_status      status = LK_OK;
    lki_ring(comm);
    for (int i = 0; i < YIELDS && atomic_load(word) == seen; i++)
        (void)sched_yield();
    while (status == LK_OK && atomic_load(word) == seen && lki_now_ms() - since < ms) {
        (void)lki_progress(comm);
        sleep_on(word, seen, ms < SLICE_MS ? ms : SLICE_MS);
        status = look_for_failure(comm, nobody);
    }
    lki_trace_end(comm->self->track, LKI_SPAN_WAIT, 0, begun);
    return status;
}
