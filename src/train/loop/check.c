/* check.c -- completes a configuration and reports all its errors before workers start. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/options.h"
#include "train/core/feed.h"
#include "train/loop/loop.h"
#include "train/options.h"
#include "train/saves/base.h"
#include "train/saves/lock.h"
#include "train/saves/tokenizer.h"

enum { VIRTUAL_WORKERS_DEFAULT_MAX = 32, CONTEXT_DEFAULT = 64 };

/* Returns the first of 8, 4, 2, 1 that divides the samples of a virtual worker or of the batch. */
static uint32_t default_micro_batch(uint32_t samples)
{
    for (uint32_t b = 8; b > 1; b /= 2)
        if (samples % b == 0)
            return b;
    return 1;
}

static lk_status check_batch(lk_train_config *c)
{
    if (c->global_batch == 0)
        return lk_fail(LK_EINVAL, "`global_batch` is missing: how many samples each update uses");
    if (c->virtual_workers > 0 && c->global_batch % c->virtual_workers != 0)
        return lk_fail(LK_EINVAL,
                       "`global_batch` %u cannot be divided over `virtual_workers` %u; make "
                       "it a multiple",
                       c->global_batch, c->virtual_workers);
    if (c->micro_batch == 0)
        c->micro_batch = default_micro_batch(
            c->virtual_workers ? c->global_batch / c->virtual_workers : c->global_batch);
    if (c->global_batch % c->micro_batch != 0)
        return lk_fail(LK_EINVAL,
                       "`global_batch` %u cannot be divided by `micro_batch` %u; make it a "
                       "multiple",
                       c->global_batch, c->micro_batch);
    uint32_t pieces = c->global_batch / c->micro_batch;
    if (c->virtual_workers == 0)
        for (uint32_t v = 1; v <= VIRTUAL_WORKERS_DEFAULT_MAX && v <= pieces; v++)
            if (pieces % v == 0)
                c->virtual_workers = v;
    LK_ASSERT(c->virtual_workers > 0); /* 1 divides every number */
    if (pieces % c->virtual_workers != 0)
        return lk_fail(LK_EINVAL,
                       "`global_batch` %u is not `virtual_workers` %u x `micro_batch` %u x a "
                       "whole number",
                       c->global_batch, c->virtual_workers, c->micro_batch);
    return LK_OK;
}

static lk_status check_strategy(const char *strategy)
{
    static const char *const known[] = { "ddp", "zero1", "zero2", "zero3", "hybrid", "single" };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strategy == NULL || strcmp(strategy, known[i]) == 0)
            return LK_OK;
    return lk_fail(LK_EUNSUPPORTED, "`strategy` %s: this version has ddp, zero1, zero2, zero3, "
                   "hybrid and single", strategy);
}

/* Returns the largest number of workers that have something to compute. */
static uint32_t most_workers(const lk_train_config *c)
{
    const bool few = lki_is_async(c) && c->exchange.groups > 0;
    return few ? (uint32_t)lki_min(c->exchange.groups, c->virtual_workers) : c->virtual_workers;
}

static lk_status check_workers(lk_train_config *c)
{
    if (c->threads == 0)
        c->threads = 1;
    if (c->workers == 0) {
        uint32_t cores = lk_allowance_read().cores;
        c->workers     = (uint32_t)lki_min(lki_max(cores / c->threads, 1), most_workers(c));
        if (c->strategy != NULL && strcmp(c->strategy, "single") == 0)
            c->workers = 1;
    }
    if (c->workers > c->virtual_workers && lki_federates(c))
        return lk_fail(LK_EINVAL, "`workers` %u are more than the %u clients of a round; raise "
                                  "`exchange.clients.fraction`, or lower `workers`",
                       c->workers, c->virtual_workers);
    if (c->workers > c->virtual_workers)
        return lk_fail(LK_EINVAL,
                       "`workers` %u are more than the %u virtual workers of this run; raise "
                       "`virtual_workers` (or `global_batch`), or lower `workers`",
                       c->workers, c->virtual_workers);
    c->strategy = lk_strategy_name(c->strategy);
    LK_TRY(check_strategy(c->strategy));
    if (c->strategy != NULL && strcmp(c->strategy, "single") == 0 && c->workers != 1)
        return lk_fail(LK_EINVAL, "`strategy` single is the one-worker reference; use `workers` 1");
    return LK_OK;
}

