/* ops.c -- this rank's open and ended operations, and the detection of ranks that disagree.
 *
 * A group's operations begin in ascending order, so an operation with a number below next_seq that
 * is not open has ended (or was skipped).  The last few ended operations are remembered with their
 * fingerprints.
 *
 * Probes: a waiting rank asks the rank for which it waits.  An asked rank that has been in the
 * operation compares the fingerprints, and fails if they differ.  An asked rank that has ended the
 * operation says so in its answer.  The waiting rank then fails if it still waits for a message of
 * the operation, because streams keep their order and the message can no longer arrive.  An asked
 * rank that has not ended the operation answers at once, and again when its position changes.
 */
#include "link/wire/inside.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"

/* ---- Groups ------------------------------------------------------------------------------ */

static lki_wire_group **group_bucket(lki_wire *wire, uint64_t key)
{
    return &wire->groups[(key ^ key >> 32) % LKI_WIRE_BUCKETS];
}

static lki_wire_group *find_group(const lki_wire *wire, uint64_t key)
{
    lki_wire_group *group = wire->groups[(key ^ key >> 32) % LKI_WIRE_BUCKETS];

    while (group != NULL && group->key != key)
        group = group->next;
    return group;
}

static void drop_group(lki_wire *wire, lki_wire_group *group)
{
    lki_wire_group **at = group_bucket(wire, group->key);

    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
    wire->group_count--;
    lki_free(group->open);
    lki_free(group);
}

/* Forgets the group that has been unused for longest. */
static void drop_oldest(lki_wire *wire)
{
    lki_wire_group *oldest = NULL;

    for (size_t i = 0; i < LKI_WIRE_BUCKETS; i++)
        for (lki_wire_group *group = wire->groups[i]; group != NULL; group = group->next)
            if (group->open_count == 0 && (oldest == NULL || group->used < oldest->used))
                oldest = group;
    if (oldest != NULL)
        drop_group(wire, oldest);
}

static lk_status make_group(lki_wire *wire, lki_wire_group **out, uint64_t key)
{
    lki_wire_group **bucket = group_bucket(wire, key);

    *out = find_group(wire, key);
    if (*out != NULL)
        return LK_OK;
    if (wire->group_count >= LKI_WIRE_GROUPS)
        drop_oldest(wire);
    LK_TRY(LKI_NEW(out, 1, "what a group's operations were"));
    (*out)->key  = key;
    (*out)->next = *bucket;
    *bucket      = *out;
    wire->group_count++;
    return LK_OK;
}

void lki_wire_free_groups(lki_wire *wire)
{
    for (size_t i = 0; i < LKI_WIRE_BUCKETS; i++)
        while (wire->groups[i] != NULL)
            drop_group(wire, wire->groups[i]);
}

static lki_open_op *find_seq(const lki_wire_group *group, uint64_t seq)
{
    for (size_t i = 0; i < group->open_count; i++)
        if (group->open[i].op.seq == seq)
            return &group->open[i];
    return NULL;
}

lki_open_op *lki_wire_find_open(const lki_wire *wire, const lki_wire_op *op)
{
    const lki_wire_group *group = find_group(wire, op->group);
    return group == NULL ? NULL : find_seq(group, op->seq);
}

static const lki_wire_op *find_ended(const lki_wire_group *group, uint64_t seq)
{
    size_t count = lki_min(group->ends, LKI_WIRE_HISTORY);

    for (size_t i = 0; i < count; i++)
        if (group->ended[i].seq == seq)
            return &group->ended[i];
    return NULL;
}

/* Returns the operation that began last. */
static const lki_wire_op *latest(const lki_wire *wire)
{
    return &wire->begun[wire->turn % LKI_FRAME_OPS_MAX];
}

/* ---- Disagreement ------------------------------------------------------------------------ */

lk_status lki_wire_mismatch(lki_wire *wire, const lki_wire_op *mine, uint32_t peer,
                            const lki_wire_op *theirs)
{
    uint32_t me    = wire->link->rank;
    bool     lower = me < peer; /* so that both ranks report the two operations in one order */
    char     texts[2][LKI_OPERATION_BYTES];

    lki_print_text(texts[lower ? 0 : 1], sizeof texts[0], mine->print, mine->seq, mine->label);
    lki_print_text(texts[lower ? 1 : 0], sizeof texts[0], theirs->print, theirs->seq,
                   theirs->label);
    return lki_wire_fail(wire, peer, LK_EMISMATCH, "rank %u is in %s; rank %u is in %s%s",
                         lower ? me : peer, texts[0], lower ? peer : me, texts[1],
                         strcmp(texts[0], texts[1]) == 0
                             ? ", but their slices, leaves, names, counts, places in the order "
                               "of calls or factors differ"
                             : "");
}

