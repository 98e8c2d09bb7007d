/* lane.c -- reading and writing one connection, with or without TLS. */
#include "link/lane.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"

lk_status lki_lane_write(lki_lane *lane, const struct iovec *parts, int count, size_t *moved)
{
    *moved = 0;
    if (lane->tls != NULL)
        return lki_tls_write(lane->tls, parts, count, moved);

    /* msg_iov is not const, but sendmsg() only reads the parts. */
    struct msghdr message = { .msg_iov    = (struct iovec *)(uintptr_t)parts,
                              .msg_iovlen = lki_min((size_t)count, IOV_MAX) };
    ssize_t       sent;
    do
        sent = sendmsg(lane->fd, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && errno != EAGAIN)
        return lk_fail(LK_EPEER, "%s: sending: %s", lane->address, strerror(errno));
    *moved = sent > 0 ? (size_t)sent : 0;
    return LK_OK;
}

lk_status lki_lane_read(lki_lane *lane, void *data, size_t bytes, size_t *moved)
{
    *moved = 0;
    if (lane->tls != NULL)
        return lki_tls_read(lane->tls, data, bytes, moved);

    ssize_t got;
    do
        got = recv(lane->fd, data, bytes, 0);
    while (got < 0 && errno == EINTR);
    if (got == 0 && bytes > 0)
        return lk_fail(LK_EPEER, "%s: the peer has closed the connection", lane->address);
    if (got < 0 && errno != EAGAIN)
        return lk_fail(LK_EPEER, "%s: receiving: %s", lane->address, strerror(errno));
    *moved = got > 0 ? (size_t)got : 0;
    return LK_OK;
}

size_t lki_lane_unsent(const lki_lane *lane)
{
    return lane->tls != NULL ? lki_tls_unsent(lane->tls) : 0;
}

void lki_lane_hang_up(lki_lane *lane)
{
    lki_tls_free(lane->tls);
    lane->tls = NULL;
    if (lane->fd >= 0)
        close(lane->fd); /* also removes the socket from the epoll set */
    lane->fd    = -1;
    lane->mask  = 0;
    lane->muted = false;
}

enum { WINDOW_BYTES = 4 << 20 };

/* Disables Nagle's algorithm.  Sets two timeouts that detect a silent peer: the user timeout
 * applies while data is unacknowledged, keepalive probes apply otherwise.
 *
 * The kernel sizes its receive buffer by the bytes read per round trip.  A reader that computes
 * between reads, or decrypts in pieces, appears slow.  The kernel then chooses a small window,
 * although such a reader needs a large window.  Setting SO_RCVLOWAT to a high value and back
 * enlarges the window at once, and the kernel can still enlarge it further.  SO_RCVBUF would fix
 * the size of the buffer, for most users at a smaller value. */
lk_status lki_lane_prepare(int fd, int64_t silence_ms)
{
    int probe_s = silence_ms < 4000 ? 1 : (int)lki_min((size_t)silence_ms / 4000, 3600);
    const struct {
        int level, name, value;
    } options[] = {
        { IPPROTO_TCP, TCP_NODELAY, 1 },
        { SOL_SOCKET, SO_KEEPALIVE, 1 },
        { IPPROTO_TCP, TCP_KEEPIDLE, probe_s },
        { IPPROTO_TCP, TCP_KEEPINTVL, probe_s },
        { SOL_SOCKET, SO_RCVLOWAT, WINDOW_BYTES },
        { SOL_SOCKET, SO_RCVLOWAT, 1 },
        { IPPROTO_TCP, TCP_USER_TIMEOUT, (int)lki_min((size_t)silence_ms, INT_MAX) },
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int)) != 0)
            return lk_fail(LK_EIO, "setsockopt(%d, %d): %s", options[i].level, options[i].name,
                           strerror(errno));
    return LK_OK;
}
