/* zero2.c -- ZeRO-2: summed gradients are stored only by the ranks that update with them.
 *
 * Virtual workers are assigned in rounds (rounds.h).  During the backward pass a rank has memory
 * for two buckets: the bucket that is being computed, and the one before it, which is being sent.
 * As soon as a bucket is complete, each subtree of the round is reduced to the owners, which store
 * partial sums of their slices.  Ranks of a host read each other's gradients directly.  They notify
 * each other when they have finished, and the memory is used for the next bucket but one:
 *
 *      buckets     0 at the bottom, 1 at the top, 2 at the bottom ...   (even, odd)
 *      a bucket    claimed - computed - reduced - released
 *
 * A virtual worker that accumulates over several micro-batches needs its whole gradient until the
 * last one.  Then every bucket has separate memory.
 *
 * Memory: for each rank the largest two neighbouring buckets (or one whole gradient), and as many
 *         partial sums of its slices as the rounds need (lki_round_plan).
 * Order:  the canonical tree, first within each subtree and then over the subtrees.
 * Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models,
 *         5.2.
 */
#include <string.h>

#include "base/memory.h"
#include "parallel/strategies/shards.h"

enum { JOBS = 4 }; /* buckets that are reduced at the same time */

/* A unit: a bucket.  The last unit is running state. */
typedef struct {
    lk_tree_op op;    /* the fields that are equal for all of its reductions */
    size_t     place; /* offset in `room` */
    size_t     first; /* offset in a partial sum of this rank's slices */
    size_t     owned;
    uint32_t   terms, pending;
} unit;

/* The reduction of one subtree. */
typedef struct {
    lk_tree_op   op;
    lk_tree_node node;
    lk_request  *request;
} travel;

/* The reductions of one unit in one round. */
typedef struct {
    travel     *travels; /* [widest] */
    uint32_t    arrived;
    lk_request *leaving; /* open until the ranks of this host have finished reading */
} job;

typedef struct {
    lk_comm  *host; /* the ranks of this host; NULL: every host has one rank */
    /* room: memory for this rank's gradients; states: this rank's running state in even and odd
     * rounds */
    float    *room, *states[2];
    /* this rank's partial sums, as many as the rounds need, one after another */
    float    *partials, *state_partials;
    /* places: [pieces]: offset of each of this rank's pieces in a partial sum */
    size_t    owned, state_elements, *places;
    unit     *units;
    uint32_t  unit_count;
    lk_slice *state_slices;
    travel   *travels;
    job       jobs[JOBS]; /* job k is for unit k mod unit_count and is stored in jobs[k mod JOBS] */
    uint64_t  started, released; /* number of jobs started and released in this step */
    /* round: number of the current virtual worker's round; claimed: number of units for which the
     * current virtual worker has memory */
    uint32_t  round, claimed;
} zero2;

static zero2 *zero2_of(const lk_parallel *parallel)
{
    LK_ASSERT(parallel->ops->rounds);
    return parallel->private;
}

static bool accumulates(const lk_parallel *parallel)
{
    return parallel->micro_count > 1;
}

/* ---- Memory ------------------------------------------------------------------------------ */

static size_t room_elements(const lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
    size_t            most   = 0;

    if (accumulates(parallel))
        return layout->grad_elements;
    for (uint32_t b = 0; b < layout->bucket_count; b++) {
        size_t next = b + 1 < layout->bucket_count ? layout->buckets[b + 1].count : 0;
        most        = lki_max(most, layout->buckets[b].count + next);
    }
    return most;
}

/* Counts the elements of sums that ranks with local numbers below `locals` own on a host. */
static size_t owned_elements(const lk_parallel *parallel, uint32_t host, uint32_t locals)
{
    const lki_layout *layout = parallel->layout;
    size_t            total  = 0;

    for (uint32_t o = 0; o < layout->owner_count; o++) {
        lki_owner owner = layout->owners[o];
        if (lki_shard_map_has(parallel, host, owner.shard) &&
            owner.local % parallel->world.sizes[host] < locals)
            total += layout->owned[o];
    }
    return total;
}

