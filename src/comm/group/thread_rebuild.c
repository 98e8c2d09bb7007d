/* thread_rebuild.c -- rebuilds among ranks that are threads of one process.
 *
 * One lock protects the members of this group epoch, the ranks that have asked for the next epoch,
 * and the ranks that have left.  When all members have asked or left, or when the deadline has
 * passed, one waiting rank decides.  This rank creates the new groups, one for each host, and
 * begins the new epoch.  The other ranks then wake up and fetch their groups.
 */
#include "comm/group/thread_rebuild.h"

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
    lki_members              members, asked, gone; /* of this group epoch: all members, and those
                                                    * that have asked or left */
    int64_t                  deadline_ms; /* earliest deadline of ranks that have asked; 0: none */
    seat                    *seats;
};

/* ---- Life -------------------------------------------------------------------------------- */

lk_status lki_thread_rebuild_new(lki_thread_rebuild **out, uint32_t world,
                                 lki_thread_rebuild_link *link, void *context)
{
    lki_thread_rebuild *self;
    pthread_condattr_t  how;

    *out = NULL;
    LK_TRY(LKI_NEW(&self, 1, "rebuild of ranks"));
    lk_status st = LKI_NEW(&self->seats, world, "rebuild of ranks");
    if (st != LK_OK) {
        lki_free(self);
        return st;
    }
    (void)pthread_condattr_init(&how);
    (void)pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&self->news, &how);
    (void)pthread_condattr_destroy(&how);
    (void)pthread_mutex_init(&self->lock, NULL);
    atomic_store(&self->users, 1);
    self->world   = world;
    self->link    = link;
    self->context = context;
    for (uint32_t rank = 0; rank < world; rank++)
        lki_members_add(&self->members, rank);
    *out = self;
    return LK_OK;
}

void lki_thread_rebuild_free(lki_thread_rebuild *self)
{
    if (self == NULL || atomic_fetch_sub(&self->users, 1) != 1)
        return;
    (void)pthread_cond_destroy(&self->news);
    (void)pthread_mutex_destroy(&self->lock);
    lki_free(self->seats);
    lki_free(self);
}

void lki_thread_rebuild_seat(lki_thread_rebuild *self, lki_roster roster)
{
    (void)pthread_mutex_lock(&self->lock);
    for (uint32_t rank = roster.first; rank < roster.first + roster.count; rank++)
        self->seats[rank].roster = roster;
    (void)atomic_fetch_add(&self->users, 1); /* the reference of the group that is created below */
    (void)pthread_mutex_unlock(&self->lock);
}

/* ---- Deciding ---------------------------------------------------------------------------- */

/* Returns true if any member has neither asked nor left.  The caller holds the lock. */
static bool anybody_missing(const lki_thread_rebuild *self)
{
    for (uint32_t rank = 0; rank < self->world; rank++)
        if (lki_members_have(&self->members, rank) && !lki_members_have(&self->asked, rank) &&
            !lki_members_have(&self->gone, rank))
            return true;
    return false;
}

static void take_back(lki_thread_rebuild *self)
{
    for (uint32_t rank = 0; rank < self->world; rank++)
        if (lki_members_have(&self->asked, rank)) {
            lki_group_release(self->seats[rank].next);
            self->seats[rank].next = NULL;
        }
}

/* Creates a group for each host with ranks that have asked.  Each group holds a reference to the
 * rebuild. */
static lk_status make_groups(lki_thread_rebuild *self)
{
    for (uint32_t rank = 0; rank < self->world; rank++) {
        lki_roster roster = self->seats[rank].roster;
        lki_group *group;
        if (!lki_members_have(&self->asked, rank) || self->seats[rank].next != NULL)
            continue;
        LK_TRY(lki_group_next(&group, self, roster, self->epoch + 1, &self->asked));
        (void)atomic_fetch_add(&self->users, 1);
        for (uint32_t r = 0; r < self->world; r++)
            group->board->ranks[r].node = self->seats[r].roster.first; /* any value that differs
                                                                        * between hosts */
        for (uint32_t r = roster.first; r < roster.first + roster.count; r++)
            if (lki_members_have(&self->asked, r))
                self->seats[r].next = group;
    }
    return LK_OK;
}

static lk_status decide(lki_thread_rebuild *self)
{
    lk_status st = make_groups(self);

    if (st != LK_OK) {
        take_back(self);
        return st;
    }
    self->members     = self->asked;
    self->asked       = (lki_members){ { 0 } };
    self->gone        = (lki_members){ { 0 } };
    self->deadline_ms = 0;
    self->epoch++;
    (void)pthread_cond_broadcast(&self->news);
    return LK_OK;
}

static void wait_for_news(lki_thread_rebuild *self)
{
    struct timespec until = { .tv_sec  = self->deadline_ms / 1000,
                              .tv_nsec = self->deadline_ms % 1000 * 1000000 };
    (void)pthread_cond_timedwait(&self->news, &self->lock, &until);
}

/* Waits until the next epoch begins.  If this rank is the one that decides, begins the epoch.  The
 * caller holds the lock, and this rank has asked. */
static lk_status await_decision(lki_thread_rebuild *self, uint32_t rank, uint64_t epoch)
{
    while (self->epoch == epoch) {
        if (anybody_missing(self) && lki_now_ms() < self->deadline_ms) {
            wait_for_news(self);
            continue;
        }
        lk_status st = decide(self);
        if (st == LK_OK)
            continue;
        self->asked.words[rank / 64] &= ~(UINT64_C(1) << rank % 64);
        lki_members_add(&self->gone, rank);
        return st;
    }
    return LK_OK;
}

lk_status lki_thread_rebuild_ask(lki_group **out, lki_thread_rebuild *self, uint32_t rank,
                                 uint64_t *epoch, uint32_t timeout_ms)
{
    int64_t   deadline = lki_now_ms() + timeout_ms;
    lk_status st;

    *out = NULL;
    (void)pthread_mutex_lock(&self->lock);
    if (self->epoch != *epoch || !lki_members_have(&self->members, rank)) {
        st = lk_fail(LK_EINVAL,
                     "rank %u asks for the group after epoch %llu, which is over: it is "
                     "in epoch %llu, without rank %u",
                     rank, (unsigned long long)*epoch, (unsigned long long)self->epoch, rank);
    } else {
        lki_members_add(&self->asked, rank);
        if (self->deadline_ms == 0 || deadline < self->deadline_ms)
            self->deadline_ms = deadline;
        (void)pthread_cond_broadcast(&self->news);
        st = await_decision(self, rank, *epoch);
    }
    if (st == LK_OK) {
        *out                   = self->seats[rank].next;
        self->seats[rank].next = NULL;
        *epoch                 = (*out)->board->job.epoch;
    }
    (void)pthread_mutex_unlock(&self->lock);
    return st;
}

void lki_thread_rebuild_gone(lki_thread_rebuild *self, uint32_t rank, uint64_t epoch)
{
    if (self == NULL)
        return;
    (void)pthread_mutex_lock(&self->lock);
    if (epoch == self->epoch) {
        lki_members_add(&self->gone, rank);
        (void)pthread_cond_broadcast(&self->news);
    }
    (void)pthread_mutex_unlock(&self->lock);
}

lki_link *lki_thread_rebuild_link_of(lki_thread_rebuild *self, uint32_t rank, uint64_t epoch)
{
    return self->link == NULL ? NULL : self->link(self->context, rank, epoch);
}
