/* rendezvous.c -- a launcher's end of the rendezvous: connecting, and converting letters to events.
 *
 * All descriptors are in one epoll set, which the launcher's loop polls.  They are the connection
 * to node 0, a timer, and on node 0 the descriptors of the server.  Node 0's own launcher is
 * connected to its server by a socket pair, so it needs no special case.
 */
#include "launch/rendezvous/inside.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"

enum {
    JOIN_MS     = 300000,
    SILENCE_MS  = 10000,
    CONNECT_MS  = 3000, /* time for one address to answer */
    TICK_MS     = 100,  /* interval of the timer until all have connected; later the interval is
                         * derived from silence_ms */
    TICK_MS_MAX = 500,
    LATE_MS     = 1000, /* if a tick is late by this, or by half of silence_ms, this process was
                         * stopped */
    EVENTS_MAX  = 64,
    AT_LINE     = LKI_SERVER_LISTENER + 1,
    AT_TIMER,
};

static lk_status set_pace(lki_rendezvous *r, uint32_t tick_ms)
{
    const struct timespec   each  = { .tv_sec  = tick_ms / 1000,
                                      .tv_nsec = tick_ms % 1000 * 1000000L };
    const struct itimerspec times = { .it_value = each, .it_interval = each };

    r->tick_ms = tick_ms;
    if (timerfd_settime(r->timer, 0, &times, NULL) == 0)
        return LK_OK;
    return lk_fail(LK_EIO, "no timer for the rendezvous: %s", strerror(errno));
}

/* ---- Connecting to node 0 ---------------------------------------------------------------- */

static lk_status watch(lki_rendezvous *r, int fd, uint32_t number, uint32_t events)
{
    struct epoll_event event = { .events = events, .data = { .u32 = number } };

    if (epoll_ctl(r->epoll, EPOLL_CTL_ADD, fd, &event) == 0)
        return LK_OK;
    return lk_fail(LK_ENOMEM, "cannot watch the rendezvous: epoll_ctl: %s", strerror(errno));
}

/* Gives up this attempt to connect.  A later tick starts the next attempt. */
static void retry_later(lki_rendezvous *r, const char *why)
{
    (void)snprintf(r->why, sizeof r->why, "%s", why);
    lki_line_close(&r->line);
    r->stage = LKI_CONNECTING;
    if (r->next != NULL)
        r->next = r->next->ai_next;
}

static void connect_next(lki_rendezvous *r, int64_t now)
{
    if (r->next == NULL)
        r->next = r->addresses;
    int fd   = lki_endpoint_connect(r->next);
    r->tried = now;
    if (fd < 0) {
        retry_later(r, strerror(errno));
        return;
    }
    lki_line_open(&r->line, fd, LKI_LETTER_BYTES_MAX, now);
    r->sending   = true;
    lk_status st = watch(r, fd, AT_LINE, EPOLLIN | EPOLLOUT);
    if (st == LK_OK && r->library != NULL)
        st = lki_line_secure(&r->line, r->library, r->key, true);
    if (st != LK_OK)
        retry_later(r, lk_error_last()->message);
}

/* Sends queued bytes, and asks epoll to report room for the rest. */
static void send_waiting(lki_rendezvous *r, int64_t now)
{
    lki_line_send(&r->line, now);
    bool more = lki_line_has_more(&r->line);
    if (more == r->sending)
        return;
    r->sending               = more;
    struct epoll_event event = { .events = more ? EPOLLIN | EPOLLOUT : EPOLLIN,
                                 .data   = { .u32 = AT_LINE } };
    (void)epoll_ctl(r->epoll, EPOLL_CTL_MOD, r->line.fd, &event);
}

void lki_rendezvous_say(lki_rendezvous *r, const void *letter, size_t bytes)
{
    if (lki_line_say(&r->line, letter, bytes) != LK_OK)
        lki_rendezvous_lose(r, lk_error_last()->message);
    else
        send_waiting(r, lki_now_ms());
}

