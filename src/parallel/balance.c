/* balance.c -- from times to shares, and moving to them; see balance.h. */
#include "parallel/balance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "parallel/claims.h"

enum { WINDOW = 5 }; /* slots of a step, or as many as take ... */
static const double SLOT_SECONDS = 0.1;
static const double GAIN         = 0.05; /* of a step's time: what a change saves at least */
enum { TRIES = 8 };                      /* to draw shares that fit */

struct lki_balance {
    uint64_t  seed;   /* not 0: shares are drawn, in every step */
    uint32_t *bounds; /* [ranks + 1]: as they are */
    uint32_t *next;   /* likewise: as they may become */
    uint32_t *tried;  /* likewise */
    uint32_t *counts; /* [ranks] */
    double   *window; /* [ranks][WINDOW]: seconds of a virtual worker, summed over a slot's steps */
    double   *pace;   /* [ranks]: the same of a step, as the last change had it */
    uint32_t  seen;   /* slots in the window that are full */
    uint32_t  steps;  /* in the next one ... */
    double    slot;   /* ... and their seconds */
    bool      fresh;  /* nothing has been made with these shares */
    bool      begun;  /* a step has been made: until then buckets may be laid out anew, and who does
                       * that clears its buffers beside others' next step */
};

/* ---- The rule ---------------------------------------------------------------------------- */

void lki_balance_counts(uint32_t *counts, uint32_t leaves, uint32_t ranks, const double *pace)
{
    for (uint32_t r = 0; r < ranks; r++)
        counts[r] = 1;
    for (uint32_t left = leaves - ranks; left > 0; left--) {
        uint32_t best = 0;
        for (uint32_t r = 1; r < ranks; r++)
            if ((counts[r] + 1) * pace[r] < (counts[best] + 1) * pace[best])
                best = r;
        counts[best]++;
    }
}

double lki_balance_seconds(const uint32_t *bounds, uint32_t ranks, const double *pace)
{
    double most = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        double seconds = (bounds[r + 1] - bounds[r]) * pace[r];
        if (seconds > most) /* gcc 12 for aarch64 breaks on an fmax() here */
            most = seconds;
    }
    return most;
}

/* If nobody waited for anybody. */
static double ideal_seconds(uint32_t leaves, uint32_t ranks, const double *pace)
{
    double speed = 0;
    for (uint32_t r = 0; r < ranks; r++)
        speed += 1 / pace[r];
    return leaves / speed;
}

static void add_up(uint32_t *bounds, const uint32_t *counts, uint32_t ranks)
{
    bounds[0] = 0;
    for (uint32_t r = 0; r < ranks; r++)
        bounds[r + 1] = bounds[r] + counts[r];
}

static bool fits(const lk_parallel *parallel, const uint32_t *bounds)
{
    lki_dealing dealing = parallel->dealing;
    dealing.bounds      = bounds;
    return parallel->ops->fits(parallel, &dealing);
}

/* Whether one of the borders of `next` can move by one or two, so that it fits; then the best. */
static bool find_near(const lk_parallel *parallel, lki_balance *b)
{
    static const int offsets[] = { -1, 1, -2, 2 };
    const size_t     bytes     = (parallel->ranks + 1) * sizeof *b->next;
    double           least     = 0;
    uint32_t         border    = 0;
    int              offset    = 0;

    for (uint32_t r = 1; r < parallel->ranks; r++)
        for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
            int64_t at = (int64_t)b->next[r] + offsets[i];
            if (at <= b->next[r - 1] || at >= b->next[r + 1])
                continue;
            memcpy(b->tried, b->next, bytes);
            b->tried[r]    = (uint32_t)at;
            double seconds = lki_balance_seconds(b->tried, parallel->ranks, b->pace);
            if ((border == 0 || seconds < least) && fits(parallel, b->tried)) {
                border = r;
                offset = offsets[i];
                least  = seconds;
            }
        }
    if (border > 0)
        b->next[border] = (uint32_t)((int64_t)b->next[border] + offset);
    return border > 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* By what the window says; leaves the shares in `next`. */