/* Computes the steps from epochs.  Clears `epochs`, so that a second call changes nothing. */
static lk_status check_length(lk_train_config *c, const lk_dataset_info *data)
{
    uint64_t per_epoch =
        lk_steps_per_epoch(lki_positions(c, data), c->global_batch, c->drop_last);
    if (per_epoch == 0)
        return lk_fail(LK_EINVAL,
                       "`drop_last` leaves nothing: the data have %llu samples, less than one "
                       "global batch of %u",
                       (unsigned long long)data->train_count, c->global_batch);
    if (c->steps > 0 && c->epochs != 0)
        return lk_fail(LK_EINVAL, "give `steps` or `epochs`, not both");
    if (!(c->epochs >= 0) || c->epochs * (double)per_epoch > 1e15)
        return lk_fail(LK_EINVAL, "`epochs` %g is not a sensible number of epochs", c->epochs);
    if (c->steps == 0 && c->epochs > 0)
        c->steps = (uint64_t)(c->epochs * (double)per_epoch + 0.5);
    if (c->steps == 0 && c->epochs > 0)
        return lk_fail(LK_EINVAL,
                       "`epochs` %g is less than one step; an epoch of these data has %llu steps",
                       c->epochs, (unsigned long long)per_epoch);
    c->epochs = 0;
    if (c->steps == 0)
        return lk_fail(LK_EINVAL,
                       "how long to train is missing: give `steps` or `epochs` (an epoch of "
                       "these data has %llu steps)",
                       (unsigned long long)per_epoch);
    if (c->steps > UINT32_MAX)
        return lk_fail(LK_EINVAL, "`steps` %llu is more than %u", (unsigned long long)c->steps,
                       UINT32_MAX);
    return LK_OK;
}

/* Computes the warmup steps, and the learning rate for the batch size.  Clears the options that it
 * has used, so that a second call changes nothing. */
static lk_status check_schedule(lk_train_config *c, const lk_dataset_info *data)
{
    lk_schedule *s         = &c->schedule;
    uint64_t     per_epoch =
        lk_steps_per_epoch(lki_positions(c, data), c->global_batch, c->drop_last);
    double       base      = s->lr;
    if (c->warmup_epochs != 0 && s->warmup != 0)
        return lk_fail(LK_EINVAL, "give `schedule.warmup` (steps) or `warmup_epochs`, not both");
    if (!(c->warmup_epochs >= 0 && c->warmup_epochs * (double)per_epoch <= 1e15))
        return lk_fail(LK_EINVAL, "`warmup_epochs` %g is not a sensible number of epochs",
                       c->warmup_epochs);
    if (c->warmup_epochs > 0)
        s->warmup = (uint64_t)(c->warmup_epochs * (double)per_epoch + 0.5);
    c->warmup_epochs = 0;
    s->lr = lk_scale_lr(c->scale_lr, base, c->global_batch, c->base_batch ? c->base_batch : 256);
    if (c->scale_lr != LK_SCALE_LR_NONE && s->warmup_from == 0 && s->kind != LK_ONE_CYCLE &&
        s->warmup > 0)
        s->warmup_from = base < s->lr ? base : s->lr;
    c->scale_lr = LK_SCALE_LR_NONE;
    s->steps    = c->steps;
    LK_TRY(lk_schedule_check(s));
    *s = lk_schedule_resolve(s);
    return LK_OK;
}

static lk_status check_files(const lk_train_config *c, const lk_dataset_info *data)
{
    if (c->eval_every > 0 && data->validation_count == 0)
        return lk_fail(LK_EINVAL, "`eval_every` needs validation data; give `validation` FRACTION");
    if (c->checkpoint.every > 0 && c->checkpoint.folder == NULL)
        return lk_fail(LK_EINVAL, "`checkpoint.every` needs `checkpoint.folder` DIR");
    if (c->checkpoint.async && c->checkpoint.every == 0 && c->checkpoint.keep_best == 0)
        return lk_fail(LK_EINVAL, "`checkpoint.async` needs `checkpoint.every` N or `keep_best` K: "
                                  "the last checkpoint of a run has nothing to be written beside");
    if (c->files_elsewhere)
        return LK_OK;
    lki_log_run run = { .config = c, .data = data };
    LK_TRY(lki_outputs_check(c));
    LK_TRY(lki_checkpoint_check(c));
    LK_TRY(lki_resume_check(&run));
    LK_TRY(lki_kept_check(c));
    return lki_outputs_check_unused(&run);
}

