/* parts.c -- passes with the samples of several virtual workers, and sums over rows of loss. */
#include "nn/parts.h"

#include "nn/engine.h"

void lki_engine_divide(lk_engine *engine, lki_pass_part *parts, uint32_t count)
{
    uint32_t end = 0;
    LK_ASSERT(count <= LKI_PARTS_MAX && (count & (count - 1)) == 0);
    LK_ASSERT(count == 0 || lk_model_sums_parts(engine->model));
    engine->parts      = parts;
    engine->part_count = count;
    for (uint32_t i = 0; i < count; i++)
        engine->part_ends[i] = end += parts[i].samples;
}

/* Adds rows [first, end) of loss to the sums of a virtual worker, in row order. */
static void sum_some(const lk_engine *engine, const lk_pass *pass, size_t first, size_t end,
                     lki_pass_part *sums)
{
    for (size_t i = first; i < end; i++) {
        uint32_t weight = pass->weights != NULL ? pass->weights[i] : 1;
        if (pass->targets[i] < 0 || weight == 0)
            continue;
        sums->loss_sum += (double)weight * (double)engine->loss[i];
        sums->count += weight;
        sums->hits += (uint64_t)weight * engine->hits[i];
    }
}

void lki_engine_sum_rows(const lk_engine *engine, lk_pass *pass)
{
    size_t each = pass->length != 0 ? pass->length : lk_model_loss_rows(engine->model), row = 0;
    for (uint32_t i = 0; i < engine->part_count; row = engine->part_ends[i++] * each)
        sum_some(engine, pass, row, engine->part_ends[i] * each, &engine->parts[i]);
    if (engine->part_count > 0)
        return;
    lki_pass_part sums = { 0, pass->loss_sum, pass->count, pass->hits };
    sum_some(engine, pass, 0, pass->samples * each, &sums);
    pass->loss_sum = sums.loss_sum;
    pass->count    = sums.count;
    pass->hits     = sums.hits;
}
