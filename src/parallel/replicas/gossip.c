/* gossip.c -- mixing: replicas that average with their neighbours only.
 *
 * After its own steps, each replica's weights become the mean of its neighbours' weights (D-PSGD,
 * Lian et al. 2017, as "adapt, then combine"; topology.c has the neighbours).  Running state is
 * mixed as weights are.  The states of inner optimizers stay as they are.
 *
 * Arithmetic: the values are added in FP64 in ascending order of replica, multiplied by 1/2 or 1/3,
 *             and rounded to FP32 once.  So equal replicas stay equal, bit for bit.
 *
 * Movement: the weights are moved in pieces of whole spans (layout.h).  On each host one rank of
 *           each replica copies the piece to a slot that all ranks of the host map.  Slots of
 *           replicas that the host does not have are received from the host of the replica's first
 *           rank.  After a barrier each rank computes the spans that it updates.  All values are
 *           old ones: slots are read, and weights are written.  There are two halves of slots, used
 *           in turn, so a rank may fill one while others still read the other.  All requests are
 *           started before any is waited for, so no rank waits in a circle.
 * Cost:     a host sends 4 bytes for each element of each replica that another host needs and does
 *           not have, once per mixing and host.
 */
#include "parallel/replicas/gossip.h"

#include <string.h>

#include "base/memory.h"
#include "device/reduce.h"

enum { PIECE = 1 << 18 }; /* maximum number of elements */

struct lki_gossip {
    lki_mixing      mixing;
    lki_gossip_room room;
    lk_arena       *arena;
    uint32_t       *slot_of;  /* [R]: slots of the replicas that this host needs in this mixing */
    lk_request    **requests; /* [R * hosts] */
    size_t          request_count;
};

/* Strips [first, end) of the weights, in one half of the slots. */
typedef struct {
    size_t   first, end, elements;
    uint32_t half;
} piece;

/* ---- Opening ----------------------------------------------------------------------------- */

uint64_t lki_gossip_elements(const lk_param *params, uint32_t param_count,
                             const lk_parallel_options *options)
{
    uint64_t elements = 0;
    for (uint32_t p = 0; p < param_count; p++)
        elements += lk_shape_count(params[p].shape);
    for (uint32_t s = 0; s < options->state_count; s++)
        elements += options->states[s].count;
    return elements;
}

lki_gossip_room lki_gossip_room_of(const lki_mixing *mixing, const lki_replicas *replicas,
                                   uint64_t elements, const lk_parallel_options *options)
{
    const bool   ring    = replicas->options.topology == LK_TOPOLOGY_RING;
    const size_t bucket  = options->bucket_bytes / sizeof(float);
    size_t       longest = LKI_NORM_BLOCK; /* of a strip */
    for (uint32_t s = 0; s < options->state_count; s++)
        longest = lki_max(longest, options->states[s].count);
    const size_t    most = lki_max(longest, bucket > 0 ? lki_min(bucket, PIECE) : PIECE);
    const uint64_t  each = ring ? LKI_NEIGHBOURS_MAX : 2;
    lki_gossip_room room = { .elements = lki_min(elements, most),
                             .slots = (uint32_t)lki_min(mixing->count, each * mixing->most) };
    room.bytes           = 2 * room.slots * room.elements * sizeof(float);
    return room;
}

lk_status lki_gossip_open(lk_parallel *parallel, const lk_param *params, uint32_t param_count,
                          const lk_parallel_options *options)
{
    lki_replicas  *replicas = parallel->replicas;
    const uint32_t count    = replicas->options.count;
    if (replicas->options.topology == LK_TOPOLOGY_ALL || count == 1)
        return LK_OK;
    LK_TRY(LKI_NEW(&replicas->gossip, 1, "neighbours of replicas"));
    lki_gossip *g = replicas->gossip;
    LK_TRY(lki_mixing_init(&g->mixing, replicas, &parallel->world));
    LK_TRY(LKI_NEW(&g->slot_of, count, "neighbours of replicas"));
    LK_TRY(LKI_NEW(&g->requests, (size_t)count * parallel->world.hosts, "messages of replicas"));
    g->room = lki_gossip_room_of(&g->mixing, replicas,
                                 lki_gossip_elements(params, param_count, options), options);
    return lk_comm_arena(&g->arena, parallel->comm, "gossip", g->room.bytes);
}

void lki_gossip_free(lki_gossip *gossip)
{
    if (gossip == NULL)
        return;
    lki_mixing_deinit(&gossip->mixing);
    lki_free(gossip->slot_of);
    lki_free(gossip->requests);
    lki_free(gossip);
}

/* ---- Strips ------------------------------------------------------------------------------ */