void lki_rendezvous_write(lki_rendezvous *r, const lki_letter *letter)
{
    unsigned char bytes[LKI_LETTER_PLAIN_BYTES];
    lki_rendezvous_say(r, bytes, lki_letter_write(bytes, letter));
}

static void connected(lki_rendezvous *r)
{
    int        error  = 0;
    socklen_t  bytes  = sizeof error;
    lki_letter letter = { .kind = LKI_LETTER_HELLO, .hello = r->hello };

    (void)getsockopt(r->line.fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) {
        retry_later(r, strerror(error));
        return;
    }
    r->stage   = LKI_WAITING;
    r->address = lki_ip_local(r->line.fd);
    lki_rendezvous_write(r, &letter);
}

/* ---- Loss of node 0 ---------------------------------------------------------------------- */

/* Returns true for a late node that has not received the job's standing yet. */
static bool is_new(const lki_rendezvous *r)
{
    return r->late && r->standing.since == NULL;
}

/* Fails a late node that has not entered the job and has nothing left to wait for. */
static void fail_new(lki_rendezvous *r, const char *why)
{
    (void)lk_fail(LK_EPEER, "%.400s, before this host had been let into the job", why);
    r->failure = *lk_error_last();
}

void lki_rendezvous_lose(lki_rendezvous *r, const char *why)
{
    char reason[240];

    (void)snprintf(reason, sizeof reason, "%.230s", why);
    if (r->leaving) {
        lki_line_close(&r->line);
        r->stage = LKI_OVER;
    } else if (r->stage < LKI_MET && r->line.distrusted) {
        (void)lk_fail(LK_EPEER, "node 0 at %s port %s %s: is it of the same job, and does this "
                      "node have the same job key?", r->endpoint.host, r->endpoint.port, reason);
        r->failure = *lk_error_last();
    } else if (r->stage < LKI_MET) {
        retry_later(r, reason);
    } else if (r->stage == LKI_MET) {
        lki_lost_text(r->why, sizeof r->why, r->roster[0].host, 0, r->roster[0].roster, reason);
        lki_line_close(&r->line);
        r->stage = LKI_LOST;
        if (is_new(r))
            fail_new(r, r->why);
    }
}

/* Returns the job's outcome if node 0, which would report it, is lost.  The result is this node's
 * own outcome if this outcome has more weight than the loss of a node, or proves that the job is
 * done.  A node without a rank in the last group only reports the loss. */
static lki_outcome outcome_alone(const lki_rendezvous *r)
{
    lki_outcome lost = { .weight = LKI_WEIGHT_LOST, .failed = true, .exit_code = 1 };

    (void)snprintf(lost.cause, sizeof lost.cause, "%s", r->why);
    bool complete = r->together && r->outcome.weight == 0;
    bool worse    = complete || r->outcome.weight > lost.weight;
    return worse && !r->out ? r->outcome : lost;
}

/* ---- Converting letters to events -------------------------------------------------------- */

static lk_status take_roster(lki_rendezvous *r, const lki_letter *letter)
{
    uint32_t first = 0;

    LK_TRY(LKI_NEW(&r->roster, letter->job.nodes, "the nodes of the job"));
    for (uint32_t i = 0; i < letter->job.nodes; i++) {
        lki_node *node = &r->roster[i];
        uint32_t  count = lki_letter_host(letter, i, node->host);
        node->roster    = (lki_roster){ .first = first, .count = count };
        first += count;
    }
    for (uint32_t i = 0; i < letter->job.nodes; i++)
        r->roster[i].roster.world = first;
    LK_TRY(LKI_NEW(&r->workers, first, "addresses of all workers"));
    memcpy(r->job, letter->job.job, sizeof r->job);
    r->self       = letter->job.node;
    r->nodes      = letter->job.nodes;
    r->port       = letter->job.port;
    r->late       = letter->job.late;
    r->here_ms    = letter->job.here_ms;
    r->silence_ms = letter->job.silence_ms;
    r->stage      = LKI_MET;
    r->why[0]     = '\0';
    return set_pace(r, (uint32_t)lki_max(1, lki_min(TICK_MS_MAX, r->here_ms / 2)));
}

