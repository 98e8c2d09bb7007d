/* step_model.c -- fills in the inputs of a predicted step for a configuration.
 *
 * Forward and backward times are sums over the model's blocks.  The time of a block is either its
 * operations over a given rate, or its work of five kinds (predict.h) times the rates that probe.c
 * has measured for blocks of its type in small models.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "nn/spill.h"
#include "plan/predict.h"
#include "train/config.h"

#define TINY 1e-300 /* lower bound of times used as divisors */

enum { MANY = 1 << 20 }; /* elements; a multiple of the block length of quantised types */

/* ---- The work of a model ----------------------------------------------------------------- */

static double elements_of(lk_shape shape)
{
    return (double)lk_shape_count(shape);
}

/* Returns the elements per sample of a block's intermediate values. */
static double inner_of(const lki_block_entry *entry)
{
    const lk_block *block = &entry->block;
    lk_shape        x = block->x[0], y = block->y;
    double          forward = entry->type->flops != NULL ? entry->type->flops(block).forward : 0;

    if (entry->type == &lk_block_attention) {
        const lk_attention_options *options = block->options;
        return forward * (double)options->heads / 4 / (double)y.dims[y.rank - 1];
    }
    if (entry->type == &lk_block_conv)
        return forward / 2 / (double)y.dims[y.rank - 1];
    if (entry->type == &lk_block_linear_cross_entropy)
        return forward / 2 / (double)x.dims[x.rank - 1];
    return 0;
}

lki_work lki_block_work(const lk_model *model, const lki_place *places, uint32_t block,
                        uint32_t samples)
{
    const lki_block_entry *entry  = &model->blocks[block];
    double                 values = entry->type->loss ? 0 : elements_of(entry->block.y);
    lki_work               work   = { { [LKI_WORK_CALL] = 1 } };

    for (uint32_t i = 0; i < entry->block.input_count; i++)
        values += elements_of(entry->block.x[i]);
    work.amount[LKI_WORK_FLOPS]  = samples * lki_block_flops(entry, &places[block]);
    work.amount[LKI_WORK_VALUES] = samples * values;
    work.amount[LKI_WORK_INNER]  = samples * inner_of(entry);
    for (uint32_t i = 0; i < entry->block.param_count; i++)
        work.amount[LKI_WORK_PARAMETERS] += elements_of(lki_block_param(model, entry, i)->shape);
    return work;
}

/* ---- The model of a step ----------------------------------------------------------------- */

typedef struct {
    const lk_train_config *config;
    const lk_model        *model;
    const lki_place       *places;
    const lk_rates        *rates;
    const lk_calibration  *measured;
} step_source;

static const lki_type_rates *find_type(const lk_calibration *c, const char *name)
{
    for (uint32_t t = 0; c != NULL && t < c->type_count; t++)
        if (strcmp(c->types[t].name, name) == 0)
            return &c->types[t];
    return NULL;
}

/* Returns the seconds of one call of a block, either measured or computed from its operations, a
 * third of which are in forward.  A block that is recomputed before backward costs one more forward
 * call. */
static lk_step_piece time_block(const step_source *from, uint32_t b, double *flops)
{
    const lki_block_entry *entry = &from->model->blocks[b];
    lki_work work = lki_block_work(from->model, from->places, b, from->config->micro_batch);
    const lki_type_rates *type    = find_type(from->measured, entry->type->name);
    double                seconds = 0, share = 1.0 / 3;

    *flops += work.amount[LKI_WORK_FLOPS];
    if (type != NULL) {
        share = type->forward;
        for (int k = 0; k < LKI_WORK_KINDS; k++)
            seconds += type->seconds[k] * work.amount[k];
    } else if (from->rates->flops > 0)
        seconds = work.amount[LKI_WORK_FLOPS] / from->rates->flops;
    return (lk_step_piece){ .forward  = seconds * share,
                            .backward = from->places[b].again ? seconds : seconds * (1 - share) };
}

double lki_update_seconds(const lk_calibration *c, double elements, double gradients)
{
    uint32_t i = 0;
    while (i + 2 < c->size_count && elements > c->elements[i + 1])
        i++;
    double slope = (c->update[i + 1] - c->update[i]) / (c->elements[i + 1] - c->elements[i]);
    double line  = c->update[i] + slope * (elements - c->elements[i]);
    double least = c->update[0] * fmin(1, elements / c->elements[0]);
    return fmax(line, least) + c->again * fmax(0, gradients - elements);
}

/* Returns the seconds of an update, from the bytes that a worker moves per element.  A worker
 * clears its gradients and adds those of its other virtual workers.  Its share of the host's
 * elements is then summed over the workers, read for the norm, and updated. */
