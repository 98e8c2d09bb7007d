/* shards.c -- who owns what, and how the parts that hosts keep of a model come together.
 *
 * A strategy that keeps everything on every host has one shard: the ranks of each host own it.
 * One that shards has a shard on each host, and every rank of the job owns spans of its own.  Then
 * sums of squares, new parameters, and what somebody asks for travel from owners to all hosts.
 *
 * Between the two, neighbouring hosts are a group that has all shards, and every group has owners
 * of its own for everything; that travels inside of groups only:
 *
 *      hosts       0   1  |  2   3  |  4   5         2 shards, 3 groups
 *      shards      0   1  |  0   1  |  0   1
 *
 * Cost: of n bytes that are gathered each host sends its part to all others of its group:
 *       (S-1)/S n for S shards over all of its ranks if parts are equal.
 */
#include "parallel/strategies/shards.h"

#include <string.h>

#include "base/memory.h"
#include "device/quantise.h"
#include "parallel/offload/offload.h"

/* A part of the model's arena in which every owner's piece lies behind that of the one before. */
struct lki_piece_list {
    size_t  offset;
    size_t *bytes; /* [owner_count]: of each rank of the group, which may be fewer */
};

/* ---- Owners ------------------------------------------------------------------------------ */

lk_status lki_shards_count(lk_parallel *parallel, uint32_t shard_hosts)
{
    const uint32_t hosts = parallel->world.hosts, each = shard_hosts > 0 ? shard_hosts : 1;
    const lk_parallel *before = parallel->ledger.before;

    if (before != NULL && before->shards > 1 && before->world.hosts != hosts)
        return lk_fail(LK_EPEER, "with strategy %s each of %u hosts has a part of the model alone, "
                       "and %u are left: start again from the newest checkpoint",
                       parallel->ops->name, before->world.hosts, hosts);
    parallel->shards = !parallel->ops->sharded ? 1 : parallel->ops->replicates ? each : hosts;
    if (parallel->shards > hosts || hosts % parallel->shards != 0)
        return lk_fail(LK_EINVAL, "%u hosts cannot be cut into groups of %u that share a model: "
                       "give a --shard-hosts that divides them", hosts, parallel->shards);
    parallel->shard = lki_shard_of(parallel, parallel->world.host_of[parallel->rank]);
    return LK_OK;
}

static uint32_t group_of(const lk_parallel *parallel, uint32_t rank)
{
    return parallel->world.host_of[rank] / parallel->shards;
}

/* Where the rank of my group that has this number on the host of a shard stands in the group. */
static uint32_t place_of(const lk_parallel *parallel, uint32_t shard, uint32_t local)
{
    const uint32_t *sizes = parallel->world.sizes;
    uint32_t        first = group_of(parallel, parallel->rank) * parallel->shards, place = 0;

    for (uint32_t host = first; host < first + shard; host++)
        place += sizes[host];
    return place + local % sizes[first + shard];
}

/* The ranks of the first group, in order.  Every other group has as many, in the same places. */
static lk_status deal_to_groups(lk_parallel *parallel, const lki_world *world, lki_deal *deal)
{
    for (uint32_t r = 0; r < world->ranks; r++) {
        lki_owner owner = { lki_shard_of(parallel, world->host_of[r]), world->local_of[r] };
        uint32_t  group = world->host_of[r] / parallel->shards, at = 0;
        for (uint32_t other = 0; other < r; other++)
            at += world->host_of[other] / parallel->shards == group;
        if (group == 0)
            deal->owners[deal->count++] = owner;
        else if (at >= deal->count || deal->owners[at].shard != owner.shard ||
                 deal->owners[at].local != owner.local)
            return lk_fail(LK_EUNSUPPORTED, "strategy %s over groups of %u hosts needs as many "
                           "workers on hosts %u and %u", parallel->ops->name, parallel->shards,
                           owner.shard, world->host_of[r]);
    }
    if (deal->count * (world->hosts / parallel->shards) != world->ranks)
        return lk_fail(LK_EUNSUPPORTED, "strategy %s over groups of %u hosts needs as many workers "
                       "on each of them", parallel->ops->name, parallel->shards);
    return LK_OK;
}

static lk_status copy_owners(lki_deal *to, const lki_deal *from)
{
    to->count = from->count;
    LK_TRY(LKI_NEW(&to->owners, from->count, "owners"));
    memcpy(to->owners, from->owners, from->count * sizeof *from->owners);
    return LK_OK;
}

/* Who owned what when the run began: those who were there know it, and who has entered since finds
 * it out. */
