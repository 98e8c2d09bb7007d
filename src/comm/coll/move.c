/* move.c -- the engine of broadcast, gather, scatter, all-gather and all-to-all.
 *
 * An operation has a route: a function that maps bytes of each sender's buffer to places in each
 * receiver's buffer.  There are three methods.  Only sizes and locations of buffers determine the
 * method:
 *
 *   slot     the parcels of a rank fit its slot: the rank publishes them there, and the receivers
 *            read them there.
 *   direct   all senders' buffers are in arenas: receivers copy from them.  One round later the
 *            senders may reuse their buffers.
 *   staged   otherwise: chunk by chunk through the staging buffers.  Every receiver has a share of
 *            a buffer; if all receive the same bytes, the share is the whole buffer.
 *
 *      staged, one round per chunk (|):   put 0 | take 0, put 1 | take 1, put 2 | take 2 ...
 *      A rank puts chunk c + 1 when all ranks have taken chunk c - 1.  The third buffer is for the
 *      next operation, which some ranks may begin while others still take the last chunk.
 *      A rank that has taken all chunks of earlier operations puts its first chunk, if any, and
 *      then publishes `filled`.  If all ranks have published `filled`, one round is saved.
 *      `filled` must be correct even on a rank that sends nothing.  The senders of a single chunk
 *      are done when all ranks have published, and later operations then reuse the buffer.
 *
 * With a header, ranks first publish the sizes of their parcels in the staging buffers, and
 * compare.
 *
 * Cost:    slot: one synchronisation.  Direct: two, and every byte is copied once.  Staged: one per
 *          chunk and one more, and every byte is copied twice.
 * Order:   nothing is computed.
 * Memory:  none but the existing staging buffers.
 */
#include "comm/coll/move.h"

#include <string.h>

#include "base/memory.h"
#include "device/copy.h"

/* If one operation receives at least this many bytes in total, copies bypass the caches.  Ranks
 * share the caches, and this amount of data would be evicted before it is read again. */
enum { FAR_BYTES = 16 << 20 };

/* A header's entry for one receiver. */
typedef struct {
    uint64_t at, bytes;
} notice;

_Static_assert(sizeof(notice) * LKI_RANKS_MAX <= LKI_STAGE_BYTES, "a header fits a stage");

/* ---- Arguments --------------------------------------------------------------------------- */

lk_status lki_total(size_t *total, const char *name, size_t a, size_t b)
{
    if (__builtin_mul_overflow(a, b, total) || *total > (size_t)INT64_MAX)
        return lk_fail(LK_EINVAL, "%s of %zu times %zu bytes: more than memory can hold", name, a,
                       b);
    return LK_OK;
}

lk_status lki_offsets(size_t *offsets, const lk_comm *comm, const size_t *sizes, size_t width,
                      const char *name, const char *list)
{
    LK_TRY(lki_check_given(name, list, sizes, comm->size));
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        size_t bytes;
        LK_TRY(lki_total(&bytes, name, sizes[rank], width));
        if (__builtin_add_overflow(offsets[rank], bytes, &offsets[rank + 1]) ||
            offsets[rank + 1] > (size_t)INT64_MAX)
            return lk_fail(LK_EINVAL, "%s: the parts up to rank %u are more than memory can hold",
                           name, rank);
    }
    return LK_OK;
}

lk_status lki_check_buffers(const char *name, const void *send, size_t send_bytes, const void *recv,
                            size_t recv_bytes, bool in_place)
{
    const uintptr_t a = (uintptr_t)send, b = (uintptr_t)recv;
    const size_t    larger = lki_max(send_bytes, recv_bytes);

    if (larger > (size_t)INT64_MAX)
        return lk_fail(LK_EINVAL, "%s of %zu bytes: more than memory can hold", name, larger);
    if ((send == NULL && send_bytes > 0) || (recv == NULL && recv_bytes > 0))
        return lk_fail(LK_EINVAL, "%s: %s is NULL, but it should have %zu bytes", name,
                       send == NULL && send_bytes > 0 ? "send" : "recv",
                       send == NULL && send_bytes > 0 ? send_bytes : recv_bytes);
    if (!in_place && send_bytes > 0 && recv_bytes > 0 && a < b + recv_bytes && b < a + send_bytes)
        return lk_fail(LK_EINVAL,
                       "%s: send (%zu bytes) and recv (%zu bytes) overlap, but not in "
                       "the way that means in place",
                       name, send_bytes, recv_bytes);
    return LK_OK;
}

lk_status lki_check_root(const lk_comm *comm, const char *name, uint32_t root)
{
    if (root >= comm->size)
        return lk_fail(LK_EINVAL, "%s: rank %u in a group of %u", name, root, comm->size);
    return LK_OK;
}

/* ---- Publishing places ------------------------------------------------------------------- */

void lki_reach_tell(const lk_request *r, const lki_reach *mine)
{
    memcpy(lki_op_payload(r->comm, &r->op, r->comm->rank, sizeof *mine), mine, sizeof *mine);
}

