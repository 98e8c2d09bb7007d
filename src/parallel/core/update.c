/* update.c -- applies the optimizer to a span, with the norms that the optimizer needs.
 *
 * A span is updated in pieces, which a ledger saves before they are changed (durable.h).  Given the
 * norms, every rule is elementwise.
 */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "optim/lamb.h"
#include "parallel/durable.h"
#include "parallel/offload/offload.h"
#include "parallel/state.h"
#include "tensor/ops.h"

static const float SQUARES_EPS = 1e-7f; /* of Zheng et al. (2017) */

static void states_of(const lk_parallel *parallel, size_t index, float **state)
{
    const lki_param_span *span = &parallel->layout->spans[index];
    if (parallel->offload.states != NULL) {
        lki_offload_states(parallel, index, state);
        return;
    }
    for (uint32_t i = 0; i < lk_optimizer_state_count(&parallel->optimizer); i++)
        state[i] = parallel->optimizer_state[i] + lki_stored_at(parallel, span);
}

void lki_span_measure_second(lk_parallel *parallel, size_t index)
{
    enum { LANES = 16, EXP_AVG_SQ = 1 };
    const lki_param_span *span                           = &parallel->layout->spans[index];
    float                *state[LK_OPTIMIZER_STATES_MAX] = { NULL };
    double                lanes[LANES]                   = { 0 };
    states_of(parallel, index, state);
    for (size_t i = 0; i < span->count; i++)
        lanes[i % LANES] += (double)state[EXP_AVG_SQ][i];
    *lki_block_sum(parallel, span, (lki_measure)parallel->norms.second) =
        lki_tree_sum_f64(lanes, LANES);
}

lk_update lki_update_of(const lk_parallel *parallel, const lk_update *all, uint32_t param)
{
    const lk_param_rule *rule   = &parallel->rules.of[param];
    lk_update            update = *all;
    update.lr *= rule->lr;
    update.step -= parallel->uses.missed[param];
    update.no_decay     = parallel->layout->params[param].no_decay;
    update.own_decay    = rule->own_decay != 0;
    update.weight_decay = rule->weight_decay;
    return update;
}

/* Clips the elements of the mean gradient, if there is a limit.  The optimizer then receives the
 * mean itself, so its scale is set to 1. */
static void clip_values(const lk_parallel *parallel, lk_update *update, size_t count, float *sum)
{
    if (parallel->clip.value <= 0)
        return;
    lk_clip_values(count, sum, update->scale, (float)parallel->clip.value);
    update->scale = update->clip = 1;
}

/* Adds the compensation of a delay to the gradient (lk_async.compensation). */
static void compensate(const lk_parallel *parallel, const lk_update *update, size_t count,
                       const float *values, const float *read, float *sum)
{
    const float factor = (float)parallel->clip.compensation;
    const float scale  = (float)((double)update->scale * (double)update->clip);
    for (size_t i = 0; i < count; i++)
        sum[i] += factor * (scale * sum[i]) * sum[i] * (values[i] - read[i]);
}

/* Does the same with an adaptive factor (lk_optimizer.mean_square), and adds the squares of the
 * gradient to their moving mean. */
static void compensate_adaptively(const lk_parallel *parallel, const lk_update *update,
                                  size_t count, const float *values, const float *read, float *sum,
                                  float *squares)
{
    const float factor = (float)parallel->clip.compensation;
    const float scale  = (float)((double)update->scale * (double)update->clip);
    const float decay  = (float)parallel->optimizer.mean_square;
    const float fresh  = (float)(1 - parallel->optimizer.mean_square);
    for (size_t i = 0; i < count; i++) {
        const float mean = scale * sum[i];
        squares[i]       = decay * squares[i] + fresh * (mean * mean);
        sum[i] += factor / sqrtf(squares[i] + SQUARES_EPS) * mean * sum[i] * (values[i] - read[i]);
    }
}

/* Changes the gradient of a piece before the optimizer gets it.  `moments` are its states. */
static void prepare(const lk_parallel *parallel, const lki_param_span *span, lk_update *update,
                    lki_piece piece, const float *values, float *sum, float *const *moments)
{
    const lk_optimizer *o = &parallel->optimizer;
    clip_values(parallel, update, piece.count, sum + piece.first);
    if (parallel->clip.compensation <= 0)
        return;
    const float *read = parallel->clip.read + span->at + piece.first;
    if (o->mean_square > 0)
        compensate_adaptively(parallel, update, piece.count, values + piece.first, read,
                              sum + piece.first,
                              moments[lk_optimizer_state_count(o) - (o->ema > 0 ? 2 : 1)]);
    else
        compensate(parallel, update, piece.count, values + piece.first, read, sum + piece.first);
}

static void states_from(float *const *state, size_t first, float **out)
{
    for (uint32_t i = 0; i < LK_OPTIMIZER_STATES_MAX; i++)
        out[i] = state[i] == NULL ? NULL : state[i] + first;
}

