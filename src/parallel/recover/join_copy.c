/* join_copy.c -- copies stored values to a host that joins the running job, in pieces, from all
 * hosts.
 *
 * Every rank can compute which rank sends which piece, so there are no requests:
 *
 *      a region              values that are equal on all hosts, or on the hosts of one shard
 *                            (shard_map.h), for the new hosts that must store them
 *      piece p of a region   is sent with its hash by the p-th of the ranks that have it (the
 *                            givers), taken from each host in turn;
 *                            is witnessed by the next giver on another host, which sends the hash
 *                            of its own copy; and
 *                            is received by the p-th of the new host's ranks
 *
 * Hashes are XXH3.  The hash of the received piece must equal the giver's hash and the
 * witness's hash.  Otherwise the next rank that has the piece sends it again, and a note names the
 * rank that sent the damaged piece.  Pieces are received in place: no rank reads them before all of
 * them are correct.
 *
 * Cost:   the bytes that the new host stores are sent once.  Every giver reads the pieces that it
 *         sends and, as a witness, as many pieces of other givers.
 * Memory: only lists of givers and of regions.
 */
#include "parallel/recover/join_copy.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/state.h"

enum { BAD_MAX = 31, ATTEMPTS_MAX = 4, COMMON_REGIONS = 4 };

static const size_t   PIECE_BYTES = (size_t)1 << 20;
static const uint32_t COMMON      = UINT32_MAX; /* no shard: every host has the region */

/* Values that are equal on all hosts that store them. */
typedef struct {
    const char    *what;
    unsigned char *data;  /* address on this host, if the host has or receives the values */
    size_t         bytes;
    uint32_t       shard;
} region;

/* The pieces that a rank has received damaged. */
typedef struct {
    uint32_t count; /* more than BAD_MAX: all pieces of the rank are sent again */
    uint32_t pieces[BAD_MAX];
} damage;

typedef struct {
    lk_parallel *parallel;
    const bool  *fresh;     /* [hosts] */
    damage       mine, *all; /* mine: of this attempt; all: of every rank in the previous attempt */
    uint32_t     attempt;
    region      *regions;
    uint32_t     region_count;
    uint32_t    *givers;    /* the ranks that send a region, taken from each host in turn */
    uint32_t     giver_count;
    uint32_t     piece;     /* number of the current piece, over all regions */
} join_copy;

/* ---- Givers ------------------------------------------------------------------------------ */

static bool is_of(const join_copy *self, const region *r, uint32_t host)
{
    return r->shard == COMMON || lki_shard_map_has(self->parallel, host, r->shard);
}

static lk_status find_givers(join_copy *self, const region *r)
{
    const lki_world *world = &self->parallel->world;

    self->giver_count = 0;
    for (uint32_t local = 0; local < world->widest; local++)
        for (uint32_t rank = 0; rank < world->ranks; rank++) {
            uint32_t host = world->host_of[rank];
            if (world->local_of[rank] == local && !self->fresh[host] && is_of(self, r, host))
                self->givers[self->giver_count++] = rank;
        }
    return self->giver_count > 0 ? LK_OK
                                 : lk_fail(LK_EPEER,
                                           "nobody has the %s that a host which has come late is "
                                           "to keep",
                                           r->what);
}

static uint32_t giver_of(const join_copy *self, uint32_t attempt)
{
    return self->givers[(self->piece + attempt) % self->giver_count];
}

/* Returns the next giver on another host, or the giver itself if there is none. */
static uint32_t witness_of(const join_copy *self)
{
    const uint32_t *host_of = self->parallel->world.host_of;
    uint32_t        giver   = giver_of(self, self->attempt);

    for (uint32_t i = 1; i < self->giver_count; i++)
        if (host_of[giver_of(self, self->attempt + i)] != host_of[giver])
            return giver_of(self, self->attempt + i);
    return giver;
}

static uint32_t receiver_on(const join_copy *self, uint32_t host)
{
    const lki_world *world = &self->parallel->world;
    uint32_t         rank = 0, local = self->piece % world->sizes[host];

    while (world->host_of[rank] != host || world->local_of[rank] != local)
        rank++;
    return rank;
}

