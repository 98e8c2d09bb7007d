/* unused.c -- finds and names the parameters that a step does not use, and leaves them unchanged.
 *
 * Each virtual worker's report has a bit for every parameter, set when a term of the parameter is
 * requested.  All ranks receive all reports, so every rank can determine which parameters are used.
 * The owner does not update a parameter that no virtual worker has used.  No rank waits for such a
 * parameter, because the end of a turn announces all remaining terms.
 *
 * Cost: a bit for each virtual worker and parameter, which is read once.
 */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "parallel/features/table.h"
#include "parallel/state.h"

enum { WORD = 64 };

typedef struct {
    lk_unused unused;
    bool      settled; /* the first step has determined which parameters are used */
    size_t    bits_at; /* offset of the bits in a report */
} watch;

static uint64_t *bits_of(const watch *self, lki_report *report)
{
    return lki_report_at(report, self->bits_at);
}

static lk_status unused_open(lk_parallel *parallel, const lk_parallel_options *options, void **out)
{
    watch *self = NULL;

    if (options->unused == LK_UNUSED_ZERO)
        return LK_OK;
    if (options->survives)
        return lk_fail(LK_EUNSUPPORTED, "which parameters are used is not among what survives: "
                                        "take LK_UNUSED_ZERO, or leave out survives");
    LK_TRY(LKI_NEW(&self, 1, "used parameters"));
    *out          = self;
    self->unused             = options->unused;
    parallel->effects.single = true;
    self->bits_at = lki_report_reserve(parallel, (parallel->layout->param_count + WORD - 1) / WORD *
                                                     sizeof(uint64_t));
    return LK_OK;
}

static uint64_t unused_hash(const lk_parallel_options *options)
{
    return (uint64_t)options->unused;
}

static void unused_term_asked(lk_parallel *parallel, void *context, uint32_t index, uint32_t term)
{
    const uint32_t param = parallel->layout->terms[term].param;
    uint64_t      *bits  = bits_of(context, lki_report_now(parallel, index));
    bits[param / WORD] |= UINT64_C(1) << param % WORD;
}

static bool is_used_now(const lk_parallel *parallel, const watch *self, uint32_t param)
{
    for (uint32_t v = 0; v < parallel->leaves; v++)
        if (bits_of(self, lki_report_of(parallel, v))[param / WORD] >> param % WORD & 1)
            return true;
    return false;
}

static lk_status not_the_same(const lk_parallel *parallel, uint32_t param)
{
    return lk_fail(LK_EINVAL,
                   "step %llu: parameter '%s' is %s, other than in the first step; that is not "
                   "what LK_UNUSED_STATIC promises: take LK_UNUSED_SKIP (nothing was updated)",
                   (unsigned long long)parallel->step + 1, parallel->layout->params[param].name,
                   lki_is_used(parallel, param) ? "not used" : "used");
}

static lk_status refused(const lk_parallel *parallel, uint32_t unused)
{
    char names[128];
    lk_parallel_unused_names(parallel, names, sizeof names);
    return lk_fail(LK_EINVAL,
                   "step %llu: nobody has asked for the gradient of %u parameter%s: %s "
                   "(nothing was updated)",
                   (unsigned long long)parallel->step + 1, unused, unused == 1 ? "" : "s", names);
}

/* Combines the reports of all virtual workers.  The result is equal on all ranks. */
static lk_status unused_reports(lk_parallel *parallel, void *context, lk_step_result *result)
{
    watch   *self  = context;
    uint8_t *used  = parallel->uses.now;
    bool     fixed = self->unused == LK_UNUSED_STATIC && self->settled;

    for (uint32_t p = 0; p < parallel->layout->param_count; p++) {
        bool now = is_used_now(parallel, self, p);
        if (fixed && now != used[p])
            return not_the_same(parallel, p);
        used[p] = now;
        result->unused += !now;
    }
    self->settled        = true;
    parallel->uses.fixed = self->unused == LK_UNUSED_STATIC;
    return self->unused == LK_UNUSED_REFUSE && result->unused > 0
               ? refused(parallel, result->unused)
               : LK_OK;
}

static void unused_after_update(lk_parallel *parallel, void *context)
{
    (void)context;
    for (uint32_t p = 0; p < parallel->layout->param_count; p++)
        parallel->uses.missed[p] += !lki_is_used(parallel, p);
}

const lki_feature lki_feature_unused = {
    .name         = "used parameters",
    .open         = unused_open,
    .close        = lki_free,
    .hash_options = unused_hash,
    .term_asked   = unused_term_asked,
    .reports      = unused_reports,
    .after_update = unused_after_update,
};

/* ---- Public functions -------------------------------------------------------------------- */

bool lk_parallel_is_used(const lk_parallel *parallel, uint32_t param)
{
    if (!lki_has_param(parallel, param))
        return false;
    parallel = lki_in_use_for(parallel, &param);
    return lki_is_used(parallel, param);
}

void lk_parallel_unused_names(const lk_parallel *parallel, char *names, size_t bytes)
{
    parallel = lki_in_use(parallel);
    size_t at = 0;
    if (bytes == 0)
        return;
    names[0] = '\0';
    for (uint32_t p = 0; p < parallel->layout->param_count; p++) {
        const char *name = parallel->layout->params[p].name;
        if (lki_is_used(parallel, p))
            continue;
        int length = snprintf(names + at, bytes - at, "%s%s", at > 0 ? ", " : "", name);
        if (length < 0 || (size_t)length >= bytes - at) {
            names[at] = '\0'; /* no partial names */
            return;
        }
        at += (size_t)length;
    }
}

uint64_t lk_parallel_missed(const lk_parallel *parallel, uint32_t param)
{
    if (!lki_has_param(parallel, param))
        return 0;
    parallel = lki_in_use_for(parallel, &param);
    return parallel->uses.missed[param];
}

void lk_parallel_load_missed(lk_parallel *parallel, uint32_t param, uint64_t missed)
{
    const bool there = lki_has_param(parallel, param);
    parallel         = lki_in_use_for(parallel, &param);
    if (there)
        parallel->uses.missed[param] = missed;
    else
        lki_step_keep(parallel, LK_EINVAL);
}
