/* tcp.c -- the link over TCP: streams, waiting, closing.
 *
 * epoll watches each connection for the events that its state needs.  epoll is level-triggered, so
 * an event need not be stored if the caller has no room for it.  Three conditions that epoll cannot
 * detect make a slot (lki_slot: both directions of a stream) "hot", and wait() checks hot slots
 * first.  The first condition is decrypted bytes in memory.  The second is a lane that is broken,
 * or that is missing because no write has opened it yet.  The third is an incoming direction in
 * which no more data can arrive.
 *
 * The third condition lets a writer detect the end of a reader that never sent anything.  Data can
 * come only from a peer that this rank has admitted.  If a slot has no incoming lane when its
 * outgoing lane ends, no valid incoming connection will arrive.
 *
 * With TLS, unsent bytes may remain in memory.  Closing sends these bytes for a bounded time, and
 * announces the end on outgoing lanes.  Without TLS the kernel already has all bytes.
 */
#include "base/file.h"
#include "link/tcp_inside.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    EVENTS     = 64, /* maximum number of events per epoll_wait() */
    CONNECT_MS = 30000,
    HELLO_MS   = 5000,
    SILENCE_MS = 60000,
    LINGER_MS  = 5000, /* maximum time that closing takes */
    ABSENT_MS  = 20,   /* if more time passes between two waits, deadlines are extended by that
                        * time */
};

static lki_tcp *tcp_of(const lki_link *link);

static int64_t now_ms(const lki_link *link)
{
    (void)link;
    return lki_now_ms();
}

/* ---- Lanes and slots --------------------------------------------------------------------- */

lk_status lki_tcp_lane_new(lki_lane **out, lki_tcp *tcp, bool outgoing, int fd)
{
    LK_TRY(LKI_NEW(out, 1, "a connection"));
    (*out)->tcp      = tcp;
    (*out)->outgoing = outgoing;
    (*out)->fd       = fd;
    return LK_OK;
}

static void lane_free(lki_lane *lane)
{
    if (lane == NULL)
        return;
    lki_lane_unlink(lane);
    lki_lane_hang_up(lane);
    lki_free(lane);
}

static void bury_all(lki_tcp *tcp)
{
    while (tcp->graveyard != NULL)
        lane_free(tcp->graveyard);
}

static lki_slot *slot_of(const lki_lane *lane)
{
    return lki_tcp_slot(lane->tcp, lane->peer, lane->stream);
}

/* Returns the lane whose end ended the incoming direction of a slot; NULL if that direction has not
 * ended. */
static const lki_lane *end_of_input(const lki_slot *slot)
{
    const lki_lane *in = slot->in, *out = slot->out;
    if (in != NULL)
        return in->state == LKI_LANE_BROKEN ? in : NULL;
    return out != NULL && out->state == LKI_LANE_BROKEN && out->was_open ? out : NULL;
}

static bool hot_to_read(const lki_slot *slot)
{
    const lki_lane *in = slot->in;
    return slot->reading && (end_of_input(slot) != NULL ||
                             (in != NULL && in->tls != NULL && lki_tls_buffered(in->tls)));
}

static bool hot_to_write(const lki_slot *slot)
{
    return slot->writing && (slot->out == NULL || slot->out->state == LKI_LANE_BROKEN);
}

void lki_tcp_heat(lki_slot *slot)
{
    bool is = hot_to_read(slot) || hot_to_write(slot), was = slot->link != NULL;
    if (is == was)
        return;
    if (was) {
        *slot->link = slot->next;
        if (slot->next != NULL)
            slot->next->link = slot->link;
        slot->link = NULL;
        return;
    }
    lki_slot **head = &slot->tcp->hot;
    slot->next      = *head;
    slot->link      = head;
    if (*head != NULL)
        (*head)->link = &slot->next;
    *head = slot;
}

void lki_tcp_break(lki_lane *lane, const char *why)
{
    char text[sizeof lane->why];
    (void)snprintf(text, sizeof text, "%s", why); /* a copy, because `why` may be lane->why */
    memcpy(lane->why, text, sizeof text);
    lki_lane_unlink(lane);
    lki_lane_hang_up(lane);
    lane->state = LKI_LANE_BROKEN;
    lki_tcp_heat(slot_of(lane));
}

/* ---- Events of epoll --------------------------------------------------------------------- */

