/* thread_rebuild.c -- rebuilds among ranks that are threads of one process.
 *
 * One lock protects the members of this epoch, the ranks that have asked for the next epoch, and
 * the ranks that have left.  When all members have asked or left, or when the deadline has passed,
 * one waiting rank decides.  This rank creates the new groups, one for each host, and begins the
 * new epoch.  The other ranks then wake up and fetch their groups.
 */
#include "comm/group/thread_rebuild.h"

#include <stdio.h>
#include <time.h>

#include "base/memory.h"

typedef struct {
    lki_roster roster; /* ranks of this rank's host */
    lki_group *next;   /* [rank]: the next group of a rank that has asked, until the rank fetches
                        * the group */
} seat;

struct lki_thread_rebuild {
    pthread_mutex_t          lock;
    pthread_cond_t           news;
    _Atomic uint32_t         users;
    uint32_t                 world;
    lki_thread_rebuild_link *link; /* NULL: all ranks are on one host */
    void                    *context;
    uint64_t                 epoch;
    lki_members              members, asked, gone; /* of this epoch */
    int64_t                  deadline_ms; /* earliest deadline of ranks that have asked; 0: none */
    seat                    *seats;
};

/* ---- Life -------------------------------------------------------------------------------- */

lk_status lki_thread_rebuild_new(lki_thread_rebuild **out, uint32_t world,
                                 lki_thread_rebuild_link *link, void *context)
{
    lki_thread_rebuild *c;
    pthread_condattr_t  how;

    *out = NULL;
    LK_TRY(LKI_NEW(&c, 1, "rebuild of ranks"));
    lk_status st = LKI_NEW(&c->seats, world, "rebuild of ranks");
    if (st != LK_OK) {
        lki_free(c);
        return st;
    }
    (void)pthread_condattr_init(&how);
    (void)pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&c->news, &how);
    (void)pthread_condattr_destroy(&how);
    (void)pthread_mutex_init(&c->lock, NULL);
    atomic_store(&c->users, 1);
    c->world   = world;
    c->link    = link;
    c->context = context;
    for (uint32_t rank = 0; rank < world; rank++)
        lki_members_add(&c->members, rank);
    *out = c;
    return LK_OK;
}

void lki_thread_rebuild_free(lki_thread_rebuild *c)
{
    if (c == NULL || atomic_fetch_sub(&c->users, 1) != 1)
        return;
    (void)pthread_cond_destroy(&c->news);
    (void)pthread_mutex_destroy(&c->lock);
    lki_free(c->seats);
    lki_free(c);
}

void lki_thread_rebuild_seat(lki_thread_rebuild *c, lki_roster roster)
{
    (void)pthread_mutex_lock(&c->lock);
    for (uint32_t rank = roster.first; rank < roster.first + roster.count; rank++)
        c->seats[rank].roster = roster;
    (void)atomic_fetch_add(&c->users, 1); /* the reference of the group that is created below */
    (void)pthread_mutex_unlock(&c->lock);
}

/* ---- Deciding ---------------------------------------------------------------------------- */

/* Returns true if any member has neither asked nor left.  The caller holds the lock. */
static bool anybody_missing(const lki_thread_rebuild *c)
{
    for (uint32_t rank = 0; rank < c->world; rank++)
        if (lki_members_have(&c->members, rank) && !lki_members_have(&c->asked, rank)
            && !lki_members_have(&c->gone, rank))
            return true;
    return false;
}

static void take_back(lki_thread_rebuild *c)
{
    for (uint32_t rank = 0; rank < c->world; rank++)
        if (lki_members_have(&c->asked, rank)) {
            lki_group_release(c->seats[rank].next);
            c->seats[rank].next = NULL;
        }
}

/* Creates a group for each host with ranks that have asked.  Each group holds a reference to the
 * rebuild. */
