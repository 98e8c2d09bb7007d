/* forest.c -- the canonical tree over virtual workers, summed by hosts that hold parts of it.
 *
 * Every host has an owner for every slice, even if it does not want the sum.  The nodes of a host's
 * ranks are in shared memory.  Each owner can thus evaluate, for its slices, every tree node all of
 * whose leaves are on the host.  The maximal such nodes are the host's branches.
 *
 *      V = 8, hosts A and B      A: [0,4) [4,5)     B: [5,6) [6,8)      ((A A) + ((A B) + B))
 *
 *      gathering   the ranks of a host publish the places of their nodes (shared memory)
 *      sets        owners of the same slices exchange the sets of leaves of their hosts
 *      pieces      a slice is cut into pieces, and a piece into one part per host that wants it.
 *                  Owners send their branches of part k to the owner on the k-th such host, which
 *                  evaluates the tree over all branches and sends the sum to the other hosts.
 *
 * Cost:    for a slice of n bytes that all H hosts want, each host's owner sends (H-1)/H n per
 *          branch and (H-1)/H n of sums.  For a slice that only one host wants, the owners on other
 *          hosts send n per branch and nothing else.  A host with a contiguous range of leaves has
 *          few branches, and only one if all hosts have 2^k leaves for the same k.  3 rounds.
 *          Rounded nodes are sent in 2 bytes per element, or 260 or 132 per block of 256
 *          (device/quantise.h), which is never cut.  Packing and unpacking each read and write the
 *          nodes once more.
 * Order:   the canonical tree: exact, for every assignment of leaves to hosts.
 * Memory:  that of tasks (task.h): a rank has at most one segment of scratch per piece.
 */
#include "comm/span/forest.h"

#include <string.h>

#include "base/memory.h"
#include "comm/coll/tree_reduce.h"
#include "comm/span/span.h"
#include "device/quantise.h"

/* A tree node of which one host has all leaves. */
typedef struct {
    uint32_t first, count, host;
    uint32_t lane; /* index among its host's branches */
} branch;

typedef enum { GATHERING, SETS, PIECES } stage;

struct lki_forest {
    lk_comm        *comm;
    const lki_host_map *map;
    lk_tree_op      tree; /* the caller owns its arrays */
    stage           stage;
    lk_request     *gathering; /* owned */
    lki_task       *task;      /* owned */
    lki_tree_input *inputs;    /* this host's nodes */
    uint32_t        input_count;
    size_t          words; /* number of 64-bit words of a set of leaves */
    uint64_t       *sets;  /* [host]: the host's leaves */
    bool           *peers; /* [rank]: this rank exchanges sets with that rank */
    branch         *branches;
    size_t          branch_count, branch_capacity;
    size_t         *have;   /* [host]: number of the host's branches */
    size_t          part;   /* maximum number of elements in a host's part of a piece */
    uint64_t       *pieces; /* [slice]: number of pieces of earlier slices; last: of all slices */
    size_t         *places; /* [slice]: offset of its sum in tree.out, if owned here */
};

/* The maximum number of elements in a piece; the minimum in a host's part. */
enum { PIECE_ELEMENTS = LKI_TASK_SEGMENT_BYTES / sizeof(float), PART_ELEMENTS = 4096 };

/* ---- Owners and hosts -------------------------------------------------------------------- */

static uint32_t here(const lki_forest *f)
{
    return f->map->host_of[f->comm->rank];
}

/* Returns the rank that owns the slice on a host. */
static uint32_t owner_on(const lki_forest *f, const lk_slice *slice, uint32_t host)
{
    const lki_host_map *map = f->map;
    LK_ASSERT(map->local_sizes[host] > 0);
    return map->ranks[map->first_of[host] + slice->owner % map->local_sizes[host]];
}

static bool is_mine(const lki_forest *f, const lk_slice *slice)
{
    return slice->count > 0 && owner_on(f, slice, here(f)) == f->comm->rank;
}

static bool wants(const lki_forest *f, const lk_slice *slice, uint32_t host)
{
    if (f->tree.wanted != NULL)
        return f->tree.shards < 2 || f->tree.wanted[host * f->tree.shards + slice->shard];
    return f->tree.shards < 2 || host % f->tree.shards == slice->shard;
}