/* Counts the elements that a rank needs even if it owns nothing, if rounds need `buffers` partial
 * sums. */
static size_t fixed_elements(const lk_parallel *parallel, uint32_t buffers)
{
    return room_elements(parallel) +
           (2 + (size_t)buffers) * parallel->micro_count * parallel->state_width;
}

/* Counts the elements of `locals` ranks that together own `owned` elements.  Returns false on
 * overflow. */
static bool count_with(const lk_parallel *parallel, uint32_t locals, size_t owned, uint32_t buffers,
                       size_t *total)
{
    size_t fixed, sums;
    return !__builtin_mul_overflow(fixed_elements(parallel, buffers), locals, &fixed) &&
           !__builtin_mul_overflow(owned, buffers, &sums) &&
           !__builtin_add_overflow(fixed, sums, total);
}

static bool count_elements(const lk_parallel *parallel, uint32_t host, uint32_t locals,
                           size_t *total)
{
    return count_with(parallel, locals, owned_elements(parallel, host, locals),
                      parallel->rounds.buffers, total);
}

/* Computes the maximum number of elements that the surviving ranks of a host may need.  If the loss
 * of a whole host ends the run, each other host has at least one rank. */
static bool count_of_fewer(const lk_parallel *parallel, uint32_t host, size_t *most)
{
    const lki_ledger *ledger = &parallel->ledger;
    const uint32_t    others = lki_shard_map_spare(parallel) ? 0 : parallel->world.hosts - 1;
    size_t            owned  = owned_elements(parallel, host, parallel->world.sizes[host]), total;
    bool              good   = true;
    for (uint32_t ranks = others + 1; good && ranks <= ledger->seats; ranks++) {
        uint32_t locals = (uint32_t)lki_min(ranks - others, ledger->here);
        good  = count_with(parallel, locals, owned, ledger->round_buffers[ranks], &total);
        *most = good ? lki_max(*most, total) : 0;
    }
    return good;
}

static size_t zero2_bytes(const lk_parallel *parallel, uint32_t host)
{
    size_t total, bytes;
    bool   good = count_elements(parallel, host, parallel->world.sizes[host], &total);
    if (good && parallel->ledger.kept)
        good = count_of_fewer(parallel, host, &total);
    return good && !__builtin_mul_overflow(total, sizeof(float), &bytes) ? bytes : 0;
}

static lki_passes zero2_passes(const lk_parallel *parallel, uint32_t host)
{
    const lki_round_plan *plan   = &parallel->rounds;
    lki_passes            passes = { .sums = plan->first[plan->rounds] };
    for (uint32_t i = 0; i < plan->first[plan->rounds]; i++)
        passes.branches += lki_count_branches(parallel, plan->subtrees[i].first,
                                              plan->subtrees[i].count, host);
    return passes;
}

/* ---- Attaching --------------------------------------------------------------------------- */

static lk_status open_arena(lk_parallel *parallel, zero2 *self)
{
    const uint32_t host = parallel->world.host_of[parallel->rank];
    size_t         most = 0, before = 0;

    for (uint32_t h = 0; h < parallel->world.hosts; h++) {
        size_t bytes = zero2_bytes(parallel, h);
        if (bytes == 0)
            return lk_fail(LK_ENOMEM, "gradients: buckets of %zu elements are too large",
                           room_elements(parallel));
        most = lki_max(most, bytes);
    }
    lk_arena *arena;
    LK_TRY(lki_ledger_arena(parallel, LKI_ARENA_GRADIENTS, most, &arena));
    parallel->ledger.gradients = lk_arena_data(arena);
    (void)count_elements(parallel, host, parallel->local, &before);
    self->state_elements = parallel->micro_count * parallel->state_width;
    self->room           = parallel->ledger.gradients + before;
    self->states[0]      = self->room + room_elements(parallel);
    self->states[1]      = self->states[0] + self->state_elements;
    self->state_partials = self->states[1] + self->state_elements;
    self->partials       = self->state_partials + parallel->rounds.buffers * self->state_elements;
    return LK_OK;
}

