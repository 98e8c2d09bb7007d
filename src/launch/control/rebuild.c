/* rebuild.c -- the launcher's side of a rebuild.
 *
 * A failed group is not repaired.  The ranks that request a new group receive the control memory of
 * the next epoch.  The new group consists of these ranks, followed by the ranks that they admit
 * (comm/join/rebuild.c).
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "launch/control/control.h"
#include "launch/control/inside.h"

static bool has_ended(const lki_control *control, uint32_t rank)
{
    lki_rank_state state = atomic_load(&control->board->ranks[rank].state);
    return state == LKI_RANK_LEFT || state == LKI_RANK_DEAD;
}

/* Returns true if the rank has requested a rebuild and is alive. */
static bool asks(const lki_control *control, uint32_t rank)
{
    return control->asked[rank - control->roster.first].timeout_ms != 0
           && !has_ended(control, rank);
}

bool lki_control_is_member(const lki_control *control, uint32_t rank)
{
    LK_ASSERT(rank < control->roster.world);
    return control->board->ranks[rank].member != 0;
}

uint32_t lki_control_asked(const lki_control *control, uint32_t *timeout_ms)
{
    uint32_t count = 0;

    *timeout_ms = UINT32_MAX;
    for (uint32_t i = 0; i < control->roster.count; i++) {
        uint32_t ms = control->asked[i].timeout_ms;
        if (!asks(control, control->roster.first + i))
            continue;
        *timeout_ms = ms < *timeout_ms ? ms : *timeout_ms;
        count++;
    }
    return count;
}

bool lki_control_is_missing(const lki_control *control, uint32_t rank)
{
    return lki_control_is_member(control, rank) && !asks(control, rank)
           && !has_ended(control, rank)
           && atomic_load(&lki_board_seat(control->board, rank)->left) == 0;
}

bool lki_control_all_joined(const lki_control *control)
{
    lki_board *board  = control->board;
    bool       joined = true;

    for (uint32_t i = 0; i < board->seated && board->job.epoch == 0; i++)
        if (lki_control_is_member(control, board->first + i)) /* false for the ranks of a host that
                                                               * joins late */
            joined = joined && atomic_load(&lki_board_seat(board, board->first + i)->joined) != 0;
    return joined;
}

/* Answers a rank.  The end of an unreachable rank is reported separately. */
static void answer(const lki_control *control, uint32_t rank, lk_status status, const char *why)
{
    int        socket = *lki_control_socket_of(control, rank);
    lki_packet packet = { .kind = LKI_PACKET_ANSWER };

    packet.answer.epoch  = control->board->job.epoch;
    packet.answer.number = control->numbers[rank - control->roster.first];
    packet.answer.status = status;
    (void)snprintf(packet.answer.why, sizeof packet.answer.why, "%s", why);
    if (socket >= 0)
        (void)(lki_packet_send(socket, &packet, status == LK_OK ? control->fd : -1) == LK_OK);
}

static void note_awaited(lki_control *control)
{
    uint32_t count = control->elsewhere;

    for (uint32_t i = 0; i < control->roster.count; i++)
        count += control->enters[i];
    atomic_store(&control->board->awaited, count);
}

void lki_control_set_entering(lki_control *control, uint32_t rank, bool enters)
{
    control->enters[rank - control->roster.first] = enters;
    note_awaited(control);
}

void lki_control_await(lki_control *control, bool waits)
{
    if (waits || control->elsewhere > 0)
        control->elsewhere += waits ? 1 : UINT32_MAX;
    note_awaited(control);
}

void lki_control_take_ask(lki_control *control, uint32_t rank, const lki_ask *ask)
{
    uint64_t epoch = control->board->job.epoch;
    char     why[LKI_MESSAGE_BYTES];

    control->numbers[rank - control->roster.first] = ask->number;
    if (ask->epoch == LKI_NO_EPOCH && !lki_control_is_member(control, rank)) {
        lki_control_set_entering(control, rank, true);
        return;
    }
    if (ask->epoch == epoch && lki_control_is_member(control, rank)) {
        control->asked[rank - control->roster.first] = *ask;
        return;
    }
    (void)snprintf(why, sizeof why, "rank %u asks for the group after epoch %llu, which is over: "
                   "it is in epoch %llu, %s rank %u", rank, (unsigned long long)ask->epoch,
                   (unsigned long long)epoch,
                   lki_control_is_member(control, rank) ? "with" : "without", rank);
    answer(control, rank, LK_EINVAL, why);
}

