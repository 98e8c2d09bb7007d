/* rendezvous/server.h -- node 0's part: lets guests in, seats them, passes on what they say.
 *
 * It lives in the loop of its owner, who tells it when one of its descriptors is ready: every
 * descriptor stands in the owner's epoll with a number, the listener with LKI_SERVER_LISTENER,
 * guests with small ones.
 */
#ifndef LKI_RENDEZVOUS_SERVER_H
#define LKI_RENDEZVOUS_SERVER_H

#include "comm/rendezvous/line.h"

enum {
    LKI_SERVER_LISTENER = 1 << 20,
    LKI_STRANGERS_MAX   = 64, /* connections that have not said hello */
};

typedef struct lki_server lki_server;

/* `own` is node 0's own launcher's connection, as a guest; owned from now on, also on failure.
 * The key of the options must stay where it is. */
LK_NODISCARD lk_status lki_server_open(lki_server **out, const lki_rendezvous_options *options,
                                       lki_tls_library *library, int own, int epoll, int64_t now);

/* Tells those who wait for the start of the job `why` there is none. */
void lki_server_close(lki_server *server, const char *why);

/* In a fork: closes this process' copies of its descriptors. */
void lki_server_forget(lki_server *server);

/* The descriptor with this number is ready. */
void lki_server_serve(lki_server *server, uint32_t number, int64_t now);

/* A moment has passed.  `late` ms of it do not count: this process did not run. */
void lki_server_tick(lki_server *server, int64_t now, int64_t late);

/* Whether guests other than node 0's own are connected. */
bool     lki_server_has_guests(const lki_server *server);
uint32_t lki_server_refused(const lki_server *server);
const char *lki_server_last_refused(const lki_server *server);

/* The address by which others reach this host, once all have met. */
const char *lki_server_address(const lki_server *server);

#endif
