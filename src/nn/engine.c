/* engine.c -- walks a model's blocks forward and backward for a set of contexts.
 *
 * Each context (a virtual worker's micro-batch) has its own values, saved memory and gradients;
 * scratch memory is shared.  A block runs for all contexts before the next block does, so that its
 * parameters are fetched only once:
 *
 *      forward     for each block:            before_read, before_forward, every context,
 *                                             after_forward
 *      backward    for each block, reversed:  before_read, before_backward, every context and its
 *                                             grad_ready, after_backward
 *
 * Every checkpointed segment except the last runs forward again just before its backward pass.
 *
 * Contexts are independent, so the result of a context does not depend on the number of contexts.
 * A context without samples computes nothing and is ready at once.  Blocks with statistics are an
 * exception (statistics.h): all contexts contribute their rows before any context continues.
 *
 * A pass may have the samples of several virtual workers (parts.c).
 *
 * Memory: see layout.c.  It is allocated when the engine opens (open.c), and never later.
 */
#include "nn/engine.h"

#include <string.h>

#include "nn/widen.h"
#include "tensor/exec.h"
#include "tensor/ops.h"

/* ---- Addresses --------------------------------------------------------------------------- */

static void *at(const lk_engine *engine, uint32_t context, size_t offset)
{
    return engine->memory + context * engine->layout.context_bytes + offset;
}

static void *value_of(const lk_engine *engine, uint32_t context, lk_value v)
{
    const lki_place *place = &engine->layout.places[v - 1];
    return place->spilled != 0 ? lki_spill_at(&engine->spill, place->spilled - 1, context)
                               : at(engine, context, place->value);
}

static void *gradient_of(const lk_engine *engine, uint32_t context, lk_value v)
{
    const lki_place *place = &engine->layout.places[v - 1];
    if (place->grad_in_value)
        return value_of(engine, context, v);
    return place->slot == LKI_NO_SLOT
               ? NULL
               : at(engine, context, engine->layout.slots[place->slot].offset);
}

const float *lk_engine_output(const lk_engine *engine, uint32_t context)
{
    const lk_model        *model = engine->model;
    const lki_block_entry *loss  = &model->blocks[model->block_count - 1];
    const void            *value = value_of(engine, context, loss->inputs[0]);
    lk_block               room;

    LK_ASSERT(context < engine->contexts);
    if (engine->layout.dtype == LK_F32)
        return value;
    const lk_block *block = lki_shortened(&room, &loss->block, engine->length);
    lki_convert(engine->exec, engine->micro_batch * lk_shape_count(block->x[0]),
                engine->layout.dtype, value, LK_F32, engine->wide);
    return (const float *)(const void *)engine->wide;
}

double lki_block_flops(const lki_block_entry *entry, const lki_place *place)
{
    if (entry->type->flops == NULL)
        return 0;
    lk_block_flops needs = entry->type->flops(&entry->block);
    double         sum   = needs.forward;
    if (place->wanted && lki_grad_count(entry) > 0)
        sum += needs.weights;
    if (place->wanted && place->dx[0])
        sum += needs.input;
    return sum;
}

double lk_engine_flops(const lk_engine *engine, uint32_t block)
{
    LK_ASSERT(block < engine->model->block_count);
    return lki_block_flops(&engine->model->blocks[block], &engine->layout.places[block]);
}

/* ---- One call ---------------------------------------------------------------------------- */

/* A call and the arrays to which it points. */
typedef struct {
    lk_block_call call;
    lk_block      block; /* replaces the model's block if the pass has fewer positions */
    lk_pack       pack;
    const float  *params[LK_BLOCK_PARAMS_MAX], *state[LK_BLOCK_PARAMS_MAX];
    const uint16_t *params_bf16[LK_BLOCK_PARAMS_MAX];
    float        *grads[LK_BLOCK_PARAMS_MAX], *sums[LK_BLOCK_PARAMS_MAX];
} frame;

