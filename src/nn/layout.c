/* layout.c -- the memory of a context, planned once.
 *
 * Values and saved memory are stored from forward to backward, one after another.  A block that can
 * work in place overwrites its input, if neither another block nor the backward pass of the input's
 * producer reads it.
 *
 * The values of a checkpointed segment that other blocks read are stored.  Its other values and its
 * saved memory are in an area that all segments share, and are recomputed before the segment's
 * backward pass.  A stored value of a segment is never overwritten, because the recomputation may
 * read it.  A block need not run again if its output is stored and it saves nothing.
 *
 * One value of each checkpointed segment may be in a file (spill.h).  Only the next segment may
 * read it, and it is in the file between that segment's forward and backward pass.
 *
 * A value's gradient is written in the backward pass of the value's last reader.  The passes of the
 * other readers add to it, and the pass of its producer reads it. (Blocks run in order, so the sum
 * of a value's gradients has a fixed order.) A block that works in place replaces its dy by its dx,
 * and the gradient of a residual sum is also that of its second input.  The gradient of the logits
 * overwrites the logits if the loss block is their only reader.  A value that depends on no
 * parameter, such as the model's input, has no gradient.
 *
 * Placement: gradients are in slots (lki_grad_slot).  Slots are placed from large to small, each at
 * the lowest offset where it overlaps no placed slot that is in use at the same time (greedy by
 * size; Pisarchyk and Lee 2020).
 *
 * Cost: quadratic in the number of blocks, once.
 */
#include "nn/layout.h"

#include <stdlib.h>

#include "base/memory.h"
#include "nn/spill.h"
#include "nn/widen.h"
#include "tensor/part_counter.h"

enum { ALIGNMENT = 64 };

/* A limit that exceeds any machine's memory.  It is small enough for sums and small products not to
 * overflow. */
#define BYTES_MAX ((size_t)1 << 46)

static lk_status too_large(const lki_block_entry *entry, const char *what, uint32_t micro_batch)
{
    return lk_fail(LK_ENOMEM,
                   "%s: its %s for micro-batches of %u samples is more than any machine has; "
                   "lower the micro-batch or the model's size",
                   entry->label, what, micro_batch);
}

/* Appends `bytes` to a part of the layout that ends at *end. */
static lk_status append(size_t *end, size_t bytes, size_t *offset)
{
    *offset = *end;
    if (*end > BYTES_MAX || bytes > BYTES_MAX - *end)
        return LK_ENOMEM;
    *end += lki_round_up(bytes, ALIGNMENT);
    return LK_OK;
}

/* ---- Fewer positions --------------------------------------------------------------------- */

const lk_block *lki_shortened(lk_block *room, const lk_block *block, uint32_t length)
{
    if (length == 0)
        return block;
    *room = *block;
    for (uint32_t i = 0; i < block->input_count; i++)
        room->x[i].dims[0] = length;
    room->y.dims[0] = length;
    return room;
}

/* Returns block `b` with the positions of the layout. */
static const lki_block_entry *entry_of(const lki_layout *layout, const lk_model *model, uint32_t b,
                                       lki_block_entry *room)
{
    const lki_block_entry *entry = &model->blocks[b];
    if (layout->positions == 0)
        return entry;
    *room = *entry;
    (void)lki_shortened(&room->block, &entry->block, layout->positions);
    return room;
}

/* ---- Values and saved memory ------------------------------------------------------------- */

static void count_readers(lki_layout *layout, const lk_model *model)
{
    for (size_t b = 0; b < model->block_count; b++) {
        const lki_block_entry *entry = &model->blocks[b];
        lki_place             *place = &layout->places[b];
        place->wanted                = lki_grad_count(entry) > 0;
        place->slot                  = LKI_NO_SLOT;
        place->kept                  = entry->segment == 0;
        for (uint32_t i = 0; i < entry->block.input_count; i++) {
            if (entry->inputs[i] == 0)
                continue;
            lki_place *input = &layout->places[entry->inputs[i] - 1];
            input->readers++;
            input->kept   = input->kept || model->blocks[entry->inputs[i] - 1].segment !=
                                               entry->segment;
            place->wanted = place->wanted || input->wanted;
        }
    }
}

