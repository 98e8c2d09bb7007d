/* arena.c -- memory that all ranks map, with all pages allocated before use.
 *
 * Rank 0 creates a memfd and sends the descriptor to the launcher, which passes the descriptor to
 * the other ranks.  These ranks map the memfd.  Without a launcher (under MPI) the other ranks open
 * rank 0's descriptor themselves.  Then every rank allocates the pages of its part, with as many
 * threads as it has cores.  A lack of memory is thus reported at once, as a status.  The ranks
 * compare their outcomes three times, so that all ranks succeed or all ranks fail.  The first time
 * is before the other ranks wait for the descriptor, the second after all ranks have mapped the
 * memory.  The third is after all pages have been allocated.  Ranks that are threads share one
 * mapping, and only its address is sent.
 */
#include "comm/group/span.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/memory.h"
#include "comm/group/numa.h"
#include "base/pages.h"
#include "comm/group/slot.h"

enum { PATIENCE_MS = 10 };

/* ---- Creating and mapping ---------------------------------------------------------------- */

/* Maps a descriptor.  The rank that creates the memory passes its communicator as `maker`.  Other
 * ranks pass NULL, because the pages exist already. */
static lk_status map_fd(void **out, int fd, const char *name, size_t bytes, const lk_comm *maker)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return lk_fail(LK_ENOMEM, "arena %s, %zu bytes: %s", name, bytes, strerror(errno));
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    if (maker != NULL)
        lki_numa_spread(maker, memory, bytes);
    *out = memory;
    return LK_OK;
}

/* Creates the memory.  On success *fd becomes a sealed descriptor, and *memory its mapping. */
static lk_status create(int *fd, void **memory, const char *name, size_t bytes,
                        const lk_comm *maker)
{
    char label[80];

    LK_TRY(lki_pages_available(name, bytes));
    snprintf(label, sizeof label, "lockstep-%.52s", name);
    *fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0)
        return lk_fail(LK_EIO, "arena %s: memfd_create: %s", name, strerror(errno));
    lk_status st = LK_OK;
    if (ftruncate(*fd, (off_t)bytes) != 0)
        st = lk_fail(LK_ENOMEM, "arena %s, %zu bytes: %s%s", name, bytes, strerror(errno),
                     lki_memory_hint(errno));
    if (st == LK_OK)
        st = map_fd(memory, *fd, name, bytes, maker);
    if (st == LK_OK && (st = lki_pages_reserve(*fd, name, *memory, bytes)) != LK_OK)
        (void)munmap(*memory, bytes);
    if (st != LK_OK) {
        (void)close(*fd);
        *fd = -1;
        return st;
    }
    (void)fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return LK_OK;
}

/* ---- Passing the descriptor on ----------------------------------------------------------- */

static lk_status send_to_launcher(const lk_comm *comm, const char *name, size_t bytes, int fd)
{
    lki_packet         packet  = { .kind = LKI_PACKET_ARENA };
    lki_arena_message *message = &packet.arena;

    *message = (lki_arena_message){ .bytes = bytes, .group = comm->key,
                                    .index = comm->arena_count };
    for (uint32_t rank = 0; rank < comm->size; rank++)
        message->members[comm->world[rank] / 64] |= UINT64_C(1) << comm->world[rank] % 64;
    snprintf(message->name, sizeof message->name, "%.51s", name);
    if (lki_packet_send(comm->self->socket, &packet, fd) == LK_OK)
        return LK_OK;
    lk_error why = *lk_error_last();
    return lk_fail(why.status, "cannot send the descriptor of arena %s: %s", message->name,
                   why.message);
}

/* Accepts a packet with an arena if the arena is the next one of this group.  `fd` came with the
 * packet.  Closes *fd if the packet is a duplicate from a new coordinator. */
