/* address.c -- addresses as text, and the address of this host that other hosts can reach. */
#include "link/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

lk_status lki_address_split(const char *text, char host[256], char port[16])
{
    const char *colon = strrchr(text, ':');
    const char *first = text, *end = colon;
    if (colon != NULL && text[0] == '[' && colon > text && colon[-1] == ']') {
        first++;
        end--;
    } else if (colon != NULL && memchr(text, ':', (size_t)(colon - text)) != NULL) {
        return lk_fail(LK_EINVAL, "\"%.100s\": write an IPv6 address as [ADDRESS]:PORT", text);
    }
    if (colon == NULL || end <= first || colon[1] == '\0' || end - first >= 256 ||
        strlen(colon + 1) >= 16)
        return lk_fail(LK_EINVAL, "\"%.100s\" is not HOST:PORT", text);
    memcpy(host, first, (size_t)(end - first));
    host[end - first] = '\0';
    memcpy(port, colon + 1, strlen(colon + 1) + 1);
    return LK_OK;
}

/* Resolves the text HOST:PORT.  `flags` are those of getaddrinfo(). */
static lk_status resolve(struct addrinfo **out, const char *text, int flags)
{
    char            host[256], port[16];
    struct addrinfo hints = { .ai_socktype = SOCK_DGRAM, .ai_flags = flags };

    *out = NULL;
    LK_TRY(lki_address_split(text, host, port));
    int error = getaddrinfo(host, port, &hints, out);
    if (error != 0)
        return lk_fail(LK_EINVAL, "\"%.100s\" is not an address: %s", text, gai_strerror(error));
    return LK_OK;
}

lk_status lki_address_parse(lki_address *out, const char *text)
{
    struct addrinfo *found = NULL;

    *out = (lki_address){ 0 };
    LK_TRY(resolve(&found, text, AI_NUMERICHOST | AI_NUMERICSERV));
    memcpy(&out->storage, found->ai_addr, found->ai_addrlen);
    out->bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return LK_OK;
}

static void numeric_host(char out[LKI_ADDRESS_BYTES], const lki_address *address)
{
    if (getnameinfo((const struct sockaddr *)&address->storage, address->bytes, out,
                    LKI_ADDRESS_BYTES, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(out, LKI_ADDRESS_BYTES, "?");
}

static uint16_t port_of(const lki_address *address)
{
    in_port_t port = 0;
    if (address->storage.ss_family == AF_INET)
        port = ((const struct sockaddr_in *)(const void *)&address->storage)->sin_port;
    if (address->storage.ss_family == AF_INET6)
        port = ((const struct sockaddr_in6 *)(const void *)&address->storage)->sin6_port;
    return ntohs(port);
}

void lki_address_text(char out[LKI_ADDRESS_BYTES], const lki_address *address)
{
    char host[LKI_ADDRESS_BYTES];

    numeric_host(host, address);
    snprintf(out, LKI_ADDRESS_BYTES,
             address->storage.ss_family == AF_INET6 ? "[%.50s]:%u" : "%.50s:%u", host,
             port_of(address));
}

bool lki_address_is_loopback(const lki_address *address)
{
    if (address->storage.ss_family == AF_INET) {
        const struct sockaddr_in *four = (const void *)&address->storage;
        return ntohl(four->sin_addr.s_addr) >> 24 == 127;
    }
    const struct in6_addr *six =
        &((const struct sockaddr_in6 *)(const void *)&address->storage)->sin6_addr;
    return address->storage.ss_family == AF_INET6 &&
           (IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127));
}

static bool is_link_local(const lki_address *address)
{
    return address->storage.ss_family == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(
               &((const struct sockaddr_in6 *)(const void *)&address->storage)->sin6_addr);
}

/* ---- Interfaces -------------------------------------------------------------------------- */

/* Finds the local address of the route to `to`.  Connecting a datagram socket chooses a route
 * without sending data.  Returns 0 or an errno. */
static int route(lki_address *out, const struct addrinfo *to)
{
    int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), error = 0;
    if (fd < 0)
        return errno;
    *out = (lki_address){ .bytes = sizeof out->storage };
    if (connect(fd, to->ai_addr, to->ai_addrlen) != 0 ||
        getsockname(fd, (struct sockaddr *)&out->storage, &out->bytes) != 0)
        error = errno;
    close(fd);
    return error;
}

lk_status lki_address_interface(char out[LKI_ADDRESS_BYTES], const char *towards, bool remote)
{
    struct addrinfo *found = NULL;
    lki_address      mine  = { 0 };
    int              error = EHOSTUNREACH;

    LK_TRY(resolve(&found, towards, AI_NUMERICSERV));
    for (const struct addrinfo *to = found; to != NULL && error != 0; to = to->ai_next)
        error = route(&mine, to);
    freeaddrinfo(found);
    if (error != 0)
        return lk_fail(LK_EINVAL, "there is no route from this host to %s: %s", towards,
                       strerror(error));
    numeric_host(out, &mine);
    if (remote && lki_address_is_loopback(&mine))
        return lk_fail(LK_EINVAL,
                       "%s is reached over the loopback address %s, where other hosts "
                       "cannot reach this one; name the host by an address of a network "
                       "interface (`ip address` lists them), and see that /etc/hosts "
                       "does not map its name to a loopback address",
                       towards, out);
    if (remote && is_link_local(&mine))
        return lk_fail(LK_EINVAL,
                       "%s is reached over the link-local address %s, which means "
                       "nothing on other hosts; use a global or an IPv4 address",
                       towards, out);
    return LK_OK;
}

lk_status lki_address_listen(int *fd, lki_address *out, const char *host)
{
    char text[LKI_ADDRESS_BYTES + 8];

    *fd = -1;
    snprintf(text, sizeof text, strchr(host, ':') != NULL ? "[%.60s]:0" : "%.60s:0", host);
    LK_TRY(lki_address_parse(out, text));
    int fresh = socket(out->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fresh < 0 || bind(fresh, (const struct sockaddr *)&out->storage, out->bytes) != 0 ||
        listen(fresh, SOMAXCONN) != 0 ||
        getsockname(fresh, (struct sockaddr *)&out->storage, &out->bytes) != 0) {
        int error = errno;
        if (fresh >= 0)
            close(fresh);
        return lk_fail(LK_EIO, "cannot listen on %s: %s%s", host, strerror(error),
                       error == EADDRNOTAVAIL ? "; this host has no such address" : "");
    }
    *fd = fresh;
    return LK_OK;
}
