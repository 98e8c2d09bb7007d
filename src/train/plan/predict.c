/* predict.c -- the time of a step, before it is made.
 *
 *      step = rounds x (forward + backward) + exposed communication + update + stall
 *
 * Forward and backward are sums over the model's blocks: of operations over a rate that is given,
 * or of work of five kinds (predict.h) times what blocks of that type have taken for it in other
 * models, a moment ago (probe.c).  Nothing here knows a machine.
 */
#include "train/plan/predict.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "nn/spill.h"
#include "parallel/virtual.h"
#include "train/session.h"

#define BUCKET_BYTES (25.0 * (1 << 20))

enum { MANY = 1 << 20 }; /* elements, a whole number of blocks that travel together */

/* ---- Communication ----------------------------------------------------------------------- */

/* Of the host that has the most. */
static uint32_t most_branches(const lk_step_model *m)
{
    uint64_t v = m->virtual_workers, n = m->workers, most = 0;
    for (uint64_t h = 0; h < m->hosts; h++) {
        uint64_t first = h * n / m->hosts, end = (h + 1) * n / m->hosts;
        uint32_t has = lki_virtual_branches(m->virtual_workers, (uint32_t)(first * v / n),
                                            (uint32_t)(end * v / n));
        most         = has > most ? has : most;
    }
    return (uint32_t)most;
}

typedef struct {
    double buckets, hops; /* hops: messages one after another, for each bucket */
} link_use;

static double seconds_of(const lk_step_model *m, const link_use *use, double times, double bytes)
{
    return use->buckets * use->hops * m->latency * times + bytes / m->bandwidth;
}

/* Of `busy` seconds of the link, those that are left when `window` seconds of computing are over.
 * Buckets become ready evenly: either the last one waits for its gradients, or all for each other.
 */
static double exposed_of(double busy, double window, double buckets)
{
    return fmax(busy / buckets, busy - window * (buckets - 1) / buckets);
}

/* Gradients travel in the backward pass, with ddp their sums as well.  Parameters are gathered
 * after the update, while nobody computes; or with zero3 before they are read, the first unit of a
 * forward pass while nobody does, every other one while the one before is computed with. */
static void add_communication(lk_step_prediction *out, const lk_step_model *m)
{
    double   bucket = m->bucket_bytes > 0 ? m->bucket_bytes : BUCKET_BYTES, h = m->hosts;
    double   part = (h - 1) / h, g = part * m->gradient_bytes;
    double   p = m->parameter_bytes > 0 ? part * m->parameter_bytes : g, rounds = out->rounds;
    double   k = m->shard_hosts > 0 ? m->shard_hosts : h; /* of h / k groups */
    link_use use      = { fmax(1, ceil(m->gradient_bytes / bucket)), ceil(log2(h)) };
    double   window   = m->backward / (m->micro_count > 0 ? m->micro_count : 1);
    double   backward = m->stage < 2 ? most_branches(m) : rounds; /* how often gradients travel */

    if (m->stage >= 2)
        window = rounds * m->backward;
    if (m->stage == 3) { /* of what a host keeps it makes a part, and gives that to its likes */
        g *= ((k - 1) / k + 2 * (h / k - 1) / h) / part;
        p *= (k - 1) / k / part;
    }
    double in_backward = seconds_of(m, &use, backward, backward * g), behind = 0;
    double sums        = m->stage == 0 || !m->buddies ? 0 : m->stage == 1 ? 1 : rounds;
    in_backward += seconds_of(m, &use, sums, sums * m->gradient_bytes / h);
    out->sent = backward * g + sums * m->gradient_bytes / h;
    if (m->stage == 0) {
        in_backward += seconds_of(m, &use, 1, g);
        out->sent += g;
    } else if (m->stage < 3) {
        behind = seconds_of(m, &use, 1, p);
        out->sent += p;
    } else {
        double passes = rounds * (m->micro_count > 0 ? m->micro_count : 1);
        double pass = seconds_of(m, &use, 1, p);
        in_backward += passes * pass;
        out->communication += passes * pass;
        out->exposed += passes * exposed_of(pass, rounds * m->forward / passes, use.buckets);
        out->sent += 2 * passes * p;
    }
    out->communication += in_backward + behind;
    out->exposed += exposed_of(in_backward, window, use.buckets) + behind;
}

/* Each host has files of its part.  An update hides as much of what it reads and writes as it
 * lasts; forward and backward passes that of the units that they read, but for the first. */
