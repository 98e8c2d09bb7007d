/* turns.c -- the life of a step as a program walks through it: turns, gradients, reports.
 *
 * Where a strategy leaves gradients raw, a term is cleared when it is asked for, and so while it is
 * near; or when it is announced, if nobody has; or never, if who asks will write it.
 *
 * A step that is under way keeps its first failure until lk_parallel_finish(): hooks in the middle
 * of a backward pass have nobody to return it to.
 */
#include <string.h>

#include "base/file.h"
#include "base/float.h"
#include "base/memory.h"
#include "device/reduce.h"
#include "parallel/balance.h"
#include "parallel/claims.h"
#include "parallel/strategies/shards.h"
#include "parallel/strategies/units.h"

static bool failed(const lk_parallel *parallel)
{
    return parallel->failure.status != LK_OK;
}

/* Keeps a failure for lk_parallel_finish(): hooks have nobody to return it to. */
static void keep(lk_parallel *parallel, lk_status status)
{
    if (status != LK_OK && !failed(parallel))
        parallel->failure = *lk_error_last();
}

lk_status lk_parallel_begin(lk_parallel *parallel, uint64_t step)
{
    return lk_parallel_begin_micros(parallel, step, parallel->micro_count);
}

static lk_status check_micros(const lk_parallel *parallel, uint32_t count)
{
    bool whole = !parallel->ops->rounds || parallel->micro_count > 1;
    if (count == 0)
        return lk_fail(LK_EINVAL, "a step has at least one micro-batch");
    if (count > parallel->micro_count && (parallel->state_count > 0 || !whole))
        return lk_fail(LK_EINVAL, "a step of %u micro-batches, but the options have %u: there is "
                       "room for no more %s", count, parallel->micro_count,
                       whole ? "of the running state's sums" : "than one of gradients");
    return LK_OK;
}

lk_status lk_parallel_begin_micros(lk_parallel *parallel, uint64_t step, uint32_t micro_count)
{
    if (failed(parallel))
        return lki_fail_again(&parallel->failure);
    if (parallel->under_way)
        return lk_fail(LK_EINVAL, "step %llu is under way: lk_parallel_finish() ends it",
                       (unsigned long long)parallel->step);
    if (!lki_float_is_standard())
        return lk_fail(LK_EINVAL, "this thread flushes tiny numbers to zero or rounds in another "
                                  "direction, as programs linked with -ffast-math do: its bits "
                                  "would not be those of others; link without it");
    LK_TRY(check_micros(parallel, micro_count));
    if (parallel->remains.there && parallel->remains.step != step)
        return lk_fail(LK_EINVAL, "step %llu was broken off, and comes before step %llu",
                       (unsigned long long)parallel->remains.step, (unsigned long long)step);
    parallel->under_way = true;
    parallel->micros    = micro_count;
    parallel->step      = step;
    parallel->leaf      = 0;
    parallel->micro     = 0;
    parallel->turning   = false;
    parallel->seed      = 1;
    parallel->reduced   = false;
    parallel->mended    = parallel->remains.there;
    if (parallel->audit != NULL)
        lki_audit_begin(parallel);
    lki_claims_begin(parallel);
    lki_backups_begin(parallel);
    return LK_OK;
}

float lk_parallel_loss_scale(lk_parallel *parallel, uint64_t count)
{
    LK_ASSERT(parallel->under_way);
    if (parallel->scaling.rule == LK_SCALE_NONE)
        return 1;
    parallel->seed = parallel->scaler.scale;
    for (uint64_t n = 1; n < count; n *= 2)
        parallel->seed *= 0.5;
    return (float)parallel->seed;
}

lk_loss_scaler lk_parallel_scaler(const lk_parallel *parallel)
{
    return parallel->scaler;
}

void lk_parallel_load_scaler(lk_parallel *parallel, const lk_loss_scaler *scaler)
{
    if (parallel->scaling.rule != LK_SCALE_NONE && parallel->scaling.rule != LK_SCALE_FIXED)
        parallel->scaler = *scaler;
    parallel->scaler.skipped = scaler->skipped;
}

uint32_t lki_leaf_now(const lk_parallel *parallel)
{
    if (parallel->remaking)
        return lki_audit_leaf(parallel);
    if (parallel->helping)
        return parallel->claims->leaf;
    return lki_leaf_of_turn(parallel, parallel->leaf + parallel->chosen);
}

