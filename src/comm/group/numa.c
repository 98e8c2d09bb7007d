/* numa.c -- placement of shared pages on the NUMA nodes of the ranks that use them.
 *
 * One rank creates shared memory, and by default all its pages would be on that rank's NUMA node.
 * Data in an arena is mostly in order of rank (buffers, slices, seats), so the pages of part r of
 * an arena are requested on the NUMA node of rank r.  This request is a preference.  If that NUMA
 * node is full, the kernel uses a different one.  A kernel without memory policies ignores the
 * request.
 *
 * A rank's NUMA node is the one on which the rank runs when it joins the group.  Launchers bind
 * workers to NUMA nodes before that.
 */
#include "comm/group/numa.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/memory.h"

enum { PREFERRED = 1, MOVE = 2, NODES_MAX = 1024, WORD = 64, PAGE = 4096, HUGE_PAGE = 1 << 21 };

uint32_t lki_numa_here(void)
{
    char     nodes[64] = "";
    unsigned cpu, node;
    FILE    *file = fopen("/sys/devices/system/node/online", "re");

    if (file != NULL) {
        (void)!fgets(nodes, sizeof nodes, file);
        (void)fclose(file);
    }
    if (strpbrk(nodes, "-,") == NULL || syscall(SYS_getcpu, &cpu, &node, NULL) != 0)
        return 0;
    return node + 1;
}

static void prefer(void *memory, size_t bytes, uint32_t home, unsigned flags)
{
    unsigned long mask[NODES_MAX / WORD] = { 0 };

    if (home == 0 || home > NODES_MAX || bytes == 0)
        return;
    mask[(home - 1) / WORD] = 1UL << (home - 1) % WORD;
    (void)syscall(SYS_mbind, memory, bytes, PREFERRED, mask, (unsigned long)NODES_MAX, flags);
}

void lki_numa_settle(const lk_comm *comm)
{
    uintptr_t from = lki_round_up((uintptr_t)comm->seat, PAGE);
    uintptr_t end  = ((uintptr_t)comm->seat + comm->seat_bytes) / PAGE * PAGE;

    if (from < end)
        prefer((unsigned char *)comm->seat + (from - (uintptr_t)comm->seat), end - from,
               atomic_load(&comm->me->home), MOVE);
}

static uint32_t home_of(const lk_comm *comm, uint32_t rank)
{
    return atomic_load(&lki_rank_of(comm, rank)->home);
}

/* Sets one policy for each run of neighbouring parts on the same NUMA node.  Large parts begin at
 * the start of a huge page. */
void lki_numa_spread(const lk_comm *comm, void *memory, size_t bytes)
{
    size_t   part = bytes / comm->size, page = part >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    uint32_t rank = 0;

    while (rank < comm->size) {
        uint32_t first = rank, home = home_of(comm, first);
        while (rank < comm->size && home_of(comm, rank) == home)
            rank++;
        if (first == 0 && rank == comm->size)
            return;
        size_t from = part * first / page * page;
        size_t end  = rank == comm->size ? bytes : part * rank / page * page;
        prefer((unsigned char *)memory + from, end - from, home, 0);
    }
}
