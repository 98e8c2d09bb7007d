/* seats.c -- node 0's part: handles and forwards letters from seated guests. */
#include "launch/rendezvous/guests.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

/* Sends a letter to all seated guests except `from` (may be NULL). */
static void tell_all(lki_server *server, const lki_guest *from, const void *letter, size_t bytes)
{
    for (uint32_t i = 0; i < server->options.nodes; i++) {
        int32_t number = server->seats[i].guest;
        if (number >= 0 && &server->guests[number] != from)
            lki_guest_say(server, &server->guests[number], letter, bytes);
    }
}

void lki_seats_pass_on(lki_server *server, const lki_guest *from, const lki_letter *letter)
{
    unsigned char bytes[LKI_LETTER_PLAIN_BYTES];
    tell_all(server, from, bytes, lki_letter_write(bytes, letter));
}

/* ---- While the job runs ------------------------------------------------------------------ */

/* Returns true if any node's outcome proves that the whole job is done. */
static bool is_complete(const lki_server *server)
{
    bool complete = false;

    for (uint32_t i = 0; i < server->options.nodes; i++) {
        const lki_seat_of_node *seat = &server->seats[i];
        complete = complete || (seat->in_group && seat->finished && seat->outcome.weight == 0);
    }
    return complete && server->options.together;
}

/* Returns the first outcome of the highest weight in the last group.  Once the job is complete,
 * lost nodes do not count. */
static lki_outcome outcome_of_all(const lki_server *server)
{
    const lki_seat_of_node *best     = NULL;
    bool                    complete = is_complete(server);

    for (uint32_t i = 0; i < server->options.nodes; i++) {
        const lki_seat_of_node *seat = &server->seats[i];
        uint32_t                weight = seat->outcome.weight;
        if (complete && weight == LKI_WEIGHT_LOST)
            continue;
        if (seat->in_group && (best == NULL || weight > best->outcome.weight
                               || (weight == best->outcome.weight && seat->order < best->order)))
            best = seat;
    }
    LK_ASSERT(best != NULL);
    return best->outcome;
}

static void finish(lki_server *server, lki_seat_of_node *seat, const lki_outcome *outcome)
{
    if (seat->finished)
        return;
    seat->finished = true;
    seat->outcome  = *outcome;
    seat->order    = ++server->finished;
    if (server->finished < server->options.nodes)
        return;
    lki_letter letter = { .kind = LKI_LETTER_OUTCOME, .outcome = outcome_of_all(server) };
    server->over      = true;
    lki_seats_pass_on(server, NULL, &letter);
}

/* Returns the number of nodes in the group that have introduced their workers. *others becomes the
 * number of nodes in the group that have not. */
static uint32_t count_introduced(const lki_server *server, uint32_t *others)
{
    uint32_t count = 0;

    *others = 0;
    for (uint32_t i = 0; i < server->options.nodes; i++)
        if (server->seats[i].in_group) {
            count += server->seats[i].introduced;
            *others += !server->seats[i].introduced;
        }
    return count;
}

static void tell_introductions(lki_server *server)
{
    lki_letter all  = { .kind = LKI_LETTER_INTRODUCTIONS, .workers = { 0, server->world } };
    size_t     used = lki_letter_write(server->bytes, &all);
    for (uint32_t i = 0; i < server->world; i++)
        used += lki_letter_add_introduction(server->bytes + used, &server->workers[i]);
    tell_all(server, NULL, server->bytes, used);
}

void lki_seats_tell_who_is_late(lki_server *server, int64_t now)
{
    uint32_t others, count = server->met ? count_introduced(server, &others) : 0;

    if (count <= server->known || others == 0 || now - server->grouped < lki_server_here_ms(server))
        return;
    server->known = count;
    tell_introductions(server);
}

static void hear_introductions(lki_server *server, lki_seat_of_node *seat,
                               const lki_letter *letter)
{
    lki_roster mine = seat->ranks;
    uint32_t   others;

    if (seat->introduced || letter->workers.first != mine.first
        || letter->workers.count != mine.count) {
        lki_guest_fail(server, &server->guests[seat->guest], "introduced workers of others");
        return;
    }
    for (uint32_t i = 0; i < mine.count; i++)
        server->workers[mine.first + i] = lki_letter_introduction(letter, i);
    seat->introduced = true;
    (void)count_introduced(server, &others);
    if (others == 0)
        tell_introductions(server);
}

/* ---- The next group ---------------------------------------------------------------------- */

static void remove_all(lki_members *members, lki_roster ranks)
{
    for (uint32_t rank = ranks.first; rank < ranks.first + ranks.count; rank++)
        members->words[rank / 64] &= ~(UINT64_C(1) << rank % 64);
}

/* Adds the entrants to the next group if no member refuses them.  Their node must have a surviving
 * member, because a replacement copies its data from the memory of its own host. */
static void admit(lki_server *server)
{
    for (uint32_t i = 0; i < server->options.nodes && !server->closed; i++) {
        const lki_seat_of_node *seat = &server->seats[i];
        if (!lki_members_any(&server->members, seat->ranks))
            continue;
        for (uint32_t k = seat->ranks.first; k < seat->ranks.first + seat->ranks.count; k++)
            if (lki_members_have(&server->entrants, k))
                lki_members_add(&server->members, k);
    }
}

/* Announces the next group once every node in the current group has reported, finished or been
 * lost. */
