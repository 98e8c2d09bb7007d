/* agree.c -- checks that all ranks have the same model, and make the same calls in a step.
 *
 * What:  Hashes of a model, of options and of values that are loaded are gathered and compared with
 *        rank 0's.  In a step each rank tells in its first report what its calls were given.  If
 *        two ranks differ, all of them find it before anything is updated, and the same way.
 *        Hosts also tell the hashes of the parameters that they have computed.
 * Cost:  each rank sends 8 bytes per parameter once, and 8 bytes per tensor that is loaded.
 */
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "parallel/state.h"

/* Hashes the options, and then each parameter.  All ranks must have equal hashes. */
static void describe(const lk_parallel *parallel, const lk_parallel_options *options,
                     uint64_t *hashes)
{
    const lki_layout *layout = parallel->layout;
    const size_t      terms  = layout->term_count * sizeof *layout->terms;
    const size_t      states = parallel->running.count * sizeof *parallel->running.of;
    const size_t      rules  = layout->param_count * sizeof *parallel->rules.of;
    const size_t      reads  = parallel->slots.read_count * sizeof *parallel->slots.reads;
    size_t            limits[2];
    lki_bucket_limits(options, limits);
    uint64_t          o[]    = { parallel->leaves,
                                 parallel->micro_count,
                                 parallel->lock_step,
                                 parallel->joint,
                                 parallel->turn.adds_once,
                                 (uint64_t)parallel->rounded,
                                 (uint64_t)parallel->world.algorithm,
                                 (uint64_t)options->gather_dtype,
                                 parallel->keeps,
                                 lki_features_hash(options),
                                 options->seed,
                                 limits[0],
                                 limits[1],
                                 (uint64_t)options->optimizer.kind,
                                 parallel->state_width,
                                 lki_xxh3(layout->terms, terms),
                                 lki_xxh3(parallel->running.of, states),
                                 lki_xxh3(parallel->rules.of, rules),
                                 lki_xxh3(parallel->slots.reads, reads),
                                 parallel->slots.slot_count,
                                 parallel->shards,
                                 parallel->shard_map.buddies,
                                 lki_xxh3(parallel->ops->name, strlen(parallel->ops->name)) };
    double            f[]    = { options->clip_norm,
                                 options->clip_value,
                                 options->optimizer.ema,
                                 options->optimizer.mean_square,
                                 options->optimizer.momentum,
                                 options->optimizer.beta1,
                                 options->optimizer.beta2,
                                 options->optimizer.eps,
                                 options->optimizer.weight_decay,
                                 options->optimizer.trust,
                                 options->optimizer.nesterov,
                                 options->optimizer.momentum_of,
                                 options->optimizer.uncorrected,
                                 options->optimizer.decay_all };
    hashes[0]                = lki_xxh3(o, sizeof o) ^ lki_xxh3(f, sizeof f);
    for (uint32_t p = 0; p < layout->param_count; p++) {
        const lk_param *param              = &layout->params[p];
        uint64_t        d[LK_RANK_MAX + 7] = { param->shape.rank,
                                               lki_layout_uses(layout, p),
                                               param->no_decay,
                                               param->bf16,
                                               (uint64_t)param->init,
                                               lki_xxh3(&param->scale, sizeof param->scale),
                                               lki_xxh3(param->name, strlen(param->name)) };
        memcpy(d + 7, param->shape.dims, param->shape.rank * sizeof d[0]);
        hashes[1 + p] = lki_xxh3(d, sizeof d);
    }
}

/* Compares `count` hashes over all ranks.  Sets *differs to the index of the first hash that
 * differs from rank 0's, and *who to the rank with the different hash. */