/* Marks as peers the ranks that own the slices of `owner` on any host, if this rank is one. */
static void find_peers_of(lki_forest *f, uint32_t owner)
{
    const lk_slice slice = { .owner = owner };

    for (uint32_t host = 0; owner_on(f, &slice, here(f)) == f->comm->rank
                            && host < f->map->hosts; host++)
        f->peers[owner_on(f, &slice, host)] = true;
}

static void find_places(lki_forest *f)
{
    size_t packed = 0;

    for (size_t i = 0; i < f->tree.slice_count; i++) {
        const lk_slice *slice = &f->tree.slices[i];
        if (!is_mine(f, slice) || !wants(f, slice, here(f)))
            continue;
        f->places[i] = f->tree.packed ? packed : slice->first;
        packed += slice->count;
    }
}

/* Finds the ranks with which this rank exchanges sets of leaves, even if it owns no slices. */
static void find_peers(lki_forest *f)
{
    for (uint32_t host = 0; host < f->map->hosts; host++)
        for (uint32_t owner = 0; owner < f->map->local_sizes[host]; owner++)
            find_peers_of(f, owner);
    for (size_t i = 0; i < f->tree.slice_count; i++)
        find_peers_of(f, f->tree.slices[i].owner);
    f->peers[f->comm->rank] = false;
}

/* ---- Sets of leaves ---------------------------------------------------------------------- */

static uint64_t *set_of(const lki_forest *f, uint32_t host)
{
    return f->sets + host * f->words;
}

static bool has(const lki_forest *f, uint32_t host, uint32_t leaf)
{
    return (set_of(f, host)[leaf / 64] >> leaf % 64 & 1) != 0;
}

static lk_status take(lki_forest *f, const lki_tree_input *inputs, uint32_t count)
{
    uint64_t *mine = set_of(f, here(f));

    if (LKI_NEW(&f->inputs, (size_t)count + 1, "nodes of a host") != LK_OK)
        return lki_fail_group(f->comm, f->comm->self->rank, LK_EPEER, "rank %u: no memory for the "
                              "nodes of its host", f->comm->self->rank);
    for (uint32_t i = 0; i < count; i++) {
        f->inputs[i] = inputs[i];
        for (uint32_t leaf = inputs[i].first; leaf < inputs[i].first + inputs[i].count; leaf++) {
            if (has(f, here(f), leaf))
                return lki_fail_group(f->comm, f->comm->self->rank, LK_EMISMATCH,
                                      "tree_reduce: virtual worker %u is held twice on the host of "
                                      "rank %u: each must be held by one rank",
                                      leaf, f->comm->self->rank);
            mine[leaf / 64] |= UINT64_C(1) << leaf % 64;
        }
    }
    f->input_count = count;
    return LK_OK;
}

static void build_sets(const lki_problem *p, lki_schedule *s)
{
    const lki_forest *f     = p->forest;
    size_t            bytes = f->words * sizeof(uint64_t);

    for (uint32_t rank = 0; rank < p->size; rank++) {
        if (!f->peers[rank])
            continue;
        lki_schedule_send(s, rank, lki_spot_at(LKI_SEND_BUFFER, here(f) * bytes), bytes);
        lki_schedule_receive(s, rank, lki_spot_at(LKI_RECV_BUFFER, f->map->host_of[rank] * bytes),
                             bytes);
    }
}

/* Checks that every leaf is on one host.  All ranks see the same sets, so all ranks agree. */
static lk_status check_cover(const lki_forest *f, uint64_t seq)
{
    uint32_t end = f->tree.leaves, total = 0;

    for (uint32_t leaf = f->tree.leaves; leaf-- > 0;) {
        uint32_t holders = 0;
        for (uint32_t host = 0; host < f->map->hosts; host++)
            holders += has(f, host, leaf);
        end = holders == 1 ? end : leaf;
        total += holders;
    }
    if (end == f->tree.leaves)
        return LK_OK;
    return lki_fail_group(f->comm, f->comm->self->rank, LK_EMISMATCH,
                          "tree_reduce #%llu: the nodes of all ranks cover virtual workers up to "
                          "%u once and %u in all, but there are %u: each must be held by one rank",
                          (unsigned long long)seq, end, total, f->tree.leaves);
}