static void frame_init(frame *f, const lk_engine *engine, const lk_walk *walk, const lk_pass *pass,
                       uint32_t context, uint32_t b, bool backward)
{
    const lki_block_entry *entry = &engine->model->blocks[b];
    const lki_place       *place = &engine->layout.places[b];

    f->call = (lk_block_call){
        .block = lki_shortened(&f->block, &entry->block, pass->length), .exec = engine->exec,
        .first = pass->first, .cache = lki_cache_of(&engine->cache, b),
        .positions = engine->cache.positions, .training = walk->training,
        .samples = pass->samples, .seed = walk->seed, .step = walk->step,
        .first_slot = pass->first_slot, .dtype = engine->layout.dtype, .params = f->params,
        .params_bf16 = f->params_bf16, .state = f->state,
        .saved = at(engine, context, place->saved), .scratch = engine->scratch,
        .pack = lki_packs_of(&engine->packs, &f->pack, b, backward, walk->version),
    };
    for (uint32_t i = 0; i < entry->block.input_count; i++)
        f->call.x[i] =
            entry->inputs[i] == 0 ? pass->x : value_of(engine, context, entry->inputs[i]);
    lki_block_params(entry, walk, engine->frozen, backward, f->params, f->params_bf16);
    for (uint32_t i = 0; i < entry->block.state_count; i++)
        f->state[i] = walk->state != NULL ? walk->state[entry->states[i]] : NULL;
    if (entry->type->statistics != NULL && walk->training) {
        f->call.total          = lki_statistics_total(&engine->statistics, entry, false);
        f->call.total_backward = lki_statistics_total(&engine->statistics, entry, true);
    }
    if (!entry->type->loss) {
        f->call.y = value_of(engine, context, b + 1);
        return;
    }
    f->call.y       = walk->training ? gradient_of(engine, context, entry->inputs[0])
                                     : value_of(engine, context, entry->inputs[0]);
    f->call.x[0]    = f->call.y;
    f->call.targets = pass->targets;
    f->call.weights = pass->weights;
    f->call.loss    = engine->loss;
    f->call.loss_scale = walk->loss_scale != 0 ? walk->loss_scale : 1;
    f->call.hit     = engine->hits;
}

void lki_engine_run(const lk_engine *engine, const lki_block_entry *entry,
                    const lk_block_call *call)
{
    void (*run)(const lk_block_call *) =
        call->grads != NULL ? entry->type->backward : entry->type->forward;
    lki_widened wide;

    if (call->dtype == LK_F32) {
        run(call);
        return;
    }
    lki_widen_begin(&wide, entry, call, engine->wide);
    run(&wide.call);
    lki_widen_end(&wide);
}

/* Computes the row of statistics of a context before the block runs. */
static void run_row(const lk_engine *engine, const lki_block_entry *entry,
                    const lk_block_call *call, double *row)
{
    const lk_block_statistics *of   = entry->type->statistics;
    lki_widened                wide = { .call = *call };

    if (call->dtype != LK_F32)
        lki_widen_begin(&wide, entry, call, engine->wide);
    (call->grads != NULL ? of->backward_row : of->forward_row)(&wide.call, row);
}

/* Prepares gradients whose memory is undefined.  Block types that support overwriting are asked to
 * overwrite the gradients instead of adding to them.  For other types, and if there is no call, the
 * gradients are zeroed. */
static void begin_grads(const lk_engine *engine, const lk_pass *pass, uint32_t b,
                        lk_block_call *call)
{
    const lki_block_entry *entry = &engine->model->blocks[b];
    for (uint32_t i = 0; i < lki_grad_count(entry); i++) {
        uint32_t term  = engine->first_terms[b] + i;
        bool     empty = pass->empty != NULL && pass->empty[term];
        if (!empty && engine->part_count == 0)
            continue;
        if (empty)
            pass->empty[term] = false;
        if (call != NULL && entry->type->writes_grads)
            call->write[i] = true;
        else
            lki_fill(engine->exec, lk_shape_count(lki_block_param(engine->model, entry, i)->shape),
                     0.0f, pass->grads[term]);
    }
}