static lk_status deal_at_first(lk_parallel *parallel, lki_deal *deal)
{
    const lk_parallel *before = parallel->ledger.before;
    const bool         late   = parallel->ledger.goes_on;
    const lki_deal    *known  = before != NULL ? &before->ledger.dealt : &parallel->ledger.dealt;
    lki_world          first  = { 0 };

    if (known->owners != NULL)
        return copy_owners(deal, known);
    lk_status status = late ? lki_world_first(&first, parallel->comm) : LK_OK;
    if (status == LK_OK)
        status = LKI_NEW(&deal->owners, late ? first.ranks : parallel->ranks, "owners");
    if (status == LK_OK)
        status = deal_to_groups(parallel, late ? &first : &parallel->world, deal);
    lki_world_deinit(&first);
    return status;
}

/* Whoever is left of a host goes on for the others that were there.  A host that is lost takes its
 * part along. */
static lk_status deal_shards(lk_parallel *parallel, lki_deal *deal)
{
    LK_TRY(deal_at_first(parallel, deal));
    parallel->owner = place_of(parallel, parallel->shard, parallel->local);
    if (!parallel->ledger.kept)
        return LK_OK;
    if (parallel->ledger.dealt.owners == NULL)
        LK_TRY(copy_owners(&parallel->ledger.dealt, deal));
    for (uint32_t o = 0; o < deal->count; o++)
        deal->owners[o].local %= parallel->world.widest;
    return LK_OK;
}

lk_status lki_shards_deal(lk_parallel *parallel, lki_deal *deal)
{
    *deal = (lki_deal){ .shards       = parallel->shards,
                        .whole_blocks = parallel->ops->whole_blocks };
    if (parallel->shards > 1)
        return deal_shards(parallel, deal);
    LK_TRY(LKI_NEW(&deal->owners, parallel->ranks, "owners"));
    parallel->owner = parallel->local;
    for (; deal->count < parallel->world.widest; deal->count++)
        deal->owners[deal->count] = (lki_owner){ 0, deal->count };
    return LK_OK;
}

lk_status lki_state_slices(const lk_parallel *parallel, lk_slice **out, size_t *count)
{
    const uint32_t owners = parallel->world.widest;
    lk_slice      *slices = NULL;

    *count = 0;
    LK_TRY(LKI_NEW(&slices, (size_t)parallel->micro_count * owners, "running state slices"));
    for (uint32_t k = 0; k < parallel->micro_count; k++)
        for (uint32_t o = 0; o < owners; o++) {
            size_t begin = parallel->state_width * o / owners;
            size_t end   = parallel->state_width * (o + 1) / owners;
            if (end > begin)
                slices[(*count)++] = (lk_slice){ .first = k * parallel->state_width + begin,
                                                 .count = end - begin,
                                                 .owner = o };
        }
    *out = slices;
    return LK_OK;
}

/* ---- Places ------------------------------------------------------------------------------ */

/* Owners of a shard before the one of this number; and, where that is their count, all. */
static uint32_t owners_of(const lki_layout *layout, uint32_t shard, uint32_t end)
{
    uint32_t count = 0;
    for (uint32_t o = 0; o < end; o++)
        count += layout->owners[o].shard == shard;
    return count;
}

uint32_t lki_shards_carrier(const lk_parallel *parallel, uint32_t owner)
{
    const lki_layout *layout = parallel->layout;
    uint32_t          shard  = layout->owners[owner].shard;
    uint32_t          host   = group_of(parallel, parallel->rank) * parallel->shards + shard;

    return place_of(parallel, shard, parallel->world.sizes[host] * owners_of(layout, shard, owner) /
                                         owners_of(layout, shard, layout->owner_count));
}

/* Whether that may be somebody else than the rank that has made it: then they meet before.  Before
 * sums are gathered they always have. */
static bool carries_for_others(const lk_parallel *parallel)
{
    return parallel->layout->owner_count > lk_comm_size(parallel->group);
}

/* ---- Gathering --------------------------------------------------------------------------- */

static size_t offset_of(const lk_parallel *parallel, const void *at)
{
    return (size_t)((const char *)at - (const char *)lk_arena_data(parallel->arena));
}

static lk_status list_sums(lk_parallel *parallel, lki_piece_list *list)
{
    LK_TRY(LKI_NEW(&list->bytes, parallel->layout->owner_count, "pieces of sums"));
    list->offset = offset_of(parallel, parallel->block_sums);
    for (size_t i = 0; i < parallel->layout->span_count; i++)
        list->bytes[lki_shards_carrier(parallel, parallel->layout->spans[i].owner)] +=
            parallel->measures * sizeof *parallel->block_sums;
    return LK_OK;
}

