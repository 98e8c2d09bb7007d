/* launch/rendezvous/endpoint.h -- "tcp://HOST:PORT" and its sockets. */
#ifndef LKI_LAUNCH_RENDEZVOUS_ENDPOINT_H
#define LKI_LAUNCH_RENDEZVOUS_ENDPOINT_H

#include <netdb.h>

#include "launch/rendezvous/rendezvous.h"

typedef struct {
    char host[256], port[16];
} lki_endpoint;

/* Parses an endpoint.  HOST is a name, an IPv4 address, or an IPv6 address in brackets.  LK_EINVAL
 * explains what is wrong. */
LK_NODISCARD lk_status lki_endpoint_parse(lki_endpoint *out, const char *text);

/* Resolves the host to addresses, to be freed with freeaddrinfo(). */
LK_NODISCARD lk_status lki_endpoint_resolve(struct addrinfo **out, const lki_endpoint *endpoint);

/* Opens a non-blocking listening socket.  If a name other than localhost resolves only to loopback
 * addresses, as many hosts' own names do, listens on all addresses. */
LK_NODISCARD lk_status lki_endpoint_listen(int *out, const lki_endpoint *endpoint);

/* Starts a non-blocking connect.  Returns -1 and sets errno if the call fails at once. */
int lki_endpoint_connect(const struct addrinfo *to);

/* A socket's numeric address without port, e.g. "10.0.0.7"; "" if the socket has none. */
typedef struct {
    char text[LKI_ADDRESS_BYTES];
    bool loopback;
} lki_ip;

lki_ip lki_ip_local(int fd); /* address of this process's end */
lki_ip lki_ip_peer(int fd);

#endif
