/* parts.c -- passes with the samples of several virtual workers, and sums over rows of loss.
 *
 * Values have the samples of one virtual worker after those of another.  Most blocks with large
 * parameters compute them in one call, and sum the gradients by the tree themselves (sums_parts).
 * All other blocks run once for each virtual worker, with pointers to its samples and with saved
 * memory of its own.  The gradients of their parameters, and the sums of their state, are merged
 * here, in the slots of tensor/part_counter.h.
 */
#include "nn/parts.h"

#include <string.h>

#include "base/memory.h"
#include "nn/engine.h"
#include "tensor/part_counter.h"

void lki_engine_divide(lk_engine *engine, lki_pass_part *parts, uint32_t count)
{
    uint32_t end = 0;
    LK_ASSERT(count <= LKI_PARTS_MAX && (count & (count - 1)) == 0);
    LK_ASSERT(count <= engine->layout.parts && !lk_model_lock_step(engine->model));
    engine->parts      = parts;
    engine->part_count = count;
    for (uint32_t i = 0; i < count; i++)
        engine->part_ends[i] = end += parts[i].samples;
}

/* ---- Blocks that run for each virtual worker --------------------------------------------- */

/* The sums of a call: `gradients` gradients of parameters, and then sums of state.  `at` is the
 * offset in a slot. */
typedef struct {
    uint32_t count, gradients;
    float   *to[2 * LK_BLOCK_PARAMS_MAX];
    size_t   elements[2 * LK_BLOCK_PARAMS_MAX], at[2 * LK_BLOCK_PARAMS_MAX], bytes;
} sums;

static void list_one(sums *s, float *to, size_t elements)
{
    s->to[s->count]       = to;
    s->elements[s->count] = elements;
    s->at[s->count++]     = s->bytes;
    s->bytes += lki_round_up(elements * sizeof(float), 64);
}

/* Lists gradients first, if the call computes any.  Loss blocks compute theirs in forward. */
static sums list_sums(const lk_engine *engine, const lki_block_entry *entry,
                      const lk_block_call *call)
{
    float *const *grads = !entry->type->loss ? call->grads
                          : call->training  ? call->forward_grads
                                            : NULL;
    sums          s     = { .count = 0 };
    for (uint32_t i = 0; grads != NULL && i < lki_grad_count(entry); i++)
        list_one(&s, grads[i], lk_shape_count(lki_block_param(engine->model, entry, i)->shape));
    s.gradients = s.count;
    for (uint32_t i = 0; call->state_sums != NULL && i < entry->block.state_count; i++)
        list_one(&s, call->state_sums[i], engine->model->states[entry->states[i]].count);
    return s;
}

static float *in_slot(const lk_engine *engine, const sums *s, uint32_t slot, uint32_t i)
{
    return (float *)(void *)(engine->slots + slot * engine->layout.slot_bytes + s->at[i]);
}

/* Zeroes a slot and sets `table` to the addresses of its sums. */
static void begin_slot(const lk_engine *engine, const sums *s, uint32_t slot, float **table)
{
    for (uint32_t i = 0; i < s->count; i++) {
        table[i] = in_slot(engine, s, slot, i);
        memset(table[i], 0, s->elements[i] * sizeof(float));
    }
}

/* Merges the newest sums, of part `index`, with those of earlier parts. */
static void merge(const lk_engine *engine, const sums *s, uint32_t index)
{
    uint32_t slot = lki_part_slot(index);
    for (uint32_t k = 0; k < lki_part_merges(index); k++, slot--)
        for (uint32_t i = 0; i < s->count; i++)
            lki_accumulate(engine->exec, LK_F32, s->elements[i], in_slot(engine, s, slot, i),
                           in_slot(engine, s, slot - 1, i));
}

static void *after(const void *value, size_t samples, lk_shape shape, size_t bytes)
{
    size_t offset = samples * lk_shape_count(shape) * bytes;
    return value == NULL ? NULL : (char *)(uintptr_t)value + offset;
}

