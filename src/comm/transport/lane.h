/* comm/transport/lane.h -- one connection of a tcp link: a socket, perhaps with TLS on it.
 *
 * A lane is one direction of one stream, or on the way to become it: a stranger that has yet to
 * say who it is, or a writer that is not through to its reader.
 */
#ifndef LKI_TRANSPORT_LANE_H
#define LKI_TRANSPORT_LANE_H

#include <sys/epoll.h>

#include "comm/traffic.h"
#include "comm/transport/hello.h"

typedef enum {
    LKI_LANE_WAITING,    /* out: until retry_ms, to connect (again) */
    LKI_LANE_CONNECTING, /* out: until TCP is through */
    LKI_LANE_GREETING,   /* in: until the hello is good; out: until it is said */
    LKI_LANE_ASKING,     /* out: until the reader has answered */
    LKI_LANE_OPEN,
    LKI_LANE_BROKEN,
} lki_lane_state;

typedef struct lki_tcp lki_tcp;

typedef struct lki_lane {
    struct lki_lane *next, **link; /* in one of the lists of a tcp link */
    lki_tcp         *tcp;
    lki_lane_state   state;
    bool             outgoing, was_open;
    uint32_t         peer, stream;
    int              fd;
    uint32_t         mask;  /* what epoll watches it for */
    bool             muted; /* epoll does not know it: it is broken, and nobody wants to hear it */
    lki_tls         *tls;
    lki_refusal      verdict; /* on the hello, once it is there */
    bool             heard;   /* it is there */
    char             address[LKI_ADDRESS_BYTES];
    char             hello[LKI_HELLO_BYTES];
    size_t           said;                  /* of the hello: sent, or received */
    int64_t          deadline_ms, retry_ms; /* while it is not open */
    uint32_t         attempts;
    char             why[256]; /* what broke it, or the last attempt */
} lki_lane;

/* Both return LK_EPEER, with a text that begins with the address, for whatever ends the lane. */
LK_NODISCARD lk_status lki_lane_write(lki_lane *lane, const struct iovec *parts, int count,
                                      size_t *moved);
LK_NODISCARD lk_status lki_lane_read(lki_lane *lane, void *data, size_t bytes, size_t *moved);

/* What has been taken and is not sent; always 0 without TLS. */
size_t lki_lane_unsent(const lki_lane *lane);

/* What has been written to it, as far as TCP knows. */
void lki_lane_traffic(const lki_lane *lane, lki_traffic *out);

/* Closes socket and session, if they are there. */
void lki_lane_hang_up(lki_lane *lane);

/* Options of a fresh socket. */
LK_NODISCARD lk_status lki_lane_prepare(int fd, int64_t silence_ms);

#endif
