/* rendezvous/inside.h -- a launcher's end of the rendezvous: rendezvous.c has its life and what it
 * hears, talk.c what it knows and says.
 */
#ifndef LKI_RENDEZVOUS_INSIDE_H
#define LKI_RENDEZVOUS_INSIDE_H

#include "comm/rendezvous/endpoint.h"
#include "comm/rendezvous/server.h"

typedef enum {
    LKI_CONNECTING, /* or about to */
    LKI_WAITING,    /* has said hello */
    LKI_MET,
    LKI_LOST,       /* node 0, after all had met */
    LKI_OVER,
} lki_rendezvous_stage;

struct lki_rendezvous {
    lki_rendezvous_stage stage;
    int               epoll, timer;
    lki_server       *server; /* on node 0 */
    lki_tls_library  *library; /* NULL: plain */
    unsigned char     key[LKI_KEY_BYTES];
    lki_line          line;
    bool              sending; /* epoll tells when there is room on the line */
    lki_endpoint      endpoint;
    struct addrinfo  *addresses, *next;
    int64_t           tried, ticked, deadline;
    uint32_t          join_ms, here_ms, silence_ms, tick_ms;
    lki_hello_letter         hello;
    char              why[LKI_MESSAGE_BYTES]; /* the last attempt failed; or node 0 is lost */
    lk_error          failure;                /* before all have met */
    lki_ip            address;
    unsigned char     job[LKI_JOB_BYTES];
    uint16_t          port;
    uint32_t          self, nodes;
    lki_node         *roster;
    bool              late;     /* the job had begun */
    lki_standing      standing; /* then */
    lki_introduction *workers;
    bool              verdict_told, finished, together;
    bool              out; /* no rank of this node is in the group any more */
    lki_outcome       outcome; /* of this node, once finished */
};

/* To node 0; what breaks the connection loses it. */
void lki_rendezvous_say(lki_rendezvous *r, const void *letter, size_t bytes);
void lki_rendezvous_write(lki_rendezvous *r, const lki_letter *letter);

/* Node 0 `did` something that ends the connection; before all have met, it is tried again. */
void lki_rendezvous_lose(lki_rendezvous *r, const char *why);

#endif