/* A strip is a span of a parameter or, after all spans, a running state. */
static size_t count_strips(const lk_parallel *model)
{
    return model->layout->span_count + model->running.count;
}

static size_t strip_size(const lk_parallel *model, size_t strip)
{
    const size_t spans = model->layout->span_count;
    return strip < spans ? model->layout->spans[strip].count
                         : model->running.of[strip - spans].count;
}

static float *strip_of(const lk_parallel *model, size_t strip)
{
    const size_t spans = model->layout->span_count;
    return strip < spans ? lki_values_of(model, &model->layout->spans[strip])
                         : model->running.values + model->running.at[strip - spans];
}

/* Returns true if this rank writes the strip on its host. */
static bool writes_strip(const lk_parallel *model, size_t strip)
{
    const size_t spans = model->layout->span_count;
    return strip < spans ? lki_tends(model, &model->layout->spans[strip]) : model->local == 0;
}

/* Returns the piece that begins with strip `first`: as many strips as a slot has room for. */
static piece piece_from(const lki_gossip *g, const lk_parallel *model, size_t first, uint32_t half)
{
    piece at = { .first = first, .end = first, .half = half };
    while (at.end < count_strips(model) &&
           at.elements + strip_size(model, at.end) <= g->room.elements)
        at.elements += strip_size(model, at.end++);
    return at;
}

/* ---- Movement ---------------------------------------------------------------------------- */

static float *slot_at(const lki_gossip *g, const piece *at, uint32_t replica)
{
    const size_t slot = (size_t)at->half * g->room.slots + g->slot_of[replica];
    return (float *)lk_arena_data(g->arena) + slot * g->room.elements;
}

static bool needs(const lki_gossip *g, uint32_t host, uint32_t replica)
{
    return g->mixing.needs[host * g->mixing.count + replica];
}

static bool has(const lki_gossip *g, uint32_t host, uint32_t replica)
{
    return g->mixing.has[host * g->mixing.count + replica];
}

/* Numbers the slots of the replicas that this host needs. */
static void number_slots(lki_gossip *g, uint32_t host)
{
    uint32_t slots = 0;
    for (uint32_t r = 0; r < g->mixing.count; r++)
        if (needs(g, host, r))
            g->slot_of[r] = slots++;
    LK_ASSERT(slots <= g->room.slots);
}

/* Returns the first rank of a host that has a replica. */
static uint32_t giver_of(const lk_parallel *parallel, uint32_t host, uint32_t replica)
{
    uint32_t rank = lki_replica_seats(parallel->replicas, replica, parallel->ranks).first;
    while (parallel->world.host_of[rank] != host)
        rank++;
    return rank;
}

/* Returns the rank of a host that receives a replica. */
static uint32_t receiver_of(const lk_parallel *parallel, uint32_t host, uint32_t replica)
{
    const uint32_t local = replica % parallel->world.sizes[host];
    uint32_t       rank  = 0;
    while (parallel->world.host_of[rank] != host || parallel->world.local_of[rank] != local)
        rank++;
    return rank;
}

/* Copies a piece of this rank's replicas to their slots, unless another rank of the host does. */
static void give(const lk_parallel *parallel, const piece *at)
{
    const lki_replicas *replicas = parallel->replicas;
    const uint32_t      host     = parallel->world.host_of[parallel->rank];
    for (uint32_t i = 0; i < replicas->served; i++) {
        const uint32_t     number = replicas->first + i;
        const lk_parallel *model  = replicas->of[i].model;
        if (!needs(replicas->gossip, host, number) ||
            giver_of(parallel, host, number) != parallel->rank)
            continue;
        float *to = slot_at(replicas->gossip, at, number);
        for (size_t s = at->first; s < at->end; to += strip_size(model, s++))
            memcpy(to, strip_of(model, s), strip_size(model, s) * sizeof *to);
    }
}

/* Starts to send or to receive a piece of a replica for a host that does not have the replica, if
 * this rank does that. */
static lk_status start_message(const lk_parallel *parallel, const piece *at, uint32_t replica,
                               uint32_t host)
{
    lki_gossip    *g        = parallel->replicas->gossip;
    const size_t   bytes    = at->elements * sizeof(float);
    const uint32_t receiver = receiver_of(parallel, host, replica);
    const uint32_t sender   = giver_of(parallel, g->mixing.home[replica], replica);
    lk_request   **request  = &g->requests[g->request_count];
    if (parallel->rank != sender && parallel->rank != receiver)
        return LK_OK;
    float *slot = slot_at(g, at, replica);
    LK_TRY(parallel->rank == sender
               ? lk_send_start(request, parallel->comm, slot, bytes, receiver)
               : lk_recv_start(request, parallel->comm, slot, bytes, sender));
    g->request_count++;
    return LK_OK;
}