static bool wants_change(const lk_parallel *parallel, lki_balance *b)
{
    const uint32_t ranks = parallel->ranks;

    for (uint32_t r = 0; r < ranks; r++) {
        double *window = b->window + (size_t)r * WINDOW;
        qsort(window, WINDOW, sizeof *window, by_value);
        b->pace[r] = window[WINDOW / 2];
        if (!(b->pace[r] > 0)) /* a clock that stands still says nothing */
            return false;
    }
    double now = lki_balance_seconds(b->bounds, ranks, b->pace), most = (1 - GAIN) * now;
    if (ideal_seconds(parallel->leaves, ranks, b->pace) > most)
        return false;
    lki_balance_counts(b->counts, parallel->leaves, ranks, b->pace);
    add_up(b->next, b->counts, ranks);
    return lki_balance_seconds(b->next, ranks, b->pace) <= most &&
           (fits(parallel, b->next) || find_near(parallel, b)) &&
           lki_balance_seconds(b->next, ranks, b->pace) <= most;
}

/* ---- Drawing them ------------------------------------------------------------------------ */

static void draw(const lk_parallel *parallel, lki_balance *b, uint64_t attempt)
{
    const uint32_t ranks = parallel->ranks;

    for (uint32_t r = 0; r < ranks; r++)
        b->counts[r] = 1;
    for (uint32_t v = ranks; v < parallel->leaves; v++) {
        const uint64_t of[] = { b->seed, parallel->step, attempt, v };
        uint64_t       lot  = lki_xxh3(of, sizeof of);
        b->counts[lot & 1 ? (lot >> 8) % ranks : attempt % ranks]++; /* some get many */
    }
    add_up(b->next, b->counts, ranks);
}

static bool draws_change(const lk_parallel *parallel, lki_balance *b)
{
    for (uint64_t attempt = 0; attempt < TRIES; attempt++) {
        draw(parallel, b, parallel->step + attempt);
        if (fits(parallel, b->next))
            return true;
    }
    return false;
}

/* ---- Opening ----------------------------------------------------------------------------- */

static lk_status check(const lk_parallel *parallel)
{
    if (parallel->ops->fits == NULL)
        return lk_fail(LK_EUNSUPPORTED, "strategy %s deals virtual workers in equal shares: shares "
                                        "by speed are for ddp and zero1", parallel->ops->name);
    if (parallel->lock_step)
        return lk_fail(LK_EUNSUPPORTED, "in lock step a rank has memory for the virtual workers "
                                        "that it begins with: shares stay as they are");
    return LK_OK;
}

lk_status lki_balance_open(lk_parallel *parallel, const lk_parallel_options *options)
{
    lki_balance   *b     = NULL;
    const uint32_t ranks = parallel->ranks;

    LK_TRY(LKI_NEW(&parallel->times, ranks, "times of ranks"));
    if (!options->rebalance)
        return LK_OK;
    LK_TRY(check(parallel));
    LK_TRY(LKI_NEW(&b, 1, "shares"));
    parallel->balance = b;
    b->seed           = options->rebalance_seed;
    b->fresh          = true;
    LK_TRY(LKI_NEW(&b->bounds, (size_t)ranks + 1, "shares"));
    LK_TRY(LKI_NEW(&b->next, (size_t)ranks + 1, "shares"));
    LK_TRY(LKI_NEW(&b->tried, (size_t)ranks + 1, "shares"));
    LK_TRY(LKI_NEW(&b->counts, ranks, "shares"));
    LK_TRY(LKI_NEW(&b->window, (size_t)ranks * WINDOW, "shares"));
    LK_TRY(LKI_NEW(&b->pace, ranks, "shares"));
    LK_TRY(LKI_NEW(&parallel->queue, parallel->leaves, "virtual workers"));
    for (uint32_t r = 0; r < ranks; r++)
        b->bounds[r] = lki_share_of(&parallel->dealing, r).first;
    b->bounds[ranks] = parallel->leaves;
    lki_virtual_order(parallel->queue, parallel->leaves, parallel->share.first,
                      parallel->share.count);
    return LK_OK;
}

void lki_balance_close(lk_parallel *parallel)
{
    lki_balance *b = parallel->balance;

    lki_free(parallel->times);
    lki_free(parallel->queue);
    if (b == NULL)
        return;
    lki_free(b->bounds);
    lki_free(b->next);
    lki_free(b->tried);
    lki_free(b->counts);
    lki_free(b->window);
    lki_free(b->pace);
    lki_free(b);
    parallel->balance = NULL;
}

/* ---- A step ------------------------------------------------------------------------------ */

