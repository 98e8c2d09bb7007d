/* launch/job/rebuild_testing.h -- the workers of rebuild_test.c, by mode. */
#ifndef LKI_LAUNCH_JOB_REBUILD_TESTING_H
#define LKI_LAUNCH_JOB_REBUILD_TESTING_H

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "comm/join/rebuild.h"
#include "comm/world_testing.h"
#include "launch/job/rebuild_holdings_testing.h"
#include "lockstep/launch.h"

/* Ends the worker unless the condition holds (CHECK of world_testing.h returns false instead). */
#define MUST(condition)                                                                          \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "%s:%d: %s is false; last error: %s\n", __FILE__, __LINE__,          \
                    #condition, lk_error_last()->message);                                       \
            _exit(99);                                                                           \
        }                                                                                        \
    } while (0)

static void sleep_us(long us)
{
    struct timespec time = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };
    (void)nanosleep(&time, NULL);
}

static lk_comm *join(void)
{
    lk_comm *comm;
    MUST(lk_join(&comm) == LK_OK);
    return comm;
}

/* Waits for all ranks in a barrier, which may fail: between hosts, the report of a failure may
 * overtake the last message of the barrier. */
static void meet(lk_comm *comm)
{
    lk_status st = lk_barrier(comm);
    MUST(st == LK_OK || lk_comm_hosts(comm) > 1);
}

/* ---- The new group works ------------------------------------------------------------------ */

static void check_sum(lk_comm *comm, float *data, size_t count)
{
    uint32_t me = lk_comm_world_rank(comm, lk_comm_rank(comm)), n = lk_comm_size(comm);

    for (size_t i = 0; i < count; i++)
        data[i] = world_value(me, i, 7);
    MUST(lk_all_reduce(comm, data, data, count, LK_F32, LK_SUM) == LK_OK);
    for (size_t i = 0; i < count; i++) {
        float want = world_tree(comm, 0, n, i, 7);
        MUST(memcmp(&data[i], &want, sizeof want) == 0);
    }
}

/* Checks that the members are in their old order, and that every kind of data transfer works. */
static void check_group(lk_comm *comm, uint32_t members)
{
    static float data[40000];
    lk_arena    *arena;
    lk_comm     *part;
    uint32_t     n = 0, rank = lk_comm_rank(comm);

    MUST(lk_comm_size(comm) == (uint32_t)__builtin_popcount(members));
    for (uint32_t r = 0; r < 32; r++)
        if ((members >> r & 1) != 0)
            MUST(lk_comm_world_rank(comm, n++) == r);
    check_sum(comm, data, 10);
    check_sum(comm, data, 40000);
    MUST(lk_comm_arena(&arena, comm, "sums", 4096 * sizeof *data * n) == LK_OK);
    check_sum(comm, (float *)lk_arena_data(arena) + 4096 * rank, 4096);
    MUST(lk_comm_split(&part, comm, rank % 2, 0) == LK_OK);
    check_sum(part, data, 1000);
    lk_comm_free(part);
    meet(comm);
}

/* Rebuilds the group and frees the old one. `timeout_ms` limits the wait for missing ranks, but
 * must not limit operations of the new group. */
static lk_comm *go_on(lk_comm *comm, uint32_t timeout_ms)
{
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options), .timeout_ms = timeout_ms };
    lk_comm        *next;

    MUST(lk_comm_rebuild(&next, comm, &options) == LK_OK);
    lk_comm_set_timeout(next, 0); /* 0 selects the first group's timeout */
    MUST(next->timeout_ms == comm->opened_timeout_ms);
    lk_comm_set_timeout(next, 20000);
    lk_comm_free(comm);
    return next;
}

/* ---- Killing ranks at a place ------------------------------------------------------------- */

