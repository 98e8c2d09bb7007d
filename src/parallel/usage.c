/* usage.c -- parameters that a step does not use: found, named, and left alone.
 *
 * Each virtual worker's report has a bit for every parameter, set when a term of it is asked for.
 * Reports reach every rank anyway, so all know the same: what nobody has used is not updated by
 * whoever owns it, and nobody waits for it, as terms that are not announced are when a turn ends.
 *
 * Cost: a bit for each virtual worker and parameter, and one look at each.
 */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "parallel/strategy.h"

enum { WORD = 64 };

static const uint64_t *bits_of(const lk_parallel *parallel, const lki_report *report)
{
    return report->samples + parallel->micro_count;
}

lk_status lki_usage_open(lk_parallel *parallel)
{
    LK_TRY(LKI_NEW(&parallel->used, parallel->layout->param_count, "used parameters"));
    LK_TRY(LKI_NEW(&parallel->missed, parallel->layout->param_count, "used parameters"));
    memset(parallel->used, 1, parallel->layout->param_count);
    return LK_OK;
}

void lki_usage_close(lk_parallel *parallel)
{
    lki_free(parallel->used);
    lki_free(parallel->missed);
}

void lki_usage_note(lk_parallel *parallel, lki_report *report, uint32_t term)
{
    uint32_t  param = parallel->layout->terms[term].param;
    uint64_t *bits  = report->samples + parallel->micro_count;
    bits[param / WORD] |= UINT64_C(1) << param % WORD;
}

static bool is_used_now(const lk_parallel *parallel, uint32_t param)
{
    for (uint32_t v = 0; v < parallel->leaves; v++)
        if (bits_of(parallel, lki_report_of(parallel, v))[param / WORD] >> param % WORD & 1)
            return true;
    return false;
}

static lk_status not_the_same(const lk_parallel *parallel, uint32_t param)
{
    return lk_fail(LK_EINVAL,
                   "step %llu: parameter '%s' is %s, other than in the first step; that is not "
                   "what LK_UNUSED_STATIC promises: take LK_UNUSED_SKIP (nothing was updated)",
                   (unsigned long long)parallel->step + 1, parallel->layout->params[param].name,
                   parallel->used[param] ? "not used" : "used");
}

static lk_status refused(const lk_parallel *parallel, uint32_t unused)
{
    char names[128];
    lk_parallel_unused_names(parallel, names, sizeof names);
    return lk_fail(LK_EINVAL, "step %llu: nobody has asked for the gradient of %u parameter%s: %s "
                   "(nothing was updated)", (unsigned long long)parallel->step + 1, unused,
                   unused == 1 ? "" : "s", names);
}

lk_status lki_usage_collect(lk_parallel *parallel, uint32_t *unused)
{
    *unused = 0;
    if (parallel->unused == LK_UNUSED_ZERO)
        return LK_OK;
    for (uint32_t p = 0; p < parallel->layout->param_count; p++) {
        bool used = is_used_now(parallel, p);
        if (parallel->unused == LK_UNUSED_STATIC && parallel->settled && used != parallel->used[p])
            return not_the_same(parallel, p);
        parallel->used[p] = used;
        *unused += !used;
    }
    parallel->settled = true;
    return parallel->unused == LK_UNUSED_REFUSE && *unused > 0 ? refused(parallel, *unused) : LK_OK;
}

void lki_usage_count(lk_parallel *parallel)
{
    for (uint32_t p = 0; p < parallel->layout->param_count; p++)
        parallel->missed[p] += !lki_is_used(parallel, p);
}

bool lki_is_idle(const lk_parallel *parallel, uint32_t bucket)
{
    const lki_layout *layout = parallel->layout;
    if (parallel->unused != LK_UNUSED_STATIC || !parallel->settled)
        return false;
    for (uint32_t t = 0; t < layout->term_count; t++)
        if (layout->first_bucket[t] <= bucket && bucket <= layout->last_bucket[t] &&
            parallel->used[layout->terms[t].param])
            return false;
    return true;
}

/* ---- For programs ------------------------------------------------------------------------ */

bool lk_parallel_is_used(const lk_parallel *parallel, uint32_t param)
{
    LK_ASSERT(param < parallel->layout->param_count);
    return lki_is_used(parallel, param);
}

void lk_parallel_unused_names(const lk_parallel *parallel, char *names, size_t bytes)
{
    size_t at = 0;
    LK_ASSERT(bytes > 0);
    names[0] = '\0';
    for (uint32_t p = 0; p < parallel->layout->param_count; p++) {
        const char *name = parallel->layout->params[p].name;
        if (lki_is_used(parallel, p))
            continue;
        int length = snprintf(names + at, bytes - at, "%s%s", at > 0 ? ", " : "", name);
        if (length < 0 || (size_t)length >= bytes - at) {
            names[at] = '\0'; /* whole names only */
            return;
        }
        at += (size_t)length;
    }
}

uint64_t lk_parallel_missed(const lk_parallel *parallel, uint32_t param)
{
    LK_ASSERT(param < parallel->layout->param_count);
    return parallel->missed[param];
}

void lk_parallel_load_missed(lk_parallel *parallel, uint32_t param, uint64_t missed)
{
    LK_ASSERT(param < parallel->layout->param_count);
    parallel->missed[param] = missed;
}
