/* models.c -- the table of built-in models, and the helpers of their builders. */
#include "lockstep/models.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "models/build.h"

static const struct {
    const char *name;
    void (*resolve)(lk_model_options *out, const lk_model_options *options);
    lk_status (*build)(lk_model **out, const lk_model_options *options);
} builtin[] = {
    { "gpt", lki_resolve_gpt, lki_build_gpt },
    { "llama", lki_resolve_llama, lki_build_llama },
    { "resnet", lki_resolve_resnet, lki_build_resnet },
    { "mlp", lki_resolve_mlp, lki_build_mlp },
    { "bare", lki_resolve_bare, lki_build_bare },
};

enum { BUILTIN_COUNT = sizeof builtin / sizeof builtin[0], TRAINED = BUILTIN_COUNT - 1 };

const char *lk_model_builtin(uint32_t index)
{
    return index < TRAINED ? builtin[index].name : NULL;
}

lk_status lk_model_resolve(lk_model_options *options, const char *name)
{
    lk_model_options given;

    LK_TRY(lki_check_given("lk_model_resolve", "name", name, 1));
    LK_TRY(lki_options_copy(&given, sizeof given, options, "lk_model_options"));
    lk_model_options own = { .struct_size = sizeof own,
                             .input       = given.input,
                             .tokens      = given.tokens,
                             .classes     = given.classes,
                             .numbers     = given.numbers,
                             .label_smoothing = given.label_smoothing };
    for (uint32_t i = 0; i < BUILTIN_COUNT; i++)
        if (strcmp(builtin[i].name, name) == 0)
            builtin[i].resolve(&own, &given);
    lki_options_return(options, &own);
    return LK_OK;
}

static lk_status build_one(lk_model **out, uint32_t index, const lk_model_options *options)
{
    LK_TRY(builtin[index].build(out, options));
    lk_status status = lki_check_targets(*out, options);
    if (status != LK_OK) {
        lk_model_free(*out);
        *out = NULL;
    }
    return status;
}

lk_status lk_model_build(lk_model **out, const char *name, const lk_model_options *options)
{
    lk_model_options own;

    *out = NULL;
    LK_TRY(lki_check_given("lk_model_build", "name", name, 1));
    LK_TRY(lki_options_copy(&own, sizeof own, options, "lk_model_options"));
    LK_TRY(lk_model_resolve(&own, name));
    for (uint32_t i = 0; i < BUILTIN_COUNT; i++)
        if (strcmp(builtin[i].name, name) == 0)
            return build_one(out, i, &own);
    return lk_fail(LK_EINVAL, "unknown model %s; there are gpt, llama, resnet and mlp", name);
}

/* ---- Helpers of builders ---------------------------------------------------------------- */

static lk_value append(lki_builder *builder, const lk_block_type *type, const char *name,
                       const void *options, size_t options_bytes, const lk_value *inputs,
                       uint32_t count)
{
    lk_value out = 0;
    if (builder->status == LK_OK)
        builder->status =
            lk_model_add(&out, builder->model, type, name, options, options_bytes, inputs, count);
    return out;
}

lk_value lki_build(lki_builder *builder, const lk_block_type *type, const char *name,
                   const void *options, size_t options_bytes, lk_value x)
{
    return append(builder, type, name, options, options_bytes, &x, 1);
}

lk_value lki_build2(lki_builder *builder, const lk_block_type *type, const char *name,
                    const void *options, size_t options_bytes, lk_value x0, lk_value x1)
{
    const lk_value inputs[] = { x0, x1 };
    return append(builder, type, name, options, options_bytes, inputs, 2);
}

lk_value lki_build3(lki_builder *builder, const lk_block_type *type, const char *name,
                    const void *options, size_t options_bytes, lk_value x0, lk_value x1,
                    lk_value x2)
{
    const lk_value inputs[] = { x0, x1, x2 };
    return append(builder, type, name, options, options_bytes, inputs, 3);
}

lk_status lki_build_begin(lki_builder *builder, const char *name, lk_shape input, bool tokens)
{
    *builder = (lki_builder){ .status = LK_OK };
    return lk_model_new(&builder->model, name, input, tokens);
}

lk_status lki_build_end(lki_builder *builder, lk_model **out)
{
    if (builder->status != LK_OK) {
        lk_model_free(builder->model);
        return builder->status;
    }
    *out = builder->model;
    return LK_OK;
}

void lki_build_cross_entropy(lki_builder *builder, const lk_model_options *options,
                             lk_value logits)
{
    const lk_cross_entropy_options own = { .smoothing = options->label_smoothing };
    lki_build(builder, &lk_block_cross_entropy, "", &own, sizeof own, logits);
}

void lki_build_segment(lki_builder *builder, bool begin)
{
    if (builder->status != LK_OK)
        return;
    if (begin)
        lk_model_checkpoint_begin(builder->model);
    else
        lk_model_checkpoint_end(builder->model);
}

uint32_t lki_vocabulary(const lk_model_options *options)
{
    return options->vocabulary != 0 ? options->vocabulary : options->classes;
}

lk_status lki_check_tables(const char *model, const lk_model_options *options)
{
    if (lki_vocabulary(options) < options->classes)
        return lk_fail(LK_EINVAL,
                       "%s: the data have %u tokens, and the model's `vocabulary` only %u; is it "
                       "another tokenizer's?", model, options->classes, options->vocabulary);
    if (options->positions != 0 && options->positions < options->input.dims[0])
        return lk_fail(LK_EINVAL,
                       "%s: samples of %llu tokens, and the model has only %u `positions`; give a "
                       "`context` up to that", model, (unsigned long long)options->input.dims[0],
                       options->positions);
    return LK_OK;
}

lki_name lki_name_of(const char *format, ...)
{
    lki_name name;
    va_list  args;
    va_start(args, format);
    (void)vsnprintf(name.text, sizeof name.text, format, args);
    va_end(args);
    return name;
}
