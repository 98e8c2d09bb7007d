/* watcher.c -- the watcher of a machine; see watcher.h.
 *
 * Ranks connect to an abstract Unix socket whose name is derived from the job.  They send a word
 * after they have joined, and another one when they exit.  The kernel lists ends of connections in
 * the order in which they happened.  So the first one without the second word is the cause, even if
 * all other ranks are dead when the watcher looks.  (Processes with threads end later than their
 * connections, and in another order.)  Children of a rank may hold its connection, so the watcher
 * has a pidfd, too.  It has a session of its own, so MPI's launcher does not end it with the ranks.
 */
#include "launch/watcher.h"

#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/pidfd.h"
#include "comm/roster.h"

/* The watcher's fixed descriptors, after stderr. */
enum { AT_SOCKET = 3, AT_STARTER, AT_END };

/* The numbers of events that are not those of a rank's pidfd. */
enum { OF_SOCKET = LKI_RANKS_MAX, OF_STARTER };

/* A word of a rank to the watcher. */
typedef struct {
    uint32_t rank;
    uint32_t exits; /* the process ends by itself */
} word;

typedef struct {
    uint32_t rank;
    pid_t    pid;
    int      pidfd, socket;
    bool     exits;
} watched;

typedef struct {
    int       epoll;
    watched  *ranks;
    uint32_t  most, known, ended; /* number of ranks: of this machine, with a pidfd, ended */
    bool      abandoned;          /* the process that started the watcher has ended */
} watcher;

static socklen_t name_of(struct sockaddr_un *out, const lki_foreign *job)
{
    *out     = (struct sockaddr_un){ .sun_family = AF_UNIX };
    int used = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "lockstep-watch-%016llx",
                        (unsigned long long)job->job);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
}

/* ---- The watcher ------------------------------------------------------------------------- */

static void wait_for(const watcher *w, int fd, uint32_t number)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u32 = number };
    (void)epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &event);
}

static void forget(const watcher *w, int fd)
{
    (void)epoll_ctl(w->epoll, EPOLL_CTL_DEL, fd, NULL);
}

/* Accepts the connection of a rank.  A rank of another user is not watched. */
static void accept_rank(watcher *w)
{
    struct ucred peer  = { .pid = 0 };
    socklen_t    bytes = sizeof peer;
    int          fd    = accept4(AT_SOCKET, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int          pidfd = -1;

    if (fd < 0)
        return;
    if (w->known < w->most && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
        peer.uid == getuid())
        pidfd = lki_pidfd_open(peer.pid);
    if (pidfd < 0) {
        (void)close(fd);
        return;
    }
    w->ranks[w->known] = (watched){ .pid = peer.pid, .pidfd = pidfd, .socket = fd };
    wait_for(w, fd, w->known);
    wait_for(w, pidfd, w->known);
    w->known++;
}

/* Reads what a rank has said.  Returns false if it has closed the connection. */
static bool hear(watched *rank)
{
    word    said;
    ssize_t got;

    while ((got = recv(rank->socket, &said, sizeof said, MSG_DONTWAIT)) > 0) {
        rank->rank  = said.rank;
        rank->exits = said.exits != 0;
    }
    return got != 0;
}

static bool has_ended(const watched *rank)
{
    struct pollfd process = { .fd = rank->pidfd, .events = POLLIN };
    return poll(&process, 1, 0) != 0;
}

static void name_lost(const watched *rank)
{
    char host[LKI_HOST_BYTES] = "?";

    (void)gethostname(host, sizeof host - 1);
    fprintf(stderr, "lockstep: rank %u (host %s, pid %d) is lost: its process was killed, or ended "
            "without exit()\n", rank->rank, host, (int)rank->pid);
}

/* Watches until a rank is lost, or all have ended. */
static void watch(watcher *w)
{
    struct epoll_event event;

    while (!w->abandoned || w->ended < w->known) {
        if (epoll_wait(w->epoll, &event, 1, -1) != 1)
            continue;
        if (event.data.u32 == OF_SOCKET) {
            accept_rank(w);
            continue;
        }
        if (event.data.u32 == OF_STARTER) {
            forget(w, AT_STARTER);
            w->abandoned = true;
            continue;
        }
        watched *rank   = &w->ranks[event.data.u32];
        bool     closed = !hear(rank), ended = has_ended(rank);
        if ((closed || ended) && !rank->exits) {
            name_lost(rank);
            return;
        }
        if (closed || ended)
            forget(w, rank->socket);
        if (ended) {
            forget(w, rank->pidfd);
            w->ended++;
        }
    }
}

/* Closes all of the worker's descriptors except stderr and two. */
static void leave_the_worker(int listener, int starter)
{
    const int kept[2] = { fcntl(listener, F_DUPFD, AT_END), fcntl(starter, F_DUPFD, AT_END) };
    int       nothing = open("/dev/null", O_RDWR);

    (void)dup2(nothing, STDIN_FILENO);
    (void)dup2(nothing, STDOUT_FILENO);
    (void)dup2(kept[0], AT_SOCKET);
    (void)dup2(kept[1], AT_STARTER);
    (void)close_range(AT_END, ~0U, 0);
    (void)setsid();
    (void)prctl(PR_SET_NAME, "lockstep-watch");
}

static _Noreturn void be_the_watcher(uint32_t most, int listener, int starter)
{
    watcher w = { .most = most };

    leave_the_worker(listener, starter);
    w.epoll = epoll_create1(EPOLL_CLOEXEC);
    w.ranks = calloc(most, sizeof *w.ranks);
    if (w.epoll >= 0 && w.ranks != NULL) {
        wait_for(&w, AT_SOCKET, OF_SOCKET);
        wait_for(&w, AT_STARTER, OF_STARTER);
        watch(&w);
    }
    _exit(0);
}

/* ---- The worker -------------------------------------------------------------------------- */

void lki_watcher_start(const lki_foreign *job)
{
    struct sockaddr_un name;
    socklen_t          bytes = name_of(&name, job);

    if (job->local_rank != 0)
        return;
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int self     = lki_pidfd_open(getpid());
    if (listener >= 0 && self >= 0 &&
        bind(listener, (const struct sockaddr *)&name, bytes) == 0 &&
        listen(listener, LKI_RANKS_MAX) == 0) {
        pid_t child = fork();
        if (child == 0) {
            if (fork() == 0)
                be_the_watcher(job->local_size, listener, self);
            _exit(0);
        }
        while (child > 0 && waitpid(child, NULL, 0) < 0)
            continue;
    }
    if (listener >= 0)
        (void)close(listener);
    if (self >= 0)
        (void)close(self);
}

/* The connection to the watcher, and the rank and number of this process.  Global variables,
 * because exit() passes nothing to its handlers. */
static int      watcher_socket = -1;
static uint32_t watched_rank;
static pid_t    watched_pid;

static void say(bool exits)
{
    const word said = { .rank = watched_rank, .exits = exits };
    (void)!send(watcher_socket, &said, sizeof said, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void say_last_word(void)
{
    if (getpid() == watched_pid) /* and not a child that was forked */
        say(true);
}

void lki_watcher_tell(const lki_foreign *job, uint32_t rank)
{
    struct sockaddr_un name;
    socklen_t          bytes = name_of(&name, job);

    if (watcher_socket >= 0)
        return;
    watcher_socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (watcher_socket < 0)
        return;
    watched_rank = rank;
    watched_pid  = getpid();
    if (connect(watcher_socket, (const struct sockaddr *)&name, bytes) == 0) {
        say(false);
        (void)atexit(say_last_word);
    }
}
