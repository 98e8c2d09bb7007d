/* ops/attention.h -- blocks, offsets of a head's rows, and dropout, for attention in FP32 and
 * bf16. */
#ifndef LKI_TENSOR_OPS_ATTENTION_H
#define LKI_TENSOR_OPS_ATTENTION_H

#include "base/memory.h"
#include "tensor/exec.h"
#include "tensor/isa/kernels.h"
#include "tensor/ops.h"

enum { LANES = 16, QUERIES = 32, KEYS = 64 };

/* Queries first_query .. first_query + queries - 1, which end at a multiple of QUERIES or at t, and
 * keys first_key .. first_key + keys - 1.  `keys` is a multiple of 16. */
typedef struct { size_t first_query, queries, first_key, keys; } block;

static inline block block_at(size_t t, size_t first_query, size_t first_key)
{
    size_t queries = lki_min(QUERIES - first_query % QUERIES, t - first_query);
    /* number of keys up to the position of the last query */
    size_t past    = first_query + queries - first_key;
    return (block){ first_query, queries, first_key, lki_min(KEYS, lki_round_up(past, LANES)) };
}

/* The three rows of an lki_attention_input. */
enum { Q, K, V };

/* Returns the number of heads of queries that read the same keys and values. */
static inline size_t group_of(const lki_attention_shape *s)
{
    return s->kv_heads > 0 ? s->heads / s->kv_heads : 1;
}

/* Returns the offset of row i of a head of queries, y or their gradients, whose rows are `stride`
 * apart.  `index` is a pair (sample, head). */
static inline size_t query_row(const lki_attention_shape *s, size_t index, size_t i, size_t stride)
{
    return (index / s->heads * s->t + i) * stride + index % s->heads * (s->c / s->heads);
}

/* Returns the offset of row i of the keys or values that this head of queries reads. */
static inline size_t key_row(const lki_attention_shape *s, size_t index, size_t i, size_t stride)
{
    size_t head = index % s->heads / group_of(s);
    return (index / s->heads * s->t + i) * stride + head * (s->c / s->heads);
}

/* Computes the dropout factors of the scores of query i of a block. */
static inline void keep_scores(const lki_nn_kernels *kernels, const lki_attention_shape *s,
                               const block *b, size_t index, size_t i, float *keep)
{
    uint32_t slot   = s->dropout.first_slot + (uint32_t)(index / s->heads);
    uint32_t key[3] = { slot, s->dropout.step, s->dropout.layer };
    uint64_t first  = (index % s->heads * s->t + b->first_query + i) * s->t + b->first_key;
    kernels->dropout_keep(s->dropout.seed, key, s->dropout.p, first, b->keys, keep);
}

#endif
