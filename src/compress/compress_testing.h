/* compress_testing.h -- plays steps of several groups in one process. */
#ifndef LKI_COMPRESS_TESTING_H
#define LKI_COMPRESS_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compress/rules.h"
#include "compress/table.h"
#include "device/reduce.h"

enum { LKT_GROUPS_MAX = 16 };

/* One tensor of all groups, and what is kept between steps.  `samples` are those of each group.
 * The rule is ef14 by default, with the vector `errors`.  `others` is a rule's second vector. */
typedef struct {
    const lk_compressor *by;
    lk_compression       options;
    lk_compress_key      key;
    uint32_t             groups;
    uint64_t             samples;
    lk_feedback          feedback;
    float                momentum;
    bool                 nesterov;
    bool                 turned; /* parts are encoded in descending order */
    float               *errors[LKT_GROUPS_MAX], *others[LKT_GROUPS_MAX];
    void                *messages[LKT_GROUPS_MAX], *combined[LK_ROUNDS_MAX];
} lkt_compressed;

static inline size_t lkt_compressed_count(const lkt_compressed *c)
{
    return c->key.rows * c->key.cols;
}

static inline void lkt_compressed_open(lkt_compressed *c)
{
    const lk_compression given = c->options;
    size_t               most  = 4;
    assert_int_equal(lk_compression_resolve(&c->options, &given), LK_OK);
    for (uint32_t r = 0; r < c->by->rounds; r++) {
        size_t bytes   = c->by->bytes(&c->options, &c->key, r);
        most           = bytes > most ? bytes : most;
        c->combined[r] = calloc(c->groups, bytes + 4);
    }
    for (uint32_t g = 0; g < c->groups; g++) {
        c->errors[g]   = calloc(lkt_compressed_count(c), sizeof(float));
        c->others[g]   = calloc(lkt_compressed_count(c), sizeof(float));
        c->messages[g] = calloc(1, most);
    }
}

static inline void lkt_compressed_close(lkt_compressed *c)
{
    for (uint32_t r = 0; r < c->by->rounds; r++)
        free(c->combined[r]);
    for (uint32_t g = 0; g < c->groups; g++) {
        free(c->errors[g]);
        free(c->others[g]);
        free(c->messages[g]);
    }
}

static inline void lkt_compressed_combine(lkt_compressed *c, uint32_t round)
{
    size_t         bytes = c->by->bytes(&c->options, &c->key, round);
    lki_tree_input inputs[LKT_GROUPS_MAX];
    for (uint32_t g = 0; g < c->groups; g++) {
        inputs[g] = (lki_tree_input){ g, 1, c->messages[g] };
        if (c->by->combine == LK_COMBINE_GATHER)
            memcpy((char *)c->combined[round] + g * bytes, c->messages[g], bytes);
    }
    if (c->by->combine == LK_COMBINE_TREE)
        lki_tree_sum_f32(LK_F32, c->groups, inputs, c->groups, bytes / sizeof(float),
                         c->combined[round]);
    if (c->by->settle != NULL)
        c->by->settle(&c->options, &c->key, round, c->combined[round]);
}

/* Decodes elements [first, first + count) of the sum over all groups. */
static inline void lkt_compressed_decode(const lkt_compressed *c, size_t first, size_t count,
                                         float *out)
{
    if (c->by->combine == LK_COMBINE_TREE) {
        c->by->decode(&c->options, &c->key, (const void *const *)c->combined, first, count, out);
        return;
    }
    size_t         bytes = c->by->bytes(&c->options, &c->key, 0);
    lki_tree_input inputs[LKT_GROUPS_MAX];
    float         *all = calloc((size_t)c->groups * count + 1, sizeof *all);
    for (uint32_t g = 0; g < c->groups; g++) {
        const void *message = (const char *)c->combined[0] + g * bytes;
        inputs[g]           = (lki_tree_input){ g, 1, all + g * count };
        c->by->decode(&c->options, &c->key, &message, first, count, all + g * count);
    }
    lki_tree_sum_f32(LK_F32, c->groups, inputs, c->groups, count, out);
    if (c->by->conclude != NULL)
        c->by->conclude(&c->options, &c->key, c->samples * c->groups, count, out);
    free(all);
}

/* Applies the group's rule before the first round, or after the last. */
static inline void lkt_compressed_keep(lkt_compressed *c, uint32_t g, bool after, float *values)
{
    const lki_rule *rule = lki_rule_of(c->feedback == 0 ? LK_FEEDBACK_EF14 : c->feedback);
    const lki_kept  kept = { .count    = lkt_compressed_count(c),
                             .samples  = c->samples,
                             .momentum = c->momentum,
                             .nesterov = c->nesterov,
                             .kept     = { c->errors[g], c->others[g] } };
    if (!after && rule->before != NULL)
        rule->before(&kept, values);
    if (after && rule->after != NULL)
        rule->after(&kept, values);
}

/* Finds part `index` of a round.  Returns false after the last. */
static inline bool lkt_part(const lk_compressor *by, const lk_compression *options,
                            const lk_compress_key *key, uint32_t round, uint32_t index,
                            lk_compress_part *out)
{
    const size_t count = key->rows * key->cols;
    if (by->part != NULL)
        return by->part(options, key, round, index, out);
    *out = (lk_compress_part){ .rows = 1, .count = count, .stride = count };
    return index == 0;
}

/* Encodes all parts of a round, in ascending or descending order. */
static inline void lkt_encode(const lk_compressor *by, const lk_compression *options,
                              const lk_compress_key *key, uint32_t round, bool turned,
                              const void *before, float *values, void *message)
{
    lk_compress_part part;
    uint32_t         parts = 0;
    while (lkt_part(by, options, key, round, parts, &part))
        parts++;
    for (uint32_t i = 0; i < parts; i++) {
        assert_true(lkt_part(by, options, key, round, turned ? parts - 1 - i : i, &part));
        by->encode(options, key, round, &part, before, values, message);
    }
}

/* Plays one step.  values[g] has the gradient of group g, and then its residual.  `out` gets the
 * decoded sum. */
static inline void lkt_compressed_step(lkt_compressed *c, float *const *values, float *out)
{
    size_t   count = lkt_compressed_count(c);
    uint32_t last  = c->by->rounds - 1;
    if (c->by->begin != NULL)
        c->by->begin(&c->options, &c->key, c->combined[last]);
    for (uint32_t g = 0; g < c->groups; g++)
        lkt_compressed_keep(c, g, false, values[g]);
    for (uint32_t r = 0; r <= last; r++) {
        for (uint32_t g = 0; g < c->groups; g++) {
            lk_compress_key key = c->key;
            key.group           = g;
            lkt_encode(c->by, &c->options, &key, r, c->turned,
                       c->combined[r == 0 ? last : r - 1], values[g], c->messages[g]);
        }
        lkt_compressed_combine(c, r);
    }
    for (uint32_t g = 0; g < c->groups; g++)
        lkt_compressed_keep(c, g, true, values[g]);
    lkt_compressed_decode(c, 0, count, out);
    c->key.step++;
}

#endif
