/* shards.c -- the owners of spans, and the gathering of shards.
 *
 * A strategy that stores the whole model on every host has one shard, owned by the ranks of each
 * host.  With a sharding strategy each host has a shard, and every rank of the job owns different
 * spans.  Owners then send sums of squares, new parameters and requested values to all hosts.  If
 * each group of hosts has all shards (shard_map.c), owners send only within their group.
 *
 * Cost: to gather n bytes, each host sends its part to all other hosts of its group.  With S equal
 *       parts, all ranks of a host together send (S-1)/S n bytes.
 */
#include "parallel/strategies/shards.h"

#include <string.h>

#include "base/memory.h"
#include "device/quantise.h"
#include "parallel/offload/offload.h"

/* A part of the model's arena in which the owners' pieces are consecutive. */
struct lki_piece_list {
    size_t  offset;
    size_t *bytes; /* [ranks of the group] */
};

/* ---- Owners ------------------------------------------------------------------------------ */

static uint32_t group_of(const lk_parallel *parallel, uint32_t rank)
{
    return lki_group_of(parallel, parallel->world.host_of[rank]);
}

/* Orders the hosts of a group by the shards that they store, which is the order of the data that
 * they send. */
static bool is_before(const lk_parallel *parallel, uint32_t host, uint32_t other)
{
    const uint32_t *origins = parallel->shard_map.origins;
    uint32_t        left    = origins[host] % parallel->shards;
    uint32_t        right   = origins[other] % parallel->shards;
    return left != right ? left < right : host < other;
}

/* Returns the number, in this rank's group, of the rank with local number `local` on `host`. */
static uint32_t place_on(const lk_parallel *parallel, uint32_t host, uint32_t local)
{
    const lki_world *world = &parallel->world;
    uint32_t         place = local % world->sizes[host];

    for (uint32_t other = 0; other < world->hosts; other++)
        if (lki_group_of(parallel, other) == lki_group_of(parallel, host) &&
            is_before(parallel, other, host))
            place += world->sizes[other];
    return place;
}

/* Returns the host that sends a shard to this host; it may be this host itself. */
static uint32_t giver_to_me(const lk_parallel *parallel, uint32_t shard)
{
    return lki_giver(parallel, parallel->world.host_of[parallel->rank], shard);
}

/* Appoints the ranks of the first group as owners, in order.  Every other group must have as many
 * ranks, at the same positions. */
