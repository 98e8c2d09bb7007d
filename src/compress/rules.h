/* compress/rules.h -- the rules by which a group keeps values of a tensor from step to step.
 *
 * A rule has up to two vectors of a group and a tensor.  Before the first round it makes what is
 * encoded from the group's sum of gradients, and after the last round it reads the residual:
 *
 *     before()    sum of gradients -> values that are encoded
 *     encode()    values -> messages, residual
 *     after()     residual -> vectors for the next step
 *
 * Vectors are in units of a mean gradient, and sums are over `samples`.  A group without samples in
 * a step keeps its vectors, and sends zeros.
 */
#ifndef LKI_COMPRESS_RULES_H
#define LKI_COMPRESS_RULES_H

#include "lockstep/compress.h"

enum { LKI_KEPT_MAX = 2 };

/* A group's vectors of a tensor, and the options of the rule. */
typedef struct {
    size_t   count; /* elements */
    uint64_t samples;
    float    momentum;
    bool     nesterov;
    bool     scaled; /* ef14 multiplies the error by `rate`; 0: the step has no effect */
    float    rate;
    float   *kept[LKI_KEPT_MAX];
    const float    *common; /* onebit: the momentum that all groups have */
    const uint32_t *absent; /* onebit: a bit for each element, 1 if it is not exchanged */
} lki_kept;

typedef struct {
    const char *name, *text;
    const char *kept[LKI_KEPT_MAX]; /* names of the vectors; NULL after the last */
    bool        has_momentum;       /* the rule reads the option */
    bool        selects;            /* only with compressors that select elements */
    bool        needs_residual;     /* not with compressors that have none */
    bool        estimates;          /* messages are changes of the vector, in units of a mean.  The
                                     * receivers keep the mean over all groups: the gradient */

    /* Changes the sum of gradients to the values that are encoded.  NULL: they are the same. */
    void (*before)(const lki_kept *kept, float *values);

    /* Keeps the residual.  NULL: it is dropped. */
    void (*after)(const lki_kept *kept, const float *residual);
} lki_rule;

/* The rule and the compressor of onebit-adam (onebit.c), which have no numbers and are in no list.
 * The compressor reads the bits of absent elements where others read a combined message. */
extern const lki_rule      lki_rule_onebit;
extern const lk_compressor lki_compressor_onebit;

/* Returns true if an element is absent. */
static inline bool lki_onebit_lacks(const uint32_t *absent, size_t element)
{
    return (absent[element / 32] >> element % 32 & 1) != 0;
}

/* Encodes `count` elements, of which absent ones are 0, to a scale and signs: the message of
 * compress/signs.h.  The scale is the root of the mean square of the elements that are present. */
void lki_onebit_encode(size_t count, const float *values, const uint32_t *absent, void *message);

/* Returns a rule; NULL if there is none, as of LK_FEEDBACK_DEFAULT. */
const lki_rule *lki_rule_of(lk_feedback feedback);

/* Returns the number of the vectors that a rule keeps. */
static inline uint32_t lki_rule_kept(const lki_rule *rule)
{
    uint32_t count = 0;
    while (count < LKI_KEPT_MAX && rule->kept[count] != NULL)
        count++;
    return count;
}

#endif
