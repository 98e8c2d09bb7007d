/* reads.c -- the order in which a training pass runs blocks and reads their parameters. */
#include "nn/model.h"

bool lki_model_again(const lk_model *model, uint32_t last, uint32_t *first)
{
    uint32_t segment = model->blocks[last].segment;

    if (segment == 0 || segment == model->last_segment ||
        (last + 1 < model->block_count && model->blocks[last + 1].segment == segment))
        return false;
    *first = last;
    while (*first > 0 && model->blocks[*first - 1].segment == segment)
        --*first;
    return true;
}

bool lki_block_reads(const lki_block_entry *entry, bool backward)
{
    return lki_grad_count(entry) > 0 && !(backward && entry->type->params_unread);
}

void lki_block_params(const lki_block_entry *entry, const lk_walk *walk,
                      const float *const *frozen, bool backward, const float **params,
                      const uint16_t **params_bf16)
{
    bool reads = lki_block_reads(entry, backward);
    for (uint32_t i = 0; i < entry->block.param_count; i++) {
        uint32_t param = entry->params[i];
        if (entry->frozen) {
            params[i]      = frozen[param];
            params_bf16[i] = NULL;
            continue;
        }
        params[i]      = reads ? walk->params[param] : NULL;
        params_bf16[i] = reads && walk->params_bf16 != NULL ? walk->params_bf16[param] : NULL;
    }
}

static void add(const lk_model *model, uint32_t block, bool backward, uint32_t *out,
                uint32_t *count)
{
    if (!lki_block_reads(&model->blocks[block], backward))
        return;
    if (out != NULL)
        out[*count] = block;
    ++*count;
}

uint32_t lk_model_reads(const lk_model *model, uint32_t *out)
{
    uint32_t count = 0, first;

    for (uint32_t b = 0; b < model->block_count; b++)
        add(model, b, false, out, &count);
    for (uint32_t b = (uint32_t)model->block_count; b-- > 0;) {
        if (lki_model_again(model, b, &first))
            for (uint32_t i = first; i <= b; i++)
                add(model, i, false, out, &count);
        add(model, b, true, out, &count);
    }
    return count;
}