/* Fills the slots of a piece on all hosts. */
static lk_status exchange(const lk_parallel *parallel, const piece *at)
{
    lki_gossip *g      = parallel->replicas->gossip;
    lk_status   status = LK_OK;
    give(parallel, at);
    g->request_count = 0;
    for (uint32_t r = 0; r < g->mixing.count; r++)
        for (uint32_t h = 0; h < g->mixing.hosts && status == LK_OK; h++)
            if (needs(g, h, r) && !has(g, h, r))
                status = start_message(parallel, at, r, h);
    for (size_t i = 0; i < g->request_count && status == LK_OK; i++)
        status = lk_request_wait(g->requests[i]);
    for (size_t i = 0; i < g->request_count; i++)
        lk_request_free(g->requests[i]);
    return status == LK_OK ? lk_barrier(parallel->comm) : status;
}

/* ---- Means ------------------------------------------------------------------------------- */

static void mean_of_2(size_t count, float *out, const float *a, const float *b)
{
    for (size_t i = 0; i < count; i++)
        out[i] = (float)(((double)a[i] + (double)b[i]) * 0.5);
}

static void mean_of_3(size_t count, float *out, const float *a, const float *b, const float *c)
{
    for (size_t i = 0; i < count; i++)
        out[i] = (float)(((double)a[i] + (double)b[i] + (double)c[i]) * (1.0 / 3.0));
}

/* Computes the strips of a piece that this rank writes. */
static void mix_piece(const lki_gossip *g, lk_parallel *model, const lki_neighbours *n,
                      const piece *at)
{
    const float *from[LKI_NEIGHBOURS_MAX] = { NULL };
    size_t       inside = 0;
    for (uint32_t i = 0; i < n->count; i++)
        from[i] = slot_at(g, at, n->of[i]);
    for (size_t s = at->first; s < at->end; inside += strip_size(model, s++)) {
        const size_t count = strip_size(model, s);
        if (!writes_strip(model, s))
            continue;
        if (n->count == 2)
            mean_of_2(count, strip_of(model, s), from[0] + inside, from[1] + inside);
        else
            mean_of_3(count, strip_of(model, s), from[0] + inside, from[1] + inside,
                      from[2] + inside);
        if (s < model->layout->span_count && lki_owns(model, &model->layout->spans[s]))
            lki_attest_span(model, s);
    }
}

/* Mixes all replicas.  `number`: of the mixing, from 1. */
static lk_status mix(lk_parallel *parallel, uint64_t number)
{
    lki_replicas      *replicas = parallel->replicas;
    lki_gossip        *g        = replicas->gossip;
    const lk_parallel *any      = replicas->of[0].model;
    uint32_t           half     = 0;
    lki_topology_neighbours(g->mixing.neighbours, g->mixing.order, replicas->options.topology,
                            g->mixing.count, replicas->seed, number);
    lki_mixing_find_needs(&g->mixing);
    number_slots(g, parallel->world.host_of[parallel->rank]);
    for (size_t first = 0; first < count_strips(any); half = 1 - half) {
        const piece at = piece_from(g, any, first, half);
        LK_TRY(exchange(parallel, &at));
        for (uint32_t i = 0; i < replicas->served; i++) {
            const lki_neighbours *n = &g->mixing.neighbours[replicas->first + i];
            if (n->count > 1)
                mix_piece(g, replicas->of[i].model, n, &at);
        }
        first = at.end;
    }
    return lk_barrier(parallel->comm);
}

lk_status lki_gossip_steps(lk_parallel *parallel, uint64_t done)
{
    lki_replicas  *replicas = parallel->replicas;
    const uint64_t each     = replicas->options.local_steps;
    replicas->mixings       = done / each;
    return done % each == 0 && replicas->gossip != NULL ? mix(parallel, done / each) : LK_OK;
}

/* ---- The mean of all replicas ------------------------------------------------------------- */

lk_status lk_parallel_average(lk_parallel *parallel)
{
    lki_replicas *replicas = parallel->replicas;
    LK_TRY(lki_check_idle(parallel, "lk_parallel_average"));
    if (replicas == NULL || replicas->options.topology == LK_TOPOLOGY_ALL || replicas->averaged ||
        replicas->whole != NULL)
        return LK_OK;
    if (lki_step_failed(parallel))
        return lki_fail_again(&parallel->now.failure);
    const lk_status status = lki_outer_mean(parallel);
    lki_step_keep(parallel, status);
    replicas->averaged = status == LK_OK;
    return status;
}