static lk_status make_groups(lki_thread_rebuild *c)
{
    for (uint32_t rank = 0; rank < c->world; rank++) {
        lki_roster roster = c->seats[rank].roster;
        lki_group *group;
        if (!lki_members_have(&c->asked, rank) || c->seats[rank].next != NULL)
            continue;
        LK_TRY(lki_group_next(&group, c, roster, c->epoch + 1, &c->asked));
        (void)atomic_fetch_add(&c->users, 1);
        for (uint32_t r = 0; r < c->world; r++)
            group->board->ranks[r].node = c->seats[r].roster.first; /* any value that differs
                                                                     * between hosts */
        for (uint32_t r = roster.first; r < roster.first + roster.count; r++)
            if (lki_members_have(&c->asked, r))
                c->seats[r].next = group;
    }
    return LK_OK;
}

static lk_status decide(lki_thread_rebuild *c)
{
    lk_status st = make_groups(c);

    if (st != LK_OK) {
        take_back(c);
        return st;
    }
    c->members     = c->asked;
    c->asked       = (lki_members){ { 0 } };
    c->gone        = (lki_members){ { 0 } };
    c->deadline_ms = 0;
    c->epoch++;
    (void)pthread_cond_broadcast(&c->news);
    return LK_OK;
}

static void wait_for_news(lki_thread_rebuild *c)
{
    struct timespec until = { .tv_sec  = c->deadline_ms / 1000,
                              .tv_nsec = c->deadline_ms % 1000 * 1000000 };
    (void)pthread_cond_timedwait(&c->news, &c->lock, &until);
}

/* Waits until the next epoch begins.  If this rank is the one that decides, begins the epoch.  The
 * caller holds the lock, and this rank has asked. */
static lk_status await_decision(lki_thread_rebuild *c, uint32_t rank, uint64_t epoch)
{
    while (c->epoch == epoch) {
        if (anybody_missing(c) && lki_now_ms() < c->deadline_ms) {
            wait_for_news(c);
            continue;
        }
        lk_status st = decide(c);
        if (st == LK_OK)
            continue;
        c->asked.words[rank / 64] &= ~(UINT64_C(1) << rank % 64);
        lki_members_add(&c->gone, rank);
        return st;
    }
    return LK_OK;
}

lk_status lki_thread_rebuild_ask(lki_group **out, lki_thread_rebuild *c, uint32_t rank,
                                 uint64_t *epoch, uint32_t timeout_ms)
{
    int64_t   deadline = lki_now_ms() + timeout_ms;
    lk_status st;

    *out = NULL;
    (void)pthread_mutex_lock(&c->lock);
    if (c->epoch != *epoch || !lki_members_have(&c->members, rank)) {
        st = lk_fail(LK_EINVAL, "rank %u asks for the group after epoch %llu, which is over: it is "
                     "in epoch %llu, without rank %u", rank, (unsigned long long)*epoch,
                     (unsigned long long)c->epoch, rank);
    } else {
        lki_members_add(&c->asked, rank);
        if (c->deadline_ms == 0 || deadline < c->deadline_ms)
            c->deadline_ms = deadline;
        (void)pthread_cond_broadcast(&c->news);
        st = await_decision(c, rank, *epoch);
    }
    if (st == LK_OK) {
        *out                = c->seats[rank].next;
        c->seats[rank].next = NULL;
        *epoch              = (*out)->board->job.epoch;
    }
    (void)pthread_mutex_unlock(&c->lock);
    return st;
}

void lki_thread_rebuild_gone(lki_thread_rebuild *c, uint32_t rank, uint64_t epoch)
{
    if (c == NULL)
        return;
    (void)pthread_mutex_lock(&c->lock);
    if (epoch == c->epoch) {
        lki_members_add(&c->gone, rank);
        (void)pthread_cond_broadcast(&c->news);
    }
    (void)pthread_mutex_unlock(&c->lock);
}

lki_link *lki_thread_rebuild_link_of(lki_thread_rebuild *c, uint32_t rank, uint64_t epoch)
{
    return c->link == NULL ? NULL : c->link(c->context, rank, epoch);
}
