/* shard_map.c -- the shards that each host stores, including after hosts are lost.
 *
 * A strategy that stores the whole model on every host has one shard.  A sharding strategy has a
 * shard for each host.  With "hybrid", each group of neighbouring hosts has all shards:
 *
 *      hosts       0   1  |  2   3  |  4   5         2 shards, 3 groups
 *      shards      0   1  |  0   1  |  0   1
 *
 * With buddies, which need a single group, two neighbours also store each other's shard. (If the
 * number of hosts is odd, the last host but one also stores the last host's shard.) Both hosts
 * update both shards from the same sums, so only the sums must be sent in addition:
 *
 *      hosts       0    1   |  2    3    4           5 shards
 *      shards      0 1  0 1 | 2 3  2 3 4 4
 *
 * The loss of a host changes neither the numbers of shards nor the shards of other hosts.  Hosts
 * that were lost earlier or have not joined yet are also counted, if the present hosts have all
 * shards.  A host that returns gets its old number, and receives its shards from hosts that store
 * them (recover/join_copy.c).  If a lost host sent shards to its group, the first host of
 * the group that stores them sends them instead.  If only hosts of other groups store them, all
 * groups form one group until the lost host has returned.  A shard that no host stores is lost.
 *
 * Memory: with buddies each host has the state of two shards instead of one.  A loss needs no more
 *         memory, because no shard moves.
 */
#include "parallel/shard_map.h"

#include <string.h>

#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/state.h"

static bool has_buddies(const lk_parallel *parallel)
{
    return parallel->shard_map.buddies && parallel->shards == parallel->shard_map.born;
}

/* Returns the host that stores a copy of the shard of host `shard`, with the hosts' original
 * numbers. */
static uint32_t buddy_of(const lk_parallel *parallel, uint32_t shard)
{
    if (parallel->shards == 1)
        return shard;
    return (shard ^ 1) < parallel->shards ? shard ^ 1 : shard - 1;
}

/* Returns true if the host with this original number stores a shard. */
static bool stores_by_origin(const lk_parallel *parallel, uint32_t origin, uint32_t shard)
{
    return origin % parallel->shards == shard ||
           (has_buddies(parallel) && buddy_of(parallel, shard) == origin);
}

bool lki_shard_map_has(const lk_parallel *parallel, uint32_t host, uint32_t shard)
{
    return parallel->shard_map.stored[host * parallel->shards + shard];
}

uint32_t lki_group_of(const lk_parallel *parallel, uint32_t host)
{
    return parallel->shard_map.groups[host];
}

uint32_t lki_giver(const lk_parallel *parallel, uint32_t host, uint32_t shard)
{
    const lki_shard_map *map = &parallel->shard_map;
    return map->givers[map->groups[host] * parallel->shards + shard];
}

uint32_t lki_shard_map_count(const lk_parallel *parallel, uint32_t shard)
{
    uint32_t count = 0;
    for (uint32_t host = 0; host < parallel->world.hosts; host++)
        count += lki_shard_map_has(parallel, host, shard);
    return count;
}

const uint8_t *lki_shard_map_wanted(const lk_parallel *parallel)
{
    const lki_shard_map *map   = &parallel->shard_map;
    bool                 plain = !has_buddies(parallel) && map->born == parallel->world.hosts;
    return plain || parallel->shards == 1 ? NULL : map->stored;
}

bool lki_shard_map_alike(const lk_parallel *parallel, uint32_t host, uint32_t other)
{
    return memcmp(&parallel->shard_map.stored[host * parallel->shards],
                  &parallel->shard_map.stored[other * parallel->shards], parallel->shards) == 0;
}

bool lki_shard_map_spare(const lk_parallel *parallel)
{
    return has_buddies(parallel) || parallel->shards < parallel->shard_map.born ||
           parallel->shards == 1;
}

static size_t stored_by(const lk_parallel *parallel, uint32_t origin, uint32_t end)
{
    size_t elements = 0;
    for (uint32_t shard = 0; shard < end; shard++)
        if (stores_by_origin(parallel, origin, shard))
            elements += parallel->layout->shard_elements[shard];
    return elements;
}

size_t lki_stored_elements(const lk_parallel *parallel)
{
    size_t most = 0;
    for (uint32_t origin = 0; origin < parallel->shards; origin++)
        most = lki_max(most, stored_by(parallel, origin, parallel->shards));
    return most;
}

void lki_shard_map_place(lk_parallel *parallel)
{
    uint32_t here = parallel->world.host_of[parallel->rank];
    for (uint32_t shard = 0; shard < parallel->shards; shard++)
        parallel->shard_map.before[shard] = stored_by(parallel, parallel->shard_map.origins[here],
                                                      shard);
}