/* The parameters of a bucket lie together, in order of owner. */
static lk_status list_params(lk_parallel *parallel, const lki_bucket *bucket, lki_piece_list *list)
{
    const lki_layout *layout = parallel->layout;
    size_t            first  = SIZE_MAX;

    LK_TRY(LKI_NEW(&list->bytes, layout->owner_count, "pieces of parameters"));
    for (size_t i = 0; i < layout->span_count; i++) {
        const lki_param_span *span = &layout->spans[i];
        size_t                at   = lki_layout_grad_at(layout, span, 0);
        if (at < bucket->first || at >= bucket->first + bucket->count)
            continue;
        first = lki_min(first, span->at);
        list->bytes[lki_shards_carrier(parallel, span->owner)] +=
            lki_shards_span_bytes(parallel, span);
    }
    if (first < SIZE_MAX && !parallel->gathers) /* it may have further uses of shared ones only */
        list->offset = offset_of(parallel, parallel->params + first);
    return LK_OK;
}

lk_status lki_shards_open(lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;

    if (parallel->shards == 1 && !parallel->gathers)
        return LK_OK;
    parallel->group = parallel->comm;
    if (parallel->shards < parallel->world.hosts)
        LK_TRY(lk_comm_split(&parallel->group, parallel->comm, group_of(parallel, parallel->rank),
                             parallel->rank));
    LK_TRY(LKI_NEW(&parallel->pieces, layout->bucket_count + 1, "pieces of a model"));
    LK_TRY(list_sums(parallel, &parallel->pieces[0]));
    for (uint32_t b = 0; b < layout->bucket_count; b++)
        LK_TRY(list_params(parallel, &layout->buckets[b], &parallel->pieces[1 + b]));
    return LK_OK;
}

void lki_shards_close(lk_parallel *parallel)
{
    for (uint32_t b = 0; parallel->pieces != NULL && b <= parallel->layout->bucket_count; b++)
        lki_free(parallel->pieces[b].bytes);
    lki_free(parallel->pieces);
    if (parallel->group != parallel->comm)
        lk_comm_free(parallel->group);
}

static lk_status gather(lk_parallel *parallel, const lki_piece_list *list)
{
    return lk_arena_mirror(parallel->group, parallel->arena, list->offset, list->bytes);
}

lk_status lki_shards_gather_sums(lk_parallel *parallel)
{
    return parallel->shards == 1 ? LK_OK : gather(parallel, &parallel->pieces[0]);
}

lk_status lki_shards_gather_unit(lk_parallel *parallel, lk_comm *comm, const size_t *bytes,
                                 const void *at, const lki_filler *filler, lk_request **coming)
{
    return lki_arena_fill_start(coming, comm, parallel->arena, offset_of(parallel, at), bytes,
                                filler);
}

const size_t *lki_shards_unit_bytes(const lk_parallel *parallel, uint32_t unit)
{
    return parallel->pieces[1 + unit].bytes;
}

size_t lki_shards_span_bytes(const lk_parallel *parallel, const lki_param_span *span)
{
    if (parallel->gathers && parallel->quantised)
        return lki_rounded_bytes(LK_I8, span->count);
    return lki_layout_width(parallel->layout, span) * sizeof(float);
}

lk_status lki_shards_gather_params(lk_parallel *parallel)
{
    if (parallel->shards > 1 && carries_for_others(parallel))
        LK_TRY(lk_barrier(parallel->comm));
    for (uint32_t b = 0; parallel->shards > 1 && b < parallel->layout->bucket_count; b++)
        LK_TRY(gather(parallel, &parallel->pieces[1 + b]));
    return LK_OK;
}

/* ---- Asking for values ------------------------------------------------------------------- */

/* What [first, first + count) of a parameter has of a span. */
static size_t overlap(const lki_param_span *span, size_t first, size_t count, size_t *from)
{
    size_t end = lki_min(first + count, span->inside + span->count);
    *from      = first > span->inside ? first : span->inside;
    return end > *from ? end - *from : 0;
}

/* Values are given by their owners to those of a group, or where every host has owners for all by
 * the first host's ranks to everybody: whose place gives a span's, mine, and how many there are. */
