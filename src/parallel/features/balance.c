/* balance.c -- computes shares from times, and changes the shares; see balance.h. */
#include "parallel/balance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/sort.h"
#include "parallel/features/table.h"
#include "parallel/state.h"

/* The length of the window in intervals.  An interval is one step, or as many short steps as take
 * INTERVAL_SECONDS. */
enum { WINDOW = 5 };
static const double INTERVAL_SECONDS = 0.1;
static const double GAIN = 0.05; /* the fraction of a step's time that a change must save */
enum { TRIES = 8 };              /* attempts to draw shares that fit into the buffers */

typedef struct {
    lki_rank_time *times; /* [ranks]: of the last step */

    /* The fields below are used only if shares move. */
    bool      moves;
    uint64_t  seed;   /* not 0: shares are drawn at random after every step */
    uint32_t *bounds; /* [ranks + 1]: the present shares */
    uint32_t *next;   /* [ranks + 1]: the next shares */
    uint32_t *tried;  /* [ranks + 1]: candidates for `next` */
    uint32_t *counts; /* [ranks] */
    /* [ranks][WINDOW]: seconds for one virtual worker, the mean over the steps of an interval.  For
     * the current interval, the sum over its steps. */
    double  *window;
    double  *pace;     /* [ranks]: seconds for one virtual worker at the last decision */
    uint32_t seen;     /* complete intervals in the window */
    uint32_t steps;    /* number of steps of the current interval so far */
    double   interval; /* seconds that those steps took */
    bool     fresh;    /* no step has been computed with these shares */
    /* The first step is over.  Until then the layout of buckets may change, and a rank that changes
     * the layout zeroes its buffers while other ranks are already in the next step. */
    bool begun;
} balance;

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
        if (seconds > most) /* gcc 12 for aarch64 fails to compile an fmax() here */
            most = seconds;
    }
    return most;
}

/* Returns the time of a step in which no rank waits for another, in seconds. */
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

/* Moves one border of `next` by one or two, to the best position for which the gradients fit.
 * Returns false if the gradients fit at no such position. */
static bool find_near(const lk_parallel *parallel, balance *b)
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