static void place_units(lk_parallel *parallel, zero2 *self)
{
    const lki_layout *layout = parallel->layout;
    size_t            room   = room_elements(parallel);

    for (uint32_t b = 0; b < layout->bucket_count; b++) {
        const lki_bucket *bucket = &layout->buckets[b];
        size_t            top    = room - bucket->count;
        self->units[b]           = (unit){ .op    = { .elements    = bucket->count,
                                                      .slices      = bucket->slices,
                                                      .slice_count = bucket->slice_count,
                                                      .shards      = layout->shards,
                                                      .wanted      = lki_shard_map_wanted(parallel),
                                                      .packed      = true,
                                                      .rounded     = parallel->rounded,
                                                      .algorithm   = parallel->world.algorithm },
                                           .place = accumulates(parallel) ? bucket->first
                                                    : b % 2 == 0          ? 0
                                                                          : top,
                                           .terms = bucket->terms };
    }
    self->unit_count = layout->bucket_count;
}

/* Computes the offsets of this rank's sums in a partial sum, in the order of the gradient space. */
static void place_sums(lk_parallel *parallel, zero2 *self)
{
    const lki_layout *layout = parallel->layout;
    size_t            piece  = 0;

    for (uint32_t t = 0; t < layout->term_count; t++) {
        uint32_t p  = layout->terms[t].param;
        unit    *of = &self->units[layout->first_bucket[t]];
        if (of->owned == 0)
            of->first = self->owned;
        for (size_t i = layout->first_span[p]; i < layout->first_span[p + 1]; i++, piece++) {
            if (!lki_owns(parallel, &layout->spans[i]))
                continue;
            self->places[piece] = self->owned;
            self->owned += lki_layout_width(layout, &layout->spans[i]);
        }
        of->owned = self->owned - of->first;
    }
}

static lk_status add_states(lk_parallel *parallel, zero2 *self)
{
    unit *states = &self->units[self->unit_count];
    if (self->state_elements == 0)
        return LK_OK;
    *states = (unit){ .op    = { .elements = self->state_elements },
                      .owned = self->state_elements,
                      .terms = 1 };
    LK_TRY(lki_state_slices(parallel, &self->state_slices, &states->op.slice_count));
    states->op.slices = self->state_slices;
    self->unit_count++;
    return LK_OK;
}

static lk_status zero2_attach(lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
    const uint32_t    widest = parallel->rounds.widest;
    zero2            *self   = NULL;

    LK_TRY(LKI_NEW(&self, 1, "zero2"));
    parallel->private = self;
    LK_TRY(open_arena(parallel, self));
    LK_TRY(LKI_NEW(&self->units, (size_t)layout->bucket_count + 1, "buckets"));
    LK_TRY(LKI_NEW(&self->places, lki_layout_pieces(layout), "places of sums"));
    LK_TRY(LKI_NEW(&self->travels, (size_t)widest * JOBS, "reductions"));
    for (uint32_t k = 0; k < JOBS; k++)
        self->jobs[k].travels = self->travels + (size_t)k * widest;
    place_units(parallel, self);
    place_sums(parallel, self);
    LK_TRY(add_states(parallel, self));
    return parallel->world.widest == 1
               ? LK_OK
               : lk_comm_split(&self->host, parallel->comm, parallel->world.host_of[parallel->rank],
                               parallel->rank);
}

