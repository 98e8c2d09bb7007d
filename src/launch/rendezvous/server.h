/* launch/rendezvous/server.h -- the server on node 0, which admits launchers (guests), assigns node
 * numbers, and forwards letters.
 *
 * The server runs in its owner's loop, which reports ready descriptors to the server.  Each
 * descriptor is in the owner's epoll set with a number: LKI_SERVER_LISTENER for the listener, small
 * numbers for guests.
 */
#ifndef LKI_LAUNCH_RENDEZVOUS_SERVER_H
#define LKI_LAUNCH_RENDEZVOUS_SERVER_H

#include "launch/rendezvous/line.h"

enum {
    LKI_SERVER_LISTENER = 1 << 20,
    LKI_STRANGERS_MAX   = 64, /* connections without a hello yet */
};

typedef struct lki_server lki_server;

/* Opens node 0's server. `own` is the connection of node 0's own launcher, which is a guest.  The
 * server takes ownership of `own`, also on failure.  The key of the options must remain valid. */
LK_NODISCARD lk_status lki_server_open(lki_server **out, const lki_rendezvous_options *options,
                                       lki_tls_library *library, int own, int epoll, int64_t now);

/* Closes the server.  `why`, if not NULL, is sent to guests that wait for the start of the job. */
void lki_server_close(lki_server *server, const char *why);

/* Closes a forked child's copies of the descriptors. */
void lki_server_forget(lki_server *server);

/* Handles a ready descriptor, given its number. */
void lki_server_serve(lki_server *server, uint32_t number, int64_t now);

/* Handles a timer tick. `late` is the number of milliseconds in which this process did not run;
 * this time does not count as silence. */
void lki_server_tick(lki_server *server, int64_t now, int64_t late);

/* Returns true if guests other than node 0's own launcher are connected. */
bool     lki_server_has_guests(const lki_server *server);

/* Returns the number of refused connections. */
uint32_t lki_server_refused(const lki_server *server);

/* Describes the last refusal; "" = none. */
const char *lki_server_last_refused(const lki_server *server);

/* Returns the address by which others reach this host, once all have connected. */
const char *lki_server_address(const lki_server *server);

#endif