lki_report *lki_report_now(const lk_parallel *parallel)
{
    if (parallel->remaking)
        return lki_audit_report(parallel);
    return lki_claims_on(parallel) ? parallel->claims->report
                                   : lki_report_of(parallel, lki_leaf_now(parallel));
}

void lk_parallel_choose(lk_parallel *parallel, uint32_t index)
{
    LK_ASSERT(parallel->turning && index < parallel->together);
    parallel->chosen = index;
}

/* Whether the chosen virtual worker's memory for the term, until now, held anything. */
static bool begin_term(lk_parallel *parallel, uint32_t term)
{
    uint8_t *begun = &parallel->begun[parallel->chosen * parallel->layout->term_count + term];
    bool     raw   = !*begun;
    *begun         = 1;
    return raw;
}

static void clear_raw(lk_parallel *parallel, uint32_t term)
{
    const lki_layout *layout = parallel->layout;
    if (begin_term(parallel, term))
        lki_clear(parallel, lki_gradient_now(parallel, term),
                  lki_round_up(layout->sizes[layout->terms[term].param], layout->align));
}

/* What lies behind a term up to the next one: a hook sees it, and it has its part in blocks of 8 or
 * 4 bits, where a value that is not finite makes all of its block so. */
static void clear_tail(const lk_parallel *parallel, uint32_t term, float *grad)
{
    const lki_layout *layout = parallel->layout;
    size_t            size   = layout->sizes[layout->terms[term].param];
    memset(grad + size, 0, (lki_round_up(size, layout->align) - size) * sizeof *grad);
}

/* Of the layout's terms; whether it was not announced before, and counts. */
static bool announce(lk_parallel *parallel, uint32_t term)
{
    bool     last  = parallel->micro + 1 == parallel->micros;
    uint8_t *ready = &parallel->ready[parallel->chosen * parallel->layout->term_count + term];
    if (!last || *ready || failed(parallel) || parallel->dropped)
        return false;
    *ready = 1;
    clear_raw(parallel, term);
    if (lki_audit_watches(parallel))
        lki_audit_term(parallel, term);
    if (parallel->remaking)
        return false;
    if (parallel->noise != NULL)
        lki_noise_term(parallel, term);
    if (parallel->helping)
        return false;
    if (parallel->hooking != NULL && parallel->leaf < lki_turns(parallel))
        keep(parallel, lki_hooks_term(parallel, term));
    if (++parallel->announced[term] == parallel->together && !failed(parallel))
        keep(parallel, parallel->ops->term_ready(parallel, term));
    return true;
}

/* Takes part in what others gather, up to the last read of the block of `term`. */
static void catch_up(lk_parallel *parallel, uint32_t term)
{
    if (parallel->gathers && !failed(parallel))
        keep(parallel, lki_units_catch_up(parallel, term));
}

static void end_terms(lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
    for (uint32_t t = 0; t < layout->term_count; t++) {
        if (!layout->terms[t].same_block)
            catch_up(parallel, t);
        (void)announce(parallel, t);
    }
}

/* Of a virtual worker that is made again nothing is kept but hashes. */
static void end_remaking(lk_parallel *parallel)
{
    if (parallel->micro + 1 == parallel->micros) {
        end_terms(parallel);
        lki_audit_finish(parallel);
    }
    catch_up(parallel, UINT32_MAX);
    parallel->micro    = 0;
    parallel->turning  = false;
    parallel->remaking = false;
}

/* The turns of one virtual worker are over, and perhaps with it those of all. */
static void end_leaf(lk_parallel *parallel)
{
    bool last       = parallel->leaf + 1 == lki_turns(parallel);
    parallel->micro = 0;
    if (last && parallel->backups.count > 0 && !lki_backups_arrive(parallel)) {
        keep(parallel, lki_backups_leave_out(parallel));
        return;
    }
    keep(parallel, parallel->ops->end_leaf(parallel));
    parallel->leaf += parallel->together;
}

static void end_turn(lk_parallel *parallel)
{
    bool own = parallel->leaf < lki_turns(parallel); /* or it sits out, and has no report */
    if (parallel->micro + 1 == parallel->micros) {
        if (own)
            lki_order_report(parallel, lki_report_now(parallel));
        for (parallel->chosen = 0; parallel->chosen < parallel->together; parallel->chosen++)
            end_terms(parallel);
    }
    catch_up(parallel, UINT32_MAX);
    parallel->chosen  = 0;
    parallel->turning = false;
    if (++parallel->micro < parallel->micros || failed(parallel))
        return;
    for (; own && parallel->noise != NULL && parallel->chosen < parallel->together;
         parallel->chosen++)
        lki_report_now(parallel)->squares = lki_noise_leaf(parallel);
    parallel->chosen = 0;
    if (lki_audit_watches(parallel))
        lki_audit_finish(parallel);
    end_leaf(parallel);
}

