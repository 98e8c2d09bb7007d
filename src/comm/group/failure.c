/* failure.c -- how a group fails: once, for one reason, on every rank.
 *
 * A rank that detects a failure writes it to its own record, which has no other writer.  The rank
 * then tries to set `failed` to the number of its record.  The first rank succeeds, and all ranks
 * return the failure in its record.  If a rank dies while it writes its record, `failed` does not
 * refer to that record, so no reader sees an incomplete message.
 *
 * The texts contain only data that is known without the help of the failed rank.  This data is the
 * process, its state in the kernel, and the rank's step, phase and last started operation.
 */
#include "comm/flight.h"
#include "comm/group/slot.h"
#include "comm/group/span.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Recording a failure ----------------------------------------------------------------- */

/* Writes which rank gave up, and where, before the rank's own text.  Returns the bytes written. */
static uint32_t write_lead(char out[LKI_LEAD_BYTES], const lki_board *board, uint32_t record)
{
    lki_rank_view view;
    char          who[LKI_WHO_BYTES];

    lki_board_view(board, record, &view);
    lki_board_who(who, board, record, "");
    return (uint32_t)snprintf(out, LKI_LEAD_BYTES, "%s gave up %s: ", who, view.place);
}

void lki_board_condemn(lki_board *board, uint32_t record, uint32_t culprit, lk_status status,
                       lk_status verdict, const char *message)
{
    lki_rank    *writer = &board->ranks[record];
    lki_failure *f      = &writer->failure;

    if (atomic_load(&writer->erred) == 0) {
        f->culprit = culprit;
        f->status  = status;
        f->verdict = verdict;
        f->own     = status == verdict ? 0 : write_lead(f->text, board, record);
        (void)snprintf(f->text + f->own, sizeof f->text - f->own, "%s", message);
        lki_board_name_hosts(f->text, board);
        atomic_store_explicit(&writer->erred, 1, memory_order_release);
    }
    uint32_t none = 0;
    (void)atomic_compare_exchange_strong(&board->failed, &none, record + 1);
    lki_wake_all(board);
}

const lki_failure *lki_board_failure(const lki_board *board)
{
    uint32_t failed = atomic_load_explicit(&board->failed, memory_order_acquire);

    LK_ASSERT(failed <= board->size + 1);
    return failed == 0 ? NULL : &board->ranks[failed - 1].failure;
}

bool lk_comm_has_lost(const lk_comm *comm)
{
    const lki_failure *f = lki_board_failure(comm->board);

    return f != NULL && f->status == f->verdict
           && (f->status == LK_EPEER || f->status == LK_ETIMEOUT);
}

void lki_failure_spread(const lk_comm *comm)
{
    lki_self *self = comm->self;

    if (self->wire != NULL)
        self->span_ops->tell(comm);
    if (comm->board->size == comm->board->seated || self->told || self->socket < 0)
        return;
    self->told = true;
    lki_launcher_nudge(self->socket);
}

bool lki_comm_has_failed(const lk_comm *comm)
{
    return lki_failed(comm);
}

uint32_t lki_comm_culprit(const lk_comm *failed)
{
    const lki_failure *f = lki_board_failure(failed->board);

    LK_ASSERT(f != NULL);
    return f->culprit;
}

lk_status lki_group_failure(const lk_comm *comm)
{
    const lki_failure *f = lki_board_failure(comm->board);

    LK_ASSERT(f != NULL);
    lki_failure_spread(comm);
    if (comm->self->flight != NULL)
        lki_flight_failed(comm->self->flight, f->verdict, f->text);
    return lk_fail(f->verdict, "%s", f->text);
}

lk_status lki_fail_group(lk_comm *comm, uint32_t culprit, lk_status verdict, const char *format,
                         ...)
{
    char    message[LKI_MESSAGE_BYTES];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args);
    va_end(args);
    lki_board_condemn(comm->board, comm->self->rank, culprit, verdict, verdict, message);
    return lki_group_failure(comm);
}

/* ---- The reasons ------------------------------------------------------------------------- */

lk_status lki_fail_peer_gone(lk_comm *comm, uint32_t rank)
{
    lki_rank_view view;
    char          who[LKI_WHO_BYTES];
    lki_board_view(comm->board, rank, &view);
    lki_board_who(who, comm->board, rank, "");
    return lki_fail_group(comm, rank, LK_EPEER,
                          "%.120s is gone: its process ended without leaving the group, %s, last "
                          "in %s", who, view.place, view.operation);
}

