/* terms.c -- the memory of gradient terms in a turn, and the reports that terms are ready.
 *
 * If the strategy sets `raw`, the memory of a term is zeroed on the first request, so that it is in
 * cache then.  Without a request it is zeroed when the term is announced.  It is not zeroed if the
 * caller promises to overwrite it.
 */
#include <string.h>

#include "base/memory.h"
#include "parallel/strategies/units.h"

/* Marks the chosen virtual worker's memory of a term as initialised.  Returns true if it was
 * uninitialised. */
static bool begin_term(lk_parallel *parallel, uint32_t term)
{
    uint8_t *begun =
        &parallel->turn.begun[parallel->turn.chosen * parallel->layout->term_count + term];
    bool raw = !*begun;
    *begun   = 1;
    return raw;
}

static void clear_raw(lk_parallel *parallel, uint32_t term)
{
    const lki_layout *layout = parallel->layout;
    if (begin_term(parallel, term))
        lki_clear(parallel, lki_gradient_now(parallel, term),
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

/* Announces a term of the layout, once, in the last micro-batch. */
static void announce(lk_parallel *parallel, uint32_t term)
{
    lki_turn_state *turn  = &parallel->turn;
    bool            last  = turn->micro + 1 == parallel->now.micros;
    uint8_t        *ready = &turn->ready[turn->chosen * parallel->layout->term_count + term];
    if (!last || *ready || lki_step_failed(parallel) || turn->dropped)
        return;
    *ready = 1;
    clear_raw(parallel, term);
    if (lki_turn_computes(parallel))
        lki_step_keep(parallel, lki_features_term_ready(parallel, term));
    if (turn->kind == LKI_TURN_OWN && ++turn->announced[term] == turn->together &&
        !lki_step_failed(parallel))
        lki_step_keep(parallel, parallel->ops->term_ready(parallel, term));
}

/* Takes part in other ranks' gathers, up to the last read of the block of `term`. */
static void catch_up(lk_parallel *parallel, uint32_t term)
{
    if (parallel->gathers && !lki_step_failed(parallel))
        lki_step_keep(parallel, lki_units_catch_up(parallel, term));
}

void lki_turn_catch_up(lk_parallel *parallel)
{
    catch_up(parallel, UINT32_MAX);
}

void lki_turn_end_terms(lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
    parallel->turn.ending    = true;
    for (uint32_t t = 0; t < layout->term_count; t++) {
        if (!layout->terms[t].same_block)
            catch_up(parallel, t);
        announce(parallel, t);
    }
    parallel->turn.ending = false;
}

/* Announces all blocks that will not be read again, even if the caller has not, because all ranks
 * must reduce and gather in the same order. */
void lk_parallel_read(lk_parallel *parallel, uint32_t term)
{
    LK_ASSERT(term < parallel->layout->term_count && !parallel->layout->terms[term].same_block);
    if (!parallel->gathers)
        return;
    for (uint32_t t = 0; parallel->turn.running && t < term && lki_units_passed(parallel, t); t++)
        lk_parallel_grad_ready(parallel, t);
    lki_step_keep(parallel, lki_units_read(parallel, term));
    if (lki_step_failed(parallel))
        (void)lki_scrap(parallel, &parallel->scraps.params);
}

float *lki_gradient_now(lk_parallel *parallel, uint32_t term)
{
    float *at = NULL;
    if (parallel->ops->find_term == NULL || parallel->turn.kind == LKI_TURN_AGAIN)
        return parallel->turn.current[parallel->turn.chosen].gradients +
               parallel->layout->term_at[term];
    if (!lki_step_failed(parallel))
        lki_step_keep(parallel, parallel->ops->find_term(parallel, term, &at));
    if (!lki_step_failed(parallel))
        return at;
    if (lki_scrap(parallel, &parallel->scraps.gradient) == NULL)
        lki_step_keep(parallel, parallel->ops->find_term(parallel, term, &at));
    return parallel->scraps.gradient != NULL ? parallel->scraps.gradient : at;
}

/* Records that the current turn uses a term, and returns the layout's number of the term. */
static uint32_t use_term(lk_parallel *parallel, uint32_t term)
{
    LK_ASSERT(parallel->turn.running && term < parallel->layout->term_count);
    term = parallel->layout->named[term];
    if (parallel->turn.kind != LKI_TURN_AGAIN)
        lki_features_term_asked(parallel, term);
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
    LK_ASSERT(parallel->turn.running && state < parallel->running.count);
    return parallel->turn.current[parallel->turn.chosen].states +
           parallel->turn.micro * parallel->state_width + parallel->running.at[state];
}

void lk_parallel_grad_ready(lk_parallel *parallel, uint32_t term)
{
    LK_ASSERT(parallel->turn.running && term < parallel->layout->term_count);
    announce(parallel, parallel->layout->named[term]);
}