/* Ends this process if `victim` is true, at the point named by `place`, which all ranks reach. */
static void fail_at(lk_comm *comm, const char *place, bool victim)
{
    static float data[100000];
    lk_request  *request;
    lk_arena    *arena;
    lk_comm     *part;
    bool         done;

    if (strcmp(place, "started") == 0) {
        MUST(lk_all_reduce_start(&request, comm, data, data, 100000, LK_F32, LK_SUM) == LK_OK
             || lk_error_last()->status == LK_EPEER);
        MUST(!victim || request == NULL || lk_request_test(request, &done) == LK_OK
             || lk_error_last()->status == LK_EPEER);
    }
    if (victim)
        (void)raise(SIGKILL);
    if (strcmp(place, "started") == 0) {
        MUST(request == NULL || lk_request_wait(request) == LK_OK
             || lk_error_last()->status == LK_EPEER);
        lk_request_free(request);
        MUST(lk_barrier(comm) == LK_EPEER);
    } else if (strcmp(place, "collective") == 0) {
        MUST(lk_all_reduce(comm, data, data, 100000, LK_F32, LK_SUM) == LK_EPEER);
    } else if (strcmp(place, "arena") == 0) {
        MUST(lk_comm_arena(&arena, comm, "never", 100000) == LK_EPEER);
    } else if (strcmp(place, "split") == 0) {
        MUST(lk_comm_split(&part, comm, 0, 0) == LK_EPEER);
    }
}

static void await_death(lk_comm *comm, uint32_t victims)
{
    for (uint32_t rank = 0; rank < lk_comm_size(comm); rank++)
        while ((victims >> rank & 1) != 0
               && atomic_load(&lki_rank_of(comm, rank)->state) != LKI_RANK_DEAD)
            sleep_us(200);
}

/* Kills the victims after the victims have requested the new group, and before the other ranks
 * request the group. */
static void die_asking(lk_comm *comm, uint32_t victims, bool victim)
{
    lki_packet ask = { .kind = LKI_PACKET_ASK, .ask = { .epoch = 0, .timeout_ms = 20000 } };

    lk_comm_abort(comm);
    if (victim) {
        MUST(lki_packet_send(comm->self->socket, &ask, -1) == LK_OK);
        (void)raise(SIGKILL);
    }
    await_death(comm, victims);
}

/* Kills the victims when they have received the new group, so that the survivors fail to join the
 * group. */
static void die_answered(lk_comm *comm, bool victim)
{
    uint64_t epoch = 0;
    int      fd;

    lk_comm_abort(comm);
    if (!victim)
        return;
    MUST(lki_rebuild_ask(&fd, &epoch, comm->self->socket, 20000, false) == LK_OK && epoch == 1);
    (void)raise(SIGKILL);
}

static int work_die(const char *place, uint32_t victims)
{
    lk_comm *comm   = join();
    uint32_t all    = (UINT32_C(1) << lk_comm_size(comm)) - 1;
    bool     victim = (victims >> lk_comm_rank(comm) & 1) != 0;

    lk_comm_note(comm, 12, "backward");
    meet(comm);
    if (strcmp(place, "asking") == 0)
        die_asking(comm, victims, victim);
    else if (strcmp(place, "answered") == 0)
        die_answered(comm, victim);
    else
        fail_at(comm, place, victim);
    comm = go_on(comm, 20000);
    if (comm->board->size == comm->board->seated) /* with several hosts the result may differ */
        MUST((comm->board->job.epoch == 2) == (strcmp(place, "answered") == 0));
    check_group(comm, all & ~victims);
    lk_comm_free(comm);
    return 0;
}

/* ---- A storm ------------------------------------------------------------------------------ */

static void *die_soon(void *after_us)
{
    sleep_us(*(long *)after_us);
    (void)raise(SIGKILL);
    return NULL;
}

enum { OPEN_MAX = 8 };
/* Works until a rank is lost.  `requests` has those that are open then, and NULL. */
static lk_status work_a_while(lk_comm *comm, lk_request *requests[OPEN_MAX])
{
    static float data[3000];
    lk_arena    *arena;
    lk_comm     *part;
    for (;;) {
        LK_TRY(lk_all_reduce(comm, data, data, 3000, LK_F32, LK_SUM));
        LK_TRY(lk_comm_split(&part, comm, lk_comm_rank(comm) % 2, 0));
        lk_status st = lk_comm_arena(&arena, part, "some", 5000);
        for (int i = 0; i < OPEN_MAX && st == LK_OK; i++)
            st = lk_all_reduce_start(&requests[i], comm, data, data, 10, LK_F32, LK_SUM);
        lk_comm_free(part);
        LK_TRY(st); /* on failure, requests that were already started stay open */
        for (int i = 0; i < OPEN_MAX; i++) {
            lk_status waited = lk_request_wait(requests[i]);
            lk_request_free(requests[i]);
            requests[i] = NULL;
            st = st == LK_OK ? waited : st;
        }
        LK_TRY(st);
    }
}

