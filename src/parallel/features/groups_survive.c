/* groups_survive.c -- what groups keep between steps, if ranks may be lost (options.survives).
 *
 * There are two copies of the vectors of groups and of what groups share.  A step copies copy `now`
 * to the other copy, and changes that.  When the step is decided, `now` becomes the other copy.
 * The tally has its number, and is marked before any parameter is updated (ledger.h).
 *
 * So if a rank is lost before the mark, the survivors find the copy that the step has read, and
 * compute the step again from its beginning, with the same bits: messages depend only on gradients
 * and on that copy.  If a rank is lost after the mark, the sums over all groups are complete in the
 * ledger's memory, and so is the new copy.
 *
 * The copies are in the arena of the host that keeps a group.  A group stays there while the host
 * has a rank (groups_homes.c).  The loss of a host loses the vectors of its groups.  Then the
 * survivors fail, and the run continues from a checkpoint.
 */
#include "parallel/features/groups.h"

#include <string.h>

#include "comm/worker.h"
#include "parallel/stored.h"
#include "parallel/strategies/ddp.h"

/* ---- Memory ------------------------------------------------------------------------------ */

size_t lki_groups_lay_out_shared(lki_groups *self, char *base, size_t at)
{
    const bool     kept  = self->by != NULL && self->by->begin != NULL;
    const uint32_t count = kept ? self->copies : 1;
    for (uint32_t c = 0; c < 2; c++)
        self->shared[c] = c < count ? lki_carve(base, &at, self->room[self->rounds - 1])
                                    : self->shared[0];
    return at;
}

size_t lki_groups_lay_out_vectors(lki_groups *self, size_t bytes, char *base, size_t at)
{
    for (uint32_t c = 0; c < self->copies && self->kept > 0; c++)
        self->vectors[c] = lki_carve(base, &at, bytes);
    return at;
}

static float *vector_of(const lk_parallel *parallel, const lki_groups *self, uint32_t copy,
                        uint32_t which, uint32_t group, uint32_t param)
{
    const size_t place = (size_t)self->places[group] * self->kept + which;
    return self->vectors[copy] + place * parallel->layout->elements +
           parallel->layout->param_at[param];
}

float *lki_groups_kept(const lk_parallel *parallel, const lki_groups *self, uint32_t which,
                       uint32_t group, uint32_t param)
{
    return vector_of(parallel, self, self->now, which, group, param);
}

float *lki_groups_kept_next(const lk_parallel *parallel, const lki_groups *self, uint32_t which,
                            uint32_t group, uint32_t param)
{
    return vector_of(parallel, self, lki_groups_next(self), which, group, param);
}

/* ---- The group of ranks after a loss ----------------------------------------------------- */

/* Returns true if a rank of host `host` is in the group `next`. */
static bool is_left(const lk_parallel *parallel, uint32_t host, const lk_comm *next)
{
    for (uint32_t n = 0; n < lk_comm_size(next); n++)
        if (lki_stored_host(parallel, next, n) == host)
            return true;
    return false;
}

bool lki_stored_groups(const lk_parallel *parallel, const lk_comm *next, uint32_t *group)
{
    const lki_groups *self = lki_feature_state(parallel, &lki_feature_groups);
    if (self == NULL || self->kept == 0)
        return true;
    for (*group = 0; *group < self->count; ++*group)
        if (!is_left(parallel, parallel->world.host_of[self->keepers[*group]], next))
            return false;
    return true;
}

static lk_status check_vectors(const lk_parallel *parallel, const lk_parallel *before)
{
    uint32_t group;
    if (before == NULL || lki_stored_groups(before, parallel->comm, &group))
        return LK_OK;
    return lk_fail(LK_EPEER, "what group %u keeps was on a host that is lost: start again from a "
                             "checkpoint", group);
}

static lk_status check_entrants(const lk_parallel *parallel)
{
    for (uint32_t host = 0; host < parallel->world.hosts; host++)
        if (lki_comm_host_is_fresh(parallel->comm, host))
            return lk_fail(LK_EUNSUPPORTED, "a host enters a run with compressed gradients, but "
                                            "what groups keep and share is on the other hosts: "
                                            "start again from a checkpoint");
    return LK_OK;
}

lk_status lki_groups_open_copies(lk_parallel *parallel, lki_groups *self)
{
    const lki_ledger *ledger = &parallel->ledger;

    self->copies = ledger->kept ? 2 : 1;
    if (!ledger->kept)
        return LK_OK;
    parallel->effects.restarts = true;
    self->tally_at             = lki_tally_reserve(parallel, sizeof self->now);
    bool shares = self->by != NULL && self->by->begin != NULL; /* estimates are kept, too */
    if (!ledger->goes_on || (self->kept == 0 && !shares))
        return LK_OK;
    if (parallel->world.hosts > 1)
        LK_TRY(check_entrants(parallel));
    return check_vectors(parallel, ledger->before);
}

/* ---- A step ------------------------------------------------------------------------------ */

void lki_groups_carry_kept(const lk_parallel *parallel, const lki_groups *self, uint32_t group,
                           uint32_t param, size_t at, size_t count)
{
    for (uint32_t which = 0; which < self->kept && self->copies == 2; which++)
        memcpy(lki_groups_kept_next(parallel, self, which, group, param) + at,
               lki_groups_kept(parallel, self, which, group, param) + at, count * sizeof(float));
}

void lki_groups_carry_shared(const lk_parallel *parallel, const lki_groups *self, uint32_t param)
{
    const uint32_t last = self->rounds - 1;
    const size_t   at   = self->at[last][param];
    if (self->copies == 2)
        memcpy(self->shared[lki_groups_next(self)] + at, self->shared[self->now] + at,
               lki_groups_message_bytes(self, parallel->layout, param, last));
}

void lki_groups_before_update(lk_parallel *parallel, void *context, lki_tally *tally)
{
    lki_groups *self = context;
    if (parallel->step >= self->start || self->lamb != NULL)
        self->now = lki_groups_next(self);
    lki_freeze_decide(parallel, self, tally);
    if (self->copies == 2)
        lki_tally_put(tally, self->tally_at, &self->now, sizeof self->now);
}

void lki_groups_restore(lk_parallel *parallel, void *context, const lki_tally *tally,
                        lk_parallel_standing *standing)
{
    lki_groups *self = context;
    (void)standing;
    lki_freeze_restore(parallel, self, tally);
    lki_tally_get(tally, self->tally_at, &self->now, sizeof self->now);
}
