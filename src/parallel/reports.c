/* reports.c -- the bytes of features in reports and tallies, changes to single reports, and losses.
 *
 * All ranks have the same features, so all ranks reserve the same offsets.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "parallel/feature.h"
#include "parallel/state.h"

enum { ALIGN = 8 };

size_t lki_report_reserve(lk_parallel *parallel, size_t bytes)
{
    size_t at = parallel->report_bytes;
    parallel->report_bytes += lki_round_up(bytes, ALIGN);
    return at;
}

size_t lki_tally_reserve(lk_parallel *parallel, size_t bytes)
{
    size_t at = parallel->tally_bytes;
    parallel->tally_bytes += lki_round_up(bytes, ALIGN);
    LK_ASSERT(parallel->tally_bytes <= LKI_TALLY_BYTES);
    return at;
}

void lki_report_drop(const lk_parallel *parallel, uint32_t leaf, lki_counting counting)
{
    lki_report *report  = lki_report_of(parallel, leaf);
    bool        begun   = counting == LKI_DROPPED;
    double      seconds = begun ? report->seconds : 0, data = begun ? report->data : 0;

    memset(report, 0, parallel->report_bytes);
    report->seconds  = seconds;
    report->data     = data;
    report->micros   = parallel->now.micros;
    report->maker    = parallel->rank;
    report->counting = counting;
}

void lki_report_waited(lk_parallel *parallel, double seconds)
{
    parallel = lki_in_use(parallel);
    LK_ASSERT(parallel->turn.running);
    if (parallel->turn.kind != LKI_TURN_AGAIN)
        lki_report_now(parallel, 0)->data += seconds;
}

void lki_losses_take(lk_parallel *parallel)
{
    lki_losses *losses = &parallel->norms.losses;
    losses->count      = parallel->leaves <= LKI_LOSSES_MAX ? parallel->leaves : 0;
    for (uint32_t v = 0; v < losses->count; v++) {
        const lki_report *report = lki_report_of(parallel, v);
        const double      mean   = report->count > 0 ? report->loss / (double)report->count : 0;
        losses->of[v]            = isnan(mean) ? (double)NAN : mean; /* machines differ in NaNs */
    }
}

const lki_losses *lki_losses_of(const lk_parallel *parallel)
{
    return &parallel->norms.losses;
}
