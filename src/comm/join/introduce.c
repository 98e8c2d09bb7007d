/* introduce.c -- the exchange of addresses between the ranks of several hosts.
 *
 * A rank writes its address into its record and notifies its launcher.  The launchers exchange all
 * addresses, and write those of other hosts into the records that their workers see.  A rebuilt
 * group (comm/join/rebuild.c) exchanges addresses again, because every group epoch has its own
 * listening sockets, which refuse ranks of another epoch.
 */
#include "comm/group/thread_rebuild.h"
#include "comm/join/rebuild.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "comm/span/span.h"
#include "comm/span/tuning.h"
#include "link/tcp.h"

enum { SLICE_MS = 50, LATE_MS = 10 * SLICE_MS };

/* Returns the first rank whose address is unknown.  *count becomes the number of such ranks. */
static uint32_t first_missing(const lki_board *board, uint32_t *count)
{
    uint32_t first = board->size;

    *count = 0;
    for (uint32_t rank = board->size; rank-- > 0;)
        if (board->ranks[rank].member != 0 &&
            atomic_load_explicit(&board->ranks[rank].reachable, memory_order_acquire) == 0) {
            first = rank;
            ++*count;
        }
    return first;
}

static lk_status fail_late(lk_comm *comm, uint32_t first, uint32_t count, int64_t waited_ms)
{
    char who[LKI_WHO_BYTES], others[40] = "";

    lki_board_who(who, comm->board, first, "");
    if (count > 1)
        (void)snprintf(others, sizeof others, " and %u other%s", count - 1, count > 2 ? "s" : "");
    return lki_fail_group(comm, first, LK_ETIMEOUT, "rank %u has waited %lld ms to learn where "
                          "%.120s%s can be reached", comm->self->rank, (long long)waited_ms, who,
                          others);
}

/* Publishes this rank's address, and waits for the addresses of all other ranks.  Time in which
 * this process was stopped does not count towards the timeout. */
lk_status lki_comm_introduce(lk_comm *comm, const char *address)
{
    lki_rank *me     = comm->me;
    int64_t   waited = 0, before = lki_now_ms();
    uint32_t  count, bell;

    (void)snprintf(me->address, sizeof me->address, "%s", address);
    atomic_store_explicit(&me->reachable, 1, memory_order_release);
    lki_launcher_nudge(comm->self->socket);
    for (;;) {
        bell           = atomic_load(&me->bell);
        uint32_t first = first_missing(comm->board, &count);
        if (lki_failed(comm))
            return lki_group_failure(comm);
        if (count == 0)
            return LK_OK;
        if (waited >= comm->timeout_ms)
            return fail_late(comm, first, count, waited);
        LK_TRY(lki_peers_check(comm, (lki_goal){ 0 }));
        lki_sleep(comm, bell, SLICE_MS);
        int64_t now = lki_now_ms();
        waited += now - before > LATE_MS ? 0 : now - before;
        before = now;
    }
}

const char *lki_comm_address(const lk_comm *comm, uint32_t rank)
{
    LK_ASSERT(rank < comm->board->size);
    return comm->board->ranks[rank].address;
}

uint32_t lki_comm_world(const lk_comm *comm)
{
    return comm->board->size;
}

uint32_t lki_comm_node(const lk_comm *comm, uint32_t rank)
{
    LK_ASSERT(rank < comm->board->size);
    return comm->board->ranks[rank].node;
}

/* ---- From this host's ranks to all ------------------------------------------------------- */

static const char *address_of(void *comm, uint32_t rank)
{
    const lki_rank *record = &((const lk_comm *)comm)->board->ranks[rank];
    return atomic_load_explicit(&record->reachable, memory_order_acquire) != 0 ? record->address
                                                                               : NULL;
}

static void refused(void *comm, lki_refusal why, const char *text)
{
    (void)why;
    lki_launcher_note(((const lk_comm *)comm)->self->socket, text);
}

/* The link gives up connecting before the ranks give up waiting for each other, because the link
 * knows the address and the reason. */
