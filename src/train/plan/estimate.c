/* estimate.c -- what a configuration will take on some hosts, before anything runs. */
#include <string.h>

#include "base/memory.h"
#include "checkpoint/output.h"
#include "data/loader.h"
#include "nn/model.h"
#include "tensor/exec.h"
#include "train/observe/pace.h"
#include "train/plan/predict.h"
#include "train/saves/save.h"

/* What a process takes whatever it does: pages of the program and of libraries, threads' stacks,
 * what is left in between of the heap.  2 to 4 MiB were seen. */
enum { PROGRAM_BYTES = 4 << 20 };

static size_t kernel_bytes(uint32_t threads)
{
    return (LKI_EXEC_SHARED + (size_t)lki_max(threads, 1) * LKI_EXEC_PRIVATE) * sizeof(float);
}

/* ---- What a strategy is given ------------------------------------------------------------ */

/* In place of each block its first term. */
static lk_status find_terms(uint32_t *reads, uint32_t count, const lk_model *model)
{
    uint32_t            terms, *first = NULL;
    const lk_grad_term *term = lk_model_terms(model, &terms);
    LK_TRY(LKI_NEW(&first, lk_model_block_count(model), "blocks' terms"));
    for (uint32_t t = terms; t-- > 0;)
        first[term[t].block] = t;
    for (uint32_t i = 0; i < count; i++)
        reads[i] = first[reads[i]];
    lki_free(first);
    return LK_OK;
}

/* Blocks of bf16 values round the weights that they read: these may come so, but not from files. */
lk_dtype lki_gather_dtype(const lk_train_config *c)
{
    bool rounds = c->precision == LK_BF16 && c->gather_dtype != LK_I8;
    return rounds && !lki_in_files(c, LK_OFFLOADED_PARAMETERS) ? LK_BF16 : c->gather_dtype;
}

static bool strategy_files(const lk_train_config *c)
{
    return lki_in_files(c, LK_OFFLOADED_STATES | LK_OFFLOADED_PARAMETERS);
}

lk_status lki_parallel_options_of(const lk_train_config *c, const lk_model *model, lk_exec *exec,
                                  lk_parallel_options *out)
{
    uint32_t            term_count, state_count;
    const lk_grad_term *model_terms  = lk_model_terms(model, &term_count);
    const lk_state     *model_states = lk_model_states(model, &state_count);
    lk_parallel_term   *terms        = NULL;
    lk_parallel_state  *states       = NULL;
    uint32_t           *reads        = NULL;

    *out = (lk_parallel_options){ .strategy           = c->strategy,
                                  .virtual_workers    = c->virtual_workers,
                                  .micro_count        = c->global_batch / c->virtual_workers /
                                                        c->micro_batch,
                                  .lock_step          = lk_model_lock_step(model),
                                  .bucket_bytes       = c->bucket_bytes,
                                  .first_bucket_bytes = c->first_bucket_bytes,
                                  .optimizer          = c->optimizer,
                                  .clip_norm          = c->clip_norm,
                                  .clip_value         = c->clip_value,
                                  .noise_decay        = c->noise_decay,
                                  .audit              = c->audit,
                                  .unused             = LK_UNUSED_ZERO, /* models use all */
                                  .rebalance          = lki_pace_moves(c),
                                  .rebalance_seed     = c->rebalance_seed,
                                  .duplicate          = lki_pace_duplicates(c),
                                  .backups            = c->backup_workers,
                                  .groups             = c->groups,
                                  .group_count        = c->group_count,
                                  .scaling            = c->scaling,
                                  .comm_dtype         = c->comm_dtype,
                                  .hook               = c->hook,
                                  .hook_context       = c->hook_context,
                                  .seed               = c->seed,
                                  .exec               = exec,
                                  .unit_buffers       = c->unit_buffers,
                                  .shard_hosts        = c->shard_hosts,
                                  .buddies            = c->buddies && c->workers > 1,
                                  .gather_dtype       = lki_gather_dtype(c),
                                  .keep_gathered      = c->keep_gathered,
                                  .term_count         = term_count,
                                  .state_count        = state_count,
                                  .offload            = strategy_files(c) ? c->offload : NULL,
                                  .offloaded          = c->offloaded,
                                  .survives           = c->survives && c->workers > 1 };
    LK_TRY(LKI_NEW(&terms, term_count, "gradient terms"));
    out->terms = terms;
    LK_TRY(LKI_NEW(&states, state_count + 1, "running state"));
    out->states = states;
    for (uint32_t t = 0; t < term_count; t++)
        terms[t] = (lk_parallel_term){ model_terms[t].param, model_terms[t].use,
                                       t > 0 && model_terms[t].block == model_terms[t - 1].block };
    for (uint32_t i = 0; i < state_count; i++)
        states[i] = (lk_parallel_state){ model_states[i].name, model_states[i].count,
                                         model_states[i].initial, model_states[i].momentum };
    LK_TRY(LKI_NEW(&reads, 3 * (size_t)lk_model_block_count(model), "reads of parameters"));
    out->reads      = reads;
    out->read_count = lk_model_reads(model, reads);
    return find_terms(reads, out->read_count, model);
}

