/* seats.c -- node 0's part: who is let in, and what is passed on to whom. */
#include "comm/rendezvous/guests.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/memory.h"
#include "comm/group.h"

/* Tells everybody who is seated, but not `from` (which may be NULL). */
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

/* ---- Hello ------------------------------------------------------------------------------- */

void lki_guest_refuse(lki_server *server, lki_guest *g, lk_status status, const char *why)
{
    lki_letter letter = { .kind = LKI_LETTER_REFUSED, .refused = { .status = status } };

    (void)snprintf(letter.refused.message, sizeof letter.refused.message, "%s", why);
    lki_guest_write(server, g, &letter);
    lki_guest_fail(server, g, why);
}

void lki_seats_give_up(lki_server *server, lk_status status, const char *why)
{
    server->given_up = true;
    (void)snprintf(server->last, sizeof server->last, "%s", why);
    for (uint32_t i = 0; i < server->capacity; i++)
        if (server->guests[i].admitted)
            lki_guest_refuse(server, &server->guests[i], status, why);
}

/* The admitted guest that said it is this node, or NULL. */
static lki_guest *guest_of_node(const lki_server *server, int32_t node)
{
    for (uint32_t i = 0; i < server->capacity && node >= 0; i++)
        if (server->guests[i].admitted && server->guests[i].hello.node == node)
            return &server->guests[i];
    return NULL;
}

static uint32_t workers_so_far(const lki_server *server)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < server->capacity; i++)
        sum += server->guests[i].admitted ? server->guests[i].hello.workers : 0;
    return sum;
}

static lk_status check_same(const lki_server *server, const lki_hello_letter *hello)
{
    if (hello->protocol != LKI_RENDEZVOUS_PROTOCOL || strcmp(hello->version, LK_VERSION) != 0)
        return lk_fail(LK_EINVAL, "host %s has lockstep %s (protocol %u), node 0 has %s "
                       "(protocol %d): all nodes need the same", hello->host, hello->version,
                       hello->protocol, LK_VERSION, LKI_RENDEZVOUS_PROTOCOL);
    if (hello->nodes != server->options.nodes && !server->met)
        return lk_fail(LK_EINVAL, "host %s says that there are %u nodes, node 0 says %u",
                       hello->host, hello->nodes, server->options.nodes);
    if (hello->world != server->options.world)
        return lk_fail(LK_EINVAL, "host %s says that there are %u ranks, node 0 says %u",
                       hello->host, hello->world, server->options.world);
    if (hello->epoch != server->options.epoch)
        return lk_fail(LK_EINVAL, "host %s is in epoch %llu of its job, node 0 in %llu",
                       hello->host, (unsigned long long)hello->epoch,
                       (unsigned long long)server->options.epoch);
    if (hello->goes_on != server->options.goes_on)
        return lk_fail(LK_EINVAL, "host %s says that the job %s after a failure, node 0 that it "
                       "%s: all nodes need the same --on-failure", hello->host,
                       hello->goes_on ? "goes on" : "ends", hello->goes_on ? "ends" : "goes on");
    return LK_OK;
}

/* The host of some of the ranks [first, first + count), or NULL. */
static const char *host_of_ranks(const lki_server *server, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < server->capacity; i++) {
        const lki_guest *g = &server->guests[i];
        if (g->admitted && g->hello.first < first + count
            && first < g->hello.first + g->hello.workers)
            return g->hello.host;
    }
    return NULL;
}

/* Where ranks are numbered already. */
static lk_status check_ranks(const lki_server *server, const lki_hello_letter *hello, bool is_own)
{
    uint32_t    world = server->options.world;
    const char *other;

    if (hello->workers == 0 || hello->workers > world || hello->first > world - hello->workers
        || (hello->first == 0) != is_own)
        return lk_fail(LK_EINVAL, "host %s has ranks %u to %u: there are %u, from 0, which is on "
                       "host %s", hello->host, hello->first, hello->first + hello->workers - 1,
                       world, server->options.host);
    other = host_of_ranks(server, hello->first, hello->workers);
    if (other != NULL)
        return lk_fail(LK_EINVAL, "host %s has ranks %u to %u, but some are those of host %s",
                       hello->host, hello->first, hello->first + hello->workers - 1, other);
    return LK_OK;
}

