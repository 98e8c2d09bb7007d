/* membership.c -- agreed changes of the communicator between two steps.
 *
 * After a step ranks exchange the events that they have seen, which include wishes to leave.  If
 * there are any, the ranks then exchange which ranks want to leave.  The step and all work that
 * follows it are completed as usual.  Then:
 *
 *   1. A leaver closes its own resources; rank 0 closes the log, the unfinished checkpoint and the
 *      lock.
 *   2. All ranks synchronise, so that no rank needs the leavers any more.  The leavers end.
 *   3. The other ranks dissolve the communicator and continue in a new one (survive.c).  It begins
 *      with the next step, so no work is repeated.
 *
 * A process that wants to enter waits at the launcher (comm/join/rebuild.c), which announces it to
 * all ranks.  When a rank has seen the announcement, the communicator ends as it does for a leaver.
 * The new communicator includes the process (replacement.c).
 *
 * If a rank is lost in the meantime, the communicator ends as after any loss, and the wish remains.
 */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/stored.h"
#include "train/recover/succession.h"
#include "train/saves/lock.h"
#include "train/saves/save.h"

/* ---- Agreeing ---------------------------------------------------------------------------- */

bool lki_membership_wished(lki_session *s)
{
    const lk_train_config *c = s->config;
    if (s->survival == NULL)
        return false;
    s->survival->membership.wish = (c->calls.leave != NULL &&
                                    c->calls.leave(c->calls.leave_context)) ||
                                   lki_comm_leave_requested(s->comm);
    return s->survival->membership.wish || lk_comm_awaited(s->comm);
}

/* Writes text such as "rank 2 (pid 4711) leaves on request after step 812".  Ranks that will enter
 * are not yet known by name. */
static void say_why(const lki_session *s, uint64_t done, const lki_list *who)
{
    lki_membership    *membership = &s->survival->membership;
    char               one[LKI_WHO_BYTES], several[LKI_LIST_BYTES + 16];
    unsigned long long step = done;

    if (membership->leavers == 0) {
        membership->first = lk_comm_world_rank(s->comm, 0);
        (void)snprintf(membership->why, sizeof membership->why, "workers enter after step %llu",
                       step);
        return;
    }
    lki_comm_world_who(s->comm, membership->first, one);
    (void)snprintf(several, sizeof several, "ranks %s", who->text);
    (void)snprintf(membership->why, sizeof membership->why, "%s %s on request after step %llu",
                   membership->leavers > 1 ? several : one,
                   membership->leavers > 1 ? "leave" : "leaves", step);
}

/* Returns true if all ranks of a host want to leave and only that host stores its shard.  The run
 * then stops instead. */
static bool takes_a_shard_along(const lki_session *s, const uint8_t *wishes)
{
    uint32_t hosts = lk_comm_hosts(s->comm);
    bool     stays = true;

    for (uint32_t h = 0; h < hosts && stays && lki_stored_shards(s->parallel) > 1; h++) {
        stays = false;
        for (uint32_t r = 0; r < s->ranks; r++)
            stays = stays || (lk_comm_host(s->comm, r) == h && wishes[r] == 0);
    }
    return !stays;
}

lk_status lki_membership_agree(lki_session *s, uint64_t done)
{
    lki_membership *membership = &s->survival->membership;
    lki_list        who        = { .count = 0 };
    bool            broken     = false;
    uint8_t         mine       = membership->wish, *all;

    LK_TRY(LKI_NEW(&all, s->ranks, "wishes of ranks"));
    lk_status status    = lk_all_gather(s->comm, &mine, all, sizeof mine);
    membership->leavers = 0;
    for (uint32_t r = 0; status == LK_OK && r < s->ranks; r++)
        if (all[r] != 0) {
            membership->first = membership->leavers++ == 0 ? lk_comm_world_rank(s->comm, r)
                                                           : membership->first;
            lki_list_add(&who, lk_comm_world_rank(s->comm, r));
        }
    if (status == LK_OK)
        broken = takes_a_shard_along(s, all);
    lki_free(all);
    LK_TRY(status);
    lki_list_end(&who);
    say_why(s, done, &who);
    uint32_t least = (uint32_t)lki_max(s->config->elastic.workers_least, 1);
    s->stopped     = membership->leavers > 0 && (s->ranks - membership->leavers < least || broken);
    membership->agreed = !s->stopped;
    return LK_OK;
}

/* ---- Changing ---------------------------------------------------------------------------- */

bool lki_membership_is(const lki_session *s, const lk_error *why)
{
    const lki_membership *membership = &s->survival->membership;
    return membership->agreed && strcmp(membership->why, why->message) == 0;
}

static lk_status put_down_files(lki_session *s, uint64_t done)
{
    LK_TRY(lki_background_settle(s, done, true));
    lki_note_all_said(s);
    lki_background_close(s->saves->background);
    lki_lock_drop(s->saves->lock, s->config->checkpoint.folder);
    lki_journal_free(s->journal);
    s->saves->background = NULL;
    s->saves->lock       = -1;
    s->journal           = NULL;
    return LK_OK;
}

lk_status lki_membership_make(lki_session *s, uint64_t done)
{
    lki_survival *self = s->survival;

    if (self == NULL || !self->membership.agreed)
        return LK_OK;
    lki_let_rank_0_work(s, true);
    if (self->membership.wish)
        LK_TRY(put_down_files(s, done));
    lk_status status = lk_barrier(s->comm);
    if (status != LK_OK && !lki_membership_is(s, lk_error_last())) /* else others dissolved it */
        return status;
    lki_let_rank_0_work(s, false);
    if (!self->membership.wish)
        return lki_comm_dissolve(s->comm, self->membership.first, self->membership.why);
    s->left = true;
    lki_comm_depart(s->comm);
    return LK_OK;
}