static void begin_report(lk_parallel *parallel)
{
    lki_report *report = lki_report_now(parallel);
    memset(report, 0, parallel->report_bytes);
    report->micros = parallel->micros;
    report->maker  = parallel->rank;
}

static void begin_leaves(lk_parallel *parallel)
{
    size_t terms = parallel->layout->term_count;
    memset(parallel->ready, 0, parallel->together * terms);
    memset(parallel->begun, !parallel->ops->raw, parallel->together * terms);
    memset(parallel->announced, 0, terms * sizeof *parallel->announced);
    if (parallel->noise != NULL)
        lki_noise_begin(parallel);
    if (parallel->hooking != NULL)
        keep(parallel, lki_hooks_begin(parallel));
    for (uint32_t c = 0; c < parallel->together && !failed(parallel); c++) {
        parallel->chosen = c;
        begin_report(parallel);
        keep(parallel, parallel->ops->begin_leaf(parallel, lki_leaf_now(parallel),
                                                 &parallel->current[c]));
    }
    parallel->chosen = 0;
}

static void begin_turn(lk_parallel *parallel)
{
    parallel->turning = true;
    parallel->turned  = lki_seconds();
    parallel->waited  = 0;
    if (parallel->gathers)
        lki_units_begin(parallel);
}

/* After its own turns: once all sums are there it may be asked to make others' again. */
static bool next_again(lk_parallel *parallel)
{
    bool more = false;
    if (parallel->audit == NULL)
        return false;
    if (!parallel->reduced)
        keep(parallel, parallel->ops->reduce(parallel, &parallel->sums));
    parallel->reduced = true;
    if (!failed(parallel))
        keep(parallel, lki_audit_next(parallel, &more));
    parallel->turning = more;
    return more;
}

/* What it has taken of this rank's time; in lock step it is the first virtual worker's. */
static void end_own(lk_parallel *parallel)
{
    lki_report *report = lki_report_of(parallel, lki_leaf_now(parallel));
    if (parallel->dropped)
        keep(parallel, lki_backups_leave_out(parallel));
    else
        end_turn(parallel);
    report->seconds += lki_seconds() - parallel->turned - parallel->waited;
}

static bool next_own(lk_parallel *parallel)
{
    if (lki_backups_over(parallel)) {
        keep(parallel, lki_backups_leave_out(parallel));
        return false;
    }
    if (parallel->micro == 0)
        begin_leaves(parallel);
    if (failed(parallel))
        return false;
    begin_turn(parallel);
    return true;
}

/* ---- Where any rank may make a virtual worker -------------------------------------------- */

/* The current one is over: its gradient, unless it is dropped, and its report are complete. */
static void end_claimed_leaf(lk_parallel *parallel)
{
    const uint32_t leaf    = lki_leaf_now(parallel);
    const bool     dropped = parallel->dropped;
    lki_claims    *c       = parallel->claims;
    uint32_t       place;
    bool           there;

    if (parallel->noise != NULL && !dropped)
        c->report->squares = lki_noise_leaf(parallel);
    bool mine         = !dropped && !failed(parallel) && lki_claims_win(parallel);
    parallel->micro   = 0;
    parallel->dropped = false;
    if (parallel->helping) {
        parallel->ops->end_other(parallel, leaf, c->place, mine);
        if (mine)
            lki_claims_done(parallel, leaf, c->place);
        parallel->helping = false;
        return;
    }
    lki_claims_note(parallel, c->report->seconds);
    if (!mine && !failed(parallel)) /* what is summed must have been reported */
        keep(parallel, lki_claims_await(parallel, leaf, true, &place, &there));
    if (!failed(parallel))
        keep(parallel, dropped ? parallel->ops->elsewhere(parallel, leaf, place, true)
                               : parallel->ops->end_leaf(parallel));
    parallel->leaf++;
}

