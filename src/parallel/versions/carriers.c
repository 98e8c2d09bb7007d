/* carriers.c -- the first rank of each host, which sends and receives gradients for the host.
 *
 * A gradient is an envelope and its values.  The envelope says what the values are.  The values are
 * received when there is room for them.  A carrier reads some envelopes ahead, so that several
 * gradients are on their way.  It takes them in in the order of the envelopes.
 *
 * Each pair of carriers has two communicators for each direction.  A communicator moves only its
 * oldest requests at a time, so what a peer has no room for does not hold up anything else.
 */
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/versions/internal.h"

enum { NAP_MS = 1 };

/* Returns the rank of the peer, in the communicators of two carriers. */
static uint32_t other(const lki_peer *peer)
{
    return 1 - lk_comm_rank(peer->comms[0]);
}

/* Frees a request if it is complete. */
static lk_status settle(lk_request **request, bool *done)
{
    *done = true;
    if (*request == NULL)
        return LK_OK;
    LK_TRY(lk_request_test(*request, done));
    if (*done) {
        lk_request_free(*request);
        *request = NULL;
    }
    return LK_OK;
}

/* ---- Sending ------------------------------------------------------------------------------- */

/* Finds the next message for a peer.  Returns false if there is none. */
static bool next_message(lki_versions *v, const lki_peer *peer, uint32_t *message)
{
    if (lki_keeps_order(v)) {
        if (!lki_claim_is(v, peer->next, LKI_CLAIM_DONE))
            return false;
        *message = v->place_of[peer->next % v->window];
        return true;
    }
    const uint32_t found = atomic_exchange(&v->hosts.outbox[peer->next % v->message_count], 0);
    *message             = found - 1;
    return found > 0;
}

/* Starts to send a message to a peer. */
static lk_status start_sending(lki_versions *v, lki_peer *peer, uint32_t message)
{
    lki_envelope *envelope = lki_envelope_of(v, message);
    lki_sending  *sending  = &peer->sendings[peer->sending_count++];
    *sending               = (lki_sending){ .message = message };
    LK_TRY(lk_send_start(&sending->envelope, peer->comms[LKI_ENVELOPES_OUT], envelope,
                         v->hosts.envelope_bytes, other(peer)));
    return envelope->host == peer->host
               ? LK_OK
               : lk_send_start(&sending->values, peer->comms[LKI_VALUES_OUT],
                               lki_versions_message(v, message),
                               v->model->width * sizeof(float), other(peer));
}

/* Frees what a peer has received. */
static lk_status settle_sendings(const lki_versions *v, lki_peer *peer, bool *news)
{
    for (uint32_t i = peer->sending_count; i-- > 0;) {
        lki_sending *sending = &peer->sendings[i];
        bool         first, second;
        LK_TRY(settle(&sending->envelope, &first));
        LK_TRY(settle(&sending->values, &second));
        if (!first || !second)
            continue;
        (void)atomic_fetch_sub(&v->taken[sending->message], 1);
        *sending = peer->sendings[--peer->sending_count];
        *news    = true;
    }
    return LK_OK;
}

static lk_status send_all(lki_versions *v, lki_peer *peer, bool *news)
{
    uint32_t message;
    while (next_message(v, peer, &message)) {
        peer->next++;
        LK_TRY(start_sending(v, peer, message));
    }
    return settle_sendings(v, peer, news);
}

/* ---- Receiving ----------------------------------------------------------------------------- */

static lki_receiving *receiving_at(lki_peer *peer, uint64_t number)
{
    return &peer->receivings[number % LKI_READ_AHEAD];
}

/* Receives the next envelope, if it is there.  *moved becomes true then. */
static lk_status read_envelope(const lki_versions *v, lki_peer *peer, bool *moved)
{
    lki_receiving *r = receiving_at(peer, peer->read);
    bool           done;
    if (peer->ended || peer->read == peer->taken_in + LKI_READ_AHEAD)
        return LK_OK;
    if (peer->envelope == NULL)
        LK_TRY(lk_recv_start(&peer->envelope, peer->comms[LKI_ENVELOPES_IN], r->envelope,
                             v->hosts.envelope_bytes, other(peer)));
    LK_TRY(settle(&peer->envelope, &done));
    if (!done)
        return LK_OK;
    *moved      = true;
    peer->ended = r->envelope->ends > 0;
    peer->read += !peer->ended;
    return LK_OK;
}