/* Takes over the state of a job that had begun before this node connected. */
static lk_status take_standing(lki_rendezvous *r, const lki_letter *letter, lki_event *out)
{
    uint32_t world = r->roster[0].roster.world;

    if (!is_new(r) || letter->standing.count != world)
        return lk_fail(LK_EFORMAT, "sent the standing of another job");
    LK_TRY(LKI_NEW(&r->standing.since, world, "who is in the group"));
    for (uint32_t i = 0; i < world; i++)
        r->standing.since[i] = lki_letter_since(letter, i);
    r->standing.epoch = letter->standing.epoch;
    out->kind         = LKI_EVENT_MET;
    return LK_OK;
}

static lk_status not_node_0(const lki_rendezvous *r)
{
    return lk_fail(LK_EFORMAT, "what answers at %s port %s is not node 0 of this job",
                   r->endpoint.host, r->endpoint.port);
}

static lk_status take_early(lki_rendezvous *r, const lki_letter *letter, lki_event *out)
{
    if (letter->kind == LKI_LETTER_HERE)
        return LK_OK;
    if (letter->kind == LKI_LETTER_REFUSED)
        return lk_fail(letter->refused.status, "%s", letter->refused.message);
    if (letter->kind != LKI_LETTER_ROSTER)
        return not_node_0(r);
    LK_TRY(take_roster(r, letter));
    out->kind = r->late ? LKI_EVENT_NONE : LKI_EVENT_MET;
    return LK_OK;
}

static void take_introductions(lki_rendezvous *r, const lki_letter *letter, lki_event *out)
{
    uint32_t world = r->roster[0].roster.world;

    if (letter->workers.first != 0 || letter->workers.count != world) {
        lki_rendezvous_lose(r, "sent introductions of another job");
        return;
    }
    for (uint32_t i = 0; i < world; i++)
        r->workers[i] = lki_letter_introduction(letter, i);
    out->kind = LKI_EVENT_KNOWN;
}

static void take_late(lki_rendezvous *r, const lki_letter *letter, lki_event *out)
{
    uint32_t world = r->roster[0].roster.world;

    switch (letter->kind) {
    case LKI_LETTER_HERE: return;
    case LKI_LETTER_INTRODUCTIONS: take_introductions(r, letter, out); return;
    case LKI_LETTER_STOP:
        *out = (lki_event){ .kind = LKI_EVENT_STOP, .signal = letter->stop.signal,
                            .force = letter->stop.force };
        return;
    case LKI_LETTER_ENDED:
        if (letter->ended.rank >= world)
            break;
        *out = (lki_event){ .kind = LKI_EVENT_ENDED, .ended = letter->ended };
        return;
    case LKI_LETTER_VERDICT:
        if (letter->verdict.culprit >= world)
            break;
        *out = (lki_event){ .kind = LKI_EVENT_VERDICT, .verdict = letter->verdict };
        return;
    case LKI_LETTER_ASKED:
        *out = (lki_event){ .kind = LKI_EVENT_ASKED, .epoch = letter->asked.epoch,
                            .timeout_ms = letter->asked.timeout_ms };
        return;
    case LKI_LETTER_GROUP:
        r->out = !lki_members_any(&letter->group.members, r->roster[r->self].roster);
        *out = (lki_event){ .kind = LKI_EVENT_GROUP, .epoch = letter->group.epoch,
                            .members = letter->group.members };
        return;
    case LKI_LETTER_STANDING:
        if (take_standing(r, letter, out) != LK_OK)
            lki_rendezvous_lose(r, lk_error_last()->message);
        return;
    case LKI_LETTER_AWAITED:
        if (letter->awaited.node >= r->nodes)
            break;
        *out = (lki_event){ .kind = LKI_EVENT_AWAITED, .node = letter->awaited.node,
                            .waits = letter->awaited.waits };
        memcpy(out->host, letter->awaited.host, sizeof out->host);
        memcpy(r->roster[out->node].host, out->host, sizeof out->host);
        return;
    case LKI_LETTER_OUTCOME:
        *out     = (lki_event){ .kind = LKI_EVENT_OVER, .outcome = letter->outcome };
        r->stage = LKI_OVER;
        if (is_new(r))
            fail_new(r, "the job is over");
        return;
    case LKI_LETTER_HELLO:
    case LKI_LETTER_REFUSED:
    case LKI_LETTER_ROSTER:
    case LKI_LETTER_KINDS: break;
    }
    lki_rendezvous_lose(r, "sent a letter that makes no sense");
}