static void end_claimed(lk_parallel *parallel)
{
    if (parallel->micro + 1 == parallel->micros)
        end_terms(parallel);
    parallel->turning = false;
    parallel->claims->report->seconds += lki_seconds() - parallel->turned - parallel->waited;
    if (++parallel->micro == parallel->micros || parallel->dropped)
        end_claimed_leaf(parallel);
}

/* One that another rank has begun, or would. */
static void begin_other(lk_parallel *parallel)
{
    size_t terms = parallel->layout->term_count;

    memset(parallel->ready, 0, terms);
    memset(parallel->begun, 0, terms);
    begin_report(parallel);
    if (parallel->noise != NULL)
        lki_noise_begin(parallel);
}

/* Of the next of mine, which another rank has: true if I make it all the same. */
static bool take_back(lk_parallel *parallel)
{
    uint32_t leaf = lki_leaf_now(parallel), place;
    bool     there;

    keep(parallel, lki_claims_await(parallel, leaf, parallel->claims->closing, &place, &there));
    if (failed(parallel))
        return false;
    if (!there)
        return lki_claims_again(parallel, leaf);
    keep(parallel, parallel->ops->elsewhere(parallel, leaf, place, false));
    parallel->leaf++;
    return false;
}

static bool next_claimed(lk_parallel *parallel)
{
    bool other = false;

    if (parallel->helping || parallel->micro > 0) {
        begin_turn(parallel);
        return true;
    }
    while (!other && !failed(parallel) && parallel->leaf < lki_turns(parallel)) {
        if (lki_claims_take(parallel, lki_leaf_now(parallel)))
            return next_own(parallel);
        other = take_back(parallel);
    }
    if (!other && !failed(parallel))
        keep(parallel, lki_claims_help(parallel, &other));
    if (!other || failed(parallel))
        return false;
    begin_other(parallel);
    begin_turn(parallel);
    return true;
}

bool lk_parallel_dropped(lk_parallel *parallel)
{
    if (parallel->turning && !parallel->dropped)
        parallel->dropped = lki_claims_on(parallel) ? lki_claims_lost(parallel)
                                                    : lki_backups_over(parallel);
    return parallel->dropped;
}

/* ---- Turns ------------------------------------------------------------------------------- */

static void end_any(lk_parallel *parallel)
{
    if (parallel->remaking)
        end_remaking(parallel);
    else if (lki_claims_on(parallel))
        end_claimed(parallel);
    else
        end_own(parallel);
}

bool lk_parallel_next(lk_parallel *parallel, lk_parallel_turn *turn)
{
    if (parallel->turning)
        end_any(parallel);
    if (failed(parallel) || !parallel->under_way)
        return false;
    bool own = parallel->leaf < lki_turns(parallel);
    if (!(lki_claims_on(parallel) ? next_claimed(parallel)
          : own ? next_own(parallel) : next_again(parallel)))
        return false;
    bool again = parallel->remaking || parallel->helping;
    *turn      = (lk_parallel_turn){ lki_leaf_now(parallel), parallel->micro, again };
    return true;
}

/* In the last round there may be no virtual worker for this rank, but others read its parameters
 * and reduce what it owns: it does what it would do for one without samples. */
static void sit_out(lk_parallel *parallel)
{
    memset(parallel->ready, 0, parallel->layout->term_count);
    memset(parallel->begun, 1, parallel->layout->term_count); /* nobody reads its gradients */
    memset(parallel->announced, 0, parallel->layout->term_count * sizeof *parallel->announced);
    keep(parallel, parallel->ops->begin_leaf(parallel, lki_leaf_now(parallel), parallel->current));
    for (uint32_t k = 0; k < parallel->micro_count && !failed(parallel); k++) {
        begin_turn(parallel);
        end_turn(parallel);
    }
}

/* Blocks that are not read again are finished, whether that is said or not: all ranks reduce and
 * gather in one order. */
void lk_parallel_read(lk_parallel *parallel, uint32_t term)
{
    LK_ASSERT(term < parallel->layout->term_count && !parallel->layout->terms[term].same_block);
    if (!parallel->gathers)
        return;
    for (uint32_t t = 0; parallel->turning && t < term && lki_units_passed(parallel, t); t++)
        lk_parallel_grad_ready(parallel, t);
    keep(parallel, lki_units_read(parallel, term));
    if (failed(parallel))
        (void)lki_scrap(parallel, &parallel->blank);
}

