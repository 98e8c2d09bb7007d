/* late.c -- node 0's part: late nodes, which replace a lost node or a node that was absent when the
 * job began.
 *
 *    stranger --hello--> held --a seat is free--> waiting --its ranks are ready--> ready
 *       |                  |                          |                             |
 *    refused            refused,            lost: no node is told           in the next group, if
 *                       after join_ms                                       no member refuses it
 *
 * A late node may connect before the loss of its predecessor is detected.  The late node is
 * therefore held until its predecessor is lost and the other nodes have continued without the
 * predecessor.  The late node then gets the predecessor's node number and rank numbers, and
 * receives letters about groups.  Until it is in a group it has no vote, and its loss is not a
 * failure.
 */
#include "launch/rendezvous/guests.h"

#include <string.h>

#include "base/hash.h"
#include "base/status.h"

/* ---- Hello ------------------------------------------------------------------------------- */

/* Compares a late node's settings with node 0's, and names the first difference. */
static lk_status check_settings(const lki_server *server, const lki_hello_letter *hello)
{
    const char *const *mine = server->options.settings;
    uint32_t           count = 0;

    for (; mine != NULL && mine[count] != NULL && count < LKI_SETTINGS_MAX; count++) {
        uint32_t hash = (uint32_t)lki_xxh3(mine[count], strlen(mine[count])), i = 0;
        while (i < hello->settings.count && hello->settings.hashes[i] != hash)
            i++;
        if (i == hello->settings.count)
            return lk_fail(LK_EINVAL, "host %s has other settings than the job: node 0 has '%s'",
                           hello->host, mine[count]);
    }
    return hello->settings.count == count
               ? LK_OK : lk_fail(LK_EINVAL, "host %s has %u settings that node 0 does not have",
                                 hello->host, hello->settings.count - count);
}

static uint32_t count_held(const lki_server *server)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < server->capacity; i++)
        count += server->guests[i].held;
    return count;
}

/* Returns true if one of the nodes that the late node may replace has as many workers as the late
 * node. */
static bool has_like(const lki_server *server, const lki_hello_letter *hello)
{
    uint32_t i = 1;
    while (i < server->options.nodes && !((hello->node < 0 || (uint32_t)hello->node == i)
                                          && server->seats[i].ranks.count == hello->workers))
        i++;
    return i < server->options.nodes;
}

lk_status lki_late_check(const lki_server *server, const lki_hello_letter *hello)
{
    uint32_t nodes = server->options.nodes;

    if (server->over || server->stopping || !server->options.returns)
        return lk_fail(LK_EPEER, "host %s comes too late: the job %s", hello->host,
                       server->over       ? "is over"
                       : server->stopping ? "has been asked to stop"
                                          : "has begun, and takes hosts in only where training "
                                          "continues without one that it has lost (ddp, hybrid, "
                                          "`buddies` 2)");
    if (hello->nodes != nodes || hello->node >= (int32_t)nodes)
        return lk_fail(LK_EINVAL, "host %s says that it is node %d of %u nodes, node 0 that there "
                       "are %u", hello->host, hello->node, hello->nodes, nodes);
    if (hello->node == 0)
        return lk_fail(LK_EINVAL, "host %s says that it is node 0, but so is host %s", hello->host,
                       server->options.host);
    if (!has_like(server, hello))
        return lk_fail(LK_EINVAL, "host %s brings %u workers, and no node whose place it could "
                       "take had as many", hello->host, hello->workers);
    if (count_held(server) == LKI_HELD_MAX)
        return lk_fail(LK_EPEER, "host %s is one too many: %d wait for a place already",
                       hello->host, LKI_HELD_MAX);
    return check_settings(server, hello);
}

/* ---- A seat ------------------------------------------------------------------------------ */

/* Returns true if a node with a lower number has ranks in the group.  Rank 0 of the group then
 * remains the same process when `node` enters. */
static bool is_behind_another(const lki_server *server, uint32_t node)
{
    uint32_t i = 0;
    while (i < node && !server->seats[i].in_group)
        i++;
    return i < node;
}

static bool is_free(const lki_server *server, uint32_t node, const lki_hello_letter *hello)
{
    const lki_seat_of_node *seat = &server->seats[node];
    return seat->guest < 0 && seat->finished && !seat->in_group
           && (hello->node < 0 || (uint32_t)hello->node == node)
           && seat->ranks.count == hello->workers && is_behind_another(server, node);
}

