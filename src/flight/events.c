/* events.c -- the operations in the records of all ranks.
 *
 * Entries of several ranks belong to one operation if they have the same group, sequence number
 * and, for messages, sender and receiver.  All entries are sorted by these fields.  Each run of
 * equal entries becomes an operation with one visit per rank.  The groups listed in the files
 * determine which ranks should have arrived.  If a rank has no entry, either the rank has not
 * arrived or its entry was overwritten.  The highest sequence number of the rank in that stream
 * distinguishes the two cases.
 *
 * Cost: a sort of all entries.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "flight/flight.h"

typedef struct {
    const lki_flight_entry *entry;
    uint32_t                rank; /* world rank */
    uint32_t                from, to;
} ref;

#define NOBODY UINT32_MAX

_Static_assert((int)LK_FLIGHT_COMPLETE == (int)LKI_FATE_COMPLETE &&
                   (int)LK_FLIGHT_ABANDONED == (int)LKI_FATE_ABANDONED,
               "what files say is what callers see");

/* ---- Operations -------------------------------------------------------------------------- */

static int by_stream(const ref *x, const ref *y)
{
    if (x->entry->op.group != y->entry->op.group)
        return x->entry->op.group < y->entry->op.group ? -1 : 1;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return (x->to > y->to) - (x->to < y->to);
}

static int by_operation(const void *a, const void *b)
{
    const ref *x = a, *y = b;
    int        stream = by_stream(x, y);

    if (stream != 0)
        return stream;
    if (x->entry->op.seq != y->entry->op.seq)
        return x->entry->op.seq < y->entry->op.seq ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->entry->number > y->entry->number) - (x->entry->number < y->entry->number);
}

static ref make_ref(const lki_flight_entry *entry, uint32_t rank)
{
    uint32_t peer = (uint32_t)(entry->op.what >> 32);
    switch (entry->op.what & 0xff) {
    case LKI_OP_SEND: return (ref){ entry, rank, entry->rank, peer };
    case LKI_OP_RECV: return (ref){ entry, rank, peer, entry->rank };
    default: return (ref){ entry, rank, NOBODY, NOBODY };
    }
}

static lk_status collect_refs(const lk_flight *flight, ref **out, size_t *count)
{
    size_t total = 0;

    for (uint32_t rank = 0; rank < flight->world; rank++)
        total += flight->of_rank[rank] == NULL ? 0 : flight->of_rank[rank]->entry_count;
    LK_TRY(LKI_NEW(out, total + 1, "entries of a flight"));
    *count = 0;
    for (uint32_t rank = 0; rank < flight->world; rank++) {
        const lki_flight_file *file = flight->of_rank[rank];
        for (uint32_t i = 0; file != NULL && i < file->entry_count; i++)
            if (file->entries[i].kind == LKI_FLIGHT_OPERATION)
                (*out)[(*count)++] = make_ref(&file->entries[i], rank);
    }
    qsort(*out, *count, sizeof **out, by_operation);
    return LK_OK;
}

static bool same_print(const lki_flight_entry *a, const lki_flight_entry *b, bool mail)
{
    return a->op.count == b->op.count &&
           (mail || (a->op.what == b->op.what && a->op.hash == b->op.hash));
}

/* Returns the first entry that has the most common fingerprint. */
static const lki_flight_entry *most_common(const ref *refs, size_t count, bool mail)
{
    size_t best = 0, best_votes = 0, differ = 0;

    for (size_t i = 1; i < count; i++)
        differ += !same_print(refs[0].entry, refs[i].entry, mail);
    for (size_t i = 0; i < count && differ > 0 && best_votes <= count / 2; i++) {
        size_t votes = 0;
        for (size_t k = 0; k < count; k++)
            votes += same_print(refs[i].entry, refs[k].entry, mail);
        if (votes > best_votes) {
            best       = i;
            best_votes = votes;
        }
    }
    return refs[best].entry;
}

static void text_of(char *out, size_t bytes, const lki_flight_entry *e)
{
    lki_print print = { e->op.what, e->op.count, e->op.hash };
    lki_print_text(out, bytes, print, e->op.seq, e->op.label);
}

