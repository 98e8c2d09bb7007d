/* launch/rendezvous/guests.h -- internals of the server on node 0, whose guests are the launchers
 * of all nodes.
 *
 * server.c handles connections and time. meeting.c, seats.c and late.c handle the letters of
 * guests.
 *
 *    stranger --hello--> admitted --all have come--> seated --outcome--> finished
 *       |                    |                          |
 *    refused             forgotten; may           lost: a verdict to all,
 *                        come again               and an outcome in its place
 *
 * A letter may not fit into a guest's queue, which means that the guest is lost, and a loss must be
 * reported to the other guests.  To avoid recursion, a failed guest is only marked at that point,
 * and dismissed at the end of each entry point.  A broken connection is found by reading, after the
 * guest's last letter.
 */
#ifndef LKI_LAUNCH_RENDEZVOUS_GUESTS_H
#define LKI_LAUNCH_RENDEZVOUS_GUESTS_H

#include "launch/rendezvous/endpoint.h"
#include "launch/rendezvous/server.h"

enum {
    LKI_GUEST_OWN = 0, /* number of node 0's own launcher */
    LKI_HELD_MAX  = 16,
};

typedef struct {
    lki_line  line;
    int64_t   since;    /* time of the connection */
    bool      admitted; /* the guest's hello was accepted */
    bool       held;     /* admitted late, and without a seat yet */
    bool      failing;  /* the guest is to be dismissed because of `why` */
    bool      sending;  /* waits for epoll to report room on the connection */
    lki_hello_letter hello;    /* valid once admitted; once all have connected, hello.node is the
                                * guest's node number */
    lki_ip    from;
    char      why[400];
} lki_guest;

typedef struct {
    lki_roster ranks;
    char       host[LKI_HOST_BYTES];
    int32_t    guest; /* index of the node's guest; -1 = the node is lost */
    bool       introduced, finished;
    bool       in_group; /* some ranks of the node are in the group of this epoch */
    bool       settled;  /* the node has reported its survivors of this epoch */
    bool       waits;    /* a late node that is not in the group has this seat */
    bool       ready;    /* with `waits`: the late node is ready to enter */
    lki_outcome outcome; /* outcome of the node, once it has finished */
    uint32_t    order;   /* position in the order of finishing, from 1 */
} lki_seat_of_node;

struct lki_server {
    lki_rendezvous_options options;
    lki_tls_library       *library; /* borrowed; NULL: plain */
    int                    listener, epoll;
    bool                   borrowed;  /* the caller owns the listener */
    bool                   listening; /* the listener is in the epoll set */
    lki_guest             *guests;
    uint32_t               capacity, strangers, admitted, failing;
    lki_seat_of_node      *seats;
    bool                   met, given_up, over;
    bool                   stopping; /* a stop was requested */
    int64_t                deadline; /* deadline for the start of the job */
    int64_t                enough;   /* time when enough nodes had connected */
    unsigned char          job[LKI_JOB_BYTES];
    lki_introduction      *workers; /* contact data of the workers of all nodes, by rank */
    uint32_t               world, finished;
    uint64_t              *since;   /* [world]: 1 + the epoch in which a rank entered; 0 = not in
                                     * the group */
    uint64_t               epoch;   /* the current group epoch */
    lki_members            members; /* survivors reported for the next group */
    lki_members            entrants; /* ranks that ask to enter the next group */
    bool                   closed;  /* a member refuses entrants */
    int64_t                grouped; /* time when the group was formed */
    uint32_t               known;   /* number of nodes that had introduced their workers when node 0
                                     * last sent the table without waiting for late nodes; 0: node 0
                                     * has not sent the table in that way */
    lki_ip                 address;
    uint32_t               refused;
    char                   last[480]; /* describes the last guest that was refused, or lost while
                                       * waiting */
    unsigned char         *bytes;     /* buffer for letters with lists */
};

/* Returns the largest possible number of nodes. */
static inline uint32_t lki_server_most(const lki_rendezvous_options *options)
{
    return options->nodes == 0 ? options->world : options->nodes;
}

/* ---- Connections (server.c) -------------------------------------------------------------- */

/* Marks a guest as failed.  The guest is dismissed at the end of the current entry point. */
void lki_guest_fail(lki_server *server, lki_guest *guest, const char *why);

/* Queues a letter's bytes for a guest.  Does nothing if the guest has failed. */
void lki_guest_say(lki_server *server, lki_guest *guest, const void *letter, size_t bytes);

/* Queues a letter without a list for a guest. */
void lki_guest_write(lki_server *server, lki_guest *guest, const lki_letter *letter);

/* ---- Until the job begins (meeting.c) ---------------------------------------------------- */

/* Sends the guest the reason, then marks it as failed. */
void lki_guest_refuse(lki_server *server, lki_guest *guest, lk_status status, const char *why);

/* Admits or refuses the guest.  Begins the job when all nodes have come. */
void lki_guest_hello(lki_server *server, lki_guest *guest, const lki_hello_letter *hello);

/* Cancels the job before its start, and sends the reason to all admitted guests. */
void lki_seats_give_up(lki_server *server, lk_status status, const char *why);

/* Begins the job if enough nodes have waited long enough.  Cancels it if too few have come by the
 * deadline. */
void lki_seats_wait(lki_server *server, int64_t now);

/* Writes the roster letter for a node to server->bytes.  Returns the number of bytes. */
size_t lki_seats_roster(lki_server *server, uint32_t node, bool late);

/* ---- Letters from guests (seats.c) ------------------------------------------------------- */

/* Handles a letter from a guest. */
void lki_guest_hear(lki_server *server, lki_guest *guest, const lki_letter *letter);

/* Marks a node as lost.  Its launcher cannot be reached, so its workers are lost, too. */
void lki_seat_lose(lki_server *server, uint32_t node, const char *why);

/* Sends incomplete introductions if some nodes of the group have not sent theirs for a while, so
 * that the other nodes can name the missing ones. */
void lki_seats_tell_who_is_late(lki_server *server, int64_t now);

/* Forwards a letter to all seated guests except `from` (may be NULL). */
void lki_seats_pass_on(lki_server *server, const lki_guest *from, const lki_letter *letter);

/* ---- Late nodes (late.c) ----------------------------------------------------------------- */

/* Checks whether a late node may take the seat of a lost node, or of a node that may yet be lost.
 * Returns LK_EPEER or LK_EINVAL with the reason if not. */
LK_NODISCARD lk_status lki_late_check(const lki_server *server, const lki_hello_letter *hello);

/* Assigns free seats to held guests, and refuses guests that have been held too long. */
void lki_late_seat(lki_server *server, int64_t now);

/* Handles a letter from a late node that is not in the group yet. */
void lki_late_hear(lki_server *server, lki_seat_of_node *seat, const lki_letter *letter);

/* Handles the loss of a late node that is not in the group yet. */
void lki_late_lose(lki_server *server, lki_seat_of_node *seat);

/* Adds the late nodes that are ready to server->members, before a new group is announced. */
void lki_late_admit(lki_server *server);

/* Updates server->since after a new group was formed. */
void lki_late_note_group(lki_server *server);

/* Returns the interval of keep-alive letters in milliseconds, for both directions. */
uint32_t lki_server_here_ms(const lki_server *server);

#endif