lki_reach lki_reach_of(const lk_request *r, uint32_t rank)
{
    lki_reach reach;
    memcpy(&reach, lki_op_payload(r->comm, &r->op, rank, sizeof reach), sizeof reach);
    return reach;
}

size_t lki_share(const lk_request *r)
{
    size_t size = r->comm->size;

    LK_ASSERT(size > 0);
    if (r->route == NULL || r->route->personal)
        return r->comm->stage_bytes / size / LKI_LINE * LKI_LINE;
    return r->comm->stage_bytes;
}

/* Returns the number of bytes that the largest sender needs in its slot, which is equal on all
 * ranks. */
static size_t slot_bytes(const lk_request *r)
{
    return r->route->personal ? r->longest * r->comm->size : r->longest;
}

void lki_move_init(lk_request *r)
{
    bool small = !r->route->header &&
                 r->longest <= (size_t)LKI_PAYLOAD_BYTES / (r->route->personal ? r->comm->size : 1);
    r->how  = &lki_move;
    r->lane = small ? LKI_LANE_NONE : LKI_LANE_STAGES;
}

/* ---- Staging ----------------------------------------------------------------------------- */

/* Copies to offset `at` of recv.  If ranks are threads, `from` may be the destination itself. */
static void copy(const lk_request *r, size_t at, const void *from, size_t bytes)
{
    if (bytes == 0 || r->recv + at == from)
        return;
    if (r->far)
        lki_copy_far(r->recv + at, from, bytes);
    else
        memcpy(r->recv + at, from, bytes);
}

/* Returns the number of bytes of a parcel that belong to chunk number `chunk`. */
static size_t in_chunk(size_t bytes, uint64_t chunk, size_t share)
{
    size_t at = (size_t)chunk * share;
    return at < bytes ? lki_min(bytes - at, share) : 0;
}

/* Returns the part of the staging buffer of `from` that is for receiver `to`. */
static unsigned char *slots(const lk_request *r, uint64_t stage, uint32_t from, uint32_t to)
{
    unsigned char *at = lki_stage(r->comm, from, stage);
    return r->route->personal ? at + to * lki_share(r) : at;
}

static void put(const lk_request *r, uint64_t first, uint64_t chunk)
{
    lk_comm *comm  = r->comm;
    size_t   share = lki_share(r);
    bool     begun = false;

    for (uint32_t to = 0; to < comm->size; to++) {
        lki_parcel p = r->route->parcel(r, comm->rank, to);
        size_t     n = in_chunk(p.bytes, chunk, share);
        if (to == comm->rank || n == 0)
            continue;
        if (!begun)
            (void)lki_stage_claim(comm, first + chunk);
        begun = true;
        memcpy(slots(r, first + chunk, comm->rank, to), r->send + p.from_at + chunk * share, n);
        if (!r->route->personal)
            return; /* one copy serves all receivers */
    }
}

static void take(const lk_request *r, uint64_t first, uint64_t chunk)
{
    lk_comm *comm  = r->comm;
    size_t   share = lki_share(r);

    for (uint32_t i = 1; i < comm->size; i++) {
        uint32_t   from = (comm->rank + i) % comm->size; /* ranks start with different peers */
        lki_parcel p    = r->route->parcel(r, from, comm->rank);
        size_t     n    = in_chunk(p.bytes, chunk, share);
        if (n == 0)
            continue;
        lki_stage_check(comm, from, first + chunk);
        copy(r, p.to_at + chunk * share, slots(r, first + chunk, from, comm->rank), n);
        lki_stage_check(comm, from, first + chunk);
    }
}

/* Copies the parcel from this rank to itself. */
static void keep_mine(const lk_request *r)
{
    lki_parcel p = r->route->parcel(r, r->comm->rank, r->comm->rank);
    if (p.bytes > 0)
        copy(r, p.to_at, r->send + p.from_at, p.bytes);
}

/* Copies the parcel from this rank to itself.  If all ranks receive the same bytes, copies each
 * chunk just after it was staged, while it is in the cache.  Otherwise copies the whole parcel with
 * the first chunk. */
static void keep_chunk(const lk_request *r, uint64_t chunk)
{
    lki_parcel p  = r->route->parcel(r, r->comm->rank, r->comm->rank);
    size_t     at = (size_t)chunk * lki_share(r), n = in_chunk(p.bytes, chunk, lki_share(r));

    if (!r->route->personal && n > 0)
        copy(r, p.to_at + at, r->send + p.from_at + at, n);
    else if (r->route->personal && chunk == 0)
        keep_mine(r);
}

/* ---- The header -------------------------------------------------------------------------- */

static void put_header(const lk_request *r)
{
    lk_comm *comm    = r->comm;
    notice  *notices = lki_stage_claim(comm, comm->chunks);

    for (uint32_t to = 0; to < comm->size; to++) {
        lki_parcel p = r->route->parcel(r, comm->rank, to);
        notices[to]  = (notice){ p.from_at, p.bytes };
    }
}

/* Reads the offsets of this rank's parcels in the senders' buffers, and stores them in `offsets`
 * after the route's own tables. */
