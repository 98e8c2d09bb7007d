/* control.c -- the launcher's side: create the control memory, keep and pass on descriptors,
 * tell the ranks about deaths and about the wish to stop.
 *
 * When a group has failed it is not mended: those of its ranks who ask for it get a new control
 * memory, that of the next epoch, in which only they have seats (comm/rebuild.c).  A control is
 * that of the newest.
 */
#include "comm/control.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/group.h"

struct lki_control {
    lki_board *board;
    size_t     bytes; /* of it */
    int        fd;
    lki_roster roster;
    int       *sockets; /* of the ranks of this host */
    lki_ask   *asked;   /* what they have asked for: timeout_ms 0 = nothing */
    bool      *enters;  /* whether they wait to enter */
    int       *arenas;
    size_t     arena_count, arena_capacity;
    void     (*tell)(void *context, const char *text); /* NULL: nobody listens */
    void      *context;
};

static int *socket_of(const lki_control *control, uint32_t rank)
{
    LK_ASSERT(rank - control->roster.first < control->roster.count);
    return &control->sockets[rank - control->roster.first];
}

/* ---- Life -------------------------------------------------------------------------------- */

/* What stands in the control is replaced when all has gone well.  `out`: as lki_board_init(). */
static lk_status board_create(lki_control *control, const bool *out, uint32_t members)
{
    size_t bytes = lki_board_bytes(control->roster, members);
    int    fd    = memfd_create("lockstep-control", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return lk_fail(LK_EIO, "cannot create the control memory: %s", strerror(errno));
    int   error  = posix_fallocate(fd, 0, (off_t)bytes);
    void *memory = MAP_FAILED;
    if (error == 0) {
        (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        error  = memory == MAP_FAILED ? errno : 0;
    }
    if (error != 0) {
        (void)close(fd);
        return lk_fail(LK_ENOMEM, "control memory of %u ranks, %zu bytes: %s%s",
                       control->roster.world, bytes, strerror(error), lki_memory_hint(error));
    }
    lki_board_init(memory, control->roster, out);
    control->board       = memory;
    control->bytes       = bytes;
    control->fd          = fd;
    control->arenas      = NULL;
    control->arena_count = control->arena_capacity = 0;
    return LK_OK;
}

/* All that belongs to one epoch. */
static void board_close(lki_control *control)
{
    for (size_t i = 0; i < control->arena_count; i++)
        (void)close(control->arenas[i]);
    if (control->board != NULL)
        (void)munmap(control->board, control->bytes);
    if (control->fd >= 0)
        (void)close(control->fd);
    lki_free(control->arenas);
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
    lk_status st    = LKI_NEW(&control->sockets, roster.count, "sockets to the workers");
    if (st != LK_OK)
        goto fail;
    for (uint32_t i = 0; i < roster.count; i++)
        control->sockets[i] = -1;
    st = LKI_NEW(&control->asked, roster.count, "what workers ask for");
    if (st == LK_OK)
        st = LKI_NEW(&control->enters, roster.count, "who enters");
    if (st == LK_OK)
        st = board_create(control, NULL, roster.count);
    if (st != LK_OK)
        goto fail;
    *out = control;
    return LK_OK;

fail:
    lki_control_free(control);
    return st;
}

void lki_control_free(lki_control *control)
{
    if (control == NULL)
        return;
    board_close(control);
    for (uint32_t i = 0; control->sockets != NULL && i < control->roster.count; i++)
        if (control->sockets[i] >= 0)
            (void)close(control->sockets[i]);
    lki_free(control->asked);
    lki_free(control->enters);
    lki_free(control->sockets);
    lki_free(control);
}

int lki_control_fd(const lki_control *control)
{
    return control->fd;
}

lk_status lki_control_socket(lki_control *control, uint32_t rank, int *worker_end,
                             int *launcher_end)
{
    int ends[2];

    LK_ASSERT(*socket_of(control, rank) < 0);
    *worker_end = *launcher_end = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return lk_fail(LK_EIO, "a socket for rank %u: %s", rank, strerror(errno));
    *socket_of(control, rank) = *launcher_end = ends[0];
    *worker_end                               = ends[1];
    return LK_OK;
}

void lki_control_adopt(lki_control *control, uint32_t rank, int launcher_end)
{
    LK_ASSERT(*socket_of(control, rank) < 0);
    *socket_of(control, rank) = launcher_end;
}

void lki_control_started(lki_control *control, uint32_t rank, int32_t pid)
{
    LK_ASSERT(rank < control->roster.world);
    atomic_store(&control->board->ranks[rank].pid, pid);
}

/* ---- The group made anew ----------------------------------------------------------------- */

static bool has_ended(const lki_control *control, uint32_t rank)
{
    lki_rank_state state = atomic_load(&control->board->ranks[rank].state);
    return state == LKI_RANK_LEFT || state == LKI_RANK_DEAD;
}

/* Asks, and lives. */
static bool asks(const lki_control *control, uint32_t rank)
{
    return control->asked[rank - control->roster.first].timeout_ms != 0
           && !has_ended(control, rank);
}

bool lki_control_is_member(const lki_control *control, uint32_t rank)
{
    LK_ASSERT(rank < control->roster.world);
    return control->board->ranks[rank].member != 0;
}

uint32_t lki_control_asked(const lki_control *control, uint32_t *timeout_ms)
{
    uint32_t count = 0;

    *timeout_ms = UINT32_MAX;
    for (uint32_t i = 0; i < control->roster.count; i++) {
        uint32_t ms = control->asked[i].timeout_ms;
        if (!asks(control, control->roster.first + i))
            continue;
        *timeout_ms = ms < *timeout_ms ? ms : *timeout_ms;
        count++;
    }
    return count;
}

bool lki_control_is_missing(const lki_control *control, uint32_t rank)
{
    return lki_control_is_member(control, rank) && !asks(control, rank)
           && !has_ended(control, rank)
           && atomic_load(&lki_board_seat(control->board, rank)->left) == 0;
}

bool lki_control_all_joined(const lki_control *control)
{
    lki_board *board  = control->board;
    bool       joined = true;

    for (uint32_t i = 0; i < board->seated && board->job.epoch == 0; i++)
        joined = joined && atomic_load(&lki_board_seat(board, board->first + i)->joined) != 0;
    return joined;
}

/* Of a rank that cannot be reached the end is reported by itself. */
static void answer(const lki_control *control, uint32_t rank, lk_status status, const char *why)
{
    int        socket = *socket_of(control, rank);
    lki_packet packet = { .kind = LKI_PACKET_ANSWER };

    packet.answer.epoch  = control->board->job.epoch;
    packet.answer.status = status;
    (void)snprintf(packet.answer.why, sizeof packet.answer.why, "%s", why);
    if (socket >= 0)
        (void)(lki_packet_send(socket, &packet, status == LK_OK ? control->fd : -1) == LK_OK);
}

/* Whether anybody waits to enter stands where the ranks of the group look. */
static void set_entering(lki_control *control, uint32_t rank, bool enters)
{
    uint32_t count = 0;

    control->enters[rank - control->roster.first] = enters;
    for (uint32_t i = 0; i < control->roster.count; i++)
        count += control->enters[i];
    atomic_store(&control->board->awaited, count);
}

static void take_ask(lki_control *control, uint32_t rank, const lki_ask *ask)
{
    uint64_t epoch = control->board->job.epoch;
    char     why[LKI_MESSAGE_BYTES];

    if (ask->epoch == LKI_NO_EPOCH && !lki_control_is_member(control, rank)) {
        set_entering(control, rank, true);
        return;
    }
    if (ask->epoch == epoch && lki_control_is_member(control, rank)) {
        control->asked[rank - control->roster.first] = *ask;
        return;
    }
    (void)snprintf(why, sizeof why, "rank %u asks for the group after epoch %llu, which is over: "
                   "it is in epoch %llu, %s rank %u", rank, (unsigned long long)ask->epoch,
                   (unsigned long long)epoch,
                   lki_control_is_member(control, rank) ? "with" : "without", rank);
    answer(control, rank, LK_EINVAL, why);
}

static void answer_all(lki_control *control, lk_status status, const char *why)
{
    for (uint32_t i = 0; i < control->roster.count; i++) {
        uint32_t rank  = control->roster.first + i;
        bool     let_in = control->enters[i] && lki_control_is_member(control, rank);
        if (control->asked[i].timeout_ms != 0 || let_in)
            answer(control, rank, status, why);
        control->asked[i]  = (lki_ask){ 0 };
        set_entering(control, rank, control->enters[i] && !let_in);
    }
}

void lki_control_refuse(lki_control *control, lk_status status, const char *why)
{
    LK_ASSERT(status != LK_OK);
    answer_all(control, status, why);
}

/* What stays known of a rank from one epoch to the next. */
static void carry_over(lki_rank *to, const lki_rank *from)
{
    bool member = to->member != 0;

    atomic_store(&to->state, member ? (uint32_t)LKI_RANK_RUNNING : atomic_load(&from->state));
    atomic_store(&to->pid, atomic_load(&from->pid));
    atomic_store(&to->exit_code, atomic_load(&from->exit_code));
    atomic_store(&to->signal, atomic_load(&from->signal));
    lki_board_carry_place(to, from);
    memcpy(to->host, from->host, sizeof to->host);
    to->node = from->node;
}

lki_members lki_control_askers(const lki_control *control)
{
    lki_members members = { { 0 } };

    for (uint32_t i = 0; i < control->roster.count; i++)
        if (asks(control, control->roster.first + i))
            lki_members_add(&members, control->roster.first + i);
    return members;
}

lki_members lki_control_entrants(const lki_control *control)
{
    lki_members members = { { 0 } };
    bool        admits  = true;

    for (uint32_t i = 0; i < control->roster.count; i++)
        admits = admits && (!asks(control, control->roster.first + i) || control->asked[i].admits);
    for (uint32_t i = 0; admits && i < control->roster.count; i++)
        if (control->enters[i])
            lki_members_add(&members, control->roster.first + i);
    return members;
}

void lki_control_revive(lki_control *control, uint32_t rank)
{
    lki_rank *record = &control->board->ranks[rank];
    int      *socket = socket_of(control, rank);

    LK_ASSERT(!lki_control_is_member(control, rank) && has_ended(control, rank));
    if (*socket >= 0) /* something that the process has left behind holds the other end */
        (void)close(*socket);
    *socket = -1;
    atomic_store(&record->state, LKI_RANK_ABSENT);
    atomic_store(&record->exit_code, 0);
    atomic_store(&record->signal, 0);
    atomic_store(&record->noted, 0);
    atomic_store(&record->step, 0);
}

uint64_t lki_control_epoch(const lki_control *control)
{
    return control->board->job.epoch;
}

/* On several hosts a rank may have died after its host had said that it goes on. */
static void bury_the_dead(lki_control *control, const lki_board *old)
{
    for (uint32_t i = 0; i < control->roster.count; i++) {
        uint32_t        rank   = control->roster.first + i;
        const lki_rank *record = &old->ranks[rank];
        lki_rank_state  state  = atomic_load(&record->state);
        if (lki_control_is_member(control, rank) && (state == LKI_RANK_LEFT
                                                     || state == LKI_RANK_DEAD))
            (void)lki_control_ended(control, rank, atomic_load(&record->exit_code),
                                    atomic_load(&record->signal));
    }
}

/* Seats follow those of the group before, and who enters is last: so rank 0 stays who it is. */
static void deal_seats(lki_board *board, const lki_board *old)
{
    uint32_t seats = 0;

    for (uint32_t seat = 1; seat <= old->members; seat++)
        for (uint32_t i = 0; i < old->seated; i++)
            if (old->ranks[old->first + i].seat == seat && board->ranks[old->first + i].member != 0)
                board->ranks[old->first + i].seat = ++seats;
    for (uint32_t i = 0; i < old->seated; i++) {
        lki_rank *record = &board->ranks[old->first + i];
        record->fresh    = record->member != 0 && old->ranks[old->first + i].member == 0;
        if (record->fresh != 0)
            record->seat = ++seats;
    }
    LK_ASSERT(seats == board->members);
}

lk_status lki_control_rebuild(lki_control *control, const lki_members *members)
{
    bool        out[LKI_RANKS_MAX];
    uint32_t    seats = 0;
    lki_control old   = *control;

    for (uint32_t rank = 0; rank < old.roster.world; rank++) {
        out[rank] = !lki_members_have(members, rank);
        seats += !out[rank] && rank - old.roster.first < old.roster.count;
    }
    lk_status st = seats > 0 ? board_create(control, out, seats)
                             : lk_fail(LK_EINVAL, "no rank asks for the group");
    if (st != LK_OK) {
        answer_all(control, st, lk_error_last()->message);
        return st;
    }
    deal_seats(control->board, old.board);
    control->board->job = old.board->job;
    control->board->job.epoch++;
    atomic_store(&control->board->stop, atomic_load(&old.board->stop));
    atomic_store(&control->board->heeded, atomic_load(&old.board->heeded));
    for (uint32_t rank = 0; rank < old.roster.world; rank++)
        carry_over(&control->board->ranks[rank], &old.board->ranks[rank]);
    bury_the_dead(control, old.board);
    board_close(&old);
    answer_all(control, LK_OK, "");
    return LK_OK;
}

/* ---- While it runs ----------------------------------------------------------------------- */

/* A rank that cannot be reached is not an error here: its end is reported by itself. */
static void pass_on(const lki_control *control, uint32_t from, lki_packet *packet, int fd)
{
    lki_roster here = control->roster;

    for (uint32_t rank = here.first; rank < here.first + here.count; rank++)
        if (rank != from && *socket_of(control, rank) >= 0
            && (packet->arena.members[rank / 64] >> rank % 64 & 1) != 0)
            (void)(lki_packet_send(*socket_of(control, rank), packet, fd) == LK_OK);
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

lk_status lki_control_serve(lki_control *control, uint32_t rank, bool *open)
{
    lki_packet packet;
    int        fd, *socket = socket_of(control, rank);

    LK_ASSERT(*socket >= 0);
    LK_TRY(lki_packet_receive(*socket, &packet, &fd, open));
    if (!*open) {
        (void)close(*socket);
        *socket = -1;
    }
    if (packet.kind == LKI_PACKET_NOTE)
        take_note(control, rank, packet.note);
    if (packet.kind == LKI_PACKET_ASK)
        take_ask(control, rank, &packet.ask);
    if (packet.kind == LKI_PACKET_ARENA)
        return take_arena(control, rank, &packet, fd);
    if (fd >= 0) /* an answer, which is ours to give */
        (void)close(fd);
    return LK_OK;
}

static void how_it_ended(char *out, size_t bytes, int exit_code, int signal)
{
    const char *name = signal == 0 ? NULL : sigabbrev_np(signal);
    if (signal == 0)
        snprintf(out, bytes, "exited with status %d", exit_code);
    else if (name == NULL)
        snprintf(out, bytes, "was killed by signal %d", signal);
    else
        snprintf(out, bytes, "was killed by SIG%s", name);
}

bool lki_control_ended(lki_control *control, uint32_t rank, int exit_code, int signal)
{
    lki_board *board  = control->board;
    lki_rank  *record = &board->ranks[rank];
    char       how[64], message[480];

    LK_ASSERT(rank < control->roster.world);
    atomic_store(&record->exit_code, exit_code);
    atomic_store(&record->signal, signal);
    if (record->seat == 0)
        set_entering(control, rank, false);
    if ((signal == 0 && exit_code == 0) || record->seat == 0) {
        atomic_store(&record->state, signal == 0 && exit_code == 0 ? LKI_RANK_LEFT : LKI_RANK_DEAD);
        lki_wake_all(board);
        return false;
    }
    lki_rank_view view;
    char          who[LKI_WHO_BYTES];
    lki_board_view(board, rank, &view);
    lki_board_who(who, board, rank, "");
    atomic_store(&record->state, LKI_RANK_DEAD);
    how_it_ended(how, sizeof how, exit_code, signal);
    int used = snprintf(message, sizeof message, "%.200s %s %s", who, how, view.place);
    if (view.status != LK_OK)
        snprintf(message + used, sizeof message - (size_t)used, ": %.240s", view.message);
    lki_board_condemn(board, board->size, rank, LK_EPEER, LK_EPEER, message);
    return true;
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
    int used = snprintf(message, sizeof message, "%.104s is gone: its process ended without "
                        "leaving the group, %s", who, view.place);
    if (view.status != LK_OK)
        snprintf(message + used, sizeof message - (size_t)used, ": %.200s", view.message);
    lki_board_condemn(board, board->size, rank, LK_EPEER, LK_EPEER, message);
    return true;
}

void lki_control_request_stop(lki_control *control)
{
    atomic_store(&control->board->stop, 1);
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

bool lki_control_failed(const lki_control *control, uint32_t *rank, lk_error *error)
{
    if (atomic_load(&control->board->failed) == 0)
        return false;
    *rank = lki_board_culprit(control->board);
    lki_board_failure(control->board, error);
    return true;
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