static void direct_piece(const lk_parallel *parallel, const lki_param_span *span, lk_update update,
                         lki_piece piece, float *sum, const float *values, float *const *state)
{
    float *moments[LK_OPTIMIZER_STATES_MAX];
    states_from(state, piece.first, moments);
    prepare(parallel, span, &update, piece, values, sum, moments);
    lk_optimizer_direct(&parallel->optimizer, parallel->exec, &update, piece.count,
                        sum + piece.first, values + piece.first, moments);
}

/* Measures what onebit-lamb needs of a span that has its direction. */
static void measure_moments(const lk_parallel *parallel, const lk_update *update, size_t index)
{
    const lki_param_span *span                           = &parallel->layout->spans[index];
    float                *state[LK_OPTIMIZER_STATES_MAX] = { NULL };
    if (!lki_measures(parallel, LKI_OF_LARGEST) || update->frozen == 0)
        return;
    states_of(parallel, index, state);
    lki_lamb_measure(&parallel->optimizer, update, span->count, state,
                     lki_block_sum(parallel, span, LKI_OF_MOMENTUM),
                     lki_block_sum(parallel, span, LKI_OF_LARGEST));
}

void lki_span_direct(lk_parallel *parallel, const lk_update *all, size_t index, float *sum)
{
    const lki_durable    *durable                        = parallel->durable;
    const lki_param_span *span                           = &parallel->layout->spans[index];
    float                *state[LK_OPTIMIZER_STATES_MAX] = { NULL };
    lk_update             update = lki_update_of(parallel, all, span->param);

    if (!lki_is_used(parallel, span->param)) {
        *lki_block_sum(parallel, span, LKI_OF_MOVES) = 0;
        return;
    }
    if (!durable->has(parallel, index, LKI_DIRECTED)) {
        lki_entry *entry = durable->begin_span(parallel, index, LKI_DIRECTED);
        states_of(parallel, index, state);
        for (lki_piece piece = { 0, 0 }; durable->next_piece(parallel, index, entry, &piece);)
            direct_piece(parallel, span, update, piece, sum, lki_values_of(parallel, span), state);
        durable->end_span(parallel, index, entry);
    } /* the stored sum of squares may be from another host, because this host's ledger was older */
    *lki_block_sum(parallel, span, LKI_OF_MOVES) =
        lki_block_sum_squares(parallel->exec, span->count, sum);
    measure_moments(parallel, &update, index);
}

/* Returns the trust ratio of a tensor.  The gradient's norm is computed after scaling and clipping,
 * as the optimizer applies the gradient. */
static double trust_of(const lk_parallel *parallel, const lk_update *update, uint32_t param)
{
    const double *norms = parallel->norms.of + param;
    size_t        count = parallel->layout->param_count;
    double        scale = (double)update->scale * (double)update->clip;
    if (!lki_measures(parallel, LKI_OF_VALUES))
        return 1.0;
    if (parallel->norms.trusts != NULL)
        return parallel->norms.trusts[param];
    return lk_optimizer_trust(&parallel->optimizer, update, norms[LKI_OF_VALUES * count],
                              lki_measures(parallel, LKI_OF_MOVES)
                                  ? norms[LKI_OF_MOVES * count]
                                  : norms[LKI_OF_GRADIENT * count] * scale);
}

static void update_piece(const lk_parallel *parallel, const lki_param_span *span, lk_update update,
                         lki_piece piece, float *sum, float *values, float *const *state)
{
    float *moments[LK_OPTIMIZER_STATES_MAX];
    states_from(state, piece.first, moments);
    /* with LAMB, `sum` is now a direction and is clipped already */
    if (!lki_measures(parallel, LKI_OF_MOVES))
        prepare(parallel, span, &update, piece, values, sum, moments);
    lk_optimizer_update(&parallel->optimizer, parallel->exec, &update, piece.count,
                        sum + piece.first, values + piece.first, moments);
}

bool lki_span_update(lk_parallel *parallel, const lk_update *all, size_t index, float *sum)
{
    const lki_durable    *durable                        = parallel->durable;
    const lki_param_span *span                           = &parallel->layout->spans[index];
    float                *values                         = lki_values_of(parallel, span);
    size_t                bytes                          = span->count * sizeof(float);
    float                *state[LK_OPTIMIZER_STATES_MAX] = { NULL };
    lk_update             update = lki_update_of(parallel, all, span->param);

    if (durable->has(parallel, index, LKI_UPDATED))
        return true;
    if (!durable->is_begun(parallel, index) &&
        (lki_xxh3(values, bytes) != parallel->owned.hashes[index] ||
         (parallel->read != NULL && !lki_reading_holds(parallel, span, values))))
        return false;
    if (!lki_is_used(parallel, span->param))
        return true;
    lki_entry *entry = durable->begin_span(parallel, index, LKI_UPDATED);
    states_of(parallel, index, state);
    if (parallel->effects.replaces)
        memset(values, 0, bytes);
    update.trust = trust_of(parallel, &update, span->param);
    for (lki_piece piece = { 0, 0 }; durable->next_piece(parallel, index, entry, &piece);)
        update_piece(parallel, span, update, piece, sum, values, state);
    if (parallel->read != NULL)
        lki_reading_put(parallel, span, values);
    parallel->owned.hashes[index] = lki_xxh3(values, bytes);
    durable->end_span(parallel, index, entry);
    return true;
}
