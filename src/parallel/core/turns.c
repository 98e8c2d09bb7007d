/* turns.c -- the turns of a step: their begin and end, the memory of their gradients, and the
 * caller's reports.
 *
 * A step stores its first failure until lk_parallel_finish(), because hooks within a backward pass
 * cannot return it.
 *
 * If the strategy sets `raw`, the memory of a term is zeroed on the first request, so that it is in
 * cache then.  Without a request it is zeroed when the term is announced.  It is not zeroed if the
 * caller promises to overwrite it.
 */
#include <string.h>

#include "base/file.h"
#include "base/float.h"
#include "base/memory.h"
#include "device/reduce.h"
#include "parallel/joint.h"
#include "parallel/strategies/units.h"

static bool failed(const lk_parallel *parallel)
{
    return lki_step_failed(parallel);
}

static void keep(lk_parallel *parallel, lk_status status)
{
    lki_step_keep(parallel, status);
}

lk_status lk_parallel_begin(lk_parallel *parallel, uint64_t step)
{
    return lk_parallel_begin_micros(parallel, step, parallel->micro_count);
}

static lk_status check_micros(const lk_parallel *parallel, uint32_t count)
{
    bool whole = (!parallel->ops->rounds && !parallel->turn.adds_once) || parallel->micro_count > 1;
    if (count == 0)
        return lk_fail(LK_EINVAL, "a step has at least one micro-batch");
    if (count > parallel->micro_count && (parallel->running.count > 0 || !whole))
        return lk_fail(LK_EINVAL,
                       "a step of %u micro-batches, but the options have %u: there is "
                       "room for no more %s",
                       count, parallel->micro_count,
                       whole ? "of the running state's sums" : "than one of gradients");
    return LK_OK;
}

/* Joins turns in pairs for a caller that adds once, as soon as they may be joined. */
static void join_pairs(lk_parallel *parallel)
{
    if (parallel->turn.adds_once && parallel->joint <= 1)
        (void)lki_turns_join(parallel, 2);
}

static void begin_turns(lki_turn_state *turn)
{
    turn->leaf = turn->micro = turn->part = 0;
    turn->running = turn->dropped = turn->left_out = turn->closing = false;
    turn->kind                                                     = LKI_TURN_OWN;
    turn->owner                                                    = LKI_NO_FEATURE;
    turn->report                                                   = NULL;
}

lk_status lk_parallel_begin_micros(lk_parallel *parallel, uint64_t step, uint32_t micro_count)
{
    if (parallel->replicas != NULL)
        return lki_replicas_begin(parallel, step, micro_count);
    if (parallel->versions != NULL)
        return lki_versions_begin(parallel, step, micro_count);
    if (failed(parallel))
        return lki_fail_again(&parallel->now.failure);
    if (parallel->now.under_way)
        return lk_fail(LK_EINVAL, "step %llu is under way: lk_parallel_finish() ends it",
                       (unsigned long long)parallel->step);
    if (!lki_float_is_standard())
        return lk_fail(LK_EINVAL, "this thread flushes tiny numbers to zero or rounds in another "
                                  "direction, as programs linked with -ffast-math do: its bits "
                                  "would not be those of others; link without it");
    join_pairs(parallel);
    LK_TRY(check_micros(parallel, micro_count));
    if (parallel->remains.there && parallel->remains.step != step)
        return lk_fail(LK_EINVAL, "step %llu was broken off, and comes before step %llu",
                       (unsigned long long)parallel->remains.step, (unsigned long long)step);
    LK_ASSERT(parallel->joint <= 1 || micro_count == 1);
    parallel->now.under_way = true;
    parallel->now.micros    = micro_count;
    parallel->step          = step;
    parallel->rules.changed = false;
    parallel->now.seed      = 1;
    parallel->now.reduced   = false;
    parallel->now.mended    = parallel->remains.there;
    begin_turns(&parallel->turn);
    lki_features_begin_step(parallel);
    return LK_OK;
}

/* Returns true if the current turn computes a virtual worker; false if the rank only takes part in
 * communication. */
