/* launch/job/cores.h -- assigns cores to the workers of a job. */
#ifndef LKI_LAUNCH_JOB_CORES_H
#define LKI_LAUNCH_JOB_CORES_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "lockstep/launch.h"

/* The cores that this process may use, ordered by proximity: the threads of a core, the cores that
 * share a cache and the cores of a NUMA node are adjacent. */
typedef struct {
    uint32_t count; /* 0: unknown */
    uint16_t order[CPU_SETSIZE];
    uint16_t node[CPU_SETSIZE]; /* NUMA node of order[i], in the kernel's numbering */
    uint32_t packages, nodes, cores; /* number of packages, NUMA nodes and cores; 0: unknown */
    char     by[48];                 /* source of this information */
} lki_cores;

/* Finds the cores that this process may use.  With `thorough`, uses hwloc even on a machine with
 * one NUMA node, where /sys is sufficient. */
void lki_cores_find(lki_cores *cores, bool thorough);

/* Finds the cores in `allowed` with hwloc.  Returns false if hwloc cannot be loaded.  The
 * environment variables HWLOC_SYNTHETIC and HWLOC_XMLFILE make hwloc describe another machine. */
bool lki_topology_read(lki_cores *cores, const cpu_set_t *allowed);

/* Computes the cores of worker `rank` of `workers`.  They are an equal, contiguous share or, with
 * LK_BIND_NUMA, all cores of the NUMA nodes that the share touches.  Returns false if the worker is
 * not bound: with LK_BIND_NONE, or if there are more workers than cores. */
bool lki_cores_share(cpu_set_t *out, const lki_cores *cores, uint32_t rank, uint32_t workers,
                     lk_bind bind);

#endif