static uint32_t wanted(const lki_lane *lane)
{
    uint32_t out = lki_lane_unsent(lane) > 0 ? EPOLLOUT : 0;
    switch (lane->state) {
    case LKI_LANE_CONNECTING: return EPOLLOUT;
    case LKI_LANE_GREETING:
        if (lane->outgoing && lane->tls == NULL)
            return EPOLLOUT;
        return EPOLLIN | out;
    case LKI_LANE_ASKING: return EPOLLIN | out;
    case LKI_LANE_OPEN:
        if (lane->outgoing)
            return EPOLLIN | EPOLLRDHUP | (slot_of(lane)->writing ? EPOLLOUT : out);
        return (slot_of(lane)->reading ? EPOLLIN : 0) | out;
    case LKI_LANE_WAITING:
    case LKI_LANE_BROKEN: break;
    }
    return 0;
}

/* Updates the epoll set.  Every mask includes EPOLLHUP, which epoll reports anyway, because
 * lane->mask == 0 means that the lane is not in the set. */
lk_status lki_tcp_rewatch(lki_lane *lane)
{
    uint32_t mask = lane->fd < 0 ? 0 : wanted(lane) | EPOLLHUP;

    if (lane->fd < 0 || mask == lane->mask || (lane->muted && (mask & EPOLLIN) == 0))
        return LK_OK;
    struct epoll_event event = { .events = mask, .data.ptr = lane };
    int                what  = lane->mask == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (epoll_ctl(lane->tcp->epoll, what, lane->fd, &event) != 0)
        return lk_fail(LK_EIO, "epoll_ctl: %s", strerror(errno));
    lane->mask  = mask;
    lane->muted = false;
    return LK_OK;
}

/* Removes a lane from the epoll set.  Otherwise epoll would report the end of the lane all the time
 * while its slot does not read. */
static lk_status mute(lki_lane *lane)
{
    if (epoll_ctl(lane->tcp->epoll, EPOLL_CTL_DEL, lane->fd, NULL) != 0)
        return lk_fail(LK_EIO, "epoll_ctl: %s", strerror(errno));
    lane->mask  = 0;
    lane->muted = true;
    return LK_OK;
}

static lk_status listen_or_not(lki_tcp *tcp, bool listening)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = NULL };
    int                what  = listening ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;
    if (listening == tcp->listening)
        return LK_OK;
    if (epoll_ctl(tcp->epoll, what, tcp->listener, &event) != 0)
        return lk_fail(LK_EIO, "epoll_ctl: %s", strerror(errno));
    tcp->listening = listening;
    return LK_OK;
}

static void tcp_watch(lki_link *link, uint32_t peer, uint32_t stream, bool reading, bool writing)
{
    lki_slot *slot = lki_tcp_slot(tcp_of(link), peer, stream);
    slot->reading  = reading;
    slot->writing  = writing;
    lki_tcp_heat(slot);
    if (slot->in != NULL && lki_tcp_rewatch(slot->in) != LK_OK)
        lki_tcp_break(slot->in, lk_error_last()->message);
    if (slot->out != NULL && lki_tcp_rewatch(slot->out) != LK_OK)
        lki_tcp_break(slot->out, lk_error_last()->message);
}

/* ---- Reading and writing ----------------------------------------------------------------- */

static lk_status tcp_write(lki_link *link, uint32_t peer, uint32_t stream,
                           const struct iovec *parts, int count, size_t *moved)
{
    lki_tcp  *tcp  = tcp_of(link);
    lki_slot *slot = lki_tcp_slot(tcp, peer, stream);

    *moved = 0;
    if (slot->out == NULL)
        LK_TRY(lki_tcp_dial(tcp, peer, stream));
    lki_lane *lane = slot->out;
    LK_ASSERT(lane != NULL);
    if (lane->state == LKI_LANE_OPEN) {
        if (lki_lane_write(lane, parts, count, moved) == LK_OK)
            return lki_tcp_rewatch(lane);
        lki_tcp_break(lane, lk_error_last()->message);
    }
    return lane->state == LKI_LANE_BROKEN ? lk_fail(LK_EPEER, "%s", lane->why) : LK_OK;
}

static lk_status tcp_read(lki_link *link, uint32_t peer, uint32_t stream, void *data, size_t bytes,
                          size_t *moved)
{
    lki_slot *slot = lki_tcp_slot(tcp_of(link), peer, stream);
    lki_lane *lane = slot->in;

    *moved = 0;
    if (lane != NULL && lane->state == LKI_LANE_OPEN) {
        lk_status status = lki_lane_read(lane, data, bytes, moved);
        if (status == LK_OK && lane->tls != NULL)
            lki_tcp_heat(slot);
        if (status != LK_OK)
            lki_tcp_break(lane, lk_error_last()->message);
    }
    const lki_lane *end = end_of_input(slot);
    return end != NULL ? lk_fail(LK_EPEER, "%s", end->why) : LK_OK;
}