/* ---- Life -------------------------------------------------------------------------------- */

lk_status lki_forest_new(lki_forest **out, lk_request *r)
{
    lki_forest *f;
    uint32_t    leaves = r->tree.leaves, hosts = r->comm->span->map.hosts;

    *out = NULL;
    if (leaves > LKI_FOREST_LEAVES_MAX)
        return lk_fail(LK_EUNSUPPORTED, "tree_reduce of %u virtual workers over %u hosts: at most "
                       "%d are possible", leaves, hosts, LKI_FOREST_LEAVES_MAX);
    LK_TRY(LKI_NEW(&f, 1, "tree over hosts"));
    *f = (lki_forest){ .comm = r->comm, .map = &r->comm->span->map, .tree = r->tree,
                       .words = (leaves + 63) / 64 };
    lk_status st = LKI_NEW(&f->sets, f->words * hosts, "leaves of hosts");
    if (st == LK_OK)
        st = LKI_NEW(&f->peers, r->comm->size, "owners on other hosts");
    if (st == LK_OK)
        st = LKI_NEW(&f->have, hosts, "branches of hosts");
    if (st == LK_OK)
        st = LKI_NEW(&f->pieces, f->tree.slice_count + 1, "pieces of slices");
    if (st == LK_OK)
        st = LKI_NEW(&f->places, f->tree.slice_count + 1, "places of slices");
    if (st == LK_OK) {
        find_peers(f);
        find_places(f);
        st = lki_tree_gather_start(&f->gathering, r, f, take);
    }
    if (st != LK_OK) {
        lki_forest_free(f);
        return st;
    }
    *out = f;
    return LK_OK;
}

void lki_forest_free(lki_forest *f)
{
    if (f == NULL)
        return;
    lk_request_free(f->gathering);
    lki_task_free(f->task);
    lki_free(f->inputs);
    lki_free(f->sets);
    lki_free(f->peers);
    lki_free(f->branches);
    lki_free(f->have);
    lki_free(f->pieces);
    lki_free(f->places);
    lki_free(f);
}

const lk_request *lki_forest_gathering(const lki_forest *f)
{
    return f->stage == GATHERING ? f->gathering : NULL;
}

const lki_task *lki_forest_task(const lki_forest *f)
{
    return f->task;
}

/* ---- Branches ---------------------------------------------------------------------------- */

static lk_status add_branch(lki_forest *f, uint32_t host, uint32_t first, uint32_t count)
{
    LK_TRY(lki_reserve((void **)&f->branches, &f->branch_capacity, f->branch_count,
                       sizeof *f->branches, "branches of hosts"));
    f->branches[f->branch_count++] = (branch){ first, count, host, 0 };
    return LK_OK;
}

/* Adds a node as a branch if one host has all its leaves, else searches its children. */
static lk_status find_branches(lki_forest *f, uint32_t first, uint32_t count)
{
    uint32_t host = 0, leaf = first;

    while (!has(f, host, first))
        host++;
    while (leaf < first + count && has(f, host, leaf))
        leaf++;
    if (leaf == first + count)
        return add_branch(f, host, first, count);
    uint32_t half = lki_tree_left(count);
    LK_TRY(find_branches(f, first, half));
    return find_branches(f, first + half, count - half);
}

static lk_status branch_out(lki_forest *f)
{
    LK_TRY(find_branches(f, 0, f->tree.leaves));
    for (size_t i = 0; i < f->branch_count; i++)
        f->branches[i].lane = (uint32_t)f->have[f->branches[i].host]++;
    return LK_OK;
}

/* ---- Pieces ------------------------------------------------------------------------------ */

/* A range of elements: [first, first + count). */
typedef struct {
    size_t first, count;
} elements;

/* Returns the number of hosts below `end` that want the slice. */
static uint32_t count_wanting(const lki_forest *f, const lk_slice *slice, uint32_t end)
{
    const uint32_t shards = f->tree.shards;
    uint32_t       count  = 0;

    if (shards < 2)
        return end;
    if (f->tree.wanted == NULL)
        return (end + shards - 1 - slice->shard) / shards;
    for (uint32_t host = 0; host < end; host++)
        count += wants(f, slice, host);
    return count;
}