/* Runs a block forward for one context.  `again`: it is a recomputation, so the running statistics
 * already include this call. */
static void forward_call(const lk_engine *engine, const lk_walk *walk, lk_pass *pass,
                         uint32_t context, uint32_t b, bool again)
{
    const lki_block_entry *entry = &engine->model->blocks[b];
    frame                  f;

    if (entry->type->loss && pass->targets == NULL) {
        LK_ASSERT(!walk->training);
        return;
    }
    frame_init(&f, engine, walk, pass, context, b, false);
    if (walk->training && pass->state_sums != NULL && !again) {
        for (uint32_t i = 0; i < entry->block.state_count; i++)
            f.sums[i] = pass->state_sums[entry->states[i]];
        f.call.state_sums = f.sums;
    }
    if (entry->type->loss) {
        const void *logits = value_of(engine, context, entry->inputs[0]);
        memset(f.grads, 0, sizeof f.grads);
        for (uint32_t i = 0; walk->training && i < lki_grad_count(entry); i++)
            f.grads[i] = pass->grads[engine->first_terms[b] + i];
        f.call.forward_grads = f.grads;
        if (walk->training)
            begin_grads(engine, pass, b, &f.call);
        if (f.call.y != logits)
            memcpy(f.call.y, logits, pass->samples * lk_shape_count(f.call.block->x[0]) *
                                         lk_dtype_bytes(engine->layout.dtype));
        memset(engine->hits, 0, pass->samples * lk_shape_count(f.call.block->y));
    }
    lki_engine_run_parts(engine, b, &f.call);
    if (entry->type->loss)
        lki_engine_sum_rows(engine, pass);
}

static void backward_frame_init(frame *f, const lk_engine *engine, const lk_walk *walk,
                                const lk_pass *pass, uint32_t context, uint32_t b)
{
    const lki_block_entry *entry = &engine->model->blocks[b];
    const lki_place       *place = &engine->layout.places[b];

    frame_init(f, engine, walk, pass, context, b, true);
    if (!entry->type->loss)
        f->call.dy = gradient_of(engine, context, b + 1);
    for (uint32_t i = 0; i < entry->block.input_count; i++) {
        if (place->dx[i])
            f->call.dx[i] = gradient_of(engine, context, entry->inputs[i]);
        f->call.add[i] = place->add[i];
    }
    for (uint32_t i = 0; i < LK_BLOCK_PARAMS_MAX; i++)
        f->grads[i] = i < lki_grad_count(entry) ? pass->grads[engine->first_terms[b] + i] : NULL;
    f->call.grads      = f->grads;
    f->call.part_ends  = engine->part_ends;
    f->call.part_count = engine->part_count;
}

static void backward_call(const lk_engine *engine, const lk_walk *walk, const lk_pass *pass,
                          uint32_t context, uint32_t b)
{
    frame f;

    /* no block up to this one has parameters, so this gradient is not needed */
    if (!engine->layout.places[b].wanted)
        return;
    backward_frame_init(&f, engine, walk, pass, context, b);
    begin_grads(engine, pass, b, &f.call);
    lki_engine_run_parts(engine, b, &f.call);
}

