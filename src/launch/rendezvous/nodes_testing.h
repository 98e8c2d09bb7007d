/* launch/rendezvous/nodes_testing.h -- for tests of the rendezvous: the nodes of a job in one
 * process.
 *
 * Every node is an lki_rendezvous.  One loop runs them in turn, on a port of 127.0.0.1 chosen by
 * the kernel.  A node that "dies" is closed; a node that "hangs" is no longer run.
 */
#ifndef LKI_LAUNCH_RENDEZVOUS_NODES_TESTING_H
#define LKI_LAUNCH_RENDEZVOUS_NODES_TESTING_H

#include <arpa/inet.h>
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "launch/rendezvous/guests.h"
#include "launch/rendezvous/inside.h"

static const unsigned char *job_key; /* NULL: plain */

static inline int with_key(void **state)
{
    static const unsigned char key[LKI_KEY_BYTES] = "thirty-two bytes, known to all!";
    (void)state;
    job_key = key;
    return 0;
}

static inline int without_key(void **state)
{
    (void)state;
    job_key = NULL;
    return 0;
}

enum { NODES_MAX = 8, EVENTS_MAX = 64, LIMIT_MS = 300000 };

typedef struct {
    lki_rendezvous *r;
    lki_event       events[EVENTS_MAX]; /* events received, in order */
    uint32_t        count;
    lk_error        error; /* the failure, if any, before all nodes had connected */
    bool            hangs;
} node;

typedef struct {
    node     nodes[NODES_MAX];
    uint32_t count;
    int      listener;
    char     endpoint[64];
} job;

static inline int listen_anywhere(char *endpoint, size_t bytes)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t          length  = sizeof address;
    int                fd      = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    (void)snprintf(endpoint, bytes, "tcp://127.0.0.1:%u", ntohs(address.sin_port));
    return fd;
}

/* Reserves a port.  No process listens there yet, and no other process can get the port until the
 * descriptor is closed. */
static inline int reserve_port(int family, char *endpoint, size_t bytes)
{
    struct sockaddr_in  four   = { .sin_family = AF_INET };
    struct sockaddr_in6 six    = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
    struct sockaddr    *at     = family == AF_INET ? (struct sockaddr *)&four
                                                   : (struct sockaddr *)&six;
    socklen_t           length = family == AF_INET ? sizeof four : sizeof six;
    int                 on = 1, fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0
        || bind(fd, at, length) != 0 || getsockname(fd, at, &length) != 0) {
        (void)close(fd);
        return -1;
    }
    (void)snprintf(endpoint, bytes, family == AF_INET ? "tcp://127.0.0.1:%u" : "tcp://[::1]:%u",
                   ntohs(family == AF_INET ? four.sin_port : six.sin6_port));
    return fd;
}

static inline void begin(job *j)
{
    memset(j, 0, sizeof *j);
    j->listener = listen_anywhere(j->endpoint, sizeof j->endpoint);
}

/* Begins a job without a listener at node 0's port. */
static inline void begin_without_listener(job *j)
{
    memset(j, 0, sizeof *j);
    j->listener = reserve_port(AF_INET, j->endpoint, sizeof j->endpoint);
    assert_true(j->listener >= 0);
}

static inline lki_rendezvous_options plain(const job *j, uint32_t nodes, int32_t number)
{
    static char hosts[NODES_MAX + 1][8];
    char       *host = hosts[j->count];
    (void)snprintf(host, sizeof hosts[0], "h%u", j->count);
    return (lki_rendezvous_options){ .endpoint = j->endpoint, .listener = number == 0 ? j->listener
                                     : -1, .host = host, .nodes = nodes, .workers = j->count + 1,
                                     .node = number, .join_ms = LIMIT_MS, .port = 1234,
                                     .key = job_key };
}

static inline node *add(job *j, lki_rendezvous_options options)
{
    node *n = &j->nodes[j->count++];
    memset(n, 0, sizeof *n);
    assert_int_equal(lki_rendezvous_open(&n->r, &options), LK_OK);
    return n;
}

/* Closes all nodes.  Node 0 is last, because closing node 0 waits until the other nodes have
 * left. */
static inline void end(job *j)
{
    for (int server = 0; server < 2; server++)
        for (uint32_t i = 0; i < j->count; i++) {
            node *n = &j->nodes[i];
            if (n->r == NULL || (n->r->server != NULL) != (server == 1))
                continue;
            lki_rendezvous_close(n->r, NULL);
            n->r = NULL;
        }
    (void)close(j->listener);
}

