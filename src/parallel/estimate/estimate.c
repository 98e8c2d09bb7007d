/* estimate.c -- computes the memory and the traffic of a strategy.
 *
 * It uses the functions with which the strategy itself places its memory.
 *
 * Memory is that of the arenas, exact to the byte, and with audits each rank's private buffers.
 * Traffic consists of the bytes that tree_reduce and the gathering of parameters send
 * (comm/span/forest.c, shards.c), without the few bytes by which ranks agree.  If several hosts
 * need the same sums, each host is assumed to compute an equal part of them (direct), unless linear
 * is selected.
 */
#include "base/memory.h"
#include "comm/scratch.h"
#include "device/quantise.h"
#include "device/reduce.h"
#include "parallel/estimate/dealt.h"
#include "parallel/joint.h"
#include "parallel/stored.h"
#include "parallel/offload/offload.h"
#include "parallel/strategies/shards.h"
#include "parallel/strategies/units.h"

/* ---- Traffic ----------------------------------------------------------------------------- */

uint32_t lki_count_branches(const lk_parallel *parallel, uint32_t first, uint32_t count,
                            uint32_t host)
{
    uint32_t have = 0;
    for (uint32_t leaf = first; leaf < first + count; leaf++)
        have += parallel->world.host_of[lki_share_rank(&parallel->dealing, leaf)] == host;
    if (have == count || have == 0)
        return have == count;
    uint32_t left = lki_tree_left(count);
    return lki_count_branches(parallel, first, left, host) +
           lki_count_branches(parallel, first + left, count - left, host);
}

/* Bytes of a shard: those of its sums, and those of its parameters times the number of sends per
 * step.  copies: the number of hosts that store the shard. */
typedef struct {
    uint64_t sums, params, copies;
} shard_bytes;

typedef struct {
    lk_parallel *parallel;
    uint64_t    *times;  /* [bucket_count]: how often the bucket's parameters are sent per step */
    shard_bytes *shards;
} accounts;

static void add_run(void *context, const lki_param_run *s)
{
    const accounts *a = context;
    a->shards[a->parallel->layout->owners[s->owner].shard].params +=
        a->times[lki_unit_of(a->parallel->layout, s->param)] * s->times *
        lki_shards_run_bytes(a->parallel, s);
}

/* Adds the bytes of each shard.  Blocks of quantised elements never cross a span, so an owner's
 * spans have whole blocks. */
static void count_shards(const accounts *a)
{
    const lki_layout *layout = a->parallel->layout;
    for (uint32_t o = 0; o < layout->owner_count; o++)
        a->shards[layout->owners[o].shard].sums +=
            lki_rounded_bytes(a->parallel->rounded, layout->owned[o]);
    for (uint32_t shard = 0; shard < layout->shards; shard++)
        a->shards[shard].copies = lki_shard_map_count(a->parallel, shard);
    if (layout->shards > 1)
        lki_layout_walk(layout, add_run, (void *)(uintptr_t)a);
}

/* Returns the bytes of a shard's gradients and sums that a host sends. */
static uint64_t sent_of(const lk_parallel *parallel, const lki_passes *passes,
                        const shard_bytes *s, bool has)
{
    if (parallel->world.algorithm == LK_TREE_LINEAR)
        return passes->branches * (s->copies - has) * s->sums;
    return has ? (passes->branches + passes->sums) * (s->copies - 1) * s->sums / s->copies
               : passes->branches * s->sums;
}

/* Adds the bytes that a host sends.  If several hosts need the same sums, each of them computes a
 * part from the gradients of all hosts, and sends it to the other hosts.  A host sends the
 * parameters that it stores to all other hosts of its group. */
