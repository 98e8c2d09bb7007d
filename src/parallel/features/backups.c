/* backups.c -- backup workers: a step uses only the gradients of the ranks that finish first.
 *
 * Source: Chen, Pan, Monga, Bengio and Jozefowicz, Revisiting Distributed Synchronous SGD, 2016.
 * The first N gradients of N + b workers are averaged, and the other b are dropped.  Here a worker
 * is a rank with all its virtual workers.  Which ranks finish first depends on timing, so results
 * are timed.
 *
 *      arrive    A rank that has finished its turns takes one of `ranks - backups` places, by
 *                compare and swap on a word in the host's arena.  A rank without counted samples
 *                needs no place, so a short batch is never dropped completely.
 *      dropped   A rank for which no place is left, on arrival or earlier between two blocks, stops
 *                computing its turns.  It sends zeros in place of its gradients, and its reports
 *                are empty.
 *      owners    A dropped rank still sums and updates its slices.  Other ranks wait for a rank
 *                that does not run at all.
 *
 * A rank sends no gradient before it has arrived, because a place stands for the rank's whole
 * gradient.
 *
 * The word contains the number of steps since opening, so it need not be reset.
 */
#include "parallel/features/backups.h"

#include <stdatomic.h>

#include "base/memory.h"
#include "parallel/features/table.h"
#include "parallel/state.h"

enum { ROUND_SHIFT = 32 };

typedef struct {
    uint32_t          count; /* number of ranks that are dropped from every step */
    uint32_t          round; /* number of steps begun */
    bool              arrived;
    /* in the model's arena: the step (round), and the number of places taken in it */
    _Atomic uint64_t *word;
} backups;

static lk_status backups_open(lk_parallel *parallel, const lk_parallel_options *options, void **out)
{
    backups    *self = NULL;
    const char *why  = parallel->ops->leave_out == NULL      ? "strategies other than ddp and zero1"
                       : parallel->world.hosts > 1           ? "several hosts"
                       : options->lock_step                  ? "lock step"
                       : options->survives                   ? "`survives`"
                       : options->rebalance                  ? "`rebalance`"
                       : options->duplicate                  ? "`duplicate`"
                       : options->audit > 0                  ? "`audit`"
                       : options->noise_decay > 0            ? "`noise_decay`"
                       : options->hook != NULL               ? "`hook`"
                       : options->unused >= LK_UNUSED_STATIC ? "LK_UNUSED_STATIC and _REFUSE"
                                                             : NULL;
    if (options->backups == 0)
        return LK_OK;
    if (options->backups >= parallel->ranks)
        return lk_fail(LK_EINVAL,
                       "%u of %u ranks would be dropped from every step: backups must "
                       "leave one at least",
                       options->backups, parallel->ranks);
    if (why != NULL)
        return lk_fail(LK_EUNSUPPORTED, "backups are not for %s: leave one of the two out", why);
    LK_TRY(LKI_NEW(&self, 1, "backup workers"));
    *out                 = self;
    self->count                  = options->backups;
    parallel->effects.holds_back = true;
    parallel->effects.single     = true;
    return LK_OK;
}

static uint64_t backups_hash(const lk_parallel_options *options)
{
    return options->backups;
}

static size_t backups_lay_out(lk_parallel *parallel, void *context, char *base, size_t at)
{
    backups *self = context;
    (void)parallel;
    self->word = lki_carve(base, &at, sizeof *self->word);
    return at;
}

static void backups_begin_step(lk_parallel *parallel, void *context)
{
    backups *self = context;
    (void)parallel;
    self->round++;
    self->arrived = false;
}

static uint32_t places(const lk_parallel *parallel, const backups *self)
{
    return parallel->ranks - self->count;
}

/* Returns the number of places taken in this step.  A word of an earlier step means 0. */
static uint32_t taken(const backups *self, uint64_t word)
{
    return word >> ROUND_SHIFT == self->round ? (uint32_t)word : 0;
}

static bool counts(const lk_parallel *parallel)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < lki_turns(parallel); i++)
        count += lki_report_of(parallel, lki_leaf_of_turn(parallel, i))->count;
    return count > 0;
}

/* Takes a place when this rank has finished its turns.  Returns true if the turns count. */
static bool arrive(const lk_parallel *parallel, backups *self)
{
    uint64_t word = atomic_load(self->word), next;

    self->arrived = true;
    if (!counts(parallel))
        return true;
    do {
        if (taken(self, word) == places(parallel, self))
            return false;
        next = (uint64_t)self->round << ROUND_SHIFT | (taken(self, word) + 1);
    } while (!atomic_compare_exchange_weak(self->word, &word, next));
    return true;
}

static bool is_over(const lk_parallel *parallel, const backups *self)
{
    return !self->arrived && taken(self, atomic_load(self->word)) == places(parallel, self);
}

static bool backups_are_moot(lk_parallel *parallel, void *context, bool over)
{
    return over ? !arrive(parallel, context) : is_over(parallel, context);
}

/* Drops all virtual workers of this rank in this step, computed or not. */
static lk_status backups_drop(lk_parallel *parallel, void *context)
{
    backups        *self  = context;
    lki_turn_state *turn  = &parallel->turn;
    uint32_t        turns = lki_turns(parallel);
    uint32_t        begun = turn->leaf + (turn->running || turn->micro > 0);

    for (uint32_t i = 0; i < turns; i++)
        lki_report_drop(parallel, lki_leaf_of_turn(parallel, i),
                        i < begun ? LKI_DROPPED : LKI_NOT_BEGUN);
    self->arrived = true;
    turn->running = false;
    turn->dropped = false;
    turn->micro   = 0;
    turn->leaf    = turns;
    return parallel->ops->leave_out(parallel);
}

static lk_status backups_reports(lk_parallel *parallel, void *context, lk_step_result *result)
{
    (void)context;
    for (uint32_t v = 0; v < parallel->leaves; v++)
        result->dropped += lki_report_of(parallel, v)->counting != LKI_COUNTS;
    return LK_OK;
}

const lki_feature lki_feature_backups = {
    .name         = "backup workers",
    .open         = backups_open,
    .close        = lki_free,
    .hash_options = backups_hash,
    .lay_out      = backups_lay_out,
    .begin_step   = backups_begin_step,
    .is_moot      = backups_are_moot,
    .drop         = backups_drop,
    .reports      = backups_reports,
};

bool lki_backups_over(const lk_parallel *parallel)
{
    const backups *self = lki_feature_state(parallel, &lki_feature_backups);
    return self != NULL && is_over(parallel, self);
}