static lk_status listen_for_others(lki_link **out, lk_comm *local, const unsigned char *key)
{
    const lki_board *board   = local->board;
    lki_tcp_options  options = { .rank       = local->self->rank,
                                 .ranks      = board->size,
                                 .epoch      = board->job.epoch,
                                 .key        = key,
                                 .host       = board->job.listen,
                                 .address_of = address_of,
                                 .refused    = refused,
                                 .context    = local,
                                 .connect_ms = local->timeout_ms - local->timeout_ms / 4 };
    memcpy(options.job, board->job.id, sizeof options.job);
    return lki_tcp_open(out, &options);
}

/* Opens the communicator over all hosts on `link`.  On failure `local` stays open. */
static lk_status span_hosts(lk_comm **out, lk_comm *local, lki_link *link)
{
    const lki_board *board = local->board;
    uint32_t        *host_of;

    lk_status st = LKI_NEW(&host_of, board->size, "hosts of all ranks");
    if (st != LK_OK) {
        link->ops->close(link);
        return st;
    }
    for (uint32_t rank = 0; rank < board->size; rank++)
        host_of[rank] = board->ranks[rank].node;
    st = lki_span_open(out, local, link, host_of);
    lki_free(host_of);
    return st;
}

static lk_status meet(lk_comm **out, lk_comm *local)
{
    lki_thread_rebuild *rebuild = local->self->group->rebuild;
    lki_link           *link    = NULL;

    *out = NULL;
    if (rebuild != NULL)
        link = lki_thread_rebuild_link_of(rebuild, local->self->rank, local->board->job.epoch);
    if (link != NULL)
        return span_hosts(out, local, link);
    lk_status st = listen_for_others(&link, local, local->self->secure ? local->self->key : NULL);
    if (st == LK_OK)
        st = lki_comm_introduce(local, lki_tcp_address(link));
    if (st == LK_OK)
        return span_hosts(out, local, link);
    if (link != NULL)
        link->ops->close(link);
    lki_comm_give_up(local);
    return st;
}

static void take_key(lki_self *self, const unsigned char *key)
{
    self->secure = key != NULL;
    if (key != NULL)
        memcpy(self->key, key, sizeof self->key);
}

/* Returns true if all ranks of the group are on this host.  Other hosts may join later. */
static bool is_alone(const lki_board *board)
{
    return lki_board_group_size(board) == board->members;
}

lk_status lki_comm_join_hosts(lk_comm **out, lk_comm *local, const unsigned char *key)
{
    take_key(local->self, key);
    *out = local;
    if (is_alone(local->board))
        return LK_OK;
    LK_TRY(meet(out, local));
    lk_status st = lki_tuning_prepare(*out);
    if (st != LK_OK) {
        lki_comm_give_up(*out);
        *out = NULL;
    }
    return st;
}

static bool any_fresh(const lki_board *board)
{
    uint32_t rank = 0;
    while (rank < board->size && board->ranks[rank].fresh == 0)
        rank++;
    return rank < board->size;
}

/* Sends the tuning of a surviving rank to all ranks after a rebuild.  All ranks must choose the
 * same algorithms, and a rank that has just entered has no tuning. */
static lk_status meet_again(lk_comm **out, lk_comm *local)
{
    const lki_board *board = local->board;
    lki_tuning       known = local->self->tuning;

    *out = local;
    if (is_alone(board))
        return LK_OK;
    if (!any_fresh(board))
        return meet(out, local);
    lki_tuning_forget(&local->self->tuning);
    LK_TRY(meet(out, local));
    lk_status st = lki_tuning_tell(*out, &known);
    if (st != LK_OK) {
        lki_comm_give_up(*out);
        *out = NULL;
    }
    return st;
}

/* Joins again after a rebuild.  Measurements between hosts stay valid. */
lk_status lki_comm_rejoin_hosts(lk_comm **out, lk_comm *local, const lki_self *before)
{
    lki_self *self = local->self;

    take_key(self, before->secure ? before->key : NULL);
    self->crowded          = before->crowded;
    self->tuning           = before->tuning;
    if (before->tuning.prepared) /* all ranks have the constants of the file */
        self->tuning.of_a_file = false;
    if (self->crowded)
        local->spins = 0;
    return meet_again(out, local);
}

lk_status lki_comm_enter_hosts(lk_comm **out, lk_comm *local, const unsigned char *key)
{
    take_key(local->self, key);
    return meet_again(out, local);
}
