/* widen.c -- converts a call's values to the type that the block accepts, and back.
 *
 * A value that is stored as bf16 or fp16 is exact in FP32.  So a block that only supports FP32
 * computes on copies, and its output is rounded once, to nearest even.  Storage is narrow, but
 * arithmetic is FP32.  To add to a narrow gradient, the engine widens it, computes the sum, and
 * rounds the sum.
 *
 * A block that accepts bf16 uses the values directly.  Only the model's input, which is always
 * FP32, is rounded for it.
 *
 * Cost: a pass over each copied value, 6 bytes per element.
 */
#include "base/memory.h"
#include "nn/widen.h"
#include "tensor/ops.h"

static size_t copy_bytes(lk_shape shape, uint32_t samples)
{
    return lki_round_up(samples * lk_shape_count(shape) * sizeof(float), 64);
}

lk_dtype lki_taken_dtype(const lki_block_entry *entry, lk_dtype dtype)
{
    return dtype == LK_BF16 && entry->type->bf16 ? LK_BF16 : LK_F32;
}

/* Returns true if input `i` is the model's input and has no token ids. */
static bool is_wide_input(const lki_block_entry *entry, uint32_t i)
{
    return entry->inputs[i] == 0 && !(entry->type->tokens && i == 0);
}

size_t lki_widen_bytes(const lki_block_entry *entry, lk_dtype dtype, uint32_t samples)
{
    bool   takes = lki_taken_dtype(entry, dtype) == dtype;
    size_t bytes = takes ? 0 : 2 * copy_bytes(entry->block.y, samples);
    for (uint32_t i = 0; i < entry->block.input_count; i++)
        if (!takes)
            bytes += 2 * copy_bytes(entry->block.x[i], samples);
        else if (dtype != LK_F32 && is_wide_input(entry, i))
            bytes += copy_bytes(entry->block.x[i], samples);
    return bytes;
}

/* Reserves a copy of a value, and fills it if `fill` is set. */
static float *copy_of(const lki_widened *w, unsigned char **at, lk_shape shape, const void *value,
                      bool fill)
{
    float *copy = (float *)(void *)*at;
    *at += copy_bytes(shape, w->narrow->samples);
    if (fill)
        lki_convert(w->narrow->exec, w->narrow->samples * lk_shape_count(shape), w->narrow->dtype,
                    value, LK_F32, copy);
    return copy;
}

static void round_to(const lki_widened *w, lk_shape shape, const float *copy, void *value)
{
    lki_convert(w->narrow->exec, w->narrow->samples * lk_shape_count(shape), LK_F32, copy,
                w->narrow->dtype, value);
}

/* Returns the copy of a gradient.  Two inputs may share a copy: the first writes it, the second
 * adds to it. */
static float *gradient_copy(lki_widened *w, unsigned char **at, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (w->narrow->dx[k] == w->narrow->dx[i])
            return w->call.dx[k];
    return copy_of(w, at, w->narrow->block->x[i], w->narrow->dx[i], w->narrow->add[i]);
}

/* Prepares the call of a block that accepts narrow values. */
static void narrow_inputs(lki_widened *w, unsigned char *memory)
{
    const lk_block_call *narrow = w->narrow;
    for (uint32_t i = 0; i < narrow->block->input_count; i++) {
        lk_shape shape = narrow->block->x[i];
        if (!is_wide_input(w->entry, i))
            continue;
        lki_convert(narrow->exec, narrow->samples * lk_shape_count(shape), LK_F32, narrow->x[i],
                    narrow->dtype, memory);
        w->call.x[i] = memory;
        memory += copy_bytes(shape, narrow->samples);
    }
}

void lki_widen_begin(lki_widened *w, const lki_block_entry *entry, const lk_block_call *narrow,
                     void *memory)
{
    const lk_block *block    = narrow->block;
    bool            backward = narrow->grads != NULL, loss = entry->type->loss;
    unsigned char  *at = memory;

    *w            = (lki_widened){ .entry = entry, .narrow = narrow, .call = *narrow };
    w->call.dtype = lki_taken_dtype(entry, narrow->dtype);
    if (w->call.dtype == narrow->dtype) {
        narrow_inputs(w, memory);
        return;
    }
    for (uint32_t i = 0; i < block->input_count; i++)
        if (entry->inputs[i] != 0)
            w->call.x[i] = copy_of(w, &at, block->x[i], narrow->x[i], true);
    if (loss) { /* the loss block's y and dx[0] are its x[0] */
        w->call.y = (float *)(uintptr_t)w->call.x[0];
        if (backward)
            w->call.dx[0] = w->call.y;
        return;
    }
    w->call.y = copy_of(w, &at, block->y, narrow->y, backward && !entry->output_unread);
    if (!backward)
        return;
    w->call.dy = copy_of(w, &at, block->y, narrow->dy, true);
    for (uint32_t i = 0; i < block->input_count; i++)
        if (narrow->dx[i] != NULL)
            w->call.dx[i] = gradient_copy(w, &at, i);
}

void lki_widen_end(const lki_widened *w)
{
    const lk_block *block = w->narrow->block;
    if (w->call.dtype == w->narrow->dtype)
        return;
    if (w->entry->type->loss) {
        round_to(w, block->x[0], w->call.y, w->narrow->y);
    } else if (w->narrow->grads == NULL) {
        round_to(w, block->y, w->call.y, w->narrow->y);
    } else {
        for (uint32_t i = 0; i < block->input_count; i++)
            if (w->narrow->dx[i] != NULL)
                round_to(w, block->x[i], w->call.dx[i], w->narrow->dx[i]);
    }
}
