/* comm.c -- the life of a communicator: join, note, abort, leave. */
#include "lockstep/comm.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/options.h"
#include "comm/group/thread_rebuild.h"
#include "comm/group/engine.h"
#include "comm/flight.h"
#include "comm/group/numa.h"
#include "comm/group/span.h"
#include "comm/trace.h"

enum { TIMEOUT_MS = 30000, SPINS = 50 };

/* ---- The mapping that ranks of this process share ---------------------------------------- */

void lki_group_release(lki_group *group)
{
    if (group == NULL || atomic_fetch_sub(&group->users, 1) != 1)
        return;
    while (group->mappings != NULL) {
        lki_mapping *mapping = group->mappings;
        group->mappings      = mapping->next;
        (void)munmap(mapping->data, mapping->bytes);
        lki_free(mapping);
    }
    (void)munmap(group->board, group->board->bytes);
    (void)pthread_mutex_destroy(&group->lock);
    lki_thread_rebuild_free(group->rebuild);
    lki_free(group);
}

/* Maps the control memory `fd` or, if `fd` is -1, allocates private memory of this process. */
static lk_status group_open(lki_group **out, int fd, size_t bytes, bool threads)
{
    lki_group *group;

    *out = NULL;
    LK_TRY(LKI_NEW(&group, 1, "group"));
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        lki_free(group);
        return lk_fail(LK_ENOMEM, "cannot map the control memory, %zu bytes: %s", bytes,
                       strerror(errno));
    }
    atomic_store(&group->users, 1);
    (void)pthread_mutex_init(&group->lock, NULL);
    group->board   = memory;
    group->threads = threads;
    *out           = group;
    return LK_OK;
}

/* ---- A rank ------------------------------------------------------------------------------ */

/* Returns the number of times that a rank polls before it yields.  A rank polls only if there is a
 * core for each rank, and the time of that core: polling would use up what a container has.  Ranks
 * may be bound to cores, so the function counts the cores of all ranks whose processes are
 * known. */
static uint32_t spins_of(const lki_self *self)
{
    const lki_board *board = self->group->board;
    cpu_set_t        all, one;

    if (self->granted > 0 && board->members > self->granted)
        return 0;
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return 0;
    for (uint32_t i = 0; i < board->seated && (uint32_t)CPU_COUNT(&all) < board->members; i++) {
        const lki_rank *record = &board->ranks[board->first + i];
        int32_t         pid    = atomic_load(&record->pid);
        if (record->seat != 0 && pid > 0 && sched_getaffinity(pid, sizeof one, &one) == 0)
            CPU_OR(&all, &all, &one);
    }
    return board->members <= (uint32_t)CPU_COUNT(&all) && !self->crowded ? SPINS : 0;
}

/* Frees a communicator, even if it is only partly initialised. */
void lki_comm_delete(lk_comm *comm)
{
    if (comm->span != NULL)
        comm->self->span_ops->free(comm->span);
    lki_arenas_close(comm);
    lki_free(comm->world);
    lki_free(comm->flows);
    lki_free(comm->inputs);
    lki_free(comm->pointers);
    lki_free(comm->payloads);
    lki_free(comm->targets);
    lki_free(comm);
}

lk_status lki_comm_new(lk_comm **out, lki_self *self, uint32_t rank, uint32_t size, void *seats)
{
    lk_comm *comm;

    *out = NULL;
    LK_TRY(LKI_NEW(&comm, 1, "communicator"));
    comm->board      = self->group->board;
    comm->me         = &comm->board->ranks[self->rank];
    comm->self       = self;
    comm->users      = 1;
    comm->rank       = rank;
    comm->size       = size;
    comm->seats      = seats;
    comm->seat_bytes = lki_seat_bytes(size);
    comm->seat       = seats == NULL ? NULL : lki_seat_of(comm, rank);
    comm->timeout_ms = comm->opened_timeout_ms = TIMEOUT_MS;
    comm->stage_bytes = LKI_STAGE_BYTES;
    comm->ring       = LKI_IN_FLIGHT;
    comm->spins      = spins_of(self);
    lk_status st = LKI_NEW(&comm->inputs, (size_t)size * LK_TREE_NODES_MAX * 2, "nodes of a tree");
    if (st == LK_OK)
        st = LKI_NEW(&comm->pointers, (size_t)size * 2, "buffers of all ranks");
    if (st == LK_OK)
        st = LKI_NEW(&comm->targets, size, "buffers of all ranks");
    if (st == LK_OK)
        st = LKI_NEW(&comm->payloads, size * lki_payload_most(size), "payloads of all ranks");
    if (st == LK_OK)
        st = LKI_NEW(&comm->world, size, "ranks of a group");
    if (st == LK_OK)
        st = LKI_NEW(&comm->flows, size, "counts of messages");
    if (st != LK_OK) {
        lki_comm_delete(comm);
        return st;
    }
    *out = comm;
    return LK_OK;
}