/* ---- Waiting ----------------------------------------------------------------------------- */

/* The output of wait(). */
typedef struct {
    lki_ready *ready;
    uint32_t   capacity, count;
} report;

static void tell(report *to, const lki_slot *slot, bool readable, bool writable)
{
    size_t   index   = (size_t)(slot - slot->tcp->slots);
    uint32_t streams = slot->tcp->super.streams;
    if ((readable || writable) && to->count < to->capacity)
        to->ready[to->count++] = (lki_ready){ (uint32_t)(index / streams),
                                              (uint32_t)(index % streams), readable,
                                              writable, false };
}

/* Ends an outgoing lane whose peer has sent data or closed the connection. */
static void end_output(lki_lane *lane)
{
    char      why[sizeof lane->why];
    char      byte;
    int       error = 0;
    socklen_t bytes = sizeof error;

    if (getsockopt(lane->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        error = errno;
    if (error == 0 && recv(lane->fd, &byte, 1, MSG_PEEK) < 0 && errno != EAGAIN)
        error = errno;
    (void)snprintf(why, sizeof why, "%s: %s", lane->address,
                   error != 0 ? strerror(error) : "the peer has closed the connection");
    lki_tcp_break(lane, why);
}

static lk_status flush(lki_lane *lane)
{
    if (lki_lane_unsent(lane) > 0 && lki_tls_flush(lane->tls) != LK_OK) {
        lki_tcp_break(lane, lk_error_last()->message);
        return LK_OK;
    }
    return lki_tcp_rewatch(lane);
}

static lk_status open_lane_moves(lki_lane *lane, uint32_t events, report *to)
{
    const lki_slot *slot = slot_of(lane);

    if (lane->outgoing && (events & ~(uint32_t)EPOLLOUT) != 0) {
        end_output(lane);
        return LK_OK;
    }
    if ((events & EPOLLOUT) != 0)
        LK_TRY(flush(lane));
    if (lane->state != LKI_LANE_OPEN)
        return LK_OK;
    if (lane->outgoing) {
        tell(to, slot, false, slot->writing && lki_lane_unsent(lane) == 0);
        return LK_OK;
    }
    if (slot->reading)
        tell(to, slot, (events & ~(uint32_t)EPOLLOUT) != 0, false);
    else if ((events & (EPOLLHUP | EPOLLERR)) != 0)
        return mute(lane);
    return LK_OK;
}

static lk_status lane_moves(lki_lane *lane, uint32_t events, report *to)
{
    if (lane->state == LKI_LANE_OPEN)
        return open_lane_moves(lane, events, to);
    if (lane->state == LKI_LANE_BROKEN || lane->fd < 0) /* broken by an earlier event of the same
                                                         * epoll_wait() */
        return LK_OK;
    return lane->outgoing ? lki_tcp_go_on(lane) : lki_tcp_hear(lane);
}

static void tell_hot(const lki_tcp *tcp, report *to)
{
    for (const lki_slot *slot = tcp->hot; slot != NULL; slot = slot->next)
        tell(to, slot, hot_to_read(slot), hot_to_write(slot));
}

/* Handles expired deadlines and retries.  Lowers *next_ms to the time of the next deadline or
 * retry. */
static lk_status tick(lki_tcp *tcp, int64_t *next_ms)
{
    int64_t now = lki_now_ms();

    LK_TRY(lki_tcp_hurry(tcp, now, next_ms));
    LK_TRY(lki_tcp_retry(tcp, now, next_ms));
    LK_TRY(listen_or_not(tcp, tcp->listen_again_ms <= now));
    if (!tcp->listening && tcp->listen_again_ms < *next_ms)
        *next_ms = tcp->listen_again_ms;
    return LK_OK;
}

/* Handles expired deadlines, then calls epoll_wait() once.  Returns at `until_ms` at the latest. */
static lk_status look(lki_tcp *tcp, int64_t until_ms, report *to)
{
    struct epoll_event events[EVENTS];
    int64_t            next_ms = until_ms;

    bury_all(tcp);
    LK_TRY(tick(tcp, &next_ms));
    tell_hot(tcp, to);
    int64_t pause = to->count > 0 ? 0 : next_ms - lki_now_ms();
    pause         = pause < 0 ? 0 : pause > 60000 ? 60000 : pause;
    int count     = epoll_wait(tcp->epoll, events, EVENTS, (int)pause);
    if (count < 0 && errno != EINTR)
        return lk_fail(LK_EIO, "epoll_wait: %s", strerror(errno));
    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr == NULL)
            LK_TRY(lki_tcp_accept(tcp));
        else
            LK_TRY(lane_moves(events[i].data.ptr, events[i].events, to));
    }
    return LK_OK;
}

