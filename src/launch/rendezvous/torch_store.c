/* torch_store.c -- a client of torchrun's key-value store, a TCPStore. */
#include "launch/rendezvous/torch_store.h"

#include <errno.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/status.h"

/* Operations.  A store that expects a greeting has SET, GET and CHECK under the next higher number,
 * and only such a store has CANCEL. */
enum { SET = 0, GET = 2, CHECK = 4, DELETE = 8, GREETING = 0, CANCEL = 12 };

enum { WAIT_SECONDS = 10, TEXT_MAX = 256, READY = 0, NOT_READY = 1 };

static const uint32_t greeting = UINT32_C(0x3c85f7ce);

typedef struct {
    unsigned char bytes[2 * TEXT_MAX + 32];
    size_t        used;
} message;

static void put(message *m, const void *bytes, size_t count)
{
    LK_ASSERT(m->used + count <= sizeof m->bytes);
    memcpy(m->bytes + m->used, bytes, count);
    m->used += count;
}

static void put_text(message *m, const char *text)
{
    uint64_t length = strlen(text);

    LK_ASSERT(length <= TEXT_MAX);
    put(m, &length, sizeof length);
    put(m, text, length);
}

static message begin(const lki_torch_store *store, int operation)
{
    message             m      = { .used = 0 };
    bool                later  = store->greets && operation != DELETE;
    const unsigned char number = (unsigned char)(operation + later);

    put(&m, &number, 1);
    return m;
}

/* ---- Sending and receiving --------------------------------------------------------------- */

static lk_status fail(const char *what, int error)
{
    return lk_fail(LK_EPEER, "the store of torchrun at MASTER_ADDR and MASTER_PORT %s: %s", what,
                   error == EAGAIN || error == EINPROGRESS ? "no answer in 10 s"
                                                           : strerror(error));
}

static lk_status send_message(const lki_torch_store *store, const message *m)
{
    for (size_t sent = 0; sent < m->used;) {
        ssize_t count = send(store->fd, m->bytes + sent, m->used - sent, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return fail("cannot be asked", errno);
        sent += (size_t)count;
    }
    return LK_OK;
}

static lk_status receive(const lki_torch_store *store, void *out, size_t bytes)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t count = recv(store->fd, (char *)out + got, bytes - got, 0);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return fail("does not answer", count < 0 ? errno : ECONNRESET);
        got += (size_t)count;
    }
    return LK_OK;
}

/* ---- Operations -------------------------------------------------------------------------- */

lk_status lki_torch_store_set(lki_torch_store *store, const char *key, const char *value)
{
    message m = begin(store, SET);

    put_text(&m, key);
    put_text(&m, value);
    return send_message(store, &m);
}

lk_status lki_torch_store_delete(lki_torch_store *store, const char *key)
{
    message m = begin(store, DELETE);
    int64_t deleted;

    put_text(&m, key);
    LK_TRY(send_message(store, &m));
    return receive(store, &deleted, sizeof deleted);
}

static lk_status check(bool *found, lki_torch_store *store, const char *key)
{
    const uint64_t one = 1;
    message        m   = begin(store, CHECK);
    unsigned char  answer;

    put(&m, &one, sizeof one);
    put_text(&m, key);
    LK_TRY(send_message(store, &m));
    LK_TRY(receive(store, &answer, 1));
    *found = answer == READY;
    return answer == READY || answer == NOT_READY ? LK_OK : fail("is no such store", EPROTO);
}

lk_status lki_torch_store_get(bool *found, lki_torch_store *store, const char *key, char *value,
                              size_t bytes)
{
    message  m = begin(store, GET);
    uint64_t length;

    LK_TRY(check(found, store, key));
    if (!*found)
        return LK_OK;
    put_text(&m, key);
    LK_TRY(send_message(store, &m));
    LK_TRY(receive(store, &length, sizeof length));
    if (length >= bytes)
        return fail("has another value than lockstep's", EMSGSIZE);
    LK_TRY(receive(store, value, length));
    value[length] = '\0';
    return LK_OK;
}

/* ---- Connecting -------------------------------------------------------------------------- */

static lk_status connect_to(lki_torch_store *out, const struct addrinfo *all)
{
    const struct timeval limit = { .tv_sec = WAIT_SECONDS };
    int                  error = ECONNREFUSED;

    for (; all != NULL && out->fd < 0; all = all->ai_next) {
        int fd = socket(all->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0)
            (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (fd >= 0) /* also limits connect() */
            (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (fd >= 0 && connect(fd, all->ai_addr, all->ai_addrlen) == 0) {
            out->fd = fd;
            break;
        }
        error = errno;
        if (fd >= 0)
            (void)close(fd);
    }
    return out->fd >= 0 ? LK_OK : fail("cannot be reached", error);
}

/* Sends the greeting, and cancels waits that do not exist, which the store confirms.  To a store
 * that expects no greeting, the message is the beginning of a text of 10^17 bytes: the store has no
 * memory for it, and closes the connection. */
static lk_status greet(lki_torch_store *store)
{
    static const unsigned char cancels[] = { CANCEL, CANCEL, CANCEL, CANCEL };
    const unsigned char        number    = GREETING;
    message                    m         = { .used = 0 };
    unsigned char              answers[sizeof cancels];

    put(&m, &number, 1);
    put(&m, &greeting, sizeof greeting);
    put(&m, cancels, sizeof cancels);
    LK_TRY(send_message(store, &m));
    return receive(store, answers, sizeof answers);
}

lk_status lki_torch_store_open(lki_torch_store *out, const lki_endpoint *endpoint)
{
    struct addrinfo *all;
    bool             unused;

    *out = (lki_torch_store){ .fd = -1, .greets = true };
    LK_TRY(lki_endpoint_resolve(&all, endpoint));
    lk_status st = connect_to(out, all);
    if (st == LK_OK && greet(out) != LK_OK) {
        lki_torch_store_close(out);
        out->greets = false;
        st          = connect_to(out, all);
        if (st == LK_OK)
            st = check(&unused, out, "lockstep");
    }
    freeaddrinfo(all);
    if (st != LK_OK)
        lki_torch_store_close(out);
    return st;
}

void lki_torch_store_close(lki_torch_store *store)
{
    if (store->fd >= 0)
        (void)close(store->fd);
    store->fd = -1;
}
