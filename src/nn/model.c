/* model.c -- builds a model: a list of blocks, each of which is planned when it is appended.
 *
 * lk_model_add() copies the options and passes a partial entry to the block's plan function, which
 * completes it by calls of lk_plan_...().  Then lk_model_add() checks the entry and appends it.  A
 * block that does not fit leaves the model unchanged.
 *
 * Gradient terms are in the order in which backward finishes them: blocks from last to first, and
 * within a block in the planned order.  So the terms of a new block are contiguous and are inserted
 * before all existing terms.
 */
#include "nn/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"

/* ---- Shapes ------------------------------------------------------------------------------ */

bool lki_shape_elements(lk_shape shape, uint64_t *count)
{
    uint64_t product = 1;
    if (shape.rank > LK_RANK_MAX)
        return false;
    for (uint32_t i = 0; i < shape.rank; i++) {
        if (shape.dims[i] == 0 || __builtin_mul_overflow(product, shape.dims[i], &product))
            return false;
    }
    *count = product;
    return product <= LKI_ELEMENTS_MAX;
}

lki_shape_text lki_shape_describe(lk_shape shape)
{
    lki_shape_text out  = { "(" };
    size_t         used = 1;
    for (uint32_t i = 0; i < shape.rank && i < LK_RANK_MAX; i++) {
        int wrote = snprintf(out.text + used, sizeof out.text - used, "%s%llu", i > 0 ? ", " : "",
                             (unsigned long long)shape.dims[i]);
        used += (size_t)wrote;
    }
    (void)snprintf(out.text + used, sizeof out.text - used, ")");
    return out;
}

static bool same_shape(lk_shape a, lk_shape b)
{
    if (a.rank != b.rank)
        return false;
    for (uint32_t i = 0; i < a.rank; i++)
        if (a.dims[i] != b.dims[i])
            return false;
    return true;
}

/* ---- Functions for plan functions -------------------------------------------------------- */

lk_status lk_plan_fail(const lk_plan *plan, const char *format, ...)
{
    char    message[400];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return lk_fail(LK_EINVAL, "%s: %s", plan->entry->label, message);
}

const lk_block *lk_plan_block(const lk_plan *plan)
{
    return &plan->entry->block;
}

void lk_plan_output(lk_plan *plan, lk_shape shape)
{
    plan->entry->block.y = shape;
}

void lk_plan_output_unread(lk_plan *plan)
{
    plan->entry->output_unread = true;
}

lk_status lki_plan_options(const lk_plan *plan, size_t bytes)
{
    if (plan->entry->options_bytes != bytes)
        return lk_plan_fail(plan,
                            "its options have %zu bytes, not %zu; pass its own options struct",
                            plan->entry->options_bytes, bytes);
    return LK_OK;
}

lk_status lki_plan_inputs(const lk_plan *plan, uint32_t min, uint32_t max)
{
    uint32_t count = plan->entry->block.input_count;
    if (count < min || count > max)
        return lk_plan_fail(plan, "it reads %u to %u values, not %u", min, max, count);
    return LK_OK;
}

/* Builds "BLOCK.suffix", or only the suffix if the block has no name. */
static lk_status full_name(const lk_plan *plan, const char *suffix, char out[LK_NAME_MAX])
{
    const char *name  = plan->entry->name;
    if (suffix == NULL)
        return lk_plan_fail(plan, "`suffix` is NULL");
    int wrote = snprintf(out, LK_NAME_MAX, "%s%s%s", name, name[0] != '\0' ? "." : "", suffix);
    if (wrote >= LK_NAME_MAX)
        return lk_plan_fail(plan, "the name of %s has %d characters; at most %d fit", suffix, wrote,
                            LK_NAME_MAX - 1);
    return LK_OK;
}

static lki_param_list *params_of(lk_model *model, bool frozen)
{
    return frozen ? &model->frozen : &model->trainable;
}

static lk_param *find_param(const lki_param_list *list, const char *name)
{
    const uint64_t hash = lki_xxh3(name, strlen(name));
    for (size_t i = 0; i < list->count; i++)
        if (list->hashes[i] == hash && strcmp(list->params[i].name, name) == 0)
            return &list->params[i];
    return NULL;
}

static lk_status append_param(lki_param_list *list, const lk_param *param)
{
    static const char what[] = "the model's parameters";
    LK_TRY(lki_reserve((void **)&list->params, &list->capacity, list->count, sizeof *list->params,
                       what));
    LK_TRY(lki_reserve((void **)&list->hashes, &list->hash_capacity, list->count,
                       sizeof *list->hashes, what));
    list->hashes[list->count]   = lki_xxh3(param->name, strlen(param->name));
    list->params[list->count++] = *param;
    return LK_OK;
}