static double update_by_rate(const step_source *from, double elements, uint32_t workers)
{
    const lk_train_config *c      = from->config;
    uint32_t               rounds = (c->virtual_workers + c->workers - 1) / c->workers;
    double                 own    = rounds + 3 * (rounds - 1);
    double                 states = lk_optimizer_state_count(&c->optimizer);
    double                 shared = (workers + 5 + 2 * states) / workers;
    if (!(from->rates->memory_bandwidth > 0))
        return 0;
    return sizeof(float) * elements * (own + shared) / from->rates->memory_bandwidth;
}

/* Returns the number of hosts that share one copy of the model; 0 = all. */
static uint32_t group_hosts(const lk_train_config *c)
{
    if (c->strategy == NULL || strcmp(c->strategy, "hybrid") != 0)
        return 0;
    return c->shard_hosts > 0 ? c->shard_hosts : 1;
}

static double gradient_elements(const lk_model *model)
{
    double sum = 0;
    for (size_t t = 0; t < model->term_count; t++)
        sum += elements_of(model->trainable.params[model->terms[t].param].shape);
    return sum;
}

/* Returns the bytes of files that an update reads and writes.  lamb processes optimizer state
 * twice.  lars and lamb read parameters once more for their norms. */
static double update_file_bytes(const lk_train_config *c, double elements)
{
    bool   lamb = c->optimizer.kind == LK_LAMB, lars = c->optimizer.kind == LK_LARS;
    double states = lki_in_files(c, LK_OFFLOADED_STATES)
                        ? lk_optimizer_state_count(&c->optimizer) * (lamb ? 4 : 2)
                        : 0;
    double params = lki_in_files(c, LK_OFFLOADED_PARAMETERS) ? 2 + lamb + (lamb || lars) : 0;
    return (states + params) * sizeof(float) * elements;
}

/* Returns the bytes of parameter files that one pass reads. */
static double pass_file_bytes(const lk_train_config *c, double elements)
{
    return lki_in_files(c, LK_OFFLOADED_PARAMETERS) ? sizeof(float) * elements : 0;
}

/* Returns the bytes of all parameters in the type in which hosts exchange them. */
static double parameter_bytes(const lk_train_config *c, const lk_model *model)
{
    const bool   quantised = c->gather_dtype == LK_I8 && lki_stage_of(c->strategy) == 3;
    const bool   narrow    = lki_gather_dtype(c) == LK_BF16;
    const double width     = (double)lk_rounded_bytes(quantised ? LK_I8 : LK_F32, MANY) / MANY;
    double       bytes     = 0;
    for (size_t p = 0; p < model->trainable.count; p++)
        bytes += (narrow && model->trainable.params[p].bf16 ? sizeof(uint16_t) : width) *
                 elements_of(model->trainable.params[p].shape);
    return bytes;
}

/* Sets the seconds of forward and backward, and the fraction of these seconds in each piece.
 * Pieces run from the last block to the first.  Each piece ends at the block where the previous
 * piece begins. */
static void fill_times(lk_step_model *out, const lki_grad_piece *pieces, const step_source *from,
                       double *flops)
{
    const lk_model *model = from->model;
    size_t          b     = model->block_count;
    for (uint32_t i = 0; i <= out->piece_count; i++) {
        uint32_t      first = i < out->piece_count ? model->terms[pieces[i].term].block : 0;
        lk_step_piece sum   = { 0 };
        while (b > first) {
            lk_step_piece block = time_block(from, (uint32_t)--b, flops);
            sum.forward += block.forward;
            sum.backward += block.backward;
        }
        out->forward += sum.forward;
        out->backward += sum.backward;
        if (i < out->piece_count) {
            out->pieces[i].forward  = sum.forward;
            out->pieces[i].backward = sum.backward;
        }
    }
    for (uint32_t i = 0; i < out->piece_count; i++) {
        out->pieces[i].forward /= fmax(out->forward, TINY);
        out->pieces[i].backward /= fmax(out->backward, TINY);
    }
}

static lk_status fill_pieces(lk_step_model *out, double *flops, const step_source *from)
{
    lki_grad_piece *pieces   = NULL;
    double          elements = 0, dealt = 0;
    lk_status       status = lki_pieces_of(from->config, from->model, out->hosts, &pieces,
                                           &out->piece_count);
    if (status == LK_OK)
        status = LKI_NEW(&out->pieces, out->piece_count, "pieces of gradients");
    for (uint32_t i = 0; status == LK_OK && i < out->piece_count; i++) {
        elements += (double)pieces[i].elements;
        dealt += (double)pieces[i].dealt;
    }
    for (uint32_t i = 0; status == LK_OK && i < out->piece_count; i++) {
        out->pieces[i] = (lk_step_piece){ .buckets    = (double)pieces[i].buckets,
                                          .gradients  = (double)pieces[i].elements / elements,
                                          .parameters = (double)pieces[i].dealt / dealt };
        memcpy(out->pieces[i].gathers, pieces[i].gathers, sizeof pieces[i].gathers);
    }
    if (status == LK_OK)
        fill_times(out, pieces, from, flops);
    lki_free(pieces);
    return status;
}

