/* cores.c -- distributes the cores of a machine over the workers of a job.
 *
 * Ranks that wait for each other wake each other.  The kernel tends to put the waking and the woken
 * thread on one core, where neither can spin for the other.  A small all_reduce of two ranks then
 * takes ten times as long.  So every worker has exclusive use of a share of the cores, for itself
 * and its threads.  Each share is as large as possible, so jobs that run side by side do not crowd
 * on a few cores.
 *
 * Shares consist of neighbouring cores, so that a worker has caches and memory for itself. hwloc
 * describes proximity best, but loading hwloc takes longer than starting a worker.  On a machine
 * with one NUMA node, /sys is used instead.
 */
#include "launch/job/cores.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpus.h"

/* ---- Finding cores ----------------------------------------------------------------------- */

static void read_sys(lki_cores *cores, const cpu_set_t *allowed)
{
    lki_cpus cpus;

    lki_cpus_sort(&cpus, allowed);
    cores->count    = cpus.count;
    cores->packages = cpus.packages;
    cores->cores    = cpus.cores;
    memcpy(cores->order, cpus.order, sizeof cores->order);
    (void)snprintf(cores->by, sizeof cores->by, "/sys");
}

/* Returns true if the kernel reports several NUMA nodes, or if the environment makes hwloc describe
 * another machine. */
static bool needs_hwloc(void)
{
    char  nodes[64] = "";
    FILE *file      = fopen("/sys/devices/system/node/online", "re");

    if (file != NULL) {
        (void)!fgets(nodes, sizeof nodes, file);
        (void)fclose(file);
    }
    return strpbrk(nodes, "-,") != NULL || getenv("HWLOC_SYNTHETIC") != NULL ||
           getenv("HWLOC_XMLFILE") != NULL;
}

void lki_cores_find(lki_cores *cores, bool thorough)
{
    cpu_set_t allowed;

    *cores = (lki_cores){ .count = 0 };
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    if ((thorough || needs_hwloc()) && lki_topology_read(cores, &allowed) && cores->count > 0)
        return;
    *cores = (lki_cores){ .count = 0 };
    read_sys(cores, &allowed);
}

/* ---- Shares ------------------------------------------------------------------------------ */

static void take_node(cpu_set_t *out, const lki_cores *cores, uint16_t node)
{
    for (uint32_t i = 0; i < cores->count; i++)
        if (cores->node[i] == node)
            CPU_SET(cores->order[i], out);
}

bool lki_cores_share(cpu_set_t *out, const lki_cores *cores, uint32_t rank, uint32_t workers,
                     lk_bind bind)
{
    uint64_t first = (uint64_t)cores->count * rank / workers;
    uint64_t end   = (uint64_t)cores->count * (rank + 1) / workers;

    CPU_ZERO(out);
    if (cores->count == 0 || bind == LK_BIND_NONE ||
        (bind != LK_BIND_NUMA && cores->count < workers))
        return false;
    if (bind != LK_BIND_NUMA)
        for (uint64_t i = first; i < end; i++)
            CPU_SET(cores->order[i], out);
    else
        for (uint64_t i = first; i < end || i == first; i++)
            take_node(out, cores, cores->node[i]);
    return true;
}

/* ---- The public functions ---------------------------------------------------------------- */

void lk_topology_find(lk_topology *out)
{
    lki_cores cores;

    lki_cores_find(&cores, true);
    *out = (lk_topology){ .packages = cores.packages,
                          .nodes    = cores.nodes,
                          .cores    = cores.cores,
                          .cpus     = cores.count };
    (void)snprintf(out->by, sizeof out->by, "%s", cores.by);
}

/* Writes a list such as "0-3,8"; returns false if `out` is too small. */
static bool list(char *out, size_t bytes, const cpu_set_t *set)
{
    size_t used = 0;

    out[0] = '\0';
    for (unsigned cpu = 0; cpu < CPU_SETSIZE && used < bytes; cpu++) {
        if (!CPU_ISSET(cpu, set) || (cpu > 0 && CPU_ISSET(cpu - 1, set)))
            continue;
        unsigned last = cpu;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set))
            last++;
        used += (size_t)snprintf(out + used, bytes - used, last > cpu ? "%s%u-%u" : "%s%u",
                                 used > 0 ? "," : "", cpu, last);
    }
    return used < bytes;
}

bool lk_topology_place(char *out, size_t bytes, uint32_t rank, uint32_t workers, lk_bind bind)
{
    lki_cores cores;
    cpu_set_t share;

    lki_cores_find(&cores, true);
    return lki_cores_share(&share, &cores, rank, workers, bind) && list(out, bytes, &share);
}