/* Converts the loss of node 0 into events: a verdict, and the end once this node has finished. */
static void take_loss(lki_rendezvous *r, lki_event *out)
{
    if (!r->verdict_told) {
        *out = (lki_event){ .kind = LKI_EVENT_VERDICT, .verdict = { .status = LK_EPEER } };
        memcpy(out->verdict.message, r->why, sizeof r->why);
        r->verdict_told = true;
    } else if (r->finished) {
        *out     = (lki_event){ .kind = LKI_EVENT_OVER, .outcome = outcome_alone(r) };
        r->stage = LKI_OVER;
    }
}

/* Returns the next event from bytes that have already arrived. */
static lk_status take(lki_rendezvous *r, lki_event *out)
{
    lki_letter letter;
    bool       got = true;

    while (got && out->kind == LKI_EVENT_NONE && r->failure.status == LK_OK
           && (r->stage == LKI_WAITING || r->stage == LKI_MET)) {
        lk_status st = lki_line_next(&r->line, &letter, &got);
        if (st == LK_EFORMAT && r->stage == LKI_WAITING)
            return not_node_0(r);
        if (st != LK_OK)
            lki_rendezvous_lose(r, lk_error_last()->message);
        else if (got && r->stage == LKI_WAITING)
            LK_TRY(take_early(r, &letter, out));
        else if (got)
            take_late(r, &letter, out);
    }
    if (r->stage == LKI_LOST && out->kind == LKI_EVENT_NONE)
        take_loss(r, out);
    return LK_OK;
}

/* ---- Ready descriptors and time ---------------------------------------------------------- */

/* Fails at the deadline if node 0 has not been reached.  Once this node has reached node 0, node 0
 * checks the deadline, because node 0 knows the missing nodes. */
static lk_status check_deadline(const lki_rendezvous *r, int64_t now)
{
    if (r->stage != LKI_CONNECTING || now < r->deadline)
        return LK_OK;
    const char *question = r->hello.nodes == 0 ? "do rank 0 and its host's ranks run there?"
                                               : "is it running there, with `node` 0?";
    return lk_fail(LK_ETIMEOUT, "node 0 has not answered at %s port %s within %.3g s (%.160s): %s",
                   r->endpoint.host, r->endpoint.port, r->join_ms / 1e3, r->why, question);
}

static void tick_line(lki_rendezvous *r, int64_t now, int64_t late)
{
    static const lki_letter here = { .kind = LKI_LETTER_HERE };
    char                    why[64];
    bool                    is_open = lki_line_is_open(&r->line);

    r->line.heard += late;
    r->tried += late;
    if (r->stage == LKI_CONNECTING && !is_open) {
        connect_next(r, now);
    } else if (r->stage == LKI_CONNECTING && now - r->tried > CONNECT_MS) {
        retry_later(r, "it does not answer");
    } else if (is_open && r->stage >= LKI_WAITING) {
        if (r->server == NULL && now - r->line.heard > r->silence_ms) {
            (void)snprintf(why, sizeof why, "has said nothing for %.3g s",
                           (double)(now - r->line.heard) / 1e3);
            lki_rendezvous_lose(r, why);
        } else if (now - r->line.said >= r->here_ms) {
            lki_rendezvous_write(r, &here);
        }
    }
}

