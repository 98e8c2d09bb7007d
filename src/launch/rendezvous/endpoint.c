/* endpoint.c -- "tcp://HOST:PORT" and its sockets. */
#include "launch/rendezvous/endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

static bool is_port(const char *text)
{
    size_t   length = strlen(text);
    unsigned value  = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = value * 10 + (unsigned)(text[i] - '0');
    }
    return length >= 1 && length <= 5 && value >= 1 && value <= 65535;
}

/* Returns true for a link-local address without %INTERFACE, to which no route leads. */
static bool is_without_interface(const char *host)
{
    struct in6_addr address;

    return inet_pton(AF_INET6, host, &address) == 1 && IN6_IS_ADDR_LINKLOCAL(&address);
}

lk_status lki_endpoint_parse(lki_endpoint *out, const char *text)
{
    static const char scheme[] = "tcp://";
    bool              good     = strncmp(text, scheme, sizeof scheme - 1) == 0
                && lki_address_split(text + sizeof scheme - 1, out->host, out->port) == LK_OK
                && is_port(out->port);

    if (good && is_without_interface(out->host))
        return lk_fail(LK_EINVAL, "\"%.160s\" is no rendezvous: a link-local address needs this "
                       "host's interface to node 0, as in tcp://[fe80::1%%eth0]:29400", text);
    if (good)
        return LK_OK;
    return lk_fail(LK_EINVAL, "\"%.160s\" is no rendezvous: it must be tcp://HOST:PORT, with "
                   "brackets around an IPv6 address and a port from 1 to 65535", text);
}

lk_status lki_rendezvous_check(const char *endpoint)
{
    lki_endpoint unused;

    return lki_endpoint_parse(&unused, endpoint);
}

lk_status lki_endpoint_resolve(struct addrinfo **out, const lki_endpoint *endpoint)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC,
                                    .ai_flags = AI_NUMERICSERV };
    int error = getaddrinfo(endpoint->host, endpoint->port, &hints, out);

    if (error == 0)
        return LK_OK;
    *out = NULL;
    return lk_fail(LK_EINVAL, "%s in the rendezvous address has no IP address here: %s",
                   endpoint->host, error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
}

/* ---- Addresses --------------------------------------------------------------------------- */

static lki_ip ip_of(const lki_address *address)
{
    lki_ip              ip    = { .loopback = lki_address_is_loopback(address) };
    struct sockaddr_in6 v6;
    lki_address         plain = { .bytes = sizeof(struct sockaddr_in) };

    memcpy(&v6, &address->storage, sizeof v6);
    if (address->storage.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
        struct sockaddr_in v4 = { .sin_family = AF_INET }; /* an IPv4 peer of an IPv6 socket */
        memcpy(&v4.sin_addr, v6.sin6_addr.s6_addr + 12, 4);
        memcpy(&plain.storage, &v4, sizeof v4);
        address = &plain;
    }
    if (address->storage.ss_family == AF_UNIX
        || getnameinfo((const struct sockaddr *)&address->storage, address->bytes, ip.text,
                       sizeof ip.text, NULL, 0, NI_NUMERICHOST) != 0)
        ip.text[0] = '\0';
    return ip;
}

lki_ip lki_ip_local(int fd)
{
    lki_address address = { .bytes = sizeof address.storage };
    (void)getsockname(fd, (struct sockaddr *)&address.storage, &address.bytes);
    return ip_of(&address);
}

lki_ip lki_ip_peer(int fd)
{
    lki_address address = { .bytes = sizeof address.storage };
    (void)getpeername(fd, (struct sockaddr *)&address.storage, &address.bytes);
    return ip_of(&address);
}

/* ---- Sockets ----------------------------------------------------------------------------- */

static int listen_at(const struct sockaddr *address, socklen_t bytes)
{
    const int on = 1, off = 0;
    int       fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* permits a port with old
                                                                     * connections in TIME_WAIT */
    if (address->sa_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, address, bytes) == 0 && listen(fd, 1024) == 0)
        return fd;
    int error = errno;
    (void)close(fd);
    errno = error;
    return -1;
}

/* Returns true if no other host could resolve the name to this machine. */
static bool is_private_name(const lki_endpoint *endpoint, const struct addrinfo *all)
{
    struct in6_addr numeric;

    if (strcmp(endpoint->host, "localhost") == 0 || strchr(endpoint->host, ':') != NULL
        || inet_pton(AF_INET, endpoint->host, &numeric) == 1)
        return false;
    for (; all != NULL; all = all->ai_next) {
        lki_address address = { .bytes = all->ai_addrlen };
        memcpy(&address.storage, all->ai_addr, all->ai_addrlen);
        if (!lki_address_is_loopback(&address))
            return false;
    }
    return true;
}

static int listen_everywhere(const lki_endpoint *endpoint)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_family = AF_INET6,
                              .ai_flags = AI_PASSIVE | AI_NUMERICSERV }, *all = NULL;
    int             fd = -1;

    for (int i = 0; i < 2 && fd < 0; i++) { /* tries IPv6 first, then IPv4, because the machine may
                                             * not support IPv6 */
        if (getaddrinfo(NULL, endpoint->port, &hints, &all) != 0)
            all = NULL;
        if (all != NULL) {
            fd = listen_at(all->ai_addr, all->ai_addrlen);
            freeaddrinfo(all);
        }
        hints.ai_family = AF_INET;
    }
    return fd;
}

lk_status lki_endpoint_listen(int *out, const lki_endpoint *endpoint)
{
    struct addrinfo *all;
    int              error = 0;

    *out = -1;
    LK_TRY(lki_endpoint_resolve(&all, endpoint));
    bool everywhere = is_private_name(endpoint, all);
    if (everywhere) {
        *out  = listen_everywhere(endpoint);
        error = errno;
    }
    for (const struct addrinfo *a = all; a != NULL && *out < 0 && !everywhere; a = a->ai_next) {
        *out  = listen_at(a->ai_addr, a->ai_addrlen);
        error = *out < 0 && error != EADDRINUSE ? errno : error; /* EADDRINUSE is the most helpful
                                                                  * error */
    }
    freeaddrinfo(all);
    if (*out >= 0)
        return LK_OK;
    return lk_fail(LK_EIO, "node 0 cannot listen at %s port %s: %s%s", endpoint->host,
                   endpoint->port, strerror(error),
                   error == EADDRNOTAVAIL
                       ? "; that is another host's address: give one of this host's to all nodes"
                   : error == EADDRINUSE ? "; another job may use it: choose another port" : "");
}

int lki_endpoint_connect(const struct addrinfo *to)
{
    const int on = 1;
    int       fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0 || errno == EINPROGRESS)
        return fd;
    int error = errno;
    (void)close(fd);
    errno = error;
    return -1;
}
