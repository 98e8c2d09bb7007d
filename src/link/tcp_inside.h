/* link/tcp_inside.h -- declarations shared by the files of the tcp link.
 *
 * tcp.c      the link: operations, waiting, closing
 * tcp_in.c   incoming connections without a valid hello (strangers): accepting, hellos, refusals
 * tcp_out.c  outgoing lanes: connecting and retrying until they are admitted
 * lane.c     one connection
 */
#ifndef LKI_LINK_TCP_INSIDE_H
#define LKI_LINK_TCP_INSIDE_H

#include "base/memory.h"
#include "link/doorbook.h"
#include "link/lane.h"

/* Both directions of one stream with one peer. */
typedef struct lki_slot {
    lki_tcp         *tcp;
    struct lki_slot *next, **link; /* neighbours in the list `hot`; `link` is NULL if the slot is
                                    * not in the list */
    lki_lane        *in, *out;     /* `in` is NULL, open or broken; `out` is NULL or in any state */
    bool             reading, writing;
} lki_slot;

struct lki_tcp {
    lki_link         super;
    lki_tcp_options  options;
    lki_tls_library *library; /* NULL: plain */
    unsigned char    key[LKI_KEY_BYTES];
    lki_hello        mine;
    int              epoll, listener;
    bool             listening; /* the listener is in the epoll set */
    int64_t          listen_again_ms;
    int64_t          looked_ms; /* time at which the last wait ended */
    char             address[LKI_ADDRESS_BYTES];
    lki_slot        *slots;     /* [peer * streams + stream] */
    bool            *reached;   /* [peer]: a connection with the peer was established before, in
                                 * either direction */
    lki_slot        *hot;       /* slots with events that epoll does not report */
    lki_lane        *strangers; /* incoming lanes that are not open; latest first */
    uint32_t         strangers_count;
    uint32_t         expected;   /* number of incoming streams that have never been connected */
    lki_lane        *travellers; /* outgoing lanes that are waiting or connecting */
    lki_lane        *graveyard;  /* closed lanes, freed when no pending event can refer to them */
    uint64_t         refusals[LKI_REFUSALS];
    lki_doorbook     doorbook;
};

static inline lki_slot *lki_tcp_slot(const lki_tcp *tcp, uint32_t peer, uint32_t stream)
{
    LK_ASSERT(peer < tcp->super.ranks && peer != tcp->super.rank && stream < tcp->super.streams);
    return &tcp->slots[(size_t)peer * tcp->super.streams + stream];
}

/* Reports the refusals that are due. */
void lki_tcp_tell_refusals(lki_tcp *tcp, int64_t now_ms);

/* Creates a lane with the socket `fd`, or without a socket if `fd` is -1.  The lane is in no list
 * and not in the epoll set. */
LK_NODISCARD lk_status lki_tcp_lane_new(lki_lane **out, lki_tcp *tcp, bool outgoing, int fd);

/* Updates the events that epoll watches to match the lane's state.  May be called at any time. */
LK_NODISCARD lk_status lki_tcp_rewatch(lki_lane *lane);

/* Adds a slot to `hot` if it has events that epoll does not report, else removes it. */
void lki_tcp_heat(lki_slot *slot);

/* Breaks a lane that is outgoing, or incoming and open.  Later calls on its stream return
 * LK_EPEER. */
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

/* Accepts pending connections, a limited number per call. */
LK_NODISCARD lk_status lki_tcp_accept(lki_tcp *tcp);

/* Reads the available bytes of a stranger's hello. */
LK_NODISCARD lk_status lki_tcp_hear(lki_lane *lane);

/* Refuses strangers whose deadline has passed.  Lowers *next_ms to the time of the next
 * deadline. */
LK_NODISCARD lk_status lki_tcp_hurry(lki_tcp *tcp, int64_t now_ms, int64_t *next_ms);

/* ---- tcp_out.c --------------------------------------------------------------------------- */

/* Creates the outgoing lane of a slot and starts to connect. */
LK_NODISCARD lk_status lki_tcp_dial(lki_tcp *tcp, uint32_t peer, uint32_t stream);

/* Continues a lane that is connecting, greeting or asking. */
LK_NODISCARD lk_status lki_tcp_go_on(lki_lane *lane);

/* Retries lanes whose pause is over.  Lowers *next_ms to the time of the next event. */
LK_NODISCARD lk_status lki_tcp_retry(lki_tcp *tcp, int64_t now_ms, int64_t *next_ms);

#endif