/* Sets the world ranks of the seats, and the key of the communicator, which differs between group
 * epochs.  If the group is smaller than the job, also sets its description for lki_print_text(). */
static void describe(lk_comm *comm, const lki_board *board)
{
    uint64_t epoch = board->job.epoch;

    for (uint32_t rank = board->first; rank < board->first + board->seated; rank++)
        if (board->ranks[rank].seat != 0)
            comm->world[board->ranks[rank].seat - 1] = rank;
    comm->key = epoch == 0 ? 0 : lki_xxh3(&epoch, sizeof epoch);
    if (board->members < board->seated)
        comm->group = (uint64_t)comm->size << 32 | comm->world[0];
}

/* Creates the first communicator of a rank, which then owns `self`. */
static lk_status first_new(lk_comm **out, lki_group *group, uint32_t rank,
                           const lk_comm_options *options)
{
    lki_board *board = group->board;
    lki_self  *self;

    *out = NULL;
    LK_TRY(LKI_NEW(&self, 1, "rank"));
    *self = (lki_self){ .group   = group,
                        .granted = lk_allowance_read().granted_cores,
                        .rank    = rank,
                        .seated  = board->seated,
                        .socket  = -1,
                        .process = getpid() };
    lk_status st = lki_tuning_init(&self->tuning, options, rank);
    if (st == LK_OK)
        st = lki_comm_new(out, self, board->ranks[rank].seat - 1, board->members,
                          lki_board_seats(board));
    if (st != LK_OK) {
        lki_free(self);
        return st;
    }
    describe(*out, board);
    if (options != NULL && options->timeout_ms != 0)
        (*out)->timeout_ms = (*out)->opened_timeout_ms = options->timeout_ms;
    if (options != NULL && options->flight != NULL)
        st = lki_flight_open(&self->flight, options->flight, rank, board->size, LKI_FLIGHT_ENTRIES);
    if (st != LK_OK) {
        lki_comm_delete(*out);
        lki_free(self);
        *out = NULL;
    }
    return st;
}

static void announce(lk_comm *comm)
{
    atomic_store(&comm->me->pid, (int32_t)getpid());
    atomic_store(&comm->me->home, lki_numa_here());
    lki_numa_settle(comm);
    atomic_store(&comm->me->state, LKI_RANK_RUNNING);
    atomic_store(&comm->seat->joined, 1);
    comm->unrung = true;
    lki_ring(comm);
}

/* Marks the rank as having left in order, unless it has failed. */
void lki_comm_leave(lk_comm *first)
{
    uint32_t running = LKI_RANK_RUNNING;
    (void)atomic_compare_exchange_strong(&first->me->state, &running, LKI_RANK_LEFT);
    lki_wake_all(first->board);
}

void lki_comm_depart(lk_comm *first)
{
    lki_comm_leave(first);
    if (first->self->socket >= 0)
        lki_launcher_nudge(first->self->socket);
}

lk_status lki_comm_dissolve(lk_comm *first, uint32_t culprit, const char *why)
{
    return lki_fail_group(first, culprit, LK_EPEER, "%s", why);
}