/* Writes the text of an operation.  An entry does not show whether its first communicator has all
 * ranks or the ranks of one host.  If the communicator is smaller than the job, the text therefore
 * names the group. */
static void event_text(const lk_flight *flight, char *out, size_t bytes,
                       const lki_flight_circle *circle, const lki_flight_entry *e)
{
    text_of(out, bytes, e);
    size_t used = strlen(out);
    if (e->op.label == 0 && circle->size != flight->world)
        (void)snprintf(out + used, bytes - used, " among %s", circle->text);
}

/* Returns the world rank of `rank`, which is a rank in the group; NOBODY if unknown. */
static uint32_t world_rank(const lki_flight_circle *circle, uint32_t rank)
{
    return rank < LKI_RANKS_MAX ? (uint32_t)circle->world[rank] - 1 : NOBODY;
}

/* Writes "send #3 (100 bytes from rank 0 to rank 2)".  The ranks are world ranks if these are
 * known. */
static void mail_text(char *out, size_t bytes, const lki_flight_circle *circle, const ref *r)
{
    uint32_t from = world_rank(circle, r->from), to = world_rank(circle, r->to);

    (void)snprintf(out, bytes, "send #%llu (%llu bytes from %srank %u to %srank %u)",
                   (unsigned long long)r->entry->op.seq, (unsigned long long)r->entry->op.count,
                   from == NOBODY ? "the group's " : "", from == NOBODY ? r->from : from,
                   to == NOBODY ? "the group's " : "", to == NOBODY ? r->to : to);
}

/* Returns true if the file of a rank without an entry shows that the rank has not arrived.
 * `reached` is 1 + the highest sequence number of the rank in this stream; 0 = none. */
static bool is_absent(const lk_flight *flight, const lki_flight_event *event, uint32_t rank,
                      uint64_t reached)
{
    const lki_flight_file *file = flight->of_rank[rank];

    if (file == NULL || reached > event->seq)
        return false;
    if (reached > 0 || file->lost == 0)
        return true;
    return file->entry_count > 0 &&
           lki_flight_wall(file, file->entries[0].at) <= event->super.first_ns;
}

static bool should_come(const lki_flight_event *event, const lki_flight_circle *circle,
                        uint32_t rank)
{
    if (event->from == NOBODY)
        return lki_flight_is_member(circle, rank);
    return rank == world_rank(circle, event->from) || rank == world_rank(circle, event->to);
}

static lk_status find_absent(lk_flight *flight, lki_flight_event *event, const uint64_t *reached)
{
    const lki_flight_circle *circle = &flight->circles[event->circle];
    uint32_t                 next = 0, wanted = event->from == NOBODY ? circle->size : 2;
    bool                     to_itself = event->from != NOBODY && event->from == event->to;

    event->first_absent = flight->absent_count;
    for (uint32_t rank = 0; rank < flight->world; rank++) {
        while (next < event->super.visit_count && event->super.visits[next].rank < rank)
            next++;
        bool came = next < event->super.visit_count && event->super.visits[next].rank == rank;
        if (came || !should_come(event, circle, rank) ||
            !is_absent(flight, event, rank, reached[rank]))
            continue;
        void     *absent = flight->absent;
        lk_status st     = lki_reserve(&absent, &flight->absent_capacity, flight->absent_count,
                                       sizeof *flight->absent, "absent ranks");
        flight->absent   = absent;
        LK_TRY(st);
        flight->absent[flight->absent_count++] = rank;
        event->super.absent_count++;
    }
    uint32_t known             = event->super.visit_count + event->super.absent_count;
    event->super.unknown_count = wanted > known && !to_itself ? wanted - known : 0;
    return LK_OK;
}

