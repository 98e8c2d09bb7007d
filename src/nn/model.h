/* nn/model.h -- what a model is made of, for the engine and for the built-in blocks. */
#ifndef LKI_NN_MODEL_H
#define LKI_NN_MODEL_H

#include "base/status.h"
#include "lockstep/nn.h"

/* No value of a sample and no parameter may have more elements than this, so that their bytes
 * can be multiplied by small factors without overflow. */
#define LKI_ELEMENTS_MAX ((uint64_t)1 << 44)

/* A planned block.  Value v is the output of block v - 1. */
typedef struct {
    const lk_block_type *type;
    char                 label[LK_NAME_MAX + 48]; /* for messages: linear block "fc0" */
    char                 name[LK_NAME_MAX];
    lk_block             block;
    void                *options; /* owned: block.options points here */
    size_t               options_bytes;
    lk_value             inputs[LK_BLOCK_INPUTS_MAX];
    bool                 output_unread;
    uint32_t             segment; /* of activation checkpointing, from 1 on; 0: none */
    uint32_t             params[LK_BLOCK_PARAMS_MAX]; /* in the order planned */
    uint32_t             uses[LK_BLOCK_PARAMS_MAX];
    uint32_t             states[LK_BLOCK_PARAMS_MAX];
} lki_block_entry;

struct lk_model {
    char             name[LK_NAME_MAX];
    lk_shape         input;
    bool             tokens;
    lki_block_entry *blocks;
    lk_param        *params;
    uint64_t        *names; /* of each, a hash: one is found without comparing all others */
    lk_state        *states;
    lk_grad_term    *terms; /* backward's order: terms of the last block first */
    size_t           block_count, param_count, state_count, term_count;
    size_t           block_capacity, param_capacity, name_capacity, state_capacity, term_capacity;
    size_t           param_elements;
    uint32_t         segment, segment_count; /* that of the next block; how many there are */
    uint32_t         last_segment; /* of those that have blocks: what it computes stays */
};

/* reads.c: what runs again just before the backward pass of block `last` begins at *first: all of
 * its checkpointed segment if it is that one's last block, and the segment not the model's last. */
bool lki_model_again(const lk_model *model, uint32_t last, uint32_t *first);

/* Whether the block's forward or backward pass reads parameters. */
bool lki_block_reads(const lki_block_entry *entry, bool backward);

/* Where these are, for a call; NULL where it reads none. */
void lki_block_params(const lki_block_entry *entry, const lk_walk *walk, bool backward,
                      const float **params, const uint16_t **params_bf16);

struct lk_plan {
    lk_model        *model;
    lki_block_entry *entry;
};

/* The elements of `shape`; false if there are none or more than LKI_ELEMENTS_MAX. */
bool lki_shape_elements(lk_shape shape, uint64_t *count);

typedef struct { char text[96]; } lki_shape_text;
lki_shape_text lki_shape_describe(lk_shape shape); /* "(28, 28, 1)" */

/* Whether the options have the size of the type's options struct; LK_EINVAL says what is amiss. */
LK_NODISCARD lk_status lki_plan_options(const lk_plan *plan, size_t bytes);

/* Whether the block has `min` to `max` inputs. */
LK_NODISCARD lk_status lki_plan_inputs(const lk_plan *plan, uint32_t min, uint32_t max);

#endif
