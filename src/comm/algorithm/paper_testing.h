/* comm/algorithm/paper_testing.h -- for tests: all ranks' schedules carried out in one thread,
 * without a network.
 *
 * Messages pass through a post office, which is a table in memory.  One rank after the other
 * performs the actions of a round.  A receive takes effect at once if its message is available (as
 * with a parked message), else before the next round.  A buffer that is overwritten too early is
 * therefore detected.  It is an error if a message is never received or never sent, or if two
 * messages have the same name.
 */
#ifndef LKI_COMM_ALGORITHM_PAPER_TESTING_H
#define LKI_COMM_ALGORITHM_PAPER_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "comm/algorithm/schedule.h"

enum { RANKS_MAX = 32, ROOM = 32 * 1024 * 8 };

/* ---- The post office --------------------------------------------------------------------- */

typedef struct {
    uint32_t       from, to, step;
    size_t         bytes;
    unsigned char *data;
} letter;

typedef struct {
    lki_problem       problem;
    lki_schedule      schedule;
    unsigned char    *base[LKI_BUFFERS];
    lki_partial_node *nodes;
    size_t            next, round_begins;
    bool              waiting;
    size_t            sent;
} desk;

typedef struct {
    desk     desks[RANKS_MAX];
    uint32_t size;
    letter   letters[4 * RANKS_MAX * RANKS_MAX];
    size_t   letter_count;
} office;

static bool deliver(office *o, uint32_t me, const lki_action *a, unsigned char *to)
{
    for (size_t k = 0; k < o->letter_count; k++) {
        letter *l = &o->letters[k];
        if (l->to != me || l->from != a->peer || l->step != a->step)
            continue;
        assert_int_equal(l->bytes, a->bytes);
        if (l->bytes > 0)
            memcpy(to, l->data, l->bytes);
        free(l->data);
        *l = o->letters[--o->letter_count];
        return true;
    }
    return false;
}

static void post(office *o, uint32_t me, const lki_action *a, const unsigned char *from)
{
    for (size_t k = 0; k < o->letter_count; k++)
        assert_false(o->letters[k].from == me && o->letters[k].to == a->peer &&
                     o->letters[k].step == a->step);
    assert_true(o->letter_count < sizeof o->letters / sizeof o->letters[0]);
    assert_true(a->peer < o->size && a->peer != me);
    letter *l = &o->letters[o->letter_count++];
    *l        = (letter){ me, a->peer, a->step, a->bytes, malloc(a->bytes + 1) };
    memcpy(l->data, from, a->bytes);
    o->desks[me].sent += a->bytes;
}

static unsigned char *spot(const desk *d, lki_spot s)
{
    return d->base[s.buffer] + s.at;
}

/* Performs the actions of this rank's current round.  A receive whose message is not available yet
 * is retried later. */
static bool begin_round(office *o, uint32_t me)
{
    desk *d         = &o->desks[me];
    d->round_begins = d->next;
    if (d->next == d->schedule.count)
        return false;
    uint32_t round = d->schedule.actions[d->next].round;
    for (; d->next < d->schedule.count && d->schedule.actions[d->next].round == round; d->next++) {
        lki_action *a = &d->schedule.actions[d->next];
        if (a->kind == LKI_ACT_SEND)
            post(o, me, a, spot(d, a->spot));
        else if (a->kind != LKI_ACT_RECEIVE)
            lki_schedule_compute(&d->schedule, a, &d->problem, d->base, d->nodes);
        else if (deliver(o, me, a, spot(d, a->spot)))
            a->peer = UINT32_MAX;
    }
    return true;
}

static bool end_round(office *o, uint32_t me)
{
    desk *d    = &o->desks[me];
    bool  done = true;
    for (size_t k = d->round_begins; k < d->next; k++) {
        lki_action *a = &d->schedule.actions[k];
        if (a->kind == LKI_ACT_RECEIVE && a->peer != UINT32_MAX) {
            if (deliver(o, me, a, spot(d, a->spot)))
                a->peer = UINT32_MAX;
            else
                done = false;
        }
    }
    return done;
}

/* Performs the schedules of all ranks in turn, each as far as possible, until no rank can
 * proceed. */
static void carry_out(office *o)
{
    bool moved = true;

    for (uint32_t r = 0; r < o->size; r++) {
        o->desks[r].next    = 0;
        o->desks[r].waiting = false;
    }
    while (moved) {
        moved = false;
        for (uint32_t i = 0; i < o->size; i++) {
            uint32_t r = (i * 5 + 3) % o->size;
            r          = o->size % 5 == 0 ? i : r;
            desk *d    = &o->desks[r];
            if (!d->waiting && begin_round(o, r))
                d->waiting = moved = true;
            if (d->waiting && end_round(o, r)) {
                d->waiting = false;
                moved      = true;
            }
        }
    }
    for (uint32_t r = 0; r < o->size; r++)
        assert_true(!o->desks[r].waiting && o->desks[r].next == o->desks[r].schedule.count);
    assert_int_equal(o->letter_count, 0);
}

static void build_one(desk *d, const lki_method *method)
{
    lki_schedule *s = &d->schedule;
    *s              = (lki_schedule){ 0 };
    method->build(&d->problem, s);
    assert_int_equal(s->status, LK_OK);
    d->base[LKI_SCRATCH] = malloc(s->scratch + 64);
    d->nodes             = calloc(s->terms_most + 1, sizeof *d->nodes);
    assert_non_null(d->base[LKI_SCRATCH]);
    memset(d->base[LKI_SCRATCH], 0xee, s->scratch);
}

/* Runs all segments one after the other, with windows of `segment` bytes. */
static void perform(office *o, const lki_method *method, size_t segment)
{
    size_t longest = lki_problem_longest(&o->desks[0].problem);

    for (uint32_t r = 0; r < o->size; r++)
        o->desks[r].sent = 0;
    for (size_t at = 0; at == 0 || at < longest; at += segment) {
        for (uint32_t r = 0; r < o->size; r++) {
            o->desks[r].problem.at     = at;
            o->desks[r].problem.window = lki_min(segment, longest - at);
            build_one(&o->desks[r], method);
        }
        carry_out(o);
        for (uint32_t r = 0; r < o->size; r++) {
            free(o->desks[r].base[LKI_SCRATCH]);
            free(o->desks[r].nodes);
            lki_schedule_free(&o->desks[r].schedule);
        }
    }
}

static office *open_office(void)
{
    office *o = calloc(1, sizeof *o);
    assert_non_null(o);
    for (uint32_t r = 0; r < RANKS_MAX; r++) {
        o->desks[r].base[LKI_SEND_BUFFER] = malloc(ROOM + 64);
        o->desks[r].base[LKI_RECV_BUFFER] = malloc(ROOM + 64);
    }
    return o;
}

static void close_office(office *o)
{
    for (uint32_t r = 0; r < RANKS_MAX; r++) {
        free(o->desks[r].base[LKI_SEND_BUFFER]);
        free(o->desks[r].base[LKI_RECV_BUFFER]);
    }
    free(o);
}

#endif