static lk_status fill_model(lk_step_model *out, double *flops, const step_source *from,
                            uint32_t hosts)
{
    const lk_train_config *c        = from->config;
    double                 elements = (double)lk_model_param_elements(from->model), sum = 0;
    uint32_t               here = (c->workers + hosts - 1) / hosts;
    double width  = (double)lk_rounded_bytes(c->comm_dtype, MANY) / MANY; /* bytes per element */
    double bucket = c->bucket_bytes > 0 ? (double)c->bucket_bytes : LKI_BUCKET_BYTES;

    *out = (lk_step_model){
        .workers         = c->workers,
        .hosts           = hosts,
        .virtual_workers = c->virtual_workers,
        .micro_count     = c->global_batch / c->virtual_workers / c->micro_batch,
        .stage           = lki_stage_of(c->strategy),
        .shard_hosts     = group_hosts(c),
        .buddies         = c->buddies && (group_hosts(c) == 0 || group_hosts(c) == hosts),
        .linear          = c->grad_algorithm == LK_TREE_LINEAR,
        .gradient_bytes  = width * gradient_elements(from->model),
        .parameter_bytes = parameter_bytes(c, from->model),
        .bucket_bytes    = width / sizeof(float) * bucket,
        .bandwidth       = from->rates->bandwidth,
        .latency         = from->rates->latency,
        .file_bytes      = update_file_bytes(c, elements),
        .pass_file_bytes = pass_file_bytes(c, elements),
        .file_bandwidth  = from->rates->file_bandwidth,
    };
    double held = from->measured != NULL ? from->measured->held : 1;
    LK_TRY(fill_pieces(out, &sum, from));
    out->forward *= held * out->micro_count;
    out->backward *= held * out->micro_count;
    if (!(out->file_bandwidth > 0) && from->measured != NULL)
        out->file_bandwidth = from->measured->files;
    out->update = from->measured != NULL
                      ? lki_update_seconds(from->measured, elements, gradient_elements(from->model))
                      : update_by_rate(from, elements, here);
    if (flops != NULL)
        *flops = sum * out->micro_count * c->virtual_workers;
    return LK_OK;
}

/* Returns the bytes of offloaded activations of all workers that share one copy of the model.
 * Backward reads the bytes that forward writes. */
static double spilled_bytes(const lki_layout *layout, const lk_step_model *m)
{
    uint64_t each;
    double   here = ceil((double)m->workers / m->hosts);
    (void)lki_spill_bytes(layout->spilled_count, layout->spilled_bytes, 1, &each);
    return here * (m->stage == 0 ? 1 : lki_sharing_hosts(m)) * (double)each;
}

lk_status lki_model_step(lk_step_model *out, double *flops, const lk_train_config *c,
                         const lk_model *model, uint32_t hosts, const lk_rates *rates,
                         const lk_calibration *measured)
{
    step_source from   = { c, model, NULL, rates, measured };
    lk_exec    *exec   = NULL;
    lki_layout  layout = { 0 };
    LK_TRY(lk_exec_open(&exec, c->threads, c->isa));
    bool      files  = lki_in_files(c, LK_OFFLOADED_ACTIVATIONS);
    lk_status status = lki_layout_init(&layout, model, exec, c->precision, c->micro_batch, 1,
                                       files);
    from.places      = layout.places;
    if (status == LK_OK)
        status = fill_model(out, flops, &from, hosts);
    if (status == LK_OK)
        out->pass_file_bytes += spilled_bytes(&layout, out);
    lki_layout_deinit(&layout);
    lk_exec_free(exec);
    return status;
}

lk_status lk_train_model_step(lk_step_model *out, double *flops, lk_train_config *config,
                              uint32_t hosts, const lk_rates *rates, const lk_calibration *measured)
{
    lk_train_config mine;
    lk_model       *model = NULL;

    *out = (lk_step_model){ 0 };
    LK_TRY(lki_options_copy(&mine, sizeof mine, config, "lk_train_config"));
    lk_status status = lki_model_alone(&model, &mine, NULL);
    if (status == LK_OK && lki_replicates(&mine))
        status = lk_fail(LK_EINVAL, "with replicas (`exchange.local.steps` %llu) inner and outer "
                         "steps take different times; lockstep plan predicts both",
                         (unsigned long long)mine.exchange.local.steps);
    if (status == LK_OK)
        status = lki_model_step(out, flops, &mine, model, hosts, rates, measured);
    lki_options_return(config, &mine);
    if (status != LK_OK)
        lk_step_model_deinit(out);
    lk_model_free(model);
    return status;
}

void lk_step_model_deinit(lk_step_model *model)
{
    lki_free(model->pieces);
    model->pieces      = NULL;
    model->piece_count = 0;
}