void lki_control_answer_all(lki_control *control, lk_status status, const char *why)
{
    for (uint32_t i = 0; i < control->roster.count; i++) {
        uint32_t rank  = control->roster.first + i;
        bool     let_in = control->enters[i] && lki_control_is_member(control, rank);
        if (control->asked[i].timeout_ms != 0 || let_in)
            answer(control, rank, status, why);
        control->asked[i]  = (lki_ask){ 0 };
        lki_control_set_entering(control, rank, control->enters[i] && !let_in);
    }
}

void lki_control_refuse(lki_control *control, lk_status status, const char *why)
{
    LK_ASSERT(status != LK_OK);
    lki_control_answer_all(control, status, why);
}

/* Copies a rank's record from the epoch before `epoch`.  A rank that has just entered on another
 * host is a new process, whose address and pid arrive later.  A rank that was lost after its host
 * had reported the rank as a survivor is also lost in the new group. */
static void carry_over(lki_rank *to, const lki_rank *from, uint64_t epoch)
{
    bool     member   = to->member != 0;
    bool     stranger = to->fresh != 0 && to->seat == 0;
    uint64_t lost     = atomic_load(&from->lost);

    atomic_store(&to->state, member ? (uint32_t)LKI_RANK_RUNNING : atomic_load(&from->state));
    atomic_store(&to->pid, stranger ? 0 : atomic_load(&from->pid));
    atomic_store(&to->exit_code, atomic_load(&from->exit_code));
    atomic_store(&to->signal, atomic_load(&from->signal));
    lki_board_carry_place(to, from);
    memcpy(to->host, from->host, sizeof to->host);
    to->node = from->node;
    memcpy(to->loss, from->loss, sizeof to->loss);
    atomic_store(&to->lost, member && to->fresh == 0 && lost == epoch ? 1 + epoch : lost);
}

lki_members lki_control_askers(const lki_control *control)
{
    lki_members members = { { 0 } };

    for (uint32_t i = 0; i < control->roster.count; i++)
        if (asks(control, control->roster.first + i))
            lki_members_add(&members, control->roster.first + i);
    return members;
}

bool lki_control_admits(const lki_control *control)
{
    bool admits = true;

    for (uint32_t i = 0; i < control->roster.count; i++)
        admits = admits && (!asks(control, control->roster.first + i) || control->asked[i].admits);
    return admits;
}

lki_members lki_control_entrants(const lki_control *control)
{
    lki_members members = { { 0 } };
    bool        admits  = lki_control_admits(control);

    for (uint32_t i = 0; admits && i < control->roster.count; i++)
        if (control->enters[i])
            lki_members_add(&members, control->roster.first + i);
    return members;
}

void lki_control_revive(lki_control *control, uint32_t rank)
{
    lki_rank *record = &control->board->ranks[rank];
    int      *socket = lki_control_socket_of(control, rank);

    /* The state is LKI_RANK_ABSENT if the previous coordinator has already cleared the record. */
    LK_ASSERT(!lki_control_is_member(control, rank)
              && (has_ended(control, rank) || atomic_load(&record->state) == LKI_RANK_ABSENT));
    if (*socket >= 0) /* the other end may be open in a process that the lost worker started */
        (void)close(*socket);
    *socket = -1;
    atomic_store(&record->state, LKI_RANK_ABSENT);
    atomic_store(&record->exit_code, 0);
    atomic_store(&record->signal, 0);
    atomic_store(&record->noted, 0);
    atomic_store(&record->step, 0);
}

uint64_t lki_control_epoch(const lki_control *control)
{
    return control->board->job.epoch;
}

