/* strategy.c -- derives the strategy's options from a configuration. */
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "train/config.h"

/* Minimum seconds that a virtual worker must take to be computed speculatively.  For shorter ones
 * opening and reading the other rank's data costs more than it saves. */
static const double DUPLICATE_SECONDS = 1e-3;

uint32_t lki_stage_of(const char *strategy)
{
    if (strategy != NULL && strcmp(strategy, "hybrid") == 0)
        return 3;
    return strategy != NULL && strncmp(strategy, "zero", 4) == 0 ? (uint32_t)(strategy[4] - '0')
                                                                 : 0;
}

static lk_status check_hosts(const lk_train_config *config, uint32_t hosts)
{
    const char *name   = lk_strategy_name(config->strategy);
    const bool  files  = lki_in_files(config, LK_OFFLOADED_PARAMETERS);
    const bool  zero   = name != NULL && strncmp(name, "zero", 4) == 0;
    const bool  zero3  = zero && strcmp(name, "zero3") == 0;
    const bool  hybrid = name != NULL && strcmp(name, "hybrid") == 0;
    const bool  parts  = (zero3 && hosts > 1) || (hybrid && config->shard_hosts > 1);

    if (config->audit > 0 && (parts || ((zero3 || hybrid) && files)))
        return lk_fail(LK_EINVAL,
                       "`audit` needs `strategy` ddp, zero1 or zero2 on several hosts, and "
                       "where parameters are in files: with zero3 and hybrid no worker has the "
                       "parameters to make a gradient again alone");
    if (config->buddies && !zero)
        return lk_fail(LK_EINVAL,
                       "`buddies` 2 is for `strategy` zero1 to zero3: with ddp, and with "
                       "hybrid in several groups, other hosts have what a lost one had");
    if (config->elastic.backup_workers > 0 && hosts > 1)
        return lk_fail(LK_EINVAL, "`backup_workers` is for workers of one host: with several, "
                                  "leave it out");
    return LK_OK;
}

lk_status lk_train_check_hosts(const lk_train_config *config, uint32_t hosts)
{
    lk_train_config mine;

    LK_TRY(lki_options_copy(&mine, sizeof mine, config, "lk_train_config"));
    LK_TRY(lki_async_check_hosts(&mine, hosts));
    return check_hosts(&mine, hosts);
}

/* ---- What excludes moving and repeating virtual workers ----------------------------------- */

static const char *why_not(const lk_train_config *c)
{
    const char *strategy = c->strategy != NULL ? lk_strategy_name(c->strategy) : "ddp";
    if (strcmp(strategy, "ddp") != 0 && strcmp(strategy, "zero1") != 0)
        return "deals virtual workers in rounds, a turn of all workers each, which an unequal "
               "share would only make longer; take `strategy` ddp or zero1";
    if (c->model_options.batchnorm == LK_BATCHNORM_SYNC)
        return "with `batchnorm` sync has a worker's virtual workers computed at the same time, "
               "in memory for as many as it begins with; take `batchnorm` ghost";
    return NULL;
}

/* Returns the reason why ranks cannot compute other ranks' virtual workers; NULL if they can. */
static const char *why_none_others(const lk_train_config *c)
{
    if (c->model_options.batchnorm == LK_BATCHNORM_SYNC)
        return "with `batchnorm` sync has all virtual workers made at the same time; take "
               "`batchnorm` ghost";
    if (why_not(c) != NULL)
        return "sums each round of virtual workers before the next, so none can be made by "
               "another; take `strategy` ddp or zero1";
    return c->audit > 0 ? "with `audit` compares what two workers have made; leave one of them "
                          "out"
                        : NULL;
}

bool lki_rebalances(const lk_train_config *c)
{
    return c->elastic.rebalance == LK_REBALANCE_ON ||
           (c->elastic.rebalance == LK_REBALANCE_DEFAULT && c->elastic.backup_workers == 0 &&
            !lki_exchanges(c) && !lki_federates(c) && why_not(c) == NULL);
}

bool lki_duplicates(const lk_train_config *c)
{
    bool free = !c->elastic.survives && c->virtual_workers >= 2 * c->workers &&
                c->calls.hook == NULL &&
                !lki_exchanges(c);
    return c->elastic.duplicate == LK_DUPLICATE_ON ||
           (c->elastic.duplicate == LK_DUPLICATE_AUTO && free && why_none_others(c) == NULL);
}

