/* ops/attention.h -- what attention in FP32 and in bf16 share: its blocks, where a head's rows are,
 * and what dropout keeps. */
#ifndef LKI_TENSOR_OPS_ATTENTION_H
#define LKI_TENSOR_OPS_ATTENTION_H

#include "base/memory.h"
#include "tensor/exec.h"
#include "tensor/ops.h"

enum { LANES = 16, QUERIES = 32, KEYS = 64 };

/* Queries first_query .. + queries - 1 against keys first_key .. + keys - 1 (whole lanes). */
typedef struct { size_t first_query, queries, first_key, keys; } block;

static inline block block_at(size_t t, size_t first_query, size_t first_key)
{
    size_t queries = lki_min(QUERIES, t - first_query);
    size_t past    = first_query + queries - first_key; /* keys up to the last query's own */
    return (block){ first_query, queries, first_key, lki_min(KEYS, lki_round_up(past, LANES)) };
}

/* Row i of a head's part of a (b, t, parts * c) tensor.  `index` is the task: (sample, head). */
static inline size_t head_row(const lki_attention_shape *s, size_t index, size_t i, size_t parts)
{
    return (index / s->heads * s->t + i) * parts * s->c + index % s->heads * (s->c / s->heads);
}

/* What dropout keeps of the scores of query i of a block. */
static inline void keep_scores(const lki_nn_kernels *kernels, const lki_attention_shape *s,
                               const block *b, size_t index, size_t i, float *keep)
{
    uint32_t slot   = s->dropout.first_slot + (uint32_t)(index / s->heads);
    uint32_t key[3] = { slot, s->dropout.step, s->dropout.layer };
    uint64_t first  = (index % s->heads * s->t + b->first_query + i) * s->t + b->first_key;
    kernels->dropout_keep(s->dropout.seed, key, s->dropout.p, first, b->keys, keep);
}

#endif
