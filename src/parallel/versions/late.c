/* late.c -- tasks that are computed twice, because the rank that has claimed one is late.
 *
 * A rank that has found no task for half the time of its last one computes the first task, in the
 * order of application, that another rank has claimed (backup tasks: Dean and Ghemawat, MapReduce,
 * 2004, section 3.6).  Both gradients have the same bits.  The rank that has one first hands it
 * over, and the other one drops its own, before its next turn.
 *
 * A word for each gradient in the window says whether it is copied, and whether some rank has it.
 * Another for each rank names the version that it reads, so that the version stays in memory after
 * its gradient has been applied.
 */
#include "base/file.h"
#include "base/memory.h"
#include "parallel/versions/internal.h"

enum { COPIED = 1, HANDED_OVER = 2, STATE_BITS = 2 };

/* Returns the states of gradient number `at`, of a word that may be that of an earlier one. */
static uint64_t states(uint64_t word, uint64_t at)
{
    return word >> STATE_BITS == at + 1 ? word & (COPIED | HANDED_OVER) : 0;
}

/* Adds a state, unless some rank has added it, or `at` is over. */
static bool add_state(const lki_versions *v, uint64_t at, uint64_t state)
{
    _Atomic uint64_t *word = &v->late[at % v->window];
    uint64_t          seen = atomic_load(word);
    do {
        if (seen >> STATE_BITS > at + 1 || (states(seen, at) & state) != 0)
            return false;
    } while (!atomic_compare_exchange_weak(
        word, &seen, (at + 1) << STATE_BITS | states(seen, at) | state));
    return true;
}

bool lki_late_is_over(const lki_versions *v)
{
    return v->speculates &&
           (lki_applied(v) > v->at ||
            (states(atomic_load(&v->late[v->at % v->window]), v->at) & HANDED_OVER) != 0);
}

bool lki_late_hands_over(const lki_versions *v)
{
    return !v->speculates || add_state(v, v->at, HANDED_OVER);
}

void lki_late_forget(const lki_versions *v, uint64_t at)
{
    _Atomic uint64_t *word = &v->late[at % v->window];
    if (states(atomic_load(word), at) != 0)
        atomic_store(word, 0);
}

bool lki_late_reads(const lk_parallel *parallel)
{
    lki_versions *v = parallel->versions;
    if (!v->speculates)
        return true;
    atomic_store(&v->reading[parallel->rank], v->task.reads + 1);
    return !lki_late_is_over(v);
}

bool lki_late_needs(const lki_versions *v, uint32_t ranks, uint64_t version)
{
    for (uint32_t r = 0; v->speculates && r < ranks; r++)
        if (atomic_load(&v->reading[r]) == version + 1)
            return true;
    return false;
}

/* Returns true if another rank has claimed gradient number `at`, and computes it. */
static bool is_claimed(const lk_parallel *parallel, uint64_t at)
{
    const lki_versions *v    = parallel->versions;
    const uint64_t      word = atomic_load(&v->claims[at % v->window]);
    const uint64_t      by   = word & ((1 << LKI_CLAIM_BITS) - 1);
    return word >> LKI_CLAIM_BITS == at && by >= LKI_CLAIMED &&
           by - LKI_CLAIMED != parallel->rank;
}

bool lki_late_find(lk_parallel *parallel, double since)
{
    lki_versions  *v       = parallel->versions;
    const uint64_t applied = lki_applied(v);
    if (!v->speculates || v->seconds <= 0 || lki_seconds() - since < v->seconds / 2)
        return false;
    const uint64_t end = lki_min(lki_look_ahead(v, applied), applied + v->options.groups);
    for (uint64_t at = applied; at < end; at++)
        if (is_claimed(parallel, at) && add_state(v, at, COPIED)) {
            v->at   = at;
            v->task = *lki_task_at(v, at);
            return true;
        }
    return false;
}