static bool computes(const lk_parallel *parallel)
{
    return parallel->turn.kind != LKI_TURN_OWN || parallel->turn.leaf < lki_turns(parallel);
}

uint32_t lki_leaf_now(const lk_parallel *parallel, uint32_t index)
{
    const lki_turn_state *turn = &parallel->turn;
    return turn->kind == LKI_TURN_OWN ? lki_leaf_of_turn(parallel, turn->leaf + turn->part + index)
                                      : turn->guest;
}

lki_report *lki_report_now(const lk_parallel *parallel, uint32_t index)
{
    return parallel->turn.report != NULL ? parallel->turn.report
                                         : lki_report_of(parallel, lki_leaf_now(parallel, index));
}

/* Returns true if a call of a turn may be made for virtual worker `index`.  Otherwise the step
 * fails. */
static bool may_call(lk_parallel *parallel, const char *call, uint32_t index)
{
    const uint32_t count = lki_turn_count(parallel);
    if (parallel->turn.running && index < count)
        return true;
    keep(parallel, parallel->turn.running
                       ? lk_fail(LK_EINVAL, "%s(): there is no virtual worker %u in a turn of %u",
                                 call, index, count)
                       : lk_fail(LK_EINVAL, "%s() was called outside of a turn", call));
    return false;
}

/* Returns true if there is such a gradient term.  Otherwise the step fails. */
static bool has_term(lk_parallel *parallel, const char *call, uint32_t term)
{
    const uint32_t count = parallel->layout->term_count;
    if (term >= count)
        keep(parallel, lk_fail(LK_EINVAL, "%s(): there is no gradient term %u; the model has %u",
                               call, term, count));
    return term < count;
}

/* ---- Joint turns ------------------------------------------------------------------------- */

bool lki_turns_may_join(const lk_parallel *parallel)
{
    bool single = parallel->effects.single || parallel->effects.audits || parallel->lock_step ||
                  parallel->ledger.kept || parallel->micro_count > 1 || parallel->effects.cut == 1;
    return !single && parallel->rounded == LK_F32 && parallel->ops->redeal != NULL;
}

uint32_t lki_turns_limit(const lk_parallel *parallel, uint32_t most)
{
    const uint32_t cut = parallel->effects.cut;
    if (!lki_turns_may_join(parallel))
        return 1;
    return cut > 0 && cut < most ? cut : most;
}

bool lki_turns_join(lk_parallel *parallel, uint32_t most)
{
    if (parallel->replicas != NULL)
        return lki_replicas_join(parallel->replicas, most);
    parallel = lki_in_use(parallel);
    const uint32_t before = parallel->joint;
    LK_ASSERT(!parallel->now.under_way);
    if (!lki_turns_may_join(parallel))
        return false;
    parallel->joint = lki_turns_limit(parallel, most);
    if (!parallel->ops->fits(parallel, &parallel->dealing)) {
        parallel->joint = before;
        return false;
    }
    parallel->turn.together = 1;
    keep(parallel, parallel->ops->redeal(parallel));
    return true;
}

/* Returns true if the caller computes the virtual workers of a joint turn one at a time. */
static bool one_by_one(const lk_parallel *parallel)
{
    return parallel->turn.adds_once && parallel->joint > 1;
}

uint32_t lki_turn_count(const lk_parallel *parallel)
{
    parallel = lki_in_use(parallel);
    return one_by_one(parallel) ? 1 : parallel->turn.together;
}

/* Returns true if the caller computes further virtual workers of the turn after this one. */
static bool has_parts(const lk_parallel *parallel)
{
    const lki_turn_state *turn = &parallel->turn;
    return one_by_one(parallel) && turn->part + 1 < turn->together;
}

/* Sets the number of virtual workers of the turn that begins. */
static void join_leaves(lk_parallel *parallel)
{
    lki_turn_state *turn  = &parallel->turn;
    uint32_t        first = lki_leaf_of_turn(parallel, turn->leaf), count = 1;
    while (turn->leaf + count < lki_turns(parallel) &&
           lki_leaf_of_turn(parallel, turn->leaf + count) == first + count)
        count++;
    turn->together = lki_joint_count(first, count, parallel->joint);
}

