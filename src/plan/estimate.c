/* estimate.c -- estimates the memory that a run needs on each of its hosts. */
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "checkpoint/output.h"
#include "data/loader.h"
#include "lockstep/checkpoint.h"
#include "nn/model.h"
#include "parallel/joint.h"
#include "plan/predict.h"
#include "tensor/exec.h"
#include "train/config.h"

/* Fixed memory of every process: pages of the program and its libraries, thread stacks and unused
 * parts of the heap.  2 to 4 MiB were measured. */
enum { PROGRAM_BYTES = 4 << 20 };

static size_t kernel_bytes(uint32_t threads)
{
    return (LKI_EXEC_SHARED + (size_t)lki_max(threads, 1) * LKI_EXEC_PRIVATE) * sizeof(float);
}

/* Divides workers among hosts by the rule that divides virtual workers among workers. */
static lk_status deal(const lk_train_config *c, uint32_t hosts, uint32_t **sizes, uint32_t *most)
{
    if (hosts == 0 || hosts > c->workers)
        return lk_fail(LK_EINVAL, "%u hosts for %u workers: each has at least one; raise `workers`",
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
                                   const uint32_t *sizes, uint32_t hosts, uint32_t joint,
                                   lk_train_cost *out)
{
    uint32_t            count;
    const lk_param     *params = lk_model_params(model, &count);
    lk_parallel_options options;

    lk_status status = lki_parallel_options_of(c, model, NULL, &options);
    if (status == LK_OK)
        status = lki_parallel_estimate_joint(&out->shared, params, count, &options, sizes, hosts,
                                             joint);
    lki_parallel_options_free(&options);
    return status;
}

lk_status lki_pieces_of(const lk_train_config *c, const lk_model *model, uint32_t hosts,
                        lki_grad_piece **out, uint32_t *count)
{
    lk_parallel_options options = LK_PARALLEL_OPTIONS_INIT;
    uint32_t           *sizes   = NULL, most, params;
    const lk_param     *param   = lk_model_params(model, &params);

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

/* Returns the number of hosts that share the optimizer state.  *params becomes true if these hosts
 * also share the parameters. */
static uint32_t count_shards(const lk_train_config *c, uint32_t hosts, bool *params)
{
    uint32_t stage  = lki_stage_of(c->strategy);
    bool     hybrid = c->strategy != NULL && strcmp(c->strategy, "hybrid") == 0;
    uint32_t group  = c->shard_hosts > 0 ? c->shard_hosts : 1;
    uint32_t count  = hybrid ? group : stage > 0 ? hosts : 1;
    *params         = count > 1 && (stage == 3 || lki_gather_dtype(c) == LK_BF16);
    return count;
}

/* Returns true if ranks gather the parameters of each unit before they use them. */
static bool gathers(const lk_train_config *c, uint32_t hosts)
{
    bool parted;
    (void)count_shards(c, hosts, &parted);
    return (parted && lki_stage_of(c->strategy) == 3) || lki_in_files(c, LK_OFFLOADED_PARAMETERS);
}

/* Returns the bytes of buffers for values that no host stores whole, such as parameters at the end
 * of a run.  These values are processed in pieces.  A worker stores a piece twice, as stored and
 * converted.  The writer of a checkpoint also has one block of a piece. */
static size_t piece_bytes(const lk_train_config *c, uint32_t hosts)
{
    bool     params;
    uint32_t shards = count_shards(c, hosts, &params);
    bool     states = shards > 1 || lki_in_files(c, LK_OFFLOADED_STATES);
    bool     saves  = c->checkpoint.folder != NULL;
    bool     pieces = params || lki_in_files(c, LK_OFFLOADED_PARAMETERS) || (states && saves);
    return (pieces ? 2 * sizeof(float) * LK_CHECKPOINT_PIECE : 0) + (saves ? LKI_BLOCK_BYTES : 0);
}

/* Returns the bytes of the moving means that each worker gathers and stores for evaluations. */
static size_t mean_bytes(const lk_train_config *c, const lk_model *model, uint32_t hosts)
{
    bool params;
    bool states = count_shards(c, hosts, &params) > 1 || lki_in_files(c, LK_OFFLOADED_STATES);
    bool wanted = c->optimizer.ema > 0 && c->eval_weights != LK_WEIGHTS_MODEL;
    return states && wanted ? sizeof(float) * lk_model_param_elements(model) : 0;
}

/* Returns the bytes that a worker needs with any strategy: buffers of kernels, micro-batches read
 * ahead, and pieces. */
static size_t estimate_program(const lk_train_config *c, const lk_model *model, uint32_t hosts,
                               uint32_t together, uint32_t joint)
{
    const size_t sample = sizeof(float) *
                          (lk_shape_count(model->input) + lk_model_loss_rows(model));
    const lk_loader_options options = { .struct_size = sizeof options,
                                        .micro_batch = c->micro_batch,
                                        .threads     = c->data.loader_threads,
                                        .lock_step   = together > 1,
                                        .borrowed    = joint,
                                        .count       = together };
    return PROGRAM_BYTES + kernel_bytes(c->threads) + lki_loader_bytes(&options, sample) +
           piece_bytes(c, hosts);
}

static lk_status estimate_model(const lk_train_config *c, const lk_model *model, uint32_t hosts,
                                lk_train_cost *out)
{
    uint32_t *sizes = NULL, most = 0, joint = 1;
    lk_exec  *exec     = NULL;
    uint32_t  together = lk_model_lock_step(model)
                             ? (c->virtual_workers + c->workers - 1) / c->workers
                             : 1;

    out->parameters  = lk_model_param_elements(model);
    lk_status status = deal(c, hosts, &sizes, &most);
    if (status == LK_OK)
        status = lk_exec_open(&exec, c->threads, c->isa);
    if (status == LK_OK)
        joint = lki_joint_most(c, model, exec);
    if (status == LK_OK && joint > 1)
        status = lki_engine_parts_bytes(&out->activations, model, exec, c->precision,
                                        c->micro_batch, joint);
    else if (status == LK_OK)
        status = lk_engine_bytes(
            &out->activations, lki_in_files(c, LK_OFFLOADED_ACTIVATIONS) ? &out->spilled : NULL,
            model, exec, c->precision, c->micro_batch, together);
    if (status == LK_OK)
        status = lki_pack_bytes(&out->packs, c, model, exec, gathers(c, hosts));
    if (status == LK_OK)
        status = estimate_parallel(c, model, sizes, hosts, joint, out);
    out->workers = most;
    out->program = estimate_program(c, model, hosts, together, joint);
    lk_exec_free(exec);
    lki_free(sizes);
    return status;
}

/* Returns the bytes of a checkpoint copy.  Rank 0 copies the whole state if it is offloaded or if
 * other workers may be lost. */
static size_t estimate_snapshot(const lk_train_config *c, const lk_model *model, uint32_t hosts,
                                size_t shard)
{
    bool       params;
    const bool states = count_shards(c, hosts, &params) > 1;
    const bool alone  = lki_in_files(c, LK_OFFLOADED_STATES | LK_OFFLOADED_PARAMETERS) ||
                       (c->elastic.survives && c->workers > 1);

    if (!c->checkpoint.async)
        return 0;
    return lki_snapshot_bytes(c, model, params && !alone ? shard : 0, states && !alone ? shard : 0);
}

lk_status lki_model_alone(lk_model **out, lk_train_config *config, bool *evaluates)
{
    lk_dataset *dataset = NULL;

    *out = NULL;
    LK_TRY(lki_train_complete(config, false));
    lk_dataset_options data = lki_dataset_options(config);
    LK_TRY(lk_dataset_open(&dataset, config->data.source, &data));
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

static lk_status estimate(lk_train_config *config, uint32_t hosts, lk_train_cost *out)
{
    lk_model *model;
    bool      evaluates;

    LK_TRY(lki_model_alone(&model, config, &evaluates));
    lk_status status = estimate_model(config, model, hosts, out);
    out->program += evaluates ? mean_bytes(config, model, hosts) : 0;
    out->snapshot = estimate_snapshot(config, model, hosts, out->shared.shard);
    lk_model_free(model);
    return status;
}

lk_status lk_train_estimate(lk_train_config *config, uint32_t hosts, lk_train_cost *out)
{
    lk_train_config mine;

    *out = (lk_train_cost){ 0 };
    LK_TRY(lki_options_copy(&mine, sizeof mine, config, "lk_train_config"));
    lk_status status = estimate(&mine, hosts, out);
    lki_options_return(config, &mine);
    return status;
}
