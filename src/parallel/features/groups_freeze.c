/* groups_freeze.c -- decides when the second moment is frozen (LK_START_AUTO).
 *
 * Tang et al. (2021) freeze it when it has become stable: when its norm is at least 0.96 of that of
 * 1 / (1 - beta2) steps ago, after the warm-up of the learning rate.  As no element is below 0, the
 * norm is the sum: blocks of 4096 elements in 16 lanes, a tree over the blocks of a tensor, and a
 * tree over tensors, rounded to a float.  The moment begins at 0 and grows in its first steps, so
 * the sums of updates t are compared after division by 1 - beta2^t.
 *
 * Owners measure the moment before they update it, and the sums are sent with those of gradients.
 * So the test of step t + 1 has the moment after t updates, needs no message of its own, and is the
 * same on all ranks.  If it passes, groups send momenta from the next step on.
 *
 * The sums that later tests need are in a ring in the arena of each host.  A step writes the place
 * of its sum before it is marked, and reads another place, so a step that is repeated finds what it
 * has read.  The tally has the sum for hosts that lost a rank in between.
 *
 * Cost: a pass over the second moment in each step until it is frozen.
 */
#include <string.h>

#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/features/groups.h"
#include "parallel/state.h"
#include "tensor/ops.h"

static const double STABLE = 0.96;

enum { SPAN_MAX = 1 << 20, HEAD = 2, LOW_BITS = 24 };

struct lki_freeze {
    uint64_t          span;   /* updates between the two sums of a test */
    uint64_t          after;  /* lk_exchange.auto_after */
    double            beta2;
    _Atomic uint64_t *start;  /* lki_groups.start, in the arena; 0: not decided */
    _Atomic float    *sums;   /* [span + 1], in the arena: of n updates at n % (span + 1) */
    size_t            tally_at;
};

/* The part of a tally. */
typedef struct {
    uint64_t start;
    double   sum;
} decision;

/* ---- Opening ----------------------------------------------------------------------------- */

lk_status lki_freeze_open(lk_parallel *parallel, lki_groups *self, const lk_exchange *exchange,
                          double beta2)
{
    const double span = 1 / (1 - beta2);
    if (!(span < SPAN_MAX))
        return lk_fail(LK_EINVAL,
                       "with beta2 %.9g the second moment would be compared with that of %.0f "
                       "steps ago, %d is the limit; give a number of steps before the freeze",
                       beta2, span, SPAN_MAX);
    LK_TRY(LKI_NEW(&self->freeze, 1, "the automatic freeze"));
    self->freeze->span     = (uint64_t)(span + 0.5);
    self->freeze->after    = exchange->auto_after;
    self->freeze->beta2    = beta2;
    self->freeze->tally_at = lki_tally_reserve(parallel, sizeof(decision));
    parallel->norms.second = parallel->norms.measures++;
    return LK_OK;
}

size_t lki_freeze_lay_out(lki_groups *self, char *base, size_t at)
{
    lki_freeze *freeze = self->freeze;
    if (freeze == NULL)
        return at;
    freeze->start = lki_carve(base, &at, sizeof *freeze->start);
    freeze->sums  = lki_carve(base, &at, (freeze->span + 1) * sizeof *freeze->sums);
    return at;
}

static void set_start(lk_parallel *parallel, lki_groups *self, uint64_t start)
{
    self->start = parallel->effects.cut_from = start;
    atomic_store(self->freeze->start, start == UINT64_MAX ? 0 : start);
}

void lki_freeze_attach(lk_parallel *parallel, lki_groups *self)
{
    if (self->freeze == NULL)
        return;
    const uint64_t start = atomic_load(self->freeze->start); /* of ranks before this one, or 0 */
    set_start(parallel, self, start == 0 ? UINT64_MAX : start);
}

/* ---- The test ---------------------------------------------------------------------------- */

static _Atomic float *place_of(const lki_freeze *freeze, uint64_t updates)
{
    return &freeze->sums[updates % (freeze->span + 1)];
}

static double corrected(const lki_freeze *freeze, uint64_t updates)
{
    return (double)atomic_load(place_of(freeze, updates)) /
           (1 - lki_powi(freeze->beta2, updates));
}

/* Returns true if the second moment after `updates` updates is stable. */
static bool is_stable(const lki_freeze *freeze, uint64_t updates)
{
    if (updates <= freeze->span || updates + 1 < freeze->after)
        return false;
    const double before = corrected(freeze, updates - freeze->span);
    return before > 0 && corrected(freeze, updates) >= STABLE * before;
}

void lki_freeze_decide(lk_parallel *parallel, lki_groups *self, lki_tally *tally)
{
    lki_freeze *freeze = self->freeze;
    decision    now    = { .start = 0 };
    if (freeze == NULL)
        return;
    if (self->start > parallel->step) { /* of this rank; another may have decided already */
        now.sum = (double)(float)parallel->norms.second_sum;
        atomic_store(place_of(freeze, parallel->step), (float)now.sum);
        if (is_stable(freeze, parallel->step))
            set_start(parallel, self, parallel->step + 1); /* lki_cut() is 0 in this step */
    }
    now.start = self->start;
    lki_tally_put(tally, freeze->tally_at, &now, sizeof now);
}

void lki_freeze_restore(lk_parallel *parallel, lki_groups *self, const lki_tally *tally)
{
    decision was;
    if (self->freeze == NULL)
        return;
    lki_tally_get(tally, self->freeze->tally_at, &was, sizeof was);
    if (was.start > parallel->step)
        atomic_store(place_of(self->freeze, parallel->step), (float)was.sum);
    set_start(parallel, self, was.start);
}

/* ---- Checkpoints ------------------------------------------------------------------------- */

size_t lki_freeze_count(const lki_groups *self)
{
    return self->freeze == NULL ? 0 : HEAD + (size_t)self->freeze->span + 1;
}

/* The floats are the start in two parts, and then the sums. */
void lki_freeze_store(const lki_groups *self, float *out)
{
    const uint64_t start = self->start == UINT64_MAX ? 0 : self->start;
    if (self->freeze == NULL)
        return;
    out[0] = (float)(start >> LOW_BITS);
    out[1] = (float)(start & ((1 << LOW_BITS) - 1));
    for (uint64_t i = 0; i <= self->freeze->span; i++)
        out[HEAD + i] = atomic_load(&self->freeze->sums[i]);
}

void lki_freeze_load(lk_parallel *parallel, lki_groups *self, const float *from)
{
    if (self->freeze == NULL)
        return;
    for (uint64_t i = 0; i <= self->freeze->span; i++)
        atomic_store(&self->freeze->sums[i], from[HEAD + i]);
    const uint64_t start = ((uint64_t)from[0] << LOW_BITS) + (uint64_t)from[1];
    set_start(parallel, self, start == 0 ? UINT64_MAX : start);
}