/* ---- Gradients --------------------------------------------------------------------------- */

/* Marks a virtual worker's memory of a term as initialised.  Returns true if it was
 * uninitialised. */
static bool begin_term(lk_parallel *parallel, uint32_t index, uint32_t term)
{
    uint8_t *begun = &parallel->turn.begun[index * parallel->layout->term_count + term];
    bool     raw   = !*begun;
    *begun         = 1;
    return raw;
}

static void clear_raw(lk_parallel *parallel, uint32_t index, uint32_t term)
{
    const lki_layout *layout = parallel->layout;
    if (begin_term(parallel, index, term))
        lki_clear(parallel, lki_gradient_now(parallel, index, term),
                  lki_round_up(layout->sizes[layout->terms[term].param], layout->align));
}

/* Zeroes the padding after a term.  Features read it, and in types of 8 or 4 bits it is part of a
 * block, in which one non-finite value would make all values non-finite. */
static void clear_tail(const lk_parallel *parallel, uint32_t term, float *grad)
{
    const lki_layout *layout = parallel->layout;
    size_t            size   = layout->sizes[layout->terms[term].param];
    memset(grad + size, 0, (lki_round_up(size, layout->align) - size) * sizeof *grad);
}

/* Announces a term of the layout, once, in the last micro-batch.  Returns true if this call
 * announced it. */
static bool announce(lk_parallel *parallel, uint32_t index, uint32_t term)
{
    lki_turn_state *turn  = &parallel->turn;
    bool            last  = turn->micro + 1 == parallel->now.micros && !has_parts(parallel);
    uint8_t        *ready = &turn->ready[index * parallel->layout->term_count + term];
    if (!last || *ready || failed(parallel) || turn->dropped)
        return false;
    *ready = 1;
    clear_raw(parallel, index, term);
    if (parallel->effects.watches && computes(parallel))
        keep(parallel, lki_features_term_ready(parallel, index, term));
    if (turn->kind == LKI_TURN_OWN && ++turn->announced[term] == turn->gradients &&
        !failed(parallel))
        keep(parallel, parallel->ops->term_ready(parallel, term));
    return true;
}

/* Takes part in other ranks' gathers, up to the last read of the block of `term`. */
static void catch_up(lk_parallel *parallel, uint32_t term)
{
    if (parallel->gathers && !failed(parallel))
        keep(parallel, lki_units_catch_up(parallel, term));
}

void lki_turn_catch_up(lk_parallel *parallel)
{
    catch_up(parallel, UINT32_MAX);
}

void lki_turn_end_terms(lk_parallel *parallel, uint32_t index)
{
    const lki_layout *layout = parallel->layout;
    for (uint32_t t = 0; t < layout->term_count; t++) {
        if (!layout->terms[t].same_block)
            catch_up(parallel, t);
        (void)announce(parallel, index, t);
    }
}

/* Reads a block.  Announces all blocks that will not be read again, even if the caller has not,
 * because all ranks must reduce and gather in the same order. */
static void read_block(lk_parallel *parallel, uint32_t term)
{
    const bool announces = parallel->turn.running;
    for (uint32_t t = 0; announces && t < term && lki_units_passed(parallel, t); t++)
        for (uint32_t i = 0; i < parallel->turn.gradients; i++)
            (void)announce(parallel, i, parallel->layout->named[t]);
    keep(parallel, lki_units_read(parallel, term));
}

bool lk_parallel_read(lk_parallel *parallel, uint32_t term)
{
    parallel = lki_in_use(parallel);
    if (!parallel->gathers)
        return !failed(parallel);
    if (has_term(parallel, "lk_parallel_read", term) && !parallel->layout->terms[term].same_block)
        read_block(parallel, term);
    else
        keep(parallel, lk_fail(LK_EINVAL, "lk_parallel_read(): term %u begins no block", term));
    if (failed(parallel))
        (void)lki_scrap(parallel, &parallel->scraps.params);
    return !failed(parallel);
}