/* Returns the call for part `index`, whose samples begin at `first`. */
static lk_block_call part_of(const lk_engine *engine, uint32_t b, const lk_block_call *call,
                             uint32_t index, uint32_t first)
{
    const lki_block_entry *entry = &engine->model->blocks[b];
    const lk_block        *block = call->block;
    size_t                 bytes = lk_dtype_bytes(call->dtype), rows = lk_shape_count(block->y);
    lk_block_call          one   = *call;

    one.samples    = engine->parts[index].samples;
    one.first_slot = engine->parts[index].first_slot;
    one.saved      = (char *)call->saved + index * engine->layout.places[b].saved_part;
    one.part_count = 0;
    for (uint32_t i = 0; i < block->input_count; i++) {
        /* the model's input is FP32 or token ids */
        one.x[i]  = after(call->x[i], first, block->x[i], entry->inputs[i] == 0 ? 4 : bytes);
        one.dx[i] = after(call->dx[i], first, block->x[i], bytes);
    }
    one.y  = after(call->y, first, entry->type->loss ? block->x[0] : block->y, bytes);
    one.dy = after(call->dy, first, block->y, bytes);
    if (entry->type->loss) {
        one.targets = call->targets + first * rows;
        one.weights = call->weights != NULL ? call->weights + first * rows : NULL;
        one.loss    = call->loss + first * rows;
        one.hit     = call->hit + first * rows;
    }
    return one;
}

void lki_engine_run_parts(const lk_engine *engine, uint32_t b, const lk_block_call *call)
{
    const lki_block_entry *entry = &engine->model->blocks[b];
    uint32_t               first = 0;

    if (engine->part_count == 0 || entry->type->sums_parts) {
        lki_engine_run(engine, entry, call);
        return;
    }
    sums s = list_sums(engine, entry, call);
    for (uint32_t i = 0; i < engine->part_count; first = engine->part_ends[i++]) {
        float        *table[2 * LK_BLOCK_PARAMS_MAX] = { NULL };
        uint32_t      slot = lki_part_slot(i);
        lk_block_call one  = part_of(engine, b, call, i, first);
        begin_slot(engine, &s, slot, table);
        one.grads         = call->grads != NULL ? table : NULL; /* tells backward from forward */
        one.forward_grads = call->forward_grads != NULL ? table : NULL;
        one.state_sums    = call->state_sums != NULL ? table + s.gradients : NULL;
        memset(one.write, 0, sizeof one.write);
        if (one.samples > 0)
            lki_engine_run(engine, entry, &one);
        merge(engine, &s, i);
    }
    for (uint32_t i = 0; i < s.count; i++)
        memcpy(s.to[i], in_slot(engine, &s, 0, i), s.elements[i] * sizeof(float));
}

/* ---- Rows of loss ------------------------------------------------------------------------ */

/* Returns true if the row with this target does not count. */
static bool is_masked(int32_t target, bool numbers)
{
    return numbers ? (uint32_t)target << 1 > UINT32_C(0xff000000) : target < 0;
}

/* Adds rows [first, end) of loss to the sums of a virtual worker, in row order. */
static void sum_some(const lk_engine *engine, const lk_pass *pass, size_t first, size_t end,
                     lki_pass_part *of_part)
{
    const bool numbers = engine->model->blocks[engine->model->block_count - 1].type->numbers;
    for (size_t i = first; i < end; i++) {
        uint32_t weight = pass->weights != NULL ? pass->weights[i] : 1;
        if (is_masked(pass->targets[i], numbers) || weight == 0)
            continue;
        of_part->loss_sum += (double)weight * (double)engine->loss[i];
        of_part->count += weight;
        of_part->hits += (uint64_t)weight * engine->hits[i];
    }
}

void lki_engine_sum_rows(const lk_engine *engine, lk_pass *pass)
{
    size_t each = pass->length != 0 ? pass->length : lk_model_loss_rows(engine->model), row = 0;
    for (uint32_t i = 0; i < engine->part_count; row = engine->part_ends[i++] * each)
        sum_some(engine, pass, row, engine->part_ends[i] * each, &engine->parts[i]);
    if (engine->part_count > 0)
        return;
    lki_pass_part whole = { .loss_sum = pass->loss_sum, .count = pass->count, .hits = pass->hits };
    sum_some(engine, pass, 0, pass->samples * each, &whole);
    pass->loss_sum = whole.loss_sum;
    pass->count    = whole.count;
    pass->hits     = whole.hits;
}
