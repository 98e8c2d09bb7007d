/* find.c -- describing problems in sentences: damage, deaths, failures, disagreements, waits, and
 * ranks that are repeatedly late.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "flight/flight.h"

enum {
    WAITS_MAX      = 16, /* maximum number of reported waits; later waits mostly follow from the
                          * first */
    MISMATCHES_MAX = 16,
    STRAGGLER_MET  = 32,    /* minimum number of operations before a rank is reported as a
                             * straggler */
    STRAGGLER_NS   = 50000, /* minimum mean delay of a straggler */
    NAMES_MAX      = 300,   /* size limit of the text that lists ranks */
};

/* ---- Sentences --------------------------------------------------------------------------- */

typedef struct {
    char  *text;
    size_t bytes, used;
} line;

static void say(line *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(line *l, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int wrote = vsnprintf(l->text + l->used, l->bytes - l->used, format, args);
    va_end(args);
    l->used = lki_min(l->used + (wrote > 0 ? (size_t)wrote : 0), l->bytes - 1);
}

static lk_status add(lk_flight *flight, lk_flight_finding_kind kind, uint32_t rank, line *out)
{
    void     *findings = flight->findings;
    lk_status st       = lki_reserve(&findings, &flight->finding_capacity, flight->finding_count,
                                     sizeof *flight->findings, "findings of a flight");
    flight->findings   = findings;
    LK_TRY(st);
    lk_flight_finding *new = &flight->findings[flight->finding_count++];
    *new                   = (lk_flight_finding){ .kind = kind, .rank = rank };
    *out                   = (line){ new->text, sizeof new->text, 0 };
    return LK_OK;
}

/* Writes "rank 3" or "ranks 0 to 5, 7 and others" for all ranks r with in[r].  Returns the number
 * of these ranks. */
static uint32_t say_ranks(line *l, const bool *in, uint32_t world)
{
    uint32_t count = 0;
    size_t   began = l->used;

    for (uint32_t rank = 0; rank < world; rank++)
        count += in[rank];
    say(l, count == 1 ? "rank" : "ranks");
    const char *between = " ";
    for (uint32_t rank = 0, end; rank < world; rank = end) {
        for (end = rank; end < world && in[end];)
            end++;
        if (end == rank) {
            end++;
            continue;
        }
        if (l->used - began > NAMES_MAX) {
            say(l, " and others");
            break;
        }
        if (end - rank < 3)
            end = rank + 1;
        say(l, "%s%u", between, rank);
        if (end - rank > 1)
            say(l, " to %u", end - 1);
        between = ", ";
    }
    return count;
}

static void say_place(line *l, const lk_flight_rank *rank)
{
    if (rank->noted)
        say(l, " at step %llu%s%s", (unsigned long long)rank->step,
            rank->phase[0] != '\0' ? " in " : "", rank->phase);
    else
        say(l, " before its first step");
}

static void say_duration(line *l, int64_t ns)
{
    if (ns < 1000000000)
        say(l, "%.1f ms", 1e-6 * (double)ns);
    else
        say(l, "%.1f s", 1e-9 * (double)ns);
}

/* Returns the operation that the rank completed last, in any group. */
static const lk_flight_operation *last_completed(const lk_flight *flight, uint32_t rank)
{
    const lk_flight_operation *last = NULL;

    for (size_t i = 0; i < flight->place_count; i++) {
        const lk_flight_place *place = &flight->places[i];
        if (place->rank == rank && place->completed != NULL &&
            (last == NULL || place->completed->first_ns > last->first_ns))
            last = place->completed;
    }
    return last;
}

/* Writes "rank 2 (stopped, at step 17 in backward, last completed barrier #4)". */
static void say_who(line *l, const lk_flight *flight, uint32_t rank)
{
    const lk_flight_rank      *who  = &flight->ranks[rank];
    const lk_flight_operation *last = last_completed(flight, rank);

    say(l, "rank %u (%s", rank, lk_flight_state_name(who->state));
    if (who->state != LK_FLIGHT_MISSING) {
        say(l, ",");
        say_place(l, who);
    }
    if (last != NULL)
        say(l, ", last completed %s", last->operation);
    else if (who->state != LK_FLIGHT_MISSING)
        say(l, ", has completed no operation");
    say(l, ")");
}

/* ---- Files, deaths, failures ------------------------------------------------------------- */

static lk_status find_damage(lk_flight *flight)
{
    for (uint32_t rank = 0; rank < flight->world; rank++) {
        line l;
        if (flight->ranks[rank].problem[0] == '\0')
            continue;
        LK_TRY(add(flight, LK_FLIGHT_DAMAGE, rank, &l));
        say(&l, "rank-%u.flight: %s", rank, flight->ranks[rank].problem);
    }
    return LK_OK;
}

static lk_status find_deaths(lk_flight *flight)
{
    for (uint32_t rank = 0; rank < flight->world; rank++) {
        const lk_flight_rank      *who  = &flight->ranks[rank];
        const lk_flight_operation *last = last_completed(flight, rank);
        line                       l;
        if (who->state != LK_FLIGHT_DEAD)
            continue;
        LK_TRY(add(flight, LK_FLIGHT_DEATH, rank, &l));
        say(&l, "rank %u (pid %d on %.64s) is gone without a word (killed?),", rank, who->pid,
            who->host);
        say_place(&l, who);
        if (last != NULL)
            say(&l, ", last completed %s", last->operation);
    }
    return LK_OK;
}

/* Adds one finding per failure text, for all ranks that received it. */
static lk_status find_failures(lk_flight *flight, bool *told)
{
    for (uint32_t rank = 0; rank < flight->world; rank++) {
        const char *text = flight->ranks[rank].failure;
        bool new         = text[0] != '\0';
        line l;
        for (uint32_t k = 0; k < rank && new; k++)
            new = strcmp(text, flight->ranks[k].failure) != 0;
        if (!new)
            continue;
        for (uint32_t k = 0; k < flight->world; k++)
            told[k] = strcmp(text, flight->ranks[k].failure) == 0;
        LK_TRY(add(flight, LK_FLIGHT_FAILURE, rank, &l));
        (void)say_ranks(&l, told, flight->world);
        say(&l, " failed: %s", text);
    }
    return LK_OK;
}

/* ---- Operations -------------------------------------------------------------------------- */

static lk_status find_mismatches(lk_flight *flight)
{
    int found = 0;

    for (size_t i = 0; i < flight->event_count && found < MISMATCHES_MAX; i++) {
        const lk_flight_operation *op = &flight->events[i].super;
        line                       l;
        if (!op->differs)
            continue;
        const lk_flight_visit *one = &op->visits[0], *other = one;
        for (uint32_t k = 1; k < op->visit_count && one->differs == other->differs; k++)
            *(op->visits[k].differs ? &one : &other) = &op->visits[k];
        found++;
        LK_TRY(add(flight, LK_FLIGHT_MISMATCH, one->rank, &l));
        say(&l, "rank %u is in %s; rank %u is in %s%s", one->rank, one->operation, other->rank,
            other->operation,
            strcmp(one->operation, other->operation) == 0
                ? ", but their slices, leaves, names, counts or factors differ"
                : "");
    }
    return LK_OK;
}

/* Returns the time until which a rank waited.  This is the current time if the rank is alive, and
 * the time of the failure if the rank failed.  For any other rank it is the time of the last entry
 * of all ranks. */
static int64_t end_of_wait(const lk_flight *flight, const lk_flight_rank *rank)
{
    bool    alive = rank->state == LK_FLIGHT_RUNNING || rank->state == LK_FLIGHT_STOPPED;
    int64_t last  = 0;

    if (alive)
        return flight->now;
    if (rank->state == LK_FLIGHT_FAILED)
        return rank->failed_ns;
    for (uint32_t i = 0; i < flight->world; i++)
        last = lki_flight_later(last, flight->ranks[i].last_ns);
    return last;
}

static lk_status tell_wait(lk_flight *flight, const lk_flight_operation *op, bool *waiting)
{
    int64_t longest = 0;
    line    l;

    memset(waiting, 0, flight->world * sizeof *waiting);
    for (uint32_t k = 0; k < op->visit_count; k++) {
        const lk_flight_visit *visit = &op->visits[k];
        int64_t waits = end_of_wait(flight, &flight->ranks[visit->rank]) - visit->began_ns;
        if (visit->fate != LK_FLIGHT_OPEN)
            continue;
        waiting[visit->rank] = true;
        longest              = lki_flight_later(longest, waits);
    }
    bool first = op->absent_count > 0;
    LK_TRY(add(flight, LK_FLIGHT_WAITING, first ? op->absent[0] : op->visits[0].rank, &l));
    say(&l, "%s: ", op->operation);
    uint32_t count = say_ranks(&l, waiting, flight->world);
    say(&l, " %s %s ", count == 1 ? "has" : "have", first ? "waited" : "not completed it for");
    say_duration(&l, longest);
    if (!first) {
        say(&l, ", though all have come%s",
            op->unknown_count > 0 ? " as far as the files tell" : "");
        return LK_OK;
    }
    say(&l, " for ");
    for (uint32_t k = 0; k < op->absent_count; k++) {
        if (l.used > NAMES_MAX) {
            say(&l, " and others");
            break;
        }
        say(&l, "%s", k == 0 ? "" : ", ");
        say_who(&l, flight, op->absent[k]);
    }
    return LK_OK;
}

static bool is_open(const lk_flight_operation *op)
{
    bool open = false;
    for (uint32_t k = 0; k < op->visit_count; k++)
        open = open || op->visits[k].fate == LK_FLIGHT_OPEN;
    return open && !op->differs; /* a disagreement is reported separately */
}

/* Reports two open operations of every group: the first at which ranks are missing, and the first
 * at which all ranks have arrived.  Later open operations wait for these two. */
static lk_status find_waits(lk_flight *flight, bool *waiting)
{
    bool     *seen  = NULL; /* two entries per group */
    int       found = 0;
    lk_status st    = LKI_NEW(&seen, 2 * flight->circle_count + 1, "groups of a flight");

    for (size_t i = 0; i < flight->event_count && found < WAITS_MAX && st == LK_OK; i++) {
        const lki_flight_event *event = &flight->events[i];
        size_t                  which = 2 * event->circle + (event->super.absent_count > 0);
        if (seen[which] || !is_open(&event->super))
            continue;
        seen[which] = true;
        found++;
        st = tell_wait(flight, &event->super, waiting);
    }
    lki_free(seen);
    return st;
}

/* ---- Stragglers -------------------------------------------------------------------------- */

/* Measures how much later the last rank arrived at an operation than the second-last rank. */
static void measure_arrivals(lk_flight *flight, const lki_flight_event *event)
{
    const lk_flight_operation *op     = &event->super;
    const lk_flight_visit     *last   = &op->visits[0];
    int64_t                    before = 0;

    if (event->from != UINT32_MAX || op->visit_count < 2 || op->visit_count != op->group_size)
        return;
    for (uint32_t k = 1; k < op->visit_count; k++)
        if (op->visits[k].began_ns > last->began_ns)
            last = &op->visits[k];
    for (uint32_t k = 0; k < op->visit_count; k++) {
        const lk_flight_visit *visit = &op->visits[k];
        if (visit != last)
            before = lki_flight_later(before, visit->began_ns);
        flight->ranks[visit->rank].met++;
        flight->chance[visit->rank] += 1.0 / op->visit_count;
    }
    flight->ranks[last->rank].last++;
    lk_flight_rank *who = &flight->ranks[last->rank];
    if (__builtin_add_overflow(who->late_ns, last->began_ns - before, &who->late_ns))
        who->late_ns = INT64_MAX; /* the sum overflows: the times are invalid */
}

/* Reports stragglers.  A straggler is last in many operations: at least the mean of the number
 * expected by chance and the number of all operations. */
static lk_status find_stragglers(lk_flight *flight)
{
    for (size_t i = 0; i < flight->event_count; i++)
        measure_arrivals(flight, &flight->events[i]);
    for (uint32_t rank = 0; rank < flight->world; rank++) {
        const lk_flight_rank *who = &flight->ranks[rank];
        line                  l;
        if (who->met < STRAGGLER_MET ||
            (double)who->last < ((double)who->met + flight->chance[rank]) / 2 ||
            who->late_ns / (int64_t)who->last < STRAGGLER_NS)
            continue;
        LK_TRY(add(flight, LK_FLIGHT_STRAGGLER, rank, &l));
        say(&l,
            "rank %u came last in %llu of %llu operations, on average %.2f ms after the one "
            "before it",
            rank, (unsigned long long)who->last, (unsigned long long)who->met,
            1e-6 * (double)who->late_ns / (double)who->last);
    }
    return LK_OK;
}

lk_status lki_flight_find(lk_flight *flight)
{
    bool *some = NULL;

    LK_TRY(LKI_NEW(&some, flight->world, "ranks of a flight"));
    lk_status st = find_damage(flight);
    if (st == LK_OK)
        st = find_deaths(flight);
    if (st == LK_OK)
        st = find_failures(flight, some);
    if (st == LK_OK)
        st = find_mismatches(flight);
    if (st == LK_OK)
        st = find_waits(flight, some);
    if (st == LK_OK)
        st = find_stragglers(flight);
    lki_free(some);
    return st;
}

/* ---- Names ------------------------------------------------------------------------------- */

const char *lk_flight_state_name(lk_flight_state state)
{
    switch (state) {
    case LK_FLIGHT_MISSING: return "no record";
    case LK_FLIGHT_RUNNING: return "running";
    case LK_FLIGHT_STOPPED: return "stopped";
    case LK_FLIGHT_LEFT: return "left";
    case LK_FLIGHT_FAILED: return "failed";
    case LK_FLIGHT_DEAD: return "gone";
    case LK_FLIGHT_UNKNOWN: break;
    }
    return "not known";
}

const char *lk_flight_fate_name(lk_flight_fate fate)
{
    switch (fate) {
    case LK_FLIGHT_OPEN: return "open";
    case LK_FLIGHT_COMPLETE: return "complete";
    case LK_FLIGHT_FREED: return "freed";
    case LK_FLIGHT_ABANDONED: break;
    }
    return "abandoned";
}

const char *lk_flight_finding_name(lk_flight_finding_kind kind)
{
    switch (kind) {
    case LK_FLIGHT_DAMAGE: return "damage";
    case LK_FLIGHT_DEATH: return "death";
    case LK_FLIGHT_FAILURE: return "failure";
    case LK_FLIGHT_MISMATCH: return "mismatch";
    case LK_FLIGHT_WAITING: return "waiting";
    case LK_FLIGHT_STRAGGLER: break;
    }
    return "straggler";
}