lk_status lki_wire_miscount(lki_wire *wire, const lki_wire_op *op, uint32_t peer, bool sends,
                            uint64_t sent, uint64_t expected)
{
    uint32_t me = wire->link->rank;
    char     text[LKI_OPERATION_BYTES];

    lki_print_text(text, sizeof text, op->print, op->seq, op->label);
    return lki_wire_fail(wire, peer, LK_EMISMATCH, "%s: rank %u sends %llu bytes to rank %u, which "
                         "expects %llu", text, sends ? peer : me, (unsigned long long)sent,
                         sends ? me : peer, (unsigned long long)expected);
}

lk_status lki_wire_uneven(lki_wire *wire, const lki_message *mine, const lki_wire_op *theirs,
                          uint64_t whole)
{
    if (whole != mine->whole)
        return lki_wire_miscount(wire, theirs, mine->peer, true, whole, mine->whole);
    return lki_wire_mismatch(wire, &mine->op, mine->peer, theirs);
}

/* Returns whether this rank is before, in or after operation `op`.  *known becomes this rank's own
 * operation with the same sequence number, or NULL. */
static lki_wire_place place_of(const lki_wire *wire, const lki_wire_op *op,
                                const lki_wire_op **known)
{
    const lki_wire_group *group = find_group(wire, op->group);

    *known = NULL;
    if (group == NULL || op->seq >= group->next_seq)
        return LKI_PLACE_BEFORE;
    const lki_open_op *open = find_seq(group, op->seq);
    *known = open != NULL ? &open->op : find_ended(group, op->seq);
    return open != NULL ? LKI_PLACE_IN : LKI_PLACE_AFTER;
}

lk_status lki_wire_find(lki_wire *wire, uint32_t peer, const lki_wire_op *op,
                         lki_wire_place *out)
{
    const lki_wire_op *known;

    *out = place_of(wire, op, &known);
    if (known != NULL && !lki_wire_same_print(known->print, op->print))
        return lki_wire_mismatch(wire, known, peer, op);
    return LK_OK;
}

lk_status lki_wire_unwanted(lki_wire *wire, uint32_t peer, const lki_wire_op *op, uint64_t whole)
{
    const lki_wire_op *known;

    (void)place_of(wire, op, &known);
    if (known != NULL && whole > 0)
        return lki_wire_miscount(wire, op, peer, true, whole, 0);
    return lki_wire_mismatch(wire, known != NULL ? known : latest(wire), peer, op);
}

/* ---- Goodbyes ---------------------------------------------------------------------------- */

void lki_wire_write_farewell(lki_wire *wire)
{
    uint64_t count = lki_min(wire->turn, LKI_FRAME_OPS_MAX);

    for (uint64_t i = 0; i < count; i++)
        lki_frame_put_op(wire->farewell + i * LKI_FRAME_OP_BYTES,
                         &wire->begun[(wire->turn - i) % LKI_FRAME_OPS_MAX]);
    wire->farewell_bytes = (uint32_t)(count * LKI_FRAME_OP_BYTES);
}

lk_status lki_wire_check_farewell(lki_wire *wire, uint32_t rank)
{
    const lki_wire_peer *peer = &wire->peers[rank];
    lki_wire_place      place;

    for (uint32_t i = 0; i < peer->farewells; i++) {
        lki_wire_op op = lki_frame_get_op(peer->text + (size_t)i * LKI_FRAME_OP_BYTES);
        LK_TRY(lki_wire_find(wire, rank, &op, &place));
    }
    return LK_OK;
}

/* Returns true if a peer's GOODBYE shows that the peer left before operation `op`.  The operations
 * of a group begin in order, so the peer's latest operation of the group decides. */
static bool left_before(const lki_wire_peer *peer, const lki_wire_op *op)
{
    for (uint32_t i = 0; i < peer->farewells; i++) {
        lki_wire_op last = lki_frame_get_op(peer->text + (size_t)i * LKI_FRAME_OP_BYTES);
        if (last.group == op->group)
            return last.seq < op->seq;
    }
    return false;
}

/* ---- Beginning and ending ---------------------------------------------------------------- */

/* Compares the fingerprint of `op` with the fingerprints of messages that were parked before `op`
 * began. */
static lk_status check_parked(lki_wire *wire, const lki_wire_op *op)
{
    for (const lki_parked *p = *lki_wire_bucket(wire, op); p != NULL; p = p->next)
        if (lki_wire_same_op(&p->op, op) && !lki_wire_same_print(p->op.print, op->print))
            return lki_wire_mismatch(wire, op, p->peer, &p->op);
    return LK_OK;
}

static lk_status answer_about_me(lki_wire *wire, uint32_t rank, const lki_wire_op *op);