static void count_sent(const accounts *a, uint32_t host, lk_parallel_cost *cost)
{
    const lk_parallel *parallel = a->parallel;
    lki_passes         passes   = parallel->ops->passes(parallel, host);
    uint64_t           hosts    = parallel->world.hosts;
    uint64_t           states   = parallel->micro_count * parallel->state_width * sizeof(float);
    uint64_t           stored = 0, whole = 0, passed = passes.branches + passes.sums;

    for (uint32_t shard = 0; shard < parallel->layout->shards; shard++) {
        const shard_bytes *s = &a->shards[shard];
        whole += sent_of(parallel, &passes, s, lki_shard_map_has(parallel, host, shard));
        if (lki_giver(parallel, host, shard) == host)
            stored += s->params;
    }
    whole += passed * (hosts - 1) * states / hosts;
    cost->sent_gradients += parallel->effects.cut == 0 ? whole
                                                       : lki_features_sent(parallel, host);
    cost->sent_before += parallel->effects.cut_from > 0 ? whole : 0;
    cost->sent_params += (parallel->layout->shards - 1) * stored;
}

/* ---- Memory ------------------------------------------------------------------------------ */

/* Counts the memory of the arena, and each rank's buffers for values in files. */
static void count_memory(lk_parallel *parallel, lk_parallel_cost *cost)
{
    const lki_layout *layout = parallel->layout;
    size_t            stored = lki_stored_elements(parallel);
    if (!(parallel->offload.kinds & LK_OFFLOADED_PARAMETERS))
        cost->params = (parallel->parted ? stored : layout->elements) * sizeof(float);
    if (parallel->gathers)
        cost->params += lki_units_bytes(parallel) + lki_units_parcels(parallel);
    else
        cost->params += lki_reading_bytes(parallel);
    if (!(parallel->offload.kinds & LK_OFFLOADED_STATES))
        cost->optimizer = lk_optimizer_state_count(&parallel->optimizer) * stored * sizeof(float);
    cost->tables = lki_parallel_arena(parallel) - cost->params - cost->optimizer;
    cost->params += lki_offload_params_memory(parallel);
    cost->optimizer += lki_offload_states_memory(parallel);
    cost->files = lki_offload_files(parallel);
    cost->shard = lki_stored_most(parallel);
}

/* Returns the bytes of messages of a host.  It receives about as many bytes of gradients as it
 * sends.  If several ranks sum before sending, or sums are rounded, the message needs separate
 * memory. */
static size_t message_bytes(const lk_parallel *parallel, uint32_t host, uint64_t sent)
{
    const size_t most  = (size_t)LKI_TASK_ROOMS * LKI_TASK_SEGMENT_BYTES;
    const bool   makes = parallel->world.sizes[host] > 1 || lki_rounds(parallel->rounded);
    return lki_min((size_t)sent * (makes ? 2 : 1), parallel->world.sizes[host] * most);
}

/* Counts how often parameters are gathered: once after the update, or at every read. */
static lk_status count_gathers(lk_parallel *parallel, uint64_t *times)
{
    const uint32_t count   = parallel->layout->bucket_count;
    lki_gathers   *gathers = NULL;
    lk_status      status  = LKI_NEW(&gathers, count, "times units are gathered");

    if (status == LK_OK && parallel->gathers)
        status = lki_units_count(parallel, lki_units_turns(parallel), gathers);
    for (uint32_t b = 0; status == LK_OK && b < count; b++) {
        const lki_gathers *g = &gathers[b];
        times[b] = parallel->gathers ? g->first[0] + g->first[1] + g->others[0] + g->others[1] : 1;
    }
    lki_free(gathers);
    return status;
}

static lk_status estimate(const accounts *a, lk_parallel_cost *cost)
{
    lk_parallel *parallel = a->parallel;
    count_memory(parallel, cost);
    LK_TRY(count_gathers(parallel, a->times));
    count_shards(a);
    for (uint32_t host = 0; host < parallel->world.hosts; host++) {
        lk_parallel_cost sent  = { 0 };
        size_t           bytes = parallel->ops->bytes(parallel, host);
        if (bytes == 0)
            return lk_fail(LK_ENOMEM, "the gradients of this model are more bytes than can be "
                                      "counted");
        cost->gradients = lki_max(cost->gradients, bytes);
        count_sent(a, host, &sent);
        cost->messages =
            lki_max(cost->messages, message_bytes(parallel, host, lki_max(sent.sent_gradients,
                                                                          sent.sent_before)));
        if (sent.sent_gradients + sent.sent_params > cost->sent_gradients + cost->sent_params) {
            cost->sent_gradients = sent.sent_gradients;
            cost->sent_params    = sent.sent_params;
            cost->sent_before    = sent.sent_before;
        }
    }
    return LK_OK;
}