/* Returns true if shards have applied the last gradient of a group, and none of it is received. */
static bool is_free(const lki_versions *v, lki_peer *peer, uint32_t group)
{
    for (uint64_t number = peer->taken_in; number < peer->begun; number++)
        if (receiving_at(peer, number)->envelope->group == group)
            return false;
    return v->doing[group].state == LKI_GROUP_FREE;
}

/* Returns true if there is room for the gradient of an envelope from a peer. */
static bool has_room(const lki_versions *v, lki_peer *peer, lki_receiving *r)
{
    const lki_envelope *envelope = r->envelope;
    if (envelope->place != LKI_NO_PLACE &&
        envelope->place >= lki_applied(v) + v->window - v->options.groups)
        return false;
    if (envelope->host == v->hosts.here)
        return true;
    if (v->sharded.count > 0 && !is_free(v, peer, envelope->group))
        return false;
    return lki_hosts_take(v, &r->message);
}

/* Begins to receive the values of the next gradient, if there is room for them. */
static lk_status make_room(const lki_versions *v, lki_peer *peer, bool *moved)
{
    lki_receiving *r = receiving_at(peer, peer->begun);
    if (peer->begun == peer->read || !has_room(v, peer, r))
        return LK_OK;
    *moved = true;
    peer->begun++;
    return r->envelope->host == v->hosts.here
               ? LK_OK
               : lk_recv_start(&r->values, peer->comms[LKI_VALUES_IN],
                               lki_versions_message(v, r->message),
                               v->model->width * sizeof(float), other(peer));
}

/* Hands over a gradient that is complete, from host 0 with its place, from another one without. */
static lk_status hand_over(lk_parallel *parallel, lki_receiving *r)
{
    lki_versions       *v        = parallel->versions;
    const lki_envelope *envelope = r->envelope;
    if (envelope->host != v->hosts.here)
        memcpy(lki_envelope_of(v, r->message), envelope, v->hosts.envelope_bytes);
    else if (lki_arrives(v, envelope->place))
        r->message = envelope->message;
    else
        return LK_OK; /* this host has known its place */
    if (lki_keeps_order(v)) {
        (void)atomic_fetch_add(&v->common->waited, envelope->waited);
        return lki_hosts_enter(parallel, r->message);
    }
    return lki_hosts_deliver(parallel, r->message, envelope->place);
}

/* Takes in the next gradient, if it is complete. */
static lk_status take_in(lk_parallel *parallel, lki_peer *peer, bool *moved)
{
    lki_receiving *r = receiving_at(peer, peer->taken_in);
    bool           done;
    if (peer->taken_in == peer->begun)
        return LK_OK;
    LK_TRY(settle(&r->values, &done));
    if (!done)
        return LK_OK;
    *moved = true;
    peer->taken_in++;
    return hand_over(parallel, r);
}

static lk_status receive(lk_parallel *parallel, lki_peer *peer, bool *news)
{
    bool moved = true;
    while (moved) {
        moved = false;
        LK_TRY(take_in(parallel, peer, &moved));
        *news = *news || moved;
        LK_TRY(read_envelope(parallel->versions, peer, &moved));
        LK_TRY(make_room(parallel->versions, peer, &moved));
    }
    return LK_OK;
}

/* ---- Progress ------------------------------------------------------------------------------ */

lk_status lki_hosts_poll(lk_parallel *parallel)
{
    lki_versions *v      = parallel->versions;
    bool          news   = false;
    lk_status     status = LK_OK;
    for (uint32_t i = 0; i < v->hosts.peer_count && status == LK_OK; i++) {
        status = receive(parallel, &v->hosts.peers[i], &news);
        if (status == LK_OK)
            status = send_all(v, &v->hosts.peers[i], &news);
    }
    if (news)
        lki_versions_changed(v);
    return status;
}