/* Returns true if no segment after the next one reads value b + 1.  Sets *last to the last block
 * that reads it. */
static bool may_be_spilled(const lki_layout *layout, const lk_model *model, uint32_t b,
                           uint32_t *last)
{
    uint32_t segment = model->blocks[b].segment;
    bool     next    = segment != 0 && segment != model->last_segment && layout->places[b].kept;
    for (uint32_t r = b + 1; next && r < model->block_count; r++)
        for (uint32_t i = 0; i < model->blocks[r].block.input_count; i++) {
            if (model->blocks[r].inputs[i] != b + 1)
                continue;
            *last = r;
            next  = next && (model->blocks[r].segment == segment ||
                            model->blocks[r].segment == segment + 1);
        }
    return next;
}

/* Chooses values for the file.  If there are few of them, all remain in memory. */
static void choose_spilled(lki_layout *layout, const lk_model *model)
{
    uint32_t last = 0, of = 0;
    for (uint32_t b = 0; b < model->block_count; b++) {
        if (of == model->blocks[b].segment || !may_be_spilled(layout, model, b, &last))
            continue;
        of                          = model->blocks[b].segment;
        layout->places[b].spilled   = ++layout->spilled_count;
        layout->places[last].leaves = layout->spilled_count;
    }
    if (layout->spilled_count > LKI_SPILL_RING)
        return;
    layout->spilled_count = 0;
    for (uint32_t b = 0; b < model->block_count; b++)
        layout->places[b].spilled = layout->places[b].leaves = 0;
}

static lk_status check_model(const lki_layout *layout, const lk_model *model)
{
    if (model->block_count == 0 || !model->blocks[model->block_count - 1].type->loss)
        return lk_fail(LK_EINVAL, "model %s has no loss; end it with a block such as cross_entropy",
                       model->name);
    lk_value logits = model->blocks[model->block_count - 1].inputs[0];
    if (logits == 0 || !layout->places[logits - 1].wanted)
        return lk_fail(LK_EINVAL,
                       "model %s has no parameters before its loss; there is nothing to train",
                       model->name);
    for (size_t b = 0; b + 1 < model->block_count; b++)
        if (layout->places[b].readers == 0)
            return lk_fail(LK_EINVAL, "%s: nobody reads its output; leave it out or use it",
                           model->blocks[b].label);
    return LK_OK;
}

/* Returns true if a later block may overwrite value `v`: it has a single reader, and no backward
 * pass needs it. */
static bool may_overwrite(const lki_layout *layout, const lk_model *model, lk_value v)
{
    return v > 0 && layout->places[v - 1].readers == 1 && model->blocks[v - 1].output_unread;
}

/* Returns true if block `b` may write its output over its first input. */
static bool may_work_in_place(const lki_layout *layout, const lk_model *model, uint32_t b)
{
    const lki_block_entry *entry = &model->blocks[b];
    lk_value               x0    = entry->inputs[0];
    return entry->type->inplace && may_overwrite(layout, model, x0) &&
           layout->places[x0 - 1].value_bytes == layout->places[b].value_bytes &&
           layout->places[x0 - 1].kept == layout->places[b].kept &&
           model->blocks[x0 - 1].segment == entry->segment;
}

/* Returns the end of the stored values or, if not `kept`, of the current segment's other values.
 * The latter are placed from 0 on in each segment, and later moved after the stored values. */
static size_t *end_of(lki_layout *layout, bool kept)
{
    return kept ? &layout->context_bytes : &layout->segment;
}