/* Computes the rows of statistics of all contexts for a block, and merges the rows. */
static void make_statistics(const lk_engine *engine, const lk_walk *walk, const lk_pass *passes,
                            const lk_hooks *hooks, uint32_t count, uint32_t b, bool backward)
{
    const lki_block_entry *entry = &engine->model->blocks[b];
    uint32_t               width = lki_statistics_width(entry);

    if (width == 0 || !walk->training || (backward && !engine->layout.places[b].wanted))
        return;
    memset(engine->statistics.rows, 0, (size_t)count * width * sizeof(double));
    for (uint32_t c = 0; c < count; c++) {
        frame f;
        if (passes[c].samples == 0)
            continue;
        if (backward)
            backward_frame_init(&f, engine, walk, &passes[c], c, b);
        else
            frame_init(&f, engine, walk, &passes[c], c, b, false);
        run_row(engine, entry, &f.call, engine->statistics.rows + (size_t)c * width);
    }
    lki_statistics_merge(&engine->statistics, entry, hooks, count, backward);
}

/* ---- The walks --------------------------------------------------------------------------- */

static const lk_hooks no_hooks;

static void tell(void (*hook)(void *user, uint32_t block), const lk_hooks *hooks, uint32_t block)
{
    if (hook != NULL)
        hook(hooks->user, block);
}

static void tell_read(const lk_engine *engine, const lk_hooks *hooks, uint32_t b, bool backward)
{
    if (lki_block_reads(&engine->model->blocks[b], backward))
        tell(hooks->before_read, hooks, b);
}

static void tell_ready(const lk_engine *engine, const lk_hooks *hooks, uint32_t context, uint32_t b)
{
    uint32_t first = engine->first_terms[b], count = lki_grad_count(&engine->model->blocks[b]);
    if (hooks->grad_ready == NULL)
        return;
    for (uint32_t i = 0; i < count; i++)
        hooks->grad_ready(hooks->user, context, first + i);
}

static void check_passes(const lk_engine *engine, const lk_pass *passes, uint32_t count)
{
    LK_ASSERT(count <= engine->contexts);
    for (uint32_t c = 0; c < count; c++) {
        LK_ASSERT(passes[c].samples <= engine->micro_batch);
        LK_ASSERT(passes[c].length <= engine->positions);
        LK_ASSERT(passes[c].first == 0 || engine->cache.at != NULL);
        LK_ASSERT(engine->cache.at == NULL || passes[c].samples == 0 ||
                  (passes[c].length > 0 &&
                   passes[c].first + passes[c].length <= engine->cache.positions));
    }
}

static void forward_block(const lk_engine *engine, const lk_walk *walk, lk_pass *passes,
                          const lk_hooks *hooks, uint32_t count, uint32_t b, bool again)
{
    lki_track *track = lki_exec_track(engine->exec);
    uint64_t   begun = lki_trace_begin(track);

    if (!again) /* a recomputation uses the stored totals of forward instead */
        make_statistics(engine, walk, passes, hooks, count, b, false);
    for (uint32_t c = 0; c < count; c++)
        if (passes[c].samples > 0)
            forward_call(engine, walk, &passes[c], c, b, again);
    lki_trace_end(track, LKI_SPAN_BLOCK_FORWARD, b, begun);
}

/* Prepares the buffer of a value that may be in a file, before block `b` computes the value. */
static void begin_spilled(lk_engine *engine, uint32_t b)
{
    if (engine->layout.places[b].spilled != 0)
        lki_spill_make(&engine->spill, engine->layout.places[b].spilled - 1);
}

/* Allows the value to be written to the file, after its last reader in forward. */
static void end_spilled(lk_engine *engine, const lk_walk *walk, uint32_t b)
{
    if (walk->training && engine->layout.places[b].leaves != 0)
        lki_spill_leave(&engine->spill, engine->layout.places[b].leaves - 1);
}

/* Waits for the values in a file that block `b` reads, in backward or in a recomputation. */
static void need_spilled(lk_engine *engine, uint32_t b)
{
    const lki_block_entry *entry = &engine->model->blocks[b];
    for (uint32_t i = 0; i <= entry->block.input_count && engine->layout.spilled_count > 0; i++) {
        lk_value v       = i < entry->block.input_count ? entry->inputs[i] : b + 1;
        uint32_t spilled = v > 0 ? engine->layout.places[v - 1].spilled : 0;
        if (spilled != 0)
            lki_spill_need(&engine->spill, spilled - 1);
    }
}

