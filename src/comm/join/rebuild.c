/* rebuild.c -- continuing without lost ranks after a failure.
 *
 * A failed group stays failed.  All ranks read `failed` in many places and without a lock, so the
 * old group cannot be repaired.  A rank that wants to continue asks the launcher, which outlives
 * all ranks and knows reliably which of them have died.  The launcher waits until every rank has
 * asked, left or ended, and kills the ranks that miss the deadline.  Then it creates a new control
 * memory for the next group epoch, with seats for the ranks that asked.  Only the launcher decides,
 * so all ranks agree on the members.
 *
 *      rank                              launcher
 *      ask {epoch k, time} ------------> counts the asking ranks, waits for the others
 *      joins the new group <------------ answer {epoch k+1, control memory}
 *      takes over socket and flight
 *      record from the old one
 *
 * On several hosts each launcher knows its own ranks, and node 0's launcher combines their reports:
 * see launch/job/rebuild.c.  When the answer arrives, no rank uses the wires of epoch k any more.
 * Each rank drops its wire and opens a new listening socket, which refuses connections from another
 * epoch.
 *
 * If a rank that should join the new group dies, joining fails on the other ranks.  They then ask
 * again, for epoch k+2.  The caller still owns the old group, because its arenas have data.
 *
 * A replacement process also asks, without an epoch.  The launcher answers when a group is rebuilt
 * in which all ranks admit new ranks (`admits`).  The process has the last seat in that group, and
 * the other ranks send it their arenas (arena.c).
 *
 * Ranks that are threads of one process have no launcher, and decide together
 * (group/thread_rebuild.c).
 *
 * Ranks keep their world ranks in all messages (lk_comm.world).  Their ranks in the group are
 * assigned again.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/options.h"
#include "comm/group/thread_rebuild.h"
#include "comm/flight.h"
#include "comm/join/rebuild.h"
#include "comm/group/request.h"
#include "comm/span/span.h"
#include "link/wire/wire.h"

/* LAUNCHER_MS is longer than the time after which a silent launcher of another host counts as lost.
 * LATE_MAX is the number of attempts that may fail after the timeout. */
enum { SLICE_MS = 50, LATE_MS = 10 * SLICE_MS, LAUNCHER_MS = 15000, LATE_MAX = 4 };

/* ---- Asking ------------------------------------------------------------------------------ */

/* Waits briefly for the answer to request `number`.  Discards packets of the old group, and a
 * second answer from a new coordinator. */
static lk_status next_answer(int socket, uint64_t number, lki_packet *packet, int *fd)
{
    struct pollfd ready = { .fd = socket, .events = POLLIN };
    bool          open  = true;

    *fd          = -1;
    packet->kind = LKI_PACKET_NONE;
    if (poll(&ready, 1, SLICE_MS) > 0)
        LK_TRY(lki_packet_receive(socket, packet, fd, &open));
    if (!open)
        return lk_fail(LK_EPEER, "the launcher is gone");
    if (packet->kind == LKI_PACKET_ANSWER && packet->answer.number == number)
        return LK_OK;
    packet->kind = LKI_PACKET_NONE;
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
    return LK_OK;
}

/* Returns the time in nanoseconds.  A rank uses it as the number of a request, which must differ
 * from all its earlier numbers. */
static uint64_t next_number(void)
{
    return (uint64_t)(lki_seconds() * 1e9);
}

/* Asks for the next group.  Time in which this process did not run does not count towards the
 * timeout. */
lk_status lki_rebuild_ask(int *control_fd, uint64_t *epoch, int socket, uint32_t timeout_ms,
                          bool admits)
{
    lki_packet packet = { .kind = LKI_PACKET_ASK };
    uint64_t   number = next_number();
    int64_t    waited = 0, before = lki_now_ms();

    packet.ask = (lki_ask){ .epoch = *epoch, .number = number, .timeout_ms = timeout_ms,
                            .admits = admits };
    if (lki_packet_send(socket, &packet, -1) != LK_OK)
        return lk_fail(LK_EPEER, "the launcher is gone");
    for (;;) {
        LK_TRY(next_answer(socket, number, &packet, control_fd));
        if (packet.kind == LKI_PACKET_ANSWER) {
            *epoch = packet.answer.epoch;
            return packet.answer.status == LK_OK
                       ? LK_OK : lk_fail(packet.answer.status, "%s", packet.answer.why);
        }
        int64_t now = lki_now_ms();
        waited += now - before > LATE_MS ? 0 : now - before;
        before = now;
        if (waited > (int64_t)timeout_ms + LAUNCHER_MS)
            return lk_fail(LK_ETIMEOUT, "the launcher has not said within %lld ms who continues; "
                           "is it stopped?", (long long)waited);
    }
}

