/* replicas.c -- computes the memory and the traffic of replicas: the sums over their objects.
 *
 * If the hosts of a replica have different numbers of ranks, each is assumed to take as much as the
 * largest.  The traffic of outer steps is divided by the number of steps between them.  With a
 * topology it is that of mixings, on average, without that of the means of all replicas, which
 * evaluations and checkpoints compute.
 */
#include "base/memory.h"
#include "parallel/estimate/dealt.h"
#include "parallel/replicas/gossip.h"

typedef struct {
    lki_replicas               replicas;
    const lk_param            *params;
    uint32_t                   param_count, most;
    const lk_parallel_options *options;
    lki_world                  world;
    uint32_t                  *bounds; /* [ranks + 1]: of the outer weights */
    lk_parallel_state         *states;
    uint32_t                  *sizes; /* [hosts]: ranks of a replica on each of its hosts */
    lk_parallel_cost          *costs; /* [hosts] */
    uint64_t                   sent_outer;
} sums;

static void add(lk_parallel_cost *to, const lk_parallel_cost *cost)
{
    to->params += cost->params;
    to->optimizer += cost->optimizer;
    to->gradients += cost->gradients;
    to->tables += cost->tables;
    to->messages += cost->messages;
    to->sent_gradients += cost->sent_gradients;
    to->sent_params += cost->sent_params;
}

static lk_status add_outer(sums *s, uint32_t fragment)
{
    const lki_fragment       *f = &s->replicas.fragments[fragment];
    const lk_parallel_options outer =
        lki_replicas_outer(&s->replicas, fragment, s->options, s->states);
    lk_parallel_cost cost;
    lki_replicas_deal(&s->replicas, s->replicas.leaves, s->world.ranks, s->bounds);
    LK_TRY(lki_estimate_dealt(&cost, s->params + f->first, f->count, &outer, s->world.sizes,
                              s->world.hosts, 1, s->bounds));
    if (s->replicas.options.topology != LK_TOPOLOGY_ALL)
        cost.sent_gradients = cost.sent_params = 0;
    s->sent_outer += cost.sent_gradients + cost.sent_params;
    cost.sent_gradients /= s->replicas.options.local_steps;
    cost.sent_params /= s->replicas.options.local_steps;
    for (uint32_t h = 0; h < s->world.hosts; h++)
        add(&s->costs[h], &cost);
    return LK_OK;
}

/* Lists the number of ranks that a replica has on each of its hosts.  Returns the number of hosts;
 * *first becomes the first of them. */
static uint32_t hosts_of(const sums *s, uint32_t replica, uint32_t *first)
{
    const lki_seats seats = lki_replica_seats(&s->replicas, replica, s->world.ranks);
    uint32_t        count = 0;
    *first                = s->world.host_of[seats.first];
    for (uint32_t i = 0; i < seats.count; i++) {
        const uint32_t h = s->world.host_of[seats.first + i] - *first;
        s->sizes[h]      = h < count ? s->sizes[h] + 1 : 1;
        count            = (uint32_t)lki_max(count, h + 1);
    }
    return count;
}

/* Adds the object that trains before there are replicas.  Its traffic is not added. */
static lk_status add_whole(sums *s)
{
    lk_parallel_options whole = lki_replicas_inner(&s->replicas, s->options);
    lk_parallel_cost    cost;
    if (s->replicas.options.start == 0)
        return LK_OK;
    whole.virtual_workers = s->options->virtual_workers;
    lki_replicas_deal(&s->replicas, s->replicas.width, s->world.ranks, s->bounds);
    LK_TRY(lki_estimate_dealt(&cost, s->params, s->param_count, &whole, s->world.sizes,
                              s->world.hosts, s->most, s->bounds));
    cost.sent_gradients = cost.sent_params = 0;
    for (uint32_t h = 0; h < s->world.hosts; h++)
        add(&s->costs[h], &cost);
    return LK_OK;
}

enum { ALIGN = 16 }; /* elements; as in the layout */

/* Returns the bytes of the copy that a replica makes of a fragment's weights. */
static size_t copied_bytes(const sums *s)
{
    size_t widest = 0;
    for (uint32_t f = 0; f < s->replicas.options.fragments; f++) {
        const lki_fragment *fragment = &s->replicas.fragments[f];
        size_t              count    = 0;
        for (uint32_t p = fragment->first; p < fragment->first + fragment->count; p++)
            count += lki_round_up(lk_shape_count(s->params[p].shape), ALIGN);
        widest = lki_max(widest, count);
    }
    return widest * sizeof(float);
}

/* Adds the copy of a replica, and the bytes with which it is gathered if the hosts of a replica
 * have parts of its weights. */
static lk_status add_copy(sums *s, uint32_t first, uint32_t hosts)
{
    const lki_strategy_ops *ops;
    LK_TRY(lki_strategy_find(&ops, s->options->strategy));
    const bool parted = hosts > 1 && ops->gathers;
    if (s->replicas.options.delay > 0 || parted)
        s->costs[first].gradients += copied_bytes(s);
    LK_ASSERT(hosts > 0);
    uint64_t part = 0;
    for (uint32_t p = 0; p < s->param_count; p++)
        part += lk_shape_count(s->params[p].shape) * sizeof(float) / hosts;
    for (uint32_t h = 0; parted && h < hosts; h++)
        s->costs[first + h].sent_params += (hosts - 1) * part / s->replicas.options.local_steps;
    return LK_OK;
}

