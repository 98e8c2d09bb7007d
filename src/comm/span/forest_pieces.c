/* forest_pieces.c -- the messages and sums of a forest, one piece of a slice after another.
 *
 * A piece is cut into one part for each host that sums (direct), or is one part that every host
 * sums (linear).  forest.c has the costs.
 */
#include "base/memory.h"
#include "comm/span/forest_state.h"
#include "device/quantise.h"

/* The maximum number of elements in a piece; the minimum in a host's part. */
enum { PIECE_ELEMENTS = LKI_TASK_SEGMENT_BYTES / sizeof(float), PART_ELEMENTS = 4096 };

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
        count += lki_forest_wants(f, slice, host);
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
    const size_t times = f->linear ? all > wanted : all - wanted; /* a branch is made once */
    const size_t made  = rounds || f->map->local_sizes[host] > 1 ? own * times : 0;
    return theirs + made + (rounds && wanted && all > 1 && !f->linear ? all : 0);
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
            most = lki_max(most, parts_in_scratch(f, host, lki_forest_wants(f, &slice, host), all));
    }
    size_t room = LKI_TASK_SEGMENT_BYTES / most / LKI_LINE * LKI_LINE;
    return lki_max(room / bytes_of(f, LKI_QUANTISED) * LKI_QUANTISED, PART_ELEMENTS);
}

static size_t piece_elements(const lki_forest *f, const lk_slice *slice)
{
    size_t parts = count_wanting(f, slice, f->map->hosts);
    if (f->linear)
        return lki_min(f->part, PIECE_ELEMENTS);
    return parts == 0 ? PIECE_ELEMENTS : lki_min(parts * f->part, PIECE_ELEMENTS);
}

void lki_forest_count_pieces(lki_forest *f)
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
    if (!lki_forest_wants(f, slice, host))
        return (elements){ piece.first, 0 };
    if (f->linear)
        return piece;
    size_t k = count_wanting(f, slice, host), parts = count_wanting(f, slice, f->map->hosts);
    LK_ASSERT(parts > 0); /* this host wants the slice */
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

static void add_inputs(const lki_forest *f, lki_schedule *s, const lki_branch *b, size_t first)
{
    for (uint32_t i = 0; i < f->input_count; i++) {
        const lki_tree_input *in = &f->inputs[i];
        if (in->first >= b->first && in->first < b->first + b->count)
            lki_schedule_combine_term(
                s, (lki_term){ in->first, in->count, false, in_memory(in->data, first) });
    }
}

/* Returns the spot of this host's branch over a part: in a rank's memory, or in scratch. */
static lki_spot have_branch(const lki_forest *f, lki_schedule *s, const lki_branch *b,
                            elements part)
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

static void send_branch(const lki_forest *f, lki_schedule *s, const lk_slice *slice,
                        elements piece, const lki_branch *b)
{
    lki_spot at   = { LKI_SCRATCH, 0 };
    bool     made = false;

    s->lane = b->lane;
    for (uint32_t host = 0; host < f->map->hosts; host++) {
        elements part = part_of(f, slice, piece, host);
        if (host == lki_forest_here(f) || part.count == 0)
            continue;
        if (!made)
            at = have_branch(f, s, b, part);
        made = f->linear; /* all hosts get the same part */
        lki_schedule_send(s, lki_forest_owner(f, slice, host), at, bytes_of(f, part.count));
    }
}

static void send_branches(const lki_forest *f, lki_schedule *s, const lk_slice *slice,
                          elements piece)
{
    for (size_t i = 0; i < f->branch_count; i++)
        if (f->branches[i].host == lki_forest_here(f))
            send_branch(f, s, slice, piece, &f->branches[i]);
}

/* Receives the branches of the other hosts, consecutively from `room` on. */
static void receive_branches(const lki_forest *f, lki_schedule *s, const lk_slice *slice,
                             lki_spot room, size_t each, size_t bytes)
{
    for (size_t i = 0; i < f->branch_count; i++) {
        const lki_branch *b = &f->branches[i];
        if (b->host == lki_forest_here(f))
            continue;
        s->lane = b->lane;
        lki_schedule_receive(s, lki_forest_owner(f, slice, b->host), room, bytes);
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
        const lki_branch *b = &f->branches[i];
        if (b->host == lki_forest_here(f)) {
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
        if (host == lki_forest_here(f) || !lki_forest_wants(f, slice, host))
            continue;
        repack(f, s, false, room, in_sums(f, slice, theirs.first), theirs.count);
        room = lki_spot_plus(room, lki_round_up(bytes_of(f, theirs.count), LKI_LINE));
    }
}

static void exchange_sums(const lki_forest *f, lki_schedule *s, const lk_slice *slice,
                          elements piece)
{
    const uint32_t hosts = f->map->hosts;
    elements       mine  = part_of(f, slice, piece, lki_forest_here(f));
    lki_spot       from  = sum_on_the_way(f, s, slice, mine), first = { LKI_SCRATCH, s->scratch };

    s->lane = 0;
    if (lki_rounds(f->tree.rounded))
        repack(f, s, true, in_sums(f, slice, mine.first), from, mine.count);
    for (uint32_t host = 0; host < hosts; host++) {
        elements theirs = part_of(f, slice, piece, host);
        if (host == lki_forest_here(f) || !lki_forest_wants(f, slice, host))
            continue;
        lki_spot to = sum_on_the_way(f, s, slice, theirs);
        lki_schedule_send(s, lki_forest_owner(f, slice, host), from, bytes_of(f, mine.count));
        lki_schedule_receive(s, lki_forest_owner(f, slice, host), to, bytes_of(f, theirs.count));
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
    if (!lki_forest_is_mine(f, slice))
        return;
    elements part = part_of(f, slice, piece, lki_forest_here(f));
    size_t   each = lki_round_up(bytes_of(f, part.count), LKI_LINE);
    lki_spot room = lki_schedule_room(s, each * (f->branch_count - f->have[lki_forest_here(f)]));
    s->stride     = 4;
    lki_schedule_round(s, 1);
    send_branches(f, s, slice, piece);
    if (!lki_forest_wants(f, slice, lki_forest_here(f)))
        return;
    receive_branches(f, s, slice, room, each, bytes_of(f, part.count));
    lki_schedule_round(s, 2);
    sum_part(f, s, slice, room, each, part);
    if (!f->linear)
        exchange_sums(f, s, slice, piece);
}

const lki_method lki_method_pieces = { .name = "pieces", .exact = true, .build = build_piece };
