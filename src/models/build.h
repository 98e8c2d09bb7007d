/* models/build.h -- what the builders of models share.
 *
 * A builder appends block after block and looks at the status once, at the end: after a failure
 * every further step does nothing.
 */
#ifndef LKI_MODELS_BUILD_H
#define LKI_MODELS_BUILD_H

#include "base/status.h"
#include "lockstep/models.h"

typedef struct {
    lk_model *model;
    lk_status status; /* of the first step that failed */
} lki_builder;

/* Appends a block with one input; returns its value. */
lk_value lki_build(lki_builder *builder, const lk_block_type *type, const char *name,
                   const void *options, size_t options_bytes, lk_value x);
/* The same with two inputs. */
lk_value lki_build2(lki_builder *builder, const lk_block_type *type, const char *name,
                    const void *options, size_t options_bytes, lk_value x0, lk_value x1);

/* Begins the next checkpointed segment; false: there is none from here on. */
void lki_build_segment(lki_builder *builder, bool begin);

/* Starts with an empty model, and hands it out, or frees it, at the end. */
LK_NODISCARD lk_status lki_build_begin(lki_builder *builder, const char *name, lk_shape input,
                                       bool tokens);
LK_NODISCARD lk_status lki_build_end(lki_builder *builder, lk_model **out);

/* A name made of parts; printf-like.  Too long a name is cut: lk_model_add() refuses it then. */
typedef struct { char text[LK_NAME_MAX]; } lki_name;
lki_name lki_name_of(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The builders, each behind what copies its own options and fills in their defaults. */
void lki_resolve_gpt(lk_model_options *out, const lk_model_options *options);
void lki_resolve_mlp(lk_model_options *out, const lk_model_options *options);
void lki_resolve_bare(lk_model_options *out, const lk_model_options *options);
void lki_resolve_resnet(lk_model_options *out, const lk_model_options *options);
LK_NODISCARD lk_status lki_build_gpt(lk_model **out, const lk_model_options *options);
LK_NODISCARD lk_status lki_build_mlp(lk_model **out, const lk_model_options *options);
LK_NODISCARD lk_status lki_build_bare(lk_model **out, const lk_model_options *options);
LK_NODISCARD lk_status lki_build_resnet(lk_model **out, const lk_model_options *options);

#endif
