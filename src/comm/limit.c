/* limit.c -- a host that has less memory than this machine.
 *
 * Arenas are counted when they are made.  What they leave is shared out to the host's ranks in
 * equal parts, and each has the kernel see to it that its process takes no more (RLIMIT_DATA, which
 * counts what it may write and nobody else sees: heap, threads' stacks, not files, programs or
 * arenas).  So all ranks together never have more than the limit, and one that wants more is told
 * so where it asks.  A stack counts whole, used or not, so those of threads that start from then on
 * are small.
 *
 *     arenas + ranks x part + what one has beside it <= limit, whenever an arena has been made
 *
 * A rank may have some MiB more than its part, for what is counted and never touched.
 */
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "comm/group.h"

/* A stack of a thread that the workers of a limited host start: a frame has 16 KiB at the most, and
 * libraries that decode pictures a few times as much.  And what a process may have beyond its part,
 * as the kernel counts what nobody has touched: stacks, most of the rooms for what others send
 * (LKI_TASK_ROOMS segments) where little is sent, 2 MiB about each memory in huge pages, and what
 * lies between on the heap: 11 MiB were seen. */
enum { STACK_BYTES = 512 << 10, KEPT_BYTES = 128 << 10, UNTOUCHED_BYTES = 16 << 20 };

/* What RLIMIT_DATA counts of this process; UINT64_MAX if /proc does not say. */
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

/* Of arenas that take so much. */
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

/* Whoever says otherwise when starting a thread has it so. */
static void have_small_stacks(void)
{
    pthread_attr_t attributes;
    if (pthread_getattr_default_np(&attributes) != 0)
        return;
    if (pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0)
        (void)pthread_setattr_default_np(&attributes);
    (void)pthread_attr_destroy(&attributes);
}

/* The C library keeps up to twice the largest memory that was freed, in pieces that little fits in,
 * unless it is told from which size on memory comes from the kernel, and goes back there. */
static void keep_nothing(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, KEPT_BYTES);
}

lk_status lki_comm_limit_memory(lk_comm *comm, uint64_t bytes)
{
    if (comm->self->group->threads)
        return lk_fail(LK_EUNSUPPORTED, "the memory of threads cannot be limited; have processes");
    have_small_stacks();
    keep_nothing();
    comm->self->memory_limit = bytes;
    return lki_limit_take(comm, "(none yet)", 0);
}