/* ---- Moving to the new group -------------------------------------------------------------- */

/* Drops requests and connections without notifying peers, because all ranks have left the old
 * group. */
static void fall_silent(lki_self *self)
{
    while (self->requests != NULL)
        lki_requests_orphan(self->requests->comm);
    lki_wire_drop(self->wire);
    self->wire = NULL;
}

/* Moves the state that the new group also uses from `from` to `to`.  Only the memory of the old
 * group remains in `from`. */
static void hand_over(lki_self *from, lki_self *to)
{
    to->flight   = from->flight;
    to->track    = from->track;
    from->flight = NULL;
    from->socket = -1;
}

static void note_epoch(lk_comm *comm)
{
    char          phase[LKI_PHASE_BYTES];
    lki_rank_view view;

    if (comm->self->flight == NULL)
        return;
    lki_board_view(comm->board, comm->self->rank, &view);
    (void)snprintf(phase, sizeof phase, "epoch %llu, as rank %u of %u",
                   (unsigned long long)comm->board->job.epoch, comm->rank, comm->size);
    lki_flight_went_on(comm->self->flight);
    lki_flight_write_note(comm->self->flight, view.step, phase);
}

static lk_status join_process(lk_comm **out, lki_self *self, uint64_t *epoch,
                              const lk_comm_options *options)
{
    int control_fd;

    bool admits  = self->admits;
    self->admits = false; /* this request was answered; to admit further ranks this rank must ask
                           * again */
    LK_TRY(lki_rebuild_ask(&control_fd, epoch, self->socket, options->timeout_ms, admits));
    fall_silent(self);
    lk_status st = lki_comm_open_shm(out, control_fd, self->rank, self->socket, options);
    (void)close(control_fd);
    return st;
}

static lk_status join_thread(lk_comm **out, lki_self *self, uint64_t *epoch,
                             const lk_comm_options *options)
{
    lki_group *group;

    LK_TRY(lki_thread_rebuild_ask(&group, self->group->rebuild, self->rank, epoch,
                                  options->timeout_ms));
    fall_silent(self);
    lki_board_carry_place(&group->board->ranks[self->rank],
                          &self->group->board->ranks[self->rank]);
    return lki_comm_open_next(out, group, self->rank, options);
}

static lk_status join_once(lk_comm **out, lki_self *self, uint64_t *epoch,
                           const lk_comm_options *options)
{
    lk_comm *local;

    LK_TRY(self->group->rebuild != NULL ? join_thread(&local, self, epoch, options)
                                        : join_process(&local, self, epoch, options));
    return lki_comm_rejoin_hosts(out, local, self);
}

/* Joins the next group.  A rank may die or stop after the old group and before the new one.
 * Joining then fails, and the launcher kills the missing rank.  This function tries again, a
 * limited number of times.  `missed` is the failure of the last group that was not established. */
static lk_status join_next(lk_comm **out, lki_self *self, const lk_comm_options *options,
                           lk_error *missed)
{
    uint64_t  epoch = self->group->board->job.epoch, before;
    int64_t   end   = lki_now_ms() + options->timeout_ms;
    uint32_t  late  = 0;
    lk_status st;

    do {
        before = epoch;
        st     = join_once(out, self, &epoch, options);
        late += lki_now_ms() >= end;
        if (st != LK_OK)
            *missed = *lk_error_last();
    } while ((st == LK_EPEER || st == LK_ETIMEOUT) && epoch > before && late < LATE_MAX);
    return st;
}

/* ---- The call ---------------------------------------------------------------------------- */

static lk_status check(const lk_comm *failed)
{
    if (!lki_comm_is_first(failed))
        return lk_fail(LK_EINVAL, "a group made by split is not made anew: give lk_comm_rebuild() "
                       "the communicator that lk_join() gave, and split the new one");
    if (failed->self->engine != NULL)
        return lk_fail(LK_EUNSUPPORTED,
                       "MPI cannot continue without a rank of its job: start it with "
                       "`on_failure` continue, or again from its newest checkpoint");
    if (failed->self->socket < 0 && failed->self->group->rebuild == NULL)
        return lk_fail(LK_EUNSUPPORTED, "nobody decides who continues: no launcher has started "
                       "this process, or this group has been made anew already");
    return LK_OK;
}

/* ---- Entering ---------------------------------------------------------------------------- */

/* Waits for the answer to a new rank without a time limit, because the ranks of the group may admit
 * it at any time. */
