/* control.c -- the launcher's side of a group.  It creates the control memory, holds descriptors
 * and passes them on, and reports deaths and stop requests to the ranks.
 *
 * A control always belongs to the newest epoch; see rebuild.c.
 */
#include "launch/control/control.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "launch/control/inside.h"

/* ---- Lifetime ---------------------------------------------------------------------------- */

lk_status lki_control_board_create(lki_control *control, const bool *out, uint32_t members)
{
    LK_TRY(lki_board_create(&control->board, &control->fd, control->roster, out, members));
    control->bytes       = control->board->bytes;
    control->arenas      = NULL;
    control->arena_count = control->arena_capacity = 0;
    return LK_OK;
}

void lki_control_board_close(lki_control *control)
{
    for (size_t i = 0; i < control->arena_count; i++)
        (void)close(control->arenas[i]);
    if (control->board != NULL)
        (void)munmap(control->board, control->bytes);
    if (control->fd >= 0)
        (void)close(control->fd);
    lki_free(control->arenas);
}

static lk_status open_parts(lki_control *control)
{
    uint32_t count = control->roster.count;

    LK_TRY(LKI_NEW(&control->sockets, count, "sockets to the workers"));
    for (uint32_t i = 0; i < count; i++)
        control->sockets[i] = -1;
    LK_TRY(LKI_NEW(&control->asked, count, "what workers ask for"));
    LK_TRY(LKI_NEW(&control->enters, count, "who enters"));
    LK_TRY(LKI_NEW(&control->numbers, count, "what workers have asked for"));
    return lki_control_board_create(control, NULL, count);
}

lk_status lki_control_create(lki_control **out, lki_roster roster)
{
    lki_control *control;

    *out = NULL;
    if (!lki_roster_valid(roster))
        return lk_fail(LK_EINVAL, "a group of %u ranks, %u of them here from rank %u on: from 1 to "
                       "%d are possible", roster.world, roster.count, roster.first,
                       LKI_RANKS_MAX);
    LK_TRY(LKI_NEW(&control, 1, "control of a group"));
    control->fd     = -1;
    control->roster = roster;
    lk_status st    = open_parts(control);
    if (st == LK_OK)
        *out = control;
    else
        lki_control_free(control);
    return st;
}

void lki_control_free(lki_control *control)
{
    if (control == NULL)
        return;
    lki_control_board_close(control);
    for (uint32_t i = 0; control->sockets != NULL && i < control->roster.count; i++)
        if (control->sockets[i] >= 0)
            (void)close(control->sockets[i]);
    lki_free(control->asked);
    lki_free(control->enters);
    lki_free(control->numbers);
    lki_free(control->sockets);
    lki_free(control);
}

int lki_control_fd(const lki_control *control)
{
    return control->fd;
}

const char *lki_remedy(int number)
{
    switch (number) {
    case EMFILE:
    case ENFILE:
        return "; ulimit -n allows how many descriptors there are, and a worker needs four";
    case ENOSYS:
        return "; Linux 5.3 or newer is needed";
    default:
        return "";
    }
}

lk_status lki_control_socket(lki_control *control, uint32_t rank, int *worker_end,
                             int *launcher_end)
{
    int ends[2];

    LK_ASSERT(*lki_control_socket_of(control, rank) < 0);
    *worker_end = *launcher_end = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return lk_fail(LK_EIO, "a socket for rank %u: %s%s", rank, strerror(errno),
                       lki_remedy(errno));
    *lki_control_socket_of(control, rank) = *launcher_end = ends[0];
    *worker_end                               = ends[1];
    return LK_OK;
}

void lki_control_adopt(lki_control *control, uint32_t rank, int launcher_end)
{
    int *socket = lki_control_socket_of(control, rank);

    if (*socket >= 0)
        (void)close(*socket);
    *socket = launcher_end;
}

void lki_control_started(lki_control *control, uint32_t rank, int32_t pid)
{
    LK_ASSERT(rank < control->roster.world);
    atomic_store(&control->board->ranks[rank].pid, pid);
}

/* ---- While it runs ----------------------------------------------------------------------- */

/* Passes an arena's descriptor `fd` on to the other ranks of this host.  An unreachable rank is not
 * an error here, because its end is reported separately. */
