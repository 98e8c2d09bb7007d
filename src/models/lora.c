/* lora.c -- low-rank adapters of projections (LoRA).
 *
 * A projection with an adapter is a chain of blocks:
 *
 *      y = W x + b (+ the end of a residual branch)    the projection's own block, frozen
 *      u = A x, then u lora_alpha / lora_rank
 *      B u + y, within the product
 *      an activation, if the projection has one
 *
 * Initial values: A uniform in 1 / sqrt(in) (Kaiming with a = sqrt(5)), and B 0, as in PEFT.
 *
 * Source: Hu et al. 2021, section 4.1.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/build.h"
#include "models/peft.h"
#include "nn/model.h"

#define ALPHA_DEFAULT 8.0F

static const char all_linear[] = "all-linear";

/* Returns true if `name` is a target, or ends in one after a dot. */
static bool ends_in(const char *name, size_t length, const char *target, size_t bytes)
{
    if (bytes == 0 || length < bytes || strncmp(name + length - bytes, target, bytes) != 0)
        return false;
    return length == bytes || name[length - bytes - 1] == '.';
}

/* Returns the next target of a list at *at, and its length; NULL at the end.  A name of GPT-2's as
 * transformers and PEFT have it begins with "transformer.", which names here lack. */
static const char *next_target(const char **at, size_t *bytes)
{
    static const char prefix[] = "transformer.h.";
    const size_t      more     = sizeof "transformer." - 1;
    const char       *target   = *at;
    if (target == NULL)
        return NULL;
    *bytes = strcspn(target, ",");
    *at    = target[*bytes] == ',' ? target + *bytes + 1 : NULL;
    if (strncmp(target, prefix, sizeof prefix - 1) != 0)
        return target;
    *bytes -= more;
    return target + more;
}

/* Returns true if the first `length` bytes of `name` are a target of the list. */
static bool is_target(const char *targets, const char *name, size_t length)
{
    const char *at = targets, *target;
    size_t      bytes;
    if (strcmp(at, all_linear) == 0)
        return true;
    while ((target = next_target(&at, &bytes)) != NULL)
        if (ends_in(name, length, target, bytes))
            return true;
    return false;
}

static void freeze(lki_builder *builder, bool frozen)
{
    if (builder->status == LK_OK)
        lk_model_freeze(builder->model, frozen);
}

void lki_build_freeze(lki_builder *builder, const lk_model_options *options)
{
    freeze(builder, options->lora_rank > 0);
}

static lk_value own_block(lki_builder *builder, const char *name, const lk_linear_options *linear,
                          lk_value x, lk_value added)
{
    return added == 0
               ? lki_build(builder, &lk_block_linear, name, linear, sizeof *linear, x)
               : lki_build2(builder, &lk_block_linear, name, linear, sizeof *linear, x, added);
}

/* Appends the blocks of an adapter, whose result is added to y. */
static lk_value adapter(lki_builder *builder, const lk_model_options *options, const char *name,
                        uint64_t out, lk_value x, lk_value y)
{
    if (builder->status != LK_OK)
        return 0;
    const lk_shape    shape  = builder->model->blocks[x - 1].block.y;
    const float       width  = (float)shape.dims[shape.rank - 1];
    lk_linear_options down   = { .out = options->lora_rank, .no_bias = true,
                                 .init = LK_INIT_UNIFORM, .scale = 1.0F / sqrtf(width) };
    lk_linear_options up     = { .out = out, .no_bias = true };
    lk_scale_options  factor = { options->lora_alpha / (float)options->lora_rank };
    lk_value u = lki_build(builder, &lk_block_linear, lki_name_of("%s.lora_A", name).text, &down,
                           sizeof down, x);
    if (factor.factor < 1.0F || factor.factor > 1.0F)
        u = lki_build(builder, &lk_block_scale, "", &factor, sizeof factor, u);
    return lki_build2(builder, &lk_block_linear, lki_name_of("%s.lora_B", name).text, &up,
                      sizeof up, u, y);
}