/* Sends another answer to the peers that have asked about operation `op`. */
static lk_status tell_curious(lki_wire *wire, const lki_wire_op *op)
{
    for (uint32_t peer = 0; peer < wire->link->ranks && wire->curious > 0; peer++)
        if (wire->peers[peer].curious && lki_wire_same_op(&wire->peers[peer].asking, op)) {
            lki_wire_op asking = wire->peers[peer].asking;
            LK_TRY(answer_about_me(wire, peer, &asking));
        }
    return LK_OK;
}

lk_status lki_wire_begin(lki_wire *wire, const lki_wire_op *op)
{
    lki_wire_group *group;

    if (wire->failed)
        return wire->failure.status;
    lk_status st = make_group(wire, &group, op->group);
    if (st == LK_OK)
        st = lki_reserve((void **)&group->open, &group->open_capacity, group->open_count,
                         sizeof *group->open, "operations that are open");
    if (st != LK_OK)
        return lki_wire_fail(wire, wire->link->rank, st, "%s", lk_error_last()->message);
    LK_ASSERT(op->seq >= group->next_seq);
    group->open[group->open_count++] = (lki_open_op){ .op = *op };
    group->next_seq                  = op->seq + 1;
    group->used                      = ++wire->turn;
    wire->begun[group->used % LKI_FRAME_OPS_MAX] = *op;
    LK_TRY(check_parked(wire, op));
    return tell_curious(wire, op);
}

lk_status lki_wire_end(lki_wire *wire, const lki_wire_op *op)
{
    if (wire->failed)
        return wire->failure.status;
    lki_wire_group *group = find_group(wire, op->group);
    lki_open_op    *open  = group == NULL ? NULL : find_seq(group, op->seq);
    LK_ASSERT(open != NULL && open->open == 0);
    *open = group->open[--group->open_count];
    group->ended[group->ends++ % LKI_WIRE_HISTORY] = *op;
    for (const lki_parked *p = *lki_wire_bucket(wire, op); p != NULL; p = p->next)
        if (lki_wire_same_op(&p->op, op))
            return lki_wire_unwanted(wire, p->peer, &p->op, p->whole);
    return tell_curious(wire, op);
}

/* ---- Probes ------------------------------------------------------------------------------ */

/* Queues a probe or an answer for a peer.  A probe that is already queued is not queued again.  A
 * new answer replaces a queued answer.  If the queue is full, the probe or answer is dropped; the
 * peer will ask again. */
static void write_note(lki_wire *wire, uint32_t rank, const lki_frame *note)
{
    lki_wire_peer *peer = &wire->peers[rank];
    uint32_t       i    = 0;

    while (i < peer->note_count
           && (peer->notes[i].kind != note->kind || peer->notes[i].step != note->step
               || peer->notes[i].total != note->total || peer->notes[i].offset != note->offset))
        i++;
    if (i == LKI_WIRE_NOTES)
        return;
    peer->note_count += i == peer->note_count;
    peer->notes[i]    = *note;
    lki_wire_stir(wire, rank, 0);
}

void lki_wire_ask_of(lki_wire *wire, uint32_t peer, uint32_t rank, const lki_wire_op *op)
{
    const lki_frame note = { .kind   = LKI_FRAME_PROBE,
                             .step   = rank,
                             .op     = *op,
                             .total  = op->seq,
                             .offset = op->group };

    wire->peers[rank].word = (lki_wire_word){ 0 };
    write_note(wire, peer, &note);
}

void lki_wire_ask(lki_wire *wire, uint32_t rank, const lki_wire_op *op)
{
    const lki_wire_peer *peer = &wire->peers[rank];

    if (wire->failed || rank == wire->link->rank || peer->gone)
        return;
    if (!peer->left)
        lki_wire_ask_of(wire, rank, rank, op);
    else if (lki_wire_check_farewell(wire, rank) == LK_OK && left_before(peer, op))
        (void)lki_wire_fail_left(wire, rank, op);
}

/* Returns true if it is time to send probes.  The first call after the begin of an operation starts
 * the timer. */
static bool is_time(lki_wire *wire)
{
    int64_t now = lki_wire_now_ms(wire);

    if (wire->probed_turn != wire->turn) {
        wire->probed_turn       = wire->turn;
        wire->probe_interval_ms = LKI_WIRE_PROBE_MS;
        wire->probed_ms         = now;
    }
    if (now - wire->probed_ms < wire->probe_interval_ms)
        return false;
    wire->probed_ms         = now;
    wire->probe_interval_ms = (uint32_t)lki_min(2 * (size_t)wire->probe_interval_ms,
                                                LKI_WIRE_PROBE_MS_MAX);
    return true;
}

