/* pages.c -- allocating the pages of shared memory.
 *
 * If shared memory runs out, the kernel kills a process instead of refusing a page.  The size is
 * therefore first compared with the memory that is available in the machine and in its control
 * groups.  Then all processes allocate the pages of their parts in parallel.  The allocation takes
 * most of the time of creating an arena.
 */
#include "base/pages.h"

#include <errno.h>
#include <fcntl.h>
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

/* Returns the number of bytes that the machine has available; UINT64_MAX if it is not known. */
static uint64_t room_in_machine(void)
{
    char  text[4096];
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL)
        return UINT64_MAX;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    unsigned long long kib;
    const char        *line = strstr(text, "MemAvailable:");
    return line != NULL && sscanf(line, "%*s %llu", &kib) == 1 ? kib * 1024 : UINT64_MAX;
}

lk_status lki_pages_available(const char *name, size_t bytes)
{
    uint64_t memory = room_in_machine();
    uint64_t group  = lk_allowance_read().granted_bytes;

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
 * the share of the cores that this process may use. */
static uint32_t threads_for(uint32_t parts, size_t bytes)
{
    size_t most = lki_min(bytes / THREAD_BYTES, THREADS_MAX);
    return most <= 1 ? 1 : (uint32_t)lki_max(1, lki_min(lk_allowance_read().cores / parts, most));
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
