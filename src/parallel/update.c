/* update.c -- the optimizer on a span: pieces of it, with what others need to complete them.
 *
 * With a ledger a span is updated in pieces, each of which is kept before it is changed; without
 * one it is one piece (recover/ledger.h).  Every rule is elementwise once it has the norms.
 */
#include "base/hash.h"
#include "parallel/offload/offload.h"
#include "parallel/strategy.h"
#include "tensor/ops.h"

static void states_of(const lk_parallel *parallel, size_t index, float **state)
{
    const lki_param_span *span = &parallel->layout->spans[index];
    if (parallel->states_aside != NULL) {
        lki_offload_states(parallel, index, state);
        return;
    }
    for (uint32_t i = 0; i < lk_optimizer_state_count(&parallel->optimizer); i++)
        state[i] = parallel->optimizer_state[i] + lki_kept_at(parallel, span);
}

/* What holds for a parameter. */
static lk_update update_of(const lk_parallel *parallel, const lk_update *all, uint32_t param)
{
    const lk_param_rule *rule   = &parallel->rules[param];
    lk_update            update = *all;
    update.lr *= rule->lr;
    update.step -= parallel->missed[param];
    update.no_decay     = parallel->layout->params[param].no_decay;
    update.own_decay    = rule->own_decay != 0;
    update.weight_decay = rule->weight_decay;
    return update;
}

/* What the optimizer sees of a gradient is its mean then. */
static void clip_values(const lk_parallel *parallel, lk_update *update, size_t count, float *sum)
{
    if (parallel->clip_value <= 0)
        return;
    lk_clip_values(count, sum, update->scale, (float)parallel->clip_value);
    update->scale = update->clip = 1;
}

static void states_from(float *const *state, size_t first, float **out)
{
    for (uint32_t i = 0; i < LK_OPTIMIZER_STATES_MAX; i++)
        out[i] = state[i] == NULL ? NULL : state[i] + first;
}

static void direct_piece(const lk_parallel *parallel, lk_update update, lki_piece piece, float *sum,
                         const float *values, float *const *state)
{
    float *moments[LK_OPTIMIZER_STATES_MAX];
    states_from(state, piece.first, moments);
    clip_values(parallel, &update, piece.count, sum + piece.first);
    lk_optimizer_direct(&parallel->optimizer, parallel->exec, &update, piece.count,
                        sum + piece.first, values + piece.first, moments);
}

void lki_span_direct(lk_parallel *parallel, const lk_update *all, size_t index, float *sum)
{
    const lki_param_span *span                           = &parallel->layout->spans[index];
    float                *state[LK_OPTIMIZER_STATES_MAX] = { NULL };
    lk_update             update = update_of(parallel, all, span->param);

    if (!lki_is_used(parallel, span->param)) {
        *lki_block_sum(parallel, span, LKI_OF_MOVES) = 0;
        return;
    }
    if (!lki_ledger_has(parallel, index, LKI_DIRECTED)) {
        lki_entry *entry = lki_ledger_keep(parallel, index, LKI_DIRECTED);
        states_of(parallel, index, state);
        for (lki_piece piece = { 0, 0 }; lki_ledger_next(parallel, index, entry, &piece);)
            direct_piece(parallel, update, piece, sum, lki_values_of(parallel, span), state);
        lki_ledger_drop(parallel, index, entry);
    } /* else another host's, which was behind, may stand there */
    *lki_block_sum(parallel, span, LKI_OF_MOVES) =
        lki_block_sum_squares(parallel->exec, span->count, sum);
}

/* Of a span's tensor; the gradient's norm is that of what the optimizer sees. */
static double trust_of(const lk_parallel *parallel, const lk_update *update, uint32_t param)
{
    const double *norms = parallel->norms + param;
    size_t        count = parallel->layout->param_count;
    double        scale = (double)update->scale * (double)update->clip;
    if (parallel->measures == 1)
        return 1.0;
    return lk_optimizer_trust(&parallel->optimizer, update, norms[LKI_OF_VALUES * count],
                              parallel->measures > LKI_OF_MOVES
                                  ? norms[LKI_OF_MOVES * count]
                                  : norms[LKI_OF_GRADIENT * count] * scale);
}

static void update_piece(const lk_parallel *parallel, lk_update update, lki_piece piece, float *sum,
                         float *values, float *const *state)
{
    float *moments[LK_OPTIMIZER_STATES_MAX];
    states_from(state, piece.first, moments);
    if (parallel->measures <= LKI_OF_MOVES) /* else there are moves in its place */
        clip_values(parallel, &update, piece.count, sum + piece.first);
    lk_optimizer_update(&parallel->optimizer, parallel->exec, &update, piece.count,
                        sum + piece.first, values + piece.first, moments);
}

bool lki_span_update(lk_parallel *parallel, const lk_update *all, size_t index, float *sum)
{
    const lki_param_span *span                           = &parallel->layout->spans[index];
    float                *values                         = lki_values_of(parallel, span);
    size_t                bytes                          = span->count * sizeof(float);
    float                *state[LK_OPTIMIZER_STATES_MAX] = { NULL };
    lk_update             update = update_of(parallel, all, span->param);

    if (lki_ledger_has(parallel, index, LKI_UPDATED))
        return true;
    if (!lki_ledger_is_begun(parallel, index) &&
        (lki_xxh3(values, bytes) != parallel->hashes[index] ||
         !lki_reading_holds(parallel, span, values)))
        return false;
    if (!lki_is_used(parallel, span->param))
        return true;
    lki_entry *entry = lki_ledger_keep(parallel, index, LKI_UPDATED);
    states_of(parallel, index, state);
    update.trust = trust_of(parallel, &update, span->param);
    for (lki_piece piece = { 0, 0 }; lki_ledger_next(parallel, index, entry, &piece);)
        update_piece(parallel, update, piece, sum, values, state);
    lki_reading_put(parallel, span, values);
    parallel->hashes[index] = lki_xxh3(values, bytes);
    lki_ledger_drop(parallel, index, entry);
    return true;
}