/* Returns the number of bytes in which `count` elements are sent. */
static size_t bytes_of(const lki_forest *f, size_t count)
{
    return lki_rounded_bytes(f->tree.rounded, count);
}

/* Returns the number of parts in a host's scratch for a piece that `all` hosts want: branches from
 * other hosts; its own branches, if it has several ranks or nodes are rounded; and rounded sums.
 * All ranks compute the same value for every host. */
static size_t parts_in_scratch(const lki_forest *f, uint32_t host, bool wanted, size_t all)
{
    const bool   rounds = lki_rounds(f->tree.rounded);
    const size_t own = f->have[host], theirs = wanted ? f->branch_count - own : 0;
    const size_t made = rounds || f->map->local_sizes[host] > 1 ? own * (all - wanted) : 0;
    return theirs + made + (rounds && wanted && all > 1 ? all : 0);
}

/* Returns the number of elements of a part such that all parts fit into one segment of scratch, but
 * at least PART_ELEMENTS. */
static size_t part_elements(const lki_forest *f)
{
    const uint32_t hosts = f->map->hosts;
    size_t         most  = 1;

    for (lk_slice slice = { 0 }; slice.shard < lki_max(f->tree.shards, 1); slice.shard++) {
        const size_t all = count_wanting(f, &slice, hosts);
        for (uint32_t host = 0; host < hosts; host++)
            most = lki_max(most, parts_in_scratch(f, host, wants(f, &slice, host), all));
    }
    size_t room = LKI_TASK_SEGMENT_BYTES / most / LKI_LINE * LKI_LINE;
    return lki_max(room / bytes_of(f, LKI_QUANTISED) * LKI_QUANTISED, PART_ELEMENTS);
}

static size_t piece_elements(const lki_forest *f, const lk_slice *slice)
{
    size_t parts = count_wanting(f, slice, f->map->hosts);
    return parts == 0 ? PIECE_ELEMENTS : lki_min(parts * f->part, PIECE_ELEMENTS);
}

static void count_pieces(lki_forest *f)
{
    uint64_t pieces = 0;

    f->part = part_elements(f);
    for (size_t i = 0; i < f->tree.slice_count; i++) {
        size_t each  = piece_elements(f, &f->tree.slices[i]);
        f->pieces[i] = pieces;
        pieces += (f->tree.slices[i].count + each - 1) / each;
    }
    f->pieces[f->tree.slice_count] = pieces;
}

/* Returns the part of a piece that a host sums; empty if the host does not want the slice. */
static elements part_of(const lki_forest *f, const lk_slice *slice, elements piece, uint32_t host)
{
    if (!wants(f, slice, host))
        return (elements){ piece.first, 0 };
    size_t k = count_wanting(f, slice, host), parts = count_wanting(f, slice, f->map->hosts);
    size_t unit  = lki_quantises(f->tree.rounded) ? LKI_QUANTISED : 1;
    size_t units = (piece.count + unit - 1) / unit, each = units / parts, more = units % parts;
    size_t begin = (k * each + lki_min(k, more)) * unit;
    size_t end   = begin + (each + (k < more)) * unit;
    begin        = lki_min(begin, piece.count);
    return (elements){ piece.first + begin, lki_min(end, piece.count) - begin };
}

/* Returns the spot of elements in memory, for a buffer with base 0. */
static lki_spot in_memory(const float *data, size_t first)
{
    return lki_spot_at(LKI_SEND_BUFFER, (size_t)(uintptr_t)(data + first));
}

static void add_inputs(const lki_forest *f, lki_schedule *s, const branch *b, size_t first)
{
    for (uint32_t i = 0; i < f->input_count; i++) {
        const lki_tree_input *in = &f->inputs[i];
        if (in->first >= b->first && in->first < b->first + b->count)
            lki_schedule_combine_term(
                s, (lki_term){ in->first, in->count, false, in_memory(in->data, first) });
    }
}

/* Returns the spot of this host's branch over a part: in a rank's memory, or in scratch. */
static lki_spot have_branch(const lki_forest *f, lki_schedule *s, const branch *b, elements part)
{
    const bool rounds = lki_rounds(f->tree.rounded);

    for (uint32_t i = 0; i < f->input_count && !rounds; i++)
        if (f->inputs[i].first == b->first && f->inputs[i].count == b->count)
            return in_memory(f->inputs[i].data, part.first);
    lki_spot room = lki_schedule_room(s, bytes_of(f, part.count));
    lki_schedule_combine_begin(s, room, rounds, b->first, b->count, part.count);
    add_inputs(f, s, b, part.first);
    return room;
}