static lk_status take_wanted(const lk_comm *comm, const lki_packet *packet, int *fd)
{
    const lki_arena_message *message = &packet->arena;
    bool ours = packet->kind == LKI_PACKET_ARENA && message->group == comm->key;

    if (*fd < 0 || (ours && message->index == comm->arena_count))
        return LK_OK;
    (void)close(*fd);
    *fd = -1;
    return !ours || message->index < comm->arena_count
               ? LK_OK
               : lk_fail(LK_EFORMAT, "expected the descriptor of arena number %u, got that of %s "
                         "(number %u, %llu bytes)", comm->arena_count, message->name,
                         message->index, (unsigned long long)message->bytes);
}

/* Waits for the descriptor of any arena.  Returns an error if the group fails during the wait. */
static lk_status receive_any(lk_comm *comm, lki_arena_message *out, int *fd)
{
    int64_t end = lki_now_ms() + comm->timeout_ms;

    *fd = -1;
    for (;;) {
        struct pollfd ready = { .fd = comm->self->socket, .events = POLLIN };
        lki_packet    packet = { .kind = LKI_PACKET_NONE };
        bool          open   = true;
        if (poll(&ready, 1, PATIENCE_MS) > 0)
            LK_TRY(lki_packet_receive(comm->self->socket, &packet, fd, &open));
        if (!open)
            return lk_fail(LK_EPEER, "arena number %u: the launcher is gone", comm->arena_count);
        LK_TRY(take_wanted(comm, &packet, fd));
        if (*fd >= 0) {
            *out = packet.arena;
            return LK_OK;
        }
        if (lki_failed(comm))
            return lki_group_failure(comm);
        if (lki_now_ms() > end)
            return lk_fail(LK_ETIMEOUT, "arena number %u: its descriptor did not come within %u "
                           "ms; is the launcher stopped?", comm->arena_count, comm->timeout_ms);
    }
}

/* Waits for the descriptor of this arena. */
static lk_status receive(lk_comm *comm, const char *name, size_t bytes, int *fd)
{
    lki_arena_message message = { 0 };

    LK_TRY(receive_any(comm, &message, fd));
    if (message.bytes == bytes)
        return LK_OK;
    (void)close(*fd);
    *fd = -1;
    return lk_fail(LK_EFORMAT, "expected the descriptor of arena %s (%zu bytes), got that of %s "
                   "(%llu bytes)", name, bytes, message.name, (unsigned long long)message.bytes);
}

/* ---- Establishing an arena --------------------------------------------------------------- */

/* Registers the mapping.  The last rank of this process that leaves the group unmaps the memory.
 * If ranks are threads, only the first rank of a group calls this function. */
static lk_status keep(lk_comm *comm, void *memory, size_t bytes)
{
    lki_mapping *mapping;
    lk_status    st = LKI_NEW(&mapping, 1, "mapping of an arena");
    if (st != LK_OK) {
        (void)munmap(memory, bytes);
        return st;
    }
    lki_group *group = comm->self->group;
    (void)pthread_mutex_lock(&group->lock);
    *mapping        = (lki_mapping){ group->mappings, memory, bytes };
    group->mappings = mapping;
    (void)pthread_mutex_unlock(&group->lock);
    return LK_OK;
}

/* Returns true if ranks that enter later may need the descriptors of this group's arenas. */
static bool may_be_entered(const lk_comm *comm)
{
    return comm->parent == NULL && comm->self->socket >= 0;
}

/* Creates the memory on rank 0.  *open becomes the descriptor if other ranks need it. */
static lk_status create_here(lk_comm *comm, const char *name, size_t bytes, void **memory,
                             int *open)
{
    if (comm->rank != 0)
        return LK_OK;
    LK_TRY(create(open, memory, name, bytes, comm));
    lk_status st     = keep(comm, *memory, bytes);
    bool      shared = !comm->self->group->threads && comm->size > 1;
    if (st == LK_OK && shared && comm->self->socket >= 0)
        st = send_to_launcher(comm, name, bytes, *open);
    return st;
}

/* Opens descriptor `there` of rank 0 through /proc, without a launcher. */
static lk_status open_there(lk_comm *comm, int there, int *fd)
{
    LK_TRY(lk_broadcast(comm, &there, sizeof there, 0));
    if (comm->rank == 0)
        return LK_OK;
    return lki_descriptor_open(fd, atomic_load(&lki_rank_of(comm, 0)->pid), there);
}

