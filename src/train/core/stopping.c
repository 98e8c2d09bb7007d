/* stopping.c -- converts limits to steps, and tracks patience and the best evaluations; see
 * stopping.h. */
#include "train/core/stopping.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "train/config.h"

/* ---- Limits ------------------------------------------------------------------------------ */

/* Returns the step that contains the last one of `samples` samples. */
static uint64_t steps_of(const lk_train_config *c, const lk_dataset_info *data, uint64_t samples)
{
    uint64_t positions = lki_positions(c, data);
    uint64_t per_epoch = lk_steps_per_epoch(positions, c->global_batch, c->drop_last);
    uint64_t epoch     = c->drop_last ? per_epoch * c->global_batch : positions;
    uint64_t rest      = samples % epoch;
    return samples / epoch * per_epoch + (rest + c->global_batch - 1) / c->global_batch;
}

static void shorten(uint64_t *steps, const char **why, uint64_t limit, const char *option)
{
    if (limit >= *steps)
        return;
    *steps = limit;
    *why   = option;
}

uint64_t lki_last_step(const lk_train_config *c, const lk_dataset_info *data, const char **option)
{
    uint64_t steps     = c->steps;
    uint64_t per_epoch = lk_steps_per_epoch(lki_positions(c, data), c->global_batch, c->drop_last);
    uint64_t tokens    = lk_shape_count(data->x);

    *option = NULL;
    if (c->max_epochs > 0)
        shorten(&steps, option, (uint64_t)ceil(c->max_epochs * (double)per_epoch), "max-epochs");
    if (c->max_samples > 0)
        shorten(&steps, option, steps_of(c, data, c->max_samples), "max-samples");
    if (c->max_tokens > 0)
        shorten(&steps, option, steps_of(c, data, (c->max_tokens + tokens - 1) / tokens),
                "max-tokens");
    return steps;
}

lk_status lki_stopping_check(const lk_train_config *c, const lk_dataset_info *data)
{
    if (!(c->max_epochs >= 0 && c->max_epochs <= 1e15))
        return lk_fail(LK_EINVAL, "`max_epochs` %g is not a sensible number of epochs",
                       c->max_epochs);
    if (c->max_tokens > 0 && !data->tokens)
        return lk_fail(LK_EINVAL, "`max_tokens` is for text; these data have samples: give "
                                  "`max_samples`");
    if (c->max_tokens > 0 && data->documents)
        return lk_fail(LK_EINVAL, "`max_tokens` is for samples that are as long as each other; "
                                  "documents are not: give `max_samples`");
    if (!(c->min_delta >= 0) || isinf(c->min_delta))
        return lk_fail(LK_EINVAL, "`min_delta` %g is not a difference of losses", c->min_delta);
    if (c->min_delta > 0 && c->patience == 0)
        return lk_fail(LK_EINVAL, "`min_delta` needs `patience` N");
    if (c->patience > 0 && c->eval_every == 0)
        return lk_fail(LK_EINVAL, "`patience` counts evaluations; give `eval_every` N, too");
    if (c->keep_best > 0 && (c->eval_every == 0 || c->checkpoint == NULL))
        return lk_fail(LK_EINVAL, "`keep_best` keeps checkpoints of the best evaluations; give "
                                  "`checkpoint` DIR and `eval_every` N, too");
    if (c->keep_best > LK_BEST_MAX)
        return lk_fail(LK_EINVAL, "`keep_best` %u is more than %d", c->keep_best, LK_BEST_MAX);
    return LK_OK;
}

/* ---- Evaluations ------------------------------------------------------------------------- */

/* Updates the lowest loss.  A loss that is not finite is not an improvement. */
static void wait_for_lower(lki_stopping *w, const lk_train_config *c, uint64_t step, double loss)
{
    bool lower = isfinite(loss) &&
                 (w->lowest_step == 0 || loss < w->lowest - c->min_delta);
    w->evaluations++;
    w->stale = lower ? 0 : w->stale + 1;
    if (!lower)
        return;
    w->lowest      = loss;
    w->lowest_step = step;
}

/* Inserts an evaluation into the list of the best.  Returns false if the evaluation is not one of
 * the best.  *last becomes the evaluation that was removed from the list, or zero. */