float *lki_gradient_now(lk_parallel *parallel, uint32_t index, uint32_t term)
{
    float *at = NULL;
    if (parallel->ops->find_term == NULL || parallel->turn.kind == LKI_TURN_AGAIN)
        return parallel->turn.current[index].gradients + parallel->layout->term_at[term];
    if (!failed(parallel))
        keep(parallel, parallel->ops->find_term(parallel, term, &at));
    if (!failed(parallel))
        return at;
    if (lki_scrap(parallel, &parallel->scraps.gradient) == NULL)
        keep(parallel, parallel->ops->find_term(parallel, term, &at));
    return parallel->scraps.gradient != NULL ? parallel->scraps.gradient : at;
}

/* Records that a virtual worker uses a term.  *term becomes the layout's number of the term.
 * Returns false if the call was wrong. */
static bool use_term(lk_parallel *parallel, const char *call, uint32_t index, uint32_t *term)
{
    if (!may_call(parallel, call, index) || !has_term(parallel, call, *term))
        return false;
    *term = parallel->layout->named[*term];
    if (parallel->turn.kind != LKI_TURN_AGAIN)
        lki_features_term_asked(parallel, index, *term);
    return true;
}

float *lk_parallel_grad(lk_parallel *parallel, uint32_t index, uint32_t term)
{
    parallel = lki_in_use(parallel);
    if (!use_term(parallel, "lk_parallel_grad", index, &term))
        return lki_scrap(parallel, &parallel->scraps.gradient);
    clear_raw(parallel, index, term);
    return lki_gradient_now(parallel, index, term);
}

float *lk_parallel_grad_new(lk_parallel *parallel, uint32_t index, uint32_t term, bool *empty)
{
    parallel = lki_in_use(parallel);
    *empty   = false;
    if (!use_term(parallel, "lk_parallel_grad_new", index, &term))
        return lki_scrap(parallel, &parallel->scraps.gradient);
    *empty      = begin_term(parallel, index, term);
    float *grad = lki_gradient_now(parallel, index, term);
    if (*empty && grad != NULL)
        clear_tail(parallel, term, grad);
    return grad;
}

float *lk_parallel_state_sum(lk_parallel *parallel, uint32_t index, uint32_t state)
{
    parallel = lki_in_use(parallel);
    const uint32_t count = parallel->running.count;
    if (state >= count)
        keep(parallel, lk_fail(LK_EINVAL, "lk_parallel_state_sum(): there is no running state %u; "
                                          "the options have %u", state, count));
    else if (may_call(parallel, "lk_parallel_state_sum", index))
        return parallel->turn.current[index].states +
               parallel->turn.micro * parallel->state_width + parallel->running.at[state];
    return lki_scrap(parallel, &parallel->scraps.gradient);
}

void lk_parallel_grad_ready(lk_parallel *parallel, uint32_t index, uint32_t term)
{
    if (parallel->versions != NULL)
        lki_versions_progress(parallel);
    parallel = lki_in_use(parallel);
    lki_turn_state *turn = &parallel->turn;
    if (!may_call(parallel, "lk_parallel_grad_ready", index) ||
        !has_term(parallel, "lk_parallel_grad_ready", term))
        return;
    term = parallel->layout->named[term];
    if (announce(parallel, index, term) && index == 0)
        turn->finished[turn->finished_count++] = term;
}

/* ---- Turns ------------------------------------------------------------------------------- */

/* Ends the turns of one virtual worker or, in lock step, of all virtual workers of this rank. */
static void end_leaf(lk_parallel *parallel)
{
    lki_turn_state *turn = &parallel->turn;
    uint32_t        next = turn->leaf + (parallel->lock_step ? 1 : turn->together);
    bool            last = next == lki_turns(parallel);
    turn->micro          = 0;
    if (last && lki_features_are_moot(parallel, true)) {
        keep(parallel, lki_features_drop(parallel));
        return;
    }
    keep(parallel, parallel->ops->end_leaf(parallel));
    turn->leaf += turn->together;
}

