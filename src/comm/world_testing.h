/* comm/world_testing.h -- for tests: a group of ranks as threads, or as forked processes whose
 * parent acts as the launcher.
 *
 * A rank's main returns true on success; on failure it prints the reason.  The parent serves the
 * sockets, reaps the children and (unless `deaf`) reports how they ended.
 *
 * WORLD_PATIENCE_MS is a deadline that no healthy rank misses, even on a busy machine.
 */
#ifndef LKI_COMM_WORLD_TESTING_H
#define LKI_COMM_WORLD_TESTING_H

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "comm/group/group.h"
#include "comm/packet.h"

enum { WORLD_MAX = 16, NOBODY = WORLD_MAX, WORLD_PATIENCE_MS = 300000 };

typedef struct {
    uint32_t size;
    bool     threads;
    uint32_t timeout_ms;
    bool     deaf;       /* processes: the parent does not report deaths to the ranks */
    uint32_t victim;     /* processes: rank that receives `signal` once `*strike` is true; NOBODY:
                          * none */
    int      signal;
    const _Atomic bool *strike; /* in memory that all processes share */
} world;

typedef bool (*world_main)(lk_comm *comm, void *context);

typedef struct {
    lk_comm   *comm;
    world_main main;
    void      *context;
    bool       satisfied;
} world_thread;

#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "%s:%d: rank %u of %u: %s is false; last error: %s\n", __FILE__,     \
                    __LINE__, lk_comm_rank(comm), lk_comm_size(comm), #condition,                \
                    lk_error_last()->message);                                                   \
            return false;                                                                        \
        }                                                                                        \
    } while (0)

static void *world_thread_main(void *argument)
{
    world_thread *t = argument;
    t->satisfied    = t->main(t->comm, t->context);
    lk_comm_free(t->comm);
    return NULL;
}

/* Runs `main` on all ranks, as threads.  Returns a bit set of the ranks on which `main` returned
 * true. */
static uint32_t world_run_threads(world w, world_main main, void *context)
{
    lk_comm        *comms[WORLD_MAX];
    world_thread    ranks[WORLD_MAX];
    pthread_t       threads[WORLD_MAX];
    lk_comm_options options   = { .struct_size = sizeof(lk_comm_options),
                                  .timeout_ms  = w.timeout_ms };
    uint32_t        satisfied = 0;

    if (lk_comm_open_threads(comms, w.size, &options) != LK_OK)
        abort();
    for (uint32_t rank = 0; rank < w.size; rank++) {
        ranks[rank] = (world_thread){ comms[rank], main, context, false };
        if (pthread_create(&threads[rank], NULL, world_thread_main, &ranks[rank]) != 0)
            abort();
    }
    for (uint32_t rank = 0; rank < w.size; rank++) {
        (void)pthread_join(threads[rank], NULL);
        satisfied |= (uint32_t)ranks[rank].satisfied << rank;
    }
    return satisfied;
}

/* The state of the parent process, which acts as launcher: the board and one end of each socket. */
typedef struct {
    lki_board    *board;
    int           fd;
    pid_t         pids[WORLD_MAX + 1]; /* the entry of NOBODY is unused */
    struct pollfd sockets[WORLD_MAX];
} world_launcher;

static _Noreturn void world_child(const world_launcher *l, uint32_t rank, int socket, world w,
                                  world_main main, void *context)
{
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options),
                                .timeout_ms  = w.timeout_ms };
    lk_comm        *comm;

    if (lki_comm_open_shm(&comm, l->fd, rank, socket, &options) != LK_OK) {
        fprintf(stderr, "rank %u cannot join: %s\n", rank, lk_error_last()->message);
        _exit(9);
    }
    bool satisfied = main(comm, context);
    lk_comm_free(comm);
    _exit(satisfied ? 0 : 1);
}

/* Passes an arena to its ranks, as a launcher does. */
static void world_serve_rank(world_launcher *l, world w, uint32_t rank)
{
    lki_packet packet;
    int        fd;
    bool       open = true;

    if (lki_packet_receive(l->sockets[rank].fd, &packet, &fd, &open) != LK_OK)
        abort();
    for (uint32_t to = 0; to < w.size && packet.kind == LKI_PACKET_ARENA; to++)
        if (to != rank && l->sockets[to].fd >= 0 && (packet.arena.members[0] >> to & 1) != 0)
            (void)(lki_packet_send(l->sockets[to].fd, &packet, fd) == LK_OK);
    if (fd >= 0)
        (void)close(fd);
    if (open)
        return;
    (void)close(l->sockets[rank].fd);
    l->sockets[rank].fd = -1;
}