/* Fails the new group if one of its ranks has died.  With several hosts a rank can die after its
 * host has reported the rank as a survivor. */
static void bury_the_dead(lki_control *control, const lki_board *old)
{
    for (uint32_t i = 0; i < control->roster.count; i++) {
        uint32_t        rank   = control->roster.first + i;
        const lki_rank *record = &old->ranks[rank];
        lki_rank_state  state  = atomic_load(&record->state);
        if (lki_control_is_member(control, rank) && (state == LKI_RANK_LEFT
                                                     || state == LKI_RANK_DEAD))
            (void)lki_control_ended(control, rank, atomic_load(&record->exit_code),
                                    atomic_load(&record->signal));
    }
}

/* Orders the members as in the previous group, with entrants last.  So rank 0 remains the same
 * process. */
static void deal_seats(lki_board *board, const lki_board *old)
{
    uint32_t seats = 0;

    for (uint32_t seat = 1; seat <= old->members; seat++)
        for (uint32_t i = 0; i < old->seated; i++)
            if (old->ranks[old->first + i].seat == seat && board->ranks[old->first + i].member != 0)
                board->ranks[old->first + i].seat = ++seats;
    for (uint32_t i = 0; i < old->seated; i++) {
        lki_rank *record = &board->ranks[old->first + i];
        if (record->fresh != 0)
            record->seat = ++seats;
    }
    LK_ASSERT(seats == board->members);
}

/* Marks the ranks that enter.  The result is equal on all hosts, because they have seen the same
 * epochs. */
static void mark_fresh(lki_board *board, const lki_board *old)
{
    for (uint32_t rank = 0; rank < board->size; rank++) {
        lki_rank *record = &board->ranks[rank];
        record->fresh    = record->member != 0 && old->ranks[rank].member == 0;
        record->since    = record->fresh != 0 ? old->job.epoch + 1 : old->ranks[rank].since;
    }
}

/* Changes records in place, because no rank of this host uses the control memory yet. */
void lki_control_follow(lki_control *control, uint64_t epoch, const uint64_t *since)
{
    lki_board *board = control->board;

    board->job.epoch = epoch;
    for (uint32_t rank = 0; rank < board->size; rank++) {
        lki_rank *record = &board->ranks[rank];
        record->member   = since[rank] != 0;
        record->since    = since[rank] - record->member;
        if (rank - control->roster.first < control->roster.count)
            record->seat = 0;
    }
}

lk_status lki_control_rebuild(lki_control *control, const lki_members *members)
{
    bool        out[LKI_RANKS_MAX];
    uint32_t    seats = 0;
    lki_control old   = *control;

    for (uint32_t rank = 0; rank < old.roster.world; rank++) {
        out[rank] = !lki_members_have(members, rank);
        seats += !out[rank] && rank - old.roster.first < old.roster.count;
    }
    lk_status st = seats > 0 ? lki_control_board_create(control, out, seats)
                             : lk_fail(LK_EINVAL, "no rank asks for the group");
    if (st != LK_OK) {
        lki_control_answer_all(control, st, lk_error_last()->message);
        return st;
    }
    mark_fresh(control->board, old.board);
    deal_seats(control->board, old.board);
    control->board->job = old.board->job;
    control->board->job.epoch++;
    atomic_store(&control->board->stop, atomic_load(&old.board->stop));
    atomic_store(&control->board->leaving, atomic_load(&old.board->leaving));
    atomic_store(&control->board->heeded, atomic_load(&old.board->heeded));
    for (uint32_t rank = 0; rank < old.roster.world; rank++)
        carry_over(&control->board->ranks[rank], &old.board->ranks[rank],
                   control->board->job.epoch);
    bury_the_dead(control, old.board);
    if (control->journal.board != NULL)
        control->journal.board(control->journal.context, control->fd);
    if (control->journal.commit != NULL)
        control->journal.commit(control->journal.context);
    lki_control_board_close(&old);
    lki_control_answer_all(control, LK_OK, "");
    return LK_OK;
}