static inline void move(job *j)
{
    const struct timespec moment = { .tv_nsec = 200000 };
    for (uint32_t i = 0; i < j->count; i++) {
        node *n = &j->nodes[i];
        while (n->r != NULL && !n->hangs && n->error.status == LK_OK) {
            assert_true(n->count < EVENTS_MAX);
            lk_status st = lki_rendezvous_next(n->r, &n->events[n->count]);
            if (st != LK_OK)
                n->error = *lk_error_last();
            if (st != LK_OK || n->events[n->count].kind == LKI_EVENT_NONE)
                break;
            n->count++;
        }
    }
    (void)nanosleep(&moment, NULL);
}

static inline const lki_event *find(const node *n, lki_event_kind kind)
{
    for (uint32_t i = 0; i < n->count; i++)
        if (n->events[i].kind == kind)
            return &n->events[i];
    return NULL;
}

static inline const lki_event *await(job *j, const node *n, lki_event_kind kind)
{
    for (int64_t limit = lki_now_ms() + LIMIT_MS; find(n, kind) == NULL; move(j)) {
        if (n->error.status != LK_OK)
            fail_msg("instead of event %d: %s", kind, n->error.message);
        if (lki_now_ms() > limit)
            fail_msg("no event %d", kind);
    }
    return find(n, kind);
}

static inline void await_error(job *j, const node *n, lk_status status, const char *words)
{
    for (int64_t limit = lki_now_ms() + LIMIT_MS; n->error.status == LK_OK; move(j))
        if (lki_now_ms() > limit || n->count > 0)
            fail_msg("not refused with \"%s\"", words);
    if (n->error.status != status || strstr(n->error.message, words) == NULL)
        fail_msg("%s \"%s\" is not %s with \"%s\"", lk_status_name(n->error.status),
                 n->error.message, lk_status_name(status), words);
}

/* Waits until `count` guests are admitted, including node 0's own.  `first` is node 0. */
static inline void await_guests(job *j, const node *first, uint32_t count)
{
    for (int64_t limit = lki_now_ms() + LIMIT_MS; first->r->server->admitted < count; move(j))
        if (lki_now_ms() > limit)
            fail_msg("not %u guests", count);
}

static inline void move_for(job *j, int64_t ms)
{
    for (int64_t until = lki_now_ms() + ms; lki_now_ms() < until;)
        move(j);
}

static inline void await_all(job *j, lki_event_kind kind)
{
    for (uint32_t i = 0; i < j->count; i++)
        if (j->nodes[i].r != NULL)
            (void)await(j, &j->nodes[i], kind);
}

/* Starts nodes 0 to nodes - 1, with i + 1 workers on node i, and waits until all have connected. */
static inline void meet(job *j, uint32_t nodes, uint32_t silence_ms)
{
    begin(j);
    for (uint32_t i = 0; i < nodes; i++) {
        lki_rendezvous_options options = plain(j, nodes, (int32_t)i);
        options.silence_ms             = silence_ms;
        (void)add(j, options);
    }
    await_all(j, LKI_EVENT_MET);
}

static inline void assert_words(const char *text, const char *words)
{
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" is without \"%s\"", text, words);
}

static inline void assert_verdict(job *j, uint32_t who, uint32_t culprit, const char *words)
{
    const lki_event *event = await(j, &j->nodes[who], LKI_EVENT_VERDICT);
    assert_int_equal(event->verdict.culprit, culprit);
    assert_int_equal(event->verdict.status, LK_EPEER);
    assert_words(event->verdict.message, words);
}

static inline void introduce(const node *n)
{
    lki_roster       mine = lki_rendezvous_node(n->r, lki_rendezvous_self(n->r))->roster;
    lki_introduction workers[NODES_MAX + 1];
    for (uint32_t i = 0; i < mine.count; i++) {
        workers[i].pid = (int32_t)(100 + mine.first + i);
        (void)snprintf(workers[i].address, sizeof workers[i].address, "10.0.0.%u:%u", mine.first,
                       mine.first + i);
    }
    lki_rendezvous_introduce(n->r, workers);
}

/* ---- Descriptors ------------------------------------------------------------------------- */

static inline int count_descriptors(void **state)
{
    DIR *folder = opendir("/proc/self/fd");
    int  count  = 0;
    while (readdir(folder) != NULL)
        count++;
    (void)closedir(folder);
    *state = (void *)(intptr_t)count;
    return 0;
}

static inline int same_descriptors(void **state)
{
    void *now;
    (void)count_descriptors(&now);
    return now != *state;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, count_descriptors, same_descriptors)

#endif