/* Passes to the other ranks the memory that rank 0 has created.  *open becomes the descriptor if it
 * must stay open, else -1. */
static lk_status reach(lk_comm *comm, const char *name, size_t bytes, void **memory, int *open)
{
    if (comm->self->group->threads)
        return lk_broadcast(comm, memory, sizeof *memory, 0);
    int fd = -1;
    if (comm->self->socket < 0)
        LK_TRY(open_there(comm, *open, &fd));
    if (comm->rank == 0)
        return LK_OK;
    *open = fd;
    if (fd < 0)
        LK_TRY(receive(comm, name, bytes, open));
    LK_TRY(map_fd(memory, *open, name, bytes, NULL));
    return keep(comm, *memory, bytes);
}

static lk_status meet(lk_comm *comm, const char *name, size_t bytes)
{
    lki_op    op    = { 0 };
    lki_print print = lki_print_make(LKI_OP_ARENA, LK_U8, 0, bytes);
    print.hash      = lki_xxh3(name, strlen(name));
    LK_TRY(lki_op_open(&op, comm, print));
    lki_op_publish(comm, &op);
    LK_TRY(lki_op_meet(comm, &op));
    lki_op_close(comm, &op);
    return LK_OK;
}

/* Creates an arena on all ranks, or on no rank.  On failure *memory becomes NULL.  *open becomes
 * the descriptor if it must stay open, else -1. */
static lk_status establish(lk_comm *comm, const char *name, size_t bytes, void **memory, int *open)
{
    *open = -1;
    LK_TRY(meet(comm, name, bytes));
    lk_status st = lki_limit_take(comm, name, bytes);
    if (st == LK_OK)
        st = create_here(comm, name, bytes, memory, open);
    st = lki_agree(comm, st);
    if (st == LK_OK)
        st = lki_agree(comm, reach(comm, name, bytes, memory, open));
    if (st == LK_OK)
        st = lki_agree(comm, lki_pages_fill(comm->rank, comm->size, name, *memory, bytes));
    if (st == LK_OK && !comm->self->group->threads && comm->size > 1)
        lki_pages_map(*memory, bytes); /* also maps the parts of other ranks */
    if (*open >= 0 && (st != LK_OK || !may_be_entered(comm))) {
        (void)close(*open);
        *open = -1;
    }
    return st;
}

static void add_arena(lk_comm *comm, lk_arena *arena, const char *name, void *memory, size_t bytes,
                      int open)
{
    *arena = (lk_arena){ .next = comm->arenas, .data = memory, .bytes = bytes,
                         .index = comm->arena_count++, .fd = open };
    (void)snprintf(arena->name, sizeof arena->name, "%.51s", name);
    comm->arenas = arena;
}

lk_status lk_comm_arena(lk_arena **out, lk_comm *comm, const char *name, size_t bytes)
{
    lk_arena *arena;
    void     *memory = NULL;
    int       open;

    *out = NULL;
    LK_TRY(lki_check_given("arena", "name", name, 1));
    if (bytes == 0 || bytes > (size_t)INT64_MAX / 2)
        return lk_fail(LK_EINVAL, "arena %s of %zu bytes", name, bytes);
    if (comm->span != NULL)
        return comm->self->span_ops->arena(out, comm, name, bytes);
    LK_TRY(LKI_NEW(&arena, 1, "arena"));
    lk_status st = establish(comm, name, bytes, &memory, &open);
    if (st != LK_OK) {
        lki_free(arena);
        return st;
    }
    add_arena(comm, arena, name, memory, bytes, open);
    *out = arena;
    return LK_OK;
}

/* Moves all arenas except those with seats from the list of `from` to the list of `to`, newest
 * first.  Arenas with seats must live as long as their communicators. */
