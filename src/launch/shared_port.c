/* shared_port.c -- tells the hosts of a torchrun job where the rendezvous listens. */
#include "launch/shared_port.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/status.h"

enum { RETRY_MS = 50 };

static uint32_t port_of(int listener)
{
    struct sockaddr_in6 address; /* the port is at the same place for IPv4 */
    socklen_t           bytes = sizeof address;

    memset(&address, 0, sizeof address);
    (void)getsockname(listener, (struct sockaddr *)&address, &bytes);
    return ntohs(address.sin6_port);
}

static void write_endpoint(lki_shared_port *out, const char *host, const char *port)
{
    (void)snprintf(out->endpoint, sizeof out->endpoint,
                   strchr(host, ':') != NULL ? "tcp://[%s]:%s" : "tcp://%s:%s", host, port);
}

/* Listens on a port that the kernel chooses, and writes the port into the store.  If the store is
 * on another host, as it may be after torchrun has numbered its hosts again, listens at the address
 * by which this host reaches the store, and writes that address, too. */
static lk_status publish(lki_shared_port *out, const lki_endpoint *store)
{
    lki_endpoint here = *store;
    lki_ip       mine = lki_ip_local(out->store.fd), peer = lki_ip_peer(out->store.fd);
    bool         away = !mine.loopback && strcmp(mine.text, peer.text) != 0;
    char         port[16];

    (void)snprintf(here.port, sizeof here.port, "0");
    if (away)
        (void)snprintf(here.host, sizeof here.host, "%s", mine.text);
    LK_TRY(lki_endpoint_listen(&out->listener, &here));
    (void)snprintf(port, sizeof port, "%u", port_of(out->listener));
    write_endpoint(out, here.host, port);
    return lki_torch_store_set(&out->store, out->key, away ? out->endpoint : port);
}

static lk_status await(lki_shared_port *out, uint32_t limit_ms, lk_status (*check)(void *context),
                       void *context)
{
    const struct timespec moment = { .tv_nsec = RETRY_MS * 1000000L };
    double                end    = lki_seconds() + limit_ms * 1e-3;
    char                  value[128];
    bool                  found = false;

    for (;;) {
        LK_TRY(lki_torch_store_get(&found, &out->store, out->key, value, sizeof value));
        if (found)
            break;
        if (lki_seconds() >= end)
            return lk_fail(LK_ETIMEOUT, "the host of rank 0 has not written its port into the "
                           "store of torchrun within %.3g s", limit_ms * 1e-3);
        LK_TRY(check(context));
        (void)nanosleep(&moment, NULL);
    }
    if (strchr(value, ':') != NULL)
        (void)snprintf(out->endpoint, sizeof out->endpoint, "%s", value);
    else
        write_endpoint(out, lki_ip_peer(out->store.fd).text, value);
    return lki_rendezvous_check(out->endpoint);
}

lk_status lki_shared_port_open(lki_shared_port *out, const lki_foreign *f, uint32_t limit_ms,
                               lk_status (*check)(void *context), void *context)
{
    lki_endpoint store;

    *out = (lki_shared_port){ .listener = -1, .store = { .fd = -1 } };
    (void)snprintf(out->key, sizeof out->key, "lockstep/%.150s", f->store);
    LK_TRY(lki_endpoint_parse(&store, f->rendezvous));
    LK_TRY(lki_torch_store_open(&out->store, &store));
    return f->rank == 0 ? publish(out, &store) : await(out, limit_ms, check, context);
}

void lki_shared_port_withdraw(lki_shared_port *port)
{
    if (port->listener >= 0 && port->store.fd >= 0)
        (void)(lki_torch_store_delete(&port->store, port->key) == LK_OK);
    lki_torch_store_close(&port->store);
}