static lk_status check_hello(const lki_server *server, const lki_guest *g,
                             const lki_hello_letter *hello)
{
    const lki_guest *same   = guest_of_node(server, hello->node);
    uint32_t         nodes  = server->options.nodes, others = workers_so_far(server);
    bool             is_own = g == &server->guests[LKI_GUEST_OWN];

    LK_TRY(check_same(server, hello));
    if (server->given_up)
        return lk_fail(LK_EPEER, "%s", server->last);
    if (server->met)
        return lki_late_check(server, hello);
    if (nodes == 0)
        return check_ranks(server, hello, is_own);
    if (hello->node >= (int32_t)nodes)
        return lk_fail(LK_EINVAL, "host %s says that it is node %d: the last of %u nodes is %u",
                       hello->host, hello->node, nodes, nodes - 1);
    if (same != NULL || (hello->node == 0 && !is_own))
        return lk_fail(LK_EINVAL, "host %s says that it is node %d, but so is host %s: every node "
                       "needs a number of its own", hello->host, hello->node,
                       same != NULL ? same->hello.host : server->options.host);
    if (hello->workers == 0 || hello->workers > LKI_RANKS_MAX - others)
        return lk_fail(LK_EINVAL, "host %s brings %u workers to the %u that have come: from 1 to "
                       "%d in all are possible", hello->host, hello->workers, others,
                       LKI_RANKS_MAX);
    return LK_OK;
}

/* ---- All have come ----------------------------------------------------------------------- */

/* The guest whose first rank is this. */
static lki_guest *guest_of_rank(const lki_server *server, uint32_t first)
{
    for (uint32_t i = 0; i < server->capacity; i++)
        if (server->guests[i].admitted && server->guests[i].hello.first == first)
            return &server->guests[i];
    return NULL;
}

/* Who has no number yet, first come first served. */
static lki_guest *next_without_number(const lki_server *server)
{
    lki_guest *next = NULL;
    for (uint32_t i = 0; i < server->capacity; i++) {
        lki_guest *g = &server->guests[i];
        if (g->admitted && g->hello.node < 0 && (next == NULL || g->since < next->since))
            next = g;
    }
    return next;
}

static void take_seats(lki_server *server)
{
    uint32_t first = 0;

    for (uint32_t node = 0; node < server->options.nodes; node++) {
        lki_guest *g = server->options.world > 0 ? guest_of_rank(server, first)
                                                 : guest_of_node(server, (int32_t)node);
        if (g == NULL)
            g = next_without_number(server);
        LK_ASSERT(g != NULL); /* as many have come as there are nodes or ranks, none twice */
        g->hello.node       = (int32_t)node;
        server->seats[node] = (lki_seat_of_node){
            .guest = (int32_t)(g - server->guests),
            .in_group = true,
            .ranks = { .first = first, .count = g->hello.workers },
        };
        memcpy(server->seats[node].host, g->hello.host, LKI_HOST_BYTES);
        first += g->hello.workers;
    }
    server->world = first;
}

/* Where the others reach this host.  If some came by a loopback address and others did not, they
 * could not reach each other by the addresses that they know of themselves. */
static lk_status find_address(lki_server *server)
{
    const lki_guest *near = NULL, *far = NULL;

    for (uint32_t i = 1; i < server->options.nodes; i++) {
        const lki_guest *g = &server->guests[server->seats[i].guest];
        if (lki_ip_local(g->line.fd).loopback)
            near = g;
        else
            far = g;
    }
    if (near != NULL && far != NULL)
        return lk_fail(LK_EINVAL, "host %s has reached node 0 by a loopback address, host %s has "
                       "not: give all nodes an address of node 0 that means the same everywhere",
                       near->hello.host, far->hello.host);
    if (near != NULL || far != NULL)
        server->address = lki_ip_local((far != NULL ? far : near)->line.fd);
    return LK_OK;
}

size_t lki_seats_roster(lki_server *server, uint32_t node, bool late)
{
    lki_letter letter = { .kind = LKI_LETTER_ROSTER,
                          .job  = { .node       = node,
                                    .nodes      = server->options.nodes,
                                    .here_ms    = lki_server_here_ms(server),
                                    .silence_ms = server->options.silence_ms,
                                    .port       = server->options.port,
                                    .late       = late } };
    memcpy(letter.job.job, server->job, sizeof server->job);
    size_t used = lki_letter_write(server->bytes, &letter);
    for (uint32_t i = 0; i < server->options.nodes; i++)
        used += lki_letter_add_host(server->bytes + used, server->seats[i].ranks.count,
                                    server->seats[i].host);
    return used;
}