static void tick(lki_rendezvous *r)
{
    uint64_t ticks;
    int64_t  now    = lki_now_ms(), passed = now - r->ticked;
    bool     paused = passed > LATE_MS || passed > r->silence_ms / 2;
    int64_t  late   = paused ? passed - r->tick_ms : 0;

    (void)!read(r->timer, &ticks, sizeof ticks);
    r->ticked = now;
    r->deadline += late;
    if (r->server != NULL)
        lki_server_tick(r->server, now, late);
    tick_line(r, now, late);
}

static void serve_line(lki_rendezvous *r, uint32_t events)
{
    int64_t now = lki_now_ms();

    if (r->stage == LKI_CONNECTING && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0)
        connected(r);
    if (!lki_line_is_open(&r->line) || r->stage == LKI_CONNECTING)
        return;
    if (lki_line_receive(&r->line, now) != LK_OK)
        lki_rendezvous_lose(r, lk_error_last()->message);
    else if (!r->line.ended) /* a line that has ended may still have unread letters */
        send_waiting(r, now);
}

/* Handles ready descriptors, the timer last.  Data that has arrived is thus read before a peer
 * counts as silent. */
static void serve(lki_rendezvous *r, int wait_ms)
{
    struct epoll_event events[EVENTS_MAX];
    int                count   = epoll_wait(r->epoll, events, EVENTS_MAX, wait_ms);
    bool               ticking = false;

    for (int i = 0; i < count; i++) {
        uint32_t number = events[i].data.u32;
        if (number == AT_TIMER)
            ticking = true;
        else if (number == AT_LINE)
            serve_line(r, events[i].events);
        else
            lki_server_serve(r->server, number, lki_now_ms());
    }
    if (ticking)
        tick(r);
}

lk_status lki_rendezvous_next(lki_rendezvous *r, lki_event *out)
{
    *out = (lki_event){ .kind = LKI_EVENT_NONE };
    if (r->failure.status != LK_OK)
        return lki_fail_again(&r->failure);
    lk_status st = take(r, out);
    if (st == LK_OK && out->kind == LKI_EVENT_NONE) {
        serve(r, 0);
        st = take(r, out);
    }
    if (st == LK_OK && out->kind == LKI_EVENT_NONE)
        st = check_deadline(r, lki_now_ms());
    if (st != LK_OK)
        r->failure = *lk_error_last();
    return r->failure.status != LK_OK ? lki_fail_again(&r->failure) : LK_OK;
}

/* ---- Lifetime ---------------------------------------------------------------------------- */

static lk_status open_timer(lki_rendezvous *r)
{
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    r->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (r->epoll < 0 || r->timer < 0)
        return lk_fail(LK_ENOMEM, "no descriptors for the rendezvous: %s", strerror(errno));
    LK_TRY(set_pace(r, TICK_MS));
    return watch(r, r->timer, AT_TIMER, EPOLLIN);
}

/* Opens the server of node 0, and this launcher's own connection to the server. */
static lk_status open_server(lki_rendezvous *r, const lki_rendezvous_options *options)
{
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return lk_fail(LK_ENOMEM, "no descriptors for the rendezvous: %s", strerror(errno));
    lki_line_open(&r->line, ends[0], LKI_LETTER_BYTES_MAX, r->ticked);
    LK_TRY(lki_server_open(&r->server, options, r->library, ends[1], r->epoll, r->ticked));
    LK_TRY(watch(r, ends[0], AT_LINE, EPOLLIN));
    lki_letter letter = { .kind = LKI_LETTER_HELLO, .hello = r->hello };
    r->stage          = LKI_WAITING;
    lki_rendezvous_write(r, &letter);
    return LK_OK;
}

static lk_status open_all(lki_rendezvous *r, const lki_rendezvous_options *options)
{
    lki_rendezvous_options all = *options;

    all.join_ms    = r->join_ms;
    all.silence_ms = r->silence_ms;
    all.key        = r->key;
    LK_TRY(lki_endpoint_parse(&r->endpoint, options->endpoint));
    LK_TRY(open_timer(r));
    if (options->key != NULL) {
        memcpy(r->key, options->key, sizeof r->key);
        LK_TRY(lki_tls_library_open(&r->library));
    }
    if (options->node == 0)
        return open_server(r, &all);
    LK_TRY(lki_endpoint_resolve(&r->addresses, &r->endpoint));
    connect_next(r, r->ticked);
    return LK_OK;
}

