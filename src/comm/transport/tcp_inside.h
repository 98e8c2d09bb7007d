/* comm/transport/tcp_inside.h -- what the files of the tcp link share.
 *
 * tcp.c      the link: operations, waiting, closing
 * tcp_in.c   strangers at the door: accepting, hellos, refusals
 * tcp_out.c  writers on their way: connecting, again and again, until they are let in
 * lane.c     one connection
 */
#ifndef LKI_TRANSPORT_TCP_INSIDE_H
#define LKI_TRANSPORT_TCP_INSIDE_H

#include "base/memory.h"
#include "comm/transport/doorbook.h"
#include "comm/transport/lane.h"

/* Both directions of one stream with one peer. */
typedef struct lki_slot {
    lki_tcp         *tcp;
    struct lki_slot *next, **link; /* in `hot`, or NULL */
    lki_lane        *in, *out;     /* in: open or broken; out: in any state */
    bool             reading, writing;
} lki_slot;

struct lki_tcp {
    lki_link         super;
    lki_tcp_options  options;
    lki_tls_library *library; /* NULL: plain */
    unsigned char    key[LKI_KEY_BYTES];
    lki_hello        mine;
    int              epoll, listener;
    bool             listening; /* epoll knows the listener */
    int64_t          listen_again_ms;
    int64_t          looked_ms; /* when the last wait was over */
    char             address[LKI_ADDRESS_BYTES];
    lki_slot        *slots;     /* [peer * streams + stream] */
    bool            *reached;   /* [peer]: it has been connected once, in either direction */
    lki_slot        *hot;       /* something to report that epoll does not know of */
    lki_lane        *strangers; /* in, not open; the latest first */
    uint32_t         strangers_count;
    uint32_t         expected;   /* incoming streams that have never been there */
    lki_lane        *travellers; /* out, waiting or connecting */
    lki_lane        *graveyard;  /* freed when no event can mean them any more */
    uint64_t         refusals[LKI_REFUSALS];
    lki_doorbook     doorbook;
};

static inline lki_slot *lki_tcp_slot(const lki_tcp *tcp, uint32_t peer, uint32_t stream)
{
    LK_ASSERT(peer < tcp->super.ranks && peer != tcp->super.rank && stream < tcp->super.streams);
    return &tcp->slots[(size_t)peer * tcp->super.streams + stream];
}

int64_t lki_tcp_now_ms(void);

/* Tells the owner of the refusals that are due to be told. */
void lki_tcp_tell_refusals(lki_tcp *tcp, int64_t now_ms);

/* A lane with a socket or without (-1), in no list; epoll does not know it. */
LK_NODISCARD lk_status lki_tcp_lane_new(lki_lane **out, lki_tcp *tcp, bool outgoing, int fd);

/* What epoll should watch the lane for, from its state; may be called at any time. */
LK_NODISCARD lk_status lki_tcp_rewatch(lki_lane *lane);

/* Notes whether the slot has something to report without epoll. */
void lki_tcp_heat(lki_slot *slot);

/* The end of an outgoing lane, or of an incoming one that was open: EPEER from now on. */
void lki_tcp_break(lki_lane *lane, const char *why);

/* ---- Lists ------------------------------------------------------------------------------- */

static inline void lki_lane_push(lki_lane **head, lki_lane *lane)
{
    lane->next = *head;
    lane->link = head;
    if (*head != NULL)
        (*head)->link = &lane->next;
    *head = lane;
}

static inline void lki_lane_unlink(lki_lane *lane)
{
    if (lane->link == NULL)
        return;
    *lane->link = lane->next;
    if (lane->next != NULL)
        lane->next->link = lane->link;
    lane->next = NULL;
    lane->link = NULL;
}

/* ---- tcp_in.c ---------------------------------------------------------------------------- */

/* Lets in who stands at the listener, a bounded number. */
LK_NODISCARD lk_status lki_tcp_accept(lki_tcp *tcp);

/* Goes on with a stranger. */
LK_NODISCARD lk_status lki_tcp_hear(lki_lane *lane);

/* Sends away who took too long; *next_ms becomes no later than the next such time. */
LK_NODISCARD lk_status lki_tcp_hurry(lki_tcp *tcp, int64_t now_ms, int64_t *next_ms);

/* ---- tcp_out.c --------------------------------------------------------------------------- */

/* Opens the outgoing lane of a slot. */
LK_NODISCARD lk_status lki_tcp_dial(lki_tcp *tcp, uint32_t peer, uint32_t stream);

/* Goes on with a lane that is connecting, greeting or asking. */
LK_NODISCARD lk_status lki_tcp_go_on(lki_lane *lane);

/* Tries again whose time has come; *next_ms as above. */
LK_NODISCARD lk_status lki_tcp_retry(lki_tcp *tcp, int64_t now_ms, int64_t *next_ms);

#endif
