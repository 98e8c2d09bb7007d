/* kept.c -- which elements of a model a host keeps.
 *
 * A shard has the spans of its owners.  In its own space those of a parameter lie behind each
 * other, so a stretch is as long as spans are neighbours in the parameter.
 */
#include "parallel/kept.h"

#include "parallel/strategy.h"

uint32_t lki_kept_shards(const lk_parallel *parallel)
{
    return parallel->shards;
}

/* Whether a host of that group is one that has the shard.  Ranks stand in the order of their
 * numbers in the job. */
static bool is_kept(const lk_parallel *parallel, const lk_comm *next, uint32_t shard)
{
    const lki_world *world = &parallel->world;
    for (uint32_t r = 0, n = 0; r < world->ranks && n < lk_comm_size(next); r++) {
        while (n < lk_comm_size(next) && lk_comm_world_rank(next, n) < world->numbers[r])
            n++;
        if (n < lk_comm_size(next) && lk_comm_world_rank(next, n) == world->numbers[r] &&
            lki_keeps(parallel, world->host_of[r], shard))
            return true;
    }
    return false;
}

bool lki_kept_whole(const lk_parallel *parallel, const lk_comm *next)
{
    for (uint32_t shard = 0; shard < parallel->shards; shard++)
        if (parallel->shards > 1 && !is_kept(parallel, next, shard))
            return false;
    return true;
}

bool lki_kept_in_parts(const lk_parallel *parallel, uint32_t which)
{
    return which == 0 ? parallel->parted : parallel->shards > 1;
}

bool lki_kept_writer(const lk_parallel *parallel, uint32_t *shard)
{
    *shard = parallel->shard;
    return parallel->world.host_of[parallel->rank] < parallel->shards && parallel->local == 0;
}

static const float *data_of(const lk_parallel *parallel, const lki_param_span *span, uint32_t which)
{
    if (which == 0)
        return lki_values_of(parallel, span);
    return parallel->optimizer_state[which - 1] + lki_kept_at(parallel, span);
}

bool lki_kept_next(const lk_parallel *parallel, uint32_t param, uint32_t which, uint32_t shard,
                   size_t *at, lki_kept *out)
{
    const lki_layout *layout = parallel->layout;
    size_t            i = layout->first_span[param] + *at, end = layout->first_span[param + 1];

    while (i < end && layout->owners[layout->spans[i].owner].shard != shard)
        i++;
    if (i == end)
        return false;
    const lki_param_span *span = &layout->spans[i];
    *out = (lki_kept){ span->inside, 0, shard == parallel->shard ? data_of(parallel, span, which)
                                                                 : NULL };
    for (; i < end && layout->owners[layout->spans[i].owner].shard == shard; i++)
        out->count += layout->spans[i].count;
    *at = i - layout->first_span[param];
    return true;
}
