/* memory.c -- the memory of a run, by which joint turns are chosen if it is limited.
 *
 * A plan and a run compute the same numbers.  A plan has a model without values, and hosts that it
 * divides workers among; a run has its own hosts.
 *
 * Joint turns take more activations, but fewer buffers of gradients.  So turns of fewer virtual
 * workers may take more memory than turns of many.  Under a limit, each size is compared with it.
 */
#include <string.h>

#include "base/memory.h"
#include "checkpoint/output.h"
#include "data/loader.h"
#include "lockstep/checkpoint.h"
#include "nn/model.h"
#include "nn/parts.h"
#include "parallel/joint.h"
#include "tensor/exec.h"
#include "train/core/joint.h"
#include "train/loop/loop.h"
#include "train/saves/base.h"

/* Fixed memory of every process: pages of the program and its libraries, thread stacks and unused
 * parts of the heap.  2 to 4 MiB were measured. */
enum { PROGRAM_BYTES = 4 << 20 };

static size_t kernel_bytes(uint32_t threads)
{
    return (LKI_EXEC_SHARED + (size_t)lki_max(threads, 1) * LKI_EXEC_PRIVATE) * sizeof(float);
}

static lk_status estimate_parallel(const lki_run_shape *run, uint32_t joint, lk_train_cost *out)
{
    uint32_t            count;
    const lk_param     *params = lk_model_params(run->model, &count);
    lk_parallel_options options;

    lk_status status = lki_parallel_options_of(run->config, run->model, NULL, &options);
    if (status == LK_OK)
        status = lki_parallel_estimate_joint(&out->shared, params, count, &options, run->sizes,
                                             run->hosts, joint);
    lki_parallel_options_free(&options);
    return status;
}

/* Adds the memory in which each worker trains clients. */
static lk_status add_clients(const lki_run_shape *run, lk_train_cost *out)
{
    const uint32_t      one = 1;
    uint32_t            count;
    const lk_param     *params = lk_model_params(run->model, &count);
    lk_parallel_options options;
    lk_parallel_cost    cost;

    if (!lki_federates(run->config))
        return LK_OK;
    lk_status status = lki_client_options_of(run->config, run->model, NULL, &options);
    if (status == LK_OK)
        status = lk_parallel_estimate(&cost, params, count, &options, &one, 1);
    lki_parallel_options_free(&options);
    LK_TRY(status);
    out->shared.params += out->workers * cost.params;
    out->shared.optimizer += out->workers * cost.optimizer;
    out->shared.gradients += out->workers * cost.gradients;
    out->shared.tables += out->workers * cost.tables;
    return LK_OK;
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

/* Returns the bytes of room for the samples of a joint turn.  They are rarely touched
 * (core/joint.c), but a limit counts them. */
static size_t joint_bytes(const lk_train_config *c, const lk_model *model, uint32_t joint)
{
    const size_t sample = lk_shape_count(model->input) + 2 * lk_model_loss_rows(model);
    return c->host_memory > 0 && joint > 1 ? joint * c->micro_batch * sizeof(float) * sample : 0;
}

/* Returns the bytes that a worker needs with any strategy: buffers of kernels, micro-batches read
 * ahead, pieces, and constants of blocks. */
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
           piece_bytes(c, hosts) + joint_bytes(c, model, joint) + model->constant_bytes;
}