/* ---- Opening ----------------------------------------------------------------------------- */

/* Returns the object before the failure, which is NULL on new ranks.  It knows how the model was
 * sharded, although hosts may have been lost since. */
static const lk_parallel *before_of(const lk_parallel *parallel)
{
    return parallel->ops->sharded ? parallel->ledger.before : NULL;
}

/* Returns true if this rank has joined the running job, and must determine how the model was
 * sharded. */
static bool is_late(const lk_parallel *parallel)
{
    return parallel->ops->sharded && parallel->ledger.goes_on && parallel->ledger.before == NULL;
}

/* Returns true if the run begins without some of the hosts that the job may have. */
static bool is_partial(const lk_parallel *parallel)
{
    return parallel->ops->sharded && parallel->ledger.kept && !parallel->ledger.goes_on &&
           lki_comm_world(parallel->comm) > parallel->ranks;
}

/* Computes the number of shards.  If the run continues, `first` has the hosts and ranks at the
 * start of the job. */
static lk_status count_shards(lk_parallel *parallel, const lki_world *first,
                              const lk_parallel_options *options)
{
    const lk_parallel *before = before_of(parallel);
    const uint32_t     hosts  = before != NULL                ? before->shard_map.born
                                : parallel->shard_map.for_all ? first->hosts
                                                              : parallel->world.hosts;
    const uint32_t     each   = options->shard_hosts > 0 ? options->shard_hosts : 1;

    parallel->shards = !parallel->ops->sharded ? 1 : parallel->ops->replicates ? each : hosts;
    parallel->shard_map.born = hosts;
    if (parallel->shards > hosts || hosts % parallel->shards != 0)
        return lk_fail(LK_EINVAL, "%u hosts cannot be cut into groups of %u that share a model: "
                       "give a `shard_hosts` that divides them", hosts, parallel->shards);
    return LK_OK;
}

/* Returns the original number of the host that a rank of the job was on.  A host that has joined
 * has an original number only if the model was sharded for all hosts of the job.  It is the host's
 * number at the start of the job.  Otherwise returns `born`, which is no host's number. */
static uint32_t find_origin(const lk_parallel *before, const lki_world *first, uint32_t number)
{
    uint32_t r = 0, born = before->shard_map.born;
    while (r < before->ranks && before->world.numbers[r] != number)
        r++;
    if (r < before->ranks)
        return before->shard_map.origins[before->world.host_of[r]];
    if (first->hosts != born)
        return born;
    LK_ASSERT(first->host_of != NULL);
    return first->host_of[number];
}

/* Finds the original numbers of all hosts.  Returns false if a host has none. */
static bool find_origins(lk_parallel *parallel, const lki_world *first)
{
    const lki_world   *world  = &parallel->world;
    const lk_parallel *before = before_of(parallel);
    lki_shard_map     *map    = &parallel->shard_map;
    bool               all    = true;

    for (uint32_t host = 0; host < world->hosts; host++)
        map->origins[host] = map->born;
    LK_ASSERT(!map->for_all || first->host_of != NULL);
    for (uint32_t r = 0; r < world->ranks; r++) {
        uint32_t *origin = &map->origins[world->host_of[r]];
        uint32_t  found  = before != NULL ? find_origin(before, first, world->numbers[r])
                           : map->for_all ? first->host_of[world->numbers[r]]
                                          : world->host_of[r];
        *origin          = (uint32_t)lki_min(*origin, found);
    }
    for (uint32_t host = 0; host < world->hosts; host++)
        all = all && map->origins[host] < map->born;
    return all;
}

/* Returns the host that sends a shard to the group: the shard's own host or, if that host is
 * absent, the first host that stores the shard.  Returns `hosts` if there is none. */
static uint32_t find_giver(const lk_parallel *parallel, uint32_t group, uint32_t shard)
{
    const lki_shard_map *map  = &parallel->shard_map;
    uint32_t             best = parallel->world.hosts;

    for (uint32_t host = 0; host < parallel->world.hosts; host++) {
        bool own = map->origins[host] % parallel->shards == shard;
        if (map->groups[host] != group || !lki_shard_map_has(parallel, host, shard))
            continue;
        if (own)
            return host;
        best = (uint32_t)lki_min(best, host);
    }
    return best;
}

/* Finds the senders of all shards.  Returns false if a group lacks a shard. */
static bool find_givers(lk_parallel *parallel, uint32_t *lost)
{
    lki_shard_map *map   = &parallel->shard_map;
    bool           whole = true;

    for (uint32_t group = 0; group < map->count; group++)
        for (uint32_t shard = 0; shard < parallel->shards; shard++) {
            uint32_t giver                                = find_giver(parallel, group, shard);
            map->givers[group * parallel->shards + shard] = giver;
            if (giver < parallel->world.hosts)
                continue;
            whole = false;
            *lost = shard;
        }
    return whole;
}