static void pass_on(const lki_control *control, uint32_t from, lki_packet *packet, int fd)
{
    lki_roster here = control->roster;

    for (uint32_t rank = here.first; rank < here.first + here.count; rank++)
        if (rank != from && *lki_control_socket_of(control, rank) >= 0
            && (packet->arena.members[rank / 64] >> rank % 64 & 1) != 0)
            (void)(lki_packet_send(*lki_control_socket_of(control, rank), packet, fd) == LK_OK);
}

static lk_status take_arena(lki_control *control, uint32_t from, lki_packet *packet, int fd)
{
    void     *arenas = control->arenas;
    lk_status st     = lki_reserve(&arenas, &control->arena_capacity, control->arena_count,
                                   sizeof *control->arenas, "descriptors of arenas");
    if (st != LK_OK) {
        (void)close(fd);
        return st;
    }
    control->arenas                         = arenas;
    control->arenas[control->arena_count++] = fd;
    pass_on(control, from, packet, fd);
    return LK_OK;
}

void lki_control_notes_to(lki_control *control, void (*tell)(void *context, const char *text),
                          void *context)
{
    control->tell    = tell;
    control->context = context;
}

static void take_note(const lki_control *control, uint32_t rank, const char *note)
{
    char who[LKI_WHO_BYTES], text[LKI_WHO_BYTES + LKI_MESSAGE_BYTES];

    if (control->tell == NULL)
        return;
    lki_board_who(who, control->board, rank, "");
    (void)snprintf(text, sizeof text, "%s %s", who, note);
    control->tell(control->context, text);
}

static lk_status take(lki_control *control, uint32_t rank, lki_packet *packet, int fd)
{
    if (packet->kind == LKI_PACKET_NOTE)
        take_note(control, rank, packet->note);
    if (packet->kind == LKI_PACKET_ASK)
        lki_control_take_ask(control, rank, &packet->ask);
    if (packet->kind == LKI_PACKET_ARENA)
        return take_arena(control, rank, packet, fd);
    if (fd >= 0) /* a packet with a descriptor is an answer, which only a launcher may send */
        (void)close(fd);
    return LK_OK;
}

/* Handles the packets in a rank's socket.  A packet stays in the socket until it has been handled
 * and recorded, so that the next coordinator can handle it again. */
lk_status lki_control_serve(lki_control *control, uint32_t rank, bool *open)
{
    lki_packet packet;
    int        fd, *socket = lki_control_socket_of(control, rank);

    LK_ASSERT(*socket >= 0);
    lk_status st = lki_packet_look(*socket, &packet, &fd, open);
    if (!*open) {
        (void)close(*socket);
        *socket = -1;
    }
    if (st == LK_OK)
        st = take(control, rank, &packet, fd);
    if (st == LK_OK && packet.kind != LKI_PACKET_NONE && control->journal.commit != NULL)
        control->journal.commit(control->journal.context);
    if (*open && (st != LK_OK || packet.kind != LKI_PACKET_NONE))
        lki_packet_drop(*socket);
    return st;
}

void lki_control_journal_to(lki_control *control, const lki_control_journal *journal)
{
    control->journal = *journal;
}

bool lki_control_ended(lki_control *control, uint32_t rank, int exit_code, int signal)
{
    LK_ASSERT(rank < control->roster.world);
    if (control->board->ranks[rank].seat == 0)
        lki_control_set_entering(control, rank, false);
    return lki_board_ended(control->board, rank, exit_code, signal);
}

void lki_control_lose(lki_control *control, uint32_t rank, const char *how)
{
    lki_rank *record = &control->board->ranks[rank];
    uint64_t  epoch  = control->board->job.epoch;

    LK_ASSERT(rank < control->roster.world);
    if (record->member == 0 || atomic_load(&record->lost) == 1 + epoch)
        return;
    (void)snprintf(record->loss, sizeof record->loss, "%s", how);
    atomic_store(&record->lost, 1 + epoch);
}

void lki_control_loss(const lki_control *control, uint32_t rank, char out[LKI_LOSS_BYTES])
{
    const lki_rank *record = &control->board->ranks[rank];

    LK_ASSERT(rank < control->roster.world);
    bool lost = atomic_load(&record->lost) == 1 + control->board->job.epoch;
    (void)snprintf(out, LKI_LOSS_BYTES, "%s", lost ? record->loss : "");
}

