/* nn/model.h -- the fields of a model, for the engine and for the built-in blocks. */
#ifndef LKI_NN_MODEL_H
#define LKI_NN_MODEL_H

#include "base/status.h"
#include "lockstep/nn.h"

/* The maximum number of elements of a parameter, or of a value per sample.  The number of their
 * bytes can be multiplied by small factors without overflow. */
#define LKI_ELEMENTS_MAX ((uint64_t)1 << 44)

/* A planned block.  Value v is the output of block v - 1. */
typedef struct {
    const lk_block_type *type;
    /* for messages, for example: linear block "fc0" */
    char                 label[LK_NAME_MAX + 48];
    char                 name[LK_NAME_MAX];
    lk_block             block;
    void                *options; /* owned: block.options points here */
    size_t               options_bytes;
    void                *constants; /* owned, or NULL; block.constants may be another block's */
    lk_value             inputs[LK_BLOCK_INPUTS_MAX];
    bool                 output_unread;
    uint32_t             segment; /* segment of activation checkpointing, from 1; 0: none */
    bool                 frozen;  /* `params` are indices of the model's frozen parameters */
    uint32_t             params[LK_BLOCK_PARAMS_MAX]; /* in the order planned */
    uint32_t             uses[LK_BLOCK_PARAMS_MAX];
    uint32_t             states[LK_BLOCK_PARAMS_MAX];
} lki_block_entry;

/* Parameters, all of which have gradients, or none. */
typedef struct {
    lk_param *params;
    uint64_t *hashes; /* [count]: of each name, to find a parameter without comparing all names */
    size_t    count, capacity, hash_capacity, elements;
} lki_param_list;

struct lk_model {
    char             name[LK_NAME_MAX];
    lk_shape         input;
    bool             tokens;
    lki_block_entry *blocks;
    lki_param_list   trainable, frozen;
    lk_state        *states;
    lk_grad_term    *terms; /* in backward's order: terms of the last block first */
    size_t           block_count, state_count, term_count;
    size_t           block_capacity, state_capacity, term_capacity;
    size_t           constant_bytes;
    bool             freezing; /* the parameters of the next block are frozen */
    /* the segment of the next block; the number of segments */
    uint32_t         segment, segment_count;
    /* the last segment that has blocks; its values are not recomputed */
    uint32_t         last_segment;
};

/* Returns true if blocks are recomputed before the backward pass of block `last`, and sets *first
 * to the first of these blocks.  This is the case if `last` is the last block of a checkpointed
 * segment that is not the model's last segment.  Defined in reads.c. */
bool lki_model_again(const lk_model *model, uint32_t last, uint32_t *first);

/* Returns parameter `i` of the block. */
static inline const lk_param *lki_block_param(const lk_model *model, const lki_block_entry *entry,
                                              uint32_t i)
{
    const lki_param_list *list = entry->frozen ? &model->frozen : &model->trainable;
    return &list->params[entry->params[i]];
}

/* Returns the number of the block's parameters that have gradients: all, or none. */
static inline uint32_t lki_grad_count(const lki_block_entry *entry)
{
    return entry->frozen ? 0 : entry->block.param_count;
}

/* Returns true if the block's forward or backward pass reads parameters that are not frozen. */
bool lki_block_reads(const lki_block_entry *entry, bool backward);

/* Finds the addresses of the parameters that a pass reads; NULL for parameters that it does not
 * read. */
void lki_block_params(const lki_block_entry *entry, const lk_walk *walk,
                      const float *const *frozen, bool backward, const float **params,
                      const uint16_t **params_bf16);

struct lk_plan {
    lk_model        *model;
    lki_block_entry *entry;
};

/* Counts the elements of `shape`.  Returns false if there are none or more than
 * LKI_ELEMENTS_MAX. */
bool lki_shape_elements(lk_shape shape, uint64_t *count);

typedef struct {
    char text[LK_RANK_MAX * sizeof "18446744073709551615, "];
} lki_shape_text;
lki_shape_text lki_shape_describe(lk_shape shape); /* "(28, 28, 1)" */

/* Checks that the options have the size of the type's options struct.  LK_EINVAL names the
 * difference. */
LK_NODISCARD lk_status lki_plan_options(const lk_plan *plan, size_t bytes);

/* Checks that the block has `min` to `max` inputs. */
LK_NODISCARD lk_status lki_plan_inputs(const lk_plan *plan, uint32_t min, uint32_t max);

#endif