/* Returns the option that excludes --backup-workers; NULL if none does. */
static const char *why_no_backups(const lk_train_config *c)
{
    return c->workers_here > 0 && c->workers_here < c->workers ? "is for workers of one host"
           : c->strategy != NULL && strcmp(c->strategy, "ddp") != 0 &&
                   strcmp(c->strategy, "zero1") != 0
               ? "drops gradients before they are summed: take `strategy` ddp or zero1"
           : c->model_options.batchnorm == LK_BATCHNORM_SYNC
               ? "cannot drop what `batchnorm` sync has already shared: take `batchnorm` ghost"
           : c->elastic.rebalance == LK_REBALANCE_ON ? "keeps equal shares: leave out `rebalance`"
           : c->elastic.duplicate != LK_DUPLICATE_OFF
               ? "drops late gradients, which `duplicate` computes again: leave one of them out"
           : c->audit > 0        ? "drops what `audit` would compare: leave one of them out"
           : c->noise_decay > 0  ? "drops what `noise_decay` compares: leave one of them out"
           : c->elastic.survives ? "is not for runs that continue after losing workers: leave out "
                                   "`on_failure` continue, and MIN of `workers` MIN:MAX"
           : c->calls.hook != NULL     ? "may drop what a hook was given: leave one of them out"
                                 : NULL;
}

static lk_status check_backups(const lk_train_config *c)
{
    const char *why = why_no_backups(c);
    if (c->elastic.backup_workers == 0)
        return LK_OK;
    if (c->elastic.backup_workers >= c->workers)
        return lk_fail(LK_EINVAL,
                       "`backup_workers` %u of `workers` %u leaves none that counts: "
                       "give fewer",
                       c->elastic.backup_workers, c->workers);
    return why == NULL ? LK_OK : lk_fail(LK_EINVAL, "`backup_workers` %s", why);
}

lk_status lki_pace_check(const lk_train_config *c)
{
    LK_TRY(check_backups(c));
    const char *name   = c->strategy != NULL ? c->strategy : "ddp";
    const char *why    = why_not(c);
    const char *others = why_none_others(c);
    if (c->elastic.rebalance == LK_REBALANCE_ON && why != NULL)
        return lk_fail(LK_EINVAL, "`rebalance`: `strategy` %s %s", name, why);
    if (c->elastic.duplicate == LK_DUPLICATE_ON && others != NULL)
        return lk_fail(LK_EINVAL, "`duplicate`: `strategy` %s %s", name, others);
    return LK_OK;
}

/* ---- Its options ------------------------------------------------------------------------- */

/* Replaces each block number by the index of the block's first term. */
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

/* Returns bf16 only in bf16 runs without quantised and without offloaded parameters.  In such runs
 * blocks round the weights that they read, so bf16 weights can be sent.  Parameter files are not
 * read as bf16. */
lk_dtype lki_gather_dtype(const lk_train_config *c)
{
    bool rounds = c->precision == LK_BF16 && c->gather_dtype != LK_I8 && !lki_federates(c) &&
                  !lki_is_async(c);
    return rounds && !lki_in_files(c, LK_OFFLOADED_PARAMETERS) ? LK_BF16 : c->gather_dtype;
}

static bool strategy_files(const lk_train_config *c)
{
    return lki_in_files(c, LK_OFFLOADED_STATES | LK_OFFLOADED_PARAMETERS);
}

/* Makes the options of groups of all kinds. */
static lk_status exchange_of(const lk_train_config *c, lk_parallel_options *out)
{
    lk_exchange *exchange = NULL;
    lk_replicas *replicas = NULL;
    lk_async    *async    = NULL;
    LK_TRY(lki_exchange_of(c, &exchange));
    out->exchange = exchange;
    LK_TRY(lki_replicas_of(c, &replicas));
    out->replicas = replicas;
    LK_TRY(lki_async_of(c, &async));
    out->async = async;
    return LK_OK;
}

