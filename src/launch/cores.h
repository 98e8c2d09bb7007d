/* launch/cores.h -- which cores each worker of a job runs on. */
#ifndef LKI_LAUNCH_CORES_H
#define LKI_LAUNCH_CORES_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "lockstep/launch.h"

/* The cores that this process may run on, neighbours (threads of one core, cores of one cache, of
 * one NUMA node) side by side. */
typedef struct {
    uint32_t count; /* 0 = not known */
    uint16_t order[CPU_SETSIZE];
    uint16_t node[CPU_SETSIZE]; /* of order[i]: its NUMA node, as the kernel numbers them */
    uint32_t packages, nodes, cores; /* that these are on; 0 = not known */
    char     by[48];                 /* who says so */
} lki_cores;

/* `thorough`: by hwloc also where the machine has one NUMA node, and /sys says enough. */
void lki_cores_find(lki_cores *cores, bool thorough);

/* Of those in `allowed`, by hwloc, which is loaded; false where it is not there.  HWLOC_SYNTHETIC
 * and HWLOC_XMLFILE in the environment have it tell of another machine. */
bool lki_topology_read(lki_cores *cores, const cpu_set_t *allowed);

/* Worker `rank` of `workers` gets an equal, contiguous share or, bound to NUMA nodes, all cores of
 * the nodes where that is.  False where it is not bound: by wish, or because there are more workers
 * than cores and none has a share; then each runs where there is room. */
bool lki_cores_share(cpu_set_t *out, const lki_cores *cores, uint32_t rank, uint32_t workers,
                     lk_bind bind);

#endif