static lk_status place_value(lki_layout *layout, const lk_model *model, uint32_t b,
                             uint32_t micro_batch)
{
    lki_block_entry        room;
    const lki_block_entry *entry = entry_of(layout, model, b, &room);
    lki_place             *place = &layout->places[b];
    size_t                 count = lk_shape_count(entry->block.y);

    if (__builtin_mul_overflow(count, (size_t)micro_batch * lk_dtype_bytes(layout->dtype),
                               &place->value_bytes) ||
        place->value_bytes > BYTES_MAX)
        return too_large(entry, "output", micro_batch);
    if (entry->type->loss) {
        layout->loss_rows  = count * micro_batch;
        place->value_bytes = 0;
        return LK_OK;
    }
    if (may_work_in_place(layout, model, b)) {
        place->value        = layout->places[entry->inputs[0] - 1].value;
        place->value_shared = true;
        return LK_OK;
    }
    if (place->spilled != 0) {
        layout->spilled_bytes = lki_max(layout->spilled_bytes,
                                        lki_round_up(place->value_bytes, ALIGNMENT));
        return LK_OK;
    }
    if (append(end_of(layout, place->kept), place->value_bytes, &place->value) != LK_OK)
        return too_large(entry, "output after those before it", micro_batch);
    return LK_OK;
}

/* Returns the bytes of a slot, in which the sums of a block's gradients and state of some parts
 * wait. */
static size_t slot_bytes(const lk_model *model, const lki_block_entry *entry)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < lki_grad_count(entry); i++)
        bytes += lki_round_up(sizeof(float) *
                                  lk_shape_count(lki_block_param(model, entry, i)->shape),
                              ALIGNMENT);
    for (uint32_t i = 0; i < entry->block.state_count; i++)
        bytes += lki_round_up(model->states[entry->states[i]].count * sizeof(float), ALIGNMENT);
    return bytes;
}

/* Asks a block for the bytes of its saved and of its scratch memory. */
static void ask_bytes(lki_layout *layout, const lk_model *model, const lk_exec *exec, uint32_t b,
                      uint32_t micro_batch, size_t *scratch)
{
    lki_block_entry        room;
    const lki_block_entry *entry   = entry_of(layout, model, b, &room);
    const lk_block_type   *type    = entry->type;
    lki_place             *place   = &layout->places[b];
    bool                   by_part = lki_runs_by_part(entry, layout->parts);
    lk_dtype               dtype   = lki_taken_dtype(entry, layout->dtype);

    if (type->buffers != NULL)
        type->buffers(&entry->block, exec, dtype, micro_batch / (by_part ? layout->parts : 1),
                      &place->saved_bytes, scratch);
    if (by_part) {
        place->saved_part  = lki_round_up(place->saved_bytes, ALIGNMENT);
        place->saved_bytes = place->saved_part * layout->parts;
        layout->slot_bytes = lki_max(layout->slot_bytes, slot_bytes(model, entry));
    } else if (layout->parts > 1 && type->part_scratch != NULL) {
        *scratch = lki_max(*scratch, type->part_scratch(&entry->block, exec, dtype, micro_batch,
                                                        layout->parts));
    }
}

static lk_status place_saved(lki_layout *layout, const lk_model *model, const lk_exec *exec,
                             uint32_t b, uint32_t micro_batch)
{
    const lki_block_entry *entry   = &model->blocks[b];
    lki_place             *place   = &layout->places[b];
    size_t                 scratch = 0;

    ask_bytes(layout, model, exec, b, micro_batch, &scratch);
    if (scratch > BYTES_MAX)
        return too_large(entry, "scratch memory", micro_batch);
    layout->scratch_bytes = lki_max(layout->scratch_bytes, scratch);
    if (append(end_of(layout, entry->segment == 0), place->saved_bytes, &place->saved) != LK_OK)
        return too_large(entry, "saved memory", micro_batch);
    place->again = entry->segment != 0 && (!place->kept || place->saved_bytes > 0);
    return LK_OK;
}

static void place_copies(lki_layout *layout, const lk_model *model, uint32_t b,
                         uint32_t micro_batch)
{
    lki_block_entry        room;
    const lki_block_entry *entry = entry_of(layout, model, b, &room);
    if (layout->dtype == LK_F32)
        return;
    layout->wide_bytes =
        lki_max(layout->wide_bytes, lki_widen_bytes(entry, layout->dtype, micro_batch));
    if (entry->type->loss) /* lk_engine_output() needs memory for a widened copy of the logits */
        layout->wide_bytes =
            lki_max(layout->wide_bytes,
                    micro_batch * lk_shape_count(entry->block.x[0]) * sizeof(float));
}