static lk_status deal_to_groups(lk_parallel *parallel, const lki_world *world, lki_deal *deal)
{
    for (uint32_t r = 0; r < world->ranks; r++) {
        lki_owner owner = { world->host_of[r] % parallel->shards, world->local_of[r] };
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

/* Finds the owners at the start of the run.  Ranks that were members then have stored the list.
 * Ranks that have joined since, or that start without some hosts, compute the list. */
static lk_status deal_at_first(lk_parallel *parallel, lki_deal *deal)
{
    const lk_parallel *before = parallel->ledger.before;
    const bool         late   = parallel->shard_map.for_all;
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

/* Lists the owners of each shard.  The surviving ranks of a host take over the work of lost
 * ranks. */
static lk_status deal_shards(lk_parallel *parallel, lki_deal *deal)
{
    LK_TRY(deal_at_first(parallel, deal));
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
                        .align        = lki_quantises(parallel->rounded) ? LKI_QUANTISED : 0,
                        .whole_blocks = parallel->ops->whole_blocks };
    if (parallel->shards > 1)
        return deal_shards(parallel, deal);
    LK_TRY(LKI_NEW(&deal->owners, parallel->ranks, "owners"));
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

/* Counts the owners before number `end` whose shards are sent by `host`. */
static uint32_t owners_at(const lk_parallel *parallel, uint32_t host, uint32_t end)
{
    uint32_t count = 0;
    for (uint32_t o = 0; o < end; o++)
        count += giver_to_me(parallel, parallel->layout->owners[o].shard) == host;
    return count;
}

static uint32_t find_carrier(const lk_parallel *parallel, uint32_t owner)
{
    const lki_layout *layout = parallel->layout;
    uint32_t          host   = giver_to_me(parallel, layout->owners[owner].shard);
    uint32_t          before = owners_at(parallel, host, owner);
    uint32_t          all    = owners_at(parallel, host, layout->owner_count);

    LK_ASSERT(all > 0); /* this owner at least */
    return place_on(parallel, host, parallel->world.sizes[host] * before / all);
}

uint32_t lki_shards_carrier(const lk_parallel *parallel, uint32_t owner)
{
    return parallel->peers.carriers[owner];
}

/* Returns true if the ranks must meet before gathering.  A meeting is necessary if a rank sends
 * values that another rank has written, or receives into memory to which another rank still writes.
 * Before sums are gathered, the ranks have always met. */
static bool meets_before(const lk_parallel *parallel)
{
    return parallel->shard_map.doubled ||
           parallel->layout->owner_count > lk_comm_size(parallel->peers.group);
}

/* ---- Gathering --------------------------------------------------------------------------- */

static size_t offset_of(const lk_parallel *parallel, const void *at)
{
    return (size_t)((const char *)at - (const char *)lk_arena_data(parallel->arena));
}

static lk_status list_sums(lk_parallel *parallel, lki_piece_list *list)
{
    LK_TRY(LKI_NEW(&list->bytes, lk_comm_size(parallel->peers.group), "pieces of sums"));
    list->offset = offset_of(parallel, parallel->norms.blocks);
    for (size_t i = 0; i < parallel->layout->span_count; i++)
        list->bytes[lki_shards_carrier(parallel, parallel->layout->spans[i].owner)] +=
            parallel->norms.measures * sizeof *parallel->norms.blocks;
    return LK_OK;
}

/* Lists the pieces of a bucket's parameters, which are consecutive, in order of owner. */
static lk_status list_params(lk_parallel *parallel, const lki_bucket *bucket, lki_piece_list *list)
{
    const lki_layout *layout = parallel->layout;
    size_t            first  = SIZE_MAX;

    LK_TRY(LKI_NEW(&list->bytes, lk_comm_size(parallel->peers.group), "pieces of parameters"));
    for (size_t i = 0; i < layout->span_count; i++) {
        const lki_param_span *span = &layout->spans[i];
        size_t                at   = lki_layout_grad_at(layout, span, 0);
        if (at < bucket->first || at >= bucket->first + bucket->count)
            continue;
        first = lki_min(first, span->read_at);
        list->bytes[lki_shards_carrier(parallel, span->owner)] +=
            lki_shards_span_bytes(parallel, span);
    }
    const void *all = layout->bf16 ? (const void *)parallel->read : parallel->params;
    /* a bucket may have only further uses of shared parameters */
    if (first < SIZE_MAX && !parallel->gathers)
        list->offset = offset_of(parallel, (const char *)all + first);
    return LK_OK;
}

lk_status lki_shards_open(lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;

    if (parallel->shards == 1 && !parallel->gathers)
        return LK_OK;
    parallel->peers.group = parallel->comm;
    if (parallel->shards < parallel->shard_map.born)
        LK_TRY(lk_comm_split(
            &parallel->peers.group, parallel->comm, group_of(parallel, parallel->rank),
            place_on(parallel, parallel->world.host_of[parallel->rank], parallel->local)));
    LK_TRY(LKI_NEW(&parallel->peers.carriers, layout->owner_count, "owners"));
    for (uint32_t o = 0; o < layout->owner_count; o++)
        parallel->peers.carriers[o] = find_carrier(parallel, o);
    LK_TRY(LKI_NEW(&parallel->peers.pieces, layout->bucket_count + 1, "pieces of a model"));
    LK_TRY(list_sums(parallel, &parallel->peers.pieces[0]));
    for (uint32_t b = 0; b < layout->bucket_count; b++)
        LK_TRY(list_params(parallel, &layout->buckets[b], &parallel->peers.pieces[1 + b]));
    return LK_OK;
}

void lki_shards_close(lk_parallel *parallel)
{
    for (uint32_t b = 0; parallel->peers.pieces != NULL && b <= parallel->layout->bucket_count; b++)
        lki_free(parallel->peers.pieces[b].bytes);
    lki_free(parallel->peers.pieces);
    lki_free(parallel->peers.carriers);
    if (parallel->peers.group != parallel->comm)
        lk_comm_free(parallel->peers.group);
}

static lk_status gather(lk_parallel *parallel, const lki_piece_list *list)
{
    return lk_arena_mirror(parallel->peers.group, parallel->arena, list->offset, list->bytes);
}

lk_status lki_shards_gather_sums(lk_parallel *parallel)
{
    return parallel->shards == 1 ? LK_OK : gather(parallel, &parallel->peers.pieces[0]);
}

lk_status lki_shards_gather_unit(lk_parallel *parallel, lk_comm *comm, const size_t *bytes,
                                 const void *at, const lki_filler *filler, lk_request **coming)
{
    return lki_arena_fill_start(coming, comm, parallel->arena, offset_of(parallel, at), bytes,
                                filler);
}

const size_t *lki_shards_unit_bytes(const lk_parallel *parallel, uint32_t unit)
{
    return parallel->peers.pieces[1 + unit].bytes;
}

size_t lki_shards_span_bytes(const lk_parallel *parallel, const lki_param_span *span)
{
    if (parallel->gathers && parallel->quantised)
        return lki_rounded_bytes(LK_I8, span->count);
    return lki_layout_read_bytes(parallel->layout, span);
}

size_t lki_shards_run_bytes(const lk_parallel *parallel, const lki_param_run *run)
{
    if (parallel->gathers && parallel->quantised)
        return lki_rounded_bytes(LK_I8, run->count); /* a span always ends at the end of a block */
    return lki_layout_run_bytes(parallel->layout, run);
}

lk_status lki_shards_gather_params(lk_parallel *parallel)
{
    if (parallel->shards > 1 && meets_before(parallel))
        LK_TRY(lk_barrier(parallel->comm));
    for (uint32_t b = 0; parallel->shards > 1 && b < parallel->layout->bucket_count; b++)
        LK_TRY(gather(parallel, &parallel->peers.pieces[1 + b]));
    return LK_OK;
}

/* ---- Requested values -------------------------------------------------------------------- */

/* Returns how many elements of [first, first + count) of a parameter are in a span, and sets *from
 * to the first of these elements. */
static size_t overlap(const lki_param_span *span, size_t first, size_t count, size_t *from)
{
    size_t end = lki_min(first + count, span->inside + span->count);
    *from      = first > span->inside ? first : span->inside;
    return end > *from ? end - *from : 0;
}

/* Returns the number of the rank that sends a span's values: its owner in the group or, if every
 * host has all values, a rank of the first host. */
static uint32_t giver_of(const lk_parallel *parallel, const lki_param_span *span)
{
    const lki_owner *owner = &parallel->layout->owners[span->owner];
    return parallel->shards > 1
               ? place_on(parallel, giver_to_me(parallel, owner->shard), owner->local)
               : span->owner % parallel->world.sizes[0];
}

/* Returns this rank's number among the ranks that exchange values. */
static uint32_t my_place(const lk_parallel *parallel)
{
    return parallel->shards > 1 ? lk_comm_rank(parallel->peers.group) : parallel->rank;
}

/* Returns the number of ranks that exchange values. */
static uint32_t place_count(const lk_parallel *parallel)
{
    return parallel->shards > 1 ? lk_comm_size(parallel->peers.group) : parallel->ranks;
}

/* Copies to `packed` the elements in [first, first + count) of a parameter that this rank provides.
 * They come from `stored` in the arena or, if `stored` is NULL, from a file. */
static lk_status pack(lk_parallel *parallel, uint32_t param, uint32_t which, const float *stored,
                      size_t first, size_t count, float *packed)
{
    const lki_layout *layout = parallel->layout;
    for (size_t i = layout->first_span[param]; i < layout->first_span[param + 1]; i++) {
        const lki_param_span *span = &layout->spans[i];
        size_t                from, n = overlap(span, first, count, &from);
        if (giver_of(parallel, span) != my_place(parallel) || n == 0)
            continue;
        if (stored != NULL)
            memcpy(packed, stored + lki_stored_at(parallel, span) + (from - span->inside),
                   n * sizeof *packed);
        else
            LK_TRY(lki_offload_get(parallel, i, which, from - span->inside, n, packed));
        packed += n;
    }
    return LK_OK;
}

/* Copies the parts of all ranks from `packed` to `out`. */
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
    const bool filed = parallel->offload.kinds &
                       (which == 0 ? LK_OFFLOADED_PARAMETERS : LK_OFFLOADED_STATES);
    const float      *stored = filed        ? NULL
                               : which == 0 ? parallel->params
                                            : parallel->optimizer_state[which - 1];
    const lki_layout *layout = parallel->layout;
    const uint32_t    places = place_count(parallel);
    size_t           *at = bytes + places, before = 0, from;

    for (size_t i = layout->first_span[param]; i < layout->first_span[param + 1]; i++)
        bytes[giver_of(parallel, &layout->spans[i])] +=
            overlap(&layout->spans[i], first, count, &from) * sizeof *out;
    for (uint32_t o = 0; o < places; o++) {
        at[o] = before;
        before += bytes[o];
    }
    float *mine = packed + at[my_place(parallel)] / sizeof *packed;
    LK_TRY(pack(parallel, param, which, stored, first, count, mine));
    LK_TRY(lk_all_gather_v(parallel->shards > 1 ? parallel->peers.group : parallel->comm, mine,
                           packed, bytes));
    unpack(parallel, param, packed, at, first, count, out);
    return LK_OK;
}

lk_status lki_fetch(lk_parallel *parallel, uint32_t param, uint32_t which, size_t first,
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
    LK_TRY(lki_check_given("lk_parallel_fetch", "out", out, count));
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

lk_status lk_parallel_fetch(lk_parallel *parallel, uint32_t param, uint32_t which, size_t first,
                            size_t count, float *out)
{
    LK_TRY(lki_check_idle(parallel, "lk_parallel_fetch"));
    parallel = lki_in_use_for(parallel, &param);
    return lki_fetch(parallel, param, which, first, count, out);
}