/* Returns true if this piece must (still) be sent to that rank. */
static bool is_wanted(const join_copy *self, uint32_t receiver)
{
    const damage *d      = &self->all[receiver];
    bool          wanted = self->attempt == 0 || d->count > BAD_MAX;

    for (uint32_t i = 0; i < d->count && i < BAD_MAX && !wanted; i++)
        wanted = d->pieces[i] == self->piece;
    return wanted;
}

/* ---- A piece ----------------------------------------------------------------------------- */

static void note_damage(join_copy *self, const region *r, size_t at, size_t bytes, bool witnessed)
{
    lk_comm *comm = self->parallel->comm;
    char     giver[LKI_WHO_BYTES], other[LKI_WHO_BYTES], text[LKI_MESSAGE_BYTES];

    if (self->mine.count++ < BAD_MAX)
        self->mine.pieces[self->mine.count - 1] = self->piece;
    lki_comm_who(comm, giver_of(self, self->attempt), giver);
    lki_comm_who(comm, giver_of(self, self->attempt + 1), other);
    (void)snprintf(text, sizeof text, "got a damaged piece of the %s (bytes %zu to %zu) from "
                   "%.120s: %s; %.120s gives it again", r->what, at, at + bytes - 1, giver,
                   witnessed ? "another host has other bytes" : "its hash is another", other);
    lki_comm_tell(comm, text);
}

static lk_status receive(join_copy *self, const region *r, size_t at, size_t bytes)
{
    lk_comm *comm  = self->parallel->comm;
    uint32_t giver = giver_of(self, self->attempt), witness = witness_of(self);
    uint64_t given, seen;

    LK_TRY(lk_recv(comm, &given, sizeof given, giver));
    LK_TRY(lk_recv(comm, r->data + at, bytes, giver));
    seen = given;
    if (witness != giver)
        LK_TRY(lk_recv(comm, &seen, sizeof seen, witness));
    bool whole = lki_xxh3(r->data + at, bytes) == given;
    if (!whole || seen != given)
        note_damage(self, r, at, bytes, whole);
    return LK_OK;
}

static lk_status give(const join_copy *self, const region *r, size_t at, size_t bytes, uint32_t to)
{
    lk_comm *comm  = self->parallel->comm;
    uint32_t me    = self->parallel->rank;
    bool     gives = me == giver_of(self, self->attempt);

    if (!gives && me != witness_of(self))
        return LK_OK;
    uint64_t hash = lki_xxh3(r->data + at, bytes);
    LK_TRY(lk_send(comm, &hash, sizeof hash, to));
    return gives ? lk_send(comm, r->data + at, bytes, to) : LK_OK;
}

static lk_status copy_piece(join_copy *self, const region *r, size_t at, size_t bytes)
{
    const lki_world *world = &self->parallel->world;

    for (uint32_t host = 0; host < world->hosts; host++) {
        if (!self->fresh[host] || !is_of(self, r, host))
            continue;
        uint32_t to = receiver_on(self, host);
        if (!is_wanted(self, to))
            continue;
        LK_TRY(self->parallel->rank == to ? receive(self, r, at, bytes)
                                          : give(self, r, at, bytes, to));
    }
    return LK_OK;
}

static lk_status copy_region(join_copy *self, const region *r)
{
    LK_TRY(find_givers(self, r));
    for (size_t at = 0; at < r->bytes; at += PIECE_BYTES, self->piece++)
        LK_TRY(copy_piece(self, r, at, lki_min(PIECE_BYTES, r->bytes - at)));
    return LK_OK;
}

/* ---- All pieces -------------------------------------------------------------------------- */

static void add(join_copy *self, const char *what, uint32_t shard, void *data, size_t bytes)
{
    if (bytes > 0)
        self->regions[self->region_count++] = (region){ what, data, bytes, shard };
}

/* Finds a run of consecutive spans whose owners belong to one shard, sets *end to the run's end,
 * and returns the shard. */
static uint32_t run_of_hashes(const lk_parallel *parallel, size_t first, size_t *end)
{
    const lki_layout *layout = parallel->layout;
    uint32_t          shard  = layout->owners[layout->spans[first].owner].shard;

    for (*end = first + 1; *end < layout->span_count; ++*end)
        if (layout->owners[layout->spans[*end].owner].shard != shard)
            break;
    return shard;
}

