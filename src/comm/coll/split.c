/* split.c -- communicators of some of the ranks.
 *
 * All ranks publish their color and key, so each can compute all groups.  One arena of the parent
 * has the seats of all groups, in order of color.  Every rank thus gets a seat in one round, with
 * one allocation for all groups.  The groups of a rank share its record, bell, failure and
 * requests.  A rank that sleeps in one group is woken by events of its other groups, and a failure
 * in any group fails all groups.
 *
 * On several hosts every host splits its own communicator in the same way.  A group whose ranks are
 * all on one host is the resulting local communicator.  Any other group is a span communicator over
 * the local communicators.  It has its own levels if it has the same number of ranks, at least two,
 * on each of its hosts.
 *
 * Cost:    one all_gather of 8 bytes, one arena and one agreement.
 * Memory:  a seat for every rank (about 0.5 MiB), until its last communicator is freed.
 */
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "comm/coll/move.h"
#include "comm/coll/split.h"
#include "comm/group/span.h"

typedef struct {
    uint32_t color, key;
} choice;

/* ---- Publishing -------------------------------------------------------------------------- */

static lki_parcel parcel(const lk_request *r, uint32_t from, uint32_t to)
{
    (void)r, (void)to;
    return (lki_parcel){ 0, from * sizeof(choice), sizeof(choice) };
}

static const lki_route route = { .parcel = parcel };

/* Gathers the choices of all ranks in `all`.  Ranks must also agree on other arguments, of which
 * `hash` is a hash. */
static lk_status tell(lk_comm *comm, choice mine, uint64_t hash, choice *all)
{
    lk_request r    = { .comm       = comm,
                        .op.print   = lki_print_make(LKI_OP_SPLIT, LK_U8, 0, 0),
                        .send       = (const unsigned char *)&mine,
                        .recv       = (unsigned char *)all,
                        .send_bytes = sizeof mine,
                        .longest    = sizeof mine,
                        .route      = &route };
    r.op.print.hash = hash;
    lki_move_init(&r);
    return lki_request_run(&r);
}

/* ---- Working it out ---------------------------------------------------------------------- */

static uint32_t count_of(const choice *all, uint32_t size, uint32_t color)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < size; rank++)
        count += all[rank].color == color;
    return count;
}

/* Returns the number of bytes of the seats of all groups whose color is less than `color`. */
static size_t bytes_below(const choice *all, uint32_t size, uint32_t color)
{
    size_t bytes = 0;

    for (uint32_t rank = 0; rank < size; rank++) {
        uint32_t first = 0;
        while (all[first].color != all[rank].color)
            first++;
        if (first == rank && all[rank].color < color) {
            uint32_t members = count_of(all, size, all[rank].color);
            bytes += members * lki_seat_bytes(members);
        }
    }
    return bytes;
}

/* Writes the ranks with a color to `members`, ordered by key and then by rank.  Returns this rank's
 * index in `members`. */
static uint32_t order(const lk_comm *comm, const choice *all, uint32_t color, uint32_t *members)
{
    uint32_t count = 0, mine = 0;

    for (uint32_t rank = 0; rank < comm->size; rank++) {
        if (all[rank].color != color)
            continue;
        uint32_t at = count++;
        for (; at > 0 && all[members[at - 1]].key > all[rank].key; at--)
            members[at] = members[at - 1];
        members[at] = rank;
    }
    while (members[mine] != comm->rank)
        mine++;
    return mine;
}

/* ---- Creating ----------------------------------------------------------------------------- */

static void describe(lk_comm *child, lk_comm *parent, const uint32_t *members, uint32_t color)
{
    const uint64_t words[3] = { parent->key, parent->seq, color };
    uint32_t       lowest   = UINT32_MAX;

    for (uint32_t i = 0; i < child->size; i++) {
        child->world[i] = parent->world[members[i]];
        lowest          = child->world[i] < lowest ? child->world[i] : lowest;
    }
    child->parent            = parent;
    child->level             = parent->level + 1;
    child->key               = lki_xxh3(words, sizeof words);
    child->group             = (uint64_t)child->size << 32 | lowest;
    child->timeout_ms        = parent->timeout_ms;
    child->opened_timeout_ms = parent->opened_timeout_ms;
    parent->users++;
}

