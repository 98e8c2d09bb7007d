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
 *      linear      instead of parts: owners send their branches to the owners on all hosts that
 *                  want the slice.  Each of these evaluates the whole tree; no sums are sent.
 *
 * Cost:    for a slice of n bytes that all H hosts want, each host's owner sends (H-1)/H n per
 *          branch and (H-1)/H n of sums.  For a slice that only one host wants, the owners on other
 *          hosts send n per branch and nothing else.  A host with a contiguous range of leaves has
 *          few branches, and only one if all hosts have 2^k leaves for the same k.  3 rounds.
 *          Linear: (H-1) n per branch, and 2 rounds.  Each owner reads all branches of n bytes
 *          instead of n/H.
 *          Rounded nodes are sent in 2 bytes per element, or 260 or 132 per block of 256
 *          (device/quantise.h), which is never cut.  Packing and unpacking each read and write the
 *          nodes once more.
 * Order:   the canonical tree: exact, for every assignment of leaves to hosts.
 * Memory:  that of tasks (task.h): a rank has at most one segment of scratch per piece.
 */

#include "base/memory.h"
#include "comm/span/forest_state.h"
#include "device/quantise.h"

/* Marks as peers the ranks that own the slices of `owner` on any host, if this rank is one. */
static void find_peers_of(lki_forest *f, uint32_t owner)
{
    const lk_slice slice = { .owner = owner };

    for (uint32_t host = 0; lki_forest_owner(f, &slice, lki_forest_here(f)) == f->comm->rank
                            && host < f->map->hosts; host++)
        f->peers[lki_forest_owner(f, &slice, host)] = true;
}

static void find_places(lki_forest *f)
{
    size_t packed = 0;

    for (size_t i = 0; i < f->tree.slice_count; i++) {
        const lk_slice *slice = &f->tree.slices[i];
        if (!lki_forest_is_mine(f, slice) || !lki_forest_wants(f, slice, lki_forest_here(f)))
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
    uint64_t *mine = set_of(f, lki_forest_here(f));

    if (LKI_NEW(&f->inputs, (size_t)count + 1, "nodes of a host") != LK_OK)
        return lki_fail_group(f->comm, f->comm->self->rank, LK_EPEER, "rank %u: no memory for the "
                              "nodes of its host", f->comm->self->rank);
    for (uint32_t i = 0; i < count; i++) {
        f->inputs[i] = inputs[i];
        for (uint32_t leaf = inputs[i].first; leaf < inputs[i].first + inputs[i].count; leaf++) {
            if (has(f, lki_forest_here(f), leaf))
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
        lki_schedule_send(s, rank, lki_spot_at(LKI_SEND_BUFFER, lki_forest_here(f) * bytes), bytes);
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

const lki_task *lki_forest_task(const lki_forest *f)
{
    return f->task;
}

/* ---- Branches ---------------------------------------------------------------------------- */

static lk_status add_branch(lki_forest *f, uint32_t host, uint32_t first, uint32_t count)
{
    LK_TRY(lki_reserve((void **)&f->branches, &f->branch_capacity, f->branch_count,
                       sizeof *f->branches, "branches of hosts"));
    f->branches[f->branch_count++] = (lki_branch){ first, count, host, 0 };
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

/* Chooses between direct and linear.  The choice depends on what all ranks know alike. */
static bool is_linear(const lki_forest *f)
{
    const lki_problem problem = { .kind     = LKI_OP_TREE_REDUCE,
                                  .rank     = f->comm->rank,
                                  .size     = f->comm->size,
                                  .each     = lki_span_each(f->comm),
                                  .width    = sizeof(float),
                                  .bytes    = lki_rounded_bytes(f->tree.rounded, f->tree.elements),
                                  .hosts    = f->map->hosts,
                                  .branches = (uint32_t)f->branch_count };

    if (f->tree.algorithm != LK_TREE_AUTO)
        return f->tree.algorithm == LK_TREE_LINEAR;
    return f->tree.shards < 2
           && lki_tuning_choose(&f->comm->self->tuning, &problem) == &lki_method_linear;
}

/* ---- From stage to stage ----------------------------------------------------------------- */

static const lki_method method_sets = { .name = "sets", .exact = true, .uncut = true,
                                        .build = build_sets };

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
    if (f->stage == LKI_FOREST_GATHERING) {
        if (!f->gathering->complete)
            return LK_OK;
        *moved   = true;
        f->stage = LKI_FOREST_SETS;
        LK_TRY(start(f, op, &method_sets, f->sets, f->sets, 1));
    }
    LK_TRY(lki_task_move(f->task, moved, f->stage == LKI_FOREST_SETS ? &over : done));
    if (!over)
        return LK_OK;
    f->stage = LKI_FOREST_PIECES;
    *moved   = true;
    LK_TRY(check_cover(f, op->seq));
    LK_TRY(branch_out(f));
    f->linear = is_linear(f);
    lki_forest_count_pieces(f);
    LK_TRY(start(f, op, &lki_method_pieces, NULL, NULL, f->pieces[f->tree.slice_count]));
    return lki_task_move(f->task, moved, done);
}