static uint32_t count_runs(const lk_parallel *parallel)
{
    uint32_t count = 0;
    for (size_t first = 0; first < parallel->layout->span_count; count++)
        (void)run_of_hashes(parallel, first, &first);
    return count;
}

/* Lists the values of a shard.  On each host they are stored after those of the previous shards. */
static void list_shard(join_copy *self, uint32_t shard)
{
    lk_parallel *parallel = self->parallel;
    size_t       before   = parallel->shard_map.before[shard];
    size_t       bytes    = parallel->layout->shard_elements[shard] * sizeof(float);

    if (parallel->parted)
        add(self, "parameters", shard, parallel->params + before, bytes);
    for (uint32_t i = 0; i < lk_optimizer_state_count(&parallel->optimizer); i++)
        add(self, "optimizer's state", shard, parallel->optimizer_state[i] + before, bytes);
}

/* Lists the values that are equal on all hosts when a step is complete.  The rest of the arena
 * belongs to a single step or to single ranks. */
static void list_regions(join_copy *self)
{
    lk_parallel      *parallel = self->parallel;
    const lki_layout *layout   = parallel->layout;
    size_t            running  = parallel->state_width * sizeof(float);

    if (!parallel->parted)
        add(self, "parameters", COMMON, parallel->params, layout->elements * sizeof(float));
    if (parallel->read != NULL)
        add(self, "parameters as they are read", COMMON, parallel->read,
            lki_reading_bytes(parallel));
    for (uint32_t shard = 0; shard < parallel->shards; shard++)
        list_shard(self, shard);
    add(self, "running state", COMMON, parallel->running.values, running);
    if (parallel->running.mean != NULL)
        add(self, "running state's mean", COMMON, parallel->running.mean, running);
    for (size_t first = 0, end; first < layout->span_count; first = end) {
        uint32_t shard = run_of_hashes(parallel, first, &end);
        add(self, "hashes of parameters", shard, &parallel->owned.hashes[first],
            (end - first) * sizeof *parallel->owned.hashes);
    }
}

static lk_status attempt(join_copy *self, bool *whole)
{
    lk_parallel *parallel = self->parallel;

    self->mine  = (damage){ .count = 0 };
    self->piece = 0;
    for (uint32_t i = 0; i < self->region_count; i++)
        LK_TRY(copy_region(self, &self->regions[i]));
    LK_TRY(lk_all_gather(parallel->comm, &self->mine, self->all, sizeof self->mine));
    *whole = true;
    for (uint32_t r = 0; r < parallel->ranks; r++)
        *whole = *whole && self->all[r].count == 0;
    return LK_OK;
}

static lk_status copy_all(join_copy *self)
{
    bool whole = false;

    list_regions(self);
    for (self->attempt = 0; self->attempt < ATTEMPTS_MAX && !whole; self->attempt++)
        LK_TRY(attempt(self, &whole));
    return whole ? LK_OK
                 : lk_fail(LK_ECORRUPT, "a host that has come late got damaged pieces of the model "
                           "%d times over: a network or a memory on the way is faulty",
                           ATTEMPTS_MAX);
}

static size_t most_regions(const lk_parallel *parallel)
{
    size_t of_a_shard = 1 + (size_t)lk_optimizer_state_count(&parallel->optimizer);
    return COMMON_REGIONS + parallel->shards * of_a_shard + count_runs(parallel);
}

lk_status lki_join_copy(lk_parallel *parallel, const bool *fresh)
{
    join_copy self   = { .parallel = parallel, .fresh = fresh };
    lk_status status = LKI_NEW(&self.all, parallel->ranks, "pieces of the model");

    if (status == LK_OK)
        status = LKI_NEW(&self.givers, parallel->ranks, "who gives the model");
    if (status == LK_OK)
        status = LKI_NEW(&self.regions, most_regions(parallel), "parts of the model");
    if (status == LK_OK)
        status = lk_barrier(parallel->comm); /* the values to be sent are complete */
    if (status == LK_OK)
        status = copy_all(&self);
    lki_free(self.regions);
    lki_free(self.givers);
    lki_free(self.all);
    return status;
}