/* Checks the initial weights, of which a run that continues from a checkpoint reads only a base. */
static lk_status check_init(const lk_train_config *c, const lk_model *model)
{
    bool continues = false;
    if ((c->init == NULL && c->model_options.lora_rank == 0) || c->files_elsewhere)
        return LK_OK;
    if (c->checkpoint.resume && c->checkpoint.folder != NULL)
        LK_TRY(lk_checkpoint_exists(c->checkpoint.folder, &continues));
    if (continues)
        return c->model_options.lora_rank > 0 ? lki_base_check(c) : LK_OK;
    if (c->init == NULL)
        return lk_fail(LK_EINVAL, "`lora_rank` needs `init`, the model that the adapters adapt");
    LK_TRY(lki_init_check(c->init, model));
    const char *adapter = c->model_options.adapter;
    return adapter == NULL ? LK_OK : lki_adapter_check(adapter, model);
}

/* Refuses what adapters cannot be trained with. */
static lk_status check_adapters(const lk_train_config *c)
{
    const lk_model_options *o = &c->model_options;
    if (o->lora_rank == 0 && (o->lora_alpha > 0 || o->lora_targets != NULL))
        return lk_fail(LK_EINVAL, "`%s` needs `lora_rank`, or `adapter`, adapters to start from",
                       o->lora_targets != NULL ? "lora_targets" : "lora_alpha");
    if (o->lora_rank == 0)
        return LK_OK;
    if (strcmp(c->model, "gpt") != 0 && strcmp(c->model, "llama") != 0)
        return lk_fail(LK_EINVAL, "`lora_rank` is for gpt and llama, not for %s", c->model);
    return LK_OK;
}

static lk_status check_lock_step(const lk_train_config *c, const lk_model *model)
{
    if (!lk_model_lock_step(model) || lki_stage_of(c->strategy) < 2 ||
        c->virtual_workers == c->workers)
        return LK_OK;
    return lk_fail(LK_EINVAL,
                   "`batchnorm` sync computes all %u virtual workers at a time, but `strategy` "
                   "%s deals them to %u workers in rounds; choose `strategy` zero1, or "
                   "`workers` %u",
                   c->virtual_workers, c->strategy, c->workers, c->virtual_workers);
}

/* Returns the bytes of parameters, optimizer state and one gradient per worker of this host (or of
 * its parts of them). */
static double bytes_here(const lk_train_config *c, const lk_model *model, uint32_t here)
{
    uint32_t stage  = lki_stage_of(c->strategy);
    bool     hybrid = stage > 0 && strcmp(c->strategy, "hybrid") == 0;
    double   values = (double)lk_model_param_elements(model);
    double   share  = hybrid ? 1 / fmax(1, c->shard_hosts) : (double)here / c->workers;
    double   copies = lki_in_files(c, LK_OFFLOADED_PARAMETERS) ? 0 : stage >= 3 ? share : 1;
    if (!lki_in_files(c, LK_OFFLOADED_STATES))
        copies += lk_optimizer_state_count(&c->optimizer) * (stage >= 1 ? share : 1);
    copies += stage >= 2 ? share : here;
    return values * copies * (double)sizeof(float);
}

/* Computes the bytes of a host whose groups have errors or, as replicas, weights.  Other hosts are
 * taken to have as many workers. */
static lk_status count_groups(double *out, const lk_train_config *c, const lk_model *model,
                              uint32_t here)
{
    lk_parallel_options options = LK_PARALLEL_OPTIONS_INIT;
    lk_parallel_cost    cost;
    uint32_t           *sizes, count, hosts = (c->workers + here - 1) / here;
    const lk_param     *params = lk_model_params(model, &count);

    LK_TRY(LKI_NEW(&sizes, hosts, "hosts"));
    for (uint32_t h = 0; h < hosts; h++)
        sizes[h] = (uint32_t)lki_min(here, c->workers - h * here);
    lk_status status = lki_parallel_options_of(c, model, NULL, &options);
    if (status == LK_OK)
        status = lk_parallel_estimate(&cost, params, count, &options, sizes, hosts);
    if (status == LK_OK)
        *out = (double)(cost.params + cost.optimizer + cost.gradients + cost.tables);
    lki_parallel_options_free(&options);
    lki_free(sizes);
    return status;
}

/* Checks that the values of a model fit into the machine's memory.  Runs before anything is
 * allocated, so that a mistyped width does not exhaust the memory. */
