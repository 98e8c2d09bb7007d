/* remains.c -- computes a plan from the tags, equal on every rank; see remains.h. */
#include "parallel/remains.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "parallel/state.h"

/* The state while the plan is computed. */
typedef struct {
    lki_remains *plan;
    uint32_t     leaves, ranks, rank, buffers;
    uint32_t    *missing, missing_count;
    uint32_t    *held;  /* [ranks]: number of nodes that each rank holds */
    bool        *taken; /* [buffers]: occupied by nodes that a rank holds */
    bool         room;  /* no rank holds too many nodes */
} making;

/* Orders nodes by their first virtual worker, and a node before the nodes inside it. */
static int by_place(const void *a, const void *b)
{
    const lki_node *left = a, *right = b;
    if (left->first != right->first)
        return left->first < right->first ? -1 : 1;
    return left->count > right->count ? -1 : left->count < right->count;
}

/* Finds the cover.  Two nodes are either disjoint or one is inside the other, so the largest nodes
 * of all tags are a cover. */
static void find_cover(lki_remains *plan, const lki_tag *tags, uint32_t buffers, uint64_t steps)
{
    uint32_t found = 0, end = 0;
    for (uint32_t i = 0; i < buffers; i++)
        if (atomic_load(&tags[i].steps) == steps)
            plan->cover[found++] = (lki_node){ tags[i].first, tags[i].count, i };
    qsort(plan->cover, found, sizeof *plan->cover, by_place);
    for (uint32_t i = 0; i < found; i++)
        if (plan->cover[i].first >= end) {
            end                              = plan->cover[i].first + plan->cover[i].count;
            plan->cover[plan->cover_count++] = plan->cover[i];
        }
}

static void find_missing(making *m)
{
    const lki_remains *plan = m->plan;
    uint32_t           at   = 0;
    for (uint32_t i = 0; i <= plan->cover_count; i++) {
        uint32_t end = i < plan->cover_count ? plan->cover[i].first : m->leaves;
        while (at < end)
            m->missing[m->missing_count++] = at++;
        if (i < plan->cover_count)
            at = end + plan->cover[i].count;
    }
}

/* Adds a node to those of `owner`, and merges neighbours into the buffer of the right one. */
static void take(making *m, lki_merge_counter *counter, uint32_t owner, lki_node node)
{
    lki_remains *plan = m->plan;
    uint32_t     left, right;

    m->room = m->room && counter->depth < LKI_NODES_MAX;
    if (!m->room)
        return;
    counter->stack[counter->depth++] = node;
    while (lki_counter_merge(counter, &left, &right)) {
        lki_node both = counter->stack[counter->depth - 1];
        if (owner == m->rank)
            plan->merges[plan->merge_count++] = (lki_merged){ both, left };
    }
}

static void keep(making *m, const lki_merge_counter *counter, uint32_t owner)
{
    lki_remains *plan = m->plan;

    m->held[owner] = counter->depth;
    m->room        = m->room && counter->depth <= LK_TREE_NODES_MAX;
    for (uint32_t i = 0; m->room && i < counter->depth; i++) {
        m->taken[counter->stack[i].buffer] = true;
        if (owner == m->rank)
            plan->held[plan->held_count++] = counter->stack[i];
    }
}

/* Assigns each node to the rank whose share contains its first virtual worker. */
static void deal_cover(making *m)
{
    const lki_remains *plan    = m->plan;
    const lki_dealing  dealing = { .leaves = m->leaves, .ranks = m->ranks };
    lki_merge_counter  counter;
    uint32_t           i = 0;

    for (uint32_t owner = 0; owner < m->ranks; owner++) {
        lki_counter_begin(&counter, m->leaves);
        for (; i < plan->cover_count; i++) {
            if (lki_share_rank(&dealing, plan->cover[i].first) != owner)
                break;
            take(m, &counter, owner, plan->cover[i]);
        }
        keep(m, &counter, owner);
    }
}

/* Finds the next `count` free buffers, one for each buffer of the merge counter. */
static bool find_places(const making *m, uint32_t *at, uint32_t count, uint32_t *places)
{
    for (uint32_t i = 0; i < count; i++) {
        while (*at < m->buffers && m->taken[*at])
            ++*at;
        if (*at == m->buffers)
            return false;
        places[i] = (*at)++;
    }
    return true;
}

/* Assigns the missing virtual workers to the first `helpers` ranks.  Returns false if these ranks
 * have too few buffers. */