bool lki_control_vanished(lki_control *control, uint32_t rank)
{
    lki_board    *board = control->board;
    lki_rank_view view;
    char          who[LKI_WHO_BYTES], message[LKI_MESSAGE_BYTES];

    lki_board_view(board, rank, &view);
    if (view.state == LKI_RANK_LEFT)
        return lki_control_ended(control, rank, 0, 0);
    lki_board_who(who, board, rank, "");
    atomic_store(&board->ranks[rank].state, LKI_RANK_DEAD);
    int used = snprintf(message, sizeof message, "%s is gone: its process ended without "
                        "leaving the group, %s", who, view.place);
    if (view.status != LK_OK)
        snprintf(message + used, sizeof message - (size_t)used, ": %s", view.message);
    lki_board_condemn(board, board->size, rank, LK_EPEER, LK_EPEER, message);
    return true;
}

void lki_control_request_stop(lki_control *control)
{
    atomic_store(&control->board->stop, 1);
}

void lki_control_request_leave(lki_control *control)
{
    atomic_store(&control->board->leaving, 1);
}

bool lki_control_stop_heeded(const lki_control *control)
{
    return atomic_load(&control->board->heeded) != 0;
}

void lki_control_view(const lki_control *control, uint32_t rank, lki_rank_view *out)
{
    LK_ASSERT(rank < control->roster.world);
    lki_board_view(control->board, rank, out);
}

const lki_failure *lki_control_failure(const lki_control *control)
{
    return lki_board_failure(control->board);
}

void lki_control_who(const lki_control *control, uint32_t rank, char out[LKI_WHO_BYTES])
{
    LK_ASSERT(rank < control->roster.world);
    lki_board_who(out, control->board, rank, "");
}

/* ---- One host of several ----------------------------------------------------------------- */

void lki_control_set_job(lki_control *control, const lki_job_facts *facts)
{
    control->board->job = *facts;
}

void lki_control_name_host(lki_control *control, uint32_t node, uint32_t first, uint32_t count,
                           const char *host)
{
    LK_ASSERT(first + count <= control->roster.world);
    for (uint32_t rank = first; rank < first + count; rank++) {
        lki_rank *record = &control->board->ranks[rank];
        record->node     = node;
        (void)snprintf(record->host, sizeof record->host, "%s", host);
    }
}

void lki_control_leave_out(lki_control *control, uint32_t first, uint32_t count)
{
    LK_ASSERT(first + count <= control->roster.first
              || first >= control->roster.first + control->roster.count);
    for (uint32_t rank = first; rank < first + count; rank++)
        control->board->ranks[rank].member = 0;
}

bool lki_control_address(const lki_control *control, uint32_t rank, char out[LKI_ADDRESS_BYTES])
{
    LK_ASSERT(rank < control->roster.world);
    const lki_rank *record = &control->board->ranks[rank];
    if (atomic_load_explicit(&record->reachable, memory_order_acquire) == 0)
        return false;
    memcpy(out, record->address, LKI_ADDRESS_BYTES);
    out[LKI_ADDRESS_BYTES - 1] = '\0';
    return true;
}

void lki_control_introduce(lki_control *control, uint32_t rank, int32_t pid, const char *address)
{
    LK_ASSERT(rank - control->roster.first >= control->roster.count);
    lki_rank *record = &control->board->ranks[rank];
    atomic_store(&record->pid, pid);
    atomic_store(&record->state, LKI_RANK_RUNNING);
    (void)snprintf(record->address, sizeof record->address, "%s", address);
    atomic_store_explicit(&record->reachable, 1, memory_order_release);
}

void lki_control_introduced(lki_control *control)
{
    lki_wake_all(control->board);
}

void lki_control_ended_there(lki_control *control, uint32_t rank, int exit_code, int signal)
{
    LK_ASSERT(rank - control->roster.first >= control->roster.count);
    lki_rank *record = &control->board->ranks[rank];
    bool      left   = exit_code == 0 && signal == 0;
    atomic_store(&record->exit_code, exit_code);
    atomic_store(&record->signal, signal);
    atomic_store(&record->state, left ? LKI_RANK_LEFT : LKI_RANK_DEAD);
}

void lki_control_condemn(lki_control *control, uint32_t culprit, lk_status status,
                         const char *message)
{
    lki_board *board = control->board;
    LK_ASSERT(culprit < board->size);
    lki_board_condemn(board, board->size, culprit, status, status, message);
}
