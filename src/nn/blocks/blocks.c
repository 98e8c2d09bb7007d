/* blocks.c -- helpers of the built-in blocks. */
#include "nn/blocks/blocks.h"

#include <string.h>

#include "base/memory.h"
#include "base/rng.h"

uint64_t lki_width(lk_shape shape)
{
    return shape.rank == 0 ? 1 : shape.dims[shape.rank - 1];
}

uint64_t lki_rows(lk_shape shape)
{
    uint64_t rows = 1;
    for (uint32_t i = 0; i + 1 < shape.rank; i++)
        rows *= shape.dims[i];
    return rows;
}

bool lki_same_shape(lk_shape a, lk_shape b)
{
    return a.rank == b.rank && memcmp(a.dims, b.dims, a.rank * sizeof a.dims[0]) == 0;
}

size_t lki_elements(const lk_block_call *call, lk_shape shape)
{
    return (size_t)call->samples * lk_shape_count(shape);
}

const void *lki_param_of(const lk_block_call *call, uint32_t i, lk_dtype *type)
{
    bool narrow = call->params_bf16 != NULL && call->params_bf16[i] != NULL;
    *type       = narrow ? LK_BF16 : LK_F32;
    return narrow ? (const void *)call->params_bf16[i] : call->params[i];
}

void lki_weight_of(const lk_block_call *call, uint32_t i, lki_gemm_args *gemm)
{
    lk_dtype type;
    gemm->b      = lki_param_of(call, i, &type);
    gemm->wide_b = type != gemm->operands;
}

void lki_copy(const lk_block_call *call, size_t count, const void *x, void *y)
{
    if (x != y)
        memcpy(y, x, count * lk_dtype_bytes(call->dtype));
}

void lki_pass_gradient(const lk_block_call *call, uint32_t i, size_t count, const void *dy)
{
    if (call->dx[i] == NULL)
        return;
    if (call->add[i])
        lki_accumulate(call->exec, call->dtype, count, dy, call->dx[i]);
    else
        lki_copy(call, count, dy, call->dx[i]);
}

const lki_parts *lki_parts_of(lki_part_rows *room, const lk_block_call *call, size_t each)
{
    LK_ASSERT(call->part_count <= LKI_PARTS_MAX);
    for (uint32_t i = 0; i < call->part_count; i++)
        room->ends[i] = call->part_ends[i] * each;
    room->parts = (lki_parts){ call->part_count, room->ends };
    return call->part_count > 0 ? &room->parts : NULL;
}

size_t lki_cut_bytes(size_t count)
{
    return lki_round_up(count * 4, 64);
}

void *lki_cut(unsigned char **at, size_t count)
{
    void *cut = *at;
    *at += lki_cut_bytes(count);
    return cut;
}

lk_status lki_plan_dropout(const lk_plan *plan, const char *option, float p, const char *what,
                           uint64_t elements)
{
    if (!(p >= 0.0F && p < 1.0F))
        return lk_plan_fail(plan, "%s %g is not in [0, 1)", option, (double)p);
    if (p > 0.0F && elements > LKI_DROPOUT_ELEMENTS)
        return lk_plan_fail(plan, "%llu %s of a sample are more than dropout can tell apart; %llu "
                                  "are the limit", (unsigned long long)elements, what,
                            (unsigned long long)LKI_DROPOUT_ELEMENTS);
    if (p > 0.0F && lk_plan_block(plan)->layer >= LKI_DROPOUT_LAYERS)
        return lk_plan_fail(plan, "dropout can tell %u blocks of a model apart, and this is block "
                                  "%u", LKI_DROPOUT_LAYERS, lk_plan_block(plan)->layer);
    return LK_OK;
}
