/* stopping.c -- converts limits to steps, and tracks patience and the best evaluations; see
 * stopping.h. */
#include "train/core/stopping.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "train/config.h"
#include "train/core/identity.h"

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
    if (c->limits.epochs > 0)
        shorten(&steps, option, (uint64_t)ceil(c->limits.epochs * (double)per_epoch), "max-epochs");
    if (c->limits.samples > 0)
        shorten(&steps, option, steps_of(c, data, c->limits.samples), "max-samples");
    if (c->limits.tokens > 0)
        shorten(&steps, option, steps_of(c, data, (c->limits.tokens + tokens - 1) / tokens),
                "max-tokens");
    return steps;
}

lk_status lki_stopping_check(const lk_train_config *c, const lk_dataset_info *data)
{
    if (!(c->limits.epochs >= 0 && c->limits.epochs <= 1e15))
        return lk_fail(LK_EINVAL, "`limits.epochs` %g is not a sensible number of epochs",
                       c->limits.epochs);
    if (c->limits.tokens > 0 && !data->tokens)
        return lk_fail(LK_EINVAL, "`limits.tokens` is for text; these data have samples: give "
                                  "`limits.samples`");
    if (c->limits.tokens > 0 && data->documents)
        return lk_fail(LK_EINVAL, "`limits.tokens` is for samples that are as long as each other; "
                                  "documents are not: give `limits.samples`");
    if (!(c->limits.min_delta >= 0) || isinf(c->limits.min_delta))
        return lk_fail(LK_EINVAL, "`min_delta` %g is not a difference of losses",
                       c->limits.min_delta);
    if (c->limits.min_delta > 0 && c->limits.patience == 0)
        return lk_fail(LK_EINVAL, "`min_delta` needs `patience` N");
    if (c->limits.patience > 0 && c->eval_every == 0)
        return lk_fail(LK_EINVAL, "`patience` counts evaluations; give `eval_every` N, too");
    if (c->checkpoint.keep_best > 0 && (c->eval_every == 0 || c->checkpoint.folder == NULL))
        return lk_fail(LK_EINVAL, "`keep_best` keeps checkpoints of the best evaluations; give "
                                  "`checkpoint.folder` DIR and `eval_every` N, too");
    if (lki_measures_errors(c->model_options.loss, data->numbers) &&
        c->checkpoint.best_by == LK_BEST_BY_ACCURACY)
        return lk_fail(LK_EINVAL, "`best_by` accuracy is for classes and labels; the targets here "
                                  "are numbers: use loss");
    if (c->checkpoint.keep_best > LK_BEST_MAX)
        return lk_fail(LK_EINVAL, "`keep_best` %u is more than %d", c->checkpoint.keep_best,
                       LK_BEST_MAX);
    return LK_OK;
}

/* ---- Evaluations ------------------------------------------------------------------------- */

/* Updates the lowest loss.  A loss that is not finite is not an improvement. */
static void wait_for_lower(lki_stopping *self, const lk_train_config *c, uint64_t step, double loss)
{
    bool lower = isfinite(loss) &&
                 (self->lowest_step == 0 || loss < self->lowest - c->limits.min_delta);
    self->evaluations++;
    self->stale = lower ? 0 : self->stale + 1;
    if (!lower)
        return;
    self->lowest      = loss;
    self->lowest_step = step;
}

/* Inserts an evaluation into the list of the best.  Returns false if the evaluation is not one of
 * the best.  *last becomes the evaluation that was removed from the list, or zero. */
static bool insert(lki_stopping *self, const lk_train_config *c, lki_best it, lki_best *last)
{
    bool     by_accuracy = c->checkpoint.best_by == LK_BEST_BY_ACCURACY;
    uint32_t place       = 0;

    *last            = (lki_best){ 0, 0 };
    self->best_count = (uint32_t)lki_min(self->best_count, c->checkpoint.keep_best);
    while (place < self->best_count && (by_accuracy ? self->best[place].value >= it.value
                                                    : self->best[place].value <= it.value))
        place++;
    if (place >= c->checkpoint.keep_best || !isfinite(it.value))
        return false;
    if (self->best_count == c->checkpoint.keep_best)
        *last = self->best[self->best_count - 1];
    self->best_count = (uint32_t)lki_min(self->best_count + 1, c->checkpoint.keep_best);
    memmove(&self->best[place + 1], &self->best[place],
            (self->best_count - 1 - place) * sizeof self->best[0]);
    self->best[place] = it;
    return true;
}