void lki_parallel_options_free(lk_parallel_options *options)
{
    lki_free((lk_parallel_term *)(uintptr_t)options->terms);
    lki_free((lk_parallel_state *)(uintptr_t)options->states);
    lki_free((uint32_t *)(uintptr_t)options->reads);
}

/* ---- The estimate ------------------------------------------------------------------------ */

/* Workers are dealt to hosts as virtual workers are to workers. */
static lk_status deal(const lk_train_config *c, uint32_t hosts, uint32_t **sizes, uint32_t *most)
{
    if (hosts == 0 || hosts > c->workers)
        return lk_fail(LK_EINVAL, "%u hosts for %u workers: each has at least one; raise --workers",
                       hosts, c->workers);
    LK_TRY(LKI_NEW(sizes, hosts, "hosts"));
    *most = 0;
    for (uint64_t h = 0; h < hosts; h++) {
        (*sizes)[h] = (uint32_t)((h + 1) * c->workers / hosts - h * c->workers / hosts);
        *most       = (*sizes)[h] > *most ? (*sizes)[h] : *most;
    }
    return LK_OK;
}

static lk_status estimate_parallel(const lk_train_config *c, const lk_model *model,
                                   const uint32_t *sizes, uint32_t hosts, lk_train_cost *out)
{
    uint32_t            count;
    const lk_param     *params = lk_model_params(model, &count);
    lk_parallel_options options;

    lk_status status = lki_parallel_options_of(c, model, NULL, &options);
    if (status == LK_OK)
        status = lk_parallel_estimate(&out->shared, params, count, &options, sizes, hosts);
    lki_parallel_options_free(&options);
    return status;
}

lk_status lki_pieces_of(const lk_train_config *c, const lk_model *model, uint32_t hosts,
                        lki_grad_piece **out, uint32_t *count)
{
    lk_parallel_options options = { 0 };
    uint32_t           *sizes = NULL, most, params;
    const lk_param     *param  = lk_model_params(model, &params);

    *out             = NULL;
    lk_status status = deal(c, hosts, &sizes, &most);
    if (status == LK_OK)
        status = lki_parallel_options_of(c, model, NULL, &options);
    if (status == LK_OK)
        status = lki_pieces_make(out, count, param, params, &options, sizes, hosts);
    lki_parallel_options_free(&options);
    lki_free(sizes);
    return status;
}

/* Between how many hosts the optimizer's state is dealt; *params: and their values, too. */
static uint32_t count_keepers(const lk_train_config *c, uint32_t hosts, bool *params)
{
    const char *name   = c->strategy != NULL ? c->strategy : "ddp";
    bool        hybrid = strcmp(name, "hybrid") == 0;
    uint32_t    group  = c->shard_hosts > 0 ? c->shard_hosts : 1;
    uint32_t    count  = hybrid ? group : strncmp(name, "zero", 4) == 0 ? hosts : 1;
    *params = count > 1 && (hybrid || strcmp(name, "zero3") == 0 || lki_gather_dtype(c) == LK_BF16);
    return count;
}

/* Whether parameters are gathered for each block. */
static bool gathers(const lk_train_config *c, uint32_t hosts)
{
    const char *name = c->strategy != NULL ? c->strategy : "ddp";
    bool        parted;
    (void)count_keepers(c, hosts, &parted);
    parted = parted && (strcmp(name, "zero3") == 0 || strcmp(name, "hybrid") == 0);
    return parted || lki_in_files(c, LK_OFFLOADED_PARAMETERS);
}

/* Values that are not whole on a host are gone over in pieces, each of which a worker has as it
 * comes and as it is wanted: parameters at the end at the latest, states for a checkpoint.  Who
 * writes one has a block of it. */
static size_t piece_bytes(const lk_train_config *c, uint32_t hosts)
{
    bool     params;
    uint32_t keepers = count_keepers(c, hosts, &params);
    bool     states  = keepers > 1 || lki_in_files(c, LK_OFFLOADED_STATES);
    bool     saves   = c->checkpoint != NULL;
    bool     pieces  = params || lki_in_files(c, LK_OFFLOADED_PARAMETERS) || (states && saves);
    return (pieces ? 2 * sizeof(float) * LK_CHECKPOINT_PIECE : 0) + (saves ? LKI_BLOCK_BYTES : 0);
}

/* A whole moving mean, gathered for an evaluation, which each worker keeps. */
static size_t mean_bytes(const lk_train_config *c, const lk_model *model, uint32_t hosts)
{
    bool params;
    bool states = count_keepers(c, hosts, &params) > 1 || lki_in_files(c, LK_OFFLOADED_STATES);
    bool wanted = c->optimizer.ema > 0 && c->eval_weights != LK_WEIGHTS_MODEL;
    return states && wanted ? sizeof(float) * lk_model_param_elements(model) : 0;
}

