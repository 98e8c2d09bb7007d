/* topology.c -- the neighbours of replicas, and the replicas that hosts send to each other.
 *
 * ring         The replicas before and behind, and itself.  (D-PSGD, Lian et al. 2017.)
 * exponential  One replica at distance 2^k above, where k goes around from mixing to mixing, and
 *              itself.  If R is a power of two, log2 R mixings without steps between them compute
 *              the mean of all.  (One-peer exponential graphs, Ying et al. 2021.)
 * pairs        The other one of a pair, and itself.  Pairs are drawn anew for each mixing; with an
 *              odd number of replicas one of them stays alone.
 *
 * All neighbours of a replica have the same weight.  Each replica is a neighbour of as many
 * replicas as it has neighbours, so mixing preserves the mean of all replicas.
 */
#include "parallel/replicas/topology.h"

#include <string.h>

#include "base/memory.h"
#include "base/rng.h"

/* ---- Neighbours -------------------------------------------------------------------------- */

static void add(lki_neighbours *to, uint32_t replica)
{
    uint32_t at = to->count;
    for (uint32_t i = 0; i < to->count; i++)
        if (to->of[i] == replica)
            return;
    for (; at > 0 && to->of[at - 1] > replica; at--)
        to->of[at] = to->of[at - 1];
    to->of[at] = replica;
    to->count++;
}

uint32_t lki_topology_distances(uint32_t count)
{
    uint32_t distances = 0;
    while (((uint64_t)1 << distances) < count)
        distances++;
    return distances;
}

void lki_topology_shift(lki_neighbours *out, uint32_t count, uint32_t distance)
{
    for (uint32_t r = 0; r < count; r++) {
        out[r] = (lki_neighbours){ 1, { r } };
        add(&out[r], (r + distance) % count);
    }
}

/* Draws an order of the replicas, all with the same probability (Fisher and Yates). */
static void shuffle(uint32_t *order, uint32_t count, uint64_t seed, uint64_t number)
{
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        const lki_random lot   = lki_philox(seed, LKI_RNG_PAIRS, (uint32_t)number,
                                            (uint32_t)(number >> 32), i, 0);
        const uint32_t   other = (uint32_t)(((uint64_t)lot.word[0] * i) >> 32);
        const uint32_t   last  = order[i - 1];
        order[i - 1]           = order[other];
        order[other]           = last;
    }
}

static void draw_pairs(lki_neighbours *out, uint32_t *order, uint32_t count, uint64_t seed,
                       uint64_t number)
{
    lki_topology_shift(out, count, 0);
    shuffle(order, count, seed, number);
    for (uint32_t i = 0; i + 1 < count; i += 2) {
        add(&out[order[i]], order[i + 1]);
        add(&out[order[i + 1]], order[i]);
    }
}

void lki_topology_neighbours(lki_neighbours *out, uint32_t *order, lk_replica_topology topology,
                             uint32_t count, uint64_t seed, uint64_t number)
{
    const uint32_t distances = lki_topology_distances(count);
    if (topology == LK_TOPOLOGY_PAIRS) {
        draw_pairs(out, order, count, seed, number);
        return;
    }
    if (topology == LK_TOPOLOGY_EXPONENTIAL && distances > 0) {
        lki_topology_shift(out, count, (uint32_t)1 << ((number - 1) % distances));
        return;
    }
    lki_topology_shift(out, count, topology == LK_TOPOLOGY_RING ? 1 : 0);
    for (uint32_t r = 0; r < count && topology == LK_TOPOLOGY_RING; r++)
        add(&out[r], (r + count - 1) % count);
}

/* ---- Hosts ------------------------------------------------------------------------------- */

lk_status lki_mixing_init(lki_mixing *m, const lki_replicas *replicas, const lki_world *world)
{
    const uint32_t count = replicas->options.count;
    *m                   = (lki_mixing){ .count = count, .hosts = world->hosts };
    LK_TRY(LKI_NEW(&m->neighbours, count, "neighbours of replicas"));
    LK_TRY(LKI_NEW(&m->order, count, "neighbours of replicas"));
    LK_TRY(LKI_NEW(&m->home, count, "hosts of replicas"));
    LK_TRY(LKI_NEW(&m->has, (size_t)world->hosts * count, "hosts of replicas"));
    LK_TRY(LKI_NEW(&m->needs, (size_t)world->hosts * count, "hosts of replicas"));
    for (uint32_t r = 0; r < count; r++) {
        const lki_seats seats = lki_replica_seats(replicas, r, world->ranks);
        m->home[r]            = world->host_of[seats.first];
        for (uint32_t i = 0; i < seats.count; i++)
            m->has[world->host_of[seats.first + i] * count + r] = true;
    }
    for (uint32_t h = 0; h < m->hosts; h++) {
        uint32_t some = 0;
        for (uint32_t r = 0; r < count; r++)
            some += m->has[h * count + r];
        m->most = (uint32_t)lki_max(m->most, some);
    }
    return LK_OK;
}

void lki_mixing_deinit(lki_mixing *m)
{
    lki_free(m->neighbours);
    lki_free(m->order);
    lki_free(m->home);
    lki_free(m->has);
    lki_free(m->needs);
    *m = (lki_mixing){ 0 };
}

/* A replica that keeps its weights needs none, not even its own. */
void lki_mixing_find_needs(lki_mixing *m)
{
    memset(m->needs, 0, (size_t)m->hosts * m->count * sizeof *m->needs);
    for (uint32_t h = 0; h < m->hosts; h++)
        for (uint32_t r = 0; r < m->count; r++) {
            const lki_neighbours *n = &m->neighbours[r];
            for (uint32_t i = 0; n->count > 1 && m->has[h * m->count + r] && i < n->count; i++)
                m->needs[h * m->count + n->of[i]] = true;
        }
}

uint64_t lki_mixing_sends(const lki_mixing *m, uint32_t host)
{
    uint64_t copies = 0;
    for (uint32_t r = 0; r < m->count; r++)
        for (uint32_t h = 0; h < m->hosts && m->home[r] == host; h++)
            copies += m->needs[h * m->count + r] && !m->has[h * m->count + r];
    return copies;
}

/* Adds the copies of all possible pairs: each host sends its replicas to all replicas of others. */
static void add_pairs(const lki_mixing *m, uint64_t *copies)
{
    for (uint32_t h = 0; h < m->hosts; h++) {
        uint32_t some = 0;
        for (uint32_t r = 0; r < m->count; r++)
            some += m->has[h * m->count + r];
        for (uint32_t r = 0; r < m->count; r++)
            copies[m->home[r]] += m->has[h * m->count + r] ? 0 : some;
    }
}

uint32_t lki_mixing_count_sends(lki_mixing *m, lk_replica_topology topology, uint64_t *copies)
{
    const uint32_t distances = lki_topology_distances(m->count);
    const uint32_t mixings   = topology == LK_TOPOLOGY_EXPONENTIAL && distances > 0 ? distances : 1;
    if (topology == LK_TOPOLOGY_PAIRS && m->count > 1) {
        add_pairs(m, copies);
        return m->count % 2 == 0 ? m->count - 1 : m->count;
    }
    for (uint32_t number = 1; number <= mixings; number++) {
        lki_topology_neighbours(m->neighbours, m->order, topology, m->count, 0, number);
        lki_mixing_find_needs(m);
        for (uint32_t h = 0; h < m->hosts; h++)
            copies[h] += lki_mixing_sends(m, h);
    }
    return mixings;
}
