/* wait.c -- waiting for peers: spin, yield, sleep, and never for ever.
 *
 * Spinning is cheap only while the peer runs on another core, so it is left out when there are
 * more ranks than cores; a few yields often are all it takes then.  Where each rank has a core, it
 * spins on after them for as long as sleeping and being woken would take: whoever is late by less
 * costs the others no more than that, whoever is later at most doubles it.  Then a rank sleeps on
 * the bell in its record.  Who publishes something looks whether anybody sleeps, and rings.
 *
 * Nobody can sleep through a bell.  The sleeper: reads its bell, raises its flag, fence, looks
 * once more, sleeps unless the bell has changed.  The ringer: publishes, fence, looks at the
 * flags.  With both fences one of them sees the other.  The ringer's fence is put off to the end
 * of the operation (or to where it goes to sleep itself), off the path of those who spin.
 *
 * Sleep is cut into slices.  After each one the rank looks for peers that are gone, so that it
 * learns of a death even without a launcher, and at its deadline.  Time in which it did not run
 * itself does not count: after Ctrl-Z and fg nobody is late.  A longer deadline than that of the
 * group's opening (lk_comm_set_timeout) is for peers that work; one that is stopped does not.
 */
#include "comm/span/span.h"

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    YIELDS      = 4,
    PATIENCE_NS = 50000, /* about what it takes to sleep and be woken */
    SLICE_MS    = 50,
    LATE_MS     = 10 * SLICE_MS,
    NAP_MS      = 2
};

/* ThreadSanitizer does not model fences.  This one orders atomics only, and publishes nothing:
 * what it would miss is a lost wake-up, never a race. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wtsan"
#endif
static void full_fence(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t lki_now_ms(void)
{
    return now_ns() / 1000000;
}

/* The futex calls are not the private kind: the word may be in another process. */
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
        lki_span_poll(comm->self);
    return !lki_arrived(comm, goal) && !lki_failed(comm) && !lki_progress(comm);
}

/* One slice of sleep, or none if there turns out to be something to do.  A rank that has peers on
 * other hosts cannot hear its bell and its link at once: it naps, and looks. */
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

/* Whether the goal is reached without sleeping. */
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
            relax();
        }
    }
    return false;
}

/* A peer may publish what is waited for and die between two looks: whoever has seen a failure looks
 * at the goal once more.  What has arrived counts; the failure is the next operation's. */
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
    int     stopped = 0; /* slices in a row: fg does not wake all ranks in one moment */
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
            goal.first++; /* counters never go back */
        if (goal.first == goal.end)
            return LK_OK;
        relax();
    }
    return await_slowly(comm, goal, ms, late);
}

lk_status lki_await_for(lk_comm *comm, lki_goal goal, int64_t ms, int64_t *late)
{
    *late = 0;
    if (lki_arrived(comm, goal)) /* nothing to wait for, and nothing to write down */
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