/* Frees the requests that were open when a rank was lost, after their communicator. */
static void free_open(lk_request *const requests[OPEN_MAX])
{
    for (int i = 0; i < OPEN_MAX; i++)
        lk_request_free(requests[i]);
}

/* Kills a random rank at a random moment in every epoch, until one rank is left. */
static int work_storm(uint32_t seed)
{
    lk_comm *comm = join();
    uint32_t job  = lk_comm_world_rank(comm, lk_comm_rank(comm));

    meet(comm);
    while (lk_comm_size(comm) > 1) {
        uint64_t words[2] = { seed, comm->board->job.epoch };
        uint64_t random   = lki_xxh3(words, sizeof words);
        uint32_t victim   = (uint32_t)(random >> 32) % lk_comm_size(comm);
        long     after    = (long)(random % 3000);
        if (lk_comm_world_rank(comm, victim) == job) {
            pthread_t thread;
            MUST(pthread_create(&thread, NULL, die_soon, &after) == 0);
        }
        lk_request *requests[OPEN_MAX] = { NULL };
        MUST(work_a_while(comm, requests) == LK_EPEER);
        comm = go_on(comm, 20000);
        free_open(requests);
    }
    check_group(comm, UINT32_C(1) << job);
    lk_comm_free(comm);
    return 0;
}

/* Continues whenever another process has killed a rank.  If `slowly`, the ranks are between two
 * groups for a while. */
static int work_endure(bool slowly)
{
    lk_comm *comm = join();

    while (lk_comm_size(comm) > 1) {
        lk_request *requests[OPEN_MAX] = { NULL };
        (void)work_a_while(comm, requests);
        if (slowly) {
            lk_comm_abort(comm);
            sleep_us(10000 * (1 + (long)lk_comm_rank(comm)));
        }
        comm = go_on(comm, 20000);
        free_open(requests);
    }
    lk_comm_free(comm);
    return 0;
}

/* ---- Leaks -------------------------------------------------------------------------------- */

static int work_many(void)
{
    lk_comm *comm = join();
    uint32_t all  = (UINT32_C(1) << lk_comm_size(comm)) - 1;
    holdings before = { 0 }, after;

    for (int i = 0; i < 50; i++) {
        check_group(comm, all);
        before = i == 1 ? count_holdings() : before; /* at i == 1, all workers have started */
        meet(comm);
        lk_comm_abort(comm);
        comm = go_on(comm, 20000);
    }
    check_group(comm, all);
    after = settle(before);
    meet(comm);
    if (!as_few(after, before))
        fprintf(stderr, "descriptors %u, now %u; maps %u, %u; threads %u, %u; the launcher's %u, "
                "%u; %u, %u\n", before.mine, after.mine, before.maps, after.maps, before.threads,
                after.threads, before.launchers, after.launchers, before.launcher_maps,
                after.launcher_maps);
    MUST(as_few(after, before));
    MUST(comm->board->job.epoch == 50);
    lk_comm_free(comm);
    return 0;
}

/* ---- Other cases -------------------------------------------------------------------------- */

/* Makes the other ranks wait for a victim that requests no new group.  The victim is stopped or, if
 * `stopped` is false, runs. */
static int work_absent(bool stopped)
{
    lk_comm *comm = join();

    meet(comm);
    if (lk_comm_rank(comm) == 1 && stopped)
        (void)raise(SIGSTOP);
    if (lk_comm_rank(comm) == 1)
        sleep_us(300000000);
    if (stopped)
        MUST(lk_barrier(comm) == LK_ETIMEOUT);
    else
        lk_comm_abort(comm);
    comm = go_on(comm, 6000); /* milliseconds; enough for the running ranks on a busy machine */
    check_group(comm, 5);
    lk_comm_free(comm);
    return 0;
}

/* Waits until a process is dead; its parent may not have reaped it yet. */
static void await_process(int32_t pid)
{
    char path[64], text[512], *state = text;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    for (; state != NULL && state[2] != 'Z'; sleep_us(1000)) {
        FILE *file = fopen(path, "re");
        if (file == NULL)
            return;
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        (void)fclose(file);
        state = strrchr(text, ')');
    }
}

/* One rank leaves the group and lives until the other processes are gone.  No rank waits for that
 * rank, and the launcher does not kill it. */