static lk_status make(lk_comm **out, lk_comm *comm, const choice *all, uint32_t *members,
                      void *seats)
{
    uint32_t color = all[comm->rank].color;

    if (color == LK_NO_COLOR)
        return LK_OK;
    uint32_t rank = order(comm, all, color, members);
    LK_TRY(lki_comm_new(out, comm->self, rank, count_of(all, comm->size, color),
                        (unsigned char *)seats + bytes_below(all, comm->size, color)));
    describe(*out, comm, members, color);
    return LK_OK;
}

/* ---- Over several hosts ------------------------------------------------------------------ */

static lk_status make_over(lk_comm **out, lk_comm *comm, lk_comm *local, const uint32_t *members,
                           uint32_t count, uint32_t rank, uint32_t color)
{
    uint32_t *host_of;

    LK_TRY(LKI_NEW(&host_of, count, "hosts of a group"));
    for (uint32_t i = 0; i < count; i++)
        host_of[i] = comm->span->map.host_of[members[i]];
    lk_status st = comm->self->span_ops->create(out, local, rank, count, host_of);
    lki_free(host_of);
    LK_TRY(st);
    describe(*out, comm, members, color);
    return LK_OK;
}

/* Creates this rank's group.  If all ranks of the group are on this host, the group is the local
 * communicator. */
static lk_status make_spanning(lk_comm **out, lk_comm *comm, const choice *all, uint32_t *members)
{
    uint32_t color = all[comm->rank].color, here = comm->span->map.host_of[comm->rank];
    uint32_t count = count_of(all, comm->size, color), rank = 0, hosts = 0;
    lk_comm *local;

    if (color != LK_NO_COLOR)
        rank = order(comm, all, color, members);
    LK_TRY(lk_comm_split(&local, comm->span->local, color, rank));
    for (uint32_t i = 0; i < count && color != LK_NO_COLOR; i++)
        hosts += comm->span->map.host_of[members[i]] != here;
    if (hosts == 0) {
        *out = local;
        return LK_OK;
    }
    lk_status st = make_over(out, comm, local, members, count, rank, color);
    if (st != LK_OK)
        lk_comm_free(local);
    return st;
}

static lk_status split(lk_comm **out, lk_comm *comm, choice mine, uint64_t hash, choice *all,
                       uint32_t *members)
{
    lk_arena *arena;

    LK_TRY(tell(comm, mine, hash, all));
    size_t    bytes = bytes_below(all, comm->size, LK_NO_COLOR);
    lk_status st;
    if (bytes == 0) /* all ranks have LK_NO_COLOR */
        return LK_OK;
    if (comm->span != NULL) {
        st = lki_agree(comm, make_spanning(out, comm, all, members));
        if (st == LK_OK && *out != NULL && (*out)->span != NULL)
            st = comm->self->span_ops->connect(*out);
    } else {
        LK_TRY(lk_comm_arena(&arena, comm, "seats", bytes));
        arena->seats = true;
        st = lki_agree(comm, make(out, comm, all, members, lk_arena_data(arena)));
    }
    if (st != LK_OK && *out != NULL) {
        lk_comm_free(*out);
        *out = NULL;
    }
    return st;
}

lk_status lki_split(lk_comm **out, lk_comm *comm, uint32_t color, uint32_t key, uint64_t hash)
{
    const choice mine = { color, key };
    choice      *all;
    uint32_t    *members = NULL;

    *out = NULL;
    LK_TRY(LKI_NEW(&all, comm->size, "colors of all ranks"));
    lk_status st = LKI_NEW(&members, comm->size, "members of a group");
    if (st == LK_OK)
        st = split(out, comm, mine, hash, all, members);
    lki_free(members);
    lki_free(all);
    return st;
}

/* ---- The calls --------------------------------------------------------------------------- */

lk_status lk_comm_split(lk_comm **out, lk_comm *comm, uint32_t color, uint32_t key)
{
    return lki_split(out, comm, color, key, 0);
}

lk_status lk_comm_subset(lk_comm **out, lk_comm *comm, const uint32_t *ranks, uint32_t count)
{
    choice mine = { LK_NO_COLOR, 0 };

    *out = NULL;
    LK_TRY(lki_check_given("subset", "ranks", ranks, count));
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i] >= comm->size)
            return lk_fail(LK_EINVAL, "subset: rank %u in a group of %u", ranks[i], comm->size);
        for (uint32_t k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return lk_fail(LK_EINVAL, "subset: rank %u is in the list twice", ranks[i]);
        if (ranks[i] == comm->rank)
            mine = (choice){ 0, i };
    }
    return lki_split(out, comm, mine.color, mine.key, 1 + lki_xxh3(ranks, count * sizeof *ranks));
}