static void zero2_detach(lk_parallel *parallel)
{
    zero2 *self = parallel->private;
    if (self == NULL)
        return;
    for (uint32_t k = 0; k < JOBS; k++) {
        for (uint32_t i = 0; self->travels != NULL && i < parallel->rounds.widest; i++)
            lk_request_free(self->jobs[k].travels[i].request);
        lk_request_free(self->jobs[k].leaving);
    }
    lk_comm_free(self->host);
    lki_free(self->units);
    lki_free(self->places);
    lki_free(self->travels);
    lki_free(self->state_slices);
    lki_free(self);
    parallel->private = NULL;
}

/* ---- Jobs -------------------------------------------------------------------------------- */

static bool is_states(const lk_parallel *parallel, const zero2 *self, const unit *u)
{
    return (uint32_t)(u - self->units) == parallel->layout->bucket_count;
}

/* Returns the address of a unit's partial sum in `buffer`. */
static float *partial_of(const lk_parallel *parallel, const zero2 *self, const unit *u,
                         uint32_t buffer)
{
    return is_states(parallel, self, u) ? self->state_partials + buffer * self->state_elements
                                        : self->partials + buffer * self->owned + u->first;
}

/* Returns the address of this rank's gradient of a unit in a round. */
static float *gradient_of(const lk_parallel *parallel, const zero2 *self, const unit *u,
                          uint32_t round)
{
    return is_states(parallel, self, u) ? self->states[round % 2] : self->room + u->place;
}

static lk_status finish_request(lk_request **request, bool wait, bool *done)
{
    LK_TRY(wait ? lk_request_wait(*request) : lk_request_test(*request, done));
    if (wait)
        *done = true;
    if (*done) {
        lk_request_free(*request);
        *request = NULL;
    }
    return LK_OK;
}

/* Does the merges that are possible once a subtree's sum is complete. */
static void merge_partials(lk_parallel *parallel, zero2 *self, const unit *u,
                           const lki_subtree *subtree)
{
    for (uint32_t i = subtree->merge; i < subtree->merge + subtree->merges; i++) {
        lki_merging m = parallel->rounds.merges[i];
        lki_merge(parallel, u->op.rounded, partial_of(parallel, self, u, m.right),
                  partial_of(parallel, self, u, m.left), u->owned);
    }
}

/* Advances a job's reductions.  *reduced is set when all are complete and the other ranks of the
 * host are notified. */
static lk_status arrive(lk_parallel *parallel, zero2 *self, uint64_t number, bool wait,
                        bool *reduced)
{
    const lki_round_plan *plan     = &parallel->rounds;
    const unit           *u        = &self->units[number % self->unit_count];
    uint64_t              round    = number / self->unit_count;
    const lki_subtree    *subtrees = plan->subtrees + plan->first[round];
    uint32_t              count    = plan->first[round + 1] - plan->first[round];
    job                  *j        = &self->jobs[number % JOBS];

    *reduced = true;
    while (j->arrived < count && *reduced) {
        LK_TRY(finish_request(&j->travels[j->arrived].request, wait, reduced));
        if (!*reduced)
            return LK_OK;
        merge_partials(parallel, self, u, &subtrees[j->arrived++]);
        if (j->arrived == count && self->host != NULL)
            LK_TRY(lk_barrier_start(&j->leaving, self->host));
    }
    return LK_OK;
}

/* Advances a job.  *reduced is set when its sums are complete, *done when its memory may be
 * reused. */
static lk_status advance(lk_parallel *parallel, zero2 *self, uint64_t number, bool wait,
                         bool *reduced, bool *done)
{
    job *j = &self->jobs[number % JOBS];

    *done = false;
    LK_TRY(arrive(parallel, self, number, wait, reduced));
    if (!*reduced)
        return LK_OK;
    *done = true;
    return j->leaving == NULL ? LK_OK : finish_request(&j->leaving, wait, done);
}

/* Waits until the first `wanted` jobs are released. */
static lk_status release(lk_parallel *parallel, zero2 *self, uint64_t wanted)
{
    bool reduced, done;
    while (self->released < wanted) {
        LK_TRY(advance(parallel, self, self->released, true, &reduced, &done));
        self->released++;
    }
    return LK_OK;
}