static int work_leave(void)
{
    lk_comm *comm = join();
    int32_t  others[2];

    meet(comm);
    for (uint32_t rank = 0; rank < 2; rank++)
        others[rank] = atomic_load(&lki_rank_of(comm, rank)->pid);
    if (lk_comm_rank(comm) == 2) {
        lk_comm_free(comm);
        await_process(others[0]);
        await_process(others[1]);
        return 0;
    }
    MUST(lk_barrier(comm) == LK_EPEER);
    comm = go_on(comm, 20000);
    check_group(comm, 3);
    lk_comm_free(comm);
    return 0;
}

static int work_misuse(void)
{
    lk_comm *comm = join(), *part, *next, *none;
    uint64_t epoch = 0;
    int      fd;

    MUST(lk_comm_split(&part, comm, 0, 0) == LK_OK);
    MUST(lk_comm_rebuild(&next, comm, NULL) == LK_EINVAL && next == NULL);
    meet(part);
    lk_comm_abort(part);
    MUST(lk_comm_rebuild(&next, part, NULL) == LK_EINVAL);
    MUST(strstr(lk_error_last()->message, "split") != NULL);
    MUST(lk_comm_rebuild(&next, comm, NULL) == LK_OK);
    MUST(lk_barrier(part) == LK_EPEER); /* `part` was made from the failed group */
    MUST(lk_comm_rebuild(&none, comm, NULL) == LK_EUNSUPPORTED);
    MUST(lki_rebuild_ask(&fd, &epoch, next->self->socket, 1000, false) == LK_EINVAL);
    MUST(strstr(lk_error_last()->message, "after epoch 0, which is over") != NULL);
    check_group(next, 3);
    lk_comm_free(part);
    lk_comm_free(comm);
    lk_comm_free(next);
    return 0;
}

/* Leaves 64 requests open when the group fails.  The handles of the requests outlive the group. */
static int work_requests(void)
{
    static float data[64][5000];
    lk_comm     *comm = join();
    lk_request  *requests[64];

    meet(comm);
    if (lk_comm_rank(comm) == 1)
        (void)raise(SIGKILL);
    for (int i = 0; i < 64; i++)
        (void)(lk_all_reduce_start(&requests[i], comm, data[i], data[i], 5000, LK_F32, LK_SUM)
               == LK_OK); /* the request is NULL if the group has failed already */
    while (!lki_failed(comm))
        sleep_us(200);
    comm = go_on(comm, 20000);
    for (int i = 0; i < 64; i++) {
        MUST(requests[i] == NULL || lk_request_wait(requests[i]) == LK_EINVAL);
        lk_request_free(requests[i]);
    }
    check_group(comm, 5);
    lk_comm_free(comm);
    return 0;
}

/* Checks that members of the new group still see a request to stop from before the rebuild. */
static int work_stop(void)
{
    lk_comm *comm = join();

    meet(comm);
    if (lk_comm_rank(comm) == 0)
        (void)kill(getppid(), SIGTERM);
    while (!lk_stop_requested(comm))
        sleep_us(200);
    if (lk_comm_rank(comm) == 1)
        (void)raise(SIGKILL);
    MUST(lk_barrier(comm) == LK_EPEER);
    comm = go_on(comm, 20000);
    MUST(lk_stop_requested(comm));
    check_group(comm, 5);
    lk_comm_free(comm);
    return 75;
}

/* Closes this process's connections, which all ranks notice, while the process itself still
 * runs. */
static void vanish_slowly(const lk_comm *comm)
{
    for (int fd = 3; fd < 256; fd++)
        if (fd != comm->self->socket)
            (void)shutdown(fd, SHUT_RDWR);
    while (!lki_failed(comm))
        sleep_us(200);
    sleep_us(100000);
}

/* After a loss that the other ranks survive, one rank fails with an error, and all ranks end. */
static int work_end(bool slowly)
{
    lk_comm *comm = join();

    meet(comm);
    if (lk_comm_rank(comm) == 0)
        (void)raise(SIGKILL);
    MUST(lk_barrier(comm) == LK_EPEER);
    comm = go_on(comm, 20000);
    lk_comm_note(comm, 20, "saving");
    meet(comm);
    if (lk_comm_rank(comm) == 1 && slowly)
        vanish_slowly(comm);
    if (lk_comm_rank(comm) == 1)
        _exit(3);
    MUST(lk_barrier(comm) == LK_EPEER);
    lk_comm_abort(comm);
    lk_comm_free(comm);
    return 1;
}