static void send_branches(const lki_forest *f, lki_schedule *s, const lk_slice *slice,
                          elements piece)
{
    for (uint32_t host = 0; host < f->map->hosts; host++) {
        elements part = part_of(f, slice, piece, host);
        for (size_t i = 0; i < f->branch_count && host != here(f) && part.count > 0; i++) {
            const branch *b = &f->branches[i];
            if (b->host != here(f))
                continue;
            lki_spot at = have_branch(f, s, b, part);
            s->lane     = b->lane;
            lki_schedule_send(s, owner_on(f, slice, host), at, bytes_of(f, part.count));
        }
    }
}

/* Receives the branches of the other hosts, consecutively from `room` on. */
static void receive_branches(const lki_forest *f, lki_schedule *s, const lk_slice *slice,
                             lki_spot room, size_t each, size_t bytes)
{
    for (size_t i = 0; i < f->branch_count; i++) {
        const branch *b = &f->branches[i];
        if (b->host == here(f))
            continue;
        s->lane = b->lane;
        lki_schedule_receive(s, owner_on(f, slice, b->host), room, bytes);
        room = lki_spot_plus(room, each);
    }
}

/* Returns the spot that stores the sum of element `at` of a slice of this rank. */
static lki_spot in_sums(const lki_forest *f, const lk_slice *slice, size_t at)
{
    return in_memory(f->tree.out, f->places[slice - f->tree.slices] + (at - slice->first));
}

static void sum_part(const lki_forest *f, lki_schedule *s, const lk_slice *slice, lki_spot room,
                     size_t each, elements part)
{
    if (part.count == 0)
        return;
    lki_schedule_combine_begin(s, in_sums(f, slice, part.first), !lki_rounds(f->tree.rounded), 0,
                               f->tree.leaves, part.count);
    for (size_t i = 0; i < f->branch_count; i++) {
        const branch *b = &f->branches[i];
        if (b->host == here(f)) {
            add_inputs(f, s, b, part.first);
            continue;
        }
        lki_schedule_combine_term(
            s, (lki_term){ b->first, b->count, lki_rounds(f->tree.rounded), room });
        room = lki_spot_plus(room, each);
    }
}

/* Packs a sum in memory for sending or, if `packs` is false, unpacks a received sum into memory. */
static void repack(const lki_forest *f, lki_schedule *s, bool packs, lki_spot from, lki_spot to,
                   size_t count)
{
    if (count == 0)
        return;
    lki_schedule_combine_begin(s, to, packs, 0, f->tree.leaves, count);
    lki_schedule_combine_term(s, (lki_term){ 0, f->tree.leaves, !packs, from });
}

/* Returns the spot from which the sum of a part is sent, or at which it is received. */
static lki_spot sum_on_the_way(const lki_forest *f, lki_schedule *s, const lk_slice *slice,
                               elements part)
{
    return lki_rounds(f->tree.rounded) ? lki_schedule_room(s, bytes_of(f, part.count))
                                       : in_sums(f, slice, part.first);
}

/* Unpacks the received sums.  The other hosts' parts are consecutive from `room` on. */
static void unpack_sums(const lki_forest *f, lki_schedule *s, const lk_slice *slice,
                        elements piece, lki_spot room)
{
    lki_schedule_round(s, 3);
    for (uint32_t host = 0; host < f->map->hosts; host++) {
        elements theirs = part_of(f, slice, piece, host);
        if (host == here(f) || !wants(f, slice, host))
            continue;
        repack(f, s, false, room, in_sums(f, slice, theirs.first), theirs.count);
        room = lki_spot_plus(room, lki_round_up(bytes_of(f, theirs.count), LKI_LINE));
    }
}