/* What the step adds to the window: the mean over a slot's steps, when it is full. */
static void fill_window(const lk_parallel *parallel, lki_balance *b)
{
    double longest = 0;

    b->steps++;
    for (uint32_t r = 0; r < parallel->ranks; r++) {
        const lki_rank_time *time = &parallel->times[r];
        double             *slot = b->window + (size_t)r * WINDOW + b->seen;
        *slot   = (b->steps > 1 ? *slot : 0) + time->seconds / time->virtual_workers;
        longest = fmax(longest, time->seconds);
    }
    b->slot += longest;
    if (b->slot < SLOT_SECONDS)
        return;
    for (uint32_t r = 0; r < parallel->ranks; r++)
        b->window[(size_t)r * WINDOW + b->seen] /= b->steps;
    b->seen++;
    b->steps = 0;
    b->slot  = 0;
}

/* Adds up what a rank has made, or, `shared`, what its share has taken whoever made it. */
static lki_rank_time time_of(const lk_parallel *parallel, uint32_t rank, bool shared)
{
    lki_share     share = lki_share_of(&parallel->dealing, rank);
    lki_rank_time time  = { .pace = parallel->times[rank].pace };

    for (uint32_t v = 0; v < parallel->leaves; v++) {
        const lki_report *report = lki_report_of(parallel, v);
        if (shared ? lki_share_rank(&parallel->dealing, v) != rank : report->maker != rank)
            continue;
        time.virtual_workers += report->counting != LKI_NOT_BEGUN;
        time.dropped += report->counting != LKI_COUNTS;
        for (uint32_t k = 0; k < parallel->micro_count; k++)
            time.samples += report->samples[k];
        time.seconds += report->seconds;
        time.data += report->data;
    }
    if (parallel->mended)
        time = (lki_rank_time){ .virtual_workers = share.count, .pace = time.pace };
    return time;
}

void lki_balance_hear(lk_parallel *parallel)
{
    lki_balance *b = parallel->balance;

    for (uint32_t r = 0; r < parallel->ranks; r++) {
        lki_rank_time time = time_of(parallel, r, !lki_claims_on(parallel));
        if (time.virtual_workers == 0) /* others have made all of its, or nobody */
            time = time_of(parallel, r, true);
        if (time.virtual_workers == 0)
            time.virtual_workers = 1;
        parallel->times[r] = time;
    }
    if (b == NULL || parallel->mended || parallel->ranks == 1)
        return;
    if (!b->fresh)
        fill_window(parallel, b);
    b->fresh = false;
}

static uint32_t count_moved(const lki_balance *b, const lk_parallel *parallel)
{
    size_t stay = 0;
    for (uint32_t r = 0; r < parallel->ranks; r++) {
        size_t first = lki_max(b->bounds[r], b->next[r]);
        size_t end   = lki_min(b->bounds[r + 1], b->next[r + 1]);
        stay += end > first ? end - first : 0;
    }
    return parallel->leaves - (uint32_t)stay;
}

static lk_status move(lk_parallel *parallel, lki_balance *b)
{
    memcpy(b->bounds, b->next, (parallel->ranks + 1) * sizeof *b->bounds);
    parallel->dealing.bounds = b->bounds;
    parallel->share          = lki_share_of(&parallel->dealing, parallel->rank);
    lki_virtual_order(parallel->queue, parallel->leaves, parallel->share.first,
                      parallel->share.count);
    for (uint32_t r = 0; r < parallel->ranks; r++) {
        parallel->reported[r] = lki_share_of(&parallel->dealing, r).count * parallel->report_bytes;
        parallel->times[r].pace = b->pace[r];
    }
    return parallel->ops->redeal(parallel);
}

lk_status lki_balance_settle(lk_parallel *parallel, uint32_t *moved)
{
    lki_balance *b = parallel->balance;

    *moved = 0;
    if (b == NULL || parallel->mended || parallel->ranks == 1)
        return LK_OK;
    bool first = !b->begun;
    b->begun   = true;
    if (b->seed == 0 ? b->seen < WINDOW : first)
        return LK_OK;
    bool changes = b->seed == 0 ? wants_change(parallel, b) : draws_change(parallel, b);
    b->seen = b->steps = 0;
    b->slot = 0;
    if (!changes)
        return LK_OK;
    *moved   = count_moved(b, parallel);
    b->fresh = true;
    return *moved > 0 ? move(parallel, b) : LK_OK;
}

void lki_balance_waited(lk_parallel *parallel, double seconds)
{
    LK_ASSERT(parallel->turning);
    if (!parallel->remaking)
        lki_report_now(parallel)->data += seconds;
}

lki_rank_time lki_balance_time(const lk_parallel *parallel, uint32_t rank)
{
    LK_ASSERT(rank < parallel->ranks);
    return parallel->times[rank];
}

const uint32_t *lk_parallel_queue(const lk_parallel *parallel)
{
    return parallel->queue;
}
