/* cores.c -- dealing the cores of a job to its workers.
 *
 * Ranks that wait for each other wake each other, and the kernel likes to put who wakes and who is
 * woken on one core, where neither can spin for the other: a small all_reduce of two ranks takes
 * ten times as long there.  So every worker gets its share of the cores, for itself and whatever
 * threads it starts.  A share is as large as it can be, so jobs that run side by side on the same
 * cores do not crowd on some of them.
 */
#include "launch/cores.h"

#include <stdio.h>
#include <stdlib.h>

/* A number from /sys, of lists the first; 0 where there is none. */
static unsigned read_topology(unsigned cpu, const char *name)
{
    char     path[96];
    unsigned number = 0;

    (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/topology/%s", cpu, name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%u", &number) != 1)
        number = 0;
    (void)fclose(file);
    return number;
}

/* Package, first thread of the core, thread: where a core stands among the others. */
static uint64_t place_of(unsigned cpu)
{
    return (uint64_t)read_topology(cpu, "physical_package_id") << 32 |
           (uint64_t)read_topology(cpu, "thread_siblings_list") << 16 | cpu;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

void lki_cores_find(lki_cores *cores)
{
    cpu_set_t set;
    uint64_t  places[CPU_SETSIZE];

    cores->count = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set))
            places[cores->count++] = place_of(cpu);
    qsort(places, cores->count, sizeof *places, ascending);
    for (uint32_t i = 0; i < cores->count; i++)
        cores->order[i] = (uint16_t)(places[i] & 0xffff);
}

bool lki_cores_share(cpu_set_t *out, const lki_cores *cores, uint32_t rank, uint32_t workers)
{
    CPU_ZERO(out);
    if (cores->count < workers)
        return false;
    for (uint64_t i = (uint64_t)cores->count * rank / workers;
         i < (uint64_t)cores->count * (rank + 1) / workers; i++)
        CPU_SET(cores->order[i], out);
    return true;
}