/* Starts the next job.  Waits first for an earlier job whose memory may still be read, or whose
 * partial sums may not be merged yet. */
static lk_status start_next(lk_parallel *parallel, zero2 *self)
{
    const lki_round_plan *plan   = &parallel->rounds;
    uint64_t              number = self->started, behind = lki_min(JOBS, self->unit_count);
    uint32_t              round = (uint32_t)(number / self->unit_count);
    uint32_t              leaf  = round * parallel->ranks + parallel->rank;
    const unit           *u     = &self->units[number % self->unit_count];
    job                  *j     = &self->jobs[number % JOBS];

    if (number >= behind)
        LK_TRY(release(parallel, self, number - behind + 1));
    j->arrived = 0;
    for (uint32_t i = plan->first[round]; i < plan->first[round + 1]; i++) {
        const lki_subtree *s = &plan->subtrees[i];
        travel            *t = &j->travels[i - plan->first[round]];
        t->op                = u->op;
        t->op.leaves         = s->count;
        t->op.nodes          = &t->node;
        t->op.node_count     = leaf >= s->first && leaf < s->first + s->count;
        t->op.out            = partial_of(parallel, self, u, s->buffer);
        t->node = (lk_tree_node){ leaf - s->first, 1, gradient_of(parallel, self, u, round) };
        LK_TRY(lk_tree_reduce_start(&t->request, parallel->comm, &t->op));
    }
    self->started++;
    return LK_OK;
}

/* ---- A step ------------------------------------------------------------------------------ */

static lk_status zero2_begin_leaf(lk_parallel *parallel, uint32_t n, lki_gradients *out)
{
    zero2   *self = zero2_of(parallel);
    uint32_t leaf = lki_leaf_of_turn(parallel, n);
    if (leaf == parallel->share.first)
        self->started = self->released = 0;
    self->round   = leaf / parallel->ranks;
    self->claimed = 0;
    for (uint32_t k = 0; k < self->unit_count; k++)
        self->units[k].pending = self->units[k].terms;
    *out = (lki_gradients){ .states = self->states[self->round % 2] };
    if (self->round >= 2)
        LK_TRY(release(parallel, self, (self->round - UINT64_C(1)) * self->unit_count));
    memset(out->states, 0, self->state_elements * sizeof(float));
    return LK_OK;
}

static lk_status not_ready(const lk_parallel *parallel, uint32_t bucket)
{
    const lki_layout *layout = parallel->layout;
    uint32_t          term   = 0;
    while (layout->first_bucket[term] < bucket || parallel->turn.ready[term])
        term++;
    return lk_fail(LK_EINVAL,
                   "strategy %s has no room yet for the gradients that were asked for: those of "
                   "'%s' are not ready; call lk_parallel_grad_ready() for each term once it is "
                   "made, and ask for the next ones only then, or choose zero1",
                   parallel->ops->name, layout->params[layout->terms[term].param].name);
}

/* Waits for the memory of this virtual worker's units up to `last`. */
static lk_status claim(lk_parallel *parallel, zero2 *self, uint32_t last)
{
    for (; self->claimed <= last; self->claimed++) {
        uint32_t    k      = self->claimed;
        uint64_t    number = (uint64_t)self->round * self->unit_count + k;
        /* the number of jobs that must be released, because they used this memory */
        uint64_t before = !accumulates(parallel)       ? (k == 0 ? number : number - 1)
                          : number >= self->unit_count ? number - self->unit_count + 1
                                                       : 0;
        if (before > self->started)
            return not_ready(parallel, (uint32_t)(self->started % self->unit_count));
        LK_TRY(release(parallel, self, before));
    }
    return LK_OK;
}