static uint32_t giver_of(const lk_parallel *parallel, const lki_param_span *span)
{
    const lki_owner *owner = &parallel->layout->owners[span->owner];
    return parallel->shards > 1 ? place_of(parallel, owner->shard, owner->local)
                                : span->owner % parallel->world.sizes[0];
}

static uint32_t my_place(const lk_parallel *parallel)
{
    return parallel->shards > 1 ? lk_comm_rank(parallel->group) : parallel->rank;
}

static uint32_t place_count(const lk_parallel *parallel)
{
    return parallel->shards > 1 ? lk_comm_size(parallel->group) : parallel->ranks;
}

/* Copies my spans' part of the range to `packed`, or everybody's from there to `out`.  What is laid
 * aside in a file has no `kept`. */
static lk_status pack(lk_parallel *parallel, uint32_t param, uint32_t which, const float *kept,
                      size_t first, size_t count, float *packed)
{
    const lki_layout *layout = parallel->layout;
    for (size_t i = layout->first_span[param]; i < layout->first_span[param + 1]; i++) {
        const lki_param_span *span = &layout->spans[i];
        size_t                from, n = overlap(span, first, count, &from);
        if (giver_of(parallel, span) != my_place(parallel) || n == 0)
            continue;
        if (kept != NULL)
            memcpy(packed, kept + span->kept + (from - span->inside), n * sizeof *packed);
        else
            LK_TRY(lki_offload_get(parallel, i, which, from - span->inside, n, packed));
        packed += n;
    }
    return LK_OK;
}

static void unpack(const lk_parallel *parallel, uint32_t param, const float *packed, size_t *at,
                   size_t first, size_t count, float *out)
{
    const lki_layout *layout = parallel->layout;
    for (size_t i = layout->first_span[param]; i < layout->first_span[param + 1]; i++) {
        const lki_param_span *span = &layout->spans[i];
        size_t                from, n = overlap(span, first, count, &from);
        if (n == 0)
            continue;
        size_t *next = &at[giver_of(parallel, span)];
        memcpy(out + (from - first), packed + *next / sizeof *out, n * sizeof *out);
        *next += n * sizeof *out;
    }
}

static lk_status gather_values(lk_parallel *parallel, uint32_t param, uint32_t which, size_t first,
                               size_t count, float *out, float *packed, size_t *bytes)
{
    const bool   aside = parallel->in_files & (which == 0 ? LK_OFFLOADED_PARAMETERS
                                                          : LK_OFFLOADED_STATES);
    const float *kept  = aside        ? NULL
                         : which == 0 ? parallel->params
                                      : parallel->optimizer_state[which - 1];
    const lki_layout *layout = parallel->layout;
    const uint32_t    places = place_count(parallel);
    size_t           *at     = bytes + places, before = 0, from;

    for (size_t i = layout->first_span[param]; i < layout->first_span[param + 1]; i++)
        bytes[giver_of(parallel, &layout->spans[i])] +=
            overlap(&layout->spans[i], first, count, &from) * sizeof *out;
    for (uint32_t o = 0; o < places; o++) {
        at[o] = before;
        before += bytes[o];
    }
    float *mine = packed + at[my_place(parallel)] / sizeof *packed;
    LK_TRY(pack(parallel, param, which, kept, first, count, mine));
    LK_TRY(lk_all_gather_v(parallel->shards > 1 ? parallel->group : parallel->comm, mine, packed,
                           bytes));
    unpack(parallel, param, packed, at, first, count, out);
    return LK_OK;
}

lk_status lk_parallel_fetch(lk_parallel *parallel, uint32_t param, uint32_t which, size_t first,
                            size_t count, float *out)
{
    const lki_layout *layout = parallel->layout;
    const float      *values;
    float            *packed = NULL;
    size_t           *bytes  = NULL;

    if (param >= layout->param_count || which > lk_optimizer_state_count(&parallel->optimizer) ||
        first > layout->sizes[param] || count > layout->sizes[param] - first)
        return lk_fail(LK_EINVAL, "there are no elements %zu to %zu of value %u of parameter %u",
                       first, first + count, which, param);
    values = lk_parallel_value(parallel, param, which);
    if (values != NULL) {
        memcpy(out, values + first, count * sizeof *out);
        return LK_OK;
    }
    LK_TRY(LKI_NEW(&bytes, 2 * (size_t)place_count(parallel), "sizes of pieces"));
    lk_status status = LKI_NEW(&packed, count, "pieces of values");
    if (status == LK_OK)
        status = gather_values(parallel, param, which, first, count, out, packed, bytes);
    lki_free(packed);
    lki_free(bytes);
    return status;
}