static lk_status compare(const lk_parallel *parallel, const uint64_t *hashes, size_t count,
                         size_t *differs, uint32_t *who)
{
    uint64_t *all = NULL;
    *differs      = SIZE_MAX;
    LK_TRY(LKI_NEW(&all, count * parallel->ranks, "hashes to compare"));
    lk_status status = lk_all_gather(parallel->comm, hashes, all, count * sizeof *hashes);
    for (size_t i = 0; status == LK_OK && *differs == SIZE_MAX && i < count; i++)
        for (uint32_t r = 1; r < parallel->ranks && *differs == SIZE_MAX; r++)
            if (all[r * count + i] != all[i]) {
                *differs = i;
                *who     = r;
            }
    lki_free(all);
    return status;
}

/* Returns the rank that messages name.  An object may be that of a replica. */
static uint32_t called(const lk_parallel *parallel, uint32_t rank)
{
    return lk_comm_world_rank(parallel->comm, rank);
}

lk_status lki_verify_same_part(const lk_parallel *parallel, const lk_parallel *part,
                               const lk_parallel_options *options)
{
    uint32_t who = 0;
    size_t   differs, count = (size_t)part->layout->param_count + 1;
    uint64_t params = count - 1, *hashes = NULL;
    LK_TRY(compare(parallel, &params, 1, &differs, &who));
    if (differs != SIZE_MAX)
        return lk_fail(LK_EMISMATCH,
                       "ranks %u and %u describe models with different numbers of "
                       "parameters (rank %u has %llu)",
                       called(parallel, 0), called(parallel, who), called(parallel, parallel->rank),
                       (unsigned long long)params);
    LK_TRY(LKI_NEW(&hashes, count, "hashes to compare"));
    describe(part, options, hashes);
    lk_status status = compare(parallel, hashes, count, &differs, &who);
    lki_free(hashes);
    LK_TRY(status);
    if (differs == 0)
        return lk_fail(LK_EMISMATCH,
                       "ranks %u and %u were given different options (virtual workers, those of a "
                       "turn, micro-batches, optimizer, groups or rules, clipping, seed, buckets, "
                       "types of what travels, order of gradient terms or of reads, running state, "
                       "or those of a feature)",
                       called(parallel, 0), called(parallel, who));
    if (differs != SIZE_MAX)
        return lk_fail(LK_EMISMATCH,
                       "ranks %u and %u disagree about parameter %zu, '%s' on rank %u: "
                       "its name, shape, uses, initialisation or what it may be read as differ",
                       called(parallel, 0), called(parallel, who), differs - 1,
                       part->layout->params[differs - 1].name,
                       called(parallel, parallel->rank));
    return LK_OK;
}

lk_status lki_verify_same_model(lk_parallel *parallel, const lk_parallel_options *options)
{
    return lki_verify_same_part(parallel, parallel, options);
}

lk_status lki_verify_same_values(lk_parallel *parallel, const char *name, const float *values,
                                 size_t count)
{
    uint32_t who = 0;
    size_t   differs;
    uint64_t hash = lki_xxh3(values, count * sizeof *values);
    LK_TRY(compare(parallel, &hash, 1, &differs, &who));
    if (differs != SIZE_MAX)
        return lk_fail(LK_EMISMATCH,
                       "ranks %u and %u start with different values of '%s'; every rank "
                       "must load the same",
                       called(parallel, 0), called(parallel, who), name);
    return LK_OK;
}

/* ---- A step ------------------------------------------------------------------------------ */

/* Combines the hashes of this rank's spans.  The result must not depend on their order, because
 * hosts may assign spans to their ranks differently. */
static uint64_t hash_of_written(const lk_parallel *parallel)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < parallel->owned.count; i++) {
        const uint64_t words[2] = { parallel->owned.spans[i],
                                    parallel->owned.hashes[parallel->owned.spans[i]] };
        hash ^= lki_xxh3(words, sizeof words);
    }
    return hash;
}

/* Returns the report in which a rank tells about itself. */
static const lki_report *told_by(const lk_parallel *parallel, uint32_t rank)
{
    return lki_report_of(parallel, lki_share_of(&parallel->dealing, rank).first);
}