/* Leaves the group.  Called when the last communicator of a rank has been freed. */
static void leave(lk_comm *first)
{
    lki_self *self = first->self;

    lki_comm_leave(first);
    if (self->span_ops != NULL)
        self->span_ops->leave(self);
    if (self->engine != NULL)
        self->engine->ops->leave(self->engine, first);
    lki_peers_close(self);
    lki_flight_close(self->flight);
    if (self->socket >= 0)
        (void)close(self->socket);
    lki_group_release(self->group);
    explicit_bzero(self->key, sizeof self->key);
    lki_free(self);
}

static void let_go(lk_comm *comm)
{
    while (comm != NULL && --comm->users == 0) { /* children hold references to their parents */
        lk_comm *parent = comm->parent;
        if (parent == NULL)
            leave(comm);
        lki_comm_delete(comm);
        comm = parent;
    }
}

void lk_comm_free(lk_comm *comm)
{
    if (comm == NULL || comm->self->process != getpid())
        return; /* a forked child must not take its parent out of the group */
    lki_requests_abandon(comm);
    lki_requests_orphan(comm);
    atomic_store(comm->span != NULL ? &comm->span->local->seat->left : &comm->seat->left, 1);
    lki_wake_all(comm->board);
    if (lki_comm_is_first(comm))
        lki_thread_rebuild_gone(comm->self->group->rebuild, comm->self->rank,
                                comm->board->job.epoch);
    let_go(comm);
}

bool lki_comm_is_first(const lk_comm *comm)
{
    return comm->parent == NULL || (comm->span != NULL && comm->span->local == comm->parent);
}

void lki_comm_give_up(lk_comm *comm)
{
    lk_comm_abort(comm);
    lki_requests_orphan(comm);
    comm->self->socket = -1;
    let_go(comm);
}

lk_status lki_comm_open_seated(lk_comm **out, lki_roster roster, lki_thread_rebuild *rebuild,
                               const lk_comm_options *options)
{
    lki_group *group;
    uint32_t   size = roster.count, made = 0;
    lk_status  st = LK_OK;

    if (options != NULL && options->flight != NULL)
        LK_TRY(lki_flight_prepare(options->flight, roster));
    LK_TRY(group_open(&group, -1, lki_board_bytes(roster, roster.count), true));
    lki_board_init(group->board, roster, NULL);
    if (rebuild != NULL)
        lki_thread_rebuild_seat(rebuild, roster);
    group->rebuild = rebuild;
    atomic_store(&group->users, size);
    for (; made < size && st == LK_OK; made += st == LK_OK)
        st = first_new(&out[made], group, roster.first + made, options);
    if (st != LK_OK) {
        atomic_store(&group->users, made + 1);
        lki_group_release(group);
        for (uint32_t rank = 0; rank < made; rank++) {
            lk_comm_free(out[rank]);
            out[rank] = NULL;
        }
        return st;
    }
    for (uint32_t rank = 0; rank < size; rank++)
        announce(out[rank]);
    return LK_OK;
}

lk_status lki_comm_open_roster(lk_comm **out, lki_roster roster, const lk_comm_options *options)
{
    lki_thread_rebuild *rebuild = NULL;

    if (roster.count == roster.world)
        LK_TRY(lki_thread_rebuild_new(&rebuild, roster.world, NULL, NULL));
    lk_status st = lki_comm_open_seated(out, roster, rebuild, options);
    lki_thread_rebuild_free(rebuild);
    return st;
}

lk_status lki_group_next(lki_group **out, lki_thread_rebuild *rebuild, lki_roster roster,
                         uint64_t epoch, const lki_members *members)
{
    bool     outside[LKI_RANKS_MAX];
    uint32_t seats = 0;

    for (uint32_t rank = 0; rank < roster.world; rank++) {
        outside[rank] = !lki_members_have(members, rank);
        seats += !outside[rank] && rank - roster.first < roster.count;
    }
    LK_TRY(group_open(out, -1, lki_board_bytes(roster, seats), true));
    lki_board_init((*out)->board, roster, outside);
    (*out)->board->job.epoch = epoch;
    (*out)->rebuild          = rebuild;
    atomic_store(&(*out)->users, seats);
    return LK_OK;
}