static lk_status zero2_find_term(lk_parallel *parallel, uint32_t term, float **out)
{
    zero2            *self   = zero2_of(parallel);
    const lki_layout *layout = parallel->layout;
    uint32_t          b      = layout->first_bucket[term];

    *out = self->room + self->units[b].place + (layout->term_at[term] - layout->buckets[b].first);
    return claim(parallel, self, b);
}

static lk_status zero2_progress(lk_parallel *parallel)
{
    zero2 *self    = zero2_of(parallel);
    bool   reduced = true, done;
    for (uint64_t k = self->released; reduced && k < self->started; k++) {
        LK_TRY(advance(parallel, self, k, false, &reduced, &done));
        self->released += done && k == self->released;
    }
    return LK_OK;
}

static lk_status zero2_term_ready(lk_parallel *parallel, uint32_t term)
{
    zero2   *self = zero2_of(parallel);
    uint32_t b    = parallel->layout->first_bucket[term];
    uint64_t end  = (self->round + UINT64_C(1)) * self->unit_count;

    LK_TRY(claim(parallel, self, b));
    LK_ASSERT(self->units[b].pending > 0);
    self->units[b].pending--;
    while (self->started < end && self->units[self->started % self->unit_count].pending == 0)
        LK_TRY(start_next(parallel, self));
    return zero2_progress(parallel);
}

/* Starts the remaining jobs of the round.  The last one reduces running state, which is now
 * complete. */
static lk_status zero2_end_leaf(lk_parallel *parallel)
{
    zero2 *self = zero2_of(parallel);
    while (self->started < (self->round + UINT64_C(1)) * self->unit_count)
        LK_TRY(start_next(parallel, self));
    return LK_OK;
}

/* Waits until other ranks have read this rank's gradients.  Called before any wait for ranks that
 * may themselves be waiting here. */
static lk_status zero2_settle(lk_parallel *parallel)
{
    zero2 *self = zero2_of(parallel);
    bool   reduced;
    for (uint64_t k = self->released; k < self->started; k++)
        LK_TRY(arrive(parallel, self, k, true, &reduced));
    return LK_OK;
}

/* Starts the jobs of the last round, in which this rank may have no virtual worker, and waits for
 * all sums. */
static lk_status zero2_reduce(lk_parallel *parallel, lki_gradients *sums)
{
    zero2   *self = zero2_of(parallel);
    uint64_t end  = (uint64_t)parallel->rounds.rounds * self->unit_count;
    uint32_t last = parallel->rounds.last;

    while (self->started < end)
        LK_TRY(start_next(parallel, self));
    LK_TRY(release(parallel, self, end));
    *sums = (lki_gradients){ .gradients = self->partials + last * self->owned,
                             .places    = self->places,
                             .states    = self->state_partials + last * self->state_elements };
    return LK_OK;
}

/* The functions that zero2, zero3 and hybrid share. */
#define ZERO2                                                                                      \
    .sharded = true, .rounds = true, .whole_blocks = true, .raw = true, .bytes = zero2_bytes,      \
    .passes = zero2_passes, .attach = zero2_attach, .detach = zero2_detach,                        \
    .begin_leaf = zero2_begin_leaf, .find_term = zero2_find_term, .term_ready = zero2_term_ready,  \
    .end_leaf = zero2_end_leaf, .progress = zero2_progress, .settle = zero2_settle,                \
    .reduce = zero2_reduce

const lki_strategy_ops lki_strategy_zero2 = { .name = "zero2", .survives = true, ZERO2 };

/* ZeRO-3: parameters are sharded as well; see units.c. */
const lki_strategy_ops lki_strategy_zero3 = {
    .name = "zero3", .survives = true, .gathers = true, ZERO2
};

/* ZeRO-3 within each group of hosts; see shards.c. */
const lki_strategy_ops lki_strategy_hybrid = {
    .name = "hybrid", .survives = true, .replicates = true, .gathers = true, ZERO2
};
