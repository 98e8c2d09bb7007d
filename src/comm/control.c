/* control.c -- the launcher's side: create the control memory, keep and pass on descriptors,
 * tell the ranks about deaths and about the wish to stop.
 *
 * The message about an arena is one datagram of a SOCK_SEQPACKET socket: lki_arena_message with
 * one descriptor.  The launcher never waits for a worker: a worker that does not read its socket
 * is dead or will be missed at the next operation.
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

static const uint64_t message_magic = UINT64_C(0x6c6b2d6172656e61); /* "lk-arena" */
static const uint64_t nudge_magic   = UINT64_C(0x6c6b2d6e75646765); /* "lk-nudge" */

struct lki_control {
    lki_board *board;
    int        fd;
    lki_roster roster;
    int       *sockets; /* of the ranks of this host */
    int       *arenas;
    size_t     arena_count, arena_capacity;
};

/* ---- Messages ---------------------------------------------------------------------------- */

lk_status lki_descriptor_send(int socket, const lki_arena_message *message, int fd)
{
    lki_arena_message copy  = *message;
    struct iovec      bytes = { .iov_base = &copy, .iov_len = sizeof copy };
    union {
        char           space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr header = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control.space,
                             .msg_controllen = sizeof control.space };

    copy.magic = message_magic;
    memset(&control, 0, sizeof control);
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level     = SOL_SOCKET;
    rights->cmsg_type      = SCM_RIGHTS;
    rights->cmsg_len       = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    ssize_t sent;
    do
        sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent != (ssize_t)sizeof copy)
        return lk_fail(LK_EIO, "cannot send the descriptor of arena %.52s: %s", message->name,
                       strerror(errno));
    return LK_OK;
}

void lki_launcher_nudge(int socket)
{
    (void)!send(socket, &nudge_magic, sizeof nudge_magic, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* The one descriptor that came along, or -1.  The kernel closes what did not fit. */
static int descriptor_in(struct msghdr *header)
{
    int fd = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c != NULL; c = CMSG_NXTHDR(header, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS
            && c->cmsg_len == CMSG_LEN(sizeof fd))
            memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

lk_status lki_descriptor_receive(int socket, lki_arena_message *message, int *fd, bool *open)
{
    struct iovec bytes = { .iov_base = message, .iov_len = sizeof *message };
    union {
        char           space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr header = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control.space,
                             .msg_controllen = sizeof control.space };
    ssize_t got;

    *fd   = -1;
    *open = true;
    do
        got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EAGAIN)
        return LK_OK;
    if (got <= 0) { /* closed, or reset by the death of the other side */
        *open = false;
        return LK_OK;
    }
    *fd = descriptor_in(&header);
    if (got == (ssize_t)sizeof *message && message->magic == message_magic && *fd >= 0
        && memchr(message->name, '\0', sizeof message->name) != NULL)
        return LK_OK;
    if (got == (ssize_t)sizeof nudge_magic && message->magic == nudge_magic && *fd < 0)
        return LK_OK;
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
    return lk_fail(LK_EFORMAT, "a message of %zd bytes on the launcher's socket is not about an "
                   "arena; is another program writing to this descriptor?", got);
}

lk_status lki_descriptor_open(int *out, int32_t pid, int fd)
{
    char path[64];

    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
    *out = open(path, O_RDWR | O_CLOEXEC);
    if (*out < 0)
        return lk_fail(LK_EUNSUPPORTED, "cannot open memory of pid %d (%s): %s", (int)pid, path,
                       strerror(errno));
    return LK_OK;
}

static int *socket_of(const lki_control *control, uint32_t rank)
{
    LK_ASSERT(rank - control->roster.first < control->roster.count);
    return &control->sockets[rank - control->roster.first];
}

/* ---- Life -------------------------------------------------------------------------------- */

static lk_status board_create(lki_control *control)
{
    size_t bytes = lki_board_bytes(control->roster);

    control->fd = memfd_create("lockstep-control", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (control->fd < 0)
        return lk_fail(LK_EIO, "cannot create the control memory: %s", strerror(errno));
    int error = posix_fallocate(control->fd, 0, (off_t)bytes);
    if (error != 0)
        return lk_fail(LK_ENOMEM, "control memory of %u ranks, %zu bytes: %s%s",
                       control->roster.world,
                       bytes, strerror(error), lki_memory_hint(error));
    (void)fcntl(control->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, control->fd, 0);
    if (memory == MAP_FAILED)
        return lk_fail(LK_ENOMEM, "control memory of %u ranks, %zu bytes: %s",
                       control->roster.world, bytes, strerror(errno));
    control->board = memory;
    lki_board_init(control->board, control->roster);
    return LK_OK;
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
    st = board_create(control);
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
    for (size_t i = 0; i < control->arena_count; i++)
        (void)close(control->arenas[i]);
    for (uint32_t i = 0; control->sockets != NULL && i < control->roster.count; i++)
        if (control->sockets[i] >= 0)
            (void)close(control->sockets[i]);
    if (control->board != NULL)
        (void)munmap(control->board, lki_board_bytes(control->roster));
    if (control->fd >= 0)
        (void)close(control->fd);
    lki_free(control->arenas);
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

/* ---- While it runs ----------------------------------------------------------------------- */

/* A rank that cannot be reached is not an error here: its end is reported by itself. */
static void pass_on(const lki_control *control, uint32_t from, const lki_arena_message *message,
                    int fd)
{
    lki_roster here = control->roster;

    for (uint32_t rank = here.first; rank < here.first + here.count; rank++)
        if (rank != from && *socket_of(control, rank) >= 0
            && (message->members[rank / 64] >> rank % 64 & 1) != 0)
            (void)(lki_descriptor_send(*socket_of(control, rank), message, fd) == LK_OK);
}

lk_status lki_control_serve(lki_control *control, uint32_t rank, bool *open)
{
    lki_arena_message message;
    int               fd, *socket = socket_of(control, rank);

    LK_ASSERT(*socket >= 0);
    LK_TRY(lki_descriptor_receive(*socket, &message, &fd, open));
    if (!*open) {
        (void)close(*socket);
        *socket = -1;
    }
    if (fd < 0)
        return LK_OK;
    void     *arenas = control->arenas;
    lk_status st     = lki_reserve(&arenas, &control->arena_capacity, control->arena_count,
                                   sizeof *control->arenas, "descriptors of arenas");
    if (st != LK_OK) {
        (void)close(fd);
        return st;
    }
    control->arenas                         = arenas;
    control->arenas[control->arena_count++] = fd;
    pass_on(control, rank, &message, fd);
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
    if (signal == 0 && exit_code == 0) {
        atomic_store(&record->state, LKI_RANK_LEFT);
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