lk_status lki_comm_open_next(lk_comm **out, lki_group *group, uint32_t rank,
                             const lk_comm_options *options)
{
    lk_status st = first_new(out, group, rank, options);

    if (st != LK_OK) {
        lki_group_release(group);
        return st;
    }
    announce(*out);
    st = lki_await(*out, lki_goal_all(*out, offsetof(lki_seat, joined), 1));
    if (st != LK_OK) {
        lki_comm_give_up(*out);
        *out = NULL;
    }
    return st;
}

lk_status lk_comm_open_threads(lk_comm **out, uint32_t size, const lk_comm_options *options)
{
    lk_comm_options mine;

    for (uint32_t rank = 0; rank < size; rank++)
        out[rank] = NULL;
    if (size < 1 || size > LKI_RANKS_MAX)
        return lk_fail(LK_EINVAL, "a group of %u ranks: from 1 to %d are possible", size,
                       LKI_RANKS_MAX);
    LK_TRY(lki_options_copy(&mine, sizeof mine, options, "lk_comm_options"));
    return lki_comm_open_roster(out, lki_roster_alone(size), &mine);
}

static lk_status check_board(const lki_group *group, size_t bytes, uint32_t rank)
{
    lki_board *board = group->board;
    if (!lki_board_valid(board, bytes))
        return lk_fail(LK_EFORMAT, "the control memory was not made by this version of lockstep: "
                       "launcher and program must use the same one");
    if (rank < board->first || rank - board->first >= board->seated)
        return lk_fail(LK_EINVAL, "rank %u on a host with ranks %u to %u", rank, board->first,
                       board->first + board->seated - 1);
    if (board->ranks[rank].seat - 1 >= board->members)
        return lk_fail(LK_EINVAL, "rank %u is not in this group, which is in epoch %llu", rank,
                       (unsigned long long)board->job.epoch);
    if (atomic_load(&lki_board_seat(board, rank)->joined) != 0)
        return lk_fail(LK_EINVAL, "rank %u has joined already: a process joins once", rank);
    return LK_OK;
}

lk_status lki_comm_open_shm(lk_comm **out, int control_fd, uint32_t rank, int launcher_socket,
                            const lk_comm_options *options)
{
    struct stat about;
    lki_group  *group;

    *out = NULL;
    if (fstat(control_fd, &about) != 0)
        return lk_fail(LK_EINVAL, "descriptor %d is no control memory: %s", control_fd,
                       strerror(errno));
    size_t bytes = (size_t)about.st_size;
    if (bytes < sizeof(lki_board))
        return lk_fail(LK_EFORMAT, "descriptor %d is no control memory: %zu bytes", control_fd,
                       bytes);
    LK_TRY(group_open(&group, control_fd, bytes, false));
    lk_comm  *comm = NULL;
    lk_status st   = check_board(group, bytes, rank);
    if (st == LK_OK)
        st = first_new(&comm, group, rank, options);
    if (st != LK_OK) {
        (void)munmap(group->board, bytes); /* group->board->bytes cannot be trusted */
        lki_free(group);
        return st;
    }
    announce(comm);
    comm->self->socket = launcher_socket;
    st = lki_await(comm, lki_goal_all(comm, offsetof(lki_seat, joined), 1));
    if (st == LK_OK)
        st = lki_peers_open(comm);
    comm->spins = spins_of(comm->self); /* the processes of all ranks are now known */
    if (st != LK_OK) {
        lki_comm_give_up(comm);
        return st;
    }
    *out = comm;
    return LK_OK;
}

/* ---- While it runs ----------------------------------------------------------------------- */

void lki_comm_trace(lk_comm *comm, lki_track *track)
{
    comm->self->track = track;
}

uint32_t lk_comm_rank(const lk_comm *comm)
{
    return comm->rank;
}

uint32_t lk_comm_size(const lk_comm *comm)
{
    return comm->size;
}

uint32_t lk_comm_world_rank(const lk_comm *comm, uint32_t rank)
{
    LK_ASSERT(rank < comm->size);
    return comm->world[rank];
}

uint32_t lk_comm_hosts(const lk_comm *comm)
{
    return comm->span == NULL ? 1 : comm->span->map.hosts;
}

