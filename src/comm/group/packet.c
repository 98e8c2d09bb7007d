/* packet.c -- packets between a worker and its launcher, through their socket.
 *
 * One packet is one datagram of a SOCK_SEQPACKET socket, always of the same size, with at most one
 * descriptor.  No call waits.  A peer that does not read its socket is dead, or will be reported as
 * late at the next operation.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/group/group.h"

static const uint64_t packet_magic = UINT64_C(0x6c6b2d7061636b74); /* "lk-packt" */

enum { PACKET_VERSION = 2 };

typedef union {
    char           space[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
} rider;

static void put_descriptor(struct msghdr *header, rider *space, int fd)
{
    memset(space, 0, sizeof *space);
    header->msg_control    = space->space;
    header->msg_controllen = sizeof space->space;
    struct cmsghdr *rights = CMSG_FIRSTHDR(header);
    rights->cmsg_level     = SOL_SOCKET;
    rights->cmsg_type      = SCM_RIGHTS;
    rights->cmsg_len       = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(rights), &fd, sizeof fd);
}

lk_status lki_packet_send(int socket, lki_packet *packet, int fd)
{
    struct iovec  bytes  = { .iov_base = packet, .iov_len = sizeof *packet };
    struct msghdr header = { .msg_iov = &bytes, .msg_iovlen = 1 };
    rider         space;
    ssize_t       sent;

    packet->magic   = packet_magic;
    packet->version = PACKET_VERSION;
    if (fd >= 0)
        put_descriptor(&header, &space, fd);
    do
        sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof *packet ? LK_OK : lk_fail(LK_EIO, "%s", strerror(errno));
}

void lki_launcher_nudge(int socket)
{
    lki_packet nudge = { .kind = LKI_PACKET_NUDGE };
    (void)(lki_packet_send(socket, &nudge, -1) == LK_OK);
}

void lki_launcher_note(int socket, const char *text)
{
    lki_packet note = { .kind = LKI_PACKET_NOTE };

    (void)snprintf(note.note, sizeof note.note, "%s", text);
    if (socket >= 0)
        (void)(lki_packet_send(socket, &note, -1) == LK_OK);
}

/* Returns the descriptor of a packet, or -1.  The kernel closes descriptors that do not fit. */
static int descriptor_in(struct msghdr *header)
{
    int fd = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c != NULL; c = CMSG_NXTHDR(header, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS
            && c->cmsg_len == CMSG_LEN(sizeof fd))
            memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

static bool is_text(const char *text, size_t bytes)
{
    return memchr(text, '\0', bytes) != NULL;
}

/* Returns true if the packet is valid.  A packet of some kinds must have a descriptor, a packet of
 * the other kinds must have none. */
static bool is_packet(const lki_packet *packet, ssize_t bytes, bool descriptor)
{
    if (bytes != (ssize_t)sizeof *packet || packet->magic != packet_magic
        || packet->version != PACKET_VERSION)
        return false;
    switch (packet->kind) {
    case LKI_PACKET_NUDGE:
    case LKI_PACKET_ASK: return !descriptor;
    case LKI_PACKET_NOTE: return !descriptor && is_text(packet->note, sizeof packet->note);
    case LKI_PACKET_ARENA:
        return descriptor && is_text(packet->arena.name, sizeof packet->arena.name);
    case LKI_PACKET_ANSWER:
        return descriptor == (packet->answer.status == LK_OK)
               && is_text(packet->answer.why, sizeof packet->answer.why);
    default: return false;
    }
}

static lk_status take(int socket, lki_packet *packet, int *fd, bool *open, int how)
{
    struct iovec  bytes  = { .iov_base = packet, .iov_len = sizeof *packet };
    rider         space;
    struct msghdr header = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = space.space,
                             .msg_controllen = sizeof space.space };
    ssize_t       got;

    *fd          = -1;
    *open        = true;
    packet->kind = LKI_PACKET_NONE;
    do
        got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT | how);
    while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EAGAIN)
        return LK_OK;
    if (got <= 0) { /* the peer has closed its socket, or has died */
        *open = false;
        return LK_OK;
    }
    *fd = descriptor_in(&header);
    if (is_packet(packet, got, *fd >= 0))
        return LK_OK;
    if (*fd >= 0)
        (void)close(*fd);
    *fd          = -1;
    packet->kind = LKI_PACKET_NONE;
    return lk_fail(LK_EFORMAT, "a message of %zd bytes on the launcher's socket is not one of "
                   "ours; is another program writing to this descriptor?", got);
}

lk_status lki_packet_receive(int socket, lki_packet *packet, int *fd, bool *open)
{
    return take(socket, packet, fd, open, 0);
}

lk_status lki_packet_look(int socket, lki_packet *packet, int *fd, bool *open)
{
    return take(socket, packet, fd, open, MSG_PEEK);
}

/* Receives a packet into a buffer that is too small.  The kernel discards the remaining bytes and
 * any descriptors. */
void lki_packet_drop(int socket)
{
    char nothing;
    while (recv(socket, &nothing, sizeof nothing, MSG_DONTWAIT) < 0 && errno == EINTR)
        continue;
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
