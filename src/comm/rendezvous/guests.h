/* rendezvous/guests.h -- inside node 0's part: server.c deals with connections and time, meeting.c
 * and seats.c with what guests say.
 *
 *     stranger --hello--> admitted --all have come--> seated --outcome--> finished
 *        |                    |                          |
 *     refused             forgotten; may           lost: a verdict to all,
 *                         come again               and an outcome in its place
 *
 * Telling something to a guest may show that it is lost, and that must be told to the others.  So
 * a guest that fails is only marked where that is found, and dismissed at the end of each entry.
 */
#ifndef LKI_RENDEZVOUS_GUESTS_H
#define LKI_RENDEZVOUS_GUESTS_H

#include "comm/rendezvous/endpoint.h"
#include "comm/rendezvous/server.h"

enum {
    LKI_GUEST_OWN = 0, /* the number of node 0's own launcher */
    LKI_HELD_MAX  = 16,
};

typedef struct {
    lki_line  line;
    int64_t   since;    /* when it was let in */
    bool      admitted; /* has said a good hello */
    bool       held;     /* and come late: it has no seat yet */
    bool      failing;  /* to be dismissed: `why` */
    bool      sending;  /* epoll tells when there is room */
    lki_hello_letter hello;    /* once admitted; its `node` is the seat once all have met */
    lki_ip    from;
    char      why[400];
} lki_guest;

typedef struct {
    lki_roster ranks;
    char       host[LKI_HOST_BYTES];
    int32_t    guest; /* -1 = lost */
    bool       introduced, finished;
    bool       in_group; /* some of its ranks are in the group of this epoch */
    bool       settled;  /* has said who goes on from it */
    bool       waits;    /* who has come late has it, and is not in the group ... */
    bool       ready;    /* ... but could be */
    lki_outcome outcome; /* once finished */
    uint32_t    order;   /* n-th to finish, from 1 */
} lki_seat_of_node;

struct lki_server {
    lki_rendezvous_options options;
    lki_tls_library       *library; /* borrowed; NULL: plain */
    int                    listener, epoll;
    bool                   borrowed;  /* the listener */
    bool                   listening; /* it stands in the epoll */
    lki_guest             *guests;
    uint32_t               capacity, strangers, admitted, failing;
    lki_seat_of_node      *seats;
    bool                   met, given_up, over;
    bool                   stopping; /* somebody has asked for it */
    int64_t                deadline; /* for all to come, or as many as are enough ... */
    int64_t                enough;   /* ... which has been so since then */
    unsigned char          job[LKI_JOB_BYTES];
    lki_introduction      *workers; /* of the world */
    uint32_t               world, finished;
    uint64_t              *since;   /* [world]: 1 + the epoch in which a rank entered; 0 = it is not
                                     * in the group */
    uint64_t               epoch;   /* of the group, as far as this job has gone on */
    lki_members            members; /* who goes on to the next, as far as nodes have said, ... */
    lki_members            entrants; /* ... who would enter it, ... */
    bool                   closed;  /* ... and somebody would not have them */
    int64_t                grouped; /* when the group was made */
    uint32_t               known;   /* so many of its nodes had introduced theirs when all were told
                                     * that others have not */
    lki_ip                 address;
    uint32_t               refused;
    char                   last[480]; /* who was refused, or lost while waiting, last */
    unsigned char         *bytes;     /* for letters with lists */
};

/* How many nodes there may be. */
static inline uint32_t lki_server_most(const lki_rendezvous_options *options)
{
    return options->nodes == 0 ? options->world : options->nodes;
}

/* ---- Connections (server.c) -------------------------------------------------------------- */

void lki_guest_fail(lki_server *server, lki_guest *guest, const char *why);

/* Without effect on guests that have failed. */
void lki_guest_say(lki_server *server, lki_guest *guest, const void *letter, size_t bytes);
void lki_guest_write(lki_server *server, lki_guest *guest, const lki_letter *letter);

/* ---- Until the job begins (meeting.c) ---------------------------------------------------- */

/* Tells it why it cannot stay. */
void lki_guest_refuse(lki_server *server, lki_guest *guest, lk_status status, const char *why);

void lki_guest_hello(lki_server *server, lki_guest *guest, const lki_hello_letter *hello);

/* There will be no job: tells all who have come. */
void lki_seats_give_up(lki_server *server, lk_status status, const char *why);

/* Time has passed, and perhaps enough for those who wait for others. */
void lki_seats_wait(lki_server *server, int64_t now);

/* Puts together what a node is told of the job: so many of server->bytes. */
size_t lki_seats_roster(lki_server *server, uint32_t node, bool late);

/* ---- What they say (seats.c) ------------------------------------------------------------- */

void lki_guest_hear(lki_server *server, lki_guest *guest, const lki_letter *letter);

/* The node's launcher cannot be reached any more; its workers die with it, or can do no good. */
void lki_seat_lose(lki_server *server, uint32_t node, const char *why);

/* Where some nodes have not introduced theirs for a while those who wait are told of the rest, so
 * that they can name who is missing. */
void lki_seats_tell_who_is_late(lki_server *server, int64_t now);

/* To all who are seated, but not `from` (which may be NULL). */
void lki_seats_pass_on(lki_server *server, const lki_guest *from, const lki_letter *letter);

/* ---- Who comes late (late.c) ------------------------------------------------------------- */

/* Whether it may come in place of a node that is lost, or will be: LK_EPEER and LK_EINVAL say why
 * not. */
LK_NODISCARD lk_status lki_late_check(const lki_server *server, const lki_hello_letter *hello);

/* Seats may have become free, or time has passed: gives them to those who are held. */
void lki_late_seat(lki_server *server, int64_t now);

/* What a node says that is not in the group yet. */
void lki_late_hear(lki_server *server, lki_seat_of_node *seat, const lki_letter *letter);

/* Its launcher is gone again. */
void lki_late_lose(lki_server *server, lki_seat_of_node *seat);

/* A group is to be made of server->members, and of who is ready; it has been made. */
void lki_late_admit(lki_server *server);
void lki_late_note_group(lki_server *server);

/* How often each side says that it is there. */
uint32_t lki_server_here_ms(const lki_server *server);

#endif
