/* address.c -- addresses as text, and listening sockets. */
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

lk_status lki_address_parse(lki_address *out, const char *text)
{
    char             host[256], port[16];
    struct addrinfo *found = NULL;
    struct addrinfo  hints = { .ai_socktype = SOCK_STREAM,
                               .ai_flags    = AI_NUMERICHOST | AI_NUMERICSERV };

    *out = (lki_address){ 0 };
    LK_TRY(lki_address_split(text, host, port));
    int error = getaddrinfo(host, port, &hints, &found);
    if (error != 0)
        return lk_fail(LK_EINVAL, "\"%.100s\" is not an address: %s", text, gai_strerror(error));
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