static void take_list(lk_comm *to, lk_comm *from)
{
    lk_arena **kept = &from->arenas, *taken = NULL, **end = &taken;

    while (*kept != NULL)
        if ((*kept)->seats) {
            kept = &(*kept)->next;
        } else {
            *end  = *kept;
            *kept = (*kept)->next;
            end   = &(*end)->next;
            to->arena_count++;
        }
    uint32_t index = to->arena_count;
    *end           = to->arenas;
    to->arenas     = taken;
    for (lk_arena *arena = taken; arena != *end; arena = arena->next)
        arena->index = --index;
}

/* Returns true if the communicator has arenas with data.  Arenas with seats do not count, because
 * they exist from the start if all hosts have the same number of ranks. */
static bool has_own(const lk_comm *comm)
{
    const lk_arena *arena = comm->arenas;
    while (arena != NULL && arena->seats)
        arena = arena->next;
    return arena != NULL;
}

static bool is_arena(const lk_comm *comm, const void *memory)
{
    const lk_arena *arena = comm->arenas;
    while (arena != NULL && arena->data != memory)
        arena = arena->next;
    return arena != NULL;
}

/* Moves the mappings of data arenas to the new group.  Otherwise the last rank that leaves the old
 * group would unmap them.  Threads share one list, which is moved once. */
static void take_mappings(lk_comm *comm, lki_group *from)
{
    lki_group    *to    = comm->self->group;
    lki_mapping  *taken = NULL, **end = &taken, **at = &from->mappings;

    (void)pthread_mutex_lock(&from->lock);
    while (*at != NULL)
        if (is_arena(comm, (*at)->data)) {
            *end = *at;
            *at  = (*at)->next;
            end  = &(*end)->next;
        } else {
            at = &(*at)->next;
        }
    (void)pthread_mutex_unlock(&from->lock);
    (void)pthread_mutex_lock(&to->lock);
    *end         = to->mappings;
    to->mappings = taken;
    (void)pthread_mutex_unlock(&to->lock);
}

/* ---- Arenas for ranks that enter later --------------------------------------------------- */

static lk_arena *arena_at(const lk_comm *comm, uint32_t index)
{
    lk_arena *arena = comm->arenas;
    while (arena != NULL && arena->index != index)
        arena = arena->next;
    return arena;
}

/* Sends all arenas of a host, in order, to the ranks that have entered.  Called on rank 0.  If such
 * a rank dies, a later call detects this. */
static lk_status hand_out_arenas(lk_comm *comm)
{
    uint32_t count = comm->arena_count;

    LK_TRY(lk_broadcast(comm, &count, sizeof count, 0));
    for (uint32_t i = 0; i < count && comm->rank == 0; i++) {
        lki_packet      packet = { .kind = LKI_PACKET_ARENA };
        const lk_arena *arena  = arena_at(comm, i);
        LK_ASSERT(arena != NULL && arena->fd >= 0);
        packet.arena = (lki_arena_message){ .bytes = arena->bytes, .group = comm->key, .index = i };
        for (uint32_t rank = 0; rank < comm->size; rank++)
            if (lki_comm_is_fresh(comm, rank))
                packet.arena.members[comm->world[rank] / 64] |= UINT64_C(1)
                                                                << comm->world[rank] % 64;
        (void)snprintf(packet.arena.name, sizeof packet.arena.name, "%s", arena->name);
        LK_TRY(lki_packet_send(comm->self->socket, &packet, arena->fd));
    }
    return LK_OK;
}

/* Takes part in the other ranks' call of lk_comm_take_arenas(), in a rank that has entered. */
static lk_status receive_arenas(lk_comm *whole)
{
    lk_comm *comm  = lki_comm_local(whole);
    uint32_t count = 0;

    LK_TRY(lk_broadcast(comm, &count, sizeof count, 0));
    while (comm->arena_count < count) {
        lki_arena_message what   = { .bytes = 0 };
        lk_arena         *arena  = NULL;
        void             *memory = NULL;
        int               fd     = -1;
        LK_TRY(receive_any(comm, &what, &fd));
        lk_status st = map_fd(&memory, fd, what.name, what.bytes, NULL);
        if (st == LK_OK)
            st = keep(comm, memory, what.bytes);
        if (st == LK_OK)
            lki_pages_map(memory, what.bytes);
        if (st == LK_OK)
            st = LKI_NEW(&arena, 1, "arena");
        if (st != LK_OK) {
            (void)close(fd);
            return st;
        }
        add_arena(comm, arena, what.name, memory, what.bytes, fd);
    }
    return LK_OK;
}

