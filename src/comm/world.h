/* comm/world.h -- for tests: a group of ranks as threads, or as forked processes whose parent
 * plays the launcher.
 *
 * A rank's main returns whether it is satisfied; it says itself why it is not.  The parent
 * serves the sockets, reaps the children and (unless it plays deaf) reports how they ended.
 */
#ifndef LKI_COMM_WORLD_H
#define LKI_COMM_WORLD_H

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "comm/control.h"
#include "comm/group.h"

enum { WORLD_MAX = 16, NOBODY = WORLD_MAX };

typedef struct {
    uint32_t size;
    bool     threads;
    uint32_t timeout_ms;
    bool     deaf;       /* processes: the parent does not report deaths */
    uint32_t victim;     /* processes: who gets `signal` after `after_ms`; NOBODY */
    int      signal;
    int64_t  after_ms;   /* since all ranks first called lk_comm_note() */
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

/* Bit r: rank r was satisfied. */
static uint32_t world_run_threads(world w, world_main main, void *context)
{
    lk_comm        *comms[WORLD_MAX];
    world_thread    ranks[WORLD_MAX];
    pthread_t       threads[WORLD_MAX];
    lk_comm_options options   = { .timeout_ms = w.timeout_ms };
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

static _Noreturn void world_child(lki_control *control, uint32_t rank, int socket, world w,
                                  world_main main, void *context)
{
    lk_comm_options options = { .timeout_ms = w.timeout_ms };
    lk_comm        *comm;

    if (lki_comm_open_shm(&comm, lki_control_fd(control), rank, socket, &options) != LK_OK) {
        fprintf(stderr, "rank %u cannot join: %s\n", rank, lk_error_last()->message);
        _exit(9);
    }
    bool satisfied = main(comm, context);
    lk_comm_free(comm);
    _exit(satisfied ? 0 : 1);
}

static void world_reap(lki_control *control, world w, const pid_t *pids, uint32_t *alive,
                       uint32_t *satisfied)
{
    for (uint32_t rank = 0; rank < w.size; rank++) {
        int status;
        if ((*alive >> rank & 1) == 0 || waitpid(pids[rank], &status, WNOHANG) != pids[rank])
            continue;
        *alive &= ~(UINT32_C(1) << rank);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            *satisfied |= UINT32_C(1) << rank;
        if (!w.deaf)
            (void)lki_control_ended(control, rank, WIFEXITED(status) ? WEXITSTATUS(status) : 0,
                                    WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    }
}

/* Whether every rank has said where it is: the blow is not for those still on their way. */
static bool world_under_way(const lki_control *control, world w)
{
    lki_rank_view view;
    for (uint32_t rank = 0; rank < w.size; rank++) {
        lki_control_view(control, rank, &view);
        if (!view.noted)
            return false;
    }
    return true;
}

/* Until no rank lives.  A stopped victim is killed at the end, when only it is left. */
static uint32_t world_serve(lki_control *control, world w, const pid_t *pids, struct pollfd *fds)
{
    uint32_t alive = (UINT32_C(1) << w.size) - 1, satisfied = 0;
    int64_t  began = lki_now_ms();
    bool     struck = w.victim >= w.size;

    while (alive != 0) {
        (void)poll(fds, w.size, 2);
        for (uint32_t rank = 0; rank < w.size; rank++) {
            bool open = true;
            if (fds[rank].fd >= 0 && fds[rank].revents != 0
                && lki_control_serve(control, rank, &open) != LK_OK)
                abort();
            if (!open)
                fds[rank].fd = -1;
        }
        if (!struck && !world_under_way(control, w))
            began = lki_now_ms();
        if (!struck && lki_now_ms() - began >= w.after_ms) {
            struck = true;
            (void)kill(pids[w.victim], w.signal);
        }
        world_reap(control, w, pids, &alive, &satisfied);
        if (struck && w.victim < w.size && alive == UINT32_C(1) << w.victim)
            (void)kill(pids[w.victim], SIGKILL);
    }
    return satisfied;
}

static uint32_t world_run_processes(world w, world_main main, void *context)
{
    lki_control  *control;
    pid_t         pids[WORLD_MAX + 1]; /* NOBODY has none */
    struct pollfd fds[WORLD_MAX];

    if (lki_control_create(&control, lki_roster_alone(w.size)) != LK_OK)
        abort();
    for (uint32_t rank = 0; rank < w.size; rank++) {
        int worker, launcher;
        if (lki_control_socket(control, rank, &worker, &launcher) != LK_OK)
            abort();
        fds[rank]  = (struct pollfd){ .fd = launcher, .events = POLLIN };
        pids[rank] = fork();
        if (pids[rank] < 0)
            abort();
        if (pids[rank] == 0)
            world_child(control, rank, worker, w, main, context);
        (void)close(worker);
        lki_control_started(control, rank, pids[rank]);
    }
    uint32_t satisfied = world_serve(control, w, pids, fds);
    lki_control_free(control);
    return satisfied;
}

static inline uint32_t world_run(world w, world_main main, void *context)
{
    return w.threads ? world_run_threads(w, main, context) : world_run_processes(w, main, context);
}

/* Whether all were satisfied. */
static inline bool world_all(uint32_t size, bool threads, world_main main, void *context)
{
    world w = { .size = size, .threads = threads, .timeout_ms = 20000, .victim = NOBODY };
    return world_run(w, main, context) == (UINT32_C(1) << size) - 1;
}

/* Numbers that differ between ranks, elements and calls, and whose sums round. */
static inline float world_value(uint32_t rank, size_t i, uint32_t call)
{
    uint32_t x = (uint32_t)i * 2654435761u ^ (rank + 1) * 0x9e3779b9u ^ call * 0x85ebca6bu;
    x ^= x >> 15;
    x *= 0x2c1b3c6du;
    x ^= x >> 12;
    float unit = (float)(x >> 8) * 0x1p-24f - 0.5f;
    return (x & 7) == 0 ? unit * 1e6f : unit;
}

#endif