static void end_turn(lk_parallel *parallel)
{
    lki_turn_state *turn = &parallel->turn;
    bool            own  = computes(parallel); /* false: there is no report */
    if (has_parts(parallel)) {
        turn->part++;
        turn->running = false;
        return;
    }
    if (turn->micro + 1 == parallel->now.micros)
        for (uint32_t i = 0; i < turn->gradients; i++)
            lki_turn_end_terms(parallel, i);
    lki_turn_catch_up(parallel);
    turn->running = false;
    turn->part    = 0;
    if (++turn->micro < parallel->now.micros || failed(parallel))
        return;
    for (uint32_t i = 0; own && i < turn->together; i++)
        lki_features_end_leaf(parallel, i);
    end_leaf(parallel);
}

void lki_report_begin(lk_parallel *parallel, uint32_t index)
{
    lki_report *report = lki_report_now(parallel, index);
    memset(report, 0, parallel->report_bytes);
    report->micros = parallel->now.micros;
    report->maker  = parallel->rank;
}

void lki_turn_clear(lk_parallel *parallel)
{
    size_t terms = parallel->layout->term_count;
    memset(parallel->turn.ready, 0, terms);
    memset(parallel->turn.begun, 0, terms);
    parallel->turn.finished_count = 0;
    parallel->turn.left_out       = false;
}

static void begin_leaves(lk_parallel *parallel)
{
    lki_turn_state *turn  = &parallel->turn;
    size_t          terms = parallel->layout->term_count;
    if (parallel->joint > 1)
        join_leaves(parallel);
    memset(turn->ready, 0, turn->gradients * terms);
    memset(turn->begun, !parallel->ops->raw, turn->gradients * terms);
    memset(turn->announced, 0, terms * sizeof *turn->announced);
    turn->finished_count = 0;
    turn->left_out       = false;
    keep(parallel, lki_features_begin_leaves(parallel));
    for (uint32_t i = 0; i < turn->together; i++)
        lki_report_begin(parallel, i);
    for (uint32_t i = 0; i < turn->gradients && !failed(parallel); i++)
        keep(parallel, parallel->ops->begin_leaf(parallel, turn->leaf + i, &turn->current[i]));
}

void lki_turn_begin(lk_parallel *parallel)
{
    parallel->turn.running = true;
    parallel->turn.since   = lki_seconds();
    parallel->turn.waited  = 0;
    if (parallel->gathers)
        lki_units_begin(parallel);
}

/* Ends the rank's own turn and adds its time to the report of its first virtual worker. */
static void end_own(lk_parallel *parallel)
{
    lki_report *report = lki_report_of(parallel, lki_leaf_now(parallel, 0));
    if (parallel->turn.dropped)
        keep(parallel, lki_features_drop(parallel));
    else
        end_turn(parallel);
    report->seconds += lki_seconds() - parallel->turn.since - parallel->turn.waited;
}

bool lki_turn_begin_own(lk_parallel *parallel)
{
    if (lki_features_are_moot(parallel, false)) {
        keep(parallel, lki_features_drop(parallel));
        return false;
    }
    if (parallel->turn.micro == 0 && parallel->turn.part == 0)
        begin_leaves(parallel);
    if (failed(parallel))
        return false;
    lki_turn_begin(parallel);
    return true;
}

bool lk_parallel_dropped(lk_parallel *parallel)
{
    parallel = lki_in_use(parallel);
    lki_turn_state *turn = &parallel->turn;
    if (turn->running && !turn->dropped)
        turn->dropped = lki_features_are_moot(parallel, false);
    return turn->dropped;
}

static void end_any(lk_parallel *parallel)
{
    const uint32_t owner = parallel->turn.owner;
    if (owner == LKI_NO_FEATURE)
        end_own(parallel);
    else
        lki_feature_table[owner]->end_turn(parallel, parallel->features[owner]);
}

