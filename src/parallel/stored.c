/* stored.c -- the elements of a model that a host stores.
 *
 * A shard consists of the spans of its owners.  In the shard's space the spans of one parameter are
 * consecutive.  So spans of the shard that are neighbours in the parameter form one contiguous run.
 */
#include "parallel/stored.h"

#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/state.h"

uint32_t lki_stored_shards(const lk_parallel *parallel)
{
    return parallel->shards;
}

size_t lki_stored_most(const lk_parallel *parallel)
{
    size_t most = 0;
    for (uint32_t shard = 0; shard < parallel->layout->shards; shard++)
        most = lki_max(most, parallel->layout->shard_elements[shard]);
    return most * sizeof(float);
}

uint32_t lki_stored_host(const lk_parallel *parallel, const lk_comm *next, uint32_t n)
{
    const lki_world *world = &parallel->world;
    const uint32_t   node  = lki_comm_node(next, lk_comm_world_rank(next, n));
    if (lki_comm_host_is_fresh(next, lk_comm_host(next, n)))
        return world->hosts;
    for (uint32_t r = 0; r < world->ranks; r++)
        if (lki_comm_node(next, world->numbers[r]) == node)
            return world->host_of[r];
    return world->hosts;
}

/* Returns true if a host of group `next` stores the shard. */
static bool is_stored(const lk_parallel *parallel, const lk_comm *next, uint32_t shard)
{
    const lki_world *world = &parallel->world;
    uint32_t         last  = world->hosts;

    for (uint32_t n = 0; n < lk_comm_size(next); n++) {
        uint32_t host = lki_stored_host(parallel, next, n);
        if (host == world->hosts || host == last)
            continue;
        last = host;
        if (lki_shard_map_has(parallel, last, shard))
            return true;
    }
    return false;
}

bool lki_stored_whole(const lk_parallel *parallel, const lk_comm *next)
{
    for (uint32_t shard = 0; shard < parallel->shards; shard++)
        if (parallel->shards > 1 && !is_stored(parallel, next, shard))
            return false;
    return true;
}

lk_status lki_stored_for_all(const lk_parallel *parallel, bool *out)
{
    lki_world first;
    lk_status status = lki_world_first(&first, parallel->comm);
    *out             = parallel->ops == NULL || !parallel->ops->sharded || /* NULL: of versions */
           first.hosts == parallel->shard_map.born;
    lki_world_deinit(&first);
    return status;
}

bool lki_stored_in_parts(const lk_parallel *parallel, uint32_t which)
{
    return which == 0 ? parallel->parted : parallel->shards > 1;
}

bool lki_stored_writer(const lk_parallel *parallel, uint32_t *shard)
{
    *shard = parallel->shard;
    return parallel->world.host_of[parallel->rank] < parallel->shards && parallel->local == 0;
}

static const float *data_of(const lk_parallel *parallel, const lki_param_span *span, uint32_t which)
{
    if (which == 0)
        return lki_values_of(parallel, span);
    return parallel->optimizer_state[which - 1] + lki_stored_at(parallel, span);
}

bool lki_stored_next(const lk_parallel *parallel, uint32_t param, uint32_t which, uint32_t shard,
                     size_t *at, lki_stored *out)
{
    const lki_layout *layout = parallel->layout;
    size_t            i = layout->first_span[param] + *at, end = layout->first_span[param + 1];

    while (i < end && layout->owners[layout->spans[i].owner].shard != shard)
        i++;
    if (i == end)
        return false;
    const lki_param_span *span = &layout->spans[i];
    *out = (lki_stored){ span->inside, 0, shard == parallel->shard ? data_of(parallel, span, which)
                                                                 : NULL };
    for (; i < end && layout->owners[layout->spans[i].owner].shard == shard; i++)
        out->count += layout->spans[i].count;
    *at = i - layout->first_span[param];
    return true;
}