/* Returns true if the window suggests a change of shares, and leaves the new shares in `next`. */
static bool wants_change(const lk_parallel *parallel, balance *b)
{
    const uint32_t ranks = parallel->ranks;

    for (uint32_t r = 0; r < ranks; r++) {
        double *window = b->window + (size_t)r * WINDOW;
        qsort(window, WINDOW, sizeof *window, lki_by_value);
        b->pace[r] = window[WINDOW / 2];
        if (!(b->pace[r] > 0)) /* the clock did not advance */
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

/* ---- Shares drawn at random -------------------------------------------------------------- */

static void draw(const lk_parallel *parallel, balance *b, uint64_t attempt)
{
    const uint32_t ranks = parallel->ranks;

    LK_ASSERT(ranks > 0);
    for (uint32_t r = 0; r < ranks; r++)
        b->counts[r] = 1;
    for (uint32_t v = ranks; v < parallel->leaves; v++) {
        const uint64_t of[] = { b->seed, parallel->step, attempt, v };
        uint64_t       lot  = lki_xxh3(of, sizeof of);
        /* an uneven draw: one rank gets about half of the virtual workers */
        b->counts[lot & 1 ? (lot >> 8) % ranks : attempt % ranks]++;
    }
    add_up(b->next, b->counts, ranks);
}

static bool draws_change(const lk_parallel *parallel, balance *b)
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
        return lk_fail(LK_EUNSUPPORTED,
                       "strategy %s deals virtual workers in equal shares: shares "
                       "by speed are for ddp and zero1",
                       parallel->ops->name);
    if (parallel->lock_step)
        return lk_fail(LK_EUNSUPPORTED, "in lock step a rank has memory for the virtual workers "
                                        "that it begins with: shares stay as they are");
    return LK_OK;
}

static lk_status balance_open(lk_parallel *parallel, const lk_parallel_options *options, void **out)
{
    balance *b = NULL;

    LK_TRY(LKI_NEW(&b, 1, "shares"));
    *out                      = b;
    b->moves                  = options->rebalance;
    /* with the largest subtrees first, moving shares need about as many buffers as fixed shares */
    parallel->effects.largest = b->moves;
    b->seed                   = options->rebalance_seed;
    b->fresh                  = true;
    return b->moves && parallel->comm != NULL ? check(parallel) : LK_OK;
}

static lk_status balance_attach(lk_parallel *parallel, void *context)
{
    balance       *b     = context;
    const uint32_t ranks = parallel->ranks;

    LK_TRY(LKI_NEW(&b->times, ranks, "times of ranks"));
    if (!b->moves)
        return LK_OK;
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

static void balance_close(void *context)
{
    balance *b = context;
    lki_free(b->times);
    lki_free(b->bounds);
    lki_free(b->next);
    lki_free(b->tried);
    lki_free(b->counts);
    lki_free(b->window);
    lki_free(b->pace);
    lki_free(b);
}

static uint64_t balance_hash(const lk_parallel_options *options)
{
    const uint64_t words[] = { options->rebalance, options->rebalance_seed };
    return lki_xxh3(words, sizeof words);
}

/* ---- A step ------------------------------------------------------------------------------ */

/* Adds a step to the window.  A complete interval becomes the mean over its steps. */
static void fill_window(const lk_parallel *parallel, balance *b)
{
    double longest = 0;

    b->steps++;
    for (uint32_t r = 0; r < parallel->ranks; r++) {
        const lki_rank_time *time = &b->times[r];
        double              *mean = b->window + (size_t)r * WINDOW + b->seen;
        *mean   = (b->steps > 1 ? *mean : 0) + time->seconds / time->virtual_workers;
        longest = fmax(longest, time->seconds);
    }
    b->interval += longest;
    if (b->interval < INTERVAL_SECONDS)
        return;
    for (uint32_t r = 0; r < parallel->ranks; r++)
        b->window[(size_t)r * WINDOW + b->seen] /= b->steps;
    b->seen++;
    b->steps    = 0;
    b->interval = 0;
}

/* Sums the times of the virtual workers that a rank computed.  With `shared`, sums the times of the
 * virtual workers of the rank's share instead, even if other ranks computed them. */
static lki_rank_time time_of(const lk_parallel *parallel, uint32_t rank, bool shared)
{
    lki_rank_time time = { 0 };

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
    if (parallel->now.mended)
        time = (lki_rank_time){ .virtual_workers = lki_share_of(&parallel->dealing, rank).count };
    return time;
}

/* Reads the time of each rank from the reports. */
static lk_status balance_reports(lk_parallel *parallel, void *context, lk_step_result *result)
{
    balance *b = context;

    (void)result;
    for (uint32_t r = 0; r < parallel->ranks; r++) {
        lki_rank_time time = time_of(parallel, r, false);
        if (time.virtual_workers == 0) /* other ranks computed its whole share, or no rank did */
            time = time_of(parallel, r, true);
        if (time.virtual_workers == 0)
            time.virtual_workers = 1;
        time.pace   = b->times[r].pace;
        b->times[r] = time;
    }
    if (!b->moves || parallel->now.mended || parallel->ranks == 1)
        return LK_OK;
    if (!b->fresh)
        fill_window(parallel, b);
    b->fresh = false;
    return LK_OK;
}

static uint32_t count_moved(const balance *b, const lk_parallel *parallel)
{
    size_t stay = 0;
    for (uint32_t r = 0; r < parallel->ranks; r++) {
        size_t first = lki_max(b->bounds[r], b->next[r]);
        size_t end   = lki_min(b->bounds[r + 1], b->next[r + 1]);
        stay += end > first ? end - first : 0;
    }
    return parallel->leaves - (uint32_t)stay;
}

static lk_status move(lk_parallel *parallel, balance *b)
{
    memcpy(b->bounds, b->next, (parallel->ranks + 1) * sizeof *b->bounds);
    parallel->dealing.bounds = b->bounds;
    parallel->share          = lki_share_of(&parallel->dealing, parallel->rank);
    lki_virtual_order(parallel->queue, parallel->leaves, parallel->share.first,
                      parallel->share.count);
    for (uint32_t r = 0; r < parallel->ranks; r++) {
        parallel->reported[r] = lki_share_of(&parallel->dealing, r).count * parallel->report_bytes;
        b->times[r].pace      = b->pace[r];
    }
    return parallel->ops->redeal(parallel);
}

/* Changes the shares if that is worthwhile. */
static lk_status balance_end_step(lk_parallel *parallel, void *context, lk_step_result *result)
{
    balance *b = context;

    if (!b->moves || parallel->now.mended || parallel->ranks == 1)
        return LK_OK;
    bool first = !b->begun;
    b->begun   = true;
    if (b->seed == 0 ? b->seen < WINDOW : first)
        return LK_OK;
    bool changes = b->seed == 0 ? wants_change(parallel, b) : draws_change(parallel, b);
    b->seen = b->steps = 0;
    b->interval        = 0;
    if (!changes)
        return LK_OK;
    result->moved = count_moved(b, parallel);
    b->fresh      = true;
    return result->moved > 0 ? move(parallel, b) : LK_OK;
}

const lki_feature lki_feature_balance = {
    .name         = "shares",
    .open         = balance_open,
    .close        = balance_close,
    .hash_options = balance_hash,
    .attach       = balance_attach,
    .reports      = balance_reports,
    .end_step     = balance_end_step,
};

/* ---- For the room train ------------------------------------------------------------------ */

const lki_dealing *lki_parallel_dealing(const lk_parallel *parallel)
{
    return &parallel->dealing;
}

lki_rank_time lki_balance_time(const lk_parallel *parallel, uint32_t rank)
{
    LK_ASSERT(rank < parallel->ranks);
    if (parallel->replicas != NULL)
        return lki_replicas_time(parallel->replicas, rank);
    if (parallel->versions != NULL) /* ranks have no shares */
        return (lki_rank_time){ 0 };
    return ((const balance *)lki_feature_state(parallel, &lki_feature_balance))->times[rank];
}

const uint32_t *lk_parallel_queue(const lk_parallel *parallel)
{
    return parallel->queue;
}