lk_status lki_estimate_describe(lk_parallel **out, const lk_param *params, uint32_t param_count,
                                const lk_parallel_options *options, const uint32_t *host_sizes,
                                uint32_t hosts, const lki_part *part)
{
    LK_TRY(LKI_NEW(out, 1, "strategy"));
    (*out)->joint          = part->joint;
    (*out)->offload.elsewhere = part->bare;
    (*out)->dealing.bounds = part->bounds;
    LK_TRY(lki_world_init(&(*out)->world, host_sizes, hosts));
    return lki_parallel_describe(*out, params, param_count, options);
}

lk_status lki_estimate_dealt(lk_parallel_cost *out, const lk_param *params, uint32_t param_count,
                             const lk_parallel_options *options, const uint32_t *host_sizes,
                             uint32_t hosts, uint32_t joint, const uint32_t *bounds)
{
    lk_parallel *parallel = NULL;
    accounts     a        = { 0 };

    *out = (lk_parallel_cost){ 0 };
    const lki_part part   = { .joint = joint, .bounds = bounds };
    lk_status      status = lki_estimate_describe(&parallel, params, param_count, options,
                                                  host_sizes, hosts, &part);
    a.parallel = parallel;
    if (status == LK_OK)
        status = LKI_NEW(&a.times, parallel->layout->bucket_count, "times units are gathered");
    if (status == LK_OK)
        status = LKI_NEW(&a.shards, parallel->layout->shards, "what travels of shards");
    if (status == LK_OK)
        status = estimate(&a, out);
    if (status == LK_OK && options->audit > 0) /* each rank has memory for a recomputed gradient */
        out->gradients += parallel->world.widest * parallel->width * sizeof(float);
    lki_free(a.times);
    lki_free(a.shards);
    lk_parallel_free(parallel);
    return status;
}

static lk_status check_hosts(const uint32_t *host_sizes, uint32_t hosts)
{
    static const char call[] = "lk_parallel_estimate";

    LK_TRY(lki_check_given(call, "host_sizes", host_sizes, hosts));
    for (uint32_t host = 0; host < hosts; host++)
        if (host_sizes[host] == 0)
            return lk_fail(LK_EINVAL, "%s: host %u has no worker", call, host);
    return hosts > 0 ? LK_OK : lk_fail(LK_EINVAL, "%s: there must be a host", call);
}

lk_status lki_parallel_estimate_joint(lk_parallel_cost *out, const lk_param *params,
                                      uint32_t param_count, const lk_parallel_options *options,
                                      const uint32_t *host_sizes, uint32_t hosts, uint32_t most)
{
    lk_parallel_options mine;

    *out = (lk_parallel_cost){ 0 };
    LK_TRY(lki_parallel_take(&mine, params, param_count, options));
    LK_TRY(check_hosts(host_sizes, hosts));
    if (mine.async != NULL)
        return lki_estimate_versions(out, params, param_count, &mine, host_sizes, hosts, most);
    return mine.replicas != NULL
               ? lki_estimate_replicas(out, params, param_count, &mine, host_sizes, hosts, most)
               : lki_estimate_dealt(out, params, param_count, &mine, host_sizes, hosts, most,
                                    NULL);
}

lk_status lk_parallel_estimate(lk_parallel_cost *out, const lk_param *params, uint32_t param_count,
                               const lk_parallel_options *options, const uint32_t *host_sizes,
                               uint32_t hosts)
{
    return lki_parallel_estimate_joint(out, params, param_count, options, host_sizes, hosts, 1);
}