static void settle(lki_server *server)
{
    lki_roster all   = { .world = server->world, .first = 0, .count = server->world };
    lki_letter group = { .kind = LKI_LETTER_GROUP };

    for (uint32_t i = 0; i < server->options.nodes; i++) {
        const lki_seat_of_node *seat = &server->seats[i];
        if (seat->finished) /* true also if the node is lost: its ranks have died since their
                             * request */
            remove_all(&server->members, seat->ranks);
        else if (seat->in_group && !seat->settled)
            return;
    }
    if (!lki_members_any(&server->members, all))
        return;
    admit(server);
    lki_late_admit(server);
    group.group = (lki_group_letter){ .epoch = ++server->epoch, .admits = !server->closed,
                                      .members = server->members };
    for (uint32_t i = 0; i < server->options.nodes; i++) {
        lki_seat_of_node *seat = &server->seats[i];
        seat->in_group         = lki_members_any(&server->members, seat->ranks);
        seat->settled = seat->introduced = false;
    }
    lki_late_note_group(server);
    memset(server->workers, 0, server->world * sizeof *server->workers);
    server->members = server->entrants = (lki_members){ { 0 } };
    server->closed  = false;
    server->known   = 0;
    server->grouped = lki_now_ms();
    lki_seats_pass_on(server, NULL, &group);
}

static void hear_group(lki_server *server, lki_seat_of_node *seat, const lki_group_letter *group)
{
    uint32_t others = 0;

    for (uint32_t rank = 0; rank < LKI_RANKS_MAX; rank++)
        others += rank - seat->ranks.first >= seat->ranks.count
                  && (lki_members_have(&group->members, rank)
                      || lki_members_have(&group->entrants, rank));
    if (!server->options.goes_on || group->epoch > server->epoch || others > 0) {
        lki_guest_fail(server, &server->guests[seat->guest], "said who continues, which is not its "
                       "to say");
        return;
    }
    if (group->epoch < server->epoch || !seat->in_group || seat->finished)
        return;
    for (size_t i = 0; i < LKI_RANKS_MAX / 64; i++) {
        server->members.words[i] |= group->members.words[i];
        server->entrants.words[i] |= group->entrants.words[i];
    }
    server->closed = server->closed || !group->admits;
    seat->settled  = true;
    settle(server);
}

static void hear_seated(lki_server *server, lki_guest *g, const lki_letter *letter)
{
    lki_seat_of_node *seat = &server->seats[g->hello.node];

    switch (letter->kind) {
    case LKI_LETTER_HERE: return;
    case LKI_LETTER_INTRODUCTIONS: hear_introductions(server, seat, letter); return;
    case LKI_LETTER_OUTCOME:
        finish(server, seat, &letter->outcome);
        settle(server);
        return;
    case LKI_LETTER_GROUP: hear_group(server, seat, &letter->group); return;
    case LKI_LETTER_ASKED:
        if (letter->asked.epoch == server->epoch && seat->in_group)
            lki_seats_pass_on(server, g, letter);
        return;
    case LKI_LETTER_STOP:
        server->stopping = true;
        lki_seats_pass_on(server, g, letter);
        return;
    case LKI_LETTER_ENDED:
        if (letter->ended.rank - seat->ranks.first >= seat->ranks.count)
            break;
        lki_seats_pass_on(server, g, letter);
        return;
    case LKI_LETTER_VERDICT:
        if (letter->verdict.culprit >= server->world)
            break;
        lki_seats_pass_on(server, g, letter);
        return;
    case LKI_LETTER_HELLO:
    case LKI_LETTER_REFUSED:
    case LKI_LETTER_ROSTER:
    case LKI_LETTER_STANDING:
    case LKI_LETTER_AWAITED:
    case LKI_LETTER_KINDS: break;
    }
    lki_guest_fail(server, g, "sent a letter that is not its to send");
}

void lki_guest_hear(lki_server *server, lki_guest *g, const lki_letter *letter)
{
    if (!g->admitted && letter->kind == LKI_LETTER_HELLO)
        lki_guest_hello(server, g, &letter->hello);
    else if (!g->admitted)
        lki_guest_fail(server, g, "sent something else than a hello");
    else if (g->held && letter->kind != LKI_LETTER_HERE)
        lki_guest_fail(server, g, "sent a letter before it was let in");
    else if (server->met && !g->held && server->seats[g->hello.node].waits)
        lki_late_hear(server, &server->seats[g->hello.node], letter);
    else if (server->met && !g->held)
        hear_seated(server, g, letter);
    else if (letter->kind != LKI_LETTER_HERE)
        lki_guest_fail(server, g, "sent a letter before all had come");
}

void lki_seat_lose(lki_server *server, uint32_t node, const char *why)
{
    lki_seat_of_node *seat   = &server->seats[node];
    lki_outcome       end    = { .weight = LKI_WEIGHT_LOST, .failed = true, .exit_code = 1,
                                 .rank = seat->ranks.first };
    lki_letter        letter = { .kind    = LKI_LETTER_VERDICT,
                                 .verdict = { .culprit = seat->ranks.first,
                                               .host    = true,
                                               .status  = LK_EPEER } };

    if (seat->waits) {
        lki_late_lose(server, seat);
        return;
    }
    seat->guest = -1;
    if (seat->finished)
        return;
    lki_lost_text(letter.verdict.message, sizeof letter.verdict.message, seat->host, node,
                  seat->ranks, why);
    (void)snprintf(end.cause, sizeof end.cause, "%s", letter.verdict.message);
    if (seat->in_group) /* if the node is not in the group, no member depends on it */
        lki_seats_pass_on(server, NULL, &letter);
    finish(server, seat, &end);
    settle(server);
}
