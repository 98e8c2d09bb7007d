/* schedule.c -- building schedules, and performing the actions that need no messages. */
#include "comm/algorithm/schedule.h"

#include <string.h>

#include "base/memory.h"

/* ---- The problem ------------------------------------------------------------------------- */

static lki_range windowed(const lki_problem *p, size_t offset, size_t bytes)
{
    size_t at = lki_min(p->at, bytes);
    return (lki_range){ offset + at, lki_min(p->window, bytes - at) };
}

lki_range lki_problem_part(const lki_problem *p, uint32_t rank)
{
    if (p->parts == NULL)
        return windowed(p, rank * p->bytes, p->bytes);
    return windowed(p, p->parts[rank], p->parts[rank + 1] - p->parts[rank]);
}

lki_range lki_problem_recv_part(const lki_problem *p, uint32_t rank)
{
    if (p->recv_parts == NULL)
        return lki_problem_part(p, rank);
    return windowed(p, p->recv_parts[rank], p->recv_parts[rank + 1] - p->recv_parts[rank]);
}

lki_range lki_problem_whole(const lki_problem *p)
{
    return windowed(p, 0, p->bytes);
}

/* Returns i * count / size without overflow. */
static size_t border(size_t count, uint32_t i, uint32_t size)
{
    return count / size * i + count % size * i / size;
}

lki_range lki_problem_slice(const lki_problem *p, uint32_t rank)
{
    lki_range whole = lki_problem_whole(p);
    size_t    count = whole.bytes / p->width, first = border(count, rank, p->size);
    return (lki_range){ whole.at + first * p->width,
                        (border(count, rank + 1, p->size) - first) * p->width };
}

size_t lki_problem_longest(const lki_problem *p)
{
    size_t longest = p->parts == NULL ? p->bytes : 0;

    for (uint32_t rank = 0; rank < p->size && p->parts != NULL; rank++) {
        longest = lki_max(longest, p->parts[rank + 1] - p->parts[rank]);
        if (p->recv_parts != NULL)
            longest = lki_max(longest, p->recv_parts[rank + 1] - p->recv_parts[rank]);
    }
    return longest;
}

/* ---- Writing ----------------------------------------------------------------------------- */

void lki_schedule_free(lki_schedule *s)
{
    lki_free(s->actions);
    lki_free(s->terms);
    *s = (lki_schedule){ 0 };
}

static void add(lki_schedule *s, lki_action action)
{
    if (s->status == LK_OK)
        s->status = lki_reserve((void **)&s->actions, &s->capacity, s->count, sizeof *s->actions,
                                "actions of a schedule");
    if (s->status == LK_OK) {
        action.round           = s->round;
        s->actions[s->count++] = action;
    }
}

static void add_message(lki_schedule *s, lki_act_kind kind, uint32_t peer, lki_spot spot,
                        size_t bytes)
{
    uint32_t step = s->lane * (s->stride == 0 ? LKI_ROUNDS_MAX : s->stride) + s->round;

    LK_ASSERT(step < LKI_STEPS_MAX);
    add(s, (lki_action){ .kind  = kind,
                         .peer  = peer,
                         .step  = step,
                         .spot  = spot,
                         .bytes = bytes });
    s->messages++;
}

void lki_schedule_send(lki_schedule *s, uint32_t to, lki_spot from, size_t bytes)
{
    if (bytes > 0)
        add_message(s, LKI_ACT_SEND, to, from, bytes);
}

void lki_schedule_receive(lki_schedule *s, uint32_t from, lki_spot to, size_t bytes)
{
    if (bytes > 0)
        add_message(s, LKI_ACT_RECEIVE, from, to, bytes);
}

void lki_schedule_signal(lki_schedule *s, uint32_t to)
{
    add_message(s, LKI_ACT_SEND, to, lki_spot_at(LKI_SCRATCH, 0), 0);
}

void lki_schedule_await(lki_schedule *s, uint32_t from)
{
    add_message(s, LKI_ACT_RECEIVE, from, lki_spot_at(LKI_SCRATCH, 0), 0);
}

void lki_schedule_copy(lki_schedule *s, lki_spot to, lki_spot from, size_t bytes)
{
    if (bytes > 0)
        add(s, (lki_action){ .kind = LKI_ACT_COPY, .spot = to, .from = from, .bytes = bytes });
}

void lki_schedule_combine_begin(lki_schedule *s, lki_spot out, bool root, uint32_t first,
                                uint32_t leaves, size_t count)
{
    add(s, (lki_action){ .kind   = LKI_ACT_COMBINE,
                         .spot   = out,
                         .count  = count,
                         .first  = first,
                         .leaves = leaves,
                         .root   = root,
                         .term   = s->term_count });
}

void lki_schedule_combine_term(lki_schedule *s, lki_term term)
{
    if (s->status == LK_OK)
        s->status = lki_reserve((void **)&s->terms, &s->term_capacity, s->term_count,
                                sizeof *s->terms, "terms of a schedule");
    if (s->status != LK_OK)
        return;
    lki_action *last          = &s->actions[s->count - 1];
    s->terms[s->term_count++] = term;
    last->term_count++;
    s->terms_most = last->term_count > s->terms_most ? last->term_count : s->terms_most;
}

void lki_schedule_combine(lki_schedule *s, lki_spot out, bool root, uint32_t first, uint32_t leaves,
                          size_t count, const lki_term *terms, uint32_t term_count)
{
    lki_schedule_combine_begin(s, out, root, first, leaves, count);
    for (uint32_t k = 0; k < term_count; k++)
        lki_schedule_combine_term(s, terms[k]);
}

void lki_schedule_round(lki_schedule *s, uint32_t round)
{
    LK_ASSERT(round >= s->round && round < LKI_ROUNDS_MAX);
    s->round = round;
}

lki_spot lki_schedule_room(lki_schedule *s, size_t bytes)
{
    lki_spot spot = { LKI_SCRATCH, s->scratch };
    s->scratch += lki_round_up(bytes, LKI_LINE);
    return spot;
}

/* ---- Carrying out ------------------------------------------------------------------------ */

static unsigned char *at(unsigned char *const base[LKI_BUFFERS], lki_spot spot)
{
    return (unsigned char *)((uintptr_t)base[spot.buffer] + spot.at);
}

void lki_schedule_compute(const lki_schedule *s, const lki_action *a, const lki_problem *p,
                          unsigned char *const base[LKI_BUFFERS], lki_partial_node *nodes)
{
    if (a->kind == LKI_ACT_COPY) {
        memmove(at(base, a->spot), at(base, a->from), a->bytes); /* source and destination may be
                                                                  * equal (in place) */
        return;
    }
    LK_ASSERT(a->kind == LKI_ACT_COMBINE);
    for (uint32_t k = 0; k < a->term_count; k++) {
        const lki_term *term = &s->terms[a->term + k];
        nodes[k] = (lki_partial_node){ term->first, term->count, term->leaf, at(base, term->spot) };
    }
    const lki_partial sum = { .dtype      = p->dtype,
                              .op         = p->op,
                              .leaves     = p->size,
                              .first      = a->first,
                              .count      = a->leaves,
                              .root       = a->root,
                              .rounded    = p->rounded,
                              .nodes      = nodes,
                              .node_count = a->term_count };
    lki_partial_combine(&sum, a->count, at(base, a->spot));
}