static lk_status await_entrance(int *control_fd, int socket)
{
    lki_packet packet = { .kind = LKI_PACKET_ASK,
                          .ask  = { .epoch = LKI_NO_EPOCH, .timeout_ms = 1 } };
    uint64_t   number = next_number();

    packet.ask.number = number;
    if (lki_packet_send(socket, &packet, -1) != LK_OK)
        return lk_fail(LK_EPEER, "the launcher is gone");
    do
        LK_TRY(next_answer(socket, number, &packet, control_fd));
    while (packet.kind != LKI_PACKET_ANSWER);
    return packet.answer.status == LK_OK ? LK_OK
                                         : lk_fail(packet.answer.status, "%s", packet.answer.why);
}

lk_status lki_comm_enter(lk_comm **out, uint32_t rank, int launcher_socket,
                         const unsigned char *key, const lk_comm_options *options)
{
    lk_comm *local;
    int      control_fd;

    *out = NULL;
    LK_TRY(await_entrance(&control_fd, launcher_socket));
    lk_status st = lki_comm_open_shm(&local, control_fd, rank, launcher_socket, options);
    (void)close(control_fd);
    return st == LK_OK ? lki_comm_enter_hosts(out, local, key) : st;
}

bool lk_comm_awaited(const lk_comm *comm)
{
    return atomic_load_explicit(&comm->board->awaited, memory_order_relaxed) != 0;
}

bool lki_comm_host_is_fresh(const lk_comm *comm, uint32_t host)
{
    uint32_t rank = 0;

    while (rank < comm->size && (lk_comm_host(comm, rank) != host || lki_comm_is_fresh(comm, rank)))
        rank++;
    return rank == comm->size;
}

void lki_comm_who(const lk_comm *comm, uint32_t rank, char out[LKI_WHO_BYTES])
{
    lki_board_who(out, comm->board, comm->world[rank], "");
}

bool lki_comm_loss(const lk_comm *now, const lk_comm *before, uint32_t rank,
                   char out[LKI_LOSS_BYTES])
{
    const lki_rank *record = &now->board->ranks[before->world[rank]];

    if (atomic_load(&record->lost) <= before->board->job.epoch)
        return false;
    memcpy(out, record->loss, LKI_LOSS_BYTES);
    return true;
}

void lki_comm_world_who(const lk_comm *comm, uint32_t rank, char out[LKI_WHO_BYTES])
{
    LK_ASSERT(rank < comm->board->size);
    lki_board_who(out, comm->board, rank, "");
}

void lki_comm_tell(const lk_comm *comm, const char *text)
{
    lki_launcher_note(comm->self->socket, text);
}

static lk_status go_on(lk_comm **out, lk_comm *failed, const lk_comm_options *options,
                       lk_error *missed)
{
    lk_comm_options given, mine = { .struct_size = sizeof(lk_comm_options),
                                    .timeout_ms  = failed->opened_timeout_ms };

    *out = NULL;
    LK_TRY(lki_options_copy(&given, sizeof given, options, "lk_comm_options"));
    LK_TRY(check(failed));
    if (!lki_failed(failed))
        return lk_fail(LK_EINVAL, "the group has not failed");
    if (given.timeout_ms != 0)
        mine.timeout_ms = given.timeout_ms;
    LK_TRY(join_next(out, failed->self, &mine, missed));
    (*out)->opened_timeout_ms = failed->opened_timeout_ms;
    hand_over(failed->self, (*out)->self);
    note_epoch(*out);
    return LK_OK;
}

lk_status lk_comm_rebuild(lk_comm **out, lk_comm *failed, const lk_comm_options *options)
{
    lk_error missed;
    return go_on(out, failed, options, &missed);
}

lk_status lki_comm_admit(lk_comm **out, lk_comm *failed, const lk_comm_options *options,
                         lk_error *missed)
{
    missed->status       = LK_OK;
    failed->self->admits = true;
    return go_on(out, failed, options, missed);
}

lk_status lk_comm_admit(lk_comm **out, lk_comm *comm, const lk_comm_options *options)
{
    static const char why[] = "waiting workers enter";
    lk_comm_options   given;
    lk_error          missed;

    *out = NULL;
    LK_TRY(lki_options_copy(&given, sizeof given, options, "lk_comm_options"));
    LK_TRY(check(comm));
    /* A rank that has left the barrier may end the group while others are still in it. */
    if (lk_barrier(comm) == LK_OK || strcmp(lk_error_last()->message, why) == 0)
        (void)lki_comm_dissolve(comm, lk_comm_world_rank(comm, 0), why);
    return lki_comm_admit(out, comm, options, &missed);
}
