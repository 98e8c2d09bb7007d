/* span/missing.c -- reporting an expired deadline: the missing ranks, and their last known
 * operations.
 *
 * All ranks are asked, not only those whose messages are awaited, because a rank whose message is
 * awaited may itself be waiting.  A rank that has not been in the operation is missing.  A rank
 * that does not answer is computing, stopped or lost.  Another rank on its host is then asked for
 * its observation in that host's memory.
 */
#include "comm/span/span.h"

#include <stdio.h>
#include <string.h>

#include "comm/span/task.h"

enum { ANSWER_MS = 500, WITNESS_MS = 2000, SLICE_MS = 10, DETAIL_BYTES = 400 };

typedef enum { IN, BEFORE, SILENT } standing;

/* ---- Asking ------------------------------------------------------------------------------ */

static bool concerns(const lk_request *r, uint32_t rank)
{
    return rank != r->comm->rank && (r->how->move == NULL || rank == r->root);
}

static standing standing_of(const lk_request *r, const lki_wire_op *op, uint32_t rank)
{
    const lki_wire_word *word = lki_wire_word_of(r->comm->self->wire, r->comm->world[rank], op);

    if (word == NULL || word->place == LKI_PLACE_SEEN)
        return SILENT;
    return word->place == LKI_PLACE_BEFORE ? BEFORE : IN;
}

static bool has_silent(const lk_request *r, const lki_wire_op *op)
{
    for (uint32_t rank = 0; rank < r->comm->size; rank++)
        if (concerns(r, rank) && standing_of(r, op, rank) == SILENT)
            return true;
    return false;
}

/* Returns a rank on the host of `rank` that has answered; comm->size if there is none. */
static uint32_t witness_of(const lk_request *r, const lki_wire_op *op, uint32_t rank)
{
    const uint32_t *host_of = r->comm->span->map.host_of;
    uint32_t        mate    = 0;

    while (mate < r->comm->size && (!concerns(r, mate) || standing_of(r, op, mate) == SILENT
                                    || host_of[mate] != host_of[rank]))
        mate++;
    return mate;
}

/* Returns true if a silent rank has a witness (a rank on its host that has answered) whose
 * observation has not arrived. */
static bool has_unseen(const lk_request *r, const lki_wire_op *op)
{
    const lk_comm *comm = r->comm;

    for (uint32_t rank = 0; rank < comm->size; rank++)
        if (concerns(r, rank) && lki_wire_word_of(comm->self->wire, comm->world[rank], op) == NULL
            && witness_of(r, op, rank) < comm->size)
            return true;
    return false;
}

/* Waits until nothing is `lacking`, for at most `ms`.  The request may complete, or the group fail,
 * during the wait. */
static lk_status await_answers(const lk_request *r, const lki_wire_op *op, int64_t ms,
                               bool (*lacking)(const lk_request *, const lki_wire_op *))
{
    lki_wire *wire  = r->comm->self->wire;
    int64_t   until = lki_wire_now_ms(wire) + ms;
    bool      moved;

    while (!r->complete && lacking(r, op) && lki_wire_now_ms(wire) < until) {
        (void)lki_progress(r->comm);
        if (lki_failed(r->comm))
            return lki_group_failure(r->comm);
        if (lki_wire_progress(wire, SLICE_MS, &moved) != LK_OK) {
            lki_span_condemn(r->comm->self);
            return lki_group_failure(r->comm);
        }
    }
    return lki_failed(r->comm) ? lki_group_failure(r->comm) : LK_OK;
}

/* Asks the witness of each silent rank for its observation. */
static void ask_witnesses(const lk_request *r, const lki_wire_op *op)
{
    const lk_comm *comm = r->comm;

    for (uint32_t rank = 0; rank < comm->size; rank++) {
        if (!concerns(r, rank) || standing_of(r, op, rank) != SILENT)
            continue;
        uint32_t mate = witness_of(r, op, rank);
        if (mate < comm->size)
            lki_wire_ask_of(comm->self->wire, comm->world[mate], comm->world[rank], op);
    }
}

static lk_status ask_all(const lk_request *r, const lki_wire_op *op)
{
    for (uint32_t rank = 0; rank < r->comm->size; rank++)
        if (concerns(r, rank))
            lki_wire_ask(r->comm->self->wire, r->comm->world[rank], op);
    LK_TRY(await_answers(r, op, ANSWER_MS, has_silent));
    if (r->complete || !has_silent(r, op))
        return LK_OK;
    ask_witnesses(r, op);
    return await_answers(r, op, WITNESS_MS, has_unseen);
}

/* ---- Seeing ranks of this host ----------------------------------------------------------- */

bool lki_rank_seen(void *self_, uint32_t rank, lki_wire_op *op, char state[LKI_WIRE_STATE_BYTES])
{
    const lki_self  *self  = self_;
    const lki_board *board = self->group->board;
    lki_rank_view    view;

    if (rank < board->first || rank - board->first >= board->seated)
        return false;
    const lki_rank *record  = &board->ranks[rank];
    uint64_t        started = atomic_load(&record->started);
    lki_board_view(board, rank, &view);
    *op = (lki_wire_op){ .seq         = started - (started > 0),
                         .label       = atomic_load(&record->group),
                         .print.what  = started > 0 ? atomic_load(&record->what) : 0,
                         .print.count = atomic_load(&record->count) };
    (void)snprintf(state, LKI_WIRE_STATE_BYTES, "%s%s%s",
                   rank == self->rank ? "" : lki_liveness(self, &view),
                   rank == self->rank ? "" : ", ", view.place);
    return true;
}