/* Forms the original groups, or one group of all hosts. */
static void find_groups(lk_parallel *parallel, bool as_one)
{
    lki_shard_map *map = &parallel->shard_map;

    map->count = as_one ? 1 : map->born / parallel->shards;
    for (uint32_t host = 0; host < parallel->world.hosts; host++)
        map->groups[host] = as_one ? 0 : map->origins[host] / parallel->shards;
}

/* Renumbers groups, leaving out empty ones. */
static void drop_empty_groups(lk_parallel *parallel)
{
    lki_shard_map *map   = &parallel->shard_map;
    uint32_t       count = 0, last = UINT32_MAX;

    for (uint32_t host = 0; host < parallel->world.hosts; host++) {
        count += map->groups[host] != last;
        last              = map->groups[host];
        map->groups[host] = count - 1;
    }
    map->count = count;
}

static bool is_doubled(const lk_parallel *parallel)
{
    for (uint32_t host = 0; host < parallel->world.hosts; host++)
        for (uint32_t shard = 0; shard < parallel->shards; shard++)
            if (lki_shard_map_has(parallel, host, shard) &&
                lki_giver(parallel, host, shard) != host)
                return true;
    return false;
}

static lk_status make_room(lk_parallel *parallel)
{
    lki_shard_map *map   = &parallel->shard_map;
    size_t         hosts = parallel->world.hosts;
    LK_TRY(LKI_NEW(&map->origins, hosts, "hosts"));
    LK_TRY(LKI_NEW(&map->groups, hosts, "hosts"));
    LK_TRY(LKI_NEW(&map->stored, hosts * parallel->shards, "parts of hosts"));
    LK_TRY(LKI_NEW(&map->before, parallel->shards, "parts of hosts"));
    return LKI_NEW(&map->givers, (size_t)map->born * parallel->shards, "parts of hosts");
}

static lk_status open_map(lk_parallel *parallel, const lki_world *first,
                          const lk_parallel_options *options)
{
    lki_shard_map *map  = &parallel->shard_map;
    uint32_t       lost = 0;

    map->buddies = options->buddies;
    LK_TRY(count_shards(parallel, first, options));
    LK_TRY(make_room(parallel));
    if (!find_origins(parallel, first))
        return lk_fail(LK_EPEER, "a host that was lost before the first step has no part of the "
                                 "model: it cannot come back");
    for (uint32_t host = 0; host < parallel->world.hosts; host++)
        for (uint32_t shard = 0; shard < parallel->shards; shard++)
            map->stored[host * parallel->shards + shard] = stores_by_origin(
                parallel, map->origins[host], shard);
    LK_ASSERT(parallel->shards > 0);
    parallel->shard = map->origins[parallel->world.host_of[parallel->rank]] % parallel->shards;
    find_groups(parallel, false);
    drop_empty_groups(parallel);
    if (!find_givers(parallel, &lost)) {
        find_groups(parallel, true);
        if (!find_givers(parallel, &lost))
            return lk_fail(LK_EPEER, "no host is left that has part %u of the %u that %s cuts the "
                           "model into: start again from the newest checkpoint", lost + 1,
                           parallel->shards, parallel->ops->name);
    }
    map->doubled = is_doubled(parallel);
    return LK_OK;
}

lk_status lki_shard_map_open(lk_parallel *parallel, const lk_parallel_options *options)
{
    lki_world  first   = { 0 };
    lk_status  status  = LK_OK;
    const bool partial = parallel->comm != NULL && is_partial(parallel);

    parallel->shard_map.for_all = is_late(parallel) || partial;
    if (partial || (parallel->ops->sharded && parallel->ledger.goes_on))
        status = lki_world_first(&first, parallel->comm);
    if (status == LK_OK)
        status = open_map(parallel, &first, options);
    lki_world_deinit(&first);
    if (status == LK_OK || !partial)
        return status;
    /* the present hosts do not have all shards, so the model is sharded again */
    lki_shard_map_close(parallel);
    parallel->shard_map = (lki_shard_map){ .for_all = false };
    return open_map(parallel, &first, options);
}

void lki_shard_map_close(lk_parallel *parallel)
{
    lki_free(parallel->shard_map.origins);
    lki_free(parallel->shard_map.stored);
    lki_free(parallel->shard_map.groups);
    lki_free(parallel->shard_map.givers);
    lki_free(parallel->shard_map.before);
}