/* Extends all deadlines by the time since the last wait, if that time is long.  If the caller
 * computes between waits, a deadline would otherwise expire although the awaited event was in
 * time. */
static void excuse(lki_tcp *tcp, int64_t now)
{
    int64_t absent = now - tcp->looked_ms;
    size_t  count  = (size_t)tcp->super.ranks * tcp->super.streams;

    if (absent < ABSENT_MS)
        return;
    for (lki_lane *lane = tcp->strangers; lane != NULL; lane = lane->next)
        lane->deadline_ms += absent;
    for (size_t i = 0; i < count; i++)
        if (tcp->slots[i].out != NULL)
            tcp->slots[i].out->deadline_ms += absent;
}

static lk_status tcp_wait(lki_link *link, int64_t ms, lki_ready *ready, uint32_t capacity,
                          uint32_t *count)
{
    lki_tcp *tcp   = tcp_of(link);
    int64_t  now   = lki_now_ms();
    int64_t  until = now + (ms > 0 ? ms : 0);
    report   to    = { ready, capacity, 0 };

    *count = 0;
    excuse(tcp, now);
    do
        LK_TRY(look(tcp, until, &to));
    while (to.count == 0 && lki_now_ms() < until);
    *count         = to.count;
    tcp->looked_ms = lki_now_ms();
    return LK_OK;
}

static void tcp_traffic(const lki_link *link, uint32_t peer, lki_traffic *out)
{
    const lki_tcp *tcp = tcp_of(link);

    *out = (lki_traffic){ .bytes = 0 };
    for (uint32_t i = 0; i < link->streams; i++) {
        const lki_lane *lane = lki_tcp_slot(tcp, peer, i)->out;
        lki_traffic     one  = { .bytes = 0 };
        if (lane != NULL)
            lki_lane_traffic(lane, &one);
        one.bytes += out->bytes;
        if (one.busy < out->busy) {
            one.busy = out->busy;
            one.rate = out->rate;
        }
        *out = one;
    }
}

/* ---- Life -------------------------------------------------------------------------------- */

/* Announces the end of an outgoing TLS lane to its peer.  Returns true if unsent bytes remain in
 * memory. */
static bool say_farewell(lki_lane *lane)
{
    if (lane == NULL || lane->state != LKI_LANE_OPEN || lane->tls == NULL)
        return false;
    if (lki_tls_finish(lane->tls) != LK_OK) {
        lki_tcp_break(lane, lk_error_last()->message);
        return false;
    }
    return lki_lane_unsent(lane) > 0;
}

static bool say_farewells(lki_tcp *tcp)
{
    bool left = false;
    for (size_t i = 0; i < (size_t)tcp->super.ranks * tcp->super.streams; i++)
        left = say_farewell(tcp->slots[i].out) || left;
    return left;
}

static void tcp_free(lki_tcp *tcp)
{
    lki_tcp_tell_refusals(tcp, INT64_MAX);
    for (size_t i = 0; tcp->slots != NULL && i < (size_t)tcp->super.ranks * tcp->super.streams;
         i++) {
        lane_free(tcp->slots[i].in);
        lane_free(tcp->slots[i].out);
    }
    while (tcp->strangers != NULL)
        lane_free(tcp->strangers);
    bury_all(tcp);
    if (tcp->listener >= 0)
        close(tcp->listener);
    if (tcp->epoll >= 0)
        close(tcp->epoll);
    lki_tls_library_free(tcp->library);
    lki_free(tcp->slots);
    lki_free(tcp->reached);
    explicit_bzero(tcp->key, sizeof tcp->key);
    lki_free(tcp);
}