/* What a worker has whatever its strategy: kernels' buffers, micro-batches ahead, pieces. */
static size_t estimate_program(const lk_train_config *c, const lk_model *model, uint32_t hosts,
                               uint32_t together)
{
    const size_t sample = sizeof(float) *
                          (lk_shape_count(model->input) + lk_model_loss_rows(model));
    const lk_loader_options options = { .micro_batch = c->micro_batch,
                                        .threads     = c->loader_threads,
                                        .lock_step   = together > 1,
                                        .count       = together };
    return PROGRAM_BYTES + kernel_bytes(c->threads) + lki_loader_bytes(&options, sample) +
           piece_bytes(c, hosts);
}

static lk_status estimate_model(const lk_train_config *c, const lk_model *model, uint32_t hosts,
                                lk_train_cost *out)
{
    uint32_t *sizes = NULL, most = 0;
    lk_exec  *exec  = NULL;
    uint32_t  together =
        lk_model_lock_step(model) ? (c->virtual_workers + c->workers - 1) / c->workers : 1;

    out->parameters  = lk_model_param_elements(model);
    lk_status status = deal(c, hosts, &sizes, &most);
    if (status == LK_OK)
        status = lk_exec_open(&exec, c->threads, c->isa);
    if (status == LK_OK)
        status = lk_engine_bytes(&out->activations,
                                 lki_in_files(c, LK_OFFLOADED_ACTIVATIONS) ? &out->spilled : NULL,
                                 model, exec, c->precision, c->micro_batch, together);
    if (status == LK_OK)
        status = lki_pack_bytes(&out->packs, c, model, exec, gathers(c, hosts));
    if (status == LK_OK)
        status = estimate_parallel(c, model, sizes, hosts, out);
    out->workers = most;
    out->program = estimate_program(c, model, hosts, together);
    lk_exec_free(exec);
    lki_free(sizes);
    return status;
}

size_t lki_snapshot_bytes(const lk_train_config *c, const lk_model *model, size_t params_part,
                          size_t states_part)
{
    uint32_t        params, states, slots = lk_optimizer_state_count(&c->optimizer);
    const uint32_t  copies = c->optimizer.ema > 0 ? 2 : 1;
    const lk_param *param = lk_model_params(model, &params);
    const lk_state *state = lk_model_states(model, &states);
    size_t          bytes = 0, values = 0;

    for (uint32_t p = 0; p < params; p++) {
        lk_tensor one = { NULL, LK_F32, param[p].shape, NULL };
        values += lki_background_bytes(&one, 1);
    }
    for (uint32_t i = 0; i < states; i++) {
        lk_tensor one = { NULL, LK_F32, { 1, { state[i].count } }, NULL };
        bytes += copies * lki_background_bytes(&one, 1);
    }
    bytes += slots * (states_part > 0 ? states_part : values);
    return bytes + (params_part > 0 ? params_part : values);
}

/* Rank 0 copies all where it fetches what is in files, or others may be lost. */
static size_t estimate_snapshot(const lk_train_config *c, const lk_model *model, uint32_t hosts,
                                size_t shard)
{
    bool       params;
    const bool states = count_keepers(c, hosts, &params) > 1;
    const bool alone  = strategy_files(c) || (c->survives && c->workers > 1);

    if (!c->checkpoint_async)
        return 0;
    return lki_snapshot_bytes(c, model, params && !alone ? shard : 0, states && !alone ? shard : 0);
}

lk_status lki_model_alone(lk_model **out, lk_train_config *config, bool *evaluates)
{
    lk_dataset *dataset = NULL;

    *out = NULL;
    LK_TRY(lki_train_complete(config, false));
    lk_dataset_options data = lki_dataset_options(config);
    LK_TRY(lk_dataset_open(&dataset, config->data, &data));
    lk_model_options options = lki_model_options(config, lk_dataset_describe(dataset));
    lk_status        status  = lk_model_build(out, config->model, &options);
    if (evaluates != NULL)
        *evaluates = lk_dataset_describe(dataset)->validation_count > 0;
    lk_dataset_free(dataset);
    return status;
}

size_t lk_train_cost_bytes(const lk_train_cost *c)
{
    const lk_parallel_cost *shared = &c->shared;
    return shared->params + shared->optimizer + shared->gradients + shared->tables +
           shared->messages + c->packs + c->workers * (c->activations + c->program) + c->snapshot;
}

lk_status lk_train_estimate(lk_train_config *config, uint32_t hosts, lk_train_cost *out)
{
    lk_model *model;
    bool      evaluates;

    *out = (lk_train_cost){ 0 };
    LK_TRY(lki_model_alone(&model, config, &evaluates));
    lk_status status = estimate_model(config, model, hosts, out);
    out->program += evaluates ? mean_bytes(config, model, hosts) : 0;
    out->snapshot    = estimate_snapshot(config, model, hosts, out->shared.shard);
    lk_model_free(model);
    return status;
}
