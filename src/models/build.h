/* models/build.h -- helpers shared by the builders of models.
 *
 * A builder appends blocks and checks the status once, at the end.  After a failure all further
 * calls do nothing.
 */
#ifndef LKI_MODELS_BUILD_H
#define LKI_MODELS_BUILD_H

#include "base/status.h"
#include "lockstep/models.h"

typedef struct {
    lk_model *model;
    lk_status status; /* status of the first failed step */
} lki_builder;

/* Appends a block with one input, and returns its value. */
lk_value lki_build(lki_builder *builder, const lk_block_type *type, const char *name,
                   const void *options, size_t options_bytes, lk_value x);
/* Appends a block with two inputs, and returns its value. */
lk_value lki_build2(lki_builder *builder, const lk_block_type *type, const char *name,
                    const void *options, size_t options_bytes, lk_value x0, lk_value x1);
/* Appends a block with three inputs, and returns its value. */
lk_value lki_build3(lki_builder *builder, const lk_block_type *type, const char *name,
                    const void *options, size_t options_bytes, lk_value x0, lk_value x1,
                    lk_value x2);

/* Appends a linear block, and returns its value.  `added` is its second input, or 0.  With
 * adapters, the block is frozen, and blocks of its adapter follow if its name is that of a target.
 * Defined in lora.c, as the next ones. */
lk_value lki_build_linear(lki_builder *builder, const lk_model_options *options, const char *name,
                          const lk_linear_options *linear, lk_value x, lk_value added);
/* Freezes the model's parameters if it has adapters. */
void lki_build_freeze(lki_builder *builder, const lk_model_options *options);
/* Fails if a target of adapters is no projection of the model. */
LK_NODISCARD lk_status lki_check_targets(const lk_model *model, const lk_model_options *options);
/* Copies the options of adapters, with defaults. */
void lki_resolve_lora(lk_model_options *out, const lk_model_options *options, const char *targets);

/* Appends the loss of a model with logits. */
void lki_build_cross_entropy(lki_builder *builder, const lk_model_options *options,
                             lk_value logits);

/* Begins the next checkpointed segment if `begin` is true; otherwise ends the open one. */
void lki_build_segment(lki_builder *builder, bool begin);

/* Starts a builder with an empty model. */
LK_NODISCARD lk_status lki_build_begin(lki_builder *builder, const char *name, lk_shape input,
                                       bool tokens);
/* Returns the finished model, or frees it after a failure. */
LK_NODISCARD lk_status lki_build_end(lki_builder *builder, lk_model **out);

/* Formats a name like printf().  A name that is too long is truncated so that lk_model_add()
 * refuses it. */
typedef struct { char text[LK_NAME_MAX]; } lki_name;
lki_name lki_name_of(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns the number of rows of an embedding of tokens. */
uint32_t lki_vocabulary(const lk_model_options *options);
/* Checks that the tables of embeddings have room for the data.  `model` is named in messages. */
LK_NODISCARD lk_status lki_check_tables(const char *model, const lk_model_options *options);

/* Copies the fields of the model's own options, with defaults.  There is one function per model. */
void lki_resolve_gpt(lk_model_options *out, const lk_model_options *options);
void lki_resolve_llama(lk_model_options *out, const lk_model_options *options);
void lki_resolve_mlp(lk_model_options *out, const lk_model_options *options);
void lki_resolve_bare(lk_model_options *out, const lk_model_options *options);
void lki_resolve_resnet(lk_model_options *out, const lk_model_options *options);
/* Builds the model from resolved options.  There is one function per model. */
LK_NODISCARD lk_status lki_build_gpt(lk_model **out, const lk_model_options *options);
LK_NODISCARD lk_status lki_build_llama(lk_model **out, const lk_model_options *options);
LK_NODISCARD lk_status lki_build_mlp(lk_model **out, const lk_model_options *options);
LK_NODISCARD lk_status lki_build_bare(lk_model **out, const lk_model_options *options);
LK_NODISCARD lk_status lki_build_resnet(lk_model **out, const lk_model_options *options);

#endif