lk_status lki_comm_own_arena(lk_arena **out, lk_comm *comm, const char *name, size_t bytes)
{
    return lk_comm_arena(out, lki_comm_local(comm), name, bytes);
}

lk_arena *lki_comm_arena_named(const lk_comm *comm, const char *name)
{
    const lk_comm *here  = comm->span != NULL ? comm->span->local : comm;
    lk_arena      *arena = here->arenas;
    while (arena != NULL && strncmp(arena->name, name, sizeof arena->name - 1) != 0)
        arena = arena->next;
    return arena;
}

lk_status lk_comm_take_arenas(lk_comm *comm, lk_comm *failed)
{
    if (failed == NULL && lki_comm_is_first(comm) && lki_comm_is_fresh(comm, comm->rank) &&
        !has_own(lki_comm_local(comm)))
        return receive_arenas(comm);
    if (failed == NULL)
        return lk_fail(LK_EINVAL, "no communicator to take arenas from: only a rank that has just "
                                  "entered gives NULL");
    lk_comm *to = lki_comm_local(comm), *from = lki_comm_local(failed);

    if (has_own(to) || !lki_comm_is_first(comm) || !lki_comm_is_first(failed))
        return lk_fail(LK_EINVAL, "arenas are taken over by the communicator that "
                       "lk_comm_rebuild() gave, before it has some of its own");
    take_list(to, from);
    take_mappings(to, from->self->group);
    return lk_comm_entered(to) > 0 ? hand_out_arenas(to) : LK_OK;
}

lk_status lk_arena_mirror(lk_comm *comm, lk_arena *arena, size_t offset, const size_t *bytes)
{
    size_t end = offset;

    LK_TRY(lki_check_given("mirror", "arena", arena, 1));
    LK_TRY(lki_check_given("mirror", "bytes", bytes, comm->size));
    for (uint32_t rank = 0; rank < comm->size; rank++)
        if (__builtin_add_overflow(end, bytes[rank], &end) || end > arena->bytes)
            return lk_fail(LK_EINVAL, "mirror: the pieces up to rank %u's end outside of the arena "
                           "of %zu bytes", rank, arena->bytes);
    return comm->span == NULL ? lk_barrier(comm)
                              : comm->self->span_ops->mirror(comm, arena, offset, bytes);
}

void lki_arenas_close(lk_comm *comm)
{
    while (comm->arenas != NULL) {
        lk_arena *arena = comm->arenas;
        comm->arenas    = arena->next;
        if (arena->fd >= 0)
            (void)close(arena->fd);
        lki_free(arena);
    }
}

void *lk_arena_data(const lk_arena *arena)
{
    return arena->data;
}

size_t lk_arena_bytes(const lk_arena *arena)
{
    return arena->bytes;
}

lki_place lki_place_of(const lk_comm *comm, const void *data, size_t bytes)
{
    uintptr_t at = (uintptr_t)data;

    if (comm->span != NULL)
        comm = comm->span->local;
    for (; comm != NULL; comm = comm->parent)
        for (const lk_arena *arena = comm->arenas; arena != NULL; arena = arena->next) {
            uintptr_t base = (uintptr_t)arena->data;
            if (at >= base && at - base <= arena->bytes && bytes <= arena->bytes - (at - base))
                return (lki_place){ .arena = arena->index + 1, .level = comm->level,
                                    .offset = at - base };
        }
    return (lki_place){ 0 };
}

void *lki_place_data(const lk_comm *comm, lki_place place)
{
    while (comm->level > place.level)
        comm = comm->parent;
    const lk_arena *arena = comm->arenas;
    while (arena != NULL && arena->index + 1 != place.arena)
        arena = arena->next;
    LK_ASSERT(arena != NULL && place.offset <= arena->bytes);
    return (unsigned char *)arena->data + place.offset;
}