static bool next_any(lk_parallel *parallel)
{
    const uint32_t owner = parallel->turn.owner;
    if (owner != LKI_NO_FEATURE)
        return lki_feature_table[owner]->next_turn(parallel, parallel->features[owner]);
    if (parallel->turn.leaf < lki_turns(parallel))
        return lki_turn_begin_own(parallel);
    return lki_features_next_turn(parallel);
}

bool lk_parallel_next(lk_parallel *parallel, lk_parallel_turn *turn)
{
    if (parallel->replicas != NULL)
        return lki_replicas_next(parallel->replicas, turn);
    if (parallel->versions != NULL)
        return lki_versions_next(parallel, turn);
    if (parallel->turn.running)
        end_any(parallel);
    if (failed(parallel) || !parallel->now.under_way || !next_any(parallel))
        return false;
    bool again = parallel->turn.kind != LKI_TURN_OWN;
    *turn      = (lk_parallel_turn){ lki_leaf_now(parallel, 0), parallel->turn.micro, again,
                                      parallel->step };
    return true;
}

/* Runs a turn without samples, for a rank that has no virtual worker in the last round.  It takes
 * part in gathering parameters, and reduces the spans that it owns. */
static void sit_out(lk_parallel *parallel)
{
    lki_turn_state *turn  = &parallel->turn;
    size_t          terms = parallel->layout->term_count;
    memset(turn->ready, 0, terms);
    memset(turn->begun, 1, terms); /* this turn's gradients are never read */
    memset(turn->announced, 0, terms * sizeof *turn->announced);
    keep(parallel, parallel->ops->begin_leaf(parallel, turn->leaf, turn->current));
    for (uint32_t k = 0; k < parallel->micro_count && !failed(parallel); k++) {
        lki_turn_begin(parallel);
        end_turn(parallel);
    }
}

void lki_turns_end(lk_parallel *parallel)
{
    lk_parallel_turn turn;
    parallel->turn.closing = true;
    while (lk_parallel_next(parallel, &turn))
        parallel->turn.left_out = true;
    if (parallel->gathers && !failed(parallel) && parallel->share.count < parallel->rounds.rounds)
        sit_out(parallel);
}

/* ---- Calls within a turn ----------------------------------------------------------------- */

void lk_parallel_progress(lk_parallel *parallel)
{
    if (parallel->replicas != NULL)
        lki_replicas_progress(parallel->replicas);
    if (parallel->versions != NULL)
        lki_versions_progress(parallel);
    parallel = lki_in_use(parallel);
    if (parallel->gathers && !failed(parallel))
        keep(parallel, lki_units_progress(parallel));
    if (parallel->ops->progress != NULL && !failed(parallel))
        keep(parallel, parallel->ops->progress(parallel));
}

void lk_parallel_merge_rows(lk_parallel *parallel, uint32_t width,
                            void (*merge)(uint32_t width, double *left, const double *right),
                            double *rows, double *total)
{
    parallel = lki_in_use(parallel);
    memset(total, 0, width * sizeof *total);
    if (may_call(parallel, "lk_parallel_merge_rows", 0) && !parallel->lock_step)
        keep(parallel, lk_fail(LK_EINVAL, "lk_parallel_merge_rows() needs options.lock_step"));
    if (!failed(parallel))
        keep(parallel, lki_rows_merge(parallel, width, merge, rows, total));
}

void lk_parallel_report(lk_parallel *parallel, uint32_t index, double loss_sum, uint64_t samples,
                        uint64_t count, uint64_t hits)
{
    parallel = lki_in_use(parallel);
    if (!may_call(parallel, "lk_parallel_report", index))
        return;
    lki_report *report = lki_report_now(parallel, index);
    report->loss += loss_sum;
    report->count += count;
    report->hits += hits;
    report->samples[lki_min(parallel->turn.micro, parallel->micro_count - 1)] += samples;
}

void lki_report_square(lk_parallel *parallel, uint32_t index, double square)
{
    LK_ASSERT(parallel->turn.running && index < lki_turn_count(parallel));
    lki_report_now(parallel, index)->square += square;
}
