/* open.c -- opening a communicator over several hosts. */
#include "comm/span/span.h"

#include <string.h>

#include "base/memory.h"
#include "comm/span/task.h"

void lki_span_free(lki_span *span)
{
    if (span == NULL)
        return;
    lki_levels_free(span->levels);
    lk_comm_free(span->doors.enter);
    lk_comm_free(span->doors.leave);
    if (span->owns_local)
        lk_comm_free(span->local);
    lki_free(span->map.host_of);
    lki_free(span->map.local_ranks);
    lki_free(span->map.local_sizes);
    lki_free(span->map.first_of);
    lki_free(span->map.ranks);
    lki_free(span);
}

/* Numbers the hosts in the order of their lowest ranks in this communicator. */
static void place(lki_host_map *map, const lk_comm *comm, const uint32_t *host_of)
{
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        uint32_t before = 0;
        while (before < rank && host_of[before] != host_of[rank])
            before++;
        uint32_t host = before < rank ? map->host_of[before] : map->hosts++;
        map->host_of[rank]     = host;
        map->local_ranks[rank] = map->local_sizes[host]++;
    }
    for (uint32_t host = 1; host < map->hosts; host++)
        map->first_of[host] = map->first_of[host - 1] + map->local_sizes[host - 1];
    for (uint32_t rank = 0; rank < comm->size; rank++)
        map->ranks[map->first_of[map->host_of[rank]] + map->local_ranks[rank]] = rank;
}

lk_status lki_span_new(lk_comm **out, lk_comm *local, uint32_t rank, uint32_t size,
                       const uint32_t *host_of)
{
    lki_span *span;

    LK_TRY(lki_comm_new(out, local->self, rank, size, NULL));
    lk_status st = LKI_NEW(&span, 1, "communicator over hosts");
    if (st == LK_OK) {
        (*out)->span = span;
        span->local  = local;
        st           = LKI_NEW(&span->map.host_of, size, "hosts of ranks");
    }
    if (st == LK_OK)
        st = LKI_NEW(&span->map.local_ranks, size, "ranks on their hosts");
    if (st == LK_OK)
        st = LKI_NEW(&span->map.local_sizes, size, "ranks of hosts");
    if (st == LK_OK)
        st = LKI_NEW(&span->map.first_of, size, "ranks of hosts");
    if (st == LK_OK)
        st = LKI_NEW(&span->map.ranks, size, "ranks of hosts");
    if (st != LK_OK) {
        lki_comm_delete(*out);
        *out = NULL;
        return st;
    }
    place(&span->map, *out, host_of);
    LK_ASSERT(span->map.local_sizes[span->map.host_of[rank]] == local->size);
    return LK_OK;
}

static lk_status create(lk_comm **out, lk_comm *local, uint32_t rank, uint32_t size,
                        const uint32_t *host_of)
{
    LK_TRY(lki_span_new(out, local, rank, size, host_of));
    (*out)->span->owns_local = true;
    return LK_OK;
}

static lk_status connect_levels(lk_comm *comm)
{
    return lki_levels_open(&comm->span->levels, comm);
}

static void leave(lki_self *self)
{
    if (self->wire != NULL && lki_is_asked_to_stop(self))
        lki_wire_stopping(self->wire);
    lki_wire_close(self->wire, self->told);
    lki_rooms_free(self->rooms);
}

static const lki_span_ops ops = {
    .publish = lki_span_publish,
    .advance = lki_span_advance,
    .drop    = lki_span_drop,
    .await   = lki_span_await,
    .timeout = lki_span_timeout,
    .poll    = lki_span_poll,
    .tell    = lki_span_tell,
    .leave   = leave,
    .agree   = lki_span_agree,
    .arena   = lki_span_arena,
    .mirror  = lki_span_mirror,
    .create  = create,
    .connect = connect_levels,
    .free    = lki_span_free,
};

/* Writes the members of the group to `world` and their hosts to `hosts`.  Returns the index of
 * `me`.  On every host, ranks that entered later come after older ranks, in the order of their
 * seats.  The first rank of the group thus stays the first while it lives. */
static uint32_t list_members(const lki_board *board, const uint32_t *host_of, uint32_t me,
                             uint32_t *world, uint32_t *hosts)
{
    const lki_rank *ranks = board->ranks;
    uint32_t        count = 0, mine = 0;

    for (uint32_t rank = 0; rank < board->size; rank++) {
        uint32_t at = count;
        if (ranks[rank].member == 0)
            continue;
        for (; at > 0 && hosts[at - 1] == host_of[rank]
               && ranks[world[at - 1]].since > ranks[rank].since; at--)
            world[at] = world[at - 1];
        world[at]      = rank;
        hosts[count++] = host_of[rank];
    }
    while (world[mine] != me)
        mine++;
    return mine;
}

static void say_who_is_out(const lki_board *board, lki_wire *wire)
{
    for (uint32_t rank = 0; rank < board->size; rank++)
        if (board->ranks[rank].member == 0)
            lki_wire_without(wire, rank);
}

static lk_status open_first(lk_comm **out, lk_comm *local, const uint32_t *host_of)
{
    const lki_board *board = local->board;
    uint32_t         size = lki_board_group_size(board), *lists;

    LK_TRY(LKI_NEW(&lists, 2 * (size_t)size, "ranks of a group"));
    uint32_t  rank = list_members(board, host_of, local->self->rank, lists, lists + size);
    lk_status st   = lki_span_new(out, local, rank, size, lists + size);
    if (st == LK_OK) {
        lk_comm *comm           = *out;
        comm->parent            = local;
        comm->level             = local->level + 1;
        comm->key               = local->key;
        comm->timeout_ms        = local->timeout_ms;
        comm->opened_timeout_ms = local->opened_timeout_ms;
        memcpy(comm->world, lists, size * sizeof *lists);
        if (size < board->size)
            comm->group = (uint64_t)size << 32 | lists[0];
        say_who_is_out(board, local->self->wire);
    }
    lki_free(lists);
    return st;
}

lk_status lki_span_open(lk_comm **out, lk_comm *local, lki_link *link, const uint32_t *host_of)
{
    *out = NULL;
    LK_ASSERT(link->ranks == local->board->size && link->rank == local->self->rank);
    local->self->span_ops = &ops;
    lk_status st          = lki_wire_open(&local->self->wire, link);
    if (st == LK_OK)
        lki_wire_look_by(local->self->wire, lki_rank_seen, local->self);
    if (st == LK_OK)
        st = LKI_NEW(&local->self->rooms, 1, "scratch");
    if (st == LK_OK)
        st = open_first(out, local, host_of);
    if (st != LK_OK) {
        lki_comm_give_up(local);
        return st;
    }
    lki_tuning *tuning = &local->self->tuning;
    if (tuning->of_a_file) {
        st            = lk_broadcast(*out, &tuning->given, sizeof tuning->given, 0);
        tuning->model = st == LK_OK ? tuning->given : tuning->model;
    }
    if (st == LK_OK)
        st = lki_levels_open(&(*out)->span->levels, *out);
    if (st != LK_OK) {
        lki_comm_give_up(*out);
        *out = NULL;
    }
    return st;
}