static lk_status place_forward(lki_layout *layout, const lk_model *model, const lk_exec *exec,
                               uint32_t micro_batch)
{
    for (uint32_t b = 0; b < model->block_count; b++) {
        if (b == 0 || model->blocks[b].segment != model->blocks[b - 1].segment)
            layout->segment = 0;
        LK_TRY(place_value(layout, model, b, micro_batch));
        LK_TRY(place_saved(layout, model, exec, b, micro_batch));
        place_copies(layout, model, b, micro_batch);
        layout->segment_bytes = lki_max(layout->segment_bytes, layout->segment);
    }
    layout->segment = layout->context_bytes;
    for (uint32_t b = 0; b < model->block_count; b++) {
        lki_place *place = &layout->places[b];
        place->value += place->kept ? 0 : layout->segment;
        place->saved += model->blocks[b].segment == 0 ? 0 : layout->segment;
    }
    layout->context_bytes += layout->segment_bytes;
    return LK_OK;
}

/* ---- Gradients --------------------------------------------------------------------------- */

static uint32_t new_slot(lki_layout *layout, size_t bytes, uint32_t from)
{
    layout->slots[layout->slot_count] = (lki_grad_slot){ .bytes = bytes, .from = from, .to = from };
    return layout->slot_count++;
}

/* Plans the gradient of the loss block's input: in place or, if other blocks still need the value,
 * in a gradient slot. */
static void plan_loss_gradient(lki_layout *layout, const lk_model *model, uint32_t b)
{
    lk_value   v     = model->blocks[b].inputs[0];
    lki_place *input = &layout->places[v - 1];

    layout->places[b].dx[0] = true;
    input->grad_in_value    = may_overwrite(layout, model, v);
    if (!input->grad_in_value)
        input->slot = new_slot(layout, input->value_bytes, b);
}

/* Returns true if block `b` may write dx[i] over its dy.  A block that works in place may write
 * dx[0] there.  A block that adds its second input to the result may write dx[1] there. */
static bool may_reuse_dy(const lki_layout *layout, const lki_block_entry *entry, uint32_t b,
                         uint32_t i)
{
    lk_value v     = entry->inputs[i];
    bool     keeps = (i == 0 && entry->type->inplace) ||
                     (i == 1 && entry->type->residual && !entry->type->inplace);
    if (!keeps || layout->places[b].slot == LKI_NO_SLOT ||
        layout->places[v - 1].value_bytes != layout->places[b].value_bytes)
        return false;
    for (uint32_t k = 0; k < entry->block.input_count; k++)
        if (k != i && entry->inputs[k] == v)
            return false;
    return true;
}

/* Visits blocks from last to first.  The first reader of a value opens the slot and writes the
 * gradient, other readers add to it, and the producer closes the slot. */
static void plan_gradients(lki_layout *layout, const lk_model *model)
{
    for (uint32_t b = (uint32_t)model->block_count; b-- > 0;) {
        const lki_block_entry *entry = &model->blocks[b];
        lki_place             *place = &layout->places[b];
        if (entry->type->loss) {
            plan_loss_gradient(layout, model, b);
            continue;
        }
        for (uint32_t i = 0; place->wanted && i < entry->block.input_count; i++) {
            lki_place *input = entry->inputs[i] > 0 ? &layout->places[entry->inputs[i] - 1] : NULL;
            if (input == NULL || !input->wanted)
                continue;
            place->dx[i]  = true;
            place->add[i] = input->slot != LKI_NO_SLOT;
            if (input->slot == LKI_NO_SLOT)
                input->slot = may_reuse_dy(layout, entry, b, i)
                                  ? place->slot
                                  : new_slot(layout, input->value_bytes, b);
        }
        if (place->slot != LKI_NO_SLOT)
            layout->slots[place->slot].to = b;
    }
}

/* ---- Placing slots ----------------------------------------------------------------------- */