void lki_versions_progress(lk_parallel *parallel)
{
    if (parallel->versions->hosts.opened && parallel->versions->hosts.peer_count > 0 &&
        !lki_step_failed(parallel))
        lki_step_keep(parallel, lki_hosts_poll(parallel));
}

/* Returns a request with a peer that is not complete; NULL if there is none. */
static lk_request *find_request(lki_peer *peer)
{
    const lki_receiving *next = receiving_at(peer, peer->taken_in);
    if (peer->taken_in < peer->begun && next->values != NULL)
        return next->values;
    if (peer->envelope != NULL || peer->ending != NULL)
        return peer->envelope != NULL ? peer->envelope : peer->ending;
    if (peer->sending_count == 0)
        return NULL;
    return peer->sendings->envelope != NULL ? peer->sendings->envelope : peer->sendings->values;
}

/* Waits a moment for what peers send or receive. */
static lk_status nap(const lki_versions *v)
{
    lk_request *request = NULL;
    for (uint32_t i = 0; i < v->hosts.peer_count && request == NULL; i++)
        request = find_request(&v->hosts.peers[i]);
    if (request == NULL)
        return LK_OK;
    const lk_status status = lk_request_wait_for(request, NAP_MS);
    return status == LK_ETIMEOUT && !lki_comm_has_failed(v->hosts.peers->comms[0]) ? LK_OK : status;
}

lk_status lki_hosts_wait(lk_parallel *parallel)
{
    LK_TRY(nap(parallel->versions));
    return lki_hosts_poll(parallel);
}

/* ---- The beginning ------------------------------------------------------------------------- */

static lk_status prepare_peer(const lki_versions *v, lki_peer *peer)
{
    LK_TRY(LKI_NEW(&peer->sendings, v->message_count, "gradients to send"));
    LK_TRY(lki_alloc((void **)&peer->end, v->hosts.envelope_bytes, "the end of a run"));
    for (uint32_t i = 0; i < LKI_READ_AHEAD; i++)
        LK_TRY(lki_alloc((void **)&peer->receivings[i].envelope, v->hosts.envelope_bytes,
                         "gradients to receive"));
    return LK_OK;
}

/* Connects the carriers of host 0 and of another host. */
static lk_status connect_host(lk_parallel *parallel, uint32_t host)
{
    lki_versions  *v     = parallel->versions;
    const bool     mine  = parallel->local == 0 && (lki_keeps_order(v) || v->hosts.here == host);
    const uint32_t color = mine ? 0 : LK_NO_COLOR;
    lki_peer      *peer  = &v->hosts.peers[v->hosts.peer_count];
    lk_comm       *comm;
    v->hosts.peer_count += mine;
    for (uint32_t i = 0; i < LKI_WAYS; i++) {
        LK_TRY(lk_comm_split(&comm, parallel->comm, color, 0));
        if (mine) /* what goes out of host 0 comes in on the other host */
            peer->comms[lki_keeps_order(v) ? (i + LKI_WAYS / 2) % LKI_WAYS : i] = comm;
    }
    if (!mine)
        return LK_OK;
    peer->host = lki_keeps_order(v) ? host : LKI_ORDER_HOST;
    return prepare_peer(v, peer);
}

lk_status lki_hosts_open(lk_parallel *parallel)
{
    lki_versions *v = parallel->versions;
    if (!lki_has_hosts(v))
        return LK_OK;
    if (v->options.record != NULL) {
        const lki_arrivals *a = v->arrivals;
        lki_task_schedule_continue(&v->ahead, v->again, a->missing, atomic_load(&a->begun));
        lki_task_schedule_continue(&v->now, v->again, a->missing, atomic_load(&a->begun));
    }
    for (uint32_t r = 0; r < parallel->ranks; r++) /* ranks of other hosts are not waited for */
        if (parallel->world.host_of[r] != v->hosts.here)
            atomic_store(&v->passed[r], UINT64_MAX / 2);
    LK_TRY(LKI_NEW(&v->hosts.peers, v->hosts.count, "hosts"));
    for (uint32_t host = 0; host < v->hosts.count; host++)
        if (host != LKI_ORDER_HOST)
            LK_TRY(connect_host(parallel, host));
    v->hosts.opened = true;
    return LK_OK;
}