static void add_files(lk_step_prediction *out, const lk_step_model *m)
{
    double sharing = m->stage == 3 && m->shard_hosts > 0 ? m->shard_hosts : m->hosts;
    double parts   = m->stage == 0 ? 1 : sharing, rate = parts * m->file_bandwidth;
    double micros = m->micro_count > 0 ? m->micro_count : 1, turns = out->rounds * micros;
    double units  = fmax(1, ceil(m->parameter_bytes / fmax(1, m->bucket_bytes)));
    if (!(rate > 0))
        return;
    double update = m->file_bytes / rate, pass = m->pass_file_bytes / rate;
    out->files    = update + 2 * turns * pass;
    out->stalled  = fmax(0, update - m->update) +
                   turns * (exposed_of(pass, m->forward / micros, units) +
                            exposed_of(pass, m->backward / micros, units));
}

/* ---- A step ------------------------------------------------------------------------------ */

static lk_status check(const lk_step_model *m)
{
    if (m->workers == 0 || m->virtual_workers < m->workers)
        return lk_fail(LK_EINVAL, "%u virtual workers for %u workers: each worker has at least one",
                       m->virtual_workers, m->workers);
    if (m->hosts == 0 || m->hosts > m->workers)
        return lk_fail(LK_EINVAL, "%u hosts for %u workers: each has at least one", m->hosts,
                       m->workers);
    if (m->stage > 3)
        return lk_fail(LK_EINVAL, "there is no stage %u of ZeRO", m->stage);
    if (!(m->forward >= 0 && m->backward >= 0 && m->forward + m->backward > 0 && m->update >= 0 &&
          m->gradient_bytes >= 0 && m->parameter_bytes >= 0 && m->latency >= 0 &&
          m->file_bytes >= 0 && m->pass_file_bytes >= 0 && m->file_bandwidth >= 0))
        return lk_fail(LK_EINVAL, "a step's times and bytes are not negative, and computing takes "
                                  "some");
    if (m->hosts > 1 && !(m->bandwidth > 0))
        return lk_fail(LK_EINVAL, "what %u hosts send takes a bandwidth to be told", m->hosts);
    return LK_OK;
}

lk_status lk_step_predict(lk_step_prediction *out, const lk_step_model *model)
{
    *out = (lk_step_prediction){ 0 };
    LK_TRY(check(model));
    double share = (double)model->virtual_workers / model->workers;

    out->rounds  = (model->virtual_workers + model->workers - 1) / model->workers;
    out->balance = share / out->rounds;
    out->compute = out->rounds * (model->forward + model->backward);
    if (model->hosts > 1)
        add_communication(out, model);
    add_files(out, model);
    double after    = model->update + out->stalled;
    out->seconds    = out->compute + out->exposed + after;
    out->efficiency = (share * (model->forward + model->backward) + after) / out->seconds;
    return LK_OK;
}

/* ---- The work of a model ----------------------------------------------------------------- */

static double elements_of(lk_shape shape)
{
    return (double)lk_shape_count(shape);
}

/* Elements that a block makes for itself, a sample. */
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
        work.amount[LKI_WORK_PARAMETERS] += elements_of(model->params[entry->params[i]].shape);
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

/* Adds a call of a block: measured, or a third of its operations forward and two thirds backward.
 * What is computed again before backward costs forward once more. */
static void add_block(lk_step_model *out, const step_source *from, uint32_t b, double *flops)
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
    out->forward += seconds * share;
    out->backward += seconds * (1 - share);
    if (from->places[b].again)
        out->backward += seconds * share;
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

/* Bytes that a worker moves for each element of the model, over what it moves in a second: it
 * clears its gradients and adds neighbours, then its share of the host's elements is summed over
 * the workers, read for the norm and updated. */
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

uint32_t lki_stage_of(const char *strategy)
{
    if (strategy != NULL && strcmp(strategy, "hybrid") == 0)
        return 3;
    return strategy != NULL && strncmp(strategy, "zero", 4) == 0 ? (uint32_t)(strategy[4] - '0')
                                                                 : 0;
}

/* How many hosts have a model between them. */
static uint32_t sharing_hosts(const lk_train_config *c, uint32_t hosts)
{
    if (c->strategy == NULL || strcmp(c->strategy, "hybrid") != 0)
        return hosts;
    return c->shard_hosts > 0 ? c->shard_hosts : 1;
}

static double gradient_elements(const lk_model *model)
{
    double sum = 0;
    for (size_t t = 0; t < model->term_count; t++)
        sum += elements_of(model->params[model->terms[t].param].shape);
    return sum;
}

/* Bytes that an update reads and writes of the optimizer's state and of parameters in files; lamb
 * goes over them twice and writes states alone, and lars and lamb read parameters for their norms.
 */
static double update_file_bytes(const lk_train_config *c, double elements)
{
    bool   lamb   = c->optimizer.kind == LK_LAMB, lars = c->optimizer.kind == LK_LARS;
    double states = lki_in_files(c, LK_OFFLOADED_STATES)
                        ? lk_optimizer_state_count(&c->optimizer) * (lamb ? 4 : 2) : 0;
    double params = lki_in_files(c, LK_OFFLOADED_PARAMETERS) ? 2 + lamb + (lamb || lars) : 0;
    return (states + params) * sizeof(float) * elements;
}