static int larger_first(const void *a, const void *b)
{
    const lki_grad_slot *x = *(lki_grad_slot *const *)a, *y = *(lki_grad_slot *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->from > y->from ? -1 : x->from < y->from;
}

static bool alive_together(const lki_grad_slot *a, const lki_grad_slot *b)
{
    return a->from >= b->to && b->from >= a->to;
}

/* Finds the lowest offset at which `slot` overlaps no placed slot that is in use at the same time.
 * The search starts at 0 and moves past any slot in the way.  It ends because offsets only grow. */
static size_t first_fit(lki_grad_slot *const *placed, uint32_t count, const lki_grad_slot *slot)
{
    size_t offset = 0;
    for (uint32_t i = 0; i < count;) {
        const lki_grad_slot *other = placed[i];
        if (alive_together(other, slot) && offset < other->offset + other->bytes &&
            other->offset < offset + slot->bytes) {
            offset = lki_round_up(other->offset + other->bytes, ALIGNMENT);
            i      = 0;
        } else {
            i++;
        }
    }
    return offset;
}

static lk_status place_gradients(lki_layout *layout)
{
    lki_grad_slot **order;
    LK_TRY(LKI_NEW(&order, layout->slot_count, "the layout of gradients"));
    for (uint32_t i = 0; i < layout->slot_count; i++)
        order[i] = &layout->slots[i];
    qsort(order, layout->slot_count, sizeof *order, larger_first);
    layout->grads = layout->context_bytes;
    for (uint32_t i = 0; i < layout->slot_count; i++) {
        order[i]->offset    = first_fit(order, i, order[i]);
        layout->grads_bytes = lki_max(layout->grads_bytes, order[i]->offset + order[i]->bytes);
    }
    for (uint32_t i = 0; i < layout->slot_count; i++)
        layout->slots[i].offset += layout->grads;
    lki_free(order);
    return LK_OK;
}

/* ---- Opening ----------------------------------------------------------------------------- */

static lk_status lay_out(lki_layout *layout, const lk_model *model, const lk_exec *exec,
                         uint32_t micro_batch, bool files)
{
    LK_TRY(LKI_NEW(&layout->places, model->block_count, "the layout of values"));
    LK_TRY(LKI_NEW(&layout->slots, model->block_count + 1, "the layout of gradients"));
    count_readers(layout, model);
    LK_TRY(check_model(layout, model));
    if (files)
        choose_spilled(layout, model);
    size_t input;
    if (__builtin_mul_overflow(lk_shape_count(model->input), (size_t)micro_batch * sizeof(float),
                               &input) ||
        input > BYTES_MAX)
        return lk_fail(LK_ENOMEM,
                       "model %s: the input of a micro-batch of %u samples is more than any "
                       "machine has; lower the micro-batch",
                       model->name, micro_batch);
    LK_TRY(place_forward(layout, model, exec, micro_batch));
    plan_gradients(layout, model);
    LK_TRY(place_gradients(layout));
    layout->context_bytes = lki_round_up(layout->context_bytes + layout->grads_bytes, ALIGNMENT);
    return LK_OK;
}

static lk_status init(lki_layout *layout, const lk_model *model, const lk_exec *exec,
                      uint32_t micro_batch, bool files)
{
    lk_status st = lay_out(layout, model, exec, micro_batch, files);
    layout->parts_bytes = lki_part_slots(layout->parts) * layout->slot_bytes;
    if (st != LK_OK)
        lki_layout_deinit(layout);
    return st;
}

lk_status lki_layout_init(lki_layout *layout, const lk_model *model, const lk_exec *exec,
                          lk_dtype dtype, uint32_t micro_batch, uint32_t parts, bool files)
{
    *layout = (lki_layout){ .dtype = dtype, .parts = parts };
    return init(layout, model, exec, micro_batch, files);
}

lk_status lki_layout_init_short(lki_layout *layout, const lk_model *model, const lk_exec *exec,
                                lk_dtype dtype, uint32_t samples, uint32_t positions)
{
    *layout = (lki_layout){ .dtype = dtype, .parts = 1, .positions = positions };
    return init(layout, model, exec, samples, false);
}

void lki_layout_deinit(lki_layout *layout)
{
    lki_free(layout->places);
    lki_free(layout->slots);
    *layout = (lki_layout){ 0 };
}
