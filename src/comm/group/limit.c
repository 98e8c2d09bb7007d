/* limit.c -- a memory limit for the ranks of a host.
 *
 * Arenas are counted when they are created.  The rest of the limit is divided equally among the
 * host's ranks.  Each rank sets RLIMIT_DATA to its part.  The kernel then limits the rank's private
 * writable memory, which is the heap and the stacks of threads, but not files, programs or arenas.
 * All ranks together thus stay below the limit, and an allocation beyond it fails in the rank that
 * requests the memory.  The full size of a stack is counted, so threads started later get small
 * stacks.
 *
 *      arenas + ranks x part + bytes reserved for one rank <= limit, after each new arena
 *
 * A rank may exceed its part by some MiB, for memory that the kernel counts but that is never
 * touched.
 */
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "comm/group/group.h"

/* STACK_BYTES is the stack size of a thread in a worker of a limited host.  A stack frame has at
 * most 16 KiB, and libraries that decode pictures need a few frames of that size.  UNTOUCHED_BYTES
 * is memory that the kernel counts but that is never touched.  It consists of stacks, most of the
 * scratch for other ranks' data (LKI_TASK_ROOMS segments) if little is sent, 2 MiB around each
 * allocation in huge pages, and gaps on the heap.  Up to 11 MiB were measured. */
enum { STACK_BYTES = 512 << 10, KEPT_BYTES = 128 << 10, UNTOUCHED_BYTES = 16 << 20 };

/* Returns the number of bytes of this process that count towards RLIMIT_DATA; UINT64_MAX if
 * unknown. */
static uint64_t data_now(void)
{
    char     line[160];
    uint64_t kib  = UINT64_MAX / 1024;
    FILE    *file = fopen("/proc/self/status", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmData: %" SCNu64, &kib) == 1)
            break;
    if (file != NULL)
        (void)fclose(file);
    return kib * 1024;
}

/* Limits this process to its part of the memory that remains after `all` bytes of arenas. */
static lk_status limit(lk_comm *comm, const char *what, size_t bytes, uint64_t all)
{
    lki_self      *self = comm->self;
    const uint64_t ranks = self->seated, others = all + self->one_bytes;
    struct rlimit  data;

    if (others > self->memory_limit)
        return lk_fail(LK_ENOMEM, "%s, %zu bytes, and %llu that there are: more than the %llu of "
                       "this host", what, bytes, (unsigned long long)(others - bytes),
                       (unsigned long long)self->memory_limit);
    const uint64_t part = (self->memory_limit - others) / ranks, mine = data_now();
    const uint64_t most = part + UNTOUCHED_BYTES + (self->is_one ? self->one_bytes : 0);
    if (mine > most)
        return lk_fail(LK_ENOMEM, "%s, %zu bytes, leaves %llu of this host's %llu to each of %llu "
                       "workers; this one has %llu already", what, bytes, (unsigned long long)part,
                       (unsigned long long)self->memory_limit, (unsigned long long)ranks,
                       (unsigned long long)mine);
    if (getrlimit(RLIMIT_DATA, &data) == 0 && most < data.rlim_max) {
        data.rlim_cur = most;
        if (setrlimit(RLIMIT_DATA, &data) != 0)
            return lk_fail(LK_EIO, "setrlimit: %s", strerror(errno));
    }
    return LK_OK;
}

lk_status lki_limit_take(lk_comm *comm, const char *name, size_t bytes)
{
    lki_self *self = comm->self;
    char      what[LKI_ARENA_NAME_BYTES + 8];

    if (self->memory_limit == 0)
        return LK_OK;
    (void)snprintf(what, sizeof what, "arena %s", name);
    LK_TRY(limit(comm, what, bytes, self->arena_bytes + bytes));
    self->arena_bytes += bytes;
    return LK_OK;
}

lk_status lki_comm_limit_one(lk_comm *comm, uint64_t bytes, bool mine)
{
    lki_self *self = comm->self;

    if (self->memory_limit == 0)
        return LK_OK;
    self->one_bytes = bytes;
    self->is_one    = mine;
    return limit(comm, "what one worker has beside its part", (size_t)bytes, self->arena_bytes);
}

/* Sets the default stack size of new threads to STACK_BYTES. */
static void have_small_stacks(void)
{
    pthread_attr_t attributes;
    if (pthread_getattr_default_np(&attributes) != 0)
        return;
    if (pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0)
        (void)pthread_setattr_default_np(&attributes);
    (void)pthread_attr_destroy(&attributes);
}

/* Makes the C library return all free memory above a fixed size to the kernel.  By default the
 * library retains up to twice the size of the largest freed block, in fragments. */
static void keep_nothing(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, KEPT_BYTES);
}

lk_status lki_comm_limit_memory(lk_comm *comm, uint64_t bytes)
{
    if (comm->self->group->threads && comm->self->seated > 1)
        return lk_fail(LK_EUNSUPPORTED, "the memory of threads cannot be limited; have processes");
    have_small_stacks();
    keep_nothing();
    comm->self->memory_limit = bytes;
    return lki_limit_take(comm, "(none yet)", 0);
}