/* Of parameters that a pass over the model reads by units. */
static double pass_file_bytes(const lk_train_config *c, double elements)
{
    return lki_in_files(c, LK_OFFLOADED_PARAMETERS) ? sizeof(float) * elements : 0;
}

/* Of all parameters, as hosts send them to each other. */
static double parameter_bytes(const lk_train_config *c, const lk_model *model)
{
    const bool   quantised = c->gather_dtype == LK_I8 && lki_stage_of(c->strategy) == 3;
    const bool   narrow    = lki_gather_dtype(c) == LK_BF16;
    const double width     = (double)lk_rounded_bytes(quantised ? LK_I8 : LK_F32, MANY) / MANY;
    double       bytes     = 0;
    for (size_t p = 0; p < model->param_count; p++)
        bytes += (narrow && model->params[p].bf16 ? sizeof(uint16_t) : width) *
                 elements_of(model->params[p].shape);
    return bytes;
}

static void fill_model(lk_step_model *out, double *flops, const step_source *from, uint32_t hosts)
{
    const lk_train_config *c        = from->config;
    double                 elements = (double)lk_model_param_elements(from->model), sum = 0;
    uint32_t               here = (c->workers + hosts - 1) / hosts;
    double width  = (double)lk_rounded_bytes(c->comm_dtype, MANY) / MANY; /* of an element */
    double bucket = c->bucket_bytes > 0 ? (double)c->bucket_bytes : BUCKET_BYTES;

    *out = (lk_step_model){ .workers         = c->workers,
                            .hosts           = hosts,
                            .virtual_workers = c->virtual_workers,
                            .micro_count    = c->global_batch / c->virtual_workers / c->micro_batch,
                            .stage          = lki_stage_of(c->strategy),
                            .shard_hosts    = sharing_hosts(c, hosts),
                            .buddies        = c->buddies && sharing_hosts(c, hosts) == hosts,
                            .gradient_bytes  = width * gradient_elements(from->model),
                            .parameter_bytes = parameter_bytes(c, from->model),
                            .bucket_bytes    = width / sizeof(float) * bucket,
                            .bandwidth       = from->rates->bandwidth,
                            .latency         = from->rates->latency,
                            .file_bytes      = update_file_bytes(c, elements),
                            .pass_file_bytes = pass_file_bytes(c, elements),
                            .file_bandwidth  = from->rates->file_bandwidth };
    for (uint32_t b = 0; b < from->model->block_count; b++)
        add_block(out, from, b, &sum);
    out->forward *= out->micro_count;
    out->backward *= out->micro_count;
    if (!(out->file_bandwidth > 0) && from->measured != NULL)
        out->file_bandwidth = from->measured->files;
    out->update = from->measured != NULL
                      ? lki_update_seconds(from->measured, elements, gradient_elements(from->model))
                      : update_by_rate(from, elements, here);
    if (flops != NULL)
        *flops = sum * out->micro_count * c->virtual_workers;
}

/* Of activations, of all workers that share a model; what forward writes backward reads. */
static double spilled_bytes(const lki_layout *layout, const lk_step_model *m)
{
    uint64_t each;
    double   hosts   = m->hosts, here = ceil(m->workers / hosts);
    double   sharing = m->stage == 3 && m->shard_hosts > 0 ? m->shard_hosts : hosts;
    (void)lki_spill_bytes(layout->aside_count, layout->aside_bytes, 1, &each);
    return here * (m->stage == 0 ? 1 : sharing) * (double)each;
}

static lk_status model_step(lk_step_model *out, double *flops, step_source *from, uint32_t hosts)
{
    const lk_train_config *c      = from->config;
    lk_exec               *exec   = NULL;
    lki_layout             layout = { 0 };
    LK_TRY(lk_exec_open(&exec, c->threads, c->isa));
    bool      files  = lki_in_files(c, LK_OFFLOADED_ACTIVATIONS);
    lk_status status = lki_layout_init(&layout, from->model, exec, c->precision, c->micro_batch,
                                       files);
    from->places     = layout.places;
    if (status == LK_OK)
        fill_model(out, flops, from, hosts);
    if (status == LK_OK)
        out->pass_file_bytes += spilled_bytes(&layout, out);
    lki_layout_deinit(&layout);
    lk_exec_free(exec);
    return status;
}

lk_status lk_train_model_step(lk_step_model *out, double *flops, lk_train_config *config,
                              uint32_t hosts, const lk_rates *rates, const lk_calibration *measured)
{
    lk_model *model;

    *out = (lk_step_model){ 0 };
    LK_TRY(lki_model_alone(&model, config));
    step_source from   = { config, model, NULL, rates, measured };
    lk_status   status = model_step(out, flops, &from, hosts);
    lk_model_free(model);
    return status;
}