lk_value lki_build_linear(lki_builder *builder, const lk_model_options *options, const char *name,
                          const lk_linear_options *linear, lk_value x, lk_value added)
{
    lk_linear_options own = *linear;
    if (options->lora_rank == 0 || !is_target(options->lora_targets, name, strlen(name)))
        return own_block(builder, name, linear, x, added);
    own.activation = NULL;
    lk_value y     = own_block(builder, name, &own, x, added);
    freeze(builder, false);
    y = adapter(builder, options, name, linear->out, x, y);
    freeze(builder, true);
    if (linear->activation == NULL)
        return y;
    LK_ASSERT(strcmp(linear->activation, "gelu_tanh") == 0 && added == 0);
    return lki_build(builder, &lk_block_gelu_tanh, "", NULL, 0, y);
}

/* ---- Checking ------------------------------------------------------------------------------ */

/* Returns the length of the name of a projection, if `name` is that of its adapter's A; else 0. */
static size_t adapted(const char *name)
{
    static const char end[] = ".lora_A";
    const size_t tail = sizeof end - 1, length = strlen(name);
    return length > tail && strcmp(name + length - tail, end) == 0 ? length - tail : 0;
}

/* Returns true if the model has an adapter for a target. */
static bool has_adapter(const lk_model *model, const char *target, size_t bytes)
{
    for (size_t b = 0; b < model->block_count; b++)
        if (ends_in(model->blocks[b].name, adapted(model->blocks[b].name), target, bytes))
            return true;
    return false;
}

/* Returns true if a block is a projection, which may have an adapter, and not part of one. */
static bool is_projection(const lki_block_entry *entry)
{
    return entry->type == &lk_block_linear && strstr(entry->name, ".lora_") == NULL &&
           strcmp(entry->name, "lm_head") != 0;
}

/* Returns true if a projection of the model has a name that ends in a target. */
static bool has_projection(const lk_model *model, const char *target, size_t bytes)
{
    for (size_t b = 0; b < model->block_count; b++)
        if (is_projection(&model->blocks[b]) &&
            ends_in(model->blocks[b].name, strlen(model->blocks[b].name), target, bytes))
            return true;
    return false;
}

