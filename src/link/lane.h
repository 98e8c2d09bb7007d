/* link/lane.h -- one connection of a tcp link: a socket, with or without TLS.
 *
 * An open lane carries one direction of one stream.  An incoming lane opens when its hello has been
 * found valid; until then it is called a stranger.  An outgoing lane opens when the reader has
 * admitted it.
 */
#ifndef LKI_LINK_LANE_H
#define LKI_LINK_LANE_H

#include <sys/epoll.h>

#include "link/traffic.h"
#include "link/hello.h"

typedef enum {
    LKI_LANE_WAITING,    /* outgoing: waits until retry_ms before the next attempt to connect */
    LKI_LANE_CONNECTING, /* outgoing: until TCP is connected */
    LKI_LANE_GREETING,   /* incoming: waits for a valid hello; outgoing: sends the hello */
    LKI_LANE_ASKING,     /* outgoing: waits for the reader's answer to the hello */
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
    uint32_t         mask;  /* events for which epoll watches */
    bool             muted; /* removed from the epoll set, because the lane is broken and its slot
                             * does not read */
    lki_tls         *tls;
    lki_refusal      verdict; /* answer to the hello, once the hello has been received */
    bool             heard;   /* a complete hello was received */
    char             address[LKI_ADDRESS_BYTES];
    char             hello[LKI_HELLO_BYTES];
    size_t           said;                  /* number of bytes of the hello sent or received */
    int64_t          deadline_ms, retry_ms; /* deadline, and time of the next attempt, of a lane
                                             * that is not open */
    uint32_t         attempts;
    char             why[256]; /* reason why the lane broke, or why the last attempt failed */
} lki_lane;

/* Writes without blocking.  Returns LK_EPEER if the lane has ended; the error names the address of
 * the lane. */
LK_NODISCARD lk_status lki_lane_write(lki_lane *lane, const struct iovec *parts, int count,
                                      size_t *moved);

/* Reads without blocking.  Returns LK_EPEER if the lane has ended; the error names the address of
 * the lane. */
LK_NODISCARD lk_status lki_lane_read(lki_lane *lane, void *data, size_t bytes, size_t *moved);

/* Returns the number of bytes accepted but not yet sent; always 0 without TLS. */
size_t lki_lane_unsent(const lki_lane *lane);

/* Reads TCP's statistics of the bytes that were written to the lane. */
void lki_lane_traffic(const lki_lane *lane, lki_traffic *out);

/* Closes the socket and the TLS session, if any. */
void lki_lane_hang_up(lki_lane *lane);

/* Sets the options of a new socket. */
LK_NODISCARD lk_status lki_lane_prepare(int fd, int64_t silence_ms);

#endif