static void forget_displaced(lki_stopping *self, uint32_t k)
{
    self->displaced_count--;
    memmove(&self->displaced[k], &self->displaced[k + 1],
            (self->displaced_count - k) * sizeof self->displaced[0]);
}

bool lki_stopping_see(lki_stopping *self, const lk_train_config *c, uint64_t step, double loss,
                      double accuracy)
{
    double   value = c->checkpoint.best_by == LK_BEST_BY_ACCURACY ? accuracy : loss;
    lki_best last;

    wait_for_lower(self, c, step, loss);
    if (!insert(self, c, (lki_best){ step, value }, &last))
        return false;
    if (last.step == 0)
        return true;
    if (self->displaced_count == LKI_DISPLACED_MAX)
        forget_displaced(self, 0);
    self->displaced[self->displaced_count++] = (lki_displaced){ last, step };
    return true;
}

void lki_stopping_written(lki_stopping *self, uint64_t step)
{
    while (self->displaced_count > 0 && self->displaced[0].by <= step)
        forget_displaced(self, 0);
}

/* Removes the evaluation of `step` from the best, and restores the evaluations that it displaced.
 * Restores the most recently displaced evaluation first. */
void lki_stopping_refused(lki_stopping *self, const lk_train_config *c, uint64_t step)
{
    uint32_t kept = 0, k = 0;
    lki_best last;

    for (uint32_t i = 0; i < self->best_count; i++)
        if (self->best[i].step != step)
            self->best[kept++] = self->best[i];
    self->best_count = kept;
    while (k < self->displaced_count && self->displaced[k].it.step != step)
        k++;
    if (k < self->displaced_count)
        forget_displaced(self, k);
    while (self->best_count < c->checkpoint.keep_best && self->displaced_count > 0)
        (void)insert(self, c, self->displaced[--self->displaced_count].it, &last);
}

bool lki_stopping_tires(const lki_stopping *self, const lk_train_config *config)
{
    return config->limits.patience > 0 && self->stale >= config->limits.patience;
}

/* ---- In a checkpoint --------------------------------------------------------------------- */

static void put(json_t *object, const char *key, uint64_t value)
{
    (void)json_object_set_new(object, key, json_integer((json_int_t)value));
}

json_t *lki_stopping_json(const lki_stopping *self, const lk_train_config *config)
{
    json_t *object, *best;
    if (config->limits.patience == 0 && config->checkpoint.keep_best == 0)
        return NULL;
    object = json_object();
    best   = json_array();
    put(object, "evaluations", self->evaluations);
    put(object, "lowest-step", self->lowest_step);
    put(object, "stale", self->stale);
    (void)json_object_set_new(object, "lowest", json_real(self->lowest));
    for (uint32_t i = 0; i < self->best_count; i++) {
        json_t *one = json_object();
        put(one, "step", self->best[i].step);
        (void)json_object_set_new(one, "value", json_real(self->best[i].value));
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

void lki_stopping_read(const json_t *object, lki_stopping *self)
{
    const json_t *best = json_object_get(object, "best");
    if (!json_is_object(object))
        return;
    self->evaluations = integer_of(object, "evaluations");
    self->lowest_step = integer_of(object, "lowest-step");
    self->stale       = integer_of(object, "stale");
    self->lowest      = json_real_value(json_object_get(object, "lowest"));
    self->best_count  = (uint32_t)lki_min(json_array_size(best), LK_BEST_MAX);
    for (uint32_t i = 0; i < self->best_count; i++) {
        const json_t *one = json_array_get(best, i);
        self->best[i]     = (lki_best){ integer_of(one, "step"),
                                        json_real_value(json_object_get(one, "value")) };
    }
}
