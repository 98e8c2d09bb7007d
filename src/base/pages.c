/* pages.c -- allocating the pages of shared memory.
 *
 * If shared memory runs out, the kernel kills a process instead of refusing a page.  The size is
 * therefore first compared with the memory that is available in the machine and in the control
 * group.  Then all processes allocate the pages of their parts in parallel.  The allocation takes
 * most of the time of creating an arena.
 */
#include "base/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/memory.h"
#include "base/pool.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older headers lack the name */
#endif

enum { PAGE = 4096, HUGE_PAGE = 1 << 21 };
enum { THREAD_BYTES = 16 << 20, THREADS_MAX = 8 }; /* an additional thread is started for each
                                                    * THREAD_BYTES */

/* ---- Available memory -------------------------------------------------------------------- */

/* Returns the number that follows `key` in a small file, or the first number if `key` is NULL.
 * Returns UINT64_MAX if there is no such number. */
static uint64_t number_in(const char *path, const char *key)
{
    char  text[4096];
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return UINT64_MAX;
    size_t read = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[read]       = '\0';
    const char *from = key == NULL ? text : strstr(text, key);
    if (from == NULL)
        return UINT64_MAX;
    from += key == NULL ? 0 : strlen(key);
    char              *end;
    unsigned long long number = strtoull(from, &end, 10);
    return end == from ? UINT64_MAX : number; /* "max" means no limit */
}

/* Returns the number of bytes that this control group may still allocate.  The kernel counts page
 * cache as used, but can reclaim it. */
static uint64_t room_in_group(void)
{
    uint64_t limit = number_in("/sys/fs/cgroup/memory.max", NULL);
    uint64_t used  = number_in("/sys/fs/cgroup/memory.current", NULL);
    uint64_t cold  = number_in("/sys/fs/cgroup/memory.stat", "\ninactive_file ");
    uint64_t warm  = number_in("/sys/fs/cgroup/memory.stat", "\nactive_file ");

    if (limit == UINT64_MAX || used == UINT64_MAX || cold == UINT64_MAX || warm == UINT64_MAX)
        return UINT64_MAX;
    used = used > cold + warm ? used - cold - warm : 0;
    return limit > used ? limit - used : 0;
}

lk_status lki_pages_available(const char *name, size_t bytes)
{
    uint64_t kib    = number_in("/proc/meminfo", "MemAvailable:");
    uint64_t memory = kib == UINT64_MAX ? UINT64_MAX : kib * 1024;
    uint64_t group  = room_in_group();

    if (bytes > memory)
        return lk_fail(LK_ENOMEM, "arena %s: %zu bytes, but the machine has %llu available", name,
                       bytes, (unsigned long long)memory);
    if (bytes > group)
        return lk_fail(LK_ENOMEM, "arena %s: %zu bytes, but the control group (container) has %llu "
                       "left; raise its memory limit", name, bytes, (unsigned long long)group);
    return LK_OK;
}

/* ---- Allocating -------------------------------------------------------------------------- */

typedef struct {
    char       *memory;
    size_t      bytes;
    uint32_t    parts;
    _Atomic int error;
} pages;

static lk_status no_memory(const char *name, size_t bytes, int error)
{
    return lk_fail(LK_ENOMEM, "arena %s: no memory for %zu bytes: %s", name, bytes,
                   strerror(error));
}

lk_status lki_pages_reserve(int fd, const char *name, void *memory, size_t bytes)
{
    bool old = madvise(memory, 1, MADV_POPULATE_WRITE) != 0 && errno == EINVAL;
    int  error = old ? posix_fallocate(fd, 0, (off_t)bytes) : 0;
    return error == 0 ? LK_OK : no_memory(name, bytes, error);
}

/* Populates a part of a mapping, so that the kernel can use huge pages and no page faults occur
 * later.  Returns 0 or an errno.  On kernels without this feature returns 0, because the pages have
 * been allocated by lki_pages_reserve(). */
static int populate(void *memory, size_t bytes)
{
    return madvise(memory, bytes, MADV_POPULATE_WRITE) == 0 || errno == EINVAL ? 0 : errno;
}

void lki_pages_map(void *memory, size_t bytes)
{
    (void)populate(memory, bytes);
}

/* Returns the offset at which a part starts.  Large parts start at a huge page. */
static size_t border(size_t bytes, uint32_t part, uint32_t parts)
{
    size_t each = bytes / parts, page = each >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    return part == parts ? bytes : each * part / page * page;
}

static void populate_part(void *context, size_t index, uint32_t thread)
{
    pages   *p     = context;
    uint32_t part  = (uint32_t)index;
    size_t   first = border(p->bytes, part, p->parts), end = border(p->bytes, part + 1, p->parts);
    int      error = end > first ? populate(p->memory + first, end - first) : 0;
    (void)thread;
    if (error != 0)
        atomic_store(&p->error, error);
}

/* Returns the number of threads that allocate pages.  It is limited by the number of bytes and by
 * the share of the available cores. */
static uint32_t threads_for(uint32_t parts, size_t bytes)
{
    cpu_set_t cpus;
    bool      known = sched_getaffinity(0, sizeof cpus, &cpus) == 0;
    size_t    cores = known ? (size_t)CPU_COUNT(&cpus) / parts : 1;
    return (uint32_t)lki_max(1, lki_min(lki_min(cores, THREADS_MAX), bytes / THREAD_BYTES));
}

lk_status lki_pages_fill(uint32_t part, uint32_t parts, const char *name, void *memory,
                         size_t bytes)
{
    size_t    first = border(bytes, part, parts), end = border(bytes, part + 1, parts);
    pages     mine  = { .memory = (char *)memory + first, .bytes = end - first };
    lki_pool *pool  = NULL;

    mine.parts = threads_for(parts, mine.bytes);
    if (mine.parts > 1 && lki_pool_open(&pool, mine.parts) != LK_OK)
        mine.parts = 1; /* without further threads this thread does all the work */
    lki_pool_each(pool, populate_part, &mine);
    lki_pool_free(pool);
    return mine.error == 0 ? LK_OK : no_memory(name, bytes, mine.error);
}
