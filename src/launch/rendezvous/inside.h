/* launch/rendezvous/inside.h -- a launcher's end of the rendezvous.
 *
 * rendezvous.c opens and closes a rendezvous and handles incoming letters. reports.c answers
 * queries and sends letters.
 */
#ifndef LKI_LAUNCH_RENDEZVOUS_INSIDE_H
#define LKI_LAUNCH_RENDEZVOUS_INSIDE_H

#include "launch/rendezvous/endpoint.h"
#include "launch/rendezvous/server.h"

enum { LKI_LINGER_MS = 2000 }; /* limit of the wait for other nodes at the end */

typedef enum {
    LKI_CONNECTING, /* connecting to node 0, or waiting to try again */
    LKI_WAITING,    /* the hello was sent */
    LKI_MET,
    LKI_LOST,       /* node 0 was lost after all had connected */
    LKI_OVER,
} lki_rendezvous_stage;

struct lki_rendezvous {
    lki_rendezvous_stage stage;
    int               epoll, timer;
    lki_server       *server; /* NULL, except on node 0 */
    lki_tls_library  *library; /* NULL: plain */
    unsigned char     key[LKI_KEY_BYTES];
    lki_line          line;
    bool              sending; /* epoll reports room on the line */
    lki_endpoint      endpoint;
    struct addrinfo  *addresses, *next;
    int64_t           tried, ticked, deadline;
    uint32_t          join_ms, here_ms, silence_ms, tick_ms;
    lki_hello_letter         hello;
    char              why[LKI_MESSAGE_BYTES]; /* reason of the failure, or of node 0's loss */
    lk_error          failure;                /* a failure before all nodes had connected */
    lki_ip            address;
    unsigned char     job[LKI_JOB_BYTES];
    uint16_t          port;
    uint32_t          self, nodes;
    lki_node         *roster;
    bool              late;     /* the job had begun when this node connected */
    lki_standing      standing; /* only if `late` is true */
    lki_introduction *workers;
    bool              verdict_told, finished, together;
    bool              leaving; /* this node leaves a job that continues without it */
    int64_t           left;    /* time when this node began to leave */
    bool              out; /* no rank of this node is in the group any more */
    lki_outcome       outcome; /* outcome of this node, once it has finished */
};

/* Queues a letter to node 0.  If node 0 leaves too many bytes unread, it counts as lost. */
void lki_rendezvous_say(lki_rendezvous *r, const void *letter, size_t bytes);
void lki_rendezvous_write(lki_rendezvous *r, const lki_letter *letter);

/* Handles the end of the connection to node 0.  Before all nodes have connected, this node tries to
 * connect again. */
void lki_rendezvous_lose(lki_rendezvous *r, const char *why);

#endif