static void tcp_close(lki_link *link)
{
    lki_tcp *tcp   = tcp_of(link);
    int64_t  until = lki_now_ms() + LINGER_MS;
    report   none  = { NULL, 0, 0 };

    for (uint32_t peer = 0; peer < link->ranks; peer++)
        for (uint32_t i = 0; peer != link->rank && i < link->streams; i++)
            tcp_watch(link, peer, i, false, false);
    while (say_farewells(tcp) && lki_now_ms() < until && look(tcp, until, &none) == LK_OK)
        continue;
    tcp_free(tcp);
}

static lk_status start(lki_tcp *tcp, const char *host)
{
    lki_address where;

    if (tcp->options.key != NULL)
        LK_TRY(lki_tls_library_open(&tcp->library));
    LK_TRY(lki_address_listen(&tcp->listener, &where, host));
    lki_address_text(tcp->address, &where);
    tcp->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (tcp->epoll < 0)
        return lk_fail(LK_EIO, "epoll_create: %s", strerror(errno));
    return listen_or_not(tcp, true);
}

static lk_status allocate(lki_tcp **out, const lki_tcp_options *options)
{
    lki_tcp *tcp = NULL;

    LK_TRY(LKI_NEW(&tcp, 1, "a tcp link"));
    *out             = tcp;
    uint32_t streams = options->streams != 0 ? options->streams : 1;
    tcp->super       = (lki_link){ .rank    = options->rank,
                                   .ranks   = options->ranks,
                                   .streams = streams,
                                   .carrier = "TCP",
                                   .sealed  = options->key != NULL };
    tcp->epoll = tcp->listener = -1;
    tcp->options               = *options;
    tcp->options.connect_ms    = options->connect_ms != 0 ? options->connect_ms : CONNECT_MS;
    tcp->options.hello_ms      = options->hello_ms != 0 ? options->hello_ms : HELLO_MS;
    tcp->options.silence_ms    = options->silence_ms != 0 ? options->silence_ms : SILENCE_MS;
    tcp->mine                  = (lki_hello){ .epoch = options->epoch, .to = options->rank };
    memcpy(tcp->mine.job, options->job, sizeof tcp->mine.job);
    if (options->key != NULL)
        memcpy(tcp->key, options->key, sizeof tcp->key);
    tcp->looked_ms = lki_now_ms();
    tcp->expected  = (options->ranks - 1) * streams;
    LK_TRY(LKI_NEW(&tcp->reached, options->ranks, "a tcp link's peers"));
    LK_TRY(LKI_NEW(&tcp->slots, (size_t)options->ranks * streams, "a tcp link's streams"));
    for (size_t i = 0; i < (size_t)options->ranks * streams; i++) {
        tcp->slots[i].tcp     = tcp;
        tcp->slots[i].reading = true;
    }
    return LK_OK;
}

/* Plain and TLS links differ only in the sessions of their lanes, so their tables of operations
 * differ only in the name. */
#define OPS(name_)                                                                               \
    { .name = (name_), .write = tcp_write, .read = tcp_read, .watch = tcp_watch,                 \
      .wait = tcp_wait, .now_ms = now_ms, .traffic = tcp_traffic, .close = tcp_close }

static const lki_link_ops PLAIN = OPS("tcp"), SECURE = OPS("tls");

static lki_tcp *tcp_of(const lki_link *link)
{
    LK_ASSERT(link->ops == &PLAIN || link->ops == &SECURE);
    return (lki_tcp *)(uintptr_t)link;
}

lk_status lki_tcp_open(lki_link **out, const lki_tcp_options *options)
{
    lki_tcp *tcp = NULL;

    LK_ASSERT(options->rank < options->ranks && options->address_of != NULL);
    *out             = NULL;
    lk_status status = allocate(&tcp, options);
    if (status == LK_OK)
        status = start(tcp, options->host);
    if (status != LK_OK) {
        if (tcp != NULL)
            tcp_free(tcp);
        return status;
    }
    tcp->options.key  = NULL; /* owned by the caller, and possibly temporary */
    tcp->options.host = NULL;
    tcp->super.ops    = options->key != NULL ? &SECURE : &PLAIN;
    if (options->key != NULL)
        (void)snprintf(tcp->super.carrier, sizeof tcp->super.carrier, "TCP with TLS 1.3");
    *out              = &tcp->super;
    return LK_OK;
}

const char *lki_tcp_address(const lki_link *link)
{
    return tcp_of(link)->address;
}

uint64_t lki_tcp_refusals(const lki_link *link, lki_refusal why)
{
    LK_ASSERT(why > LKI_WELCOME && why < LKI_REFUSALS);
    return tcp_of(link)->refusals[why];
}
