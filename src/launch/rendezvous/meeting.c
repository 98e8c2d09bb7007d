/* meeting.c -- node 0's part: admission of nodes, and the start of the job.
 *
 * The job begins when all nodes have connected.  If fewer nodes suffice, node 0 waits for the other
 * nodes for a while.  The job then begins as if the absent nodes had been lost: their node and rank
 * numbers are reserved for late nodes (late.c).
 */
#include "launch/rendezvous/guests.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/file.h"
#include "base/memory.h"

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

/* Returns the admitted guest that claims this node number, or NULL. */
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
                       "%s: all nodes need the same `on_failure`", hello->host,
                       hello->goes_on ? "continues" : "ends",
                       hello->goes_on ? "ends" : "continues");
    return LK_OK;
}

/* Returns the host of any of the ranks [first, first + count), or NULL. */
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

/* Checks the ranks of a node that were numbered by a foreign launcher. */
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

/* ---- Start of the job -------------------------------------------------------------------- */

/* Returns the guest with this first rank, or NULL. */
static lki_guest *guest_of_rank(const lki_server *server, uint32_t first)
{
    for (uint32_t i = 0; i < server->capacity; i++)
        if (server->guests[i].admitted && server->guests[i].hello.first == first)
            return &server->guests[i];
    return NULL;
}

/* Returns the earliest guest without a node number, or NULL. */
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

/* Assigns the seat of `node` to guest `g`.  If `g` is NULL, reserves the seat for a late node. */
static void take_seat(lki_server *server, lki_guest *g, uint32_t node, uint32_t first)
{
    lki_seat_of_node *seat = &server->seats[node];

    LK_ASSERT(g != NULL || server->options.least > 0); /* otherwise every node has connected */
    *seat = (lki_seat_of_node){ .guest    = g != NULL ? (int32_t)(g - server->guests) : -1,
                                .in_group = g != NULL,
                                .finished = g == NULL,
                                .ranks = { .first = first, .count = server->options.workers } };
    server->finished += g == NULL;
    if (g == NULL)
        return;
    g->hello.node     = (int32_t)node;
    seat->ranks.count = g->hello.workers;
    memcpy(seat->host, g->hello.host, LKI_HOST_BYTES);
}

static void take_seats(lki_server *server)
{
    uint32_t first = 0;

    for (uint32_t node = 0; node < server->options.nodes; node++) {
        lki_guest *g = server->options.world > 0 ? guest_of_rank(server, first)
                                                 : guest_of_node(server, (int32_t)node);
        if (g == NULL)
            g = next_without_number(server);
        take_seat(server, g, node, first);
        first += server->seats[node].ranks.count;
    }
    server->world = first;
}

/* Determines the address by which late nodes can reach this host, if no node has connected yet. */
static lk_status find_own_address(lki_server *server)
{
    server->address = lki_ip_local(server->listener);
    if (strcmp(server->address.text, "0.0.0.0") != 0 && strcmp(server->address.text, "::") != 0)
        return LK_OK;
    return lk_fail(LK_EINVAL, "node 0 listens on all addresses, and nobody has come who could say "
                   "which of them others reach: give all nodes an address in place of a name");
}

/* Determines the address by which the other nodes reach this host.  Fails if only some of these
 * nodes used a loopback address, because some hosts could then not reach other hosts by the known
 * addresses. */
static lk_status find_address(lki_server *server)
{
    const lki_guest *near = NULL, *far = NULL;

    for (uint32_t i = 1; i < server->options.nodes; i++) {
        if (server->seats[i].guest < 0)
            continue;
        const lki_guest *g = &server->guests[server->seats[i].guest];
        if (lki_ip_local(g->line.fd).loopback)
            near = g;
        else
            far = g;
    }
    if (server->admitted == 1 && server->options.least > 0)
        return find_own_address(server);
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
    if (st == LK_OK && server->world > LKI_RANKS_MAX)
        st = lk_fail(LK_EINVAL, "the job may grow to %u workers, with as many on each host to come "
                     "as on node 0: %d are possible", server->world, LKI_RANKS_MAX);
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
    for (uint32_t i = 0; i < server->options.nodes; i++) {
        const lki_seat_of_node *seat = &server->seats[i];
        for (uint32_t k = 0; k < seat->ranks.count; k++)
            server->since[seat->ranks.first + k] = seat->in_group;
        if (seat->guest >= 0)
            lki_guest_say(server, &server->guests[seat->guest], server->bytes,
                          lki_seats_roster(server, i, false));
    }
}

void lki_guest_hello(lki_server *server, lki_guest *g, const lki_hello_letter *hello)
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
    if (server->admitted == server->options.least)
        server->enough = lki_now_ms();
    if (server->admitted == server->options.nodes)
        meet(server);
}

/* Formats, for example, "1 of 4 nodes has not come within 300 s: node 3". */
static void describe_missing(const lki_server *server, char *out, size_t bytes)
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
                            listed == missing ? list : ""); /* other missing nodes have no fixed
                                                             * number */
    if (server->options.least > 0)
        used += (size_t)snprintf(out + used, bytes - used, "; with %u there, the job begins only "
                                 "when there are %u", server->admitted, server->options.least);
    if (server->last[0] != '\0')
        (void)snprintf(out + used, bytes - used, " (%u connection%s refused; the last to go: "
                       "%.180s)", server->refused, server->refused == 1 ? " was" : "s were",
                       server->last);
}

void lki_seats_wait(lki_server *server, int64_t now)
{
    char why[LKI_MESSAGE_BYTES];
    bool enough = server->options.least > 0 && server->admitted >= server->options.least;

    if (server->met || server->given_up)
        return;
    if (enough && now - server->enough >= server->options.wait_ms) {
        meet(server);
    } else if (!enough && now >= server->deadline) {
        describe_missing(server, why, sizeof why);
        lki_seats_give_up(server, LK_ETIMEOUT, why);
    }
}