lk_status lki_fail_peer_left(lk_comm *comm, uint32_t rank)
{
    lki_rank_view view;
    char          who[LKI_WHO_BYTES];
    lki_board_view(comm->board, rank, &view);
    lki_board_who(who, comm->board, rank, "");
    return lki_fail_group(comm, rank, LK_EPEER,
                          "%.120s left the group %s after %s, but rank %u still needs it; every "
                          "rank must issue the same operations", who, view.place, view.operation,
                          comm->self->rank);
}

/* Returns the kernel's state letter of a process, or 0 if the process does not exist. */
static char process_state(int32_t pid)
{
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    size_t read = fread(line, 1, sizeof line - 1, file);
    (void)fclose(file);
    line[read]        = '\0';
    const char *paren = strrchr(line, ')'); /* the last one, because the name of the process before
                                             * it may contain any character */
    return paren != NULL && paren[1] == ' ' ? paren[2] : '\0';
}

bool lki_waits_for_stopped(const lk_comm *comm, lki_goal goal)
{
    for (uint32_t rank = goal.first; rank < goal.end && !comm->self->group->threads; rank++) {
        lki_rank_view view;
        if (lki_counter(comm, rank, goal.offset) >= goal.target)
            continue;
        lki_board_view(comm->board, comm->world[rank], &view);
        char state = process_state(view.pid);
        if (state == 'T' || state == 't')
            return true;
    }
    return false;
}

const char *lki_liveness(const lki_self *self, const lki_rank_view *view)
{
    if (view->state == LKI_RANK_ABSENT && view->pid == 0)
        return "never joined";
    if (view->state == LKI_RANK_DEAD)
        return "dead";
    if (view->state == LKI_RANK_LEFT)
        return "has left";
    if (self->group->threads)
        return "a thread of this process";
    switch (process_state(view->pid)) {
    case 'T':
    case 't': return "stopped";
    case 'Z':
    case 'X':
    case '\0': return "gone";
    default: return "alive";
    }
}

/* Removes the name of the group from the text of an operation if the text is longer than `room`. */
static void leave_out_group(char *operation, size_t room)
{
    char *group = strstr(operation, " in a group of ");
    if (group != NULL && strlen(operation) > room)
        *group = '\0';
}

lk_status lki_fail_timeout(lk_comm *comm, lki_goal goal, int64_t waited_ms)
{
    char          missing[376] = "", who[LKI_WHO_BYTES], more[160];
    size_t        used  = 0;
    uint32_t      first = comm->self->rank;
    lki_rank_view mine, view;

    for (uint32_t i = goal.first; i < goal.end; i++) {
        uint32_t rank = comm->world[i];
        if (lki_counter(comm, i, goal.offset) >= goal.target)
            continue;
        first = used == 0 ? rank : first;
        if (used > sizeof missing - 240) { /* no room for a further rank */
            snprintf(missing + used, sizeof missing - used, " and others");
            break;
        }
        lki_board_view(comm->board, rank, &view);
        leave_out_group(view.operation, 50);
        (void)snprintf(more, sizeof more, ", %s, last in %.50s, %.50s",
                       lki_liveness(comm->self, &view), view.operation, view.place);
        lki_board_who(who, comm->board, rank, more);
        used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%.230s",
                                 used == 0 ? "" : ", ", who);
    }
    lki_board_view(comm->board, comm->self->rank, &mine);
    leave_out_group(mine.operation, 60);
    return lki_fail_group(comm, first, LK_ETIMEOUT,
                          "rank %u in %.60s: waited %lld ms for %s" LKI_RAISE_TIMEOUT,
                          comm->self->rank, mine.operation, (long long)waited_ms, missing);
}

lk_status lki_fail_mismatch(lk_comm *comm, const lki_op *op, uint32_t rank)
{
    const lki_slot *slot  = &lki_seat_of(comm, rank)->slots[lki_op_index(op)];
    lki_print       other = {
        .what  = atomic_load_explicit(&slot->what, memory_order_relaxed),
        .count = atomic_load_explicit(&slot->count, memory_order_relaxed),
        .hash  = 0,
    };
    char texts[2][LKI_OPERATION_BYTES];
    bool lower = comm->rank < rank; /* so that both ranks report the two operations in one order */

    lki_print_text(texts[lower ? 0 : 1], sizeof texts[0], op->print, op->seq, comm->group);
    lki_print_text(texts[lower ? 1 : 0], sizeof texts[0], other, op->seq, comm->group);
    return lki_fail_group(comm, comm->world[rank], LK_EMISMATCH,
                          "rank %u is in %s; rank %u is in %s%s",
                          comm->world[lower ? comm->rank : rank], texts[0],
                          comm->world[lower ? rank : comm->rank], texts[1],
                          strcmp(texts[0], texts[1]) == 0
                              ? ", but their slices, leaves, names, counts or factors differ" : "");
}
