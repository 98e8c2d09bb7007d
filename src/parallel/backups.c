/* backups.c -- places in a step, and who finds none; see backups.h. */
#include "parallel/backups.h"

#include <string.h>

#include "parallel/strategy.h"

enum { ROUND_SHIFT = 32 };

lk_status lki_backups_describe(lk_parallel *parallel, const lk_parallel_options *options)
{
    const char *why = parallel->ops->leave_out == NULL     ? "strategies other than ddp and zero1"
                      : parallel->world.hosts > 1          ? "several hosts"
                      : options->lock_step                 ? "lock step"
                      : options->survives                  ? "survives"
                      : options->rebalance                 ? "rebalance"
                      : options->duplicate                 ? "duplicate"
                      : options->audit > 0                 ? "audit"
                      : options->noise_decay > 0           ? "noise_decay"
                      : options->hook != NULL              ? "hook"
                      : options->unused >= LK_UNUSED_STATIC ? "LK_UNUSED_STATIC and _REFUSE"
                                                           : NULL;
    if (options->backups == 0)
        return LK_OK;
    if (options->backups >= parallel->ranks)
        return lk_fail(LK_EINVAL, "%u of %u ranks would be dropped from every step: backups must "
                                  "leave one at least", options->backups, parallel->ranks);
    if (why != NULL)
        return lk_fail(LK_EUNSUPPORTED, "backups are not for %s: leave one of the two out", why);
    parallel->backups.count = options->backups;
    return LK_OK;
}

void lki_backups_begin(lk_parallel *parallel)
{
    parallel->backups.round++;
    parallel->backups.arrived = false;
}

static uint32_t places(const lk_parallel *parallel)
{
    return parallel->ranks - parallel->backups.count;
}

/* Of this step; ranks that are still in the one before have left theirs there. */
static uint32_t taken(const lki_backups *b, uint64_t word)
{
    return word >> ROUND_SHIFT == b->round ? (uint32_t)word : 0;
}

static bool counts(const lk_parallel *parallel)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < lki_turns(parallel); i++)
        count += lki_report_of(parallel, lki_leaf_of_turn(parallel, i))->count;
    return count > 0;
}

bool lki_backups_arrive(lk_parallel *parallel)
{
    lki_backups *b    = &parallel->backups;
    uint64_t     word = atomic_load(b->word), next;

    b->arrived = true;
    if (!counts(parallel))
        return true;
    do {
        if (taken(b, word) == places(parallel))
            return false;
        next = (uint64_t)b->round << ROUND_SHIFT | (taken(b, word) + 1);
    } while (!atomic_compare_exchange_weak(b->word, &word, next));
    return true;
}

bool lki_backups_over(const lk_parallel *parallel)
{
    const lki_backups *b = &parallel->backups;
    return b->count > 0 && !b->arrived && taken(b, atomic_load(b->word)) == places(parallel);
}

/* What it has taken of a rank's time stays. */
static void drop_report(const lk_parallel *parallel, lki_report *report, lki_counting counting)
{
    bool   begun   = counting == LKI_DROPPED;
    double seconds = begun ? report->seconds : 0, data = begun ? report->data : 0;

    memset(report, 0, parallel->report_bytes);
    report->seconds  = seconds;
    report->data     = data;
    report->micros   = parallel->micros;
    report->maker    = parallel->rank;
    report->counting = counting;
}

lk_status lki_backups_leave_out(lk_parallel *parallel)
{
    uint32_t turns = lki_turns(parallel);
    uint32_t begun = parallel->leaf + (parallel->turning || parallel->micro > 0);

    for (uint32_t i = 0; i < turns; i++)
        drop_report(parallel, lki_report_of(parallel, lki_leaf_of_turn(parallel, i)),
                    i < begun ? LKI_DROPPED : LKI_NOT_BEGUN);
    parallel->backups.arrived = true;
    parallel->turning         = false;
    parallel->dropped         = false;
    parallel->micro           = 0;
    parallel->leaf            = turns;
    return parallel->ops->leave_out(parallel);
}

uint32_t lki_backups_dropped(const lk_parallel *parallel)
{
    uint32_t dropped = 0;
    for (uint32_t r = 0; r < parallel->ranks; r++)
        dropped += parallel->times[r].dropped;
    return dropped;
}