static lk_status append_term(lk_plan *plan, const lk_param *param)
{
    lki_block_entry *entry = plan->entry;
    const lk_param  *first = params_of(plan->model, entry->frozen)->params;
    if (entry->block.param_count == LK_BLOCK_PARAMS_MAX)
        return lk_plan_fail(plan, "it has more than %d parameters; split it", LK_BLOCK_PARAMS_MAX);
    entry->params[entry->block.param_count] = (uint32_t)(param - first);
    entry->uses[entry->block.param_count++] = param->uses - 1;
    return LK_OK;
}

lk_status lk_plan_param(lk_plan *plan, const char *suffix, lk_shape shape, lk_init init,
                        float scale, bool no_decay)
{
    lk_model *model = plan->model;
    lk_param param = {
        .shape = shape, .uses = 1, .no_decay = no_decay, .init = init, .scale = scale,
        .bf16 = true /* set to false when a block that cannot read bf16 is appended */
    };
    lki_param_list *list = params_of(model, plan->entry->frozen);
    uint64_t        count;

    LK_TRY(full_name(plan, suffix, param.name));
    if (find_param(&model->trainable, param.name) != NULL ||
        find_param(&model->frozen, param.name) != NULL)
        return lk_plan_fail(plan, "there is a parameter %s already; give the block another name",
                            param.name);
    if (!lki_shape_elements(shape, &count))
        return lk_plan_fail(plan, "parameter %s has the shape %s: no elements, or more than %llu; "
                            "change its width", param.name, lki_shape_describe(shape).text,
                            (unsigned long long)LKI_ELEMENTS_MAX);
    if (__builtin_add_overflow(list->elements, (size_t)count, &list->elements))
        return lk_plan_fail(plan,
                            "the parameters are more than any machine holds; change the width");
    LK_TRY(append_param(list, &param));
    return append_term(plan, &list->params[list->count - 1]);
}

lk_status lk_plan_param_shared(lk_plan *plan, const char *name, lk_shape shape)
{
    if (name == NULL)
        return lk_plan_fail(plan, "`full_name` is NULL");
    lk_param *param = find_param(params_of(plan->model, plan->entry->frozen), name);
    if (param == NULL)
        return lk_plan_fail(plan, "it shares %s, which no earlier block has", name);
    if (!same_shape(param->shape, shape))
        return lk_plan_fail(plan, "it shares %s as %s, but that has the shape %s", name,
                            lki_shape_describe(shape).text, lki_shape_describe(param->shape).text);
    param->uses++;
    lk_status st = append_term(plan, param);
    if (st != LK_OK)
        param->uses--;
    return st;
}

lk_status lk_plan_state(lk_plan *plan, const char *suffix, size_t count, float initial,
                        float momentum)
{
    lk_model        *model = plan->model;
    lki_block_entry *entry = plan->entry;
    lk_state         state = { .count = count, .initial = initial, .momentum = momentum };

    LK_TRY(full_name(plan, suffix, state.name));
    if (count == 0 || count > LKI_ELEMENTS_MAX)
        return lk_plan_fail(plan, "state %s has %zu elements", state.name, count);
    if (entry->block.state_count == LK_BLOCK_PARAMS_MAX)
        return lk_plan_fail(plan, "it has more than %d states; split it", LK_BLOCK_PARAMS_MAX);
    for (size_t i = 0; i < model->state_count; i++)
        if (strcmp(model->states[i].name, state.name) == 0)
            return lk_plan_fail(plan, "there is a state %s already; give the block another name",
                                state.name);
    LK_TRY(lki_reserve((void **)&model->states, &model->state_capacity, model->state_count,
                       sizeof *model->states, "the model's states"));
    entry->states[entry->block.state_count++] = (uint32_t)model->state_count;
    model->states[model->state_count++]       = state;
    return LK_OK;
}

lk_status lk_plan_constants(lk_plan *plan, size_t bytes, void **out)
{
    *out = NULL;
    if (plan->entry->constants != NULL)
        return lk_plan_fail(plan, "it reserves constants twice; reserve all at once");
    LK_TRY(lki_alloc(&plan->entry->constants, bytes, "a block's constants"));
    plan->entry->block.constants = *out = plan->entry->constants;
    plan->model->constant_bytes += bytes;
    return LK_OK;
}

/* ---- Life cycle -------------------------------------------------------------------------- */