static void meet(lki_server *server)
{
    take_seats(server);
    lk_status st = find_address(server);
    if (st == LK_OK && getrandom(server->job, sizeof server->job, 0) != sizeof server->job)
        st = lk_fail(LK_EIO, "no random number for the job: %s", strerror(errno));
    if (st == LK_OK)
        st = LKI_NEW(&server->workers, server->world, "addresses of all workers");
    if (st == LK_OK)
        st = LKI_NEW(&server->since, server->world, "who is in the group");
    if (st != LK_OK) {
        lki_seats_give_up(server, st, lk_error_last()->message);
        return;
    }
    server->met     = true;
    server->grouped = lki_now_ms();
    for (uint32_t rank = 0; rank < server->world; rank++)
        server->since[rank] = 1;
    for (uint32_t i = 0; i < server->options.nodes; i++)
        lki_guest_say(server, &server->guests[server->seats[i].guest], server->bytes,
                      lki_seats_roster(server, i, false));
}

static void hear_hello(lki_server *server, lki_guest *g, const lki_hello_letter *hello)
{
    lk_status st = check_hello(server, g, hello);

    if (st != LK_OK) {
        lki_guest_refuse(server, g, st, lk_error_last()->message);
        return;
    }
    g->hello      = *hello;
    g->admitted   = true;
    g->held       = server->met;
    g->line.limit = LKI_LETTER_BYTES_MAX;
    server->strangers--;
    server->admitted++;
    if (g->held) {
        lki_late_seat(server, g->since);
        return;
    }
    if (server->options.nodes == 0 && workers_so_far(server) == server->options.world)
        server->options.nodes = server->admitted;
    if (server->admitted == server->options.nodes)
        meet(server);
}

void lki_seats_missing(const lki_server *server, char *out, size_t bytes)
{
    bool        ranks   = server->options.nodes == 0;
    const char *what    = ranks ? "rank" : "node";
    uint32_t    all     = ranks ? server->options.world : server->options.nodes, listed = 0;
    uint32_t    missing = all - (ranks ? workers_so_far(server) : server->admitted);
    char        list[160] = "";
    size_t      used      = 0;

    for (uint32_t i = 0; i < all; i++) {
        if (ranks ? host_of_ranks(server, i, 1) != NULL : guest_of_node(server, (int32_t)i) != NULL)
            continue;
        if (used + 20 < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s%s%u",
                                     listed == 0 ? ": " : "", listed == 0 ? what : "",
                                     listed == 0 ? missing == 1 ? " " : "s " : ", ", i);
        listed++;
    }
    used = (size_t)snprintf(out, bytes, "%u of %u %ss %s not come within %.3g s%s", missing, all,
                            what, missing == 1 ? "has" : "have", server->options.join_ms / 1e3,
                            listed == missing ? list : ""); /* more: some came without a number */
    if (server->last[0] != '\0')
        (void)snprintf(out + used, bytes - used, " (%u connections were refused; the last to go: "
                       "%.180s)", server->refused, server->last);
}

/* ---- While the job runs ------------------------------------------------------------------ */

/* Whether a node has seen that all is done. */
static bool is_complete(const lki_server *server)
{
    bool complete = false;

    for (uint32_t i = 0; i < server->options.nodes; i++) {
        const lki_seat_of_node *seat = &server->seats[i];
        complete = complete || (seat->in_group && seat->finished && seat->outcome.weight == 0);
    }
    return complete && server->options.together;
}

/* Of the nodes that are in the last group: the weightiest, and among equals the first. */
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

/* Of the nodes of the group, how many have introduced theirs, and how many have not. */
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

/* What who enters needs is in the memory of its own host. */
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

/* Who goes on is known when all have said it who still can; then a new epoch begins. */
static void settle(lki_server *server)
{
    lki_roster all   = { .world = server->world, .first = 0, .count = server->world };
    lki_letter group = { .kind = LKI_LETTER_GROUP };

    for (uint32_t i = 0; i < server->options.nodes; i++) {
        const lki_seat_of_node *seat = &server->seats[i];
        if (seat->finished) /* or lost: whoever had asked there has died since */
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
        lki_guest_fail(server, &server->guests[seat->guest], "said who goes on, which is not its "
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
        hear_hello(server, g, &letter->hello);
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
                                 .verdict = { .culprit = seat->ranks.first, .status = LK_EPEER } };

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
    if (seat->in_group) /* else nobody misses it any more */
        lki_seats_pass_on(server, NULL, &letter);
    finish(server, seat, &end);
    settle(server);
}
