/* rendezvous/endpoint.h -- "tcp://HOST:PORT", listening there and connecting to it. */
#ifndef LKI_RENDEZVOUS_ENDPOINT_H
#define LKI_RENDEZVOUS_ENDPOINT_H

#include <netdb.h>

#include "comm/rendezvous.h"

typedef struct {
    char host[256], port[16];
} lki_endpoint;

/* HOST is a name, an IPv4 address or an IPv6 address in brackets.  LK_EINVAL says what is wrong. */
LK_NODISCARD lk_status lki_endpoint_parse(lki_endpoint *out, const char *text);

/* The addresses that the host has, from freeaddrinfo(). */
LK_NODISCARD lk_status lki_endpoint_resolve(struct addrinfo **out, const lki_endpoint *endpoint);

/* A listening socket that does not block.  A name (other than localhost) that means nothing but a
 * loopback address here, as many hosts' own names do, listens on all addresses. */
LK_NODISCARD lk_status lki_endpoint_listen(int *out, const lki_endpoint *endpoint);

/* Begins to connect; -1 with errno where that fails at once. */
int lki_endpoint_connect(const struct addrinfo *to);

/* An address of a socket as numbers, without port: "10.0.0.7"; "" where it has none. */
typedef struct {
    char text[LKI_ADDRESS_BYTES];
    bool loopback;
} lki_ip;

lki_ip lki_ip_local(int fd); /* our end's */
lki_ip lki_ip_peer(int fd);

#endif