/* Rank 1 dies while it exits, after all have finished. */
static int work_finish(void)
{
    lk_comm  *comm = join();
    lk_status met  = lk_barrier(comm);

    (void)met;
    if (lk_comm_rank(comm) == 1)
        (void)raise(SIGKILL);
    lk_comm_free(comm);
    return 0;
}

/* Requests a new group although the launcher does not continue after failures. */
static int work_refused(void)
{
    lk_comm *comm = join(), *next;

    meet(comm);
    if (lk_comm_rank(comm) == 1)
        (void)raise(SIGKILL);
    MUST(lk_barrier(comm) == LK_EPEER);
    MUST(lk_comm_rebuild(&next, comm, NULL) == LK_EUNSUPPORTED && next == NULL);
    MUST(strstr(lk_error_last()->message, "`on_failure` continue") != NULL);
    MUST(lk_barrier(comm) == LK_EPEER);
    lk_comm_abort(comm);
    lk_comm_free(comm);
    return 1;
}

/* Kills the launcher of a host with rank `number`, and thus its workers. */
static int work_launcher(uint32_t number)
{
    lk_comm *comm = join(), *next;
    uint32_t me = lk_comm_rank(comm), host = lk_comm_host(comm, number), members = 0;

    for (uint32_t r = 0; r < lk_comm_size(comm); r++)
        members |= (uint32_t)(lk_comm_host(comm, r) != host) << r;
    meet(comm);
    if (me == number)
        (void)kill(getppid(), SIGKILL);
    while (lk_barrier(comm) == LK_OK) /* on the killed launcher's own host, later barriers may still
                                       * succeed */
        continue;
    MUST(lk_error_last()->status == LK_EPEER);
    if (host == 0) {
        MUST(lk_comm_rebuild(&next, comm, NULL) == LK_EPEER);
        MUST(lk_comm_host(comm, me) == 0 || strstr(lk_error_last()->message, "node 0") != NULL);
        lk_comm_free(comm);
        return 1;
    }
    comm = go_on(comm, 20000);
    check_group(comm, members);
    lk_comm_free(comm);
    return 0;
}

/* Runs a worker as mpirun or torchrun would start it. */
static int work_foreign(void)
{
    lk_comm *comm = join(), *next;

    MUST(lk_barrier(comm) == LK_OK);
    if (lk_comm_rank(comm) == 1)
        (void)raise(SIGKILL);
    MUST(lk_barrier(comm) == LK_EPEER);
    MUST(lk_comm_rebuild(&next, comm, NULL) == LK_EUNSUPPORTED && next == NULL);
    fprintf(stderr, "%s\n", lk_error_last()->message);
    lk_comm_free(comm);
    return 7;
}

/* One rank never joins. */
static int work_unjoined(void)
{
    lk_comm *comm;

    if (strcmp(getenv("RANK"), "1") == 0)
        return 5;
    return lk_join(&comm) == LK_OK ? 98 : 1;
}

static int work(int argc, char **argv)
{
    const char *mode   = argv[2], *word = argc > 3 ? argv[3] : "";
    uint32_t    number = argc > 4 ? (uint32_t)atoi(argv[4]) : 0;

    static const struct {
        const char *mode;
        int (*run)(void);
    } table[] = {
        { "many", work_many },         { "leave", work_leave },     { "misuse", work_misuse },
        { "requests", work_requests }, { "stop", work_stop },       { "refused", work_refused },
        { "foreign", work_foreign },   { "unjoined", work_unjoined },
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].mode, mode) == 0)
            return table[i].run();
    if (strcmp(mode, "die") == 0)
        return work_die(word, number);
    if (strcmp(mode, "storm") == 0)
        return work_storm(number);
    if (strcmp(mode, "launcher") == 0)
        return work_launcher(number);
    if (strcmp(mode, "finish") == 0)
        return work_finish();
    if (strcmp(mode, "endure") == 0)
        return work_endure(strcmp(word, "slowly") == 0);
    if (strcmp(mode, "end") == 0)
        return work_end(strcmp(word, "slowly") == 0);
    return strcmp(mode, "absent") == 0 ? work_absent(strcmp(word, "stopped") == 0) : 97;
}

#endif