static void exchange_sums(const lki_forest *f, lki_schedule *s, const lk_slice *slice,
                          elements piece)
{
    const uint32_t hosts = f->map->hosts;
    elements       mine  = part_of(f, slice, piece, here(f));
    lki_spot       from  = sum_on_the_way(f, s, slice, mine), first = { LKI_SCRATCH, s->scratch };

    s->lane = 0;
    if (lki_rounds(f->tree.rounded))
        repack(f, s, true, in_sums(f, slice, mine.first), from, mine.count);
    for (uint32_t host = 0; host < hosts; host++) {
        elements theirs = part_of(f, slice, piece, host);
        if (host == here(f) || !wants(f, slice, host))
            continue;
        lki_spot to = sum_on_the_way(f, s, slice, theirs);
        lki_schedule_send(s, owner_on(f, slice, host), from, bytes_of(f, mine.count));
        lki_schedule_receive(s, owner_on(f, slice, host), to, bytes_of(f, theirs.count));
    }
    if (lki_rounds(f->tree.rounded))
        unpack_sums(f, s, slice, piece, first);
}

/* Builds segment p->at, a piece of a slice.  Adds no actions unless this rank owns the slice. */
static void build_piece(const lki_problem *p, lki_schedule *s)
{
    const lki_forest *f   = p->forest;
    size_t            low = 0, high = f->tree.slice_count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (f->pieces[middle] <= p->at)
            low = middle;
        else
            high = middle;
    }
    const lk_slice *slice = &f->tree.slices[low];
    size_t          most  = piece_elements(f, slice);
    size_t          at    = (p->at - (size_t)f->pieces[low]) * most;
    elements        piece = { slice->first + at, lki_min(slice->count - at, most) };
    if (!is_mine(f, slice))
        return;
    elements part = part_of(f, slice, piece, here(f));
    size_t   each = lki_round_up(bytes_of(f, part.count), LKI_LINE);
    lki_spot room = lki_schedule_room(s, each * (f->branch_count - f->have[here(f)]));
    s->stride     = 4;
    lki_schedule_round(s, 1);
    send_branches(f, s, slice, piece);
    if (!wants(f, slice, here(f)))
        return;
    receive_branches(f, s, slice, room, each, bytes_of(f, part.count));
    lki_schedule_round(s, 2);
    sum_part(f, s, slice, room, each, part);
    exchange_sums(f, s, slice, piece);
}

/* ---- From stage to stage ----------------------------------------------------------------- */

static const lki_method method_sets   = { .name = "sets", .exact = true, .uncut = true,
                                          .build = build_sets };
static const lki_method method_pieces = { .name = "pieces", .exact = true, .build = build_piece };

static lk_status start(lki_forest *f, const lki_wire_op *op, const lki_method *method, void *send,
                       void *recv, uint64_t segments)
{
    const bool          rounds = lki_rounds(f->tree.rounded);
    const lki_task_plan plan   = {
        .method   = method,
        .problem  = { .kind   = LKI_OP_TREE_REDUCE, .rank = f->comm->rank, .size = f->comm->size,
                      .dtype  = rounds ? f->tree.rounded : LK_F32, .op = LK_SUM,
                      .width  = sizeof(float), .rounded = rounds, .forest = f },
        .op       = *op,
        .world    = f->comm->world,
        .rooms    = f->comm->self->rooms,
        .send     = send,
        .recv     = recv,
        .numbered = true,
        .segments = segments,
    };
    lki_task_free(f->task);
    f->task = NULL;
    return lki_task_new(&f->task, f->comm->self->wire, &plan);
}

lk_status lki_forest_move(lki_forest *f, const lki_wire_op *op, bool *moved, bool *done)
{
    bool over = false;

    *done = false;
    if (f->stage == GATHERING) {
        if (!f->gathering->complete)
            return LK_OK;
        *moved   = true;
        f->stage = SETS;
        LK_TRY(start(f, op, &method_sets, f->sets, f->sets, 1));
    }
    LK_TRY(lki_task_move(f->task, moved, f->stage == SETS ? &over : done));
    if (!over)
        return LK_OK;
    f->stage = PIECES;
    *moved   = true;
    LK_TRY(check_cover(f, op->seq));
    LK_TRY(branch_out(f));
    count_pieces(f);
    LK_TRY(start(f, op, &method_pieces, NULL, NULL, f->pieces[f->tree.slice_count]));
    return lki_task_move(f->task, moved, done);
}