static bool deal_missing(making *m, uint32_t helpers)
{
    lki_remains *plan = m->plan;
    uint32_t     at   = 0, places[LKI_NODES_MAX];

    for (uint32_t r = 0; r < helpers; r++) {
        uint32_t first, count;
        lki_virtual_range(m->missing_count, helpers, r, &first, &count);
        lki_merge_counter counter;
        if (!lki_counter_walk(&counter, m->leaves, m->missing + first, count) ||
            counter.depth + m->held[r] > LK_TREE_NODES_MAX ||
            !find_places(m, &at, counter.used, places))
            return false;
        if (r != m->rank)
            continue;
        memcpy(plan->places, places, sizeof places);
        memcpy(plan->leaves, m->missing + first, count * sizeof *plan->leaves);
        plan->count = count;
    }
    return true;
}

static void make_plan(making *m)
{
    lki_remains *plan    = m->plan;
    uint32_t     helpers = (uint32_t)lki_min(m->ranks, m->missing_count);

    deal_cover(m);
    plan->there = m->room && plan->cover_count > 0;
    while (plan->there && helpers > 0 && !deal_missing(m, helpers)) {
        plan->count = 0;
        plan->there = --helpers > 0;
    }
    if (!plan->there) /* the step is computed from its beginning, and no result is reused */
        plan->held_count = 0;
    plan->unfinished = m->missing_count;
}

lk_status lki_remains_find(lki_remains *out, const lki_tag *tags, uint32_t count, uint64_t steps,
                           uint32_t leaves, uint32_t ranks, uint32_t rank)
{
    making m = { .plan = out, .leaves = leaves, .ranks = ranks, .rank = rank, .buffers = count,
                 .room = true };

    *out             = (lki_remains){ .step = steps - 1 };
    lk_status status = LKI_NEW(&out->cover, count, "remains of a step");
    if (status == LK_OK)
        status = LKI_NEW(&out->merges, count, "remains of a step");
    if (status == LK_OK)
        status = LKI_NEW(&out->leaves, leaves, "remains of a step");
    if (status == LK_OK)
        status = LKI_NEW(&m.missing, leaves, "remains of a step");
    if (status == LK_OK)
        status = LKI_NEW(&m.held, ranks, "remains of a step");
    if (status == LK_OK)
        status = LKI_NEW(&m.taken, count, "remains of a step");
    if (status == LK_OK) {
        find_cover(out, tags, count, steps);
        find_missing(&m);
        make_plan(&m);
    }
    lki_free(m.missing);
    lki_free(m.held);
    lki_free(m.taken);
    return status;
}

void lki_remains_deinit(lki_remains *remains)
{
    lki_free(remains->leaves);
    lki_free(remains->cover);
    lki_free(remains->merges);
    *remains = (lki_remains){ .there = false };
}

/* ---- Preparing to continue --------------------------------------------------------------- */

/* Returns 1 + the number of the interrupted step; 0 if no step was in progress. */
static uint64_t broken_step(const lki_tag *tags, uint32_t count, uint64_t complete)
{
    uint64_t steps = 0;
    for (uint32_t i = 0; i < count; i++)
        steps = lki_max(steps, atomic_load(&tags[i].steps));
    return complete == 0 || steps == complete + 1 ? steps : 0;
}

/* Removes the tags of buffers that are no longer used, so that they are not found after another
 * loss. */
static void clear_tags(const lki_remains *remains, lki_tag *tags, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        bool kept = false;
        for (uint32_t k = 0; k < remains->cover_count && remains->there; k++)
            kept |= remains->cover[k].buffer == i;
        if (!kept)
            lki_tag_take_off(&tags[i]);
    }
}

static void merge_held(const lk_parallel *parallel, float *buffers, lki_tag *tags)
{
    const lki_remains *remains = &parallel->remains;
    for (uint32_t i = 0; remains->there && i < remains->merge_count; i++) {
        lki_node node = remains->merges[i].node;
        lki_tag_take_off(&tags[node.buffer]);
        lki_merge_spaces(parallel, buffers + parallel->width * node.buffer,
                         buffers + parallel->width * remains->merges[i].left);
        lki_tag_put_on(&tags[node.buffer], remains->step, node.first, node.count);
    }
}

lk_status lki_remains_take(lk_parallel *parallel, float *buffers, lki_tag *tags, uint32_t count,
                           uint64_t complete)
{
    uint64_t steps = parallel->world.hosts > 1 ? 0 : broken_step(tags, count, complete);
    if (steps > 0)
        LK_TRY(lki_remains_find(&parallel->remains, tags, count, steps, parallel->leaves,
                                parallel->ranks, parallel->rank));
    LK_TRY(lk_barrier(parallel->comm)); /* all ranks have read the tags */
    if (parallel->local == 0)
        clear_tags(&parallel->remains, tags, count);
    merge_held(parallel, buffers, tags);
    return lk_barrier(parallel->comm);
}