void lki_hosts_resume(lk_parallel *parallel, uint64_t applied)
{
    lki_versions *v = parallel->versions;
    for (uint32_t i = 0; i < v->hosts.peer_count && lki_keeps_order(v); i++)
        v->hosts.peers[i].next = applied;
}

/* ---- The end ------------------------------------------------------------------------------- */

/* Receives and drops what a peer still sends. */
static lk_status drain(const lki_versions *v, lki_peer *peer)
{
    bool moved = true;
    while (moved) {
        lki_receiving *r = receiving_at(peer, peer->taken_in);
        bool           done;
        moved = false;
        LK_TRY(read_envelope(v, peer, &moved));
        if (peer->taken_in == peer->read)
            continue;
        if (peer->taken_in == peer->begun) {
            peer->begun++;
            if (r->envelope->host != v->hosts.here)
                LK_TRY(lk_recv_start(&r->values, peer->comms[LKI_VALUES_IN], v->hosts.scratch,
                                     v->model->width * sizeof(float), other(peer)));
        }
        LK_TRY(settle(&r->values, &done));
        peer->taken_in += done;
        moved = moved || done;
    }
    return LK_OK;
}

/* Goes on with the end.  *open becomes true if something is left. */
static lk_status finish_peer(const lki_versions *v, lki_peer *peer, bool *open)
{
    bool done;
    LK_TRY(drain(v, peer));
    LK_TRY(settle_sendings(v, peer, &done));
    LK_TRY(settle(&peer->ending, &done));
    *open = *open || !done || peer->sending_count > 0 || !peer->ended ||
            peer->taken_in < peer->read;
    return LK_OK;
}

/* Sends the end to all peers, and waits for theirs, so that no request is left. */
static lk_status say_goodbye(lki_versions *v)
{
    const int64_t since = lki_now_ms();
    bool          open  = true;
    LK_TRY(LKI_NEW(&v->hosts.scratch, v->model->width, "gradients after the end"));
    for (uint32_t i = 0; i < v->hosts.peer_count; i++) {
        lki_peer *peer  = &v->hosts.peers[i];
        peer->end->ends = 1;
        LK_TRY(lk_send_start(&peer->ending, peer->comms[LKI_ENVELOPES_OUT], peer->end,
                             v->hosts.envelope_bytes, other(peer)));
    }
    while (open) {
        open = false;
        for (uint32_t i = 0; i < v->hosts.peer_count; i++)
            LK_TRY(finish_peer(v, &v->hosts.peers[i], &open));
        if (open)
            LK_TRY(nap(v));
        if (open && lki_now_ms() - since > (int64_t)lki_comm_timeout_ms(v->hosts.peers->comms[0]))
            return lk_fail(LK_ETIMEOUT, "another host has not ended the run");
    }
    return LK_OK;
}

static void free_peer(lki_peer *peer)
{
    for (uint32_t i = 0; i < peer->sending_count; i++) {
        lk_request_free(peer->sendings[i].envelope);
        lk_request_free(peer->sendings[i].values);
    }
    for (uint32_t i = 0; i < LKI_READ_AHEAD; i++) {
        lk_request_free(peer->receivings[i].values);
        lki_free(peer->receivings[i].envelope);
    }
    lk_request_free(peer->envelope);
    lk_request_free(peer->ending);
    for (int way = 0; way < LKI_WAYS; way++)
        lk_comm_free(peer->comms[way]);
    lki_free(peer->sendings);
    lki_free(peer->end);
}

void lki_hosts_close(lk_parallel *parallel)
{
    lki_versions *v = parallel->versions;
    if (v->hosts.opened && v->hosts.peer_count > 0 && !lki_step_failed(parallel) &&
        !lki_comm_has_failed(parallel->comm))
        (void)(say_goodbye(v) == LK_OK); /* else the requests that are left end the group */
    for (uint32_t i = 0; i < v->hosts.peer_count; i++)
        free_peer(&v->hosts.peers[i]);
    lki_free(v->hosts.scratch);
    lki_free(v->hosts.peers);
}