static lk_status check(const lki_rendezvous_options *o)
{
    uint32_t most = o->nodes == 0 ? o->world : o->nodes;

    if (most >= 1 && most <= LKI_RANKS_MAX && o->workers >= 1 && o->node >= -1
        && o->node < (int32_t)most)
        return LK_OK;
    return lk_fail(LK_EINVAL, "node %d of %u with %u workers: nodes are numbered from 0, there may "
                   "be %d, and each needs a worker", o->node, most, o->workers, LKI_RANKS_MAX);
}

static void hash_settings(lki_settings_letter *out, const char *const *settings)
{
    for (uint32_t i = 0; settings != NULL && settings[i] != NULL && i < LKI_SETTINGS_MAX; i++)
        out->hashes[out->count++] = (uint32_t)lki_xxh3(settings[i], strlen(settings[i]));
}

lk_status lki_rendezvous_open(lki_rendezvous **out, const lki_rendezvous_options *options)
{
    lki_rendezvous *r;
    lki_hello_letter       hello = { .protocol = LKI_RENDEZVOUS_PROTOCOL, .nodes = options->nodes,
                              .workers = options->workers, .node = options->node,
                              .world = options->world, .first = options->first,
                              .epoch = options->epoch, .goes_on = options->goes_on,
                              .version = LK_VERSION };
    int64_t         now   = lki_now_ms();

    *out = NULL;
    LK_TRY(check(options));
    LK_TRY(LKI_NEW(&r, 1, "rendezvous"));
    (void)snprintf(hello.host, sizeof hello.host, "%s", options->host);
    hash_settings(&hello.settings, options->settings);
    *r = (lki_rendezvous){ .epoll = -1, .timer = -1, .line = { .fd = -1 }, .hello = hello,
                           .ticked     = now,
                           .together   = options->together,
                           .join_ms    = options->join_ms != 0 ? options->join_ms : JOIN_MS,
                           .silence_ms = options->silence_ms != 0 ? options->silence_ms
                                                                  : SILENCE_MS };
    r->here_ms   = r->silence_ms / 4;
    r->deadline  = now + r->join_ms;
    lk_status st = open_all(r, options);
    if (st != LK_OK) {
        lki_rendezvous_close(r, NULL);
        return st;
    }
    *out = r;
    return LK_OK;
}

void lki_rendezvous_close(lki_rendezvous *r, const char *why)
{
    if (r == NULL)
        return;
    int64_t end = lki_now_ms() + LKI_LINGER_MS; /* time for the other nodes to leave */
    while (r->server != NULL && r->stage == LKI_OVER && lki_server_has_guests(r->server)
           && lki_now_ms() < end)
        serve(r, TICK_MS);
    lki_server_close(r->server, why);
    lki_line_close(&r->line);
    lki_tls_library_free(r->library);
    explicit_bzero(r->key, sizeof r->key);
    if (r->addresses != NULL)
        freeaddrinfo(r->addresses);
    if (r->timer >= 0)
        (void)close(r->timer);
    if (r->epoll >= 0)
        (void)close(r->epoll);
    lki_free(r->roster);
    lki_free(r->standing.since);
    lki_free(r->workers);
    lki_free(r);
}

void lki_rendezvous_forget(lki_rendezvous *r)
{
    if (r->server != NULL)
        lki_server_forget(r->server);
    if (lki_line_is_open(&r->line))
        (void)close(r->line.fd);
    explicit_bzero(r->key, sizeof r->key);
    (void)close(r->timer);
    (void)close(r->epoll);
}

int lki_rendezvous_fd(const lki_rendezvous *r)
{
    return r->epoll;
}