static lk_status check_memory(const lk_train_config *c, const lk_model *model)
{
    uint32_t here    = c->workers_here ? c->workers_here : c->workers;
    double   needed  = bytes_here(c, model, here);
    double   machine = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (lki_replicates(c) || lki_exchanges(c))
        LK_TRY(count_groups(&needed, c, model, here));
    if (lki_federates(c)) /* the copies in which workers train clients */
        needed += (double)lk_model_param_elements(model) * here * (double)sizeof(float) *
                  (2 + lk_optimizer_state_count(&c->optimizer));
    needed += (double)lki_base_bytes(model);
    if (needed <= machine)
        return LK_OK;
    return lk_fail(
        LK_EINVAL,
        "%s with these options has %.0f parameters: parameters, optimizer state%s and "
        "gradients of %u workers need %.1f GiB, but the machine has %.1f; make the model "
        "smaller, use fewer workers, store parts of it in files (`offload`), or shard it over more "
        "hosts (`strategy` zero3); lockstep plan shows how much each needs",
        c->model, (double)lk_model_param_elements(model),
        lki_exchanges(c) ? ", what groups keep" : "", here, needed / 0x1p30, machine / 0x1p30);
}

static lk_status check_groups(const lk_train_config *c, const lk_model *model)
{
    uint32_t        count;
    const lk_param *params = lk_model_params(model, &count);
    lk_param_rule  *rules  = NULL;
    LK_TRY(LKI_NEW(&rules, count, "rules of parameters"));
    lk_status status = lk_param_rules(rules, params, count, c->groups, c->group_count);
    lk_error  error  = *lk_error_last();
    lki_free(rules);
    return status == LK_OK ? LK_OK : lk_fail(status, "`groups`: %s", error.message);
}

static lk_status check_clipping(const lk_train_config *c)
{
    if (!(c->clip_norm >= 0) || isinf(c->clip_norm))
        return lk_fail(LK_EINVAL,
                       "`clip_norm` %g is not a norm; give a positive number, or 0 for none",
                       c->clip_norm);
    if (!(c->noise_decay >= 0 && c->noise_decay < 1))
        return lk_fail(LK_EINVAL,
                       "`noise_decay` %g is not a decay; give one in (0, 1), such as 0.99",
                       c->noise_decay);
    if (!(c->clip_value >= 0) || isinf(c->clip_value))
        return lk_fail(LK_EINVAL, "`clip_value` %g is no limit; give a positive number, or 0 for "
                                  "none", c->clip_value);
    if (c->clip_norm > 0 && c->clip_value > 0)
        return lk_fail(LK_EINVAL, "give `clip_norm` or `clip_value`, not both");
    if (c->clip_value > 0 && c->optimizer.kind == LK_LARS)
        return lk_fail(LK_EINVAL, "`clip_value` cannot be used with `optimizer.kind` lars, "
                                  "which needs the norms of unclipped gradients; `clip_norm` can");
    return LK_OK;
}

static lk_status check_audit(const lk_train_config *c)
{
    if (!(c->audit >= 0 && c->audit <= 1))
        return lk_fail(LK_EINVAL, "`audit` %g is no share of the virtual workers; give one "
                                  "from 0 to 1", c->audit);
    if (c->audit > 0 && c->model_options.batchnorm == LK_BATCHNORM_SYNC)
        return lk_fail(LK_EINVAL, "`audit` needs `batchnorm` ghost: with sync no virtual "
                                  "worker can be made again alone");
    return LK_OK;
}

static lk_status check_noise(const lk_train_config *c)
{
    if (c->noise_decay > 0 && c->virtual_workers < 2)
        return lk_fail(LK_EINVAL, "`noise_decay` compares virtual workers with each other: it "
                                  "needs `virtual_workers` 2 or more");
    return LK_OK;
}

/* Checks what a run that continues without lost workers needs, and what needs such a run. */
static lk_status check_losses(const lk_train_config *c)
{
    if (c->elastic.survives && c->offload != NULL)
        return lk_fail(LK_EINVAL, "`offload`: a worker's file is lost with the worker, so the "
                                  "others cannot continue: leave out `offload`, or leave out "
                                  "`on_failure` continue, and MIN of `workers` MIN:MAX; `restart` "
                                  "goes on from a checkpoint");
    if (c->buddies && !c->elastic.survives)
        return lk_fail(LK_EINVAL, "`buddies` 2 stores the shard of a lost host for the remaining "
                                  "hosts: give `on_failure` continue, too");
    return LK_OK;
}