static bool insert(lki_stopping *w, const lk_train_config *c, lki_best it, lki_best *last)
{
    bool     by_accuracy = c->best_by == LK_BEST_BY_ACCURACY;
    uint32_t place       = 0;

    *last         = (lki_best){ 0, 0 };
    w->best_count = (uint32_t)lki_min(w->best_count, c->keep_best);
    while (place < w->best_count &&
           (by_accuracy ? w->best[place].value >= it.value : w->best[place].value <= it.value))
        place++;
    if (place >= c->keep_best || !isfinite(it.value))
        return false;
    if (w->best_count == c->keep_best)
        *last = w->best[w->best_count - 1];
    w->best_count = (uint32_t)lki_min(w->best_count + 1, c->keep_best);
    memmove(&w->best[place + 1], &w->best[place],
            (w->best_count - 1 - place) * sizeof w->best[0]);
    w->best[place] = it;
    return true;
}

static void forget_displaced(lki_stopping *w, uint32_t k)
{
    w->displaced_count--;
    memmove(&w->displaced[k], &w->displaced[k + 1],
            (w->displaced_count - k) * sizeof w->displaced[0]);
}

bool lki_stopping_see(lki_stopping *w, const lk_train_config *c, uint64_t step, double loss,
                      double accuracy)
{
    double   value = c->best_by == LK_BEST_BY_ACCURACY ? accuracy : loss;
    lki_best last;

    wait_for_lower(w, c, step, loss);
    if (!insert(w, c, (lki_best){ step, value }, &last))
        return false;
    if (last.step == 0)
        return true;
    if (w->displaced_count == LKI_DISPLACED_MAX)
        forget_displaced(w, 0);
    w->displaced[w->displaced_count++] = (lki_displaced){ last, step };
    return true;
}

void lki_stopping_written(lki_stopping *w, uint64_t step)
{
    while (w->displaced_count > 0 && w->displaced[0].by <= step)
        forget_displaced(w, 0);
}

/* Removes the evaluation of `step` from the best, and restores the evaluations that it displaced.
 * Restores the most recently displaced evaluation first. */
void lki_stopping_refused(lki_stopping *w, const lk_train_config *c, uint64_t step)
{
    uint32_t kept = 0, k = 0;
    lki_best last;

    for (uint32_t i = 0; i < w->best_count; i++)
        if (w->best[i].step != step)
            w->best[kept++] = w->best[i];
    w->best_count = kept;
    while (k < w->displaced_count && w->displaced[k].it.step != step)
        k++;
    if (k < w->displaced_count)
        forget_displaced(w, k);
    while (w->best_count < c->keep_best && w->displaced_count > 0)
        (void)insert(w, c, w->displaced[--w->displaced_count].it, &last);
}

bool lki_stopping_tires(const lki_stopping *watch, const lk_train_config *config)
{
    return config->patience > 0 && watch->stale >= config->patience;
}

/* ---- In a checkpoint --------------------------------------------------------------------- */

static void put(json_t *object, const char *key, uint64_t value)
{
    (void)json_object_set_new(object, key, json_integer((json_int_t)value));
}

json_t *lki_stopping_json(const lki_stopping *w, const lk_train_config *config)
{
    json_t *object, *best;
    if (config->patience == 0 && config->keep_best == 0)
        return NULL;
    object = json_object();
    best   = json_array();
    put(object, "evaluations", w->evaluations);
    put(object, "lowest-step", w->lowest_step);
    put(object, "stale", w->stale);
    (void)json_object_set_new(object, "lowest", json_real(w->lowest));
    for (uint32_t i = 0; i < w->best_count; i++) {
        json_t *one = json_object();
        put(one, "step", w->best[i].step);
        (void)json_object_set_new(one, "value", json_real(w->best[i].value));
        (void)json_array_append_new(best, one);
    }
    (void)json_object_set_new(object, "best", best);
    return object;
}

static uint64_t integer_of(const json_t *object, const char *key)
{
    json_int_t value = json_integer_value(json_object_get(object, key));
    return value > 0 ? (uint64_t)value : 0;
}

void lki_stopping_read(const json_t *object, lki_stopping *w)
{
    const json_t *best = json_object_get(object, "best");
    if (!json_is_object(object))
        return;
    w->evaluations = integer_of(object, "evaluations");
    w->lowest_step = integer_of(object, "lowest-step");
    w->stale       = integer_of(object, "stale");
    w->lowest      = json_real_value(json_object_get(object, "lowest"));
    w->best_count  = (uint32_t)lki_min(json_array_size(best), LK_BEST_MAX);
    for (uint32_t i = 0; i < w->best_count; i++) {
        const json_t *one = json_array_get(best, i);
        w->best[i]        = (lki_best){ integer_of(one, "step"),
                                        json_real_value(json_object_get(one, "value")) };
    }
}