static lk_flight_visit make_visit(const lk_flight *flight, const ref *r)
{
    const lki_flight_file *file = flight->of_rank[r->rank];
    return (lk_flight_visit){
        .rank     = r->rank,
        .fate     = (lk_flight_fate)r->entry->fate,
        .began_ns = lki_flight_wall(file, r->entry->at),
        .met_ns   = lki_flight_wall(file, r->entry->met),
        .ended_ns = lki_flight_wall(file, r->entry->ended),
        .step     = r->entry->op.step,
    };
}

static void take_times(lk_flight_operation *operation, const lk_flight_visit *visit, bool first)
{
    bool open = visit->fate == LK_FLIGHT_OPEN || (!first && operation->ended_ns == 0);

    operation->first_ns = first || visit->began_ns < operation->first_ns ? visit->began_ns
                                                                         : operation->first_ns;
    operation->last_ns  = first ? visit->began_ns
                                : lki_flight_later(operation->last_ns, visit->began_ns);
    operation->ended_ns = open ? 0 : lki_flight_later(operation->ended_ns, visit->ended_ns);
}

/* Stores the text of an operation that differs from the operation of most ranks.  settle() later
 * assigns these texts to their visits, in the same order. */
static lk_status keep_text(lk_flight *flight, const lki_flight_entry *entry)
{
    void     *texts = flight->texts;
    lk_status st    = lki_reserve(&texts, &flight->text_capacity, flight->text_count,
                                  sizeof *flight->texts, "names of operations");
    flight->texts   = texts;
    LK_TRY(st);
    text_of(flight->texts[flight->text_count++], LKI_OPERATION_BYTES, entry);
    return LK_OK;
}

/* Creates an operation from the entries refs [0, count).  Stores its visits from *next_visit on. */
static lk_status make_event(lk_flight *flight, const ref *refs, size_t count, size_t *next_visit)
{
    bool                    mail   = refs[0].from != NOBODY;
    lki_flight_event       *event  = &flight->events[flight->event_count++];
    lk_flight_visit        *visits = &flight->visits[*next_visit];
    const lki_flight_entry *common = most_common(refs, count, mail);
    lki_flight_circle      *circle = lki_flight_circle_of(flight, common->op.group);
    uint32_t                used   = 0;

    LK_ASSERT(circle != NULL);
    event->circle = (uint32_t)(circle - flight->circles);
    event->from   = refs[0].from;
    event->to     = refs[0].to;
    event->seq    = common->op.seq;
    event->print  = (lki_print){ common->op.what, common->op.count, common->op.hash };
    if (mail)
        mail_text(event->text, sizeof event->text, circle, &refs[0]);
    else
        event_text(flight, event->text, sizeof event->text, circle, common);
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && refs[i].rank == refs[i - 1].rank && !(mail && refs[i].from == refs[i].to))
            continue;
        lk_flight_visit *visit = &visits[used++];
        *visit                 = make_visit(flight, &refs[i]);
        visit->differs         = !same_print(refs[i].entry, common, mail);
        event->super.differs   = event->super.differs || visit->differs;
        if (visit->differs)
            LK_TRY(keep_text(flight, refs[i].entry));
        take_times(&event->super, visit, used == 1);
    }
    *next_visit += used;
    event->super.visits      = visits;
    event->super.visit_count = used;
    event->super.bytes       = lki_print_bytes(event->print);
    event->super.group_size  = circle->size;
    return LK_OK;
}

static bool in_one_stream(const ref *x, const ref *y)
{
    return by_stream(x, y) == 0;
}

/* Sets reached[r] to 1 + the highest sequence number of rank r in the stream of refs [0, count). */
static void measure_stream(const ref *refs, size_t count, uint64_t *reached, uint32_t world)
{
    memset(reached, 0, world * sizeof *reached);
    for (size_t i = 0; i < count; i++)
        if (refs[i].entry->op.seq >= reached[refs[i].rank])
            reached[refs[i].rank] = refs[i].entry->op.seq + 1;
}