/* Checks that the configuration has something to offload, and that the strategy supports it. */
static lk_status check_offloaded(const lk_train_config *c)
{
    if (lki_in_files(c, LK_OFFLOADED_STATES) && lk_optimizer_state_count(&c->optimizer) == 0)
        return lk_fail(LK_EINVAL, "`offload` optimizer:...: this optimizer has no state; leave it "
                                  "out, or give `optimizer.momentum`");
    if (lki_in_files(c, LK_OFFLOADED_PARAMETERS) && lki_stage_of(c->strategy) < 3)
        return lk_fail(LK_EINVAL, "`offload` parameters:... needs a strategy that reads them by "
                                  "units: `strategy` zero3, or hybrid");
    if (lki_in_files(c, LK_OFFLOADED_ACTIVATIONS) && !c->model_options.activation_checkpointing)
        return lk_fail(LK_EINVAL, "`offload` activations:... is for what activation checkpointing "
                                  "keeps: give `activation_checkpointing`, too");
    return LK_OK;
}

static lk_status check_offload_directory(const lk_train_config *c)
{
    struct stat at;
    if (c->offload == NULL)
        return LK_OK;
    if (stat(c->offload, &at) == 0 && !S_ISDIR(at.st_mode))
        return lk_fail(LK_EINVAL, "`offload`: '%s' is not a directory", c->offload);
    if (access(c->offload, W_OK | X_OK) != 0)
        return lk_fail(LK_EIO, "`offload`: cannot write to the directory '%s': %s; make it, or "
                       "name another", c->offload, strerror(errno));
    return LK_OK;
}

/* Checks the options that depend on the data.  `runs`: the run takes place on this machine, with
 * these files. */
static lk_status check_data(lk_train_config *c, const lk_dataset *dataset, bool runs)
{
    const lk_dataset_info *data    = lk_dataset_describe(dataset);
    lk_model_options       options = lki_model_options(c, data);
    lk_model              *model   = NULL;

    LK_TRY(lki_feed_check(c, dataset));
    LK_TRY(lki_clients_check_data(c, dataset));
    LK_TRY(check_length(c, data));
    LK_TRY(check_schedule(c, data));
    LK_TRY(lki_exchange_check_span(c, dataset, data));
    LK_TRY(lki_stopping_check(c, data));
    LK_TRY(lki_pretrained_check(c, dataset));
    LK_TRY(lk_model_build(&model, c->model, &options));
    lk_status status = check_groups(c, model);
    if (status == LK_OK)
        status = check_lock_step(c, model);
    if (status == LK_OK)
        status = check_offloaded(c);
    if (status == LK_OK && runs)
        status = check_offload_directory(c);
    if (status == LK_OK && runs)
        status = check_memory(c, model);
    if (status == LK_OK)
        status = check_init(c, model);
    if (status == LK_OK && runs)
        status = check_files(c, data);
    lk_model_free(model);
    return status;
}

static lk_status check_model_name(const char *name, bool runs)
{
    if (!runs && strcmp(name, "bare") == 0)
        return LK_OK;
    for (uint32_t i = 0; lk_model_builtin(i) != NULL; i++)
        if (strcmp(name, lk_model_builtin(i)) == 0)
            return LK_OK;
    return lk_fail(LK_EINVAL, "there is no model '%s'; there are gpt, llama, resnet and mlp", name);
}

static lk_status check_read(lk_train_config *c)
{
    if (c->gather_dtype == 0)
        c->gather_dtype = LK_F32;
    if (c->gather_dtype == LK_I8 && c->offload != NULL && c->offloaded & LK_OFFLOADED_PARAMETERS)
        return lk_fail(LK_EINVAL, "`offload` parameters:... reads them as they are; leave out "
                                  "`gather_dtype` int8");
    if (c->keep_gathered && c->gather_dtype == LK_F32)
        return lk_fail(LK_EINVAL, "`keep_gathered` keeps units as `gather_dtype` int8 has "
                                  "them: give that, or as many `unit_buffers` as there are "
                                  "units");
    if (c->calls.hook != NULL && c->noise_decay > 0)
        return lk_fail(LK_EINVAL, "the noise scale compares gradients as they are with their sum, "
                                  "which a hook changes: leave out `noise_decay` or `calls.hook`");
    return LK_OK;
}

