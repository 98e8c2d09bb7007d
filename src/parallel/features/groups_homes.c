/* groups_homes.c -- virtual workers that stay on their hosts, if ranks may be lost.
 *
 * What a group keeps is in the arena of one host.  So with options.survives and several hosts, each
 * host has a fixed range of virtual workers, those of its ranks when the job began.  It deals them
 * to the ranks that it has now.  A host that is lost and kept no group leaves its range to the host
 * before it.
 */
#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/features/groups.h"
#include "parallel/strategies/ddp.h"

/* Returns the first virtual worker of host `host` of the job; V after the last host. */
static uint32_t start_of(const lki_world *job, uint32_t leaves, uint32_t host)
{
    uint64_t before = 0;
    for (uint32_t h = 0; h < host; h++)
        before += job->sizes[h];
    return (uint32_t)(before * leaves / job->ranks);
}

/* Deals virtual workers [begin, end) to the ranks from `first` on that are on the same host. */
static lk_status deal(const lk_parallel *parallel, uint32_t *bounds, uint32_t first, uint32_t begin,
                      uint32_t end)
{
    const uint32_t host = parallel->world.host_of[first], ranks = parallel->world.sizes[host];
    if (end < begin + ranks)
        return lk_fail(LK_EINVAL, "%u workers on host %u are more than its %u virtual workers",
                       ranks, host, end < begin ? 0 : end - begin);
    for (uint32_t i = 0; i < ranks; i++) {
        uint32_t from, count;
        LK_ASSERT(parallel->world.host_of[first + i] == host);
        lki_virtual_range(end - begin, ranks, i, &from, &count);
        bounds[first + i] = begin + from;
    }
    return LK_OK;
}

static lk_status deal_all(const lk_parallel *parallel, const lki_world *job, uint32_t *bounds)
{
    const lki_world *world = &parallel->world;
    uint32_t         begin = 0, end;
    for (uint32_t r = 0; r < world->ranks; begin = end) {
        uint32_t next = r + world->sizes[world->host_of[r]];
        end           = parallel->leaves;
        if (next < world->ranks)
            end = start_of(job, parallel->leaves, job->host_of[world->numbers[next]]);
        LK_TRY(deal(parallel, bounds, r, begin, end));
        r = next;
    }
    bounds[world->ranks] = parallel->leaves;
    return LK_OK;
}

/* ---- Memory ------------------------------------------------------------------------------ */

static bool keeps(const lk_parallel *parallel, const lki_world *job, uint32_t host)
{
    const uint32_t cut   = parallel->effects.cut;
    uint32_t       first = (start_of(job, parallel->leaves, host) + cut - 1) / cut * cut;
    return first < start_of(job, parallel->leaves, host + 1);
}

/* Counts the buffers for virtual workers [begin, end) on any number of ranks, and returns the
 * maximum. */
static size_t most_buffers(const lk_parallel *parallel, uint32_t begin, uint32_t end)
{
    size_t most = 0;
    for (uint32_t ranks = 1; ranks <= lki_min(parallel->ledger.here, end - begin); ranks++) {
        size_t total = 0;
        for (uint32_t i = 0; i < ranks; i++) {
            lki_share share = { .stride = 1 };
            lki_virtual_range(end - begin, ranks, i, &share.first, &share.count);
            share.first += begin;
            total += lki_share_buffers(parallel, share, 1);
        }
        most = lki_max(most, total);
    }
    return most;
}

/* Counts the buffers of a host, whichever ranks are lost.  A host without groups may be lost. */
static size_t count_buffers(const lk_parallel *parallel, const lki_world *job)
{
    size_t most = 0;
    for (uint32_t host = 0; host < job->hosts; host++)
        for (uint32_t next = host + 1; next <= job->hosts; next++) {
            most = lki_max(most, most_buffers(parallel, start_of(job, parallel->leaves, host),
                                              start_of(job, parallel->leaves, next)));
            if (next < job->hosts && keeps(parallel, job, next))
                break;
        }
    return most;
}

/* ---- Opening ----------------------------------------------------------------------------- */

static lk_status deal_by_job(lk_parallel *parallel, lki_groups *self, const lki_world *job)
{
    if (job->hosts == 1)
        return LK_OK;
    if (!parallel->ledger.goes_on && job->hosts != parallel->world.hosts)
        return lk_fail(LK_EUNSUPPORTED,
                       "groups that may lose workers are opened on all %u hosts of the job, not on "
                       "%u",
                       job->hosts, parallel->world.hosts);
    LK_TRY(LKI_NEW(&self->bounds, (size_t)parallel->ranks + 1, "ranges of virtual workers"));
    LK_TRY(deal_all(parallel, job, self->bounds));
    parallel->dealing.bounds    = self->bounds;
    parallel->share             = lki_share_of(&parallel->dealing, parallel->rank);
    parallel->ledger.neighbours = count_buffers(parallel, job);
    return LK_OK;
}

lk_status lki_groups_deal(lk_parallel *parallel, lki_groups *self)
{
    lki_world job = { .hosts = 0 };
    if (!parallel->ledger.kept || self->kept == 0)
        return LK_OK;
    lk_status status = parallel->comm != NULL
                           ? lki_world_first(&job, parallel->comm)
                           : lki_world_init(&job, parallel->world.sizes, parallel->world.hosts);
    if (status == LK_OK)
        status = deal_by_job(parallel, self, &job);
    lki_world_deinit(&job);
    return status;
}
