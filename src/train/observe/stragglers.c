/* stragglers.c -- compares the times of ranks in each window; see stragglers.h. */
#include "train/observe/stragglers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/sort.h"

lk_status lki_stragglers_open(lki_stragglers *out, uint32_t ranks)
{
    *out = (lki_stragglers){ .ranks = ranks };
    LK_TRY(LKI_NEW(&out->of, ranks, "times of ranks"));
    return LKI_NEW(&out->sorted, ranks, "times of ranks");
}

void lki_stragglers_close(lki_stragglers *all)
{
    lki_free(all->of);
    lki_free(all->sorted);
    *all = (lki_stragglers){ .ranks = 0 };
}

static void begin_window(lki_stragglers *all)
{
    all->full    = false;
    all->steps   = 0;
    all->seconds = 0;
    for (uint32_t r = 0; r < all->ranks; r++)
        all->of[r].seconds = all->of[r].data = 0;
}

static double median_of(lki_stragglers *all, bool data)
{
    for (uint32_t r = 0; r < all->ranks; r++)
        all->sorted[r] = data ? all->of[r].data : all->of[r].seconds;
    qsort(all->sorted, all->ranks, sizeof *all->sorted, lki_by_value);
    return all->sorted[(all->ranks - 1) / 2];
}

static void judge(lki_stragglers *all)
{
    for (uint32_t r = 0; r < all->ranks; r++) {
        all->of[r].seconds /= all->steps;
        all->of[r].data /= all->steps;
    }
    double seconds = median_of(all, false), data = median_of(all, true);
    for (uint32_t r = 0; r < all->ranks; r++) {
        lki_straggler *of = &all->of[r];
        of->was_slow      = of->slow;
        of->slow          = of->seconds > LKI_SLOW * seconds;
        of->times         = of->seconds / seconds;
        of->cause         = of->data - data > (of->seconds - seconds) / 2 ? LKI_CAUSE_DATA
                                                                            : LKI_CAUSE_COMPUTE;
        if (!of->slow)
            continue;
        of->windows++;
        of->by[of->cause]++;
        of->worst = fmax(of->worst, of->times);
    }
    all->windows++;
    all->full = true;
}

bool lki_stragglers_add(lki_stragglers *all, const lki_rank_time *times)
{
    double longest = 0;

    if (all->full)
        begin_window(all);
    for (uint32_t r = 0; r < all->ranks; r++) {
        all->of[r].seconds += times[r].seconds / times[r].virtual_workers;
        all->of[r].data += times[r].data / times[r].virtual_workers;
        longest = fmax(longest, times[r].seconds);
    }
    all->steps++;
    all->seconds += longest;
    if (all->steps >= LKI_WINDOW_STEPS && all->seconds >= LKI_WINDOW_SECONDS)
        judge(all);
    return all->full;
}

void lki_pace_text(char text[LKI_PACE_BYTES], double seconds)
{
    const double ms       = 1e3 * seconds;
    int          decimals = 1;

    for (double least = 1; ms < least && decimals < 6; least /= 10)
        decimals++;
    (void)snprintf(text, LKI_PACE_BYTES, "%.*f ms", decimals, ms);
}

const char *lki_cause_name(lki_cause cause)
{
    return cause == LKI_CAUSE_DATA ? "data" : "compute";
}

lki_cause lki_straggler_cause(const lki_straggler *of)
{
    return of->by[LKI_CAUSE_DATA] > of->by[LKI_CAUSE_COMPUTE] ? LKI_CAUSE_DATA : LKI_CAUSE_COMPUTE;
}
