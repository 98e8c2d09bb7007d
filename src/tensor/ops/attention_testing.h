/* tensor/ops/attention_testing.h -- shapes, and the definition of attention, for its tests. */
#ifndef LKI_TENSOR_OPS_ATTENTION_TESTING_H
#define LKI_TENSOR_OPS_ATTENTION_TESTING_H

#include "tensor/ops/nn_testing.h"

#define DROPOUT { .seed = 7, .step = 3, .first_slot = 40, .layer = 2, .p = 0.3f }

/* Context lengths equal to, below and above the blocks of 32 queries and 64 keys.  Heads have up to
 * 64 values, as in real networks, or sizes that are not multiples of 16. */
static const lki_attention_shape shapes[] = {
    { 1, 1, 4, 1, 0, { 0 } },   { 2, 5, 6, 2, 0, { 0 } },    { 2, 5, 6, 2, 0, DROPOUT },
    { 1, 64, 32, 1, 0, { 0 } }, { 2, 33, 51, 3, 3, DROPOUT }, { 1, 131, 40, 2, 0, { 0 } },
    { 1, 97, 32, 2, 2, DROPOUT }, { 2, 19, 128, 2, 0, { 0 } }, { 1, 71, 64, 1, 0, DROPOUT },
    { 1, 67, 51, 1, 0, { 0 } }, { 2, 37, 24, 4, 2, { 0 } },  { 1, 75, 54, 6, 2, DROPOUT },
    { 1, 99, 64, 4, 1, { 0 } },
};

enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct { size_t qkv, y, lse; } counts;

static inline counts counts_of(const lki_attention_shape *s)
{
    return (counts){ s->b * s->t * lki_reference_row_of(s, 0).width, s->b * s->t * s->c,
                     s->b * s->heads * s->t };
}

typedef struct { const lki_attention_shape *s; double *qkv, *dy; } exact;

static inline double exact_keep(const lki_attention_shape *s, size_t sample, size_t element)
{
    if (!(s->dropout.p > 0.0f))
        return 1;
    lki_random r = lki_philox(s->dropout.seed, LKI_RNG_DROPOUT, (uint32_t)(element / 4),
                              s->dropout.first_slot + (uint32_t)sample, s->dropout.step,
                              s->dropout.layer);
    return lki_random_unit(r.word[element % 4]) < s->dropout.p ? 0 : 1 / (1 - (double)s->dropout.p);
}

/* Returns the sum of dy * softmax(q k / sqrt(size)) v, computed by the definition. */
static inline double exact_loss(const void *context)
{
    const exact *e = context;
    const lki_attention_shape *s = e->s;
    size_t size = s->c / s->heads, width = lki_reference_row_of(s, 0).width;
    double loss = 0;
    for (size_t at = 0; at < s->b * s->heads * s->t; at++) {
        size_t i = at % s->t, head = at / s->t % s->heads, sample = at / s->t / s->heads;
        lki_reference_row row  = lki_reference_row_of(s, head);
        const double     *base = e->qkv + sample * s->t * width;
        double            sum = 0, value = 0;
        for (size_t j = 0; j <= i; j++) {
            double score = 0, along = 0;
            for (size_t d = 0; d < size; d++) {
                score += base[i * width + row.q + d] * base[j * width + row.k + d];
                along += e->dy[(sample * s->t + i) * s->c + head * size + d] *
                         base[j * width + row.v + d];
            }
            double p = exp(score / sqrt((double)size));
            sum += p;
            value += p * exact_keep(s, sample, (head * s->t + i) * s->t + j) * along;
        }
        loss += value / sum;
    }
    return loss;
}

#endif