static lk_status estimate_engine(const lki_run_shape *run, uint32_t together, uint32_t joint,
                                 lk_train_cost *out)
{
    const lk_train_config *c = run->config;
    if (joint > 1)
        return lki_engine_parts_bytes(&out->activations, run->model, run->exec, c->precision,
                                      c->micro_batch, joint);
    return lk_engine_bytes(
        &out->activations, lki_in_files(c, LK_OFFLOADED_ACTIVATIONS) ? &out->spilled : NULL,
        run->model, run->exec, c->precision, c->micro_batch, together);
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

size_t lk_train_cost_bytes(const lk_train_cost *c)
{
    const lk_parallel_cost *shared = &c->shared;
    return shared->params + shared->optimizer + shared->gradients + shared->tables +
           shared->messages + c->packs + c->frozen + c->snapshot +
           c->workers * (c->activations + c->program);
}

lk_status lki_run_cost(lk_train_cost *out, const lki_run_shape *run, uint32_t joint)
{
    const lk_train_config *c        = run->config;
    uint32_t               together = lk_model_lock_step(run->model)
                                          ? (c->virtual_workers + c->workers - 1) / c->workers
                                          : 1;

    *out            = (lk_train_cost){ 0 };
    out->parameters = lk_model_param_elements(run->model);
    for (uint32_t h = 0; h < run->hosts; h++)
        out->workers = run->sizes[h] > out->workers ? run->sizes[h] : out->workers;
    LK_TRY(estimate_engine(run, together, joint, out));
    LK_TRY(lki_pack_bytes(&out->packs, c, run->model, run->exec, gathers(c, run->hosts), joint));
    out->frozen = lki_base_bytes(run->model);
    LK_TRY(estimate_parallel(run, joint, out));
    LK_TRY(add_clients(run, out));
    out->program  = estimate_program(c, run->model, run->hosts, together, joint) +
                   (run->evaluates ? mean_bytes(c, run->model, run->hosts) : 0);
    out->snapshot = estimate_snapshot(c, run->model, run->hosts, out->shared.shard);
    return LK_OK;
}

/* ---- Joint turns -------------------------------------------------------------------------- */

uint32_t lki_joint_fitting(const lki_run_shape *run)
{
    const size_t  limit = run->config->host_memory;
    uint32_t      most = lki_joint_most(run->config, run->model, run->exec), fitting = 1;
    lk_train_cost cost;

    for (uint32_t joint = 2; joint <= most; joint *= 2)
        if (limit == 0 || (lki_run_cost(&cost, run, joint) == LK_OK &&
                           lk_train_cost_bytes(&cost) <= limit))
            fitting |= joint;
    return fitting;
}

uint32_t lki_joint_largest(uint32_t fitting)
{
    uint32_t largest = 1;
    while (fitting >>= 1)
        largest *= 2;
    return largest;
}

/* Keeps in *fitting what fits on all hosts.  Their limits and threads may differ. */
static lk_status agree(const lki_session *s, uint32_t *fitting)
{
    uint32_t *all;

    LK_TRY(LKI_NEW(&all, s->ranks, "sizes of turns"));
    lk_status status = lk_all_gather(s->comm, fitting, all, sizeof *fitting);
    for (uint32_t r = 0; status == LK_OK && r < s->ranks; r++)
        *fitting &= all[r];
    lki_free(all);
    return status;
}

/* Sets *fitting to the sizes of turns that fit on all hosts if they have this one's memory. */
static lk_status find_fitting(const lki_session *s, uint32_t *fitting)
{
    lki_run_shape run = {
        .config    = s->config,
        .model     = s->model,
        .exec      = s->exec,
        .evaluates = lk_dataset_describe(s->dataset)->validation_count > 0,
        .hosts     = lk_comm_hosts(s->comm),
    };
    uint32_t *sizes = NULL;

    *fitting = 1;
    if (lki_joint_most(s->config, s->model, s->exec) == 1)
        return LK_OK;
    LK_TRY(LKI_NEW(&sizes, run.hosts, "hosts"));
    for (uint32_t h = 0; h < run.hosts; h++)
        sizes[h] = lk_comm_local_size(s->comm, h);
    run.sizes = sizes;
    *fitting  = lki_joint_fitting(&run);
    lki_free(sizes);
    return LK_OK;
}

lk_status lki_session_joint(lki_session *s)
{
    uint32_t fitting;
    LK_TRY(find_fitting(s, &fitting));
    LK_TRY(agree(s, &fitting));
    s->joint = lki_joint_largest(fitting);
    return LK_OK;
}