static lk_status make_events(lk_flight *flight, const ref *refs, size_t count, uint64_t *reached)
{
    size_t next_visit = 0, stream_end = 0, end;

    for (size_t at = 0; at < count; at = end) {
        if (at == stream_end) {
            while (stream_end < count && in_one_stream(&refs[at], &refs[stream_end]))
                stream_end++;
            measure_stream(refs + at, stream_end - at, reached, flight->world);
        }
        for (end = at; end < stream_end && refs[end].entry->op.seq == refs[at].entry->op.seq;)
            end++;
        LK_TRY(make_event(flight, refs + at, end - at, &next_visit));
        LK_TRY(find_absent(flight, &flight->events[flight->event_count - 1], reached));
    }
    return LK_OK;
}

static int by_time(const void *a, const void *b)
{
    const lki_flight_event *x = a, *y = b;
    if (x->super.first_ns != y->super.first_ns)
        return x->super.first_ns < y->super.first_ns ? -1 : 1;
    if (x->circle != y->circle)
        return x->circle < y->circle ? -1 : 1;
    return (x->seq > y->seq) - (x->seq < y->seq);
}

/* Sets pointers to array elements, when the arrays no longer move. */
static void settle(lk_flight *flight)
{
    lk_flight_visit *visits = flight->visits;
    size_t           next   = 0;

    for (size_t i = 0; next < flight->text_count; i++)
        if (visits[i].differs)
            visits[i].operation = flight->texts[next++];
    if (flight->event_count > 0)
        qsort(flight->events, flight->event_count, sizeof *flight->events, by_time);
    for (size_t i = 0; i < flight->event_count; i++) {
        lki_flight_event *event = &flight->events[i];
        event->super.operation  = event->text;
        if (event->super.absent_count > 0)
            event->super.absent = &flight->absent[event->first_absent];
        size_t first            = (size_t)(event->super.visits - visits);
        for (size_t k = 0; k < event->super.visit_count; k++)
            if (!visits[first + k].differs)
                visits[first + k].operation = event->text;
    }
}

/* ---- Places ------------------------------------------------------------------------------ */

static lk_flight_place *place_of(const lk_flight *flight, const lki_flight_circle *circle,
                                 uint32_t rank)
{
    size_t at = circle->first_place;

    for (uint32_t word = 0; word < rank / 64; word++)
        at += (size_t)__builtin_popcountll(circle->members[word]);
    uint64_t below = (UINT64_C(1) << rank % 64) - 1;
    at += (size_t)__builtin_popcountll(circle->members[rank / 64] & below);
    return &flight->places[at];
}

/* Fills in the position of each rank in each group (lk_flight_place).  Operations are sorted by
 * their begin.  The last completed operation of a rank is the last one in this order. */
static void collect_places(lk_flight *flight)
{
    for (size_t i = 0; i < flight->event_count; i++) {
        const lki_flight_event *event = &flight->events[i];
        for (uint32_t k = 0; k < event->super.visit_count; k++) {
            const lk_flight_visit *visit = &event->super.visits[k];
            lk_flight_place *place = place_of(flight, &flight->circles[event->circle], visit->rank);
            if (visit->fate == LK_FLIGHT_COMPLETE)
                place->completed = &event->super;
            place->open_count += visit->fate == LK_FLIGHT_OPEN;
            if (visit->fate == LK_FLIGHT_OPEN && place->open == NULL)
                place->open = &event->super;
        }
    }
}

/* ---- Collecting everything -------------------------------------------------------------- */

lk_status lki_flight_collect_events(lk_flight *flight)
{
    ref      *refs    = NULL;
    uint64_t *reached = NULL;
    size_t    count   = 0;
    lk_status st      = collect_refs(flight, &refs, &count);

    if (st == LK_OK)
        st = LKI_NEW(&flight->events, count + 1, "operations of a flight");
    if (st == LK_OK)
        st = LKI_NEW(&flight->visits, count + 1, "visits of a flight");
    if (st == LK_OK)
        st = LKI_NEW(&reached, flight->world, "ranks of a flight");
    if (st == LK_OK)
        st = make_events(flight, refs, count, reached);
    if (st == LK_OK) {
        settle(flight);
        collect_places(flight);
    }
    lki_free(reached);
    lki_free(refs);
    return st;
}