lk_status lk_model_new(lk_model **out, const char *name, lk_shape shape, bool tokens)
{
    lk_model *model;
    uint64_t  count;

    *out = NULL;
    LK_TRY(lki_check_given("lk_model_new", "name", name, 1));
    if (strlen(name) >= LK_NAME_MAX)
        return lk_fail(LK_EINVAL, "a model's name has at most %d characters", LK_NAME_MAX - 1);
    if (!lki_shape_elements(shape, &count))
        return lk_fail(LK_EINVAL,
                       "model %s: a sample of shape %s has no elements, or more than %llu", name,
                       lki_shape_describe(shape).text, (unsigned long long)LKI_ELEMENTS_MAX);
    LK_TRY(LKI_NEW(&model, 1, "a model"));
    memcpy(model->name, name, strlen(name) + 1);
    model->input  = shape;
    model->tokens = tokens;
    *out          = model;
    return LK_OK;
}

void lk_model_free(lk_model *model)
{
    if (model == NULL)
        return;
    for (size_t i = 0; i < model->block_count; i++) {
        lki_free(model->blocks[i].options);
        lki_free(model->blocks[i].constants);
    }
    lki_free(model->blocks);
    lki_free(model->trainable.params);
    lki_free(model->trainable.hashes);
    lki_free(model->frozen.params);
    lki_free(model->frozen.hashes);
    lki_free(model->states);
    lki_free(model->terms);
    lki_free(model);
}

void lk_model_checkpoint_begin(lk_model *model)
{
    model->segment = ++model->segment_count;
}

void lk_model_checkpoint_end(lk_model *model)
{
    model->segment = 0;
}

void lk_model_freeze(lk_model *model, bool frozen)
{
    model->freezing = frozen;
}

/* ---- Adding a block ---------------------------------------------------------------------- */

static lk_status entry_inputs(lki_block_entry *entry, const lk_model *model, const lk_value *inputs,
                              uint32_t count)
{
    if (count == 0 || count > LK_BLOCK_INPUTS_MAX || (entry->type->loss && count != 1))
        return lk_fail(LK_EINVAL, "%s: it cannot read %u values", entry->label, count);
    entry->block.input_count = count;
    for (uint32_t i = 0; i < count; i++) {
        if (inputs[i] > model->block_count)
            return lk_fail(LK_EINVAL, "%s: it reads value %u, which no earlier block puts out",
                           entry->label, inputs[i]);
        bool ids = inputs[i] == 0 && model->tokens;
        if (ids != (entry->type->tokens && i == 0))
            return lk_fail(LK_EINVAL, "%s: input %u is %s; %s", entry->label, i,
                           ids ? "token ids" : "not token ids",
                           ids ? "put an embedding in between"
                               : "an embedding reads the model's input");
        entry->inputs[i]  = inputs[i];
        entry->block.x[i] = inputs[i] == 0 ? model->input : model->blocks[inputs[i] - 1].block.y;
    }
    return LK_OK;
}

static lk_status entry_init(lki_block_entry *entry, const lk_model *model,
                            const lk_block_type *type, const char *name, const void *options,
                            size_t options_bytes)
{
    if (strlen(name) >= LK_NAME_MAX)
        return lk_fail(LK_EINVAL, "a block's name has at most %d characters", LK_NAME_MAX - 1);
    entry->type        = type;
    entry->segment     = model->segment;
    entry->frozen      = model->freezing;
    entry->block.layer = (uint32_t)model->block_count;
    entry->block.y     = (lk_shape){ .rank = UINT32_MAX }; /* until planned */
    memcpy(entry->name, name, strlen(name) + 1);
    if (name[0] != '\0')
        (void)snprintf(entry->label, sizeof entry->label, "%.32s block \"%s\"", type->name, name);
    else
        (void)snprintf(entry->label, sizeof entry->label, "%.32s block %u", type->name,
                       entry->block.layer);
    if (model->block_count > 0 && model->blocks[model->block_count - 1].type->loss)
        return lk_fail(LK_EINVAL, "%s: %s is the model's last; add blocks before it", entry->label,
                       model->blocks[model->block_count - 1].label);
    if (options_bytes > 0) {
        LK_TRY(lki_alloc(&entry->options, options_bytes, "a block's options"));
        memcpy(entry->options, options, options_bytes);
    }
    entry->options_bytes = options_bytes;
    entry->block.options = entry->options;
    return LK_OK;
}

static lk_status plan_entry(lki_block_entry *entry, lk_model *model)
{
    lk_plan  plan = { .model = model, .entry = entry };
    uint64_t count;

    LK_TRY(entry->type->plan(&plan));
    if (entry->block.y.rank == UINT32_MAX)
        return lk_plan_fail(&plan, "its plan declares no output; call lk_plan_output()");
    if (!lki_shape_elements(entry->block.y, &count))
        return lk_plan_fail(&plan, "its output %s has no elements, or more than %llu; change its "
                            "width or the sample's shape", lki_shape_describe(entry->block.y).text,
                            (unsigned long long)LKI_ELEMENTS_MAX);
    return LK_OK;
}