static lk_status options_of(const lk_train_config *c, const lk_model *model, lk_exec *exec,
                            lk_parallel_options *out)
{
    uint32_t            term_count, state_count;
    const lk_grad_term *model_terms  = lk_model_terms(model, &term_count);
    const lk_state     *model_states = lk_model_states(model, &state_count);
    lk_parallel_term   *terms        = NULL;
    lk_parallel_state  *states       = NULL;
    uint32_t           *reads        = NULL;

    *out = (lk_parallel_options){ .struct_size     = sizeof *out,
                                  .strategy        = c->strategy,
                                  .virtual_workers = c->virtual_workers,
                                  .micro_count     = c->global_batch / c->virtual_workers /
                                                 c->micro_batch,
                                  .lock_step          = lk_model_lock_step(model),
                                  .bucket_bytes       = c->bucket_bytes,
                                  .first_bucket_bytes = c->first_bucket_bytes,
                                  .optimizer          = c->optimizer,
                                  .clip_norm          = c->clip_norm,
                                  .clip_value         = c->clip_value,
                                  .noise_decay        = c->noise_decay,
                                  .audit              = c->audit,
                                  /* The built-in models use all parameters, so unused ones need not
                                   * be detected. */
                                  .unused            = LK_UNUSED_ZERO,
                                  .rebalance         = lki_rebalances(c),
                                  .rebalance_seed    = c->elastic.rebalance_seed,
                                  .duplicate         = lki_duplicates(c),
                                  .duplicate_seconds = DUPLICATE_SECONDS,
                                  .backups           = c->elastic.backup_workers,
                                  .groups            = c->groups,
                                  .group_count       = c->group_count,
                                  .scaling           = c->scaling,
                                  .comm_dtype        = c->comm_dtype,
                                  .grad_algorithm     = c->grad_algorithm,
                                  .hook              = c->calls.hook,
                                  .hook_context      = c->calls.hook_context,
                                  .seed              = c->seed,
                                  .exec              = exec,
                                  .unit_buffers      = c->unit_buffers,
                                  .shard_hosts       = c->shard_hosts,
                                  .buddies           = c->buddies && c->workers > 1,
                                  .gather_dtype      = lki_gather_dtype(c),
                                  .keep_gathered     = c->keep_gathered,
                                  .term_count        = term_count,
                                  .state_count       = state_count,
                                  .offload           = strategy_files(c) ? c->offload : NULL,
                                  .offloaded         = c->offloaded,
                                  .survives          = c->elastic.survives && c->workers > 1 };
    LK_TRY(exchange_of(c, out));
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

/* Frees the tables of terms and reads.  Each parameter then has one term, from last to first. */
static void forget_terms(lk_parallel_options *o)
{
    lki_free((lk_parallel_term *)(uintptr_t)o->terms);
    lki_free((uint32_t *)(uintptr_t)o->reads);
    o->terms      = NULL;
    o->reads      = NULL;
    o->term_count = o->read_count = 0;
}

/* With clients the object of the run has the server's optimizer.  Its gradients are changes of
 * weights, and its running state becomes the mean of the clients'. */
static void make_server(const lk_train_config *c, lk_parallel_options *o)
{
    lk_parallel_state *states = (lk_parallel_state *)(uintptr_t)o->states;
    for (uint32_t i = 0; i < o->state_count; i++)
        states[i].momentum = 1;
    forget_terms(o);
    o->optimizer   = lki_outer_optimizer(c);
    o->comm_dtype  = c->exchange.local.dtype;
    if (o->scaling.rule == LK_SCALE_AUTO) /* changes of weights need no loss scale */
        o->scaling.rule = LK_SCALE_NONE;
    o->clip_norm   = o->clip_value = 0;
    o->groups      = NULL;
    o->group_count = 0;
}

lk_status lki_parallel_options_of(const lk_train_config *c, const lk_model *model, lk_exec *exec,
                                  lk_parallel_options *out)
{
    lk_status status = options_of(c, model, exec, out);
    if (status == LK_OK && lki_federates(c))
        make_server(c, out);
    return status;
}

lk_status lki_client_options_of(const lk_train_config *c, const lk_model *model, lk_exec *exec,
                                lk_parallel_options *out)
{
    const lk_train_clients *k    = &c->exchange.clients;
    const uint64_t          step = k->batch == 0 ? k->most : lki_min(k->batch, k->most);
    LK_TRY(options_of(c, model, exec, out));
    lki_free((lk_exchange *)(uintptr_t)out->exchange);
    out->exchange        = NULL;
    out->strategy        = NULL;
    out->virtual_workers = 1;
    out->micro_count     = (uint32_t)((step + c->micro_batch - 1) / c->micro_batch);
    out->rebalance = out->duplicate = out->survives = out->buddies = false;
    out->audit           = 0;
    out->hook            = NULL;
    return LK_OK;
}

void lki_parallel_options_free(lk_parallel_options *options)
{
    lki_free((lk_parallel_term *)(uintptr_t)options->terms);
    lki_free((lk_parallel_state *)(uintptr_t)options->states);
    lki_free((uint32_t *)(uintptr_t)options->reads);
    lki_free((lk_exchange *)(uintptr_t)options->exchange);
    lki_free((lk_replicas *)(uintptr_t)options->replicas);
    lki_free((lk_async *)(uintptr_t)options->async);
}