static void world_reap(world_launcher *l, world w, uint32_t *alive, uint32_t *satisfied)
{
    for (uint32_t rank = 0; rank < w.size; rank++) {
        int status;
        if ((*alive >> rank & 1) == 0 || waitpid(l->pids[rank], &status, WNOHANG) != l->pids[rank])
            continue;
        *alive &= ~(UINT32_C(1) << rank);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            *satisfied |= UINT32_C(1) << rank;
        if (!w.deaf)
            (void)lki_board_ended(l->board, rank, WIFEXITED(status) ? WEXITSTATUS(status) : 0,
                                  WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    }
}

/* Serves the ranks until all of them have ended.  If only a stopped victim is left, kills it.
 * Returns a bit set of the ranks that succeeded. */
static uint32_t world_serve(world_launcher *l, world w)
{
    uint32_t alive = (UINT32_C(1) << w.size) - 1, satisfied = 0;
    bool     struck = w.victim >= w.size;

    while (alive != 0) {
        (void)poll(l->sockets, w.size, 2);
        for (uint32_t rank = 0; rank < w.size; rank++)
            if (l->sockets[rank].fd >= 0 && l->sockets[rank].revents != 0)
                world_serve_rank(l, w, rank);
        if (!struck && atomic_load(w.strike)) {
            struck = true;
            (void)kill(l->pids[w.victim], w.signal);
        }
        world_reap(l, w, &alive, &satisfied);
        if (struck && w.victim < w.size && alive == UINT32_C(1) << w.victim)
            (void)kill(l->pids[w.victim], SIGKILL);
    }
    return satisfied;
}

static uint32_t world_run_processes(world w, world_main main, void *context)
{
    world_launcher l;

    if (lki_board_create(&l.board, &l.fd, lki_roster_alone(w.size), NULL, w.size) != LK_OK)
        abort();
    for (uint32_t rank = 0; rank < w.size; rank++) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
            abort();
        l.sockets[rank] = (struct pollfd){ .fd = ends[0], .events = POLLIN };
        l.pids[rank]    = fork();
        if (l.pids[rank] < 0)
            abort();
        if (l.pids[rank] == 0)
            world_child(&l, rank, ends[1], w, main, context);
        (void)close(ends[1]);
        atomic_store(&l.board->ranks[rank].pid, l.pids[rank]);
    }
    uint32_t satisfied = world_serve(&l, w);
    for (uint32_t rank = 0; rank < w.size; rank++)
        if (l.sockets[rank].fd >= 0)
            (void)close(l.sockets[rank].fd);
    (void)munmap(l.board, l.board->bytes);
    (void)close(l.fd);
    return satisfied;
}

static inline uint32_t world_run(world w, world_main main, void *context)
{
    return w.threads ? world_run_threads(w, main, context) : world_run_processes(w, main, context);
}

/* Runs `main` on all ranks.  Returns true if `main` returned true on every rank. */
static inline bool world_all(uint32_t size, bool threads, world_main main, void *context)
{
    world w = { .size = size, .threads = threads, .timeout_ms = WORLD_PATIENCE_MS,
                .victim = NOBODY };
    return world_run(w, main, context) == (UINT32_C(1) << size) - 1;
}

/* Returns values that differ between ranks, elements and calls, and whose sums are rounded. */
static inline float world_value(uint32_t rank, size_t i, uint32_t call)
{
    uint32_t x = (uint32_t)i * 2654435761u ^ (rank + 1) * 0x9e3779b9u ^ call * 0x85ebca6bu;
    x ^= x >> 15;
    x *= 0x2c1b3c6du;
    x ^= x >> 12;
    float unit = (float)(x >> 8) * 0x1p-24f - 0.5f;
    return (x & 7) == 0 ? unit * 1e6f : unit;
}

/* Returns the sum of the values of ranks [first, first + count) of a communicator along the
 * canonical tree. */
static inline float world_tree(const lk_comm *comm, uint32_t first, uint32_t count, size_t i,
                               uint32_t call)
{
    uint32_t left = 1;
    if (count == 1)
        return world_value(lk_comm_world_rank(comm, first), i, call);
    while (left * 2 < count)
        left *= 2;
    return world_tree(comm, first, left, i, call) +
           world_tree(comm, first + left, count - left, i, call);
}

#endif