/* ---- Reporting --------------------------------------------------------------------------- */

/* Writes the known facts about a rank, such as ", last in barrier #5, alive, at step 3 in data". */
static void known_text(char out[DETAIL_BYTES], const lk_comm *comm, uint32_t rank,
                       const lki_wire_op *op)
{
    uint32_t             world = comm->world[rank];
    const lki_wire_word *word  = lki_wire_word_of(comm->self->wire, world, op);
    lki_wire_op          last  = word != NULL ? word->op : lki_wire_heard(comm->self->wire, world);
    char                 text[LKI_OPERATION_BYTES] = "no operation yet";
    char                 state[LKI_WIRE_STATE_BYTES] = "";

    if (word != NULL)
        (void)snprintf(state, sizeof state, "%s", word->state);
    else
        (void)lki_rank_seen(comm->self, world, &last, state);
    if (last.print.what != 0)
        lki_print_text(text, sizeof text, last.print, last.seq, last.label);
    (void)snprintf(out, DETAIL_BYTES, ", %s %s%s%s",
                   state[0] == '\0' ? "does not answer, last heard of in" : "last in", text,
                   state[0] == '\0' ? "" : ", ", state);
}

/* Lists the ranks in state `wanted`.  Describes as many ranks as fit, and counts the remaining
 * ranks. */
static void list(char *out, size_t bytes, const lk_request *r, const lki_wire_op *op,
                 standing wanted)
{
    const lk_comm *comm = r->comm;
    char           who[LKI_WHO_BYTES], more[DETAIL_BYTES];
    size_t         used = strlen(out);
    uint32_t       rest = 0;

    for (uint32_t rank = 0; rank < comm->size; rank++) {
        if (!concerns(r, rank) || standing_of(r, op, rank) != wanted)
            continue;
        const char *comma = used == 0 ? "" : ", ";
        size_t      least = used + sizeof ", ) and 1234 others";
        lki_board_who(who, comm->board, comm->world[rank], "");
        known_text(more, comm, rank, op);
        who[strlen(who) - 1] = '\0'; /* the closing bracket */
        if (least + strlen(who) + strlen(more) < bytes)
            used += (size_t)snprintf(out + used, bytes - used, "%s%s%s)", comma, who, more);
        else if (least + strlen(who) < bytes)
            used += (size_t)snprintf(out + used, bytes - used, "%s%s)", comma, who);
        else
            rest++;
    }
    if (rest > 0)
        (void)snprintf(out + used, bytes - used, " and %u other%s", rest, rest > 1 ? "s" : "");
}

/* Returns the first missing rank.  If no rank is missing, returns a rank whose messages are
 * awaited. */
static uint32_t culprit_of(const lk_request *r, const lki_wire_op *op, const uint32_t *awaited,
                           uint32_t count)
{
    for (uint32_t rank = 0; rank < r->comm->size; rank++)
        if (concerns(r, rank) && standing_of(r, op, rank) != IN)
            return r->comm->world[rank];
    return count > 0 ? awaited[0] : r->comm->self->rank;
}

static lk_status fail(const lk_request *r, const lki_wire_op *op, int64_t waited_ms)
{
    const lk_comm *comm = r->comm;
    char           mine[LKI_OPERATION_BYTES], missing[LKI_MESSAGE_BYTES] = "", text[40];
    uint32_t       awaited[1], count = 0;

    if (lki_span_task(r) != NULL)
        count = lki_task_missing(lki_span_task(r), awaited, 1);
    lki_request_text(mine, r);
    int    head = snprintf(NULL, 0, "rank %u in %s: waited %lld ms for " LKI_RAISE_TIMEOUT,
                           comm->self->rank, mine, (long long)waited_ms);
    size_t room = sizeof missing - (size_t)head;
    list(missing, room, r, op, BEFORE);
    list(missing, room, r, op, SILENT);
    if (missing[0] == '\0' && count > 0)
        (void)snprintf(text, sizeof text, "rank %u, which is in it, too", awaited[0]);
    else
        (void)snprintf(text, sizeof text, r->native != NULL ? "MPI's own collective"
                                                            : "others, who are all in it, too");
    return lki_fail_group(r->comm, culprit_of(r, op, awaited, count), LK_ETIMEOUT,
                          "rank %u in %s: waited %lld ms for %s" LKI_RAISE_TIMEOUT,
                          comm->self->rank, mine, (long long)waited_ms,
                          missing[0] != '\0' ? missing : text);
}

lk_status lki_span_timeout(lk_request *r, int64_t waited_ms)
{
    lki_wire_op op = lki_span_name(r);

    LK_TRY(ask_all(r, &op));
    return r->complete ? LK_OK : fail(r, &op, waited_ms);
}