/* Reserves memory for all arrays that appending extends, so that appending cannot fail halfway. */
static lk_status reserve_entry(lk_model *model, uint32_t terms)
{
    LK_TRY(lki_reserve((void **)&model->blocks, &model->block_capacity, model->block_count,
                       sizeof *model->blocks, "the model's blocks"));
    while (model->term_capacity < model->term_count + terms)
        LK_TRY(lki_reserve((void **)&model->terms, &model->term_capacity, model->term_capacity,
                           sizeof *model->terms, "the model's gradient terms"));
    return LK_OK;
}

static bool takes_bf16(const lk_block_type *type, uint32_t param)
{
    return type->bf16 && (type->bf16_params >> param & 1) != 0;
}

static void append_entry(lk_model *model, const lki_block_entry *entry)
{
    lk_param *params = params_of(model, entry->frozen)->params;
    uint32_t  count  = lki_grad_count(entry);
    if (count > 0) {
        memmove(model->terms + count, model->terms, model->term_count * sizeof *model->terms);
        for (uint32_t i = 0; i < count; i++)
            model->terms[i] =
                (lk_grad_term){ entry->params[i], entry->uses[i], entry->block.layer };
    }
    for (uint32_t i = 0; i < entry->block.param_count; i++)
        params[entry->params[i]].bf16 &= takes_bf16(entry->type, i);
    model->term_count += count;
    model->blocks[model->block_count++] = *entry;
    if (entry->segment != 0)
        model->last_segment = entry->segment;
}

lk_status lk_model_add(lk_value *out, lk_model *model, const lk_block_type *type, const char *name,
                       const void *options, size_t options_bytes, const lk_value *inputs,
                       uint32_t input_count)
{
    lki_block_entry entry       = { 0 };
    lki_param_list *list        = params_of(model, model->freezing);
    size_t          param_count = list->count, state_count = model->state_count;
    size_t          elements    = list->elements, bytes = model->constant_bytes;

    LK_TRY(lki_check_given("lk_model_add", "name", name, 1));
    LK_TRY(lki_check_given("lk_model_add", "options", options, options_bytes));
    LK_TRY(lki_check_given("lk_model_add", "inputs", inputs, input_count));
    lk_status st = entry_init(&entry, model, type, name, options, options_bytes);
    if (st == LK_OK)
        st = entry_inputs(&entry, model, inputs, input_count);
    if (st == LK_OK)
        st = plan_entry(&entry, model);
    if (st == LK_OK)
        st = reserve_entry(model, entry.block.param_count);
    if (st == LK_OK) {
        append_entry(model, &entry);
        *out = (lk_value)model->block_count;
        return LK_OK;
    }
    /* remove the block's declarations, and its uses of earlier blocks' parameters */
    for (uint32_t i = 0; i < entry.block.param_count; i++)
        list->params[entry.params[i]].uses--;
    list->count           = param_count;
    list->elements        = elements;
    model->state_count    = state_count;
    model->constant_bytes = bytes;
    lki_free(entry.options);
    lki_free(entry.constants);
    return st;
}

/* ---- Reading a model --------------------------------------------------------------------- */

const char *lk_model_name(const lk_model *model)
{
    return model->name;
}

const lk_param *lk_model_params(const lk_model *model, uint32_t *count)
{
    *count = (uint32_t)model->trainable.count;
    return model->trainable.params;
}

const lk_param *lk_model_frozen(const lk_model *model, uint32_t *count)
{
    *count = (uint32_t)model->frozen.count;
    return model->frozen.params;
}

const lk_state *lk_model_states(const lk_model *model, uint32_t *count)
{
    *count = (uint32_t)model->state_count;
    return model->states;
}

const lk_grad_term *lk_model_terms(const lk_model *model, uint32_t *count)
{
    *count = (uint32_t)model->term_count;
    return model->terms;
}

uint32_t lk_model_block_count(const lk_model *model)
{
    return (uint32_t)model->block_count;
}

uint32_t lk_model_loss_rows(const lk_model *model)
{
    if (model->block_count == 0 || !model->blocks[model->block_count - 1].type->loss)
        return 0;
    return (uint32_t)lk_shape_count(model->blocks[model->block_count - 1].block.y);
}

size_t lk_model_param_elements(const lk_model *model)
{
    return model->trainable.elements;
}

bool lk_model_lock_step(const lk_model *model)
{
    for (size_t b = 0; b < model->block_count; b++)
        if (model->blocks[b].type->statistics != NULL)
            return true;
    return false;
}