void lk_engine_forward(lk_engine *engine, const lk_walk *walk, lk_pass *passes, uint32_t count)
{
    const lk_hooks *hooks = walk->hooks != NULL ? walk->hooks : &no_hooks;
    lki_track       *track  = lki_exec_track(engine->exec);
    uint64_t        begun = lki_trace_begin(track);

    check_passes(engine, passes, count);
    LK_ASSERT(engine->model->frozen.count == 0 || engine->frozen != NULL);
    LK_ASSERT(engine->cache.at == NULL || !walk->training);
    engine->length = count == 1 ? passes[0].length : 0;
    for (uint32_t b = 0; b < engine->model->block_count; b++) {
        tell_read(engine, hooks, b, false);
        tell(hooks->before_forward, hooks, b);
        begin_spilled(engine, b);
        forward_block(engine, walk, passes, hooks, count, b, false);
        end_spilled(engine, walk, b);
        tell(hooks->after_forward, hooks, b);
    }
    lki_trace_end(track, LKI_SPAN_FORWARD, 0, begun);
}

static void backward_block(const lk_engine *engine, const lk_walk *walk, const lk_pass *passes,
                           const lk_hooks *hooks, uint32_t count, uint32_t b)
{
    lki_track *track = lki_exec_track(engine->exec);
    uint64_t   first = lki_trace_begin(track);

    make_statistics(engine, walk, passes, hooks, count, b, true);
    for (uint32_t c = 0; c < count; c++) {
        uint64_t begun = c == 0 ? first : lki_trace_begin(track);
        if (passes[c].samples > 0)
            backward_call(engine, walk, &passes[c], c, b);
        else
            begin_grads(engine, &passes[c], b, NULL);
        lki_trace_end(track, LKI_SPAN_BLOCK_BACKWARD, b, begun);
        tell_ready(engine, hooks, c, b);
    }
}

/* Runs a checkpointed segment forward again if block `b` is its last block and another segment has
 * used the shared memory since.  This recomputes the values that the segment's backward pass
 * reads. */
static void forward_again(lk_engine *engine, const lk_walk *walk, lk_pass *passes, uint32_t count,
                          uint32_t b)
{
    const lk_hooks *hooks = walk->hooks != NULL ? walk->hooks : &no_hooks;
    uint32_t        first;

    if (!lki_model_again(engine->model, b, &first))
        return;
    for (uint32_t i = first; i <= b; i++) {
        tell_read(engine, hooks, i, false); /* in the order of lk_model_reads() */
        if (!engine->layout.places[i].again)
            continue;
        tell(hooks->before_forward, hooks, i);
        need_spilled(engine, i);
        forward_block(engine, walk, passes, hooks, count, i, true);
        tell(hooks->after_forward, hooks, i);
    }
}

void lk_engine_backward(lk_engine *engine, const lk_walk *walk, lk_pass *passes, uint32_t count)
{
    const lk_hooks *hooks = walk->hooks != NULL ? walk->hooks : &no_hooks;
    lki_track       *track  = lki_exec_track(engine->exec);
    uint64_t        begun = lki_trace_begin(track);

    check_passes(engine, passes, count);
    for (uint32_t b = (uint32_t)engine->model->block_count; b-- > 0;) {
        forward_again(engine, walk, passes, count, b);
        tell_read(engine, hooks, b, true);
        tell(hooks->before_backward, hooks, b);
        need_spilled(engine, b);
        backward_block(engine, walk, passes, hooks, count, b);
        if (engine->layout.places[b].spilled != 0)
            lki_spill_drop(&engine->spill, engine->layout.places[b].spilled - 1);
        tell(hooks->after_backward, hooks, b);
    }
    lki_trace_end(track, LKI_SPAN_BACKWARD, 0, begun);
}