static lk_status take_header(lk_request *r)
{
    lk_comm *comm = r->comm;

    for (uint32_t from = 0; from < comm->size; from++) {
        const notice *told = (const notice *)lki_stage(comm, from, comm->chunks) + comm->rank;
        lki_parcel    p    = r->route->parcel(r, from, comm->rank);
        lki_stage_check(comm, from, comm->chunks);
        if (told->bytes != p.bytes)
            return lki_fail_group(comm, comm->world[from], LK_EMISMATCH,
                                  "all_to_all_v #%llu: rank %u sends %llu bytes to rank %u, which "
                                  "expects %zu",
                                  (unsigned long long)r->op.seq, comm->world[from],
                                  (unsigned long long)told->bytes, comm->world[comm->rank],
                                  p.bytes);
        r->offsets[2 * (comm->size + 1) + from] = (size_t)told->at;
        lki_stage_check(comm, from, comm->chunks);
    }
    comm->chunks++;
    return LK_OK;
}

/* ---- The algorithm ----------------------------------------------------------------------- */

static void publish(lk_request *r)
{
    lk_comm *comm = r->comm;

    if (r->lane == LKI_LANE_NONE) {
        lki_payload_write(r, r->send, r->send_bytes, slot_bytes(r));
        return;
    }
    lki_reach mine = { .longest = r->longest };
    mine.send      = lki_place_of(comm, r->send, r->send_bytes);
    mine.direct    = r->send_bytes == 0 || (mine.send.arena != 0 && !r->in_place);
    if ((!mine.direct || r->send_bytes == 0) && !r->route->header && lki_request_first(r)) {
        put(r, comm->chunks, 0);
        mine.filled = true;
    }
    lki_reach_tell(r, &mine);
}

static bool gets_much(const lk_request *r)
{
    size_t bytes = 0;
    for (uint32_t from = 0; from < r->comm->size; from++)
        bytes += r->route->parcel(r, from, r->comm->rank).bytes;
    return bytes >= FAR_BYTES;
}

/* Chooses the method.  Afterwards `longest` is the maximum of all ranks, and `filled` is true only
 * if the data of all ranks is staged. */
static void plan(lk_request *r)
{
    bool direct = true, filled = true;

    r->rounds = 1;
    if (r->lane == LKI_LANE_NONE) {
        lki_payload_await(r, slot_bytes(r));
        return;
    }
    for (uint32_t rank = 0; rank < r->comm->size; rank++) {
        lki_reach reach = lki_reach_of(r, rank);
        direct          = direct && reach.direct != 0;
        filled          = filled && reach.filled != 0;
        r->longest      = lki_max(r->longest, (size_t)reach.longest);
    }
    size_t   share  = lki_share(r);
    uint64_t chunks = (r->longest + share - 1) / share;
    r->far          = gets_much(r);
    r->staged       = !direct;
    r->filled       = !direct && filled;
    r->rounds       = direct ? 2 : r->filled ? chunks : chunks + 1;
    if (r->route->header)
        r->rounds++;
    else if (direct)
        r->lane = LKI_LANE_NONE;
}

static lk_status act_slot(lk_request *r)
{
    for (uint32_t from = 0; from < r->comm->size; from++) {
        lki_parcel p = r->route->parcel(r, from, r->comm->rank);
        if (p.bytes > 0)
            LK_TRY(lki_op_read(r->comm, &r->op, from, p.from_at, p.bytes, r->recv + p.to_at));
    }
    return LK_OK;
}

static void act_direct(lk_request *r)
{
    lk_comm *comm = r->comm;

    for (uint32_t i = 1; i < comm->size; i++) {
        uint32_t   from = (comm->rank + i) % comm->size;
        lki_parcel p    = r->route->parcel(r, from, comm->rank);
        if (p.bytes == 0)
            continue;
        const unsigned char *data = lki_place_data(comm, lki_reach_of(r, from).send);
        copy(r, p.to_at, data + p.from_at, p.bytes);
    }
    keep_mine(r);
}

static void act_staged(lk_request *r, uint64_t round, bool last)
{
    lk_comm *comm = r->comm;

    if (r->filled || round > 0)
        take(r, comm->chunks, round - !r->filled);
    if (round == 0 && r->filled)
        keep_chunk(r, 0);
    if (last) {
        comm->chunks += round + r->filled;
        return;
    }
    put(r, comm->chunks, round + r->filled);
    keep_chunk(r, round + r->filled);
}

static lk_status act(lk_request *r)
{
    uint64_t round = r->round;
    bool     last  = r->round + 1 == r->rounds;

    if (r->lane == LKI_LANE_NONE && r->rounds == 1)
        return act_slot(r);
    if (r->route->header && round == 0) {
        put_header(r);
        return LK_OK;
    }
    if (r->route->header && round == 1)
        LK_TRY(take_header(r));
    round -= r->route->header;
    if (r->staged)
        act_staged(r, round, last);
    else if (round == 0)
        act_direct(r);
    return LK_OK;
}

const lki_algorithm lki_move = { .publish = publish, .plan = plan, .act = act };