static void tell_standing(lki_server *server, lki_guest *g)
{
    lki_letter letter = { .kind     = LKI_LETTER_STANDING,
                          .standing = { server->epoch, server->world } };
    size_t     used   = lki_letter_write(server->bytes, &letter);

    for (uint32_t rank = 0; rank < server->world; rank++)
        used += lki_letter_add_since(server->bytes + used, server->since[rank]);
    lki_guest_say(server, g, server->bytes, used);
}

static void take_seat(lki_server *server, lki_guest *g, uint32_t node)
{
    lki_seat_of_node *seat = &server->seats[node];

    seat->guest   = (int32_t)(g - server->guests);
    seat->waits   = true;
    seat->ready   = false;
    g->held       = false;
    g->hello.node = (int32_t)node;
    memcpy(seat->host, g->hello.host, sizeof seat->host);
    lki_guest_say(server, g, server->bytes, lki_seats_roster(server, node, true));
    tell_standing(server, g);
}

static void seat_or_refuse(lki_server *server, lki_guest *g, int64_t now)
{
    uint32_t node = 1;

    while (node < server->options.nodes && !is_free(server, node, &g->hello))
        node++;
    if (server->over || server->stopping)
        lki_guest_refuse(server, g, LK_EPEER, server->over ? "the job is over"
                                                           : "the job has been asked to stop");
    else if (node < server->options.nodes)
        take_seat(server, g, node);
    else if (now - g->since > server->options.join_ms)
        lki_guest_refuse(server, g, LK_EPEER, "no place in the job is free: it has lost no host "
                                              "whose place this one could take");
}

void lki_late_seat(lki_server *server, int64_t now)
{
    for (uint32_t i = 0; i < server->capacity; i++)
        if (server->guests[i].held && !server->guests[i].failing)
            seat_or_refuse(server, &server->guests[i], now);
}

/* ---- Waiting ----------------------------------------------------------------------------- */

static void tell_awaited(lki_server *server, const lki_seat_of_node *seat, bool waits)
{
    lki_letter letter = { .kind    = LKI_LETTER_AWAITED,
                          .awaited = { (uint32_t)(seat - server->seats), waits, "" } };

    memcpy(letter.awaited.host, seat->host, sizeof letter.awaited.host);
    lki_seats_pass_on(server, NULL, &letter);
}

static void forget(lki_server *server, lki_seat_of_node *seat)
{
    if (seat->ready)
        tell_awaited(server, seat, false);
    seat->waits = seat->ready = false;
}

void lki_late_hear(lki_server *server, lki_seat_of_node *seat, const lki_letter *letter)
{
    if (letter->kind == LKI_LETTER_OUTCOME) /* a late node's failure concerns no other node */
        forget(server, seat);
    if (letter->kind != LKI_LETTER_GROUP || seat->ready)
        return;
    for (uint32_t i = 0; i < seat->ranks.count; i++)
        if (!lki_members_have(&letter->group.entrants, seat->ranks.first + i))
            return;
    seat->ready = true;
    tell_awaited(server, seat, true);
}

void lki_late_lose(lki_server *server, lki_seat_of_node *seat)
{
    seat->guest = -1;
    forget(server, seat);
}

/* ---- Entering ---------------------------------------------------------------------------- */

void lki_late_admit(lki_server *server)
{
    bool behind = false;

    for (uint32_t i = 0; i < server->options.nodes && !server->closed; i++) {
        lki_seat_of_node *seat = &server->seats[i];
        bool              in   = lki_members_any(&server->members, seat->ranks);
        if (!in && behind && seat->ready) {
            forget(server, seat);
            for (uint32_t k = 0; k < seat->ranks.count; k++)
                lki_members_add(&server->members, seat->ranks.first + k);
            seat->finished = false; /* from now on the loss of this node counts */
            server->finished--;
        }
        behind = behind || in;
    }
}

void lki_late_note_group(lki_server *server)
{
    for (uint32_t rank = 0; rank < server->world; rank++)
        if (!lki_members_have(&server->members, rank))
            server->since[rank] = 0;
        else if (server->since[rank] == 0)
            server->since[rank] = 1 + server->epoch;
}