float *lki_gradient_now(lk_parallel *parallel, uint32_t term)
{
    float *at = NULL;
    if (parallel->ops->find_term == NULL || parallel->remaking)
        return parallel->current[parallel->chosen].gradients + parallel->layout->term_at[term];
    if (!failed(parallel))
        keep(parallel, parallel->ops->find_term(parallel, term, &at));
    if (!failed(parallel))
        return at;
    if (lki_scrap(parallel, &parallel->scrap) == NULL)
        keep(parallel, parallel->ops->find_term(parallel, term, &at));
    return parallel->scrap != NULL ? parallel->scrap : at;
}

/* The layout's term, which the current turn uses. */
static uint32_t use_term(lk_parallel *parallel, uint32_t term)
{
    LK_ASSERT(parallel->turning && term < parallel->layout->term_count);
    term = lki_order_term(parallel, term);
    if (parallel->unused != LK_UNUSED_ZERO && !parallel->remaking)
        lki_usage_note(parallel, lki_report_now(parallel), term);
    return term;
}

float *lk_parallel_grad(lk_parallel *parallel, uint32_t term)
{
    term = use_term(parallel, term);
    clear_raw(parallel, term);
    return lki_gradient_now(parallel, term);
}

float *lk_parallel_grad_new(lk_parallel *parallel, uint32_t term, bool *empty)
{
    term        = use_term(parallel, term);
    *empty      = begin_term(parallel, term);
    float *grad = lki_gradient_now(parallel, term);
    if (*empty && grad != NULL)
        clear_tail(parallel, term, grad);
    return grad;
}

float *lk_parallel_state_sum(lk_parallel *parallel, uint32_t state)
{
    LK_ASSERT(parallel->turning && state < parallel->state_count);
    return parallel->current[parallel->chosen].states + parallel->micro * parallel->state_width +
           parallel->state_at[state];
}

void lk_parallel_grad_ready(lk_parallel *parallel, uint32_t term)
{
    LK_ASSERT(parallel->turning && term < parallel->layout->term_count);
    term = lki_order_term(parallel, term);
    if (announce(parallel, term))
        lki_order_note(parallel, term);
}

void lk_parallel_progress(lk_parallel *parallel)
{
    if (parallel->gathers && !failed(parallel))
        keep(parallel, lki_units_progress(parallel));
    if (parallel->ops->progress != NULL && !failed(parallel))
        keep(parallel, parallel->ops->progress(parallel));
}

void lk_parallel_merge_rows(lk_parallel *parallel, uint32_t width,
                            void (*merge)(uint32_t width, double *left, const double *right),
                            double *rows, double *total)
{
    LK_ASSERT(parallel->turning && parallel->lock_step);
    memset(total, 0, width * sizeof *total);
    if (!failed(parallel))
        keep(parallel, lki_rows_merge(parallel, width, merge, rows, total));
}

void lk_parallel_report(lk_parallel *parallel, double loss_sum, uint64_t samples, uint64_t count,
                        uint64_t hits)
{
    LK_ASSERT(parallel->turning);
    lki_report *report = lki_report_now(parallel);
    report->loss += loss_sum;
    report->count += count;
    report->hits += hits;
    report->samples[lki_min(parallel->micro, parallel->micro_count - 1)] += samples;
}

lk_status lk_parallel_finish(lk_parallel *parallel, double lr, lk_step_result *result)
{
    lk_parallel_turn turn;
    *result = (lk_step_result){ 0 };
    if (!parallel->under_way && !failed(parallel))
        return lk_fail(LK_EINVAL, "no step is under way: lk_parallel_begin() begins one");
    if (parallel->claims != NULL)
        parallel->claims->closing = true;
    while (lk_parallel_next(parallel, &turn)) /* turns that the caller left out count for nothing */
        lki_audit_leave_out(parallel);
    if (parallel->gathers && !failed(parallel) && parallel->share.count < parallel->rounds.rounds)
        sit_out(parallel);
    if (!failed(parallel) && !parallel->reduced)
        keep(parallel, parallel->ops->reduce(parallel, &parallel->sums));
    if (!failed(parallel))
        keep(parallel, lki_step_finish(parallel, &parallel->sums, lr, result));
    if (!failed(parallel))
        keep(parallel, lki_order_settle(parallel));
    if (!failed(parallel))
        keep(parallel, lki_balance_settle(parallel, &result->moved));
    parallel->under_way = false;
    return failed(parallel) ? lki_fail_again(&parallel->failure) : LK_OK;
}