static lk_status add_replica(sums *s, uint32_t replica)
{
    const lk_parallel_options inner = lki_replicas_inner(&s->replicas, s->options);
    lk_parallel_cost          cost;
    uint32_t                  first, hosts = hosts_of(s, replica, &first);
    LK_TRY(lki_estimate_dealt(&cost, s->params, s->param_count, &inner, s->sizes, hosts, s->most,
                              NULL));
    for (uint32_t h = 0; h < hosts; h++)
        add(&s->costs[first + h], &cost);
    return add_copy(s, first, hosts);
}

/* Adds the slots and the traffic of mixings to the hosts. */
static void add_to_hosts(sums *s, lki_mixing *mixing, uint64_t *copies)
{
    const lk_replicas    *r        = &s->replicas.options;
    const uint64_t        elements = lki_gossip_elements(s->params, s->param_count, s->options);
    const uint64_t        mixings  = lki_mixing_count_sends(mixing, r->topology, copies);
    const lki_gossip_room room     = lki_gossip_room_of(mixing, &s->replicas, elements, s->options);
    for (uint32_t h = 0; h < s->world.hosts; h++) {
        s->costs[h].tables += room.bytes;
        s->costs[h].sent_params += copies[h] * elements * sizeof(float) / mixings / r->local_steps;
    }
}

static lk_status add_mixings(sums *s)
{
    lki_mixing mixing = { 0 };
    uint64_t  *copies = NULL;
    if (s->replicas.options.topology == LK_TOPOLOGY_ALL || s->replicas.options.count == 1)
        return LK_OK;
    lk_status status = lki_mixing_init(&mixing, &s->replicas, &s->world);
    if (status == LK_OK)
        status = LKI_NEW(&copies, s->world.hosts, "copies of replicas");
    if (status == LK_OK)
        add_to_hosts(s, &mixing, copies);
    lki_mixing_deinit(&mixing);
    lki_free(copies);
    return status;
}

/* Takes the largest of each kind of memory, and the traffic of the busiest host. */
static void take_largest(const sums *s, lk_parallel_cost *out)
{
    for (uint32_t h = 0; h < s->world.hosts; h++) {
        const lk_parallel_cost *c = &s->costs[h];
        out->params               = lki_max(out->params, c->params);
        out->optimizer            = lki_max(out->optimizer, c->optimizer);
        out->gradients            = lki_max(out->gradients, c->gradients);
        out->tables               = lki_max(out->tables, c->tables);
        out->messages             = lki_max(out->messages, c->messages);
        if (c->sent_gradients + c->sent_params > out->sent_gradients + out->sent_params) {
            out->sent_gradients = c->sent_gradients;
            out->sent_params    = c->sent_params;
        }
    }
    out->sent_outer = s->sent_outer;
    for (uint32_t p = 0; p < s->param_count; p++)
        out->shard += lk_shape_count(s->params[p].shape) * sizeof(float);
}

static lk_status make_room(sums *s, const uint32_t *host_sizes, uint32_t hosts)
{
    LK_TRY(lki_world_init(&s->world, host_sizes, hosts));
    LK_TRY(lki_replicas_read(&s->replicas, s->options, s->world.ranks));
    LK_TRY(lki_fragments_divide(&s->replicas, s->params, s->param_count));
    LK_TRY(LKI_NEW(&s->bounds, (size_t)s->world.ranks + 1, "shares of ranks"));
    LK_TRY(LKI_NEW(&s->states, s->options->state_count + 1, "running state"));
    LK_TRY(LKI_NEW(&s->sizes, hosts, "hosts"));
    return LKI_NEW(&s->costs, hosts, "hosts");
}

lk_status lki_estimate_replicas(lk_parallel_cost *out, const lk_param *params,
                                uint32_t param_count, const lk_parallel_options *options,
                                const uint32_t *host_sizes, uint32_t hosts, uint32_t most)
{
    sums      s      = { .params      = params,
                         .param_count = param_count,
                         .most        = most,
                         .options     = options };
    lk_status status = make_room(&s, host_sizes, hosts);
    for (uint32_t f = 0; status == LK_OK && f < s.replicas.options.fragments; f++)
        status = add_outer(&s, f);
    if (status == LK_OK)
        status = add_whole(&s);
    if (status == LK_OK)
        status = add_mixings(&s);
    for (uint32_t r = 0; status == LK_OK && r < s.replicas.options.count; r++)
        status = add_replica(&s, r);
    if (status == LK_OK)
        take_largest(&s, out);
    lki_free(s.replicas.fragments);
    lki_free(s.bounds);
    lki_free(s.states);
    lki_free(s.sizes);
    lki_free(s.costs);
    lki_world_deinit(&s.world);
    return status;
}