bool lki_wire_probe(lki_wire *wire)
{
    if (wire->failed || !is_time(wire))
        return false;
    for (uint32_t rank = 0; rank < wire->link->ranks; rank++) {
        const lki_wire_peer *peer = &wire->peers[rank];
        const lki_message   *m = peer->waiting.head != NULL ? peer->waiting.head
                                                            : peer->announced.head;
        if (m != NULL)
            lki_wire_ask(wire, rank, &m->op);
    }
    return true;
}

const lki_wire_word *lki_wire_word_of(const lki_wire *wire, uint32_t rank, const lki_wire_op *op)
{
    const lki_wire_word *word = &wire->peers[rank].word;
    return word->about.print.what != 0 && lki_wire_same_op(&word->about, op) ? word : NULL;
}

void lki_wire_look_by(lki_wire *wire, lki_wire_eyes eyes, void *context)
{
    wire->eyes         = eyes;
    wire->eyes_context = context;
}

void lki_wire_fill_answer(lki_wire *wire, lki_frame *answer, char state[LKI_WIRE_STATE_BYTES])
{
    lki_wire_op seen = { 0 };

    if (wire->eyes == NULL || !wire->eyes(wire->eyes_context, answer->step, &seen, state))
        return;
    answer->bytes = (uint32_t)strnlen(state, LKI_WIRE_STATE_BYTES - 1);
    if (answer->value == LKI_PLACE_SEEN)
        answer->op = seen;
}

/* Answers a probe with the position of this rank.  Records whether the peer needs another answer
 * later. */
static lk_status answer_about_me(lki_wire *wire, uint32_t rank, const lki_wire_op *op)
{
    lki_wire_peer     *peer = &wire->peers[rank];
    const lki_wire_op *known;
    lki_wire_place    place;

    LK_TRY(lki_wire_find(wire, rank, op, &place));
    (void)place_of(wire, op, &known);
    wire->curious -= peer->curious;
    peer->curious  = place != LKI_PLACE_AFTER;
    wire->curious += peer->curious;
    peer->asking   = *op;
    write_note(wire, rank, &(lki_frame){
        .kind   = LKI_FRAME_ANSWER,
        .step   = wire->link->rank,
        .op     = known != NULL ? *known : *latest(wire),
        .total  = op->seq,
        .offset = op->group,
        .value  = place,
    });
    return LK_OK;
}

lk_status lki_wire_probed(lki_wire *wire, uint32_t rank, const lki_frame *probe)
{
    lki_frame answer = { .kind   = LKI_FRAME_ANSWER,
                         .step   = probe->step,
                         .total  = probe->op.seq,
                         .offset = probe->op.group,
                         .value  = LKI_PLACE_SEEN };

    if (probe->step == wire->link->rank)
        return answer_about_me(wire, rank, &probe->op);
    write_note(wire, rank, &answer);
    return LK_OK;
}

static const lki_message *find_in(const lki_queue *queue, const lki_wire_op *op)
{
    const lki_message *m = queue->head;

    while (m != NULL && !lki_wire_same_op(&m->op, op))
        m = m->next;
    return m;
}

/* Stores an answer.  Ignores LKI_PLACE_SEEN without a text, because the answering rank then has no
 * observation. */
static void keep_word(lki_wire *wire, const lki_frame *answer, const char *state)
{
    if (answer->step >= wire->link->ranks
        || (answer->value == LKI_PLACE_SEEN && answer->bytes == 0))
        return;
    lki_wire_word *word = &wire->peers[answer->step].word;
    word->place         = (lki_wire_place)answer->value;
    word->op            = answer->op;
    word->about = (lki_wire_op){ answer->offset, answer->total, 0, { LKI_OP_BARRIER, 0, 0 } };
    (void)snprintf(word->state, sizeof word->state, "%s", state);
}

lk_status lki_wire_answered(lki_wire *wire, uint32_t rank, const lki_frame *answer,
                            const char *state)
{
    const lki_wire_peer *peer  = &wire->peers[rank];
    const lki_wire_op    about = { .group = answer->offset, .seq = answer->total };
    const lki_message   *get   = find_in(&peer->waiting, &about);
    const lki_message   *give  = find_in(&peer->announced, &about);
    const lki_message   *mine  = get != NULL ? get : give;

    keep_word(wire, answer, state);
    if (answer->value != LKI_PLACE_AFTER || mine == NULL)
        return LK_OK;
    if (mine->whole > 0 && lki_wire_same_op(&answer->op, &about))
        return lki_wire_miscount(wire, &mine->op, rank, get != NULL, get != NULL ? 0 : mine->whole,
                                 get != NULL ? mine->whole : 0);
    return lki_wire_mismatch(wire, &mine->op, rank, &answer->op);
}