static uint64_t written_by(const lk_parallel *parallel, uint32_t host)
{
    uint64_t whole = 0;
    for (uint32_t r = 0; r < parallel->ranks; r++)
        if (parallel->world.host_of[r] == host)
            whole ^= told_by(parallel, r)->written;
    return whole;
}

/* Returns the first rank on a host, as messages name it. */
static uint32_t rank_on(const lk_parallel *parallel, uint32_t host)
{
    uint32_t rank = 0;
    while (parallel->world.host_of[rank] != host)
        rank++;
    return lk_comm_world_rank(parallel->comm, rank);
}

/* Compares the hashes of the values that hosts with the same shards have computed.  The hashes must
 * be equal. */
static lk_status compare_hosts(const lk_parallel *parallel)
{
    for (uint32_t host = 1; host < parallel->world.hosts; host++) {
        uint32_t first = 0;
        while (!lki_shard_map_alike(parallel, first, host))
            first++;
        if (first < host && written_by(parallel, host) != written_by(parallel, first))
            return lk_fail(LK_ECORRUPT,
                           "step %llu: the hosts of ranks %u and %u have computed different "
                           "parameters from the same sums; a processor of one of them is faulty, "
                           "or they run different programs",
                           (unsigned long long)parallel->step, rank_on(parallel, first),
                           rank_on(parallel, host));
    }
    return LK_OK;
}

/* Combines the rules of all parameters, without values that no rule uses. */
static uint64_t hash_of_rules(const lk_parallel *parallel)
{
    struct { uint64_t before; lk_param_rule rule; } words = { .before = 0 };
    for (uint32_t p = 0; p < parallel->layout->param_count; p++) {
        words.rule = parallel->rules.of[p];
        if (words.rule.own_decay == 0)
            words.rule.weight_decay = 0;
        words.before = lki_xxh3(&words, sizeof words);
    }
    return words.before;
}

static lki_asked asked_of(const lk_parallel *parallel)
{
    return (lki_asked){ .step  = parallel->step,
                        .lr    = parallel->now.lr,
                        .seed  = parallel->now.seed,
                        .rules = hash_of_rules(parallel) };
}

lk_status lki_step_compare(const lk_parallel *parallel, lki_asked first, lki_asked other,
                           uint32_t rank)
{
    const unsigned long long step   = first.step + 1;
    const bool               update = parallel->optimizer.kind != LK_OPTIMIZER_NONE;
    const uint32_t           zero   = called(parallel, 0);
    if (first.step != other.step)
        return lk_fail(LK_EMISMATCH, "rank %u is in step %llu and rank %u in step %llu; every rank "
                       "must begin the same step", zero, step, called(parallel, rank),
                       (unsigned long long)other.step + 1);
    if (update && first.lr != other.lr)
        return lk_fail(LK_EMISMATCH, "step %llu: rank %u has the learning rate %.17g and rank %u "
                       "%.17g; every rank must give the same", step, zero, first.lr,
                       called(parallel, rank), other.lr);
    if (update && first.rules != other.rules)
        return lk_fail(LK_EMISMATCH, "step %llu: ranks %u and %u have set different rules of "
                       "parameters; every rank must set the same", step, zero,
                       called(parallel, rank));
    if (first.seed != other.seed)
        return lk_fail(LK_EMISMATCH, "step %llu: ranks %u and %u have asked for the loss scale of "
                       "different counts; every rank must give the same", step, zero,
                       called(parallel, rank));
    return LK_OK;
}

void lki_step_tell(lk_parallel *parallel)
{
    lki_report *report = lki_report_of(parallel, parallel->share.first);
    report->asked      = asked_of(parallel);
    if (parallel->world.hosts > 1)
        report->written = hash_of_written(parallel);
}

lk_status lki_step_agree(const lk_parallel *parallel)
{
    for (uint32_t r = 1; r < parallel->ranks; r++)
        LK_TRY(lki_step_compare(parallel, told_by(parallel, 0)->asked, told_by(parallel, r)->asked,
                                r));
    return compare_hosts(parallel);
}