/* Returns true if a target is the head, or an embedding, of a gpt or a llama. */
static bool is_outside(const char *target, size_t bytes)
{
    static const char *const names[] = { "lm_head", "embed_tokens", "wte", "wpe" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (ends_in(target, bytes, names[i], strlen(names[i])))
            return true;
    return false;
}

/* Fails because of a target of which the model has no adapter. */
static lk_status refuse_target(const lk_model *model, const char *target, size_t bytes)
{
    const bool gpt = strcmp(model->name, "gpt") == 0;
    if (bytes == sizeof all_linear - 1 && strncmp(target, all_linear, bytes) == 0)
        return lk_fail(LK_EINVAL, "%s: `lora_targets`: all-linear stands for all projections but "
                                  "the head; give it alone", model->name);
    if (is_outside(target, bytes))
        return lk_fail(LK_EINVAL, "%s: `lora_targets` '%.*s': adapters of the head and of "
                                  "embeddings are not supported", model->name, (int)bytes, target);
    return lk_fail(LK_EINVAL,
                   "%s: `lora_targets` '%.*s' is no projection of this model; there are %s, or "
                   "all-linear", model->name, (int)bytes, target,
                   gpt ? "c_attn, c_proj and c_fc"
                       : "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj");
}

lk_status lki_check_targets(const lk_model *model, const lk_model_options *options)
{
    const char *at = options->lora_targets, *target;
    size_t      bytes;
    if (options->lora_rank == 0 || strcmp(at, all_linear) == 0)
        return LK_OK;
    while ((target = next_target(&at, &bytes)) != NULL)
        if (!has_adapter(model, target, bytes))
            return refuse_target(model, target, bytes);
    return LK_OK;
}

/* Returns the first projection that is a target without an adapter, or the reverse; NULL if there
 * is none. */
static const char *first_other(const lk_model *model, const char *targets)
{
    for (size_t b = 0; b < model->block_count; b++) {
        const char  *name   = model->blocks[b].name;
        const size_t length = strlen(name);
        if (is_projection(&model->blocks[b]) &&
            is_target(targets, name, length) != has_adapter(model, name, length))
            return name;
    }
    return NULL;
}

lk_status lki_peft_check(const lki_peft *peft, const lk_model *model, const char *path)
{
    const char *at = strcmp(peft->targets, all_linear) == 0 ? NULL : peft->targets, *target;
    size_t      bytes;
    while ((target = next_target(&at, &bytes)) != NULL) {
        if (is_outside(target, bytes))
            return lk_fail(LK_EUNSUPPORTED, "%s: 'target_modules' has %.*s, and adapters of the "
                                            "head and of embeddings are not supported", path,
                           (int)bytes, target);
        if (!has_projection(model, target, bytes))
            return lk_fail(LK_EINVAL, "%s: 'target_modules' has %.*s, which is no projection of a "
                                      "%s: the adapters are another model's", path, (int)bytes,
                           target, model->name);
    }
    return LK_OK;
}

/* Returns true if all projections whose names end in `end` are targets; "": all of them. */
static bool is_wholly_target(const lk_model *model, const char *targets, const char *end)
{
    for (size_t b = 0; b < model->block_count; b++) {
        const char  *name   = model->blocks[b].name;
        const size_t length = strlen(name);
        const bool   named  = *end == '\0' || ends_in(name, length, end, strlen(end));
        if (is_projection(&model->blocks[b]) && named && !is_target(targets, name, length))
            return false;
    }
    return true;
}

/* Returns the shortest end of a target's name, after a dot, that only targets have. */
static const char *shortest_end(const lk_model *model, const char *targets, const char *name)
{
    const char *end = name + strlen(name);
    do {
        do
            end--;
        while (end > name && end[-1] != '.');
    } while (end > name && !is_wholly_target(model, targets, end));
    return end;
}

/* Writes the shortest list that selects the same projections of a model as `targets`.  Returns
 * false if it does not fit. */
static bool shorten_targets(char *out, size_t bytes, const lk_model *model, const char *targets)
{
    size_t used = 0;
    out[0]      = '\0';
    if (is_wholly_target(model, targets, ""))
        return snprintf(out, bytes, "%s", all_linear) < (int)bytes;
    for (size_t b = 0; b < model->block_count && used < bytes; b++) {
        const char  *name   = model->blocks[b].name;
        const size_t length = strlen(name);
        if (!is_projection(&model->blocks[b]) || !is_target(targets, name, length) ||
            (used > 0 && is_target(out, name, length)))
            continue;
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", used > 0 ? "," : "",
                                 shortest_end(model, targets, name));
    }
    return used < bytes;
}

lk_status lki_peft_compare(const lki_peft *peft, const lk_model *model, const char *path)
{
    LK_TRY(lki_peft_check(peft, model, path));
    char        list[256];
    const char *other = first_other(model, peft->targets);
    if (other == NULL)
        return LK_OK;
    const bool fits = shorten_targets(list, sizeof list, model, peft->targets);
    return lk_fail(LK_EINVAL, "`lora_targets` are not those of the adapters in %.120s, for example "
                              "%s; give %s`lora_targets`%s%s", path, other,
                   fits ? "" : "the names in its target_modules, with commas between them, as ",
                   fits ? " " : "", fits ? list : "");
}

void lki_resolve_lora(lk_model_options *out, const lk_model_options *options, const char *targets)
{
    const bool given = options->lora_targets != NULL && options->lora_targets[0] != '\0';
    if (options->lora_rank == 0)
        return;
    out->lora_rank    = options->lora_rank;
    out->lora_alpha   = options->lora_alpha > 0.0F ? options->lora_alpha : ALPHA_DEFAULT;
    out->lora_targets = given ? options->lora_targets : targets;
    out->adapter      = options->adapter;
}