uint32_t lk_comm_host(const lk_comm *comm, uint32_t rank)
{
    LK_ASSERT(rank < comm->size);
    return comm->span == NULL ? 0 : comm->span->map.host_of[rank];
}

uint32_t lk_comm_local_rank(const lk_comm *comm, uint32_t rank)
{
    LK_ASSERT(rank < comm->size);
    return comm->span == NULL ? rank : comm->span->map.local_ranks[rank];
}

uint32_t lk_comm_local_size(const lk_comm *comm, uint32_t host)
{
    LK_ASSERT(host < lk_comm_hosts(comm));
    return comm->span == NULL ? comm->size : comm->span->map.local_sizes[host];
}

bool lki_comm_is_fresh(const lk_comm *comm, uint32_t rank)
{
    return lki_rank_of(comm, rank)->fresh != 0;
}

uint32_t lk_comm_entered(const lk_comm *comm)
{
    uint32_t count = 0;

    for (uint32_t rank = 0; rank < comm->size; rank++)
        count += lki_comm_is_fresh(comm, rank);
    return count;
}

bool lki_comm_leave_requested(const lk_comm *comm)
{
    return atomic_load_explicit(&comm->board->leaving, memory_order_relaxed) != 0;
}

bool lki_comm_stop_requested(const lk_comm *comm)
{
    if (atomic_load(&comm->board->heeded) == 0)
        atomic_store(&comm->board->heeded, 1);
    return lki_is_asked_to_stop(comm->self);
}

bool lki_is_asked_to_stop(const lki_self *self)
{
    return atomic_load(&self->group->board->stop) != 0 ||
           (self->asked != NULL && *self->asked != 0);
}

void lki_comm_obey(lk_comm *comm, const volatile sig_atomic_t *asked)
{
    comm->self->asked = asked;
}

uint32_t lki_comm_timeout_ms(const lk_comm *comm)
{
    return comm->timeout_ms;
}

void lk_comm_set_timeout(lk_comm *comm, uint32_t timeout_ms)
{
    comm->timeout_ms = timeout_ms != 0 ? timeout_ms : comm->opened_timeout_ms;
}

void lk_comm_note(lk_comm *comm, uint64_t step, const char *phase)
{
    uint64_t words[LKI_PHASE_BYTES / 8] = { 0 };
    size_t   length = phase == NULL ? 0 : strnlen(phase, LKI_PHASE_BYTES - 1);

    if (length > 0)
        memcpy(words, phase, length);
    atomic_store_explicit(&comm->me->step, step, memory_order_relaxed);
    for (size_t i = 0; i < LKI_PHASE_BYTES / 8; i++)
        atomic_store_explicit(&comm->me->phase[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&comm->me->noted, 1, memory_order_release);
    if (comm->self->flight != NULL)
        lki_flight_write_note(comm->self->flight, step, phase == NULL ? "" : phase);
}

static void note_failure(const lk_comm *comm, lk_status status, const char *message)
{
    if (comm->self->flight != NULL)
        lki_flight_failed(comm->self->flight, status, message);
}

void lk_comm_abort(lk_comm *comm)
{
    if (comm == NULL)
        return;
    lk_error last    = *lk_error_last();
    uint32_t running = LKI_RANK_RUNNING, rank = comm->self->rank;

    (void)atomic_compare_exchange_strong(&comm->me->state, &running, LKI_RANK_FAILED);
    if (last.status != LK_OK) {
        note_failure(comm, last.status, last.message);
        lki_board_condemn(comm->board, rank, rank, last.status, LK_EPEER, last.message);
    } else {
        lki_rank_view view;
        char          message[LKI_MESSAGE_BYTES], who[LKI_WHO_BYTES];
        lki_board_view(comm->board, rank, &view);
        lki_board_who(who, comm->board, rank, "");
        snprintf(message, sizeof message, "%s called lk_comm_abort() %s", who, view.place);
        note_failure(comm, LK_EPEER, message);
        lki_board_condemn(comm->board, rank, rank, LK_EPEER, LK_EPEER, message);
    }
    lki_failure_spread(comm);
    if (last.status != LK_OK)
        (void)lki_fail_again(&last); /* restores the caller's error, which the caller may still
                                      * report */
}