static lk_status check_precision(lk_train_config *c)
{
    if (c->precision == 0)
        c->precision = LK_F32;
    const bool sends_half = c->comm_dtype == LK_F16, half = c->precision == LK_F16 || sends_half;
    if (sends_half && c->precision == LK_BF16)
        return lk_fail(LK_EINVAL, "`comm_dtype` fp16 needs a loss scale, which `precision` "
                                  "bf16 does not have; use `comm_dtype` bf16");
    if (!half && (c->scaling.rule > LK_SCALE_NONE || c->scaling.initial != 0 ||
                  c->scaling.window != 0 || c->scaling.hysteresis != 0))
        return lk_fail(LK_EINVAL,
                       "`scaling.rule`, `scaling.initial`, `scaling.window` and "
                       "`scaling.hysteresis` are for "
                       "`precision` fp16 and `comm_dtype` fp16: the others have room for "
                       "small gradients as they are");
    if (!half)
        return LK_OK;
    if (c->scaling.rule == LK_SCALE_AUTO)
        c->scaling.rule = LK_SCALE_PYTORCH;
    LK_TRY(lk_loss_scaling_check(&c->scaling));
    c->scaling = lk_loss_scaling_resolve(&c->scaling);
    return LK_OK;
}

static lk_status check_kernels(const lk_train_config *c)
{
    lk_exec *exec = NULL;
    if (c->onednn != NULL && c->precision == LK_BF16)
        return lk_fail(LK_EINVAL, "`kernels` onednn multiplies FP32 values alone; leave out "
                                  "`precision` bf16, or use `kernels` own");
    LK_TRY(lk_exec_open(&exec, 1, c->isa));
    lk_status status = c->onednn != NULL ? lk_exec_use_onednn(exec, c->onednn) : LK_OK;
    lk_exec_free(exec);
    return status;
}

static lk_status check_optimizer(const lk_optimizer *optimizer)
{
    if (optimizer->kind == LK_OPTIMIZER_NONE)
        return lk_fail(LK_EINVAL,
                       "`optimizer.kind` none updates no parameter, so it trains nothing");
    return lk_optimizer_check(optimizer);
}

lk_status lki_train_complete(lk_train_config *c, bool runs)
{
    lk_dataset *dataset = NULL;

    LK_TRY(lki_pretrained_complete(c));
    if (c->model == NULL)
        return lk_fail(LK_EINVAL, "which model? give gpt, llama, resnet or mlp");
    LK_TRY(check_model_name(c->model, runs));
    if (c->data.source == NULL)
        return lk_fail(LK_EINVAL, "`data.source` is missing: for example `data.source` text:FILE");
    LK_TRY(lki_fields_check(c));
    if (!(c->data.validation >= 0 && c->data.validation < 1))
        return lk_fail(LK_EINVAL, "`validation` %g is not a fraction from 0 to below 1",
                       c->data.validation);
    if (c->eval_weights == LK_WEIGHTS_EMA && c->optimizer.ema == 0)
        return lk_fail(LK_EINVAL, "`eval_weights` ema needs `optimizer.ema` DECAY");
    LK_TRY(check_adapters(c));
    LK_TRY(check_clipping(c));
    if (c->context == 0)
        c->context = CONTEXT_DEFAULT;
    LK_TRY(check_precision(c));
    LK_TRY(check_read(c));
    LK_TRY(lki_clients_check(c));
    LK_TRY(check_batch(c));
    LK_TRY(check_workers(c));
    LK_TRY(check_noise(c));
    LK_TRY(check_audit(c));
    LK_TRY(check_losses(c));
    LK_TRY(lki_pace_check(c));
    LK_TRY(lki_local_check(c));
    LK_TRY(lki_async_check(c, runs));
    LK_TRY(lki_exchange_check(c));
    LK_TRY(lki_order_check(c));
    LK_TRY(check_optimizer(&c->optimizer));
    c->optimizer = lk_optimizer_resolve(&c->optimizer); /* recorded in checkpoints */
    LK_TRY(check_kernels(c));

    lk_dataset_options options = lki_dataset_options(c);
    LK_TRY(lk_dataset_open(&dataset, c->data.source, &options));
    lk_status status = check_data(c, dataset, runs);
    lk_dataset_free(dataset);
    return status;
}

lk_status lk_train_check(lk_train_config *config)
{
    lk_train_config c;

    LK_TRY(lki_options_copy(&c, sizeof c, config, "lk_train_config"));
    if (c.checkpoint.folder != NULL && !c.files_elsewhere)
        LK_TRY(lki_lock_check(c.checkpoint.folder));
    lk_status status = lki_train_complete(&c, true);
    lki_options_return(config, &c);
    return status;
}
